//! Flags of calls.

use libc::c_int;
use sdp_stats::Reason;

use super::{KERNEL, Row, UNSUITABLE, Verdict, WORKS, When, hands_over, leaves};

/// The kernel's own, for programs of 32 bits: calls that take a message header refuse it.
pub const MSG_CMSG_COMPAT: c_int = c_int::MIN;

table! {
    /// `MSG_*` of calls that send.
    SENDS sends;
    [MSG_DONTWAIT 0x40, MSG_NOSIGNAL 0x4000] WORKS, "";
    [MSG_MORE 0x8000] WORKS, "a lane holds nothing back: there is nothing to do";
    [MSG_OOB 0x1] leaves(Reason::UrgentData, When::Always), "";
    [MSG_ZEROCOPY 0x4000000] leaves(Reason::ZeroCopyOption, When::Always), "";
    [MSG_FASTOPEN 0x20000000] KERNEL, "connects; refused by the kernel on a connection (EISCONN)";
    [MSG_CMSG_COMPAT 0x80000000] WORKS, "`sendmsg` and `sendmmsg` refuse it (EINVAL), others ignore it";
    [MSG_PEEK 0x2, MSG_DONTROUTE 0x4, MSG_TRYHARD 0x4, MSG_CTRUNC 0x8, MSG_PROXY 0x10, MSG_TRUNC 0x20, MSG_EOR 0x80,
     MSG_WAITALL 0x100, MSG_FIN 0x200, MSG_SYN 0x400, MSG_CONFIRM 0x800, MSG_RST 0x1000, MSG_ERRQUEUE 0x2000,
     MSG_WAITFORONE 0x10000, MSG_SENDPAGE_NOPOLICY 0x10000, MSG_BATCH 0x40000, MSG_SENDPAGE_NOTLAST 0x20000,
     MSG_NO_SHARED_FRAGS 0x80000, MSG_SENDPAGE_DECRYPTED 0x100000, MSG_SOCK_DEVMEM 0x2000000, MSG_SPLICE_PAGES 0x8000000,
     MSG_CMSG_CLOEXEC 0x40000000]
        KERNEL, "without effect on a send by TCP: not TCP's, or the kernel's own, which it takes away";
}

table! {
    /// `MSG_*` of calls that receive.
    RECEIVES receives;
    [MSG_DONTWAIT 0x40, MSG_WAITALL 0x100, MSG_TRUNC 0x20, MSG_PEEK 0x2] WORKS, "";
    [MSG_WAITFORONE 0x10000] WORKS, "`recvmmsg` does not wait for more after the first";
    [MSG_CMSG_CLOEXEC 0x40000000] WORKS, "`recvmsg` tells it in `msg_flags`";
    [MSG_CMSG_COMPAT 0x80000000] WORKS, "`recvmsg` and `recvmmsg` refuse it (EINVAL), others ignore it";
    [MSG_OOB 0x1, MSG_ERRQUEUE 0x2000] KERNEL, "the TCP socket's urgent byte, and its error queue";
    [MSG_DONTROUTE 0x4, MSG_TRYHARD 0x4, MSG_CTRUNC 0x8, MSG_PROXY 0x10, MSG_EOR 0x80, MSG_FIN 0x200, MSG_SYN 0x400,
     MSG_CONFIRM 0x800, MSG_RST 0x1000, MSG_NOSIGNAL 0x4000, MSG_MORE 0x8000, MSG_BATCH 0x40000,
     MSG_SENDPAGE_NOTLAST 0x20000, MSG_NO_SHARED_FRAGS 0x80000, MSG_SENDPAGE_DECRYPTED 0x100000,
     MSG_SOCK_DEVMEM 0x2000000, MSG_ZEROCOPY 0x4000000, MSG_SPLICE_PAGES 0x8000000, MSG_FASTOPEN 0x20000000]
        KERNEL, "without effect on a receive by TCP";
}

table! {
    /// `SOCK_*` of `socket`, `socketpair` and `accept4`.
    SOCKETS sockets;
    [SOCK_STREAM 1] WORKS, "with AF_INET or AF_INET6, and TCP";
    [SOCK_NONBLOCK 0x800, SOCK_CLOEXEC 0x80000] KERNEL, "asked of the kernel where they matter";
    [SOCK_DGRAM 2, SOCK_RAW 3, SOCK_RDM 4, SOCK_SEQPACKET 5, SOCK_DCCP 6, SOCK_PACKET 10] KERNEL, "no stream";
}

table! {
    /// `SPLICE_F_*` of `splice`, `tee` and `vmsplice`: a connection has left its lane by then.
    SPLICES splices;
    [SPLICE_F_MOVE 1, SPLICE_F_NONBLOCK 2, SPLICE_F_MORE 4, SPLICE_F_GIFT 8] KERNEL, "";
}

table! {
    /// `RWF_*` of `preadv2` and `pwritev2`. Others than these take the connection off its lane, too.
    VECTORS vectors;
    [RWF_NOWAIT 0x8] WORKS, "as MSG_DONTWAIT";
    [RWF_HIPRI 0x1, RWF_DSYNC 0x2, RWF_SYNC 0x4, RWF_APPEND 0x10] KERNEL, "without effect on a socket";
    [RWF_NOAPPEND 0x20, RWF_ATOMIC 0x40, RWF_DONTCACHE 0x80, RWF_NOSIGNAL 0x100]
        hands_over(UNSUITABLE, When::Always), "what they do, and whether they are refused, depends on the kernel";
}

/// The flags of a socket call that mean what flags of `preadv2` or `pwritev2` mean. `None`: for the
/// kernel to judge, which may make the call.
pub(crate) fn vector_flags(flags: c_int) -> Option<c_int> {
    let mut meant = 0;
    for bit in 0..u32::BITS {
        let flag = 1 << bit;
        if flags as u32 & flag == 0 {
            continue;
        }
        match vectors(flag) {
            Some(Verdict::Works) => meant |= libc::MSG_DONTWAIT,
            Some(Verdict::Unconcerned) => {}
            Some(Verdict::Leaves(_)) | None => return None,
        }
    }
    Some(meant)
}

/// Flags of a send that take the connection off its lane, and why.
pub(crate) const fn leaving_send(flags: c_int) -> Option<Reason> {
    match flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) {
        0 => None,
        libc::MSG_ZEROCOPY => Some(Reason::ZeroCopyOption),
        _ => Some(Reason::UrgentData),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_go_by_the_tables() {
        for bit in 0..u32::BITS {
            let flag = 1u32 << bit;
            let leaving = leaving_send(flag as c_int);
            match sends(flag) {
                Some(Verdict::Leaves(said)) => assert_eq!(leaving, Some(said.reason), "{flag:#x}"),
                _ => assert_eq!(leaving, None, "{flag:#x}"),
            }
        }
        assert_eq!(vector_flags(0), Some(0));
        assert_eq!(vector_flags(0x1f), Some(libc::MSG_DONTWAIT));
        assert_eq!(vector_flags(0x20), None);
        assert_eq!(vector_flags(0x4000_0000), None);
    }
}
