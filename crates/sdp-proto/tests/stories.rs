//! Stories of two ends: the programs' actions, and the end as both see it.

#[allow(unreachable_pub, reason = "shared by test crates")]
mod common;

use common::{Options, Pair, Random, bytes_of, raw};
use sdp_proto::{
    Violation,
    connection::{
        end::{FIN_TIMEOUT_MS, Failure, LAST_ACK_GRACE_MS, WriteError},
        state::State,
    },
    wire::Body,
};

fn both_fabrics() -> [Options; 3] {
    [Options::implicit(), Options::explicit(64), Options::explicit(3)]
}

#[test]
fn bytes_travel_both_ways() {
    for options in both_fabrics() {
        let mut pair = Pair::new(&options);
        for round in 1..50 {
            pair.ends[0].write(round * 37);
            pair.ends[1].write(round * 11);
            pair.drive();
        }
        pair.assert_streams_complete();
        assert_eq!(pair.ends[0].state(), State::Established);
    }
}

#[test]
fn one_way_bulk_needs_few_updates() {
    let mut pair = Pair::new(&Options::explicit(64));
    pair.ends[0].write(100_000);
    pair.drive();
    pair.assert_streams_complete();
    // 1000 messages of 100 bytes. The rule updates when half as much again can be offered, so at
    // most every 21 messages of 64.
    assert!(pair.ends[1].empty_sent >= 1000 / 64, "{}", pair.ends[1].empty_sent);
    assert!(pair.ends[1].empty_sent <= 1000 / 16, "{}", pair.ends[1].empty_sent);
    assert_eq!(pair.ends[0].empty_sent, 0, "an update was answered by an update");
}

#[test]
fn implicit_credits_send_no_updates() {
    let mut pair = Pair::new(&Options::implicit());
    pair.ends[0].write(1_000_000);
    pair.drive();
    pair.assert_streams_complete();
    assert_eq!(pair.ends[1].sent, 0);
    assert_eq!(pair.ends[0].empty_sent, 0);
}

#[test]
fn passive_end_is_ready_by_the_first_message() {
    let mut pair = Pair::connecting(&Options::explicit(8));
    pair.ends[0].write(10);
    assert_eq!(pair.ends[1].state(), State::SynReceived);
    pair.drive();
    assert_eq!(pair.ends[1].state(), State::Established);
    assert_eq!(pair.ends[1].read, 10);
}

#[test]
fn half_close_leaves_the_other_way_open() {
    for options in both_fabrics() {
        let mut pair = Pair::new(&options);
        pair.ends[0].write(500);
        pair.ends[0].connection.shutdown(0).unwrap();
        assert_eq!(pair.ends[0].connection.write(1), Err(WriteError::Broken));
        pair.drive();
        assert_eq!(pair.ends[0].state(), State::FinWait2);
        assert_eq!(pair.ends[1].state(), State::CloseWait);
        assert!(pair.ends[1].is_at_end);
        pair.ends[1].write(2000);
        pair.drive();
        pair.assert_streams_complete();
        pair.ends[1].connection.shutdown(0).unwrap();
        pair.drive();
        for end in &pair.ends {
            assert_eq!((end.state(), end.connection.failure()), (State::Closed, None));
        }
    }
}

#[test]
fn simultaneous_close() {
    for options in both_fabrics() {
        let mut pair = Pair::new(&options);
        for end in &mut pair.ends {
            end.write(150);
            end.connection.shutdown(0).unwrap();
        }
        // Both DisConn are in flight before either is seen.
        for side in 0..2 {
            while pair.transmit(side) {}
        }
        pair.drive();
        pair.assert_streams_complete();
        for end in &pair.ends {
            assert_eq!((end.state(), end.connection.failure()), (State::Closed, None));
        }
    }
}

#[test]
fn disconn_waits_for_credit_behind_data() {
    let mut pair = Pair::new(&Options::explicit(3));
    pair.ends[0].write(300);
    pair.ends[0].connection.shutdown(0).unwrap();
    pair.drive_unread();
    // One message of 100 bytes fits beside the reserve; the program does not read.
    assert_eq!(pair.ends[1].unread(), 1);
    assert_eq!(pair.ends[0].state(), State::FinWait1);
    assert!(!pair.ends[1].is_at_end);
    pair.drive();
    assert!(pair.ends[1].is_at_end);
    pair.assert_streams_complete();
}

