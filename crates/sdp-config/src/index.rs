//! The rules of one program, laid out to be searched in less than a microsecond.
//!
//! Used where verdicts are asked for again and again: by the library, whose program never changes.
//! It finds out once which rules name the program. Only addresses and ports are left to compare,
//! which lie beside each other, several to a step, so that the compiler makes vector instructions
//! of it. IPv4 and IPv6 addresses have lists of their own; a rule for every address is in both.
//! Order is that of the rules: the first that matches decides, as in `Config::evaluate`, which is
//! the definition.

use crate::addr::AddressMatch;
use crate::rule::{MAX_RULES, Role, Rule};

/// Rules per step of the IPv4 lists.
const V4_LANES: usize = 8;
/// Rules per step of the IPv6 lists.
const V6_LANES: usize = 4;
/// Steps that hold all rules, with one that is partly filled for each role.
const V4_STEPS: usize = MAX_RULES / V4_LANES + 2;
const V6_STEPS: usize = MAX_RULES / V6_LANES + 2;

/// Ports of `N` rules.
#[derive(Debug, Clone, Copy)]
struct Ports<const N: usize> {
    first: [i32; N],
    last: [i32; N],
}

impl<const N: usize> Ports<N> {
    /// No port is in the range.
    const NONE: Self = Self { first: [i32::MAX; N], last: [-1; N] };

    /// Negative where `port` is outside.
    fn outside(&self, lane: usize, port: i32) -> i32 {
        match (self.first.get(lane), self.last.get(lane)) {
            (Some(first), Some(last)) => port.wrapping_sub(*first) | last.wrapping_sub(port),
            _ => -1,
        }
    }
}

/// Eight rules for IPv4.
#[derive(Debug, Clone, Copy)]
struct V4 {
    value: [u32; V4_LANES],
    mask: [u32; V4_LANES],
    ports: Ports<V4_LANES>,
    rule: [u16; V4_LANES],
}

/// Four rules for IPv6.
#[derive(Debug, Clone, Copy)]
struct V6 {
    value: [[u64; V6_LANES]; 2],
    mask: [[u64; V6_LANES]; 2],
    ports: Ports<V6_LANES>,
    rule: [u16; V6_LANES],
}

impl V4 {
    const NONE: Self =
        Self { value: [0; V4_LANES], mask: [0; V4_LANES], ports: Ports::NONE, rule: [0; V4_LANES] };

    /// The first rule for this address and port.
    #[inline]
    fn find(&self, address: u32, port: i32) -> Option<usize> {
        // 0 where both match. Every lane is looked at, so that no branch stands between them.
        let lane = |i: usize| {
            let differs = (address ^ self.value[i]) & self.mask[i];
            differs | (self.ports.outside(i, port) as u32 & 1 << 31)
        };
        let lanes: [u32; V4_LANES] = core::array::from_fn(lane);
        let hits = lanes.iter().fold(0, |hits, lane| hits | u32::from(*lane == 0));
        if hits == 0 {
            return None;
        }
        let at = lanes.iter().position(|lane| *lane == 0)?;
        self.rule.get(at).map(|rule| usize::from(*rule))
    }
}

impl V6 {
    const NONE: Self = Self {
        value: [[0; V6_LANES]; 2],
        mask: [[0; V6_LANES]; 2],
        ports: Ports::NONE,
        rule: [0; V6_LANES],
    };

    /// The first rule for this address, upper half first, and port.
    #[inline]
    fn find(&self, address: [u64; 2], port: i32) -> Option<usize> {
        let lane = |i: usize| {
            let upper = (address[0] ^ self.value[0][i]) & self.mask[0][i];
            let lower = (address[1] ^ self.value[1][i]) & self.mask[1][i];
            upper | lower | (i64::from(self.ports.outside(i, port)) as u64 & 1 << 63)
        };
        let lanes: [u64; V6_LANES] = core::array::from_fn(lane);
        let hits = lanes.iter().fold(0, |hits, lane| hits | u32::from(*lane == 0));
        if hits == 0 {
            return None;
        }
        let at = lanes.iter().position(|lane| *lane == 0)?;
        self.rule.get(at).map(|rule| usize::from(*rule))
    }
}

/// Both lists of both roles. All bytes zero: no rules.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    v4: [V4; V4_STEPS],
    v6: [V6; V6_STEPS],
    /// Steps of the server lists, where those of the client lists begin.
    servers: [usize; 2],
    /// Steps in use.
    used: [usize; 2],
}

