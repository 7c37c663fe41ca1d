//! A node keeps what documents list of artifacts: whatever is slow, damaged or away beside it.

use std::sync::Arc;
use std::time::Duration;

use client::coordinator::Replicas;
use client::peers::Peers;
use model::{Cluster, Generation, ReadOnlyStore, Token};
use protocol::report::ArtifactState;
use runtime::Disk;
use runtime::disk::simulated::{DiskOperation, Fault};
use storage::artifacts::chunk_path;
use wire::error::ErrorCode;
use wire::messages::{ArtifactScan, Peer, Request, RequestOptions, Response, ScanAfter, Scanned, StoreRef};

use super::keeper::{Built, KEYS, Keeper, LONG, SOON, bytes_of, empty, parts};
use super::{Adopt, AtHand, Position, StretchLimit, WorkerTransport};

/// How long a walk waits for a document that its node knows of, as `front` says.
const ADOPT_PATIENCE: Duration = Duration::from_secs(1);

/// All stores once waited for the first one's fetch: swaps of the others, and removal, for as long as it took.
#[test]
fn a_long_fetch_does_not_keep_other_artifacts_waiting() {
    let (slow, one, two) = (Built::new("alpha", 1), Built::new("words", 1), Built::new("words", 2));
    let words = one.served(&empty("words"));
    let mut keeper = Keeper::whole(vec![words.clone()], &[&one, &two]);
    // Its source is away, and the other nodes are silent.
    let alpha = slow.staged(&empty("alpha"));
    keeper.adopt(vec![alpha.clone(), words.clone()]);
    keeper.pass(Duration::from_secs(1));
    keeper.adopt(vec![alpha.clone(), two.staged(&words)]);
    keeper.pass(SOON);
    assert!(keeper.holds(&one) && keeper.holds(&two), "{:#?}", keeper.told());
    assert!(!keeper.holds(&slow));
    let path = keeper.path(&two, 0);
    assert!(keeper.home.disk.contents(&path).is_some());
    keeper.flip(&one, 1, parts(&one, 1)[0].clone());
    assert_eq!(keeper.get(&one, &one.key(1)), Err(ErrorCode::Corrupt));
    keeper.adopt(vec![alpha, words]);
    keeper.pass(SOON);
    assert!(keeper.answers(&one), "what was damaged was fetched");
    assert_eq!(keeper.get(&two, &two.key(0)), Err(ErrorCode::ArtifactNotHere));
    assert_eq!(keeper.home.disk.contents(&path), None, "what nobody names any more is removed");
}

/// After a rollback the artifact that is kept is the newest one.
#[test]
fn a_kept_artifact_does_not_wait_for_a_push() {
    let [one, two, three] = [1, 2, 3].map(|number| Built::new("words", number));
    let store = three.staged(&two.staged(&one.served(&empty("words"))));
    let store = store.swap(three.number()).unwrap().swap(one.number()).unwrap();
    let keeper = Keeper::new(vec![store], &[&one, &three]);
    keeper.pass(SOON);
    assert!(keeper.holds(&one) && keeper.holds(&three) && !keeper.holds(&two), "{:#?}", keeper.told());
}

/// One chunk with a damaged footer, index or list once kept all of the artifact closed for good.
#[test]
fn a_chunk_that_is_damaged_outside_its_data_is_fetched_again_after_a_restart() {
    let one = Built::new("words", 1);
    for part in 1..4 {
        let mut keeper = Keeper::whole(vec![one.served(&empty("words"))], &[&one]);
        keeper.take(&one);
        keeper.flip(&one, 2, parts(&one, 2)[part].clone());
        keeper.restart();
        assert!([0, 1, 3].iter().all(|chunk| keeper.get(&one, &one.key(*chunk)).is_ok()), "part {part}");
        assert_eq!(keeper.get(&one, &one.key(2)), Err(ErrorCode::ArtifactNotHere));
        keeper.pass(SOON);
        assert_eq!(keeper.told().fetching.chunks_corrupt_now, 1);
        assert!(!keeper.holds(&one));
        keeper.put(&one);
        keeper.until_whole();
        assert!(keeper.answers(&one) && keeper.holds(&one));
        keeper.pass(LONG);
        assert_eq!(keeper.fetched(), bytes_of(&one, &[2]), "it came once");
        assert_eq!(keeper.told().fetching.chunks_corrupt_now, 0);
    }
}

