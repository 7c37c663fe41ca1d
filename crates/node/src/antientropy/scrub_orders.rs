//! Orders to read everything now, for a scrub that has its own files to read.
//!
//! Must never: be taken by more than one scrub; whoever takes an order carries it out.

use std::sync::Arc;

use runtime::locks::Mutex;
use tokio::sync::Notify;

/// What an operator wants to be read now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScrubOrder {
    /// Of this store only; by default of all.
    pub(crate) store: Option<String>,
}

/// The last order that nobody has taken yet.
#[derive(Default)]
pub(crate) struct ScrubOrders {
    order: Mutex<Option<ScrubOrder>>,
    came: Arc<Notify>,
}

impl ScrubOrders {
    /// Gives an order; it takes the place of one that nobody has taken.
    pub(super) fn give(&self, order: ScrubOrder) {
        *self.order.lock() = Some(order);
        self.came.notify_one();
    }

    /// Takes the order, if there is one.
    pub(crate) fn take(&self) -> Option<ScrubOrder> {
        self.order.lock().take()
    }

    /// Notified of each order.
    pub(crate) fn came(&self) -> &Arc<Notify> {
        &self.came
    }
}
