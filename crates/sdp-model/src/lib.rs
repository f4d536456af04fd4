//! A small explicit-state model checker: every state that a model can reach, breadth first.
//!
//! For the protocols of this workspace that no memory model checker can run, because they talk to
//! the kernel or span processes: a test describes the participants as a state with steps, calls the
//! real functions inside the steps where it can, and asks for every interleaving. A state without a
//! step must be one where every participant may rest, and such a state must stay within reach:
//! deadlocks and endless circles are both violations. A 128-bit fingerprint identifies a state. The
//! checker refuses to be vague: it reports how many states it saw, or the shortest way to a
//! violation, and a search that hit its bound is neither a success nor a failure but an error of
//! the test.

use std::{
    collections::{HashMap, VecDeque, hash_map::DefaultHasher},
    fmt::Debug,
    hash::{Hash, Hasher},
};

/// The model to be checked.
pub trait Model {
    /// Everything that distinguishes one moment from another.
    type State: Clone + Hash + Debug;

    /// Where it begins.
    fn start(&self) -> Self::State;

    /// Every step that a participant can take now: its name, and the state after it. `Err`: the
    /// step itself broke a rule.
    fn steps(&self, state: &Self::State, to: &mut Vec<Step<Self::State>>);

    /// Whether the state keeps all promises.
    ///
    /// # Errors
    /// The broken one.
    fn check(&self, state: &Self::State) -> Result<(), String>;

    /// Whether every participant may rest here for ever: asked where there is no step.
    ///
    /// # Errors
    /// Names the participant that is stuck.
    fn may_rest(&self, state: &Self::State) -> Result<(), String>;
}

/// A step: its name, and the state after it.
pub type Step<S> = (&'static str, Result<S, String>);

/// How much there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Steps taken.
    pub steps: usize,
    /// Length of the longest of the shortest ways to a state.
    pub depth: usize,
}

/// A broken promise, and how it came to that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The broken promise.
    pub what: String,
    /// The shortest way there.
    pub way: Vec<&'static str>,
}

/// How a search ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All states were seen and keep the promises.
    Holds(Explored),
    /// One does not; how much had been seen by then.
    Fails(Violation, Explored),
    /// There are more states than the test allows.
    TooMany(Explored),
}

fn fingerprint<S: Hash>(state: &S) -> u128 {
    let part = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        state.hash(&mut hasher);
        hasher.finish()
    };
    u128::from(part(0)) << 64 | u128::from(part(1))
}

