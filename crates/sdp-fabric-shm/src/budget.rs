//! What segments may take of what the program, or its group, has few of: mappings, address space, locked memory, and the
//! memory of a control group.
//!
//! TCP is the answer before the last of any of them is used, so each is a budget with a reserve. Of what the program itself
//! has not used lanes take half at most, and never the last [`MAPPINGS_KEPT`] mappings or [`SPACE_KEPT`] bytes of address
//! space. Of the memory of a group all its processes together take a quarter, as if each of their rings were full: a socket
//! buffer that meets the limit waits, a page of a ring that meets it may get the group killed. In the second half of it
//! rings have [`SMALL`] bytes.
//!
//! The kernel's tables are read once for many segments: [`LOOK_MOST`] where there is plenty, fewer the less is left; and
//! what they said holds for a hundred times as long as the look took, so that looks take no more than a hundredth of a CPU.

use core::{
    ffi::CStr,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use sdp_sys::{
    kernel::{self, zeroed},
    procfs,
    time::monotonic_ns,
};

use crate::{
    refusal::Refusal,
    segment::{self, SEGMENT_NAME},
};

/// Bytes of a ring where memory is scarce.
pub const SMALL: u32 = 64 << 10;
/// Segments between two looks.
const LOOK_MOST: u64 = 1024;
/// The same, where little is left.
const LOOK_LEAST: u64 = 16;
/// Mappings that are the program's in any case.
const MAPPINGS_KEPT: u64 = 256;
/// The same for address space: the stacks of some threads.
const SPACE_KEPT: u64 = 32 << 20;
/// The kernel's limit of mappings, where it does not say.
const MAPPINGS: u64 = 65_530;
/// The part of a group's memory that is for rings.
const OF_GROUP: u64 = 4;
/// The outcome of a look holds for so many times as long as it took, …
const HOLDS_FOR: u64 = 100;
/// … a second at most; a refusal for a fifth of that.
const HOLDS_MOST_NS: u64 = 1_000_000_000;

/// Segments until the next look, …
static LEFT: AtomicU32 = AtomicU32::new(0);
/// … their rings' most bytes, …
static MOST: AtomicU32 = AtomicU32::new(0);
/// … and what was wanted at the look.
static WANTED: AtomicU32 = AtomicU32::new(0);
/// Until when that holds.
static UNTIL: AtomicU64 = AtomicU64::new(0);
/// No look before this time.
static REFUSED_UNTIL: AtomicU64 = AtomicU64::new(0);

/// One of the segments until the next look. False: it is time for one.
fn takes_one() -> bool {
    monotonic_ns() < UNTIL.load(Ordering::Relaxed)
        && LEFT
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok()
}

/// Bytes of each ring of a segment that is about to be made: `wanted` at most.
///
/// # Errors
/// [`Refusal::NoMemory`]: what is left is the program's.
pub fn ring_bytes(wanted: u32) -> Result<u32, Refusal> {
    if WANTED.load(Ordering::Relaxed) != wanted || !takes_one() {
        look(wanted)?;
    }
    Ok(wanted.min(MOST.load(Ordering::Relaxed)))
}

/// Whether a segment with rings of so many bytes, which the other end made, may be mapped.
///
/// # Errors
/// As for [`ring_bytes`]; [`Refusal::Untrusted`]: no segment has such rings.
pub fn accept(ring_bytes: u32) -> Result<(), Refusal> {
    let len = segment::segment_len(ring_bytes).ok_or(Refusal::Untrusted)? as u64;
    // Where rings of [`MOST`] fit, smaller ones do.
    if ring_bytes <= MOST.load(Ordering::Relaxed) && takes_one() {
        return Ok(());
    }
    let room = look(ring_bytes)?;
    // In the second half of a budget, too: who made it counts other segments.
    if room.bytes >= len { Ok(()) } else { Err(Refusal::NoMemory) }
}

#[cold]
fn look(wanted: u32) -> Result<Room, Refusal> {
    let begun = monotonic_ns();
    if begun < REFUSED_UNTIL.load(Ordering::Relaxed) {
        return Err(Refusal::NoMemory);
    }
    let room = Room::now();
    let allotted = room.allots(wanted);
    let took = monotonic_ns().saturating_sub(begun);
    let holds = took.saturating_mul(HOLDS_FOR).min(HOLDS_MOST_NS);
    let Some((most, left)) = allotted else {
        REFUSED_UNTIL.store(begun.saturating_add(holds / 5), Ordering::Relaxed);
        LEFT.store(0, Ordering::Relaxed);
        return Err(Refusal::NoMemory);
    };
    WANTED.store(wanted, Ordering::Relaxed);
    MOST.store(most, Ordering::Relaxed);
    UNTIL.store(begun.saturating_add(holds), Ordering::Relaxed);
    LEFT.store(left.saturating_sub(1), Ordering::Relaxed);
    Ok(room)
}

/// What is left for segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    segments: u64,
    /// Bytes of segments, whatever their rings have.
    bytes: u64,
    /// Bytes until rings are [`SMALL`].
    ample: u64,
}

