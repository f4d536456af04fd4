//! Sleeping until a descriptor has something, and signals as descriptors.
//!
//! Through libc, as all that touches a server's socket: a preloaded library sees it.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    time::{Duration, Instant},
};

/// There are bytes to read.
pub const READABLE: u32 = libc::EPOLLIN as u32;
/// There is room to write.
pub const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// The other end will send no more, or is gone.
pub const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;

fn checked(answer: i32) -> io::Result<i32> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// What was reported of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Its name.
    pub name: u64,
    /// [`READABLE`], [`WRITABLE`], [`ENDED`].
    pub what: u32,
}

/// What is known of a socket that is watched by edges.
#[derive(Debug)]
pub struct Edges {
    /// It may have bytes, or its end.
    pub is_readable: bool,
    /// It may have room.
    pub is_writable: bool,
    /// The other end will send no more.
    pub has_ended: bool,
    heard: Instant,
    filled: Instant,
}

/// Of a socket that nothing is known of.
impl Default for Edges {
    fn default() -> Self {
        let now = Instant::now();
        let (is_readable, is_writable) = (true, true);
        Self { is_readable, is_writable, has_ended: false, heard: now, filled: now }
    }
}

impl Edges {
    /// Something was reported of it.
    pub fn note(&mut self, what: u32) {
        if what & READABLE != 0 {
            self.heard = Instant::now();
        }
        self.has_ended |= what & ENDED != 0;
        self.is_readable |= what & (READABLE | ENDED) != 0;
        self.is_writable |= what & WRITABLE != 0;
    }

    /// It was read. An end that was reported together with bytes is not reported again, so it is read
    /// on until the end was read.
    pub const fn was_read(&mut self, has_more: bool) {
        self.is_readable = has_more || self.has_ended;
    }

    /// It was written to. `written`: whether it took all. `Ok`: whether it took something.
    ///
    /// # Errors
    /// Those of the write, but a lack of room.
    pub fn was_written(&mut self, written: io::Result<bool>) -> io::Result<bool> {
        let (took_some, has_room) = match written {
            Ok(has_room) => (true, has_room),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => (false, false),
            Err(e) => return Err(e),
        };
        if !has_room {
            (self.is_writable, self.filled) = (false, Instant::now());
        }
        Ok(took_some)
    }

    /// All that came was read, and nothing more has come for this long.
    pub fn is_silent(&self, timeout: Duration) -> bool {
        !self.is_readable && self.heard.elapsed() > timeout
    }

    /// It has had no room for this long.
    pub fn is_full(&self, timeout: Duration) -> bool {
        !self.is_writable && self.filled.elapsed() > timeout
    }
}

/// A set of descriptors.
#[derive(Debug)]
pub struct Set(OwnedFd);

impl Set {
    /// An empty one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is named.
        let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a fresh descriptor that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn add(&self, fd: RawFd, name: u64, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: name };
        // SAFETY: an event of this frame.
        let added =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        checked(added).map(|_| ())
    }

    /// Reports a descriptor as long as it is readable.
    ///
    /// # Errors
    /// The kernel's.
    pub fn watch(&self, fd: RawFd, name: u64) -> io::Result<()> {
        self.add(fd, name, libc::EPOLLIN)
    }

    /// Reports a socket whenever something comes, or room does.
    ///
    /// # Errors
    /// The kernel's.
    pub fn watch_edges(&self, fd: RawFd, name: u64) -> io::Result<()> {
        let both = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP;
        self.add(fd, name, both | libc::EPOLLET)
    }

    /// Reports it no more.
    pub fn unwatch(&self, fd: RawFd) {
        let null = std::ptr::null_mut();
        // SAFETY: no memory is named. A descriptor outside the set is no error that matters.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, null) };
    }

    /// Sleeps until there is something, at most `timeout_ms` milliseconds; what there is.
    pub fn wait(&self, timeout_ms: i32, mut each: impl FnMut(Event)) {
        let mut room = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: room for that number of events.
        let count = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), room.as_mut_ptr(), room.len() as i32, timeout_ms)
        };
        // An interrupted sleep found nothing.
        for event in room.iter().take(usize::try_from(count).unwrap_or(0)) {
            each(Event { name: event.u64, what: event.events });
        }
    }
}

/// A descriptor that is readable when this process was asked to end (SIGTERM, SIGINT), which no
/// longer ends it. Before other threads are started.
///
/// # Errors
/// The kernel's.
pub fn end_requests() -> io::Result<OwnedFd> {
    // SAFETY: a set of signals of this frame, filled before it is read.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        checked(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
        let fd =
            checked(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
