//! Collection rounds that go on although a clock is wrong or something is damaged, and that keep up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, DeleteOptions, PutOptions};
use model::NodeId;
use sim::cluster::{LAST_WRITE, World};

use crate::stage::{equal, held, keys, local, play, put_all, records, setup, shows_none, until};

const YEAR_MS: u64 = 365 * 24 * 3_600_000;

async fn delete_all(world: &Arc<World>, client: &Client, keys: &[Bytes]) {
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

/// Deletes while one node's clock is a year ahead once made that year the floor of all stamps, durably and everywhere:
/// no node accepted a context any more, whoever's clock was put right and restarted.
fn a_wrong_clock_at(position: usize, seed: u64) {
    let mut setup = setup(seed);
    setup.expiry_margin = Duration::from_secs(3600);
    play(setup, move |world, client| async move {
        let keys = keys(40);
        put_all(&world, &client, &keys, "old").await;
        equal(&world, &keys).await;
        let future = held(&world, 0, &keys[0]).timestamp_max().wall().0 + YEAR_MS / 2;
        let wall = world.machines()[position].wall.clone();
        let before = wall.skew_ms.swap(YEAR_MS as i64, Ordering::Relaxed);
        delete_all(&world, &client, &keys).await;
        // What the others have stamped is collected: the wrong clock's tombstones cost nobody else's.
        let sound = |key: &Bytes| held(&world, 1 - position, key).timestamp_max().wall().0 < future;
        until(&world, "sound tombstones are gone", || {
            let left = keys.iter().filter(|key| !held(&world, 1 - position, key).is_empty());
            left.clone().count() < 40 && !left.clone().any(sound)
        })
        .await;
        world.executor.sleep(Duration::from_secs(30)).await;
        let floors = (0..3).map(|node| world.node(node).expect("it runs").replica().epochs().known().floor);
        assert!(floors.into_iter().all(|floor| floor.wall().0 < future), "nobody's floor is in the future");
        wall.skew_ms.store(before, Ordering::Relaxed);
        world.kill(position, Duration::ZERO, Duration::ZERO);
        world.start(position);
        until(&world, "all nodes stand", || world.all_up()).await;
        let fresh: Vec<Bytes> = (0..20).map(|number| Bytes::from(format!("fresh {number}"))).collect();
        put_all(&world, &client, &fresh, "first").await;
        let store = client.store(LAST_WRITE).expect("the cluster has it");
        for key in &fresh {
            let found = store.get(key.clone()).await.expect("all are up");
            let put = store.put(key.clone(), Bytes::from_static(b"next"), PutOptions::after(&found)).await;
            put.expect("a context that was just read is no context from the future");
        }
        delete_all(&world, &client, &fresh).await;
        let forgotten = || (0..3).all(|node| fresh.iter().all(|key| held(&world, node, key).is_empty()));
        until(&world, "what was deleted since is forgotten", forgotten).await;
        shows_none(&client, &keys).await;
    });
}

#[test]
fn a_clock_a_year_ahead_leaves_no_trace_in_the_stamps_of_others() {
    a_wrong_clock_at(1, 71);
}

#[test]
fn a_node_a_year_ahead_that_starts_rounds_collects_only_what_others_agree_to() {
    a_wrong_clock_at(0, 74);
}

/// One flipped bit in one hint once stopped all collection, and the hint stayed for ever.
#[test]
fn a_damaged_hint_goes_when_its_target_is_back_and_holds_up_no_round() {
    let mut setup = setup(72);
    (setup.nodes, setup.sloppy) = (5, true);
    play(setup, |world, client| async move {
        let store = client.store(LAST_WRITE).expect("the cluster has it");
        let keys = keys(60);
        let value = |key: &Bytes| format!("unique value of {}.", String::from_utf8_lossy(key));
        put_all(&world, &client, &keys, "first").await;
        world.kill(0, Duration::ZERO, Duration::ZERO);
        for key in &keys {
            let mut attempts = 0;
            while let Err(error) = store.put(key.clone(), value(key), PutOptions::default()).await {
                attempts += 1;
                assert!(attempts < 100, "{error}");
                world.executor.sleep(Duration::from_millis(20)).await;
            }
        }
        // At a node that is no replica of the key, what lies on the disk is a hint.
        let damaged = (1..5).any(|position| {
            let view = world.node(position).expect("it runs").replica().view().get();
            let store = local(&world, position);
            let foreign =
                |key: &&Bytes| !view.route(&store, key).preference.is_replica(NodeId(position as u32 + 1));
            keys.iter().filter(foreign).any(|key| world.flip(position, value(key).as_bytes()))
        });
        assert!(damaged, "somebody holds hints");
        world.start(0);
        until(&world, "all nodes stand", || world.all_up()).await;
        until(&world, "hints drain", || world.hints().is_empty()).await;
        delete_all(&world, &client, &keys).await;
        until(&world, "tombstones go", || (0..5).all(|position| records(&world, position) == 0)).await;
        shows_none(&client, &keys).await;
    });
}

/// A record that cannot be read was passed over by rounds; afterwards nobody had anything left to mend it with.
#[test]
fn a_corrupt_record_of_a_deleted_key_goes_with_its_tombstone() {
    let mut setup = setup(75);
    setup.nodes = 3;
    play(setup, |world, client| async move {
        let keys = keys(5);
        put_all(&world, &client, &keys, "a value to be found on the disk").await;
        equal(&world, &keys).await;
        delete_all(&world, &client, &keys[1..]).await;
        until(&world, "rounds run", || (0..3).all(|position| records(&world, position) == 1)).await;
        // All replicas hold the tombstone; the third cannot read it.
        delete_all(&world, &client, &keys[..1]).await;
        until(&world, "it is everywhere", || (0..3).all(|node| held(&world, node, &keys[0]).is_deleted()))
            .await;
        assert!(world.flip(2, &keys[0]), "the newest record of the key lies last");
        until(&world, "nothing is left", || (0..3).all(|position| records(&world, position) == 0)).await;
        shows_none(&client, &keys).await;
    });
}

/// There was one round for a thousand keys each five seconds, however many waited.
#[test]
fn one_pass_collects_however_many_tombstones_wait() {
    play(setup(73), |world, client| async move {
        let store = client.store(LAST_WRITE).expect("the cluster has it");
        let keys = keys(3000);
        world.kill(2, Duration::ZERO, Duration::ZERO);
        for some in keys.chunks(500) {
            let deletes = some.iter().map(|key| store.delete(key.clone(), DeleteOptions::default()));
            for deleted in futures_util::future::join_all(deletes).await {
                deleted.expect("two replicas answer");
            }
        }
        assert_eq!(records(&world, 0), 3000);
        world.start(2);
        until(&world, "a round ends", || records(&world, 0) < 3000).await;
        let (begun, left) = (world.executor.now(), records(&world, 0));
        until(&world, "nothing is left", || (0..3).all(|position| records(&world, position) == 0)).await;
        let took = world.executor.now().since(begun);
        println!("{left} tombstones in {took:?} of the simulation's time");
        assert!(took < node::collection::INTERVAL, "{took:?} of the simulation's time");
    });
}
