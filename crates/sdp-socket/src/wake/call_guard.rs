//! The guard of a call that may sleep: what the call holds, how it gives that back however it ends,
//! and how its socket outlives a close.
//!
//! Made by each call that may sleep, before it does.
//!
//! A thread that waits in a call may never come back to it: it is cancelled, or a signal handler
//! leaves with `siglongjmp`. libc runs a function in both cases: one registered with
//! `_pthread_cleanup_push` runs when the frame is unwound either way. A [`CallGuard`] is such a
//! registration for one call. It knows the call's hold on the connection, its spin permit, its
//! place in the doorbell page and its wait set.
//!
//! A call that sleeps in the kernel keeps its socket: a thread that closes the number meanwhile
//! changes nothing for it, and the connection ends when it returns. Here it sleeps in `ppoll`,
//! between looks at the connection that need a number. So a thread that closes a number on whose
//! connection a call [holds](CallGuard::hold) leaves a hidden duplicate behind ([`Conn::keep`]),
//! with which the calls go on; the last one to leave closes it, and takes the steps of a last close
//! if that was put off.
//!
//! # Frames that are left
//! Cancellation, `pthread_exit` in a handler and `siglongjmp` remove the library's frames, `extern
//! "C"` ones and Rust ones with values whose destructors have not run. That is sound here because
//! of how the library is built, not because of the language:
//!
//! * It is built with `panic = "abort"`, so no frame has a landing pad: neither a destructor nor the abort that ends an unwinding
//!   in a build that unwinds. libc's forced unwinding finds each frame in the tables (`.eh_frame`), and steps over it;
//!   `siglongjmp` does not even look. `cargo xtask abi` (*unwinding*) holds both premises against the library itself.
//!   `"C-unwind"` would be worse: in such a build the compiler puts an abort around calls of that kind.
//! * The calls in which it happens lie outside sections ([`sdp_sys::section`]): no lock, gate or
//!   half-done state is held, and a handler that leaves runs there, too. So a destructor that does
//!   not run can only fail to give something back. (The exception is the handler of a fault inside
//!   a section: if it jumps out, it leaves the section's lock or gate held.)
//! * The call guard knows what the call has to give back. Everything else that a waiting frame owns
//!   is plain memory of that frame, or stays counted at a price that `docs/compatibility.md` names
//!   (calls in the kernel, `epoll_wait`, early waits).
//!
//! `tests/faults/test_threads.py` cancels, exits and jumps.
//!
//! It refuses calls in the kernel itself on a connection without lanes: they need none of this.

use core::{
    ffi::c_void,
    marker::PhantomPinned,
    pin::Pin,
    sync::atomic::{
        AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed, Ordering::SeqCst, compiler_fence,
    },
};

use libc::c_int;
use sdp_sys::{libcs, section, tls};

use crate::{
    conn::{Conn, ConnGuard, Half},
    process::Handed,
    wake::{doorbell, spin, wait_set::WaitSet},
};

/// The function to call when the last call leaves a connection that was closed meanwhile:
/// `lifecycle` hands it in.
pub(crate) static LAST_LEFT: Handed<fn(&Conn)> = Handed::none();

/// glibc's `struct _pthread_cleanup_buffer`.
#[repr(C)]
struct Registration {
    routine: Option<extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
    cancel_type: c_int,
    previous: *mut c_void,
}

/// One call's guard. Words are atomic because a handler of the same thread may end it between any two
/// instructions; no other thread looks.
pub(crate) struct CallGuard {
    registration: core::cell::UnsafeCell<Registration>,
    /// The connection that the call holds, and which half; none for waits on several.
    on: Option<(&'static Conn, Half)>,
    is_registered: AtomicBool,
    holds: AtomicBool,
    spins: AtomicBool,
    /// Thread id, while the call may be in the middle of a message; 0 not.
    turn: AtomicU32,
    /// Counted in the doorbell page as a sleeper.
    sleeps: AtomicBool,
    /// Counted by the connection as asleep.
    asleep: AtomicBool,
    /// The wait set in use, and which doorbell it belongs to.
    set: AtomicI32,
    doorbells: AtomicI32,
    _held: PhantomPinned,
}

impl CallGuard {
    /// Of a call that holds one connection.
    pub(crate) fn on(conn: &ConnGuard) -> Self {
        Self::new(Some((conn.conn(), conn.half())))
    }

