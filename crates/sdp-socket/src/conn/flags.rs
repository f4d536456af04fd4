//! The flags that a connection has in this process: six kinds, in one word, so that a call looks at
//! those that concern it with one load.
//!
//! The flags of its row in family memory are [`sdp_shm::family::RowFlag`]. Which of the flags here
//! decide, with the stage, the phase of the connection's life says [`super::life`].

pub(crate) use sdp_shm::family::RowFlag;
pub(crate) use sdp_sys::flags::Mask;
use sdp_sys::{flag_kind, flags::AtomicFlags};

/// Whose the flags are.
#[derive(Clone, Copy)]
pub(crate) enum OfConn {}

/// Flags of several kinds, or all of a connection.
pub(crate) type Flags = sdp_sys::flags::Flags<OfConn>;
/// The word of a connection.
pub(crate) type FlagWord = AtomicFlags<OfConn>;

flag_kind! {
    /// What keeps payload off the SDP lane, or out of the stream.
    pub(crate) enum Limits in OfConn {
        /// Never promote again.
        Fallback = 0,
        /// The peer broke the protocol: every call answers ECONNRESET.
        Hostile = 1,
        /// The carrier showed FIN or an error to a sender: outbound stays on the kernel lane (E4).
        PeerGone = 2,
        /// The program shut down its sending side.
        Shut = 3,
        /// A reset by the peer has been reported: like the kernel, once.
        ResetReported = 4,
        /// No other end came to meet it: it may be tried again ([`crate::migration::promote`]).
        Unmet = 5,
        /// The rules say TCP, for it or for the connections of a listener.
        RuleTcp = 6,
    }
}

flag_kind! {
    /// Which other processes hold the connection, or may, and what they do with it.
    pub(crate) enum Holders in OfConn {
        /// Begun by another process; came by exec or SCM_RIGHTS ([`crate::lifecycle::adopt`]).
        Adopted = 8,
        /// Passed on with SCM_RIGHTS: a stranger to the family may have it open.
        Passed = 9,
        /// A fork was in progress when the connection appeared: its holders are not known for
        /// certain.
        Uncertain = 10,
        /// The program means the connection for new images: it took FD_CLOEXEC off, or a child
        /// duplicated it ([`crate::lifecycle::exec`]).
        ForImages = 11,
        /// A thread of a family member was inside the kernel, without a lock or asleep, when this
        /// process was forked.
        ForkedDuringCall = 12,
        /// A reader at the end waited in vain for a family member that sends: it may be stopped, or
        /// dead.
        SenderStuck = 13,
        /// A family member kept a lock of it for longer than anything takes.
        Overdue = 14,
    }
}

flag_kind! {
    /// Which threads wait for it, and how they are woken.
    pub(crate) enum Waiters in OfConn {
        /// The descriptor has been seen in an intercepted wait.
        Seen = 16,
        /// A thread has gone to sleep in `poll` or `select` with it since the last such wake-up.
        Polled = 17,
        /// A thread waited for it with `poll` or `select` before it had lanes ([`sdp_shm::early`]).
        Early = 18,
        /// This process consumed wake bytes on the carrier that other threads wait for, too: they
        /// have to be woken ([`crate::wake::interest::wake_bytes_consumed`]).
        Consumed = 19,
        /// A thread waits for the connection where no doorbell reaches: waits arm on the carrier.
        ByCarrier = 20,
        /// The peer was given this process's doorbell, so arms may ask for it.
        PeerHasDoorbell = 21,
        /// A non-blocking sender was answered EAGAIN because the ring is full: "writable" means
        /// room in the ring until it is seen again.
        WantRoom = 22,
    }
}

flag_kind! {
    /// What the socket is, and where it came from.
    pub(crate) enum Origin in OfConn {
        /// An AF_INET6 socket.
        V6 = 24,
        /// By accept.
        Accepted = 25,
        /// The program asked for a device: the addresses need not be this connection's alone
        /// ([`crate::migration::reuse`]).
        Bound = 26,
        /// A listener that came by exec or activation, or a connection of one: its network
        /// namespace need not be the process's.
        MayBeElsewhere = 27,
        /// Its addresses have been learnt: `tuple` is valid.
        Named = 28,
    }
}

flag_kind! {
    /// What the statistics have of it.
    pub(crate) enum Counted in OfConn {
        /// Counted as an established connection.
        Established = 29,
        /// It was this process that counted it.
        Here = 30,
        /// Has a row.
        HasRow = 31,
        /// The row shows the addresses.
        RowHasEnds = 7,
    }
}

flag_kind! {
    /// The memory of its ring.
    pub(crate) enum Pages in OfConn {
        /// A sender wrote beyond the ring's first page since [`crate::datapath::reclaim`] looked
        /// last.
        Bulky = 15,
        /// The kernel refuses to take the ring's pages back.
        Kept = 23,
    }
}

const KINDS: [Flags; 6] = [
    Limits::ALL.flags(),
    Holders::ALL.flags(),
    Waiters::ALL.flags(),
    Origin::ALL.flags(),
    Counted::ALL.flags(),
    Pages::ALL.flags(),
];

/// No bit is a flag of two kinds.
const _: () = {
    let (mut rest, mut all, mut members) = (KINDS.as_slice(), Flags::NONE, 0);
    while let [kind, others @ ..] = rest {
        members += kind.count();
        all = all.and(*kind);
        rest = others;
    }
    assert!(all.count() == members);
};
