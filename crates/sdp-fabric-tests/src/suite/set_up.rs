//! Set-up: listen, connect, accept, refuse, withdraw, disconnect.

use sdp_rdma::{
    cm::{PrivateData, REPLY_DATA_MAX, Reject},
    fabric::{CmEvent, Fabric, PostError, QpError, ReceiveQueue},
};

use crate::{
    harness::{Fabrics, Harness, cm_event, settle, until},
    message::{DATA, Message, Random, transfer},
};

type Id<H> = <<H as Harness>::Fabric as Fabric>::Id;

fn data(number: u64, len: usize) -> PrivateData {
    PrivateData::new(&Message::new(number, len).bytes(0, len)).expect("fits")
}

/// The private data arrived: unchanged, or with zeros behind it where the fabric's field is longer.
fn check_data<H: Harness>(harness: &H, arrived: &PrivateData, sent: &PrivateData) {
    let (arrived, sent) = (arrived.as_slice(), sent.as_slice());
    if harness.pads_private_data() {
        let (data, padding) = arrived.split_at(sent.len());
        assert_eq!(data, sent);
        assert!(padding.iter().all(|byte| *byte == 0), "{padding:?}");
    } else {
        assert_eq!(arrived, sent);
    }
}

fn empty() -> PrivateData {
    data(0, 0)
}

fn request<H: Harness>(harness: &mut H, fabrics: &mut Fabrics<H::Fabric>) -> (Id<H>, PrivateData) {
    match cm_event(harness, &mut fabrics.server) {
        CmEvent::Request(id, data) => (id, data),
        event => panic!("{event:?} instead of a request"),
    }
}

fn connect<H: Harness>(fabrics: &mut Fabrics<H::Fabric>, data: PrivateData) -> Id<H> {
    fabrics.client.connect(fabrics.services[0].clone(), data).expect("a connect")
}

fn listening<H: Harness>(harness: &mut H) -> Fabrics<H::Fabric> {
    let mut fabrics = harness.fabrics();
    assert_eq!(fabrics.server.listen(fabrics.services[0].clone()), Ok(()));
    fabrics
}

/// Connects and accepts; both names of the connection.
fn established<H: Harness>(harness: &mut H, fabrics: &mut Fabrics<H::Fabric>) -> (Id<H>, Id<H>) {
    let active = connect::<H>(fabrics, empty());
    let (passive, _) = request(harness, fabrics);
    assert_eq!(fabrics.server.accept(passive, empty()), Ok(()));
    match cm_event(harness, &mut fabrics.client) {
        CmEvent::Established(id, _) => assert_eq!(id, active),
        event => panic!("{event:?} instead of establishment"),
    }
    (active, passive)
}

fn quiet<H: Harness>(harness: &mut H, fabrics: &mut Fabrics<H::Fabric>) {
    settle(harness);
    assert_eq!(fabrics.client.poll_cm(), None);
    assert_eq!(fabrics.server.poll_cm(), None);
}

/// From nothing to the most, both ways, and the connection then works.
pub fn private_data_of_every_size_arrives<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut fabrics = listening(harness);
    let longest = harness.request_data_max();
    let sizes = [(0, 0), (1, 1), (32, 36), (56, 56), (longest, REPLY_DATA_MAX)];
    for (number, (request_len, reply_len)) in (0..).zip(sizes) {
        let (asked, answered) = (data(2 * number, request_len), data(2 * number + 1, reply_len));
        let active = connect::<H>(&mut fabrics, asked);
        let (passive, arrived) = request(harness, &mut fabrics);
        check_data::<H>(harness, &arrived, &asked);
        assert_eq!(fabrics.server.accept(passive, answered), Ok(()));
        // The accepting side need not wait: its first message arrives behind the reply.
        let (mut tx, mut rx) = fabrics.server.take_queues(passive).expect("queues");
        let early = Message::random(random, number, 500);
        assert_eq!(early.post(&mut tx, DATA), Ok(()));
        match cm_event(harness, &mut fabrics.client) {
            CmEvent::Established(id, arrived) => {
                assert_eq!(id, active);
                check_data::<H>(harness, &arrived, &answered);
            }
            event => panic!("{event:?} instead of establishment"),
        }
        let (mut client_tx, mut client_rx) = fabrics.client.take_queues(active).expect("queues");
        let received = until(harness, "the early message", || {
            client_rx.poll_receive().expect("the connection lives")
        });
        early.check(&client_rx, received);
        client_rx.release(received);
        let messages: Vec<_> = (0..20).map(|n| Message::random(random, n, 900)).collect();
        transfer(harness, &mut client_tx, &mut rx, messages.clone());
        transfer(harness, &mut tx, &mut client_rx, messages);
    }
    quiet(harness, &mut fabrics);
}

