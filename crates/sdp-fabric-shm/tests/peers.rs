//! The table of peer processes: one eventfd and one page each, however many connections.

mod common;

use common::*;
use sdp_fabric_shm::{
    peer::{MAX_PEERS, Numbers, PeerTable},
    refusal::Refusal,
    rendezvous::PeerInfo,
    segment,
};
use sdp_sys::{OwnedFd, fd};

static TABLE: PeerTable = PeerTable::new();

fn duplicate(of: &OwnedFd) -> OwnedFd {
    // SAFETY: no pointers.
    OwnedFd::new(unsafe { libc::fcntl(of.raw(), libc::F_DUPFD_CLOEXEC, HIDDEN_MIN) })
}

/// The information that a rendezvous with process `pid` brings.
fn info(pid: i32, nonce: u64, doorbells: Option<&Doorbells>) -> PeerInfo {
    PeerInfo {
        party: sdp_fabric_shm::party::Party::of_user(0),
        life: None,
        process: None,
        pid,
        uid: 1000,
        trusted: true,
        nonce,
        slot: 0,
        doorbell: doorbells.map(|doorbells| duplicate(&doorbells.doorbell)),
        doorbell_page: doorbells.map(|doorbells| duplicate(&doorbells.page)),
    }
}

/// The value of the eventfd, which is reset by the read.
fn rung(doorbells: &Doorbells) -> u64 {
    let mut count = 0u64;
    // SAFETY: count is valid for writing eight bytes.
    match unsafe { libc::read(doorbells.doorbell.raw(), (&raw mut count).cast(), 8) } {
        8 => count,
        _ => 0,
    }
}

#[test]
fn a_thousand_connections_hold_one_eventfd() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let before = footprint();
        let first = TABLE.attach(info(7, 1, Some(&doorbells))).unwrap();
        assert!(TABLE.doorbell(first).unwrap() >= HIDDEN_MIN, "not moved down");
        let with_one = footprint();
        for _ in 1..1000 {
            assert_eq!(TABLE.attach(info(7, 1, Some(&doorbells))).unwrap(), first);
        }
        assert!(TABLE.retain(first));
        assert_eq!(footprint(), with_one);
        assert_eq!(TABLE.users(first), 1001);
        assert!(TABLE.ring(first) && TABLE.ring(first));
        assert_eq!(rung(&doorbells), 2);
        let page = TABLE.doorbell_page(first).unwrap();
        // SAFETY: the page is mapped while it has users.
        unsafe { page.add(segment::DOORBELL_PAGE_BYTES - 1).write_volatile(1) };
        for left in (0..1001).rev() {
            // SAFETY: the page is not used after the last one.
            unsafe { TABLE.release(first) };
            assert_eq!(TABLE.users(first), left);
        }
        assert_eq!(footprint(), before);
        // The id is out of date for ever, also when its place has a new user.
        let next = TABLE.attach(info(7, 1, Some(&doorbells))).unwrap();
        assert_ne!(next, first);
        assert!(!TABLE.retain(first) && !TABLE.ring(first) && TABLE.doorbell_page(first).is_none());
        // SAFETY: nothing is released.
        unsafe { TABLE.release(first) };
        assert_eq!(TABLE.users(next), 1);
    });
}

#[test]
fn after_a_change_of_user_nobody_is_known() {
    isolated(|| {
        let [one, two] = [(); 2].map(|()| Doorbells::new());
        let before = TABLE.attach(info(7, 1, Some(&one))).unwrap();
        TABLE.forget_names();
        let after = TABLE.attach(info(7, 1, Some(&two))).unwrap();
        assert!(TABLE.ring(after));
        assert_eq!((rung(&one), rung(&two)), (0, 1));
        assert_eq!(TABLE.attach(info(7, 1, Some(&two))).unwrap(), after);
        // The process that has it still has it.
        assert!(TABLE.ring(before));
        assert_eq!((rung(&one), rung(&two)), (1, 0));
    });
}

