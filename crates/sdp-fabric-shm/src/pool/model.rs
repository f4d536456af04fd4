//! A model of the offer slot: two processes that have segments in common and use them for further
//! connections, both ways, while either may close, fork or be killed between any two steps.
//!
//! The pools and their steps on offer slots and control pages are the real ones, on memory of the
//! model's; its own are sockets, processes and the proof (which process holds which end). The steps
//! of [`Pool::take`] are taken one at a time, with the pool's lock held; all other functions change
//! what the other process sees in one store, and are one step. Promises: one connection at a time
//! has a segment, the same at both ends, no child of either process has it mapped without the
//! connection, and no process offers it before both have released it; nothing is emptied while it
//! is in use, or for a connection that the other process does not have; an end that is left alone
//! there does not see the other one attached; and without a disturbance no end is left alone, nor
//! waits for ever.

use std::{
    boxed::Box,
    cell::Cell,
    format,
    string::{String, ToString},
    thread_local, vec,
    vec::Vec,
};

use sdp_model::{Model, Size, Step, fails, holds, size};

use super::*;
use crate::rendezvous::PeerInfo;

/// Which rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    /// None.
    Faithful,
    /// A segment's connections are not counted.
    CountsNoLives,
    /// An end releases while a call still uses the segment.
    ReleasesEarly,
    /// The control page is emptied before it is known which process it belongs to.
    WipesFirst,
    /// A fork leaves offers open.
    ForksWithOffer,
    /// No end asks the kernel.
    ProvesNothing,
    /// A segment whose offer was withdrawn is offered a second time.
    OffersAgain,
}

/// Segments at most.
const SEGMENTS: usize = 2;
/// Bytes of a control page.
const PAGE: usize = segment::HEADER_BYTES;

#[repr(C, align(4096))]
struct Memory([u8; PAGE]);

thread_local! {
    static MEMORY: [NonNull<u8>; SEGMENTS] =
        [(); SEGMENTS].map(|()| NonNull::from(Box::leak(Box::new(Memory([0; PAGE])))).cast());
    static PEER: Cell<Option<PeerId>> = const { Cell::new(None) };
}
static PEERS: PeerTable = PeerTable::new();

/// Where one end is with a connection; with the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Candidate,
    Meeting,
    /// An offer, and whether its descriptor is that of the connection's other end.
    Found(usize, bool),
    Proven(usize, bool),
    Wiped(usize),
    Shown(usize),
    Offered(usize),
    Answered(usize, bool),
    Agreed(usize),
    ByName,
    Attached(usize),
    /// Has released, and still uses it.
    Late(usize),
    Ended,
}

/// A control page and its offer slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Page {
    claim: u32,
    /// Released, gone, descriptor, slot, name.
    places: [[u32; 4 + NAME_WORDS]; 2],
    /// By end: the connection that uses it, + 1.
    marks: [u32; 2],
}

/// A [`Record`], without the parts that never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Kept {
    state: u8,
    life: u32,
    owner: u32,
    generation: u64,
    has_remote: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct S {
    pages: [Page; SEGMENTS],
    pools: [[Option<Kept>; SEGMENTS]; 2],
    ends: Vec<[At; 2]>,
    /// By connection: the end that made it is another process's.
    namesake: Vec<bool>,
    /// By connection: the end that accepted it is.
    elsewhere: Vec<bool>,
    alive: [bool; 2],
    generations: [u64; 2],
    /// A child has it mapped, with the connection that its parent had there: its number + 1; 0 with none.
    inherited: [Option<u32>; SEGMENTS],
    disturbances: u8,
}

struct OfferSlots {
    twin: Twin,
    /// By segment: the end that made its first connection.
    first: Vec<usize>,
    /// By further connection: the end that makes it.
    further: Vec<usize>,
    /// Kills and forks.
    disturbances: u8,
    /// Whether ends may close before they have met, and connect to another process.
    is_fickle: bool,
}

fn word(segment: usize, at: usize) -> &'static AtomicU32 {
    // SAFETY: within a page that is never freed, and aligned.
    MEMORY.with(|pages| unsafe { pages[segment].add(at).cast().as_ref() })
}

fn words_of(place: usize) -> impl Iterator<Item = usize> {
    (0..4 + NAME_WORDS).map(move |word| OFFER_OFFSET + 128 + 128 * place + 4 * word)
}

