//! Conformance suite, generic over fabrics.

#![cfg_attr(not(test), no_std)]
