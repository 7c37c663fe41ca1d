//! A read-only store at this node: the second kind of store. It holds artifacts, and answers from the one that is asked for.
//!
//! What brings artifacts here, keeps and removes them is [`crate::artifacts`]. Trees, collection, expiry, scrub, refill,
//! hints and the engines of this node's identity go over [`LocalStore`](super::LocalStore)s, and a view keeps the two
//! apart.
//!
//! Must never: answer from another artifact than the one asked for, or *absent* for what is not here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model::limits::MESSAGE_BYTES_MAX;
use model::{
    Actor, ArtifactNumber, Dot, Generation, ManifestDigest, Moment, NodeId, ReadOnlyStore, Store, Timestamp,
    Token, Value, Vector, Version, VersionSet,
};
use parking_lot::RwLock;
use runtime::DiskError;
use runtime::disk::waiting::is_refused;
use runtime::locks::Mutex;
use smallvec::{SmallVec, smallvec};
use storage::artifacts::{Artifact, Digest, ReadError, WalkLimit};
use wire::error::ErrorCode;
use wire::messages::{Scanned, StoreRef};

use super::Census;

/// How long gets may name an artifact that another one has taken the place of: well above the default deadline, so that
/// whoever began under the older document ends under it.
const HONOURED: Duration = Duration::from_secs(15);
/// Keys that are looked up together: the reader fetches ahead across them.
const TOGETHER: usize = 32;
/// Mean size of records above which keys are looked up one by one, so that what is read stays near the limit of a message.
const TOGETHER_RECORD_BYTES_MAX: u64 = 64 * 1024;

/// One key's answer.
pub(crate) type Answer = Result<VersionSet, ErrorCode>;

/// One read-only store, as one cluster document defines it.
pub struct ReadOnly {
    listed: ReadOnlyStore,
    definition: Arc<Store>,
    reference: StoreRef,
    held: Arc<OpenArtifacts>,
}

/// The artifacts of a store that are open here. It outlives documents.
#[derive(Default)]
pub struct OpenArtifacts {
    open: RwLock<BTreeMap<ArtifactNumber, Arc<Open>>>,
    honour: Mutex<Honour>,
    /// Chunks that are damaged, each with the file that is.
    damaged: Mutex<BTreeSet<(Digest, FileIdentity)>>,
}

/// Since when requests name what was served before.
#[derive(Default)]
struct Honour {
    /// What is served by the newest document.
    served: Option<ArtifactNumber>,
    /// When, since it is served, somebody first asked for something else.
    since: Option<Moment>,
}

/// Which file has a name: see [`runtime::FileStat`].
pub(crate) type FileIdentity = (u64, u64);

/// An artifact that is read here.
pub struct Open {
    /// Digest of its manifest.
    pub manifest: ManifestDigest,
    /// What it holds.
    pub artifact: Artifact,
    /// Which of its chunks are open, by position.
    pub chunks: Vec<bool>,
    /// The files from which they were opened; also those that are damaged and could not be.
    pub(crate) files: Vec<Option<FileIdentity>>,
    /// Mean size of a record, in bytes.
    record_bytes: u64,
    /// The document by which all that this node owns of it is here.
    whole_under: AtomicU64,
}

impl Open {
    /// Of these chunks, which are all that the node owns by the document of `whole_under`; generation 0 when they are not.
    pub(crate) fn new(
        manifest: ManifestDigest,
        artifact: Artifact,
        (chunks, files): (Vec<bool>, Vec<Option<FileIdentity>>),
        whole_under: Generation,
    ) -> Self {
        let said = artifact.manifest();
        let record_bytes = said.payload_bytes() / said.records().max(1);
        let whole_under = AtomicU64::new(whole_under.0);
        Open { manifest, artifact, chunks, files, record_bytes, whole_under }
    }

    /// Which of its chunks this is, if it is one.
    pub(crate) fn position(&self, chunk: Digest) -> Option<usize> {
        self.artifact.manifest().chunks.iter().position(|entry| entry.digest == chunk)
    }

    /// The document by which all that this node owns of it is here.
    pub fn whole_under(&self) -> Generation {
        Generation(self.whole_under.load(Ordering::Acquire))
    }

    /// It is whole by another document, too.
    pub(crate) fn set_whole_under(&self, generation: Generation) {
        self.whole_under.store(generation.0, Ordering::Release);
    }
}

