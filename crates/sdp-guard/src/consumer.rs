//! The receiving side of one half: which bytes to take from which road.
//!
//! Plain state under the half's inbound lock. The caller owns the inbox, whose messages have been
//! judged on arrival by [`Arrival`], and the carrier; it shows the inbox's head and obeys.

use crate::{
    marker::{Kind, MARKER_LEN, Marker},
    producer::Switch,
};

/// A message at the head of the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Head {
    /// A switch onto SDP.
    Switch(Switch),
    /// Payload of a section.
    Data {
        /// The section's switch.
        section: u32,
        /// Stream position of its first unread byte.
        stream: u64,
        /// Unread bytes.
        len: u32,
    },
}

/// The peer did something impossible: reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A switch or a marker out of order.
    Sequence,
    /// A position that does not fit.
    Position,
    /// A marker that resumes behind what arrived: acknowledged bytes are gone.
    Missing,
    /// Payload where only a marker may be, or of no section.
    Payload,
    /// A marker where none may be.
    Marker,
}

/// Gives messages of one queue pair their section and position as they arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Arrival {
    section: u32,
    stream: u64,
}

impl Arrival {
    /// Of a new queue pair.
    pub const fn new() -> Self {
        Self { section: 0, stream: 0 }
    }

    /// A LaneSwitch arrived.
    ///
    /// # Errors
    /// Its number is even or not behind the last one.
    pub fn switch(&mut self, switch: Switch) -> Result<Head, Broken> {
        if switch.sequence.is_multiple_of(2) || switch.sequence <= self.section {
            return Err(Broken::Sequence);
        }
        (self.section, self.stream) = (switch.sequence, switch.stream);
        Ok(Head::Switch(switch))
    }

    /// Payload arrived.
    ///
    /// # Errors
    /// No switch came before it on this queue pair.
    #[inline]
    pub fn data(&mut self, len: u32) -> Result<Head, Broken> {
        if self.section == 0 {
            return Err(Broken::Payload);
        }
        let head = Head::Data { section: self.section, stream: self.stream, len };
        self.stream = self.stream.checked_add(u64::from(len)).ok_or(Broken::Position)?;
        Ok(head)
    }
}

/// The consumer's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Deliver at most so many bytes of the inbox's head, then [`Consumer::took`].
    Take(u32),
    /// Throw the head away: it is of a section that is over.
    Void,
    /// The head is a switch that was followed; drop it and ask again.
    Followed,
    /// Read the carrier, at most so many bytes of payload, then [`Consumer::read`] or
    /// [`Consumer::marker`]. With 0 only a marker is due.
    Carrier(u64),
    /// Deliver nothing: the inbox and the bytes kept from the carrier go back with RETURN.
    Return,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Leaving {
    No,
    Asked,
    Raw,
}

/// The receiving side.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Consumer {
    on_sdp: bool,
    sequence: u32,
    taken: u64,
    skip: u64,
    carrier: u64,
    pending: Option<Marker>,
    leaving: Leaving,
    /// Bytes taken since LEAVE are delivered all the same.
    reads_on: bool,
    raw: bool,
    /// The peer leaves: a RETURN follows its RAW.
    expects_return: bool,
    /// With LEAVE: the program's position. Bytes taken from then on are not delivered.
    consumed: u64,
}

/// The outcome of carrier payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// So many of its first bytes are thrown away: the consumer has them.
    pub skip: u64,
    /// The rest is the stream's, from this position on.
    pub stream: u64,
}

impl Consumer {
    /// At the first meeting: the bytes that the kernel had delivered by then are both positions.
    pub const fn new(position: u64) -> Self {
        Self {
            on_sdp: false,
            sequence: 0,
            taken: position,
            skip: 0,
            carrier: position,
            pending: None,
            leaving: Leaving::No,
            reads_on: false,
            raw: false,
            expects_return: false,
            consumed: 0,
        }
    }

    /// Bytes of the stream that were taken.
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// Bytes read from the carrier, markers included.
    pub const fn carrier(&self) -> u64 {
        self.carrier
    }

    /// True if the half is on SDP.
    #[inline]
    pub const fn is_on_sdp(&self) -> bool {
        self.on_sdp
    }

    /// The last switch that was followed; 0 before the first.
    pub const fn sequence(&self) -> u32 {
        self.sequence
    }

    /// So many of the carrier's next payload bytes the consumer has already.
    pub const fn to_skip(&self) -> u64 {
        self.skip
    }

    /// True if a marker was read that ends the section, and bytes before its position are still due.
    pub const fn is_ending(&self) -> bool {
        self.pending.is_some()
    }

