//! Bugs that this room's tests plant, to prove that the exploration would find them.

/// A rule that a test can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests plant bugs"))]
pub(super) enum Bug {
    /// The epoch is fixed before everybody has confirmed.
    OpensEarly,
    /// A round goes on although one node has not confirmed.
    SkipsAConfirm,
    /// A round collects a key that one node could not make clean.
    CollectsWhatWasLeftOut,
    /// A round goes on although one node has not fenced.
    SkipsAFence,
    /// A round collects without asking again whether everybody is still there.
    SkipsTheCheck,
    /// A round collects although the cluster document has changed.
    IgnoresTheDocument,
    /// A node that has forgotten what it confirmed fences all the same.
    FencesWithoutGuard,
    /// What comes in between confirming and fencing is not cleaned.
    GuardsNothing,
    /// Contents read before the epoch are accepted.
    AcceptsStaleTags,
    /// A node takes over an epoch under a document that it has not seen.
    HearsUnderAnyDocument,
    /// Contents formed under a document from before the round are accepted.
    AcceptsOldDocuments,
    /// A disk that remembers less than was completed is taken for sound.
    TrustsEveryDisk,
    /// A node that has not compared its disk with the service takes over epochs.
    HearsBeforeComparing,
    // What follows is done by drivers; the exploration's own driver breaks it.
    /// Confirming does not sync.
    SkipsSync,
    /// The epoch is not remembered before the fence is answered.
    ForgetsTheEpoch,
    /// A record or hint that cannot be read is taken for clean, and left where it is.
    PassesOverDamage,
    /// Hints are not looked at.
    LeavesHints,
    /// Hints that hold nothing but the tombstones are dropped before everybody has confirmed.
    DropsHintsEarly,
    /// Records are removed whatever they hold.
    CollectsAnything,
    /// The greatest timestamp that was forgotten is forgotten, too.
    ForgetsTheFloor,
    /// The epoch of a content is taken after the content was read.
    TagsLate,
}

crate::planted::plantable!(Bug);
