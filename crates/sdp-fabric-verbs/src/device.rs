//! Owned verbs objects, each of which keeps alive the objects that it depends on.
//!
//! Making and ending them is slow (see the head of the crate). Their descriptors are moved high, out of
//! the program's sight, as soon as they are there.

use core::{
    cell::Cell,
    ffi::c_int,
    ptr::NonNull,
    sync::atomic::{AtomicI32, Ordering},
};

use sdp_sys::{Errno, fd};

use crate::{
    Error,
    abi::verbs as abi,
    library::{Library, library},
    pool::Shared,
};

/// The C library's error number for the call that failed just now.
fn errno() -> Errno {
    // SAFETY: the address of this thread's errno.
    Errno(unsafe { *libc::__errno_location() })
}

fn made<T>(at: *mut T, step: &'static str) -> Result<NonNull<T>, Error> {
    NonNull::new(at).ok_or_else(|| Error::of(step, errno()))
}

fn done(answer: c_int, step: &'static str) -> Result<(), Error> {
    match answer {
        0 => Ok(()),
        // Some calls answer with the number, older ones with -1 and errno.
        -1 => Err(Error::of(step, errno())),
        number => Err(Error::of(step, Errno(number.abs()))),
    }
}

fn set_nonblocking(number: i32) {
    if let Ok(flags) = sdp_sys::fd::status_flags(number) {
        let _ = sdp_sys::fd::set_status_flags(number, flags | libc::O_NONBLOCK);
    }
}

/// A descriptor that the library keeps at `at` is `to` from here on, if it was `from`: whether it was.
///
/// # Safety
/// A field of a live structure of the library's, whose functions read it alone.
unsafe fn renumber(at: *mut c_int, from: i32, to: i32) -> bool {
    // SAFETY: the caller's; a number of a C structure has the size and place of an atomic one.
    let number = unsafe { AtomicI32::from_ptr(at) };
    number.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// A descriptor that the library keeps at `at`, which another thread may change.
///
/// # Safety
/// As for [`renumber`].
unsafe fn number(at: *mut c_int) -> i32 {
    // SAFETY: the caller's.
    unsafe { AtomicI32::from_ptr(at) }.load(Ordering::SeqCst)
}

/// An open device.
#[derive(Debug)]
pub struct Opened {
    library: &'static Library,
    at: NonNull<abi::Context>,
}

/// The meaning of an asynchronous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing to do.
    None,
    /// The port of this number, from 1, is up, or down and may come back.
    Port(u8, bool),
    /// This queue pair has failed.
    QueuePair(u32),
    /// The device goes, or an object that all connections share has failed.
    Device,
}

/// An open device, shared by the objects that depend on it.
pub type Context = Shared<Opened>;

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for Opened {}
// SAFETY: libibverbs' objects may be used from several threads at once.
unsafe impl Sync for Opened {}

/// Opens the device whose node GUID the connection manager named; its descriptors go to `floor` or above.
///
/// # Errors
/// [`Error::NoDevice`], [`Error::Iwarp`], [`Error::OldKernel`], or the library's.
pub fn open(node_guid: u64, floor: i32) -> Result<Context, Error> {
    let library = library()?;
    // SAFETY: an open library; no preconditions.
    if unsafe { (library.ibv_is_fork_initialized)() } != abi::FORK_UNNEEDED {
        return Err(Error::OldKernel);
    }
    let mut count = 0;
    // SAFETY: count is valid for writing.
    let list = made(unsafe { (library.ibv_get_device_list)(&raw mut count) }, "devices")?;
    let opened = open_in(library, list, usize::try_from(count).unwrap_or(0), node_guid);
    // SAFETY: a list of the library's; open devices do not need it.
    unsafe { (library.ibv_free_device_list)(list.as_ptr()) };
    let opened = opened?;
    // SAFETY: an open device's structure, not used elsewhere yet. The library uses these fields.
    unsafe {
        let context = opened.at.as_ptr();
        (*context).cmd_fd = fd::move_up((*context).cmd_fd, floor);
        (*context).async_fd = fd::move_up((*context).async_fd, floor);
        set_nonblocking((*context).async_fd);
    }
    Shared::new(opened).map_err(|errno| Error::of("mmap", errno))
}