/// One byte more than a request carries: refused at once, nothing reaches the listener.
pub fn too_long_private_data_is_refused<H: Harness>(harness: &mut H, _: &mut Random) {
    assert_eq!(PrivateData::new(&[0; REPLY_DATA_MAX + 1]), None);
    let mut fabrics = listening(harness);
    let service = fabrics.services[0].clone();
    let refusal = fabrics.client.connect(service, data(1, harness.request_data_max() + 1));
    assert_eq!(refusal, Err(Reject::PrivateDataTooLong));
    quiet(harness, &mut fabrics);
}

/// The listener's consumer says no, and why.
pub fn a_refusal_carries_its_code<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut fabrics = listening(harness);
    for code in [0, 1, 7, 255] {
        let active = connect::<H>(&mut fabrics, empty());
        let (passive, _) = request(harness, &mut fabrics);
        fabrics.server.reject(passive, code);
        let event = cm_event(harness, &mut fabrics.client);
        assert_eq!(event, CmEvent::Rejected(active, Reject::Consumer(code)));
        assert!(fabrics.client.take_queues(active).is_none());
        assert!(fabrics.server.take_queues(passive).is_none());
    }
    quiet(harness, &mut fabrics);
}

/// No process has ever listened, or one on another service only.
pub fn nobody_listening_is_a_refusal<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut fabrics = harness.fabrics();
    assert_eq!(fabrics.server.listen(fabrics.services[1].clone()), Ok(()));
    let active = connect::<H>(&mut fabrics, empty());
    let event = cm_event(harness, &mut fabrics.client);
    assert_eq!(event, CmEvent::Rejected(active, Reject::InvalidService));
    quiet(harness, &mut fabrics);
}

/// The second listener on a service is refused; the first goes on.
pub fn a_service_has_one_listener<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut fabrics = listening(harness);
    assert_eq!(fabrics.server.listen(fabrics.services[0].clone()), Err(Reject::Busy));
    assert_eq!(fabrics.server.listen(fabrics.services[1].clone()), Ok(()));
    established(harness, &mut fabrics);
    quiet(harness, &mut fabrics);
}

/// Not before the connection is there, and only once.
pub fn queues_are_taken_once_and_not_early<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut fabrics = listening(harness);
    let active = connect::<H>(&mut fabrics, empty());
    assert!(fabrics.client.take_queues(active).is_none(), "before the answer");
    let (passive, _) = request(harness, &mut fabrics);
    assert!(fabrics.server.take_queues(passive).is_none(), "before the answer");
    assert_eq!(fabrics.server.accept(passive, empty()), Ok(()));
    match cm_event(harness, &mut fabrics.client) {
        CmEvent::Established(id, _) => assert_eq!(id, active),
        event => panic!("{event:?} instead of establishment"),
    }
    for (fabric, id) in [(&mut fabrics.client, active), (&mut fabrics.server, passive)] {
        assert!(fabric.take_queues(id).is_some());
        assert!(fabric.take_queues(id).is_none(), "a second time");
    }
}

