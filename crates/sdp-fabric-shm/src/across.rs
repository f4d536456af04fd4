//! What a meeting across network namespaces has in place of addresses: a directory that both ends
//! see, a name made of the stream's first numbers, and packets that prove to know them.
//!
//! Both sequence numbers with which a TCP connection began are the same at both its ends. The one of
//! the end that connected names the meeting; whoever knows it, or both, is taken for an end of the
//! connection as far as a message authentication code goes. Nothing of a packet is used before its
//! code was right. Raw numbers are never sent.
//!
//! Packets, little-endian, without padding. Descriptors travel beside them: join: segment,
//! doorbell?, doorbell page?; accept: doorbell?, doorbell page?; reject: none.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `SDPr` |
//! | 4 | 2 | version of the packet, 5 |
//! | 6 | 1 | kind: 1 join, 2 accept, 3 reject |
//! | 7 | 1 | flags: 1 doorbell and doorbell page attached |
//! | 8 | 4 | slot of the sender's end in its doorbell page |
//! | 12 | 4 | join: bytes per ring; accept: how many first numbers are proven; reject: code |
//! | 16 | 8 | nonce: identity of the sender's process |
//! | 24 | 2 | lowest version of the segment that the sender knows; accept: the version that holds |
//! | 26 | 2 | highest version; accept: the version that holds |
//! | 28 | 4 | 0 |
//! | 32 | 16 | nonce of the meeting |
//! | 48 | 92 or 196 | join: Hello; accept: HelloAck |
//! | 140 or 244 | 16 | code by one number; zeros: the sender wants both |
//! | 156 or 260 | 16 | code by both; zeros: the sender knows one |

use core::{
    ffi::CStr,
    sync::atomic::{AtomicU64, Ordering},
};

use sdp_blake2s::{Blake2s, is_same};
use sdp_sys::{
    kernel,
    stat::{self, Identity},
};

use crate::{identity, refusal::Refusal};

/// Version of these packets.
pub const PACKET_VERSION: u16 = 5;
/// The versions of the segment that this library knows.
pub const VERSIONS: (u16, u16) = (VERSION, VERSION);
const VERSION: u16 = sdp_shm::layout::VERSION as u16;
/// Longest path of a directory.
pub const DIRECTORY_MAX: usize = 64;
/// Longest packet.
pub const MAX_LEN: usize = HEAD_LEN + HELLO_ACK_LEN + 2 * CODE_LEN;

/// Lengths of an SDP Hello and HelloAck, as in the other packets.
pub const HELLO_LEN: usize = 92;
/// See [`HELLO_LEN`].
pub const HELLO_ACK_LEN: usize = 196;
const HEAD_LEN: usize = 48;
const CODE_LEN: usize = 16;
const MAGIC: [u8; 4] = *b"SDPr";
const JOIN: u8 = 1;
const ACCEPT: u8 = 2;
const REJECT: u8 = 3;
/// What a name is a hash of, before the number.
const NAME_LABEL: &[u8] = b"sdp place";
const NAME_LEN: usize = 16;

/// The sequence numbers with which both directions of a TCP connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// That of the end that connected.
    pub connector: u32,
    /// That of the end that accepted, once it is known.
    pub acceptor: Option<u32>,
}

impl Numbers {
    /// How many are known.
    pub const fn known(&self) -> u32 {
        1 + self.acceptor.is_some() as u32
    }

    /// The key made of the first `count` of them. `None`: so many are not known.
    fn key(&self, count: u32) -> Option<([u8; 8], usize)> {
        let [a, b, c, d] = self.connector.to_be_bytes();
        match (count, self.acceptor) {
            (1, _) => Some(([a, b, c, d, 0, 0, 0, 0], 4)),
            (2, Some(acceptor)) => {
                let [e, f, g, h] = acceptor.to_be_bytes();
                Some(([a, b, c, d, e, f, g, h], 8))
            }
            _ => None,
        }
    }
}

/// The directory in which this process meets others: its path, filled up with zeros. A reader that
/// comes while it is changed may find a path that nobody has, and finds nobody there.
static DIRECTORY: Words = [const { AtomicU64::new(0) }; DIRECTORY_MAX / 8];
/// The one before, in which there may be names yet.
static EARLIER: Words = [const { AtomicU64::new(0) }; DIRECTORY_MAX / 8];

type Words = [AtomicU64; DIRECTORY_MAX / 8];

