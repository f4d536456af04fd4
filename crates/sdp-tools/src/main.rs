//! The `sdp` command.

use clap::{Parser, Subcommand};
use sdp_tools::{perf, rules, run, stat};

/// Sockets Direct Protocol for unmodified programs.
#[derive(Parser)]
#[command(name = "sdp", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Run a program with the library
    Run(run::Options),
    /// Show the processes that have the library, and their connections
    Stat(stat::Options),
    /// Say which rule decides for a program and an address, and why
    Explain(rules::ExplainOptions),
    /// Look after the rule file
    #[command(subcommand)]
    Config(rules::ConfigCommand),
    /// Measure TCP and SDP side by side
    #[command(subcommand)]
    Perf(perf::Test),
    /// One process of a measurement
    #[command(hide = true)]
    PerfPeer(perf::peer::Options),
    /// A process that only uses CPU time
    #[command(hide = true)]
    PerfHog,
    /// One process of a measurement of quiet connections
    #[command(hide = true)]
    PerfIdlePeer(perf::idle_peer::Options),
}

/// Exit status of a sub-command other than `run` that failed.
const FAILED: i32 = 1;

/// Prints why a sub-command failed, if it did.
fn finish(name: &str, result: Result<(), impl std::fmt::Display>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("sdp {name}: {why}");
            FAILED
        }
    }
}

fn main() {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            // Help and version are no error; everything else is our own failure, never to be
            // taken for the status of a command.
            std::process::exit(if e.use_stderr() { run::FAILED } else { 0 });
        }
    };
    let status = match &cli.command {
        Cmd::Run(options) => run::main(options),
        Cmd::Stat(options) => finish("stat", stat::main(options)),
        Cmd::Explain(options) => finish("explain", rules::explain(options)),
        Cmd::Config(rules::ConfigCommand::Check { file }) => match rules::check(file.as_deref()) {
            Ok(true) => 0,
            Ok(false) => FAILED,
            Err(why) => finish("config check", Err(why)),
        },
        Cmd::Perf(test) => finish("perf", perf::main(test)),
        Cmd::PerfPeer(options) => finish("perf-peer", perf::peer::main(options)),
        Cmd::PerfHog => finish("perf-hog", perf::hog::main()),
        Cmd::PerfIdlePeer(options) => finish("perf-peer", perf::idle_peer::main(options)),
    };
    std::process::exit(status);
}
