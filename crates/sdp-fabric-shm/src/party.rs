//! The processes that may ring one foreign doorbell: they are told apart from others no further.
//!
//! In this network namespace that is a user. Behind a directory it is a user as it is seen from here,
//! apart from the user of the same number in this namespace. Users that are not mapped here all look
//! alike, so there it is a process, by the number that the kernel gives it for its lifetime.

use sdp_sys::{OwnedFd, doorbell, kernel, stat, unix};

use crate::{identity, refusal::Refusal};

/// The key of a foreign doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party(u64);

/// Behind a directory.
const ACROSS: u64 = 1 << 32;
/// The rest is the process's number.
const PROCESS: u64 = 1 << 63;

impl Party {
    /// The processes of a user of this network namespace.
    pub const fn of_user(uid: u32) -> Self {
        Self(uid as u64)
    }

    /// The process at the other end of a meeting, whose user is `uid` as seen from here; `process`
    /// is a descriptor of it, where the kernel gives one.
    ///
    /// # Errors
    /// [`Refusal::UidUnmapped`]: its user has no name here, and the kernel does not number
    /// processes.
    pub fn of(uid: u32, process: Option<&OwnedFd>, is_across: bool) -> Result<Self, Refusal> {
        if identity::check_mapped(uid).is_ok() {
            return Ok(Self(u64::from(uid) | if is_across { ACROSS } else { 0 }));
        }
        let number = process.and_then(|process| number_of(process.raw()));
        number.map(|number| Self(PROCESS | number)).ok_or(Refusal::UidUnmapped)
    }

    /// The same of a process in this network namespace, at the other end of a local socket.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn here(socket: i32, uid: u32) -> Result<Self, Refusal> {
        if identity::check_mapped(uid).is_ok() {
            return Ok(Self::of_user(uid));
        }
        Self::of(uid, unix::peer_process(socket).ok().as_ref(), false)
    }

    /// Whether the word of a party is that of one process.
    pub const fn is_process(word: u64) -> bool {
        word & PROCESS != 0
    }

    /// As one word.
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// Whether a descriptor that came from there is an end of a doorbell of its own making.
    pub fn has_made(self, raw: i32) -> bool {
        if self.0 & PROCESS == 0 {
            return doorbell::is_of(raw, self.0 as u32);
        }
        let maker = || unix::peer_process(raw).ok();
        doorbell::is_one(raw)
            && maker().and_then(|maker| number_of(maker.raw())) == Some(self.0 & !PROCESS)
    }
}

/// The number of the process that a pidfd names, which no other one gets while the kernel runs.
/// `None`: a kernel before 6.9, on which all pidfds look alike.
pub fn number_of(pidfd: i32) -> Option<u64> {
    /// `PID_FS_MAGIC`
    const PIDFS: u64 = 0x5049_4446;
    let mut system: libc::statfs = kernel::zeroed();
    kernel::fstatfs(pidfd, &mut system).ok()?;
    #[allow(clippy::unnecessary_cast, reason = "of another width on other processors")]
    let is_numbered = system.f_type as u64 == PIDFS;
    let number = stat::at_hand(pidfd).ok()?.id.ino;
    (is_numbered && number & PROCESS == 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_another_party_behind_a_directory() {
        let here = Party::of(1000, None, false).unwrap();
        let there = Party::of(1000, None, true).unwrap();
        assert_eq!(here, Party::of_user(1000));
        assert_ne!(here, there);
        assert_ne!(there, Party::of(1001, None, true).unwrap());
    }

    #[test]
    fn a_process_has_made_its_own_doorbell() {
        let id = std::process::id() as i32;
        let [me, again] = [(); 2].map(|()| kernel::owned(kernel::pidfd_open(id)).unwrap());
        let parent = kernel::owned(kernel::pidfd_open(sdp_sys::pid::parent() as i32)).unwrap();
        let Some(number) = number_of(me.raw()) else { return };
        assert!(number_of(again.raw()) == Some(number) && number_of(parent.raw()) != Some(number));
        let eventfd = kernel::owned(kernel::eventfd2(0, 0)).unwrap();
        assert_eq!(number_of(eventfd.raw()), None);
        let (waits, rings) = doorbell::create().unwrap();
        assert!(Party(PROCESS | number).has_made(rings.raw()));
        assert!(!Party(PROCESS | (number + 1)).has_made(rings.raw()));
        drop(waits);
        let uid = identity::effective_uid();
        assert!(Party::of_user(uid).has_made(rings.raw()));
    }
}
