//! Messages as Linux 6.1 sends them, hostile ones, and properties of the responder.

use crate::{
    private_data::Offer,
    responder::{Arrival, Form, Incoming, Piece, Reply, Responder, Settings, Transfer},
    rule::Rule,
    wire::{Segment, chunk_error, version_error},
};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

const THEIRS: Offer = Offer { remote_invalidation: true, sends: 4096, receives: 4096 };
const MOST: u32 = 2 << 20;

fn responder(theirs: Offer) -> Responder {
    let ours = Offer { remote_invalidation: false, ..THEIRS };
    Responder::new(Settings { credits: 64, ours, theirs, most: MOST })
}

fn call(responder: &mut Responder, message: &[u8]) -> Incoming {
    match responder.arrive(message, message.len()) {
        Arrival::Call(incoming) => incoming,
        other => panic!("{other:?}"),
    }
}

fn pieces(incoming: &Incoming) -> Vec<Piece> {
    let mut found = Vec::new();
    incoming.pieces(|piece| found.push(piece));
    found
}

/// A reply, or the error in its place.
type Answered = Result<Reply, (Vec<u8>, Rule)>;

/// Takes the call and gives it this reply.
fn answered(
    responder: &mut Responder,
    message: &[u8],
    head: &[u8],
    reply: &[u8],
) -> (Answered, Vec<Transfer>) {
    let incoming = call(responder, message);
    let slot = responder.begin(&incoming).unwrap();
    responder.complete(slot, head).unwrap();
    let mut transfers = Vec::new();
    let reply = responder.reply(slot, reply, |transfer| transfers.push(transfer));
    assert_eq!(responder.in_flight(), 0);
    (reply.map_err(|(bytes, rule)| (bytes.as_slice().to_vec(), rule)), transfers)
}

const NULL_CALL: &str = "965a9bce 00000001 00000080 00000000 00000000 00000000 00000000
    965a9bce 00000000 00000002 000186a3 00000003 00000000 00000000 00000000 00000000 00000000";

#[test]
fn a_null_call_and_its_reply() {
    let message = hex(NULL_CALL);
    assert_eq!(message.len(), 68);
    let mut responder = responder(THEIRS);
    let incoming = call(&mut responder, &message);
    assert_eq!(pieces(&incoming), [Piece::Inline { from: 28, to: 0, len: 40 }]);
    assert!(!incoming.has_chunks() && incoming.len() == 40 && incoming.reply_room() == 4096);
    let reply = hex("965a9bce 00000001 00000000 00000000 00000000 00000000");
    let (answer, transfers) = answered(&mut responder, &message, &message[28..], &reply);
    let answer = answer.unwrap();
    let header = hex("965a9bce 00000001 00000040 00000000 00000000 00000000 00000000");
    assert_eq!(answer.header.as_slice(), header);
    assert_eq!((answer.inline, answer.form), ([(0, 24), (0, 0)], Form::Inline));
    assert!(transfers.is_empty() && answer.invalidate.is_none());
}

const READ_CALL: &str = "a75a9bce 00000001 00000080 00000000 00000000
    00000001 00000001 00000976 00002000 a75a9bce43f0a000 00000000 00000000
    a75a9bce 00000000 00000002 000186a3 00000003 00000006
    00000001 0000001c 00000000 00000006 286e6f6e 65290000 00000000 00000000 00000000
    00000000 00000000 00000014 01000101 00000000 25a07677 67000000 00000000
    00000000 0000a000 00002000";

fn read_reply(data: u32) -> Vec<u8> {
    let mut reply = hex("a75a9bce 00000001 00000000 00000000 00000000 00000000 00000000 00000001");
    reply.extend([0x55; 84]);
    reply.extend(words(&[data, 0, data]));
    reply.extend(std::iter::repeat_n(0xda, data.next_multiple_of(4) as usize));
    reply
}