    /// True if no marker can come any more: the reader need not look for tokens.
    pub const fn is_raw(&self) -> bool {
        self.raw && !self.expects_return
    }

    /// True if neither end has begun to leave.
    pub const fn is_guarded(&self) -> bool {
        !self.raw && !self.expects_return && !self.owes_return()
    }

    /// True from LEAVE on until RETURN was made.
    #[inline]
    pub const fn owes_return(&self) -> bool {
        !matches!(self.leaving, Leaving::No)
    }

    /// True if RAW was read in answer to LEAVE, and RETURN was not made yet.
    pub const fn is_return_due(&self) -> bool {
        matches!(self.leaving, Leaving::Raw)
    }

    /// Bytes that were taken since LEAVE and go back with RETURN.
    pub const fn undelivered(&self) -> u64 {
        if self.is_leaving() { self.taken - self.consumed } else { 0 }
    }

    /// True from LEAVE on: bytes are taken, not delivered, and nothing may be acknowledged once RETURN
    /// was made. Not of an end that reads on.
    #[inline]
    pub const fn is_leaving(&self) -> bool {
        self.owes_return() && !self.reads_on
    }

    /// The next step, with this head of the inbox (`None`: it is empty).
    ///
    /// # Errors
    /// The peer broke the protocol.
    #[inline]
    pub fn next(&mut self, head: Option<Head>) -> Result<Next, Broken> {
        if self.raw {
            return Ok(match (head, self.leaving) {
                (Some(head), Leaving::Raw) => return self.gather(head),
                (None, Leaving::Raw) => Next::Return,
                // Payload that the peer sent before its RAW and this end read, in order.
                (Some(Head::Data { section, stream, len }), _)
                    if self.on_sdp && section == self.sequence && stream == self.taken =>
                {
                    Next::Take(len)
                }
                (Some(_), _) => Next::Void,
                // Between RAW and RETURN there is no payload.
                (None, _) if self.expects_return => Next::Carrier(0),
                (None, _) => Next::Carrier(u64::MAX),
            });
        }
        if self.on_sdp {
            return self.next_on_sdp(head);
        }
        match head {
            None => Ok(Next::Carrier(u64::MAX)),
            Some(Head::Data { section, .. }) if section < self.sequence => Ok(Next::Void),
            Some(Head::Switch(switch)) if switch.sequence < self.sequence => Ok(Next::Void),
            Some(Head::Switch(switch)) if switch.sequence == self.sequence.wrapping_add(1) => {
                self.follow_switch(switch)
            }
            // Markers that end sections before it are still on the carrier.
            Some(_) => Ok(Next::Carrier(u64::MAX)),
        }
    }

    /// [`Consumer::next`] where that is [`Next::Take`] of a head in the middle of a section; `None`:
    /// ask it.
    #[inline]
    pub fn next_in_section(&self, head: Head) -> Option<u32> {
        let Head::Data { section, stream, len } = head else { return None };
        let is_next = section == self.sequence && stream == self.taken;
        let is_plain = self.on_sdp && !self.raw && self.pending.is_none();
        (is_next && is_plain && !self.is_leaving()).then_some(len)
    }

    fn follow_switch(&mut self, switch: Switch) -> Result<Next, Broken> {
        let left = switch.carrier.checked_sub(self.carrier).ok_or(Broken::Position)?;
        if left != 0 {
            return Ok(Next::Carrier(left));
        }
        if switch.stream != self.taken || self.skip != 0 {
            return Err(Broken::Position);
        }
        self.on_sdp = true;
        self.sequence = switch.sequence;
        Ok(Next::Followed)
    }

    #[inline]
    fn next_on_sdp(&mut self, head: Option<Head>) -> Result<Next, Broken> {
        if let Some(marker) = self.pending
            && marker.stream <= self.taken
        {
            self.pending = None;
            self.follow(marker);
            return self.next(head);
        }
        match head {
            Some(Head::Data { section, stream, len }) => {
                if section != self.sequence {
                    return Err(Broken::Sequence);
                }
                if stream != self.taken {
                    return Err(Broken::Position);
                }
                Ok(Next::Take(len))
            }
            _ if self.pending.is_some() => Err(Broken::Missing),
            _ => Ok(Next::Carrier(0)),
        }
    }

