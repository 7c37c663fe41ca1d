//! Nodes that wait to be named, and nodes that come back at another address.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use coordination::address::Places;
use coordination::documents::{self, ActiveNode, active_node_path};
use coordination::memory::{MemoryService, MemorySession};
use coordination::migrate::{Ends, migrate};
use coordination::{CoordinationService, Expected, SessionId};
use model::order::{Done, Order, OrderOutcome};
use model::{Cluster, Node as Member, NodeId, Zone};
use node::engines::MemoryEngines;
use node::waiting::{Applicant, Waits};
use node::{Advertised, Directory, Node, NodeConfig, StartError};
use parking_lot::Mutex;
use runtime::Ports;
use runtime::disk::simulated::SimulatedDisk;

use crate::support::publish;

fn member(id: u32, native: &str) -> Member {
    Member::new(NodeId(id), Zone("a".to_owned()), native, None)
}

/// The service to which the documents may move, if it answers.
#[derive(Clone, Default)]
struct Elsewhere(Arc<Mutex<Option<MemoryService>>>);

impl fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Elsewhere")
    }
}

impl Places for Elsewhere {
    fn open_at<'me, 'text, 'both>(
        &'me self,
        address: &'text str,
    ) -> Pin<Box<dyn Future<Output = Result<Session, String>> + Send + 'both>>
    where
        'me: 'both,
        'text: 'both,
    {
        assert_eq!(address, "new");
        let service = self.0.lock().clone();
        Box::pin(async move {
            let service = service.ok_or("it does not answer")?;
            Ok(Arc::new(service.open()) as Session)
        })
    }

    fn user(&self) -> String {
        String::new()
    }

    fn address(&self) -> String {
        "here".to_owned()
    }
}

type Session = Arc<dyn CoordinationService>;

/// Registers a node, and waits until it is named; also hands out the session that it has then.
async fn apply(
    session: MemorySession,
    active: &ActiveNode,
    disk: &SimulatedDisk,
    places: &Elsewhere,
    tell: &mut (dyn FnMut(&Waits) + Send),
) -> (Result<Cluster, StartError>, Session) {
    let ports = Ports::os().unwrap();
    let directory = Directory::open(Arc::new(disk.clone())).unwrap();
    let mut session: Session = Arc::new(session);
    let applicant = Applicant { ports: &ports, active, directory: &directory, places };
    (applicant.until_named(&mut session, tell).await, session)
}

