//! The `sdp` command.

use clap::{CommandFactory, Parser, Subcommand};
use sdp_tools::{
    capture, convert, describe, devices, doctor, nfs, perf, rules, run, service, show, stat, top,
    tune,
};

/// Sockets Direct Protocol for unmodified programs.
#[derive(Parser)]
#[command(name = "sdp", version, max_term_width = 100)]
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
    /// Show connections live, by what they move each second
    Top(top::Options),
    /// Show the payload of accelerated connections as TCP segments, for Wireshark and tshark
    Capture(capture::Options),
    /// Show RDMA devices, their ports and network interfaces
    Devices(devices::Options),
    /// Say what would stop or slow SDP here, and what to do about it
    Doctor(doctor::Options),
    /// Give a unit of systemd the library, or take it away
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// NFS over RDMA
    #[command(subcommand)]
    Nfs(nfs::Command),
    /// Show tunables, or save new values for programs to come
    Tune(tune::Options),
    /// Commands, options, tunables and reasons in JSON, for manual pages and completions
    #[command(hide = true)]
    Describe,
    /// One process of a measurement
    #[command(hide = true)]
    PerfPeer(perf::peer::Options),
    /// A process that only uses CPU time
    #[command(hide = true)]
    PerfHog,
    /// One process of a measurement of quiet connections
    #[command(hide = true)]
    PerfIdlePeer(perf::idle_peer::Options),
    /// One process of a measurement of single requests among many connections
    #[command(hide = true)]
    PerfReadyPeer(perf::ready_peer::Options),
    /// One process of a measurement of promotions
    #[command(hide = true)]
    PerfPromotePeer(perf::promote::PeerOptions),
}

/// Exit status when the arguments of a sub-command other than `run` make no sense.
const USAGE: i32 = 2;

/// Exit status of a sub-command other than `run` that failed.
const FAILED: i32 = 1;

/// In the tests' build: the environment's settings of the stand-in for RDMA devices.
#[cfg(feature = "fake-verbs")]
fn heed_environment() {
    use std::os::unix::ffi::OsStrExt;
    for (name, value) in std::env::vars_os() {
        let entry = [name.as_bytes(), b"=", value.as_bytes()].concat();
        if let Ok(entry) = std::ffi::CString::new(entry) {
            sdp_fake_verbs::heed(&entry);
        }
    }
}

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
    #[cfg(feature = "fake-verbs")]
    heed_environment();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            if e.use_stderr() {
                let _ = e.print();
            } else {
                sdp_tools::print(&e.render().to_string());
            }
            // Help and version are no error. A failure of `sdp run` itself is never to be taken for
            // the status of a command.
            let is_run = std::env::args_os().nth(1).is_some_and(|name| name == "run");
            std::process::exit(match (e.use_stderr(), is_run) {
                (false, _) => sdp_tools::status(0),
                (true, true) => run::FAILED,
                (true, false) => USAGE,
            });
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
        Cmd::Config(rules::ConfigCommand::Show(options)) => {
            finish("config show", show::main(options))
        }
        Cmd::Config(rules::ConfigCommand::Convert(options)) => {
            finish("config convert", convert::main(options))
        }
        Cmd::Perf(test) => finish("perf", perf::main(test)),
        Cmd::Top(options) => finish("top", top::main(options)),
        Cmd::Capture(options) => finish("capture", capture::main(options)),
        Cmd::Devices(options) => finish("devices", devices::main(options)),
        Cmd::Doctor(options) => match doctor::main(options) {
            Ok(true) => 0,
            Ok(false) => FAILED,
            Err(why) => finish("doctor", Err(why)),
        },
        Cmd::Service(command) => {
            let (name, done) = match command {
                service::ServiceCommand::Enable(o) => ("enable", service::enable(o).map(|()| true)),
                service::ServiceCommand::Disable(o) => {
                    ("disable", service::disable(o).map(|()| true))
                }
                service::ServiceCommand::Status(o) => ("status", service::status(o).map(|()| true)),
                service::ServiceCommand::Check(o) => ("check", service::check(o)),
            };
            match done {
                Ok(true) => 0,
                Ok(false) => FAILED,
                Err(why) => finish(&format!("service {name}"), Err::<(), _>(why)),
            }
        }
        Cmd::Nfs(command) => finish("nfs", nfs::main(command)),
        Cmd::Tune(options) => finish("tune", tune::main(options)),
        Cmd::Describe => {
            sdp_tools::print(&format!("{:#}\n", describe::all(&Cli::command())));
            0
        }
        Cmd::PerfPeer(options) => finish("perf-peer", perf::peer::main(options)),
        Cmd::PerfHog => finish("perf-hog", perf::hog::main()),
        Cmd::PerfIdlePeer(options) => finish("perf-peer", perf::idle_peer::main(options)),
        Cmd::PerfReadyPeer(options) => finish("perf-peer", perf::ready_peer::main(options)),
        Cmd::PerfPromotePeer(options) => finish("perf-peer", perf::promote::peer(options)),
    };
    // The status of `sdp run` is its command's.
    std::process::exit(match cli.command {
        Cmd::Run(_) => status,
        _ => sdp_tools::status(status),
    });
}
