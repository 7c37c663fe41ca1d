//! Bugs that this crate's tests plant, to prove that the explorations would find them.
//!
//! Each exploration wraps its machine (`plants`): a bug changes what the machine hears or says.

/// A rule that a test can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A strict quorum counts stand-ins.
    StrictCountsHints,
    /// A stand-in counts beside the replica that it stands in for.
    HintCountsBesideReplica,
    /// Answers under another generation count.
    OtherGenerationCounts,
    /// One answer fewer than required is enough.
    OneAnswerTooFew,
    /// A lost reply is taken for a refusal.
    LostIsRefused,
    /// A refusal arriving after a lost reply replaces it.
    RefusalReplacesLost,
    /// Hints are written even when that alone makes a refused write possible.
    ParksTooEarly,
    /// Replicas that stay silent are forgotten at the deadline.
    ForgetsStragglers,
    /// A failed replica gets no stand-in.
    NoStandIn,
    /// A slow node is waited for until the deadline.
    NeverHedges,
    /// The caller is answered again when more nodes answer.
    AnswersTwice,
    /// The caller is never answered early, only at the deadline.
    AnswersLate,
    /// The caller is told of too few acknowledgements before the own disk has said what became of its copy.
    ForgetsOwnCopy,
    /// A refresh does not tell that the write may have been applied.
    RefreshForgetsPossible,
    /// A failed node's later acknowledgement is dropped.
    DropsLateAck,
    /// A sloppy outcome is told as a strict one.
    HidesSloppiness,
    /// A fallback that holds nothing counts for *absent*.
    FallbackDenies,
    /// A tombstone is given like a value when too few replicas have answered.
    TombstoneIsFound,
    /// A value that has expired is given like a live one when too few replicas have answered.
    ExpiredIsFound,
    /// A fallback is asked in the place of a replica that is merely late.
    ReplacesSlowReplicas,
    /// No fallback is asked for what it holds.
    StandsInForNobody,
    /// A get that has found nothing does not wait for its replicas.
    GivesUpOnReplicas,
    /// Earlier answers are not compared with what came later.
    RepairForgetsEarlier,
    /// Fallbacks are repaired like replicas.
    RepairsFallbacks,
    /// A get that must be held by its replicas answers with one holder too few.
    OneHolderTooFew,
    /// An acknowledgement of an earlier, smaller set counts for what has been merged since.
    EarlierRoundCounts,
    /// Answers of nodes that were never asked count.
    UnaskedCounts,
    /// A write is refused for suspicion alone.
    RefusesUnasked,
    /// Suspected nodes are asked, and what they answer is not believed.
    SuspicionIsFinal,
    /// The question goes on when its answer is certain.
    AsksForMore,
    /// The question takes all of the request's time.
    AsksForever,
    /// While a partition moves, W of the old replicas complete a write.
    OldSetSuffices,
    /// While a partition moves, W of the old and new replicas together are enough.
    SetsCountTogether,
    /// While a partition moves, no hints are kept for replicas that enter.
    NoHintsForNew,
    /// While a partition moves, replicas that only take writes are asked by gets.
    AsksWhoOnlyWrites,
    /// While a partition moves, only replicas that were asked are repaired.
    RepairsReadersOnly,
    /// While a store changes, the old set uses the next numbers, and the new one the present ones.
    SparesTheOtherSet,
}

crate::planted::plantable!(Bug);

/// Runs `test` with the bug planted and tells whether it failed, by its own verdict or an assertion.
pub(super) fn is_found(bug: Bug, test: impl FnOnce() -> Result<(), String> + std::panic::UnwindSafe) -> bool {
    !matches!(with(bug, || std::panic::catch_unwind(test)), Ok(Ok(())))
}
