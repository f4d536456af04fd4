//! The steps of posted requests: arrival, execution, completion, failure.
//!
//! All of it runs from events. One direction of a queue pair is first in, first out throughout: a
//! request arrives after those posted before it and completes after them, however their times were
//! drawn.

use sdp_rdma::{
    fabric::{CmEvent, QpError},
    work::{Completion, Status},
};

use crate::{
    cm::SimId,
    fault::Ratio,
    memory::Right,
    queue_pair::{Message, Phase, Running, Work},
    schedule::Event,
    world::{Credits, RnrRetry, State},
};

impl State {
    /// Draws whether a destructive fault happens, within the budget of them.
    pub(crate) fn destructive(&mut self, ratio: Ratio) -> bool {
        let happens =
            self.destroyed < self.options.faults.destructive_max && self.random.chance(ratio);
        self.destroyed += u32::from(happens);
        happens
    }

    /// Time of one crossing between two nodes, from now.
    pub(crate) fn crossing_ns(&mut self, from: u32, to: u32, bytes: u64) -> u64 {
        let link = *self.link_mut(from, to);
        let latency_ns = self.random.span(link.options.latency);
        let at_ns = self.now_ns() + latency_ns + bytes * link.options.ns_per_kib / 1024;
        at_ns.max(link.stalled_until_ns)
    }

    /// Time at which a request posted now on a queue pair arrives: never before those posted
    /// earlier.
    pub(crate) fn arrival_ns(&mut self, number: u32, bytes: u64) -> u64 {
        let node = self.queue_pair(number).node;
        let peer_node = self.peer_node(number);
        let faults = self.options.faults;
        if self.random.chance(faults.stall) {
            let until_ns = self.now_ns() + self.random.span(faults.stall_delay);
            self.log(format_args!("link n{node}-n{peer_node} fault: stalled until {until_ns}"));
            let link = self.link_mut(node, peer_node);
            link.stalled_until_ns = link.stalled_until_ns.max(until_ns);
        }
        let mut at_ns = self.crossing_ns(node, peer_node, bytes);
        if self.random.chance(faults.overtake) {
            let delay_ns = self.random.span(faults.overtake_delay);
            self.log(format_args!("qp{number} fault: held up for {delay_ns}"));
            at_ns += delay_ns;
        }
        let send = &mut self.queue_pair_mut(number).send;
        send.last_arrival_ns = send.last_arrival_ns.max(at_ns);
        send.last_arrival_ns
    }

    pub(crate) fn schedule_arrival(&mut self, number: u32) {
        let send = &mut self.queue_pair_mut(number).send;
        let Some(front) = send.waiting.front() else { return };
        let at_ns = front.arrive_at_ns;
        if send.arrive_event_ns.is_none_or(|pending_ns| at_ns < pending_ns) {
            send.arrive_event_ns = Some(at_ns);
            self.schedule.add(at_ns, Event::Arrive(number));
        }
    }

    /// [`Event::Arrive`]: everything that is due arrives.
    pub(crate) fn handle_arrive(&mut self, number: u32) {
        let now_ns = self.now_ns();
        let send = &mut self.queue_pair_mut(number).send;
        if send.arrive_event_ns.is_some_and(|pending_ns| pending_ns <= now_ns) {
            send.arrive_event_ns = None;
        }
        // Each turn takes one request out of `waiting`, or ends.
        for _ in 0..self.options.send_depth {
            let queue_pair = self.queue_pair(number);
            let send = &queue_pair.send;
            let is_due = send.waiting.front().is_some_and(|front| front.arrive_at_ns <= now_ns);
            if queue_pair.phase != Phase::Ready || send.is_stopped || !is_due {
                break;
            }
            if !self.arrive_one(number) {
                break;
            }
        }
        let send = &self.queue_pair(number).send;
        if !send.is_stopped && !send.is_receiver_not_ready {
            self.schedule_arrival(number);
        }
    }

