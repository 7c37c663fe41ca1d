//! Contents carry the collection epoch of before they were read, whoever reads them.
//!
//! The engines of these tests raise the node's epoch by one whenever something is read: what is tagged afterwards is
//! tagged too late.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use model::{Epoch, Generation, NodeId, PartitionId, Token};
use parking_lot::Mutex;
use runtime::BoxFuture;
use storage::{MemoryEngine, Met, Remains, ScanCursor, ScanLimit, ScanPage, StorageEngine, StorageError};
use wire::error::ErrorCode;
use wire::messages::{
    Merged, RecordsGet, RecordsPage, ReplicaGet, ReplicaMerged, Request, Response, Role, StoreRef, Terms,
};

use super::{Engines, Epochs, Home, KEY, Node, failing, merge, old};

/// Whose epoch rises; nobody's before it is set.
type Rising = Arc<OnceLock<Weak<Epochs>>>;

struct RisingEngines(Rising);

impl Engines for RisingEngines {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn forget(&self) -> bool {
        true
    }

    fn remains(&self, _: &str) -> Result<Remains, StorageError> {
        Ok(Remains::Nothing)
    }

    fn open(&self, _: &str) -> BoxFuture<'static, Result<Arc<dyn StorageEngine>, StorageError>> {
        let engine = RisingEngine { engine: MemoryEngine::new(), rising: self.0.clone() };
        Box::pin(async move { Ok(Arc::new(engine) as Arc<dyn StorageEngine>) })
    }
}

struct RisingEngine {
    engine: MemoryEngine,
    rising: Rising,
}

impl RisingEngine {
    fn rise(&self) {
        if let Some(epochs) = self.rising.get().and_then(Weak::upgrade) {
            epochs.hear(Epoch(epochs.tag().0 + 1), Generation(1), Some(Generation(1)));
        }
    }
}

impl StorageEngine for RisingEngine {
    storage::forward_engine!(engine: update, acknowledges_at_once, durable, sync, position, find, partitions, drop_partition, stats, close);

    fn get(&self, partition: PartitionId, token: Token, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let found = self.engine.get(partition, token, key);
        self.rise();
        found
    }

    fn walk(
        &self,
        partition: PartitionId,
        tokens: RangeInclusive<Token>,
        visit: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        let walked = self.engine.walk(partition, tokens, visit);
        self.rise();
        walked
    }

    fn scan(
        &self,
        partition: PartitionId,
        after: Option<&ScanCursor>,
        limit: ScanLimit,
    ) -> Result<ScanPage, StorageError> {
        let page = self.engine.scan(partition, after, limit);
        self.rise();
        page
    }
}

/// A node with a record, or with that and a hint for node 2; from here on each read raises its epoch.
fn rising(home: &Home, places: &[Option<u32>]) -> Arc<Node> {
    let rising = Rising::default();
    let node = home.start_over(Arc::new(RisingEngines(rising.clone()))).unwrap();
    for &hint_for in places {
        home.call(&node, merge(&KEY, &old(), 0, hint_for)).unwrap();
    }
    rising.set(Arc::downgrade(node.replica().epochs())).unwrap();
    node
}

fn reference(node: &Node) -> StoreRef {
    super::home::store(node).reference().clone()
}

#[test]
fn records_read_for_others_carry_the_epoch_from_before_the_read() {
    let home = Home::new();
    let node = rising(&home, &[None]);
    let (store, generation) = (reference(&node), Generation(1));
    let partition = node.replica().view().get().route(&super::home::store(&node), &KEY).place.partition;
    let before = || node.replica().epochs().tag();

    let (epoch, keys) = (before(), [KEY].into_iter().collect());
    let Ok(Response::ReplicaGot(got)) = home.call(
        &node,
        ReplicaGet {
            terms: Terms { since: Generation(1), role: Role::Replica },
            store: store.clone(),
            generation,
            keys,
        },
    ) else {
        panic!()
    };
    assert_eq!((got.epoch, got.sets[0].clone()), (epoch, Ok(old())));
    assert!(before() > epoch);

    let ask = |request: Request| home.stage.run(node.antientropy().clone().answer(request)).unwrap();
    // What the node does by itself when it starts reads, too.
    home.stage.pass(Duration::from_secs(3));
    let (epoch, keys) = (before(), vec![KEY]);
    let Response::RecordsGot(got) = ask(RecordsGet { store: store.clone(), generation, keys }.into()) else {
        panic!()
    };
    assert_eq!((got.epoch, got.sets[0].clone()), (epoch, Ok(old())));
    assert!(before() > epoch);

    let (epoch, from) = (before(), Token(0));
    let Response::RecordsPaged(paged) = ask(RecordsPage { store, generation, partition, from }.into()) else {
        panic!()
    };
    assert_eq!((paged.epoch, paged.records.len()), (epoch, 1));
    assert!(before() > epoch);

    let (epoch, store) = (before(), super::home::store(&node));
    let (read_at, _) = node.replica().renewed(&store, &KEY, &old()).unwrap();
    assert_eq!(read_at, epoch, "what a coordinator reads again");
}

/// A page of hints lasts for many batches, and is verified before each: the epoch is that of before it was verified.
#[test]
fn hints_and_pushed_records_carry_the_epoch_from_before_the_read() {
    let home = Home::new();
    let node = rising(&home, &[None, Some(2)]);
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (heard, its) = (sent.clone(), Arc::downgrade(node.replica().epochs()));
    let second = home.beside(2);
    let peer = second.start();
    home.serve(&peer, move |request| match request {
        Request::ReplicaMerge(merge) if !merge.entries.is_empty() => {
            heard.lock().push((merge.epoch, its.upgrade()?.tag()));
            let outcomes = merge.entries.iter().map(|_| Ok::<Merged, ErrorCode>(Merged::Changed)).collect();
            Some(ReplicaMerged { generation: Generation(1), outcomes }.into())
        }
        // Nothing else raises it meanwhile.
        Request::Ping(_) => Some(failing(ErrorCode::Overloaded)),
        _ => None,
    });
    home.stage.until(|| !sent.lock().is_empty());
    let (tag, then) = sent.lock()[0];
    assert!(tag < then, "hints were read at {tag} or before, and verified; then it was {then}");
    home.stage.until(|| node.replica().hints().count(NodeId(2)) == 0);
    sent.lock().clear();
    home.stage.pass(Duration::from_secs(2));
    node.antientropy().ask_for(NodeId(2));
    home.stage.until(|| !sent.lock().is_empty());
    let (tag, then) = sent.lock()[0];
    assert!(tag < then, "records were read at {tag}; then it was {then}");
}
