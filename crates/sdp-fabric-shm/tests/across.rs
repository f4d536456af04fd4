//! Ends that meet at a name in a directory: which processes are let in, and what is left behind.

mod common;

use std::{
    ffi::OsStr,
    fs,
    io::Write,
    net::{Ipv4Addr, TcpStream},
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::PermissionsExt, net::UnixListener},
    },
    path::PathBuf,
};

use common::*;
use sdp_fabric_shm::{
    across::{self, Across, Numbers, Path},
    party::Party,
    refusal::Refusal,
    rendezvous::Step,
};
use sdp_sys::unix;

const NUMBERS: Numbers = Numbers { connector: 0x1122_3344, acceptor: Some(7) };

/// A directory of its own for one test, which is the process's place.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("sdp-across-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1733)).unwrap();
        across::set_directory(path.as_os_str().as_encoded_bytes());
        Self(path)
    }

    fn names(&self) -> usize {
        fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ends() -> (TcpStream, TcpStream) {
    tcp_pair(Ipv4Addr::LOCALHOST.into())
}

/// The end that connected, or the other one, with what it knows.
fn end(stream: &TcpStream, is_connector: bool, numbers: Numbers, least: u32) -> End {
    let mut end = End::new(stream);
    end.across = Some(Across { numbers, least, is_connector });
    end
}

#[test]
fn ends_meet_and_the_name_goes() {
    isolated(|| {
        let directory = Directory::new();
        assert!(across::is_usable());
        let (client, server) = ends();
        let one_number = Numbers { acceptor: None, ..NUMBERS };
        for (knows, least) in [(NUMBERS, 2), (one_number, 1)] {
            for first in [true, false] {
                let mut one = end(&client, first, NUMBERS, least);
                let mut two = end(&server, !first, knows, least);
                one.pending(2);
                assert_eq!(directory.names(), 1);
                let (a, b) = meet(&mut one, &mut two);
                assert!(share_memory(&a, &b));
                assert_eq!([a.side, b.side], [u8::from(!first), u8::from(first)]);
                // The same user, and a stranger nevertheless.
                assert!(!a.peer.trusted && !b.peer.trusted && a.peer.life.is_some());
                assert_ne!(a.peer.party, Party::of_user(a.peer.uid));
                discard(a);
                discard(b);
                assert_eq!(directory.names(), 0);
            }
        }
    });
}

#[test]
fn each_takes_its_own_name_away() {
    isolated(|| {
        let directory = Directory::new();
        let (client, server) = ends();
        let path = Path::of_meeting(NUMBERS.connector);
        let path = std::path::Path::new(OsStr::from_bytes(path.as_bytes()));
        // One that was left behind.
        drop(UnixListener::bind(path).unwrap());
        let mut one = end(&client, true, NUMBERS, 2);
        one.pending(2);
        assert_eq!(directory.names(), 1);
        let mut two = end(&server, false, NUMBERS, 2);
        let (a, b) = meet(&mut one, &mut two);
        discard(a);
        discard(b);
        assert_eq!(directory.names(), 0);
        // Another process took the name for one of those.
        one.pending(1);
        fs::remove_file(path).unwrap();
        let other = UnixListener::bind(path).unwrap();
        one.rendezvous.abandon();
        assert_eq!(directory.names(), 1, "the other one's");
        drop(other);
        fs::remove_file(path).unwrap();
        // The directory is another one by now.
        one.pending(1);
        across::set_directory(b"/nonexistent");
        one.rendezvous.abandon();
        assert_eq!(directory.names(), 0);
    });
}

/// A process at the name sends a socket whose close would wait for an hour.
#[test]
fn sockets_of_strangers_do_not_linger() {
    isolated(|| {
        let directory = Directory::new();
        let (client, _server) = ends();
        let mut one = end(&client, true, NUMBERS, 2);
        one.pending(1);
        let path = Path::of_meeting(NUMBERS.connector);
        let stranger = unix::socket().unwrap();
        unix::connect_path(stranger.raw(), path.as_bytes()).unwrap();
        let (mut lingers, _unread) = ends();
        lingers.set_nonblocking(true).unwrap();
        while lingers.write(&[0; 1 << 16]).is_ok() {}
        let linger = libc::linger { l_onoff: 1, l_linger: 3600 };
        sdp_sys::kernel::setsockopt(
            lingers.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            &linger,
        )
        .unwrap();
        unix::send(stranger.raw(), &[0; 200], &[lingers.as_raw_fd()]).unwrap();
        drop(lingers);
        one.pending(1);
        assert_eq!(directory.names(), 1);
    });
}

#[test]
fn who_knows_another_number_is_turned_away() {
    isolated(|| {
        let directory = Directory::new();
        let (client, server) = ends();
        let mut honest = end(&client, true, NUMBERS, 2);
        honest.pending(1);
        let wrong = Numbers { acceptor: Some(8), ..NUMBERS };
        let mut refused = 0;
        let outcome = loop {
            let mut squatter = end(&server, false, wrong, 2);
            squatter.pending(1);
            let step = honest.step();
            squatter.pending(1);
            refused += 1;
            if !matches!(step, Step::Pending) {
                break step;
            }
            assert!(refused < 100);
        };
        assert!(matches!(outcome, Step::Failed(Refusal::Untrusted)) && refused > 10, "{refused}");
        assert_eq!(directory.names(), 0);
        // And the process that sits at the name: it answers, and is not believed.
        let mut squatter = end(&server, false, wrong, 2);
        squatter.pending(1);
        honest.pending(1);
        squatter.pending(1);
        honest.pending(1);
        assert!(!honest.rendezvous.is_joining(), "turned away");
    });
}

#[test]
fn who_knows_less_comes_again() {
    isolated(|| {
        let directory = Directory::new();
        let (client, server) = ends();
        let mut connector = end(&client, true, NUMBERS, 2);
        let mut acceptor = end(&server, false, Numbers { acceptor: None, ..NUMBERS }, 1);
        connector.pending(1);
        for _ in 0..4 {
            acceptor.pending(1);
            connector.pending(1);
        }
        // It has sent something, whose packet showed its own number.
        acceptor.across = Some(Across { numbers: NUMBERS, least: 2, is_connector: false });
        let (a, b) = meet(&mut connector, &mut acceptor);
        assert!(share_memory(&a, &b));
        discard(a);
        discard(b);
        let mut ignorant = end(&server, false, Numbers { acceptor: None, ..NUMBERS }, 2);
        ignorant.pending(3);
        assert!(ignorant.rendezvous.is_idle() && directory.names() == 0, "knows too little");
    });
}

#[test]
fn names_of_the_dead_are_taken_over() {
    isolated(|| {
        let directory = Directory::new();
        let (client, server) = ends();
        let path = Path::of_meeting(NUMBERS.connector);
        let dead = unix::socket().unwrap();
        unix::publish(dead.raw(), Path::fresh().as_c_str(), path.as_c_str(), 1).unwrap();
        drop(dead);
        assert_eq!(directory.names(), 1);
        let (mut one, mut two) = (end(&client, true, NUMBERS, 2), end(&server, false, NUMBERS, 2));
        let (a, b) = meet(&mut one, &mut two);
        discard(a);
        discard(b);
        assert_eq!(directory.names(), 0);
    });
}

#[test]
fn who_gives_up_takes_its_name_away_and_a_child_does_not() {
    isolated(|| {
        let directory = Directory::new();
        let (client, server) = ends();
        let mut one = end(&client, true, NUMBERS, 2);
        one.pending(1);
        let child = spawn(|| {
            one.rendezvous.abandon_in_child();
            assert_eq!(directory.names(), 1);
        });
        assert_eq!(wait(child), 0);
        assert!(one.rendezvous.is_offering());
        one.rendezvous.abandon();
        assert_eq!(directory.names(), 0);
        // An end that has asked when the other one gives up begins anew.
        let mut two = end(&server, false, NUMBERS, 2);
        one.pending(1);
        two.pending(1);
        assert!(two.rendezvous.is_joining());
        one.rendezvous.abandon();
        let (a, b) = meet(&mut one, &mut two);
        assert!(share_memory(&a, &b));
        discard(a);
        discard(b);
    });
}

#[test]
fn a_directory_that_others_may_empty_is_none() {
    isolated(|| {
        let directory = Directory::new();
        let set = |mode| {
            fs::set_permissions(&directory.0, fs::Permissions::from_mode(mode)).unwrap();
            across::is_usable()
        };
        assert!(set(0o1733) && set(0o1777) && set(0o700) && set(0o755));
        assert!(!set(0o777) && !set(0o733) && !set(0o770));
        let (client, _server) = ends();
        let mut one = end(&client, true, NUMBERS, 2);
        fs::remove_dir_all(&directory.0).unwrap();
        assert!(!across::is_usable());
        assert!(matches!(one.step(), Step::Failed(Refusal::NoMeetingPlace)));
        across::set_directory(b"");
        assert!(!across::is_usable());
    });
}
