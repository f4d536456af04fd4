//! Earning the SDP lane: when a connection is worth it, and meeting the other end.
//!
//! Called by `api` after each call that the kernel made.
//!
//! A connection starts on the kernel lane and stays there unless enough of its use was seen. Then each
//! call takes at most one non-blocking step of the rendezvous. Only calls that move much pause for the other end's next
//! step, for a bounded time (R12, [`crate::migration::pause`]).

use core::sync::atomic::{Ordering, fence};

use sdp_fabric_shm::{
    identity::Tuple,
    link::ShmLink,
    packet::{HELLO_ACK_LEN, HELLO_LEN},
    peer::PeerId,
    pool::{KeptSegment, Offer},
    refusal::Refusal,
    rendezvous::{Attachment, Local, PeerHello, Rendezvous, Step},
    segment::MappedSegment,
};
use sdp_proto::{
    Local as Setup, Remote, Violation,
    wire::hello::{Address, Names},
};
use sdp_shm::{
    family::Row,
    layout::{Segment, is_ring_size},
};
use sdp_stats::{Reason, Verdict};
use sdp_sys::{count::Counting, hidden::InUse, section, time::monotonic_ns};

use crate::{
    conn::{
        Conn, Half, Holders, Limits, Mask, Origin, RowFlag, Stage, Waiters, carrier, options, pool,
        publish,
        sharing::{self, has_earned},
    },
    datapath::{
        lane::{SinkState, SourceState},
        proof, receive, token,
    },
    migration::{
        across, arrived, holders, pause,
        reuse::{self, Outcome},
    },
    process,
    wake::{doorbell, strangers},
};

/// Calls at which every one takes a step of the meeting.
const EAGER_TICKS: u32 = 64;
/// Later only one in so many.
const PATIENT_EVERY: u32 = 16;
/// After so many calls, and so much time since it could have come, the other end is taken to have no library. Calls
/// alone would not do: a sender of small messages makes thousands before its reader has run once.
const GIVE_UP_TICKS: u32 = 2048;
const GIVE_UP_NS: u64 = 2_000_000_000;
/// Meetings after that one, of a connection whose other end did not come: an end that the machine
/// starves may have been late. Each is waited for twice as long as the one before, and begins when
/// four times as much time has passed.
const AGAIN_MOST: u32 = 4;
/// Calls between two looks whether it is time.
const AGAIN_EVERY: u32 = 1024;
/// Beyond that many calls only one in so many looks at the clock and takes a step.
const LATE_EVERY: u32 = 128;
/// Calls between two attempts when a transient condition prevented one; calls that move much count
/// for one more per so many bytes. After a fork, which is over sooner, an attempt is made after two
/// calls, four, eight, and so on up to this.
const RETRY_TICKS: u32 = 256;
/// [`Conn::ticks`] of a candidate whose holders have just changed.
pub(crate) const SOON: u32 = 1;
const RETRY_BYTES: usize = 512;
/// Bytes of a read after which it is worth asking how much more there is.
const LARGE_READ: usize = 4096;
/// An end's parameters on shared memory: the longest message, header included, and no credit.
const SETUP: Setup = Setup::implicit(sdp_fabric_shm::endpoint::MESSAGE_MAX as u32);

/// After a successful call of `moved` bytes on a connection that is not attached yet; `more` bytes of the
/// same call are still to be sent.
#[inline]
pub(crate) fn after_call(conn: &Conn, fd: i32, half: Half, moved: usize, more: usize) {
    match conn.stage() {
        Stage::Candidate if has_earned(conn) || is_behind(conn, fd, half, moved) => {
            begin(conn, fd, moved);
        }
        Stage::Meeting => tick(conn, fd),
        Stage::Kernel if conn.has(Holders::Adopted) => arrived::after_call(conn, fd),
        Stage::Kernel if conn.has(Limits::Unmet) => again(conn),
        _ => return,
    }
    if conn.stage() == Stage::Meeting {
        pause::let_catch_up(conn, fd, half, more);
    }
}