fn open_in(
    library: &'static Library,
    list: NonNull<*mut abi::Device>,
    count: usize,
    node_guid: u64,
) -> Result<Opened, Error> {
    for index in 0..count {
        // SAFETY: the list has `count` devices.
        let device = unsafe { list.add(index).read() };
        // SAFETY: a device of the list.
        if unsafe { (library.ibv_get_device_guid)(device) } != node_guid {
            continue;
        }
        // SAFETY: a device of the list, which is freed behind this.
        match unsafe { (*device).transport_type } {
            abi::TRANSPORT_IB => {}
            abi::TRANSPORT_IWARP => return Err(Error::Iwarp),
            _ => return Err(Error::NoDevice),
        }
        // SAFETY: a device of the list, which is freed behind this.
        let at = made(unsafe { (library.ibv_open_device)(device) }, "ibv_open_device");
        return Ok(Opened { library, at: at? });
    }
    Err(Error::NoDevice)
}

impl Opened {
    /// The device file and that of asynchronous events.
    pub fn descriptors(&self) -> [i32; 2] {
        // SAFETY: fields of an open device.
        self.fields().map(|at| unsafe { number(at) })
    }

    /// One of them is `to` from here on, if it was `from`: whether it was.
    pub fn renumber(&self, from: i32, to: i32) -> bool {
        // SAFETY: fields of an open device.
        self.fields().into_iter().any(|at| unsafe { renumber(at, from, to) })
    }

    const fn fields(&self) -> [*mut c_int; 2] {
        let context = self.at.as_ptr();
        // SAFETY: an open device's structure; only addresses are computed.
        unsafe { [&raw mut (*context).cmd_fd, &raw mut (*context).async_fd] }
    }

    /// The device's name, `rxe0` for example, as bytes.
    pub fn name(&self) -> &[u8] {
        // SAFETY: an open device; its name is a string that ends with NUL and lives as long as the library.
        unsafe {
            let name = (self.library.ibv_get_device_name)((*self.at.as_ptr()).device);
            if name.is_null() { &[] } else { core::ffi::CStr::from_ptr(name).to_bytes() }
        }
    }

    /// The next asynchronous event; does not wait.
    pub fn event(&self) -> Option<Trouble> {
        let mut event = abi::AsyncEvent { element: 0, event_type: -1 };
        // SAFETY: an open device whose events' descriptor does not block, and room for an event.
        let taken = unsafe { (self.library.ibv_get_async_event)(self.at.as_ptr(), &raw mut event) };
        if taken != 0 {
            return None;
        }
        let trouble = match event.event_type {
            abi::ASYNC_QP_FATAL | abi::ASYNC_QP_REQ_ERR | abi::ASYNC_QP_ACCESS_ERR => {
                // SAFETY: a queue pair of ours: it is not destroyed before its events are acknowledged.
                Trouble::QueuePair(unsafe { (*(event.element as *const abi::Qp)).qp_num })
            }
            abi::ASYNC_CQ_ERR | abi::ASYNC_SRQ_ERR | abi::ASYNC_DEVICE_FATAL => Trouble::Device,
            kind @ (abi::ASYNC_PORT_ACTIVE | abi::ASYNC_PORT_ERR) => {
                // The number is an `int` in the first bytes of the union.
                Trouble::Port(event.element as u32 as u8, kind == abi::ASYNC_PORT_ACTIVE)
            }
            _ => Trouble::None,
        };
        // SAFETY: the event that was taken.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        Some(trouble)
    }

    const fn ops(&self) -> &abi::ContextOps {
        // SAFETY: an open device; the provider filled the table when it was opened.
        unsafe { &(*self.at.as_ptr()).ops }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: everything that was made from it held it, and is gone.
        unsafe { (self.library.ibv_close_device)(self.at.as_ptr()) };
    }
}

