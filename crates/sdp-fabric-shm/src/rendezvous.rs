//! The meeting of a connection's two ends on one host.
//!
//! Both ends hold a TCP socket, the carrier. Each drives a [`Rendezvous`] with one
//! [`Rendezvous::step`] per library call, until both have the connection's segment mapped or one of
//! them gives up. No step waits, and nothing is sent to a process whose credentials have not
//! passed. The object refuses policy: when to start, how often to step and when to stop is the
//! caller's decision ([`Rendezvous::abandon`]).
//!
//! ```text
//! connect to the name: accepted -> joiner;  refused -> bind and listen, offerer;  taken -> later
//!
//! joiner                                          offerer
//! uid of the listener passes?
//! make the segment
//!   ---- Hello, segment, handle, doorbell, page ->  uid of the connector passes?
//!                                                  handle = the carrier's other end?
//!                                                  map the segment
//!   <- HelloAck, handle, doorbell, page, or no --
//! handle = the carrier's other end?
//! ```
//!
//! *Uid passes*: SO_PEERCRED names the user that owns the carrier's other end, or root. *Handle*: an O_PATH descriptor of the sender's carrier; its inode must be
//! the one that sock_diag shows for the other end. So a process that merely takes the name, or
//! holds an old handle, gets nothing but a delay.
//!
//! *Doorbell and page* belong to a whole process: another process that has them can empty them, and
//! take the wake-ups of its other connections away, or fill the eventfd, clear its O_NONBLOCK and
//! make a writer wait for ever. So they are sent only to, and taken only from, our own user. A
//! process of another user gets a [`Doorbell`] instead, which is that user's alone, and which it
//! can only signal. Root is another user, too: both ends must come to the same answer, or one waits
//! for a doorbell that the other does not have.
//!
//! Credentials are those of `listen` and `connect`: the sockets here are closed in a fork child and
//! before any change of ids.

use core::sync::atomic::{AtomicU32, Ordering};

use sdp_sys::{
    Errno, Hidden, OwnedFd, doorbell, procfs,
    stat::{self, Identity},
    unix::{self, Credentials, Packet},
};

use crate::{
    across::Across,
    budget,
    identity::{self, DiagError, Examined, PeerSocket, Tuple},
    name::Name,
    packet::{self, Body, HELLO_ACK_LEN, HELLO_LEN, RejectCode, Sender},
    party::Party,
    refusal::Refusal,
    segment::{self, MappedSegment},
    token::TokenKey,
};

use checked::{check_count, is_doorbell};

/// Offers that one process keeps open at most, whatever [`Local::max_offers`] says.
pub const MAX_OFFERS: u32 = 256;
/// Connections that an offerer takes from its backlog in one step.
const ACCEPTS_PER_STEP: u32 = 4;
/// Connections with the wrong user that an offerer turns away before it gives up.
const MAX_STRANGERS: u32 = 16;
/// Times the other end may break off before we give up. A server that forks for each request breaks off each
/// time.
pub const MAX_RESTARTS: u32 = 64;
/// Looks at a name that the other end has just taken.
const LATE_JOINS: u32 = 3;
/// Listener's backlog: one is expected, strangers must not fill it at once.
const BACKLOG: i32 = 8;

/// The descriptors for the processes of one other user, in place of the eventfd and the doorbell
/// page.
#[derive(Debug, Clone, Copy)]
pub struct ForeignDoorbell {
    /// The end that is written to ([`doorbell::create`]).
    pub fd: i32,
    /// The file that it names: the number is in the program's reach.
    pub id: Identity,
    /// The file of a doorbell page for this user alone.
    pub page_fd: i32,
}

