//! The one table of reason codes: why a connection stays on, or goes back to, the kernel lane.
//!
//! Log lines, reports, `sdp stat` and the documentation (`docs/reason-codes.md`, checked against
//! this table by a test) all take their words from here. Codes are stable: a new reason gets a new
//! number, a retired one keeps its own. Readers must tolerate codes that they do not know. The
//! numbers that are missing (24, 29, 37, 41 to 43) were given to reasons that the library never
//! gives; they are not given again.

/// Upper bound of reason codes, exclusive; pages have this many counters.
pub const MAX_REASONS: usize = 64;

macro_rules! reasons {
    ($($code:literal $variant:ident $word:literal $what:literal $advice:literal;)*) => {
        /// Why a connection is not on an SDP lane.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Reason {
            $(#[doc = $what] $variant = $code,)*
        }

        impl Reason {
            /// Every reason, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The reason with this code, if this version knows it.
            pub const fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The kebab-case word that users see.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// One sentence: the event.
            pub const fn what(self) -> &'static str {
                match self { $(Self::$variant => $what,)* }
            }

            /// One sentence: how the user can change it, if at all.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$variant => $advice,)* }
            }
        }

        // A code beyond the table would have no counter.
        $(const _: () = assert!($code < MAX_REASONS);)*
    };
}

impl Reason {
    /// The number of the code.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Whether a connection on TCP for this reason is odd: somebody may have to mend something.
    /// Not odd are reasons that lie in what the program or its peer does, or in a rule.
    pub const fn is_odd(self) -> bool {
        matches!(
            self,
            Self::Sandbox
                | Self::UidUnmapped
                | Self::NoProc
                | Self::NoMemory
                | Self::NoDescriptors
                | Self::PeerRefused
                | Self::ProtocolViolation
                | Self::Limit
                | Self::HandoverStuck
                | Self::VersionMismatch
                | Self::MemLock
                | Self::LaneLost
                | Self::NoMeetingPlace
                | Self::NoProof
        )
    }

    /// The reason that users write as `word`.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|r| r.word() == word)
    }
}

