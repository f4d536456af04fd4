//! A story for each line of the state tables (spec 7.9).

use sdp_proto::{
    Ack, Credits, Hold, Mode, PendingControl, SourceEvent, SourceInput, Violation, ZcopySink,
    ZcopySource,
    wire::{Body, ModeChange, SinkAvail},
};
use sdp_rdma::key::{RemoteSlice, Rkey};

use crate::ends::{PAYLOAD, Pair, Stop};

const NEW: fn() -> Pair = || Pair::new(Credits::Explicit);

/// Both halves of `side`'s stream in Pipelined mode: by a report that asks for it.
pub fn pipelined() -> Pair {
    let mut pair = NEW();
    pair.ends[1].sink.want_pipelined(true);
    pair.advertise(0, 1000, 1).unwrap();
    pair.settle().unwrap();
    read_all(&mut pair, 1);
    assert!(pair.change_mode(0, Mode::Pipelined).is_ok());
    pair.settle().unwrap();
    assert_eq!(pair.ends[1].sink.plain().mode(), Mode::Pipelined);
    // Any message of the peer acknowledges the change.
    pair.data(1, 1).unwrap();
    pair.settle().unwrap();
    pair
}

fn read_all(pair: &mut Pair, side: usize) {
    while pair.begin_read(side, 256) {
        assert!(pair.end_read(side).unwrap());
    }
    pair.settle().unwrap();
}

/// What is due as Data.
fn send_rest(pair: &mut Pair, side: usize) {
    while pair.ends[side].source.rest() != 0 {
        let rest = pair.ends[side].source.rest();
        pair.data(side, rest).unwrap();
        pair.settle().unwrap();
    }
}

fn got(pair: &Pair) -> (u64, u64) {
    (pair.ends[0].source.plain().position(), pair.ends[1].got)
}

#[test]
fn an_advertisement_is_read_in_pieces_and_reported_to_its_end() {
    let mut pair = NEW();
    pair.data(0, 5).unwrap();
    let message = pair.advertise(0, 1000, 10).unwrap();
    assert_eq!(message.header.len, 32 + 10);
    assert_eq!(pair.data(0, 1), Err(Hold::AdvertOutstanding));
    assert_eq!(pair.advertise(0, 1000, 10), Err(Hold::AdvertOutstanding));
    assert_eq!(pair.disconnect(0), Err(Hold::AdvertOutstanding));
    pair.settle().unwrap();
    // The inline bytes are here; nothing of the rest.
    assert_eq!(got(&pair), (15, 15));
    // The first piece is reported because it is asked for.
    assert!(pair.begin_read(1, 90));
    assert!(pair.end_read(1).unwrap());
    pair.ends[1].sink.report();
    pair.settle().unwrap();
    assert_eq!(pair.last_event(0), SourceEvent::Read { bytes: 90, finished: false });
    assert_eq!(pair.ends[0].source.unread(), 900);
    // Two at a time; their report is one, and ends the advertisement.
    assert!(pair.begin_read(1, 500) && pair.begin_read(1, 500) && !pair.begin_read(1, 500));
    assert_eq!(pair.ends[1].sink.flying(), 900);
    assert!(pair.end_read(1).unwrap() && pair.end_read(1).unwrap());
    pair.settle().unwrap();
    assert_eq!(pair.last_event(0), SourceEvent::Read { bytes: 900, finished: true });
    assert_eq!(got(&pair), (1005, 1005));
    assert!(pair.ends[0].live.is_empty());
    pair.data(0, 1).unwrap();
    pair.settle().unwrap();
    assert_eq!(got(&pair), (1006, 1006));
}

#[test]
fn a_mebibyte_is_reported_although_there_is_more() {
    let mut pair = NEW();
    pair.advertise(0, 3 << 20, 1).unwrap();
    pair.settle().unwrap();
    for part in 1..=4 {
        assert!(pair.begin_read(1, 256 << 10) && pair.end_read(1).unwrap());
        pair.settle().unwrap();
        assert_eq!(pair.ends[0].events.len(), part / 4);
    }
}

