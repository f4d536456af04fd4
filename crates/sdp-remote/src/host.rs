//! A process's fabric, and the owners of its connections.

use sdp_rdma::{
    cm::{PrivateData, Reject},
    fabric::{CmEvent, Fabric},
};

/// Codes of refusals that are this crate's own: no room, and no connection to ask.
const BUSY: u8 = 255;
const NOBODY: u8 = 254;

/// An event.
#[derive(Debug)]
pub enum Event<F: Fabric> {
    /// A request comes at a listener: find the connection ([`Host::listeners`],
    /// [`crate::Meeting::answer`]), then [`Host::accept`] or [`Host::reject`].
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
    /// The peer, or another process there, has refused.
    Refused {
        /// The connection's number.
        number: u32,
        /// Why.
        reject: Reject,
    },
    /// No answer came in time, or there is no way.
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
        let place = self.links.iter().position(Option::is_none).ok_or(Reject::Busy)?;
        let id = self.fabric.connect(service, request)?;
        self.enter(place, id, number);
        Ok(())
    }

    /// Listens for a connection. Several may listen at one service.
    ///
    /// # Errors
    /// As [`Host::ask`].
    pub fn listen(&mut self, number: u32, service: F::Service) -> Result<(), Reject> {
        let is_heard = self.listeners(&service).next().is_some();
        let place = self.listeners.iter_mut().find(|place| place.is_none()).ok_or(Reject::Busy)?;
        if !is_heard {
            self.fabric.listen(service.clone())?;
        }
        *place = Some((service, number));
        Ok(())
    }

    /// Ends a connection's listening, if it does.
    pub fn unlisten(&mut self, number: u32) {
        let is_its = |place: &&mut Option<(F::Service, u32)>| {
            place.as_ref().is_some_and(|(_, of)| *of == number)
        };
        let Some((service, _)) = self.listeners.iter_mut().find(is_its).and_then(Option::take)
        else {
            return;
        };
        if self.listeners(&service).next().is_none() {
            self.fabric.unlisten(service);
        }
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
        let Some(place) = self.links.iter().position(Option::is_none) else {
            self.fabric.reject(id, BUSY);
            return Err(Reject::Busy);
        };
        self.fabric.accept(id, reply)?;
        let Some(halves) = self.fabric.take_queues(id) else {
            self.fabric.disconnect(id);
            return Err(Reject::Stale);
        };
        self.enter(place, id, number);
        Ok(halves)
    }

    /// Refuses a request; `code` is the caller's.
    pub fn reject(&mut self, id: F::Id, code: u8) {
        self.fabric.reject(id, code);
    }

    /// Ends a connection's queue pair or attempt. Its halves stay readable until they are dropped.
    /// No further event concerns it.
    pub fn forget(&mut self, number: u32) {
        while let Some(id) = self.leave(|_, of| of == number) {
            self.fabric.disconnect(id);
        }
    }

    /// Does all that can be done now and returns one event; call until `None`. Slow: no lock of a
    /// half is held.
    pub fn progress(&mut self) -> Option<Event<F>> {
        while let Some(event) = self.fabric.poll_cm() {
            match event {
                CmEvent::Request(id, data) => match self.fabric.service_of(id) {
                    Some(service) => return Some(Event::Requested { id, service, data }),
                    None => self.fabric.reject(id, NOBODY),
                },
                CmEvent::Established(id, data) => {
                    let Some(number) = self.number(id) else {
                        self.fabric.disconnect(id);
                        continue;
                    };
                    let Some((tx, rx)) = self.fabric.take_queues(id) else {
                        self.forget(number);
                        return Some(Event::Unreachable { number });
                    };
                    return Some(Event::Established { number, tx, rx, data });
                }
                CmEvent::Rejected(id, reject) => {
                    if let Some(number) = self.remove(id) {
                        return Some(Event::Refused { number, reject });
                    }
                }
                CmEvent::Unreachable(id) => {
                    if let Some(number) = self.remove(id) {
                        return Some(Event::Unreachable { number });
                    }
                }
                CmEvent::Disconnected(id) => {
                    if let Some(number) = self.remove(id) {
                        return Some(Event::Lost { number });
                    }
                }
            }
        }
        None
    }

    fn enter(&mut self, place: usize, id: F::Id, number: u32) {
        if let Some(place) = self.links.get_mut(place) {
            *place = Some((id, number));
        }
    }

    /// The queue pair of a connection, made or asked for.
    pub fn id_of(&self, number: u32) -> Option<F::Id> {
        self.links.iter().flatten().find(|(_, of)| *of == number).map(|(id, _)| *id)
    }

    fn number(&self, id: F::Id) -> Option<u32> {
        self.links.iter().flatten().find(|(of, _)| *of == id).map(|(_, number)| *number)
    }

    fn remove(&mut self, id: F::Id) -> Option<u32> {
        let number = self.number(id)?;
        self.leave(|of, _| of == id);
        Some(number)
    }

    fn leave(&mut self, is_it: impl Fn(F::Id, u32) -> bool) -> Option<F::Id> {
        let is_there =
            |place: &&mut Option<(F::Id, u32)>| place.is_some_and(|(id, number)| is_it(id, number));
        self.links.iter_mut().find(is_there).and_then(Option::take).map(|(id, _)| id)
    }
}
