//! Which rule decides.

use crate::config::{Config, Family, Place, Role, Rule};
use crate::diag::Problem;
use crate::glob::{covers, glob_match};

/// The verdict for a socket, and its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The verdict.
    pub family: Family,
    /// Number of the deciding rule in [`Config::rules`]; `None`: no rule matched.
    pub rule: Option<usize>,
    /// Where the deciding rule stands.
    pub place: Option<Place>,
}

/// Why one rule did or did not match, in the order in which it is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// All three match.
    Yes,
    /// For the other role.
    Role,
    /// Another program.
    Program,
    /// Another port.
    Port,
    /// Another address.
    Address,
}

impl Config {
    /// The first rule of this role that matches decides; none: [`Config::default_family`].
    ///
    /// `program` is the short name of the program; `addr` (network order, IPv4 as v4-mapped) and
    /// `port` are the local ones at `listen`, the remote ones at `connect`.
    pub fn evaluate(&self, role: Role, program: &[u8], addr: [u8; 16], port: u16) -> Verdict {
        let matches = |rule: &Rule| self.judge(rule, role, program, addr, port) == Match::Yes;
        self.verdict(self.rules().iter().enumerate().find(|(_, rule)| matches(rule)))
    }

    /// The verdict of this rule, or of no rule.
    pub(crate) fn verdict(&self, found: Option<(usize, &Rule)>) -> Verdict {
        match found {
            Some((number, rule)) => {
                Verdict { family: rule.family, rule: Some(number), place: Some(rule.place) }
            }
            None => Verdict { family: self.default_family(), rule: None, place: None },
        }
    }

    /// Whether one rule matches, and if not, why.
    pub fn judge(
        &self,
        rule: &Rule,
        role: Role,
        program: &[u8],
        addr: [u8; 16],
        port: u16,
    ) -> Match {
        if rule.role != role {
            Match::Role
        } else if !glob_match(self.text(rule.program), program) {
            Match::Program
        } else if !rule.ports.contains(port) {
            Match::Port
        } else if !rule.address.matches(addr) {
            Match::Address
        } else {
            Match::Yes
        }
    }

    /// The verdict for *every* socket of this role in a program, if the rules do not depend on the
    /// address. Lets the library skip a program whose sockets are all TCP.
    pub fn always(&self, role: Role, program: &[u8]) -> Option<Family> {
        let mut sure: Option<Family> = None;
        let mine = |rule: &&Rule| rule.role == role && glob_match(self.text(rule.program), program);
        for rule in self.rules().iter().filter(mine) {
            if sure.is_some_and(|family| family != rule.family) {
                return None;
            }
            sure = Some(rule.family);
            if rule.address.covers(crate::AddressMatch::Any)
                && rule.ports.covers(crate::PortRange::ANY)
            {
                return sure;
            }
        }
        match sure {
            Some(family) if family != self.default_family() => None,
            _ => Some(self.default_family()),
        }
    }

    /// Adds a warning for each rule that an earlier one of the same role covers entirely. Not part
    /// of loading because it compares all pairs of rules.
    pub fn check_reachability(&mut self) {
        for number in 0..self.rules().len() {
            let Some((later, earlier)) = self.rules().get(..=number).and_then(<[Rule]>::split_last)
            else {
                return;
            };
            let is_covered = earlier.iter().any(|rule| {
                rule.role == later.role
                    && rule.address.covers(later.address)
                    && rule.ports.covers(later.ports)
                    && covers(self.text(rule.program), self.text(later.program))
            });
            let place = later.place;
            if is_covered {
                self.report(Problem::NeverReached, place);
            }
        }
    }
}
