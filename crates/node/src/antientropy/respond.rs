//! Answering a peer that compares.
//!
//! It runs on the background thread, and breathes between spans, so that a comparison delays no request.

use std::sync::Arc;

use model::limits::MESSAGE_BYTES_MAX;
use model::{Epoch, PartitionId, Token};
use wire::error::ErrorCode;
use wire::messages::{
    Failure, KeyDigested, KeyDigests, RecordsGet, RecordsGot, RecordsPage, RecordsPaged, Request, Response,
    TreeNoded, TreeNodes, TreeSummed, TreeSums,
};

use super::breathe;
use crate::replica::Replica;
use crate::stores::LocalStore;
use crate::view::View;

/// Most bytes of records in one answer, about.
const RECORDS_BYTES_MAX: usize = 1 << 20;
/// Most bytes of keys and digests in one answer, about.
const KEYS_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(RECORDS_BYTES_MAX < MESSAGE_BYTES_MAX && KEYS_BYTES_MAX < MESSAGE_BYTES_MAX);

/// Answers a question of a comparing peer; other requests are not for it.
pub(super) async fn respond(replica: Arc<Replica>, request: Request) -> Result<Response, Failure> {
    match request {
        Request::TreeSums(sums) => Ok(tree_sums(&replica, &sums)?.into()),
        Request::TreeNodes(nodes) => Ok(tree_nodes(&replica, &nodes)?.into()),
        Request::KeyDigests(keys) => Ok(key_digests(&replica, &keys).await?.into()),
        Request::RecordsGet(get) => Ok(records_get(&replica, &get).await?.into()),
        Request::RecordsPage(page) => Ok(records_page(&replica, &page)?.into()),
        other => Err(Failure::new(
            ErrorCode::UnknownRequest,
            format!("{} is not a request of replica repair", other.name()),
        )),
    }
}

fn is_mine(replica: &Replica, view: &View, store: &LocalStore, partition: PartitionId) -> bool {
    view.replicated_by(replica.node(), store).contains_key(&partition)
}

fn tree_sums(replica: &Replica, request: &TreeSums) -> Result<TreeSummed, Failure> {
    let (view, store) = replica.resolve(&request.store, request.generation)?;
    let mut summed = TreeSummed { differing: Vec::new(), unready: Vec::new(), incomplete: Vec::new() };
    let mine = view.replicated_by(replica.node(), &store);
    for &(partition, theirs) in &request.sums {
        if store.trees().is_incomplete(partition) {
            summed.incomplete.push(partition);
        }
        let own = store.trees().look(partition, |tree| tree.sum().zip(tree.bits())).flatten();
        match (theirs, own.filter(|_| mine.contains_key(&partition))) {
            (Some((theirs, _)), Some((own, _))) if theirs == own => {}
            (Some((_, theirs)), Some((_, own))) => summed.differing.push((partition, theirs.min(own))),
            _ => summed.unready.push(partition),
        }
    }
    Ok(summed)
}

fn tree_nodes(replica: &Replica, request: &TreeNodes) -> Result<TreeNoded, Failure> {
    let (_, store) = replica.resolve(&request.store, request.generation)?;
    let sums = request.spans.iter().map(|&(partition, (span, bits))| {
        store.trees().look(partition, |tree| tree.sums(span, bits)).flatten()
    });
    Ok(TreeNoded { sums: sums.collect() })
}

async fn key_digests(replica: &Replica, request: &KeyDigests) -> Result<KeyDigested, Failure> {
    let (_, store) = replica.resolve(&request.store, request.generation)?;
    let (mut keys, mut bytes) = (Vec::new(), 0);
    for &(partition, span) in &request.spans {
        let found = store.keys(partition, span)?;
        bytes += found.iter().map(|(key, _)| key.len() + 18).sum::<usize>();
        if bytes > KEYS_BYTES_MAX && !keys.is_empty() {
            break;
        }
        keys.push(found);
        breathe().await;
    }
    Ok(KeyDigested { keys })
}

async fn records_get(replica: &Replica, request: &RecordsGet) -> Result<RecordsGot, Failure> {
    let (view, store) = replica.resolve(&request.store, request.generation)?;
    // Before the first is read: what is read later is at least as new.
    let epoch = collected(replica);
    let (mut sets, mut bytes) = (Vec::new(), 0);
    for (position, key) in request.keys.iter().enumerate() {
        let set = store.content(view.route(&store, key).place, key).map_err(|failure| failure.code);
        bytes += set.as_ref().map_or(0, |set| wire::versions::record_bytes(None, set));
        if bytes > RECORDS_BYTES_MAX && !sets.is_empty() {
            break;
        }
        sets.push(set);
        if position % 64 == 63 {
            breathe().await;
        }
    }
    Ok(RecordsGot { epoch, sets })
}

fn records_page(replica: &Replica, request: &RecordsPage) -> Result<RecordsPaged, Failure> {
    let (view, store) = replica.resolve(&request.store, request.generation)?;
    if !is_mine(replica, &view, &store, request.partition) {
        let detail = format!("{} is not a replica of partition {}", replica.node(), request.partition);
        return Err(Failure {
            code: ErrorCode::StaleGeneration,
            detail,
            cluster: Some(view.document().clone()),
        });
    }
    let epoch = collected(replica);
    let from = Token(request.from.0);
    let (records, next) = store.page(request.partition, from, RECORDS_BYTES_MAX)?;
    Ok(RecordsPaged { epoch, records, next })
}

/// The collection epoch now. What is read after this is at least as new.
pub(super) fn collected(replica: &Replica) -> Epoch {
    replica.epochs().tag()
}
