//! Two fabrics of one process on the network of the stand-in.

#![allow(dead_code)]

#[path = "../../../sdp-fabric-verbs/tests/common/device.rs"]
pub(crate) mod device;
pub(crate) mod ends;
#[path = "../../../sdp-fabric-verbs/tests/common/handle.rs"]
mod handle;
pub(crate) mod rings;

pub(crate) use device::Device;
pub(crate) use handle::{CreditedTx, Handle};

use std::sync::atomic::{AtomicU16, Ordering};

use sdp_fabric_verbs::{Address, fabric::Options};
use sdp_fake_verbs::Network;

pub(crate) const BACKLOG: usize = 5;
pub(crate) const PROMISE: u32 = 16;

/// Whether the devices have no shared receive queues: in the tests `own_…`.
pub(crate) const HAS_OWN_RECEIVES: bool =
    matches!(module_path!().as_bytes(), [b'o', b'w', b'n', b'_', ..]);

/// So many tries of what the kind of receive queues has little to do with; fewer once more.
pub(crate) const fn tries(count: u64) -> u64 {
    if HAS_OWN_RECEIVES { count / 4 } else { count }
}

pub(crate) fn network() -> Network {
    let network = Network::private().expect("memory for a network");
    network.set_shared_receives(0, !HAS_OWN_RECEIVES);
    network
}

pub(crate) fn address(port: u16) -> Address {
    Address::v4([10, 9, 0, 1], port)
}

/// A port that no other test has.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn options() -> Options {
    // The limit of the process that runs the tests does not matter.
    Options { promise: PROMISE, backlog: BACKLOG, memory: Some(8 << 20), ..Options::default() }
}

pub(crate) fn free_service() -> Address {
    address(free_port())
}

pub(crate) fn open() -> Handle {
    network();
    Handle::open(&address(0), &options()).expect("a fabric")
}

/// The effect of a call is complete when it returns.
pub(crate) fn advance(device: &Device) -> bool {
    device.step()
}

/// Steps within which a connection is there.
pub(crate) struct Timeout(usize);

impl Timeout {
    pub(crate) const fn begin() -> Self {
        Self(100)
    }

    pub(crate) fn wait(&mut self) {
        self.0 = self.0.checked_sub(1).expect("no connection");
    }
}
