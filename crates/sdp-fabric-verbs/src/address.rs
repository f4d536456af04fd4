//! IPv4 and IPv6 addresses as the kernel takes them.

use core::net::IpAddr;

use crate::abi::cm::Storage;

/// A socket address, with its port and, for link-local ones, its scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    storage: Storage,
    len: u16,
}

impl Address {
    /// No address; the kernel chooses.
    pub const NONE: Self = Self { storage: Storage([0; 128]), len: 0 };

    /// IPv4, in the usual order of bytes.
    pub const fn v4(ip: [u8; 4], port: u16) -> Self {
        let mut bytes = [0; 128];
        let family = (libc::AF_INET as u16).to_ne_bytes();
        let port = port.to_be_bytes();
        [bytes[0], bytes[1], bytes[2], bytes[3]] = [family[0], family[1], port[0], port[1]];
        [bytes[4], bytes[5], bytes[6], bytes[7]] = ip;
        Self { storage: Storage(bytes), len: 16 }
    }

    /// IPv6; `scope` is the interface of a link-local address, else 0.
    pub fn v6(ip: [u8; 16], port: u16, scope: u32) -> Self {
        let mut bytes = [0; 128];
        bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes[8..24].copy_from_slice(&ip);
        bytes[24..28].copy_from_slice(&scope.to_ne_bytes());
        Self { storage: Storage(bytes), len: 28 }
    }

    /// The address that `getsockname` or `getpeername` wrote, if it is one of the two families. An
    /// IPv6 address that stands for an IPv4 one becomes the latter: devices know it by that.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        match i32::from(family) {
            libc::AF_INET => Some(Self::v4(bytes.get(4..8)?.try_into().ok()?, port)),
            libc::AF_INET6 => {
                let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
                let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
                match ip {
                    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => {
                        Some(Self::v4([a, b, c, d], port))
                    }
                    _ => Some(Self::v6(ip, port, scope)),
                }
            }
            _ => None,
        }
    }

    /// The same with another port.
    pub const fn with_port(mut self, port: u16) -> Self {
        [self.storage.0[2], self.storage.0[3]] = port.to_be_bytes();
        self
    }

    /// The address alone; `None`: it is of neither family.
    pub fn ip(&self) -> Option<IpAddr> {
        let bytes = &self.storage.0;
        match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?)),
            libc::AF_INET6 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?)),
            _ => None,
        }
    }

    pub(crate) const fn storage(&self) -> Storage {
        self.storage
    }

    pub(crate) const fn len(&self) -> u16 {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_is_an_ipv4_one() {
        let plain = Address::v4([10, 9, 0, 1], 443);
        let mut mapped = [0; 16];
        mapped[10..12].fill(0xff);
        mapped[12..].copy_from_slice(&[10, 9, 0, 1]);
        let mapped = Address::v6(mapped, 443, 0);
        assert_eq!(Address::from_bytes(&mapped.storage.0[..28]), Some(plain));
        assert_eq!(Address::from_bytes(&plain.storage.0[..16]), Some(plain));
        let local = Address::v6([0xfe; 16], 1, 3);
        assert_eq!(Address::from_bytes(&local.storage.0[..28]), Some(local));
        assert_eq!(Address::from_bytes(&[1, 0, 0, 0]), None);
        assert_eq!(Address::from_bytes(&[]), None);
        assert_eq!(plain.ip(), Some("10.9.0.1".parse().unwrap()));
        assert_eq!(Address::v6([0xfe; 16], 1, 3).ip(), Some(IpAddr::from([0xfe; 16])));
        assert_eq!(Address::NONE.ip(), None);
    }
}