    /// The leaving end takes the messages of the inbox without delivering them, in order, as far as
    /// it goes.
    fn gather(&mut self, head: Head) -> Result<Next, Broken> {
        match head {
            Head::Data { section, stream, len }
                if self.on_sdp && section == self.sequence && stream == self.taken =>
            {
                Ok(Next::Take(len))
            }
            Head::Switch(switch)
                if !self.on_sdp
                    && switch.sequence == self.sequence.wrapping_add(1)
                    && switch.stream == self.taken
                    && self.skip == 0 =>
            {
                self.on_sdp = true;
                self.sequence = switch.sequence;
                Ok(Next::Followed)
            }
            _ => Ok(Next::Void),
        }
    }

    fn follow(&mut self, marker: Marker) {
        self.on_sdp = false;
        self.sequence = marker.sequence;
        self.skip = self.taken.saturating_sub(marker.stream);
    }

    /// So many bytes of the inbox's head were taken.
    #[inline]
    pub fn took(&mut self, len: u32) {
        self.taken += u64::from(len);
    }

    /// So many payload bytes were read from the carrier.
    ///
    /// # Errors
    /// None may be there.
    pub fn read(&mut self, len: u64) -> Result<Read, Broken> {
        if (self.on_sdp && !self.raw) || (self.raw && self.expects_return) {
            return Err(Broken::Payload);
        }
        let skip = self.skip.min(len);
        let read = Read { skip, stream: self.taken };
        self.skip -= skip;
        self.carrier = self.carrier.checked_add(len).ok_or(Broken::Position)?;
        self.taken += len - skip;
        Ok(read)
    }

    /// A marker of this half was read. PROOF, DEAD, LEAVE and RETURN are about the other half or the
    /// meeting: they are counted here and handled by the caller; but LEAVE and RETURN say how long markers
    /// come.
    ///
    /// # Errors
    /// It cannot be there.
    pub fn marker(&mut self, marker: Marker) -> Result<(), Broken> {
        let carrier = self.carrier.checked_add(MARKER_LEN as u64).ok_or(Broken::Position)?;
        match marker.kind {
            Kind::Kernel => {
                if self.raw || self.pending.is_some() {
                    return Err(Broken::Marker);
                }
                if marker.sequence <= self.sequence {
                    return Err(Broken::Sequence);
                }
                if self.on_sdp {
                    // Two SDP sections have a marker between them.
                    if marker.sequence != self.sequence.wrapping_add(1) {
                        return Err(Broken::Sequence);
                    }
                    self.pending = Some(marker);
                } else {
                    if marker.sequence != self.sequence.wrapping_add(2) {
                        return Err(Broken::Sequence);
                    }
                    if marker.stream > self.taken || self.skip != 0 {
                        return Err(Broken::Missing);
                    }
                    self.follow(marker);
                }
            }
            Kind::Raw => {
                if self.raw || self.pending.is_some() {
                    return Err(Broken::Marker);
                }
                self.raw = true;
                if self.leaving == Leaving::Asked {
                    self.leaving = Leaving::Raw;
                }
            }
            Kind::Leave => {
                if self.raw || self.expects_return {
                    return Err(Broken::Marker);
                }
                self.expects_return = true;
            }
            Kind::Return => {
                if !self.raw || !self.expects_return {
                    return Err(Broken::Marker);
                }
                self.expects_return = false;
            }
            Kind::Proof | Kind::Dead => {
                if self.raw {
                    return Err(Broken::Marker);
                }
            }
        }
        self.carrier = carrier;
        Ok(())
    }

    /// Bytes behind a RETURN were read from the carrier.
    pub fn read_returned(&mut self, len: u32) {
        self.carrier += u64::from(len);
    }

    /// LEAVE was written: bytes taken from here on are kept, not delivered.
    pub fn leave(&mut self) {
        if self.leaving == Leaving::No && !self.raw {
            self.leaving = Leaving::Asked;
            self.consumed = self.taken;
        }
    }

    /// LEAVE was written, and has no answer yet: the caller delivers the bytes taken since, and
    /// those that come up to RAW as if neither end left. Then RETURN gives nothing back.
    pub fn read_on(&mut self) {
        if self.owes_return() {
            (self.reads_on, self.consumed) = (true, self.taken);
        }
    }

    /// [`Next::Return`] was answered: position and length of what goes back. The queue pair is in ERR
    /// before; nothing is acknowledged behind.
    pub fn make_return(&mut self) -> Option<(u64, u64)> {
        if self.leaving != Leaving::Raw {
            return None;
        }
        if self.reads_on {
            self.consumed = self.taken;
        }
        let back = (self.consumed, self.taken - self.consumed);
        (self.taken, self.skip, self.on_sdp) = (self.consumed, 0, false);
        (self.leaving, self.reads_on) = (Leaving::No, false);
        Some(back)
    }
}
