//! The account of one request that is coming in, and the place that it may lose.

use std::sync::Arc;
use std::task::{Context, Poll};

use model::Moment;

use super::unfinished::{Id, Seat, Unfinished};
use super::{Admission, COMING_BYTES_FREE, COMING_PART, ConnectionAccount, Overloaded, Peer, lock};

/// The one request that is still coming in on a connection; what it holds is given back when this is dropped.
#[derive(Debug)]
pub struct Coming {
    place: InputRoom,
    /// This many bytes count as none.
    free: usize,
    /// Whether it is counted.
    holds: bool,
}

/// The place of a request that is coming in. Slow ones lose it when others find no room.
#[derive(Clone, Debug)]
pub struct InputRoom {
    connection: Arc<ConnectionAccount>,
    id: Id,
    seat: Arc<Seat>,
}

impl Coming {
    pub(super) fn new(connection: &Arc<ConnectionAccount>, free: usize) -> Coming {
        let id = lock(&connection.admission.unfinished).name();
        let place = InputRoom { connection: Arc::clone(connection), id, seat: Arc::default() };
        Coming { place, free, holds: false }
    }

    /// Counts `bytes`, with what is about to be reserved for more, in place of what was counted before. Up to
    /// [`COMING_BYTES_FREE`], or its share of that, they count as none. When the request has come whole, hold nothing before it is admitted.
    ///
    /// Requests that have been slow for [`AdmissionLimits::slow_time_min`] lose their places where there is no room otherwise.
    /// As with [`ConnectionAccount::admit`], what comes alone is not bounded by these limits, but by the frame.
    ///
    /// # Errors
    /// [`Overloaded::NodeBytes`] when there is no room for this many, and [`Overloaded::TooSlow`] when others got the
    /// place; nothing is held then, so that what has come must be let go.
    pub fn hold(&mut self, bytes: usize, now: Moment) -> Result<(), Overloaded> {
        let bytes = if bytes > self.free { bytes } else { 0 };
        if bytes == 0 && !self.holds {
            return Ok(());
        }
        let InputRoom { connection, id, seat } = &self.place;
        let admission = &connection.admission;
        let mut unfinished = lock(&admission.unfinished);
        // A request that has come whole needs no place any more.
        let lost = seat.take_lost();
        self.holds = false;
        let before = unfinished.held(*id);
        if bytes == 0 || lost {
            admission.gauge.give_back_bytes(unfinished.release(*id));
            return if lost && bytes > 0 { Err(self.place.too_slow()) } else { Ok(()) };
        }
        admission.gauge.give_back_bytes(before);
        match admission.take_coming(&mut unfinished, &self.place, bytes, now) {
            Ok(()) => {
                unfinished.hold(*id, bytes, now, seat);
                self.holds = true;
                Ok(())
            }
            Err(full) => {
                unfinished.release(*id);
                Err(full)
            }
        }
    }

    /// The place in which its request is counted.
    pub fn place(&self) -> InputRoom {
        self.place.clone()
    }
}

impl InputRoom {
    /// So much has come of the request, and nothing more is there now: ready when others got its place. What has come
    /// must be let go then, and [`InputRoom::too_slow`] says why.
    pub fn poll(&self, come: usize, now: Moment, context: &mut Context<'_>) -> Poll<()> {
        if come > COMING_BYTES_FREE / 2 {
            lock(&self.connection.admission.unfinished).came(self.id, come, now);
        }
        self.seat.poll(context)
    }

    /// Why the place was lost.
    pub fn too_slow(&self) -> Overloaded {
        Overloaded::TooSlow { time: self.connection.admission.limits.slow_time_min }
    }
}

impl Admission {
    /// Counts `bytes` of a request that is coming in, whose own are not counted now; slow ones give up their places.
    fn take_coming(
        &self,
        unfinished: &mut Unfinished,
        place: &InputRoom,
        bytes: usize,
        now: Moment,
    ) -> Result<(), Overloaded> {
        let max = self.limits.node_bytes_max / COMING_PART;
        let node = self.limits_of(place.connection.peer.unwrap_or(Peer::Client));
        loop {
            let others = unfinished.bytes() - unfinished.held(place.id);
            let whole = self.gauge.load().bytes.saturating_sub(others);
            let full = if others > 0 && others.saturating_add(bytes) > max {
                Overloaded::NodeBytes { max }
            } else if self.gauge.take_bytes(bytes, node.bytes) {
                return Ok(());
            } else {
                Overloaded::NodeBytes { max: node.bytes }
            };
            // No place that is given up helps where requests that have come whole fill the node.
            let in_vain = whole > 0 && whole.saturating_add(bytes) > node.bytes;
            let freed = if in_vain {
                None
            } else {
                unfinished.take_slowest_but(place.id, now, self.limits.slow_time_min)
            };
            let Some(freed) = freed else { return Err(full) };
            self.gauge.give_back_bytes(freed);
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        // Holding nothing is never refused.
        let _ = self.hold(0, Moment::default());
    }
}
