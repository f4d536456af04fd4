//! The abstract name at which the two ends of a connection meet.
//!
//! `sdp/<version>/` followed by 36 binary bytes: both ends' 16-byte address and 2-byte port, the
//! smaller end first, so that both compute the same name. Abstract names belong to the network
//! namespace, like the addresses they are made of. The name proves nothing: any process can take
//! it.

use crate::identity::Tuple;

/// Version of the rendezvous and of the segment's layout; the name carries it, so that versions never meet by
/// accident: between processes that loaded different ones, connections stay TCP.
pub const VERSION: u16 = 3;

const _: () = assert!(VERSION as u32 == sdp_shm::layout::VERSION);

const PREFIX: &[u8; 6] = b"sdp/3/";
/// Length of every name.
pub const NAME_LEN: usize = PREFIX.len() + 36;

/// A rendezvous name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; NAME_LEN]);

impl Name {
    /// The name of a connection; equal from both ends.
    pub fn new(tuple: &Tuple) -> Self {
        let (low, high) = if tuple.local <= tuple.remote {
            (&tuple.local, &tuple.remote)
        } else {
            (&tuple.remote, &tuple.local)
        };
        let mut bytes = [0; NAME_LEN];
        put(&mut bytes, 0, *PREFIX);
        put(&mut bytes, PREFIX.len(), *low.bytes());
        put(&mut bytes, PREFIX.len() + 16, low.port().to_be_bytes());
        put(&mut bytes, PREFIX.len() + 18, *high.bytes());
        put(&mut bytes, PREFIX.len() + 34, high.port().to_be_bytes());
        Self(bytes)
    }

    /// The bytes after the leading NUL of an abstract address.
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Stores `N` bytes at `offset`.
#[inline(always)]
fn put<const N: usize>(bytes: &mut [u8; NAME_LEN], offset: usize, field: [u8; N]) {
    if let Some(to) = bytes.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
        *to = field;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Addr;

    #[test]
    fn both_ends_agree_and_others_differ() {
        let a = Addr::v4([127, 0, 0, 1], 0x1234);
        let b = Addr::v4([127, 0, 0, 1], 0x4321);
        let tuple = Tuple { local: b, remote: a, interface: 3 };
        let name = Name::new(&tuple);
        assert_eq!(name, Name::new(&tuple.reversed()));
        let mut expected = b"sdp/3/".to_vec();
        for port in [[0x12, 0x34], [0x43, 0x21]] {
            expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
            expected.extend(port);
        }
        assert_eq!(name.as_bytes(), expected);
        let other = Tuple { remote: Addr::v4([127, 0, 0, 1], 0x1235), ..tuple };
        assert_ne!(name, Name::new(&other));
        assert_eq!(PREFIX, format!("sdp/{VERSION}/").as_bytes());
    }
}
