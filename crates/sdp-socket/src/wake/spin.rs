//! How long a receiver looks at the ring before it sleeps.
//!
//! Called by `datapath` and `readiness` before a sleep.
//!
//! A wake-up costs two orders of magnitude more than a cache line, so looking a little longer wins when
//! the peer answers soon; it loses everything when the peer needs this CPU, and is wasted on idle
//! connections. So: never pause when the peer last ran on this CPU (offer it instead), hardly pause
//! when the traffic is a stream (sleeping batches), learn from each outcome, and let no more threads
//! of a process pause at once than it has other CPUs. The reader of a fast stream of small messages pauses
//! without looking, for the same reason.

use core::{
    pin::{Pin, pin},
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use sdp_sys::{
    section,
    time::{TICKS_PER_MS, monotonic_ns, ticks},
    tls::{self, Slot},
};

use crate::{
    conn::{self, Conn},
    process,
    wake::call_guard::CallGuard,
};

/// First budget of a connection.
const INITIAL_NS: u32 = conn::NOTHING_LEARNT as u32;
const _: () = assert!(Learnt::NEW.to_word() == conn::NOTHING_LEARNT);
/// Budget after a success that found it at zero.
const RESTART_NS: u32 = 1_000;
/// Ceiling unless `recv_poll` sets another.
const CEILING_NS: u32 = 20_000;
/// Failures in a row after which the budget is zero.
const FAILURES_TO_REST: u16 = 3;
/// A process whose spins do not pay tries again once in so many waits.
const PROBE_EVERY: u16 = 16;
/// A probe that outlasts the other side's wake-up.
const LONG_PROBE_NS: u64 = 120_000;
/// A sleep that was answered this soon was mostly that wake-up: a probe would have seen the answer.
const ANSWERED_SOON_NS: u64 = LONG_PROBE_NS;
/// Such probes are made at least once in 2 to the power of this many waits for a peer that sleeps.
const RARITY_MAX: u8 = 6;
/// Receive waits without a send in between from which the traffic is a stream.
const STREAM_WAITS: u64 = 8;
/// Pause of a stream.
const STREAM_NS: u64 = 1_000;
/// How long a stream of small messages is left alone between two looks. At the heels of its writer the reader would fetch
/// the cache lines of each message, and the writer would fetch them back: where their CPUs are far apart, both take
/// longer for that than for the message.
const ALONE_NS: u64 = 4_000;
/// The same in ticks, roughly.
const ALONE_TICKS: u64 = ALONE_NS * TICKS_PER_MS / 1_000_000;
/// Ring bytes that have come until then where leaving it alone pays …
const GATHERED_MIN: u64 = 1024;
/// … which are so many messages at least, or there was nothing to gather …
const GATHERED_MESSAGES: u64 = 4;
/// … and at most this part of the ring: a writer that is about to wait for room is not to wait for us.
const GATHERED_PART: u64 = 8;
/// Where it did not pay, it is tried again once in so many waits.
const GATHER_EVERY: u64 = 64;
/// Longest time given to the peer on a shared CPU by yielding.
const YIELD_NS: u64 = 20_000;
/// A single yield that takes this long means that another thread wanted the CPU.
const YIELD_LOST_NS: u64 = 500_000;
const YIELD_OFF_MIN_NS: u64 = 10_000_000;
const YIELD_OFF_MAX_NS: u64 = 1_000_000_000;

static SPINNERS: &AtomicU32 = &crate::process::fork_page::FORK_PAGE.busy.spinners;
static YIELDS_OFF_UNTIL: AtomicU64 = AtomicU64::new(0);
static YIELDS_OFF_FOR: AtomicU64 = AtomicU64::new(YIELD_OFF_MIN_NS);

/// In a fork child: the parent's other threads do not pause here.
pub(crate) fn forget_threads() {
    SPINNERS.store(0, Ordering::Relaxed);
}

/// CPU on which the calling thread runs, plus one; 0 unknown.
#[inline]
pub(crate) fn this_cpu() -> u32 {
    (sdp_sys::libcs::cpu() + 1).max(0) as u32
}

/// Whether the peer can only go on when this thread lets it: it last ran here, or nothing is known
/// and this process has no other CPU. A process bound to one CPU may well look while its peer runs
/// elsewhere.
pub(crate) fn needs_this_cpu(peer_cpu: u32) -> bool {
    if peer_cpu == 0 { process::usable_cpus() <= 1 } else { peer_cpu == this_cpu() }
}

/// How long a wait may spin before it sleeps.
#[derive(Clone, Copy)]
enum Plan {
    Sleep,
    Pause(u64),
    Yield(u64),
}

/// The state in which the sender of the last message found the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// It asked to be woken: its answer comes a wake-up later, which no short spin lasts.
    Asleep,
    /// It was awake, or no sender looked.
    Awake,
}

