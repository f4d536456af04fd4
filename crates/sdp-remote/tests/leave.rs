//! One end, or both, hand their stream to a reader that knows the kernel's stream alone: not a byte
//! is missing, none comes twice, and no marker is left in the stream.

mod common;

use common::{NUMBER, Pair, Random, options};
use sdp_remote::{LeaveError, Leaving, Readable, RecvError, SendError};

const SEEDS: u64 = 400;
const STEPS: usize = 300;

/// The end that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    One(usize),
    Both,
}

fn sent(outcome: Result<usize, SendError>) {
    assert!(matches!(outcome, Ok(_) | Err(SendError::Wait(_))), "{outcome:?}");
}

fn received(outcome: Result<usize, RecvError>) {
    assert!(matches!(outcome, Ok(1..) | Err(RecvError::WouldBlock)), "{outcome:?}");
}

/// The programs' actions, and the end of a queue pair.
fn act(pair: &mut Pair, random: &mut Random, kills: bool) {
    let now = pair.world.now_ns();
    let of = random.below(2);
    match random.below(12) {
        // At most as much as a RETURN has room for.
        0..=3 if pair.end(of).sent - pair.end(1 - of).received > 4000 => {}
        0..=3 => sent(pair.end(of).send(1 + random.below(900), now)),
        4..=6 => received(pair.end(of).recv(1 + random.below(1500), random.below(5) == 0)),
        7 => {
            let _ = pair.end(of).tend(now);
        }
        8 => pair.manage(),
        9 => pair.ask(),
        10 if kills && random.below(16) == 0 => {
            let end = pair.end(of);
            if end.shared.has_link() {
                end.host.forget(NUMBER);
                end.shared.link_died();
            }
        }
        _ => pair.world.run_for(random.below(3_000_000) as u64),
    }
}

/// The ends go on, those that have left by the kernel alone, until everything has arrived.
fn settle(pair: &mut Pair, random: &mut Random, gone: [bool; 2]) {
    for round in 0.. {
        assert!(round < 3000, "bytes are missing\n{}", pair.world.trace());
        pair.world.run_for(2_000_000);
        let now = pair.world.now_ns();
        for (of, is_gone) in gone.into_iter().enumerate() {
            let end = pair.end(of);
            let len = if round < 20 { random.below(500) } else { 0 };
            if is_gone {
                end.read_plainly(1 + random.below(5000));
                end.write_plainly(len);
            } else {
                received(end.recv(1 << 20, false));
                let _ = end.tend(now);
                sent(end.send(len, now));
            }
        }
        let (a, c) = (&pair.acceptor, &pair.connector);
        if round > 30 && a.sent == c.received && c.sent == a.received {
            return;
        }
    }
}

fn play(seed: u64, who: Who, kills: bool) -> u64 {
    let mut pair = Pair::new(seed, options());
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    pair.meet();
    for _ in 0..random.below(STEPS) {
        act(&mut pair, &mut random, kills);
    }
    let mut leaves = match who {
        Who::One(of) => [of == 0, of == 1],
        Who::Both => [true, true],
    };
    // Both begin at different moments.
    let late = [random.below(4), random.below(4)];
    let mut gone = [false; 2];
    let mut unread = 0;
    for round in 0..2000 {
        let now = pair.world.now_ns();
        if random.below(3) == 0 {
            pair.manage_but(leaves);
        }
        for of in 0..2 {
            let end = pair.end(of);
            if gone[of] {
                end.read_plainly(1 + random.below(300));
                end.write_plainly(random.below(300));
            } else if leaves[of] && round >= late[of] {
                let before = end.inbound.counts();
                match end.leave(now) {
                    Ok(Leaving::Done) => gone[of] = true,
                    Ok(Leaving::Waits(_)) => {}
                    // The other end was faster, and this one has bytes that cannot go back any more.
                    Err(LeaveError::Unable) if who == Who::Both => leaves[of] = false,
                    Err(error) => panic!("seed {seed}: {error:?}\n{}", pair.world.trace()),
                }
                let after = pair.end(of).inbound.counts();
                unread += after.bytes - before.bytes + after.carrier_bytes - before.carrier_bytes;
            } else {
                // Slowly: bytes that were unread at the peer come back before it is over.
                received(end.recv(1 + random.below(400), random.below(5) == 0));
                let _ = end.tend(now);
                if end.sent - pair.end(1 - of).received < 4500 {
                    sent(pair.end(of).send(random.below(100), now));
                }
            }
        }
        pair.world.run_for(random.below(2_000_000) as u64);
        if gone == leaves {
            break;
        }
    }
    assert_eq!(gone, leaves, "seed {seed}: nobody answered\n{}", pair.world.trace());
    settle(&mut pair, &mut random, gone);
    for (of, is_gone) in gone.iter().enumerate() {
        let end = pair.end(of);
        assert!(!end.shared.is_broken());
        assert!(!is_gone || end.outbound.is_plain() && end.inbound.is_plain());
        // The end that stays is plain as well, once it has read its inbox.
        assert!(end.outbound.is_plain() && end.inbound.is_plain(), "seed {seed}: end {of}");
    }
    unread
}

