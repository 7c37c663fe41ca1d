//! Which requests the door treats alike.

use wire::messages::Request;

/// What a node is asked as a replica.
pub(super) fn is_replicas(request: &Request) -> bool {
    matches!(
        request,
        Request::ReplicaGet(_)
            | Request::ReplicaMerge(_)
            | Request::ArtifactGet(_)
            | Request::Scan(_)
            | Request::ArtifactScan(_)
    )
}

/// What an operator orders and asks of orders and plans, and what another node asks of an artifact's files.
pub(super) fn is_change(request: &Request) -> bool {
    matches!(
        request,
        Request::OrderGive(_)
            | Request::OrderAnswer(_)
            | Request::PlanGet(_)
            | Request::OfficeGet(_)
            | Request::ArtifactRead(_)
            | Request::AntiEntropyControl(_)
    )
}

pub(super) fn is_round_step(request: &Request) -> bool {
    matches!(
        request,
        Request::CollectCandidates(_)
            | Request::CollectConfirm(_)
            | Request::CollectFence(_)
            | Request::Collect(_)
            | Request::CollectRelease(_)
    )
}