impl Room {
    fn now() -> Self {
        let mapped = mapped().unwrap_or_default();
        let most = number_in(c"/proc/sys/vm/max_map_count").unwrap_or(MAPPINGS);
        let segments = share(most, mapped.all, mapped.segments, MAPPINGS_KEPT);
        let mut bytes = u64::MAX;
        if let Some(limit) = soft_limit(libc::RLIMIT_AS) {
            bytes = bytes.min(share(limit, mapped.bytes, mapped.segment_bytes, SPACE_KEPT));
        }
        if let Some(limit) = soft_limit(libc::RLIMIT_MEMLOCK)
            && let Some(locked) = locked().filter(|locked| *locked <= limit)
            // `mlockall`, which locks segments, too; `mlock` of a key or a buffer does not.
            && locked != 0
            && locked >= mapped.bytes / 2
        {
            bytes = bytes.min(share(limit, locked, mapped.segment_bytes.min(locked), 0));
        }
        let mut ample = bytes;
        if let Some(group) = group::now() {
            let budget = group.budget().saturating_sub(mapped.segment_bytes);
            bytes = bytes.min(budget);
            ample = ample.min(budget.saturating_sub(group.budget() / 2));
        }
        Self { segments, bytes, ample }
    }

    /// Bytes of each ring, and how many segments with such rings until the next look.
    fn allots(self, wanted: u32) -> Option<(u32, u32)> {
        let small = wanted.min(SMALL);
        let sizes = [(wanted, self.ample), (small, self.bytes)];
        let (ring, fit) = sizes.into_iter().find_map(|(ring, bytes)| {
            let fit = bytes / segment::segment_len(ring)? as u64;
            (fit != 0).then_some((ring, fit))
        })?;
        let left = self.segments.min(fit);
        // Less and less between two looks, because the program goes on to take, too.
        let until = (left / 4).max(LOOK_LEAST).min(left).min(LOOK_MOST);
        (until != 0).then_some((ring, until as u32))
    }
}

/// What of `limit` lanes may take beyond `ours`, which is in `used`: half of what the program does not use, without the
/// last `kept`.
fn share(limit: u64, used: u64, ours: u64, kept: u64) -> u64 {
    let free = limit.saturating_sub(used.saturating_sub(ours));
    (free / 2).min(free.saturating_sub(kept)).saturating_sub(ours)
}

/// A process's mappings.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mappings {
    all: u64,
    bytes: u64,
    segments: u64,
    segment_bytes: u64,
}

impl Mappings {
    fn add(&mut self, line: &[u8]) {
        let Some((from, to)) = range(line) else { return };
        let len = to.saturating_sub(from);
        (self.all, self.bytes) = (self.all + 1, self.bytes.saturating_add(len));
        let name = SEGMENT_NAME.to_bytes();
        if line.windows(name.len()).any(|part| part == name) {
            self.segments += 1;
            self.segment_bytes = self.segment_bytes.saturating_add(len);
        }
    }
}