/// Searches breadth first, at most `limit` states.
pub fn explore<M: Model>(model: &M, limit: usize) -> Verdict {
    let mut seen: HashMap<u128, u32> = HashMap::new();
    // By number of the state: how it was reached (number of the one before, step).
    let mut reached: Vec<(usize, &'static str, usize)> = Vec::new();
    let mut queue = VecDeque::new();
    let mut explored = Explored { states: 0, steps: 0, depth: 0 };
    let way_to = |reached: &[(usize, &'static str, usize)], mut at: usize| {
        let mut way = Vec::new();
        while at != 0 {
            way.push(reached[at].1);
            at = reached[at].0;
        }
        way.reverse();
        way
    };
    let start = model.start();
    seen.insert(fingerprint(&start), 0);
    reached.push((0, "start", 0));
    queue.push_back((start, 0));
    let mut steps = Vec::new();
    // For the question which states can come to rest: steps by number (to, from), and the states of
    // rest.
    let mut ways_back: Vec<(u32, u32)> = Vec::new();
    let mut rests = Vec::new();
    while let Some((state, number)) = queue.pop_front() {
        explored.states += 1;
        let depth = reached[number].2;
        explored.depth = explored.depth.max(depth);
        let mut fail = model.check(&state).err();
        steps.clear();
        model.steps(&state, &mut steps);
        if steps.is_empty() && fail.is_none() {
            fail = model.may_rest(&state).err();
        }
        if steps.is_empty() {
            rests.push(number as u32);
        }
        if let Some(what) = fail {
            let what = format!("{what}; {state:?}");
            return Verdict::Fails(Violation { what, way: way_to(&reached, number) }, explored);
        }
        for (name, next) in steps.drain(..) {
            explored.steps += 1;
            match next {
                Err(what) => {
                    let mut way = way_to(&reached, number);
                    way.push(name);
                    let what = format!("{what}; {state:?}");
                    return Verdict::Fails(Violation { what, way }, explored);
                }
                Ok(next) => {
                    let fresh = reached.len();
                    let to = *seen.entry(fingerprint(&next)).or_insert(fresh as u32);
                    ways_back.push((to, number as u32));
                    if to as usize == fresh {
                        reached.push((number, name, depth + 1));
                        queue.push_back((next, fresh));
                    }
                }
            }
        }
        if reached.len() > limit {
            return Verdict::TooMany(explored);
        }
    }
    match restless(reached.len(), ways_back, rests) {
        Some(number) => {
            let what = "from here nobody ever comes to rest".to_owned();
            Verdict::Fails(Violation { what, way: way_to(&reached, number) }, explored)
        }
        None => Verdict::Holds(explored),
    }
}

/// The first state from which no rest can be reached: all participants run in circles for ever.
fn restless(states: usize, mut ways_back: Vec<(u32, u32)>, mut rests: Vec<u32>) -> Option<usize> {
    ways_back.sort_unstable();
    let mut can_rest = vec![false; states];
    for rest in &rests {
        can_rest[*rest as usize] = true;
    }
    while let Some(to) = rests.pop() {
        let first = ways_back.partition_point(|(t, _)| *t < to);
        for (_, from) in ways_back[first..].iter().take_while(|(t, _)| *t == to) {
            if !std::mem::replace(&mut can_rest[*from as usize], true) {
                rests.push(*from);
            }
        }
    }
    can_rest.iter().position(|can| !can)
}

/// The model holds. Prints the number of states and steps.
///
/// # Panics
/// If it does not, with the shortest way, or if there are more than `limit` states.
pub fn holds<M: Model>(name: &str, model: &M, limit: usize) -> Explored {
    match explore(model, limit) {
        Verdict::Holds(e) => {
            println!("{name}: holds in {} states, {} steps, depth {}", e.states, e.steps, e.depth);
            e
        }
        Verdict::Fails(v, e) => {
            panic!("{name}: after {} states: {}\n  {}", e.states, v.what, v.way.join("\n  "))
        }
        Verdict::TooMany(e) => panic!("{name}: more than {} states", e.states),
    }
}

/// The model, weakened on purpose, fails. Prints how.
///
/// # Panics
/// If it holds, or if `limit` states did not show that it does not.
pub fn fails<M: Model>(name: &str, model: &M, limit: usize) -> Violation {
    match explore(model, limit) {
        Verdict::Fails(v, e) => {
            let what = v.what.split(';').next().unwrap_or_default();
            println!(
                "{name}: fails, as it must, after {} states and {} steps: {what}",
                e.states,
                v.way.len()
            );
            v
        }
        Verdict::Holds(e) => panic!("{name}: not noticed in {} states", e.states),
        Verdict::TooMany(e) => panic!("{name}: not noticed in the first {} states", e.states),
    }
}

/// How large models may be: `SDP_MODELS` is `unit` (default: seconds in a debug build), `ci` or `long`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// With the unit tests.
    Unit,
    /// The suite `models` of the ladder.
    Ci,
    /// As far as it is useful.
    Long,
}

/// The size that was asked for.
pub fn size() -> Size {
    match std::env::var("SDP_MODELS").as_deref() {
        Ok("ci") => Size::Ci,
        Ok("long") => Size::Long,
        _ => Size::Unit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two participants add one each, by a load and a store.
    struct Adders {
        atomic: bool,
    }

    impl Model for Adders {
        type State = (u8, [u8; 2], [Option<u8>; 2]);

        fn start(&self) -> Self::State {
            (0, [0; 2], [None; 2])
        }

        fn steps(&self, state: &Self::State, to: &mut Vec<Step<Self::State>>) {
            for who in 0..2 {
                let (mut sum, mut done, mut loaded) = *state;
                match loaded[who] {
                    _ if done[who] == 1 => continue,
                    None if self.atomic => {
                        sum += 1;
                        done[who] = 1;
                    }
                    None => loaded[who] = Some(sum),
                    Some(old) => {
                        sum = old + 1;
                        done[who] = 1;
                    }
                }
                to.push(("add", Ok((sum, done, loaded))));
            }
        }

        fn check(&self, _: &Self::State) -> Result<(), String> {
            Ok(())
        }

        fn may_rest(&self, state: &Self::State) -> Result<(), String> {
            if state.0 == 2 { Ok(()) } else { Err("one was lost".to_owned()) }
        }
    }

    /// Goes round for ever, or may leave the circle.
    struct Circle {
        has_exit: bool,
    }

    impl Model for Circle {
        type State = u8;

        fn start(&self) -> u8 {
            0
        }

        fn steps(&self, state: &u8, to: &mut Vec<Step<u8>>) {
            if *state < 3 {
                to.push(("on", Ok((state + 1) % 3)));
            }
            if *state == 2 && self.has_exit {
                to.push(("out", Ok(3)));
            }
        }

        fn check(&self, _: &u8) -> Result<(), String> {
            Ok(())
        }

        fn may_rest(&self, _: &u8) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn finds_circles_without_an_exit() {
        assert!(matches!(explore(&Circle { has_exit: true }, 10), Verdict::Holds(_)));
        assert!(matches!(explore(&Circle { has_exit: false }, 10), Verdict::Fails(..)));
    }

    #[test]
    fn finds_what_interleaving_breaks() {
        let Verdict::Fails(violation, _) = explore(&Adders { atomic: false }, 100) else {
            panic!("not noticed");
        };
        assert_eq!(violation.way.len(), 4, "the shortest way");
        let all = holds("adders", &Adders { atomic: true }, 100);
        assert_eq!((all.states, all.steps, all.depth), (4, 4, 2));
        assert!(matches!(explore(&Adders { atomic: true }, 2), Verdict::TooMany(_)));
    }
}
