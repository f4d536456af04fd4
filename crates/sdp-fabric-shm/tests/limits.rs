//! Too little of something: descriptors, memory, offers, netlink, /proc, namespaces.

mod common;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

use common::*;
use sdp_fabric_shm::{
    identity::{self, Addr, Tuple},
    party::Party,
    refusal::Refusal,
    rendezvous::Step,
};

fn limit(resource: libc::__rlimit_resource_t, soft: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: limit is valid for reading and writing.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &raw mut limit), 0);
        limit.rlim_cur = soft;
        assert_eq!(libc::setrlimit(resource, &raw const limit), 0);
    }
}

/// Steps both ends by turns until each has ended or a few rounds have passed.
fn attempt(one: &mut End, two: &mut End) -> [Option<Result<(), Refusal>>; 2] {
    let mut results = [None, None];
    let mut attached = Vec::new();
    for _ in 0..6 {
        for (end, result) in [&mut *one, &mut *two].into_iter().zip(&mut results) {
            if result.is_none() {
                match end.step() {
                    Step::Pending => {}
                    Step::Attached(attachment) => {
                        attached.push(attachment);
                        *result = Some(Ok(()));
                    }
                    Step::Failed(refusal) => *result = Some(Err(refusal)),
                }
            }
        }
    }
    one.rendezvous.abandon();
    two.rendezvous.abandon();
    // No end is left alone with a segment without learning of it.
    let is_alone = attached.len() == 1;
    attached.iter().for_each(|attachment| assert_eq!(is_disowned(attachment), is_alone));
    attached.into_iter().for_each(discard);
    results
}

#[test]
fn every_number_of_free_descriptors() {
    isolated(|| {
        let (client, server) = loopback();
        let doorbells = Doorbells::new();
        let mut one = End::new(&client).with_doorbell(&doorbells, 0);
        let mut two = End::new(&server).with_doorbell(&doorbells, 1);
        let before = footprint();
        let lowest = (0..).find(|fd| !before.0.contains(fd)).unwrap();
        assert!(before.0.iter().all(|fd| *fd < lowest), "no gaps: {:?}", before.0);
        let mut met = 0;
        let mut refused = 0;
        for free in 0..16 {
            limit(libc::RLIMIT_NOFILE, (lowest + free) as u64);
            let results = attempt(&mut one, &mut two);
            limit(libc::RLIMIT_NOFILE, 1024);
            assert_eq!(footprint(), before, "with {free} free descriptors");
            for result in results.into_iter().flatten() {
                match result {
                    Ok(()) => met += 1,
                    Err(Refusal::NoDescriptors | Refusal::PeerLacksResources) => refused += 1,
                    Err(other) => panic!("{other:?} with {free} free descriptors"),
                }
            }
            if free == 0 {
                assert_eq!(results, [Some(Err(Refusal::NoDescriptors)); 2]);
            }
        }
        assert!(met >= 8 && refused >= 4, "{met} met, {refused} refused");
        assert_eq!(attempt(&mut one, &mut two), [Some(Ok(())); 2]);
    });
}

#[test]
fn sixteen_offers() {
    isolated(|| {
        let pairs: Vec<(TcpStream, TcpStream)> = (0..=OFFERS).map(|_| loopback()).collect();
        let mut ends: Vec<End> = pairs.iter().map(|(client, _)| End::new(client)).collect();
        let (last, offering) = ends.split_last_mut().unwrap();
        offering.iter_mut().for_each(|end| end.pending(1));
        assert!(offering.iter().all(|end| end.rendezvous.is_offering()));
        for _ in 0..3 {
            assert!(matches!(last.step(), Step::Failed(Refusal::RendezvousBusy)));
        }
        assert!(Refusal::RendezvousBusy.is_transient());
        // Joining needs no offer.
        let mut joiner = End::new(&pairs[0].1);
        let (a, b) = meet(&mut offering[0], &mut joiner);
        discard(a);
        discard(b);
        // That offer is over, so there is room for one.
        last.pending(1);
        assert!(matches!(offering[0].step(), Step::Failed(Refusal::RendezvousBusy)));
        // A fork child that abandons has all of them again; the parent's stay.
        let child = spawn(|| {
            ends.iter_mut().for_each(|end| end.rendezvous.abandon_in_child());
            let pairs: Vec<(TcpStream, TcpStream)> = (0..=OFFERS).map(|_| loopback()).collect();
            let mut ends: Vec<End> = pairs.iter().map(|(client, _)| End::new(client)).collect();
            let (last, offering) = ends.split_last_mut().unwrap();
            offering.iter_mut().for_each(|end| end.pending(1));
            assert!(matches!(last.step(), Step::Failed(Refusal::RendezvousBusy)));
        });
        assert_eq!(wait(child), 0);
        assert!(matches!(ends[0].step(), Step::Failed(Refusal::RendezvousBusy)));
        ends.iter_mut().for_each(|end| end.rendezvous.abandon());
        ends.iter_mut().skip(1).for_each(|end| end.pending(1));
    });
}

