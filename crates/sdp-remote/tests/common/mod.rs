//! Two ends in one process: real TCP sockets over loopback, queue pairs of the simulator.

#![allow(dead_code)]

mod stream;

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use sdp_fabric_sim::{SimFabric, SimRx, SimTx, World, WorldOptions};
use sdp_proto::{Credits, Local};
use sdp_remote::{
    Agreement, Carrier, Event, Host, Identity, Inbound, LeaveError, Leaving, Meeting, Outbound,
    Prefix, ReceiveContext, RecvError, Role, SendContext, SendError, Shared,
};

pub(crate) use stream::{Check, Random, Tcp, Text, byte_at};

pub(crate) const BUFFERS: u16 = 8;
pub(crate) const BUFFER_BYTES: u32 = 1024;
pub(crate) const RING: usize = 6000;

/// What a sending half works with. A macro, because the half itself is another field of the same end.
macro_rules! send_context {
    ($end:ident, $now:expr) => {
        SendContext {
            tx: $end.tx.as_mut(),
            carrier: &mut $end.tcp,
            ring: &mut $end.ring,
            shared: &$end.shared,
            now: $now,
        }
    };
}

pub(crate) fn options() -> WorldOptions {
    WorldOptions {
        credits: sdp_fabric_sim::Credits::Explicit {
            buffers: BUFFERS,
            buffer_bytes: BUFFER_BYTES,
            // A sender that breaks its credit is found out.
            rnr: sdp_fabric_sim::RnrRetry::Times(0),
        },
        trace_lines: 200,
        ..WorldOptions::default()
    }
}

pub(crate) fn local() -> Local {
    Local {
        credits: Credits::Explicit,
        bufs: BUFFERS,
        receive_size: BUFFER_BYTES,
        lane_messages: true,
        zcopy: false,
        ring: None,
    }
}

/// One end of a connection, and its process.
pub(crate) struct End {
    pub(crate) role: Role,
    pub(crate) stream_out: u8,
    pub(crate) stream_in: u8,
    pub(crate) tcp: Tcp,
    pub(crate) host: Host<SimFabric, 4>,
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
    pub(crate) shared: Shared,
    pub(crate) meeting: Meeting,
    pub(crate) ring: Vec<u8>,
    pub(crate) tx: Option<SimTx>,
    pub(crate) rx: Option<SimRx>,
    /// Bytes sent and received by the program.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) from_acceptor: Prefix,
    pub(crate) from_connector: Prefix,
    pub(crate) ports: (u16, u16),
    pub(crate) has_asked: bool,
    pub(crate) nonces: u64,
    /// Meetings that came about.
    pub(crate) begun: u32,
    /// Calls, and those that were done steadily: of sends and of receives.
    calls: [u64; 2],
    pub(crate) steady: [u64; 2],
}

pub(crate) const NUMBER: u32 = 7;
/// Bytes that went raw before the first meeting.
pub(crate) const RAW: u64 = 100;

pub(crate) struct Pair {
    pub(crate) world: World,
    pub(crate) acceptor: End,
    pub(crate) connector: End,
    /// Before each meeting the queue pairs' ids: for kills.
    pub(crate) meetings: u32,
}

impl End {
    fn new(role: Role, tcp: TcpStream, fabric: SimFabric, ports: (u16, u16)) -> Self {
        let streams = if role == Role::Acceptor { (0, 1) } else { (1, 0) };
        let prefix = |stream| {
            let mut prefix = Prefix::new();
            (0..RAW).for_each(|at| prefix.add(&[byte_at(stream, at)]));
            prefix
        };
        tcp.set_nodelay(true).expect("a socket");
        tcp.set_nonblocking(true).expect("a socket");
        Self {
            role,
            stream_out: streams.0,
            stream_in: streams.1,
            tcp: Tcp(tcp),
            host: Host::new(fabric),
            outbound: Outbound::new(RAW),
            inbound: Inbound::new(RAW),
            shared: Shared::new(),
            meeting: Meeting::new(role),
            ring: vec![0; RING],
            tx: None,
            rx: None,
            sent: RAW,
            received: RAW,
            from_acceptor: prefix(0),
            from_connector: prefix(1),
            ports,
            has_asked: false,
            nonces: u64::from(role == Role::Acceptor),
            begun: 0,
            calls: [0; 2],
            steady: [0; 2],
        }
    }

