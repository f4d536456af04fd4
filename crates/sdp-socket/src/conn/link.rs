//! The connection's end of its lane, on any fabric.
//!
//! [`AnyLink`] is the one place that knows all fabrics; a fabric more is a variant more in each of
//! these enums. Every call is a `match`: with one variant there is nothing to decide.
//!
//! Called by everything that moves bytes or waits for them, but for the fast path, which works on
//! the segment itself ([`crate::datapath::fast`]).

use sdp_fabric_shm::{
    endpoint::{ShmRx, ShmTx},
    link::{ShmEnd, ShmHalf, ShmLink},
};
use sdp_link::{
    Armed, Broken, EndWords, Ended, Holder, How, Intent, Lane, Link, ResetNote, RxCursor, Switch,
    SwitchLog, Trust, TxCursor, TxSaved, Wakeups, What,
};
use sdp_rdma::{
    fabric::{Gather, PostError, QpError, ReceiveQueue, Received, Scatter, SendOptions, SendQueue},
    key::{LocalSlice, RemoteSlice},
    work::{Completion, WorkId},
};
use sdp_shm::layout::Segment;

use super::Conn;

/// One end of an attached connection.
#[derive(Clone, Copy)]
pub(crate) enum AnyLink {
    /// On a segment.
    Shm(ShmLink),
}

/// The sending end of a half.
pub(crate) enum AnyTx {
    /// On a segment.
    Shm(ShmTx),
}

/// The receiving end of a half.
#[derive(Clone, Copy)]
pub(crate) enum AnyRx {
    /// On a segment.
    Shm(ShmRx),
}

/// One half of it.
#[derive(Clone, Copy)]
pub(crate) enum AnyHalf<'a> {
    /// On a segment.
    Shm(ShmHalf<'a>),
}

/// The words by which an end of it states its intent.
#[derive(Clone, Copy)]
pub(crate) enum AnyEnd<'a> {
    /// On a segment.
    Shm(ShmEnd<'a>),
}

impl Conn {
    /// The link, once attached.
    #[inline(always)]
    pub(crate) fn link(&self) -> Option<AnyLink> {
        Some(AnyLink::on(self.segment()?, self.side()))
    }
}

impl AnyLink {
    /// On a segment, of which this end is side `side`.
    #[inline(always)]
    pub(crate) const fn on(segment: Segment, side: usize) -> Self {
        Self::Shm(ShmLink::new(segment, side))
    }

    /// The segment, for code that works on it as it is: the fast path and the takeover from a
    /// killed process.
    #[inline(always)]
    pub(crate) const fn segment(&self) -> Segment {
        match self {
            Self::Shm(link) => link.segment(),
        }
    }
}

impl Link for AnyLink {
    type Tx = AnyTx;
    type Rx = AnyRx;
    type Half<'a> = AnyHalf<'a>;
    type End<'a> = AnyEnd<'a>;

    #[inline(always)]
    fn open_tx(&self, half: usize, saved: TxSaved) -> Result<AnyTx, Broken> {
        match self {
            Self::Shm(link) => link.open_tx(half, saved).map(AnyTx::Shm),
        }
    }

    #[inline(always)]
    fn open_rx(&self, half: usize, freed: u64, current: u32) -> Result<AnyRx, Broken> {
        match self {
            Self::Shm(link) => link.open_rx(half, freed, current).map(AnyRx::Shm),
        }
    }

    #[inline(always)]
    fn half(&self, half: usize) -> AnyHalf<'_> {
        match self {
            Self::Shm(link) => AnyHalf::Shm(link.half(half)),
        }
    }

    #[inline(always)]
    fn own(&self) -> AnyEnd<'_> {
        match self {
            Self::Shm(link) => AnyEnd::Shm(link.own()),
        }
    }

    #[inline(always)]
    fn peer(&self) -> AnyEnd<'_> {
        match self {
            Self::Shm(link) => AnyEnd::Shm(link.peer()),
        }
    }
}

/// Methods that ask the variant.
macro_rules! ask {
    () => {};
    (fn $name:ident(self $(, $arg:ident: $type:ty)*) $(-> $result:ty)?; $($rest:tt)*) => {
        #[inline(always)]
        fn $name(self $(, $arg: $type)*) $(-> $result)? {
            match self {
                Self::Shm(it) => it.$name($($arg),*),
            }
        }
        ask! { $($rest)* }
    };
    (fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $result:ty)?; $($rest:tt)*) => {
        #[inline(always)]
        fn $name(&self $(, $arg: $type)*) $(-> $result)? {
            match self {
                Self::Shm(it) => it.$name($($arg),*),
            }
        }
        ask! { $($rest)* }
    };
    (fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) $(-> $result:ty)?; $($rest:tt)*) => {
        #[inline(always)]
        fn $name(&mut self $(, $arg: $type)*) $(-> $result)? {
            match self {
                Self::Shm(it) => it.$name($($arg),*),
            }
        }
        ask! { $($rest)* }
    };
}

