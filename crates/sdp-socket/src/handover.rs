//! Ring bytes that somebody unaware of us is about to need: they go back into the kernel's stream.
//!
//! After a connection left the SDP lane, its inbound ring may still hold bytes. Our own receive calls
//! deliver them first; stdio, an executed image or a process that gets the descriptor would miss them.
//! Where the peer's socket can be had (`pidfd_getfd`, its inode proven by the kernel's own tables) the
//! bytes are sent once more, through that socket, and arrive in ours in stream order. Otherwise the
//! peer is rung, and the bytes stay readable for every aware reader.

use core::sync::atomic::Ordering;

use sdp_fabric_shm::identity;
use sdp_rdma::fabric::ReceiveQueue;
use sdp_sys::{OwnedFd, fd, sys};

use crate::{
    conn::{Conn, Stage},
    lane::{Lane, SinkState},
    receive,
};

/// Pushes what is left in the inbound ring into the carrier. True when nothing is left.
pub(crate) fn push(conn: &Conn, fd: i32) -> bool {
    if conn.stage() != Stage::Attached {
        return true;
    }
    receive::with_sink(conn, |sink, row, _, lines| {
        let Ok(Some(switch)) = sink.pending(lines) else {
            return Ok(sink.lane == Lane::Kernel);
        };
        if sink.lane != Lane::Sdp || switch.to != Lane::Kernel {
            return Ok(false);
        }
        // Bells first, so that only data follows them.
        receive::eat_bells(fd, sink, lines);
        let Some(peer) = peer_socket(conn, fd) else { return Ok(false) };
        sink.rx.set_limit(switch.ring);
        let pushed = push_messages(conn, sink, row, &peer);
        if pushed && sink.carrier_read == switch.carrier {
            sink.follow(lines, Lane::Kernel);
            return Ok(true);
        }
        Ok(false)
    })
    .unwrap_or(false)
}

fn push_messages(
    conn: &Conn,
    sink: &mut SinkState,
    row: &sdp_shm::family::Row,
    peer: &OwnedFd,
) -> bool {
    loop {
        let message = match sink.current() {
            Some(message) => message,
            None => match sink.rx.poll_receive() {
                Ok(Some(message)) => match receive::accept(conn, sink, row, message) {
                    Ok(true) => message,
                    Ok(false) => continue,
                    Err(_) => return false,
                },
                Ok(None) => return true,
                Err(_) => return false,
            },
        };
        while sink.current_offset < sink.current_len {
            let (at, len) = sink.rx.piece(message, sink.current_offset);
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: `piece` answers with mapped ring bytes; the kernel only reads them.
            let sent = unsafe { sys!(libc::SYS_sendto, peer.raw(), at, len, flags, 0, 0) };
            match sent {
                Ok(n) if n > 0 => sink.current_offset += n as u32,
                _ => return false,
            }
        }
        sink.current_len = 0;
        sink.current_offset = 0;
        sink.rx.release(message);
    }
}

/// The other end's socket, if this process may have it and it is provably that.
fn peer_socket(conn: &Conn, fd: i32) -> Option<OwnedFd> {
    let segment = conn.segment()?;
    let end = segment.end(conn.side() ^ 1);
    let number = end.descriptor.load(Ordering::Relaxed).checked_sub(1)?;
    let pid = conn.peer_pid()?;
    // SAFETY: no pointers.
    let pidfd = OwnedFd::new(unsafe { sys!(libc::SYS_pidfd_open, pid, 0) }.ok()? as i32);
    // SAFETY: no pointers.
    let socket = unsafe { sys!(libc::SYS_pidfd_getfd, pidfd.raw(), number, 0) }.ok()?;
    let socket = OwnedFd::new(socket as i32);
    let tuple = conn.name(fd)?;
    let peer = identity::diag(&tuple.reversed()).ok()??;
    (peer.inode != 0 && fd::inode(socket.raw()).ok()? == peer.inode).then_some(socket)
}

/// Pushes for every attached connection that the process holds, before an exec.
pub(crate) fn push_all(mut wanted: impl FnMut(i32) -> bool) {
    crate::table::walk(|fd, entry| {
        if matches!(entry, crate::table::Entry::Conn(_))
            && let Some(conn) = crate::table::Pinned::new(fd, crate::conn::Half::Receive)
            && matches!(conn.stage(), Stage::Attached | Stage::Meeting)
            && wanted(fd)
        {
            crate::demote::leave(&conn, fd, sdp_stats::Reason::Exec);
            push(&conn, fd);
        }
    });
}
