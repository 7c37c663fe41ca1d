//! What happened to this node that somebody should be able to ask about later: the last few thousand events.
//!
//! Whoever does something worth knowing (gossip, handoff, anti-entropy, collection, refill) records an [`Event`];
//! `tontine events` reads the rings of all nodes and lays them side by side by time. An event is no log line: there is
//! at most a handful a second, each says a whole fact, and its kind and fields never change their meaning.
//!
//! **Architecture Invariant:** recording never waits, never fails, and keeps no more than [`EVENTS_MAX`]; the oldest go
//! first, and a reader sees by the sequence numbers how many it has missed. No key and no value is ever in an event.

use std::collections::VecDeque;
use std::sync::Arc;

use model::{NodeId, PartitionId, WallMillis};
use runtime::Clock;
use runtime::locks::Mutex;
use serde::Serialize;
use serde_json::Value as Json;

/// Events that a node remembers; about 250 bytes each.
pub const EVENTS_MAX: usize = 4096;

/// A number of something: `1 hint`, `2 hints`. For words whose plural takes an s.
fn count(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Declares events: kind, fields and sentence together, so that none has only two of them. `where hints counts "hint"`
/// writes the field as `1 hint` or `2 hints`.
macro_rules! events {
    ($($(#[$meta:meta])* $variant:ident $kind:literal { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? }
        => $text:literal $(where $($counted:ident counts $noun:literal)and+)?,)*) => {
        /// Something that happened. Add a variant for what you do; never change the meaning of one that is there.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Event {
            $($(#[$meta])* $variant { $($(#[$field_meta])* $field: $type,)* },)*
        }

        impl Event {
            /// Its name for programs: lowercase words joined by hyphens.
            pub fn kind(&self) -> &'static str {
                match self { $(Event::$variant { .. } => $kind,)* }
            }

            /// Every kind, in the order of the documentation.
            pub const KINDS: &'static [&'static str] = &[$($kind,)*];

            /// What happened, for people.
            pub fn text(&self) -> String {
                #[allow(unused_variables, reason = "not every field is part of the sentence")]
                match self {
                    $(Event::$variant { $($field,)* } => {
                        $($(let $counted = count(*$counted, $noun);)+)?
                        format!($text)
                    })*
                }
            }

            /// Its facts, for programs.
            pub fn fields(&self) -> Json {
                match self {
                    $(Event::$variant { $($field,)* } => {
                        #[allow(unused_mut, reason = "an event may have no field")]
                        let mut fields = serde_json::Map::new();
                        $(fields.insert(stringify!($field).to_owned(), serde_json::json!($field));)*
                        Json::Object(fields)
                    })*
                }
            }
        }
    };
}

events! {
    /// The node serves.
    NodeStarted "node-started" {
        /// The incarnation under which it stamps.
        incarnation: u64,
        /// The generation of its cluster document.
        generation: u64,
    } => "started, incarnation {incarnation}, generation {generation}",
    /// The node was told to stop and has told its peers.
    NodeLeft "node-left" {} => "is stopping and has told its peers",
    /// A newer cluster document was taken in, which says more than that partitions take steps.
    GenerationAdopted "generation-adopted" {
        /// Its generation.
        generation: u64,
    } => "adopted generation {generation} of the cluster document",
    /// Partitions begin to move to this node, or away from it. More may follow before all have ended.
    MovesBegan "moves-began" {
        /// How many move to it.
        partitions_in: u64,
        /// How many move away.
        partitions_out: u64,
    } => "partitions move: {partitions_in} to this node, {partitions_out} away from it",
    /// No partition moves to this node, or away from it, any more.
    MovesEnded "moves-ended" {
        /// How many came.
        partitions_in: u64,
        /// How many went.
        partitions_out: u64,
        /// How many are where they were, because a plan was aborted.
        partitions_back: u64,
        /// How long it took from the first to the last, in seconds.
        seconds: u64,
    } => "no partition moves any more, after {seconds} s: {partitions_in} came to this node, {partitions_out} went, \
{partitions_back} went back",
    /// Lists in which this node is were reordered: it gives other answers first, and no replica moved.
    PlacesTraded "places-traded" {
        /// How many lists.
        partitions: u64,
        /// In how many of them it is the first now.
        first: u64,
        /// In how many of them it was the first.
        first_before: u64,
    } => "trades places in the lists of {partitions}: it is the first in {first} of them, and was in {first_before}"
        where partitions counts "partition",
    /// Partitions that this node holds were cut.
    PartitionsCut "partitions-cut" {
        /// How many new ones there are.
        partitions: u64,
    } => "partitions were cut: {partitions} more of them are here" where partitions counts "part",
    /// A member is called gone: a plan gives its places to others.
    MemberGone "member-gone" {
        /// Which.
        member: NodeId,
    } => "{member} is called gone: others take its places",
    /// An artifact of a read-only store is whole here: it was fetched, verified and opened.
    ArtifactStaged "artifact-staged" {
        /// Its store.
        store: String,
        /// Its number.
        number: u64,
    } => "holds artifact {number} of store {store}",
    /// An artifact of a read-only store begins to arrive.
    ArtifactFetching "artifact-fetching" {
        /// Its store.
        store: String,
        /// Its number.
        number: u64,
        /// Chunks that are missing here.
        chunks: u64,
        /// Bytes of their files.
        bytes: u64,
    } => "fetches artifact {number} of store {store}: {chunks}, {bytes}"
        where chunks counts "chunk" and bytes counts "byte",
    /// A read-only store serves another artifact.
    ArtifactServed "artifact-served" {
        /// The store.
        store: String,
        /// The artifact's number.
        number: u64,
    } => "serves artifact {number} of store {store}",
    /// A read-only store serves an older artifact again.
    ArtifactRolledBack "artifact-rolled-back" {
        /// The store.
        store: String,
        /// The artifact's number.
        number: u64,
        /// The number of the newer one.
        instead_of: u64,
    } => "serves artifact {number} of store {store} again, instead of {instead_of}",
    /// An artifact that was never served is not listed any more.
    ArtifactAborted "artifact-aborted" {
        /// Its store.
        store: String,
        /// Its number.
        number: u64,
    } => "no longer fetches or holds artifact {number} of store {store}: it was aborted",
    /// The files of an artifact that is not listed any more were removed here, but for chunks that others share.
    ArtifactRemoved "artifact-removed" {
        /// Its store.
        store: String,
        /// Its number.
        number: u64,
    } => "removed artifact {number} of store {store}",
    /// An artifact cannot be fetched, or opened; it is tried again. Told once for each reason in a row.
    ArtifactFailed "artifact-failed" {
        /// Its store.
        store: String,
        /// Its number.
        number: u64,
        /// Why.
        error: String,
    } => "cannot stage artifact {number} of store {store}, and tries again: {error}",
    /// Gets found a chunk whose checksums do not hold, or whose file is gone; it is fetched again.
    ArtifactCorrupt "artifact-corrupt" {
        /// Its store.
        store: String,
        /// The chunk's digest.
        chunk: String,
    } => "found chunk {chunk} of store {store} corrupt; fetching it again",
    /// The scrub found a file of an artifact that is not what its name says: a chunk is fetched again, a manifest is
    /// written again.
    ArtifactScrubFound "artifact-scrub-found" {
        /// Its store.
        store: String,
        /// The digest that names it.
        file: String,
        /// What is wrong with it.
        what: String,
    } => "the scrub found file {file} of an artifact of store {store} damaged, and replaces it: {what}",
    /// The scrub has read all files of artifacts that are here, or of the store that it was ordered to read.
    ArtifactsScrubbed "artifacts-scrubbed" {
        /// How many.
        files: u64,
        /// Bytes of them.
        bytes: u64,
        /// How many of them were damaged.
        damaged: u64,
    } => "verified {files} of artifacts, {bytes}, and found {damaged}"
        where files counts "file" and bytes counts "byte" and damaged counts "damaged one",
    /// A delta could not be used, so the whole chunk is fetched.
    ArtifactDeltaUnused "artifact-delta-unused" {
        /// Its store.
        store: String,
        /// The artifact's number.
        number: u64,
        /// The digest of the chunk that it makes.
        chunk: String,
        /// Why.
        error: String,
    } => "fetches all of chunk {chunk} of artifact {number} of store {store}: {error}",
    /// A peer that was believed to live is avoided from now on.
    PeerSuspected "peer-suspected" {
        /// Which.
        peer: NodeId,
        /// The evidence.
        why: String,
    } => "{peer} is suspected: {why}",
    /// A peer is believed to be gone.
    PeerDown "peer-down" {
        /// Which.
        peer: NodeId,
        /// The evidence.
        why: String,
    } => "{peer} is down: {why}",
    /// A peer said that it stops.
    PeerLeft "peer-left" {
        /// Which.
        peer: NodeId,
    } => "{peer} has left: it announced that it was stopping",
    /// A peer lives (again).
    PeerAlive "peer-alive" {
        /// Which.
        peer: NodeId,
        /// The evidence.
        why: String,
    } => "{peer} is alive: {why}",
    /// A comparison with a peer found differences.
    ComparisonEnded "repair-ended" {
        /// With whom.
        peer: NodeId,
        /// Keys that differed.
        keys: u64,
        /// Sets that were merged here.
        pulled: u64,
        /// Sets that were sent there.
        pushed: u64,
        /// Whether all that was found was exchanged.
        complete: bool,
        /// How long it took, in milliseconds.
        took_ms: u64,
    } => "compared replicas with {peer} in {took_ms} ms: {keys} differed, {pulled} received, {pushed} sent"
        where keys counts "key",
    /// Hash trees that nobody could rely on, after a crash, are counted.
    TreesCounted "trees-counted" {
        /// Of which store.
        store: String,
        /// How many trees.
        trees: u64,
        /// Records read.
        records: u64,
    } => "rebuilt {trees} of store {store} from {records}" where trees counts "hash tree" and records counts "record",
    /// The scrub found records whose checksum does not hold; their replicas are asked for them.
    CorruptFound "corrupt-found" {
        /// In which store.
        store: String,
        /// In which partition.
        partition: PartitionId,
        /// How many.
        records: u64,
    } => "the scrub found {records} in partition {partition} of store {store}; fetching good copies from other replicas"
        where records counts "corrupt record",
    /// Requests met records whose checksum does not hold; replicas answered for them, and are asked for them.
    CorruptMet "corrupt-met" {
        /// In which store.
        store: String,
        /// In which partition.
        partition: PartitionId,
        /// How many places.
        records: u64,
    } => "requests found {records} in partition {partition} of store {store}; fetching good copies from other replicas"
        where records counts "corrupt record",
    /// It held records of partitions that are not its own; the replicas have them, and it has dropped them.
    PartitionsLeft "partitions-left" {
        /// Of which store.
        store: String,
        /// How many partitions.
        partitions: u64,
        /// How many records it held.
        records: u64,
    } => "dropped {records} of {partitions} of store {store}: other nodes hold these partitions now, and have all of them"
        where records counts "record" and partitions counts "partition",
    /// Work in the background met a bug and panicked. It is begun anew after a pause.
    ChorePanicked "chore-panicked" {
        /// Which chore.
        chore: String,
        /// Where in the program.
        error: String,
        /// How long it rests before that.
        seconds: u64,
    } => "chore {chore:?} met {error}, and starts again in {seconds} s; report this bug with what the node printed on standard error",
    /// The scrub found hints whose checksum does not hold. Their target gets what they held by comparing.
    HintsCorrupt "hints-corrupt" {
        /// For whom they were.
        target: NodeId,
        /// How many.
        hints: u64,
    } => "the scrub found {hints} for {target}; replica repair will send {target} those writes"
        where hints counts "corrupt hint",
    /// The data directory held no identity, and the coordination service remembers the node.
    DiskLost "disk-lost" {} => "its disk was lost: the data directory held no identity, and the cluster knows this node",
    /// The data directory was a copy of earlier days.
    RollbackNoticed "rollback-noticed" {} => "its data directory was restored from an older copy",
    /// What the data directory held, or a part of it, was set aside; nothing of it is served.
    ContentsSetAside "contents-set-aside" {
        /// Where it lies now, below the data directory.
        directory: String,
    } => "moved outdated files to {directory} in its data directory; delete them unless an only-copy-set-aside event names a store there",
    /// Of what was set aside this is a store with one replica: it cannot be refilled.
    OnlyCopySetAside "only-copy-set-aside" {
        /// The store.
        store: String,
        /// Where it lies now, below the data directory.
        directory: String,
    } => "keys of store {store} read as not found: the store has one replica, and its records were set aside; keep {directory} in the data directory, the only copy",
    /// A store's directory was missing, incomplete, or another than it was.
    StoreLost "store-lost" {
        /// The store.
        store: String,
    } => "its records of store {store} were lost: the store's directory was missing, incomplete or replaced",
    /// An operator brought back the records of a store with one replica.
    StoreBroughtBack "store-brought-back" {
        /// The store.
        store: String,
    } => "restored the records of store {store} from bring-back in its data directory",
    /// The directory of hints was missing, incomplete, or another than it was.
    HintsLost "hints-lost" {} =>
        "its hints for other nodes were lost; replica repair will send those nodes the writes",
    /// The scrub found leaves whose sum was not that of their records, and has put them right.
    LeavesRecounted "leaves-recounted" {
        /// In which store.
        store: String,
        /// In which partition.
        partition: PartitionId,
        /// How many.
        leaves: u64,
    } => "corrected {leaves} in the hash tree of partition {partition} of store {store}, which did not match its records"
        where leaves counts "checksum",
    /// The node has lost its records and fetches them from its peers.
    RefillStarted "refill-started" {
        /// How many partitions.
        partitions: u64,
    } => "lost {partitions}; refilling from its peers" where partitions counts "partition",
    /// Partitions became whole again.
    RefillWent "refill-went" {
        /// How many are left.
        left: u64,
        /// Of how many.
        partitions: u64,
    } => "refilling: {left} of {partitions} left" where partitions counts "partition",
    /// All records are back.
    RefillEnded "refill-ended" {
        /// How many partitions.
        partitions: u64,
        /// Records that were merged.
        records: u64,
        /// Bytes that came.
        bytes: u64,
        /// How long it took, in seconds.
        seconds: u64,
    } => "refilled {partitions} in {seconds} s: {records}, {bytes}"
        where partitions counts "partition" and records counts "record" and bytes counts "byte",
    /// Hints began to be held for a node: writes that it misses are parked here.
    HintsParked "hints-parked" {
        /// For whom.
        target: NodeId,
        /// How many by now.
        hints: u64,
    } => "holds {hints} for {target}" where hints counts "hint",
    /// All hints for a node have reached it.
    HintsDrained "hints-drained" {
        /// Whom.
        target: NodeId,
        /// How many it took.
        hints: u64,
        /// How long they were held, in seconds.
        seconds: u64,
    } => "delivered {hints} to {target}, {seconds} s after the first was written" where hints counts "hint",
    /// Hints grew too old and were given up. Another replica holds what they held; anti-entropy does the rest.
    HintsExpired "hints-expired" {
        /// For whom they were.
        target: NodeId,
        /// How many.
        hints: u64,
    } => "dropped {hints} for {target}; other replicas hold the writes"
        where hints counts "expired hint",
    /// A collection round cannot go on.
    CollectionWaits "collection-waits" {
        /// Without whom.
        peer: NodeId,
    } => "cannot remove tombstones: {peer} has not confirmed the deletions",
    /// Values that have expired were reaped: their bytes are gone, their tombstones wait for a collection round.
    ExpiredReaped "expired-reaped" {
        /// In which store.
        store: String,
        /// How many since the last such event.
        values: u64,
        /// Bytes of these values.
        bytes: u64,
    } => "removed {values} of store {store}, {bytes}" where values counts "expired value" and bytes counts "byte",
    /// Hints were refused at the byte limit. The writes themselves went to the replicas that are up.
    HintsRefused "hints-refused" {
        /// How many since the last such event.
        hints: u64,
        /// The limit in bytes.
        bytes_max: u64,
    } => "refused {hints}: hints already fill the limit of {bytes_max} bytes" where hints counts "hint",
}

impl Event {
    /// Whether somebody who looks after the cluster should know of it before they look for it.
    pub fn is_warning(&self) -> bool {
        matches!(
            self,
            Event::PeerSuspected { .. }
                | Event::PeerDown { .. }
                | Event::ChorePanicked { .. }
                | Event::CorruptFound { .. }
                | Event::CorruptMet { .. }
                | Event::ArtifactFailed { .. }
                | Event::ArtifactCorrupt { .. }
                | Event::ArtifactScrubFound { .. }
                | Event::ArtifactDeltaUnused { .. }
                | Event::HintsCorrupt { .. }
                | Event::DiskLost {}
                | Event::RollbackNoticed {}
                | Event::ContentsSetAside { .. }
                | Event::OnlyCopySetAside { .. }
                | Event::StoreLost { .. }
                | Event::HintsLost {}
                | Event::LeavesRecounted { .. }
                | Event::RefillStarted { .. }
                | Event::HintsExpired { .. }
                | Event::HintsRefused { .. }
        )
    }
}

/// An event with its place in this node's story.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Counts this node's events since it started, from 1.
    pub sequence: u64,
    /// When, by this node's wall clock.
    pub at: WallMillis,
    /// What.
    pub event: Event,
}

