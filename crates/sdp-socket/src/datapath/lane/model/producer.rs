//! The producer's steps.

use super::*;

impl At<'_> {
    pub(super) fn produce(mut self) -> Option<Result<S, String>> {
        let needs_gate = match self.s.p {
            P::Kernel => self.m.twin != Twin::SendsPastTheGate,
            P::Enter | P::Ring { .. } | P::Leave => true,
            // This process has the dead one's lock and gate.
            P::TakenOver => self.lines.log.gate.load(Ordering::Relaxed) == CONSUMER,
            P::WakeBytes { first, armed } => {
                let late = self.rings_anybody(first);
                if !late && armed.is_none() {
                    self.s.p = P::Idle;
                    self.store_source();
                    return Some(self.done());
                }
                true
            }
            _ => false,
        };
        if needs_gate && !self.gate_is_free() {
            return None;
        }
        match self.s.p {
            P::Idle if self.s.sent == self.m.bytes && self.m.closes => {
                self.s.fin = true;
                self.s.p = P::Closed;
            }
            P::Idle | P::Closed => return None, // its choices are made in `steps`
            _ => {
                if let Err(what) = self.ring_step() {
                    return Some(Err(what));
                }
            }
        }
        if self.s.p == P::Idle {
            self.store_source();
        }
        Some(self.done())
    }

    /// A step of a send that may enter the ring, or writes to it.
    fn ring_step(&mut self) -> Result<(), String> {
        let twin = self.m.twin;
        let broken = |Broken| "the producer finds the log broken".to_owned();
        match self.s.p.clone() {
            P::Trusted => {
                let trusts = self.lines.consumer.trusts_itself.load(Ordering::SeqCst) != 0;
                self.s.p = if trusts { P::Followed } else { P::Kernel };
            }
            P::Followed => {
                let followed = self.lines.consumer.followed.load(Ordering::SeqCst);
                let may = followed == self.s.switches || twin == Twin::EarlyEntry;
                self.s.p = if may && !self.s.wants_kernel { P::Enter } else { P::Kernel };
            }
            P::Enter => {
                let mut source = self.source();
                source.carrier_sent = self.s.taken;
                let has_entered = if twin == Twin::EntersUnasked {
                    source.switch(self.half, Lane::Sdp);
                    true
                } else {
                    source.enter(self.half)
                };
                self.put_source(&source);
                self.s.p = if has_entered { P::Ring { first: true } } else { P::Kernel };
            }
            P::Ring { first } => {
                let mut source = self.source();
                let adopted =
                    twin != Twin::NeverAdopts && source.adopt(self.half).map_err(broken)?;
                if adopted {
                    self.s.p = P::Kernel;
                } else {
                    let next = self.s.sent + 1;
                    let options = SendOptions::default();
                    let Ok(message) = source.engine.next_data(Ack::implicit(0), 1) else {
                        return Err("the engine refuses".to_owned());
                    };
                    let header = message.header();
                    let posted = source.tx.post_send(WorkId(0), header, &mut Byte(next), options);
                    if posted.is_err() {
                        return Err(format!("post: {posted:?}"));
                    }
                    source.engine.commit(&message);
                    source.tx.publish();
                    self.s.sent = next;
                    self.s.p = if self.m.kills_producer {
                        P::Published { first }
                    } else {
                        P::Check { first }
                    };
                }
                self.put_source(&source);
            }
            P::Published { first } => {
                self.store_source();
                self.s.p = P::Check { first };
            }
            P::TakenOver => {
                self.take_over_producer()?;
            }
            _ => return self.wake_step(),
        }
        Ok(())
    }

    /// A step behind a message in the ring: which sleeper is woken.
    fn wake_step(&mut self) -> Result<(), String> {
        let twin = self.m.twin;
        match self.s.p.clone() {
            P::Check { first } => {
                let word = self.lines.receive_arm.word.load(Ordering::Relaxed);
                let armed = arm::check(&self.lines.receive_arm.word).map(|_| word);
                let armed = armed.filter(|_| twin != Twin::NeverRings);
                self.s.p = P::WakeBytes { first: first && twin != Twin::SilentEntry, armed };
            }
            P::WakeBytes { armed, .. } => {
                // Under the gate: the section may have been ended by the consumer.
                let written = self.lines.producer.switches.load(Ordering::Acquire);
                if written == self.s.switches || twin == Twin::RingsAnyway {
                    self.carrier_push(WAKE_BYTE);
                    self.gate(PRODUCER);
                    self.s.p = P::Counted { armed };
                } else {
                    self.s.p = P::Disarm { armed };
                }
            }
            P::Counted { armed } => {
                self.count();
                // Without a gate, no other hold is released.
                self.gate(0);
                self.s.p = P::Disarm { armed };
            }
            P::Disarm { armed } => {
                if let Some(word) = armed {
                    disarm(self.lines, word);
                }
                self.s.p = P::Idle;
            }
            _ => return self.leave_step(),
        }
        Ok(())
    }

    /// A step of a send that may leave the ring, or is the kernel's.
    fn leave_step(&mut self) -> Result<(), String> {
        let twin = self.m.twin;
        let broken = |Broken| "the producer finds the log broken".to_owned();
        match self.s.p.clone() {
            P::MayLeave => {
                let followed = self.lines.consumer.followed.load(Ordering::SeqCst);
                let may = followed == self.s.switches || twin == Twin::LeavesAtOnce;
                self.s.p = if may { P::Leave } else { P::Reading };
            }
            P::Reading => {
                let reading = self.lines.consumer.kernel_reading.load(Ordering::SeqCst);
                // The two looks are those of `may_leave`; it must agree with them here.
                if reading == 0 && !self.half.may_leave(self.s.switches) {
                    return Err("may_leave disagrees".to_owned());
                }
                self.s.p = if reading == 0 { P::Leave } else { P::Ring { first: false } };
            }
            P::Leave => {
                let mut source = self.source();
                match source.adopt(self.half).map_err(broken) {
                    Ok(true) => {}
                    Ok(false) => source.switch(self.half, Lane::Kernel),
                    Err(e) => return Err(e),
                }
                self.put_source(&source);
                self.s.p = P::Kernel;
            }
            P::Kernel => {
                let next = self.s.sent + 1;
                self.carrier_push(next);
                self.s.sent = next;
                self.s.p = P::Idle;
            }
            _ => unreachable!("a step of another table"),
        }
        Ok(())
    }

    /// As `send::with_source` with a lock that was taken over.
    fn take_over_producer(&mut self) -> Result<(), String> {
        let words = Words::new(&self.s.p_words);
        let (taken, stored) = (self.s.taken, self.s.p_words[2]);
        let sent = if self.m.twin == Twin::CountsByTheWords { stored } else { taken };
        if self.m.twin != Twin::TakesTheWords {
            crate::datapath::takeover::source(&words.0, self.m.segment, 0, || Some(sent))
                .map_err(|Broken| "a next owner cannot go on".to_owned())?;
        }
        if self.lines.log.gate.load(Ordering::Relaxed) == PRODUCER {
            self.gate(0);
        }
        let source = SourceState::load(&words.0, ShmLink::new(self.m.segment, 0), 0)
            .map_err(|Broken| "a next owner finds its words broken".to_owned())?;
        self.s.p_words = words.values();
        self.put_source(&source);
        let wakes = source.lane == Lane::Sdp && self.m.twin != Twin::WakesNobody;
        self.s.p = if wakes { P::Check { first: true } } else { P::Idle };
        Ok(())
    }

    /// The kernel takes no wake byte, because the carrier is full: possible only where bytes are
    /// unread.
    pub(super) fn refuses(mut self) -> Option<Result<S, String>> {
        let P::WakeBytes { first, armed } = self.s.p else { return None };
        let late = self.rings_anybody(first);
        let rings = (late || armed.is_some())
            && self.gate_is_free()
            && self.lines.producer.switches.load(Ordering::Acquire) == self.s.switches;
        if !rings || self.s.carrier.is_empty() {
            return None;
        }
        if self.m.twin == Twin::CountsRefused {
            self.count();
        }
        self.s.p = P::Disarm { armed };
        Some(self.done())
    }

    /// Whether a wake byte is due for sleepers that may not have armed, as in
    /// `send::wake_sleepers`.
    fn rings_anybody(&self, first: bool) -> bool {
        first
            && self.lines.consumer.followed.load(Ordering::SeqCst) != self.s.switches
            && !do_sleepers_arm(self.half, self.s.carrier_sent)
    }

    fn count(&mut self) {
        let mut source = self.source();
        source.carrier_sent += 1;
        source.publish_sent(self.half);
        self.put_source(&source);
    }
}

