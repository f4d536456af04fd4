//! What two ends tell each other in the connection manager's private data (RFC 8797).

/// The first bytes.
const MAGIC: [u8; 4] = [0xf6, 0xab, 0x0e, 0x18];
/// The version of the form.
const FORM: u8 = 1;
/// Bytes in all.
pub const LEN: usize = 8;
/// An end that says nothing takes and sends messages of so many bytes (RFC 8166, 3.3.2).
pub const LEAST: u32 = 1024;

/// One end's offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The peer may invalidate keys of this end's memory with its Sends.
    pub remote_invalidation: bool,
    /// The longest message that this end sends, in bytes: a multiple of 1024.
    pub sends: u32,
    /// The longest message that this end can take.
    pub receives: u32,
}

impl Offer {
    /// What holds of an end that says nothing (RFC 8797, 5.1).
    pub const NONE: Self = Self { remote_invalidation: false, sends: LEAST, receives: LEAST };

    /// Looks for an offer anywhere in what the connection manager gave: others' words may stand
    /// before it, and zeros behind it.
    pub fn find(data: &[u8]) -> Self {
        let found = data.windows(LEN).find_map(|window| match *window {
            [a, b, c, d, FORM, flags, sends, receives] if [a, b, c, d] == MAGIC => Some(Self {
                remote_invalidation: flags & 1 != 0,
                sends: bytes_of(sends),
                receives: bytes_of(receives),
            }),
            _ => None,
        });
        found.unwrap_or(Self::NONE)
    }

    /// As it travels. Sizes are rounded down to what can be said.
    pub const fn to_bytes(self) -> [u8; LEN] {
        let [a, b, c, d] = MAGIC;
        let flags = self.remote_invalidation as u8;
        [a, b, c, d, FORM, flags, code_of(self.sends), code_of(self.receives)]
    }
}

const fn bytes_of(code: u8) -> u32 {
    (code as u32 + 1) * LEAST
}

const fn code_of(bytes: u32) -> u8 {
    let units = bytes / LEAST;
    if units == 0 {
        0
    } else if units > 256 {
        255
    } else {
        (units - 1) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];

    #[test]
    fn what_linux_says() {
        let client = Offer { remote_invalidation: true, sends: 4096, receives: 4096 };
        assert_eq!(Offer::find(&LINUX), client);
        assert_eq!(client.to_bytes(), LINUX);
        let server = Offer { remote_invalidation: false, ..client };
        assert_eq!(server.to_bytes(), [0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3]);
    }

    #[test]
    fn it_stands_anywhere_and_may_be_missing() {
        for at in 0..49 {
            let mut data = [0u8; 56];
            data[at..at + 8].copy_from_slice(&LINUX);
            assert_eq!(Offer::find(&data).receives, 4096, "{at}");
            assert_eq!(Offer::find(&data[..at + 7]), Offer::NONE, "cut at {at}");
        }
        for len in 0..57 {
            assert_eq!(Offer::find(&vec![0; len]), Offer::NONE);
        }
        let mut other = LINUX;
        other[4] = 2;
        assert_eq!(Offer::find(&other), Offer::NONE, "a form that is not known");
    }

    #[test]
    fn sizes_at_both_ends_of_the_range() {
        let of = |sends, receives| Offer { remote_invalidation: false, sends, receives };
        assert_eq!(Offer::find(&of(1024, 262_144).to_bytes()), of(1024, 262_144));
        assert_eq!(Offer::find(&of(0, u32::MAX).to_bytes()), of(1024, 262_144));
        assert_eq!(Offer::find(&of(4095, 4097).to_bytes()), of(3072, 4096));
    }
}
