//! The identity of the other end: a process that knows the carrier's bytes, and can write into it.
//!
//! The caller's REQ proves that it knows the first bytes of the acceptor's direction; the listener's
//! REP proves both directions. From the same secret come the seals of both directions' markers. A PROOF
//! marker on the carrier then shows that each end can write there. The engine's Hello and HelloAck
//! travel in front, and are opaque here. The *acceptor* of the carrier is the caller.

use sdp_blake2s::{Blake2s, is_same};

use crate::marker::Seal;

/// So many first bytes of each direction are kept.
pub const PREFIX_MAX: usize = 240;
/// Fewest first bytes, in one direction, that prove anything.
pub const PREFIX_MIN: usize = 16;
/// Length of a Hello of profile B, in front of the request.
pub const HELLO_LEN: usize = 32;
/// Length of the request's private data.
pub const REQUEST_LEN: usize = 56;
/// Length of a HelloAck's part that says something.
pub const HELLO_ACK_LEN: usize = 24;
/// Length of the key to a ring behind the proof of a reply.
pub const REPLY_KEY_LEN: usize = 4;
/// Length of the reply's private data.
pub const REPLY_LEN: usize = 196;

/// Version 2: messages are written into rings, whose keys are told.
const VERSION: u8 = 2;
const IPV6: u8 = 1;
const KEYED: u8 = 2;

/// The first bytes of one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    bytes: [u8; PREFIX_MAX],
    len: u8,
}

impl Prefix {
    /// Nothing was carried yet.
    pub const fn new() -> Self {
        Self { bytes: [0; PREFIX_MAX], len: 0 }
    }

    /// The kernel took or gave `bytes` next. Bytes beyond the first 240 are not used.
    pub fn add(&mut self, bytes: &[u8]) {
        let place = self.bytes.get_mut(usize::from(self.len)..).unwrap_or_default();
        let len = place.len().min(bytes.len());
        place.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self.len += len as u8;
    }

    /// So many are known.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// True if none is known.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// So many bytes in units of 16, rounded down: both ends use the same number.
    fn units(&self) -> u8 {
        self.len / 16
    }

    fn first(&self, units: u8) -> Option<&[u8]> {
        self.bytes.get(..usize::from(units) * 16).filter(|_| units <= self.units())
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self::new()
    }
}

/// The facts about one carrier that both ends know. "Acceptor" and "connector" are the roles on the
/// carrier.
#[derive(Debug, Clone, Copy)]
pub struct Carrier<'a> {
    /// First bytes from the acceptor to the connector.
    pub from_acceptor: &'a Prefix,
    /// First bytes from the connector to the acceptor.
    pub from_connector: &'a Prefix,
    /// TCP port of the acceptor.
    pub acceptor_port: u16,
    /// TCP port of the connector.
    pub connector_port: u16,
    /// True for IPv6 that is not mapped.
    pub is_ipv6: bool,
    /// The key that both hosts share; empty without one.
    pub key: &'a [u8],
}

/// Why an attempt to meet is refused. The connection stays where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Fewer than 56 or 196 bytes.
    Short,
    /// Another version, or bits and bytes that must be zero.
    Version,
    /// One end has a key, the other none, or other addresses.
    Flags,
    /// Another connection's port.
    Port,
    /// Nothing to prove with: fewer than 16 bytes each way, or fewer than the caller names.
    NoProof,
    /// The MAC is not right.
    ProofFailed,
}

/// A request that was sent or believed: the base of the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    acceptor_units: u8,
    connector_units: u8,
    nonce: [u8; 8],
}

/// The seals of a meeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seals {
    /// Of markers from the acceptor to the connector.
    pub from_acceptor: Seal,
    /// Of markers from the connector to the acceptor.
    pub from_connector: Seal,
}

