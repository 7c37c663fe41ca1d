//! Clients that work without a pause while nodes come and go, and remember what they were told.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use client::StoreHandle;

use crate::cluster::{Cluster, PATIENCE};
use crate::observe::{addresses, connect};

/// Clients.
pub(crate) const CLIENTS: usize = 4;
/// Keys of each.
const KEYS: usize = 50;

/// Of this many writes one is a delete.
const DELETE_EVERY: usize = 9;

/// Says stop when it goes, also by a panic: threads that went on behind a failure would keep a test from its end.
pub(crate) struct Stops<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clients that put, delete and get, in one thread. They stop when this goes.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    /// None only when it was ended.
    thread: Option<JoinHandle<Heard>>,
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What the clients heard.
#[derive(Default)]
pub(crate) struct Heard {
    /// Requests that certainly failed, with the reason.
    pub(crate) failed: Vec<String>,
    /// Writes of which nobody can know, with the reason.
    pub(crate) unknown: Vec<String>,
    /// How many requests there were, and how long the longest took with all that the client tried again by itself.
    pub(crate) requests: usize,
    pub(crate) longest: Duration,
    /// How many gets showed less than the last write, and might do so.
    excused: usize,
    /// How each key was left.
    keys: BTreeMap<String, Left>,
}

/// What a key may be.
#[derive(Default)]
struct Left {
    /// What was acknowledged last; `None` when it was deleted.
    acknowledged: Option<String>,
    /// Every write of unknown outcome: the clock of the node that stamped it may have been a little ahead.
    unknown: Vec<Option<String>>,
    /// What gets may still show: since these were acknowledged, a fallback stood in for a replica in every write, and was
    /// named. A replica that was killed, or late on a busy machine, may not have its hints yet.
    late: Vec<Option<String>>,
}

impl Traffic {
    pub(crate) fn start(cluster: &Cluster) -> Traffic {
        Traffic::at(addresses(cluster))
    }

    /// The same for a cluster that only its addresses are known of.
    pub(crate) fn at(addresses: Vec<String>) -> Traffic {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (stop.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let store = connect(addresses).await;
                let clients = (0..CLIENTS).map(|client| work(client, store.clone(), (&stopped, &counted)));
                let mut heard = Heard::default();
                for each in futures_util::future::join_all(clients).await {
                    heard.failed.extend(each.failed);
                    heard.unknown.extend(each.unknown);
                    heard.requests += each.requests;
                    heard.longest = heard.longest.max(each.longest);
                    heard.excused += each.excused;
                    heard.keys.extend(each.keys);
                }
                heard
            })
        });
        Traffic { stop, done, thread: Some(thread) }
    }

    /// Waits until this many further requests were answered.
    #[track_caller]
    pub(crate) fn await_more(&self, requests: usize) {
        let (target, deadline) = (self.done.load(Ordering::Relaxed) + requests, Instant::now() + PATIENCE);
        while self.done.load(Ordering::Relaxed) < target {
            assert!(Instant::now() < deadline, "the clients do not get on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the clients.
    pub(crate) fn end(mut self) -> Heard {
        let thread = self.thread.take().unwrap();
        drop(self);
        thread.join().unwrap()
    }
}

async fn work(client: usize, store: StoreHandle, (stop, done): (&AtomicBool, &AtomicUsize)) -> Heard {
    let mut heard = Heard::default();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("c{client}-k{}", number % KEYS);
        let value = (number % DELETE_EVERY != 0).then(|| format!("v{number}"));
        let left = heard.keys.entry(key.clone()).or_default();
        let began = Instant::now();
        let written = match &value {
            Some(value) => store.put(key.clone(), value.clone(), Default::default()).await,
            None => store.delete(key.clone(), Default::default()).await,
        };
        match written {
            Ok(written) => left.acknowledge(value, written.sloppy),
            Err(error) if error.is_indeterminate() => {
                heard.unknown.push(format!("{key}: {error}"));
                left.unknown.push(value);
            }
            Err(error) => heard.failed.push(format!("write: {error}")),
        }
        heard.longest = heard.longest.max(began.elapsed());
        let began = Instant::now();
        let got = store.get(key.clone()).await;
        heard.longest = heard.longest.max(began.elapsed());
        heard.requests += 2;
        match got {
            Ok(got) => {
                let found = got.value().map(|value| String::from_utf8_lossy(&value).into_owned());
                match got.is_sloppy() || left.late.contains(&found) {
                    true => heard.excused += usize::from(found != left.acknowledged),
                    false => left.check(&key, found),
                }
            }
            Err(error) => heard.failed.push(format!("get: {error}")),
        }
        done.fetch_add(2, Ordering::Relaxed);
    }
    heard
}

impl Left {
    fn acknowledge(&mut self, value: Option<String>, sloppy: bool) {
        let before = std::mem::replace(&mut self.acknowledged, value);
        match sloppy {
            true => self.late.push(before),
            false => self.late.clear(),
        }
    }

    async fn found(store: &StoreHandle, key: &str) -> Option<String> {
        let got = store.get(key.to_owned()).await.unwrap();
        got.value().map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    /// Nobody else writes this key, and R + W > N: it is as this client left it.
    #[track_caller]
    fn check(&self, key: &str, found: Option<String>) {
        let (known, unknown) = (&self.acknowledged, &self.unknown);
        let is_expected = found == *known || unknown.contains(&found);
        assert!(is_expected, "{key} is {found:?}; acknowledged last was {known:?}, unknown are {unknown:?}");
    }
}

impl Heard {
    /// Checks that every key is what it was left as.
    #[track_caller]
    pub(crate) fn check(&self, cluster: &Cluster) {
        self.check_at(addresses(cluster));
    }

    /// The same for a cluster that only its addresses are known of.
    #[track_caller]
    pub(crate) fn check_at(&self, addresses: Vec<String>) {
        assert!(10 * self.excused <= self.requests, "{} of {} gets were late", self.excused, self.requests);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = connect(addresses).await;
            for (key, left) in &self.keys {
                let deadline = Instant::now() + PATIENCE;
                let mut found = Left::found(&store, key).await;
                // Its hint may be on the way.
                while left.late.contains(&found) && found != left.acknowledged && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    found = Left::found(&store, key).await;
                }
                left.check(key, found);
            }
        });
    }
}

/// A step of the check hung for 15 minutes because one assertion failed: readers went on until a flag was set, and the
/// scope waited for them.
#[test]
fn no_thread_of_a_test_goes_on_behind_a_failure() {
    let mut waiting = vec![Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && path.iter().any(|part| part == "tests")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            let scopes = text.split("thread::scope(").skip(1);
            let unguarded = scopes.filter(|scope| scope.contains("Ordering::") && !scope.contains("Stops("));
            assert_eq!(unguarded.count(), 0, "{}: a scope with a flag and without `Stops`", path.display());
        }
    }
}