#[test]
fn a_refusal_makes_the_rest_data() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    pair.settle().unwrap();
    // After some of it was read: the report first.
    assert!(pair.begin_read(1, 100));
    pair.ends[1].sink.refuse();
    assert!(!pair.begin_read(1, 100), "no new READ behind a refusal");
    assert!(pair.end_read(1).unwrap());
    pair.settle().unwrap();
    assert_eq!(
        pair.ends[0].events,
        [SourceEvent::Read { bytes: 100, finished: false }, SourceEvent::SendRest { bytes: 890 }]
    );
    assert!(pair.ends[0].live.is_empty());
    assert_eq!(pair.advertise(0, 1000, 10), Err(Hold::RestFirst));
    assert_eq!(pair.disconnect(0), Err(Hold::RestFirst));
    send_rest(&mut pair, 0);
    pair.advertise(0, 1000, 10).unwrap();
    pair.settle().unwrap();
    assert_eq!(got(&pair), (1010, 1010));
}

#[test]
fn a_cancellation_that_finds_the_advertisement_untouched() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    pair.cancel(0).unwrap();
    assert_eq!(pair.cancel(0), Err(Hold::Cancelling));
    assert_eq!(pair.advertise(0, 1000, 10), Err(Hold::Cancelling));
    pair.settle().unwrap();
    assert_eq!(pair.ends[0].events, [SourceEvent::Cancelled { bytes: 990 }]);
    assert!(!pair.ends[1].sink.is_offered() && pair.ends[0].live.is_empty());
    // What follows is the program's choice.
    pair.advertise(0, 500, 10).unwrap();
    pair.settle().unwrap();
    read_all(&mut pair, 1);
    assert_eq!(got(&pair), (510, 510));
}

#[test]
fn a_cancellation_waits_for_reads_under_way() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    pair.settle().unwrap();
    assert!(pair.begin_read(1, 100) && pair.begin_read(1, 100));
    let cancel = pair.cancel(0).unwrap();
    pair.settle().unwrap();
    assert!(pair.ends[0].events.is_empty());
    // The acknowledgement is held before it, and allows as many messages as it would.
    let (held, free) = (pair.ends[1].sink.ack(8), pair.ends[1].sink.plain().ack(8));
    assert_eq!(held.mseq_ack.wrapping_add(1), cancel.header.mseq);
    let limit = |ack: sdp_proto::Ack| ack.mseq_ack.wrapping_add(u32::from(ack.bufs));
    assert_eq!(limit(held), limit(free));
    assert!(!pair.begin_read(1, 100));
    assert!(pair.end_read(1).unwrap());
    pair.settle().unwrap();
    assert!(pair.ends[0].events.is_empty());
    assert!(pair.end_read(1).unwrap());
    pair.settle().unwrap();
    assert_eq!(
        pair.ends[0].events,
        [SourceEvent::Read { bytes: 200, finished: false }, SourceEvent::Cancelled { bytes: 790 }]
    );
    assert_eq!(pair.ends[1].sink.ack(8), pair.ends[1].sink.plain().ack(8));
    pair.data(0, 1).unwrap();
    pair.settle().unwrap();
    assert_eq!(got(&pair), (211, 211));
}

#[test]
fn a_cancellation_that_crosses_the_last_report_needs_no_answer() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    pair.settle().unwrap();
    assert!(pair.begin_read(1, 990) && pair.end_read(1).unwrap());
    pair.control(1).unwrap();
    pair.cancel(0).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.ends[0].events, [SourceEvent::Read { bytes: 990, finished: true }]);
    assert!(!pair.ends[0].source.is_cancelling());
    pair.advertise(0, 1000, 10).unwrap();
    pair.settle().unwrap();
    assert_eq!(got(&pair), (1010, 1010));
}

#[test]
fn a_cancellation_ends_with_the_last_report() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    pair.settle().unwrap();
    assert!(pair.begin_read(1, 990));
    pair.cancel(0).unwrap();
    pair.take(1).unwrap();
    assert!(pair.end_read(1).unwrap());
    // The report goes out; the sink is not asked for another answer before the next SrcAvail.
    let pending = pair.ends[1].pending;
    pair.post(1, |source, ack| source.next_control(ack, pending)).unwrap();
    pair.take(0).unwrap();
    assert_eq!(pair.last_event(0), SourceEvent::Read { bytes: 990, finished: true });
    pair.advertise(0, 1000, 10).unwrap();
    assert_eq!(pair.take(1), Ok(true));
    read_all(&mut pair, 1);
    assert_eq!(got(&pair), (2000, 2000));
}