/// A waiter's record of how soon the other end answers it.
///
/// The budget doubles with a success and halves with a failure; after three failures it rests at
/// zero and is tried again once in sixteen waits. Behind a message that had to wake the peer no
/// short spin is tried: two ends that both sleep answer each other one wake-up too late for it, for
/// ever. Instead a probe is made that outlasts a wake-up, at the first such wait and then ever more
/// seldom. A reader that finds the peer awake after that spins at once, so that one probe is enough
/// to keep both ends awake; a peer that pauses between requests costs one probe in sixty-four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Learnt {
    budget_ns: u32,
    /// Failures in a row; while the peer sleeps, or the budget rests: waits.
    failures: u16,
    /// Long probes are made once in 2 to the power of this.
    rarity: u8,
    /// The last sleep was mostly the other side's own wake-up.
    answered_soon: bool,
    /// The peer slept when it was last sent something.
    peer_slept: bool,
    /// The spin in progress is a long probe.
    probing: bool,
}

impl Learnt {
    /// Before the first wait.
    pub(crate) const NEW: Self = Self {
        budget_ns: INITIAL_NS,
        failures: 0,
        rarity: 0,
        answered_soon: false,
        peer_slept: false,
        probing: false,
    };

    /// Packed, for an atomic word.
    pub(crate) const fn to_word(self) -> u64 {
        let flags =
            self.answered_soon as u64 | (self.peer_slept as u64) << 1 | (self.probing as u64) << 2;
        self.budget_ns as u64
            | (self.failures as u64) << 32
            | (self.rarity as u64) << 48
            | flags << 56
    }

    /// Unpacked; every word is a legal value.
    pub(crate) const fn from_word(word: u64) -> Self {
        let (rarity, flags) = ((word >> 48) as u8, word >> 56);
        Self {
            budget_ns: word as u32,
            failures: (word >> 32) as u16,
            rarity: if rarity > RARITY_MAX { RARITY_MAX } else { rarity },
            answered_soon: flags & 1 != 0,
            peer_slept: flags & 2 != 0,
            probing: flags & 4 != 0,
        }
    }

    /// Nanoseconds that the next spin may take; 0: sleep at once.
    pub(crate) fn next(&mut self, peer: Peer) -> u64 {
        let (ceiling, may_probe_long) = ceiling_ns();
        self.probing = false;
        if ceiling == 0 {
            return 0;
        }
        if peer == Peer::Asleep && may_probe_long {
            self.peer_slept = true;
            self.failures = self.failures.wrapping_add(1);
            let is_turn = self.failures.is_multiple_of(1 << self.rarity);
            // Without a measured sleep the first one finds out.
            if !is_turn || !(self.answered_soon || self.rarity == 0) {
                return 0;
            }
            self.rarity = (self.rarity + 1).min(RARITY_MAX);
            self.probing = true;
            return LONG_PROBE_NS;
        }
        if core::mem::take(&mut self.peer_slept) {
            // Awake for the first time since: it has answered a probe, or makes one.
            self.failures = 0;
            return u64::from(ceiling);
        }
        let budget = self.budget_ns.min(ceiling);
        if budget != 0 {
            return u64::from(budget);
        }
        self.failures = self.failures.wrapping_add(1);
        if !self.failures.is_multiple_of(PROBE_EVERY) {
            0
        } else if self.answered_soon && may_probe_long {
            LONG_PROBE_NS
        } else {
            u64::from(ceiling / 2)
        }
    }

