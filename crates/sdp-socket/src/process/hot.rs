//! What a process that forks, and its children, write: all on one page.
//!
//! Whatever a fork child writes the kernel copies first, a page at a time, and what the parent writes
//! afterwards it has to look at again. Most children of servers that fork for each connection make a few calls
//! and end; for them these copies were the largest part of what the library cost. So the words that every
//! fork and every short connection changes, the first places of the descriptor table and the first slots of
//! connections lie together here. Their meaning belongs to the modules that name them; nothing is decided
//! here, and what is seldom written stays where it is used.

use core::{
    mem::{MaybeUninit, size_of},
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize},
};

use sdp_sys::tls::Sections;

use crate::{conn::Conn, wake::interest::Mirror};

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;
/// Slots of connections on the page: a listener and what it accepted last.
pub(crate) const CONNS: usize = 2;
/// Descriptors whose places in the table are on the page: all numbers of a small server, hidden ones too.
pub(crate) const DESCRIPTORS: usize = 256;

/// Slots that hold zeros until they are used for the first time.
pub(crate) struct Slots([MaybeUninit<Conn>; CONNS]);

// SAFETY: slots are handed out as `&Conn`, which may be shared.
unsafe impl Sync for Slots {}

impl Slots {
    /// The slot with this index, if it is one of the first.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> Option<&Conn> {
        // SAFETY: an all-zero slot is a valid value (zero atomics; its cells are written before they are read).
        self.0.get(index as usize).map(|slot| unsafe { slot.assume_init_ref() })
    }

    /// Bytes from the first slot to `conn`; not below their size when it is none of these.
    #[inline(always)]
    pub(crate) fn offset_of(&self, conn: &Conn) -> usize {
        (&raw const *conn as usize).wrapping_sub(self.0.as_ptr() as usize)
    }
}

/// The page.
#[repr(C, align(4096))]
pub(crate) struct Page {
    pub(crate) conns: Slots,
    // ---- read by each call, seldom written: when the process begins, forks, leaves, or changes a handler
    pub(crate) pid: AtomicU32,
    pub(crate) hooks: Hooks,
    pub(crate) slot: AtomicU32,
    pub(crate) started: AtomicU32,
    pub(crate) forks: AtomicU32,
    pub(crate) guest: AtomicU32,
    pub(crate) retired: AtomicBool,
    pub(crate) children_elsewhere: AtomicBool,
    pub(crate) report_pending: AtomicBool,
    pub(crate) moving: AtomicBool,
    pub(crate) making: AtomicU32,
    pub(crate) family: AtomicPtr<u8>,
    pub(crate) bell: AtomicPtr<u8>,
    pub(crate) arena: AtomicPtr<Conn>,
    pub(crate) far_table: AtomicPtr<AtomicU32>,
    pub(crate) nonce: AtomicU64,
    pub(crate) page: AtomicPtr<u8>,
    pub(crate) host: AtomicPtr<u8>,
    pub(crate) inode: AtomicU64,
    pub(crate) preparing: AtomicU32,
    pub(crate) prepared: AtomicU32,
    pub(crate) reserved: AtomicU32,
    pub(crate) nested: AtomicU32,
    pub(crate) bells: AtomicU32,
    pub(crate) blocks: AtomicU32,
    pub(crate) scratch: AtomicBool,
    pub(crate) has_networks: AtomicBool,
    pub(crate) hides: AtomicBool,
    pub(crate) keeps_sets: AtomicBool,
    pub(crate) epoll: Epoll,
    // ---- written by several threads at a time
    pub(crate) busy: Busy,
    pub(crate) sections: Sections,
    pub(crate) lock: Lock,
    pub(crate) table: [AtomicU32; DESCRIPTORS],
}

/// Words of the hooks, which have them here for the same reason.
pub struct Hooks {
    /// The process that this memory belongs to; 0 before it is known.
    pub owner: AtomicI32,
    /// The process is under a seccomp filter.
    pub is_sandboxed: AtomicBool,
    /// Fork children that were begun before the call that made them has returned there.
    pub begun: AtomicU32,
    /// The program's signal handlers, a word each. Children of servers begin by changing them.
    pub handlers: [AtomicUsize; SIGNALS + 1],
}

/// Signals are 1…64.
pub const SIGNALS: usize = 64;

/// Words of the epoll sets.
pub(crate) struct Epoll {
    /// The mirror; null while there is none.
    pub(crate) mirror: AtomicPtr<Mirror>,
    /// A connection has been added to a set: the program waits where we see it, also for connections that it
    /// adds only after its first EAGAIN.
    pub(crate) sees_waits: AtomicBool,
}

/// Words on a cache line of their own: threads change them beside the readers of the others.
#[repr(C, align(64))]
pub(crate) struct Busy {
    pub(crate) hint: AtomicU32,
    pub(crate) spinners: AtomicU32,
    /// Threads in a wait for young connections ([`sdp_shm::early`]).
    pub(crate) early: AtomicU32,
}

/// The epoll lock, on a cache line of its own: who waits for it looks at nothing else.
#[repr(C, align(64))]
pub(crate) struct Lock {
    pub(crate) epoll_lock: AtomicU32,
    pub(crate) epoll_forking: AtomicU32,
    /// Changes of registrations that a wait under way must know of. Written under the lock.
    pub(crate) epoll_changes: AtomicU64,
}

const _: () = assert!(size_of::<Page>() == PAGE_BYTES);

/// This process's.
// SAFETY: atomics, for which zeros are valid (0, false, null), and memory that need not hold anything.
#[unsafe(link_section = ".bss.hot.page")]
pub(crate) static PAGE: Page = unsafe { MaybeUninit::zeroed().assume_init() };
