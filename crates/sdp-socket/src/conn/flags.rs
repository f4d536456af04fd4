//! Names of the bits that a connection has in this process, and in its row of family memory.
//!
//! Which of them are a phase of the connection's life says [`super::life`].

/// Bits of `Conn::flags`.
pub(crate) mod flag {
    /// The descriptor has been seen in an intercepted wait.
    pub(crate) const WAITED: u32 = 1 << 0;
    /// A listener whose rules say TCP.
    pub(crate) const RULE_TCP: u32 = 1 << 1;
    /// A fork was in progress when the connection appeared: its holders are not known for certain.
    pub(crate) const UNCERTAIN: u32 = 1 << 2;
    /// Never promote again.
    pub(crate) const FALLBACK: u32 = 1 << 3;
    /// The carrier showed FIN or an error to a sender: outbound stays on the kernel lane (E4).
    pub(crate) const PEER_GONE: u32 = 1 << 4;
    /// The program shut down its sending side.
    pub(crate) const SHUT: u32 = 1 << 5;
    /// Counted, and has a row in the statistics.
    pub(crate) const HAS_STATS_ROW: u32 = 1 << 6;
    /// The peer broke the protocol: every call answers ECONNRESET.
    pub(crate) const HOSTILE: u32 = 1 << 7;
    /// The peer was given this process's doorbell, so arms may ask for it.
    pub(crate) const PEER_HAS_DOORBELL: u32 = 1 << 8;
    /// An AF_INET6 socket.
    pub(crate) const V6: u32 = 1 << 9;
    /// By accept.
    pub(crate) const ACCEPTED: u32 = 1 << 10;
    /// Counted as an established connection.
    pub(crate) const SEEN: u32 = 1 << 11;
    /// `tuple` is valid.
    pub(crate) const NAMED: u32 = 1 << 12;
    /// A non-blocking sender was answered EAGAIN because the ring is full: "writable" means room in the
    /// ring until it is seen again.
    pub(crate) const WANTS_ROOM: u32 = 1 << 13;
    /// A reset by the peer has been reported: like the kernel, once.
    pub(crate) const RESET_REPORTED: u32 = 1 << 14;
    /// A thread waits for the connection where no doorbell reaches: waits arm on the carrier.
    pub(crate) const BY_CARRIER: u32 = 1 << 15;
    /// The statistics row shows the addresses.
    pub(crate) const SHOWN: u32 = 1 << 16;
    /// Begun by another process; came by exec or SCM_RIGHTS ([`crate::lifecycle::adopt`]).
    pub(crate) const ADOPTED: u32 = 1 << 17;
    /// A sender wrote beyond its ring's first page since [`crate::datapath::reclaim`] looked last.
    pub(crate) const BULKY: u32 = 1 << 18;
    /// The kernel refuses to take the ring's pages back.
    pub(crate) const KEEPS_PAGES: u32 = 1 << 19;
    /// Passed on with SCM_RIGHTS: a stranger to the family may have it open.
    pub(crate) const PASSED: u32 = 1 << 20;
    /// No other end came to meet it: it may be tried again ([`crate::migration::promote`]).
    pub(crate) const UNMET: u32 = 1 << 21;
    /// This process counted the end as seen.
    pub(crate) const COUNTED: u32 = 1 << 22;
    /// A thread of a family member was inside the kernel, without a lock or asleep, when this
    /// process was forked.
    pub(crate) const FORKED_DURING_CALL: u32 = 1 << 23;
    /// A listener that came by exec or activation, or a connection of one: its network namespace need not be the
    /// process's.
    pub(crate) const MAY_BE_ELSEWHERE: u32 = 1 << 24;
    /// A thread waited for it with `poll` or `select` before it had lanes ([`sdp_shm::early`]).
    pub(crate) const EARLY: u32 = 1 << 25;
    /// The program asked for a device: the addresses need not be this connection's alone ([`crate::migration::reuse`]).
    pub(crate) const BOUND: u32 = 1 << 26;
    /// A reader at the end waited in vain for a family member that sends: it may be stopped, or
    /// dead.
    pub(crate) const SENDER_STUCK: u32 = 1 << 27;
    /// The program means the connection for new images: it took FD_CLOEXEC off, or a child duplicated it
    /// ([`crate::lifecycle::exec`]).
    pub(crate) const FOR_IMAGES: u32 = 1 << 28;
    /// A family member kept a lock of it for longer than anything takes.
    pub(crate) const OVERDUE: u32 = 1 << 29;
    /// This process consumed wake bytes on the carrier that other threads wait for, too: they have
    /// to be woken ([`crate::wake::interest::wake_bytes_consumed`]).
    pub(crate) const CONSUMED: u32 = 1 << 30;
    /// A thread has gone to sleep in `poll` or `select` with it since the last such wake-up.
    pub(crate) const POLLED: u32 = 1 << 31;
}

/// Bits of a family row's flags.
pub(crate) mod row_flag {
    /// A holder left the family and kept its descriptor, or passed one to a stranger: the library
    /// does not know any more which processes hold the connection.
    pub(crate) const OUT_OF_SIGHT: u32 = 1;
    /// Several processes use the lanes of this end (R5).
    pub(crate) const SEVERAL: u32 = 2;
    /// A process of the family has, or had, the connection in an epoll set.
    pub(crate) const IN_SET: u32 = 4;
    /// A send consumed the kernel's ECONNRESET without reporting it. The next receive must report
    /// it. No FIN has come, unless one crossed ours on its way.
    pub(crate) const RESET_TAKEN: u32 = 8;
}