    /// Of a wait for several.
    pub(crate) fn on_several() -> Self {
        Self::new(None)
    }

    fn new(on: Option<(&'static Conn, Half)>) -> Self {
        let registration = Registration {
            routine: None,
            argument: core::ptr::null_mut(),
            cancel_type: 0,
            previous: core::ptr::null_mut(),
        };
        Self {
            registration: registration.into(),
            on,
            is_registered: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            spins: AtomicBool::new(false),
            turn: AtomicU32::new(0),
            sleeps: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            set: AtomicI32::new(-1),
            doorbells: AtomicI32::new(0),
            _held: PhantomPinned,
        }
    }

    /// From here on the call may be left without coming back.
    #[inline]
    pub(crate) fn begin(self: Pin<&Self>) {
        if self.is_registered.load(Relaxed) {
            return;
        }
        let this: *const Self = &raw const *self;
        // SAFETY: the registration is in a pinned value, on this thread's stack, which takes it out again
        // before it goes; libc runs the routine at most once, when the frame is gone for good.
        let is_registered = unsafe {
            let at = self.registration.get().cast();
            libcs::cleanup_push(at, on_unwind, this.cast_mut().cast())
        };
        if !is_registered {
            return; // a C library without threads so far: nothing unwinds the frame
        }
        self.is_registered.store(true, Relaxed);
        compiler_fence(SeqCst);
    }

    /// The call is about to sleep: its connection stays open until it returns. Returns the number
    /// to sleep on; none when the call's number was closed before, and no call kept the socket.
    pub(crate) fn hold(self: Pin<&Self>, conn: &ConnGuard) -> Option<i32> {
        self.begin();
        if let Some((held, _)) = self.on
            && !self.holds.load(Relaxed)
        {
            // A handler that jumps out between the two leaves the count behind, hence the section.
            let _section = section::Guard::enter();
            held.hold();
            self.holds.store(true, Relaxed);
        }
        conn.open_fd()
    }

    /// While one exists the call counts as spinning.
    #[inline]
    pub(crate) fn spins(self: Pin<&Self>, yes: bool) {
        self.spins.store(yes, Relaxed);
        compiler_fence(SeqCst);
    }

    /// The call is counted in the doorbell page, and sleeps on this set.
    pub(crate) fn sleeps(self: Pin<&Self>, yes: bool, set: &WaitSet) {
        let (raw, doorbells) = set.parts();
        self.doorbells.store(doorbells as i32, Relaxed);
        self.set.store(if yes { raw } else { -1 }, Relaxed);
        self.sleeps.store(yes, Relaxed);
        compiler_fence(SeqCst);
    }

    /// The call is about to block, or has come back.
    pub(crate) fn is_asleep(self: Pin<&Self>, yes: bool) {
        if let Some((conn, _)) = self.on {
            let _section = section::Guard::enter();
            conn.sleeps(yes);
            self.asleep.store(yes, Relaxed);
        }
    }

    /// The call is about to take the send turn ([`crate::conn::send_turn::SendTurn::take`]), or to
    /// ask for it ([`crate::conn::send_turn::SendTurn::want`]).
    pub(crate) fn has_turn(self: Pin<&Self>) {
        self.begin();
        self.turn.store(tls::thread_id() as u32, Relaxed);
    }

    /// Gives back all that the call holds of its connection. In a section; a second call gives
    /// nothing back twice.
    fn leave(&self) {
        let Some((conn, _)) = self.on else { return };
        // Loads and stores: exchanges are locked instructions, and no other thread looks.
        let thread = self.turn.load(Relaxed);
        if thread != 0 {
            self.turn.store(0, Relaxed);
            if conn.turn.give_up(thread) {
                doorbell::signal_self(conn.index());
            }
        }
        if self.holds.load(Relaxed) {
            self.holds.store(false, Relaxed);
            if conn.leave()
                && let Some(left) = LAST_LEFT.get()
            {
                left(conn);
            }
        }
    }
}

impl Drop for CallGuard {
    #[inline]
    fn drop(&mut self) {
        if !*self.is_registered.get_mut() {
            return;
        }
        {
            // A handler that was put off here may leave with siglongjmp: still registered, and with nothing
            // left to give back but the hold on the connection.
            let _section = section::Guard::enter();
            self.leave();
        }
        // SAFETY: pushed by `begin` on this thread, and not run: then this frame would be gone.
        unsafe { libcs::cleanup_pop(self.registration.get().cast()) };
    }
}

/// Whether a registration is that of a guard of a call on this half.
///
/// # Safety
/// Null, or a registration of this thread's that has not been taken back.
pub(crate) unsafe fn is_on(registration: *const c_void, conn: &Conn, half: Half) -> bool {
    // SAFETY: the caller's: all have glibc's layout.
    let Some(registration) = (unsafe { registration.cast::<Registration>().as_ref() }) else {
        return false;
    };
    let own = on_unwind as *const () as usize;
    if registration.routine.is_none_or(|routine| routine as *const () as usize != own) {
        return false;
    }
    // SAFETY: `begin` made it, with its guard as the argument.
    let guard = unsafe { &*registration.argument.cast::<CallGuard>() };
    guard.on.is_some_and(|(on, of)| core::ptr::eq(on, conn) && of as usize == half as usize)
}

/// The thread never comes back to the call: it was cancelled, has exited in a handler or has jumped out.
extern "C" fn on_unwind(guard: *mut c_void) {
    // SAFETY: the stay that was registered; its frame is below those that are left, and still intact.
    let guard = unsafe { &*guard.cast::<CallGuard>() };
    let _section = section::Guard::enter();
    if guard.spins.swap(false, Relaxed) {
        spin::stopped();
    }
    if guard.sleeps.swap(false, Relaxed) {
        let set = guard.set.swap(-1, Relaxed);
        let set = WaitSet::from_parts(set, guard.doorbells.load(Relaxed) as u32);
        if let Some(doorbell) = set.doorbells()
            && set.is_current()
        {
            doorbell.wake_up();
        }
        drop(set);
    }
    if let Some((conn, half)) = guard.on {
        if guard.asleep.swap(false, Relaxed) {
            conn.sleeps(false);
        }
        guard.leave();
        conn.release(half);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn;

    extern "C" fn of_the_program(_: *mut c_void) {}

    #[test]
    fn a_registration_tells_whose_guard_it_is() {
        let (one, other) = (conn::get(0).unwrap(), conn::get(1).unwrap());
        let of = |routine, guard: &CallGuard| Registration {
            routine: Some(routine),
            argument: core::ptr::from_ref(guard).cast_mut().cast(),
            cancel_type: 0,
            previous: core::ptr::null_mut(),
        };
        // SAFETY: a registration as libc writes it, of a guard that lives.
        let is_on = |at: &Registration, conn, half| unsafe {
            is_on(core::ptr::from_ref(at).cast(), conn, half)
        };
        let guard = CallGuard::new(Some((one, Half::Receive)));
        let own = of(on_unwind, &guard);
        assert!(is_on(&own, one, Half::Receive));
        assert!(!is_on(&own, one, Half::Send), "the other half");
        assert!(!is_on(&own, other, Half::Receive), "another connection");
        assert!(!is_on(&of(of_the_program, &guard), one, Half::Receive), "the program's");
        let several = CallGuard::on_several();
        assert!(!is_on(&of(on_unwind, &several), one, Half::Receive), "a wait for several");
        // SAFETY: none is registered.
        assert!(!unsafe { super::is_on(core::ptr::null(), one, Half::Receive) });
    }
}
