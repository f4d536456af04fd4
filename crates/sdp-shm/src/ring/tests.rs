//! What a producer and a consumer promise each other, and what a forger can do.

use core::{cell::Cell, ptr::NonNull, sync::atomic::Ordering};
use std::{collections::VecDeque, vec, vec::Vec};

use super::*;
use crate::layout::{CONTROL_BYTES, segment_bytes};

const RING: u32 = 64 * 1024;
/// Miri takes a thousand times as long.
const LESS: u64 = if cfg!(miri) { 40 } else { 1 };

fn segment() -> Segment {
    let layout = std::alloc::Layout::from_size_align(segment_bytes(RING), 4096).unwrap();
    // SAFETY: non-zero size; leaked, so it outlives every copy.
    let base = unsafe { std::alloc::alloc_zeroed(layout) };
    // SAFETY: just allocated with the size and alignment asked for; RING is a ring size.
    let segment = unsafe { Segment::new(NonNull::new(base).unwrap(), RING) };
    segment.initialise();
    segment
}

fn push(p: &mut Producer, header: &[u8], payload: &[u8], control: bool) -> Result<(), PushError> {
    p.push(header, payload.len(), control, |offset, cells| {
        for (cell, byte) in cells.iter().zip(&payload[offset..]) {
            cell.set(*byte);
        }
    })
}

fn read_all(c: &Consumer, r: Record) -> Vec<u8> {
    let mut out = Vec::new();
    c.read(r, 0, r.len, |cells| out.extend(cells.iter().map(Cell::get)));
    out
}

/// Small deterministic generator.
struct Rng(u64);
impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn random_traffic_against_an_oracle() {
    for seed in 1..=(40 / LESS) {
        let s = segment();
        let (mut p, mut c) = (Producer::new(s, 0, 0, 0), Consumer::new(s, 0, 0, 0));
        let mut oracle: VecDeque<Vec<u8>> = VecDeque::new();
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut counter = 0u8;
        for _ in 0..4000 / LESS {
            if rng.below(2) == 0 {
                let len = match rng.below(4) {
                    0 => 0,
                    1 => rng.below(64),
                    2 => rng.below(2000),
                    _ => rng.below(16_384),
                } as usize;
                counter = counter.wrapping_add(1);
                let header = [counter; 16];
                let payload: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(counter)).collect();
                match push(&mut p, &header, &payload, false) {
                    Ok(()) => {
                        p.publish();
                        oracle.push_back([&header[..], &payload].concat());
                    }
                    Err(PushError::Full) => assert!(!oracle.is_empty(), "full but empty"),
                    Err(e) => panic!("seed {seed}: {e:?}"),
                }
            } else {
                match (c.next(u64::MAX).unwrap(), oracle.pop_front()) {
                    (Some(r), Some(want)) => {
                        assert_eq!(read_all(&c, r), want, "seed {seed}");
                        c.free_to(r.end());
                    }
                    (None, None) => {}
                    (got, want) => panic!("seed {seed}: {got:?} against {want:?}"),
                }
            }
        }
    }
}

#[test]
fn small_traffic_stays_in_the_first_page() {
    let s = segment();
    let (mut p, mut c) = (Producer::new(s, 1, 0, 0), Consumer::new(s, 1, 0, 0));
    for _ in 0..5000 / LESS {
        push(&mut p, &[7; 16], &[1; 64], false).unwrap();
        p.publish();
        let r = c.next(u64::MAX).unwrap().unwrap();
        c.free_to(r.end());
    }
    // SAFETY: within the segment allocated above.
    let beyond = unsafe {
        let ring = s.base().as_ptr().add(CONTROL_BYTES + RING as usize);
        core::slice::from_raw_parts(ring.add(4096), RING as usize - 4096 - 16)
    };
    // Only the PAD header, written where the lap was left, may lie in the first page.
    assert!(beyond.iter().all(|b| *b == 0));
}

#[test]
fn control_has_room_when_data_has_none() {
    let s = segment();
    let mut p = Producer::new(s, 0, 0, 0);
    while push(&mut p, &[0; 16], &[0; 4096], false).is_ok() {}
    while push(&mut p, &[0; 16], &[], false).is_ok() {}
    assert_eq!(push(&mut p, &[0; 16], &[], false), Err(PushError::Full));
    let mut control = 0;
    while push(&mut p, &[0; 52], &[], true).is_ok() {
        control += 1;
    }
    assert!(control >= 16, "{control}");
}

