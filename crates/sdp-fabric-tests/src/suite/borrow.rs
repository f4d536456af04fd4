//! Borrowing: a message is the reader's until it is released.

use sdp_rdma::fabric::{PostError, RELEASED_AHEAD_MAX, ReceiveQueue, SendQueue};

use crate::{
    harness::{Harness, receive, settle},
    message::{DATA, HEADER_LEN, Message, Random, drain, fill, transfer},
};

/// The oldest message is kept while others are read and given back behind it.
pub fn a_borrowed_message_outlives_its_successors<H: Harness>(
    harness: &mut H,
    random: &mut Random,
) {
    let mut pair = harness.pair();
    for round in 0..20 {
        let number = round * 1000;
        let kept = Message::random(random, number, 1200);
        assert_eq!(kept.post(&mut pair.a.tx, DATA), Ok(()));
        let borrowed = receive(harness, &mut pair.b.rx);
        for n in 1..=RELEASED_AHEAD_MAX as u64 {
            let message = Message::random(random, number + n, 1200);
            // Without a buffer it would be accepted and wait.
            if pair.b.rx.posted() == 0 || message.post(&mut pair.a.tx, DATA) == Err(PostError::Full)
            {
                break;
            }
            let received = receive(harness, &mut pair.b.rx);
            assert_ne!(received.token, borrowed.token);
            message.check(&pair.b.rx, received);
            pair.b.rx.release(received);
            kept.check(&pair.b.rx, borrowed);
        }
        pair.b.rx.release(borrowed);
        settle(harness);
    }
    let messages: Vec<_> = (100_000..100_100).map(|n| Message::random(random, n, 3000)).collect();
    transfer(harness, &mut pair.a.tx, &mut pair.b.rx, messages);
}

/// Random order of release, many times round the window; nothing leaks.
pub fn messages_may_be_released_in_any_order<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let mut number = 0;
    for _ in 0..60 {
        let mut borrowed = Vec::new();
        for _ in 0..RELEASED_AHEAD_MAX + 1 {
            let message = Message::random(random, number, 2500);
            if pair.b.rx.posted() == 0 || message.post(&mut pair.a.tx, DATA) == Err(PostError::Full)
            {
                break;
            }
            number += 1;
            borrowed.push((message, receive(harness, &mut pair.b.rx)));
        }
        assert!(!borrowed.is_empty(), "no room after everything was released");
        while !borrowed.is_empty() {
            let (message, received) = borrowed.swap_remove(random.below(borrowed.len()));
            message.check(&pair.b.rx, received);
            pair.b.rx.release(received);
        }
        settle(harness);
    }
    // A leak would show as a window that has shrunk.
    let posted = fill(harness, &mut pair.a.tx, 1_000_000, 1000);
    drain(harness, &mut pair.b.rx, &posted);
    let again = fill(harness, &mut pair.a.tx, 2_000_000, 1000);
    drain(harness, &mut pair.b.rx, &again);
    assert!(again.len().abs_diff(posted.len()) <= 1, "{} then {}", posted.len(), again.len());
}

/// Implicit credits: with the oldest kept, releasing the others makes no room; releasing it makes
/// all of it. Explicit credits: each release makes room, whatever is kept.
pub fn room_returns_as_the_credits_say<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    let is_explicit = pair.b.rx.posted() != u16::MAX;
    let longest = pair.a.tx.max_message() - HEADER_LEN;
    let posted = fill(harness, &mut pair.a.tx, 0, longest);
    let first = receive(harness, &mut pair.b.rx);
    let mut reported = 1;
    for message in posted.iter().skip(1).take(RELEASED_AHEAD_MAX) {
        let Some(received) = pair.b.rx.poll_receive().expect("the connection lives") else { break };
        message.check(&pair.b.rx, received);
        pair.b.rx.release(received);
        reported += 1;
    }
    assert!(reported > 1, "the window holds one message");
    settle(harness);
    let next = Message::new(1_000_000, longest);
    if !is_explicit {
        let early = next.post(&mut pair.a.tx, DATA);
        assert_eq!(early, Err(PostError::Full), "the oldest is still kept");
        posted[0].check(&pair.b.rx, first);
        pair.b.rx.release(first);
        settle(harness);
    }
    assert_eq!(next.post(&mut pair.a.tx, DATA), Ok(()));
    let mut rest = posted[reported..].to_vec();
    rest.push(next);
    drain(harness, &mut pair.b.rx, &rest);
    if is_explicit {
        posted[0].check(&pair.b.rx, first);
        pair.b.rx.release(first);
    }
}

/// Explicit credits: one buffer is enough for any number of messages behind one that is kept.
pub fn a_kept_message_does_not_stop_the_others<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    assert_ne!(pair.b.rx.posted(), u16::MAX, "credits are implicit");
    let mut kept = Vec::new();
    let mut number = 0;
    while pair.b.rx.posted() > 1 {
        let message = Message::new(number, 100);
        number += 1;
        assert_eq!(message.post(&mut pair.a.tx, DATA), Ok(()));
        kept.push((message, receive(harness, &mut pair.b.rx)));
    }
    for number in 10_000..10_100 {
        let message = Message::new(number, 0);
        assert_eq!(message.post(&mut pair.a.tx, DATA), Ok(()));
        drain(harness, &mut pair.b.rx, &[message]);
        assert_eq!(pair.b.rx.posted(), 1);
    }
    for (message, received) in kept.into_iter().rev() {
        message.check(&pair.b.rx, received);
        pair.b.rx.release(received);
    }
}

/// Every part of a message can be copied, in any order, as often as wanted.
pub fn parts_can_be_copied_from_any_offset<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let max = pair.a.tx.max_message();
    for number in 0..60 {
        let message = Message::random(random, number, max);
        assert_eq!(message.post(&mut pair.a.tx, DATA), Ok(()));
        let received = receive(harness, &mut pair.b.rx);
        for _ in 0..10 {
            let from = random.below(message.len() + 1);
            let len = random.below(message.len() - from + 1);
            message.check_part(&pair.b.rx, received, from, len);
        }
        message.check_part(&pair.b.rx, received, 0, message.len());
        message.check_part(&pair.b.rx, received, message.len(), 0);
        message.check_part(&pair.b.rx, received, message.len() - 1, 1);
        pair.b.rx.release(received);
        settle(harness);
    }
}

/// The number copied is the lesser of message and destination; the rest is left alone.
pub fn header_copy_stops_at_the_end_of_the_message<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    for (number, len) in (0..).zip([1, 7, 8, 15, 16, 17, 31, 47, 48, 64, 100]) {
        let header_len = len.min(HEADER_LEN);
        let message = Message { number, header_len, payload_len: len - header_len };
        assert_eq!(message.post(&mut pair.a.tx, DATA), Ok(()));
        let received = receive(harness, &mut pair.b.rx);
        for room in [0, 1, 15, 16, 17, 48, 80] {
            let mut header = vec![0xa5; room];
            let copied = pair.b.rx.copy_header(received, &mut header);
            assert_eq!(copied, len.min(room), "header of {len} bytes into {room}");
            assert_eq!(header[..copied], message.bytes(0, copied));
            assert!(header[copied..].iter().all(|byte| *byte == 0xa5), "beyond the message");
        }
        pair.b.rx.release(received);
    }
}
