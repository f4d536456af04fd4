//! How requests end, in the device's words and in ours.

use sdp_rdma::{fabric::QpError, work::Status};

use crate::abi::verbs as abi;

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