/// A page of a node's events, as it goes over the wire.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    /// Who tells.
    pub node: NodeId,
    /// Tells one start of the node from another: sequence numbers begin anew with each.
    pub run: u64,
    /// In order of their sequence numbers.
    pub events: Vec<PageEntry>,
    /// Where to go on reading: the last sequence number that was looked at.
    pub next: u64,
}

/// One event of a page.
#[derive(Clone, Debug, Serialize)]
pub struct PageEntry {
    /// Counts the node's events since it started, from 1. A gap says how many were forgotten.
    pub sequence: u64,
    /// Milliseconds since 1970 by the node's clock.
    pub at_ms: WallMillis,
    /// The event's name.
    pub kind: &'static str,
    /// The event in words.
    pub text: String,
    /// The event's facts.
    pub fields: Json,
}

/// A node's last events. One for each node, handed to whoever records or reads.
pub struct Events {
    node: NodeId,
    run: u64,
    clock: Arc<dyn Clock>,
    ring: Mutex<Ring>,
    /// Carries the sequence number of the newest event, for readers that wait.
    newest: tokio::sync::watch::Sender<u64>,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Recorded>,
    recorded: u64,
}

impl Events {
    /// None yet. `run` is a number that no other start of this node has.
    pub fn new(node: NodeId, run: u64, clock: Arc<dyn Clock>) -> Arc<Events> {
        let (newest, _) = tokio::sync::watch::channel(0);
        Arc::new(Events { node, run, clock, ring: Mutex::default(), newest })
    }

