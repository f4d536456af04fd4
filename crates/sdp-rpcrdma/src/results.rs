//! Where the one result lies that a Write chunk may take (RFC 8267): the data of a READ, the target
//! of a READLINK.
//!
//! This is the only knowledge of NFS here. It is asked for replies to calls that brought a Write
//! chunk; all else is opaque. A reply that it cannot follow has no such result: it goes inline, or
//! into the Reply chunk, and the Write chunk comes back unused.

use crate::rpc::{Direction, Target, direction, roundup, word};

/// NFS.
const NFS: u32 = 100_003;

/// The place of an opaque's bytes in a reply, without length word and padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Where they begin.
    pub at: u32,
    /// How many there are.
    pub len: u32,
}

/// Why there is no such result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoResult {
    /// The call was refused or failed, or its procedure has none.
    None,
    /// An operation of a COMPOUND whose results are not known stands before it.
    Unknown(u32),
    /// The reply ends before its own lengths say.
    Malformed,
}

/// Reads a reply from its beginning.
struct Words<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Words<'_> {
    fn next(&mut self) -> Result<u32, NoResult> {
        let word = self.bytes.get(self.at..).and_then(|rest| word(rest, 0));
        self.at += 4;
        word.ok_or(NoResult::Malformed)
    }

    fn skip(&mut self, bytes: u32) -> Result<(), NoResult> {
        self.at = self.at.checked_add(bytes as usize).ok_or(NoResult::Malformed)?;
        if self.at > self.bytes.len() { Err(NoResult::Malformed) } else { Ok(()) }
    }

    /// An opaque: its bytes are passed over.
    fn opaque(&mut self) -> Result<Place, NoResult> {
        let len = self.next()?;
        let at = u32::try_from(self.at).map_err(|_| NoResult::Malformed)?;
        self.skip(len)?;
        self.skip(roundup(len))?;
        Ok(Place { at, len })
    }

    fn bitmap(&mut self) -> Result<(), NoResult> {
        let words = self.next()?;
        self.skip(words.checked_mul(4).ok_or(NoResult::Malformed)?)
    }

    /// Attributes that may be missing, of version 3.
    fn attributes(&mut self) -> Result<(), NoResult> {
        match self.next()? {
            0 => Ok(()),
            _ => self.skip(84),
        }
    }
}

/// Where the result lies in a whole reply to a call of `target`.
///
/// # Errors
/// There is none.
pub fn place_of(target: Target, reply: &[u8]) -> Result<Place, NoResult> {
    let Some((_, Direction::Reply)) = direction(reply) else { return Err(NoResult::Malformed) };
    if target.program != NFS {
        return Err(NoResult::None);
    }
    let mut words = Words { bytes: reply, at: 8 };
    if words.next()? != 0 {
        return Err(NoResult::None); // denied
    }
    words.next()?; // the verifier's flavour
    words.opaque()?;
    if words.next()? != 0 {
        return Err(NoResult::None); // not executed
    }
    let status = words.next()?;
    match (target.version, target.procedure) {
        // A failed call has no data.
        (2 | 3, 5 | 6) if status != 0 => Err(NoResult::None),
        (2, 5) => words.opaque(),
        (2, 6) => {
            words.skip(68)?;
            words.opaque()
        }
        (3, 5) => {
            words.attributes()?;
            words.opaque()
        }
        (3, 6) => {
            words.attributes()?;
            words.skip(8)?;
            words.opaque()
        }
        (4, 1) => compound(&mut words),
        _ => Err(NoResult::None),
    }
}

/// The first READ or READLINK that succeeded in the results of a COMPOUND.
fn compound(words: &mut Words<'_>) -> Result<Place, NoResult> {
    words.opaque()?; // the tag
    for _ in 0..words.next()? {
        let (operation, status) = (words.next()?, words.next()?);
        if status != 0 {
            break; // the last one
        }
        match operation {
            // READ
            25 => {
                words.skip(4)?;
                return words.opaque();
            }
            // READLINK
            27 => return words.opaque(),
            _ => pass(operation, words)?,
        }
    }
    Err(NoResult::None)
}

/// Passes over the results of an operation that succeeded.
fn pass(operation: u32, words: &mut Words<'_>) -> Result<(), NoResult> {
    match operation {
        // DELEGPURGE, DELEGRETURN, LOCKT, LOOKUP, LOOKUPP, NVERIFY, OPENATTR, PUTFH, PUTPUBFH,
        // PUTROOTFH, RENEW, RESTOREFH, SAVEFH, VERIFY, RELEASE_LOCKOWNER
        7 | 8 | 13 | 15..=17 | 19 | 22..=24 | 30..=32 | 37 | 39 => Ok(()),
        // ACCESS, COMMIT
        3 | 5 => words.skip(8),
        // CLOSE, LOCK, LOCKU, OPEN_CONFIRM, OPEN_DOWNGRADE, WRITE
        4 | 12 | 14 | 20 | 21 | 38 => words.skip(16),
        // CREATE
        6 => {
            words.skip(20)?;
            words.bitmap()
        }
        // GETATTR
        9 => {
            words.bitmap()?;
            words.opaque().map(|_| ())
        }
        // GETFH
        10 => words.opaque().map(|_| ()),
        // LINK, REMOVE
        11 | 28 => words.skip(20),
        // OPEN
        18 => open(words),
        // RENAME
        29 => words.skip(40),
        // SETATTR
        34 => words.bitmap(),
        // SEQUENCE
        53 => words.skip(36),
        _ => Err(NoResult::Unknown(operation)),
    }
}