/// The caller's values, which the other end gets; the same at every step.
#[derive(Debug, Clone, Copy)]
pub struct Local<'a> {
    /// The program's TCP socket.
    pub carrier: i32,
    /// Its addresses.
    pub tuple: Tuple,
    /// This process's eventfd (must be non-blocking), −1 for none.
    pub doorbell_fd: i32,
    /// This process's doorbell page file, −1 for none.
    pub doorbell_page_fd: i32,
    /// The foreign doorbell for another user's processes; `None`: they get none.
    pub foreign_doorbell: fn(Party) -> Option<ForeignDoorbell>,
    /// What stands for the addresses of an end in another network namespace; `None`: both are here.
    pub across: Option<Across>,
    /// This end's place in each doorbell page.
    pub slot: u32,
    /// This process's identity: random, new after fork and exec.
    pub nonce: u64,
    /// Bytes per ring if this end makes the segment ([`segment::segment_len`] shows which values
    /// are possible).
    pub ring_bytes: u32,
    /// Where hidden descriptors start.
    pub hidden_min: i32,
    /// Offers that this process may have open at a time. Each takes a descriptor, for a moment two:
    /// the caller knows how many it can spare. [`MAX_OFFERS`] is the end in any case.
    pub max_offers: u32,
    /// This end's message as joiner.
    pub hello: &'a [u8; HELLO_LEN],
    /// This end's message as offerer.
    pub hello_ack: &'a [u8; HELLO_ACK_LEN],
    /// Judges the other end's message: its terms, in a word that means nothing here. An offerer
    /// answers yes only to one that passed.
    pub judge: fn(&PeerHello) -> Result<u64, Refusal>,
}

/// The other end's process, as far as the kernel vouches for it, and its message.
#[derive(Debug)]
pub struct PeerInfo {
    /// Process id as seen from here, reported by the kernel; 0 when its pid namespace is hidden.
    pub pid: i32,
    /// Effective user at its `listen` or `connect`, reported by the kernel.
    pub uid: u32,
    /// Whether that is our own effective user: doorbell and doorbell page are those of the whole
    /// process, else a doorbell and its page, both ways.
    pub trusted: bool,
    /// Whose doorbell it rings, if it is not trusted.
    pub party: Party,
    /// The identity it claims; meaningful only together with pid and uid.
    pub nonce: u64,
    /// The place it claims in its doorbell page; not checked.
    pub slot: u32,
    /// Its eventfd, if granted: an anonymous inode, non-blocking when it arrived. Of another user: an end of a
    /// doorbell of that user's making.
    pub doorbell: Option<OwnedFd>,
    /// Its doorbell page, if granted: seals and size verified.
    pub doorbell_page: Option<OwnedFd>,
    /// A pidfd of the process with that id, if it is trusted and the kernel gives one.
    pub process: Option<OwnedFd>,
    /// The same of a process that has no id here, or met across network namespaces.
    pub life: Option<OwnedFd>,
}

/// The other end's message; hostile bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerHello {
    /// We are the offerer; the joiner's Hello.
    Hello([u8; HELLO_LEN]),
    /// We are the joiner; the offerer's HelloAck.
    HelloAck([u8; HELLO_ACK_LEN]),
}

/// A rendezvous that succeeded. The segment has no destructor.
#[derive(Debug)]
#[must_use = "the segment stays mapped until it is unmapped"]
pub struct Attachment {
    /// The connection's segment.
    pub segment: MappedSegment,
    /// Which end we are: 0 has the smaller address and port.
    pub side: u8,
    /// The other end's process.
    pub peer: PeerInfo,
    /// Whether it got this process's doorbell or foreign doorbell, and the page, with this
    /// connection, by the packets sent.
    pub gave_doorbell: bool,
    /// The terms in its message, by [`Local::judge`].
    pub terms: u64,
    /// Across network namespaces: the key of the tokens that go before payload.
    pub tokens: Option<TokenKey>,
}

/// How far a step got.
#[derive(Debug)]
pub enum Step {
    /// Not there yet; step again at another call.
    Pending,
    /// Done. The object is idle again.
    Attached(Attachment),
    /// Given up; nothing is left open. The object is idle again.
    Failed(Refusal),
}

/// One end's state: private to a process, at most two descriptors. Dropping it abandons it.
#[derive(Debug, Default)]
pub struct Rendezvous {
    state: State,
    restarts: u32,
    strangers: u32,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Offering {
        listener: Hidden,
        /// The connection whose user passed, and that user.
        accepted: Option<(Hidden, Credentials)>,
        permit: Permit,
        ends: Ends,
    },
    Joining {
        socket: Hidden,
        ends: Ends,
        /// The user that listened.
        listener: Credentials,
        segment: Draft,
        gave_doorbell: bool,
    },
    /// [`Self::Offering`] and [`Self::Joining`] at a name in a directory.
    Published(across::Published),
    Asking(across::Asking),
}

