//! Every rule fires: one case per variant of `Violation`, and none is left out.

#[allow(unreachable_pub, reason = "shared by test crates")]
mod common;

use common::{bytes_of, raw};
use sdp_proto::{
    Ack, Credits, Mode, PeerCredit, PendingControl, Sink, SinkAction, SinkConfig, Source,
    SourceConfig, SourceInput, Violation,
    connection::setup::Local,
    wire::{Body, Flags, Header, Hello, HelloAck, Message, Mid, ModeChange, SinkAvail, SrcAvail},
};
use sdp_rdma::key::{RemoteSlice, Rkey};

fn sink() -> Sink {
    Sink::new(&SinkConfig { lane_messages: true, ..SinkConfig::implicit(1000) })
}

fn source(credits: Credits) -> Source {
    Source::new(&SourceConfig { credits, peer_bufs: 10, bufs: 10, ..SourceConfig::implicit(1000) })
}

/// Feeds messages numbered from 1; the last one must break a rule.
fn feed(messages: &[(Body, u32, u32)]) -> Violation {
    let mut sink = sink();
    let mut mseq = 0;
    for (at, (body, payload, mseq_ack)) in messages.iter().enumerate() {
        mseq += 1;
        let result = sink.handle(&raw(*body, *payload, mseq, *mseq_ack, 10));
        if at + 1 == messages.len() {
            return result.expect_err("a violation");
        }
        result.expect("no violation yet");
    }
    unreachable!("no message")
}

fn last(body: Body) -> Violation {
    feed(&[(body, 0, 0)])
}

fn parse(bytes: &[u8]) -> Violation {
    Message::parse(bytes, bytes.len() as u32).expect_err("a violation")
}

fn parse_changed(body: Body, payload: u32, change: impl FnOnce(&mut Vec<u8>)) -> Violation {
    let mut bytes = bytes_of(&raw(body, payload, 1, 0, 10));
    change(&mut bytes);
    parse(&bytes)
}

fn local() -> Local {
    Local {
        credits: Credits::Explicit,
        bufs: 8,
        receive_size: 1000,
        lane_messages: false,
        zcopy: false,
        ring: None,
    }
}

fn hello_changed(change: impl FnOnce(&mut Vec<u8>)) -> Violation {
    let mut bytes = local().hello(None).encode().as_slice().to_vec();
    change(&mut bytes);
    Hello::parse(&bytes).expect_err("a violation")
}

fn advert(len: u32) -> Body {
    Body::SrcAvail(SrcAvail { buffer: RemoteSlice { addr: 1, len, rkey: Rkey(1) } })
}

fn mode(mode: Mode) -> Body {
    Body::ModeChange(ModeChange { for_source: false, mode })
}

/// A source with an advertisement of 100 bytes, one of them inline.
fn advertised() -> Source {
    let mut source = source(Credits::Implicit);
    let buffer = RemoteSlice { addr: 1, len: 100, rkey: Rkey(1) };
    let message = source.advertise(Ack::implicit(0), buffer, 1).unwrap();
    source.commit(&message);
    source
}

fn asked_for(size: u32) -> Source {
    let mut source = source(Credits::Implicit);
    let message = source.request_resize(Ack::implicit(0), size).unwrap();
    source.commit(&message);
    source
}

fn tell(mut source: Source, input: SourceInput) -> Violation {
    source.handle(&input).expect_err("a violation")
}

fn sent_five(credits: Credits) -> Source {
    let mut source = source(credits);
    for _ in 0..5 {
        let message = source.next_data(Ack { bufs: 10, ..Ack::default() }, 1).unwrap();
        source.commit(&message);
    }
    source
}

/// Each rule, and what breaks it.
fn cases() -> Vec<(&'static str, Violation)> {
    let mut all = bad_messages();
    all.extend(bad_sequences());
    all.extend(bad_transfers());
    all
}

/// Messages that are bad by themselves.
fn bad_messages() -> Vec<(&'static str, Violation)> {
    let v6_hello = {
        let mut bytes = vec![0; 92];
        bytes[..32].copy_from_slice(local().hello(None).encode().as_slice());
        bytes[7] = 92;
        bytes[40] = 1;
        Hello::parse(&bytes).unwrap_err()
    };
    vec![
        ("TooShort", parse(&[0xff; 15])),
        ("LengthMismatch", parse_changed(Body::Data, 5, |bytes| bytes.truncate(20))),
        ("ReservedMid", parse_changed(Body::Data, 0, |bytes| bytes[0] = 0x0f)),
        (
            "ExtendedHeaderCut",
            parse_changed(advert(100), 0, |bytes| {
                bytes.truncate(31);
                bytes[7] = 31;
            }),
        ),
        (
            "UnexpectedPayload",
            parse_changed(Body::SendSm, 0, |bytes| {
                bytes.push(0);
                bytes[7] = 17;
            }),
        ),
        ("UrgentNotInData", parse_changed(Body::DisConn, 0, |bytes| bytes[1] = 0x01)),
        ("UrgentWithoutPayload", parse_changed(Body::Data, 0, |bytes| bytes[1] = 0x01)),
        ("PipeHintMisplaced", parse_changed(Body::Data, 0, |bytes| bytes[1] = 0x04)),
        ("HelloAfterSetup", parse_changed(Body::Data, 0, |bytes| bytes[0] = 0x01)),
        ("MessageTooLong", feed(&[(Body::Data, 985, 0)])),
        ("HelloLength", Hello::parse(&[0; 15]).unwrap_err()),
        ("HelloMid", HelloAck::parse(local().hello(None).encode().as_slice()).unwrap_err()),
        ("HelloNumbered", hello_changed(|bytes| bytes[11] = 1)),
        ("HelloVersion", hello_changed(|bytes| bytes[16] = 0x11)),
        ("HelloFamily", hello_changed(|bytes| bytes[17] = 0x50)),
        ("HelloAddress", v6_hello),
        ("HelloNoAdverts", hello_changed(|bytes| bytes[19] = 0)),
        ("HelloFewBuffers", hello_changed(|bytes| bytes[3] = 2)),
        ("HelloRing", hello_changed(|bytes| bytes[18] = 23)),
        ("HelloSmallBuffers", hello_changed(|bytes| bytes[24..28].copy_from_slice(&[0, 0, 0, 36]))),
    ]
}

