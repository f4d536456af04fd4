//! The meeting of ends in different network namespaces, at a name in a directory.
//!
//! ```text
//! connect to the name: accepted -> asks;  no such name -> publish, offers;  taken meanwhile -> later
//!
//! asks                                            offers
//! make the segment
//!   ---- Hello, nonce, codes, segment, doorbell -->  code right?  map the segment
//!   <--- HelloAck, nonce, code, doorbell, or no ---
//! code right?
//! ```
//!
//! The kernel's tables know nothing of an end in another namespace, and users are translated: what
//! passes is the process that knows the first numbers of the stream ([`crate::across`]). The other process is a
//! stranger in any case, also one with our user's number: neither eventfd nor doorbell page of the
//! whole process ever go this way, only a foreign doorbell of its party.

use sdp_sys::{
    Errno, Hidden, OwnedFd, doorbell,
    stat::{self, Identity},
    unix::{self, Packet},
};

use super::{
    ACCEPTS_PER_STEP, Attachment, BACKLOG, Draft, LATE_JOINS, Local, MAX_STRANGERS, PeerHello,
    PeerInfo, Permit, Received, Rendezvous, State, checked::check_count, hide, receive,
};
use crate::{
    across::{self, Across, Body, Bound, Head, Numbers, Path, VERSIONS},
    budget,
    packet::RejectCode,
    party::Party,
    refusal::Refusal,
    segment::{self, MappedSegment},
    token::{self, TokenKey},
};

const _: () = assert!(across::HELLO_LEN == crate::packet::HELLO_LEN);
const _: () = assert!(across::HELLO_ACK_LEN == crate::packet::HELLO_ACK_LEN);

/// An offer: listens at a name, which goes with it.
#[derive(Debug)]
pub(super) struct Published {
    listener: Hidden,
    accepted: Option<Hidden>,
    _permit: Permit,
    /// The number that the name is a hash of, and which socket has the name.
    connector: u32,
    id: Option<Identity>,
    /// It was this process that published it.
    pub(super) is_ours: bool,
}

impl Drop for Published {
    fn drop(&mut self) {
        if !self.is_ours || self.id.is_none() {
            return;
        }
        for path in Path::of_earlier_meeting(self.connector) {
            // Another process may have taken it for one that was left behind, and published its own.
            if identity_at(&path) == self.id {
                unix::unpublish(path.as_c_str());
            }
        }
    }
}

fn identity_at(path: &Path) -> Option<Identity> {
    stat::of_path(path.as_c_str()).ok().map(|stat| stat.id)
}

impl Published {
    pub(super) const fn expects(&self) -> i32 {
        match &self.accepted {
            Some(socket) => socket.raw(),
            None => self.listener.raw(),
        }
    }

    pub(super) const fn descriptors(&self) -> [i32; 2] {
        match &self.accepted {
            Some(socket) => [self.listener.raw(), socket.raw()],
            None => [self.listener.raw(), -1],
        }
    }

    pub(super) fn move_up(&mut self, min: i32) {
        self.listener.move_up(min);
        if let Some(socket) = &mut self.accepted {
            socket.move_up(min);
        }
    }
}

/// This end has sent its packet to the listener at the name.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) socket: Hidden,
    pub(super) segment: Draft,
    file: Identity,
    nonce: [u8; 16],
    gave_doorbell: bool,
}

/// The process at the other end of a local connection.
struct Other {
    pid: i32,
    uid: u32,
    process: Option<OwnedFd>,
    party: Party,
}

impl Other {
    fn at(socket: &Hidden) -> Result<Self, Refusal> {
        let gone = Refusal::PeerNotListening;
        let seen = unix::peer_credentials(socket.raw()).map_err(|_| gone)?;
        let process = unix::peer_process(socket.raw()).ok();
        let party = Party::of(seen.uid, process.as_ref(), true)?;
        Ok(Self { pid: seen.pid, uid: seen.uid, process, party })
    }
}

