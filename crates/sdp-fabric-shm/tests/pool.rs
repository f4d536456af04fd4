//! Segments that two processes use again, and the offer slot on which they meet.
//!
//! Both ends are pools of one process here, with a mapping each of the same file; only tests that
//! ask the kernel about another process have one.

mod common;

use std::{
    mem::offset_of,
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use common::*;
use sdp_fabric_shm::{
    diag_client::{Carrier, DiagClient, HiddenFdHooks},
    identity::{self, Addr, Examined, PeerSocket, Tuple},
    name::Name,
    peer::{PeerId, PeerTable},
    pool::{Answer, IDLE_PER_PEER, KeptSegment, OFFER_OFFSET, Offer, POOL_MAX, Pool},
    refusal::Refusal,
    rendezvous::PeerInfo,
    segment::{HEADER_BYTES, MappedSegment},
};
use sdp_shm::layout::{Control, EndLine, PASSED_ON};
use sdp_sys::{OwnedFd, stat};

struct Side {
    pool: Pool,
    peers: PeerTable,
}

impl Side {
    fn peer(&self, nonce: u64, doorbells: &Doorbells) -> PeerId {
        let duplicate = |of: &OwnedFd| {
            // SAFETY: no pointers.
            OwnedFd::new(unsafe { libc::fcntl(of.raw(), libc::F_DUPFD_CLOEXEC, HIDDEN_MIN) })
        };
        let info = PeerInfo {
            party: sdp_fabric_shm::party::Party::of_user(0),
            life: None,
            pid: 7,
            uid: 1000,
            trusted: true,
            nonce,
            slot: 0,
            doorbell: Some(duplicate(&doorbells.doorbell)),
            doorbell_page: Some(duplicate(&doorbells.page)),
            process: None,
        };
        self.peers.attach(info).unwrap()
    }

    /// A connection's end with a segment that is not kept does this.
    fn throw(&self, kept: KeptSegment) {
        // SAFETY: nothing uses mapping or page.
        unsafe {
            libc::munmap(kept.base.as_ptr().cast(), HEADER_BYTES + 2 * kept.ring_bytes as usize);
            self.peers.release(kept.peer);
        }
    }
}

static CLIENT: Side = Side { pool: Pool::new(), peers: PeerTable::new() };
static SERVER: Side = Side { pool: Pool::new(), peers: PeerTable::new() };
/// Connections that have the segments: client's, server's.
const OWNERS: (u32, u32) = (5, 9);

fn tuple(port: u16) -> Tuple {
    let at = |port| Addr::v4([127, 0, 0, 1], port);
    Tuple { local: at(port), remote: at(80), interface: 0 }
}

/// A connection that has met by name: the leases and segments of both ends.
fn first(nonce: u64, doorbells: &Doorbells) -> ((u32, KeptSegment), (u32, KeptSegment)) {
    let (one, file) = MappedSegment::create(RING).unwrap();
    let two = MappedSegment::from_peer(file.raw(), RING).unwrap();
    let keep = |side: &Side, map: &MappedSegment, number, owner, remote| {
        let kept = KeptSegment {
            base: map.base(),
            ring_bytes: RING,
            peer: side.peer(nonce, doorbells),
            pid: 7,
            side: number,
            terms: 4096,
            remote,
            owner,
        };
        (side.pool.keep(&side.peers, kept).unwrap(), kept)
    };
    let client = keep(&CLIENT, &one, 1, OWNERS.0, Some(tuple(1).remote));
    (client, keep(&SERVER, &two, 0, OWNERS.1, None))
}

fn end(side: &Side, lease: u32, owner: u32) -> bool {
    side.pool.ended(&side.peers, lease, owner, true)
}

/// Both ends keep the segment for another connection.
fn end_both(client: u32, server: u32) {
    assert!(end(&CLIENT, client, OWNERS.0) && end(&SERVER, server, OWNERS.1));
}

/// As [`first`], and the connection is over.
fn both_idle(doorbells: &Doorbells) -> ((u32, KeptSegment), (u32, KeptSegment)) {
    let both = first(1, doorbells);
    end_both(both.0.0, both.1.0);
    both
}

fn may_be_offered(side: &Side) -> bool {
    side.pool.may_be_offered(&side.peers)
}

fn word(kept: &KeptSegment, at: usize) -> &AtomicU32 {
    // SAFETY: within the control page of a mapping that lasts as long as the test looks.
    unsafe { kept.base.add(at).cast::<AtomicU32>().as_ref() }
}

/// Whether the client of the connection `ours` has said that it will not use the segment: by its end line, which is where
/// the server looks, whichever place on the offer slot it has.
fn is_disowned(kept: &KeptSegment, ours: &Tuple) -> bool {
    let side = usize::from(ours.side().unwrap());
    let line = offset_of!(Control, ends) + side * size_of::<EndLine>();
    word(kept, line + offset_of!(EndLine, intent)).load(Ordering::SeqCst) == PASSED_ON
}

#[test]
fn a_segment_is_used_again_and_again() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let before = footprint();
        let ((mut client, kept), (mut server, _)) = first(1, &doorbells);
        let with_one = footprint();
        for life in 0..100u16 {
            let (ours, theirs) = (tuple(1000 + life), tuple(1000 + life).reversed());
            word(&kept, 128).store(1, Ordering::Relaxed);
            assert!(end(&CLIENT, client, OWNERS.0));
            let offered = || CLIENT.pool.offer(&CLIENT.peers, &ours, OWNERS.0, 3, 33);
            assert_eq!(offered(), None, "the other end still has it");
            assert!(end(&SERVER, server, OWNERS.1));
            assert!(may_be_offered(&SERVER) && !may_be_offered(&CLIENT));
            let elsewhere = Tuple { remote: Addr::v4([127, 0, 0, 1], 81), ..ours };
            let miss = CLIENT.pool.offer(&CLIENT.peers, &elsewhere, OWNERS.0, 3, 33);
            assert_eq!(miss, None, "another server's address");
            client = offered().unwrap();
            assert!(matches!(CLIENT.pool.answer(client, OWNERS.0), Answer::Waiting));
            assert!(matches!(CLIENT.pool.answer(client, 1234), Answer::Lost), "not its");
            assert!(SERVER.pool.look(&tuple(999).reversed()).is_none(), "another connection's");
            assert!(CLIENT.pool.look(&ours).is_none(), "one's own");
            let offer = SERVER.pool.look(&theirs).unwrap();
            assert_eq!((offer.descriptor, offer.slot), (3, 33));
            assert_eq!(offer.kept.terms, 4096);
            let take = || SERVER.pool.take(&theirs, &offer, OWNERS.1, 4, 44);
            assert!(take() && !take(), "once");
            server = offer.lease();
            assert_eq!(word(&kept, 128).load(Ordering::Relaxed), 0, "wiped");
            let Answer::Taken(offer) = CLIENT.pool.answer(client, OWNERS.0) else {
                panic!("taken")
            };
            assert_eq!((offer.descriptor, offer.slot), (4, 44));
            assert!(!CLIENT.pool.withdraw(&CLIENT.peers, client, OWNERS.0, false), "too late");
            assert!(CLIENT.pool.confirm(client, OWNERS.0));
            assert_eq!(footprint(), with_one);
        }
        end_both(client, server);
        CLIENT.pool.clear(&CLIENT.peers);
        SERVER.pool.clear(&SERVER.peers);
        assert!(CLIENT.pool.is_empty() && SERVER.pool.is_empty());
        assert_eq!(footprint(), before, "nothing is left");
    });
}