#[test]
fn a_cancellation_that_crosses_a_send_sm_is_done_by_it() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    pair.settle().unwrap();
    pair.ends[1].sink.refuse();
    pair.control(1).unwrap();
    pair.cancel(0).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.ends[0].events, [SourceEvent::Cancelled { bytes: 990 }]);
    // What is left need not come: the sink waits for nothing.
    pair.advertise(0, 20, 10).unwrap();
    pair.settle().unwrap();
    read_all(&mut pair, 1);
    assert_eq!(got(&pair), (30, 30));
}

#[test]
fn an_advertisement_is_taken_back_without_an_answer() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    assert_eq!(pair.withdraw(0), Err(Hold::NoAdvert), "not cancelled");
    pair.cancel(0).unwrap();
    let withdrawn = pair.withdraw(0).unwrap();
    assert_eq!(withdrawn.body, Body::Withdrawn { position: 10 });
    assert_eq!(pair.ends[0].source.rest(), 990);
    assert_eq!(pair.advertise(0, 100, 1), Err(Hold::RestFirst));
    pair.data(0, PAYLOAD).unwrap();
    // The peer, an hour later.
    pair.settle().unwrap();
    send_rest(&mut pair, 0);
    // The SendSm that it sent for the cancellation meanwhile says nothing.
    let nothing = |event: &SourceEvent| *event == SourceEvent::Nothing;
    assert!(pair.ends[0].events.iter().all(nothing), "{:?}", pair.ends[0].events);
    assert_eq!(got(&pair), (1000, 1000));
    assert!(pair.advertise(0, 100, 1).is_ok());
}

#[test]
fn what_was_read_and_not_reported_comes_again_and_is_skipped() {
    for is_report_lost in [false, true] {
        let mut pair = NEW();
        pair.advertise(0, 1000, 10).unwrap();
        pair.take(1).unwrap();
        // Stopped behind its READs; in the one story the report is on its way, in the other not.
        assert!(pair.begin_read(1, 150) && pair.begin_read(1, 100));
        assert!(pair.end_read(1).unwrap() && pair.end_read(1).unwrap());
        if !is_report_lost {
            pair.ends[1].sink.report();
            pair.control(1).unwrap();
        }
        pair.cancel(0).unwrap();
        assert_eq!(pair.withdraw(0).unwrap().body, Body::Withdrawn { position: 10 });
        assert_eq!(pair.data(0, PAYLOAD).unwrap().payload_len(), PAYLOAD);
        pair.settle().unwrap();
        send_rest(&mut pair, 0);
        assert!(pair.ends[0].events.iter().all(|event| *event == SourceEvent::Nothing));
        assert_eq!(got(&pair), (1000, 1000));
        // And all is as before.
        pair.advertise(0, 100, 1).unwrap();
        pair.settle().unwrap();
        read_all(&mut pair, 1);
        assert_eq!(got(&pair), (1100, 1100));
    }
}

#[test]
fn no_new_advertisement_before_withdrawn_is_acknowledged() {
    let mut pair = NEW();
    pair.advertise(0, 50, 10).unwrap();
    pair.cancel(0).unwrap();
    pair.withdraw(0).unwrap();
    pair.data(0, 40).unwrap();
    assert_eq!(pair.advertise(0, 100, 1), Err(Hold::WithdrawnUnacked));
    pair.settle().unwrap();
    // Any message of the peer acknowledges it.
    pair.data(1, 1).unwrap();
    pair.settle().unwrap();
    assert!(pair.advertise(0, 100, 1).is_ok());
}

#[test]
fn reads_under_way_are_void_behind_withdrawn() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    pair.take(1).unwrap();
    assert!(pair.begin_read(1, 100));
    pair.cancel(0).unwrap();
    // The device has all of the READ before the memory goes, and the sink learns of it late.
    let key = pair.ends[0].live.clone();
    pair.withdraw(0).unwrap();
    pair.ends[0].live = key;
    pair.settle().unwrap();
    assert_eq!(pair.ends[1].sink.flying(), 100);
    assert!(pair.end_read(1).unwrap());
    assert_eq!(pair.ends[1].got, 10, "not counted");
    send_rest(&mut pair, 0);
    assert_eq!(got(&pair), (1000, 1000));
}

