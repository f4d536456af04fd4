//! Giving memory back under traffic: a real sealed memory file, mapped twice as two processes have it.

use std::{cell::Cell, thread};

use sdp_fabric_shm::{
    endpoint::{Reclaimed, ShmRx, ShmTx},
    segment::MappedSegment,
};
use sdp_rdma::fabric::{Gather, PostError, QpError, ReceiveQueue, Scatter, SendOptions, SendQueue};
use sdp_rdma::work::WorkId;
use sdp_shm::layout::Segment;
use sdp_sys::OwnedFd;

const RING: u32 = 64 * 1024;
const PAGE: u64 = 4096;

/// One file, two mappings, which stay until the process ends.
fn segments(ring_bytes: u32) -> (OwnedFd, [Segment; 2]) {
    let (first, fd) = MappedSegment::create(ring_bytes).unwrap();
    let second = MappedSegment::from_peer(fd.raw(), ring_bytes).unwrap();
    // SAFETY: sealed mappings of the right size that are never unmapped.
    let view = |m: &MappedSegment| unsafe { Segment::new(m.base(), ring_bytes) };
    let both = [view(&first), view(&second)];
    (fd, both)
}

/// Bytes of memory that the file holds.
fn held(fd: &OwnedFd) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(
        &std::fs::metadata(format!("/proc/self/fd/{}", fd.raw())).unwrap(),
    ) * 512
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

struct Bytes(Vec<u8>);

impl Gather for Bytes {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_to(&mut self, offset: usize, to: &[Cell<u8>]) {
        for (cell, byte) in to.iter().zip(&self.0[offset..]) {
            cell.set(*byte);
        }
    }
}

struct Landed(Vec<u8>);

impl Scatter for Landed {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn accept(&mut self, from: &[Cell<u8>]) {
        self.0.extend(from.iter().map(Cell::get));
    }
}

/// Message `number` of the stream, never zero anywhere.
fn message(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i as u64 ^ number.wrapping_mul(31)) as u8) | 1).collect()
}

fn post(tx: &mut ShmTx, payload: Vec<u8>) -> Result<(), PostError> {
    let done = tx.post_send(WorkId(0), &[7; 16], &mut Bytes(payload), SendOptions::default());
    tx.publish();
    done
}

#[test]
fn nothing_is_lost_while_pages_are_given_back() {
    const MESSAGES: u64 = 20_000;
    let (_fd, [ours, theirs]) = segments(RING);
    let reader = thread::spawn(move || {
        let mut rx = ShmRx::new(theirs, 0, 0, 0);
        let (mut number, mut rng) = (0, Rng(11));
        while number < MESSAGES {
            let Some(received) = rx.poll_receive().unwrap() else {
                thread::yield_now();
                continue;
            };
            let mut landed = Landed(Vec::new());
            rx.copy_out(received, 16, received.len - 16, &mut landed);
            let want = message(number, landed.0.len());
            assert_eq!(landed.0, want, "message {number}");
            rx.release(received);
            number += 1;
            if rng.below(500) == 0 {
                thread::yield_now(); // lets it fill up
            }
        }
    });
    let mut tx = ShmTx::new(ours, 0, 0, 0);
    let mut rng = Rng(5);
    let mut given = 0;
    for number in 0..MESSAGES {
        let len = if rng.below(3) == 0 { rng.below(9000) } else { rng.below(200) } as usize;
        while post(&mut tx, message(number, len)) == Err(PostError::Full) {
            thread::yield_now();
        }
        if rng.below(20) == 0 {
            match tx.reclaim(0).unwrap() {
                Reclaimed::Bytes(n) => given += n,
                Reclaimed::Refused => panic!("refused"),
            }
        }
    }
    reader.join().unwrap();
    assert!(given > 0);
}

#[test]
fn what_was_touched_goes_but_the_first_page_and_live_bytes() {
    let (fd, [ours, theirs]) = segments(RING);
    ours.initialise();
    let mut tx = ShmTx::new(ours, 0, 0, 0);
    let mut rx = ShmRx::new(theirs, 0, 0, 0);
    for number in 0..3 {
        post(&mut tx, message(number, 16_000)).unwrap();
    }
    let before = held(&fd);
    assert!(before >= PAGE + 3 * 16_000, "{before}");
    // Unread: only the rest of the ring could go, and it was never touched.
    tx.reclaim(0).unwrap();
    assert_eq!(held(&fd), before);
    let first = rx.poll_receive().unwrap().unwrap();
    rx.release(first);
    tx.reclaim(0).unwrap();
    let after = held(&fd);
    assert!(after < before && after >= PAGE + 2 * 16_000, "{before} {after}");
    for number in 1..3 {
        let next = rx.poll_receive().unwrap().unwrap();
        let mut landed = Landed(Vec::new());
        rx.copy_out(next, 16, next.len - 16, &mut landed);
        assert_eq!(landed.0, message(number, 16_000));
        rx.release(next);
    }
    tx.reclaim(0).unwrap();
    // The control page and the ring's first.
    assert_eq!(held(&fd), 2 * PAGE);
    // Beyond the part that one call looks at: nothing.
    assert_eq!(tx.reclaim(u64::from(RING)), Ok(Reclaimed::Bytes(0)));
}

#[test]
fn a_locked_mapping_refuses() {
    let (_fd, [ours, _]) = segments(RING);
    // SAFETY: the mapping exists; locking a page of it changes nothing else.
    let locked = unsafe { libc::mlock(ours.ring(0).as_ptr().cast(), 64) };
    if locked != 0 {
        return; // no right to lock memory here: nothing to see
    }
    // SAFETY: the pages that follow are of the same mapping, which nothing else writes.
    unsafe { libc::mlock(ours.ring(0).as_ptr().byte_add(4096).cast(), 4096) };
    assert_eq!(ShmTx::new(ours, 0, 0, 0).reclaim(0), Ok(Reclaimed::Refused));
}

#[test]
fn a_forged_cursor_gives_nothing_back() {
    let (fd, [ours, theirs]) = segments(RING);
    let mut tx = ShmTx::new(ours, 0, 0, 0);
    post(&mut tx, message(0, 16_000)).unwrap();
    let before = held(&fd);
    // The peer claims to have read bytes that were never sent.
    theirs.half(0).consumer.head.store(1 << 40, std::sync::atomic::Ordering::Release);
    assert_eq!(tx.reclaim(0), Err(QpError::Framing));
    assert_eq!(held(&fd), before);
}
