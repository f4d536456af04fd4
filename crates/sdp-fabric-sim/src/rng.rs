//! The generator that every random choice of a world comes from.
//!
//! xoshiro256** seeded by SplitMix64, written out here so that a seed in a bug report means the same
//! story in every later version, whatever happens to published crates. Not for secrets.

use crate::{fault::Ratio, link::Span};

/// xoshiro256** (Blackman and Vigna, 2018).
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Seeds by four outputs of SplitMix64, as the authors of the generator advise.
    pub fn new(seed: u64) -> Self {
        let mut seeder = seed;
        Self { state: core::array::from_fn(|_| split_mix(&mut seeder)) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias (below 2^-32 for the bounds in use) does
    /// not matter here; that the same draw is made on every run does.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number of a span, both ends included. Draws even where the span has one value, so that
    /// narrowing a span does not shift every later choice.
    pub fn span(&mut self, span: Span) -> u64 {
        span.min_ns + self.below(span.max_ns.saturating_sub(span.min_ns).saturating_add(1))
    }

    /// Whether an event of this probability happens. Does not draw for [`Ratio::NEVER`]: switching a
    /// fault off leaves the rest of the story alone.
    pub fn chance(&mut self, ratio: Ratio) -> bool {
        ratio != Ratio::NEVER && self.below(1_000_000) < u64::from(ratio.millionths())
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = *state;
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published outputs of the reference implementation for the state 1, 2, 3, 4.
    #[test]
    fn generator_matches_the_reference() {
        let mut random = Random { state: [1, 2, 3, 4] };
        let drawn: Vec<u64> = (0..6).map(|_| random.next_u64()).collect();
        let published = [
            11520,
            0,
            1_509_978_240,
            1_215_971_899_390_074_240,
            1_216_172_134_540_287_360,
            607_988_272_756_665_600,
        ];
        assert_eq!(drawn, published);
    }

    #[test]
    fn seeder_matches_the_reference() {
        let mut state = 1_234_567;
        let drawn: Vec<u64> = (0..3).map(|_| split_mix(&mut state)).collect();
        assert_eq!(
            drawn,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn draws_stay_in_bounds() {
        let mut random = Random::new(7);
        let span = Span::new(10, 12);
        for _ in 0..1000 {
            assert!((10..=12).contains(&random.span(span)));
            assert!(random.below(3) < 3);
            assert!(!random.chance(Ratio::NEVER));
            assert!(random.chance(Ratio::per_million(1_000_000)));
        }
        assert_eq!(random.below(0), 0);
    }
}
