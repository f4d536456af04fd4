//! Tunables: names, ranges, defaults, and how a value is read.
//!
//! One name everywhere: `option KEY VALUE` in the rule file, `SDP_KEY` in the environment (a key
//! that begins with `sdp_` is not doubled: `SDP_ZCOPY_THRESH`), `sdp run --set KEY=VALUE`. A bad
//! value changes nothing.

/// From how many bytes a transfer may be zero copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ZcopyThreshold {
    /// Learnt per connection, beginning with the fabric's own start value.
    Learnt,
    /// Never.
    Never,
    /// From this many bytes, at least [`MIN_ZCOPY`].
    Bytes(u32),
}

/// How long a receiver polls before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecvPoll {
    /// Learnt, at most 20 µs.
    Adaptive,
    /// Learnt, at most this many microseconds; 0 = sleep at once.
    AtMost(u32),
}

impl RecvPoll {
    /// Upper bound of a poll in microseconds.
    pub const fn limit_us(self) -> u32 {
        match self {
            Self::Adaptive => 20,
            Self::AtMost(us) => us,
        }
    }
}

/// The answer to a program that wants io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum IoUring {
    /// ENOSYS where the program is known to fall back cleanly, else as `Allow`.
    Auto,
    /// ENOSYS.
    Deny,
    /// Passed through.
    Allow,
}

/// What the ends of connections between containers, which meet in a directory, take each other's word
/// for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MeetingTrust {
    /// Every process that may write to the directory: all are one group.
    Group,
    /// Nobody: a token comes by the carrier before payload moves in a ring.
    Proof,
}

/// When a process reports its connections at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitReport {
    /// Never.
    Off,
    /// When something is odd: a connection was on TCP for a reason that can be mended.
    Auto,
    /// Always.
    Always,
}

/// A fabric, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FabricName {
    /// Shared memory on one host.
    Shm,
    /// RDMA through verbs.
    Verbs,
}

/// Which fabrics may be used, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fabrics(pub [Option<FabricName>; 2]);

impl Fabrics {
    /// Whether `fabric` may be used.
    pub fn has(&self, fabric: FabricName) -> bool {
        self.0.contains(&Some(fabric))
    }
}

/// Longest path of a directory.
pub const MAX_DIRECTORY: usize = 64;

/// The absolute path of a directory, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Directory {
    bytes: [u8; MAX_DIRECTORY],
    len: u8,
}

impl Directory {
    /// No directory.
    pub const NONE: Self = Self { bytes: [0; MAX_DIRECTORY], len: 0 };
    /// `/run/sdp`
    const DEFAULT: Self = {
        let mut directory = Self::NONE;
        let (head, _) = directory.bytes.split_at_mut(DEFAULT_DIRECTORY.len());
        head.copy_from_slice(DEFAULT_DIRECTORY);
        directory.len = DEFAULT_DIRECTORY.len() as u8;
        directory
    };

    /// The path; empty where there is none.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// From text.
    fn parse(value: &[u8]) -> Option<Self> {
        if value == b"none" {
            return Some(Self::NONE);
        }
        let is_path = value.starts_with(b"/") && !value.ends_with(b"/");
        // What separates the parts of a rule, of an environment and of a tool's request.
        let is_plain = value.iter().all(|byte| byte.is_ascii_graphic() && *byte != b';');
        if !is_path || !is_plain || value.len() > MAX_DIRECTORY {
            return None;
        }
        let mut directory = Self { len: value.len() as u8, ..Self::NONE };
        directory.bytes.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
        Some(directory)
    }
}

const DEFAULT_DIRECTORY: &[u8] = b"/run/sdp";

/// Smallest zero-copy threshold: a page.
pub const MIN_ZCOPY: u32 = 4096;
/// Largest zero-copy threshold.
pub const MAX_ZCOPY: u32 = 1 << 30;
/// Longest poll, µs.
pub const MAX_RECV_POLL_US: u32 = 1_000_000;
/// Longest silence before touched memory is given back, s.
pub const MAX_GIVE_BACK_S: u32 = 86_400;
/// Smallest ring, bytes.
pub const MIN_RING: u32 = 65_536;
/// Largest ring, bytes.
pub const MAX_RING: u32 = 4_194_304;