#[test]
fn a_read_of_memory_that_was_taken_back_is_refused() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    pair.take(1).unwrap();
    assert!(pair.begin_read(1, 100));
    pair.cancel(0).unwrap();
    pair.withdraw(0).unwrap();
    assert_eq!(pair.end_read(1), Err(Stop::ReadRefused));
}

#[test]
fn both_ends_send() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    pair.advertise(1, 1000, 10).unwrap();
    for side in [0, 1] {
        pair.take(side).unwrap();
        pair.ends[side].sink.refuse();
    }
    pair.settle().unwrap();
    for side in [0, 1] {
        assert_eq!(pair.ends[side].events, [SourceEvent::SendRest { bytes: 990 }]);
        send_rest(&mut pair, side);
    }
    assert_eq!((pair.ends[0].got, pair.ends[1].got), (1000, 1000));
}

#[test]
fn buffered_mode_forbids_advertisements_until_the_sink_leaves_it() {
    let mut pair = NEW();
    assert_eq!(pair.change_mode(0, Mode::Pipelined), Err(Hold::ModeForbids));
    pair.advertise(0, 100, 1).unwrap();
    assert_eq!(pair.change_mode(0, Mode::Buffered), Err(Hold::AdvertOutstanding));
    pair.settle().unwrap();
    read_all(&mut pair, 1);
    pair.change_mode(0, Mode::Buffered).unwrap();
    assert_eq!(pair.advertise(0, 100, 1), Err(Hold::ModeForbids));
    assert_eq!(pair.change_mode(0, Mode::Combined), Err(Hold::ModeForbids));
    pair.settle().unwrap();
    pair.data(0, 3).unwrap();
    let pending = pair.ends[1].sink.leave_buffered().unwrap();
    pair.ends[1].pending = pair.ends[1].pending.add(pending).unwrap();
    pair.settle().unwrap();
    pair.advertise(0, 100, 1).unwrap();
    pair.settle().unwrap();
    read_all(&mut pair, 1);
    assert_eq!(got(&pair), (203, 203));
}

#[test]
fn two_advertisements_fly_in_pipelined_mode() {
    let mut pair = pipelined();
    assert_eq!(pair.advertise(0, 1000, 1), Err(Hold::AdvertShape));
    pair.advertise(0, 1000, 0).unwrap();
    pair.advertise(0, 500, 0).unwrap();
    assert_eq!(pair.advertise(0, 500, 0), Err(Hold::AdvertOutstanding));
    pair.settle().unwrap();
    read_all(&mut pair, 1);
    let finished: Vec<_> = pair.ends[0]
        .events
        .iter()
        .filter(|event| matches!(event, SourceEvent::Read { finished: true, .. }))
        .collect();
    assert_eq!(finished.len(), 3);
    assert_eq!(got(&pair), (2500, 2500));
    // One is refused: its rest comes before the other one is read.
    pair.advertise(0, 1000, 0).unwrap();
    pair.advertise(0, 500, 0).unwrap();
    pair.settle().unwrap();
    pair.ends[1].sink.refuse();
    pair.settle().unwrap();
    assert!(!pair.begin_read(1, 10));
    assert_eq!(pair.data(0, 2000).unwrap().payload_len(), PAYLOAD);
    send_rest(&mut pair, 0);
    assert_eq!(pair.data(0, 2000), Err(Hold::AdvertOutstanding));
    read_all(&mut pair, 1);
    assert_eq!(got(&pair), (4000, 4000));
    // A cancellation is of both, and answered once.
    pair.advertise(0, 1000, 0).unwrap();
    pair.advertise(0, 500, 0).unwrap();
    pair.settle().unwrap();
    assert!(pair.begin_read(1, 300) && pair.end_read(1).unwrap());
    pair.cancel(0).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.last_event(0), SourceEvent::Cancelled { bytes: 1200 });
    assert_eq!(got(&pair), (4300, 4300));
    // Both are withdrawn.
    pair.advertise(0, 1000, 0).unwrap();
    pair.advertise(0, 500, 0).unwrap();
    pair.take(1).unwrap();
    assert!(pair.begin_read(1, 1000) && pair.end_read(1).unwrap());
    pair.cancel(0).unwrap();
    pair.withdraw(0).unwrap();
    assert_eq!(pair.ends[0].source.rest(), 1500);
    send_rest(&mut pair, 0);
    assert_eq!(got(&pair), (5800, 5800));
}

