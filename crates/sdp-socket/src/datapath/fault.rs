//! A copy to or from the program's memory faults: the file behind a mapping was made shorter, a
//! page is protected.
//!
//! The kernel answers EFAULT there; a library gets a signal. The program's handler may repair the
//! mapping and return, leave by a jump, end the thread, or use the same connection. So the half is
//! let go before the handler runs, as if this thread had been killed in the middle of the copy:
//! what it had begun never happened ([`crate::datapath::takeover`]), and its lock is free. If the
//! handler returns, the thread takes the half again and goes on with the copy, provided that
//! nothing has changed meanwhile. Called by the wrapper of the program's handlers.
//!
//! It refuses to guess: where the half has been used meanwhile, the copy cannot go on, and the
//! signal ends the process, as it does where no handler is.

use core::{cell::UnsafeCell, ffi::c_void, sync::atomic::Ordering};

use sdp_shm::{
    family::{HALF_WORDS, HalfSlot, Row},
    lock::{self, Acquired},
};
use sdp_sys::{kernel, libcs, pid, section, tls};

use crate::{
    conn::{self, Conn, Half, Stage},
    datapath::{reset::reset, send, takeover},
    process::{
        self,
        table::{self, Entry},
    },
    wake::{call_guard, doorbell},
};

/// glibc's `struct _pthread_cleanup_buffer`, in words.
const REGISTRATION_WORDS: usize = 4;

/// A half that was let go, until the handler returns or its frame is left.
pub struct LetGo {
    conn: &'static Conn,
    half: Half,
    /// Its words, and the switches of its log, as they were left.
    words: [u64; HALF_WORDS],
    switches: u32,
    had_gate: bool,
    /// As [`section::copying`] said.
    copying: i32,
    registration: UnsafeCell<[u64; REGISTRATION_WORDS]>,
    is_registered: bool,
}

/// In [`section::copying`]: the connection's slot, not a number that names it.
const BY_SLOT: i32 = 1 << 30;

/// A half of a connection, for [`section::set_copying`]: by its slot, because the number that it was
/// made with may name another connection by now.
#[inline]
pub(crate) fn mark_of(conn: &Conn, half: Half) -> i32 {
    let mark = BY_SLOT | conn.index() as i32;
    match half {
        Half::Send => mark,
        Half::Receive => -mark,
    }
}

fn slot(row: &Row, half: Half) -> &HalfSlot {
    match half {
        Half::Send => &row.source,
        Half::Receive => &row.sink,
    }
}

fn words(slot: &HalfSlot) -> [u64; HALF_WORDS] {
    core::array::from_fn(|at| slot.words.get(at).map_or(0, |word| word.load(Ordering::Relaxed)))
}

/// Before the program's handler for a fault inside a section runs: lets go of the half whose copy
/// it may have interrupted. `None`: the thread was not in the middle of one.
#[cold]
#[inline(never)]
pub fn let_go() -> Option<LetGo> {
    let copying = section::copying();
    let (mark, half) = match copying {
        0 => return None,
        mark if mark > 0 => (mark, Half::Send),
        mark => (-mark, Half::Receive),
    };
    let index = match mark & BY_SLOT {
        0 => match table::entry(mark) {
            Some(Entry::Conn(index)) => index,
            _ => return None,
        },
        _ => (mark & !BY_SLOT) as u32,
    };
    let conn = conn::get(index).filter(|conn| conn.stage() == Stage::Attached)?;
    let (row, link) = (conn.row()?, conn.link()?);
    let slot = slot(row, half);
    if !lock::is_owned_by(&slot.lock, process::pid()) {
        return None;
    }
    let index = conn.half_index(half);
    let segment = link.segment();
    let lines = segment.half(index);
    let had_gate = lines.log.gate.load(Ordering::Acquire) == conn.side() as u32 + 1;
    let is_whole = match half {
        Half::Send => takeover::source_of(conn, row, link, index),
        Half::Receive => takeover::sink_of(conn, row, link.segment(), index),
    };
    if is_whole.is_err() {
        reset(conn);
    }
    let left = LetGo {
        conn,
        half,
        words: words(slot),
        switches: lines.producer.switches.load(Ordering::Acquire),
        had_gate,
        copying,
        registration: UnsafeCell::new([0; REGISTRATION_WORDS]),
        is_registered: false,
    };
    section::set_copying(0);
    lock::unlock(&slot.lock);
    Some(left)
}

extern "C" fn left_for_good(left: *mut c_void) {
    // SAFETY: registered by `watch` with a value that lives until its frame is gone, and taken back
    // before that.
    let left = unsafe { &*left.cast::<LetGo>() };
    if left.half == Half::Send && left.conn.turn.end(tls::thread_id() as u32) {
        doorbell::signal_self(left.conn.index());
    }
    // SAFETY: libc wrote it; a registration before this one is further down the stack, and intact.
    let before = unsafe { *left.registration.get() }[REGISTRATION_WORDS - 1];
    // The guard of a call that has slept gives the call's use back by itself, behind this. The fast
    // path's use is one of its own.
    let is_slow = left.copying.unsigned_abs() & BY_SLOT.unsigned_abs() != 0;
    // SAFETY: null, or a registration of this thread's, which is in force.
    let is_guarded =
        is_slow && unsafe { call_guard::is_on(before as *const c_void, left.conn, left.half) };
    if !is_guarded {
        left.conn.release(left.half); // where it counts no call, it does nothing
    }
}

impl LetGo {
    /// From here on the handler may leave the frame that has this value: what the interrupted call
    /// had in use is given back then.
    ///
    /// # Safety
    /// The value stays where it is until [`Self::take_again`].
    pub unsafe fn watch(&mut self) {
        let (at, this) = (self.registration.get().cast(), core::ptr::from_mut(self).cast());
        // SAFETY: the caller's; the room is glibc's structure.
        self.is_registered = unsafe { libcs::cleanup_push(at, left_for_good, this) };
    }

    /// The handler for `signal` has returned: the copy goes on, under the lock.
    pub fn take_again(&mut self, signal: i32) {
        if self.is_registered {
            // SAFETY: registered by this thread, the last one of this frame.
            unsafe { libcs::cleanup_pop(self.registration.get().cast()) };
        }
        let (Some(row), Some(link)) = (self.conn.row(), self.conn.link()) else {
            return end(signal);
        };
        let slot = slot(row, self.half);
        if lock::lock(&slot.lock, process::pid()) != Acquired::Clean {
            return end(signal);
        }
        let segment = link.segment();
        let index = self.conn.half_index(self.half);
        let lines = segment.half(index);
        if self.had_gate && !send::take_gate(self.conn, link.half(index), self.conn.side()) {
            return end(signal);
        }
        if words(slot) != self.words
            || lines.producer.switches.load(Ordering::Acquire) != self.switches
        {
            return end(signal);
        }
        section::set_copying(self.copying);
    }
}

/// The half is not what it was: the interrupted copy cannot go on, and the fault stays one.
#[cold]
fn end(signal: i32) {
    let _ = kernel::default_action(signal, &[0; 4]);
    let mask = 0;
    let _ = kernel::set_signal_mask(libc::SIG_SETMASK, &mask);
    let (process, thread) = (kernel::getpid().unwrap_or(0), kernel::gettid().unwrap_or(0));
    let _ = kernel::tgkill(process, thread, signal);
    pid::exit(128 + signal);
}
