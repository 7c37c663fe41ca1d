//! A node keeps what documents list of artifacts: whatever is slow, damaged or away beside it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::coordinator::Replicas;
use client::peers::Peers;
use futures_util::FutureExt;
use model::{
    ArtifactNumber, Cluster, Generation, ManifestDigest, NodeId, ReadOnlyStore, StoreName, Token, Value,
};
use parking_lot::Mutex;
use protocol::report::{ArtifactProgress, ArtifactState, ArtifactsReport};
use runtime::disk::simulated::{Fault, Operation, SimulatedDisk};
use runtime::{Disk, Sources};
use storage::readonly::{
    BuildOptions, BuildRecord, Compression, Cutter, Duplicates, Manifest, Merged, Place, Records, TokenHash,
    build, chunk_path,
};
use wire::error::ErrorCode;
use wire::messages::{
    ArtifactGet, ArtifactScan, Request, RequestOptions, Response, ScanAfter, Scanned, StoreRef,
};

use super::home::cluster;
use super::{Answer, Home};
use crate::artifacts::Artifacts;
use crate::front::{ADOPT_PATIENCE, AtHand, Position, StretchLimit};
use crate::node::{Node, NodeConfig};
use crate::transport::WorkerTransport;

/// Keys of each artifact, in four chunks.
const KEYS: u64 = 400;
/// Enough for what needs no patience.
pub(super) const SOON: Duration = Duration::from_secs(5);
/// Many looks of a node, those for files among them.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// Sources by their URL.
#[derive(Default)]
struct Shelf(Mutex<BTreeMap<String, SimulatedDisk>>);

impl std::fmt::Debug for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shelf")
    }
}

impl Sources for Shelf {
    fn open(&self, url: &str) -> Result<Arc<dyn Disk>, String> {
        let found = self.0.lock().get(url).cloned().ok_or_else(|| format!("{url} is away"))?;
        Ok(Arc::new(found))
    }
}

/// What was built.
#[derive(Clone)]
pub(crate) struct Built {
    pub(super) disk: SimulatedDisk,
    pub(super) manifest: Manifest,
}

impl Built {
    /// Of a store and a number; keys of the first chunk alone have values that name the number.
    pub(crate) fn new(store: &str, number: u64) -> Built {
        let mut records = Records::default();
        let keys: Vec<Bytes> = (0..KEYS).map(|key| Bytes::from(format!("word{key}"))).collect();
        let value = |token: Token| if token.0 < 1 << 62 { format!("{number}") } else { "all".to_owned() };
        let values: Vec<String> = keys.iter().map(|key| value(Token::of(key))).collect();
        for (line, (key, value)) in keys.iter().zip(&values).enumerate() {
            let (token, place) = (Token::of(key), Place::new(0, line as u64 + 1));
            records.push(BuildRecord { token, key, value: value.as_bytes(), place });
        }
        records.sort();
        let options = BuildOptions {
            store: StoreName::new(store).unwrap(),
            number,
            hash: TokenHash::Xxh3,
            compression: Compression::None,
            layout: None,
            duplicates: Duplicates::Refuse,
        };
        let merged = Merged::new(Vec::new(), vec![records], 1 << 20).unwrap();
        let cutter = Cutter::new(&[0, 1 << 62, 2 << 62, 3 << 62], (1, 1 << 20));
        let disk = SimulatedDisk::new(number);
        let built = build(Arc::new(disk.clone()), merged, &options, cutter).now_or_never();
        Built { disk, manifest: built.expect("nothing waits").unwrap() }
    }

    fn url(&self) -> String {
        format!("test://{}-{}", self.manifest.store, self.manifest.number)
    }

    pub(super) fn number(&self) -> ArtifactNumber {
        ArtifactNumber(self.manifest.number)
    }

    pub(super) fn digest(&self) -> ManifestDigest {
        ManifestDigest(self.manifest.digest().0)
    }

