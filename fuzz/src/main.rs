//! `sdp-fuzz TARGET [SECONDS]`: one target for as long as one likes. Without a target: lists them.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let mut words = env::args().skip(1);
    let Some(name) = words.next() else {
        for target in sdp_fuzz::TARGETS {
            println!("{}", target.name);
        }
        return ExitCode::SUCCESS;
    };
    let Some(target) = sdp_fuzz::TARGETS.iter().find(|target| target.name == name) else {
        eprintln!("sdp-fuzz: no target {name}");
        return ExitCode::from(2);
    };
    let seconds = words.next().and_then(|word| word.parse().ok()).unwrap_or(sdp_fuzz::seconds());
    let seed = sdp_fuzz::seed();
    sdp_fuzz::report_aborts(target.name, seed);
    let rounds = sdp_fuzz::run(target, seconds, seed);
    println!("{name}: {rounds} rounds with seed {seed}");
    ExitCode::SUCCESS
}
