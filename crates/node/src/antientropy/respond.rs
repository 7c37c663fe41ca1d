//! Answering a peer that compares.
//!
//! It runs on the background thread, and breathes between spans, so that a comparison delays no request.

use std::sync::Arc;

use model::limits::MESSAGE_BYTES_MAX;
use model::{Epoch, Generation, PartitionId, Token};
use wire::error::ErrorCode;
use wire::messages::{
    AnswererState, Failure, KeyDigested, KeyDigests, RecordsGet, RecordsGot, RecordsPage, RecordsPaged,
    Request, Response, TreeNoded, TreeNodes, TreeSummed, TreeSums,
};

use crate::chores::breathe;
use crate::replica::{AskedAs, Replica};
use crate::stores::LocalStore;
use crate::view::View;

/// Most bytes of records in one answer, about.
const RECORDS_BYTES_MAX: usize = 1 << 20;
/// Most bytes of keys and digests in one answer, about.
const KEYS_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(RECORDS_BYTES_MAX < MESSAGE_BYTES_MAX && KEYS_BYTES_MAX < MESSAGE_BYTES_MAX);

/// Answers a question of a comparing peer; other requests are not for it.
pub(super) async fn respond(
    replica: Arc<Replica>,
    incarnation: u64,
    request: Request,
) -> Result<Response, Failure> {
    match request {
        Request::TreeSums(sums) => Ok(tree_sums(&replica, incarnation, &sums).await?.into()),
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

/// The view and store of a question that a peer asked under `generation`, and which partitions of it are to be compared
/// here: those that both hold, by the same document.
struct ComparedStore<'r> {
    replica: &'r Replica,
    view: Arc<View>,
    store: Arc<LocalStore>,
    generation: Generation,
}

impl<'r> ComparedStore<'r> {
    fn of(replica: &'r Replica, store: &str, generation: Generation) -> Result<Self, Failure> {
        let view = replica.view().get();
        let store = replica.store_of(&view, store, generation)?.clone();
        Ok(ComparedStore { replica, view, store, generation })
    }

    fn check(&self, partition: PartitionId) -> Result<(), Failure> {
        let Some(found) = self.view.buckets().get(partition) else {
            return Err(self.replica.unknown(&self.view, partition, self.generation));
        };
        self.replica.check(&self.view, &self.store, found, (self.generation, AskedAs::Holder))
    }
}

/// Without partitions it asks what this node is after an exchange: the answer comes when what it holds is durable.
async fn tree_sums(replica: &Replica, incarnation: u64, request: &TreeSums) -> Result<TreeSummed, Failure> {
    // Before it looks at any record: what it acknowledged under an older generation is among them.
    let standing = AnswererState { incarnation, adopted: replica.view().adopted() };
    let shared = ComparedStore::of(replica, &request.store, request.generation)?;
    if request.sums.is_empty() {
        let synced = shared.store.engine().sync().await;
        synced.map_err(|error| Failure::new(ErrorCode::StorageFailed, error.to_string()))?;
    }
    let trees = shared.store.trees();
    // What could not be read was not given: at the end of an exchange, too.
    let unreadable = shared.store.with_unreadable();
    let mut summed =
        TreeSummed { standing, differing: Vec::new(), unready: Vec::new(), incomplete: unreadable };
    for &(partition, theirs) in &request.sums {
        if let Err(refused) = shared.check(partition) {
            // The news is worth more than the sums of the others.
            if refused.cluster.is_some() {
                return Err(refused);
            }
            summed.unready.push(partition);
            continue;
        }
        if trees.is_incomplete(partition) {
            summed.incomplete.push(partition);
        }
        let own = trees.look(partition, |tree| tree.sum().zip(tree.bits())).flatten();
        match (theirs, own) {
            (Some((theirs, _)), Some((own, _))) if theirs == own => {}
            (Some((_, theirs)), Some((_, own))) => summed.differing.push((partition, theirs.min(own))),
            _ => summed.unready.push(partition),
        }
    }
    Ok(summed)
}

fn tree_nodes(replica: &Replica, request: &TreeNodes) -> Result<TreeNoded, Failure> {
    let shared = ComparedStore::of(replica, &request.store, request.generation)?;
    let mut sums = Vec::with_capacity(request.spans.len());
    for &(partition, (span, bits)) in &request.spans {
        shared.check(partition)?;
        sums.push(shared.store.trees().look(partition, |tree| tree.sums(span, bits)).flatten());
    }
    Ok(TreeNoded { sums })
}

async fn key_digests(replica: &Replica, request: &KeyDigests) -> Result<KeyDigested, Failure> {
    let shared = ComparedStore::of(replica, &request.store, request.generation)?;
    let (mut keys, mut bytes) = (Vec::new(), 0);
    for &(partition, span) in &request.spans {
        shared.check(partition)?;
        let found = shared.store.keys(partition, span)?;
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
    let shared = ComparedStore::of(replica, &request.store, request.generation)?;
    // Before the first is read: what is read later is at least as new.
    let epoch = collected(replica);
    let (mut sets, mut bytes) = (Vec::new(), 0);
    for (position, key) in request.keys.iter().enumerate() {
        let place = shared.view.partition(&shared.store, key).0;
        shared.check(place.partition)?;
        let set = shared.store.content(place, key).map_err(|failure| failure.code);
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
    let shared = ComparedStore::of(replica, &request.store, request.generation)?;
    shared.check(request.partition)?;
    let epoch = collected(replica);
    let from = Token(request.from.0);
    let (records, next) = shared.store.page(request.partition, from, RECORDS_BYTES_MAX)?;
    Ok(RecordsPaged { epoch, records, next })
}

/// The collection epoch now. What is read after this is at least as new.
pub(super) fn collected(replica: &Replica) -> Epoch {
    replica.epochs().tag()
}
