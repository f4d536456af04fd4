//! The conformance suite on queue pair halves over a shared segment.
//!
//! Each side has a mapping of its own, at its own address, as two processes have. The halves alone
//! have neither set-up (the rendezvous is made by other means) nor the peer's end (the carrier
//! shows it), so those parts of the suite are skipped.

use std::marker::PhantomData;

use sdp_fabric_shm::endpoint::{ShmRx, ShmTx};
use sdp_fabric_tests::{End, Feature, Harness, NoFabric, Pair, conformance};
use sdp_rdma::{
    fabric::{Gather, PostError, SendOptions, SendQueue},
    key::{LocalSlice, RemoteSlice},
    work::{Completion, WorkId},
};
use sdp_shm::layout::{RING_BYTES_MAX, RING_BYTES_MIN, Segment, segment_bytes};
use sdp_sys::memfd;

conformance!(smallest_ring, ShmHarness<RING_BYTES_MIN>, skipped = 26);
conformance!(usual_ring, ShmHarness<{ 256 * 1024 }>, skipped = 26);
conformance!(largest_ring, ShmHarness<RING_BYTES_MAX>, skipped = 26);

struct ShmHarness<const RING_BYTES: u32>(PhantomData<()>);

impl<const RING_BYTES: u32> Harness for ShmHarness<RING_BYTES> {
    type Tx = Publishing;
    type Rx = ShmRx;
    type Fabric = NoFabric<Publishing, ShmRx>;

    fn new(_: u64) -> Self {
        Self(PhantomData)
    }

    fn missing(&self, feature: Feature) -> Option<&'static str> {
        match feature {
            Feature::OneSided | Feature::LocalKeys | Feature::RemoteKeys => {
                Some("one-sided work comes with zero copy")
            }
            Feature::ExplicitCredits => Some("credits are implicit"),
            Feature::SetUp => Some("the rendezvous makes connections, not the halves"),
            Feature::Disconnect | Feature::PeerDeath => Some("the carrier tells of the peer's end"),
            Feature::NoOneSided => None,
        }
    }

    fn pair(&mut self) -> Pair<Publishing, ShmRx> {
        let [a, b] = segments(RING_BYTES);
        // Half n is the direction in which side n sends.
        let tx = |segment, half| Publishing(ShmTx::new(segment, half, 0, 0));
        let rx = |segment, half| ShmRx::new(segment, half, 0, 0);
        Pair { a: End { tx: tx(a, 0), rx: rx(a, 1) }, b: End { tx: tx(b, 1), rx: rx(b, 0) } }
    }

    /// Memory needs no time.
    fn advance(&mut self) -> bool {
        false
    }
}

/// One memory file, mapped twice. The mappings stay until the process ends: copies of a segment may
/// be anywhere.
fn segments(ring_bytes: u32) -> [Segment; 2] {
    let len = segment_bytes(ring_bytes);
    let file = memfd::create_sealed(c"sdp-conformance", len as u64).expect("a memory file");
    let segments = [(), ()].map(|()| {
        let base = memfd::map(file.raw(), len).expect("a mapping");
        // SAFETY: the mapping is shared, readable, writable, page aligned and `len` bytes long, as
        // the ring size asks for; it is never unmapped and the file is sealed against shrinking.
        unsafe { Segment::new(base, ring_bytes) }
    });
    segments[0].initialise();
    segments
}

/// The socket layer's steps around each call: publish the posted messages, look at the consumer's
/// cursor before believing that there is no room.
#[derive(Debug)]
struct Publishing(ShmTx);

impl SendQueue for Publishing {
    fn max_message(&self) -> usize {
        self.0.max_message()
    }

    fn room(&self) -> usize {
        let mut fresh = self.0;
        fresh.refresh().expect("a sound cursor");
        fresh.room()
    }

    fn post_send(
        &mut self,
        id: WorkId,
        header: &[u8],
        payload: &mut impl Gather,
        options: SendOptions,
    ) -> Result<(), PostError> {
        let posted = self.0.post_send(id, header, payload, options);
        self.0.publish();
        posted
    }

    fn post_read(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.0.post_read(id, local, remote)
    }

    fn post_write(
        &mut self,
        id: WorkId,
        local: LocalSlice,
        remote: RemoteSlice,
    ) -> Result<(), PostError> {
        self.0.post_write(id, local, remote)
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.0.poll_completion()
    }
}
