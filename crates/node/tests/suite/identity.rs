//! Whose a data directory is, and under which incarnation it stamps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coordination::memory::{MemoryFaults, MemoryService};
use coordination::{CoordinationService, Expected, documents};
use model::{Epoch, Node as Member, NodeId, Zone};
use node::engines::{Engines, LogEngines, MemoryEngines};
use node::{IdentityError, Node, NodeConfig, StartError};
use runtime::disk::simulated::{DiskOperation, Fault, SimulatedDisk};
use runtime::{Disk, Ports};
use storage::{Durability, LogOptions};

use crate::support::{order, publish};

fn members() -> Vec<Member> {
    let member = |id| Member::new(NodeId(id), Zone("a".to_owned()), format!("127.0.0.1:{id}"), None);
    [1, 2].map(member).to_vec()
}

async fn start(disk: &Arc<SimulatedDisk>, id: u32, service: &MemoryService) -> Result<Arc<Node>, StartError> {
    start_with(disk, id, service, Arc::new(MemoryEngines)).await
}

async fn start_logging(disk: &Arc<SimulatedDisk>, service: &MemoryService) -> Result<Arc<Node>, StartError> {
    let options = LogOptions { durability: Durability::Always, reserve_bytes: 0, ..LogOptions::default() };
    let engines = LogEngines { disk: disk.clone(), options, ports: Ports::os().unwrap() };
    start_with(disk, 1, service, Arc::new(engines)).await
}

async fn start_with(
    disk: &Arc<SimulatedDisk>,
    id: u32,
    service: &MemoryService,
    engines: Arc<dyn Engines>,
) -> Result<Arc<Node>, StartError> {
    publish(service, members()).await;
    let config = NodeConfig::new(NodeId(id), "test");
    let ports = Ports::os().unwrap();
    Node::start(config, ports, disk.clone(), engines, Arc::new(service.open())).await
}

/// Ends the process of a node, and only that.
fn end(disk: &SimulatedDisk, node: Arc<Node>) {
    drop(node);
    disk.kill();
}

fn kinds(node: &Node) -> Vec<&'static str> {
    node.events().after(0, 100).into_iter().map(|recorded| recorded.event.kind()).collect()
}

