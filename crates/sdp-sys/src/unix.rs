//! Local sockets that carry packets, descriptors and credentials.
//!
//! Serves the rendezvous between two processes of one host: SEQPACKET sockets at abstract names.
//! All calls are non-blocking and raise no SIGPIPE. Arriving data is hostile: lengths, the number
//! of descriptors and truncation are reported for the caller to judge, and descriptors that are not
//! taken are closed.

use core::ffi::CStr;

use crate::{
    errno::Errno,
    fd,
    kernel::{self, from_bytes, owned, zeroed},
    owned::OwnedFd,
    sys,
};

/// Descriptors that [`receive`] can take in one packet. The kernel closes the rest and reports
/// truncation.
pub const MAX_FDS: usize = 8;
/// Longest abstract name in bytes, without the leading NUL.
pub const NAME_MAX: usize = 107;

/// The process at the other end, in the terms of our own namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Process; 0 when it is in a pid namespace that we cannot see.
    pub pid: i32,
    /// Effective user; the overflow uid when ours does not map it.
    pub uid: u32,
}

/// A fresh SEQPACKET socket: non-blocking, close-on-exec.
pub fn socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    fd::socket(libc::AF_UNIX, kind)
}

/// An abstract address and its length; EINVAL when the name is too long.
fn address(name: &[u8]) -> Result<(libc::sockaddr_un, usize), Errno> {
    let mut addr = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    let path = addr.sun_path.get_mut(1..=name.len()).ok_or(Errno::EINVAL)?;
    for (to, from) in path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    Ok((addr, core::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()))
}

/// Connects to an abstract name. ECONNREFUSED: no process listens; EAGAIN: the backlog is full.
pub fn connect(fd: i32, name: &[u8]) -> Result<(), Errno> {
    let (addr, len) = address(name)?;
    kernel::connect(fd, &addr, len).map(drop)
}

/// A path name as an address, and its length; EINVAL when it is too long.
fn path_address(path: &[u8]) -> Result<(libc::sockaddr_un, usize), Errno> {
    let mut addr = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    // Keeps a NUL behind the path.
    let room = addr.sun_path.get_mut(..path.len()).filter(|_| path.len() < 108);
    for (to, from) in room.ok_or(Errno::EINVAL)?.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    Ok((addr, size_of::<libc::sockaddr_un>()))
}

/// Connects to a path name, for listeners in other network namespaces.
pub fn connect_path(fd: i32, path: &[u8]) -> Result<(), Errno> {
    let (addr, len) = path_address(path)?;
    kernel::connect(fd, &addr, len).map(drop)
}

/// Binds to an abstract name. EADDRINUSE: another socket has it.
pub fn bind(fd: i32, name: &[u8]) -> Result<(), Errno> {
    let (addr, len) = address(name)?;
    kernel::bind(fd, &addr, len).map(drop)
}

/// Listens at a path name that everybody who may enter its directory may connect to. `own` is a name
/// of the caller's choice in the same directory: the socket has it until it listens, so that
/// whoever finds it at `path` finds a listener.
///
/// # Errors
/// EEXIST: another process has the name `path`; the errors of making a file otherwise.
pub fn publish(fd: i32, own: &CStr, path: &CStr, backlog: i32) -> Result<(), Errno> {
    const HERE: i32 = libc::AT_FDCWD;
    /// To connect needs the right to write; the umask took it.
    const EVERYBODY: u32 = 0o777;
    let (addr, len) = path_address(own.to_bytes())?;
    kernel::bind(fd, &addr, len)?;
    let published = kernel::fchmodat(HERE, own, EVERYBODY)
        .and_then(|_| kernel::listen(fd, backlog))
        .and_then(|_| kernel::linkat(HERE, own, HERE, path, 0));
    unpublish(own);
    published.map(drop)
}

/// Gives what has a path name another one in the same directory.
///
/// # Errors
/// EEXIST: another file has the name `to`.
pub fn rename(path: &CStr, to: &CStr) -> Result<(), Errno> {
    const HERE: i32 = libc::AT_FDCWD;
    kernel::renameat2(HERE, path, HERE, to, libc::RENAME_NOREPLACE).map(drop)
}

