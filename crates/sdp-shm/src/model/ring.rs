//! Ring: bytes that are read were published, bytes that are overwritten were freed, also around the
//! end of the lap.

use std::{cell::Cell, ptr::NonNull, sync::Arc};

use loom::thread;

use super::{Remembered, twins};
use crate::{
    layout::{CONTROL_BYTES, Control, Segment},
    ring::{Consumer, Producer, PushError, fast_record, origin, read_record},
};

const RING: u32 = 4096;

/// A segment: loom's atomics in its control page, plain memory behind that.
struct World {
    #[allow(dead_code, reason = "keeps the memory")]
    memory: Box<Memory>,
    segment: Segment,
    published: Remembered,
    freed: Remembered,
}

#[repr(C, align(4096))]
struct Memory {
    control: Control,
    rest: [u8; CONTROL_BYTES + 2 * RING as usize - size_of::<Control>()],
}

impl World {
    fn new(at: u64) -> Arc<Self> {
        super::stand_in::begin(RING as usize);
        // In place: the stacks of a model's threads are small.
        let mut memory = Box::<Memory>::new_uninit();
        // SAFETY: the control page is written, and any bytes are a ring.
        let mut memory = unsafe {
            memory.as_mut_ptr().cast::<u8>().write_bytes(0, size_of::<Memory>());
            (&raw mut (*memory.as_mut_ptr()).control).write(Control::default());
            memory.assume_init()
        };
        // SAFETY: as long as a segment with this ring; the box lives as long as the world, which every
        // thread of the model holds. The ring is smaller than a real one, which only its users check.
        let segment = unsafe { Segment::new(NonNull::from(&mut *memory).cast(), RING) };
        segment.half(0).producer.tail.store(at, std::sync::atomic::Ordering::Relaxed);
        segment.half(0).consumer.head.store(at, std::sync::atomic::Ordering::Relaxed);
        let (published, freed) = (Remembered::new(), Remembered::new());
        Arc::new(Self { memory, segment, published, freed })
    }
}

fn push(producer: &mut Producer, value: u8, len: usize) -> Result<(), PushError> {
    producer.push(&[value], len, false, |_, cells| {
        for cell in cells {
            cell.set(value);
        }
    })
}

/// Sends `lens` and receives them, beginning at ring cursor `at`.
fn traffic(at: u64, lens: &'static [usize]) {
    let world = World::new(at);
    let consumer = {
        let world = world.clone();
        thread::spawn(move || {
            let mut consumer = Consumer::new(world.segment, 0, at, at);
            for (value, len) in lens.iter().enumerate() {
                let record = loop {
                    match consumer.next(u64::MAX).expect("sound") {
                        Some(record) => break record,
                        None => world.published.sleep(),
                    }
                };
                assert_eq!(record.len as usize, len + 1);
                consumer.read(record, 0, record.len, |cells| {
                    assert!(cells.iter().map(Cell::get).all(|byte| byte == value as u8));
                });
                consumer.free_to(record.end());
                world.freed.ring();
            }
        })
    };
    let mut producer = Producer::new(world.segment, 0, at, at);
    for (value, len) in lens.iter().enumerate() {
        while let Err(error) = push(&mut producer, value as u8, *len) {
            assert_eq!(error, PushError::Full);
            world.freed.sleep();
        }
        producer.publish();
        world.published.ring();
    }
    consumer.join().expect("all came");
}

#[test]
fn readers_see_what_was_published() {
    twins("ring", 3, &[("ring.rs", "")], &[], || traffic(0, &[1500, 1400, 1500]));
}

/// The shorter way of common messages, at both ends.
fn fast_traffic(at: u64, lens: &'static [usize]) {
    let world = World::new(at);
    let consumer = {
        let world = world.clone();
        thread::spawn(move || {
            let mut consumer = Consumer::new(world.segment, 0, at, at);
            for (value, len) in lens.iter().enumerate() {
                let record = loop {
                    match consumer.next(u64::MAX).expect("sound") {
                        Some(record) => break record,
                        None => world.published.sleep(),
                    }
                };
                let zero = origin(world.segment, 0);
                let fast = fast_record(world.segment, 0, zero, record.start, record.end());
                let fast = fast.expect("a fast one");
                assert_eq!((fast.record, fast.header), (record, [value as u64, 7]));
                read_record(world.segment, 0, zero, record, 16, *len as u32, |cells| {
                    assert!(cells.iter().map(Cell::get).all(|byte| byte == value as u8));
                });
                consumer.free_to(record.end());
                world.freed.ring();
            }
        })
    };
    let mut producer = Producer::new(world.segment, 0, at, at);
    for (value, len) in lens.iter().enumerate() {
        let fill = |cells: &[Cell<u8>]| cells.iter().for_each(|cell| cell.set(value as u8));
        while !producer.push_fast([value as u64, 7], *len, fill) {
            let mut header = [0; 16];
            header[0] = value as u8;
            header[8] = 7;
            // No room, or the end of the lap, which the longer way deals with.
            match producer.push(&header, *len, false, |_, cells| fill(cells)) {
                Ok(()) => break,
                Err(error) => assert_eq!(error, PushError::Full),
            }
            world.freed.sleep();
        }
        producer.publish();
        world.published.ring();
    }
    consumer.join().expect("all came");
}

#[test]
fn fast_records() {
    super::holds("ring, fast records", || fast_traffic(0, &[1400, 1400, 1400]));
    super::holds("ring, fast records, restart", || fast_traffic(3072, &[100, 500, 20]));
}

#[test]
fn the_end_of_the_lap() {
    super::holds("ring, a record that wraps", || traffic(4096 - 64, &[100, 20]));
    super::holds("ring, padding at the end of the lap", || traffic(4096 - 32, &[100, 20]));
    super::holds("ring, restart at the first page", || traffic(3072, &[20, 20, 20]));
}
