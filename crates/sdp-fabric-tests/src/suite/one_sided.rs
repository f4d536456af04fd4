//! One-sided work: READ and WRITE of registered memory, and refusals that touch nothing.

use std::collections::VecDeque;

use sdp_rdma::{
    fabric::{MemoryRegion, PostError, ReceiveQueue, SendQueue},
    key::{Access, Lkey, LocalSlice, RemoteSlice, Rkey},
    work::{Completion, Opcode, Status, WorkId},
};

use crate::{
    harness::{Harness, Pair, Side, receive, settle, until},
    message::{DATA, Message, Random, SIGNALLED, drain},
};

const READABLE: Access = Access { remote_read: true, remote_write: false };
const WRITABLE: Access = Access { remote_read: false, remote_write: true };
const BOTH: Access = Access { remote_read: true, remote_write: true };
/// Not 0, so that bytes that were never written show.
const FILLER: u8 = 0x5a;
/// Length of the regions in these tests: several pages and not a round number.
const REGION_LEN: usize = 3 * 4096 + 100;
/// Unregistered bytes on both sides of a region, which must stay as they are.
const MARGIN: usize = 256;

/// A registered region with a margin on both sides.
struct Buffer {
    side: Side,
    region: MemoryRegion,
}

impl Buffer {
    /// Filled with [`FILLER`], margins included.
    fn new<H: Harness>(harness: &mut H, side: Side, access: Access) -> Self {
        let addr = harness.allocate(side, REGION_LEN + 2 * MARGIN);
        harness.store(side, addr, &[FILLER; REGION_LEN + 2 * MARGIN]);
        let region = harness.register(side, addr + MARGIN as u64, REGION_LEN as u64, access);
        Self { side, region: region.expect("a region") }
    }

    fn local(&self, offset: usize, len: usize) -> LocalSlice {
        LocalSlice {
            addr: self.region.addr + offset as u64,
            len: len as u32,
            lkey: self.region.lkey,
        }
    }

    fn remote(&self, offset: usize, len: usize) -> RemoteSlice {
        RemoteSlice {
            addr: self.region.addr + offset as u64,
            len: len as u32,
            rkey: self.region.rkey,
        }
    }

    fn store<H: Harness>(&self, harness: &mut H, offset: usize, bytes: &[u8]) {
        harness.store(self.side, self.region.addr + offset as u64, bytes);
    }

    /// Checks that `bytes` are at `offset` and that nothing else was touched.
    fn check<H: Harness>(&self, harness: &mut H, offset: usize, bytes: &[u8]) {
        let mut expected = vec![FILLER; REGION_LEN + 2 * MARGIN];
        expected[MARGIN + offset..][..bytes.len()].copy_from_slice(bytes);
        let mut found = vec![0; expected.len()];
        harness.load(self.side, self.region.addr - MARGIN as u64, &mut found);
        let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(wrong.map(|at| at as i64 - MARGIN as i64), None, "first wrong byte");
    }
}

fn completion<H: Harness>(harness: &mut H, tx: &mut H::Tx) -> Completion {
    until(harness, "a completion", || tx.poll_completion())
}

fn success(id: u64, opcode: Opcode) -> Completion {
    Completion { id: WorkId(id), opcode, status: Status::Success }
}

/// A message that follows a WRITE means that the written bytes are there.
pub fn write_lands_before_the_send_behind_it<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    for number in 0..20 {
        let source = Buffer::new(harness, Side::A, Access::default());
        let target = Buffer::new(harness, Side::B, WRITABLE);
        let len = 1 + random.below(REGION_LEN);
        let (from, to) = (random.below(REGION_LEN - len + 1), random.below(REGION_LEN - len + 1));
        let bytes = Message::new(number, len).bytes(0, len);
        source.store(harness, from, &bytes);
        let write =
            pair.a.tx.post_write(WorkId(number), source.local(from, len), target.remote(to, len));
        assert_eq!(write, Ok(()));
        let message = Message::new(number, 30);
        assert_eq!(message.post(&mut pair.a.tx, DATA), Ok(()));
        let received = receive(harness, &mut pair.b.rx);
        target.check(harness, to, &bytes);
        message.check(&pair.b.rx, received);
        pair.b.rx.release(received);
        assert_eq!(completion(harness, &mut pair.a.tx), success(number, Opcode::Write));
        source.check(harness, from, &bytes);
    }
}

