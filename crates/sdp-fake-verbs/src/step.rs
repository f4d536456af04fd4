//! The steps that can be made to fail.

use sdp_sys::Errno;

macro_rules! steps {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// A step, by the call or event that it is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Step {
            $($(#[$about])* $name,)*
        }

        impl Step {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// The step with this name.
            pub fn named(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($name) => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

steps! {
    /// Opening `rdma_cm`.
    OpenManager,
    /// Making an id.
    CreateId,
    /// Taking an address.
    Bind,
    /// Asking for the device.
    Query,
    /// Waiting for requests.
    Listen,
    /// Looking for the peer.
    ResolveAddress,
    /// Looking for the road.
    ResolveRoute,
    /// Asking.
    Connect,
    /// Accepting.
    Accept,
    /// Confirming the peer's acceptance.
    Confirm,
    /// Refusing.
    Reject,
    /// Saying goodbye.
    Disconnect,
    /// The attributes for the next state of a queue pair.
    InitQpAttr,
    /// Taking an event.
    GetEvent,
    /// The report that the peer is there.
    Establish,
    /// The list of devices.
    DeviceList,
    /// Opening a device.
    OpenDevice,
    /// A protection domain.
    AllocPd,
    /// Registering memory.
    RegMr,
    /// A completion channel.
    CreateChannel,
    /// A completion queue.
    CreateCq,
    /// A shared receive queue.
    CreateSrq,
    /// A queue pair.
    CreateQp,
    /// A queue pair to INIT.
    ToInit,
    /// To RTR.
    ToRtr,
    /// To RTS.
    ToRts,
    /// To ERR.
    ToErr,
    /// Posting to a send queue.
    PostSend,
    /// Posting to a shared receive queue.
    PostReceive,
    /// Taking completions.
    Poll,
    /// Arming a completion queue.
    Arm,
    /// The end of a send, which fails with the number as its status.
    SendCompletion,
    /// The end of a receive, likewise.
    ReceiveCompletion,
    /// An event of the connection manager, which is lost.
    EventLost,
    /// One that comes twice.
    EventTwice,
    /// One that comes as another, whose kind is the number.
    EventChanged,
}

/// Calls of a step, and which of them fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) calls: u32,
    /// The first that fails, counted from 1; 0: none.
    first: u32,
    /// How many do.
    count: u32,
    number: i32,
}

impl Fault {
    /// Nothing fails.
    pub(crate) const NONE: Self = Self { calls: 0, first: 0, count: 0, number: 0 };

    pub(crate) fn set(&mut self, nth: u32, count: u32, number: i32) {
        *self = Self { calls: 0, first: nth, count, number };
    }

    /// Counts a call; the number that it is to fail with.
    pub(crate) fn take(&mut self) -> Option<i32> {
        self.calls = self.calls.wrapping_add(1);
        let is_its =
            self.first != 0 && self.calls >= self.first && self.calls - self.first < self.count;
        is_its.then_some(self.number)
    }

    /// The same as an error.
    pub(crate) fn check(&mut self) -> Result<(), Errno> {
        self.take().map_or(Ok(()), |number| Err(Errno(number)))
    }
}