#[test]
fn file_size_limit_sends_no_signal() {
    isolated(|| {
        let (client, server) = loopback();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        let before = footprint();
        limit(libc::RLIMIT_FSIZE, 4096);
        // SIGXFSZ would kill this process.
        let results = attempt(&mut one, &mut two);
        assert_eq!(results[1], Some(Err(Refusal::NoMemory)));
        assert_eq!(footprint(), before);
    });
}

#[test]
fn no_room_for_mappings() {
    isolated(|| {
        let (client, server) = loopback();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        (one.ring, two.ring) = (16 << 20, 16 << 20);
        let before = footprint();
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        // Of what there is half is for segments: one mapping of 32 MiB, the joiner's, not the offerer's.
        for (room, joiner, offerer) in [
            (8 << 20, Refusal::NoMemory, None),
            (96 << 20, Refusal::PeerLacksResources, Some(Err(Refusal::NoMemory))),
        ] {
            limit(libc::RLIMIT_AS, pages * 4096 + room);
            let results = attempt(&mut one, &mut two);
            limit(libc::RLIMIT_AS, libc::RLIM_INFINITY);
            std::thread::sleep(std::time::Duration::from_millis(300)); // a refusal holds for a moment
            assert_eq!(results, [offerer, Some(Err(joiner))]);
            assert_eq!(footprint(), before);
        }
    });
}

/// Makes `socket(AF_NETLINK, …)` fail with EPERM from here on, as sandboxes do.
fn refuse_netlink() {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        op(load, 0, 0, 0),
        op(equal, 0, 3, libc::SYS_socket as u32),
        op(load, 0, 0, 16),
        op(equal, 0, 1, libc::AF_NETLINK as u32),
        op(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: program and filter outlive the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
        assert_eq!(libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 4), -1);
    }
}

#[test]
fn without_netlink_proc_serves() {
    isolated(|| {
        refuse_netlink();
        for (client, server) in [loopback(), tcp_pair("::1".parse().unwrap()), mapped_pair()] {
            let before = footprint();
            let (mut one, mut two) = (End::new(&client), End::new(&server));
            let (a, b) = meet(&mut one, &mut two);
            assert!(share_memory(&a, &b));
            discard(a);
            discard(b);
            assert_eq!(footprint(), before);
        }
        // Not accepted yet shows there, too.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut one = End::new(&client);
        one.pending(3);
        let server = listener.accept().unwrap().0;
        drop(server);
        assert!(matches!(one.step(), Step::Failed(Refusal::PeerNotListening)));
    });
}

/// Enough sockets for the table to be read in many pieces.
#[test]
fn a_long_table_of_sockets() {
    isolated(|| {
        refuse_netlink();
        let pairs: Vec<_> = (0..100).map(|_| loopback()).collect();
        for (client, server) in pairs.iter().step_by(11) {
            let tuple = End::new(client).tuple;
            for (of, stream) in [(tuple, client), (tuple.reversed(), server)] {
                use std::os::fd::AsRawFd;
                let found = identity::diag(&of).unwrap().expect("in the table");
                assert_eq!(found.inode, sdp_sys::fd::inode(stream.as_raw_fd()).unwrap());
            }
        }
    });
}

#[test]
fn a_listener_is_not_the_other_end() {
    isolated(|| {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let absent = Tuple {
            local: Addr::v4([127, 0, 0, 1], port),
            remote: Addr::v4([127, 77, 77, 77], 7),
            interface: 0,
        };
        assert_eq!(identity::diag(&absent), Ok(None));
        refuse_netlink();
        assert_eq!(identity::diag(&absent), Ok(None));
    });
}

