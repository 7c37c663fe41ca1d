//! The thread of one session: takes requests in turn, and looks for what others did while somebody watches.
//!
//! All requests that wait are done in one turn: one lock, one sync. Nobody is answered before the turn is durable.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;

use super::record::TURN_REQUESTS_MAX;
use super::shared::{DirectoryView, Pending};
use crate::CoordinationError;
use crate::tree::TreeChange;

/// How often somebody who watches looks for changes: one system call when there are none.
const POLL_WATCHING: Duration = Duration::from_millis(20);

/// How often somebody who watches nothing looks whether its session still lives.
const POLL_IDLE: Duration = Duration::from_secs(1);

/// What a request does to the shared documents, as far as turns are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnKind {
    /// Reads.
    Read,
    /// Reads and registers a watch, which must not see earlier requests of its turn as changes.
    Watch,
    /// Writes, or ends the session.
    Write,
}

/// Answers the caller, once it is known whether the turn is durable.
pub(super) type Answer = Box<dyn FnOnce(Result<(), CoordinationError>) + Send>;

/// The documents on which a request works, or why there are none.
pub(super) type Begun<'a> = Result<(&'a mut DirectoryView, &'a mut Pending), CoordinationError>;

/// One request.
pub(super) struct Request {
    pub(super) kind: TurnKind,
    /// Does it and returns how to answer.
    pub(super) run: Box<dyn FnOnce(Begun<'_>) -> Answer + Send>,
}

/// Runs until the service handle is dropped; then ends the session.
pub(super) fn run(mut shared: DirectoryView, requests: &Receiver<Request>, ended: &watch::Sender<bool>) {
    let mut poll_failing = false;
    loop {
        let pause = if shared.watches.is_idle() { POLL_IDLE } else { POLL_WATCHING };
        match requests.recv_timeout(pause) {
            Ok(first) => serve(&mut shared, first, requests),
            Err(RecvTimeoutError::Timeout) if shared.has_ended() => {}
            Err(RecvTimeoutError::Timeout) => match shared.poll() {
                Ok(()) => poll_failing = false,
                Err(error) => {
                    if !std::mem::replace(&mut poll_failing, true) {
                        warn!(%error, "looking for changes of the coordination documents failed");
                    }
                }
            },
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if shared.has_ended() {
            ended.send_replace(true);
        }
    }
    if let Err(error) = shared.take_turn(true, end_session) {
        // The next process that looks sees that nobody holds the session's file.
        warn!(%error, "ending the coordination session failed");
    }
}

/// Ends the session of the turn; harmless when it has ended.
pub(super) fn end_session(shared: &mut DirectoryView, pending: &mut Pending) {
    let session = shared.session;
    if shared.tree.has_session(session) {
        shared.apply(TreeChange::SessionEnded { session }, pending);
    }
}

/// Serves what waits, in as few turns as watches allow.
fn serve(shared: &mut DirectoryView, first: Request, requests: &Receiver<Request>) {
    let mut turn = vec![first];
    while turn.len() < TURN_REQUESTS_MAX {
        let Ok(next) = requests.try_recv() else { break };
        if next.kind == TurnKind::Watch && turn.iter().any(|request| request.kind == TurnKind::Write) {
            take_turn(shared, std::mem::take(&mut turn));
        }
        turn.push(next);
    }
    take_turn(shared, turn);
}

fn take_turn(shared: &mut DirectoryView, turn: Vec<Request>) {
    let writes = turn.iter().any(|request| request.kind == TurnKind::Write);
    let mut waiting = Some(turn);
    let mut answers = Vec::new();
    let outcome = shared.take_turn(writes, |shared, pending| {
        let turn = waiting.take().expect("a turn is taken once");
        answers.extend(turn.into_iter().map(|request| (request.run)(Ok((&mut *shared, &mut *pending)))));
    });
    if let (Some(turn), Err(error)) = (waiting, &outcome) {
        // The turn did not even begin.
        answers.extend(turn.into_iter().map(|request| (request.run)(Err(error.clone()))));
    }
    for answer in answers {
        answer(outcome.clone());
    }
}
