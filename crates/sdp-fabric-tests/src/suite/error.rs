//! Errors are for ever, and messages that had arrived stay.

use sdp_rdma::{
    fabric::{PostError, QpError, ReceiveQueue, SendQueue},
    work::{Status, WorkId},
};

use crate::{
    harness::{Harness, Side, receive, settle, until},
    message::{CONTROL, DATA, Message, Random, SIGNALLED},
};

/// Messages that completed before the disconnect are read after it; the error comes behind the last
/// message.
pub fn bytes_sent_before_a_disconnect_stay_readable<H: Harness>(
    harness: &mut H,
    random: &mut Random,
) {
    for breaker in [Side::A, Side::B] {
        let mut pair = harness.pair();
        let messages: Vec<_> = (0..3).map(|number| Message::random(random, number, 900)).collect();
        for message in &messages {
            assert_eq!(message.post(&mut pair.a.tx, SIGNALLED), Ok(()));
        }
        // Completed means: the peer's queue pair has taken it.
        for message in &messages {
            let done = until(harness, "a completion", || pair.a.tx.poll_completion());
            assert_eq!((done.id.0, done.status), (message.number, Status::Success));
        }
        harness.disconnect(breaker);
        settle(harness);
        for message in &messages {
            let received = receive(harness, &mut pair.b.rx);
            message.check(&pair.b.rx, received);
            pair.b.rx.release(received);
        }
        assert_eq!(pair.b.rx.poll_receive(), Err(QpError::Disconnected), "broken by {breaker:?}");
        assert_eq!(pair.a.rx.poll_receive(), Err(QpError::Disconnected), "broken by {breaker:?}");
    }
}

/// A borrow does not end with the connection.
pub fn a_borrowed_message_outlives_the_connection<H: Harness>(
    harness: &mut H,
    random: &mut Random,
) {
    let mut pair = harness.pair();
    let messages = [Message::random(random, 1, 2000), Message::random(random, 2, 2000)];
    for message in &messages {
        assert_eq!(message.post(&mut pair.a.tx, DATA), Ok(()));
    }
    let borrowed = messages.map(|_| receive(harness, &mut pair.b.rx));
    harness.disconnect(Side::A);
    settle(harness);
    assert_eq!(pair.b.rx.poll_receive(), Err(QpError::Disconnected));
    for (message, received) in messages.iter().zip(borrowed) {
        message.check(&pair.b.rx, received);
    }
    for received in borrowed.into_iter().rev() {
        pair.b.rx.release(received);
    }
    assert_eq!(pair.b.rx.poll_receive(), Err(QpError::Disconnected));
}

/// Both sides, every kind of post, as often as it is tried.
pub fn an_ended_queue_pair_accepts_no_work<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    harness.disconnect(Side::B);
    settle(harness);
    let ended = Err(PostError::Failed(QpError::Disconnected));
    for number in 0..20 {
        for tx in [&mut pair.a.tx, &mut pair.b.tx] {
            assert_eq!(Message::new(number, 10).post(tx, DATA), ended);
            assert_eq!(Message::new(number, 0).post(tx, CONTROL), ended);
            assert_eq!(Message::new(number, 10).post(tx, SIGNALLED), ended);
            assert_eq!(tx.poll_completion(), None, "a refused post completes");
        }
        for rx in [&mut pair.a.rx, &mut pair.b.rx] {
            assert_eq!(rx.poll_receive(), Err(QpError::Disconnected));
        }
        settle(harness);
    }
}

/// Every request completes once and in order, however the connection ended; after the first that
/// failed none succeeds.
pub fn requests_under_way_are_flushed<H: Harness>(harness: &mut H, random: &mut Random) {
    for breaker in [Side::A, Side::B] {
        for steps in 0..20 {
            let mut pair = harness.pair();
            let mut posted = 0;
            for number in 0..12 {
                match Message::random(random, number, 500).post(&mut pair.a.tx, SIGNALLED) {
                    Ok(()) => posted += 1,
                    Err(PostError::Full) => break,
                    Err(error) => panic!("post: {error:?}"),
                }
            }
            for _ in 0..steps {
                harness.advance();
            }
            harness.disconnect(breaker);
            settle(harness);
            let mut succeeded = 0;
            for number in 0..posted {
                let done = pair.a.tx.poll_completion();
                let done = done.unwrap_or_else(|| panic!("{number} of {posted} did not complete"));
                assert_eq!(done.id, WorkId(number));
                match done.status {
                    Status::Success => {
                        assert_eq!(succeeded, number, "success behind a failure");
                        succeeded += 1;
                    }
                    Status::Flushed | Status::RetryExceeded => {}
                    status => panic!("{status:?} of a request that was under way"),
                }
            }
            assert_eq!(pair.a.tx.poll_completion(), None);
            // Messages reported as arrived have arrived; flushed ones may have.
            let mut arrived = 0;
            while let Ok(Some(received)) = pair.b.rx.poll_receive() {
                arrived += 1;
                pair.b.rx.release(received);
            }
            assert!((succeeded..=posted).contains(&arrived), "{succeeded} {arrived} {posted}");
        }
    }
}

/// The survivor reads the messages that had arrived, then learns of the death.
pub fn a_dead_peer_ends_the_connection<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let message = Message::random(random, 1, 900);
    assert_eq!(message.post(&mut pair.a.tx, DATA), Ok(()));
    settle(harness);
    harness.kill(Side::A);
    settle(harness);
    let received = receive(harness, &mut pair.b.rx);
    message.check(&pair.b.rx, received);
    pair.b.rx.release(received);
    assert_eq!(pair.b.rx.poll_receive(), Err(QpError::Disconnected));
    let post = Message::new(2, 10).post(&mut pair.b.tx, DATA);
    assert_eq!(post, Err(PostError::Failed(QpError::Disconnected)));
}