/// The addresses at the beginning of a line.
fn range(line: &[u8]) -> Option<(u64, u64)> {
    let mut words = line.split(|byte| matches!(byte, b'-' | b' ')).map(hexadecimal);
    Some((words.next()??, words.next()??))
}

fn hexadecimal(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0u64, |sum, byte| {
        let digit = char::from(*byte).to_digit(16)?;
        sum.checked_mul(16)?.checked_add(u64::from(digit))
    })
}

fn mapped() -> Option<Mappings> {
    let mut mappings = Mappings::default();
    each_line(c"/proc/self/maps", |line| mappings.add(line))?;
    Some(mappings)
}

/// Bytes that the process has locked.
fn locked() -> Option<u64> {
    let mut found = None;
    each_line(c"/proc/self/status", |line| {
        if let Some(rest) = line.strip_prefix(b"VmLck:") {
            found = first_number(rest);
        }
    })?;
    found?.checked_mul(1024)
}

/// The first number of a line.
fn first_number(line: &[u8]) -> Option<u64> {
    line.split(|byte| !byte.is_ascii_digit())
        .find(|word| !word.is_empty())
        .and_then(procfs::decimal)
}

/// `None`: there is none.
fn soft_limit(resource: u32) -> Option<u64> {
    let mut limit: libc::rlimit64 = zeroed();
    kernel::limit(resource, &mut limit).ok()?;
    (limit.rlim_cur != libc::RLIM64_INFINITY).then_some(limit.rlim_cur)
}

/// A file with one number; `None` also for one with another word.
fn number_in(path: &CStr) -> Option<u64> {
    let mut text = [0; 32];
    let file = procfs::open(path).ok()?;
    let len = procfs::read(file.raw(), &mut text).ok()?;
    procfs::decimal(text.get(..len)?.trim_ascii())
}

/// Calls `f` with each line of a text, of a long one with its beginning.
fn each_line(path: &CStr, mut f: impl FnMut(&[u8])) -> Option<()> {
    /// On the program's stack, twice where a line names a file with lines.
    const ROOM: usize = 512;
    let file = procfs::open(path).ok()?;
    let mut room = [0u8; ROOM];
    let mut kept = 0;
    loop {
        let len = procfs::read(file.raw(), room.get_mut(kept..)?).ok()?;
        if len == 0 {
            return Some(());
        }
        let filled = kept + len;
        let mut start = 0;
        while let Some(rest) = room.get(start..filled)
            && let Some(end) = rest.iter().position(|byte| *byte == b'\n')
        {
            f(rest.get(..end).unwrap_or(&[]));
            start += end + 1;
        }
        if start == 0 && filled == ROOM {
            f(&room);
            start = filled;
        }
        for at in start..filled {
            let byte = room.get(at).copied().unwrap_or(0);
            if let Some(to) = room.get_mut(at - start) {
                *to = byte;
            }
        }
        kept = filled - start;
    }
}

/// The memory control group, of either version.
mod group {
    use super::{CStr, OF_GROUP, each_line, first_number, number_in};

    /// The longest path that is looked at.
    const PATH: usize = 320;

    /// A group with a limit.
    #[derive(Debug, Clone, Copy)]
    pub(super) struct Group {
        /// The smallest limit.
        pub(super) limit: u64,
        /// Memory that does not come back when it is wanted.
        pub(super) used: u64,
        pub(super) processes: u64,
    }

    impl Group {
        /// Bytes of segments for one of its processes. Most segments are counted by two.
        pub(super) fn budget(self) -> u64 {
            let most = (self.limit / OF_GROUP).min(self.limit.saturating_sub(self.used) / 2);
            most / (self.processes.max(2)) * 2
        }
    }

