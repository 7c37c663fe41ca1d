//! What this node believes about the cluster right now, and its stores of that moment.
//!
//! A view never changes; a newer cluster document makes a new view. Requests hold the view that they started with.
//!
//! Below the view nothing knows the ring's partitions: where a record lies is said by its bucket, a fixed slice of the
//! token space, and [`View::buckets`] says of each bucket who holds it. There a partition's id is the number of a bucket.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select;
use model::routing::{holds, writers};
use model::{Cluster, Generation, NodeId, Partition, PartitionId, PreferenceList, Ring, Store, Token};
use parking_lot::{RwLock, RwLockReadGuard};
use runtime::Clock;
use tokio::sync::{Notify, watch};

use crate::stores::{KeyPlace, LocalStore, ReadOnly};

/// Documents from which it can be told what changed since. Requests that are older hear all of the newest one.
const EARLIER_MAX: usize = 8;

/// Takes in a newer cluster document that a peer handed over.
pub type Adopt = Arc<dyn Fn(Cluster) + Send + Sync>;

/// The cluster at one generation, as this node sees it.
pub struct View {
    cluster: Arc<Cluster>,
    /// The documents before it, the latest last.
    earlier: Vec<Earlier>,
    /// The ring by bucket: below the view this is the ring.
    buckets: Ring,
    document: Bytes,
    /// Sorted as the cluster's stores are.
    stores: Vec<Arc<LocalStore>>,
    /// The second kind of store, which nothing that goes over `stores` meets.
    read_only: Vec<Arc<ReadOnly>>,
}

/// A document that some still follow.
struct Earlier {
    cluster: Arc<Cluster>,
    /// What makes the view's document of it, as JSON; made when somebody needs it.
    change: OnceLock<Bytes>,
}

impl Earlier {
    fn new(cluster: Arc<Cluster>) -> Earlier {
        Earlier { cluster, change: OnceLock::new() }
    }
}

/// A key's way: where it lies, and who should hold it.
pub struct Route {
    /// Where it lies.
    pub place: KeyPlace,
    /// Who should hold it.
    pub preference: PreferenceList,
}

impl View {
    /// The view of `cluster` with `stores` open at this node.
    pub fn new(cluster: Arc<Cluster>, stores: Vec<Arc<LocalStore>>) -> Self {
        let document = serde_json::to_vec(&*cluster).expect("a cluster is plain data").into();
        let read_only = cluster.read_only.iter();
        let read_only =
            read_only.map(|store| Arc::new(ReadOnly::new(store.clone(), Arc::default()))).collect();
        let buckets = cluster.by_bucket();
        View { cluster, earlier: Vec::new(), buckets, document, stores, read_only }
    }

    /// Goes on with what an older view has: the artifacts that are open, and the documents before it.
    fn inherit(&mut self, older: &View) {
        let earlier = older.earlier.iter().map(|earlier| &earlier.cluster).chain([&older.cluster]);
        let passed_over = older.earlier.len() + 1 - EARLIER_MAX.min(older.earlier.len() + 1);
        self.earlier = earlier.skip(passed_over).cloned().map(Earlier::new).collect();
        for store in &mut self.read_only {
            if let Some(known) = older.read_only(store.reference()) {
                *store = Arc::new(ReadOnly::new(store.listed().clone(), known.held().clone()));
            }
        }
    }

    /// Gives the stores the trees of this view: when it becomes the current one, and not before.
    fn shape(&self) {
        self.stores.iter().for_each(|store| store.shape(&self.buckets));
    }

    /// The cluster.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// The ring as everything below sees it: an entry for each bucket, with the bucket's number as its id.
    pub fn buckets(&self) -> &Ring {
        &self.buckets
    }

    /// The partition of the ring that a bucket belongs to, for people and for other nodes.
    pub fn owner(&self, bucket: PartitionId) -> &Partition {
        let (first, _) = self.buckets.bounds(bucket).unwrap_or((Token(0), Token(0)));
        self.cluster.ring.partition(first)
    }

    /// The buckets that a partition of the ring is made of; none for one that it does not have.
    pub fn buckets_of(&self, partition: PartitionId) -> &[Partition] {
        let Some((first, last)) = self.cluster.ring.bounds(partition) else { return &[] };
        let buckets = self.buckets.partitions();
        let upto = |token: u64| buckets.partition_point(|bucket| bucket.start < token);
        &buckets[upto(first.0)..last.0.checked_add(1).map_or(buckets.len(), upto)]
    }