/// The connection's two sockets, as the kernel reported them when this attempt began. They stay
/// what they are as long as the connection lives; a proof for a dead one would be worth nothing.
#[derive(Debug, Clone, Copy)]
struct Ends {
    own: Identity,
    peer: PeerSocket,
}

impl Rendezvous {
    /// An idle one.
    pub const fn new() -> Self {
        Self { state: State::Idle, restarts: 0, strangers: 0 }
    }

    /// Whether it holds no descriptor.
    pub const fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Whether it is listening for the other end.
    pub const fn is_offering(&self) -> bool {
        matches!(self.state, State::Offering { .. } | State::Published(_))
    }

    /// Whether it has sent its packet to the other end, whose user passed, and waits for the
    /// answer.
    pub const fn is_joining(&self) -> bool {
        matches!(self.state, State::Joining { .. } | State::Asking(_))
    }

    /// The descriptor that becomes readable when the other end has moved and a step will get
    /// further; −1 when there is none. For a short wait only: the number is in the program's reach.
    pub const fn expects(&self) -> i32 {
        match &self.state {
            State::Idle => -1,
            State::Offering { accepted: Some((socket, _)), .. } | State::Joining { socket, .. } => {
                socket.raw()
            }
            State::Offering { listener, .. } => listener.raw(),
            State::Published(offer) => offer.expects(),
            State::Asking(asking) => asking.socket.raw(),
        }
    }

    /// Its hidden descriptors; −1 where there is none.
    pub const fn descriptors(&self) -> [i32; 2] {
        match &self.state {
            State::Idle => [-1, -1],
            State::Offering { listener, accepted: Some((socket, _)), .. } => {
                [listener.raw(), socket.raw()]
            }
            State::Offering { listener, .. } => [listener.raw(), -1],
            State::Joining { socket, .. } => [socket.raw(), -1],
            State::Published(offer) => offer.descriptors(),
            State::Asking(asking) => [asking.socket.raw(), -1],
        }
    }

    /// Moves its hidden descriptors to `min` or above, out of the program's way.
    pub fn move_up(&mut self, min: i32) {
        match &mut self.state {
            State::Idle => {}
            State::Offering { listener, accepted, .. } => {
                listener.move_up(min);
                if let Some((socket, _)) = accepted {
                    socket.move_up(min);
                }
            }
            State::Joining { socket, .. } => socket.move_up(min),
            State::Published(offer) => offer.move_up(min),
            State::Asking(asking) => asking.socket.move_up(min),
        }
    }

    /// The last step, for a caller that will not wait any longer. Packets of the other end that
    /// have come by now count, as in [`Rendezvous::step`]; later ones are refused, so that it does
    /// not take itself for attached. [`Step::Pending`]: nothing came of it; the object is idle.
    pub fn last_step(&mut self, local: &Local<'_>) -> Step {
        let asked = match &self.state {
            State::Joining { socket, .. } => Some(socket),
            State::Asking(asking) => Some(&asking.socket),
            _ => None,
        };
        if let Some(socket) = asked
            && socket.is_ours()
        {
            let _ = unix::shut_down(socket.raw());
        }
        let step = if self.is_idle() { Step::Pending } else { self.step(local) };
        self.abandon();
        step
    }

    /// Gives up: closes and unmaps everything. A later step starts from the beginning. An end that
    /// has attached to our segment meanwhile finds that out from the segment
    /// ([`MappedSegment::disown`]).
    #[unsafe(link_section = ".text.hot")]
    pub fn abandon(&mut self) {
        if self.is_idle() {
            // At the end of each connection that never met. The code that drops a state lies
            // elsewhere than the section above: a fork child would take a page fault to find
            // nothing to drop.
            (self.restarts, self.strangers) = (0, 0);
        } else {
            *self = Self::new();
        }
    }

