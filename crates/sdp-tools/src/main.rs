//! The `sdp` command.

use clap::{Parser, Subcommand};
use sdp_tools::run;

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
    };
    std::process::exit(status);
}
