//! The two half-connections of an end and what they share.

pub mod credit;
pub mod mode;
pub mod owed;
pub mod sink;
pub mod source;
pub mod words;
