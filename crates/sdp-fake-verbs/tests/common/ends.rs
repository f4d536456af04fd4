//! Both ends of a connection between hosts in one process: real TCP sockets over loopback, the verbs fabric on the
//! stand-in, and the code that joins them.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use sdp_fabric_verbs::{
    Address, Error,
    budget::RING_MESSAGES,
    endpoint::{RingRx, RingTx},
    fabric::{Offer, Options, RingFabric},
};
use sdp_proto::{Credits, Local, Ring};
use sdp_rdma::{cm::PrivateData, fabric::SendQueue};
use sdp_remote::{
    Agreement, Event, Host, Identity, Inbound, Meeting, Outbound, Prefix, ReceiveContext,
    RecvError, Role, SendContext, SendError, Shared,
};

#[path = "../../../sdp-remote/tests/common/stream.rs"]
mod stream;

pub(crate) use stream::Random;
use stream::{Check, Tcp, Text, byte_at};

use super::{free_port, options, rings};

pub(crate) fn local(offer: &Offer) -> Local {
    Local {
        credits: Credits::Explicit,
        bufs: RING_MESSAGES as u16,
        receive_size: offer.longest(),
        lane_messages: true,
        zcopy: false,
        ring: Some(Ring { log2: offer.log2, key: offer.key }),
    }
}

pub(crate) const NUMBER: u32 = 3;
/// Bytes that went raw before the first meeting.
pub(crate) const RAW: u64 = 100;

/// The acceptor's proof, changed by liars.
pub(crate) type Forge = fn(&mut [u8], &mut Random);

/// One end of a connection, and its process.
pub(crate) struct End {
    stream_out: u8,
    stream_in: u8,
    pub(crate) tcp: Tcp,
    /// `None`: it has no device, and why.
    pub(crate) host: Result<Host<RingFabric, 4>, Error>,
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
    pub(crate) shared: Shared,
    pub(crate) meeting: Meeting,
    /// Bytes that are kept for a resume. They stay for ever: the fabric sends from there.
    ring: &'static mut [u8],
    /// As many of them as it does.
    kept: usize,
    pub(crate) tx: Option<RingTx>,
    pub(crate) rx: Option<RingRx>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    from_acceptor: Prefix,
    from_connector: Prefix,
    ports: (u16, u16),
    pub(crate) has_asked: bool,
    is_listening: bool,
    nonces: u64,
    /// Meetings that came about.
    pub(crate) begun: u32,
    /// Requests and answers of the peer that were not believed.
    pub(crate) disbelieved: u32,
    /// Changes this end's words in a request or reply.
    pub(crate) forge: Option<(Forge, u64)>,
}

/// Small pools, which are made fast.
fn small() -> Options {
    Options { connections: 8, ..options() }
}

/// The address of each end's device.
fn device_of(role: Role) -> Address {
    Address::v4([10, 9, 0, if role == Role::Acceptor { 1 } else { 2 }], 0)
}

pub(crate) fn is_live(shared: &Shared) -> bool {
    shared.has_link() && !shared.is_link_dead()
}

impl End {
    fn new(role: Role, tcp: TcpStream, ports: (u16, u16)) -> Self {
        let (stream_out, stream_in) = if role == Role::Acceptor { (0, 1) } else { (1, 0) };
        let prefix = |stream| {
            let mut prefix = Prefix::new();
            (0..RAW).for_each(|at| prefix.add(&[byte_at(stream, at)]));
            prefix
        };
        tcp.set_nodelay(true).expect("a socket");
        Self {
            stream_out,
            stream_in,
            tcp: Tcp(tcp),
            host: RingFabric::open(&device_of(role), &small()).map(Host::new),
            outbound: Outbound::new(RAW),
            inbound: Inbound::new(RAW),
            shared: Shared::new(),
            meeting: Meeting::new(role),
            ring: vec![0; rings::KEPT].leak(),
            kept: rings::KEPT,
            tx: None,
            rx: None,
            sent: RAW,
            received: RAW,
            from_acceptor: prefix(0),
            from_connector: prefix(1),
            ports,
            has_asked: false,
            is_listening: false,
            nonces: u64::from(role == Role::Acceptor),
            begun: 0,
            disbelieved: 0,
            forge: None,
        }
    }

