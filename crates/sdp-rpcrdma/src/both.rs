//! A requester and a responder, with memory between them.

use crate::{
    bounds,
    private_data::Offer,
    requester::{Arrival, Needs, Requester, Settings},
    responder::{self, Incoming, Piece, Responder},
    rule::Rule,
    wire::{Bytes, Segment, chunk_error, version_error},
};

const OFFER: Offer = Offer { remote_invalidation: false, sends: 4096, receives: 4096 };
const MOST: u32 = 2 << 20;
/// Keys of the requester's memory for calls and for replies.
const CALLS: u32 = 0x77;
const REPLIES: u32 = 0x78;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn requester(credits: u32, theirs: Offer) -> Requester {
    Requester::new(Settings { credits, ours: OFFER, theirs })
}

fn segment(handle: u32, length: u32) -> Segment {
    Segment { handle, length, offset: 0xa75a_9bce_43f0_a000 }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(bound)) as u32
    }
}

#[test]
fn a_null_call_as_it_travels() {
    let mut requester = requester(128, OFFER);
    let header = requester.call(0x965a_9bce, 40, None, None).unwrap();
    assert_eq!(header.as_slice(), words(&[0x965a_9bce, 1, 128, 0, 0, 0, 0]));
    let reply = words(&[0x965a_9bce, 1, 64, 0, 0, 0, 0, 0x965a_9bce, 1, 0, 0, 0, 0]);
    let arrival = requester.arrive(&reply, reply.len());
    assert_eq!(arrival, Arrival::Reply { xid: 0x965a_9bce, from: 28 });
    assert_eq!((requester.credits(), requester.in_flight()), (64, 0));
}

#[test]
fn a_long_call_and_a_long_reply_as_they_travel() {
    let mut requester = requester(128, OFFER);
    let call = segment(0x1dd9, 4096);
    let header = requester.call(0x52e7_3210, 728, Some(call), None).unwrap();
    let wanted = [0x52e7_3210, 1, 128, 1, 1, 0, 0x1dd9, 728, 0xa75a_9bce, 0x43f0_a000, 0, 0, 0];
    assert_eq!(header.as_slice(), words(&wanted));
    let reply = words(&[0x52e7_3210, 1, 1, 0, 0, 0, 0, 0x52e7_3210, 1]);
    requester.arrive(&reply, reply.len());
    let room = segment(0xba3, 0x10000);
    let header = requester.call(7, 40, None, Some(room)).unwrap();
    let wanted = [7, 1, 128, 0, 0, 0, 1, 1, 0xba3, 0x10000, 0xa75a_9bce, 0x43f0_a000];
    assert_eq!(header.as_slice(), words(&wanted));
    let reply = words(&[7, 1, 8, 1, 0, 0, 1, 1, 0xba3, 1024, 0xa75a_9bce, 0x43f0_a000]);
    assert_eq!(requester.arrive(&reply, reply.len()), Arrival::Long { xid: 7, len: 1024 });
}

#[test]
fn calls_go_as_credits_allow() {
    let mut requester = requester(32, OFFER);
    assert!(requester.may_call());
    requester.call(1, 40, None, None).unwrap();
    assert_eq!(requester.call(1, 40, None, None), Err(Rule::TwiceInFlight));
    assert_eq!(requester.call(2, 40, None, None), Err(Rule::Credits), "one until a grant");
    let answer = |requester: &mut Requester, xid, grant| {
        let reply = words(&[xid, 1, grant, 0, 0, 0, 0, xid, 1, 0, 0, 0, 0]);
        requester.arrive(&reply, reply.len())
    };
    answer(&mut requester, 1, 1000);
    for xid in 0..32 {
        requester.call(xid, 40, None, None).unwrap();
    }
    assert!(!requester.may_call(), "no more than were asked for");
    assert_eq!(answer(&mut requester, 99, 1), Arrival::Drop(Rule::Xid));
    assert_eq!(requester.credits(), 32, "a stranger's grant");
    answer(&mut requester, 0, 0);
    assert_eq!(requester.credits(), 1, "none is one");
    assert!(!requester.may_call());
}

