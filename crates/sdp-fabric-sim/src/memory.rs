//! Simulated memory: addresses, registered regions, keys.
//!
//! Each node has an address space of its own; the bytes live in the world, so that a one-sided READ
//! or WRITE can be carried out, and refused, without any real pointer. Address spaces of two nodes do
//! not overlap, and allocations have gaps between them: an address used at the wrong end, or one byte
//! too far, is always noticed. Keys are never used twice.

use std::collections::BTreeMap;

use sdp_rdma::{
    fabric::{MemoryRegion, PostError},
    key::{Access, Lkey, Rkey},
};

/// Bytes that one node may allocate.
pub const MEMORY_BYTES_MAX: u64 = 64 << 20;
/// Regions that one node may have registered at once; more is [`PostError::Full`].
pub const REGIONS_MAX: usize = 256;

const PAGE: u64 = 4096;
/// Distance between the address spaces of two nodes.
const NODE_STRIDE: u64 = 1 << 40;

/// The access that a one-sided request wants to the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    Local,
    RemoteRead,
    RemoteWrite,
}

#[derive(Debug, Clone, Copy)]
struct Region {
    addr: u64,
    len: u64,
    access: Access,
    rkey: u32,
}

/// A node's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    next_addr: u64,
    allocated: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
    by_lkey: BTreeMap<u32, Region>,
    /// From remote key to local key.
    by_rkey: BTreeMap<u32, u32>,
}

impl Memory {
    pub(crate) fn new(node: u32) -> Self {
        Self {
            next_addr: (u64::from(node) + 1) * NODE_STRIDE,
            allocated: 0,
            blocks: BTreeMap::new(),
            by_lkey: BTreeMap::new(),
            by_rkey: BTreeMap::new(),
        }
    }

    /// `len` zero bytes; `None` beyond [`MEMORY_BYTES_MAX`].
    pub(crate) fn allocate(&mut self, len: u64) -> Option<u64> {
        self.allocated =
            self.allocated.checked_add(len).filter(|total| *total <= MEMORY_BYTES_MAX)?;
        let addr = self.next_addr;
        // One page of nothing behind each block.
        self.next_addr += len.next_multiple_of(PAGE) + PAGE;
        self.blocks.insert(addr, vec![0; len as usize]);
        Some(addr)
    }

    /// The bytes at an address range, if they lie within one block.
    pub(crate) fn bytes(&mut self, addr: u64, len: u64) -> Option<&mut [u8]> {
        let (start, block) = self.blocks.range_mut(..=addr).next_back()?;
        let from = usize::try_from(addr - start).ok()?;
        let to = from.checked_add(usize::try_from(len).ok()?)?;
        block.get_mut(from..to)
    }

    /// Registers a range; `keys` are two numbers never used before.
    pub(crate) fn register(
        &mut self,
        addr: u64,
        len: u64,
        access: Access,
        keys: [u32; 2],
    ) -> Result<MemoryRegion, PostError> {
        if self.by_lkey.len() >= REGIONS_MAX {
            return Err(PostError::Full);
        }
        self.bytes(addr, len).ok_or(PostError::Unsupported)?;
        let [lkey, rkey] = keys;
        self.by_lkey.insert(lkey, Region { addr, len, access, rkey });
        self.by_rkey.insert(rkey, lkey);
        Ok(MemoryRegion { addr, len, lkey: Lkey(lkey), rkey: Rkey(rkey) })
    }

    /// Forgets a region; `false` if it was not registered.
    pub(crate) fn deregister(&mut self, region: MemoryRegion) -> bool {
        let known = self.by_lkey.remove(&region.lkey.0);
        known.is_some_and(|region| self.by_rkey.remove(&region.rkey).is_some())
    }

    /// The bytes of a range, if `key` gives that `right` to all of it.
    pub(crate) fn access(
        &mut self,
        key: u32,
        right: Right,
        addr: u64,
        len: u32,
    ) -> Option<&mut [u8]> {
        let lkey = match right {
            Right::Local => key,
            Right::RemoteRead | Right::RemoteWrite => *self.by_rkey.get(&key)?,
        };
        let region = *self.by_lkey.get(&lkey)?;
        let is_allowed = match right {
            Right::Local => true,
            Right::RemoteRead => region.access.remote_read,
            Right::RemoteWrite => region.access.remote_write,
        };
        let offset = addr.checked_sub(region.addr)?;
        let is_within = offset.checked_add(u64::from(len))? <= region.len;
        if is_allowed && is_within { self.bytes(addr, u64::from(len)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Access = Access { remote_read: true, remote_write: true };

    #[test]
    fn a_key_covers_its_range_and_nothing_else() {
        let mut memory = Memory::new(0);
        let addr = memory.allocate(100).unwrap();
        let region = memory.register(addr + 10, 50, BOTH, [1, 2]).unwrap();
        let mut fits = |key, right, addr, len| memory.access(key, right, addr, len).is_some();
        assert!(fits(1, Right::Local, addr + 10, 50));
        assert!(fits(2, Right::RemoteRead, addr + 59, 1));
        assert!(fits(2, Right::RemoteRead, addr + 60, 0));
        assert!(!fits(2, Right::RemoteRead, addr + 9, 1));
        assert!(!fits(2, Right::RemoteRead, addr + 59, 2));
        assert!(!fits(2, Right::RemoteRead, addr + 10, u32::MAX));
        assert!(!fits(2, Right::RemoteRead, u64::MAX, 2));
        // Each kind of key is only good for its own use.
        assert!(!fits(2, Right::Local, addr + 10, 1));
        assert!(!fits(1, Right::RemoteRead, addr + 10, 1));
        assert!(memory.deregister(region));
        assert!(!memory.deregister(region));
        assert!(memory.access(1, Right::Local, addr + 10, 1).is_none());
    }

    #[test]
    fn rights_are_separate() {
        let mut memory = Memory::new(0);
        let addr = memory.allocate(8).unwrap();
        let read_only = Access { remote_read: true, remote_write: false };
        memory.register(addr, 8, read_only, [1, 2]).unwrap();
        assert!(memory.access(2, Right::RemoteRead, addr, 8).is_some());
        assert!(memory.access(2, Right::RemoteWrite, addr, 8).is_none());
    }

    #[test]
    fn bounds_are_refusals() {
        let mut memory = Memory::new(3);
        assert_eq!(memory.allocate(MEMORY_BYTES_MAX + 1), None);
        let addr = memory.allocate(16).unwrap();
        assert_eq!(memory.register(addr, 17, BOTH, [1, 2]), Err(PostError::Unsupported));
        for n in 0..REGIONS_MAX as u32 {
            memory.register(addr, 16, BOTH, [2 * n, 2 * n + 1]).unwrap();
        }
        assert_eq!(memory.register(addr, 16, BOTH, [9000, 9001]), Err(PostError::Full));
    }

    #[test]
    fn blocks_do_not_touch() {
        let mut memory = Memory::new(0);
        let first = memory.allocate(PAGE).unwrap();
        let second = memory.allocate(PAGE).unwrap();
        assert!(memory.bytes(first, PAGE + 1).is_none());
        assert!(second > first + PAGE);
        assert!(memory.bytes(second, PAGE).is_some());
        assert!(Memory::new(1).bytes(first, 1).is_none());
    }
}
