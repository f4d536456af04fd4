//! Memory that a server may read or write: areas with a registration each, which last as long as the
//! process.
//!
//! A call that does not fit into a message lies in an area that the server may read; a reply that may
//! not fit comes into one that it may write. So a server reaches what it was given for a call, and
//! what other calls to the same server had; nothing is registered for a call.

use std::ops::Range;

use sdp_fabric_verbs::fabric::VerbsFabric;
use sdp_rdma::{
    fabric::{Fabric, MemoryRegion},
    key::Access,
};
use sdp_rpcrdma::wire::Segment;

use crate::pool::{self, Block, Pool};

/// Bytes of a small area.
pub const SMALL: usize = 128 << 10;
/// Bytes of a large one.
pub const LARGE: usize = pool::MOST;
/// Areas of each kind at most: a fabric has room for 256 registrations.
const LARGE_MAX: usize = 8;
const SMALL_MAX: usize = 48;
/// Kinds: small and large ones for calls and for replies.
const KINDS: usize = 4;
/// Bytes with which one area of each kind is there.
pub const LEAST: usize = 3 * LARGE;

/// What an area is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// The server reads a call from it.
    Call,
    /// The server writes a reply into it.
    Reply,
}

/// An area, until it is given back.
#[derive(Debug, PartialEq, Eq)]
pub struct Area {
    index: u16,
}

#[derive(Debug)]
struct Place {
    block: Block,
    region: MemoryRegion,
    kind: usize,
}

/// All areas of a process.
#[derive(Debug)]
pub struct Areas {
    pool: Pool,
    places: Vec<Place>,
    free: [Vec<u16>; KINDS],
    /// Large areas of each use that one client may have.
    share: usize,
}

/// How many large areas of each use a client has.
pub type Held = [usize; 2];

const fn kind_of(what: Use, is_large: bool) -> usize {
    2 * (what as usize) + is_large as usize
}

impl Areas {
    /// Makes and registers as many as fit into `bytes`, of which [`LEAST`] are needed.
    ///
    /// # Errors
    /// What could not be done.
    pub fn new(fabric: &mut VerbsFabric, bytes: usize) -> Result<Self, String> {
        let pool = Pool::new(bytes.max(LEAST)).map_err(|e| format!("memory for transfers: {e}"))?;
        let mut areas = Self { places: Vec::new(), free: Default::default(), share: 1, pool };
        // Half of the memory is for large ones, and what is left for small ones.
        let large = (areas.pool.bytes() / (4 * LARGE)).clamp(1, LARGE_MAX);
        areas.share = large.div_ceil(2);
        let left = areas.pool.bytes() - 2 * large * LARGE;
        let small = (left / (2 * SMALL)).clamp(1, SMALL_MAX);
        for (what, access) in [
            (Use::Call, Access { remote_read: true, remote_write: false }),
            (Use::Reply, Access { remote_read: false, remote_write: true }),
        ] {
            for (len, count) in [(LARGE, large), (SMALL, small)] {
                for _ in 0..count {
                    areas.add(fabric, what, len, access)?;
                }
            }
        }
        Ok(areas)
    }

    fn add(
        &mut self,
        fabric: &mut VerbsFabric,
        what: Use,
        len: usize,
        access: Access,
    ) -> Result<(), String> {
        let block = self.pool.take(len).ok_or("memory for transfers is too small")?;
        let addr = self.pool.local(&block, 0, 0).addr;
        let region = fabric
            .register(addr, len as u64, access)
            .map_err(|why| format!("{} KiB of memory cannot be registered: {why:?}", len >> 10))?;
        let kind = kind_of(what, len == LARGE);
        self.free[kind].push(self.places.len() as u16);
        self.places.push(Place { block, region, kind });
        Ok(())
    }

    /// An area of at least `len` bytes: a small one if it is enough. No client has more than half of
    /// the large ones; `held` counts its own.
    pub fn take(&mut self, what: Use, len: usize, held: &mut Held) -> Option<Area> {
        let index = if len <= SMALL { self.free[kind_of(what, false)].pop() } else { None };
        if let Some(index) = index {
            return Some(Area { index });
        }
        if len > LARGE || held[what as usize] >= self.share {
            return None;
        }
        let index = self.free[kind_of(what, true)].pop()?;
        held[what as usize] += 1;
        Some(Area { index })
    }

    /// Counts an area among those of its client, if it is a large one.
    pub fn count(&self, area: &Area, held: &mut Held) {
        let kind = self.places[usize::from(area.index)].kind;
        held[kind / 2] += kind % 2;
    }

    /// Ends an area. No server reaches it by a connection that is still there, but for what it was
    /// told before.
    pub fn free(&mut self, area: Area) {
        let kind = self.places[usize::from(area.index)].kind;
        self.free[kind].push(area.index);
    }

    /// Its bytes.
    pub fn len(&self, area: &Area) -> usize {
        self.places[usize::from(area.index)].block.len()
    }

    /// Areas that are in use, and all.
    pub fn used(&self) -> (usize, usize) {
        let free: usize = self.free.iter().map(Vec::len).sum();
        (self.places.len() - free, self.places.len())
    }

    /// Bytes in all.
    pub const fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// The first `len` bytes, as the server gets to know them.
    pub fn segment(&self, area: &Area, len: u32) -> Segment {
        let region = &self.places[usize::from(area.index)].region;
        let length = len.min(u32::try_from(region.len).unwrap_or(u32::MAX));
        Segment { handle: region.rkey.0, length, offset: region.addr }
    }

    /// Bytes of an area that the server has written, or does not write now.
    pub fn get(&self, area: &Area, range: Range<usize>) -> &[u8] {
        self.pool.get(&self.places[usize::from(area.index)].block, range)
    }

    /// Bytes of an area for writing.
    pub fn get_mut(&mut self, area: &Area, range: Range<usize>) -> &mut [u8] {
        self.pool.get_mut(&self.places[usize::from(area.index)].block, range)
    }
}
