//! The process's RDMA devices ([`places`]): opened on first use, one completion queue for all connections of each, and how
//! their events reach connections and sleepers.
//!
//! **Slow** steps ([`attempt`], [`progress`]) may allocate, and open and close descriptors: where a call of the
//! program begins or ends, never inside a section that a caller has opened. One thread at a time makes them; others
//! pass by. **Fast** steps ([`drain`], [`arm`]) may be made anywhere.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use sdp_fabric_shm::identity::{Addr, Family, Tuple};
use sdp_fabric_verbs::{
    Address, Error,
    budget::{CONNECTIONS_MAX, RING_MESSAGES},
    cm::Times,
    endpoint::{Core, RingRx, RingTx},
    fabric::{Offer, Options, RingFabric},
};
use sdp_proto::{Credits, Local, Ring};
use sdp_rdma::{cm::Reject, fabric::SendQueue};
use sdp_remote::{Agreement, Event, Host, Inbound, Outbound, Role};
use sdp_stats::{Fabric, Reason, Verdict, page::DEVICE_LEN, trace::Kind};
use sdp_sys::{
    errno::Errno,
    fd, kernel, section,
    time::{back_off, monotonic_ns},
};

use super::{
    ending,
    pace::{self, RETRY_MOST_NS, RETRY_NS, Shown, put_off},
    pair::{self, PAIRS, Pair, Receiving, Sending},
    places::{self, Device},
};
use crate::{
    conn::{Conn, Limits, Stage, publish, sharing},
    process,
    wake::{doorbell, strangers},
};

/// So often a caller lets a thread go on that takes completions.
const TURNS: u32 = 40;
/// Codes of a refusal: no connection is meant, or the one that is speaks another version.
const REFUSED: u8 = 1;
const OTHER_VERSION: u8 = 2;

/// A thread is at a slow step.
static BUSY: AtomicBool = AtomicBool::new(false);
/// A connection has met, and epoll sets do not know yet.
static HAS_NEW: AtomicBool = AtomicBool::new(false);
/// Epoll descriptor of the devices' own ones, made with the first device; −1 none.
static EVENTS: AtomicI32 = AtomicI32::new(-1);
/// How long the last opening of a device took, in nanoseconds.
static OPENING_NS: AtomicU64 = AtomicU64::new(0);
/// A thread is opening one.
static IS_OPENING: AtomicBool = AtomicBool::new(false);
/// A device is gone, and is closed when the program has read the messages in its buffers.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// The right to make slow steps. Handlers of the program wait for its end: one may close a connection, which wants it, too.
pub(super) struct DeviceLock {
    _section: section::Guard,
}

impl DeviceLock {
    pub(super) fn take() -> Option<Self> {
        let _section = section::Guard::enter();
        (!BUSY.swap(true, Ordering::Acquire)).then(|| Self { _section })
    }
}

