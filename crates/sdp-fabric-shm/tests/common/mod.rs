//! Helpers of the rendezvous tests: processes of their own, TCP pairs, ends to step.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Once, atomic::Ordering},
};

use sdp_fabric_shm::{
    across::Across,
    identity::Tuple,
    packet::{HELLO_ACK_LEN, HELLO_LEN},
    refusal::Refusal,
    rendezvous::{Attachment, Local, PeerHello, Rendezvous, Step},
    segment,
};
use sdp_shm::layout::{Control, PASSED_ON};
use sdp_sys::OwnedFd;

pub const RING: u32 = 64 << 10;
/// Where the tests put hidden descriptors.
pub const HIDDEN_MIN: i32 = 100;
/// Offers that a test process may have open.
pub const OFFERS: u32 = 16;
pub const HELLO: [u8; HELLO_LEN] = [0x5a; HELLO_LEN];
pub const ACK: [u8; HELLO_ACK_LEN] = [0xa5; HELLO_ACK_LEN];

/// The words of [`judge`].
pub const TERMS_OF_HELLO: u64 = 1;
pub const TERMS_OF_ACK: u64 = 2;

/// Takes what an honest end sends, and nothing else.
pub fn judge(hello: &PeerHello) -> Result<u64, Refusal> {
    match hello {
        PeerHello::Hello(HELLO) => Ok(TERMS_OF_HELLO),
        PeerHello::HelloAck(ACK) => Ok(TERMS_OF_ACK),
        _ => Err(Refusal::Untrusted),
    }
}

/// Runs a test in a process of its own: offers, descriptors, limits and user ids are the process's,
/// and other tests run beside this one.
pub fn isolated(test: impl FnOnce()) {
    let child = spawn(|| {
        // Descriptors that this test or others were started with would blur numbers and counts.
        // SAFETY: nothing in this process uses descriptors yet.
        assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
        test();
    });
    assert_eq!(wait(child), 0, "see the message above");
}

/// A child process; killed when a failing test drops it.
#[must_use = "wait for it"]
pub struct Child {
    pub pid: i32,
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, not waited for yet; the null pointer wants no status.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// Forks; the child runs `body` and exits with 0, or 101 after a panic.
pub fn spawn(body: impl FnOnce()) -> Child {
    // The test harness captures output into memory that dies with the child. (Set before the fork:
    // another thread may hold the hook's lock at that moment.)
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let text = format!("{info}\n");
            // SAFETY: text is valid for reading.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        }));
    });
    // SAFETY: the child runs test code only; glibc makes its allocator usable after fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid > 0 {
        return Child { pid };
    }
    let ok = catch_unwind(AssertUnwindSafe(body)).is_ok();
    // SAFETY: ends the child without the parent's exit handlers.
    unsafe { libc::_exit(if ok { 0 } else { 101 }) }
}

/// Waits for a child; its exit status, or 1000 and the signal.
pub fn wait(child: Child) -> i32 {
    let (pid, mut status) = (child.pid, 0);
    std::mem::forget(child);
    // SAFETY: status is valid for writing.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + libc::WTERMSIG(status) }
}

/// Whether the tests may change users.
pub fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// Becomes another user for good.
pub fn become_user(uid: u32) {
    // SAFETY: no pointers.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(uid, uid, uid), 0);
        assert_eq!(libc::setresuid(uid, uid, uid), 0);
    }
}

/// Both ends of a connection, the client's first.
pub fn tcp_pair(ip: IpAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

pub fn loopback() -> (TcpStream, TcpStream) {
    tcp_pair("127.0.0.1".parse().unwrap())
}

/// An IPv4 client of a dual-stack listener.
pub fn mapped_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let server = listener.accept().unwrap().0;
    let SocketAddr::V6(seen) = server.peer_addr().unwrap() else { panic!("not an IPv6 socket") };
    assert!(seen.ip().to_ipv4_mapped().is_some());
    (client, server)
}

/// Numbers of the open descriptors.
pub fn descriptors() -> Vec<i32> {
    let own: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    // SAFETY: no pointers. The directory's own descriptor is closed by now.
    own.into_iter().filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect()
}

/// Mappings of memory files called `name`.
pub fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(&format!("/memfd:{name} "))).count()
}

/// The footprint that must not grow: descriptors and mapped segments and pages.
pub fn footprint() -> (Vec<i32>, usize, usize) {
    let mut fds = descriptors();
    fds.sort_unstable();
    (fds, mappings("sdp-conn"), mappings("sdp-bell"))
}

/// A process's own eventfd and doorbell page.
pub struct Doorbells {
    pub doorbell: OwnedFd,
    pub page: OwnedFd,
}

