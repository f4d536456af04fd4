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

/// What the ladder needs: the gate, or all of it.
pub(crate) fn for_ladder(is_whole: bool) {
    told(packages(&[extent(is_whole)]));
    for command in missing_of_rust(is_whole) {
        told(rustup(&command.iter().map(String::as_str).collect::<Vec<_>>()));
    }
}

/// Prints what [`for_ladder`] would install.
pub(crate) fn show(is_whole: bool) -> Result<(), String> {
    packages(&[extent(is_whole), "--dry-run"])?;
    for command in missing_of_rust(is_whole) {
        println!("rustup {}", command.join(" "));
    }
    Ok(())
}

/// What `tests/install-packages` is asked for.
fn extent(is_whole: bool) -> &'static str {
    if is_whole { "--whole" } else { "--gate" }
}

/// Arguments of rustup for what is missing. A toolchain that is there is not changed but for
/// components that it lacks: `toolchain install` would replace a nightly by a newer one.
fn missing_of_rust(is_whole: bool) -> Vec<Vec<String>> {
    if !is_present("rustup") {
        return Vec::new();
    }
    let lacks = |command: &&(&str, &str)| !succeeds(cargo().args([command.0, "--version"]));
    let mut missing: Vec<Vec<String>> = COMPONENTS
        .iter()
        .filter(lacks)
        .map(|(_, name)| words(&["component", "add", name]))
        .collect();
    // Miri comes with the nightly toolchain only.
    if is_whole && !has_miri() {
        let toolchains = output_of(Command::new("rustup").args(["toolchain", "list"]));
        missing.push(for_miri(&toolchains.unwrap_or_default()));
    }
    missing
}

/// How Miri is installed beside these toolchains.
fn for_miri(toolchains: &str) -> Vec<String> {
    if toolchains.lines().any(|name| name.starts_with("nightly-") && !is_dated(name)) {
        words(&["component", "add", "miri", "rust-src", "--toolchain", "nightly"])
    } else {
        let install = "toolchain install nightly --no-self-update --profile minimal";
        words(
            &[install, "--component miri --component rust-src"]
                .join(" ")
                .split(' ')
                .collect::<Vec<_>>(),
        )
    }
}

/// `nightly-2026-01-31-…` is not what `nightly` means.
fn is_dated(name: &str) -> bool {
    name.split('-').nth(1).is_some_and(|part| part.starts_with("20"))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nightly_toolchain_that_is_there_is_not_replaced() {
        let there = "stable-x86_64-unknown-linux-gnu (active)\nnightly-x86_64-unknown-linux-gnu\n";
        assert_eq!(for_miri(there)[..2], ["component", "add"]);
        for others in ["", "stable-x86_64-unknown-linux-gnu\n", "nightly-2026-01-31-x86_64\n"] {
            assert_eq!(for_miri(others)[..3], ["toolchain", "install", "nightly"], "{others}");
        }
    }
}