#[test]
fn pid_user_and_nonce_make_a_process() {
    isolated(|| {
        let [one, two, three, four] = [(); 4].map(|()| Doorbells::new());
        let a = TABLE.attach(info(7, 1, Some(&one))).unwrap();
        // The nonce is only a claim: under another pid it is another process.
        let b = TABLE.attach(info(8, 1, Some(&two))).unwrap();
        // The same pid after exec.
        let c = TABLE.attach(info(7, 2, Some(&three))).unwrap();
        // Hidden pids are all 0.
        let d = TABLE.attach(PeerInfo { uid: 1001, ..info(7, 1, Some(&four)) }).unwrap();
        for (id, doorbells) in [(a, &one), (b, &two), (c, &three), (d, &four)] {
            assert_eq!(TABLE.users(id), 1);
            assert!(TABLE.ring(id));
            assert_eq!(rung(doorbells), 1);
        }
        let pages = [a, b, c, d].map(|id| TABLE.doorbell_page(id).unwrap());
        assert!((1..4).all(|i| !pages[..i].contains(&pages[i])));
    });
}

#[test]
fn without_bell_and_when_it_comes_later() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let id = TABLE.attach(info(7, 1, None)).unwrap();
        assert!(
            !TABLE.ring(id) && TABLE.doorbell(id).is_none() && TABLE.doorbell_page(id).is_none()
        );
        assert_eq!(TABLE.attach(info(7, 1, Some(&doorbells))).unwrap(), id);
        assert!(TABLE.ring(id) && TABLE.doorbell_page(id).is_some());
    });
}

#[test]
fn another_anonymous_inode_is_no_bell() {
    isolated(|| {
        let before = footprint();
        // SAFETY: no pointers.
        let epoll = OwnedFd::new(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
        let id = TABLE.attach(PeerInfo { doorbell: Some(epoll), ..info(7, 1, None) }).unwrap();
        assert!(!TABLE.ring(id));
        assert_eq!(footprint(), before, "closed");
    });
}

#[test]
fn a_full_eventfd_counts_as_rung() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let id = TABLE.attach(info(7, 1, Some(&doorbells))).unwrap();
        let full = u64::MAX - 1;
        // SAFETY: full is valid for reading eight bytes.
        let written = unsafe { libc::write(doorbells.doorbell.raw(), (&raw const full).cast(), 8) };
        assert_eq!(written, 8);
        assert!(TABLE.ring(id));
    });
}

#[test]
fn a_bad_page_leaves_nothing() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let before = footprint();
        let mut bad = info(7, 1, Some(&doorbells));
        bad.doorbell_page = Some(duplicate(&doorbells.doorbell));
        assert_eq!(TABLE.attach(bad), Err(Refusal::Untrusted));
        assert_eq!(footprint(), before);
        let id = TABLE.attach(info(7, 1, Some(&doorbells))).unwrap();
        assert_eq!(TABLE.users(id), 1);
    });
}

#[test]
fn the_program_s_file_at_our_number_is_not_rung() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let id = TABLE.attach(info(7, 1, Some(&doorbells))).unwrap();
        let number = TABLE.doorbell(id).unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        use std::{io::Read, os::fd::AsRawFd};
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), number) }, number);
        drop(writer);
        assert!(!TABLE.ring(id));
        assert!(TABLE.doorbell(id).is_none());
        // SAFETY: the page is not used any more.
        unsafe { TABLE.release(id) };
        assert!(descriptors().contains(&number), "not ours to close");
        fd::close(number);
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0, "nothing was written to it");
    });
}

