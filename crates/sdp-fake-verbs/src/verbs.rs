//! The functions of libibverbs, and the calls of its provider.

use core::{
    ffi::{c_char, c_int, c_void},
    ptr::null_mut,
};

use sdp_fabric_verbs::{abi::verbs as abi, library::Library};
use sdp_sys::{Errno, fd, sys};

use crate::{
    local::{self, Channel, Context, Cq, Device, Mr, Pd, Qp, Srq},
    manager::{self, guid, reap},
    network::state,
    state::{Body, Buffer, DEVICES, Kind, REGION_BITS, REGIONS, Receives, SRQS, Trouble, own_pid},
    step::Step,
    work,
};

/// In the place of the functions that `dlopen` would have found.
pub(crate) const LIBRARY: Library = Library {
    ibv_get_device_list: get_device_list,
    ibv_free_device_list: free_device_list,
    ibv_get_device_guid: get_device_guid,
    ibv_open_device: open_device,
    ibv_close_device: close_device,
    ibv_is_fork_initialized: is_fork_initialized,
    ibv_alloc_pd: alloc_pd,
    ibv_dealloc_pd: dealloc_pd,
    ibv_reg_mr: reg_mr,
    ibv_reg_mr_iova: reg_mr_iova,
    ibv_dereg_mr: dereg_mr,
    ibv_create_comp_channel: create_comp_channel,
    ibv_destroy_comp_channel: destroy_comp_channel,
    ibv_create_cq: create_cq,
    ibv_destroy_cq: destroy_cq,
    ibv_get_cq_event: get_cq_event,
    ibv_ack_cq_events: ack_cq_events,
    ibv_create_srq: create_srq,
    ibv_destroy_srq: destroy_srq,
    ibv_create_qp: create_qp,
    ibv_modify_qp: modify_qp,
    ibv_destroy_qp: destroy_qp,
    ibv_get_async_event: get_async_event,
    ibv_ack_async_event: ack_async_event,
    ibv_get_device_name: get_device_name,
};

fn with<R>(step: impl FnOnce(&mut Body) -> Result<R, Errno>) -> Result<R, Errno> {
    state().ok_or(Errno(libc::ENODEV))?.with(step)
}

/// A pointer, or null and errno.
fn pointer<T>(made: Result<*mut T, Errno>) -> *mut T {
    made.unwrap_or_else(|Errno(number)| {
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = number };
        null_mut()
    })
}

/// 0, or an error number.
fn number(done: Result<(), Errno>) -> c_int {
    done.map_or_else(|Errno(number)| number, |()| 0)
}

fn full() -> Errno {
    Errno::ENOMEM
}

// SAFETY, for each function below: pointers are those that the functions that make them have
// returned, and not yet ended. The real library demands the same of its callers.

#[repr(C)]
struct List {
    pointers: [*mut abi::Device; DEVICES + 1],
    devices: [Device; DEVICES],
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    let made = with(|body| {
        body.step(Step::DeviceList)?;
        let list = local::make::<List>()?.as_ptr();
        let has_none = body.devices.iter().all(|device| device.ip == [0; 16]);
        let mut found = 0;
        for (index, device) in body.devices.iter().enumerate() {
            if !(device.is_present && device.of == 0 || has_none && index == 0) {
                continue;
            }
            // SAFETY: fresh memory for a list; `found` is below its length.
            unsafe {
                let entry = &raw mut (*list).devices[found];
                fill(entry, index, device.is_iwarp);
                (*list).pointers[found] = &raw mut (*entry).abi;
            }
            found += 1;
        }
        // SAFETY: the caller's place for the count.
        unsafe { *count = found as c_int };
        // SAFETY: a live list.
        Ok(unsafe { (&raw mut (*list).pointers).cast() })
    });
    pointer(made)
}

