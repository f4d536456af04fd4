//! Kills users of a half after each single step of their work, and checks what a next owner makes
//! of it.
//!
//! The calls are the real ones of the fast path, and the stores and switches of the slow path in
//! the order of [`crate::datapath::send`] and [`crate::datapath::receive`]. The test kills the next
//! owner at each of its steps, too, and another one takes over from it. Promises: what was
//! published is sent once; what was read before is not read again, what is unread comes, in order;
//! message numbers and positions go on; the lane is the log's.

use core::{cell::Cell, sync::atomic::Ordering};
use std::vec::Vec;

use sdp_fabric_shm::link::{Ended, ShmHalf, ShmLink};
use sdp_proto::{Outgoing, SinkConfig, SourceConfig};
use sdp_rdma::{
    fabric::{Gather, ReceiveQueue, Scatter, SendOptions, SendQueue},
    work::WorkId,
};
use sdp_shm::{
    layout::segment_bytes,
    ring::{RECORD_HEADER, record_bytes},
};

use super::*;
use crate::{
    conn::words::fuse::killed_after,
    datapath::{
        lane::{Lane, SinkState, SourceState},
        receive, takeover,
    },
};

const RING: u32 = 64 * 1024;
/// More steps than anything here has.
const STEPS: u32 = 200;
/// What the kernel reports.
const CARRIER: u64 = 5;

struct World {
    tx: InUse,
    rx: InUse,
    /// Messages that went by the fast path.
    fast_messages: Cell<u32>,
}

fn zeroed_row() -> &'static Row {
    // SAFETY: mapped in this size, aligned to a page, never given back; a row is atomics, of which
    // zero is a value.
    unsafe { crate::leaked(size_of::<Row>()).cast().as_ref() }
}

fn byte(position: u64) -> u8 {
    (position % 251) as u8
}

/// Payload from a stream position on.
struct From(u64, usize);

impl Gather for From {
    fn len(&self) -> usize {
        self.1
    }

    fn copy_to(&mut self, offset: usize, to: &[Cell<u8>]) {
        for (i, cell) in to.iter().enumerate() {
            cell.set(byte(self.0 + (offset + i) as u64));
        }
    }
}

struct Into<'a>(&'a mut Vec<u8>);

impl Scatter for Into<'_> {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn accept(&mut self, from: &[Cell<u8>]) {
        self.0.extend(from.iter().map(Cell::get));
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Path {
    Fast,
    Slow,
}

impl World {
    fn new() -> Self {
        // SAFETY: zeros of this size, aligned to a page; leaked, so that they outlive every copy; RING is a ring size.
        let segment = unsafe { Segment::new(crate::leaked(segment_bytes(RING)), RING) };
        let end = |side: u8| {
            let (_, conn) = conn::create(Stage::Meeting).unwrap();
            assert!(conn.attach(segment, side, None));
            InUse { conn, _held: None, segment, row: zeroed_row(), alone: true }
        };
        let world = Self { tx: end(0), rx: end(1), fast_messages: Cell::new(0) };
        world.clear();
        world
    }

    /// A fresh connection whose half is on the SDP lane.
    fn clear(&self) {
        let segment = self.tx.segment;
        // SAFETY: all of what `new` allocated, which consists of atomics and bytes that nothing
        // else uses.
        unsafe { core::ptr::write_bytes(segment.base().as_ptr(), 0, segment_bytes(RING)) };
        segment.initialise();
        let size = sdp_fabric_shm::endpoint::MESSAGE_MAX as u32;
        SourceState::initialise(self.source(), &Source::new(&SourceConfig::implicit(size)));
        SinkState::initialise(self.sink(), &Sink::new(&SinkConfig::implicit(size)));
        self.lines().consumer.trusts_itself.store(1, Ordering::Relaxed);
        self.enter();
        self.follow();
    }

    fn source(&self) -> &[AtomicU64] {
        &self.tx.row.source.words
    }

    fn sink(&self) -> &[AtomicU64] {
        &self.rx.row.sink.words
    }

