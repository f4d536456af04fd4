//! The tokens by which the ends of a meeting in a directory know each other once more: what each of them
//! writes into the stream itself before payload moves to the lane.
//!
//! A packet of the meeting proves that its sender knows the first numbers of the stream. A process that
//! stands between the two ends, and passes all packets and descriptors on, proves as much. What it cannot
//! do is write into the stream; and a token names the process that its sender sees at the other end of
//! the local connection, so that of a process in between is never right.

use sdp_blake2s::{Blake2s, is_same};
use sdp_sys::{OwnedFd, kernel, stat::Identity, unix};

use crate::{party::number_of, refusal::Refusal};

/// Bytes of a token.
pub const TOKEN_LEN: usize = 16;

const KEY_LABEL: &[u8] = b"sdp token";

/// What both ends know of a meeting: the key of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenKey([u8; 16]);

impl TokenKey {
    /// `nonces` and `processes`: those of the end that joined first, then the other one's. The kernel's
    /// numbers of processes are 0 before Linux 6.9.
    pub fn new(nonces: [&[u8; 16]; 2], segment: Identity, processes: [u64; 2]) -> Self {
        let mut hash = Blake2s::<16>::new(&[]);
        hash.update(KEY_LABEL);
        nonces.into_iter().for_each(|nonce| hash.update(nonce));
        for word in [segment.dev, segment.ino].into_iter().chain(processes) {
            hash.update(&word.to_le_bytes());
        }
        Self(hash.finish())
    }

    /// As two words, to be kept.
    pub fn to_words(self) -> [u64; 2] {
        let (words, _) = self.0.as_chunks();
        [words.first(), words.get(1)].map(|word| word.map_or(0, |word| u64::from_le_bytes(*word)))
    }

    /// From these words.
    pub fn from_words([first, second]: [u64; 2]) -> Self {
        let mut key = [0; 16];
        let bytes = first.to_le_bytes().into_iter().chain(second.to_le_bytes());
        key.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        Self(key)
    }

    /// The token of what side `side` sends.
    pub fn of_side(self, side: u8) -> [u8; TOKEN_LEN] {
        let mut hash = Blake2s::<TOKEN_LEN>::new(&self.0);
        hash.update(&[side]);
        hash.finish()
    }

    /// Whether these bytes are the token of what side `side` sends.
    pub fn is_token_of(self, side: u8, bytes: &[u8; TOKEN_LEN]) -> bool {
        is_same(bytes, &self.of_side(side))
    }
}

/// This process's number, as the other end of a local connection sees it; 0: this kernel has none.
pub(crate) fn own_number() -> Result<u64, Refusal> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    kernel::socketpair(libc::AF_UNIX, kind, &mut ends).map_err(Refusal::of_resource)?;
    let [one, _other] = ends.map(OwnedFd::new);
    number_at(one.raw())
}

/// The number of the process at the other end of a local connection.
pub(crate) fn number_at(socket: i32) -> Result<u64, Refusal> {
    match unix::peer_process(socket) {
        Ok(process) => Ok(number_of(process.raw()).unwrap_or(0)),
        Err(error) if error.0 == libc::ENOPROTOOPT => Ok(0),
        Err(error) => Err(Refusal::of_resource(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_it_is_bound_to_counts() {
        let segment = Identity { dev: 1, ino: 2 };
        let key = TokenKey::new([&[1; 16], &[2; 16]], segment, [3, 4]);
        assert_eq!(TokenKey::from_words(key.to_words()), key);
        assert_ne!(key.of_side(0), key.of_side(1));
        let other = Identity { dev: 1, ino: 3 };
        for changed in [
            TokenKey::new([&[2; 16], &[1; 16]], segment, [3, 4]),
            TokenKey::new([&[1; 16], &[2; 16]], other, [3, 4]),
            TokenKey::new([&[1; 16], &[2; 16]], segment, [4, 3]),
            TokenKey::new([&[1; 16], &[2; 16]], segment, [3, 5]),
        ] {
            assert_ne!(changed.of_side(0), key.of_side(0));
        }
    }

    #[test]
    fn the_own_process_is_seen_as_the_other_end_sees_it() {
        let mut ends = [-1; 2];
        kernel::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, &mut ends).unwrap();
        let [one, _other] = ends.map(OwnedFd::new);
        assert_eq!(own_number().unwrap(), number_at(one.raw()).unwrap());
    }
}
