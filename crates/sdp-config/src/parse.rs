//! From text to rules, line by line. A bad line costs itself, nothing else.

use crate::addr::{AddressMatch, PortRange, Target, parse_int, parse_target};
use crate::config::{Config, LogDestination};
use crate::diag::Problem;
use crate::line::{Compact, Line, MAX_LINE, Spelling};
use crate::place::{Place, Source};
use crate::rule::{Dialect, Family, Role, Rule};
use crate::tunables::SetError;

/// A problem at a place: the line is skipped.
type Failure = (Problem, Place);

impl Config {
    /// Loads rules: first those in `front` (one statement per line; they are consulted first and
    /// their log statements win), then those of `file`. Adds to what is there already. Never fails:
    /// mistakes are in [`Config::diagnostics`].
    pub fn load_text(&mut self, front: &[u8], file: &[u8]) {
        self.load_source(front, Source::Front);
        self.load_source(file, Source::File);
    }

    fn load_source(&mut self, text: &[u8], source: Source) {
        let mut seen = Seen { source, ..Seen::default() };
        let mut number = 0u32;
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.iter().position(|b| *b == b'\n');
            let line = rest.get(..end.unwrap_or(rest.len())).unwrap_or(b"");
            rest = end.and_then(|end| rest.get(end.wrapping_add(1)..)).unwrap_or(b"");
            number = number.saturating_add(1);
            let bare = line.strip_suffix(b"\r").unwrap_or(line);
            let cursor = Line::new(bare, number, source);
            if bare.len() != line.len() && !seen.carriage_return {
                seen.carriage_return = true;
                self.report(Problem::CarriageReturn, cursor.place(bare.len(), 1));
            }
            if bare.len() > MAX_LINE {
                self.report(Problem::LineTooLong, cursor.place(MAX_LINE, 0));
            } else if let Some(at) = bare.iter().position(|b| *b == 0) {
                self.report(Problem::NulByte, cursor.place(at, 1));
            } else if let Err((problem, place)) = self.load_line(cursor, &mut seen) {
                self.report(problem, place);
            }
            // Rules on a command line have no newline of their own.
            if end.is_none() && source == Source::File && !bare.trim_ascii().is_empty() {
                self.report(Problem::NoNewline, cursor.place(bare.len(), 0));
            }
        }
        if source == Source::File && seen.has_match {
            if seen.has_use {
                self.report(
                    Problem::MixedDialects,
                    seen.mixed_at.unwrap_or(Place { source, line: 1, column: 1, len: 0 }),
                );
            } else {
                self.default = Family::Tcp; // `match` names what gets SDP; the rest stays TCP
            }
        }
    }

    fn load_line(&mut self, mut line: Line<'_>, seen: &mut Seen) -> Result<(), Failure> {
        if line.is_done() {
            return Ok(());
        }
        let start = line.here();
        if self.keyword(&mut line, "use") {
            seen.note(Dialect::Ofed, line.whole());
            self.load_use(line)
        } else if self.keyword(&mut line, "log") {
            self.load_log(line, seen.source)
        } else if self.keyword(&mut line, "option") {
            self.load_option(line)
        } else if self.keyword(&mut line, "match") {
            seen.note(Dialect::Topspin, line.whole());
            self.load_match(line)
        } else {
            Err((Problem::UnknownStatement, start))
        }
    }

    /// Reads a keyword; another case than lower is tolerated with a warning.
    fn keyword(&mut self, line: &mut Line<'_>, word: &str) -> bool {
        line.skip_blanks();
        let place = Place { len: word.len() as u16, ..line.here() };
        let found = line.keyword(word);
        if found == Some(Spelling::OtherCase) {
            self.report(Problem::KeywordCase, place);
        }
        found.is_some()
    }

    // ---- use -------------------------------------------------------------------------------

    fn load_use(&mut self, mut line: Line<'_>) -> Result<(), Failure> {
        let whole = line.whole();
        line.skip_blanks();
        let family = if self.keyword(&mut line, "sdp") {
            Family::Sdp
        } else if self.keyword(&mut line, "tcp") {
            Family::Tcp
        } else if self.keyword(&mut line, "both") {
            Family::Both
        } else {
            return Err((Problem::MissingFamily, line.here()));
        };
        line.skip_blanks();
        let role = if self.keyword(&mut line, "server") || self.keyword(&mut line, "listen") {
            Role::Server
        } else if self.keyword(&mut line, "client") || self.keyword(&mut line, "connect") {
            Role::Client
        } else {
            return Err((Problem::MissingRole, line.here()));
        };
        if line.is_done() {
            return Err((Problem::MissingProgram, line.here()));
        }
        let before = line;
        let (word, word_place) = line.word();
        let mut program = word;
        if line.is_done() && word.contains(&b':') {
            // The only field is an address: the program was left out.
            self.report(Problem::NoProgram, word_place);
            program = b"*";
            line = before;
        }
        let target = self.load_target(&mut line)?;
        let place = whole;
        self.add_rule(Dialect::Ofed, family, role, program, &target, place)
    }

    /// The rest of the line as `address[/prefix]:ports`, blanks allowed around the punctuation.
    fn load_target(&mut self, line: &mut Line<'_>) -> Result<Target, Failure> {
        let (text, at) = line.until_comment();
        let target = target_at(line, text, at)?;
        for problem in target.tolerated.into_iter().flatten() {
            self.report(problem, line.place(at, text.len()));
        }
        Ok(target)
    }

    fn add_rule(
        &mut self,
        dialect: Dialect,
        family: Family,
        role: Role,
        program: &[u8],
        target: &Target,
        place: Place,
    ) -> Result<(), Failure> {
        let program = self.intern(program).map_err(|problem| (problem, place))?;
        let Target { address, ports, .. } = *target;
        let rule = Rule { dialect, family, role, program, address, ports, place };
        self.push_rule(rule).map_err(|problem| (problem, place))
    }

    // ---- log -------------------------------------------------------------------------------

    fn load_log(&mut self, mut line: Line<'_>, source: Source) -> Result<(), Failure> {
        while !line.is_done() {
            if self.keyword(&mut line, "destination") {
                let destination = self.log_destination(&mut line)?;
                self.has_log = true;
                if source == Source::Front || !self.log_destination_fixed {
                    self.log.destination = destination;
                    self.log_destination_fixed |= source == Source::Front;
                }
            } else if self.keyword(&mut line, "min-level") {
                let (word, place) = line.word();
                let level = parse_int(word).ok_or((Problem::BadLogLevel, place))?;
                self.has_log = true;
                if !(1..=9).contains(&level) {
                    self.report(Problem::LevelRange, place);
                }
                if source == Source::Front || !self.log_level_fixed {
                    // Historic: 0 is as 1, and 10 silences everything.
                    self.log.min_level = level.clamp(1, 10) as u8;
                    self.log_level_fixed |= source == Source::Front;
                }
            } else {
                return Err((Problem::BadLogKeyword, line.here()));
            }
        }
        Ok(())
    }

    fn log_destination(&mut self, line: &mut Line<'_>) -> Result<LogDestination, Failure> {
        line.skip_blanks();
        if self.keyword(line, "stderr") {
            Ok(LogDestination::Stderr)
        } else if self.keyword(line, "syslog") {
            Ok(LogDestination::Syslog)
        } else if self.keyword(line, "file") {
            let (name, place) = line.word();
            if name.is_empty() {
                return Err((Problem::BadLogDestination, place));
            }
            self.intern(name).map(LogDestination::File).map_err(|problem| (problem, place))
        } else {
            Err((Problem::BadLogDestination, line.here()))
        }
    }

    // ---- option ----------------------------------------------------------------------------

    fn load_option(&mut self, mut line: Line<'_>) -> Result<(), Failure> {
        let whole = line.whole();
        if line.is_done() {
            return Err((Problem::MissingKey, whole));
        }
        let (key, key_place) = line.word();
        let (value, at) = line.until_comment();
        if value.is_empty() {
            return Err((Problem::MissingKey, whole));
        }
        self.tunables.set(key, value).map_err(|error| match error {
            SetError::UnknownKey => (Problem::UnknownKey, key_place),
            SetError::BadValue(_) => (Problem::BadValue, line.place(at, value.len())),
        })
    }

    // ---- match -----------------------------------------------------------------------------

    /// `match` expressions: all of them must hold. Equivalents in terms of `use` are in the
    /// language description.
    fn load_match(&mut self, mut line: Line<'_>) -> Result<(), Failure> {
        let whole = line.whole();
        let mut program: &[u8] = b"*";
        let mut has_program = false;
        let mut client: Option<Target> = None;
        let mut server: Option<(Family, Target)> = None;
        if line.is_done() {
            return Err((Problem::BadMatch, whole));
        }
        while !line.is_done() {
            if self.keyword(&mut line, "destination") {
                client = Some(match_target(&mut line)?);
            } else if self.keyword(&mut line, "listen") {
                server = Some((Family::Sdp, match_target(&mut line)?));
            } else if self.keyword(&mut line, "shared") {
                server = Some((Family::Both, match_target(&mut line)?));
            } else if self.keyword(&mut line, "program") {
                let (word, place) = line.word();
                if word.is_empty() {
                    return Err((Problem::BadMatch, place));
                }
                (program, has_program) = (word, true);
            } else {
                return Err((Problem::BadMatch, line.here()));
            }
        }
        let any =
            Target { address: AddressMatch::Any, ports: PortRange::ANY, tolerated: [None; 3] };
        if client.is_none() && server.is_none() && has_program {
            client = Some(any);
            server = Some((Family::Sdp, any));
        } else if client.is_some() && server.is_some() {
            self.report(Problem::SplitMatch, whole);
        }
        if let Some((family, target)) = server {
            self.add_rule(Dialect::Topspin, family, Role::Server, program, &target, whole)?;
        }
        if let Some(target) = client {
            self.add_rule(Dialect::Topspin, Family::Sdp, Role::Client, program, &target, whole)?;
        }
        Ok(())
    }
}

