//! The marker: 48 bytes on the carrier that are no payload.

use sdp_blake2s::{Blake2s, is_same};

/// Length of a marker.
pub const MARKER_LEN: usize = 48;
/// Length of a token.
pub const TOKEN_LEN: usize = 16;
/// Most bytes that may follow a RETURN: more than the kernels of two hosts keep of one direction, as they are set up
/// usually.
pub const RETURN_MAX: u32 = 16 << 20;
const VERSION: u8 = 1;

/// Recognises one direction's markers and proves them; new with each meeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seal {
    /// The first bytes of a marker.
    pub token: [u8; TOKEN_LEN],
    /// Key of its MAC.
    pub key: [u8; 16],
}

/// The kind of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The process on the queue pair holds this carrier.
    Proof = 1,
    /// From the producer: payload follows from the stream position on; the SDP section is over.
    Kernel = 2,
    /// From the consumer: the queue pair is finished for me, resume.
    Dead = 3,
    /// From the consumer: a reader follows that knows nothing; answer RAW and hold.
    Leave = 4,
    /// From the producer: it sends no payload before the RETURN that it has to send, and only raw
    /// after.
    Raw = 5,
    /// From the consumer that left: send again from here; the first bytes follow.
    Return = 6,
}

impl Kind {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Proof,
            2 => Self::Kernel,
            3 => Self::Dead,
            4 => Self::Leave,
            5 => Self::Raw,
            6 => Self::Return,
            _ => return None,
        })
    }
}

/// A marker, without its token and MAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marker {
    /// Its kind.
    pub kind: Kind,
    /// Number of the switch that it makes: even for KERNEL; 0 for all others.
    pub sequence: u32,
    /// Stream position in bytes.
    pub stream: u64,
    /// Carrier position in bytes at which the marker begins.
    pub carrier: u64,
    /// Bytes behind it that belong to it; RETURN only, at most [`RETURN_MAX`].
    pub follows: u32,
}

/// The error in bytes that should be a marker: the peer broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadMarker {
    /// It does not begin with the token.
    Token,
    /// Its MAC is not that of this direction.
    Mac,
    /// Another version, or bytes that must be zero.
    Version,
    /// No such kind.
    Kind,
    /// A sequence that does not fit the kind.
    Sequence,
    /// It says that it stands elsewhere on the carrier.
    Place,
    /// A length that does not fit the kind.
    Length,
}

impl Marker {
    /// The bytes for the carrier, to be sent whole.
    pub fn encode(&self, seal: &Seal) -> [u8; MARKER_LEN] {
        let mut out = [0; MARKER_LEN];
        let fields: [&[u8]; 6] = [
            &seal.token,
            &[self.kind as u8, VERSION, 0, 0],
            &self.sequence.to_be_bytes(),
            &self.stream.to_be_bytes(),
            &self.carrier.to_be_bytes(),
            &self.follows.to_be_bytes(),
        ];
        let bytes = fields.iter().flat_map(|field| field.iter());
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        if let Some((said, mac)) = out.split_last_chunk_mut::<4>() {
            *mac = mac_of(said, seal);
        }
        out
    }

    /// Reads a marker that was found at `place` of the carrier. Nothing of it is believed before its MAC
    /// is right.
    ///
    /// # Errors
    /// The error; the connection is to be reset.
    pub fn parse(bytes: &[u8; MARKER_LEN], seal: &Seal, place: u64) -> Result<Self, BadMarker> {
        let [token @ .., _, _, _, _] = bytes;
        let Some(token) = token.first_chunk::<TOKEN_LEN>() else { return Err(BadMarker::Token) };
        if !is_same(token, &seal.token) {
            return Err(BadMarker::Token);
        }
        let Some((said, mac)) = bytes.split_last_chunk::<4>() else { return Err(BadMarker::Mac) };
        if !is_same(mac, &mac_of(said, seal)) {
            return Err(BadMarker::Mac);
        }
        let word = |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).copied();
        let long = |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).copied();
        let Some([kind, VERSION, 0, 0]) = word(16) else { return Err(BadMarker::Version) };
        let kind = Kind::from_byte(kind).ok_or(BadMarker::Kind)?;
        let marker = Self {
            kind,
            sequence: u32::from_be_bytes(word(20).unwrap_or_default()),
            stream: u64::from_be_bytes(long(24).unwrap_or_default()),
            carrier: u64::from_be_bytes(long(32).unwrap_or_default()),
            follows: u32::from_be_bytes(word(40).unwrap_or_default()),
        };
        let switches = kind == Kind::Kernel;
        if (marker.sequence != 0) != switches || !marker.sequence.is_multiple_of(2) {
            return Err(BadMarker::Sequence);
        }
        if marker.carrier != place {
            return Err(BadMarker::Place);
        }
        if marker.follows > if kind == Kind::Return { RETURN_MAX } else { 0 } {
            return Err(BadMarker::Length);
        }
        Ok(marker)
    }
}