/// Messages at the wrong time or with wrong numbers.
fn bad_sequences() -> Vec<(&'static str, Violation)> {
    let backwards = {
        let mut source = sent_five(Credits::Explicit);
        source.learn(PeerCredit { bufs: 10, mseq_ack: 4 }).unwrap();
        source.learn(PeerCredit { bufs: 10, mseq_ack: 3 }).unwrap_err()
    };
    vec![
        ("MseqGap", sink().handle(&raw(Body::Data, 1, 2, 0, 10)).unwrap_err()),
        (
            "AckBeyondSent",
            sent_five(Credits::Implicit).learn(PeerCredit { bufs: 0, mseq_ack: 6 }).unwrap_err(),
        ),
        ("AckBackwards", backwards),
        ("AfterDisConn", feed(&[(Body::DisConn, 0, 0), (Body::Data, 1, 0)])),
        ("DisConnTwice", feed(&[(Body::DisConn, 0, 0), (Body::DisConn, 0, 0)])),
        ("AfterAbortConn", feed(&[(Body::AbortConn, 0, 0), (Body::Data, 0, 0)])),
        (
            "AfterSuspComm",
            feed(&[(Body::SuspComm { service: 0x1_0050 }, 0, 0), (Body::Data, 0, 0)]),
        ),
        ("SuspCommService", last(Body::SuspComm { service: 0x2_0050 })),
        ("SuspCommAckUnasked", tell(source(Credits::Implicit), SourceInput::SuspCommAck)),
    ]
}

/// Messages of modes, of transfers without a copy and of sizes of buffers.
fn bad_transfers() -> Vec<(&'static str, Violation)> {
    let plain = SourceInput::RdmaRdCompl { bytes: 1, wants_pipelined: false };
    let send_sm_twice = PendingControl::SEND_SM.add(PendingControl::SEND_SM).unwrap_err();
    vec![
        ("ModeUnknown", parse_changed(mode(Mode::Buffered), 0, |bytes| bytes[16] = 0x30)),
        ("ModeIllegal", last(mode(Mode::Combined))),
        ("ModeWithAdvert", feed(&[(advert(100), 1, 0), (mode(Mode::Buffered), 0, 0)])),
        ("AdvertLength", parse(&bytes_of(&raw(advert(0), 0, 1, 0, 10)))),
        ("InlineTooLong", feed(&[(advert(100), 100, 0)])),
        ("InlineMissing", feed(&[(advert(100), 0, 0)])),
        ("InlineUnexpected", feed(&[(mode(Mode::Pipelined), 0, 0), (advert(100), 1, 0)])),
        ("AdvertInBuffered", feed(&[(mode(Mode::Buffered), 0, 0), (advert(100), 1, 0)])),
        (
            "SinkAvailNotPipelined",
            tell(
                source(Credits::Implicit),
                SourceInput::SinkAvail(SinkAvail {
                    buffer: RemoteSlice { addr: 1, len: 9, rkey: Rkey(1) },
                    non_discards: 0,
                }),
            ),
        ),
        ("TooManyAdverts", feed(&[(advert(100), 1, 0), (advert(100), 1, 0)])),
        ("TooManyAdverts", send_sm_twice),
        ("PayloadBesideAdvert", feed(&[(advert(100), 1, 0), (Body::Data, 1, 0)])),
        ("ReadComplUnasked", tell(source(Credits::Implicit), plain)),
        (
            "ReadComplLength",
            tell(advertised(), SourceInput::RdmaRdCompl { bytes: 100, wants_pipelined: false }),
        ),
        (
            "ReadComplLength",
            tell(advertised(), SourceInput::RdmaRdCompl { bytes: 0, wants_pipelined: false }),
        ),
        ("WriteComplUnasked", last(Body::RdmaWrCompl { bytes: 1 })),
        ("SinkCancelAckUnasked", last(Body::SinkCancelAck)),
        ("ResizeTwice", PendingControl::RESIZE_ACK.add(PendingControl::RESIZE_ACK).unwrap_err()),
        ("ResizeTooSmall", last(Body::ChRcvBuf { size: 36 })),
        ("ResizeTooSmall", tell(asked_for(500), SourceInput::ChRcvBufAck { size: 36 })),
        (
            "ResizeAckUnasked",
            tell(source(Credits::Implicit), SourceInput::ChRcvBufAck { size: 1000 }),
        ),
        ("ResizeAckWrong", tell(asked_for(500), SourceInput::ChRcvBufAck { size: 499 })),
        ("ResizeAckWrong", tell(asked_for(500), SourceInput::ChRcvBufAck { size: 1001 })),
        ("ResizeAckWrong", tell(asked_for(2000), SourceInput::ChRcvBufAck { size: 999 })),
        ("LaneMalformed", last(Body::Experimental { mid: 0x40 })),
    ]
}