#[test]
fn an_offer_that_is_withdrawn_is_not_taken() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let offered = |port| CLIENT.pool.offer(&CLIENT.peers, &tuple(port), OWNERS.0, 3, 33);
        both_idle(&doorbells);
        let lease = offered(1).unwrap();
        assert_eq!(offered(2), None, "one at a time");
        let offer = SERVER.pool.look(&tuple(1).reversed()).unwrap();
        assert!(CLIENT.pool.withdraw(&CLIENT.peers, lease, OWNERS.0, false));
        assert!(!SERVER.pool.take(&tuple(1).reversed(), &offer, OWNERS.1, 4, 44));
        assert_eq!(offered(2), None, "its segment is given up");
        assert!(!may_be_offered(&SERVER), "at the other end too");
        assert_eq!(mappings("sdp-conn"), 0);
        // Another connection's offer in the same place is not mistaken for it.
        both_idle(&doorbells);
        assert_eq!(offered(2), Some(lease));
        assert!(!SERVER.pool.take(&tuple(1).reversed(), &offer, OWNERS.1, 4, 44));
        let offer = SERVER.pool.look(&tuple(2).reversed()).unwrap();
        // Given up for good while the other end takes it: that end is alone with it, and hears of it.
        assert!(SERVER.pool.take(&tuple(2).reversed(), &offer, OWNERS.1, 4, 44));
        assert!(!is_disowned(&offer.kept, &tuple(2)));
        assert!(CLIENT.pool.withdraw(&CLIENT.peers, lease, OWNERS.0, true));
        assert!(is_disowned(&offer.kept, &tuple(2)));
        assert!(matches!(CLIENT.pool.answer(lease, OWNERS.0), Answer::Lost));
        assert!(!end(&SERVER, offer.lease(), OWNERS.1), "of no use any more");
        SERVER.throw(offer.kept);
        assert_eq!(mappings("sdp-conn"), 0);
    });
}

