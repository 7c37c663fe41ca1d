//! Whose a data directory is, and under which incarnation it stamps.

use std::sync::Arc;

use coordination::memory::MemoryService;
use coordination::{CoordinationService, Expected, documents};
use model::{Epoch, Node as Member, NodeId, Zone};
use node::engines::MemoryEngines;
use node::{IdentityError, Node, NodeConfig, StartError};
use runtime::disk::simulated::SimulatedDisk;
use runtime::{Disk, Ports};

use crate::support::publish;

async fn start(disk: &Arc<SimulatedDisk>, id: u32, service: &MemoryService) -> Result<Arc<Node>, StartError> {
    let members = [1, 2].map(|id| Member {
        id: NodeId(id),
        zone: Zone("a".to_owned()),
        native: format!("127.0.0.1:{id}"),
        resp: None,
    });
    publish(service, members.to_vec()).await;
    let config = NodeConfig::new(NodeId(id), "test");
    let ports = Ports::os().unwrap();
    Node::start(config, ports, disk.clone(), Arc::new(MemoryEngines), Arc::new(service.open())).await
}

fn write_identity(disk: &SimulatedDisk, text: &str) {
    // What a test plants replaces what is there.
    let _ = disk.remove("identity");
    disk.create("identity").unwrap().append(text.as_bytes()).unwrap();
}

#[tokio::test]
async fn a_clean_stop_keeps_the_incarnation_and_any_other_end_takes_a_new_one() {
    let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
    let node = start(&disk, 1, &service).await.unwrap();
    let first = node.incarnation();
    node.stop().await.unwrap();
    drop(node);
    let node = start(&disk, 1, &service).await.unwrap();
    assert_eq!(node.incarnation(), first);
    drop(node);
    let node = start(&disk, 1, &service).await.unwrap();
    assert!(node.incarnation() > first, "the process ended without a clean stop");
}

#[tokio::test]
async fn a_directory_of_another_node_a_newer_version_or_a_damaged_one_is_refused() {
    let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
    start(&disk, 1, &service).await.unwrap().stop().await.unwrap();
    let refusal = |answer: Result<Arc<Node>, StartError>| match answer {
        Err(StartError::Identity(error)) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it started"),
    };
    let foreign = refusal(start(&disk, 2, &service).await);
    assert!(matches!(foreign, IdentityError::Foreign { found_node: NodeId(1), .. }), "{foreign}");
    write_identity(&disk, "tontine-identity 9\nsomething new\n");
    let newer = refusal(start(&disk, 1, &service).await);
    assert!(matches!(newer, IdentityError::Newer { found: 9 }), "{newer}");
    for damaged in ["", "tontine-identity 1\nnode 1\n", "tontine-identity 1\nnode 1\nchecksum 00\n"] {
        write_identity(&disk, damaged);
        let error = refusal(start(&disk, 1, &service).await);
        assert!(matches!(error, IdentityError::Damaged { .. }), "{damaged:?}: {error}");
    }
}

#[tokio::test]
async fn a_directory_in_use_and_a_second_node_with_one_id_are_refused() {
    let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
    let running = start(&disk, 1, &service).await.unwrap();
    let error = start(&disk, 1, &service).await.err().unwrap();
    assert!(matches!(error, StartError::Identity(IdentityError::InUse)), "{error}");
    running.stop().await.unwrap();
}

/// The service once fell silent between saying that the node had lost its disk and saying which epoch was completed: the
/// directory was begun without an epoch, and refused as a copy of earlier days ever after.
#[tokio::test]
async fn an_outage_in_the_middle_of_a_start_leaves_a_directory_that_can_be_started() {
    let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
    start(&disk, 1, &service).await.unwrap().stop().await.unwrap();
    let (session, path) = (service.open(), documents::epochs_path());
    let epoch = documents::open_epoch(&session, Epoch(6)).await.unwrap();
    documents::complete_epoch(&session, epoch).await.unwrap();
    let epochs = session.get(&path).await.unwrap().data;
    disk.wipe();
    // What is no answer stands for none: the rest of the service still answers.
    session.set(&path, "nothing".into(), Expected::Any).await.unwrap();
    let refused = start(&disk, 1, &service).await.err().unwrap();
    assert!(matches!(refused, StartError::EpochUnknown { .. }), "{refused}");
    session.set(&path, epochs, Expected::Any).await.unwrap();
    for _ in 0..2 {
        let node = start(&disk, 1, &service).await.unwrap();
        let epochs = node.replica().epochs();
        assert!(epochs.is_compared());
        assert_eq!(epochs.tag(), epoch);
        node.stop().await.unwrap();
    }
}