/// One more step, if the ends are meeting.
pub(crate) fn advance(conn: &Conn, fd: i32) {
    if conn.stage() == Stage::Meeting {
        tick_now(conn, fd);
    }
}

/// Whether a reader of large pieces has so much more to read that its bytes are earned already. A slow
/// reader would otherwise come to the meeting when the sender has long filled the kernel's buffers.
fn is_behind(conn: &Conn, fd: i32, half: Half, moved: usize) -> bool {
    if half != Half::Receive || moved < LARGE_READ {
        return false;
    }
    let bytes = process::tunables().promote_bytes();
    let seen = conn.bytes[Half::Receive as usize].load(Ordering::Relaxed);
    if seen + carrier::queued(fd).unwrap_or(0) < bytes {
        return false;
    }
    conn.bytes[Half::Receive as usize].fetch_max(bytes, Ordering::Relaxed);
    true
}

/// How many attempts there have been after so many ticks.
const fn attempts(ticks: u32) -> u32 {
    match ticks.checked_ilog2() {
        None => 0,
        Some(log) if ticks < RETRY_TICKS => log,
        Some(_) => RETRY_TICKS.ilog2() + ticks / RETRY_TICKS,
    }
}

#[cold]
fn begin(conn: &Conn, fd: i32, moved: usize) {
    let weight = 1 + (moved / RETRY_BYTES).min(RETRY_TICKS as usize / 4) as u32;
    let before = conn.ticks.fetch_add(weight, Ordering::Relaxed);
    let after = before.wrapping_add(weight);
    if before != 0 && attempts(after) == attempts(before) {
        return;
    }
    // Finding out which other process may have it open is expensive.
    let is_dear = conn.has(Holders::Adopted) || is_out_of_sight(conn);
    if is_dear && before != 0 && !(after / RETRY_TICKS).is_power_of_two() {
        return;
    }
    if !process::tunables().has_shm() {
        return stay(conn, Reason::Disabled);
    }
    if conn.has(Limits::Fallback.with(Holders::Uncertain)) {
        return conn.note_reason(conn.fallback_reason().unwrap_or(Reason::NotSole));
    }
    let (Some(row), Some((family, slot))) = (conn.row_index(), process::family()) else {
        return stay(conn, Reason::NoMemory);
    };
    if family.is_held_by_others(slot, row) {
        // A helper that has executed something lives on without the connection.
        family
            .forget_executed(slot, row, process::pid(), |pid| holders::has_let_go(fd, pid as i32));
    }
    if family.is_held_by_others(slot, row) || (is_dear && holders::is_held_outside(conn, fd)) {
        return conn.note_reason(Reason::NotSole);
    }
    if (is_dear || conn.has(Holders::Passed)) && crate::migration::unseen::may_have() {
        return conn.note_reason(Reason::UnseenSet);
    }
    // Or another process has its listener, too.
    let may_have_options = conn.has(Holders::Adopted.with(Origin::MayBeElsewhere))
        || conn.has(Origin::Accepted) && process::forks() != 0;
    let in_the_way = match may_have_options {
        true => options::in_the_way(fd),
        false => options::hidden_in_the_way(fd),
    };
    if let Some(reason) = in_the_way {
        conn.fall_back(reason);
        return stay(conn, reason);
    }
    if across::is_vain(conn, fd) {
        return stay(conn, Reason::PeerNotListening);
    }
    let at_first = || conn.name(fd).map_or(Some(0), |tuple| proof::at_first(fd, &tuple));
    let wanted = if conn.is_across() { Some(0) } else { at_first() };
    // Addresses name another end than the one here: it may be met without them.
    let Some(wanted) = wanted.or_else(|| across::begins(conn, fd).then_some(0)) else {
        conn.fall_back(Reason::Translated);
        return stay(conn, Reason::Translated);
    };
    let is_candidate = {
        let _section = section::Guard::enter();
        // Under its lock: the ends may have met by another thread's steps, and the proof that is
        // needed since stays.
        conn.try_meeting(|_| {
            let is_candidate = conn.stage() == Stage::Candidate;
            if is_candidate {
                conn.proof.store(wanted, Ordering::Relaxed);
            }
            is_candidate
        })
    };
    if is_candidate != Some(true) {
        return;
    }
    // Before the stage: another thread that sees it counts from here.
    conn.ticks.store(0, Ordering::Relaxed);
    conn.looked.store(monotonic_ns(), Ordering::Relaxed);
    if conn.change_stage(Stage::Candidate, Stage::Meeting) {
        crate::wake::interest::meets(conn);
        tick_now(conn, fd);
    }
}

