//! Messages that the program or the socket layer asks for: the end of the stream, advertisements,
//! modes, resizing, suspension, lanes.

use super::*;
use crate::wire::{LaneRequest, LaneSwitch, SrcAvail};
use sdp_rdma::key::RemoteSlice;

impl Source {
    /// DisConn: the end of our stream. Everything before it must have been committed.
    ///
    /// # Errors
    ///
    /// [`Hold::Ended`] when it was sent before, [`Hold::AdvertOutstanding`] and [`Hold::RestFirst`]
    /// while the stream is not complete, and the credit reasons.
    pub fn disconnect(&self, ack: Ack) -> Result<Outgoing, Hold> {
        self.check_open()?;
        if self.marks & REST != 0 {
            return Err(Hold::RestFirst);
        }
        self.control(ack, Body::DisConn)
    }

    /// AbortConn: reset after DisConn. When it has to wait, disconnect without it.
    ///
    /// # Errors
    ///
    /// [`Hold::NotEnded`] before DisConn: then a reset is just a disconnection.
    pub fn abort(&self, ack: Ack) -> Result<Outgoing, Hold> {
        if self.gates & ENDED == 0 {
            return Err(Hold::NotEnded);
        }
        self.control(ack, Body::AbortConn)
    }

    /// SrcAvail for `buffer`, whose first `inline` bytes are the message's payload.
    ///
    /// # Errors
    ///
    /// [`Hold::ModeForbids`] in Buffered mode, [`Hold::AdvertOutstanding`], [`Hold::RestFirst`],
    /// [`Hold::AdvertShape`] when the payload breaks spec 7.2, and the credit reasons.
    pub fn advertise(&self, ack: Ack, buffer: RemoteSlice, inline: u32) -> Result<Outgoing, Hold> {
        self.check_open()?;
        if self.marks & REST != 0 {
            return Err(Hold::RestFirst);
        }
        let body = Body::SrcAvail(SrcAvail { buffer });
        let inline_fits = match self.mode {
            Mode::Buffered => return Err(Hold::ModeForbids),
            Mode::Combined => inline != 0,
            Mode::Pipelined => inline == 0,
        };
        let room = self.peer_receive_size.saturating_sub(body.header_len());
        let len = buffer.len;
        if !inline_fits || inline >= len || inline > room || len > crate::wire::ADVERT_MAX {
            return Err(Hold::AdvertShape);
        }
        self.check_credit(ack, Class::Payload)?;
        Ok(self.build(ack, body, inline, Flags::NONE))
    }

    /// SrcAvailCancel for the unanswered advertisement.
    ///
    /// # Errors
    ///
    /// [`Hold::NoAdvert`], [`Hold::Cancelling`], and the credit reasons.
    pub fn cancel(&self, ack: Ack) -> Result<Outgoing, Hold> {
        if self.gates & ADVERT == 0 {
            return Err(Hold::NoAdvert);
        }
        if self.marks & CANCELLING != 0 {
            return Err(Hold::Cancelling);
        }
        self.control(ack, Body::SrcAvailCancel)
    }

    /// ModeChange to `mode`, where the source is the master.
    ///
    /// # Errors
    ///
    /// [`Hold::ModeForbids`] for an illegal transition, or Pipelined with a peer that did not ask
    /// for it or takes one advertisement only; [`Hold::ModePending`] while the last change is not
    /// acknowledged; [`Hold::AdvertOutstanding`]; and the credit reasons.
    pub fn change_mode(&self, ack: Ack, mode: Mode) -> Result<Outgoing, Hold> {
        if !self.mode.may_change(Side::Source, mode) {
            return Err(Hold::ModeForbids);
        }
        if mode == Mode::Pipelined && (self.peer_max_adverts < 2 || self.marks & PIPE_WANTED == 0) {
            return Err(Hold::ModeForbids);
        }
        if self.marks & MODE_UNACKED != 0 {
            return Err(Hold::ModePending);
        }
        if mode != Mode::Pipelined && self.gates & ADVERT != 0 {
            return Err(Hold::AdvertOutstanding);
        }
        self.control(ack, Body::ModeChange(ModeChange { for_source: false, mode }))
    }

    /// ChRcvBuf: asks the peer for receive buffers of `size` bytes.
    ///
    /// # Errors
    ///
    /// [`Hold::ResizeRefused`] while another request is unanswered or for an illegal size, and the
    /// credit reasons.
    pub fn request_resize(&self, ack: Ack, size: u32) -> Result<Outgoing, Hold> {
        if self.marks & RESIZE_ASKED != 0
            || size < RECEIVE_SIZE_MIN
            || size == self.peer_receive_size
        {
            return Err(Hold::ResizeRefused);
        }
        self.control(ack, Body::ChRcvBuf { size })
    }

    /// SuspComm: asks the peer to reconnect to `port`. Nothing follows it.
    ///
    /// # Errors
    ///
    /// [`Hold::AdvertOutstanding`] and the reasons for which nothing may be sent.
    pub fn suspend(&self, ack: Ack, port: u16) -> Result<Outgoing, Hold> {
        if self.gates & ADVERT != 0 {
            return Err(Hold::AdvertOutstanding);
        }
        self.control(ack, Body::SuspComm { service: 0x0001_0000 | u64::from(port) })
    }

    /// LaneSwitch: only between ends that agreed on lane messages.
    ///
    /// # Errors
    ///
    /// [`Hold::AdvertOutstanding`] and the reasons for which nothing may be sent.
    pub fn switch_lane(&self, ack: Ack, switch: LaneSwitch) -> Result<Outgoing, Hold> {
        self.check_open()?;
        self.control(ack, Body::LaneSwitch(switch))
    }

    /// LaneRequest: only between ends that agreed on lane messages.
    ///
    /// # Errors
    ///
    /// The reasons for which nothing may be sent.
    pub fn request_lane(&self, ack: Ack, request: LaneRequest) -> Result<Outgoing, Hold> {
        self.control(ack, Body::LaneRequest(request))
    }
}