    /// How a spin ended.
    pub(crate) fn spun(&mut self, success: bool) {
        if core::mem::take(&mut self.probing) {
            return; // whether it pays, the next message shows
        }
        let ceiling = ceiling_ns().0.max(RESTART_NS);
        if success {
            self.budget_ns = if self.answered_soon {
                ceiling
            } else {
                self.budget_ns.saturating_mul(2).clamp(RESTART_NS, ceiling)
            };
            self.failures = 0;
            self.rarity = 0;
            return;
        }
        self.failures = self.failures.wrapping_add(1);
        let rests = self.failures >= FAILURES_TO_REST || self.budget_ns == 0;
        self.budget_ns = if rests { 0 } else { self.budget_ns / 2 };
    }

    /// How long a sleep took that something ended.
    pub(crate) fn slept(&mut self, ns: u64) {
        self.answered_soon = ns < ANSWERED_SOON_NS;
    }
}

/// Upper bound of a spin in nanoseconds, and whether a probe may exceed it (not when the user set it).
fn ceiling_ns() -> (u32, bool) {
    match process::tunables().receive_poll_us() {
        None => (CEILING_NS, true),
        Some(us) => (us.saturating_mul(1000), false),
    }
}

/// Before a reader that found nothing looks again: now and then leaves the stream alone once, to
/// find out whether that pays. `published` returns how many ring bytes have come. True when there
/// are some.
pub(crate) fn gather(
    conn: &Conn,
    guard: Pin<&CallGuard>,
    peer_cpu: u32,
    published: impl FnOnce() -> u64,
) -> bool {
    if !is_time_to_gather(conn.one_way.load(Ordering::Relaxed))
        || u64::from(ceiling_ns().0) < ALONE_NS
        || needs_this_cpu(peer_cpu)
    {
        return false;
    }
    let Some(_permit) = SpinPermit::take(guard) else { return false };
    pause_until(ticks().wrapping_add(ALONE_TICKS));
    let published = published();
    if published >= GATHERED_MIN {
        conn.left_alone.store(ticks(), Ordering::Relaxed); // a moment that has passed: the next look decides
    }
    published != 0
}

const fn is_time_to_gather(waits: u64) -> bool {
    waits % GATHER_EVERY == STREAM_WAITS
}

/// The reader of a stream that it had left alone found so many ring bytes, a message of this length
/// first, in a ring of `size` bytes. It goes on to leave the stream alone if that pays; the caller
/// has ended it.
pub(crate) fn gathered(conn: &Conn, published: u64, len: u32, size: u64) {
    if conn.one_way.load(Ordering::Relaxed) >= STREAM_WAITS && pays(published, len, size) {
        conn.left_alone.store(ticks().wrapping_add(ALONE_TICKS), Ordering::Relaxed);
    }
}

const fn pays(published: u64, len: u32, size: u64) -> bool {
    published >= GATHERED_MIN
        && published >= GATHERED_MESSAGES * len as u64
        && published <= size / GATHERED_PART
}

/// Whether the stream is to be left alone for a while yet.
#[inline]
pub(crate) fn is_left_alone(conn: &Conn) -> bool {
    let moment = conn.left_alone.load(Ordering::Relaxed);
    moment != 0 && is_ahead(moment, ticks()) && conn.one_way.load(Ordering::Relaxed) >= STREAM_WAITS
}

/// The stream is not left alone any more: the next call looks at once.
#[inline(never)] // once, not in each use of the receiving half's lock
pub(crate) fn look_again(conn: &Conn) {
    if conn.left_alone.load(Ordering::Relaxed) != 0 {
        conn.left_alone.store(0, Ordering::Relaxed);
    }
}