fn tick(conn: &Conn, fd: i32) {
    let tick = conn.ticks.fetch_add(1, Ordering::Relaxed);
    if tick > GIVE_UP_TICKS {
        if !tick.is_multiple_of(LATE_EVERY) {
            return;
        }
        let since = conn.looked.load(Ordering::Relaxed);
        let timeout = GIVE_UP_NS << conn.refusals.load(Ordering::Relaxed).min(AGAIN_MOST);
        let is_last = monotonic_ns().saturating_sub(since) > timeout;
        return step(conn, fd, is_last);
    }
    if tick < EAGER_TICKS || tick.is_multiple_of(PATIENT_EVERY) {
        // A name in the directory does not wait for so many calls.
        let is_last = tick >= EAGER_TICKS
            && conn.is_across()
            && monotonic_ns().saturating_sub(conn.looked.load(Ordering::Relaxed)) > GIVE_UP_NS;
        step(conn, fd, is_last);
    }
}

/// After a call on a connection whose other end did not come to meet it.
#[cold]
fn again(conn: &Conn) {
    // A count that two threads lose does no harm; a locked addition would be dear on every call.
    let tick = conn.ticks.load(Ordering::Relaxed).wrapping_add(1);
    conn.ticks.store(tick, Ordering::Relaxed);
    if !tick.is_multiple_of(AGAIN_EVERY) {
        return;
    }
    let times = conn.refusals.load(Ordering::Relaxed);
    if times > AGAIN_MOST || conn.has(Limits::Fallback) || conn.row_index().is_none() {
        conn.clear(Limits::Unmet);
        return;
    }
    let since = conn.looked.load(Ordering::Relaxed);
    if monotonic_ns().saturating_sub(since) > GIVE_UP_NS << (2 * times) {
        conn.ticks.store(0, Ordering::Relaxed);
        conn.change_stage(Stage::Kernel, Stage::Candidate);
    }
}

/// The connection ends: one that its other end never came to meet says so.
#[unsafe(link_section = ".text.hot")]
pub(crate) fn ended(conn: &Conn) {
    if matches!(conn.stage(), Stage::Candidate | Stage::Meeting) {
        pool::passed_by();
    }
    if conn.stage() == Stage::Meeting {
        let is_early = conn.ticks.load(Ordering::Relaxed) < EAGER_TICKS && !conn.has(Limits::Unmet);
        let reason = if is_early { Reason::ShortLived } else { Reason::PeerNotListening };
        conn.note_reason(unless_turned_away(conn, reason));
    }
}

/// This process is about to end, or to execute something: a name in the directory would stay behind.
/// Should it go on after all, the next step begins anew.
pub(crate) fn withdraw(conn: &Conn) {
    if conn.is_across() && conn.stage() == Stage::Meeting {
        conn.try_meeting(Rendezvous::abandon);
    }
}

/// Why a meeting to which the other end did not come led to nothing: `reason`, unless this end wanted for
/// memory or descriptors before and may have turned the other end away. It does not come a second time.
fn unless_turned_away(conn: &Conn, reason: Reason) -> Reason {
    match conn.row().and_then(|row| Verdict::at(&row.reason).reason()) {
        Some(before @ (Reason::NoMemory | Reason::NoDescriptors)) => before,
        _ => reason,
    }
}

