//! What a node tells of its artifacts.

use model::artifacts::Standing;
use model::{ArtifactNumber, Generation};
use protocol::report::{ArtifactProgress, ArtifactState as State, ArtifactTrouble as Trouble};
use protocol::report::{ArtifactsReport, Fetching};
use storage::artifacts::{ChunkEntry, Manifest};

use super::Artifacts;

/// How far, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchProgress {
    /// What is done with it.
    pub state: State,
    /// The generation of the document by which it is whole here; 0 before.
    pub whole_under: Generation,
    /// Bytes of files that are here, of those that this node owns.
    pub bytes: u64,
    /// Bytes of files that this node owns.
    pub bytes_total: u64,
    /// Bytes that were fetched since the node started. What was here before, and is gone on after, does not count.
    pub bytes_fetched: u64,
    /// Bytes of these that came as deltas.
    pub bytes_fetched_as_deltas: u64,
    /// Chunks that are here.
    pub chunks: u64,
    /// Chunks that this node owns.
    pub chunks_total: u64,
    /// What went wrong.
    pub error: Option<String>,
    /// What kind of trouble that is.
    pub trouble: Option<Trouble>,
    /// The last reason of a failure that was told in an event.
    pub(super) told: Option<String>,
    /// Whether it was whole before something of it was found missing.
    pub(super) was_whole: bool,
}

impl FetchProgress {
    /// Of what is open.
    pub(super) fn of(manifest: &Manifest, chunks: &[bool], whole_under: Generation) -> FetchProgress {
        let open = manifest.chunks.iter().zip(chunks).filter(|(_, open)| **open);
        let (bytes, count) =
            open.fold((0, 0), |(bytes, count), (chunk, _)| (bytes + chunk.file_bytes, count + 1));
        let state = if whole_under == Generation::default() { State::Waiting } else { State::Staged };
        FetchProgress {
            state,
            whole_under,
            bytes,
            bytes_total: bytes,
            chunks: count,
            chunks_total: count,
            ..FetchProgress::default()
        }
    }

    /// Something of it is missing, or damaged: it is its turn soon.
    pub(super) fn lacks(&mut self, owned: &[(&ChunkEntry, bool)]) {
        if self.state == State::Staged {
            (self.state, self.was_whole) = (State::Waiting, true);
            self.count(owned);
        }
    }

    /// Of what is about to be fetched; whether nobody has tried before. What failed last counts as failed until something
    /// has come.
    pub(super) fn begin(&mut self, owned: &[(&ChunkEntry, bool)]) -> bool {
        let first = self.state == State::Waiting && self.error.is_none() && !self.was_whole;
        if self.error.is_none() {
            self.state = State::Fetching;
        }
        self.count(owned);
        first
    }

    /// Something has come: what failed before is over.
    pub(super) fn comes(&mut self) {
        self.state = State::Fetching;
        (self.error, self.trouble) = (None, None);
    }

    /// Counts what is here; it is not whole.
    fn count(&mut self, owned: &[(&ChunkEntry, bool)]) {
        let here = || owned.iter().filter(|(_, here)| *here);
        let bytes = |chunks: &mut dyn Iterator<Item = &(&ChunkEntry, bool)>| {
            chunks.map(|(chunk, _)| chunk.file_bytes).sum::<u64>()
        };
        self.whole_under = Generation::default();
        (self.bytes, self.chunks) = (bytes(&mut here()), here().count() as u64);
        (self.bytes_total, self.chunks_total) = (bytes(&mut owned.iter()), owned.len() as u64);
    }

    /// Something went wrong; whether that was known.
    pub(super) fn fail(&mut self, error: &str, trouble: Trouble) -> bool {
        let known = self.told.as_deref() == Some(error);
        self.state = State::Failed;
        self.whole_under = Generation::default();
        (self.error, self.trouble) = (Some(error.to_owned()), Some(trouble));
        self.told = Some(error.to_owned());
        known
    }
}

impl Artifacts {
    /// How far this node is with artifacts.
    pub fn report(&self) -> ArtifactsReport {
        let (pace, ceiling) = self.budgets.fetching();
        ArtifactsReport {
            listed: self.listed(),
            fetching: Fetching {
                rate_bytes_per_second: self.budgets.rate(),
                pace_bytes_per_second: pace,
                ceiling_bytes_per_second: ceiling,
                bytes_from_source: self.counters.from_source.get(),
                bytes_from_replicas: self.counters.from_replicas.get(),
                bytes_given: self.counters.given.get(),
                held_ms: u64::try_from(self.budgets.held().as_millis()).unwrap_or(u64::MAX),
                chunks_corrupt: self.counters.corrupt_here.get(),
                chunks_corrupt_now: self.corrupt_now() as u64,
            },
            scrub: self.scrub_report(),
        }
    }

    /// What this node has of each artifact that its document lists.
    fn listed(&self) -> Vec<ArtifactProgress> {
        let view = self.view.get();
        let progress = self.progress.lock();
        let mut artifacts = Vec::new();
        for held in view.read_only_stores() {
            let store = held.listed();
            for listed in &store.artifacts {
                let known = progress.get(&(store.name.clone(), listed.number)).cloned().unwrap_or_default();
                let open = held.held().open(listed.number, listed.manifest);
                let lineage = open.as_ref().and_then(|open| open.artifact.manifest().lineage.as_ref());
                let is_served = listed.standing == Standing::Served;
                artifacts.push(ArtifactProgress {
                    store: store.name.clone(),
                    number: listed.number,
                    manifest: listed.manifest,
                    parent: lineage.map(|lineage| ArtifactNumber(lineage.number)),
                    serving_ms: is_served.then(|| self.serving_ms(&store.name, listed.number)).flatten(),
                    state: known.state,
                    whole_under: known.whole_under,
                    bytes: known.bytes,
                    bytes_total: known.bytes_total,
                    bytes_fetched: known.bytes_fetched,
                    bytes_fetched_as_deltas: known.bytes_fetched_as_deltas,
                    chunks: known.chunks,
                    chunks_total: known.chunks_total,
                    error: known.error,
                    trouble: known.trouble,
                });
            }
        }
        artifacts
    }

    /// Chunks that gets and the scrub have found corrupt, and that have not come again yet.
    fn corrupt_now(&self) -> usize {
        self.view.get().read_only_stores().iter().map(|store| store.held().damaged().len()).sum()
    }
}