#[test]
fn what_a_call_needs() {
    let of = |call: bool, reply: bool| Needs { call, reply };
    let both = requester(32, OFFER);
    assert_eq!(both.needs(4068, 4068), of(false, false));
    assert_eq!(both.needs(4069, 4068), of(true, false));
    assert_eq!(both.needs(4048, 4069), of(false, true));
    assert_eq!(both.needs(4052, 4069), of(true, true), "no room for both");
    assert_eq!(both.needs(u32::MAX, u32::MAX), of(true, true));
    let small = requester(32, Offer::NONE);
    assert_eq!(small.needs(996, 996), of(false, false));
    assert_eq!(small.needs(997, 997), of(true, true));
    let mut small = requester(32, Offer::NONE);
    assert_eq!(small.call(1, 997, None, None), Err(Rule::Length));
    assert!(small.call(1, 997, Some(segment(1, 4096)), None).is_ok());
}

#[test]
fn refused_and_hostile_replies() {
    let of = |message: &[u32]| {
        let mut requester = requester(32, OFFER);
        requester.call(7, 40, None, Some(segment(5, 100))).unwrap();
        let bytes = words(message);
        (requester.arrive(&bytes, bytes.len()), requester.in_flight())
    };
    let failed = |rule| (Arrival::Failed { xid: 7, rule }, 0);
    let dropped = |rule| (Arrival::Drop(rule), 1);
    let (high, low) = (0xa75a_9bce, 0x43f0_a000);
    assert_eq!(of(&[7, 1, 64, 4, 2]), failed(Rule::ErrChunk));
    assert_eq!(of(&[7, 1, 64, 4, 1, 1, 1]), failed(Rule::ErrVers));
    assert_eq!(of(&[8, 1, 64, 4, 2]), dropped(Rule::ErrChunk));
    assert_eq!(of(&[7, 1, 64, 4]), failed(Rule::Truncated));
    assert_eq!(of(&[7, 1, 64]), dropped(Rule::TooShort));
    assert_eq!(of(&[7, 2, 64, 0, 0, 0, 0, 7, 1]), dropped(Rule::Version));
    assert_eq!(of(&[7, 1, 64, 3, 0, 0, 0]), dropped(Rule::Done));
    assert_eq!(of(&[7, 1, 64, 2, 0, 0, 0]), failed(Rule::Procedure));
    assert_eq!(of(&[7, 1, 64, 0, 1, 0, 5]), failed(Rule::Truncated));
    assert_eq!(of(&[7, 1, 64, 0, 0, 1, u32::MAX]), failed(Rule::Truncated));
    let read = [7, 1, 64, 0, 1, 0, 5, 8, high, low, 0, 0, 0, 7, 1];
    assert_eq!(of(&read), failed(Rule::ReadListInReply));
    let write = [7, 1, 64, 0, 0, 1, 1, 5, 8, high, low, 0, 0, 7, 1];
    assert_eq!(of(&write), failed(Rule::WriteChunks));
    let chunk = |key, length, low| of(&[7, 1, 64, 1, 0, 0, 1, 1, key, length, high, low]);
    assert_eq!(chunk(5, 100, low), (Arrival::Long { xid: 7, len: 100 }, 0));
    assert_eq!(chunk(5, 101, low), failed(Rule::ReplyChunk));
    assert_eq!(chunk(6, 100, low), failed(Rule::ReplyChunk));
    assert_eq!(chunk(5, 100, low + 4), failed(Rule::ReplyChunk));
    assert_eq!(chunk(5, 7, low), failed(Rule::NothingToRead));
    assert_eq!(of(&[7, 1, 64, 1, 0, 0, 0]), failed(Rule::NothingToRead));
    let used = [7, 1, 64, 0, 0, 0, 1, 1, 5, 8, high, low, 7, 1];
    assert_eq!(of(&used), failed(Rule::ReplyChunk));
    assert_eq!(of(&[7, 1, 64, 0, 0, 0, 0, 8, 1]), failed(Rule::Xid));
    assert_eq!(of(&[7, 1, 64, 0, 0, 0, 0, 7]), failed(Rule::NotACall));
    assert_eq!(of(&[7, 1, 64, 0, 0, 0, 0, 7, 2]), failed(Rule::NotACall));
    // Nothing was offered.
    let mut bare = requester(32, OFFER);
    bare.call(7, 40, None, None).unwrap();
    let reply = words(&[7, 1, 64, 1, 0, 0, 1, 1, 5, 100, high, low]);
    let arrival = bare.arrive(&reply, reply.len());
    assert_eq!(arrival, Arrival::Failed { xid: 7, rule: Rule::ReplyChunk });
}

