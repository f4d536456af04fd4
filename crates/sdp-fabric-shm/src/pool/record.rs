//! One segment of the pool, and the offer slot in its control page.
//!
//! The pool ([`super::Pool`]) decides which segment is offered, taken or given back. This room knows
//! what one segment's slot says, and writes this end's statements there. The peer process writes the
//! slot, too: each of its words is hostile, read once and atomic.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{KeptSegment, NAME_WORDS, OFFER_OFFSET, Offer, TAKEN};
use crate::segment;

#[repr(C, align(128))]
pub(super) struct Place {
    pub(super) released: AtomicU32,
    pub(super) gone: AtomicU32,
    pub(super) descriptor: AtomicU32,
    pub(super) slot: AtomicU32,
    pub(super) name: [AtomicU32; NAME_WORDS],
    /// Where a process that may read our memory reads the process's [`Secret`]; 0: nowhere.
    pub(super) secret_at: AtomicU64,
    /// The secret that the process has read at the place that the other one named; 0: nothing yet.
    pub(super) answer: AtomicU64,
}

#[repr(C, align(128))]
pub(super) struct OfferSlot {
    pub(super) claim: AtomicU32,
    pub(super) places: [Place; 2],
}

const _: () = assert!(OFFER_OFFSET + size_of::<OfferSlot>() <= segment::HEADER_BYTES);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Offered,
    Used,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) kept: KeptSegment,
    pub(super) state: State,
    pub(super) life: u32,
    /// When it was last in use.
    pub(super) clock: u32,
    /// That of the pool when its connection got it.
    pub(super) generation: u64,
    /// Our side in the connection for which it is offered.
    pub(super) end: u8,
}

impl Record {
    pub(super) fn offer_slot(&self) -> &OfferSlot {
        // SAFETY: a record's segment is mapped as long as the record exists, at least HEADER_BYTES long and page
        // aligned; an offer slot consists of atomics only.
        unsafe { self.kept.base.add(OFFER_OFFSET).cast::<OfferSlot>().as_ref() }
    }

    pub(super) fn place(&self) -> usize {
        usize::from(self.kept.side & 1)
    }

    pub(super) fn own(&self) -> &Place {
        let [a, b] = &self.offer_slot().places;
        if self.place() == 0 { a } else { b }
    }

    pub(super) fn other(&self) -> &Place {
        let [a, b] = &self.offer_slot().places;
        if self.place() == 0 { b } else { a }
    }

    pub(super) const fn claim(&self, what: u32) -> u32 {
        self.life.wrapping_shl(2) | what
    }

    pub(super) fn is_claimed(&self, what: u32) -> bool {
        self.offer_slot().claim.load(Ordering::Acquire) == self.claim(what)
    }

    /// Whether the other end has let go of it.
    pub(super) fn is_let_go(&self) -> bool {
        self.other().released.load(Ordering::Acquire) == self.life.wrapping_add(1)
    }

    /// Whether both ends have.
    pub(super) fn is_free(&self) -> bool {
        self.state == State::Idle && self.is_let_go()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.other().gone.load(Ordering::Relaxed) != 0
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.state != State::Used
    }

    /// The other end must not use it any more.
    pub(super) fn say_gone(&self) {
        self.own().gone.store(1, Ordering::Relaxed);
    }

    pub(super) fn is_of(&self, owner: u32, state: State) -> bool {
        self.kept.owner == owner && self.state == state
    }

    pub(super) fn say(&self, descriptor: i32, slot: u32) {
        let own = self.own();
        own.descriptor.store(descriptor as u32, Ordering::Relaxed);
        own.slot.store(slot, Ordering::Relaxed);
    }

    /// The other end has taken our offer, and this end does not come: says so. After the last wipe.
    pub(super) fn disown(&self) {
        // SAFETY: the segment is mapped as long as the record exists, and begins with its header.
        unsafe { segment::disown(self.kept.base, self.end) };
    }

    /// Ends our offer. False: it is not there any more.
    pub(super) fn take_back(&self) -> bool {
        let (from, to) = (self.claim(1 + self.place() as u32), self.claim(0));
        let claim = &self.offer_slot().claim;
        claim.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(super) fn as_offer(&self, index: usize) -> Offer {
        let other = self.other();
        Offer {
            descriptor: other.descriptor.load(Ordering::Relaxed),
            slot: other.slot.load(Ordering::Relaxed),
            secret_at: other.secret_at.load(Ordering::Relaxed),
            claimed: other.answer.load(Ordering::Relaxed),
            has_answered: self.own().answer.load(Ordering::Relaxed) != 0,
            life: self.life,
            kept: self.kept,
            index,
        }
    }

    /// Whether the other end offers the connection with that name here.
    pub(super) fn offers(&self, wanted: &[u32; NAME_WORDS]) -> bool {
        let name = || self.other().name.iter().map(|word| word.load(Ordering::Relaxed));
        self.is_free()
            && !self.is_gone()
            && self.is_claimed(2 - self.place() as u32)
            && name().zip(wanted).all(|(word, wanted)| word == *wanted)
    }

    /// The last step of taking an offer. False: it was withdrawn.
    pub(super) fn seal(&mut self, owner: u32, generation: u64) -> bool {
        let (from, to) = (self.claim(2 - self.place() as u32), self.claim(TAKEN));
        let claim = &self.offer_slot().claim;
        if claim.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.life = self.life.wrapping_add(1);
        self.state = State::Used;
        self.kept.owner = owner;
        self.generation = generation;
        true
    }

    /// Empties the control page for the next connection. No connection uses it.
    pub(super) fn wipe(&self) {
        for at in (0..OFFER_OFFSET).step_by(8) {
            // SAFETY: within the segment's control page, aligned.
            let word = unsafe { self.kept.base.add(at).cast::<AtomicU64>().as_ref() };
            word.store(0, Ordering::Relaxed);
        }
    }
}
