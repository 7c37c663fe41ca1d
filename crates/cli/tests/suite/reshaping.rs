//! Other bounds on real processes: partitions are cut, joined and doubled under load, while nodes come and go.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use client::StoreHandle;
use model::{Partition, PartitionId};
use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::{Cluster, TONTINE};
use crate::observe::{addresses, connect, kill_headmaster, put, until};
use crate::resp::{Redis, Reply};
use crate::traffic::{Stops, Traffic};

/// Records beside those of the clients.
const RECORDS: u32 = 2_000;

/// Partitions of a new cluster.
const PARTITIONS: usize = 1024;

/// The ring, as a client learns of it that has just come.
fn ring(cluster: &Cluster) -> Vec<Partition> {
    Idle::connect(cluster).ring()
}

/// Waits until nodes tell a ring of this many partitions. A plan is done when its last document is published, and a busy node
/// follows the one before for a moment yet.
#[track_caller]
fn await_ring(cluster: &Cluster, partitions: usize) {
    until("nodes follow the newest ring", || ring(cluster).len(), |found| *found == partitions);
}

/// Carries out a plan, and says what it came to. What nodes say of one that was just killed may come late.
#[track_caller]
fn carried_out(cluster: &Cluster, words: &[&str]) -> Json {
    let created = cluster.json(&[&["plan", "create"], words].concat());
    let number = created["plan"].as_u64().unwrap_or_else(|| panic!("{created}")).to_string();
    let apply = || cluster.run(&["plan", "apply", &number]);
    until(&format!("plan {number} is done"), apply, |applied| applied.code == 0);
    cluster.json(&["plan", "show", &number])
}

/// A client that does nothing in between, so it learns of no newer ring.
struct Idle {
    runtime: tokio::runtime::Runtime,
    store: StoreHandle,
}

impl Idle {
    fn connect(cluster: &Cluster) -> Idle {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(connect(addresses(cluster)));
        Idle { runtime, store }
    }

    fn ring(&self) -> Vec<Partition> {
        self.store.cluster().ring.partitions().to_vec()
    }

    /// Reads and writes each record.
    fn check_records(&self) {
        self.runtime.block_on(async {
            for number in 0..RECORDS {
                let key = format!("key-{number}");
                let found = self.store.get(key.clone()).await.unwrap();
                assert_eq!(found.value().as_deref(), Some(&b"value"[..]), "{key}");
                if number % 50 == 0 {
                    self.store.put(key, "value", Default::default()).await.unwrap();
                }
            }
        });
    }
}

/// A walk over all keys by a Redis client.
struct Walk {
    redis: Redis,
    cursor: Vec<u8>,
    met: Vec<Vec<u8>>,
}

impl Walk {
    fn begin(cluster: &Cluster) -> Walk {
        Walk { redis: Redis::connect(&cluster.resp(1)), cursor: b"0".to_vec(), met: Vec::new() }
    }

    /// One page; whether another one follows.
    fn page(&mut self) -> bool {
        let words: [&[u8]; 4] = [b"SCAN", &self.cursor, b"COUNT", b"100"];
        let reply = self.redis.call(&words);
        let Reply::List(parts) = &reply else { panic!("{reply:?}") };
        let [Reply::Bulk(Some(cursor)), Reply::List(keys)] = &parts[..] else { panic!("{reply:?}") };
        self.cursor.clone_from(cursor);
        for key in keys {
            let Reply::Bulk(Some(key)) = key else { panic!("{key:?}") };
            self.met.extend(key.starts_with(b"key-").then(|| key.clone()));
        }
        self.cursor != b"0"
    }

    fn pages(&mut self, count: usize) {
        (0..count).for_each(|_| assert!(self.page(), "the walk is over too early"));
    }

    /// Goes to the end: every record was met once.
    fn end(mut self) {
        while self.page() {}
        assert_eq!(self.met.len(), RECORDS as usize);
        assert_eq!(self.met.into_iter().collect::<BTreeSet<_>>().len(), RECORDS as usize);
    }
}

/// Exports the store and lists its keys: every record is there once.
fn check_walks(connect: &str) {
    for words in [&["export", "-"][..], &["keys", "--prefix", "key-"]] {
        let mut command = Command::new(TONTINE);
        command.args(words).env("TONTINE_CONNECT", connect).env("TONTINE_DEADLINE", "1m");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("key-")).collect();
        assert_eq!(lines.len(), RECORDS as usize, "{words:?}");
        assert_eq!(lines.into_iter().collect::<BTreeSet<_>>().len(), RECORDS as usize, "{words:?}");
    }
}

/// The first two neighbours that lie on different nodes, or on the same.
fn neighbours(ring: &[Partition], alike: bool) -> (PartitionId, PartitionId) {
    let set = |partition: &Partition| partition.nodes[..3].iter().copied().collect::<BTreeSet<_>>();
    let pair = ring.windows(2).find(|pair| (set(&pair[0]) == set(&pair[1])) == alike);
    let pair = pair.expect("four nodes, three of them for each partition");
    (pair[0].id, pair[1].id)
}