/// Leaves the stream alone until the moment has come. `waits`: the call may wait. One that may not, or is not to pause, ends
/// this: it looks at once.
pub(crate) fn leave_alone(conn: &Conn, guard: Pin<&CallGuard>, peer_cpu: u32, waits: bool) {
    let permit = if waits && !needs_this_cpu(peer_cpu) { SpinPermit::take(guard) } else { None };
    match permit {
        Some(_permit) => pause_until(conn.left_alone.load(Ordering::Relaxed)),
        None => look_again(conn),
    }
}

fn pause_until(moment: u64) {
    while is_ahead(moment, ticks()) {
        core::hint::spin_loop();
    }
}

/// Whether a moment is to come, within [`ALONE_TICKS`]. One that is further away is none of ours.
const fn is_ahead(moment: u64, now: u64) -> bool {
    moment.wrapping_sub(now).wrapping_sub(1) < ALONE_TICKS
}

fn plan(conn: &Conn, peer_cpu: u32) -> Plan {
    let (ceiling, _) = ceiling_ns();
    if ceiling == 0 {
        return Plan::Sleep;
    }
    if needs_this_cpu(peer_cpu) {
        let now = monotonic_ns();
        return if now < YIELDS_OFF_UNTIL.load(Ordering::Relaxed) {
            Plan::Sleep
        } else {
            Plan::Yield(now)
        };
    }
    if conn.one_way.load(Ordering::Relaxed) >= STREAM_WAITS {
        return Plan::Pause(STREAM_NS.min(u64::from(ceiling)));
    }
    match budget(conn) {
        0 => Plan::Sleep,
        budget => Plan::Pause(budget),
    }
}

/// A message was sent: whether its reader slept, and had to be woken.
#[inline(always)]
pub(crate) fn reached(conn: &Conn, had_to_wake: bool) {
    let reached = tls::slot(Slot::Reached);
    let all = reached.load(Ordering::Relaxed);
    let now = all | if had_to_wake { REACHED_ASLEEP } else { REACHED_AWAKE };
    if now != all {
        reached.store(now, Ordering::Relaxed);
    }
    if had_to_wake {
        conn.peer_slept.store(1, Ordering::Relaxed);
    }
}

/// For a wait of the calling thread on several connections: the state in which it found the other
/// ends since the wait before. Its answers come a wake-up later if each of them had to be woken.
pub(crate) fn reached_since() -> Peer {
    match tls::slot(Slot::Reached).swap(0, Ordering::Relaxed) {
        REACHED_ASLEEP => Peer::Asleep,
        _ => Peer::Awake,
    }
}

const REACHED_AWAKE: usize = 1;
const REACHED_ASLEEP: usize = 2;

/// A thread that has waited for another connection than before waits for many in turn, and goes on to do
/// so for this many waits for the same one.
const IN_TURN: usize = 8;

/// Whether the thread, which now waits for this connection, waits for many in turn. Then none of them is
/// waited for often enough to learn anything by itself.
fn waits_in_turn(word: &AtomicUsize, index: u32) -> bool {
    let known = word.load(Ordering::Relaxed);
    let (last, left) = (known / (IN_TURN + 1), known % (IN_TURN + 1));
    let this = index as usize + 1;
    let left = match last {
        0 => 0,
        last if last == this => left.saturating_sub(1),
        _ => IN_TURN,
    };
    let next = this * (IN_TURN + 1) + left;
    if next != known {
        word.store(next, Ordering::Relaxed);
    }
    left != 0
}

/// Whether the thread's last wait was one of many in turn.
fn waited_in_turn() -> bool {
    !tls::slot(Slot::WaitedFor).load(Ordering::Relaxed).is_multiple_of(IN_TURN + 1)
}

