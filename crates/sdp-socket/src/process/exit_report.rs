//! The line about its connections that a process logs at its exit, if the tunable `report` asks for it.
//!
//! Used at an orderly exit, once. `auto` is for services: nothing is written while all is well. What is odd:
//! [`sdp_stats::Reason::is_odd`], and connections that strict rules refused.

use core::sync::atomic::{AtomicBool, Ordering};

use sdp_config::tunables::ExitReport;
use sdp_stats::{Page, Reason};

use crate::process::{log, page, settings};

/// It has been written: `exit` may come here by several hooks.
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// What [`Page::times`] counts, in its order.
const KINDS: [&[u8]; 3] = [b"; on TCP", b"; left SDP", b"; refused"];

/// Before an orderly exit. A borrower has no page of its own: its counts are in another's line.
pub(crate) fn exiting() {
    let wanted = settings::tunables().report();
    if wanted == ExitReport::Off || page::is_borrower() {
        return;
    }
    let Some(page) = page::current() else { return };
    let is_shown = |reason: Reason, kind: usize| {
        wanted == ExitReport::Always || reason.is_odd() || kind == KINDS.len() - 1
    };
    let is_any = |page: &Page| {
        let mut all = Reason::ALL.iter().flat_map(|reason| {
            let times = page.times(*reason).into_iter().enumerate();
            times.filter(|(kind, n)| *n != 0 && is_shown(*reason, *kind))
        });
        all.next().is_some()
    };
    let is_due = wanted == ExitReport::Always || is_any(page);
    if !is_due || IS_DONE.swap(true, Ordering::AcqRel) {
        return;
    }
    log::write_always(|line| {
        let (seen, sdp) = page.ends();
        line.text(b"REPORT: connections ").number(seen).text(b", on SDP ").number(sdp);
        for (kind, name) in KINDS.into_iter().enumerate() {
            let mut separator: &[u8] = b": ";
            for reason in Reason::ALL {
                let n = page.times(*reason).get(kind).copied().unwrap_or(0);
                if n != 0 && is_shown(*reason, kind) {
                    if separator == b": " {
                        line.text(name);
                    }
                    line.text(separator).text(reason.word().as_bytes()).text(b" ").number(n);
                    separator = b", ";
                }
            }
        }
    });
}
