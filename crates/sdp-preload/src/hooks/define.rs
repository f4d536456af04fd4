//! How a hook is written down.

/// Defines exported functions with C linkage. The body is checked as one unsafe operation: the
/// comment inside says what makes it sound, the same for all of them.
macro_rules! hooks {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            #[allow(unused_unsafe, reason = "some bodies are safe")]
            // SAFETY: the arguments are the program's, with the validity that the libc function of
            // this name demands; they are handed on unchanged to that function or to the function
            // of the socket layer that stands for it, and looked into only as libc itself would.
            unsafe { $body }
        }
    )*};
}

/// Acts on the socket layer's answer: makes the real call where asked to.
macro_rules! answer {
    ($call:expr, $flags:expr, $real:expr) => {
        match $call {
            // Only waits are answered with the second.
            sdp_socket::calls::Call::Pass | sdp_socket::calls::Call::EarlyWait => $real,
            sdp_socket::calls::Call::Counted(ticket) => {
                let result = $real;
                sdp_socket::calls::finish(ticket, result as isize, $flags);
                result
            }
            sdp_socket::calls::Call::Done(result) => crate::errno::from_result(result) as _,
        }
    };
    ($call:expr, $real:expr) => {
        answer!($call, 0, $real)
    };
}
