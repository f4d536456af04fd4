//! The hash chains against a plain map.

use std::{collections::HashMap, vec, vec::Vec};

use super::*;

/// Registrations by their numbers: set and data.
type Plain = HashMap<u32, (u32, u64)>;

const SEEDS: u64 = 30;
const OPEN_SETS: u64 = 50;

/// A mirror of its own, with two connections that nothing else uses, and the expected content.
struct Beside {
    mirror: &'static mut Mirror,
    conns: [&'static Conn; 2],
    plain: Plain,
    _memory: process::Fresh,
}

impl Beside {
    fn new(conns: [&'static Conn; 2]) -> Self {
        let fresh = new_mirror().expect("memory");
        conns.iter().for_each(|conn| conn.registrations.store(0, Ordering::Relaxed));
        // SAFETY: made just now, for this one, which keeps it until it goes itself.
        let mirror = unsafe { fresh.base().cast::<Mirror>().as_mut() };
        Self { mirror, conns, plain: Plain::new(), _memory: fresh }
    }

    fn add(&mut self, conn: usize, set: u32, data: u64) {
        let at = self.mirror.add(set, self.conns[conn], 5, 0, data).expect("a place");
        assert_eq!(self.plain.insert(at, (set, data)), None);
    }

    /// Each registration is on its chain and on no other, once, and nothing else is on any.
    fn check(&self) {
        let Self { mirror, plain, .. } = self;
        let counts = &mirror.counts;
        assert!(counts.chains.is_power_of_two() && counts.used <= counts.chains);
        let mut times = vec![0; counts.used as usize];
        for chain in 0..counts.chains as usize {
            let mut at = mirror.registrations[chain].chain.wrapping_sub(1);
            while at != NONE {
                let reg = &mirror.registrations[at as usize];
                times[at as usize] += 1;
                assert!(times[at as usize] == 1, "a chain is a loop, or two have met");
                assert!(reg.is_used && mirror.chain_of(reg.set, reg.data) == chain);
                assert_eq!(plain.get(&at), Some(&(reg.set, reg.data)));
                at = reg.next_hash;
            }
        }
        assert_eq!(times.iter().sum::<usize>(), plain.len());
        let later = counts.chains as usize..(2 * counts.chains as usize).min(REGISTRATIONS);
        assert!(mirror.registrations[later].iter().all(|place| place.chain == 0));
        let next = |at: &u32| mirror.registrations.get(*at as usize).map(|reg| reg.next_hash);
        let free = core::iter::successors(Some(counts.free), next).take_while(|at| *at != NONE);
        assert_eq!(free.count() + plain.len(), counts.used as usize);
    }

    fn end(self) {}
}

/// Numbers that look random.
fn draw(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn two_conns() -> [&'static Conn; 2] {
    [0; 2].map(|_| conn::create(Stage::Candidate).expect("a slot").1)
}

#[test]
fn chains_keep_what_was_put_on_them() {
    let conns = two_conns();
    for seed in 1..=SEEDS {
        let mut both = Beside::new(conns);
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (0..OPEN_SETS).for_each(|_| assert!(both.mirror.open_set(100).is_some()));
        let most = if seed % 10 == 0 { 4000 } else { 1 + draw(&mut state) as usize % 300 };
        for step in 0..most * 12 {
            let set = (draw(&mut state) % OPEN_SETS) as u32;
            // Some of them equal, some on neighbouring chains, some anywhere.
            let data = match draw(&mut state) % 4 {
                0 => draw(&mut state) % 8,
                1 => draw(&mut state),
                2 => (draw(&mut state) % 4096) << 12,
                _ => draw(&mut state) % 4096,
            };
            let what = draw(&mut state) % 10;
            if what < 5 && both.plain.len() < most || both.plain.is_empty() {
                both.add(step % 2, set, data);
                continue;
            }
            let numbers: Vec<u32> = both.plain.keys().copied().take(4).collect();
            let at = numbers[draw(&mut state) as usize % numbers.len()];
            if what < 8 {
                both.mirror.remove(at);
                both.plain.remove(&at);
            } else {
                both.mirror.rehash(at, data);
                both.plain.entry(at).and_modify(|entry| entry.1 = data);
            }
            if step % 97 == 0 {
                both.check();
            }
        }
        both.check();
        both.end();
    }
}

#[test]
fn all_places_can_be_had_and_no_more() {
    let mut both = Beside::new(two_conns());
    let set = both.mirror.open_set(3).expect("a set");
    (0..REGISTRATIONS as u64).for_each(|data| both.add(0, set, data));
    both.check();
    assert_eq!(both.mirror.add(set, both.conns[0], 5, 0, 0), None);
    both.end();
}

/// A thread that has got events of the kernel's, and comes for the lock after others have changed the set.
#[test]
fn data_of_a_registration_that_was_removed_meanwhile_are_known() {
    const HUP: u32 = libc::EPOLLHUP as u32;
    let both = Beside::new(two_conns());
    // Nothing was ever on a lane in the last of them.
    let sets = [3, 4, 5].map(|fd| both.mirror.open_set(fd).expect("a set"));
    for set in &sets[..2] {
        both.mirror.set(*set).expect("a set").had_lane = true;
    }
    // The test leaves its subject out where there is one thread.
    let (tell, wait) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || _ = wait.recv());
    let before = stale::latest();
    let conn = both.conns[0];
    let m = &mut *both.mirror;
    let set_of = |data: u64| sets[data as usize % 3];
    let has = |m: &mut Mirror, events, data: u64, since| {
        let event = epoll_event { events, u64: data };
        assert!(!m.is_late(sets[(data as usize + 1) % 3], &event, since));
        m.is_late(set_of(data), &event, since)
    };
    for data in 0..6000 {
        // The last ones are level-triggered.
        let events = if data < 4500 { IN | ONESHOT } else { IN };
        assert_eq!(m.add(set_of(data), conn, 5, events, data), Some(data as u32));
    }
    assert!(!(0..6000).any(|data| has(m, IN, data, before)));
    (0..1500).for_each(|at| m.remove(at));
    (1500..3000).for_each(|at| m.rehash(at, 1 << 40 | u64::from(at)));
    (4500..6000).for_each(|at| m.remove(at));
    assert!(!(0..6000).any(|data| data % 3 == 2 && has(m, IN, data, before)));
    assert!(!(3000..6000).any(|data| has(m, IN, data, before)));
    // Here and there four of the same hash are newer.
    let known = (0..3000).filter(|data| has(m, IN | HUP, *data, before)).count();
    assert!((1900..=2000).contains(&known), "{known}");
    assert!((2980..3000).all(|data| has(m, IN, data, before) == (data % 3 != 2)));
    // A wait that began later cannot bring them.
    let later = stale::latest();
    assert!(!(0..3000).any(|data| has(m, IN, data, later)));
    // A registration has them again.
    m.stale_data.forget(sets[0], 2997);
    assert!(!has(m, IN, 2997, before) && has(m, IN, 2998, before));
    assert!(has(m, IN, 2998, before) && !m.is_taken(sets[1], 2998));
    assert_eq!(m.add(sets[1], conn, 5, IN, 2998).map(|at| at < 6000), Some(true));
    assert!(m.is_taken(sets[1], 2998));
    // A registration has them, but it is not known which.
    m.set(sets[1]).expect("a set").noted = 1;
    assert!(!has(m, IN, 2998, before));
    // The hidden eventfd's data, now and before; the errors that a foreign doorbell beside it
    // reports are its holder's choice.
    m.stale_data.note(sets[0], 4500, Owner::Doorbell);
    m.set(sets[1]).expect("a set").hidden = Some(4501);
    for data in [4500, 4501] {
        assert!(has(m, IN, data, later) && !has(m, IN | OUT, data, later));
    }
    assert!(has(m, IN | HUP, 4500, later));
    assert!(has(m, IN, 4501, stale::latest()) && !has(m, IN, 4500, stale::latest()));
    both.end();
    drop(tell);
    other.join().expect("a thread");
}