/// W5 with the value that was seen: `arm::Seen` cannot be made from a word, so the word is put back
/// in its place.
fn disarm(lines: &HalfLines, seen: Armed) {
    let word = &lines.receive_arm.word;
    let now = word.load(Ordering::Relaxed);
    if now == seen
        && let Some((_, seen)) = arm::check(word)
    {
        arm::disarm(word, seen);
    }
}

/// The name of the step from here on.
pub(super) fn producer_step(p: &P) -> &'static str {
    match p {
        P::Idle => "producer: closes",
        P::Trusted => "producer: does the consumer trust itself?",
        P::Followed => "producer: was every entry followed?",
        P::Enter => "producer: writes entry -> SDP",
        P::Ring { .. } => "producer: sends on the ring",
        P::Published { .. } => "producer: writes down what it published",
        P::TakenOver => "producer: a family member goes on",
        P::Check { .. } => "producer: looks at the arm word",
        P::WakeBytes { .. } => "producer: rings the carrier, or need not",
        P::Counted { .. } => "producer: counts the wake byte",
        P::Disarm { .. } => "producer: disarms",
        P::MayLeave => "producer: was the last entry followed?",
        P::Reading => "producer: is there an unbounded read?",
        P::Leave => "producer: writes entry -> kernel, or adopts",
        P::Kernel => "producer: sends on the carrier",
        P::Closed => "producer: gone",
    }
}