impl Drop for DeviceLock {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

fn address(addr: &Addr, interface: u32) -> Address {
    match addr.family() {
        Family::V4 => {
            let [.., a, b, c, d] = *addr.bytes();
            Address::v4([a, b, c, d], addr.port())
        }
        Family::V6 => Address::v6(*addr.bytes(), addr.port(), interface),
    }
}

fn local(offer: &Offer) -> Local {
    Local {
        credits: Credits::Explicit,
        bufs: RING_MESSAGES as u16,
        receive_size: offer.longest(),
        lane_messages: true,
        zcopy: process::tunables().zcopy_from().is_some(),
        ring: Some(Ring { log2: offer.log2, key: offer.key }),
    }
}

/// The device of a place, for the holder of the device's lock.
pub(super) fn device(_lock: &mut DeviceLock, at: usize) -> Option<&mut Device> {
    // SAFETY: null, or a mapping that is never given back; the lock has one holder, and the reference goes with it.
    // Other threads read `core` and `name` alone, which are not changed.
    unsafe { places::get(at)?.device().as_mut() }
}

fn reason(error: Error) -> Reason {
    match error {
        Error::MemLock => Reason::MemLock,
        Error::Full => Reason::NoMemory,
        Error::Descriptors => Reason::NoDescriptors,
        Error::NoDevice | Error::Iwarp | Error::OldKernel | Error::Os(..) => Reason::NoDevice,
    }
}

/// Whether a thread is at a slow step.
pub(super) fn is_busy() -> bool {
    BUSY.load(Ordering::Relaxed)
}

/// Whether a thread is opening a device.
pub(super) fn is_opening() -> bool {
    IS_OPENING.load(Ordering::Relaxed)
}

/// How long the last opening of a device took, in nanoseconds.
pub(super) fn opening_ns() -> u64 {
    OPENING_NS.load(Ordering::Relaxed)
}

/// Whether slow steps may be made here: libibverbs allocates, and must not be called where the program itself could not.
pub(super) fn may_be_slow() -> bool {
    !section::inside() && !section::in_handler()
}

/// The place whose device has the connection's address; the device is opened if need be. `Err`: there is none, for a
/// reason that makes a connection TCP, or until that time. Slow.
fn open(tuple: &Tuple) -> Result<usize, (Option<Reason>, u64)> {
    let found = places::find_or_take(tuple).and_then(|at| Some((at, places::get(at)?)));
    let Some((at, place)) = found else {
        return Err((Some(Reason::Limit), monotonic_ns() + RETRY_MOST_NS));
    };
    if !place.is_open() {
        if place.is_due() {
            let begun = monotonic_ns();
            IS_OPENING.store(true, Ordering::Relaxed);
            let opened = open_here(tuple);
            IS_OPENING.store(false, Ordering::Relaxed);
            OPENING_NS.store(monotonic_ns() - begun, Ordering::Relaxed);
            match opened {
                Ok(device) => place.opened(at, device),
                Err(reason) => place.refuse(reason),
            }
        }
        if !place.is_open() {
            return Err((place.refusal(), place.again_ns()));
        }
    }
    Ok(at)
}

fn open_here(tuple: &Tuple) -> Result<*mut Device, Reason> {
    let (floor, _) = process::hidden_range();
    let options = Options { connections: CONNECTIONS_MAX, floor, ..Options::default() };
    let mut fabric =
        RingFabric::open(&address(&tuple.local, tuple.interface), &options).map_err(reason)?;
    let memory = process::map_private(size_of::<Device>()).ok_or(Reason::NoMemory)?;
    let at = memory.as_ptr().cast::<Device>();
    let (core, numbers, port) = (fabric.core(), fabric.numbers(), fabric.device_port());
    let mut name = [0; DEVICE_LEN];
    name.iter_mut().zip(fabric.device_name()).for_each(|(to, from)| *to = *from);
    // SAFETY: fresh memory of that size, aligned to a page.
    let device = unsafe {
        at.write(Device { host: Host::new(fabric), core, numbers, name, port });
        &mut *at
    };
    let [file, rest @ ..] = device.host.fabric().descriptors();
    let set = events();
    let are_hidden =
        set >= 0 && process::note_hidden(file) && rest.iter().all(|fd| watch(set, *fd));
    let failed = if !are_hidden || doorbell::files().0 < 0 {
        Some(Reason::NoDescriptors)
    } else {
        let is_added = strangers::add_device(set, strangers::Device { arm, drain: || _ = drain() });
        (!is_added).then_some(Reason::Limit)
    };
    if let Some(reason) = failed {
        // SAFETY: it was written above, and no other thread knows it.
        unsafe { close(at) };
        return Err(reason);
    }
    Ok(at)
}

/// The process's doorbells have gone, and with them the descriptor on which sleepers wait: the next
/// slow step makes it anew.
pub(super) fn doorbells_gone() {
    EVENTS.store(-1, Ordering::Release);
}

/// The descriptor on which sleepers wait has another number, or none, if it was `from`.
pub(super) fn events_moved(from: i32, to: i32) {
    let _ = EVENTS.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
}

/// Sleepers wait for the devices again.
fn rejoin(lock: &mut DeviceLock) {
    if strangers::has_device() || doorbell::files().0 < 0 {
        return;
    }
    let set = events();
    let mut are_in = set >= 0;
    for at in places::open_ones() {
        let Some(device) = device(lock, at) else { continue };
        let [_, rest @ ..] = device.host.fabric().descriptors();
        are_in = are_in && rest.iter().all(|fd| watch(set, *fd));
        places::get(at)
            .into_iter()
            .for_each(|place| place.is_armed.store(false, Ordering::Release));
    }
    if are_in && places::is_any_open() {
        strangers::add_device(set, strangers::Device { arm, drain: || _ = drain() });
    }
}

/// The descriptor on which sleepers wait beside their doorbells. It stays when a device goes: the
/// device's descriptors in it go with the device.
fn events() -> i32 {
    let known = EVENTS.load(Ordering::Acquire);
    if known >= 0 {
        return known;
    }
    let set = kernel::epoll_create1(libc::EPOLL_CLOEXEC);
    let set = set.map_or(-1, |set| process::hide(set as i32));
    EVENTS.store(set, Ordering::Release);
    set
}

fn watch(set: i32, fd: i32) -> bool {
    let interest = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    process::note_hidden(fd) && kernel::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &interest).is_ok()
}

