//! A peer that breaks a rule of zero copy: one case for each, with its section.

use sdp_proto::{
    Credits, Mode, SourceInput, Violation,
    wire::{Body, Lane, LaneSwitch, ModeChange, SinkAvail, SrcAvail},
};
use sdp_rdma::key::{RemoteSlice, Rkey};

use crate::{
    ends::{Pair, Stop, forged},
    stories::pipelined,
};

fn slice(len: u32) -> RemoteSlice {
    RemoteSlice { addr: 9, len, rkey: Rkey(7) }
}

fn src_avail(len: u32) -> Body {
    Body::SrcAvail(SrcAvail { buffer: slice(len) })
}

fn sink_avail(len: u32, non_discards: u32) -> Body {
    Body::SinkAvail(SinkAvail { buffer: slice(len), non_discards })
}

/// End 1 takes a message that its peer, end 0, forges.
fn judge(pair: &Pair, body: Body, payload: u32) -> Result<(), Violation> {
    let mut pair = pair.clone();
    let packet = forged(&pair, 1, body, payload);
    pair.wires[1].push_front(packet);
    match pair.take(1) {
        Ok(_) => Ok(()),
        Err(Stop::Violation(violation)) => Err(violation),
        Err(stop) => panic!("{stop:?}"),
    }
}

/// End 1 has an advertisement of its peer, of 100 bytes with 10 inline.
fn offered() -> Pair {
    let mut pair = Pair::new(Credits::Explicit);
    pair.advertise(0, 100, 10).unwrap();
    pair.settle().unwrap();
    pair
}

/// End 1 has advertised 100 bytes of its own, 10 of them inline.
fn advertised() -> Pair {
    let mut pair = Pair::new(Credits::Explicit);
    pair.advertise(1, 100, 10).unwrap();
    pair.settle().unwrap();
    pair
}

/// End 1 has refused the advertisement of its peer, and told it so.
fn refused() -> Pair {
    let mut pair = offered();
    pair.ends[1].sink.refuse();
    pair.settle().unwrap();
    pair
}

fn cancelled(pair: Pair, flying: bool) -> Pair {
    let mut pair = pair;
    if flying {
        assert!(pair.begin_read(1, 50));
    }
    pair.cancel(0).unwrap();
    pair.settle().unwrap();
    pair
}

/// End 1 has as many advertisements as it accepts.
fn four_offered() -> Pair {
    let mut four = pipelined();
    four.advertise(0, 100, 0).unwrap();
    four.advertise(0, 100, 0).unwrap();
    four.settle().unwrap();
    for _ in 0..2 {
        let packet = forged(&four, 1, src_avail(10), 0);
        four.wires[1].push_back(packet);
        four.take(1).unwrap();
    }
    four
}

#[test]
fn a_source_that_breaks_a_rule() {
    let combined = offered();
    let fresh = Pair::new(Credits::Explicit);
    let change = |mode| Body::ModeChange(ModeChange { for_source: false, mode });
    let switch =
        LaneSwitch { lane: Lane::Carrier, sequence: 1, carrier_position: 0, stream_position: 0 };
    let four = four_offered();
    let mut lent = pipelined();
    lent.lend(1, 500).unwrap();
    let mut buffered = Pair::new(Credits::Explicit);
    buffered.change_mode(0, Mode::Buffered).unwrap();
    buffered.settle().unwrap();
    let mut skipping = offered();
    assert!(skipping.begin_read(1, 50) && skipping.end_read(1).unwrap());
    skipping.cancel(0).unwrap();
    skipping.withdraw(0).unwrap();
    skipping.take(1).unwrap();
    skipping.take(1).unwrap();

    let cases = [
        (&combined, Body::Data, 5, Violation::PayloadBesideAdvert { len: 5 }),
        (&combined, src_avail(100), 1, Violation::TooManyAdverts { limit: 1 }),
        (&four, src_avail(100), 0, Violation::TooManyAdverts { limit: 4 }),
        (&combined, Body::DisConn, 0, Violation::EndBesideAdvert { mid: 0x02 }),
        (&combined, Body::LaneSwitch(switch), 0, Violation::EndBesideAdvert { mid: 0x40 }),
        (&combined, change(Mode::Buffered), 0, Violation::ModeWithAdvert),
        (&combined, change(Mode::Combined), 0, Violation::ModeIllegal { byte: 0x10 }),
        (&buffered, src_avail(100), 1, Violation::AdvertInBuffered),
        (&fresh, src_avail(100), 0, Violation::InlineMissing),
        (&pipelined(), src_avail(100), 1, Violation::InlineUnexpected { inline: 1 }),
        (&fresh, src_avail(10), 10, Violation::InlineTooLong { inline: 10, len: 10 }),
        (&refused(), src_avail(100), 1, Violation::AdvertBeforeRest { rest: 90 }),
        (&refused(), Body::DisConn, 0, Violation::EndBesideAdvert { mid: 0x02 }),
        (&skipping, src_avail(100), 1, Violation::AdvertBeforeRest { rest: 50 }),
        (&skipping, Body::DisConn, 0, Violation::EndBesideAdvert { mid: 0x02 }),
        (&cancelled(offered(), true), src_avail(9), 1, Violation::AdvertInCancel { mid: 0xfe }),
        (&combined, Body::Withdrawn { position: 10 }, 0, Violation::WithdrawnUncancelled),
        (
            &cancelled(offered(), true),
            Body::Withdrawn { position: 11 },
            0,
            Violation::WithdrawnPosition { position: 11, here: 10 },
        ),
        (
            &cancelled(offered(), true),
            Body::Withdrawn { position: 9 },
            0,
            Violation::WithdrawnPosition { position: 9, here: 10 },
        ),
        (
            &skipping,
            Body::Withdrawn { position: 60 },
            0,
            Violation::WithdrawnPosition { position: 60, here: 60 },
        ),
        (&fresh, Body::RdmaWrCompl { bytes: 1 }, 0, Violation::WriteComplUnasked { bytes: 1 }),
        (
            &lent,
            Body::RdmaWrCompl { bytes: 501 },
            0,
            Violation::WriteComplLength { bytes: 501, len: 500 },
        ),
        (
            &lent,
            Body::RdmaWrCompl { bytes: 0 },
            0,
            Violation::WriteComplLength { bytes: 0, len: 500 },
        ),
        (&lent, Body::SinkCancelAck, 0, Violation::SinkCancelAckUnasked),
    ];
    for (pair, body, payload, violation) in cases {
        assert_eq!(judge(pair, body, payload), Err(violation), "{body:?}");
        assert!(violation.to_string().ends_with(&format!("(spec {})", violation.section())));
    }
}

