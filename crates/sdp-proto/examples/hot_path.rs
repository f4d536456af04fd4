//! How long the engine takes for one Data message, each way: run with `--release`.
//!
//! For a look while working on the hot path; nothing depends on its output.

use sdp_proto::{Ack, Sink, SinkConfig, Source, SourceConfig, wire::Message};
use std::{hint::black_box, time::Instant};

const MESSAGES: u32 = 10_000_000;
const ROUNDS: u32 = 5;

fn main() {
    for _ in 0..ROUNDS {
        let (send, receive, store) = (time(send()), time(receive()), time(store()));
        println!("send {send:.1} ns, receive {receive:.1} ns, load and store {store:.1} ns");
    }
}

/// Mean of one step, in nanoseconds.
fn time(mut step: impl FnMut(u32)) -> f64 {
    let start = Instant::now();
    for number in 1..=MESSAGES {
        step(number);
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(MESSAGES)
}

fn send() -> impl FnMut(u32) {
    let mut source = Source::new(&SourceConfig::implicit(65_536));
    move |number| {
        let ack = black_box(Ack::implicit(number));
        if let Ok(message) = source.next_data(ack, black_box(1000)) {
            black_box(message.header());
            source.commit(&message);
        }
    }
}

fn receive() -> impl FnMut(u32) {
    let mut sink = Sink::new(&SinkConfig::implicit(65_536));
    let mut bytes = *b"\xff\0\xff\xff\0\0\x03\xf8\0\0\0\0\0\0\0\0";
    move |number| {
        bytes[8..12].copy_from_slice(&number.to_be_bytes());
        let message = Message::parse(black_box(&bytes), black_box(1016));
        black_box(message.and_then(|message| sink.handle(&message))).expect("legal");
    }
}

/// The extra cost of a step when the state rests in shared memory between calls.
fn store() -> impl FnMut(u32) {
    let mut source = Source::new(&SourceConfig::implicit(65_536)).to_words();
    let mut sink = Sink::new(&SinkConfig::implicit(65_536)).to_words();
    move |_| {
        source = Source::from_words(black_box(&source)).expect("sound").to_words();
        sink = Sink::from_words(black_box(&sink)).expect("sound").to_words();
    }
}
