//! Installing what is missing: Debian's packages for the tests, and components of the Rust
//! toolchain.
//!
//! As root on Debian or Ubuntu (or where `sudo` asks for nothing) packages are installed; elsewhere
//! they are named, and what needs them is skipped by name later. Nothing here is an error: what is
//! missing shows where it is needed.

use std::process::{Command, Stdio};

use crate::process::{cargo, is_present, output_of, root, run};

/// Cargo's commands and the components that they come with.
const COMPONENTS: [(&str, &str); 2] = [("fmt", "rustfmt"), ("clippy", "clippy")];

/// What the whole ladder needs.
pub(crate) fn for_ladder() {
    told(packages(&[]));
    for (command, component) in COMPONENTS {
        if !succeeds(cargo().args([command, "--version"])) {
            told(rustup(&["component", "add", component]));
        }
    }
    // Miri comes with the nightly toolchain only.
    if is_present("rustup") && !has_miri() {
        let nightly = ["toolchain", "install", "nightly", "--profile", "minimal"];
        let components = ["--component", "miri", "--component", "rust-src"];
        told(rustup(&[nightly.as_slice(), &components].concat()));
    }
}

/// Installs these of the packages that the tests know (all, if none is named) and that are missing,
/// or names them.
pub(crate) fn packages(names: &[&str]) -> Result<(), String> {
    run(Command::new(root().join("tests/install-packages")).args(names))
}

/// True if somebody is there who can install packages without being asked.
pub(crate) fn may_install_packages() -> bool {
    let is_root = output_of(Command::new("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0");
    is_root && is_present("apt-get")
}

/// True if the nightly toolchain has Miri.
pub(crate) fn has_miri() -> bool {
    succeeds(nightly_cargo().args(["miri", "--version"]))
}

/// The nightly toolchain's cargo. (Cargo sets variables that would lead back to ours.)
pub(crate) fn nightly_cargo() -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(root()).args(["run", "nightly", "cargo"]);
    for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    command
}

fn rustup(arguments: &[&str]) -> Result<(), String> {
    run(Command::new("rustup").args(arguments))
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn told(done: Result<(), String>) {
    if let Err(message) = done {
        println!("not installed: {message}");
    }
}
