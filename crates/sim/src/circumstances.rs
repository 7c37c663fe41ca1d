//! What the simulator itself knows of the circumstances of a request: which nodes it had done something to that makes a
//! node late, silent or refusing, which hosts could not talk well to each other, and which documents were in force.
//!
//! A judge that would let an answer off asks here whether it had a reason, and never the answer.
//!
//! Trouble outlasts its cause by [`AFTERMATH`]: a node that failed is suspected until a probe has reached it, and a link
//! is opened again after a pause.
//!
//! Must never: ask a node, a door or a client how it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::routing::replicas;
use model::{Cluster, Moment, NodeId};
use parking_lot::Mutex;

use crate::host::Host;

/// How long after the end of its cause a node may still be suspected, or a link not open again. Probes of a suspected
/// node and attempts to connect have pauses of up to two seconds, and one may meet the end of the cause.
pub const AFTERMATH: Duration = Duration::from_secs(6);
/// A frame that takes this long counts as trouble between its two hosts: others may take its sender for late.
pub const SLOW_FRAME: Duration = Duration::from_millis(100);
/// How long a frame that was lost is waited for, at most: the longest deadline of a run.
const LOST_FRAME: Duration = Duration::from_secs(2);
/// How long after its start a node that lost what it had may refuse to answer, because it brings it in again.
const REFILL: Duration = Duration::from_secs(5);
/// A document may be followed this long after the next one was published, by nodes and clients that learn of it late.
const BEHIND: Duration = Duration::from_secs(5);
/// The last host that is a node's.
const NODES_MAX: u32 = 100;

/// What kind of thing was done. One of a kind is on at a time for the same hosts, as in the world itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// No process that serves.
    Down,
    /// The process stands still.
    Paused,
    /// What one sends the other is held back.
    Blocked,
    /// Everything takes longer.
    Slow,
    /// Links break in place of answers.
    Cutting,
    /// The disk is slow, full or fails.
    Disk,
    /// Bits of what it stored have flipped.
    Flipped,
    /// It lost what it had.
    Lost,
    /// It has no room for requests.
    Crowded,
}

/// Cluster documents, each from when on it was published.
pub type Documents = Vec<(Moment, Arc<Cluster>)>;

/// Where trouble is: with a node, or between two hosts.
type Between = (Host, Host);

/// Writes down trouble as it comes. Clones write to the same book.
#[derive(Clone, Default)]
pub struct Troubles(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    since: BTreeMap<(Trouble, Between), Moment>,
    over: BTreeMap<Between, Vec<Span>>,
}

/// From when, and until when.
type Span = (Moment, Moment);

impl Troubles {
    /// Trouble of a node begins, if it has none of this kind.
    pub fn begin(&self, kind: Trouble, host: Host, now: Moment) {
        self.begin_between(kind, (host, host), now);
    }

    /// It ends.
    pub fn end(&self, kind: Trouble, host: Host, now: Moment) {
        self.end_between(kind, (host, host), now);
    }

    /// Trouble on the way from one host to another begins.
    pub fn begin_between(&self, kind: Trouble, way: (Host, Host), now: Moment) {
        self.0.lock().since.entry((kind, way)).or_insert(now);
    }

    /// It ends.
    pub fn end_between(&self, kind: Trouble, way: (Host, Host), now: Moment) {
        let mut open = self.0.lock();
        if let Some(since) = open.since.remove(&(kind, way)) {
            open.note(way, (since, now));
        }
    }

    /// All trouble of this kind ends.
    pub fn end_all(&self, kind: Trouble, now: Moment) {
        let ways: Vec<Between> =
            self.0.lock().since.keys().filter(|(of, _)| *of == kind).map(|(_, way)| *way).collect();
        ways.into_iter().for_each(|way| self.end_between(kind, way, now));
    }

    /// A node serves again. What it lost, it may refuse to answer for until it has it back.
    pub fn serves(&self, host: Host, now: Moment) {
        self.end(Trouble::Down, host, now);
        self.end(Trouble::Lost, host, now.after(REFILL));
    }

    /// A frame on this way arrives late.
    pub fn slow_frame(&self, way: (Host, Host), sent: Moment, arrives: Moment) {
        if arrives.since(sent) >= SLOW_FRAME {
            self.0.lock().note(way, (sent, arrives));
        }
    }

    /// A frame on this way never arrives.
    pub fn lost_frame(&self, way: (Host, Host), now: Moment) {
        self.0.lock().note(way, (now, now.after(LOST_FRAME)));
    }

    /// A link between the two breaks.
    pub fn broken_link(&self, way: (Host, Host), now: Moment) {
        self.0.lock().note(way, (now, now));
    }

