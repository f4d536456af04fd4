//! The rules in force: read at the first connection, and again when the file has changed.
//!
//! Used through [`super`]. The table lies in memory of its own, which only a process with rules
//! has. A new table takes the old one's place in one step; the old memory is used for the next one
//! when no thread can be reading it any more. Calls that make connections look at the file's
//! identity, at most each [`LOOK_EVERY_MS`]; other calls pay nothing. What the file says now holds
//! for connections from then on, except:
//!
//! * a file with an error keeps the former rules, whole, and so does one that cannot be read;
//! * a file that has just been written to is taken once it has rested for [`REST_MS`];
//! * in another root directory, or where the file has a name without a root, the library does not look at
//!   the file.

use core::{
    cell::UnsafeCell,
    ffi::CStr,
    ptr::{NonNull, null_mut},
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

use sdp_config::{Config, Family, Role, Tunables, Verdict};
use sdp_stats::{RuleState, RuleWords, Rules};
use sdp_sys::{
    errno::Errno,
    kernel::{self, owned},
    memory::Zeros,
    section,
    stat::{self, Identity, Stat},
    time,
};

use crate::process::{self, log, page};

/// Longest rule file that is read; the rest of a longer one is ignored.
const FILE_MAX: usize = 256 * 1024;
/// A look at the file holds for so long.
const LOOK_EVERY_MS: u64 = 400;
/// A file that was written to less than this ago may be incomplete.
const REST_MS: u64 = 200;
/// Until the next look at such a file.
const LOOK_SOON_MS: u64 = 100;
const NEVER: u64 = u64::MAX;

/// Null: no rules.
static IN_FORCE: AtomicPtr<Config> = AtomicPtr::new(null_mut());
/// Threads that may be reading a table.
static READERS: AtomicU32 = AtomicU32::new(0);
/// How often the table was replaced.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// 1: a thread looks at the file, or changes settings.
static BUSY: AtomicU32 = AtomicU32::new(0);
/// When the file is to be looked at, in milliseconds of the coarse clock.
static NEXT_MS: AtomicU64 = AtomicU64::new(NEVER);
/// A thread of the parent was in the middle of it: the knowledge of the file is in doubt.
static IN_DOUBT: AtomicU32 = AtomicU32::new(0);

/// One version of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    id: Identity,
    size: u64,
    changed_ns: u64,
}

impl Version {
    const fn of(stat: &Stat) -> Self {
        Self { id: stat.id, size: stat.size, changed_ns: stat.changed_ns }
    }

    fn is_resting(&self) -> bool {
        rests(self.changed_ns)
    }
}

/// Whether a change is long enough ago. One in the future was made by another clock.
fn rests(changed_ns: u64) -> bool {
    time::unix_ns().checked_sub(changed_ns).is_none_or(|ago| ago >= REST_MS * 1_000_000)
}

/// The library's knowledge of the file and of the memory for tables.
struct Known {
    /// The version read last; `None`: there was none, or it is to be read again.
    version: Option<Version>,
    /// There was a file.
    is_there: bool,
    /// The root directory when the file was read first.
    root: Option<Identity>,
    /// A table that is not in force any more.
    spare: Option<NonNull<Config>>,
    /// The state that tools see.
    shown: Rules,
}

/// The words that tools see, for a page that is made later.
static SHOWN: RuleWords = RuleWords::new();

struct Cell(UnsafeCell<Known>);

// SAFETY: used by the loader, alone, before NEXT_MS lets other threads look, and then by the thread
// that has BUSY.
unsafe impl Sync for Cell {}

static KNOWN: Cell = Cell(UnsafeCell::new(Known {
    version: None,
    is_there: false,
    root: None,
    spare: None,
    shown: Rules::NONE,
}));

/// Asks the rules in force, if there are any.
fn with<T>(body: impl FnOnce(&Config) -> T) -> Option<T> {
    if IN_FORCE.load(Ordering::Relaxed).is_null() {
        return None;
    }
    // In this order, as `replace` looks at them: a table that was taken away before this is not found here,
    // and one that is found here is not used again before this thread has left it.
    READERS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: tables are mappings that stay; no thread writes to one that is in force, or that a
    // reader may have.
    let config = unsafe { IN_FORCE.load(Ordering::SeqCst).as_ref() };
    let answer = config.map(body);
    READERS.fetch_sub(1, Ordering::SeqCst);
    answer
}

