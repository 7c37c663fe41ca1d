//! Every order in which a push, its reports and its mishaps can happen: three nodes, two slices, two artifacts.
//!
//! Documents are real ones and follow each other by the verbs of `model`; [`due`] alone decides. Around it nodes adopt
//! documents late, fetch chunk by chunk, report at any moment, lose their disk once; the ring changes once; a user rolls
//! back or aborts; time runs out or not; and the headmaster may have read its document long ago.

use std::cell::Cell;

use model::routing::replicas;
use model::{Cluster, Coming, Ring, Step, StoreName, Zone};

use super::*;
use crate::explore::WORLDS_MAX;

const NODES: usize = 3;
const SLICES: usize = 2;
const OLD: ArtifactNumber = ArtifactNumber(1);
const NEW: ArtifactNumber = ArtifactNumber(2);
const LATE: WallMillis = WallMillis(9);

/// What a broken headmaster would do.
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
    /// It looks at the time first, and then over whatever is there.
    AbortsBlindly,
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
    /// The document that the headmaster has read.
    read: u8,
    mishaps: u8,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A node adopts the newest document.
    Adopts(usize),
    Fetches {
        node: usize,
        slice: usize,
    },
    /// A node says that it holds all.
    Reports(usize),
    LosesDisk(usize),
    /// The headmaster reads the newest document.
    Reads,
    ChangesTheRing,
    /// A user publishes an end of the push.
    Publishes(Push),
    /// The headmaster does what is due at this time.
    Conducts(WallMillis),
}

fn store() -> ReadOnlyStore {
    let digest = |byte| ManifestDigest([byte; 16]);
    let store = ReadOnlyStore::new(StoreName::new("words").unwrap(), 2);
    let old = store.stage(OLD, digest(1), "old").unwrap().swap(OLD).unwrap();
    old.push(NEW, digest(2), "new", &wish(2)).unwrap()
}

fn wish(required: u8) -> model::artifacts::Push {
    model::artifacts::Push { replicas: Some(required), abort_at: Some(LATE), ..Default::default() }
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
    fn by_node(&self, node: usize, happenings: &mut Vec<Happening>) {
        let place = self.nodes[node];
        let goes_by = self.documents[usize::from(place.adopted)];
        if usize::from(place.adopted) + 1 < self.documents.len() {
            happenings.push(Happening::Adopts(node));
        }
        let owned = goes_by.owned(id(node));
        for slice in (0..SLICES).filter(|slice| owned & !place.held & (1 << slice) != 0) {
            if goes_by.push != Push::Aborted {
                happenings.push(Happening::Fetches { node, slice });
            }
        }
        if owned & !place.held == 0 && place.said < goes_by.generation && goes_by.push != Push::Aborted {
            happenings.push(Happening::Reports(node));
        }
        if self.mishaps > 0 && place.held != 0 {
            happenings.push(Happening::LosesDisk(node));
        }
    }

    fn adopted(&self, node: usize) -> State {
        self.with(|state| {
            state.nodes[node].adopted = state.documents.len() as u8 - 1;
            if state.document().push == Push::Aborted {
                state.nodes[node].held = 0;
            }
        })
    }

    fn reported(&self, node: usize) -> State {
        let goes_by = self.documents[usize::from(self.nodes[node].adopted)];
        self.with(|state| state.nodes[node].said = goes_by.generation)
    }

    fn lost(&self, node: usize) -> State {
        self.with(|state| {
            state.mishaps -= 1;
            (state.nodes[node].held, state.nodes[node].lost) = (0, true);
        })
    }

    /// What the headmaster publishes, if it does.
    fn conducted(&self, bug: Option<Bug>, required: u8, now: WallMillis) -> Option<State> {
        let read = self.documents[usize::from(self.read)];
        let planted = |planted| bug == Some(planted);
        let mut cluster = read.cluster();
        if planted(Bug::ForgetsTheLastSlice) {
            let zone = Zone("z".to_owned());
            cluster.ring = Ring::equal_slices(1, &[1, 2, 3].map(|id| (NodeId(id), zone.clone())));
        }
        if planted(Bug::GoesOnAfterRollback) && read.push == Push::RolledBack {
            cluster.read_only = vec![store()];
        }
        for artifact in &mut cluster.read_only[0].artifacts {
            artifact.push = artifact.push.take().map(|_| wish(required));
        }
        let reports: Vec<PushReport> = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, place)| place.said > 0)
            .map(|(node, place)| {
                let said = if planted(Bug::CountsOldReports) { read.generation } else { place.said };
                PushReport {
                    node: id(node),
                    generation: Generation(said),
                    number: NEW,
                    manifest: ManifestDigest([2; 16]),
                }
            })
            .collect();
        let (_, number, due) = due(&cluster, &[(store().name, reports)].into(), now)?;
        assert_eq!(number, NEW);
        let (then, blindly) = match due {
            Due::Swap => (Push::Swapped, planted(Bug::PublishesBlindly)),
            Due::Abort => (Push::Aborted, planted(Bug::AbortsBlindly)),
        };
        let stands = self.document() == read || blindly;
        stands.then(|| self.published(|document| document.push = then))
    }

    /// What must hold when the headmaster has just published over `before`.
    fn convict(&self, before: &State, required: u8) -> Result<(), String> {
        let document = self.document();
        if before.document().push != Push::Staging {
            return Err(format!("{:?} though the push was {:?}", document.push, before.document().push));
        }
        if document.push == Push::Aborted {
            return Ok(());
        }
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

/// A state, and what all states of one exploration share.
#[derive(Clone, Debug)]
struct World<'a> {
    state: State,
    bug: Option<Bug>,
    required: u8,
    /// Swaps that were published, in all of them.
    swaps: &'a Cell<usize>,
}

