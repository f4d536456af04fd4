//! `sdp nfs mount`: mounts by RDMA where the server answers by it and the kernel can, by a proxy of
//! this host where only the kernel cannot, else by TCP; and says which and why.

use std::{fs, net::SocketAddr, path::PathBuf, process::Command};

use clap::Args;
use sdp_nfs::{gateway, null, null_rdma};
use serde_json::Value;

use super::{statuses, values::text};
use crate::{
    Failure,
    doctor::nfs::{Module, client_module},
    ping,
};

/// Options of `sdp nfs mount`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// What to mount
    #[arg(value_name = "SERVER:PATH")]
    pub what: String,
    /// Where
    pub dir: PathBuf,
    /// Version of NFS
    #[arg(long, value_name = "VERSION", default_value = "4.2", value_parser = ["3", "4.0", "4.1", "4.2"])]
    pub nfs_version: String,
    /// Port for RDMA
    #[arg(long, value_name = "PORT", default_value_t = gateway::PORT)]
    pub port: u16,
    /// More options of nfs(5)
    #[arg(short, long, value_name = "OPTIONS")]
    pub options: Option<String>,
    /// Print the command, and mount nothing
    #[arg(long)]
    pub print: bool,
}

/// The server's name, without brackets, and the path.
fn parts(what: &str) -> Option<(&str, &str)> {
    let at = what.find(":/")?;
    let host = &what[..at];
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then(|| (host, &what[at + 1..]))
}

/// What a server's answer says, if it is not that it has this version.
fn judged(answer: null::Answer, version: u32) -> Result<(), String> {
    match answer {
        null::Answer::Done => Ok(()),
        other => Err(format!("asked for version {version}, it {other}")),
    }
}

/// How a server is reached.
#[derive(Debug, PartialEq, Eq)]
struct Way {
    /// The transport's options.
    words: String,
    /// Where, if it is not the server itself.
    host: Option<String>,
    why: String,
}