/// Records the result of a wait for a connection: with the connection, or, where the thread waits
/// for many one after the other, with the thread. Two threads that wait for one connection may
/// overwrite one another's result, which costs nothing.
fn update<R>(conn: &Conn, in_turn: bool, body: impl FnOnce(&mut Learnt) -> R) -> R {
    let thread = tls::slot(Slot::SpinBudget);
    let word = match in_turn {
        true => thread.load(Ordering::Relaxed) as u64,
        false => conn.spin.load(Ordering::Relaxed),
    };
    let mut learnt = if word == 0 { Learnt::NEW } else { Learnt::from_word(word) };
    let result = body(&mut learnt);
    let word = learnt.to_word();
    match in_turn {
        true => thread.store(word as usize, Ordering::Relaxed),
        false => conn.spin.store(word, Ordering::Relaxed),
    }
    result
}

/// After a sleep that something ended.
pub(crate) fn learn_from_sleep(conn: &Conn, slept_ns: u64) {
    update(conn, waited_in_turn(), |learnt| learnt.slept(slept_ns));
}

/// How long a spin may last, also one for several connections, by this one's record.
pub(crate) fn budget(conn: &Conn) -> u64 {
    let peer = if conn.peer_slept.load(Ordering::Relaxed) == 0 {
        Peer::Awake
    } else {
        conn.peer_slept.store(0, Ordering::Relaxed);
        Peer::Asleep
    };
    let in_turn = waits_in_turn(tls::slot(Slot::WaitedFor), conn.index());
    update(conn, in_turn, |learnt| learnt.next(peer))
}

/// How a spin for several connections ended for this one.
pub(crate) fn learn(conn: &Conn, success: bool) {
    update(conn, waited_in_turn(), |learnt| learnt.spun(success));
}

/// A thread's turn to pause. Given back also when a handler leaves the pause for good.
struct SpinPermit<'a>(Pin<&'a CallGuard>);

impl<'a> SpinPermit<'a> {
    /// `None`: as many threads pause as may.
    fn take(guard: Pin<&'a CallGuard>) -> Option<Self> {
        guard.begin();
        // A handler that jumps out finds either both of these done, or none.
        let _section = section::Guard::enter();
        let others = SPINNERS.fetch_add(1, Ordering::Relaxed);
        if others.wrapping_add(1) >= process::usable_cpus().max(2) {
            stopped();
            return None;
        }
        guard.spins(true);
        Some(Self(guard))
    }
}

impl Drop for SpinPermit<'_> {
    #[inline]
    fn drop(&mut self) {
        let _section = section::Guard::enter();
        self.0.spins(false);
        stopped();
    }
}

/// One thread less pauses.
pub(crate) fn stopped() {
    SPINNERS.fetch_sub(1, Ordering::Relaxed);
}

/// Looks until `ready` or until it is not worth it. True when ready.
pub(crate) fn spin(
    conn: &Conn,
    guard: Pin<&CallGuard>,
    peer_cpu: u32,
    mut ready: impl FnMut() -> bool,
) -> bool {
    match plan(conn, peer_cpu) {
        Plan::Sleep => false,
        Plan::Yield(started) => yield_for(started, YIELD_NS, &mut ready),
        Plan::Pause(budget) => {
            let Some(_permit) = SpinPermit::take(guard) else { return false };
            let success = pause_for(budget, &mut ready);
            learn(conn, success);
            success
        }
    }
}

/// Pauses for a thread that waits for several connections, if the process may have one more
/// spinner. With one CPU it yields instead: the process that it waits for may need the CPU. `None`:
/// it may not, and the wait teaches nothing.
pub(crate) fn shared_pause(
    peer_cpu: u32,
    budget: u64,
    mut ready: impl FnMut() -> bool,
) -> Option<bool> {
    if needs_this_cpu(peer_cpu) {
        let now = monotonic_ns();
        let is_off = now < YIELDS_OFF_UNTIL.load(Ordering::Relaxed);
        return (!is_off).then(|| yield_for(now, budget, &mut ready));
    }
    let guard = pin!(CallGuard::on_several());
    let _permit = SpinPermit::take(guard.as_ref())?;
    Some(pause_for(budget, &mut ready))
}

