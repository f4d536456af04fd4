//! Registered memory: one mapping, cut into blocks of 4 KiB to 2 MiB.
//!
//! All that is moved by RDMA or to a socket lies in a block. The device writes into a block between
//! a post and its completion; until then its owner takes no reference to that part. A block is a
//! value that is neither copied nor dropped without its pool: [`Pool::free`] ends it.

use std::{io, ops::Range, ptr::NonNull};

use sdp_rdma::{
    fabric::MemoryRegion,
    key::{Lkey, LocalSlice},
};

/// Bytes of the smallest block.
pub const LEAST: usize = 4096;
/// Sizes of blocks, each twice the one before.
const ORDERS: usize = 10;
/// Bytes of the largest block.
pub const MOST: usize = LEAST << (ORDERS - 1);
/// No block.
const NONE: u32 = u32::MAX;
/// In `orders`: no free block begins here.
const TAKEN: u8 = u8::MAX;

/// A part of the pool.
#[derive(Debug)]
pub struct Block {
    /// In units of [`LEAST`].
    unit: u32,
    order: u8,
}

impl Block {
    /// Its bytes.
    pub const fn len(&self) -> usize {
        LEAST << self.order
    }

    /// Never.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// The memory, and which of it is free: buddies, by lists through tables.
#[derive(Debug)]
pub struct Pool {
    base: NonNull<u8>,
    units: usize,
    lkey: Lkey,
    /// First free block of each order.
    first: [u32; ORDERS],
    /// Neighbours in the list of a free block.
    next: Vec<u32>,
    before: Vec<u32>,
    /// Order of the free block that begins here.
    orders: Vec<u8>,
    free_units: usize,
}

impl Pool {
    /// Maps `bytes`, rounded down to the largest block.
    ///
    /// # Errors
    /// The kernel's, or there is less than one block.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let units = bytes / MOST * (MOST / LEAST);
        if units == 0 || units >= NONE as usize {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { libc::mmap(null, units * LEAST, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut pool = Self {
            base,
            units,
            lkey: Lkey(0),
            first: [NONE; ORDERS],
            next: vec![NONE; units],
            before: vec![NONE; units],
            orders: vec![TAKEN; units],
            free_units: units,
        };
        for unit in (0..units as u32).step_by(MOST / LEAST).rev() {
            pool.push(unit, ORDERS - 1);
        }
        Ok(pool)
    }

    /// Address and length, to be registered.
    pub fn range(&self) -> (u64, u64) {
        (self.base.as_ptr().expose_provenance() as u64, self.bytes() as u64)
    }

    /// Notes the registration.
    pub const fn registered(&mut self, region: &MemoryRegion) {
        self.lkey = region.lkey;
    }

    /// Bytes in all.
    pub const fn bytes(&self) -> usize {
        self.units * LEAST
    }

    /// Bytes that are free.
    pub const fn free_bytes(&self) -> usize {
        self.free_units * LEAST
    }

    fn push(&mut self, unit: u32, order: usize) {
        let old = std::mem::replace(&mut self.first[order], unit);
        (self.next[unit as usize], self.before[unit as usize]) = (old, NONE);
        if old != NONE {
            self.before[old as usize] = unit;
        }
        self.orders[unit as usize] = order as u8;
    }

    fn unlink(&mut self, unit: u32, order: usize) {
        let (next, before) = (self.next[unit as usize], self.before[unit as usize]);
        match before {
            NONE => self.first[order] = next,
            before => self.next[before as usize] = next,
        }
        if next != NONE {
            self.before[next as usize] = before;
        }
        self.orders[unit as usize] = TAKEN;
    }

    /// A block of at least `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<Block> {
        let order = len.max(1).div_ceil(LEAST).next_power_of_two().trailing_zeros() as usize;
        let found = (order..ORDERS).find(|order| self.first[*order] != NONE)?;
        let unit = self.first[found];
        self.unlink(unit, found);
        for half in (order..found).rev() {
            self.push(unit + (1 << half), half);
        }
        self.free_units -= 1 << order;
        Some(Block { unit, order: order as u8 })
    }

    /// Ends a block.
    pub fn free(&mut self, block: Block) {
        let (mut unit, mut order) = (block.unit, usize::from(block.order));
        self.free_units += 1 << order;
        while order + 1 < ORDERS {
            let buddy = unit ^ (1 << order);
            if self.orders.get(buddy as usize) != Some(&(order as u8)) {
                break;
            }
            self.unlink(buddy, order);
            (unit, order) = (unit & buddy, order + 1);
        }
        self.push(unit, order);
    }

    fn within(block: &Block, range: &Range<usize>) -> bool {
        range.start <= range.end && range.end <= block.len()
    }

    /// Bytes of a block that no device is writing.
    ///
    /// # Panics
    /// They are not the block's.
    pub fn get(&self, block: &Block, range: Range<usize>) -> &[u8] {
        assert!(Self::within(block, &range), "{range:?} of {block:?}");
        // SAFETY: within the mapping, which is initialised (zeros, or what was written) and lives as
        // long as the pool. Only this pool's methods give references, and `&mut self` excludes the
        // writing ones. The owner of the block does not ask for what a device may be writing.
        unsafe {
            let at = self.base.as_ptr().add(block.unit as usize * LEAST + range.start);
            std::slice::from_raw_parts(at, range.len())
        }
    }

    /// Bytes of a block for writing, which no device is using.
    ///
    /// # Panics
    /// They are not the block's.
    pub fn get_mut(&mut self, block: &Block, range: Range<usize>) -> &mut [u8] {
        assert!(Self::within(block, &range), "{range:?} of {block:?}");
        // SAFETY: within the mapping, initialised, alive while the pool is; the only reference, by
        // `&mut self`. The owner of the block does not ask for what a device may be using.
        unsafe {
            let at = self.base.as_ptr().add(block.unit as usize * LEAST + range.start);
            std::slice::from_raw_parts_mut(at, range.len())
        }
    }

    /// Bytes of a block for the device.
    ///
    /// # Panics
    /// They are not the block's.
    pub fn local(&self, block: &Block, from: u32, len: u32) -> LocalSlice {
        let range = from as usize..from as usize + len as usize;
        assert!(Self::within(block, &range), "{range:?} of {block:?}");
        let base = self.range().0 + u64::from(block.unit) * LEAST as u64;
        LocalSlice { addr: base + u64::from(from), len, lkey: self.lkey }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing uses any more: its registration ends with the
        // fabric, which goes first.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.units * LEAST) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_join_again() {
        let mut pool = Pool::new(3 * MOST + 5).unwrap();
        assert_eq!(pool.bytes(), 3 * MOST);
        let mut seed = 1u64;
        let mut held: Vec<(Block, u8)> = Vec::new();
        for round in 0..20_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            let pick = (seed >> 33) as usize;
            if !pick.is_multiple_of(3) {
                let len = 1 + pick % [100, 5000, 300_000, MOST][pick / 7 % 4];
                if let Some(block) = pool.take(len) {
                    assert!(block.len() >= len && (block.len() < 2 * len || len <= LEAST));
                    let mark = round as u8;
                    let end = block.len();
                    pool.get_mut(&block, 0..1)[0] = mark;
                    pool.get_mut(&block, end - 1..end)[0] = mark;
                    held.push((block, mark));
                }
            } else if !held.is_empty() {
                let (block, mark) = held.swap_remove(pick % held.len());
                let end = block.len();
                assert_eq!(pool.get(&block, 0..1), [mark]);
                assert_eq!(pool.get(&block, end - 1..end), [mark]);
                pool.free(block);
            }
            let taken: usize = held.iter().map(|(block, _)| block.len()).sum();
            assert_eq!(pool.free_bytes() + taken, pool.bytes());
        }
        held.into_iter().for_each(|(block, _)| pool.free(block));
        let whole: Vec<_> = std::iter::from_fn(|| pool.take(MOST)).collect();
        assert_eq!(whole.len(), 3, "all joined");
        assert!(pool.take(1).is_none() && pool.free_bytes() == 0);
        whole.into_iter().for_each(|block| pool.free(block));
    }

    #[test]
    fn too_much_and_too_little() {
        assert!(Pool::new(MOST - 1).is_err());
        let mut pool = Pool::new(MOST).unwrap();
        assert!(pool.take(MOST + 1).is_none());
    }
}
