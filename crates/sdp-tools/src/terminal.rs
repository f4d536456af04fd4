//! A terminal taken for one program's screen, and given back as it was.
//!
//! Keys come one by one and without an echo; the screen is the alternate one, so that the earlier
//! content comes back. Signals that would end the program come as an input instead, so that it can
//! give the terminal back first.

use std::io::{self, IsTerminal, Write};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// A key.
    Key(Key),
    /// The window has another size now.
    Resized,
    /// A signal asks for the end, or the terminal has gone.
    End,
    /// Nothing, in the time given.
    Nothing,
}

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// One that writes something.
    Char(char),
    /// Arrow up.
    Up,
    /// Arrow down.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// Any other.
    Other,
}

/// The terminal, until it is dropped.
#[derive(Debug)]
pub struct Terminal {
    before: libc::termios,
    mask: libc::sigset_t,
    signals: OwnedFd,
}

const SIGNALS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGWINCH];
/// Alternate screen, cursor hidden; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// Whether both standard input and output are a terminal.
pub fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

impl Terminal {
    /// Takes the terminal of standard input and output.
    ///
    /// # Errors
    /// They are none.
    pub fn take() -> io::Result<Self> {
        // SAFETY: termios and sigset_t are plain data; each call gets valid pointers to them.
        unsafe {
            let mut before: libc::termios = zeroed();
            if libc::tcgetattr(libc::STDIN_FILENO, &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut set: libc::sigset_t = zeroed();
            let mut mask: libc::sigset_t = zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in SIGNALS {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut mask);
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let signals = OwnedFd::from_raw_fd(fd);
            let mut raw = before;
            raw.c_lflag &= !(libc::ICANON | libc::ECHO | libc::ISIG);
            raw.c_cc[libc::VMIN] = 0;
            raw.c_cc[libc::VTIME] = 0;
            libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw const raw);
            let _ = io::stdout().write_all(ENTER);
            Ok(Self { before, mask, signals })
        }
    }

    /// Waits for an input, at most so long.
    pub fn wait(&self, limit: Duration) -> Input {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [poll(libc::STDIN_FILENO), poll(self.signals.as_raw_fd())];
        if !crate::sys::poll(&mut fds, limit).is_ok_and(|ready| ready > 0) {
            return Input::Nothing;
        }
        if fds[1].revents != 0 {
            // SAFETY: signalfd_siginfo is plain data, valid for its size.
            let signal = unsafe {
                let mut info: libc::signalfd_siginfo = zeroed();
                let len = size_of::<libc::signalfd_siginfo>();
                libc::read(self.signals.as_raw_fd(), (&raw mut info).cast(), len);
                info.ssi_signo
            };
            return match signal.cast_signed() {
                libc::SIGWINCH => Input::Resized,
                _ => Input::End,
            };
        }
        let mut bytes = [0u8; 16];
        match sdp_sys::fd::read(libc::STDIN_FILENO, &mut bytes) {
            Ok(n) if n > 0 => key(&bytes[..n]),
            _ => Input::End,
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut out = io::stdout().lock();
        let _ = out.write_all(LEAVE).and_then(|()| out.flush());
        // SAFETY: both are the values that the calls of `take` gave.
        unsafe {
            libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw const self.before);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut());
        }
    }
}

fn key(bytes: &[u8]) -> Input {
    const INTERRUPT: u8 = 3;
    match bytes {
        [INTERRUPT, ..] => Input::End,
        b"\x1b[A" | b"\x1bOA" => Input::Key(Key::Up),
        b"\x1b[B" | b"\x1bOB" => Input::Key(Key::Down),
        b"\x1b[5~" => Input::Key(Key::PageUp),
        b"\x1b[6~" => Input::Key(Key::PageDown),
        [one, ..] if (0x20..0x7f).contains(one) => Input::Key(Key::Char(char::from(*one))),
        _ => Input::Key(Key::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        assert_eq!(key(b"q"), Input::Key(Key::Char('q')));
        assert_eq!(key(b"\x03"), Input::End);
        assert_eq!(key(b"\x1b[A"), Input::Key(Key::Up));
        assert_eq!(key(b"\x1b[6~"), Input::Key(Key::PageDown));
        assert_eq!(key(b"\x1b"), Input::Key(Key::Other));
    }
}