impl AnyTx {
    /// On a segment.
    #[inline(always)]
    pub(crate) const fn as_shm(&mut self) -> &mut ShmTx {
        match self {
            Self::Shm(tx) => tx,
        }
    }
}

impl AnyRx {
    /// On a segment.
    #[inline(always)]
    pub(crate) const fn as_shm(&self) -> &ShmRx {
        match self {
            Self::Shm(rx) => rx,
        }
    }
}

impl SendQueue for AnyTx {
    ask! {
        fn max_message(&self) -> usize;
        fn room(&self) -> usize;
        fn post_send(
            &mut self,
            id: WorkId,
            header: &[u8],
            payload: &mut impl Gather,
            options: SendOptions
        ) -> Result<(), PostError>;
        fn post_read(&mut self, id: WorkId, to: LocalSlice, from: RemoteSlice) -> Result<(), PostError>;
        fn post_write(&mut self, id: WorkId, from: LocalSlice, to: RemoteSlice) -> Result<(), PostError>;
        fn poll_completion(&mut self) -> Option<Completion>;
    }
}

impl TxCursor for AnyTx {
    ask! {
        fn cursors(&self) -> (u64, u64);
        fn private(&self) -> u64;
        fn publish(&self);
        fn refresh(&mut self) -> Result<(), QpError>;
        fn footprint(&self, len: usize) -> u64;
    }
}

impl ReceiveQueue for AnyRx {
    ask! {
        fn posted(&self) -> u16;
        fn poll_receive(&mut self) -> Result<Option<Received>, QpError>;
        fn copy_header(&self, message: Received, to: &mut [u8]) -> usize;
        fn copy_out(&self, message: Received, offset: u32, len: u32, sink: &mut impl Scatter);
        fn release(&mut self, message: Received);
    }
}

impl RxCursor for AnyRx {
    ask! {
        fn cursors(&self) -> (u64, u64);
        fn set_limit(&mut self, limit: u64);
        fn current(&self, len: u32) -> Received;
        fn publish(&self);
    }

    #[inline(always)]
    fn onlooker(&self) -> Self {
        match self {
            Self::Shm(rx) => Self::Shm(rx.onlooker()),
        }
    }
}

impl SwitchLog for AnyHalf<'_> {
    ask! {
        fn try_gate(self, side: usize) -> Result<(), Holder>;
        fn take_gate_over(self, from: Holder, side: usize) -> bool;
        fn gate_holder(self) -> Option<Holder>;
        fn open_gate(self);
        fn written(self) -> u32;
        fn lane(self) -> Lane;
        fn write(self, at: u32, switch: Switch, step: impl Fn());
        fn accept(self, known: u32, lane: Lane, carrier: u64, fabric: u64) -> Result<bool, Broken>;
        fn end_section(self, received: u64, step: impl Fn()) -> Ended;
        fn next(self, followed: u32, lane: Lane, freed: u64) -> Result<Option<Switch>, Broken>;
        fn follow(self, followed: u32);
        fn followed(self) -> u32;
        fn announce_unbounded_read(self, begins: bool);
        fn may_leave(self, switches: u32) -> bool;
        fn sent(self) -> u64;
        fn count_sent(self, bytes: u64);
        fn trust(self) -> Trust;
        fn declare(self, trust: Trust);
        fn read(self) -> u64;
        fn count_read(self, bytes: u64);
    }
}

impl Wakeups for AnyHalf<'_> {
    ask! {
        fn position(self, what: What) -> u64;
        fn size(self) -> u64;
        fn free(self) -> u64;
        fn arm(self, what: What, how: How);
        fn armed(self, what: What) -> Option<Armed>;
        fn disarm(self, what: What, armed: Armed);
        fn note_signal(self, ticks: u64);
        fn signalled_at(self) -> u64;
    }
}

impl EndWords for AnyEnd<'_> {
    ask! {
        fn is_attached(self) -> bool;
        fn attach(self);
        fn intent(self) -> Intent;
        fn is_open(self) -> bool;
        fn intend(self, intent: Intent);
        fn close(self) -> bool;
        fn reset_note(self) -> ResetNote;
        fn note_reset(self, note: ResetNote);
        fn note_leaving(self);
        fn cpu(self) -> u32;
        fn note_cpu(self, cpu: u32);
        fn socket(self) -> u32;
        fn note_socket(self, number_plus_one: u32);
    }
}
