//! `sdp nfs mount`: mounts by RDMA where the server answers by it, else by TCP, and says which and
//! why.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use clap::Args;
use sdp_nfs::{gateway, null, null_rdma};

use crate::{Failure, ping};

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

/// How it is reached: the transport's options, and why.
fn choose(host: &str, options: &Options) -> Result<(String, String), Failure> {
    let version = if options.nfs_version == "3" { 3 } else { 4 };
    let rdma = ping::endpoint_or(host, options.port)?;
    let by_rdma = match null_rdma::ask(rdma, None, null::NFS, version) {
        Ok((device, answer)) => judged(answer, version).map(|()| device),
        Err(why) => Err(why.to_string()),
    };
    match by_rdma {
        Ok(device) => {
            // The service that gives version 3 its root is on TCP.
            let more = if version == 3 { ",mountproto=tcp" } else { "" };
            let words = format!("proto=rdma,port={}{more}", options.port);
            Ok((words, format!("by RDMA: {rdma} answers {device}")))
        }
        Err(no_rdma) => {
            let tcp = SocketAddr::new(rdma.ip(), gateway::SERVER_PORT);
            let answer = null::ask(tcp, null::NFS, version);
            let judged = answer.map_err(|why| why.to_string()).and_then(|a| judged(a, version));
            let no_tcp = match judged {
                Ok(()) => {
                    let why = format!("by TCP: {tcp} answers; not by RDMA, port {}", options.port);
                    return Ok(("proto=tcp".to_string(), format!("{why}: {no_rdma}")));
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
    let Some((host, _)) = parts(&options.what) else {
        return Err(Failure::new(&options.what, "it is not SERVER:PATH, with a path from /"));
    };
    let (transport, why) = choose(host, options)?;
    eprintln!("sdp nfs mount: {why}");
    let mut words = format!("vers={},{transport},hard", options.nfs_version);
    if let Some(more) = &options.options {
        words = format!("{words},{more}");
    }
    if options.print {
        let dir = options.dir.display();
        crate::print(&format!("mount -t nfs -o {words} {} {dir}\n", options.what));
        return Ok(());
    }
    let mut command = Command::new("mount");
    command.args(["-t", "nfs", "-o", &words, &options.what]).arg(&options.dir);
    let status = command.status().map_err(|e| Failure::new("mount", e))?;
    if status.success() { Ok(()) } else { Err(Failure::new("mount", status)) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
