//! Artifacts: what was built is found, and nothing else, whatever happens to the files.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use model::{StoreName, Token};
use runtime::disk::simulated::{DiskOperation, Fault, SimulatedDisk};
use runtime::disk::waiting::without_waiting;
use runtime::{Disk, DiskError};
use storage::artifacts::{
    Artifact, BuildError, BuildOptions, BuildRecord, Compression, Cutter, Duplicates, Layout, Manifest,
    ManifestError, Merged, OpenError, Place, ReadError, Records, TokenHash, WalkLimit, build, chunk_path,
    prove,
};

pub(crate) type Table = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Bytes of which about half repeat.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|at| if at % 2 == 0 { b'x' } else { self.next() as u8 }).collect()
    }
}

pub(crate) fn options(hash: TokenHash, layout: Option<Layout>, compression: Compression) -> BuildOptions {
    let store = StoreName::new("words").unwrap();
    BuildOptions { store, number: 7, hash, compression, layout, duplicates: Duplicates::Refuse }
}

/// Builds records, given in some order and number of runs, cut at these partitions.
pub(crate) fn build_in(
    disk: &SimulatedDisk,
    records: &[(Vec<u8>, Vec<u8>)],
    runs: usize,
    starts: &[u64],
    options: &BuildOptions,
) -> Result<Manifest, BuildError> {
    build_cut(disk, records, runs, Cutter::new(starts, (3000, 20_000)), options)
}

pub(crate) fn build_cut(
    disk: &SimulatedDisk,
    records: &[(Vec<u8>, Vec<u8>)],
    runs: usize,
    cutter: Cutter,
    options: &BuildOptions,
) -> Result<Manifest, BuildError> {
    let mut parts: Vec<Records> = (0..runs.max(1)).map(|_| Records::default()).collect();
    for (line, (key, value)) in records.iter().enumerate() {
        let (token, place) = (options.hash.token(key), Place::new(0, line as u64 + 1));
        let count = parts.len();
        parts[line % count].push(BuildRecord { token, key, value, place });
    }
    parts.iter_mut().for_each(Records::sort);
    let memory = vec![parts.pop().unwrap()];
    let written: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(number, part)| part.write_run(disk, &format!("runs/{number}")).unwrap())
        .collect();
    let merged = Merged::new(written, memory, 1 << 20).unwrap();
    now(build(Arc::new(disk.clone()), merged, options, cutter))
}

pub(crate) fn list(table: &Table) -> Vec<(Vec<u8>, Vec<u8>)> {
    table.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn open(disk: &SimulatedDisk) -> Result<Artifact, OpenError> {
    Artifact::open(disk, "", &|_| true)
}

/// Random keys and values; the other keys are not among them.
pub(crate) fn random(seed: u64, count: usize, value_bytes_max: usize) -> (Table, Vec<Vec<u8>>) {
    let mut dice = Dice(seed);
    let key = |dice: &mut Dice| {
        let bytes = 1 + dice.below(30);
        dice.bytes(bytes)
    };
    let mut table = Table::new();
    while table.len() < count {
        let bytes = dice.below(value_bytes_max + 1);
        table.insert(key(&mut dice), dice.bytes(bytes));
    }
    let absent = (0..count + 50).map(|_| key(&mut dice)).filter(|key| !table.contains_key(key)).collect();
    (table, absent)
}

fn walked(artifact: &Artifact) -> Vec<(Bytes, Bytes)> {
    let mut found = Vec::new();
    let mut from = Some(artifact.walk_from(Token(0)));
    while let Some(cursor) = from {
        let limit = WalkLimit { records_max: 7, bytes_max: 2000 };
        let page = artifact.walk(cursor, Token(u64::MAX), limit).unwrap();
        assert!(page.records.len() <= 7);
        found.extend(page.records);
        from = page.next;
    }
    found
}

/// Each key has its value, every other is absent, one by one and together; and a walk has all in order.
pub(crate) fn check(disk: &SimulatedDisk, table: &Table, absent: &[Vec<u8>]) {
    let artifact = open(disk).unwrap();
    let hash = artifact.manifest().hash;
    let keys: Vec<&[u8]> = table.keys().chain(absent).map(Vec::as_slice).collect();
    let asked: Vec<(Token, &[u8])> = keys.iter().map(|key| (hash.token(key), *key)).collect();
    let together = artifact.get_many(&asked);
    for ((token, key), together) in asked.iter().zip(together) {
        let expected = table.get(*key).map(|value| Bytes::copy_from_slice(value));
        assert_eq!(artifact.get(*token, key), Ok(expected.clone()), "{}", key.escape_ascii());
        assert_eq!(together, Ok(expected));
    }
    let mut ordered: Vec<(Token, Bytes, Bytes)> = table
        .iter()
        .map(|(key, value)| (hash.token(key), Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)))
        .collect();
    ordered.sort();
    let walked = walked(&artifact);
    assert!(
        ordered.iter().map(|(_, key, value)| (key, value)).eq(walked.iter().map(|(key, value)| (key, value)))
    );
    check_behind(&artifact, &ordered, &asked);
    let manifest = artifact.manifest();
    assert_eq!(manifest.records(), table.len() as u64);
    manifest.chunks.iter().for_each(|chunk| prove(disk, "", manifest, chunk).unwrap());
}