/// The peer may reuse memory that was read as soon as it gets the message behind the READ.
pub fn read_fetches_what_was_there_before_the_send_behind_it<H: Harness>(
    harness: &mut H,
    random: &mut Random,
) {
    let mut pair = harness.pair();
    for number in 0..20 {
        let target = Buffer::new(harness, Side::A, Access::default());
        let source = Buffer::new(harness, Side::B, READABLE);
        let len = 1 + random.below(REGION_LEN);
        let bytes = Message::new(number, len).bytes(0, len);
        source.store(harness, 0, &bytes);
        let read = pair.a.tx.post_read(WorkId(number), target.local(0, len), source.remote(0, len));
        assert_eq!(read, Ok(()));
        assert_eq!(Message::new(number, 0).post(&mut pair.a.tx, DATA), Ok(()));
        let received = receive(harness, &mut pair.b.rx);
        source.store(harness, 0, &vec![0xee; len]);
        pair.b.rx.release(received);
        assert_eq!(completion(harness, &mut pair.a.tx), success(number, Opcode::Read));
        target.check(harness, 0, &bytes);
    }
}

/// First byte, last byte, all of it, nothing at the end of it.
pub fn ranges_at_the_edges_of_a_region<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    let edges = [(0, 1), (REGION_LEN - 1, 1), (0, REGION_LEN), (4095, 2), (4096, 4096)];
    for (number, (offset, len)) in (0..).zip(edges) {
        let near = Buffer::new(harness, Side::A, Access::default());
        let far = Buffer::new(harness, Side::B, BOTH);
        let bytes = Message::new(number, len).bytes(0, len);
        near.store(harness, offset, &bytes);
        let (id, back_id) = (WorkId(2 * number), WorkId(2 * number + 1));
        let write = pair.a.tx.post_write(id, near.local(offset, len), far.remote(offset, len));
        assert_eq!(write, Ok(()));
        assert_eq!(completion(harness, &mut pair.a.tx), success(id.0, Opcode::Write));
        far.check(harness, offset, &bytes);
        let back = Buffer::new(harness, Side::A, Access::default());
        let read = pair.a.tx.post_read(back_id, back.local(offset, len), far.remote(offset, len));
        assert_eq!(read, Ok(()));
        assert_eq!(completion(harness, &mut pair.a.tx), success(back_id.0, Opcode::Read));
        back.check(harness, offset, &bytes);
    }
}

/// With every receive buffer taken, READ and WRITE still run (where buffers are counted at all).
pub fn no_receive_buffer_is_needed<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    let mut taken = Vec::new();
    if pair.b.rx.posted() != u16::MAX {
        while pair.b.rx.posted() > 0 {
            assert_eq!(Message::new(1000, 1).post(&mut pair.a.tx, DATA), Ok(()));
            taken.push(receive(harness, &mut pair.b.rx));
            // The send queue must not be what is short of room.
            settle(harness);
        }
    }
    let near = Buffer::new(harness, Side::A, Access::default());
    let far = Buffer::new(harness, Side::B, BOTH);
    near.store(harness, 0, &[7; 100]);
    assert_eq!(pair.a.tx.post_write(WorkId(1), near.local(0, 100), far.remote(0, 100)), Ok(()));
    assert_eq!(completion(harness, &mut pair.a.tx), success(1, Opcode::Write));
    assert_eq!(pair.a.tx.post_read(WorkId(2), near.local(0, 50), far.remote(0, 50)), Ok(()));
    assert_eq!(completion(harness, &mut pair.a.tx), success(2, Opcode::Read));
    far.check(harness, 0, &[7; 100]);
    for received in taken {
        pair.b.rx.release(received);
    }
}

