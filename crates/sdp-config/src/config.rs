//! The rules of one process in storage of a fixed size, and the log settings.

use crate::addr::{AddressMatch, PortRange};
use crate::diag::{Diagnostic, Problem, Severity};
use crate::index::Index;
use crate::place::{Place, Source};
use crate::rule::{Dialect, Family, MAX_RULES, Role, Rule, Text};
use crate::tunables::Tunables;

/// Bytes for program patterns and the log file name.
pub const POOL_LEN: usize = 61_440;
/// Diagnostics that are kept; further ones are only counted.
pub const MAX_DIAGNOSTICS: usize = 64;

/// Where log lines go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LogDestination {
    /// Descriptor 2.
    Stderr,
    /// The system log.
    Syslog,
    /// A file; its place depends on the user (see the manual). Read with [`Config::text`].
    File(Text),
}

/// The log statements' result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSettings {
    /// A message is written when its level is at least this; 1 all, 9 errors only.
    pub min_level: u8,
    /// Where to.
    pub destination: LogDestination,
}

impl LogSettings {
    /// Before any statement.
    pub const DEFAULT: Self = Self { min_level: 9, destination: LogDestination::Stderr };
}

const NO_PLACE: Place = Place { source: Source::File, line: 0, column: 0, len: 0 };
const NO_RULE: Rule = Rule {
    dialect: Dialect::Ofed,
    family: Family::Both,
    role: Role::Server,
    program: Text { at: 0, len: 0 },
    address: AddressMatch::Any,
    ports: PortRange::ANY,
    place: NO_PLACE,
};
const NO_DIAGNOSTIC: Diagnostic =
    Diagnostic { problem: Problem::UnknownStatement, place: NO_PLACE };

/// Rules, log settings and tunables of one process. Some 320 KiB, most of which is never touched: meant for
/// fresh memory of the kernel's, or for the heap.
///
/// **All bytes zero are a valid value**: every field is an integer, an enumeration that is stored as the
/// number of its variant, of which there is a first, or made of these. [`Config::clear`] makes a
/// configuration without rules of it, and touches none of the large arrays.
#[derive(Debug, Clone)]
pub struct Config {
    rules: [Rule; MAX_RULES],
    rule_count: usize,
    pool: [u8; POOL_LEN],
    pool_len: usize,
    diagnostics: [Diagnostic; MAX_DIAGNOSTICS],
    diagnostic_count: usize,
    errors_in_file: usize,
    pub(crate) default: Family,
    pub(crate) log: LogSettings,
    /// Log settings fixed by the front rules, which the file does not override.
    pub(crate) log_level_fixed: bool,
    pub(crate) log_destination_fixed: bool,
    pub(crate) has_log: bool,
    pub(crate) tunables: Tunables,
    pub(crate) index: Index,
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Config {
    /// No rules: everything gets `both`.
    pub const fn new() -> Self {
        Self {
            rules: [NO_RULE; MAX_RULES],
            rule_count: 0,
            pool: [0; POOL_LEN],
            pool_len: 0,
            diagnostics: [NO_DIAGNOSTIC; MAX_DIAGNOSTICS],
            diagnostic_count: 0,
            errors_in_file: 0,
            default: Family::Both,
            log: LogSettings::DEFAULT,
            log_level_fixed: false,
            log_destination_fixed: false,
            has_log: false,
            tunables: Tunables::DEFAULT,
            index: Index::EMPTY,
        }
    }

    /// Back to [`Config::new`], in place.
    pub fn clear(&mut self) {
        self.rule_count = 0;
        self.pool_len = 0;
        self.diagnostic_count = 0;
        self.errors_in_file = 0;
        self.default = Family::Both;
        self.log = LogSettings::DEFAULT;
        self.log_level_fixed = false;
        self.log_destination_fixed = false;
        self.has_log = false;
        self.tunables = Tunables::DEFAULT;
        self.index.begin();
    }

    /// The historic simple mode (`SIMPLE_LIBSDP`): no rules, every stream socket is SDP only.
    pub const fn set_simple(&mut self) {
        self.default = Family::Sdp;
    }

    /// The rules in force, in order, both roles mixed.
    pub fn rules(&self) -> &[Rule] {
        self.rules.get(..self.rule_count).unwrap_or(&[])
    }

    /// The mistakes, in order of the texts; at most [`MAX_DIAGNOSTICS`].
    pub fn diagnostics(&self) -> &[Diagnostic] {
        self.diagnostics.get(..self.diagnostic_count).unwrap_or(&self.diagnostics)
    }

    /// Diagnostics beyond [`MAX_DIAGNOSTICS`].
    pub const fn dropped_diagnostics(&self) -> usize {
        self.diagnostic_count.saturating_sub(MAX_DIAGNOSTICS)
    }

    /// Lines of the file that have no effect, also those whose diagnostics were not kept.
    pub const fn errors_in_file(&self) -> usize {
        self.errors_in_file
    }

    /// Whether a `log` statement says anything: the library writes no log unasked.
    pub const fn asks_for_log(&self) -> bool {
        self.has_log
    }

    /// Log settings.
    pub const fn log(&self) -> LogSettings {
        self.log
    }

    /// Tunables as the `option` statements left them.
    pub const fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// The verdict for a socket that no rule matches.
    pub const fn default_family(&self) -> Family {
        self.default
    }

    /// The bytes of a piece of text.
    pub fn text(&self, text: Text) -> &[u8] {
        let at = usize::from(text.at);
        self.pool.get(at..at.wrapping_add(usize::from(text.len))).unwrap_or(b"")
    }

    pub(crate) fn report(&mut self, problem: Problem, place: Place) {
        if let Some(slot) = self.diagnostics.get_mut(self.diagnostic_count) {
            *slot = Diagnostic { problem, place };
        }
        self.diagnostic_count = self.diagnostic_count.saturating_add(1);
        if place.source == Source::File && problem.severity() == Severity::Error {
            self.errors_in_file = self.errors_in_file.saturating_add(1);
        }
    }

    pub(crate) fn push_rule(&mut self, rule: Rule) -> Result<(), Problem> {
        let slot = self.rules.get_mut(self.rule_count).ok_or(Problem::TooManyRules)?;
        *slot = rule;
        self.rule_count = self.rule_count.wrapping_add(1);
        Ok(())
    }

    /// Keeps a text. A rule's pattern is often that of the rule before.
    pub(crate) fn intern(&mut self, bytes: &[u8]) -> Result<Text, Problem> {
        if let Some(last) = self.rules().last()
            && self.text(last.program) == bytes
        {
            return Ok(last.program);
        }
        let at = self.pool_len;
        let end = at.checked_add(bytes.len()).ok_or(Problem::TooMuchText)?;
        let room = self.pool.get_mut(at..end).ok_or(Problem::TooMuchText)?;
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.pool_len = end;
        Ok(Text { at: at as u16, len: bytes.len() as u16 })
    }
}

// Offsets in the pool fit the 16 bits of `Text`.
const _: () = assert!(POOL_LEN <= u16::MAX as usize);
