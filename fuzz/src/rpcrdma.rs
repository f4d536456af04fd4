//! Messages to a responder of RPC-over-RDMA, most of them nearly right, and replies of a server that
//! lies about lengths; the same messages to a requester: nothing panics, what is taken lies within
//! its limits, and each call ends once.

use sdp_rpcrdma::{
    bounds,
    private_data::Offer,
    requester::{self, Requester},
    responder::{Arrival, Piece, Responder, Settings},
    wire::{HEADER_MAX, Segment},
};

use crate::random::Random;

/// Bytes of the longest RPC message.
const MOST: u32 = 1 << 20;
/// Bytes of the longest message.
const MESSAGE: usize = 4096;

fn offer(random: &mut Random) -> Offer {
    let mut bytes = random.bytes(60);
    let at = random.below(40) as usize;
    if random.once_in(2) && bytes.len() >= at + 8 {
        let size = random.next() as u8;
        bytes[at..at + 8].copy_from_slice(&[0xf6, 0xab, 0x0e, 0x18, 1, 1, size, size]);
    }
    Offer::find(&bytes)
}

fn chunk(random: &mut Random, words: &mut Vec<u32>) {
    let most = if random.once_in(8) { 40 } else { 4 };
    let count = random.below(most) as u32;
    words.push(if random.once_in(16) { random.evil(32) as u32 } else { count });
    for _ in 0..count {
        words.extend([random.below(3) as u32, random.evil(8192) as u32, 0, random.next() as u32]);
    }
}

