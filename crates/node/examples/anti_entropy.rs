//! What equality costs: hash trees on every write, comparing equal replicas, finding and repairing differences.
//!
//! ```text
//! cargo run --release -p node --example anti_entropy -- writes  [--records N] [--rounds N] [--engine memory|log]
//! cargo run --release -p node --example anti_entropy -- control [--records N] [--rounds N] [--engine memory|log]
//! cargo run --release -p node --example anti_entropy -- compare [--records N] [--differences N] [--rounds N]
//! ```
//!
//! `writes` overwrites random keys of one store with and without trees, in pairs of turns: the processor time of the
//! writing thread. `control` is the same with no trees on either side: by how much two equal stores differ.
//! `compare` runs two whole nodes in this process, over TCP on this machine, both with the same records, and has one
//! compare with the other.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people, run by hand")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use coordination::documents;
use coordination::memory::MemoryService;
use model::{Cluster, Consistency, Node as Member, NodeId, Ring, Store, StoreName, Token, Value, Zone};
use node::engines::MemoryEngines;
use node::stores::{KeyPlace, LocalStore, Stamper, WriteOrder};
use node::view::{CurrentView, View};
use node::{Node, NodeConfig};
use runtime::Ports;
use runtime::clock::os::OsClock;
use runtime::disk::os::OsDisk;
use runtime::disk::simulated::SimulatedDisk;
use runtime::network::tcp::TcpNetwork;
use runtime::tasks::os::OsTasks;
use runtime::workers::Workers;
use serde_json::Value as Json;
use storage::{EnginePorts, LogEngine, LogOptions, MemoryEngine, StorageEngine};
use wire::messages::Condition;

const VALUE_BYTES: usize = 100;

struct Arguments {
    what: String,
    records: u64,
    differences: u64,
    rounds: usize,
    engine: String,
}

fn arguments() -> Arguments {
    let mut given = std::env::args().skip(1);
    let what = given.next().expect("say writes, control or compare");
    let mut parsed =
        Arguments { what, records: 1_000_000, differences: 1000, rounds: 10, engine: "memory".to_owned() };
    while let Some(flag) = given.next() {
        let mut value = || given.next().unwrap_or_else(|| panic!("{flag} needs a value"));
        match flag.as_str() {
            "--records" => parsed.records = value().parse().unwrap(),
            "--differences" => parsed.differences = value().parse().unwrap(),
            "--rounds" => parsed.rounds = value().parse().unwrap(),
            "--engine" => parsed.engine = value(),
            _ => panic!("unknown option {flag}"),
        }
    }
    parsed
}

fn main() {
    let arguments = arguments();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match arguments.what.as_str() {
        "writes" | "control" => runtime.block_on(writes(&arguments)),
        "compare" => runtime.block_on(compare(&arguments)),
        other => panic!("{other} is neither writes nor compare"),
    }
}

fn key(number: u64) -> Bytes {
    format!("key:{number:012}").into()
}

fn order(filler: u8) -> WriteOrder {
    let value = Value::Present(Bytes::from(vec![filler; VALUE_BYTES]));
    WriteOrder { context: None, condition: Condition::None, expires: None, value }
}

fn definition(replicas: u8) -> Store {
    let consistency = Consistency { replicas, reads_required: 1, writes_required: 1 };
    Store::new(StoreName::new("default").unwrap(), consistency).unwrap()
}

fn cluster(addresses: &[String]) -> Cluster {
    let member = |(position, native): (usize, &String)| {
        Member::new(NodeId(position as u32 + 1), Zone("z".to_owned()), native.as_str(), None)
    };
    let nodes: Vec<Member> = addresses.iter().enumerate().map(member).collect();
    let zones: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let stores = vec![definition(addresses.len() as u8)];
    Cluster::new("bench", nodes, Ring::equal_slices(1024, &zones), stores)
}

/// Processor time of the calling thread so far.
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

async fn engine(kind: &str, directory: &Path, name: &str) -> Arc<dyn StorageEngine> {
    match kind {
        "memory" => Arc::new(MemoryEngine::new()),
        "log" => {
            let ports =
                EnginePorts { clock: Arc::new(OsClock::new()), tasks: Arc::new(OsTasks::start().unwrap()) };
            let disk = Arc::new(OsDisk::open(directory).unwrap());
            LogEngine::open(disk, name, LogOptions::default(), ports).await.unwrap()
        }
        other => panic!("no engine {other}"),
    }
}

