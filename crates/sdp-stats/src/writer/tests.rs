//! Pages as they are written.

use super::*;
use core::sync::atomic::AtomicU32;

fn page() -> Box<Page> {
    crate::map::zeroed_page()
}

fn new_row(carrier: u64) -> NewRow {
    NewRow {
        carrier,
        inode: 7,
        fd: 5,
        local: Endpoint::v4([127, 0, 0, 1], 80),
        remote: Endpoint::v4([127, 0, 0, 1], 4000),
        is_v6: false,
        is_adopted: false,
        role: Role::Server,
        state: ConnState::Established,
    }
}

fn sum_of_reasons(p: &Page) -> i64 {
    p.totals.reasons.iter().map(|r| r.load(Relaxed)).sum()
}

#[test]
fn each_end_is_counted_once_whatever_happens_to_it() {
    let (p, q) = (page(), page());
    let word = AtomicU32::new(0);
    let v = Verdict::at(&word);
    p.count_seen(v, Reason::TooYoung);
    q.count_seen(v, Reason::Exec);
    assert_eq!(p.totals.seen.load(Relaxed), 1);
    assert_eq!(q.totals.seen.load(Relaxed), 0);
    q.count_reason(v, Reason::Shared);
    assert_eq!(sum_of_reasons(&p) + sum_of_reasons(&q), 1);
    assert_eq!(q.totals.reasons[Reason::Shared as usize].load(Relaxed), 1);
    q.count_sdp(v, Fabric::Shm);
    q.count_sdp(v, Fabric::Shm);
    q.count_reason(v, Reason::Exec);
    p.count_seen(v, Reason::Exec);
    assert!(v.is_sdp());
    assert_eq!(sum_of_reasons(&p) + sum_of_reasons(&q), 0);
    assert_eq!(q.totals.sdp.load(Relaxed), 1);
    assert_eq!(q.totals.fabrics[0].load(Relaxed), 1);
}

#[test]
fn sdp_before_seen_counts_both() {
    let p = page();
    let word = AtomicU32::new(0);
    p.count_sdp(Verdict::at(&word), Fabric::Verbs);
    assert_eq!(p.totals.seen.load(Relaxed), 1);
    assert_eq!(p.totals.fabrics[1].load(Relaxed), 1);
}

#[test]
fn damaged_verdict_words_do_no_harm() {
    let p = page();
    for value in [2 + 64, 1000, u32::MAX] {
        let word = AtomicU32::new(value);
        p.count_reason(Verdict::at(&word), Reason::Exec);
        p.count_sdp(Verdict::at(&word), Fabric::Shm);
    }
    assert_eq!(p.totals.sdp.load(Relaxed), 3);
}

#[test]
fn closed_rows_are_folded_and_reused() {
    let p = page();
    let a = p.open_row(&new_row(1));
    p.moved(a, Direction::Send, Lane::Sdp, 100);
    p.moved(a, Direction::Receive, Lane::Kernel, 7);
    p.add(a, Direction::Receive, Counter::BCopy, 2);
    p.promoted(a, Direction::Send, Fabric::Shm);
    p.demoted(a, Direction::Send, Reason::Shared);
    p.close_row(a);
    p.close_row(a);
    assert_eq!(p.totals.counters[0][Counter::SdpBytes as usize].load(Relaxed), 100);
    assert_eq!(p.totals.counters[1][Counter::TcpBytes as usize].load(Relaxed), 7);
    assert_eq!(p.totals.counters[1][Counter::BCopy as usize].load(Relaxed), 2);
    assert_eq!(p.totals.demotions[Reason::Shared as usize].load(Relaxed), 1);
    let b = p.open_row(&new_row(2));
    assert_eq!(a, b);
    assert_eq!(p.rows[0].counters[0][0].load(Relaxed), 0);
    assert_eq!(p.rows[0].slow[0].promoted.load(Relaxed), 0);
    assert_eq!(p.header.rows_used.load(Relaxed), 1);
}