/// The verdict for a socket of this role and address.
pub(crate) fn verdict(
    role: Role,
    address: [u8; 16],
    port: u16,
    then: impl FnOnce(&Config, &Verdict),
) -> Family {
    with(|config| {
        let verdict = config.decide(role, address, port);
        then(config, &verdict);
        verdict.family
    })
    .unwrap_or(Family::Both)
}

/// Counts the tables that were in force: a caller that keeps a verdict asks again when this has
/// changed.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Acquire)
}

/// The rule file, and the text in front of its rules.
#[derive(Clone, Copy)]
pub(super) struct Texts {
    /// Path with its NUL; empty: no file.
    pub(super) path: &'static [u8],
    pub(super) front: &'static [u8],
    pub(super) program: &'static [u8],
    /// The historic simple mode.
    pub(super) is_simple: bool,
}

/// Reads everything for the first time. True if there is a file, and it was read.
pub(super) fn load(texts: Texts) -> bool {
    // SAFETY: the loader alone uses it now, see `Cell`.
    let known = unsafe { &mut *KNOWN.0.get() };
    let mut is_read = false;
    with_file(texts.path, |found| {
        let file = match found {
            Ok((text, stat)) => {
                known.is_there = true;
                // A file that may still be written is read once more.
                known.version = Some(Version::of(stat)).filter(Version::is_resting);
                is_read = true;
                text
            }
            Err(_) => &[],
        };
        let Some(table) = make(known, texts, file, is_read) else { return };
        // SAFETY: just made, and not in force yet.
        let config = unsafe { table.as_ref() };
        known.shown =
            shown_rules(config, if is_read { RuleState::File } else { RuleState::NoFile });
        tell(known);
        IN_FORCE.store(table.as_ptr(), Ordering::Release);
    });
    if texts.path.first() == Some(&b'/') {
        known.root = stat::of_path(c"/").ok().map(|stat| stat.id);
        NEXT_MS.store(time::coarse_ms() + LOOK_EVERY_MS, Ordering::Release);
    }
    is_read
}

/// A table in memory of its own. `None`: there are no rules, or no memory for them.
fn make(known: &mut Known, texts: Texts, file: &[u8], is_read: bool) -> Option<NonNull<Config>> {
    if texts.front.is_empty() && !is_read && !texts.is_simple {
        return None;
    }
    let mut table = match known.spare.take() {
        Some(spare) => spare,
        None => process::map_private(size_of::<Config>())?.cast(),
    };
    // SAFETY: fresh zeros, which are a valid table, or one that no thread reads any more; aligned
    // to a page.
    let config = unsafe { table.as_mut() };
    config.clear();
    config.load_text(texts.front, file);
    if texts.is_simple {
        config.set_simple();
    }
    config.prepare(texts.program);
    Some(table)
}

fn shown_rules(config: &Config, state: RuleState) -> Rules {
    Rules {
        state: state as u32,
        rules: config.rules().len() as u32,
        errors: 0,
        changes: generation(),
        since_s: time::unix_s(),
        judged_s: time::unix_s(),
    }
}

/// Shows tools the state in force.
fn tell(known: &Known) {
    SHOWN.set(&known.shown);
    publish();
}

/// The same on a page that has just been made.
pub(crate) fn publish() {
    if let Some(page) = page::current() {
        page.set_rules(&SHOWN.get());
    }
}

/// Properties of the rules in force beside their verdicts.
#[derive(Clone, Copy, Default)]
pub(super) struct Kinds {
    /// Some client gets SDP or nothing, or TCP.
    pub(super) tells_clients_apart: bool,
    /// Some server takes SDP clients only.
    pub(super) has_strict_servers: bool,
}

/// Tunables of the rules in force, and what kinds of rules these are.
pub(super) fn summary() -> (Tunables, Kinds) {
    with(|config| {
        let has = |role, family| {
            config.default_family() == family
                || config.rules().iter().any(|r| r.role == role && r.family == family)
        };
        let kinds = Kinds {
            tells_clients_apart: has(Role::Client, Family::Sdp) || has(Role::Client, Family::Tcp),
            has_strict_servers: has(Role::Server, Family::Sdp),
        };
        (*config.tunables(), kinds)
    })
    .unwrap_or((Tunables::DEFAULT, Kinds::default()))
}

