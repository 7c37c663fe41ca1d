//! What `artifact push` and `stage` say while they wait: how far the nodes are, what went wrong there, and what to do about
//! a node that does not answer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::routing::slices_held;
use model::{ArtifactNumber, Cluster, NodeId, ReadOnlyStore};
use storage::artifacts::Manifest;

use super::told::ArtifactTold;
use crate::holder::shell;
use crate::output::program;
use crate::text::size;

/// Pause between two lines of progress.
const SPEAK_AGAIN: Duration = Duration::from_secs(2);
/// A headmaster should have served an artifact this long after all nodes hold it.
const SERVED_TIME_MAX: Duration = Duration::from_secs(10);

/// What is waited for.
pub(super) struct Awaited {
    pub(super) number: ArtifactNumber,
    /// As the command names it.
    pub(super) url: String,
    /// How many replicas the store has.
    pub(super) replicas: u8,
    /// Whether it is to be served, too.
    pub(super) is_pushed: bool,
    /// Bytes of files that each node owns of it. A node tells them when it is its turn to fetch.
    pub(super) owned: BTreeMap<NodeId, u64>,
}

/// Bytes of files that each node owns of an artifact, or is about to own.
pub(super) fn owned(cluster: &Cluster, store: &ReadOnlyStore, manifest: &Manifest) -> BTreeMap<NodeId, u64> {
    let routed = store.as_store();
    let of_node = |node: NodeId| -> u64 {
        let touching = manifest.touching(&slices_held(&cluster.ring, &routed, node));
        let owned = manifest.chunks.iter().zip(touching).filter(|(_, touches)| *touches);
        owned.map(|(chunk, _)| chunk.file_bytes).sum()
    };
    cluster.nodes.iter().map(|node| (node.id, of_node(node.id))).collect()
}

impl Awaited {
    /// What helps while nodes do not answer; `enough` is how many replicas of each slice must hold it.
    pub(super) fn advice(&self, told: &[ArtifactTold], enough: Option<u8>) -> Option<String> {
        let silent: Vec<String> =
            told.iter().filter(|told| told.is_silent()).map(|told| told.node.to_string()).collect();
        if silent.is_empty() {
            return None;
        }
        let left = self.replicas.saturating_sub(u8::try_from(silent.len()).unwrap_or(u8::MAX));
        if self.is_pushed && enough.is_some_and(|enough| enough <= left) {
            return None;
        }
        let (program, silent) = (program(), silent.join(", "));
        let without = match (self.is_pushed, left) {
            (false, _) | (true, 0) => String::new(),
            (true, left) => format!(
                ", and to serve it where {left} of {} replicas of each slice hold it, run `{program} artifact push {} \
                 --replicas {left}`",
                self.replicas,
                shell(std::slice::from_ref(&self.url)),
            ),
        };
        Some(format!("it waits for {silent}: to see what is wrong there, run `{program} doctor`{without}"))
    }

    /// Bytes that are on the nodes, and that will be.
    fn bytes(&self, told: &[ArtifactTold]) -> (u64, u64) {
        let total = |told: &ArtifactTold| match told.here().map_or(0, |here| here.bytes_total) {
            0 => self.owned.get(&told.node).copied().unwrap_or(0),
            total => total,
        };
        let here = told.iter().filter_map(ArtifactTold::here).map(|here| here.bytes);
        (here.sum(), told.iter().map(total).sum())
    }
}

/// Shows how far the nodes are, from time to time.
pub(super) struct Speaker {
    awaited: Awaited,
    spoken: Instant,
    /// When the nodes were asked first, and the bytes that they had.
    first: Option<(Instant, u64)>,
    /// When the nodes were seen to hold all for the first time.
    whole: Option<Instant>,
}

impl Speaker {
    pub(super) fn new(awaited: Awaited) -> Speaker {
        Speaker { awaited, spoken: Instant::now(), first: None, whole: None }
    }

    pub(super) fn awaited(&self) -> &Awaited {
        &self.awaited
    }

    pub(super) fn is_due(&self) -> bool {
        self.spoken.elapsed() >= SPEAK_AGAIN
    }

