//! Two honest ends meet: every address family, one process and two, same users and different ones.

mod common;

use std::{
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd,
};

use common::*;
use sdp_fabric_shm::{
    identity::{self, Presence, Tuple, TupleError},
    name::Name,
    refusal::Refusal,
    rendezvous::Step,
};

#[test]
fn both_ends_in_one_process() {
    isolated(|| {
        for (client, server) in
            [loopback(), tcp_pair("::1".parse().unwrap()), mapped_pair(), mapped_pair()]
        {
            let before = footprint();
            let doorbells = Doorbells::new();
            let mut one = End::new(&client).with_doorbell(&doorbells, 3);
            let mut two = End::new(&server).with_doorbell(&doorbells, 4);
            assert_eq!(one.tuple, Tuple { interface: one.tuple.interface, ..two.tuple.reversed() });
            let (a, b) = meet(&mut one, &mut two);
            assert!(share_memory(&a, &b));
            assert_eq!([a.side, b.side], [one.tuple.side().unwrap(), two.tuple.side().unwrap()]);
            assert_eq!(a.side + b.side, 1);
            assert_eq!(a.segment.ring_bytes(), RING);
            // The first to step offered, so the second joined.
            assert_eq!([a.terms, b.terms], [TERMS_OF_HELLO, TERMS_OF_ACK]);
            assert_eq!([a.peer.slot, b.peer.slot], [4, 3]);
            for peer in [&a.peer, &b.peer] {
                assert_eq!(peer.pid as u32, std::process::id());
                assert_eq!(peer.nonce, one.nonce);
                assert!(peer.trusted);
                assert!(peer.doorbell.as_ref().unwrap().raw() >= HIDDEN_MIN);
                assert!(peer.doorbell_page.as_ref().unwrap().raw() >= HIDDEN_MIN);
            }
            assert!(a.gave_doorbell && b.gave_doorbell);
            assert!(one.rendezvous.is_idle() && two.rendezvous.is_idle());
            discard(a);
            discard(b);
            drop(doorbells);
            assert_eq!(footprint(), before);
        }
    });
}

#[test]
fn terms_that_an_end_does_not_take_attach_nobody() {
    isolated(|| {
        let (client, server) = loopback();
        let before = footprint();
        for refusal in [Refusal::Version, Refusal::Untrusted] {
            let judge = match refusal {
                Refusal::Version => |_: &_| Err(Refusal::Version),
                _ => |_: &_| Err(Refusal::Untrusted),
            };
            // The offerer says no before it has said yes.
            let (mut one, mut two) = (End::new(&client), End::new(&server));
            one.judge = judge;
            one.pending(1);
            two.pending(1);
            let Step::Failed(found) = one.step() else { panic!("the packet is not to be taken") };
            assert_eq!(found, refusal);
            let told = if refusal == Refusal::Version { refusal } else { Refusal::PeerRefused };
            let Step::Failed(found) = two.step() else { panic!("the answer is there") };
            assert_eq!(found, told);
            // The joiner lets the offerer know that it will not use the segment.
            let (mut one, mut two) = (End::new(&client), End::new(&server));
            two.judge = judge;
            one.pending(1);
            two.pending(1);
            let Step::Attached(first) = one.step() else { panic!("the packet is there") };
            let Step::Failed(found) = two.step() else { panic!("the answer is not to be taken") };
            assert_eq!(found, refusal);
            assert!(is_disowned(&first));
            discard(first);
        }
        assert_eq!(footprint(), before);
    });
}

#[test]
fn a_bell_that_is_made_after_the_packet_was_not_given() {
    isolated(|| {
        let (client, server) = loopback();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        one.pending(1);
        two.pending(1);
        assert!(two.rendezvous.is_joining());
        // Both have one by now; the joiner's packet is on its way without.
        let doorbells = Doorbells::new();
        (one, two) = (one.with_doorbell(&doorbells, 3), two.with_doorbell(&doorbells, 4));
        let (a, b) = meet(&mut one, &mut two);
        assert!(a.gave_doorbell && b.peer.doorbell.is_some() && b.peer.doorbell_page.is_some());
        assert!(!b.gave_doorbell && a.peer.doorbell.is_none() && a.peer.doorbell_page.is_none());
        discard(a);
        discard(b);
    });
}

