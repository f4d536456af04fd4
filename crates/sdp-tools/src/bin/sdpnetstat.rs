//! The `sdpnetstat` command.

use clap::Parser;
use sdp_tools::netstat;

fn main() {
    netstat::main(&netstat::Options::parse());
    std::process::exit(sdp_tools::status(0));
}