    fn half(&self) -> ShmHalf<'_> {
        ShmHalf::new(self.lines(), RING)
    }

    fn lines(&self) -> &HalfLines {
        self.tx.segment.half(0)
    }

    /// The value in the segment.
    fn origin(&self) -> u64 {
        self.lines().producer.origin.load(Ordering::Relaxed)
    }

    fn sending(&self) -> SourceState {
        SourceState::load(self.source(), ShmLink::new(self.tx.segment, 0), 0).expect("sound")
    }

    fn receiving(&self) -> SinkState {
        SinkState::load(self.sink(), ShmLink::new(self.rx.segment, 1), 0).expect("sound")
    }

    fn enter(&self) {
        let mut source = self.sending();
        source.carrier_sent = CARRIER;
        assert!(source.enter(self.half()));
        source.store(self.source());
    }

    fn leave(&self) {
        let mut source = self.sending();
        source.switch(self.half(), Lane::Kernel);
        source.store(self.source());
    }

    fn follow(&self) {
        let mut sink = self.receiving();
        let switch = sink.pending(self.half()).unwrap().expect("there is a switch");
        sink.carrier_read = CARRIER;
        sink.is_counted = true;
        sink.follow(self.half(), switch.to);
        sink.store(self.sink());
    }

    /// Sends the next `len` bytes of the stream.
    fn send(&self, path: Path, len: usize) {
        // Not by loading the state, which begins the slow path.
        let at = self.source()[words::ENGINE + 4].load(Ordering::Relaxed);
        if path == Path::Fast {
            let conn = &self.tx.conn;
            loop {
                // Keeps the sender from looking whether the reader lives.
                conn.looked.store(sdp_sys::time::ticks(), Ordering::Relaxed);
                let copy = |to: &[Cell<u8>]| From(at, len).copy_to(0, to);
                if push(&self.tx, -1, 0, len, copy) {
                    self.fast_messages.set(self.fast_messages.get() + 1);
                    return;
                }
                if send::is_time_to_watch(conn).is_none() {
                    break;
                }
                // This thread was kept from its CPU in between.
            }
        }
        let source = self.sending();
        let message = source.engine.next_data(Ack::implicit(0), len as u32).unwrap();
        assert_eq!(message.payload_len() as usize, len);
        self.publish(source, &message, From(at, len), SendOptions::default());
    }

    /// A message by the slow path, and the state behind it.
    fn publish(
        &self,
        mut source: SourceState,
        message: &Outgoing,
        mut payload: From,
        options: SendOptions,
    ) {
        source.tx.post_send(WorkId(0), message.header(), &mut payload, options).unwrap();
        source.engine.commit(message);
        words::step();
        source.tx.publish();
        words::step();
        source.store(self.source());
    }

    fn disconnect(&self) {
        let source = self.sending();
        let message = source.engine.disconnect(Ack::implicit(0)).unwrap();
        let options = SendOptions { control: true, ..SendOptions::default() };
        self.publish(source, &message, From(0, 0), options);
    }

    /// Receives at most `wanted` bytes.
    fn receive(&self, path: Path, wanted: usize) -> Vec<u8> {
        let mut got = Vec::new();
        if path == Path::Fast {
            match pull(&self.rx, wanted, |from| Into(&mut got).accept(from)) {
                Some(Received::Done(_)) => return got,
                Some(Received::Partly(_) | Received::Empty | Received::Later) | None => {}
            }
        }
        let mut sink = self.receiving();
        self.read(&mut sink, &mut got, wanted);
        sink.store(self.sink());
        got
    }

    /// Receives at most `wanted` bytes by the slow path and, with all of the section read, goes
    /// over to the kernel lane in the same call.
    fn receive_and_follow(&self, wanted: usize) -> Vec<u8> {
        let mut got = Vec::new();
        let mut sink = self.receiving();
        let switch = sink.pending(self.half()).unwrap().expect("there is a switch");
        assert_eq!(switch.to, Lane::Kernel);
        sink.rx.set_limit(switch.fabric);
        self.read(&mut sink, &mut got, wanted);
        if sink.current_len == 0 && sink.rx.cursors().1 == switch.fabric {
            sink.carrier_read = CARRIER;
            sink.is_counted = true;
            sink.leave_ring(self.sink(), self.half());
        }
        sink.store(self.sink());
        got
    }

    /// Reads by the slow path, up to the ring's limit. The last message is not written down yet.
    fn read(&self, sink: &mut SinkState, got: &mut Vec<u8>, wanted: usize) {
        let mut is_written_down = true;
        while got.len() < wanted {
            let message = match sink.current() {
                Some(message) => message,
                None => match sink.rx.poll_receive().unwrap() {
                    None => break,
                    Some(message) => {
                        if !receive::accept(self.rx.conn, sink, self.rx.row, message).unwrap() {
                            sink.store(self.sink());
                            continue;
                        }
                        message
                    }
                },
            };
            if !is_written_down {
                is_written_down = true;
                sink.store(self.sink());
            }
            let rest = sink.current_len - sink.current_offset;
            let n = rest.min((wanted - got.len()) as u32);
            sink.rx.copy_out(message, sink.current_offset, n, &mut Into(got));
            sink.current_offset += n;
            if n == rest {
                (sink.current_len, sink.current_offset) = (0, 0);
                sink.rx.release(message);
                is_written_down = false;
            }
        }
    }

    /// Bytes of the stream that have been read, by the stored state.
    fn read_to(&self) -> u64 {
        let sink = self.receiving();
        sink.engine.position() - u64::from(sink.current_len - sink.current_offset)
    }

    /// Reads all there is, from stream position `at` on.
    fn read_rest(&self, mut at: u64) -> u64 {
        for path in [Path::Fast, Path::Slow].into_iter().cycle() {
            let got = self.receive(path, 700);
            if got.is_empty() {
                return at;
            }
            for byte_read in got {
                assert_eq!(byte_read, byte(at), "at {at}");
                at += 1;
            }
        }
        at
    }

    fn take_over_source(&self) {
        takeover::source(self.source(), self.tx.segment, 0, || Some(CARRIER)).expect("adds up");
        self.lines().log.gate.store(0, Ordering::Relaxed); // as `takeover::source_of` does
    }

    fn take_over_sink(&self) {
        takeover::sink(self.sink(), self.rx.segment, 0, || Some(CARRIER)).expect("adds up");
    }

    /// Messages and payload bytes that are published; nothing was read.
    fn published(&self) -> (u32, u64) {
        let mut walk = self.receiving();
        let (mut messages, mut bytes) = (0, 0);
        while let Some(message) = walk.rx.poll_receive().unwrap() {
            messages += 1;
            bytes += u64::from(message.len) - 16;
            walk.rx.release(message);
        }
        (messages, bytes)
    }
}

