//! On which lane a registration's bytes come, as far as is known. It decides the order of events.

use super::mirror::Mirror;
use crate::{
    conn::{Conn, Half},
    wake::arming,
};

impl Mirror {
    /// Finds out whether the bytes of a registration's connection come by the kernel.
    pub(crate) fn learn_lane(&mut self, at: u32, conn: &Conn) {
        if conn.has_lanes() && conn.acquire_live(Half::Receive) {
            self.set_kernels(at, !arming::stays_on_lane(conn));
            conn.release(Half::Receive);
        }
    }

    /// Whether the bytes of a registration's connection come by the kernel.
    #[inline]
    pub(crate) fn set_kernels(&mut self, at: u32, is_kernels: bool) {
        let Some(reg) = self.reg(at).filter(|reg| reg.is_kernels != is_kernels) else { return };
        reg.is_kernels = is_kernels;
        let set = reg.set;
        if let Some(set) = self.set(set) {
            set.by_kernel =
                if is_kernels { set.by_kernel + 1 } else { set.by_kernel.saturating_sub(1) };
        }
    }
}