/// # Safety
/// Zeroed memory for a device.
unsafe fn fill(at: *mut Device, index: usize, is_iwarp: bool) {
    // SAFETY: the caller's.
    unsafe {
        (*at).index = index;
        (*at).abi.node_type = 1;
        (*at).abi.transport_type = if is_iwarp { abi::TRANSPORT_IWARP } else { abi::TRANSPORT_IB };
        for (to, from) in (*at).abi.name.iter_mut().zip(b"fake0") {
            *to = *from as c_char;
        }
        (*at).abi.name[4] = (b'0' + index as u8) as c_char;
    }
}

unsafe extern "C" fn free_device_list(list: *mut *mut abi::Device) {
    // SAFETY: see above: the first field of a list.
    unsafe { local::end(list.cast::<List>()) };
}

unsafe extern "C" fn get_device_guid(device: *mut abi::Device) -> u64 {
    // SAFETY: see above.
    guid(unsafe { (*device.cast::<Device>()).index })
}

unsafe extern "C" fn get_device_name(device: *mut abi::Device) -> *const c_char {
    // SAFETY: see above.
    unsafe { (&raw const (*device).name).cast() }
}

extern "C" fn is_fork_initialized() -> c_int {
    abi::FORK_UNNEEDED
}

unsafe extern "C" fn open_device(device: *mut abi::Device) -> *mut abi::Context {
    // SAFETY: see above.
    let (device, is_iwarp) = unsafe {
        let device = device.cast::<Device>();
        ((*device).index, (*device).abi.transport_type == abi::TRANSPORT_IWARP)
    };
    local::allocate();
    let made = with(|body| {
        body.step(Step::OpenDevice)?;
        reap(body);
        let index = body.contexts.iter().position(|context| context.pid == 0).ok_or(full())?;
        let context = local::make::<Context>()?.as_ptr();
        // SAFETY: fresh memory for a context; a path that ends with NUL.
        unsafe {
            fill(&raw mut (*context).device, device, is_iwarp);
            (*context).index = index;
            let abi = &mut (*context).abi;
            abi.device = (&raw mut (*context).device).cast();
            let (path, flags) = (c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            let file = sys!(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0);
            let (number, doorbell) = local::doorbell(body)?;
            (abi.cmd_fd, abi.async_fd) = (file? as c_int, number);
            abi.num_comp_vectors = 1;
            abi.ops.poll_cq = Some(poll_cq);
            abi.ops.req_notify_cq = Some(req_notify_cq);
            abi.ops.post_srq_recv = Some(post_srq_recv);
            abi.ops.post_send = Some(post_send);
            abi.ops.post_recv = Some(post_recv);
            if let Some(entry) = body.contexts.get_mut(index) {
                (entry.pid, entry.fd, entry.device) = (own_pid(), abi.async_fd, device as u8);
                entry.doorbell = doorbell;
                entry.troubles.clear();
            }
        }
        Ok(context.cast())
    });
    pointer(made)
}

unsafe extern "C" fn close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: see above; nothing uses it any more.
    let done = with(|body| unsafe {
        let own = context.cast::<Context>();
        if let Some(entry) = body.contexts.get_mut((*own).index) {
            entry.pid = 0;
        }
        fd::close((*context).cmd_fd);
        fd::close((*context).async_fd);
        local::end(own);
        Ok(())
    });
    number(done)
}

/// An object of which only its being there matters.
fn other(body: &mut Body, kind: Kind) -> Result<usize, Errno> {
    let index = body.others.iter().position(|other| other.pid == 0).ok_or(full())?;
    if let Some(other) = body.others.get_mut(index) {
        (other.pid, other.kind) = (own_pid(), kind);
    }
    Ok(index)
}

unsafe extern "C" fn alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    let made = with(|body| {
        body.step(Step::AllocPd)?;
        let pd = local::make::<Pd>()?.as_ptr();
        // SAFETY: fresh memory.
        unsafe {
            (*pd).index = other(body, Kind::Pd)?;
            (*pd).context = context.cast();
        }
        Ok(pd.cast())
    });
    pointer(made)
}

