//! The kernel's connection manager, spoken to directly.
//!
//! No library: a command is one `write`, an event one `write` that never waits. Everything is slow (it
//! may make the kernel resolve and allocate) but nothing here waits for the peer.

use core::{
    mem::MaybeUninit,
    sync::atomic::{AtomicI32, Ordering},
};

use sdp_sys::{Errno, OwnedFd, fd, sys};

use crate::{
    Address, Error,
    abi::{cm as abi, verbs},
    pool::Shared,
};

/// Most private data of a request in [`abi::PS_TCP`].
pub const REQUEST_DATA: usize = 56;
/// Most private data of a reply.
pub const REPLY_DATA: usize = 196;
/// Most private data of a refusal.
pub const REJECT_DATA: usize = 148;

/// The device file.
const PATH: &core::ffi::CStr = c"/dev/infiniband/rdma_cm";

/// An open connection manager.
#[derive(Debug)]
pub struct Manager {
    /// −1: it has none any more.
    fd: AtomicI32,
}

/// An open connection manager, shared by its ids.
pub type CmChannel = Shared<Manager>;

/// The parameters of a queue pair and its connection.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Acknowledgement time-out: 4.096 µs times two to this power.
    pub ack_timeout: u8,
    /// Tries without an answer; 7 is for ever on some devices.
    pub retries: u8,
    /// Code of the time that a sender waits whose message found no receive buffer; 12 is 0.64 ms.
    pub min_rnr_timer: u8,
    /// Tries without a receive buffer; 7 is for ever.
    pub rnr_retries: u8,
    /// READs in flight, each way, at most.
    pub reads: u8,
}

/// READs in flight on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reads {
    /// Ours.
    pub ours: u8,
    /// The peer's.
    pub theirs: u8,
}

impl Times {
    /// A try lasts 134 ms, and a dead path is reported after 0.9 s; a missing receive buffer costs
    /// 0.64 ms. Shorter tries end while an honest acknowledgement is on its way from a busy
    /// machine; then soft-RoCE sends all again, and seldom carries out a request twice.
    pub const USUAL: Self =
        Self { ack_timeout: 15, retries: 6, min_rnr_timer: 12, rnr_retries: 7, reads: 4 };
}

fn bytes_of<T>(value: &T) -> *const u8 {
    core::ptr::from_ref(value).cast()
}

impl Manager {
    /// Opens the device, not blocking, at `floor` or above.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: no such device, or no right to use it.
    pub fn open(floor: i32) -> Result<CmChannel, Error> {
        let fd = match Self::open_file(floor) {
            Ok(fd) => fd,
            Err(Errno(libc::ENOENT | libc::EACCES | libc::EPERM | libc::ENOTDIR)) => {
                return Err(Error::NoDevice);
            }
            Err(errno) => return Err(Error::of("open of the connection manager", errno)),
        };
        Shared::new(Self { fd: AtomicI32::new(fd.into_raw()) })
            .map_err(|errno| Error::of("mmap", errno))
    }

    /// Whether the host has one, without opening it. Without it no device leads to another host.
    pub fn is_there() -> bool {
        #[cfg(feature = "stand-in")]
        if crate::stand_in::installed().is_some() {
            return true;
        }
        sdp_sys::stat::of_path(PATH).is_ok()
    }

