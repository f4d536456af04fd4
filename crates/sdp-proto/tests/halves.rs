//! The two halves alone: when a source may send, and how a sink takes it.

#[allow(unreachable_pub, reason = "shared by test crates")]
mod common;

use common::raw;
use sdp_proto::{
    Ack, Credits, Hold, Mode, Outgoing, PeerCredit, PendingControl, Scan, Sink, SinkAction,
    SinkConfig, Source, SourceConfig, SourceEvent, SourceInput, Violation,
    wire::{Body, Flags, Mid},
};
use sdp_rdma::key::{RemoteSlice, Rkey};

const ACK: Ack = Ack::implicit(0);

fn implicit() -> Source {
    Source::new(&SourceConfig::implicit(1016))
}

fn explicit(peer_bufs: u16, bufs: u16) -> Source {
    Source::new(&SourceConfig {
        credits: Credits::Explicit,
        peer_bufs,
        bufs,
        ..SourceConfig::implicit(1016)
    })
}

fn send(source: &mut Source, result: Result<Outgoing, Hold>) -> Outgoing {
    let message = result.unwrap();
    source.commit(&message);
    message
}

fn buffer(len: u32) -> RemoteSlice {
    RemoteSlice { addr: 0x4000, len, rkey: Rkey(9) }
}

#[test]
fn first_message_is_number_one_and_cut_to_size() {
    let mut source = implicit();
    let message = source.next_data(ACK, 5000).unwrap();
    assert_eq!((message.message().header.mseq, message.payload_len()), (1, 1000));
    assert_eq!(message.header().len(), 16);
    // Not committed: nothing happened.
    assert_eq!(source.next_data(ACK, 5000), Ok(message));
    source.commit(&message);
    assert_eq!((source.last_mseq(), source.position()), (1, 1000));
    assert_eq!(source.next_data(ACK, 1).unwrap().message().header.mseq, 2);
    assert_eq!(source.next_data(ACK, 0), Err(Hold::NothingToSend));
}

#[test]
fn sequence_numbers_wrap() {
    let mut source = implicit();
    let mut sink = Sink::new(&SinkConfig::implicit(1016));
    source.recover_at(u32::MAX - 2, 1 << 40);
    sink.recover_at(u32::MAX - 2, 1 << 40);
    for expected in [u32::MAX - 1, u32::MAX, 0, 1] {
        let message = source.next_data(sink.ack(0), 100).unwrap();
        assert_eq!(message.message().header.mseq, expected);
        source.commit(&message);
        assert!(matches!(sink.handle(message.message()), Ok(SinkAction::Deliver(_))));
        source.learn(PeerCredit { bufs: 0, mseq_ack: sink.last_mseq() }).unwrap();
    }
    assert_eq!(source.position(), (1 << 40) + 400);
    assert_eq!(sink.position(), source.position());
    // Behind the wrap, messages that were not sent still count as not sent.
    assert!(matches!(
        source.learn(PeerCredit { bufs: 0, mseq_ack: 2 }),
        Err(Violation::AckBeyondSent { ack: 2, sent: 1 })
    ));
}

#[test]
fn credits_are_counted_over_the_wrap() {
    // Last sent 2, acknowledged 0xfffffffe, ten buffers: four in flight, six credits.
    let mut words = explicit(10, 10).to_words();
    words[1] = 0x0000_0002 | (0xffff_fffe << 32);
    let mut source = Source::from_words(&words).unwrap();
    assert_eq!(source.available(), 6);
    source.learn(PeerCredit { bufs: 10, mseq_ack: 0xffff_ffff }).unwrap();
    assert_eq!(source.available(), 7);
    source.learn(PeerCredit { bufs: 3, mseq_ack: 1 }).unwrap();
    assert_eq!(source.available(), 2);
    source.learn(PeerCredit { bufs: 0, mseq_ack: 2 }).unwrap();
    assert_eq!(source.available(), 0);
}

