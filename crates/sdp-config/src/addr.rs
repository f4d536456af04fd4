//! Addresses and ports of rules: parsing and matching.

use crate::diag::Problem;

/// Which addresses a rule applies to. All bytes zero: [`AddressMatch::Any`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AddressMatch {
    /// Every address of every family (`*`, `0.0.0.0`).
    Any,
    /// IPv4 addresses (also v4-mapped ones) whose first `prefix` bits (0–32) are those of `addr`.
    V4 {
        /// Bits compared, 0–32.
        prefix: u8,
        /// Host order, host bits zero.
        addr: u32,
    },
    /// IPv6 addresses whose first `prefix` bits (0–128) are those of `addr`.
    V6 {
        /// Bits compared, 0–128.
        prefix: u8,
        /// Host order, host bits zero.
        addr: u128,
    },
}

/// `::ffff:0:0/96`.
const MAPPED: u128 = 0xffff_0000_0000;

fn mask(bits: u8, of: u8) -> u128 {
    let host = u32::from(of.saturating_sub(bits));
    u128::MAX.checked_shl(host).unwrap_or(0)
}

impl AddressMatch {
    /// Whether an address is IPv4, written as v4-mapped IPv6.
    pub(crate) const fn is_mapped(bits: u128) -> bool {
        bits >> 32 == MAPPED >> 32
    }

    /// Whether `addr` (network order, IPv4 as v4-mapped) is meant.
    pub fn matches(self, addr: [u8; 16]) -> bool {
        let bits = u128::from_be_bytes(addr);
        let is_v4 = Self::is_mapped(bits);
        match self {
            Self::Any => true,
            Self::V4 { addr, prefix } => {
                is_v4
                    && (u128::from(bits as u32) ^ u128::from(addr)) & mask(prefix, 32) & 0xffff_ffff
                        == 0
            }
            Self::V6 { addr, prefix } => !is_v4 && (bits ^ addr) & mask(prefix, 128) == 0,
        }
    }

    /// Whether everything that `other` matches is matched too.
    pub(crate) fn covers(self, other: Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::V4 { addr, prefix }, Self::V4 { addr: a, prefix: p }) => {
                p >= prefix && u128::from(addr ^ a) & mask(prefix, 32) & 0xffff_ffff == 0
            }
            (Self::V6 { addr, prefix }, Self::V6 { addr: a, prefix: p }) => {
                p >= prefix && (addr ^ a) & mask(prefix, 128) == 0
            }
            _ => false,
        }
    }
}

/// Which ports a rule applies to, both ends inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// Lowest port.
    pub first: u16,
    /// Highest port, not below `first`.
    pub last: u16,
}

impl PortRange {
    /// Every port.
    pub const ANY: Self = Self { first: 0, last: u16::MAX };

    /// Whether `port` is in the range.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    pub(crate) const fn covers(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// A parsed `address[/prefix]:ports` with the deviations that were tolerated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: AddressMatch,
    pub(crate) ports: PortRange,
    /// At most three tolerances apply to one target.
    pub(crate) tolerated: [Option<Problem>; 3],
}

impl Target {
    pub(crate) const ANY: Self =
        Self { address: AddressMatch::Any, ports: PortRange::ANY, tolerated: [None; 3] };

    fn tolerate(&mut self, problem: Problem) {
        if let Some(free) = self.tolerated.iter_mut().find(|t| t.is_none() || **t == Some(problem))
        {
            *free = Some(problem);
        }
    }
}

/// Parses `address[/prefix][:ports]`; `text` has no blanks. Errors carry the offset in `text`.
pub(crate) fn parse_target(text: &[u8]) -> Result<Target, (Problem, usize)> {
    let mut target = Target::ANY;
    if text.is_empty() {
        target.tolerate(Problem::MissingTarget);
        return Ok(target);
    }
    if text == b"*.*" {
        target.tolerate(Problem::StarDotStar);
        return Ok(target);
    }
    let split = split_target(text)?;
    if split.lenient_v6 {
        target.tolerate(Problem::AddressSpelling);
    }
    let address = text.get(..split.address_end).unwrap_or(b"");
    target.address = match address {
        b"*" => AddressMatch::Any,
        b"" => {
            target.tolerate(Problem::MissingTarget);
            AddressMatch::Any
        }
        _ => parse_address(address, &mut target)?,
    };
    match split.ports_at.map(|at| (at, text.get(at..).unwrap_or(b""))) {
        None | Some((_, b"")) => target.tolerate(Problem::MissingPort),
        Some((_, b"*")) => {}
        Some((at, ports)) => {
            target.ports =
                parse_ports(ports).map_err(|(problem, off)| (problem, at.wrapping_add(off)))?;
        }
    }
    Ok(target)
}