macro_rules! object {
    ($(#[$about:meta])* $name:ident, $raw:ty, $shared:ident, $end:ident, { $($field:ident: $kind:ty),* }) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name {
            at: NonNull<$raw>,
            $(#[allow(dead_code)] $field: $kind,)*
        }

        // SAFETY: libibverbs' objects may be used from any thread; the exceptions are documented.
        unsafe impl Send for $name {}
        // SAFETY: a shared reference only lets call libibverbs, which locks objects that threads
        // share.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the objects that depend on it held it and are gone; the fields, which it
                // depends on, go afterwards.
                unsafe { (self.context().library.$end)(self.at.as_ptr()) };
            }
        }
    };
}

object! {
    /// A protection domain.
    Domain, abi::Pd, Pd, ibv_dealloc_pd, { context: Context }
}
object! {
    /// A completion channel: a descriptor that becomes readable.
    Channel, abi::CompChannel, CompChannel, ibv_destroy_comp_channel, { context: Context }
}
object! {
    /// A completion queue.
    Queue, abi::Cq, Cq, ibv_destroy_cq, { channel: CompChannel }
}
object! {
    /// A shared receive queue.
    SharedReceives, abi::Srq, Srq, ibv_destroy_srq, { domain: Pd }
}
object! {
    /// Registered memory. The memory itself is the maker's to keep.
    Mr, abi::Mr, Mr, ibv_dereg_mr, { domain: Pd }
}
object! {
    /// A reliable queue pair.
    Qp, abi::Qp, Qp, ibv_destroy_qp, { domain: Pd, queue: Cq, receives: Option<Srq> }
}

/// A protection domain, shared by the objects that depend on it.
pub type Pd = Shared<Domain>;
/// A completion channel, shared.
pub type CompChannel = Shared<Channel>;
/// A completion queue, shared.
pub type Cq = Shared<Queue>;
/// A shared receive queue, shared by its queue pairs.
pub type Srq = Shared<SharedReceives>;

fn shared<T>(value: T) -> Result<Shared<T>, Error> {
    Shared::new(value).map_err(|errno| Error::of("mmap", errno))
}

impl Domain {
    /// Makes one.
    ///
    /// # Errors
    /// The library's.
    pub fn new(context: &Context) -> Result<Pd, Error> {
        // SAFETY: an open device.
        let at = unsafe { (context.library.ibv_alloc_pd)(context.at.as_ptr()) };
        shared(Self { at: made(at, "ibv_alloc_pd")?, context: context.clone() })
    }

    const fn context(&self) -> &Context {
        &self.context
    }
}

impl Channel {
    /// Makes one, not blocking, its descriptor at `floor` or above.
    ///
    /// # Errors
    /// The library's.
    pub fn new(context: &Context, floor: i32) -> Result<CompChannel, Error> {
        // SAFETY: an open device.
        let at = unsafe { (context.library.ibv_create_comp_channel)(context.at.as_ptr()) };
        let at = made(at, "ibv_create_comp_channel")?;
        // SAFETY: a fresh channel's structure; the library uses this field.
        unsafe {
            (*at.as_ptr()).fd = fd::move_up((*at.as_ptr()).fd, floor);
            set_nonblocking((*at.as_ptr()).fd);
        }
        shared(Self { at, context: context.clone() })
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> i32 {
        // SAFETY: a field of a live channel.
        unsafe { number(&raw mut (*self.at.as_ptr()).fd) }
    }

    /// It is `to` from here on, if it was `from`: whether it was.
    pub fn renumber(&self, from: i32, to: i32) -> bool {
        // SAFETY: a field of a live channel.
        unsafe { renumber(&raw mut (*self.at.as_ptr()).fd, from, to) }
    }

    const fn context(&self) -> &Context {
        &self.context
    }
}

impl Queue {
    /// Makes one of `entries`, which signals to `channel`.
    ///
    /// # Errors
    /// The library's; [`Error::MemLock`] where it is pinned.
    pub fn new(channel: &CompChannel, entries: usize) -> Result<Cq, Error> {
        let context = channel.context();
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: live objects.
        let at = unsafe {
            (context.library.ibv_create_cq)(
                context.at.as_ptr(),
                entries,
                core::ptr::null_mut(),
                channel.at.as_ptr(),
                0,
            )
        };
        shared(Self { at: made(at, "ibv_create_cq")?, channel: channel.clone() })
    }

    fn context(&self) -> &Context {
        self.channel.context()
    }