#[test]
fn room_is_what_push_accepts() {
    let s = segment();
    let (mut p, mut c) = (Producer::new(s, 0, 0, 0), Consumer::new(s, 0, 0, 0));
    let mut rng = Rng(99);
    for _ in 0..2000 / LESS {
        let room = p.room();
        let len = room.saturating_sub(16).min(16_384);
        if room >= 16 {
            let len = rng.below(len as u64 + 1) as usize;
            assert_eq!(
                push(&mut p, &[0; 16], &vec![0; len], false),
                Ok(()),
                "room {room} len {len}"
            );
            p.publish();
        }
        if rng.below(3) == 0 {
            while let Some(r) = c.next(u64::MAX).unwrap() {
                c.free_to(r.end());
            }
            p.refresh().unwrap();
        }
    }
}

#[test]
fn a_limit_hides_what_lies_behind_it() {
    let s = segment();
    let (mut p, mut c) = (Producer::new(s, 0, 0, 0), Consumer::new(s, 0, 0, 0));
    push(&mut p, &[0; 16], b"before", false).unwrap();
    let limit = p.tail();
    push(&mut p, &[0; 16], b"behind", false).unwrap();
    p.publish();
    assert!(c.next(limit).unwrap().is_some());
    assert!(c.next(limit).unwrap().is_none());
    assert!(c.next(u64::MAX).unwrap().is_some());
}

#[test]
fn forged_cursors_are_corrupt() {
    let s = segment();
    let (mut p, mut c) = (Producer::new(s, 0, 0, 0), Consumer::new(s, 0, 0, 0));
    push(&mut p, &[0; 16], b"x", false).unwrap();
    p.publish();
    let honest = p.tail();
    for forged in [1, honest + 8, u64::from(RING) + 16, !15, 1 << 40] {
        s.half(0).producer.tail.store(forged, Ordering::Relaxed);
        assert_eq!(c.next(u64::MAX), Err(Corrupt::Cursor), "tail {forged}");
    }
    s.half(0).producer.tail.store(honest, Ordering::Relaxed);
    assert!(c.next(u64::MAX).unwrap().is_some());
    s.half(0).producer.tail.store(0, Ordering::Relaxed);
    assert_eq!(c.next(u64::MAX), Err(Corrupt::Cursor), "backwards");
    for forged in [honest + 16, 8, !15] {
        s.half(0).consumer.head.store(forged, Ordering::Relaxed);
        assert_eq!(p.refresh(), Err(Corrupt::Cursor), "head {forged}");
    }
}

#[test]
fn forged_record_headers_are_corrupt() {
    for (len, kind) in
        [(u32::MAX, 1), (4096, 1), (25, 1), (0, 0), (0, 3), (0, 2), (RING - 8, 2), (8, u32::MAX)]
    {
        let s = segment();
        let (mut p, mut c) = (Producer::new(s, 0, 0, 0), Consumer::new(s, 0, 0, 0));
        push(&mut p, &[0; 16], &[], false).unwrap();
        p.publish();
        p.write_record_header(0, len, kind);
        assert_eq!(c.next(u64::MAX), Err(Corrupt::Record), "{len} {kind}");
    }
}

#[test]
fn random_garbage_never_escapes_the_ring() {
    let mut rng = Rng(4711);
    for _ in 0..300 / LESS {
        let s = segment();
        for i in 0..segment_bytes(RING) / 8 {
            if rng.below(3) == 0 {
                // SAFETY: within the segment.
                unsafe { s.base().as_ptr().cast::<u64>().add(i).write(rng.below(u64::MAX)) };
            }
        }
        let tail = rng.below(u64::from(RING)) & !15;
        s.half(0).producer.tail.store(tail, Ordering::Relaxed);
        let mut c = Consumer::new(s, 0, 0, 0);
        for _ in 0..100 {
            match c.next(u64::MAX) {
                Ok(Some(r)) => {
                    assert!(u64::from(r.len) <= tail);
                    let n = read_all(&c, r).len();
                    assert_eq!(n, r.len as usize);
                    c.free_to(r.end());
                }
                _ => break,
            }
        }
    }
}

#[test]
fn a_pad_skipped_under_a_borrowed_record_is_freed_with_it() {
    let s = segment();
    let (mut p, mut c) = (Producer::new(s, 0, 0, 0), Consumer::new(s, 0, 0, 0));
    // Fill to just before the end of the lap, keeping the last record borrowed.
    let mut last = None;
    while u64::from(RING) - (p.tail() & (u64::from(RING) - 1)) >= 64 {
        let left = u64::from(RING) - p.tail();
        push(&mut p, &[0; 16], &vec![0; (left as usize - 24 - 48).min(4096)], false).unwrap();
        p.publish();
        if let Some(r) = last {
            c.free_to(Record::end(r));
        }
        last = c.next(u64::MAX).unwrap();
    }
    push(&mut p, &[0; 16], b"next lap", false).unwrap();
    p.publish();
    let next = c.next(u64::MAX).unwrap().unwrap();
    assert_eq!(next.start, u64::from(RING));
    c.free_to(last.unwrap().end());
    assert_eq!(c.head(), next.start);
    c.free_to(next.end());
    assert_eq!(c.head(), p.tail());
}