    /// The cluster as JSON, for whoever is behind.
    pub fn document(&self) -> &Bytes {
        &self.document
    }

    /// The same for a caller that follows an earlier document: as what changed since, if this node remembers that.
    pub(crate) fn news(&self, since: Generation) -> &Bytes {
        let earlier = self.earlier.iter().find(|earlier| earlier.cluster.generation == since);
        earlier.map_or(&self.document, |earlier| {
            earlier.change.get_or_init(|| self.cluster.change_from(&earlier.cluster).into())
        })
    }

    /// All stores.
    pub fn stores(&self) -> &[Arc<LocalStore>] {
        &self.stores
    }

    /// The store with this name.
    pub fn store(&self, name: &str) -> Option<&Arc<LocalStore>> {
        self.stores.iter().find(|store| store.definition().name.as_str() == name)
    }

    /// All read-only stores.
    pub fn read_only_stores(&self) -> &[Arc<ReadOnly>] {
        &self.read_only
    }

    /// The read-only store with this name.
    pub fn read_only(&self, name: &str) -> Option<&Arc<ReadOnly>> {
        self.read_only.iter().find(|store| store.listed().name.as_str() == name)
    }

    /// Where a key of `store` lies and who should hold it.
    pub fn route(&self, store: &LocalStore, key: &[u8]) -> Route {
        let token = store.token(key);
        let (_, preference) = self.cluster.route(store.definition(), token);
        Route { place: self.place(token), preference }
    }

    /// Where a key of `store` lies: what most requests need to know.
    pub fn partition(&self, store: &LocalStore, key: &[u8]) -> (KeyPlace, &Partition) {
        self.partition_at(store.token(key))
    }

    /// Where a key with this token lies.
    pub fn partition_at(&self, token: Token) -> (KeyPlace, &Partition) {
        (self.place(token), self.cluster.ring.partition(token))
    }

    /// Where records with this token lie.
    fn place(&self, token: Token) -> KeyPlace {
        KeyPlace { partition: self.buckets.partition(token).id, token }
    }

    /// Whether `node` holds records of a store in this partition, or brings them in, whatever the partition's step.
    pub fn holds(&self, node: NodeId, store: &LocalStore, partition: &Partition) -> bool {
        holds(store.definition(), partition, node)
    }

    /// Whether `node` takes writes of a store in this partition as a replica.
    pub fn writes(&self, node: NodeId, store: &LocalStore, partition: &Partition) -> bool {
        writers(store.definition(), partition).any(|writer| writer == node)
    }

    /// Requests for a store's keys in this bucket that were formed under an older generation are refused; 0 for a bucket
    /// that is unknown.
    pub fn accepted_since(&self, store: &LocalStore, bucket: PartitionId) -> Generation {
        // It may be as it was defined under another view.
        let name = store.definition().name.as_str();
        let definition = self.cluster.store(name).unwrap_or(store.definition());
        let found = self.buckets.get(bucket);
        found.map_or_else(Generation::default, |partition| self.cluster.accepted_since(definition, partition))
    }

    /// What this view says of a store's records in a bucket: two views that say the same want the same of a node.
    pub fn says_of(&self, store: &LocalStore, bucket: PartitionId) -> Option<(&Partition, &Store)> {
        self.buckets.get(bucket).zip(self.cluster.store(store.definition().name.as_str()))
    }

    /// The buckets of a store of which `node` is a replica, each with its other replicas.
    pub fn replicated_by(&self, node: NodeId, store: &LocalStore) -> BTreeMap<PartitionId, Vec<NodeId>> {
        let mine = self.buckets.partitions().iter().filter(|p| self.writes(node, store, p));
        mine.map(|p| (p.id, others(store, p, node))).collect()
    }

    /// The replicas of a bucket of a store but for `node`.
    pub fn replicas_of(&self, bucket: PartitionId, store: &LocalStore, node: NodeId) -> Vec<NodeId> {
        self.buckets.get(bucket).map_or_else(Vec::new, |p| others(store, p, node))
    }

    /// Which share of all tokens lies in the buckets that `counts` chooses.
    pub fn share(&self, counts: impl Fn(PartitionId) -> bool) -> f64 {
        let partitions = self.buckets.partitions();
        let ends = partitions.iter().skip(1).map(|next| u128::from(next.start)).chain([1 << 64]);
        let widths = partitions.iter().zip(ends).filter(|(partition, _)| counts(partition.id));
        let covered: u128 = widths.map(|(partition, end)| end - u128::from(partition.start)).sum();
        covered as f64 / (1_u128 << 64) as f64
    }

