//! What a node tells of the ring: when the first partition that it takes in or gives away sets out, and when all have
//! arrived; that lists were reordered, partitions cut, and a member called gone.
//!
//! A plan publishes dozens of documents, and each is a step of some partitions. Who reads events wants to know that
//! partitions move, not each step. **Never** decide anything by what is remembered here: it is forgotten at each start.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Cluster, Generation, Node, NodeId, PartitionId, Store};
use protocol::rebalance::entering::{Part, Way};
use runtime::Moment;

use crate::events::Event;

/// The document that this node follows, and the moves that concern it since none did.
#[derive(Default)]
pub(crate) struct Course {
    cluster: Option<Arc<Cluster>>,
    under_way: BTreeMap<PartitionId, Way>,
    began: Option<Moment>,
    ended: Ended,
}

#[derive(Default)]
struct Ended {
    entered: u64,
    left: u64,
    back: u64,
}

impl Course {
    /// The node follows this document: what there is to tell of that.
    pub(crate) fn follow(&mut self, cluster: &Arc<Cluster>, node: NodeId, now: Moment) -> Vec<Event> {
        let before = self.cluster.replace(cluster.clone());
        let mut events = before.map_or_else(Vec::new, |before| changed(&before, cluster, node));
        events.extend(self.moved(cluster, node, now));
        events
    }

    fn moved(&mut self, cluster: &Cluster, node: NodeId, now: Moment) -> Option<Event> {
        let mut ways = ways(cluster, node);
        // One that goes back has its lists traded; it is told by where it set out for.
        ways.iter_mut().for_each(|(id, way)| *way = self.under_way.get(id).copied().unwrap_or(*way));
        for (id, way) in std::mem::replace(&mut self.under_way, ways) {
            if self.under_way.contains_key(&id) {
                continue;
            }
            match (way, holds(cluster, id, node)) {
                (Way::Enters, true) => self.ended.entered += 1,
                (Way::Leaves, false) => self.ended.left += 1,
                _ => self.ended.back += 1,
            }
        }
        match (self.began, self.under_way.is_empty()) {
            (None, false) => {
                self.began = Some(now);
                let count = |way| self.under_way.values().filter(|of| **of == way).count() as u64;
                Some(Event::MovesBegan {
                    partitions_in: count(Way::Enters),
                    partitions_out: count(Way::Leaves),
                })
            }
            (Some(began), true) => {
                let seconds = now.since(began).as_secs();
                self.began = None;
                let Ended { entered, left, back } = std::mem::take(&mut self.ended);
                Some(Event::MovesEnded {
                    partitions_in: entered,
                    partitions_out: left,
                    partitions_back: back,
                    seconds,
                })
            }
            _ => None,
        }
    }
}

/// What a newer document says, but for moves.
fn changed(before: &Cluster, after: &Cluster, node: NodeId) -> Vec<Event> {
    let adopted = Event::GenerationAdopted { generation: after.generation.0 };
    let adopted = says_more(before, after).then_some(adopted);
    let was_gone = |member: &Node| before.node(member.id).is_some_and(|before| before.gone);
    let gone = after.nodes.iter().filter(|member| member.gone && !was_gone(member));
    let gone = gone.map(|member| Event::MemberGone { member: member.id });
    let partitions = after.ring.partitions().iter();
    let cut =
        partitions.filter(|of| before.ring.get(of.id).is_none() && of.nodes.contains(&node)).count() as u64;
    let cut = (cut > 0).then_some(Event::PartitionsCut { partitions: cut });
    adopted.into_iter().chain(gone).chain(cut).chain(traded(before, after, node)).collect()
}

