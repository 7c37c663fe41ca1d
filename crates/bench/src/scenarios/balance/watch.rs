//! Watching a cluster under load: each second what was done, and by whom; and where keys lie, which the generator is told.
//!
//! ```text
//!   this thread:  every 200 ms, or at once, the cluster document ──▶ generator       every second a [`Second`]
//!   its hands:    another thread that does what an operator does, by what [`WatchStage`] shows
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use client::{Client, ClientOptions, PlanQuery};
use model::plan::Planned;
use model::{Cluster, NodeId, Partition, Token};
use parking_lot::Mutex;
use runtime::Ports;

use crate::processes::{machine_busy, threads_ran};

use super::super::ScenarioError;
use super::super::script::{TIMEOUT, system};
use super::cluster::{Bounded, Capped};
use super::draws::{Owned, Routes};
use super::generator::{Generator, STORE};
use super::interrupt::Interrupt;
use super::series::{NodeSecond, PlanMark, ProgramSaid, Second, mean};

/// How often the cluster document is asked for…
const LOOK: Duration = Duration::from_millis(200);
/// …and how soon when a node has refused a request because of an older one.
const LOOK_AT_ONCE: Duration = Duration::from_millis(10);
/// How often the autopilot's verdict is.
const VERDICT_LOOK: Duration = Duration::from_secs(5);
/// Seconds by which an operator judges.
const JUDGED_S: usize = 5;

/// What both threads see.
#[derive(Debug, Default)]
pub(super) struct WatchStage {
    over: AtomicBool,
    seconds: Mutex<Vec<Second>>,
    cluster: Mutex<Option<Arc<Cluster>>>,
}

impl WatchStage {
    /// Waits until this many seconds have passed; `false` when the run ended before.
    pub(super) fn wait_until(&self, second: f64) -> bool {
        while !self.over.load(Ordering::Relaxed) {
            if self.seconds.lock().last().is_some_and(|last| last.at >= second) {
                return true;
            }
            thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// Seconds that have passed.
    pub(super) fn at(&self) -> f64 {
        self.seconds.lock().last().map_or(0.0, |last| last.at)
    }

    /// What each node used lately.
    pub(super) fn used(&self) -> Vec<(NodeId, f64)> {
        let seconds = self.seconds.lock();
        let lately = &seconds[seconds.len().saturating_sub(JUDGED_S)..];
        let nodes = lately.last().map(|one| one.nodes.clone()).unwrap_or_default();
        let of = |id| lately.iter().flat_map(move |one| one.nodes.iter().filter(move |node| node.node == id));
        nodes.iter().map(|node| (node.node, mean(of(node.node).map(|one| one.used)))).collect()
    }

    /// The cluster as it was seen last.
    pub(super) fn cluster(&self) -> Option<Arc<Cluster>> {
        self.cluster.lock().clone()
    }
}

/// Where keys are asked for: by the first node that reads are for, or of all nodes in turn.
pub(super) struct Atlas {
    tokens: Vec<Token>,
    in_turn: bool,
    nodes: Vec<NodeId>,
}

impl Atlas {
    pub(super) fn new(keys: &[bytes::Bytes], in_turn: bool) -> Atlas {
        Atlas { tokens: keys.iter().map(|key| Token::of(key)).collect(), in_turn, nodes: Vec::new() }
    }

    /// The routes by a cluster. A node keeps its position.
    pub(super) fn routes(&mut self, cluster: &Cluster) -> Routes {
        let known = cluster.nodes.iter().map(|node| node.id).filter(|id| !self.nodes.contains(id));
        self.nodes.extend(known.collect::<Vec<_>>());
        let address = |id: &NodeId| {
            let node = cluster.node(*id)?;
            if self.in_turn { node.resp.clone() } else { Some(node.native.clone()) }
        };
        let addresses = self.nodes.iter().map(|id| address(id).unwrap_or_default()).collect();
        let Some(store) = cluster.store(STORE).filter(|_| !self.in_turn) else {
            return Routes { addresses, owned: None };
        };
        let position =
            |id: &NodeId| self.nodes.iter().zip(0..).find(|(known, _)| *known == id).map(|(_, at)| at);
        let owner = |partition: &Partition| {
            let at = partition.reading().first().and_then(position);
            (at.unwrap_or(0), cluster.accepted_since(store, partition))
        };
        let partitions = cluster.ring.partitions();
        let of = |token: &Token| partitions.partition_point(|one| one.start <= token.0) - 1;
        let owned = Owned {
            generation: cluster.generation,
            partitions: self.tokens.iter().map(|token| u16::try_from(of(token)).unwrap_or(0)).collect(),
            owners: partitions.iter().map(owner).collect(),
        };
        Routes { addresses, owned: Some(owned) }
    }
}

/// What was watched.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) seconds: Vec<Second>,
    pub(super) plans: Vec<PlanMark>,
    pub(super) said: Vec<ProgramSaid>,
    /// Largest utilisation by partitions over the mean at the end, as the autopilot saw it.
    pub(super) seen_over_mean: Option<f64>,
}

/// Watches for this many seconds, while `hands` do something.
pub(super) fn watch(
    capped: &Capped,
    generator: &Generator,
    atlas: Atlas,
    seconds: u64,
    interrupt: &Interrupt,
    hands: impl FnOnce(&WatchStage) -> Result<(), ScenarioError> + Send,
) -> Result<Watched, ScenarioError> {
    let stage = WatchStage::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
    thread::scope(|scope| {
        let hands = scope.spawn(|| hands(&stage));
        let eyes = Eyes { capped, generator, atlas, stage: &stage, interrupt, said: Vec::new() };
        let watched = runtime.block_on(eyes.watch(seconds));
        stage.over.store(true, Ordering::Relaxed);
        let done = hands.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let watched = watched?;
        done.map(|()| watched)
    })
}

struct Eyes<'a> {
    capped: &'a Capped,
    generator: &'a Generator,
    atlas: Atlas,
    stage: &'a WatchStage,
    interrupt: &'a Interrupt,
    said: Vec<ProgramSaid>,
}