#[test]
fn a_stream_longer_than_all_sequence_numbers_needs_no_acknowledgement_with_implicit_credits() {
    let mut source = implicit();
    source.recover_at(0x9000_0000, 0);
    // Never learnt anything, half the number space behind: the first credit is still judged by the
    // last message sent.
    source.learn(PeerCredit { bufs: 0, mseq_ack: 0x8fff_fff0 }).unwrap();
    assert!(source.learn(PeerCredit { bufs: 0, mseq_ack: 0x9000_0001 }).is_err());
}

/// The table of spec 4.3.
#[test]
fn what_each_credit_is_good_for() {
    let told = Ack { bufs: 10, mseq_ack: 0, empty: 0 };
    let more = Ack { bufs: 10, mseq_ack: 1, empty: 0 };
    let cases = [
        // Credits, the acknowledgement told, payload, control.
        (0, told, Err(Hold::NoCredit), Err(Hold::NoCredit)),
        (0, more, Err(Hold::NoCredit), Err(Hold::NoCredit)),
        (1, told, Err(Hold::Reserved), Err(Hold::MustRaise)),
        (1, more, Err(Hold::Reserved), Ok(())),
        (2, told, Err(Hold::Reserved), Ok(())),
        (2, more, Err(Hold::Reserved), Ok(())),
        (3, told, Ok(()), Ok(())),
    ];
    for (credits, ack, payload, control) in cases {
        let source = explicit(credits, 10);
        assert_eq!(source.next_data(ack, 10).map(drop), payload, "{credits} {ack:?}");
        assert_eq!(source.advertise(ack, buffer(9), 1).map(drop), payload, "{credits} {ack:?}");
        assert_eq!(source.disconnect(ack).map(drop), control, "{credits} {ack:?}");
        assert_eq!(
            source.next_control(ack, PendingControl::SEND_SM).map(drop),
            control,
            "{credits} {ack:?}"
        );
    }
}

#[test]
fn updates_are_sent_when_the_rule_says() {
    let due = |bufs, mseq_ack, empty| {
        let source = explicit(64, 64);
        let ack = Ack { bufs, mseq_ack, empty };
        (source.credit_update(ack).is_ok(), source.late_update(ack).is_ok())
    };
    // Told 64; nothing received; nothing to report.
    assert_eq!(due(64, 0, 0), (false, false));
    // 20 received and posted again: 44 left, half as much again is 66. 21: 43 left, 64 is enough.
    assert_eq!(due(64, 21, 0), (false, false));
    assert_eq!(due(64, 22, 0), (true, false));
    // Received but not posted again: no raise, nothing to say.
    assert_eq!(due(42, 22, 0), (false, false));
    // In the reserve: at once for one buffer, late if only empty messages were received.
    assert_eq!(due(3, 62, 0), (true, false));
    assert_eq!(due(3, 62, 62), (false, true));
    assert_eq!(due(2, 63, 0), (true, false));
    assert_eq!(due(2, 63, 63), (false, true));
    assert_eq!(implicit().credit_update(Ack::implicit(100)), Err(Hold::NothingToSend));
    assert_eq!(implicit().late_update(Ack::implicit(100)), Err(Hold::NothingToSend));
}

#[test]
fn what_is_pending_goes_in_order() {
    let mut source = implicit();
    let mut pending = PendingControl::NOTHING;
    for part in [
        PendingControl::SUSPEND_ACK,
        PendingControl::COMBINED,
        PendingControl::SEND_SM,
        PendingControl::RESIZE_ACK,
        PendingControl::SINK_CANCEL_ACK,
        PendingControl::read_bytes(500),
        PendingControl::read_bytes(7),
    ] {
        pending = pending.add(part).unwrap();
    }
    let mut names = Vec::new();
    while !pending.is_nothing() {
        let result = source.next_control(ACK, pending);
        let message = send(&mut source, result);
        names.push(message.message().header.mid.name());
        pending = pending.without(message.settles());
        if message.message().header.mid == Mid::RdmaRdCompl {
            assert_eq!(message.message().body, Body::RdmaRdCompl { bytes: 507 });
        }
        if message.message().header.mid == Mid::ChRcvBufAck {
            assert_eq!(message.message().body, Body::ChRcvBufAck { size: 1016 });
        }
    }
    assert_eq!(
        names,
        ["RdmaRdCompl", "SendSm", "ChRcvBufAck", "ModeChange", "SinkCancelAck", "SuspCommAck"]
    );
    assert_eq!(source.next_data(ACK, 1), Err(Hold::Suspended));
    assert_eq!(source.next_control(ACK, PendingControl::SEND_SM), Err(Hold::Suspended));
}

