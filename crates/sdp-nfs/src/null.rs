//! Whether a server answers NULL, the procedure that does nothing.

use std::{
    fmt, io,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use sdp_rpcrdma::rpc;

/// The program of NFS.
pub const NFS: u32 = 100_003;
/// How long a connection, and then an answer, is waited for.
const LIMIT: Duration = Duration::from_secs(5);
/// Bytes of an answer: the header of an accepted or denied reply, with a verifier of 400.
const ANSWER_MAX: usize = 440;
/// Bytes of a verifier at most (RFC 5531, 8.2).
const VERIFIER_MAX: u32 = 400;
/// The XID of the call.
pub(crate) const XID: u32 = 0x5d90_0001;

/// What a server said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It has this version.
    Done,
    /// It has other versions, from the first to the second.
    OtherVersions(u32, u32),
    /// It does not have the program.
    NoProgram,
    /// It refused the call, with this status.
    Refused(u32),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("answered"),
            Self::OtherVersions(low, high) => write!(f, "has versions {low} to {high} only"),
            Self::NoProgram => f.write_str("has no such program"),
            Self::Refused(status) => write!(f, "refused the call (status {status})"),
        }
    }
}

pub(crate) fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// The call: no credentials, no verifier.
pub(crate) fn call(program: u32, version: u32) -> Vec<u8> {
    let words = [XID, 0, 2, program, version, 0, 0, 0, 0, 0];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The call's record.
fn record(program: u32, version: u32) -> Vec<u8> {
    let call = call(program, version);
    let len = u32::try_from(call.len()).unwrap_or(0);
    [rpc::mark(len).as_slice(), &call].concat()
}

/// What a reply says (RFC 5531, 9).
pub(crate) fn judge(reply: &[u8]) -> Option<Answer> {
    let word = |index: usize| -> Option<u32> {
        let bytes = reply.get(4 * index..4 * index + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    if rpc::direction(reply)? != (XID, rpc::Direction::Reply) {
        return None;
    }
    match word(2)? {
        0 => {}
        1 => return Some(Answer::Refused(word(3)?)),
        _ => return None,
    }
    let verifier = word(4)?;
    if verifier > VERIFIER_MAX {
        return None;
    }
    let at = 5 + (verifier + rpc::roundup(verifier)) as usize / 4;
    Some(match word(at)? {
        0 => Answer::Done,
        1 => Answer::NoProgram,
        2 => Answer::OtherVersions(word(at + 1)?, word(at + 2)?),
        status => Answer::Refused(status),
    })
}

/// Asks a server by TCP.
///
/// # Errors
/// It cannot be reached, does not answer, or what it answers is no reply.
pub fn ask(server: SocketAddr, program: u32, version: u32) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&server, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(&record(program, version))?;
    let mut mark = [0; rpc::MARK];
    stream.read_exact(&mut mark)?;
    let (len, is_last) = rpc::fragment(mark);
    if !is_last || len as usize > ANSWER_MAX {
        return Err(wrong("the answer is no reply of RPC"));
    }
    let mut reply = [0; ANSWER_MAX];
    let reply = &mut reply[..len as usize];
    stream.read_exact(reply)?;
    judge(reply).ok_or_else(|| wrong("the answer is no reply of RPC"))
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    fn reply(words: &[u32]) -> Vec<u8> {
        let body: Vec<u8> = [XID, 1].iter().chain(words).flat_map(|w| w.to_be_bytes()).collect();
        [rpc::mark(body.len() as u32).as_slice(), &body].concat()
    }

    fn asked(answer: Vec<u8>) -> io::Result<Answer> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 44];
            stream.read_exact(&mut asked).unwrap();
            stream.write_all(&answer).unwrap();
            asked
        });
        let answer = ask(at, NFS, 4);
        assert_eq!(server.join().unwrap(), record(NFS, 4).as_slice());
        answer
    }

    #[test]
    fn answers() {
        assert_eq!(asked(reply(&[0, 0, 0, 0])).unwrap(), Answer::Done);
        assert_eq!(asked(reply(&[0, 1, 5, 0, 0, 0])).unwrap(), Answer::Done);
        assert_eq!(asked(reply(&[0, 0, 0, 1])).unwrap(), Answer::NoProgram);
        assert_eq!(asked(reply(&[0, 0, 0, 2, 2, 3])).unwrap(), Answer::OtherVersions(2, 3));
        assert_eq!(asked(reply(&[0, 0, 0, 5])).unwrap(), Answer::Refused(5));
        assert_eq!(asked(reply(&[1, 1, 5])).unwrap(), Answer::Refused(1));
    }

    #[test]
    fn what_is_no_answer() {
        let bad: [&[u32]; 5] = [&[], &[2, 0], &[0, 0, 0], &[0, 0, u32::MAX, 0], &[0, 0, 0, 2, 2]];
        for words in bad {
            assert!(asked(reply(words)).is_err(), "{words:?}");
        }
        assert!(asked(vec![0, 0, 0, 28]).is_err(), "a fragment that is not the last");
        assert!(asked(vec![0xff; 4]).is_err(), "a mark of 2 GiB");
        assert!(asked(b"HTTP/1.1 400 Bad Request".to_vec()).is_err());
        assert!(asked(vec![0x80, 0]).is_err(), "half a mark");
    }
}