/// A target of the `match` dialect, where a missing port and `*.*` are ordinary.
fn match_target(line: &mut Line<'_>) -> Result<Target, Failure> {
    let (word, place) = line.word();
    target_at(line, word, usize::from(place.column).saturating_sub(1))
}

/// Parses `text`, which stands at byte `at` of the line.
fn target_at(line: &Line<'_>, text: &[u8], at: usize) -> Result<Target, Failure> {
    let compact = Compact::new(text);
    if compact.is_too_long {
        return Err((Problem::BadAddress, line.place(at, text.len())));
    }
    let target = parse_target(compact.bytes()).map_err(|(problem, offset)| {
        let origin = compact.origin(offset);
        (problem, line.place(at.saturating_add(origin), text.len().saturating_sub(origin)))
    })?;
    if let Some(extra) = compact.extra {
        let len = text.len().saturating_sub(extra);
        return Err((Problem::TrailingText, line.place(at.saturating_add(extra), len)));
    }
    Ok(target)
}

/// Statements found in one text.
struct Seen {
    source: Source,
    has_use: bool,
    has_match: bool,
    carriage_return: bool,
    /// The first statement of the second dialect.
    mixed_at: Option<Place>,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            source: Source::File,
            has_use: false,
            has_match: false,
            carriage_return: false,
            mixed_at: None,
        }
    }
}

impl Seen {
    fn note(&mut self, dialect: Dialect, place: Place) {
        match dialect {
            Dialect::Ofed => self.has_use = true,
            Dialect::Topspin => self.has_match = true,
        }
        if self.has_use && self.has_match && self.mixed_at.is_none() {
            self.mixed_at = Some(place);
        }
    }
}