/// A walk goes on behind keys that are there and keys that are not, within any tokens.
fn check_behind(artifact: &Artifact, ordered: &[(Token, Bytes, Bytes)], keys: &[(Token, &[u8])]) {
    let page = |tokens: RangeInclusive<Token>, after: Option<(Token, &[u8])>, records_max| {
        let limit = WalkLimit { records_max, bytes_max: usize::MAX };
        let page = artifact.walk_behind(tokens.clone(), after, limit).unwrap();
        let behind = ordered.iter().filter(|(token, key, _)| {
            tokens.contains(token) && after.is_none_or(|after| (*token, &key[..]) > after)
        });
        let expected: Vec<_> = behind.take(records_max).map(|(_, key, value)| (key, value)).collect();
        let found: Vec<_> = page.records.iter().map(|(key, value)| (key, value)).collect();
        assert_eq!(found, expected, "{tokens:?} behind {after:?}");
    };
    let all = Token(0)..=Token(u64::MAX);
    page(all.clone(), None, 5);
    for (number, (token, key)) in keys.iter().enumerate().step_by(keys.len() / 25 + 1) {
        page(all.clone(), Some((*token, key)), 1 + number % 4);
        page(*token..=Token(u64::MAX), None, 3);
        page(Token(0)..=*token, Some((Token(token.0 / 2), key)), 3);
        page(Token(token.0 / 2)..=*token, Some((Token(0), key)), usize::MAX);
        page(all.clone(), Some((Token(token.0.saturating_sub(1)), &[u8::MAX; 40])), 2);
    }
}

pub(crate) const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];
/// Whole tokens, tokens of which many tie with their neighbours, and tokens that are all the same.
pub(crate) const HASHES: [TokenHash; 5] = [
    TokenHash::Xxh3,
    TokenHash::Cut { bits: 11 },
    TokenHash::Cut { bits: 7 },
    TokenHash::Cut { bits: 3 },
    TokenHash::Cut { bits: 0 },
];
pub(crate) const QUARTERS: [u64; 4] = [0, 1 << 62, 2 << 62, 3 << 62];

#[test]
fn each_key_is_found_with_its_value_and_every_other_is_absent() {
    let mut seed = 0;
    for layout in [Layout::Pages, Layout::Slots] {
        for compression in COMPRESSIONS {
            for hash in HASHES {
                for (count, value_bytes_max) in [(1, 10), (40, 0), (700, 60), (300, 900)] {
                    seed += 1;
                    let (table, absent) = random(seed, count, value_bytes_max);
                    let disk = SimulatedDisk::new(0);
                    let options = options(hash, Some(layout), compression);
                    let manifest = build_in(&disk, &list(&table), 3, &QUARTERS, &options).unwrap();
                    assert!(manifest.chunks.iter().all(|chunk| chunk.layout == layout));
                    check(&disk, &table, &absent);
                }
            }
        }
    }
}

/// The prototype lost 87 of two million keys where the fences of two pages tied. Twelve bits of the token make that
/// common: each fence of a chunk then covers many records.
#[test]
fn keys_whose_fences_tie_at_a_page_boundary_are_found() {
    for bits in 4..14 {
        let (table, absent) = random(u64::from(bits), 3000, 20);
        let disk = SimulatedDisk::new(0);
        let options = options(TokenHash::Cut { bits }, Some(Layout::Pages), Compression::None);
        build_in(&disk, &list(&table), 1, &[0], &options).unwrap();
        check(&disk, &table, &absent);
    }
}

