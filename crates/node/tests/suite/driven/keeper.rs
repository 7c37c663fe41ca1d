//! A node that keeps artifacts, and the sources that it fetches them from.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use model::{
    ArtifactNumber, Cluster, Generation, ManifestDigest, NodeId, ReadOnlyStore, StoreName, Token, Value,
};
use parking_lot::Mutex;
use protocol::report::{ArtifactProgress, ArtifactState, ArtifactsReport, Parts};
use runtime::disk::simulated::SimulatedDisk;
use runtime::{Disk, Sources};
use storage::artifacts::{
    BuildOptions, BuildRecord, Compression, Cutter, Duplicates, Manifest, Merged, Place, Records, TokenHash,
    build, chunk_path,
};
use wire::error::ErrorCode;
use wire::messages::{ArtifactGet, Response, StoreRef};

use super::home::cluster;
use super::{Answer, Home, Node, NodeConfig};

/// Keys of each artifact, in four chunks.
pub(crate) const KEYS: u64 = 400;
/// Enough for what needs no patience.
pub(crate) const SOON: Duration = Duration::from_secs(5);
/// Many looks of a node, those for files among them.
pub(crate) const LONG: Duration = Duration::from_secs(30);

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
    pub(crate) disk: SimulatedDisk,
    pub(crate) manifest: Manifest,
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

    pub(crate) fn number(&self) -> ArtifactNumber {
        ArtifactNumber(self.manifest.number)
    }

    pub(crate) fn digest(&self) -> ManifestDigest {
        ManifestDigest(self.manifest.digest().0)
    }

    /// A key of a chunk.
    pub(crate) fn key(&self, chunk: usize) -> Bytes {
        let mut keys = (0..KEYS).map(|key| Bytes::from(format!("word{key}")));
        let slice = self.manifest.chunks[chunk].slice;
        keys.find(|key| slice.contains(Token::of(key))).unwrap()
    }

    pub(crate) fn staged(&self, store: &ReadOnlyStore) -> ReadOnlyStore {
        store.stage(self.number(), self.digest(), &self.url()).unwrap()
    }

    pub(crate) fn served(&self, store: &ReadOnlyStore) -> ReadOnlyStore {
        self.staged(store).swap(self.number()).unwrap()
    }
}

pub(crate) fn empty(store: &str) -> ReadOnlyStore {
    ReadOnlyStore::new(StoreName::new(store).unwrap(), 3)
}

/// One node, and what it follows.
pub(crate) struct Keeper {
    pub(crate) home: Home,
    pub(crate) node: Arc<Node>,
    shelf: Arc<Shelf>,
    pub(crate) document: Cluster,
}

impl Keeper {
    /// Of these stores, where the sources of these artifacts are there.
    pub(crate) fn new(stores: Vec<ReadOnlyStore>, sources: &[&Built]) -> Keeper {
        Keeper::configured(stores, sources, |_| {})
    }

    /// The same, of a node that is configured as a test wants it.
    pub(crate) fn configured(
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

    pub(crate) fn put(&self, built: &Built) {
        self.shelf.0.lock().insert(built.url(), built.disk.clone());
    }

    pub(crate) fn take(&self, built: &Built) {
        self.shelf.0.lock().remove(&built.url());
    }

    /// Has the node follow other stores.
    pub(crate) fn adopt(&mut self, stores: Vec<ReadOnlyStore>) {
        let generation = Generation(self.document.generation.0 + 1);
        self.document = Cluster { generation, read_only: stores, ..self.document.clone() };
        self.home.adopt(&self.node, self.document.clone());
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.home.stage.pass(time);
    }

    pub(crate) fn told(&self) -> ArtifactsReport {
        self.node.report(Parts::ARTIFACTS).artifacts.unwrap()
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
    pub(crate) fn holds(&self, built: &Built) -> bool {
        let view = self.node.replica().view().get();
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

    pub(crate) fn fetched(&self) -> u64 {
        self.told().fetching.bytes_from_source
    }

    /// What a get of an artifact answers.
    pub(crate) fn get(&self, built: &Built, key: &Bytes) -> Result<Option<Bytes>, ErrorCode> {
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
    pub(crate) fn answers(&self, built: &Built) -> bool {
        (0..4).all(|chunk| matches!(self.get(built, &built.key(chunk)), Ok(Some(_))))
    }

    pub(crate) fn path(&self, built: &Built, chunk: usize) -> String {
        format!("artifacts/{}/{}", built.manifest.store, chunk_path(built.manifest.chunks[chunk].digest))
    }

    /// Flips a bit of each byte of a part of a chunk, here.
    pub(crate) fn flip(&self, built: &Built, chunk: usize, bytes: Range<u64>) {
        let path = self.path(built, chunk);
        bytes.for_each(|byte| assert!(self.home.disk.flip_bit(&path, byte, 1)));
    }

    /// The node's process ends, and another one begins.
    pub(crate) fn restart(&mut self) {
        self.home.stage.end_tasks();
        self.home.disk.kill();
        self.node = self.home.start();
    }
}

/// Where the parts of a chunk with one block lie: data, index, footer, list.
pub(crate) fn parts(built: &Built, chunk: usize) -> [Range<u64>; 4] {
    let end = built.manifest.chunks[chunk].file_bytes;
    let (list, footer) = (end - 16, end - 16 - 96);
    [0..footer - 200, footer - 2..footer, footer..list, list..end]
}

pub(crate) fn bytes_of(built: &Built, chunks: &[usize]) -> u64 {
    chunks.iter().map(|chunk| built.manifest.chunks[*chunk].file_bytes).sum()
}
