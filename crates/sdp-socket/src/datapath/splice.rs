//! `sendfile`, `splice` and FIONREAD: calls that move or count bytes without the program's buffers.
//!
//! Called by `api`.

use libc::c_int;
use sdp_fabric_shm::link::{PENDING_MAX, ShmHalf};
use sdp_sys::{
    errno::Errno,
    kernel::{self, zeroed},
    sys,
};

use crate::{
    conn::{
        ConnGuard, Half, carrier,
        iovec::{Buffers, MOST},
    },
    datapath::{
        lane::{Lane, SinkState, Switch},
        receive, send,
    },
    process::scratch::Scratch,
};

/// Bytes of a file read at once; one message's payload.
const CHUNK: usize = 16 * 1024;
/// The same where there is no memory but the stack.
const SMALL_CHUNK: usize = 1024;

/// File systems whose files are bytes: to read one is what `sendfile` does. A file without blocks may be empty, or lie
/// in its inode, or be none: those of the kernel's own systems are not to be sent, some of them.
const ON_DISKS: &[u64] = &[
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x0102_1994, // tmpfs, memory files
    0x8584_58f6, // ramfs
    0x794c_7630, // overlay
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0x6969,      // NFS
];

/// Whether `sendfile` from here is to read here: a file of bytes.
fn is_plain_file(input: c_int) -> bool {
    let mut stat: libc::stat = zeroed();
    if kernel::fstat(input, &mut stat).is_err() || stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return false;
    }
    if stat.st_blocks > 0 {
        return true;
    }
    let mut system: libc::statfs = zeroed();
    kernel::fstatfs(input, &mut system).is_ok()
        && ON_DISKS.contains(&u64::from(system.f_type as u32))
}

/// Whether a descriptor names a pipe.
pub(crate) fn is_pipe(fd: c_int) -> bool {
    let mut stat: libc::stat = zeroed();
    kernel::fstat(fd, &mut stat).is_ok() && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
}

/// `sendfile` from `input` to a connection on the SDP lane: through a buffer on the stack, one
/// message at a time. `None`: the kernel makes the call, which it refuses, or sends from a file
/// that only it can read, for which the connection has left its lane.
///
/// `leave` makes the connection leave its lane for that; false: it cannot.
///
/// # Safety
/// `offset` is null or readable and writable.
pub(crate) unsafe fn sendfile(
    conn: &ConnGuard,
    input: c_int,
    offset: *mut i64,
    count: usize,
    by: send::Send,
    leave: fn(&ConnGuard, Half) -> bool,
) -> Option<Result<usize, Errno>> {
    // With no bytes to send it gives the same verdict on the descriptors, on the position, and on a
    // file without one. SAFETY: the caller's offset; no byte is sent.
    if unsafe { sys!(libc::SYS_sendfile, conn.fd(), input, offset, 0) }.is_err() {
        return None;
    }
    // SAFETY: the caller's, which the kernel has just read.
    let at = if offset.is_null() { 0 } else { unsafe { *offset } };
    if isize::try_from(count).is_err() || at.checked_add(count as i64).is_none() {
        return None; // EINVAL or EOVERFLOW
    }
    if count == 0 {
        return Some(Ok(0));
    }
    if is_plain_file(input) {
        // SAFETY: the caller's.
        let sent = unsafe { send_file(conn, input, offset, count.min(MOST), by) };
        if sent != Err(Errno::EINVAL) {
            return Some(sent);
        }
        // Of a file that is read by whole blocks only, perhaps.
    }
    // Refused, a program reads and writes instead.
    (!leave(conn, Half::Send)).then_some(Err(Errno::EINVAL))
}

