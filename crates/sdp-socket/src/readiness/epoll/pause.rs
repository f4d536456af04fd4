//! A look at the doorbell page before a wait sleeps.

use sdp_stats::Counter;
use sdp_sys::time::monotonic_ns;

use crate::{
    conn::{self, Conn},
    datapath::wait,
    hosts,
    wake::{
        doorbell,
        interest::mirror::{NONE, with},
        spin,
        strangers::Doorbells,
    },
};

/// Kernel events are reported before ring events whenever so much time has passed.
pub(super) const MERGE_AFTER_NS: u64 = 50_000;

/// A look at the doorbell page before sleeping.
pub(super) struct SpinPlan {
    doorbell: Doorbells,
    /// CPU of one of the peers, in place of all of them.
    peer_cpu: u32,
    /// 0: not at all, the kernel is asked only.
    pub(super) budget: u64,
    /// The kernel was not asked for so long, or for something so new, that it must be before the look.
    pub(super) asks_first: bool,
}

/// How long a spin may last. `None`: sleep at once.
pub(super) fn plan_spin(set: u32) -> Option<SpinPlan> {
    let doorbell = doorbell::pages()?;
    with(|m| {
        let s = m.set(set)?;
        if core::mem::take(&mut s.wants_writable) {
            // No peer is waited for, and there is nothing to learn of one.
            return Some(SpinPlan { doorbell, peer_cpu: 0, budget: 0, asks_first: true });
        }
        let peer = spin::reached_since();
        // A set that rests may be one of many that are waited for in turn: then all of them know better.
        let budget = match (m.set(set).map_or(0, |s| s.spin.next(peer)), peer) {
            (0, spin::Peer::Awake) => m.spin().next(peer),
            (budget, _) => budget,
        };
        if budget == 0 {
            return None;
        }
        let now = monotonic_ns();
        let s = m.set(set)?;
        let asks_first =
            budget > MERGE_AFTER_NS || now.saturating_sub(s.merged_ns) > MERGE_AFTER_NS;
        if asks_first {
            s.merged_ns = now;
        }
        let anchor = m.set(set).map_or(NONE, |s| s.anchor);
        let peer_cpu = m.reg(anchor).and_then(|reg| conn::get(reg.conn)).map_or(0, Conn::peer_cpu);
        Some(SpinPlan { doorbell, peer_cpu, budget, asks_first })
    })?
}

/// Looks at the doorbell page for a moment. True: look again.
pub(super) fn spin_on_doorbell(set: u32, plan: &SpinPlan) -> bool {
    let is_rung = || {
        hosts::drain();
        plan.doorbell.any()
    };
    let Some(success) = spin::shared_pause(plan.peer_cpu, plan.budget, is_rung) else {
        return false;
    };
    if success {
        wait::count_shared(Counter::Spun);
    }
    with(|m| {
        m.spin().spun(success);
        m.set(set).map(|s| s.spin.spun(success))
    });
    success
}