impl Doorbells {
    pub fn new() -> Self {
        // SAFETY: no pointers.
        let doorbell = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        Self { doorbell: OwnedFd::new(doorbell), page: segment::create_doorbell_page().unwrap() }
    }
}

/// One end of a connection and its rendezvous.
pub struct End {
    pub across: Option<Across>,
    pub rendezvous: Rendezvous,
    pub carrier: i32,
    pub tuple: Tuple,
    pub doorbell: i32,
    pub page: i32,
    pub slot: u32,
    pub nonce: u64,
    pub ring: u32,
    pub judge: fn(&PeerHello) -> Result<u64, Refusal>,
}

impl End {
    pub fn new(stream: &TcpStream) -> Self {
        let carrier = stream.as_raw_fd();
        Self {
            rendezvous: Rendezvous::new(),
            carrier,
            tuple: Tuple::of(carrier).unwrap(),
            doorbell: -1,
            page: -1,
            slot: 0,
            nonce: u64::from(std::process::id()),
            ring: RING,
            judge,
            across: None,
        }
    }

    pub fn with_doorbell(mut self, doorbells: &Doorbells, slot: u32) -> Self {
        (self.doorbell, self.page, self.slot) =
            (doorbells.doorbell.raw(), doorbells.page.raw(), slot);
        self
    }

    pub fn step(&mut self) -> Step {
        self.rendezvous_step(false)
    }

    /// The step of an end that will not wait any longer.
    pub fn last_step(&mut self) -> Step {
        self.rendezvous_step(true)
    }

    fn rendezvous_step(&mut self, is_last: bool) -> Step {
        let local = Local {
            carrier: self.carrier,
            tuple: self.tuple,
            doorbell_fd: self.doorbell,
            doorbell_page_fd: self.page,
            foreign_doorbell: |_| None,
            across: self.across,
            slot: self.slot,
            nonce: self.nonce,
            ring_bytes: self.ring,
            hidden_min: HIDDEN_MIN,
            max_offers: OFFERS,
            hello: &HELLO,
            hello_ack: &ACK,
            judge: self.judge,
        };
        if is_last { self.rendezvous.last_step(&local) } else { self.rendezvous.step(&local) }
    }

    /// Steps that must not finish.
    #[track_caller]
    pub fn pending(&mut self, steps: u32) {
        for _ in 0..steps {
            match self.step() {
                Step::Pending => {}
                other => panic!("not pending: {other:?}"),
            }
        }
    }

    /// Steps until the end, with a pause for the other process in between.
    pub fn finish(&mut self) -> Result<Attachment, Refusal> {
        for _ in 0..5000 {
            match self.step() {
                Step::Pending => std::thread::sleep(std::time::Duration::from_millis(1)),
                Step::Attached(attachment) => return Ok(attachment),
                Step::Failed(refusal) => return Err(refusal),
            }
        }
        panic!("neither attached nor refused");
    }
}

/// Steps both ends by turns until both are attached.
#[track_caller]
pub fn meet(one: &mut End, two: &mut End) -> (Attachment, Attachment) {
    let (mut first, mut second) = (None, None);
    for _ in 0..8 {
        for (end, result) in [(&mut *one, &mut first), (&mut *two, &mut second)] {
            if result.is_none() {
                match end.step() {
                    Step::Pending => {}
                    Step::Attached(attachment) => *result = Some(attachment),
                    Step::Failed(refusal) => panic!("{refusal:?}"),
                }
            }
        }
        if first.is_some() && second.is_some() {
            break;
        }
    }
    (first.expect("first end"), second.expect("second end"))
}

/// Whether two attachments share one segment, tried by writing.
pub fn share_memory(one: &Attachment, two: &Attachment) -> bool {
    assert_eq!(one.segment.len(), two.segment.len());
    let (a, b) = (one.segment.base().as_ptr(), two.segment.base().as_ptr());
    let last = one.segment.len() - 1;
    // SAFETY: both mappings are alive and `last` lies within them.
    unsafe {
        a.write_volatile(7);
        b.add(last).write_volatile(9);
        b.read_volatile() == 7 && a.add(last).read_volatile() == 9 && a != b
    }
}

/// Whether the other end has said in the segment that it will not use it.
pub fn is_disowned(attachment: &Attachment) -> bool {
    let ends = attachment.segment.base().cast::<Control>();
    // SAFETY: the header is mapped, and made of atomics.
    let ends = unsafe { &ends.as_ref().ends };
    ends[usize::from(attachment.side ^ 1)].intent.load(Ordering::SeqCst) == PASSED_ON
}

/// Unmaps an attachment's segment and closes the descriptors that came with it.
pub fn discard(attachment: Attachment) {
    // SAFETY: the tests keep no pointer into it.
    unsafe { attachment.segment.unmap() };
}
