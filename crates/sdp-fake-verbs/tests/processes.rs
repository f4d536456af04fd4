//! READs between two processes on one network. The other process is this file's test `peer`, which
//! does nothing when it is not asked to.

use std::{
    env,
    ffi::CString,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use sdp_fabric_verbs::{
    Address,
    endpoint::{RingRx, RingTx},
    fabric::{Id, Options, RingFabric},
};
use sdp_fake_verbs::{Live, Network};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, PostError, SendQueue},
    key::{Access, LocalSlice, RemoteSlice, Rkey},
    work::{Completion, Opcode, Status, WorkId},
};

/// Where the peer finds the network's file.
const FILE: &str = "SDP_TEST_NETWORK";
const LEN: usize = 300_000;

fn service() -> Address {
    Address::v4([10, 9, 0, 1], 700)
}

fn byte(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 11) as u8
}

fn open(file: &str) -> RingFabric {
    let path = CString::new(file).expect("a path");
    Network::shared(&path).expect("a network");
    let options = Options { backlog: 4, memory: Some(8 << 20), ..Options::default() };
    RingFabric::open(&Address::v4([10, 9, 0, 1], 0), &options).expect("a fabric")
}

fn kept() -> (u64, usize) {
    const KEPT: usize = 64 << 10;
    (vec![0u8; KEPT].leak().as_mut_ptr() as u64, KEPT)
}

/// Until there is an answer; a machine may be slow, not for ever.
fn wait<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "no answer");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The process whose memory is READ. Says where it is, and ends with its input.
#[test]
fn peer() {
    let Ok(file) = env::var(FILE) else { return };
    let none = PrivateData::new(&[]).expect("fits");
    let mut fabric = open(&file);
    fabric.listen(service()).expect("a free service");
    println!("listens");
    let id = wait(|| match fabric.poll_cm() {
        Some(CmEvent::Request(id, _)) => Some(id),
        _ => None,
    });
    // SAFETY: memory that stays.
    unsafe { fabric.offer_to(id, kept()) }.expect("a ring");
    fabric.accept(id, none).expect("an acceptance");
    let _queues = fabric.take_queues(id).expect("queues");
    let bytes: &'static mut [u8] = (0..LEN).map(byte).collect::<Vec<_>>().leak();
    let readable = Access { remote_read: true, remote_write: false };
    let addr = bytes.as_ptr() as u64;
    // SAFETY: memory that stays, which nobody writes to.
    let region = unsafe { fabric.register_for(id, addr, LEN as u64, readable) }.expect("a region");
    println!("memory {addr} {}", region.rkey.0);
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|len| len != 0) {
        fabric.deregister_for(id, region);
        println!("ended");
    }
}

struct Peer {
    child: Child,
    says: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn start(file: &str) -> Self {
        let own = env::current_exe().expect("this file");
        let mut command = Command::new(own);
        command.args(["--exact", "peer", "--nocapture"]).env(FILE, file);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let says = BufReader::new(child.stdout.take().expect("its output"));
        let mut peer = Self { child, says };
        peer.hear("listens");
        peer
    }

    /// The rest of the next line that begins so.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.says.read_line(&mut line).expect("its output") != 0 {
            if let Some(at) = line.find(word) {
                return line[at + word.len()..].trim().to_string();
            }
            line.clear();
        }
        panic!("the peer says nothing of {word}");
    }

    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("its end");
    }
}

struct Reader {
    fabric: RingFabric,
    id: Id,
    queues: (RingTx, RingRx),
    into: &'static mut [u8],
    local: LocalSlice,
    remote: RemoteSlice,
}

