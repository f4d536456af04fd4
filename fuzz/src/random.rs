//! The generator of all choices: SplitMix64, so that a round is its seed and its number. Not for
//! secrets.

/// A generator.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of one round of one seed.
    pub fn of_round(seed: u64, round: u64) -> Self {
        let mut mixed = Self(seed);
        Self(mixed.next() ^ round.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "an endless source, not an iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (0 when that is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the choices.
    ///
    /// # Panics
    /// There is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// Some bytes, fewer than `bound`.
    pub fn bytes(&mut self, bound: u64) -> Vec<u8> {
        let len = self.below(bound);
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// A number that a liar would choose: near a power of two, near `near`, or any.
    pub fn evil(&mut self, near: u64) -> u64 {
        match self.below(4) {
            0 => self.next(),
            1 => (1u64 << self.below(64)).wrapping_add(self.below(5)).wrapping_sub(2),
            2 => near.wrapping_add(self.below(65)).wrapping_sub(32),
            _ => near.wrapping_add(1u64 << self.below(24)).wrapping_sub(self.below(2) << 20),
        }
    }
}