/// Passes the rules in force to the log.
pub(super) fn with_table(body: impl FnOnce(&Config)) {
    let _ = with(body);
}

/// Runs `body` if no other thread is at the settings, in a section. False: another is, or the process ends.
pub(super) fn alone(body: impl FnOnce()) -> bool {
    let _section = section::Guard::enter();
    if process::is_retired() || BUSY.swap(1, Ordering::Acquire) != 0 {
        return false;
    }
    body();
    BUSY.store(0, Ordering::Release);
    true
}

/// Whether it is time to look at the file. Two loads and a reading of the clock that costs no call.
#[inline]
pub(super) fn is_due() -> bool {
    let next = NEXT_MS.load(Ordering::Relaxed);
    next != NEVER && time::coarse_ms() >= next
}

/// Looks at the file. `changed` is called when other rules are in force. For a thread that is
/// [`alone`].
pub(super) fn look(texts: Texts, changed: impl FnOnce()) {
    // SAFETY: the caller has BUSY, see `Cell`.
    let known = unsafe { &mut *KNOWN.0.get() };
    if IN_DOUBT.swap(0, Ordering::Relaxed) != 0 {
        (known.version, known.spare) = (None, None);
    }
    let before = generation();
    let again_ms = inspect(known, texts);
    let next = if again_ms == NEVER { NEVER } else { time::coarse_ms() + again_ms };
    NEXT_MS.store(next, Ordering::Release);
    if generation() != before {
        changed();
    }
}

/// One look; milliseconds until the next.
fn inspect(known: &mut Known, texts: Texts) -> u64 {
    if let Some(root) = known.root
        && stat::of_path(c"/").is_ok_and(|now| now.id != root)
    {
        keep(known, RuleState::OutOfSight, 0);
        return NEVER;
    }
    let Ok(path) = core::ffi::CStr::from_bytes_with_nul(texts.path) else { return NEVER };
    match stat::of_path(path) {
        Err(Errno(libc::ENOENT | libc::ENOTDIR)) => removed(known, texts),
        Err(_) => {
            keep(known, RuleState::Unreadable, 0);
            LOOK_EVERY_MS
        }
        Ok(stat) if known.version == Some(Version::of(&stat)) => {
            if known.shown.state == RuleState::Unreadable as u32 {
                known.shown.state = RuleState::File as u32; // it is back as it was
                tell(known);
            }
            LOOK_EVERY_MS
        }
        Ok(stat) if !rests(stat.changed_ns) => LOOK_SOON_MS,
        Ok(_) => reread(known, texts),
    }
}

/// There is no file. Some editors take it away for a moment: that shows in its directory.
fn removed(known: &mut Known, texts: Texts) -> u64 {
    if !known.is_there {
        return LOOK_EVERY_MS;
    }
    let mut directory = [0u8; super::PATH_MAX];
    let end = texts.path.iter().rposition(|b| *b == b'/').unwrap_or(0).max(1);
    if let (Some(to), Some(from)) = (directory.get_mut(..end), texts.path.get(..end)) {
        to.copy_from_slice(from);
    }
    let name = core::ffi::CStr::from_bytes_until_nul(&directory);
    if name.is_ok_and(|name| stat::of_path(name).is_ok_and(|stat| !rests(stat.changed_ns))) {
        return LOOK_SOON_MS;
    }
    (known.is_there, known.version) = (false, None);
    replace(known, texts, &[], false)
}

fn reread(known: &mut Known, texts: Texts) -> u64 {
    let mut again_ms = LOOK_SOON_MS;
    with_file(texts.path, |found| match found {
        Ok((text, stat)) => {
            again_ms = replace(known, texts, text, true);
            if again_ms == LOOK_EVERY_MS {
                (known.is_there, known.version) = (true, Some(Version::of(stat)));
            }
        }
        Err(Errno::ENOENT) => {} // gone since
        Err(_) => {
            keep(known, RuleState::Unreadable, 0);
            again_ms = LOOK_EVERY_MS;
        }
    });
    again_ms
}

