//! Where something stands in the rules.

/// Which text a place is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Source {
    /// Rules put in front of the file's (`sdp run --rule`).
    Front,
    /// The rule file.
    File,
}

/// A piece of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which text.
    pub source: Source,
    /// Line, from 1.
    pub line: u32,
    /// Byte column, from 1.
    pub column: u16,
    /// Bytes; 0 when something is missing there.
    pub len: u16,
}
