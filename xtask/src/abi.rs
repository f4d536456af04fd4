//! What the preload library looks like from outside.
//!
//! A library that is loaded into every program must export exactly the names it means to, need
//! nothing but libc, and never call itself by way of the names it interposes. `readelf` and
//! `objdump` are asked; the expectations are lists in `tests/abi/`, edited by hand.

use std::collections::BTreeSet;
use std::process::Command;

use crate::artifacts::library;
use crate::process::{output_of, root};
use crate::tidy::report;

/// Shared objects the library may need.
const NEEDED: &[&str] = &["libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];

/// The library's soname.
const SONAME: &str = "libsdp.so.1";

/// Segments that are loaded: what is only read and what is executed, and what is written.
const SEGMENTS: usize = 2;

/// Bytes of a file that the kernel maps at a time, from a multiple of as many on.
const GROUP: u64 = 64 * 1024;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Pages whose translations lie in one cache line.
const TRANSLATED: u64 = 8;

/// Newest version of glibc whose symbols may be imported: (major, minor). A loader that misses a
/// version starts no program at all, so that the library would end every program of an older image.
const NEWEST_GLIBC: (u32, u32) = (2, 17);

/// Runs every check of the library; it must have been built (`cargo xtask build`).
pub(crate) fn check_all() -> Result<(), String> {
    let elf = Elf::read()?;
    let checks = [
        ("soname", elf.soname()),
        ("needed", elf.needed()),
        ("exports", elf.exported()),
        ("imports", elf.imported()),
        ("glibc", elf.versions()),
        ("own-names", elf.own_names()),
        ("tls", elf.thread_locals()),
        ("unwinding", elf.unwinding()),
        ("mappings", elf.mappings()),
        ("group", elf.group()),
        ("size", elf.size()),
        ("panics", elf.panics()),
        ("stand-in", stand_in()),
    ];
    report("abi", checks.into_iter())
}

type Findings = Result<Vec<String>, String>;

/// What binutils say about the library, as text.
struct Elf {
    dynamic: String,
    symbols: String,
    relocations: String,
    segments: String,
    sections: String,
    code: String,
}

impl Elf {
    fn read() -> Result<Self, String> {
        let path = library();
        if !path.is_file() {
            return Err(format!("{}: not built; cargo xtask build", path.display()));
        }
        let ask = |program: &str, option: &str| {
            output_of(Command::new(program).env("LC_ALL", "C").args([option, "--wide"]).arg(&path))
        };
        Ok(Self {
            dynamic: ask("readelf", "--dynamic")?,
            symbols: ask("readelf", "--dyn-syms")?,
            relocations: ask("readelf", "--relocs")?,
            segments: ask("readelf", "--program-headers")?,
            sections: ask("readelf", "--sections")?,
            code: ask("objdump", "--disassemble")?,
        })
    }

    /// The bracketed values of a tag of the dynamic section.
    fn tags(&self, tag: &str) -> Vec<&str> {
        let tagged = self.dynamic.lines().filter(|line| line.contains(tag));
        tagged.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0)).collect()
    }

    fn soname(&self) -> Findings {
        let found = self.tags("(SONAME)");
        Ok(expect(found == [SONAME], || format!("{found:?}, expected {SONAME:?}")))
    }

    fn needed(&self) -> Findings {
        let found = self.tags("(NEEDED)").into_iter();
        Ok(found.filter(|n| !NEEDED.contains(n)).map(|n| format!("needs {n}")).collect())
    }

    /// Dynamic symbols: defined ones if `defined`, else imported ones, each with its version.
    fn names(&self, defined: bool) -> BTreeSet<&str> {
        let lines = self.symbols.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
        let symbols = lines.filter(|f| f.len() >= 8 && f[0].ends_with(':') && f[0] != "Num:");
        symbols
            .filter(|f| (f[6] != "UND") == defined && matches!(f[4], "GLOBAL" | "WEAK"))
            .map(|f| f[7])
            .collect()
    }

    fn exports(&self) -> BTreeSet<&str> {
        self.names(true).into_iter().map(bare).collect()
    }

    fn exported(&self) -> Findings {
        let listed = list("exports.txt")?;
        let found = self.exports();
        let listed: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
        let extra = found.difference(&listed).map(|name| format!("{name} is not in the list"));
        let missing = listed.difference(&found).map(|name| format!("{name} is not exported"));
        Ok(extra.chain(missing).collect())
    }

    fn imported(&self) -> Findings {
        let listed = list("imports.txt")?;
        let names = self.names(false).into_iter().map(bare);
        let extra = names.filter(|name| !listed.contains(*name));
        Ok(extra.map(|name| format!("imports {name}, which is not in the list")).collect())
    }

    fn versions(&self) -> Findings {
        let names = self.names(false).into_iter();
        Ok(names.filter(|n| is_newer(n)).map(|n| format!("{n} is too new")).collect())
    }

    /// A relocation against an own export is a call that another preload library could take over,
    /// or that re-enters our own hook.
    fn own_names(&self) -> Findings {
        let own = self.exports();
        let lines = self.relocations.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
        let named = lines.filter(|f| f.len() >= 5 && f[2].starts_with("R_"));
        Ok(named
            .filter(|f| own.contains(bare(f[4])))
            .map(|f| format!("relocation {} against own name {}", f[2], f[4]))
            .collect())
    }

    /// Dynamic thread-local storage may allocate at first touch, perhaps in a signal handler.
    fn thread_locals(&self) -> Findings {
        let kinds = ["DTPMOD", "DTPOFF", "DTPREL", "TLSDESC"];
        let lines = self.relocations.lines();
        let bad = lines.filter(|line| kinds.iter().any(|kind| line.contains(kind)));
        let mut findings: Vec<String> = bad.map(|line| line.trim().to_owned()).collect();
        if self.names(false).into_iter().map(bare).any(|name| name == "__tls_get_addr") {
            findings.push("calls __tls_get_addr".to_owned());
        }
        Ok(findings)
    }

    /// A thread that is cancelled, or leaves a handler with `siglongjmp`, takes the library's frames with it. They have no
    /// landing pads, and are told of in tables: the premises of `crates/sdp-socket/src/wake/stay.rs`.
    fn unwinding(&self) -> Findings {
        let has = |name: &str| self.sections.split_whitespace().any(|word| word == name);
        let mut findings = expect(has(".eh_frame"), || "no table of frames".to_owned());
        let mut lands = expect(!has(".gcc_except_table"), || "frames have landing pads".to_owned());
        let names = self.names(false).into_iter().map(bare);
        lands.extend(
            names.filter(|name| name.starts_with("_Unwind_")).map(|name| format!("calls {name}")),
        );
        findings.append(&mut lands);
        Ok(findings)
    }

    /// The segments that are loaded, as `readelf` has them: kind, places, sizes, and permissions in one field or more.
    fn loads(&self) -> Vec<Vec<&str>> {
        let lines = self.segments.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
        lines.filter(|f| f.len() >= 7 && f[0] == "LOAD").collect()
    }

    /// Each mapping costs each fork and each exit; one that can be written and executed may be refused.
    fn mappings(&self) -> Findings {
        let loads = self.loads();
        let has = |fields: &[&str], letter| fields[6..].iter().any(|f| f.contains(letter));
        let mut findings = expect(loads.len() == SEGMENTS, || {
            format!("{} segments are loaded, expected {SEGMENTS}", loads.len())
        });
        let both = loads.iter().filter(|f| has(f, 'W') && has(f, 'E'));
        findings.extend(both.map(|f| format!("{} can be written and executed", f[2])));
        Ok(findings)
    }

    /// What fork children run, and its constants, lies in the first group, wherever the library is loaded. Only where there is a script for
    /// the linker (`crates/sdp-preload/layout.ld`).
    fn group(&self) -> Findings {
        let section = |name: &str| {
            let line = self.sections.lines().find_map(|line| line.split_once(name));
            let fields: Vec<&str> = line.map_or("", |(_, rest)| rest).split_whitespace().collect();
            let begin = hexadecimal(fields.get(1)?);
            Some((begin, begin + hexadecimal(fields.get(3)?)))
        };
        let mut findings = Vec::new();
        for name in ["] .text.hot ", "] .text.open ", "] .rodata "] {
            match section(name) {
                // Children run little of it: it begins there.
                Some((begin, _)) if name.contains("open") => {
                    findings.extend(expect(begin < GROUP, || format!("{name}begins at {begin}")));
                }
                Some((_, end)) => {
                    findings.extend(expect(end <= GROUP, || format!("{name}ends at {end}")))
                }
                None if cfg!(not(target_arch = "x86_64")) => return Ok(Vec::new()),
                None => findings.push(format!("{name}is missing")),
            }
        }
        // What they read is on one page, what they write on the next, both in one group of translations.
        let read = section("] .data.hot ").map(|(begin, _)| begin / PAGE);
        let zeros = section("] .bss.hot ").map(|(_, end)| (end - 1) / PAGE);
        let written = section("] .bss.page ").map(|(begin, _)| begin);
        findings.extend(expect(
            read.is_some() && zeros == read && written == read.map(|page| (page + 1) * PAGE),
            || format!("read on page {read:#x?} to {zeros:#x?}, written at {written:#x?}"),
        ));
        findings.extend(expect(
            read.is_none_or(|page| page / TRANSLATED == (page + 1) / TRANSLATED),
            || format!("page {read:#x?} and the next are translated apart"),
        ));
        let alignment = self.loads().first().and_then(|fields| fields.last().copied());
        let alignment = hexadecimal(alignment.unwrap_or("0x0"));
        findings.extend(expect(alignment == GROUP, || format!("aligned to {alignment}")));
        Ok(findings)
    }

    fn size(&self) -> Findings {
        let (mut file, mut memory) = (0, 0);
        for fields in self.loads() {
            file += hexadecimal(fields[4]);
            memory += hexadecimal(fields[5]);
        }
        let mut findings = within("file-bytes", file)?;
        findings.extend(within("memory-bytes", memory)?);
        Ok(findings)
    }

    fn panics(&self) -> Findings {
        let calls: Vec<&str> = self.code.lines().filter(|line| is_panic_call(line)).collect();
        let mut findings = within("panic-calls", calls.len() as u64)?;
        if !findings.is_empty() {
            findings.extend(panic_places(&self.code));
        }
        Ok(findings)
    }
}