/// Counts a meeting that came to nothing. Whether there have been enough of them.
fn is_enough(conn: &Conn) -> bool {
    conn.refusals.fetch_add(1, Ordering::Relaxed) >= AGAIN_MOST
}

fn stay(conn: &Conn, reason: Reason) {
    let is_unmet = reason == Reason::PeerNotListening;
    if is_unmet {
        conn.set(Limits::Unmet); // before the stage: who takes it for the kernel's for good looks at both
    }
    // Another thread may have attached it meanwhile.
    if conn.change_stage(Stage::Candidate, Stage::Kernel)
        || conn.change_stage(Stage::Meeting, Stage::Kernel)
    {
        conn.refusals.fetch_add(1, Ordering::Relaxed);
        conn.ticks.store(1, Ordering::Relaxed);
        if !is_unmet {
            conn.clear(Limits::Unmet);
        }
        conn.note_reason(reason);
    }
}

#[cold]
fn tick_now(conn: &Conn, fd: i32) {
    step(conn, fd, false);
}

/// One step of the meeting; `is_last`: no call waits any longer. Packets of the other end that have
/// come by now count, or it would be attached alone.
#[cold]
fn step(conn: &Conn, fd: i32, is_last: bool) {
    let _section = section::Guard::enter();
    let Some(tuple) = conn.name(fd) else { return stay(conn, Reason::UnsuitableSocket) };
    publish::ensure_row(conn);
    publish::name_row(conn, tuple);
    let stepped = conn.try_meeting(|meeting| {
        // Pairs with `inherit::prepare_connections`: a fork sees the lock, or we see the fork.
        fence(Ordering::SeqCst);
        if conn.stage() != Stage::Meeting || !process::forks().is_multiple_of(2) {
            return;
        }
        if !is_alone(conn) {
            pool::call_off(conn);
        } else if tuple.side().is_some() && !conn.is_across() {
            match reuse::step(conn, fd, &tuple, meeting, is_last) {
                Outcome::None => {}
                Outcome::Wait => return,
                Outcome::Failed(refusal) => return failed(conn, refusal),
                Outcome::Attached(offer) => {
                    meeting.abandon();
                    return attach_again(conn, fd, &tuple, offer);
                }
            }
        }
        let (was_idle, was_joining) = (meeting.is_idle(), meeting.is_joining());
        let stepped = step_by_name(conn, fd, tuple, meeting, is_last && !was_idle);
        if was_idle && (is_last || !meeting.is_idle()) {
            // The connection had not been accepted, or there was something else to wait for: only
            // now the other end can come.
            conn.looked.store(monotonic_ns(), Ordering::Relaxed);
        }
        let refusal = match stepped {
            Step::Attached(attachment) if is_alone(conn) => {
                (!attach(conn, fd, attachment)).then_some(Refusal::Untrusted)
            }
            Step::Attached(attachment) => {
                refuse(attachment);
                Some(Refusal::RendezvousBusy)
            }
            Step::Failed(Refusal::RemotePeer) if !conn.is_across() && across::begins(conn, fd) => {
                conn.looked.store(monotonic_ns(), Ordering::Relaxed);
                conn.ticks.store(0, Ordering::Relaxed);
                None
            }
            Step::Failed(refusal) => Some(refusal),
            // A process of the other end's user listened, and is slow.
            Step::Pending if is_last && was_joining => {
                return match is_enough(conn) {
                    true => stay(conn, Reason::PeerNotListening),
                    false => later(conn, Reason::PeerNotListening, RETRY_TICKS),
                };
            }
            Step::Pending if is_last && conn.is_across() => {
                let reason = across::ended(conn, fd);
                return stay(conn, unless_turned_away(conn, reason));
            }
            // There was no way to begin.
            Step::Pending if is_last && was_idle && meeting.is_idle() && is_enough(conn) => {
                return stay(conn, Reason::PeerNotListening);
            }
            Step::Pending if is_last && !was_idle => {
                let reason = unless_turned_away(conn, Reason::PeerNotListening);
                stay(conn, Reason::PeerNotListening);
                return conn.note_reason(reason);
            }
            Step::Pending => None,
        };
        // Before the lock is free: another thread that found the old stage would begin anew, and
        // this one would then end that meeting, perhaps when the other end has its consent.
        if let Some(refusal) = refusal {
            failed(conn, refusal);
        }
    });
    if stepped.is_none() {
        return; // another thread is at it
    }
    // Pairs with `demote::call_off`, which could not have the lock: it sees it free, or we see the stage.
    fence(Ordering::SeqCst);
    if conn.stage() == Stage::Kernel {
        conn.abandon_meeting(Stage::Kernel);
    }
    if conn.stage() == Stage::Attached {
        // At once, not at the next call: the sender may be waiting for it. A thread that enters the
        // kernel from here on sees the stage; one that did before is seen.
        fence(Ordering::SeqCst);
        pause::met();
        let _ = receive::with_sink(conn, |sink, _, _, half| {
            receive::declare_trust(conn, fd, sink, half);
            Ok(())
        });
    }
}

