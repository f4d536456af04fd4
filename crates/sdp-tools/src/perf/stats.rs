//! Figures from rounds: medians, percentiles, and the interval of paired ratios.

use serde::Serialize;

/// Median and range over rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Over the values of all rounds; zeros without any.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self {
            median: median_of_sorted(&sorted),
            min: sorted.first().copied().unwrap_or(0.0),
            max: sorted.last().copied().unwrap_or(0.0),
        }
    }
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted {
        [] => 0.0,
        _ if sorted.len().is_multiple_of(2) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// The value at or below which `share` (0 to 1) of the samples lie. Reorders the samples.
pub fn percentile(samples: &mut [u32], share: f64) -> u32 {
    if samples.is_empty() {
        return 0;
    }
    let rank = (share * samples.len() as f64).ceil() as usize;
    let at = rank.clamp(1, samples.len()) - 1;
    *samples.select_nth_unstable(at).1
}

/// One round of each kind, and which pair of processes of each played it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// How many times better.
    pub ratio: f64,
    /// Which played the round over TCP.
    pub tcp: usize,
    /// Which played the other.
    pub sdp: usize,
}

/// Resamplings for the interval.
const RESAMPLES: usize = 2000;

/// Median of paired ratios with its 95 % bootstrap interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// Median of the ratios of pairs.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Pairs.
    pub pairs: usize,
}

impl Ratio {
    /// Of `better / base` per pair. The resampling uses a fixed seed: the same rounds give the same
    /// interval.
    pub fn of_pairs(ratios: &[f64]) -> Self {
        Self::resampled(ratios, |random| {
            let draw = |_| ratios.get(random.below(ratios.len())).copied().unwrap_or(0.0);
            (0..ratios.len()).map(draw).collect()
        })
    }

    /// The same where several pairs of processes of each kind took part. The differences among
    /// these count for the interval: the pairs that take part, and how often, are drawn anew for
    /// each resampling.
    pub fn of_compared(all: &[Compared]) -> Self {
        let ratios: Vec<f64> = all.iter().map(|one| one.ratio).collect();
        let count =
            |who: fn(&Compared) -> usize| all.iter().map(who).max().map_or(0, |last| last + 1);
        let (tcps, sdps) = (count(|one| one.tcp), count(|one| one.sdp));
        if tcps <= 1 && sdps <= 1 {
            return Self::of_pairs(&ratios);
        }
        Self::resampled(&ratios, |random| {
            let mut times = |of: usize| {
                let mut times = vec![0; of];
                (0..of).for_each(|_| times[random.below(of)] += 1);
                times
            };
            let (tcp, sdp): (Vec<usize>, Vec<usize>) = (times(tcps), times(sdps));
            let weighed = |one: &Compared| vec![one.ratio; tcp[one.tcp] * sdp[one.sdp]];
            all.iter().flat_map(weighed).collect()
        })
    }

    fn resampled(ratios: &[f64], mut sample: impl FnMut(&mut Pcg) -> Vec<f64>) -> Self {
        let mut random = Pcg(0x5d9);
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                let mut sample = sample(&mut random);
                sample.sort_by(f64::total_cmp);
                median_of_sorted(&sample)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (share * (RESAMPLES - 1) as f64).round() as usize;
            medians.get(index).copied().unwrap_or(0.0)
        };
        Self {
            median: Spread::of(ratios).median,
            low: at(0.025),
            high: at(0.975),
            pairs: ratios.len(),
        }
    }
}

/// A small permuted congruential generator.
#[derive(Debug)]
pub struct Pcg(u64);

impl Pcg {
    /// Starts at `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        let old = self.0;
        self.0 = old.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mixed = (((old >> 18) ^ old) >> 27) as u32;
        let out = mixed.rotate_right((old >> 59) as u32);
        ((u64::from(out) * n as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(Spread::of(&[]).median, 0.0);
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0]).median, 2.5);
        let mut samples: Vec<u32> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut samples, 0.5), 50);
        assert_eq!(percentile(&mut samples, 0.99), 99);
        assert_eq!(percentile(&mut samples, 1.0), 100);
        assert_eq!(percentile(&mut samples, 0.0), 1);
        assert_eq!(percentile(&mut [], 0.5), 0);
    }

    #[test]
    fn the_interval_contains_the_median_and_shrinks_with_more_pairs() {
        let mut random = Pcg(7);
        let mut draw = |n: usize| -> Vec<f64> {
            (0..n).map(|_| 1.0 + random.below(1000) as f64 / 1000.0).collect()
        };
        let (few, many) = (Ratio::of_pairs(&draw(20)), Ratio::of_pairs(&draw(2000)));
        for r in [few, many] {
            assert!(r.low <= r.median && r.median <= r.high, "{r:?}");
        }
        assert!(many.high - many.low < few.high - few.low);
        assert!(many.low < 1.5 && 1.5 < many.high + 0.05);
        assert_eq!(
            Ratio::of_pairs(&[2.0; 9]),
            Ratio { median: 2.0, low: 2.0, high: 2.0, pairs: 9 }
        );
        assert_eq!(Ratio::of_pairs(&[]).pairs, 0);
    }

    #[test]
    fn how_pairs_of_processes_differ_counts_for_the_interval() {
        let compared = |luck: &dyn Fn(usize) -> f64| {
            // As 16 meet: not every pair meets every other. Rounds of the same two differ by a
            // hundredth.
            let one = |n: usize| {
                let (tcp, sdp) = (n % 16, (n + n / 16) % 16);
                let noise = 1.0 + (n * 7 % 11) as f64 / 1000.0;
                Compared { ratio: luck(sdp + 5) / luck(tcp) * noise, tcp, sdp }
            };
            let all: Vec<_> = (0..200).map(one).collect();
            let apart = Ratio::of_pairs(&all.iter().map(|one| one.ratio).collect::<Vec<_>>());
            let crossed = Ratio::of_compared(&all);
            assert_eq!((crossed.median, crossed.pairs), (apart.median, apart.pairs));
            (crossed.high - crossed.low) / (apart.high - apart.low)
        };
        let differ = compared(&|who| 1.0 + (who * 5 % 16) as f64 / 32.0);
        assert!(differ > 2.0, "{differ}");
        let alike = compared(&|_| 1.0);
        assert!(alike < 2.0, "{alike}");
        // Of one pair of processes of each kind it is the pairs of rounds alone.
        let same = [1.0, 1.2, 1.1].map(|ratio| Compared { ratio, tcp: 0, sdp: 0 });
        assert_eq!(Ratio::of_compared(&same), Ratio::of_pairs(&[1.0, 1.2, 1.1]));
    }
}
