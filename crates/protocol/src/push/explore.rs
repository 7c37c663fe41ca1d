//! Every order in which a push, its reports and its mishaps can happen: three nodes, two slices, two artifacts.
//!
//! Documents are real ones and follow each other by the verbs of `model`; [`judge`] and [`goes_on`] alone decide. Around
//! them nodes adopt documents late, fetch chunk by chunk, report at any moment, lose their disk once; the ring changes
//! once; a user rolls back or aborts; and the conductor may have read its document long ago.

use std::collections::BTreeSet;

use model::{Cluster, Ring, StoreName, Zone};

use super::*;

const NODES: usize = 3;
const SLICES: usize = 2;
const OLD: ArtifactNumber = ArtifactNumber(1);
const NEW: ArtifactNumber = ArtifactNumber(2);

/// What a broken conductor would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// It counts what was said under an older document.
    CountsOldReports,
    /// It publishes over whatever is there.
    PublishesBlindly,
    /// It does not look at the last slice.
    ForgetsTheLastSlice,
    /// It swaps to what was rolled back.
    GoesOnAfterRollback,
}

/// The document, as far as it differs: which ring, how far the push is, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Document {
    generation: u64,
    ring_changed: bool,
    push: Push,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Push {
    Staging,
    Swapped,
    RolledBack,
    Aborted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Position of the document by which it goes.
    adopted: u8,
    /// Slices of the new artifact that it holds.
    held: u8,
    lost: bool,
    /// The generation under which it has said last that it holds all.
    said: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// All that were published.
    documents: Vec<Document>,
    nodes: [Place; NODES],
    /// The document that the conductor has read.
    read: u8,
    mishaps: u8,
}

fn store() -> ReadOnlyStore {
    let digest = |byte| ManifestDigest([byte; 16]);
    let store = ReadOnlyStore::new(StoreName::new("words").unwrap(), 2);
    let old = store.stage(OLD, digest(1), "old").unwrap().swap(OLD).unwrap();
    old.stage(NEW, digest(2), "new").unwrap()
}

impl Document {
    fn store(self) -> ReadOnlyStore {
        let swapped = || store().swap(NEW).unwrap();
        match self.push {
            Push::Staging => store(),
            Push::Swapped => swapped(),
            Push::RolledBack => swapped().swap(swapped().behind().unwrap()).unwrap(),
            Push::Aborted => store().abort(NEW).unwrap(),
        }
    }

    fn ring(self) -> Ring {
        let zone = Zone("z".to_owned());
        let order: [u32; NODES] = if self.ring_changed { [3, 2, 1] } else { [1, 2, 3] };
        Ring::equal_slices(SLICES, &order.map(|id| (NodeId(id), zone.clone())))
    }

    fn cluster(self) -> Cluster {
        let cluster = Cluster::new("explored", Vec::new(), self.ring(), Vec::new());
        Cluster { generation: Generation(self.generation), read_only: vec![self.store()], ..cluster }
    }

    /// Slices of which a node is a replica.
    fn owned(self, node: NodeId) -> u8 {
        let definition = store().as_store();
        let ring = self.ring();
        let mine = ring.partitions().iter().enumerate();
        mine.filter(|(_, partition)| replicas(&definition, partition).contains(&node))
            .map(|(slice, _)| 1 << slice)
            .sum()
    }
}

fn id(node: usize) -> NodeId {
    NodeId(node as u32 + 1)
}

impl State {
    fn document(&self) -> Document {
        *self.documents.last().unwrap()
    }

