//! Messages, Hello and HelloAck from random bytes and from damaged ones: parsing does not panic, what
//! parses is written back the same, and the receiving engine survives whatever parses.

use sdp_proto::{
    Sink, SinkConfig,
    wire::{Hello, HelloAck, Message},
};

use crate::random::Random;

/// Longest message that the engine is told it may get.
const MESSAGE_SIZE: u32 = 16 * 1024 + 56;

/// A sequence of messages, most of them nearly right.
pub fn round(random: &mut Random) {
    let mut sink = Sink::new(&SinkConfig::implicit(MESSAGE_SIZE));
    let mut mseq = 0u32;
    for _ in 0..64 {
        let total = pick_len(random);
        let bytes = message_bytes(random, mseq.wrapping_add(1), total);
        let Ok(message) = Message::parse(&bytes, total) else { continue };
        let again = message.encode();
        let reparsed = Message::parse(again.as_slice(), total);
        assert_eq!(reparsed.as_ref(), Ok(&message), "{bytes:02x?}");
        assert_eq!(message.header.len, total, "a header that lies about its length was taken");
        if sink.handle(&message).is_err() {
            break; // the connection is over
        }
        mseq = message.header.mseq;
        let words = sink.to_words();
        let restored = Sink::from_words(&words).expect("the engine's own words");
        assert_eq!(restored.to_words(), words);
    }
    hello(random);
    stored(random);
}

fn pick_len(random: &mut Random) -> u32 {
    match random.below(4) {
        0 => random.below(64) as u32,
        1 => random.next() as u32,
        _ => 16 + random.below(u64::from(MESSAGE_SIZE)) as u32,
    }
}

fn message_bytes(random: &mut Random, mseq: u32, total: u32) -> Vec<u8> {
    if random.once_in(4) {
        return random.bytes(80);
    }
    let mid = *random.pick(&[0xff, 0xff, 0xff, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x0b, 0x40]);
    let mut bytes = vec![mid, if random.once_in(3) { random.next() as u8 } else { 0 }];
    bytes.extend((random.next() as u16).to_be_bytes());
    bytes.extend(total.to_be_bytes());
    bytes.extend(mseq.to_be_bytes());
    bytes.extend((random.next() as u32).to_be_bytes());
    bytes.extend((0..40).map(|_| random.next() as u8));
    bytes.truncate((total as usize).min(56));
    damage(random, &mut bytes);
    bytes
}

/// Changes, cuts or lengthens now and then.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    while random.once_in(3) {
        match random.below(3) {
            0 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
            1 => bytes.push(random.next() as u8),
            _ => {
                let at = random.below(bytes.len() as u64) as usize;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
}

fn hello(random: &mut Random) {
    let mut bytes = random.bytes(300);
    if let Ok(parsed) = Hello::parse(&bytes) {
        assert_eq!(Hello::parse(parsed.encode().as_slice()), Ok(parsed));
    }
    if let Ok(parsed) = HelloAck::parse(&bytes) {
        assert_eq!(HelloAck::parse(&parsed.encode()), Ok(parsed));
    }
    // Nearly right: a good one, damaged.
    let good = HelloAck {
        bufs: (random.next() as u16).max(16),
        version: sdp_proto::wire::hello::VERSION,
        max_adverts: 1 + random.below(16) as u8,
        capabilities: 0,
        receive_size: 2048 + random.below(1 << 20) as u32,
        ring: None,
    };
    bytes = good.encode().to_vec();
    assert_eq!(HelloAck::parse(&bytes), Ok(good));
    damage(random, &mut bytes);
    if let Ok(parsed) = HelloAck::parse(&bytes) {
        assert_eq!(HelloAck::parse(&parsed.encode()), Ok(parsed));
    }
}

/// State words that somebody scribbled on are refused or make an engine that does not panic.
fn stored(random: &mut Random) {
    let mut words = Sink::new(&SinkConfig::implicit(MESSAGE_SIZE)).to_words();
    for word in &mut words {
        if random.once_in(2) {
            *word = random.evil(*word);
        }
    }
    let Ok(mut sink) = Sink::from_words(&words) else { return };
    for _ in 0..8 {
        let total = pick_len(random);
        let mseq = random.next() as u32;
        let bytes = message_bytes(random, mseq, total);
        if let Ok(message) = Message::parse(&bytes, total) {
            let _ = sink.handle(&message);
        }
    }
}
