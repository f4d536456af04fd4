//! How requests of a device and of the connection manager end, in their words and in ours.

use sdp_rdma::{cm::Reject, fabric::QpError, work::Status};

use crate::{
    abi::{cm as cm_abi, verbs as abi},
    cm::Event,
};

/// The first byte of a refusal's private data, if its second is the consumer's code.
pub(crate) const BY_CONSUMER: u8 = 1;

/// As an entry of the data path has it; 0 is success.
pub(crate) const fn status_code(status: i32) -> u8 {
    match status {
        abi::WC_REM_ACCESS_ERR | abi::WC_REM_INV_REQ_ERR | abi::WC_REM_OP_ERR => 1,
        abi::WC_LOC_PROT_ERR
        | abi::WC_LOC_LEN_ERR
        | abi::WC_LOC_QP_OP_ERR
        | abi::WC_LOC_ACCESS_ERR => 2,
        abi::WC_RETRY_EXC_ERR | abi::WC_RNR_RETRY_EXC_ERR => 3,
        _ => 4,
    }
}

pub(crate) const fn error_of(status: i32) -> QpError {
    match status {
        abi::WC_WR_FLUSH_ERR | abi::WC_RETRY_EXC_ERR => QpError::Disconnected,
        _ => QpError::Fatal,
    }
}

pub(crate) const fn status_of(code: u8) -> Status {
    match code {
        0 => Status::Success,
        1 => Status::RemoteAccess,
        2 => Status::LocalProtection,
        3 => Status::RetryExceeded,
        _ => Status::Flushed,
    }
}

/// The reason why a request was refused, from the event of the refusal.
pub(crate) fn refusal(event: &Event) -> Reject {
    match (event.status(), event.private_data()) {
        (cm_abi::REJECT_INVALID_SERVICE, _) => Reject::InvalidService,
        (cm_abi::REJECT_CONSUMER, [BY_CONSUMER, code, ..]) => Reject::Consumer(*code),
        (cm_abi::REJECT_CONSUMER, _) => Reject::Busy,
        _ => Reject::Stale,
    }
}