/// Runs `check` for each step after which `work` is killed, with a next owner that is killed after
/// each of its own; `check` gets whether the work was done.
fn at_each_step(
    world: &World,
    prepare: impl Fn(),
    work: impl Fn(),
    take_over: impl Fn(),
    check: impl Fn(bool),
) {
    for steps in 0..STEPS {
        let mut done = false;
        for more in 0..STEPS {
            world.clear();
            prepare();
            done = killed_after(steps, &work);
            let is_last = killed_after(more, &take_over);
            take_over();
            check(done);
            if is_last {
                break;
            }
            assert!(more + 1 < STEPS, "a takeover is longer than that");
        }
        if done {
            assert!(steps > 2, "nothing was killed");
            return;
        }
    }
    panic!("the work is longer than that");
}

#[test]
fn a_killed_sender_has_sent_what_it_published() {
    let world = World::new();
    for path in [Path::Fast, Path::Slow] {
        for len in [1, 200, 9000] {
            let before = [100usize, 7, 3000];
            at_each_step(
                &world,
                || before.iter().for_each(|len| world.send(Path::Fast, *len)),
                || {
                    world.fast_messages.set(0);
                    world.send(path, len);
                    assert_eq!(world.fast_messages.get(), u32::from(path == Path::Fast));
                },
                || world.take_over_source(),
                |done| {
                    let (messages, bytes) = world.published();
                    let source = world.sending();
                    assert_eq!(source.engine.last_mseq(), messages);
                    assert_eq!(source.engine.position(), bytes);
                    assert_eq!(source.lane, Lane::Sdp);
                    assert!(messages == 4 || messages == 3 && !done);
                    world.fast_messages.set(0);
                    world.send(Path::Fast, 60);
                    assert_eq!(world.fast_messages.get(), 1);
                    world.send(Path::Slow, 61);
                    assert_eq!(world.read_rest(0), bytes + 121);
                },
            );
        }
    }
}

