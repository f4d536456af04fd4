//! Options of `IPPROTO_TCP`.

use libc::c_int;

use super::{KERNEL, Row, UNSUITABLE, Verdict, WORKS, When, hands_over, leaves};

/// `TCP_ZEROCOPY_RECEIVE`: asking for it takes bytes out of the TCP socket.
pub(super) const ZEROCOPY_RECEIVE: c_int = 35;
pub(crate) const INQ: c_int = 36;
pub(super) const TX_DELAY: c_int = 37;

table! {
    /// `IPPROTO_TCP`.
    OPTIONS set;
    [TCP_NODELAY 1, TCP_CORK 3] WORKS, "a lane holds nothing back: there is nothing to do";
    [TCP_QUICKACK 12, TCP_MAXSEG 2, TCP_SYNCNT 7, TCP_LINGER2 8, TCP_WINDOW_CLAMP 10, TCP_CONGESTION 13,
     TCP_THIN_LINEAR_TIMEOUTS 16, TCP_THIN_DUPACK 17, TCP_TIMESTAMP 24, TCP_COOKIE_TRANSACTIONS 15,
     TCP_RTO_MAX_MS 44, TCP_RTO_MIN_US 45, TCP_DELACK_MAX_US 46]
        KERNEL, "of the TCP socket's segments";
    [TCP_KEEPIDLE 4, TCP_KEEPINTVL 5, TCP_KEEPCNT 6] KERNEL, "of the TCP socket, which every connection keeps";
    [TCP_USER_TIMEOUT 18] KERNEL, "what lies unread in a ring does not count";
    [TCP_NOTSENT_LOWAT 25] KERNEL, "of the TCP socket; the ring has its own size (`ring_bytes`)";
    [TCP_DEFER_ACCEPT 9, TCP_FASTOPEN 23, TCP_FASTOPEN_CONNECT 30, TCP_FASTOPEN_KEY 33, TCP_FASTOPEN_NO_COOKIE 34,
     TCP_SAVE_SYN 27, TCP_SAVED_SYN 28]
        KERNEL, "of connections that begin";
    [TCP_INFO 11, TCP_CC_INFO 26, TCP_IS_MPTCP 43] KERNEL, "only asked for; counts bytes of the TCP socket and wake bytes";
    [TCP_MD5SIG 14, TCP_MD5SIG_EXT 32, TCP_AO_ADD_KEY 38, TCP_AO_DEL_KEY 39]
        leaves(UNSUITABLE, When::Always), "a lane signs nothing";
    [TCP_AO_INFO 40, TCP_AO_REPAIR 42] leaves(UNSUITABLE, When::Always), "";
    [TCP_AO_GET_KEYS 41] KERNEL, "only asked for";
    [TCP_REPAIR 19, TCP_REPAIR_QUEUE 20, TCP_QUEUE_SEQ 21, TCP_REPAIR_OPTIONS 22, TCP_REPAIR_WINDOW 29]
        hands_over(UNSUITABLE, When::Always), "";
    [TCP_ULP 31] hands_over(UNSUITABLE, When::Always), "TLS offload, and what else the kernel puts on a stream";
    [TCP_ZEROCOPY_RECEIVE 35] hands_over(UNSUITABLE, When::Always), "when it is asked for: it takes bytes";
    [TCP_INQ 36, TCP_CM_INQ 36] WORKS, "bytes of both lanes are counted";
    [TCP_TX_DELAY 37] leaves(UNSUITABLE, When::Set), "a lane does not wait";
}
