//! libibverbs: structures that cross its border, and its numbers.
//!
//! The calls that the data path makes are not functions of the library but entries of
//! [`ContextOps`], the table that each device's provider fills.

use core::ffi::{c_char, c_int, c_void};

/// `struct ibv_device`, of which only some fields are read.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    ops: [usize; 2],
    /// Kind of node.
    pub node_type: c_int,
    /// [`TRANSPORT_IB`] (InfiniBand and RoCE) or another, such as iWARP.
    pub transport_type: c_int,
    /// Name in the kernel's words, `rxe0` for example.
    pub name: [c_char; 64],
    rest: [u8; 576],
}

/// InfiniBand and RoCE.
pub const TRANSPORT_IB: c_int = 0;
/// iWARP.
pub const TRANSPORT_IWARP: c_int = 1;

/// `ibv_context_ops`: the provider's calls. Entries that are not used are only counted.
#[repr(C)]
#[derive(Debug)]
pub struct ContextOps {
    before: [usize; 11],
    /// Takes completions; their number, negative on failure.
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    /// Arms the completion channel.
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    between: [usize; 7],
    /// Posts receives to a shared receive queue.
    pub post_srq_recv:
        Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    also_between: [usize; 4],
    /// Posts to a send queue.
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    /// Posts to a queue pair's own receive queue.
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    after: [usize; 5],
}

/// `struct ibv_context`: an open device.
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    /// The device.
    pub device: *mut Device,
    /// The provider's calls.
    pub ops: ContextOps,
    /// The device file.
    pub cmd_fd: c_int,
    /// Asynchronous events.
    pub async_fd: c_int,
    /// Completion vectors.
    pub num_comp_vectors: c_int,
    mutex: [u64; 5],
    abi_compat: *mut c_void,
}

/// `struct ibv_pd`.
#[repr(C)]
#[derive(Debug)]
pub struct Pd {
    context: *mut Context,
    handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug)]
pub struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    /// Key for local use.
    pub lkey: u32,
    /// Key for the peer.
    pub rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug)]
pub struct CompChannel {
    context: *mut Context,
    /// Readable when an armed completion queue has something.
    pub fd: c_int,
    refcnt: c_int,
}

/// `struct ibv_cq`, up to the fields that are read.
#[repr(C)]
#[derive(Debug)]
pub struct Cq {
    /// The open device.
    pub context: *mut Context,
    channel: *mut CompChannel,
    cq_context: *mut c_void,
    handle: u32,
    /// Entries.
    pub cqe: c_int,
}

/// `struct ibv_srq`, up to the field that is read.
#[repr(C)]
#[derive(Debug)]
pub struct Srq {
    /// The open device.
    pub context: *mut Context,
}

/// `struct ibv_qp`, up to the fields that are read.
#[repr(C)]
#[derive(Debug)]
pub struct Qp {
    /// The open device.
    pub context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut Srq,
    handle: u32,
    /// The number that the peer and completions name it by.
    pub qp_num: u32,
}

/// `struct ibv_sge`: a piece of registered memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Sge {
    /// Start address.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: u32,
}

/// `struct ibv_send_wr` as SEND, READ and WRITE use it.
#[repr(C)]
#[derive(Debug)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Next of a chain.
    pub next: *mut Self,
    /// Pieces.
    pub sg_list: *mut Sge,
    /// Number of pieces.
    pub num_sge: c_int,
    /// `WR_*`.
    pub opcode: c_int,
    /// `SEND_*`.
    pub send_flags: u32,
    /// Immediate data, in the network's byte order.
    pub imm_data: u32,
    /// READ and WRITE: the peer's address.
    pub remote_addr: u64,
    /// READ and WRITE: the peer's key.
    pub rkey: u32,
    rest: [u64; 9],
}

