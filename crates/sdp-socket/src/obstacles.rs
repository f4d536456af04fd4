//! Options that keep a connection off its lanes, asked of the kernel.
//!
//! What the program sets on the connection itself is seen when it does ([`crate::calls::setsockopt`]). An accepted connection
//! has most options of its listener, which somebody else may have set there, in another process or image, and a connection
//! that came from elsewhere has what it was given there. So these are asked once, when they have earned a meeting.

use libc::c_int;
use sdp_stats::Reason;
use sdp_sys::{fd, sys};

use crate::conn::{Conn, flag};

/// `TCP_INQ`: each `recvmsg` tells how much more there is, in control data.
const TCP_INQ: c_int = 36;
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
/// `SO_PEEK_OFF`; −1: off.
const SO_PEEK_OFF: c_int = 42;

/// Why the connection cannot have lanes, by an option that it has from its listener or from who passed it on.
#[cold]
pub(crate) fn inherited(conn: &Conn, fd: c_int) -> Option<Reason> {
    if !conn.has(flag::ACCEPTED | flag::ADOPTED) {
        return None;
    }
    let value = |level, name| fd::getsockopt_int(fd, level, name).unwrap_or(0);
    let socket = |name| value(libc::SOL_SOCKET, name);
    if socket(libc::SO_RCVLOWAT) > 1 {
        return Some(Reason::LowWatermark);
    }
    if socket(libc::SO_OOBINLINE) != 0 {
        return Some(Reason::UrgentData);
    }
    if socket(libc::SO_ZEROCOPY) != 0 {
        return Some(Reason::ZeroCopyOption);
    }
    // With control data that the kernel makes of packets, or with a filter of them.
    const TIMES: [c_int; 5] = [
        libc::SO_TIMESTAMP,
        libc::SO_TIMESTAMPNS,
        libc::SO_TIMESTAMPING,
        SO_TIMESTAMP_NEW,
        SO_TIMESTAMPNS_NEW,
    ];
    let is_peculiar = TIMES.into_iter().any(|name| socket(name) != 0)
        || fd::getsockopt_int(fd, libc::SOL_SOCKET, SO_PEEK_OFF).is_ok_and(|at| at >= 0)
        || value(libc::IPPROTO_TCP, TCP_INQ) != 0
        || value(libc::IPPROTO_TCP, libc::TCP_REPAIR) != 0
        || has(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, 0)
        || has(fd, libc::IPPROTO_TCP, libc::TCP_ULP, 16);
    is_peculiar.then_some(Reason::UnsuitableSocket)
}

/// Whether the socket has something that is told with its length, of which `room` bytes are asked.
fn has(fd: c_int, level: c_int, name: c_int, room: u32) -> bool {
    let (mut text, mut len) = ([0u8; 16], room);
    // SAFETY: text and length outlive the call; room is no more than there is.
    let asked =
        unsafe { sys!(libc::SYS_getsockopt, fd, level, name, text.as_mut_ptr(), &raw mut len) };
    match asked {
        Ok(_) => len != 0,
        Err(error) => error.0 == libc::EACCES, // a filter that is not for us to read
    }
}
