//! The MOUNT service of a server, relayed: it has no form for RDMA (RFC 8267, 4), and clients ask for
//! it on the host on which they think the server is.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use sdp_rpcrdma::rpc;
use socket2::{Domain, Protocol, Socket, Type};

/// The program of MOUNT.
const PROGRAM: u32 = 100_005;
/// The port of rpcbind, its program, and the procedure that says a program's port.
const RPCBIND: u16 = 111;
const PORTMAP: u32 = 100_000;
const GETPORT: u32 = 3;
const TCP: u32 = 6;
/// Connections that are relayed at a time.
const CONNECTIONS_MAX: u32 = 64;
/// How long a connection, and an answer, is waited for.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a client may be silent: it asks once, and goes.
const SILENCE: Duration = Duration::from_secs(60);
/// How long no connection is taken after one could not be.
const PAUSE: Duration = Duration::from_millis(200);
/// Ports that servers expect of clients, where this process may use them.
const PRIVILEGED: std::ops::Range<u16> = 600..1024;

/// Asks a server's rpcbind for the port of its MOUNT service.
///
/// # Errors
/// There is no rpcbind, or no such service.
pub fn port_of(server: IpAddr) -> io::Result<u16> {
    const XID: u32 = 0x5d90_0002;
    let words = [XID, 0, 2, PORTMAP, 2, GETPORT, 0, 0, 0, 0, PROGRAM, 3, TCP, 0];
    let call: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(server, RPCBIND), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(&[rpc::mark(call.len() as u32).as_slice(), &call].concat())?;
    // Mark, XID, reply, accepted, no verifier, success, port.
    let mut reply = [0; 4 * 8];
    stream.read_exact(&mut reply)?;
    let words: Vec<u32> = reply
        .chunks_exact(4)
        .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    match words[..] {
        [_, XID, 1, 0, _, 0, 0, port @ 1..=0xffff] => Ok(port as u16),
        _ => Err(io::Error::other("its rpcbind knows no MOUNT service on TCP")),
    }
}

/// From a privileged port, if there is one for this process.
fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let any = match to {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let mut why = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for port in PRIVILEGED.rev().chain([0]) {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        let begun = socket.bind(&SocketAddr::new(any, port).into());
        match begun.and_then(|()| socket.connect_timeout(&to.into(), LIMIT)) {
            Ok(()) => return Ok(socket.into()),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Err(e),
            // Taken, forbidden, or lately used for the same way.
            Err(e) => why = e,
        }
        if why.kind() == io::ErrorKind::TimedOut {
            break;
        }
    }
    Err(why)
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = from.set_read_timeout(Some(SILENCE));
    let _ = to.set_write_timeout(Some(SILENCE));
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn relay(client: TcpStream, server: IpAddr, port: Option<u16>) -> io::Result<()> {
    let port = match port {
        Some(port) => port,
        None => port_of(server)?,
    };
    let server = connect(SocketAddr::new(server, port))?;
    let (back, there) = (server.try_clone()?, client.try_clone()?);
    let answers = thread::Builder::new().spawn(move || copy(back, there))?;
    copy(client, server);
    let _ = answers.join();
    Ok(())
}

/// Relays connections to a server's MOUNT service, whose port is asked for each time unless it is
/// given, as long as this process lasts. Clients from ports above 1023 only with `insecure`.
pub fn serve(listener: TcpListener, server: IpAddr, port: Option<u16>, insecure: bool) {
    thread::spawn(move || {
        let count = Arc::new(AtomicU32::new(0));
        loop {
            let Ok((client, from)) = listener.accept() else {
                // Often for want of a descriptor: the connection stays in the listener's queue.
                thread::sleep(PAUSE);
                continue;
            };
            let is_allowed = insecure || from.port() < 1024;
            if !is_allowed || count.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
                continue;
            }
            count.fetch_add(1, Ordering::Relaxed);
            let shared = Arc::clone(&count);
            let begun = thread::Builder::new().spawn(move || {
                if let Err(why) = relay(client, server, port) {
                    say!("sdp nfs proxy: MOUNT: {why}");
                }
                shared.fetch_sub(1, Ordering::Relaxed);
            });
            if let Err(why) = begun {
                say!("sdp nfs proxy: MOUNT: no thread: {why}");
                count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_both_ways() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = server.local_addr().unwrap();
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = relay.local_addr().unwrap();
        serve(relay, at.ip(), Some(at.port()), true);
        let mut client = TcpStream::connect(to).unwrap();
        client.write_all(b"what is exported?").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let (mut seen, _) = server.accept().unwrap();
        let mut asked = String::new();
        seen.read_to_string(&mut asked).unwrap();
        assert_eq!(asked, "what is exported?");
        seen.write_all(b"/srv").unwrap();
        drop(seen);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "/srv");
    }

    #[test]
    fn a_client_from_any_port_is_not_relayed_unless_told() {
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = relay.local_addr().unwrap();
        serve(relay, to.ip(), Some(1), false);
        // Bound by the kernel, above 1023.
        let mut client = TcpStream::connect(to).unwrap();
        assert!(!client.read(&mut [0]).is_ok_and(|count| count > 0));
    }
}
