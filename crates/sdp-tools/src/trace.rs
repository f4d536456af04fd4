//! The recorder of a process: the last events of its connections, also after a crash.
//!
//! The recorder is in the process's page ([`sdp_stats::trace`]), which goes with the process. After
//! a crash it remains in one of two files: a core dump, which has the page as it has all shared
//! memory without a name, and the file that `sdp run --trace` has kept. The content of a file or
//! page is shown, and followed nowhere.

use std::fmt::Write;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sdp_stats::page::MAGIC;
use sdp_stats::reader::{Mapping, ProcessView, ReasonCode, parse, read_page_at, read_trace_at};
use sdp_stats::trace::EventView;
use serde::Serialize;

use crate::{Failure, names, procs, stat, sys};

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;
/// Bytes of a core dump that are looked at in one read; dumps differ in where they put memory.
const PIECE: usize = 1 << 20;
/// Of these, those where a page may begin: the others may be half of its first word.
const STEP: usize = PIECE - 7;
/// Pages that are looked for in one file.
const MAX_PAGES: usize = 64;

/// The JSON form of an event.
#[derive(Debug, Serialize)]
struct EventForm {
    number: u32,
    /// Seconds since the process's first stream connection.
    at_s: f64,
    event: String,
    direction: Option<String>,
    fabric: Option<String>,
    reason: Option<String>,
    fd: i32,
    local_port: u16,
    remote_port: u16,
}

/// The JSON form of a recorder.
#[derive(Debug, Serialize)]
struct Form<'a> {
    pid: u32,
    program: &'a str,
    uid: u32,
    version: &'a str,
    /// Whether the process left in an orderly way.
    has_ended: bool,
    events: Vec<EventForm>,
}

/// A page with its recorder.
struct Recorded {
    view: ProcessView,
    events: Vec<EventView>,
}

fn kind(number: u8) -> String {
    match number {
        1 => "met".into(),
        2 => "promoted".into(),
        3 => "fallback".into(),
        4 => "demoted".into(),
        5 => "hand-over".into(),
        6 => "lane-lost".into(),
        7 => "reset".into(),
        8 => "refused".into(),
        other => format!("event-{other}"),
    }
}

fn form(event: &EventView, born_ns: u64) -> EventForm {
    let since = i128::from(event.at_ns) - i128::from(born_ns);
    EventForm {
        number: event.number,
        at_s: since as f64 / 1e9,
        event: kind(event.kind),
        direction: event.direction.map(|direction| match direction {
            0 => "send".into(),
            1 => "receive".into(),
            other => format!("direction-{other}"),
        }),
        fabric: event.fabric.map(|fabric| match names::fabric(fabric) {
            "?" => format!("fabric-{fabric}"),
            name => name.into(),
        }),
        reason: event.reason.map(|code| ReasonCode(code.into()).to_string()),
        fd: event.fd,
        local_port: event.ports.0,
        remote_port: event.ports.1,
    }
}

fn page_at(file: &File, start: u64) -> Option<Recorded> {
    let view = parse(&read_page_at(file, start).ok()?).ok()?;
    let events = read_trace_at(file, start).ok()?;
    Some(Recorded { view, events })
}

/// The pages in a file: one that was kept, or a core dump.
fn pages_in(path: &Path) -> Result<Vec<Recorded>, Failure> {
    let failed = |e| Failure::new(path.display(), e);
    // Not a pipe without a writer, nor a device.
    let mut file = crate::rules::regular(path)?;
    let (mut found, mut piece, mut start) = (Vec::new(), vec![0u8; PIECE], 0u64);
    loop {
        file.seek(SeekFrom::Start(start)).map_err(failed)?;
        let mut len = 0;
        while len < PIECE {
            match file.read(&mut piece[len..]) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(e)),
            }
        }
        let is_page = |at: &usize| piece[*at..len].starts_with(&MAGIC.to_ne_bytes());
        for at in (0..len.min(STEP)).filter(is_page) {
            if found.len() < MAX_PAGES
                && let Some(page) = page_at(&file, start + at as u64)
            {
                found.push(page);
            }
        }
        if len < PIECE || found.len() >= MAX_PAGES {
            return Ok(found);
        }
        start += STEP as u64;
    }
}

/// The folder for the files that `sdp run --trace` keeps, where none is named.
fn usual_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|v| Path::new(v).is_absolute()) {
        Some(runtime) => PathBuf::from(runtime).join("sdp"),
        None if sys::own_uid() == 0 => "/run/sdp".into(),
        None => std::env::temp_dir().join(format!("sdp-{}", sys::own_uid())),
    }
}

