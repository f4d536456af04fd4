//! The errors of this crate, with the kernel's number by its name.

use core::fmt;

use sdp_sys::Errno;

/// Why something between hosts cannot be done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// No RDMA device for this, no right to use it, or no library: said once, and cheaply.
    NoDevice,
    /// The device is iWARP, whose listeners share TCP's ports.
    Iwarp,
    /// The kernel shares pinned pages with forked children (before Linux 5.12).
    OldKernel,
    /// RLIMIT_MEMLOCK leaves no room.
    MemLock,
    /// RLIMIT_NOFILE leaves no numbers out of the program's sight.
    Descriptors,
    /// A fixed table is full.
    Full,
    /// A step and the kernel's or the library's answer.
    Os(&'static str, Errno),
}

impl Error {
    /// The error of a step, with separate variants for those that have a reason of their own.
    pub fn of(step: &'static str, errno: Errno) -> Self {
        match errno.0 {
            libc::ENODEV | libc::ENXIO => Self::NoDevice,
            libc::ENOMEM if step.starts_with("ibv_") => Self::MemLock,
            _ => Self::Os(step, errno),
        }
    }

    /// The error number, where there is one.
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Os(_, errno) => Some(*errno),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => f.write_str("no RDMA device that may be used"),
            Self::Iwarp => f.write_str("the device is iWARP"),
            Self::OldKernel => f.write_str("the kernel is older than 5.12"),
            Self::MemLock => f.write_str("the limit of locked memory leaves no room"),
            Self::Descriptors => f.write_str("the limit of descriptors leaves no room"),
            Self::Full => f.write_str("a table is full"),
            Self::Os(step, errno) => write!(f, "{step}: {} ({})", name(*errno), errno.0),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! names {
    ($errno:expr; $($name:ident)*) => {
        match $errno {
            $(libc::$name => stringify!($name),)*
            _ => "E?",
        }
    };
}

/// The name of an error number of Linux; `E?` for other numbers.
pub const fn name(errno: Errno) -> &'static str {
    names!(errno.0;
        EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES
        EFAULT ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE
        ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK
        ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT
        EL3RST ELNRNG EUNATCH ENOCSI EL2HLT EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT
        EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG EREMOTE ENOLINK EADV ESRMNT ECOMM
        EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD
        ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK EDESTADDRREQ
        EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP
        EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET
        ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT
        ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM
        ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY EKEYEXPIRED
        EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_step_and_number() {
        let error = Error::of("CONNECT", Errno(libc::EADDRINUSE));
        assert_eq!(error.to_string(), "CONNECT: EADDRINUSE (98)");
        assert_eq!(Error::of("BIND", Errno(libc::ENODEV)), Error::NoDevice);
        assert_eq!(Error::of("ibv_reg_mr", Errno(libc::ENOMEM)), Error::MemLock);
        assert_eq!(name(Errno(4000)), "E?");
    }

    unsafe extern "C" {
        /// The C library's names; null for numbers that are none.
        #[cfg(target_env = "gnu")]
        fn strerrorname_np(number: libc::c_int) -> *const libc::c_char;
    }

    /// Providers and the kernel may give any: those of devices, of networks, of file systems.
    #[cfg(target_env = "gnu")]
    #[test]
    fn every_error_number_has_its_name() {
        let mut count = 0;
        for number in 1..4096 {
            // SAFETY: any number will do; the answer is null or a string that is never freed.
            let theirs = unsafe {
                let name = strerrorname_np(number);
                (!name.is_null()).then(|| core::ffi::CStr::from_ptr(name).to_str().expect("ASCII"))
            };
            assert_eq!(name(Errno(number)), theirs.unwrap_or("E?"), "{number}");
            let text = Error::Os("a step", Errno(number)).to_string();
            assert_eq!(text, format!("a step: {} ({number})", theirs.unwrap_or("E?")));
            count += u32::from(theirs.is_some());
        }
        assert!(count > 100, "{count}");
    }
}
