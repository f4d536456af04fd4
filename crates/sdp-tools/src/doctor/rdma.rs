//! The checks of RDMA devices and what they need.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::PathBuf;

use sdp_fabric_verbs::budget::{CONNECTIONS_MAX, RingBudget};

use super::{Doctor, Grade};
use crate::{devices, ping};

/// Bytes of a RoCE v2 packet beside its payload, as soft-RoCE counts them, at most.
const ROCE_HEADERS: u32 = 100;
/// Where distributions keep libraries.
const LIBRARY_FOLDERS: [&str; 5] =
    ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64", "usr/lib"];
/// Locked memory below which a device cannot register much.
const LITTLE_LOCKED: u64 = 64 << 20;

/// What connections to other hosts have of `limit` bytes that may be locked.
fn rings(limit: u64) -> String {
    let Ok(budget) = RingBudget::within(limit, CONNECTIONS_MAX) else {
        return "not enough for a connection to another host".into();
    };
    let (first, last) = budget.first_and_last();
    let (first, last, whole) = (first >> 10, last >> 10, RingBudget::largest() >> 10);
    let connections = match budget.connections {
        1 => "one connection to another host has".into(),
        all => format!("{all} connections to other hosts have"),
    };
    let sizes = if first == last { format!("{first}") } else { format!("{first} to {last}") };
    format!("{connections} rings of {sizes} KiB, where {whole} are wanted")
}

