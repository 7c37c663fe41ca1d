//! One link: what is in flight, what has arrived, and how it ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use model::Moment;
use runtime::{Link, LinkReceiver, LinkSender, NetworkError};

use super::{Host, State, Wires};
use crate::executor::ProcessId;

/// Bytes that one direction of a link may hold: sent, and not yet taken by the receiver.
pub const LINK_BYTES_MAX: usize = 8 << 20;

/// One link between two ends: 0 opened it, 1 accepted it.
pub(super) struct LinkState {
    pub(super) hosts: [Host; 2],
    pub(super) processes: [ProcessId; 2],
    /// It carries bytes, not frames: nothing is lost, doubled or reordered.
    is_stream: bool,
    ends: [End; 2],
}

/// What one end knows, and what is on its way to it.
#[derive(Default)]
struct End {
    inbox: VecDeque<Bytes>,
    status: Status,
    waker: Option<Waker>,
    /// Held back by a partition, in order.
    held: VecDeque<Item>,
    /// When the last item for this end arrives.
    arrives_last: Moment,
    /// Bytes sent to this end that its receiver has not taken.
    bytes: usize,
    receiver_gone: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Status {
    #[default]
    Open,
    /// The other end sends no more.
    Finished,
    /// Closed by either side or by a failure.
    Closed,
}

/// What travels.
pub(super) enum Item {
    Frame(Bytes),
    Finish,
    Reset,
}

/// One end of one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) link: u64,
    pub(super) end: usize,
}

impl Route {
    fn other(self) -> Route {
        Route { link: self.link, end: 1 - self.end }
    }
}

impl LinkState {
    pub(super) fn new(hosts: [Host; 2], processes: [ProcessId; 2], is_stream: bool) -> LinkState {
        LinkState { hosts, processes, is_stream, ends: Default::default() }
    }
}

impl End {
    /// Forgets everything that has not been taken.
    fn close(&mut self) -> Option<Waker> {
        self.status = Status::Closed;
        self.inbox.clear();
        self.held.clear();
        self.bytes = 0;
        self.waker.take()
    }
}

impl Wires {
    pub(super) fn end(&self, route: Route, peer: String) -> Link {
        Link {
            sender: Arc::new(Sender { wires: self.clone(), route }),
            receiver: Box::new(Receiver { wires: self.clone(), route }),
            peer,
            proof: runtime::Proof::None,
        }
    }

    /// Sends an item on its way to `to`.
    fn transmit(&self, state: &mut State, to: Route, item: Item) {
        let Some(link) = state.links.get_mut(&to.link) else { return };
        let (from_host, to_host) = (link.hosts[1 - to.end], link.hosts[to.end]);
        if let (Item::Frame(frame), Some(&per_mille)) = (&item, state.cutting.get(&from_host))
            && state.cuts.chance(per_mille)
        {
            link.ends[to.end].bytes -= frame.len().min(link.ends[to.end].bytes);
            let (wires, number) = (self.clone(), to.link);
            self.executor.at(self.executor.now(), move || wires.break_link(number));
            return;
        }
        if state.blocked.contains(&(from_host, to_host)) {
            link.ends[to.end].held.push_back(item);
            return;
        }
        if link.is_stream {
            return self.schedule(state, to, item);
        }
        if matches!(item, Item::Frame(_)) && state.dice.chance(state.conditions.loss_per_mille) {
            self.troubles.lost_frame((from_host, to_host), self.executor.now());
            if let Item::Frame(frame) = item {
                link.ends[to.end].bytes -= frame.len().min(link.ends[to.end].bytes);
            }
            return;
        }
        if let Item::Frame(frame) = &item
            && state.dice.chance(state.conditions.duplicate_per_mille)
        {
            let copy = frame.clone();
            link.ends[to.end].bytes += copy.len();
            self.schedule(state, to, Item::Frame(copy));
        }
        self.schedule(state, to, item);
    }

    fn schedule(&self, state: &mut State, to: Route, item: Item) {
        let Some((hosts, is_stream)) = state.links.get(&to.link).map(|link| (link.hosts, link.is_stream))
        else {
            return;
        };
        let (sent, way) = (self.executor.now(), (hosts[1 - to.end], hosts[to.end]));
        let arrives = sent.after(state.delay(way.0, way.1));
        let overtakes = state.conditions.reorder && !is_stream && matches!(item, Item::Frame(_));
        let Some(link) = state.links.get_mut(&to.link) else { return };
        let last = &mut link.ends[to.end].arrives_last;
        let arrives = if overtakes { arrives } else { arrives.max(*last) };
        *last = arrives.max(*last);
        self.troubles.slow_frame(way, sent, arrives);
        let wires = self.clone();
        self.executor.at(arrives, move || wires.deliver(to, item));
    }

