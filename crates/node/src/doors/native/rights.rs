//! Which right each kind of request needs: the one table of the native door.
//!
//! **Architecture Invariant:** every kind is listed here by name, so that a new one cannot be forgotten.

use bytes::Bytes;
use model::access::Right;
use model::order::Order;
use wire::messages::{AntiEntropyOrder, Failure, Request};

use crate::access::Caller;
use crate::view::CurrentView;

/// What a request needs.
enum Needs<'a> {
    /// Nothing: it is how a caller says who it is, or asks whether the node lives.
    Nothing,
    /// A node's certificate.
    ANode,
    /// To be a user.
    AUser,
    /// A right that is about no store.
    Right(Right),
    /// A right to a key of a store.
    Key(Right, &'a str, &'a Bytes),
    /// A right to each of these keys.
    Keys(Right, &'a str, Box<dyn Iterator<Item = &'a Bytes> + 'a>),
    /// A right to all of a store.
    Whole(Right, &'a str),
}

/// Whether the caller may have this carried out.
///
/// # Errors
/// `unauthenticated` or `forbidden`: nothing was done.
pub(in crate::doors) fn judge(caller: &Caller, view: &CurrentView, request: &Request) -> Result<(), Failure> {
    let known = match caller.user(view) {
        // A node, or anyone in an open cluster.
        Ok(None) => return Ok(()),
        Ok(Some(known)) => Ok(known),
        Err(unauthenticated) => Err(unauthenticated),
    };
    match needs(request) {
        Needs::Nothing => Ok(()),
        Needs::ANode => caller.judge_node(view, request.name()),
        Needs::AUser => known.map(drop),
        Needs::Right(right) => known?.judge(right, "", None),
        Needs::Key(right, store, key) => known?.judge(right, store, Some(key)),
        Needs::Keys(right, store, mut keys) => {
            let known = known?;
            keys.try_for_each(|key| known.judge(right, store, Some(key)))
        }
        Needs::Whole(right, store) => known?.judge(right, store, None),
    }
}

/// The table.
fn needs(request: &Request) -> Needs<'_> {
    match request {
        Request::Hello(_) | Request::Ping(_) | Request::Authenticate(_) => Needs::Nothing,
        // Any user needs to know where the nodes are.
        Request::ClusterGet(_) => Needs::AUser,
        // What nodes tell each other, and what would let a liar undo what others wrote.
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
        | Request::ArtifactRead(_) => Needs::ANode,
        Request::Get(get) => Needs::Key(Right::Read, &get.store, &get.key),
        Request::MultiGet(get) => Needs::Keys(Right::Read, &get.store, Box::new(get.keys.iter())),
        Request::ReplicaGet(get) => Needs::Keys(Right::Read, &get.store, Box::new(get.keys.iter())),
        Request::ArtifactGet(get) => Needs::Keys(Right::Read, &get.store, Box::new(get.keys.iter())),
        Request::Put(put) => Needs::Key(Right::Write, &put.store, &put.key),
        Request::Delete(delete) => Needs::Key(Right::Write, &delete.store, &delete.key),
        Request::MultiPut(put) => {
            Needs::Keys(Right::Write, &put.store, Box::new(put.entries.iter().map(|entry| &entry.key)))
        }
        Request::MultiDelete(delete) => {
            Needs::Keys(Right::Write, &delete.store, Box::new(delete.entries.iter().map(|entry| &entry.key)))
        }
        Request::Scan(scan) => Needs::Whole(Right::Scan, &scan.store),
        Request::ArtifactScan(scan) => Needs::Whole(Right::Scan, &scan.store),
        Request::ReportGet(_)
        | Request::EventsGet(_)
        | Request::MetricsGet(_)
        | Request::PlanGet(_)
        | Request::OfficeGet(_)
        | Request::OrderAnswer(_) => Needs::Right(Right::Observe),
        Request::AntiEntropyControl(control) => match control.order {
            AntiEntropyOrder::Look => Needs::Right(Right::Observe),
            _ => Needs::Right(Right::Operate),
        },
        Request::OrderGive(give) => match serde_json::from_slice(&give.json) {
            Ok(Order::User { .. }) => Needs::Right(Right::Admin),
            // What cannot be read is refused later.
            _ => Needs::Right(Right::Operate),
        },
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
