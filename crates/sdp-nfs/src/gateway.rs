//! The gateway: listens on an address of an RDMA device, and has one connection to the server for
//! each client.
//!
//! One thread, one set of descriptors. It looks at its clients as long as there is something to do,
//! then asks the device and the sockets to wake it. A client is let in when its address is in a
//! network that was named and the server has accepted a connection; it is let go when either of the
//! two ends.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

use sdp_fabric_verbs::{
    Address, budget,
    cm::Times,
    endpoint::Core,
    fabric::{Id, Options, VerbsFabric},
    pool::Shared,
};
use sdp_rdma::{
    cm::{PrivateData, Reject},
    fabric::{CmEvent, Fabric},
    key::Access,
};
use sdp_rpcrdma::{
    private_data::Offer,
    responder::{Responder, Settings as Terms},
};
use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    allow::Network,
    client::{Client, RECORD_MAX},
    control::{Control, Handover, Other, Said},
    counts::{Counts, End, Refusal, Spans},
    poll::Set,
    pool::{self, Pool},
};

/// The port of NFS over RDMA.
pub const PORT: u16 = 20049;
/// The port of NFS.
pub const SERVER_PORT: u16 = 2049;
/// Bytes of registered memory that are asked for unless told otherwise.
pub const MEMORY: usize = 64 << 20;
/// How long an end of TCP may be silent in the middle of a record, or take nothing.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Calls that a client may have without a reply.
const CREDITS: u32 = 32;
/// Bytes of the longest message, each way.
const MESSAGE: u32 = budget::BUFFER as u32;
/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long calls may take to end when this process ends.
const DRAIN: Duration = Duration::from_secs(10);
/// A client that is silent for so long is asked whether it is there.
pub const SILENCE: Duration = Duration::from_secs(30);
/// How long a replacement may take to listen, or the address to be free for one.
const HANDOVER_LIMIT: Duration = Duration::from_secs(10);
/// Longest sleep.
const SLEEP_MS: i32 = 1000;
/// Rounds in a row after which the descriptors are looked at, whatever clients send.
const ROUNDS: u32 = 32;
/// Ports that only a privileged process may use, as servers expect of clients.
const PRIVILEGED: std::ops::Range<u16> = 600..1024;
/// READs in flight for one client: every device can do as many.
const READS: u8 = 16;
/// A refusal's code in the connection manager's private data.
const REFUSED: u8 = 1;

/// Names in the set; clients come behind.
const WAKE: u64 = 1;
const MANAGER: u64 = 2;
const DEVICE: u64 = 3;
const END: u64 = 4;
const CONTROL: u64 = 5;
const HANDOVER: u64 = 6;
const REPLACEMENT: u64 = 7;
const FIRST: u64 = 16;
/// Version of the status.
const SCHEMA: u32 = 1;

/// How a gateway is to be.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where it listens: an address of an RDMA device.
    pub listen: SocketAddr,
    /// Where the server is, by TCP.
    pub server: SocketAddr,
    /// Who may connect.
    pub allow: Vec<Network>,
    /// The address from which it connects to the server.
    pub source: Option<IpAddr>,
    /// Bytes of registered memory.
    pub memory: usize,
    /// How long the server may be silent in the middle of a record.
    pub timeout: Duration,
    /// A client that is silent for so long is asked whether it is there.
    pub silence: Duration,
    /// A gateway that has the address is replaced.
    pub takeover: bool,
    /// With `takeover`: all gateways of this process, which replace others together or not at all.
    pub others: Option<Arc<Barrier>>,
    /// Gateways in this process, which share the memory that may be locked.
    pub gateways: usize,
}

/// Why a gateway cannot work.
#[derive(Debug)]
pub struct Failure(pub String);