/// The meeting came to nothing: another one later, or none. Under its lock.
fn failed(conn: &Conn, refusal: Refusal) {
    let reason = reason(refusal);
    if !refusal.is_transient() {
        return stay(conn, reason);
    }
    // Connections that have never been tried come first.
    if refusal == Refusal::RendezvousBusy && conn.has(Limits::Unmet) {
        return stay(conn, Reason::PeerNotListening);
    }
    // Offers of other connections are over within a few calls; other obstacles last longer.
    later(conn, reason, RETRY_TICKS - if refusal == Refusal::RendezvousBusy { 15 } else { 0 });
}

/// Another meeting later; `ticks`: as if so many calls had been made since the last attempt. Under the lock.
fn later(conn: &Conn, reason: Reason, ticks: u32) {
    conn.note_reason(reason);
    conn.ticks.store(ticks, Ordering::Relaxed);
    conn.change_stage(Stage::Meeting, Stage::Candidate);
}

/// One step of the meeting by name, or the last one.
fn step_by_name(
    conn: &Conn,
    fd: i32,
    tuple: Tuple,
    meeting: &mut Rendezvous,
    is_last: bool,
) -> Step {
    let is_across = conn.is_across();
    let across = if is_across { across::values(conn, fd) } else { None };
    if is_across && across.is_none() {
        meeting.abandon();
        return Step::Pending;
    }
    let _in_use = InUse::begin(); // the other end gets duplicates of our doorbell
    let (doorbell_fd, doorbell_page_fd) = doorbell::files();
    let (hidden_min, max_offers) = process::hidden_range();
    let mut hello = [0; HELLO_LEN];
    for (to, from) in hello.iter_mut().zip(SETUP.hello(Some(names(&tuple))).encode().as_slice()) {
        *to = *from;
    }
    let hello_ack = SETUP.hello_ack().encode();
    let local = Local {
        carrier: fd,
        tuple,
        doorbell_fd,
        doorbell_page_fd,
        foreign_doorbell: strangers::doorbell_for,
        across,
        slot: conn.index(),
        nonce: process::nonce(),
        ring_bytes: process::tunables().ring_bytes(),
        hidden_min,
        max_offers,
        hello: &hello,
        hello_ack: &hello_ack,
        judge,
    };
    if is_last { meeting.last_step(&local) } else { meeting.step(&local) }
}

fn names(tuple: &Tuple) -> Names {
    let address = |addr: &sdp_fabric_shm::identity::Addr| match addr.family() {
        sdp_fabric_shm::identity::Family::V4 => {
            let [.., a, b, c, d] = *addr.bytes();
            Address::V4([a, b, c, d])
        }
        sdp_fabric_shm::identity::Family::V6 => Address::V6(*addr.bytes()),
    };
    Names {
        source: address(&tuple.local),
        port: tuple.local.port(),
        destination: address(&tuple.remote),
    }
}