#[test]
fn what_was_added_meanwhile_is_not_lost() {
    let pending = PendingControl::read_bytes(100);
    let message = implicit().next_control(ACK, pending).unwrap();
    let grown =
        pending.add(PendingControl::read_bytes(20)).unwrap().add(PendingControl::SEND_SM).unwrap();
    let left = grown.without(message.settles());
    assert_eq!(left, PendingControl::read_bytes(20).add(PendingControl::SEND_SM).unwrap());
}

#[test]
fn after_the_end_control_still_flows() {
    let mut source = implicit();
    let result = source.disconnect(ACK);
    send(&mut source, result);
    assert!(source.has_ended());
    assert_eq!(source.next_data(ACK, 1), Err(Hold::Ended));
    assert_eq!(source.disconnect(ACK), Err(Hold::Ended));
    let result = source.next_control(ACK, PendingControl::SEND_SM);
    send(&mut source, result);
    let result = source.abort(ACK);
    send(&mut source, result);
    assert_eq!(source.next_data(ACK, 1), Err(Hold::Aborted));
    assert_eq!(source.next_control(ACK, PendingControl::SEND_SM), Err(Hold::Aborted));
    assert_eq!(implicit().abort(ACK), Err(Hold::NotEnded));
}

#[test]
fn advertisement_read_by_the_peer() {
    let mut source = implicit();
    let result = source.advertise(ACK, buffer(1000), 10);
    let advert = send(&mut source, result);
    assert_eq!((advert.header().len(), advert.payload_len()), (32, 10));
    assert_eq!(source.next_data(ACK, 1), Err(Hold::AdvertOutstanding));
    assert_eq!(source.disconnect(ACK), Err(Hold::AdvertOutstanding));
    let read = |bytes| SourceInput::RdmaRdCompl { bytes, wants_pipelined: false };
    assert_eq!(source.handle(&read(600)), Ok(SourceEvent::Read { bytes: 600, finished: false }));
    assert_eq!(source.handle(&read(390)), Ok(SourceEvent::Read { bytes: 390, finished: true }));
    assert_eq!(source.position(), 1000);
    assert!(source.next_data(ACK, 1).is_ok());
}

#[test]
fn advertisement_refused_by_the_peer() {
    let mut source = implicit();
    // A SendSm that cannot mean this advertisement is stale.
    assert_eq!(source.handle(&SourceInput::SendSm { mseq_ack: 0 }), Ok(SourceEvent::Nothing));
    let result = source.advertise(ACK, buffer(1500), 10);
    send(&mut source, result);
    assert_eq!(source.handle(&SourceInput::SendSm { mseq_ack: 0 }), Ok(SourceEvent::Nothing));
    let answer = SourceInput::SendSm { mseq_ack: 1 };
    assert_eq!(source.handle(&answer), Ok(SourceEvent::SendRest { bytes: 1490 }));
    // The rest goes before anything else that carries payload, and before the end.
    assert_eq!(source.advertise(ACK, buffer(100), 1), Err(Hold::RestFirst));
    assert_eq!(source.disconnect(ACK), Err(Hold::RestFirst));
    let result = source.next_data(ACK, 1490);
    assert_eq!(send(&mut source, result).payload_len(), 1000);
    let result = source.next_data(ACK, 490);
    assert_eq!(send(&mut source, result).payload_len(), 490);
    assert!(source.advertise(ACK, buffer(100), 1).is_ok());
    assert_eq!(source.position(), 1500);
}