    /// Keeps an event, and writes it to the log as well.
    pub fn record(&self, event: Event) {
        self.log(&event);
        let sequence = {
            let mut ring = self.ring.lock();
            ring.recorded += 1;
            let sequence = ring.recorded;
            if ring.events.len() == EVENTS_MAX {
                ring.events.pop_front();
            }
            ring.events.push_back(Recorded { sequence, at: self.clock.wall(), event });
            sequence
        };
        // Outside the lock two recorders may get here in either order.
        self.newest.send_if_modified(|newest| {
            let newer = sequence > *newest;
            *newest = sequence.max(*newest);
            newer
        });
    }

    /// Writes an event to the log, as severe as it is.
    fn log(&self, event: &Event) {
        let (node, kind, detail) = (self.node, event.kind(), event.text());
        let fields = event.fields();
        let peer = [&fields["peer"], &fields["target"]]
            .into_iter()
            .find_map(Json::as_u64)
            .map(|id| format!("n{id}"));
        let peer = peer.map(tracing::field::display);
        let (store, partition) = (fields["store"].as_str(), fields["partition"].as_u64());
        match event.is_warning() {
            true => tracing::warn!(%node, kind, peer, store, partition, detail, "event"),
            false => tracing::info!(%node, kind, peer, store, partition, detail, "event"),
        }
    }