impl World<'_> {
    /// What the headmaster publishes at this time, if it does.
    fn conducted(&self, now: WallMillis) -> Result<Option<State>, String> {
        let Some(next) = self.state.conducted(self.bug, self.required, now) else { return Ok(None) };
        next.convict(&self.state, self.required)?;
        self.swaps.set(self.swaps.get() + usize::from(next.document().push == Push::Swapped));
        Ok(Some(next))
    }
}

impl crate::explore::World for World<'_> {
    type Happening = Happening;
    type Name = State;

    fn name(&self) -> State {
        self.state.clone()
    }

    fn happenings(&self) -> Vec<Happening> {
        let mut happenings = Vec::new();
        (0..NODES).for_each(|node| self.state.by_node(node, &mut happenings));
        if usize::from(self.state.read) + 1 < self.state.documents.len() {
            happenings.push(Happening::Reads);
        }
        let document = self.state.document();
        if !document.ring_changed {
            happenings.push(Happening::ChangesTheRing);
        }
        match document.push {
            Push::Staging => happenings.push(Happening::Publishes(Push::Aborted)),
            Push::Swapped => happenings.push(Happening::Publishes(Push::RolledBack)),
            Push::RolledBack | Push::Aborted => {}
        }
        happenings.extend([WallMillis(0), LATE].map(Happening::Conducts));
        happenings
    }

    fn step(&self, happening: &Happening) -> Result<Option<Self>, String> {
        let state = &self.state;
        let next = match *happening {
            Happening::Adopts(node) => state.adopted(node),
            Happening::Fetches { node, slice } => state.with(|state| state.nodes[node].held |= 1 << slice),
            Happening::Reports(node) => state.reported(node),
            Happening::LosesDisk(node) => state.lost(node),
            Happening::Reads => state.with(|state| state.read = state.documents.len() as u8 - 1),
            Happening::ChangesTheRing => state.published(|document| document.ring_changed = true),
            Happening::Publishes(push) => state.published(|document| document.push = push),
            Happening::Conducts(now) => match self.conducted(now)? {
                Some(next) => next,
                None => return Ok(None),
            },
        };
        Ok(Some(World { state: next, ..self.clone() }))
    }
}

/// Visits every state; the number of them, and of swaps among them.
fn explore(bug: Option<Bug>, required: u8) -> Result<(usize, usize), String> {
    let first = Document { generation: 1, ring_changed: false, push: Push::Staging };
    let nodes = [Place::default(); NODES];
    let (state, swaps) = (State { documents: vec![first], nodes, read: 0, mishaps: 1 }, Cell::new(0));
    let states = crate::explore::explore(World { state, bug, required, swaps: &swaps }, WORLDS_MAX)?;
    Ok((states, swaps.get()))
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
    let bugs = [
        Bug::CountsOldReports,
        Bug::PublishesBlindly,
        Bug::ForgetsTheLastSlice,
        Bug::GoesOnAfterRollback,
        Bug::AbortsBlindly,
    ];
    for bug in bugs {
        assert!((1..=2).any(|required| explore(Some(bug), required).is_err()), "{bug:?} passes");
    }
}