/// The damaged chunk that a get had found was once fetched each second, because another one could not be opened.
#[test]
fn damage_met_after_another_chunk_was_fetched_is_mended_too() {
    let one = Built::new("words", 1);
    let keeper = Keeper::whole(vec![one.served(&empty("words"))], &[&one]);
    let before = keeper.fetched();
    keeper.flip(&one, 0, parts(&one, 0)[0].clone());
    keeper.flip(&one, 3, parts(&one, 3)[1].clone());
    assert_eq!(keeper.get(&one, &one.key(0)), Err(ErrorCode::Corrupt));
    keeper.pass(SOON);
    assert!(keeper.answers(&one) && keeper.holds(&one), "{:#?}", keeper.told());
    keeper.pass(LONG);
    assert_eq!(keeper.fetched() - before, bytes_of(&one, &[0, 3]), "each came once");
}

/// The second artifact once went on with the damaged file until the next restart.
#[test]
fn two_artifacts_that_share_a_damaged_chunk_both_read_the_new_one() {
    let (one, two) = (Built::new("words", 1), Built::new("words", 2));
    let keeper = Keeper::whole(vec![two.served(&one.served(&empty("words")))], &[&one, &two]);
    let before = keeper.fetched();
    assert_eq!(one.manifest.chunks[2].digest, two.manifest.chunks[2].digest);
    keeper.flip(&two, 2, parts(&two, 2)[0].clone());
    assert_eq!(keeper.get(&two, &two.key(2)), Err(ErrorCode::Corrupt));
    keeper.pass(SOON);
    assert!(keeper.answers(&two) && keeper.answers(&one));
    keeper.pass(LONG);
    assert_eq!(keeper.fetched() - before, bytes_of(&two, &[2]), "it came once");
    assert!(keeper.holds(&one) && keeper.holds(&two));
}

/// What the first one's fetch brought was never told of the second.
#[test]
fn an_artifact_is_staged_again_once_another_one_brings_its_missing_chunk() {
    let (one, two) = (Built::new("words", 1), Built::new("words", 2));
    let keeper = Keeper::whole(vec![two.served(&one.served(&empty("words")))], &[&one, &two]);
    keeper.take(&one);
    keeper.take(&two);
    keeper.home.disk.remove(&keeper.path(&one, 3)).unwrap();
    let failed = |built| keeper.told_of(built).state == ArtifactState::Failed;
    keeper.home.stage.until(|| failed(&one) && failed(&two));
    assert!(keeper.answers(&one) && keeper.answers(&two), "what was mapped is read on");
    keeper.put(&two);
    keeper.home.stage.until(|| keeper.holds(&two));
    keeper.pass(SOON);
    assert!(keeper.holds(&one), "{:#?}", keeper.told());
}

/// An error of the device was once answered for good, and nothing was fetched.
#[test]
fn a_chunk_that_the_device_cannot_read_is_fetched_again() {
    let one = Built::new("words", 1);
    let keeper = Keeper::whole(vec![one.served(&empty("words"))], &[&one]);
    let (before, path) = (keeper.fetched(), keeper.path(&one, 1));
    keeper.home.disk.inject(Fault { path_part: path, ..Fault::next(DiskOperation::Read, 1) });
    assert_eq!(keeper.get(&one, &one.key(1)), Err(ErrorCode::StorageFailed));
    keeper.pass(SOON);
    assert!(keeper.answers(&one) && keeper.holds(&one));
    assert_eq!(keeper.fetched() - before, bytes_of(&one, &[1]));
    assert_eq!(keeper.told().fetching.chunks_corrupt_now, 0);
}

/// It was once told of until the node was started again.
#[test]
fn damage_of_an_artifact_that_is_no_longer_listed_is_forgotten() {
    let (one, two) = (Built::new("words", 1), Built::new("words", 2));
    let store = two.served(&one.served(&empty("words")));
    let mut keeper = Keeper::whole(vec![store.clone()], &[&one, &two]);
    keeper.take(&one);
    keeper.flip(&one, 0, parts(&one, 0)[0].clone());
    assert_eq!(keeper.get(&one, &one.key(0)), Err(ErrorCode::Corrupt));
    keeper.pass(SOON);
    assert_eq!(keeper.told().fetching.chunks_corrupt_now, 1);
    keeper.adopt(vec![store.delete(one.number()).unwrap()]);
    keeper.pass(LONG);
    assert_eq!(keeper.told().fetching.chunks_corrupt_now, 0);
    assert!(keeper.holds(&two));
}

