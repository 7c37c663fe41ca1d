//! How far the moves of a plan are, by what the ring says.

use model::plan::{Move, PlanChange, Progress, Renumber, Reshaped};
use model::{Cluster, Step};

/// How far a move of a plan is in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// The partition is where it was.
    Waiting,
    /// It is on its way.
    Under(Step),
    /// It is on its way back.
    Back,
    /// It has arrived.
    Settled,
    /// The ring says something else: it was changed by another hand.
    Changed,
}

impl Stand {
    /// Of a move.
    pub(super) fn of(cluster: &Cluster, one: &Move) -> Stand {
        let Some(partition) = cluster.ring.get(one.partition) else { return Stand::Changed };
        match &partition.coming {
            None if partition.nodes == one.to => Stand::Settled,
            None if partition.nodes == one.from => Stand::Waiting,
            Some(coming) if coming.nodes == one.to && partition.nodes == one.from => {
                Stand::Under(coming.step)
            }
            Some(coming) if coming.nodes == one.from && partition.nodes == one.to => Stand::Back,
            _ => Stand::Changed,
        }
    }

    /// Of a store that gets other numbers: all its partitions stand so.
    pub(super) fn of_store(cluster: &Cluster, numbers: &Renumber) -> Stand {
        let Some(store) = cluster.store(numbers.store.as_str()) else { return Stand::Changed };
        let is = |from, to| store.consistency == from && store.numbers_to_come() == to;
        match store.step() {
            None if store.consistency == numbers.to => Stand::Settled,
            None if store.consistency == numbers.from => Stand::Waiting,
            Some(step) if is(numbers.from, numbers.to) => Stand::Under(step),
            Some(_) if is(numbers.to, numbers.from) => Stand::Back,
            _ => Stand::Changed,
        }
    }
}

/// How far a plan is, but for what was copied. Bounds are changed last.
pub(super) fn progress(cluster: &Cluster, change: &PlanChange) -> Progress {
    let mut progress = Progress::default();
    let stands: Vec<(Stand, usize)> = match change {
        PlanChange::Numbers(numbers) => vec![(Stand::of_store(cluster, numbers), numbers.partitions)],
        PlanChange::Reshape { moves, reshape } if reshape.stands(&cluster.ring) == Reshaped::Done => {
            vec![(Stand::Settled, moves.len())]
        }
        // Partitions are taken in by others when all moves have settled.
        PlanChange::Golden { moves, joins, .. }
            if joins.iter().any(|(_, other)| cluster.ring.get(*other).is_none()) =>
        {
            vec![(Stand::Settled, moves.len())]
        }
        PlanChange::Moves { moves }
        | PlanChange::Reshape { moves, .. }
        | PlanChange::Golden { moves, .. } => moves.iter().map(|one| (Stand::of(cluster, one), 1)).collect(),
    };
    for (stand, partitions) in stands {
        *match stand {
            Stand::Waiting | Stand::Changed => &mut progress.waiting,
            Stand::Under(Step::Copying) => &mut progress.copying,
            Stand::Under(Step::Joint) => &mut progress.joint,
            Stand::Under(Step::ReadingNew) => &mut progress.reading_new,
            Stand::Back => &mut progress.back,
            Stand::Settled => &mut progress.settled,
        } += partitions;
    }
    progress
}
