//! Helpers of the integration tests: the built commands, and the library's side of `SDP_REPORT`.
#![allow(dead_code, unreachable_pub)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;

use sdp_stats::writer::Identity;
use sdp_stats::{Page, SIZE};
use sdp_tools::sys::{self, LocalName};

/// `sdp`, with some harmless library in the place of ours: these tests are about the tool.
pub fn sdp() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sdp"));
    command.env("SDP_LIBRARY", harmless_library());
    for name in ["LD_PRELOAD", "SDP_REPORT", "SDP_RULES", "LIBSDP_CONFIG_FILE"] {
        command.env_remove(name);
    }
    command
}

/// The C library that this process has loaded.
pub fn harmless_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let libc = maps.split_whitespace().find(|w| w.ends_with("/libc.so.6"));
    libc.expect("the tests are linked with glibc").into()
}

/// A directory that goes away with the value.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sdp-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A page as the library makes it: memfd and mapping (never unmapped; the process is short-lived).
pub fn make_page(program: &[u8]) -> (OwnedFd, &'static Page) {
    let fd = sys::sealed_memfd(sdp_stats::page::MEMFD_NAME, SIZE as u64).expect("memfd");
    // SAFETY: a fresh shared mapping of the whole file.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    // SAFETY: mapped above with that size, for the life of the process, used through the page only.
    let page = unsafe { Page::from_ptr(base.cast(), SIZE) }.expect("mappings are aligned");
    page.init(&Identity {
        pid: std::process::id(),
        ppid: 0,
        uid: sys::own_uid(),
        now_ns: 0,
        program,
        version: env!("CARGO_PKG_VERSION").as_bytes(),
    });
    (fd, page)
}

/// How a process hands in its page.
#[derive(Clone, Copy)]
pub enum HandIn {
    Abstract,
    Path,
    WrongToken,
    NoDescriptor,
}

/// Sends the descriptor to where `SDP_REPORT` says.
pub fn hand_in(fd: &OwnedFd, how: HandIn) {
    let address = std::env::var("SDP_REPORT").expect("SDP_REPORT is set under sdp run --report");
    let parts: Vec<_> = address.split(';').collect();
    let [name, path, token] = parts[..] else { panic!("three parts: {address}") };
    let to = match how {
        HandIn::Path => LocalName::Path(path.as_bytes()),
        _ => LocalName::Abstract(name.as_bytes()),
    };
    let socket = sys::seqpacket_connect(to).expect("somebody listens");
    match how {
        HandIn::WrongToken => sys::send_with_fd(socket.as_fd(), b"guess", fd.as_fd()).unwrap(),
        HandIn::NoDescriptor => {
            // SAFETY: the token is valid for its length.
            unsafe { libc::send(socket.as_raw_fd(), token.as_ptr().cast(), token.len(), 0) };
        }
        _ => sys::send_with_fd(socket.as_fd(), token.as_bytes(), fd.as_fd()).unwrap(),
    }
}
