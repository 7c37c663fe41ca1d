//! Several sessions that want the same thing at the same time.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures_util::future::join_all;

use super::{Service, Session, close, create, read, read_until, set};
use crate::{CoordinationError, CreateMode, DocumentPath, DocumentVersion, Expected};

/// Sessions in each race.
const RACERS: usize = 5;

/// Turns of each session.
const TURNS: usize = 8;

pub(super) async fn compare_and_set_loses_no_increment(service: Service<'_>) {
    let path = service.path("counter");
    let sessions = service.sessions(RACERS).await;
    create(&sessions[0], &path, CreateMode::Persistent).await;
    set(&sessions[0], &path, "0").await;
    join_all(sessions.iter().map(|session| increment(session, &path))).await;
    let total = (RACERS * TURNS).to_string();
    read_until(&sessions[0], &path, |document| document.is_some_and(|found| found.data == total)).await;
    let version = read(&sessions[0], &path).await.expect("it was created").stat.version;
    let sets = u32::try_from(RACERS * TURNS + 1).expect("few turns");
    assert_eq!(version, DocumentVersion(sets), "every successful set counts, no refused one does");
    close(sessions).await;
}

async fn increment(session: &Session, path: &DocumentPath) {
    let mut done = 0;
    while done < TURNS {
        let Some(document) = read(session, path).await else { continue };
        if document.data.is_empty() {
            continue;
        }
        let text = std::str::from_utf8(&document.data).expect("a number was written");
        let next = text.parse::<u64>().expect("a number was written") + 1;
        let expected = Expected::Version(document.stat.version);
        match session.set(path, Bytes::from(next.to_string()), expected).await {
            Ok(_) => done += 1,
            Err(CoordinationError::BadVersion { .. }) => {}
            Err(error) => panic!("setting under a version answers done or bad version, not {error}"),
        }
    }
}

pub(super) async fn one_of_many_creators_wins(service: Service<'_>) {
    let path = service.path("prize");
    let sessions = service.sessions(RACERS).await;
    for _ in 0..TURNS {
        let outcomes = join_all(sessions.iter().enumerate().map(|(racer, session)| {
            session.create(&path, Bytes::from(racer.to_string()), CreateMode::Persistent)
        }))
        .await;
        let exists = Err(CoordinationError::NodeExists { path: path.clone() });
        let winner = outcomes.iter().position(Result::is_ok).expect("somebody creates it");
        assert!(
            (0..RACERS).all(|racer| (racer == winner) != (outcomes[racer] == exists)),
            "one creates, all others learn that it exists: {outcomes:?}"
        );
        let found = read(&sessions[winner], &path).await.expect("it was created");
        assert_eq!(found.data, winner.to_string(), "the document is the winner's");
        sessions[winner].delete(&path, Expected::Any).await.expect("it is there");
    }
    close(sessions).await;
}

pub(super) async fn one_of_many_deleters_wins(service: Service<'_>) {
    let path = service.path("prize");
    let sessions = service.sessions(RACERS).await;
    for _ in 0..TURNS {
        create(&sessions[0], &path, CreateMode::Persistent).await;
        let outcomes = join_all(sessions.iter().map(|session| session.delete(&path, Expected::Any))).await;
        let absent = Err(CoordinationError::NoNode { path: path.clone() });
        let deleted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let refused = outcomes.iter().filter(|outcome| **outcome == absent).count();
        assert_eq!((deleted, refused), (1, RACERS - 1), "{outcomes:?}");
    }
    close(sessions).await;
}

/// Its place is among all writes, so its session is no older than that afterwards: who must know writes first.
pub(super) async fn a_refused_write_shows_what_refused_it(service: Service<'_>) {
    let path = service.path("prize");
    let sessions = service.sessions(2).await;
    for turn in 0..TURNS {
        let (first, second) = (&sessions[turn % 2], &sessions[(turn + 1) % 2]);
        create(first, &path, CreateMode::Persistent).await;
        let exists = Err(CoordinationError::NodeExists { path: path.clone() });
        assert_eq!(second.create(&path, Bytes::new(), CreateMode::Persistent).await, exists);
        assert!(second.get(&path).await.is_ok(), "the session that was refused sees why");
        first.delete(&path, Expected::Any).await.expect("it is there");
        let absent = Err(CoordinationError::NoNode { path: path.clone() });
        assert_eq!(second.set(&path, Bytes::new(), Expected::Any).await.map(|_| ()), absent);
        assert_eq!(second.get(&path).await.map(|_| ()), absent, "the session that was refused sees why");
    }
    close(sessions).await;
}

pub(super) async fn sequences_are_unique_and_grow(service: Service<'_>) {
    let prefix = service.path("turn-");
    let sessions = service.sessions(RACERS).await;
    let all = join_all(sessions.iter().map(|session| draw(session, &prefix))).await;
    let mut seen = BTreeSet::new();
    for drawn in &all {
        assert!(
            drawn.is_sorted_by(|earlier, later| earlier < later),
            "one session's numbers grow: {drawn:?}"
        );
        for path in drawn {
            let digits = path.as_str().strip_prefix(prefix.as_str()).expect("the name keeps its beginning");
            assert!(digits.len() == 10 && digits.bytes().all(|digit| digit.is_ascii_digit()), "{path}");
            assert!(seen.insert(path.name().to_owned()), "{path} was given twice");
        }
    }
    read_until(&sessions[0], all[RACERS - 1].last().expect("some were drawn"), |found| found.is_some()).await;
    let listed: BTreeSet<String> = loop {
        let listed = sessions[0].children(&service.base).await.expect("the parent is there");
        if listed.len() >= seen.len() {
            break listed.into_iter().collect();
        }
    };
    assert_eq!(listed, seen);
    close(sessions).await;
}

async fn draw(session: &Session, prefix: &DocumentPath) -> Vec<DocumentPath> {
    let mut drawn = Vec::with_capacity(TURNS);
    for turn in 0..TURNS {
        let ephemeral = turn % 2 == 0;
        let mode = if ephemeral { CreateMode::EphemeralSequential } else { CreateMode::PersistentSequential };
        drawn.push(create(session, prefix, mode).await);
    }
    drawn
}

pub(super) async fn sequence_numbers_are_not_used_again(service: Service<'_>) {
    let session = service.session().await;
    let prefix = service.path("turn-");
    let first = create(&session, &prefix, CreateMode::PersistentSequential).await;
    session.delete(&first, Expected::Any).await.expect("it is there");
    let second = create(&session, &prefix, CreateMode::EphemeralSequential).await;
    assert!(second > first, "{second} comes after {first}, which is gone");
    // Another beginning of the name draws from the same numbers.
    let other = create(&session, &service.path("another-"), CreateMode::PersistentSequential).await;
    let number = |path: &DocumentPath| path.name().rsplit('-').next().map(str::to_owned);
    assert!(number(&other) > number(&second), "{other} comes after {second}");
    close([session]).await;
}
