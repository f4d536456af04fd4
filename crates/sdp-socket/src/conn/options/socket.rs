//! Options of `SOL_SOCKET`.

use libc::c_int;
use sdp_stats::Reason;

use super::{KERNEL, Row, UNSUITABLE, Verdict, WORKS, When, hands_over, leaves};

/// As the kernel names them; the C library's names depend on the size of its times.
pub(super) const TIMESTAMP_OLD: c_int = 29;
pub(super) const TIMESTAMPNS_OLD: c_int = 35;
pub(super) const TIMESTAMPING_OLD: c_int = 37;
pub(super) const TIMESTAMP_NEW: c_int = 63;
pub(super) const TIMESTAMPNS_NEW: c_int = 64;

table! {
    /// `SOL_SOCKET`.
    OPTIONS set;
    [SO_DEBUG 1, SO_DONTROUTE 5, SO_PRIORITY 12, SO_MARK 36, SO_INCOMING_CPU 49, SO_TXREHASH 74]
        KERNEL, "of the TCP socket's packets";
    [SO_REUSEADDR 2, SO_REUSEPORT 15, SO_ATTACH_REUSEPORT_CBPF 51, SO_ATTACH_REUSEPORT_EBPF 52,
     SO_DETACH_REUSEPORT_BPF 68]
        KERNEL, "of addresses and listeners";
    [SO_TYPE 3, SO_PROTOCOL 38, SO_DOMAIN 39, SO_ACCEPTCONN 30, SO_COOKIE 57, SO_NETNS_COOKIE 71,
     SO_INCOMING_NAPI_ID 56, SO_BPF_EXTENSIONS 48, SO_PEERNAME 28]
        KERNEL, "only asked for";
    [SO_ERROR 4] WORKS, "the socket's error; no later call tells it again";
    [SO_MEMINFO 55] KERNEL, "counts the TCP socket's memory, not the ring's";
    [SO_SNDBUF 7, SO_RCVBUF 8, SO_SNDBUFFORCE 32, SO_RCVBUFFORCE 33, SO_BUF_LOCK 72, SO_RESERVE_MEM 73]
        KERNEL, "of the TCP socket; the ring has its own size (`ring_bytes`)";
    [SO_KEEPALIVE 9] KERNEL, "of the TCP socket, which every connection keeps";
    [SO_LINGER 13] WORKS, "a close that is to reset does";
    [SO_RCVTIMEO 20, SO_RCVTIMEO_OLD 20, SO_RCVTIMEO_NEW 66, SO_SNDTIMEO 21, SO_SNDTIMEO_OLD 21, SO_SNDTIMEO_NEW 67]
        WORKS, "waits on the lane end by it";
    [SO_OOBINLINE 10] WORKS, "urgent data comes over TCP, which its sender goes back to; no receive call passes the mark";
    [SO_RCVLOWAT 18] hands_over(Reason::LowWatermark, When::AboveOne), "";
    [SO_SNDLOWAT 19] KERNEL, "refused by the kernel";
    [SO_BROADCAST 6, SO_NO_CHECK 11, SO_BSDCOMPAT 14, SO_WIFI_STATUS 41, SCM_WIFI_STATUS 41, SO_NOFCS 43,
     SO_RXQ_OVFL 40, SO_RCVMARK 75, SO_RCVPRIORITY 82, SO_TXTIME 61, SCM_TXTIME 61]
        KERNEL, "without effect on a TCP socket";
    [SO_PASSCRED 16, SO_PEERCRED 17, SO_PEERSEC 31, SO_PASSSEC 34, SO_PEERGROUPS 59, SO_PASSPIDFD 76, SO_PEERPIDFD 77,
     SO_PASSRIGHTS 83, SO_INQ 84]
        KERNEL, "of AF_UNIX, or of a security module";
    [SO_SECURITY_AUTHENTICATION 22, SO_SECURITY_ENCRYPTION_TRANSPORT 23, SO_SECURITY_ENCRYPTION_NETWORK 24]
        KERNEL, "refused by the kernel";
    [SO_BINDTODEVICE 25, SO_BINDTOIFINDEX 62]
        WORKS, "such a connection meets its other end by name, not by a segment of a former one";
    [SO_ATTACH_FILTER 26, SO_GET_FILTER 26, SO_ATTACH_BPF 50]
        leaves(UNSUITABLE, When::Always), "the filter sees packets of the TCP socket only";
    [SO_DETACH_FILTER 27, SO_DETACH_BPF 27, SO_LOCK_FILTER 44] KERNEL, "nothing without a filter";
    [SO_TIMESTAMP 29, SO_TIMESTAMP_OLD 29, SCM_TIMESTAMP 29, SO_TIMESTAMP_NEW 63,
     SO_TIMESTAMPNS 35, SO_TIMESTAMPNS_OLD 35, SCM_TIMESTAMPNS 35, SO_TIMESTAMPNS_NEW 64]
        WORKS, "until a `recvmsg` has room for control data: then TCP, for good (`unsuitable-socket`)";
    [SO_TIMESTAMPING 37, SO_TIMESTAMPING_OLD 37, SCM_TIMESTAMPING 37, SO_TIMESTAMPING_NEW 65]
        hands_over(UNSUITABLE, When::Set), "bytes of a ring have no time of arrival";
    [SCM_TIMESTAMPING_OPT_STATS 54, SCM_TIMESTAMPING_PKTINFO 58, SCM_TS_OPT_ID 81]
        KERNEL, "control messages that come with SO_TIMESTAMPING";
    [SO_PEEK_OFF 42] hands_over(UNSUITABLE, When::NotNegative), "the offset is the kernel's, and counts its bytes";
    [SO_SELECT_ERR_QUEUE 45] KERNEL, "of the TCP socket's error queue";
    [SO_BUSY_POLL 46, SO_PREFER_BUSY_POLL 69, SO_BUSY_POLL_BUDGET 70, SO_CNX_ADVICE 53]
        KERNEL, "of network devices and routes";
    [SO_MAX_PACING_RATE 47] leaves(UNSUITABLE, When::Limited), "a lane knows no rate";
    [SO_ZEROCOPY 60] leaves(Reason::ZeroCopyOption, When::Set), "";
    [SO_DEVMEM_LINEAR 78, SCM_DEVMEM_LINEAR 78, SO_DEVMEM_DMABUF 79, SCM_DEVMEM_DMABUF 79, SO_DEVMEM_DONTNEED 80]
        KERNEL, "of devices that receive into their own memory, which no loopback connection has";
}
