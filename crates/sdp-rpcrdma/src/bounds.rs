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
}

/// Bytes of a call that are looked at: its head, credentials and verifier of 400 bytes each, the
/// handle, and what stands behind it.
pub const LOOK: usize = 1024;

/// The bytes that the reply to a call may have, of which `call` is the beginning ([`LOOK`], or all
/// of it); `None`: any number.
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
        // SETACL, GETATTR, ACCESS.
        (NFSACL, _, 2..=4) => Some(SHORT),
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

    #[test]
    fn others_may_have_any_length() {
        assert_eq!(reply_of(&call(NFS, 4, 1, &[0, 0, 1])), None);
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
