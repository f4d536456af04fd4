//! The end of a stream beside its last bytes: the kernel, which knows the one, does not know of the other.

use sdp_proto::wire::Mid;

use crate::{
    conn::{Conn, Half, carrier},
    process::table::{self, Entry},
    readiness::cursor,
    wake::{
        arming,
        interest::{
            ALWAYS, ET, End, IN_KIND, ONESHOT, RDHUP, mirror::Mirror, mirror::Registration,
        },
    },
};

/// Whether the last message in the ring says that the stream is over, at a glance. The peer may have forged that: the kernel
/// is asked.
pub(super) fn is_last_in_ring(conn: &Conn) -> bool {
    let half = conn.half_index(Half::Receive);
    let Some((link, head)) = conn.link().zip(arming::head(conn)) else { return false };
    link.last_message(half, head) == Some(Mid::DisConn.byte())
}

/// What the kernel would have reported beside the bytes of a ring. Of a disabled registration it is to report nothing more.
pub(super) fn beside(m: &mut Mirror, at: u32, reg: &Registration, conn: &Conn) -> u32 {
    let is_known = reg.end == End::Known;
    let may_be_over =
        || reg.events & RDHUP != 0 && (reg.events & ONESHOT != 0 || is_last_in_ring(conn));
    if !(is_known || may_be_over()) || table::entry(reg.fd) != Some(Entry::Conn(reg.conn)) {
        return 0;
    }
    let over = carrier::readiness(reg.fd, libc::POLLRDHUP) as u16;
    let over = u32::from(over) & (ALWAYS | RDHUP) & (reg.events | ALWAYS);
    if over & RDHUP != 0
        && reg.events & (ET | ONESHOT) == ET
        && !is_known
        && let Some(reg) = m.reg(at)
    {
        reg.end = End::Told;
    }
    over
}

/// The kernel reports the end. True: an edge has told all of this.
pub(super) fn is_told(m: &mut Mirror, at: u32, conn: &Conn, events: u32) -> bool {
    let is_last = is_last_in_ring(conn);
    let Some(reg) = m.reg(at) else { return false };
    let before = core::mem::replace(&mut reg.end, End::Known);
    if is_last && reg.events & (ET | ONESHOT) == ET {
        reg.reported = cursor(conn); // bytes and end in one event
    }
    before == End::Told && events & !(IN_KIND | RDHUP) == 0
}