    /// The oldest request reaches the peer; `false` if it did not get through.
    fn arrive_one(&mut self, number: u32) -> bool {
        if self.is_stuck(number) {
            return false;
        }
        let Some(peer) = self.queue_pair(number).peer else { return false };
        if self.destructive(self.options.faults.kill_peer) {
            let node = self.queue_pair(peer).node;
            self.log(format_args!("n{node} fault: killed"));
            self.kill(node);
        } else if self.destructive(self.options.faults.drop_connection) {
            self.log(format_args!("qp{number} fault: connection dropped"));
            self.fail(peer, QpError::Disconnected, true);
        }
        if self.queue_pair(peer).phase != Phase::Ready {
            self.finish(number, Err((Status::RetryExceeded, QpError::Disconnected)));
            return false;
        }
        let Some(front) = self.queue_pair(number).send.waiting.front() else { return false };
        match front.work {
            Work::Send { .. } => self.arrive_send(number, peer),
            Work::Read { .. } | Work::Write { .. } => self.arrive_one_sided(number, peer),
        }
    }

    /// Whether the link is down; gives up after the transport's timeout.
    fn is_stuck(&mut self, number: u32) -> bool {
        let now_ns = self.now_ns();
        let patience_ns = self.options.transport_timeout_ns;
        let (node, peer_node) = (self.queue_pair(number).node, self.peer_node(number));
        if self.link_mut(node, peer_node).is_up {
            return false;
        }
        let send = &mut self.queue_pair_mut(number).send;
        let Some(front) = send.waiting.front_mut() else { return false };
        let give_up_ns = *front.stuck_since_ns.get_or_insert(now_ns) + patience_ns;
        if now_ns >= give_up_ns {
            self.log(format_args!("qp{number} gives up: link n{node}-n{peer_node} is down"));
            self.finish(number, Err((Status::RetryExceeded, QpError::Disconnected)));
        } else {
            front.arrive_at_ns = give_up_ns;
        }
        true
    }

    fn arrive_send(&mut self, number: u32, peer: u32) -> bool {
        if let Credits::Explicit { buffers, buffer_bytes, rnr } = self.options.credits {
            let is_empty = self.queue_pair(peer).receive.held() >= usize::from(buffers);
            let is_fault = self.random.chance(self.options.faults.receiver_not_ready);
            if is_empty || is_fault {
                self.refuse_send(number, rnr, is_empty);
                return false;
            }
            let front = self.queue_pair(number).send.waiting.front();
            let len = front.map_or(0, |front| match &front.work {
                Work::Send { bytes, .. } => bytes.len(),
                _ => 0,
            });
            if len > buffer_bytes as usize {
                self.finish(number, Err((Status::RemoteAccess, QpError::Fatal)));
                return false;
            }
        }
        let Some(front) = self.queue_pair_mut(number).send.waiting.front_mut() else {
            return false;
        };
        let Work::Send { bytes, hash } = &mut front.work else { return false };
        let message = Message { bytes: core::mem::take(bytes), hash: *hash };
        self.log(format_args!(
            "qp{peer} arrive len {} hash {:016x}",
            message.bytes.len(),
            message.hash
        ));
        self.queue_pair_mut(peer).receive.arrived.push_back(message);
        self.finish(number, Ok(None));
        true
    }

    /// No receive buffer: try again later, or fail.
    fn refuse_send(&mut self, number: u32, rnr: RnrRetry, is_empty: bool) {
        let retry_at_ns = self.now_ns() + self.options.rnr_timer_ns;
        let send = &mut self.queue_pair_mut(number).send;
        let Some(front) = send.waiting.front_mut() else { return };
        front.refusals += 1;
        let refusals = front.refusals;
        let is_last = match rnr {
            RnrRetry::Forever => false,
            RnrRetry::Times(times) => refusals > times,
        };
        if !is_last {
            front.arrive_at_ns = retry_at_ns;
            // A real device would ask again and again; here the peer's release wakes it, so that an
            // idle world comes to rest.
            send.is_receiver_not_ready = is_empty && rnr == RnrRetry::Forever;
        }
        self.log(format_args!("qp{number} receiver not ready, refusal {refusals}"));
        if is_last {
            self.finish(number, Err((Status::RetryExceeded, QpError::Fatal)));
        }
    }