/// What only the tests' build may have: the environment variable that a network without devices is named by.
const FAKE_NETWORK: &[u8] = b"SDP_FAKE_NETWORK";

fn stand_in() -> Findings {
    let path = library();
    let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let is_there = bytes.windows(FAKE_NETWORK.len()).any(|window| window == FAKE_NETWORK);
    Ok(expect(!is_there, || "has the tests' connection manager in it".to_owned()))
}

/// True for a call or jump into core's panic machinery.
fn is_panic_call(line: &str) -> bool {
    let is_jump = ["call", "jmp", "\tbl", "\tb\t"].iter().any(|op| line.contains(op));
    is_jump
        && ["panicking", "panic_", "unwrap_failed", "expect_failed", "slice_index_fail"]
            .iter()
            .any(|name| line.split_once('<').is_some_and(|(_, target)| target.contains(name)))
}

/// The functions that hold panic calls, each once.
fn panic_places(code: &str) -> Vec<String> {
    let mut places = BTreeSet::new();
    let mut function = "";
    for line in code.lines() {
        if line.ends_with(">:") {
            function = line.split_once('<').map_or(line, |(_, name)| name.trim_end_matches(">:"));
        } else if is_panic_call(line) && !function.contains("panicking") {
            places.insert(format!("in {function}"));
        }
    }
    places.into_iter().collect()
}