#[test]
fn the_same_records_make_the_same_bytes_in_any_order_and_number_of_runs() {
    let (table, _) = random(5, 2000, 100);
    for compression in COMPRESSIONS {
        let options = options(TokenHash::Xxh3, None, compression);
        let digests = |records: &[(Vec<u8>, Vec<u8>)], runs: usize| {
            build_in(&SimulatedDisk::new(0), records, runs, &QUARTERS, &options).unwrap().digest()
        };
        let first = digests(&list(&table), 1);
        let mut shuffled = list(&table);
        let mut dice = Dice(9);
        shuffled.sort_by_cached_key(|_| dice.next());
        for runs in [1, 2, 7] {
            assert_eq!(digests(&shuffled, runs), first);
        }
    }
}

#[test]
fn a_record_that_fits_no_page_puts_its_chunk_into_slots() {
    let (mut table, absent) = random(6, 400, 60);
    table.insert(b"long".to_vec(), vec![7; 10_000]);
    table.insert(b"longer".to_vec(), Dice(1).bytes(100_000));
    let disk = SimulatedDisk::new(0);
    let options = options(TokenHash::Xxh3, None, Compression::None);
    let manifest = build_in(&disk, &list(&table), 1, &QUARTERS, &options).unwrap();
    let layouts: Vec<Layout> = manifest.chunks.iter().map(|chunk| chunk.layout).collect();
    assert!(layouts.contains(&Layout::Pages) && layouts.contains(&Layout::Slots), "{layouts:?}");
    check(&disk, &table, &absent);
    let forced = BuildOptions { layout: Some(Layout::Slots), ..options };
    let all_slots = SimulatedDisk::new(0);
    let again = build_in(&all_slots, &list(&table), 1, &QUARTERS, &forced).unwrap();
    let of = |manifest: &Manifest| {
        let slots =
            manifest.chunks.iter().filter(|chunk| layouts[position(manifest, chunk)] == Layout::Slots);
        slots.map(|chunk| chunk.digest).collect::<Vec<_>>()
    };
    assert_eq!(of(&manifest), of(&again), "as if it had been slots from its beginning");
}

fn position(manifest: &Manifest, chunk: &storage::artifacts::ChunkEntry) -> usize {
    manifest.chunks.iter().position(|other| other == chunk).unwrap()
}

#[test]
fn equal_keys_are_refused_with_both_places_or_the_last_one_counts() {
    let record = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
    let records = [record("a", "1"), record("b", "2"), record("a", "3"), record("c", "4"), record("a", "5")];
    let refuse = options(TokenHash::Xxh3, None, Compression::None);
    for runs in [1, 2, 3] {
        let disk = SimulatedDisk::new(0);
        let error = build_in(&disk, &records, runs, &[0], &refuse).unwrap_err();
        let (first, second) = (Place::new(0, 1), Place::new(0, 3));
        assert_eq!(error, BuildError::Duplicate { key: "a".to_owned(), first, second });
        assert!(disk.contents("manifest").is_none(), "an output is whole or not there");
        let last = BuildOptions { duplicates: Duplicates::Last, ..refuse.clone() };
        let disk = SimulatedDisk::new(0);
        build_in(&disk, &records, runs, &[0], &last).unwrap();
        let expected: Table = [record("a", "5"), record("b", "2"), record("c", "4")].into();
        check(&disk, &expected, &[b"d".to_vec()]);
    }
    let none = build_in(&SimulatedDisk::new(0), &[], 1, &[0], &refuse);
    assert_eq!(none, Err(BuildError::Empty));
}

/// A flipped bit makes neither a wrong value nor *absent*, but *corrupt*; and a proof finds each.
#[test]
fn a_flipped_bit_of_each_byte_is_corrupt_or_changes_nothing() {
    for (layout, compression) in [
        (Layout::Pages, Compression::None),
        (Layout::Pages, Compression::Zstd),
        (Layout::Slots, Compression::None),
        (Layout::Slots, Compression::Lz4),
    ] {
        let (table, absent) = random(11, 90, 60);
        let disk = SimulatedDisk::new(0);
        let options = options(TokenHash::Xxh3, Some(layout), compression);
        let manifest = build_in(&disk, &list(&table), 1, &[0], &options).unwrap();
        let chunk = &manifest.chunks[0];
        let path = chunk_path(chunk.digest);
        let (mut corrupt, mut refused) = (0, 0);
        let mut dice = Dice(3);
        for byte in 0..chunk.file_bytes {
            let bit = dice.below(8) as u8;
            assert!(disk.flip_bit(&path, byte, bit));
            match open(&disk) {
                Err(_) => refused += 1,
                Ok(artifact) => {
                    for key in table.keys().chain(&absent[..20]) {
                        match artifact.get(Token::of(key), key) {
                            Ok(found) => {
                                assert_eq!(
                                    found.as_deref(),
                                    table.get(key).map(Vec::as_slice),
                                    "byte {byte}, bit {bit}"
                                );
                            }
                            Err(ReadError::Corrupt { .. }) => corrupt += 1,
                            Err(error) => panic!("byte {byte}: {error}"),
                        }
                    }
                }
            }
            assert!(prove(&disk, "", &manifest, chunk).is_err(), "byte {byte}, bit {bit}");
            assert!(disk.flip_bit(&path, byte, bit));
        }
        assert!(corrupt > 1000 && refused > 100, "{corrupt} gets were corrupt, {refused} openings refused");
        check(&disk, &table, &absent);
    }
}

