//! The suite that every implementation of [`CoordinationService`] must pass, written against the trait alone.
//!
//! It runs on a service with other documents in it: everything happens below a path that the caller chose.
//! Where the trait allows a session to be behind, the suite reads until it has caught up.
//! It waits for events without a limit: a service that loses one makes it hang, so run it with a timeout.

mod documents;
mod races;
mod sessions;
mod watches;

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::{CoordinationError, CoordinationService, CreateMode, Document, DocumentPath, Expected};

/// How often a session that may be behind is read before it counts as stuck.
const READS_MAX: usize = 100_000;

/// A session as the suite uses it.
type Session = Arc<dyn CoordinationService>;

/// One check, which panics when a promise is broken.
type Check = for<'a> fn(Service<'a>) -> BoxFuture<'a, ()>;

/// Opens sessions on the service that is examined.
struct Service<'a> {
    open: &'a (dyn Fn() -> BoxFuture<'a, Session> + Sync),
    /// A document of the running check's own.
    base: DocumentPath,
}

/// Runs the whole suite on one service, whose sessions `open` opens, below `root`, which must exist and have no
/// children. Leaves its documents there.
///
/// # Panics
/// When the service breaks a promise; the message says which.
pub async fn run<F, O>(root: &DocumentPath, open: F)
where
    F: Fn() -> O + Sync,
    O: Future<Output = Arc<dyn CoordinationService>> + Send,
{
    let open = || -> BoxFuture<'_, Session> { Box::pin(open()) };
    let checks: [(&str, Check); 20] = [
        ("reads", |service| Box::pin(documents::are_read_as_they_were_written(service))),
        ("refusals", |service| Box::pin(documents::wrong_orders_are_refused_by_name(service))),
        ("sizes", |service| Box::pin(documents::sizes_up_to_the_limit_are_kept(service))),
        ("thousand", |service| Box::pin(documents::a_thousand_children_are_listed_in_order(service))),
        ("order", |service| Box::pin(documents::one_sessions_writes_take_effect_in_order(service))),
        ("recreated", |service| Box::pin(documents::a_recreated_document_is_another(service))),
        ("set-race", |service| Box::pin(races::compare_and_set_loses_no_increment(service))),
        ("create-race", |service| Box::pin(races::one_of_many_creators_wins(service))),
        ("delete-race", |service| Box::pin(races::one_of_many_deleters_wins(service))),
        ("refused", |service| Box::pin(races::a_refused_write_shows_what_refused_it(service))),
        ("sequences", |service| Box::pin(races::sequences_are_unique_and_grow(service))),
        ("numbers", |service| Box::pin(races::sequence_numbers_are_not_used_again(service))),
        ("ephemerals", |service| Box::pin(sessions::ephemerals_end_with_their_session(service))),
        ("others", |service| Box::pin(sessions::ephemerals_of_other_sessions_stay(service))),
        ("reopened", |service| Box::pin(sessions::a_session_that_ended_opens_another_one(service))),
        ("closed", |service| Box::pin(sessions::a_closed_session_does_nothing(service))),
        ("document-watch", |service| Box::pin(watches::documents_are_watched(service))),
        ("list-watch", |service| Box::pin(watches::lists_are_watched(service))),
        ("quiet-watch", |service| Box::pin(watches::watches_stay_quiet_about_other_things(service))),
        ("follower", |service| Box::pin(watches::a_follower_sees_the_last_state(service))),
    ];
    let session = open().await;
    for (name, check) in checks {
        let base = root.child(name).expect("the names of checks are short");
        create(&session, &base, CreateMode::Persistent).await;
        check(Service { open: &open, base }).await;
    }
    session.close().await.expect("an open session can be closed");
}

impl Service<'_> {
    /// A new session that sees the check's own document.
    async fn session(&self) -> Session {
        let session = (self.open)().await;
        read_until(&session, &self.base, |document| document.is_some()).await;
        session
    }

    /// Some sessions.
    async fn sessions(&self, count: usize) -> Vec<Session> {
        let mut sessions = Vec::with_capacity(count);
        for _ in 0..count {
            sessions.push(self.session().await);
        }
        sessions
    }

    /// A path below the check's own document.
    fn path(&self, names: &str) -> DocumentPath {
        let below = |path: DocumentPath, name| path.child(name).expect("the names in checks are short");
        names.split('/').fold(self.base.clone(), below)
    }
}

/// Ends sessions that a check does not need any more.
async fn close(sessions: impl IntoIterator<Item = Session>) {
    for session in sessions {
        session.close().await.expect("an open session can be closed");
    }
}

/// Creates an empty document.
async fn create(session: &Session, path: &DocumentPath, mode: CreateMode) -> DocumentPath {
    let created = session.create(path, Bytes::new(), mode).await;
    created.unwrap_or_else(|error| panic!("{path} should be created: {error}"))
}

/// Sets a document whatever its version.
async fn set(session: &Session, path: &DocumentPath, data: impl Into<Bytes>) {
    let set = session.set(path, data.into(), Expected::Any).await;
    set.unwrap_or_else(|error| panic!("{path} should be set: {error}"));
}

/// Reads a document, if it is there.
async fn read(session: &Session, path: &DocumentPath) -> Option<Document> {
    match session.get(path).await {
        Ok(document) => Some(document),
        Err(CoordinationError::NoNode { .. }) => None,
        Err(error) => panic!("{path} should be readable: {error}"),
    }
}

/// Reads a document until it is as wanted: another session may see it later than the one that wrote it.
async fn read_until(session: &Session, path: &DocumentPath, wanted: impl Fn(Option<&Document>) -> bool) {
    for _ in 0..READS_MAX {
        if wanted(read(session, path).await.as_ref()) {
            return;
        }
    }
    panic!("a session never sees what another wrote to {path}");
}
