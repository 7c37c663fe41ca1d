//! Nodes as a headmaster sees them, played: they adopt the document under which they are asked, and do their part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use control::bootstrap::{Blueprint, create};
use control::headmaster::office::{Office, Turned};
use control::headmaster::reports::{Reported, Reports};
use coordination::documents::{
    self, ActiveNode, active_node_path, cluster_path, orders, plans, read_cluster, register,
};
use coordination::memory::{MemoryService, MemorySession};
use coordination::{CoordinationService, Expected};
use model::balance::{Join, Mode, Policy, Settings};
use model::limits::BUCKETS_DEFAULT;
use model::order::{Order, OrderOutcome};
use model::plan::{Planned, Size};
use model::routing::replicas_before;
use model::{
    Cluster, Consistency, Generation, Moment, Node, NodeId, Partition, Step, Store, StoreName, WallMillis,
    Zone,
};
use protocol::artifacts;
use protocol::headmaster::{Again, Ask, Said, Silence};
use protocol::rebalance::entering::takes_part;
use protocol::report::{Entered, NodeFacts};
use runtime::{BoxFuture, Clock};
use std::sync::Mutex;

/// A clock that stands still until somebody waits for it.
#[derive(Default)]
pub(crate) struct Patient(AtomicU64);

impl Clock for Patient {
    fn now(&self) -> Moment {
        Moment { nanos: self.0.load(Ordering::Relaxed) }
    }

    fn wall(&self) -> WallMillis {
        WallMillis(self.now().nanos / 1_000_000)
    }

    fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
        self.0.fetch_max(deadline.nanos, Ordering::Relaxed);
        Box::pin(async {})
    }
}

/// A document, the session that stores it, and who lacks artifacts from then on.
type Overtaking = (Arc<MemorySession>, Cluster, BTreeSet<NodeId>);

/// What the played nodes do.
#[derive(Default)]
pub(crate) struct Nodes {
    /// The document that was published last, which they follow.
    pub(crate) document: Mutex<Option<Cluster>>,
    /// These do not answer.
    pub(crate) silent: Mutex<BTreeSet<NodeId>>,
    /// Nobody learns of these.
    pub(crate) dead: Mutex<BTreeSet<NodeId>>,
    /// What they went by before the service was restored, if it was.
    pub(crate) adopted: Mutex<Option<Generation>>,
    /// Hints that nodes hold.
    pub(crate) hints: Mutex<BTreeMap<NodeId, u64>>,
    /// These nodes hold none of the listed artifacts; the others hold all.
    pub(crate) lacking: Mutex<BTreeSet<NodeId>>,
    /// A document that another hand stores once nodes have said what they hold of artifacts; these lack them from then on.
    pub(crate) overtaking: Mutex<Option<Overtaking>>,
}

/// Bytes and records of each partition at each node.
const EACH: Size = Size { records: 10, bytes: 1000 };

impl Nodes {
    fn said(&self, cluster: &Cluster, node: NodeId) -> Said {
        let mut facts = NodeFacts {
            incarnation: Some(1),
            adopted: Some((1, self.adopted.lock().unwrap().unwrap_or(cluster.generation))),
            ..NodeFacts::default()
        };
        let mut copied = BTreeMap::new();
        for partition in cluster.ring.partitions() {
            let old = |store: &Store| replicas_before(store, partition).iter().copied().collect();
            let merged: BTreeMap<_, BTreeSet<NodeId>> = cluster
                .stores
                .iter()
                .filter(|store| takes_part(store, partition, node))
                .map(|store| (store.name.clone(), old(store)))
                .collect();
            if !merged.is_empty() {
                let entered = Entered { incarnation: 1, generation: cluster.generation, whole: true, merged };
                facts.entered.insert(partition.id, entered);
                copied.insert(partition.id, EACH);
            }
        }
        let hints = self.hints.lock().unwrap().get(&node).copied().unwrap_or(0);
        Said { facts, copied, hints, ..Said::default() }
    }
}

/// How much a node holds: as much for each of its partitions.
fn size(cluster: &Cluster, node: NodeId) -> Size {
    let partitions = cluster.ring.partitions().iter();
    let held = partitions.filter(|partition| cluster.replicas_in(&partition.nodes).contains(&node)).count();
    Size { records: held as u64 * EACH.records, bytes: held as u64 * EACH.bytes }
}

