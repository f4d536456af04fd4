//! Links: how long things take between two nodes.
//!
//! Latency is drawn per message, but within one direction of a queue pair order is kept: a
//! message that drew a short time waits for its elders. Between queue pairs nothing is ordered.

/// A range of durations in nanoseconds, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Shortest.
    pub min_ns: u64,
    /// Longest; not below `min_ns`.
    pub max_ns: u64,
}

impl Span {
    /// From `min_ns` to `max_ns`; the larger of the two is the longest.
    pub const fn new(min_ns: u64, max_ns: u64) -> Self {
        let max_ns = if max_ns < min_ns { min_ns } else { max_ns };
        Self { min_ns, max_ns }
    }
}

/// Properties of the link between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkOptions {
    /// Time for one crossing.
    pub latency: Span,
    /// Added for each KiB carried.
    pub ns_per_kib: u64,
    /// Time until a node learns that its peer died.
    pub death_notice: Span,
}

impl Default for LinkOptions {
    /// A quiet local network: 1 to 3 µs, 10 GB/s.
    fn default() -> Self {
        Self {
            latency: Span::new(1_000, 3_000),
            ns_per_kib: 100,
            death_notice: Span::new(1_000, 1_000_000),
        }
    }
}

/// A link with its present state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) options: LinkOptions,
    pub(crate) is_up: bool,
    /// Nothing posted now arrives before this time (a stall fault).
    pub(crate) stalled_until_ns: u64,
}

impl Link {
    pub(crate) const fn new(options: LinkOptions) -> Self {
        Self { options, is_up: true, stalled_until_ns: 0 }
    }
}
