//! Room for requests that have begun to come in, and who must give it up.
//!
//! There is room for a part of the node's bytes. When a request needs some and none is left, those lose theirs that
//! have been slow for longest: of their request less than [`REST_BYTES_MIN`] came within `slow_time_min`. While there is
//! room for all, nobody is too slow here; the limit on the rest of a command still holds.
//!
//! ```text
//!   Coming::hold(bytes, now) ─▶ there is room: counted
//!                            ─▶ there is none ─▶ the slowest lose theirs ─▶ counted
//!                                            ─▶ nobody is slow: refused
//!   InputRoom::poll(come, now)   ─▶ pending, or ready when the place is lost
//! ```
//!
//! Must never: take a place from a request that comes fast enough, nor more places than are needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use model::Moment;

use super::{REST_BYTES_MIN, lock};

/// Tells one request that is coming in from the others.
pub(super) type Id = u64;

/// All requests that are coming in and hold room.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    held: BTreeMap<Id, RequestHolds>,
    /// Those of `held` by the time since which they have been slow; the slowest first.
    by_age: BTreeSet<(Moment, Id)>,
    /// What they hold together.
    bytes: usize,
    next: Id,
}

/// What one of them holds.
#[derive(Debug)]
struct RequestHolds {
    bytes: usize,
    /// When it was last [`REST_BYTES_MIN`] further than before, and how far.
    since: Moment,
    come: usize,
    seat: Arc<Seat>,
}

/// Where the owner of a place learns that it is lost.
#[derive(Debug, Default)]
pub(super) struct Seat(std::sync::Mutex<UnfinishedState>);

#[derive(Debug, Default)]
struct UnfinishedState {
    lost: bool,
    waker: Option<Waker>,
}

impl Seat {
    /// Whether the place was lost since this was last asked.
    pub(super) fn take_lost(&self) -> bool {
        std::mem::take(&mut lock(&self.0).lost)
    }

    /// Ready when the place is lost; wakes the caller then.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.lost {
            return Poll::Ready(());
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    fn lose(&self) {
        let waker = {
            let mut state = lock(&self.0);
            state.lost = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Unfinished {
    /// A name for one more connection.
    pub(super) fn name(&mut self) -> Id {
        self.next += 1;
        self.next
    }

    /// What all hold together.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What `id` holds.
    pub(super) fn held(&self, id: Id) -> usize {
        self.held.get(&id).map_or(0, |held| held.bytes)
    }

    /// Counts `bytes` for `id`, in place of what it held before.
    pub(super) fn hold(&mut self, id: Id, bytes: usize, now: Moment, seat: &Arc<Seat>) {
        let held = self.held.entry(id).or_insert_with(|| {
            self.by_age.insert((now, id));
            RequestHolds { bytes: 0, since: now, come: 0, seat: Arc::clone(seat) }
        });
        self.bytes = self.bytes - held.bytes + bytes;
        held.bytes = bytes;
        self.check();
    }

    /// So much has come of `id`'s request.
    pub(super) fn came(&mut self, id: Id, come: usize, now: Moment) {
        let Some(held) = self.held.get_mut(&id) else { return };
        if come >= held.come + REST_BYTES_MIN {
            self.by_age.remove(&(held.since, id));
            (held.since, held.come) = (now, come);
            self.by_age.insert((now, id));
        }
    }

    /// Forgets `id`, and hands back what it held.
    pub(super) fn release(&mut self, id: Id) -> usize {
        let Some(held) = self.held.remove(&id) else { return 0 };
        self.by_age.remove(&(held.since, id));
        self.bytes -= held.bytes;
        self.check();
        held.bytes
    }

    /// Takes the place of the slowest but `id`, if it has been slow for `time_min`, and hands back what it held.
    pub(super) fn take_slowest_but(&mut self, id: Id, now: Moment, time_min: Duration) -> Option<usize> {
        let slow = |since: &Moment| now.since(*since) >= time_min;
        let mut slowest = self.by_age.iter().take_while(|(since, _)| slow(since)).map(|(_, id)| *id);
        let slowest = slowest.find(|slowest| *slowest != id)?;
        self.held[&slowest].seat.lose();
        Some(self.release(slowest))
    }

    fn check(&self) {
        assert_eq!(self.held.len(), self.by_age.len(), "each has one age");
        assert!(!self.held.is_empty() || self.bytes == 0, "nobody holds nothing");
    }
}