    fn with(&self, change: impl FnOnce(&mut State)) -> State {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn published(&self, change: impl FnOnce(&mut Document)) -> State {
        let mut document = self.document();
        document.generation += 1;
        change(&mut document);
        self.with(|state| state.documents.push(document))
    }

    /// What nodes do by themselves.
    fn by_node(&self, node: usize, next: &mut Vec<State>) {
        let place = self.nodes[node];
        let goes_by = self.documents[usize::from(place.adopted)];
        if usize::from(place.adopted) + 1 < self.documents.len() {
            next.push(self.with(|state| {
                let adopted = &mut state.nodes[node].adopted;
                *adopted = state.documents.len() as u8 - 1;
                if state.document().push == Push::Aborted {
                    state.nodes[node].held = 0;
                }
            }));
        }
        let owned = goes_by.owned(id(node));
        for slice in (0..SLICES).filter(|slice| owned & !place.held & (1 << slice) != 0) {
            if goes_by.push != Push::Aborted {
                next.push(self.with(|state| state.nodes[node].held |= 1 << slice));
            }
        }
        if owned & !place.held == 0 && place.said < goes_by.generation && goes_by.push != Push::Aborted {
            next.push(self.with(|state| state.nodes[node].said = goes_by.generation));
        }
        if self.mishaps > 0 && place.held != 0 {
            next.push(self.with(|state| {
                state.mishaps -= 1;
                (state.nodes[node].held, state.nodes[node].lost) = (0, true);
            }));
        }
    }

    /// What the conductor publishes, if it does.
    fn swapped(&self, bug: Option<Bug>, enough: Enough) -> Option<State> {
        let read = self.documents[usize::from(self.read)];
        let planted = |planted| bug == Some(planted);
        let mut cluster = read.cluster();
        if planted(Bug::ForgetsTheLastSlice) {
            let zone = Zone("z".to_owned());
            cluster.ring = Ring::equal_slices(1, &[1, 2, 3].map(|id| (NodeId(id), zone.clone())));
        }
        let reports: Vec<Report> = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, place)| place.said > 0)
            .map(|(node, place)| {
                let said = if planted(Bug::CountsOldReports) { read.generation } else { place.said };
                Report {
                    node: id(node),
                    generation: Generation(said),
                    number: NEW,
                    manifest: ManifestDigest([2; 16]),
                }
            })
            .collect();
        let store = read.store();
        let wanted =
            goes_on(&store, NEW) || (planted(Bug::GoesOnAfterRollback) && read.push == Push::RolledBack);
        let ready = judge(&cluster, &store, NEW, &reports, enough) == Judgement::Ready;
        let stands = self.document() == read || planted(Bug::PublishesBlindly);
        let publish = || self.published(|document| document.push = Push::Swapped);
        (wanted && ready && stands).then(publish)
    }

    /// What must hold when the swap has just been published over `before`.
    fn convict(&self, before: &State, enough: Enough) -> Result<(), String> {
        if before.document().push != Push::Staging {
            return Err(format!("swapped though the push was {:?}", before.document().push));
        }
        let document = self.document();
        let Enough::Replicas(required) = enough else { unreachable!("explored with a number") };
        for slice in 0..SLICES {
            let has = |node: &usize| {
                let place = self.nodes[*node];
                document.owned(id(*node)) & (1 << slice) != 0
                    && (place.held & (1 << slice) != 0 || place.lost)
            };
            let holders = (0..NODES).filter(has).count();
            if holders < usize::from(required) {
                return Err(format!("slice {slice} is served and {holders} replicas hold it: {self:?}"));
            }
        }
        Ok(())
    }
}

/// Visits every state; the number of them, and of swaps among them.
fn explore(bug: Option<Bug>, required: u8) -> Result<(usize, usize), String> {
    let enough = Enough::Replicas(required);
    let first = Document { generation: 1, ring_changed: false, push: Push::Staging };
    let nodes = [Place::default(); NODES];
    let mut left = vec![State { documents: vec![first], nodes, read: 0, mishaps: 1 }];
    let (mut visited, mut swaps) = (BTreeSet::new(), 0);
    while let Some(state) = left.pop() {
        let mut next = Vec::new();
        (0..NODES).for_each(|node| state.by_node(node, &mut next));
        let newest = state.documents.len() as u8 - 1;
        if state.read < newest {
            next.push(state.with(|state| state.read = newest));
        }
        let document = state.document();
        if !document.ring_changed {
            next.push(state.published(|document| document.ring_changed = true));
        }
        match document.push {
            Push::Staging => next.push(state.published(|document| document.push = Push::Aborted)),
            Push::Swapped => next.push(state.published(|document| document.push = Push::RolledBack)),
            Push::RolledBack | Push::Aborted => {}
        }
        if let Some(swapped) = state.swapped(bug, enough) {
            swapped.convict(&state, enough)?;
            swaps += 1;
            next.push(swapped);
        }
        next.retain(|state| visited.insert(state.clone()));
        left.extend(next);
    }
    Ok((visited.len(), swaps))
}

#[test]
fn in_every_order_a_swap_is_published_only_when_each_slice_is_held() {
    for required in [1, 2] {
        let (states, swaps) = explore(None, required).unwrap();
        assert!(states > 1_000 && swaps > 10, "{states} states, {swaps} swaps");
    }
}

#[test]
fn every_planted_bug_is_convicted() {
    let bugs =
        [Bug::CountsOldReports, Bug::PublishesBlindly, Bug::ForgetsTheLastSlice, Bug::GoesOnAfterRollback];
    for bug in bugs {
        assert!((1..=2).any(|required| explore(Some(bug), required).is_err()), "{bug:?} passes");
    }
}

#[test]
fn a_judgement_names_the_nodes_that_lack_the_artifact() {
    let document = Document { generation: 5, ring_changed: false, push: Push::Staging };
    let report = |node, generation| Report {
        node: NodeId(node),
        generation: Generation(generation),
        number: NEW,
        manifest: ManifestDigest([2; 16]),
    };
    let judged = |reports: &[Report], enough| judge(&document.cluster(), &store(), NEW, reports, enough);
    let all = [report(1, 5), report(2, 5), report(3, 5)];
    assert_eq!(judged(&all, Enough::All), Judgement::Ready);
    let older = [report(1, 5), report(2, 4), report(3, 5)];
    assert!(
        matches!(judged(&older, Enough::All), Judgement::NotYet { lacking, .. } if lacking == [NodeId(2)])
    );
    assert_eq!(judged(&older, Enough::Replicas(1)), Judgement::Ready);
    let other = Report { manifest: ManifestDigest([3; 16]), ..report(2, 5) };
    assert!(matches!(judged(&[all[0], other, all[2]], Enough::All), Judgement::NotYet { .. }));
}