    /// The name of a node in messages to people.
    pub fn describe(&self, node: NodeId) -> String {
        match self.cluster.node(node) {
            Some(known) => format!("{node} ({})", known.native),
            None => node.to_string(),
        }
    }
}

/// The nodes that take writes of a partition as replicas, but for `node`.
fn others(store: &LocalStore, partition: &Partition, node: NodeId) -> Vec<NodeId> {
    writers(store.definition(), partition).filter(|&other| other != node).collect()
}

/// The current view; cheap to read, replaced when the cluster document changes.
///
/// What stores records for others holds the view as [`Admitted`] while it does: a view is replaced when nothing admitted
/// under an older one is still being carried out. The generation that others are told of ([`CurrentView::adopted`]) is
/// told after that, and after the document is durable here.
pub struct CurrentView {
    view: RwLock<Arc<View>>,
    generation: AtomicU64,
    adopted: AtomicU64,
    /// Wakes those who wait for a generation, in the order in which they came. (A `watch` wakes them in a random one, so
    /// no run of the simulator could be repeated.)
    changed: Notify,
    /// The newest generation that a request has named.
    wanted: watch::Sender<Generation>,
    /// The newest document that requests driven here have learned of, and its generation. As a replica this node
    /// follows it when it is durable; what it drives may be ahead of that.
    heard: RwLock<Option<Arc<Cluster>>>,
    known: AtomicU64,
}

/// Leave to store records under the view as it is: while this is held, the view is not replaced. Whoever holds it must
/// not ask for the current view again.
pub struct Admitted<'a>(RwLockReadGuard<'a, Arc<View>>);

impl std::ops::Deref for Admitted<'_> {
    type Target = View;
    fn deref(&self) -> &View {
        &self.0
    }
}

impl CurrentView {
    /// Starts with this view, whose document is not durable here yet, as far as others are told.
    pub fn new(view: View) -> Self {
        view.shape();
        let generation = view.cluster().generation;
        CurrentView {
            view: RwLock::new(Arc::new(view)),
            generation: AtomicU64::new(generation.0),
            adopted: AtomicU64::new(0),
            changed: Notify::new(),
            wanted: watch::Sender::new(generation),
            heard: RwLock::default(),
            known: AtomicU64::new(generation.0),
        }
    }

    /// A request that is driven here follows this document.
    pub(crate) fn hear(&self, cluster: &Arc<Cluster>) {
        let mut heard = self.heard.write();
        if heard.as_ref().is_none_or(|heard| heard.generation < cluster.generation) {
            *heard = Some(cluster.clone());
            self.known.fetch_max(cluster.generation.0, Ordering::AcqRel);
        }
    }

    /// The newest generation that anything here follows.
    pub(crate) fn known(&self) -> Generation {
        Generation(self.known.load(Ordering::Acquire)).max(self.generation())
    }

    /// A document that is newer than the view, if requests have learned of one.
    pub(crate) fn ahead(&self) -> Option<Arc<Cluster>> {
        let generation = self.generation();
        if self.known() == generation {
            return None;
        }
        self.heard.read().clone().filter(|heard| heard.generation > generation)
    }

    /// The view now.
    pub fn get(&self) -> Arc<View> {
        self.view.read().clone()
    }