/// Sets the directory: absolute, without a slash at its end; a path that is too long is none.
pub fn set_directory(path: &[u8]) {
    let path = if path.len() > DIRECTORY_MAX || path.contains(&0) { &[] } else { path };
    let mut bytes = [0; DIRECTORY_MAX];
    bytes.iter_mut().zip(path).for_each(|(to, from)| *to = *from);
    if directory().0.get(..DIRECTORY_MAX) == Some(&bytes[..]) {
        return;
    }
    for ((word, before), bytes) in DIRECTORY.iter().zip(&EARLIER).zip(bytes.as_chunks().0) {
        let path = word.swap(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        before.store(path, Ordering::Relaxed);
    }
}

/// The path of the directory and zeros behind it, and its length: 0 where there is none.
pub fn directory() -> ([u8; DIRECTORY_MAX + 1], usize) {
    path_in(&DIRECTORY)
}

fn path_in(words: &Words) -> ([u8; DIRECTORY_MAX + 1], usize) {
    let mut path = [0; DIRECTORY_MAX + 1];
    let bytes = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
    path.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    let len = path.iter().position(|byte| *byte == 0).unwrap_or(0);
    (path, len)
}

/// Whether the directory is one in which ends may meet: it is there, root's, this user's or a
/// user's that has no name here, and a user with the right to make names in it cannot take away names of others.
pub fn is_usable() -> bool {
    let (path, len) = directory();
    let path = CStr::from_bytes_until_nul(&path).unwrap_or(c"");
    len != 0
        && stat::of_path(path).is_ok_and(|stat| {
            let is_sticky = stat.permissions() & libc::S_ISVTX != 0;
            let is_private = stat.permissions() & (libc::S_IWGRP | libc::S_IWOTH) == 0;
            let uid = stat.uid;
            let is_of_no_other = uid == 0
                || uid == identity::effective_uid()
                || identity::check_mapped(uid).is_err();
            stat.is_directory() && is_of_no_other && (is_sticky || is_private)
        })
}

/// The part of a meeting's values that takes the place of addresses.
#[derive(Debug, Clone, Copy)]
pub struct Across {
    /// What is known of the stream.
    pub numbers: Numbers,
    /// How many of them the other end has to prove to know, at least.
    pub least: u32,
    /// This end connected: it is side 0.
    pub is_connector: bool,
}

impl Across {
    /// Which side this end is.
    pub const fn side(&self) -> u8 {
        !self.is_connector as u8
    }

    /// Whether nothing can come of a meeting by now, because this end knows less than it demands.
    pub const fn knows_too_little(&self) -> bool {
        self.numbers.known() < self.least
    }
}

/// A path in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path([u8; PATH_MAX]);

const PATH_MAX: usize = DIRECTORY_MAX + 2 + 2 * NAME_LEN + 1;

impl Path {
    fn new(words: &Words, prefix: &[u8], name: &[u8]) -> Self {
        let (directory, len) = path_in(words);
        let mut path = Self([0; PATH_MAX]);
        let digit = |half: u8| if half < 10 { b'0' + half } else { b'a' + half - 10 };
        let digits = name.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
        let all = directory.into_iter().take(len).chain(prefix.iter().copied()).chain(digits);
        path.0.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        path
    }

    /// Where the ends of a connection meet.
    pub fn of_meeting(connector: u32) -> Self {
        Self::of_meeting_in(&DIRECTORY, connector)
    }

    /// The same name where it may have been published: in this directory, and in the one before.
    pub fn of_earlier_meeting(connector: u32) -> [Self; 2] {
        [&DIRECTORY, &EARLIER].map(|words| Self::of_meeting_in(words, connector))
    }

    fn of_meeting_in(words: &Words, connector: u32) -> Self {
        let mut hash = Blake2s::<NAME_LEN>::new(&[]);
        hash.update(NAME_LABEL);
        hash.update(&connector.to_be_bytes());
        Self::new(words, b"/", &hash.finish())
    }

    /// A number that nobody else has.
    pub fn fresh() -> Self {
        let name = random();
        Self::new(&DIRECTORY, b"/.", name.get(..NAME_LEN / 2).unwrap_or(&[]))
    }

    /// The path.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.as_c_str().to_bytes()
    }
}

/// Bytes that nobody can guess, as far as the kernel has some.
pub(crate) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    let _ = kernel::random_bytes(&mut bytes, libc::GRND_NONBLOCK);
    bytes
}

