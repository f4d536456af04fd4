//! The workspace's own tool: build, demo, test ladder, models, tidiness and ABI checks.
//!
//! Developers and the continuous integration script call it as `cargo xtask COMMAND`. It drives
//! other programs (cargo, pytest, binutils, git) and judges what they answer; it holds no code of
//! the product and has no dependency, so that it builds in a second on a fresh machine. It refuses
//! to guess: a check that could not run is reported by name, never counted as passed.

mod abi;
mod artifacts;
mod cite;
mod demo;
mod install;
mod json;
mod ladder;
mod models;
mod package;
mod process;
mod soak;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  build                      build target/release/{libsdp.so,sdp,sdpnetstat}
  demo                       Redis over TCP and over SDP in turn, side by side, with proof
  test [--quick | --whole] [--strict] [--rotate] [--within SECONDS] [--only NAME]... [--list]
       [--dry-run]           installs what is missing, then the gate of the test ladder; --whole:
                             all of the ladder; --quick: under five minutes and --only: nothing is
                             installed; --dry-run: what would be installed; --strict: a skip that
                             tests/allowed-skips.txt does not list is a failure; --rotate: of what
                             takes turns not the usual part, but one that the sources choose;
                             --within: then the run is ended, and what has not begun has failed;
                             --only: suites whose name starts with NAME
  soak [MINUTES] [--seed N]  the tests that have seeds, with new ones, for so long (60); what was
                             found is in target/soak.md
  tidy [CHECK]...            formatting, lints, crate directions, words, lengths, unsafe, module docs
  cite                       which statements of the protocol's page the code cites
  abi                        what libsdp.so exports, imports and relocates
  models [--long]            models of the shared-memory protocols, and their weakened twins
  package [--no-build] [--output DIR]
                             a Debian package, an RPM and a tarball of what is built, the same
                             bytes each time
  miri                       the shared-memory crates under Miri (needs the nightly toolchain)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    let done = match args.first().map(String::as_str) {
        Some("build") => no_arguments(rest).and_then(|()| artifacts::build()),
        Some("demo") => no_arguments(rest).and_then(|()| demo::run_demo()),
        Some("test") => ladder::Options::parse(rest).and_then(|options| ladder::run(&options)),
        Some("soak") => soak::run(rest),
        Some("tidy") => tidy::check(rest),
        Some("cite") => no_arguments(rest).and_then(|()| cite::coverage()),
        Some("models") => models::check_all(rest),
        Some("package") => package::make(rest),
        Some("miri") => no_arguments(rest).and_then(|()| models::interpret()),
        Some("abi") => no_arguments(rest).and_then(|()| abi::check_all()),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            Ok(())
        }
        Some(other) => Err(format!("no such command: {other}\n{USAGE}")),
        None => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn no_arguments(rest: &[String]) -> Result<(), String> {
    match rest.first() {
        None => Ok(()),
        Some(argument) => Err(format!("unexpected argument: {argument}\n{USAGE}")),
    }
}
