//! Ids of work requests: which work a completion is of.
//!
//! Completions of a queue pair may be taken when it is gone, and another connection may have its place by then: they name
//! the connection, not only the place.

/// A receive; the rest is the buffer.
const IS_RECEIVE: u64 = 1 << 63;
/// The last request of a queue pair that has failed.
const IS_LAST: u64 = 1 << 62;
/// Where the generation of a place stands, and how many bits of it.
const GENERATION_SHIFT: u32 = 48;
const GENERATION: u32 = 0x3fff;
const PLACE_SHIFT: u32 = 32;

/// A connection's place and which of those that had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Owner {
    pub(crate) const fn new(place: usize, generation: u32) -> Self {
        let generation = (generation & GENERATION) as u64;
        Self(generation << GENERATION_SHIFT | (place as u64 & 0xffff) << PLACE_SHIFT)
    }

    /// Of a request.
    pub(crate) const fn request(self, number: u32) -> u64 {
        self.0 | number as u64
    }

    /// Of a receive buffer in its own queue.
    pub(crate) const fn receive(self, buffer: usize) -> u64 {
        IS_RECEIVE | self.request(buffer as u32)
    }

    /// Of the one that reports that all before it have ended; `number`: behind the last of them.
    pub(crate) const fn last(self, number: u32) -> u64 {
        IS_LAST | self.request(number)
    }
}

/// In the place of a buffer: the receive has none, for a WRITE into the ring.
pub(crate) const NO_BUFFER: usize = 0xffff_ffff;

/// Of a receive buffer in the queue of all.
pub(crate) const fn receive(buffer: usize) -> u64 {
    IS_RECEIVE | buffer as u64
}

/// The receive buffer; `None`: it is a request's.
pub(crate) const fn buffer_of(id: u64) -> Option<usize> {
    if id & IS_RECEIVE != 0 { Some(id as u32 as usize) } else { None }
}

/// The place of the connection of a request, or of a queue of its own.
pub(crate) const fn place_of(id: u64) -> usize {
    (id >> PLACE_SHIFT & 0xffff) as usize
}

/// Whether it is of the connection that has the place now.
pub(crate) const fn is_of(id: u64, generation: u32) -> bool {
    ((id >> GENERATION_SHIFT) as u32 ^ generation) & GENERATION == 0
}

pub(crate) const fn is_last(id: u64) -> bool {
    id & IS_LAST != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_connection() {
        for (place, generation, number) in [(0, 0, 0), (127, 5, u32::MAX), (0xffff, u32::MAX, 7)] {
            let owner = Owner::new(place, generation);
            for (id, last) in [(owner.request(number), false), (owner.last(number), true)] {
                assert_eq!((place_of(id), id as u32, is_last(id)), (place, number, last));
                assert_eq!(buffer_of(id), None);
                assert!(is_of(id, generation));
                assert!(!is_of(id, generation.wrapping_add(1)));
                assert!(!is_of(id, generation.wrapping_sub(1)));
            }
        }
        assert_eq!(buffer_of(receive(1023)), Some(1023));
        let own = Owner::new(127, 5).receive(1023);
        assert_eq!((buffer_of(own), place_of(own)), (Some(1023), 127));
        assert!(is_of(own, 5) && !is_of(own, 6));
    }
}
