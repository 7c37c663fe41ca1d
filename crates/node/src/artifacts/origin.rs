//! Where a fetch reads: the source of an artifact, or replicas that have what is wanted.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use model::routing::holds;
use model::{ListedArtifact, NodeId, StoreName};
use protocol::artifacts::Origin;
use runtime::Disk;
use runtime::locks::Mutex;
use storage::artifacts::{BLOCK_BYTES, FetchError, FileEntry, MANIFEST_PATH, SourceChunk};
use wire::messages::{ArtifactFile, ArtifactRead, Response, StoreRef};

use super::bring::{Wanted, check_manifest, read_whole};
use super::fetching::Need;
use super::{Artifacts, KnownOrigins, NotYet, Trouble, failed};
use crate::stores::ReadOnly;
use crate::view::View;

/// Longest wait for a part of a file from another node, which gives at its own pace.
const PATIENCE: Duration = Duration::from_secs(10);
/// Replicas that are asked for a chunk before it is given up.
const REPLICAS_ASKED_MAX: usize = 3;

/// One artifact whose chunks are fetched under one document.
pub(super) struct Errand<'a> {
    pub(super) need: &'a Need,
    pub(super) view: &'a View,
    pub(super) store: &'a ReadOnly,
    pub(super) listed: &'a ListedArtifact,
    /// What is known of the givers, also from attempts before.
    pub(super) origins: KnownOrigins,
    /// The files of the source, once it was opened.
    source: Mutex<Option<Arc<dyn Disk>>>,
    /// Whether the source did not give a delta. Then no other one is asked for, so that one that stalls does so once.
    pub(super) without_deltas: AtomicBool,
}

impl<'a> Errand<'a> {
    pub(super) fn new(need: &'a Need, origins: KnownOrigins) -> Errand<'a> {
        let (source, without_deltas) = (Mutex::default(), AtomicBool::new(false));
        let Need { view, store, listed } = need;
        Errand { need, view, store, listed, origins, source, without_deltas }
    }

    pub(super) fn name(&self) -> &StoreName {
        &self.store.listed().name
    }
}

/// Who gives a chunk.
#[derive(Clone)]
pub(super) enum Giver {
    /// The source, where its file is open.
    Source(Arc<SourceChunk>),
    /// A replica.
    Replica(NodeId),
}

impl Giver {
    /// Which of the two it is.
    pub(super) fn origin(&self) -> Origin {
        match self {
            Giver::Source(_) => Origin::Source,
            Giver::Replica(_) => Origin::Replicas,
        }
    }
}

fn of_source(url: &str, error: &FetchError) -> NotYet {
    let trouble = match error {
        FetchError::Differs { .. } => Trouble::Corrupt,
        _ => Trouble::Source,
    };
    NotYet::Failed(format!("{url}: {error}"), trouble)
}

impl Artifacts {
    /// The files of an artifact's source.
    pub(super) async fn source(&self, listed: &ListedArtifact) -> Result<Arc<dyn Disk>, NotYet> {
        let sources = self.sources.clone();
        let sources = sources.ok_or_else(|| failed("this node reads from no sources"))?;
        let url = listed.source.clone();
        self.wait(move || sources.open(&url)).await?.map_err(failed)
    }

    /// Why the manifest of an artifact that is to be listed cannot be read at its source, or is another one.
    pub(crate) async fn unreadable(&self, name: &StoreName, listed: &ListedArtifact) -> Option<String> {
        let read = async {
            let source = self.source(listed).await?;
            let bytes = self.wait(move || read_whole(&*source, MANIFEST_PATH)).await?.map_err(failed)?;
            check_manifest(name, listed, &bytes).map_err(failed)
        };
        match read.await {
            Err(NotYet::Failed(error, _)) => Some(error),
            _ => None,
        }
    }

    /// Who may give a chunk, of one kind.
    pub(super) async fn givers(
        &self,
        errand: &Errand<'_>,
        wanted: Wanted,
        origin: Origin,
    ) -> Result<Vec<Giver>, NotYet> {
        if origin == Origin::Replicas {
            let replicas = self.replicas_of(errand, wanted);
            return Ok(replicas.into_iter().map(Giver::Replica).collect());
        }
        let known = errand.source.lock().clone();
        let source = match known {
            Some(source) => source,
            None => self.source(errand.listed).await?,
        };
        *errand.source.lock() = Some(source.clone());
        let (file, url) = (wanted.file, &errand.listed.source);
        let opened = self.wait(move || SourceChunk::open(&*source, file)).await?;
        let opened = opened.map_err(|error| of_source(url, &error))?;
        Ok(vec![Giver::Source(Arc::new(opened))])
    }

