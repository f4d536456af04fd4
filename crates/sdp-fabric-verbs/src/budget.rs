//! How much memory may be pinned, and the pools that fit into it.

use sdp_sys::{Errno, sys};

use crate::Error;

/// Bytes of a receive or send buffer, and so of the longest message.
pub const BUFFER: usize = 4096;
/// Receive buffers that every connection is promised at least.
pub const PROMISE_LEAST: u32 = 4;
/// Buffers beyond its promise that each connection can always use: for control messages.
pub const RESERVE: u32 = 2;
/// Entries of a send queue.
pub const DEPTH: u32 = 32;
/// Bytes that a post copies itself: a header and 64 bytes, so that the device need not fetch them. (A request of one
/// piece that long takes two units of 64 bytes of a send queue, as one of 64 bytes does.)
pub const INLINE: u32 = 96;
/// Most connections of one fabric.
pub const CONNECTIONS_MAX: usize = 128;
/// Most receive buffers.
pub const RECEIVES_MAX: usize = 1024;
/// Most send buffers.
pub const SENDS_MAX: usize = 256;
/// Below this limit libibverbs is not even opened: it complains on standard error.
pub const LEAST_LIMIT: u64 = 1 << 20;

/// Messages that the peer of a ring may send before it hears of room for more: receives that are
/// always posted.
pub const RING_MESSAGES: u32 = 64;
/// Receives of a ring's queue pair: this number more makes up for receives that are posted again as a list.
pub const RING_RECEIVES: u32 = RING_MESSAGES + 8;
/// Sizes of a ring and of the bytes kept beside it, largest first.
const RINGS: [(u32, u32); 5] = [
    (256 << 10, 128 << 10),
    (128 << 10, 64 << 10),
    (64 << 10, 64 << 10),
    (32 << 10, 32 << 10),
    (16 << 10, 16 << 10),
];
/// What a connection with a ring pins beside both: send queue and headers.
const RING_OTHER: usize = 8 << 10;

/// Memory for connections with rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingBudget {
    bytes: usize,
    /// Connections.
    pub connections: usize,
}

impl RingBudget {
    const LEAST: usize =
        (RINGS[RINGS.len() - 1].0 + RINGS[RINGS.len() - 1].1) as usize + RING_OTHER;

    /// What fits into three quarters of `limit` bytes, for at most `connections`; without a limit
    /// they are never short.
    ///
    /// # Errors
    /// [`Error::MemLock`]: not even one connection.
    pub fn within(limit: u64, connections: usize) -> Result<Self, Error> {
        if limit < LEAST_LIMIT {
            return Err(Error::MemLock);
        }
        let bytes = usize::try_from(limit - limit / 4).unwrap_or(usize::MAX).min(64 << 20);
        let connections = (bytes / Self::LEAST).min(connections).min(CONNECTIONS_MAX);
        if connections == 0 { Err(Error::MemLock) } else { Ok(Self { bytes, connections }) }
    }

    /// Sizes of ring and kept bytes for one more connection, beside `used` ones that have pinned
    /// `pinned` bytes. The least sizes are kept for each that may come, and of what is left one gets
    /// an eighth at most. `None`: there are as many connections as may be.
    pub fn sizes(&self, used: usize, pinned: usize) -> Option<(u32, u32)> {
        let to_come = self.connections.checked_sub(used).filter(|left| *left != 0)?;
        let slack = self.bytes.saturating_sub(pinned).saturating_sub(to_come * Self::LEAST);
        let fits =
            |(ring, kept): &(u32, u32)| Self::pinned(*ring, *kept) <= Self::LEAST + slack / 8;
        RINGS.into_iter().find(fits)
    }

    /// Bytes of the first connection's ring, and of the last one's where all are there at once.
    pub fn first_and_last(&self) -> (u32, u32) {
        let (mut sizes, mut pinned, mut used) = ((0, 0), 0, 0);
        while let Some((ring, kept)) = self.sizes(used, pinned) {
            let first = if used == 0 { ring } else { sizes.0 };
            (sizes, pinned, used) = ((first, ring), pinned + Self::pinned(ring, kept), used + 1);
        }
        sizes
    }

    /// Bytes of the largest ring.
    pub const fn largest() -> u32 {
        RINGS[0].0
    }

    /// Bytes that a connection of these sizes pins.
    pub const fn pinned(ring: u32, kept: u32) -> usize {
        ring as usize + kept as usize + RING_OTHER
    }
}

/// Sizes of the pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Receive buffers, shared by all connections.
    pub receives: usize,
    /// Send buffers, shared by all connections.
    pub sends: usize,
    /// Connections.
    pub connections: usize,
}

impl Budget {
    /// The pools that fit into three quarters of `limit` bytes, for at most `connections`.
    ///
    /// # Errors
    /// [`Error::MemLock`]: not even for one connection.
    pub fn within(limit: u64, connections: usize) -> Result<Self, Error> {
        if limit < LEAST_LIMIT {
            return Err(Error::MemLock);
        }
        let bytes = usize::try_from(limit - limit / 4).unwrap_or(usize::MAX);
        // A connection: its share of receive and send buffers, its send queue
        // (256 bytes an entry where the provider pins it) and its share of the completion queue.
        let receives =
            CONNECTIONS_MAX.min(connections).saturating_mul(RECEIVES_MAX / CONNECTIONS_MAX);
        let sends = CONNECTIONS_MAX.min(connections).saturating_mul(SENDS_MAX / CONNECTIONS_MAX);
        let each = (RECEIVES_MAX + SENDS_MAX) / CONNECTIONS_MAX * BUFFER + DEPTH as usize * 256;
        let fits = (bytes / each).min(connections).min(CONNECTIONS_MAX);
        if fits == 0 {
            return Err(Error::MemLock);
        }
        let share = |most: usize, per: usize| most.min(fits * per).max(1);
        Ok(Self {
            receives: share(receives, RECEIVES_MAX / CONNECTIONS_MAX),
            sends: share(sends, SENDS_MAX / CONNECTIONS_MAX),
            connections: fits,
        })
    }