#[test]
fn a_judgement_names_the_nodes_that_lack_the_artifact() {
    let document = Document { generation: 5, ring_changed: false, push: Push::Staging };
    let report = |node, generation| PushReport {
        node: NodeId(node),
        generation: Generation(generation),
        number: NEW,
        manifest: ManifestDigest([2; 16]),
    };
    let judged = |reports: &[PushReport], enough| judge(&document.cluster(), &store(), NEW, reports, enough);
    let all = [report(1, 5), report(2, 5), report(3, 5)];
    assert_eq!(judged(&all, Enough::All), Judgement::Ready);
    let older = [report(1, 5), report(2, 4), report(3, 5)];
    assert!(
        matches!(judged(&older, Enough::All), Judgement::NotYet { lacking, .. } if lacking == [NodeId(2)])
    );
    assert_eq!(judged(&older, Enough::Replicas(1)), Judgement::Ready);
    let other = PushReport { manifest: ManifestDigest([3; 16]), ..report(2, 5) };
    assert!(matches!(judged(&[all[0], other, all[2]], Enough::All), Judgement::NotYet { .. }));
}

#[test]
fn of_two_pushes_that_are_ready_the_newer_one_goes_live_and_ends_the_older_one() {
    let document = Document { generation: 5, ring_changed: false, push: Push::Staging };
    let newer = ArtifactNumber(3);
    let both = store().push(newer, ManifestDigest([3; 16]), "newer", &wish(2)).unwrap();
    let cluster = Cluster { read_only: vec![both.clone()], ..document.cluster() };
    let said = |number, byte, nodes: &[u32]| {
        let report = |&node: &u32| PushReport {
            node: NodeId(node),
            generation: Generation(5),
            number,
            manifest: ManifestDigest([byte; 16]),
        };
        nodes.iter().map(report).collect::<Vec<_>>()
    };
    let name = both.name.clone();
    let due = |reports: Vec<PushReport>, now| due(&cluster, &[(name.clone(), reports)].into(), now);
    let old = said(NEW, 2, &[1, 2, 3]);
    assert_eq!(due(old.clone(), WallMillis(0)), Some((name.clone(), NEW, Due::Swap)));
    let all = [old, said(newer, 3, &[1, 2, 3])].concat();
    assert_eq!(due(all, LATE), Some((name.clone(), newer, Due::Swap)), "ready goes before late");
    assert_eq!(due(Vec::new(), WallMillis(8)), None);
    assert_eq!(due(Vec::new(), LATE), Some((name.clone(), newer, Due::Abort)));
    let swapped = both.swap(newer).unwrap();
    assert!(swapped.artifacts.iter().all(|artifact| artifact.push.is_none()), "{swapped:?}");
    assert!(swapped.push(NEW, ManifestDigest([2; 16]), "new", &wish(2)).is_err(), "no push goes back");
    let rest = Cluster { read_only: vec![swapped], ..document.cluster() };
    assert!(is_pending(&cluster) && !is_pending(&rest));
}

#[test]
fn while_a_partition_moves_old_and_new_replicas_must_hold_what_is_swapped_to() {
    let document = Document { generation: 5, ring_changed: false, push: Push::Staging };
    let said = |nodes: &[u32]| {
        let report = |&node: &u32| PushReport {
            node: NodeId(node),
            generation: Generation(5),
            number: NEW,
            manifest: ManifestDigest([2; 16]),
        };
        nodes.iter().map(report).collect::<Vec<_>>()
    };
    for step in [Step::Copying, Step::Joint, Step::ReadingNew] {
        let mut cluster = document.cluster();
        let mut partitions = cluster.ring.partitions().to_vec();
        // Nobody but the one that moves needs its nodes.
        partitions[0].nodes = vec![NodeId(1), NodeId(2)];
        partitions[1].nodes = vec![NodeId(2)];
        let nodes = vec![NodeId(2), NodeId(4)];
        partitions[0].coming = Some(Coming { step, nodes, unknown: model::Unknown::new() });
        cluster.ring = Ring::new(partitions).unwrap();
        let judged = |nodes: &[u32]| judge(&cluster, &store(), NEW, &said(nodes), Enough::All);
        let lacks = |node| Judgement::NotYet { slices: 1, lacking: vec![NodeId(node)] };
        assert_eq!(judged(&[1, 2]), lacks(4), "{step:?}: the one that enters");
        assert_eq!(judged(&[2, 4]), lacks(1), "{step:?}: the one that leaves");
        assert_eq!(judged(&[1, 2, 4]), Judgement::Ready);
    }
}