/// Before a sleep: the completion queues signal the next message. Look again afterwards. Fast.
pub(super) fn arm() {
    for at in places::open_ones() {
        let Some(place) = places::get(at) else { continue };
        places::with_core(at, |core| {
            // The events of an earlier arm were perhaps another sleeper's.
            if core.take_wakeups() || !place.is_armed.load(Ordering::Acquire) {
                place.is_armed.store(true, Ordering::Release);
                let _ = core.arm(true);
            }
        });
    }
}

/// Takes the completions, and sets the bits of the connections that have news. True when something
/// had completed. Fast.
pub(super) fn drain() -> bool {
    places::open_ones().fold(false, |had_some, at| drain_one(at) | had_some)
}

pub(super) fn drain_one(at: usize) -> bool {
    let had_some = places::with_core(at, |core| {
        let had_some = core.drain();
        // Another thread that takes them tells nobody: its next wait would. A caller that sleeps on
        // what it has taken would not be woken.
        for turn in (0..TURNS).take_while(|_| core.is_draining()) {
            back_off(turn);
        }
        for index in core.take_news() {
            let Some(pair) = places::pair_at(at, index) else { continue };
            let Some(counts) = core.counts(index) else { continue };
            let now = counts.arrived.wrapping_shl(1) | u32::from(counts.has_failed);
            if pair.signalled.swap(now, Ordering::AcqRel) != now
                && let Some(conn) = pair.conn()
            {
                doorbell::signal_self(conn.index());
            }
        }
        had_some
    });
    had_some == Some(true)
}

/// Whether messages of a connection have arrived that its receiving half has not taken. Fast.
pub(super) fn has_news(pair: &Pair) -> bool {
    let Some((at, index)) = pair.queue() else { return false };
    places::with_core(at, |core| core.has_news(index)) == Some(true)
}

/// Handles the events of the connection manager and the device. Slow.
pub(super) fn progress() {
    if !places::is_any_open() || !may_be_slow() {
        return;
    }
    let Some(mut lock) = DeviceLock::take() else { return };
    step(&mut lock);
    ending::catch_up(&mut lock);
    close_lost(&mut lock);
}

/// A sleep ended. `has_rung`: by something else than the carrier. Slow.
pub(super) fn heard(has_rung: bool) {
    if has_rung {
        progress();
    }
}

/// [`progress`], where a descriptor of the device or another sign shows events, or a look is due.
/// At most one system call if not. Slow.
pub(super) fn progress_if_ready() {
    if places::is_any_open() && (pace::is_look_due(monotonic_ns()) || is_ready()) {
        progress();
    }
}

