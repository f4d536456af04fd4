//! Transfer modes of a half-connection and the four legal transitions (spec 3.1, 3.2).

/// How a half-connection may carry payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Data messages only. The sink is the master.
    Buffered = 0,
    /// Data, and one source advertisement at a time. The source is the master. Every half-connection
    /// starts here.
    Combined = 1,
    /// Data and many advertisements of either side. The source is the master.
    Pipelined = 2,
}

/// An end of a half-connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The end that sends the bytes.
    Source,
    /// The end that receives them.
    Sink,
}

/// A legal change of mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// The mode that is left.
    pub from: Mode,
    /// The mode that is entered.
    pub to: Mode,
    /// The side that decides and sends ModeChange.
    pub master: Side,
}

/// All legal transitions.
pub const TRANSITIONS: [Transition; 4] = [
    Transition { from: Mode::Combined, to: Mode::Buffered, master: Side::Source },
    Transition { from: Mode::Buffered, to: Mode::Combined, master: Side::Sink },
    Transition { from: Mode::Combined, to: Mode::Pipelined, master: Side::Source },
    Transition { from: Mode::Pipelined, to: Mode::Combined, master: Side::Source },
];

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Buffered, Self::Combined, Self::Pipelined];

    /// The field's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Buffered => "Buffered",
            Self::Combined => "Combined",
            Self::Pipelined => "Pipelined",
        }
    }

    /// The side that decides about leaving this mode.
    pub const fn master(self) -> Side {
        match self {
            Self::Buffered => Side::Sink,
            Self::Combined | Self::Pipelined => Side::Source,
        }
    }

    /// Whether `side` may change from this mode `to` that one.
    pub fn may_change(self, side: Side, to: Self) -> bool {
        TRANSITIONS.contains(&Transition { from: self, to, master: side })
    }

    /// Source advertisements that may be outstanding at once where the sink accepts `max_adverts`.
    pub const fn src_avail_limit(self, max_adverts: u32) -> u32 {
        match self {
            Self::Buffered => 0,
            Self::Combined => 1,
            Self::Pipelined => max_adverts,
        }
    }

    pub(crate) const fn from_bits(bits: u64) -> Option<Self> {
        match bits {
            0 => Some(Self::Buffered),
            1 => Some(Self::Combined),
            2 => Some(Self::Pipelined),
            _ => None,
        }
    }
}
