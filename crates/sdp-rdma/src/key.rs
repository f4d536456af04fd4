//! Keys and slices of registered memory.

/// Local key of a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lkey(pub u32);

/// Remote key of a memory region, as it travels in an advertisement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);

/// The operations that a peer may do with a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// The peer may READ.
    pub remote_read: bool,
    /// The peer may WRITE.
    pub remote_write: bool,
}

/// A range of local memory, by virtual address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSlice {
    /// Start address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of the region that contains the range.
    pub lkey: Lkey,
}

/// A range of the peer's memory. The address is opaque to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteSlice {
    /// Start address in the peer's terms.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of the peer's region.
    pub rkey: Rkey,
}
