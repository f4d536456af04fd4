//! One line of text per message, for logs, traces and tools.

use super::{
    Body, Flags, Header, Message,
    hello::{Address, Hello, HelloAck},
};
use core::fmt;

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::OOB_PRES, "oob-pres"),
            (Self::OOB_PEND, "oob-pend"),
            (Self::REQ_PIPE, "req-pipe"),
        ];
        let mut separator = "";
        for (flag, name) in names {
            if self.has(flag) {
                write!(f, "{separator}{name}")?;
                separator = "+";
            }
        }
        Ok(())
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mid, flags, bufs, len, mseq, mseq_ack } = self;
        write!(f, "{} mseq={mseq} ack={mseq_ack} bufs={bufs} len={len}", mid.name())?;
        if *flags != Flags::NONE {
            write!(f, " {flags}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.header)?;
        match &self.body {
            Body::RdmaWrCompl { bytes } | Body::RdmaRdCompl { bytes } => {
                write!(f, " bytes={bytes}")?;
            }
            Body::ModeChange(change) => {
                let half = if change.for_source { "source" } else { "sink" };
                write!(f, " your-{half}={}", change.mode.name())?;
            }
            Body::ChRcvBuf { size } | Body::ChRcvBufAck { size } => write!(f, " size={size}")?,
            Body::SuspComm { service } => write!(f, " service={service:#018x}")?,
            Body::SrcAvail(advert) => {
                let b = advert.buffer;
                write!(f, " buffer={:#x}+{} rkey={:#010x}", b.addr, b.len, b.rkey.0)?;
            }
            Body::SinkAvail(advert) => {
                let b = advert.buffer;
                let non_discards = advert.non_discards;
                write!(
                    f,
                    " buffer={:#x}+{} rkey={:#010x} nd={non_discards}",
                    b.addr, b.len, b.rkey.0
                )?;
            }
            Body::LaneSwitch(s) => write!(
                f,
                " lane={:?} sequence={} carrier={} stream={}",
                s.lane, s.sequence, s.carrier_position, s.stream_position
            )?,
            Body::LaneRequest(r) => write!(f, " lane={:?} sequence={}", r.lane, r.sequence)?,
            Body::Withdrawn { position } => write!(f, " position={position}")?,
            Body::Experimental { mid } => write!(f, " mid={mid:#04x}")?,
            _ => {}
        }
        match self.payload_len() {
            0 => Ok(()),
            payload => write!(f, " payload={payload}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::V4(octets) => core::net::Ipv4Addr::from(octets).fmt(f),
            Self::V6(octets) => core::net::Ipv6Addr::from(octets).fmt(f),
        }
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = (self.version >> 4, self.version & 0xf);
        write!(
            f,
            "Hello {major}.{minor} bufs={} size={} wants={} adverts={}",
            self.bufs, self.receive_size, self.desired_receive_size, self.max_adverts
        )?;
        if let Some(names) = self.names {
            write!(f, " from={} port={} to={}", names.source, names.port, names.destination)?;
        }
        Ok(())
    }
}

impl fmt::Display for HelloAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = (self.version >> 4, self.version & 0xf);
        write!(
            f,
            "HelloAck {major}.{minor} bufs={} size={} adverts={}",
            self.bufs, self.receive_size, self.max_adverts
        )
    }
}
