//! What the autopilot must not do, on processes: by the numbers of `docs/design/balance.md`.
//!
//! A headmaster looks for 38 seconds before it decides, so these tests take long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use model::{NodeId, Token};
use serde_json::Value as Json;

use crate::cluster::Cluster;
use crate::observe::{addresses, connect, kill_headmaster, put, until};
use crate::resp::{Redis, Reply};

const RECORDS: u32 = 2_000;

/// Clients that ask without a pause, in their own threads. They stop when this goes.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Commands that a node refused because it has too much to do.
    refused: Arc<AtomicU64>,
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a client failed");
        }
    }
}

impl Load {
    fn idle() -> Load {
        Load { stop: Arc::default(), threads: Vec::new(), refused: Arc::default() }
    }

    /// Native gets of keys that one node alone holds.
    fn of_node(cluster: &Cluster, node: u32) -> Load {
        let (addresses, mut load) = (addresses(cluster), Load::idle());
        let stop = load.stop.clone();
        load.threads.push(std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let store = connect(addresses).await;
                let ring = store.cluster().ring.clone();
                let is_there =
                    |key: &String| ring.partition(Token::of(key.as_bytes())).nodes[0] == NodeId(node);
                let keys: Vec<String> =
                    (0..RECORDS).map(|number| format!("key-{number}")).filter(is_there).collect();
                while !stop.load(Ordering::Relaxed) {
                    for some in keys.chunks(16) {
                        let gets = join_all(some.iter().map(|key| store.get(key.clone()))).await;
                        assert!(gets.iter().all(Result::is_ok), "{gets:?}");
                    }
                }
            });
        }));
        load
    }

    /// Pipelines of a Redis client: of gets, with as many puts in a hundred.
    fn at_door(&mut self, address: String, pipeline: u32, puts: u32) {
        let (stop, refused) = (self.stop.clone(), self.refused.clone());
        self.threads.push(std::thread::spawn(move || {
            let mut redis = Redis::connect(&address);
            let mut next = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..pipeline {
                    next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let key = format!("key-{}", (next >> 8) % RECORDS);
                    match (next >> 4) % 100 < puts {
                        true => redis.send(&[b"SET", key.as_bytes(), b"value"]),
                        false => redis.send(&[b"GET", key.as_bytes()]),
                    }
                }
                for _ in 0..pipeline {
                    match redis.reply() {
                        Reply::Error(why) if why.starts_with("OVERLOADED") => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Reply::Error(why) => panic!("{why}"),
                        _ => {}
                    }
                }
            }
        }));
    }
}

/// The autopilot's last word.
fn verdict(cluster: &Cluster) -> Json {
    cluster.json(&["balance", "why"])["verdict"].clone()
}

fn plan(cluster: &Cluster, number: u64) -> Option<Json> {
    let shown = cluster.run(&["plan", "show", &number.to_string(), "--json"]);
    (shown.code == 0).then(|| shown.json())
}

/// A plan of the autopilot that copies is under way when a node is drained: it goes back, and the order is carried out.
#[test]
#[ignore = "takes a minute; ./check --full process runs it"]
fn must_not_6_an_operators_order_waits_for_the_autopilot_or_is_refused_because_of_it() {
    let cluster = Cluster::with(3, &["--partitions=16", "--consistency=1,1,1", "--repair-period=1h"]);
    put(&cluster, 0..RECORDS, "value");
    // All that is done is done by one node, however little it is of what a fast machine could do.
    cluster.run(&["balance", "set", "least=1", "disk-full=100", "disk-gives=100"]).exits(0);
    let _load = Load::of_node(&cluster, 1);
    let begun = |plan: &Option<Json>| plan.as_ref().is_some_and(|plan| plan["phase"] == "applying");
    let told = until("a plan of the autopilot is under way", || plan(&cluster, 1), begun).unwrap();
    assert_eq!(told["document"]["by"], "autopilot", "{told}");
    assert!(told["document"]["decision"]["node"] == 1, "{told}");

    let began = Instant::now();
    let ordered = cluster.run(&["node", "drain", "3", "--no-wait"]).exits(0);
    let waited = began.elapsed();
    let first = plan(&cluster, 1).unwrap();
    assert_eq!(first["phase"], "aborted", "it goes back, and does not go on: {first} {}", ordered.text());
    assert!(first["state"]["order"].as_u64() > Some(0), "because of the order: {first}");
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    let drained = until(
        "the order is carried out",
        || plan(&cluster, 2),
        |plan| plan.as_ref().is_some_and(|plan| plan["phase"] == "done"),
    );
    assert_ne!(drained.unwrap()["document"]["by"], "autopilot");
    let held =
        || cluster.json(&["balance", "status", "--seconds", "1"])["nodes"][2]["load"]["partitions"].clone();
    until("node 3 holds nothing", held, |held| held.as_u64().unwrap_or(0) == 0);
}

/// Node 1 does far more than the others, and no move of any partition would change that.
#[test]
#[ignore = "takes two minutes; ./check --full process runs it"]
fn must_not_3_requests_of_clients_that_belong_to_no_partition_move_nothing() {
    let (said, last) = all_at_one_node(20);
    // Over minutes it may also see that it does a little more for its partitions, which no order of lists would change.
    assert!(said.iter().any(|code| code == "coordinates"), "{said:?} {last:#}");
}