    /// A path with an end, and room to go on.
    #[derive(Clone, Copy)]
    struct Path {
        bytes: [u8; PATH],
        len: usize,
    }

    impl Path {
        fn new(root: &[u8]) -> Option<Self> {
            let mut path = Self { bytes: [0; PATH], len: 0 };
            path.push(root)?;
            Some(path)
        }

        fn push(&mut self, more: &[u8]) -> Option<()> {
            // The last byte stays zero.
            let end = self.len.checked_add(more.len()).filter(|end| *end < PATH)?;
            self.bytes.get_mut(self.len..end)?.copy_from_slice(more);
            self.len = end;
            Some(())
        }

        /// The path of a file here.
        fn file<R>(mut self, name: &[u8], f: impl FnOnce(&CStr) -> R) -> Option<R> {
            self.push(name)?;
            Some(f(CStr::from_bytes_until_nul(&self.bytes).ok()?))
        }

        fn number(self, name: &[u8]) -> Option<u64> {
            self.file(name, number_in)?
        }

        /// To the group around it. `None`: it is the outermost.
        fn up(mut self, root: usize) -> Option<Self> {
            let inner = self.bytes.get(root..self.len)?;
            let at = root + inner.iter().rposition(|byte| *byte == b'/')?;
            self.bytes.get_mut(at..self.len)?.fill(0);
            self.len = at;
            Some(self)
        }
    }