#[test]
fn either_end_may_leave() {
    let mut unread = 0;
    for seed in 1..=SEEDS {
        unread += play(seed, Who::One(seed as usize % 2), seed % 3 == 0);
    }
    assert!(unread > 50_000, "{unread} bytes came back");
}

#[test]
fn both_ends_may_leave_at_once() {
    for seed in 1..=SEEDS {
        play(10_000 + seed, Who::Both, seed % 3 == 0);
    }
}

/// The end that leaves does not wait for ever: it delivers the bytes that it took, goes on in both
/// directions, and is plain once the peer has answered. Both may have begun.
fn read_on(seed: u64, who: Who) -> u64 {
    let mut pair = Pair::new(seed, options());
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    pair.meet();
    for _ in 0..random.below(STEPS) {
        act(&mut pair, &mut random, seed.is_multiple_of(3));
    }
    let of = seed as usize % 2;
    let (mut is_out, mut reads_on, mut taken) = (false, false, 0);
    let waits = random.below(8);
    let mut peer_leaves = who == Who::Both;
    let mut has_peer_left = false;
    for round in 0..2000 {
        let now = pair.world.now_ns();
        pair.manage_but([of == 0 || peer_leaves, of == 1 || peer_leaves]);
        // The peer calls in seldom, or not at all before this end waits no more.
        if round > 2 * waits || random.below(3) == 0 && seed.is_multiple_of(2) {
            let peer = pair.end(1 - of);
            if has_peer_left {
                peer.read_plainly(1 + random.below(400));
                peer.write_plainly(random.below(100));
            } else if peer_leaves {
                match peer.leave(now) {
                    Ok(Leaving::Done) => has_peer_left = true,
                    Ok(Leaving::Waits(_)) => {}
                    Err(LeaveError::Unable) => peer_leaves = false,
                    Err(error) => panic!("seed {seed}: {error:?}\n{}", pair.world.trace()),
                }
            } else {
                received(peer.recv(1 + random.below(400), false));
                let _ = peer.tend(now);
                sent(peer.send(random.below(100), now));
            }
        }
        let end = pair.end(of);
        if is_out {
            end.read_plainly(1 + random.below(300));
            end.write_plainly(random.below(300));
        } else if reads_on {
            received(end.recv(1 + random.below(600), false));
            is_out = end.tend_reader(now).expect("no error") == Leaving::Done;
            if !is_out && random.below(2) == 0 {
                sent(end.send(1 + random.below(300), now));
            }
        } else {
            match end.leave(now) {
                Ok(Leaving::Done) => is_out = true,
                Ok(Leaving::Waits(_)) if round < waits => {}
                Ok(Leaving::Waits(_)) | Err(LeaveError::Receive(_)) => {
                    let before = end.received;
                    end.read_on();
                    taken += end.received - before;
                    reads_on = true;
                }
                Err(LeaveError::Unable) if who == Who::Both => return taken,
                Err(error) => panic!("seed {seed}: {error:?}\n{}", pair.world.trace()),
            }
        }
        pair.world.run_for(random.below(2_000_000) as u64);
        if is_out && (has_peer_left || !peer_leaves) {
            break;
        }
    }
    assert!(is_out, "seed {seed}: not out\n{}", pair.world.trace());
    let mut gone = [false; 2];
    (gone[of], gone[1 - of]) = (true, has_peer_left);
    settle(&mut pair, &mut random, gone);
    for end in 0..2 {
        let end = pair.end(end);
        assert!(!end.shared.is_broken());
        assert!(end.outbound.is_plain() && end.inbound.is_plain(), "seed {seed}");
    }
    taken
}

#[test]
fn an_end_that_leaves_may_read_on() {
    let taken: u64 = (1..=SEEDS).map(|seed| read_on(30_000 + seed, Who::One(0))).sum();
    assert!(taken > 50_000, "{taken} bytes were taken");
    for seed in 1..=SEEDS {
        read_on(40_000 + seed, Who::Both);
    }
}