impl Carrier<'_> {
    fn flags(&self) -> u8 {
        let ipv6 = if self.is_ipv6 { IPV6 } else { 0 };
        VERSION << 4 | ipv6 | if self.key.is_empty() { 0 } else { KEYED }
    }

    /// The private data of a request; `nonce` is random and used once.
    ///
    /// # Errors
    /// [`Refused::NoProof`].
    pub fn request(
        &self,
        hello: &[u8; HELLO_LEN],
        nonce: [u8; 8],
    ) -> Result<([u8; REQUEST_LEN], Asked), Refused> {
        let asked = Asked {
            acceptor_units: self.from_acceptor.units(),
            connector_units: self.from_connector.units(),
            nonce,
        };
        let mac = self.request_mac(&asked)?;
        let units = asked.acceptor_units << 4 | asked.connector_units;
        let mut out = [0; REQUEST_LEN];
        let port = self.acceptor_port.to_be_bytes();
        fill(&mut out, &[hello, &[self.flags(), units], &port, &nonce, &mac]);
        Ok((out, asked))
    }

    /// The listener judges a request. Bytes behind the 56th are not looked at.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn judge_request(&self, data: &[u8]) -> Result<Asked, Refused> {
        let data = data.first_chunk::<REQUEST_LEN>().ok_or(Refused::Short)?;
        let [.., flags, units, p0, p1] = *data.first_chunk::<36>().ok_or(Refused::Short)?;
        self.check_flags(flags)?;
        if u16::from_be_bytes([p0, p1]) != self.acceptor_port {
            return Err(Refused::Port);
        }
        let nonce = data.get(36..).and_then(<[u8]>::first_chunk).ok_or(Refused::Short)?;
        let mac = data.last_chunk::<12>().ok_or(Refused::Short)?;
        let (acceptor_units, connector_units) = (units >> 4, units & 15);
        let asked = Asked { acceptor_units, connector_units, nonce: *nonce };
        if !is_same(mac, &self.request_mac(&asked)?) {
            return Err(Refused::ProofFailed);
        }
        Ok(asked)
    }

    /// The private data of the reply to a believed request, and the seals; `nonce` is random. `key` is
    /// the caller's: as Hello and HelloAck it is covered by no proof.
    ///
    /// # Errors
    /// [`Refused::NoProof`].
    pub fn reply(
        &self,
        ack: &[u8; HELLO_ACK_LEN],
        key: [u8; REPLY_KEY_LEN],
        asked: &Asked,
        nonce: [u8; 8],
    ) -> Result<([u8; REPLY_LEN], Seals), Refused> {
        let mac = self.secret::<16>(b'P', asked, &nonce)?;
        let mut out = [0; REPLY_LEN];
        fill(&mut out, &[ack, &[self.flags(), 0, 0, 0], &nonce, &mac, &key]);
        Ok((out, self.seals(asked, &nonce)?))
    }

    /// The caller judges the reply to its request.
    ///
    /// # Errors
    /// Why it is dropped.
    pub fn judge_reply(&self, data: &[u8], asked: &Asked) -> Result<Seals, Refused> {
        let data = data.first_chunk::<REPLY_LEN>().ok_or(Refused::Short)?;
        let said = data.get(HELLO_ACK_LEN..).ok_or(Refused::Short)?;
        let [flags, 0, 0, 0] = *said.first_chunk::<4>().ok_or(Refused::Short)? else {
            return Err(Refused::Version);
        };
        self.check_flags(flags)?;
        let nonce = said.get(4..).and_then(<[u8]>::first_chunk::<8>).ok_or(Refused::Short)?;
        let mac = said.get(12..).and_then(<[u8]>::first_chunk::<16>).ok_or(Refused::Short)?;
        if said.get(28 + REPLY_KEY_LEN..).is_none_or(|rest| rest.iter().any(|byte| *byte != 0)) {
            return Err(Refused::Version);
        }
        if !is_same(mac, &self.secret::<16>(b'P', asked, nonce)?) {
            return Err(Refused::ProofFailed);
        }
        self.seals(asked, nonce)
    }

    fn check_flags(&self, flags: u8) -> Result<(), Refused> {
        if flags >> 4 != VERSION || flags & 0xf & !(IPV6 | KEYED) != 0 {
            return Err(Refused::Version);
        }
        if flags == self.flags() { Ok(()) } else { Err(Refused::Flags) }
    }

    /// Over the acceptor's bytes only: the request goes to a host that is not proven yet.
    fn request_mac(&self, asked: &Asked) -> Result<[u8; 12], Refused> {
        if asked.acceptor_units == 0 && asked.connector_units == 0 {
            return Err(Refused::NoProof);
        }
        let prefix = self.from_acceptor.first(asked.acceptor_units).ok_or(Refused::NoProof)?;
        let mut mac = self.begin::<12>(b'R', asked);
        mac.update(prefix);
        Ok(mac.finish())
    }

    /// Over both directions and both nonces.
    fn secret<const N: usize>(
        &self,
        label: u8,
        asked: &Asked,
        nonce: &[u8; 8],
    ) -> Result<[u8; N], Refused> {
        let first = self.from_acceptor.first(asked.acceptor_units).ok_or(Refused::NoProof)?;
        let second = self.from_connector.first(asked.connector_units).ok_or(Refused::NoProof)?;
        let mut mac = self.begin::<N>(label, asked);
        mac.update(nonce);
        mac.update(first);
        mac.update(second);
        Ok(mac.finish())
    }

    /// All fields before the prefixes have fixed lengths, and those are named: no two inputs are alike.
    fn begin<const N: usize>(&self, label: u8, asked: &Asked) -> Blake2s<N> {
        let mut mac = Blake2s::new(self.key);
        mac.update(b"sdp-guard");
        mac.update(&[label, self.flags(), asked.acceptor_units, asked.connector_units]);
        mac.update(&self.acceptor_port.to_be_bytes());
        mac.update(&self.connector_port.to_be_bytes());
        mac.update(&asked.nonce);
        mac
    }

    fn seals(&self, asked: &Asked, nonce: &[u8; 8]) -> Result<Seals, Refused> {
        Ok(Seals {
            from_acceptor: seal(&self.secret(b'A', asked, nonce)?),
            from_connector: seal(&self.secret(b'C', asked, nonce)?),
        })
    }
}

