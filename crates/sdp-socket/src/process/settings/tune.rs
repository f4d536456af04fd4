//! Tunables that `sdp tune` asks for while the process runs.
//!
//! A tool leaves a text in the statistics page. It is read before the process sleeps and before it
//! makes a connection: there is no thread of ours, and nothing of this costs a call that does not
//! sleep anyway. The page may hold anything: the text is copied, and each setting checked as one of
//! the rule file is. A request goes before environment and rule file, until it asks for `default`,
//! and until the process executes another program; a fork child has it too.

use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, Ordering},
};

use sdp_config::{
    Tunables,
    tunables::{KEYS, Key},
};
use sdp_stats::{
    Page,
    tune::{END, InForce, MORE_LEN, TEXT_LEN, Text, place},
};

use super::{STATE, bit, rules};
use crate::process::page;

/// The value that takes a request back.
const DEFAULT: &[u8] = b"default";

/// The request.
struct Asked {
    tunables: UnsafeCell<Tunables>,
    /// Which of [`KEYS`], a bit each.
    chosen: AtomicU32,
}

// SAFETY: used by the thread that is alone at the settings ([`rules::alone`]), and by the loader,
// before any other thread exists.
unsafe impl Sync for Asked {}

static ASKED: Asked =
    Asked { tunables: UnsafeCell::new(Tunables::DEFAULT), chosen: AtomicU32::new(0) };

/// Number of the last request that was read.
#[unsafe(link_section = ".bss.hot")]
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Before the process sleeps, or makes a connection: takes over a tool's request, if there is one.
#[inline]
pub(crate) fn attend() {
    if let Some(page) = page::current()
        && page.asked() != TAKEN.load(Ordering::Relaxed)
    {
        attend_now(page);
    }
}

#[cold]
fn attend_now(page: &Page) {
    if STATE.load(Ordering::Acquire) != super::LOADED {
        return;
    }
    rules::alone(|| {
        let (number, text) = (page.asked(), page.request());
        TAKEN.store(number, Ordering::Relaxed);
        if number == 0 {
            return; // another page: nobody has asked there
        }
        let mut chosen = ASKED.chosen.load(Ordering::Relaxed);
        // SAFETY: alone, see `Asked`.
        let refused = take(&text, unsafe { &mut *ASKED.tunables.get() }, &mut chosen);
        ASKED.chosen.store(chosen, Ordering::Relaxed);
        super::take_over();
        // A borrower counts in another process's page, which answers for itself.
        if !page::is_borrower() {
            page.take_request(number, refused);
        }
    });
}

/// Takes over all settings that it can; returns how many it could not.
fn take(text: &Text, tunables: &mut Tunables, chosen: &mut u32) -> u32 {
    let end = text.iter().position(|b| *b == 0).unwrap_or(TEXT_LEN);
    let settings = text.get(..end).unwrap_or(&[]).split(|b| *b == END);
    let mut refused = 0u32;
    for setting in settings.filter(|s| !s.is_empty()) {
        let mut words = setting.splitn(2, |b| *b == b' ');
        let (key, value) = (words.next().unwrap_or(&[]), words.next().unwrap_or(&[]));
        let bit = bit(|known| known.name.as_bytes() == key);
        if value == DEFAULT && bit != 0 {
            *chosen &= !bit;
        } else if tunables.set(key, value).is_ok() {
            *chosen |= bit;
        } else {
            refused = refused.wrapping_add(1);
        }
    }
    refused
}

/// The settings that were requested, and which of [`KEYS`]. For the thread that is alone at the
/// settings.
pub(super) fn asked() -> (Tunables, u32) {
    // SAFETY: alone, see `Asked`.
    (unsafe { *ASKED.tunables.get() }, ASKED.chosen.load(Ordering::Relaxed))
}