/// The end that reads on has sent payload before its RETURN, and the other end's program reads nothing before it has sent
/// all that it has.
#[test]
fn who_only_sends_finds_return_behind_payload() {
    let mut foreseen = 0;
    for seed in 1..=SEEDS {
        let mut pair = Pair::new(50_000 + seed, options());
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        pair.meet();
        for _ in 0..random.below(STEPS) {
            act(&mut pair, &mut random, seed.is_multiple_of(3));
        }
        let of = seed as usize % 2;
        let (mut reads_on, mut is_out, mut left) = (false, false, 5000);
        for round in 0.. {
            assert!(round < 1000, "seed {seed}: it waits\n{}", pair.world.trace());
            pair.manage_but([of == 0, of == 1]);
            let now = pair.world.now_ns();
            let end = pair.end(of);
            if is_out {
                end.read_plainly(1 + random.below(600));
            } else if reads_on {
                received(end.recv(1 + random.below(600), false));
                // Payload first: RETURN comes behind it. Not more than the small buffers of these sockets take.
                if round < 60 {
                    sent(end.send(usize::from(round % 6 == 0), now));
                } else {
                    is_out = end.tend_reader(now).expect("no error") == Leaving::Done;
                }
            } else {
                let left = end.leave(now);
                assert!(matches!(left, Ok(Leaving::Waits(_)) | Err(LeaveError::Receive(_))));
                end.read_on();
                reads_on = true;
            }
            let peer = pair.end(1 - of);
            if left == 0 || round < 60 && !peer.outbound.is_held() {
                // Until it has come to LEAVE, and in the end.
                received(peer.recv(1 + random.below(400), false));
                let _ = peer.tend(now);
            } else {
                let _ = peer.look();
                let is_held = peer.outbound.is_held();
                peer.foresee_return().expect("an honest RETURN");
                foreseen += u64::from(is_held && !peer.outbound.is_held());
                let before = peer.sent;
                sent(peer.send(1 + random.below(100), now));
                left -= (peer.sent - before).min(left);
            }
            pair.world.run_for(random.below(2_000_000) as u64);
            if left == 0 && is_out {
                break;
            }
        }
        let mut gone = [false; 2];
        gone[of] = true;
        settle(&mut pair, &mut random, gone);
    }
    assert!(foreseen > SEEDS / 2, "{foreseen}");
}

/// More is unread than the rings have room for: longer ones take their place, at both ends. Either end leaves, or both do.
#[test]
fn much_goes_back() {
    let mut longest = 0;
    for seed in 1..=SEEDS {
        let mut pair = Pair::new(60_000 + seed, options());
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        pair.meet();
        for _ in 0..random.below(STEPS) {
            act(&mut pair, &mut random, seed.is_multiple_of(3));
        }
        let of = seed as usize % 2;
        let leaves = [of == 0 || seed.is_multiple_of(5), of == 1 || seed.is_multiple_of(5)];
        let wanted = [random.below(40_000) as u64, random.below(40_000) as u64];
        for round in 0..200 {
            let now = pair.world.now_ns();
            for (of, wanted) in wanted.into_iter().enumerate() {
                let unread = pair.end(of).sent - pair.end(1 - of).received;
                if unread < wanted {
                    sent(pair.end(of).send(1 + random.below(2000), now));
                }
                let _ = pair.end(of).tend(now);
            }
            if round < 100 {
                pair.manage();
            }
            pair.world.run_for(random.below(2_000_000) as u64);
        }
        let mut gone = [false; 2];
        for _ in 0..2000 {
            let now = pair.world.now_ns();
            pair.manage_but(leaves);
            for of in 0..2 {
                let end = pair.end(of);
                if gone[of] {
                    end.read_plainly(1 + random.below(3000));
                    end.write_plainly(random.below(300));
                } else if leaves[of] {
                    match end.leave(now) {
                        Ok(Leaving::Done) => gone[of] = true,
                        Ok(Leaving::Waits(_)) => {}
                        Err(LeaveError::Receive(RecvError::Carrier(libc::ENOBUFS))) => {
                            assert!(end.lengthen(), "seed {seed}");
                        }
                        Err(error) => panic!("seed {seed}: {error:?}\n{}", pair.world.trace()),
                    }
                } else {
                    received(end.recv(1 + random.below(400), random.below(5) == 0));
                    let _ = end.tend(now);
                    sent(end.send(random.below(100), now));
                }
            }
            pair.world.run_for(random.below(2_000_000) as u64);
            if gone == leaves {
                break;
            }
        }
        assert_eq!(gone, leaves, "seed {seed}: nobody answered\n{}", pair.world.trace());
        settle(&mut pair, &mut random, gone);
        for end in [0, 1] {
            let end = pair.end(end);
            assert!(!end.shared.is_broken());
            assert!(end.outbound.is_plain() && end.inbound.is_plain(), "seed {seed}");
            longest = longest.max(end.ring.len());
        }
    }
    assert!(longest > 3 * common::RING, "{longest}");
}

