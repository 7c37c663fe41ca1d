//! Locks that clients take with *if absent* through different nodes, while lists get another order again and again: on
//! processes. `sim/tests/suite/locks.rs` plays the same with nodes that hang, and with far more reorderings.
//!
//! A client holds a lock from the answer that it wrote the key until it asks for its deletion. Of a write in doubt nobody
//! can tell: its client holds nothing, and all go on with the next lock.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::{DeleteOptions, PutOptions, StoreHandle};
use coordination::documents;
use coordination::embedded::EmbeddedSession;
use model::{NodeId, PartitionId};
use protocol::rebalance::steps;
use wire::messages::Condition;

use crate::cluster::Cluster;
use crate::observe::{addresses, connect, metric};
use crate::resp::{Redis, Reply};
use crate::traffic::Stops;

/// How long the clients want locks.
const SPAN: Duration = Duration::from_secs(10);
/// How long they may want them until they were handed on often enough: a machine that does much else is slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// So often, at least, locks must be handed on, and lists be reordered.
const HANDED_MIN: u64 = 100;
const REORDERINGS_MIN: u32 = 40;
/// The pause between two reorderings.
const PAUSE: Duration = Duration::from_millis(60);

/// Who holds what, and what must not have happened.
#[derive(Default)]
struct Locks {
    stop: AtomicBool,
    /// The lock that all want now.
    number: AtomicU64,
    held: Mutex<BTreeMap<u64, usize>>,
    last: AtomicU64,
    /// How often a lock was taken by another client than before.
    handed: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

/// How an attempt to take or to leave a lock ended.
enum Ended {
    Done,
    Refused,
    InDoubt,
}

/// What a client locks with.
enum Hands {
    Native(tokio::runtime::Runtime, StoreHandle),
    Redis(Redis),
}

impl Hands {
    fn native(cluster: &Cluster) -> Hands {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(connect(addresses(cluster)));
        Hands::Native(runtime, store)
    }

    fn take(&mut self, key: &str) -> Ended {
        match self {
            Hands::Native(runtime, store) => {
                let options = PutOptions { condition: Condition::IfAbsent, ..PutOptions::default() };
                match runtime.block_on(store.put(key.to_owned(), "held", options)) {
                    Ok(_) => Ended::Done,
                    Err(error) if error.is_indeterminate() => Ended::InDoubt,
                    Err(_) => Ended::Refused,
                }
            }
            Hands::Redis(redis) => match redis.call(&[b"SET", key.as_bytes(), b"held", b"NX"]) {
                Reply::Status(_) => Ended::Done,
                Reply::Bulk(None) => Ended::Refused,
                _ => Ended::InDoubt,
            },
        }
    }

    fn leave(&mut self, key: &str) -> Ended {
        match self {
            Hands::Native(runtime, store) => {
                let options = DeleteOptions { condition: Condition::IfPresent, ..DeleteOptions::default() };
                match runtime.block_on(store.delete(key.to_owned(), options)) {
                    Ok(_) => Ended::Done,
                    Err(error) if error.to_string().contains("does not exist") => Ended::Refused,
                    Err(_) => Ended::InDoubt,
                }
            }
            Hands::Redis(redis) => match redis.call(&[b"DEL", key.as_bytes()]) {
                Reply::Number(1) => Ended::Done,
                Reply::Number(0) => Ended::Refused,
                _ => Ended::InDoubt,
            },
        }
    }
}

impl Locks {
    /// Takes the lock and leaves it, until all stop.
    fn contend(&self, by: usize, mut hands: Hands) {
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.number.load(Ordering::Relaxed);
            let key = format!("lock {number}");
            match hands.take(&key) {
                Ended::Done => {
                    self.taken(number, by);
                    std::thread::sleep(Duration::from_millis(3));
                    self.held.lock().unwrap().retain(|lock, holder| (*lock, *holder) != (number, by));
                    match hands.leave(&key) {
                        Ended::Done => {}
                        Ended::Refused => self.is_wrong(format!("c{by} held {key}, and found it gone")),
                        Ended::InDoubt => self.doubts(number),
                    }
                }
                Ended::Refused => {}
                Ended::InDoubt => self.doubts(number),
            }
        }
    }