#[test]
fn who_waits_can_be_told_of_the_next_step() {
    isolated(|| {
        let (client, server) = loopback();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        assert_eq!([one.rendezvous.expects(), two.rendezvous.expects()], [-1, -1]);
        one.pending(1);
        let offer = one.rendezvous.expects();
        assert!(one.rendezvous.is_offering() && !one.rendezvous.is_joining());
        assert!(!is_readable(offer), "nobody has come yet");
        two.pending(1);
        let join = two.rendezvous.expects();
        assert!(two.rendezvous.is_joining() && !two.rendezvous.is_offering());
        assert!(is_readable(offer), "the joiner has come");
        assert!(!is_readable(join), "no answer yet");
        let Step::Attached(first) = one.step() else { panic!("the joiner's packet is there") };
        assert!(is_readable(join), "the answer has come");
        let Step::Attached(second) = two.step() else { panic!("the answer is there") };
        assert_eq!([one.rendezvous.expects(), two.rendezvous.expects()], [-1, -1]);
        discard(first);
        discard(second);
    });
}

#[test]
fn who_gives_up_takes_what_is_there() {
    isolated(|| {
        let before = footprint();
        let (client, server) = loopback();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        // The answer, which came after the joiner's last look.
        one.pending(1);
        two.pending(1);
        let Step::Attached(first) = one.step() else { panic!("the joiner's packet is there") };
        let Step::Attached(second) = two.last_step() else { panic!("the answer is there") };
        assert!(share_memory(&first, &second));
        [first, second].into_iter().for_each(discard);
        // The joiner, which came after the offerer's last look, and finds the answer although the
        // other end has gone.
        one.pending(1);
        two.pending(1);
        let Step::Attached(first) = one.last_step() else { panic!("the joiner's packet is there") };
        let Step::Attached(second) = two.last_step() else { panic!("the answer is there") };
        assert!(share_memory(&first, &second));
        [first, second].into_iter().for_each(discard);
        drop((client, server));
        assert_eq!(footprint(), before);
    });
}

#[test]
fn who_gives_up_leaves_nobody_attached() {
    isolated(|| {
        let (client, server) = loopback();
        let before = footprint();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        // No end has taken the offer: an end that comes now finds none, and makes one.
        one.pending(1);
        assert!(matches!(one.last_step(), Step::Pending) && one.rendezvous.is_idle());
        assert_eq!(footprint(), before);
        two.pending(1);
        assert!(two.rendezvous.is_offering());
        // The joiner has gone when its packet is read: the offer stands, and a second attempt meets it.
        one.pending(1);
        assert!(one.rendezvous.is_joining());
        assert!(matches!(one.last_step(), Step::Pending) && one.rendezvous.is_idle());
        two.pending(1);
        assert!(two.rendezvous.is_offering());
        one.pending(1);
        two.rendezvous.abandon();
        // The offerer has gone before it came to the joiner.
        assert!(matches!(one.last_step(), Step::Pending) && one.rendezvous.is_idle());
        assert_eq!(footprint(), before);
        assert!(matches!(one.last_step(), Step::Pending), "not begun");
        let (a, b) = meet(&mut one, &mut two);
        assert!(!is_disowned(&a) && !is_disowned(&b));
        [a, b].into_iter().for_each(discard);
        assert_eq!(footprint(), before);
    });
}

#[test]
fn who_is_alone_with_a_segment_is_told() {
    isolated(|| {
        let (client, server) = loopback();
        let before = footprint();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        // The joiner gives up for another reason (a fork, another program) when it has the other
        // end's consent.
        one.pending(1);
        two.pending(1);
        let Step::Attached(first) = one.step() else { panic!("the joiner's packet is there") };
        assert!(!is_disowned(&first));
        two.rendezvous.abandon();
        assert!(is_disowned(&first));
        discard(first);
        assert_eq!(footprint(), before);
    });
}

fn is_readable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one element, valid for writing; does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[test]
fn without_eventfd_and_page() {
    isolated(|| {
        let (client, server) = loopback();
        let before = footprint();
        let doorbells = Doorbells::new();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        two.doorbell = doorbells.doorbell.raw();
        let (a, b) = meet(&mut one, &mut two);
        assert!(a.peer.doorbell.is_some() && a.peer.doorbell_page.is_none());
        assert!(b.peer.doorbell.is_none() && b.peer.doorbell_page.is_none());
        discard(a);
        discard(b);
        drop(doorbells);
        assert_eq!(footprint(), before);
    });
}

#[test]
fn a_bell_that_is_none_stays_here() {
    isolated(|| {
        let (client, server) = loopback();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        // The program has put its own file where our eventfd and page were.
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        (one.doorbell, one.page) = (file.as_raw_fd(), file.as_raw_fd());
        (two.doorbell, two.page) = (77, 77);
        let (a, b) = meet(&mut one, &mut two);
        for peer in [&a.peer, &b.peer] {
            assert!(peer.doorbell.is_none() && peer.doorbell_page.is_none());
        }
    });
}