/// Judges the other end's Hello or HelloAck, with the engine's checks; the word of its terms.
fn judge(hello: &PeerHello) -> Result<u64, Refusal> {
    let judged = match hello {
        PeerHello::Hello(bytes) => Remote::of_hello(bytes),
        PeerHello::HelloAck(bytes) => Remote::of_hello_ack(bytes),
    };
    judged.map(Remote::to_word).map_err(|violation: Violation| {
        if violation.is_other_version() { Refusal::Version } else { Refusal::Untrusted }
    })
}

/// Takes the attachment of the meeting. Under the meeting's lock.
fn attach(conn: &Conn, fd: i32, attachment: Attachment) -> bool {
    let Some(row) = conn.row() else { return refuse(attachment) };
    let (terms, tokens) = (attachment.terms, attachment.tokens);
    let (base, ring_bytes) = (attachment.segment.base(), attachment.segment.ring_bytes());
    if !is_ring_size(ring_bytes) {
        return refuse(attachment);
    }
    // SAFETY: the attachment's mapping has segment_bytes(ring_bytes) bytes, is sealed against
    // shrinking, and is unmapped only by the connection's tear-down.
    let segment = unsafe { Segment::new(base, ring_bytes) };
    let (pid, peer_slot) = (attachment.peer.pid, attachment.peer.slot);
    let (gave_doorbell, side) = (attachment.gave_doorbell, attachment.side);
    let (mut peer, map) = (attachment.peer, attachment.segment);
    let stranger = (!peer.trusted).then_some(peer.party);
    if conn.is_across() {
        across::met(conn, fd);
    } else if !proof::met(conn, fd, peer.trusted) {
        conn.fall_back(Reason::Translated);
        conn.note_reason(Reason::Translated);
        return return_segment(map, side);
    }
    if !process::tunables().keeps_segments() {
        peer.process = None; // its descriptors need not be looked at again
    }
    // A peer that has given us its doorbell waits for it to be rung.
    process::hide_peers();
    let Ok(peer) = process::peers().attach(peer) else { return return_segment(map, side) };
    strangers::note_peer(conn, stranger);
    // Not whether there is a doorbell by now: it may have been made since.
    prepare(conn, row, segment, terms, pid, gave_doorbell);
    token::begin(row, tokens.filter(|_| process::tunables().proves_meetings()));
    if conn.has(Waiters::PeerHasDoorbell)
        && stranger.is_none()
        && pid > 0
        && let Some(tuple) = conn.known_name()
    {
        let remote = (!conn.has(Origin::Accepted)).then_some(tuple.remote);
        let owner = conn.index();
        pool::keep(conn, KeptSegment { base, ring_bytes, peer, pid, side, terms, remote, owner });
    }
    install(conn, fd, segment, side, Some((peer, peer_slot)));
    true
}

/// Takes the segment of an earlier connection with the same process. Under the meeting's lock.
fn attach_again(conn: &Conn, fd: i32, tuple: &Tuple, offer: Offer) {
    let (kept, Some(side)) = (offer.kept, tuple.side()) else { return };
    // SAFETY: the pool's mapping of such a segment, the connection's from here on.
    let segment = unsafe { Segment::new(kept.base, kept.ring_bytes) };
    let Some(row) = conn.row() else { return segment.end(usize::from(side)).disown() };
    strangers::note_peer(conn, None);
    prepare(conn, row, segment, kept.terms, kept.pid, true);
    token::begin(row, None);
    install(conn, fd, segment, side, Some((kept.peer, offer.slot)));
}

