//! `sdp perf report`: one page of HTML of what `sdp perf` measures on this machine.
//!
//! The page needs nothing but itself: its plots are inline SVG, its colours go by the reader's light or dark setting, and
//! every mark has its figure in words, so that it can be read without colours. Each plot is followed by its table.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;

use super::peer::Kind;
use super::show::figure;
use super::stats::Spread;
use super::{Against, Common, Outcome, Pin, Plan, measure, users};
use crate::{Failure, sys};

/// Options of `sdp perf report`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The folder for report.html and report.json; it is made if it is not there
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Measuring time of each test
    #[arg(long, default_value_t = 4.0)]
    pub seconds: f64,
    /// Rounds of each transport in each test
    #[arg(long, default_value_t = 9)]
    pub rounds: usize,
    /// Compare with TCP, or with Unix sockets
    #[arg(long, value_enum, default_value_t)]
    pub against: Against,
    /// Users of both processes
    #[command(flatten)]
    pub users: users::Options,
    /// Set a tunable for the SDP pairs; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// A plot: its heading, what it says, its tests with their labels.
struct Section {
    title: &'static str,
    text: &'static str,
    tests: Vec<(String, Outcome)>,
}

/// Sizes of messages of the plots by size.
const SIZES: [usize; 4] = [64, 1024, 16_384, 131_072];

/// A plot that is to be: its heading, what it says, its cases with their labels.
type Planned = (&'static str, &'static str, Vec<(String, Case)>);

/// What is measured.
fn cases() -> [Planned; 4] {
    let of = |kind, size| Case { kind, size, ..Case::default() };
    let bytes = |size: usize| match size {
        0..1024 => format!("{size} B"),
        _ => format!("{} KiB", size / 1024),
    };
    [
        (
            "Round trips",
            "One message there and one back, by its size. Shorter is better. p99 and p99.9: 99 of 100, and 999 of 1000, \
             took at most this.",
            SIZES.map(|size| (bytes(size), of(Kind::Latency, size))).into(),
        ),
        (
            "Round trips of 64 B, by who waits how",
            "Shorter is better.",
            vec![
                ("two CPUs".into(), of(Kind::Latency, 64)),
                ("one CPU".into(), Case { pin: Pin::One, ..of(Kind::Latency, 64) }),
                ("asleep (recv_poll=0)".into(), Case { is_asleep: true, ..of(Kind::Latency, 64) }),
                ("100 µs pauses".into(), Case { gap_us: 100, ..of(Kind::Latency, 64) }),
                (
                    "epoll, 100 connections".into(),
                    Case { connections: 100, ..of(Kind::Latency, 64) },
                ),
            ],
        ),
        (
            "Streams",
            "Bytes one way, by the size of a write. Longer is better. CPU is of both processes for each gigabyte.",
            SIZES.map(|size| (bytes(size), of(Kind::Stream, size))).into(),
        ),
        (
            "Short connections",
            "Connect, one byte each way, close: on TCP in both cases. Shorter is better.",
            vec![("connect".into(), of(Kind::Connect, 1))],
        ),
    ]
}

/// One test.
#[derive(Debug, Clone)]
struct Case {
    kind: Kind,
    size: usize,
    pin: Pin,
    gap_us: u64,
    connections: usize,
    is_asleep: bool,
}

impl Default for Case {
    fn default() -> Self {
        let (kind, pin) = (Kind::Latency, Pin::Two);
        Self { kind, size: 64, pin, gap_us: 0, connections: 1, is_asleep: false }
    }
}

impl Case {
    fn plan(&self, options: &Options) -> Result<Plan, Failure> {
        let mut set = options.set.clone();
        set.extend(self.is_asleep.then(|| "recv_poll=0".to_string()));
        let common = Common {
            size: Some(self.size),
            rounds: Some(options.rounds),
            connections: self.connections,
            epoll: self.connections > 1,
            gap_us: self.gap_us,
            concurrent: false,
            hogs: 0,
            without: None,
            pin: self.pin,
            seconds: options.seconds,
            paired: false,
            peer: None,
            against: options.against,
            users: options.users,
            set,
            json: false,
        };
        Plan::new(self.kind, &common)
    }
}

