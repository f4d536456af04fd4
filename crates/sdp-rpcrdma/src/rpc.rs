//! Record marks and the first words of RPC messages (RFC 5531).

/// In a record mark: no fragment of this record follows (RFC 5531, 11).
pub const LAST_FRAGMENT: u32 = 1 << 31;
/// Bytes of a record mark.
pub const MARK: usize = 4;

/// Callbacks that wait for the client's answers at most (RFC 8167, 5).
pub const CALLBACKS_MAX: usize = 2;

/// The word at a place, which is counted in words.
pub fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let at = index.checked_mul(4)?;
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Whether a message asks or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// It asks.
    Call,
    /// It answers.
    Reply,
}

/// XID and direction, if there are so many bytes and the direction is one.
pub fn direction(message: &[u8]) -> Option<(u32, Direction)> {
    let xid = word(message, 0)?;
    match word(message, 1)? {
        0 => Some((xid, Direction::Call)),
        1 => Some((xid, Direction::Reply)),
        _ => None,
    }
}

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The program, 100003 for NFS.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
}

impl Target {
    /// Bytes of a call that say it.
    pub const BYTES: usize = 24;

    /// From the beginning of a call.
    pub fn of(call: &[u8]) -> Option<Self> {
        let (program, version) = (word(call, 3)?, word(call, 4)?);
        Some(Self { program, version, procedure: word(call, 5)? })
    }
}

/// The mark of a record that is one fragment.
pub const fn mark(len: u32) -> [u8; MARK] {
    (len | LAST_FRAGMENT).to_be_bytes()
}

/// Length of a fragment, and whether it is the last one.
pub const fn fragment(mark: [u8; MARK]) -> (u32, bool) {
    let word = u32::from_be_bytes(mark);
    (word & !LAST_FRAGMENT, word & LAST_FRAGMENT != 0)
}

/// Bytes that make a length a multiple of four.
pub const fn roundup(len: u32) -> u32 {
    len.wrapping_neg() & 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_messages() {
        let call = [0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0x86, 0xa3, 0, 0, 0, 3, 0, 0, 0, 6];
        assert_eq!(direction(&call), Some((7, Direction::Call)));
        let read = Target { program: 100_003, version: 3, procedure: 6 };
        assert_eq!(Target::of(&call), Some(read));
        assert_eq!(Target::of(&call[..23]), None);
        assert_eq!(direction(&call[..7]), None);
        assert_eq!(direction(&[0, 0, 0, 7, 0, 0, 0, 1]), Some((7, Direction::Reply)));
        assert_eq!(direction(&[0, 0, 0, 7, 0, 0, 0, 2]), None);
    }

    #[test]
    fn marks() {
        assert_eq!(mark(0x70), [0x80, 0, 0, 0x70]);
        assert_eq!(fragment([0x80, 0, 0, 0x70]), (0x70, true));
        assert_eq!(fragment([0x7f, 0xff, 0xff, 0xff]), (0x7fff_ffff, false));
        let pads: Vec<_> = (0..5).map(roundup).collect();
        assert_eq!(pads, [0, 3, 2, 1, 0]);
        assert_eq!(roundup(u32::MAX), 1);
    }
}
