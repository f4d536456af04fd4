//! Structures that live in memory shared between processes.
//!
//! Two kinds of memory, with two kinds of trust:
//!
//! * the **peer segment** ([`layout`], [`ring`], [`arm`], [`doorbell`]) is written by the other end
//!   of the connection, which may be hostile. Every index is copied once, checked, and only the
//!   copy is used. It holds nothing that the peer must not change.
//! * **family memory** ([`family`], [`lock`]) is shared by processes related by fork with unchanged
//!   privileges. A family member may die in the middle of anything, but is not malicious.
//!
//! References into either kind point at atomics only; payload moves through raw pointers or cells.
//! The crate refuses policy: it knows no descriptor, no rule and no SDP message.

#![cfg_attr(not(test), no_std)]

pub mod arm;
pub mod doorbell;
pub mod early;
#[cfg(not(all(test, loom)))]
pub mod family;
pub mod layout;
pub mod lock;
#[cfg(all(test, loom))]
mod model;
pub mod ring;
mod sync;

/// Zeros of at least `len` bytes, aligned to a page, that are never given back.
#[cfg(test)]
pub(crate) fn leaked(len: usize) -> core::ptr::NonNull<u8> {
    #[repr(C, align(4096))]
    #[derive(Clone)]
    struct Page([u8; 4096]);
    let pages = std::vec![Page([0; 4096]); len.div_ceil(4096)];
    core::ptr::NonNull::from(std::boxed::Box::leak(pages.into_boxed_slice())).cast()
}
