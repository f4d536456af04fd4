//! The sending side of one half: which lane, which bytes to keep, where to resume.
//!
//! Plain state under the half's outbound lock, in memory that fork children share. The caller owns
//! sockets, queue pair and memory; it asks before it sends and reports the bytes that were taken.
//!
//! | lane | event | becomes |
//! |---|---|---|
//! | Kernel | `switch_to_sdp` | Sdp |
//! | Sdp | `resume` (dead, spill, leave, DEAD) | Kernel with backlog |
//! | Kernel, Sdp | `hold` (LEAVE read) | Held |
//! | Held | `returned` (RETURN read) | Raw with backlog |
//! | Kernel | `go_raw` (own leaving) | Raw |

use crate::marker::{Kind, Marker};

/// Where new payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// On the carrier, which is guarded.
    Kernel,
    /// On the queue pair.
    Sdp,
    /// Nowhere: RAW was sent and RETURN is awaited.
    Held,
    /// On the carrier, for good, without markers.
    Raw,
}

/// The queue pair as this half knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Link {
    /// None, or not yet proven.
    None,
    /// Proven and not known to be dead.
    Up,
    /// Known to be dead.
    Dead,
}

/// Why something cannot be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The half is on the wrong lane for it.
    Lane,
    /// No queue pair, or a dead one.
    Link,
    /// A resume is being written to the carrier; new bytes wait.
    Backlog,
    /// As many messages are kept as can be.
    Slots,
    /// 2³¹ switches, or positions beyond 64 bits.
    Exhausted,
    /// Messages of the queue pair before are still kept by its device.
    Kept,
}

/// The peer's statement cannot be true: reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// It acknowledged a message that was never posted.
    Acknowledged,
    /// A RETURN that leaves a gap, or lies beyond the bytes sent.
    Returned,
    /// A RETURN without a LEAVE.
    Unasked,
}

/// A message whose bytes are kept until it is acknowledged, or sent again. The device reads a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Kept {
    stream: u64,
    len: u32,
    mseq: u32,
}

/// Bytes to be written to the carrier before any new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Backlog {
    /// The marker in front; nothing once it was written.
    pub marker: Option<Marker>,
    /// Stream position of the next byte.
    pub from: u64,
    /// Stream position behind the last.
    pub to: u64,
    /// Bytes before this position were returned by the peer, and are the caller's to keep.
    pub returned_to: u64,
}

/// The next piece of a backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A marker, whole, in one send with MSG_EOR.
    Marker(Marker),
    /// Bytes that RETURN brought back, at this offset from RETURN's position on.
    Returned {
        /// Stream position of the first.
        stream: u64,
        /// How many.
        len: u32,
    },
    /// Bytes of a message that are kept.
    Kept {
        /// Stream position of the first.
        stream: u64,
        /// How many.
        len: u32,
    },
}

/// A switch onto SDP, to be announced on the queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Switch {
    /// Odd number of the switch.
    pub sequence: u32,
    /// Bytes put on the carrier before it.
    pub carrier: u64,
    /// Stream bytes before it.
    pub stream: u64,
}

/// The sending side; the bytes of `N` messages can be kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Producer<const N: usize> {
    lane: Lane,
    link: Link,
    sequence: u32,
    stream: u64,
    carrier: u64,
    posted: u32,
    acknowledged: u32,
    /// Stream position up to which all has been given to the carrier or acknowledged by way of it.
    settled: u64,
    /// Oldest first; `count` of them.
    kept: [Kept; N],
    count: u16,
    backlog: Option<Backlog>,
}

impl<const N: usize> Producer<N> {
    /// At the first meeting: the bytes that the kernel had been given by then are both positions.
    pub const fn new(position: u64) -> Self {
        let none = Kept { stream: 0, len: 0, mseq: 0 };
        Self {
            lane: Lane::Kernel,
            link: Link::None,
            sequence: 0,
            stream: position,
            carrier: position,
            posted: 0,
            acknowledged: 0,
            settled: position,
            kept: [none; N],
            count: 0,
            backlog: None,
        }
    }

    /// Where new payload goes.
    #[inline]
    pub const fn lane(&self) -> Lane {
        self.lane
    }

    /// The queue pair.
    #[inline]
    pub const fn link(&self) -> Link {
        self.link
    }

    /// Bytes accepted from the program.
    #[inline]
    pub const fn stream(&self) -> u64 {
        self.stream
    }

    /// Bytes put on the carrier, markers included.
    pub const fn carrier(&self) -> u64 {
        self.carrier
    }

    /// The bytes that have to be written before new ones.
    pub const fn backlog(&self) -> Option<Backlog> {
        self.backlog
    }