    /// In a fork child: closes its copies. The parent's rendezvous goes on. Not for a child that
    /// shares our memory.
    pub fn abandon_in_child(&mut self) {
        // The segment is the parent's, and so is the name.
        match &mut self.state {
            State::Joining { segment, .. } => segment.sent_side = None,
            State::Asking(asking) => asking.segment.sent_side = None,
            State::Published(offer) => offer.is_ours = false,
            State::Idle | State::Offering { .. } => {}
        }
        // The count of offers is a copy like the descriptors, so giving back is right here too.
        self.abandon();
    }

    /// Goes as far as possible without waiting: at most some 30 system calls.
    pub fn step(&mut self, local: &Local<'_>) -> Step {
        let result = match core::mem::take(&mut self.state) {
            State::Idle if local.across.is_some() => self.start_across(local),
            State::Published(offer) => self.offer_across(local, offer),
            State::Asking(asking) => self.await_answer_across(local, asking),
            State::Idle => self.start(local),
            State::Offering { listener, accepted, permit, ends } => {
                self.offer(local, ends, listener, accepted, permit)
            }
            State::Joining { socket, ends, listener, segment, gave_doorbell } => {
                self.await_answer(local, ends, socket, listener, segment, gave_doorbell)
            }
        };
        match result {
            Ok(None) => Step::Pending,
            Ok(Some(attachment)) => {
                self.abandon();
                Step::Attached(attachment)
            }
            Err(refusal) => {
                self.abandon();
                Step::Failed(refusal)
            }
        }
    }

    /// The other end broke off: from the beginning, but not for ever.
    fn restart(&mut self) -> Result<Option<Attachment>, Refusal> {
        self.restarts += 1;
        if self.restarts > MAX_RESTARTS { Err(Refusal::PeerRefused) } else { Ok(None) }
    }

    fn start(&mut self, local: &Local<'_>) -> Result<Option<Attachment>, Refusal> {
        local.tuple.side().ok_or(Refusal::SelfConnection)?;
        let ends = match identity::examine(local.carrier, &local.tuple)? {
            Examined::Open { peer, own, .. } => Ends { own, peer },
            Examined::NotAccepted => return Ok(None),
        };
        let name = Name::new(&local.tuple);
        let socket = unix::socket().map_err(Refusal::of_resource)?;
        let socket = hide(local, socket)?;
        match unix::connect(socket.raw(), name.as_bytes()) {
            Ok(()) => self.join(local, ends, socket),
            Err(Errno::ECONNREFUSED) => self.open_offer(local, ends, socket, &name),
            // Backlog full: the listener is there, but busy with others.
            Err(Errno::EAGAIN) => Ok(None),
            Err(error) => Err(of_local_socket(error)),
        }
    }

    fn join(
        &mut self,
        local: &Local<'_>,
        ends: Ends,
        socket: Hidden,
    ) -> Result<Option<Attachment>, Refusal> {
        let Ok(listener) = unix::peer_credentials(socket.raw()) else { return self.restart() };
        identity::check_uid(listener.uid, ends.peer.uid)?;
        let ring_bytes = budget::ring_bytes(local.ring_bytes)?;
        let (segment, file) = MappedSegment::create(ring_bytes)?;
        let mut segment = Draft::new(segment);
        let hello = Body::Join { ring_bytes, hello: *local.hello };
        let gave_doorbell = match send(local, ends, &socket, &hello, Some(&file), listener.uid) {
            Ok(gave_doorbell) => gave_doorbell,
            Err(SendError::Refused(refusal)) => return Err(refusal),
            Err(SendError::Gone) => return self.restart(),
        };
        segment.sent_side = local.tuple.side();
        // Only now: sending would have given this socket a name of its own.
        unix::pass_credentials(socket.raw()).map_err(Refusal::of_resource)?;
        self.state = State::Joining { socket, ends, listener, segment, gave_doorbell };
        Ok(None)
    }

    fn open_offer(
        &mut self,
        local: &Local<'_>,
        ends: Ends,
        socket: Hidden,
        name: &Name,
    ) -> Result<Option<Attachment>, Refusal> {
        let permit = Permit::take(local.max_offers).ok_or(Refusal::RendezvousBusy)?;
        match unix::bind(socket.raw(), name.as_bytes()) {
            Ok(()) => {}
            Err(Errno::EADDRINUSE) => {
                drop(permit);
                return self.join_late(local, ends, socket, name);
            }
            Err(error) => return Err(of_local_socket(error)),
        }
        unix::listen(socket.raw(), BACKLOG).map_err(of_local_socket)?;
        self.state = State::Offering { listener: socket, accepted: None, permit, ends };
        Ok(None)
    }