struct Split {
    address_end: usize,
    /// Where the ports begin; `None` when there is no colon for them.
    ports_at: Option<usize>,
    lenient_v6: bool,
}

fn split_target(text: &[u8]) -> Result<Split, (Problem, usize)> {
    let position = |byte: u8| text.iter().position(|b| *b == byte);
    let colon_split = |at: usize, lenient_v6| Split {
        address_end: at,
        ports_at: Some(at.wrapping_add(1)),
        lenient_v6,
    };
    let whole = |lenient_v6| Split { address_end: text.len(), ports_at: None, lenient_v6 };
    if text.first() == Some(&b'[') {
        let close = position(b']').ok_or((Problem::BadAddress, 0))?;
        let behind = text.get(close..).unwrap_or(b"");
        return Ok(match behind.iter().position(|b| *b == b':') {
            Some(at) => colon_split(close.wrapping_add(at), true),
            None => whole(true),
        });
    }
    let lenient_v6 = text.iter().any(u8::is_ascii_uppercase);
    let last_colon = text.iter().rposition(|b| *b == b':');
    let Some(last_colon) = last_colon else { return Ok(whole(false)) };
    if let Some(slash) = position(b'/') {
        // The colon behind the prefix length, if any.
        return Ok(if last_colon > slash {
            colon_split(last_colon, lenient_v6)
        } else {
            whole(lenient_v6)
        });
    }
    let head = text.get(..last_colon).unwrap_or(b"");
    if head.contains(&b':') && parse_v6(head).is_none() && parse_v6(text).is_some() {
        return Ok(whole(lenient_v6)); // `fe80::1`: an address without a port
    }
    Ok(colon_split(last_colon, lenient_v6))
}

fn parse_address(text: &[u8], target: &mut Target) -> Result<AddressMatch, (Problem, usize)> {
    let slash = text.iter().position(|b| *b == b'/');
    let (host, prefix) = match slash {
        Some(at) => (text.get(..at).unwrap_or(b""), text.get(at.wrapping_add(1)..)),
        None => (text, None),
    };
    let prefix_at = slash.map_or(0, |at| at.wrapping_add(1));
    let host = match host {
        // Brackets around the address alone, the prefix length behind them.
        [b'[', inner @ .., b']'] => inner,
        // Brackets around address and prefix length.
        [b'[', inner @ ..] => inner,
        _ => host,
    };
    let prefix = match prefix.map(|p| p.strip_suffix(b"]").unwrap_or(p)) {
        None => None,
        Some(digits) => Some(parse_int(digits).ok_or((Problem::BadPrefix, prefix_at))?),
    };
    if host == b"*" {
        return Ok(AddressMatch::Any); // `*/N`: the prefix means nothing
    }
    if let Some(addr) = parse_v4(host) {
        let prefix = check_prefix(prefix, 32).ok_or((Problem::BadPrefix, prefix_at))?;
        if addr == 0 && (prefix == 0 || slash.is_none()) {
            return Ok(AddressMatch::Any);
        }
        return Ok(masked_v4(addr, prefix, target));
    }
    let addr = parse_v6(host).ok_or((Problem::BadAddress, 0))?;
    let prefix = check_prefix(prefix, 128).ok_or((Problem::BadPrefix, prefix_at))?;
    if AddressMatch::is_mapped(addr) && prefix >= 96 {
        return Ok(masked_v4(addr as u32, prefix.wrapping_sub(96), target));
    }
    let kept = addr & mask(prefix, 128);
    if kept != addr {
        target.tolerate(Problem::HostBits);
    }
    Ok(AddressMatch::V6 { addr: kept, prefix })
}

fn masked_v4(addr: u32, prefix: u8, target: &mut Target) -> AddressMatch {
    let kept = addr & mask(prefix, 32) as u32;
    if kept != addr {
        target.tolerate(Problem::HostBits);
    }
    AddressMatch::V4 { addr: kept, prefix }
}

fn check_prefix(prefix: Option<u32>, most: u8) -> Option<u8> {
    match prefix {
        None => Some(most),
        Some(p) => u8::try_from(p).ok().filter(|p| *p <= most),
    }
}