#[test]
fn every_variant_fires() {
    let cases = cases();
    for (expected, violation) in &cases {
        assert_eq!(violation.name(), *expected, "{violation}");
    }
    // Those of zero copy have their cases beside its stories.
    let zcopy = include_str!("zcopy/violations.rs");
    for name in Violation::NAMES {
        let is_there = cases.iter().any(|(case, _)| case == name)
            || zcopy.contains(&format!("Violation::{name} {{"))
            || zcopy.contains(&format!("Violation::{name})"));
        assert!(is_there, "no case for {name}");
    }
}

/// The sections that the code cites are headings of the specification.
#[test]
fn every_section_exists() {
    let spec = include_str!("../../../docs/spec/sdp.md");
    for (_, violation) in cases() {
        let section = violation.section();
        assert!(
            spec.lines().any(|line| line.starts_with('#')
                && line.trim_start_matches('#').trim_start().starts_with(&format!("{section} "))),
            "{}: no section {section}",
            violation.name()
        );
        assert!(violation.to_string().ends_with(&format!("(spec {section})")), "{violation}");
    }
}

/// Cases that look similar but are legal.
#[test]
fn neighbours_of_the_rules_are_legal() {
    let mut sink = sink();
    let mut mseq = 0;
    let mut give = |body, payload, mseq_ack| {
        mseq += 1;
        sink.handle(&raw(body, payload, mseq, mseq_ack, 10)).unwrap()
    };
    // A whole buffer of payload; an advertisement that waits, then data once we have answered.
    assert!(matches!(give(Body::Data, 984, 0), SinkAction::Deliver(p) if p.len == 984));
    assert!(
        matches!(give(advert(100), 99, 0), SinkAction::DeliverAndAnswer(p, PendingControl::SEND_SM)
        if p.offset == 32 && p.len == 99)
    );
    assert_eq!(give(Body::SrcAvailCancel, 0, 0), SinkAction::Nothing);
    assert!(matches!(give(Body::Data, 1, 1), SinkAction::Deliver(_)));
    // Unknown experimental messages, with payload, at any time.
    assert_eq!(give(Body::Experimental { mid: 0x7f }, 30, 1), SinkAction::Nothing);
    assert_eq!(give(Body::DisConn, 0, 1), SinkAction::EndOfStream);
    // After the end: credit updates, answers for our stream, an abort.
    assert_eq!(give(Body::Data, 0, 1), SinkAction::Nothing);
    assert_eq!(
        give(Body::SendSm, 0, 1),
        SinkAction::ForSource(SourceInput::SendSm { mseq_ack: 1 })
    );
    assert_eq!(give(Body::AbortConn, 0, 1), SinkAction::Reset);
    // Reserved flag bits are ignored.
    let mut bytes = bytes_of(&raw(Body::Data, 0, 1, 0, 10));
    bytes[1] = 0xf8;
    assert_eq!(Header::parse(&bytes, 16).unwrap().flags, Flags::NONE);
    assert_eq!(Header::parse(&bytes, 16).unwrap().mid, Mid::Data);
}

/// Lane messages are ours only if both ends said so.
#[test]
fn lane_messages_without_agreement_are_ignored() {
    use sdp_proto::wire::{Lane, LaneRequest};
    let request = LaneRequest { lane: Lane::Sdp, sequence: 0 };
    let message = raw(Body::LaneRequest(request), 0, 1, 0, 10);
    let mut deaf = Sink::new(&SinkConfig::implicit(1000));
    assert_eq!(deaf.handle(&message), Ok(SinkAction::Nothing));
    assert_eq!(sink().handle(&message), Ok(SinkAction::LaneRequest(request)));

    let offering = Local { lane_messages: true, ..local() };
    let offer = Hello::parse(offering.hello(None).encode().as_slice()).unwrap();
    let plain = HelloAck::parse(&local().hello_ack().encode()).unwrap();
    let (_, mut active) = offering.halves(&(&plain).into());
    assert_eq!(active.handle(&message), Ok(SinkAction::Nothing));
    let (_, mut passive) = offering.halves(&(&offer).into());
    assert_eq!(passive.handle(&message), Ok(SinkAction::LaneRequest(request)));
}
