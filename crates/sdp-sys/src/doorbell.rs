//! A doorbell that processes of other users can ring, and nothing else.
//!
//! A connected pair of Unix stream sockets. The owner keeps the end that is waited on, and passes
//! on the end that is written to. Each byte written wakes a waiting thread, edge by edge.
//!
//! It is neither an eventfd nor a pipe: the process that signals must not be at the mercy of the
//! owner, nor the owner at that of the processes that signal. Here one write takes no flag of a
//! shared description (`MSG_DONTWAIT`), raises no signal (`MSG_NOSIGNAL`) and takes no lock that
//! another process may hold while the kernel copies from memory that never comes: a pipe has such a
//! lock. Only the owner has the end that is read.
//!
//! Beside bytes, descriptors can be sent. The last close of one that comes from a stranger may take
//! for ever (a socket that lingers). New kernels refuse them (`SO_PASSRIGHTS`). Elsewhere bytes
//! that bring some are never read, and out-of-band data stands where it was sent (`SO_OOBINLINE`):
//! the kernel would throw it away, with its descriptors, to get at the bytes behind it.

use crate::{
    errno::Errno,
    fd,
    kernel::{self, zeroed},
    owned::OwnedFd,
    stat::{self, Identity},
    sys, unix,
};

/// Most bytes that [`drain`] takes out at a time.
const DRAIN_MAX: usize = 512;
/// Unwanted descriptors and bytes are read this often at most.
const DRAINS: usize = 8;
/// Whether descriptors may come.
const SO_PASSRIGHTS: i32 = 83;

/// Both ends: the one to wait on, and the one to hand over.
pub fn create() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends = [-1i32; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    kernel::socketpair(libc::AF_UNIX, kind, &mut ends)?;
    let [waits, rings] = ends.map(OwnedFd::new);
    set(waits.raw(), libc::SO_OOBINLINE, 1)?;
    let _ = set(waits.raw(), SO_PASSRIGHTS, 0); // since 6.16
    Ok((waits, rings))
}

fn set(raw: i32, name: i32, value: i32) -> Result<(), Errno> {
    fd::setsockopt_int(raw, libc::SOL_SOCKET, name, value)
}

/// Whether a stranger's descriptor is an end of a doorbell of user `uid`'s own making: bytes that
/// we write there, with our credentials, reach only that user's processes.
pub fn is_of(raw: i32, uid: u32) -> bool {
    is_one(raw) && unix::peer_credentials(raw).is_ok_and(|maker| maker.uid == uid)
}

/// Whether a stranger's descriptor is of the kind of socket that a doorbell is.
pub fn is_one(raw: i32) -> bool {
    let option = |name| fd::getsockopt_int(raw, libc::SOL_SOCKET, name);
    stat::at_hand(raw).is_ok_and(|stat| stat.is_socket())
        && option(libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
        && option(libc::SO_TYPE) == Ok(libc::SOCK_STREAM)
}

/// Whether a number of ours still names the socket that it did.
pub fn is_same(raw: i32, id: Identity) -> bool {
    stat::at_hand(raw).is_ok_and(|stat| stat.is_socket() && stat.id == id)
}

/// Rings; never waits. False: it wakes no thread, because the doorbell is full or has ended.
pub fn ring(raw: i32) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    kernel::send(raw, &[1], flags) == Ok(1)
}