    /// Takes completions. Fast. Callers take turns, or completions of one queue pair are taken out of order.
    /// `None`: the queue is broken, and has lost some.
    pub fn poll<'a>(&self, into: &'a mut [abi::Wc]) -> Option<&'a [abi::Wc]> {
        let poll = self.context().ops().poll_cq?;
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: a live queue and room for so many.
        let count = unsafe { poll(self.at.as_ptr(), room, into.as_mut_ptr()) };
        into.get(..usize::try_from(count).ok()?)
    }

    /// The channel becomes readable with the next completion, or the next solicited one or failure. Fast.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Error> {
        let Some(notify) = self.context().ops().req_notify_cq else { return Err(Error::NoDevice) };
        // SAFETY: a live queue.
        done(unsafe { notify(self.at.as_ptr(), c_int::from(solicited_only)) }, "req_notify_cq")
    }

    /// Takes the channel's events; whether there were any.
    pub fn take_wakeups(&self) -> bool {
        let library = self.context().library;
        let (mut cq, mut cookie) = (core::ptr::null_mut(), core::ptr::null_mut());
        let mut count = 0;
        // SAFETY: a live channel that does not block, and two places for answers.
        while unsafe {
            (library.ibv_get_cq_event)(self.channel.at.as_ptr(), &raw mut cq, &raw mut cookie)
        } == 0
        {
            count += 1;
        }
        if count > 0 {
            // SAFETY: the channel reports this queue alone, and so many times.
            unsafe { (library.ibv_ack_cq_events)(self.at.as_ptr(), count) };
        }
        count > 0
    }
}

/// Receives without buffers that one call posts at most.
pub const RECEIVES_MOST: usize = 8;

/// A receive of one piece.
const fn receive(wr_id: u64, piece: &mut abi::Sge) -> abi::RecvWr {
    abi::RecvWr { wr_id, next: core::ptr::null_mut(), sg_list: piece, num_sge: 1 }
}

impl SharedReceives {
    /// Makes one of `entries`.
    ///
    /// # Errors
    /// The library's; EOPNOTSUPP where the device has none.
    pub fn new(domain: &Pd, entries: usize) -> Result<Srq, Error> {
        let max_wr = u32::try_from(entries).unwrap_or(u32::MAX);
        let mut wanted = abi::SrqInitAttr {
            srq_context: core::ptr::null_mut(),
            max_wr,
            max_sge: 1,
            srq_limit: 0,
        };
        let library = domain.context().library;
        // SAFETY: a live domain and a valid description.
        let at = unsafe { (library.ibv_create_srq)(domain.at.as_ptr(), &raw mut wanted) };
        shared(Self { at: made(at, "ibv_create_srq")?, domain: domain.clone() })
    }

    fn context(&self) -> &Context {
        self.domain.context()
    }

    /// Posts a buffer. Fast, from any thread.
    ///
    /// # Safety
    /// The piece stays valid, and nothing else touches it, until its completion was taken or the
    /// queue is gone.
    pub unsafe fn post(&self, wr_id: u64, mut piece: abi::Sge) -> Result<(), Error> {
        let Some(post) = self.context().ops().post_srq_recv else { return Err(Error::NoDevice) };
        let mut request = receive(wr_id, &mut piece);
        let mut bad = core::ptr::null_mut();
        // SAFETY: a live queue; the request is copied by the post; the piece by the caller's promise.
        done(unsafe { post(self.at.as_ptr(), &raw mut request, &raw mut bad) }, "post_srq_recv")
    }
}

impl Mr {
    /// Registers memory whose addresses begin at 0 for the peer.
    ///
    /// # Safety
    /// As [`Mr::new`].
    pub unsafe fn from_zero(
        domain: &Pd,
        addr: u64,
        len: usize,
        access: c_int,
    ) -> Result<Self, Error> {
        let library = domain.context().library;
        // SAFETY: a live domain; the kernel checks the range.
        let at = unsafe {
            (library.ibv_reg_mr_iova)(domain.at.as_ptr(), addr as *mut _, len, 0, access)
        };
        Ok(Self { at: made(at, "ibv_reg_mr_iova")?, domain: domain.clone() })
    }

