//! No node is replaced that lives: what a document calls gone was dead for the whole waiting period, by what the simulator
//! knows of its processes. A process that is stopped lives. The autopilot calls one node gone in ten minutes at most.
//!
//! An operator's order needs less silence, but some, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{Cluster, Moment, NodeId};
use protocol::headmaster::SILENT_MIN;

use super::Violation;

/// Two nodes are not replaced by themselves within this time.
const BETWEEN: Duration = Duration::from_secs(600);
/// A node that began to serve so shortly before was not there when it was looked at: asking nodes takes two seconds at
/// most, and the document is written after that.
const LOOKING: Duration = Duration::from_secs(3);

/// What was seen so far.
#[derive(Debug)]
pub struct Replaced {
    /// How long the autopilot waits.
    waits: Duration,
    /// When nodes served: from when, and until when, if that is over.
    lives: BTreeMap<NodeId, Vec<(Moment, Option<Moment>)>>,
    gone: BTreeSet<NodeId>,
    /// The order that the document before names.
    ordered: Option<(u64, u64)>,
    /// When the autopilot called a node gone.
    pub unasked: Vec<(Moment, NodeId)>,
    broken: Vec<Violation>,
}

impl Replaced {
    /// Of a cluster whose autopilot waits for this long.
    pub fn new(waits: Duration) -> Replaced {
        let (lives, gone, ordered, unasked, broken) = Default::default();
        Replaced { waits, lives, gone, ordered, unasked, broken }
    }

    /// A node serves from now on.
    pub fn lives(&mut self, now: Moment, node: NodeId) {
        self.lives.entry(node).or_default().push((now, None));
    }

    /// Its process has ended.
    pub fn ends(&mut self, now: Moment, node: NodeId) {
        let last = self.lives.get_mut(&node).and_then(|lives| lives.last_mut());
        if let Some((_, until @ None)) = last {
            *until = Some(now);
        }
    }

    /// A document was published.
    pub fn published(&mut self, now: Moment, cluster: &Cluster) {
        let ordered = cluster.ordered.as_ref().map(|by| (by.order, by.given_ms));
        let is_ordered = ordered.is_some() && ordered != self.ordered;
        self.ordered = ordered;
        let gone = cluster.nodes.iter().filter(|node| node.gone).map(|node| node.id);
        let buried: Vec<NodeId> = gone.filter(|node| self.gone.insert(*node)).collect();
        // A node may be called back by an order.
        self.gone.retain(|node| cluster.node(*node).is_none_or(|entry| entry.gone));
        for node in buried {
            self.bury(now, node, is_ordered);
        }
    }

    fn bury(&mut self, now: Moment, node: NodeId, is_ordered: bool) {
        let period = if is_ordered { SILENT_MIN } else { self.waits };
        let back = |by: Duration| Moment { nanos: now.nanos.saturating_sub(by.as_nanos() as u64) };
        let (from, to) = (back(period), back(LOOKING));
        let mut lives = self.lives.get(&node).into_iter().flatten();
        let lived = |(since, until): &&(Moment, Option<Moment>)| {
            *since < to && until.is_none_or(|until| until > from)
        };
        let who = if is_ordered { "by order" } else { "by itself" };
        if let Some((_, until)) = lives.rfind(lived) {
            let alive = until.map_or_else(
                || "lives".to_owned(),
                |until| format!("lived {} ms ago", now.since(until).as_millis()),
            );
            self.say(format!("{node} is replaced {who}, and {alive}; it waits for {} s", period.as_secs()));
        }
        if is_ordered {
            return;
        }
        if let Some((before, other)) = self.unasked.last()
            && now.since(*before) < BETWEEN
        {
            let seconds = now.since(*before).as_secs();
            self.say(format!("{node} is replaced by itself {seconds} s after {other}"));
        }
        self.unasked.push((now, node));
    }

    fn say(&mut self, detail: String) {
        self.broken.push(Violation { invariant: 12, about: None, detail });
    }

    /// What must not have happened.
    pub fn broken(&self) -> &[Violation] {
        &self.broken
    }
}

#[cfg(test)]
mod tests {
    use model::cluster::Ordered;
    use model::{Consistency, Node, Ring, Store, StoreName, Zone};

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::default().after(Duration::from_secs(seconds))
    }

    /// A document that calls these nodes gone, by this order.
    fn calls_gone(gone: &[u32], order: Option<u64>) -> Cluster {
        let zone = Zone("z".to_owned());
        let node = |id| Node {
            gone: gone.contains(&id),
            ..Node::new(NodeId(id), zone.clone(), format!("h{id}:1"), None)
        };
        let nodes: Vec<Node> = (1..=4).map(node).collect();
        let zoned: Vec<_> = nodes.iter().map(|node| (node.id, zone.clone())).collect();
        let consistency = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
        let store = Store::new(StoreName::new("s").expect("well formed"), consistency).expect("they fit");
        let ordered = order.map(|order| Ordered { order, given_ms: 1 });
        Cluster { ordered, ..Cluster::new("c", nodes, Ring::equal_slices(1, &zoned), vec![store]) }
    }

    /// Node 1 served from second 0 to 100. What is broken when it is called gone then, by this order.
    fn broken(gone_at: u64, order: Option<u64>) -> usize {
        let mut replaced = Replaced::new(Duration::from_secs(60));
        replaced.lives(at(0), NodeId(1));
        replaced.ends(at(100), NodeId(1));
        replaced.published(at(gone_at), &calls_gone(&[1], order));
        replaced.published(at(gone_at + 1), &calls_gone(&[1], order));
        replaced.broken().len()
    }

    #[test]
    fn a_node_that_lived_within_the_period_and_is_replaced_is_named() {
        assert_eq!((broken(159, None), broken(160, None)), (1, 0));
        assert_eq!((broken(119, Some(7)), broken(120, Some(7))), (1, 0), "an order waits for less");
        let mut replaced = Replaced::new(Duration::from_secs(60));
        replaced.lives(at(0), NodeId(2));
        replaced.published(at(200), &calls_gone(&[2], None));
        assert!(replaced.broken()[0].detail.contains("n2 is replaced by itself, and lives"));
        // One that comes back just then could not be seen.
        let mut replaced = Replaced::new(Duration::from_secs(60));
        replaced.lives(at(198), NodeId(2));
        replaced.published(at(200), &calls_gone(&[2], None));
        assert_eq!(replaced.broken(), []);
    }

    #[test]
    fn a_second_replacement_within_ten_minutes_is_named_unless_it_was_ordered() {
        let second = |seconds, order| {
            let mut replaced = Replaced::new(Duration::from_secs(60));
            replaced.published(at(100), &calls_gone(&[1], Some(3)));
            replaced.published(at(200), &calls_gone(&[1, 2], Some(3)));
            replaced.published(at(seconds), &calls_gone(&[1, 2, 3], order));
            (replaced.broken().len(), replaced.unasked.len())
        };
        assert_eq!(second(799, Some(3)), (1, 2), "the order is that of the document before");
        assert_eq!(second(800, Some(3)), (0, 2));
        assert_eq!(second(300, Some(4)), (0, 1));
    }
}