    fn arrive_one_sided(&mut self, number: u32, peer: u32) -> bool {
        let node = self.queue_pair(number).node as usize;
        let peer_node = self.queue_pair(peer).node as usize;
        let Some(front) = self.queue_pair(number).send.waiting.front() else { return false };
        let result = match front.work {
            Work::Send { .. } => return false,
            Work::Read { local, remote } => {
                let is_ready = local.len == remote.len
                    && self.nodes[node]
                        .memory
                        .access(local.lkey.0, Right::Local, local.addr, local.len)
                        .is_some();
                let memory = &mut self.nodes[peer_node].memory;
                let bytes = memory
                    .access(remote.rkey.0, Right::RemoteRead, remote.addr, remote.len)
                    .map(|bytes| bytes.to_vec());
                match (is_ready, bytes) {
                    (false, _) => Err((Status::LocalProtection, QpError::Fatal)),
                    (true, None) => Err((Status::RemoteAccess, QpError::Fatal)),
                    (true, Some(bytes)) => Ok(Some((local, bytes))),
                }
            }
            // No byte, no key: devices look at none either.
            Work::Write { local, remote } if local.len == 0 && remote.len == 0 => Ok(None),
            Work::Write { local, remote } => {
                // The source is read as late as possible: a poster that reuses it before the
                // completion is caught.
                let memory = &mut self.nodes[node].memory;
                let bytes = memory
                    .access(local.lkey.0, Right::Local, local.addr, local.len)
                    .filter(|_| local.len == remote.len)
                    .map(|bytes| bytes.to_vec());
                let memory = &mut self.nodes[peer_node].memory;
                let target =
                    memory.access(remote.rkey.0, Right::RemoteWrite, remote.addr, remote.len);
                match (bytes, target) {
                    (None, _) => Err((Status::LocalProtection, QpError::Fatal)),
                    (Some(_), None) => Err((Status::RemoteAccess, QpError::Fatal)),
                    (Some(bytes), Some(target)) => {
                        target.copy_from_slice(&bytes);
                        Ok(None)
                    }
                }
            }
        };
        let is_done = result.is_ok();
        self.finish(number, result);
        is_done
    }

    /// The oldest request has run, or failed; its completion sets out.
    fn finish(&mut self, number: u32, result: Finished) {
        let (node, peer_node) = (self.queue_pair(number).node, self.peer_node(number));
        let carried = match &result {
            Ok(Some((_, bytes))) => bytes.len() as u64,
            _ => 0,
        };
        let mut ripe_at_ns = self.crossing_ns(peer_node, node, carried);
        let faults = self.options.faults;
        if self.random.chance(faults.late_completion) {
            ripe_at_ns += self.random.span(faults.completion_delay);
        }
        let send = &mut self.queue_pair_mut(number).send;
        let Some(front) = send.waiting.pop_front() else { return };
        ripe_at_ns = ripe_at_ns.max(send.last_completion_ns);
        send.last_completion_ns = ripe_at_ns;
        send.is_stopped = result.is_err();
        let (fetched, status, error) = match result {
            Ok(fetched) => (fetched, Status::Success, QpError::Fatal),
            Err((status, error)) => (None, status, error),
        };
        send.running.push_back(Running {
            id: front.id,
            opcode: front.work.opcode(),
            status,
            is_signalled: front.is_signalled,
            ripe_at_ns,
            fetched,
            error,
        });
        self.schedule_completion(number);
    }

    fn schedule_completion(&mut self, number: u32) {
        let send = &mut self.queue_pair_mut(number).send;
        let Some(front) = send.running.front() else { return };
        let at_ns = front.ripe_at_ns;
        if send.complete_event_ns.is_none_or(|pending_ns| at_ns < pending_ns) {
            send.complete_event_ns = Some(at_ns);
            self.schedule.add(at_ns, Event::Complete(number));
        }
    }

    /// [`Event::Complete`]: the poster learns of everything that is ripe.
    pub(crate) fn handle_complete(&mut self, number: u32) {
        let now_ns = self.now_ns();
        let node = self.queue_pair(number).node as usize;
        self.queue_pair_mut(number).send.complete_event_ns = None;
        for _ in 0..self.options.send_depth {
            let send = &mut self.queue_pair_mut(number).send;
            if send.running.front().is_none_or(|front| front.ripe_at_ns > now_ns) {
                break;
            }
            let Some(mut done) = send.running.pop_front() else { break };
            if let Some((local, bytes)) = done.fetched.take() {
                // Checked again: the region may be gone since the request ran.
                let memory = &mut self.nodes[node].memory;
                match memory.access(local.lkey.0, Right::Local, local.addr, local.len) {
                    Some(target) => target.copy_from_slice(&bytes),
                    None => done.status = Status::LocalProtection,
                }
            }
            let is_failure = done.status != Status::Success;
            if done.is_signalled || is_failure {
                let completion =
                    Completion { id: done.id, opcode: done.opcode, status: done.status };
                self.log(format_args!("qp{number} ripe {} {:?}", done.id.0, done.status));
                self.queue_pair_mut(number).send.completed.push_back(completion);
            }
            if is_failure {
                self.fail(number, done.error, true);
                return;
            }
        }
        self.schedule_completion(number);
    }