    /// Its knowledge of the carrier.
    pub(crate) fn identity(&self) -> Identity<'_> {
        identity(&self.from_acceptor, &self.from_connector, self.ports)
    }

    fn forged(&self, data: PrivateData) -> PrivateData {
        let Some((forge, seed)) = self.forge else { return data };
        let mut bytes = data.as_slice().to_vec();
        forge(&mut bytes, &mut Random(seed));
        PrivateData::new(&bytes).expect("as long as before")
    }

    fn nonce(&mut self) -> [u8; 8] {
        self.nonces += 2;
        self.nonces.to_be_bytes()
    }

    fn memory(&self) -> (u64, usize) {
        (self.ring.as_ptr() as u64, self.ring.len())
    }

    fn begin(&mut self, met: &Agreement, (mut tx, rx): (RingTx, RingRx)) {
        if let Some(ring) = met.peer_ring() {
            tx.reach(ring);
        }
        (self.tx, self.rx) = (Some(tx), Some(rx));
        sdp_remote::begin(&mut self.outbound, &mut self.inbound, &self.shared, met);
        self.outbound.invite();
        self.begun += 1;
    }

    pub(crate) fn may_meet(&self) -> bool {
        self.outbound.may_meet(&self.shared) && self.inbound.may_meet(&self.shared)
    }

    /// Connection management, as the socket layer does it.
    pub(crate) fn manage(&mut self) {
        while let Some(event) = self.host.as_mut().ok().and_then(Host::progress) {
            match event {
                Event::Requested { id, service, data } => {
                    let nonce = self.nonce();
                    let may_meet = self.may_meet();
                    let identity = identity(&self.from_acceptor, &self.from_connector, self.ports);
                    let request = data.as_slice();
                    let memory = self.memory();
                    let judged = may_meet.then(|| self.meeting.judge(&identity, request).ok());
                    // SAFETY: memory that stays.
                    let mut offer =
                        || unsafe { self.host.as_mut().ok()?.fabric().offer_to(id, memory).ok() };
                    let answer = judged.and_then(|judged| match judged {
                        None => Some(None),
                        Some(()) => {
                            let offer = offer()?;
                            self.kept = offer.kept;
                            let local = local(&offer);
                            Some(self.meeting.answer(&identity, &local, request, nonce).ok())
                        }
                    });
                    let met = match answer {
                        Some(Some((reply, met))) => Some((self.forged(reply), met)),
                        Some(None) => {
                            self.disbelieved += 1;
                            None
                        }
                        None => None,
                    };
                    let Ok(host) = self.host.as_mut() else { continue };
                    assert!(host.listeners(&service).any(|number| number == NUMBER));
                    let Some((reply, met)) = met else {
                        host.reject(id, 1);
                        continue;
                    };
                    if let Ok(halves) = host.accept(id, NUMBER, reply) {
                        self.begin(&met, halves);
                    }
                }
                Event::Established { number, tx, rx, data } => {
                    assert_eq!(number, NUMBER);
                    self.has_asked = false;
                    let identity = identity(&self.from_acceptor, &self.from_connector, self.ports);
                    match self.meeting.learn(&identity, data.as_slice()) {
                        Ok(met) => self.begin(&met, (tx, rx)),
                        Err(_) => {
                            self.disbelieved += 1;
                            if let Ok(host) = self.host.as_mut() {
                                host.forget(NUMBER);
                            }
                        }
                    }
                }
                Event::Refused { number, .. } | Event::Unreachable { number } => {
                    assert_eq!(number, NUMBER);
                    self.has_asked = false;
                    self.meeting.give_up();
                }
                Event::Lost { number } => {
                    assert_eq!(number, NUMBER);
                    self.shared.link_died();
                }
            }
        }
        self.bury();
        self.close_lost();
    }

    /// A device that is lost is closed as soon as nothing of it is in use.
    fn close_lost(&mut self) {
        let is_lost = self.host.as_mut().is_ok_and(|host| host.fabric().is_lost());
        if !is_lost {
            return;
        }
        if self.shared.has_link() {
            self.shared.link_died();
            self.bury();
        }
        if self.rx.is_none() {
            (self.host, self.has_asked) = (Err(Error::NoDevice), false);
            self.meeting.give_up();
        }
    }

    /// A dead queue pair whose messages have been read is destroyed.
    fn bury(&mut self) {
        if self.shared.is_link_dead() && self.inbound.may_destroy() {
            self.outbound.link_died(&self.shared);
            (self.tx, self.rx) = (None, None);
            sdp_remote::end(&mut self.outbound, &mut self.inbound, &self.shared);
            if let Ok(host) = self.host.as_mut() {
                host.forget(NUMBER);
            }
        }
    }

    pub(crate) fn listen(&mut self, service: Address) {
        if let Ok(host) = self.host.as_mut()
            && !self.is_listening
        {
            self.is_listening = host.listen(NUMBER, service).is_ok();
        }
    }

    pub(crate) fn ask(&mut self, service: Address) {
        if self.has_asked || !self.may_meet() || self.host.is_err() {
            return;
        }
        let (nonce, memory) = (self.nonce(), self.memory());
        // SAFETY: memory that stays.
        let offer = unsafe { self.host.as_mut().map(|host| host.fabric().offer(memory)) };
        let Ok(Ok(offer)) = offer else { return };
        self.kept = offer.kept;
        let identity = identity(&self.from_acceptor, &self.from_connector, self.ports);
        let local = local(&offer);
        let request = self.meeting.ask(&identity, &local, nonce).expect("enough to prove with");
        let request = self.forged(request);
        if let Ok(host) = self.host.as_mut() {
            self.has_asked = host.ask(NUMBER, service, request).is_ok();
        }
    }

    /// An attempt without an answer.
    pub(crate) fn give_up(&mut self) {
        if std::mem::take(&mut self.has_asked) {
            self.meeting.give_up();
            if let Ok(host) = self.host.as_mut() {
                host.forget(NUMBER);
            }
        }
    }

    pub(crate) fn send(&mut self, len: usize, now: u64) -> Result<usize, SendError> {
        let mut text = Text { stream: self.stream_out, position: self.sent, len };
        let mut io = SendContext {
            tx: self.tx.as_mut(),
            carrier: &mut self.tcp,
            ring: &mut self.ring[..self.kept],
            shared: &self.shared,
            now,
        };
        let sent = self.outbound.send(&mut io, &mut text, 0)?;
        self.sent += sent as u64;
        assert_eq!(self.outbound.stream(), self.sent);
        Ok(sent)
    }

    pub(crate) fn tend(&mut self, now: u64) -> Result<Option<u64>, SendError> {
        if let (Some(rx), false) = (self.rx.as_mut(), self.shared.is_broken()) {
            let _ = self.inbound.gather(rx, &self.tcp, &self.shared);
        }
        let mut io = SendContext {
            tx: self.tx.as_mut(),
            carrier: &mut self.tcp,
            ring: &mut self.ring[..self.kept],
            shared: &self.shared,
            now,
        };
        self.outbound.tend(&mut io)
    }

    pub(crate) fn recv(&mut self, room: usize) -> Result<usize, RecvError> {
        let mut check = Check { stream: self.stream_in, position: self.received, room };
        let mut io =
            ReceiveContext { rx: self.rx.as_mut(), carrier: &mut self.tcp, shared: &self.shared };
        let got = self.inbound.recv(&mut io, &mut check, false)?;
        assert_eq!(check.position, self.received + got as u64);
        self.received += got as u64;
        Ok(got)
    }

    pub(crate) fn by_sdp(&self) -> u64 {
        self.inbound.counts().bytes
    }
}

