//! Values that expire: never shown after their time, and gone from every replica in the end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, PutOptions};
use sim::check::Violation;
use sim::cluster::{LAST_WRITE, World};
use sim::run::play as play_run;
use sim::swarm::{EXPIRY_MARGIN, Setup};

use crate::stage::{held, keys, play, put_all, records, setup, shows_none, until};

const TTL: Duration = Duration::from_secs(2);

async fn put_brief(client: &Client, keys: &[Bytes]) {
    let store = client.store(LAST_WRITE).expect("the cluster has it");
    for key in keys {
        let options = PutOptions { ttl: Some(TTL), ..PutOptions::default() };
        store.put(key.clone(), Bytes::from_static(b"brief"), options).await.expect("two replicas answer");
    }
}

fn reaped(world: &World, position: usize) -> bool {
    keys(30)[..20].iter().all(|key| held(world, position, key).is_deleted())
}

#[test]
fn a_replica_that_was_away_while_values_expired_brings_none_of_them_back() {
    let mut setup = setup(21);
    setup.expiry_margin = EXPIRY_MARGIN;
    play(setup, |world, client| async move {
        let keys = keys(30);
        put_brief(&client, &keys[..20]).await;
        put_all(&world, &client, &keys[20..], "for ever").await;
        until(&world, "the third replica has them", || records(&world, 2) == 30).await;
        world.kill(2, Duration::ZERO, Duration::ZERO);
        world.executor.sleep(TTL).await;
        shows_none(&client, &keys[..20]).await;
        until(&world, "the others reap", || reaped(&world, 0) && reaped(&world, 1)).await;
        // No round can end while a node is away: the tombstones wait for it.
        world.executor.sleep(Duration::from_secs(30)).await;
        assert_eq!((records(&world, 0), records(&world, 1)), (30, 30));
        world.start(2);
        until(&world, "all nodes stand", || world.all_up()).await;
        until(&world, "ten records each", || (0..3).all(|position| records(&world, position) == 10)).await;
        shows_none(&client, &keys[..20]).await;
        // Nor later, when everybody has compared with everybody again.
        world.executor.sleep(Duration::from_secs(10)).await;
        assert_eq!([0, 1, 2].map(|position| records(&world, position)), [10, 10, 10]);
    });
}

#[test]
fn hints_of_expired_values_leave_nothing_behind() {
    let mut setup = setup(22);
    (setup.nodes, setup.sloppy, setup.expiry_margin) = (5, true, EXPIRY_MARGIN);
    play(setup, |world, client| async move {
        let keys = keys(20);
        world.kill(0, Duration::ZERO, Duration::ZERO);
        put_brief(&client, &keys).await;
        assert!(!world.hints().is_empty(), "somebody holds what the first node misses");
        world.executor.sleep(TTL + EXPIRY_MARGIN + Duration::from_secs(10)).await;
        world.start(0);
        until(&world, "all nodes stand", || world.all_up()).await;
        let nothing = || world.hints().is_empty() && (0..5).all(|position| records(&world, position) == 0);
        until(&world, "nothing is left", nothing).await;
        shows_none(&client, &keys).await;
    });
}

/// Its clock is an hour ahead: it takes values for expired and reaps them, and nobody else does.
#[test]
fn a_clock_that_is_far_ahead_takes_no_value_away_from_the_others() {
    let mut setup = setup(23);
    setup.expiry_margin = EXPIRY_MARGIN;
    play(setup, |world, client| async move {
        let keys = keys(20);
        let store = client.store(LAST_WRITE).expect("the cluster has it");
        for key in &keys {
            let options = PutOptions { ttl: Some(Duration::from_secs(120)), ..PutOptions::default() };
            store.put(key.clone(), Bytes::from_static(b"long"), options).await.expect("all are up");
        }
        until(&world, "all have them", || (0..3).all(|position| records(&world, position) == 20)).await;
        let wall = world.machines()[0].wall.clone();
        let before = wall.skew_ms.swap(3_600_000, Ordering::Relaxed);
        until(&world, "it reaps", || keys.iter().all(|key| held(&world, 0, key).is_deleted())).await;
        // Rounds begin, and the others do not confirm.
        world.executor.sleep(Duration::from_secs(30)).await;
        assert_eq!([0, 1, 2].map(|position| records(&world, position)), [20, 20, 20]);
        for key in &keys {
            assert!(
                held(&world, 1, key).expires_min().is_some() && held(&world, 2, key).expires_min().is_some()
            );
            let found = store.get(key.clone()).await.expect("all are up");
            assert_eq!(found.value(), Some(Bytes::from_static(b"long")), "the bytes win");
        }
        wall.skew_ms.store(before, Ordering::Relaxed);
        until(&world, "nothing is left", || (0..3).all(|position| records(&world, position) == 0)).await;
    });
}

#[test]
fn runs_in_which_most_values_expire_break_no_promise() {
    for seed in 1..=6 {
        let setup = Setup { expiring: 900, ..Setup::ordinary(seed) };
        let report = play_run(setup);
        let log = report.log.join("\n");
        assert_eq!(report.violations, Vec::<Violation>::new(), "seed {seed}\n{log}");
    }
}
