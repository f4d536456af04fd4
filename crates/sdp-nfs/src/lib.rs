//! NFS over RDMA: a gateway in front of any NFS server.
//!
//! Clients speak RPC-over-RDMA to it (`sdp-rpcrdma`, over `sdp-fabric-verbs`), and it speaks RPC on
//! TCP to the server. What a call means is the server's affair: the gateway moves bytes, keeps
//! XIDs, and answers nothing itself but errors of the transport.

/// Writes a line to stderr, which may be a pipe that nobody reads any more.
macro_rules! say {
    ($($what:tt)*) => {{
        use std::io::Write as _;
        // In one piece: others write there too.
        let line = format!($($what)*) + "\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
    }};
}

pub mod allow;
pub mod areas;
mod bytes;
pub mod client;
pub mod control;
pub mod counts;
pub mod gateway;
pub mod local;
pub mod mount;
pub mod notify;
pub mod null;
pub mod null_rdma;
pub mod poll;
pub mod pool;
pub mod proxy;
pub mod records;
