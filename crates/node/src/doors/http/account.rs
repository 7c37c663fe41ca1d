//! The account of one connection, or of one stream of HTTP/2, while its requests come in and its answers go out.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use model::Moment;
use parking_lot::Mutex;
use protocol::admission::{Coming, ConnectionAccount, InputRoom, Overloaded};
use runtime::http::Account;

use super::HttpShared;
use crate::doors::closing::DoorStage;

/// What has come of a request counts in the node's admission account, as at its other doors.
pub(super) struct InputAccount {
    coming: Coming,
    room: InputRoom,
    answer: Arc<AnswerRoom>,
    shared: Arc<HttpShared>,
    waker: Arc<AtomicWaker>,
}

impl InputAccount {
    /// Nothing has come yet of one of up to `streams` requests at a time; `waker` wakes their connection when the door
    /// closes.
    pub(super) fn new(
        (connection, streams): (&Arc<ConnectionAccount>, usize),
        answer: Arc<AnswerRoom>,
        shared: Arc<HttpShared>,
        waker: Arc<AtomicWaker>,
    ) -> InputAccount {
        let coming = connection.coming_among(streams);
        InputAccount { room: coming.place(), coming, answer, shared, waker }
    }
}

/// The room of what a connection is being answered until its reader has it.
///
/// It counts as a request does that is coming in: readers that are slow lose it where others find none, and all of them
/// together leave room for requests that have come whole.
pub(super) struct AnswerRoom {
    going: Mutex<Going>,
    place: InputRoom,
}

/// What is on its way.
struct Going {
    coming: Coming,
    bytes: usize,
}

/// The room of an answer, or of a piece of one; it is given back when this is dropped.
pub(super) struct HeldRoom {
    room: Arc<AnswerRoom>,
    bytes: usize,
}

impl AnswerRoom {
    /// Nothing is answered yet of one of up to `streams` requests at a time.
    pub(super) fn new((connection, streams): (&Arc<ConnectionAccount>, usize)) -> Arc<AnswerRoom> {
        let coming = connection.coming_among(streams);
        let place = coming.place();
        Arc::new(AnswerRoom { place, going: Mutex::new(Going { coming, bytes: 0 }) })
    }

    /// Room for this many bytes more.
    ///
    /// # Errors
    /// When there is none. Then there is none for those on their way either, so they must be the last.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize, now: Moment) -> Result<HeldRoom, Overloaded> {
        let mut going = self.going.lock();
        let all = going.bytes + bytes;
        going.coming.hold(all, now)?;
        going.bytes = all;
        drop(going);
        Ok(HeldRoom { room: Arc::clone(self), bytes })
    }
}

impl Drop for HeldRoom {
    fn drop(&mut self) {
        let mut going = self.room.going.lock();
        going.bytes -= self.bytes;
        let left = going.bytes;
        // What is left was held before. If its room was lost meanwhile, the gate finds that out.
        let _ = going.coming.hold(left, Moment::default());
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
        poll_leaving(&self.shared, &self.waker, context)
    }
}

/// Ready when a connection that is between two requests shall end.
pub(super) fn poll_leaving(shared: &HttpShared, waker: &AtomicWaker, context: &mut Context<'_>) -> Poll<()> {
    waker.register(context.waker());
    match shared.closing.stage() {
        DoorStage::BetweenCommands => Poll::Ready(()),
        DoorStage::Open | DoorStage::AfterAnswers => Poll::Pending,
    }
}
