//! Rules of a move that a test can break.

use super::*;

/// A rule that a test can break: by changing what is decided, or what the others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A node says that it has adopted a document before it has.
    SaysAdoptedEarly,
    /// A merge counts with a source that still takes requests of the step before.
    AnySourceCounts,
    /// A merge counts with a source that has lost its records.
    IncompleteSourceCounts,
    /// A merge counts that was done at an earlier step, or in an earlier move.
    OlderMergesCount,
    /// What a node said before it lost its disk still counts.
    ForgetsIncarnation,
    /// At the step joint, W of the old replicas complete a write.
    JointNeedsOldOnly,
    /// At the step joint, gets ask the new replicas.
    JointReadsNew,
    /// At the step reading-new, W of the new replicas complete a write.
    ReadingNewNeedsNewOnly,
    /// From copying, gets are sent to the new replicas at once.
    SkipsJoint,
    /// From joint, the old replicas are left at once.
    SkipsReadingNew,
    /// The old replicas are left although enough of them could still answer older gets.
    LeavesReaders,
    /// Nobody that enters has merged when gets are sent to the new replicas.
    SkipsMerging,
    /// A move that is broken off at reading-new leaves the new replicas at once.
    GoesBackStraight,
    /// Replicas take requests of earlier steps.
    AcceptsOlder,
    /// Replicas that stay need not merge when a store's numbers change: what the design said at first.
    StayingNeedNotMerge,
    /// Only as many old replicas are merged with as the next numbers need.
    MergesByNumbersToCome,
    /// Only as many old replicas must refuse older gets as the next numbers need.
    LeavesByNumbersToCome,
    /// The old set of replicas uses the next numbers, and the new one the old numbers.
    SetsTradeNumbers,
    /// A node that is only silent passes for dead.
    GoneWhileItAnswers,
    /// A node that leaves drops what the replicas do not hold.
    DropsUngiven,
}

impl Bug {
    /// Those that only a change of a store's numbers can show.
    pub(super) const OF_NUMBERS: [Bug; 4] = [
        Bug::StayingNeedNotMerge,
        Bug::MergesByNumbersToCome,
        Bug::LeavesByNumbersToCome,
        Bug::SetsTradeNumbers,
    ];

    pub(super) const ALL: [Bug; 16] = [
        Bug::SaysAdoptedEarly,
        Bug::AnySourceCounts,
        Bug::IncompleteSourceCounts,
        Bug::OlderMergesCount,
        Bug::ForgetsIncarnation,
        Bug::JointNeedsOldOnly,
        Bug::JointReadsNew,
        Bug::ReadingNewNeedsNewOnly,
        Bug::SkipsJoint,
        Bug::SkipsReadingNew,
        Bug::LeavesReaders,
        Bug::SkipsMerging,
        Bug::GoesBackStraight,
        Bug::AcceptsOlder,
        Bug::GoneWhileItAnswers,
        Bug::DropsUngiven,
    ];
}

crate::planted::plantable!(Bug);

/// Runs `test` with the bug planted and tells whether it failed, by its own verdict or an assertion.
pub(super) fn is_found(bug: Bug, test: impl FnOnce() -> Result<(), String> + std::panic::UnwindSafe) -> bool {
    !matches!(with(bug, || std::panic::catch_unwind(test)), Ok(Ok(())))
}

/// The document that follows, or what a planted bug makes of it.
pub(super) fn next(cluster: &Cluster, facts: &Facts) -> Option<Cluster> {
    let step = step_of(cluster)?;
    let hasty = match step {
        Step::Copying => false,
        Step::Joint => {
            planted(Bug::SkipsMerging) || (planted(Bug::StayingNeedNotMerge) && only_stay(cluster, facts))
        }
        Step::ReadingNew => planted(Bug::LeavesReaders),
    };
    let next =
        if hasty { stepped_once(cluster) } else { super::super::next(&distorted(cluster), facts).next? };
    // What was distorted to decide is as it was in what is published.
    let next = if next.changing().is_some() { mended(next, cluster) } else { next };
    let skips = (planted(Bug::SkipsJoint) && step == Step::Copying)
        || (planted(Bug::SkipsReadingNew) && step == Step::Joint);
    if !skips {
        return Some(next);
    }
    let generation = next.generation;
    Some(Cluster { generation, ..since(stepped_once(&next), generation) })
}

fn step_of(cluster: &Cluster) -> Option<Step> {
    model::routing::step(&cluster.stores[0], &cluster.ring.partitions()[0])
}

/// The document at its next step, whatever nodes have done.
fn stepped_once(cluster: &Cluster) -> Cluster {
    let partition = &cluster.ring.partitions()[0];
    let generation = Generation(cluster.generation.0 + 1);
    match &partition.coming {
        Some(coming) => republished(cluster, generation, vec![stepped(partition, coming, generation)]),
        None => numbers::restored(cluster, numbers::stepped(&cluster.stores[0], cluster.generation)),
    }
}

/// The same, with nothing in it from after this generation.
fn since(mut cluster: Cluster, generation: Generation) -> Cluster {
    let mut partitions: Vec<Partition> = cluster.ring.clone().into();
    partitions[0].since = partitions[0].since.min(generation);
    cluster.stores[0].since = cluster.stores[0].since.min(generation);
    Cluster { ring: Ring::new(partitions).unwrap(), ..cluster }
}

/// Whether the step waits for nodes alone that were replicas before.
fn only_stay(cluster: &Cluster, facts: &Facts) -> bool {
    let old = replicas_before(&cluster.stores[0], &cluster.ring.partitions()[0]);
    let stays = |waiting: &Waiting| matches!(waiting, Waiting::Compare { node, .. } if old.contains(node));
    let waiting = super::super::next(cluster, facts).waiting;
    waiting.iter().flat_map(|(_, waiting)| waiting).all(stays)
}

/// The document as a bug reads it that takes one set's numbers for the other's.
fn distorted(cluster: &Cluster) -> Cluster {
    let mut cluster = cluster.clone();
    let store = &mut cluster.stores[0];
    let Consistency { reads_required: reads, writes_required: writes, .. } = store.numbers_to_come();
    let now = &mut store.consistency;
    if planted(Bug::MergesByNumbersToCome) {
        now.writes_required = writes.min(now.replicas);
    }
    if planted(Bug::LeavesByNumbersToCome) {
        now.reads_required = reads.min(now.replicas);
    }
    cluster
}

fn mended(mut next: Cluster, cluster: &Cluster) -> Cluster {
    next.stores[0].consistency = cluster.stores[0].consistency;
    next
}

/// The document that breaks the move off, or what a planted bug makes of it.
pub(super) fn back(cluster: &Cluster) -> Option<Cluster> {
    let back = match cluster.changing() {
        Some(_) => back_with_numbers(cluster)?,
        None => super::super::back(cluster, &[PartitionId(0)])?,
    };
    if planted(Bug::GoesBackStraight) && step_of(&back).is_some() {
        let generation = back.generation;
        return Some(Cluster { generation, ..since(stepped_once(&back), generation) });
    }
    Some(back)
}