/// Runs everything, and writes the page.
///
/// # Errors
/// A test failed, or the folder cannot be written.
pub fn main(options: &Options) -> Result<(), Failure> {
    std::fs::create_dir_all(&options.out).map_err(|e| Failure::new(options.out.display(), e))?;
    let mut sections = Vec::new();
    for (title, text, tests) in cases() {
        let mut done = Vec::new();
        for (label, case) in tests {
            let plan = case.plan(options)?;
            eprintln!("{}", plan.title());
            done.push((label, measure(&plan)?));
        }
        sections.push(Section { title, text, tests: done });
    }
    let all: Vec<&Outcome> = sections.iter().flat_map(|s| s.tests.iter().map(|t| &t.1)).collect();
    for (name, text) in [("report.json", crate::json(&all)?), ("report.html", page(&sections))] {
        let path = options.out.join(name);
        crate::tune::replace(&path, &text).map_err(|e| Failure::new(path.display(), e))?;
        crate::print(&format!("{}\n", path.display()));
    }
    Ok(())
}

// ---- the page ----------------------------------------------------------------------------------

const STYLE: &str = "
:root{color-scheme:light dark;--text:#1b1f24;--soft:#57606a;--back:#fff;--line:#d0d7de;--base:#8c959f;--sdp:#0969da}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--soft:#9198a1;--back:#0d1117;--line:#30363d;--base:#6e7681;\
--sdp:#4493f8}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--text);background:var(--back);max-width:60rem;margin:0 auto;\
padding:1rem}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:1px solid var(--line);padding-top:1rem}
p,dd{color:var(--soft)}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);\
text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}
.row{margin:.6rem 0}.row b{display:block;font-weight:600}.bar{display:flex;align-items:center;gap:.5rem;margin:2px 0}
.bar svg{flex:1 1 auto;height:14px;min-width:60px}.bar span{flex:0 0 11rem;font-size:.85rem}
.b{fill:var(--base)}.s{fill:var(--sdp)}.h{stroke:var(--back);stroke-width:3}.w{stroke:var(--text);stroke-width:2}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dt{font-weight:600}dd{margin:0;min-width:0;\
overflow-wrap:anywhere}
@media(max-width:30rem){dl{grid-template-columns:1fr}.bar span{flex-basis:8.5rem}}
";

