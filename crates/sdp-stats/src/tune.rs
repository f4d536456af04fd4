//! Requests that tools make of a process at run time, and the tunables in force.
//!
//! A tool writes a text and then its number; the process reads it when it next waits or makes a
//! connection, and answers. Both sides believe nothing: a text is a few settings, each of which is
//! judged like any other, and any content is possible. Only users that may write to a process's
//! memory anyway can make requests of it: its own user, and root.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::page::Page;

/// Bytes of a request, and of the first part of the text of settings in force.
pub const TEXT_LEN: usize = 512;
/// Bytes of the second part, which tools and libraries of earlier versions do not know: they read none,
/// and write none.
pub const MORE_LEN: usize = 256;
/// Ends each setting of a text.
pub const END: u8 = b';';

/// A text of settings, zero padded.
pub type Text = [u8; TEXT_LEN];

/// The settings in force, zero padded: [`TEXT_LEN`] bytes of whole settings, then [`MORE_LEN`].
pub type InForce = [u8; TEXT_LEN + MORE_LEN];

/// Where a setting of `len` bytes goes in a text of settings in force, of which `at` bytes are there
/// already: no setting lies across the end of the first part.
pub const fn place(at: usize, len: usize) -> usize {
    if at < TEXT_LEN && at.saturating_add(len) > TEXT_LEN { TEXT_LEN } else { at }
}

/// Requests and their answers.
#[derive(Debug)]
#[repr(C)]
pub struct TuneWords {
    /// Number of the last request, 0 = none; stored behind its text.
    pub asked: AtomicU32,
    /// Number of the last request that the process has read; stored last.
    pub taken: AtomicU32,
    /// Settings of that one which it could not take.
    pub refused: AtomicU32,
    reserved: AtomicU32,
    /// `KEY VALUE`, each ended by [`END`]. The value `default`: as without a request.
    pub request: [AtomicU64; TEXT_LEN / 8],
    /// `KEY VALUE ORIGIN`, each ended by [`END`]: the settings in force, first part.
    pub in_force: [AtomicU64; TEXT_LEN / 8],
}

impl Page {
    /// Number of the last request; 0: there was none.
    #[inline]
    pub fn asked(&self) -> u32 {
        self.tune.asked.load(Acquire)
    }

    /// The text of the last request. It may be one that is just being written: [`Page::asked`] has another
    /// number afterwards, sooner or later.
    pub fn request(&self) -> Text {
        let mut text = [0; TEXT_LEN];
        for (to, word) in text.as_chunks_mut::<8>().0.iter_mut().zip(&self.tune.request) {
            *to = word.load(Relaxed).to_ne_bytes();
        }
        text
    }

    /// The request with this number was read; `refused` of its settings could not be taken.
    pub fn take_request(&self, number: u32, refused: u32) {
        self.tune.refused.store(refused, Relaxed);
        self.tune.taken.store(number, Release);
    }

    /// The settings in force.
    pub fn show_tunables(&self, text: &InForce) {
        let words = self.tune.in_force.iter().chain(&self.tune_more);
        for (word, from) in words.zip(text.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*from), Relaxed);
        }
    }
}

#[cfg(feature = "reader")]
pub use asking::{Setting, Tuned, ask, taken};

#[cfg(feature = "reader")]
mod asking {
    use std::fs::File;
    use std::io;
    use std::mem::offset_of;
    use std::os::unix::fs::FileExt;

    use super::{END, TEXT_LEN, TuneWords};
    use crate::page::Page;

