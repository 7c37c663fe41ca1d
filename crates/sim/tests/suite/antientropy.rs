//! Anti-entropy, scrub and refilling, each in its own cluster where nothing else heals.

use protocol::report::RepairReport;
use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use client::{ClientError, PutOptions};
use model::{Dot, NodeId, Token, VersionSet};
use runtime::disk::simulated::{DiskOperation, Fault as DiskFault};
use sim::cluster::{LAST_WRITE, World};
use sim::host::Host;
use storage::Change;

use crate::stage::{equal, held, keys, local, place, play, put_all, setup, until};

/// Takes a record away behind the back of its hash tree.
fn lose(world: &World, position: usize, key: &Bytes) {
    let place = place(world, position, key);
    let engine = local(world, position).engine().clone();
    engine.update(place.partition, place.token, key, &mut |_| Change::Remove).expect("the engine is open");
}

/// The dots of a key's versions.
fn dots_of(set: &VersionSet) -> Vec<Dot> {
    set.versions().iter().map(|version| version.dot).collect()
}

/// Takes the end of the last record out of a node's newest file of the store, as a power cut would of a write that a
/// lying disk had confirmed. The node must not run.
fn tear(world: &World, position: usize) {
    let disk = world.machines()[position].disk();
    let is_log = |path: &str| path.contains(&format!("stores/{LAST_WRITE}/")) && path.ends_with(".log");
    let newest = disk.files().into_iter().filter(|(path, _)| is_log(path)).max();
    let (path, bytes) = newest.expect("the store has files");
    // Records are padded to a multiple of eight bytes: nine reach into the last one.
    disk.plant(&path, &bytes[..bytes.len() - 9]);
}

fn progress(world: &World, position: usize) -> RepairReport {
    world.node(position).expect("it runs").antientropy().report()
}

#[test]
fn a_replica_that_missed_writes_catches_up_by_itself() {
    play(setup(1), |world, client| async move {
        let keys = keys(60);
        put_all(&world, &client, &keys, "before").await;
        world.kill(2, Duration::ZERO, Duration::ZERO);
        put_all(&world, &client, &keys[..40], "while it was away").await;
        world.start(2);
        until(&world, "all nodes stand", || world.all_up()).await;
        equal(&world, &keys).await;
    });
}

#[test]
fn the_trees_claim_equality_while_a_record_is_missing_and_the_scrub_finds_it() {
    play(setup(2), |world, client| async move {
        let keys = keys(30);
        put_all(&world, &client, &keys, "v").await;
        equal(&world, &keys).await;
        lose(&world, 1, &keys[7]);
        assert!(held(&world, 1, &keys[7]).is_empty());
        // Comparing cannot see it: the tree says what was there.
        let node = world.node(1).expect("it runs");
        let wrong = || progress(&world, 1).scrub.wrong_leaves_total;
        assert_eq!(wrong(), 0);
        let read = node.antientropy().scrub_now().await;
        assert!(read >= 29, "{read} records read");
        assert_eq!(wrong(), 1);
        equal(&world, &keys).await;
        let kinds: Vec<_> = node.events().after(0, 1000).into_iter().map(|e| e.event.kind()).collect();
        assert!(kinds.contains(&"leaves-recounted"), "{kinds:?}");
    });
}

#[test]
fn equal_replicas_exchange_nothing_again_however_many_clients_wrote() {
    play(setup(3), |world, client| async move {
        let keys = keys(20);
        // Every node writes every key, so vectors have several entries, and one node is missing now and then.
        for round in 0..6 {
            let victim = round % 3;
            world.kill(victim, Duration::ZERO, Duration::ZERO);
            put_all(&world, &client, &keys, "v").await;
            world.start(victim);
            until(&world, "all nodes stand", || world.all_up()).await;
        }
        equal(&world, &keys).await;
        let entries = held(&world, 0, &keys[0]).vector().entries().len();
        assert!(entries >= 2, "{entries} actors wrote the first key");
        // A whole period later everybody has compared with everybody, and found nothing.
        world.executor.sleep(Duration::from_secs(10)).await;
        for position in 0..2 {
            let peers = progress(&world, position).peers;
            assert_eq!(peers.len(), 2 - position, "{peers:?}");
            for peer in &peers {
                assert_eq!((peer.outcome.keys_differing, peer.outcome.complete), (0, true), "{peers:?}");
            }
        }
    });
}

