//! What a half looks like after its last user was killed inside the lock.
//!
//! Private state is stored at the end of each section, the segment is written in between: an owner that
//! dies there leaves the two apart. Where nothing became visible to the peer the stored state still
//! holds. Where something did, going on would repeat or skip bytes: the connection is reset instead.

use core::sync::atomic::{AtomicU64, Ordering};

use sdp_shm::layout::Half as HalfLines;

/// Gives the half's gate back if the dead owner held it. Each end takes a half's gate only under its
/// own lock of that half, which the caller has.
fn open_gate(lines: &HalfLines, side: usize) {
    let mine = side as u32 + 1;
    let _ = lines.log.gate.compare_exchange(mine, 0, Ordering::AcqRel, Ordering::Relaxed);
}

/// No cursor is odd: relatives that load the state find it broken too.
const POISON: u64 = 1;

fn judged(words: &[AtomicU64], is_sound: bool) -> bool {
    if !is_sound && let Some(cursor) = words.first() {
        cursor.store(POISON, Ordering::Relaxed);
    }
    is_sound
}

fn stored(words: &[AtomicU64]) -> Option<u64> {
    words.first().map(|cursor| cursor.load(Ordering::Relaxed))
}

/// Sending half: whether the stored state is that of the ring, nothing having been published since.
#[cold]
pub(crate) fn is_source_sound(words: &[AtomicU64], lines: &HalfLines, side: usize) -> bool {
    open_gate(lines, side);
    judged(words, stored(words) == Some(lines.producer.tail.load(Ordering::Acquire)))
}

/// Receiving half: whether the stored state is that of the ring, nothing having been freed since.
#[cold]
pub(crate) fn is_sink_sound(words: &[AtomicU64], lines: &HalfLines, side: usize) -> bool {
    open_gate(lines, side);
    let freed = lines.consumer.head.load(Ordering::Acquire);
    // The published cursor may lag behind the stored one, never the other way round.
    let is_sound = stored(words).is_some_and(|head| freed.wrapping_sub(head).cast_signed() <= 0);
    judged(words, is_sound)
}
