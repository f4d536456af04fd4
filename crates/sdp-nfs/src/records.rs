//! Records from a server's TCP connection: bytes go straight to where they belong.
//!
//! What a record is for is known from its first eight bytes. A record's rest and the beginning of
//! the next one are one read.

use std::io::{self, IoSliceMut, Read};

use sdp_rpcrdma::rpc::{Direction, MARK, direction, fragment};

use crate::counts::End;

/// Bytes of a record that say what it is for.
pub const HEAD: usize = 8;
/// Fragments of no bytes in a row that are taken.
const EMPTY_MAX: u32 = 64;
/// Reads of one stream before it is the next one's turn, however much comes.
const READS_AT_ONCE: u32 = 64;

/// What takes records.
pub trait Taker {
    /// Whether bytes may be taken now. If not, they stay where they are.
    fn is_ready(&mut self) -> bool {
        true
    }
    /// A record begins so; `len` bytes of it are announced.
    fn begin(&mut self, head: [u8; HEAD], xid: u32, direction: Option<Direction>, len: usize);
    /// More of it is announced, `len` bytes in all.
    fn grow(&mut self, len: usize);
    /// Where bytes from `at` on go: at least one, at most `most`.
    fn room(&mut self, at: usize, most: usize) -> &mut [u8];
    /// The record is whole.
    fn end(&mut self, len: usize);
}

/// How far a stream of records is.
#[derive(Debug, Default)]
pub struct Records {
    /// Read and not used.
    pending: [u8; MARK + HEAD],
    have: usize,
    /// In a fragment, not before its mark.
    in_fragment: bool,
    /// Bytes of the fragment that are missing.
    left: usize,
    is_last: bool,
    head: [u8; HEAD],
    /// Bytes of the record that have come.
    total: usize,
    empty: u32,
}

impl Records {
    /// A record has begun and is not whole.
    pub const fn is_within(&self) -> bool {
        self.in_fragment || self.have != 0 || self.total != 0
    }

    fn shift(&mut self, bytes: usize) {
        self.pending.copy_within(bytes..self.have, 0);
        self.have -= bytes;
    }

    /// Reads what there is, but not for ever; records of more than `most` bytes are an error. False:
    /// nothing more is there now.
    ///
    /// # Errors
    /// The stream has ended, or is none of records.
    pub fn read(
        &mut self,
        from: &mut impl Read,
        taker: &mut impl Taker,
        most: usize,
    ) -> Result<bool, End> {
        for _ in 0..READS_AT_ONCE {
            self.use_pending(taker, most)?;
            if !taker.is_ready() {
                return Ok(true);
            }
            if self.have != 0 && self.in_fragment && self.total >= HEAD {
                // It was not ready for these before.
                continue;
            }
            let (wanted, got) = if self.in_fragment && self.total >= HEAD {
                let room = taker.room(self.total, self.left);
                let direct = room.len().min(self.left);
                let room = &mut room[..direct];
                let mut parts = [IoSliceMut::new(room), IoSliceMut::new(&mut self.pending)];
                // What comes behind the record belongs to the next mark.
                let parts = if direct < self.left { &mut parts[..1] } else { &mut parts[..] };
                let wanted = parts.iter().map(|part| part.len()).sum::<usize>();
                let got = Self::got(|| from.read_vectored(parts))?;
                let placed = got.unwrap_or(0).min(direct);
                (self.total, self.left) = (self.total + placed, self.left - placed);
                self.have = got.unwrap_or(0) - placed;
                (wanted, got)
            } else {
                let room = &mut self.pending[self.have..];
                let wanted = room.len();
                let got = Self::got(|| from.read(room))?;
                self.have += got.unwrap_or(0);
                (wanted, got)
            };
            let Some(got) = got else { return Ok(false) };
            if got < wanted {
                // The socket is empty. What has been read and may not be taken yet is told by no event.
                self.use_pending(taker, most)?;
                return Ok(self.have != 0 && !taker.is_ready());
            }
        }
        self.use_pending(taker, most)?;
        Ok(true)
    }