/// The values in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunables {
    /// `sdp_zcopy_thresh`: `learnt`, 0, or bytes from [`MIN_ZCOPY`] to [`MAX_ZCOPY`].
    pub zcopy_thresh: ZcopyThreshold,
    /// `recv_poll`: `adaptive`, or µs from 0 to [`MAX_RECV_POLL_US`].
    pub recv_poll: RecvPoll,
    /// `io_uring`: `auto`, `deny`, `allow`.
    pub io_uring: IoUring,
    /// `sdp_debug_level`: traces of control.
    pub debug_level: u32,
    /// `sdp_data_debug_level`: traces of data.
    pub data_debug_level: u32,
    /// `promote_calls`: successful data calls of a half that earn it an SDP lane.
    pub promote_calls: u32,
    /// `promote_bytes`: bytes of a half that earn it an SDP lane.
    pub promote_bytes: u32,
    /// `test_lane_flip`: seed for tests, 0 = off.
    pub test_lane_flip: u32,
    /// `ring_bytes`: per direction, a power of two from [`MIN_RING`] to [`MAX_RING`].
    pub ring_bytes: u32,
    /// `fabrics`: comma-separated `shm`, `verbs`; or `none`.
    pub fabrics: Fabrics,
    /// `give_back`: seconds of silence, 0 = never, at most [`MAX_GIVE_BACK_S`].
    pub give_back: u32,
    /// `keep_segments`: 1 = segments of connections that have ended are used again, 0 = not.
    pub keep_segments: u32,
    /// `rendezvous_dir`: an absolute path of at most [`MAX_DIRECTORY`] bytes, or `none`.
    pub rendezvous_dir: Directory,
    /// `rendezvous_trust`: `group`, `proof`.
    pub rendezvous_trust: MeetingTrust,
    /// `report`: `off`, `auto`, `always`.
    pub report: ExitReport,
}

/// Why a value was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetError {
    /// No tunable has this name.
    UnknownKey,
    /// The tunable with this key does not take this value.
    BadValue(&'static Key),
}

/// One tunable, for listings.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// Name in the rule file.
    pub name: &'static str,
    /// Name in the environment.
    pub env: &'static str,
    /// Default, as it would be written.
    pub default: &'static str,
    /// The values that it takes.
    pub range: &'static str,
    /// One line of meaning.
    pub meaning: &'static str,
}

/// Every tunable.
pub static KEYS: [Key; 15] = [
    Key {
        name: "sdp_zcopy_thresh",
        env: "SDP_ZCOPY_THRESH",
        default: "learnt",
        range: "learnt, 0 (never), or 4096 to 1073741824 bytes",
        meaning: "bytes from which a transfer may be zero copy",
    },
    Key {
        name: "recv_poll",
        env: "SDP_RECV_POLL",
        default: "adaptive",
        range: "adaptive (at most 20), or 0 to 1000000 microseconds",
        meaning: "longest poll of a receiver before it sleeps",
    },
    Key {
        name: "io_uring",
        env: "SDP_IO_URING",
        default: "auto",
        range: "auto, deny, allow",
        meaning: "what a program that asks for io_uring gets",
    },
    Key {
        name: "sdp_debug_level",
        env: "SDP_DEBUG_LEVEL",
        default: "0",
        range: "0 to 9",
        meaning: "engine traces of control",
    },
    Key {
        name: "sdp_data_debug_level",
        env: "SDP_DATA_DEBUG_LEVEL",
        default: "0",
        range: "0 to 9",
        meaning: "engine traces of data",
    },
    Key {
        name: "promote_calls",
        env: "SDP_PROMOTE_CALLS",
        default: "16",
        range: "0 to 4294967295",
        meaning: "data calls after which a connection is worth an SDP lane",
    },
    Key {
        name: "promote_bytes",
        env: "SDP_PROMOTE_BYTES",
        default: "65536",
        range: "0 to 4294967295",
        meaning: "bytes after which a connection is worth an SDP lane",
    },
    Key {
        name: "test_lane_flip",
        env: "SDP_TEST_LANE_FLIP",
        default: "0",
        range: "0 (off) to 4294967295",
        meaning: "for tests: seed for switching lanes at random positions",
    },
    Key {
        name: "ring_bytes",
        env: "SDP_RING_BYTES",
        default: "1048576",
        range: "a power of two from 65536 to 4194304",
        meaning: "bytes of a shared-memory ring, per direction",
    },
    Key {
        name: "fabrics",
        env: "SDP_FABRICS",
        default: "shm,verbs",
        range: "shm, verbs, both with a comma in order of preference, or none",
        meaning: "fabrics that may be used",
    },
    Key {
        name: "give_back",
        env: "SDP_GIVE_BACK",
        default: "60",
        range: "0 (never) to 86400 seconds",
        meaning: "silence after which memory that bulk traffic touched is given back",
    },
    Key {
        name: "keep_segments",
        env: "SDP_KEEP_SEGMENTS",
        default: "1",
        range: "0 (no), 1 (yes)",
        meaning: "whether two processes use segments of connections that have ended again",
    },
    Key {
        name: "rendezvous_dir",
        env: "SDP_RENDEZVOUS_DIR",
        default: "/run/sdp",
        range: "an absolute path of at most 64 bytes, or none",
        meaning: "directory in which connections between containers meet, if it is there",
    },
    Key {
        name: "rendezvous_trust",
        env: "SDP_RENDEZVOUS_TRUST",
        default: "group",
        range: "group, proof",
        meaning: "whether a token must come by TCP before payload, where ends meet in a directory",
    },
    Key {
        name: "report",
        env: "SDP_REPORT",
        default: "off",
        range: "off, auto (when something is odd), always",
        meaning: "line about its connections that a process logs when it exits",
    },
];