impl ReadOnly {
    /// Of a document, with what is open already.
    pub(crate) fn new(listed: ReadOnlyStore, held: Arc<OpenArtifacts>) -> Self {
        let definition = Arc::new(listed.as_store());
        held.serves(listed.served().map(|served| served.number));
        ReadOnly { reference: StoreRef::from(&listed.name), listed, definition, held }
    }

    /// As the document has it.
    pub fn listed(&self) -> &ReadOnlyStore {
        &self.listed
    }

    /// How its keys are routed.
    pub fn definition(&self) -> &Arc<Store> {
        &self.definition
    }

    /// Its name, as messages carry it.
    pub fn reference(&self) -> &StoreRef {
        &self.reference
    }

    /// What is open here.
    pub fn held(&self) -> &Arc<OpenArtifacts> {
        &self.held
    }

    /// How many keys the artifact has that is served, in the chunks that are here and in all: its manifest says it. A node
    /// that holds nothing of it knows nothing.
    pub(crate) fn census(&self) -> Census {
        let Some(served) = self.listed.served() else {
            return Census { share: 1.0, keys_everywhere: Some(0), ..Census::default() };
        };
        let open = self.held.open(served.number, served.manifest);
        open.map_or_else(Census::default, |open| {
            let manifest = open.artifact.manifest();
            let here = manifest.chunks.iter().zip(&open.chunks).filter(|(_, here)| **here);
            let keys = here.map(|(chunk, _)| chunk.records).sum();
            Census { keys, share: 1.0, keys_everywhere: Some(manifest.records()), ..Census::default() }
        })
    }

    /// Whether a get that was begun under an older document may read this artifact: it is served, or was served until a
    /// moment ago.
    pub(crate) fn is_honoured(&self, number: ArtifactNumber, manifest: ManifestDigest, now: Moment) -> bool {
        let listed = self.listed.artifact(number).filter(|artifact| artifact.manifest == manifest);
        let Some(served) = self.listed.served().filter(|_| listed.is_some()) else { return false };
        if served.number == number {
            return true;
        }
        let mut honour = self.held.honour.lock();
        let since = match honour.served == Some(served.number) {
            true => *honour.since.get_or_insert(now),
            // A newer document has come meanwhile.
            false => now,
        };
        self.listed.served_before == Some(number) && now.since(since) < HONOURED
    }
}

impl OpenArtifacts {
    /// An artifact that is open here.
    pub fn open(&self, number: ArtifactNumber, manifest: ManifestDigest) -> Option<Arc<Open>> {
        self.open.read().get(&number).filter(|open| open.manifest == manifest).cloned()
    }

    /// A document serves this: where it is a swap, the time of honour begins anew.
    fn serves(&self, served: Option<ArtifactNumber>) {
        let mut honour = self.honour.lock();
        if honour.served != served {
            *honour = Honour { served, since: None };
        }
    }

    /// Puts an artifact in the place of what was open under its number.
    pub(crate) fn put(&self, number: ArtifactNumber, open: Open) {
        self.open.write().insert(number, Arc::new(open));
    }

    /// Closes artifacts of which `keep` says no. Gets under way end with them.
    pub(crate) fn retain(&self, keep: impl Fn(ArtifactNumber, ManifestDigest) -> bool) {
        self.open.write().retain(|number, open| keep(*number, open.manifest));
    }

    /// Everything that is open.
    pub fn all(&self) -> Vec<(ArtifactNumber, Arc<Open>)> {
        self.open.read().iter().map(|(number, open)| (*number, open.clone())).collect()
    }

    /// Chunks that are damaged, each with the file that is.
    pub(crate) fn damaged(&self) -> BTreeSet<(Digest, FileIdentity)> {
        self.damaged.lock().clone()
    }

    /// This file of a chunk is damaged.
    pub(crate) fn note_damage(&self, chunk: Digest, file: FileIdentity) {
        self.damaged.lock().insert((chunk, file));
    }

    /// Forgets damage of which `keep` says no: the chunk has another file now, or concerns nobody any more.
    pub(crate) fn retain_damaged(&self, keep: impl Fn(Digest, FileIdentity) -> bool) {
        self.damaged.lock().retain(|(chunk, file)| keep(*chunk, *file));
    }

