//! A peer that offers its memory: each SrcAvail is answered with one SendSm, and the stream goes on
//! with what it carried and with what follows as Data. Offers that cannot be honest end the
//! connection, and none counts before the peer has proven who it is.

mod common;

use common::{Pair, Random, byte_at, options};
use sdp_proto::wire::{Body, Flags, Header, Message, Mid, SrcAvail};
use sdp_rdma::{
    fabric::{Gather, ReceiveQueue, SendOptions, SendQueue},
    key::{RemoteSlice, Rkey},
    work::WorkId,
};
use sdp_remote::{Reason, RecvError, SendError};

struct Bytes(Vec<u8>);

impl Gather for Bytes {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn copy_to(&mut self, offset: usize, dst: &[std::cell::Cell<u8>]) {
        for (cell, byte) in dst.iter().zip(&self.0[offset..]) {
            cell.set(*byte);
        }
    }
}

/// What an acceptor writes to its queue pair by hand, behind a meeting.
struct Raw {
    mseq: u32,
    ack: u32,
    /// Bytes of its stream that it has sent.
    sent: u64,
}

impl Raw {
    /// Both streams are on the queue pair, and all has been read.
    fn begin(pair: &mut Pair) -> Self {
        pair.meet();
        let now = pair.world.now_ns();
        assert_eq!(pair.acceptor.send(100, now), Ok(100));
        pair.world.run();
        assert_eq!(pair.connector.recv(5000, false), Ok(100));
        assert_eq!(pair.connector.send(100, now), Ok(100));
        pair.world.run();
        let last = answers(pair).pop().expect("its Data");
        Self { mseq: last.header.mseq_ack, ack: last.header.mseq, sent: pair.acceptor.sent }
    }

    /// A message with so many bytes of the stream behind it.
    fn post(&mut self, pair: &mut Pair, body: Body, payload: u64) {
        self.mseq += 1;
        let text: Vec<u8> =
            (0..payload).map(|at| byte_at(pair.acceptor.stream_out, self.sent + at)).collect();
        self.sent += payload;
        let mid = if body == Body::Data { Mid::Data } else { Mid::SrcAvail };
        let mut message = Message {
            header: Header {
                mid,
                flags: Flags::NONE,
                bufs: 8,
                len: 0,
                mseq: self.mseq,
                mseq_ack: self.ack,
            },
            body,
        };
        message.header.len = message.encode().as_slice().len() as u32 + payload as u32;
        let mut bytes = message.encode().as_slice().to_vec();
        bytes.extend(text);
        post(pair, &bytes);
    }
}

fn post(pair: &mut Pair, bytes: &[u8]) {
    let tx = pair.acceptor.tx.as_mut().expect("a queue pair");
    let (head, rest) = bytes.split_at(bytes.len().min(16));
    let mut rest = Bytes(rest.to_vec());
    tx.post_send(WorkId(1 << 40), head, &mut rest, SendOptions::default()).expect("room");
    pair.world.run();
}

/// Address and key may be any: nobody reads there.
fn offer(len: u32) -> Body {
    let mut random = Random(u64::from(len) | 1 << 40);
    let buffer = RemoteSlice { addr: random.next(), len, rkey: Rkey(random.next() as u32) };
    Body::SrcAvail(SrcAvail { buffer })
}

/// The messages that have come to the acceptor's queue pair.
fn answers(pair: &mut Pair) -> Vec<Message> {
    let now = pair.world.now_ns();
    let _ = pair.connector.tend(now);
    pair.world.run();
    let rx = pair.acceptor.rx.as_mut().expect("a queue pair");
    let mut found = Vec::new();
    while let Ok(Some(received)) = rx.poll_receive() {
        let copy = |into: &mut [u8]| rx.copy_header(received, into);
        found.push(Message::read(received.len, copy).expect("well formed"));
        rx.release(received);
    }
    found
}

fn is_send_sm(message: &Message, of: u32) -> bool {
    message.body == Body::SendSm && message.header.mseq_ack >= of
}