/// Reads all bytes but one, so that the end stays readable: a thread that the kernel woke for it
/// and that has not looked yet would otherwise find nothing. False: descriptors came with them,
/// which stay where they are.
pub fn drain(raw: i32) -> bool {
    for _ in 0..DRAINS {
        let Ok(waiting) = fd::received(raw) else { return true };
        let most = (waiting.max(1) as usize - 1).min(DRAIN_MAX);
        if most == 0 {
            return true;
        }
        let mut bytes = [0u8; DRAIN_MAX];
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most };
        let mut msg: libc::msghdr = zeroed();
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        // Without room for control data: a flag shows that there is some, and none becomes ours.
        // SAFETY: msg and what it points to outlive the call and are valid for writing.
        let Ok(seen) = (unsafe { sys!(libc::SYS_recvmsg, raw, &raw mut msg, flags) }) else {
            return true;
        };
        if msg.msg_flags & libc::MSG_CTRUNC != 0 {
            return false;
        }
        // As many are there, and no other thread reads here.
        let taken = bytes.get_mut(..seen).map(|to| kernel::receive(raw, to, libc::MSG_DONTWAIT));
        if !matches!(taken, Some(Ok(_))) {
            return true;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(raw: i32) -> i32 {
        fd::received(raw).unwrap()
    }

    #[test]
    fn rings_until_it_is_full_and_keeps_one_byte() {
        let (waits, rings) = create().unwrap();
        let mut rung = 0;
        while ring(rings.raw()) {
            rung += 1;
        }
        assert!(rung >= 128, "room for {rung} only");
        assert!(drain(waits.raw()));
        assert_eq!(waiting(waits.raw()), 1);
        assert!(ring(rings.raw()));
        drop(waits);
        // A process that another test has forked may have it open for a moment.
        let is_gone = |_| {
            std::thread::sleep(core::time::Duration::from_millis(1));
            !ring(rings.raw())
        };
        assert!((0..5_000).any(is_gone), "and no signal");
    }

    #[test]
    fn each_ring_is_an_edge_though_it_stays_readable() {
        let (waits, rings) = create().unwrap();
        let set = kernel::owned(kernel::epoll_create1(libc::EPOLL_CLOEXEC)).unwrap();
        let event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 7 };
        kernel::epoll_ctl(set.raw(), libc::EPOLL_CTL_ADD, waits.raw(), &event).unwrap();
        let look = || kernel::epoll_wait(set.raw(), &mut [event], 0).unwrap();
        for _ in 0..3 {
            assert!(ring(rings.raw()));
            assert_eq!((look(), look()), (1, 0));
        }
        assert!(drain(waits.raw()));
        assert_eq!(look(), 0);
        assert!(ring(rings.raw()));
        assert_eq!(look(), 1);
    }

    #[test]
    fn descriptors_in_it_are_not_taken_out() {
        let (waits, rings) = create().unwrap();
        let _ = set(waits.raw(), SO_PASSRIGHTS, 1); // as with an older kernel
        assert!(ring(rings.raw()));
        unix::send(rings.raw(), b"x", &[waits.raw()]).unwrap();
        assert!(ring(rings.raw()));
        assert!(!drain(waits.raw()));
        assert!(waiting(waits.raw()) >= 2);
    }

    #[test]
    fn nor_are_those_of_urgent_bytes() {
        let (waits, rings) = create().unwrap();
        let _ = set(waits.raw(), SO_PASSRIGHTS, 1);
        let (watched, sent) = create().unwrap();
        let mut control = [0u64; 3];
        let mut byte = [1u8];
        let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut msg: libc::msghdr = zeroed();
        (msg.msg_iov, msg.msg_iovlen) = (&raw mut iov, 1);
        (msg.msg_control, msg.msg_controllen) = (control.as_mut_ptr().cast(), 24);
        // SAFETY: room for one header and one number behind it; all outlives the call.
        let result = unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const msg);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(sent.raw());
            libc::sendmsg(rings.raw(), &raw const msg, libc::MSG_OOB)
        };
        if result < 0 {
            return; // a kernel without
        }
        drop(sent);
        (0..100).for_each(|_| assert!(ring(rings.raw())));
        assert!(!drain(waits.raw()));
        assert_eq!(fd::readiness(watched.raw(), 0), 0, "closed by the drain");
    }

    #[test]
    fn a_kernel_that_can_refuses_descriptors() {
        let (waits, rings) = create().unwrap();
        if fd::getsockopt_int(waits.raw(), libc::SOL_SOCKET, SO_PASSRIGHTS).is_ok() {
            let refused = unix::send(rings.raw(), b"x", &[waits.raw()]);
            assert_eq!(refused.err(), Some(Errno::EPERM));
        }
    }

    #[test]
    fn only_a_pair_of_that_user_is_a_doorbell() {
        let me = crate::pid::effective_user().unwrap();
        let (waits, rings) = create().unwrap();
        assert!(is_of(rings.raw(), me) && is_of(waits.raw(), me));
        assert!(!is_of(rings.raw(), me + 1));
        assert!(!is_of(unix::socket().unwrap().raw(), me), "not of that kind, nor connected");
        assert!(!is_of(-1, me));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_of(std::os::fd::AsRawFd::as_raw_fd(&listener), me));
    }
}