/// All artifacts, as one node holds them.
fn artifacts(cluster: &Cluster, node: NodeId) -> Vec<(StoreName, artifacts::PushReport)> {
    let listed = cluster.read_only.iter().flat_map(|store| {
        store.artifacts.iter().map(|artifact| {
            let (number, manifest, generation) = (artifact.number, artifact.manifest, cluster.generation);
            (store.name.clone(), artifacts::PushReport { node, generation, number, manifest })
        })
    });
    listed.collect()
}

impl Reports for Nodes {
    fn ask<'a>(&'a self, _: &'a Cluster, ask: &'a Ask) -> BoxFuture<'a, Reported> {
        let cluster = &self.document.lock().unwrap().clone().expect("nobody asks before there is one");
        let silent = self.silent.lock().unwrap().clone();
        let lacking = self.lacking.lock().unwrap().clone();
        let is_dead = |node: NodeId| self.dead.lock().unwrap().contains(&node);
        let say = |&node: &NodeId| {
            if silent.contains(&node) {
                return (node, Err("it is silent".to_owned()));
            }
            let mut said = self.said(cluster, node);
            said.size = ask.sizes.then(|| size(cluster, node));
            if ask.artifacts && !lacking.contains(&node) {
                said.artifacts = artifacts(cluster, node);
            }
            if let Some(other) = ask.signs_of {
                let lasts = Duration::from_secs(if is_dead(other) { 60 } else { 1 });
                said.silent_for.insert(other, Silence { lasts, heard_before: true });
            }
            (node, Ok(said))
        };
        let said = ask.nodes.iter().map(say).collect();
        let listens = ask.signs_of.is_some_and(|node| !is_dead(node));
        let overtaking = if ask.artifacts { self.overtaking.lock().unwrap().take() } else { None };
        Box::pin(async move {
            if let Some((session, document, lacking)) = overtaking {
                documents::publish_cluster(&*session, &document).await.unwrap();
                *self.lacking.lock().unwrap() = lacking;
            }
            Reported { said, listens }
        })
    }
}

/// An answer, as tests look at it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) done: bool,
    pub(crate) plan: Option<u64>,
    /// Its code and facts.
    pub(crate) text: String,
}

impl From<OrderOutcome> for Told {
    fn from(answer: OrderOutcome) -> Told {
        Told { done: answer.is_done(), plan: answer.plan(), text: format!("{answer:?}") }
    }
}

/// A cluster of played nodes, and the sessions of a command and of the nodes.
pub(crate) struct World {
    pub(crate) service: MemoryService,
    pub(crate) session: Arc<MemorySession>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) clock: Arc<Patient>,
    /// Every cluster document that was published, with the time.
    pub(crate) published: Arc<Mutex<Vec<(Moment, Cluster)>>>,
}

pub(crate) const PARTITIONS: usize = 32;

pub(crate) fn node(id: u32) -> Node {
    Node::new(NodeId(id), Zone("a".to_owned()), format!("127.0.0.1:{}", 7400 + id), None)
}

impl World {
    /// Of `count` nodes, all of them members that are registered.
    pub(crate) async fn of(count: u32) -> World {
        let service = MemoryService::new();
        let (clock, published) = (Arc::new(Patient::default()), Arc::new(Mutex::new(Vec::new())));
        let (told, time, nodes) = (published.clone(), clock.clone(), Arc::<Nodes>::default());
        let adopting = nodes.clone();
        service.observe(move |path, data| {
            if *path == cluster_path() {
                let cluster: Cluster = serde_json::from_slice(data).unwrap();
                *adopting.document.lock().unwrap() = Some(cluster.clone());
                told.lock().unwrap().push((time.now(), cluster));
            }
        });
        let session = Arc::new(service.open());
        let members: Vec<Node> = (1..=count).map(node).collect();
        let numbers = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
        let blueprint = Blueprint {
            partitions: PARTITIONS,
            buckets: BUCKETS_DEFAULT,
            policy: Policy {
                mode: Mode::Off,
                settings: Settings { join: Join::Auto, ..Settings::default() },
                ..Policy::founded(0)
            },
            ..Blueprint::new("shop", members, numbers).unwrap()
        };
        create(&*session, &blueprint).await.unwrap();
        let world = World { service, session, nodes, clock, published };
        for id in 1..=count {
            world.register(id).await;
        }
        world
    }

    /// A node registers.
    pub(crate) async fn register(&self, id: u32) {
        register(&*self.session, &ActiveNode::new(node(id), 1)).await.unwrap();
    }

