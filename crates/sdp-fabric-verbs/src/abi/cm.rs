//! The kernel's connection manager: commands written to `/dev/infiniband/rdma_cm`.
//!
//! A command is [`Header`] and a structure; an answer is written where the structure's `response`
//! says.

/// Precedes each command.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Header {
    /// `CMD_*`.
    pub cmd: u32,
    /// Bytes that follow.
    pub len_in: u16,
    /// Room for the answer.
    pub len_out: u16,
}

/// Makes an id.
pub const CMD_CREATE_ID: u32 = 0;
/// Ends an id.
pub const CMD_DESTROY_ID: u32 = 1;
/// Looks for the road.
pub const CMD_RESOLVE_ROUTE: u32 = 4;
/// Asks.
pub const CMD_CONNECT: u32 = 6;
/// Waits for requests.
pub const CMD_LISTEN: u32 = 7;
/// Accepts, or confirms a reply.
pub const CMD_ACCEPT: u32 = 8;
/// Refuses.
pub const CMD_REJECT: u32 = 9;
/// Says goodbye.
pub const CMD_DISCONNECT: u32 = 10;
/// The attributes for a queue pair's next state.
pub const CMD_INIT_QP_ATTR: u32 = 11;
/// Takes an event.
pub const CMD_GET_EVENT: u32 = 12;
/// Tells the connection manager what the device saw.
pub const CMD_NOTIFY: u32 = 15;
/// Asks for addresses and device.
pub const CMD_QUERY: u32 = 19;
/// Takes an address.
pub const CMD_BIND: u32 = 20;
/// Looks for the peer's address.
pub const CMD_RESOLVE_ADDR: u32 = 21;

/// The port space of TCP's numbers (but not TCP's ports).
pub const PS_TCP: u16 = 0x0106;
/// The port space of UDP's numbers.
pub const PS_UDP: u16 = 0x0111;
/// [`Query`]: addresses and device.
pub const QUERY_ADDR: u32 = 0;

/// A socket address in the kernel's widest form.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storage(pub [u8; 128]);

/// `rdma_ucm_create_id`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct CreateId {
    /// Comes back in events. Not 0: those events are dropped.
    pub uid: u64,
    /// Where the id goes.
    pub response: u64,
    /// Port space.
    pub ps: u16,
    /// Kind of queue pair.
    pub qp_type: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

/// `rdma_ucm_destroy_id`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct DestroyId {
    /// Where the number of events goes.
    pub response: u64,
    /// The id.
    pub id: u32,
    /// Zero.
    pub reserved: u32,
}

/// `rdma_ucm_bind`.
#[repr(C)]
#[derive(Debug)]
pub struct Bind {
    /// The id.
    pub id: u32,
    /// Length of the address.
    pub addr_size: u16,
    /// Zero.
    pub reserved: u16,
    /// The address.
    pub addr: Storage,
}

/// `rdma_ucm_resolve_addr`.
#[repr(C)]
#[derive(Debug)]
pub struct ResolveAddr {
    /// The id.
    pub id: u32,
    /// How long.
    pub timeout_ms: u32,
    /// Length of our address; 0: the kernel chooses.
    pub src_size: u16,
    /// Length of the peer's.
    pub dst_size: u16,
    /// Zero.
    pub reserved: u32,
    /// Ours.
    pub src: Storage,
    /// The peer's.
    pub dst: Storage,
}

/// `rdma_ucm_resolve_route`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ResolveRoute {
    /// The id.
    pub id: u32,
    /// How long.
    pub timeout_ms: u32,
}

/// `rdma_ucm_query`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Query {
    /// Where the answer goes.
    pub response: u64,
    /// The id.
    pub id: u32,
    /// `QUERY_*`.
    pub option: u32,
}

/// `rdma_ucm_query_addr_resp`, without the fields that newer kernels add.
#[repr(C)]
#[derive(Debug)]
pub struct QueryAddr {
    /// The device; 0: none.
    pub node_guid: u64,
    /// Its port.
    pub port_num: u8,
    /// Zero.
    pub reserved: u8,
    /// Partition.
    pub pkey: u16,
    /// Length of our address.
    pub src_size: u16,
    /// Length of the peer's.
    pub dst_size: u16,
    /// Ours.
    pub src: Storage,
    /// The peer's.
    pub dst: Storage,
}

/// Room for private data in commands and events.
pub const PRIVATE_DATA_ROOM: usize = 256;

/// `rdma_ucm_conn_param`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ConnParam {
    /// The queue pair.
    pub qp_num: u32,
    /// Not used by reliable connections.
    pub qkey: u32,
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_ROOM],
    /// Its length.
    pub private_data_len: u8,
    /// Whether receives are shared.
    pub srq: u8,
    /// The peer's READs in flight.
    pub responder_resources: u8,
    /// Our READs in flight.
    pub initiator_depth: u8,
    /// Flow control.
    pub flow_control: u8,
    /// Tries without an answer.
    pub retry_count: u8,
    /// Tries without a receive buffer.
    pub rnr_retry_count: u8,
    /// Whether this counts.
    pub valid: u8,
}

impl ConnParam {
    /// Nothing said.
    pub const NONE: Self = Self {
        qp_num: 0,
        qkey: 0,
        private_data: [0; PRIVATE_DATA_ROOM],
        private_data_len: 0,
        srq: 0,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        valid: 0,
    };
}