/// The fields about its sender and the meeting of every packet but a reject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Identity that the process chose at random.
    pub process: u64,
    /// The end's place in the sender's doorbell page.
    pub slot: u32,
    /// A doorbell and a doorbell page are attached.
    pub has_doorbell: bool,
    /// Lowest and highest version of the segment.
    pub versions: (u16, u16),
    /// Nonce of the meeting.
    pub nonce: [u8; 16],
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// From the end that connected to the name.
    Join {
        /// Bytes per ring of the attached segment.
        ring_bytes: u32,
        /// SDP Hello.
        hello: [u8; HELLO_LEN],
    },
    /// The offerer's yes.
    Accept {
        /// How many first numbers both ends have proven to know.
        proven: u32,
        /// SDP HelloAck.
        ack: [u8; HELLO_ACK_LEN],
    },
    /// The offerer's no.
    Reject {
        /// Code of a `RejectCode`; unknown ones are possible.
        code: u32,
    },
}

/// What a code covers beside the packet itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Of a join: the segment that comes with it.
    Segment(Identity),
    /// Of an accept: the join's nonce of the meeting, and its segment.
    Answer([u8; 16], Identity),
}

/// A packet as it travels.
#[derive(Debug, Clone, Copy)]
pub struct Encoded {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl Encoded {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

/// Builds a packet with its codes.
pub fn encode(head: &Head, body: &Body, bound: Bound, across: &Across) -> Encoded {
    let (kind, word, tail): (u8, u32, &[u8]) = match body {
        Body::Join { ring_bytes, hello } => (JOIN, *ring_bytes, hello),
        Body::Accept { proven, ack } => (ACCEPT, *proven, ack),
        Body::Reject { code } => (REJECT, *code, &[]),
    };
    let [low, high] = PACKET_VERSION.to_le_bytes();
    let parts: [&[u8]; 9] = [
        &MAGIC,
        &[low, high, kind, u8::from(head.has_doorbell)],
        &head.slot.to_le_bytes(),
        &word.to_le_bytes(),
        &head.process.to_le_bytes(),
        &head.versions.0.to_le_bytes(),
        &head.versions.1.to_le_bytes(),
        &[0; 4],
        &head.nonce,
    ];
    let mut encoded = Encoded { bytes: [0; MAX_LEN], len: HEAD_LEN + tail.len() };
    let fixed = parts.into_iter().flatten().chain(tail);
    encoded.bytes.iter_mut().zip(fixed).for_each(|(to, from)| *to = *from);
    if kind == REJECT {
        return encoded;
    }
    // An accept has the one code that it promises.
    let wanted = |count| match body {
        Body::Accept { proven, .. } => count == *proven,
        _ => count >= across.least,
    };
    let covered = encoded.len;
    let codes = [1, 2].map(|count| {
        let code = |()| code(&across.numbers, count, encoded.as_bytes(), bound);
        wanted(count).then_some(()).and_then(code).unwrap_or([0; CODE_LEN])
    });
    let room = encoded.bytes.get_mut(covered..).unwrap_or(&mut []);
    room.iter_mut().zip(codes.iter().flatten()).for_each(|(to, from)| *to = *from);
    encoded.len += 2 * CODE_LEN;
    encoded
}

/// The code of a packet by the first `count` numbers. `None`: so many are not known.
fn code(numbers: &Numbers, count: u32, packet: &[u8], bound: Bound) -> Option<[u8; CODE_LEN]> {
    let (key, len) = numbers.key(count)?;
    let mut hash = Blake2s::<CODE_LEN>::new(key.get(..len)?);
    hash.update(packet);
    let segment = match bound {
        Bound::Segment(segment) => segment,
        Bound::Answer(nonce, segment) => {
            hash.update(&nonce);
            segment
        }
    };
    hash.update(&segment.dev.to_le_bytes());
    hash.update(&segment.ino.to_le_bytes());
    Some(hash.finish())
}

/// A packet that has the right form, and whose codes have not been looked at.
#[derive(Debug, Clone, Copy)]
pub struct Decoded {
    /// The fields about its sender.
    pub head: Head,
    /// The rest.
    pub body: Body,
    codes: [[u8; CODE_LEN]; 2],
    covered: usize,
}

/// Takes a packet apart.
///
/// # Errors
/// [`Refusal::Version`]: ours, but another version; [`Refusal::Untrusted`]: unknown magic, kind or
/// flags, or a length that does not fit exactly.
pub fn decode(bytes: &[u8]) -> Result<Decoded, Refusal> {
    let bad = Refusal::Untrusted;
    let u16_at = |at| field(bytes, at).map(u16::from_le_bytes).ok_or(bad);
    let u32_at = |at| field(bytes, at).map(u32::from_le_bytes).ok_or(bad);
    if field(bytes, 0) != Some(MAGIC) {
        return Err(bad);
    }
    if u16_at(4)? != PACKET_VERSION {
        return Err(Refusal::Version);
    }
    let [kind, flags] = field(bytes, 6).ok_or(bad)?;
    let word = u32_at(12)?;
    let head = Head {
        process: field(bytes, 16).map(u64::from_le_bytes).ok_or(bad)?,
        slot: u32_at(8)?,
        has_doorbell: flags == 1,
        versions: (u16_at(24)?, u16_at(26)?),
        nonce: field(bytes, 32).ok_or(bad)?,
    };
    let tail = bytes.get(HEAD_LEN..).ok_or(bad)?;
    if flags > 1 || u32_at(28)? != 0 {
        return Err(bad);
    }
    if kind == REJECT {
        let fits = tail.is_empty() && flags == 0;
        let body = Body::Reject { code: word };
        let codes = [[0; CODE_LEN]; 2];
        return if fits { Ok(Decoded { head, body, codes, covered: 0 }) } else { Err(bad) };
    }
    let covered = bytes.len().checked_sub(2 * CODE_LEN).ok_or(bad)?;
    let whole = bytes.get(HEAD_LEN..covered).ok_or(bad)?;
    let body = match kind {
        JOIN => Body::Join { ring_bytes: word, hello: whole.try_into().map_err(|_| bad)? },
        ACCEPT => Body::Accept { proven: word, ack: whole.try_into().map_err(|_| bad)? },
        _ => return Err(bad),
    };
    let code = |at| field(bytes, covered + at).ok_or(bad);
    Ok(Decoded { head, body, codes: [code(0)?, code(CODE_LEN)?], covered })
}

impl Decoded {
    /// How many first numbers the sender of the packet `bytes` has proven to know, if they are
    /// enough.
    pub fn proven(&self, bytes: &[u8], bound: Bound, across: &Across) -> Option<u32> {
        let covered = bytes.get(..self.covered)?;
        let is_right = |count: u32| {
            let sent = self.codes.get(count as usize - 1);
            let own = code(&across.numbers, count, covered, bound);
            matches!((sent, own), (Some(sent), Some(own)) if is_same(sent, &own))
        };
        let promised = |count: u32| match self.body {
            Body::Accept { proven, .. } => proven == count,
            _ => true,
        };
        [2, 1]
            .into_iter()
            .find(|count| *count >= across.least && promised(*count) && is_right(*count))
    }

