//! The proxy: NFS on TCP for this host's clients, RPC-over-RDMA to a server.
//!
//! The other way round than a gateway: a client without RDMA in its kernel, or in user space, uses a
//! server that listens for RDMA, a gateway or another. One thread and one set of descriptors, as
//! there; each client has a queue pair of its own, so XIDs stay what they are.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use sdp_fabric_verbs::{
    budget,
    cm::Times,
    endpoint::Core,
    fabric::{Id, Options, VerbsFabric},
    pool::Shared,
};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric},
};
use sdp_rpcrdma::{
    private_data::Offer,
    requester::{Requester, Settings as Terms},
};
use serde_json::json;

use crate::{
    areas::{self, Areas},
    control::Control,
    counts::{End, LocalCounts, Refusal},
    gateway::{Failure, address_of, failure},
    local::{Link, Local, Up},
    null_rdma,
    poll::Set,
};

/// The port on which clients find NFS, and the one of MOUNT.
pub const PORT: u16 = 12049;
/// See [`PORT`].
pub const MOUNT_PORT: u16 = 12048;
/// Bytes of registered memory that are asked for unless told otherwise.
pub const MEMORY: usize = 64 << 20;
/// Calls that are asked for on one connection.
const CREDITS: u32 = 32;
/// Bytes of the longest message, each way.
const MESSAGE: u32 = budget::BUFFER as u32;
/// Clients at a time that have one connection to the server each.
const CLIENTS_MAX: usize = 64;
/// Connections to the server that a client may have.
pub const QUEUE_PAIRS_MAX: usize = 16;
/// How long calls may take to end when this process ends.
const DRAIN: Duration = Duration::from_secs(10);
/// Longest sleep, and the longest while a connection is to be made.
const SLEEP_MS: (i32, i32) = (1000, 50);
/// How long no client is accepted after one could not be.
const PAUSE: Duration = Duration::from_secs(1);
/// Rounds in a row after which the descriptors are looked at, whatever clients send.
const ROUNDS: u32 = 32;
/// READs of the server's in flight on one connection. A server may refuse who offers none.
const READS: u8 = 16;

/// Names in the set; clients come behind.
const WAKE: u64 = 1;
const MANAGER: u64 = 2;
const DEVICE: u64 = 3;
const END: u64 = 4;
const CONTROL: u64 = 5;
const LISTENER: u64 = 6;
const FIRST: u64 = 16;
/// Version of the status.
const SCHEMA: u32 = 1;

/// How a proxy is to be.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where clients find it, on this host.
    pub listen: SocketAddr,
    /// The server, by RDMA: one address or several.
    pub servers: Vec<SocketAddr>,
    /// Connections to the server for each client.
    pub queue_pairs: usize,
    /// The address of this host's RDMA device; `None`: that which leads to the server.
    pub from: Option<SocketAddr>,
    /// Clients from ports above 1023 too.
    pub insecure: bool,
    /// Bytes of registered memory.
    pub memory: usize,
    /// How long a client may be silent in the middle of a record, or take no reply.
    pub timeout: Duration,
}

/// A proxy.
#[derive(Debug)]
pub struct Proxy {
    settings: Settings,
    clients: Vec<Option<Local>>,
    core: Shared<Core>,
    /// Before the areas, which it has registered.
    fabric: VerbsFabric,
    areas: Areas,
    listener: Option<TcpListener>,
    set: Set,
    /// Watched as long as the set is.
    _end: OwnedFd,
    is_armed: bool,
    has_events: bool,
    has_clients: bool,
    /// When the listener is watched again.
    again: Option<Instant>,
    drained: Option<Instant>,
    totals: LocalCounts,
    ends: BTreeMap<&'static str, u64>,
    refused: u64,
    refusals: BTreeMap<&'static str, u64>,
    control: Option<Control>,
    mount: Option<SocketAddr>,
}