#[test]
fn the_name_is_the_documented_one() {
    isolated(|| {
        let (client, _server) = tcp_pair("127.0.0.9".parse().unwrap());
        let mut end = End::new(&client);
        end.pending(1);
        // The table shows NUL as @.
        let mut name = b"@sdp/3/".to_vec();
        name.extend(&Name::new(&end.tuple).as_bytes()[6..]);
        name.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'@');
        let table = std::fs::read("/proc/net/unix").unwrap();
        assert!(table.windows(name.len()).any(|part| part == name));
        assert_eq!(name.len(), 1 + 6 + 36);
    });
}

#[test]
fn link_local_addresses() {
    let Some(address) = link_local() else {
        eprintln!("skipped: no interface with a link-local address");
        return;
    };
    isolated(move || {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        assert_ne!(one.tuple.interface, 0);
        let (a, b) = meet(&mut one, &mut two);
        assert!(share_memory(&a, &b));
    });
}

/// A link-local address of this machine, with its interface.
fn link_local() -> Option<std::net::SocketAddrV6> {
    let text = std::fs::read_to_string("/proc/net/if_inet6").ok()?;
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let bits = u128::from_str_radix(fields[0], 16).ok()?;
        let index = u32::from_str_radix(fields[1], 16).ok()?;
        (bits >> 118 == 0xfe80 >> 6).then(|| std::net::SocketAddrV6::new(bits.into(), 0, 0, index))
    })
}

#[test]
fn the_joiner_chooses_the_ring() {
    isolated(|| {
        let (client, server) = loopback();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        (one.ring, two.ring) = (4 << 10, 16 << 20);
        let (a, b) = meet(&mut one, &mut two);
        assert_eq!(a.segment.ring_bytes(), 16 << 20);
        assert_eq!(a.segment.len(), 4096 + (32 << 20));
        assert!(share_memory(&a, &b));
    });
}

#[test]
fn waits_until_the_connection_is_accepted() {
    isolated(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut one = End::new(&client);
        let peer = identity::diag(&one.tuple.reversed()).unwrap().unwrap();
        assert_eq!(peer.presence(), Presence::NotAccepted);
        one.pending(20);
        assert!(one.rendezvous.is_idle(), "nothing is offered to nobody");
        let server = listener.accept().unwrap().0;
        let peer = identity::diag(&one.tuple.reversed()).unwrap().unwrap();
        assert_eq!(peer.presence(), Presence::Open);
        assert_eq!(peer.inode, sdp_sys::fd::inode(server.as_raw_fd()).unwrap());
        let mut two = End::new(&server);
        let (a, b) = meet(&mut one, &mut two);
        assert!(share_memory(&a, &b));
    });
}

#[test]
fn no_other_end_here() {
    isolated(|| {
        // Closed: the kernel keeps the socket for the protocol's sake only.
        let (client, server) = loopback();
        let mut one = End::new(&client);
        drop(server);
        assert!(matches!(one.step(), Step::Failed(Refusal::PeerNotListening)));

        // Reset: no socket at all.
        let (client, server) = loopback();
        let mut one = End::new(&client);
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
        // SAFETY: linger outlives the call.
        let set = unsafe {
            libc::setsockopt(server.as_raw_fd(), level, name, (&raw const linger).cast(), 8)
        };
        assert_eq!(set, 0);
        drop(server);
        assert!(matches!(one.step(), Step::Failed(Refusal::RemotePeer)));

        // Addresses of another connection than the carrier's: as if it lived elsewhere.
        let (client, _server) = loopback();
        let (other, _other_server) = loopback();
        let mut one = End::new(&client);
        one.tuple = Tuple::of(other.as_raw_fd()).unwrap();
        assert!(matches!(one.step(), Step::Failed(Refusal::RemotePeer)));
    });
}

#[test]
fn a_connection_to_itself_is_refused() {
    isolated(|| {
        // SAFETY: plain socket calls on valid memory.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            let mut addr: libc::sockaddr_in = std::mem::zeroed();
            addr.sin_family = libc::AF_INET as u16;
            addr.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
            let mut len = size_of_val(&addr) as u32;
            assert_eq!(libc::bind(fd, (&raw const addr).cast(), len), 0);
            assert_eq!(libc::getsockname(fd, (&raw mut addr).cast(), &raw mut len), 0);
            assert_eq!(libc::connect(fd, (&raw const addr).cast(), len), 0);
            fd
        };
        use std::os::fd::FromRawFd;
        // SAFETY: fd is ours.
        let mut end = End::new(&unsafe { TcpStream::from_raw_fd(fd) });
        assert!(end.tuple.side().is_none());
        assert!(matches!(end.step(), Step::Failed(Refusal::SelfConnection)));
    });
}

