//! Which right each kind of request needs: the one table of the native door.
//!
//! **Architecture Invariant:** every kind stands here by name, so that a new one cannot be forgotten.

use bytes::Bytes;
use model::access::Right;
use model::order::Order;
use wire::messages::{AntiEntropyOrder, Failure, Request};

use crate::access::{Caller, Known};
use crate::view::CurrentView;

/// Whether the caller may have this carried out.
///
/// # Errors
/// `unauthenticated` or `forbidden`: nothing was done.
pub(in crate::doors) fn judge(caller: &Caller, view: &CurrentView, request: &Request) -> Result<(), Failure> {
    if is_for_nodes(request) {
        return caller.judge_node(view, request.name());
    }
    if matches!(request, Request::Hello(_) | Request::Ping(_) | Request::Authenticate(_)) {
        return Ok(());
    }
    match caller.user(view)? {
        None => Ok(()),
        Some(known) => judge_user(&known, request),
    }
}

/// What nodes tell each other, and what would let a liar undo what others wrote.
fn is_for_nodes(request: &Request) -> bool {
    matches!(
        request,
        Request::ReplicaMerge(_)
            | Request::Gossip(_)
            | Request::TreeSums(_)
            | Request::TreeNodes(_)
            | Request::KeyDigests(_)
            | Request::RecordsGet(_)
            | Request::RecordsPage(_)
            | Request::CollectCandidates(_)
            | Request::CollectConfirm(_)
            | Request::CollectFence(_)
            | Request::Collect(_)
            | Request::CollectRelease(_)
            | Request::ArtifactRead(_)
    )
}

fn judge_user(known: &Known, request: &Request) -> Result<(), Failure> {
    let all = |right, store: &str, keys: &mut dyn Iterator<Item = &Bytes>| {
        let mut judged = keys.map(|key| known.judge(right, store, Some(key)));
        judged.find(Result::is_err).unwrap_or(Ok(()))
    };
    match request {
        Request::Get(get) => known.judge(Right::Read, &get.store, Some(&get.key)),
        Request::MultiGet(get) => all(Right::Read, &get.store, &mut get.keys.iter()),
        Request::ReplicaGet(get) => all(Right::Read, &get.store, &mut get.keys.iter()),
        Request::ArtifactGet(get) => all(Right::Read, &get.store, &mut get.keys.iter()),
        Request::Put(put) => known.judge(Right::Write, &put.store, Some(&put.key)),
        Request::Delete(delete) => known.judge(Right::Write, &delete.store, Some(&delete.key)),
        Request::MultiPut(put) => {
            all(Right::Write, &put.store, &mut put.entries.iter().map(|entry| &entry.key))
        }
        Request::MultiDelete(delete) => {
            all(Right::Write, &delete.store, &mut delete.entries.iter().map(|entry| &entry.key))
        }
        Request::Scan(scan) => known.judge(Right::Scan, &scan.store, None),
        Request::ArtifactScan(scan) => known.judge(Right::Scan, &scan.store, None),
        Request::ReportGet(_)
        | Request::EventsGet(_)
        | Request::MetricsGet(_)
        | Request::PlanGet(_)
        | Request::OfficeGet(_)
        | Request::OrderAnswer(_) => known.judge(Right::Observe, "", None),
        Request::AntiEntropyControl(control) => match control.order {
            AntiEntropyOrder::Look => known.judge(Right::Observe, "", None),
            _ => known.judge(Right::Operate, "", None),
        },
        Request::OrderGive(give) => match serde_json::from_slice(&give.json) {
            Ok(Order::User { .. }) => known.judge(Right::Admin, "", None),
            // What cannot be read is refused later.
            _ => known.judge(Right::Operate, "", None),
        },
        // Any user needs to know where the nodes are.
        Request::ClusterGet(_) => Ok(()),
        // Judged above.
        Request::Hello(_)
        | Request::Ping(_)
        | Request::Authenticate(_)
        | Request::ReplicaMerge(_)
        | Request::Gossip(_)
        | Request::TreeSums(_)
        | Request::TreeNodes(_)
        | Request::KeyDigests(_)
        | Request::RecordsGet(_)
        | Request::RecordsPage(_)
        | Request::CollectCandidates(_)
        | Request::CollectConfirm(_)
        | Request::CollectFence(_)
        | Request::Collect(_)
        | Request::CollectRelease(_)
        | Request::ArtifactRead(_) => Ok(()),
    }
}

/// The order as it is put down: in a closed cluster by whom this node knows, whatever the caller says.
pub(in crate::doors) fn signed(caller: &Caller, view: &CurrentView, request: Request) -> Request {
    let Request::OrderGive(mut give) = request else { return request };
    if let Ok(Some(known)) = caller.user(view) {
        give.by = format!("user {}", known.name);
    }
    Request::OrderGive(give)
}
