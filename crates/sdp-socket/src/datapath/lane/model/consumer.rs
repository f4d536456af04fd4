//! The consumer's steps.

use super::*;

impl At<'_> {
    pub(super) fn consume(mut self) -> Option<Result<S, String>> {
        let result = self.consume_step();
        match result {
            None => None,
            Some(Ok(())) => Some(self.done()),
            Some(Err(e)) => Some(Err(e)),
        }
    }

    fn pending(&self) -> Result<Option<Entry>, String> {
        let found = self.sink().pending(self.half);
        Ok(found.map_err(|Broken| "the consumer finds the log broken".to_owned())?.map(Entry::from))
    }

    fn follow(&mut self, to: Lane) {
        let mut sink = self.sink();
        sink.follow(self.half, to);
        self.put_sink(&sink);
    }

    /// As `receive::step` at the end of a section, whose last message may not be stored as read.
    fn leave_ring(&mut self) {
        if !self.m.kills_consumer || self.m.twin == Twin::FollowsFirst {
            self.follow(Lane::Kernel);
            return;
        }
        let words = Words::new(&self.s.c_words);
        let mut sink = self.sink();
        sink.leave_ring(&words.0, self.half);
        self.s.c_words = words.values();
        self.s.c_stored = self.s.delivered;
        self.put_sink(&sink);
    }

    /// The end of an attempt, as `receive` and `step` see it.
    fn ends(&mut self, with_nothing: bool) {
        let sleeps = if !self.s.has_lanes {
            C::Early
        } else if self.m.sleeps_unarmed && !self.s.c_sdp {
            C::Sleep
        } else {
            C::Arm
        };
        self.unlocks();
        let s = &mut self.s;
        s.c = if !with_nothing || s.total > 0 {
            (s.room, s.total, s.look_carrier) = (0, 0, false);
            C::Idle
        } else if s.look_carrier {
            sleeps
        } else {
            s.look_carrier = true;
            C::Top
        };
    }

    /// As at the end of `receive::with_sink`.
    fn unlocks(&mut self) {
        self.store_sink();
        self.lines.consumer.read.store(self.s.carrier_read, Ordering::Release);
    }

    fn took(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.deliver(bytes)?;
        self.s.total += bytes.len() as u8;
        self.s.room -= bytes.len() as u8;
        Ok(())
    }

    fn consume_step(&mut self) -> Option<Result<(), String>> {
        let twin = self.m.twin;
        match self.s.c.clone() {
            C::Idle if self.s.reader == Reader::Unaware => {
                let bytes = self.carrier_read(1);
                if bytes.is_empty() {
                    return None;
                }
                return Some(self.deliver(&bytes));
            }
            C::Idle => return None,
            C::Sleep | C::EarlySleep if self.s.carrier.is_empty() && !self.s.fin => return None,
            C::Ended => return None,
            // A dead holder's gate is taken over.
            C::Gate { .. } if twin != Twin::NoGate => {
                let is_free = self.gate_is_free() || self.s.p == P::Closed;
                return is_free.then(|| self.consume_now(twin));
            }
            _ => {}
        }
        Some(self.consume_now(twin))
    }

    fn consume_now(&mut self, twin: Twin) -> Result<(), String> {
        self.s.c = match self.s.c.clone() {
            C::Idle => C::Idle,
            C::Top if self.s.c_sdp => {
                if self.s.look_carrier {
                    C::Consume
                } else {
                    C::SdpLook
                }
            }
            C::Top => {
                if twin != Twin::LateAnnouncement {
                    self.half.announce_unbounded_read(true);
                }
                C::Look
            }
            C::Look => match self.pending()? {
                Some(entry) => C::Retract(After::Bounded(entry)),
                None if twin == Twin::LateAnnouncement => C::Announce,
                None => C::Read,
            },
            C::Announce => {
                self.half.announce_unbounded_read(true);
                C::Read
            }
            C::Bounded(entry) => {
                let before = entry.carrier.wrapping_sub(self.s.carrier_read);
                if before == 0 || before > i64::MAX as u64 {
                    self.follow(Lane::Sdp);
                    C::Top
                } else {
                    let room = u64::from(self.s.room);
                    let cap = if twin == Twin::Unbounded { room } else { room.min(before) };
                    let bytes = self.carrier_read(cap as usize);
                    self.s.carrier_read += bytes.len() as u64;
                    self.took(&bytes)?;
                    return self.after_kernel_read(match bytes.is_empty() {
                        true if self.s.fin => After::Ended,
                        true => After::Failed,
                        false => After::Got,
                    });
                }
            }
            C::Read => {
                let got = self.carrier_read(self.s.room.into());
                self.s.carrier_read += got.len() as u64;
                let over = got.is_empty() && self.s.fin;
                C::Second { got, over, retracted: false }
            }
            C::Second { got, over, retracted: false } if twin == Twin::EarlyRetraction => {
                self.half.announce_unbounded_read(false);
                C::Second { got, over, retracted: true }
            }
            _ => return self.consume_ring(twin),
        };
        Ok(())
    }

    /// A step behind a read on the carrier, or of a read on the ring.
    fn consume_ring(&mut self, twin: Twin) -> Result<(), String> {
        self.s.c = match self.s.c.clone() {
            C::Second { got, over, .. } => {
                let entry = self.pending()?.filter(|_| twin != Twin::LooksOnce);
                let after = match entry {
                    _ if over && twin == Twin::ZeroIsTheEnd => After::Ended,
                    None if over => After::Ended,
                    None if got.is_empty() => After::Failed,
                    None => {
                        self.took(&got)?;
                        After::Got
                    }
                    Some(_) if got.is_empty() => After::Switched,
                    Some(entry) => {
                        let behind = self.s.carrier_read.wrapping_sub(entry.carrier);
                        let behind = if behind > i64::MAX as u64 { 0 } else { behind };
                        let n = got.len() - (behind as usize).min(got.len());
                        if self.s.carrier_read >= entry.carrier {
                            self.follow(Lane::Sdp);
                        }
                        self.took(&got[..n])?;
                        if n == 0 { After::Switched } else { After::Got }
                    }
                };
                C::Retract(after)
            }
            C::Retract(after) => {
                self.half.announce_unbounded_read(false);
                return self.after_kernel_read(after);
            }
            C::More => match self.pending()? {
                Some(_) => C::Top,
                None => {
                    self.ends(false);
                    return Ok(());
                }
            },
            C::Consume => {
                let announced = self.lines.log.carrier_sent.load(Ordering::Acquire);
                C::Consume2(announced.wrapping_sub(self.s.carrier_read))
            }
            C::Consume2(wake_bytes) => {
                self.consume_wake_bytes(wake_bytes)?;
                C::SdpLook
            }
            C::SdpLook => C::SdpRing(self.pending()?),
            C::SdpRing(switch) => return self.ring_read(switch),
            C::Copied(switch) => return self.take_message(switch),
            C::TakenOver => return self.take_over_consumer(),
            _ => return self.consume_or_wait(twin),
        };
        Ok(())
    }

    /// A step behind an empty ring: a look at the carrier, or a sleep.
    fn consume_or_wait(&mut self, twin: Twin) -> Result<(), String> {
        self.s.c = match self.s.c.clone() {
            C::Carrier => {
                let announced = self.lines.log.carrier_sent.load(Ordering::Acquire);
                if self.consume_wake_bytes(announced.wrapping_sub(self.s.carrier_read))? > 0 {
                    C::Top
                } else {
                    let look = |at: &Self| crate::datapath::receive::has_news(&at.sink(), at.half);
                    C::Peek { news: (twin == Twin::EndAfterNews).then(|| look(self)) }
                }
            }
            C::Peek { news } => {
                let peeked = match self.s.carrier.is_empty() {
                    true if self.s.fin => Peeked::Over,
                    true => Peeked::Empty,
                    false => Peeked::Byte,
                };
                match news {
                    None => C::News(peeked),
                    Some(true) => C::Top,
                    Some(false) => C::Nothing(peeked),
                }
            }
            C::News(peeked) => {
                if crate::datapath::receive::has_news(&self.sink(), self.half) {
                    C::Top
                } else {
                    C::Nothing(peeked)
                }
            }
            C::Uncounted => {
                let news = crate::datapath::receive::has_news(&self.sink(), self.half);
                if !news && !has_counted_wake_bytes(self.s.carrier_read, self.half) {
                    self.s.carrier_read += self.take_wake_bytes(1)?;
                }
                C::Top
            }
            C::Nothing(Peeked::Over) => return self.end_of_file(),
            C::Nothing(peeked) => {
                let is_counted = has_counted_wake_bytes(self.s.carrier_read, self.half);
                if peeked == Peeked::Byte && is_counted {
                    C::Top
                } else if peeked == Peeked::Byte && self.s.fin && twin != Twin::WaitsForTheDead {
                    C::Uncounted
                } else {
                    self.ends(true);
                    return Ok(());
                }
            }
            C::Early => {
                self.s.early += u8::from(twin != Twin::WaitsUncounted);
                if twin == Twin::LooksFirst { C::EarlySleep } else { C::LookForLanes }
            }
            C::LookForLanes if self.s.has_lanes => {
                self.s.early = 0;
                C::Arm
            }
            C::LookForLanes => C::EarlySleep,
            C::EarlySleep => {
                self.s.early = 0;
                C::Top
            }
            C::Arm => {
                arm::arm(&self.lines.receive_arm.word, Mode::Carrier);
                if twin == Twin::SleepsBlindly { C::Sleep } else { C::LookAgain }
            }
            C::LookAgain => {
                let is_news = self.lines.producer.tail.load(Ordering::Acquire) != self.s.head
                    || self.lines.producer.switches.load(Ordering::Acquire) != self.s.followed;
                if is_news { C::Top } else { C::Sleep }
            }
            C::Sleep => C::Top, // the carrier is readable
            _ => return self.consume_and_leave(twin),
        };
        Ok(())
    }

    /// A step of a consumer that leaves the ring.
    fn consume_and_leave(&mut self, twin: Twin) -> Result<(), String> {
        self.s.c = match self.s.c.clone() {
            C::WantKernel => {
                self.s.wants_kernel = true;
                self.lines.consumer.trusts_itself.store(0, Ordering::SeqCst);
                C::Gate { push: self.m.hands_over }
            }
            C::Gate { push } => {
                let unlocked = twin == Twin::NoGate;
                if !unlocked {
                    self.gate(CONSUMER);
                }
                C::End { push, unlocked }
            }
            C::End { push, .. } => {
                let queued = self.s.carrier.len() as u64;
                let received =
                    if twin == Twin::TrustsTheCount { 0 } else { self.s.carrier_read + queued };
                let _ = self.half.end_section(received, words::step);
                C::Settle { push }
            }
            C::Settle { push } => {
                self.settle()?;
                self.s.reader = Reader::Left;
                if push { self.begin_to_hand_over()? } else { C::Release }
            }
            C::Push(limit) => self.hand_over_one(limit)?,
            C::Release => {
                if twin != Twin::NoGate {
                    self.gate(0);
                }
                self.unlocks();
                C::Idle
            }
            C::Ended => C::Ended,
            _ => unreachable!("a step of another table"),
        };
        Ok(())
    }

    /// E1: the end is reported, unless the call has bytes to report.
    fn end_of_file(&mut self) -> Result<(), String> {
        if self.s.total > 0 {
            self.ends(false);
        } else if self.s.delivered == self.s.sent {
            self.s.c = C::Ended;
        } else {
            return Err(format!("end of file after {} bytes", self.s.delivered));
        }
        Ok(())
    }

    fn after_kernel_read(&mut self, after: After) -> Result<(), String> {
        self.s.c = match after {
            After::Bounded(entry) => C::Bounded(entry),
            After::Switched => C::Top,
            After::Got if self.s.room > 0 => C::More,
            After::Got => {
                self.ends(false);
                return Ok(());
            }
            After::Ended => return self.end_of_file(),
            After::Failed => {
                self.ends(true);
                return Ok(());
            }
        };
        Ok(())
    }

    /// L5: no more than were announced.
    fn consume_wake_bytes(&mut self, wake_bytes: u64) -> Result<u64, String> {
        let wake_bytes =
            if self.m.twin == Twin::ConsumesEverything { u64::MAX >> 1 } else { wake_bytes };
        if wake_bytes > i64::MAX as u64 {
            return Ok(0);
        }
        let consumed = self.take_wake_bytes(wake_bytes)?;
        self.s.carrier_read += consumed;
        Ok(consumed)
    }

    fn ring_read(&mut self, switch: Option<Entry>) -> Result<(), String> {
        let mut sink = self.sink();
        sink.rx.set_limit(switch.map_or(u64::MAX, |s| s.ring));
        let record = sink.rx.poll_receive().map_err(|e| format!("ring: {e:?}"))?;
        if let Some(message) = record {
            let mut bytes = [0u8; HEADER + 1];
            sink.rx.copy_header(message, &mut bytes);
            // The message before this one.
            self.store_sink();
            self.took(&bytes[HEADER..])?;
            if !self.m.kills_consumer {
                self.take_message(switch)?;
            } else {
                if self.m.twin == Twin::FreesFirst {
                    // A view that publishes at once.
                    sink.rx.release(message);
                }
                self.s.c = C::Copied(switch);
            }
            return Ok(());
        }
        if let Some(entry) = switch {
            let wake_bytes = entry.carrier.wrapping_sub(self.s.carrier_read);
            if wake_bytes > i64::MAX as u64 {
                return Err("more wake bytes consumed than there were".to_owned());
            }
            let consumed = self.take_wake_bytes(wake_bytes)?;
            self.s.carrier_read += consumed;
            if consumed == wake_bytes {
                self.leave_ring();
                self.s.c = C::Top;
            } else {
                self.ends(true);
            }
        } else if self.s.total > 0 || !self.s.look_carrier {
            self.ends(true);
        } else {
            self.s.c = C::Carrier;
        }
        Ok(())
    }

    /// The message at the head is done with. Where a user may be killed and replaced that is
    /// written down, and its room given back, before the next one is read, or behind the last one.
    fn take_message(&mut self, switch: Option<Entry>) -> Result<(), String> {
        let mut sink = self.sink();
        if self.m.kills_consumer {
            sink.rx = sink.rx.onlooker();
        }
        let found = sink.rx.poll_receive().map_err(|e| format!("ring: {e:?}"))?;
        let message = found.ok_or_else(|| "the message is gone".to_owned())?;
        let mut bytes = [0u8; HEADER];
        sink.rx.copy_header(message, &mut bytes);
        let parsed = Message::parse(&bytes, message.len).map_err(|e| format!("header: {e:?}"))?;
        sink.engine.handle(&parsed).map_err(|e| format!("engine: {e:?}"))?;
        sink.rx.release(message);
        self.put_sink(&sink);
        if self.s.room == 0 {
            self.ends(false);
        } else {
            self.s.c = C::SdpRing(switch);
        }
        Ok(())
    }

    /// Dies with its half's lock. Bytes that it had taken off the carrier are gone.
    pub(super) fn consumer_dies(mut self) -> S {
        let lost = match &self.s.c {
            C::Second { got, .. } => got.iter().copied().max().unwrap_or(0),
            _ => 0,
        };
        self.s.delivered = self.s.delivered.max(lost);
        self.s.floor = Some(self.s.c_stored);
        self.s.c = C::TakenOver;
        self.s.kills -= 1;
        self.s
    }

    /// As `receive::with_sink` with a lock that was taken over.
    fn take_over_consumer(&mut self) -> Result<(), String> {
        let words = Words::new(&self.s.c_words);
        let read = match self.m.twin {
            Twin::ReadsByTheWords => self.s.c_words[2],
            _ => self.s.taken - self.s.carrier.len() as u64,
        };
        if self.m.twin != Twin::TakesTheWords {
            crate::datapath::takeover::sink(&words.0, self.m.segment, 0, || Some(read))
                .map_err(|Broken| "a next owner cannot go on".to_owned())?;
            crate::datapath::takeover::open_gate(self.lines, CONSUMER as usize - 1);
        } else if self.lines.log.gate.load(Ordering::Relaxed) == CONSUMER {
            self.gate(0);
        }
        let sink = SinkState::load(&words.0, ShmLink::new(self.m.segment, 1), 0)
            .map_err(|Broken| "a next owner finds its words broken".to_owned())?;
        self.s.c_words = words.values();
        self.put_sink(&sink);
        (self.s.followed, self.s.carrier_read) = (sink.followed, sink.carrier_read);
        (self.s.room, self.s.total, self.s.look_carrier) = (0, 0, false);
        self.s.c = C::Idle;
        Ok(())
    }

    /// As `receive::follow_pending`: follows every switch that can be followed without delivering
    /// anything.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..LOG_ENTRIES {
            let Some(entry) = self.pending()? else { break };
            if entry.to_sdp {
                if self.s.carrier_read != entry.carrier {
                    break;
                }
                self.follow(Lane::Sdp);
            } else {
                let wake_bytes = entry.carrier.wrapping_sub(self.s.carrier_read);
                if self.s.head != entry.ring || wake_bytes > i64::MAX as u64 {
                    break;
                }
                let consumed = self.take_wake_bytes(wake_bytes)?;
                self.s.carrier_read += consumed;
                if consumed != wake_bytes {
                    break;
                }
                self.follow(Lane::Kernel);
            }
        }
        Ok(())
    }

    /// As `handover::hand_over`, where the ring has all that is unread; otherwise nothing changes.
    fn begin_to_hand_over(&mut self) -> Result<C, String> {
        match self.pending()? {
            None if !self.s.c_sdp => {
                self.s.reader = Reader::Unaware;
                Ok(C::Release)
            }
            Some(entry) if !entry.to_sdp && self.s.taken == entry.carrier => {
                let wake_bytes = entry.carrier - self.s.carrier_read;
                self.s.carrier_read += self.take_wake_bytes(wake_bytes)?;
                Ok(C::Push(entry.ring))
            }
            _ => Ok(C::Release),
        }
    }

    /// One message is sent again through the producer's socket.
    fn hand_over_one(&mut self, limit: u64) -> Result<C, String> {
        let mut sink = self.sink();
        sink.rx.set_limit(limit);
        if let Some(message) = sink.rx.poll_receive().map_err(|e| format!("ring: {e:?}"))? {
            let mut bytes = [0u8; HEADER + 1];
            sink.rx.copy_header(message, &mut bytes);
            sink.rx.release(message);
            self.carrier_push(bytes[HEADER]);
            self.put_sink(&sink);
            return Ok(C::Push(limit));
        }
        self.put_sink(&sink);
        self.follow(Lane::Kernel);
        self.s.reader = Reader::Unaware;
        Ok(C::Release)
    }
}

