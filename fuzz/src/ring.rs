//! The shared ring between inaccessible pages: against a model when nobody lies, and with somebody who
//! writes anything anywhere, when nothing may be touched outside the segment, no message may be longer
//! than the ring, and no loop may be endless.

use core::cell::Cell;
use std::{collections::VecDeque, ptr::NonNull};

use sdp_fabric_shm::endpoint::{ShmRx, ShmTx};
use sdp_rdma::{
    fabric::{Gather, PostError, ReceiveQueue, Received, Scatter, SendOptions, SendQueue},
    work::WorkId,
};
use sdp_shm::{
    layout::{CONTROL_BYTES, RING_BYTES_MIN, Segment, segment_bytes},
    ring::HEADER_MAX,
};

use crate::random::Random;

const GUARD: usize = 4096;
const STEPS: u64 = 400;
/// Records that a ring can hold at most.
const RECORDS_MAX: u64 = RING_BYTES_MIN as u64 / 16;

/// A segment with inaccessible pages on both sides.
struct Fenced {
    base: NonNull<u8>,
    segment: Segment,
}

impl Fenced {
    fn new() -> Self {
        let len = segment_bytes(RING_BYTES_MIN);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping disturbs nothing.
        let base = unsafe {
            libc::mmap(core::ptr::null_mut(), len + 2 * GUARD, libc::PROT_NONE, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let base = NonNull::new(base.cast::<u8>()).expect("a mapping");
        // SAFETY: within the mapping.
        let inner = unsafe { base.add(GUARD) };
        // SAFETY: the inner pages of the mapping made above.
        let opened = unsafe {
            libc::mprotect(inner.as_ptr().cast(), len, libc::PROT_READ | libc::PROT_WRITE)
        };
        assert_eq!(opened, 0);
        // SAFETY: readable, writable, page aligned, long enough, and unmapped only by `drop`.
        let segment = unsafe { Segment::new(inner, RING_BYTES_MIN) };
        segment.initialise();
        Self { base, segment }
    }

    /// Writes like somebody else who has the segment mapped.
    fn scribble(&self, random: &mut Random) {
        let inner = self.segment.base();
        let tail = self.segment.half(0).producer.tail.load(core::sync::atomic::Ordering::Relaxed);
        let at = match random.below(4) {
            // Around the cursors, in the control page, in the ring at the tail, anywhere.
            0 => {
                let lines = self.segment.half(0);
                let field = *random.pick(&[
                    (&raw const lines.producer.tail) as usize,
                    (&raw const lines.consumer.head) as usize,
                    (&raw const lines.consumer.read) as usize,
                ]);
                field - inner.as_ptr() as usize
            }
            1 => random.below(CONTROL_BYTES as u64 / 8) as usize * 8,
            2 => {
                let ring = u64::from(RING_BYTES_MIN);
                let behind = random.below(64) * 16;
                CONTROL_BYTES + ((tail.wrapping_sub(behind) % ring) as usize & !7)
            }
            _ => random.below(segment_bytes(RING_BYTES_MIN) as u64 / 8) as usize * 8,
        };
        let value = random.evil(tail);
        // SAFETY: at + 8 is within the segment: every choice above is a multiple of 8 below its end.
        unsafe { inner.add(at).cast::<u64>().write_volatile(value) };
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; its segment goes with it.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), segment_bytes(RING_BYTES_MIN) + 2 * GUARD);
        }
    }
}

struct Source<'a>(&'a [u8]);

impl Gather for Source<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn copy_to(&mut self, offset: usize, dst: &[Cell<u8>]) {
        for (to, from) in dst.iter().zip(self.0.iter().skip(offset)) {
            to.set(*from);
        }
    }
}

struct Landing(Vec<u8>, usize);

impl Scatter for Landing {
    fn room(&self) -> usize {
        self.1 - self.0.len()
    }
    fn accept(&mut self, src: &[Cell<u8>]) {
        assert!(src.len() <= self.room(), "more bytes than asked for");
        self.0.extend(src.iter().map(Cell::get));
    }
}

fn post(
    tx: &mut ShmTx,
    random: &mut Random,
    header: &[u8],
    payload: &[u8],
) -> Result<(), PostError> {
    let options = SendOptions { control: random.once_in(8), ..SendOptions::default() };
    tx.post_send(WorkId(0), header, &mut Source(payload), options)
}

/// `most`: bytes of the longest message.
fn random_message(random: &mut Random, most: usize) -> (Vec<u8>, Vec<u8>) {
    let header = {
        let mut bytes = random.bytes(HEADER_MAX as u64);
        bytes.push(0);
        bytes
    };
    let bound = *random.pick(&[64, 64, 4096, (most - HEADER_MAX) as u64]);
    (header, random.bytes(bound))
}