fn identity<'a>(acceptor: &'a Prefix, connector: &'a Prefix, ports: (u16, u16)) -> Identity<'a> {
    Identity {
        from_acceptor: acceptor,
        from_connector: connector,
        acceptor_port: ports.0,
        connector_port: ports.1,
        is_ipv6: false,
        key: &[],
    }
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) acceptor: End,
    pub(crate) connector: End,
    pub(crate) service: Address,
    /// In nanoseconds.
    pub(crate) now: u64,
}

impl Connection {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let connected = TcpStream::connect(address).expect("a connection");
        let (accepted, peer) = listener.accept().expect("a connection");
        let ports = (address.port(), peer.port());
        let acceptor = End::new(Role::Acceptor, accepted, ports);
        let connector = End::new(Role::Connector, connected, ports);
        let service = device_of(Role::Connector).with_port(free_port());
        Self { acceptor, connector, service, now: 1_000_000_000 }
    }

    pub(crate) fn end(&mut self, of: usize) -> &mut End {
        if of == 0 { &mut self.acceptor } else { &mut self.connector }
    }

    pub(crate) fn step(&mut self, ns: u64) {
        self.now += ns;
    }

    pub(crate) fn manage(&mut self) {
        let service = self.service;
        self.connector.listen(service);
        self.acceptor.manage();
        self.connector.manage();
    }

    pub(crate) fn ask(&mut self) {
        let service = self.service;
        self.acceptor.ask(service);
    }
}