    /// The other end took the name first, and listens in a moment: perhaps it does already. To find out here
    /// is cheaper than to begin with the examination again at another call.
    #[inline(never)]
    fn join_late(
        &mut self,
        local: &Local<'_>,
        ends: Ends,
        socket: Hidden,
        name: &Name,
    ) -> Result<Option<Attachment>, Refusal> {
        for _ in 0..LATE_JOINS {
            match unix::connect(socket.raw(), name.as_bytes()) {
                Ok(()) => return self.join(local, ends, socket),
                Err(Errno::ECONNREFUSED) => {}
                Err(_) => break,
            }
        }
        Ok(None)
    }

    fn offer(
        &mut self,
        local: &Local<'_>,
        ends: Ends,
        listener: Hidden,
        accepted: Option<(Hidden, Credentials)>,
        permit: Permit,
    ) -> Result<Option<Attachment>, Refusal> {
        let mut accepted = accepted;
        for _ in 0..ACCEPTS_PER_STEP {
            let current = match accepted.take() {
                Some(current) => Some(current),
                None => self.accept(local, ends, &listener)?,
            };
            let Some((socket, joiner)) = current else { break };
            match serve(local, ends, &socket, joiner) {
                Served::Attached(attachment) => return Ok(Some(attachment)),
                Served::Refused(refusal) => return Err(refusal),
                Served::Nothing => {
                    accepted = Some((socket, joiner));
                    break;
                }
                Served::Gone => {
                    self.restart()?;
                }
            }
        }
        self.state = State::Offering { listener, accepted, permit, ends };
        Ok(None)
    }

    /// Takes the next connection whose user passes; `None`: there is none now.
    #[inline(never)]
    fn accept(
        &mut self,
        local: &Local<'_>,
        ends: Ends,
        listener: &Hidden,
    ) -> Result<Option<(Hidden, Credentials)>, Refusal> {
        if !listener.is_ours() {
            return Err(Refusal::NoDescriptors);
        }
        for _ in 0..ACCEPTS_PER_STEP {
            if !unix::is_acceptable(listener.raw()) {
                return Ok(None);
            }
            let socket = match unix::accept(listener.raw()) {
                Ok(socket) => hide(local, socket)?,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(error) => return Err(Refusal::of_resource(error)),
            };
            if let Ok(joiner) = unix::peer_credentials(socket.raw())
                && identity::check_uid(joiner.uid, ends.peer.uid).is_ok()
            {
                return Ok(Some((socket, joiner)));
            }
            self.strangers += 1;
            if self.strangers > MAX_STRANGERS {
                return Err(Refusal::Untrusted);
            }
        }
        Ok(None)
    }

    #[inline(never)]
    fn await_answer(
        &mut self,
        local: &Local<'_>,
        ends: Ends,
        socket: Hidden,
        listener: Credentials,
        mut segment: Draft,
        gave_doorbell: bool,
    ) -> Result<Option<Attachment>, Refusal> {
        let mut buf = [0; packet::MAX_LEN];
        let packet = match receive(&socket, &mut buf) {
            Received::Packet(packet) => packet,
            Received::Nothing => {
                self.state = State::Joining { socket, ends, listener, segment, gave_doorbell };
                return Ok(None);
            }
            Received::Gone => return self.restart(),
        };
        let (sender, body) = packet::decode(buf.get(..packet.len).unwrap_or(&[]))?;
        let ack = match body {
            Body::Accept { ack } => ack,
            Body::Reject { code } if code == RejectCode::Version as u32 => {
                return Err(Refusal::Version);
            }
            Body::Reject { code } if code == RejectCode::Resources as u32 => {
                return Err(Refusal::PeerLacksResources);
            }
            Body::Reject { .. } => return Err(Refusal::PeerRefused),
            Body::Join { .. } => return Err(Refusal::Untrusted),
        };
        // The listener's credentials show which process called listen(), perhaps before a fork;
        // this packet's show which process sent it. (Its user is the *real* one, so it is not
        // compared.)
        let pid = packet.credentials.ok_or(Refusal::Untrusted)?.pid;
        let credentials = Credentials { pid, ..listener };
        let mut peer = check_packet(local, ends, &socket, packet, &sender, None, credentials)?;
        if pid == listener.pid {
            peer.process = process(&socket, peer.trusted);
        }
        let side = side(local)?;
        let segment = segment.take().ok_or(Refusal::NoMemory)?;
        match (local.judge)(&PeerHello::HelloAck(ack)) {
            Ok(terms) => {
                let tokens = None;
                Ok(Some(Attachment { segment, side, peer, gave_doorbell, terms, tokens }))
            }
            Err(refusal) => {
                // The other end is attached, or will be.
                segment.disown(side);
                drop(Draft::new(segment));
                Err(refusal)
            }
        }
    }
}