async fn owner_other_than(observer: &MemorySession, ended: Option<SessionId>) -> SessionId {
    loop {
        if let Ok(found) = observer.get(&active_node_path(NodeId(4))).await
            && found.stat.owner != ended
        {
            return found.stat.owner.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Names nodes in the cluster document, as a headmaster does.
async fn name_all(session: &MemorySession, registered: &[ActiveNode]) {
    let mut cluster = documents::read_cluster(session).await.unwrap().unwrap();
    let new = registered.iter().filter(|active| cluster.node(active.node.id).is_none());
    let new: Vec<_> = new.map(|active| active.node.clone()).collect();
    cluster.nodes.extend(new);
    cluster.nodes.sort_by_key(|node| node.id);
    cluster.generation.0 += 1;
    cluster.nodes_changed = cluster.generation;
    documents::publish_cluster(session, &cluster).await.unwrap();
}

#[tokio::test]
async fn a_node_that_waits_stays_registered_through_lost_sessions_until_it_is_named() {
    let service = MemoryService::new();
    let (observer, predecessor) = (service.open(), service.open());
    let active = ActiveNode::new(member(4, "h4:1"), 17);
    // The process before it was killed at another address.
    let before = ActiveNode::new(member(4, "h0:1"), 17);
    documents::register(&predecessor, &before).await.unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (session, heard, applicant) = (service.open(), told.clone(), active.clone());
    let waits = tokio::spawn(async move {
        let mut tell = |waits: &Waits| heard.lock().push(waits.clone());
        apply(session, &applicant, &SimulatedDisk::new(1), &Elsewhere::default(), &mut tell).await
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    service.kill(predecessor.session());
    let first = owner_other_than(&observer, Some(predecessor.session())).await;
    while told.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    publish(&service, vec![member(1, "h1:1")]).await;
    service.kill(first);
    owner_other_than(&observer, Some(first)).await;
    while !matches!(told.lock().last(), Some(Waits::ToBeNamed { cluster, .. }) if cluster == "test") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let registered = documents::active_nodes(&observer).await.unwrap().0;
    name_all(&observer, &registered).await;
    let (cluster, _session) = waits.await.unwrap();
    let cluster = cluster.unwrap();
    assert_eq!(cluster.node(NodeId(4)), Some(&active.node));
    let told = told.lock();
    assert_eq!(told.first(), Some(&Waits::ForCluster), "{told:?}");
    assert!(told.iter().any(|waits| matches!(waits, Waits::ForService { .. })), "{told:?}");
}

#[tokio::test]
async fn an_id_that_another_directory_has_is_refused_at_once() {
    let service = MemoryService::new();
    let other = service.open();
    documents::register(&other, &ActiveNode::new(member(4, "h4:1"), 16)).await.unwrap();
    let active = ActiveNode::new(member(4, "h4:1"), 17);
    let (disk, nowhere) = (SimulatedDisk::new(1), Elsewhere::default());
    let (refused, _) = apply(service.open(), &active, &disk, &nowhere, &mut |_| ()).await;
    assert!(matches!(refused, Err(StartError::Register(_))), "another directory has the id");
}

/// Nodes that were started at once took the same free port, and the cluster could not be created.
#[tokio::test]
async fn the_later_of_two_nodes_with_one_address_withdraws_its_registration() {
    let service = MemoryService::new();
    let first = service.open();
    // The lower id says nothing: it came later.
    documents::register(&first, &ActiveNode::new(member(4, "h:7401"), 1)).await.unwrap();
    let later = ActiveNode::new(member(3, "h:7401"), 2);
    let (disk, nowhere) = (SimulatedDisk::new(1), Elsewhere::default());
    let (refused, session) = apply(service.open(), &later, &disk, &nowhere, &mut |_| ()).await;
    let Err(StartError::AddressTaken(taken)) = refused else { panic!("{refused:?}") };
    assert_eq!((taken.node, taken.other, &*taken.address), (NodeId(3), NodeId(4), "h:7401"));
    let registered = documents::active_nodes_now(&*session).await.unwrap();
    assert_eq!(registered.iter().map(|active| active.node.id).collect::<Vec<_>>(), [NodeId(4)]);
    // What was free at another port is named beside the first.
    publish(&service, vec![member(3, "h:7402"), member(4, "h:7401")]).await;
    let elsewhere = ActiveNode::new(member(3, "h:7402"), 2);
    let (named, _) = apply(service.open(), &elsewhere, &disk, &nowhere, &mut |_| ()).await;
    assert!(named.is_ok(), "{named:?}");
}

/// It waited for ever at the place that the documents had left.
#[tokio::test]
async fn a_waiting_node_follows_the_documents_to_another_service_and_is_named_there() {
    let (old, new) = (MemoryService::new(), MemoryService::new());
    publish(&old, vec![member(1, "h1:1")]).await;
    let elsewhere = Elsewhere(Arc::new(Mutex::new(Some(new.clone()))));
    let active = ActiveNode { follows_as: Some(String::new()), ..ActiveNode::new(member(4, "h4:1"), 17) };
    let told = Arc::new(Mutex::new(Vec::new()));
    let (session, heard, applicant, places) = (old.open(), told.clone(), active.clone(), elsewhere.clone());
    let disk = SimulatedDisk::new(1);
    let kept = disk.clone();
    let waits = tokio::spawn(async move {
        let mut tell = |waits: &Waits| heard.lock().push(waits.clone());
        apply(session, &applicant, &kept, &places, &mut tell).await
    });
    while !matches!(told.lock().last(), Some(Waits::ToBeNamed { cluster, .. }) if cluster == "test") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The first time that it looks, the new place does not answer.
    elsewhere.0.lock().take();
    let (from, to) = (old.open(), new.open());
    let (from_address, to_address) = ("old".to_owned(), "new".to_owned());
    let ends = Ends { from: &from, from_address, to: &to, to_address, user: String::new() };
    let done = migrate(&ends, "1").await.unwrap();
    assert_eq!(done.following.iter().map(|active| active.node.id).collect::<Vec<_>>(), [NodeId(4)]);
    while !matches!(told.lock().last(), Some(Waits::ForService { .. })) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    elsewhere.0.lock().replace(new.clone());
    while told.lock().iter().rev().nth(1) != Some(&Waits::Moved { to: "new".to_owned() }) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(documents::active_nodes_now(&from).await.unwrap().is_empty(), "it left the old place");
    for left in ["old", "here"] {
        assert_eq!(node::service_moved::recall(&disk, left), Some("new".to_owned()), "its directory knows");
    }
    let registered = documents::active_nodes_now(&to).await.unwrap();
    name_all(&to, &registered).await;
    let (cluster, session) = waits.await.unwrap();
    assert_eq!(cluster.unwrap().node(NodeId(4)), Some(&active.node));
    assert_eq!(documents::active_nodes_now(&*session).await.unwrap(), [active]);
}

async fn start_at(
    service: &MemoryService,
    disk: &Arc<SimulatedDisk>,
    native: &str,
) -> Result<Arc<Node>, StartError> {
    let mut config = NodeConfig::new(NodeId(1), "test");
    let native = native.to_owned();
    config.member.advertised = Some(Advertised { native, resp: None, http: None, tls: false });
    let engines = Arc::new(MemoryEngines);
    Node::start(config, Ports::os().unwrap(), disk.clone(), engines, Arc::new(service.open())).await
}

/// It was refused as if it could never start, so a supervisor gave up.
#[tokio::test]
async fn a_start_refused_because_of_a_killed_start_may_be_retried() {
    let service = MemoryService::new();
    publish(&service, vec![member(1, "h1:1")]).await;
    for fresh in [true, false] {
        let disk = Arc::new(SimulatedDisk::new(1));
        if !fresh {
            start_at(&service, &disk, "h1:1").await.unwrap().stop().await.unwrap();
        }
        let killed = service.open();
        documents::register(&killed, &ActiveNode::new(member(1, "h1:1"), u64::MAX)).await.unwrap();
        let refused = start_at(&service, &disk, "h1:1").await.err().unwrap();
        assert!(matches!(refused, StartError::Register(_)) && refused.is_passing(), "{refused}");
        service.kill(killed.session());
        start_at(&service, &disk, "h1:1").await.unwrap().stop().await.unwrap();
    }
}

/// A node that waited, whose session ended while the service was away, once went on under that session for ever.
#[tokio::test]
async fn a_waiting_node_opens_another_session_after_an_outage_of_the_service() {
    let service = MemoryService::new();
    let (observer, session) = (service.open(), service.open());
    service.set_available(false);
    service.kill(session.session());
    let active = ActiveNode::new(member(4, "h4:1"), 17);
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    let waits = tokio::spawn(async move {
        let mut tell = |waits: &Waits| heard.lock().push(waits.clone());
        apply(session, &active, &SimulatedDisk::new(1), &Elsewhere::default(), &mut tell).await
    });
    while told.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    service.set_available(true);
    owner_other_than(&observer, None).await;
    waits.abort();
}

/// Waits until the node has ordered its address, where the document does not say it, and carries that out as a headmaster
/// does; then until the node follows it.
async fn address_becomes(observer: &MemorySession, node: &Node, native: &str) {
    loop {
        let mut cluster = documents::read_cluster(observer).await.unwrap().unwrap();
        let entry = cluster.nodes.iter_mut().find(|entry| entry.id == node.id()).unwrap();
        if entry.native == native {
            break;
        }
        if let Some(given) =
            documents::orders::oldest_waiting(observer, &mut Default::default()).await.unwrap()
            && let Order::Readdress { native: ordered, .. } = &given.document.order
        {
            assert_eq!(ordered, native);
            entry.native.clone_from(ordered);
            cluster.generation.0 += 1;
            let (done, generation) = (Done::NodeReaddressed { node: node.id() }, cluster.generation);
            documents::publish_cluster(observer, &cluster).await.unwrap();
            let answer = OrderOutcome::Done { done, plan: None, generation };
            documents::orders::answer(observer, given.number, &answer).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    while node.replica().view().get().cluster().node(NodeId(1)).unwrap().native != native {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(documents::active_nodes(observer).await.unwrap().0[0].node.native, native);
}

#[tokio::test]
async fn a_node_that_comes_back_elsewhere_orders_its_address_even_after_an_outage() {
    let service = MemoryService::new();
    publish(&service, vec![member(1, "h1:1"), member(2, "h2:1")]).await;
    let (observer, disk) = (service.open(), Arc::new(SimulatedDisk::new(1)));
    for native in ["h1:1", "elsewhere:1"] {
        let node = start_at(&service, &disk, native).await.unwrap();
        address_becomes(&observer, &node, native).await;
        node.stop().await.unwrap();
    }
    let refused = start_at(&service, &disk, "h2:1").await.err();
    assert!(matches!(refused, Some(StartError::AddressTaken(_))), "{refused:?}");
    assert!(documents::active_nodes(&observer).await.unwrap().0.is_empty(), "it did not even register");
    service.set_available(false);
    let node = start_at(&service, &disk, "third:1").await.unwrap();
    service.set_available(true);
    address_becomes(&observer, &node, "third:1").await;
    node.stop().await.unwrap();
}

/// The service was restored from an older copy. A headmaster looked for the node at the address of that copy, learned
/// of no newer document, and wrote the new address over the older one.
#[tokio::test]
async fn a_node_that_follows_a_newer_document_than_the_stored_one_orders_no_address() {
    let service = MemoryService::new();
    publish(&service, vec![member(1, "h1:1")]).await;
    let (observer, disk) = (service.open(), Arc::new(SimulatedDisk::new(1)));
    let backup = observer.get(&documents::cluster_path()).await.unwrap();
    let mut newer = documents::read_cluster(&observer).await.unwrap().unwrap();
    newer.generation.0 += 1;
    documents::publish_cluster(&observer, &newer).await.unwrap();
    start_at(&service, &disk, "h1:1").await.unwrap().stop().await.unwrap();
    observer.set(&documents::cluster_path(), backup.data, Expected::Any).await.unwrap();
    let node = start_at(&service, &disk, "elsewhere:1").await.unwrap();
    // It looks once a second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let ordered = documents::orders::oldest_waiting(&observer, &mut Default::default()).await;
    assert_eq!(ordered, Ok(None));
    documents::publish_cluster(&observer, &newer).await.unwrap();
    address_becomes(&observer, &node, "elsewhere:1").await;
    node.stop().await.unwrap();
}
