//! Deletes that stay deleted, whatever comes late: told one by one, where random runs only may meet it.

use protocol::report::Parts;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::peers::Call;
use client::{Client, DeleteOptions};
use model::{Epoch, NodeId, VersionSet};
use sim::cluster::{LAST_WRITE, World};
use sim::host::Host;
use wire::messages::{ReplicaMerge, Request, Response};

use crate::stage::{equal, held, keys, local, play, put_all, records, setup, shows_none, until};

async fn delete_all(client: &Client, keys: &[Bytes]) {
    let store = client.store(LAST_WRITE).expect("the cluster has it");
    for key in keys {
        store.delete(key.clone(), DeleteOptions::default()).await.expect("two replicas answer");
    }
}

/// Waits until rounds have forgotten everything, and a while longer.
async fn nothing_is_left(world: &World) {
    let nodes = world.machines().len();
    let empty = || world.hints().is_empty() && (0..nodes).all(|position| records(world, position) == 0);
    until(world, "nothing is left", empty).await;
    world.executor.sleep(Duration::from_secs(10)).await;
    assert!(empty(), "nothing comes back");
}

/// A message with this content, read at this epoch, as it arrives at a node.
fn arrives(
    world: &World,
    position: usize,
    key: &Bytes,
    set: &VersionSet,
    hint_for: Option<NodeId>,
) -> Response {
    let node = world.node(position).expect("it runs");
    let (store, generation) =
        (local(world, position).reference().clone(), node.replica().view().generation());
    let entries = [(key.clone(), set.clone())].into_iter().collect();
    let merge = ReplicaMerge { since: generation, store, generation, epoch: Epoch(0), hint_for, entries };
    match node.replica().call(Request::ReplicaMerge(merge)) {
        Call::Ready(answer) => answer.expect("it is an answer"),
        Call::Pending(_) => panic!("nothing of before is stored"),
    }
}

#[test]
fn a_delete_while_a_replica_is_down_stays_deleted_when_it_returns() {
    play(setup(31), |world, client| async move {
        let keys = keys(30);
        put_all(&world, &client, &keys, "old").await;
        equal(&world, &keys).await;
        world.kill(2, Duration::ZERO, Duration::ZERO);
        delete_all(&client, &keys).await;
        // Rounds wait for the node that is away, however long that takes.
        world.executor.sleep(Duration::from_secs(60)).await;
        assert!(keys.iter().all(|key| held(&world, 0, key).is_deleted()));
        // None is begun that cannot be completed: its guards would be in the way of those that can.
        let status = world.node(0).expect("it runs").report(Parts::STATUS).status;
        let collection = status.and_then(|status| status.collection).expect("a started node collects");
        assert_eq!(collection.waits_for, Some(NodeId(3)), "{collection:?}");
        assert!(collection.rounds_broken_total <= 1, "{collection:?}");
        world.start(2);
        until(&world, "all nodes stand", || world.all_up()).await;
        shows_none(&client, &keys).await;
        nothing_is_left(&world).await;
        shows_none(&client, &keys).await;
    });
}

#[test]
fn a_delete_with_hints_of_the_value_outstanding_stays_deleted() {
    let mut setup = setup(32);
    (setup.nodes, setup.sloppy) = (5, true);
    play(setup, |world, client| async move {
        let keys = keys(30);
        world.kill(0, Duration::ZERO, Duration::ZERO);
        put_all(&world, &client, &keys, "old").await;
        let holders: Vec<NodeId> = world.hints().into_iter().map(|(holder, ..)| holder).collect();
        assert!(!holders.is_empty(), "somebody holds what the first node misses");
        // The holder with its hint is away while the value is deleted, and back before the target.
        let holder = holders[0].0 as usize - 1;
        world.kill(holder, Duration::ZERO, Duration::ZERO);
        delete_where_possible(&world, &client, &keys).await;
        world.start(holder);
        world.executor.sleep(Duration::from_secs(5)).await;
        world.start(0);
        until(&world, "all nodes stand", || world.all_up()).await;
        nothing_is_left(&world).await;
        shows_none(&client, &keys).await;
    });
}