fn side(local: &Local<'_>) -> Result<u8, Refusal> {
    local.tuple.side().ok_or(Refusal::SelfConnection)
}

/// Errors of `connect`, `bind` and `listen` that say something: a security module may forbid them.
const fn of_local_socket(error: Errno) -> Refusal {
    match error.0 {
        libc::EPERM | libc::EACCES => Refusal::Untrusted,
        _ => Refusal::of_resource(error),
    }
}

/// The outcome of an accepted connection.
enum Served {
    Attached(Attachment),
    Refused(Refusal),
    /// Its packet is not there yet.
    Nothing,
    /// It broke off.
    Gone,
}

/// Offerer: takes the joiner's packet, if it is there, and answers it.
fn serve(local: &Local<'_>, ends: Ends, socket: &Hidden, joiner: Credentials) -> Served {
    let mut buf = [0; packet::MAX_LEN];
    let packet = match receive(socket, &mut buf) {
        Received::Packet(packet) => packet,
        Received::Nothing => return Served::Nothing,
        Received::Gone => return Served::Gone,
    };
    let bytes = buf.get(..packet.len).unwrap_or(&[]);
    match take_join(local, ends, socket, packet, bytes, joiner) {
        Ok(Join { mut segment, peer, terms }) => {
            let yes = Body::Accept { ack: *local.hello_ack };
            let gave_doorbell = match send(local, ends, socket, &yes, None, peer.uid) {
                Ok(gave_doorbell) => gave_doorbell,
                Err(SendError::Refused(refusal)) => {
                    reject(local, socket, refusal);
                    return Served::Refused(refusal);
                }
                Err(SendError::Gone) => return Served::Gone,
            };
            match (segment.take(), local.tuple.side()) {
                (Some(segment), Some(side)) => Served::Attached(Attachment {
                    segment,
                    side,
                    peer,
                    gave_doorbell,
                    terms,
                    tokens: None,
                }),
                _ => Served::Refused(Refusal::SelfConnection),
            }
        }
        Err(refusal) => {
            reject(local, socket, refusal);
            Served::Refused(refusal)
        }
    }
}

/// A joiner's packet that passed.
struct Join {
    segment: Draft,
    peer: PeerInfo,
    terms: u64,
}

/// Offerer: judges the joiner's packet and maps its segment.
fn take_join(
    local: &Local<'_>,
    ends: Ends,
    socket: &Hidden,
    mut packet: Packet,
    bytes: &[u8],
    joiner: Credentials,
) -> Result<Join, Refusal> {
    let (sender, Body::Join { ring_bytes, hello }) = packet::decode(bytes)? else {
        return Err(Refusal::Untrusted);
    };
    let file = packet.take(0);
    let mut peer = check_packet(local, ends, socket, packet, &sender, file.as_ref(), joiner)?;
    peer.process = process(socket, peer.trusted);
    let file = file.ok_or(Refusal::Untrusted)?;
    budget::accept(ring_bytes)?;
    let segment = Draft::new(MappedSegment::from_peer(file.raw(), ring_bytes)?);
    let terms = (local.judge)(&PeerHello::Hello(hello))?;
    Ok(Join { segment, peer, terms })
}

