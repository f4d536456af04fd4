//! Who may connect: networks that were named.

use std::{fmt, net::IpAddr, str::FromStr};

/// A network, or any address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Every address.
    Any,
    /// Those that begin with so many bits of this one.
    Of(IpAddr, u32),
}

impl Network {
    /// Whether an address is in it. One of IPv6 that stands for one of IPv4 is the latter.
    pub fn has(&self, address: IpAddr) -> bool {
        match (self, address.to_canonical()) {
            (Self::Any, _) => true,
            (Self::Of(IpAddr::V4(base), bits), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                (u32::from(*base) ^ u32::from(address)) & mask == 0
            }
            (Self::Of(IpAddr::V6(base), bits), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                (u128::from(*base) ^ u128::from(address)) & mask == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Of(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self::Any);
        }
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let wrong = || format!("{text:?} is neither an address, nor ADDRESS/BITS, nor any");
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits: u32 = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        if bits > most { Err(wrong()) } else { Ok(Self::Of(address, bits)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().has(address.parse().unwrap())
    }

    #[test]
    fn addresses_in_networks() {
        assert!(has("10.0.0.0/8", "10.9.0.2") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.9.0.2", "10.9.0.2") && !has("10.9.0.2", "10.9.0.3"));
        assert!(has("10.9.0.0/16", "::ffff:10.9.0.2"));
        assert!(has("0.0.0.0/0", "192.0.2.1") && !has("0.0.0.0/0", "fd00::1"));
        assert!(has("fd00:9::/64", "fd00:9::2") && !has("fd00:9::/64", "fd00:8::2"));
        assert!(has("::/0", "fe80::1") && has("any", "fe80::1") && has("any", "10.0.0.1"));
    }

    #[test]
    fn what_is_no_network() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "localhost", "any/8", "10.0.0.0/"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        let shown: Network = "10.0.0.0/8".parse().unwrap();
        assert_eq!(shown.to_string(), "10.0.0.0/8");
    }
}