/// What had been done by a moment.
struct Counted {
    at: Instant,
    operations: u64,
    errors: u64,
    generator: Duration,
    busy: Duration,
    nodes: BTreeMap<NodeId, Duration>,
}

impl Eyes<'_> {
    async fn watch(mut self, seconds: u64) -> Result<Watched, ScenarioError> {
        let asked = |error: client::ClientError| ScenarioError::NotAsked(error.to_string());
        let ports = Ports::os().map_err(system)?;
        let options = ClientOptions { deadline: TIMEOUT, ..ClientOptions::default() };
        let client = Client::connect(&self.capped.addresses, ports, options).await.map_err(asked)?;
        let began = Instant::now();
        let began_ms = since_1970_ms();
        let (mut before, mut looked, mut code) = (self.count(), began, String::new());
        let (mut generation, mut asked_at) = (client.cluster().generation, began);
        *self.stage.cluster.lock() = Some(client.cluster());
        while began.elapsed() < Duration::from_secs(seconds) {
            self.interrupt.check()?;
            tokio::time::sleep(LOOK_AT_ONCE).await;
            if !self.generator.wants_news() && asked_at.elapsed() < LOOK {
                continue;
            }
            asked_at = Instant::now();
            // A node that is overloaded may not answer now, and does at the next look.
            if let Ok(cluster) = client.refresh().await
                && cluster.generation != generation
            {
                generation = cluster.generation;
                self.generator.route(self.atlas.routes(&cluster));
                *self.stage.cluster.lock() = Some(cluster);
            }
            if before.at.elapsed() >= Duration::from_secs(1) {
                let now = self.count();
                let second = self.second(&before, &now, (now.at - began).as_secs_f64(), &client.cluster());
                self.stage.seconds.lock().push(second);
                before = now;
            }
            if looked.elapsed() >= VERDICT_LOOK {
                looked = Instant::now();
                let office = client.office().await.ok();
                let verdict = office.and_then(|(_, office)| office.balancing?.verdict);
                let now = verdict.map_or(String::new(), |verdict| verdict.says.code().to_owned());
                if now != code {
                    code = now;
                    self.ask(&["balance", "why"], began);
                }
            }
        }
        self.ask(&["balance", "why"], began);
        let (plans, outcome) = self.plans(&client, began, began_ms).await.map_err(asked)?;
        let office = client.office().await.ok();
        let verdict = office.and_then(|(_, office)| office.balancing?.verdict);
        let by_verdict = verdict.filter(|verdict| verdict.mean > 0).map(|verdict| {
            let largest = verdict.seen.iter().map(|node| node.utilisation).max().unwrap_or(0);
            (verdict.at_ms, largest as f64 / verdict.mean as f64)
        });
        // A verdict that stays the same is written seldom, and an outcome may be newer.
        let newest = outcome.into_iter().chain(by_verdict).max_by_key(|(at_ms, _)| *at_ms);
        let seen_over_mean = newest.map(|(_, over_mean)| over_mean);
        let seconds = std::mem::take(&mut *self.stage.seconds.lock());
        Ok(Watched { seconds, plans, said: self.said, seen_over_mean })
    }

    fn count(&self) -> Counted {
        let (operations, errors) = self.generator.counts();
        let (ran, waited) = self.generator.times();
        let ran_by = |node: &Bounded| Some((node.node, threads_ran(node.pid)?));
        Counted {
            at: Instant::now(),
            operations,
            errors,
            generator: ran + waited,
            busy: machine_busy(),
            nodes: self.capped.bounded().iter().filter_map(ran_by).collect(),
        }
    }

    fn second(&self, before: &Counted, now: &Counted, at: f64, cluster: &Cluster) -> Second {
        let took = (now.at - before.at).as_secs_f64();
        let share = |of: Duration| of.as_secs_f64() / took;
        let node = |bounded: &Bounded| {
            let (from, to) = (before.nodes.get(&bounded.node)?, now.nodes.get(&bounded.node)?);
            let first = |partition: &&model::Partition| partition.reading().first() == Some(&bounded.node);
            Some(NodeSecond {
                node: bounded.node,
                used: share(to.saturating_sub(*from)) / bounded.cap,
                partitions: cluster.ring.partitions().iter().filter(first).count(),
            })
        };
        let cores = thread::available_parallelism().map_or(1, usize::from) as f64;
        Second {
            at,
            throughput: (now.operations - before.operations) as f64 / took,
            errors: now.errors - before.errors,
            nodes: self.capped.bounded().iter().filter_map(node).collect(),
            generator_idle: (1.0 - share(now.generator.saturating_sub(before.generator))).max(0.0),
            machine_idle: (cores - share(now.busy.saturating_sub(before.busy))).max(0.0),
        }
    }

    /// Keeps what a command says. A cluster without a headmaster has nothing to say, which is no failure of the run.
    fn ask(&mut self, words: &[&str], began: Instant) {
        let at = began.elapsed().as_secs_f64();
        if let Ok(text) = self.capped.operator.say(words) {
            self.said.push(ProgramSaid { at, command: format!("tontine {}", words.join(" ")), text });
        }
    }

    /// All plans, and the last known outcome: when it was seen, and the largest utilisation over the mean.
    async fn plans(
        &mut self,
        client: &Client,
        began: Instant,
        began_ms: u64,
    ) -> Result<(Vec<PlanMark>, Option<(u64, f64)>), client::ClientError> {
        let page = client.plan(PlanQuery { all: true, ..PlanQuery::default() }).await?;
        let (mut marks, mut outcome) = (Vec::new(), None);
        for summary in page.plans {
            let number = Some(summary.number);
            let page = client.plan(PlanQuery { number, ..PlanQuery::default() }).await?;
            let Some(planned) = page.plan else { continue };
            if planned.plan.decision.is_some() {
                self.ask(&["balance", "why", &planned.number.to_string()], began);
            }
            let came_of = planned.state.as_ref().and_then(|state| state.came_of);
            let known = came_of.filter(|came| came.largest > 0);
            outcome = known.map(|came| (came.at_ms, came.largest_over_mean as f64 / 1e3)).or(outcome);
            marks.push(mark(&planned, began_ms));
        }
        Ok((marks, outcome))
    }
}

