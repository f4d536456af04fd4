//! Ends that lie, break off or are not the ones that they seem: nothing is mapped, granted or left
//! open.

mod common;

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::fd::AsRawFd,
};

use common::*;
use sdp_fabric_shm::{
    identity::Tuple,
    name::Name,
    packet::{self, Body, RejectCode, Sender},
    refusal::Refusal,
    rendezvous::{MAX_RESTARTS, Step},
    segment::{self, segment_len},
};
use sdp_sys::{Errno, OwnedFd, memfd, procfs, unix};

const PLAIN: Sender = Sender { nonce: 1, slot: 2, has_doorbell: false, has_doorbell_page: false };
const JOIN: Body = Body::Join { ring_bytes: RING, hello: HELLO };
const ACCEPT: Body = Body::Accept { ack: ACK };

/// A packet of our own making.
struct Forged {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Forged {
    fn new(sender: Sender, body: Body, fds: Vec<OwnedFd>) -> Self {
        Self { bytes: packet::encode(&sender, &body).as_bytes().to_vec(), fds }
    }

    fn send(&self, socket: &OwnedFd) {
        let fds: Vec<i32> = self.fds.iter().map(OwnedFd::raw).collect();
        unix::send(socket.raw(), &self.bytes, &fds).unwrap();
    }
}

fn handle(stream: &TcpStream) -> OwnedFd {
    procfs::path_handle(stream.as_raw_fd()).unwrap()
}

fn file(size: usize, seals: i32) -> OwnedFd {
    // SAFETY: the name is a C string; the rest are numbers.
    unsafe {
        let fd = libc::memfd_create(c"forged".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        assert_eq!(libc::ftruncate(fd, size as i64), 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
        OwnedFd::new(fd)
    }
}

fn good_file() -> OwnedFd {
    file(segment_len(RING).unwrap(), memfd::REQUIRED_SEALS)
}

fn eventfd(flags: i32) -> OwnedFd {
    // SAFETY: no pointers.
    OwnedFd::new(unsafe { libc::eventfd(0, flags) })
}

fn regular(path: &str) -> OwnedFd {
    use std::os::fd::IntoRawFd;
    OwnedFd::new(std::fs::File::open(path).unwrap().into_raw_fd())
}

/// Descriptors of no segment, and of segments that an honest end would not make.
fn forged_segments(mine: &TcpStream) -> [(&'static str, OwnedFd); 12] {
    let length = segment_len(RING).unwrap();
    let seals = memfd::REQUIRED_SEALS;
    [
        ("unsealed", file(length, 0)),
        ("may shrink", file(length, seals & !libc::F_SEAL_SHRINK)),
        ("may grow", file(length, seals & !libc::F_SEAL_GROW)),
        ("seals open", file(length, seals & !libc::F_SEAL_SEAL)),
        ("not writable", file(length, seals | libc::F_SEAL_WRITE)),
        ("not writable later", file(length, seals | libc::F_SEAL_FUTURE_WRITE)),
        ("truncated", file(length - 1, seals)),
        ("empty", file(0, seals)),
        ("too long", file(length + 4096, seals)),
        ("regular file", regular("/proc/self/exe")),
        ("device", regular("/dev/zero")),
        ("socket", handle(mine)),
    ]
}

/// The packets that no honest end sends, with the answer that the receiver must give. `mine` is the
/// other end of the victim's connection, so that only one thing is wrong with each.
fn forgeries(
    mine: &TcpStream,
    stranger: &TcpStream,
    body: Body,
) -> Vec<(&'static str, Forged, Refusal)> {
    let joins = matches!(body, Body::Join { .. });
    let doorbells = Sender { has_doorbell: true, has_doorbell_page: true, ..PLAIN };
    // Descriptors of a proper packet, with `more` behind.
    let with = |more: Vec<OwnedFd>| {
        let mut fds = Vec::new();
        if joins {
            fds.push(good_file());
        }
        fds.push(handle(mine));
        fds.extend(more);
        fds
    };
    let with_handle = |handle: OwnedFd| {
        if joins { vec![good_file(), handle] } else { vec![handle] }
    };
    let mut list = vec![];
    let mut add = |what, sender, body, fds| {
        list.push((what, Forged::new(sender, body, fds), Refusal::Untrusted));
    };
    add("no descriptors", PLAIN, body, vec![]);
    add("one too many", PLAIN, body, with(vec![good_file()]));
    add("doorbell missing", doorbells, body, with(vec![]));
    add("page missing", doorbells, body, with(vec![eventfd(libc::EFD_NONBLOCK)]));
    add("as many as fit", PLAIN, body, (0..unix::MAX_FDS).map(|_| good_file()).collect());
    let page = || segment::create_doorbell_page().unwrap();
    add("file as doorbell", doorbells, body, with(vec![regular("/proc/self/exe"), page()]));
    add("blocking doorbell", doorbells, body, with(vec![eventfd(0), page()]));
    let doorbell = || eventfd(libc::EFD_NONBLOCK);
    add("file as page", doorbells, body, with(vec![doorbell(), regular("/proc/self/exe")]));
    add("unsealed page", doorbells, body, with(vec![doorbell(), file(8192, 0)]));
    add("short page", doorbells, body, with(vec![doorbell(), file(4096, memfd::REQUIRED_SEALS)]));
    add("handle of another connection", PLAIN, body, with_handle(handle(stranger)));
    add("handle of a file", PLAIN, body, with_handle(regular("/proc/self/exe")));
    add("segment as handle", PLAIN, body, with_handle(good_file()));
    add("reply to nothing", PLAIN, if joins { ACCEPT } else { JOIN }, with(vec![]));
    if joins {
        for (what, segment) in forged_segments(mine) {
            add(what, PLAIN, body, vec![segment, handle(mine)]);
        }
        for ring_bytes in [0, 1, 4095, RING - 1, RING * 3 / 2, 32 << 20, 1 << 31, u32::MAX] {
            let body = Body::Join { ring_bytes, hello: HELLO };
            add("ring size", PLAIN, body, with(vec![]));
        }
        add(
            "ring of another size",
            PLAIN,
            Body::Join { ring_bytes: 2 * RING, hello: HELLO },
            with(vec![]),
        );
    }
    let good = Forged::new(PLAIN, body, vec![]).bytes;
    for length in [1, 3, 7, 8, 23, 24, good.len() - 1, good.len() + 1, 220, 221, 4096] {
        if length == good.len() {
            continue;
        }
        let mut bytes = good.clone();
        bytes.resize(length, 0);
        let fds = with(vec![]);
        list.push(("length", Forged { bytes, fds }, Refusal::Untrusted));
    }
    let mut version = Forged::new(PLAIN, body, with(vec![]));
    version.bytes[4] ^= 1;
    list.push(("version", version, Refusal::Version));
    list
}

#[test]
fn forged_joins() {
    isolated(|| {
        let (victim, mine) = loopback();
        let (stranger, _its_peer) = loopback();
        let name = Name::new(&Tuple::of(mine.as_raw_fd()).unwrap());
        let cases = forgeries(&mine, &stranger, JOIN).len();
        assert!(cases > 40);
        let before = footprint();
        for index in 0..cases {
            let (what, forged, refusal) = forgeries(&mine, &stranger, JOIN).swap_remove(index);
            let mut end = End::new(&victim);
            end.pending(1);
            assert!(end.rendezvous.is_offering());
            let socket = unix::socket().unwrap();
            unix::connect(socket.raw(), name.as_bytes()).unwrap();
            forged.send(&socket);
            match end.step() {
                Step::Failed(answer) => assert_eq!(answer, refusal, "{what} ({index})"),
                other => panic!("{what} ({index}): {other:?}"),
            }
            // The credentials were right, so the offerer says that it is over, and nothing else.
            let mut buf = [0; packet::MAX_LEN];
            let answer = unix::receive(socket.raw(), &mut buf).unwrap();
            assert_eq!(answer.descriptors(), 0);
            let code = RejectCode::from(refusal) as u32;
            let (_, body) = packet::decode(&buf[..answer.len]).unwrap();
            assert_eq!(body, Body::Reject { code }, "{what}");
            drop((socket, forged));
            assert_eq!(footprint(), before, "{what} ({index})");
        }
        // The last straw was ours: a proper packet is taken.
        let mut end = End::new(&victim);
        end.pending(1);
        let socket = unix::socket().unwrap();
        unix::connect(socket.raw(), name.as_bytes()).unwrap();
        Forged::new(PLAIN, JOIN, vec![good_file(), handle(&mine)]).send(&socket);
        assert!(matches!(end.step(), Step::Attached(_)));
    });
}

#[test]
fn forged_answers() {
    isolated(|| {
        let (victim, mine) = loopback();
        let (stranger, _its_peer) = loopback();
        let name = Name::new(&Tuple::of(mine.as_raw_fd()).unwrap());
        let cases = forgeries(&mine, &stranger, ACCEPT).len();
        assert!(cases > 20);
        let before = footprint();
        for index in 0..=cases {
            let (what, forged, refusal) = if index < cases {
                forgeries(&mine, &stranger, ACCEPT).swap_remove(index)
            } else {
                let no = Body::Reject { code: 77 };
                ("reject", Forged::new(PLAIN, no, vec![]), Refusal::PeerRefused)
            };
            let listener = unix::socket().unwrap();
            unix::bind(listener.raw(), name.as_bytes()).unwrap();
            unix::listen(listener.raw(), 1).unwrap();
            let mut end = End::new(&victim);
            end.pending(3);
            let socket = unix::accept(listener.raw()).unwrap();
            let mut buf = [0; packet::MAX_LEN];
            assert_eq!(unix::receive(socket.raw(), &mut buf).unwrap().descriptors(), 2);
            unix::pass_credentials(socket.raw()).unwrap();
            forged.send(&socket);
            match end.step() {
                Step::Failed(answer) => assert_eq!(answer, refusal, "{what} ({index})"),
                other => panic!("{what} ({index}): {other:?}"),
            }
            drop((listener, socket, forged));
            assert_eq!(footprint(), before, "{what} ({index})");
        }
    });
}

#[test]
fn hundreds_of_descriptors() {
    isolated(|| {
        let (victim, mine) = loopback();
        let name = Name::new(&Tuple::of(mine.as_raw_fd()).unwrap());
        let before = footprint();
        let mut end = End::new(&victim);
        end.pending(1);
        let socket = unix::socket().unwrap();
        unix::connect(socket.raw(), name.as_bytes()).unwrap();
        // More than our own sender allows: by hand.
        let bytes = packet::encode(&PLAIN, &JOIN);
        let (bytes, count) = (bytes.as_bytes(), 250);
        let mut control = vec![0u64; 2 + count / 2];
        // SAFETY: control is aligned and long enough for header and numbers; all outlives the call.
        unsafe {
            let header = control.as_mut_ptr().cast::<libc::cmsghdr>();
            (*header).cmsg_len = libc::CMSG_LEN(4 * count as u32) as usize;
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            let data = libc::CMSG_DATA(header).cast::<i32>();
            (0..count).for_each(|i| data.add(i).write(socket.raw()));
            let mut iov =
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let mut msg: libc::msghdr = std::mem::zeroed();
            (msg.msg_iov, msg.msg_iovlen) = (&raw mut iov, 1);
            msg.msg_control = control.as_mut_ptr().cast();
            msg.msg_controllen = (*header).cmsg_len;
            assert!(libc::sendmsg(socket.raw(), &raw const msg, 0) > 0);
        }
        assert!(matches!(end.step(), Step::Failed(Refusal::Untrusted)));
        drop(socket);
        assert_eq!(footprint(), before);
    });
}

/// As another user, at the name of `tuple`.
fn as_stranger(body: impl FnOnce()) -> Child {
    spawn(move || {
        become_user(1001);
        body();
    })
}

#[test]
fn a_stranger_takes_the_name_first() {
    if !is_root() {
        eprintln!("skipped: needs root to change users");
        return;
    }
    isolated(|| {
        for kind in [libc::SOCK_SEQPACKET, libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            let (victim, _mine) = loopback();
            let mut end = End::new(&victim);
            let before = footprint();
            let name = Name::new(&end.tuple);
            let (mut ready, mut say_ready) = std::io::pipe().unwrap();
            let (mut go, mut say_go) = std::io::pipe().unwrap();
            let child = as_stranger(move || {
                let flags = kind | libc::SOCK_NONBLOCK;
                // SAFETY: no pointers.
                let socket = unsafe { libc::socket(libc::AF_UNIX, flags, 0) };
                let socket = OwnedFd::new(socket);
                unix::bind(socket.raw(), name.as_bytes()).unwrap();
                if kind != libc::SOCK_DGRAM {
                    unix::listen(socket.raw(), 5).unwrap();
                }
                say_ready.write_all(b"x").unwrap();
                go.read_exact(&mut [0]).unwrap();
                let mut buf = [0; packet::MAX_LEN];
                if kind == libc::SOCK_SEQPACKET {
                    let victim = unix::accept(socket.raw()).unwrap();
                    let packet = unix::receive(victim.raw(), &mut buf).unwrap();
                    assert_eq!((packet.len, packet.descriptors()), (0, 0), "something leaked");
                } else if kind == libc::SOCK_STREAM {
                    assert_eq!(unix::accept(socket.raw()).unwrap_err(), Errno::EAGAIN);
                } else {
                    assert_eq!(unix::receive(socket.raw(), &mut buf).unwrap_err(), Errno::EAGAIN);
                }
            });
            ready.read_exact(&mut [0]).unwrap();
            if kind == libc::SOCK_SEQPACKET {
                assert!(matches!(end.step(), Step::Failed(Refusal::Untrusted)));
            } else {
                // Names of other socket types are other names: not even in the way.
                end.pending(1);
                assert!(end.rendezvous.is_offering());
            }
            say_go.write_all(b"x").unwrap();
            assert_eq!(wait(child), 0);
            drop((ready, say_go));
            end.rendezvous.abandon();
            assert_eq!(footprint(), before);
        }
    });
}

#[test]
fn strangers_knock_at_an_offer() {
    if !is_root() {
        eprintln!("skipped: needs root to change users");
        return;
    }
    isolated(|| {
        let (victim, mine) = loopback();
        let (mut end, mut other) = (End::new(&victim), End::new(&mine));
        let before = footprint();
        end.pending(1);
        let name = Name::new(&end.tuple);
        let knock = |end: &mut End, times: u32| {
            for _ in 0..times {
                let (mut knocked, mut say_knocked) = std::io::pipe().unwrap();
                let (mut go, mut say_go) = std::io::pipe().unwrap();
                let child = as_stranger(move || {
                    let socket = unix::socket().unwrap();
                    unix::connect(socket.raw(), name.as_bytes()).unwrap();
                    unix::send(socket.raw(), b"give me", &[]).unwrap();
                    say_knocked.write_all(b"x").unwrap();
                    go.read_exact(&mut [0]).unwrap();
                    let mut buf = [0; packet::MAX_LEN];
                    match unix::receive(socket.raw(), &mut buf) {
                        Ok(packet) => assert_eq!((packet.len, packet.descriptors()), (0, 0)),
                        Err(error) => assert_eq!(error, Errno::ECONNRESET),
                    }
                });
                knocked.read_exact(&mut [0]).unwrap();
                let step = end.step();
                say_go.write_all(b"x").unwrap();
                assert_eq!(wait(child), 0);
                if let Step::Failed(refusal) = step {
                    return Some(refusal);
                }
            }
            None
        };
        assert_eq!(knock(&mut end, 10), None);
        // The true other end still gets in.
        let (a, b) = meet(&mut end, &mut other);
        assert!(share_memory(&a, &b));
        discard(a);
        discard(b);
        // But not after any number of them.
        end.pending(1);
        assert_eq!(knock(&mut end, 17), Some(Refusal::Untrusted));
        assert_eq!(footprint(), before);
    });
}

#[test]
fn a_handle_is_worth_nothing_in_other_hands() {
    if !is_root() {
        eprintln!("skipped: needs root to change users");
        return;
    }
    isolated(|| {
        let (victim, mine) = loopback();
        let (mut end, mut other) = (End::new(&victim), End::new(&mine));
        let before = footprint();
        end.pending(1);
        let name = Name::new(&end.tuple);
        let (mut knocked, mut say_knocked) = std::io::pipe().unwrap();
        let (mut go, mut say_go) = std::io::pipe().unwrap();
        // The packets of an honest joiner, by a user that obtained the proof earlier.
        let (proof, segment) = (handle(&mine), good_file());
        let child = as_stranger(move || {
            let socket = unix::socket().unwrap();
            unix::connect(socket.raw(), name.as_bytes()).unwrap();
            Forged::new(PLAIN, JOIN, vec![segment, proof]).send(&socket);
            say_knocked.write_all(b"x").unwrap();
            go.read_exact(&mut [0]).unwrap();
            match unix::receive(socket.raw(), &mut [0; packet::MAX_LEN]) {
                Ok(packet) => assert_eq!((packet.len, packet.descriptors()), (0, 0)),
                Err(error) => assert_eq!(error, Errno::ECONNRESET),
            }
        });
        knocked.read_exact(&mut [0]).unwrap();
        end.pending(2);
        say_go.write_all(b"x").unwrap();
        assert_eq!(wait(child), 0);
        drop((knocked, say_go));
        let (a, b) = meet(&mut end, &mut other);
        assert!(share_memory(&a, &b));
        discard(a);
        discard(b);
        assert_eq!(footprint(), before);
    });
}

/// Kind of a descriptor that a process got: the path of its file, and whether it is an O_PATH
/// handle.
fn kind_of(fd: i32) -> (String, bool) {
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    (path.to_str().unwrap().to_owned(), flags & libc::O_PATH != 0)
}

/// The other end, of another user: it meets the victim, and looks at what it is given.
fn meet_as_stranger(
    address: std::net::SocketAddr,
    joins: bool,
    go: &mut std::io::PipeReader,
    say_ready: &mut std::io::PipeWriter,
) {
    let mine = TcpStream::connect(address).unwrap();
    let name = Name::new(&Tuple::of(mine.as_raw_fd()).unwrap());
    let listener = (!joins).then(|| {
        let listener = unix::socket().unwrap();
        unix::bind(listener.raw(), name.as_bytes()).unwrap();
        unix::listen(listener.raw(), 1).unwrap();
        listener
    });
    say_ready.write_all(b"x").unwrap();
    go.read_exact(&mut [0]).unwrap();
    let socket = match &listener {
        Some(listener) => unix::accept(listener.raw()).unwrap(),
        None => {
            let socket = unix::socket().unwrap();
            unix::connect(socket.raw(), name.as_bytes()).unwrap();
            Forged::new(PLAIN, JOIN, vec![good_file(), handle(&mine)]).send(&socket);
            say_ready.write_all(b"x").unwrap();
            go.read_exact(&mut [0]).unwrap();
            socket
        }
    };
    let mut packet = unix::receive(socket.raw(), &mut [0; packet::MAX_LEN]).unwrap();
    let expected = if joins { 1 } else { 2 };
    assert_eq!(packet.descriptors(), expected);
    let got: Vec<OwnedFd> = (0..expected).map(|i| packet.take(i).unwrap()).collect();
    let kinds: Vec<_> = got.iter().map(|fd| kind_of(fd.raw())).collect();
    let (path, is_handle) = kinds.last().unwrap();
    assert!(path.starts_with("socket:") && *is_handle, "{kinds:?}");
    let memory = kinds.iter().filter(|(path, _)| path.starts_with("/memfd:sdp-conn"));
    assert_eq!(memory.count(), expected - 1, "{kinds:?}");
    // A handle is a name: nothing can be read, written or asked through it.
    let handle = got.last().unwrap().raw();
    let mut byte = 0u8;
    // SAFETY: one byte to write to.
    assert_eq!(unsafe { libc::read(handle, (&raw mut byte).cast(), 1) }, -1);
    say_ready.write_all(b"x").unwrap();
    go.read_exact(&mut [0]).unwrap();
}

#[test]
fn another_user_gets_segment_and_handle_only() {
    if !is_root() {
        eprintln!("skipped: needs root to change users");
        return;
    }
    isolated(|| {
        for joins in [true, false] {
            // The other end's socket is the stranger's own: his credentials pass.
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let (mut ready, mut say_ready) = std::io::pipe().unwrap();
            let (mut go, mut say_go) = std::io::pipe().unwrap();
            let child = as_stranger(move || {
                meet_as_stranger(address, joins, &mut go, &mut say_ready);
            });
            let (stream, _) = listener.accept().unwrap();
            let doorbells = Doorbells::new();
            let mut end = End::new(&stream).with_doorbell(&doorbells, 3);
            ready.read_exact(&mut [0]).unwrap();
            let mut attached = None;
            if joins {
                end.pending(1);
                assert!(end.rendezvous.is_offering());
                say_go.write_all(b"x").unwrap();
                ready.read_exact(&mut [0]).unwrap();
                match end.step() {
                    Step::Attached(attachment) => attached = Some(attachment),
                    other => panic!("{other:?}"),
                }
            } else {
                end.pending(1);
                assert!(end.rendezvous.is_joining());
            }
            say_go.write_all(b"x").unwrap();
            ready.read_exact(&mut [0]).unwrap();
            if let Some(attachment) = attached {
                assert!(!attachment.peer.trusted && attachment.peer.doorbell.is_none());
                assert!(attachment.peer.doorbell_page.is_none());
                discard(attachment);
            }
            say_go.write_all(b"x").unwrap();
            assert_eq!(wait(child), 0);
        }
    });
}

#[test]
fn the_other_end_breaks_off() {
    isolated(|| {
        let (one, two) = loopback();
        let (mut one, mut two) = (End::new(&one), End::new(&two));
        let before = footprint();

        // The joiner gives up before its packet is read, several times; then it stays.
        for _ in 0..3 {
            one.pending(1);
            two.pending(1);
            assert!(one.rendezvous.is_offering() && !two.rendezvous.is_offering());
            two.rendezvous.abandon();
            one.pending(1);
        }
        let (a, b) = meet(&mut one, &mut two);
        discard(a);
        discard(b);
        assert_eq!(footprint(), before);

        // The offerer gives up before it answers: the joiner offers itself.
        one.pending(1);
        two.pending(1);
        one.rendezvous.abandon();
        two.pending(2);
        assert!(two.rendezvous.is_offering());
        let (a, b) = meet(&mut one, &mut two);
        discard(a);
        discard(b);
        assert_eq!(footprint(), before);

        // For ever: there is an end to it.
        let mut refusal = None;
        for _ in 0..=MAX_RESTARTS {
            one.pending(1);
            two.pending(1);
            two.rendezvous.abandon();
            if let Step::Failed(why) = one.step() {
                refusal = Some(why);
                break;
            }
        }
        assert_eq!(refusal, Some(Refusal::PeerRefused));
        assert_eq!(footprint(), before);
    });
}

#[test]
fn the_other_process_dies() {
    isolated(|| {
        // As joiner, its packet sent and its socket gone with it.
        let (victim, mine) = loopback();
        let mut end = End::new(&victim);
        end.pending(1);
        let child = spawn(|| {
            let mut joiner = End::new(&mine);
            joiner.pending(1);
            // SAFETY: dies without giving anything back.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        assert_eq!(wait(child), 1000 + libc::SIGKILL);
        drop(mine);
        // Its proper packet is there, but no end to be attached to. (The carrier shows the caller
        // that the connection is over.)
        end.pending(2);
        assert!(end.rendezvous.is_offering());
        assert_eq!(mappings("sdp-conn"), 0);
        end.rendezvous.abandon();
        assert!(matches!(end.step(), Step::Failed(Refusal::PeerNotListening)));
        assert!(descriptors().iter().all(|fd| *fd < HIDDEN_MIN));

        // As offerer.
        let (victim, mine) = loopback();
        let mut end = End::new(&victim);
        let (mut ready, mut say_ready) = std::io::pipe().unwrap();
        let child = spawn(move || {
            let mut offerer = End::new(&mine);
            offerer.pending(1);
            say_ready.write_all(b"x").unwrap();
            std::thread::sleep(std::time::Duration::from_secs(60));
        });
        // (The child has the only other copy of `mine`: it was moved into the closure, which
        // `spawn` dropped here.)
        ready.read_exact(&mut [0]).unwrap();
        drop(ready);
        end.pending(1);
        assert!(!end.rendezvous.is_idle() && !end.rendezvous.is_offering());
        // SAFETY: our own child.
        unsafe { libc::kill(child.pid, libc::SIGKILL) };
        assert_eq!(wait(child), 1000 + libc::SIGKILL);
        assert!(end.finish().is_err());
        assert_eq!(mappings("sdp-conn"), 0);
    });
}

#[test]
fn fork_child_abandons_and_the_parent_goes_on() {
    isolated(|| {
        let (one, two) = loopback();
        let (mut one, mut two) = (End::new(&one), End::new(&two));
        let doorbells = Doorbells::new();
        (one.doorbell, two.doorbell) = (doorbells.doorbell.raw(), doorbells.doorbell.raw());
        one.pending(1);
        two.pending(1);
        let child = spawn(|| {
            assert_eq!(mappings("sdp-conn"), 1);
            one.rendezvous.abandon_in_child();
            two.rendezvous.abandon_in_child();
            assert_eq!(mappings("sdp-conn"), 0);
            assert!(descriptors().iter().all(|fd| *fd < HIDDEN_MIN));
        });
        assert_eq!(wait(child), 0);
        let (a, b) = meet(&mut one, &mut two);
        assert!(!is_disowned(&a) && !is_disowned(&b), "by the child");
        assert!(share_memory(&a, &b));
    });
}

#[test]
fn the_program_closes_our_numbers() {
    isolated(|| {
        let (one, two) = loopback();
        let (mut one, mut two) = (End::new(&one), End::new(&two));
        for victim in 0..2 {
            one.pending(1);
            two.pending(1);
            let end = [&mut one, &mut two].into_iter().nth(victim).unwrap();
            let number = end.rendezvous.descriptors()[0];
            assert!(number >= HIDDEN_MIN);
            // The program's own listener, with a client, where ours was.
            let name = format!("test/{}/{victim}", std::process::id());
            let (listener, client) = (unix::socket().unwrap(), unix::socket().unwrap());
            unix::bind(listener.raw(), name.as_bytes()).unwrap();
            unix::listen(listener.raw(), 1).unwrap();
            unix::connect(client.raw(), name.as_bytes()).unwrap();
            // SAFETY: no pointers.
            assert_eq!(unsafe { libc::dup2(listener.raw(), number) }, number);
            let mine = OwnedFd::new(number);
            match end.step() {
                Step::Failed(Refusal::NoDescriptors) | Step::Pending => {}
                other => panic!("{other:?}"),
            }
            end.rendezvous.abandon();
            // Still open, and its client was not taken.
            assert!(unix::accept(mine.raw()).is_ok());
            drop((client, mine, listener));
            one.rendezvous.abandon();
            two.rendezvous.abandon();
        }
        let (a, b) = meet(&mut one, &mut two);
        assert!(share_memory(&a, &b));
    });
}

#[test]
fn the_pid_is_the_sender_s() {
    isolated(|| {
        // The listener forks; the child answers. SO_PEERCRED names the parent.
        let (victim, mine) = loopback();
        let mut end = End::new(&victim);
        let name = Name::new(&end.tuple);
        let listener = unix::socket().unwrap();
        unix::bind(listener.raw(), name.as_bytes()).unwrap();
        unix::listen(listener.raw(), 1).unwrap();
        end.pending(1);
        let child = spawn(|| {
            let socket = unix::accept(listener.raw()).unwrap();
            unix::receive(socket.raw(), &mut [0; packet::MAX_LEN]).unwrap();
            unix::pass_credentials(socket.raw()).unwrap();
            Forged::new(PLAIN, ACCEPT, vec![handle(&mine)]).send(&socket);
        });
        let pid = child.pid;
        assert_eq!(wait(child), 0);
        let Step::Attached(attachment) = end.step() else { panic!("not attached") };
        assert_eq!(attachment.peer.pid, pid);
    });
}
