//! NULL by RDMA: whether RPC-over-RDMA is spoken at an address, and NFS behind it.

use std::{
    cell::Cell,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use sdp_fabric_verbs::{
    budget,
    endpoint::VerbsRx,
    fabric::{Options, VerbsFabric},
};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, Gather, ReceiveQueue, SendOptions, SendQueue},
    work::WorkId,
};
use sdp_rpcrdma::{private_data::Offer, wire};

use crate::{
    gateway::address_of,
    null::{self, Answer},
};

/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Between two looks.
const BRIEFLY: Duration = Duration::from_millis(1);
/// Bytes of a message, each way.
const MESSAGE: u32 = budget::BUFFER as u32;

/// Nothing behind the header.
struct Nothing;

impl Gather for Nothing {
    fn len(&self) -> usize {
        0
    }

    fn copy_to(&mut self, _: usize, _: &[Cell<u8>]) {}
}

/// The address of this host that leads to another one. Nothing is sent.
pub(crate) fn own(peer: SocketAddr) -> io::Result<SocketAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    socket.local_addr()
}

/// The reply to the call, as a message of RPC-over-RDMA.
fn reply(rx: &mut VerbsRx) -> io::Result<Option<Answer>> {
    let message = rx.poll_receive().map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
    let Some(message) = message else { return Ok(None) };
    let mut bytes = [0; budget::BUFFER];
    let len = bytes.len().min(message.len as usize);
    rx.copy_header(message, &mut bytes[..len]);
    rx.release(message);
    let bytes = &bytes[..len];
    let header = wire::decode(bytes, len, MESSAGE).ok().filter(|header| !header.is_nomsg);
    let answer = header.and_then(|header| null::judge(bytes.get(header.len..)?));
    answer.map(Some).ok_or_else(|| null::wrong("the answer is no reply of RPC-over-RDMA"))
}

/// Asks a server by RDMA, from an address of this host: another one than that which leads there is
/// for tests. Also returns the device's name.
///
/// # Errors
/// There is no device, nobody listens there, or what is answered is no reply.
pub fn ask(
    server: SocketAddr,
    from: Option<SocketAddr>,
    program: u32,
    version: u32,
) -> io::Result<(String, Answer)> {
    let end = Instant::now() + LIMIT;
    let from = match from {
        Some(from) => from,
        None => own(server)?,
    };
    let options =
        Options { connections: 1, promise: 4, shared_receives: false, ..Options::default() };
    let mut fabric = VerbsFabric::open(&address_of(from), &options)
        .map_err(|why| io::Error::other(format!("RDMA from {}: {why}", from.ip())))?;
    let device = String::from_utf8_lossy(fabric.device_name()).into_owned();
    let offer = Offer { remote_invalidation: false, sends: MESSAGE, receives: MESSAGE };
    let data = PrivateData::new(&offer.to_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
    let failed = |what: &str| io::Error::other(format!("{device}: {what}"));
    let id = fabric.connect(address_of(server), data).map_err(|_| failed("no way there"))?;
    let in_time = |now: Instant| {
        if now >= end {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        std::thread::sleep(BRIEFLY);
        Ok(())
    };
    loop {
        match fabric.poll_cm() {
            Some(CmEvent::Established(of, _)) if of == id => break,
            Some(CmEvent::Rejected(of, _)) if of == id => {
                return Err(failed("nobody listens there, or this host is refused"));
            }
            Some(CmEvent::Unreachable(of)) if of == id => return Err(failed("no answer")),
            Some(_) => {}
            None => in_time(Instant::now())?,
        }
    }
    let (mut tx, mut rx) = fabric.take_queues(id).ok_or_else(|| failed("the connection ended"))?;
    let header = wire::encode(null::XID, 1, false, None, None);
    let message = [header.as_slice(), &null::call(program, version)].concat();
    tx.allow(1);
    let options = SendOptions { signalled: false, solicited: true, control: false };
    tx.post_send(WorkId(0), &message, &mut Nothing, options)
        .map_err(|_| failed("the call was not taken"))?;
    let answer = loop {
        if let Some(answer) = reply(&mut rx)? {
            break answer;
        }
        if !fabric.progress() {
            in_time(Instant::now())?;
        }
    };
    drop((tx, rx));
    fabric.disconnect(id);
    fabric.progress();
    Ok((device, answer))
}