fn mark(planned: &Planned, began_ms: u64) -> PlanMark {
    let at = |ms: u64| (ms as f64 - began_ms as f64) / 1e3;
    let state = planned.state.as_ref();
    let decided = planned.plan.decision.as_ref().filter(|decision| decision.mean > 0);
    PlanMark {
        number: planned.number,
        by: planned.plan.by.clone(),
        created: at(planned.plan.created_ms),
        begun: state.map(|state| at(state.begun_ms)),
        ended: state.and_then(|state| state.ended_ms).map(at),
        phase: planned.word().to_owned(),
        partitions: planned.plan.change.partitions(),
        copies: planned.plan.change.copies(),
        bytes: state.map_or(0, |state| state.progress.copied.bytes),
        over_mean: decided.map(|decision| {
            let now = decision.largest as f64 / decision.mean as f64;
            (now, decision.predicted.largest_over_mean as f64 / 1e3)
        }),
    }
}

fn since_1970_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use model::{Consistency, Node, Ring, Store, StoreName, Zone};

    use super::*;

    #[test]
    fn keys_are_asked_for_where_reads_are_for_and_nodes_keep_their_positions() {
        let cluster = |ids: &[u32]| {
            let node = |&id: &u32| {
                let resp = Some(format!("127.0.0.1:{id}"));
                Node::new(NodeId(id), Zone("a".to_owned()), format!("127.0.0.1:7{id}"), resp)
            };
            let nodes: Vec<Node> = ids.iter().map(node).collect();
            let zones: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
            let one = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
            let store = Store::new(StoreName::new("default").unwrap(), one).unwrap();
            Cluster::new("test", nodes, Ring::equal_slices(8, &zones), vec![store])
        };
        let keys: Vec<Bytes> = (0..100).map(|number| Bytes::from(format!("key:{number}"))).collect();
        let mut atlas = Atlas::new(&keys, false);
        let two = cluster(&[2, 3]);
        let routes = atlas.routes(&two);
        assert_eq!(routes.addresses, ["127.0.0.1:72", "127.0.0.1:73"]);
        let owned = routes.owned.unwrap();
        for (key, number) in keys.iter().zip(0..) {
            let first = two.ring.partition(Token::of(key)).nodes[0];
            assert_eq!(NodeId(u32::from(owned.of(number).0) + 2), first);
        }
        let routes = atlas.routes(&cluster(&[1, 2, 3]));
        assert_eq!(routes.addresses, ["127.0.0.1:72", "127.0.0.1:73", "127.0.0.1:71"]);
        let in_turn = Atlas::new(&keys, true).routes(&two);
        assert_eq!((&in_turn.addresses[0][..], in_turn.owned), ("127.0.0.1:2", None));
    }
}
