//! Hostile bytes: nothing panics, and parsed values equal those that the bytes were made from.
//! Fixed seeds.

#[allow(unreachable_pub, reason = "shared by test crates")]
mod common;

use common::{Options, Pair, Random, bytes_of, raw};
use sdp_proto::{
    Ack, Corrupt, Mode, PendingControl, Sink, SinkConfig, Source, SourceConfig,
    wire::{
        ADVERT_MAX, Body, Flags, Header, Hello, HelloAck, Lane, LaneRequest, LaneSwitch, Message,
        ModeChange, Ring, SinkAvail, SrcAvail,
        hello::{Address, Names},
    },
};
use sdp_rdma::key::{RemoteSlice, Rkey};

const ROUNDS: u32 = 200_000;

fn any_slice(random: &mut Random) -> RemoteSlice {
    RemoteSlice {
        addr: random.next(),
        len: 1 + random.below(u64::from(ADVERT_MAX)) as u32,
        rkey: Rkey(random.next() as u32),
    }
}

fn any_lane(random: &mut Random) -> Lane {
    if random.below(2) == 0 { Lane::Carrier } else { Lane::Sdp }
}

fn any_body(random: &mut Random) -> Body {
    let word = random.next() as u32;
    match random.below(19) {
        0 => Body::DisConn,
        1 => Body::AbortConn,
        2 => Body::SendSm,
        3 => Body::RdmaWrCompl { bytes: word },
        4 => Body::RdmaRdCompl { bytes: word },
        5 => Body::ModeChange(ModeChange {
            for_source: word & 1 != 0,
            mode: Mode::ALL[random.below(3) as usize],
        }),
        6 => Body::SrcAvailCancel,
        7 => Body::SinkAvailCancel,
        8 => Body::SinkCancelAck,
        9 => Body::ChRcvBuf { size: word },
        10 => Body::ChRcvBufAck { size: word },
        11 => Body::SuspComm { service: random.next() },
        12 => Body::SuspCommAck,
        13 => Body::SinkAvail(SinkAvail { buffer: any_slice(random), non_discards: word }),
        14 => Body::SrcAvail(SrcAvail { buffer: any_slice(random) }),
        15 => Body::LaneSwitch(LaneSwitch {
            lane: any_lane(random),
            sequence: word,
            carrier_position: random.next(),
            stream_position: random.next(),
        }),
        16 => Body::LaneRequest(LaneRequest { lane: any_lane(random), sequence: word }),
        17 => Body::Experimental { mid: 0x42 + random.below(0x3e) as u8 },
        _ => Body::Data,
    }
}

fn any_message(random: &mut Random) -> Message {
    let body = any_body(random);
    let payload = if body.may_carry_payload() { random.below(100) as u32 } else { 0 };
    let mut flags = Flags::NONE;
    if random.below(4) == 0 {
        flags = flags.with(Flags::OOB_PEND);
        if body == Body::Data && payload != 0 {
            flags = flags.with(Flags::OOB_PRES);
        }
        if matches!(body, Body::RdmaRdCompl { .. } | Body::RdmaWrCompl { .. }) {
            flags = flags.with(Flags::REQ_PIPE);
        }
    }
    let len = body.header_len() + payload;
    let (mseq, mseq_ack) = (random.next() as u32, random.next() as u32);
    let bufs = random.next() as u16;
    Message { header: Header { mid: body.mid(), flags, bufs, len, mseq, mseq_ack }, body }
}

#[test]
fn what_is_encoded_parses_to_the_same() {
    let mut random = Random::new(1);
    for round in 0..ROUNDS {
        let message = any_message(&mut random);
        let bytes = bytes_of(&message);
        assert_eq!(Message::parse(&bytes, bytes.len() as u32), Ok(message), "round {round}");
        let prefix = message.encode();
        assert_eq!(Message::parse(prefix.as_slice(), bytes.len() as u32), Ok(message));
        assert_eq!(Header::parse(&bytes, bytes.len() as u32), Ok(message.header));
    }
}