/// Sleeps for so many nanoseconds at most, until there are events. An error: a signal came.
pub(super) fn wait_for_event(ns: i64) -> Result<(), Errno> {
    let fd = EVENTS.load(Ordering::Acquire);
    fd::poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], Some(ns)).map(|_| ())
}

/// Whether the device has events, or sleepers have to be told of new connections.
fn is_ready() -> bool {
    let set = EVENTS.load(Ordering::Acquire);
    if set < 0 || !strangers::has_device() || IS_LOST.load(Ordering::Relaxed) || ending::is_due() {
        return true;
    }
    places::open_ones().any(|at| places::with_core(at, Core::is_due) == Some(true))
        || kernel::epoll_wait(set, &mut [kernel::zeroed()], 0) != Ok(0)
}

/// A call on a connection that has no queue pair, or one that has not proven itself: a step, if it is time. Slow.
pub(super) fn approach(conn: &Conn, number: u32, pair: &Pair, fd: i32) {
    let has_none = !pair.shared.has_link() || pair.shared.is_link_dead();
    let may_step = has_none && sharing::has_earned(conn);
    if !may_step && !places::is_any_open() {
        return;
    }
    let now = monotonic_ns();
    if may_step && pace::is_step_due(pair, now) {
        match conn.name(fd) {
            Some(tuple) if sharing::is_sole_holder(conn) => {
                if let Err(reason) = attempt(number, pair, &tuple) {
                    super::let_go(conn, reason);
                }
            }
            _ => pace::rest(pair, RETRY_NS),
        }
    } else if pace::is_look_due(now) {
        progress();
        if has_none && pace::has_listened_in_vain(pair, now) {
            note_nobody(conn);
        }
    }
}

fn step(lock: &mut DeviceLock) {
    rejoin(lock);
    let mut has_some = false;
    for at in places::open_ones() {
        let Some(device) = device(lock, at) else { continue };
        while let Some(event) = device.host.progress() {
            has_some = true;
            hear(&mut device.host, at, event);
        }
    }
    pace::has_looked(has_some);
}

/// Something has happened at the device of a place.
fn hear(host: &mut Host<RingFabric, PAIRS>, at: usize, event: Event<RingFabric>) {
    match event {
        Event::Requested { id, service, data } => {
            if let Err(code) = answer(host, at, &service, id, data.as_slice()) {
                host.reject(id, code);
            }
        }
        Event::Established { number, tx, rx, data } => {
            let Some(pair) = pair::get(number) else {
                return host.forget(number);
            };
            // SAFETY: the device's lock is ours.
            let attempt = unsafe { pair.attempt() };
            pair.is_out.store(false, Ordering::Relaxed);
            let mut is_other_version = false;
            let learnt = with_both(pair, |conn, receiving, sending| {
                if !may_begin(conn, pair) {
                    return None;
                }
                let tuple = conn.known_name()?;
                let identity = pair::identity(Role::Acceptor, &tuple, receiving, sending);
                let met = attempt.meeting.learn(&identity, data.as_slice());
                is_other_version = met.is_err_and(|why| why.is_other_version());
                let met = met.ok()?;
                if !enter_guard(conn) {
                    return None;
                }
                begin(pair, receiving, sending, (&met, attempt.kept), (tx, rx));
                Some(())
            });
            match learnt {
                Some(()) => begun(pair, number, at),
                None => {
                    host.forget(number);
                    put_off_for(pair, attempt, true, is_other_version);
                }
            }
        }
        Event::Refused { number, reject } => {
            if let Some(pair) = pair::get(number) {
                // SAFETY: the device's lock is ours.
                let attempt = unsafe { pair.attempt() };
                let has_answered = reject != Reject::InvalidService;
                let is_other_version = reject == Reject::Consumer(OTHER_VERSION);
                put_off_for(pair, attempt, has_answered, is_other_version);
            }
        }
        Event::Unreachable { number } => {
            if let Some(pair) = pair::get(number) {
                // SAFETY: the device's lock is ours.
                put_off_for(pair, unsafe { pair.attempt() }, false, false);
            }
        }
        Event::Lost { number } => {
            if let Some(pair) = pair::get(number) {
                // Of a device that was removed the peer may know nothing.
                match host.fabric().is_lost() {
                    true => pair.shared.link_died(),
                    false => pair.shared.peer_parted(),
                }
                if let Some(conn) = pair.conn() {
                    doorbell::signal_self(conn.index());
                }
            }
        }
    }
}