/// That this node has other places in lists of the same nodes.
fn traded(before: &Cluster, after: &Cluster, node: NodeId) -> Option<Event> {
    let (mut partitions, mut first, mut first_before) = (0, 0, 0);
    for now in after.ring.partitions() {
        let Some(old) = before.ring.get(now.id) else { continue };
        let place = |nodes: &[NodeId]| nodes.iter().position(|at| *at == node);
        let is_settled = old.coming.is_none() && now.coming.is_none();
        let has_same_nodes =
            old.nodes.len() == now.nodes.len() && old.nodes.iter().all(|at| now.nodes.contains(at));
        if !is_settled || !has_same_nodes || place(&old.nodes) == place(&now.nodes) {
            continue;
        }
        partitions += 1;
        first += u64::from(place(&now.nodes) == Some(0));
        first_before += u64::from(place(&old.nodes) == Some(0));
    }
    (partitions > 0).then_some(Event::PlacesTraded { partitions, first, first_before })
}

/// Whether a newer document says more than that partitions, or a store, take steps: nodes, settings or bounds.
fn says_more(before: &Cluster, after: &Cluster) -> bool {
    let settled = |store: &Store| Store { coming: None, since: Generation(0), ..store.clone() };
    let same = before.stores.iter().map(settled).eq(after.stores.iter().map(settled));
    let stores = if same { &after.stores } else { &before.stores }.clone();
    let (generation, ring) = (after.generation, after.ring.clone());
    let stepped = Cluster { generation, ring, stores, ..before.clone() };
    let bounds = |cluster: &Cluster| -> Vec<_> {
        cluster.ring.partitions().iter().map(|partition| (partition.id, partition.start)).collect()
    };
    stepped != *after || bounds(before) != bounds(after)
}

/// The partitions that move to or from this node, for any store.
fn ways(cluster: &Cluster, node: NodeId) -> BTreeMap<PartitionId, Way> {
    let definitions = cluster.definitions();
    let partitions = cluster.ring.partitions().iter();
    partitions.filter_map(|partition| Some((partition.id, Way::of(&definitions, partition, node)?))).collect()
}

/// Whether the node is a replica of a partition now, for any store; as it would be of one that is no more.
fn holds(cluster: &Cluster, id: PartitionId, node: NodeId) -> bool {
    let Some(partition) = cluster.ring.get(id) else { return true };
    cluster.definitions().iter().any(|store| Part::of(store, partition, node) == Part::Holding)
}

#[cfg(test)]
mod tests {
    use model::{Ring, Step};
    use protocol::rebalance::steps;

    use super::*;
    use crate::driven::home::cluster;

    /// Partition 0 of a store with two replicas is to move from n2 to n3.
    fn moving() -> (Arc<Cluster>, Cluster) {
        let mut before = cluster();
        before.stores[0].consistency.replicas = 2;
        assert_eq!(before.ring.partitions()[0].nodes, [NodeId(1), NodeId(2), NodeId(3)]);
        let list = vec![NodeId(1), NodeId(3), NodeId(2)];
        let moving = steps::begin(&before, &[(PartitionId(0), list)]).unwrap();
        (Arc::new(before), moving)
    }

    /// The same at another step; without one, settled.
    fn at(cluster: &Cluster, step: Option<Step>) -> Arc<Cluster> {
        let mut partitions = cluster.ring.partitions().to_vec();
        match (step, &mut partitions[0].coming) {
            (Some(step), Some(coming)) => coming.step = step,
            (None, coming) => partitions[0].nodes = coming.take().unwrap().nodes,
            (Some(_), None) => panic!("it does not move"),
        }
        let generation = model::Generation(cluster.generation.0 + 1);
        Arc::new(Cluster { generation, ring: Ring::new(partitions).unwrap(), ..cluster.clone() })
    }

    fn after(seconds: u64) -> Moment {
        Moment::default().after(std::time::Duration::from_secs(seconds))
    }

