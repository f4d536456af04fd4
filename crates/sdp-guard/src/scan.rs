//! Finding markers among carrier bytes.
//!
//! The reader peeks at the kernel's bytes, [`LOOK_AHEAD`] beyond the program's buffer, and asks
//! [`look`] what of it is payload. Nothing of the program's is ever held back.

use crate::marker::{Seal, TOKEN_LEN};

/// So many bytes beyond the program's buffer are peeked at.
pub const LOOK_AHEAD: usize = TOKEN_LEN;
/// So many bytes of a token, where the kernel's bytes end, are the beginning of a marker.
pub const TAIL_MIN: usize = 8;

/// How the reader may use the bytes at which it peeked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// So many bytes are payload, and go to the program.
    pub payload: usize,
    /// The bytes behind them begin a marker: read 48, whose rest is here or certain to come.
    pub marker: bool,
}

/// Looks through `bytes`, all that was peeked, for a token of one of `seals`. `room`: bytes that the
/// program's buffer takes, or less where a known switch ends the read. The kernel's bytes end with
/// `bytes` unless more than `room` were peeked.
pub fn look(bytes: &[u8], room: usize, seals: &[Seal]) -> Found {
    let room = room.min(bytes.len());
    let first = seals.iter().filter_map(|seal| find(bytes, room, &seal.token)).min();
    // A marker that begins exactly where the buffer ends is for the next look; but a reader without
    // payload before it must hear of it.
    match first {
        Some(at) => Found { payload: at, marker: true },
        None => Found { payload: room, marker: false },
    }
}

/// The first place before `room`, or at 0, at which the token begins.
fn find(bytes: &[u8], room: usize, token: &[u8; TOKEN_LEN]) -> Option<usize> {
    let [first, ..] = *token;
    let mut from = 0;
    loop {
        let within = bytes.get(from..)?;
        let at = from + within.iter().position(|byte| *byte == first)?;
        if at >= room && at != 0 {
            return None;
        }
        let rest = bytes.get(at..)?;
        let len = rest.len().min(TOKEN_LEN);
        if len >= TAIL_MIN && rest.get(..len) == token.get(..len) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::{Kind, MARKER_LEN, Marker, tests::SEAL};

    /// Slow and plain: every place, every length.
    fn reference(bytes: &[u8], room: usize) -> Found {
        let room = room.min(bytes.len());
        for at in 0..bytes.len() {
            let len = (bytes.len() - at).min(TOKEN_LEN);
            let is_token = bytes[at..at + len] == SEAL.token[..len] && len >= TAIL_MIN;
            if is_token && (at < room || at == 0) {
                return Found { payload: at, marker: true };
            }
        }
        Found { payload: room, marker: false }
    }

    struct Random(u64);
    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            (self.0 >> 33) as usize % n
        }
    }

    /// Payload full of beginnings of the token, seven bytes at most, and markers between.
    fn stream(random: &mut Random) -> (Vec<u8>, Vec<u8>, Vec<usize>) {
        let (mut carrier, mut payload, mut edges) = (Vec::new(), Vec::new(), vec![0]);
        for _ in 0..random.below(12) + 1 {
            for _ in 0..random.below(6) {
                let piece: Vec<u8> = match random.below(3) {
                    0 => SEAL.token[..random.below(8)].to_vec(),
                    1 => vec![0xee; random.below(5)],
                    _ => vec![SEAL.token[0]; random.below(3)],
                };
                // A program that writes pieces of a token one behind the other is no marker either,
                // as long as eight bytes of it never stand together.
                let mut with = payload.clone();
                with.extend(&piece);
                if !with.windows(8).any(|w| w == &SEAL.token[..8]) {
                    carrier.extend(&piece);
                    payload = with;
                }
            }
            edges.push(carrier.len());
            let place = carrier.len() as u64;
            let marker =
                Marker { kind: Kind::Dead, sequence: 0, stream: 0, carrier: place, follows: 0 };
            carrier.extend(marker.encode(&SEAL));
            edges.push(carrier.len());
        }
        (carrier, payload, edges)
    }

    #[test]
    fn agrees_with_the_reference() {
        let mut random = Random(4);
        for _ in 0..300 {
            let (carrier, ..) = stream(&mut random);
            for _ in 0..200 {
                let from = random.below(carrier.len());
                let len = random.below(carrier.len() - from + 1);
                let bytes = &carrier[from..from + len];
                let room = random.below(len + 4);
                assert_eq!(look(bytes, room, &[SEAL]), reference(bytes, room));
            }
        }
    }

    /// The kernel shows whole segments only (markers are whole); the program's buffers are of any size.
    #[test]
    fn every_byte_of_payload_once_in_every_split() {
        let mut random = Random(5);
        for _ in 0..2000 {
            let (carrier, payload, edges) = stream(&mut random);
            let (mut at, mut got, mut markers, mut end) = (0, Vec::new(), 0, 0);
            while at < carrier.len() {
                // More arrives: up to somewhere in payload, or a marker's edge, or 8 bytes into it.
                while end <= at {
                    end = match random.below(3) {
                        0 => edges[random.below(edges.len())],
                        1 => carrier.len(),
                        _ => {
                            let place = random.below(carrier.len() + 1);
                            let inside = edges.chunks(2).map(|e| e[0]).enumerate().any(|(n, _)| {
                                let start = edges.get(2 * n + 1).copied().unwrap_or(usize::MAX);
                                place > start && place < start.saturating_add(TAIL_MIN)
                            });
                            if inside { continue } else { place }
                        }
                    };
                }
                let room = 1 + random.below(30);
                let peek = &carrier[at..end.min(at + room + LOOK_AHEAD)];
                let found = look(peek, room, &[SEAL]);
                got.extend(&peek[..found.payload]);
                at += found.payload;
                if found.marker {
                    let bytes = carrier[at..].first_chunk::<MARKER_LEN>().unwrap();
                    Marker::parse(bytes, &SEAL, at as u64).unwrap();
                    markers += 1;
                    at += MARKER_LEN;
                } else {
                    assert!(found.payload > 0, "a byte was held back");
                }
            }
            assert_eq!((got, markers), (payload, edges.len() / 2));
        }
    }

    #[test]
    fn two_meetings_at_once() {
        let other = Seal { token: [9; 16], ..SEAL };
        let mut bytes = b"payload".to_vec();
        bytes.extend(other.token);
        bytes.extend(SEAL.token);
        assert_eq!(look(&bytes, 100, &[SEAL, other]), Found { payload: 7, marker: true });
        assert_eq!(look(&bytes, 100, &[SEAL]), Found { payload: 23, marker: true });
        assert_eq!(look(&bytes, 100, &[]), Found { payload: 39, marker: false });
    }
}