impl Page {
    fn load(segment: usize) -> Self {
        let mut page = Self::default();
        let get = |at| word(segment, at).load(Ordering::Relaxed);
        page.claim = get(OFFER_OFFSET);
        for end in 0..2 {
            page.marks[end] = get(128 + 128 * end);
            for (to, at) in page.places[end].iter_mut().zip(words_of(end)) {
                *to = get(at);
            }
        }
        page
    }

    fn store(&self, segment: usize) {
        let set = |at, value| word(segment, at).store(value, Ordering::Relaxed);
        set(OFFER_OFFSET, self.claim);
        for end in 0..2 {
            set(128 + 128 * end, self.marks[end]);
            for (value, at) in self.places[end].iter().zip(words_of(end)) {
                set(at, *value);
            }
        }
    }
}

/// A user of the table that the records share; it is never the last one.
fn peer() -> PeerId {
    PEER.with(|cell| {
        // Each record is a user, and some end.
        let id = cell.get().filter(|id| PEERS.retain(*id)).unwrap_or_else(|| {
            let info = PeerInfo {
                party: crate::party::Party::of_user(0),
                life: None,
                pid: 7,
                uid: 1,
                trusted: true,
                nonce: 1,
                slot: 0,
                doorbell: None,
                doorbell_page: None,
                process: None,
            };
            PEERS.attach(info).unwrap()
        });
        cell.set(Some(id));
        id
    })
}

fn tuple(connection: usize, by: usize) -> Tuple {
    let at = |port| Addr::v4([127, 0, 0, 1], port);
    Tuple { local: at(1000 + connection as u16), remote: at(80 + by as u16), interface: 0 }
}

fn descriptor(connection: usize, process: usize) -> u32 {
    (10 + 2 * connection + process) as u32
}

impl S {
    /// Runs `body` on the pool of a process.
    fn pool<R>(&mut self, model: &OfferSlots, process: usize, body: impl FnOnce(&Pool) -> R) -> R {
        let pool = Pool::new();
        pool.generation.store(self.generations[process], Ordering::Relaxed);
        pool.with(|records| {
            records.high = SEGMENTS;
            for (segment, kept) in self.pools[process].iter().enumerate() {
                self.pages[segment].store(segment);
                records.list[segment] = kept.map(|kept| model.record(segment, process, &kept));
            }
        });
        let result = body(&pool);
        self.generations[process] = pool.generation.load(Ordering::Relaxed);
        pool.with(|records| {
            for (segment, kept) in self.pools[process].iter_mut().enumerate() {
                self.pages[segment] = Page::load(segment);
                *kept = records.list[segment].map(|record| Kept {
                    state: record.state as u8,
                    life: record.life,
                    owner: record.kept.owner,
                    generation: record.generation,
                    has_remote: record.kept.remote.is_some(),
                });
            }
        });
        if model.twin == Twin::CountsNoLives {
            for page in &mut self.pages {
                page.claim &= 3;
                page.places.iter_mut().for_each(|place| place[0] = place[0].min(1));
            }
            self.pools[process].iter_mut().flatten().for_each(|kept| kept.life = 0);
        }
        result
    }

    fn uses(&self, connection: usize, process: usize) -> Option<usize> {
        match self.ends[connection][process] {
            At::Attached(segment) | At::Late(segment) => Some(segment),
            _ => None,
        }
    }

    /// Whether the process holds its end of the connection.
    fn has(&self, connection: usize, process: usize) -> bool {
        self.alive[process]
            && !self.namesake[connection]
            && !self.elsewhere[connection]
            && !matches!(self.ends[connection][process], At::Ended | At::Late(_))
    }

    /// Whether the process's pool is locked, and whether it is in the middle of a step.
    fn is_busy(&self, process: usize) -> (bool, bool) {
        let at = |is: fn(&At) -> bool| self.ends.iter().any(|ends| is(&ends[process]));
        let is_locked = at(|at| matches!(at, At::Wiped(_) | At::Shown(_)));
        let is_stepping = at(|at| {
            matches!(at, At::Found(..) | At::Proven(..) | At::Answered(..) | At::Agreed(_))
        });
        (is_locked, is_locked || is_stepping)
    }