    /// A key of a chunk.
    fn key(&self, chunk: usize) -> Bytes {
        let mut keys = (0..KEYS).map(|key| Bytes::from(format!("word{key}")));
        let slice = self.manifest.chunks[chunk].slice;
        keys.find(|key| slice.contains(Token::of(key))).unwrap()
    }

    pub(super) fn staged(&self, store: &ReadOnlyStore) -> ReadOnlyStore {
        store.stage(self.number(), self.digest(), &self.url()).unwrap()
    }

    pub(crate) fn served(&self, store: &ReadOnlyStore) -> ReadOnlyStore {
        self.staged(store).swap(self.number()).unwrap()
    }
}

pub(crate) fn empty(store: &str) -> ReadOnlyStore {
    ReadOnlyStore::new(StoreName::new(store).unwrap(), 3)
}

/// One node, and what it goes by.
pub(crate) struct Keeper {
    pub(crate) home: Home,
    pub(super) node: Arc<Node>,
    shelf: Arc<Shelf>,
    document: Cluster,
}

impl Keeper {
    /// Of these stores, where the sources of these artifacts are there.
    fn new(stores: Vec<ReadOnlyStore>, sources: &[&Built]) -> Keeper {
        Keeper::configured(stores, sources, |_| {})
    }

    /// The same, of a node that is configured as a test wants it.
    pub(super) fn configured(
        stores: Vec<ReadOnlyStore>,
        sources: &[&Built],
        configure: impl FnOnce(&mut NodeConfig),
    ) -> Keeper {
        let document = Cluster { read_only: stores, ..cluster() };
        let mut home = Home::of(&document);
        configure(&mut home.config);
        let shelf: Arc<Shelf> = Arc::default();
        home.config.artifacts.sources = Some(shelf.clone());
        // What is asked of the other nodes takes as long as patience does.
        for other in [2, 3] {
            home.wires.script(NodeId(other), |_| Answer::Silence);
        }
        let node = home.start();
        let keeper = Keeper { home, node, shelf, document };
        sources.iter().for_each(|built| keeper.put(built));
        keeper
    }

    /// The same, when the node holds all that is listed.
    pub(crate) fn whole(stores: Vec<ReadOnlyStore>, sources: &[&Built]) -> Keeper {
        let keeper = Keeper::new(stores, sources);
        keeper.until_whole();
        keeper
    }

    pub(super) fn put(&self, built: &Built) {
        self.shelf.0.lock().insert(built.url(), built.disk.clone());
    }

    pub(super) fn take(&self, built: &Built) {
        self.shelf.0.lock().remove(&built.url());
    }

    /// Has the node go by other stores.
    pub(crate) fn adopt(&mut self, stores: Vec<ReadOnlyStore>) {
        let generation = Generation(self.document.generation.0 + 1);
        self.document = Cluster { generation, read_only: stores, ..self.document.clone() };
        self.home.adopt(&self.node, self.document.clone());
    }

    pub(crate) fn artifacts(&self) -> &Arc<Artifacts> {
        self.node.artifacts()
    }

    pub(super) fn pass(&self, time: Duration) {
        self.home.stage.pass(time);
    }

    pub(crate) fn told(&self) -> ArtifactsReport {
        self.node.artifacts().report()
    }

    /// What the node says of an artifact.
    pub(crate) fn told_of(&self, built: &Built) -> ArtifactProgress {
        let is_it =
            |told: &ArtifactProgress| told.store == built.manifest.store && told.number == built.number();
        self.told().listed.into_iter().find(is_it).unwrap()
    }

    fn is_told_staged(&self, told: &ArtifactProgress) -> bool {
        told.state == ArtifactState::Staged && told.whole_under == self.document.generation
    }

