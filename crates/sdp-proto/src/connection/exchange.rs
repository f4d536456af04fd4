//! Between the two halves of an end: the one way in which every lane drives control.
//!
//! The holder of the sink takes each message by [`take`]: payload is left to it, answers become
//! pending, and what belongs to the source is judged. The holder of the source posts what is
//! pending by [`Source::next_control`] and [`Exchange::settle`]. Where the words lie, and how
//! threads and processes share them, is the lane's: [`Exchange`].

use super::{
    pending::PendingControl,
    sink::{Sink, SinkAction, SourceInput},
    source::{Outgoing, Source, SourceConfig},
    words::PeerCredit,
    zcopy::ZcopySink,
};
use crate::{
    Violation,
    wire::{LaneRequest, LaneSwitch, Message, Payload, hello::RECEIVE_SIZE_MIN},
};

/// The words that the halves of one end share. Each method is one atomic operation, or several of
/// which none depends on the others.
pub trait Exchange {
    /// Leaves the credit in the peer's latest header for the source. Lanes with implicit credits
    /// need not keep it.
    fn set_credit(&self, credit: PeerCredit);

    /// The word of what is pending, as [`PendingControl::to_word`]; 0 at first.
    fn pending_word(&self) -> u64;

    /// Replaces that word, if it is `from` still.
    ///
    /// # Errors
    ///
    /// The word that it is.
    fn replace_pending_word(&self, from: u64, to: u64) -> Result<(), u64>;
}

/// What an end does with the words. One copy of the code, whatever the lane: none of it is in a
/// hurry.
impl dyn Exchange + '_ {
    /// Control messages to send. The word is this end's own: one that is not legal says nothing.
    pub fn pending(&self) -> PendingControl {
        PendingControl::from_word(self.pending_word()).unwrap_or_default()
    }

    /// Makes of what is pending what `change` answers; what it refuses stays.
    fn change(
        &self,
        change: &dyn Fn(PendingControl) -> Result<PendingControl, Violation>,
    ) -> Result<(), Violation> {
        let mut word = self.pending_word();
        loop {
            let pending = PendingControl::from_word(word).unwrap_or_default();
            match self.replace_pending_word(word, change(pending)?.to_word()) {
                Ok(()) => return Ok(()),
                Err(found) => word = found,
            }
        }
    }

    /// More to send.
    ///
    /// # Errors
    ///
    /// The peer asks for more answers than it may.
    pub fn add_pending(&self, more: PendingControl) -> Result<(), Violation> {
        self.change(&|pending| pending.add(more))
    }

    /// Posts a control message with `post`, which answers whether the fabric has it. What the
    /// message settles is taken out of the word before, or the peer, which may answer at once,
    /// would seem to ask twice; it is pending again if the message was not posted.
    pub fn settle(&self, outgoing: &Outgoing, post: &mut dyn FnMut() -> bool) -> bool {
        let settles = outgoing.settles();
        if settles.is_nothing() {
            return post();
        }
        let _ = self.change(&|pending| Ok(pending.without(settles)));
        let is_posted = post();
        if !is_posted {
            let _ = self.add_pending(settles);
        }
        is_posted
    }
}

/// What a message leaves to the holder of the sink. All but payload is to be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenMessage {
    /// Nothing.
    Nothing,
    /// Payload for the program.
    Deliver(Payload),
    /// The peer will send no more payload.
    EndOfStream,
    /// The peer reset the connection.
    Reset,
    /// The peer sends nothing more here, and no answer is pending: payload goes on elsewhere.
    Suspend,
    /// The peer's payload changes lanes here.
    LaneSwitch(LaneSwitch),
    /// The peer asks our payload to change lanes.
    LaneRequest(LaneRequest),
}

/// Takes the next message: by the sink, with everything that it means for the other half.
///
/// # Errors
///
/// The rule that the peer broke; the connection is to be reset.
#[inline]
pub fn take(
    sink: &mut Sink,
    message: &Message,
    exchange: &dyn Exchange,
) -> Result<TakenMessage, Violation> {
    let action = sink.handle(message)?;
    exchange.set_credit(message.header.credit());
    match action {
        SinkAction::Deliver(payload) => Ok(TakenMessage::Deliver(payload)),
        action => take_control(action, exchange),
    }
}