    #[inline]
    fn all_kept(&self) -> &[Kept] {
        self.kept.get(..usize::from(self.count)).unwrap_or_default()
    }

    /// How many messages are posted and not acknowledged in software.
    pub fn unacknowledged(&self) -> usize {
        self.all_kept().iter().filter(|kept| self.is_unacknowledged(kept)).count()
    }

    /// Whether any is.
    #[inline]
    pub fn has_unacknowledged(&self) -> bool {
        // The youngest is the last to be acknowledged.
        self.all_kept().last().is_some_and(|kept| self.is_unacknowledged(kept))
    }

    /// Whether the device of a queue pair that lives may read bytes that are kept: they were posted,
    /// and the peer's software has not acknowledged them, also if they went by the carrier since (G6).
    pub fn is_read_by_device(&self) -> bool {
        let last = self.all_kept().last();
        self.link == Link::Up && last.is_some_and(|kept| !self.is_acknowledged(kept.mseq))
    }

    /// True if payload goes by SDP, and nothing is to be written to the carrier.
    #[inline]
    pub const fn is_steady(&self) -> bool {
        matches!((self.lane, self.link), (Lane::Sdp, Link::Up)) && self.backlog.is_none()
    }

    #[inline]
    fn is_acknowledged(&self, mseq: u32) -> bool {
        (self.acknowledged.wrapping_sub(mseq) as i32) >= 0
    }

    /// A new queue pair is proven in both directions; the old one is destroyed. The first message has
    /// the sequence 1.
    ///
    /// # Errors
    /// The half is not on the kernel lane with everything written.
    pub fn met(&mut self) -> Result<(), Refusal> {
        if self.lane != Lane::Kernel {
            return Err(Refusal::Lane);
        }
        if self.backlog.is_some() {
            return Err(Refusal::Backlog);
        }
        if self.count != 0 {
            return Err(Refusal::Kept);
        }
        (self.link, self.posted, self.acknowledged) = (Link::Up, 0, 0);
        Ok(())
    }

    /// The queue pair is dead: by its device's word, by time, or by a DEAD marker.
    pub fn link_died(&mut self) {
        if self.link == Link::Up {
            self.link = Link::Dead;
        }
    }

    /// The dead queue pair was drained and destroyed: it acknowledges nothing any more.
    pub const fn link_destroyed(&mut self) {
        self.link = Link::None;
    }

    /// The next payload goes by SDP. Post the switch first, then call [`Self::posted`].
    ///
    /// # Errors
    /// The half cannot switch now.
    pub fn switch_to_sdp(&mut self) -> Result<Switch, Refusal> {
        if self.backlog.is_some() {
            return Err(Refusal::Backlog);
        }
        if self.lane != Lane::Kernel {
            return Err(Refusal::Lane);
        }
        if self.link != Link::Up {
            return Err(Refusal::Link);
        }
        let sequence = self.sequence.checked_add(1).filter(|s| *s < 1 << 31);
        self.sequence = sequence.ok_or(Refusal::Exhausted)?;
        self.lane = Lane::Sdp;
        Ok(Switch { sequence: self.sequence, carrier: self.carrier, stream: self.stream })
    }