    fn open_file(floor: i32) -> Result<OwnedFd, Errno> {
        #[cfg(feature = "stand-in")]
        if let Some(stand_in) = crate::stand_in::installed() {
            return (stand_in.open)(floor);
        }
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: a path that ends with NUL.
        let fd = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, PATH.as_ptr(), flags, 0) }?;
        Ok(OwnedFd::new(fd as i32).move_up(floor))
    }

    /// Its descriptor: readable when there is an event.
    pub fn descriptor(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Its descriptor is `to` from here on, if it was `from`: whether it was.
    pub fn renumber(&self, from: i32, to: i32) -> bool {
        let changed = self.fd.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        #[cfg(feature = "stand-in")]
        if let (Ok(_), Some(stand_in)) = (changed, crate::stand_in::installed()) {
            (stand_in.renumber)(from, to);
        }
        changed.is_ok()
    }

    /// Writes a command. `T` has no padding that the kernel reads, and its `response`, if any, points to
    /// `room` bytes.
    fn command<T>(&self, step: &'static str, cmd: u32, body: &T, room: usize) -> Result<(), Error> {
        #[repr(C)]
        struct Whole<T> {
            header: abi::Header,
            body: MaybeUninit<T>,
        }
        let len = size_of::<T>();
        let header = abi::Header { cmd, len_in: len as u16, len_out: room as u16 };
        let mut whole: Whole<T> = Whole { header, body: MaybeUninit::zeroed() };
        // SAFETY: both are `len` bytes, apart from each other.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes_of(body), whole.body.as_mut_ptr().cast(), len)
        };
        let total = size_of::<abi::Header>() + len;
        #[cfg(feature = "stand-in")]
        if let Some(stand_in) = crate::stand_in::installed() {
            // SAFETY: `whole` begins with these bytes.
            let bytes = unsafe { core::slice::from_raw_parts(bytes_of(&whole), total) };
            return (stand_in.command)(self.descriptor(), bytes)
                .map_err(|errno| Error::of(step, errno));
        }
        // SAFETY: `whole` begins with these bytes (no padding between: bodies are aligned to 8 at most), and
        // answers go to where the caller has room.
        let written = unsafe { sys!(libc::SYS_write, self.descriptor(), bytes_of(&whole), total) };
        written.map(|_| ()).map_err(|errno| Error::of(step, errno))
    }

    /// The next event; `None`: there is none now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn event(&self) -> Result<Option<Event>, Error> {
        let mut answer = abi::EventResp::NONE;
        let body = abi::GetEvent { response: (&raw mut answer) as u64 };
        match self.command("GET_EVENT", abi::CMD_GET_EVENT, &body, size_of_val(&answer)) {
            Ok(()) => Ok(Some(Event(answer))),
            Err(Error::Os(_, Errno::EAGAIN)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        #[cfg(feature = "stand-in")]
        if let Some(stand_in) = crate::stand_in::installed() {
            (stand_in.close)(self.descriptor());
        }
        if self.descriptor() >= 0 {
            fd::close(self.descriptor());
        }
    }
}

/// An event of an id.
#[derive(Debug, Clone, Copy)]
pub struct Event(abi::EventResp);

impl Event {
    /// `EVENT_*`.
    pub const fn kind(&self) -> u32 {
        self.0.event
    }

    /// The owner of the id that the event concerns (for a request: that of the listener).
    pub const fn uid(&self) -> u64 {
        self.0.uid
    }

    /// 0, a negative error number, or the reason of a refusal.
    pub const fn status(&self) -> u32 {
        self.0.status
    }

    /// The peer's queue pair, of requests and responses.
    pub const fn peer_qp(&self) -> u32 {
        self.0.param.qp_num
    }

    /// The peer's words. Always as long as the field is: shorter ones come with zeros.
    pub fn private_data(&self) -> &[u8] {
        let len = usize::from(self.0.param.private_data_len);
        self.0.param.private_data.get(..len).unwrap_or(&[])
    }

    /// The id of a request, which from here on is the caller's.
    pub fn request(&self, manager: &CmChannel) -> Option<CmId> {
        (self.kind() == abi::EVENT_CONNECT_REQUEST)
            .then(|| CmId { manager: manager.clone(), id: self.0.id })
    }
}

/// An id: a listener, an attempt, a connection. Dropping it ends it, and tells the peer so.
#[derive(Debug)]
pub struct CmId {
    manager: CmChannel,
    id: u32,
}