/// Where recorders are kept: a folder to which no other user writes.
///
/// # Errors
/// It cannot be made, or is another user's.
pub fn folder(named: Option<&Path>) -> Result<PathBuf, Failure> {
    folder_for("--trace", named)
}

/// [`folder`], for another option.
///
/// # Errors
/// Likewise; `option` names the option that wanted it.
pub fn folder_for(option: &str, named: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = named.map_or_else(usual_folder, Path::to_path_buf);
    let what = || format!("{option} {}", path.display());
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(Failure::new(what(), e)),
        _ => {
            let is_safe = is_own(&path).map_err(|e| Failure::new(what(), e))?;
            let why = "not a folder of this user's that others cannot write to";
            is_safe.then_some(path.clone()).ok_or_else(|| Failure::new(what(), why))
        }
    }
}

/// Whether a folder is this user's, and no other user writes to it.
fn is_own(path: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(path)?;
    Ok(found.is_dir() && found.uid() == sys::own_uid() && found.mode() & 0o022 == 0)
}

/// Keeps the page of a process that ended without saying so. Where it is.
///
/// # Errors
/// It cannot be written.
pub fn keep(folder: &Path, pid: u32, page: &Mapping) -> io::Result<PathBuf> {
    let path = folder.join(format!("{pid}.page"));
    let beside = folder.join(format!("{pid}.page.new"));
    let _ = fs::remove_file(&beside);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
    // Rows that were never used stay holes.
    file.set_len(sdp_stats::SIZE as u64)?;
    for (at, words) in page.parts() {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        file.write_all_at(&bytes, at as u64)?;
    }
    fs::rename(&beside, &path)?;
    Ok(path)
}

/// The recorders of a process, living or not, or of a file.
fn find(of: &str) -> Result<Vec<Recorded>, Failure> {
    let Ok(pid) = of.parse::<u32>() else { return pages_in(Path::new(of)) };
    if let Some(process) = procs::find(Some(pid)).first() {
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&process.page);
        let file = file.map_err(|e| Failure::new(format_args!("process {pid}"), e))?;
        return Ok(page_at(&file, 0).into_iter().collect());
    }
    let kept = usual_folder().join(format!("{pid}.page"));
    if kept.exists() && matches!(is_own(&usual_folder()), Ok(true)) {
        return pages_in(&kept);
    }
    Err(Failure(format!(
        "{}; nothing of it is kept in {} (sdp run --trace), and its core dump, if there is one, was not named",
        stat::why_no_page(pid),
        usual_folder().display()
    )))
}

fn text(pages: &[Recorded]) -> String {
    let mut out = String::new();
    for Recorded { view, events } in pages {
        let end = if view.has_exited { ", has ended" } else { "" };
        let first = events.first().map_or(0, |event| event.number.saturating_sub(1));
        let _ = writeln!(
            out,
            "{} {} (uid {}, library {}{end}): {} events, {first} before them",
            view.pid,
            view.program,
            view.uid,
            view.version,
            events.len()
        );
        for event in events {
            let EventForm {
                at_s,
                event,
                direction,
                fabric,
                reason,
                fd,
                local_port,
                remote_port,
                ..
            } = form(event, view.born_ns);
            let ports = match (local_port, remote_port) {
                (0, 0) => String::new(),
                (local, remote) => format!(" :{local} to :{remote}"),
            };
            let rest: Vec<_> = [direction, fabric, reason]
                .into_iter()
                .flatten()
                .map(|w| format!(" {w}"))
                .collect();
            let _ = writeln!(out, "  {at_s:>+12.6} s fd {fd}{ports} {event}{}", rest.concat());
        }
    }
    out
}

/// `sdp stat --trace`.
///
/// # Errors
/// There is no such process or file, or nothing of the library in it.
pub fn main(of: &str, is_json: bool) -> Result<(), Failure> {
    let pages = find(of)?;
    if pages.is_empty() {
        return Err(Failure(format!("{of}: no page of the library in it")));
    }
    let out = if is_json {
        let form_of = |page: &Recorded| {
            let events = page.events.iter().map(|e| form(e, page.view.born_ns)).collect();
            let Recorded { view, .. } = page;
            serde_json::to_value(Form {
                pid: view.pid,
                program: &view.program,
                uid: view.uid,
                version: &view.version,
                has_ended: view.has_exited,
                events,
            })
        };
        let recorders: Result<Vec<_>, _> = pages.iter().map(form_of).collect();
        let recorders = recorders.map_err(|e| Failure::new("no JSON form", e))?;
        let form = serde_json::json!({ "schema": SCHEMA, "processes": recorders });
        serde_json::to_string_pretty(&form).map_err(|e| Failure::new("no JSON form", e))? + "\n"
    } else {
        text(&pages)
    };
    crate::print(&out);
    Ok(())
}
