//! BLAKE2s (RFC 7693), unkeyed and keyed: the one cryptographic primitive, between hosts and between
//! containers.
//!
//! Keyed BLAKE2s is a MAC by itself. Lengths are those of the standard: key up to 32 bytes, output
//! up to 32 bytes, message of any length.

#![cfg_attr(not(test), no_std)]

const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

const SIGMA: [[usize; 16]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];

/// A message that is being hashed; `OUT` is the length of the result, 1 to 32 bytes.
#[derive(Debug, Clone)]
pub struct Blake2s<const OUT: usize> {
    state: [u32; 8],
    block: [u8; 64],
    filled: usize,
    counted: u64,
}

impl<const OUT: usize> Blake2s<OUT> {
    /// Begins with a key, of which the first 32 bytes count; an empty one is no key.
    pub fn new(key: &[u8]) -> Self {
        const { assert!(OUT >= 1 && OUT <= 32) };
        let key = key.get(..32).unwrap_or(key);
        let mut state = IV;
        state[0] ^= 0x0101_0000 ^ ((key.len() as u32) << 8) ^ OUT as u32;
        let mut new = Self { state, block: [0; 64], filled: 0, counted: 0 };
        if !key.is_empty() {
            new.update(key);
            new.filled = 64;
        }
        new
    }

    /// Adds bytes of the message.
    pub fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.filled == 64 {
                self.counted += 64;
                self.compress(false);
                self.block = [0; 64];
                self.filled = 0;
            }
            if let Some(place) = self.block.get_mut(self.filled) {
                *place = *byte;
            }
            self.filled += 1;
        }
    }

    /// The result.
    pub fn finish(mut self) -> [u8; OUT] {
        self.counted += self.filled as u64;
        self.compress(true);
        let mut out = [0; OUT];
        let bytes = self.state.iter().flat_map(|word| word.to_le_bytes());
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        out
    }

    fn compress(&mut self, last: bool) {
        let mut words = [0_u32; 16];
        for (word, bytes) in words.iter_mut().zip(self.block.chunks_exact(4)) {
            if let [a, b, c, d] = *bytes {
                *word = u32::from_le_bytes([a, b, c, d]);
            }
        }
        let [h0, h1, h2, h3, h4, h5, h6, h7] = self.state;
        let [i0, i1, i2, i3, i4, i5, i6, i7] = IV;
        let (low, high) = (self.counted as u32, (self.counted >> 32) as u32);
        let i6 = if last { !i6 } else { i6 };
        let mut v = [h0, h1, h2, h3, h4, h5, h6, h7, i0, i1, i2, i3, i4 ^ low, i5 ^ high, i6, i7];
        for s in &SIGMA {
            let m = |at: usize| words[s[at] & 15];
            mix::<0, 4, 8, 12>(&mut v, m(0), m(1));
            mix::<1, 5, 9, 13>(&mut v, m(2), m(3));
            mix::<2, 6, 10, 14>(&mut v, m(4), m(5));
            mix::<3, 7, 11, 15>(&mut v, m(6), m(7));
            mix::<0, 5, 10, 15>(&mut v, m(8), m(9));
            mix::<1, 6, 11, 12>(&mut v, m(10), m(11));
            mix::<2, 7, 8, 13>(&mut v, m(12), m(13));
            mix::<3, 4, 9, 14>(&mut v, m(14), m(15));
        }
        let (a, b) = v.split_at(8);
        for ((state, a), b) in self.state.iter_mut().zip(a).zip(b) {
            *state ^= a ^ b;
        }
    }
}

fn mix<const A: usize, const B: usize, const C: usize, const D: usize>(
    v: &mut [u32; 16],
    x: u32,
    y: u32,
) {
    v[A] = v[A].wrapping_add(v[B]).wrapping_add(x);
    v[D] = (v[D] ^ v[A]).rotate_right(16);
    v[C] = v[C].wrapping_add(v[D]);
    v[B] = (v[B] ^ v[C]).rotate_right(12);
    v[A] = v[A].wrapping_add(v[B]).wrapping_add(y);
    v[D] = (v[D] ^ v[A]).rotate_right(8);
    v[C] = v[C].wrapping_add(v[D]);
    v[B] = (v[B] ^ v[C]).rotate_right(7);
}

/// Compares in a time that does not show where the difference is.
pub fn is_same<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    let difference = a.iter().zip(b).fold(0_u8, |sum, (a, b)| sum | (a ^ b));
    core::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash<const OUT: usize>(key: &[u8], message: &[u8]) -> Vec<u8> {
        let mut state = Blake2s::<OUT>::new(key);
        // In uneven pieces.
        message.chunks(37).for_each(|piece| state.update(piece));
        state.finish().to_vec()
    }

    fn sequence(len: usize, seed: u32) -> Vec<u8> {
        let (mut a, mut b) = (0xdead_4bad_u32.wrapping_mul(seed), 1_u32);
        let next = |_| {
            let sum = a.wrapping_add(b);
            (a, b) = (b, sum);
            (sum >> 24) as u8
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn the_standard_s_example() {
        let want = [
            0x50, 0x8c, 0x5e, 0x8c, 0x32, 0x7c, 0x14, 0xe2, 0xe1, 0xa7, 0x2b, 0xa3, 0x4e, 0xeb,
            0x45, 0x2f, 0x37, 0x45, 0x8b, 0x20, 0x9e, 0xd6, 0x3a, 0x29, 0x4d, 0x99, 0x9b, 0x4c,
            0x86, 0x67, 0x59, 0x82,
        ];
        assert_eq!(hash::<32>(&[], b"abc"), want);
    }

    /// RFC 7693, appendix E: a hash over results of many lengths, with and without a key.
    #[test]
    fn the_standard_s_self_test() {
        let want = [
            0x6a, 0x41, 0x1f, 0x08, 0xce, 0x25, 0xad, 0xcd, 0xfb, 0x02, 0xab, 0xa6, 0x41, 0x45,
            0x1c, 0xec, 0x53, 0xc5, 0x98, 0xb2, 0x4f, 0x4f, 0xc7, 0x87, 0xfb, 0xdc, 0x88, 0x79,
            0x7f, 0x4c, 0x1d, 0xfe,
        ];
        let mut all = Blake2s::<32>::new(&[]);
        for out in [16_usize, 20, 28, 32] {
            for len in [0, 3, 64, 65, 255, 1024] {
                let message = sequence(len, len as u32);
                let key = sequence(out, out as u32);
                for key in [&[][..], &key] {
                    let result = match out {
                        16 => hash::<16>(key, &message),
                        20 => hash::<20>(key, &message),
                        28 => hash::<28>(key, &message),
                        _ => hash::<32>(key, &message),
                    };
                    all.update(&result);
                }
            }
        }
        assert_eq!(all.finish(), want);
    }

    #[test]
    fn every_bit_counts_in_a_comparison() {
        let one = [7_u8; 12];
        assert!(is_same(&one, &one));
        for bit in 0..96 {
            let mut other = one;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_same(&one, &other));
        }
    }
}