#[test]
fn callbacks_and_their_answers() {
    let mut requester = requester(32, OFFER);
    requester.call(3, 40, None, None).unwrap();
    let callback = |xid: u32| words(&[xid, 1, 2, 0, 0, 0, 0, xid, 0, 2, 5]);
    let arrive = |requester: &mut Requester, xid| {
        let bytes = callback(xid);
        requester.arrive(&bytes, bytes.len())
    };
    // An XID that a call has: the directions' XIDs are apart.
    assert_eq!(arrive(&mut requester, 3), Arrival::Callback(28));
    assert_eq!(arrive(&mut requester, 3), Arrival::Drop(Rule::TwiceInFlight));
    assert_eq!(arrive(&mut requester, 4), Arrival::Callback(28));
    assert_eq!(arrive(&mut requester, 5), Arrival::Drop(Rule::Credits));
    assert!(requester.callback_reply(9, 24).is_none(), "nobody's");
    let header = requester.callback_reply(3, 4068).unwrap();
    assert_eq!(header.as_slice(), words(&[3, 1, 2, 0, 0, 0, 0]));
    assert!(requester.callback_reply(3, 24).is_none(), "it has its answer");
    assert!(requester.callback_reply(4, 4069).is_none(), "too long");
    assert_eq!(arrive(&mut requester, 5), Arrival::Callback(28));
    assert_eq!((requester.in_flight(), requester.credits()), (1, 1));
}

/// Moves a call's parts as a gateway does.
fn gather(incoming: &Incoming, message: &[u8], calls: &[u8]) -> Vec<u8> {
    let mut whole = vec![0; incoming.len() as usize];
    incoming.pieces(|piece| match piece {
        Piece::Inline { from, to, len } => {
            let (from, to, len) = (from as usize, to as usize, len as usize);
            whole[to..to + len].copy_from_slice(&message[from..from + len]);
        }
        Piece::Read { segment, to } => {
            assert_eq!(segment.handle, CALLS);
            let from = (segment.offset - self::segment(0, 0).offset) as usize;
            let (to, len) = (to as usize, segment.length as usize);
            whole[to..to + len].copy_from_slice(&calls[from..from + len]);
        }
        Piece::Pad { .. } => panic!("nothing is padded"),
    });
    whole
}

/// Calls and replies of random lengths arrive unchanged, whatever the two ends' limits, also when
/// the connection is lost at random moments and calls are sent again.
#[test]
fn what_a_requester_sends_arrives_and_comes_back() {
    let random = &mut Random(5);
    let mut forms = [0; 4];
    for round in 0..300u32 {
        let theirs =
            Offer { sends: 1024 << random.below(3), receives: 1024 << random.below(3), ..OFFER };
        let terms = responder::Settings { credits: 8, ours: theirs, theirs: OFFER, most: MOST };
        let mut requester = self::requester(32, theirs);
        let mut responder = Responder::new(terms);
        for step in 0..100u32 {
            let xid = round << 8 | step;
            let any = |random: &mut Random| {
                let most = 1 << (4 + random.below(10));
                24 + random.below(most)
            };
            let (len, reply_len) = (any(random), any(random));
            let mut call = words(&[xid, 0, 2, 100_003, 4, 1]);
            call.resize(len as usize, step as u8);
            let mut reply = words(&[xid, 1, 0, 0, 0, 0]);
            reply.resize(reply_len as usize, !step as u8);
            if random.below(20) == 0 {
                // Lost while the call was away.
                requester.call(xid, 24, None, None).unwrap();
                requester = self::requester(32, theirs);
                responder = Responder::new(terms);
            }
            let Needs { call: is_long, reply: has_room } = requester.needs(len, reply_len);
            let whole = is_long.then(|| segment(CALLS, 1 << 20));
            let room = has_room.then(|| segment(REPLIES, reply_len));
            let header = requester.call(xid, len, whole, room).expect("it may go");
            let mut message = header.as_slice().to_vec();
            if !is_long {
                message.extend(&call);
            }
            assert!(message.len() <= theirs.receives.min(4096) as usize);
            let incoming = match responder.arrive(&message, message.len()) {
                responder::Arrival::Call(incoming) => incoming,
                other => panic!("{other:?}"),
            };
            assert_eq!(incoming.is_long(), is_long);
            assert_eq!(gather(&incoming, &message, &call), call);
            let slot = responder.begin(&incoming).unwrap();
            responder.complete(slot, &call[..24]).unwrap();
            let mut replies = vec![0; reply_len as usize];
            let answer = responder
                .reply(slot, &reply, |transfer| {
                    assert_eq!(transfer.segment.handle, REPLIES);
                    let to = (transfer.segment.offset - segment(0, 0).offset) as usize;
                    let (from, len) = (transfer.from as usize, transfer.segment.length as usize);
                    replies[to..to + len].copy_from_slice(&reply[from..from + len]);
                })
                .expect("there is room");
            let mut message = answer.header.as_slice().to_vec();
            for (from, len) in answer.inline {
                message.extend(&reply[from as usize..(from + len) as usize]);
            }
            match requester.arrive(&message, message.len()) {
                Arrival::Reply { xid: of, from } => {
                    assert_eq!((of, &message[from..]), (xid, &reply[..]));
                }
                Arrival::Long { xid: of, len } => {
                    assert_eq!((of, &replies[..len as usize]), (xid, &reply[..]));
                    forms[2] += 1;
                }
                other => panic!("{other:?}"),
            }
            forms[usize::from(is_long)] += 1;
            forms[3] += usize::from(has_room);
            assert_eq!(requester.credits(), 8);
        }
    }
    assert!(forms.iter().all(|count| *count > 1000), "{forms:?}");
}