    /// One tunable that a process goes by.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Setting {
        /// Its name.
        pub key: String,
        /// Its value, as it would be written.
        pub value: String,
        /// The source: `default`, `rules`, `environment`, `tune`.
        pub origin: String,
    }

    /// A process's statement about its tunables. All of it may be untrue.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Tuned {
        /// Number of the last request.
        pub asked: u32,
        /// Number of the last request that was read.
        pub taken: u32,
        /// Settings of that one which could not be taken.
        pub refused: u32,
        /// Text of the last request.
        pub request: String,
        /// The settings in force; empty: the process's library reports none, and takes no requests.
        pub in_force: Vec<Setting>,
    }

    impl Tuned {
        /// Reads the text of settings in force; text that is no setting is left out.
        pub(crate) fn settings(text: &str) -> Vec<Setting> {
            let setting = |one: &str| {
                let mut words = one.split(' ').map(str::to_string);
                Some(Setting { key: words.next()?, value: words.next()?, origin: words.next()? })
            };
            text.split(char::from(END)).filter_map(setting).collect()
        }
    }

    /// Number of the last request that the process has read.
    ///
    /// # Errors
    /// Reading failed, or the file is shorter than a page.
    pub fn taken(page: &File) -> io::Result<u32> {
        let mut bytes = [0; 4];
        let at = offset_of!(Page, tune) + offset_of!(TuneWords, taken);
        page.read_exact_at(&mut bytes, at as u64)?;
        Ok(u32::from_ne_bytes(bytes))
    }

    /// Leaves a request in a page that is open for writing. `text` is cut at [`TEXT_LEN`] bytes.
    ///
    /// # Errors
    /// Writing failed.
    pub fn ask(page: &File, number: u32, text: &str) -> io::Result<()> {
        let at = |field: usize| (offset_of!(Page, tune) + field) as u64;
        let mut bytes = [0u8; TEXT_LEN];
        for (to, from) in bytes.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        page.write_all_at(&bytes, at(offset_of!(TuneWords, request)))?;
        page.write_all_at(&number.to_ne_bytes(), at(offset_of!(TuneWords, asked)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(from: &[u8]) -> Text {
        let mut text = [0; TEXT_LEN];
        text[..from.len()].copy_from_slice(from);
        text
    }

    #[test]
    fn what_is_asked_is_read_and_answered() {
        let page = crate::map::zeroed_page();
        assert_eq!((page.asked(), page.request()), (0, [0; TEXT_LEN]));
        page.tune.request[0].store(u64::from_ne_bytes(*b"a 1;b 2;"), Relaxed);
        page.tune.asked.store(7, Release);
        assert_eq!((page.asked(), page.request()), (7, text(b"a 1;b 2;")));
        page.take_request(7, 1);
        assert_eq!((page.tune.taken.load(Relaxed), page.tune.refused.load(Relaxed)), (7, 1));
    }

    #[cfg(feature = "reader")]
    #[test]
    fn tools_read_what_is_in_force() {
        let page = crate::map::zeroed_page();
        let mut shown = [0; TEXT_LEN + MORE_LEN];
        shown[..TEXT_LEN].copy_from_slice(&text(b"recv_poll 0 tune;rubbish;a b c;"));
        shown[TEXT_LEN..TEXT_LEN + 12].copy_from_slice(b"report off d");
        page.show_tunables(&shown);
        let one = |key: &str, value: &str, origin: &str| Setting {
            key: key.into(),
            value: value.into(),
            origin: origin.into(),
        };
        page.init(&crate::Identity {
            pid: 1,
            ppid: 1,
            uid: 1,
            now_ns: 1,
            program: b"x",
            version: b"1",
        });
        let view = crate::reader::parse(&crate::map::words_of(&page)).unwrap();
        assert_eq!(
            view.tuned.in_force,
            [one("recv_poll", "0", "tune"), one("a", "b", "c"), one("report", "off", "d")]
        );
    }

    #[test]
    fn no_setting_lies_across_the_parts() {
        assert_eq!(place(0, 20), 0);
        assert_eq!(place(TEXT_LEN - 20, 20), TEXT_LEN - 20);
        assert_eq!(place(TEXT_LEN - 19, 20), TEXT_LEN);
        assert_eq!(place(TEXT_LEN, 20), TEXT_LEN);
        assert_eq!(place(TEXT_LEN + 7, 20), TEXT_LEN + 7);
    }
}
