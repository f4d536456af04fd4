//! A peer that sends anything, against an end that does anything: violations, never a panic, and every
//! number within its bounds.

use sdp_proto::{
    Credits, Mode, SinkAction,
    wire::{Body, Flags, ModeChange, SinkAvail, SrcAvail},
};
use sdp_rdma::key::{RemoteSlice, Rkey};

use crate::{
    common::Random,
    ends::{End, PAYLOAD, Pair, RECEIVE, forged},
};

const SEEDS: u64 = 3000;

fn any_slice(random: &mut Random) -> RemoteSlice {
    let len = match random.below(8) {
        0 => 1 << 31,
        1 => 1,
        _ => 1 + random.below(700) as u32,
    };
    let addr = if random.below(4) == 0 { u64::MAX - random.below(900) } else { random.below(900) };
    RemoteSlice { addr, len, rkey: Rkey(7) }
}

/// Mostly numbers that make sense.
fn any_number(random: &mut Random) -> u32 {
    match random.below(10) {
        0 => u32::MAX - random.below(3) as u32,
        1 => 0,
        _ => random.below(600) as u32,
    }
}

fn any_body(random: &mut Random, end: &End) -> (Body, u32) {
    let mode = Mode::ALL[random.below(3) as usize];
    let here = end.sink.plain().position();
    let payload = random.below(3) as u32 * random.below(u64::from(PAYLOAD) / 2) as u32;
    match random.below(14) {
        0 | 1 => (Body::Data, payload),
        2..=4 => {
            let inline =
                if end.sink.plain().mode() == Mode::Pipelined { 0 } else { payload.min(80) };
            (Body::SrcAvail(SrcAvail { buffer: any_slice(random) }), inline)
        }
        5 | 6 => (Body::SrcAvailCancel, 0),
        7 => (Body::Withdrawn { position: here.wrapping_sub(u64::from(any_number(random))) }, 0),
        8 => (Body::RdmaWrCompl { bytes: any_number(random) }, 0),
        9 => (Body::RdmaRdCompl { bytes: any_number(random) }, 0),
        10 => (Body::SendSm, 0),
        11 => {
            let non_discards = random.below(4) as u32;
            (
                Body::SinkAvail(SinkAvail { buffer: any_slice(random), non_discards }),
                payload.min(70),
            )
        }
        12 => {
            let body =
                if random.below(2) == 0 { Body::SinkAvailCancel } else { Body::SinkCancelAck };
            (body, 0)
        }
        _ => (Body::ModeChange(ModeChange { for_source: random.below(3) == 0, mode }), 0),
    }
}

/// End 1 does something; its messages are taken by nobody.
fn operate(pair: &mut Pair, random: &mut Random) {
    let len = 1 + random.below(700) as u32;
    match random.below(12) {
        0 => _ = pair.data(1, len),
        1 | 2 => {
            let inline = if pair.ends[1].source.plain().mode() == Mode::Pipelined { 0 } else { 1 };
            _ = pair.advertise(1, len, inline);
        }
        3 => _ = pair.cancel(1),
        4 => _ = pair.withdraw(1),
        5 => _ = pair.lend(1, len),
        6 => _ = pair.recall(1),
        7 => _ = pair.change_mode(1, Mode::ALL[random.below(3) as usize]),
        8 => _ = pair.control(1),
        9 => pair.ends[1].sink.refuse(),
        10 => {
            let end = &mut pair.ends[1];
            if let Some(slice) = end.sink.next_read(len) {
                assert!(slice.len != 0 && slice.len <= len);
                end.sink.read_posted(slice.len);
                end.reads.push_back(slice);
            }
        }
        _ => {
            let end = &mut pair.ends[1];
            if let Some(slice) = end.reads.pop_front()
                && end.sink.read_done(slice.len)
            {
                end.got += u64::from(slice.len);
            }
        }
    }
    pair.wires[0].clear();
}

/// The next message of the peer. `false`: it has broken a rule.
fn receive(pair: &mut Pair, random: &mut Random) -> bool {
    let (body, payload) = any_body(random, &pair.ends[1]);
    let mut message = forged(pair, 1, body, payload).message;
    let unacked = message.header.mseq_ack.wrapping_sub(pair.ends[1].source.plain().acked());
    let back = random.below(u64::from(unacked.min(4)) + 1) as u32;
    message.header.mseq_ack = message.header.mseq_ack.wrapping_sub(back);
    if matches!(body, Body::RdmaRdCompl { .. }) && random.below(2) == 0 {
        message.header.flags = Flags::REQ_PIPE;
    }
    let end = &mut pair.ends[1];
    if end.source.learn(message.header.credit()).is_err() {
        return false;
    }
    let Ok(action) = end.sink.handle(&message) else { return false };
    let (mut input, mut delivered) = (None, 0);
    match action {
        SinkAction::Deliver(payload) | SinkAction::Advertised(Some(payload)) => {
            delivered = payload.len;
        }
        SinkAction::DeliverForSource(payload, of) => (input, delivered) = (Some(of), payload.len),
        SinkAction::ForSource(of) => input = Some(of),
        SinkAction::Written { bytes } => delivered = bytes,
        SinkAction::Withdrawn => end.pending = end.pending.without_answers(),
        SinkAction::Cancelled => {
            if let Some(rest) = end.pending.without_send_sm() {
                end.pending = rest;
                end.sink.owe_send_sm();
            }
        }
        _ => {}
    }
    end.got += u64::from(delivered);
    input.is_none_or(|input| end.source.handle(&input, message.header.mseq_ack).is_ok())
}

fn check(end: &End) {
    assert_eq!(end.got, end.sink.plain().position());
    let flying: u32 = end.reads.iter().map(|slice| slice.len).sum();
    assert_eq!(end.sink.flying(), flying);
    assert!(end.sink.lent() <= 2);
    assert!(end.source.end_position() >= end.source.plain().position());
    let buffer = end.source.sink_buffer();
    assert!(buffer.is_none_or(|buffer| buffer.len > RECEIVE));
    let ack = end.sink.ack(8);
    assert!(end.sink.plain().last_mseq().wrapping_sub(ack.mseq_ack) as i32 >= 0);
}

#[test]
fn anything_against_anything() {
    let (mut messages, mut broken) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let mut pair = Pair::new(Credits::Explicit);
        for _ in 0..80 {
            operate(&mut pair, &mut random);
            if random.below(2) == 0 {
                messages += 1;
                // The connection would be reset; as a story it goes on as if the message had not come.
                let before = pair.clone();
                if !receive(&mut pair, &mut random) {
                    broken += 1;
                    pair = before;
                }
                pair.log.clear();
            }
            check(&pair.ends[1]);
        }
    }
    println!("{messages} messages, {broken} violations");
    assert!(broken > messages / 4 && broken < messages * 3 / 4, "{messages}, {broken}");
}