impl SendWr {
    /// A request without a chain.
    pub const fn new(wr_id: u64, opcode: c_int, send_flags: u32) -> Self {
        Self {
            wr_id,
            next: core::ptr::null_mut(),
            sg_list: core::ptr::null_mut(),
            num_sge: 0,
            opcode,
            send_flags,
            imm_data: 0,
            remote_addr: 0,
            rkey: 0,
            rest: [0; 9],
        }
    }
}

/// One-sided WRITE.
pub const WR_RDMA_WRITE: c_int = 0;
/// One-sided WRITE that completes a receive of the peer's.
pub const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
/// SEND.
pub const WR_SEND: c_int = 2;
/// One-sided READ.
pub const WR_RDMA_READ: c_int = 4;
/// Starts after the READs before it.
pub const SEND_FENCE: u32 = 1;
/// Asks for a completion.
pub const SEND_SIGNALED: u32 = 2;
/// Wakes a peer that armed for solicited messages only.
pub const SEND_SOLICITED: u32 = 4;
/// The bytes are copied by the post.
pub const SEND_INLINE: u32 = 8;

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Debug)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Next of a chain.
    pub next: *mut Self,
    /// Pieces.
    pub sg_list: *mut Sge,
    /// Number of pieces.
    pub num_sge: c_int,
}

/// `struct ibv_wc`: a completion.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Wc {
    /// The request's.
    pub wr_id: u64,
    /// `WC_*`.
    pub status: c_int,
    /// Valid only with [`WC_SUCCESS`].
    pub opcode: c_int,
    /// The device's own word.
    pub vendor_err: u32,
    /// Bytes received.
    pub byte_len: u32,
    /// Immediate data, in the network's byte order.
    pub imm_data: u32,
    /// The local queue pair.
    pub qp_num: u32,
    src_qp: u32,
    /// Flags.
    pub wc_flags: u32,
    rest: [u32; 2],
}

/// A message was received.
pub const WC_RECV: c_int = 128;
/// The peer's WRITE with immediate data has completed a receive.
pub const WC_RECV_RDMA_WITH_IMM: c_int = 129;
/// In the flags: there is immediate data.
pub const WC_WITH_IMM: u32 = 1 << 1;