#[test]
fn a_number_is_left_to_the_program() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let id = TABLE.attach(info(7, 1, Some(&doorbells))).unwrap();
        let before = TABLE.doorbell(id).unwrap();
        TABLE.move_off(before - 1);
        assert_eq!(TABLE.doorbell(id), Some(before));
        TABLE.move_off(before);
        assert!(TABLE.doorbell(id).unwrap() > before && !TABLE.has_number(before));
        assert!(descriptors().contains(&before), "the program's dup2 closes it");
        fd::close(before);
        let mut numbers = vec![];
        TABLE.for_each_descriptor(|fd| numbers.push(fd));
        assert_eq!(numbers, [TABLE.doorbell(id).unwrap()]);
        assert!(TABLE.ring(id));
        assert_eq!(rung(&doorbells), 1);
    });
}

static HIDDEN: std::sync::Mutex<Vec<i32>> = std::sync::Mutex::new(Vec::new());

fn hide(fd: i32) -> bool {
    HIDDEN.lock().unwrap().push(fd);
    true
}

fn unhide(fd: i32) -> bool {
    let mut hidden = HIDDEN.lock().unwrap();
    let is_hidden = hidden.contains(&fd);
    hidden.retain(|other| *other != fd);
    is_hidden
}

#[test]
fn the_program_is_kept_off_its_numbers() {
    isolated(|| {
        let hidden = || HIDDEN.lock().unwrap().clone();
        TABLE.keep_numbers(Numbers { hide, unhide });
        let doorbells = Doorbells::new();
        let before = footprint();
        let id = TABLE.attach(info(7, 1, Some(&doorbells))).unwrap();
        let number = TABLE.doorbell(id).unwrap();
        assert_eq!(hidden(), [number]);
        assert_eq!(TABLE.attach(info(7, 1, Some(&doorbells))).unwrap(), id);
        TABLE.move_off(number);
        assert!(unhide(number));
        fd::close(number);
        let moved = TABLE.doorbell(id).unwrap();
        assert_eq!(hidden(), [moved]);
        assert!(TABLE.ring(id) && TABLE.has_number(moved));
        // SAFETY: the page is not used any more.
        unsafe {
            TABLE.release(id);
            TABLE.release(id);
        }
        assert!(hidden().is_empty());
        assert_eq!(footprint(), before);
        // One that the program uses is left alone.
        let id = TABLE.attach(info(7, 1, Some(&doorbells))).unwrap();
        let number = TABLE.doorbell(id).unwrap();
        assert!(unhide(number));
        // SAFETY: the page is not used any more.
        unsafe { TABLE.release(id) };
        assert!(descriptors().contains(&number));
    });
}

#[test]
fn the_table_has_an_end() {
    isolated(|| {
        let ids: Vec<_> = (0..MAX_PEERS as u64)
            .map(|nonce| TABLE.attach(info(7, nonce, None)).unwrap())
            .collect();
        assert_eq!(TABLE.attach(info(8, 0, None)), Err(Refusal::NoMemory));
        assert_eq!(TABLE.attach(info(7, 5, None)).unwrap(), ids[5], "known ones still count");
        // SAFETY: there is no page.
        unsafe { TABLE.release(ids[77]) };
        assert!(TABLE.attach(info(8, 0, None)).is_ok());
    });
}

#[test]
fn threads_and_fork() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let before = footprint();
        let child = std::thread::scope(|scope| {
            for thread in 0..4 {
                let doorbells = &doorbells;
                scope.spawn(move || {
                    for round in 0..500 {
                        let id =
                            TABLE.attach(info(7, (thread + round) % 3, Some(doorbells))).unwrap();
                        assert!(TABLE.ring(id));
                        // SAFETY: the page is not used.
                        unsafe { TABLE.release(id) };
                    }
                });
            }
            // Held over fork, the table is whole and free on both sides.
            let guard = TABLE.lock();
            spawn(move || {
                drop(guard);
                for nonce in 0..3 {
                    let id = TABLE.attach(info(7, nonce, None)).unwrap();
                    assert!(TABLE.users(id) >= 1);
                }
            })
        });
        assert_eq!(wait(child), 0);
        assert_eq!(footprint(), before);
        assert!(rung(&doorbells) == 2000);
    });
}