fn escaped(text: &str) -> String {
    let clean: String = text.chars().filter(|c| !c.is_control()).collect();
    clean.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A bar of a part of the width, with its range as a line over it, and its figure.
fn bar(name: &str, is_sdp: bool, value: &Spread, most: f64, unit: &str) -> String {
    let part = |v: f64| if most > 0.0 { (v / most * 1000.0).clamp(0.0, 1000.0) } else { 0.0 };
    let (width, low, high) = (part(value.median).max(2.0), part(value.min), part(value.max));
    let class = if is_sdp { "s" } else { "b" };
    // Without colours SDP is known by its stripes.
    let stripes: String = (0..100)
        .map(|n| f64::from(n) * 20.0)
        .filter(|x| is_sdp && *x + 14.0 < width)
        .map(|x| format!("<path class=\"h\" d=\"M{x} 14L{} 0\"/>", x + 14.0))
        .collect();
    format!(
        "<div class=\"bar\"><svg viewBox=\"0 0 1000 14\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"{class}\" width=\"{width:.0}\" height=\"14\"/>{stripes}\
         <path class=\"w\" d=\"M{low:.0} 7H{high:.0}\"/></svg><span>{name} {} {unit}</span></div>",
        figure(value.median)
    )
}

fn range(of: &Spread) -> String {
    format!("{} [{}–{}]", figure(of.median), figure(of.min), figure(of.max))
}

fn section(out: &mut String, section: &Section) {
    let Section { title, text, tests } = section;
    let _ = write!(out, "<section><h2>{}</h2><p>{}</p>", escaped(title), escaped(text));
    for (label, o) in tests {
        let most = o.tcp.value.max.max(o.sdp.value.max);
        let base = o.test.against.word();
        let _ = write!(
            out,
            "<div class=\"row\"><b>{}: {} ×</b>{}{}</div>",
            escaped(label),
            figure(o.ratio.median),
            bar(base, false, &o.tcp.value, most, o.unit),
            bar("SDP", true, &o.sdp.value, most, o.unit)
        );
    }
    let base = tests.first().map_or("TCP", |(_, o)| o.test.against.word());
    let has_tail = tests.iter().any(|(_, o)| o.tcp.p99_us.is_some());
    out.push_str("<div class=\"wide\"><table><thead><tr><th>case</th>");
    for name in [base, "SDP"] {
        let _ = write!(out, "<th>{name}</th>");
        out.push_str(if has_tail { "<th>p99, µs</th><th>p99.9, µs</th>" } else { "" });
        out.push_str("<th>CPU</th>");
    }
    out.push_str("<th>ratio [95 %]</th><th>on SDP</th></tr></thead><tbody>");
    for (label, o) in tests {
        let _ = write!(out, "<tr><td>{}</td>", escaped(label));
        for side in [&o.tcp, &o.sdp] {
            let _ = write!(out, "<td>{} {}</td>", range(&side.value), o.unit);
            if has_tail {
                for tail in [&side.p99_us, &side.p999_us] {
                    let _ = write!(out, "<td>{}</td>", tail.as_ref().map_or("–".into(), range));
                }
            }
            let _ = write!(out, "<td>{} {}</td>", figure(side.cpu.median), o.cpu_unit);
        }
        let share = o.sdp_share.map_or("not known".into(), |s| format!("{:.1} %", s * 100.0));
        let (low, high) = (figure(o.ratio.low), figure(o.ratio.high));
        let _ =
            write!(out, "<td>{} [{low}–{high}]</td><td>{share}</td></tr>", figure(o.ratio.median));
    }
    out.push_str("</tbody></table></div></section>");
}

/// The processor's name.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    line.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

fn page(sections: &[Section]) -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let virtual_machine = match std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default() {
        text if text.contains(" hypervisor") => {
            "a virtual machine: waking a sleeping CPU takes longer than on bare metal"
        }
        _ => "no virtual machine, as far as the processor says",
    };
    let tests = || sections.iter().flat_map(|s| s.tests.iter().map(|t| &t.1));
    let foreign = tests().map(|o| o.foreign_cpu).fold(0.0, f64::max);
    let first = tests().next();
    let how = first.map_or(String::new(), |o| {
        format!("{} rounds of each, alternating; {} s for each test", o.test.rounds, o.test.seconds)
    });
    let facts = [
        ("Version", format!("sdp {}", env!("CARGO_PKG_VERSION"))),
        (
            "Machine",
            format!(
                "{}, {} CPUs allowed; {virtual_machine}",
                processor(),
                sys::allowed_cpus().len()
            ),
        ),
        ("System", format!("Linux {}, glibc {}", kernel.trim(), sys::libc_version())),
        ("Measured", how),
        (
            "Other load",
            format!("other processes used at most {:.0} % of the CPUs meanwhile", foreign * 100.0),
        ),
    ];
    let mut out = String::from(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>sdp perf report</title><style>",
    );
    out += STYLE;
    out += "</style></head><body><h1>Sockets Direct on this machine</h1><dl>";
    for (name, text) in facts {
        let _ = write!(out, "<dt>{name}</dt><dd>{}</dd>", escaped(&text));
    }
    out += "</dl><p>Bars are medians over rounds, the line over a bar is the range of the rounds; SDP is striped. A ratio \
            above 1 is in favour of SDP, with its 95 % interval. Each plot's figures are in the table below it.</p>";
    sections.iter().for_each(|s| section(&mut out, s));
    out + "</body></html>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_become_elements() {
        assert_eq!(escaped("<a href=\"x\">&\u{1b}"), "&lt;a href=&quot;x&quot;&gt;&amp;");
        let spread = Spread { median: 1.0, min: 0.5, max: 2.0 };
        for (most, is_sdp) in [(0.0, true), (2.0, true), (1e-9, false)] {
            let bar = bar("SDP", is_sdp, &spread, most, "us");
            assert!(!bar.contains("NaN") && !bar.contains("inf"), "{bar}");
        }
    }

    #[test]
    fn every_case_can_be_planned() {
        let options = Options {
            out: PathBuf::new(),
            seconds: 1.0,
            rounds: 2,
            against: Against::Tcp,
            users: users::Options::default(),
            set: Vec::new(),
        };
        let all = cases().into_iter().flat_map(|(_, _, tests)| tests);
        let titles: Vec<_> = all.map(|(_, case)| case.plan(&options).unwrap().title()).collect();
        assert_eq!(titles.len(), 14);
    }
}