/// SEND, READ and WRITE complete in the order they were posted.
pub fn completions_mix_in_order_with_sends<H: Harness>(harness: &mut H, random: &mut Random) {
    let mut pair = harness.pair();
    let near = Buffer::new(harness, Side::A, Access::default());
    let far = Buffer::new(harness, Side::B, BOTH);
    let mut expected = VecDeque::new();
    let mut sent = Vec::new();
    for number in 0..10 {
        let (local, remote) = (near.local(0, 500), far.remote(0, 500));
        let opcode = match random.below(3) {
            0 => {
                assert_eq!(pair.a.tx.post_read(WorkId(number), local, remote), Ok(()));
                Opcode::Read
            }
            1 => {
                assert_eq!(pair.a.tx.post_write(WorkId(number), local, remote), Ok(()));
                Opcode::Write
            }
            _ => {
                let message = Message::random(random, number, 300);
                assert_eq!(message.post(&mut pair.a.tx, SIGNALLED), Ok(()));
                sent.push(message);
                Opcode::Send
            }
        };
        expected.push_back(success(number, opcode));
    }
    drain(harness, &mut pair.b.rx, &sent);
    for expected in expected {
        assert_eq!(completion(harness, &mut pair.a.tx), expected);
    }
}

/// Posts one bad request on a pair of its own; it must fail with `status` and touch nothing.
fn refused<H: Harness>(
    harness: &mut H,
    what: &str,
    status: Status,
    access: Access,
    request: impl Fn(&mut H, &mut Pair<H::Tx, H::Rx>, &Buffer, &Buffer) -> Result<(), PostError>,
) {
    let mut pair = harness.pair();
    let near = Buffer::new(harness, Side::A, Access::default());
    let far = Buffer::new(harness, Side::B, access);
    assert_eq!(request(harness, &mut pair, &near, &far), Ok(()), "{what}");
    let done = completion(harness, &mut pair.a.tx);
    assert_eq!((done.id, done.status), (WorkId(9), status), "{what}");
    settle(harness);
    near.check(harness, 0, &[]);
    far.check(harness, 0, &[]);
    // Either the connection lives on, or it has ended for good on both sides.
    let message = Message::new(1, 20);
    match message.post(&mut pair.a.tx, DATA) {
        Ok(()) => drain(harness, &mut pair.b.rx, &[message]),
        Err(PostError::Failed(_)) => assert!(pair.b.rx.poll_receive().is_err(), "{what}"),
        Err(error) => panic!("{what}: {error:?}"),
    }
}

/// Both directions of a bad request; the source bytes differ from the target's, so that any byte
/// moved would show.
fn refused_both_ways<H: Harness>(
    harness: &mut H,
    what: &str,
    status: Status,
    access: Access,
    slices: impl Fn(&Buffer, &Buffer) -> (LocalSlice, RemoteSlice),
) {
    refused(harness, what, status, access, |_, pair, near, far| {
        let (local, remote) = slices(near, far);
        pair.a.tx.post_read(WorkId(9), local, remote)
    });
    refused(harness, what, status, access, |_, pair, near, far| {
        let (local, remote) = slices(near, far);
        pair.a.tx.post_write(WorkId(9), local, remote)
    });
}

/// One byte before, one byte behind, all of it shifted, wrapped round the address space.
pub fn bad_remote_ranges_fail_and_touch_nothing<H: Harness>(harness: &mut H, _: &mut Random) {
    let end = REGION_LEN as u64;
    let bad: [(i64, usize); 6] =
        [(-1, 1), (-1, 2), (end as i64, 1), (end as i64 - 1, 2), (1, REGION_LEN), (1 << 30, 16)];
    for (offset, len) in bad {
        let what = format!("remote range {offset}+{len}");
        refused_both_ways(harness, &what, Status::RemoteAccess, BOTH, |near, far| {
            let mut remote = far.remote(0, len);
            remote.addr = remote.addr.wrapping_add_signed(offset);
            (near.local(0, len), remote)
        });
    }
    refused_both_ways(harness, "wrapped range", Status::RemoteAccess, BOTH, |near, far| {
        (near.local(0, 16), RemoteSlice { addr: u64::MAX - 7, ..far.remote(0, 16) })
    });
}

