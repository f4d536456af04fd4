//! A test's handle on the network.

use core::{
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use sdp_fabric_verbs::{abi::verbs as abi, stand_in};
use sdp_sys::{Errno, OwnedFd, sys};

use crate::{
    local::Path,
    manager,
    state::{Body, Kind, Qp, SRQS, Stage, State, Trouble},
    step::Step,
    verbs, work,
};

/// The network of this process.
static STATE: AtomicPtr<State> = AtomicPtr::new(null_mut());

pub(crate) fn state() -> Option<&'static State> {
    // SAFETY: a mapping of that size that is never given back, of zeros at first, which is a valid state.
    unsafe { STATE.load(Ordering::Acquire).as_ref() }
}

/// The fate of messages on the road.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Road {
    /// They arrive, and their sends complete.
    Open,
    /// They are lost, and no end is told.
    Cut,
    /// They arrive, and their sends do not complete.
    Mute,
}

/// Objects that exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Live {
    pub managers: usize,
    pub ids: usize,
    pub contexts: usize,
    pub pds: usize,
    pub channels: usize,
    pub cqs: usize,
    pub srqs: usize,
    pub qps: usize,
    pub regions: usize,
}

/// The network that this process's provider and connection manager are on.
#[derive(Debug, Clone, Copy)]
pub struct Network(&'static State);

impl Network {
    /// Of this process and its children alone; one, however often this is called. `sdp-fabric-verbs` uses it from here on.
    ///
    /// # Errors
    /// No memory.
    pub fn private() -> Result<Self, Errno> {
        Self::map(None)
    }

    /// The one in a file, which is made as long as it has to be. Processes of other users are on it,
    /// too, if they may write the file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn shared(path: &core::ffi::CStr) -> Result<Self, Errno> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: a path that ends with NUL.
        let file = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }?;
        let file = OwnedFd::new(file as i32);
        // SAFETY: no pointers.
        unsafe { sys!(libc::SYS_ftruncate, file.raw(), size_of::<State>()) }?;
        let folder = path.to_str().map_err(|_| Errno::EINVAL).and_then(Path::of_doorbells)?;
        let network = Self::map(Some(&file))?;
        network.0.with(|body| body.folder = folder);
        Ok(network)
    }

    fn map(file: Option<&OwnedFd>) -> Result<Self, Errno> {
        // Before another thread can see the network.
        stand_in::install(&STAND_IN);
        if let Some(state) = state() {
            return Ok(Self(state));
        }
        let (number, kind) = file.map_or((-1, libc::MAP_ANONYMOUS), |file| (file.raw(), 0));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | kind;
        let len = size_of::<State>();
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { sys!(libc::SYS_mmap, 0, len, access, flags, number, 0) }?;
        let fresh = at as *mut State;
        let made = STATE.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        if made.is_err() {
            // SAFETY: the mapping made just now, which no other code has seen.
            let _ = unsafe { sys!(libc::SYS_munmap, fresh, len) };
        }
        state().map(Self).ok_or(Errno::ENOMEM)
    }

    /// Adds a device with this address of IPv6, or IPv4 as IPv6 has it; its number. Without any, each
    /// address has the one with the number 0.
    pub fn add_device(self, ip: [u8; 16]) -> Option<usize> {
        self.0.with(|body| {
            let index = body.devices.iter().position(|device| !device.is_present)?;
            let device = body.devices.get_mut(index)?;
            (device.ip, device.is_present, device.of, device.behind) = (ip, true, 0, 0);
            Some(index)
        })
    }

    /// Adds a port with this address to a device; its number.
    pub fn add_port(self, device: usize, ip: [u8; 16]) -> Option<u8> {
        self.0.with(|body| {
            let of = device as u8 + 1;
            let others = body.devices.iter().filter(|port| port.is_present && port.of == of);
            let behind = others.count() as u8 + 1;
            let port = body.devices.iter_mut().find(|device| !device.is_present)?;
            (port.ip, port.is_present, port.of, port.behind) = (ip, true, of, behind);
            Some(behind + 1)
        })
    }

    /// Tells device and port of each queue pair that can send.
    pub fn queue_pairs(self, mut tell: impl FnMut(u8, u8)) {
        self.0.with(|body| {
            let up = body.qps.iter().filter(|qp| qp.pid != 0 && qp.state == abi::QPS_RTS);
            for qp in up {
                let context = body.contexts.get(usize::from(qp.context));
                tell(context.map_or(0, |context| context.device), qp.port);
            }
        });
    }

    /// Whether a device is iWARP.
    pub fn set_iwarp(self, device: usize, is_iwarp: bool) {
        self.0.with(|body| {
            if let Some(device) = body.devices.get_mut(device) {
                device.is_iwarp = is_iwarp;
            }
        });
    }

    /// Whether a device has shared receive queues, as it has from the beginning.
    pub fn set_shared_receives(self, device: usize, has_them: bool) {
        self.0.with(|body| {
            if let Some(device) = body.devices.get_mut(device) {
                device.has_own_receives = !has_them;
            }
        });
    }

    /// The port of a device goes down, or is up. A message of the connection manager that a process
    /// sends meanwhile costs the device all that are sent to it from then on, as soft-RoCE does.
    pub fn set_port(self, device: usize, is_up: bool) {
        self.0.with(|body| {
            let Some(port) = body.devices.get_mut(device) else { return };
            port.is_down = !is_up;
            let (of, number) =
                (port.of.checked_sub(1).map_or(device, usize::from), port.behind + 1);
            let kind = if is_up { abi::ASYNC_PORT_ACTIVE } else { abi::ASYNC_PORT_ERR };
            for index in 0..body.contexts.len() {
                let is_its = body
                    .contexts
                    .get(index)
                    .is_some_and(|context| context.pid != 0 && usize::from(context.device) == of);
                if is_its {
                    work::tell_trouble(body, index, Trouble { kind, qp: 0, port: number });
                }
            }
        });
    }

    /// Takes a device away, with all that was made on it.
    pub fn remove_device(self, device: usize) {
        self.take_away(device, true);
    }

    /// The same by a driver that tells the connection manager alone, and waits until no process has
    /// the device open.
    pub fn remove_device_quietly(self, device: usize) {
        self.take_away(device, false);
    }

    fn take_away(self, device: usize, is_reported: bool) {
        self.0.with(|body| {
            let of = device as u8 + 1;
            for (index, port) in body.devices.iter_mut().enumerate() {
                if index == device || port.of == of {
                    port.is_present = false;
                }
            }
            manager::device_gone(body, device);
            for index in 0..body.contexts.len() {
                let is_its = body.contexts.get(index).is_some_and(|context| {
                    context.pid != 0 && usize::from(context.device) == device
                });
                if is_its && is_reported {
                    work::fail_all(body, index);
                    let kind = abi::ASYNC_DEVICE_FATAL;
                    work::tell_trouble(body, index, Trouble { kind, qp: 0, port: 0 });
                }
            }
        });
    }

    /// The state of the road from here on.
    pub fn set_road(self, road: Road) {
        self.0.with(|body| body.road = road as u8);
    }

    /// The device gives up requests that were posted while the road was not open: retries are
    /// exceeded.
    pub fn expire(self) {
        self.0.with(|body| {
            for index in 0..body.qps.len() {
                let is_waiting =
                    body.qps.get(index).is_some_and(|qp| qp.pid != 0 && qp.pending.len() > 0);
                if is_waiting {
                    work::fail(body, index, abi::WC_RETRY_EXC_ERR);
                }
            }
        });
    }

    /// Puts queue pairs that are up into the error state, as a broken device does: those for which `is_it` holds of their
    /// number.
    pub fn break_pairs(self, is_it: impl Fn(u32) -> bool) {
        self.0.with(|body| {
            for index in 0..body.qps.len() {
                let is_its = |qp: &Qp| qp.pid != 0 && qp.state == abi::QPS_RTS && is_it(qp.number);
                if body.qps.get(index).is_some_and(is_its) {
                    work::break_pair(body, index, abi::ASYNC_QP_FATAL);
                }
            }
        });
    }

    /// Calls of a step in this process, counted from 1 from here on, that fail: `count` of them from the `nth` on, with an error number (of a
    /// completion: its status). `nth` 0: none.
    pub fn fail(self, step: Step, nth: u32, count: u32, number: i32) {
        self.0.with(|body| {
            if let Some(fault) = body.fault(step) {
                fault.set(nth, count, number);
            }
        });
    }

    /// Calls of a step since [`Network::fail`] was called for it, or since the beginning.
    pub fn calls(self, step: Step) -> u32 {
        self.0.with(|body| body.fault(step).map_or(0, |fault| fault.calls))
    }

    /// The calls of all processes on the network since it was made: by step, with their results.
    pub fn totals(self, mut tell: impl FnMut(&str, u64)) {
        self.0.with(|body| {
            for (step, calls) in Step::ALL.iter().zip(body.totals.calls) {
                tell(step.name(), calls);
            }
            tell("signalled", body.totals.signalled);
            tell("doorbells", body.totals.doorbells);
            tell("inline", body.totals.inline);
            tell("completions", body.totals.completions);
            tell("wakeups", body.totals.wakeups);
        });
    }

    /// [`Network::fail`] for a process that has perhaps no network yet: no other thread may use the
    /// faults.
    pub(crate) fn fail_here(step: Step, nth: u32, count: u32, number: i32) {
        // SAFETY: a constructor: no other thread exists, and none of the network's functions is in
        // progress.
        unsafe { crate::state::set_fault(step, nth, count, number) };
    }

    /// Takes away the objects that dead processes have left.
    pub fn reap(self) {
        self.0.with(manager::reap);
    }

    /// Tells every id that is in use an event of this kind (`EVENT_*`), in any state.
    pub fn tell_all(self, kind: u32, status: u32) {
        self.0.with(|body| {
            for index in 0..body.ids.len() {
                if body.ids.get(index).is_some_and(|id| id.stage != Stage::Free) {
                    manager::tell(body, index, kind, status, None);
                }
            }
        });
    }

    /// The objects that exist.
    pub fn live(self) -> Live {
        self.0.with(|body: &mut Body| {
            let of = |kind| body.others.iter().filter(|o| o.pid != 0 && o.kind == kind).count();
            Live {
                managers: body.managers.iter().filter(|m| m.pid != 0).count(),
                ids: body.ids.iter().filter(|id| id.stage != Stage::Free).count(),
                contexts: body.contexts.iter().filter(|c| c.pid != 0).count(),
                pds: of(Kind::Pd),
                channels: of(Kind::Channel),
                cqs: body.cqs.iter().filter(|cq| cq.pid != 0).count(),
                srqs: body.receives.iter().take(SRQS).filter(|queue| queue.pid != 0).count(),
                qps: body.qps.iter().filter(|qp| qp.pid != 0).count(),
                regions: body.regions.iter().filter(|region| region.pid != 0).count(),
            }
        })
    }
}

static STAND_IN: stand_in::StandIn = stand_in::StandIn {
    library: verbs::LIBRARY,
    open: manager::open,
    command: manager::command,
    renumber: manager::renumber,
    close: manager::close,
};