fn parse_ports(text: &[u8]) -> Result<PortRange, (Problem, usize)> {
    let port = |digits: &[u8], at: usize| {
        let n = parse_int(digits).ok_or((Problem::BadPort, at))?;
        u16::try_from(n).map_err(|_| (Problem::PortTooBig, at))
    };
    let Some(dash) = text.iter().position(|b| *b == b'-') else {
        let first = port(text, 0)?;
        return Ok(PortRange { first, last: first });
    };
    let behind = dash.wrapping_add(1);
    let first = port(text.get(..dash).unwrap_or(b""), 0)?;
    let last = port(text.get(behind..).unwrap_or(b""), behind)?;
    if last < first {
        return Err((Problem::ReversedPorts, 0));
    }
    Ok(PortRange { first, last })
}

/// A decimal number without leading zeros that fits 32 bits.
pub(crate) fn parse_int(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || (digits.len() > 1 && digits.first() == Some(&b'0')) {
        return None;
    }
    digits.iter().try_fold(0u32, |n, b| {
        if !b.is_ascii_digit() {
            return None;
        }
        n.checked_mul(10)?.checked_add(u32::from(b.wrapping_sub(b'0')))
    })
}

/// Dotted decimal, four parts.
pub(crate) fn parse_v4(text: &[u8]) -> Option<u32> {
    let mut parts = text.split(|b| *b == b'.');
    let mut addr = 0u32;
    for _ in 0..4 {
        let part = parse_int(parts.next()?)?;
        addr = addr << 8 | u32::from(u8::try_from(part).ok()?);
    }
    parts.next().is_none().then_some(addr)
}

/// IPv6 text of RFC 4291 section 2.2, without zone.
pub(crate) fn parse_v6(text: &[u8]) -> Option<u128> {
    // Groups before and behind the `::`, each as a number and a count of 16-bit groups.
    let gap = text.windows(2).position(|w| w == b"::");
    match gap {
        None => {
            let (bits, groups) = parse_groups(text)?;
            (groups == 8).then_some(bits)
        }
        Some(at) => {
            let (head, tail) = (text.get(..at)?, text.get(at.checked_add(2)?..)?);
            let (high, before) = if head.is_empty() { (0, 0) } else { parse_groups(head)? };
            let (low, behind) = if tail.is_empty() { (0, 0) } else { parse_groups(tail)? };
            if before.checked_add(behind)? > 7 || head.contains(&b'.') {
                return None;
            }
            let shift = 128u32.checked_sub(before.checked_mul(16)?)?;
            Some(high.checked_shl(shift).unwrap_or(0) | low)
        }
    }
}