/// The result of an accepted connection.
enum Served {
    Attached(Attachment),
    /// Something of ours is missing, or the other end cannot be served.
    Refused(Refusal),
    /// Its packet is not there yet.
    Nothing,
    /// It knows too little, or broke off.
    Gone,
    /// It did not prove anything.
    Stranger,
}

impl Rendezvous {
    fn across<'a>(local: &'a Local<'_>) -> Result<&'a Across, Refusal> {
        local.across.as_ref().ok_or(Refusal::RemotePeer)
    }

    #[inline(never)]
    pub(super) fn start_across(
        &mut self,
        local: &Local<'_>,
    ) -> Result<Option<Attachment>, Refusal> {
        let across = Self::across(local)?;
        if across.knows_too_little() {
            return Ok(None);
        }
        let path = Path::of_meeting(across.numbers.connector);
        let socket = unix::socket().map_err(Refusal::of_resource)?;
        let socket = hide(local, socket)?;
        match unix::connect_path(socket.raw(), path.as_bytes()) {
            Ok(()) => return self.ask(local, socket),
            // A process that died left the name.
            Err(Errno::ECONNREFUSED) => {
                if take_away(&path, &socket) {
                    return self.ask(local, socket);
                }
            }
            Err(Errno(libc::ENOENT)) => {}
            Err(Errno::EAGAIN) => return Ok(None),
            Err(error) => return Err(of_place(error)),
        }
        let permit = Permit::take(local.max_offers).ok_or(Refusal::RendezvousBusy)?;
        match unix::publish(socket.raw(), Path::fresh().as_c_str(), path.as_c_str(), BACKLOG) {
            Ok(()) => {}
            Err(Errno(libc::EEXIST)) => {
                drop((permit, socket));
                return self.ask_late(local, &path);
            }
            Err(error) => return Err(of_place(error)),
        }
        self.state = State::Published(Published {
            listener: socket,
            accepted: None,
            _permit: permit,
            connector: across.numbers.connector,
            id: identity_at(&path),
            is_ours: true,
        });
        Ok(None)
    }

    /// The other end was faster, and listens.
    fn ask_late(&mut self, local: &Local<'_>, path: &Path) -> Result<Option<Attachment>, Refusal> {
        for _ in 0..LATE_JOINS {
            let socket = hide(local, unix::socket().map_err(Refusal::of_resource)?)?;
            if unix::connect_path(socket.raw(), path.as_bytes()).is_ok() {
                return self.ask(local, socket);
            }
        }
        Ok(None)
    }

    fn ask(&mut self, local: &Local<'_>, socket: Hidden) -> Result<Option<Attachment>, Refusal> {
        let across = Self::across(local)?;
        let Ok(other) = Other::at(&socket) else { return self.restart() };
        let ring_bytes = budget::ring_bytes(local.ring_bytes)?;
        let (segment, file) = MappedSegment::create(ring_bytes)?;
        let mut segment = Draft::new(segment);
        let id = stat::stat(file.raw()).map_err(Refusal::of_resource)?.id;
        let nonce = across::random();
        let body = Body::Join { ring_bytes, hello: *local.hello };
        let meeting = Meeting { nonce, versions: VERSIONS, bound: Bound::Segment(id) };
        match send(local, across, &socket, &meeting, &body, Some(&file), other.party) {
            Ok(gave_doorbell) => {
                segment.sent_side = Some(across.side());
                self.state =
                    State::Asking(Asking { socket, segment, file: id, nonce, gave_doorbell });
                Ok(None)
            }
            Err(Some(refusal)) => Err(refusal),
            Err(None) => self.restart(),
        }
    }

