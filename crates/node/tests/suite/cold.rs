//! Records that are not in memory: the requests that need them wait for the disk, and nobody else does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use bytes::Bytes;
use client::ClientOptions;
use client::peers::{Call, CallError};
use model::StoreName;
use parking_lot::Mutex;
use runtime::{BoxFuture, Ports, Tasks};
use wire::error::ErrorCode;
use wire::messages::{ReplicaGet, Request, Response, Role, StoreRef, Terms};

use crate::cluster::{PATIENCE, RunningCluster, store};

type Work = Box<dyn FnOnce() + Send>;

/// Counts what waits for the disk, and holds it back as long as it is told to.
struct Waiting {
    inner: Arc<dyn Tasks>,
    count: AtomicUsize,
    held: Mutex<Option<Vec<Work>>>,
}

impl Waiting {
    fn hold(&self) {
        *self.held.lock() = Some(Vec::new());
    }

    fn let_go(&self) {
        for work in self.held.lock().take().into_iter().flatten() {
            self.inner.spawn_waiting(work);
        }
    }
}

impl Tasks for Waiting {
    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.inner.spawn(future);
    }

    fn spawn_background(&self, future: BoxFuture<'static, ()>) {
        self.inner.spawn_background(future);
    }

    fn spawn_waiting(&self, work: Work) {
        self.count.fetch_add(1, Ordering::Relaxed);
        match &mut *self.held.lock() {
            Some(held) => held.push(work),
            None => self.inner.spawn_waiting(work),
        }
    }
}

/// A cluster of this many nodes with all records on disk; `cold` says of how many reads one finds nothing in memory.
async fn cluster(count: u32, replicas: u8, cold: usize) -> (RunningCluster, Arc<Waiting>) {
    let mut ports = Ports::os().unwrap();
    let (count_of_waits, held) = (AtomicUsize::new(0), Mutex::new(None));
    let waiting = Arc::new(Waiting { inner: ports.tasks.clone(), count: count_of_waits, held });
    ports.tasks = waiting.clone();
    let quorum = replicas / 2 + 1;
    let started =
        RunningCluster::start_logging_over(ports, count, store(replicas, quorum, quorum), |_| {}).await;
    for position in 0..count as usize {
        started.disk(position).set_cold(Some(cold));
    }
    (started, waiting)
}

#[tokio::test]
async fn keys_that_are_not_in_memory_are_read_and_written_too() {
    for cold in [1, 3] {
        let (cluster, waiting) = cluster(3, 3, cold).await;
        let mut redis = cluster.redis(0);
        for round in 0..20 {
            // Sent together: the get is about the key that the set writes.
            redis.send(format!("SET a {round}\r\nGET a\r\n").as_bytes()).await;
            redis.expect(&format!("+OK\r\n${}\r\n{round}\r\n", round.to_string().len())).await;
        }
        redis.ask("MSET a x b y c z a last", "+OK\r\n").await;
        redis.ask("MGET c a b", "*3\r\n$1\r\nz\r\n$4\r\nlast\r\n$1\r\ny\r\n").await;
        assert!(waiting.count.load(Ordering::Relaxed) > 20, "one in {cold} waits");
        // Each write was stamped once, also those that were begun again, and what the MSET named twice.
        let client = cluster.client(ClientOptions::default()).await;
        let found = client.store("default").unwrap().get("a").await.unwrap();
        let counts: Vec<u64> = found.context().vector.entries().iter().map(|(_, count)| *count).collect();
        assert_eq!(counts.iter().sum::<u64>(), 21, "{counts:?}");
    }
}

#[tokio::test]
async fn a_request_that_waits_for_the_disk_does_not_hold_up_others() {
    let (cluster, waiting) = cluster(1, 1, 1).await;
    let (mut slow, mut quick) = (cluster.redis(0), cluster.redis(0));
    slow.ask("MSET a 1 b 2", "+OK\r\n").await;
    waiting.hold();
    slow.send(b"GET a\r\nSET a 3\r\n").await;
    let begun = async {
        while waiting.held.lock().as_ref().is_some_and(Vec::is_empty) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.expect("reading waits for the disk");
    cluster.disk(0).set_cold(None);
    quick.ask("GET b", "$1\r\n2\r\n").await;
    quick.ask("SET b 4", "+OK\r\n").await;
    waiting.let_go();
    slow.expect("$1\r\n1\r\n+OK\r\n").await;
    quick.ask("GET a", "$1\r\n3\r\n").await;
}

/// A disk that hangs holds up a bounded number of requests; those that nobody waits for any more cost nothing later.
#[tokio::test]
async fn requests_that_wait_for_a_hung_disk_are_bounded() {
    let (cluster, waiting) = cluster(1, 1, 1).await;
    let mut redis = cluster.redis(0);
    redis.ask("SET a 1", "+OK\r\n").await;
    let replica = cluster.nodes[0].replica();
    let generation = replica.view().get().cluster().generation;
    let get = || {
        let keys = [Bytes::from("a")].into_iter().collect();
        let store = StoreRef::from(&StoreName::new("default").unwrap());
        match replica.call(Request::ReplicaGet(ReplicaGet {
            terms: Terms { since: generation, role: Role::Replica },
            store,
            generation,
            keys,
        })) {
            Call::Ready(_) => panic!("nothing is in memory"),
            Call::Pending(answer) => answer,
        }
    };
    waiting.hold();
    let mut begun = Vec::new();
    let refused = loop {
        let mut answer = get();
        match futures_util::poll!(&mut answer) {
            Poll::Pending => begun.push(answer),
            Poll::Ready(refused) => break refused,
        }
        assert!(begun.len() < 100_000, "there is a bound");
    };
    assert!(matches!(refused, Err(CallError::Refused(failure)) if failure.code == ErrorCode::Overloaded));
    let kept = begun.pop().unwrap();
    drop(begun);
    waiting.let_go();
    assert!(matches!(kept.await, Ok(Response::ReplicaGot(_))));
    assert!(matches!(get().await, Ok(Response::ReplicaGot(_))), "there is room again");
}