    /// What an artifact holds of keys: as many as fit a message, and at least one. What would wait for the disk is
    /// refused to a caller that tries without waiting.
    pub(crate) fn read(&self, number: ArtifactNumber, open: &Open, keys: &[Bytes]) -> SmallVec<[Answer; 1]> {
        let artifact = &open.artifact;
        if let [key] = keys {
            return smallvec![self.answer((number, open), artifact.get(Token::of(key), key))];
        }
        let together = if open.record_bytes > TOGETHER_RECORD_BYTES_MAX { 1 } else { TOGETHER };
        let (mut answers, mut bytes) = (SmallVec::new(), 0);
        for keys in keys.chunks(together) {
            if is_refused() {
                break;
            }
            let places: Vec<(Token, &[u8])> = keys.iter().map(|key| (Token::of(key), &key[..])).collect();
            for found in artifact.get_many(&places) {
                bytes += found.as_ref().map_or(0, |value| value.as_ref().map_or(0, Bytes::len));
                if bytes > MESSAGE_BYTES_MAX && !answers.is_empty() {
                    return answers;
                }
                answers.push(self.answer((number, open), found));
            }
        }
        answers
    }

    /// A page of what an artifact holds of these tokens, behind a record.
    ///
    /// # Errors
    /// As a get's, of the whole page.
    pub fn page(
        &self,
        number: ArtifactNumber,
        open: &Open,
        tokens: RangeInclusive<Token>,
        after: Option<(Token, &[u8])>,
        limit: WalkLimit,
    ) -> Result<Scanned, ErrorCode> {
        let page = open
            .artifact
            .walk_behind(tokens, after, limit)
            .map_err(|error| self.refusal((number, open), &error))?;
        let last = page.records.last().filter(|_| page.next.is_some());
        let next = last.map(|(key, _)| (Token::of(key), key.clone()));
        let records = page.records.into_iter().map(|(key, value)| (key, version(number, value)));
        Ok(Scanned { records: records.collect(), next, damaged: 0 })
    }

    fn answer(&self, of: (ArtifactNumber, &Open), found: Result<Option<Bytes>, ReadError>) -> Answer {
        match found {
            Ok(value) => Ok(value.map_or_else(VersionSet::default, |value| version(of.0, value))),
            Err(error) => Err(self.refusal(of, &error)),
        }
    }

    /// What an error of a read is called. A chunk that is corrupt, or that the device does not give, is remembered, and
    /// replaced; not when only a read under way still has the artifact.
    fn refusal(&self, (number, open): (ArtifactNumber, &Open), error: &ReadError) -> ErrorCode {
        let (code, chunk) = match error {
            ReadError::NotHere { .. } => return ErrorCode::ArtifactNotHere,
            ReadError::Disk { error: DiskError::WouldWait, .. } => return ErrorCode::StorageFailed,
            ReadError::Corrupt { chunk } => (ErrorCode::Corrupt, *chunk),
            ReadError::Disk { chunk, .. } => (ErrorCode::StorageFailed, *chunk),
            _ => return ErrorCode::StorageFailed,
        };
        let is_current = self.open.read().get(&number).is_some_and(|now| std::ptr::eq(&**now, open));
        let file = open.position(chunk).and_then(|position| open.files[position]);
        if let Some(file) = file.filter(|_| is_current) {
            self.note_damage(chunk, file);
        }
        code
    }
}