    /// Whether the node says that it holds an artifact by the newest document, and does.
    pub(super) fn holds(&self, built: &Built) -> bool {
        let view = self.node.replica.view().get();
        let store = view.read_only(built.manifest.store.as_str()).unwrap();
        let open = store.held().open(built.number(), built.digest());
        self.is_told_staged(&self.told_of(built))
            && open.is_some_and(|open| {
                open.whole_under() == self.document.generation && open.chunks.iter().all(|open| *open)
            })
    }

    pub(crate) fn until_whole(&self) {
        self.home.stage.until(|| self.told().listed.iter().all(|told| self.is_told_staged(told)));
    }

    pub(super) fn fetched(&self) -> u64 {
        self.told().fetching.bytes_from_source
    }

    /// What a get of an artifact answers.
    fn get(&self, built: &Built, key: &Bytes) -> Result<Option<Bytes>, ErrorCode> {
        let get = ArtifactGet {
            store: StoreRef::from(&built.manifest.store),
            generation: self.document.generation,
            number: built.number(),
            manifest: built.digest(),
            keys: [key.clone()].into_iter().collect(),
        };
        match self.home.call(&self.node, get) {
            Ok(Response::ReplicaGot(got)) => got.sets[0].clone().map(|set| {
                set.versions().first().map(|version| match &version.value {
                    Value::Present(value) => value.clone(),
                    Value::Tombstone => panic!("artifacts have none"),
                })
            }),
            Err(client::peers::CallError::Refused(failure)) => Err(failure.code),
            other => panic!("{other:?}"),
        }
    }

    /// Whether all chunks of an artifact are answered from.
    fn answers(&self, built: &Built) -> bool {
        (0..4).all(|chunk| matches!(self.get(built, &built.key(chunk)), Ok(Some(_))))
    }

    pub(super) fn path(&self, built: &Built, chunk: usize) -> String {
        format!("artifacts/{}/{}", built.manifest.store, chunk_path(built.manifest.chunks[chunk].digest))
    }

    /// Flips a bit of each byte of a part of a chunk, here.
    pub(super) fn flip(&self, built: &Built, chunk: usize, bytes: Range<u64>) {
        let path = self.path(built, chunk);
        bytes.for_each(|byte| assert!(self.home.disk.flip_bit(&path, byte, 1)));
    }

    /// The node's process ends, and another one begins.
    fn restart(&mut self) {
        self.home.stage.end_tasks();
        self.home.disk.kill();
        self.node = self.home.start();
    }
}

/// Where the parts of a chunk with one block lie: data, index, footer, list.
pub(super) fn parts(built: &Built, chunk: usize) -> [Range<u64>; 4] {
    let end = built.manifest.chunks[chunk].file_bytes;
    let (list, footer) = (end - 16, end - 16 - 96);
    [0..footer - 200, footer - 2..footer, footer..list, list..end]
}

pub(super) fn bytes_of(built: &Built, chunks: &[usize]) -> u64 {
    chunks.iter().map(|chunk| built.manifest.chunks[*chunk].file_bytes).sum()
}