/// The same from a file of bytes.
///
/// # Safety
/// `offset` is null or readable and writable.
unsafe fn send_file(
    conn: &ConnGuard,
    input: c_int,
    offset: *mut i64,
    count: usize,
    by: send::Send,
) -> Result<usize, Errno> {
    let mut small = [0u8; SMALL_CHUNK];
    let mut scratch = if count > SMALL_CHUNK { Scratch::take() } else { None };
    let chunk = scratch.as_mut().map_or(&mut small[..], Scratch::bytes);
    let most = chunk.len().min(CHUNK);
    let mut done = 0;
    let partial = |done: usize, e: Errno| if done > 0 { Ok(done) } else { Err(e) };
    while done < count {
        let want = (count - done).min(most);
        let to = chunk.get_mut(..want).unwrap_or(&mut []);
        // SAFETY: null or the caller's.
        let got = match unsafe { offset.as_ref() } {
            None => kernel::read(input, to),
            Some(offset) => kernel::pread_bytes(input, to, *offset),
        };
        let got = match got {
            Ok(0) => break,
            Ok(got) => got,
            Err(e) => return partial(done, e),
        };
        let iov = libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: got };
        // SAFETY: one element over our own chunk.
        let Some(mut buffers) = (unsafe { Buffers::new(&raw const iov, 1) }) else { break };
        let sent = by(conn, &mut buffers, 0);
        let taken = *sent.as_ref().unwrap_or(&0);
        // SAFETY: null or the caller's.
        if let Some(offset) = unsafe { offset.as_mut() } {
            *offset += taken as i64;
        } else if taken < got {
            // Gives back the bytes that were read and not sent.
            let _ = kernel::lseek(input, taken as i64 - got as i64, libc::SEEK_CUR);
        }
        done += taken;
        match sent {
            Ok(taken) if taken == got => {}
            Ok(_) => break,
            Err(e) => return partial(done, e),
        }
    }
    Ok(done)
}

/// Bytes that a receive call could deliver now, across lanes (L8): never too few.
pub(crate) fn readable_bytes(conn: &ConnGuard) -> Result<u64, Errno> {
    receive::with_sink(conn, |sink, _, _, half| {
        let mut total = 0u64;
        let mut lane = sink.lane;
        let queued = carrier::queued(conn.fd())?;
        let mut carrier_at = sink.consumed(conn.fd())?;
        let carrier_end = carrier_at + queued;
        let mut walk = *sink;
        for _ in 0..=PENDING_MAX {
            let switch = walk.pending(half).ok().flatten();
            match lane {
                Lane::Kernel => {
                    let end = switch.map_or(carrier_end, |s| s.carrier.min(carrier_end));
                    total += end.saturating_sub(carrier_at);
                    carrier_at = carrier_at.max(end);
                    if switch.is_some_and(|s| s.carrier > carrier_end) {
                        break; // still on its way, and what is in the ring comes after it
                    }
                }
                Lane::Sdp => {
                    walk.rx.set_limit(switch.map_or(u64::MAX, |s| s.fabric));
                    total += receive::payload_ahead(&mut walk);
                    if let Some(switch) = switch {
                        carrier_at = switch.carrier;
                    }
                }
            }
            let Some(switch) = switch else { break };
            lane = switch.to;
            walk.lane = lane;
            walk.followed = walk.followed.wrapping_add(1);
        }
        Ok(total)
    })
}

/// Whether bytes in the ring come before anything that the kernel holds.
pub(crate) fn has_ring_bytes(conn: &ConnGuard) -> bool {
    receive::with_sink(conn, |sink, _, _, half| Ok(ring_is_next(sink, half).0)).unwrap_or(false)
}

/// The same for the urgent mark, which the kernel reports. If not, no wake byte is in its way any
/// more.
pub(crate) fn is_before_mark(conn: &ConnGuard) -> bool {
    receive::with_sink(conn, |sink, _, _, half| {
        let (is_next, switch) = ring_is_next(sink, half);
        Ok(is_next || switch.is_some_and(|switch| !receive::consume_before(conn, sink, switch)))
    })
    .unwrap_or(false)
}

/// Whether the next byte is in the ring, and the switch that a half on the SDP lane is to follow.
fn ring_is_next(sink: &SinkState, half: ShmHalf<'_>) -> (bool, Option<Switch>) {
    let mut walk = *sink;
    let switch = walk.pending(half).ok().flatten();
    walk.rx.set_limit(switch.map_or(u64::MAX, |s| s.fabric));
    let is_there = walk.lane == Lane::Sdp;
    (is_there && receive::payload_ahead(&mut walk) > 0, switch.filter(|_| is_there))
}
