//! Queues, switch log, wake-ups and ends' words of a segment, as the two ends see them.
//!
//! Side 0 sends on half 0. Ends are used by one thread: the models check the order of the stores of
//! two.

use std::cell::Cell;

use sdp_fabric_shm::{
    endpoint::{ShmRx, ShmTx},
    link::{
        Broken, Ended, Holder, How, Intent, Lane, PENDING_MAX, ResetNote, ShmLink, Switch, Trust,
        TxSaved, What,
    },
};
use sdp_rdma::{
    fabric::{Gather, PostError, ReceiveQueue, Scatter, SendOptions, SendQueue},
    work::WorkId,
};
use sdp_shm::layout::{RING_BYTES_MAX, RING_BYTES_MIN, Segment, segment_bytes};
use sdp_sys::memfd;

/// A segment, mapped once for each end.
struct Ends([Segment; 2]);

impl Ends {
    fn new(ring_bytes: u32) -> Self {
        let len = segment_bytes(ring_bytes);
        let file = memfd::create_sealed(c"sdp-link", len as u64).expect("a memory file");
        let segments = [(), ()].map(|()| {
            let base = memfd::map(file.raw(), len).expect("a mapping");
            // SAFETY: the mapping is shared, readable, writable, page aligned and `len` bytes long,
            // as the ring size asks for; it is never unmapped and the file is sealed against
            // shrinking.
            unsafe { Segment::new(base, ring_bytes) }
        });
        segments[0].initialise();
        Self(segments)
    }

    fn ends(&self) -> [ShmLink; 2] {
        let [a, b] = self.0;
        [ShmLink::new(a, 0), ShmLink::new(b, 1)]
    }
}

/// Each of these functions as a test on the smallest ring, and on the largest one.
macro_rules! on_both_rings {
    ($($test:ident,)*) => {
        mod smallest_ring {
            $(#[test]
            fn $test() {
                super::$test(&super::Ends::new(super::RING_BYTES_MIN));
            })*
        }

        mod largest_ring {
            $(#[test]
            fn $test() {
                super::$test(&super::Ends::new(super::RING_BYTES_MAX));
            })*
        }
    };
}

on_both_rings! {
    nothing_is_seen_before_it_is_published,
    a_producer_goes_on_from_its_saved_numbers,
    a_consumer_goes_on_inside_a_message,
    room_returns_when_it_is_published,
    a_limit_hides_what_is_behind,
    a_message_takes_its_footprint,
    impossible_numbers_are_refused,
    entries_are_followed_in_order,
    pending_entries_are_kept,
    impossible_entries_are_found,
    a_section_is_ended_for_the_producer,
    an_unbounded_read_keeps_the_producer,
    a_gate_has_one_holder,
    trust_and_counts_arrive,
    a_late_answer_leaves_a_newer_arm_alone,
    an_end_is_seen_as_it_says,
}

const FRESH: TxSaved = TxSaved { position: 0, freed: 0, origin: 0 };
const HEADER: [u8; 16] = [0xff; 16];

struct Bytes<'a>(&'a [u8]);

impl Gather for Bytes<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn copy_to(&mut self, offset: usize, to: &[Cell<u8>]) {
        for (cell, byte) in to.iter().zip(&self.0[offset..]) {
            cell.set(*byte);
        }
    }
}

#[derive(Default)]
struct Taken(Vec<u8>);

impl Scatter for Taken {
    fn room(&self) -> usize {
        usize::MAX
    }
    fn accept(&mut self, from: &[Cell<u8>]) {
        self.0.extend(from.iter().map(Cell::get));
    }
}

fn post(tx: &mut ShmTx, payload: &[u8]) -> Result<(), PostError> {
    tx.post_send(WorkId(0), &HEADER, &mut Bytes(payload), SendOptions::default())
}

fn saved(tx: &ShmTx) -> TxSaved {
    let (position, freed) = tx.cursors();
    TxSaved { position, freed, origin: tx.origin() }
}

/// The payload of the next message, which is released.
fn take(rx: &mut ShmRx) -> Option<Vec<u8>> {
    let found = rx.poll_receive().expect("sound")?;
    let mut taken = Taken::default();
    rx.copy_out(found, HEADER.len() as u32, found.len - HEADER.len() as u32, &mut taken);
    rx.release(found);
    Some(taken.0)
}

const fn to(lane: Lane, carrier: u64, fabric: u64) -> Switch {
    Switch { carrier, fabric, to: lane }
}

