//! The kernel's side of registrations with ONESHOT, which it disables when it reports them.

use libc::epoll_event;
use sdp_sys::kernel;

use crate::wake::interest::{
    ET, ONESHOT, OUT,
    mirror::{Mirror, Registration},
};

/// The kernel disables a ONESHOT registration when it reports it; one that we reported must be disabled
/// there too.
pub(super) fn disable_in_kernel(m: &mut Mirror, reg: &Registration) {
    modify(m, reg, reg.events & (ET | ONESHOT));
}

/// Enables a ONESHOT registration again whose event was not for the program.
pub(super) fn enable_in_kernel(m: &mut Mirror, reg: &Registration) {
    modify(m, reg, if reg.is_stripped { reg.events & !OUT } else { reg.events });
}

fn modify(m: &mut Mirror, reg: &Registration, events: u32) {
    let Some(epfd) = m.set(reg.set).map(|s| s.epfd) else { return };
    let interest = epoll_event { events, u64: reg.data };
    let _ = kernel::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, reg.fd, &interest);
}
