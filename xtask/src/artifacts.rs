//! Building what users get: the preload library and the tools.
//!
//! Two invocations of cargo, never one: the library is `no_std` with its own panic handler, and a
//! common invocation would unify its features with crates that bring std in.

use std::path::PathBuf;

use crate::process::{cargo, run, target_dir};

/// The preload library.
pub(crate) fn library() -> PathBuf {
    target_dir().join("release/libsdp.so")
}

/// The tool `sdp`.
pub(crate) fn sdp() -> PathBuf {
    target_dir().join("release/sdp")
}

/// Builds the library, then the tools, in release mode.
pub(crate) fn build() -> Result<(), String> {
    for package in ["sdp-preload", "sdp-tools"] {
        run(cargo().args(["build", "--release", "--package", package]))?;
    }
    for path in [library(), sdp(), target_dir().join("release/sdpnetstat")] {
        let size = std::fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?.len();
        println!("{:>9} bytes  {}", size, path.display());
    }
    Ok(())
}