unsafe extern "C" fn dealloc_pd(pd: *mut abi::Pd) -> c_int {
    // SAFETY: see above.
    let done = with(|body| unsafe {
        let pd = pd.cast::<Pd>();
        if let Some(other) = body.others.get_mut((*pd).index) {
            other.pid = 0;
        }
        local::end(pd);
        Ok(())
    });
    number(done)
}

unsafe extern "C" fn reg_mr(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: the caller's.
    unsafe { reg_mr_iova(pd, addr, len, addr as u64, access) }
}

unsafe extern "C" fn reg_mr_iova(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: see above: a live domain.
    let domain = unsafe { (*pd.cast::<Pd>()).index };
    if access & abi::ACCESS_REMOTE_READ != 0 {
        // Yama keeps processes of one user from each other. A kernel without it refuses this.
        // SAFETY: no pointers.
        let _ = unsafe { sys!(libc::SYS_prctl, libc::PR_SET_PTRACER, u64::MAX, 0, 0, 0) };
    }
    let made = with(|body| {
        body.step(Step::RegMr)?;
        let index = body.regions.iter().position(|region| region.pid == 0).ok_or(full())?;
        let mr = local::make::<Mr>()?.as_ptr();
        // Its place in the low bits; the rest is no neighbour's, so that adding one meets no key; never 0.
        body.next_key = body.next_key.wrapping_add(0x0101_0300);
        let key = (body.next_key | 1 << REGION_BITS) & !(REGIONS as u32 - 1) | index as u32;
        if let Some(region) = body.regions.get_mut(index) {
            (region.pid, region.key, region.access) = (own_pid(), key, access);
            (region.addr, region.len, region.iova) = (addr as u64, len as u64, iova);
            region.domain = domain as u16;
        }
        // SAFETY: fresh memory.
        unsafe { ((*mr).index, (*mr).abi.lkey, (*mr).abi.rkey) = (index, key, key) };
        Ok(mr.cast())
    });
    pointer(made)
}

unsafe extern "C" fn dereg_mr(mr: *mut abi::Mr) -> c_int {
    // SAFETY: see above.
    let done = with(|body| unsafe {
        let mr = mr.cast::<Mr>();
        if let Some(region) = body.regions.get_mut((*mr).index) {
            region.pid = 0;
        }
        local::end(mr);
        Ok(())
    });
    number(done)
}

