//! Order: each message once, whole, unchanged, in the order posted.

use std::collections::VecDeque;

use sdp_rdma::{
    fabric::{PostError, ReceiveQueue, SendQueue},
    work::{Opcode, Status, WorkId},
};

use crate::{
    harness::{Harness, receive, settle, until},
    message::{DATA, HEADER_LEN, Message, Random, SIGNALLED, drain, fill, transfer},
};

/// Random sizes, many laps of any window.
pub fn messages_arrive_in_order_once_and_unchanged<H: Harness>(
    harness: &mut H,
    random: &mut Random,
) {
    let mut pair = harness.pair();
    let max = pair.a.tx.max_message();
    let messages: Vec<_> = (0..400).map(|number| Message::random(random, number, max)).collect();
    transfer(harness, &mut pair.a.tx, &mut pair.b.rx, messages);
    let max = pair.b.tx.max_message();
    let messages: Vec<_> = (0..400).map(|number| Message::random(random, number, max)).collect();
    transfer(harness, &mut pair.b.tx, &mut pair.a.rx, messages);
}

/// No payload, one byte, around powers of two, exactly the longest.
pub fn sizes_at_the_edges_arrive_whole<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    let longest = pair.a.tx.max_message() - HEADER_LEN;
    let powers = (0..usize::BITS).map(|bit| 1_usize << bit);
    let around = powers.flat_map(|n| [n - 1, n, n + 1]);
    let lens: Vec<_> = around.filter(|n| *n < longest).chain([longest - 1, longest]).collect();
    // Twice, so that each size meets another place in the window.
    let messages = lens.iter().chain(&lens).zip(0..);
    let messages = messages.map(|(len, number)| Message::new(number, *len));
    transfer(harness, &mut pair.a.tx, &mut pair.b.rx, messages);
}

/// One direction is full and unread; the other carries on.
pub fn directions_do_not_wait_for_each_other<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let stuck = fill(harness, &mut pair.a.tx, 0, 500);
    let max = pair.b.tx.max_message();
    let messages: Vec<_> = (1000..1200).map(|n| Message::random(random, n, max)).collect();
    transfer(harness, &mut pair.b.tx, &mut pair.a.rx, messages);
    drain(harness, &mut pair.b.rx, &stuck);
}

/// Signalled SENDs complete once, in order, successfully; unsignalled ones do not complete.
pub fn completions_come_once_and_in_order<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let mut expected = VecDeque::new();
    let take = |tx: &mut H::Tx, expected: &mut VecDeque<u64>, count: usize| {
        for done in std::iter::from_fn(|| tx.poll_completion()).take(count) {
            assert_eq!(Some(done.id.0), expected.pop_front(), "completion order");
            assert_eq!((done.opcode, done.status), (Opcode::Send, Status::Success));
        }
    };
    for number in 0..300 {
        let message = Message::random(random, number, 2000);
        let is_signalled = random.one_in(2);
        let options = if is_signalled { SIGNALLED } else { DATA };
        until(harness, "room for a message", || match message.post(&mut pair.a.tx, options) {
            Ok(()) => Some(()),
            Err(PostError::Full) => {
                take(&mut pair.a.tx, &mut expected, 3);
                None
            }
            Err(error) => panic!("post of {message:?}: {error:?}"),
        });
        if is_signalled {
            expected.push_back(number);
        }
        let received = receive(harness, &mut pair.b.rx);
        message.check(&pair.b.rx, received);
        pair.b.rx.release(received);
        // Some stay unpolled while others are added, so that the order of many shows.
        if random.one_in(4) {
            take(&mut pair.a.tx, &mut expected, random.below(4));
        }
    }
    until(harness, "the last completion", || {
        take(&mut pair.a.tx, &mut expected, usize::MAX);
        expected.is_empty().then_some(())
    });
    settle(harness);
    assert_eq!(pair.a.tx.poll_completion().map(|done| done.id), None::<WorkId>);
}

/// Two connections between the same two processes.
pub fn connections_do_not_mix<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut first = harness.pair();
    let mut second = harness.pair();
    let of_first = fill(harness, &mut first.a.tx, 0, 300);
    let messages: Vec<_> = (5000..5100).map(|n| Message::random(random, n, 900)).collect();
    transfer(harness, &mut second.a.tx, &mut second.b.rx, messages);
    drain(harness, &mut first.b.rx, &of_first);
    assert_eq!(second.b.rx.poll_receive(), Ok(None));
}
