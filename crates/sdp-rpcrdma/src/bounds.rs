//! How long the reply to a call may be, so that a Reply chunk is offered where one is needed, and no
//! larger than needed.
//!
//! A guess that is too low costs the call (`ERR_CHUNK`), so what is not known here may have any
//! length. Servers may always use a chunk that is offered, which costs one RDMA operation more.

use crate::rpc::{Target, roundup, word};

/// NFS.
const NFS: u32 = 100_003;
/// MOUNT, the lock manager and others come here only by mistake.
const NFSACL: u32 = 100_227;
/// `RPCSEC_GSS`, whose replies may be wrapped.
const GSS: u32 = 6;
/// Bytes of a reply beside data whose length the call says: headers, a verifier, attributes.
const BESIDE: u32 = 1024;
/// Bytes of a reply of version 2 or 3 without such data: two sets of attributes for each of two
/// folders, a handle of 64 bytes.
const SHORT: u32 = 1024;
/// Bytes of the target of a link, `PATH_MAX` of Linux, as long as a server gives one.
const LINK: u32 = 4096;
/// Bytes of attributes of version 4, but for those that may have any length.
const ATTRIBUTES: u32 = 1500;
/// Bytes of what OPEN says: state, attributes that were set, a delegation and who it is for.
const OPEN: u32 = 1024;
/// Bytes of what LOCK says: state, or who has the lock.
const LOCK: u32 = 1100;
/// Operations of a COMPOUND that are looked at.
const OPERATIONS_MAX: u32 = 64;

/// Words of a call's arguments.
struct Words<'a> {
    call: &'a [u8],
    index: usize,
}

impl Words<'_> {
    fn next(&mut self) -> Option<u32> {
        let word = word(self.call, self.index)?;
        self.index += 1;
        Some(word)
    }

    fn skip(&mut self, words: usize) -> Option<()> {
        self.index = self.index.checked_add(words)?;
        Some(())
    }

    fn opaque(&mut self) -> Option<u32> {
        let len = self.next()?;
        self.skip((len as usize).checked_add(roundup(len) as usize)? / 4)?;
        Some(len)
    }

    fn bitmap(&mut self) -> Option<()> {
        let words = self.next()?;
        self.skip(words as usize)
    }

    /// Names of attributes none of which may have any length: ACL, dacl, sacl, fs_locations and
    /// fs_locations_info, fs_status, layout types and hints, mdsthreshold, security labels, and what
    /// is not known yet. Owners have at most 128 bytes, as Linux takes them.
    fn short_attributes(&mut self) -> Option<()> {
        const LONG: [u32; 3] = [
            1 << 12 | 1 << 24,
            1 << 26 | 1 << 27 | 1 << 29 | 1 << 30 | 1 << 31,
            1 | 1 << 3 | 1 << 4 | 1 << 16,
        ];
        let words = self.next()?;
        for index in 0..words {
            let long = LONG.get(index as usize)?;
            if self.next()? & long != 0 {
                return None;
            }
        }
        Some(())
    }
}

/// The bytes that the reply to a call may have; `None`: any number.
pub fn reply_of(call: &[u8]) -> Option<u32> {
    let target = Target::of(call)?;
    let mut words = Words { call, index: 6 };
    let flavour = words.next()?;
    words.opaque()?;
    words.next()?;
    words.opaque()?;
    // NULL has no result, for whatever program.
    if target.procedure == 0 && flavour != GSS {
        return Some(SHORT);
    }
    if flavour == GSS {
        return None;
    }
    match (target.program, target.version, target.procedure) {
        // READLINK, READ, READDIR of version 2, whose handles have 32 bytes.
        (NFS, 2, 5) => Some(LINK + BESIDE),
        (NFS, 2, 6 | 16) => {
            words.skip(8 + 1)?;
            words.next()?.checked_add(BESIDE)
        }
        (NFS, 3, 5) => Some(LINK + BESIDE),
        // READ: handle, offset, count.
        (NFS, 3, 6) => {
            words.opaque()?;
            words.skip(2)?;
            let count = words.next()?;
            count.checked_add(roundup(count))?.checked_add(BESIDE)
        }
        // READDIR: handle, cookie, its verifier, count.
        (NFS, 3, 16) => {
            words.opaque()?;
            words.skip(4)?;
            words.next()?.checked_add(BESIDE)
        }
        // READDIRPLUS: the limit with attributes is behind the one without.
        (NFS, 3, 17) => {
            words.opaque()?;
            words.skip(5)?;
            words.next()?.checked_add(BESIDE)
        }
        (NFS, 2 | 3, _) => Some(SHORT),
        (NFS, 4, 1) => compound(&mut words),
        // SETACL, GETATTR, ACCESS.
        (NFSACL, _, 2..=4) => Some(SHORT),
        _ => None,
    }
}