unsafe extern "C" fn create_comp_channel(_: *mut abi::Context) -> *mut abi::CompChannel {
    let made = with(|body| {
        body.step(Step::CreateChannel)?;
        let channel = local::make::<Channel>()?.as_ptr();
        // SAFETY: fresh memory.
        unsafe {
            (*channel).index = other(body, Kind::Channel)?;
            ((*channel).abi.fd, (*channel).doorbell) = local::doorbell(body)?;
        }
        Ok(channel.cast())
    });
    pointer(made)
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int {
    // SAFETY: see above.
    let done = with(|body| unsafe {
        fd::close((*channel).fd);
        let channel = channel.cast::<Channel>();
        if let Some(other) = body.others.get_mut((*channel).index) {
            other.pid = 0;
        }
        local::end(channel);
        Ok(())
    });
    number(done)
}

unsafe extern "C" fn create_cq(
    context: *mut abi::Context,
    entries: c_int,
    _: *mut c_void,
    channel: *mut abi::CompChannel,
    _: c_int,
) -> *mut abi::Cq {
    let made = with(|body| {
        body.step(Step::CreateCq)?;
        let index = body.cqs.iter().position(|cq| cq.pid == 0).ok_or(full())?;
        let cq = local::make::<Cq>()?.as_ptr();
        // SAFETY: fresh memory, and a live channel.
        unsafe {
            ((*cq).index, (*cq).channel) = (index, channel.cast());
            ((*cq).abi.context, (*cq).abi.cqe) = (context, entries);
            (*channel.cast::<Channel>()).cq = cq;
        }
        if let Some(entry) = body.cqs.get_mut(index) {
            (entry.pid, entry.armed, entry.fd) = (own_pid(), 0, -1);
            (entry.room, entry.is_broken) = (entries as u32, false);
            entry.done.clear();
        }
        Ok(cq.cast())
    });
    pointer(made)
}

unsafe extern "C" fn destroy_cq(cq: *mut abi::Cq) -> c_int {
    // SAFETY: see above.
    let done = with(|body| unsafe {
        let cq = cq.cast::<Cq>();
        let index = (*cq).index;
        // Messages that were not taken.
        while work::discard(body, index) {}
        if let Some(entry) = body.cqs.get_mut(index) {
            entry.pid = 0;
        }
        local::end(cq);
        Ok(())
    });
    number(done)
}

unsafe extern "C" fn get_cq_event(
    channel: *mut abi::CompChannel,
    cq: *mut *mut abi::Cq,
    cookie: *mut *mut c_void,
) -> c_int {
    // SAFETY: see above, and two places for answers.
    unsafe {
        if !local::take_ring((*channel).fd) {
            return -1;
        }
        (*cq, *cookie) = ((*channel.cast::<Channel>()).cq.cast(), null_mut());
    }
    0
}

extern "C" fn ack_cq_events(_: *mut abi::Cq, _: u32) {}

fn empty(queue: &mut Receives, room: u32) {
    (queue.posted, queue.room) = (0, room);
    queue.buffers.clear();
    queue.stalled.clear();
}

unsafe extern "C" fn create_srq(pd: *mut abi::Pd, wanted: *mut abi::SrqInitAttr) -> *mut abi::Srq {
    // SAFETY: see above: a live domain of a live device, and a valid description.
    let (device, room) = unsafe { ((*(*pd.cast::<Pd>()).context).device.index, (*wanted).max_wr) };
    let made = with(|body| {
        body.step(Step::CreateSrq)?;
        if body.devices.get(device).is_some_and(|device| device.has_own_receives) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let mut shared = body.receives.iter().take(SRQS);
        let index = shared.position(|queue| queue.pid == 0).ok_or(full())?;
        let srq = local::make::<Srq>()?.as_ptr();
        // SAFETY: fresh memory.
        unsafe { (*srq).index = index };
        if let Some(entry) = body.receives.get_mut(index) {
            entry.pid = own_pid();
            empty(entry, room);
        }
        Ok(srq.cast())
    });
    pointer(made)
}

unsafe extern "C" fn destroy_srq(srq: *mut abi::Srq) -> c_int {
    // SAFETY: see above.
    let done = with(|body| unsafe {
        let srq = srq.cast::<Srq>();
        if let Some(entry) = body.receives.get_mut((*srq).index) {
            entry.pid = 0;
        }
        local::end(srq);
        Ok(())
    });
    number(done)
}

unsafe extern "C" fn create_qp(pd: *mut abi::Pd, wanted: *mut abi::QpInitAttr) -> *mut abi::Qp {
    local::allocate();
    let made = with(|body| {
        body.step(Step::CreateQp)?;
        let index = body.qps.iter().position(|qp| qp.pid == 0).ok_or(full())?;
        let qp = local::make::<Qp>()?.as_ptr();
        body.next_qp = (body.next_qp + 1) & 0xfff;
        let number = (body.next_qp << 12 | index as u32) + 1;
        // SAFETY: fresh memory, a live domain and a valid description.
        unsafe {
            let domain = pd.cast::<Pd>();
            let context = (*domain).context;
            ((*qp).index, (*qp).inline) = (index, (*wanted).cap.max_inline_data);
            ((*qp).abi.context, (*qp).abi.qp_num) = (context.cast(), number);
            let entry = body.qps.get_mut(index).ok_or(full())?;
            (entry.pid, entry.number, entry.state) = (own_pid(), number, abi::QPS_RESET);
            entry.cq = (*(*wanted).send_cq.cast::<Cq>()).index as u16;
            let shared = (*wanted).srq.cast::<Srq>();
            let queue = if shared.is_null() { SRQS + index } else { (*shared).index };
            entry.queue = queue as u16;
            (entry.context, entry.dest, entry.port) = ((*context).index as u16, 0, 0);
            entry.local = qp as u64;
            (entry.domain, entry.pieces) =
                ((*domain).index as u16, (*wanted).cap.max_send_sge as u8);
            (entry.written, entry.last_written) = (0, 0);
            entry.pending.clear();
            entry.early.clear();
            (entry.is_cut, entry.stalled) = (false, 0);
            if shared.is_null() {
                let own = body.receives.get_mut(queue).ok_or(full())?;
                empty(own, (*wanted).cap.max_recv_wr);
            }
        }
        Ok(qp.cast())
    });
    pointer(made)
}

unsafe extern "C" fn modify_qp(qp: *mut abi::Qp, to: *mut abi::QpAttr, mask: c_int) -> c_int {
    // SAFETY: see above.
    let (index, wanted, dest, ports) = unsafe {
        let ports = ((*to).port_num, (*to).ah_attr.port_num);
        ((*qp.cast::<Qp>()).index, (*to).qp_state, (*to).dest_qp_num, ports)
    };
    let done = with(|body| {
        let (step, from) = match wanted {
            abi::QPS_INIT => (Step::ToInit, abi::QPS_RESET),
            abi::QPS_RTR => (Step::ToRtr, abi::QPS_INIT),
            abi::QPS_RTS => (Step::ToRts, abi::QPS_RTR),
            _ => (Step::ToErr, wanted),
        };
        body.step(step)?;
        if wanted == abi::QPS_ERR {
            work::fail(body, index, abi::WC_WR_FLUSH_ERR);
            return Ok(());
        }
        let entry = body.qps.get_mut(index).ok_or(Errno::EINVAL)?;
        // A queue pair has its port from the beginning, and sends by no other.
        let has_port = match wanted {
            abi::QPS_INIT => mask & manager::PORT != 0 && ports.0 != 0,
            abi::QPS_RTR => ports.1 == entry.port,
            _ => true,
        };
        if entry.state != from || !has_port {
            return Err(Errno::EINVAL);
        }
        if wanted == abi::QPS_INIT {
            entry.port = ports.0;
        }
        entry.state = wanted;
        if wanted == abi::QPS_RTR {
            entry.dest = dest;
            work::take_early(body, index);
        }
        Ok(())
    });
    number(done)
}

unsafe extern "C" fn destroy_qp(qp: *mut abi::Qp) -> c_int {
    local::allocate();
    // SAFETY: see above.
    let done = with(|body| unsafe {
        let qp = qp.cast::<Qp>();
        work::forget(body, (*qp).index);
        local::end(qp);
        Ok(())
    });
    number(done)
}

unsafe extern "C" fn get_async_event(
    context: *mut abi::Context,
    event: *mut abi::AsyncEvent,
) -> c_int {
    // SAFETY: see above, and room for an event.
    let taken = with(|body| unsafe {
        let index = (*context.cast::<Context>()).index;
        let entry = body.contexts.get_mut(index).ok_or(Errno::EAGAIN)?;
        // The descriptor was perhaps moved since it was made.
        entry.fd = (*context).async_fd;
        while let Some(Trouble { kind, qp, port }) =
            body.contexts.get_mut(index).and_then(|entry| entry.troubles.pop())
        {
            local::take_ring((*context).async_fd);
            let own = own_pid();
            let place = body.qps.iter().find(|place| place.pid == own && place.number == qp);
            let element = place.map_or(usize::from(port), |place| place.local as usize);
            if qp == 0 || element != 0 {
                ((*event).element, (*event).event_type) = (element, kind);
                return Ok(());
            }
        }
        Err(Errno::EAGAIN)
    });
    if taken.is_ok() { 0 } else { -1 }
}

extern "C" fn ack_async_event(_: *mut abi::AsyncEvent) {}

unsafe extern "C" fn poll_cq(cq: *mut abi::Cq, room: c_int, into: *mut abi::Wc) -> c_int {
    let taken = with(|body| {
        if let Some(number) = body.event_fault(Step::Poll) {
            return Ok(-number.abs());
        }
        // SAFETY: see above, and `room` places.
        let index = unsafe { (*cq.cast::<Cq>()).index };
        if body.cqs.get(index).is_some_and(|cq| cq.is_broken) {
            return Err(Errno::EINVAL);
        }
        let mut count = 0;
        while count < room {
            let Some(wc) = work::take(body, index) else { break };
            body.totals.completions += 1;
            // SAFETY: below `room`.
            unsafe { into.add(count as usize).write(wc) };
            count += 1;
        }
        Ok(count)
    });
    taken.unwrap_or(-1)
}

unsafe extern "C" fn req_notify_cq(cq: *mut abi::Cq, solicited_only: c_int) -> c_int {
    // SAFETY: see above.
    let done = with(|body| unsafe {
        body.step(Step::Arm)?;
        let cq = cq.cast::<Cq>();
        let entry = body.cqs.get_mut((*cq).index).ok_or(Errno::EINVAL)?;
        (entry.fd, entry.doorbell) = ((*(*cq).channel).abi.fd, (*(*cq).channel).doorbell);
        // Armed for all stays armed for all.
        entry.armed = entry.armed.max(if solicited_only == 0 { 2 } else { 1 });
        Ok(())
    });
    number(done)
}

/// # Safety
/// A list of requests of one piece each, or none, and a place for the request that failed.
unsafe fn post_receive(
    request: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
    post: impl Fn(&mut Body, Buffer) -> Result<(), Errno>,
) -> c_int {
    let mut next = request;
    let done = with(|body| {
        while !next.is_null() {
            // SAFETY: the caller's.
            let (wr_id, behind, piece) = unsafe {
                let has_piece = (*next).num_sge == 1;
                let piece = has_piece.then(|| (*next).sg_list.read());
                ((*next).wr_id, (*next).next, piece)
            };
            let buffer = piece.map_or(Buffer { wr_id, ..Buffer::NONE }, |piece| Buffer {
                wr_id,
                addr: piece.addr,
                length: piece.length,
                lkey: piece.lkey,
            });
            post(body, buffer)?;
            next = behind;
        }
        Ok(())
    });
    if done.is_err() {
        // SAFETY: the caller's place for it.
        unsafe { *bad = next };
    }
    number(done)
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut abi::Srq,
    request: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
) -> c_int {
    // SAFETY: see above, with requests of one piece or none.
    unsafe {
        let queue = (*srq.cast::<Srq>()).index;
        post_receive(request, bad, |body, buffer| work::post_receive(body, queue, buffer))
    }
}

unsafe extern "C" fn post_recv(
    qp: *mut abi::Qp,
    request: *mut abi::RecvWr,
    bad: *mut *mut abi::RecvWr,
) -> c_int {
    // SAFETY: see above, with requests of one piece or none.
    unsafe {
        let index = (*qp.cast::<Qp>()).index;
        post_receive(request, bad, |body, buffer| work::post_own_receive(body, index, buffer))
    }
}

unsafe extern "C" fn post_send(
    qp: *mut abi::Qp,
    request: *mut abi::SendWr,
    bad: *mut *mut abi::SendWr,
) -> c_int {
    let mut next = request;
    let done = with(|body| {
        body.totals.doorbells += 1;
        while !next.is_null() {
            // SAFETY: see above, with a valid list of requests.
            unsafe {
                let qp = qp.cast::<Qp>();
                work::post_send(body, (*qp).index, &*next, (*qp).inline)?;
                next = (*next).next;
            }
        }
        Ok(())
    });
    if done.is_err() {
        // SAFETY: the caller's place for it.
        unsafe { *bad = next };
    }
    number(done)
}
