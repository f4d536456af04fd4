//! `sdp devices`: RDMA devices, their ports, and the network interface of each.
//!
//! The devices, as `ibv_devinfo` and `ibdev2netdev` showed them, read from `/sys`; no library of
//! verbs is needed. One thing only the library tells, if it is there: whether a device has shared
//! receive queues. Where there is no device, that is said, with the network interfaces that there
//! are.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use clap::Args;
use sdp_fabric_verbs::{Error, endpoint::are_shared};
use serde::Serialize;

use crate::Failure;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Options of `sdp devices`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Read /sys and /proc below this folder: a copy of another machine's
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub sysroot: PathBuf,
}

/// One port of a device. Field names are the JSON form.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Port {
    pub port: u32,
    /// `ACTIVE`, `DOWN`, `INIT`, …
    pub state: String,
    /// `LinkUp`, `Polling`, …
    pub physical: String,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    /// As in `100 Gb/sec (4X EDR)`.
    pub rate: String,
    pub interfaces: Vec<String>,
    /// The addresses of the port that are set, by their index.
    pub gids: Vec<Gid>,
}

/// One address in a port's table. Field names are the JSON form.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Gid {
    pub index: u32,
    /// In the form of an IPv6 address; that of an IPv4 address begins with `::ffff:`.
    pub gid: String,
    /// `IB/RoCE v1`, `RoCE v2`; empty where the kernel does not show it.
    pub kind: String,
    /// Empty where it belongs to none.
    pub interface: String,
}

/// One device. Field names are the JSON form.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Device {
    pub name: String,
    pub node_type: String,
    pub firmware: String,
    pub board: String,
    /// Whether all connections of a process share one; else each has a queue of its own. `None`: not
    /// known.
    pub shared_receive_queue: Option<bool>,
    /// Why it is not known, where the device was asked.
    #[serde(skip)]
    pub unknown: Option<String>,
    pub ports: Vec<Port>,
}

/// A network interface. Field names are the JSON form.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Interface {
    pub name: String,
    /// `up`, `down`, `unknown`.
    pub state: String,
    /// Megabit per second, where the kernel knows.
    pub speed_mbit: Option<u32>,
    pub mtu: Option<u32>,
    /// `ethernet`, `infiniband`, `loopback`, or a number.
    pub kind: String,
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|e| e.path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The one line of a file of `/sys`, without characters that could drive a terminal; empty where it
/// cannot be read.
fn word(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().chars().filter(|c| !c.is_control()).collect()
}

/// `4: ACTIVE` is ACTIVE.
fn named(path: &Path) -> String {
    let text = word(path);
    text.split_once(": ").map_or(text.clone(), |(_, name)| name.to_string())
}