    fn attach(&mut self, connection: usize, process: usize, segment: usize) -> Result<(), String> {
        self.ends[connection][process] = At::Attached(segment);
        self.pages[segment].marks[process] = connection as u32 + 1;
        if self.inherited[segment].is_some_and(|with| with != connection as u32 + 1) {
            return Err("a child has mapped what is used again".to_string());
        }
        if self.namesake[connection] || self.elsewhere[connection] {
            return Err("attached to a process that does not have the connection".to_string());
        }
        Ok(())
    }
}

type Next = Option<(&'static str, Result<S, String>)>;

impl OfferSlots {
    fn by(&self, connection: usize) -> usize {
        let further = connection.checked_sub(self.first.len());
        further.map_or_else(|| self.first[connection], |index| self.further[index])
    }

    fn record(&self, segment: usize, process: usize, kept: &Kept) -> Record {
        let by = self.first[segment];
        Record {
            kept: KeptSegment {
                base: MEMORY.with(|pages| pages[segment]),
                // No size of a ring: the pool leaves our memory mapped.
                ring_bytes: 0,
                peer: peer(),
                pid: 7,
                side: process as u8,
                terms: 4096,
                remote: kept.has_remote.then(|| tuple(0, by).remote),
                owner: kept.owner,
            },
            state: [State::Idle, State::Offered, State::Used][usize::from(kept.state)],
            life: kept.life,
            end: process as u8,
            clock: 0,
            generation: kept.generation,
        }
    }

    /// The results of [`Pool::look`] and [`Pool::answer`], as far as they matter.
    fn right(connection: usize, other: usize, offer: &Offer) -> bool {
        offer.descriptor == descriptor(connection, other)
    }

    /// Gives an open offer up.
    fn withdraw(&self, s: &mut S, c: usize, p: usize, segment: usize, for_good: bool) -> bool {
        let before = s.pools[p][segment];
        let lease = segment as u32 + 1;
        let is_back = s.pool(self, p, |pool| pool.withdraw(&PEERS, lease, c as u32, for_good));
        let page = &mut s.pages[segment];
        if self.twin == Twin::OffersAgain && page.claim & 3 == 0 {
            page.places[p][1] = 0;
            s.pools[p][segment] = before.map(|kept| Kept { state: State::Idle as u8, ..kept });
        }
        is_back
    }

    /// The end that made connection `c`.
    fn offerer(&self, s: &S, c: usize, p: usize) -> Next {
        let mut s = s.clone();
        let owner = c as u32;
        let number = descriptor(c, p);
        let tuple = tuple(c, p);
        Some(match s.ends[c][p] {
            At::Meeting => {
                let offer = |pool: &Pool| pool.offer(&PEERS, &tuple, owner, number as i32, number);
                let lease = s.pool(self, p, offer);
                let segment = lease.map(|lease| lease as usize - 1);
                s.ends[c][p] = segment.map_or(At::ByName, At::Offered);
                let is_used = |d| (0..2).any(|q| s.uses(d, q).is_some_and(|u| Some(u) == segment));
                if (0..s.ends.len()).any(is_used) {
                    return Some(("offers", Err("offered before both have released".to_string())));
                }
                ("offers", Ok(s))
            }
            At::Offered(segment) => {
                match s.pool(self, p, |pool| pool.answer(segment as u32 + 1, owner)) {
                    Answer::Taken(offer) => {
                        let right = Self::right(c, p ^ 1, &offer);
                        s.ends[c][p] = At::Answered(segment, right);
                        ("is answered", Ok(s))
                    }
                    Answer::Waiting | Answer::Lost => {
                        if self.withdraw(&mut s, c, p, segment, false) {
                            s.ends[c][p] = At::ByName;
                        }
                        ("withdraws", Ok(s))
                    }
                }
            }
            At::Answered(segment, right) => {
                if right && s.has(c, p ^ 1) || self.twin == Twin::ProvesNothing {
                    s.ends[c][p] = At::Agreed(segment);
                    return Some(("proves the taker", Ok(s)));
                }
                s.pool(self, p, |pool| pool.distrust(peer()));
                let _ = self.withdraw(&mut s, c, p, segment, true);
                s.ends[c][p] = At::ByName;
                ("finds no proof", Ok(s))
            }
            At::Agreed(segment) => {
                let is_ours = s.pool(self, p, |pool| pool.confirm(segment as u32 + 1, owner));
                let attached = if is_ours {
                    s.attach(c, p, segment)
                } else {
                    Err("an answered offer is lost".to_string())
                };
                ("confirms", attached.map(|()| s))
            }
            _ => return None,
        })
    }

    /// The end in process `p` empties a segment for connection `c`.
    fn wipe(&self, s: &mut S, (c, p): (usize, usize), segment: usize) -> Result<(), &'static str> {
        s.pool(self, p, |pool| {
            pool.with(|records| records.list[segment].iter().for_each(Record::wipe));
        });
        if s.namesake[c] {
            return Err("emptied for a connection that the other one does not have");
        }
        Ok(())
    }

    /// The end that accepted connection `c`.
    fn taker(&self, s: &S, c: usize, p: usize) -> Next {
        let mut s = s.clone();
        let owner = c as u32;
        let number = descriptor(c, p);
        let tuple = tuple(c, p ^ 1).reversed();
        Some(match s.ends[c][p] {
            At::Meeting => {
                let offer = s.pool(self, p, |pool| pool.look(&tuple))?;
                let segment = offer.index;
                s.ends[c][p] = At::Found(segment, Self::right(c, p ^ 1, &offer));
                if self.twin == Twin::WipesFirst
                    && let Err(what) = self.wipe(&mut s, (c, p), segment)
                {
                    return Some(("empties", Err(what.to_string())));
                }
                ("finds an offer", Ok(s))
            }
            At::Found(segment, right) => {
                if right && s.has(c, p ^ 1) || self.twin == Twin::ProvesNothing {
                    s.ends[c][p] = At::Proven(segment, right);
                    return Some(("proves the offerer", Ok(s)));
                }
                s.pool(self, p, |pool| {
                    if let Some(offer) = pool.look(&tuple) {
                        pool.refuse(&PEERS, &offer);
                    }
                });
                s.ends[c][p] = At::Meeting;
                ("refuses", Ok(s))
            }
            At::Proven(segment, right) => {
                let is_there = s.pool(self, p, |pool| {
                    let Some(mut offer) = pool.look(&tuple) else { return false };
                    offer.index = segment;
                    if right {
                        offer.descriptor = descriptor(c, p ^ 1);
                    }
                    pool.with(|records| still_offered(records, &tuple, &offer).is_some())
                });
                if !is_there {
                    s.ends[c][p] = At::Meeting;
                    return Some(("comes too late", Ok(s)));
                }
                s.ends[c][p] = At::Wiped(segment);
                if self.twin == Twin::WipesFirst {
                    return Some(("looks again", Ok(s)));
                }
                ("empties", self.wipe(&mut s, (c, p), segment).map(|()| s).map_err(str::to_string))
            }
            At::Wiped(segment) => {
                s.pool(self, p, |pool| {
                    pool.with(|records| {
                        if let Some(record) = &records.list[segment] {
                            record.say(number as i32, number);
                        }
                    });
                });
                s.ends[c][p] = At::Shown(segment);
                ("tells its place", Ok(s))
            }
            At::Shown(segment) => {
                let is_ours = s.pool(self, p, |pool| {
                    let now = pool.generation.load(Ordering::Relaxed);
                    pool.with(|records| {
                        records.list[segment].as_mut().is_some_and(|record| record.seal(owner, now))
                    })
                });
                s.ends[c][p] = At::Meeting;
                if is_ours {
                    return Some(("takes", s.attach(c, p, segment).map(|()| s)));
                }
                ("is refused", Ok(s))
            }
            _ => return None,
        })
    }

    /// Ends of connections that have met or need not.
    fn leave(&self, s: &S, c: usize, p: usize, to: &mut Vec<Step<S>>) {
        let after = |at| {
            let mut s = s.clone();
            s.ends[c][p] = at;
            s
        };
        match s.ends[c][p] {
            At::Attached(segment) => {
                for keep in [true, false] {
                    let is_late = self.twin == Twin::ReleasesEarly;
                    let mut s = after(if is_late { At::Late(segment) } else { At::Ended });
                    let lease = segment as u32 + 1;
                    s.pool(self, p, |pool| pool.ended(&PEERS, lease, c as u32, keep));
                    to.push((if keep { "closes and keeps" } else { "closes" }, Ok(s)));
                }
            }
            At::Late(_) => to.push(("touches it for the last time", Ok(after(At::Ended)))),
            At::Meeting if p != self.by(c) => {
                if s.ends[c][p ^ 1] == At::ByName {
                    to.push(("goes by name", Ok(after(At::ByName))));
                }
                if self.is_fickle {
                    to.push(("closes early", Ok(after(At::Ended))));
                }
            }
            At::Offered(segment) if self.is_fickle => {
                let mut s = after(At::Ended);
                let _ = self.withdraw(&mut s, c, p, segment, true);
                to.push(("closes with an offer", Ok(s)));
            }
            _ => {}
        }
    }

    fn disturb(&self, s: &S, p: usize, to: &mut Vec<Step<S>>) {
        let mut killed = S { disturbances: s.disturbances + 1, ..s.clone() };
        let mut parent = killed.clone();
        killed.alive[p] = false;
        killed.pools[p] = [None; SEGMENTS];
        for ends in &mut killed.ends {
            if ends[p] != At::Candidate {
                ends[p] = At::Ended;
            }
        }
        to.push(("is killed", Ok(killed)));
        if s.is_busy(p).1 {
            return; // a fork waits for the meeting's lock
        }
        for c in 0..s.ends.len() {
            match parent.ends[c][p] {
                At::Offered(_) if self.twin == Twin::ForksWithOffer => {}
                At::Offered(segment) => {
                    let _ = self.withdraw(&mut parent, c, p, segment, true);
                    parent.ends[c][p] = At::ByName;
                }
                // The child holds it as well.
                At::Meeting => parent.ends[c][p] = At::ByName,
                _ => {}
            }
        }
        let (before, pages) = (parent.pools[p], parent.pages);
        parent.pool(self, p, |pool| pool.clear(&PEERS));
        if self.twin == Twin::ForksWithOffer {
            for (segment, kept) in before.iter().enumerate() {
                if kept.is_some_and(|kept| kept.state == State::Offered as u8) {
                    parent.pools[p][segment] = *kept;
                    parent.pages[segment] = pages[segment];
                }
            }
        }
        for (segment, kept) in parent.pools[p].iter().enumerate() {
            let Some(kept) = kept else { continue };
            let with = if kept.state == State::Used as u8 { kept.owner + 1 } else { 0 };
            let had = parent.inherited[segment].unwrap_or(with);
            parent.inherited[segment] = Some(if had == with { with } else { 0 });
        }
        to.push(("forks", Ok(parent)));
    }
}