    /// All that was written down so far, by these documents. What has not ended goes on.
    pub fn so_far(&self, documents: Documents) -> Circumstances {
        let open = self.0.lock();
        let mut troubles = open.over.clone();
        for (&(_, (a, b)), &since) in &open.since {
            troubles.entry((a.min(b), a.max(b))).or_default().push((since, Moment { nanos: u64::MAX }));
        }
        for spans in troubles.values_mut() {
            *spans = merged(std::mem::take(spans));
        }
        let hosts = troubles.keys().flat_map(|(a, b)| [*a, *b]).filter(|host| host.0 <= NODES_MAX).collect();
        Circumstances { documents, troubles, hosts }
    }
}

impl Open {
    fn note(&mut self, (a, b): Between, span: Span) {
        let spans = self.over.entry((a.min(b), a.max(b))).or_default();
        match spans.last_mut() {
            // Most come one after the other, and most of them meet.
            Some(last) if last.0 <= span.0 && span.0 <= last.1 => last.1 = last.1.max(span.1),
            _ => spans.push(span),
        }
    }
}

/// The spans in order, those that meet as one.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort();
    let mut all: Vec<Span> = Vec::new();
    for span in spans {
        match all.last_mut() {
            Some(last) if span.0 <= last.1 => last.1 = last.1.max(span.1),
            _ => all.push(span),
        }
    }
    all
}

/// The nodes that answer gets of a key by one document, and how many of them must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSet {
    /// The replicas.
    pub nodes: Vec<NodeId>,
    /// R, by the document's numbers.
    pub reads_required: usize,
}

/// What was known by the end of a run, or so far.
#[derive(Clone, Debug, Default)]
pub struct Circumstances {
    /// The cluster documents, each from when on it was published.
    documents: Documents,
    /// Trouble with nodes, and between hosts, in order.
    troubles: BTreeMap<Between, Vec<Span>>,
    /// The hosts of nodes that had any.
    hosts: BTreeSet<Host>,
}

impl Circumstances {
    /// By these documents, and without any trouble.
    pub fn calm(documents: Documents) -> Circumstances {
        Circumstances { documents, ..Circumstances::default() }
    }

    /// Documents by which a request may have been carried out that was under way then.
    fn in_force(&self, from: Moment, to: Moment) -> impl Iterator<Item = &Cluster> {
        let from = Moment { nanos: from.nanos.saturating_sub(BEHIND.as_nanos() as u64) };
        let first = self.documents.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        self.documents[first..].iter().take_while(move |(at, _)| *at <= to).map(|(_, cluster)| &**cluster)
    }

    /// The sets of replicas of a key by which a request may have been carried out that was under way then, each once.
    pub fn replica_sets(&self, (store, key): (&str, &Bytes), from: Moment, to: Moment) -> Vec<ReplicaSet> {
        let mut sets: Vec<ReplicaSet> = Vec::new();
        for cluster in self.in_force(from, to) {
            let Some(definition) = cluster.store(store) else { continue };
            let nodes = replicas(definition, cluster.ring.partition(definition.token(key))).to_vec();
            let reads_required = usize::from(definition.numbers_read().reads_required);
            let set = ReplicaSet { nodes, reads_required };
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
        sets
    }

    /// Whether those documents all say the same of the key: which nodes hold it, and which requests they take.
    fn is_settled(&self, (store, key): (&str, &Bytes), from: Moment, to: Moment) -> bool {
        let mut said = self.in_force(from, to).filter_map(|cluster| {
            let definition = cluster.store(store)?;
            let partition = cluster.ring.partition(definition.token(key));
            let since = cluster.accepted_since(definition, partition).max(cluster.generation_accepted_min);
            Some((since, partition.nodes.clone(), partition.coming.is_some() || definition.coming.is_some()))
        });
        let Some(first) = said.next() else { return true };
        !first.2 && said.all(|other| other == first)
    }

    /// Whether fewer than `required` of some set of the key's replicas could be counted on by whoever drove a request
    /// that was under way then. `driver`: its host, if that is known.
    pub fn is_short(
        &self,
        place: (&str, &Bytes),
        required: usize,
        driver: Option<Host>,
        (from, to): Span,
    ) -> bool {
        if !self.is_settled(place, from, to) {
            return true;
        }
        let is_troubled = |node: &NodeId| self.is_troubled(Host(node.0), driver, from, to);
        let short = |set: &ReplicaSet| {
            set.nodes.iter().filter(|node| !is_troubled(node)).count() < required.min(set.nodes.len())
        };
        let drives_badly = driver.is_some_and(|host| self.is_between((host, host), from, to));
        drives_badly || self.replica_sets(place, from, to).iter().any(short)
    }

    /// Whether a node itself had trouble then.
    pub fn is_unwell(&self, node: NodeId, from: Moment, to: Moment) -> bool {
        self.is_between((Host(node.0), Host(node.0)), from, to)
    }

    /// Whether a node had trouble then, itself or with the driver of a request.
    fn is_troubled(&self, node: Host, driver: Option<Host>, from: Moment, to: Moment) -> bool {
        let with = |other: Host| self.is_between((node.min(other), node.max(other)), from, to);
        match driver {
            Some(driver) => with(node) || with(driver),
            None => with(node) || self.hosts.iter().copied().any(with),
        }
    }

    fn is_between(&self, between: Between, from: Moment, to: Moment) -> bool {
        let Some(spans) = self.troubles.get(&between) else { return false };
        let first = spans
            .partition_point(|(_, end)| end.nanos.saturating_add(AFTERMATH.as_nanos() as u64) < from.nanos);
        spans.get(first).is_some_and(|(since, _)| *since <= to)
    }
}

#[cfg(test)]
mod tests {
    use model::{Consistency, Node, Ring, Store, StoreName, Zone};