#[test]
fn a_waiting_sink_is_written_to() {
    let mut pair = pipelined();
    assert_eq!(pair.lend(1, 116), Err(Hold::AdvertShape), "a message may not fit");
    pair.lend(1, 500).unwrap();
    pair.lend(1, 500).unwrap();
    assert_eq!(pair.lend(1, 500), Err(Hold::AdvertOutstanding));
    pair.settle().unwrap();
    assert_eq!(pair.last_event(0), SourceEvent::SinkBuffer);
    assert_eq!(pair.advertise(0, 1000, 0), Err(Hold::SinkBufferFirst));
    let wrong = pair.clone().post(0, |source, ack| source.written(ack, 501));
    assert_eq!(wrong, Err(Hold::AdvertShape));
    pair.write(0, 500).unwrap();
    pair.settle().unwrap();
    assert_eq!((pair.ends[1].sink.lent(), pair.ends[1].got), (1, 1500));
    // Partly; that is all of it.
    pair.write(0, 20).unwrap();
    pair.settle().unwrap();
    assert_eq!((pair.ends[1].sink.lent(), pair.ends[1].got), (0, 1520));
    assert_eq!(pair.write(0, 1), Err(Hold::NoAdvert));
}

#[test]
fn payload_uses_up_the_oldest_buffer() {
    let mut pair = pipelined();
    pair.lend(1, 500).unwrap();
    pair.lend(1, 500).unwrap();
    pair.settle().unwrap();
    pair.data(0, 10).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.ends[1].sink.lent(), 1);
    pair.write(0, 500).unwrap();
    pair.settle().unwrap();
    assert_eq!(got(&pair), (1510, 1510));
    // It crosses the advertisement: that is stale, and both ends know.
    pair.data(0, 10).unwrap();
    pair.data(0, 10).unwrap();
    pair.lend(1, 500).unwrap();
    pair.settle().unwrap();
    assert_eq!((pair.ends[1].sink.lent(), pair.ends[0].source.sink_buffer()), (0, None));
    pair.lend(1, 500).unwrap();
    pair.settle().unwrap();
    pair.write(0, 7).unwrap();
    pair.settle().unwrap();
    assert_eq!(got(&pair), (1537, 1537));
}

#[test]
fn write_wins_where_advertisements_cross() {
    let mut pair = pipelined();
    pair.lend(1, 500).unwrap();
    pair.advertise(0, 1000, 0).unwrap();
    pair.advertise(0, 1000, 0).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.last_event(0), SourceEvent::Overridden { bytes: 2000 });
    assert!(pair.ends[0].live.is_empty() && !pair.ends[1].sink.is_offered());
    pair.write(0, 500).unwrap();
    pair.advertise(0, 1500, 0).unwrap();
    pair.settle().unwrap();
    read_all(&mut pair, 1);
    assert_eq!(got(&pair), (3000, 3000));
    // Also during a cancellation, which then needs no answer.
    pair.lend(1, 500).unwrap();
    pair.advertise(0, 1000, 0).unwrap();
    pair.cancel(0).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.last_event(0), SourceEvent::Overridden { bytes: 1000 });
    assert!(!pair.ends[0].source.is_cancelling() && pair.ends[1].pending.is_nothing());
    // A sink that has an advertisement lends nothing.
    pair.write(0, 1).unwrap();
    pair.advertise(0, 1000, 0).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.lend(1, 500), Err(Hold::AdvertOutstanding));
}

#[test]
fn buffers_are_recalled() {
    let mut pair = pipelined();
    assert_eq!(pair.recall(1), Ok(false));
    pair.lend(1, 500).unwrap();
    pair.lend(1, 500).unwrap();
    pair.settle().unwrap();
    pair.write(0, 100).unwrap();
    assert_eq!((pair.recall(1), pair.recall(1)), (Ok(true), Ok(false)));
    assert_eq!(pair.lend(1, 500), Err(Hold::AdvertOutstanding));
    pair.settle().unwrap();
    // One was written to, the other one is dropped.
    assert_eq!(pair.last_event(0), SourceEvent::BuffersDropped);
    assert_eq!((pair.ends[1].sink.lent(), got(&pair)), (0, (1100, 1100)));
    assert!(pair.ends[1].live.is_empty());
    // All was written: no answer.
    pair.lend(1, 500).unwrap();
    pair.settle().unwrap();
    pair.write(0, 100).unwrap();
    assert_eq!(pair.recall(1), Ok(true));
    pair.settle().unwrap();
    assert_eq!(pair.last_event(0), SourceEvent::Nothing);
    assert!(pair.lend(1, 500).is_ok());
}

