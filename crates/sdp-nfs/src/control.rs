//! The control sockets of a gateway: a connection to one gets its status, and a process that
//! connects to the other replaces it.
//!
//! They lie in folders of their user's, with mode 0600. No request is read, so none can be wrong; a
//! status that is not taken is lost.

use std::{
    fs, io,
    io::{Read, Write},
    net::SocketAddr,
    os::{
        fd::{AsRawFd, RawFd},
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

/// Where sockets of services lie.
// Not below `/run/sdp`: where that is, connections meet (`rendezvous_dir`).
const SYSTEM: &str = "/run/sdp-nfs";
/// The folder beside them in which replacements are waited for.
const HANDOVERS: &str = "handover";
/// How long a gateway's answer is waited for.
const LIMIT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are taken.
const ANSWER_MAX: u64 = 16 << 20;

/// The folders in which sockets may lie, that of a service first.
pub fn folders() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("sdp-nfs"));
    [Some(PathBuf::from(SYSTEM)), own].into_iter().flatten().collect()
}

fn in_first_folder<T>(each: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    let mut why = io::Error::from(io::ErrorKind::NotFound);
    for folder in folders() {
        match each(&folder) {
            Ok(made) => return Ok(made),
            Err(e) => why = e,
        }
    }
    Err(why)
}

/// A socket that listens, and its file.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Listens under the gateway's name, in the first folder where that can be done.
    ///
    /// # Errors
    /// Why it can be done in none.
    pub fn new(listen: SocketAddr) -> io::Result<Self> {
        in_first_folder(|folder| Self::within(folder, listen))
    }

    fn within(folder: &Path, listen: SocketAddr) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join(listen.to_string());
        // That of a process that was killed: the address is ours now.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path })
    }

    /// To be watched.
    pub fn descriptor(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Answers those that have connected.
    pub fn answer(&self, status: impl Fn() -> String) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            // What does not fit into the socket's buffer is lost: the gateway does not wait.
            let fits = stream.set_nonblocking(true);
            let _ = fits.and_then(|()| stream.write_all(status().as_bytes()));
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Where a gateway can be replaced: its replacement connects. The gateway stops listening and
/// says so by a byte; the replacement listens and says so by a byte; then the gateway ends. A replacement
/// that ends before gives the address back.
#[derive(Debug)]
pub struct Handover(Control);

/// The other gateway's end of a connection between a gateway and its replacement.
#[derive(Debug)]
pub struct Other(UnixStream);

/// What a replacement has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// Nothing yet.
    Nothing,
    /// It listens.
    Listens,
    /// It has ended.
    Ended,
}

impl Handover {
    /// Waits for a replacement, beside the socket of [`Control`].
    ///
    /// # Errors
    /// As of [`Control::new`].
    pub fn new(listen: SocketAddr) -> io::Result<Self> {
        in_first_folder(|folder| Control::within(&folder.join(HANDOVERS), listen)).map(Self)
    }

    /// To be watched.
    pub fn descriptor(&self) -> RawFd {
        self.0.descriptor()
    }

    /// A replacement that has connected.
    pub fn replacement(&self) -> Option<Other> {
        let (stream, _) = self.0.listener.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(Other(stream))
    }
}

impl Other {
    /// The gateway that listens on an address, when it has stopped to; `None`: there is none.
    ///
    /// # Errors
    /// It does not answer.
    pub fn replaced(listen: SocketAddr) -> io::Result<Option<Self>> {
        let name = listen.to_string();
        let connect = |folder: PathBuf| UnixStream::connect(folder.join(HANDOVERS).join(&name));
        let Some(mut stream) = folders().into_iter().find_map(|folder| connect(folder).ok()) else {
            return Ok(None);
        };
        stream.set_read_timeout(Some(LIMIT))?;
        stream.read_exact(&mut [0])?;
        Ok(Some(Self(stream)))
    }

    /// To be watched.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// This end listens, or does no more.
    ///
    /// # Errors
    /// The other one has ended.
    pub fn tell(&mut self) -> io::Result<()> {
        self.0.write_all(&[1])
    }

    /// What a replacement has said.
    pub fn said(&mut self) -> Said {
        match self.0.read(&mut [0]) {
            Ok(1) => Said::Listens,
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                Said::Nothing
            }
            Ok(_) | Err(_) => Said::Ended,
        }
    }
}

/// What the gateways that can be asked say, by their sockets' names.
pub fn ask_all() -> Vec<(String, String)> {
    let entries = folders().into_iter().filter_map(|folder| fs::read_dir(folder).ok());
    let mut found: Vec<_> = entries.flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    let named = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let ask = |path: &PathBuf| -> io::Result<String> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut text = String::new();
        stream.take(ANSWER_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    found.iter().filter_map(|path| Some((named(path)?, ask(path).ok()?))).collect()
}