#[test]
fn a_sender_killed_over_a_restart_has_sent_what_it_published() {
    let world = World::new();
    let (first, len) = (5080, 1000);
    let tail = record_bytes(PLAIN_HEADER + first) as u64;
    for path in [Path::Fast, Path::Slow] {
        at_each_step(
            &world,
            || {
                world.send(Path::Fast, first);
                assert_eq!(world.read_rest(0), first as u64);
                assert_eq!(world.origin(), 0);
            },
            || world.send(path, len), // an empty ring begins again
            || world.take_over_source(),
            |done| {
                assert!(world.origin() == tail || !done);
                let source = world.sending();
                let sent = source.engine.position();
                let messages = (sent - first as u64) / len as u64;
                assert_eq!(u64::from(source.engine.last_mseq()), 1 + messages);
                world.send(path, len);
                assert_eq!(world.origin(), tail, "before or behind the kill");
                assert_eq!(world.read_rest(first as u64), sent + len as u64);
            },
        );
    }
}

#[test]
fn a_sender_killed_behind_padding_has_sent_what_it_published() {
    let world = World::new();
    let record = 8192;
    let len = record - RECORD_HEADER - PLAIN_HEADER;
    let laps = RING as usize / record - 1;
    let (read, unread) = (laps * len, len - 48);
    at_each_step(
        &world,
        || {
            (0..laps).for_each(|_| world.send(Path::Fast, len));
            assert_eq!(world.read_rest(0), read as u64);
            // Less than a message's start is left of the lap; not empty, so nothing begins again.
            world.send(Path::Fast, unread);
        },
        || world.send(Path::Slow, 300),
        || world.take_over_source(),
        |done| {
            let (tail, _) = world.sending().tx.cursors();
            let padded = u64::from(RING) + record_bytes(PLAIN_HEADER + 300) as u64;
            assert!(tail == padded || tail == u64::from(RING) - 48 && !done, "{tail}");
            let source = world.sending();
            let sent = source.engine.position();
            let messages = (sent - (read + unread) as u64) / 300;
            assert_eq!(u64::from(source.engine.last_mseq()), laps as u64 + 1 + messages);
            world.send(Path::Slow, 300);
            assert_eq!(world.origin(), 0);
            assert_eq!(world.read_rest(read as u64), sent + 300);
        },
    );
}

#[test]
fn a_sender_killed_a_lap_ahead_of_what_it_knew_goes_on() {
    let world = World::new();
    let len = 8000;
    at_each_step(
        &world,
        || {
            // As much as there is room for; then all of it is read.
            let mut sent = 0;
            while sent + 2 * len < RING as usize {
                world.send(Path::Slow, len);
                sent += len;
            }
            assert_eq!(world.read_rest(0), sent as u64);
        },
        || world.send(Path::Slow, 2 * len),
        || world.take_over_source(),
        |_| {
            let at = world.read_to();
            let sent = world.sending().engine.position();
            assert_eq!(world.read_rest(at), sent);
            world.send(Path::Slow, len);
            assert_eq!(world.read_rest(sent), sent + len as u64);
        },
    );
}

#[test]
fn a_killed_disconnection_was_said_or_not() {
    let world = World::new();
    at_each_step(
        &world,
        || world.send(Path::Fast, 10),
        || world.disconnect(),
        || world.take_over_source(),
        |_| {
            let source = world.sending();
            let (messages, _) = world.published();
            assert_eq!(source.engine.last_mseq(), messages);
            assert_eq!(source.engine.has_ended(), messages == 2);
            assert_eq!(source.engine.position(), 10);
            assert_eq!(world.read_rest(0), 10);
            assert_eq!(world.receiving().engine.has_ended(), messages == 2);
        },
    );
}