/// Colon-separated groups, the last of which may be a dotted IPv4 address (two groups).
fn parse_groups(text: &[u8]) -> Option<(u128, u32)> {
    let (mut bits, mut groups) = (0u128, 0u32);
    let mut rest = text.split(|b| *b == b':').peekable();
    while let Some(group) = rest.next() {
        if groups >= 8 {
            return None;
        }
        if group.contains(&b'.') && rest.peek().is_none() {
            bits = bits << 32 | u128::from(parse_v4(group)?);
            groups = groups.checked_add(2)?;
            continue;
        }
        if group.is_empty() || group.len() > 4 {
            return None;
        }
        let value = group.iter().try_fold(0u32, |n, b| {
            let digit = char::from(*b).to_digit(16)?;
            Some(n << 4 | digit)
        })?;
        bits = bits << 16 | u128::from(value);
        groups = groups.checked_add(1)?;
    }
    (groups <= 8).then_some((bits, groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        parse_target(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e:?}"))
    }

    fn v4(a: u8, b: u8, c: u8, d: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
    }

    #[test]
    fn ipv6_text_agrees_with_std() {
        let mut seed = 7u64;
        let mut next = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as u32
        };
        let alphabet = b"::::01fF.a9";
        let mut valid = 0;
        for _ in 0..200_000 {
            let len = next() as usize % 12;
            let text: Vec<u8> =
                (0..len).map(|_| alphabet[next() as usize % alphabet.len()]).collect();
            let expected = std::str::from_utf8(&text).unwrap().parse::<std::net::Ipv6Addr>().ok();
            valid += usize::from(expected.is_some());
            assert_eq!(
                parse_v6(&text),
                expected.map(u128::from),
                "{:?}",
                std::str::from_utf8(&text)
            );
        }
        assert!(valid > 1000, "{valid}");
        for text in ["1:2:3:4:5:6:7:8", "::1.2.3.4", "1::", "fe80::1", "1:2:3:4:5:6:1.2.3.4"] {
            let expected = u128::from(text.parse::<std::net::Ipv6Addr>().unwrap());
            assert_eq!(parse_v6(text.as_bytes()), Some(expected));
        }
    }

    #[test]
    fn addresses_and_ports_are_split_where_people_mean_it() {
        assert_eq!(target("*:*"), Target::ANY);
        assert_eq!(target("*:22").ports, PortRange { first: 22, last: 22 });
        assert_eq!(target("fe80::1:5001").ports.first, 5001);
        assert_eq!(target("fe80::1:5001").tolerated, [None; 3]);
        assert_eq!(target("[FE80::1]:5001").address, target("fe80::1:5001").address);
        assert_eq!(target("[fe80::1]:5001").tolerated[0], Some(Problem::AddressSpelling));
        assert_eq!(target("[fe80::]/10:5001").address, target("[fe80::/10]:5001").address);
        assert_eq!(target("FE80::1:5001").tolerated[0], Some(Problem::AddressSpelling));
        assert_eq!(target(":::*").address, AddressMatch::V6 { addr: 0, prefix: 128 });
        assert_eq!(target("::/0:*").address, AddressMatch::V6 { addr: 0, prefix: 0 });
        assert_eq!(target("1:2:3:4:5:6:7:8").ports, PortRange::ANY);
        assert_eq!(target("1:2:3:4:5:6:7:8:9").ports.first, 9);
        assert_eq!(
            target("::ffff:10.0.0.1:80").address,
            AddressMatch::V4 { addr: 0x0a00_0001, prefix: 32 }
        );
        assert_eq!(target("0.0.0.0:80").address, AddressMatch::Any);
        assert_eq!(target("0.0.0.0/0:80").address, AddressMatch::Any);
        assert_eq!(target("10.0.0.1/8:80").tolerated[0], Some(Problem::HostBits));
        assert_eq!(target("10.0.0.0/8").tolerated[0], Some(Problem::MissingPort));
        assert_eq!(target(":").tolerated[0], Some(Problem::MissingTarget));
        assert_eq!(target(":80").ports.first, 80);
        assert_eq!(target("*").ports, PortRange::ANY);
    }

    #[test]
    fn bad_targets_say_where() {
        for (text, problem, at) in [
            ("myhost:5001", Problem::BadAddress, 0),
            ("10.0.0.256:1", Problem::BadAddress, 0),
            ("10.0.0.0/33:1", Problem::BadPrefix, 9),
            ("::/129:1", Problem::BadPrefix, 3),
            ("10.0.0.0/x:1", Problem::BadPrefix, 9),
            ("*:010", Problem::BadPort, 2),
            ("*:70000", Problem::PortTooBig, 2),
            ("*:5002-5001", Problem::ReversedPorts, 2),
            ("*:1-99999", Problem::PortTooBig, 4),
            ("*:1-", Problem::BadPort, 4),
            ("[fe80::1:80", Problem::BadAddress, 0),
            ("10.0.0.0/255.0.0.0:80", Problem::BadPrefix, 9),
        ] {
            assert_eq!(parse_target(text.as_bytes()), Err((problem, at)), "{text}");
        }
    }

    #[test]
    fn matching_masks_both_sides_and_maps_v4() {
        assert!(target("10.0.0.1/8:*").address.matches(v4(10, 9, 8, 7)));
        assert!(!target("10.0.0.1/8:*").address.matches(v4(11, 9, 8, 7)));
        assert!(target("::ffff:10.0.0.0/104:*").address.matches(v4(10, 9, 8, 7)));
        assert!(!target("::/0:*").address.matches(v4(10, 9, 8, 7)));
        assert!(target("::/0:*").address.matches([1; 16]));
        assert!(target("0.0.0.0:*").address.matches([1; 16]));
        assert!(!target("10.0.0.0/8:*").address.matches([0; 16]));
        assert!(target("10.0.0.0/8:*").address.covers(target("10.1.0.0/16:*").address));
        assert!(!target("10.1.0.0/16:*").address.covers(target("10.0.0.0/8:*").address));
    }
}