/// It stamps what its clients write itself, whatever its place.
#[test]
#[ignore = "takes two minutes; ./check --full process runs it"]
fn must_not_3_writes_that_all_clients_ask_of_one_node_move_nothing() {
    let (said, last) = all_at_one_node(100);
    assert!(said.iter().any(|code| code == "coordinates"), "{said:?} {last:#}");
}

/// All Redis clients are at one of three nodes, this many percent of what they ask are writes, and nothing moves: the codes
/// that were said, and the last verdict.
fn all_at_one_node(writes: u32) -> (Vec<String>, Json) {
    const WATCHED: Duration = Duration::from_secs(100);
    let cluster = Cluster::with(3, &["--partitions=32"]);
    put(&cluster, 0..RECORDS, "value");
    cluster.run(&["balance", "set", "least=1", "disk-full=100", "disk-gives=100"]).exits(0);
    let mut load = Load::idle();
    (0..2).for_each(|_| load.at_door(cluster.resp(1), 8, writes));
    let began = Instant::now();
    let mut said = Vec::new();
    while began.elapsed() < WATCHED {
        let told = cluster.json(&["balance", "why"]);
        let code = told["verdict"]["says"]["code"].as_str().unwrap_or("nothing").to_owned();
        if said.last() != Some(&code) {
            said.push(code);
        }
        assert_eq!(told["policy"]["mode"], "on");
        assert_eq!(plan(&cluster, 1), None, "something moves: {said:?} {told:#}");
        std::thread::sleep(Duration::from_secs(2));
    }
    let last = verdict(&cluster);
    let seen = last["seen"].as_array().unwrap();
    let number = |at: &Json, field: &str| at[field].as_f64().unwrap();
    let busy = |at: &Json| number(at, "load") + number(at, "beside");
    assert!(busy(&seen[0]) > 1.5 * busy(&seen[1]), "node 1 was hardly busier than the others: {last:#}");
    let code = last["says"]["code"].as_str().unwrap();
    assert!(["coordinates", "nothing-helps", "balanced", "unsure"].contains(&code), "{said:?} {last:#}");
    (said, last)
}

/// All places for requests and connections of clients are taken at one node.
#[test]
#[ignore = "takes a minute; ./check --full process runs it"]
fn must_not_5_an_overloaded_node_refuses_the_headmaster() {
    let few = ["--requests-max=16", "--connections-max=32", "--workers=1"];
    let cluster = Cluster::with(3, &[&few[..], &["--partitions=16", "--consistency=2,2,2"]].concat());
    put(&cluster, 0..RECORDS, "value");
    let mut load = Load::idle();
    (0..4).for_each(|_| load.at_door(cluster.resp(1), 200, 0));
    let refused = || load.refused.load(Ordering::Relaxed);
    until("the node refuses requests", refused, |refused| *refused > 1_000);
    // It answers what operators and headmasters ask.
    let status = cluster.json(&["balance", "status", "--seconds", "2"]);
    let ages = status["nodes"].as_array().unwrap().iter().map(|node| node["age_ms"].as_u64());
    assert!(ages.into_iter().all(|age| age.is_some_and(|age| age < 15_000)), "{status:#}");

    // Now it takes no connection of clients, either, and a headmaster comes that has none yet.
    let idle: Vec<Redis> = (0..40).map(|_| Redis::connect(&cluster.resp(1))).collect();
    let connects = || Redis::connect(&cluster.resp(1)).reply_within(Duration::from_millis(300));
    let told = until("no client is taken", connects, Option::is_some);
    assert_eq!(told, Some(Reply::Error("ERR max number of clients reached".to_owned())));
    let killed_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    kill_headmaster(&cluster);
    let others = format!("{},{}", cluster.native(2), cluster.native(3));
    let run = |words: &[&str]| cluster.run(&[words, &["--connect", &others, "--json"]].concat());
    // A plan wants to know how much each node has to copy.
    let created = run(&["plan", "create", "drain", "3"]).exits(0).json();
    run(&["plan", "abort", &created["plan"].to_string()]).exits(0);
    let before = refused();
    let word = || run(&["balance", "why"]).exits(0).json()["verdict"].clone();
    let is_new = |told: &Json| {
        assert_ne!(told["says"]["code"], "node-silent", "{told:#}");
        let at_ms = told["at_ms"].as_u64().map_or(0, u128::from);
        at_ms > killed_ms + 10_000 && told["seen"].as_array().is_some_and(|seen| !seen.is_empty())
    };
    let told = until("the new headmaster has seen all loads", word, is_new);
    let ages = told["seen"].as_array().unwrap().iter().map(|at| at["age_ms"].as_u64().unwrap());
    assert!(ages.clone().count() == 3 && ages.clone().all(|age| age < 15_000), "{told:#}");
    assert!(refused() > before + 1_000, "it was not overloaded all the time");
    let still = connects().expect("it is full");
    assert_eq!(still, Reply::Error("ERR max number of clients reached".to_owned()));
    drop(idle);
}