#[test]
fn two_credits_stay_in_reserve() {
    let mut pair = Pair::new(&Options::explicit(5));
    pair.ends[0].write(10_000);
    pair.drive_unread();
    assert_eq!(pair.ends[1].unread(), 3, "data stops at two credits");
    assert_eq!(pair.ends[0].connection.source().available(), 2);
    assert!(pair.ends[0].connection.queued() > 0);
    // Control still passes: the peer asks for another buffer size and is answered.
    let peer = pair.ends[1].connection.source().last_mseq();
    let seen = pair.ends[1].connection.sink().last_mseq();
    pair.inject(0, bytes_of(&raw(Body::ChRcvBuf { size: 200 }, 0, peer + 1, seen, 2)));
    while pair.step(0) {}
    assert!(
        pair.ends[0].trace.last().unwrap().starts_with("ChRcvBufAck"),
        "{:?}",
        pair.ends[0].trace
    );
}

#[test]
fn source_advertisement_is_answered_by_send_sm() {
    use sdp_proto::wire::SrcAvail;
    use sdp_rdma::key::{RemoteSlice, Rkey};
    let mut pair = Pair::new(&Options::explicit(8));
    let buffer = RemoteSlice { addr: 0x1000, len: 50_000, rkey: Rkey(7) };
    let mut message = bytes_of(&raw(Body::SrcAvail(SrcAvail { buffer }), 1, 1, 0, 8));
    // The inline byte is the first of the peer's stream.
    *message.last_mut().unwrap() = common::first_byte_of(1);
    pair.inject(0, message);
    pair.arrive(0);
    pair.ends[0].handle_one();
    pair.ends[0].read_one();
    assert_eq!(pair.ends[0].read, 1, "the inline byte is data");
    pair.transmit(0);
    assert!(pair.ends[0].trace[0].starts_with("SendSm mseq=1 ack=1"), "{:?}", pair.ends[0].trace);
}

#[test]
fn abort_before_the_end_just_disconnects() {
    let mut pair = Pair::new(&Options::explicit(8));
    pair.ends[0].write(50);
    pair.drive();
    pair.ends[0].connection.abort();
    pair.drive();
    assert_eq!(pair.ends[0].sent, 1, "{:?}", pair.ends[0].trace);
    assert_eq!(pair.ends[0].connection.failure(), Some(Failure::Aborted));
    assert_eq!(pair.ends[1].connection.failure(), Some(Failure::Reset));
    assert_eq!(pair.ends[1].state(), State::Closed);
}

#[test]
fn abort_after_the_end_says_so() {
    let mut pair = Pair::new(&Options::explicit(8));
    pair.ends[0].connection.shutdown(0).unwrap();
    pair.drive();
    assert_eq!(pair.ends[0].state(), State::FinWait2);
    pair.ends[0].connection.abort();
    pair.drive();
    assert!(pair.ends[0].trace.last().unwrap().starts_with("AbortConn"));
    assert_eq!(pair.ends[1].connection.failure(), Some(Failure::Reset));
    for end in &pair.ends {
        assert_eq!(end.state(), State::Closed);
    }
}

#[test]
fn close_with_unread_bytes_resets() {
    let mut pair = Pair::new(&Options::implicit());
    pair.ends[0].write(50);
    pair.drive_unread();
    pair.ends[1].connection.close(true, 0);
    pair.drive();
    assert_eq!(pair.ends[0].connection.failure(), Some(Failure::Reset));
}

#[test]
fn payload_after_close_resets_but_not_after_shutdown() {
    let mut pair = Pair::new(&Options::implicit());
    pair.ends[1].connection.shutdown(0).unwrap();
    pair.ends[0].write(50);
    pair.drive();
    assert_eq!(pair.ends[1].read, 50);
    pair.ends[1].connection.close(false, 0);
    pair.ends[0].write(50);
    pair.drive();
    assert_eq!(pair.ends[1].connection.failure(), Some(Failure::Aborted));
    assert_eq!(pair.ends[0].connection.failure(), Some(Failure::Reset));
}

#[test]
fn a_peer_that_never_ends_is_given_up() {
    let mut pair = Pair::new(&Options::implicit());
    pair.now_ms = 1_000_000;
    pair.ends[0].connection.shutdown(pair.now_ms).unwrap();
    pair.drive();
    assert_eq!(pair.ends[0].connection.poll_timeout(), Some(1_000_000 + FIN_TIMEOUT_MS));
    pair.ends[0].connection.handle_timeout(1_000_001);
    assert_eq!(pair.ends[0].state(), State::FinWait2);
    pair.expire(0);
    assert_eq!(pair.ends[0].connection.failure(), Some(Failure::TimedOut));
    assert!(pair.ends[0].connection.poll_disconnect());
}