/// A failed sync leaves what memory shows, and not what the platter has: the next attempt once built on it.
#[test]
fn a_chunk_whose_sync_failed_survives_a_power_cut() {
    let one = Built::new("words", 1);
    for seed in 0..6 {
        let keeper = Keeper::new(vec![one.served(&empty("words"))], &[]);
        let fault = Fault { path_part: "chunks/".to_owned(), ..Fault::next(DiskOperation::Sync, 3) };
        keeper.home.disk.inject(fault);
        keeper.put(&one);
        keeper.until_whole();
        let Keeper { home, node, .. } = keeper;
        home.cut(node, seed);
        for chunk in &one.manifest.chunks {
            let path = chunk_path(chunk.digest);
            let here = home.disk.contents(&format!("artifacts/words/{path}"));
            assert!(here == one.disk.contents(&path), "seed {seed}: {path}");
        }
    }
}

/// A page of a scan of an artifact.
fn scan(keeper: &Keeper, built: &Built, generation: Generation, after: Option<ScanAfter>) -> Scan {
    let scan = ArtifactScan {
        store: StoreRef::from(&built.manifest.store),
        generation,
        number: built.number(),
        manifest: built.digest(),
        first: Token(0),
        last: Token(u64::MAX),
        after,
        records_max: 60,
        bytes_max: 1 << 20,
    };
    match keeper.home.call(&keeper.node, Request::ArtifactScan(scan)) {
        Ok(Response::Scanned(page)) => Ok(page),
        Err(client::peers::CallError::Refused(failure)) => Err(failure.code),
        other => panic!("{other:?}"),
    }
}

type Scan = Result<Scanned, ErrorCode>;

/// A scan that ended there would be short, and nobody would know.
#[test]
fn a_scan_of_an_artifact_deleted_meanwhile_is_refused_and_never_cut_short() {
    let (one, two) = (Built::new("words", 1), Built::new("words", 2));
    let store = two.served(&one.served(&empty("words")));
    let mut keeper = Keeper::whole(vec![store.clone()], &[&one, &two]);
    let begun_under = keeper.document.generation;
    let first = scan(&keeper, &one, begun_under, None).unwrap();
    let (token, key) = first.next.clone().expect("there is more");
    // A page that is being read when the artifact goes is read to its end.
    let held = keeper.node.replica().view().get().read_only("words").unwrap().held().clone();
    let open = held.open(one.number(), one.digest()).unwrap();
    keeper.adopt(vec![store.delete(one.number()).unwrap()]);
    let path = keeper.path(&one, 0);
    keeper.home.stage.until(|| keeper.home.disk.contents(&path).is_none());
    assert!(held.open(one.number(), one.digest()).is_none());
    let limit = storage::artifacts::WalkLimit { records_max: 1000, bytes_max: 1 << 20 };
    let all = Token(0)..=Token(u64::MAX);
    let rest = held.page(one.number(), &open, all, Some((token, &key[..])), limit).unwrap();
    assert_eq!((first.records.len() + rest.records.len()) as u64, KEYS);
    // The next page is refused, whichever document its coordinator follows.
    let next = first.next.clone();
    assert_eq!(scan(&keeper, &one, begun_under, next.clone()), Err(ErrorCode::StaleGeneration));
    assert_eq!(scan(&keeper, &one, keeper.document.generation, next), Err(ErrorCode::ArtifactNotHere));
    assert_eq!(keeper.get(&one, &one.key(0)), Err(ErrorCode::ArtifactNotHere));
}

/// Once mappings were counted when all had been fetched.
#[test]
fn an_artifact_with_too_many_chunks_to_map_is_refused_before_its_first_byte() {
    let (one, two) = (Built::new("words", 1), Built::new("words", 2));
    let serving = one.served(&empty("words"));
    let mut keeper = Keeper::whole(vec![serving.clone()], &[&one, &two]);
    let fetched = keeper.fetched();
    keeper.home.disk.set_mappings_left(3);
    keeper.adopt(vec![two.staged(&serving)]);
    keeper.pass(SOON);
    let error = keeper.told_of(&two).error.unwrap();
    assert!(error.contains("it would read 4 chunks, and 3 more files may be mapped"), "{error}");
    assert!(keeper.fetched() == fetched && keeper.answers(&one));
    keeper.home.disk.set_mappings_left(4);
    keeper.until_whole();
    assert!(keeper.holds(&two));
}