#[test]
fn what_one_end_gives_up_the_other_does_not_offer() {
    isolated(|| {
        let doorbells = Doorbells::new();
        both_idle(&doorbells);
        let lease = CLIENT.pool.offer(&CLIENT.peers, &tuple(1), OWNERS.0, 3, 33).unwrap();
        let offer = SERVER.pool.look(&tuple(1).reversed()).unwrap();
        SERVER.pool.refuse(&SERVER.peers, &offer);
        assert!(matches!(CLIENT.pool.answer(lease, OWNERS.0), Answer::Lost));
        assert!(CLIENT.pool.withdraw(&CLIENT.peers, lease, OWNERS.0, false));
        assert_eq!(mappings("sdp-conn"), 0);

        let (_, (server, _)) = both_idle(&doorbells);
        CLIENT.pool.distrust({
            let lease = CLIENT.pool.offer(&CLIENT.peers, &tuple(1), OWNERS.0, 3, 33).unwrap();
            let offer = SERVER.pool.look(&tuple(1).reversed()).unwrap();
            assert!(SERVER.pool.take(&tuple(1).reversed(), &offer, OWNERS.1, 4, 44));
            let Answer::Taken(offer) = CLIENT.pool.answer(lease, OWNERS.0) else { panic!() };
            assert!(CLIENT.pool.confirm(lease, OWNERS.0));
            end_both(lease, server);
            offer.kept.peer
        });
        assert_eq!(CLIENT.pool.offer(&CLIENT.peers, &tuple(1), OWNERS.0, 3, 33), None);
    });
}

#[test]
fn forks_spoilt_segments_and_full_pools_keep_nothing() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let before = footprint();
        for (is_cleared, keep) in [(false, false), (true, true)] {
            let ((client, ours), (server, theirs)) = first(1, &doorbells);
            let (pool, peers) = (&CLIENT.pool, &CLIENT.peers);
            assert!(!pool.ended(peers, client, OWNERS.0 + 1, true), "not its");
            if is_cleared {
                pool.clear(peers);
            }
            assert!(!pool.ended(peers, client, OWNERS.0, keep));
            CLIENT.throw(ours);
            assert!(!end(&SERVER, server, OWNERS.1), "told");
            SERVER.throw(theirs);
        }
        assert_eq!(footprint(), before);
        // Of one peer a few are kept, of all together as many as there is room for.
        let of_one: Vec<_> = (0..POOL_MAX).map(|_| first(1, &doorbells)).collect();
        let (_, file) = MappedSegment::create(RING).unwrap();
        let extra = MappedSegment::from_peer(file.raw(), RING).unwrap();
        let kept = KeptSegment { base: extra.base(), ..of_one[0].0.1 };
        assert_eq!(CLIENT.pool.keep(&CLIENT.peers, kept), None, "all in use");
        for ((client, _), (server, _)) in of_one {
            end_both(client, server);
        }
        // Two mappings above are the test's own.
        assert_eq!(mappings("sdp-conn"), 2 + 2 * IDLE_PER_PEER);
        let of_many: Vec<_> = (2..2 + POOL_MAX as u64).map(|n| first(n, &doorbells)).collect();
        for ((client, _), (server, _)) in of_many {
            end_both(client, server);
        }
        assert_eq!(mappings("sdp-conn"), 2 + 2 * POOL_MAX);
        // A child uses nothing of it.
        let child = spawn(|| {
            CLIENT.pool.become_child();
            SERVER.pool.become_child();
            assert_eq!(mappings("sdp-conn"), 2);
            assert!(CLIENT.pool.is_empty());
        });
        assert_eq!(wait(child), 0);
    });
}