#[test]
fn a_lost_disk_reuses_no_dots_and_gets_are_refused_until_it_is_refilled() {
    play(setup(4), |world, client| async move {
        let keys = keys(60);
        put_all(&world, &client, &keys, "old").await;
        equal(&world, &keys).await;
        let before = world.node(2).expect("it runs").incarnation();
        let dots: Vec<_> = keys.iter().map(|key| held(&world, 2, key)).collect();
        world.kill(2, Duration::ZERO, Duration::ZERO);
        world.wipe(2);
        // Its peers can be reached by nobody but clients: nothing can be refilled.
        for other in [1, 2] {
            world.wires.block(Host(3), Host(other));
        }
        world.start(2);
        until(&world, "all nodes stand", || world.all_up()).await;
        assert!(world.node(2).expect("it runs").incarnation() > before, "an incarnation of its own");
        for key in &keys {
            let refused = local(&world, 2).get(place(&world, 2, key), key).expect_err("it has nothing");
            assert_eq!(refused.code, wire::ErrorCode::Refilling);
        }
        let store = client.store(LAST_WRITE).expect("the cluster has it");
        for key in &keys {
            let partition = client.cluster().ring.partition(Token::of(key)).id;
            let page = store.scan(NodeId(3), partition, None, 100).await;
            let refused = page.expect_err("an empty page would pass for all there is");
            let code = wire::ErrorCode::Refilling;
            assert!(
                matches!(&refused, ClientError::Failed { code: found, .. } if *found == code),
                "{refused}"
            );
            assert!(refused.is_retryable());
            let found = store.get(key.clone()).await.expect("two others have it");
            assert_eq!(found.set().versions().len(), 1, "no false absence");
        }
        for other in [1, 2] {
            world.wires.unblock(Host(3), Host(other));
        }
        equal(&world, &keys).await;
        for (key, before) in keys.iter().zip(dots) {
            assert_eq!(held(&world, 2, key), before);
        }
        let refill = progress(&world, 2).refill.expect("its disk was lost");
        assert_eq!(refill.partitions_left, 0, "{refill:?}");
        // Whatever it stamps now, no dot was there before: a second version under an old dot would pass for the first.
        let known: BTreeSet<Dot> = keys.iter().flat_map(|key| dots_of(&held(&world, 2, key))).collect();
        let incarnation = world.node(2).expect("it runs").incarnation();
        let old = known.iter().map(|dot| dot.actor).filter(|actor| actor.node == NodeId(3));
        assert!(old.clone().count() > 0, "it has stamped before its disk was lost");
        assert!(old.clone().all(|actor| actor.incarnation == before));
        put_all(&world, &client, &keys, "new").await;
        equal(&world, &keys).await;
        let mut stamped = 0;
        for key in &keys {
            for dot in dots_of(&held(&world, 0, key)) {
                assert!(!known.contains(&dot), "{dot:?} stands for two writes");
                assert!(dot.actor.node != NodeId(3) || dot.actor.incarnation == incarnation, "{dot:?}");
                stamped += usize::from(dot.actor.node == NodeId(3));
            }
        }
        assert!(stamped > 0, "it has stamped again, as somebody else");
        let kinds: Vec<_> = world
            .node(2)
            .expect("it runs")
            .events()
            .after(0, 1000)
            .into_iter()
            .map(|e| e.event.kind())
            .collect();
        assert!(kinds.contains(&"disk-lost"), "{kinds:?}");
        assert!(kinds.contains(&"refill-started") && kinds.contains(&"refill-ended"), "{kinds:?}");
    });
}

#[test]
fn a_disk_that_is_lost_again_while_it_is_refilled_does_not_pass_for_whole() {
    play(setup(5), |world, client| async move {
        let keys = keys(40);
        put_all(&world, &client, &keys, "v").await;
        equal(&world, &keys).await;
        world.kill(2, Duration::ZERO, Duration::ZERO);
        world.wipe(2);
        for other in [1, 2] {
            world.wires.block(Host(3), Host(other));
        }
        for _ in 0..3 {
            world.start(2);
            until(&world, "all nodes stand", || world.all_up()).await;
            assert!(local(&world, 2).get(place(&world, 2, &keys[0]), &keys[0]).is_err());
            world.cut_power(2, 7, Duration::ZERO, Duration::ZERO);
        }
        for other in [1, 2] {
            world.wires.unblock(Host(3), Host(other));
        }
        world.start(2);
        until(&world, "all nodes stand", || world.all_up()).await;
        equal(&world, &keys).await;
    });
}