/// Footer, index and list are read when a chunk is opened. One that was damaged there once kept all others from being opened.
#[test]
fn a_chunk_that_is_damaged_outside_its_data_is_named_and_the_others_are_opened() {
    let (table, _) = random(15, 300, 60);
    for layout in [Layout::Pages, Layout::Slots] {
        let disk = SimulatedDisk::new(0);
        let options = options(TokenHash::Xxh3, Some(layout), Compression::None);
        let manifest = build_in(&disk, &list(&table), 1, &QUARTERS, &options).unwrap();
        let chunk = &manifest.chunks[1];
        let path = chunk_path(chunk.digest);
        // One block has a list of 16 bytes.
        let body = chunk.file_bytes - 16;
        for (part, byte) in [("list", chunk.file_bytes - 1), ("footer", body - 1), ("index", body - 97)] {
            assert!(disk.flip_bit(&path, byte, 3));
            let (artifact, refused) = Artifact::open_sound(&disk, manifest.clone(), &chunk_path, &|_| true);
            let damaged = |error: &OpenError| matches!(error, OpenError::Chunk { chunk: named, .. } if *named == chunk.digest);
            assert!(matches!(&refused[..], [(1, error)] if damaged(error)), "{part}: {refused:?}");
            for (key, value) in &table {
                let token = Token::of(key);
                let expected = match chunk.slice.contains(token) {
                    true => Err(ReadError::NotHere { chunk: chunk.digest }),
                    false => Ok(Some(Bytes::copy_from_slice(value))),
                };
                assert_eq!(artifact.get(token, key), expected, "{part}");
            }
            assert!(disk.flip_bit(&path, byte, 3));
        }
    }
}