/// Deletes each key, again and again until it is acknowledged.
async fn delete_where_possible(world: &Arc<World>, client: &Client, keys: &[Bytes]) {
    let store = client.store(LAST_WRITE).expect("the cluster has it");
    for key in keys {
        let mut attempts = 0;
        while let Err(error) = store.delete(key.clone(), DeleteOptions::default()).await {
            attempts += 1;
            assert!(attempts < 100, "{error}");
            world.executor.sleep(Duration::from_millis(20)).await;
        }
    }
}

#[test]
fn a_late_duplicate_of_an_old_write_is_refused_after_collection() {
    play(setup(33), |world, client| async move {
        let keys = keys(10);
        put_all(&world, &client, &keys, "old").await;
        equal(&world, &keys).await;
        let old: Vec<VersionSet> = keys.iter().map(|key| held(&world, 0, key)).collect();
        delete_all(&client, &keys).await;
        nothing_is_left(&world).await;
        for (key, set) in keys.iter().zip(&old) {
            for position in 0..3 {
                for hint_for in [None, Some(NodeId(1 + (position as u32 + 1) % 3))] {
                    let answer = arrives(&world, position, key, set, hint_for);
                    assert!(matches!(answer, Response::StaleEpoch(_)), "{answer:?}");
                }
            }
        }
        nothing_is_left(&world).await;
        shows_none(&client, &keys).await;
    });
}

#[test]
fn a_disk_restored_from_before_a_collected_delete_brings_nothing_back() {
    play(setup(34), |world, client| async move {
        let keys = keys(20);
        put_all(&world, &client, &keys, "old").await;
        equal(&world, &keys).await;
        world.stop(2).await;
        let copy = world.copy(2);
        world.start(2);
        until(&world, "all nodes stand", || world.all_up()).await;
        delete_all(&client, &keys).await;
        nothing_is_left(&world).await;
        world.kill(2, Duration::ZERO, Duration::ZERO);
        world.restore(2, &copy);
        world.start(2);
        until(&world, "all nodes stand", || world.all_up()).await;
        nothing_is_left(&world).await;
        shows_none(&client, &keys).await;
    });
}

#[test]
fn writes_and_deletes_during_a_one_way_partition_reach_all_replicas_after_it() {
    play(setup(35), |world, client| async move {
        let keys = keys(40);
        put_all(&world, &client, &keys[..20], "old").await;
        equal(&world, &keys[..20]).await;
        // The first node hears nothing of the third any more, which hears it.
        world.wires.block(Host(3), Host(1));
        delete_where_possible(&world, &client, &keys[..20]).await;
        put_all(&world, &client, &keys[20..], "new").await;
        world.executor.sleep(Duration::from_secs(20)).await;
        world.wires.unblock(Host(3), Host(1));
        equal(&world, &keys[20..]).await;
        until(&world, "deletions are forgotten", || (0..3).all(|position| records(&world, position) == 20))
            .await;
        shows_none(&client, &keys[..20]).await;
    });
}

/// A removal is a record of the log engine like any other: what compaction leaves out, what a snapshot of the index no
/// longer names and what a power cut tears must not let the record before it come back.
#[test]
fn a_collected_record_stays_gone_through_compaction_snapshot_and_power_cut() {
    play(setup(36), |world, client| async move {
        let all = keys(40);
        let (gone, kept) = all.split_at(20);
        put_all(&world, &client, &all, "old").await;
        delete_all(&client, gone).await;
        let collected = || (0..3).all(|position| records(&world, position) == 20);
        until(&world, "the deleted are forgotten", collected).await;
        let compacted = |position| local(&world, position).engine().stats().compacted_bytes;
        let before: Vec<u64> = (0..3).map(compacted).collect();
        // Segments and snapshots are small here: this ends many of each.
        while (0..3).any(|position| compacted(position) < before[position] + (32 << 10)) {
            put_all(&world, &client, kept, "new").await;
        }
        for position in 0..3 {
            world.cut_power(position, 36 + position as u64, Duration::ZERO, Duration::ZERO);
            world.start(position);
            until(&world, "it stands again", || world.all_up()).await;
        }
        equal(&world, kept).await;
        shows_none(&client, gone).await;
        for position in 0..3 {
            assert!(gone.iter().all(|key| held(&world, position, key).is_empty()), "n{}", position + 1);
            assert_eq!(records(&world, position), 20);
        }
    });
}
