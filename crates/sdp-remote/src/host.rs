//! A process's fabric, and whose its connections are.

use sdp_rdma::{
    cm::{PrivateData, Reject},
    fabric::Fabric,
};

/// What has happened.
#[derive(Debug)]
pub enum Event<F: Fabric> {
    /// Somebody asks at a listener: find the connection ([`Host::listeners`], [`crate::Meeting::answer`]), then
    /// [`Host::accept`] or [`Host::reject`].
    Requested {
        /// The request.
        id: F::Id,
        /// Which listener.
        service: F::Service,
        /// Private data.
        data: PrivateData,
    },
    /// The peer has answered: [`crate::Meeting::learn`], then [`crate::begin`], or [`Host::forget`].
    Established {
        /// The connection's number.
        number: u32,
        /// Sending half.
        tx: F::Tx,
        /// Receiving half.
        rx: F::Rx,
        /// Private data.
        data: PrivateData,
    },
    /// The peer, or whoever is there, has refused.
    Refused {
        /// The connection's number.
        number: u32,
        /// Why.
        reject: Reject,
    },
    /// Nobody answered in time, or there is no way.
    Unreachable {
        /// The connection's number.
        number: u32,
    },
    /// The queue pair has ended: [`crate::Shared::link_died`].
    Lost {
        /// The connection's number.
        number: u32,
    },
}

/// One process's fabric. At most `MAX` listeners and `MAX` queue pairs, attempts included.
#[derive(Debug)]
pub struct Host<F: Fabric, const MAX: usize> {
    fabric: F,
    links: [Option<(F::Id, u32)>; MAX],
    listeners: [Option<(F::Service, u32)>; MAX],
}

impl<F: Fabric, const MAX: usize> Host<F, MAX>
where
    F::Service: PartialEq,
{
    /// Around an open fabric.
    pub fn new(fabric: F) -> Self {
        Self { fabric, links: [None; MAX], listeners: [const { None }; MAX] }
    }

    /// The fabric: to arm, for descriptors.
    pub const fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// Asks for a queue pair to `service` for a connection. Its earlier queue pair is gone.
    ///
    /// # Errors
    /// The fabric's, and [`Reject::Busy`] beyond `MAX`.
    pub fn ask(
        &mut self,
        number: u32,
        service: F::Service,
        request: PrivateData,
    ) -> Result<(), Reject> {
        let _ = (number, service, request);
        Err(Reject::Busy)
    }

    /// Listens for a connection. Several may listen at one service.
    ///
    /// # Errors
    /// As [`Host::ask`].
    pub fn listen(&mut self, number: u32, service: F::Service) -> Result<(), Reject> {
        let _ = (number, service);
        Err(Reject::Busy)
    }

    /// Ends a connection's listening, if it does.
    pub fn unlisten(&mut self, number: u32) {
        let _ = number;
    }

    /// Connections that listen at a service.
    pub fn listeners(&self, service: &F::Service) -> impl Iterator<Item = u32> {
        self.listeners.iter().flatten().filter(move |(at, _)| at == service).map(|(_, n)| *n)
    }

    /// Accepts a request for a connection.
    ///
    /// # Errors
    /// The request is gone, or there is no room.
    pub fn accept(
        &mut self,
        id: F::Id,
        number: u32,
        reply: PrivateData,
    ) -> Result<(F::Tx, F::Rx), Reject> {
        let _ = (id, number, reply);
        Err(Reject::Stale)
    }

    /// Refuses a request; `code` is the caller's.
    pub fn reject(&mut self, id: F::Id, code: u8) {
        self.fabric.reject(id, code);
    }

    /// Ends a connection's queue pair or attempt. Its halves stay readable until they are dropped.
    pub fn forget(&mut self, number: u32) {
        let _ = number;
    }

    /// Does what can be done now and tells one event; call until `None`. Slow: no lock of a half is held.
    pub fn progress(&mut self) -> Option<Event<F>> {
        None
    }
}