    use super::*;

    static KEY: Bytes = Bytes::from_static(b"k");

    fn at(millis: u64) -> Moment {
        Moment { nanos: millis * 1_000_000 }
    }

    /// Three nodes that hold everything, R=2.
    fn documents() -> Documents {
        let zone = Zone("z".to_owned());
        let nodes: Vec<Node> = (1..=3).map(|id| Node::new(NodeId(id), zone.clone(), "h:1", None)).collect();
        let zoned: Vec<_> = nodes.iter().map(|node| (node.id, zone.clone())).collect();
        let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
        let store = Store::new(StoreName::new("s").expect("well formed"), consistency).expect("they fit");
        vec![(at(0), Arc::new(Cluster::new("c", nodes, Ring::equal_slices(8, &zoned), vec![store])))]
    }

    fn is_short(troubles: &Troubles, driver: Option<Host>, from: u64, to: u64) -> bool {
        troubles.so_far(documents()).is_short(("s", &KEY), 2, driver, (at(from), at(to)))
    }

    #[test]
    fn a_request_runs_short_of_replicas_when_all_but_one_are_in_trouble() {
        let troubles = Troubles::default();
        let client = Some(Host(101));
        troubles.begin(Trouble::Down, Host(1), at(10_000));
        assert!(!is_short(&troubles, client, 10_000, 10_010), "two are left");
        troubles.begin_between(Trouble::Blocked, (Host(101), Host(2)), at(10_000));
        assert!(is_short(&troubles, client, 10_000, 10_010), "it cannot reach the second");
        assert!(!is_short(&troubles, Some(Host(102)), 10_000, 10_010), "another client can");
        assert!(!is_short(&troubles, client, 9_000, 9_990), "it was not so before");
        troubles.end(Trouble::Down, Host(1), at(11_000));
        assert!(is_short(&troubles, client, 16_900, 16_910), "it may still be suspected");
        assert!(!is_short(&troubles, client, 17_100, 17_110), "it is believed again");
    }

    #[test]
    fn a_coordinator_in_trouble_runs_short() {
        let troubles = Troubles::default();
        troubles.begin(Trouble::Paused, Host(3), at(10_000));
        assert!(is_short(&troubles, Some(Host(3)), 10_000, 10_010));
        assert!(!is_short(&troubles, Some(Host(2)), 10_000, 10_010));
        troubles.begin_between(Trouble::Blocked, (Host(1), Host(2)), at(10_000));
        assert!(is_short(&troubles, None, 10_000, 10_010), "nobody knows who drives it");
    }

    #[test]
    fn frames_that_are_slow_or_lost_are_trouble_and_others_are_not() {
        let troubles = Troubles::default();
        troubles.begin(Trouble::Down, Host(1), at(0));
        troubles.slow_frame((Host(2), Host(101)), at(10_000), at(10_050));
        assert!(!is_short(&troubles, Some(Host(101)), 10_000, 10_010));
        troubles.slow_frame((Host(2), Host(101)), at(10_000), at(10_200));
        assert!(is_short(&troubles, Some(Host(101)), 10_100, 10_110));
        troubles.lost_frame((Host(102), Host(3)), at(10_000));
        assert!(is_short(&troubles, Some(Host(102)), 11_000, 11_010));
        troubles.broken_link((Host(103), Host(3)), at(10_000));
        assert!(is_short(&troubles, Some(Host(103)), 11_000, 11_010));
    }

    #[test]
    fn while_a_key_has_other_replicas_a_request_may_run_short() {
        let mut all = documents();
        let mut next = Cluster::clone(&all[0].1);
        next.generation_accepted_min = model::Generation(7);
        all.push((at(20_000), Arc::new(next)));
        let calm = Circumstances::calm(all);
        let short = |from, to| calm.is_short(("s", &KEY), 2, Some(Host(101)), (at(from), at(to)));
        assert!(!short(10_000, 10_010));
        assert!(short(19_990, 20_010) && short(24_000, 24_010));
        assert!(!short(26_000, 26_010));
        let sets = calm.replica_sets(("s", &KEY), at(19_990), at(20_010));
        assert_eq!((sets.len(), sets[0].reads_required), (1, 2));
    }
}
