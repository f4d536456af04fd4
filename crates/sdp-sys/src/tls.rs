//! One small block of words per thread, reachable from a signal handler.
//!
//! Critical sections ([`crate::section`]) and the socket layer's per-thread hints need thread-local
//! words that cost a nanosecond, are valid from the first instruction of a thread and never
//! allocate. `thread_local!` in a shared object gives none of that (its first touch may call
//! `malloc`), so the block is declared in assembly and addressed with the *initial-exec* model: one
//! load of the offset, no call. That marks the library `STATIC_TLS`, which suits a library that is
//! loaded with the program; a program (or a test binary) links the same code.
//!
//! The block starts as zeros in every thread, is copied by `fork` and is shared by a vfork child
//! with the thread that waits for it. Nothing here has a destructor.

use core::{
    ptr::from_ref,
    sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// Size of the block in bytes. A preloaded library's share of static TLS is not scarce, one that is
/// opened late has about 500 bytes.
const SIZE: usize = 256;

/// The words that critical sections write. Atomics because a signal handler may look between any
/// two instructions; relaxed access is enough, no other thread ever sees them.
#[repr(C, align(64))]
pub struct Sections {
    /// Depth of nested critical sections.
    pub(crate) depth: AtomicU32,
    /// Whether a signal was put off in the outermost section.
    pub(crate) pending: AtomicU32,
    /// Signals that were *not* blocked when the first one was put off (bit n−1 for signal n).
    pub(crate) unblocked: AtomicU64,
    /// Handlers that ran in this thread, wrapping.
    pub(crate) handlers: AtomicU32,
    /// Those of them that were installed without `SA_RESTART`, wrapping.
    pub(crate) no_restart: AtomicU32,
    /// Handlers that have begun and not returned.
    pub(crate) running: AtomicU32,
    /// The descriptor whose sending half is locked for a copy of the program's bytes, or, negative,
    /// whose receiving half; 0 none.
    pub(crate) copying: AtomicI32,
}

/// The words of one thread: atomics for the same reason.
#[repr(C, align(64))]
pub struct Block {
    here: Sections,
    /// Where the thread's sections are instead; null: here.
    elsewhere: AtomicPtr<Sections>,
    /// Kernel id of the thread if known (cleared in a fork child), see [`thread_id`].
    tid: AtomicU32,
    _reserved: AtomicU32,
    /// Words for the layers above; [`Slot`] assigns them.
    slots: [AtomicUsize; SLOTS],
}

/// Number of words for the layers above.
pub const SLOTS: usize = 16;

/// The users of the free words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Slot {
    /// Socket layer: the thread's private wait set (descriptor + 1).
    WaitSet = 0,
    /// Socket layer: the record of the thread's waits for many connections, one after the other; 0
    /// nothing yet.
    SpinBudget = 1,
    /// Socket layer: calls since the last look at foreign descriptors.
    Fairness = 2,
    /// Statistics: the thread's stripe of counters.
    Stripe = 3,
    /// Preload: the thread is inside a constructor or resolver.
    Resolving = 4,
    /// Non-zero after the thread called vfork, or a clone like it: the thread that runs on this
    /// block may be the child, see [`crate::pid::is_borrowed`].
    Borrowed = 5,
    /// Socket layer: connection that the thread waited for last, and whether it waits for several in turn.
    WaitedFor = 6,
    /// Socket layer: whether the thread's messages since its last wait had to wake a thread of the
    /// peer.
    Reached = 7,
    /// Free for the socket layer.
    Socket0 = 8,
    /// Free for the socket layer.
    Socket1 = 9,
    /// Free for the socket layer.
    Socket2 = 10,
    /// Free for the socket layer.
    Socket3 = 11,
    /// Preload: calls of `syscall` by this thread that the hooks have looked at, wrapping.
    Seen = 12,
    /// Preload: how far the thread is with a fork.
    Forking = 13,
}

const _: () = assert!(size_of::<Block>() <= SIZE);

core::arch::global_asm!(
    ".pushsection .tbss.sdp_thread_block,\"awT\",%nobits",
    ".p2align 6",
    ".globl sdp_thread_block",
    ".hidden sdp_thread_block",
    ".type sdp_thread_block, %object",
    ".size sdp_thread_block, {size}",
    "sdp_thread_block:",
    ".zero {size}",
    ".popsection",
    size = const SIZE,
);

/// The calling thread's block.
#[inline(always)]
pub fn block() -> &'static Block {
    let p: *const Block;
    // SAFETY: initial-exec access as the x86-64 TLS ABI gives it: the thread pointer is at fs:0, the
    // offset of the symbol in the GOT. Reads memory that never changes for a thread; no stack.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "mov {p}, qword ptr fs:[0]",
            "add {p}, qword ptr [rip + sdp_thread_block@GOTTPOFF]",
            p = out(reg) p, options(pure, nomem, nostack));
    }
    // SAFETY: initial-exec access as the AArch64 TLS ABI gives it.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "mrs {p}, tpidr_el0",
            "adrp {o}, :gottprel:sdp_thread_block",
            "ldr {o}, [{o}, :gottprel_lo12:sdp_thread_block]",
            "add {p}, {p}, {o}",
            p = out(reg) p, o = out(reg) _, options(pure, nomem, nostack, preserves_flags));
    }
    // SAFETY: the block is SIZE zero-initialised bytes with alignment 64 and lives as long as the
    // thread; `&'static` does not leave it (Block is not handed to other threads by this crate).
    unsafe { &*p }
}

