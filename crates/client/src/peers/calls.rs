//! Calls that wait for their answer, found by request id.
//!
//! A request id is a number that grows with each call of the link, and a slot number. A late or duplicated answer
//! never reaches a later caller of the same slot, and the node can tell a duplicated request by the growing number.

use tokio::sync::oneshot::Sender;
use wire::messages::Response;

use super::CallError;
use wire::messages::SLOT_BITS;

const _: () = assert!(SLOT_BITS == u16::BITS, "the number of a slot is the low part of an id");

/// Who waits for an answer.
pub(super) type Waiter = Sender<Result<Response, CallError>>;

/// The waiting calls of one link.
#[derive(Default)]
pub(super) struct Calls {
    sent: u64,
    slots: Vec<Slot>,
    free: Vec<u16>,
    waiting: usize,
}

#[derive(Default)]
struct Slot {
    id: u64,
    waiter: Option<Waiter>,
}

impl Calls {
    /// Keeps a caller and returns the id for its request.
    pub(super) fn insert(&mut self, waiter: Waiter) -> u64 {
        let position = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u16::try_from(self.slots.len() - 1).expect("waiting calls are limited below 2^16")
        });
        self.sent += 1;
        let id = self.sent << SLOT_BITS | u64::from(position);
        let slot = &mut self.slots[usize::from(position)];
        assert!(slot.waiter.is_none(), "slot {position} is given to call {id}, and {} waits in it", slot.id);
        *slot = Slot { id, waiter: Some(waiter) };
        self.waiting += 1;
        self.check();
        id
    }

    /// The caller that waits for this answer, if it still does.
    pub(super) fn remove(&mut self, id: u64) -> Option<Waiter> {
        let position = (id & u64::from(u16::MAX)) as u16;
        let slot = self.slots.get_mut(usize::from(position))?;
        if slot.id != id {
            return None;
        }
        let waiter = slot.waiter.take()?;
        self.free.push(position);
        self.waiting -= 1;
        self.check();
        Some(waiter)
    }

    /// Each slot is free, or somebody waits in it.
    fn check(&self) {
        let (slots, free, waiting) = (self.slots.len(), self.free.len(), self.waiting);
        assert_eq!(waiting + free, slots, "{waiting} calls wait, and {free} of {slots} slots are free");
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Everybody who waits.
    pub(super) fn drain(&mut self) -> Vec<Waiter> {
        let waiters: Vec<Waiter> = self.slots.iter_mut().filter_map(|slot| slot.waiter.take()).collect();
        assert_eq!(waiters.len(), self.waiting, "everybody who waits is in a slot");
        *self = Calls::default();
        waiters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_never_reaches_a_later_call_of_the_same_slot() {
        let mut calls = Calls::default();
        let first = calls.insert(tokio::sync::oneshot::channel().0);
        assert!(calls.remove(first).is_some());
        let second = calls.insert(tokio::sync::oneshot::channel().0);
        assert_eq!(first & 0xffff, second & 0xffff, "the slot is used again");
        assert!(calls.remove(first).is_none());
        assert_eq!(calls.waiting(), 1);
        assert!(calls.remove(second).is_some());
        assert!(calls.remove(second).is_none());
        assert_eq!(calls.waiting(), 0);
    }
}
