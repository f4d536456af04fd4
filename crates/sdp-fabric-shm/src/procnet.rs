//! /proc/net/tcp and tcp6: the socket tables as text, for sandboxes that refuse netlink.
//!
//! Slow (the whole table is formatted by the kernel) and not a snapshot; a socket that is missed
//! means TCP, never a wrong partner. Reading is bounded by [`MAX_BYTES`].

use core::ffi::CStr;

use sdp_sys::procfs;

use crate::identity::{Addr, DiagError, Family, PeerSocket, Tuple};

/// Bytes read of one table at most: some 100 000 sockets.
const MAX_BYTES: usize = 16 << 20;
/// Room for a piece of the table; a line has at most about 200 bytes.
const BUFFER: usize = 2048;

/// The socket whose own view of a connection is `tuple`.
pub(crate) fn find(tuple: &Tuple) -> Result<Option<PeerSocket>, DiagError> {
    // An IPv4 connection may be held by an IPv6 socket.
    if tuple.local.family() == Family::V4
        && let Some(found) = scan(c"/proc/thread-self/net/tcp", tuple)?
    {
        return Ok(Some(found));
    }
    // A system without IPv6 has no such file.
    match scan(c"/proc/thread-self/net/tcp6", tuple) {
        Err(DiagError::NoProc) if tuple.local.family() == Family::V4 => Ok(None),
        other => other,
    }
}

fn scan(path: &CStr, tuple: &Tuple) -> Result<Option<PeerSocket>, DiagError> {
    let failed = |error| DiagError::of_shortage(error).unwrap_or(DiagError::NoProc);
    let file = procfs::open(path).map_err(failed)?;
    let mut buf = [0u8; BUFFER];
    let mut kept = 0;
    let mut total = 0;
    while total < MAX_BYTES {
        let room = buf.get_mut(kept..).unwrap_or(&mut []);
        let len = procfs::read(file.raw(), room).map_err(failed)?;
        if len == 0 {
            return Ok(None);
        }
        total += len;
        let filled = kept + len;
        let mut start = 0;
        while let Some(rest) = buf.get(start..filled)
            && let Some(end) = rest.iter().position(|byte| *byte == b'\n')
        {
            if let Some((found, socket)) = rest.get(..end).and_then(line)
                && found.local == tuple.local
                && found.remote == tuple.remote
            {
                return Ok(Some(socket));
            }
            start += end + 1;
        }
        if start == 0 && filled >= BUFFER {
            return Err(DiagError::NoProc); // no line is that long: not the file we know
        }
        // Byte by byte: `copy_within` would bring a panic along.
        kept = filled.saturating_sub(start);
        for i in 0..kept {
            let byte = buf.get(start + i).copied().unwrap_or(0);
            if let Some(to) = buf.get_mut(i) {
                *to = byte;
            }
        }
    }
    Err(DiagError::NoProc)
}

/// Takes one line apart; `None` for the heading and for anything else.
fn line(text: &[u8]) -> Option<(Tuple, PeerSocket)> {
    let mut fields = text.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let local = addr(fields.nth(1)?)?;
    let remote = addr(fields.next()?)?;
    let state = u8::try_from(hex(fields.next()?)?).ok()?;
    let uid = u32::try_from(procfs::decimal(fields.nth(3)?)?).ok()?;
    let inode = procfs::decimal(fields.nth(1)?)?;
    Some((Tuple { local, remote, interface: 0 }, PeerSocket { inode, uid, state }))
}

/// `0100007F:1F90`, or four such words for IPv6: each word is the network-order bytes read as a
/// native number; the port is a number.
fn addr(text: &[u8]) -> Option<Addr> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (words, port) = (text.get(..colon)?, text.get(colon + 1..)?);
    let port = u16::try_from(hex(port)?).ok()?;
    let mut bytes = [0; 16];
    let (words, rest) = words.as_chunks::<8>();
    if !rest.is_empty() {
        return None;
    }
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&hex(word)?.to_ne_bytes());
    }
    match words.len() {
        1 => bytes.first_chunk().map(|ip| Addr::v4(*ip, port)),
        4 => Some(Addr::v6(bytes, port)),
        _ => None,
    }
}

/// A hexadecimal number of one to eight digits.
fn hex(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 8 {
        return None;
    }
    text.iter().try_fold(0u32, |sum, byte| Some(sum << 4 | char::from(*byte).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn lines_of_both_tables() {
        let text = b"  12: 0100007F:1F90 0200007F:D431 01 00000000:00000000 00:00000000 00000000 \
            1000        0 73211 1 0000000000000000 20 4 30 10 -1";
        let (tuple, socket) = line(text).unwrap();
        assert_eq!(tuple.local, Addr::v4([127, 0, 0, 1], 8080));
        assert_eq!(tuple.remote, Addr::v4([127, 0, 0, 2], 54321));
        assert_eq!(socket, PeerSocket { inode: 73211, uid: 1000, state: 1 });

        let text = b"   0: 0000000000000000FFFF00000100007F:0050 \
            00000000000000000000000001000000:0051 08 00000000:00000000 00:00000000 00000000 \
            0        0 0 1";
        let (tuple, socket) = line(text).unwrap();
        assert_eq!(tuple.local, Addr::v4([127, 0, 0, 1], 80), "mapped is IPv4");
        let mut loopback = [0; 16];
        loopback[15] = 1;
        assert_eq!(tuple.remote, Addr::v6(loopback, 81));
        assert_eq!(socket, PeerSocket { inode: 0, uid: 0, state: 8 });
    }

    #[test]
    fn malformed_lines_are_skipped() {
        let heading =
            b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
            uid  timeout inode";
        assert!(line(heading).is_none());
        for bad in [&b"0: 0100007F:1F90"[..], b"", b"0: 0100007:1F90 0100007F:1 01 0 0 0 0 0 1"] {
            assert!(line(bad).is_none());
        }
    }
}