/// A posted message is not visible before it is published, and visible to the other end afterwards.
fn nothing_is_seen_before_it_is_published(ends: &Ends) {
    let [a, b] = ends.ends();
    let mut tx = a.open_tx(0, FRESH).expect("fresh");
    let mut rx = b.open_rx(0, 0, 0).expect("fresh");
    post(&mut tx, b"one").expect("room");
    assert_eq!(b.half(0).position(What::Bytes), 0);
    assert_eq!(take(&mut rx), None);
    tx.publish();
    assert_eq!(b.half(0).position(What::Bytes), tx.cursors().0);
    assert_eq!(take(&mut rx).as_deref(), Some(&b"one"[..]));
    assert_eq!(take(&mut rx), None);
    assert_eq!(rx.cursors().0, tx.cursors().0, "one unit for both ends");
}

/// A cursor made from the saved numbers goes on where the one before stopped.
fn a_producer_goes_on_from_its_saved_numbers(ends: &Ends) {
    let [a, b] = ends.ends();
    let mut rx = b.open_rx(0, 0, 0).expect("fresh");
    let mut numbers = FRESH;
    for round in 0..100u8 {
        let mut tx = a.open_tx(0, numbers).expect("its own");
        tx.refresh().expect("sound");
        post(&mut tx, &[round; 700]).expect("room");
        tx.publish();
        numbers = saved(&tx);
        assert_eq!(take(&mut rx), Some(vec![round; 700]));
        rx.publish();
    }
}

/// The same for a consumer, which may stop inside a message.
fn a_consumer_goes_on_inside_a_message(ends: &Ends) {
    let [a, b] = ends.ends();
    let mut tx = a.open_tx(0, FRESH).expect("fresh");
    post(&mut tx, b"first").expect("room");
    post(&mut tx, b"second").expect("room");
    tx.publish();
    let mut rx = b.open_rx(0, 0, 0).expect("fresh");
    let found = rx.poll_receive().expect("sound").expect("a message");
    let (_, freed) = rx.cursors();
    let mut rx = b.open_rx(0, freed, found.len).expect("its own");
    let current = rx.current(found.len);
    let mut taken = Taken::default();
    rx.copy_out(current, HEADER.len() as u32 + 2, 3, &mut taken);
    assert_eq!(taken.0, b"rst");
    rx.release(current);
    let (_, freed) = rx.cursors();
    assert_ne!(freed, 0);
    rx.publish();
    let mut rx = b.open_rx(0, freed, 0).expect("its own");
    assert_eq!(take(&mut rx).as_deref(), Some(&b"second"[..]));
}

/// The producer gets released bytes after `publish`, and never bytes that an onlooker passes.
fn room_returns_when_it_is_published(ends: &Ends) {
    let [a, b] = ends.ends();
    let mut tx = a.open_tx(0, FRESH).expect("fresh");
    let mut posted = 0;
    while post(&mut tx, &[1; 1000]) == Ok(()) {
        posted += 1;
    }
    tx.publish();
    assert_eq!(post(&mut tx, &[1; 1000]), Err(PostError::Full));
    let mut rx = b.open_rx(0, 0, 0).expect("fresh");
    let mut onlooker = rx.onlooker();
    while take(&mut onlooker).is_some() {}
    tx.refresh().expect("sound");
    assert_eq!(post(&mut tx, &[1; 1000]), Err(PostError::Full));
    for _ in 0..posted {
        assert_eq!(take(&mut rx), Some(vec![1; 1000]));
    }
    assert_eq!(a.half(0).position(What::Space), 0);
    rx.publish();
    assert_eq!(a.half(0).position(What::Space), tx.cursors().0);
    assert_eq!(a.half(0).free(), a.half(0).size());
    tx.refresh().expect("sound");
    assert_eq!(tx.cursors().1, tx.cursors().0);
    assert_eq!(post(&mut tx, &[1; 1000]), Ok(()));
}

/// A section's end hides messages that lie behind it, and none before it.
fn a_limit_hides_what_is_behind(ends: &Ends) {
    let [a, b] = ends.ends();
    let mut tx = a.open_tx(0, FRESH).expect("fresh");
    post(&mut tx, b"before").expect("room");
    let (end, _) = tx.cursors();
    post(&mut tx, b"behind").expect("room");
    tx.publish();
    let mut rx = b.open_rx(0, 0, 0).expect("fresh");
    rx.set_limit(end);
    assert_eq!(take(&mut rx).as_deref(), Some(&b"before"[..]));
    assert_eq!(take(&mut rx), None);
    assert_eq!(rx.cursors().1, end);
    rx.set_limit(u64::MAX);
    assert_eq!(take(&mut rx).as_deref(), Some(&b"behind"[..]));
}

/// A message takes as many bytes as its footprint.
fn a_message_takes_its_footprint(ends: &Ends) {
    let [a, _] = ends.ends();
    let mut tx = a.open_tx(0, FRESH).expect("fresh");
    for len in [0, 1, 100, 3000] {
        let (before, _) = tx.cursors();
        post(&mut tx, &vec![0; len]).expect("room");
        let (after, _) = tx.cursors();
        assert_eq!(after - before, tx.footprint(HEADER.len() + len), "{len} bytes");
    }
}

