//! From set-up messages to halves with zero copy (spec 3.4, 7.8).

use super::{queue::ZCOPY_ADVERTS, sink::ZcopySink, source::ZcopySource};
use crate::{
    connection::setup::{Local, Remote},
    wire::{Hello, HelloAck, hello::Names},
};

impl Local {
    /// [`Local::hello`] of an end with zero copy.
    pub const fn zcopy_hello(&self, names: Option<Names>) -> Hello {
        Hello { max_adverts: ZCOPY_ADVERTS, ..self.hello(names) }
    }

    /// [`Local::hello_ack`] of an end with zero copy.
    pub const fn zcopy_hello_ack(&self) -> HelloAck {
        HelloAck { max_adverts: ZCOPY_ADVERTS, ..self.hello_ack() }
    }

    /// The two halves of an end with zero copy. The peer knows Withdrawn if it knows lane messages and
    /// announces at least as many advertisements as such an end does (spec 7.8).
    pub const fn zcopy_halves(&self, remote: &Remote) -> (ZcopySource, ZcopySink) {
        let (source, sink) = self.halves(remote);
        let knows_lanes = self.lane_messages && remote.lane_messages;
        let may_withdraw = knows_lanes && remote.max_adverts >= ZCOPY_ADVERTS;
        let adverts = remote.max_adverts as u16;
        (ZcopySource::with(source, may_withdraw), ZcopySink::with(sink, adverts, may_withdraw))
    }
}