/// More requests than the backlog are refused as busy; each answer makes room for one.
pub fn backlog_is_bounded_and_recovers<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut fabrics = listening(harness);
    let backlog = fabrics.backlog;
    let waiting: Vec<_> = (0..backlog).map(|_| connect::<H>(&mut fabrics, empty())).collect();
    settle(harness);
    assert_eq!(fabrics.client.poll_cm(), None, "within the backlog");
    let refused = connect::<H>(&mut fabrics, empty());
    let event = cm_event(harness, &mut fabrics.client);
    assert_eq!(event, CmEvent::Rejected(refused, Reject::Busy));
    let (first, _) = request(harness, &mut fabrics);
    assert_eq!(fabrics.server.accept(first, empty()), Ok(()));
    match cm_event(harness, &mut fabrics.client) {
        CmEvent::Established(id, _) => assert!(waiting.contains(&id)),
        event => panic!("{event:?} instead of establishment"),
    }
    if backlog > 1 {
        let (second, _) = request(harness, &mut fabrics);
        fabrics.server.reject(second, 3);
        match cm_event(harness, &mut fabrics.client) {
            CmEvent::Rejected(id, Reject::Consumer(3)) => assert!(waiting.contains(&id)),
            event => panic!("{event:?} instead of a refusal"),
        }
    }
    // Two answers, two places (one, where there is only one).
    for _ in 0..backlog.min(2) {
        connect::<H>(&mut fabrics, empty());
    }
    settle(harness);
    assert_eq!(fabrics.client.poll_cm(), None, "places were given back");
    let refused = connect::<H>(&mut fabrics, empty());
    let event = cm_event(harness, &mut fabrics.client);
    assert_eq!(event, CmEvent::Rejected(refused, Reject::Busy));
}

/// Accepting twice, accepting a rejected request, rejecting an accepted one.
pub fn a_request_is_answered_once<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut fabrics = listening(harness);
    let (_, passive) = established(harness, &mut fabrics);
    assert_eq!(fabrics.server.accept(passive, empty()), Err(Reject::Stale));
    fabrics.server.reject(passive, 1);
    let active = connect::<H>(&mut fabrics, empty());
    let (refused, _) = request(harness, &mut fabrics);
    fabrics.server.reject(refused, 1);
    assert_eq!(fabrics.server.accept(refused, empty()), Err(Reject::Stale));
    let event = cm_event(harness, &mut fabrics.client);
    assert_eq!(event, CmEvent::Rejected(active, Reject::Consumer(1)));
    quiet(harness, &mut fabrics);
}

/// The client gives up before the answer: no queue, no `Established`; an acceptance in time or late
/// comes to nothing.
pub fn a_withdrawn_request_comes_to_nothing<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut fabrics = listening(harness);
    for steps in 0..6 {
        let active = connect::<H>(&mut fabrics, empty());
        for _ in 0..steps {
            harness.advance();
        }
        fabrics.client.disconnect(active);
        settle(harness);
        assert_eq!(fabrics.client.poll_cm(), None);
        assert!(fabrics.client.take_queues(active).is_none());
        if let Some(CmEvent::Request(passive, _)) = fabrics.server.poll_cm() {
            assert_eq!(fabrics.server.accept(passive, empty()), Err(Reject::Stale));
        }
        // Accepted while the withdrawal is in flight.
        let active = connect::<H>(&mut fabrics, empty());
        let (passive, _) = request(harness, &mut fabrics);
        fabrics.client.disconnect(active);
        if fabrics.server.accept(passive, empty()).is_ok() {
            let event = cm_event(harness, &mut fabrics.server);
            assert_eq!(event, CmEvent::Disconnected(passive));
        }
        quiet(harness, &mut fabrics);
    }
    // None of these took a place for good.
    for _ in 0..fabrics.backlog {
        connect::<H>(&mut fabrics, empty());
    }
    settle(harness);
    assert_eq!(fabrics.client.poll_cm(), None, "the backlog is free again");
}

/// One event, on the side that did not ask; also when the queues were never taken.
pub fn only_the_other_side_hears_of_a_disconnect<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut fabrics = listening(harness);
    let (active, passive) = established(harness, &mut fabrics);
    fabrics.client.disconnect(active);
    assert_eq!(cm_event(harness, &mut fabrics.server), CmEvent::Disconnected(passive));
    quiet(harness, &mut fabrics);
    fabrics.client.disconnect(active);
    fabrics.server.disconnect(passive);
    quiet(harness, &mut fabrics);

    let (active, passive) = established(harness, &mut fabrics);
    let (mut tx, mut rx) = fabrics.client.take_queues(active).expect("queues");
    fabrics.server.disconnect(passive);
    assert_eq!(cm_event(harness, &mut fabrics.client), CmEvent::Disconnected(active));
    quiet(harness, &mut fabrics);
    let ended = Err(PostError::Failed(QpError::Disconnected));
    assert_eq!(Message::new(1, 10).post(&mut tx, DATA), ended);
    assert_eq!(rx.poll_receive(), Err(QpError::Disconnected));
}