#[test]
fn no_offer_outlives_a_fork() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let ours = tuple(1);
        let offered = || {
            let (_, (_, theirs)) = both_idle(&doorbells);
            let lease = CLIENT.pool.offer(&CLIENT.peers, &ours, OWNERS.0, 3, 33).unwrap();
            assert!(!CLIENT.pool.is_empty());
            (lease, theirs, SERVER.pool.look(&ours.reversed()).unwrap())
        };
        let take = |offer: &Offer| SERVER.pool.take(&ours.reversed(), offer, OWNERS.1, 4, 44);
        for is_taken in [false, true] {
            let (lease, theirs, offer) = offered();
            assert_eq!(is_taken, is_taken && take(&offer));
            CLIENT.pool.clear(&CLIENT.peers);
            assert!(CLIENT.pool.is_empty());
            assert!(matches!(CLIENT.pool.answer(lease, OWNERS.0), Answer::Lost));
            assert!(!CLIENT.pool.confirm(lease, OWNERS.0));
            assert!(CLIENT.pool.withdraw(&CLIENT.peers, lease, OWNERS.0, false));
            assert_eq!(is_disowned(&theirs, &ours), is_taken);
            if is_taken {
                assert!(!end(&SERVER, offer.lease(), OWNERS.1), "its end is alone with it");
                SERVER.throw(theirs);
            } else {
                assert!(SERVER.pool.look(&ours.reversed()).is_none() && !take(&offer));
                assert!(!may_be_offered(&SERVER));
            }
            assert_eq!(mappings("sdp-conn"), 0);
        }
        let _ = offered();
        let child = spawn(|| {
            CLIENT.pool.become_child();
            SERVER.pool.become_child();
            assert_eq!(mappings("sdp-conn"), 0);
        });
        assert_eq!(wait(child), 0);
    });
}

#[test]
fn who_leaves_is_not_waited_for() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let ((client, ours), (server, theirs)) = first(1, &doorbells);
        CLIENT.pool.leave();
        assert!(!end(&SERVER, server, OWNERS.1));
        SERVER.throw(theirs);
        assert!(!end(&CLIENT, client, OWNERS.0));
        CLIENT.throw(ours);
        let ((client, _), (server, _)) = first(1, &doorbells);
        assert!(end(&SERVER, server, OWNERS.1));
        assert!(!may_be_offered(&SERVER), "the other end still has it");
        assert!(end(&CLIENT, client, OWNERS.0));
        assert!(may_be_offered(&SERVER));
        CLIENT.pool.leave();
        assert!(!may_be_offered(&SERVER) && SERVER.pool.is_empty());
    });
}

#[test]
fn what_is_gone_pushes_nothing_out() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let all: Vec<_> = (0..=IDLE_PER_PEER).map(|_| first(1, &doorbells)).collect();
        let (last, kept) = all.split_last().unwrap();
        for ((client, _), (server, _)) in kept {
            end_both(*client, *server);
        }
        let ((client, ours), (server, theirs)) = *last;
        assert!(!SERVER.pool.ended(&SERVER.peers, server, OWNERS.1, false));
        SERVER.throw(theirs);
        assert!(!end(&CLIENT, client, OWNERS.0));
        CLIENT.throw(ours);
        assert_eq!(mappings("sdp-conn"), 2 * IDLE_PER_PEER);
    });
}

#[test]
fn garbage_in_the_claim_ends_an_offer() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let ((_, kept), _) = both_idle(&doorbells);
        let lease = CLIENT.pool.offer(&CLIENT.peers, &tuple(1), OWNERS.0, 3, 33).unwrap();
        word(&kept, OFFER_OFFSET).store(77, Ordering::Relaxed);
        assert!(matches!(CLIENT.pool.answer(lease, OWNERS.0), Answer::Waiting));
        assert!(CLIENT.pool.withdraw(&CLIENT.peers, lease, OWNERS.0, false));
        assert!(CLIENT.pool.is_empty());
    });
}

/// An offer slot on which a thread writes that should not, seen through a mapping of its own: the
/// pools unmap theirs when the words say so.
struct Scribbled {
    /// Client's and server's mappings; our own.
    bases: [NonNull<u8>; 2],
    own: KeptSegment,
    /// Connections that have had the segment.
    life: u32,
    random: u64,
}

impl Scribbled {
    // Words of an offer slot by their numbers: the claim, then in each place these and the name.
    const CLAIM: usize = 0;
    const PLACES: [usize; 2] = [32, 64];
    const RELEASED: usize = 0;
    const GONE: usize = 1;
    const NAME: usize = 4;
    const WORDS: usize = 96;

