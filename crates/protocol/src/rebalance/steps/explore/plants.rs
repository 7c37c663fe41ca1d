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
    /// The old replicas are left although so many of them could still answer older gets.
    LeavesReaders,
    /// Nobody that enters has merged when gets are sent to the new replicas.
    SkipsMerging,
    /// A move that is broken off at reading-new leaves the new replicas at once.
    GoesBackStraight,
    /// Replicas take requests of earlier steps.
    AcceptsOlder,
    /// A node that is only silent passes for dead.
    GoneWhileItAnswers,
    /// A node that leaves drops what the replicas do not hold.
    DropsUngiven,
}

impl Bug {
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
    let partition = &cluster.ring.partitions()[0];
    let step = partition.step()?;
    let hasty = match step {
        Step::Copying => false,
        Step::Joint => planted(Bug::SkipsMerging),
        Step::ReadingNew => planted(Bug::LeavesReaders),
    };
    let next = if hasty {
        let coming = partition.coming.as_ref().expect("it moves");
        let generation = Generation(cluster.generation.0 + 1);
        republished(cluster, generation, vec![stepped(partition, coming, generation)])
    } else {
        super::super::next(cluster, facts).next?
    };
    let skips = (planted(Bug::SkipsJoint) && step == Step::Copying)
        || (planted(Bug::SkipsReadingNew) && step == Step::Joint);
    if !skips {
        return Some(next);
    }
    let partition = &next.ring.partitions()[0];
    let coming = partition.coming.as_ref().expect("it moves");
    Some(republished(cluster, next.generation, vec![stepped(partition, coming, next.generation)]))
}

/// The document that breaks the move off, or what a planted bug makes of it.
pub(super) fn back(cluster: &Cluster) -> Option<Cluster> {
    let back = super::super::back(cluster, &[PartitionId(0)])?;
    let partition = &back.ring.partitions()[0];
    match &partition.coming {
        Some(coming) if planted(Bug::GoesBackStraight) => {
            Some(republished(cluster, back.generation, vec![stepped(partition, coming, back.generation)]))
        }
        _ => Some(back),
    }
}