    /// The version of the segment that both ends know.
    ///
    /// # Errors
    /// [`Refusal::Version`]: there is none.
    pub fn common_version(&self) -> Result<u16, Refusal> {
        let (low, high) = self.head.versions;
        let highest = high.min(VERSIONS.1);
        if low <= high && highest >= low.max(VERSIONS.0) {
            Ok(highest)
        } else {
            Err(Refusal::Version)
        }
    }
}

/// The `N` bytes at `offset`.
fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head = Head {
        process: 0x0102_0304_0506_0708,
        slot: 9,
        has_doorbell: true,
        versions: VERSIONS,
        nonce: [5; 16],
    };
    const SEGMENT: Bound = Bound::Segment(Identity { dev: 1, ino: 77 });

    fn across(acceptor: Option<u32>, least: u32) -> Across {
        let numbers = Numbers { connector: 0x1234_5678, acceptor };
        Across { numbers, least, is_connector: true }
    }

    fn join() -> Body {
        Body::Join { ring_bytes: 65_536, hello: [7; HELLO_LEN] }
    }

    #[test]
    fn names_are_of_the_number_alone() {
        set_directory(b"/run/sdp");
        let path = Path::of_meeting(1);
        assert_eq!(path.as_bytes().len(), 8 + 1 + 32);
        assert_eq!(path, Path::of_meeting(1));
        assert_ne!(path, Path::of_meeting(2));
        assert!(path.as_bytes()[9..].iter().all(u8::is_ascii_hexdigit));
        let fresh = Path::fresh();
        assert!(fresh.as_bytes().starts_with(b"/run/sdp/."));
        assert_ne!(fresh, Path::fresh());
        set_directory(&[b'a'; DIRECTORY_MAX]);
        assert_eq!(Path::of_meeting(1).as_bytes().len(), DIRECTORY_MAX + 1 + 32);
        set_directory(&[b'a'; DIRECTORY_MAX + 1]);
        assert_eq!(directory().1, 0);
        assert!(!is_usable());
    }

