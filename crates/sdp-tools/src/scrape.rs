//! Counters in the text format of Prometheus: of running processes, and of a run that has ended.

use std::fmt::Write;

use sdp_stats::Counter;

use crate::procs::Process;
use crate::report::{Bytes, Messages, MetBy, Report, words};

/// Label values: backslash, quote and newline are escaped; other control characters are left out.
fn label(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    value.chars().filter(|c| !c.is_control()).collect()
}

/// Labels and a value.
type Sample = (String, String);

fn metric(out: &mut String, name: &str, kind: &str, help: &str, samples: &[Sample]) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(out, "{name}{{{labels}}} {value}");
    }
}

/// The source of the figures: one process or one run.
struct Source {
    labels: String,
    seen: i64,
    sdp: i64,
    /// Open connection ends and listeners; not of a run that is over.
    open: Option<usize>,
    bytes: Bytes,
    reasons: Vec<(String, String)>,
    demotions: Vec<(String, String)>,
    refused: Vec<(String, String)>,
    waits: [u64; 2],
    messages: Messages,
    devices: Vec<MetBy>,
}

fn texts<N: ToString>(map: impl IntoIterator<Item = (String, N)>) -> Vec<(String, String)> {
    map.into_iter().map(|(word, n)| (word, n.to_string())).collect()
}

fn render(sources: &[Source]) -> String {
    let mut out = String::new();
    amounts(&mut out, sources);
    causes(&mut out, sources);
    histogram(&mut out, sources);
    out
}

/// A metric's samples of each source: what `of` says, with the source's labels before its own.
fn each(sources: &[Source], of: &dyn Fn(&Source) -> Vec<Sample>) -> Vec<Sample> {
    let with = |source: &Source, extra: &str| {
        let comma = if extra.is_empty() { "" } else { "," };
        format!("{}{comma}{extra}", source.labels)
    };
    let one = |s: &Source| {
        of(s).into_iter().map(|(extra, value)| (with(s, &extra), value)).collect::<Vec<_>>()
    };
    sources.iter().flat_map(one).collect()
}

/// One sample without a label of its own.
fn plain(value: String) -> Vec<Sample> {
    vec![(String::new(), value)]
}

/// A sample for each word, as the label `name`.
fn by(name: &str, list: &[(String, String)]) -> Vec<Sample> {
    let one = |(word, n): &(String, String)| (format!("{name}=\"{}\"", label(word)), n.clone());
    list.iter().map(one).collect()
}

/// How many connections there are, and how many bytes they moved.
fn amounts(out: &mut String, sources: &[Source]) {
    metric(
        out,
        "sdp_connections_seen_total",
        "counter",
        "Ends of established stream connections.",
        &each(sources, &|s| plain(s.seen.to_string())),
    );
    metric(
        out,
        "sdp_connections_sdp_total",
        "counter",
        "Of these, those that moved payload over SDP.",
        &each(sources, &|s| plain(s.sdp.to_string())),
    );
    if sources.iter().any(|s| s.open.is_some()) || sources.is_empty() {
        metric(
            out,
            "sdp_connections_open",
            "gauge",
            "Open connection ends and listeners that the library follows.",
            &each(sources, &|s| s.open.map_or(Vec::new(), |n| plain(n.to_string()))),
        );
    }
    metric(
        out,
        "sdp_bytes_total",
        "counter",
        "Payload bytes that the program's calls moved.",
        &each(sources, &|s| {
            let Bytes { sdp_sent, sdp_received, tcp_sent, tcp_received } = s.bytes;
            let one = |lane: &str, direction: &str, n: u64| {
                (format!("lane=\"{lane}\",direction=\"{direction}\""), n.to_string())
            };
            vec![
                one("sdp", "sent", sdp_sent),
                one("sdp", "received", sdp_received),
                one("tcp", "sent", tcp_sent),
                one("tcp", "received", tcp_received),
            ]
        }),
    );
}