/// Interfaces whose device is this one, on this port.
fn interfaces_of(root: &Path, device: &Path, port: &Path) -> Vec<String> {
    let listed = entries(&port.join("gid_attrs/ndevs"));
    let mut found: Vec<String> =
        listed.iter().map(|p| word(p)).filter(|name| !name.is_empty()).collect();
    let number: u32 = name(port).parse().unwrap_or(0);
    for interface in entries(&root.join("sys/class/net")) {
        if !interface.join("device/infiniband").join(name(device)).exists() {
            continue;
        }
        let is_here = |file: &str, text: String| {
            let text = text.trim_start_matches("0x").to_string();
            let radix = if file == "dev_id" { 16 } else { 10 };
            u32::from_str_radix(&text, radix).is_ok_and(|n| n + 1 == number)
        };
        let by = ["dev_port", "dev_id"].map(|f| is_here(f, word(&interface.join(f))));
        if by.contains(&true) {
            found.push(name(&interface));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// A limit of retries for want of receive buffers that is none.
pub const FOR_EVER: u8 = 7;

/// The ports' counts of messages that a device sent again, by the driver's names. A process reports
/// the name: only that of a device leads anywhere.
pub fn retries_of(root: &Path, device: &str) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    let folder = root.join("sys/class/infiniband");
    let Some(device) = entries(&folder).into_iter().find(|path| name(path) == device) else {
        return counted;
    };
    for counter in
        entries(&device.join("ports")).iter().flat_map(|p| entries(&p.join("hw_counters")))
    {
        let word_of = name(&counter);
        if ["retr", "rnr", "timeout"].iter().any(|part| word_of.contains(part))
            && let Ok(n) = word(&counter).parse::<u64>()
        {
            *counted.entry(word_of).or_insert(0) += n;
        }
    }
    counted
}

/// The addresses of a port that are set.
fn gids_of(port: &Path) -> Vec<Gid> {
    let one = |path: PathBuf| {
        let address: Ipv6Addr = word(&path).parse().ok()?;
        let index = name(&path).parse().ok()?;
        let attribute = |kind: &str| word(&port.join("gid_attrs").join(kind).join(name(&path)));
        (!address.is_unspecified()).then(|| Gid {
            index,
            gid: address.to_string(),
            kind: attribute("types"),
            interface: attribute("ndevs"),
        })
    };
    let mut found: Vec<Gid> = entries(&port.join("gids")).into_iter().filter_map(one).collect();
    found.sort_by_key(|gid| gid.index);
    found
}

/// The RDMA devices below `root`.
pub fn devices(root: &Path) -> Vec<Device> {
    let port = |device: &Path, port: &Path| Port {
        port: name(port).parse().unwrap_or(0),
        state: named(&port.join("state")),
        physical: named(&port.join("phys_state")),
        link_layer: word(&port.join("link_layer")),
        rate: word(&port.join("rate")),
        interfaces: interfaces_of(root, device, port),
        gids: gids_of(port),
    };
    let device = |path: PathBuf| Device {
        name: name(&path),
        node_type: named(&path.join("node_type")),
        firmware: word(&path.join("fw_ver")),
        board: word(&path.join("board_id")),
        shared_receive_queue: None,
        unknown: None,
        ports: entries(&path.join("ports")).iter().map(|p| port(&path, p)).collect(),
    };
    entries(&root.join("sys/class/infiniband")).into_iter().map(device).collect()
}

/// Whether files below `root` are those of the machine that this runs on.
pub fn is_this_host(root: &Path) -> bool {
    fs::canonicalize(root).is_ok_and(|root| root == Path::new("/"))
}

/// The node GUID of a device of this host, its bytes in the order of the wire, as libibverbs has it.
fn guid_of(device: &str) -> Option<u64> {
    let path = Path::new("/sys/class/infiniband").join(device).join("node_guid");
    u64::from_str_radix(&word(&path).replace(':', ""), 16).ok().map(u64::to_be)
}

/// Asks the devices of this host, each of which is opened for that, whether they have shared receive
/// queues.
pub fn ask(devices: &mut [Device]) {
    for device in devices {
        match guid_of(&device.name).ok_or(Error::NoDevice).and_then(are_shared) {
            Ok(is_shared) => device.shared_receive_queue = Some(is_shared),
            Err(why) => device.unknown = Some(why.to_string()),
        }
    }
}

/// The network interfaces below `root`.
pub fn interfaces(root: &Path) -> Vec<Interface> {
    let one = |path: PathBuf| Interface {
        name: name(&path),
        state: word(&path.join("operstate")),
        speed_mbit: word(&path.join("speed")).parse().ok(),
        mtu: word(&path.join("mtu")).parse().ok(),
        kind: match word(&path.join("type")).as_str() {
            "1" => "ethernet".to_string(),
            "32" => "infiniband".to_string(),
            "772" => "loopback".to_string(),
            other => other.to_string(),
        },
    };
    entries(&root.join("sys/class/net")).into_iter().map(one).collect()
}

/// Soft-RoCE has neither firmware nor board.
fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn text(devices: &[Device], interfaces: &[Interface]) -> String {
    let mut out = String::new();
    for device in devices {
        let _ = writeln!(
            out,
            "{} ({}, firmware {}, board {})",
            device.name,
            device.node_type,
            or_dash(&device.firmware),
            or_dash(&device.board)
        );
        let receives = match (device.shared_receive_queue, &device.unknown) {
            (Some(true), _) => "yes".to_string(),
            (Some(false), _) => "no, one for each connection".to_string(),
            (None, Some(why)) => format!("not known ({why})"),
            (None, None) => "not asked".to_string(),
        };
        let _ = writeln!(out, "  shared receive queue: {receives}");
        for port in &device.ports {
            let on = match port.interfaces.as_slice() {
                [] => "no interface".to_string(),
                names => names.join(", "),
            };
            let _ = writeln!(
                out,
                "  port {}: {} ({}), {}, {} ==> {on}",
                port.port, port.state, port.physical, port.link_layer, port.rate
            );
            for gid in &port.gids {
                let words = [&gid.kind, &gid.interface].map(String::as_str);
                let words: Vec<_> = words.into_iter().filter(|w| !w.is_empty()).collect();
                let _ = writeln!(out, "    GID {}: {} ({})", gid.index, gid.gid, words.join(", "));
            }
        }
    }
    if devices.is_empty() {
        out += "no RDMA device (/sys/class/infiniband is empty)\n";
    }
    out += "\nnetwork interfaces:\n";
    for interface in interfaces {
        let speed = interface.speed_mbit.map_or("-".to_string(), |n| format!("{n} Mbit/s"));
        let mtu = interface.mtu.map_or("-".to_string(), |n| n.to_string());
        let _ = writeln!(
            out,
            "  {:<15} {:<8} {:<12} {:<12} mtu {mtu}",
            interface.name, interface.state, interface.kind, speed
        );
    }
    out
}

/// Runs the sub-command.
///
/// # Errors
/// The JSON form cannot be made.
pub fn main(options: &Options) -> Result<(), Failure> {
    let mut devices = devices(&options.sysroot);
    if is_this_host(&options.sysroot) {
        ask(&mut devices);
    }
    let interfaces = interfaces(&options.sysroot);
    let out = match options.json {
        true => crate::json(&serde_json::json!({
            "schema": SCHEMA, "devices": devices, "interfaces": interfaces,
        }))?,
        false => text(&devices, &interfaces),
    };
    crate::print(&out);
    Ok(())
}