#[test]
fn the_life_of_an_artifact_is_told_in_events() {
    let (one, two, three) = (Built::new("words", 1), Built::new("words", 2), Built::new("words", 3));
    let mut keeper = Keeper::new(vec![empty("words")], &[&one, &two, &three]);
    let mut step = |next: ReadOnlyStore| {
        keeper.adopt(vec![next.clone()]);
        keeper.until_whole();
        keeper.pass(SOON);
        next
    };
    let store = step(one.staged(&empty("words")));
    let store = step(store.swap(one.number()).unwrap());
    let store = step(two.served(&store));
    let store = step(store.swap(one.number()).unwrap());
    let store = step(three.staged(&store));
    let store = step(store.abort(three.number()).unwrap());
    step(store.delete(two.number()).unwrap());
    let wanted = ["served", "rolled-back", "aborted", "removed"].map(|what| format!("artifact-{what}"));
    let told = keeper.node.events().after(0, 1000).into_iter().map(|recorded| {
        (recorded.event.kind().to_owned(), recorded.event.fields()["number"].as_u64().unwrap_or_default())
    });
    let told: Vec<(String, u64)> = told.filter(|(kind, _)| wanted.contains(kind)).collect();
    let all =
        [("served", 1), ("served", 2), ("rolled-back", 1), ("aborted", 3), ("removed", 3), ("removed", 2)];
    assert_eq!(told, all.map(|(what, number)| (format!("artifact-{what}"), number)));
}

/// A node that was behind by two swaps once answered from the new artifact, and then from the old one again.
#[test]
fn a_reader_under_a_document_not_yet_adopted_never_goes_back_to_an_older_artifact() {
    let (one, two) = (Built::new("words", 1), Built::new("words", 2));
    let listed = two.staged(&one.served(&empty("words")));
    let keeper = Keeper::whole(vec![listed.clone()], &[&one, &two]);
    let front = keeper.node.worker(keeper.home.ports()).service.front;
    let key = one.key(0);
    let read = || {
        let got = keeper.home.stage.run(front.get("words", key.clone(), &RequestOptions::default()));
        got.unwrap().set.versions()[0].dot.actor.incarnation
    };
    let read_now = || {
        let Some((view, AtHand::Artifacts(store))) = front.at_hand("words") else {
            panic!("it is read-only")
        };
        front.get_artifact_now(&view, &store, &key, &mut |_| {})
    };
    assert_eq!((read(), read_now()), (1, Some(true)));
    let walk = |store| {
        let (clock, limit) = (keeper.home.ports().clock, StretchLimit { keys_min: 1, partitions_max: 1 });
        let begun = clock.now();
        // Of versions the other replicas are asked too, and they are silent here.
        let _ = keeper.home.stage.run(front.stretch(store, Position::START, limit));
        clock.now().since(begun)
    };
    let before = (walk("words"), walk("s"));
    // Nothing can be written, so the node cannot adopt what it is told.
    keeper.home.disk.set_capacity(Some(0));
    let generation = Generation(keeper.document.generation.0 + 1);
    let newer = Cluster { generation, read_only: vec![two.served(&listed)], ..keeper.document.clone() };
    let node = keeper.node.clone();
    let me = Peer::Node { id: node.id(), incarnation: node.incarnation() };
    let peers = Peers::new(keeper.home.ports(), me, None);
    let offer: Adopt = Arc::new(move |cluster| node.offer(cluster));
    let transport = WorkerTransport::new(keeper.node.replica().clone(), peers, offer);
    let driven_by = transport.adopt(&serde_json::to_vec(&newer).unwrap(), &keeper.document);
    assert_eq!(driven_by.generation, generation);
    keeper.pass(SOON);
    assert_eq!(keeper.node.replica().view().generation(), keeper.document.generation, "it is behind");
    assert_eq!((read(), read_now()), (2, None));
    // A walk waits for the document, and one of a store that no artifact concerns does not.
    assert_eq!((walk("words"), walk("s")), (before.0 + ADOPT_PATIENCE, before.1));
    keeper.home.disk.set_capacity(None);
    keeper.home.stage.until(|| keeper.node.replica().view().generation() == generation);
    assert_eq!((read(), read_now()), (2, Some(true)));
}