impl Tunables {
    /// Before any statement.
    pub const DEFAULT: Self = Self {
        zcopy_thresh: ZcopyThreshold::Learnt,
        recv_poll: RecvPoll::Adaptive,
        io_uring: IoUring::Auto,
        debug_level: 0,
        data_debug_level: 0,
        promote_calls: 16,
        promote_bytes: 65_536,
        test_lane_flip: 0,
        ring_bytes: 1_048_576,
        fabrics: Fabrics([Some(FabricName::Shm), Some(FabricName::Verbs)]),
        give_back: 60,
        keep_segments: 1,
        rendezvous_dir: Directory::DEFAULT,
        rendezvous_trust: MeetingTrust::Group,
        report: ExitReport::Off,
    };

    /// Sets the tunable `key` (as in the rule file) from text.
    ///
    /// # Errors
    /// The value stays as it was.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), SetError> {
        let key = KEYS.iter().find(|k| k.name.as_bytes() == key).ok_or(SetError::UnknownKey)?;
        self.assign(key, value).ok_or(SetError::BadValue(key))
    }

    /// Takes one environment entry `NAME=VALUE`. `None` when it is not a tunable's.
    pub fn set_from_env(&mut self, entry: &[u8]) -> Option<Result<(), SetError>> {
        if !entry.starts_with(b"SDP_") {
            return None;
        }
        let equals = entry.iter().position(|b| *b == b'=')?;
        let name = entry.get(..equals)?;
        let key = KEYS.iter().find(|k| k.env.as_bytes() == name)?;
        let value = entry.get(equals.wrapping_add(1)..)?;
        if key.name == "report" && value.contains(&b';') {
            return None; // the place where `sdp run` takes pages in
        }
        Some(self.assign(key, value).ok_or(SetError::BadValue(key)))
    }

    /// The value of a tunable as it would be written, byte by byte.
    pub fn write_value(&self, key: &Key, mut out: impl FnMut(u8)) {
        let mut word = |text: &str| text.bytes().for_each(&mut out);
        let fabric = |fabric: FabricName| match fabric {
            FabricName::Shm => "shm",
            FabricName::Verbs => "verbs",
        };
        let number = match key.name {
            "sdp_zcopy_thresh" => match self.zcopy_thresh {
                ZcopyThreshold::Learnt => return word("learnt"),
                ZcopyThreshold::Never => 0,
                ZcopyThreshold::Bytes(bytes) => bytes,
            },
            "recv_poll" => match self.recv_poll {
                RecvPoll::Adaptive => return word("adaptive"),
                RecvPoll::AtMost(us) => us,
            },
            "io_uring" => {
                return word(match self.io_uring {
                    IoUring::Auto => "auto",
                    IoUring::Deny => "deny",
                    IoUring::Allow => "allow",
                });
            }
            "rendezvous_trust" => {
                return word(match self.rendezvous_trust {
                    MeetingTrust::Group => "group",
                    MeetingTrust::Proof => "proof",
                });
            }
            "report" => {
                return word(match self.report {
                    ExitReport::Off => "off",
                    ExitReport::Auto => "auto",
                    ExitReport::Always => "always",
                });
            }
            "fabrics" => {
                return match self.fabrics.0 {
                    [None, None] => word("none"),
                    [Some(one), None] | [None, Some(one)] => word(fabric(one)),
                    [Some(first), Some(second)] => {
                        word(fabric(first));
                        word(",");
                        word(fabric(second));
                    }
                };
            }
            "rendezvous_dir" => {
                let path = self.rendezvous_dir.as_bytes();
                let shown: &[u8] = if path.is_empty() { b"none" } else { path };
                return shown.iter().copied().for_each(out);
            }
            "sdp_debug_level" => self.debug_level,
            "sdp_data_debug_level" => self.data_debug_level,
            "promote_calls" => self.promote_calls,
            "promote_bytes" => self.promote_bytes,
            "test_lane_flip" => self.test_lane_flip,
            "ring_bytes" => self.ring_bytes,
            "give_back" => self.give_back,
            "keep_segments" => self.keep_segments,
            _ => return,
        };
        let (mut digits, mut rest, mut used) = ([0u8; 10], number, 0usize);
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            used = used.wrapping_add(1);
            if rest == 0 {
                break;
            }
        }
        let from = digits.len().wrapping_sub(used);
        digits.get(from..).unwrap_or(&[]).iter().copied().for_each(out);
    }

    /// Whether a tunable has its default.
    pub fn is_default(&self, key: &Key) -> bool {
        let mut default = key.default.bytes();
        let mut is_equal = true;
        self.write_value(key, |byte| is_equal &= default.next() == Some(byte));
        is_equal && default.next().is_none()
    }

    fn assign(&mut self, key: &Key, value: &[u8]) -> Option<()> {
        let number = |low: u32, high: u32| {
            crate::addr::parse_int(value).filter(|n| (low..=high).contains(n))
        };
        match key.name {
            "sdp_zcopy_thresh" => {
                self.zcopy_thresh = match value {
                    b"learnt" => ZcopyThreshold::Learnt,
                    b"0" => ZcopyThreshold::Never,
                    _ => ZcopyThreshold::Bytes(number(MIN_ZCOPY, MAX_ZCOPY)?),
                }
            }
            "recv_poll" => {
                self.recv_poll = match value {
                    b"adaptive" => RecvPoll::Adaptive,
                    _ => RecvPoll::AtMost(number(0, MAX_RECV_POLL_US)?),
                }
            }
            "io_uring" => {
                self.io_uring = match value {
                    b"auto" => IoUring::Auto,
                    b"deny" => IoUring::Deny,
                    b"allow" => IoUring::Allow,
                    _ => return None,
                }
            }
            "sdp_debug_level" => self.debug_level = number(0, 9)?,
            "sdp_data_debug_level" => self.data_debug_level = number(0, 9)?,
            "promote_calls" => self.promote_calls = number(0, u32::MAX)?,
            "promote_bytes" => self.promote_bytes = number(0, u32::MAX)?,
            "test_lane_flip" => self.test_lane_flip = number(0, u32::MAX)?,
            "ring_bytes" => {
                self.ring_bytes = number(MIN_RING, MAX_RING).filter(|n| n.is_power_of_two())?;
            }
            "fabrics" => self.fabrics = parse_fabrics(value)?,
            "give_back" => self.give_back = number(0, MAX_GIVE_BACK_S)?,
            "keep_segments" => self.keep_segments = number(0, 1)?,
            "rendezvous_dir" => self.rendezvous_dir = Directory::parse(value)?,
            "rendezvous_trust" => {
                self.rendezvous_trust = match value {
                    b"group" => MeetingTrust::Group,
                    b"proof" => MeetingTrust::Proof,
                    _ => return None,
                }
            }
            "report" => {
                self.report = match value {
                    b"off" => ExitReport::Off,
                    b"auto" => ExitReport::Auto,
                    b"always" => ExitReport::Always,
                    _ => return None,
                }
            }
            _ => return None,
        }
        Some(())
    }
}