/// Why connections are where they are, and how their calls waited.
fn causes(out: &mut String, sources: &[Source]) {
    metric(
        out,
        "sdp_connections_tcp",
        "gauge",
        "Ends that moved nothing over SDP, by reason.",
        &each(sources, &|s| by("reason", &s.reasons)),
    );
    metric(
        out,
        "sdp_demotions_total",
        "counter",
        "Halves that went back to TCP, by reason.",
        &each(sources, &|s| by("reason", &s.demotions)),
    );
    metric(
        out,
        "sdp_connections_refused_total",
        "counter",
        "Connections that were refused because rules want SDP or nothing, by reason.",
        &each(sources, &|s| by("reason", &s.refused)),
    );
    metric(
        out,
        "sdp_waits_total",
        "counter",
        "Waits by how they ended.",
        &each(sources, &|s| {
            let [spun, slept] = s.waits;
            by("how", &texts([("spun".to_string(), spun), ("slept".to_string(), slept)]))
        }),
    );
    metric(
        out,
        "sdp_ring_full_total",
        "counter",
        "Times that a sender found no room.",
        &each(sources, &|s| plain(s.messages.ring_full.to_string())),
    );
    metric(
        out,
        "sdp_device_connections_total",
        "counter",
        "Connection ends that met their other end by an RDMA device, by its port.",
        &each(sources, &|s| {
            let one = |MetBy { name, port, ends }: &MetBy| {
                (format!("device=\"{}\",port=\"{port}\"", label(name)), ends.to_string())
            };
            s.devices.iter().map(one).collect()
        }),
    );
}

/// Sizes of messages. Its samples have names of their own.
fn histogram(out: &mut String, sources: &[Source]) {
    const NAME: &str = "sdp_message_bytes";
    let help = "Payload of the messages that were sent over SDP.";
    let _ = writeln!(out, "# HELP {NAME} {help}\n# TYPE {NAME} histogram");
    for Source { labels, messages, bytes, .. } in sources {
        let mut count = 0_u64;
        for size in &messages.sizes {
            count = count.wrapping_add(size.count);
            let to = size.to.map_or("+Inf".to_string(), |to| to.to_string());
            let _ = writeln!(out, "{NAME}_bucket{{{labels},le=\"{to}\"}} {count}");
        }
        let _ = writeln!(out, "{NAME}_sum{{{labels}}} {}", bytes.sdp_sent);
        let _ = writeln!(out, "{NAME}_count{{{labels}}} {count}");
    }
}

/// Of running processes.
pub fn of_processes(processes: &[Process]) -> String {
    let source = |p: &Process| {
        let sums = &p.view.sums;
        Source {
            labels: format!("pid=\"{}\",program=\"{}\"", p.pid, label(&p.view.program)),
            seen: sums.seen,
            sdp: sums.sdp,
            open: Some(p.view.rows.len()),
            bytes: Bytes::of(sums),
            reasons: texts(words(&sums.reasons)),
            demotions: texts(words(&sums.demotions)),
            refused: texts(words(&sums.refused)),
            waits: [sums.both(Counter::Spun), sums.both(Counter::Slept)],
            messages: Messages::of(&sums.messages),
            devices: MetBy::all(sums),
        }
    };
    render(&processes.iter().map(source).collect::<Vec<_>>())
}

/// Of a run that has ended.
pub fn of_report(report: &Report) -> String {
    let command = report.command.first().map_or("", String::as_str);
    let labels = format!("command=\"{}\"", label(command));
    let source = Source {
        labels: labels.clone(),
        seen: report.connections.seen,
        sdp: report.connections.sdp,
        open: None,
        bytes: report.bytes,
        reasons: texts(report.reasons.clone()),
        demotions: texts(report.demotions.clone()),
        refused: texts(report.refused.clone()),
        waits: [report.waits.spun, report.waits.slept],
        messages: report.messages.clone(),
        devices: report.devices.clone(),
    };
    let mut out = render(&[source]);
    let seconds = |n: f64| vec![(labels.clone(), n.to_string())];
    metric(&mut out, "sdp_run_seconds", "gauge", "How long the run took.", &seconds(report.wall_s));
    metric(
        &mut out,
        "sdp_run_cpu_seconds",
        "gauge",
        "Processor time of the run.",
        &seconds(report.user_s + report.system_s),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(label(r#"a"b\c"#), r#"a\"b\\c"#);
        assert_eq!(label("a\nb\x1bc"), "a\\nbc");
    }
}
