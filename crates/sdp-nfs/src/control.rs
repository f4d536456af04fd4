//! The control socket of a gateway: who connects gets its status, and nothing else happens.
//!
//! The socket lies in a folder of its user's, with mode 0600. No request is read, so none can be
//! wrong; who does not take the status loses it.

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
/// How long a gateway's answer is waited for.
const LIMIT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are taken.
const ANSWER_MAX: u64 = 16 << 20;

/// The folders in which sockets may lie, that of a service first.
pub fn folders() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("sdp-nfs"));
    [Some(PathBuf::from(SYSTEM)), own].into_iter().flatten().collect()
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
        let mut why = io::Error::from(io::ErrorKind::NotFound);
        for folder in folders() {
            match Self::within(&folder, listen) {
                Ok(control) => return Ok(control),
                Err(e) => why = e,
            }
        }
        Err(why)
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