impl Model for OfferSlots {
    type State = S;

    fn start(&self) -> S {
        let mut s = S {
            pages: [Page::default(); SEGMENTS],
            pools: [[None; SEGMENTS]; 2],
            ends: vec![[At::Candidate; 2]; self.first.len() + self.further.len()],
            namesake: vec![false; self.first.len() + self.further.len()],
            elsewhere: vec![false; self.first.len() + self.further.len()],
            alive: [true; 2],
            generations: [1; 2],
            inherited: [None; SEGMENTS],
            disturbances: 0,
        };
        for (segment, by) in self.first.iter().enumerate() {
            s.ends[segment] = [At::Attached(segment); 2];
            s.pages[segment].marks = [segment as u32 + 1; 2];
            for process in 0..2 {
                s.pools[process][segment] = Some(Kept {
                    state: State::Used as u8,
                    life: 0,
                    owner: segment as u32,
                    generation: 1,
                    has_remote: process == *by,
                });
            }
        }
        s
    }

    fn steps(&self, s: &S, to: &mut Vec<Step<S>>) {
        for c in 0..s.ends.len() {
            let by = self.by(c);
            if s.ends[c] == [At::Candidate; 2] && s.alive[by] {
                if s.alive[by ^ 1] {
                    let mut s = s.clone();
                    s.ends[c] = [At::Meeting; 2];
                    to.push(("connects", Ok(s)));
                }
                if self.is_fickle {
                    let mut s = s.clone();
                    s.ends[c][by] = At::Meeting;
                    s.elsewhere[c] = true;
                    to.push(("connects to another process", Ok(s)));
                }
            }
            let is_unmet = matches!(s.ends[c][by ^ 1], At::Meeting | At::Ended);
            if !s.alive[by] && s.alive[by ^ 1] && is_unmet && !s.namesake[c] && !s.elsewhere[c] {
                let mut s = s.clone();
                s.namesake[c] = true;
                s.ends[c][by ^ 1] = At::Meeting;
                to.push(("another process connects from the same address", Ok(s)));
            }
            for p in (0..2).filter(|p| s.alive[*p]) {
                let is_locking = matches!(s.ends[c][p], At::Wiped(_) | At::Shown(_));
                if s.is_busy(p).0 && !is_locking {
                    continue;
                }
                to.extend(if p == by { self.offerer(s, c, p) } else { self.taker(s, c, p) });
                self.leave(s, c, p, to);
            }
        }
        if s.disturbances < self.disturbances {
            for p in (0..2).filter(|p| s.alive[*p]) {
                self.disturb(s, p, to);
            }
        }
    }