reasons! {
    0 TooYoung "too-young"
        "The connection has not carried enough yet to be worth an SDP lane."
        "Nothing; or lower promote_calls and promote_bytes.";
    1 PeerNotListening "peer-not-listening"
        "No library answered at the other end: it has none, calls the kernel itself (static, Go), or may not or will not attach a lane."
        "Look at the other end (sdp stat, sdp doctor --pid): the library, its rules, and of a service RestrictAddressFamilies without AF_UNIX, PrivateUsers, or another namespace.";
    2 RuleTcp "rule-tcp"
        "A rule of libsdp.conf says tcp for this connection."
        "See which one with: sdp explain PROGRAM ADDRESS:PORT.";
    3 RemotePeer "remote-peer"
        "The other end is not in this network namespace: in a container without a common directory, or on another host, which no fabric reaches (no RDMA connection manager, or the tunable fabrics has no verbs)."
        "Containers of one host: mount one directory into both (docs/containers.md), or start both in one network namespace (one pod, or --network=container:); else nothing, the connection works over TCP.";
    4 Shared "shared"
        "Several processes, or threads with descriptors of their own, use the connection, one of them through an epoll set or in a way that cannot be followed."
        "Nothing; or wait with poll, or by blocking calls, where processes share it.";
    5 Exec "exec"
        "The connection was handed to a program image by exec."
        "Nothing.";
    6 Passed "passed"
        "The descriptor was passed to another process (SCM_RIGHTS)."
        "Nothing.";
    7 StandardDescriptor "standard-descriptor"
        "The connection was put on descriptor 0, 1 or 2, where stdio and children use it unseen."
        "Nothing.";
    8 Stdio "stdio"
        "fdopen made a stdio stream of the descriptor; its reads and writes cannot be seen."
        "Use read and write, or send and recv, in the program.";
    9 UrgentData "urgent-data"
        "Urgent (out-of-band) data is in use."
        "Nothing.";
    10 Sandbox "sandbox"
        "A filter of system calls (seccomp) forbids what a lane needs, or may."
        "Nothing, if the program itself installed it; a service's unit should allow AF_UNIX.";
    11 Privilege "privilege"
        "The process changed its ids, groups, capabilities, root directory or user namespace."
        "Nothing; connections opened afterwards may use SDP.";
    12 UidDiffers "uid-differs"
        "The process runs under another user id than its socket belongs to."
        "Nothing; connections made after the change of user may use SDP. The two ends may be of different users.";
    13 UidUnmapped "uid-unmapped"
        "The own user id has no mapping in this user namespace, or the other end's has none and the kernel (before 6.9) does not number processes."
        "Of a service: PrivateUsers=no in its unit (systemctl edit); of containers: map the user ids of both ends in each.";
    14 NoProc "no-proc"
        "Neither sock_diag nor /proc can name the other end's socket."
        "Mount /proc in the container or jail.";
    15 NoMemory "no-memory"
        "Memory for a lane could not be had."
        "Raise the memory limit, or lower ring_bytes.";
    16 NoDescriptors "no-descriptors"
        "No descriptor number was free for the lane."
        "Raise the limit of open files (ulimit -n).";
    17 RendezvousBusy "rendezvous-busy"
        "Too many lanes were being set up at the same time."
        "Nothing; it is tried again.";
    18 PeerRefused "peer-refused"
        "The other end declined the lane."
        "Look at the reasons that the other process reports.";
    19 Inherited "inherited"
        "The process got the connection from somebody else and has not seen its whole life."
        "Nothing.";
    20 Splice "splice"
        "splice moves pages inside the kernel; a lane has none to move."
        "Nothing.";
    21 SignalDriven "signal-driven"
        "The descriptor asks for signals (O_ASYNC, F_SETOWN, F_SETSIG)."
        "Nothing.";
    22 ZeroCopyOption "zerocopy-option"
        "SO_ZEROCOPY with its notifications in the error queue is in use."
        "Nothing.";
    23 Aio "aio"
        "POSIX asynchronous I/O uses the descriptor from threads inside libc."
        "Nothing.";
    25 NotSole "not-sole"
        "Another process still holds the connection, so it may not be promoted."
        "Nothing; when the others close it, it may be promoted.";
    26 RingFull "ring-full"
        "The ring was full, and the socket is non-blocking or nobody could ring for room: the bytes went over the kernel lane."
        "Raise ring_bytes if it happens often.";
    27 ProtocolViolation "protocol-violation"
        "The other end broke the protocol."
        "Update the library at both ends; report it if it persists.";
    28 PeerGone "peer-gone"
        "The other end died or left without saying so."
        "Nothing.";
    30 Limit "limit"
        "A fixed bound of the library was reached (connections, offers, rows)."
        "Nothing; connections beyond the bound use TCP.";
    31 HandoverStuck "handover-stuck"
        "The other end did not take over the last bytes, or did not answer, in time, so a relay process does."
        "Nothing.";
    32 Orphaned "orphaned"
        "The other end was gone at a hand-over; its last bytes were kept for the new holder."
        "Nothing.";
    33 LowWatermark "low-watermark"
        "SO_RCVLOWAT is above one byte."
        "Nothing.";
    34 Namespace "namespace"
        "The network namespace of the process changed, or the two ends live in different ones."
        "Nothing.";
    35 VersionMismatch "version-mismatch"
        "The two ends run versions of the library that do not understand each other."
        "Use one version of libsdp.so on the host; restart old processes.";
    36 UnsuitableSocket "unsuitable-socket"
        "The socket is of a kind that lanes do not serve (not a plain stream, MPTCP, TLS offload, repair mode), or an option or call is in use that only the kernel can honour."
        "Nothing.";
    38 TestFlip "test-flip"
        "The tunable test_lane_flip switched the lane."
        "Unset test_lane_flip.";
    39 ShortLived "short-lived"
        "The connection ended before a lane was attached, although it had earned one."
        "Nothing.";
    40 Disabled "disabled"
        "No fabric is enabled, or the library switched itself off in this process."
        "Look at the tunable fabrics and at the log.";
    44 PeerSwitched "peer-switched"
        "The other end took its direction, or ours, off the SDP lane, for a reason of its own."
        "Look at the reasons that the other process reports.";
    45 UnseenSet "unseen-set"
        "The connection is in an epoll set that the library did not see made (kept over exec, received from another process, or one too many)."
        "Nothing; or make the set in the process that waits on it.";
    46 Translated "translated"
        "Addresses or ports are translated (NAT, a redirection) and do not name the other end."
        "Connect to the server's own address and port.";
    47 Reconnected "reconnected"
        "The program disconnected the socket (connect with AF_UNSPEC) to use it again."
        "Use a new socket for a new connection.";
    48 NoDevice "no-device"
        "No RDMA device has the address that the connection uses, or this process may not use it."
        "See sdp doctor and sdp devices.";
    49 MemLock "memlock"
        "The limit of locked memory (RLIMIT_MEMLOCK) leaves no room for a queue pair."
        "Raise ulimit -l to 8192 or more.";
    50 LaneLost "lane-lost"
        "The queue pair to the other host ended; the stream went on over TCP."
        "Look at the state of the port with sdp devices.";
    51 Credit "credit"
        "The other end made no room for a while, or the stream ends: the bytes went over TCP."
        "Nothing.";
    52 NoMeetingPlace "no-meeting-place"
        "The other end is not in this network namespace, and in the directory of rendezvous_dir no name can be made: it is missing, read-only, or not sticky."
        "Mount one directory with mode 1733 into both containers: docs/containers.md.";
    53 NoProof "no-proof"
        "The other end is not in this network namespace, and the first numbers of the connection could not be learnt: nothing was sent, the program uses the error queue, or net.core.tstamp_allow_data is 0."
        "See docs/containers.md.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_unique_kebab_case_and_found_again() {
        for (i, r) in Reason::ALL.iter().enumerate() {
            assert_eq!(Reason::from_code(u32::from(r.code())), Some(*r));
            assert_eq!(Reason::from_word(r.word()), Some(*r));
            assert!(r.word().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", r.word());
            assert!(!r.word().starts_with('-') && !r.word().ends_with('-'));
            assert!(r.what().ends_with('.') && r.advice().ends_with('.'), "{}", r.word());
            assert!(Reason::ALL[..i].iter().all(|o| o.word() != r.word() && o.code() < r.code()));
        }
        assert_eq!(Reason::from_code(MAX_REASONS as u32), None);
        assert_eq!(Reason::from_word("no-such-reason"), None);
    }
}