    /// Receive buffers to promise to one more connection, beside `used` ones that hold `committed` buffers with their
    /// reserves: at most `most`, and so many that [`PROMISE_LEAST`] remain for each connection to come. `None`: there are
    /// as many connections as may be.
    pub fn promise(&self, used: usize, committed: usize, most: u32) -> Option<u32> {
        let to_come = self.connections.checked_sub(used + 1)?;
        let least = PROMISE_LEAST.min(most);
        let kept = to_come * (least + RESERVE) as usize + RESERVE as usize;
        let left = self.receives.checked_sub(committed + kept)?.min(most as usize) as u32;
        (left >= least).then_some(left)
    }

    /// Bytes of the two pools.
    pub const fn pinned(&self) -> usize {
        (self.receives + self.sends) * BUFFER
    }
}

/// Bytes that this process may lock; `u64::MAX` with CAP_IPC_LOCK, which lifts the limit.
pub fn limit() -> u64 {
    const CAP_IPC_LOCK: u32 = 14;
    /// `_LINUX_CAPABILITY_VERSION_3`.
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    let mut data = [0u32; 6];
    // SAFETY: a header of two words for the caller, and the six words of version 3.
    let asked = unsafe { sys!(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) };
    if asked.is_ok() && data[0] & (1 << CAP_IPC_LOCK) != 0 {
        return u64::MAX;
    }
    soft_limit(libc::RLIMIT_MEMLOCK as i32).unwrap_or(0)
}

/// A soft limit of this process.
pub fn soft_limit(resource: i32) -> Result<u64, Errno> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: limit is valid for writing; process 0 is the caller, the null pointer asks only.
    unsafe { sys!(libc::SYS_prlimit64, 0, resource, 0, &raw mut limit)? };
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_mebibytes_are_enough_for_128_connections() {
        let budget = Budget::within(8 << 20, 128).unwrap();
        assert_eq!(budget.connections, 128);
        assert!(budget.pinned() <= 6 << 20, "{budget:?}");
        assert_eq!(Budget::within(16 << 20, 128).unwrap().connections, 128);
        assert_eq!(Budget::within(u64::MAX, 1000).unwrap().connections, CONNECTIONS_MAX);
    }

    #[test]
    fn rings_are_as_large_as_what_is_left_allows() {
        let all = |limit: u64| {
            let budget = RingBudget::within(limit, 128).unwrap();
            let (mut sizes, mut pinned) = (Vec::new(), 0);
            while let Some((ring, kept)) = budget.sizes(sizes.len(), pinned) {
                pinned += RingBudget::pinned(ring, kept);
                sizes.push((ring >> 10, kept >> 10));
            }
            assert_eq!(sizes.len(), budget.connections);
            assert!(pinned <= budget.bytes, "{pinned} bytes of {limit}");
            assert!(sizes.iter().all(|(ring, kept)| kept * 2 >= *ring));
            sizes
        };
        let eight = all(8 << 20);
        assert_eq!(
            (eight.len(), eight[0], eight[7], eight[127]),
            (128, (64, 64), (32, 32), (16, 16))
        );
        let sixteen = all(16 << 20);
        assert_eq!((sixteen[0], sixteen[7], sixteen[127]), ((256, 128), (256, 128), (16, 16)));
        let sixty_four = all(64 << 20);
        assert_eq!((sixty_four[0], sixty_four[31]), ((256, 128), (256, 128)));
        assert!(sixty_four[127].0 >= 32, "{:?}", sixty_four[127]);
        for (limit, sizes) in [(8, &eight), (16, &sixteen), (64, &sixty_four)] {
            let (first, last) = RingBudget::within(limit << 20, 128).unwrap().first_and_last();
            assert_eq!((first >> 10, last >> 10), (sizes[0].0, sizes[127].0));
        }
        assert!((1..20).contains(&all(1 << 20).len()));
        assert_eq!(RingBudget::within(65536, 128), Err(Error::MemLock));
    }

    #[test]
    fn buffers_are_never_promised_twice() {
        for limit in [1 << 20, 3 << 20, 8 << 20, u64::MAX] {
            let budget = Budget::within(limit, 128).unwrap();
            let (mut used, mut committed, mut last) = (0, 0, 16);
            while let Some(promise) = budget.promise(used, committed, 16) {
                assert!((PROMISE_LEAST..=last).contains(&promise), "{promise} after {last}");
                (used, committed, last) =
                    (used + 1, committed + (promise + RESERVE) as usize, promise);
            }
            assert_eq!(used, budget.connections, "{budget:?}");
            assert!(committed <= budget.receives, "{budget:?}");
            assert_eq!(budget.promise(0, 0, 16), Some(16));
            assert_eq!(budget.promise(0, 0, 2), Some(2));
        }
    }

    #[test]
    fn a_small_limit_makes_fewer_connections_or_none() {
        let budget = Budget::within(1 << 20, 128).unwrap();
        assert!((1..20).contains(&budget.connections), "{budget:?}");
        assert!(budget.receives >= budget.connections * 6);
        assert_eq!(Budget::within(65536, 128), Err(Error::MemLock));
    }
}