impl Reader {
    fn meet(mut fabric: RingFabric, peer: &mut Peer) -> Self {
        let none = PrivateData::new(&[]).expect("fits");
        // SAFETY: memory that stays.
        unsafe { fabric.offer(kept()) }.expect("a ring");
        let id = fabric.connect(service(), none).expect("a connect");
        wait(|| matches!(fabric.poll_cm(), Some(CmEvent::Established(..))).then_some(()));
        let (tx, rx) = fabric.take_queues(id).expect("queues");
        let words = peer.hear("memory ");
        let (addr, key) = words.split_once(' ').expect("two numbers");
        let (addr, key) = (addr.parse().expect("a number"), key.parse().expect("a number"));
        let into: &'static mut [u8] = vec![0; LEN].leak();
        let at = into.as_mut_ptr() as u64;
        // SAFETY: memory that stays, and is looked at when no READ is under way.
        let region = unsafe { fabric.register_for(id, at, LEN as u64, Access::default()) };
        let local = LocalSlice { addr: at, len: LEN as u32, lkey: region.expect("a region").lkey };
        let remote = RemoteSlice { addr, len: LEN as u32, rkey: Rkey(key) };
        Self { fabric, id, queues: (tx, rx), into, local, remote }
    }

    fn read(&mut self, remote: RemoteSlice) -> Result<Completion, PostError> {
        self.into.fill(0);
        self.queues.0.post_read(WorkId(9), LocalSlice { len: remote.len, ..self.local }, remote)?;
        Ok(wait(|| {
            self.fabric.progress();
            self.queues.0.poll_completion()
        }))
    }

    fn end(mut self, network: Network) {
        self.fabric.disconnect(self.id);
        drop(self.queues);
        wait(|| {
            self.fabric.progress();
            (network.live().qps == 0).then_some(())
        });
        drop(self.fabric);
        network.reap();
    }
}

#[test]
fn memory_of_another_process_is_read_as_its_registration_allows() {
    let file = env::temp_dir().join(format!("sdp-network-{}", std::process::id()));
    std::fs::write(&file, []).expect("a file");
    let name = file.to_str().expect("a name").to_string();
    let is_right = |bytes: &[u8]| bytes.iter().enumerate().all(|(at, b)| *b == byte(at));
    let change = |remote: RemoteSlice, story: usize| match story {
        0 => RemoteSlice { rkey: Rkey(remote.rkey.0 ^ 1 << 20), ..remote },
        1 => RemoteSlice { addr: remote.addr + 1, ..remote },
        _ => remote,
    };
    for story in 0..4 {
        let fabric = open(&name);
        let network = Network::private().expect("a network");
        let mut peer = Peer::start(&name);
        let mut reader = Reader::meet(fabric, &mut peer);
        let done = reader.read(reader.remote).expect("posted");
        assert_eq!((done.opcode, done.status), (Opcode::Read, Status::Success));
        assert!(is_right(reader.into));
        let part = RemoteSlice { len: 5, addr: reader.remote.addr, ..reader.remote };
        assert_eq!(reader.read(part).expect("posted").status, Status::Success);
        assert!(is_right(&reader.into[..5]) && reader.into[5..].iter().all(|b| *b == 0));
        match story {
            2 => {
                let input = peer.child.stdin.as_mut().expect("its input");
                input.write_all(b"end\n").and_then(|()| input.flush()).expect("it reads");
                peer.hear("ended");
            }
            3 => peer.kill(),
            _ => {}
        }
        // A wrong key, a range that ends outside, a registration that has ended, a peer that is gone.
        let refused = reader.read(change(reader.remote, story));
        match (story, refused) {
            (3, Err(PostError::Failed(_))) => {}
            (3, Ok(done)) => assert_ne!(done.status, Status::Success),
            (_, Ok(done)) => assert_eq!(done.status, Status::RemoteAccess, "story {story}"),
            (_, refused) => panic!("story {story}: {refused:?}"),
        }
        assert!(reader.into.iter().all(|b| *b == 0), "story {story}: nothing was read");
        if story != 3 {
            drop(peer.child.stdin.take());
            peer.child.wait().expect("its end");
        }
        reader.end(network);
        assert_eq!(network.live(), Live::default(), "story {story}");
    }
    std::fs::remove_file(&file).expect("it is there");
}
