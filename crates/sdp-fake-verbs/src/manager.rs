//! The connection manager: commands as `/dev/infiniband/rdma_cm` takes them.

use core::sync::atomic::{AtomicU32, Ordering};

use sdp_fabric_verbs::abi::{
    cm::{self as abi, PRIVATE_DATA_ROOM},
    verbs,
};
use sdp_sys::{Errno, OwnedFd};

use crate::{
    local,
    network::state,
    state::{Body, Device, Id, Manager, Place, Stage, is_alive, own_pid},
    step::Step,
};

/// Lengths of private data as they arrive.
const REQUEST: usize = 56;
const REPLY: usize = 196;
const REJECT: usize = 148;
/// `IBV_QP_PORT`: the port of the device is among the attributes.
pub(crate) const PORT: i32 = 1 << 5;
/// First port that the connection manager chooses itself.
const FIRST_PORT: u16 = 40_000;

pub(crate) fn open(floor: i32) -> Result<OwnedFd, Errno> {
    let network = state().ok_or(Errno(libc::ENOENT))?;
    network.with(|body| {
        body.step(Step::OpenManager)?;
        reap(body);
        let (number, doorbell) = local::doorbell(body)?;
        let number = OwnedFd::new(number).move_up(floor);
        let free = body.managers.iter_mut().find(|manager| manager.pid == 0);
        let manager = free.ok_or(Errno(libc::ENFILE))?;
        (manager.pid, manager.fd, manager.doorbell) = (own_pid(), number.raw(), doorbell);
        manager.events.clear();
        Ok(number)
    })
}

fn number_of(body: &Body, fd: i32) -> Option<usize> {
    let own = own_pid();
    body.managers.iter().position(|manager| manager.pid == own && manager.fd == fd)
}

pub(crate) fn renumber(from: i32, to: i32) {
    let Some(network) = state() else { return };
    network.with(|body| {
        if let Some(number) = number_of(body, from)
            && let Some(manager) = body.managers.get_mut(number)
        {
            manager.fd = to;
        }
    });
}

pub(crate) fn close(fd: i32) {
    let Some(network) = state() else { return };
    network.with(|body| {
        if let Some(number) = number_of(body, fd) {
            end_manager(body, number);
        }
    });
}

fn end_manager(body: &mut Body, number: usize) {
    for index in 0..body.ids.len() {
        let is_its = |id: &Id| id.stage != Stage::Free && usize::from(id.manager) == number;
        if body.ids.get(index).is_some_and(is_its) {
            destroy(body, index);
        }
    }
    if let Some(manager) = body.managers.get_mut(number) {
        manager.pid = 0;
    }
}

/// Takes away the objects that dead processes have left.
pub(crate) fn reap(body: &mut Body) {
    let own = own_pid();
    for number in 0..body.managers.len() {
        let pid = body.managers.get(number).map_or(0, |manager| manager.pid);
        if pid == 0 || pid == own || is_alive(pid) {
            continue;
        }
        // Its queue pairs first: nothing is sent by a process that is dead.
        crate::work::bury(body, pid);
        end_manager(body, number);
    }
}

