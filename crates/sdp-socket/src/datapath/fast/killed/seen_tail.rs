//! Calls of the fast path in a row, with nothing of the slow path between them: each call starts
//! from the words that the one before stored, from the seen tail and from the origin of that. And a
//! peer that forges the origin meanwhile.

use super::*;
use crate::datapath::receive;

/// Three messages in a ring that has begun again. The reader has done nothing by the slow path
/// since then.
fn begun_again(world: &World, len: usize) -> u64 {
    let before = 3 * len as u64;
    (0..3).for_each(|_| world.send(Path::Fast, len));
    assert_eq!(world.read_rest(0), before);
    assert_eq!(world.origin(), 0);
    (0..3).for_each(|_| world.send(Path::Fast, len));
    assert_eq!(world.origin(), 3 * record_bytes(PLAIN_HEADER + len) as u64);
    before
}

/// What a call of the fast path reads that gets all it wants.
fn pulled(world: &World, wanted: usize) -> Option<Vec<u8>> {
    let mut got = Vec::new();
    match pull(&world.rx, wanted, |from| Into(&mut got).accept(from)) {
        Some(Received::Done(n)) if n == wanted && got.len() == n => Some(got),
        _ => None,
    }
}

/// At its first look behind the seen tail the reader finds out whether it goes on to leave the
/// stream alone. It is asked to come back later only when the seen tail is reached.
#[test]
fn what_is_found_says_whether_a_stream_is_left_alone() {
    let world = World::new();
    let conn = &world.rx.conn;
    let comes_back_later = || comes_back_later(&world);
    for (messages, len, goes_on) in
        [(1, 2000, false), (3, 2000, false), (20, 64, true), (4, 64, false)]
    {
        world.clear();
        (0..messages).for_each(|_| world.send(Path::Fast, len));
        conn.one_way.store(1000, Ordering::Relaxed);
        conn.left_alone.store(1, Ordering::Relaxed); // a moment that has passed
        assert_eq!(pulled(&world, len).map(|got| got.len()), Some(len));
        assert_eq!(conn.left_alone.load(Ordering::Relaxed) != 0, goes_on, "{messages} of {len}");
        for _ in 1..messages {
            assert!(!comes_back_later());
            assert_eq!(pulled(&world, len).map(|got| got.len()), Some(len));
        }
        assert!(comes_back_later());
        // Nothing there ends it.
        assert!(pulled(&world, 1).is_none());
        assert_eq!(conn.left_alone.load(Ordering::Relaxed), 0);
    }
}

/// Whether the reader that is to leave the stream alone is asked to come back later.
fn comes_back_later(world: &World) -> bool {
    (0..1000).any(|_| {
        // This thread may be kept from its CPU until the moment has passed.
        world.rx.conn.left_alone.store(sdp_sys::time::ticks() + 1000, Ordering::Relaxed);
        is_left_alone(&world.rx)
    })
}

/// A seen tail that the slow path forgot does not show what is unread: a program that reads each
/// header by the fast path, and the rest of each message with `MSG_WAITALL`, would wait at each
/// next header.
#[test]
fn a_stream_with_ordinary_calls_in_it_is_not_left_alone() {
    let world = World::new();
    let conn = &world.rx.conn;
    (0..20).for_each(|_| world.send(Path::Fast, 64));
    conn.one_way.store(1000, Ordering::Relaxed);
    let InUse { segment, row, .. } = world.rx;
    let link = ShmLink::new(segment, 1);
    let slowly = || receive::with_sink_of(conn, link, row, |_, _, _, _| Ok(())).unwrap();
    slowly();
    assert!(comes_back_later(&world), "that is the trap");
    slowly();
    assert_eq!(conn.left_alone.load(Ordering::Relaxed), 0);
    // Another process that uses this end does so unseen.
    row.flags.insert(RowFlag::Several, Ordering::SeqCst);
    assert!(!comes_back_later(&world));
    row.flags.remove(RowFlag::Several, Ordering::SeqCst);
    // And an answer is waited for.
    conn.one_way.store(0, Ordering::Relaxed);
    assert!(!comes_back_later(&world));
}

/// The seen tail goes from call to call, and with it the origin that was seen when the tail was
/// read; for a message that the slow path began, which leaves no seen tail, the segment has the
/// origin.
#[test]
fn a_seen_tail_keeps_its_origin_from_call_to_call() {
    let world = World::new();
    let len = 1000;
    for slowly in [0, 10] {
        world.clear();
        let mut at = begun_again(&world, len);
        let begun = if slowly == 0 { Vec::new() } else { world.receive(Path::Slow, 10) };
        let is_right = |got: &[u8], at: u64| got.iter().zip(at..).all(|(b, at)| *b == byte(at));
        assert!(begun.len() == slowly && is_right(&begun, at));
        at += slowly as u64;
        for (calls, wanted) in [len - slowly, len, len].into_iter().enumerate() {
            let got = pulled(&world, wanted).expect("the common case");
            assert!(is_right(&got, at), "call {calls}");
            at += wanted as u64;
            let [head, seen_tail] =
                [0, words::SEEN_TAIL].map(|i| world.sink()[i].load(Ordering::Relaxed));
            let is_open = calls < 2 && (calls > 0 || slowly == 0);
            assert_eq!(seen_tail != head, is_open, "call {calls}");
        }
        assert!(pulled(&world, 1).is_none());
    }
}

/// Where a forged origin leads to the very index, only the check finds it. The fast path leaves it
/// to the slow path, which finds it corrupt.
#[test]
fn a_forged_origin_is_not_for_the_common_case() {
    let world = World::new();
    for begun in [0, 10] {
        for forge in [|at: u64| at - 8, |at| at + (1 << 40), |at| at + u64::from(RING), |_| !0] {
            world.clear();
            begun_again(&world, 1000);
            assert_eq!(world.receive(Path::Slow, begun.max(1)).len(), begun.max(1));
            if begun == 0 {
                // To the end of a message: the next one is found by the segment's tail.
                assert_eq!(pulled(&world, 999).map(|got| got.len()), Some(999));
            }
            let sound = world.origin();
            world.lines().producer.origin.store(forge(sound), Ordering::Relaxed);
            let before = world.sink().iter().map(|word| word.load(Ordering::Relaxed));
            let before: Vec<u64> = before.collect();
            assert!(pulled(&world, 500).is_none());
            let after = world.sink().iter().map(|word| word.load(Ordering::Relaxed));
            assert!(after.eq(before), "nothing was done");
            let mut sink = world.receiving();
            if let Some(message) = sink.current() {
                sink.rx.release(message);
            }
            assert!(sink.rx.poll_receive().is_err());
            world.lines().producer.origin.store(sound, Ordering::Relaxed);
            assert_eq!(pulled(&world, 500).map(|got| got.len()), Some(500));
        }
    }
}