#[test]
fn a_killed_reader_has_read_all_of_a_call_or_a_part_of_it() {
    let world = World::new();
    let lens = [100usize, 1, 5000, 40, 300, 8000];
    let total: u64 = lens.iter().map(|len| *len as u64).sum();
    let begun = |at: u64, is_current: bool| {
        // Messages whose header was taken when the stream was read to `at`, and the position then. The one
        // behind may have been begun without a byte of it being read.
        let mut end = 0;
        let mut messages = 0;
        for len in lens {
            if end > at || end == at && !is_current {
                break;
            }
            end += len as u64;
            messages += 1;
        }
        (messages, end)
    };
    for path in [Path::Fast, Path::Slow] {
        for (before, wanted) in [(0, 60), (0, 100), (60, 30), (60, 3000), (0, 14_000), (101, 1)] {
            at_each_step(
                &world,
                || {
                    lens.iter().for_each(|len| world.send(Path::Slow, *len));
                    assert_eq!(world.receive(Path::Fast, before).len(), before);
                },
                || assert!(!world.receive(path, wanted).is_empty()),
                || world.take_over_sink(),
                |done| {
                    let at = world.read_to();
                    let after = (before + wanted).min(total as usize) as u64;
                    assert!(at >= before as u64 && at <= after);
                    assert!(!done || at == after);
                    let sink = world.receiving();
                    let now = (sink.engine.last_mseq(), sink.engine.position());
                    assert_eq!(now, begun(at, sink.current_len != 0));
                    assert_eq!(world.read_rest(at), total);
                    let head = world.lines().consumer.head.load(Ordering::Relaxed);
                    assert_eq!(head, world.sending().tx.cursors().0, "all room is free");
                },
            );
        }
    }
}

#[test]
fn a_reader_killed_over_the_end_sees_it() {
    let world = World::new();
    at_each_step(
        &world,
        || {
            world.send(Path::Fast, 10);
            world.disconnect();
        },
        || assert_eq!(world.receive(Path::Slow, 20).len(), 10),
        || world.take_over_sink(),
        |_| {
            let at = world.read_to();
            assert_eq!(world.read_rest(at), 10);
            let engine = world.receiving().engine;
            assert!(engine.has_ended());
            assert_eq!((engine.last_mseq(), engine.position()), (2, 10));
        },
    );
}

#[test]
fn a_killed_switch_is_in_the_log_or_never_was() {
    let world = World::new();
    let check = |from: Lane, to: Lane| {
        let source = world.sending();
        let written = world.lines().producer.switches.load(Ordering::Relaxed);
        assert_eq!(source.switches, written);
        let is_there = written != world.receiving().followed;
        assert_eq!(source.lane, if is_there { to } else { from });
        let lane = world.lines().log.lane.load(Ordering::Relaxed);
        assert_eq!(lane, u32::from(source.lane == Lane::Sdp));
        if is_there {
            world.follow();
        }
        assert_eq!(world.receiving().lane, source.lane);
    };
    let send = || world.send(Path::Fast, 10);
    at_each_step(
        &world,
        send,
        || world.leave(),
        || world.take_over_source(),
        |_| {
            assert_eq!(world.read_rest(0), 10);
            check(Lane::Sdp, Lane::Kernel);
        },
    );
    let leave = || {
        world.leave();
        world.follow();
    };
    at_each_step(
        &world,
        leave,
        || world.enter(),
        || world.take_over_source(),
        |_| {
            check(Lane::Kernel, Lane::Sdp);
        },
    );
    // Onto the lane and the first message, written down together.
    let enter_and_send = || {
        let mut source = world.sending();
        source.carrier_sent = CARRIER;
        assert!(source.enter(world.half()));
        let message = source.engine.next_data(Ack::implicit(0), 10).unwrap();
        world.publish(source, &message, From(0, 10), SendOptions::default());
    };
    at_each_step(
        &world,
        leave,
        enter_and_send,
        || world.take_over_source(),
        |_| {
            let (messages, bytes) = world.published();
            let engine = world.sending().engine;
            assert_eq!((engine.last_mseq(), engine.position()), (messages, bytes));
            check(Lane::Kernel, Lane::Sdp);
        },
    );
    // The reader ends the section behind a message that its killed sender has not written down.
    for steps in 0..STEPS {
        world.clear();
        let done = killed_after(steps, || world.send(Path::Fast, 10));
        assert_eq!(world.half().end_section(CARRIER, words::step), Ended::Written);
        world.take_over_source();
        assert_eq!(world.sending().lane, Lane::Kernel);
        assert_eq!(world.sending().engine.position(), world.read_rest(0));
        world.follow();
        if done {
            break;
        }
    }
}

