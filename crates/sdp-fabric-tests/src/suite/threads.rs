//! Threads: the two halves of an end are driven by different threads.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use sdp_rdma::fabric::{PostError, ReceiveQueue};

use crate::{
    harness::Harness,
    message::{DATA, Message, Random},
};

/// Messages of each direction.
const MESSAGES: u64 = 2000;
/// Tries of one thread, each of which yields the processor: a bound for a hang, not a time.
const TRIES_MAX: usize = 50_000_000;

/// Four threads, one for each half, both directions at once.
pub fn halves_work_from_two_threads<H: Harness>(harness: &mut H, random: &mut Random) {
    let pair = harness.pair();
    let seed = random.next_u64();
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (mut a_tx, mut a_rx) = (pair.a.tx, pair.a.rx);
        let (mut b_tx, mut b_rx) = (pair.b.tx, pair.b.rx);
        let done = &done;
        scope.spawn(move || counted(done, || send::<H>(&mut a_tx, seed)));
        scope.spawn(move || counted(done, || receive::<H>(&mut b_rx, seed)));
        scope.spawn(move || counted(done, || send::<H>(&mut b_tx, !seed)));
        scope.spawn(move || counted(done, || receive::<H>(&mut a_rx, !seed)));
        while done.load(Ordering::Relaxed) < 4 {
            if !harness.advance() {
                thread::yield_now();
            }
        }
    });
}

/// Runs a thread's work and counts it even when it panics, so that the others are not waited for
/// without end.
fn counted(done: &AtomicUsize, work: impl FnOnce()) {
    struct Guard<'a>(&'a AtomicUsize);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let _guard = Guard(done);
    work();
}

/// The same messages on both sides, from the same seed.
fn messages(seed: u64) -> impl Iterator<Item = Message> {
    let mut random = Random::new(seed);
    (0..MESSAGES).map(move |number| Message::random(&mut random, number, 1500))
}

fn send<H: Harness>(tx: &mut H::Tx, seed: u64) {
    for message in messages(seed) {
        retry("room", || match message.post(tx, DATA) {
            Ok(()) => Some(()),
            Err(PostError::Full) => None,
            Err(error) => panic!("post: {error:?}"),
        });
    }
}

fn receive<H: Harness>(rx: &mut H::Rx, seed: u64) {
    for message in messages(seed) {
        let received = retry("a message", || rx.poll_receive().expect("the connection lives"));
        message.check(rx, received);
        rx.release(received);
    }
}

fn retry<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    for _ in 0..TRIES_MAX {
        if let Some(value) = attempt() {
            return value;
        }
        thread::yield_now();
    }
    panic!("{what}: not within {TRIES_MAX} tries");
}