/// The results of OPEN: state, change, flags, attributes, delegation.
fn open(words: &mut Words<'_>) -> Result<(), NoResult> {
    words.skip(16 + 20 + 4)?;
    words.bitmap()?;
    let entry = |words: &mut Words<'_>| {
        words.skip(12)?;
        words.opaque().map(|_| ())
    };
    match words.next()? {
        0 => Ok(()),
        // To read.
        1 => {
            words.skip(20)?;
            entry(words)
        }
        // To write: with a limit of space.
        2 => {
            words.skip(20 + 12)?;
            entry(words)
        }
        // None, and why; two of the reasons say more.
        3 => match words.next()? {
            1 | 2 => words.skip(4),
            _ => Ok(()),
        },
        _ => Err(NoResult::Unknown(18)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ3: Target = Target { program: NFS, version: 3, procedure: 6 };
    const COMPOUND: Target = Target { program: NFS, version: 4, procedure: 1 };

    fn reply(words: &[u32]) -> Vec<u8> {
        let head = [9, 1, 0, 0, 0, 0];
        head.iter().chain(words).flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn a_read_of_version_3() {
        let with = |flag: u32, len: u32| {
            let mut words = vec![0, flag];
            words.extend(std::iter::repeat_n(5, if flag == 1 { 21 } else { 0 }));
            words.extend([len, 0, len]);
            let mut bytes = reply(&words);
            bytes.extend(std::iter::repeat_n(0xaa, (len + roundup(len)) as usize));
            bytes
        };
        for len in [0, 1, 4, 3001] {
            let at = (24 + 8 + 84 + 12) as u32;
            assert_eq!(place_of(READ3, &with(1, len)), Ok(Place { at, len }));
            assert_eq!(place_of(READ3, &with(0, len)), Ok(Place { at: at - 84, len }));
        }
        let short = with(1, 100);
        for len in 0..short.len() {
            assert_eq!(place_of(READ3, &short[..len]), Err(NoResult::Malformed), "{len}");
        }
        assert_eq!(place_of(READ3, &reply(&[2, 0])), Err(NoResult::None), "no such file");
        let other = Target { procedure: 7, ..READ3 };
        assert_eq!(place_of(other, &short), Err(NoResult::None));
        assert_eq!(place_of(Target { program: 100_227, ..READ3 }, &short), Err(NoResult::None));
    }

    #[test]
    fn a_read_behind_other_operations() {
        let mut words = vec![0, 3, 0x6162_6300, 6];
        words.extend([53, 0]);
        words.extend([1; 9]);
        words.extend([22, 0]);
        words.extend([18, 0]);
        words.extend([1; 10]); // state, change, flags
        words.extend([2, 0, 0]); // attributes
        words.extend([2, 1, 1, 1, 1, 0, 7, 7, 7, 1, 1, 1, 5, 0, 0]); // delegation, entry's name
        words.extend([9, 0, 2, 1, 1, 6, 0, 0]); // attributes of six bytes
        words.extend([38, 0, 1, 1, 1, 1]);
        words.extend([25, 0, 1, 5]);
        let mut bytes = reply(&words);
        let at = bytes.len() as u32;
        bytes.extend([1, 2, 3, 4, 5, 0, 0, 0]);
        assert_eq!(place_of(COMPOUND, &bytes), Ok(Place { at, len: 5 }));
    }

    #[test]
    fn what_is_not_known_or_has_failed() {
        assert_eq!(place_of(COMPOUND, &reply(&[0, 0, 1, 99, 0])), Err(NoResult::Unknown(99)));
        assert_eq!(place_of(COMPOUND, &reply(&[70, 0, 1, 25, 70])), Err(NoResult::None));
        assert_eq!(place_of(COMPOUND, &reply(&[0, 0, 0])), Err(NoResult::None));
        let endless = reply(&[0, 0, u32::MAX, 22, 0]);
        assert_eq!(place_of(COMPOUND, &endless), Err(NoResult::Malformed));
        let huge = reply(&[0, u32::MAX]);
        assert_eq!(place_of(COMPOUND, &huge), Err(NoResult::Malformed));
    }
}