/// The bytes of the results of a COMPOUND's operations.
fn compound(words: &mut Words<'_>) -> Option<u32> {
    let tag = words.opaque()?;
    words.next()?;
    let count = words.next().filter(|count| *count <= OPERATIONS_MAX)?;
    let mut all = BESIDE.checked_add(tag)?;
    for _ in 0..count {
        let operation = words.next()?;
        all = all.checked_add(8)?.checked_add(result(operation, words)?)?;
    }
    Some(all)
}

/// Passes over an operation's arguments; the bytes of its result.
fn result(operation: u32, words: &mut Words<'_>) -> Option<u32> {
    Some(match operation {
        // ACCESS
        3 => {
            words.skip(1)?;
            8
        }
        // CLOSE
        4 => {
            words.skip(5)?;
            16
        }
        // COMMIT
        5 => {
            words.skip(3)?;
            8
        }
        // DELEGRETURN, RENEW, RECLAIM_COMPLETE
        8 | 30 | 58 => {
            words.skip(match operation {
                8 => 4,
                30 => 2,
                _ => 1,
            })?;
            0
        }
        // GETATTR
        9 => {
            words.short_attributes()?;
            ATTRIBUTES
        }
        // GETFH
        10 => 4 + 128,
        // LINK, REMOVE
        11 | 28 => {
            words.opaque()?;
            20
        }
        // LOCK: whose owner is known, or new.
        12 => {
            words.skip(6)?;
            if words.next()? == 0 {
                words.skip(5)?;
            } else {
                words.skip(1 + 4 + 1 + 2)?;
                words.opaque()?;
            }
            LOCK
        }
        // LOCKU
        14 => {
            words.skip(2 + 4 + 4)?;
            16
        }
        // LOOKUP, PUTFH
        15 | 22 => {
            words.opaque()?;
            0
        }
        // LOOKUPP, PUTPUBFH, PUTROOTFH, RESTOREFH, SAVEFH
        16 | 23 | 24 | 31 | 32 => 0,
        // OPEN
        18 => {
            open(words)?;
            OPEN
        }
        _ => return later_result(operation, words),
    })
}

/// Results of the operations from READ on.
fn later_result(operation: u32, words: &mut Words<'_>) -> Option<u32> {
    Some(match operation {
        // READ
        25 => {
            words.skip(4 + 2)?;
            let count = words.next()?;
            count.checked_add(roundup(count))?.checked_add(8)?
        }
        // READDIR
        26 => {
            words.skip(2 + 2 + 1)?;
            let most = words.next()?;
            words.bitmap()?;
            most.checked_add(16)?
        }
        // READLINK
        27 => LINK,
        // RENAME
        29 => {
            words.opaque()?;
            words.opaque()?;
            40
        }
        // SETATTR
        34 => {
            words.skip(4)?;
            words.bitmap()?;
            words.opaque()?;
            64
        }
        // WRITE
        38 => {
            words.skip(4 + 2 + 1)?;
            words.opaque()?;
            16
        }
        // SEQUENCE
        53 => {
            words.skip(8)?;
            36
        }
        _ => return None,
    })
}

