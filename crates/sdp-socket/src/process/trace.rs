//! Events of connections: the recorder in the statistics page, and static probes for tracers from outside.
//!
//! A probe is one instruction that does nothing, and a note in the file (`.note.stapsdt`) that says where it is and where its
//! arguments are. A tracer puts a breakpoint there; without one it costs that instruction. The form of the notes is
//! SystemTap's, which bpftrace, perf and gdb read.

use sdp_stats::trace::{Event, Kind};

use crate::process::page;

/// A probe of the provider `sdp` with arguments of 32 bits with a sign, each in a register.
macro_rules! probe {
    ($name:literal, $places:literal $(, $argument:expr)+) => {
        // SAFETY: one instruction that does nothing, and a note beside the code: no memory, no flags.
        unsafe {
            core::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt, \"\", \"note\"",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                ".8byte 0",
                ".asciz \"sdp\"",
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $places, "\""),
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base, \"aGR\", \"progbits\", .stapsdt.base, comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                $(in(reg) $argument,)+
                options(nomem, nostack, preserves_flags)
            );
        }
    };
}

/// Arguments as the notes name them.
#[cfg(target_arch = "x86_64")]
macro_rules! probe_of {
    ($name:literal, $a:expr, $b:expr) => {
        probe!($name, "-4@%{0:e} -4@%{1:e}", $a, $b)
    };
    ($name:literal, $a:expr, $b:expr, $c:expr) => {
        probe!($name, "-4@%{0:e} -4@%{1:e} -4@%{2:e}", $a, $b, $c)
    };
}

/// The whole register: bpftrace knows no other name, and takes so many bytes of it.
#[cfg(target_arch = "aarch64")]
macro_rules! probe_of {
    ($name:literal, $a:expr, $b:expr) => {
        probe!($name, "-4@{0:x} -4@{1:x}", $a, $b)
    };
    ($name:literal, $a:expr, $b:expr, $c:expr) => {
        probe!($name, "-4@{0:x} -4@{1:x} -4@{2:x}", $a, $b, $c)
    };
}

/// An event of a connection. Anywhere, also in a handler; never for each message.
#[cold]
#[inline(never)]
pub(crate) fn record(mut event: Event) {
    let direction = event.direction.map_or(-1, |direction| direction as i32);
    let reason = event.reason.map_or(-1, |reason| i32::from(reason.code()));
    let fabric = event.fabric.map_or(0, |fabric| fabric as i32);
    match event.kind {
        Kind::Promoted => probe_of!("promoted", event.fd, direction, fabric),
        Kind::Fallback => probe_of!("fallback", event.fd, reason),
        Kind::Demoted => probe_of!("demoted", event.fd, direction, reason),
        Kind::HandOver => probe_of!("handover", event.fd, reason),
        Kind::Met | Kind::LaneLost | Kind::Reset | Kind::Refused => {}
    }
    if let Some(page) = page::current() {
        event.now_ns = sdp_sys::time::boottime_ns();
        page.record(&event);
    }
}