impl CmId {
    /// Makes one; `uid`, not 0, comes back in its events.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(manager: &CmChannel, uid: u64) -> Result<Self, Error> {
        Self::in_space(manager, uid, abi::PS_TCP, verbs::QPT_RC)
    }

    /// Makes one that is for hearing of its device alone: its port takes none from those of connections.
    ///
    /// # Errors
    /// The kernel's.
    pub fn watching(manager: &CmChannel, uid: u64) -> Result<Self, Error> {
        Self::in_space(manager, uid, abi::PS_UDP, verbs::QPT_UD)
    }

    fn in_space(manager: &CmChannel, uid: u64, ps: u16, qp_type: i32) -> Result<Self, Error> {
        let mut id = 0u32;
        let response = (&raw mut id) as u64;
        let body = abi::CreateId { uid, response, ps, qp_type: qp_type as u8, reserved: [0; 5] };
        manager.command("CREATE_ID", abi::CMD_CREATE_ID, &body, size_of_val(&id))?;
        Ok(Self { manager: manager.clone(), id })
    }

    /// Takes an address.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, EACCES; [`Error::NoDevice`].
    pub fn bind(&self, address: &Address) -> Result<(), Error> {
        let body = abi::Bind {
            id: self.id,
            addr_size: address.len(),
            reserved: 0,
            addr: address.storage(),
        };
        self.manager.command("BIND", abi::CMD_BIND, &body, 0)
    }

    /// The device that has the address, its node GUID as libibverbs reports it, and the number of its port.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: none has it.
    pub fn device(&self) -> Result<(u64, u8), Error> {
        let abi::QueryAddr { node_guid, port_num, .. } = self.query()?;
        if node_guid == 0 { Err(Error::NoDevice) } else { Ok((node_guid, port_num)) }
    }

    /// The address at the other end; `None`: it has none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn peer(&self) -> Result<Option<Address>, Error> {
        let answer = self.query()?;
        Ok(Address::from_bytes(&answer.dst.0))
    }

    fn query(&self) -> Result<abi::QueryAddr, Error> {
        let none = abi::Storage([0; 128]);
        let mut answer = abi::QueryAddr {
            node_guid: 0,
            port_num: 0,
            reserved: 0,
            pkey: 0,
            src_size: 0,
            dst_size: 0,
            src: none,
            dst: none,
        };
        let response = (&raw mut answer) as u64;
        let body = abi::Query { response, id: self.id, option: abi::QUERY_ADDR };
        self.manager.command("QUERY", abi::CMD_QUERY, &body, size_of_val(&answer))?;
        Ok(answer)
    }

    /// Waits for requests.
    ///
    /// # Errors
    /// EADDRINUSE and others.
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        let body = abi::Listen { id: self.id, backlog };
        self.manager.command("LISTEN", abi::CMD_LISTEN, &body, 0)
    }

    /// Looks for the peer's address; an event reports the result.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: no device leads there.
    pub fn resolve_address(
        &self,
        from: &Address,
        to: &Address,
        timeout_ms: u32,
    ) -> Result<(), Error> {
        let body = abi::ResolveAddr {
            id: self.id,
            timeout_ms,
            src_size: from.len(),
            dst_size: to.len(),
            reserved: 0,
            src: from.storage(),
            dst: to.storage(),
        };
        self.manager.command("RESOLVE_ADDR", abi::CMD_RESOLVE_ADDR, &body, 0)
    }

    /// Looks for the road; an event reports the result.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resolve_route(&self, timeout_ms: u32) -> Result<(), Error> {
        let body = abi::ResolveRoute { id: self.id, timeout_ms };
        self.manager.command("RESOLVE_ROUTE", abi::CMD_RESOLVE_ROUTE, &body, 0)
    }

    fn param(
        qp: u32,
        data: &[u8],
        times: &Times,
        step: &'static str,
    ) -> Result<abi::ConnParam, Error> {
        let mut param = abi::ConnParam {
            qp_num: qp,
            srq: 1,
            private_data_len: data.len() as u8,
            responder_resources: times.reads,
            initiator_depth: times.reads,
            retry_count: times.retries,
            rnr_retry_count: times.rnr_retries,
            valid: 1,
            ..abi::ConnParam::NONE
        };
        match param.private_data.get_mut(..data.len()) {
            Some(room) if data.len() <= REPLY_DATA => copy(room, data),
            _ => return Err(Error::Os(step, Errno::EINVAL)),
        }
        Ok(param)
    }

    /// Asks, with at most [`REQUEST_DATA`] bytes.
    ///
    /// # Errors
    /// EINVAL: too much data, or not the time for it.
    pub fn connect(&self, qp: u32, data: &[u8], times: &Times) -> Result<(), Error> {
        let param = Self::param(qp, data, times, "CONNECT")?;
        let body = abi::Connect { param, id: self.id, reserved: 0, ece: [0; 2] };
        self.manager.command("CONNECT", abi::CMD_CONNECT, &body, 0)
    }

    /// Accepts a request, with at most [`REPLY_DATA`] bytes; from here on its events carry `uid`. The
    /// READs are those of the queue pair's attributes.
    ///
    /// # Errors
    /// EINVAL and others: the request is no longer there.
    pub fn accept(
        &self,
        uid: u64,
        qp: u32,
        data: &[u8],
        times: &Times,
        reads: Reads,
    ) -> Result<(), Error> {
        let mut param = Self::param(qp, data, times, "ACCEPT")?;
        (param.responder_resources, param.initiator_depth) = (reads.theirs, reads.ours);
        let body = abi::Accept { uid, param, id: self.id, reserved: 0, ece: [0; 2] };
        self.manager.command("ACCEPT", abi::CMD_ACCEPT, &body, 0)
    }

    /// Confirms the peer's acceptance.
    ///
    /// # Errors
    /// The kernel's.
    pub fn confirm(&self, uid: u64) -> Result<(), Error> {
        let body =
            abi::Accept { uid, param: abi::ConnParam::NONE, id: self.id, reserved: 0, ece: [0; 2] };
        self.manager.command("ACCEPT", abi::CMD_ACCEPT, &body, 0)
    }

    /// Refuses a request, with at most [`REJECT_DATA`] bytes.
    ///
    /// # Errors
    /// The request is no longer there.
    pub fn reject(&self, data: &[u8]) -> Result<(), Error> {
        let mut body = abi::Reject {
            id: self.id,
            private_data_len: data.len() as u8,
            reason: 0,
            reserved: [0; 2],
            private_data: [0; abi::PRIVATE_DATA_ROOM],
        };
        match body.private_data.get_mut(..data.len()) {
            Some(room) if data.len() <= REJECT_DATA => copy(room, data),
            _ => return Err(Error::Os("REJECT", Errno::EINVAL)),
        }
        self.manager.command("REJECT", abi::CMD_REJECT, &body, 0)
    }

    /// The peer has our acceptance, whether or not its confirmation has come: messages may overtake that, and until it
    /// has come the kernel would not say goodbye.
    ///
    /// # Errors
    /// EISCONN: it has come. EINVAL: not the time for it.
    pub fn establish(&self) -> Result<(), Error> {
        let body = abi::Notify { id: self.id, event: abi::NOTIFY_ESTABLISHED };
        self.manager.command("NOTIFY", abi::CMD_NOTIFY, &body, 0)
    }

    /// Says goodbye, or answers one.
    ///
    /// # Errors
    /// EINVAL and others: the connection has ended already.
    pub fn disconnect(&self) -> Result<(), Error> {
        let body = abi::Disconnect { id: self.id };
        self.manager.command("DISCONNECT", abi::CMD_DISCONNECT, &body, 0)
    }

    /// The attributes for the queue pair's next state, with our own times in them, and the mask.
    ///
    /// # Errors
    /// EINVAL: not the time for it.
    pub fn attributes(&self, state: i32, times: &Times) -> Result<(verbs::QpAttr, i32), Error> {
        let mut answer = abi::QpAttr::default();
        let body = abi::InitQpAttr {
            response: (&raw mut answer) as u64,
            id: self.id,
            qp_state: state as u32,
        };
        self.manager.command("INIT_QP_ATTR", abi::CMD_INIT_QP_ATTR, &body, size_of_val(&answer))?;
        let way = &answer.ah_attr;
        let (first, second) = way.dgid.split_at_checked(8).unwrap_or_default();
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        let attributes = verbs::QpAttr {
            qp_state: state,
            path_mtu: answer.path_mtu as i32,
            rq_psn: answer.rq_psn,
            sq_psn: answer.sq_psn,
            dest_qp_num: answer.dest_qp_num,
            qp_access_flags: answer.qp_access_flags,
            ah_attr: verbs::AhAttr {
                dgid: [word(first), word(second)],
                flow_label: way.flow_label,
                sgid_index: way.sgid_index,
                hop_limit: way.hop_limit,
                traffic_class: way.traffic_class,
                dlid: way.dlid,
                sl: way.sl,
                src_path_bits: way.src_path_bits,
                static_rate: way.static_rate,
                is_global: way.is_global,
                port_num: way.port_num,
            },
            pkey_index: answer.pkey_index,
            max_rd_atomic: answer.max_rd_atomic,
            max_dest_rd_atomic: answer.max_dest_rd_atomic,
            min_rnr_timer: times.min_rnr_timer,
            port_num: answer.port_num,
            timeout: times.ack_timeout,
            retry_cnt: times.retries,
            rnr_retry: times.rnr_retries,
            ..verbs::QpAttr::default()
        };
        Ok((attributes, answer.mask as i32))
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        let mut reported = 0u32;
        let body =
            abi::DestroyId { response: (&raw mut reported) as u64, id: self.id, reserved: 0 };
        let _ = self.manager.command("DESTROY_ID", abi::CMD_DESTROY_ID, &body, 4);
    }
}

/// `copy_from_slice` of slices of one length, without its panic.
fn copy(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}
