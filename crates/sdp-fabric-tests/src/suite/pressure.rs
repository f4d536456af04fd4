//! Back-pressure: full is said, nothing is half sent, room comes back.

use std::collections::VecDeque;

use sdp_rdma::fabric::{PostError, ReceiveQueue, SendOptions, SendQueue};

use crate::{
    harness::{Harness, receive, settle, until},
    message::{CONTROL, DATA, HEADER_LEN, Message, Random, SIGNALLED, drain, fill, transfer},
};

/// Full, drained, full again, with sizes that do not divide the window.
pub fn full_ends_when_messages_are_released<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let mut number = 0;
    for _ in 0..8 {
        let payload_len = 200 + random.below(3000);
        let posted = fill(harness, &mut pair.a.tx, number, payload_len);
        assert!(!posted.is_empty(), "no room at all after everything was released");
        number += posted.len() as u64 + 1;
        drain(harness, &mut pair.b.rx, &posted);
    }
    // One at a time: each release makes room for one more.
    let posted = fill(harness, &mut pair.a.tx, number, 1000);
    number += posted.len() as u64;
    let mut under_way: VecDeque<_> = posted.into();
    for number in number..number + 50 {
        let message = Message::new(number, 1000);
        until(harness, "room after a release", || {
            if message.post(&mut pair.a.tx, DATA) == Ok(()) {
                return Some(());
            }
            if let Ok(Some(received)) = pair.b.rx.poll_receive() {
                let oldest: Message = under_way.pop_front().expect("a message that was sent");
                oldest.check(&pair.b.rx, received);
                pair.b.rx.release(received);
            }
            None
        });
        under_way.push_back(message);
    }
    drain(harness, &mut pair.b.rx, under_way.make_contiguous());
}

/// A post that was refused leaves no trace at the peer, whatever its size.
pub fn nothing_is_half_sent<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let longest = pair.a.tx.max_message() - HEADER_LEN;
    let mut posted = fill(harness, &mut pair.a.tx, 0, longest);
    for number in 10_000..10_200 {
        let message = Message::new(number, random.below(longest + 1));
        match message.post(&mut pair.a.tx, DATA) {
            // A message that is shorter than those before may still fit.
            Ok(()) => posted.push(message),
            Err(error) => assert_eq!(error, PostError::Full),
        }
    }
    drain(harness, &mut pair.b.rx, &posted);
    let messages: Vec<_> = (20_000..20_050).map(|n| Message::random(random, n, 2000)).collect();
    transfer(harness, &mut pair.a.tx, &mut pair.b.rx, messages);
}

/// A control message gets through where data is refused, keeps its place in the order, and the
/// reserve is there again after it was used.
pub fn control_may_use_the_reserve<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    for round in 0..2 {
        let first = round * 1_000_000;
        // The smallest messages, so that no room is left that only the last one was too long for.
        let mut posted = fill(harness, &mut pair.a.tx, first, 0);
        let control = Message::new(first + 500_000, 0);
        assert_eq!(control.post(&mut pair.a.tx, DATA), Err(PostError::Full));
        assert_eq!(control.post(&mut pair.a.tx, CONTROL), Ok(()), "round {round}");
        posted.push(control);
        let second = Message::new(first + 500_001, 8);
        assert_eq!(second.post(&mut pair.a.tx, CONTROL), Ok(()), "round {round}");
        posted.push(second);
        drain(harness, &mut pair.b.rx, &posted);
    }
}

/// One byte more than the longest, header and payload alike.
pub fn too_long_is_refused_and_posts_nothing<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let max = pair.a.tx.max_message();
    for len in [max + 1, max + 1000, 4 * max] {
        let message = Message::new(1, len - HEADER_LEN);
        let all = SendOptions { control: true, ..SIGNALLED };
        for options in [DATA, CONTROL, SIGNALLED, all] {
            assert_eq!(message.post(&mut pair.a.tx, options), Err(PostError::TooLong));
        }
    }
    settle(harness);
    assert_eq!(pair.b.rx.poll_receive(), Ok(None));
    assert_eq!(pair.a.tx.poll_completion(), None);
    let messages: Vec<_> = (0..20).map(|n| Message::random(random, n, max)).collect();
    transfer(harness, &mut pair.a.tx, &mut pair.b.rx, messages);
}

/// As much as `room` reports is accepted at once.
pub fn room_is_what_can_be_sent<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let mut under_way = VecDeque::new();
    let mut whole_rooms = 0;
    for number in 0..500 {
        let room = pair.a.tx.room();
        assert!(room + HEADER_LEN <= pair.a.tx.max_message() || room == 0, "room of {room}");
        let whole = random.one_in(3);
        let payload_len = if whole { room } else { random.below(room + 1) };
        if room > 0 {
            let message = Message::new(number, payload_len);
            assert_eq!(message.post(&mut pair.a.tx, DATA), Ok(()), "room was {room}");
            under_way.push_back(message);
            whole_rooms += usize::from(whole);
        }
        while random.one_in(2) || (room == 0 && !under_way.is_empty()) {
            settle(harness);
            let Some(received) = pair.b.rx.poll_receive().expect("the connection lives") else {
                break;
            };
            let message: Message = under_way.pop_front().expect("a message that was sent");
            message.check(&pair.b.rx, received);
            pair.b.rx.release(received);
            settle(harness);
        }
    }
    drain(harness, &mut pair.b.rx, under_way.make_contiguous());
    assert!(whole_rooms > 10, "room was almost never there: {whole_rooms}");
    assert!(pair.a.tx.room() > 0, "no room with nothing under way");
}

/// Signalled posts without polling: full at some point, or not; but no completion goes missing.
pub fn completions_not_polled_are_not_lost<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    let mut number = 0;
    for _ in 0..3 {
        let first = number;
        for _ in 0..2000 {
            match Message::new(number, 10).post(&mut pair.a.tx, SIGNALLED) {
                Ok(()) => number += 1,
                Err(PostError::Full) => break,
                Err(error) => panic!("post: {error:?}"),
            }
            let received = receive(harness, &mut pair.b.rx);
            pair.b.rx.release(received);
        }
        assert!(number > first, "full with every completion polled and every message released");
        let mut expected = first;
        until(harness, "the last completion", || {
            while let Some(done) = pair.a.tx.poll_completion() {
                assert_eq!(done.id.0, expected);
                expected += 1;
            }
            (expected == number).then_some(())
        });
    }
}

/// `posted` counts down with each report and up with each release; or stays 65535 (implicit).
pub fn posted_buffers_follow_reports_and_releases<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    let at_first = pair.b.rx.posted();
    assert!(at_first > 0);
    let is_explicit = at_first != u16::MAX;
    let count = usize::from(at_first.min(3));
    let messages: Vec<_> = (0..count as u64).map(|number| Message::new(number, 5)).collect();
    for message in &messages {
        assert_eq!(message.post(&mut pair.a.tx, DATA), Ok(()));
    }
    settle(harness);
    assert_eq!(pair.b.rx.posted(), at_first, "arrived but not reported");
    let mut received = Vec::new();
    for n in 1..=count {
        received.push(receive(harness, &mut pair.b.rx));
        let expected = if is_explicit { at_first - n as u16 } else { u16::MAX };
        assert_eq!(pair.b.rx.posted(), expected, "{n} reported");
    }
    for message in received {
        pair.b.rx.release(message);
    }
    assert_eq!(pair.b.rx.posted(), at_first, "all released");
}