    fn new(doorbells: &Doorbells, random: u64) -> Self {
        let ((_, client), (_, server)) = both_idle(doorbells);
        // SAFETY: an old size of 0 makes a second mapping of shared memory.
        let copy = unsafe {
            libc::mremap(client.base.as_ptr().cast(), 0, HEADER_BYTES, libc::MREMAP_MAYMOVE)
        };
        assert_ne!(copy, libc::MAP_FAILED);
        let own = KeptSegment { base: NonNull::new(copy.cast()).unwrap(), ..client };
        Self { bases: [client.base, server.base], own, life: 0, random }
    }

    fn at(&self, number: usize) -> &AtomicU32 {
        word(&self.own, OFFER_OFFSET + 4 * number)
    }

    fn says(&self, place: usize, what: usize) -> u32 {
        self.at(Self::PLACES[place] + what).load(Ordering::Relaxed)
    }

    fn is_claimed(&self, what: u32) -> bool {
        self.at(Self::CLAIM).load(Ordering::Relaxed) == self.life * 4 + what
    }

    fn name(tuple: &Tuple) -> impl Iterator<Item = u32> {
        let bytes = *Name::new(tuple).as_bytes().last_chunk::<36>().unwrap();
        (0..9).map(move |at| u32::from_ne_bytes(*bytes[4 * at..].first_chunk().unwrap()))
    }

    /// Whether the client offers that connection to the server, by the words of the offer slot
    /// alone.
    fn offers(&self, tuple: &Tuple) -> bool {
        let mut name = Self::name(tuple).enumerate();
        self.is_claimed(2)
            && self.says(1, Self::RELEASED) == self.life + 1
            && self.says(1, Self::GONE) == 0
            && name.all(|(at, wanted)| self.says(1, Self::NAME + at) == wanted)
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32 % bound
    }

    /// One word, or one name: often one that might be true.
    fn scribble(&mut self) {
        let (place, near) = (Self::PLACES[self.below(2) as usize], self.life + self.below(3));
        let (at, what) = match self.below(16) {
            0..4 => return,
            4..8 => {
                for (at, what) in Self::name(&tuple(1 + self.below(2) as u16)).enumerate() {
                    self.at(place + Self::NAME + at).store(what, Ordering::Relaxed);
                }
                return;
            }
            // Lives that were, that is, and that will be.
            8..12 => (Self::CLAIM, near.wrapping_sub(1).wrapping_mul(4) | self.below(4)),
            12 => (place + Self::RELEASED, near),
            13..15 => (place + Self::GONE, self.below(2)),
            _ => (self.below(Self::WORDS as u32) as usize, self.below(u32::MAX) >> self.below(32)),
        };
        self.at(at).store(what, Ordering::Relaxed);
    }
}

impl Drop for Scribbled {
    fn drop(&mut self) {
        // The state that scribbles made of it belongs to no connection any more.
        for side in [&CLIENT, &SERVER] {
            side.pool.clear(&side.peers);
        }
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.own.base.as_ptr().cast(), HEADER_BYTES) };
    }
}