fn copy(rx: &ShmRx, message: Received, offset: u32, len: u32) -> Vec<u8> {
    let mut landing = Landing(Vec::new(), len as usize);
    rx.copy_out(message, offset, len, &mut landing);
    landing.0
}

/// Nobody lies: every message comes out whole, once, in order, whatever is released when.
pub fn round(random: &mut Random) {
    let fenced = Fenced::new();
    let (mut tx, mut rx) =
        (ShmTx::new(fenced.segment, 0, 0, 0), ShmRx::new(fenced.segment, 0, 0, 0));
    let mut sent: VecDeque<Vec<u8>> = VecDeque::new();
    let mut unreleased: Vec<Received> = Vec::new();
    for _ in 0..STEPS {
        match random.below(8) {
            0..=3 => {
                let (header, payload) = random_message(random, tx.max_message());
                tx.refresh().expect("an honest consumer");
                match post(&mut tx, random, &header, &payload) {
                    Ok(()) => sent.push_back([header, payload].concat()),
                    Err(PostError::Full) => {}
                    Err(error) => panic!("{error:?}"),
                }
                if random.once_in(2) {
                    tx.publish();
                }
            }
            4..=6 => {
                let Some(message) = rx.poll_receive().expect("an honest producer") else {
                    continue;
                };
                let expected = sent.pop_front().expect("a message that was never sent");
                assert_eq!(message.len as usize, expected.len());
                assert_eq!(copy(&rx, message, 0, message.len), expected);
                let cut = random.below(u64::from(message.len) + 1) as u32;
                assert_eq!(copy(&rx, message, cut, message.len - cut), expected[cut as usize..]);
                unreleased.push(message);
                // Released late, and not always in order.
                while unreleased.len() > random.below(4) as usize {
                    let at = random.below(unreleased.len() as u64) as usize;
                    rx.release(unreleased.swap_remove(at));
                }
            }
            _ => {
                // Somebody else of the family goes on where this process stopped.
                let (tail, head) = tx.cursors();
                tx.publish();
                tx = ShmTx::new(fenced.segment, 0, tail, head);
                if unreleased.is_empty() {
                    let (scan, head) = rx.cursors();
                    rx = ShmRx::new(fenced.segment, 0, scan, head);
                }
            }
        }
    }
    tx.publish();
    let mut left = 0;
    while rx.poll_receive().expect("an honest producer").is_some() {
        left += 1;
    }
    assert_eq!(left, sent.len(), "messages were lost or invented");
}

/// Somebody writes anything anywhere. Errors are fine, and so is wrong payload.
pub fn hostile_round(random: &mut Random) {
    let fenced = Fenced::new();
    let start = random.evil(0) & !15;
    let lines = fenced.segment.half(0);
    lines.producer.tail.store(start, core::sync::atomic::Ordering::Relaxed);
    lines.consumer.head.store(start, core::sync::atomic::Ordering::Relaxed);
    let mut tx = ShmTx::new(fenced.segment, 0, start, start);
    let mut rx = ShmRx::new(fenced.segment, 0, start, start);
    for _ in 0..STEPS {
        match random.below(6) {
            0 | 1 => fenced.scribble(random),
            2 | 3 => {
                let (header, payload) = random_message(random, tx.max_message());
                let _ = tx.refresh();
                let _ = post(&mut tx, random, &header, &payload);
                tx.publish();
                assert!(tx.room() <= RING_BYTES_MIN as usize);
            }
            _ => {
                let mut records = 0;
                while let Ok(Some(message)) = rx.poll_receive() {
                    records += 1;
                    assert!(records <= RECORDS_MAX, "an endless ring");
                    assert!(message.len <= RING_BYTES_MIN, "longer than the ring");
                    let mut first = [0u8; 56];
                    let got = rx.copy_header(message, &mut first);
                    assert!(got <= first.len() && got <= message.len as usize);
                    let offset = random.below(u64::from(message.len) + 1) as u32;
                    let bytes = copy(&rx, message, offset, message.len - offset);
                    assert_eq!(bytes.len(), (message.len - offset) as usize);
                    if offset < message.len {
                        let piece = rx.piece(message, offset);
                        assert!(piece.len() <= (message.len - offset) as usize);
                        let _ = piece.iter().map(|byte| byte.get()).max(); // the fence would tell
                    }
                    if !random.once_in(5) {
                        rx.release(message);
                    }
                }
            }
        }
        if random.once_in(50) {
            // A fresh view at cursors that passed the check of the layer above.
            let tail = random.evil(start) & !15;
            let head = tail.wrapping_sub(random.below(u64::from(RING_BYTES_MIN) / 16) * 16);
            tx = ShmTx::new(fenced.segment, 0, tail, head);
            rx = ShmRx::new(fenced.segment, 0, head, head);
        }
    }
}