/// Checks the parts that both packets have in common: truncation, number and kind of descriptors,
/// and the proof that the sender holds the other end.
fn check_packet(
    local: &Local<'_>,
    ends: Ends,
    socket: &Hidden,
    mut packet: Packet,
    sender: &Sender,
    segment: Option<&OwnedFd>,
    credentials: Credentials,
) -> Result<PeerInfo, Refusal> {
    if packet.data_truncated {
        return Err(Refusal::Untrusted);
    }
    let first = usize::from(segment.is_some());
    let doorbells = usize::from(sender.has_doorbell) + usize::from(sender.has_doorbell_page);
    check_count(&packet, first + 1 + doorbells)?;
    let handle = packet.take(first).ok_or(Refusal::Untrusted)?;
    // With the device: a file system can give a file of its own any inode number.
    let other_end = Identity { dev: ends.own.dev, ino: ends.peer.inode };
    if !stat::stat(handle.raw()).is_ok_and(|stat| stat.id == other_end) {
        return Err(Refusal::Untrusted);
    }
    drop(handle);
    let trusted = is_trusted(credentials.uid);
    let next = first + 1;
    let take = |packet: &mut Packet, at, is_there: bool| {
        is_there.then(|| packet.take(at).ok_or(Refusal::Untrusted)).transpose()
    };
    let doorbell = take(&mut packet, next, sender.has_doorbell)?;
    let doorbell_page =
        take(&mut packet, next + usize::from(sender.has_doorbell), sender.has_doorbell_page)?;
    // Of an equal in our namespace of processes one is opened when it is asked for.
    let has_life = !trusted || credentials.pid == 0;
    let life = if has_life { unix::peer_process(socket.raw()).ok() } else { None };
    let party = Party::of(credentials.uid, life.as_ref(), false)?;
    let peer = PeerInfo {
        pid: credentials.pid,
        uid: credentials.uid,
        trusted,
        party,
        nonce: sender.nonce,
        slot: sender.slot,
        doorbell,
        doorbell_page,
        process: None,
        life,
    };
    peer.checked(local)
}

/// A pidfd of the process that connected, or listens, at the other end.
fn process(socket: &Hidden, trusted: bool) -> Option<OwnedFd> {
    (trusted && socket.is_ours()).then(|| unix::peer_process(socket.raw()).ok())?
}

/// Whether a user may have, and give, the descriptors that belong to a whole process. Both ends
/// come to the same answer.
fn is_trusted(uid: u32) -> bool {
    uid == identity::effective_uid()
}

fn of_proc(error: Errno) -> Refusal {
    DiagError::of_shortage(error).map_or(Refusal::NoProc, Refusal::from)
}

enum SendError {
    /// Something of ours was missing.
    Refused(Refusal),
    /// The other end has closed.
    Gone,
}

