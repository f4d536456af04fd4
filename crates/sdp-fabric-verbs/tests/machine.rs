//! On a real device: conformance, sleep, hidden descriptors, many connections in little memory.
//!
//! The address of the device is `SDP_VERBS_ADDRESS` (a link-local one with `%` and its interface), else 192.168.77.1. Without a device there nothing is tested, and
//! that is said. Arguments select tests by parts of their names.

use std::{
    ffi::CString,
    net::{IpAddr, TcpListener},
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use sdp_fabric_tests::{
    Feature, Harness,
    runner::{self, Test},
};
use sdp_fabric_verbs::{
    Address, Error,
    budget::CONNECTIONS_MAX,
    endpoint::Counts,
    fabric::{Options, VerbsFabric},
};
use sdp_rdma::{
    cm::PrivateData,
    fabric::{CmEvent, Fabric, PostError, ReceiveQueue, SendOptions, SendQueue},
    work::WorkId,
};

#[path = "common/device.rs"]
mod device;
#[path = "common/handle.rs"]
mod handle;

use device::{Device, Text};
use handle::{CreditedTx, Handle};

const BACKLOG: usize = 5;
const PROMISE: u32 = 16;
/// Nothing is known to be in flight, and nothing happens for so long: nothing will.
const QUIET: Duration = Duration::from_micros(200);
/// The same where connection management may be in progress, which goes through several kernel
/// threads on both sides.
const LONG_QUIET: Duration = Duration::from_millis(250);
/// Bound of one wait.
const TIMEOUT: Duration = Duration::from_secs(20);

/// With `SDP_VERBS_OWN_RECEIVES` in the environment, as on a device without shared receive queues.
fn usual() -> Options {
    let shared_receives = std::env::var_os("SDP_VERBS_OWN_RECEIVES").is_none();
    Options { shared_receives, ..Options::default() }
}

fn open() -> Handle {
    open_with(&Options { promise: PROMISE, backlog: BACKLOG, ..usual() })
}

fn open_with(options: &Options) -> Handle {
    Handle::open(&address(0), options).expect("a device")
}

fn address(port: u16) -> Address {
    let text = std::env::var("SDP_VERBS_ADDRESS").unwrap_or_else(|_| "192.168.77.1".to_owned());
    let (ip, interface) = text.split_once('%').unwrap_or((&text, ""));
    let interface = CString::new(interface).expect("a name");
    // SAFETY: a string that ends with NUL; an unknown name gives 0.
    let scope = unsafe { libc::if_nametoindex(interface.as_ptr()) };
    match ip.parse().expect("SDP_VERBS_ADDRESS is an IP address") {
        IpAddr::V4(ip) => Address::v4(ip.octets(), port),
        IpAddr::V6(ip) => Address::v6(ip.octets(), port, scope),
    }
}

/// A port that no TCP socket has; RDMA's ports are others, and these tests run alone.
fn free_port() -> u16 {
    let socket = TcpListener::bind("0.0.0.0:0").expect("a port");
    socket.local_addr().expect("a port").port()
}

fn free_service() -> Address {
    address(free_port())
}

/// Waits for connection management.
struct Timeout {
    end: Instant,
}

impl Timeout {
    fn begin() -> Self {
        Self { end: Instant::now() + TIMEOUT }
    }

    fn wait(&mut self) {
        assert!(Instant::now() < self.end, "no connection within {TIMEOUT:?}");
        std::thread::yield_now();
    }
}

/// Whether all messages have arrived and all requests that report their ends have done so.
fn is_at_rest(device: &Device) -> bool {
    let list = |handle: &Handle| {
        let fabric = handle.get();
        (0..CONNECTIONS_MAX).filter_map(|index| fabric.counts(index)).collect::<Vec<_>>()
    };
    let (a, b) = (list(&device.a), list(&device.b));
    let rests = |ends: &[Counts], others: &[Counts]| {
        ends.iter().all(|end| {
            let peer = others.iter().find(|other| other.number == end.peer_number);
            if end.has_failed {
                // The other end will hear of it.
                end.has_ended && peer.is_none_or(|peer| peer.has_ended)
            } else {
                !end.is_waiting && peer.is_none_or(|peer| peer.arrived == end.sent)
            }
        })
    };
    rests(&a, &b) && rests(&b, &a)
}

fn advance(device: &Device) -> bool {
    let quiet = if device.is_restless { LONG_QUIET } else { QUIET };
    let begin = Instant::now();
    loop {
        if device.step() {
            return true;
        }
        if begin.elapsed() > if is_at_rest(device) { quiet } else { TIMEOUT } {
            return false;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Waits until a descriptor is readable.
fn is_readable(fd: i32, wait: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    unsafe { libc::poll(&raw mut poll, 1, wait.as_millis() as i32) == 1 }
}

/// A solicited message wakes a thread that armed for such, an ordinary one does not; nothing wakes
/// a thread that did not arm.
fn solicited_messages_wake() {
    let mut device = Device::new(0);
    let mut pair = device.pair();
    let [_, _, channel, _] = device.b.get().descriptors();
    device.b.get().take_wakeups();
    device.b.get().arm(true).expect("armed");
    let ordinary = SendOptions::default();
    let solicited = SendOptions { solicited: true, ..ordinary };
    pair.a.tx.post_send(WorkId(1), b"header", &mut Text(b"ordinary"), ordinary).expect("posted");
    assert!(!is_readable(channel, Duration::from_millis(200)), "woken by an ordinary message");
    pair.a.tx.post_send(WorkId(2), b"header", &mut Text(b"solicited"), solicited).expect("posted");
    assert!(is_readable(channel, TIMEOUT), "not woken by a solicited message");
    assert!(device.b.get().take_wakeups());
    assert!(!device.b.get().take_wakeups(), "one wake-up for one arming");
    for _ in 0..2 {
        let received = pair.b.rx.poll_receive().expect("alive").expect("a message");
        pair.b.rx.release(received);
    }
    assert_eq!(pair.b.rx.poll_receive(), Ok(None));
}

/// The program's next descriptor is the one it would have had; ours are high and close on exec.
fn descriptors_are_out_of_sight() {
    let lowest = || {
        let file = std::fs::File::open("/dev/null").expect("a file");
        std::os::fd::AsRawFd::as_raw_fd(&file)
    };
    let before = lowest();
    let options = Options { floor: 200, ..usual() };
    let handle = open_with(&options);
    assert_eq!(lowest(), before);
    for fd in handle.get().descriptors() {
        assert!(fd >= 200, "descriptor {fd}");
        // SAFETY: no pointers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        assert_eq!(flags, libc::FD_CLOEXEC, "descriptor {fd}");
    }
    let count = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let with = count();
    drop(handle);
    assert_eq!(count() + 4, with, "all four are closed");
}

fn pinned_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmPin:")).expect("VmPin");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// As many connections as 8 MiB of locked memory are said to be enough for, each with a message, as an ordinary user.
/// In a process of its own, since it gives up its rights.
fn many_connections_in_8_mib() {
    // SAFETY: the child runs this test's code alone and ends with _exit; no other threads exist.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let result = catch_unwind(|| {
            let limit = libc::rlimit { rlim_cur: 8 << 20, rlim_max: 8 << 20 };
            // SAFETY: valid arguments.
            unsafe {
                assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
                for path in std::fs::read_dir("/dev/infiniband").expect("nodes").flatten() {
                    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
                    std::fs::set_permissions(path.path(), mode).expect("permission");
                }
                assert_eq!(libc::setgid(65534), 0);
                assert_eq!(libc::setuid(65534), 0);
            }
            crowd();
        });
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: a child of ours and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's status");
}

/// One fabric connected to itself: a connection takes two places.
fn crowd() {
    let handle = open_with(&Options { promise: 4, ..usual() });
    let mut fabric = handle.clone();
    let places = handle.get().budget().connections;
    let none = PrivateData::new(&[]).expect("fits");
    let service = address(free_port());
    fabric.listen(service).expect("a listener");
    let mut ends = Vec::new();
    for number in 0..places / 2 {
        let active = fabric.connect(service, none).expect("a place");
        let end = Instant::now() + TIMEOUT;
        let (mut passive, mut is_there) = (None, false);
        while passive.is_none() || !is_there {
            assert!(Instant::now() < end, "connection {number}");
            match fabric.poll_cm() {
                Some(CmEvent::Request(id, _)) => {
                    fabric.accept(id, none).expect("accepted");
                    passive = Some(id);
                }
                Some(CmEvent::Established(..)) => is_there = true,
                Some(event) => panic!("{event:?} for connection {number}"),
                None => std::thread::yield_now(),
            }
        }
        let passive = passive.expect("was waited for");
        let sender = fabric.take_queues(active).expect("queues");
        ends.push((sender, fabric.take_queues(passive).expect("queues")));
    }
    for (number, (sender, _)) in (0..).zip(&mut ends) {
        let text = [number as u8; 2000];
        let posted =
            sender.0.post_send(WorkId(number), b"", &mut Text(&text), SendOptions::default());
        posted.expect("posted");
    }
    for (number, (_, receiver)) in (0u64..).zip(&mut ends) {
        let end = Instant::now() + TIMEOUT;
        let message = loop {
            assert!(Instant::now() < end, "message {number}");
            if let Some(message) = receiver.1.poll_receive().expect("alive") {
                break message;
            }
        };
        let mut bytes = [0; 2000];
        assert_eq!(receiver.1.copy_header(message, &mut bytes), 2000);
        assert!(bytes.iter().all(|byte| *byte == number as u8), "message {number}");
        receiver.1.release(message);
    }
    println!("{places} places in use, {} KiB pinned", pinned_kib());
    assert!(places >= 100, "{places} places");
    assert!(pinned_kib() <= 8 << 10);
}

/// The device is taken away: messages that had arrived stay readable, the connections end, nothing
/// new begins, and the kernel gets its device back when all is dropped. The last test: the device
/// comes back under its name, but later.
fn a_removed_device_ends_its_connections() {
    let mut device = Device::new(0);
    let mut pair = device.pair();
    let name = String::from_utf8(device.a.get().device_name().to_vec()).expect("a name");
    let port = format!("/sys/class/infiniband/{name}/ports/1/gid_attrs/ndevs/0");
    let interface = std::fs::read_to_string(port).unwrap_or_default().trim().to_owned();
    let rdma = |words: &[&str]| std::process::Command::new("rdma").args(words).spawn();
    if !name.starts_with("rxe") || interface.is_empty() {
        println!("skipped: {name} is no software device");
        return;
    }
    let text = [7; 3000];
    let solicited = SendOptions { signalled: true, ..SendOptions::default() };
    pair.a.tx.post_send(WorkId(1), b"header", &mut Text(&text), solicited).expect("posted");
    let end = Instant::now() + TIMEOUT;
    while pair.a.tx.poll_completion().is_none() {
        assert!(Instant::now() < end, "no completion");
    }
    let mut deleting = rdma(&["link", "delete", &name]).expect("the rdma program");
    let begin = Instant::now();
    let (mut ends, mut message) = ([false; 2], None);
    while !ends.iter().all(|is_ended| *is_ended) {
        assert!(begin.elapsed() < TIMEOUT, "ended: {ends:?}");
        device.step();
        for (rx, is_ended) in [&mut pair.a.rx, &mut pair.b.rx].into_iter().zip(&mut ends) {
            match rx.poll_receive() {
                Ok(Some(received)) => message = Some(received),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => *is_ended = true,
            }
        }
    }
    println!("both ends knew after {} ms", begin.elapsed().as_millis());
    let message = message.expect("what had arrived");
    let mut bytes = [0; 3006];
    assert_eq!(pair.b.rx.copy_header(message, &mut bytes), 3006);
    assert!(bytes[6..].iter().all(|byte| *byte == 7));
    let post = pair.a.tx.post_send(WorkId(2), b"header", &mut Text(b""), solicited);
    assert!(matches!(post, Err(PostError::Failed(_))), "{post:?}");
    assert!(device.a.get().is_lost() && device.b.get().is_lost());
    let none = PrivateData::new(&[]).expect("fits");
    assert!(device.a.connect(address(1), none).is_err());
    drop((pair, device));
    let begin = Instant::now();
    while deleting.try_wait().expect("a child").is_none() {
        assert!(begin.elapsed() < TIMEOUT, "the kernel still waits for the device");
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("the kernel had its device {} ms after the last drop", begin.elapsed().as_millis());
    let add = rdma(&["link", "add", &name, "type", "rxe", "netdev", &interface]);
    assert!(add.expect("the rdma program").wait().expect("a child").success());
}

/// A forked child closes the descriptors that it inherited and goes on alone; the parent's
/// connection is not affected.
fn a_forked_child_forsakes_its_parents_objects() {
    let mut device = Device::new(0);
    let mut pair = device.pair();
    // SAFETY: no other threads; the child ends with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let fabrics = [&device.a, &device.b].map(|handle| {
                // SAFETY: the child's copy of a fabric that it never touches again.
                unsafe { core::ptr::read(&raw const *handle.get()) }
            });
            for fabric in fabrics {
                fabric.forsake();
            }
            // A device of its own, opened anew, and a connection over it.
            let mut own = Device::new(0);
            let mut pair = own.pair();
            let options = SendOptions::default();
            pair.a.tx.post_send(WorkId(1), b"child", &mut Text(b""), options).expect("posted");
            let message = sdp_fabric_tests::harness::receive(&mut own, &mut pair.b.rx);
            assert_eq!(message.len, 5);
        }));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: a child of ours and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's status");
    let options = SendOptions::default();
    pair.a.tx.post_send(WorkId(1), b"parent", &mut Text(b""), options).expect("posted");
    let message = sdp_fabric_tests::harness::receive(&mut device, &mut pair.b.rx);
    assert_eq!(message.len, 6);
}

