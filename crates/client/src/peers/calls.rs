//! Calls that wait for their answer, found by request id.
//!
//! A request id is a slot number and the slot's use count, so that a late or duplicated answer never reaches a later
//! caller of the same slot.

use tokio::sync::oneshot::Sender;
use wire::messages::Response;

use super::CallError;

/// Who waits for an answer.
pub(super) type Waiter = Sender<Result<Response, CallError>>;

/// The waiting calls of one link.
#[derive(Default)]
pub(super) struct Calls {
    slots: Vec<Slot>,
    free: Vec<u32>,
    waiting: usize,
}

#[derive(Default)]
struct Slot {
    uses: u32,
    waiter: Option<Waiter>,
}

impl Calls {
    /// Keeps a caller and returns the id for its request.
    pub(super) fn insert(&mut self, waiter: Waiter) -> u64 {
        let position = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("waiting calls are limited far below 2^32")
        });
        let slot = &mut self.slots[position as usize];
        slot.uses = slot.uses.wrapping_add(1);
        slot.waiter = Some(waiter);
        self.waiting += 1;
        u64::from(slot.uses) << 32 | u64::from(position)
    }

    /// The caller that waits for this answer, if it still does.
    pub(super) fn remove(&mut self, id: u64) -> Option<Waiter> {
        let position = (id & u64::from(u32::MAX)) as u32;
        let slot = self.slots.get_mut(position as usize)?;
        if u64::from(slot.uses) != id >> 32 {
            return None;
        }
        let waiter = slot.waiter.take()?;
        self.free.push(position);
        self.waiting -= 1;
        Some(waiter)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Everybody who waits.
    pub(super) fn drain(&mut self) -> Vec<Waiter> {
        let waiters = self.slots.iter_mut().filter_map(|slot| slot.waiter.take()).collect();
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
        assert_eq!(first & 0xffff_ffff, second & 0xffff_ffff, "the slot is used again");
        assert!(calls.remove(first).is_none());
        assert_eq!(calls.waiting(), 1);
        assert!(calls.remove(second).is_some());
        assert!(calls.remove(second).is_none());
        assert_eq!(calls.waiting(), 0);
    }
}
