//! Two measuring processes, a server and its client: how they are started, given orders, asked and
//! ended.
//!
//! Used by every test of `sdp perf` that has such processes; the test decides what they do and how
//! often. The server's first line is its port, orders and answers are lines, and a process ends by
//! itself when its stdin does, so that it hands in its counters. It refuses to take an empty line,
//! or a status that is no success, for an answer.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::peer::Side;
use super::users::Users;
use super::{Pin, Transport};
use crate::Failure;
use crate::collect;
use crate::run::{Environment, RULES_VARIABLE};
use crate::sys;

/// Between two looks whether a process has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A child that does not outlive us in any case.
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // Without effect on one that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a process finds (or does not find) the library.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setting<'a> {
    /// Environment with the library; `None`: nothing is preloaded.
    pub env: Option<&'a Environment>,
    /// Its rules; `None`: its own default.
    pub rules: Option<&'a str>,
    /// Where to hand in pages; `None`: nowhere.
    pub report_to: Option<&'a str>,
    /// The user of the processes; `None`: the caller's.
    pub users: Option<Users>,
}

impl<'a> Setting<'a> {
    /// The library and a place for its pages, or nothing at all.
    pub const fn of(transport: Transport, env: &'a Environment, report_to: &'a str) -> Self {
        match transport {
            Transport::Tcp => Self { env: None, rules: None, report_to: None, users: None },
            Transport::Sdp => {
                Self { env: Some(env), rules: None, report_to: Some(report_to), users: None }
            }
        }
    }

    /// The same for processes of these users.
    pub const fn between(self, users: Option<Users>) -> Self {
        Self { users, ..self }
    }

    fn apply(&self, command: &mut Command) {
        match self.env {
            Some(env) => command.envs(env.set.iter().map(|(k, v)| (k, v))),
            None => command.env_remove("LD_PRELOAD"),
        };
        match self.rules {
            Some(rules) => command.env(RULES_VARIABLE, rules),
            None => command.env_remove(RULES_VARIABLE),
        };
        match self.report_to {
            Some(address) => command.env(collect::VARIABLE, address),
            None => command.env_remove(collect::VARIABLE),
        };
    }
}

/// One of the processes.
pub struct Process {
    child: Guard,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts `sdp NAME server|client --port PORT WORDS`.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        name: &str,
        (side, port): (Side, u16),
        words: &[String],
        pin: Pin,
        setting: Setting<'_>,
    ) -> Result<Self, Failure> {
        let exe =
            std::env::current_exe().map_err(|e| Failure::new("cannot find my own file", e))?;
        let (word, number) = match side {
            Side::Server => ("server", 0),
            Side::Client => ("client", 1),
        };
        let mut command = Command::new(exe);
        command.args([name, word, "--port", &port.to_string()]).args(words);
        setting.apply(&mut command);
        sys::before_exec(&mut command, sys::end_with_parent);
        let cpus = pin.cpus(&sys::allowed_cpus(), number);
        if !cpus.is_empty() {
            sys::before_exec(&mut command, move || sys::pin_to(&cpus));
        }
        if let Some(users) = setting.users {
            users.apply(side, &mut command);
        }
        Self::run(command)
    }

    fn run(mut command: Command) -> Result<Self, Failure> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let start = |e| Failure::new("cannot start a measuring process", e);
        let mut child = Guard(command.spawn().map_err(start)?);
        let orders = child.0.stdin.take();
        let answers = child.0.stdout.take().ok_or_else(|| Failure("no pipe".into()))?;
        Ok(Self { child, orders, answers: BufReader::new(answers) })
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// The CPU time that it has used, ns.
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn cpu_ns(&self) -> Result<u64, Failure> {
        sys::cpu_ns_of(self.id()).map_err(|e| Failure::new("CPU time", e))
    }

    /// Sends a line.
    ///
    /// # Errors
    /// It has ended.
    pub fn order(&mut self, order: &str) -> Result<(), Failure> {
        let orders = self.orders.as_mut().ok_or_else(|| Failure("no pipe".into()))?;
        writeln!(orders, "{order}").map_err(|e| Failure::new("a measuring process", e))
    }

    /// Its next line, without blanks around it.
    ///
    /// # Errors
    /// It has ended, or the line is empty.
    pub fn answer(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|e| Failure::new("a measuring process", e))?;
        match line.trim() {
            "" => Err(Failure("a measuring process ended early".into())),
            word => Ok(word.to_string()),
        }
    }

    /// Its next line, which says `word`.
    ///
    /// # Errors
    /// As [`Self::answer`], or it says something else.
    pub fn expect(&mut self, word: &str) -> Result<(), Failure> {
        match self.answer()?.as_str() {
            answer if answer == word => Ok(()),
            answer => Err(Failure(format!("a measuring process says {answer:?}, not {word:?}"))),
        }
    }

    /// A server's first line.
    ///
    /// # Errors
    /// As [`Self::answer`], or it is no port.
    pub fn port(&mut self) -> Result<u16, Failure> {
        self.answer()?.parse().map_err(|e| Failure::new("the server gave no port", e))
    }

    /// Whether it has ended, which it is given this long for.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            match self.child.0.try_wait() {
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
                Ok(status) => return status.is_some(),
                Err(_) => return false,
            }
        }
    }

    /// Lets it end by itself.
    ///
    /// # Errors
    /// It does not end well.
    pub fn end(&mut self) -> Result<(), Failure> {
        drop(self.orders.take());
        let status = self.child.0.wait().map_err(|e| Failure::new("a measuring process", e))?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure(format!("a measuring process ended with {status}"))),
        }
    }
}

/// Both.
pub struct Pair {
    /// Accepts.
    pub server: Process,
    /// Connects.
    pub client: Process,
}

impl Pair {
    /// Starts `sdp NAME server|client --port PORT WORDS`, the server first.
    ///
    /// # Errors
    /// A process does not start, or the server names no port.
    pub fn start<'a>(
        name: &str,
        words: &[String],
        pin: Pin,
        setting: impl Fn(Side) -> Setting<'a>,
    ) -> Result<Self, Failure> {
        let start =
            |side: Side, port| Process::start(name, (side, port), words, pin, setting(side));
        let mut server = start(Side::Server, 0)?;
        let port = server.port()?;
        Ok(Self { client: start(Side::Client, port)?, server })
    }

    /// The CPU time that both have used, ns.
    ///
    /// # Errors
    /// As for one of them.
    pub fn cpu_ns(&self) -> Result<u64, Failure> {
        Ok(self.server.cpu_ns()? + self.client.cpu_ns()?)
    }

    /// Lets both end by themselves, so that they hand in their pages. The client closes first: its
    /// ports are the ones that wait.
    ///
    /// # Errors
    /// One does not end well.
    pub fn end(mut self) -> Result<(), Failure> {
        self.client.end()?;
        self.server.end()
    }
}