#[test]
fn advertisement_cancelled() {
    let mut source = implicit();
    assert_eq!(source.cancel(ACK), Err(Hold::NoAdvert));
    let result = source.advertise(ACK, buffer(1000), 10);
    send(&mut source, result);
    let result = source.cancel(ACK);
    send(&mut source, result);
    assert_eq!(source.cancel(ACK), Err(Hold::Cancelling));
    let read = SourceInput::RdmaRdCompl { bytes: 100, wants_pipelined: false };
    assert_eq!(source.handle(&read), Ok(SourceEvent::Read { bytes: 100, finished: false }));
    let answer = SourceInput::SendSm { mseq_ack: 2 };
    assert_eq!(source.handle(&answer), Ok(SourceEvent::Cancelled { bytes: 890 }));
    assert!(source.next_data(ACK, 1).is_ok());
    // A read that was reported in full before the cancellation arrived ends it, too.
    let result = source.advertise(ACK, buffer(1000), 10);
    send(&mut source, result);
    let result = source.cancel(ACK);
    send(&mut source, result);
    let read = SourceInput::RdmaRdCompl { bytes: 990, wants_pipelined: false };
    assert_eq!(source.handle(&read), Ok(SourceEvent::Read { bytes: 990, finished: true }));
    assert!(source.next_data(ACK, 1).is_ok());
}

#[test]
fn shape_of_an_advertisement() {
    let source = implicit();
    assert_eq!(source.advertise(ACK, buffer(100), 0), Err(Hold::AdvertShape));
    assert_eq!(source.advertise(ACK, buffer(100), 100), Err(Hold::AdvertShape));
    assert_eq!(source.advertise(ACK, buffer(0), 0), Err(Hold::AdvertShape));
    assert_eq!(source.advertise(ACK, buffer(5000), 985), Err(Hold::AdvertShape));
    assert_eq!(source.advertise(ACK, buffer(5000), 984).unwrap().message().header.len, 1016);
    assert_eq!(source.advertise(ACK, buffer((1 << 31) + 1), 1), Err(Hold::AdvertShape));
}

#[test]
fn pipelined_mode_only_with_a_peer_that_wants_it() {
    let source = implicit();
    assert_eq!(source.change_mode(ACK, Mode::Pipelined), Err(Hold::ModeForbids));
    let config = SourceConfig { peer_max_adverts: 4, ..SourceConfig::implicit(1016) };
    let mut source = Source::new(&config);
    assert_eq!(source.change_mode(ACK, Mode::Pipelined), Err(Hold::ModeForbids));
    let result = source.advertise(ACK, buffer(100), 1);
    send(&mut source, result);
    source.handle(&SourceInput::RdmaRdCompl { bytes: 50, wants_pipelined: true }).unwrap();
    // An unfinished advertisement may remain during a change to Pipelined, not during one to
    // Buffered.
    assert_eq!(source.change_mode(ACK, Mode::Buffered), Err(Hold::AdvertOutstanding));
    let result = source.change_mode(ACK, Mode::Pipelined);
    send(&mut source, result);
    assert_eq!(source.mode(), Mode::Pipelined);
    source.handle(&SourceInput::RdmaRdCompl { bytes: 49, wants_pipelined: true }).unwrap();
    // One change at a time.
    assert_eq!(source.change_mode(ACK, Mode::Combined), Err(Hold::ModePending));
    source.learn(PeerCredit { bufs: 0, mseq_ack: 2 }).unwrap();
    let result = source.change_mode(ACK, Mode::Combined);
    send(&mut source, result);
    // Sink advertisements that crossed the change are ignored until it is acknowledged.
    let crossing = SourceInput::SinkAvail(sdp_proto::wire::SinkAvail {
        buffer: buffer(4096),
        non_discards: 0,
    });
    assert_eq!(source.handle(&crossing), Ok(SourceEvent::Nothing));
    source.learn(PeerCredit { bufs: 0, mseq_ack: 3 }).unwrap();
    assert_eq!(source.handle(&crossing), Err(Violation::SinkAvailNotPipelined));
}