/// A file of the log is gone: the values before those that it held must not come back, nor what was removed there.
#[test]
fn a_store_that_lacks_a_file_of_its_log_is_set_aside_and_refilled() {
    play(setup(12), |world, client| async move {
        let keys = keys(60);
        put_all(&world, &client, &keys, "before").await;
        put_all(&world, &client, &keys, "after").await;
        equal(&world, &keys).await;
        let before: Vec<_> = keys.iter().map(|key| held(&world, 2, key)).collect();
        world.stop(2).await;
        let disk = world.machines()[2].disk();
        let is_log = |path: &str| path.contains(&format!("stores/{LAST_WRITE}/")) && path.ends_with(".log");
        let logs: Vec<String> =
            disk.files().into_iter().map(|(path, _)| path).filter(|p| is_log(p)).collect();
        assert!(logs.len() > 1, "{logs:?}");
        runtime::Disk::remove(disk, logs.iter().max().expect("there are some")).expect("it is there");
        for other in [1, 2] {
            world.wires.block(Host(3), Host(other));
        }
        world.start(2);
        until(&world, "all nodes stand", || world.all_up()).await;
        assert!(local(&world, 2).get(place(&world, 2, &keys[0]), &keys[0]).is_err(), "no false answer");
        let told = world.node(2).expect("it runs").events().after(0, 1000);
        let kinds: Vec<_> = told.into_iter().map(|e| e.event.kind()).collect();
        assert!(kinds.contains(&"store-lost") && kinds.contains(&"contents-set-aside"), "{kinds:?}");
        for other in [1, 2] {
            world.wires.unblock(Host(3), Host(other));
        }
        equal(&world, &keys).await;
        let after: Vec<_> = keys.iter().map(|key| held(&world, 2, key)).collect();
        assert_eq!(after, before);
    });
}

#[test]
fn a_copy_of_a_cleanly_stopped_directory_is_noticed_and_set_aside() {
    play(setup(6), |world, client| async move {
        let keys = keys(20);
        put_all(&world, &client, &keys, "first").await;
        equal(&world, &keys).await;
        world.stop(2).await;
        let copy = world.copy(2);
        world.start(2);
        until(&world, "all nodes stand", || world.all_up()).await;
        let before = world.node(2).expect("it runs").incarnation();
        put_all(&world, &client, &keys, "second").await;
        world.kill(2, Duration::ZERO, Duration::ZERO);
        world.restore(2, &copy);
        world.start(2);
        until(&world, "all nodes stand", || world.all_up()).await;
        assert!(world.node(2).expect("it runs").incarnation() > before);
        equal(&world, &keys).await;
        assert_eq!(progress(&world, 2).refill.expect("it was restored").partitions_left, 0);
        let told = world.node(2).expect("it runs").events().after(0, 1000);
        let kinds: Vec<_> = told.into_iter().map(|e| e.event.kind()).collect();
        assert!(kinds.contains(&"rollback-noticed") && kinds.contains(&"contents-set-aside"), "{kinds:?}");
    });
}

#[test]
fn a_sloppy_quorum_is_read_through_its_fallback_and_then_by_the_replica_itself() {
    let mut setup = setup(7);
    (setup.nodes, setup.sloppy) = (5, true);
    play(setup, |world, client| async move {
        let keys = keys(30);
        world.kill(0, Duration::ZERO, Duration::ZERO);
        world.kill(1, Duration::ZERO, Duration::ZERO);
        put_all(&world, &client, &keys, "v").await;
        let store = client.store(LAST_WRITE).expect("the cluster has it");
        for key in &keys {
            let found = store.get(key.clone()).await.expect("fallbacks answer");
            assert_eq!(found.set().versions().len(), 1);
        }
        world.start(0);
        world.start(1);
        until(&world, "all nodes stand", || world.all_up()).await;
        until(&world, "equal replicas", || world.difference(&keys).is_none()).await;
    });
}