fn parse_fabrics(value: &[u8]) -> Option<Fabrics> {
    let mut fabrics = Fabrics([None; 2]);
    if value == b"none" {
        return Some(fabrics);
    }
    for name in value.split(|b| *b == b',') {
        let fabric = match name.trim_ascii() {
            b"shm" => FabricName::Shm,
            b"verbs" => FabricName::Verbs,
            _ => return None,
        };
        if fabrics.has(fabric) {
            return None;
        }
        *fabrics.0.iter_mut().find(|f| f.is_none())? = Some(fabric);
    }
    Some(fabrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_defaults_are_the_defaults() {
        for key in &KEYS {
            let mut t = Tunables::DEFAULT;
            t.set(key.name.as_bytes(), key.default.as_bytes()).expect(key.name);
            assert_eq!(t, Tunables::DEFAULT, "{}", key.name);
            let upper = key.name.to_uppercase();
            let env = if upper.starts_with("SDP_") { upper } else { format!("SDP_{upper}") };
            assert_eq!(key.env, env);
            let entry = format!("{env}={}", key.default);
            assert_eq!(t.set_from_env(entry.as_bytes()), Some(Ok(())));
        }
    }

    #[test]
    fn values_are_written_as_they_are_read() {
        let mut all: Vec<_> = KEYS.iter().map(|key| (key.name, key.default)).collect();
        all.extend([
            ("sdp_zcopy_thresh", "0"),
            ("sdp_zcopy_thresh", "1073741824"),
            ("recv_poll", "0"),
            ("recv_poll", "1000000"),
            ("io_uring", "deny"),
            ("io_uring", "allow"),
            ("fabrics", "none"),
            ("fabrics", "verbs"),
            ("fabrics", "verbs,shm"),
            ("promote_bytes", "4294967295"),
            ("sdp_debug_level", "9"),
            ("give_back", "10"),
            ("rendezvous_dir", "none"),
            ("rendezvous_dir", "/run/sdp/team-a"),
            ("rendezvous_trust", "proof"),
            ("report", "auto"),
            ("report", "always"),
        ]);
        for (name, value) in all {
            let mut t = Tunables::DEFAULT;
            t.set(name.as_bytes(), value.as_bytes()).expect(name);
            let key = KEYS.iter().find(|k| k.name == name).expect(name);
            let mut written = Vec::new();
            t.write_value(key, |byte| written.push(byte));
            assert_eq!(String::from_utf8(written).unwrap(), value, "{name}");
        }
    }

    #[test]
    fn bad_values_change_nothing() {
        for (key, value) in [
            ("sdp_zcopy_thresh", "4095"),
            ("sdp_zcopy_thresh", "1073741825"),
            ("recv_poll", "-1"),
            ("recv_poll", "1000001"),
            ("io_uring", "maybe"),
            ("sdp_debug_level", "10"),
            ("promote_calls", ""),
            ("promote_bytes", "4294967296"),
            ("test_lane_flip", "0x1"),
            ("ring_bytes", "65537"),
            ("ring_bytes", "32768"),
            ("ring_bytes", "8388608"),
            ("fabrics", "shm,shm"),
            ("fabrics", "tcp"),
            ("fabrics", ""),
            ("give_back", "86401"),
            ("keep_segments", "2"),
            ("rendezvous_trust", "all"),
            ("report", "on"),
            ("rendezvous_dir", ""),
            ("rendezvous_dir", "run/sdp"),
            ("rendezvous_dir", "/run/sdp/"),
            ("rendezvous_dir", "/run/s d p"),
            ("rendezvous_dir", "/run;sdp"),
            (
                "rendezvous_dir",
                "/1/3456789012345678901234567890123456789012345678901234567890/2345",
            ),
        ] {
            let mut t = Tunables::DEFAULT;
            let result = t.set(key.as_bytes(), value.as_bytes());
            assert!(matches!(result, Err(SetError::BadValue(k)) if k.name == key), "{key} {value}");
            assert_eq!(t, Tunables::DEFAULT);
        }
        let mut t = Tunables::DEFAULT;
        assert_eq!(t.set(b"zcopy", b"1"), Err(SetError::UnknownKey));
        assert_eq!(t.set_from_env(b"SDP_REPORT=sdp-run/1/2;/tmp/x;3"), None);
        assert_eq!(t.set_from_env(b"SDP_RING_BYTES"), None);
        assert_eq!(t.set_from_env(b"HOME=/"), None);
    }

    #[test]
    fn values_are_taken() {
        let mut t = Tunables::DEFAULT;
        t.set(b"sdp_zcopy_thresh", b"0").unwrap();
        assert_eq!(t.zcopy_thresh, ZcopyThreshold::Never);
        t.set(b"sdp_zcopy_thresh", b"65536").unwrap();
        assert_eq!(t.zcopy_thresh, ZcopyThreshold::Bytes(65_536));
        t.set(b"recv_poll", b"700").unwrap();
        assert_eq!(t.recv_poll.limit_us(), 700);
        t.set(b"fabrics", b"verbs").unwrap();
        assert!(!t.fabrics.has(FabricName::Shm));
        t.set(b"fabrics", b"none").unwrap();
        assert!(!t.fabrics.has(FabricName::Verbs));
        assert!(t.set_from_env(b"SDP_IO_URING=deny").unwrap().is_ok());
        assert_eq!(t.io_uring, IoUring::Deny);
    }
}
