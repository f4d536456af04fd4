//! SIGPIPE, as the kernel raises it beside EPIPE.

use crate::{errno::Errno, kernel, sys};

/// Bytes of the kernel's `siginfo_t`, as words.
const INFO_WORDS: usize = 32;

/// Raises SIGPIPE at the calling thread as a send on a stream that has ended does: of this process,
/// of this user, whatever the thread's mask and the signal's action are. Outside a section, if the
/// handler is to run at once.
///
/// # Errors
/// A filter allows no way to do that.
pub fn raise_pipe() -> Result<(), Errno> {
    // A vfork child and a raw clone have an id of their own, hence no cache.
    let (pid, tid, uid) = (kernel::getpid()?, kernel::gettid()?, kernel::getuid()?);
    let mut info = [0u32; INFO_WORDS];
    // si_signo, si_errno, si_code, padding, si_pid, si_uid
    [info[0], info[4], info[5]] = [libc::SIGPIPE as u32, pid as u32, uid as u32];
    info[2] = libc::SI_USER as u32;
    // SAFETY: a whole siginfo; any code is allowed towards one's own process.
    let raised =
        unsafe { sys!(libc::SYS_rt_tgsigqueueinfo, pid, tid, libc::SIGPIPE, info.as_ptr()) };
    if raised.is_err() {
        // A filter may know this call only, which says another code.
        kernel::tgkill(pid, tid, libc::SIGPIPE)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_waits_for_its_thread() {
        // SAFETY: plain data; the mask is this thread's, and put back.
        unsafe {
            let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
            libc::sigaddset(&raw mut set, libc::SIGPIPE);
            assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before), 0);
            // Tests begin with the signal ignored, and then it is not even kept.
            let old = libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            raise_pipe().unwrap();
            let mut info: libc::siginfo_t = core::mem::zeroed();
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let got = libc::sigtimedwait(&raw const set, &raw mut info, &raw const now);
            assert_eq!((got, info.si_code), (libc::SIGPIPE, libc::SI_USER));
            assert_eq!((info.si_pid(), info.si_uid()), (libc::getpid(), libc::getuid()));
            libc::signal(libc::SIGPIPE, old);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        }
    }
}