    /// How many were recorded since the node started.
    pub fn recorded(&self) -> u64 {
        self.ring.lock().recorded
    }

    /// The oldest remembered events after number `after`, at most `count`.
    pub fn after(&self, after: u64, count: usize) -> Vec<Recorded> {
        let ring = self.ring.lock();
        let from = ring.events.partition_point(|recorded| recorded.sequence <= after);
        ring.events.iter().skip(from).take(count).cloned().collect()
    }

    /// The same as a page. `run` is that of the page before, or 0; a reader that knows another run starts anew.
    pub fn page(&self, run: u64, after: u64, count: usize) -> Page {
        let after = if run == self.run { after } else { 0 };
        let events = self.after(after, count);
        let next = events.last().map_or(after, |last| last.sequence);
        let entry = |recorded: Recorded| PageEntry {
            sequence: recorded.sequence,
            at_ms: recorded.at,
            kind: recorded.event.kind(),
            text: recorded.event.text(),
            fields: recorded.event.fields(),
        };
        Page { node: self.node, run: self.run, events: events.into_iter().map(entry).collect(), next }
    }

    /// Completes when there is an event after number `after` of run `run`; at once for a reader of another run.
    pub async fn wait(&self, run: u64, after: u64) {
        let after = if run == self.run { after } else { 0 };
        let mut newest = self.newest.subscribe();
        // The sender lives as long as `self`.
        let _ = newest.wait_for(|&newest| newest > after).await;
    }
}

#[cfg(test)]
mod tests;