/// A ring that has room is as long as is needed, whatever number the carrier's error has.
#[test]
fn a_ring_with_room_for_what_comes_back_is_not_lengthened() {
    let mut pair = Pair::new(5, options());
    pair.meet();
    for _ in 0..1000 {
        let now = pair.world.now_ns();
        if pair.acceptor.sent - pair.connector.received < 1000 {
            sent(pair.acceptor.send(1000, now));
        }
        let _ = pair.connector.leave(now);
        let _ = pair.acceptor.look();
        let _ = pair.acceptor.tend(now);
        pair.world.run_for(1_000_000);
        if pair.acceptor.inbound.has_return() {
            break;
        }
    }
    let end = &pair.acceptor;
    let longer =
        |len| sdp_remote::longer_ring(&end.outbound, &end.inbound, len).map(|(longer, _)| longer);
    let needed = longer(0).expect("a RETURN with bytes");
    assert!(needed > 0);
    assert_eq!(
        [longer(needed - 1), longer(needed), longer(2 * needed)],
        [Some(needed), None, None]
    );
    received(pair.acceptor.recv(1, false));
    assert!(!pair.acceptor.inbound.has_return());
}

/// More is unread than the ring has room for, and there is no longer one.
#[test]
fn what_cannot_go_back_is_said() {
    let mut pair = Pair::new(3, options());
    pair.meet();
    let mut now = pair.world.now_ns();
    while pair.acceptor.sent < 20_000 {
        now += 2_000_000;
        sent(pair.acceptor.send(1000, now));
    }
    for _ in 0..10 {
        pair.world.run_for(1_000_000);
        let _ = pair.acceptor.recv(1, false);
        if let Err(error) = pair.connector.leave(now) {
            assert_eq!(error, LeaveError::Receive(RecvError::Carrier(libc::ENOBUFS)));
            return;
        }
    }
    panic!("it left");
}

/// No answer of it is pending, and it cannot give one. Bytes still to be sent arrive, and so do
/// those that the new holder writes.
#[test]
fn a_peer_that_has_ended_its_stream_is_left_alone() {
    for seed in 1..=SEEDS {
        let mut pair = Pair::new(20_000 + seed, options());
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        pair.meet();
        for _ in 0..random.below(STEPS) {
            act(&mut pair, &mut random, seed % 3 == 0);
        }
        let (of, mut has_shut, mut is_gone) = (seed as usize % 2, false, false);
        for _ in 0..4000 {
            let now = pair.world.now_ns();
            pair.manage_but([of == 0, of == 1]);
            let peer = pair.end(1 - of);
            if !has_shut {
                peer.outbound.to_kernel();
                has_shut = peer.tend(now).is_ok();
                if has_shut {
                    peer.tcp.0.shutdown(std::net::Shutdown::Write).expect("a shutdown");
                }
            }
            received(peer.recv(1 << 20, false));
            let all = pair.end(1 - of).sent;
            let end = pair.end(of);
            if is_gone {
                end.write_plainly(random.below(300));
            } else if has_shut && end.received == all {
                // The end is perhaps not known yet; then LEAVE would be written, to which no answer
                // comes.
                if end.look() == Ok(Readable::End) {
                    is_gone = end.leave(now).expect("no error") == Leaving::Done;
                }
            } else {
                received(end.recv(1 + random.below(400), false));
                sent(end.send(random.below(100), now));
            }
            pair.world.run_for(random.below(2_000_000) as u64);
            if is_gone && pair.end(of).sent > 3000 + all {
                break;
            }
        }
        assert!(is_gone, "seed {seed}\n{}", pair.world.trace());
        for _ in 0..200 {
            received(pair.end(1 - of).recv(1 << 20, false));
        }
        let (end, peer) = (pair.end(of).sent, pair.end(1 - of).received);
        assert_eq!(end, peer, "seed {seed}");
        assert!(pair.end(of).inbound.is_plain() && pair.end(of).outbound.is_plain());
    }
}