/// All stores once waited for the first one's fetch: swaps of the others, and removal, for as long as it took.
#[test]
fn a_fetch_that_takes_long_keeps_no_other_artifact_waiting() {
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
fn what_is_kept_waits_for_no_push() {
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
fn damage_that_is_met_when_another_chunk_has_come_is_mended_too() {
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
fn of_two_artifacts_that_share_a_damaged_chunk_both_read_the_new_one() {
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
fn an_artifact_whose_missing_chunk_another_one_brings_is_told_staged_again() {
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
fn a_chunk_that_the_device_does_not_give_is_fetched_again() {
    let one = Built::new("words", 1);
    let keeper = Keeper::whole(vec![one.served(&empty("words"))], &[&one]);
    let (before, path) = (keeper.fetched(), keeper.path(&one, 1));
    keeper.home.disk.inject(Fault { path_part: path, ..Fault::next(Operation::Read, 1) });
    assert_eq!(keeper.get(&one, &one.key(1)), Err(ErrorCode::StorageFailed));
    keeper.pass(SOON);
    assert!(keeper.answers(&one) && keeper.holds(&one));
    assert_eq!(keeper.fetched() - before, bytes_of(&one, &[1]));
    assert_eq!(keeper.told().fetching.chunks_corrupt_now, 0);
}

/// It was once told of until the node was started again.
#[test]
fn damage_of_what_is_not_listed_any_more_is_forgotten() {
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
fn a_chunk_whose_sync_failed_is_there_after_a_power_cut() {
    let one = Built::new("words", 1);
    for seed in 0..6 {
        let keeper = Keeper::new(vec![one.served(&empty("words"))], &[]);
        let fault = Fault { path_part: "chunks/".to_owned(), ..Fault::next(Operation::Sync, 3) };
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
fn a_scan_of_an_artifact_that_is_deleted_meanwhile_is_refused_and_never_short() {
    let (one, two) = (Built::new("words", 1), Built::new("words", 2));
    let store = two.served(&one.served(&empty("words")));
    let mut keeper = Keeper::whole(vec![store.clone()], &[&one, &two]);
    let begun_under = keeper.document.generation;
    let first = scan(&keeper, &one, begun_under, None).unwrap();
    let (token, key) = first.next.clone().expect("there is more");
    // A page that is being read when the artifact goes is read to its end.
    let held = keeper.node.replica.view().get().read_only("words").unwrap().held().clone();
    let open = held.open(one.number(), one.digest()).unwrap();
    keeper.adopt(vec![store.delete(one.number()).unwrap()]);
    let path = keeper.path(&one, 0);
    keeper.home.stage.until(|| keeper.home.disk.contents(&path).is_none());
    assert!(held.open(one.number(), one.digest()).is_none());
    let limit = storage::readonly::WalkLimit { records_max: 1000, bytes_max: 1 << 20 };
    let all = Token(0)..=Token(u64::MAX);
    let rest = held.page(one.number(), &open, all, Some((token, &key[..])), limit).unwrap();
    assert_eq!((first.records.len() + rest.records.len()) as u64, KEYS);
    // The next page is refused, whichever document its coordinator goes by.
    let next = first.next.clone();
    assert_eq!(scan(&keeper, &one, begun_under, next.clone()), Err(ErrorCode::StaleGeneration));
    assert_eq!(scan(&keeper, &one, keeper.document.generation, next), Err(ErrorCode::ArtifactNotHere));
    assert_eq!(keeper.get(&one, &one.key(0)), Err(ErrorCode::ArtifactNotHere));
}

/// Once mappings were counted when all had been fetched.
#[test]
fn an_artifact_of_more_chunks_than_may_be_mapped_is_refused_before_its_first_byte() {
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
fn what_becomes_of_an_artifact_is_told_in_events() {
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
fn who_has_read_by_a_document_that_is_not_adopted_yet_reads_nothing_older() {
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
    let peers = Peers::new(keeper.home.ports(), node.as_peer(), None);
    let offer: crate::view::Adopt = Arc::new(move |cluster| node.offer(cluster));
    let transport = WorkerTransport::new(keeper.node.replica.clone(), peers, offer);
    let driven_by = transport.adopt(&serde_json::to_vec(&newer).unwrap(), &keeper.document);
    assert_eq!(driven_by.generation, generation);
    keeper.pass(SOON);
    assert_eq!(keeper.node.replica.view().generation(), keeper.document.generation, "it is behind");
    assert_eq!((read(), read_now()), (2, None));
    // A walk waits for the document, and one of a store that no artifact concerns does not.
    assert_eq!((walk("words"), walk("s")), (before.0 + ADOPT_PATIENCE, before.1));
    keeper.home.disk.set_capacity(None);
    keeper.home.stage.until(|| keeper.node.replica.view().generation() == generation);
    assert_eq!((read(), read_now()), (2, Some(true)));
}