#[test]
fn leaving_pipelined_mode_voids_buffers() {
    let mut pair = pipelined();
    pair.lend(1, 500).unwrap();
    pair.settle().unwrap();
    pair.change_mode(0, Mode::Combined).unwrap();
    assert_eq!(pair.ends[0].source.sink_buffer(), None);
    assert_eq!(pair.change_mode(0, Mode::Pipelined), Err(Hold::ModePending));
    // A SinkAvail crosses the change; another is stale by payload before the change.
    let mut other = pair.clone();
    other.settle().unwrap();
    assert_eq!(other.ends[1].sink.lent(), 0);
    let mut pair = pipelined();
    pair.data(0, 10).unwrap();
    pair.lend(1, 500).unwrap();
    pair.lend(1, 500).unwrap();
    pair.change_mode(0, Mode::Combined).unwrap();
    pair.settle().unwrap();
    assert_eq!((pair.ends[1].sink.lent(), pair.lend(1, 500)), (0, Err(Hold::ModeForbids)));
    // Back, the counts still agree.
    pair.data(1, 1).unwrap();
    pair.settle().unwrap();
    pair.change_mode(0, Mode::Pipelined).unwrap();
    pair.settle().unwrap();
    pair.lend(1, 500).unwrap();
    pair.settle().unwrap();
    pair.write(0, 500).unwrap();
    pair.settle().unwrap();
    assert_eq!(got(&pair), (1510, 1510));
}

/// A SinkAvail that crosses the end of Pipelined mode, and is handled behind the acknowledgement of
/// that: the peer has its buffer back.
fn crossed_and_acknowledged(payload_before: bool) -> Pair {
    let mut pair = pipelined();
    if payload_before {
        pair.data(0, 10).unwrap();
    }
    pair.lend(1, 500).unwrap();
    pair.change_mode(0, Mode::Combined).unwrap();
    while pair.take(1).unwrap() {}
    assert!(pair.ends[1].sink.lent() == 0 && pair.ends[1].live.is_empty());
    pair.data(1, 1).unwrap();
    pair.learn_all(0);
    pair
}

#[test]
fn a_sink_avail_from_before_the_change_is_stale_behind_its_acknowledgement() {
    for payload_before in [false, true] {
        // Still in Combined: a legal peer is not reset.
        let mut pair = crossed_and_acknowledged(payload_before);
        pair.settle().unwrap();
        assert_eq!(pair.ends[0].source.sink_buffer(), None);
        // In Pipelined again: nothing is written into memory that the sink has back.
        let mut pair = crossed_and_acknowledged(payload_before);
        pair.data(0, 10).unwrap();
        pair.change_mode(0, Mode::Pipelined).unwrap();
        assert!(pair.take(0).unwrap());
        assert_eq!(pair.ends[0].source.sink_buffer(), None);
        pair.settle().unwrap();
        // The counts still agree.
        pair.lend(1, 500).unwrap();
        pair.settle().unwrap();
        pair.write(0, 500).unwrap();
        pair.settle().unwrap();
        let sent = if payload_before { 1520 } else { 1510 };
        assert_eq!(got(&pair), (sent, sent));
    }
}

#[test]
fn a_sink_avail_behind_the_change_is_a_violation() {
    let mut pair = pipelined();
    let change = pair.change_mode(0, Mode::Combined).unwrap();
    pair.settle().unwrap();
    let buffer = RemoteSlice { addr: 0, len: 500, rkey: Rkey(1) };
    let input = SourceInput::SinkAvail(SinkAvail { buffer, non_discards: 1 });
    let source = &mut pair.ends[0].source;
    let before = source.handle(&input, change.header.mseq.wrapping_sub(1));
    assert_eq!(before, Ok(SourceEvent::Nothing));
    let behind = source.handle(&input, change.header.mseq);
    assert_eq!(behind, Err(Violation::SinkAvailNotPipelined));
}