    fn check(&self, s: &S) -> Result<(), String> {
        for (c, ends) in s.ends.iter().enumerate() {
            for p in 0..2 {
                let Some(segment) = s.uses(c, p) else { continue };
                let mark = c as u32 + 1;
                let marks = &s.pages[segment].marks;
                if marks[p] != mark {
                    return Err(format!("emptied or overwritten under connection {c}"));
                }
                if marks[p ^ 1] != mark && marks[p ^ 1] != 0 {
                    return Err(format!("connection {c} takes another's end for its own"));
                }
                let shares = |d: usize| d != c && (0..2).any(|q| s.uses(d, q) == Some(segment));
                if (0..s.ends.len()).any(shares) {
                    return Err(format!("connection {c} has not its segment for itself"));
                }
                match ends[p ^ 1] {
                    At::Attached(other) | At::Late(other) if other != segment => {
                        return Err(format!("connection {c} has two segments"));
                    }
                    At::ByName if marks[p ^ 1] != 0 => {
                        return Err(format!("connection {c} is alone and does not see it"));
                    }
                    At::ByName if s.disturbances == 0 => {
                        return Err(format!("connection {c} is left alone"));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn may_rest(&self, s: &S) -> Result<(), String> {
        let waits = |c: &usize| {
            let [a, b] = s.ends[*c];
            let both = [At::Candidate; 2] == [a, b] || [At::ByName; 2] == [a, b];
            let one = |at| matches!(at, At::Ended) || s.elsewhere[*c] || s.namesake[*c];
            let is_met = both || one(a) || one(b);
            let is_stuck = |at| !matches!(at, At::Candidate | At::Meeting | At::ByName | At::Ended);
            !is_met && s.disturbances == 0 || is_stuck(a) || is_stuck(b)
        };
        match (0..s.ends.len()).find(waits) {
            Some(c) => Err(format!("connection {c} waits for ever")),
            None => Ok(()),
        }
    }
}

const LIMIT: usize = 5_000_000;

fn offer_slots(twin: Twin, first: &[usize], further: &[usize], disturbances: u8) -> OfferSlots {
    OfferSlots {
        twin,
        first: first.to_vec(),
        further: further.to_vec(),
        disturbances,
        is_fickle: true,
    }
}

#[test]
fn a_segment_has_one_connection_at_a_time() {
    use Twin::Faithful;
    holds("offer slots, one segment", &offer_slots(Faithful, &[0], &[0, 0], 0), LIMIT);
    holds("offer slots, disturbed", &offer_slots(Faithful, &[0], &[0], 1), LIMIT);
    if size() >= Size::Ci {
        holds("offer slots, two ways", &offer_slots(Faithful, &[0, 1], &[0, 1], 0), LIMIT);
        holds(
            "offer slots, two connections disturbed",
            &offer_slots(Faithful, &[0], &[0, 0], 1),
            LIMIT,
        );
    }
    if size() >= Size::Long {
        holds("offer slots, three connections", &offer_slots(Faithful, &[0], &[0, 0, 0], 1), LIMIT);
        holds("offer slots, twice disturbed", &offer_slots(Faithful, &[0], &[0, 0], 2), LIMIT);
        holds(
            "offer slots, two ways disturbed",
            &offer_slots(Faithful, &[0, 1], &[0, 1], 1),
            LIMIT,
        );
    }
}

#[test]
fn every_rule_is_needed() {
    for twin in [Twin::CountsNoLives, Twin::ReleasesEarly, Twin::OffersAgain] {
        fails(&format!("offer slots, {twin:?}"), &offer_slots(twin, &[0], &[0, 0], 0), LIMIT);
    }
    for twin in [Twin::WipesFirst, Twin::ForksWithOffer, Twin::ProvesNothing] {
        fails(&format!("offer slots, {twin:?}"), &offer_slots(twin, &[0], &[0], 1), LIMIT);
    }
}