/// The server's part of a turn: what it finds offered, and takes if that is proven.
fn take_a_scribbled_offer(
    slots: &mut Scribbled,
    (ours, was_offered, (offerer, taker)): (&Tuple, bool, (i32, i32)),
    saw: &mut impl FnMut(&'static str),
) -> Option<Offer> {
    slots.scribble();
    let mut server = None;
    let offer = SERVER.pool.look(&ours.reversed());
    assert_eq!(offer.is_some(), slots.offers(ours));
    if let Some(offer) = offer {
        assert_eq!(
            (offer.kept.base, offer.kept.side, offer.kept.remote),
            (slots.bases[1], 0, None)
        );
        if !was_offered || offer.descriptor != offerer as u32 {
            saw("unproven");
            SERVER.pool.refuse(&SERVER.peers, &offer);
        } else {
            slots.scribble();
            let is_there = slots.offers(ours) && slots.says(1, 2) == offer.descriptor;
            assert_eq!(SERVER.pool.take(&ours.reversed(), &offer, OWNERS.1, taker, 44), is_there);
            if !is_there {
                saw("too late");
            }
            server = is_there.then_some(offer);
        }
    }
    server
}

#[test]
fn scribbles_on_a_board_bring_no_connection() {
    const OUTCOMES: [&str; 8] = [
        "nothing to offer",
        "offered",
        "unproven",
        "too late",
        "attached",
        "waiting",
        "lost",
        "taken by nobody",
    ];
    isolated(|| {
        let doorbells = Doorbells::new();
        let before = footprint();
        let mut seen = OUTCOMES.map(|_| 0);
        let mut saw = |what| seen[OUTCOMES.iter().position(|o| *o == what).unwrap()] += 1;
        let mut slots = Scribbled::new(&doorbells, 88172645463325252);
        for turn in 0..20_000 {
            // Now and then even so: records that scribbles made useless may lie there for ever.
            if CLIENT.pool.is_empty() || SERVER.pool.is_empty() || slots.below(8) == 0 {
                let random = slots.random;
                drop(slots);
                slots = Scribbled::new(&doorbells, random);
            }
            slots.scribble();
            let ours = tuple(1 + slots.below(2) as u16);
            // Descriptors that only this turn's connection has: the proof, for which callers ask the kernel.
            let (offerer, taker) = (2 * turn + 1_000_000, 2 * turn + 1_000_001);
            let is_free = slots.says(0, Scribbled::RELEASED) == slots.life + 1
                && slots.says(0, Scribbled::GONE) == 0
                && slots.is_claimed(0);
            let offered = CLIENT.pool.offer(&CLIENT.peers, &ours, OWNERS.0, offerer, 33);
            assert_eq!(offered.is_some(), is_free);
            saw(if is_free { "offered" } else { "nothing to offer" });

            let connection = (&ours, offered.is_some(), (offerer, taker));
            let server = take_a_scribbled_offer(&mut slots, connection, &mut saw);

            slots.scribble();
            let Some(lease) = offered else { continue };
            let is_proven = |offer: &Offer| server.is_some() && offer.descriptor == taker as u32;
            let is_taken = slots.is_claimed(3);
            match CLIENT.pool.answer(lease, OWNERS.0) {
                Answer::Taken(offer) if is_proven(&offer) => {
                    assert!(is_taken);
                    saw("attached");
                    assert_eq!((offer.kept.base, offer.kept.side), (slots.bases[0], 1));
                    assert!(!CLIENT.pool.withdraw(&CLIENT.peers, lease, OWNERS.0, false));
                    assert!(CLIENT.pool.confirm(lease, OWNERS.0));
                    slots.life += 1;
                    // A segment is not kept when its record says that the other end has gone.
                    if !end(&CLIENT, lease, OWNERS.0) {
                        CLIENT.throw(offer.kept);
                    }
                }
                answer => {
                    saw(match answer {
                        Answer::Taken(_) => "taken by nobody",
                        Answer::Waiting => "waiting",
                        Answer::Lost => "lost",
                    });
                    assert_eq!(matches!(answer, Answer::Taken(_)), is_taken);
                    assert!(CLIENT.pool.withdraw(&CLIENT.peers, lease, OWNERS.0, true));
                    assert!(CLIENT.pool.is_empty());
                }
            }
            if let Some(offer) = server
                && !end(&SERVER, offer.lease(), OWNERS.1)
            {
                SERVER.throw(offer.kept);
            }
        }
        drop(slots);
        assert_eq!(footprint(), before, "nothing is left");
        // Hundreds of each: a round is not over with its first step.
        assert!(seen.iter().all(|count| *count > 100), "{OUTCOMES:?}: {seen:?}");
    });
}

#[test]
fn the_socket_that_stays_open_answers_as_a_fresh_one_does() {
    static DIAG_CLIENT: DiagClient =
        DiagClient::new(HiddenFdHooks { kept: |_| true, gone: |_| {} });
    isolated(|| {
        let before = footprint();
        let ask = |owner, stream: &TcpStream| {
            let (fd, tuple) = (stream.as_raw_fd(), &Tuple::of(stream.as_raw_fd()).unwrap());
            let fresh = match identity::examine(fd, tuple) {
                Ok(Examined::Open { peer, .. }) => Some(peer),
                _ => None,
            };
            for may_be_elsewhere in [true, false] {
                let carrier = Carrier { fd, tuple, may_be_elsewhere };
                assert_eq!(DIAG_CLIENT.find(owner, || HIDDEN_MIN, &carrier), fresh);
            }
            fresh
        };
        for (client, server) in [loopback(), mapped_pair(), tcp_pair("::1".parse().unwrap())] {
            let of_server = stat::stat(server.as_raw_fd()).unwrap().id.ino;
            assert_eq!(ask(1, &client).unwrap().inode, of_server);
            assert!(ask(1, &server).is_some());
            drop(server);
            assert_eq!(ask(1, &client), None);
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let waiting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(ask(1, &waiting), None);
        drop((listener, waiting));
        // One at a time, out of the way; the program may take its number, and keeps its file there.
        let (client, _server) = loopback();
        assert!(ask(1, &client).is_some() && ask(2, &client).is_some());
        let hidden: Vec<_> = descriptors().into_iter().filter(|fd| *fd >= HIDDEN_MIN).collect();
        assert_eq!(hidden.len(), 1);
        // SAFETY: no pointers.
        assert!(unsafe { libc::dup2(0, hidden[0]) } >= 0);
        let tuple = &Tuple::of(client.as_raw_fd()).unwrap();
        let carrier = Carrier { fd: client.as_raw_fd(), tuple, may_be_elsewhere: false };
        assert_eq!(
            DIAG_CLIENT.find(2, || HIDDEN_MIN, &carrier),
            None,
            "its socket is not there any more"
        );
        assert!(ask(2, &client).is_some() && ask(3, &client).is_some());
        DIAG_CLIENT.close();
        let same = |fd| stat::stat(fd).unwrap().id;
        assert_eq!(same(hidden[0]), same(0));
        // SAFETY: no pointers.
        unsafe { libc::close(hidden[0]) };
        drop((client, _server));
        assert_eq!(footprint(), before);
    });
}

/// Both ends of a connection between two given ports of the network namespace that the thread is in.
fn pair_at(ports: [u16; 2]) -> [OwnedFd; 2] {
    let address = |port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    let (at, len) = (ports.map(address), size_of::<libc::sockaddr_in>() as u32);
    // SAFETY: the addresses outlive the calls and have the length given.
    unsafe {
        let ends =
            [(); 2].map(|()| OwnedFd::new(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)));
        for (end, at) in ends.iter().zip(&at) {
            assert_eq!(libc::bind(end.raw(), (&raw const *at).cast(), len), 0);
        }
        let [client, listener] = ends;
        assert_eq!(libc::listen(listener.raw(), 1), 0);
        assert_eq!(libc::connect(client.raw(), (&raw const at[1]).cast(), len), 0);
        let null = std::ptr::null_mut::<libc::sockaddr>();
        let server = OwnedFd::new(libc::accept(listener.raw(), null, std::ptr::null_mut()));
        [client, server]
    }
}

#[test]
fn a_connection_of_the_same_name_elsewhere_is_none_of_ours() {
    static DIAG_CLIENT: DiagClient =
        DiagClient::new(HiddenFdHooks { kept: |_| true, gone: |_| {} });
    if !is_root() {
        eprintln!("skipped: needs root to leave the network namespace");
        return;
    }
    isolated(|| {
        let enter = || {
            let name = c"lo";
            // SAFETY: the request is plain data and outlives the calls.
            unsafe {
                assert_eq!(libc::unshare(libc::CLONE_NEWNET), 0);
                let mut request: libc::ifreq = std::mem::zeroed();
                for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
                    *to = *from as libc::c_char;
                }
                request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
                let socket = OwnedFd::new(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0));
                assert_eq!(libc::ioctl(socket.raw(), libc::SIOCSIFFLAGS, &raw const request), 0);
            }
        };
        let ports = [2001, 2002];
        enter();
        let [ours, _server] = pair_at(ports);
        enter();
        let [theirs, _other] = pair_at(ports);
        let tuple = &Tuple::of(ours.raw()).unwrap();
        assert_eq!(*tuple, Tuple::of(theirs.raw()).unwrap());
        let find = |fd, may_be_elsewhere| {
            DIAG_CLIENT.find(1, || HIDDEN_MIN, &Carrier { fd, tuple, may_be_elsewhere })
        };
        assert!(find(theirs.raw(), true).is_some(), "where we look");
        assert_eq!(find(ours.raw(), true), None);
        assert!(find(ours.raw(), false).is_some(), "so it has to be asked");
        assert_eq!(identity::examine(ours.raw(), tuple), Err(Refusal::RemotePeer));
    });
}