#[test]
fn last_ack_disconnects_by_itself_after_a_grace() {
    let mut pair = Pair::new(&Options::implicit());
    pair.ends[0].connection.shutdown(0).unwrap();
    pair.drive();
    pair.ends[1].connection.shutdown(0).unwrap();
    while pair.transmit(1) {}
    assert_eq!(pair.ends[1].state(), State::LastAck);
    assert_eq!(pair.ends[1].connection.poll_timeout(), Some(LAST_ACK_GRACE_MS));
    pair.expire(1);
    assert_eq!((pair.ends[1].state(), pair.ends[1].connection.failure()), (State::TimeWait, None));
    assert!(pair.ends[1].connection.poll_disconnect());
}

#[test]
fn a_refused_connection_says_so() {
    let (mut active, _) =
        sdp_proto::connection::end::Connection::connect(Options::implicit().local(), None);
    assert_eq!(active.write(1), Err(WriteError::NotConnected));
    active.handle_refused().unwrap();
    assert_eq!((active.state(), active.failure()), (State::Closed, Some(Failure::Refused)));
    assert!(active.handle_refused().is_err());
}

#[test]
fn suspension_resets() {
    let mut pair = Pair::new(&Options::explicit(8));
    pair.inject(0, bytes_of(&raw(Body::SuspComm { service: 0x1_1389 }, 0, 1, 0, 8)));
    pair.drive();
    assert_eq!(pair.ends[0].connection.failure(), Some(Failure::Reset));
}

#[test]
fn a_broken_rule_ends_the_connection() {
    let mut pair = Pair::new(&Options::explicit(8));
    pair.inject(0, bytes_of(&raw(Body::Data, 5, 2, 0, 8)));
    pair.drive();
    let violation = Violation::MseqGap { expected: 1, found: 2 };
    assert_eq!(pair.ends[0].violation, Some(violation));
    assert_eq!(pair.ends[0].connection.failure(), Some(Failure::Violation(violation)));
    assert_eq!(pair.ends[1].connection.failure(), Some(Failure::Reset));
    assert!(violation.to_string().ends_with("(spec 4.1)"));
}

/// Random programs on random schedules: as long as a program reads, everything arrives.
#[test]
fn no_schedule_blocks_for_ever() {
    const SEEDS: u64 = 150;
    const STEPS: u32 = 3000;
    for bufs in [3, 4, 5, 7, 64] {
        for seed in 0..SEEDS {
            let mut random = Random::new(seed * 97 + u64::from(bufs));
            let mut pair = Pair::new(&Options::explicit(bufs));
            for _ in 0..STEPS {
                let side = random.below(2) as usize;
                match random.below(12) {
                    0 if pair.ends[side].written < 20_000 => {
                        pair.ends[side].write(1 + random.below(400));
                    }
                    1..=3 => drop(pair.transmit(side)),
                    4..=6 => drop(pair.arrive(side)),
                    7..=9 => drop(pair.ends[side].handle_one()),
                    _ => drop(pair.ends[side].read_one()),
                }
            }
            // From here on the programs only read. All bytes written must come through.
            pair.drive();
            for side in 0..2 {
                let (read, written) = (pair.ends[side].read, pair.ends[1 - side].written);
                assert_eq!(
                    read,
                    written,
                    "bufs {bufs} seed {seed} to {side}: {:?}\n{:?}",
                    &pair.ends[0].trace[pair.ends[0].trace.len().saturating_sub(8)..],
                    &pair.ends[1].trace[pair.ends[1].trace.len().saturating_sub(8)..],
                );
            }
        }
    }
}

/// The same with ends that close whenever they like.
#[test]
fn every_schedule_with_closes_ends_closed() {
    for bufs in [3, 6] {
        for seed in 0..150 {
            let mut random = Random::new(seed * 31 + u64::from(bufs));
            let mut pair = Pair::new(&Options::explicit(bufs));
            let mut is_open = [true; 2];
            for _ in 0..600 {
                let side = random.below(2) as usize;
                match random.below(24) {
                    0 if is_open[side] => {
                        pair.ends[side].connection.shutdown(0).unwrap();
                        is_open[side] = false;
                    }
                    1 | 2 if is_open[side] => pair.ends[side].write(1 + random.below(200)),
                    3..=8 => drop(pair.transmit(side)),
                    9..=14 => drop(pair.arrive(side)),
                    15..=20 => drop(pair.ends[side].handle_one()),
                    _ => drop(pair.ends[side].read_one()),
                }
            }
            for (side, is_open) in is_open.into_iter().enumerate() {
                if is_open {
                    pair.ends[side].connection.shutdown(0).unwrap();
                }
            }
            pair.drive();
            pair.assert_streams_complete();
            for end in &pair.ends {
                assert_eq!(
                    (end.state(), end.connection.failure()),
                    (State::Closed, None),
                    "{seed}"
                );
            }
        }
    }
}