#[test]
fn tuples_are_for_tcp() {
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(Tuple::of(udp.as_raw_fd()), Err(TupleError::NotTcp));
    let (local, _) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(Tuple::of(local.as_raw_fd()), Err(TupleError::NotTcp));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(Tuple::of(listener.as_raw_fd()), Err(TupleError::NotConnected));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(Tuple::of(file.as_raw_fd()), Err(TupleError::NotTcp));
    assert!(matches!(Tuple::of(-1), Err(TupleError::Kernel(sdp_sys::Errno::EBADF))));
}

/// Both ends in processes of their own, as the users given; whether they met.
fn between(client_uid: u32, server_uid: u32) -> [i32; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut results = [0; 2];
    let body = |stream: TcpStream, uid: u32, other: u32| {
        if is_root() {
            become_user(uid);
        }
        let doorbells = Doorbells::new();
        let mut end = End::new(&stream).with_doorbell(&doorbells, 0);
        match end.finish() {
            Ok(attachment) => {
                let peer = &attachment.peer;
                assert_ne!(peer.pid as u32, std::process::id());
                assert_eq!(u64::from(peer.pid as u32), peer.nonce, "the kernel's pid");
                assert_eq!(peer.uid, other);
                // Each end knows whether the other has its doorbell, without a message about it.
                assert_eq!(peer.trusted, uid == other);
                assert_eq!(peer.doorbell.is_some(), uid == other);
                assert_eq!(peer.doorbell_page.is_some(), uid == other);
                // Each end writes its mark and waits for the other's.
                let base = attachment.segment.base().as_ptr();
                let at = usize::from(attachment.side);
                // SAFETY: the mapping is alive.
                unsafe {
                    base.add(at).write_volatile(1);
                    for _ in 0..5000 {
                        if base.add(1 - at).read_volatile() == 1 {
                            return;
                        }
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                }
                panic!("the other end does not share the segment");
            }
            Err(refusal) => {
                // SAFETY: ends this child with a status that names the refusal.
                unsafe { libc::_exit(1 + refusal as i32) }
            }
        }
    };
    let client = spawn(move || {
        let as_user = |uid| {
            // SAFETY: no pointers. The owner of a socket is the effective user that made it.
            is_root().then(|| unsafe { assert_eq!(libc::seteuid(uid), 0) })
        };
        as_user(client_uid);
        let stream = TcpStream::connect(address).unwrap();
        as_user(0);
        body(stream, client_uid, server_uid);
    });
    let server = spawn(move || {
        // SAFETY: takes a number; of this process alone, which the test has made.
        is_root().then(|| unsafe { assert_eq!(libc::seteuid(server_uid), 0) });
        let stream = listener.accept().unwrap().0;
        // SAFETY: takes a number; of this process alone, which the test has made.
        is_root().then(|| unsafe { assert_eq!(libc::seteuid(0), 0) });
        body(stream, server_uid, client_uid);
    });
    for (result, pid) in results.iter_mut().zip([client, server]) {
        *result = wait(pid);
    }
    results
}

#[test]
fn between_processes_of_one_user() {
    // SAFETY: no arguments.
    let uid = unsafe { libc::geteuid() };
    assert_eq!(between(uid, uid), [0, 0]);
}

#[test]
fn between_processes_of_different_users() {
    if !is_root() {
        eprintln!("skipped: needs root to change users");
        return;
    }
    // 65534 is the overflow uid, but here a user like any other: every uid is mapped.
    for (client, server) in [(1001, 1001), (1001, 1002), (0, 1001), (1001, 0), (65534, 65534)] {
        assert_eq!(between(client, server), [0, 0], "{client} and {server}");
    }
}

#[test]
fn a_dropped_privilege_is_refused() {
    if !is_root() {
        eprintln!("skipped: needs root to change users");
        return;
    }
    // The server's socket is root's, the process is not any more; the client waits in vain.
    let (client, server) = loopback();
    let child = spawn(move || {
        drop(client);
        become_user(1001);
        assert_eq!(End::new(&server).finish().unwrap_err(), Refusal::UidDiffers);
    });
    assert_eq!(wait(child), 0);
    assert_eq!(Refusal::UidDiffers.word(), "uid-differs");
}