impl Index {
    pub(crate) const EMPTY: Self =
        Self { v4: [V4::NONE; V4_STEPS], v6: [V6::NONE; V6_STEPS], servers: [0; 2], used: [0; 2] };

    /// Steps of a role in one of the lists.
    pub(crate) fn steps(&self, role: Role, list: usize) -> core::ops::Range<usize> {
        let servers = self.servers.get(list).copied().unwrap_or(0);
        match role {
            Role::Server => 0..servers,
            Role::Client => servers..self.used.get(list).copied().unwrap_or(0),
        }
    }

    /// No rules.
    pub(crate) fn begin(&mut self) {
        self.servers = [0; 2];
        self.used = [0; 2];
    }

    /// The lists of the servers are whole: those of the clients begin.
    pub(crate) fn end_servers(&mut self) {
        self.servers = self.used;
    }

    /// Adds `rule`, which is the `nth` of its role's list of IPv4 and of IPv6.
    pub(crate) fn push(&mut self, nth: &mut [usize; 2], rule: &Rule, number: u16) {
        let (first, last) = (i32::from(rule.ports.first), i32::from(rule.ports.last));
        let v4 = match rule.address {
            AddressMatch::Any => Some((0, 0)),
            AddressMatch::V4 { addr, prefix } => {
                let host = 32u32.saturating_sub(prefix.into());
                Some((addr, u32::MAX.checked_shl(host).unwrap_or(0)))
            }
            AddressMatch::V6 { .. } => None,
        };
        if let Some((value, mask)) = v4 {
            let (lane, step) = place(nth, &mut self.used, 0, V4_LANES);
            if let Some(step) = self.v4.get_mut(step) {
                if lane == 0 {
                    *step = V4::NONE;
                }
                set(&mut step.value, lane, value);
                set(&mut step.mask, lane, mask);
                set(&mut step.ports.first, lane, first);
                set(&mut step.ports.last, lane, last);
                set(&mut step.rule, lane, number);
            }
        }
        let v6 = match rule.address {
            AddressMatch::Any => Some((0, 0)),
            AddressMatch::V6 { addr, prefix } => {
                let host = 128u32.saturating_sub(prefix.into());
                Some((addr, u128::MAX.checked_shl(host).unwrap_or(0)))
            }
            AddressMatch::V4 { .. } => None,
        };
        if let Some((value, mask)) = v6 {
            let (lane, step) = place(nth, &mut self.used, 1, V6_LANES);
            if let Some(step) = self.v6.get_mut(step) {
                if lane == 0 {
                    *step = V6::NONE;
                }
                let ([upper, lower], [upper_mask, lower_mask]) = (&mut step.value, &mut step.mask);
                set(upper, lane, (value >> 64) as u64);
                set(lower, lane, value as u64);
                set(upper_mask, lane, (mask >> 64) as u64);
                set(lower_mask, lane, mask as u64);
                set(&mut step.ports.first, lane, first);
                set(&mut step.ports.last, lane, last);
                set(&mut step.rule, lane, number);
            }
        }
    }

    /// The first rule of a role for this address and port.
    pub(crate) fn find(&self, role: Role, address: [u8; 16], port: u16) -> Option<usize> {
        let port = i32::from(port);
        let bits = u128::from_be_bytes(address);
        if AddressMatch::is_mapped(bits) {
            let steps = self.v4.get(self.steps(role, 0)).unwrap_or(&[]);
            return steps.iter().find_map(|step| step.find(bits as u32, port));
        }
        let halves = [(bits >> 64) as u64, bits as u64];
        let steps = self.v6.get(self.steps(role, 1)).unwrap_or(&[]);
        steps.iter().find_map(|step| step.find(halves, port))
    }
}

fn set<T>(lanes: &mut [T], lane: usize, value: T) {
    if let Some(to) = lanes.get_mut(lane) {
        *to = value;
    }
}

/// Lane and step of a list's next rule; a first lane begins a step.
fn place(nth: &mut [usize; 2], used: &mut [usize; 2], list: usize, lanes: usize) -> (usize, usize) {
    let (Some(nth), Some(used)) = (nth.get_mut(list), used.get_mut(list)) else { return (0, 0) };
    let lane = *nth % lanes;
    if lane == 0 {
        *used = used.saturating_add(1);
    }
    *nth = nth.saturating_add(1);
    (lane, used.saturating_sub(1))
}

// Numbers of rules fit the 16 bits that the lists have for them.
const _: () = assert!(MAX_RULES <= u16::MAX as usize);