/// `rdma_ucm_connect`.
#[repr(C)]
#[derive(Debug)]
pub struct Connect {
    /// The parameters of the offer.
    pub param: ConnParam,
    /// The id.
    pub id: u32,
    /// Zero.
    pub reserved: u32,
    /// Vendors' extensions; none.
    pub ece: [u32; 2],
}

/// `rdma_ucm_listen`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Listen {
    /// The id.
    pub id: u32,
    /// Requests that wait.
    pub backlog: u32,
}

/// `rdma_ucm_accept`.
#[repr(C)]
#[derive(Debug)]
pub struct Accept {
    /// Comes back in events.
    pub uid: u64,
    /// The parameters of the answer.
    pub param: ConnParam,
    /// The id.
    pub id: u32,
    /// Zero.
    pub reserved: u32,
    /// Vendors' extensions; none.
    pub ece: [u32; 2],
}

/// `rdma_ucm_reject`.
#[repr(C)]
#[derive(Debug)]
pub struct Reject {
    /// The id.
    pub id: u32,
    /// Length of private data.
    pub private_data_len: u8,
    /// Zero: the consumer's.
    pub reason: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// Private data.
    pub private_data: [u8; PRIVATE_DATA_ROOM],
}

/// `rdma_ucm_disconnect`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Disconnect {
    /// The id.
    pub id: u32,
}

/// `rdma_ucm_notify`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Notify {
    /// The id.
    pub id: u32,
    /// [`NOTIFY_ESTABLISHED`].
    pub event: u32,
}

/// [`Notify`]: messages have come, so the peer has its reply.
pub const NOTIFY_ESTABLISHED: u32 = 4;

/// `rdma_ucm_init_qp_attr`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct InitQpAttr {
    /// Where the answer goes.
    pub response: u64,
    /// The id.
    pub id: u32,
    /// The state wanted.
    pub qp_state: u32,
}

/// `ib_uverbs_ah_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct AhAttr {
    /// The peer's global address.
    pub dgid: [u8; 16],
    /// Flow label.
    pub flow_label: u32,
    /// Our global address, by its index.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    reserved: u8,
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
    also_reserved: u8,
}

/// `ib_uverbs_qp_attr`: the answer to [`CMD_INIT_QP_ATTR`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct QpAttr {
    /// The attributes that are set.
    pub mask: u32,
    /// State.
    pub qp_state: u32,
    cur_qp_state: u32,
    /// Path MTU's code.
    pub path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    /// First sequence expected.
    pub rq_psn: u32,
    /// First sequence sent.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// Rights.
    pub qp_access_flags: u32,
    /// The path.
    pub ah_attr: AhAttr,
    alt_ah_attr: AhAttr,
    cap: [u32; 5],
    /// Partition.
    pub pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    /// READs in flight.
    pub max_rd_atomic: u8,
    /// The peer's READs in flight.
    pub max_dest_rd_atomic: u8,
    /// The receiver's wait.
    pub min_rnr_timer: u8,
    /// Port.
    pub port_num: u8,
    /// Acknowledgement time-out, exponent.
    pub timeout: u8,
    /// Tries without an answer.
    pub retry_cnt: u8,
    /// Tries without a receive buffer.
    pub rnr_retry: u8,
    rest: [u8; 7],
}

/// `rdma_ucm_get_event`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct GetEvent {
    /// Where the event goes.
    pub response: u64,
}

/// `rdma_ucm_event_resp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EventResp {
    /// The id's, of a request the listener's.
    pub uid: u64,
    /// The id; of a request the new one.
    pub id: u32,
    /// `EVENT_*`.
    pub event: u32,
    /// 0, a negative errno, or why it was refused.
    pub status: u32,
    /// The peer's parameters.
    pub param: ConnParam,
    rest: [u8; 32],
    reserved: u32,
    ece: [u32; 2],
}

impl EventResp {
    /// To be filled.
    pub const NONE: Self = Self {
        uid: 0,
        id: 0,
        event: u32::MAX,
        status: 0,
        param: ConnParam::NONE,
        rest: [0; 32],
        reserved: 0,
        ece: [0; 2],
    };
}

/// The peer's address is known.
pub const EVENT_ADDR_RESOLVED: u32 = 0;
/// It is not.
pub const EVENT_ADDR_ERROR: u32 = 1;
/// The road is known.
pub const EVENT_ROUTE_RESOLVED: u32 = 2;
/// It is not.
pub const EVENT_ROUTE_ERROR: u32 = 3;
/// A peer asks for a connection.
pub const EVENT_CONNECT_REQUEST: u32 = 4;
/// The peer accepted; to be confirmed.
pub const EVENT_CONNECT_RESPONSE: u32 = 5;
/// The attempt failed.
pub const EVENT_CONNECT_ERROR: u32 = 6;
/// The peer does not answer.
pub const EVENT_UNREACHABLE: u32 = 7;
/// Refused.
pub const EVENT_REJECTED: u32 = 8;
/// The peer confirmed.
pub const EVENT_ESTABLISHED: u32 = 9;
/// The peer said goodbye, or answered ours.
pub const EVENT_DISCONNECTED: u32 = 10;
/// The device goes.
pub const EVENT_DEVICE_REMOVAL: u32 = 11;

/// Refused: no process listens there.
pub const REJECT_INVALID_SERVICE: u32 = 8;
/// Refused by the consumer.
pub const REJECT_CONSUMER: u32 = 28;