/// Bytes of the areas, and what the fabric may pin beside them.
fn memory(wanted: usize) -> Result<(usize, Option<u64>), Failure> {
    let limit = budget::limit();
    if limit == u64::MAX {
        return Ok((wanted.max(areas::LEAST), None));
    }
    // A quarter is for the queues.
    let most = usize::try_from(limit - limit / 4).unwrap_or(usize::MAX);
    if most < areas::LEAST {
        return Err(Failure(format!(
            "{} KiB of memory may be locked, at least {} KiB are needed: raise `ulimit -l`, or \
             LimitMEMLOCK of the service",
            limit >> 10,
            (areas::LEAST / 3 * 4) >> 10
        )));
    }
    Ok((wanted.clamp(areas::LEAST, most), Some(limit / 4)))
}

impl Proxy {
    /// Opens the device, registers memory and listens.
    ///
    /// # Errors
    /// What is missing.
    pub fn new(settings: Settings, end: OwnedFd) -> Result<Self, Failure> {
        let listen = settings.listen;
        let no_server = || Failure("no server is named".to_string());
        let server = *settings.servers.first().ok_or_else(no_server)?;
        if !listen.ip().is_loopback() {
            return Err(Failure(format!(
                "{listen} is no address of this host alone: to the server every client of the \
                 proxy is this host"
            )));
        }
        let from = match settings.from {
            Some(from) => from,
            None => null_rdma::own(server).map_err(failure(format!("no way to {server}")))?,
        };
        let (bytes, pinned) = memory(settings.memory)?;
        let times = Times { ack_timeout: 16, reads: READS, ..Times::USUAL };
        let options = Options {
            connections: CLIENTS_MAX,
            promise: CREDITS,
            times,
            memory: pinned,
            shared_receives: false,
            ..Options::default()
        };
        let mut fabric = VerbsFabric::open(&address_of(from), &options)
            .map_err(failure(format!("no RDMA device with address {}", from.ip())))?;
        let areas = Areas::new(&mut fabric, bytes).map_err(Failure)?;
        let listener = TcpListener::bind(listen)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(failure(format!("{listen} cannot be listened on")))?;
        let set = Set::new().map_err(failure("epoll"))?;
        let [_, device, wake, manager] = fabric.descriptors();
        for (fd, name) in [
            (device, DEVICE),
            (wake, WAKE),
            (manager, MANAGER),
            (end.as_raw_fd(), END),
            (listener.as_raw_fd(), LISTENER),
        ] {
            set.watch(fd, name).map_err(failure("epoll"))?;
        }
        let core = fabric.core();
        Ok(Self {
            settings,
            clients: Vec::new(),
            core,
            fabric,
            areas,
            listener: Some(listener),
            set,
            _end: end,
            is_armed: false,
            has_events: true,
            has_clients: false,
            again: None,
            drained: None,
            totals: LocalCounts::default(),
            ends: BTreeMap::new(),
            refused: 0,
            refusals: BTreeMap::new(),
            control: None,
            mount: None,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The kernel's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        listener.local_addr()
    }

    /// Its status says where MOUNT is relayed.
    pub const fn relays_mount(&mut self, at: SocketAddr) {
        self.mount = Some(at);
    }

    /// Tells its status to who connects to a socket of its user's.
    ///
    /// # Errors
    /// There is no folder for it.
    pub fn offer_status(&mut self) -> io::Result<()> {
        let control = Control::new(self.address()?)?;
        self.set.watch(control.descriptor(), CONTROL)?;
        self.control = Some(control);
        Ok(())
    }

    /// What an operator may want to know.
    pub fn status(&self) -> String {
        let clients: Vec<_> = self.clients.iter().flatten().map(Local::to_json).collect();
        let (used, areas) = self.areas.used();
        let status = json!({
            "schema": SCHEMA,
            "role": "proxy",
            "listen": self.settings.listen.to_string(),
            "mount": self.mount.map(|at| at.to_string()),
            "server": self.settings.servers.first().map(SocketAddr::to_string),
            "servers": self.settings.servers.iter().map(SocketAddr::to_string).collect::<Vec<_>>(),
            "device": String::from_utf8_lossy(self.fabric.device_name()),
            "ending": self.drained.is_some(),
            "memory": { "bytes": self.areas.bytes(), "areas": areas, "used": used },
            "clients": clients,
            "refused": self.refused,
            "refusals": self.refusals,
            "ended": self.ends,
            "counts": self.counts().to_json(),
        });
        format!("{status:#}\n")
    }

    /// What was counted, of clients that are gone too.
    pub fn counts(&self) -> LocalCounts {
        let mut all = self.totals.clone();
        self.clients.iter().flatten().for_each(|client| all.add(client.counts()));
        all
    }

    /// Areas in use, and all.
    pub fn areas(&self) -> (usize, usize) {
        self.areas.used()
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
            if self.drained.is_some() && self.clients.iter().all(Option::is_none) {
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
            let mut paths = self.clients.iter().flatten().flat_map(|client| &client.paths);
            let all_up = paths.all(|path| matches!(path.link, Link::Up(_)));
            self.sleep(if all_up { SLEEP_MS.0 } else { SLEEP_MS.1 });
        }
    }

    fn sleep(&mut self, most_ms: i32) {
        let (mut woken, mut has_events, mut is_end, mut is_asked) = (false, false, false, false);
        let (clients, mut has_clients) = (&mut self.clients, false);
        self.set.wait(most_ms, |event| match event.name {
            WAKE => woken = true,
            MANAGER | DEVICE => has_events = true,
            END => is_end = true,
            CONTROL => is_asked = true,
            LISTENER => has_clients = true,
            name => {
                let client = clients.get_mut((name - FIRST) as usize).and_then(Option::as_mut);
                if let Some(client) = client {
                    client.edges.note(event.what);
                }
            }
        });
        self.has_events |= has_events;
        self.has_clients |= has_clients;
        if woken && self.fabric.take_wakeups() {
            self.is_armed = false;
        }
        if let Some(control) = self.control.as_ref().filter(|_| is_asked) {
            control.answer(|| self.status());
        }
        if is_end && self.drained.is_none() {
            self.drained = Some(Instant::now() + DRAIN);
            self.listener = None;
            self.clients.iter_mut().flatten().for_each(Local::drain);
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
        if let Some(listener) = &self.listener
            && self.again.is_some_and(|again| again <= Instant::now())
            && self.set.watch(listener.as_raw_fd(), LISTENER).is_ok()
        {
            self.again = None;
        }
        if std::mem::take(&mut self.has_clients) {
            had_some |= self.let_in();
        }
        for index in 0..self.clients.len() {
            had_some |= self.look(index);
        }
        had_some
    }

    /// Accepts clients.
    fn let_in(&mut self) -> bool {
        let mut had_some = false;
        while let Some(listener) = &self.listener {
            let (stream, from) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    // Often for want of a descriptor: the connection stays in the listener's queue.
                    say!("sdp nfs proxy: no client is accepted for a while: {e}");
                    self.set.unwatch(listener.as_raw_fd());
                    self.again = Some(Instant::now() + PAUSE);
                    break;
                }
            };
            had_some = true;
            // Ports below 1024 are of programs that the kernel trusts to say who asks.
            let is_known = self.settings.insecure || from.port() < 1024;
            let free = self.clients.iter().position(Option::is_none);
            let index = free.unwrap_or(self.clients.len());
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            let most = CLIENTS_MAX / self.settings.queue_pairs.clamp(1, QUEUE_PAIRS_MAX);
            if !is_known || index >= most || ready.is_err() {
                let (refusal, why) = match is_known {
                    true => (Refusal::NoRoom, "too many clients"),
                    false => (Refusal::Port, "its port is above 1023"),
                };
                say!("sdp nfs proxy: {from} refused: {why}");
                self.refused += 1;
                *self.refusals.entry(refusal.name()).or_insert(0) += 1;
                continue;
            }
            if self.set.watch_edges(stream.as_raw_fd(), FIRST + index as u64).is_err() {
                continue;
            }
            if free.is_none() {
                self.clients.push(None);
            }
            self.clients[index] = Some(Local::new(stream, self.settings.queue_pairs));
        }
        had_some
    }

    fn handle(&mut self, event: CmEvent<Id>) {
        let (CmEvent::Established(id, _)
        | CmEvent::Rejected(id, _)
        | CmEvent::Unreachable(id)
        | CmEvent::Disconnected(id)
        | CmEvent::Request(id, _)) = event;
        let addresses = self.settings.servers.len();
        let mut clients = self.clients.iter_mut().flatten();
        let Some((client, at)) =
            clients.find_map(|client| client.path_of(id).map(|at| (client, at)))
        else {
            // Whoever wanted it has gone.
            return self.fabric.disconnect(id);
        };
        match event {
            CmEvent::Established(_, data) => {
                let theirs = Offer::find(data.as_slice());
                let credits = self.fabric.promised(id);
                match self.fabric.take_queues(id) {
                    Some(queues) => {
                        let terms = Terms { credits, ours: OFFER, theirs };
                        client.up(at, Up::new(id, queues, Requester::new(terms)));
                    }
                    None => client.refused(at, addresses, End::NoServer),
                }
            }
            CmEvent::Rejected(..) | CmEvent::Unreachable(_) => {
                client.refused(at, addresses, End::NoServer);
            }
            CmEvent::Disconnected(_) if matches!(client.paths[at].link, Link::Asking(_)) => {
                client.refused(at, addresses, End::NoServer);
            }
            CmEvent::Disconnected(_) => client.lose(at, End::ServerGone),
            CmEvent::Request(..) => {}
        }
    }

    /// Looks after one client; whether there was something to do.
    fn look(&mut self, index: usize) -> bool {
        let Some(client) = self.clients[index].as_mut() else { return false };
        let mut had_some = client.step(&mut self.areas, self.settings.timeout);
        if let Some(deadline) = self.drained
            && (client.is_idle() || deadline < Instant::now())
        {
            client.fail(End::Drained);
        }
        let end = client.end();
        if end.is_some() {
            client.hang_up();
        }
        let (addresses, mut is_ending) = (self.settings.servers.len(), false);
        for at in 0..client.paths.len() {
            if let Some(end) = end {
                client.lose(at, end);
            }
            match &client.paths[at].link {
                Link::Ending(up) => {
                    let id = up.id;
                    self.fabric.disconnect(id);
                    if !self.core.counts(id.index()).is_none_or(|counts| counts.has_ended) {
                        is_ending = true;
                        continue;
                    }
                    had_some = true;
                    client.ended(at, &mut self.areas);
                }
                Link::Down(due) if end.is_none() && *due <= Instant::now() => {
                    let to = self.settings.servers[client.paths[at].to % addresses];
                    let data = PrivateData::new(&OFFER.to_bytes());
                    match data.and_then(|data| self.fabric.connect(address_of(to), data).ok()) {
                        Some(id) => client.paths[at].link = Link::Asking(id),
                        None => client.refused(at, addresses, End::NoServer),
                    }
                    had_some = true;
                }
                Link::Asking(id) if end.is_some() => {
                    self.fabric.disconnect(*id);
                    client.paths[at].link = Link::Down(Instant::now());
                }
                Link::Up(_) | Link::Down(_) | Link::Asking(_) => {}
            }
        }
        if let Some(end) = end
            && !is_ending
            && let Some(client) = self.clients[index].take()
        {
            *self.ends.entry(end.name()).or_insert(0) += 1;
            self.totals.add(&client.bury(&mut self.areas));
            return true;
        }
        had_some
    }
}

const OFFER: Offer = Offer { remote_invalidation: false, sends: MESSAGE, receives: MESSAGE };
