//! Advertisements in their order, and their limits (spec 3.4).

/// Advertisements that we accept outstanding towards us, source's and sink's together (spec 3.4).
pub const ZCOPY_ADVERTS: u8 = 4;

/// Our own advertisements of one kind.
pub(super) const OWN: usize = 2;

/// SrcAvails that we have outstanding towards a peer that accepts `max_adverts` of both kinds: half
/// of them, rounded up, so that the halves need not ask each other.
pub(super) const fn src_avail_limit(max_adverts: u16) -> usize {
    at_most_own((max_adverts as usize).div_ceil(2))
}

/// SinkAvails likewise: the other half, rounded down.
pub(super) const fn sink_avail_limit(max_adverts: u16) -> usize {
    at_most_own(max_adverts as usize / 2)
}

const fn at_most_own(half: usize) -> usize {
    if half < OWN { half } else { OWN }
}

/// A few things, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Queue<T, const N: usize> {
    pub(super) places: [Option<T>; N],
}

impl<T: Copy, const N: usize> Queue<T, N> {
    pub(super) const EMPTY: Self = Self { places: [None; N] };

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten()
    }

    pub(super) fn first(&self) -> Option<T> {
        self.places.first().copied().flatten()
    }

    pub(super) fn first_mut(&mut self) -> Option<&mut T> {
        self.places.first_mut().and_then(Option::as_mut)
    }

    /// Whether there was room.
    pub(super) fn push(&mut self, thing: T) -> bool {
        let place = self.places.iter_mut().find(|place| place.is_none());
        place.map(|place| *place = Some(thing)).is_some()
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let first = self.places.first_mut()?.take();
        if first.is_some() {
            self.places.rotate_left(1);
        }
        first
    }

    pub(super) fn clear(&mut self) {
        self.places = [None; N];
    }
}