/// By RDMA, which the server answers: by the kernel, or by a proxy where this kernel cannot. `None`:
/// there is no proxy.
fn by_rdma(
    server: SocketAddr,
    device: &str,
    version: u32,
    module: Module,
    proxies: &[Value],
) -> Option<Way> {
    if module != Module::Missing {
        // The service that gives version 3 its root is on TCP.
        let more = if version == 3 { ",mountproto=tcp" } else { "" };
        let words = format!("proto=rdma,port={}{more}", server.port());
        return Some(Way { words, host: None, why: format!("by RDMA: {server} answers {device}") });
    }
    let is_its =
        |proxy: &&Value| proxy["ending"] != true && text(&proxy["server"]).parse() == Ok(server);
    let proxy = proxies.iter().find(is_its)?;
    let listen: SocketAddr = text(&proxy["listen"]).parse().ok()?;
    let mut words = format!("proto=tcp,port={}", listen.port());
    if version == 3 {
        let mount: SocketAddr = text(&proxy["mount"]).parse().ok()?;
        words = format!("{words},mountproto=tcp,mountport={}", mount.port());
    }
    let host = match listen {
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    let why = format!(
        "by the proxy at {listen}: {server} answers {device} by RDMA, and this kernel has no rpcrdma"
    );
    Some(Way { words, host: Some(host), why })
}

/// How it is reached, and why.
fn choose(host: &str, options: &Options) -> Result<Way, Failure> {
    let version = if options.nfs_version == "3" { 3 } else { 4 };
    let rdma = ping::endpoint_or(host, options.port)?;
    let answered = match null_rdma::ask(rdma, None, null::NFS, version) {
        Ok((device, answer)) => judged(answer, version).map(|()| device),
        Err(why) => Err(why.to_string()),
    };
    let way = answered.and_then(|device| {
        let module = client_module(|name| fs::read_to_string(format!("/{name}")).ok());
        let (_, proxies) = statuses();
        by_rdma(rdma, &device, version, module, &proxies).ok_or_else(|| {
            format!(
                "it answers {device}, but this kernel has no rpcrdma, and no proxy runs (sdp nfs \
                 proxy {host})"
            )
        })
    });
    match way {
        Ok(way) => Ok(way),
        Err(no_rdma) => {
            let tcp = SocketAddr::new(rdma.ip(), gateway::SERVER_PORT);
            let answer = null::ask(tcp, null::NFS, version);
            let judged = answer.map_err(|why| why.to_string()).and_then(|a| judged(a, version));
            let no_tcp = match judged {
                Ok(()) => {
                    let why = format!("by TCP: {tcp} answers; not by RDMA, port {}", options.port);
                    let why = format!("{why}: {no_rdma}");
                    return Ok(Way { words: "proto=tcp".to_string(), host: None, why });
                }
                Err(no_tcp) => no_tcp,
            };
            let both = format!("by RDMA, port {}: {no_rdma}; by TCP: {no_tcp}", options.port);
            Err(Failure::new(format!("{host} cannot be mounted"), both))
        }
    }
}

/// Mounts, or prints how.
///
/// # Errors
/// The server does not answer, or mount(8) failed.
pub(super) fn main(options: &Options) -> Result<(), Failure> {
    let Some((host, path)) = parts(&options.what) else {
        return Err(Failure::new(&options.what, "it is not SERVER:PATH, with a path from /"));
    };
    let way = choose(host, options)?;
    crate::warn(format_args!("sdp nfs mount: {}", way.why));
    let mut words = format!("vers={},{},hard", options.nfs_version, way.words);
    let what = way.host.map_or_else(|| options.what.clone(), |host| format!("{host}:{path}"));
    if let Some(more) = &options.options {
        words = format!("{words},{more}");
    }
    if options.print {
        let dir = options.dir.display();
        crate::print(&format!("mount -t nfs -o {words} {what} {dir}\n"));
        return Ok(());
    }
    let mut command = Command::new("mount");
    command.args(["-t", "nfs", "-o", &words, &what]).arg(&options.dir);
    let status = command.status().map_err(|e| Failure::new("mount", e))?;
    if status.success() { Ok(()) } else { Err(Failure::new("mount", status)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_rdma_takes_a_proxy() {
        let server = "10.9.0.1:20049".parse().unwrap();
        let mut proxy = serde_json::json!({
            "listen": "127.0.0.1:12049", "mount": "127.0.0.1:12048", "server": "10.9.0.1:20049",
            "ending": false,
        });
        let by = |version, module, proxy: &Value| {
            by_rdma(server, "rxe0", version, module, std::slice::from_ref(proxy))
        };
        for module in [Module::Loaded, Module::Found] {
            let way = by(3, module, &proxy).unwrap();
            assert_eq!((&*way.words, way.host), ("proto=rdma,port=20049,mountproto=tcp", None));
        }
        let way = by(4, Module::Missing, &proxy).unwrap();
        assert_eq!((&*way.words, way.host.as_deref()), ("proto=tcp,port=12049", Some("127.0.0.1")));
        let three = by(3, Module::Missing, &proxy).unwrap().words;
        assert_eq!(three, "proto=tcp,port=12049,mountproto=tcp,mountport=12048");
        proxy["listen"] = "[::1]:12049".into();
        assert_eq!(by(4, Module::Missing, &proxy).unwrap().host.as_deref(), Some("[::1]"));
        // Of another server, or at its end.
        proxy["ending"] = true.into();
        assert_eq!(by(4, Module::Missing, &proxy), None);
        let other = serde_json::json!({ "listen": "127.0.0.1:1", "server": "10.9.0.1:1" });
        assert_eq!(by(4, Module::Missing, &other), None);
    }

    #[test]
    fn servers_and_paths() {
        assert_eq!(parts("filer:/srv/share"), Some(("filer", "/srv/share")));
        assert_eq!(parts("10.9.0.1:/"), Some(("10.9.0.1", "/")));
        assert_eq!(parts("[fd00:9::1]:/a:/b"), Some(("fd00:9::1", "/a:/b")));
        for bad in ["", "filer", "/srv", ":/srv", "filer:srv", "[]:/srv"] {
            assert_eq!(parts(bad), None, "{bad}");
        }
    }
}