#[test]
fn random_and_damaged_bytes_never_panic() {
    let mut random = Random::new(2);
    let mut accepted = 0;
    for _ in 0..ROUNDS {
        let mut bytes = if random.below(2) == 0 {
            let len = random.below(64) as usize;
            random.bytes(len)
        } else {
            bytes_of(&any_message(&mut random))
        };
        for _ in 0..random.below(3) {
            if !bytes.is_empty() {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
        }
        let claimed = match random.below(4) {
            0 => random.next() as u32,
            1 => random.below(64) as u32,
            _ => bytes.len() as u32,
        };
        let Ok(message) = Message::parse(&bytes, claimed) else { continue };
        accepted += 1;
        // An accepted message is within the bytes and encodes to itself again.
        assert_eq!(message.header.len, claimed);
        assert!(message.body.header_len() <= claimed);
        assert_eq!(message.payload_len(), claimed - message.body.header_len());
        assert_eq!(Message::parse(message.encode().as_slice(), claimed), Ok(message));
        assert!(!message.to_string().is_empty());
    }
    assert!(accepted > ROUNDS / 8, "{accepted} accepted: the generator misses its aim");
}

#[test]
fn set_up_bytes_survive_and_never_panic() {
    let mut random = Random::new(3);
    let mut accepted = 0;
    for round in 0..ROUNDS / 4 {
        let is_v4 = random.below(2) == 0;
        let mut address = || match is_v4 {
            true => Address::V4(random.next().to_be_bytes()[..4].try_into().unwrap()),
            false => Address::V6(random.bytes(16).try_into().unwrap()),
        };
        let names = Names { source: address(), port: round as u16, destination: address() };
        let has_names = random.below(4) != 0;
        let log2 = 12 + random.below(11) as u8;
        let ring = Some(Ring { log2, key: random.next() as u32 });
        let hello = Hello {
            bufs: 3 + random.below(65_533) as u16,
            version: 0x20 | random.below(16) as u8,
            max_adverts: 1 + random.below(255) as u8,
            capabilities: random.below(16) as u8,
            desired_receive_size: random.next() as u32,
            receive_size: 37 + random.below(1 << 30) as u32,
            names: has_names.then_some(names),
            ring: ring.filter(|_| !has_names),
        };
        let mut bytes = hello.encode().as_slice().to_vec();
        assert_eq!(Hello::parse(&bytes), Ok(hello));
        let ack = HelloAck {
            bufs: hello.bufs,
            version: hello.version,
            max_adverts: hello.max_adverts,
            capabilities: hello.capabilities,
            receive_size: hello.receive_size,
            ring: ring.filter(|_| round % 2 == 0),
        };
        let mut ack_bytes = ack.encode().to_vec();
        assert_eq!(HelloAck::parse(&ack_bytes), Ok(ack));

        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] = random.next() as u8;
        bytes.truncate(random.below(100) as usize);
        if let Ok(hello) = Hello::parse(&bytes) {
            accepted += 1;
            assert_eq!(Hello::parse(hello.encode().as_slice()), Ok(hello));
        }
        ack_bytes[random.below(24) as usize] = random.next() as u8;
        ack_bytes.truncate(20 + random.below(180) as usize);
        let _ = HelloAck::parse(&ack_bytes);
    }
    assert!(accepted > 100, "{accepted}");
}

