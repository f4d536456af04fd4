//! The process's way to ask the kernel about other ends of its connections: one socket, kept hidden.
//!
//! Called by whoever meets another end or proves a stream. What is asked and how: [`sdp_fabric_shm::asker`].

use sdp_fabric_shm::asker::{Asker, Notes};

use crate::process;

#[unsafe(link_section = ".data.hot")]
static ASKER: Asker =
    Asker::new(Notes { kept: process::note_hidden, gone: process::forget_hidden });

/// The process's way to ask the kernel about other ends.
pub(crate) fn asker() -> &'static Asker {
    &ASKER
}
