//! The first message on a lane (O10): ends that declare that all their sleepers arm, and
//! connections that get lanes while a thread waits for them.

use super::*;

/// The thread of the consumer's process that gets lanes for the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Getter {
    Attaches { says: Option<u32> },
    Looks,
    Says(u32),
    Done,
}

impl Getter {
    pub(super) fn start(model: &Lanes) -> Self {
        match (model.is_candidate, model.twin) {
            (false, _) => Self::Done,
            (true, Twin::SaysSoFirst) => Self::Looks,
            (true, _) => Self::Attaches { says: None },
        }
    }
}

impl Lanes {
    /// As `promote::install` and `receive::declare_trust`, which has the half's lock.
    pub(super) fn get_lanes(&self, s: &S) -> Option<S> {
        let mut next = s.clone();
        next.getter = match s.getter {
            Getter::Attaches { says } => {
                next.has_lanes = true;
                says.map_or(Getter::Looks, Getter::Says)
            }
            Getter::Looks => {
                let says = if s.early == 0 { ARMS } else { TRUSTS };
                if s.has_lanes { Getter::Says(says) } else { Getter::Attaches { says: Some(says) } }
            }
            Getter::Says(word) if !s.c.has_lock() => {
                next.words[8] = word.into();
                Getter::Done
            }
            Getter::Says(_) | Getter::Done => return None,
        };
        Some(next)
    }
}

/// O10: no wake byte comes with the first message, and none is missed.
#[test]
fn who_says_that_all_sleepers_arm_misses_no_message() {
    let (bytes, switches, limit) = bounds();
    let model = || Lanes::new(Twin::Faithful, bytes, switches).arming();
    holds("lanes, all arm", &model(), limit);
    holds("lanes, all arm, closed", &model().closing(), limit);
    holds("lanes, all arm, killed", &model().dying(), limit);
    holds("lanes, all arm, ended by the consumer", &model().leaving(false), limit);
    holds("lanes, all arm, handed over", &model().leaving(true), limit);
    let (bytes, switches, limit) = takeover_bounds();
    let model = || Lanes::new(Twin::Faithful, bytes, switches).arming();
    holds("lanes, all arm, producer succeeded", &model().takeover_of_producer(), limit);
    holds("lanes, all arm, consumer succeeded", &model().takeover_of_consumer(), limit);
    let wrong = model().sleeping_unarmed();
    fails("lanes, all said to arm, sleeps that arm nothing", &wrong, limit);
}

#[test]
fn a_connection_gets_lanes_while_somebody_waits_for_it() {
    let (bytes, switches, limit) = bounds();
    holds("lanes, candidate", &Lanes::new(Twin::Faithful, bytes, switches).candidate(), limit);
    let closing = Lanes::new(Twin::Faithful, bytes, switches).candidate().closing();
    holds("lanes, candidate, closed", &closing, limit);
    for twin in [Twin::SaysSoFirst, Twin::LooksFirst, Twin::WaitsUncounted] {
        fails(&format!("lanes, {twin:?}"), &Lanes::new(twin, 3, 2).candidate(), 3_000_000);
    }
}
