//! [`identity::examine`] for processes that ask often: the sock_diag socket stays open between two
//! questions.
//!
//! Used where both processes know each other and a question is most of the price. One hidden
//! descriptor, for one user at a time; a second user meanwhile opens a socket as before. It answers
//! less than `examine` does: whatever is not as expected is asked again there. It refuses to judge:
//! the caller compares the owner of the socket at the other end.

use core::{
    cell::UnsafeCell,
    mem,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

use sdp_sys::{
    fd,
    netlink::{Counters, Diag},
    stat::{self, Identity},
};

use crate::{
    identity::{self, PeerSocket, Presence, Tuple},
    spin::SpinLock,
};

/// An open sock_diag socket.
struct Open {
    diag: Diag,
    id: Identity,
    /// Its network namespace.
    cookie: u64,
    /// The thread that opened it.
    owner: u64,
}

impl Open {
    fn new(owner: u64, min: i32) -> Option<Self> {
        let diag = Diag::open().ok()?.move_up(min);
        let id = stat::stat(diag.raw()).ok()?.id;
        let cookie = fd::netns_cookie(diag.raw()).ok()?;
        Some(Self { diag, id, cookie, owner })
    }

    /// Whether the number still names our socket.
    fn is_ours(&self) -> bool {
        stat::stat(self.diag.raw()).is_ok_and(|stat| stat.id == self.id)
    }

    /// Closes it, unless the number is the program's by now.
    fn close(self, hooks: HiddenFdHooks) {
        let (number, is_ours) = (self.diag.raw(), self.is_ours());
        if is_ours {
            drop(self);
        } else {
            mem::forget(self);
        }
        // Not before: a thread that is about to use the number waits for this.
        (hooks.gone)(number);
    }
}

/// The connection that is asked about.
#[derive(Debug, Clone, Copy)]
pub struct Carrier<'a> {
    /// Our descriptor of it.
    pub fd: i32,
    /// Its addresses.
    pub tuple: &'a Tuple,
    /// Whether it may be of another network namespace than a socket that the process makes now:
    /// then the kernel is asked.
    pub may_be_elsewhere: bool,
}

/// Called with the numbers at which the socket is: the process keeps the program from its own
/// descriptors.
#[derive(Debug, Clone, Copy)]
pub struct HiddenFdHooks {
    /// It is kept at this number. False: that cannot be noted, and the socket must not be kept.
    pub kept: fn(i32) -> bool,
    /// It is there no more.
    pub gone: fn(i32),
}

/// The socket; one `static` per process. All functions must be called with signals deferred.
pub struct DiagClient {
    lock: SpinLock,
    /// A thread has asked, or is about to: until then there is nothing to close.
    is_used: AtomicBool,
    closes: AtomicU32,
    open: UnsafeCell<Option<Open>>,
    hooks: HiddenFdHooks,
}

// SAFETY: `open` is reached only under the lock.
unsafe impl Sync for DiagClient {}

impl DiagClient {
    /// None is open.
    pub const fn new(hooks: HiddenFdHooks) -> Self {
        Self {
            lock: SpinLock::new(),
            is_used: AtomicBool::new(false),
            closes: AtomicU32::new(0),
            open: UnsafeCell::new(None),
            hooks,
        }
    }

    /// Exchanges the socket. Gives `new` back if another thread is at it.
    fn swap(&self, new: Option<Open>) -> Option<Open> {
        if !self.lock.try_acquire() {
            return new;
        }
        // SAFETY: the lock word is ours.
        let old = mem::replace(unsafe { &mut *self.open.get() }, new);
        self.lock.release();
        old
    }

    /// The socket at the other end of `carrier`, if it is open and where we look; `None`: ask
    /// [`identity::examine`]. `owner` is what a process is called until it forks or changes its
    /// privileges; `min` tells where hidden descriptors start.
    pub fn find(
        &self,
        owner: u64,
        min: impl FnOnce() -> i32,
        carrier: &Carrier<'_>,
    ) -> Option<PeerSocket> {
        self.with(owner, min, |open| ask(open, carrier))
    }