#[test]
fn a_read_of_8_kib_goes_into_the_write_chunk() {
    let message = hex(READ_CALL);
    assert_eq!(message.len(), 52 + 104);
    for (data, length) in [(8192, "00002000"), (3001, "00000bb9"), (0, "00000000")] {
        let mut responder = responder(THEIRS);
        let reply = read_reply(data);
        let (answer, transfers) = answered(&mut responder, &message, &message[52..], &reply);
        let answer = answer.unwrap();
        let header = format!(
            "a75a9bce 00000001 00000040 00000000 00000000
            00000001 00000001 00000976 {length} a75a9bce43f0a000 00000000 00000000"
        );
        assert_eq!(answer.header.as_slice(), hex(&header), "{data}");
        assert_eq!((answer.form, answer.invalidate), (Form::Reduced, Some(0x976)));
        assert_eq!(answer.inline, [(0, 128), (128 + data.next_multiple_of(4), 0)]);
        let segment = Segment { handle: 0x976, length: data, offset: 0xa75a_9bce_43f0_a000 };
        let wanted = Transfer { from: 128, segment };
        assert_eq!(transfers, if data == 0 { vec![] } else { vec![wanted] });
    }
    let (answer, transfers) =
        answered(&mut responder(THEIRS), &message, &message[52..], &read_reply(8193));
    let error = chunk_error(0xa75a_9bce, 64).as_slice().to_vec();
    assert_eq!(answer.unwrap_err(), (error, Rule::WriteChunkTooSmall));
    assert!(transfers.is_empty(), "nothing is written in part");
}

#[test]
fn an_odd_read_leaves_its_second_segment_unused() {
    let mut message = words(&[7, 1, 128, 0, 0, 1, 2, 0x10, 4999, 0, 64, 0x11, 4, 0, 5063, 0, 0]);
    let head = words(&[7, 0, 2, 100_003, 3, 6]);
    message.extend(&head);
    let mut reply = read_reply(4999);
    reply[..4].copy_from_slice(&7u32.to_be_bytes());
    let (answer, transfers) = answered(&mut responder(THEIRS), &message, &head, &reply);
    let answer = answer.unwrap();
    let lists = words(&[7, 1, 64, 0, 0, 1, 2, 0x10, 4999, 0, 64, 0x11, 0, 0, 5063, 0, 0]);
    assert_eq!(answer.header.as_slice(), lists);
    assert_eq!(transfers.len(), 1);
    assert_eq!(answer.invalidate, None, "two keys");
}

