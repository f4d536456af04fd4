//! `sdp doctor --nfs`: what NFS over RDMA needs here, as a server's host and as a client's.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use sdp_nfs::{control, gateway, null, pool};
use serde_json::Value;

use super::{Doctor, Grade};
use crate::{devices, nfs};

/// Versions of NFS that a server is asked for.
const VERSIONS: [u32; 2] = [3, 4];
/// Bytes of memory to lock with which a gateway has all that it asks for: as much again is the
/// fabric's.
const ENOUGH: u64 = 2 * gateway::MEMORY as u64;
/// The modules of the kernel's own client and server.
const RDMA_MODULE: &str = "rpcrdma";

/// The module with which the kernel's client mounts by RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Module {
    /// It is loaded, or a part of the kernel.
    Loaded,
    /// It can be loaded.
    Found,
    /// This kernel has none.
    Missing,
}

/// Looks for that module; `text` reads a file below the root.
pub(crate) fn client_module(text: impl Fn(&str) -> Option<String>) -> Module {
    let release = text("proc/sys/kernel/osrelease").unwrap_or_default();
    let is_named = |file: &str| {
        let list = text(&format!("lib/modules/{}/{file}", release.trim())).unwrap_or_default();
        list.lines().any(|line| line.split(':').next().is_some_and(names_module))
    };
    let loaded = text("proc/modules").unwrap_or_default();
    let is_loaded = loaded.lines().any(|line| line.split(' ').next() == Some(RDMA_MODULE));
    if is_loaded || is_named("modules.builtin") {
        Module::Loaded
    } else if is_named("modules.dep") {
        Module::Found
    } else {
        Module::Missing
    }
}

impl Doctor {
    /// All findings. `server` is asked by TCP whether it is an NFS server; a server that was not named need
    /// not be there.
    pub(super) fn nfs(&mut self, server: SocketAddr, is_named: bool) {
        let address = self.nfs_device();
        self.nfs_memory();
        self.nfs_module();
        let mut listeners = self.nfs_listener(address);
        if self.is_here {
            listeners.extend(self.nfs_gateways());
            self.nfs_server(server, is_named);
        }
        self.nfs_exports();
        self.nfs_mount(&listeners);
    }

    /// An address of a device that can be listened on.
    fn nfs_device(&mut self) -> Option<IpAddr> {
        let found = devices::devices(&self.root);
        let Some(first) = found.first() else {
            let advice = "A card: its driver, and apt install rdma-core ibverbs-providers. None: \
                          rdma link add rxe0 type rxe netdev INTERFACE makes soft-RoCE of a network \
                          interface.";
            self.add("nfs-device", Grade::Stop, "no RDMA device".to_string(), advice);
            return None;
        };
        self.rdma();
        let address = nfs::first_address(&found);
        match address {
            Some(address) => {
                let names: Vec<_> = found.iter().map(|device| device.name.as_str()).collect();
                self.ok("nfs-device", format!("{}: {address} first", names.join(", ")));
            }
            None => {
                let what = format!("{} has no IP address", first.name);
                let advice = "Give its network interface one: ip addr add ADDRESS/BITS dev NAME.";
                self.add("nfs-device", Grade::Stop, what, advice);
            }
        }
        address
    }

    fn nfs_memory(&mut self) {
        const LEAST: u64 = 4 * pool::MOST as u64;
        const ADVICE: &str = "For the gateway: ulimit -l unlimited, limits.conf, or LimitMEMLOCK=.";
        match self.limit("self", "Max locked memory") {
            Some(limit) if limit < LEAST => {
                let (has, least) = (limit >> 10, LEAST >> 10);
                let what = format!("{has} KiB may be locked, a gateway needs {least} KiB");
                self.add("nfs-memory", Grade::Stop, what, ADVICE);
            }
            Some(limit) if limit < ENOUGH => {
                let what = format!(
                    "{} MiB may be locked: a gateway's clients share {} MiB for transfers",
                    limit >> 20,
                    limit >> 21
                );
                self.add("nfs-memory", Grade::Note, what, ADVICE);
            }
            _ => self.ok("nfs-memory", "a gateway may lock the memory that it wants".to_string()),
        }
    }

    /// Whether this kernel's client can mount by RDMA.
    fn nfs_module(&mut self) {
        match client_module(|name| self.text(name)) {
            Module::Loaded => {
                let what = format!("{RDMA_MODULE} is there: the kernel can mount by RDMA");
                self.ok("nfs-module", what);
            }
            Module::Found => {
                let what =
                    format!("{RDMA_MODULE} is not loaded: the kernel cannot mount by RDMA yet");
                self.add("nfs-module", Grade::Note, what, "Before mount: modprobe rpcrdma.");
            }
            Module::Missing => {
                let what = format!("this kernel has no {RDMA_MODULE}: it mounts by TCP only");
                let advice = "A gateway does not need it. For a client: a kernel with \
                              CONFIG_SUNRPC_XPRT_RDMA, or sdp nfs proxy.";
                self.add("nfs-module", Grade::Note, what, advice);
            }
        }
    }