    /// Registers memory.
    ///
    /// # Safety
    /// The range stays mapped until this is dropped, and nothing else relies on its content unless
    /// `access` forbids the peer's.
    pub unsafe fn new(domain: &Pd, addr: u64, len: usize, access: c_int) -> Result<Self, Error> {
        let library = domain.context().library;
        // SAFETY: a live domain; the kernel checks the range.
        let at = unsafe { (library.ibv_reg_mr)(domain.at.as_ptr(), addr as *mut _, len, access) };
        Ok(Self { at: made(at, "ibv_reg_mr")?, domain: domain.clone() })
    }

    fn context(&self) -> &Context {
        self.domain.context()
    }

    /// Key for local use.
    pub const fn lkey(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { (*self.at.as_ptr()).lkey }
    }

    /// Key for the peer.
    pub const fn rkey(&self) -> u32 {
        // SAFETY: a live region.
        unsafe { (*self.at.as_ptr()).rkey }
    }
}

/// A queue pair's name for the data path: valid as long as its [`Qp`], which its user holds in some
/// way.
#[derive(Debug, Clone, Copy)]
pub struct RawQp(NonNull<abi::Qp>);

// SAFETY: a name; its users take turns.
unsafe impl Send for RawQp {}
// SAFETY: a shared reference gives away the name alone, a copy of which every thread may have.
unsafe impl Sync for RawQp {}

impl Qp {
    /// Makes one with `depth` entries of its send queue, each of up to `pieces` pieces. Its receives
    /// come from a shared queue, or from its own of `own` entries.
    ///
    /// # Errors
    /// The library's; [`Error::MemLock`] where send queues are pinned.
    pub fn new(
        domain: &Pd,
        queue: &Cq,
        receives: Option<&Srq>,
        own: u32,
        (depth, pieces): (u32, u32),
        inline: u32,
    ) -> Result<Self, Error> {
        let own = if receives.is_some() { 0 } else { own };
        let mut wanted = abi::QpInitAttr {
            qp_context: core::ptr::null_mut(),
            send_cq: queue.at.as_ptr(),
            recv_cq: queue.at.as_ptr(),
            srq: receives.map_or(core::ptr::null_mut(), |shared| shared.at.as_ptr()),
            cap: abi::QpCap {
                max_send_wr: depth,
                max_recv_wr: own,
                max_send_sge: pieces,
                max_recv_sge: own.min(1),
                max_inline_data: inline,
            },
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        let library = domain.context().library;
        // SAFETY: live objects and a valid description.
        let at = unsafe { (library.ibv_create_qp)(domain.at.as_ptr(), &raw mut wanted) };
        Ok(Self {
            at: made(at, "ibv_create_qp")?,
            domain: domain.clone(),
            queue: queue.clone(),
            receives: receives.cloned(),
        })
    }

    fn context(&self) -> &Context {
        self.domain.context()
    }

    /// Its number.
    pub const fn number(&self) -> u32 {
        // SAFETY: a live queue pair.
        unsafe { (*self.at.as_ptr()).qp_num }
    }

    /// Its name for the data path.
    pub const fn raw(&self) -> RawQp {
        RawQp(self.at)
    }

    /// Changes state or attributes.
    ///
    /// # Errors
    /// The library's.
    pub fn modify(&self, attributes: &abi::QpAttr, mask: c_int) -> Result<(), Error> {
        let mut attributes = *attributes;
        let library = self.context().library;
        // SAFETY: a live queue pair and a valid description, which the library may write.
        let answer =
            unsafe { (library.ibv_modify_qp)(self.at.as_ptr(), &raw mut attributes, mask) };
        done(answer, "ibv_modify_qp")
    }

    /// To the error state: work in flight is flushed.
    ///
    /// # Errors
    /// The library's.
    pub fn fail(&self) -> Result<(), Error> {
        let attributes = abi::QpAttr { qp_state: abi::QPS_ERR, ..abi::QpAttr::default() };
        self.modify(&attributes, abi::QP_STATE)
    }
}

impl RawQp {
    /// The name that was stored as a pointer ([`RawQp::as_ptr`]).
    ///
    /// # Safety
    /// The pointer is null or came from there.
    pub const unsafe fn of(at: *mut abi::Qp) -> Option<Self> {
        match NonNull::new(at) {
            Some(at) => Some(Self(at)),
            None => None,
        }
    }