/// Takes a path name away.
pub fn unpublish(path: &CStr) {
    let _ = kernel::unlinkat(libc::AT_FDCWD, path, 0);
}

/// Starts listening. Connectors will see the caller's credentials of this moment.
pub fn listen(fd: i32, backlog: i32) -> Result<(), Errno> {
    kernel::listen(fd, backlog).map(drop)
}

/// Whether a connection waits to be accepted. Three times cheaper than an `accept` in vain, which
/// makes a socket first.
pub fn is_acceptable(fd: i32) -> bool {
    fd::readiness(fd, libc::POLLIN) != 0
}

/// Accepts a connection: non-blocking, close-on-exec. EAGAIN: none waits.
pub fn accept(fd: i32) -> Result<OwnedFd, Errno> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    owned(kernel::accept4(fd, flags))
}

/// Nothing more is sent, and the other end's sends from here on fail (EPIPE). Packets that arrived
/// before can still be received.
pub fn shut_down(fd: i32) -> Result<(), Errno> {
    fd::shutdown(fd, libc::SHUT_RDWR).map(drop)
}

/// Credentials of the other end at the time of its `connect` or `listen`.
pub fn peer_credentials(fd: i32) -> Result<Credentials, Errno> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let len = kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut cred)?;
    if len != size_of::<libc::ucred>() {
        return Err(Errno::EINVAL);
    }
    Ok(Credentials { pid: cred.pid, uid: cred.uid })
}

/// A pidfd of the process whose credentials [`peer_credentials`] returns. Kernels before 6.5 have
/// none.
pub fn peer_process(fd: i32) -> Result<OwnedFd, Errno> {
    /// `SO_PEERPIDFD`
    const PEER_PIDFD: i32 = 77;
    fd::getsockopt_int(fd, libc::SOL_SOCKET, PEER_PIDFD).map(OwnedFd::new)
}

/// Has the kernel add credentials to the packets sent and received on this socket. On a socket that
/// has no name, set it after the last send: sending would give it one.
pub fn pass_credentials(fd: i32) -> Result<(), Errno> {
    fd::setsockopt_int(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, 1)
}

/// Room for control data, aligned as the kernel's headers need it: MAX_FDS descriptors and
/// credentials.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

const HEADER: usize = size_of::<libc::cmsghdr>();
const RIGHTS_LEN: usize = (HEADER + 4 * MAX_FDS).next_multiple_of(8);
const CONTROL_LEN: usize = RIGHTS_LEN + (HEADER + size_of::<libc::ucred>()).next_multiple_of(8);

/// Level and type of a control message, as they follow its length in `struct cmsghdr`.
const fn words(level: i32, kind: i32) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (level.to_ne_bytes(), kind.to_ne_bytes());
    [a, b, c, d, e, f, g, h]
}