    /// A node's registration ends.
    pub(crate) async fn unregister(&self, id: u32) {
        self.session.delete(&active_node_path(NodeId(id)), Expected::Any).await.unwrap();
    }

    /// A process that takes the office, with its own session.
    pub(crate) fn office(&self) -> Office {
        let service: Arc<dyn CoordinationService> = Arc::new(self.service.open());
        Office::new(service, self.clock.clone(), self.nodes.clone())
    }

    pub(crate) async fn cluster(&self) -> Cluster {
        read_cluster(&*self.session).await.unwrap().unwrap()
    }

    pub(crate) async fn plan(&self, number: u64) -> Planned {
        plans::read(&*self.session, number).await.unwrap().unwrap()
    }

    /// Gives an order without waiting for its answer.
    pub(crate) async fn give(&self, order: Order) -> u64 {
        orders::give(&*self.session, order, "test", 0).await.unwrap()
    }

    /// Gives an order, lets the headmaster take turns until it is answered, and no longer.
    pub(crate) async fn order(&self, office: &mut Office, order: Order) -> Told {
        let number = self.give(order).await;
        for _ in 0..20 {
            turn(office).await;
            if let Some(told) = self.told(number).await {
                return told;
            }
        }
        panic!("the order was not answered");
    }

    /// What came of an order so far.
    pub(crate) async fn told(&self, number: u64) -> Option<Told> {
        let given = orders::read(&*self.session, number).await.unwrap().unwrap();
        given.document.answer.map(Told::from)
    }

    /// Checks all documents that were published: generations without a gap, not too fast, no step left out, and every
    /// partition with its replicas.
    pub(crate) fn judge(&self) {
        let published = self.published.lock().unwrap();
        for pair in published.windows(2) {
            let ((earlier, before), (later, after)) = (&pair[0], &pair[1]);
            assert_eq!(after.generation.0, before.generation.0 + 1);
            if before.generation.0 > 1 {
                let pause = later.since(*earlier);
                assert!(pause >= Duration::from_millis(500), "{pause:?} before {:?}", after.generation);
            }
            for (old, new) in before.ring.partitions().iter().zip(after.ring.partitions()) {
                assert!(new.reading().len() >= 3, "{new:?}");
                assert!(follows(old, new), "{old:?} then {new:?}");
            }
        }
    }
}

fn follows(old: &Partition, new: &Partition) -> bool {
    let replicas = |nodes: &[NodeId]| nodes[..3].iter().copied().collect::<BTreeSet<_>>();
    match (old.step(), new.step()) {
        (before, after) if before == after && old.nodes == new.nodes && old.coming == new.coming => true,
        (None, None) => replicas(&old.nodes) == replicas(&new.nodes),
        (None, Some(Step::Copying)) | (Some(Step::Copying), Some(Step::Joint)) => old.nodes == new.nodes,
        (Some(Step::Copying | Step::Joint), None) => old.nodes == new.nodes,
        (Some(Step::Joint), Some(Step::ReadingNew)) => old.nodes == new.nodes,
        (Some(Step::ReadingNew), Some(Step::ReadingNew)) => old.nodes == new.coming.as_ref().unwrap().nodes,
        (Some(Step::ReadingNew), None) => new.nodes == old.coming.as_ref().unwrap().nodes,
        _ => false,
    }
}

/// A turn of a headmaster; whether it changed something, or was overtaken.
pub(crate) async fn turn(office: &mut Office) -> bool {
    match office.turn().await.unwrap() {
        Turned::Changed | Turned::Overtaken | Turned::Rested(Again::Now | Again::Paced(_)) => true,
        Turned::Rested(_) => false,
    }
}

/// Turns until nothing is due.
pub(crate) async fn settle(office: &mut Office) {
    for _ in 0..200 {
        if !turn(office).await {
            return;
        }
    }
    panic!("the headmaster does not come to rest");
}

/// Writes a cluster document past every headmaster.
pub(crate) async fn publish(world: &World, change: impl Fn(&mut Cluster)) {
    let mut cluster = world.cluster().await;
    cluster.generation.0 += 1;
    change(&mut cluster);
    documents::publish_cluster(&*world.session, &cluster).await.unwrap();
}

/// The service loses all orders, as one that was restored may have.
pub(crate) async fn forget_orders(world: &World) {
    use coordination::documents::numbered::{numbered_path, numbers, orders_path};
    for number in numbers(&*world.session, &orders_path()).await.unwrap() {
        world.session.delete(&numbered_path(&orders_path(), number), Expected::Any).await.unwrap();
    }
}
