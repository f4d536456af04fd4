//! Bytes that go into messages, and out of them.

use std::cell::Cell;

use sdp_rdma::fabric::{Gather, Scatter};

/// Bytes that go out behind a header: two ranges.
pub(crate) struct Ranges<'a>(pub(crate) [&'a [u8]; 2]);

impl Gather for Ranges<'_> {
    fn len(&self) -> usize {
        self.0.iter().map(|range| range.len()).sum()
    }

    fn copy_to(&mut self, offset: usize, dst: &[Cell<u8>]) {
        let bytes = self.0.iter().flat_map(|range| range.iter());
        bytes.skip(offset).zip(dst).for_each(|(byte, cell)| cell.set(*byte));
    }
}

/// Where inline bytes go, and how many have come.
pub(crate) struct Into<'a>(pub(crate) &'a mut [u8], pub(crate) usize);

impl Scatter for Into<'_> {
    fn room(&self) -> usize {
        self.0.len() - self.1
    }

    fn accept(&mut self, src: &[Cell<u8>]) {
        let to = self.0.iter_mut().skip(self.1);
        to.zip(src).for_each(|(byte, cell)| *byte = cell.get());
        self.1 += src.len().min(self.room());
    }
}
