//! What a rule would have done about loads that were recorded, without a headmaster.
//!
//! ```text
//!   recorded reports ──▶ work of each place ──▶ reports of a cluster with other lists ──▶ samples ──▶ the rule
//!                               ▲                                                                     │
//!                               └───────────────────── lists ◀── what it would do ◀──────────────────┘
//! ```
//!
//! It is a closed loop: work of the i-th place of a partition belongs to the node that is the i-th in the list that the
//! rule has made by then. An operation costs a node what it cost it when that was recorded. What a node did beside its
//! partitions stays where it was.
//!
//! What it cannot know: how much more clients would have asked of a node that did all it could.
//! Where nodes, partitions or the number of replicas change in the trace, it goes on from the recorded lists.
//!
//! Must never: read a clock or a file. It is handed one look after another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::balance::{Says, Settings};
use model::plan::{Consent, Decision, Move, Placed, Wish};
use model::{Cluster, Generation, Moment, NodeId, PartitionId, Ring};
use serde::{Deserialize, Serialize};

use super::balancer::{self, BalanceOutcome, SETTLING, Samples, SearchHistory, Weights};
use super::planner;
use crate::report::{LoadReport, PartitionLoad, WorkDone};

/// All nodes, as they were asked at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplayLook {
    /// When that was, in milliseconds since the trace began.
    pub after_ms: u64,
    /// The cluster document, where it is another one than at the look before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Cluster>,
    /// What they said.
    pub nodes: Vec<NodeLook>,
}

/// What one node said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeLook {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    #[serde(default)]
    pub incarnation: u64,
    /// What it said of its load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadReport>,
    /// Why it said nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What happened in a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ReplayEvent {
    /// The rule acts.
    Acts {
        /// When, in milliseconds since the trace began.
        after_ms: u64,
        /// Where partitions go.
        placed: Vec<Placed>,
        /// Why.
        decision: Box<Decision>,
    },
    /// It says something else than before.
    Says {
        /// When.
        after_ms: u64,
        /// What.
        says: Says,
    },
    /// Nodes, partitions or numbers changed in the trace: from here on it uses the recorded lists.
    Follows {
        /// When.
        after_ms: u64,
    },
}

/// What came of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Looks that were played.
    pub looks: u64,
    /// Milliseconds from the first to the last of them.
    pub lasted_ms: u64,
    /// Plans.
    pub plans: u64,
    /// Copies that went to another node.
    pub copies: u64,
    /// Lists that got another order.
    pub reorders: u64,
    /// Bytes of these copies.
    pub bytes: u64,
    /// Copies that came back within their residence time.
    pub returns: u64,
    /// The highest utilisation in permille of the mean, when it was first known.
    pub largest_over_mean_before: u64,
    /// The same at the end.
    pub largest_over_mean_after: u64,
}

/// A node as it is played.
#[derive(Clone, Debug, Default)]
struct Played {
    /// What was recorded of it last.
    last: LoadReport,
    incarnation: u64,
    /// How long its workers would have run, in microseconds.
    ran_us: f64,
    /// What it would have done for each partition: gets, puts and stamped puts.
    done: BTreeMap<PartitionId, [f64; 3]>,
}

/// What a node did between two looks.
struct ReplayStep {
    us_max: f64,
    /// What an operation cost it, compared with the weights; `None` where it did nothing.
    factor: Option<f64>,
    ran_us: f64,
    did: BTreeMap<PartitionId, WorkDone>,
}

/// A trace that is played.
#[derive(Debug)]
pub struct Replay {
    settings: Settings,
    began_ms: u64,
    recorded: Cluster,
    cluster: Cluster,
    nodes: BTreeMap<NodeId, Played>,
    bytes: BTreeMap<PartitionId, u64>,
    /// By how much more of its disk a node would have used.
    more_disk: BTreeMap<NodeId, i64>,
    samples: Samples,
    history: SearchHistory,
    under_way: Option<(Moment, Vec<Move>)>,
    left: BTreeMap<(NodeId, PartitionId), u64>,
    said: Option<Says>,
    first_ms: Option<u64>,
    /// What happened, in order.
    pub events: Vec<ReplayEvent>,
    /// What came of it up to now.
    pub summary: Summary,
}