#[test]
fn a_file_that_is_cut_missing_or_longer_is_no_absent_key() {
    let (table, _) = random(12, 300, 60);
    for layout in [Layout::Pages, Layout::Slots] {
        let disk = SimulatedDisk::new(0);
        let options = options(TokenHash::Xxh3, Some(layout), Compression::None);
        let manifest = build_in(&disk, &list(&table), 1, &QUARTERS, &options).unwrap();
        let artifact = open(&disk).unwrap();
        let path = chunk_path(manifest.chunks[0].digest);
        let whole = disk.contents(&path).unwrap();
        let file = disk.open(&path).unwrap();
        file.truncate(100).unwrap();
        let mut refused = 0;
        for key in table.keys() {
            match artifact.get(Token::of(key), key) {
                Ok(found) => assert_eq!(found.as_deref(), table.get(key).map(Vec::as_slice)),
                Err(ReadError::Disk { error: DiskError::Failed { .. }, .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 20, "{refused}");
        assert!(matches!(open(&disk).err(), Some(OpenError::Chunk { .. })));
        disk.plant(&path, &[&whole[..], b"more"].concat());
        assert!(matches!(open(&disk).err(), Some(OpenError::Chunk { .. })), "longer");
        disk.remove(&path).unwrap();
        assert!(matches!(open(&disk).err(), Some(OpenError::Disk { chunk: Some(_), .. })), "missing");
        let others = Artifact::open(&disk, "", &|chunk| chunk.digest != manifest.chunks[0].digest).unwrap();
        let first = table.keys().find(|key| Token::of(key).0 < 1 << 62).unwrap();
        assert_eq!(
            others.get(Token::of(first), first),
            Err(ReadError::NotHere { chunk: manifest.chunks[0].digest })
        );
    }
}

#[test]
fn a_read_that_must_not_wait_is_refused_and_an_error_of_the_device_stays_one() {
    let (table, _) = random(13, 300, 60);
    for layout in [Layout::Pages, Layout::Slots] {
        let disk = SimulatedDisk::new(0);
        let options = options(TokenHash::Xxh3, Some(layout), Compression::None);
        build_in(&disk, &list(&table), 1, &QUARTERS, &options).unwrap();
        let artifact = open(&disk).unwrap();
        disk.set_cold(Some(3));
        let mut refused = 0;
        for (key, value) in &table {
            let tried = without_waiting(|| artifact.get(Token::of(key), key));
            let answer = match tried.refused {
                true => {
                    let would_wait =
                        |error| matches!(error, ReadError::Disk { error: DiskError::WouldWait, .. });
                    assert!(tried.answer.is_err_and(would_wait));
                    refused += 1;
                    artifact.get(Token::of(key), key)
                }
                false => tried.answer,
            };
            assert_eq!(answer.unwrap().as_deref(), Some(&value[..]));
        }
        assert!(refused > 50, "{refused}");
        disk.set_cold(None);
        let key = table.keys().next().unwrap();
        disk.inject(Fault::next(DiskOperation::Read, 1));
        assert!(matches!(
            artifact.get(Token::of(key), key),
            Err(ReadError::Disk { error: DiskError::Failed { .. }, .. })
        ));
        assert!(artifact.get(Token::of(key), key).is_ok());
    }
}

#[test]
fn a_manifest_that_lies_is_refused() {
    let (table, _) = random(14, 300, 60);
    let disk = SimulatedDisk::new(0);
    let options = options(TokenHash::Xxh3, None, Compression::None);
    let good = build_in(&disk, &list(&table), 1, &QUARTERS, &options).unwrap();
    assert_eq!(Manifest::decode(&good.encode()), Ok(good.clone()));
    let lie = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = good.clone();
        change(&mut manifest);
        Manifest::decode(&manifest.encode())
    };
    assert!(
        matches!(
            lie(&|manifest| manifest.chunks = [&manifest.chunks[..1], &manifest.chunks[2..]].concat()),
            Err(ManifestError::Lies { .. })
        ),
        "a gap"
    );
    assert!(
        matches!(lie(&|manifest| manifest.chunks[0].slice.last.0 += 1), Err(ManifestError::Lies { .. })),
        "an overlap"
    );
    assert!(
        matches!(lie(&|manifest| manifest.chunks.swap(0, 1)), Err(ManifestError::Lies { .. })),
        "another order"
    );
    assert!(
        matches!(lie(&|manifest| manifest.chunks.truncate(1)), Err(ManifestError::Lies { .. })),
        "an end too early"
    );
    assert!(
        matches!(lie(&|manifest| manifest.chunks.clear()), Err(ManifestError::Lies { .. })),
        "nothing at all"
    );
    let bytes = good.encode();
    for byte in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[byte] ^= 0x20;
        assert!(Manifest::decode(&flipped).is_err(), "byte {byte}");
        assert!(Manifest::decode(&bytes[..byte]).is_err(), "cut at {byte}");
    }
    // It contradicts its chunks.
    let changes: [&dyn Fn(&mut Manifest); 4] = [
        &|manifest| manifest.chunks[0].records += 1,
        &|manifest| manifest.chunks[0].file_bytes += 1,
        &|manifest| manifest.chunks[0].payload_bytes += 1,
        &|manifest| {
            manifest.chunks[0].layout = match manifest.chunks[0].layout {
                Layout::Pages => Layout::Slots,
                Layout::Slots => Layout::Pages,
            }
        },
    ];
    for change in changes {
        let mut manifest = good.clone();
        change(&mut manifest);
        disk.plant("manifest", &manifest.encode());
        assert!(matches!(open(&disk).err(), Some(OpenError::Chunk { .. })));
    }
}

/// What the format's page shows: three words counted, in both layouts.
#[test]
fn the_bytes_of_an_artifact_are_pinned() {
    let table: Table = [("one", "1"), ("three", "3"), ("two", "2")]
        .into_iter()
        .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut shown = String::new();
    for layout in [Layout::Pages, Layout::Slots] {
        let disk = SimulatedDisk::new(0);
        let options = options(TokenHash::Xxh3, Some(layout), Compression::None);
        let manifest = build_in(&disk, &list(&table), 1, &[0], &options).unwrap();
        let chunk = disk.contents(&chunk_path(manifest.chunks[0].digest)).unwrap();
        let used = chunk
            .iter()
            .position(|_| true)
            .map_or(0, |_| if layout == Layout::Pages { 80 } else { chunk.len() });
        shown += &format!("{} {}\n{}\n", layout.name(), manifest.chunks[0].digest, hex(&chunk[..used]));
        if layout == Layout::Pages {
            shown += &format!("{}\n", hex(&chunk[4096..]));
        }
        shown += &format!("{}\n", hex(&manifest.encode()));
    }
    let page = include_str!("../../../../docs/reference/artifact.md");
    for line in shown.lines() {
        assert!(page.contains(line), "the page of the format does not show {line}\n{shown}");
    }
}
