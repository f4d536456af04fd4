//! The process's socket for questions to the kernel about other ends of its connections, kept
//! hidden.
//!
//! Called by `migration` to meet another end, and by `datapath` to prove a stream. The questions
//! and how they are asked: [`sdp_fabric_shm::diag_client`].

use sdp_fabric_shm::diag_client::{DiagClient, HiddenFdHooks};

use crate::process;

#[unsafe(link_section = ".data.hot")]
static DIAG_CLIENT: DiagClient =
    DiagClient::new(HiddenFdHooks { kept: process::note_hidden, gone: process::forget_hidden });

/// The process's client for questions to the kernel about other ends.
pub(crate) fn diag_client() -> &'static DiagClient {
    &DIAG_CLIENT
}