#[test]
fn both_kinds_together_stay_within_an_odd_limit() {
    use sdp_proto::connection::setup::{Local, Remote};
    let local = Local { lane_messages: true, ..Local::implicit(1000) };
    let announced = Remote::from(&local.zcopy_hello_ack());
    for max_adverts in [2, 3, 4, 5] {
        let mut pair = pipelined();
        let remote = Remote { max_adverts, ..announced };
        let (source, sink) = local.zcopy_halves(&remote);
        let (mut src_avails, mut sink_avails) = (0, 0);
        // Each half as it is in Pipelined mode, with the limit of this peer.
        pair.ends[0].source = in_pipelined(source);
        while pair.advertise(0, 500, 0).is_ok() {
            src_avails += 1;
        }
        let mut sink = sink_in_pipelined(sink);
        let buffer = RemoteSlice { addr: 0, len: 1 << 20, rkey: Rkey(1) };
        while sink.lend(buffer, PendingControl::NOTHING).is_ok() {
            sink_avails += 1;
        }
        assert!(src_avails >= 1 && sink_avails >= 1);
        assert!(src_avails + sink_avails <= max_adverts, "{src_avails} and {sink_avails}");
    }
}

/// A new source whose peer has asked for Pipelined mode, behind the change.
fn in_pipelined(mut source: ZcopySource) -> ZcopySource {
    let ack = Ack { bufs: 8, mseq_ack: 0, empty: 0 };
    let buffer = RemoteSlice { addr: 0, len: 20, rkey: Rkey(1) };
    let sent = source.advertise(ack, buffer, 10).unwrap();
    source.commit(&sent);
    let read = SourceInput::RdmaRdCompl { bytes: 10, wants_pipelined: true };
    source.handle(&read, sent.message().header.mseq).unwrap();
    let sent = source.change_mode(ack, Mode::Pipelined).unwrap();
    source.commit(&sent);
    source
}

/// A new sink behind the change to Pipelined mode.
fn sink_in_pipelined(mut sink: ZcopySink) -> ZcopySink {
    let change = ModeChange { for_source: false, mode: Mode::Pipelined };
    let mut message = crate::common::raw(Body::ModeChange(change), 0, 0, 0, 8);
    message.header.mseq = sink.plain().last_mseq().wrapping_add(1);
    sink.handle(&message).unwrap();
    sink
}

#[test]
fn the_end_of_the_stream_voids_buffers() {
    let mut pair = pipelined();
    pair.lend(1, 500).unwrap();
    pair.settle().unwrap();
    pair.disconnect(0).unwrap();
    assert_eq!(pair.ends[0].source.sink_buffer(), None);
    pair.settle().unwrap();
    assert!(pair.ends[1].has_ended && pair.ends[1].live.is_empty());
    assert_eq!(pair.lend(1, 500), Err(Hold::Ended));
}

#[test]
fn a_peer_without_withdrawn_gets_none() {
    use sdp_proto::connection::setup::{Local, Remote};
    let local = Local { lane_messages: true, ..Local::implicit(1000) };
    assert_eq!(local.zcopy_hello(None).max_adverts, 4);
    let plain = Remote::from(&local.hello_ack());
    let other = Remote { lane_messages: false, ..Remote::from(&local.zcopy_hello_ack()) };
    for (remote, max_adverts) in [(plain, 1), (other, 4)] {
        assert_eq!(remote.max_adverts, max_adverts);
        let mut pair = NEW();
        (pair.ends[0].source, _) = local.zcopy_halves(&remote);
        pair.advertise(0, 1000, 10).unwrap();
        pair.cancel(0).unwrap();
        assert_eq!(pair.withdraw(0), Err(Hold::ModeForbids));
        assert!(!pair.ends[0].live.is_empty(), "the memory stays registered");
    }
}

#[test]
fn resizing_and_suspension_are_answered() {
    let mut pair = NEW();
    pair.advertise(0, 1000, 10).unwrap();
    assert_eq!(pair.post(0, |source, ack| source.suspend(ack, 80)), Err(Hold::AdvertOutstanding));
    pair.settle().unwrap();
    read_all(&mut pair, 1);
    pair.post(0, |source, ack| source.plain().request_resize(ack, 500)).unwrap();
    pair.settle().unwrap();
    assert_eq!(pair.last_event(0), SourceEvent::Resized { size: crate::ends::RECEIVE });
}