/// Numbers that were never saved are refused.
fn impossible_numbers_are_refused(ends: &Ends) {
    let [a, b] = ends.ends();
    let size = a.half(0).size();
    for (position, freed) in [(1, 0), (0, 1), (2 * size, 0), (0, size)] {
        let refused = a.open_tx(0, TxSaved { position, freed, origin: 0 }).err();
        assert_eq!(refused, Some(Broken), "{position} {freed}");
    }
    assert_eq!(b.open_rx(0, 1, 0).err(), Some(Broken));
}

/// Entries are followed in the order written, each once, with both positions.
fn entries_are_followed_in_order(ends: &Ends) {
    let [a, b] = ends.ends();
    let (producer, consumer) = (a.half(0), b.half(0));
    assert_eq!((producer.written(), producer.followed()), (0, 0));
    assert_eq!(consumer.next(0, Lane::Kernel, 0), Ok(None));
    let mut lane = Lane::Kernel;
    for number in 0..40u32 {
        let next = if lane == Lane::Kernel { Lane::Sdp } else { Lane::Kernel };
        let switch = to(next, 100 + u64::from(number), 0);
        producer.write(number, switch, || {});
        assert_eq!(producer.lane(), next);
        assert_eq!(producer.sent(), switch.carrier);
        assert_eq!(consumer.written(), number + 1);
        assert_eq!(consumer.next(number, lane, 0), Ok(Some(switch)));
        consumer.follow(number + 1);
        assert_eq!(producer.followed(), number + 1);
        assert_eq!(consumer.next(number + 1, next, 0), Ok(None));
        lane = next;
    }
    // The other half knows nothing of it.
    assert_eq!(a.half(1).written(), 0);
}

/// As many entries as may be pending are all there.
fn pending_entries_are_kept(ends: &Ends) {
    let [a, b] = ends.ends();
    let lanes = [Lane::Kernel, Lane::Sdp];
    for number in 0..PENDING_MAX {
        let switch = to(lanes[(number + 1) % 2], number as u64, 0);
        a.half(0).write(number as u32, switch, || {});
    }
    for number in 0..PENDING_MAX {
        let switch = to(lanes[(number + 1) % 2], number as u64, 0);
        assert_eq!(b.half(0).next(number as u32, lanes[number % 2], 0), Ok(Some(switch)));
    }
}

/// Entries that no producer writes break the half.
fn impossible_entries_are_found(ends: &Ends) {
    let [a, b] = ends.ends();
    let (producer, consumer) = (a.half(0), b.half(0));
    producer.write(0, to(Lane::Sdp, 7, 0), || {});
    assert_eq!(consumer.next(0, Lane::Sdp, 0), Err(Broken), "onto the lane that it is on");
    let freed = producer.size();
    assert_eq!(consumer.next(0, Lane::Kernel, freed), Err(Broken), "before what was freed");
    let many = PENDING_MAX as u32 + 1;
    assert_eq!(consumer.next(0u32.wrapping_sub(many), Lane::Sdp, 0), Err(Broken), "too many");
}

/// L10: a consumer ends the producer's section; the producer finds that once.
fn a_section_is_ended_for_the_producer(ends: &Ends) {
    let [a, b] = ends.ends();
    let (producer, consumer) = (a.half(0), b.half(0));
    assert_eq!(consumer.end_section(0, || {}), Ended::NotOnLane);
    producer.write(0, to(Lane::Sdp, 5, 0), || {});
    consumer.follow(1);
    assert_eq!(producer.accept(1, Lane::Sdp, 5, 0), Ok(false));
    assert_eq!(consumer.end_section(5, || {}), Ended::Written);
    assert_eq!(producer.accept(1, Lane::Sdp, 6, 0), Err(Broken), "another carrier position");
    assert_eq!(producer.accept(1, Lane::Kernel, 5, 0), Err(Broken), "from the kernel lane");
    assert_eq!(producer.accept(1, Lane::Sdp, 5, 0), Ok(true));
    assert_eq!(consumer.next(1, Lane::Sdp, 0), Ok(Some(to(Lane::Kernel, 5, 0))));
    assert_eq!(producer.lane(), Lane::Kernel);
    assert_eq!(producer.accept(2, Lane::Kernel, 5, 0), Ok(false));
    assert_eq!(consumer.end_section(5, || {}), Ended::NotOnLane);
}

/// L2: only an unbounded read in progress keeps a producer that was not followed.
fn an_unbounded_read_keeps_the_producer(ends: &Ends) {
    let [a, b] = ends.ends();
    let (producer, consumer) = (a.half(0), b.half(0));
    producer.write(0, to(Lane::Sdp, 0, 0), || {});
    assert!(producer.may_leave(1));
    consumer.announce_unbounded_read(true);
    assert!(!producer.may_leave(1));
    consumer.follow(1);
    assert!(producer.may_leave(1));
    consumer.follow(0);
    consumer.announce_unbounded_read(false);
    assert!(producer.may_leave(1));
}

