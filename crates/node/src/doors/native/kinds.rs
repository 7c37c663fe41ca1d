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

/// What an operator asks of the cluster document, and what is asked about artifacts as a whole.
pub(super) fn is_change(request: &Request) -> bool {
    matches!(
        request,
        Request::StoreCreate(_)
            | Request::ArtifactsGet(_)
            | Request::ArtifactsOrder(_)
            | Request::ArtifactRead(_)
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
