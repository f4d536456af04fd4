//! ModeChange's extended header (spec 2.7). The others are one integer each.

use crate::{Mode, Violation};

/// ModeChange: the master of a half-connection announces its new mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModeChange {
    /// `true`: the receiver of the message changes its *sending* half (so the sink sent it);
    /// `false`: its *receiving* half (so the source sent it).
    pub for_source: bool,
    /// The new mode.
    pub mode: Mode,
}

impl ModeChange {
    const FOR_SOURCE: u8 = 0x80;

    /// The first byte of the extended header; the other three are zero.
    pub const fn byte(self) -> u8 {
        let side = if self.for_source { Self::FOR_SOURCE } else { 0 };
        side | ((self.mode as u8) << 4)
    }

    /// Reads the first byte; the reserved low bits are ignored.
    ///
    /// # Errors
    ///
    /// [`Violation::ModeUnknown`] for modes 3 to 7.
    pub const fn from_byte(byte: u8) -> Result<Self, Violation> {
        let mode = match (byte >> 4) & 0x7 {
            0 => Mode::Buffered,
            1 => Mode::Combined,
            2 => Mode::Pipelined,
            _ => return Err(Violation::ModeUnknown { byte }),
        };
        Ok(Self { for_source: byte & Self::FOR_SOURCE != 0, mode })
    }
}