/// A figure of `readelf`; one that cannot be read is over every bound.
fn hexadecimal(field: &str) -> u64 {
    u64::from_str_radix(field.trim_start_matches("0x"), 16).unwrap_or(u64::from(u32::MAX))
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Vec<String> {
    if holds { Vec::new() } else { vec![otherwise()] }
}

/// Compares a figure of the library with its bound in `tests/abi/limits.txt`.
fn within(name: &str, found: u64) -> Findings {
    let path = root().join("tests/abi/limits.txt");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let bound = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    let bound: u64 = bound.ok_or_else(|| format!("{}: no {name}", path.display()))?;
    println!("{name}: {found}, at most {bound}");
    Ok(expect(found <= bound, || format!("{found}, at most {bound}")))
}

/// A symbol without its version.
fn bare(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

fn is_newer(name: &str) -> bool {
    let Some((_, version)) = name.split_once("@GLIBC_") else { return false };
    let mut numbers = version.trim_start_matches('@').split('.').map_while(|n| n.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) > NEWEST_GLIBC
}

/// The entries of a list in `tests/abi`: one name a line, `#` begins a comment.
fn list(file: &str) -> Result<BTreeSet<String>, String> {
    let path = root().join("tests/abi").join(file);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    Ok(lines.flat_map(str::split_whitespace).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(symbols: &str, relocations: &str) -> Elf {
        Elf {
            dynamic: " 0x1 (NEEDED)  Shared library: [libc.so.6]\n 0x1 (NEEDED) Shared library: \
                      [libm.so.6]\n 0xe (SONAME) Library soname: [libsdp.so.1]\n"
                .to_owned(),
            symbols: symbols.to_owned(),
            relocations: relocations.to_owned(),
            segments: "  LOAD 0x0 0x0 0x0 0x001000 0x002000 R 0x1000\n".to_owned(),
            sections: String::new(),
            code: String::new(),
        }
    }

    const SYMBOLS: &str = "   Num:    Value  Size Type    Bind   Vis      Ndx Name
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND close@GLIBC_2.2.5 (2)
     2: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND epoll_pwait2@GLIBC_2.35 (3)
     3: 0000000000001000    10 FUNC    GLOBAL DEFAULT   12 read
     4: 0000000000001000    10 FUNC    LOCAL  DEFAULT   12 hidden
";

    #[test]
    fn tells_exports_from_imports() {
        let elf = elf(SYMBOLS, "");
        assert_eq!(elf.exports().into_iter().collect::<Vec<_>>(), ["read"]);
        assert_eq!(elf.names(false).len(), 2);
        assert_eq!(elf.versions(), Ok(vec!["epoll_pwait2@GLIBC_2.35 is too new".to_owned()]));
    }

    #[test]
    fn finds_what_it_should_not_need() {
        assert_eq!(elf("", "").needed(), Ok(vec!["needs libm.so.6".to_owned()]));
        assert_eq!(elf("", "").soname(), Ok(Vec::new()));
        assert_eq!(elf("", "").size(), Ok(Vec::new()));
        let mut large = elf("", "");
        large.segments = "  LOAD 0x0 0x0 0x0 0x001000 0xf0000000 R 0x1000\n".to_owned();
        assert_eq!(large.size().map(|findings| findings.len()), Ok(1));
    }

    #[test]
    fn finds_landing_pads() {
        let mut elf = elf("", "");
        assert_eq!(elf.unwinding().map(|f| f.len()), Ok(1), "no tables");
        elf.sections = "  [12] .eh_frame PROGBITS\n".to_owned();
        assert_eq!(elf.unwinding(), Ok(Vec::new()));
        elf.sections.push_str("  [13] .gcc_except_table PROGBITS\n");
        assert_eq!(elf.unwinding().map(|f| f.len()), Ok(1));
    }

    #[test]
    fn finds_mappings_too_many_and_too_free() {
        let mut elf = elf("", "");
        assert_eq!(elf.mappings().map(|f| f.len()), Ok(1), "one is missing");
        let written = "  LOAD 0x0 0x0 0x0 0x001000 0x002000 RW 0x1000\n";
        let code = "  LOAD 0x0 0x0 0x0 0x001000 0x002000 R E 0x1000\n";
        let all = "  LOAD 0x0 0x0 0x0 0x001000 0x002000 RWE 0x1000\n";
        elf.segments = [code, written].concat();
        assert_eq!(elf.mappings(), Ok(Vec::new()));
        elf.segments = [code, all].concat();
        assert_eq!(elf.mappings().map(|f| f.len()), Ok(1));
        elf.segments = [code, written, written].concat();
        assert_eq!(elf.mappings().map(|f| f.len()), Ok(1));
    }

    #[test]
    fn finds_what_lies_apart() {
        let mut elf = elf("", "");
        let line = |name, size| {
            format!("  [ 8] {name} PROGBITS 0000000000008000 008000 {size} 00 AX 0 0 16\n")
        };
        let names = [".text.hot", ".text.open", ".rodata"];
        let words = |zeros, written| {
            format!(
                "  [21] .data.hot PROGBITS 0000000000091000 091000 00096c 00 WA 0 0 4096
  [23] .bss.hot NOBITS 0000000000091a38 091a38 {zeros} 00 WA 0 0 4
  [24] .bss.page NOBITS {written} 091a38 01b018 00 WA 0 0 4096\n"
            )
        };
        let beside = names.map(|name| line(name, "008000")).concat();
        elf.sections = [beside.clone(), words("000112", "0000000000092000")].concat();
        assert_eq!(elf.group(), Ok(vec!["aligned to 4096".to_owned()]));
        elf.segments = "  LOAD 0x0 0x0 0x0 0x001000 0x002000 R E 0x10000\n".to_owned();
        assert_eq!(elf.group(), Ok(Vec::new()));
        for apart in [words("000112", "0000000000093000"), words("000612", "0000000000092000")] {
            elf.sections = [beside.clone(), apart].concat();
            assert_eq!(elf.group().map(|findings| findings.len()), Ok(1));
        }
        let near = words("000112", "0000000000092000");
        let far = near.replace("00000092", "00000098").replace("00000091", "00000097");
        elf.sections = [beside, far].concat();
        assert_eq!(elf.group().map(|findings| findings.len()), Ok(1));
        elf.sections = names.map(|name| line(name, "008001")).concat();
        assert_eq!(elf.group().map(|findings| findings.len()), Ok(3));
    }

    #[test]
    fn finds_relocations_against_own_names() {
        let text = "00003fd8 000500000006 R_X86_64_GLOB_DAT 0000000000001000 read + 0
00003fe0 000500000006 R_X86_64_GLOB_DAT 0000000000000000 close@GLIBC_2.2.5 + 0
00003fe8 000000000012 R_X86_64_TPOFF64 0
00003ff0 000000000010 R_X86_64_DTPMOD64 0
";
        let elf = elf(SYMBOLS, text);
        assert_eq!(elf.own_names().map(|f| f.len()), Ok(1));
        assert_eq!(elf.thread_locals().map(|f| f.len()), Ok(1));
    }

    #[test]
    fn finds_panic_calls() {
        assert!(is_panic_call("  12: e8 00 call   10 <core::panicking::panic_fmt>"));
        assert!(!is_panic_call("  12: e8 00 call   10 <sdp_proto::wire::parse>"));
        let code = "0010 <sdp_x>:\n  12: call 99 <_ZN4core9panicking5panicE>\n";
        assert_eq!(panic_places(code), ["in sdp_x"]);
    }
}