#[test]
fn messages_have_a_class_by_their_size() {
    for (bytes, class) in [(1, 0), (64, 0), (65, 1), (256, 1), (257, 2), (1024, 2), (1025, 3)] {
        assert_eq!(size_class(bytes), class, "{bytes}");
    }
    for (bytes, class) in [(4096, 3), (16_384, 4), (16_385, 5), (65_536, 5), (65_537, 6)] {
        assert_eq!(size_class(bytes), class, "{bytes}");
    }
    assert_eq!(size_class(u32::MAX), SIZES - 1);
    let p = page();
    let a = p.open_row(&new_row(1));
    p.sent_messages(a, 100, 3);
    p.sent_messages(RowId::NONE, 100, 2);
    p.promoted(a, Direction::Send, Fabric::Shm);
    p.demoted(a, Direction::Send, Reason::RingFull);
    p.was_full(a);
    p.demoted(a, Direction::Receive, Reason::RingFull);
    p.close_row(a);
    assert_eq!(p.totals.messages.sizes[1].load(Relaxed), 5);
    assert_eq!(p.totals.messages.full.load(Relaxed), 2);
    assert_eq!(p.rows[0].messages.sizes[1].load(Relaxed), 0);
}

#[test]
fn a_half_is_promoted_and_demoted_in_turn() {
    let p = page();
    let a = p.open_row(&new_row(1));
    p.demoted(a, Direction::Receive, Reason::Exec);
    assert_eq!(p.totals.demoted.load(Relaxed), 0, "it was not on an SDP lane");
    assert_eq!(p.rows[0].slow[1].reason.load(Relaxed), u32::from(Reason::Exec.code()) + 1);
    for _ in 0..3 {
        p.promoted(a, Direction::Receive, Fabric::Shm);
    }
    p.show_reason(a, Direction::Receive, Reason::TooYoung);
    assert_eq!(p.totals.promoted.load(Relaxed), 1);
    assert_eq!(p.rows[0].slow[1].reason.load(Relaxed), 0);
    assert_eq!(p.rows[0].slow[1].credits.load(Relaxed), 65_535);
    p.demoted(a, Direction::Receive, Reason::Shared);
    p.demoted(a, Direction::Receive, Reason::Shared);
    assert_eq!(p.totals.demoted.load(Relaxed), 1);
    p.show_lane(a, Direction::Send, Fabric::Shm);
    assert_eq!(p.totals.promoted.load(Relaxed), 1, "shown, not counted");
}

#[test]
fn a_full_table_counts_in_the_totals() {
    let p = page();
    let ids: Vec<_> = (0..ROWS as u64).map(|i| p.open_row(&new_row(i))).collect();
    assert!(ids.iter().all(|id| *id != RowId::NONE));
    let none = p.open_row(&new_row(9));
    assert_eq!(none, RowId::NONE);
    p.moved(none, Direction::Send, Lane::Kernel, 5);
    p.close_row(none);
    p.promoted(none, Direction::Send, Fabric::Shm);
    p.demoted(none, Direction::Send, Reason::Exec);
    assert_eq!(p.totals.counters[0][1].load(Relaxed), 5);
    assert_eq!(p.totals.rowless.load(Relaxed), 1);
    p.close_row(ids[17]);
    assert_eq!(p.open_row(&new_row(10)), ids[17]);
}

#[test]
fn threads_never_share_a_row() {
    let p = page();
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let p = &p;
            s.spawn(move || {
                for i in 0..2000 {
                    let id = p.open_row(&new_row(t << 32 | i));
                    p.moved(id, Direction::Send, Lane::Sdp, 1);
                    let row = p.row(id).expect("the table is large enough");
                    assert_eq!(row.carrier.load(Relaxed), t << 32 | i);
                    p.close_row(id);
                }
            });
        }
    });
    assert_eq!(p.totals.counters[0][0].load(Relaxed), 8000);
}

#[test]
fn damaged_free_list_ends_in_fresh_rows() {
    let p = page();
    p.header.free.store(u64::MAX, Relaxed);
    assert_eq!(p.open_row(&new_row(1)).raw(), 0);
    p.header.rows_used.store(u32::MAX, Relaxed);
    assert_eq!(p.open_row(&new_row(1)), RowId::NONE);
}