#[test]
fn buffered_mode_and_back() {
    let mut source = implicit();
    let mut sink = Sink::new(&SinkConfig::implicit(1016));
    assert_eq!(sink.leave_buffered(), None);
    let result = source.change_mode(ACK, Mode::Buffered);
    let change = send(&mut source, result);
    assert_eq!(sink.handle(change.message()), Ok(SinkAction::ModeChanged(Mode::Buffered)));
    assert_eq!(source.advertise(ACK, buffer(100), 1), Err(Hold::ModeForbids));
    assert_eq!(source.change_mode(ACK, Mode::Combined), Err(Hold::ModeForbids));
    // The sink is the master now, and its message travels in the other direction.
    let pending = sink.leave_buffered().unwrap();
    let message = implicit().next_control(ACK, pending).unwrap();
    assert_eq!(message.header()[16], 0x90);
    let Body::ModeChange(change) = message.message().body else { panic!("{message:?}") };
    assert_eq!(
        source.handle(&SourceInput::ModeChange(change)),
        Ok(SourceEvent::ModeChanged(Mode::Combined))
    );
    assert!(source.advertise(ACK, buffer(100), 1).is_ok());
}

#[test]
fn resizing() {
    let mut source = implicit();
    let result = source.request_resize(ACK, 500);
    send(&mut source, result);
    // The smaller size holds at once, and only one request is out.
    assert_eq!(source.max_payload(), 484);
    assert_eq!(source.request_resize(ACK, 400), Err(Hold::ResizeRefused));
    let refused = SourceInput::ChRcvBufAck { size: 1016 };
    assert_eq!(source.handle(&refused), Ok(SourceEvent::Resized { size: 1016 }));
    assert_eq!(source.max_payload(), 1000);
    let result = source.request_resize(ACK, 5000);
    send(&mut source, result);
    assert_eq!(source.max_payload(), 1000);
    let grown = SourceInput::ChRcvBufAck { size: 3000 };
    assert_eq!(source.handle(&grown), Ok(SourceEvent::Resized { size: 3000 }));
    assert_eq!(source.max_payload(), 2984);
}

#[test]
fn urgent_byte_is_announced_once_and_ends_its_message() {
    let mut source = implicit();
    let mut flags = Vec::new();
    let mut left = 2500;
    while left != 0 {
        let result = source.next_urgent(ACK, left);
        let message = send(&mut source, result);
        assert!(message.message().header.flags == Flags::NONE || message.is_solicited());
        flags.push(message.message().header.flags);
        left -= message.payload_len();
    }
    assert_eq!(flags, [Flags::OOB_PEND, Flags::NONE, Flags::OOB_PRES]);
    // The next one is announced again; alone, both flags ride on one message.
    let message = source.next_urgent(ACK, 1).unwrap();
    assert_eq!(message.message().header.flags, Flags::OOB_PRES.with(Flags::OOB_PEND));
    // Too far away to be announced yet.
    let message = source.next_urgent(ACK, 65_536).unwrap();
    assert_eq!(message.message().header.flags, Flags::NONE);
    let message = source.next_urgent(ACK, 65_535).unwrap();
    assert_eq!(message.message().header.flags, Flags::OOB_PEND);
}

#[test]
fn suspension_is_asked_and_answered() {
    let mut source = implicit();
    let result = source.suspend(ACK, 5001);
    let message = send(&mut source, result);
    assert_eq!(message.message().body, Body::SuspComm { service: 0x1_1389 });
    assert_eq!(source.next_data(ACK, 1), Err(Hold::Suspended));
    let mut sink = Sink::new(&SinkConfig::implicit(1016));
    assert_eq!(sink.handle(message.message()), Ok(SinkAction::Suspend { service: 0x1_1389 }));
    assert_eq!(source.handle(&SourceInput::SuspCommAck), Ok(SourceEvent::Suspended));
}

#[test]
fn solicited_messages_are_those_of_the_table() {
    let solicited: Vec<_> =
        Mid::ASSIGNED.into_iter().filter(|mid| mid.is_solicited()).map(Mid::name).collect();
    assert_eq!(
        solicited,
        [
            "AbortConn",
            "SendSm",
            "RdmaWrCompl",
            "RdmaRdCompl",
            "SrcAvailCancel",
            "SinkAvailCancel",
            "SinkCancelAck",
            "SuspComm",
            "SuspCommAck"
        ]
    );
}