/// Pauses at most `budget` nanoseconds. True when ready.
pub(crate) fn pause_for(budget: u64, ready: &mut impl FnMut() -> bool) -> bool {
    // The first looks cost no clock reading: answers often come within a few cache lines' time.
    for _ in 0..16 {
        if ready() {
            return true;
        }
        core::hint::spin_loop();
    }
    let end = monotonic_ns() + budget;
    loop {
        for _ in 0..16 {
            if ready() {
                return true;
            }
            core::hint::spin_loop();
        }
        if monotonic_ns() >= end {
            return ready();
        }
    }
}

/// Gives the CPU to another thread that wants it, as long as that comes back soon.
fn yield_for(started: u64, budget: u64, ready: &mut impl FnMut() -> bool) -> bool {
    let mut before = started;
    loop {
        if ready() {
            return true;
        }
        sdp_sys::time::yield_now();
        let now = monotonic_ns();
        if now - before > YIELD_LOST_NS {
            let off = YIELDS_OFF_FOR.load(Ordering::Relaxed);
            YIELDS_OFF_UNTIL.store(now + off, Ordering::Relaxed);
            YIELDS_OFF_FOR.store((off * 2).min(YIELD_OFF_MAX_NS), Ordering::Relaxed);
            return ready();
        }
        if now - started > budget {
            return ready();
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAKE_UP_NS: u64 = 40_000;
    const HOP_NS: u64 = 300;

    /// Two ends that send each other one message in turn; time passes only here.
    struct Model {
        now: u64,
        client: Learnt,
        server: Learnt,
        /// When the server began to wait, and how long it looks.
        server_waits: (u64, u64),
        spun_ns: u64,
    }

    impl Model {
        fn new() -> Self {
            let (client, server) = (Learnt::NEW, Learnt::NEW);
            Self { now: 0, client, server, server_waits: (0, 0), spun_ns: 0 }
        }

        /// One end's wait from `since` until `until`: true when it was awake, and when it goes on.
        fn wait(learnt: &mut Learnt, budget: u64, since: u64, until: u64) -> (bool, u64, u64) {
            let awake = until - since <= budget;
            if budget != 0 {
                *learnt = Learnt::from_word(learnt.to_word());
                learnt.spun(awake);
            }
            if awake {
                return (true, until, until - since);
            }
            let up = until.max(since + budget) + WAKE_UP_NS;
            learnt.slept(up - since - budget);
            (false, up, budget)
        }

        /// A request after a pause; whether both ends were awake, as seen by the other.
        fn round(&mut self, pause_ns: u64) -> bool {
            self.now += pause_ns;
            let sent = self.now;
            let (since, budget) = self.server_waits;
            let (server_awake, up, spun) =
                Self::wait(&mut self.server, budget, since, sent + HOP_NS);
            self.spun_ns += spun;
            let peer = |awake| if awake { Peer::Awake } else { Peer::Asleep };
            let budget = self.client.next(peer(server_awake));
            let (client_awake, up_client, spun) =
                Self::wait(&mut self.client, budget, sent, up + HOP_NS);
            self.spun_ns += spun;
            self.server_waits = (up, self.server.next(peer(client_awake)));
            self.now = up_client;
            server_awake && client_awake
        }

        /// Rounds without pause until both have been awake ten times running.
        fn rounds_to_converge(&mut self) -> usize {
            let mut awake = 0;
            for round in 0..10_000 {
                awake = if self.round(0) { awake + 1 } else { 0 };
                if awake == 10 {
                    return round - 9;
                }
            }
            usize::MAX
        }
    }

    #[test]
    fn request_and_response_stay_awake_soon() {
        let mut model = Model::new();
        assert!(model.rounds_to_converge() <= 4);
        for _ in 0..1000 {
            assert!(model.round(0));
        }
        // After a pause, too, however often.
        for _ in 0..50 {
            model.round(10_000_000);
            assert!(model.rounds_to_converge() <= 4);
        }
    }

    #[test]
    fn pauses_cost_nearly_nothing() {
        for pause in [200_000, 500_000, 2_000_000] {
            let mut model = Model::new();
            for _ in 0..1000 {
                model.round(pause);
            }
            model.spun_ns = 0;
            for _ in 0..10_000 {
                model.round(pause);
            }
            assert!(model.spun_ns < 10_000 * 2_000, "{pause}: {} ns", model.spun_ns / 10_000);
            // And it is not for ever.
            assert!(model.rounds_to_converge() <= 140, "{pause}");
        }
    }

    #[test]
    fn who_waits_for_many_in_turn_is_known() {
        let word = AtomicUsize::new(0);
        // For one connection, as often as it likes.
        assert!((0..100).all(|_| !waits_in_turn(&word, 7)));
        // For two of them.
        assert!((0..100).all(|i| waits_in_turn(&word, 8 + i % 2)));
        // And for one again.
        let others = (0..100).filter(|_| waits_in_turn(&word, 9)).count();
        assert!((1..=IN_TURN).contains(&others), "{others}");
        assert!(!waits_in_turn(&word, 9));
        assert!(waits_in_turn(&word, 0));
    }

    #[test]
    fn whether_it_pays_is_tried_now_and_then() {
        let tried = |waits: core::ops::Range<u64>| waits.filter(|w| is_time_to_gather(*w)).count();
        assert_eq!(tried(0..STREAM_WAITS), 0);
        assert_eq!(tried(STREAM_WAITS..STREAM_WAITS + 64 * GATHER_EVERY), 64);
    }

    #[test]
    fn a_stream_is_left_alone_as_long_as_messages_gather() {
        let (_, conn) = crate::conn::create(crate::conn::Stage::Kernel).unwrap();
        let size = 1 << 20;
        let after = |waits, published, len| {
            conn.one_way.store(waits, Ordering::Relaxed);
            conn.left_alone.store(0, Ordering::Relaxed);
            gathered(conn, published, len, size);
            let moment = conn.left_alone.load(Ordering::Relaxed);
            // Not longer than it lasts, from a moment before now on.
            assert!(moment == 0 || !is_ahead(moment, ticks().wrapping_add(ALONE_TICKS)));
            moment != 0
        };
        assert!(after(STREAM_WAITS, GATHERED_MIN, 64));
        assert!(after(STREAM_WAITS + 1000, size / GATHERED_PART, 1024));
        assert!(!after(STREAM_WAITS, GATHERED_MIN - 1, 64), "little");
        assert!(!after(STREAM_WAITS, 4 * 1024 - 1, 1024), "three messages");
        assert!(!after(STREAM_WAITS, size / GATHERED_PART + 1, 64), "much");
        assert!(!after(STREAM_WAITS - 1, GATHERED_MIN, 64), "the program sent something lately");
    }

    #[test]
    fn a_call_that_may_not_wait_ends_it() {
        let (_, conn) = crate::conn::create(crate::conn::Stage::Kernel).unwrap();
        let guard = pin!(CallGuard::on_several());
        conn.left_alone.store(ticks().wrapping_add(ALONE_TICKS), Ordering::Relaxed);
        leave_alone(conn, guard.as_ref(), 0, false);
        assert_eq!(conn.left_alone.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_moment_to_come_is_near() {
        for now in [0, 5, u64::MAX - 3, 1 << 40] {
            let ahead = |ticks: u64| is_ahead(now.wrapping_add(ticks), now);
            assert!(ahead(1) && ahead(ALONE_TICKS));
            assert!(
                !ahead(0) && !ahead(ALONE_TICKS + 1) && !ahead(u64::MAX) && !ahead(u64::MAX / 2)
            );
        }
        let start = ticks();
        pause_until(start.wrapping_add(ALONE_TICKS));
        assert!(ticks().wrapping_sub(start) >= ALONE_TICKS);
    }

    #[test]
    fn words_keep_everything() {
        for word in [0, u64::MAX, 0x0102_0304_0506_0708] {
            let learnt = Learnt::from_word(word);
            assert_eq!(Learnt::from_word(learnt.to_word()), learnt);
            assert!(learnt.rarity <= RARITY_MAX);
        }
    }
}