/// Keys that were never given out, and the key of another region.
pub fn bad_remote_keys_fail_and_touch_nothing<H: Harness>(harness: &mut H, _: &mut Random) {
    let other = Buffer::new(harness, Side::B, BOTH);
    let flips: [fn(u32) -> u32; 4] = [|key| key ^ 1, |key| key.wrapping_add(1), |_| 0, |key| !key];
    for flip in flips {
        refused_both_ways(harness, "made-up key", Status::RemoteAccess, BOTH, |near, far| {
            let rkey = Rkey(flip(far.region.rkey.0));
            (near.local(0, 64), RemoteSlice { rkey, ..far.remote(0, 64) })
        });
    }
    refused_both_ways(harness, "another region's key", Status::RemoteAccess, BOTH, |near, far| {
        (near.local(0, 64), RemoteSlice { rkey: other.region.rkey, ..far.remote(0, 64) })
    });
    other.check(harness, 0, &[]);
}

/// Reading memory that may only be written, writing memory that may only be read, either without
/// any right.
pub fn missing_rights_fail_and_touch_nothing<H: Harness>(harness: &mut H, _: &mut Random) {
    for access in [WRITABLE, Access::default()] {
        refused(harness, "read", Status::RemoteAccess, access, |_, pair, near, far| {
            pair.a.tx.post_read(WorkId(9), near.local(0, 64), far.remote(0, 64))
        });
    }
    for access in [READABLE, Access::default()] {
        refused(harness, "write", Status::RemoteAccess, access, |_, pair, near, far| {
            pair.a.tx.post_write(WorkId(9), near.local(0, 64), far.remote(0, 64))
        });
    }
}

/// A key ends with its registration, and a new registration of the same memory does not revive it.
pub fn deregistered_regions_fail_and_are_not_touched<H: Harness>(harness: &mut H, _: &mut Random) {
    for register_again in [false, true] {
        refused(harness, "deregistered", Status::RemoteAccess, BOTH, |harness, pair, near, far| {
            harness.deregister(Side::B, far.region);
            if register_again {
                let region = far.region;
                harness.register(Side::B, region.addr, region.len, BOTH).expect("a region");
            }
            pair.a.tx.post_read(WorkId(9), near.local(0, 64), far.remote(0, 64))
        });
    }
}

/// The poster's own memory is checked like the peer's.
pub fn bad_local_keys_and_ranges_fail<H: Harness>(harness: &mut H, _: &mut Random) {
    let status = Status::LocalProtection;
    refused_both_ways(harness, "made-up local key", status, BOTH, |near, far| {
        let lkey = Lkey(near.region.lkey.0 ^ 1);
        (LocalSlice { lkey, ..near.local(0, 64) }, far.remote(0, 64))
    });
    refused_both_ways(harness, "local range too long", status, BOTH, |near, far| {
        (near.local(REGION_LEN - 63, 64), far.remote(0, 64))
    });
    refused_both_ways(harness, "local range before the region", status, BOTH, |near, far| {
        let addr = near.region.addr - 1;
        (LocalSlice { addr, ..near.local(0, 64) }, far.remote(0, 64))
    });
    refused(harness, "deregistered", status, BOTH, |harness, pair, near, far| {
        harness.deregister(Side::A, near.region);
        pair.a.tx.post_write(WorkId(9), near.local(0, 64), far.remote(0, 64))
    });
}

/// A fabric without one-sided work says so, and carries on.
pub fn one_sided_work_is_refused_where_unsupported<H: Harness>(harness: &mut H, _: &mut Random) {
    let mut pair = harness.pair();
    let local = LocalSlice { addr: 4096, len: 16, lkey: Lkey(1) };
    let remote = RemoteSlice { addr: 4096, len: 16, rkey: Rkey(1) };
    assert_eq!(pair.a.tx.post_read(WorkId(1), local, remote), Err(PostError::Unsupported));
    assert_eq!(pair.a.tx.post_write(WorkId(2), local, remote), Err(PostError::Unsupported));
    settle(harness);
    assert_eq!(pair.a.tx.poll_completion(), None);
    let message = Message::new(1, 100);
    assert_eq!(message.post(&mut pair.a.tx, DATA), Ok(()));
    drain(harness, &mut pair.b.rx, &[message]);
}