#[test]
fn a_successor_walks_on_from_the_recovery_point() {
    let mut dead = implicit();
    for _ in 0..3 {
        let result = dead.next_data(ACK, 100);
        send(&mut dead, result);
    }
    let point = (dead.last_mseq(), dead.position());
    let mut stale = dead;
    let result = dead.next_data(ACK, 50);
    let fourth = send(&mut dead, result);
    let result = dead.disconnect(ACK);
    let fifth = send(&mut dead, result);
    stale.recover_at(point.0, point.1);
    assert!(stale.replay(fifth.message()).is_err(), "out of order");
    stale.replay(fourth.message()).unwrap();
    stale.replay(fifth.message()).unwrap();
    assert_eq!((stale.last_mseq(), stale.position()), (dead.last_mseq(), dead.position()));
    assert!(stale.has_ended());
}

#[test]
fn words_that_contradict_themselves_are_refused() {
    let sound = implicit().to_words();
    let refused = |at: usize, value: u64| {
        let mut words = sound;
        words[at] = value;
        assert!(Source::from_words(&words).is_err(), "word {at} = {value:#x}");
    };
    refused(0, sound[0] | 0x6); // mode 3
    refused(0, sound[0] | 0x8000); // a gate that does not exist
    refused(0, sound[0] & !(0xffff << 32)); // no advertisements
    refused(0, sound[0] | (8 << 8)); // an advertisement without bytes left
    refused(3, 36 | (1016 << 32)); // buffers below the minimum
    refused(5, 1 << 32); // bytes left without an advertisement
    refused(6, 1); // a mode change that nobody made
    refused(8, 1); // spare
    let mut words = explicit(10, 10).to_words();
    words[1] = 70_000;
    assert_eq!(Source::from_words(&words).unwrap_err().word, 1, "more in flight than buffers");

    let sound = Sink::new(&SinkConfig::implicit(1016)).to_words();
    for (at, value) in [(0, sound[0] | 6), (0, sound[0] | 0x80), (0, 0), (1, 1 << 32), (3, 1)] {
        let mut words = sound;
        words[at] = value;
        assert_eq!(usize::from(Sink::from_words(&words).unwrap_err().word), at);
    }
    assert!(PendingControl::from_word(2 << 32).is_err());
    assert!(PendingControl::from_word(1 << 63).is_err());
}

#[test]
fn an_experimental_message_of_others_changes_nothing_but_the_count() {
    let mut sink = Sink::new(&SinkConfig::implicit(1016));
    let message = raw(Body::Experimental { mid: 0x55 }, 40, 1, 0, 0);
    assert_eq!(sink.handle(&message), Ok(SinkAction::Nothing));
    assert_eq!((sink.last_mseq(), sink.position()), (1, 0));
}

/// Both programs have sent a buffer and read only when theirs is taken: the answer stands behind
/// unread payload, and must be seen all the same.
#[test]
fn an_answer_behind_unread_payload_is_seen() {
    let mut source = implicit();
    let result = source.advertise(ACK, buffer(1000), 10);
    send(&mut source, result);
    let answer = Body::RdmaRdCompl { bytes: 990 };
    let arrived =
        [raw(Body::Data, 500, 1, 0, 0), raw(answer, 0, 2, 1, 0), raw(Body::Data, 1, 3, 1, 0)];
    let mut scan = Scan::new();
    for message in &arrived {
        assert!(!scan.has_seen(message));
        source.learn(message.header.credit()).unwrap();
        if let Some(input) = scan.look(message).unwrap() {
            let event = source.handle(&input).unwrap();
            assert_eq!(event, SourceEvent::Read { bytes: 990, finished: true });
        }
    }
    assert!(source.next_data(ACK, 1).is_ok(), "the source got on before anything was read");
    // Reading does not report it to the source again.
    let mut sink = Sink::new(&SinkConfig::implicit(1016));
    for message in &arrived {
        if let SinkAction::ForSource(_) = sink.handle(message).unwrap() {
            assert!(scan.has_seen(message));
        }
    }
    assert_eq!(scan.look(&arrived[2]), Err(Violation::MseqGap { expected: 4, found: 3 }));
    assert_eq!(Scan::from_word(scan.to_word()), Ok(scan));
    assert!(Scan::from_word(1 << 32).is_err());
}