/// Waits until the node knows what it holds.
async fn refilled(node: &Node) {
    while node.antientropy().report().refill.is_some_and(|refill| refill.is_under_way()) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Writes a key into the first store, durably.
async fn write(node: &Node, key: &[u8]) {
    refilled(node).await;
    let view = node.replica().view().get();
    let store = view.store("default").unwrap();
    let stamped = store.stamp(view.route(store, key).place, key, order("v", None)).unwrap();
    store.engine().sync().await.unwrap();
    drop(stamped);
}

fn holds(node: &Node, key: &[u8]) -> bool {
    let view = node.replica().view().get();
    let store = view.store("default").unwrap();
    store.get(view.route(store, key).place, key).is_ok_and(|set| !set.is_empty())
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
async fn a_directory_of_another_node_another_version_or_a_damaged_one_is_refused() {
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
    write_identity(&disk, "tontine-identity 1\nsomething old\n");
    let earlier = refusal(start(&disk, 1, &service).await);
    assert!(matches!(earlier, IdentityError::Earlier { found: 1 }), "{earlier}");
    for damaged in ["", "tontine-identity 2\nnode 1\n", "tontine-identity 2\nnode 1\nchecksum 00\n"] {
        write_identity(&disk, damaged);
        let error = refusal(start(&disk, 1, &service).await);
        assert!(matches!(error, IdentityError::Damaged { .. }), "{damaged:?}: {error}");
    }
}

#[tokio::test]
async fn an_engine_without_persistence_is_refused_a_directory_that_holds_records() {
    let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
    let node = start_logging(&disk, &service).await.unwrap();
    write(&node, b"k").await;
    end(&disk, node);
    let refused = start(&disk, 1, &service).await.err().expect("a memory engine started over a log");
    assert!(matches!(refused, StartError::Identity(IdentityError::OtherEngine { .. })), "{refused}");
    let node = start_logging(&disk, &service).await.unwrap();
    assert!(holds(&node, b"k"), "the refusal took something away");
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
async fn an_outage_in_the_middle_of_a_start_leaves_a_usable_directory() {
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

/// The service once had only to be silent when it was asked about the past, and to answer a little later: a node whose
/// disk was lost passed for a new one, fetched nothing, and wrote over what would have told.
#[tokio::test]
async fn a_start_is_refused_until_it_is_known_whether_the_disk_was_lost() {
    let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
    start(&disk, 1, &service).await.unwrap().stop().await.unwrap();
    let (session, path) = (service.open(), documents::member_path(NodeId(1)));
    let member = session.get(&path).await.unwrap().data;
    disk.wipe();
    session.set(&path, "nothing".into(), Expected::Any).await.unwrap();
    let refused = start(&disk, 1, &service).await.err().unwrap();
    assert!(matches!(refused, StartError::PastUnknown { .. }), "{refused}");
    session.set(&path, member.clone(), Expected::Any).await.unwrap();
    let node = start(&disk, 1, &service).await.unwrap();
    assert_ne!(session.get(&path).await.unwrap().data, member, "it is another incarnation");
    node.stop().await.unwrap();
}

/// A session that is new may read from a server that lags behind. A node that asked about its past there, and wrote
/// afterwards, once passed for a new one though its disk was lost.
#[tokio::test]
async fn a_lost_disk_is_recognised_even_if_the_asked_server_lags_behind() {
    let (mut refused, mut started) = (0, 0);
    for seed in 0..100 {
        let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
        publish(&service, members()).await;
        let (behind_max, behind_at_first) = (1000, true);
        service.set_faults(MemoryFaults { seed, behind_max, behind_at_first, ..MemoryFaults::default() });
        start(&disk, 1, &service).await.unwrap().stop().await.unwrap();
        disk.wipe();
        let node = loop {
            match start(&disk, 1, &service).await {
                Ok(node) => break node,
                Err(error) => {
                    assert!(matches!(error, StartError::PastChanged { .. }) && error.is_passing(), "{error}");
                    assert!(disk.contents("identity").is_none(), "a start that is refused begins nothing");
                    refused += 1;
                }
            }
        };
        assert!(kinds(&node).contains(&"disk-lost"), "seed {seed}: {:?}", kinds(&node));
        started += 1;
        node.stop().await.unwrap();
    }
    assert!(refused >= 5 && started == 100, "{refused} times the server lagged behind");
}

/// It once mistook the traces of its own start for another process: two nodes with one id.
#[tokio::test]
async fn a_start_recognises_the_registration_of_a_killed_earlier_start() {
    let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
    end(&disk, start_logging(&disk, &service).await.unwrap());
    let session = Arc::new(service.open());
    let starting = |session| {
        let options =
            LogOptions { durability: Durability::Always, reserve_bytes: 0, ..LogOptions::default() };
        let engines = LogEngines { disk: disk.clone(), options, ports: Ports::os().unwrap() };
        let config = NodeConfig::new(NodeId(1), "test");
        Node::start(config, Ports::os().unwrap(), disk.clone(), Arc::new(engines), session)
    };
    disk.inject(Fault { path_part: "identity".to_owned(), ..Fault::next(DiskOperation::Rename, 1) });
    let ended = starting(session.clone()).await.err().unwrap();
    assert!(matches!(ended, StartError::Identity(IdentityError::Disk(_))), "{ended}");
    disk.clear_faults();
    disk.kill();
    let registered = documents::active_nodes_now(&*session).await.unwrap();
    assert_eq!(registered.len(), 1, "its session outlives it");
    let ends = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        service.kill(session.session());
    };
    let (node, ()) = tokio::join!(starting(Arc::new(service.open())), ends);
    node.unwrap().stop().await.unwrap();
}

/// A copy of a directory passes for it only where nobody knows better: not where a session ends as the node asks, nor
/// where the first answer is an old one.
#[tokio::test]
async fn an_older_copy_is_recognised_whatever_happens_to_the_sessions() {
    for seed in 0..20 {
        let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
        publish(&service, members()).await;
        let faults = MemoryFaults {
            seed,
            lost_per_mille: 150,
            indeterminate_per_mille: 100,
            behind_max: 1000,
            behind_at_first: true,
        };
        service.set_faults(faults);
        let told = Arc::new(AtomicU64::new(0));
        let (hears, path) = (told.clone(), documents::member_path(NodeId(1)));
        service.observe(move |written, data| {
            if *written == path {
                let member: documents::Member = serde_json::from_slice(data).unwrap();
                hears.store(member.incarnation, Ordering::Relaxed);
            }
        });
        let started = || async {
            loop {
                match start_logging(&disk, &service).await {
                    Ok(node) => break node,
                    Err(error) => assert!(error.is_passing(), "seed {seed}: {error}"),
                }
            }
        };
        end(&disk, started().await);
        let copy = disk.files();
        loop {
            let node = started().await;
            let is_told = told.load(Ordering::Relaxed) == node.incarnation();
            end(&disk, node);
            if is_told {
                break;
            }
        }
        assert!(disk.contents("refill").is_none(), "nothing is lost so far");
        disk.wipe();
        copy.iter().for_each(|(path, contents)| disk.plant(path, contents));
        let node = started().await;
        // A start that noticed it, remembered what is lost, and failed then, leaves that to the next one.
        let known = ["rollback-noticed", "refill-started"];
        let is_known =
            disk.contents("refill").is_some() || kinds(&node).iter().any(|kind| known.contains(kind));
        assert!(is_known, "seed {seed}: {:?}", kinds(&node));
        end(&disk, node);
    }
}

/// Once, a store whose directory was gone passed for an empty one, after a clean stop even with the hash trees of what
/// was not there.
#[tokio::test]
async fn a_store_or_hints_without_their_directory_are_lost_and_the_event_names_them() {
    for (lost, told) in [("stores/default/", "store-lost"), ("hints/", "hints-lost")] {
        for clean in [true, false] {
            let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
            let node = start_logging(&disk, &service).await.unwrap();
            let first = node.incarnation();
            write(&node, b"k").await;
            if clean {
                node.stop().await.unwrap();
            }
            end(&disk, node);
            for (path, _) in disk.files().iter().filter(|(path, _)| path.starts_with(lost)) {
                disk.remove(path).unwrap();
            }
            let node = start_logging(&disk, &service).await.unwrap();
            let found = kinds(&node);
            assert!(found.contains(&told) && !found.contains(&"disk-lost"), "{lost}: {found:?}");
            assert!(node.incarnation() > first, "what it stamped may be out there");
            assert_eq!(node.antientropy().report().refill.is_some(), told == "store-lost", "{lost}");
            assert_eq!(holds(&node, b"k"), told == "hints-lost");
            node.stop().await.unwrap();
            end(&disk, node);
            let found = kinds(&start_logging(&disk, &service).await.unwrap());
            assert!(!found.contains(&told), "it is told once: {found:?}");
        }
    }
}

#[tokio::test]
async fn a_store_that_belongs_to_another_directory_is_set_aside() {
    let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
    let other = Arc::new(SimulatedDisk::new(1));
    let node = start_logging(&other, &MemoryService::new()).await.unwrap();
    write(&node, b"theirs").await;
    end(&other, node);
    let node = start_logging(&disk, &service).await.unwrap();
    write(&node, b"ours").await;
    end(&disk, node);
    let of_the_store = |disk: &SimulatedDisk| -> Vec<(String, Vec<u8>)> {
        disk.files().into_iter().filter(|(path, _)| path.starts_with("stores/default/")).collect()
    };
    of_the_store(&disk).iter().for_each(|(path, _)| disk.remove(path).unwrap());
    of_the_store(&other).iter().for_each(|(path, bytes)| disk.plant(path, bytes));
    let node = start_logging(&disk, &service).await.unwrap();
    let found = kinds(&node);
    assert!(found.contains(&"store-lost") && found.contains(&"contents-set-aside"), "{found:?}");
    assert!(found.contains(&"only-copy-set-aside"), "the store has one replica: {found:?}");
    assert!(!holds(&node, b"theirs") && !holds(&node, b"ours"));
    let aside = format!("set-aside-{}/stores/default/FORMAT", node.incarnation());
    assert!(disk.contents(&aside).is_some(), "{aside}");
}

/// Nothing once brought back what was set aside of a store with one replica: moved to its place it was set aside again.
/// Wherever the process or the power ends meanwhile, the next start goes on, and nothing is lost.
#[tokio::test]
async fn a_store_with_one_replica_that_was_set_aside_can_be_brought_back_wherever_the_start_ends() {
    for cut in [false, true] {
        for operations in 0.. {
            let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
            let node = start_logging(&disk, &service).await.unwrap();
            write(&node, b"old").await;
            node.stop().await.unwrap();
            end(&disk, node);
            disk.remove("identity").unwrap();
            let node = start_logging(&disk, &service).await.unwrap();
            write(&node, b"since").await;
            assert!(!holds(&node, b"old"));
            let aside = format!("set-aside-{}/stores/default", node.incarnation());
            node.stop().await.unwrap();
            end(&disk, node);
            disk.rename(&aside, "bring-back/stores/default").unwrap();
            let aside = aside.strip_suffix("/default").unwrap();
            for directory in [aside, "bring-back/stores", "bring-back", ""] {
                disk.sync_directory(directory).await.unwrap();
            }

            disk.power_off_after(Some(operations));
            let started = start_logging(&disk, &service).await;
            let told = started.as_ref().is_ok_and(|node| kinds(node).contains(&"store-brought-back"));
            let whole = started.is_ok();
            assert_eq!(told, whole, "after {operations} operations");
            drop(started);
            if cut {
                disk.crash(operations)
            } else {
                disk.kill()
            }
            let node = start_logging(&disk, &service).await.unwrap();
            refilled(&node).await;
            let (old, since) = (holds(&node, b"old"), holds(&node, b"since"));
            assert_eq!((old, since), (true, false), "after {operations} operations: {:?}", kinds(&node));
            write(&node, b"new").await;
            node.stop().await.unwrap();
            end(&disk, node);
            let node = start_logging(&disk, &service).await.unwrap();
            assert!(holds(&node, b"old") && holds(&node, b"new"), "after {operations} operations");
            let kept = |path: &str| path.starts_with("set-aside-") && path.ends_with("stores/default/FORMAT");
            let files: Vec<String> = disk.files().into_iter().map(|(path, _)| path).collect();
            let kept = files.iter().filter(|path| kept(path)).count();
            assert!(kept == 1 || cut, "after {operations} operations, cut {cut}, {kept} copies: {files:?}");
            if whole {
                assert!(operations > 10, "the power went off in the middle of each start");
                break;
            }
        }
    }
}

/// The old contents once stayed where living ones lie, and the living ones went to a directory that the event told to
/// be the old one's. Wherever the process or the power ends while they change places, nothing old is served.
#[tokio::test]
async fn the_contents_of_an_older_copy_are_set_aside_wherever_the_start_ends() {
    for cut in [false, true] {
        for operations in 0.. {
            let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
            let node = start_logging(&disk, &service).await.unwrap();
            write(&node, b"old").await;
            node.stop().await.unwrap();
            end(&disk, node);
            let copy = disk.files();
            end(&disk, start_logging(&disk, &service).await.unwrap());
            disk.wipe();
            copy.iter().for_each(|(path, bytes)| disk.plant(path, bytes));

            disk.power_off_after(Some(operations));
            let started = start_logging(&disk, &service).await;
            let whole = started.is_ok();
            drop(started);
            if cut {
                disk.crash(operations)
            } else {
                disk.kill()
            }
            let node = start_logging(&disk, &service).await.unwrap();
            assert!(!holds(&node, b"old"), "after {operations} operations");
            let aside =
                |path: &str| path.starts_with("set-aside-") && path.ends_with("stores/default/FORMAT");
            let kept = disk.files().iter().filter(|(path, _)| aside(path)).count();
            assert!(kept == 1 || cut, "after {operations} operations {kept} copies are kept");
            write(&node, b"new").await;
            assert!(holds(&node, b"new") && !holds(&node, b"old"), "after {operations} operations");
            node.stop().await.unwrap();
            end(&disk, node);
            let node = start_logging(&disk, &service).await.unwrap();
            refilled(&node).await;
            assert!(holds(&node, b"new") && !holds(&node, b"old"), "after {operations} operations");
            if whole {
                assert!(operations > 10, "the power went off in the middle of each start");
                break;
            }
        }
    }
}

/// Whoever put a part of a backup onto a new disk once had it served as it was, and what had been deleted since, and
/// forgotten, came back.
#[tokio::test]
async fn the_contents_of_a_directory_without_an_identity_are_set_aside() {
    for (is_known, only_stores) in [(true, true), (true, false), (false, true), (false, false)] {
        let (disk, service) = (Arc::new(SimulatedDisk::new(1)), MemoryService::new());
        let node = start_logging(&disk, &service).await.unwrap();
        write(&node, b"old").await;
        node.stop().await.unwrap();
        end(&disk, node);
        let copy = disk.files();
        disk.wipe();
        let kept = |path: &str| if only_stores { path.starts_with("stores/") } else { path != "identity" };
        copy.iter().filter(|(path, _)| kept(path)).for_each(|(path, bytes)| disk.plant(path, bytes));

        let service = if is_known { service } else { MemoryService::new() };
        let node = start_logging(&disk, &service).await.unwrap();
        let found = kinds(&node);
        assert!(found.contains(&"contents-set-aside"), "{found:?}");
        assert_eq!(found.contains(&"disk-lost"), is_known, "{found:?}");
        refilled(&node).await;
        assert!(!holds(&node, b"old"));
        let aside = format!("set-aside-{}/stores/default/FORMAT", node.incarnation());
        assert!(disk.contents(&aside).is_some(), "{aside}");
        write(&node, b"new").await;
        node.stop().await.unwrap();
        end(&disk, node);
        let node = start_logging(&disk, &service).await.unwrap();
        assert!(holds(&node, b"new") && !kinds(&node).contains(&"contents-set-aside"));
    }
}

/// A path that was mistyped once passed for a new disk, and the node left its own behind.
#[tokio::test]
async fn only_an_empty_directory_or_one_of_a_node_is_accepted() {
    let service = MemoryService::new();
    let own = Arc::new(SimulatedDisk::new(1));
    let node = start(&own, 2, &service).await.unwrap();
    node.stop().await.unwrap();
    end(&own, node);
    let identity = own.contents("identity").unwrap();
    let try_with = async |planted: &[(&str, &[u8])]| {
        let disk = Arc::new(SimulatedDisk::new(1));
        planted.iter().for_each(|(path, bytes)| disk.plant(path, bytes));
        let started = start(&disk, 2, &service).await;
        match started {
            Ok(node) => {
                node.stop().await.unwrap();
                end(&disk, node);
                None
            }
            Err(error) => {
                assert_eq!(disk.files().len(), planted.len(), "a refusal leaves no trace");
                Some(error.to_string())
            }
        }
    };
    for taken in
        ["lost+found/x", "lock", "cluster.json.new", "epoch.new", "identity.new", "stores/default/FORMAT"]
    {
        let says_nothing = ["lost+found/x", "lock"].contains(&taken);
        assert_eq!(try_with(&[(taken, b""), ("notes", b"")]).await.is_some(), says_nothing, "{taken}");
        assert_eq!(try_with(&[(taken, b"")]).await, None, "{taken}");
    }
    let refused = try_with(&[("a", b""), ("b/c", b""), ("d", b""), ("e", b"")]).await.unwrap();
    assert!(
        refused.contains(r#"belongs to no node but is not empty: it holds "a", "b", "d" and 1 more; start"#),
        "{refused}"
    );
    let refused = try_with(&[("dev.lock", b""), ("second/identity", &identity)]).await.unwrap();
    assert!(
        refused
            .ends_with(r#""second" in it is the data directory of n2: start the node with that directory"#),
        "{refused}"
    );
}