    /// Bytes read; `None`: none now.
    fn got(mut read: impl FnMut() -> io::Result<usize>) -> Result<Option<usize>, End> {
        loop {
            return match read() {
                Ok(0) => Err(End::ServerGone),
                Ok(got) => Ok(Some(got)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => Err(End::ServerGone),
            };
        }
    }

    fn use_pending(&mut self, taker: &mut impl Taker, most: usize) -> Result<(), End> {
        loop {
            if !self.in_fragment {
                let Some(mark) = self.pending[..self.have].first_chunk::<MARK>() else {
                    return Ok(());
                };
                let (len, is_last) = fragment(*mark);
                self.shift(MARK);
                (self.left, self.is_last, self.in_fragment) = (len as usize, is_last, true);
                if self.total + self.left > most {
                    return Err(End::ServerRecord);
                }
                self.empty = if len == 0 { self.empty + 1 } else { 0 };
                if self.empty > EMPTY_MAX {
                    return Err(End::ServerRecord);
                }
                if self.total >= HEAD {
                    taker.grow(self.total + self.left);
                }
            }
            if self.left == 0 {
                self.in_fragment = false;
                if self.is_last {
                    if self.total < HEAD {
                        return Err(End::ServerRecord);
                    }
                    taker.end(self.total);
                    self.total = 0;
                }
                continue;
            }
            let is_head = self.total > 0 && self.total < HEAD;
            if self.have == 0 || !is_head && !taker.is_ready() {
                return Ok(());
            }
            let used = if self.total < HEAD {
                let used = self.have.min(self.left).min(HEAD - self.total);
                self.head[self.total..self.total + used].copy_from_slice(&self.pending[..used]);
                used
            } else {
                let room = taker.room(self.total, self.left.min(self.have));
                let used = room.len().min(self.left).min(self.have);
                room[..used].copy_from_slice(&self.pending[..used]);
                used
            };
            let knew = self.total >= HEAD;
            self.shift(used);
            (self.total, self.left) = (self.total + used, self.left - used);
            if !knew && self.total == HEAD {
                let found = direction(&self.head);
                let xid = self.head.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid));
                let way = found.map(|(_, direction)| direction);
                taker.begin(self.head, xid, way, self.total + self.left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept {
        current: Vec<u8>,
        whole: Vec<Vec<u8>>,
        step: usize,
        /// Of the next announcement of more.
        waits: bool,
        is_waiting: bool,
    }

    impl Taker for Kept {
        fn is_ready(&mut self) -> bool {
            !self.is_waiting
        }
        fn begin(&mut self, head: [u8; HEAD], xid: u32, way: Option<Direction>, len: usize) {
            assert_eq!(direction(&head), way.map(|way| (xid, way)));
            self.current = head.to_vec();
            self.current.resize(len, 0);
        }
        fn grow(&mut self, len: usize) {
            self.is_waiting = std::mem::take(&mut self.waits);
            self.current.resize(len, 0);
        }
        fn room(&mut self, at: usize, most: usize) -> &mut [u8] {
            &mut self.current[at..at + most.min(self.step)]
        }
        fn end(&mut self, len: usize) {
            assert_eq!(self.current.len(), len);
            self.whole.push(std::mem::take(&mut self.current));
        }
    }

    /// Gives so many bytes at a time, and nothing at each second call.
    struct Slow<'a>(&'a [u8], usize, bool);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.read_vectored(&mut [IoSliceMut::new(into)])
        }
        fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
            self.2 = !self.2;
            if self.2 || self.0.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let (now, _) = self.0.split_at(self.1.min(self.0.len()));
            let mut rest = now;
            let got = rest.read_vectored(into)?;
            self.0 = &self.0[got..];
            Ok(got)
        }
    }

    fn record(len: usize, pieces: &[usize]) -> (Vec<u8>, Vec<u8>) {
        let mut bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
        bytes[4..8].copy_from_slice(&[0, 0, 0, 1]);
        let (mut wire, mut at) = (Vec::new(), 0);
        for piece in pieces {
            wire.extend((*piece as u32).to_be_bytes());
            wire.extend(&bytes[at..at + piece]);
            at += piece;
        }
        wire.extend(sdp_rpcrdma::rpc::mark((len - at) as u32));
        wire.extend(&bytes[at..]);
        (bytes, wire)
    }

    #[test]
    fn records_of_any_fragments_come_out_whole() {
        let shapes: [(usize, &[usize]); 8] = [
            (8, &[]),
            (24, &[]),
            (9, &[1, 1, 1, 1, 1, 1, 1, 1]),
            (5000, &[4, 0, 0, 4000]),
            (12, &[12]),
            (8192, &[3]),
            (17, &[7, 9]),
            (100, &[8, 92]),
        ];
        let records: Vec<_> = shapes.iter().map(|(len, pieces)| record(*len, pieces)).collect();
        let wire: Vec<u8> = records.iter().flat_map(|(_, wire)| wire.clone()).collect();
        for step in [1, 3, 4, 11, 12, 13, 100, 100_000] {
            for room in [1, 5, 100_000] {
                let mut kept = Kept { step: room, ..Kept::default() };
                let mut state = Records::default();
                let mut stream = Slow(&wire, step, false);
                while !stream.0.is_empty() {
                    state.read(&mut stream, &mut kept, 10_000).unwrap();
                }
                let wanted: Vec<_> = records.iter().map(|(bytes, _)| bytes.clone()).collect();
                assert_eq!(kept.whole, wanted, "by {step}, room {room}");
            }
        }
    }

    /// No event tells of them: the socket is empty.
    #[test]
    fn last_bytes_that_wait_for_their_place_are_taken_later() {
        let (bytes, wire) = record(5007, &[5000]);
        let mut kept = Kept { step: 10_000, waits: true, ..Kept::default() };
        let (mut state, mut stream) = (Records::default(), &wire[..]);
        assert_eq!(state.read(&mut stream, &mut kept, 10_000), Ok(true));
        assert!(stream.is_empty() && kept.is_waiting && kept.whole.is_empty());
        assert_eq!(state.read(&mut stream, &mut kept, 10_000), Ok(true));
        kept.is_waiting = false;
        assert_eq!(state.read(&mut stream, &mut kept, 10_000), Err(End::ServerGone));
        assert_eq!(kept.whole, [bytes]);
    }

    #[test]
    fn what_is_no_stream_of_records() {
        let end = |bytes: &[u8]| {
            let mut kept = Kept { step: 1000, ..Kept::default() };
            Records::default().read(&mut &*bytes, &mut kept, 10_000).unwrap_err()
        };
        assert_eq!(end(&[0x7f, 0xff, 0xff, 0xff, 1, 2]), End::ServerRecord);
        assert_eq!(end(&[0x80, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7]), End::ServerRecord, "no head");
        assert_eq!(end(&[0; 400]), End::ServerRecord, "fragments of nothing");
        let mut many = Vec::new();
        for _ in 0..3 {
            many.extend(4000u32.to_be_bytes());
            many.extend([0; 4000]);
        }
        assert_eq!(end(&many), End::ServerRecord, "together too long");
        assert_eq!(end(&[]), End::ServerGone);
    }
}