    /// As a pointer.
    pub const fn as_ptr(self) -> *mut abi::Qp {
        self.0.as_ptr()
    }

    /// Posts a list of requests, each of which names its pieces and the next one. Fast; one thread at
    /// a time. On error the first that was not posted, as far as the device says which.
    ///
    /// # Safety
    /// As [`RawQp::post`], for each of them; null: nothing.
    pub unsafe fn post_all(self, first: *mut abi::SendWr) -> Result<(), *const abi::SendWr> {
        if first.is_null() {
            return Ok(());
        }
        let bad: Cell<*mut abi::SendWr> = Cell::new(core::ptr::null_mut());
        // SAFETY: a live queue pair, whose context is live; the requests are copied by the post.
        let posted = unsafe {
            let context = (*self.0.as_ptr()).context;
            let Some(post) = (*context).ops.post_send else { return Err(first) };
            done(post(self.0.as_ptr(), first, bad.as_ptr()), "post_send")
        };
        posted.map_err(|_| bad.get().cast_const())
    }

    /// Posts a request to the send queue. Fast; one thread at a time.
    ///
    /// # Safety
    /// The queue pair lives. Memory that the request names stays valid, and unchanged or untouched as its kind
    /// demands, until it has completed.
    pub unsafe fn post(
        self,
        request: &mut abi::SendWr,
        pieces: &mut [abi::Sge],
    ) -> Result<(), Error> {
        request.sg_list = pieces.as_mut_ptr();
        request.num_sge = c_int::try_from(pieces.len()).unwrap_or(0);
        let bad: Cell<*mut abi::SendWr> = Cell::new(core::ptr::null_mut());
        // SAFETY: a live queue pair, whose context is live; the request is copied by the post.
        unsafe {
            let context = (*self.0.as_ptr()).context;
            let Some(post) = (*context).ops.post_send else { return Err(Error::NoDevice) };
            done(post(self.0.as_ptr(), request, bad.as_ptr()), "post_send")
        }
    }

    /// Posts receives without buffers, for WRITEs with immediate data, to the queue pair's own receive
    /// queue, as one list: at most [`RECEIVES_MOST`]. Fast, from any thread.
    ///
    /// # Errors
    /// The provider's; it may have taken some of them.
    ///
    /// # Safety
    /// The queue pair lives.
    pub unsafe fn post_empty_receives(self, wr_id: u64, count: usize) -> Result<(), Error> {
        let mut list: [abi::RecvWr; RECEIVES_MOST] = core::array::from_fn(|_| abi::RecvWr {
            wr_id,
            next: core::ptr::null_mut(),
            sg_list: core::ptr::null_mut(),
            num_sge: 0,
        });
        let mut next = core::ptr::null_mut();
        for request in list.iter_mut().take(count).rev() {
            request.next = next;
            next = &raw mut *request;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = core::ptr::null_mut();
        // SAFETY: a live queue pair, whose context is live; the requests are copied by the post.
        unsafe {
            let context = (*self.0.as_ptr()).context;
            let Some(post) = (*context).ops.post_recv else { return Err(Error::NoDevice) };
            done(post(self.0.as_ptr(), next, &raw mut bad), "post_recv")
        }
    }

    /// Posts a buffer to the queue pair's own receive queue. Fast, from any thread.
    ///
    /// # Safety
    /// The queue pair lives. The piece stays valid, and nothing else touches it, until its
    /// completion was taken or the queue pair is gone.
    pub unsafe fn post_receive(self, wr_id: u64, mut piece: abi::Sge) -> Result<(), Error> {
        let mut request = receive(wr_id, &mut piece);
        let mut bad = core::ptr::null_mut();
        // SAFETY: a live queue pair, whose context is live; the request is copied by the post, and
        // the piece is the caller's to keep.
        unsafe {
            let context = (*self.0.as_ptr()).context;
            let Some(post) = (*context).ops.post_recv else { return Err(Error::NoDevice) };
            done(post(self.0.as_ptr(), &raw mut request, &raw mut bad), "post_recv")
        }
    }
}
