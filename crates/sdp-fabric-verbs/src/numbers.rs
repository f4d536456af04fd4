//! The numbers of a fabric's descriptors, which another file may be about to get.
//!
//! Any thread may ask for them and change them, also while the fabric takes a step.

use crate::{cm::CmChannel, device, endpoint::Core, pool::Shared};

/// What keeps descriptors open.
#[derive(Debug, Clone)]
pub struct Numbers {
    core: Shared<Core>,
    context: device::Context,
    channel: device::CompChannel,
    manager: Option<CmChannel>,
}

impl Numbers {
    pub(crate) const fn new(
        core: Shared<Core>,
        context: device::Context,
        channel: device::CompChannel,
        manager: Option<CmChannel>,
    ) -> Self {
        Self { core, context, channel, manager }
    }

    /// Device, its events, completion channel, connection manager; −1 for what there is not.
    pub fn all(&self) -> [i32; 4] {
        let [file, events] = self.context.descriptors();
        let manager = self.manager.as_ref().map_or(-1, |manager| manager.descriptor());
        [file, events, self.channel.descriptor(), manager]
    }

    /// The one of them that is `from` is `to` from here on: another file is about to have that
    /// number. Threads that make steps, post or poll meanwhile may still use it. With −1 for `to`
    /// the device is lost. Whether there was one. Fast.
    pub fn renumber(&self, from: i32, to: i32) -> bool {
        if to < 0 && self.all().contains(&from) {
            self.core.break_down();
        }
        let is_files = self.context.renumber(from, to);
        let is_channels = self.channel.renumber(from, to);
        let is_managers = self.manager.as_ref().is_some_and(|manager| manager.renumber(from, to));
        is_files || is_channels || is_managers
    }
}