/// A value as a set of one version, whose dot says which artifact it is from.
fn version(number: ArtifactNumber, value: Bytes) -> VersionSet {
    let actor = Actor { node: NodeId(0), incarnation: number.0, birth: 0 };
    let dot = Dot { actor, count: 1 };
    let version =
        Version { dot, timestamp: Timestamp::default(), expires: None, value: Value::Present(value) };
    VersionSet::from_parts(Vector::from_entries([(actor, 1)]), smallvec![version]).expect("one dot, covered")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use model::{Cluster, Node, Ring, StoreName, Zone};
    use runtime::disk::simulated::SimulatedDisk;
    use runtime::disk::waiting::without_waiting;
    use storage::artifacts::{
        BuildOptions, BuildRecord, Compression, Cutter, Duplicates, Merged, Place, Records, TokenHash, build,
    };

    use super::*;
    use crate::view::View;

    const DIGEST: ManifestDigest = ManifestDigest([1; 16]);

    fn store(numbers: &[u64]) -> ReadOnlyStore {
        let name = StoreName::new("words").unwrap();
        numbers.iter().fold(ReadOnlyStore::new(name, 1), |store, &number| {
            let number = ArtifactNumber(number);
            store.stage(number, DIGEST, "file:///words").unwrap().swap(number).unwrap()
        })
    }

    fn at(seconds: u64) -> Moment {
        Moment::default().after(Duration::from_secs(seconds))
    }

    #[test]
    fn only_the_previous_artifact_is_still_honoured_and_only_for_a_while() {
        let held: Arc<OpenArtifacts> = Arc::default();
        let store_of = |listed| ReadOnly::new(listed, held.clone());
        let (one, two, three) = (ArtifactNumber(1), ArtifactNumber(2), ArtifactNumber(3));
        let swapped = store_of(store(&[1, 2]));
        assert!(swapped.is_honoured(two, DIGEST, at(100)) && swapped.is_honoured(one, DIGEST, at(100)));
        assert!(swapped.is_honoured(one, DIGEST, at(114)));
        assert!(!swapped.is_honoured(one, DIGEST, at(115)) && swapped.is_honoured(two, DIGEST, at(200)));
        assert!(!swapped.is_honoured(two, ManifestDigest([2; 16]), at(100)), "another one of this number");
        let again = store_of(store(&[1, 2, 3]));
        assert!(again.is_honoured(two, DIGEST, at(300)), "another swap, another while");
        assert!(!again.is_honoured(one, DIGEST, at(300)), "it is not listed any more");
        assert!(again.is_honoured(three, DIGEST, at(400)));
        // Back and forth within the while, and nobody names the third in between.
        let swapped = |number| store(&[1, 2, 3]).swap(number).unwrap();
        assert!(store_of(swapped(two)).is_honoured(two, DIGEST, at(410)));
        let forth = store_of(swapped(two).swap(three).unwrap());
        assert!(forth.is_honoured(two, DIGEST, at(420)), "a swap forward begins another while");
        let staged = store(&[1]).stage(two, DIGEST, "file:///words").unwrap();
        assert!(!store_of(staged).is_honoured(two, DIGEST, at(500)), "it was never served");
    }

    /// Trees, collection, expiry, scrub, refill and hints go over the stores of a view, and engines over those of a
    /// document.
    #[test]
    fn a_loop_over_stores_never_meets_a_read_only_one() {
        let zone = Zone("z".to_owned());
        let ring = Ring::equal_slices(4, &[(NodeId(1), zone.clone())]);
        let node = Node::new(NodeId(1), zone, "h1:1".to_owned(), None);
        let cluster = Cluster::new("test", vec![node], ring, Vec::new());
        let cluster = Cluster { read_only: vec![store(&[1])], ..cluster };
        cluster.check().unwrap();
        assert!(cluster.stores.is_empty() && cluster.store("words").is_none());
        let view = View::new(Arc::new(cluster), Vec::new());
        assert!(view.stores().is_empty() && view.store("words").is_none());
        assert_eq!(view.read_only("words").unwrap().listed(), &store(&[1]));
    }

    /// An artifact of these records, and the disk that it is on; its first two of four chunks are open.
    fn built(values: &[(&str, &[u8])]) -> (SimulatedDisk, Artifact) {
        let mut records = Records::default();
        for (line, (key, value)) in values.iter().enumerate() {
            let place = Place::new(0, line as u64 + 1);
            records.push(BuildRecord { token: Token::of(key.as_bytes()), key: key.as_bytes(), value, place });
        }
        records.sort();
        let options = BuildOptions {
            store: StoreName::new("words").unwrap(),
            number: 1,
            hash: TokenHash::Xxh3,
            compression: Compression::None,
            layout: None,
            duplicates: Duplicates::Refuse,
        };
        let merged = Merged::new(Vec::new(), vec![records], 1 << 20).unwrap();
        let (disk, cutter) =
            (SimulatedDisk::new(1), Cutter::new(&[0, 1 << 62, 2 << 62, 3 << 62], (1, 1 << 20)));
        build(Arc::new(disk.clone()), merged, &options, cutter).now_or_never().unwrap().unwrap();
        let wanted = |chunk: &storage::artifacts::ChunkEntry| chunk.slice.last.0 < 1 << 63;
        let artifact = Artifact::open(&disk, "", &wanted).unwrap();
        (disk, artifact)
    }

    /// Opens it as artifact 1.
    fn opened(held: &OpenArtifacts, artifact: Artifact) -> Arc<Open> {
        let here: Vec<bool> = (0..artifact.manifest().chunks.len()).map(|chunk| chunk < 2).collect();
        let files = here.iter().map(|here| here.then_some((0, 0))).collect();
        held.put(ArtifactNumber(1), Open::new(DIGEST, artifact, (here, files), Generation(1)));
        held.open(ArtifactNumber(1), DIGEST).unwrap()
    }

    /// Keys in the part of the tokens that is here.
    fn keys_here(count: usize) -> Vec<String> {
        let is_here = |key: &String| Token::of(key.as_bytes()).0 < 1 << 63;
        (0..).map(|number| format!("word{number}")).filter(is_here).take(count).collect()
    }

    /// Forty keys in four chunks, of which the first two are here.
    #[test]
    fn a_census_counts_the_keys_held_here_and_knows_the_total() {
        let words: Vec<String> = (0..40).map(|line| format!("word{line}")).collect();
        let (_, artifact) = built(&words.iter().map(|word| (&word[..], &b"1"[..])).collect::<Vec<_>>());
        let chunks = &artifact.manifest().chunks;
        let expected = chunks[0].records + chunks[1].records;
        assert!(chunks.len() == 4 && (1..40).contains(&expected), "{expected} of 40 keys");
        let held: Arc<OpenArtifacts> = Arc::default();
        let counted = |numbers: &[u64]| {
            let census = ReadOnly::new(store(numbers), held.clone()).census();
            (census.keys, census.keys_everywhere)
        };
        assert_eq!(counted(&[]), (0, Some(0)), "nothing is served");
        assert_eq!(counted(&[1]), (0, None), "nothing of it is here");
        opened(&held, artifact);
        assert_eq!(counted(&[1]), (expected, Some(40)));
    }

    #[test]
    fn an_answer_for_many_keys_fits_a_message_and_holds_at_least_one() {
        let keys = keys_here(3);
        let [half, one, large] = [&keys[0], &keys[1], &keys[2]];
        let values = [vec![1; MESSAGE_BYTES_MAX / 2], vec![2], vec![3; MESSAGE_BYTES_MAX + 1]];
        let records: Vec<(&str, &[u8])> = keys.iter().zip(&values).map(|(k, v)| (&k[..], &v[..])).collect();
        let held = OpenArtifacts::default();
        let open = opened(&held, built(&records).1);
        let lengths = |keys: &[&String]| -> Vec<usize> {
            let keys: Vec<Bytes> = keys.iter().map(|key| Bytes::from(key.to_string())).collect();
            let answers = held.read(ArtifactNumber(1), &open, &keys);
            let length = |answer: Answer| match &answer.unwrap().versions()[0].value {
                Value::Present(value) => value.len(),
                Value::Tombstone => 0,
            };
            answers.into_iter().map(length).collect()
        };
        let (half_bytes, large_bytes) = (MESSAGE_BYTES_MAX / 2, MESSAGE_BYTES_MAX + 1);
        assert_eq!(lengths(&[half, half]), [half_bytes, half_bytes], "it is full");
        assert_eq!(lengths(&[half, half, one, one]), [half_bytes, half_bytes], "a byte is too much");
        assert_eq!(lengths(&[one, half, half]), [1, half_bytes]);
        assert_eq!(lengths(&[large, one]), [large_bytes], "one is answered, however large");
        assert_eq!(lengths(&[one, one, one]), [1, 1, 1]);
    }

    /// Whoever tries without waiting begins again where it may wait. That says nothing about the chunk.
    #[test]
    fn a_read_that_would_wait_is_not_damage_and_large_records_are_tried_one_at_a_time() {
        let keys = keys_here(3);
        let (disk, artifact) = built(&keys.iter().map(|key| (&key[..], &b"1"[..])).collect::<Vec<_>>());
        let keys: Vec<Bytes> = keys.into_iter().map(Bytes::from).collect();
        let held = OpenArtifacts::default();
        let number = ArtifactNumber(1);
        drop(opened(&held, artifact));
        let mut open = Arc::into_inner(held.open.write().remove(&number).unwrap()).unwrap();
        for (record_bytes, answers) in
            [(1, 3), (TOGETHER_RECORD_BYTES_MAX, 3), (TOGETHER_RECORD_BYTES_MAX + 1, 1)]
        {
            open.record_bytes = record_bytes;
            held.put(number, open);
            let current = held.open(number, DIGEST).unwrap();
            disk.set_cold(Some(1));
            let tried = without_waiting(|| held.read(number, &current, &keys));
            assert!(tried.refused);
            assert_eq!(
                tried.answer[..],
                vec![Err(ErrorCode::StorageFailed); answers],
                "{record_bytes} bytes"
            );
            assert!(held.damaged().is_empty(), "nothing is known against it");
            disk.set_cold(None);
            assert!(held.read(number, &current, &keys).iter().all(Result::is_ok));
            drop(current);
            open = Arc::into_inner(held.open.write().remove(&number).unwrap()).unwrap();
        }
    }
}