/// Says of a connection that it stays on TCP because the two ends speak different versions.
fn note_version(pair: &Pair, is_other_version: bool) {
    if is_other_version && let Some(conn) = pair.conn() {
        conn.note_reason(Reason::VersionMismatch);
    }
}

/// The same where an attempt came to nothing, perhaps for it: the next one later.
fn put_off_for(pair: &Pair, attempt: &mut pair::Attempt, has_answered: bool, is_other: bool) {
    note_version(pair, is_other);
    put_off(
        pair,
        attempt,
        match (has_answered, is_other) {
            (_, true) => Shown::OtherVersion,
            (true, false) => Shown::Library,
            (false, false) => Shown::Nothing,
        },
    );
    if pace::is_nobody_there(attempt)
        && let Some(conn) = pair.conn()
    {
        note_nobody(conn);
    }
}

/// No library has answered at the other end. A reason that was found before is truer.
fn note_nobody(conn: &Conn) {
    let noted = conn.row().and_then(|row| Verdict::at(&row.reason).reason());
    if noted.is_none_or(|reason| reason == Reason::TooYoung) {
        conn.note_reason(Reason::PeerNotListening);
    }
}

/// No event will tell that the device of a place is lost: sleepers look, and the next slow step.
pub(super) fn is_lost(at: usize) {
    IS_LOST.store(true, Ordering::Relaxed);
    for (_, pair) in pair::all() {
        let is_its = pair.queue().is_some_and(|(place, _)| place == at);
        if let Some(conn) = pair.conn().filter(|_| is_its) {
            doorbell::signal_self(conn.index());
        }
    }
}

/// Devices that were removed: their drivers may wait until nothing of them is in use here. Streams go on over TCP.
fn close_lost(lock: &mut DeviceLock) {
    let mut is_one_used = false;
    for at in places::open_ones() {
        let Some(device) = device(lock, at) else { continue };
        if !device.host.fabric().is_lost() {
            continue;
        }
        if part_from(&mut device.host, at) {
            let Some(place) = places::get(at) else { continue };
            // SAFETY: no other thread reaches it: `lost` has waited for the end of fast steps.
            unsafe { close(place.lost(at)) };
        } else {
            is_one_used = true;
        }
    }
    IS_LOST.store(is_one_used, Ordering::Relaxed);
}

/// The device of a place was removed. False: messages that the program has not read lie in its buffers.
fn part_from(host: &mut Host<RingFabric, PAIRS>, at: usize) -> bool {
    let mut is_used = false;
    for (number, pair) in pair::all() {
        if pair.queue().is_some_and(|(place, _)| place == at) {
            pair.shared.link_died();
            bury(host, number, pair);
            is_used |= pair.queue().is_some();
            if let Some(conn) = pair.conn() {
                doorbell::signal_self(conn.index());
            }
        }
        // SAFETY: the device's lock is the caller's.
        let attempt = unsafe { pair.attempt() };
        if attempt.place == at && pair.is_out.load(Ordering::Relaxed) {
            put_off(pair, attempt, Shown::NotYet);
        }
    }
    !is_used
}

/// Closes a device that no thread uses.
///
/// # Safety
/// It was in a place, and is not any more, or never was.
unsafe fn close(at: *mut Device) {
    // SAFETY: the caller's: no other thread has it.
    let descriptors = unsafe { &mut *at }.host.fabric().descriptors();
    // The library closes them as a program closes a number.
    for fd in descriptors {
        process::table::unhide(fd);
    }
    // SAFETY: initialised before it came to a place, and dropped once: no other thread has it any more. The mapping
    // stays; it is a few pages for each device that was lost.
    unsafe { core::ptr::drop_in_place(at) };
}