/// Puts the rules of a text in force, unless it has errors.
fn replace(known: &mut Known, texts: Texts, file: &[u8], is_read: bool) -> u64 {
    if known.spare.is_some() && READERS.load(Ordering::SeqCst) != 0 {
        return LOOK_SOON_MS; // a thread may be reading the memory for the new table
    }
    let table = make(known, texts, file, is_read);
    if let Some(table) = table {
        // SAFETY: just made, and not in force yet.
        let config = unsafe { table.as_ref() };
        if config.errors_in_file() > 0 {
            log::settings(config);
            keep(known, RuleState::Broken, config.errors_in_file() as u32);
            known.spare = Some(table);
            return LOOK_EVERY_MS;
        }
    }
    let former = IN_FORCE.swap(table.map_or(null_mut(), NonNull::as_ptr), Ordering::SeqCst);
    if let Some(former) = NonNull::new(former) {
        known.spare = Some(former);
    }
    GENERATION.fetch_add(1, Ordering::AcqRel);
    let state = if is_read { RuleState::File } else { RuleState::NoFile };
    known.shown = match table {
        // SAFETY: in force, and not written to.
        Some(table) => shown_rules(unsafe { table.as_ref() }, state),
        None => Rules { changes: generation(), since_s: time::unix_s(), ..Rules::NONE },
    };
    tell(known);
    log::rules_changed(known.shown.rules);
    LOOK_EVERY_MS
}

/// The former rules stay in force; tools see why.
fn keep(known: &mut Known, state: RuleState, errors: u32) {
    if known.shown.state == state as u32 && known.shown.errors == errors {
        return;
    }
    known.shown.state = state as u32;
    known.shown.errors = errors;
    known.shown.judged_s = time::unix_s();
    tell(known);
    log::rules_kept(state, errors);
}

/// In a fork child: threads of the parent that read a table or looked at the file do not exist here.
pub(super) fn become_child() {
    // A word that has its value already is not written: each page that is written costs a copy.
    if READERS.load(Ordering::Relaxed) != 0 {
        READERS.store(0, Ordering::Relaxed);
    }
    if BUSY.load(Ordering::Relaxed) != 0 {
        IN_DOUBT.store(1, Ordering::Relaxed);
        BUSY.store(0, Ordering::Release);
    }
}

/// Passes the file's text on, with the kernel's description of it, or the reason why there is none.
fn with_file(path: &[u8], body: impl FnOnce(Result<(&[u8], &Stat), Errno>)) {
    if path.first().is_none_or(|b| *b == 0) {
        return body(Err(Errno::ENOENT));
    }
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let Ok(path) = CStr::from_bytes_until_nul(path) else { return body(Err(Errno::ENOENT)) };
    let file = match owned(kernel::openat(libc::AT_FDCWD, path, flags, 0)) {
        Ok(file) => file,
        Err(error) => return body(Err(error)),
    };
    // A pipe or a device could make the program wait.
    let stat = match stat::stat(file.raw()) {
        Ok(stat) if stat.is_regular() => stat,
        _ => {
            drop(file);
            return body(Err(Errno::EINVAL));
        }
    };
    let Some(mut buffer) = Zeros::private(FILE_MAX) else {
        drop(file);
        return body(Err(Errno::ENOMEM));
    };
    let mut len = 0;
    while let Some(rest @ [_, ..]) = buffer.get_mut(len..FILE_MAX) {
        match kernel::read(file.raw(), rest) {
            Ok(n) if n > 0 => len += n,
            _ => break,
        }
    }
    drop(file);
    body(Ok((buffer.get(..len).unwrap_or(&[]), &stat)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_a_table() {
        let table: NonNull<Config> =
            process::map_private(size_of::<Config>()).expect("memory").cast();
        // SAFETY: as in `make`.
        let config = unsafe { &mut *table.as_ptr() };
        assert_eq!(config.rules().len(), 0);
        config.clear();
        let empty = Box::new(Config::new());
        assert_eq!(config.default_family(), empty.default_family());
        assert_eq!((config.log(), config.tunables()), (empty.log(), empty.tunables()));
        assert_eq!(config.decide(Role::Client, [0; 16], 1).family, Family::Both);
        config.load_text(b"", b"use tcp client * *:*\n");
        config.prepare(b"x");
        assert_eq!(config.decide(Role::Client, [0; 16], 1).family, Family::Tcp);
    }

    #[test]
    fn a_change_rests_after_a_while() {
        let now = time::unix_ns();
        assert!(!rests(now));
        assert!(rests(now - REST_MS * 1_000_000));
        assert!(rests(now + 3_600_000_000_000), "another clock");
    }
}
