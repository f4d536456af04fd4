//! Which rule decides.

use crate::addr::{AddressMatch, PortRange};
use crate::config::Config;
use crate::diag::Problem;
use crate::glob::{covers, glob_match};
use crate::place::Place;
use crate::rule::{Family, Role, Rule};

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
            if rule.address.covers(AddressMatch::Any) && rule.ports.covers(PortRange::ANY) {
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

    /// Finds out which rules are for the program with this short name, for [`Config::decide`]. Again
    /// after each change of the rules.
    pub fn prepare(&mut self, program: &[u8]) {
        self.index.begin();
        for role in [Role::Server, Role::Client] {
            let mut nth = [0; 2];
            for number in 0..self.rules().len() {
                let Some(rule) = self.rules().get(number).copied() else { continue };
                if rule.role == role && glob_match(self.text(rule.program), program) {
                    self.index.push(&mut nth, &rule, number as u16);
                }
            }
            if role == Role::Server {
                self.index.end_servers();
            }
        }
    }

    /// [`Config::evaluate`] for the program that the rules were prepared for. Without
    /// [`Config::prepare`]: as if there were no rules.
    pub fn decide(&self, role: Role, address: [u8; 16], port: u16) -> Verdict {
        let found = self.index.find(role, address, port);
        self.verdict(found.and_then(|number| Some((number, self.rules().get(number)?))))
    }

    /// How many steps [`Config::decide`] takes when no rule matches an address of this kind: the
    /// largest cost of a verdict.
    pub fn steps(&self, role: Role, is_v4: bool) -> usize {
        self.index.steps(role, usize::from(!is_v4)).len()
    }
}
