//! `sdp capture`: the payload of accelerated connections as the TCP segments that it would have been.
//!
//! The rings of a connection are read from outside, by looking at their cursors again and again
//! ([`follow`]): the library does nothing for it and knows nothing of it. So bytes that were
//! overwritten between two looks are lost to the capture; they are counted, and are a gap in the
//! sequence numbers. Everything that is read is another process's and may be forged: it is copied,
//! checked, and then used.
//!
//! Three threads: one finds connections ([`find`]), one reads rings, one writes ([`pcapng`]). What
//! waits to be written is bounded; a frame that finds no room is counted and left out.

mod filter;
mod find;
mod follow;
mod memory;
mod pcapng;

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::{Failure, procs, stat, sys};
use filter::Filter;
use find::{Finder, Key, Look};
use follow::{Connection, Lost};
use pcapng::Frame;

/// Pause between two looks at quiet connections.
const PAUSE: Duration = Duration::from_micros(50);
/// How long after the last news there is no pause.
const AWAKE: Duration = Duration::from_millis(1);
/// Least pause between two searches for connections.
const SEARCH: Duration = Duration::from_millis(20);
/// Frames that may wait for the writer, whatever their size.
const FRAMES_MAX: usize = 1 << 16;
/// How often the writer looks whether it is to end.
const WRITER_LOOK: Duration = Duration::from_millis(50);

/// Signals that end a capture.
const ENDS: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Options of `sdp capture`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Only connections of this process
    #[arg(long)]
    pub pid: Option<u32>,
    /// Write pcapng to this file, - for standard output; without it a line of text for each segment
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// End after COUNT segments
    #[arg(short = 'c', long, value_name = "COUNT")]
    pub count: Option<u64>,
    /// MiB that may wait for a slow reader; segments beyond are counted and left out
    #[arg(long, value_name = "MIB", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub buffer: u32,
    /// Which connections: host ADDRESS, port PORT, joined by and
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
}

/// What threads tell each other.
#[derive(Default)]
struct Shared {
    /// Everything is to end.
    stop: AtomicBool,
    /// Bytes that wait for the writer.
    waiting: AtomicUsize,
    /// Frames written.
    written: AtomicU64,
    /// Their bytes of payload.
    bytes: AtomicU64,
    /// Frames that found no room.
    dropped: AtomicU64,
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The end of the queue of frames where they come in.
struct Queue<'a> {
    shared: &'a Shared,
    frames: SyncSender<Frame>,
    limit: usize,
}