/// The settings in force, for tools: values by [`KEYS`], each with its source.
pub(super) fn text<'a>(of: impl Fn(&Key) -> (&'a Tunables, &'static [u8])) -> InForce {
    let mut text = [0; TEXT_LEN + MORE_LEN];
    let mut at = 0usize;
    for key in &KEYS {
        let (values, origin) = of(key);
        let mut len = 0usize;
        let setting = |put: &mut dyn FnMut(u8)| {
            key.name.bytes().for_each(&mut *put);
            put(b' ');
            values.write_value(key, &mut *put);
            put(b' ');
            origin.iter().copied().for_each(&mut *put);
            put(END);
        };
        setting(&mut |_| len = len.saturating_add(1));
        at = place(at, len);
        setting(&mut |byte| {
            if let Some(to) = text.get_mut(at) {
                *to = byte;
            }
            at = at.saturating_add(1);
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(from: &[u8]) -> Text {
        let mut text = [0; TEXT_LEN];
        text[..from.len()].copy_from_slice(from);
        text
    }

    #[test]
    fn settings_are_judged_one_by_one() {
        let (mut tunables, mut chosen) = (Tunables::DEFAULT, 0);
        let text = request(b"recv_poll 7;nothing 1;recv_poll;ring_bytes 5;promote_calls 3;");
        assert_eq!(take(&text, &mut tunables, &mut chosen), 3);
        assert_eq!((tunables.recv_poll.limit_us(), tunables.promote_calls), (7, 3));
        assert_eq!(tunables.ring_bytes, Tunables::DEFAULT.ring_bytes);
        let bit = |name: &str| bit(|k| k.name == name);
        assert_eq!(chosen, bit("recv_poll") | bit("promote_calls"));
        assert_eq!(take(&request(b"recv_poll default"), &mut tunables, &mut chosen), 0);
        assert_eq!(chosen, bit("promote_calls"));
    }

    #[test]
    fn any_text_can_be_read() {
        let mut seed = 1u64;
        for _ in 0..2000 {
            let mut text = request(b"recv_poll 7;ring_bytes 65536;fabrics shm,verbs;");
            for _ in 0..40 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text[(seed >> 33) as usize % TEXT_LEN] = (seed >> 50) as u8;
            }
            let (mut tunables, mut chosen) = (Tunables::DEFAULT, 0);
            take(&text, &mut tunables, &mut chosen);
            assert!(tunables.ring_bytes.is_power_of_two());
        }
        for text in [[b';'; TEXT_LEN], [b'x'; TEXT_LEN]] {
            take(&text, &mut Tunables::DEFAULT.clone(), &mut 0);
        }
    }

    #[test]
    fn everything_in_force_has_room() {
        let mut longest = Tunables::DEFAULT;
        for (key, value) in [
            ("sdp_zcopy_thresh", "1073741824"),
            ("recv_poll", "1000000"),
            ("promote_calls", "4294967295"),
            ("promote_bytes", "4294967295"),
            ("test_lane_flip", "4294967295"),
            ("ring_bytes", "4194304"),
            ("fabrics", "shm,verbs"),
            ("give_back", "86400"),
            ("rendezvous_dir", "/3456789012345678901234567890123456789012345678901234567890123"),
        ] {
            longest.set(key.as_bytes(), value.as_bytes()).expect(key);
        }
        let text = text(|_| (&longest, b"environment"));
        let [first, more] = [&text[..TEXT_LEN], &text[TEXT_LEN..]];
        assert!(more.ends_with(&[0; 150]), "room for more tunables");
        let settings = [first, more].map(|part| {
            let text = part.split(|b| *b == 0).next().unwrap_or(&[]);
            assert!(text.is_empty() || text.ends_with(&[END]), "no setting in two parts");
            text.iter().filter(|b| **b == END).count()
        });
        assert_eq!(settings.iter().sum::<usize>(), KEYS.len(), "all of them");
    }

    #[test]
    fn a_longer_text_goes_on_behind_the_first_part() {
        // As it would be with more tunables than there are today.
        let text = text(|_| (&Tunables::DEFAULT, b"from-a-place-with-a-long-name"));
        let [first, more] = [&text[..TEXT_LEN], &text[TEXT_LEN..]].map(|part| {
            String::from_utf8(part.iter().copied().take_while(|b| *b != 0).collect()).unwrap()
        });
        assert!(first.ends_with("-name;") && more.ends_with("-name;"), "{first} {more}");
        let names =
            (first + &more).split_terminator(';').map(|s| s.split(' ').count()).collect::<Vec<_>>();
        assert_eq!(names, vec![3; KEYS.len()]);
    }
}