#[test]
fn a_write_is_read_from_the_client() {
    let mut message = hex("b45a9bce 00000001 00000080 00000000
        00000001 00000070 00000979 00002000 b45a9bce43fe6000 00000000 00000000 00000000");
    let rpc = [words(&[0xb45a_9bce, 0, 2, 100_003, 3, 7]), vec![0x77; 88]].concat();
    message.extend(&rpc);
    let incoming = call(&mut responder(THEIRS), &message);
    let segment = Segment { handle: 0x979, length: 8192, offset: 0xb45a_9bce_43fe_6000 };
    assert_eq!(
        pieces(&incoming),
        [Piece::Inline { from: 52, to: 0, len: 112 }, Piece::Read { segment, to: 112 }]
    );
    assert_eq!((incoming.len(), incoming.is_long()), (8304, false));
}

#[test]
fn what_follows_a_read_chunk_comes_behind_its_padding() {
    let mut message = words(&[9, 1, 8, 0, 1, 24, 5, 3, 0, 16, 1, 24, 6, 2, 0, 32, 0, 0, 0]);
    message.extend(words(&[9, 0, 2, 3, 4, 5, 0xa, 0xb]));
    let incoming = call(&mut responder(THEIRS), &message);
    let segment = |handle, length, offset| Segment { handle, length, offset };
    assert_eq!(
        pieces(&incoming),
        [
            Piece::Inline { from: 76, to: 0, len: 24 },
            Piece::Inline { from: 100, to: 32, len: 8 },
            Piece::Read { segment: segment(5, 3, 16), to: 24 },
            Piece::Read { segment: segment(6, 2, 32), to: 27 },
            Piece::Pad { to: 29, len: 3 },
        ]
    );
    assert_eq!(incoming.len(), 40);
}

#[test]
fn a_long_reply_goes_into_the_reply_chunk() {
    let head = words(&[0xa05a_9bce, 0, 2, 100_003, 3, 17]);
    let mut message = hex("a05a9bce 00000001 00000080 00000000 00000000 00000000 00000001 00000003
        00000c6a 0000007c a05a9bce4485f800 00000ba3 00010000 a05a9bce8ac20000
        00000a4a 00000004 a05a9bce4485f87c");
    message.extend(&head);
    let reply = [words(&[0xa05a_9bce, 1]), vec![3; 1016]].concat();
    // One that fits goes inline, and the chunk comes back unused.
    let (answer, transfers) = answered(&mut responder(THEIRS), &message, &head, &reply);
    assert_eq!(answer.unwrap().form, Form::Inline);
    assert!(transfers.is_empty());
    let small = Offer { receives: 1024, ..THEIRS };
    let (answer, transfers) = answered(&mut responder(small), &message, &head, &reply);
    let answer = answer.unwrap();
    let header = hex("a05a9bce 00000001 00000040 00000001 00000000 00000000 00000001 00000003
        00000c6a 0000007c a05a9bce4485f800 00000ba3 00000384 a05a9bce8ac20000
        00000a4a 00000000 a05a9bce4485f87c");
    assert_eq!(answer.header.as_slice(), header);
    assert_eq!((answer.form, answer.invalidate), (Form::Long, None));
    let lengths: Vec<_> = transfers.iter().map(|t| (t.from, t.segment.length)).collect();
    assert_eq!(lengths, [(0, 124), (124, 900)]);
}

#[test]
fn a_reply_without_room_is_an_error() {
    let message = hex(NULL_CALL);
    let reply = [words(&[0x965a_9bce, 1]), vec![0; 4096]].concat();
    let (answer, _) = answered(&mut responder(THEIRS), &message, &message[28..], &reply);
    let error = chunk_error(0x965a_9bce, 64).as_slice().to_vec();
    assert_eq!(answer.unwrap_err(), (error, Rule::ReplyTooLong));
}

#[test]
fn a_long_call_is_read_whole() {
    let message = hex("52e73210 00000001 00000080 00000001
        00000001 00000000 00001dd9 000002d8 52e73210848c7000 00000000 00000000 00000000");
    let mut responder = responder(THEIRS);
    let incoming = call(&mut responder, &message);
    let segment = Segment { handle: 0x1dd9, length: 728, offset: 0x52e7_3210_848c_7000 };
    assert_eq!(pieces(&incoming), [Piece::Read { segment, to: 0 }]);
    assert!(incoming.is_long() && incoming.len() == 728);
    // What was read is not the call that the header names.
    let slot = responder.begin(&incoming).unwrap();
    let (answer, rule) = responder.complete(slot, &words(&[1, 0, 2, 3, 4, 5])).unwrap_err();
    assert_eq!((answer, rule), (chunk_error(0x52e7_3210, 64), Rule::Xid));
    assert_eq!(responder.in_flight(), 0);
}

#[test]
fn a_long_call_with_an_item_in_its_middle() {
    let message = words(&[
        5, 1, 1, 1, 1, 0, 7, 20, 0, 100, 1, 0, 8, 20, 0, 200, 1, 24, 9, 5, 0, 300, 0, 0, 0,
    ]);
    let incoming = call(&mut responder(THEIRS), &message);
    let read = |handle, length, offset, to| Piece::Read {
        segment: Segment { handle, length, offset },
        to,
    };
    assert_eq!(
        pieces(&incoming),
        [
            read(7, 20, 100, 0),
            read(8, 4, 200, 20),
            read(8, 16, 204, 32),
            read(9, 5, 300, 24),
            Piece::Pad { to: 29, len: 3 },
        ]
    );
    assert_eq!(incoming.len(), 48);
}

#[test]
fn errors_as_they_travel() {
    let version = hex("52e73210 00000002 00000040 00000004 00000001 00000001 00000001");
    assert_eq!(version_error(0x52e7_3210, 2, 64).as_slice(), version);
    let chunk = hex("52e73210 00000001 00000040 00000004 00000002");
    assert_eq!(chunk_error(0x52e7_3210, 64).as_slice(), chunk);
}

/// What becomes of a message.
fn fate(message: &[u8]) -> (Option<Vec<u8>>, Rule) {
    match responder(THEIRS).arrive(message, message.len()) {
        Arrival::Drop(rule) => (None, rule),
        Arrival::Refuse(answer, rule) => (Some(answer.as_slice().to_vec()), rule),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hostile_headers_are_answered_or_dropped() {
    let head = [7u32, 0, 2, 100_003, 3, 6];
    let dropped = |parts: &[u32], rule| assert_eq!(fate(&words(parts)), (None, rule));
    let refused = |parts: &[&[u32]], rule| {
        let error = chunk_error(7, 64).as_slice().to_vec();
        assert_eq!(fate(&words(&parts.concat())), (Some(error), rule), "{parts:?}");
    };
    dropped(&[], Rule::TooShort);
    dropped(&[7, 1, 1, 0, 0, 0], Rule::TooShort);
    dropped(&[7, 1, 1, 3, 0, 0, 0], Rule::Done);
    dropped(&[7, 1, 1, 4, 2, 0, 0], Rule::ErrorToResponder);
    let version = version_error(7, 2, 64).as_slice().to_vec();
    assert_eq!(fate(&words(&[7, 2, 1, 0, 0, 0, 0])), (Some(version), Rule::Version));
    for procedure in [2, 5, u32::MAX] {
        refused(&[&[7, 1, 1, procedure, 0, 0, 0]], Rule::Procedure);
    }
    refused(&[&[7, 1, 1, 0, 1, 0, 0]], Rule::Truncated);
    refused(&[&[7, 1, 1, 0, 0, 1, u32::MAX]], Rule::Truncated);
    refused(&[&[7, 1, 1, 0, 0, 0, 1]], Rule::Truncated);
    refused(&[&[7, 1, 1, 0, 2, 0, 0]], Rule::Discriminator);
    let many: Vec<u32> = (0..33 * 4).collect();
    refused(&[&[7, 1, 1, 0, 0, 1, 33], &many, &[0, 0], &head], Rule::Segments);
    refused(&[&[7, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0], &head], Rule::WriteChunks);
    let read = |position: u32, length: u32| [1, position, 9, length, 0, 0];
    refused(&[&[7, 1, 1, 0], &read(24, 4), &read(8, 4), &[0, 0, 0], &head], Rule::ReadChunks);
    refused(&[&[7, 1, 1, 0], &read(22, 4), &[0, 0, 0], &head], Rule::Position);
    refused(&[&[7, 1, 1, 0], &read(28, 4), &[0, 0, 0], &head], Rule::Position);
    refused(&[&[7, 1, 1, 0], &read(0, 4), &[0, 0, 0], &head], Rule::Position);
    refused(&[&[7, 1, 1, 0], &read(24, MOST), &[0, 0, 0], &head], Rule::Length);
    let huge = read(24, u32::MAX).repeat(32);
    refused(&[&[7, 1, 1, 0], &huge, &[0, 0, 0], &head], Rule::Length);
    refused(&[&[7, 1, 1, 1, 0, 0, 0]], Rule::NothingToRead);
    refused(&[&[7, 1, 1, 1], &read(0, 0), &[0, 0, 0]], Rule::NothingToRead);
    refused(&[&[7, 1, 1, 1], &read(4, 8), &[0, 0, 0]], Rule::NothingToRead);
    refused(&[&[7, 1, 1, 0, 0, 0, 0]], Rule::NotACall);
    refused(&[&[7, 1, 1, 0, 0, 0, 0, 7, 2]], Rule::NotACall);
    refused(&[&[7, 1, 1, 0, 0, 0, 0, 8, 0, 2]], Rule::Xid);
}

#[test]
fn calls_are_bounded_by_credits_and_their_xids() {
    let mut responder = responder(THEIRS);
    for xid in 0..64 {
        let incoming = call(&mut responder, &words(&[xid, 1, 1, 0, 0, 0, 0, xid, 0]));
        responder.begin(&incoming).unwrap();
        assert_eq!(responder.begin(&incoming), Err(Rule::TwiceInFlight));
    }
    let one_more = call(&mut responder, &words(&[99, 1, 1, 0, 0, 0, 0, 99, 0]));
    assert_eq!(responder.begin(&one_more), Err(Rule::Credits));
    responder.forget(responder.find(5).unwrap());
    assert!(responder.begin(&one_more).is_ok());
}

#[test]
fn callbacks_go_the_other_way() {
    let mut responder = responder(THEIRS);
    assert!(responder.callback(3, 4069).is_none(), "it does not fit");
    let header = responder.callback(3, 4068).unwrap();
    assert_eq!(header.as_slice(), words(&[3, 1, 2, 0, 0, 0, 0]));
    assert!(responder.callback(3, 40).is_some(), "the same one again");
    assert!(responder.callback(4, 40).is_some());
    assert!(responder.callback(5, 40).is_none() && !responder.may_call_back());
    let answer = words(&[3, 1, 8, 0, 0, 0, 0, 3, 1, 0]);
    let arrival = responder.arrive(&answer, answer.len());
    assert!(matches!(arrival, Arrival::CallbackReply(28)), "{arrival:?}");
    let again = responder.arrive(&answer, answer.len());
    assert!(matches!(again, Arrival::Drop(Rule::Xid)), "{again:?}");
    assert!(responder.may_call_back());
}

/// Any numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// A random call without its RPC message: its words, its room by chunk, whether it is long, and the
/// length of the message that is inline.
fn random_call(random: &mut Random, round: u32) -> (Vec<u32>, [u64; 2], bool, u32) {
    let inline = 24 + 4 * random.below(40) as u32;
    let is_long = random.below(4) == 0;
    let mut message = vec![round, 1, 9, u32::from(is_long)];
    let mut base = inline;
    if is_long {
        base = 0;
        for _ in 0..1 + random.below(3) {
            let length = 12 + 4 * random.below(20) as u32;
            message.extend([1, 0, 1, length, 0, base]);
            base += length;
        }
    }
    if random.below(2) == 0 {
        let position = 4 * (1 + random.below(u64::from(base / 4)) as u32);
        for _ in 0..1 + random.below(4) {
            message.extend([1, position, 2, random.below(50) as u32, 0, 0]);
        }
    }
    message.push(0);
    let chunk = |random: &mut Random, message: &mut Vec<u32>, handle: u32| -> u64 {
        let count = random.below(5) as u32;
        message.extend([1, count]);
        let mut total = 0;
        for _ in 0..count {
            let length = random.below(900) as u32;
            message.extend([handle, length, 0, 0]);
            total += u64::from(length);
        }
        total
    };
    let has_write = random.below(2) == 0;
    let mut room = [0; 2];
    if has_write {
        room[0] = chunk(random, &mut message, 3);
    }
    message.push(0);
    if random.below(2) == 0 {
        room[1] = chunk(random, &mut message, 4);
    } else {
        message.push(0);
    }
    (message, room, is_long, inline)
}

/// Of random calls: the pieces fill the message without gap or overlap, and the transfers of a reply
/// take each byte that the message does not have, once and in order, within the chunks offered.
#[test]
fn pieces_and_transfers_are_whole() {
    let random = &mut Random(1);
    for round in 0..20_000u32 {
        let (message, room, is_long, inline) = random_call(random, round);
        let head = [round, 0, 2, 100_003, 3, 6];
        let mut message = words(&message);
        if !is_long {
            message.extend(words(&head));
            message.resize(message.len() + inline as usize - 24, 0);
        }
        let limit = 1024 * (1 + random.below(2) as u32);
        let theirs = Offer { receives: limit, ..THEIRS };
        let mut responder = responder(theirs);
        let incoming = call(&mut responder, &message);
        let mut filled = vec![0u8; incoming.len() as usize];
        incoming.pieces(|piece| {
            let (to, len) = match piece {
                Piece::Inline { from, to, len } => {
                    assert!(from as usize + len as usize <= message.len());
                    (to, len)
                }
                Piece::Read { segment, to } => (to, segment.length),
                Piece::Pad { to, len } => (to, len),
            };
            filled[to as usize..(to + len) as usize].iter_mut().for_each(|times| *times += 1);
        });
        assert!(filled.iter().all(|times| *times == 1), "round {round}: {filled:?}");
        let slot = responder.begin(&incoming).unwrap();
        responder.complete(slot, &words(&head)).unwrap();
        let mut reply = read_reply(random.below(1500) as u32);
        reply[..4].copy_from_slice(&round.to_be_bytes());
        let mut covered = vec![0u8; reply.len()];
        let mut written = [0; 2];
        let answer = responder.reply(slot, &reply, |transfer| {
            let from = transfer.from as usize;
            let to = from + transfer.segment.length as usize;
            covered[from..to].iter_mut().for_each(|times| *times += 1);
            written[transfer.segment.handle as usize - 3] += u64::from(transfer.segment.length);
        });
        assert!(written[0] <= room[0] && written[1] <= room[1], "round {round}");
        let Ok(answer) = answer else { continue };
        let kept: u32 = answer.inline.iter().map(|(_, len)| len).sum();
        assert!(answer.header.as_slice().len() + kept as usize <= limit as usize);
        for (from, len) in answer.inline {
            covered[from as usize..(from + len) as usize].iter_mut().for_each(|times| *times += 1);
        }
        // Padding of the result goes nowhere.
        let pad = if written[0] != 0 || answer.form == Form::Reduced { 3 } else { 0 };
        let missing = covered.iter().filter(|times| **times == 0).count();
        assert!(missing <= pad && covered.iter().all(|times| *times < 2), "round {round}");
    }
}
