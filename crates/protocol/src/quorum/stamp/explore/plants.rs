//! Rules broken on purpose, by changing what the machine hears and says.

use super::*;

/// A rule broken on purpose, by a machine that hears or says something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// A lost reply is taken for a request that never left.
    LostIsUnreachable,
    /// A refusal in doubt is taken for a certain one.
    DoubtIsCertain,
    /// A refusal that another node would not give ends the key.
    RefusalIsFinal,
    /// A refusal that every node gives is tried elsewhere.
    FinalIsTriedElsewhere,
    /// A newer ring is not followed.
    NewsIsIgnored,
    /// Candidates of an older ring are used after news.
    OldCandidates,
    /// Suspected nodes are asked in their place.
    SuspicionIsIgnored,
    /// Lagging replicas are asked in their place.
    LagIsIgnored,
    /// Whoever needs one coordinator is sent to another for lag, or to the own node.
    ExclusiveIsForgotten,
    /// A replica does not ask itself first.
    OwnIsNotFirst,
    /// What was passed on is passed on once more.
    PassedGoesOn,
    /// The own node stamps hints in a strict store.
    StrictStandsIn,
    /// The own node stamps no hints in a sloppy store.
    SloppyRefuses,
    OneRetryMore,
    OneRetryLess,
    /// The pause before a retry is left out.
    NoPause,
    /// Something is begun after the deadline.
    LaterDeadline,
    /// Silence at the deadline is waited for.
    ElapsedIsMissed,
    /// What a node says that was not asked counts.
    ForeignReplyCounts,
    AnswersTwice,
    /// A key of a message is forgotten.
    ForgetsKey,
    /// A key is sent to a second node beside the first.
    AsksTwo,
    /// Keys that must not be begun are begun.
    BarsNobody,
    /// Keys of one node go in several messages.
    OneMessageEach,
}

/// What a machine hears instead.
pub(super) fn planted_reply(reply: StampReply, scope: &Scope) -> StampReply {
    match (scope.plant, reply) {
        (Some(Plant::LostIsUnreachable), StampReply::Lost) => StampReply::Unreachable,
        (Some(Plant::DoubtIsCertain), StampReply::Refused { retryable, ring, .. }) => {
            StampReply::Refused { certain: true, retryable, ring }
        }
        (Some(Plant::RefusalIsFinal), StampReply::Refused { certain, ring, .. }) => {
            StampReply::Refused { certain, retryable: false, ring }
        }
        (Some(Plant::FinalIsTriedElsewhere), StampReply::Refused { certain, ring, .. }) => {
            StampReply::Refused { certain, retryable: true, ring }
        }
        (Some(Plant::NewsIsIgnored), StampReply::Refused { certain, retryable, .. }) => {
            StampReply::Refused { certain, retryable, ring: None }
        }
        (_, reply) => reply,
    }
}

/// What a machine says instead.
pub(super) fn planted_actions(actions: StampActions, scope: &Scope) -> StampActions {
    let mut said = StampActions::new();
    for mut action in actions {
        match (scope.plant, &mut action) {
            (Some(Plant::NoPause), StampAction::Route { pause, .. }) => *pause = Duration::ZERO,
            (Some(Plant::AnswersTwice), StampAction::Answer { .. }) => said.push(action.clone()),
            (Some(Plant::ForgetsKey), StampAction::Ask { keys, .. }) if keys.len() > 1 => {
                keys.pop();
            }
            (Some(Plant::AsksTwo), StampAction::Ask { node, .. }) => {
                let other = NodeId(node.0 % 3 + 1);
                said.push(action.clone());
                let StampAction::Ask { node, .. } = &mut action else { unreachable!("it is one") };
                *node = other;
            }
            (Some(Plant::OneMessageEach), StampAction::Ask { node, keys, patience }) => {
                for key in keys.drain(1..) {
                    let keys = std::iter::once(key).collect();
                    said.push(StampAction::Ask { node: *node, keys, patience: *patience });
                }
            }
            _ => {}
        }
        said.push(action);
    }
    said
}
