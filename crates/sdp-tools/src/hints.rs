//! The options of the historic module: `options ib_sdp KEY=VALUE` in the files of modprobe.
//!
//! There is no such module here. The values are hints at what an operator wanted: shown by `sdp tune`, with the
//! command that takes them over, and never in force by themselves.

use std::fs;
use std::path::{Path, PathBuf};

use sdp_config::tunables::{KEYS, Tunables};
use serde::Serialize;

/// Where modprobe looks, below the root; a file of the same name in an earlier folder goes before.
const FOLDERS: [&str; 3] = ["etc/modprobe.d", "run/modprobe.d", "usr/lib/modprobe.d"];
/// The one file of older systems.
const FILE: &str = "etc/modprobe.conf";
/// The historic module.
const MODULE: &str = "ib_sdp";
/// Longest file that is read, bytes.
const FILE_MAX: u64 = 1 << 20;

/// A value that the module would have had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hint {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// Name of the tunable, as it is now.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Whether the tunable takes that value.
    pub is_taken: bool,
}

/// All of them, in the order in which modprobe reads; the last of a tunable would have held. `present` gives the
/// present name of a parameter that is a tunable here; others are left out.
pub fn find(root: &Path, present: impl Fn(&str) -> Option<&'static str>) -> Vec<Hint> {
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in FOLDERS {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        for path in entries.map(|e| e.path()) {
            let is_new = files.iter().all(|f| f.file_name() != path.file_name());
            if path.extension().is_some_and(|e| e == "conf") && is_new {
                files.push(path);
            }
        }
    }
    files.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    files.insert(0, root.join(FILE));
    let mut hints = Vec::new();
    for file in files {
        // A pipe would make us wait.
        let is_short = |m: &fs::Metadata| m.is_file() && m.len() <= FILE_MAX;
        if !fs::metadata(&file).is_ok_and(|m| is_short(&m)) {
            continue;
        }
        let text = fs::read(&file).unwrap_or_default();
        read(&file.display().to_string(), &String::from_utf8_lossy(&text), &present, &mut hints);
    }
    hints
}

fn read(
    file: &str,
    text: &str,
    present: &impl Fn(&str) -> Option<&'static str>,
    hints: &mut Vec<Hint>,
) {
    let mut whole = String::new();
    let mut first = 1;
    for (at, line) in text.lines().enumerate() {
        if whole.is_empty() {
            first = at + 1;
        }
        if let Some(part) = line.strip_suffix('\\') {
            whole = whole + part + " ";
            continue;
        }
        let statement = std::mem::take(&mut whole) + line;
        let mut words = statement.split_whitespace();
        let module = |word: &str| word.replace('-', "_") == MODULE;
        if words.next() != Some("options") || !words.next().is_some_and(module) {
            continue;
        }
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            let Some(key) = present(name) else { continue };
            let value = value.trim_matches('"');
            let is_taken = Tunables::DEFAULT.clone().set(key.as_bytes(), value.as_bytes()).is_ok();
            hints.push(Hint {
                file: file.to_string(),
                line: first,
                key: key.to_string(),
                value: value.to_string(),
                is_taken,
            });
        }
    }
}

/// Takes over the last value of each tunable: a command, or nothing.
pub fn command(hints: &[Hint]) -> Option<String> {
    let last = |key: &str| hints.iter().rev().find(|h| h.key == key && h.is_taken);
    let all: Vec<_> = KEYS
        .iter()
        .filter_map(|key| last(key.name))
        .map(|h| format!("{}={}", h.key, h.value))
        .collect();
    (!all.is_empty()).then(|| format!("sdp tune --save {}", all.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(name: &str) -> Option<&'static str> {
        KEYS.iter().map(|k| k.name).find(|k| *k == name)
    }

    #[test]
    fn options_of_the_module_are_hints() {
        let text = "# options ib_sdp recv_poll=1\noptions ib_sdp recv_poll=700 \\\n sdp_zcopy_thresh=0\n\
                    options other recv_poll=2\n  options ib-sdp recv_poll=\"5\" rcvbuf_scale=8\n\
                    options ib_sdp sdp_zcopy_thresh=-1\nalias net-pf-27 ib_sdp\n";
        let mut hints = Vec::new();
        read("f", text, &present, &mut hints);
        let seen: Vec<_> = hints.iter().map(|h| (h.line, &*h.key, &*h.value, h.is_taken)).collect();
        let expected = [
            (2, "recv_poll", "700", true),
            (2, "sdp_zcopy_thresh", "0", true),
            (5, "recv_poll", "5", true),
            (6, "sdp_zcopy_thresh", "-1", false),
        ];
        assert_eq!(seen, expected);
        let command = command(&hints).unwrap();
        assert_eq!(command, "sdp tune --save sdp_zcopy_thresh=0 recv_poll=5");
    }

    #[test]
    fn files_go_by_their_names() {
        let root = std::env::temp_dir().join(format!("sdp-hints-{}", std::process::id()));
        for (file, value) in [
            ("etc/modprobe.d/b.conf", 2),
            ("usr/lib/modprobe.d/a.conf", 1),
            ("usr/lib/modprobe.d/b.conf", 3),
            ("etc/modprobe.d/c.bak", 4),
        ] {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("options ib_sdp recv_poll={value}\n")).unwrap();
        }
        let values: Vec<_> = find(&root, present).into_iter().map(|h| h.value).collect();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(values, ["1", "2"]);
    }
}