impl Replay {
    /// Of a cluster as it was when the trace began, in milliseconds since 1970.
    pub fn new(cluster: Cluster, settings: Settings, began_ms: u64) -> Replay {
        Replay {
            settings,
            began_ms,
            recorded: cluster.clone(),
            cluster,
            nodes: BTreeMap::new(),
            bytes: BTreeMap::new(),
            more_disk: BTreeMap::new(),
            samples: Samples::default(),
            history: SearchHistory::default(),
            under_way: None,
            left: BTreeMap::new(),
            said: None,
            first_ms: None,
            events: Vec::new(),
            summary: Summary::default(),
        }
    }

    /// Plays one look.
    pub fn look(&mut self, look: &ReplayLook) {
        let now = Moment { nanos: look.after_ms.saturating_mul(1_000_000) };
        if self.first_ms.is_none() {
            // As a headmaster that begins: nobody knows when the ring changed last.
            self.samples.forget_before(now.after(SETTLING));
        }
        let first_ms = *self.first_ms.get_or_insert(look.after_ms);
        self.summary.looks += 1;
        self.summary.lasted_ms = look.after_ms.saturating_sub(first_ms);
        self.history.now_ms = self.began_ms + look.after_ms;
        if let Some(document) = &look.document {
            self.follow(document, look.after_ms, now);
        }
        self.hear(look, now);
        if let Some((until, moves)) = self.under_way.take_if(|(until, _)| *until <= now) {
            self.settle(&moves, until.max(now));
        }
        if let Ok(windows) = self.samples.loads(&self.cluster, now)
            && let Some(loads) = windows.last()
        {
            let largest = balancer::permille(loads.largest_over_mean());
            self.summary.largest_over_mean_after = largest;
            if self.summary.largest_over_mean_before == 0 {
                self.summary.largest_over_mean_before = largest;
            }
        }
        if self.under_way.is_none() {
            self.decide(look.after_ms, now);
        }
    }

    /// The recorded document changed.
    fn follow(&mut self, document: &Cluster, after_ms: u64, now: Moment) {
        let shape = |cluster: &Cluster| {
            let nodes: BTreeSet<NodeId> = cluster.nodes.iter().map(|node| node.id).collect();
            let partitions: Vec<_> =
                cluster.ring.partitions().iter().map(|one| (one.id, one.start)).collect();
            (nodes, partitions, cluster.replicas_max())
        };
        self.recorded = document.clone();
        if shape(document) == shape(&self.cluster) {
            self.cluster.nodes.clone_from(&document.nodes);
            return;
        }
        self.cluster = document.clone();
        self.under_way = None;
        self.samples.keep(document);
        self.samples.forget_before(now.after(SETTLING));
        self.events.push(ReplayEvent::Follows { after_ms });
    }

    /// Takes in what nodes would have said.
    fn hear(&mut self, look: &ReplayLook, now: Moment) {
        let mut steps = BTreeMap::new();
        for said in &look.nodes {
            let Some(load) = &said.load else { continue };
            let known = self.nodes.entry(said.node).or_default();
            if known.incarnation == said.incarnation && known.last.uptime_ms <= load.uptime_ms {
                steps.insert(said.node, ReplayStep::of(&known.last, load));
            } else {
                *known = Played { incarnation: said.incarnation, ..Played::default() };
            }
            known.last = load.clone();
            for told in &load.partitions {
                self.bytes.insert(told.partition, told.bytes);
            }
        }
        self.work(&steps);
        for said in &look.nodes {
            let report = match &said.load {
                Some(load) => Ok(self.report(said.node, load)),
                None => Err(said.error.as_deref().unwrap_or("it did not say")),
            };
            self.samples.hear(said.node, now, said.incarnation, report.as_ref().map_err(|error| *error));
        }
    }