#[test]
fn a_killed_follower_is_on_the_lane_of_the_log() {
    let world = World::new();
    at_each_step(
        &world,
        || world.leave(),
        || world.follow(),
        || world.take_over_sink(),
        |done| {
            if world.receiving().lane == Lane::Sdp {
                assert!(!done);
                world.follow();
            }
            let sink = world.receiving();
            assert_eq!((sink.lane, sink.followed), (Lane::Kernel, 2));
            assert_eq!(world.lines().consumer.followed.load(Ordering::Relaxed), 2);
            assert_eq!(sink.carrier_read, CARRIER);
            assert_eq!(world.lines().consumer.kernel_reading.load(Ordering::Relaxed), 0);
        },
    );
}

/// The last messages of a section and the switch behind them, in one call: a reader on the kernel
/// lane has read the ring up to there. A message that is still in the words of a next owner there
/// would come again behind the next switch.
#[test]
fn a_reader_killed_over_a_switch_has_read_what_was_before_it() {
    let world = World::new();
    at_each_step(
        &world,
        || {
            world.send(Path::Fast, 30);
            world.send(Path::Fast, 300);
            world.leave();
        },
        || {
            assert_eq!(world.receive_and_follow(1000).len(), 330);
        },
        || world.take_over_sink(),
        |done| {
            let mut at = world.read_to();
            if world.receiving().lane == Lane::Sdp {
                assert!(!done);
                for byte_read in world.receive_and_follow(1000) {
                    assert_eq!(byte_read, byte(at));
                    at += 1;
                }
            }
            assert_eq!((at, world.read_to()), (330, 330));
            let sink = world.receiving();
            assert_eq!((sink.lane, sink.followed), (Lane::Kernel, 2));
            // The next section begins with its own first message.
            world.enter();
            world.follow();
            world.send(Path::Fast, 70);
            assert_eq!(world.read_rest(330), 400);
        },
    );
}

#[test]
fn a_hand_over_in_progress_is_not_taken_over() {
    let world = World::new();
    takeover::handing(world.sink());
    assert!(takeover::sink(world.sink(), world.rx.segment, 0, || Some(0)).is_err());
    assert!(
        SinkState::load(world.sink(), ShmLink::new(world.rx.segment, 1), 0).is_err(),
        "for family members, too"
    );
    world.clear();
    takeover::handing(world.sink());
    takeover::handed(world.sink());
    world.take_over_sink();
}

/// How many wake bytes are on the carrier only the kernel knows.
#[test]
fn without_the_kernels_count_nobody_goes_on() {
    let world = World::new();
    world.send(Path::Fast, 1000);
    assert!(takeover::source(world.source(), world.tx.segment, 0, || None).is_err());
    assert!(takeover::sink(world.sink(), world.rx.segment, 0, || None).is_err());
}

#[test]
fn what_does_not_add_up_is_refused() {
    let world = World::new();
    let tail = &world.lines().producer.tail;
    let refused = |spoil: &dyn Fn()| {
        world.clear();
        world.send(Path::Fast, 100);
        world.send(Path::Fast, 100);
        spoil();
        takeover::source(world.source(), world.tx.segment, 0, || Some(CARRIER)).is_err()
            && SourceState::load(world.source(), ShmLink::new(world.tx.segment, 0), 0).is_err()
    };
    assert!(!refused(&|| {}));
    assert!(refused(&|| tail.store(8, Ordering::Relaxed)), "alignment");
    assert!(refused(&|| tail.store(16, Ordering::Relaxed)), "backwards");
    assert!(refused(&|| tail.store(1 << 40, Ordering::Relaxed)), "beyond the ring");
    let stored = &world.source()[0];
    assert!(refused(&|| stored.store(0, Ordering::Relaxed)), "two messages");
    assert!(refused(&|| world.lines().producer.switches.store(99, Ordering::Relaxed)));

    let refused = |spoil: &dyn Fn()| {
        world.clear();
        world.send(Path::Fast, 100);
        world.send(Path::Fast, 100);
        assert_eq!(world.receive(Path::Fast, 120).len(), 120);
        spoil();
        takeover::sink(world.sink(), world.rx.segment, 0, || Some(CARRIER)).is_err()
            && SinkState::load(world.sink(), ShmLink::new(world.rx.segment, 1), 0).is_err()
    };
    assert!(!refused(&|| {}));
    let head = &world.lines().consumer.head;
    assert!(refused(&|| head.store(1 << 20, Ordering::Relaxed)), "published before it was written");
    assert!(refused(&|| world.sink()[1].store(0, Ordering::Relaxed)), "moved backwards");
    assert!(refused(&|| world.sink()[5].store(9, Ordering::Relaxed)), "message number");
    assert!(refused(&|| world.lines().consumer.followed.store(70, Ordering::Relaxed)));
}