fn read<T>(bytes: &[u8]) -> Result<T, Errno> {
    if bytes.len() < size_of::<T>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: so many bytes; the structures are plain numbers, for which any bytes are valid.
    Ok(unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// # Safety
/// `at` is the address in a command: room for a `T`, or null.
unsafe fn answer<T>(at: u64, value: T) -> Result<(), Errno> {
    if at == 0 {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the caller's.
    unsafe { core::ptr::write_unaligned(at as *mut T, value) };
    Ok(())
}

pub(crate) fn command(fd: i32, bytes: &[u8]) -> Result<(), Errno> {
    let network = state().ok_or(Errno(libc::EBADF))?;
    let header: abi::Header = read(bytes)?;
    let rest = bytes.get(size_of::<abi::Header>()..).unwrap_or(&[]);
    if rest.len() != usize::from(header.len_in) {
        return Err(Errno::EINVAL);
    }
    network.with(|body| {
        let manager = number_of(body, fd).ok_or(Errno(libc::EBADF))?;
        run(body, manager, header, rest)
    })
}

fn run(body: &mut Body, manager: usize, header: abi::Header, rest: &[u8]) -> Result<(), Errno> {
    match header.cmd {
        abi::CMD_CREATE_ID => {
            body.step(Step::CreateId)?;
            let wanted: abi::CreateId = read(rest)?;
            match (wanted.ps, i32::from(wanted.qp_type)) {
                (abi::PS_TCP, verbs::QPT_RC) | (abi::PS_UDP, verbs::QPT_UD) => {}
                _ => return Err(Errno::EINVAL),
            }
            let index = make(body, manager)?;
            if let Some(id) = body.ids.get_mut(index) {
                (id.uid, id.space) = (wanted.uid, wanted.ps);
            }
            // SAFETY: the caller has room for the number.
            unsafe { answer(wanted.response, index as u32 + 1) }
        }
        abi::CMD_DESTROY_ID => {
            let wanted: abi::DestroyId = read(rest)?;
            destroy(body, own(body, manager, wanted.id)?);
            // SAFETY: the request names room for this answer, a number; the caller made both.
            unsafe { answer(wanted.response, 0u32) }
        }
        abi::CMD_BIND => {
            body.step(Step::Bind)?;
            let wanted: abi::Bind = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            bind(body, index, place(&wanted.addr, wanted.addr_size)?)
        }
        abi::CMD_QUERY => {
            body.step(Step::Query)?;
            let wanted: abi::Query = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            let device = body.ids.get(index).map_or(0, |id| id.device);
            let none = abi::Storage([0; 128]);
            let remote = body.ids.get(index).map_or(none, |id| storage_of(&id.remote));
            let reply = abi::QueryAddr {
                node_guid: if device == 0 { 0 } else { guid(usize::from(device) - 1) },
                port_num: body.ids.get(index).map_or(0, |id| id.device_port),
                reserved: 0,
                pkey: 0xffff,
                src_size: 0,
                dst_size: 0,
                src: none,
                dst: remote,
            };
            // SAFETY: the request names room for an answer of this type; the caller made both.
            unsafe { answer(wanted.response, reply) }
        }
        abi::CMD_LISTEN => {
            body.step(Step::Listen)?;
            let wanted: abi::Listen = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            advance(body, index, &[Stage::Bound], Stage::Listening)
        }
        _ => run_connect(body, manager, header, rest),
    }
}

/// A command that brings a connection about.
fn run_connect(
    body: &mut Body,
    manager: usize,
    header: abi::Header,
    rest: &[u8],
) -> Result<(), Errno> {
    match header.cmd {
        abi::CMD_RESOLVE_ADDR => {
            body.step(Step::ResolveAddress)?;
            let wanted: abi::ResolveAddr = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            let from = place(&wanted.src, wanted.src_size)?;
            let to = place(&wanted.dst, wanted.dst_size)?;
            bind(body, index, from)?;
            if let Some(id) = body.ids.get_mut(index) {
                (id.remote, id.stage) = (to, Stage::AddressKnown);
            }
            if device_of(body, index).is_some_and(|device| device.is_down) {
                return Err(Errno(libc::ENETUNREACH));
            }
            tell(body, index, abi::EVENT_ADDR_RESOLVED, 0, None);
            Ok(())
        }
        abi::CMD_RESOLVE_ROUTE => {
            body.step(Step::ResolveRoute)?;
            let wanted: abi::ResolveRoute = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            advance(body, index, &[Stage::AddressKnown], Stage::RouteKnown)?;
            tell(body, index, abi::EVENT_ROUTE_RESOLVED, 0, None);
            Ok(())
        }
        abi::CMD_CONNECT => {
            body.step(Step::Connect)?;
            let wanted: abi::Connect = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            connect(body, index, &wanted.param)
        }
        abi::CMD_ACCEPT => {
            let wanted: abi::Accept = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            if wanted.param.valid == 0 {
                return confirm(body, index);
            }
            body.step(Step::Accept)?;
            accept(body, index, wanted.uid, &wanted.param)
        }
        _ => run_end_or_query(body, manager, header, rest),
    }
}

/// A command that ends a connection, or asks for what has happened.
fn run_end_or_query(
    body: &mut Body,
    manager: usize,
    header: abi::Header,
    rest: &[u8],
) -> Result<(), Errno> {
    match header.cmd {
        abi::CMD_REJECT => {
            body.step(Step::Reject)?;
            let wanted: abi::Reject = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            let len = usize::from(wanted.private_data_len);
            advance(body, index, &[Stage::Asked], Stage::Ended)?;
            refuse(body, index, wanted.private_data.get(..len).unwrap_or(&[]));
            Ok(())
        }
        abi::CMD_DISCONNECT => {
            body.step(Step::Disconnect)?;
            let wanted: abi::Disconnect = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            let stages = [Stage::Connected, Stage::Answered];
            advance(body, index, &stages, Stage::Ended)?;
            say_goodbye(body, index);
            tell(body, index, abi::EVENT_DISCONNECTED, 0, None);
            Ok(())
        }
        abi::CMD_NOTIFY => {
            body.step(Step::Establish)?;
            let wanted: abi::Notify = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            if body.ids.get(index).is_some_and(|id| id.stage == Stage::Connected) {
                return Err(Errno(libc::EISCONN));
            }
            advance(body, index, &[Stage::Accepted], Stage::Connected)?;
            tell(body, index, abi::EVENT_ESTABLISHED, 0, None);
            Ok(())
        }
        abi::CMD_INIT_QP_ATTR => {
            body.step(Step::InitQpAttr)?;
            let wanted: abi::InitQpAttr = read(rest)?;
            let index = own(body, manager, wanted.id)?;
            let reply = attributes(body, index, wanted.qp_state as i32)?;
            // SAFETY: the request names room for an answer of this type; the caller made both.
            unsafe { answer(wanted.response, reply) }
        }
        abi::CMD_GET_EVENT => {
            body.step(Step::GetEvent)?;
            let wanted: abi::GetEvent = read(rest)?;
            reap(body);
            let owner = body.managers.get_mut(manager).ok_or(Errno(libc::EBADF))?;
            let event = owner.events.pop().ok_or(Errno::EAGAIN)?;
            local::take_ring(owner.fd);
            // SAFETY: the request names room for an event; the caller made both.
            unsafe { answer(wanted.response, event) }
        }
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// The node GUID of a device.
pub(crate) const fn guid(device: usize) -> u64 {
    0xfa4e_0000_0000_0001 + device as u64
}

fn make(body: &mut Body, manager: usize) -> Result<usize, Errno> {
    let index = body.ids.iter().position(|id| id.stage == Stage::Free).ok_or(Errno::ENOMEM)?;
    let nowhere = Place { ip: [0; 16], port: 0 };
    if let Some(id) = body.ids.get_mut(index) {
        *id = Id {
            stage: Stage::New,
            manager: manager as u16,
            peer: 0,
            device: 0,
            device_port: 0,
            space: abi::PS_TCP,
            uid: 0,
            local: nowhere,
            remote: nowhere,
            qp: 0,
            peer_qp: 0,
        };
    }
    Ok(index)
}

/// The place of an id, which must be this manager's.
fn own(body: &Body, manager: usize, number: u32) -> Result<usize, Errno> {
    let index = (number as usize).wrapping_sub(1);
    let is_its = |id: &Id| id.stage != Stage::Free && usize::from(id.manager) == manager;
    if body.ids.get(index).is_some_and(is_its) { Ok(index) } else { Err(Errno(libc::ENOENT)) }
}

fn advance(body: &mut Body, index: usize, from: &[Stage], to: Stage) -> Result<(), Errno> {
    match body.ids.get_mut(index) {
        Some(id) if from.contains(&id.stage) => {
            id.stage = to;
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

fn place(storage: &abi::Storage, len: u16) -> Result<Place, Errno> {
    let bytes = storage.0.get(..usize::from(len)).ok_or(Errno::EINVAL)?;
    let word = |at: usize| bytes.get(at..)?.first_chunk::<2>().copied();
    let (family, port) = word(0).zip(word(2)).ok_or(Errno::EINVAL)?;
    let port = u16::from_be_bytes(port);
    let mut ip = [0; 16];
    match i32::from(u16::from_ne_bytes(family)) {
        libc::AF_INET => {
            let [.., a, b, c, d] = &mut ip;
            let from = bytes.get(4..).and_then(<[u8]>::first_chunk::<4>).ok_or(Errno::EINVAL)?;
            [*a, *b, *c, *d] = *from;
            [ip[10], ip[11]] = [0xff; 2];
        }
        libc::AF_INET6 => {
            ip = *bytes.get(8..).and_then(<[u8]>::first_chunk::<16>).ok_or(Errno::EINVAL)?;
            // As the kernel's: the interface says on which link the address is.
            let is_link_local = ip[0] == 0xfe && ip[1] & 0xc0 == 0x80;
            if is_link_local && bytes.get(24..28).is_none_or(|scope| scope == [0; 4]) {
                return Err(Errno::EINVAL);
            }
        }
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    }
    Ok(Place { ip, port })
}

/// As the kernel writes it; zeros: nowhere.
fn storage_of(place: &Place) -> abi::Storage {
    let mut bytes = [0; 128];
    if place.ip == [0; 16] {
        return abi::Storage(bytes);
    }
    let (family, ip, at) = match place.ip {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => (libc::AF_INET, &place.ip[12..], 4),
        _ => (libc::AF_INET6, &place.ip[..], 8),
    };
    let words = [(0, &(family as u16).to_ne_bytes()[..]), (2, &place.port.to_be_bytes()), (at, ip)];
    for (at, from) in words {
        bytes.iter_mut().skip(at).zip(from).for_each(|(to, from)| *to = *from);
    }
    abi::Storage(bytes)
}

/// The device that has an address, and which of its ports. A network without devices has one for all
/// of them.
fn device_at(body: &Body, ip: [u8; 16]) -> Option<(u8, u8)> {
    if body.devices.iter().all(|device| device.ip == [0; 16]) {
        return Some((0, 1));
    }
    let index = body.devices.iter().position(|device| device.is_present && device.ip == ip)?;
    let port = body.devices.get(index)?;
    Some((port.of.checked_sub(1).unwrap_or(index as u8), port.behind + 1))
}

/// Whether a queue pair of this process is on the port of an id: its messages would go elsewhere.
fn is_on_port(body: &Body, index: usize, number: u32) -> bool {
    let port = body.ids.get(index).map_or(0, |id| id.device_port);
    body.qps.iter().any(|qp| qp.pid == own_pid() && qp.number == number && qp.port == port)
}

fn bind(body: &mut Body, index: usize, mut at: Place) -> Result<(), Errno> {
    if body.ids.get(index).is_none_or(|id| id.stage != Stage::New) {
        return Err(Errno::EINVAL);
    }
    let (device, port) = device_at(body, at.ip).ok_or(Errno(libc::ENODEV))?;
    let space = body.ids.get(index).map_or(abi::PS_TCP, |id| id.space);
    let is_used = |body: &Body, at: Place| {
        let has_it = |id: &Id| id.space == space && id.local == at && id.peer == 0;
        body.ids.iter().any(|id| id.stage != Stage::Free && has_it(id))
    };
    if at.port == 0 {
        loop {
            body.next_port = body.next_port.max(FIRST_PORT).wrapping_add(1);
            at.port = body.next_port.max(FIRST_PORT);
            if !is_used(body, at) {
                break;
            }
        }
    } else if is_used(body, at) {
        return Err(Errno(libc::EADDRINUSE));
    }
    if let Some(id) = body.ids.get_mut(index) {
        (id.local, id.stage) = (at, Stage::Bound);
        (id.device, id.device_port) = (device + 1, port);
    }
    Ok(())
}

fn connect(body: &mut Body, index: usize, param: &abi::ConnParam) -> Result<(), Errno> {
    if usize::from(param.private_data_len) > REQUEST {
        return Err(Errno::EINVAL);
    }
    if !is_on_port(body, index, param.qp_num) {
        return Err(Errno::EINVAL);
    }
    advance(body, index, &[Stage::RouteKnown], Stage::Asking)?;
    let asking = body.ids.get_mut(index).ok_or(Errno::EINVAL)?;
    asking.qp = param.qp_num;
    let (from, to) = (asking.local, asking.remote);
    let listener = body.ids.iter().position(|id| id.stage == Stage::Listening && id.local == to);
    let Some(listener) = listener else {
        tell(body, index, abi::EVENT_REJECTED, abi::REJECT_INVALID_SERVICE, None);
        return Ok(());
    };
    if !is_carried(body, index, listener) {
        return Ok(());
    }
    let (manager, uid, device, port) = body
        .ids
        .get(listener)
        .map_or((0, 0, 0, 0), |id| (id.manager, id.uid, id.device, id.device_port));
    let asked = make(body, usize::from(manager))?;
    if let Some(id) = body.ids.get_mut(asked) {
        (id.stage, id.peer) = (Stage::Asked, index as u16 + 1);
        (id.device, id.device_port) = (device, port);
        (id.local, id.remote, id.peer_qp) = (to, from, param.qp_num);
    }
    if let Some(id) = body.ids.get_mut(index) {
        id.peer = asked as u16 + 1;
    }
    let mut event = abi::EventResp::NONE;
    (event.uid, event.id, event.event) = (uid, asked as u32 + 1, abi::EVENT_CONNECT_REQUEST);
    event.param = said(param, REQUEST);
    if !queue(body, usize::from(manager), event) {
        // The other end does not hear of it: as a request that was dropped on the way.
        unlink(body, asked);
        free(body, asked);
    }
    Ok(())
}

fn accept(body: &mut Body, index: usize, uid: u64, param: &abi::ConnParam) -> Result<(), Errno> {
    if usize::from(param.private_data_len) > REPLY {
        return Err(Errno::EINVAL);
    }
    if !is_on_port(body, index, param.qp_num) {
        return Err(Errno::EINVAL);
    }
    advance(body, index, &[Stage::Asked], Stage::Accepted)?;
    let peer = peer_of(body, index);
    if let Some(id) = body.ids.get_mut(index) {
        (id.uid, id.qp) = (uid, param.qp_num);
    }
    // The end that asked has perhaps given up: then it does not confirm.
    if let Some(peer) = peer
        && is_carried(body, index, peer)
        && advance(body, peer, &[Stage::Asking], Stage::Answered).is_ok()
    {
        if let Some(id) = body.ids.get_mut(peer) {
            id.peer_qp = param.qp_num;
        }
        tell(body, peer, abi::EVENT_CONNECT_RESPONSE, 0, Some(said(param, REPLY)));
    }
    Ok(())
}

fn confirm(body: &mut Body, index: usize) -> Result<(), Errno> {
    body.step(Step::Confirm)?;
    advance(body, index, &[Stage::Answered], Stage::Connected)?;
    if let Some(peer) = peer_of(body, index)
        && is_carried(body, index, peer)
        && advance(body, peer, &[Stage::Accepted], Stage::Connected).is_ok()
    {
        tell(body, peer, abi::EVENT_ESTABLISHED, 0, None);
    }
    Ok(())
}

/// The one that asked hears of a refusal.
fn refuse(body: &mut Body, index: usize, data: &[u8]) {
    let Some(peer) = peer_of(body, index) else { return };
    let stages = [Stage::Asking, Stage::Asked, Stage::Answered, Stage::Accepted];
    if is_carried(body, index, peer) && advance(body, peer, &stages, Stage::Ended).is_ok() {
        let mut param = abi::ConnParam::NONE;
        param.private_data.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
        param.private_data_len = REJECT as u8;
        tell(body, peer, abi::EVENT_REJECTED, abi::REJECT_CONSUMER, Some(param));
    }
}

fn say_goodbye(body: &mut Body, index: usize) {
    let Some(peer) = peer_of(body, index) else { return };
    let stages = [Stage::Connected, Stage::Answered, Stage::Accepted];
    if is_carried(body, index, peer) && advance(body, peer, &stages, Stage::Ended).is_ok() {
        tell(body, peer, abi::EVENT_DISCONNECTED, 0, None);
    }
}

/// Ends an id: its peer waits no more, its own events are gone.
fn destroy(body: &mut Body, index: usize) {
    let Some((stage, manager)) = body.ids.get(index).map(|id| (id.stage, id.manager)) else {
        return;
    };
    match stage {
        Stage::Connected | Stage::Answered => say_goodbye(body, index),
        Stage::Asking | Stage::Asked | Stage::Accepted => refuse(body, index, &[]),
        _ => {}
    }
    unlink(body, index);
    free(body, index);
    if let Some(manager) = body.managers.get_mut(usize::from(manager)) {
        let before = manager.events.len();
        // A request that was not taken goes with its listener's event, not with this.
        manager.events.retain(|event| event.id != index as u32 + 1);
        for _ in manager.events.len()..before {
            local::take_ring(manager.fd);
        }
    }
    // Requests to a listener that were not taken are refused.
    if stage == Stage::Listening {
        let at = body.ids.get(index).map(|id| id.local);
        for other in 0..body.ids.len() {
            let is_its = |id: &Id| id.stage == Stage::Asked && id.uid == 0 && Some(id.local) == at;
            if body.ids.get(other).is_some_and(is_its) && is_unreported(body, other) {
                destroy(body, other);
            }
        }
    }
}

fn is_unreported(body: &mut Body, index: usize) -> bool {
    let Some(manager) = body.ids.get(index).map(|id| usize::from(id.manager)) else {
        return false;
    };
    let mut is_there = false;
    if let Some(manager) = body.managers.get_mut(manager) {
        manager.events.retain(|event| {
            is_there |= event.id == index as u32 + 1;
            true
        });
    }
    is_there
}

/// Whether a message from one id to another arrives.
fn is_carried(body: &mut Body, from: usize, to: usize) -> bool {
    if let Some(device) = device_of(body, from)
        && device.is_down
    {
        device.is_deaf = true;
        return false;
    }
    device_of(body, to).is_none_or(|device| !device.is_down && !device.is_deaf)
}

fn device_of(body: &mut Body, index: usize) -> Option<&mut Device> {
    let at = usize::from(body.ids.get(index)?.device).checked_sub(1)?;
    body.devices.get_mut(at)
}

fn peer_of(body: &Body, index: usize) -> Option<usize> {
    body.ids.get(index)?.peer.checked_sub(1).map(usize::from)
}

fn unlink(body: &mut Body, index: usize) {
    if let Some(peer) = peer_of(body, index)
        && let Some(id) = body.ids.get_mut(peer)
    {
        id.peer = 0;
    }
}

fn free(body: &mut Body, index: usize) {
    if let Some(id) = body.ids.get_mut(index) {
        (id.stage, id.peer) = (Stage::Free, 0);
    }
}

/// The setting of [`say`]: value, offset, whether it was called.
static SAYS: AtomicU32 = AtomicU32::new(0);

/// From here on this process asks and answers with this byte at this offset.
pub(crate) fn say(offset: u8, value: u8) {
    SAYS.store(u32::from_le_bytes([value, offset, 1, 0]), Ordering::Relaxed);
}

/// An end's private data, as it arrives: in a field of fixed length, with zeros behind it.
fn said(param: &abi::ConnParam, room: usize) -> abi::ConnParam {
    let mut said = *param;
    let len = usize::from(param.private_data_len);
    said.private_data.iter_mut().skip(len).for_each(|byte| *byte = 0);
    let [value, offset, is_set, _] = SAYS.load(Ordering::Relaxed).to_le_bytes();
    if is_set != 0
        && let Some(byte) = said.private_data.get_mut(usize::from(offset))
    {
        *byte = value;
    }
    said.private_data_len = room.min(PRIVATE_DATA_ROOM - 1) as u8;
    said
}

/// Queues an event about an id. Those of ids without a `uid` are dropped, as the kernel does.
pub(crate) fn tell(
    body: &mut Body,
    index: usize,
    kind: u32,
    status: u32,
    param: Option<abi::ConnParam>,
) {
    let Some(id) = body.ids.get(index) else { return };
    let (manager, peer_qp) = (usize::from(id.manager), id.peer_qp);
    let mut event = abi::EventResp::NONE;
    (event.uid, event.id, event.event, event.status) = (id.uid, index as u32 + 1, kind, status);
    event.param = param.unwrap_or(abi::ConnParam::NONE);
    event.param.qp_num = peer_qp;
    if event.uid != 0 {
        queue(body, manager, event);
    }
}

/// False: it was lost.
fn queue(body: &mut Body, manager: usize, mut event: abi::EventResp) -> bool {
    if body.event_fault(Step::EventLost).is_some() {
        return false;
    }
    let is_double = body.event_fault(Step::EventTwice).is_some();
    // A request stays one: its id would have no owner.
    if event.event != abi::EVENT_CONNECT_REQUEST
        && let Some(kind) = body.event_fault(Step::EventChanged)
    {
        event.event = kind as u32;
    }
    let is_double = is_double && event.event != abi::EVENT_CONNECT_REQUEST;
    let Some(Manager { pid, fd, doorbell, events }) = body.managers.get_mut(manager) else {
        return false;
    };
    for _ in 0..=u32::from(is_double) {
        if *pid == 0 || !events.push(event) {
            return false;
        }
        local::ring(&body.folder, *doorbell, *pid, *fd);
    }
    true
}

/// A device has gone: all ids on it hear of it.
pub(crate) fn device_gone(body: &mut Body, device: usize) {
    for index in 0..body.ids.len() {
        let is_its = |id: &Id| id.stage != Stage::Free && usize::from(id.device) == device + 1;
        if body.ids.get(index).is_some_and(is_its) {
            tell(body, index, abi::EVENT_DEVICE_REMOVAL, 0, None);
        }
    }
}

fn attributes(body: &Body, index: usize, state: i32) -> Result<abi::QpAttr, Errno> {
    const DESTINATION: i32 = 1 << 20;
    let id = body.ids.get(index).ok_or(Errno::EINVAL)?;
    if id.device == 0 {
        return Err(Errno::EINVAL);
    }
    let is_met =
        matches!(id.stage, Stage::Asked | Stage::Accepted | Stage::Answered | Stage::Connected);
    let mut reply = abi::QpAttr::default();
    (reply.qp_state, reply.port_num, reply.path_mtu) = (state as u32, id.device_port, 3);
    reply.ah_attr.port_num = id.device_port;
    reply.dest_qp_num = id.peer_qp;
    (reply.max_rd_atomic, reply.max_dest_rd_atomic) = (4, 4);
    reply.mask = match state {
        verbs::QPS_INIT => (verbs::QP_STATE | PORT) as u32,
        verbs::QPS_RTR if is_met => (verbs::QP_STATE | DESTINATION) as u32,
        verbs::QPS_RTS if is_met => verbs::QP_STATE as u32,
        _ => return Err(Errno::EINVAL),
    };
    Ok(reply)
}
