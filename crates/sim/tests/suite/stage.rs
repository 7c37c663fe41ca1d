//! A cluster and one client, for stories that a test tells itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, ClientOptions, PutOptions};
use model::{Moment, VersionSet};
use node::stores::{KeyPlace, LocalStore};
use sim::cluster::{LAST_WRITE, World};
use sim::executor::WallClock;
use sim::host::Host;
use sim::network::Conditions;
use sim::swarm::{EngineKind, Losses, Setup};
use storage::Durability;

/// Three nodes that hold everything, a calm network, and nobody who does harm.
pub(crate) fn setup(seed: u64) -> Setup {
    let mut setup = Setup::ordinary(seed);
    (setup.nodes, setup.replicas, setup.reads, setup.writes, setup.sloppy) = (3, 3, 2, 2, false);
    // Fallbacks answer for replicas only where reads may go backwards.
    setup.monotonic = false;
    (setup.engine, setup.losses) = (EngineKind::Log(Durability::Always), Losses::None);
    (setup.conditions, setup.deadline) = (Conditions::calm(), Duration::from_secs(1));
    (setup.faults, setup.harms) = (Vec::new(), 0);
    setup
}

/// Plays a story with a client.
pub(crate) fn play<F>(setup: Setup, story: impl FnOnce(Arc<World>, Client) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send,
{
    let world = World::new(setup);
    let done = Arc::new(AtomicBool::new(false));
    let process = world.executor.process();
    let (stage, ended) = (world.clone(), done.clone());
    let body = async move {
        stage.found().await;
        for position in 0..stage.machines().len() {
            stage.start(position);
        }
        until(&stage, "all nodes stand", || stage.all_up()).await;
        let ports = stage.ports(Host(101), process, Arc::new(WallClock::default()));
        let client = Client::connect(&stage.addresses(), ports, ClientOptions::default()).await;
        Box::pin(story(stage, client.expect("nothing is in the way"))).await;
        ended.store(true, Ordering::Relaxed);
    };
    world.executor.spawn(process, Box::pin(body));
    let ran = world.executor.run(&done, Moment::default().after(Duration::from_secs(600)));
    let log = world.log().join("\n");
    world.end();
    ran.unwrap_or_else(|halt| panic!("{halt:?}\n{log}"));
}

pub(crate) async fn until(world: &World, what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = world.executor.now().after(Duration::from_secs(120));
    while !holds() {
        assert!(world.executor.now() < give_up, "never: {what}");
        world.executor.sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn keys(count: u32) -> Vec<Bytes> {
    (0..count).map(|number| Bytes::from(format!("key {number}"))).collect()
}

pub(crate) async fn put_all(world: &World, client: &Client, keys: &[Bytes], value: &'static str) {
    let store = client.store(LAST_WRITE).expect("the cluster has it");
    for key in keys {
        let mut attempts = 0;
        // A write whose node has just died is made again.
        while let Err(error) =
            store.put(key.clone(), Bytes::from_static(value.as_bytes()), PutOptions::default()).await
        {
            attempts += 1;
            assert!(attempts < 100, "{error}");
            world.executor.sleep(Duration::from_millis(20)).await;
        }
    }
}

pub(crate) fn local(world: &World, position: usize) -> Arc<LocalStore> {
    let node = world.node(position).expect("it runs");
    node.replica().view().get().store(LAST_WRITE).expect("the cluster has it").clone()
}

pub(crate) fn place(world: &World, position: usize, key: &Bytes) -> KeyPlace {
    let node = world.node(position).expect("it runs");
    let view = node.replica().view().get();
    view.route(&local(world, position), key).place
}

pub(crate) fn held(world: &World, position: usize, key: &Bytes) -> VersionSet {
    local(world, position).get(place(world, position, key), key).unwrap_or_default()
}

pub(crate) async fn equal(world: &World, keys: &[Bytes]) {
    let whole = || keys.iter().all(|key| !held(world, 0, key).is_empty());
    until(world, "equal replicas", || whole() && world.difference(keys).is_none()).await;
}

pub(crate) async fn shows_none(client: &Client, keys: &[Bytes]) {
    let store = client.store(LAST_WRITE).expect("the cluster has it");
    for key in keys {
        assert_eq!(store.get(key.clone()).await.expect("two replicas answer").value(), None);
    }
}

pub(crate) fn records(world: &World, position: usize) -> u64 {
    local(world, position).engine().stats().records
}