/// Sends a packet to a process of user `to` with our proof, with doorbell and doorbell page or that
/// user's foreign doorbell, and the segment if given. Whether doorbell and page went with it.
///
/// All numbers are in the program's reach, so each is looked at once more: none of the program's
/// own files may travel in place of ours.
fn send(
    local: &Local<'_>,
    ends: Ends,
    socket: &Hidden,
    body: &Body,
    segment: Option<&OwnedFd>,
    to: u32,
) -> Result<bool, SendError> {
    if !socket.is_ours() {
        return Err(SendError::Refused(Refusal::NoDescriptors));
    }
    let handle = procfs::path_handle(local.carrier).map_err(|e| SendError::Refused(of_proc(e)))?;
    if !stat::stat(handle.raw()).is_ok_and(|stat| stat.id == ends.own) {
        return Err(SendError::Refused(Refusal::RemotePeer));
    }
    let to_party = Party::here(socket.raw(), to).map_err(SendError::Refused)?;
    let (doorbell_fd, page_fd, is_good) = if is_trusted(to) {
        (local.doorbell_fd, local.doorbell_page_fd, is_doorbell(local.doorbell_fd))
    } else {
        (local.foreign_doorbell)(to_party).map_or((-1, -1, false), |doorbell| {
            (doorbell.fd, doorbell.page_fd, doorbell::is_same(doorbell.fd, doorbell.id))
        })
    };
    let has_doorbell_page = segment::verify_doorbell_page(page_fd).is_ok();
    // An equal's eventfd is of use to others of its kind; a foreign doorbell without its page is of
    // none.
    let has_doorbell = is_good && (has_doorbell_page || is_trusted(to));
    let has_doorbell_page = has_doorbell_page && (has_doorbell || is_trusted(to));
    let sender = Sender { nonce: local.nonce, slot: local.slot, has_doorbell, has_doorbell_page };
    let doorbell = if has_doorbell { doorbell_fd } else { -1 };
    let page = if has_doorbell_page { page_fd } else { -1 };
    let mut fds = [0; 4];
    let mut count = 0;
    let segment = segment.map_or(-1, OwnedFd::raw);
    for fd in [segment, handle.raw(), doorbell, page] {
        if fd >= 0
            && let Some(place) = fds.get_mut(count)
        {
            *place = fd;
            count += 1;
        }
    }
    // The answer carries our credentials, so that the joiner learns our pid. (The kernel adds them
    // at this end's wish or the receiver's; the receiver may not have had time to wish.)
    if matches!(body, Body::Accept { .. }) {
        unix::pass_credentials(socket.raw())
            .map_err(|error| SendError::Refused(Refusal::of_resource(error)))?;
    }
    let encoded = packet::encode(&sender, body);
    match unix::send(socket.raw(), encoded.as_bytes(), fds.get(..count).unwrap_or(&[])) {
        Ok(()) => Ok(has_doorbell && has_doorbell_page),
        Err(Errno::EPIPE | Errno::ECONNRESET) => Err(SendError::Gone),
        Err(error) => Err(SendError::Refused(Refusal::of_resource(error))),
    }
}

/// Tells a joiner whose user passed that this end refuses. Best effort.
fn reject(local: &Local<'_>, socket: &Hidden, refusal: Refusal) {
    if socket.is_ours() {
        let sender =
            Sender { nonce: local.nonce, slot: 0, has_doorbell: false, has_doorbell_page: false };
        let no = Body::Reject { code: RejectCode::from(refusal) as u32 };
        let _ = unix::send(socket.raw(), packet::encode(&sender, &no).as_bytes(), &[]);
    }
}

enum Received {
    Packet(Packet),
    Nothing,
    Gone,
}

fn receive(socket: &Hidden, buf: &mut [u8]) -> Received {
    if !socket.is_ours() {
        return Received::Gone;
    }
    match unix::receive(socket.raw(), buf) {
        Ok(packet) if packet.len > 0 => Received::Packet(packet),
        Err(Errno::EAGAIN) => Received::Nothing,
        Ok(_) | Err(_) => Received::Gone,
    }
}

fn hide(local: &Local<'_>, fd: OwnedFd) -> Result<Hidden, Refusal> {
    Hidden::new(fd, local.hidden_min).map_err(Refusal::of_resource)
}

/// A mapped segment that we do not use yet.
#[derive(Debug)]
struct Draft {
    segment: Option<MappedSegment>,
    /// This end, once the other one has its packet: that one may be attached, and alone if this
    /// meeting fails.
    sent_side: Option<u8>,
}

impl Draft {
    const fn new(segment: MappedSegment) -> Self {
        Self { segment: Some(segment), sent_side: None }
    }

    fn take(&mut self) -> Option<MappedSegment> {
        self.segment.take()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(segment) = self.segment.take() {
            if let Some(side) = self.sent_side {
                segment.disown(side);
            }
            // SAFETY: its address has never left this module.
            unsafe { segment.unmap() };
        }
    }
}

/// One of the offers that the process may have open.
#[derive(Debug)]
struct Permit(());

static OFFERS: AtomicU32 = AtomicU32::new(0);

impl Permit {
    fn take(most: u32) -> Option<Self> {
        let most = most.min(MAX_OFFERS);
        OFFERS
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
                (open < most).then_some(open + 1)
            })
            .ok()
            .map(|_| Self(()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        OFFERS.fetch_sub(1, Ordering::Relaxed);
    }
}

mod across;
mod checked;
#[cfg(test)]
mod model;
