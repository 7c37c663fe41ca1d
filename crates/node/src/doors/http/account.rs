//! The account of one connection, while its requests come in and its answers go out.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use model::Moment;
use parking_lot::Mutex;
use protocol::admission::{Coming, Connection, InputRoom, Overloaded};
use runtime::http::Account;

use super::Shared;
use crate::doors::closing::Stage;

/// What has come of a request counts in the node's admission account, as at its other doors.
pub(super) struct InputAccount {
    coming: Coming,
    room: InputRoom,
    answer: Arc<AnswerRoom>,
    shared: Arc<Shared>,
    waker: Arc<AtomicWaker>,
}

impl InputAccount {
    /// Nothing has come on this connection yet; `waker` wakes it when the door closes.
    pub(super) fn new(
        connection: &Arc<Connection>,
        answer: Arc<AnswerRoom>,
        shared: Arc<Shared>,
        waker: Arc<AtomicWaker>,
    ) -> InputAccount {
        let coming = connection.coming();
        InputAccount { room: coming.place(), coming, answer, shared, waker }
    }
}

/// The room of a connection's answer until its reader has it.
///
/// It counts as a request does that is coming in: readers that are slow lose it where others find none, and all of them
/// together leave room for requests that have come whole.
pub(super) struct AnswerRoom {
    going: Mutex<Coming>,
    place: InputRoom,
}

/// The room of an answer; it is given back when this is dropped.
pub(super) struct HeldRoom(Arc<AnswerRoom>);

impl AnswerRoom {
    /// Nothing is answered yet.
    pub(super) fn new(connection: &Arc<Connection>) -> Arc<AnswerRoom> {
        let going = connection.coming();
        Arc::new(AnswerRoom { place: going.place(), going: Mutex::new(going) })
    }

    /// Room for an answer of so many bytes.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize, now: Moment) -> Result<HeldRoom, Overloaded> {
        self.going.lock().hold(bytes, now)?;
        Ok(HeldRoom(Arc::clone(self)))
    }
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        // Holding nothing is never refused.
        let _ = self.0.going.lock().hold(0, Moment::default());
    }
}

impl Account for InputAccount {
    fn hold(&mut self, bytes: usize, now: Moment) -> bool {
        self.coming.hold(bytes, now).is_ok()
    }

    fn poll_lost(&mut self, come: usize, now: Moment, context: &mut Context<'_>) -> Poll<()> {
        self.room.poll(come, now, context)
    }

    fn poll_unread(&mut self, sent: usize, now: Moment, context: &mut Context<'_>) -> Poll<()> {
        self.answer.place.poll(sent, now, context)
    }

    fn poll_leaving(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        match self.shared.closing.stage() {
            Stage::BetweenCommands => Poll::Ready(()),
            Stage::Open | Stage::AfterAnswers => Poll::Pending,
        }
    }
}
