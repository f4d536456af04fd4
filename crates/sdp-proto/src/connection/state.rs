//! The life cycle of a connection as data: event, state, next state (spec 5.4).
//!
//! States carry their TCP names, as users see them. The table says nothing about actions: the
//! caller that drives the connection reads the new state and acts. An event that the table does not
//! have for a state is an error that carries both.
//!
//! ```text
//!                     Listen ── request ──► SynReceived ─┐ ready
//!  Closed ── connect ──► SynSent ────── reply ───────────┴──► Established
//!
//!  Established ── shutdown ──► FinWait1 ── DisConn sent ──► FinWait2 ─┐
//!       │                         │                                  │ DisConn received
//!       │ DisConn received        └─ DisConn received ─► Closing ─────┤
//!       ▼                                                DisConn sent ▼
//!  CloseWait ── shutdown ──► LastAck ── disconnected ────────────► TimeWait ── expired ─► Closed
//! ```

use core::fmt;

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Nothing there.
    Closed,
    /// Waiting for requests.
    Listen,
    /// Hello sent.
    SynSent,
    /// HelloAck sent.
    SynReceived,
    /// Both directions open.
    Established,
    /// Our stream is ending: DisConn is due or on its way.
    FinWait1,
    /// Our stream has ended.
    FinWait2,
    /// Both streams are ending, ours is not out yet.
    Closing,
    /// The peer's stream has ended.
    CloseWait,
    /// The peer's stream has ended, ours is ending.
    LastAck,
    /// Both are over; the queue pair is being taken down.
    TimeWait,
}

/// The events of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Event {
    /// The program connects.
    Connect,
    /// The program listens.
    Listen,
    /// A good Hello came to a listener; the new state is that of the new connection.
    Request,
    /// A good HelloAck came.
    Reply,
    /// Refused, timed out, or a bad HelloAck.
    Refused,
    /// The peer is ready to use the connection: it said so, or sent something.
    Ready,
    /// The program ends its stream, by shutdown or a graceful close.
    Shutdown,
    /// The fabric has delivered our DisConn.
    DisConnSent,
    /// DisConn came.
    DisConnReceived,
    /// AbortConn came.
    AbortReceived,
    /// The program resets the connection, or the peer broke a rule.
    Abort,
    /// The peer disconnected, or the queue pair failed.
    Disconnected,
    /// The handshake at the end took too long.
    Timeout,
    /// The queue pair is gone.
    Expired,
}

/// An event that cannot happen in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalid {
    /// Where the connection is.
    pub state: State,
    /// The event.
    pub event: Event,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {:?} in state {:?} (spec 5.4)", self.event, self.state)
    }
}

use State::{
    CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, Listen, SynReceived,
    SynSent, TimeWait,
};

/// All transitions: for each event the states in which it may happen and where they lead.
pub const TRANSITIONS: [(Event, &[(State, State)]); 14] = [
    (Event::Connect, &[(Closed, SynSent)]),
    (Event::Listen, &[(Closed, Listen)]),
    (Event::Request, &[(Listen, SynReceived)]),
    (Event::Reply, &[(SynSent, Established)]),
    (Event::Refused, &[(SynSent, Closed), (SynReceived, Closed)]),
    (Event::Ready, &[(SynReceived, Established)]),
    (
        Event::Shutdown,
        &[
            (Listen, Closed),
            (SynSent, Closed),
            (SynReceived, FinWait1),
            (Established, FinWait1),
            (CloseWait, LastAck),
        ],
    ),
    // In LastAck the peer disconnects; we do when it takes too long.
    (
        Event::DisConnSent,
        &[(FinWait1, FinWait2), (Closing, TimeWait), (LastAck, LastAck), (TimeWait, TimeWait)],
    ),
    (
        Event::DisConnReceived,
        &[
            (SynReceived, CloseWait),
            (Established, CloseWait),
            (FinWait1, Closing),
            (FinWait2, TimeWait),
            (TimeWait, TimeWait),
        ],
    ),
    (
        Event::AbortReceived,
        &[
            (SynReceived, TimeWait),
            (Established, TimeWait),
            (FinWait1, TimeWait),
            (FinWait2, TimeWait),
            (Closing, TimeWait),
            (CloseWait, TimeWait),
            (LastAck, TimeWait),
            (TimeWait, TimeWait),
        ],
    ),
    (
        Event::Abort,
        &[
            (SynSent, Closed),
            (SynReceived, Closed),
            (Established, Closed),
            (FinWait1, Closed),
            (FinWait2, Closed),
            (Closing, Closed),
            (CloseWait, Closed),
            (LastAck, Closed),
        ],
    ),
    // Graceful only where the peer's stream has ended.
    (
        Event::Disconnected,
        &[
            (SynSent, Closed),
            (SynReceived, Closed),
            (Established, Closed),
            (FinWait1, Closed),
            (FinWait2, Closed),
            (Closing, TimeWait),
            (CloseWait, TimeWait),
            (LastAck, TimeWait),
            (TimeWait, TimeWait),
        ],
    ),
    (
        Event::Timeout,
        &[(FinWait1, TimeWait), (FinWait2, TimeWait), (Closing, TimeWait), (LastAck, TimeWait)],
    ),
    (Event::Expired, &[(TimeWait, Closed)]),
];

impl State {
    /// All states, in the order of life.
    pub const ALL: [Self; 11] = [
        Closed,
        Listen,
        SynSent,
        SynReceived,
        Established,
        FinWait1,
        FinWait2,
        Closing,
        CloseWait,
        LastAck,
        TimeWait,
    ];

    /// The state after `event`.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when the event cannot happen here; the state stays.
    pub fn after(self, event: Event) -> Result<Self, Invalid> {
        TRANSITIONS
            .iter()
            .find(|(e, _)| *e == event)
            .and_then(|(_, rows)| rows.iter().find(|(from, _)| *from == self))
            .map(|(_, to)| *to)
            .ok_or(Invalid { state: self, event })
    }

    /// Whether a queue pair exists that messages can travel on.
    pub const fn is_connected(self) -> bool {
        matches!(
            self,
            SynReceived | Established | FinWait1 | FinWait2 | Closing | CloseWait | LastAck
        )
    }

    /// Whether the program may still send.
    pub const fn may_send(self) -> bool {
        matches!(self, SynReceived | Established | CloseWait)
    }

    /// Whether the peer's stream is still open.
    pub const fn may_receive(self) -> bool {
        matches!(self, SynReceived | Established | FinWait1 | FinWait2)
    }

    /// The name that users of netstat know.
    pub const fn name(self) -> &'static str {
        match self {
            Closed => "CLOSED",
            Listen => "LISTEN",
            SynSent => "SYN_SENT",
            SynReceived => "SYN_RECV",
            Established => "ESTABLISHED",
            FinWait1 => "FIN_WAIT1",
            FinWait2 => "FIN_WAIT2",
            Closing => "CLOSING",
            CloseWait => "CLOSE_WAIT",
            LastAck => "LAST_ACK",
            TimeWait => "TIME_WAIT",
        }
    }

    /// Writes the table, one line for each event and state.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn write_table(out: &mut impl fmt::Write) -> fmt::Result {
        for (event, rows) in TRANSITIONS {
            writeln!(out, "{event:?}")?;
            for (from, to) in rows {
                writeln!(out, "    {:<12} -> {}", from.name(), to.name())?;
            }
        }
        Ok(())
    }
}
