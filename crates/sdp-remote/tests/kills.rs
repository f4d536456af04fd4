//! Queue pairs that end at any moment, in both directions, at either end: not a byte is missing, none comes twice.

mod common;

use common::{NUMBER, Pair, Random, options};
use sdp_remote::{RecvError, SendError, Wait};

const SEEDS: u64 = 300;
const STEPS: usize = 500;
/// Bytes of one direction in a run, at least.
const LEAST: u64 = 20_000;

/// The results that a sender or receiver may get while the peer keeps to the rules.
fn sent(outcome: Result<usize, SendError>) {
    // A sender with payload in hand need not wait for the kernel to make segments.
    let is_segments = outcome == Err(SendError::Wait(Wait::Unsegmented));
    let may_be = matches!(outcome, Ok(_) | Err(SendError::Wait(_))) && !is_segments;
    assert!(may_be, "{outcome:?}");
}

fn received(outcome: Result<usize, RecvError>) {
    assert!(matches!(outcome, Ok(1..) | Err(RecvError::WouldBlock)), "{outcome:?}");
}

/// Ends a queue pair.
fn kill(pair: &mut Pair, of: usize) {
    let end = pair.end(of);
    if end.shared.has_link() {
        end.host.forget(NUMBER);
        end.shared.link_died();
    }
}

fn play(seed: u64) -> (u64, u32) {
    let mut pair = Pair::new(seed, options());
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut kills, mut by_sdp) = (0, 0);
    for _ in 0..STEPS {
        let now = pair.world.now_ns();
        let of = random.below(2);
        match random.below(12) {
            0..=3 => sent(pair.end(of).send(1 + random.below(3000), now)),
            4 if random.below(4) == 0 => {
                let readable = pair.end(of).readable();
                let before = pair.end(of).received;
                while pair.end(of).recv(5000, false).is_ok_and(|got| got != 0) {}
                let got = pair.end(of).received - before;
                assert_eq!(got, readable, "seed {seed}: what could be read is what was read");
            }
            4..=6 => received(pair.end(of).recv(1 + random.below(4000), random.below(5) == 0)),
            7 => {
                let _ = pair.end(of).tend(now);
            }
            8 => pair.manage(),
            9 => pair.ask(),
            10 if random.below(16) == 0 => {
                kills += u32::from(pair.end(of).shared.has_link());
                kill(&mut pair, of);
            }
            _ => pair.world.run_for(random.below(3_000_000) as u64),
        }
    }
    // Both stop sending; messages in flight arrive.
    for round in 0.. {
        assert!(round < 5000, "seed {seed}: bytes are missing\n{}", pair.world.trace());
        pair.world.run_for(2_000_000);
        pair.manage();
        let now = pair.world.now_ns();
        for of in 0..2 {
            received_or_nothing(pair.end(of).recv(1 << 20, false));
            let _ = pair.end(of).tend(now);
        }
        let (a, c) = (&pair.acceptor, &pair.connector);
        if a.sent == c.received && c.sent == a.received {
            break;
        }
    }
    by_sdp += pair.acceptor.inbound.counts().bytes + pair.connector.inbound.counts().bytes;
    assert!(pair.acceptor.sent + pair.connector.sent >= LEAST);
    assert!(!pair.acceptor.shared.is_broken() && !pair.connector.shared.is_broken());
    (by_sdp, kills)
}

fn received_or_nothing(outcome: Result<usize, RecvError>) {
    assert!(matches!(outcome, Ok(1..) | Err(RecvError::WouldBlock)), "{outcome:?}");
}

#[test]
fn every_byte_once_whatever_ends() {
    let (mut by_sdp, mut kills) = (0, 0);
    for seed in 1..=SEEDS {
        let (bytes, killed) = play(seed);
        by_sdp += bytes;
        kills += killed;
    }
    assert!(by_sdp > 1_000_000 && kills > 300, "{by_sdp} bytes by SDP, {kills} kills");
}
