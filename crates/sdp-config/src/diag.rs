//! The mistake in a line, and how to correct it.

use core::fmt;

use crate::place::{Place, Source};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Read as it was probably meant.
    Warning,
    /// The line has no effect.
    Error,
}

macro_rules! problems {
    ($($variant:ident $severity:ident $code:literal $message:literal $help:literal;)*) => {
        /// A cause of a diagnostic.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Problem {
            $(#[doc = $message] $variant,)*
        }

        impl Problem {
            /// Every problem.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Whether the line still has an effect.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)* }
            }

            /// Short stable name, for scripts.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// The mistake.
            pub const fn message(self) -> &'static str {
                match self { $(Self::$variant => $message,)* }
            }

            /// The correction.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }
        }
    };
}

problems! {
    UnknownStatement Error "unknown-statement" "not a statement of this file"
        "a line begins with use, log, option or match; # begins a comment";
    MissingFamily Error "missing-family" "expected sdp, tcp or both"
        "write: use sdp|tcp|both server|client PROGRAM ADDRESS:PORT";
    MissingRole Error "missing-role" "expected server, listen, client or connect"
        "write: use sdp|tcp|both server|client PROGRAM ADDRESS:PORT";
    MissingProgram Error "missing-program" "the rule names neither a program nor an address"
        "write * for every program: use both server * *:*";
    BadAddress Error "bad-address" "not an address"
        "write *, an IPv4 or IPv6 address, or ADDRESS/PREFIX; host names are not looked up";
    BadPrefix Error "bad-prefix" "not a prefix length of this address family"
        "write a number from 0 to 32 (IPv4) or 128 (IPv6), not a netmask";
    BadPort Error "bad-port" "not a port, a range of ports or *"
        "write *, PORT or FIRST-LAST, without leading zeros";
    PortTooBig Error "port-too-big" "a port above 65535"
        "ports are 0 to 65535";
    ReversedPorts Error "reversed-ports" "the range of ports ends before it begins"
        "write the lower port first";
    TrailingText Error "trailing-text" "unexpected text at the end of the statement"
        "one statement per line; # begins a comment";
    LineTooLong Error "line-too-long" "the line is too long"
        "at most 1024 bytes";
    BadLogKeyword Error "bad-log-keyword" "expected destination or min-level"
        "write: log destination stderr|syslog|file NAME min-level 1-9";
    BadLogDestination Error "bad-log-destination" "expected stderr, syslog or file NAME"
        "write: log destination stderr|syslog|file NAME";
    BadLogLevel Error "bad-log-level" "not a log level"
        "1 shows everything, 7 a line per connection, 9 errors only";
    BadMatch Error "bad-match" "expected destination, listen, shared or program"
        "write: match destination|listen|shared ADDRESS:PORT [program PATTERN]";
    MissingKey Error "missing-key" "an option needs a key and a value"
        "write: option KEY VALUE";
    UnknownKey Error "unknown-key" "no tunable has this name"
        "see the manual of libsdp.conf for the list";
    BadValue Error "bad-value" "the tunable cannot have this value; it keeps the one it had"
        "see the manual of libsdp.conf for its range";
    TooManyRules Error "too-many-rules" "too many rules; this one and those behind it are ignored"
        "at most 2048 rules are kept; a line of the match language may make two";
    TooMuchText Error "too-much-text" "too much text in program and file names; this line is ignored"
        "shorten the patterns";
    NulByte Error "nul-byte" "the line contains a zero byte"
        "is this a text file?";
    KeywordCase Warning "keyword-case" "keywords are lower case"
        "write it in lower case, for other versions of the library";
    CarriageReturn Warning "carriage-return" "the file has carriage returns at the line ends"
        "convert it to plain newlines, for other versions of the library";
    NoNewline Warning "no-newline" "the last line does not end with a newline"
        "add one, for other versions of the library";
    MissingTarget Warning "missing-target" "no address; read as *"
        "write *:* for every address and port";
    MissingPort Warning "missing-port" "no port; read as every port"
        "write :* behind the address";
    StarDotStar Warning "star-dot-star" "*.* is read as *:*"
        "write *:*";
    NoProgram Warning "no-program" "no program; read as every program"
        "write * before the address";
    AddressSpelling Warning "address-spelling" "brackets or capitals in an IPv6 address"
        "write it bare and in lower case, for other versions of the library";
    HostBits Warning "host-bits" "the address has bits behind the prefix; they are ignored"
        "clear them, or make the prefix longer";
    NeverReached Warning "never-reached" "an earlier rule of the same role covers this one; it is never reached"
        "put the narrower rule first";
    LevelRange Warning "level-range" "log levels are 1 to 9"
        "1 shows everything, 9 errors only";
    MixedDialects Warning "mixed-dialects" "use and match statements in one file; what no rule matches gets both"
        "keep to one kind";
    SplitMatch Warning "split-match" "no socket both listens and connects; read as two lines"
        "write one line for each";
}

/// One problem at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Diagnostic {
    /// The mistake.
    pub problem: Problem,
    /// Where.
    pub place: Place,
}

impl Diagnostic {
    /// How bad it is.
    pub const fn severity(&self) -> Severity {
        self.problem.severity()
    }
}

impl fmt::Display for Diagnostic {
    /// `line:column: error: message` (or `rule N:column: …` for a rule given on the command line).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.source == Source::Front {
            f.write_str("rule ")?;
        }
        let kind = match self.severity() {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let Place { line, column, .. } = self.place;
        write!(f, "{line}:{column}: {kind}: {}", self.problem.message())
    }
}