/// Random messages into both halves: violations, never a panic, and the state stays one that can
/// be stored and loaded.
#[test]
fn random_messages_keep_the_state_sound() {
    for seed in 0..3000 {
        let mut random = Random::new(seed + 10);
        let mut source = Source::new(&SourceConfig::implicit(1000));
        let mut sink = Sink::new(&SinkConfig { lane_messages: true, ..SinkConfig::implicit(1000) });
        let mut pending = PendingControl::NOTHING;
        for _ in 0..60 {
            let ack = sink.ack(0);
            let outgoing = match random.below(10) {
                0 => source.disconnect(ack),
                1 => source.abort(ack),
                2 => source.advertise(ack, any_slice(&mut random), random.below(3) as u32),
                3 => source.cancel(ack),
                4 => source.change_mode(ack, Mode::ALL[random.below(3) as usize]),
                5 => source.request_resize(ack, random.below(3000) as u32),
                6 => source.next_urgent(ack, random.below(3000) as u32),
                7 if seed % 4 == 0 => source.suspend(ack, 80),
                8 => source.next_control(ack, pending),
                _ => source.next_data(ack, random.below(3000) as u32),
            };
            if let Ok(message) = outgoing {
                let bytes = message.header();
                assert_eq!(
                    Message::parse(bytes, message.message().header.len),
                    Ok(*message.message())
                );
                assert_eq!(
                    bytes.len() as u32 + message.payload_len(),
                    message.message().header.len
                );
                source.commit(&message);
                pending = pending.without(message.settles());
            }
            let mut message = any_message(&mut random);
            message.header.mseq = sink.last_mseq().wrapping_add(1);
            message.header.mseq_ack = source.last_mseq().wrapping_sub(random.below(3) as u32);
            // Most messages that a peer may not send at all are left out, or nothing else would be
            // reached.
            if matches!(message.body, Body::AbortConn | Body::SuspComm { .. } | Body::DisConn)
                && random.below(8) != 0
            {
                message = raw(Body::Data, 1, message.header.mseq, message.header.mseq_ack, 0);
            }
            let _ = source.learn(message.header.credit());
            let before = sink.position();
            match sink.handle(&message) {
                Ok(sdp_proto::SinkAction::ForSource(input)) => {
                    let _ = source.handle(&input);
                }
                Ok(sdp_proto::SinkAction::Answer(more)) => {
                    pending = pending.add(more).unwrap_or(pending)
                }
                Ok(sdp_proto::SinkAction::Deliver(payload)) => {
                    assert_eq!(u64::from(payload.len), sink.position() - before);
                }
                Ok(_) | Err(_) => {}
            }
            assert_eq!(Source::from_words(&source.to_words()), Ok(source), "seed {seed}");
            assert_eq!(Sink::from_words(&sink.to_words()), Ok(sink), "seed {seed}");
            assert_eq!(PendingControl::from_word(pending.to_word()), Ok(pending));
        }
    }
}

/// Random words are refused, or load to a state that stores back exactly the same words.
#[test]
fn random_words_are_refused_or_stored_back() {
    let mut random = Random::new(4);
    let sound_source = Source::new(&SourceConfig::implicit(1000)).to_words();
    let sound_sink = Sink::new(&SinkConfig::implicit(1000)).to_words();
    let (mut refused, mut accepted) = (0, 0);
    let mut note = |result: Result<bool, Corrupt>| match result {
        Ok(is_same) => {
            assert!(is_same, "words were not kept as they are");
            accepted += 1;
        }
        Err(_) => refused += 1,
    };
    for _ in 0..ROUNDS {
        let mut words = sound_source;
        let at = random.below(words.len() as u64) as usize;
        words[at] ^= 1 << random.below(64);
        note(Source::from_words(&words).map(|source| source.to_words() == words));
        let mut words = sound_sink;
        let at = random.below(words.len() as u64) as usize;
        words[at] ^= 1 << random.below(64);
        note(Sink::from_words(&words).map(|sink| sink.to_words() == words));
        let word = random.next() & random.next() & random.next();
        note(PendingControl::from_word(word).map(|pending| pending.to_word() == word));
        assert_eq!(Ack::from_word(word).to_word(), word);
    }
    assert!(
        refused > ROUNDS / 4 && accepted > ROUNDS / 4,
        "{refused} refused, {accepted} accepted"
    );
}

/// A peer that sends garbage in the middle of a connection ends it, and nothing else.
#[test]
fn garbage_on_the_wire_ends_one_connection() {
    for seed in 0..2000 {
        let mut random = Random::new(seed + 1_000_000);
        let mut pair = Pair::new(&Options::explicit(8));
        pair.ends[0].write(500);
        let len = 16 + random.below(40) as usize;
        let garbage = random.bytes(len);
        pair.inject(1, garbage);
        pair.drive();
        assert!(pair.ends[1].violation.is_some(), "seed {seed}");
        assert!(pair.ends.iter().all(|end| end.is_down), "seed {seed}");
    }
}