/// The rest of an older advertisement, and nothing more, comes before a younger one is answered.
#[test]
fn payload_beyond_the_rest() {
    let mut pair = pipelined();
    pair.advertise(0, 50, 0).unwrap();
    pair.advertise(0, 100, 0).unwrap();
    pair.settle().unwrap();
    pair.ends[1].sink.refuse();
    pair.settle().unwrap();
    let violation = Violation::PayloadBesideAdvert { len: 51 };
    assert_eq!(judge(&pair, Body::Data, 51), Err(violation));
    assert_eq!(judge(&pair, Body::Data, 50), Ok(()));
}

#[test]
fn a_sink_that_breaks_a_rule() {
    let one = advertised();
    let fresh = Pair::new(Credits::Explicit);
    let read = |bytes| Body::RdmaRdCompl { bytes };
    // End 1 is the source of a half in Pipelined mode: the story's other side.
    let mut piped = pipelined();
    piped.ends.swap(0, 1);
    piped.wires.swap(0, 1);
    let mut beside = piped.clone();
    beside.advertise(1, 100, 0).unwrap();
    let mut both = piped.clone();
    both.advertise(1, 100, 0).unwrap();
    both.advertise(1, 100, 0).unwrap();
    both.settle().unwrap();
    both.ends[0].sink.refuse();
    both.settle().unwrap();
    let mut five = piped.clone();
    for _ in 0..4 {
        let packet = forged(&five, 1, sink_avail(500, 1), 0);
        five.wires[1].push_back(packet);
        five.take(1).unwrap();
    }
    let cases = [
        (&fresh, read(1), Violation::ReadComplUnasked { bytes: 1 }),
        (&one, read(91), Violation::ReadComplLength { bytes: 91, left: 90 }),
        (&one, read(0), Violation::ReadComplLength { bytes: 0, left: 90 }),
        (&both, read(1), Violation::ReadComplBeforeRest { bytes: 1, rest: 100 }),
        (&one, sink_avail(500, 0), Violation::SinkAvailNotPipelined),
        (&piped, sink_avail(116, 1), Violation::SinkAvailShort { len: 116, limit: 116 }),
        (&beside, sink_avail(500, 1), Violation::SinkAvailBesideAdvert { len: 500 }),
        (&five, sink_avail(500, 1), Violation::TooManyAdverts { limit: 4 }),
        (
            &one,
            Body::ModeChange(ModeChange { for_source: true, mode: Mode::Combined }),
            Violation::ModeIllegal { byte: 0x90 },
        ),
        (&one, Body::SuspCommAck, Violation::SuspCommAckUnasked),
        (&one, Body::ChRcvBufAck { size: 500 }, Violation::ResizeAckUnasked { size: 500 }),
    ];
    for (pair, body, violation) in cases {
        assert_eq!(judge(pair, body, 0), Err(violation), "{body:?}");
    }
}

#[test]
fn a_report_that_acknowledges_less_than_the_advertisement() {
    let mut pair = advertised();
    let input = SourceInput::RdmaRdCompl { bytes: 5, wants_pipelined: false };
    let early = pair.ends[1].source.handle(&input, 0);
    assert_eq!(early, Err(Violation::ReadComplUnasked { bytes: 5 }));
}
