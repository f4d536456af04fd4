//! Random stories: every operation at every moment, in both directions at once. Each byte arrives once
//! and in its place, no memory is used that was given back, and nobody waits for ever.
//!
//! `SDP_ZCOPY_SEEDS=n` tells n stories instead of [`SEEDS`]; `SDP_ZCOPY_SEED=n` only that one.

use sdp_proto::{Credits, Mode};

use crate::{
    common::Random,
    ends::{PAYLOAD, Pair, Stop},
};

const SEEDS: u64 = 4000;

/// What the stories did, so that none of it is left out without notice.
#[derive(Debug, Default)]
struct Done {
    whole: u64,
    refused: u64,
    read: u64,
    withdrawn: u64,
    again: u64,
    cancelled: u64,
    written: u64,
    overridden: u64,
    recalled: u64,
    modes: u64,
}

struct Story {
    seed: u64,
    random: Random,
    pair: Pair,
    goals: [u64; 2],
    is_hasty: bool,
}

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("SDP_ZCOPY_SEED={}\n{:#?}", self.seed, self.pair.log);
        }
    }
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let credits = if random.below(4) == 0 { Credits::Implicit } else { Credits::Explicit };
        let mut pair = Pair::new(credits);
        let goals = [0, 1].map(|_| if random.below(3) == 0 { 0 } else { random.below(6000) });
        for end in &mut pair.ends {
            end.sink.want_pipelined(random.below(2) == 0);
        }
        let is_hasty = random.below(2) == 0;
        Self { seed, random, pair, goals, is_hasty }
    }

    fn left(&self, side: usize) -> u32 {
        (self.goals[side].saturating_sub(self.pair.ends[side].source.plain().position())) as u32
    }

    /// Bytes of the stream that are in no message and no advertisement yet.
    fn fresh(&self, side: usize) -> u32 {
        let end = self.pair.ends[side].source.end_position();
        self.goals[side].saturating_sub(end) as u32
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.random.below(u64::from(bound)) as u32
    }

    /// One operation of one end; whether something moved.
    fn operate(&mut self, side: usize, done: &mut Done) -> Result<bool, Stop> {
        let left = self.left(side);
        let fresh = self.fresh(side);
        let mode = self.pair.ends[side].source.plain().mode();
        Ok(match self.below(if self.is_hasty { 17 } else { 14 }) {
            0 | 1 => {
                let want = 1 + self.below(2 * PAYLOAD);
                left != 0 && self.pair.data(side, want.min(left)).is_ok()
            }
            2 | 3 if fresh > 1 => {
                let len = 2 + self.below((fresh - 1).min(900));
                let inline =
                    if mode == Mode::Pipelined { 0 } else { 1 + self.below(len - 1).min(80) };
                self.pair.advertise(side, len, inline).is_ok()
            }
            4 | 5 => self.pair.take(side)?,
            6 => {
                let most = 1 + self.below(400);
                self.pair.begin_read(side, most)
            }
            7 => {
                let ended = self.pair.end_read(side)?;
                done.read += u64::from(ended);
                ended
            }
            8 => self.pair.control(side).is_ok(),
            9 => {
                self.pair.ends[side].sink.report();
                false
            }
            10 => {
                let most = 1 + self.below(500);
                let wrote = left != 0 && self.pair.write(side, most.min(left)).is_ok();
                done.written += u64::from(wrote);
                wrote
            }
            11 => {
                let len = 117 + self.below(600);
                self.pair.lend(side, len).is_ok()
            }
            12 => {
                let mode = Mode::ALL[self.below(3) as usize];
                // Buffered has no way back but the sink's.
                let may = mode != Mode::Buffered || self.below(20) == 0;
                let changed = may && self.pair.change_mode(side, mode).is_ok();
                done.modes += u64::from(changed);
                changed
            }
            13 => {
                let end = &mut self.pair.ends[side];
                let leaves = end.pending.is_nothing().then(|| end.sink.leave_buffered()).flatten();
                if let Some(pending) = leaves {
                    end.pending = end.pending.add(pending).expect("nothing was pending");
                }
                leaves.is_some()
            }
            14 => {
                self.pair.ends[side].sink.refuse();
                false
            }
            15 => {
                if self.below(4) != 0 {
                    let recalled = self.pair.recall(side) == Ok(true);
                    done.recalled += u64::from(recalled);
                    return Ok(recalled);
                }
                self.pair.cancel(side).is_ok()
            }
            16 => {
                let withdrawn = self.pair.withdraw(side).is_ok();
                done.withdrawn += u64::from(withdrawn);
                withdrawn
            }
            _ => false,
        })
    }

    /// Everything that programs and engines still have to do: patient ends, that read and answer all.
    fn finish(&mut self) -> Result<bool, Stop> {
        let mut moved = false;
        for side in [0, 1] {
            self.pair.ends[side].sink.report();
            moved |= self.pair.take(side)?;
            moved |= self.pair.begin_read(side, 300);
            moved |= self.pair.end_read(side)?;
            moved |= self.pair.control(side).is_ok();
            moved |= self.pair.recall(side) == Ok(true);
            let left = self.left(side).max(self.pair.ends[side].source.rest());
            moved |= left != 0 && self.pair.data(side, left).is_ok();
        }
        Ok(moved)
    }

    fn tell(mut self, done: &mut Done) {
        let told = self.play(done);
        for end in &self.pair.ends {
            for event in &end.events {
                use sdp_proto::SourceEvent::{Cancelled, Overridden, SendRest};
                done.cancelled += u64::from(matches!(event, Cancelled { .. }));
                done.overridden += u64::from(matches!(event, Overridden { .. }));
                done.again += u64::from(matches!(event, SendRest { .. }));
            }
        }
        match told {
            Ok(()) => done.whole += 1,
            // What was counted is a prefix: `Pair` has seen to it.
            Err(Stop::ReadRefused) => done.refused += 1,
            Err(stop) => panic!("{stop:?}"),
        }
    }

    fn play(&mut self, done: &mut Done) -> Result<(), Stop> {
        for _ in 0..400 {
            let side = self.below(2) as usize;
            self.operate(side, done)?;
        }
        let mut still = 0;
        while still < 3 {
            still = if self.finish()? { 0 } else { still + 1 };
        }
        for side in [0, 1] {
            let pair = &mut self.pair;
            let end = pair.ends[side].source.end_position();
            let is_over = end >= self.goals[side] && pair.ends[side].source.unread() == 0;
            assert!(is_over, "nothing moves\n{pair:#?}");
            assert_eq!(pair.ends[1 - side].got, end);
            let ended = pair.disconnect(side);
            assert!(ended.is_ok(), "{ended:?}\n{pair:#?}");
        }
        self.pair.settle()?;
        for end in &self.pair.ends {
            assert!(end.has_ended && end.live.is_empty());
        }
        Ok(())
    }
}

#[test]
fn every_operation_at_every_moment() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let only: Option<u64> = number("SDP_ZCOPY_SEED");
    let count = only.map_or_else(|| number("SDP_ZCOPY_SEEDS").unwrap_or(SEEDS), |_| 1);
    let first = only.unwrap_or(0);
    let mut done = Done::default();
    for seed in first..first + count {
        Story::new(seed).tell(&mut done);
    }
    println!("{done:?}");
    let Done { whole, refused, read, withdrawn, again, cancelled, .. } = done;
    let Done { written, overridden, recalled, modes, .. } = done;
    let all =
        [whole, refused, read, withdrawn, again, cancelled, written, overridden, recalled, modes];
    assert!(only.is_some() || all.iter().all(|number| *number > count / 50), "{done:?}");
}