/// Both halves, under both locks, of a connection that has not begun to end. Allocates nothing:
/// handlers wait for these locks.
pub(super) fn with_both<R>(
    pair: &Pair,
    body: impl FnOnce(&Conn, &mut Receiving, &mut Sending) -> Option<R>,
) -> Option<R> {
    let conn = pair.conn().filter(|_| pair.later.load(Ordering::Acquire) == 0)?;
    let both = |receiving: &mut Receiving| {
        pair.sending(conn, |sending, _| body(conn, receiving, sending)).flatten()
    };
    pair.receiving(conn, both).flatten()
}

/// A request comes at a listener: the connection that can prove to be meant answers. `Err`: the
/// code of a refusal.
fn answer(
    host: &mut Host<RingFabric, PAIRS>,
    at: usize,
    service: &Address,
    id: sdp_fabric_verbs::fabric::Id,
    request: &[u8],
) -> Result<(), u8> {
    let mut code = REFUSED;
    for (number, pair) in pair::all() {
        if !host.listeners(service).any(|listener| listener == number) {
            continue;
        }
        // SAFETY: the device's lock is ours: only [`step`] calls this.
        let attempt = unsafe { pair.attempt() };
        let mut is_other_version = false;
        let judged = with_both(pair, |conn, receiving, sending| {
            if !may_meet(pair, receiving, sending) || !may_begin(conn, pair) {
                return None;
            }
            let tuple = conn.known_name()?;
            super::peek_first(conn, receiving);
            let identity = pair::identity(Role::Connector, &tuple, receiving, sending);
            let judged = attempt.meeting.judge(&identity, request);
            judged.inspect_err(|why| is_other_version = why.is_other_version()).ok()
        });
        let accepted = judged.and_then(|()| {
            // SAFETY: memory that is never given back.
            let offer = unsafe { host.fabric().offer_to(id, pair.memory()) }.ok()?;
            let (reply, met) = with_both(pair, |conn, receiving, sending| {
                let tuple = conn.known_name()?;
                let identity = pair::identity(Role::Connector, &tuple, receiving, sending);
                attempt.meeting.answer(&identity, &local(&offer), request, nonce()?).ok()
            })?;
            host.fabric().prepare(id).ok()?;
            with_both(pair, |conn, receiving, sending| {
                if !may_meet(pair, receiving, sending) || !may_begin(conn, pair) {
                    return None;
                }
                // Before the peer hears of it: from then on it may write markers.
                let was_guarded = super::is_guarded(conn);
                if !enter_guard(conn) {
                    return None;
                }
                announce(pair);
                let Ok((tx, rx)) = host.accept(id, number, reply) else {
                    if !was_guarded {
                        pair.is_new.store(false, Ordering::SeqCst);
                        conn.change_stage(Stage::Guarded, Stage::Remote);
                    }
                    return None;
                };
                begin(pair, receiving, sending, (&met, offer.kept), (tx, rx));
                Some(())
            })
        });
        if accepted.is_some() {
            begun(pair, number, at);
            return Ok(());
        }
        note_version(pair, is_other_version);
        if is_other_version {
            code = OTHER_VERSION;
        }
    }
    Err(code)
}

fn nonce() -> Option<[u8; 8]> {
    let mut bytes = [0u8; 8];
    let got = kernel::random_bytes(&mut bytes, libc::GRND_NONBLOCK);
    (got == Ok(bytes.len())).then_some(bytes)
}

fn may_meet(pair: &Pair, receiving: &Receiving, sending: &Sending) -> bool {
    receiving.inbound.as_ref().is_none_or(|half| half.may_meet(&pair.shared))
        && sending.outbound.as_ref().is_none_or(|half| half.may_meet(&pair.shared))
}

