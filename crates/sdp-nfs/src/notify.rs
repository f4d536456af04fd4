//! What a service tells its manager (`sd_notify(3)`).

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// The service does its work from now on.
pub const READY: &str = "READY=1";

fn send(to: &[u8], state: &str) -> io::Result<()> {
    let address = match to {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

/// Tells it, if there is a manager.
///
/// # Errors
/// It cannot be told.
pub fn tell(state: &str) -> io::Result<()> {
    match env::var_os("NOTIFY_SOCKET") {
        Some(to) if !to.is_empty() => send(to.as_bytes(), state),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    #[test]
    fn managers_with_and_without_a_file() {
        let name = format!("sdp-nfs-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        send(format!("@{name}").as_bytes(), READY).unwrap();
        assert_eq!(heard(&socket), "READY=1");
        let path = env::temp_dir().join(&name);
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str().as_bytes(), READY).unwrap();
        assert_eq!(heard(&socket), "READY=1");
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.as_os_str().as_bytes(), READY).is_err());
    }
}