    /// Gives the recorded work of each place to the node that has it now.
    fn work(&mut self, steps: &BTreeMap<NodeId, ReplayStep>) {
        let weights = Weights::MEASURED;
        let middle = balancer::median(steps.values().filter_map(|step| step.factor)).unwrap_or(1.0);
        let cost = |step: &ReplayStep, work: WorkDone| weights.of(work) * step.factor.unwrap_or(middle);
        let mut does: BTreeMap<NodeId, Vec<(PartitionId, WorkDone)>> = BTreeMap::new();
        let mut beside: BTreeMap<NodeId, f64> =
            steps.iter().map(|(node, step)| (*node, step.ran_us)).collect();
        for (was, is) in self.recorded.ring.partitions().iter().zip(self.cluster.ring.partitions()) {
            let places = self.recorded.replicas_in(was.reading()).iter();
            for (did, does_now) in places.zip(self.cluster.replicas_in(&is.nodes)) {
                let Some(step) = steps.get(did) else { continue };
                let Some(work) = step.did.get(&was.id) else { continue };
                *beside.entry(*did).or_default() -= cost(step, *work);
                does.entry(*does_now).or_default().push((was.id, *work));
            }
        }
        for (node, step) in steps {
            let does = does.remove(node).unwrap_or_default();
            let wanted: f64 = does.iter().map(|(_, work)| cost(step, *work)).sum();
            let wanted = beside.get(node).map_or(0.0, |beside| beside.max(0.0)) + wanted;
            let served = if wanted > step.us_max { step.us_max / wanted } else { 1.0 };
            let played = self.nodes.entry(*node).or_default();
            played.ran_us += wanted * served;
            for (partition, work) in does {
                let done = played.done.entry(partition).or_default();
                for (sum, more) in done.iter_mut().zip([work.gets, work.puts, work.stamped]) {
                    *sum += more as f64 * served;
                }
            }
        }
    }

    /// What a node would have said where it said this.
    fn report(&self, node: NodeId, load: &LoadReport) -> LoadReport {
        let Some(played) = self.nodes.get(&node) else { return load.clone() };
        let held = self.cluster.ring.partitions().iter();
        let held = held.filter(|one| self.cluster.replicas_in(&one.nodes).contains(&node));
        let told = |id: PartitionId| {
            let [gets, puts, stamped] =
                played.done.get(&id).copied().unwrap_or_default().map(|sum| sum as u64);
            let work = WorkDone { gets, puts, stamped, own_gets: 0 };
            PartitionLoad {
                partition: id,
                work,
                bytes: self.bytes.get(&id).copied().unwrap_or(0),
                middle: None,
            }
        };
        let mut partitions: Vec<PartitionLoad> = held.map(|one| told(one.id)).collect();
        partitions.sort_by_key(|told| told.partition);
        let more = self.more_disk.get(&node).copied().unwrap_or(0);
        LoadReport {
            ran_us: load.ran_us.map(|_| played.ran_us as u64),
            partitions,
            disk_available_bytes: load.disk_available_bytes.map(|free| free.saturating_add_signed(-more)),
            ..load.clone()
        }
    }

