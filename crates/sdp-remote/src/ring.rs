//! The ring of posted bytes, by stream position.

use core::cell::Cell;

use sdp_rdma::fabric::Gather;

/// Bytes of the ring as they are in the stream.
pub(crate) struct Pieces<'a>(pub(crate) [&'a [u8]; 2]);

impl Gather for Pieces<'_> {
    fn len(&self) -> usize {
        let [a, b] = self.0;
        a.len().saturating_add(b.len())
    }

    fn kept(&self) -> Option<[&[u8]; 2]> {
        Some(self.0)
    }

    fn copy_to(&mut self, offset: usize, dst: &[Cell<u8>]) {
        let [a, b] = self.0;
        // Slice by slice: an iterator over both would look at each byte which of them it is in.
        let first = a.get(offset..).unwrap_or_default();
        let second = b.get(offset.saturating_sub(a.len())..).unwrap_or_default();
        let (to_first, to_second) = dst.split_at(first.len().min(dst.len()));
        copy(to_first, first);
        copy(to_second, second);
    }
}

/// As many bytes as both have.
fn copy(to: &[Cell<u8>], from: &[u8]) {
    to.iter().zip(from).for_each(|(to, from)| to.set(*from));
}

/// `len` bytes of a ring from stream position `at` on, at most its length.
pub(crate) fn ring_pieces(ring: &[u8], at: u64, len: usize) -> [&[u8]; 2] {
    let size = ring.len().max(1);
    let start = (at % size as u64) as usize;
    let first = len.min(size - start);
    let a = ring.get(start..).and_then(|rest| rest.get(..first)).unwrap_or_default();
    let b = ring.get(..len - first).unwrap_or_default();
    [a, b]
}

/// Copies a ring, whose last byte stands before position `end` of the stream, into a longer one.
pub fn copy_ring(from: &[u8], into: &mut [u8], end: u64) {
    let at = end.saturating_sub(from.len() as u64);
    let len = (end - at) as usize;
    fill_ring(into, at, &mut Pieces(ring_pieces(from, at, len)), 0, len);
}

/// Copies `len` bytes of the program into the ring.
pub(crate) fn fill_ring(
    ring: &mut [u8],
    at: u64,
    payload: &mut impl Gather,
    from: usize,
    len: usize,
) {
    let size = ring.len().max(1);
    let start = (at % size as u64) as usize;
    let first = len.min(size - start);
    if let Some(room) = ring.get_mut(start..).and_then(|rest| rest.get_mut(..first)) {
        payload.copy_to(from, Cell::from_mut(room).as_slice_of_cells());
    }
    if first < len
        && let Some(room) = ring.get_mut(..len - first)
    {
        payload.copy_to(from + first, Cell::from_mut(room).as_slice_of_cells());
    }
}

/// Nothing: the payload of control messages.
pub(crate) struct Nothing;

impl Gather for Nothing {
    fn len(&self) -> usize {
        0
    }
    fn copy_to(&mut self, _: usize, _: &[Cell<u8>]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_s_bytes_stand_by_their_positions_in_a_longer_one() {
        for (len, longer) in [(1, 2), (5, 7), (5, 10), (8, 16), (8, 31)] {
            for end in 0..4 * longer {
                let [mut ring, mut copy, mut expected] = [[0; 32]; 3];
                for at in end - end.min(len)..end {
                    ring[at % len] = at as u8 + 1;
                    expected[at % longer] = at as u8 + 1;
                }
                copy_ring(&ring[..len], &mut copy[..longer], end as u64);
                assert_eq!(copy, expected, "{len} in {longer}, up to {end}");
            }
        }
    }

    #[test]
    fn pieces_are_copied_from_any_byte_on_into_any_room() {
        let bytes: [u8; 13] = core::array::from_fn(|i| i as u8 + 1);
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            for offset in 0..=bytes.len() + 2 {
                for room in 0..=bytes.len() + 2 {
                    let mut to = [0; 16];
                    let into = Cell::from_mut(&mut to[..room]).as_slice_of_cells();
                    Pieces([a, b]).copy_to(offset, into);
                    let mut expected = [0; 16];
                    let rest = bytes.iter().skip(offset);
                    expected[..room].iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
                    assert_eq!(to, expected, "cut {cut}, from {offset}, room {room}");
                }
            }
        }
    }
}