    /// The bytes that the socket at the other end of `carrier` has moved so far; `None`: that
    /// cannot be known now.
    pub fn moved(
        &self,
        owner: u64,
        min: impl FnOnce() -> i32,
        carrier: &Carrier<'_>,
    ) -> Option<Counters> {
        self.with(owner, min, |open| ask_moved(open, carrier))
    }

    /// Asks with the socket that is open, or a new one, which stays if there is an answer.
    fn with<R>(
        &self,
        owner: u64,
        min: impl FnOnce() -> i32,
        question: impl FnOnce(&mut Open) -> Option<R>,
    ) -> Option<R> {
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::SeqCst);
        }
        let closes = self.closes.load(Ordering::SeqCst);
        let mut open = self.swap(None);
        if let Some(old) = open.take_if(|open| open.owner != owner) {
            old.close(self.hooks);
        }
        let fresh = || {
            let open = Open::new(owner, min())?;
            (self.hooks.kept)(open.diag.raw()).then_some(open)
        };
        let mut open = open.or_else(fresh)?;
        let Some(answer) = question(&mut open) else {
            open.close(self.hooks);
            return None;
        };
        if let Some(other) = self.swap(Some(open)) {
            other.close(self.hooks);
        }
        if self.closes.load(Ordering::SeqCst) != closes {
            self.close(); // it was not there to be closed
        }
        Some(answer)
    }

    /// Closes the socket: before a fork, and when the process leaves its trust domain.
    pub fn close(&self) {
        if !self.is_used.load(Ordering::SeqCst) {
            return; // without a write, which after each fork would copy the page
        }
        self.closes.fetch_add(1, Ordering::SeqCst);
        if let Some(open) = self.swap(None) {
            open.close(self.hooks);
        }
    }

    /// The program is about to put a file of its own at `number`: if the socket is there, it is
    /// closed. False: another thread has it in hand, and is to be waited for as long as the number
    /// is noted.
    pub fn lose(&self, number: i32) -> bool {
        let Some(open) = self.swap(None) else { return false };
        if open.diag.raw() == number {
            open.close(self.hooks);
        } else if let Some(other) = self.swap(Some(open)) {
            other.close(self.hooks);
        }
        true
    }

    /// In a fork child: gives up the parent's socket, whatever its threads were doing. The number
    /// is the caller's to close.
    pub fn become_child(&self) {
        if !self.is_used.load(Ordering::Relaxed) {
            return; // without a write, as in `close`
        }
        // SAFETY: the only thread. The value there is given up without a destructor, whole or not.
        unsafe { self.open.get().write(None) };
        self.lock.release();
    }
}

/// The addresses of the other end, if the carrier is where we look and the number is still ours
/// to ask by.
fn may_ask(open: &Open, carrier: &Carrier<'_>) -> Option<Tuple> {
    if carrier.may_be_elsewhere && fd::netns_cookie(carrier.fd) != Ok(open.cookie) {
        return None;
    }
    // At the last moment: the program may put a file of its own at the number.
    open.is_ours().then(|| carrier.tuple.reversed())
}

/// The bytes that the other end has moved.
fn ask_moved(open: &mut Open, carrier: &Carrier<'_>) -> Option<Counters> {
    let wanted = may_ask(open, carrier)?;
    let (found, counters) = open.diag.moved(&wanted.to_pair()).ok()??;
    Tuple::from_pair(&found.pair).same_addresses(&wanted).then_some(counters)
}

/// The other end, if it is open.
fn ask(open: &mut Open, carrier: &Carrier<'_>) -> Option<PeerSocket> {
    let wanted = may_ask(open, carrier)?;
    let found = open.diag.find(&wanted.to_pair()).ok()??;
    if !Tuple::from_pair(&found.pair).same_addresses(&wanted) {
        return None;
    }
    let peer = PeerSocket { inode: u64::from(found.inode), uid: found.uid, state: found.state };
    identity::check_mapped(peer.uid).ok()?;
    (peer.presence() == Presence::Open).then_some(peer)
}