/// A gate is one end's at a time.
fn a_gate_has_one_holder(ends: &Ends) {
    let [a, b] = ends.ends();
    let (producer, consumer) = (a.half(0), b.half(0));
    assert_eq!(producer.gate_holder(), None);
    producer.try_gate(0).expect("nobody has it");
    let holder = consumer.try_gate(1).expect_err("the producer has it");
    assert_eq!(holder, Holder::of(0));
    assert_eq!(consumer.gate_holder(), Some(holder));
    assert_eq!(producer.try_gate(0), Err(Holder::of(0)), "who died inside is told so");
    assert!(!consumer.take_gate_over(Holder::of(1), 1), "that does not hold it");
    assert!(consumer.take_gate_over(holder, 1));
    assert_eq!(producer.try_gate(0), Err(Holder::of(1)));
    consumer.open_gate();
    assert_eq!(producer.gate_holder(), None);
    producer.try_gate(0).expect("it was given back");
    producer.open_gate();
}

/// A consumer's statement about its readers, and both ends' counts of the carrier.
fn trust_and_counts_arrive(ends: &Ends) {
    let [a, b] = ends.ends();
    let (producer, consumer) = (a.half(0), b.half(0));
    assert_eq!(producer.trust(), Trust::No);
    for trust in [Trust::Reads, Trust::ReadsAndArms, Trust::No] {
        consumer.declare(trust);
        assert_eq!(producer.trust(), trust);
    }
    consumer.count_read(9);
    producer.count_sent(11);
    assert_eq!((producer.read(), consumer.sent()), (9, 11));
}

/// An arm is seen until it is answered, and a late answer leaves a newer one alone.
fn a_late_answer_leaves_a_newer_arm_alone(ends: &Ends) {
    let [a, b] = ends.ends();
    for what in [What::Bytes, What::Space] {
        let (waker, sleeper) = match what {
            What::Bytes => (a.half(0), b.half(0)),
            What::Space => (b.half(0), a.half(0)),
        };
        assert_eq!(waker.armed(what), None);
        sleeper.arm(what, How::Doorbell);
        let first = waker.armed(what).expect("armed");
        assert_eq!(first.how, How::Doorbell);
        assert_eq!(waker.armed(what), Some(first), "until it is answered");
        let other = if what == What::Bytes { What::Space } else { What::Bytes };
        assert_eq!(waker.armed(other), None, "somebody else's");
        sleeper.arm(what, How::Doorbell);
        waker.disarm(what, first);
        let second = waker.armed(what).expect("the newer one");
        waker.disarm(what, second);
        assert_eq!(waker.armed(what), None);
        // Two sleepers with different wishes are woken by the way that wakes all.
        sleeper.arm(what, How::Doorbell);
        sleeper.arm(what, How::Carrier);
        let both = waker.armed(what).expect("armed");
        assert_eq!(both.how, How::Carrier);
        waker.disarm(what, both);
    }
    assert_eq!(a.half(1).armed(What::Bytes), None, "the other half");
    a.half(0).note_signal(77);
    assert_eq!(b.half(0).signalled_at(), 77);
}

/// The other end sees an end's statements about itself.
fn an_end_is_seen_as_it_says(ends: &Ends) {
    let [a, b] = ends.ends();
    assert!(!b.peer().is_attached());
    a.own().attach();
    assert!(b.peer().is_attached() && !a.peer().is_attached());
    assert!(b.peer().is_open());
    for intent in [Intent::Carrier, Intent::PassedOn, Intent::Open] {
        a.own().intend(intent);
        assert_eq!(b.peer().intent(), intent);
        assert_eq!(b.peer().is_open(), intent == Intent::Open);
    }
    assert!(a.own().close());
    assert_eq!(b.peer().intent(), Intent::Closed);
    assert!(a.own().close(), "again");
    b.own().intend(Intent::PassedOn);
    assert!(!b.own().close(), "it had another intent");
    assert_eq!(a.peer().intent(), Intent::PassedOn);
    a.own().note_leaving();
    assert_eq!(b.peer().reset_note(), ResetNote::Leaves);
    a.own().note_reset(ResetNote::Resets);
    a.own().note_leaving();
    assert_eq!(b.peer().reset_note(), ResetNote::Resets, "what was said before stands");
    a.own().note_reset(ResetNote::None);
    assert_eq!(b.peer().reset_note(), ResetNote::None);
    a.own().note_cpu(3);
    a.own().note_socket(12);
    assert_eq!((b.peer().cpu(), b.peer().socket()), (3, 12));
    assert_eq!((a.peer().cpu(), a.peer().socket()), (0, 0));
}