/// The name of the step from here on.
pub(super) fn consumer_step(c: &C) -> &'static str {
    match c {
        C::Idle => "consumer: reads, unaware",
        C::Top => "consumer: begins",
        C::Look => "consumer: looks at the log",
        C::Announce => "consumer: announces late",
        C::Bounded(_) => "consumer: bounded read, or follows -> SDP",
        C::Read => "consumer: unbounded read",
        C::Second { .. } => "consumer: looks again",
        C::Retract(_) => "consumer: takes the announcement back",
        C::More => "consumer: is there more?",
        C::Consume => "consumer: how many wake bytes?",
        C::Consume2(_) => "consumer: consumes wake bytes",
        C::SdpLook => "consumer: looks at the log, on the SDP lane",
        C::SdpRing(_) => "consumer: reads the ring, or follows -> kernel",
        C::Carrier => "consumer: looks at the carrier",
        C::Peek { .. } => "consumer: peeks at the carrier",
        C::News(_) => "consumer: is there news?",
        C::Uncounted => "consumer: consumes a wake byte of the dead",
        C::Nothing(_) => "consumer: wake_bytes on their way, or the end?",
        C::Early => "consumer: counts itself as an early sleeper",
        C::LookForLanes => "consumer: has it got lanes?",
        C::EarlySleep => "consumer: woken from an early sleep",
        C::Arm => "consumer: arms",
        C::LookAgain => "consumer: looks once more",
        C::Sleep => "consumer: wakes",
        C::WantKernel => "consumer: wants the kernel lane",
        C::Gate { .. } => "consumer: takes the gate",
        C::End { .. } => "consumer: writes the producer's entry",
        C::Settle { .. } => "consumer: settles",
        C::Push(_) => "consumer: sends a message again",
        C::Release => "consumer: gives the gate back",
        C::Ended => "consumer: done",
        C::Copied(_) => "consumer: writes down what it read",
        C::TakenOver => "consumer: a family member goes on",
    }
}
