//! The promises of a producer and a consumer to each other, and the reach of a forger.

use core::{cell::Cell, sync::atomic::Ordering};
use std::{collections::VecDeque, vec, vec::Vec};

use super::*;
use crate::layout::{CONTROL_BYTES, segment_bytes};

const RING: u32 = 64 * 1024;
/// Miri takes a thousand times as long.
const LESS: u64 = if cfg!(miri) { 40 } else { 1 };

fn segment() -> Segment {
    // SAFETY: zeros of this size, aligned to a page; leaked, so that they outlive every copy; RING is a ring size.
    let segment = unsafe { Segment::new(crate::leaked(segment_bytes(RING)), RING) };
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

#[test]
fn idle_pages_hold_no_live_byte() {
    let s = segment();
    let size = u64::from(RING);
    let mut rng = Rng(7);
    for _ in 0..20_000 {
        let used = match rng.below(4) {
            0 => 0,
            1 => size,
            2 => rng.below(200) * 16,
            _ => rng.below(size / 16) * 16,
        };
        let head = rng.below(1 << 20) * 16;
        let tail = head + used;
        let p = Producer::new(s, 0, tail, head);
        let mut idle = vec![false; (size / PAGE) as usize];
        for (from, len) in p.idle_pages() {
            assert!(from % PAGE == 0 && len % PAGE == 0 && from + len <= size);
            for page in from / PAGE..(from + len) / PAGE {
                assert!(!idle[page as usize], "twice");
                idle[page as usize] = true;
            }
        }
        assert!(!idle[0], "the first page is kept");
        let mut live = vec![false; idle.len()];
        for at in (head..tail).step_by(16) {
            live[((at & (size - 1)) / PAGE) as usize] = true;
        }
        for page in 1..idle.len() {
            // A page beside the live part may be kept, all others go; none that is live.
            assert!(!(idle[page] && live[page]), "head {head} tail {tail} page {page}");
        }
        let kept = idle.iter().zip(&live).filter(|(idle, live)| !**idle && !**live).count();
        assert!(kept <= 1, "head {head} tail {tail}: {kept} free pages kept");
        if used == 0 {
            assert_eq!(idle.iter().filter(|i| **i).count(), idle.len() - 1);
        }
    }
    assert_eq!(Producer::new(s, 0, 0, 0).at(size), None);
}

#[test]
fn plain_records_are_records() {
    for seed in 1..30u64 {
        let s = segment();
        let mut p = Producer::new(s, 0, 0, 0);
        let mut head = 0u64;
        let mut oracle: VecDeque<([u64; 2], Vec<u8>)> = VecDeque::new();
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (mut pushed_fast, mut found_fast) = (0, 0);
        for n in 0..4000u64 {
            if rng.below(2) == 0 {
                let len = if rng.below(4) == 0 { rng.below(9000) } else { rng.below(200) } as usize;
                let payload: Vec<u8> = (0..len).map(|i| (i as u64 ^ n) as u8).collect();
                let header = [n, !n];
                let [low, high] = header.map(u64::to_le_bytes);
                let bytes = [low, high].concat();
                let before = (p.tail(), p.free());
                let pushed = p.push_fast(header, len, |cells| {
                    assert_eq!(cells.len(), len);
                    for (cell, byte) in cells.iter().zip(&payload) {
                        cell.set(*byte);
                    }
                });
                if pushed {
                    pushed_fast += 1;
                } else {
                    assert_eq!(p.tail(), before.0, "nothing was written");
                    if push(&mut p, &bytes, &payload, false) == Err(PushError::Full) {
                        continue;
                    }
                }
                p.publish();
                oracle.push_back((header, payload));
            } else {
                let tail = s.half(0).producer.tail.load(Ordering::Relaxed);
                let mut c = Consumer::new(s, 0, head, head);
                let record = c.next(u64::MAX).expect("sound");
                assert_eq!(record.is_none(), oracle.is_empty());
                let zero = origin(s, 0);
                let fast = if head == tail { None } else { fast_record(s, 0, zero, head, tail) };
                let Some(record) = record else { continue };
                let (header, payload) = oracle.pop_front().expect("published");
                if let Some(fast) = fast {
                    found_fast += 1;
                    assert_eq!((fast.record, fast.header), (record, header));
                }
                let mut read = Vec::new();
                let (first, rest) = (record.len.min(20), record.len.saturating_sub(20));
                read_record(s, 0, zero, record, 0, first, |cells| {
                    read.extend(cells.iter().map(Cell::get))
                });
                read_record(s, 0, zero, record, 20, rest, |cells| {
                    read.extend(cells.iter().map(Cell::get))
                });
                let [low, high] = header.map(u64::to_le_bytes);
                assert_eq!(read, [&low[..], &high[..], &payload[..]].concat());
                c.free_to(record.end());
                head = c.head();
            }
        }
        assert!(pushed_fast > 500 && found_fast > 500, "{pushed_fast} {found_fast}");
    }
}

#[test]
fn what_is_not_a_whole_message_is_no_plain_record() {
    let s = segment();
    let mut p = Producer::new(s, 0, 0, 0);
    assert!(p.push_fast([1, 2], 100, |_| {}));
    let end = p.tail();
    assert!(fast_record(s, 0, 0, 0, end).is_some());
    assert!(fast_record(s, 0, 0, 0, end - 16).is_none(), "not published to its end");
    for (len, kind) in [(116u64, 0u64), (116, KIND_PAD.into()), (116, 3), (15, 1), (1 << 31, 1)] {
        let word = s.ring(0).cast::<AtomicU64>();
        // SAFETY: the ring is mapped and aligned.
        unsafe { word.as_ref() }.store(len | kind << 32, Ordering::Relaxed);
        assert!(fast_record(s, 0, 0, 0, end).is_none(), "length {len}, kind {kind}");
    }
    let near_the_end = u64::from(RING) - 48;
    assert!(fast_record(s, 0, 0, near_the_end, near_the_end + 1000).is_none());
}

#[test]
fn a_fast_push_restarts_and_leaves_padding_to_the_slow_path() {
    let s = segment();
    let late = u64::from(RING) - 64;
    s.half(0).consumer.head.store(late - 128, Ordering::Relaxed);
    let mut p = Producer::new(s, 0, late, late - 128);
    assert!(!p.push_fast([0; 2], 100, |_| {}), "a message that wraps");
    assert!(p.push_fast([0; 2], 40, |_| {}), "one that just fits");
    s.half(0).consumer.head.store(late, Ordering::Relaxed);
    let mut p = Producer::new(s, 0, late, late - 128);
    assert!(p.push_fast([0; 2], 4000, |_| {}), "an empty ring restarts");
    assert_eq!((p.origin(), p.tail(), origin(s, 0)), (late, late + 4032, late));
    p.publish();
    s.half(0).consumer.head.store(p.tail(), Ordering::Relaxed);
    assert!(p.push_fast([0; 2], 16_000, |_| {}), "not for a large one");
    assert_eq!((p.origin(), p.tail()), (late, late + 4032 + 16_032));
}

/// A reader keeps up, and then does not come back for a while: the writer has the whole ring before
/// it, wherever in the lap that is, and messages that it writes one at a time stay in the ring's
/// first pages.
#[test]
fn a_restart_costs_no_room() {
    for len in [40, 1000, 3000, 16_384] {
        let s = segment();
        let (mut p, mut c) = (Producer::new(s, 0, 0, 0), Consumer::new(s, 0, 0, 0));
        let payload = vec![7u8; len];
        let need = record_bytes(PLAIN_HEADER + len) as u64;
        for n in 0..300 {
            push(&mut p, &[0; PLAIN_HEADER], &payload, false).unwrap();
            p.publish();
            let is_small = need <= RESTART_RECORD_MAX;
            assert!(!is_small || p.tail() == need * (n + 1), "no padding");
            p.refresh().unwrap();
            assert!(p.free() >= u64::from(RING) - need - CONTIGUOUS as u64);
            let index = p.tail() - p.origin();
            assert!(need > RESTART_RECORD_MAX || index <= RESTART_INDEX + RESTART_EVERY + need);
            let record = c.next(u64::MAX).unwrap().unwrap();
            assert_eq!(read_all(&c, record)[PLAIN_HEADER..], payload);
            c.free_to(record.end());
        }
        assert_eq!(p.origin() != 0, need <= RESTART_RECORD_MAX);
        let mut sent = 0;
        while push(&mut p, &[0; PLAIN_HEADER], &payload, false).is_ok() {
            sent += 1;
        }
        p.publish();
        let fit = (u64::from(RING) - CONTROL_RESERVE - CONTIGUOUS as u64) / need;
        assert!(sent >= fit, "{sent} of {fit}");
        for _ in 0..sent {
            let record = c.next(u64::MAX).unwrap().unwrap();
            assert_eq!(read_all(&c, record)[PLAIN_HEADER..], payload);
            c.free_to(record.end());
        }
    }
}

/// A consumer that resumes from stored cursors, in the middle of a message too, finds the origin that its
/// message was written with.
#[test]
fn who_goes_on_finds_the_origin() {
    let s = segment();
    let (mut p, mut c) = (Producer::new(s, 0, 0, 0), Consumer::new(s, 0, 0, 0));
    for n in 0..50u8 {
        push(&mut p, &[n; PLAIN_HEADER], &[n; 5000], false).unwrap();
        p.publish();
        let record = c.next(u64::MAX).unwrap().unwrap();
        let resumed = Consumer::new(s, 0, record.end(), record.start);
        assert_eq!(read_all(&resumed, record), [n; 5016]);
        c.free_to(record.end());
        c = Consumer::new(s, 0, c.scan(), c.head());
        p = Producer::new(s, 0, p.tail(), p.seen_head());
    }
}

#[test]
fn a_forged_origin_is_corrupt() {
    let s = segment();
    let (mut p, mut c) = (Producer::new(s, 0, 0, 0), Consumer::new(s, 0, 0, 0));
    for _ in 0..3 {
        push(&mut p, &[1; 16], &[1; 100], false).unwrap();
        p.publish();
        let record = c.next(u64::MAX).unwrap().unwrap();
        c.free_to(record.end());
    }
    push(&mut p, &[1; 16], &[1; 100], false).unwrap();
    p.publish();
    // Some of them lead to the very index where the record is.
    for forged in [8, !7, c.head() + 16, 1 << 40, !15, !0] {
        s.half(0).producer.origin.store(forged, Ordering::Relaxed);
        // One that was there before, and one that is made for the call, as each call of a program does.
        for mut c in [c, Consumer::new(s, 0, c.scan(), c.head())] {
            for _ in 0..2 {
                assert_eq!(c.next(u64::MAX), Err(Corrupt::Cursor), "origin {forged}");
            }
        }
        // The producer's own end is forged, too: it writes somewhere in the ring.
        let mut p = Producer::new(s, 0, p.tail(), p.seen_head());
        push(&mut p, &[1; 16], &[1; 9000], false).unwrap();
        let _ = p.push_fast([0; 2], 9000, |_| {});
        for (from, len) in p.idle_pages() {
            assert!(from + len <= u64::from(RING));
        }
    }
}