/// A process that does nothing until it is killed, and CLIENT's record of it as a peer.
fn other_process(doorbells: &Doorbells, nonce: u64) -> (Child, PeerId) {
    // SAFETY: no arguments.
    let child = spawn(|| while unsafe { libc::pause() } != 0 {});
    // SAFETY: no pointers.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.pid, 0) };
    // SAFETY: no pointers.
    let doorbell =
        unsafe { libc::fcntl(doorbells.doorbell.raw(), libc::F_DUPFD_CLOEXEC, HIDDEN_MIN) };
    let info = PeerInfo {
        party: sdp_fabric_shm::party::Party::of_user(0),
        life: None,
        pid: child.pid,
        uid: 1000,
        trusted: true,
        nonce,
        slot: 0,
        doorbell: Some(OwnedFd::new(doorbell)),
        doorbell_page: None,
        process: Some(OwnedFd::new(pidfd as i32)),
    };
    (child, CLIENT.peers.attach(info).unwrap())
}

fn kill(child: &Child) {
    // SAFETY: our own child, not waited for yet; the null pointer wants no answer.
    unsafe {
        assert_eq!(libc::kill(child.pid, libc::SIGKILL), 0);
        let (id, how) = (child.pid as u32, libc::WEXITED | libc::WNOWAIT);
        assert_eq!(libc::waitid(libc::P_PID, id, std::ptr::null_mut(), how), 0);
    }
}