/// Done.
pub const WC_SUCCESS: c_int = 0;
/// Local length.
pub const WC_LOC_LEN_ERR: c_int = 1;
/// Local queue pair.
pub const WC_LOC_QP_OP_ERR: c_int = 2;
/// Local key or range.
pub const WC_LOC_PROT_ERR: c_int = 4;
/// Never ran.
pub const WC_WR_FLUSH_ERR: c_int = 5;
/// Local access.
pub const WC_LOC_ACCESS_ERR: c_int = 8;
/// The peer calls the request invalid.
pub const WC_REM_INV_REQ_ERR: c_int = 9;
/// The peer refuses key, range or right.
pub const WC_REM_ACCESS_ERR: c_int = 10;
/// The peer could not do it.
pub const WC_REM_OP_ERR: c_int = 11;
/// No answer.
pub const WC_RETRY_EXC_ERR: c_int = 12;
/// No receive buffer, for too long.
pub const WC_RNR_RETRY_EXC_ERR: c_int = 13;

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct QpCap {
    /// Send queue entries.
    pub max_send_wr: u32,
    /// Receive queue entries.
    pub max_recv_wr: u32,
    /// Pieces of a send.
    pub max_send_sge: u32,
    /// Pieces of a receive.
    pub max_recv_sge: u32,
    /// Bytes that a send copies.
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub struct QpInitAttr {
    /// The caller's.
    pub qp_context: *mut c_void,
    /// Completions of sends.
    pub send_cq: *mut Cq,
    /// Completions of receives.
    pub recv_cq: *mut Cq,
    /// Shared receive queue.
    pub srq: *mut Srq,
    /// Sizes, asked for and granted.
    pub cap: QpCap,
    /// [`QPT_RC`].
    pub qp_type: c_int,
    /// Every send completes.
    pub sq_sig_all: c_int,
}

/// Reliable connected.
pub const QPT_RC: c_int = 2;
/// Unreliable datagrams.
pub const QPT_UD: c_int = 4;

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub struct SrqInitAttr {
    /// The caller's.
    pub srq_context: *mut c_void,
    /// Entries.
    pub max_wr: u32,
    /// Pieces of a receive.
    pub max_sge: u32,
    /// Event below this many.
    pub srq_limit: u32,
}

/// `struct ibv_ah_attr`: the path to the peer.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct AhAttr {
    /// The peer's global address.
    pub dgid: [u64; 2],
    /// Flow label.
    pub flow_label: u32,
    /// Our global address, by its index.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Local identifier.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Low bits of the source.
    pub src_path_bits: u8,
    /// Static rate.
    pub static_rate: u8,
    /// Whether the global part counts.
    pub is_global: u8,
    /// Port.
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct QpAttr {
    /// `QPS_*`.
    pub qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    /// Path MTU's code.
    pub path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    /// First sequence expected.
    pub rq_psn: u32,
    /// First sequence sent.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// `ACCESS_*`.
    pub qp_access_flags: u32,
    pub(crate) cap: QpCap,
    /// The path.
    pub ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    /// Partition.
    pub pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    /// READs in flight.
    pub max_rd_atomic: u8,
    /// The peer's READs in flight.
    pub max_dest_rd_atomic: u8,
    /// The time that a sender without a receive buffer waits.
    pub min_rnr_timer: u8,
    /// Port.
    pub port_num: u8,
    /// Acknowledgement time-out, exponent.
    pub timeout: u8,
    /// Tries without an answer.
    pub retry_cnt: u8,
    /// Tries without a receive buffer.
    pub rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// Reset.
pub const QPS_RESET: c_int = 0;
/// Initialised.
pub const QPS_INIT: c_int = 1;
/// Ready to receive.
pub const QPS_RTR: c_int = 2;
/// Ready to send.
pub const QPS_RTS: c_int = 3;
/// Error, for ever.
pub const QPS_ERR: c_int = 6;
/// Mask: state.
pub const QP_STATE: c_int = 1;
/// Mask: acknowledgement time-out.
pub const QP_TIMEOUT: c_int = 1 << 9;
/// Mask: tries without an answer.
pub const QP_RETRY_CNT: c_int = 1 << 10;
/// Mask: tries without a receive buffer.
pub const QP_RNR_RETRY: c_int = 1 << 11;
/// Mask: the receiver's wait.
pub const QP_MIN_RNR_TIMER: c_int = 1 << 15;

/// The device may write.
pub const ACCESS_LOCAL_WRITE: c_int = 1;
/// The peer may WRITE.
pub const ACCESS_REMOTE_WRITE: c_int = 2;
/// The peer may READ.
pub const ACCESS_REMOTE_READ: c_int = 4;

/// `ibv_is_fork_initialized`: forked children need nothing.
pub const FORK_UNNEEDED: c_int = 2;

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Debug)]
pub struct AsyncEvent {
    /// A queue pair, a queue, or a port's number.
    pub element: usize,
    /// `ASYNC_*`, or another.
    pub event_type: c_int,
}

/// A completion queue has failed.
pub const ASYNC_CQ_ERR: c_int = 0;
/// A queue pair has failed.
pub const ASYNC_QP_FATAL: c_int = 1;
/// A queue pair was asked something invalid.
pub const ASYNC_QP_REQ_ERR: c_int = 2;
/// A queue pair was asked something it may not.
pub const ASYNC_QP_ACCESS_ERR: c_int = 3;
/// The device has failed or goes.
pub const ASYNC_DEVICE_FATAL: c_int = 8;
/// A port is up; `element` is its number.
pub const ASYNC_PORT_ACTIVE: c_int = 9;
/// A port is down; `element` is its number.
pub const ASYNC_PORT_ERR: c_int = 10;
/// The shared receive queue has failed.
pub const ASYNC_SRQ_ERR: c_int = 14;