    #[test]
    fn both_ends_of_a_move_are_reported_and_no_step_in_between() {
        let (before, moving) = moving();
        let steps = [Step::Copying, Step::Joint, Step::ReadingNew].map(|step| at(&moving, Some(step)));
        for (node, [partitions_in, partitions_out]) in [(NodeId(3), [1, 0]), (NodeId(2), [0, 1])] {
            let mut course = Course::default();
            assert_eq!(course.follow(&before, node, after(1)), []);
            let begun = [Event::MovesBegan { partitions_in, partitions_out }];
            assert_eq!(course.follow(&steps[0], node, after(2)), begun);
            assert_eq!(course.follow(&steps[1], node, after(5)), []);
            assert_eq!(course.follow(&steps[2], node, after(6)), []);
            let ended = Event::MovesEnded { partitions_in, partitions_out, partitions_back: 0, seconds: 7 };
            assert_eq!(course.follow(&at(&moving, None), node, after(9)), [ended]);
        }
        let mut beside = Course::default();
        for document in [&before, &steps[0], &steps[2], &at(&moving, None)] {
            assert_eq!(beside.follow(document, NodeId(1), after(1)), []);
        }
    }

    #[test]
    fn a_move_that_goes_back_is_reported_as_such_even_from_its_last_step() {
        let (before, moving) = moving();
        let late = at(&moving, Some(Step::ReadingNew));
        let returning = steps::back(&late, &[PartitionId(0)]).unwrap();
        for (ends, returning) in [(before, None), (at(&returning, None), Some(Arc::new(returning)))] {
            for (node, way) in [(NodeId(3), [1, 0]), (NodeId(2), [0, 1])] {
                let mut course = Course::default();
                let begun = Event::MovesBegan { partitions_in: way[0], partitions_out: way[1] };
                assert_eq!(course.follow(&late, node, after(1)), [begun]);
                returning.iter().for_each(|back| assert_eq!(course.follow(back, node, after(2)), []));
                let ended =
                    Event::MovesEnded { partitions_in: 0, partitions_out: 0, partitions_back: 1, seconds: 2 };
                assert_eq!(course.follow(&ends, node, after(3)), [ended]);
            }
        }
    }

    #[test]
    fn a_reordering_a_cut_and_a_removed_member_are_reported() {
        let before = cluster();
        let (id, start) = (before.ring.partitions()[0].id, before.ring.partitions()[0].start);
        let mut reordered = before.ring.partitions().to_vec();
        reordered[0].nodes.swap(0, 1);
        let with = |ring| Arc::new(Cluster { ring: Ring::new(ring).unwrap(), ..before.clone() });
        let reordered = with(reordered);
        let events = |node, after: &Cluster| changed(&before, after, NodeId(node));
        let traded = |first, first_before| Event::PlacesTraded { partitions: 1, first, first_before };
        assert_eq!(events(1, &reordered), [traded(0, 1)]);
        assert_eq!(events(2, &reordered), [traded(1, 0)]);
        assert_eq!(events(3, &reordered), [], "it has the place that it had");

        let mut cut = before.ring.partitions().to_vec();
        let new = cut.iter().map(|partition| partition.id.0).max().unwrap() + 1;
        let half = model::Partition { id: PartitionId(new), start: start + (1 << 40), ..cut[0].clone() };
        cut.insert(1, half);
        let told = events(1, &with(cut));
        assert!(told.contains(&Event::PartitionsCut { partitions: 1 }), "{told:?} of {id:?}");

        let mut gone = before.clone();
        gone.nodes[2].gone = true;
        assert!(events(1, &gone).contains(&Event::MemberGone { member: NodeId(3) }));
        assert!(!changed(&gone, &gone, NodeId(1)).contains(&Event::MemberGone { member: NodeId(3) }));
    }

    #[test]
    fn a_document_that_is_no_step_is_reported_with_its_generation() {
        let (before, moving) = moving();
        let more = |cluster: &Cluster| Arc::new(Cluster { name: "other".to_owned(), ..cluster.clone() });
        let mut course = Course::default();
        assert_eq!(course.follow(&before, NodeId(1), after(1)), []);
        let adopted = Event::GenerationAdopted { generation: moving.generation.0 };
        assert_eq!(course.follow(&more(&moving), NodeId(1), after(1)), [adopted]);
    }
}
