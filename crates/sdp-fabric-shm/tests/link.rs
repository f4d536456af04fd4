//! The contract of a link, on shared segments.

use sdp_fabric_shm::link::ShmLink;
use sdp_fabric_tests::{link::Ends, link_conformance};
use sdp_shm::layout::{RING_BYTES_MAX, RING_BYTES_MIN, Segment, segment_bytes};
use sdp_sys::memfd;

link_conformance!(smallest_ring, Mapped<RING_BYTES_MIN>);
link_conformance!(largest_ring, Mapped<RING_BYTES_MAX>);

/// A segment, mapped once for each end.
struct Mapped<const RING_BYTES: u32>([Segment; 2]);

impl<const RING_BYTES: u32> Ends for Mapped<RING_BYTES> {
    type Link<'a> = ShmLink;

    fn new() -> Self {
        let len = segment_bytes(RING_BYTES);
        let file = memfd::create_sealed(c"sdp-link", len as u64).expect("a memory file");
        let segments = [(), ()].map(|()| {
            let base = memfd::map(file.raw(), len).expect("a mapping");
            // SAFETY: the mapping is shared, readable, writable, page aligned and `len` bytes long,
            // as the ring size asks for; it is never unmapped and the file is sealed against
            // shrinking.
            unsafe { Segment::new(base, RING_BYTES) }
        });
        segments[0].initialise();
        Self(segments)
    }

    fn ends(&self) -> [ShmLink; 2] {
        let [a, b] = self.0;
        [ShmLink::new(a, 0), ShmLink::new(b, 1)]
    }
}