    /// The kernel's own server, and where it listens by RDMA.
    fn nfs_listener(&mut self, address: Option<IpAddr>) -> Vec<String> {
        let Some(list) = self.text("proc/fs/nfsd/portlist") else {
            self.ok("nfs-listener", "the kernel's own NFS server does not run here".to_string());
            return Vec::new();
        };
        let port = |line: &str| {
            let mut words = line.split_whitespace();
            let is_rdma = words.next().is_some_and(|netid| netid.starts_with("rdma"));
            words.next()?.parse::<u16>().ok().filter(|_| is_rdma)
        };
        if let Some(port) = list.lines().find_map(port) {
            let what = format!("the kernel's own server listens by RDMA, port {port}");
            self.ok("nfs-listener", format!("{what}: it needs no gateway"));
            let at = address.map(|ip| SocketAddr::new(ip, port).to_string());
            return at.into_iter().collect();
        }
        if list.trim().is_empty() {
            self.ok("nfs-listener", "the kernel's own NFS server is not started".to_string());
        } else {
            let what = "the kernel's own server listens by TCP only".to_string();
            let advice = "One hop less than a gateway: modprobe rpcrdma; echo rdma 20049 \
                          >/proc/fs/nfsd/portlist (nfs.conf: rdma=y, rdma-port=20049).";
            self.add("nfs-listener", Grade::Note, what, advice);
        }
        Vec::new()
    }

    /// Gateways of this host that can be asked.
    fn nfs_gateways(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        for (_, text) in control::ask_all() {
            let Ok(status) = serde_json::from_str::<Value>(&text) else { continue };
            let Some(listen) = status["listen"].as_str() else { continue };
            if status["role"] == "proxy" {
                continue;
            }
            let server = status["server"].as_str().unwrap_or("-");
            self.ok("nfs-gateway", format!("a gateway listens on {listen} for {server}"));
            found.push(listen.to_string());
        }
        if found.is_empty() {
            let what = "no gateway of this user's runs here".to_string();
            let advice = "On a server's host: sdp nfs gateway --allow NETWORK, or systemctl enable \
                          --now sdp-nfs-gateway.";
            self.add("nfs-gateway", Grade::Note, what, advice);
        }
        found
    }

    fn nfs_server(&mut self, server: SocketAddr, is_named: bool) {
        let grade = if is_named { Grade::Stop } else { Grade::Note };
        let mut has = Vec::new();
        for version in VERSIONS {
            match null::ask(server, null::NFS, version) {
                Ok(null::Answer::Done) => has.push(version.to_string()),
                // The other version may be there.
                Ok(null::Answer::OtherVersions(..)) => {}
                Ok(answer) => {
                    let what = format!("{server} is no NFS server: it {answer}");
                    let advice = "Name its address and port: sdp doctor --nfs HOST:PORT.";
                    return self.add("nfs-server", grade, what, advice);
                }
                Err(why) => {
                    let what = format!("no NFS server answers at {server} by TCP: {why}");
                    let advice = "Start it (systemctl start nfs-server, ganesha.nfsd), or name its \
                                  address: sdp doctor --nfs HOST[:PORT].";
                    return self.add("nfs-server", grade, what, advice);
                }
            }
        }
        if has.is_empty() {
            let what = format!("{server} has neither version 3 nor 4 of NFS");
            self.add("nfs-server", grade, what, "Allow one of them in its configuration.");
        } else {
            let versions = has.join(" and ");
            self.ok("nfs-server", format!("{server} answers NULL, version {versions}"));
        }
    }

    /// Options of the export table that a database, or a trusting server, should not have.
    fn nfs_exports(&mut self) {
        let folder = fs::read_dir(self.path("etc/exports.d")).into_iter().flatten().flatten();
        let names = folder.map(|file| file.file_name().to_string_lossy().into_owned());
        let mut files: Vec<_> = names.filter(|name| name.ends_with(".exports")).collect();
        files.sort();
        let files = files.into_iter().map(|name| format!("etc/exports.d/{name}"));
        for name in ["etc/exports".to_string()].into_iter().chain(files) {
            let text = self.text(&name).unwrap_or_default();
            let lines = text.lines().map(|line| line.split('#').next().unwrap_or(""));
            let options: Vec<&str> = lines
                .flat_map(|line| line.split(['(', ')', ',', ' ', '\t']))
                .filter(|word| ["async", "no_root_squash"].contains(word))
                .collect();
            if options.contains(&"async") {
                let what =
                    format!("/{name} has async: writes are answered before they are on disk");
                self.add("nfs-exports", Grade::Note, what, "Under a database: sync.");
            }
            if options.contains(&"no_root_squash") {
                let what = format!("/{name} has no_root_squash: it trusts each client's root");
                let advice = "Behind a gateway that is the root of every host in --allow: name \
                              few, or squash (root_squash).";
                self.add("nfs-exports", Grade::Note, what, advice);
            }
        }
    }

    /// What a client has to type.
    fn nfs_mount(&mut self, listeners: &[String]) {
        for listen in listeners {
            let Ok(at) = listen.parse::<SocketAddr>() else { continue };
            let (host, port) = match at.ip() {
                IpAddr::V4(v4) => (v4.to_string(), at.port()),
                IpAddr::V6(v6) => (format!("[{v6}]"), at.port()),
            };
            let what = format!(
                "on a client: modprobe rpcrdma; mount -t nfs -o \
                 vers=4.2,proto=rdma,port={port},hard {host}:/PATH DIR"
            );
            self.ok("nfs-mount", what);
        }
        if listeners.is_empty() {
            let what = "nothing listens for NFS by RDMA on this host".to_string();
            self.add("nfs-mount", Grade::Note, what, "See nfs-listener and nfs-gateway.");
        }
    }
}

/// Whether a file of modules is that of RPC over RDMA.
fn names_module(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next() == Some(RDMA_MODULE)
}