/// The words that the calling thread's sections write.
#[inline(always)]
pub fn sections() -> &'static Sections {
    let block = block();
    // SAFETY: null, or the reference that `keep_sections` was given.
    unsafe { block.elsewhere.load(Relaxed).as_ref() }.unwrap_or(&block.here)
}

/// Lets the calling thread's sections write to `at` from here on: in a process that forks, each page that its parent
/// writes afterwards costs a fault, and the first thread's words are best on one that is written anyway. False, and
/// nothing changes: the thread is in a section, or has put a signal off.
///
/// # Safety
/// Nothing else uses `at`, ever.
pub unsafe fn keep_sections(at: &'static Sections) -> bool {
    let block = block();
    let now = &block.here;
    if !block.elsewhere.load(Relaxed).is_null()
        || now.depth.load(Relaxed) != 0
        || now.pending.load(Relaxed) != 0
    {
        return false;
    }
    at.handlers.store(now.handlers.load(Relaxed), Relaxed);
    at.no_restart.store(now.no_restart.load(Relaxed), Relaxed);
    at.running.store(now.running.load(Relaxed), Relaxed);
    block.elsewhere.store(from_ref(at).cast_mut(), Relaxed);
    true
}

/// The word of `slot` in the calling thread.
#[inline(always)]
pub fn slot(slot: Slot) -> &'static AtomicUsize {
    // The discriminants are below SLOTS by construction; `first` cannot be needed, but costs nothing.
    let slots = &block().slots;
    slots.get(slot as usize).unwrap_or(&slots[0])
}

/// Kernel id of the calling thread; one system call per thread and process.
pub fn thread_id() -> i32 {
    let cell = &block().tid;
    let known = cell.load(Relaxed);
    if known != 0 {
        return known as i32;
    }
    let tid = crate::kernel::gettid().unwrap_or(0);
    cell.store(tid as u32, Relaxed);
    tid as i32
}

/// In a fork child: the cached id belongs to the parent.
pub fn forked() {
    block().tid.store(0, Relaxed);
    crate::pid::forked();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_per_thread() {
        let here = core::ptr::from_ref(block()) as usize;
        assert_eq!(here % 64, 0);
        slot(Slot::Socket0).store(7, Relaxed);
        let (there, word) = std::thread::spawn(|| {
            (core::ptr::from_ref(block()) as usize, slot(Slot::Socket0).load(Relaxed))
        })
        .join()
        .unwrap();
        assert_ne!(here, there);
        assert_eq!(word, 0, "a new thread starts with zeros");
        assert_eq!(slot(Slot::Socket0).load(Relaxed), 7);
        slot(Slot::Socket0).store(0, Relaxed);
    }

    #[test]
    fn sections_may_be_elsewhere() {
        static ELSEWHERE: Sections = Sections {
            depth: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            unblocked: AtomicU64::new(0),
            handlers: AtomicU32::new(0),
            no_restart: AtomicU32::new(0),
            running: AtomicU32::new(0),
            copying: AtomicI32::new(0),
        };
        std::thread::spawn(|| {
            let section = crate::section::Guard::enter();
            // SAFETY: nothing else uses it.
            assert!(!unsafe { keep_sections(&ELSEWHERE) }, "in a section");
            drop(section);
            crate::section::handler_runs(true);
            let mark = crate::section::mark();
            // SAFETY: nothing else uses these words: `ELSEWHERE` is this test's.
            assert!(unsafe { keep_sections(&ELSEWHERE) });
            assert_eq!(crate::section::mark(), mark, "what was counted goes along");
            let section = crate::section::Guard::enter();
            assert!(crate::section::inside());
            assert_eq!(ELSEWHERE.depth.load(Relaxed), 1);
            std::thread::spawn(|| assert!(!crate::section::inside())).join().unwrap();
            drop(section);
            assert_eq!(ELSEWHERE.depth.load(Relaxed), 0);
            // SAFETY: nothing else uses these words: `ELSEWHERE` is this test's.
            assert!(!unsafe { keep_sections(&ELSEWHERE) }, "once");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn slots_do_not_overlap() {
        let all = [
            Slot::WaitSet,
            Slot::SpinBudget,
            Slot::Fairness,
            Slot::Stripe,
            Slot::Resolving,
            Slot::Socket0,
            Slot::Socket1,
            Slot::Socket2,
            Slot::Socket3,
        ];
        for (i, a) in all.iter().enumerate() {
            assert!((*a as usize) < SLOTS);
            for b in all.iter().skip(i + 1) {
                assert!(!core::ptr::eq(slot(*a), slot(*b)));
            }
        }
    }

    #[test]
    fn thread_ids_are_the_kernels() {
        assert_eq!(Ok(thread_id() as usize), crate::kernel::gettid());
        assert_eq!(thread_id(), thread_id());
    }
}
