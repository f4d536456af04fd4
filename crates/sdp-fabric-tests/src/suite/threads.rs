//! Threads: the two halves of an end are driven by different threads.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
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
    let progress = &Progress::default();
    thread::scope(|scope| {
        let (mut a_tx, mut a_rx) = (pair.a.tx, pair.a.rx);
        let (mut b_tx, mut b_rx) = (pair.b.tx, pair.b.rx);
        scope.spawn(move || progress.watch(|| send::<H>(&mut a_tx, seed, progress)));
        scope.spawn(move || progress.watch(|| receive::<H>(&mut b_rx, seed, progress)));
        scope.spawn(move || progress.watch(|| send::<H>(&mut b_tx, !seed, progress)));
        scope.spawn(move || progress.watch(|| receive::<H>(&mut a_rx, !seed, progress)));
        progress.watch(|| {
            while progress.done.load(Ordering::Relaxed) < 4 {
                if !harness.advance() {
                    thread::yield_now();
                }
            }
        });
    });
}

/// How far the threads are.
#[derive(Default)]
struct Progress {
    /// Threads that have ended, well or not.
    done: AtomicUsize,
    /// One has panicked: the others have nothing to wait for.
    is_failed: AtomicBool,
}

impl Progress {
    /// Does a thread's work and notes its end, even by a panic.
    fn watch(&self, work: impl FnOnce()) {
        struct Guard<'a>(&'a Progress);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.is_failed.fetch_or(thread::panicking(), Ordering::Relaxed);
                self.0.done.fetch_add(1, Ordering::Relaxed);
            }
        }
        let _guard = Guard(self);
        work();
    }

    fn retry<T>(&self, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
        for _ in 0..TRIES_MAX {
            if let Some(value) = attempt() {
                return value;
            }
            assert!(!self.is_failed.load(Ordering::Relaxed), "{what}: another thread has failed");
            thread::yield_now();
        }
        panic!("{what}: not within {TRIES_MAX} tries");
    }
}

/// The same messages on both sides, from the same seed.
fn messages(seed: u64) -> impl Iterator<Item = Message> {
    let mut random = Random::new(seed);
    (0..MESSAGES).map(move |number| Message::random(&mut random, number, 1500))
}

fn send<H: Harness>(tx: &mut H::Tx, seed: u64, progress: &Progress) {
    for message in messages(seed) {
        progress.retry("room", || match message.post(tx, DATA) {
            Ok(()) => Some(()),
            Err(PostError::Full) => None,
            Err(error) => panic!("post: {error:?}"),
        });
    }
}

fn receive<H: Harness>(rx: &mut H::Rx, seed: u64, progress: &Progress) {
    for message in messages(seed) {
        let received =
            progress.retry("a message", || rx.poll_receive().expect("the connection lives"));
        message.check(rx, received);
        rx.release(received);
    }
}