impl Doctor {
    pub(super) fn rdma(&mut self) {
        let mut devices = devices::devices(&self.root);
        if devices.is_empty() {
            let modules = self.text("proc/modules").unwrap_or_default();
            let is_loaded = modules.lines().any(|l| l.starts_with("ib_core "));
            let cards = self.cards();
            let mut what = "no RDMA device".to_string();
            let mut advice = "";
            if let Some(card) = cards.first() {
                let _ = write!(what, ", but an InfiniBand card without a driver ({card})");
                advice = "Load its modules: modprobe mlx5_ib ib_uverbs rdma_cm.";
            } else if !is_loaded {
                what += " and no RDMA modules";
            }
            what += ": connections to other hosts stay on TCP";
            self.add("rdma", Grade::Note, what, advice);
            return;
        }
        for device in &devices {
            for port in device.ports.iter().filter(|p| p.state != "ACTIVE") {
                let what = format!("{} port {} is {}", device.name, port.port, port.state);
                self.add("rdma", Grade::Note, what, "Look at the cable and the subnet manager.");
            }
        }
        let files = fs::read_dir(self.path("dev/infiniband")).into_iter().flatten().flatten();
        let verbs: Vec<PathBuf> = files
            .map(|f| f.path())
            .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("uverbs")))
            .collect();
        if verbs.is_empty() {
            let what = format!("{} but no /dev/infiniband/uverbs*", devices[0].name);
            self.add("rdma", Grade::Note, what, "Load the module: modprobe ib_uverbs.");
        }
        for file in verbs {
            if let Err(e) = File::options().read(true).write(true).open(&file)
                && e.kind() == std::io::ErrorKind::PermissionDenied
            {
                let what = format!("{}: {e}", file.display());
                let advice =
                    "Put the user into the device's group (rdma), or set its mode to 0666.";
                self.add("rdma", Grade::Note, what, advice);
            }
        }
        if let Some(limit) = self.limit("self", "Max locked memory")
            && limit < LITTLE_LOCKED
        {
            let what =
                format!("only {} KiB may be locked (memlock): {}", limit / 1024, rings(limit));
            let advice = "For RDMA: ulimit -l 65536 or more, or limits.conf, or LimitMEMLOCK=64M.";
            self.add("memlock", Grade::Note, what, advice);
        }
        let names: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
        let fabrics = "connections to other hosts use them where the tunable fabrics has verbs";
        self.ok("rdma", format!("{}; {fabrics}", names.join(", ")));
        self.verbs();
        if self.is_here {
            devices::ask(&mut devices);
            devices.iter().for_each(|device| self.receives(device));
        }
        let interfaces = devices::interfaces(&self.root);
        for device in &devices {
            for port in device.ports.iter().filter(|p| p.link_layer == "Ethernet") {
                self.gids(device, port);
                let is_its = |i: &&devices::Interface| port.interfaces.contains(&i.name);
                interfaces.iter().filter(is_its).for_each(|i| self.rdma_mtu(i));
            }
        }
    }

    /// Whether messages reach another host.
    pub(super) fn peer(&mut self, peer: &str) {
        let asked = match ping::endpoint(peer) {
            Ok(at) => ping::ask(&at).map(|pong| (at, pong)),
            Err(why) => Err(ping::Silence { what: why.to_string(), advice: String::new() }),
        };
        match asked {
            Ok((at, ping::Pong { device, version, quickest })) => {
                let us = quickest.as_micros();
                let what = format!("{device} reaches {} by RDMA: {us} µs there and back", at.ip());
                self.ok("ping", what);
                if version != env!("CARGO_PKG_VERSION") {
                    let what = format!("{} has version {version} of these tools", at.ip());
                    self.add("ping", Grade::Note, what, "Use one version at both ends.");
                }
            }
            Err(ping::Silence { what, advice }) => self.add("ping", Grade::Stop, what, &advice),
        }
    }

    /// The libraries of verbs, a driver for them, and the connection manager's device.
    fn verbs(&mut self) {
        let before = self.findings.len();
        let holds = |name: &&str| {
            LIBRARY_FOLDERS.iter().any(|folder| self.path(folder).join(name).exists())
        };
        if !["libibverbs.so.1"].iter().any(holds) {
            let advice = "Install rdma-core's libraries (Debian: libibverbs1).";
            self.add("verbs", Grade::Note, "no libibverbs.so.1".to_string(), advice);
        }
        let drivers = fs::read_dir(self.path("etc/libibverbs.d")).into_iter().flatten();
        if drivers.count() == 0 {
            let advice = "Install them (Debian: ibverbs-providers).";
            let what = "no drivers for libibverbs in /etc/libibverbs.d".to_string();
            self.add("verbs", Grade::Note, what, advice);
        }
        if !self.path("dev/infiniband/rdma_cm").exists() {
            let what = "no /dev/infiniband/rdma_cm".to_string();
            self.add("verbs", Grade::Note, what, "Load the module: modprobe rdma_ucm.");
        }
        if self.findings.len() == before {
            let what = "libibverbs, its drivers and the connection manager are there".to_string();
            self.ok("verbs", what);
        }
    }

    /// Whether the device has shared receive queues, where it could be asked.
    fn receives(&mut self, device: &devices::Device) {
        let name = &device.name;
        match (device.shared_receive_queue, &device.unknown) {
            (Some(true), _) => self.ok("srq", format!("{name} has shared receive queues")),
            (Some(false), _) => {
                self.ok("srq", format!("{name} has no shared receive queue; none is needed"))
            }
            (None, Some(why)) => self.add(
                "srq",
                Grade::Note,
                format!("{name} cannot be asked for a shared receive queue: {why}"),
                "See the other findings.",
            ),
            (None, None) => {}
        }
    }

    /// Whether an Ethernet port has an address for packets that routers pass on.
    fn gids(&mut self, device: &devices::Device, port: &devices::Port) {
        let who = format!("{} port {}", device.name, port.port);
        let is_local = |gid: &devices::Gid| gid.gid.starts_with("fe80:");
        let routed: Vec<_> = port.gids.iter().filter(|g| g.kind == "RoCE v2").collect();
        if let Some(gid) = routed.iter().find(|gid| !is_local(gid)) {
            self.ok("gid", format!("{who}: RoCE v2, {} (index {})", gid.gid, gid.index));
        } else if routed.is_empty() {
            let what = format!("{who} has no GID of RoCE v2");
            let advice = "Let both ends use RoCE v2; give the interface an IP address.";
            self.add("gid", Grade::Note, what, advice);
        } else {
            let what = format!("{who} has link-local GIDs only");
            self.add("gid", Grade::Note, what, "Give the interface an IP address.");
        }
    }

    /// How much an RDMA packet carries over an Ethernet interface.
    fn rdma_mtu(&mut self, interface: &devices::Interface) {
        let Some(mtu) = interface.mtu else { return };
        let fits = |size: &&u32| **size + ROCE_HEADERS <= mtu;
        let what = match [4096_u32, 2048, 1024, 512, 256].iter().find(fits) {
            Some(4096) => {
                let what = format!("{}: MTU {mtu}, packets of 4096 bytes", interface.name);
                return self.ok("rdma-mtu", what);
            }
            Some(size) => format!("{}: MTU {mtu}, packets of {size} bytes only", interface.name),
            None => format!("{}: MTU {mtu}, too small for RDMA", interface.name),
        };
        let advice = "If every switch on the way can: ip link set dev NAME mtu 4200 (or 9000).";
        self.add("rdma-mtu", Grade::Note, what, advice);
    }

    /// InfiniBand cards that no driver has taken.
    fn cards(&self) -> Vec<String> {
        let cards = fs::read_dir(self.path("sys/bus/pci/devices")).into_iter().flatten().flatten();
        let is_idle = |path: &PathBuf| {
            let class = fs::read_to_string(path.join("class")).unwrap_or_default();
            // Network controllers of the kind InfiniBand.
            class.starts_with("0x0207") && !path.join("driver").exists()
        };
        let name = |p: PathBuf| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        cards.map(|c| c.path()).filter(is_idle).map(name).collect()
    }
}
