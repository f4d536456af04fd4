//! A cursor over one line: keywords, words, blanks, comments.

use crate::place::{Place, Source};

/// Bytes of a line that are looked at; a longer line is an error.
pub(crate) const MAX_LINE: usize = 1024;

/// One line (without its newline) and how far it has been read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    text: &'a [u8],
    at: usize,
    number: u32,
    source: Source,
}

/// How a keyword was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    Exact,
    OtherCase,
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

impl<'a> Line<'a> {
    pub(crate) const fn new(text: &'a [u8], number: u32, source: Source) -> Self {
        Self { text, at: 0, number, source }
    }

    pub(crate) fn skip_blanks(&mut self) {
        while self.text.get(self.at).copied().is_some_and(is_blank) {
            self.at = self.at.wrapping_add(1);
        }
    }

    /// The part of the line that has not been read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or(b"")
    }

    /// Whether only blanks or a comment are left. Skips the blanks.
    pub(crate) fn is_done(&mut self) -> bool {
        self.skip_blanks();
        matches!(self.rest().first(), None | Some(b'#'))
    }

    /// Reads `word` in any case. As in the historic scanner no boundary is needed behind it.
    pub(crate) fn keyword(&mut self, word: &str) -> Option<Spelling> {
        self.skip_blanks();
        let found = self.rest().get(..word.len())?;
        if !found.eq_ignore_ascii_case(word.as_bytes()) {
            return None;
        }
        self.at = self.at.wrapping_add(word.len());
        Some(if found == word.as_bytes() { Spelling::Exact } else { Spelling::OtherCase })
    }

    /// Reads a maximal run without blanks; empty at the end.
    pub(crate) fn word(&mut self) -> (&'a [u8], Place) {
        self.skip_blanks();
        let rest = self.rest();
        let len = rest.iter().position(|b| is_blank(*b)).unwrap_or(rest.len());
        let place = self.place(self.at, len);
        self.at = self.at.wrapping_add(len);
        (rest.get(..len).unwrap_or(b""), place)
    }

    /// Everything up to a comment, without blanks at either end; the cursor goes to the end.
    pub(crate) fn until_comment(&mut self) -> (&'a [u8], usize) {
        self.skip_blanks();
        let (start, rest) = (self.at, self.rest());
        let end = rest.iter().position(|b| *b == b'#').unwrap_or(rest.len());
        self.at = self.text.len();
        (trim_end(rest.get(..end).unwrap_or(b"")), start)
    }

    /// A place of this line by byte offset.
    pub(crate) fn place(&self, at: usize, len: usize) -> Place {
        Place {
            source: self.source,
            line: self.number,
            column: u16::try_from(at.saturating_add(1)).unwrap_or(u16::MAX),
            len: u16::try_from(len).unwrap_or(u16::MAX),
        }
    }

    /// The word at the cursor, without reading it.
    pub(crate) fn here(&self) -> Place {
        let mut copy = *self;
        copy.word().1
    }

    /// The statement that begins the line.
    pub(crate) fn whole(&self) -> Place {
        let start = self.text.iter().position(|b| !is_blank(*b)).unwrap_or(0);
        let mut copy = Self { at: start, ..*self };
        let (text, at) = copy.until_comment();
        self.place(at, text.len())
    }
}

fn trim_end(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|b| !is_blank(*b)).map_or(0, |last| last.wrapping_add(1));
    text.get(..end).unwrap_or(b"")
}

/// A text without the blanks that may stand around `:`, `-`, `/` and `.`, with the offset each byte
/// came from. Any other blank ends it: `extra` is where the text behind that begins.
pub(crate) struct Compact {
    bytes: [u8; Self::MAX],
    from: [u16; Self::MAX],
    len: usize,
    pub(crate) extra: Option<usize>,
    pub(crate) is_too_long: bool,
}

impl Compact {
    /// Longer than the longest address with prefix and ports.
    const MAX: usize = 96;

    pub(crate) fn new(text: &[u8]) -> Self {
        let mut out = Self {
            bytes: [0; Self::MAX],
            from: [0; Self::MAX],
            len: 0,
            extra: None,
            is_too_long: false,
        };
        let joins = |byte: u8| matches!(byte, b':' | b'-' | b'/' | b'.');
        let mut blank_before = false;
        for (at, byte) in text.iter().copied().enumerate() {
            if is_blank(byte) {
                blank_before = true;
                continue;
            }
            let previous = out.len.checked_sub(1).and_then(|i| out.bytes.get(i)).copied();
            if blank_before && previous.is_some_and(|p| !joins(p) && !joins(byte)) {
                out.extra = Some(at);
                break;
            }
            blank_before = false;
            let (Some(b), Some(f)) = (out.bytes.get_mut(out.len), out.from.get_mut(out.len)) else {
                out.is_too_long = true;
                break;
            };
            (*b, *f) = (byte, u16::try_from(at).unwrap_or(u16::MAX));
            out.len = out.len.wrapping_add(1);
        }
        out
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(b"")
    }

    /// Where byte `at` of [`Self::bytes`] came from.
    pub(crate) fn origin(&self, at: usize) -> usize {
        self.from.get(at.min(self.len.saturating_sub(1))).copied().map_or(0, usize::from)
    }
}