    #[test]
    fn round_trip() {
        let bodies =
            [join(), Body::Accept { proven: 2, ack: [8; HELLO_ACK_LEN] }, Body::Reject { code: 2 }];
        for body in bodies {
            let head = match body {
                Body::Reject { .. } => Head { has_doorbell: false, ..HEAD },
                _ => HEAD,
            };
            let encoded = encode(&head, &body, SEGMENT, &across(Some(1), 1));
            let decoded = decode(encoded.as_bytes()).unwrap();
            assert_eq!((decoded.head, decoded.body), (head, body));
            for len in (0..MAX_LEN).filter(|len| *len != encoded.len) {
                assert!(decode(&encoded.bytes[..len]).is_err(), "{body:?} as {len}");
            }
        }
    }

    #[test]
    fn who_knows_more_proves_more() {
        let both = across(Some(9), 1);
        let one = across(None, 1);
        let strict = across(Some(9), 2);
        let proven = |from: &Across, to: &Across| {
            let encoded = encode(&HEAD, &join(), SEGMENT, from);
            decode(encoded.as_bytes()).unwrap().proven(encoded.as_bytes(), SEGMENT, to)
        };
        assert_eq!(proven(&both, &both), Some(2));
        assert_eq!(proven(&both, &one), Some(1));
        assert_eq!(proven(&one, &both), Some(1));
        assert_eq!(proven(&one, &strict), None, "both are wanted");
        assert_eq!(proven(&strict, &one), None, "who wants both does not prove one");
        assert_eq!(proven(&strict, &both), Some(2));
        assert_eq!(proven(&across(Some(8), 1), &both), Some(1), "another second number");
        assert_eq!(proven(&across(Some(8), 1), &strict), None);
        let other = Across { numbers: Numbers { connector: 1, ..both.numbers }, ..both };
        assert_eq!(proven(&other, &both), None);
    }

    #[test]
    fn an_answer_proves_what_it_promises_only() {
        let both = across(Some(9), 1);
        let bound = Bound::Answer([3; 16], Identity { dev: 1, ino: 77 });
        for promised in [0, 1, 2, 3, u32::MAX] {
            let body = Body::Accept { proven: promised, ack: [8; HELLO_ACK_LEN] };
            let encoded = encode(&HEAD, &body, bound, &both);
            let decoded = decode(encoded.as_bytes()).unwrap();
            let proven = decoded.proven(encoded.as_bytes(), bound, &both);
            assert_eq!(proven, [1, 2].contains(&promised).then_some(promised));
        }
    }

    #[test]
    fn every_changed_byte_is_seen() {
        let both = across(Some(9), 2);
        let good = encode(&HEAD, &join(), SEGMENT, &both);
        for at in (0..good.len).filter(|at| !(140..156).contains(at)) {
            let mut bytes = good.bytes;
            bytes[at] ^= 1;
            let bytes = &bytes[..good.len];
            let proven = decode(bytes).map(|decoded| decoded.proven(bytes, SEGMENT, &both));
            assert!(!matches!(proven, Ok(Some(_))), "{at}");
        }
        let decoded = decode(good.as_bytes()).unwrap();
        for bound in [
            Bound::Segment(Identity { dev: 1, ino: 78 }),
            Bound::Segment(Identity { dev: 2, ino: 77 }),
            Bound::Answer([5; 16], Identity { dev: 1, ino: 77 }),
        ] {
            assert_eq!(decoded.proven(good.as_bytes(), bound, &both), None);
        }
    }

    #[test]
    fn the_highest_common_version_holds() {
        let (low, high) = VERSIONS;
        let common = |versions| {
            let head = Head { versions, ..HEAD };
            let encoded = encode(&head, &join(), SEGMENT, &across(None, 1));
            decode(encoded.as_bytes()).unwrap().common_version()
        };
        assert_eq!(common((low, high)), Ok(high));
        assert_eq!(common((0, u16::MAX)), Ok(high));
        assert_eq!(common((high + 1, u16::MAX)), Err(Refusal::Version));
        assert_eq!(common((0, low - 1)), Err(Refusal::Version));
        assert_eq!(common((high, low - 1)), Err(Refusal::Version), "not a range");
    }
}
