//! Asynchronous events of the device.

use sdp_sys::time::monotonic_ns;

use crate::{device::Trouble, fabric::VerbsFabric};

impl VerbsFabric {
    /// Whether nothing may be said to peers now: the port is down.
    pub(super) fn must_be_quiet(&mut self) -> bool {
        self.hear();
        self.slow().goodbyes.must_wait()
    }

    /// The same, where there is a sign that the port is up.
    pub(super) fn must_be_quiet_still(&mut self) -> bool {
        self.hear();
        if self.slow().goodbyes.is_overdue(monotonic_ns()) {
            self.port_is(true);
        }
        self.slow().goodbyes.must_wait()
    }

    fn port_is(&mut self, up: bool) {
        self.slow().goodbyes.port_is_down((!up).then(monotonic_ns));
        // What has waited is said by a step: the caller may hold locks.
        self.core.wants_step();
    }

    /// Takes the device's asynchronous events; whether there were any.
    pub(super) fn hear(&mut self) -> bool {
        let mut had_some = false;
        while let Some(trouble) = self.context.event() {
            had_some = true;
            match trouble {
                Trouble::Port(number, is_up) if number == self.port => self.port_is(is_up),
                Trouble::None | Trouble::Port(..) => {}
                Trouble::QueuePair(number) => self.core.fail_one(number),
                Trouble::Device => self.lose(),
            }
        }
        had_some
    }
}
