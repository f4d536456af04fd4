//! Every target for a bounded time, part of every test run; `SDP_FUZZ_SECONDS` lengthens it.

fn run(name: &str) {
    let target = sdp_fuzz::TARGETS.iter().find(|target| target.name == name).unwrap();
    let rounds = sdp_fuzz::run(target, sdp_fuzz::seconds(), sdp_fuzz::seed());
    println!("{name}: {rounds} rounds with seed {}", sdp_fuzz::seed());
    assert!(rounds >= 1);
}

#[test]
fn wire() {
    run("wire");
}

#[test]
fn rules() {
    run("rules");
}

#[test]
fn ring() {
    run("ring");
}

#[test]
fn hostile_ring() {
    run("hostile-ring");
}

#[test]
fn rpcrdma() {
    run("rpcrdma");
}

#[test]
fn every_target_is_run_here() {
    let names: Vec<_> = sdp_fuzz::TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, ["wire", "rules", "ring", "hostile-ring", "rpcrdma"]);
}