    /// The other nodes that own a part of a chunk's slice, a few, beginning with another one for each chunk.
    fn replicas_of(&self, errand: &Errand<'_>, wanted: Wanted) -> Vec<NodeId> {
        let (view, definition) = (errand.view, errand.store.definition());
        let (first, last) = (wanted.slice.first.0, wanted.slice.last.0);
        let partitions = view.cluster().ring.partitions();
        let begin = partitions.partition_point(|partition| partition.start <= first).saturating_sub(1);
        let touched: Vec<_> =
            partitions[begin..].iter().take_while(|partition| partition.start <= last).collect();
        let owns = |node: NodeId| touched.iter().any(|partition| holds(definition, partition, node));
        self.others(view, owns, usize::from(wanted.file.digest.0[0]))
    }

    /// Some of the other nodes, those in doubt left out.
    fn others(&self, view: &View, wanted: impl Fn(NodeId) -> bool, turn: usize) -> Vec<NodeId> {
        let ids = view.cluster().nodes.iter().map(|node| node.id);
        let mut others: Vec<NodeId> = ids
            .filter(|node| *node != self.node && !self.peers.is_suspected(*node) && wanted(*node))
            .collect();
        if !others.is_empty() {
            let turn = turn % others.len();
            others.rotate_left(turn);
        }
        others.truncate(REPLICAS_ASKED_MAX);
        others
    }

    /// Bytes of a chunk, which nothing has verified.
    pub(super) async fn read_chunk(
        &self,
        errand: &Errand<'_>,
        giver: &Giver,
        entry: FileEntry,
        range: Range<u64>,
    ) -> Result<Vec<u8>, NotYet> {
        let wanted = range.end - range.start;
        match giver {
            Giver::Source(chunk) => {
                let (chunk, url) = (chunk.clone(), &errand.listed.source);
                let read = self.wait(move || chunk.read(range)).await?;
                let bytes = read.map_err(|error| of_source(url, &error))?;
                self.counters.from_source.add(wanted);
                Ok(bytes)
            }
            Giver::Replica(node) => {
                let file = (ArtifactFile::Chunk, entry.digest.0);
                let (length, bytes) = self.ask_for(*node, errand.name(), file, range).await?;
                if length != entry.bytes {
                    return Err(failed(format!("{node} has a chunk {} of {length} bytes", entry.digest)));
                }
                Ok(bytes)
            }
        }
    }

    /// The bytes of a manifest from whichever node has it.
    pub(super) async fn manifest_of_others(
        &self,
        view: &View,
        store: &ReadOnly,
        listed: &ListedArtifact,
        bytes_max: u64,
    ) -> Option<Vec<u8>> {
        let file = (ArtifactFile::Manifest, listed.manifest.0);
        for node in self.others(view, |_| true, listed.number.0 as usize) {
            let name = &store.listed().name;
            let Ok((length, mut bytes)) = self.ask_for(node, name, file, 0..0).await else { continue };
            if length > bytes_max {
                continue;
            }
            while (bytes.len() as u64) < length {
                let at = bytes.len() as u64;
                let end = length.min(at + BLOCK_BYTES as u64);
                self.await_turn(end - at).await;
                let Ok((_, part)) = self.ask_for(node, name, file, at..end).await else { break };
                bytes.extend_from_slice(&part);
            }
            if bytes.len() as u64 == length {
                return Some(bytes);
            }
        }
        None
    }

    /// All these bytes of a file at another node, and how long the file is.
    async fn ask_for(
        &self,
        node: NodeId,
        store: &StoreName,
        (file, digest): (ArtifactFile, [u8; 16]),
        range: Range<u64>,
    ) -> Result<(u64, Vec<u8>), NotYet> {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        loop {
            let offset = range.start + bytes.len() as u64;
            let bytes_max = u32::try_from(range.end - offset).unwrap_or(u32::MAX);
            let read = ArtifactRead { store: StoreRef::from(store), file, digest, offset, bytes_max };
            let call = self.peers.call(node, read.into());
            let answer = call.within(&self.ports.clock, PATIENCE).await;
            let answer = answer.map_err(|error| failed(format!("{node}: {error}")))?;
            let Response::ArtifactBytes(part) = answer else {
                return Err(failed(format!("{node} gives something else: {}", answer.name())));
            };
            self.counters.from_replicas.add(part.bytes.len() as u64);
            let ends = part.bytes.is_empty();
            bytes.extend_from_slice(&part.bytes);
            let left = range.end - range.start;
            match (bytes.len() as u64).cmp(&left) {
                std::cmp::Ordering::Equal => return Ok((part.file_bytes, bytes)),
                std::cmp::Ordering::Less if !ends => {}
                _ => return Err(failed(format!("{node} gives another part of a file than was asked for"))),
            }
        }
    }
}
