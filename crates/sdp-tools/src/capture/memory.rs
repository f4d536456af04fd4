//! A segment of another process, read without mapping it.
//!
//! Root gets the memory file itself (`/proc/PID/map_files`), which stays when the processes go.
//! Others read the memory of their own processes (`/proc/PID/mem`), where the kernel lets them: at
//! an address that may mean something else later, which [`super::find`] looks after.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Where a process has a segment mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    /// First address.
    pub(super) start: u64,
    /// Address behind the last byte.
    pub(super) end: u64,
    /// Of the memory file.
    pub(super) inode: u64,
}

impl Mapping {
    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Path of the segments' memory files.
const LINK: &str = "/memfd:sdp-conn (deleted)";

/// The segments that a process has mapped. Empty if it may not be looked at.
pub(super) fn mappings(pid: u32) -> Vec<Mapping> {
    let text = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("maps"));
    let mut found: Vec<Mapping> = Vec::new();
    for mapping in text.unwrap_or_default().lines().filter_map(mapping) {
        // Both ends of a connection may be in one process.
        if found.iter().all(|known| known.inode != mapping.inode) {
            found.push(mapping);
        }
    }
    found
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let inode = words.nth(3)?.parse().ok()?;
    if words.next()?.trim_start() != LINK {
        return None;
    }
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapping { start: number(start)?, end: number(end)?, inode })
}

/// One way to read a segment: a file, and where in it the segment begins.
#[derive(Debug)]
struct Way {
    file: File,
    start: u64,
}

/// A segment.
#[derive(Debug)]
pub(super) struct Segment {
    ways: Vec<Way>,
    len: u64,
}

impl Segment {
    /// Opens the segment that some processes have mapped. `None`: none of them may be read.
    pub(super) fn open(places: &[(u32, Mapping)]) -> Option<Self> {
        let len = places.iter().map(|(_, mapping)| mapping.len()).min()?;
        let mut ways = Vec::new();
        for (pid, mapping) in places {
            let proc = Path::new("/proc").join(pid.to_string());
            let range = format!("{:x}-{:x}", mapping.start, mapping.end);
            let open =
                |path: &Path| File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
            let own = open(&proc.join("map_files").join(range)).ok();
            // The range may be another file's by now.
            let is_it = |file: &File| {
                use std::os::unix::fs::MetadataExt;
                file.metadata().is_ok_and(|m| m.ino() == mapping.inode && m.is_file())
            };
            if let Some(file) = own.filter(is_it) {
                return Some(Self { ways: vec![Way { file, start: 0 }], len });
            }
            if let Ok(file) = open(&proc.join("mem")) {
                ways.push(Way { file, start: mapping.start });
            }
        }
        let segment = Self { ways, len };
        segment.read(0, &mut [0; 8]).then_some(segment)
    }

    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// In a file of its own.
    #[cfg(test)]
    pub(super) fn of_file(file: File, len: u64) -> Self {
        Self { ways: vec![Way { file, start: 0 }], len }
    }

    /// Copies bytes. False if they are not there any more, or beyond the end.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let end = at.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return false;
        }
        let from = |way: &Way| way.start.checked_add(at);
        self.ways
            .iter()
            .any(|way| from(way).is_some_and(|at| way.file.read_exact_at(into, at).is_ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_segments_are_taken() {
        let line = "7f0000004000-7f0000205000 rw-s 00000000 00:01 9                          /memfd:sdp-conn (deleted)";
        let found = Mapping { start: 0x7f00_0000_4000, end: 0x7f00_0020_5000, inode: 9 };
        assert_eq!(mapping(line), Some(found));
        for other in
            ["", "7f0000004000", "7f00-7f01 rw-p 00000000 00:00 0", &line.replace("conn", "stats")]
        {
            assert_eq!(mapping(other), None, "{other}");
        }
    }
}
