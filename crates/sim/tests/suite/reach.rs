//! Coordinators that clients reach and others do not hear, and coordinators that stop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, ClientOptions, PutOptions};
use model::NodeId;
use protocol::gossip::NodeLiveness;
use sim::cluster::{LAST_WRITE, World};
use sim::host::Host;
use wire::messages::Condition;

use crate::stage::{equal, keys, play, put_all, setup, until};

/// It answered its clients, who went on giving it writes, and drove each of them into doubt.
#[test]
fn a_coordinator_that_no_replica_hears_takes_no_write_and_leaves_none_in_doubt() {
    for seed in 1..=3 {
        play(setup(seed), |world, client| async move {
            for other in [2, 3] {
                world.wires.block(Host(1), Host(other));
            }
            let believed = |viewer: usize, of: u32| {
                let node = world.node(viewer).expect("it runs");
                node.gossip().state(NodeId(of))
            };
            let suspected = || [2, 3].iter().all(|&of| believed(0, of) == NodeLiveness::Suspected);
            until(&world, "it knows that nobody answers it", suspected).await;
            let store = client.store(LAST_WRITE).expect("the cluster has it");
            for key in keys(60) {
                let put = store.put(key.clone(), "value", PutOptions::default()).await;
                assert!(put.is_ok(), "{key:?}: {put:?}");
            }
            world.wires.heal();
            until(&world, "it is heard again", || {
                [2, 3].iter().all(|&of| believed(0, of) == NodeLiveness::Alive)
            })
            .await;
        });
    }
}

/// The answer to a batch of hints never comes: whoever waits for it must not wait for ever.
#[test]
fn a_batch_of_hints_to_a_target_that_falls_silent_fails_and_is_delivered_later() {
    play(setup(37), |world, client| async move {
        let keys = keys(1500);
        world.kill(1, Duration::ZERO, Duration::ZERO);
        put_all(&world, &client, &keys, "v").await;
        let waiting = |world: &World| world.hints().into_iter().map(|(_, _, hints)| hints).sum::<u64>();
        let parked = waiting(&world);
        assert!(parked >= 1500, "{parked} hints");
        world.start(1);
        until(&world, "some hints have arrived", || waiting(&world) < parked).await;
        assert!(waiting(&world) > 0, "others are on their way");
        let failed = |world: &World| {
            let node = |position| world.node(position).expect("it runs");
            [0, 2].iter().any(|&position| {
                let text = node(position).metrics().text();
                let line = text.lines().find(|line| line.starts_with("tontine_handoff_batches_failed_total"));
                line.is_some_and(|line| !line.ends_with(" 0"))
            })
        };
        assert!(!failed(&world));
        for holder in [1, 3] {
            world.wires.block(Host(2), Host(holder));
        }
        until(&world, "a batch has failed", || failed(&world)).await;
        assert!(waiting(&world) > 0, "what was not acknowledged is kept");
        world.wires.heal();
        until(&world, "all hints have arrived", || waiting(&world) == 0).await;
        equal(&world, &keys).await;
    });
}

/// Which node stamps shows in the dots.
#[test]
fn a_client_that_spreads_begins_at_every_replica_except_for_conditional_writes() {
    for (spread, condition, stampers) in
        [(true, Condition::None, 3), (true, Condition::IfPresent, 1), (false, Condition::None, 1)]
    {
        play(setup(41), move |world, _| async move {
            let ports = world.ports(Host(102), world.executor.process(), Arc::default());
            let options = ClientOptions { spread, ..ClientOptions::default() };
            let client =
                Client::connect(&world.addresses(), ports, options).await.expect("nothing is in the way");
            let store = client.store(LAST_WRITE).expect("the cluster has it");
            store.put("key", "first", PutOptions::default()).await.expect("all nodes are up");
            let mut stamped = BTreeSet::new();
            for _ in 0..30 {
                let options = PutOptions { condition, ..PutOptions::default() };
                stamped.insert(store.put("key", "value", options).await.expect("it is there").dot.actor.node);
            }
            assert_eq!(stamped.len(), stampers, "{spread}, {condition:?}: {stamped:?}");
        });
    }
}