#[test]
fn partitions_are_cut_joined_and_doubled_under_load_while_nodes_come_and_go_and_nothing_is_lost() {
    let mut cluster = Cluster::with(4, &["--repair-period=1h"]);
    put(&cluster, 0..RECORDS, "value");
    let (idle, traffic, stop) = (Idle::connect(&cluster), Traffic::start(&cluster), AtomicBool::new(false));
    let mut walk = Walk::begin(&cluster);
    traffic.await_more(200);
    let connect = cluster.connect();
    std::thread::scope(|threads| {
        let _stops = Stops(&stop);
        let walks = threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                check_walks(&connect);
            }
        });
        walk.pages(3);
        carried_out(&cluster, &["split", "5"]);
        await_ring(&cluster, PARTITIONS + 1);
        walk.pages(3);
        // One that learns nothing.
        cluster.end_node(2, Signal::KILL);
        carried_out(&cluster, &["double"]);
        await_ring(&cluster, 2 * (PARTITIONS + 1));
        traffic.await_more(200);
        walk.pages(3);
        cluster.start_node_again(2);
        let (first, second) = neighbours(&ring(&cluster), false);
        let merged = carried_out(&cluster, &["merge", &first.to_string(), &second.to_string()]);
        assert_eq!(
            merged["document"]["change"]["moves"].as_array().unwrap().len(),
            1,
            "one comes to the other first"
        );
        walk.pages(3);
        let (first, second) = neighbours(&ring(&cluster), true);
        kill_headmaster(&cluster);
        carried_out(&cluster, &["merge", &second.to_string(), &first.to_string()]);
        traffic.await_more(200);
        stop.store(true, Ordering::Relaxed);
        walks.join().unwrap();
    });
    await_ring(&cluster, 2 * PARTITIONS);
    walk.end();
    assert_eq!(idle.ring().len(), PARTITIONS, "it has heard of nothing yet");
    idle.check_records();
    assert_eq!(idle.ring().len(), 2 * PARTITIONS);
    let heard = traffic.end();
    assert!(heard.failed.is_empty(), "{:?}", heard.failed);
    heard.check(&cluster);
    check_walks(&cluster.connect());
    // What was killed, and heard of it later, has everything where it belongs.
    cluster.end_node(3, Signal::KILL);
    Idle::connect(&cluster).check_records();
    heard.check(&cluster);
}

#[test]
fn plans_say_what_is_cut_and_joined_and_bounds_that_cannot_be_change_nothing() {
    let cluster = Cluster::start();
    let create = |words: &[&str]| cluster.run(&[&["plan", "create"], words].concat());
    let dry = create(&["split", "p5", "--dry-run"]).exits(0).text();
    assert!(dry.starts_with("split p5, computed from generation"), "{dry}");
    assert!(dry.contains("1 partition cut in two, no data moves"), "{dry}");
    let dry = create(&["double", "--dry-run", "--json"]).exits(0).json();
    assert_eq!(dry["plan"], Json::Null);
    assert_eq!(dry["document"]["change"]["reshape"]["cuts"].as_array().unwrap().len(), PARTITIONS);
    create(&["split", "5", "--at", "7"]).fails_with("p5 cannot be cut at token 7: it can be cut from");
    create(&["split", "5", "--at", "7", "--dry-run"]).fails_with("p5 cannot be cut at token 7");
    create(&["split", "5000"]).fails_with("the ring has no partition p5000");
    create(&["merge", "5", "9"]).fails_with("p5 can be merged with p4 or p6");
    create(&["replace", "1", "--by", "1"]).fails_with("n1 cannot take its own places");
    create(&["drain", "9"]).fails_with("becomes a member with `tontine node add 9`");
    let unknown = cluster.run(&["plan", "show", "99", "-o", "json"]).fails_in_json();
    assert_eq!((&unknown["kind"], &unknown["facts"]["plan"]), (&Json::from("plan-unknown"), &Json::from(99)));
    let refused = cluster.run(&["balance", "set", "speed=3", "-o", "json"]).fails_in_json();
    assert_eq!(
        (&refused["kind"], &refused["facts"]["because"]["code"]),
        (&Json::from("setting"), &Json::from("unknown"))
    );
    cluster.run(&["balance", "why", "p5000"]).fails_with(" status` says how many it has");
    assert!(cluster.run(&["plan", "history"]).exits(0).text().contains("there is no plan"));
    await_ring(&cluster, PARTITIONS);

    create(&["split", "5"]).exits(0);
    let diff = cluster.run(&["plan", "diff", "1"]).exits(0).text();
    assert!(diff.contains("CUT AT TOKEN") && diff.contains("p1024"), "{diff}");
    let end = cluster.run(&["plan", "apply", "1"]).exits(0).text();
    assert!(end.contains("plan 1 is done") && end.contains("1 partition cut in two, no data moved"), "{end}");
    cluster.run(&["plan", "apply", "1"]).fails_with("it is done already");
    create(&["merge", "1024", "p5"]).exits(0);
    let diff = cluster.run(&["plan", "diff", "2"]).exits(0).text();
    assert!(diff.contains("partition p5 takes in p1024"), "{diff}");
    cluster.run(&["plan", "apply", "2"]).exits(0);
    for _ in 0..2 {
        carried_out(&cluster, &["double"]);
    }
    await_ring(&cluster, 4 * PARTITIONS);
    create(&["double"]).fails_with("is one bucket of the 4096 that the cluster was made with");
    create(&["split", "5"]).fails_with("p5 cannot be cut: it is one bucket");
    let history = cluster.run(&["plan", "history"]).exits(0).text();
    for line in ["split p5", "merge p1024 and p5", "double all partitions"] {
        assert!(history.contains(line), "{history}");
    }
}
