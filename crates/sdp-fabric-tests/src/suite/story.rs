//! Long random stories, compared with a model at every step.
//!
//! The model of a direction is a queue of messages posted and not yet received, a list of those
//! borrowed, and a queue of completions that have to come. Both directions run at once, with any
//! mixture of posting, receiving, partial copies, releases out of order, completions and time.

use std::collections::VecDeque;

use sdp_rdma::{
    fabric::{PostError, RELEASED_AHEAD_MAX, ReceiveQueue, Received, SendOptions, SendQueue},
    work::Status,
};

use crate::{
    harness::{End, Harness, settle},
    message::{Message, Random},
};

/// Stories told; each has a seed of its own, derived from the run's.
const STORIES: usize = 8;
/// Steps of one.
const STEPS: usize = 3000;
/// Messages that a reader holds at once.
const BORROWED_MAX: usize = 40;

/// Many seeds.
pub fn random_stories_match_the_model<H: Harness>(harness: &mut H, random: &mut Random) {
    for _ in 0..STORIES {
        story(harness, &mut Random::new(random.next_u64()));
    }
}

fn story<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let max = pair.a.tx.max_message();
    let mut forth = Model::new(0, max);
    let mut back = Model::new(1 << 40, max);
    // A lazy reader fills the window, an eager one keeps it empty: both must occur.
    let other_steps = 1 + random.below(4);
    for _ in 0..STEPS {
        let (model, from, to) = if random.one_in(2) {
            (&mut forth, &mut pair.a, &mut pair.b)
        } else {
            (&mut back, &mut pair.b, &mut pair.a)
        };
        model.step(random, other_steps, from, to);
        if random.one_in(3) {
            harness.advance();
        }
    }
    forth.finish(harness, &mut pair.a, &mut pair.b);
    back.finish(harness, &mut pair.b, &mut pair.a);
}

struct Model {
    next_number: u64,
    max: usize,
    posted: VecDeque<Message>,
    /// In order of arrival.
    borrowed: Vec<Borrowed>,
    due: VecDeque<u64>,
}

struct Borrowed {
    message: Message,
    received: Received,
    is_released: bool,
}

impl Model {
    fn new(next_number: u64, max: usize) -> Self {
        let (posted, due) = (VecDeque::new(), VecDeque::new());
        Self { next_number, max, posted, borrowed: Vec::new(), due }
    }

    fn step<Tx: SendQueue, Rx: ReceiveQueue>(
        &mut self,
        random: &mut Random,
        other_steps: usize,
        from: &mut End<Tx, Rx>,
        to: &mut End<Tx, Rx>,
    ) {
        match random.below(4 + other_steps) {
            0 => self.receive(&mut to.rx),
            1 => self.copy(random, &to.rx),
            2 => self.release(random, &mut to.rx),
            3 => self.complete(&mut from.tx),
            _ => self.post(random, &mut from.tx),
        }
    }

    fn post(&mut self, random: &mut Random, tx: &mut impl SendQueue) {
        let message = Message::random(random, self.next_number, self.max);
        let options = SendOptions {
            signalled: random.one_in(3),
            solicited: random.one_in(4),
            control: message.len() < 100 && random.one_in(4),
        };
        match message.post(tx, options) {
            Ok(()) => {
                self.next_number += 1;
                self.posted.push_back(message);
                if options.signalled {
                    self.due.push_back(message.number);
                }
            }
            Err(PostError::Full) => {
                let under_way = self.posted.len() + self.borrowed.len() + self.due.len();
                // With nothing in flight at this moment the fabric may still have to learn of it;
                // `finish` checks that it does in the end.
                assert!(under_way > 0 || self.next_number > 0, "full from the start");
            }
            Err(error) => panic!("post of {message:?}: {error:?}"),
        }
    }

    fn receive(&mut self, rx: &mut impl ReceiveQueue) {
        if self.borrowed.len() >= BORROWED_MAX {
            return;
        }
        let Some(received) = rx.poll_receive().expect("the connection lives") else { return };
        let message = self.posted.pop_front().expect("a message that nobody sent");
        assert!(
            self.borrowed.iter().all(|b| b.is_released || b.received.token != received.token),
            "two borrowed messages have one token"
        );
        message.check(rx, received);
        self.borrowed.push(Borrowed { message, received, is_released: false });
    }

    fn copy(&self, random: &mut Random, rx: &impl ReceiveQueue) {
        let Some(entry) = self.pick(random) else { return };
        let Borrowed { message, received, .. } = &self.borrowed[entry];
        let from = random.below(message.len() + 1);
        message.check_part(rx, *received, from, random.below(message.len() - from + 1));
    }

    fn release(&mut self, random: &mut Random, rx: &mut impl ReceiveQueue) {
        let Some(mut entry) = self.pick(random) else { return };
        let ahead = self.borrowed.iter().filter(|other| other.is_released).count();
        if ahead >= RELEASED_AHEAD_MAX || random.one_in(2) {
            // The first is never released: it would be gone from the list.
            entry = 0;
        }
        self.release_entry(entry, rx);
    }

    fn release_entry(&mut self, entry: usize, rx: &mut impl ReceiveQueue) {
        let borrowed = &mut self.borrowed[entry];
        borrowed.message.check(rx, borrowed.received);
        rx.release(borrowed.received);
        borrowed.is_released = true;
        let kept = self.borrowed.iter().position(|other| !other.is_released);
        self.borrowed.drain(..kept.unwrap_or(self.borrowed.len()));
    }

    fn complete(&mut self, tx: &mut impl SendQueue) {
        if let Some(done) = tx.poll_completion() {
            assert_eq!(Some(done.id.0), self.due.pop_front(), "completion order");
            assert_eq!(done.status, Status::Success);
        }
    }

    /// An entry of `borrowed` that is not released.
    fn pick(&self, random: &mut Random) -> Option<usize> {
        let kept: Vec<_> =
            (0..self.borrowed.len()).filter(|entry| !self.borrowed[*entry].is_released).collect();
        kept.get(random.below(kept.len())).copied()
    }

    /// Everything posted arrives, every pending request completes, and there is room again.
    fn finish<H: Harness>(
        &mut self,
        harness: &mut H,
        from: &mut End<H::Tx, H::Rx>,
        to: &mut End<H::Tx, H::Rx>,
    ) {
        // Each turn makes progress or ends.
        while !self.posted.is_empty() || !self.borrowed.is_empty() || !self.due.is_empty() {
            let before = (self.posted.len(), self.borrowed.len(), self.due.len());
            settle(harness);
            self.complete(&mut from.tx);
            self.receive(&mut to.rx);
            while !self.borrowed.is_empty() {
                self.release_entry(0, &mut to.rx);
            }
            let after = (self.posted.len(), self.borrowed.len(), self.due.len());
            assert_ne!(before, after, "posted, borrowed, due: nothing moves any more");
        }
        settle(harness);
        assert_eq!(to.rx.poll_receive(), Ok(None), "a message that nobody sent");
        assert!(from.tx.room() > 0, "no room with nothing under way");
    }
}
