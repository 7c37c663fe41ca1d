//! The account of one connection while its requests come in.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use model::Moment;
use protocol::admission::{Coming, Connection, InputRoom};
use runtime::http::Account;

use super::Shared;
use crate::doors::closing::Stage;

/// What has come of a request counts in the node's admission account, as at its other doors.
pub(super) struct InputAccount {
    coming: Coming,
    room: InputRoom,
    shared: Arc<Shared>,
    waker: Arc<AtomicWaker>,
}

impl InputAccount {
    /// Nothing has come on this connection yet; `waker` wakes it when the door closes.
    pub(super) fn new(
        connection: &Arc<Connection>,
        shared: Arc<Shared>,
        waker: Arc<AtomicWaker>,
    ) -> InputAccount {
        let coming = connection.coming();
        InputAccount { room: coming.place(), coming, shared, waker }
    }
}

impl Account for InputAccount {
    fn hold(&mut self, bytes: usize, now: Moment) -> bool {
        self.coming.hold(bytes, now).is_ok()
    }

    fn poll_lost(&mut self, come: usize, now: Moment, context: &mut Context<'_>) -> Poll<()> {
        self.room.poll(come, now, context)
    }

    fn poll_leaving(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        match self.shared.closing.stage() {
            Stage::BetweenCommands => Poll::Ready(()),
            Stage::Open | Stage::AfterAnswers => Poll::Pending,
        }
    }
}