    pub(super) fn speak(&mut self, told: &[ArtifactTold], enough: Option<u8>) {
        self.spoken = Instant::now();
        let is_whole = told.iter().all(ArtifactTold::is_staged);
        self.whole = self.whole.or(Some(self.spoken)).filter(|_| is_whole);
        let number = self.awaited.number;
        if self.whole.is_some_and(|since| since.elapsed() > SERVED_TIME_MAX) {
            say!(
                "all nodes hold artifact {number}, and no headmaster serves it; if none runs, start one with `{} headmaster --coordination \
                 ADDRESS`",
                program()
            );
        }
        let (here, total) = self.awaited.bytes(told);
        let (since, before) = *self.first.get_or_insert((self.spoken, here));
        let rate = here.saturating_sub(before) as f64 / since.elapsed().as_secs_f64().max(1e-3);
        let whole = told.iter().filter(|told| told.is_staged()).count();
        // The first look tells no rate, and where nothing comes nobody knows how long it takes.
        let pace = if rate >= 1.0 {
            format!(", {}/s, {:.0} s left", size(rate as u64), total.saturating_sub(here) as f64 / rate)
        } else {
            String::new()
        };
        say!(
            "artifact {number}: {} of {}{pace}; {whole} of {} nodes hold it",
            size(here),
            size(total),
            told.len()
        );
        for told in told {
            if let Some(error) = told.error() {
                say!("{}: {error}", told.node);
            }
        }
        if let Some(advice) = self.awaited.advice(told, enough) {
            say!("{advice}");
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Node, Ring, StoreName, Zone};
    use protocol::report::ArtifactProgress;
    use protocol::report::ArtifactState::{self, Staged, Waiting};
    use storage::artifacts::{ChunkEntry, Compression, Digest, Layout, Slice, TokenHash};

    use super::super::list::tests::progress;
    use super::*;

    fn told(node: u32, state: ArtifactState, bytes: u64) -> ArtifactTold {
        let progress = ArtifactProgress { bytes, bytes_total: bytes, state, ..progress("words", 2) };
        ArtifactTold { node: NodeId(node), progress: Ok(Some(progress)) }
    }

    fn silent(node: u32) -> ArtifactTold {
        ArtifactTold { node: NodeId(node), progress: Err("h:1 refused the connection".to_owned()) }
    }

    fn awaited(is_pushed: bool) -> Awaited {
        let owned = [(NodeId(1), 100), (NodeId(2), 100), (NodeId(3), 100)].into();
        Awaited { number: ArtifactNumber(2), url: "words 2".to_owned(), replicas: 3, is_pushed, owned }
    }

    #[test]
    fn a_node_that_does_not_answer_is_named_with_the_commands_that_help() {
        let nodes = [told(1, Staged, 100), told(2, Staged, 100), silent(3)];
        let program = program();
        let doctor = format!("it waits for n3: to see what is wrong there, run `{program} doctor`");
        let push = format!(
            "{doctor}, and to serve it where 2 of 3 replicas of each slice hold it, run `{program} artifact push 'words 2' \
             --replicas 2`"
        );
        assert_eq!(awaited(true).advice(&nodes, None), Some(push.clone()));
        assert_eq!(awaited(true).advice(&nodes, Some(3)), Some(push));
        assert_eq!(awaited(true).advice(&nodes, Some(2)), None, "it is not waited for");
        assert_eq!(awaited(false).advice(&nodes, None), Some(doctor));
        assert_eq!(awaited(true).advice(&nodes[..2], None), None);
        let all = [1, 2, 3].map(silent);
        assert!(!awaited(true).advice(&all, None).unwrap().contains("--replicas"), "nobody could serve it");
    }

    #[test]
    fn what_nodes_will_hold_counts_before_it_is_their_turn() {
        let nodes = [told(1, Staged, 100), told(2, Waiting, 0), silent(3)];
        assert_eq!(awaited(true).bytes(&nodes), (100, 300));
    }

    #[test]
    fn a_node_owns_the_chunks_that_touch_its_partitions() {
        let zone = Zone("z".to_owned());
        let ids = [1, 2, 3].map(NodeId);
        let ring = Ring::equal_slices(2, &ids.map(|id| (id, zone.clone())));
        let nodes = ids.map(|id| Node::new(id, zone.clone(), format!("h{id}:1"), None));
        let cluster = Cluster::new("test", nodes.to_vec(), ring, Vec::new());
        let chunk = |first: u64, last: u64, file_bytes| ChunkEntry {
            digest: Digest([1; 16]),
            slice: Slice { first: model::Token(first), last: model::Token(last) },
            layout: Layout::Pages,
            file_bytes,
            records: 1,
            payload_bytes: 2,
        };
        let half = 1_u64 << 63;
        let manifest = Manifest {
            store: StoreName::new("words").unwrap(),
            number: 2,
            hash: TokenHash::Xxh3,
            compression: Compression::None,
            dictionary: Vec::new(),
            chunks: vec![chunk(0, half - 1, 10), chunk(half, u64::MAX, 1000)],
            lineage: None,
        };
        let store = |replicas| ReadOnlyStore::new(StoreName::new("words").unwrap(), replicas);
        let sum = |replicas| owned(&cluster, &store(replicas), &manifest).into_values().sum::<u64>();
        assert_eq!((sum(1), sum(2), sum(3)), (1010, 2020, 3030));
        let first = cluster.ring.partitions()[0].nodes[0];
        assert_eq!(owned(&cluster, &store(1), &manifest)[&first] % 1000, 10);
    }
}
