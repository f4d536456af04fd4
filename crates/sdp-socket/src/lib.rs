//! Linux socket semantics on the carrier and the lanes.
//!
//! The program's descriptor is, for its whole life, the connected kernel TCP socket: the *carrier*.
//! Beside it runs an SDP connection, and each direction's bytes move between the two *lanes* at exact
//! stream positions. The hooks call [`calls`]; from there a call goes down one path:
//!
//! ```text
//! calls ── table ── conn            whose descriptor is it?
//!   ├─ receive / send               one call's bytes, from whichever lane they are on
//!   │    ├─ lane                    which lane a half is on, and the rules for changing it
//!   │    ├─ carrier                 what the kernel knows: counters, FIN, bells
//!   │    └─ wait ── spin            how to sleep until the other side moves
//!   ├─ readiness / epoll            the same question for many descriptors
//!   ├─ promote / demote             getting onto the SDP lane, and off it again
//!   └─ lifecycle / inherit          descriptors and processes that come and go
//! ```
//!
//! Rules L1–L11 and E1–E5 cited in comments are those of `docs/spec/lanes.md`.

#![cfg_attr(not(test), no_std)]

mod adopt;
mod bulk;
pub mod calls;
mod carrier;
mod conn;
mod demote;
mod elsewhere;
mod epoll;
mod exec;
mod give_back;
mod handover;
mod header;
pub mod host;
pub mod hot;
mod inherit;
mod iovec;
mod lane;
mod lifecycle;
mod log;
mod marks;
pub mod options;
mod page;
mod pin;
mod plain;
mod pooled;
mod process;
mod promote;
mod proof;
mod publish;
mod readiness;
mod receive;
mod reconnect;
mod relay;
mod renew;
mod scratch;
mod send;
mod settings;
mod spin;
mod splice;
mod stay;
mod strangers;
mod strict;
mod succeed;
mod table;
mod taken;
mod turn;
mod wait;
mod wait_set;
mod words;