/// The ends have found each other. Under both locks.
fn begin(
    pair: &Pair,
    receiving: &mut Receiving,
    sending: &mut Sending,
    (met, kept): (&Agreement, usize),
    (mut tx, rx): (RingTx, RingRx),
) {
    let inbound = receiving.inbound.get_or_insert_with(|| Inbound::new(receiving.moved));
    let outbound = sending.outbound.get_or_insert_with(|| Outbound::new(sending.moved));
    pair.keep(kept);
    if let Some(ring) = met.peer_ring() {
        tx.reach(ring);
    }
    sdp_remote::begin(outbound, inbound, &pair.shared, met);
    (receiving.rx, sending.tx) = (Some(rx), Some(tx));
}

/// Whether the connection may meet: no other process has it, which would read markers as payload.
fn may_begin(conn: &Conn, pair: &Pair) -> bool {
    super::has(conn)
        && sharing::is_sole_holder(conn)
        && !conn.has(Limits::Hostile)
        && !pair.is_leaving.load(Ordering::Acquire)
}

/// The carrier is read by this room alone from here on. False: the connection has been let go.
fn enter_guard(conn: &Conn) -> bool {
    conn.change_stage(Stage::Remote, Stage::Guarded) || super::is_guarded(conn)
}

/// Behind [`begin`], when the locks are free.
fn begun(pair: &Pair, number: u32, at: usize) {
    let Some(conn) = pair.conn() else { return };
    pair.receiving(conn, |receiving| {
        let index = receiving.rx.as_ref().map(|rx| rx.index());
        // All that arrives on this queue pair is new, whatever had arrived on the last one.
        pair.signalled.store(0, Ordering::Release);
        pair.set_queue(index.map(|index| (at, index)));
        if let Some(index) = index {
            places::set_pair_at(at, index, number);
        }
        let Times { retries, rnr_retries, .. } = Times::USUAL;
        places::with_names(at, |core, name, port| {
            let counts = core.counts(index?)?;
            let device = sdp_stats::Device { name, port, retries, rnr_retries };
            publish::met(conn, (counts.number, counts.peer_number), &device);
            Some(())
        });
    });
    // SAFETY: the device's lock is the caller's.
    let attempt = unsafe { pair.attempt() };
    (attempt.met_ns, attempt.tries) = (monotonic_ns(), 0);
    announce(pair);
    doorbell::signal_self(conn.index());
}

/// Markers may come to stand on its carrier from here on: epoll sets are to be told ([`take_new`]).
fn announce(pair: &Pair) {
    pair.is_new.store(true, Ordering::SeqCst);
    HAS_NEW.store(true, Ordering::SeqCst);
}

/// Whether [`take_new`] has something to do.
#[inline]
pub(super) fn has_new() -> bool {
    HAS_NEW.load(Ordering::Acquire)
}

/// Calls `each` with the connections that have met since the last time.
#[inline]
pub(super) fn take_new(each: impl Fn(&Conn)) {
    if HAS_NEW.load(Ordering::Acquire) && HAS_NEW.swap(false, Ordering::SeqCst) {
        let is_new = |pair: &Pair| pair.is_new.swap(false, Ordering::SeqCst);
        let met = pair::all().filter(|(_, pair)| is_new(pair));
        met.filter_map(|(_, pair)| pair.conn()).for_each(each);
    }
}