    /// The receiver freed room: tells the sender.
    pub(crate) fn announce_room(&mut self, number: u32) {
        let queue_pair = self.queue_pair(number);
        let Some(peer) = queue_pair.peer else { return };
        if queue_pair.phase != Phase::Ready || self.queue_pair(peer).phase != Phase::Ready {
            return;
        }
        let freed_bytes = queue_pair.receive.freed_bytes;
        let (node, peer_node) = (queue_pair.node, self.queue_pair(peer).node);
        let at_ns = self.crossing_ns(node, peer_node, 0);
        let credits = self.options.credits;
        let send = &mut self.queue_pair_mut(peer).send;
        match credits {
            Credits::Explicit { .. } => {
                if !core::mem::take(&mut send.is_receiver_not_ready) {
                    return;
                }
                if let Some(front) = send.waiting.front_mut() {
                    front.arrive_at_ns = front.arrive_at_ns.max(at_ns);
                }
                self.schedule_arrival(peer);
            }
            Credits::Implicit { .. } => {
                let last = send.window_updates.back();
                if last.map_or(send.freed_bytes, |(_, freed)| *freed) == freed_bytes {
                    return;
                }
                let last_ns = send.window_updates.back().map_or(0, |(last_ns, _)| *last_ns);
                send.window_updates.push_back((at_ns.max(last_ns), freed_bytes));
                self.schedule_window(peer);
            }
        }
    }

    fn schedule_window(&mut self, number: u32) {
        let send = &mut self.queue_pair_mut(number).send;
        let Some((at_ns, _)) = send.window_updates.front().copied() else { return };
        if send.window_event_ns.is_none() {
            send.window_event_ns = Some(at_ns);
            self.schedule.add(at_ns, Event::Window(number));
        }
    }

    /// [`Event::Window`]: the sender hears of freed room.
    pub(crate) fn handle_window(&mut self, number: u32) {
        let now_ns = self.now_ns();
        let send = &mut self.queue_pair_mut(number).send;
        send.window_event_ns = None;
        while let Some((_, freed)) = send.window_updates.pop_front_if(|(at_ns, _)| *at_ns <= now_ns)
        {
            send.freed_bytes = freed;
        }
        self.schedule_window(number);
    }

    /// [`Event::PeerGone`].
    pub(crate) fn handle_peer_gone(&mut self, number: u32) {
        match self.queue_pair(number).phase {
            Phase::Requested => self.withdraw(number),
            Phase::Ready => self.fail(number, QpError::Disconnected, true),
            Phase::Connecting | Phase::Failed(_) => {}
        }
    }

    /// Ends a queue pair: everything in flight is flushed, messages that had arrived stay, the peer
    /// will hear of it. `is_reported`: the owner did not ask for it, so it gets an event.
    pub(crate) fn fail(&mut self, number: u32, error: QpError, is_reported: bool) {
        if self.queue_pair(number).phase != Phase::Ready {
            return;
        }
        self.log(format_args!("qp{number} fails: {error:?}"));
        let queue_pair = self.queue_pair_mut(number);
        queue_pair.phase = Phase::Failed(error);
        let (node, peer) = (queue_pair.node, queue_pair.peer);
        let send = &mut queue_pair.send;
        // A request whose completion was in flight may have run: its poster cannot know.
        let running = send.running.drain(..).map(|done| (done.id, done.opcode));
        let waiting = send.waiting.drain(..).map(|request| (request.id, request.work.opcode()));
        let flushed = running.chain(waiting).map(|(id, opcode)| Completion {
            id,
            opcode,
            status: Status::Flushed,
        });
        send.completed.extend(flushed);
        send.window_updates.clear();
        if is_reported {
            self.push_cm_event(node, CmEvent::Disconnected(SimId(number)));
        }
        if let Some(peer) = peer {
            let peer_node = self.queue_pair(peer).node;
            let at_ns = self.crossing_ns(node, peer_node, 0);
            self.schedule.add(at_ns, Event::PeerGone(peer));
        }
    }
}

/// READ bytes with their destination, or why the request failed and the queue pair's error.
type Finished = Result<Option<(sdp_rdma::key::LocalSlice, Vec<u8>)>, (Status, QpError)>;