    #[inline(never)]
    pub(super) fn offer_across(
        &mut self,
        local: &Local<'_>,
        mut offer: Published,
    ) -> Result<Option<Attachment>, Refusal> {
        let across = Self::across(local)?;
        if across.knows_too_little() {
            return Ok(None); // the program has sent something meanwhile: the other end wants its number
        }
        for _ in 0..ACCEPTS_PER_STEP {
            let Some(socket) = next(local, &mut offer)? else { break };
            match serve(local, across, &socket) {
                Served::Attached(attachment) => return Ok(Some(attachment)),
                Served::Refused(refusal) => return Err(refusal),
                Served::Nothing => {
                    offer.accepted = Some(socket);
                    break;
                }
                Served::Gone => {
                    self.restart()?;
                }
                Served::Stranger => {
                    self.strangers += 1;
                    if self.strangers > MAX_STRANGERS {
                        return Err(Refusal::Untrusted);
                    }
                }
            }
        }
        self.state = State::Published(offer);
        Ok(None)
    }

    #[inline(never)]
    pub(super) fn await_answer_across(
        &mut self,
        local: &Local<'_>,
        mut asking: Asking,
    ) -> Result<Option<Attachment>, Refusal> {
        let across = Self::across(local)?;
        let mut buf = [0; across::MAX_LEN];
        let packet = match receive(&asking.socket, &mut buf) {
            Received::Packet(packet) => packet,
            Received::Nothing => {
                self.state = State::Asking(asking);
                return Ok(None);
            }
            Received::Gone => return self.restart(),
        };
        let bytes = buf.get(..packet.len).unwrap_or(&[]);
        let answer = across::decode(bytes)?;
        let ack = match answer.body {
            Body::Accept { ack, .. } => ack,
            Body::Reject { code } if code == RejectCode::Version as u32 => {
                return Err(Refusal::Version);
            }
            Body::Reject { code } if code == RejectCode::Resources as u32 => {
                return Err(Refusal::PeerLacksResources);
            }
            // It does not know enough yet, or this end does not.
            Body::Reject { code } if code == RejectCode::Later as u32 => return self.restart(),
            Body::Reject { .. } => return Err(Refusal::PeerRefused),
            Body::Join { .. } => return Err(Refusal::Untrusted),
        };
        let bound = Bound::Answer(asking.nonce, asking.file);
        if answer.proven(bytes, bound, across).is_none() {
            return Err(Refusal::Untrusted);
        }
        answer.common_version()?;
        let other = Other::at(&asking.socket)?;
        let processes = [token::own_number()?, token::number_at(asking.socket.raw())?];
        let nonces = [&asking.nonce, &answer.head.nonce];
        let tokens = TokenKey::new(nonces, asking.file, processes);
        let peer = take_peer(local, &answer.head, packet, 0, other)?;
        let side = across.side();
        let gave_doorbell = asking.gave_doorbell;
        let segment = asking.segment.take().ok_or(Refusal::NoMemory)?;
        match (local.judge)(&PeerHello::HelloAck(ack)) {
            Ok(terms) => {
                let tokens = Some(tokens);
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

/// Takes a name away at which no process listens. True: meanwhile one does, and `socket` has reached
/// it. So the name is moved first, and looked at once more where no other end finds it; a live name,
/// to whose listener others have come before, comes back to its place.
fn take_away(path: &Path, socket: &Hidden) -> bool {
    let aside = Path::fresh();
    if unix::rename(path.as_c_str(), aside.as_c_str()).is_err() {
        return false;
    }
    let found = unix::connect_path(socket.raw(), aside.as_bytes());
    let is_full = !matches!(found, Ok(()) | Err(Errno::ECONNREFUSED));
    if !is_full || unix::rename(aside.as_c_str(), path.as_c_str()).is_err() {
        unix::unpublish(aside.as_c_str());
    }
    found.is_ok()
}

/// The next connection to the name.
fn next(local: &Local<'_>, offer: &mut Published) -> Result<Option<Hidden>, Refusal> {
    if let Some(socket) = offer.accepted.take() {
        return Ok(Some(socket));
    }
    if !offer.listener.is_ours() {
        return Err(Refusal::NoDescriptors);
    }
    if !unix::is_acceptable(offer.listener.raw()) {
        return Ok(None);
    }
    match unix::accept(offer.listener.raw()) {
        Ok(socket) => hide(local, socket).map(Some),
        Err(Errno::EAGAIN) => Ok(None),
        Err(error) => Err(Refusal::of_resource(error)),
    }
}

/// Takes the packet of the process that connected to the name, if it is there, and answers it.
fn serve(local: &Local<'_>, across: &Across, socket: &Hidden) -> Served {
    let mut buf = [0; across::MAX_LEN];
    let mut packet = match receive(socket, &mut buf) {
        Received::Packet(packet) => packet,
        Received::Nothing => return Served::Nothing,
        Received::Gone => return Served::Gone,
    };
    let bytes = buf.get(..packet.len).unwrap_or(&[]);
    let no = |refusal, code| {
        reject(local, socket, code);
        refusal
    };
    let join = match across::decode(bytes) {
        Ok(join) if !packet.data_truncated => join,
        Err(Refusal::Version) => return no(Served::Stranger, RejectCode::Version),
        _ => return Served::Stranger,
    };
    let Body::Join { ring_bytes, hello } = join.body else { return Served::Stranger };
    let Some(file) = packet.take(0) else { return Served::Stranger };
    let Ok(id) = stat::at_hand(file.raw()).map(|stat| stat.id) else { return Served::Stranger };
    let Some(proven) = join.proven(bytes, Bound::Segment(id), across) else {
        // Or it knows one number where both are wanted, and learns the other one.
        return no(Served::Stranger, RejectCode::Later);
    };
    let taken = || {
        let version = join.common_version()?;
        let other = Other::at(socket)?;
        let processes = [token::number_at(socket.raw())?, token::own_number()?];
        let peer = take_peer(local, &join.head, packet, 1, other)?;
        budget::accept(ring_bytes)?;
        let segment = Draft::new(MappedSegment::from_peer(file.raw(), ring_bytes)?);
        let terms = (local.judge)(&PeerHello::Hello(hello))?;
        Ok((version, peer, segment, terms, processes))
    };
    let (version, peer, mut segment, terms, processes) = match taken() {
        Ok(taken) => taken,
        Err(refusal) => return no(Served::Refused(refusal), RejectCode::from(refusal)),
    };
    let bound = Bound::Answer(join.head.nonce, id);
    let meeting = Meeting { nonce: across::random(), versions: (version, version), bound };
    let tokens = TokenKey::new([&join.head.nonce, &meeting.nonce], id, processes);
    let yes = Body::Accept { proven, ack: *local.hello_ack };
    match send(local, across, socket, &meeting, &yes, None, peer.party) {
        Ok(gave_doorbell) => match segment.take() {
            Some(segment) => Served::Attached(Attachment {
                segment,
                side: across.side(),
                peer,
                gave_doorbell,
                terms,
                tokens: Some(tokens),
            }),
            None => Served::Refused(Refusal::NoMemory),
        },
        Err(Some(refusal)) => no(Served::Refused(refusal), RejectCode::from(refusal)),
        Err(None) => Served::Gone,
    }
}

/// Takes the descriptors of a packet whose code was right, from number `first` on.
fn take_peer(
    local: &Local<'_>,
    head: &Head,
    mut packet: Packet,
    first: usize,
    other: Other,
) -> Result<PeerInfo, Refusal> {
    check_count(&packet, first + if head.has_doorbell { 2 } else { 0 })?;
    let peer = PeerInfo {
        pid: other.pid,
        uid: other.uid,
        trusted: false,
        party: other.party,
        nonce: head.process,
        slot: head.slot,
        doorbell: packet.take(first),
        doorbell_page: packet.take(first + 1),
        process: None,
        life: other.process,
    };
    peer.checked(local)
}

/// What a packet says of the meeting, and what its codes cover.
struct Meeting {
    nonce: [u8; 16],
    versions: (u16, u16),
    bound: Bound,
}

/// Sends a packet with the foreign doorbell of the other end's party, and the segment if given.
/// Whether the doorbell went with it; `Err(None)`: the other end has closed.
///
/// All numbers are in the program's reach, so each is looked at once more.
fn send(
    local: &Local<'_>,
    across: &Across,
    socket: &Hidden,
    meeting: &Meeting,
    body: &Body,
    segment: Option<&OwnedFd>,
    to: Party,
) -> Result<bool, Option<Refusal>> {
    if !socket.is_ours() {
        return Err(Some(Refusal::NoDescriptors));
    }
    let doorbell = (local.foreign_doorbell)(to).filter(|doorbell| {
        doorbell::is_same(doorbell.fd, doorbell.id)
            && segment::verify_doorbell_page(doorbell.page_fd).is_ok()
    });
    let head = Head {
        process: local.nonce,
        slot: local.slot,
        has_doorbell: doorbell.is_some(),
        versions: meeting.versions,
        nonce: meeting.nonce,
    };
    let numbers = [
        segment.map(OwnedFd::raw),
        doorbell.map(|doorbell| doorbell.fd),
        doorbell.map(|doorbell| doorbell.page_fd),
    ];
    let mut fds = [0; 3];
    let mut count = 0;
    for (place, fd) in fds.iter_mut().zip(numbers.into_iter().flatten()) {
        *place = fd;
        count += 1;
    }
    let encoded = across::encode(&head, body, meeting.bound, across);
    match unix::send(socket.raw(), encoded.as_bytes(), fds.get(..count).unwrap_or(&[])) {
        Ok(()) => Ok(doorbell.is_some()),
        Err(Errno::EPIPE | Errno::ECONNRESET) => Err(None),
        Err(error) => Err(Some(Refusal::of_resource(error))),
    }
}

/// Tells the process that connected to the name that this end refuses. Best effort.
fn reject(local: &Local<'_>, socket: &Hidden, code: RejectCode) {
    let head = Head {
        process: local.nonce,
        slot: 0,
        has_doorbell: false,
        versions: VERSIONS,
        nonce: [0; 16],
    };
    // No code goes with it, so no number counts.
    let none =
        Across { numbers: Numbers { connector: 0, acceptor: None }, least: 1, is_connector: false };
    let body = Body::Reject { code: code as u32 };
    let bound = Bound::Segment(Identity { dev: 0, ino: 0 });
    if socket.is_ours() {
        let packet = across::encode(&head, &body, bound, &none);
        let _ = unix::send(socket.raw(), packet.as_bytes(), &[]);
    }
}

/// Errors of what is done in the directory.
const fn of_place(error: Errno) -> Refusal {
    match error.0 {
        libc::EACCES | libc::EPERM | libc::EROFS | libc::ENOENT | libc::ENOTDIR | libc::ELOOP => {
            Refusal::NoMeetingPlace
        }
        _ => Refusal::of_resource(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Another process has published its name where a dead one's was, and others have come to it
    /// already, as many as it has room for.
    #[test]
    fn a_name_that_is_alive_keeps_its_place() {
        let directory = std::env::temp_dir().join(format!("sdp-place-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o1733)).unwrap();
        across::set_directory(directory.as_os_str().as_encoded_bytes());
        let path = Path::of_meeting(1);
        let listener = unix::socket().unwrap();
        unix::publish(listener.raw(), Path::fresh().as_c_str(), path.as_c_str(), 0).unwrap();
        let id = identity_at(&path);
        let other = unix::socket().unwrap();
        unix::connect_path(other.raw(), path.as_bytes()).unwrap();
        let socket = Hidden::new(unix::socket().unwrap(), 0).unwrap();
        assert!(!take_away(&path, &socket) && identity_at(&path) == id, "full");
        drop(unix::accept(listener.raw()).unwrap());
        assert!(take_away(&path, &socket), "reached");
        drop(listener);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
    }
}