/// A dead queue pair whose messages have been read is destroyed, so that another one may come. By
/// the holder of the device's lock.
fn bury(host: &mut Host<RingFabric, PAIRS>, number: u32, pair: &Pair) {
    let halves = with_both(pair, |conn, receiving, sending| {
        let (inbound, outbound) = (receiving.inbound.as_mut()?, sending.outbound.as_mut()?);
        if !pair.shared.is_link_dead() || !inbound.may_destroy() || outbound.is_lent() {
            return None;
        }
        // Messages that are not acknowledged go to the carrier: the half has perhaps not seen the
        // end yet.
        let was_on_sdp = outbound.is_on_sdp();
        outbound.link_died(&pair.shared);
        let is_on_sdp = outbound.is_on_sdp();
        super::note_lane(conn, was_on_sdp, is_on_sdp, &pair.shared);
        publish::record(conn, Kind::LaneLost, None, None, Some(Fabric::Verbs));
        publish::parted(conn);
        let halves = (receiving.rx.take(), sending.tx.take());
        pair.set_queue(None);
        sdp_remote::end(outbound, inbound, &pair.shared);
        Some(halves)
    });
    if let Some(halves) = halves {
        drop(halves);
        host.forget(number);
        // SAFETY: the caller has the device's lock.
        pace::put_off_after_loss(pair, unsafe { pair.attempt() });
    }
}

/// Takes a step towards a queue pair for the connection. `Err`: it is to be TCP. Slow.
fn attempt(number: u32, pair: &Pair, tuple: &Tuple) -> Result<(), Reason> {
    if may_be_slow()
        && let Some(mut lock) = DeviceLock::take()
    {
        let at = match open(tuple) {
            Ok(at) => at,
            Err((why, again_ns)) => {
                pair.is_soon.store(false, Ordering::Relaxed);
                pair.next_ns.store(again_ns, Ordering::Relaxed);
                return why.map_or(Ok(()), Err);
            }
        };
        step(&mut lock);
        close_lost(&mut lock);
        match device(&mut lock, at) {
            Some(device) => attempt_on(&mut device.host, at, number, pair, tuple),
            None => pace::rest(pair, RETRY_NS),
        }
        ending::catch_up(&mut lock);
    }
    Ok(())
}

/// The same on the device of a place.
fn attempt_on(
    host: &mut Host<RingFabric, PAIRS>,
    at: usize,
    number: u32,
    pair: &Pair,
    tuple: &Tuple,
) {
    if pair.shared.is_link_dead() {
        bury(host, number, pair);
    }
    // Its remaining messages have to be read first.
    if pair.shared.has_link() {
        return pace::rest(pair, RETRY_NS);
    }
    if !pace::is_step_due(pair, monotonic_ns()) {
        return;
    }
    // SAFETY: the device's lock is ours.
    let attempt = unsafe { pair.attempt() };
    attempt.place = at;
    pair.is_soon.store(false, Ordering::Relaxed);
    let has_begun = begin_attempt(host, number, pair, tuple);
    pair.is_out.store(has_begun, Ordering::Relaxed);
    if has_begun {
        pace::has_looked(true);
        pace::has_begun(pair, attempt);
    } else {
        put_off(pair, attempt, Shown::NotYet);
    }
}

/// Asks for a queue pair, or listens for requests. False: that was not possible.
fn begin_attempt(
    host: &mut Host<RingFabric, PAIRS>,
    number: u32,
    pair: &Pair,
    tuple: &Tuple,
) -> bool {
    // SAFETY: the device's lock is the caller's.
    let attempt = unsafe { pair.attempt() };
    let role = attempt.meeting.role();
    if role == Role::Connector {
        return host.listen(number, address(&tuple.local, tuple.interface)).is_ok();
    }
    // SAFETY: memory that is never given back.
    let Ok(offer) = (unsafe { host.fabric().offer(pair.memory()) }) else { return false };
    attempt.kept = offer.kept;
    let request = with_both(pair, |_, receiving, sending| {
        if !may_meet(pair, receiving, sending) {
            return None;
        }
        let identity = pair::identity(role, tuple, receiving, sending);
        attempt.meeting.ask(&identity, &local(&offer), nonce()?).ok()
    });
    let at = address(&tuple.remote, tuple.interface);
    request.is_some_and(|request| host.ask(number, at, request).is_ok())
}

/// In a fork child: devices and queue pairs are the parent's.
#[cold]
pub(super) fn forget() {
    places::forget();
    BUSY.store(false, Ordering::Release);
    IS_OPENING.store(false, Ordering::Relaxed);
    EVENTS.store(-1, Ordering::Release);
}
