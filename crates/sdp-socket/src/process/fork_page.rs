//! The words that a process that forks and its children write, all on one page.
//!
//! The kernel copies each page that a fork child writes, first, and looks again at each page that
//! the parent writes afterwards. Most children of servers that fork for each connection make a few
//! calls and end; for them these copies were the largest part of what the library cost. So the
//! words that every fork and every short connection changes, the first places of the descriptor
//! table and the first slots of connections lie together here. The modules that name them give them
//! their meaning; nothing is decided here, and words that are seldom written stay where they are
//! used.

use core::{
    cell::UnsafeCell,
    mem::{MaybeUninit, size_of},
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize},
};

use sdp_sys::tls::Sections;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Slots of connections on the page: a listener and the last connection that it accepted.
pub(crate) const CONNS: usize = 2;
/// Descriptors whose places in the table are on the page: all numbers of a small server, hidden
/// ones too.
pub(crate) const DESCRIPTORS: usize = 256;

/// Bytes of a connection's slot, which `conn` holds against its own.
pub(crate) const CONN_BYTES: usize = 512;

/// Room for a connection's slot; zeros until it is used for the first time. `conn` gives it its
/// meaning.
#[repr(C, align(128))]
pub(crate) struct Place(UnsafeCell<[u8; CONN_BYTES]>);

// SAFETY: nothing is read or written through this type, it only says where the bytes are.
unsafe impl Sync for Place {}

impl Place {
    /// Where it is.
    #[inline(always)]
    pub(crate) const fn at(&self) -> *mut u8 {
        self.0.get().cast()
    }
}

/// The page.
#[repr(C, align(4096))]
pub(crate) struct Page {
    pub(crate) conns: [Place; CONNS],
    // ---- read by each call, seldom written: when the process begins, forks, leaves, or changes a handler
    pub(crate) pid: AtomicU32,
    pub(crate) hooks: Hooks,
    pub(crate) slot: AtomicU32,
    pub(crate) started: AtomicU32,
    pub(crate) forks: AtomicU32,
    pub(crate) borrower: AtomicU32,
    pub(crate) retired: AtomicBool,
    pub(crate) children_elsewhere: AtomicBool,
    pub(crate) report_pending: AtomicBool,
    pub(crate) moving: AtomicBool,
    pub(crate) making: AtomicU32,
    pub(crate) family: AtomicPtr<u8>,
    pub(crate) doorbell: AtomicPtr<u8>,
    pub(crate) arena: AtomicPtr<u8>,
    pub(crate) far_table: AtomicPtr<AtomicU32>,
    pub(crate) nonce: AtomicU64,
    pub(crate) page: AtomicPtr<u8>,
    pub(crate) inherited: AtomicPtr<u8>,
    pub(crate) inode: AtomicU64,
    pub(crate) preparing: AtomicU32,
    pub(crate) prepared: AtomicU32,
    pub(crate) reserved: AtomicU32,
    pub(crate) nested: AtomicU32,
    pub(crate) doorbells: AtomicU32,
    pub(crate) used: [AtomicU64; DESCRIPTORS / u64::BITS as usize],
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
    pub(crate) mirror: AtomicPtr<u8>,
    /// A connection has been added to a set: the program waits where we see it, also for connections that it
    /// adds only after its first EAGAIN.
    pub(crate) sees_waits: AtomicBool,
}

/// Words on a cache line of their own: threads change them beside the readers of the others.
#[repr(C, align(64))]
pub(crate) struct Busy {
    pub(crate) hint: AtomicU32,
    pub(crate) spinners: AtomicU32,
    /// Threads in a wait for candidates ([`sdp_shm::early`]).
    pub(crate) early: AtomicU32,
}

/// The epoll lock, on a cache line of its own: a thread that waits for it looks at nothing else.
#[repr(C, align(64))]
pub(crate) struct Lock {
    pub(crate) epoll_lock: AtomicU32,
    pub(crate) epoll_forking: AtomicU32,
    /// Changes of registrations that a wait in progress must know of. Written under the lock.
    pub(crate) epoll_changes: AtomicU64,
}

const _: () = assert!(size_of::<Page>() == PAGE_BYTES);

/// This process's.
// SAFETY: atomics, for which zeros are valid (0, false, null), and memory that need not hold anything.
#[unsafe(link_section = ".bss.hot.page")]
pub(crate) static FORK_PAGE: Page = unsafe { MaybeUninit::zeroed().assume_init() };