#[test]
fn without_proc() {
    if !is_root() {
        eprintln!("skipped: needs root to cover /proc");
        return;
    }
    isolated(|| {
        let (client, server) = loopback();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        // As a process that leaves a root with /proc.
        let is_filtered = sdp_sys::filter::is_there();
        // SAFETY: the strings are C strings.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0);
            let (none, root) = (c"none".as_ptr(), c"/".as_ptr());
            let private = libc::MS_REC | libc::MS_PRIVATE;
            assert_eq!(libc::mount(none, root, none, private, std::ptr::null()), 0);
            let (tmpfs, proc) = (c"tmpfs".as_ptr(), c"/proc".as_ptr());
            assert_eq!(libc::mount(tmpfs, proc, tmpfs, 0, std::ptr::null()), 0);
        }
        let results = attempt(&mut one, &mut two);
        let handled = if is_filtered { Err(Refusal::NoProc) } else { Ok(()) };
        assert_eq!(
            results[1],
            Some(handled),
            "a handle needs no /proc, but a free choice of calls"
        );
        refuse_netlink();
        let results = attempt(&mut one, &mut two);
        assert_eq!(results, [Some(Err(Refusal::NoProc)); 2], "no socket can be found");
    });
}

#[test]
fn a_carrier_of_another_network_namespace() {
    if !is_root() {
        eprintln!("skipped: needs root to leave the network namespace");
        return;
    }
    isolated(|| {
        let (client, server) = loopback();
        let (mut one, mut two) = (End::new(&client), End::new(&server));
        one.pending(1);
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        assert!(matches!(two.step(), Step::Failed(Refusal::RemotePeer)));
    });
}

#[test]
fn users_that_are_not_mapped() {
    if !is_root() {
        eprintln!("skipped: needs root to change users");
        return;
    }
    isolated(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Uid 1001 holds the server's end; from the namespace below it could be any user.
        let (mut offered, mut say_offered) = std::io::pipe().unwrap();
        let server = spawn(|| {
            // SAFETY: no pointers. The socket shall belong to the user.
            assert_eq!(unsafe { libc::seteuid(1001) }, 0);
            let stream = listener.accept().unwrap().0;
            let mut end = End::new(&stream);
            end.pending(2);
            assert!(end.rendezvous.is_offering(), "seen from here all users have names");
            say_offered.write_all(b"x").unwrap();
            let attachment = end.finish().unwrap();
            assert_eq!(attachment.peer.party, Party::of_user(1000));
            discard(attachment);
        });
        let client = spawn(|| {
            become_user(1000);
            // SAFETY: no pointers.
            unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
                assert_eq!(libc::unshare(libc::CLONE_NEWUSER), 0);
            }
            std::fs::write("/proc/self/setgroups", "deny").unwrap();
            std::fs::write("/proc/self/uid_map", "0 1000 1").unwrap();
            let stream = TcpStream::connect(address).unwrap();
            let mut end = End::new(&stream);
            offered.read_exact(&mut [0]).unwrap();
            let attachment = end.finish().unwrap();
            // By itself: its user could be any.
            assert!(!attachment.peer.trusted && attachment.peer.uid == 65534);
            let party = attachment.peer.party;
            assert!(party != Party::of_user(65534) && party.to_word() >> 63 == 1);
            discard(attachment);
        });
        assert_eq!(wait(client), 0);
        assert_eq!(wait(server), 0);
    });
}

#[test]
fn a_hidden_pid_is_zero() {
    if !is_root() {
        eprintln!("skipped: needs root for a pid namespace");
        return;
    }
    isolated(|| {
        let (client, server) = loopback();
        let mut outside = End::new(&client);
        // SAFETY: no pointers; children from here on live in the new namespace.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
        let child = spawn(|| {
            // The old /proc does not show processes of the new namespace: a /proc of its own.
            // SAFETY: the strings are C strings.
            unsafe {
                assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0);
                let (none, root, proc) = (c"none".as_ptr(), c"/".as_ptr(), c"proc".as_ptr());
                let private = libc::MS_REC | libc::MS_PRIVATE;
                assert_eq!(libc::mount(none, root, none, private, std::ptr::null()), 0);
                let at = c"/proc".as_ptr();
                assert_eq!(libc::mount(proc, at, proc, 0, std::ptr::null()), 0);
            }
            let attachment = End::new(&server).finish().unwrap();
            assert_eq!(attachment.peer.pid, 0, "we cannot see the other process");
            // SAFETY: the mapping is alive.
            unsafe { attachment.segment.base().write_volatile(1) };
        });
        let attachment = outside.finish().unwrap();
        assert_eq!(attachment.peer.pid, child.pid);
        assert_eq!(wait(child), 0);
        // SAFETY: the mapping is alive.
        assert_eq!(unsafe { attachment.segment.base().read_volatile() }, 1);
    });
}