/// Sends one packet with descriptors.
///
/// # Errors
/// EINVAL for more than [`MAX_FDS`]; EAGAIN: no room; EPIPE, ECONNRESET: the other end is gone;
/// ETOOMANYREFS: too many descriptors of this user are in flight.
pub fn send(fd: i32, bytes: &[u8], fds: &[i32]) -> Result<(), Errno> {
    let mut control = Control([0; CONTROL_LEN]);
    let data = 4 * fds.len();
    let len = HEADER + data;
    let room = control.0.get_mut(HEADER..len).filter(|_| fds.len() <= MAX_FDS);
    for (to, from) in room.ok_or(Errno::EINVAL)?.chunks_exact_mut(4).zip(fds) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    let header = [len.to_ne_bytes(), words(libc::SOL_SOCKET, libc::SCM_RIGHTS)];
    control.0.as_chunks_mut().0.iter_mut().zip(header).for_each(|(to, from)| *to = from);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut msg: libc::msghdr = zeroed();
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    if !fds.is_empty() {
        msg.msg_control = control.0.as_mut_ptr().cast();
        msg.msg_controllen = len;
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: msg and all it points to outlive the call; the kernel only reads the buffers.
    let sent = unsafe { sys!(libc::SYS_sendmsg, fd, &raw const msg, flags)? };
    if sent == bytes.len() { Ok(()) } else { Err(Errno(libc::EMSGSIZE)) }
}

/// A received packet. Descriptors still in it are closed with it.
#[derive(Debug)]
pub struct Packet {
    /// Bytes written to the buffer; 0: the other end has closed (we never send empty packets).
    pub len: usize,
    /// The packet was longer than the buffer.
    pub data_truncated: bool,
    /// Descriptors were lost: more than [`MAX_FDS`], or no free numbers.
    pub control_truncated: bool,
    /// Credentials, when the kernel added them.
    pub credentials: Option<Credentials>,
    fds: [Option<OwnedFd>; MAX_FDS],
    count: usize,
}

impl Packet {
    /// How many descriptors came with the packet (taken ones included).
    pub const fn descriptors(&self) -> usize {
        self.count
    }

    /// Takes the descriptor at `index`, once.
    pub fn take(&mut self, index: usize) -> Option<OwnedFd> {
        self.fds.get_mut(index)?.take()
    }
}

/// Receives one packet into `buf`; descriptors arrive close-on-exec. EAGAIN: nothing there yet.
pub fn receive(fd: i32, buf: &mut [u8]) -> Result<Packet, Errno> {
    let mut control = Control([0; CONTROL_LEN]);
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut msg: libc::msghdr = zeroed();
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    msg.msg_controllen = CONTROL_LEN;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: msg and all it points to outlive the call and are valid for writing.
    let len = unsafe { sys!(libc::SYS_recvmsg, fd, &raw mut msg, flags)? };
    let mut packet = Packet {
        len: len.min(buf.len()),
        data_truncated: msg.msg_flags & libc::MSG_TRUNC != 0,
        control_truncated: msg.msg_flags & libc::MSG_CTRUNC != 0,
        credentials: None,
        fds: [const { None }; MAX_FDS],
        count: 0,
    };
    let used = msg.msg_controllen.min(CONTROL_LEN);
    packet.take_control(control.0.get(..used).unwrap_or(&[]));
    Ok(packet)
}

impl Packet {
    /// Walks the control messages that the kernel wrote.
    fn take_control(&mut self, mut control: &[u8]) {
        while let Some(header) = from_bytes::<libc::cmsghdr>(control) {
            let Some(data) = control.get(HEADER..header.cmsg_len) else { return };
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for number in data.as_chunks::<4>().0 {
                        self.push(OwnedFd::new(i32::from_ne_bytes(*number)));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    if let Some([pid, uid, ..]) = data.as_chunks::<4>().0.get(..3) {
                        let (pid, uid) = (i32::from_ne_bytes(*pid), u32::from_ne_bytes(*uid));
                        self.credentials = Some(Credentials { pid, uid });
                    }
                }
                _ => {}
            }
            control = control.get(header.cmsg_len.next_multiple_of(8)..).unwrap_or(&[]);
        }
    }

    fn push(&mut self, fd: OwnedFd) {
        // A stranger's TCP socket might linger when it is closed: for as long as its sender said.
        let linger = libc::linger { l_onoff: 0, l_linger: 0 };
        let _ = kernel::setsockopt(fd.raw(), libc::SOL_SOCKET, libc::SO_LINGER, &linger);
        // More than the control buffer can name cannot arrive; if it did, the drop closes it.
        if let Some(free) = self.fds.get_mut(self.count) {
            *free = Some(fd);
            self.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::CString, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn what_is_published_listens_and_its_name_is_taken_once() {
        let directory = std::env::temp_dir().join(format!("sdp-unix-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let name = |name: &str| directory.join(name).into_os_string().into_encoded_bytes();
        let name = |text: &str| CString::new(name(text)).unwrap();
        let (first, second, connector) = (socket().unwrap(), socket().unwrap(), socket().unwrap());
        publish(first.raw(), &name("own"), &name("there"), 1).unwrap();
        let taken = publish(second.raw(), &name("other"), &name("there"), 1);
        assert_eq!(taken, Err(Errno(libc::EEXIST)));
        let left: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap()).collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].metadata().unwrap().permissions().mode() & 0o777, 0o777);
        connect_path(connector.raw(), name("there").to_bytes()).unwrap();
        unpublish(&name("there"));
        std::fs::remove_dir(&directory).unwrap();
    }
}
