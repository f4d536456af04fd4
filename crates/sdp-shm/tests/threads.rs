//! A producer and a consumer in two threads: ring, arm words and doorbell page together, on the
//! machine that runs the test, and under Miri on one that reorders as much as it may.

#![cfg(not(loom))]

use std::{
    cell::Cell,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use sdp_shm::{
    arm::{self, Mode},
    doorbell::{DOORBELL_BYTES, Doorbell},
    layout::{Segment, segment_bytes},
    ring::{Consumer, Producer, PushError},
};

const RING: u32 = 64 * 1024;
const SLOT: u32 = 77;

fn zeroed(bytes: usize) -> NonNull<u8> {
    let layout = std::alloc::Layout::from_size_align(bytes, 4096).expect("valid");
    // SAFETY: non-zero size; leaked, so it outlives every copy.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory")
}

/// Stands for the eventfd: rings are remembered.
#[derive(Default)]
struct Event(AtomicU64);

impl Event {
    fn write(&self, sleeper: &thread::Thread) {
        self.0.fetch_add(1, Ordering::Release);
        sleeper.unpark();
    }

    fn sleep(&self) {
        while self.0.swap(0, Ordering::Acquire) == 0 {
            thread::park();
        }
    }
}

#[test]
fn everything_arrives_and_everybody_wakes() {
    let messages: u32 = if cfg!(miri) { 60 } else { 50_000 };
    // SAFETY: just allocated with the size and alignment asked for; RING is a ring size.
    let segment = unsafe { Segment::new(zeroed(segment_bytes(RING)), RING) };
    segment.initialise();
    // SAFETY: just allocated with the size and alignment of a page of bits; zeros are valid.
    let doorbell = unsafe { Doorbell::new(zeroed(DOORBELL_BYTES)) };
    let event = Arc::new(Event::default());
    let consumer = {
        let event = event.clone();
        thread::spawn(move || {
            let mut consumer = Consumer::new(segment, 0, 0, 0);
            let lines = segment.half(0);
            let mut expected = 0u32;
            while expected < messages {
                let Some(record) = consumer.next(u64::MAX).expect("sound") else {
                    doorbell.fall_asleep();
                    arm::arm(&lines.receive_arm.word, Mode::Doorbell);
                    if !consumer.has_news() {
                        event.sleep();
                        doorbell.take(|slot| assert_eq!(slot, SLOT));
                    }
                    doorbell.wake_up();
                    continue;
                };
                let mut got = Vec::new();
                consumer.read(record, 0, record.len, |cells| {
                    got.extend(cells.iter().map(Cell::get));
                });
                assert_eq!(got[..4], expected.to_le_bytes());
                assert!(got[4..].iter().all(|byte| *byte == expected as u8));
                consumer.free_to(record.end());
                expected += 1;
            }
        })
    };
    let mut producer = Producer::new(segment, 0, 0, 0);
    let lines = segment.half(0);
    for n in 0..messages {
        let len = (n as usize * 37) % 900;
        loop {
            let pushed = producer.push(&n.to_le_bytes(), len, false, |_, cells| {
                cells.iter().for_each(|cell| cell.set(n as u8));
            });
            match pushed {
                Ok(()) => break,
                Err(PushError::Full) => thread::yield_now(),
                Err(other) => panic!("{other:?}"),
            }
        }
        producer.publish();
        if let Some((mode, seen)) = arm::check(&lines.receive_arm.word) {
            assert_eq!(mode, Mode::Doorbell);
            if doorbell.ring(SLOT) {
                event.write(consumer.thread());
            }
            arm::disarm(&lines.receive_arm.word, seen);
        }
    }
    consumer.join().expect("all came");
}