impl Settings {
    /// As the command is without options.
    pub const fn new(listen: SocketAddr, server: SocketAddr, allow: Vec<Network>) -> Self {
        Self {
            listen,
            server,
            allow,
            source: None,
            memory: MEMORY,
            timeout: TIMEOUT,
            silence: SILENCE,
            takeover: false,
            others: None,
            gateways: 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

pub(crate) fn failure<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Failure {
    move |why| Failure(format!("{what}: {why}"))
}

/// A connection's place.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are clients")]
enum Entry {
    /// The server was asked for a connection.
    Asking { id: Id, peer: Option<IpAddr>, theirs: Offer, server: Socket, deadline: Instant },
    /// Both connections are there.
    Open(Client, Instant),
    /// The queue pair is ending.
    Ending(Client),
}

/// A gateway on one address.
#[derive(Debug)]
pub struct Gateway {
    settings: Settings,
    entries: Vec<Option<Entry>>,
    core: Shared<Core>,
    /// Before the pool, which it has registered.
    fabric: VerbsFabric,
    pool: Pool,
    set: Set,
    /// Watched as long as the set is.
    _end: OwnedFd,
    is_armed: bool,
    has_events: bool,
    drained: Option<Instant>,
    totals: Counts,
    spans: Spans,
    ends: BTreeMap<&'static str, u64>,
    control: Option<(Control, Handover)>,
    /// The process that is about to listen in the place of this one.
    replacement: Option<(Other, Instant)>,
    refused: BTreeMap<String, u64>,
    refusals: BTreeMap<&'static str, u64>,
}

/// As the fabric names it.
pub(crate) fn address_of(address: SocketAddr) -> Address {
    match address {
        SocketAddr::V4(v4) => Address::v4(v4.ip().octets(), v4.port()),
        SocketAddr::V6(v6) => Address::v6(v6.ip().octets(), v6.port(), v6.scope_id()),
    }
}

/// Bytes of the pool, and what the fabric may pin beside it.
fn memory(wanted: usize, gateways: usize) -> Result<(usize, Option<u64>), Failure> {
    let limit = budget::limit();
    if limit == u64::MAX {
        return Ok((wanted.max(2 * pool::MOST), None));
    }
    let share = limit / gateways.max(1) as u64;
    let half = usize::try_from(share / 2).unwrap_or(usize::MAX);
    if half < 2 * pool::MOST {
        let least = (4 * pool::MOST * gateways.max(1)) >> 10;
        return Err(Failure(format!(
            "{} KiB of memory may be locked, at least {least} KiB are needed: raise `ulimit -l`, \
             or LimitMEMLOCK of the service",
            limit >> 10
        )));
    }
    Ok((wanted.clamp(2 * pool::MOST, half), Some(share / 2)))
}

/// Listens, in the place of another gateway if that is wanted and there is one.
fn listen(fabric: &mut VerbsFabric, settings: &Settings) -> Result<(), Failure> {
    let at = settings.listen;
    let mut replaced = if settings.takeover {
        Other::replaced(at).map_err(failure(format!("the gateway on {at} does not give way")))?
    } else {
        None
    };
    let deadline = Instant::now() + HANDOVER_LIMIT;
    loop {
        match fabric.listen(address_of(at)) {
            Ok(()) => break,
            // The other one's listener goes behind its word.
            Err(Reject::Busy) if replaced.is_some() && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(why) => return Err(Failure(format!("{at} cannot be listened on: {why:?}"))),
        }
    }
    if let Some(others) = &settings.others {
        // The other one ends at the word: not before all of ours have come to listen.
        others.wait();
    }
    if let Some(other) = &mut replaced {
        // If it has ended, so has what it was to do.
        let _ = other.tell();
    }
    Ok(())
}

impl Gateway {
    /// Opens the device, registers memory and listens.
    ///
    /// # Errors
    /// What is missing.
    pub fn new(settings: Settings, end: OwnedFd) -> Result<Self, Failure> {
        let address = address_of(settings.listen);
        let (bytes, pinned) = memory(settings.memory, settings.gateways)?;
        // A client that is gone is noticed after two seconds of tries.
        // Who calls has a receive buffer for the reply, and who does not fails his own queue pair in
        // seconds: send buffers are the fabric's, and he would keep them from all others.
        let (rnr_retries, min_rnr_timer) = (6, 26);
        let usual = Times { rnr_retries, min_rnr_timer, ..Times::USUAL };
        let times = Times { ack_timeout: 16, reads: READS, ..usual };
        let options = Options {
            promise: CREDITS,
            times,
            memory: pinned,
            // A client that sends more than it may fails its own queue alone.
            shared_receives: false,
            ..Options::default()
        };
        let mut fabric = VerbsFabric::open(&address, &options)
            .map_err(failure(format!("no RDMA device with address {}", settings.listen.ip())))?;
        let mut pool = Pool::new(bytes).map_err(failure("memory for transfers"))?;
        let (at, len) = pool.range();
        let region = fabric.register(at, len, Access::default()).map_err(|why| {
            Failure(format!("{} KiB of memory cannot be registered: {why:?}", len >> 10))
        })?;
        pool.registered(&region);
        let set = Set::new().map_err(failure("epoll"))?;
        let [_, device, wake, manager] = fabric.descriptors();
        for (fd, name) in
            [(device, DEVICE), (wake, WAKE), (manager, MANAGER), (end.as_raw_fd(), END)]
        {
            set.watch(fd, name).map_err(failure("epoll"))?;
        }
        listen(&mut fabric, &settings)?;
        let core = fabric.core();
        Ok(Self {
            settings,
            entries: Vec::new(),
            core,
            fabric,
            pool,
            set,
            _end: end,
            is_armed: false,
            has_events: true,
            drained: None,
            totals: Counts::default(),
            spans: Spans::default(),
            ends: BTreeMap::new(),
            control: None,
            replacement: None,
            refused: BTreeMap::new(),
            refusals: BTreeMap::new(),
        })
    }

    /// Tells its status by a socket of its user's, and gives its place to a process that connects to
    /// another one.
    ///
    /// # Errors
    /// There is no folder for them.
    pub fn offer_status(&mut self) -> io::Result<()> {
        let control = Control::new(self.settings.listen)?;
        let handover = Handover::new(self.settings.listen)?;
        self.set.watch(control.descriptor(), CONTROL)?;
        self.set.watch(handover.descriptor(), HANDOVER)?;
        self.control = Some((control, handover));
        Ok(())
    }

    /// What an operator may want to know.
    pub fn status(&self) -> String {
        let mut spans = self.spans.clone();
        let mut clients = Vec::new();
        for entry in self.entries.iter().flatten() {
            if let Entry::Open(client, _) = entry {
                clients.push(client.to_json());
            }
            if let Entry::Open(client, _) | Entry::Ending(client) = entry {
                spans.add(client.spans());
            }
        }
        let status = json!({
            "schema": SCHEMA,
            "listen": self.settings.listen.to_string(),
            "server": self.settings.server.to_string(),
            "device": String::from_utf8_lossy(self.fabric.device_name()),
            "allow": self.settings.allow.iter().map(Network::to_string).collect::<Vec<_>>(),
            "ending": self.drained.is_some(),
            "memory": { "bytes": self.memory(), "free": self.free_memory() },
            "clients": clients,
            "refused": self.refused,
            "refusals": self.refusals,
            "ended": self.ends,
            "counts": self.counts().to_json(),
            "microseconds": spans.to_json(),
        });
        format!("{status:#}\n")
    }

    /// Serves until this process is asked to end and all calls have ended.
    ///
    /// # Errors
    /// The device is gone.
    pub fn run(&mut self) -> Result<(), Failure> {
        loop {
            let mut rounds = 0;
            while rounds < ROUNDS && self.round() {
                rounds += 1;
            }
            if self.fabric.is_lost() {
                return Err(Failure("the RDMA device is gone".to_string()));
            }
            if self.drained.is_some() && self.entries.iter().all(Option::is_none) {
                return Ok(());
            }
            if rounds == ROUNDS {
                self.sleep(0);
                continue;
            }
            if !self.is_armed {
                self.fabric.arm(false).map_err(failure("completions cannot be waited for"))?;
                self.is_armed = true;
                // What came before that wakes nobody.
                if self.round() {
                    continue;
                }
            }
            self.sleep(SLEEP_MS);
        }
    }

    fn sleep(&mut self, most_ms: i32) {
        let mut woken = false;
        let (entries, mut has_events, mut is_end) = (&mut self.entries, false, false);
        let (mut is_asked, mut is_replaced) = (false, false);
        self.set.wait(most_ms, |event| match event.name {
            WAKE => woken = true,
            MANAGER | DEVICE => has_events = true,
            END => is_end = true,
            CONTROL => is_asked = true,
            HANDOVER | REPLACEMENT => is_replaced = true,
            name => {
                let entry = entries.get_mut((name - FIRST) as usize).and_then(Option::as_mut);
                if let Some(Entry::Open(client, _)) = entry {
                    client.edges.note(event.what);
                }
            }
        });
        self.has_events |= has_events;
        if woken && self.fabric.take_wakeups() {
            self.is_armed = false;
        }
        if let Some((control, _)) = self.control.as_ref().filter(|_| is_asked) {
            control.answer(|| self.status());
        }
        if is_replaced || self.replacement.is_some() {
            self.hand_over();
        }
        if is_end {
            self.drain();
        }
    }

    /// Makes place for a replacement, ends when it listens, and listens again if it never does.
    fn hand_over(&mut self) {
        if let Some((other, deadline)) = self.replacement.as_mut() {
            let said = other.said();
            if said == Said::Nothing && Instant::now() < *deadline {
                return;
            }
            self.replacement = None;
            if said == Said::Listens {
                say!("sdp nfs gateway: another one has taken over");
                return self.drain();
            }
            if self.drained.is_some() {
                return;
            }
            say!("sdp nfs gateway: one that was to take over does not listen");
            let alone = Settings { takeover: false, others: None, ..self.settings.clone() };
            let again = listen(&mut self.fabric, &alone);
            let offered = again.map(|()| self.offer_status());
            match offered {
                Ok(Ok(())) => {}
                Ok(Err(e)) => say!("sdp nfs gateway: no socket for `sdp nfs stat`: {e}"),
                Err(why) => {
                    say!("sdp nfs gateway: {why}");
                    self.drain();
                }
            }
            return;
        }
        let asked = self.control.as_ref().and_then(|(_, handover)| handover.replacement());
        if let Some(mut other) = asked.filter(|_| self.drained.is_none()) {
            self.fabric.unlisten(address_of(self.settings.listen));
            // The replacement has sockets of these names.
            self.control = None;
            let deadline = Instant::now() + HANDOVER_LIMIT;
            // One that cannot be told or watched has ended, which is seen next.
            let _ = other.tell();
            let _ = self.set.watch(other.descriptor(), REPLACEMENT);
            self.replacement = Some((other, deadline));
        }
    }

    /// Ends: no new clients and no new calls.
    fn drain(&mut self) {
        if self.drained.is_some() {
            return;
        }
        self.drained = Some(Instant::now() + DRAIN);
        self.fabric.unlisten(address_of(self.settings.listen));
        for entry in self.entries.iter_mut().flatten() {
            if let Entry::Open(client, _) = entry {
                client.drain();
            }
        }
    }

    /// Does what can be done now; whether there was something.
    fn round(&mut self) -> bool {
        let mut had_some = false;
        if std::mem::take(&mut self.has_events) || self.fabric.is_due() {
            while let Some(event) = self.fabric.poll_cm() {
                had_some = true;
                self.handle(event);
            }
        }
        self.core.drain();
        for index in 0..self.entries.len() {
            had_some |= self.look(index);
        }
        had_some
    }

    fn handle(&mut self, event: CmEvent<Id>) {
        match event {
            CmEvent::Request(id, data) => self.request(id, &data),
            CmEvent::Disconnected(id) => {
                let is_its = |entry: &&mut Entry| match entry {
                    Entry::Open(client, _) => client.id == id,
                    _ => false,
                };
                if let Some(Entry::Open(client, _)) = self.entries.iter_mut().flatten().find(is_its)
                {
                    client.fail(End::ClientGone);
                    // Its next request may be the next event.
                    client.hang_up();
                }
            }
            CmEvent::Established(..) | CmEvent::Rejected(..) | CmEvent::Unreachable(_) => {}
        }
    }

    fn request(&mut self, id: Id, data: &PrivateData) {
        let peer = self.fabric.peer(id).and_then(|address| address.ip());
        let is_allowed = self.settings.allow.iter().any(|network| match peer {
            Some(peer) => network.has(peer),
            None => *network == Network::Any,
        });
        if self.drained.is_some() {
            return self.refuse(id, peer, Refusal::Ending, "this process ends");
        }
        if !is_allowed {
            return self.refuse(id, peer, Refusal::NotAllowed, "not in --allow");
        }
        match self.connect(peer) {
            Ok(server) => {
                let index = self.entries.iter().position(Option::is_none).unwrap_or_else(|| {
                    self.entries.push(None);
                    self.entries.len() - 1
                });
                let name = FIRST + index as u64;
                if self.set.watch_edges(server.as_raw_fd(), name).is_err() {
                    let why = "no room in the set of descriptors";
                    return self.refuse(id, peer, Refusal::NoRoom, why);
                }
                let theirs = Offer::find(data.as_slice());
                let deadline = Instant::now() + CONNECT;
                self.entries[index] = Some(Entry::Asking { id, peer, theirs, server, deadline });
            }
            Err(why) => self.refuse(id, peer, Refusal::NoServer, &format!("server: {why}")),
        }
    }

    fn refuse(&mut self, id: Id, peer: Option<IpAddr>, refusal: Refusal, why: &str) {
        self.fabric.reject(id, REFUSED);
        let peer = shown(peer);
        *self.refusals.entry(refusal.name()).or_insert(0) += 1;
        say!("sdp nfs gateway: {peer} refused: {why}");
        // Bounded, whoever asks.
        if self.refused.len() < 1024 || self.refused.contains_key(&peer) {
            *self.refused.entry(peer).or_insert(0) += 1;
        }
    }

    /// Begins a connection to the server, from a privileged port where this process may use one. A
    /// client that comes back has the port that it had, if no other connection has it now: the
    /// server knows repeated calls by it.
    fn connect(&mut self, peer: Option<IpAddr>) -> io::Result<Socket> {
        let to = self.settings.server;
        let any = match to {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let source = self.settings.source.unwrap_or(any);
        let candidates = ports_of(peer).chain([0]);
        let mut why = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for port in candidates {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            socket.set_keepalive(true)?;
            // A connection that ends leaves its port free at once, also when this process is killed.
            socket.set_linger(Some(Duration::ZERO))?;
            let begun = socket.bind(&SocketAddr::new(source, port).into()).and_then(|()| {
                match socket.connect(&to.into()) {
                    Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
                    begun => begun,
                }
            });
            let Err(e) = begun else { return Ok(socket) };
            let is_taken = matches!(
                e.kind(),
                io::ErrorKind::AddrInUse
                    | io::ErrorKind::AddrNotAvailable
                    | io::ErrorKind::PermissionDenied
            );
            if !is_taken {
                return Err(e);
            }
            why = e;
        }
        Err(why)
    }

    /// Looks after one place; whether there was something to do.
    fn look(&mut self, index: usize) -> bool {
        match &mut self.entries[index] {
            None => false,
            Some(Entry::Asking { server, deadline, .. }) => {
                let state = match server.take_error() {
                    Ok(Some(e)) | Err(e) => Some(Err(e)),
                    Ok(None) if server.peer_addr().is_ok() => Some(Ok(())),
                    Ok(None) if *deadline < Instant::now() => {
                        Some(Err(io::Error::from(io::ErrorKind::TimedOut)))
                    }
                    Ok(None) => None,
                };
                let Some(state) = state else { return false };
                if let Some(Entry::Asking { id, peer, theirs, server, .. }) =
                    self.entries[index].take()
                {
                    match state {
                        Ok(()) => self.accept(index, id, peer, theirs, server),
                        Err(why) => {
                            let why = format!("server: {why}");
                            self.refuse(id, peer, Refusal::NoServer, &why);
                        }
                    }
                }
                true
            }
            Some(Entry::Open(client, heard)) => {
                let had_some = client.step(&mut self.pool, self.settings.timeout);
                if had_some {
                    *heard = Instant::now();
                } else if heard.elapsed() > self.settings.silence {
                    *heard = Instant::now();
                    client.probe();
                }
                if let Some(deadline) = self.drained
                    && (client.is_idle() || deadline < Instant::now())
                {
                    client.fail(End::Drained);
                }
                let Some(end) = client.end() else { return had_some };
                say!("sdp nfs gateway: {} ended: {}", shown(client.peer), end.name());
                *self.ends.entry(end.name()).or_insert(0) += 1;
                if let Some(Entry::Open(mut client, _)) = self.entries[index].take() {
                    // First: a client that comes back, also to another process, has the port again.
                    client.hang_up();
                    self.fabric.disconnect(client.id);
                    self.entries[index] = Some(Entry::Ending(client));
                }
                true
            }
            Some(Entry::Ending(client)) => {
                let counts = self.core.counts(client.id.index());
                if !counts.is_none_or(|counts| counts.has_ended) {
                    return false;
                }
                if let Some(Entry::Ending(client)) = self.entries[index].take() {
                    let (counts, spans) = client.bury(&mut self.pool);
                    self.totals.add(&counts);
                    self.spans.add(&spans);
                }
                true
            }
        }
    }

    /// The server has accepted: so does the gateway.
    fn accept(
        &mut self,
        index: usize,
        id: Id,
        peer: Option<IpAddr>,
        theirs: Offer,
        server: Socket,
    ) {
        let ours = Offer { remote_invalidation: false, sends: MESSAGE, receives: MESSAGE };
        let credits = self.fabric.promised(id);
        let Some(data) = PrivateData::new(&ours.to_bytes()) else { return };
        if let Err(why) = self.fabric.accept(id, data) {
            return self.refuse(id, peer, Refusal::NotAccepted, &format!("{why:?}"));
        }
        let Some(queues) = self.fabric.take_queues(id) else { return };
        let terms = Terms { credits, ours, theirs, most: RECORD_MAX - 4096 };
        say!("sdp nfs gateway: {} connected, {credits} credits", shown(peer));
        let client = Client::new(id, peer, queues, server.into(), Responder::new(terms));
        self.entries[index] = Some(Entry::Open(client, Instant::now()));
    }

    /// What was counted, of clients that are gone too.
    pub fn counts(&self) -> Counts {
        let mut all = self.totals.clone();
        for entry in self.entries.iter().flatten() {
            if let Entry::Open(client, _) | Entry::Ending(client) = entry {
                all.add(client.counts());
            }
        }
        all
    }

    /// Bytes of the pool.
    pub const fn memory(&self) -> usize {
        self.pool.bytes()
    }

    /// Bytes of the pool that no call has.
    pub const fn free_memory(&self) -> usize {
        self.pool.free_bytes()
    }

    /// Clients that were refused, by address.
    pub const fn refused(&self) -> &BTreeMap<String, u64> {
        &self.refused
    }
}

/// The privileged ports in the order in which a client's connections try them: each address has an
/// order of its own, which stays the same.
fn ports_of(peer: Option<IpAddr>) -> impl Iterator<Item = u16> {
    let count = u64::from(PRIVILEGED.end - PRIVILEGED.start);
    let mixed = match peer {
        Some(IpAddr::V4(v4)) => u64::from(u32::from(v4)),
        Some(IpAddr::V6(v6)) => (u128::from(v6) >> 64) as u64 ^ u128::from(v6) as u64,
        None => 0,
    };
    let first = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (0..count).map(move |at| PRIVILEGED.start + ((first + at) % count) as u16)
}

fn shown(peer: Option<IpAddr>) -> String {
    peer.map_or("a client without an address".to_string(), |peer| peer.to_string())
}