    /// True if a message with payload may be posted now.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub fn may_post(&self) -> Result<(), Refusal> {
        match (self.lane, self.link) {
            (Lane::Sdp, Link::Up) if usize::from(self.count) < N => Ok(()),
            (Lane::Sdp, Link::Up) => Err(Refusal::Slots),
            (Lane::Sdp, _) => Err(Refusal::Link),
            _ => Err(Refusal::Lane),
        }
    }

    /// A message without payload was posted with this sequence.
    pub fn posted_control(&mut self, mseq: u32) {
        self.posted = mseq;
    }

    /// A message with `len` bytes of new payload was posted.
    ///
    /// # Errors
    /// As [`Self::may_post`], which the caller has asked.
    #[inline]
    pub fn posted(&mut self, mseq: u32, len: u32) -> Result<(), Refusal> {
        self.may_post()?;
        let place = self.kept.get_mut(usize::from(self.count)).ok_or(Refusal::Slots)?;
        *place = Kept { stream: self.stream, len, mseq };
        self.count += 1;
        self.posted = mseq;
        self.stream = self.stream.checked_add(u64::from(len)).ok_or(Refusal::Exhausted)?;
        Ok(())
    }

    /// How many messages are kept.
    pub const fn kept(&self) -> usize {
        self.count as usize
    }

    /// The peer has read `len` bytes of advertised memory: they are its own, and none is kept. All
    /// messages before them are acknowledged.
    pub fn read_by_peer(&mut self, len: u32) {
        self.stream = self.stream.saturating_add(u64::from(len));
    }

    /// New payload that the caller keeps and no message has: a queue pair that is given up at once
    /// ([`Self::link_died`], [`Self::resume`]) had it advertised.
    ///
    /// # Errors
    /// Those of [`Self::may_post`], which the caller has asked before it advertised.
    pub fn keep(&mut self, len: u32) -> Result<(), Refusal> {
        let posted = self.posted;
        // As if the next message had it.
        let kept = self.posted(posted.wrapping_add(1), len);
        self.posted = posted;
        kept
    }

    /// The peer's software has everything up to this message in its inbox. An old number says nothing.
    ///
    /// # Errors
    /// It was never posted.
    #[inline]
    pub fn acknowledge(&mut self, mseq: u32) -> Result<(), Broken> {
        if self.link == Link::None {
            return Ok(());
        }
        if (self.posted.wrapping_sub(mseq) as i32) < 0 {
            return Err(Broken::Acknowledged);
        }
        if !self.is_acknowledged(mseq) {
            self.acknowledged = mseq;
        }
        Ok(())
    }

    /// Forgets the messages whose bytes need not be kept any more.
    #[inline]
    pub fn free(&mut self) {
        let free = self.all_kept().iter().take_while(|kept| self.is_free(kept)).count();
        if free != 0 {
            self.drop_first(free);
        }
    }

    #[inline]
    fn is_free(&self, kept: &Kept) -> bool {
        // The device sends from there, perhaps once more (G6).
        if self.link == Link::Up && !self.is_acknowledged(kept.mseq) {
            return false;
        }
        let end = kept.stream + u64::from(kept.len);
        match (self.lane, self.backlog) {
            // RETURN may ask for anything that was not acknowledged.
            (Lane::Sdp | Lane::Held, _) => !self.is_unacknowledged(kept),
            (_, Some(backlog)) => end <= backlog.from,
            (_, None) => true,
        }
    }

    #[inline]
    fn drop_first(&mut self, gone: usize) {
        let count = usize::from(self.count);
        for to in 0..count {
            // A place that is free says nothing.
            let next = self.kept.get(to + gone).filter(|_| to + gone < count);
            let next = next.copied().unwrap_or_default();
            if let Some(place) = self.kept.get_mut(to) {
                *place = next;
            }
        }
        self.count = count.saturating_sub(gone) as u16;
    }

    /// A message whose bytes only this end has for certain. One that was sent again by the carrier,
    /// and was not forgotten yet, is not.
    #[inline]
    fn is_unacknowledged(&self, kept: &Kept) -> bool {
        kept.stream >= self.settled && !self.is_acknowledged(kept.mseq)
    }

    /// Where a resume begins: behind the last message that the peer acknowledged in software.
    #[inline]
    fn acknowledged_to(&self) -> u64 {
        let first = self.all_kept().iter().find(|kept| self.is_unacknowledged(kept));
        first.map_or(self.stream, |kept| kept.stream)
    }

    /// Stream position from which on bytes have to be kept: a resume would begin there, or one that
    /// is being written.
    #[inline]
    pub fn unacknowledged_from(&self) -> u64 {
        self.backlog.map_or_else(|| self.acknowledged_to(), |backlog| backlog.from)
    }

    /// Ends the SDP section: a KERNEL marker and the bytes that were not acknowledged are now the
    /// backlog.
    ///
    /// # Errors
    /// The half is not on SDP.
    pub fn resume(&mut self) -> Result<Backlog, Refusal> {
        if self.lane != Lane::Sdp {
            return Err(Refusal::Lane);
        }
        let from = self.acknowledged_to();
        self.sequence = self.sequence.checked_add(1).ok_or(Refusal::Exhausted)?;
        self.lane = Lane::Kernel;
        let marker = Marker {
            kind: Kind::Kernel,
            sequence: self.sequence,
            stream: from,
            carrier: self.carrier,
            follows: 0,
        };
        let backlog = Backlog { marker: Some(marker), from, to: self.stream, returned_to: from };
        self.backlog = Some(backlog);
        Ok(backlog)
    }

    /// LEAVE was read: RAW is to be written, whole, then nothing before RETURN. A backlog must have
    /// been written first.
    ///
    /// # Errors
    /// A backlog is unwritten, or the half is held or raw already.
    pub fn hold(&mut self) -> Result<Marker, Refusal> {
        if self.backlog.is_some() {
            return Err(Refusal::Backlog);
        }
        match self.lane {
            Lane::Kernel | Lane::Sdp => {}
            Lane::Held | Lane::Raw => return Err(Refusal::Lane),
        }
        self.lane = Lane::Held;
        Ok(self.marker(Kind::Raw, self.stream))
    }

    /// Own leaving: RAW is to be written, whole; bytes that follow are raw and not held.
    ///
    /// # Errors
    /// The half is not on the kernel lane with everything written.
    pub fn go_raw(&mut self) -> Result<Marker, Refusal> {
        if self.backlog.is_some() {
            return Err(Refusal::Backlog);
        }
        if self.lane != Lane::Kernel {
            return Err(Refusal::Lane);
        }
        self.lane = Lane::Raw;
        Ok(self.marker(Kind::Raw, self.stream))
    }

    /// A marker that makes no switch, at this carrier position.
    pub fn marker(&self, kind: Kind, stream: u64) -> Marker {
        Marker { kind, sequence: 0, stream, carrier: self.carrier, follows: 0 }
    }

    /// Whether [`Self::returned`] takes it; the position behind its bytes.
    ///
    /// # Errors
    /// As there.
    pub fn may_return(&self, stream: u64, follows: u32) -> Result<u64, Broken> {
        if self.lane != Lane::Held {
            return Err(Broken::Unasked);
        }
        let returned_to = stream.checked_add(u64::from(follows)).ok_or(Broken::Returned)?;
        if returned_to > self.stream || returned_to < self.acknowledged_to() {
            return Err(Broken::Returned);
        }
        Ok(returned_to)
    }

    /// RETURN was read: its `follows` bytes, which the caller keeps, from `stream` on come first,
    /// then the kept ones; then raw.
    ///
    /// # Errors
    /// No LEAVE waits for it, or it leaves a gap.
    pub fn returned(&mut self, stream: u64, follows: u32) -> Result<Backlog, Broken> {
        let returned_to = self.may_return(stream, follows)?;
        self.lane = Lane::Raw;
        let backlog = Backlog { marker: None, from: stream, to: self.stream, returned_to };
        self.backlog = (backlog.from < backlog.to).then_some(backlog);
        Ok(backlog)
    }

    /// The next piece of the backlog to write.
    pub fn next_piece(&self) -> Option<Piece> {
        let backlog = self.backlog?;
        if let Some(marker) = backlog.marker {
            // Markers about the other half may have been written meanwhile.
            return Some(Piece::Marker(Marker { carrier: self.carrier, ..marker }));
        }
        if backlog.from < backlog.returned_to {
            let len = (backlog.returned_to - backlog.from).min(u64::from(u32::MAX)) as u32;
            return Some(Piece::Returned { stream: backlog.from, len });
        }
        let holds = |kept: &&Kept| {
            kept.stream <= backlog.from && backlog.from < kept.stream + u64::from(kept.len)
        };
        let kept = self.all_kept().iter().find(holds)?;
        let offset = (backlog.from - kept.stream) as u32;
        Some(Piece::Kept { stream: backlog.from, len: kept.len - offset })
    }

    /// The kernel took a marker of this half, KERNEL or RAW, whole.
    pub fn wrote_marker(&mut self) {
        self.carrier += crate::marker::MARKER_LEN as u64;
        if let Some(backlog) = &mut self.backlog {
            backlog.marker = None;
        }
        self.end_backlog();
    }

    /// The kernel took bytes of the backlog, as [`Self::next_piece`] named them.
    pub fn wrote_backlog(&mut self, len: u32) {
        self.carrier += u64::from(len);
        if let Some(backlog) = &mut self.backlog {
            backlog.from = (backlog.from + u64::from(len)).min(backlog.to);
        }
        self.end_backlog();
    }

    fn end_backlog(&mut self) {
        self.backlog = self.backlog.filter(|b| b.marker.is_some() || b.from < b.to);
        if self.backlog.is_none() && matches!(self.lane, Lane::Kernel | Lane::Raw) {
            self.settled = self.stream;
        }
    }

    /// True if new payload may go on the carrier.
    ///
    /// # Errors
    /// Why not.
    pub fn may_write(&self) -> Result<(), Refusal> {
        match (self.lane, self.backlog) {
            (_, Some(_)) => Err(Refusal::Backlog),
            (Lane::Kernel | Lane::Raw, None) => Ok(()),
            _ => Err(Refusal::Lane),
        }
    }

    /// The kernel took bytes of new payload.
    pub fn wrote(&mut self, len: u32) {
        self.stream += u64::from(len);
        self.carrier += u64::from(len);
        self.settled = self.stream;
    }

    /// The kernel took a marker about the meeting or the other half (PROOF, DEAD, LEAVE, RETURN), or
    /// bytes behind a RETURN.
    pub fn wrote_aside(&mut self, len: u32) {
        self.carrier += u64::from(len);
    }
}