    /// The view now, which stays the current one while the guard is held.
    pub fn admit(&self) -> Admitted<'_> {
        Admitted(self.view.read())
    }

    /// The generation now, without touching the view.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// The generation that this node has adopted: its document is durable here, and nothing that was admitted under an
    /// older one is still being carried out. 0 before the first.
    pub fn adopted(&self) -> Generation {
        Generation(self.adopted.load(Ordering::Acquire))
    }

    /// Takes a newer view; one that is not newer is dropped. Waits for what was admitted under the older one.
    pub fn replace(&self, mut view: View) {
        let mut current = self.view.write();
        let generation = view.cluster().generation;
        if generation > current.cluster().generation {
            // Under the lock, so that trees are never those of a view that came too late.
            view.shape();
            view.inherit(&current);
            self.generation.store(generation.0, Ordering::Release);
            *current = Arc::new(view);
            self.changed.notify_waiters();
        }
    }

    /// The current view's document is durable here.
    pub(crate) fn settle(&self, durable: Generation) {
        self.adopted.fetch_max(durable.min(self.generation()).0, Ordering::AcqRel);
    }

    /// Waits until the view is of this generation or a later one, or for this long.
    pub(crate) async fn reached(&self, generation: Generation, clock: &dyn Clock, patience: Duration) {
        if self.generation() >= generation {
            return;
        }
        self.wanted.send_modify(|wanted| *wanted = generation.max(*wanted));
        let reached = std::pin::pin!(async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if self.generation() >= generation {
                    return;
                }
                changed.await;
            }
        });
        select(reached, clock.sleep_until(clock.now().after(patience))).await;
    }

    /// Waits for a view that is newer than this generation.
    pub(crate) async fn newer_than(&self, generation: Generation) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.generation() > generation {
                return;
            }
            changed.await;
        }
    }

    /// Learns of the newest generation that requests have named.
    pub(crate) fn wanted(&self) -> watch::Receiver<Generation> {
        self.wanted.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use model::{Consistency, StoreName, Zone};
    use runtime::clock::os::OsClock;
    use storage::MemoryEngine;

    use super::*;
    use crate::stores::Stamper;

    fn definition(replicas: u8) -> Store {
        let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
        Store::new(StoreName::new("s").unwrap(), consistency).unwrap()
    }

    fn view(generation: u64, store: &LocalStore, replicas: u8) -> View {
        let zone = Zone("z".to_owned());
        let ring = Ring::equal_slices(4, &[(NodeId(1), zone.clone()), (NodeId(2), zone)]);
        let cluster = Cluster::new("test", Vec::new(), ring, vec![definition(replicas)]);
        let cluster = Cluster { generation: Generation(generation), ..cluster };
        View::new(Arc::new(cluster), vec![Arc::new(store.redefined(definition(replicas)))])
    }

    #[test]
    fn a_newer_view_waits_for_requests_admitted_under_the_older_one() {
        let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(OsClock::new())));
        let store = LocalStore::new(definition(1), Arc::new(MemoryEngine::new()), stamper);
        let current = CurrentView::new(view(1, &store, 1));
        std::thread::scope(|threads| {
            let admitted = current.admit();
            threads.spawn(|| current.replace(view(2, &store, 1)));
            // Nobody else is admitted once the newer one waits, so it is not put off for ever.
            while current.view.try_read().is_some() {
                std::thread::yield_now();
            }
            assert_eq!(admitted.cluster().generation, Generation(1));
            assert_eq!(current.generation(), Generation(1));
            current.settle(Generation(2));
            assert_eq!(current.adopted(), Generation(1), "what is still carried out is not behind us");
        });
        current.settle(Generation(2));
        assert_eq!((current.generation(), current.adopted()), (Generation(2), Generation(2)));
    }

    /// Whoever waits for a generation and how often it was woken, one after another.
    struct Order(usize, Arc<parking_lot::Mutex<Vec<usize>>>);

    impl std::task::Wake for Order {
        fn wake(self: Arc<Self>) {
            self.1.lock().push(self.0);
        }
    }

    #[test]
    fn waiters_for_a_generation_are_woken_in_the_order_of_their_arrival() {
        let clock = OsClock::new();
        let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(OsClock::new())));
        let store = LocalStore::new(definition(1), Arc::new(MemoryEngine::new()), stamper);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _inside = runtime.enter();
        for _ in 0..20 {
            let current = CurrentView::new(view(1, &store, 1));
            let woken = Arc::default();
            let mut waiting: Vec<_> = (0..8)
                .map(|_| Box::pin(current.reached(Generation(2), &clock, Duration::from_secs(60))))
                .collect();
            for (number, waiting) in waiting.iter_mut().enumerate() {
                let waker = Arc::new(Order(number, Arc::clone(&woken))).into();
                assert!(waiting.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
            }
            current.replace(view(2, &store, 1));
            assert_eq!(*woken.lock(), [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }

    /// Making the view of a document that came too late once gave up the trees of a store that has a second replica by
    /// now.
    #[test]
    fn a_document_that_comes_too_late_leaves_the_trees_as_they_are() {
        let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(OsClock::new())));
        let store = LocalStore::new(definition(1), Arc::new(MemoryEngine::new()), stamper);
        let trees = || (store.trees().is_alone(), store.trees().summary().0);
        let current = CurrentView::new(view(1, &store, 1));
        assert_eq!(trees(), (true, 0), "nobody to compare with");
        current.replace(view(3, &store, 2));
        assert_eq!(trees(), (false, 4));
        current.replace(view(2, &store, 1));
        assert_eq!((trees(), current.generation()), ((false, 4), Generation(3)));
        current.replace(view(4, &store, 1));
        assert_eq!(trees(), (true, 0));
    }
}