/// Both halves as they are at the beginning.
fn prepare(
    conn: &Conn,
    row: &Row,
    segment: Segment,
    terms: u64,
    peer_pid: i32,
    has_doorbell: bool,
) {
    segment.initialise();
    let (source, sink) = SETUP.halves(&Remote::from_word(terms));
    SourceState::initialise(&row.source.words, &source);
    row.ack.store(sink.ack(u16::MAX).to_word(), Ordering::Relaxed);
    SinkState::initialise(&row.sink.words, &sink);
    row.pending.store(0, Ordering::Relaxed); // a connection that meets again begins anew
    row.user.store(process::pid(), Ordering::Release);
    conn.peer_pid.store(peer_pid.max(0) as u32, Ordering::Relaxed);
    if has_doorbell && doorbell::pages().is_some() {
        conn.set(Waiters::PeerHasDoorbell);
    }
}

fn install(conn: &Conn, fd: i32, segment: Segment, side: u8, peer: Option<(PeerId, u32)>) {
    // Another thread may have begun the meeting, and not have come to this yet.
    crate::wake::interest::meets(conn);
    if !conn.attach(segment, side, peer) {
        return segment.end(usize::from(side)).disown(); // called off: the segment goes with the connection
    }
    let link = ShmLink::new(segment, usize::from(side));
    link.own().note_socket(fd as u32 + 1);
    // Before the other end may send on the lane: another thread may declare its sleepers (O10) at
    // once.
    crate::wake::interest::attached(conn);
    link.own().attach();
}

/// Whether a family member that left the family may hold the connection, itself or by its children.
fn is_out_of_sight(conn: &Conn) -> bool {
    conn.row().is_none_or(|row| row.flags.load(Ordering::Acquire).has(RowFlag::OutOfSight))
}

/// Gives back the attachment of a meeting. The other end is attached, or will be.
fn refuse(attachment: Attachment) -> bool {
    return_segment(attachment.segment, attachment.side)
}

fn return_segment(segment: MappedSegment, side: u8) -> bool {
    segment.disown(side);
    // SAFETY: nothing else has seen the mapping.
    unsafe { segment.unmap() };
    false
}

/// The word that users see for a refusal.
fn reason(refusal: Refusal) -> Reason {
    match refusal {
        Refusal::PeerNotListening => Reason::PeerNotListening,
        Refusal::RemotePeer => Reason::RemotePeer,
        Refusal::UidDiffers => Reason::UidDiffers,
        Refusal::UidUnmapped => Reason::UidUnmapped,
        Refusal::NoProc => Reason::NoProc,
        Refusal::NoMemory => Reason::NoMemory,
        Refusal::NoDescriptors => Reason::NoDescriptors,
        Refusal::Forbidden => Reason::Sandbox,
        Refusal::RendezvousBusy => Reason::RendezvousBusy,
        Refusal::PeerRefused | Refusal::PeerLacksResources | Refusal::Untrusted => {
            Reason::PeerRefused
        }
        Refusal::Version => Reason::VersionMismatch,
        Refusal::SelfConnection => Reason::UnsuitableSocket,
        Refusal::NoMeetingPlace => Reason::NoMeetingPlace,
    }
}

/// Marks a half as used by this call.
#[inline]
pub(crate) fn count_call(conn: &Conn, half: Half, bytes: usize, counting: Counting) {
    counting.add(&conn.calls[half as usize], 1);
    counting.add_wide(&conn.bytes[half as usize], bytes as u64);
}

const _: () = assert!(attempts(SOON) == 0 && attempts(2) == 1 && attempts(RETRY_TICKS - 1) == 7);
const _: () = assert!(attempts(RETRY_TICKS) == 9 && attempts(2 * RETRY_TICKS - 1) == 9);
const _: () = assert!(HELLO_ACK_LEN == sdp_proto::wire::hello::HELLO_ACK_LEN);

/// Whether no family member got a descriptor of the connection since the meeting began.
fn is_alone(conn: &Conn) -> bool {
    !is_out_of_sight(conn) && sharing::is_sole_holder(conn)
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod quits;