#[test]
fn what_is_shared_with_the_dead_is_given_up() {
    isolated(|| {
        let doorbells = Doorbells::new();
        let before = footprint();
        let (pool, peers) = (&CLIENT.pool, &CLIENT.peers);
        let keep = |peer| {
            let (segment, _) = MappedSegment::create(RING).unwrap();
            let base = segment.base();
            let (pid, side, terms) = (7, 1, 4096);
            let remote = Some(tuple(1).remote);
            let owner = OWNERS.0;
            let kept =
                KeptSegment { base, ring_bytes: RING, peer, pid, side, terms, remote, owner };
            assert!(peers.retain(peer));
            (pool.keep(peers, kept).unwrap(), kept)
        };
        let (one, first) = other_process(&doorbells, 1);
        let (two, second) = other_process(&doorbells, 2);
        for peer in [first, first, second] {
            let (lease, _) = keep(peer);
            assert!(end(&CLIENT, lease, OWNERS.0));
        }
        let (used, kept) = keep(first);
        pool.drop_dead(peers);
        assert_eq!(mappings("sdp-conn"), 4, "both live");
        kill(&one);
        drop(one);
        pool.drop_dead(peers);
        assert_eq!(mappings("sdp-conn"), 2, "the other's, and the one in use");
        assert!(!end(&CLIENT, used, OWNERS.0), "nobody will use it again");
        CLIENT.throw(kept);
        // Dead, and not waited for: the end of any connection finds out.
        kill(&two);
        let (lease, kept) = keep(second);
        assert_eq!(mappings("sdp-conn"), 1, "a meeting finds out too");
        assert!(!end(&CLIENT, lease, OWNERS.0));
        CLIENT.throw(kept);
        // One that had let go of the segment is not asked about; the next look finds out.
        let (lease, kept) = keep(second);
        word(&kept, OFFER_OFFSET + 128).store(1, Ordering::Relaxed);
        assert!(end(&CLIENT, lease, OWNERS.0));
        assert_eq!(mappings("sdp-conn"), 1);
        pool.drop_dead(peers);
        assert_eq!(mappings("sdp-conn"), 0);
        // SAFETY: nothing uses their pages.
        unsafe {
            peers.release(first);
            peers.release(second);
        }
        drop(two);
        assert!(pool.is_empty());
        assert_eq!(footprint(), before);
    });
}

#[test]
fn the_kernel_tells_what_a_peer_holds() {
    isolated(|| {
        let before = footprint();
        let doorbells = Doorbells::new();
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = held.as_raw_fd() as u32;
        let side = &CLIENT;
        let (child, peer) = other_process(&doorbells, 1);
        assert!(side.peers.can_tell(peer) && side.peers.lives(peer));
        let what = stat::stat(held.as_raw_fd()).unwrap().id.ino;
        // The user is the one that the process had when it was met.
        let holds_of = |uid, number, inode| {
            let socket = PeerSocket { inode, uid, state: 1 };
            side.peers.holds(peer, number, &socket)
        };
        let holds = |number, inode| holds_of(1000, number, inode);
        assert!(holds(number, what));
        assert!(!holds_of(1001, number, what), "another user's");
        assert!(!holds(number + 500, what), "no such number");
        assert!(!holds(u32::MAX, what));
        assert!(!holds(number, what + 1), "another socket");
        let file = doorbells.page.raw();
        let of_file = stat::stat(file).unwrap().id.ino;
        assert!(!holds(file as u32, of_file), "no socket");
        kill(&child);
        drop(child);
        assert!(!holds(number, what), "it has ended");
        assert!(!side.peers.lives(peer));
        // SAFETY: the page is not used.
        unsafe { side.peers.release(peer) };
        assert!(!side.peers.lives(peer), "nobody is known by that name");
        drop((doorbells, held));
        assert_eq!(footprint(), before, "also the directory, which has no answer any more");
    });
}