fn message(random: &mut Random) -> Vec<u8> {
    let xid = random.below(40) as u32;
    let version = if random.once_in(30) { random.next() as u32 } else { 1 };
    let procedure = *random.pick(&[0, 0, 0, 0, 1, 1, 2, 3, 4, 5]);
    let mut words = vec![xid, version, random.evil(32) as u32, procedure];
    while random.once_in(3) {
        let position = if random.once_in(2) { 0 } else { random.evil(64) as u32 & !3 };
        words.extend([1, position, 5, random.evil(4096) as u32, 0, 0]);
    }
    words.push(0);
    while random.once_in(3) {
        words.push(1);
        chunk(random, &mut words);
    }
    words.push(0);
    if random.once_in(3) {
        words.push(1);
        chunk(random, &mut words);
    } else {
        words.push(0);
    }
    words.extend([xid, random.below(3) as u32, 2, 100_003, 3 + random.below(2) as u32]);
    words.push(*random.pick(&[1, 5, 6]));
    words.extend((0..random.below(60)).map(|_| random.next() as u32));
    if random.once_in(4) {
        let at = random.below(words.len() as u64) as usize;
        words[at] = random.evil(16) as u32;
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    if random.once_in(4) {
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
    }
    bytes.truncate(MESSAGE);
    bytes
}

fn reply(random: &mut Random, xid: u32) -> Vec<u8> {
    let mut words = vec![xid, 1, 0, 0, 0, 0, 0];
    for _ in 0..random.below(200) {
        let small = random.below(60) as u32;
        words.push(if random.once_in(9) { random.evil(32) as u32 } else { small });
    }
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A requester's connection: what comes are messages of any kind.
fn asked(random: &mut Random) {
    let ours = Offer { remote_invalidation: false, sends: 4096, receives: 4096 };
    let credits = 1 + random.below(20) as u32;
    let theirs = offer(random);
    let mut requester = Requester::new(requester::Settings { credits, ours, theirs });
    let mut open: Vec<(u32, Option<u32>)> = Vec::new();
    for _ in 0..64 {
        let xid = random.below(40) as u32;
        let room = random.once_in(2).then(|| random.below(9000) as u32);
        let segment = |length: u32| Segment { handle: 5, length, offset: 0 };
        let whole = random.once_in(2).then(|| segment(9000));
        let len = 24 + random.below(5000) as u32;
        if let Ok(header) = requester.call(xid, len, whole, room.map(segment)) {
            let inline = if whole.is_some() { 0 } else { len as usize };
            assert!(header.as_slice().len() + inline <= requester.call_limit() as usize);
            open.push((xid, room));
        }
        assert!(
            open.len() == requester.in_flight() && (1..=credits).contains(&requester.credits())
        );
        let bytes = message(random);
        let _ = bounds::reply_of(&bytes);
        let at = |xid: u32| open.iter().position(|(of, _)| *of == xid).expect("a call");
        match requester.arrive(&bytes, bytes.len()) {
            requester::Arrival::Reply { xid, from } => {
                assert!(from + 8 <= bytes.len());
                open.remove(at(xid));
            }
            requester::Arrival::Long { xid, len } => {
                let (_, room) = open.remove(at(xid));
                assert!(room.is_some_and(|room| len <= room));
            }
            requester::Arrival::Failed { xid, .. } => {
                open.remove(at(xid));
            }
            requester::Arrival::Callback(from) => {
                assert!(from + 8 <= bytes.len());
                if random.once_in(2) {
                    requester.callback_reply(xid, random.below(5000) as usize);
                }
            }
            requester::Arrival::Drop(_) => {}
        }
    }
}

/// A connection of some messages.
pub fn round(random: &mut Random) {
    asked(random);
    let credits = 1 + random.below(20) as u32;
    let ours = Offer { remote_invalidation: false, sends: 4096, receives: 4096 };
    let theirs = offer(random);
    let mut responder = Responder::new(Settings { credits, ours, theirs, most: MOST });
    let limit = responder.reply_limit() as usize;
    assert!((1024..=4096).contains(&limit), "{limit}");
    let mut open: Vec<(usize, u32)> = Vec::new();
    for _ in 0..64 {
        let bytes = message(random);
        match responder.arrive(&bytes, bytes.len()) {
            Arrival::Call(incoming) => {
                assert!(incoming.len() <= MOST && incoming.reply_room() <= MOST + 4096);
                let (mut all, mut reads) = (0u64, 0);
                incoming.pieces(|piece| {
                    let (to, len) = match piece {
                        Piece::Inline { from, to, len } => {
                            assert!((from + len) as usize <= bytes.len());
                            (to, len)
                        }
                        Piece::Read { segment, to } => {
                            reads += 1;
                            (to, segment.length)
                        }
                        Piece::Pad { to, len } => (to, len),
                    };
                    assert!(u64::from(to) + u64::from(len) <= u64::from(incoming.len()));
                    all += u64::from(len);
                });
                assert_eq!(all, u64::from(incoming.len()));
                assert!(reads <= 65, "one segment may be cut");
                let Ok(slot) = responder.begin(&incoming) else { continue };
                let head = [incoming.xid(), random.below(9) as u32 / 8, 2, 100_003, 3, 6];
                let head: Vec<u8> = head.iter().flat_map(|word| word.to_be_bytes()).collect();
                if responder.complete(slot, &head).is_ok() {
                    open.push((slot, incoming.xid()));
                }
            }
            Arrival::Refuse(answer, _) => assert!((20..=28).contains(&answer.as_slice().len())),
            Arrival::CallbackReply(at) => assert!(at <= bytes.len()),
            Arrival::Drop(_) => {}
        }
        if random.once_in(6) {
            let _ = responder.callback(random.below(4) as u32, random.below(5000) as usize);
        }
        if !open.is_empty() && random.once_in(2) {
            let (slot, xid) = open.swap_remove(random.below(open.len() as u64) as usize);
            assert_eq!(responder.find(xid), Some(slot));
            let record = reply(random, xid);
            let given = responder.reply(slot, &record, |transfer| {
                let end = u64::from(transfer.from) + u64::from(transfer.segment.length);
                assert!(end <= record.len() as u64);
            });
            if let Ok(given) = given {
                let inline: u32 = given.inline.iter().map(|(_, len)| len).sum();
                let header = given.header.as_slice().len();
                assert!(header <= HEADER_MAX && header + inline as usize <= limit);
            }
            assert_eq!(responder.find(xid), None, "a call ends once");
        }
        assert_eq!(responder.in_flight(), open.len());
    }
}
