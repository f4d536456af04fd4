//! Behind the end of a queue pair: whether an end may write to the carrier by itself (G10).
//!
//! A program that has closed may have left bytes with its kernel, which answers whatever comes with
//! a reset, and throws them away. So an end is quiet until it knows that the other one stays. What
//! its program sends goes, as over TCP.

/// So long nothing may have come by the carrier, all of which was read, before the peer is taken for
/// one that stays: where nobody has said how the queue pair ended, and where the peer has ended it.
pub const SILENT_NS: u64 = 1_000_000_000;
/// See [`SILENT_NS`].
pub const PARTED_NS: u64 = 5_000_000_000;

/// What this end knows of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Known {
    /// The peer has ended the queue pair, by the connection manager's word: it knows of the end.
    pub has_parted: bool,
    /// It has said behind that, by DEAD or LEAVE, that it goes on.
    pub stays: bool,
}

/// What of the peer's stream is on the carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carried {
    /// Bytes that were not read.
    Bytes,
    /// Nothing.
    Nothing,
    /// Its end has come.
    End,
}

/// Whether the end may write by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Speech {
    /// It may.
    Free,
    /// Not before something is heard.
    Quiet,
    /// Nor at this time, in monotonic nanoseconds; then it is asked again.
    QuietUntil(u64),
}

/// An end behind its queue pair's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Silence {
    since: Option<u64>,
}

impl Silence {
    /// Before.
    pub const fn new() -> Self {
        Self { since: None }
    }

    /// There is a queue pair (again).
    pub const fn end(&mut self) {
        self.since = None;
    }

    /// The rule. `is_due`: something is to be written without which the peer would miss something.
    pub fn judge(&mut self, known: Known, carried: Carried, is_due: bool, now: u64) -> Speech {
        if carried == Carried::End {
            return Speech::Quiet;
        }
        if known.stays {
            return Speech::Free;
        }
        if !is_due {
            return Speech::Quiet;
        }
        if carried == Carried::Bytes {
            self.since = None;
        }
        let since = *self.since.get_or_insert(now);
        let until = since.saturating_add(if known.has_parted { PARTED_NS } else { SILENT_NS });
        if now < until { Speech::QuietUntil(until) } else { Speech::Free }
    }
}

#[cfg(test)]
mod model;