type Runnable = Box<dyn Fn()>;

fn tests() -> Vec<(&'static str, Runnable)> {
    macro_rules! table {
        (; $($part:ident :: $test:ident needs [$($feature:ident),*],)*) => {
            vec![$((
                concat!("conformance::", stringify!($part), "::", stringify!($test)),
                Box::new(|| runner::run::<Device>(&Test {
                    name: concat!(stringify!($part), "::", stringify!($test)),
                    needs: &[$(Feature::$feature),*],
                    run: sdp_fabric_tests::suite::$part::$test,
                })) as Runnable,
            )),*]
        };
    }
    let mut tests = sdp_fabric_tests::for_each_test!([table],);
    tests.push(("conformance::skipped", Box::new(|| runner::account::<Device>(1))));
    tests.push(("solicited_messages_wake", Box::new(solicited_messages_wake)));
    tests.push(("descriptors_are_out_of_sight", Box::new(descriptors_are_out_of_sight)));
    tests.push(("many_connections_in_8_mib", Box::new(many_connections_in_8_mib)));
    let forsakes = a_forked_child_forsakes_its_parents_objects;
    tests.push(("a_forked_child_forsakes_its_parents_objects", Box::new(forsakes)));
    let removed = a_removed_device_ends_its_connections;
    tests.push(("a_removed_device_ends_its_connections", Box::new(removed)));
    tests
}

fn main() {
    let (mut wanted, mut skipped) = (Vec::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--skip" => skipped.extend(arguments.next()),
            option if option.starts_with('-') => {}
            _ => wanted.push(argument),
        }
    }
    let is_chosen = |name: &str| {
        let is_in = |words: &[String]| words.iter().any(|word| name.contains(word.as_str()));
        (wanted.is_empty() || is_in(&wanted)) && !is_in(&skipped)
    };
    match VerbsFabric::open(&address(0), &Options::default()) {
        Ok(_) => {}
        Err(Error::NoDevice) => {
            println!("skipped: no RDMA device has the address");
            return;
        }
        Err(error) => {
            println!("FAILED: {error}");
            std::process::exit(1);
        }
    }
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, test) in tests() {
        if !is_chosen(name) {
            continue;
        }
        let begin = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(test));
        let end = if result.is_ok() { "ok" } else { "FAILED" };
        println!("{end} {name} ({} ms)", begin.elapsed().as_millis());
        match result {
            Ok(()) => passed += 1,
            Err(_) => failed.push(name),
        }
    }
    println!("{passed} passed, {} failed {failed:?}", failed.len());
    std::process::exit(i32::from(!failed.is_empty()));
}