    fn decide(&mut self, after_ms: u64, now: Moment) {
        let found = balancer::look(&self.cluster, &mut self.samples, &self.history, &self.settings, now);
        let (placed, decision) = match found {
            Ok(None) => return,
            Err(says) => return self.say(after_ms, says),
            Ok(Some(finding)) => match finding.outcome {
                BalanceOutcome::Nothing(says) => return self.say(after_ms, says),
                // A trace does not tell the work of halves.
                BalanceOutcome::Cut { decision } => {
                    let dearest = decision.cut.map(|cut| cut.partition);
                    return self.say(after_ms, Says::NothingHelps { node: decision.node, dearest });
                }
                BalanceOutcome::Act { placed, decision } => (placed, decision),
            },
        };
        let wish = Wish::Balance { placed: placed.clone() };
        let Ok(plan) = planner::plan(&self.cluster, &wish, Consent::default()) else {
            return self.say(after_ms, Says::NothingHelps { node: decision.node, dearest: None });
        };
        let takes = Duration::from_secs(decision.predicted.seconds);
        self.summary.plans += 1;
        self.under_way = Some((now.after(takes), plan.change.moves().to_vec()));
        self.said = None;
        self.events.push(ReplayEvent::Acts { after_ms, placed, decision });
    }

    fn say(&mut self, after_ms: u64, says: Says) {
        if self.said.as_ref().is_none_or(|said| !said.is_like(&says)) {
            self.said = Some(says.clone());
            self.events.push(ReplayEvent::Says { after_ms, says });
        }
    }

    /// What was decided is carried out.
    fn settle(&mut self, moves: &[Move], now: Moment) {
        let now_ms = self.history.now_ms;
        let mut partitions = self.cluster.ring.partitions().to_vec();
        for one in moves {
            let Some(partition) = partitions.iter_mut().find(|partition| partition.id == one.partition)
            else {
                continue;
            };
            let bytes = self.bytes.get(&one.partition).copied().unwrap_or(0);
            let (before, after) = (self.cluster.replicas_in(&one.from), self.cluster.replicas_in(&one.to));
            for node in before.iter().filter(|node| !after.contains(node)) {
                self.left.insert((*node, one.partition), now_ms);
                *self.more_disk.entry(*node).or_default() -= bytes.cast_signed();
            }
            for node in &one.entering {
                let left = self.left.get(&(*node, one.partition));
                let residence_ms = u64::from(self.settings.residence_s) * 1000;
                self.summary.returns += u64::from(left.is_some_and(|left| now_ms - left < residence_ms));
                self.summary.bytes += bytes;
                self.summary.copies += 1;
                *self.more_disk.entry(*node).or_default() += bytes.cast_signed();
            }
            let last = if one.entering.is_empty() {
                self.summary.reorders += u64::from(before != after);
                &mut self.history.reordered
            } else {
                &mut self.history.copied
            };
            last.insert(one.partition, now_ms);
            partition.nodes.clone_from(&one.to);
        }
        self.cluster.ring =
            Ring::new(partitions).expect("bounds are as they were, and lists as a plan makes them");
        self.cluster.generation = Generation(self.cluster.generation.0 + 1);
        self.samples.forget_before(now.after(SETTLING));
    }
}

impl ReplayStep {
    fn of(before: &LoadReport, after: &LoadReport) -> ReplayStep {
        let weights = Weights::MEASURED;
        let grown = |of: fn(&LoadReport) -> u64| of(after).saturating_sub(of(before));
        let ran_us = grown(|load| load.ran_us.unwrap_or(0)) as f64;
        let weighted = weights.of(after.work().since(before.work()))
            + weights
                .of_coordinated(grown(|load| load.coordinated_gets), grown(|load| load.coordinated_puts));
        let known: BTreeMap<PartitionId, WorkDone> =
            before.partitions.iter().map(|told| (told.partition, told.work)).collect();
        let did = after.partitions.iter().filter_map(|told| {
            let work = told.work.since(*known.get(&told.partition)?);
            Some((told.partition, work))
        });
        ReplayStep {
            us_max: after.processors.min(f64::from(after.workers))
                * grown(|load| load.uptime_ms) as f64
                * 1000.0,
            factor: (weighted > 0.0 && ran_us > 0.0).then(|| ran_us / weighted),
            ran_us,
            did: did.collect(),
        }
    }
}