    fn taken(&self, number: u64, by: usize) {
        if self.last.swap(by as u64, Ordering::Relaxed) != by as u64 {
            self.handed.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(other) = self.held.lock().unwrap().insert(number, by) {
            self.is_wrong(format!("lock {number} is held by c{other}, and c{by} got it"));
        }
    }

    fn doubts(&self, number: u64) {
        self.number.fetch_max(number + 1, Ordering::Relaxed);
    }

    fn is_wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }
}

/// Gives all partitions another order of their replicas, in one document, again and again. Returns how often.
fn reorder(cluster: &Cluster, locks: &Locks) -> u32 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (began, mut reorderings) = (Instant::now(), 0);
        let mut session = None;
        let is_enough = |reorderings| {
            reorderings >= REORDERINGS_MIN && locks.handed.load(Ordering::Relaxed) >= HANDED_MIN
        };
        while began.elapsed() < SPAN || (!is_enough(reorderings) && began.elapsed() < PATIENCE) {
            // Where clients lag behind, lists leave them time.
            let pauses = if reorderings >= 2 * REORDERINGS_MIN { 8 } else { 1 };
            tokio::time::sleep(PAUSE * pauses).await;
            // Where the disk is busy, the directory may be somebody else's for longer than one waits for it, or than a
            // session lives.
            let open = match session.take() {
                Some(open) => open,
                None => match EmbeddedSession::open(&cluster.data().join("coordination")).await {
                    Ok(open) => open,
                    Err(_) => continue,
                },
            };
            let Ok(before) = documents::read_cluster(&open).await else { continue };
            let before = before.unwrap();
            let turned = before.ring.partitions().iter().map(|one| {
                let mut nodes = one.nodes.clone();
                nodes[..3].rotate_left(1);
                (one.id, nodes)
            });
            let turned: Vec<(PartitionId, Vec<NodeId>)> = turned.collect();
            let next = steps::begin(&before, &turned).unwrap();
            reorderings += u32::from(documents::publish_cluster(&open, &next).await.is_ok());
            session = Some(open);
        }
        reorderings
    })
}

/// How often a node came to suspect another one so far.
fn suspicions(cluster: &Cluster) -> f64 {
    (1..=3).map(|node| metric(cluster, node, "tontine_gossip_suspicions_total")).sum()
}

#[test]
fn must_not_7_two_clients_hold_one_lock_across_a_reordering() {
    let cluster = Cluster::with(3, &["--partitions=8"]);
    cluster.run(&["balance", "off"]).exits(0);
    let (locks, before) = (Locks::default(), suspicions(&cluster));
    let redis = |node| Hands::Redis(Redis::connect(&cluster.resp(node)));
    let began = Instant::now();
    let hands = [redis(1), redis(2), Hands::native(&cluster), redis(3), Hands::native(&cluster)];
    let reorderings = std::thread::scope(|scope| {
        let _stops = Stops(&locks.stop);
        for (hands, by) in hands.into_iter().zip(1..) {
            let locks = &locks;
            scope.spawn(move || locks.contend(by, hands));
        }
        reorder(&cluster, &locks)
    });
    let wrong = locks.wrong.lock().unwrap();
    let suspected = suspicions(&cluster) - before;
    assert!(wrong.is_empty(), "{wrong:?}; nodes came to suspect each other {suspected} times meanwhile");
    let handed = locks.handed.load(Ordering::Relaxed);
    let number = locks.number.load(Ordering::Relaxed);
    let told =
        format!("{handed} handed on, {reorderings} reorderings, {number} in doubt, in {:?}", began.elapsed());
    assert!(handed >= HANDED_MIN && reorderings >= REORDERINGS_MIN, "{told}");
}