#[test]
fn a_failing_sync_costs_nothing_once_the_node_is_back() {
    play(setup(8), |world, client| async move {
        let keys = keys(30);
        put_all(&world, &client, &keys[..10], "v").await;
        world.machines()[1].disk().inject(DiskFault::next(DiskOperation::Sync, 1));
        let store = client.store(LAST_WRITE).expect("the cluster has it");
        let mut failed = 0;
        for key in &keys {
            // What that node stamps is in doubt from now on, and nobody claims anything else.
            let answer = store.put(key.clone(), Bytes::from_static(b"w"), PutOptions::default()).await;
            failed += usize::from(answer.is_err());
        }
        assert!(failed > 0, "the node has stopped");
        world.cut_power(1, 3, Duration::ZERO, Duration::ZERO);
        world.machines()[1].disk().clear_faults();
        world.start(1);
        until(&world, "all nodes stand", || world.all_up()).await;
        put_all(&world, &client, &keys, "x").await;
        equal(&world, &keys).await;
    });
}

#[test]
fn a_replica_whose_disk_was_full_catches_up_when_there_is_room() {
    play(setup(9), |world, client| async move {
        let keys = keys(40);
        put_all(&world, &client, &keys[..5], "v").await;
        let disk = world.machines()[2].disk().clone();
        disk.set_capacity(Some(disk.used_bytes()));
        put_all(&world, &client, &keys, "while it was full").await;
        disk.set_capacity(None);
        equal(&world, &keys).await;
    });
}

#[test]
fn a_flipped_bit_is_found_by_the_scrub_and_repaired_from_a_replica() {
    play(setup(10), |world, client| async move {
        let keys = keys(30);
        put_all(&world, &client, &keys, "a value long enough to be found again").await;
        equal(&world, &keys).await;
        let flipped = world.flip(1, b"long enough to be found");
        assert!(flipped, "the value is on the disk");
        let node = world.node(1).expect("it runs");
        node.antientropy().scrub_now().await;
        assert_eq!(progress(&world, 1).scrub.corrupt_records_total, 1);
        equal(&world, &keys).await;
        let repaired =
            || progress(&world, 1).trees.iter().map(|trees| trees.repaired_records_total).sum::<u64>();
        until(&world, "the repair is counted", || repaired() == 1).await;
    });
}

#[test]
fn a_torn_last_record_is_cut_off_and_comes_back_from_the_replicas() {
    play(setup(11), |world, client| async move {
        let keys = keys(30);
        put_all(&world, &client, &keys, "v").await;
        equal(&world, &keys).await;
        let before: Vec<_> = keys.iter().map(|key| held(&world, 1, key)).collect();
        let incarnation = world.node(1).expect("it runs").incarnation();
        world.kill(1, Duration::ZERO, Duration::ZERO);
        tear(&world, 1);
        for other in [1, 3] {
            world.wires.block(Host(2), Host(other));
        }
        world.start(1);
        until(&world, "all nodes stand", || world.all_up()).await;
        let lost = keys.iter().filter(|key| held(&world, 1, key).is_empty()).count();
        assert_eq!(lost, 1, "the last record is torn, and nothing else");
        let store = client.store(LAST_WRITE).expect("the cluster has it");
        for key in &keys {
            let found = store.get(key.clone()).await.expect("two others have it");
            assert_eq!(found.set().versions().len(), 1, "no false absence");
        }
        for other in [1, 3] {
            world.wires.unblock(Host(2), Host(other));
        }
        equal(&world, &keys).await;
        let after: Vec<_> = keys.iter().map(|key| held(&world, 1, key)).collect();
        assert_eq!(after, before);
        assert!(world.node(1).expect("it runs").incarnation() > incarnation, "it may have forgotten a stamp");
    });
}

/// A seed of the simulator met it: the stop went on in a task of the test, and wrote an index onto the next process's disk.
#[test]
fn a_node_that_is_killed_while_it_stops_writes_nothing_more() {
    play(setup(8978), |world, client| async move {
        put_all(&world, &client, &keys(30), "v").await;
        let harm = world.executor.process();
        for wait_ms in (0..60).step_by(3) {
            let stopping = world.clone();
            world.executor.spawn(harm, Box::pin(async move { stopping.stop(2).await }));
            world.executor.sleep(Duration::from_millis(wait_ms)).await;
            world.kill(2, Duration::ZERO, Duration::ZERO);
            world.wipe(2);
            // Whatever still went on would be done by now.
            world.executor.sleep(Duration::from_millis(500)).await;
            world.start(2);
            until(&world, "the node stands again", || world.all_up()).await;
        }
    });
}
