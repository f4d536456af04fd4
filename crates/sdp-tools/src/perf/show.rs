//! Results as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::between::{Ends, PerByte};
use super::stats::Spread;
use super::talk::Counted;
use super::{Outcome, Side};

/// Three significant digits.
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn spread(s: &Spread) -> String {
    format!("{} [{} - {}]", figure(s.median), figure(s.min), figure(s.max))
}

/// Share above which other processes make figures doubtful.
const DOUBTFUL_LOAD: f64 = 0.06;

/// One test: both transports, ratio, lane.
pub fn one(outcome: &Outcome) -> String {
    let mut text = String::new();
    let o = outcome;
    let mut line = |s: String| {
        let _ = writeln!(text, "{s}");
    };
    line(o.test.title());
    let against = o.test.against.word();
    line(format!("{:<6}{:>28}{:>28}{:>28}", "", o.unit, "p99 us", format!("CPU {}", o.cpu_unit)));
    for (name, side) in [(against, &o.tcp), ("SDP", &o.sdp)] {
        let Side { value, p99_us, cpu, .. } = side;
        let p99 = p99_us.as_ref().map_or_else(|| "-".to_string(), spread);
        line(format!("{name:<6}{:>28}{p99:>28}{:>28}", spread(value), spread(cpu)));
    }
    if let (Some(theirs), Some(ours)) = (&o.tcp.p999_us, &o.sdp.p999_us) {
        line(format!("p99.9 us: {against} {}, SDP {}", spread(theirs), spread(ours)));
    }
    line(format!(
        "SDP is {} times as fast (95 % of {} pairs' medians: {} - {}), CPU {} of {against}'s",
        figure(o.ratio.median),
        o.ratio.pairs,
        figure(o.ratio.low),
        figure(o.ratio.high),
        figure(o.cpu_ratio)
    ));
    if let Some(ends) = &o.ends {
        between(ends).into_iter().for_each(&mut line);
    }
    line(lane(o));
    if o.foreign_cpu > DOUBTFUL_LOAD {
        line(format!(
            "note: other processes used {:.0} % of the CPUs meanwhile",
            o.foreign_cpu * 100.0
        ));
    }
    text
}

/// The facts about two machines.
fn between(ends: &Ends) -> Vec<String> {
    let cpu =
        |name, of: &PerByte| format!("{name} {} here, {} there", figure(of.here), figure(of.there));
    let each = &ends.cpu_ns_per_byte;
    let (tcp, sdp) = (cpu("TCP", &each.tcp), cpu("SDP", &each.sdp));
    let (here, there) = (&ends.here, &ends.there);
    let fabric = match ends.fabric {
        Some("verbs") => {
            format!("by RDMA: {} connections here, {} there", here.verbs, there.verbs)
        }
        Some(_) => "by shared memory: the peer is this host".to_string(),
        None if here.sdp_bytes != 0 || there.sdp_bytes != 0 => format!(
            "the two ends disagree about SDP, so what the rows compare is not known: {}; {}",
            by_sdp("here", here),
            by_sdp("there", there)
        ),
        None => format!(
            "no byte went by RDMA: both rows are TCP (here: {}; there: {})",
            reasons(&here.reasons),
            reasons(&there.reasons)
        ),
    };
    vec![format!("with {} (sdp {}), CPU ns/B: {tcp}; {sdp}", ends.peer, ends.peer_version), fabric]
}

fn by_sdp(end: &str, counted: &Counted) -> String {
    let Counted { sdp_bytes, verbs, shm, .. } = counted;
    format!("{end} {sdp_bytes} bytes, {verbs} connections by RDMA, {shm} by shared memory")
}

fn reasons(words: &BTreeMap<String, i64>) -> String {
    let words: Vec<_> = words.iter().map(|(word, n)| format!("{word} {n}")).collect();
    if words.is_empty() { "no reason counted".to_string() } else { words.join(", ") }
}

/// The lane of the bytes of the SDP pair.
pub fn lane(outcome: &Outcome) -> String {
    let share = match outcome.sdp_share {
        Some(share) => format!("{:.2} % of the SDP pair's bytes went over SDP", share * 100.0),
        None => "the SDP pair handed in no counters: nothing proves that it used SDP".to_string(),
    };
    if outcome.reasons.is_empty() {
        return share;
    }
    format!("{share} (TCP: {})", reasons(&outcome.reasons))
}

/// Column widths of [`row`].
const HEAD: [(&str, usize); 7] =
    [("TCP", 8), ("SDP", 8), ("unit", 7), ("faster", 8), ("95 %", 15), ("CPU", 7), ("on SDP", 9)];
const NAME_WIDTH: usize = 56;

/// Title line of a table of tests.
pub fn head() -> String {
    let columns: String = HEAD.iter().map(|(name, width)| format!("{name:>width$}")).collect();
    format!("{:<NAME_WIDTH$}{columns}", "test")
}

/// One test as a line of a table.
pub fn row(o: &Outcome) -> String {
    let share = o.sdp_share.map_or_else(|| "?".to_string(), |s| format!("{:.1} %", s * 100.0));
    let cells = [
        figure(o.tcp.value.median),
        figure(o.sdp.value.median),
        o.unit.to_string(),
        format!("{}x", figure(o.ratio.median)),
        format!("[{} - {}]", figure(o.ratio.low), figure(o.ratio.high)),
        format!("{}x", figure(o.cpu_ratio)),
        share,
    ];
    let columns: String =
        cells.iter().zip(HEAD).map(|(cell, (_, width))| format!("{cell:>width$}")).collect();
    format!("{:<NAME_WIDTH$}{columns}", o.test.title())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::talk::Each;

    fn said(here: Counted, there: Counted) -> String {
        let one = PerByte { here: 1.0, there: 1.0 };
        let ends = Ends {
            peer: "10.9.0.1".into(),
            peer_version: "0.1.0".into(),
            fabric: None,
            cpu_ns_per_byte: Each { tcp: one, sdp: one },
            here,
            there,
        };
        between(&ends).concat()
    }

    #[test]
    fn ends_that_disagree_are_not_called_tcp() {
        let verbs = Counted { sdp_bytes: 7, verbs: 1, ..Counted::default() };
        let text = said(verbs.clone(), Counted::default());
        assert!(text.contains("disagree") && text.contains("here 7 bytes, 1 connections by RDMA"));
        assert!(!text.contains("both rows are TCP"), "{text}");
        assert!(said(Counted::default(), verbs).contains("there 7 bytes"));
        assert!(said(Counted::default(), Counted::default()).contains("both rows are TCP"));
    }

    #[test]
    fn figures_have_three_digits() {
        let shown: Vec<_> = [1234.0, 123.4, 12.34, 1.234, 0.1234].into_iter().map(figure).collect();
        assert_eq!(shown, ["1234", "123", "12.3", "1.23", "0.123"]);
    }
}