fn seal(secret: &[u8; 32]) -> Seal {
    let token = secret.first_chunk().copied().unwrap_or_default();
    Seal { token, key: secret.last_chunk().copied().unwrap_or_default() }
}

fn fill(out: &mut [u8], fields: &[&[u8]]) {
    let bytes = fields.iter().flat_map(|field| field.iter());
    out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(byte: u8, len: usize) -> Prefix {
        let mut prefix = Prefix::new();
        // In pieces, and more than is kept.
        (0..len).for_each(|at| prefix.add(&[byte.wrapping_add(at as u8)]));
        prefix
    }

    fn carrier<'a>(a: &'a Prefix, c: &'a Prefix, key: &'a [u8]) -> Carrier<'a> {
        Carrier {
            from_acceptor: a,
            from_connector: c,
            acceptor_port: 6379,
            connector_port: 40_000,
            is_ipv6: false,
            key,
        }
    }

    #[test]
    fn both_ends_agree() {
        for (a_len, c_len, key) in
            [(16, 0, &b""[..]), (0, 16, b""), (240, 300, b"k"), (17, 31, b"")]
        {
            let (a, c) = (prefix(1, a_len), prefix(9, c_len));
            // The listener may have seen more by now.
            let (more_a, more_c) = (prefix(1, a_len + 20), prefix(9, c_len + 50));
            let (caller, listener) = (carrier(&a, &c, key), carrier(&more_a, &more_c, key));
            let (request, asked) = caller.request(&[7; 32], [1; 8]).unwrap();
            assert_eq!(&request[..32], &[7; 32]);
            let judged = listener.judge_request(&request).unwrap();
            assert_eq!(judged, asked);
            let (reply, seals) = listener.reply(&[8; 24], [9; 4], &judged, [2; 8]).unwrap();
            assert_eq!(caller.judge_reply(&reply, &asked), Ok(seals));
            assert_ne!(seals.from_acceptor, seals.from_connector);
        }
    }

    #[test]
    fn every_changed_byte_is_refused() {
        let (a, c) = (prefix(1, 100), prefix(9, 100));
        let ends = carrier(&a, &c, b"");
        let (request, asked) = ends.request(&[7; 32], [1; 8]).unwrap();
        let (reply, _) = ends.reply(&[8; 24], [9; 4], &asked, [2; 8]).unwrap();
        for bit in 32 * 8..REQUEST_LEN * 8 {
            let mut bad = request;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ends.judge_request(&bad).is_err(), "bit {bit}");
        }
        let is_key = |bit: &usize| (52..56).contains(&(bit / 8));
        for bit in (24 * 8..REPLY_LEN * 8).filter(|bit| !is_key(bit)) {
            let mut bad = reply;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ends.judge_reply(&bad, &asked).is_err(), "bit {bit}");
        }
        for len in 0..REQUEST_LEN {
            assert_eq!(ends.judge_request(&request[..len]), Err(Refused::Short));
        }
        for len in 0..REPLY_LEN {
            assert_eq!(ends.judge_reply(&reply[..len], &asked), Err(Refused::Short));
        }
    }

    #[test]
    fn attacks_are_refused() {
        let (a, c, other) = (prefix(1, 100), prefix(9, 100), prefix(5, 100));
        let ends = carrier(&a, &c, b"");
        let (request, asked) = ends.request(&[7; 32], [1; 8]).unwrap();
        let (reply, seals) = ends.reply(&[8; 24], [9; 4], &asked, [2; 8]).unwrap();
        // A squatter does not know the stream.
        let stranger = carrier(&other, &other, b"");
        assert_eq!(stranger.judge_request(&request), Err(Refused::ProofFailed));
        let (forged, _) = stranger.reply(&[8; 24], [9; 4], &asked, [2; 8]).unwrap();
        assert_eq!(ends.judge_reply(&forged, &asked), Err(Refused::ProofFailed));
        // It knows the acceptor's bytes, not the connector's.
        let half = carrier(&a, &other, b"");
        let (forged, _) = half.reply(&[8; 24], [9; 4], &asked, [2; 8]).unwrap();
        assert_eq!(ends.judge_reply(&forged, &asked), Err(Refused::ProofFailed));
        // An old reply to a new request; a new nonce makes new seals.
        let (_, again) = ends.request(&[7; 32], [3; 8]).unwrap();
        assert_eq!(ends.judge_reply(&reply, &again), Err(Refused::ProofFailed));
        assert_ne!(ends.reply(&[8; 24], [9; 4], &again, [2; 8]).unwrap().1, seals);
        // Another connection between the same programs.
        let port = Carrier { connector_port: 40_001, ..ends };
        assert_eq!(port.judge_request(&request), Err(Refused::ProofFailed));
        let port = Carrier { acceptor_port: 6380, ..ends };
        assert_eq!(port.judge_request(&request), Err(Refused::Port));
        // One end with a key, or both with different ones.
        let (keyed, wrong) = (carrier(&a, &c, b"key"), carrier(&a, &c, b"kez"));
        assert_eq!(keyed.judge_request(&request), Err(Refused::Flags));
        let (request, _) = keyed.request(&[7; 32], [1; 8]).unwrap();
        assert_eq!(wrong.judge_request(&request), Err(Refused::ProofFailed));
        assert_eq!(Carrier { is_ipv6: true, ..keyed }.judge_request(&request), Err(Refused::Flags));
    }

    #[test]
    fn too_little_proves_nothing() {
        let (a, c) = (prefix(1, 15), prefix(9, 15));
        assert_eq!(carrier(&a, &c, b"").request(&[0; 32], [1; 8]), Err(Refused::NoProof));
        // Sizes beyond those of the listener, and none at all, with any MAC.
        let (long, short) = (prefix(1, 240), prefix(1, 100));
        let (request, _) = carrier(&long, &c, b"").request(&[0; 32], [1; 8]).unwrap();
        assert_eq!(carrier(&short, &c, b"").judge_request(&request), Err(Refused::NoProof));
        let mut none = request;
        none[33] = 0;
        assert_eq!(carrier(&long, &c, b"").judge_request(&none), Err(Refused::NoProof));
    }
}