impl Queue<'_> {
    /// Hands a frame to the writer, or counts it.
    fn put(&self, frame: Frame) {
        let len = frame.payload.len().saturating_add(size_of::<Frame>());
        let before = self.shared.waiting.fetch_add(len, Ordering::Relaxed);
        let is_room = before.saturating_add(len) <= self.limit;
        match is_room.then(|| self.frames.try_send(frame)) {
            Some(Ok(())) => {}
            Some(Err(TrySendError::Disconnected(_))) => self.shared.stop(),
            None | Some(Err(TrySendError::Full(_))) => {
                self.shared.waiting.fetch_sub(len, Ordering::Relaxed);
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Where frames go.
enum Output {
    Pcapng(Box<dyn Write + Send>),
    Text,
}

impl Output {
    fn open(to: Option<&Path>) -> Result<Self, Failure> {
        let Some(to) = to else { return Ok(Self::Text) };
        if to == Path::new("-") {
            return Ok(Self::Pcapng(Box::new(BufWriter::new(io::stdout()))));
        }
        // Payload is nobody else's to read.
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(to);
        let failed = |e| Failure::new(to.display(), e);
        let file = file.map_err(failed)?;
        // Also of a file that was there before. A pipe or a device keeps its own.
        if file.metadata().map_err(failed)?.is_file() {
            file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
        }
        Ok(Self::Pcapng(Box::new(BufWriter::new(file))))
    }

    fn begin(&mut self) -> io::Result<()> {
        match self {
            Self::Pcapng(to) => to.write_all(&pcapng::beginning()).and_then(|()| to.flush()),
            Self::Text => Ok(()),
        }
    }

    fn put(&mut self, frame: &Frame, dropped: u64) -> io::Result<()> {
        match self {
            Self::Pcapng(to) => to.write_all(&pcapng::packet(frame, dropped)),
            Self::Text => crate::try_print(&frame.line()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Pcapng(to) => to.flush(),
            Self::Text => Ok(()),
        }
    }

    fn end(&mut self, shared: &Shared) -> io::Result<()> {
        match self {
            Self::Pcapng(to) => {
                let written = shared.written.load(Ordering::Relaxed);
                let dropped = shared.dropped.load(Ordering::Relaxed);
                to.write_all(&pcapng::statistics(now_ns(), written, dropped))?;
                to.flush()
            }
            Self::Text => Ok(()),
        }
    }
}

/// Writes frames until the other end of the queue has gone, or enough are written.
fn write(
    mut out: Output,
    frames: &Receiver<Frame>,
    shared: &Shared,
    count: Option<u64>,
) -> io::Result<()> {
    let mut told = 0;
    loop {
        let frame = match frames.try_recv() {
            Ok(frame) => frame,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                out.flush()?;
                match frames.recv_timeout(WRITER_LOOK) {
                    Ok(frame) => frame,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        };
        let len = frame.payload.len().saturating_add(size_of::<Frame>());
        shared.waiting.fetch_sub(len, Ordering::Relaxed);
        let dropped = shared.dropped.load(Ordering::Relaxed);
        out.put(&frame, dropped - told)?;
        told = dropped;
        shared.bytes.fetch_add(frame.payload.len() as u64, Ordering::Relaxed);
        let written = shared.written.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_some_and(|count| written >= count) {
            break;
        }
    }
    out.end(shared)
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The connections that are followed, and what was lost of earlier ones.
#[derive(Default)]
struct Followed {
    open: HashMap<Key, Connection>,
    lost: Lost,
    connections: u64,
}

impl Followed {
    /// Reads all rings once. Whether there was any news.
    fn read(&mut self, queue: &Queue<'_>) -> bool {
        let mut is_news = false;
        for connection in self.open.values_mut() {
            is_news |= connection.read(now_ns, &mut |frame| queue.put(frame));
        }
        is_news
    }

    fn take(&mut self, look: Look, queue: &Queue<'_>) {
        for key in look.gone {
            if let Some(mut connection) = self.open.remove(&key) {
                connection.read(now_ns, &mut |frame| queue.put(frame));
                self.lost.add(connection.lost());
            }
        }
        for (key, found) in look.new {
            self.connections += 1;
            self.open.insert(key, Connection::new(found));
        }
    }

    /// All that was lost.
    fn all_lost(&self) -> Lost {
        let mut lost = self.lost;
        self.open.values().for_each(|connection| lost.add(connection.lost()));
        lost
    }
}

/// Reads rings until everything is to end.
fn read(looks: &Receiver<Look>, queue: &Queue<'_>) -> Followed {
    let mut followed = Followed::default();
    let mut news = Instant::now();
    while !queue.shared.is_stopped() {
        while let Ok(look) = looks.try_recv() {
            followed.take(look, queue);
        }
        if followed.read(queue) {
            news = Instant::now();
        } else if news.elapsed() < AWAKE {
            thread::yield_now();
        } else {
            thread::sleep(PAUSE);
        }
    }
    // What was published before the end.
    followed.read(queue);
    followed
}

/// Searches for connections until everything is to end. What could not be read.
fn search(mut finder: Finder, looks: &mpsc::Sender<Look>, shared: &Shared) -> Finder {
    while !shared.is_stopped() {
        let began = Instant::now();
        let look = finder.look();
        if looks.send(look).is_err() || finder.is_over() {
            shared.stop();
            break;
        }
        thread::sleep(SEARCH.max(4 * began.elapsed()));
    }
    finder
}

/// The closing words, for stderr.
fn summary(followed: &Followed, shared: &Shared, finder: &Finder) -> String {
    let lost = followed.all_lost();
    let mut out = format!(
        "{} segments with {} bytes of {} connections",
        shared.written.load(Ordering::Relaxed),
        shared.bytes.load(Ordering::Relaxed),
        followed.connections
    );
    if lost.messages > 0 {
        out += &format!(
            "; {} messages of at most {} bytes were overwritten before they were read",
            lost.messages, lost.bytes
        );
    }
    if lost.carrier > 0 {
        out += &format!("; {} bytes in between went by TCP", lost.carrier);
    }
    let dropped = shared.dropped.load(Ordering::Relaxed);
    if dropped > 0 {
        out += &format!("; {dropped} segments were left out: the reader is too slow");
    }
    for pid in finder.denied() {
        out += &format!("\nsdp capture: process {pid}: its memory may not be read; as root it may");
    }
    if finder.elsewhere() > 0 {
        out += &format!(
            "\nsdp capture: {} connections to other hosts are not shown: their payload goes by RDMA",
            finder.elsewhere()
        );
    }
    out
}

/// Runs the sub-command.
///
/// # Errors
/// The filter makes no sense, `--pid` names a process that may not be looked at, or output failed.
pub fn main(options: &Options) -> Result<(), Failure> {
    let filter = Filter::parse(&options.filter)?;
    if let Some(pid) = options.pid
        && procs::find(Some(pid)).is_empty()
    {
        return Err(Failure(stat::why_no_page(pid)));
    }
    let out = Output::open(options.write.as_deref())?;
    sys::block_forwarded();
    let shared: &'static Shared = Box::leak(Box::default());
    thread::spawn(|| {
        while !ENDS.contains(&sys::wait_signal().number) {}
        shared.stop();
    });
    let limit = (options.buffer as usize) << 20;
    let (frames, to_write) = mpsc::sync_channel(FRAMES_MAX);
    let queue = Queue { shared, frames, limit };
    let (looks, found) = mpsc::channel();
    let finder = Finder::new(options.pid, filter);
    let count = options.count;
    let failed = |e| Failure::new("a thread could not be had", e);
    let writer = thread::Builder::new()
        .name("write".into())
        .spawn(move || {
            let mut out = out;
            let done = out.begin().and_then(|()| write(out, &to_write, shared, count));
            shared.stop();
            done
        })
        .map_err(failed)?;
    let searcher = thread::Builder::new()
        .name("search".into())
        .spawn(move || search(finder, &looks, shared))
        .map_err(failed)?;
    let followed = read(&found, &queue);
    drop(queue);
    let gone = || Failure("a thread ended by itself".into());
    let written = writer.join().map_err(|_| gone())?;
    let finder = searcher.join().map_err(|_| gone())?;
    crate::warn(format_args!("sdp capture: {}", summary(&followed, shared, &finder)));
    match written {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            let to = options.write.as_deref().unwrap_or(Path::new("standard output"));
            Err(Failure::new(to.display(), e))
        }
        _ => Ok(()),
    }
}
