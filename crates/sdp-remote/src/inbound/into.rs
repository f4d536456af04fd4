//! Where bytes go that the program does not get: into the ring of the sending half, or nowhere.

use core::cell::Cell;

use sdp_rdma::fabric::Scatter;

use super::LOOK;

/// The ring of the sending half, by position in a stream.
pub(super) struct RingSink<'a> {
    pub(super) at: u64,
    pub(super) room: usize,
    pub(super) ring: &'a mut [u8],
}

impl Scatter for RingSink<'_> {
    fn room(&self) -> usize {
        self.room
    }

    fn accept(&mut self, src: &[Cell<u8>]) {
        let size = self.ring.len().max(1) as u64;
        for cell in src {
            if let Some(to) = self.ring.get_mut((self.at % size) as usize) {
                *to = cell.get();
            }
            self.at = self.at.wrapping_add(1);
        }
        self.room = self.room.saturating_sub(src.len());
    }
}

/// A sink that is never given more than it needs to know that there is something.
pub(super) struct Probe;

impl Scatter for Probe {
    fn room(&self) -> usize {
        LOOK
    }
    fn accept(&mut self, _: &[Cell<u8>]) {}
}