/// [`take`] of an end with zero copy: an advertisement is left to its sink, and what belongs to the
/// source to the caller. Then it asks [`ZcopySink::next_answer`].
///
/// # Errors
///
/// As there.
#[cold]
#[inline(never)]
pub fn take_zcopy(
    sink: &mut ZcopySink,
    message: &Message,
    exchange: &dyn Exchange,
) -> Result<(TakenMessage, Option<SourceInput>), Violation> {
    let action = sink.handle(message)?;
    exchange.set_credit(message.header.credit());
    Ok(match action {
        SinkAction::DeliverForSource(payload, input) => {
            (TakenMessage::Deliver(payload), Some(input))
        }
        SinkAction::ForSource(input) => (TakenMessage::Nothing, Some(input)),
        SinkAction::Cancelled => {
            // The answer to the cancellation stands for a SendSm that is pending.
            if exchange.pending().without_send_sm().is_some() {
                exchange.change(&|pending| Ok(pending.without_send_sm().unwrap_or(pending)))?;
                sink.owe_send_sm();
            }
            (TakenMessage::Nothing, None)
        }
        action => (take_control(action, exchange)?, None),
    })
}

#[inline(never)]
fn take_control(action: SinkAction, exchange: &dyn Exchange) -> Result<TakenMessage, Violation> {
    Ok(match action {
        SinkAction::Deliver(payload) => TakenMessage::Deliver(payload),
        SinkAction::DeliverAndAnswer(payload, pending) => {
            exchange.add_pending(pending)?;
            TakenMessage::Deliver(payload)
        }
        SinkAction::DeliverForSource(payload, input) => {
            judge_unasked(&input)?;
            TakenMessage::Deliver(payload)
        }
        SinkAction::Answer(pending) => {
            exchange.add_pending(pending)?;
            TakenMessage::Nothing
        }
        SinkAction::ForSource(input) => {
            judge_unasked(&input)?;
            TakenMessage::Nothing
        }
        // The plain sink advertises nothing, and has no READ under way.
        SinkAction::Advertised(payload) => {
            payload.map_or(TakenMessage::Nothing, TakenMessage::Deliver)
        }
        SinkAction::Withdrawn => {
            exchange.change(&|pending| Ok(pending.without_answers()))?;
            TakenMessage::Nothing
        }
        SinkAction::Written { .. } | SinkAction::Recalled | SinkAction::Cancelled => {
            TakenMessage::Nothing
        }
        SinkAction::EndOfStream => TakenMessage::EndOfStream,
        SinkAction::Reset => TakenMessage::Reset,
        SinkAction::Suspend { .. } => TakenMessage::Suspend,
        SinkAction::LaneSwitch(switch) => TakenMessage::LaneSwitch(switch),
        SinkAction::LaneRequest(request) => TakenMessage::LaneRequest(request),
        SinkAction::Nothing | SinkAction::ModeChanged(_) => TakenMessage::Nothing,
    })
}

