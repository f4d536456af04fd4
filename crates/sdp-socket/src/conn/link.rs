//! The connection's end of its lane, whatever carries it.
//!
//! [`AnyLink`] is the one place that knows all fabrics; a fabric more is a variant more in each of the
//! three enums. Every call is a `match`: with one variant there is nothing to decide.
//!
//! Called by everything that moves bytes or waits for them, but for the fast path, which works on the
//! segment itself ([`crate::datapath::plain`]).

use sdp_fabric_shm::link::{ShmEnd, ShmHalf, ShmLink};
use sdp_link::{
    Armed, Broken, EndWords, Ended, Holder, How, Intent, Lane, Link, ResetNote, Switch, SwitchLog,
    Trust, Wakeups, What,
};
use sdp_shm::layout::Segment;

use super::Conn;

/// One end of an attached connection.
#[derive(Clone, Copy)]
pub(crate) enum AnyLink {
    /// On a segment.
    Shm(ShmLink),
}

/// One half of it.
#[derive(Clone, Copy)]
pub(crate) enum AnyHalf<'a> {
    /// On a segment.
    Shm(ShmHalf<'a>),
}

/// What an end of it says of itself.
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

    /// The segment, for what works on its rings as they are: cursors and the succession to a killed process.
    #[inline(always)]
    pub(crate) const fn segment(&self) -> Segment {
        match self {
            Self::Shm(link) => link.segment(),
        }
    }
}

impl Link for AnyLink {
    type Half<'a> = AnyHalf<'a>;
    type End<'a> = AnyEnd<'a>;

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
    ($(fn $name:ident(self $(, $arg:ident: $type:ty)*) $(-> $result:ty)?;)*) => {
        $(
            #[inline(always)]
            fn $name(self $(, $arg: $type)*) $(-> $result)? {
                match self {
                    Self::Shm(it) => it.$name($($arg),*),
                }
            }
        )*
    };
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