    fn deliver(&self, to: Route, item: Item) {
        let (what, detail) = match &item {
            Item::Frame(frame) => (2, model::Token::of(frame).0),
            Item::Finish => (3, 0),
            Item::Reset => (4, 0),
        };
        self.executor.note(what ^ (to.link << 8) ^ ((to.end as u64) << 4), detail);
        let waker = {
            let mut state = self.state.lock();
            state.frames += 1;
            let item = match (item, &mut state.late) {
                (Item::Frame(frame), Some(tamper)) => {
                    let mut bytes = frame.to_vec();
                    tamper(&mut bytes);
                    assert_eq!(bytes.len(), frame.len(), "what waits is counted");
                    Item::Frame(bytes.into())
                }
                (item, _) => item,
            };
            let Some(link) = state.links.get_mut(&to.link) else { return };
            let end = &mut link.ends[to.end];
            if end.status == Status::Closed {
                return;
            }
            match item {
                Item::Frame(frame) if end.receiver_gone => end.bytes -= frame.len().min(end.bytes),
                Item::Frame(frame) => end.inbox.push_back(frame),
                Item::Finish => end.status = Status::Finished,
                // What has arrived is still read; the bytes in flight are gone.
                Item::Reset => end.status = Status::Closed,
            }
            end.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Sends what partitions held back and no longer do.
    pub(super) fn release_held(&self) {
        let mut state = self.state.lock();
        let links: Vec<u64> = state.links.keys().copied().collect();
        for number in links {
            for end in 0..2 {
                let Some(link) = state.links.get_mut(&number) else { continue };
                let way = (link.hosts[1 - end], link.hosts[end]);
                let held = std::mem::take(&mut link.ends[end].held);
                if state.blocked.contains(&way) {
                    if let Some(link) = state.links.get_mut(&number) {
                        link.ends[end].held = held;
                    }
                    continue;
                }
                for item in held {
                    self.schedule(&mut state, Route { link: number, end }, item);
                }
            }
        }
    }

    /// Ends one link on both sides.
    fn break_link(&self, number: u64) {
        let wakers: Vec<Waker> = {
            let mut state = self.state.lock();
            let link = state.links.remove(&number);
            link.into_iter().flat_map(|mut link| link.ends.each_mut().map(End::close)).flatten().collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Ends links: `ended` says which ends end at once; the others learn it `silence` later.
    pub(super) fn end_links(
        &self,
        ended: &dyn Fn([Host; 2], [ProcessId; 2]) -> Option<[bool; 2]>,
        silence: Duration,
    ) {
        let mut wakers = Vec::new();
        let mut resets = Vec::new();
        {
            let mut state = self.state.lock();
            for (&number, link) in &mut state.links {
                let Some(at_once) = ended(link.hosts, link.processes) else { continue };
                for (end, at_once) in at_once.into_iter().enumerate() {
                    if at_once {
                        wakers.extend(link.ends[end].close());
                    } else {
                        resets.push(Route { link: number, end });
                    }
                }
            }
        }
        for waker in wakers {
            waker.wake();
        }
        let (wires, at) = (self.clone(), self.executor.now().after(silence));
        self.executor.at(at, move || {
            let mut state = wires.state.lock();
            for route in resets {
                wires.transmit(&mut state, route, Item::Reset);
            }
            state.links.retain(|_, link| link.ends.iter().any(|end| end.status != Status::Closed));
        });
    }
}

struct Sender {
    wires: Wires,
    route: Route,
}

impl LinkSender for Sender {
    fn send(&self, encode: &mut dyn FnMut(&mut BytesMut)) -> Result<(), NetworkError> {
        let mut state = self.wires.state.lock();
        let to = self.route.other();
        let Some(link) = state.links.get_mut(&to.link) else { return Err(NetworkError::Closed) };
        if link.ends[self.route.end].status == Status::Closed {
            return Err(NetworkError::Closed);
        }
        if link.ends[to.end].bytes >= LINK_BYTES_MAX {
            self.wires.troubles.broken_link((link.hosts[0], link.hosts[1]), self.wires.executor.now());
            return Err(NetworkError::Overloaded);
        }
        let mut frame = BytesMut::new();
        encode(&mut frame);
        link.ends[to.end].bytes += frame.len();
        let frame = match &mut state.tamper {
            None => frame.freeze(),
            Some(tamper) => {
                let mut bytes = frame.to_vec();
                tamper(&mut bytes);
                bytes.into()
            }
        };
        self.wires.transmit(&mut state, to, Item::Frame(frame));
        Ok(())
    }

    fn close(&self) {
        let waker = {
            let mut state = self.wires.state.lock();
            let Some(link) = state.links.get_mut(&self.route.link) else { return };
            if link.ends[self.route.end].status == Status::Closed {
                return;
            }
            let waker = link.ends[self.route.end].close();
            self.wires.transmit(&mut state, self.route.other(), Item::Reset);
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn queued_bytes(&self) -> usize {
        let state = self.wires.state.lock();
        match state.links.get(&self.route.link) {
            Some(link) if link.ends[self.route.end].status != Status::Closed => {
                link.ends[1 - self.route.end].bytes
            }
            _ => 0,
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.wires.state.lock();
        let closed = match state.links.get(&self.route.link) {
            Some(link) => link.ends[self.route.end].status == Status::Closed,
            None => true,
        };
        if !closed {
            self.wires.transmit(&mut state, self.route.other(), Item::Finish);
        }
    }
}

struct Receiver {
    wires: Wires,
    route: Route,
}

impl LinkReceiver for Receiver {
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, NetworkError>> {
        let mut state = self.wires.state.lock();
        let Some(link) = state.links.get_mut(&self.route.link) else {
            return Poll::Ready(Err(NetworkError::Closed));
        };
        let end = &mut link.ends[self.route.end];
        if let Some(frame) = end.inbox.pop_front() {
            end.bytes -= frame.len().min(end.bytes);
            return Poll::Ready(Ok(Some(frame)));
        }
        match end.status {
            Status::Open => {
                end.waker = Some(context.waker().clone());
                Poll::Pending
            }
            Status::Finished => Poll::Ready(Ok(None)),
            Status::Closed => Poll::Ready(Err(NetworkError::Closed)),
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.wires.state.lock();
        if let Some(link) = state.links.get_mut(&self.route.link) {
            let end = &mut link.ends[self.route.end];
            end.receiver_gone = true;
            let unread: usize = end.inbox.drain(..).map(|frame| frame.len()).sum();
            end.bytes -= unread.min(end.bytes);
        }
    }
}