/// Whatever a responder sends, nothing is believed that was not offered, and no call is forgotten
/// without a word.
#[test]
fn any_bytes_from_a_responder() {
    let random = &mut Random(9);
    for _ in 0..100_000 {
        let mut requester = requester(4, OFFER);
        let room = (random.below(2) == 0).then(|| segment(REPLIES, 100));
        requester.call(7, 40, None, room).unwrap();
        let count = random.below(20) as usize;
        let common = [0, 1, 2, 7, REPLIES, 100, 0xa75a_9bce, 0x43f0_a000, u32::MAX];
        let mut message: Vec<u32> = vec![7, 1, 9, random.below(6)];
        for _ in 0..count {
            message.push(common[random.below(common.len() as u32) as usize]);
        }
        let mut bytes = words(&message);
        bytes.truncate(bytes.len() - random.below(4) as usize);
        match requester.arrive(&bytes, bytes.len()) {
            Arrival::Reply { xid, from } => assert!(xid == 7 && from + 8 <= bytes.len()),
            Arrival::Long { xid, len } => assert!(xid == 7 && len <= 100 && room.is_some()),
            Arrival::Failed { xid, .. } => assert_eq!(xid, 7),
            Arrival::Callback(_) | Arrival::Drop(_) => {
                assert_eq!(requester.in_flight(), 1);
                continue;
            }
        }
        assert_eq!(requester.in_flight(), 0);
    }
}

#[test]
fn a_responders_errors_are_understood() {
    let mut requester = requester(4, OFFER);
    requester.call(7, 40, None, None).unwrap();
    let error = chunk_error(7, 3);
    let arrival = requester.arrive(error.as_slice(), error.as_slice().len());
    assert_eq!(arrival, Arrival::Failed { xid: 7, rule: Rule::ErrChunk });
    assert_eq!(requester.credits(), 3);
    requester.call(8, 40, None, None).unwrap();
    let error: Bytes<28> = version_error(8, 1, 3);
    let arrival = requester.arrive(error.as_slice(), error.as_slice().len());
    assert_eq!(arrival, Arrival::Failed { xid: 8, rule: Rule::ErrVers });
}

#[test]
fn the_bound_of_a_reply_decides_on_its_chunk() {
    let requester = requester(4, OFFER);
    let call = |count: u32| words(&[7, 0, 2, 100_003, 3, 6, 0, 0, 0, 0, 8, 1, 1, 0, 0, count]);
    let needs = |count| {
        let call = call(count);
        requester.needs(call.len() as u32, bounds::reply_of(&call).unwrap())
    };
    assert_eq!(needs(1024), Needs { call: false, reply: false });
    assert_eq!(needs(8192), Needs { call: false, reply: true });
}