/// Both ends at work for many laps of the ring, over padding and lane switches, killed at random steps: every
/// byte once, in order, and both ends agree about numbers in the end.
#[test]
fn a_stream_survives_many_deaths() {
    let world = World::new();
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let (mut at, mut deaths) = (0, 0);
    for _ in 0..5000 {
        let path = if next(2) == 0 { Path::Fast } else { Path::Slow };
        let steps = if next(3) == 0 { next(40) as u32 } else { u32::MAX };
        let mut source = world.sending();
        let sink = world.receiving();
        let pending = sink.pending(world.half()).expect("sound");
        let (head, is_begun) = (sink.rx.cursors().1, sink.current_len != 0);
        let sends = next(2) == 0;
        let mut got = None;
        let most = [10, 1000, 40_000][next(3) as usize];
        let wanted = 1 + next(most) as usize;
        let is_done = killed_after(steps, || {
            if sends && source.lane == Lane::Kernel {
                if sink.followed == source.switches {
                    world.enter();
                }
            } else if sends && next(50) == 0 {
                world.leave();
            } else if sends {
                source.tx.refresh().expect("sound");
                let room = source.tx.room().saturating_sub(16).min(16 * 1024);
                let most = [20, 500, 16 * 1024][next(3) as usize].min(room as u64);
                if most != 0 {
                    world.send(path, 1 + next(most) as usize);
                }
            } else if pending.is_some_and(|switch| switch.fabric == head && !is_begun) {
                world.follow();
            } else if pending.is_some() && path == Path::Slow {
                got = Some(world.receive_and_follow(wanted));
            } else if sink.lane == Lane::Sdp {
                got = Some(world.receive(path, wanted));
            }
        });
        if !is_done {
            deaths += 1;
            while !killed_after(next(30) as u32, || {
                if sends { world.take_over_source() } else { world.take_over_sink() }
            }) {}
        }
        let now = world.read_to();
        assert!(now >= at && now - at <= wanted as u64);
        if is_done && let Some(got) = got {
            assert_eq!(now - at, got.len() as u64);
            assert!(got.iter().zip(at..).all(|(read, at)| *read == byte(at)), "at {at}");
        }
        at = now;
    }
    assert!(deaths > 100, "{deaths}");
    if world.receiving().pending(world.half()).expect("sound").is_none() {
        at = world.read_rest(at);
        let (source, sink) = (world.sending().engine, world.receiving().engine);
        assert_eq!((source.last_mseq(), source.position()), (sink.last_mseq(), at));
    }
    assert!(at > 20 * u64::from(RING), "{at}");
}

/// A next owner believes nothing: whatever the words and lines hold, it ends, and does not panic.
#[test]
fn any_words_are_judged() {
    let world = World::new();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut sound = 0;
    for round in 0..20_000 {
        if round % 10 == 0 {
            world.clear();
            world.send(Path::Fast, 1000);
            world.send(Path::Slow, 10);
            world.receive(Path::Fast, 500);
        }
        let lines = world.lines();
        let shared = [&lines.producer.tail, &lines.consumer.head, &lines.log.carrier_sent];
        let value = match next() % 3 {
            0 => (next() % 2000) & !15,
            1 => next() % 3,
            _ => next(),
        };
        let n = next() as usize % 45;
        match n {
            0..20 => world.source()[n].store(value, Ordering::Relaxed),
            20..40 => world.sink()[n - 20].store(value, Ordering::Relaxed),
            43 => lines.producer.switches.store(value as u32, Ordering::Relaxed),
            44 => lines.consumer.followed.store(value as u32, Ordering::Relaxed),
            _ => shared[n - 40].store(value, Ordering::Relaxed),
        }
        let source = takeover::source(world.source(), world.tx.segment, 0, || Some(CARRIER));
        let sink = takeover::sink(world.sink(), world.rx.segment, 0, || Some(CARRIER));
        for is_sound in [source.is_ok(), sink.is_ok()] {
            sound += u32::from(is_sound);
        }
    }
    assert!(sound > 1000, "{sound}");
}

mod seen_tail;
mod twin;
