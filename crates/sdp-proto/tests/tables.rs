//! The state machines as text. A change of a machine is a change of a committed file.

#[allow(unreachable_pub, reason = "shared by test crates")]
mod common;

use common::{assert_snapshot, raw};
use sdp_proto::{
    Ack, Mode, Sink, SinkConfig, Source, SourceConfig, SourceInput, Violation,
    connection::{
        mode::{Side, TRANSITIONS},
        state::{Event, Invalid, State},
    },
    wire::{Body, ModeChange, SinkAvail, SrcAvail},
};
use sdp_rdma::key::{RemoteSlice, Rkey};
use std::fmt::Write;

#[test]
fn life_cycle() {
    let mut text = String::new();
    State::write_table(&mut text).unwrap();
    assert_snapshot("life-cycle.txt", include_str!("snapshots/life-cycle.txt"), &text);
}

#[test]
fn an_impossible_event_names_state_and_event() {
    let error = State::Listen.after(Event::DisConnReceived).unwrap_err();
    assert_eq!(error, Invalid { state: State::Listen, event: Event::DisConnReceived });
    assert_eq!(error.to_string(), "event DisConnReceived in state Listen (spec 5.4)");
}

#[test]
fn every_state_is_reachable_and_can_end() {
    for state in State::ALL {
        let reachable = state == State::Closed
            || sdp_proto::connection::state::TRANSITIONS
                .iter()
                .any(|(_, rows)| rows.iter().any(|(from, to)| *to == state && *from != state));
        assert!(reachable, "{state:?}");
        let mut seen = vec![state];
        let mut at = 0;
        while at < seen.len() {
            for (_, rows) in sdp_proto::connection::state::TRANSITIONS {
                for (from, to) in rows {
                    if *from == seen[at] && !seen.contains(to) {
                        seen.push(*to);
                    }
                }
            }
            at += 1;
        }
        assert!(seen.contains(&State::Closed), "{state:?} never ends");
    }
}

/// Ends of one half-connection in the given mode, reached by legal messages.
fn halves(mode: Mode) -> (Source, Sink) {
    let mut source =
        Source::new(&SourceConfig { peer_max_adverts: 8, ..SourceConfig::implicit(4096) });
    let mut sink = Sink::new(&SinkConfig::implicit(4096));
    // The peer has to ask for Pipelined mode first, which it does with the report of a read.
    let advert = source.advertise(Ack::implicit(0), slice(2), 1).unwrap();
    source.commit(&advert);
    source.handle(&SourceInput::RdmaRdCompl { bytes: 1, wants_pipelined: true }).unwrap();
    if mode == Mode::Combined {
        return (source, sink);
    }
    let change = source.change_mode(Ack::implicit(0), mode).unwrap();
    source.commit(&change);
    source.learn(sdp_proto::PeerCredit { bufs: 0, mseq_ack: source.last_mseq() }).unwrap();
    let message = raw(change.message().body, 0, 1, 0, 0);
    sink.handle(&message).unwrap();
    assert_eq!((source.mode(), sink.mode()), (mode, mode));
    (source, sink)
}

fn slice(len: u32) -> RemoteSlice {
    RemoteSlice { addr: 0x1000, len, rkey: Rkey(1) }
}

#[test]
fn modes() {
    let mut text = String::from("who changes it   from       to          answer\n");
    for from in Mode::ALL {
        for to in Mode::ALL {
            let (source, mut sink) = halves(from);
            let next = sink.last_mseq() + 1;
            // The source changes its own mode, and the sink judges a source that says so.
            let own = source.change_mode(Ack::implicit(0), to).is_ok();
            let change = ModeChange { for_source: false, mode: to };
            let judged = sink.handle(&raw(Body::ModeChange(change), 0, next, 0, 0));
            assert_eq!(own, judged.is_ok(), "{from:?} to {to:?}");
            let answer = if own { "legal" } else { "violation 3.2" };
            writeln!(text, "source           {:<10} {:<11} {answer}", from.name(), to.name())
                .unwrap();

            let (mut source, mut sink) = halves(from);
            let own = to == Mode::Combined && sink.leave_buffered().is_some();
            let change = ModeChange { for_source: true, mode: to };
            let judged = source.handle(&SourceInput::ModeChange(change));
            assert_eq!(own, judged.is_ok(), "{from:?} to {to:?}");
            if let Err(violation) = judged {
                assert_eq!(violation, Violation::ModeIllegal { byte: change.byte() });
            }
            let answer = if own { "legal" } else { "violation 3.2" };
            writeln!(text, "sink             {:<10} {:<11} {answer}", from.name(), to.name())
                .unwrap();
        }
    }
    assert_eq!(text.matches(" legal").count(), TRANSITIONS.len());
    for transition in TRANSITIONS {
        assert_eq!(transition.from.master(), transition.master);
        assert!(transition.from.may_change(transition.master, transition.to));
        let other = if transition.master == Side::Source { Side::Sink } else { Side::Source };
        assert!(!transition.from.may_change(other, transition.to));
    }

    text.push_str(
        "\nmode of the half-connection   SrcAvail with payload   without            SinkAvail\n",
    );
    for mode in Mode::ALL {
        let answer = |result: Result<_, Violation>| match result {
            Ok(()) => "legal".to_owned(),
            Err(violation) => violation.name().to_owned(),
        };
        let src_avail = |inline| {
            let (source, mut sink) = halves(mode);
            let advert = SrcAvail { buffer: slice(100) };
            let next = sink.last_mseq() + 1;
            let result = sink.handle(&raw(Body::SrcAvail(advert), inline, next, 0, 0)).map(drop);
            let own = source.advertise(Ack::implicit(0), slice(100), inline);
            assert_eq!(own.is_ok(), result.is_ok(), "{mode:?} {inline}");
            answer(result)
        };
        let (mut source, _) = halves(mode);
        let advert = SinkAvail { buffer: slice(100), non_discards: 0 };
        let sink_avail = answer(source.handle(&SourceInput::SinkAvail(advert)).map(drop));
        writeln!(
            text,
            "{:<29} {:<23} {:<18} {sink_avail}",
            mode.name(),
            src_avail(1),
            src_avail(0)
        )
        .unwrap();
    }
    assert_snapshot("modes.txt", include_str!("snapshots/modes.txt"), &text);
}
