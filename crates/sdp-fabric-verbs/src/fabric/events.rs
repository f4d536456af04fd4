//! Asynchronous events of the device.

use crate::{device::Trouble, fabric::VerbsFabric};

impl VerbsFabric {
    /// Whether nothing may be said to peers now: the port is down.
    pub(super) fn must_be_quiet(&mut self) -> bool {
        self.hear();
        self.slow().goodbyes.must_wait()
    }

    /// Takes the device's asynchronous events; whether there were any.
    pub(super) fn hear(&mut self) -> bool {
        let mut had_some = false;
        while let Some(trouble) = self.context.event() {
            had_some = true;
            match trouble {
                Trouble::Port(number, is_up) if number == self.port => {
                    self.slow().goodbyes.port_is(is_up);
                }
                Trouble::None | Trouble::Port(..) => {}
                Trouble::QueuePair(number) => self.core.fail_one(number),
                Trouble::Device => self.lose(),
            }
        }
        had_some
    }
}