fn mac_of(said: &[u8], seal: &Seal) -> [u8; 4] {
    let mut mac = Blake2s::<4>::new(&seal.key);
    mac.update(said);
    mac.finish()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SEAL: Seal =
        Seal { token: *b"\x11token-of-a-to-b", key: *b"key-of-a-to-b..." };
    const KINDS: [Kind; 6] =
        [Kind::Proof, Kind::Kernel, Kind::Dead, Kind::Leave, Kind::Raw, Kind::Return];

    fn markers() -> impl Iterator<Item = Marker> {
        KINDS.into_iter().flat_map(|kind| {
            [0, 1, 255, 1 << 40, u64::MAX].into_iter().map(move |stream| Marker {
                kind,
                sequence: if kind == Kind::Kernel { 2 } else { 0 },
                stream,
                carrier: !stream,
                follows: if kind == Kind::Return { RETURN_MAX } else { 0 },
            })
        })
    }

    #[test]
    fn what_is_written_is_read() {
        for marker in markers() {
            let bytes = marker.encode(&SEAL);
            assert_eq!(Marker::parse(&bytes, &SEAL, marker.carrier), Ok(marker));
        }
    }

    #[test]
    fn no_changed_bit_is_believed() {
        for marker in markers() {
            let bytes = marker.encode(&SEAL);
            for bit in 0..MARKER_LEN * 8 {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                let want = if bit < 128 { BadMarker::Token } else { BadMarker::Mac };
                assert_eq!(Marker::parse(&bad, &SEAL, marker.carrier), Err(want));
            }
            let other = Seal { key: [0; 16], ..SEAL };
            assert_eq!(Marker::parse(&bytes, &other, marker.carrier), Err(BadMarker::Mac));
            let elsewhere = marker.carrier.wrapping_add(1);
            assert_eq!(Marker::parse(&bytes, &SEAL, elsewhere), Err(BadMarker::Place));
        }
    }

    /// A peer that holds the key and says nonsense.
    #[test]
    fn nonsense_with_a_right_mac_is_refused() {
        let sealed = |change: &dyn Fn(&mut [u8; MARKER_LEN])| {
            let kernel =
                Marker { kind: Kind::Kernel, sequence: 2, stream: 9, carrier: 5, follows: 0 };
            let mut bytes = kernel.encode(&SEAL);
            change(&mut bytes);
            let mac = mac_of(&bytes[..44], &SEAL);
            bytes[44..].copy_from_slice(&mac);
            Marker::parse(&bytes, &SEAL, 5)
        };
        assert!(sealed(&|_| {}).is_ok());
        for kind in (0..=255_u8).filter(|kind| !(1..=6).contains(kind)) {
            assert_eq!(sealed(&|b| b[16] = kind), Err(BadMarker::Kind));
        }
        for version in (0..=255_u8).filter(|version| *version != 1) {
            assert_eq!(sealed(&|b| b[17] = version), Err(BadMarker::Version));
        }
        assert_eq!(sealed(&|b| b[18] = 1), Err(BadMarker::Version));
        assert_eq!(sealed(&|b| b[23] = 3), Err(BadMarker::Sequence));
        assert_eq!(sealed(&|b| b[23] = 0), Err(BadMarker::Sequence));
        assert_eq!(sealed(&|b| b[16] = 4), Err(BadMarker::Sequence));
        assert_eq!(sealed(&|b| b[43] = 1), Err(BadMarker::Length));
        let too_long = |b: &mut [u8; MARKER_LEN]| {
            b[16] = 6;
            b[23] = 0;
            b[40..44].copy_from_slice(&(RETURN_MAX + 1).to_be_bytes());
        };
        assert_eq!(sealed(&too_long), Err(BadMarker::Length));
    }

    #[test]
    fn random_bytes_are_never_markers() {
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            let mut bytes = [0; MARKER_LEN];
            for byte in &mut bytes {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (seed >> 33) as u8;
            }
            assert!(Marker::parse(&bytes, &SEAL, 0).is_err());
            bytes[..16].copy_from_slice(&SEAL.token);
            assert_eq!(Marker::parse(&bytes, &SEAL, 0), Err(BadMarker::Mac));
        }
    }
}