    /// The group of the calling process, if it has a limit.
    pub(super) fn now() -> Option<Group> {
        let mut found: Option<Group> = None;
        each_line(c"/proc/self/cgroup", |line| {
            let mut fields = line.splitn(3, |byte| *byte == b':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return };
            let path = if path == b"/" { &[] } else { path };
            let is_memory = controllers.split(|byte| *byte == b',').any(|one| one == b"memory");
            let one = match controllers {
                [] => [&b"/sys/fs/cgroup"[..], b"/sys/fs/cgroup/unified"]
                    .into_iter()
                    .find_map(|root| second(root, path)),
                _ if is_memory => first(b"/sys/fs/cgroup/memory", path),
                _ => None,
            };
            if let Some(one) = one
                && found.is_none_or(|other| one.limit < other.limit)
            {
                found = Some(one);
            }
        })?;
        found
    }

    /// In a container without a namespace of groups of its own the path is the host's, and what is mounted is the
    /// container's.
    fn inner(root: &[u8], path: &[u8], known: &[u8]) -> Option<Path> {
        let mut whole = Path::new(root)?;
        whole.push(path)?;
        let is_there = whole.file(known, |file| sdp_sys::procfs::open(file).is_ok());
        if is_there == Some(true) { Some(whole) } else { Path::new(root) }
    }

    fn processes(group: Path) -> u64 {
        let mut count = 0;
        let _ = group.file(b"/cgroup.procs", |file| each_line(file, |_| count += 1));
        count
    }

    fn field(group: Path, names: &[&[u8]]) -> u64 {
        let mut sum = 0;
        let _ = group.file(b"/memory.stat", |file| {
            each_line(file, |line| {
                let mut words = line.split(|byte| *byte == b' ');
                if words.next().is_some_and(|word| names.contains(&word)) {
                    sum += first_number(words.next().unwrap_or(&[])).unwrap_or(0);
                }
            })
        });
        sum
    }

    /// Version 1: a group knows the smallest limit around it.
    fn first(root: &[u8], path: &[u8]) -> Option<Group> {
        /// What the kernel writes for "no limit" is a bit less than 2^63.
        const NONE: u64 = 1 << 62;
        let group = inner(root, path, b"/memory.stat")?;
        let limit = field(group, &[b"hierarchical_memory_limit"]);
        if limit == 0 || limit >= NONE {
            return None;
        }
        let used = field(group, &[b"total_rss", b"total_shmem"]);
        Some(Group { limit, used, processes: processes(group) })
    }

    /// Version 2: each group around it is asked.
    fn second(root: &[u8], path: &[u8]) -> Option<Group> {
        let own = inner(root, path, b"/cgroup.procs")?;
        let (mut at, mut least) = (Some(own), None::<(u64, Path)>);
        while let Some(group) = at {
            if let Some(limit) = group.number(b"/memory.max")
                && least.is_none_or(|(other, _)| limit < other)
            {
                least = Some((limit, group));
            }
            at = group.up(root.len());
        }
        let (limit, group) = least?;
        let used = field(group, &[b"anon", b"shmem"]);
        // A group around others has no processes of its own.
        Some(Group { limit, used, processes: processes(group).max(processes(own)) })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_path_ends_at_the_root() {
            let mut path = Path::new(b"/base").unwrap();
            path.push(b"/one/two").unwrap();
            let text = |path: Path| path.file(b"/f", |file| file.to_owned()).unwrap();
            assert_eq!(text(path).to_bytes(), b"/base/one/two/f");
            let one = path.up(5).unwrap();
            assert_eq!(text(one).to_bytes(), b"/base/one/f");
            let root = one.up(5).unwrap();
            assert_eq!(text(root).to_bytes(), b"/base/f");
            assert!(root.up(5).is_none());
            assert!(path.push(&[b'x'; PATH]).is_none());
        }

        #[test]
        fn processes_share_a_quarter() {
            let group = |limit, used, processes| Group { limit, used, processes }.budget();
            assert_eq!(group(24 << 20, 0, 1), 6 << 20);
            assert_eq!(group(24 << 20, 0, 2), 6 << 20);
            assert_eq!(group(24 << 20, 0, 12), 1 << 20);
            assert_eq!(group(24 << 20, 20 << 20, 2), 2 << 20);
            assert_eq!(group(24 << 20, 30 << 20, 2), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_the_program_leaves() {
        assert_eq!(share(1000, 100, 0, 256), 450);
        assert_eq!(share(1000, 300, 200, 256), 250); // of 900 that the program does not use
        assert_eq!(share(1000, 600, 0, 256), 144);
        assert_eq!(share(1000, 900, 0, 256), 0);
        assert_eq!(share(1000, 900, 500, 256), 0);
    }

    #[test]
    fn fewer_the_less_is_left() {
        let len = |ring| segment::segment_len(ring).unwrap() as u64;
        let big = 1 << 20;
        let plenty = Room { segments: u64::MAX, bytes: u64::MAX, ample: u64::MAX };
        assert_eq!(plenty.allots(big), Some((big, 1024)));
        let room = |segments, ample, bytes| Room { segments, bytes, ample }.allots(big);
        assert_eq!(room(400, u64::MAX, u64::MAX), Some((big, 100)));
        assert_eq!(room(20, u64::MAX, u64::MAX), Some((big, 16)));
        assert_eq!(room(3, u64::MAX, u64::MAX), Some((big, 3)));
        assert_eq!(room(0, u64::MAX, u64::MAX), None);
        assert_eq!(room(400, 3 * len(big), 9 * len(big)), Some((big, 3)));
        assert_eq!(room(400, len(big) - 1, 2 * len(SMALL)), Some((SMALL, 2)));
        assert_eq!(room(400, 0, len(SMALL) - 1), None);
    }

    #[test]
    fn lines_are_counted() {
        let mut mappings = Mappings::default();
        for line in [
            &b"7f0000000000-7f0000003000 rw-p 00000000 00:00 0 "[..],
            b"7f0000004000-7f0000005000 rw-s 00000000 00:01 9  /memfd:sdp-conn (deleted)",
            b"rubbish",
        ] {
            mappings.add(line);
        }
        let expected = Mappings { all: 2, bytes: 0x4000, segments: 1, segment_bytes: 0x1000 };
        assert_eq!(mappings, expected);
        let own = mapped().unwrap();
        assert!(own.all > 10 && own.bytes > 1 << 20, "{own:?}");
    }
}