/// Passes over the arguments of OPEN: sequence, modes, owner, how, claim.
fn open(words: &mut Words<'_>) -> Option<()> {
    words.skip(3 + 2)?;
    words.opaque()?;
    if words.next()? == 1 {
        let mode = words.next()?;
        // EXCLUSIVE and EXCLUSIVE4_1 have a verifier; all but EXCLUSIVE have attributes.
        if mode >= 2 {
            words.skip(2)?;
        }
        if mode != 2 {
            words.bitmap()?;
            words.opaque()?;
        }
    }
    match words.next()? {
        0 | 3 => words.opaque().map(|_| ()),
        1 => words.skip(1),
        2 => {
            words.skip(4)?;
            words.opaque().map(|_| ())
        }
        4 | 6 => Some(()),
        5 => words.skip(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// A call with credentials of one word and a handle of 20 bytes.
    fn call(program: u32, version: u32, procedure: u32, rest: &[u32]) -> Vec<u8> {
        let head = [1, 0, 2, program, version, procedure, 1, 4, 0, 0, 0, 20, 9, 9, 9, 9, 9];
        bytes(&[&head[..], rest].concat())
    }

    #[test]
    fn replies_whose_length_the_call_says() {
        assert_eq!(reply_of(&call(NFS, 3, 6, &[0, 40960, 8192])), Some(8192 + BESIDE));
        assert_eq!(reply_of(&call(NFS, 3, 6, &[0, 0, 4999])), Some(5000 + BESIDE));
        assert_eq!(reply_of(&call(NFS, 3, 16, &[0, 0, 0, 0, 4096])), Some(4096 + BESIDE));
        let plus = call(NFS, 3, 17, &[0, 0, 0, 0, 512, 65536]);
        assert_eq!(reply_of(&plus), Some(65536 + BESIDE));
        assert_eq!(reply_of(&call(NFS, 3, 5, &[])), Some(LINK + BESIDE));
        for procedure in [0, 1, 2, 3, 4, 7, 8, 15, 18, 21] {
            assert_eq!(reply_of(&call(NFS, 3, procedure, &[])), Some(SHORT), "{procedure}");
        }
    }

    fn compound(operations: &[&[u32]]) -> Option<u32> {
        let head = [1, 0, 2, NFS, 4, 1, 0, 0, 0, 0, 0, 2, operations.len() as u32];
        let sequence = [53, 1, 2, 3, 4, 5, 6, 7, 8];
        let rest = operations.concat();
        let mut with = head;
        with[12] += 1;
        let of = reply_of(&bytes(&[&head[..], &rest].concat()));
        let longer = reply_of(&bytes(&[&with[..], &sequence, &rest].concat()));
        assert_eq!(longer, of.map(|of| of + 44), "behind a SEQUENCE");
        of.map(|of| of - BESIDE)
    }

    #[test]
    fn compounds() {
        const PUTFH: &[u32] = &[22, 5, 1, 0];
        const GETATTR: &[u32] = &[9, 2, 0x18, 0x20];
        assert_eq!(compound(&[]), Some(0));
        assert_eq!(compound(&[PUTFH, &[25, 1, 1, 1, 1, 0, 0, 4999]]), Some(8 + 8 + 5008));
        let write: &[u32] = &[38, 1, 1, 1, 1, 0, 0, 2, 5, 9, 9];
        assert_eq!(compound(&[PUTFH, write, GETATTR]), Some(8 + 24 + 8 + ATTRIBUTES));
        let create = [18, 1, 2, 0, 7, 7, 3, 9, 1, 1, 1, 2, 4, 9, 0, 4, 9];
        let fh: &[u32] = &[10];
        assert_eq!(compound(&[&create, fh]), Some(8 + OPEN + 8 + 132));
        let exclusive = [18, 1, 2, 0, 7, 7, 3, 9, 1, 3, 8, 8, 0, 0, 4];
        assert_eq!(compound(&[&exclusive, &[32]]), Some(8 + OPEN + 8));
        let plain = [18, 1, 2, 0, 7, 7, 3, 9, 0, 2, 1, 1, 1, 1, 3, 9];
        assert_eq!(compound(&[&plain, &[4, 1, 1, 1, 1, 1]]), Some(8 + OPEN + 24));
        let list: &[u32] = &[26, 0, 0, 0, 0, 512, 65448, 1, 2];
        assert_eq!(compound(&[list, &[27]]), Some(8 + 65464 + 8 + LINK));
        let lock: &[u32] = &[12, 1, 0, 0, 0, 0, 9, 1, 1, 2, 2, 2, 2, 3, 7, 7, 3, 9];
        let again: &[u32] = &[12, 1, 0, 0, 0, 0, 9, 0, 2, 2, 2, 2, 3];
        assert_eq!(compound(&[lock, again, &[16]]), Some(3 * 8 + 2 * LOCK));
        let unlock: &[u32] = &[14, 1, 1, 2, 2, 2, 2, 0, 0, 0, 9];
        let names: &[u32] = &[29, 1, 0, 2, 0];
        assert_eq!(compound(&[unlock, names]), Some(8 + 16 + 8 + 40));
        let set: &[u32] = &[34, 1, 1, 1, 1, 1, 2, 4, 9];
        assert_eq!(compound(&[set, &[5, 0, 0, 9], &[3, 31]]), Some(8 + 64 + 16 + 16));
        // What may be long, and what is not known.
        for attributes in [&[1u32, 1 << 12][..], &[3, 0, 0, 1 << 16], &[4, 0, 0, 0, 0]] {
            assert_eq!(compound(&[PUTFH, &[&[9], attributes].concat()]), None, "{attributes:?}");
        }
        // fs_status, layout_type, fs_locations_info, mdsthreshold.
        for (word, bits) in [(1, 61 - 32), (2, 64 - 64), (2, 67 - 64), (2, 68 - 64)] {
            let mut attributes = [9, 3, 0, 0, 0];
            attributes[2 + word] = 1 << bits;
            assert_eq!(compound(&[PUTFH, &attributes]), None, "{word} {bits}");
        }
        assert_eq!(compound(&[&[42]]), None);
        assert_eq!(compound(&[&[25, 1, 1, 1, 1, 0, 0, u32::MAX]]), None);
        assert_eq!(reply_of(&call(NFS, 4, 1, &[2, 65])), None, "too many");
    }

    #[test]
    fn others_may_have_any_length() {
        assert_eq!(reply_of(&call(NFS, 4, 2, &[0, 0, 1])), None);
        assert_eq!(reply_of(&call(NFSACL, 3, 1, &[1])), None);
        assert_eq!(reply_of(&call(NFS, 3, 6, &[0, 0, u32::MAX])), None);
        let mut wrapped = call(NFS, 3, 1, &[]);
        wrapped[27] = 6;
        assert_eq!(reply_of(&wrapped), None);
        for len in 0..40 {
            assert_eq!(reply_of(&call(NFS, 3, 6, &[0, 0, 8192])[..len]), None, "{len}");
        }
        let endless = bytes(&[1, 0, 2, NFS, 3, 6, 1, u32::MAX, 0, 0]);
        assert_eq!(reply_of(&endless), None);
    }
}