async fn writes(arguments: &Arguments) {
    let directory: PathBuf =
        std::env::temp_dir().join(format!("tontine-anti-entropy-{}", std::process::id()));
    let stamper = || Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(OsClock::new())));
    let store = async |name| {
        let engine = engine(&arguments.engine, &directory, name).await;
        Arc::new(LocalStore::new(definition(1), engine, stamper()))
    };
    let (plain, treed) = (store("plain").await, store("treed").await);
    // Only a store that has seen a ring keeps trees.
    let shaped = if arguments.what == "control" { store("third").await } else { treed.clone() };
    let view =
        CurrentView::new(View::new(Arc::new(cluster(&["127.0.0.1:1".to_owned()])), vec![shaped])).get();
    let routed = |number| {
        let key = key(number);
        let place = view.route(&treed, &key).place;
        (key, place)
    };
    let places: Vec<(Bytes, KeyPlace)> = (0..arguments.records).map(routed).collect();
    for store in [&plain, &treed] {
        for (key, place) in &places {
            store.stamp(*place, key, order(1)).unwrap();
        }
    }
    let operations = places.len().min(200_000);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut turn = |store: &LocalStore| {
        let before = thread_time();
        for _ in 0..operations {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (key, place) = &places[(random >> 33) as usize % places.len()];
            store.stamp(*place, key, order(random as u8)).unwrap();
        }
        (thread_time() - before).as_nanos() as f64 / operations as f64
    };
    let mut pairs = Vec::new();
    for round in 0..arguments.rounds {
        // Each first in turn.
        let (plain, treed) = if round % 2 == 0 {
            let plain = turn(&plain);
            (plain, turn(&treed))
        } else {
            let treed = turn(&treed);
            (turn(&plain), treed)
        };
        pairs.push((treed / plain, plain, treed));
        println!(
            "round {round}: {plain:.0} ns without trees, {treed:.0} ns with, ratio {:.3}",
            treed / plain
        );
    }
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ratio, plain, treed) = pairs[pairs.len() / 2];
    println!(
        "{} engine, {} records: median ratio {ratio:.3} ({plain:.0} ns and {treed:.0} ns), from {:.3} to {:.3}",
        arguments.engine,
        arguments.records,
        pairs[0].0,
        pairs[pairs.len() - 1].0
    );
    // It is ours and nobody else looks for it.
    let _ = std::fs::remove_dir_all(directory);
}

/// A node of the cluster with its worker.
async fn start(id: u32, service: &MemoryService) -> (Arc<Node>, Workers<()>, Ports) {
    let mut ports = Ports::os().unwrap();
    ports.network = Arc::new(TcpNetwork::new());
    let mut config = NodeConfig::new(NodeId(id), "bench");
    config.antientropy.period = Duration::from_secs(3600);
    let disk = Arc::new(SimulatedDisk::new(u64::from(id)));
    let session = Arc::new(service.open());
    let node = Node::start(config, ports.clone(), disk, Arc::new(MemoryEngines), session).await.unwrap();
    let address = node.replica().view().get().cluster().node(NodeId(id)).unwrap().native.clone();
    let serving = node.clone();
    let workers = Workers::start(1, &ports, move |worker| {
        let (node, address) = (serving.clone(), address.clone());
        async move {
            let ports = worker.ports.clone();
            let service = node.worker(worker.ports).service;
            let mut listener = ports.network.listen(&address).await.unwrap();
            while let Ok(link) = listener.accept().await {
                ports.tasks.spawn(Box::pin(service.clone().serve(link)));
            }
        }
    })
    .unwrap();
    (node, workers, ports)
}

fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// One comparison, from the order to its end: how long it took by the node's own account, and what it found.
fn compare_once(node: &Node) -> (Duration, Json) {
    let ended = |status: &Json| status["peers"][0].clone();
    let before = ended(&node.antientropy().status());
    let began = Instant::now();
    node.antientropy().ask_for(NodeId(2));
    loop {
        std::thread::sleep(Duration::from_millis(1));
        let now = ended(&node.antientropy().status());
        let fresh = now["seconds_ago"].as_f64().is_some_and(|ago| ago < began.elapsed().as_secs_f64());
        if fresh && (before.is_null() || now["took_ms"] != before["took_ms"]) {
            let took = Duration::from_secs_f64(now["took_ms"].as_f64().unwrap() / 1e3);
            return (took, now["outcome"].clone());
        }
    }
}

async fn compare(arguments: &Arguments) {
    let service = MemoryService::new();
    let addresses = [free_address(), free_address()];
    documents::publish_cluster(&service.open(), &cluster(&addresses)).await.unwrap();
    let (first, _first_workers, _first_ports) = start(1, &service).await;
    let (second, _second_workers, _second_ports) = start(2, &service).await;
    let view = first.replica().view().get();
    let mine = view.stores()[0].clone();
    let theirs = second.replica().view().get().stores()[0].clone();
    let place =
        |key: &Bytes| KeyPlace { partition: view.route(&mine, key).place.partition, token: Token::of(key) };
    println!("loading {} records into both nodes", arguments.records);
    for number in 0..arguments.records {
        let key = key(number);
        let stamped = mine.stamp(place(&key), &key, order(1)).unwrap();
        theirs.merge(place(&key), &key, &stamped.set).unwrap();
    }
    println!("hash trees: {}", first.antientropy().status()["trees"][0]);
    for round in 0..arguments.rounds {
        let (took, outcome) = compare_once(&first);
        println!("equal, round {round}: {:.1} ms, {outcome}", took.as_secs_f64() * 1e3);
    }
    for round in 0..arguments.rounds as u64 {
        for number in 0..arguments.differences {
            let spread = number.wrapping_mul(7919).wrapping_add(round * 104_729) % arguments.records;
            let key = key(spread);
            // Half of them on each side.
            let store = if number % 2 == 0 { &mine } else { &theirs };
            store.stamp(place(&key), &key, order(2)).unwrap();
        }
        let (took, outcome) = compare_once(&first);
        let differences = arguments.differences;
        println!("{differences} differences, round {round}: {:.1} ms, {outcome}", took.as_secs_f64() * 1e3);
    }
}