#[test]
fn each_offer_is_answered_and_the_stream_goes_on() {
    let mut pair = Pair::new(3, options());
    let mut raw = Raw::begin(&mut pair);
    for (turn, inline) in [1, 2, 900, 1].into_iter().enumerate() {
        raw.post(&mut pair, offer(inline as u32 + 1500), inline);
        // What it carries is delivered at once; the end checks every byte.
        assert_eq!(pair.connector.recv(5000, false), Ok(inline as usize), "turn {turn}");
        assert_eq!(pair.connector.recv(5000, false), Err(RecvError::WouldBlock));
        let answers = answers(&mut pair);
        let count = answers.iter().filter(|answer| is_send_sm(answer, raw.mseq)).count();
        assert_eq!(count, 1, "turn {turn}: {answers:?}");
        raw.ack = answers.last().expect("one at least").header.mseq;
        // The rest, as the sink has asked for it.
        for part in [700, 800] {
            raw.post(&mut pair, Body::Data, part);
            assert_eq!(pair.connector.recv(5000, false), Ok(part as usize), "turn {turn}");
        }
        // The other direction.
        let now = pair.world.now_ns();
        assert_eq!(pair.connector.send(300, now), Ok(300));
        pair.world.run();
        let data = self::answers(&mut pair);
        assert!(data.iter().any(|message| message.payload_len() == 300), "{data:?}");
        assert!(!data.iter().any(|message| message.body == Body::SendSm), "{data:?}");
        raw.ack = data.last().expect("one at least").header.mseq;
    }
    assert!(!pair.connector.shared.is_broken());
}

/// The connection is reset, since the protocol was violated, and no byte is delivered.
fn ends(pair: &mut Pair, story: &str) {
    let got = pair.connector.recv(5000, false);
    // The short path, which finds it, leaves it to the long one, which is told.
    let is_broken = matches!(got, Err(RecvError::Broken(Reason::Message(_) | Reason::Told)));
    assert!(is_broken, "{story}: {got:?}");
    let now = pair.world.now_ns();
    let sent = pair.connector.send(1, now);
    assert!(matches!(sent, Err(SendError::Broken(_))), "{story}: {sent:?}");
}

#[test]
fn offers_that_cannot_be_honest() {
    // Length of the buffer, and how much of it is in the message.
    let absurd = [(0, 0), (0, 1), (1, 1), (10, 10), (10, 11), (500, 0), (1 << 31, 0)];
    for (len, inline) in absurd.into_iter().chain([((1 << 31) + 1, 1), (u32::MAX, 1)]) {
        let story = format!("{inline} of {len}");
        let mut pair = Pair::new(4, options());
        let mut raw = Raw::begin(&mut pair);
        raw.post(&mut pair, offer(len), inline);
        ends(&mut pair, &story);
        assert_eq!(pair.connector.received, pair.acceptor.sent, "{story}");
    }
    // As much as there may be is an honest one.
    let mut pair = Pair::new(4, options());
    let mut raw = Raw::begin(&mut pair);
    raw.post(&mut pair, offer(1 << 31), 1);
    assert_eq!(pair.connector.recv(5000, false), Ok(1));
    // Cut short: in the middle of what describes the buffer.
    for len in 16..32u8 {
        let mut pair = Pair::new(4, options());
        let raw = Raw::begin(&mut pair);
        let mut bytes = vec![0xfe, 0, 0, 8, 0, 0, 0, len, 0, 0, 0, raw.mseq as u8 + 1, 0, 0, 0, 1];
        bytes.resize(usize::from(len), 1);
        post(&mut pair, &bytes);
        ends(&mut pair, &format!("{len} bytes"));
    }
}

/// Bytes or another offer behind one that was not answered, from a peer that cannot have seen the
/// answer.
#[test]
fn what_may_not_follow_an_offer() {
    for (body, story) in [(offer(400), "another offer"), (Body::Data, "Data")] {
        let mut pair = Pair::new(5, options());
        let mut raw = Raw::begin(&mut pair);
        raw.post(&mut pair, offer(100), 7);
        raw.post(&mut pair, body, 5);
        ends(&mut pair, story);
    }
}

/// Before the PROOF was read nothing on the queue pair is listened to, and the stream is TCP's.
#[test]
fn an_offer_before_the_proof() {
    let mut pair = Pair::new(6, options());
    pair.ask();
    for _ in 0..20 {
        pair.world.run_for(1_000_000);
        pair.manage();
    }
    let mut raw = Raw { mseq: 0, ack: 0, sent: pair.acceptor.sent };
    raw.post(&mut pair, offer(5000), 3);
    let end = &mut pair.connector;
    let (rx, shared) = (end.rx.as_mut().expect("a queue pair"), &end.shared);
    assert_eq!(end.inbound.gather(rx, &end.tcp, shared), Ok(()));
    assert_eq!(pair.connector.recv(5000, false), Err(RecvError::WouldBlock));
    let now = pair.world.now_ns();
    assert_eq!(pair.connector.send(10, now), Ok(10));
    assert!(!pair.connector.outbound.is_on_sdp() && !pair.connector.shared.is_broken());
    assert!(answers(&mut pair).is_empty(), "nobody who has not proven himself is answered");
}