    /// Whether the next call is made as the socket layer does; now and then it is made as it did
    /// before.
    fn begins_steadily(&mut self, half: usize) -> bool {
        self.calls[half] += 1;
        !self.calls[half].is_multiple_of(3)
    }

    fn nonce(&mut self) -> [u8; 8] {
        self.nonces += 2;
        self.nonces.to_be_bytes()
    }

    fn begin(&mut self, met: &Agreement, (tx, rx): (SimTx, SimRx)) {
        (self.tx, self.rx) = (Some(tx), Some(rx));
        sdp_remote::begin(&mut self.outbound, &mut self.inbound, &self.shared, met);
        self.outbound.invite();
        self.begun += 1;
    }

    pub(crate) fn may_meet(&self) -> bool {
        self.outbound.may_meet(&self.shared) && self.inbound.may_meet(&self.shared)
    }

    /// Connection management, as the socket layer will do it.
    pub(crate) fn manage(&mut self) {
        while let Some(event) = self.host.progress() {
            let identity = Identity {
                from_acceptor: &self.from_acceptor.clone(),
                from_connector: &self.from_connector.clone(),
                acceptor_port: self.ports.0,
                connector_port: self.ports.1,
                is_ipv6: false,
                key: &[],
            };
            match event {
                Event::Requested { id, service, data } => {
                    assert!(self.host.listeners(&service).any(|number| number == NUMBER));
                    if !self.may_meet() {
                        self.host.reject(id, 1);
                        continue;
                    }
                    let nonce = self.nonce();
                    let answer = self.meeting.answer(&identity, &local(), data.as_slice(), nonce);
                    let (reply, met) = answer.expect("an honest request");
                    if let Ok(halves) = self.host.accept(id, NUMBER, reply) {
                        self.begin(&met, halves);
                    }
                }
                Event::Established { number, tx, rx, data } => {
                    assert_eq!(number, NUMBER);
                    self.has_asked = false;
                    let met = self.meeting.learn(&identity, data.as_slice());
                    self.begin(&met.expect("an honest reply"), (tx, rx));
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
        if self.shared.is_link_dead() && self.inbound.may_destroy() {
            (self.tx, self.rx) = (None, None);
            self.host.forget(NUMBER);
            sdp_remote::end(&mut self.outbound, &mut self.inbound, &self.shared);
        }
    }

    pub(crate) fn ask(&mut self, service: sdp_fabric_sim::SimService) {
        if self.has_asked || !self.may_meet() {
            return;
        }
        let nonce = self.nonce();
        let identity = Identity {
            from_acceptor: &self.from_acceptor,
            from_connector: &self.from_connector,
            acceptor_port: self.ports.0,
            connector_port: self.ports.1,
            is_ipv6: false,
            key: &[],
        };
        let request = self.meeting.ask(&identity, &local(), nonce).expect("enough to prove with");
        self.has_asked = self.host.ask(NUMBER, service, request).is_ok();
    }

    pub(crate) fn send(&mut self, len: usize, now: u64) -> Result<usize, SendError> {
        let mut text = Text { stream: self.stream_out, position: self.sent, len };
        let begins_steadily = self.begins_steadily(0);
        let mut io = send_context!(self, now);
        let steadily = match begins_steadily {
            true => self.outbound.send_steadily(&mut io, &mut text),
            false => 0,
        };
        self.steady[0] += u64::from(steadily != 0);
        let sent = match steadily {
            0 => self.outbound.send(&mut io, &mut text, 0)?,
            sent => sent,
        };
        self.sent += sent as u64;
        assert_eq!(self.outbound.stream(), self.sent);
        Ok(sent)
    }

    pub(crate) fn tend(&mut self, now: u64) -> Result<Option<u64>, SendError> {
        let mut io = send_context!(self, now);
        self.outbound.tend(&mut io)
    }

    pub(crate) fn finish(&mut self, now: u64) -> Result<(), SendError> {
        let mut io = send_context!(self, now);
        self.outbound.finish(&mut io)
    }

    pub(crate) fn may_go_on(&mut self, now: u64) -> bool {
        let mut io = send_context!(self, now);
        self.outbound.may_go_on(&mut io)
    }

    /// Takes messages that have come off the queue pair, and reads nothing.
    pub(crate) fn gather(&mut self) {
        let rx = self.rx.as_mut().expect("a queue pair");
        self.inbound.gather(rx, &self.tcp, &self.shared).expect("an honest peer");
    }

    pub(crate) fn readable(&mut self) -> u64 {
        let mut io =
            ReceiveContext { rx: self.rx.as_mut(), carrier: &mut self.tcp, shared: &self.shared };
        self.inbound.readable(&mut io, &mut vec![0; 1 << 20])
    }

    pub(crate) fn recv(&mut self, room: usize, is_peek: bool) -> Result<usize, RecvError> {
        let mut check = Check { stream: self.stream_in, position: self.received, room };
        let begins_steadily = !is_peek && self.begins_steadily(1);
        let mut io =
            ReceiveContext { rx: self.rx.as_mut(), carrier: &mut self.tcp, shared: &self.shared };
        let steadily = match begins_steadily {
            true => self.inbound.recv_steadily(&mut io, &mut check)?,
            false => 0,
        };
        self.steady[1] += u64::from(steadily != 0);
        let mut got = match steadily {
            0 => self.inbound.recv(&mut io, &mut check, is_peek),
            got => Ok(got),
        };
        if matches!(got, Err(RecvError::WouldBlock)) && self.inbound.has_return() {
            loop {
                let (outbound, tcp) = (&mut self.outbound, &mut self.tcp);
                let ring = &mut self.ring;
                match sdp_remote::take_return(outbound, &mut self.inbound, tcp, &self.shared, ring)
                {
                    Err(RecvError::Carrier(libc::ENOBUFS)) if self.lengthen() => {}
                    taken => break taken?,
                }
            }
            let mut io = ReceiveContext {
                rx: self.rx.as_mut(),
                carrier: &mut self.tcp,
                shared: &self.shared,
            };
            got = self.inbound.recv(&mut io, &mut check, is_peek);
        }
        let got = got?;
        assert_eq!(check.position, self.received + got as u64);
        if !is_peek {
            self.received += got as u64;
        }
        Ok(got)
    }

    /// A step out of the library. The queue pair is ended first.
    pub(crate) fn leave(&mut self, now: u64) -> Result<Leaving, LeaveError> {
        if self.shared.has_link() && !self.shared.is_link_dead() {
            self.host.forget(NUMBER);
            self.shared.link_died();
        }
        let mut io = SendContext {
            tx: None::<&mut SimTx>,
            carrier: &mut self.tcp,
            ring: &mut self.ring,
            shared: &self.shared,
            now,
        };
        sdp_remote::leave(&mut self.outbound, &mut self.inbound, self.rx.as_mut(), &mut io)
    }

    /// A longer ring for bytes that go back. False: there are more than may.
    pub(crate) fn lengthen(&mut self) -> bool {
        let longer = sdp_remote::longer_ring(&self.outbound, &self.inbound, self.ring.len());
        let Some((len, end)) = longer else { return false };
        assert!(len > self.ring.len());
        let mut ring = vec![0; len];
        sdp_remote::copy_ring(&self.ring, &mut ring, end);
        self.ring = ring;
        true
    }

    /// Leaves no longer in order to give back: the bytes that it has taken are delivered, and it
    /// goes on.
    pub(crate) fn read_on(&mut self) {
        let (at, len) = sdp_remote::read_on(&mut self.outbound, &mut self.inbound);
        assert_eq!(at, self.received);
        for at in at..at + len as u64 {
            let byte = self.ring.get(at as usize % self.ring.len()).copied();
            assert_eq!(byte, Some(byte_at(self.stream_in, at)), "at {at}");
        }
        self.received += len as u64;
        // Nothing is left in receive buffers of a queue pair, and that goes.
        while !self.inbound.may_destroy() {
            let _ = self.recv(1 << 20, false);
        }
        (self.tx, self.rx) = (None, None);
        sdp_remote::end(&mut self.outbound, &mut self.inbound, &self.shared);
    }

    pub(crate) fn tend_reader(&mut self, now: u64) -> Result<Leaving, LeaveError> {
        let mut io = SendContext {
            tx: None::<&mut SimTx>,
            carrier: &mut self.tcp,
            ring: &mut self.ring,
            shared: &self.shared,
            now,
        };
        sdp_remote::tend_reader(&mut self.outbound, &mut self.inbound, &mut io)
    }

    /// Reads as a reader that knows the kernel's stream alone.
    pub(crate) fn read_plainly(&mut self, room: usize) -> usize {
        let mut bytes = vec![0; room];
        let got = match std::io::Read::read(&mut self.tcp.0, &mut bytes) {
            Ok(got) => got,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        };
        for byte in bytes.iter().take(got) {
            assert_eq!(*byte, byte_at(self.stream_in, self.received), "at {}", self.received);
            self.received += 1;
        }
        got
    }

    /// Writes as such a one.
    pub(crate) fn write_plainly(&mut self, len: usize) -> usize {
        let bytes: Vec<u8> =
            (0..len as u64).map(|n| byte_at(self.stream_out, self.sent + n)).collect();
        let sent = self.tcp.send([&bytes, &[]]).unwrap_or(0);
        self.sent += sent as u64;
        sent
    }

    pub(crate) fn foresee_return(&mut self) -> Result<(), RecvError> {
        let mut io =
            ReceiveContext { rx: self.rx.as_mut(), carrier: &mut self.tcp, shared: &self.shared };
        let ring = &mut self.ring;
        sdp_remote::foresee_return(&mut self.outbound, &mut self.inbound, &mut io, ring)
    }

    pub(crate) fn look(&mut self) -> Result<sdp_remote::Readable, RecvError> {
        let mut io =
            ReceiveContext { rx: self.rx.as_mut(), carrier: &mut self.tcp, shared: &self.shared };
        self.inbound.look(&mut io)
    }
}

impl Pair {
    pub(crate) fn new(seed: u64, options: WorldOptions) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let connected = TcpStream::connect(address).expect("a connection");
        let (accepted, peer) = listener.accept().expect("a connection");
        let ports = (address.port(), peer.port());
        let world = World::new(seed, options);
        let acceptor = End::new(Role::Acceptor, accepted, world.node(), ports);
        let mut connector = End::new(Role::Connector, connected, world.node(), ports);
        let service = connector.host.fabric().service(9);
        connector.host.listen(NUMBER, service).expect("a listener");
        Self { world, acceptor, connector, meetings: 0 }
    }

    pub(crate) fn end(&mut self, of: usize) -> &mut End {
        if of == 0 { &mut self.acceptor } else { &mut self.connector }
    }

    pub(crate) fn manage(&mut self) {
        self.acceptor.manage();
        self.connector.manage();
    }

    /// Connection management of an end that does not leave.
    pub(crate) fn manage_but(&mut self, leaves: [bool; 2]) {
        for (of, leaves) in leaves.into_iter().enumerate() {
            if !leaves {
                self.end(of).manage();
            }
        }
    }

    pub(crate) fn ask(&mut self) {
        let service = self.connector.host.fabric().service(9);
        self.acceptor.ask(service);
    }

    /// Lets everything happen that needs no program: both ends look and tend until the queue pair is up and
    /// both have invited.
    pub(crate) fn meet(&mut self) {
        self.ask();
        for _ in 0..200 {
            self.world.run_for(1_000_000);
            self.manage();
            let now = self.world.now_ns();
            for of in 0..2 {
                let _ = self.end(of).look();
                let _ = self.end(of).tend(now);
            }
            if self.acceptor.outbound.is_up(&self.acceptor.shared)
                && self.connector.outbound.is_up(&self.connector.shared)
            {
                // One more turn for the invitations.
                for of in [0, 1, 0, 1] {
                    self.world.run_for(1_000_000);
                    let now = self.world.now_ns();
                    let _ = self.end(of).look();
                    let _ = self.end(of).tend(now);
                }
                self.meetings += 1;
                return;
            }
        }
        panic!("no meeting\n{}", self.world.trace());
    }
}