/// The source advertises nothing, changes no mode, and asks for no other buffers, so all its bytes
/// go by BCopy, and the peer's messages to it can be judged without it: a SendSm has nothing left to
/// ask for, an answer to a question breaks the protocol.
///
/// # Errors
///
/// The rule that the peer broke.
pub fn judge_unasked(input: &SourceInput) -> Result<(), Violation> {
    Source::new(&SourceConfig::implicit(RECEIVE_SIZE_MIN)).handle(input).map(|_| ())
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::{
        Ack, Credits, Mode, SinkConfig,
        wire::{Body, Flags, HEADER, Header, ModeChange, SrcAvail},
    };
    use sdp_rdma::key::{RemoteSlice, Rkey};

    #[derive(Default)]
    struct Words {
        credit: Cell<Option<PeerCredit>>,
        pending: Cell<u64>,
    }

    impl Exchange for Words {
        fn set_credit(&self, credit: PeerCredit) {
            self.credit.set(Some(credit));
        }
        fn pending_word(&self) -> u64 {
            self.pending.get()
        }
        fn replace_pending_word(&self, from: u64, to: u64) -> Result<(), u64> {
            let found = self.pending.get();
            if found != from {
                return Err(found);
            }
            self.pending.set(to);
            Ok(())
        }
    }

    fn message(mseq: u32, mseq_ack: u32, body: Body, payload: u32) -> Message {
        let len = body.header_len() + payload;
        let flags = Flags::NONE;
        Message { header: Header { mid: body.mid(), flags, bufs: 9, len, mseq, mseq_ack }, body }
    }

    fn advert(len: u32) -> Body {
        Body::SrcAvail(SrcAvail { buffer: RemoteSlice { addr: 1, rkey: Rkey(2), len } })
    }

    #[test]
    fn an_advertisement_is_delivered_and_answered_and_the_rest_comes_as_data() {
        let cells = Words::default();
        let words: &dyn Exchange = &cells;
        let config = SourceConfig::implicit(4096);
        let (mut source, mut sink) = (Source::new(&config), Sink::new(&SinkConfig::implicit(4096)));
        let taken = take(&mut sink, &message(1, 0, advert(100), 10), words).expect("legal");
        let TakenMessage::Deliver(payload) = taken else { panic!("{taken:?}") };
        assert_eq!((payload.offset, payload.len), (HEADER + 16, 10));
        assert_eq!(cells.credit.get().map(|credit| credit.bufs), Some(9));
        assert_eq!(words.pending(), PendingControl::SEND_SM);
        // A fabric that is full changes nothing.
        let ack = sink.ack(0);
        let answer = source.next_control(ack, words.pending()).expect("pending");
        assert_eq!(answer.message().body, Body::SendSm);
        assert!(!words.settle(&answer, &mut || {
            assert_eq!(words.pending(), PendingControl::NOTHING, "before it is posted");
            false
        }));
        assert_eq!(words.pending(), PendingControl::SEND_SM);
        assert!(words.settle(&answer, &mut || true));
        source.commit(&answer);
        assert_eq!(
            (words.pending(), answer.message().header.mseq_ack),
            (PendingControl::NOTHING, 1)
        );
        // The peer has seen it: the rest, and another one.
        let rest = take(&mut sink, &message(2, 1, Body::Data, 90), words).expect("legal");
        assert!(matches!(rest, TakenMessage::Deliver(Payload { len: 90, .. })));
        assert!(take(&mut sink, &message(3, 1, advert(2), 1), words).is_ok());
        assert_eq!((words.pending(), sink.position()), (PendingControl::SEND_SM, 101));
        // It has not: a second one, or payload.
        for (body, payload) in [(advert(2), 1), (Body::Data, 1)] {
            let mut sink = sink;
            assert!(take(&mut sink, &message(4, 1, body, payload), words).is_err());
        }
    }

    #[test]
    fn every_message_is_answered_ignored_or_a_broken_rule() {
        let change = |for_source, mode| Body::ModeChange(ModeChange { for_source, mode });
        let cases = [
            (Body::Data, Ok(TakenMessage::Nothing), PendingControl::NOTHING),
            (Body::DisConn, Ok(TakenMessage::EndOfStream), PendingControl::NOTHING),
            (Body::AbortConn, Ok(TakenMessage::Reset), PendingControl::NOTHING),
            (
                Body::SuspComm { service: 0x0001_1389 },
                Ok(TakenMessage::Suspend),
                PendingControl::NOTHING,
            ),
            (
                Body::ChRcvBuf { size: 65_536 },
                Ok(TakenMessage::Nothing),
                PendingControl::RESIZE_ACK,
            ),
            (change(false, Mode::Buffered), Ok(TakenMessage::Nothing), PendingControl::NOTHING),
            (change(false, Mode::Pipelined), Ok(TakenMessage::Nothing), PendingControl::NOTHING),
            (Body::SrcAvailCancel, Ok(TakenMessage::Nothing), PendingControl::NOTHING),
            // All bytes went by BCopy already.
            (Body::SendSm, Ok(TakenMessage::Nothing), PendingControl::NOTHING),
            (Body::SinkAvailCancel, Ok(TakenMessage::Nothing), PendingControl::NOTHING),
            (Body::Experimental { mid: 0x7f }, Ok(TakenMessage::Nothing), PendingControl::NOTHING),
            (
                change(true, Mode::Combined),
                Err(Violation::ModeIllegal { byte: 0x90 }),
                PendingControl::NOTHING,
            ),
            (
                Body::RdmaRdCompl { bytes: 1 },
                Err(Violation::ReadComplUnasked { bytes: 1 }),
                PendingControl::NOTHING,
            ),
            (
                Body::RdmaWrCompl { bytes: 1 },
                Err(Violation::WriteComplUnasked { bytes: 1 }),
                PendingControl::NOTHING,
            ),
            (Body::SinkCancelAck, Err(Violation::SinkCancelAckUnasked), PendingControl::NOTHING),
            (
                Body::ChRcvBufAck { size: 64 },
                Err(Violation::ResizeAckUnasked { size: 64 }),
                PendingControl::NOTHING,
            ),
            (Body::SuspCommAck, Err(Violation::SuspCommAckUnasked), PendingControl::NOTHING),
        ];
        for credits in [Credits::Implicit, Credits::Explicit] {
            for (body, taken, pending) in cases {
                let words: &dyn Exchange = &Words::default();
                let mut sink = Sink::new(&SinkConfig { credits, ..SinkConfig::implicit(4096) });
                assert_eq!(take(&mut sink, &message(1, 0, body, 0), words), taken, "{body:?}");
                assert_eq!(words.pending(), pending, "{body:?}");
            }
        }
        let mut sink = Sink::new(&SinkConfig::implicit(4096));
        let words: &dyn Exchange = &Words::default();
        let resize = Body::ChRcvBuf { size: 65_536 };
        assert!(take(&mut sink, &message(1, 0, resize, 0), words).is_ok());
        let twice = take(&mut sink, &message(2, 0, resize, 0), words);
        assert_eq!(twice, Err(Violation::ResizeTwice));
        assert_eq!(sink.ack(0).mseq_ack, Ack::implicit(2).mseq_ack);
    }
}
