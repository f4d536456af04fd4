//! Makes a network in a file, changes it, and prints its content: for tests that are not in Rust.
//!
//! ```text
//! network steps                what can be made to fail
//! network FILE new ADDRESS…    makes it for all users, with a device for each address
//! network FILE live            what exists, as JSON
//! network FILE totals          what all processes have done, as JSON
//! network FILE remove N        takes device N away
//! network FILE unplug N        the same, by a driver that tells the connection manager alone
//! network FILE add ADDRESS     adds a device
//! network FILE port N ADDRESS  adds a port to device N
//! network FILE own N           device N has no shared receive queues
//! network FILE road open|cut|mute
//! network FILE expire          what was lost while the road was not open fails
//! network FILE break           queue pairs that are up fail
//! ```

use std::{
    ffi::CString, fs::Permissions, net::IpAddr, os::unix::fs::PermissionsExt, process::exit,
};

use sdp_fake_verbs::{Network, Road, Step};

fn mapped(text: &str) -> [u8; 16] {
    match text.parse().expect("an address") {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if words == ["steps"] {
        Step::ALL.iter().for_each(|step| println!("{step:?}"));
        return;
    }
    let [path, command, rest @ ..] = words.as_slice() else {
        eprintln!("network FILE COMMAND …");
        exit(2);
    };
    if *command == "new" {
        let file = std::fs::File::create(path).expect("a file");
        file.set_permissions(Permissions::from_mode(0o666)).expect("the mode");
    }
    let path = CString::new(*path).expect("a path");
    let network = Network::shared(&path).expect("a network");
    match (*command, rest) {
        ("new" | "add", addresses) => {
            for address in addresses {
                network.add_device(mapped(address)).expect("room for a device");
            }
        }
        ("live", []) => {
            network.reap();
            let live = network.live();
            let mut ports = std::collections::BTreeMap::new();
            network.queue_pairs(|device, port| {
                *ports.entry(format!("\"fake{device}:{port}\"")).or_insert(0) += 1;
            });
            let ports: Vec<_> = ports.iter().map(|(port, n)| format!("{port}: {n}")).collect();
            println!(
                "{{\"managers\": {}, \"ids\": {}, \"contexts\": {}, \"qps\": {}, \"regions\": {}, \
                 \"cqs\": {}, \"srqs\": {}, \"ports\": {{{}}}}}",
                live.managers,
                live.ids,
                live.contexts,
                live.qps,
                live.regions,
                live.cqs,
                live.srqs,
                ports.join(", ")
            );
        }
        ("totals", []) => {
            let mut parts = Vec::new();
            network.totals(|name, count| parts.push(format!("\"{name}\": {count}")));
            println!("{{{}}}", parts.join(", "));
        }
        ("remove", [number]) => network.remove_device(number.parse().expect("a number")),
        ("unplug", [number]) => network.remove_device_quietly(number.parse().expect("a number")),
        ("port", [number, address]) => {
            let device = number.parse().expect("a number");
            network.add_port(device, mapped(address)).expect("room for a port");
        }
        ("own", [number]) => {
            network.set_shared_receives(number.parse().expect("a number"), false);
        }
        ("road", ["open"]) => network.set_road(Road::Open),
        ("road", ["cut"]) => network.set_road(Road::Cut),
        ("road", ["mute"]) => network.set_road(Road::Mute),
        ("expire", []) => network.expire(),
        ("break", []) => network.break_pairs(|_| true),
        _ => {
            eprintln!("unknown: {command} {rest:?}");
            exit(2);
        }
    }
}
