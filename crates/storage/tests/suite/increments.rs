//! Artifacts upon a parent: what a merge makes is what a full build with the parent's slices makes, and nothing else is
//! ever handed out, whatever happens to the files.

use std::sync::Arc;

use model::Token;
use runtime::Disk;
use runtime::disk::simulated::SimulatedDisk;
use storage::artifacts::{
    BuildRecord, ChildError, ChunkEntry, ChunkWriter, Compression, DELETE, DELTA_PART_MAX, Duplicates,
    Layout, Manifest, ManifestError, MergeError, MergeInputs, Merged, Place, Records, RecordsGiven, Sealer,
    Slice, TokenHash, build_child, chunk_path, merge, prove_delta, put,
};

use crate::artifacts::{
    COMPRESSIONS, Dice, HASHES, QUARTERS, Table, build_in, check, list, now, options, random,
};

/// Builds upon a parent, whose files are on another disk.
fn child_of(
    parent: (&SimulatedDisk, &Manifest),
    table: &Table,
    number: u64,
) -> Result<(SimulatedDisk, Manifest), ChildError> {
    child_given(parent, table, number, RecordsGiven::All)
}

fn child_given(
    parent: (&SimulatedDisk, &Manifest),
    table: &Table,
    number: u64,
    given: RecordsGiven,
) -> Result<(SimulatedDisk, Manifest), ChildError> {
    let disk = SimulatedDisk::new(number);
    let mut records = Records::default();
    for (line, (key, value)) in table.iter().enumerate() {
        let (token, place) = (parent.1.hash.token(key), Place::new(0, line as u64 + 1));
        records.push(BuildRecord { token, key, value, place });
    }
    records.sort();
    let merged = Merged::new(Vec::new(), vec![records], 1 << 20).unwrap();
    let source: Arc<dyn Disk> = Arc::new(parent.0.clone());
    let to: Arc<dyn Disk> = Arc::new(disk.clone());
    let manifest = now(build_child(to, merged, (source, parent.1), number, (given, Duplicates::Refuse)))?;
    Ok((disk, manifest))
}

/// Changes about one record in `one_in`: a third of them each gets another value, goes, or comes.
fn changed(table: &Table, dice: &mut Dice, one_in: usize, value_bytes_max: usize) -> Table {
    let mut after = table.clone();
    for key in table.keys() {
        if dice.below(one_in) > 0 {
            continue;
        }
        let bytes = dice.below(value_bytes_max + 1);
        match dice.below(3) {
            0 => drop(after.insert(key.clone(), dice.bytes(bytes))),
            1 => drop(after.remove(key)),
            _ => drop(after.insert([&key[..], b"+"].concat(), dice.bytes(bytes))),
        }
    }
    after.entry(b"always here".to_vec()).or_default();
    after
}

/// What leads from one table to the next, with some changes that change nothing.
fn changes(before: &Table, after: &Table, absent: &[Vec<u8>]) -> Table {
    let mut changes = Table::new();
    for (number, (key, value)) in after.iter().enumerate() {
        if before.get(key) != Some(value) || number % 9 == 0 {
            changes.insert(key.clone(), put(value));
        }
    }
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    let never = absent.iter().step_by(5).filter(|key| !after.contains_key(*key));
    changes.extend(gone.chain(never).map(|key| (key.clone(), DELETE.to_vec())));
    changes
}

/// The bytes of a chunk as a builder makes it that knows slices, layouts and dictionary of the parent, and no delta.
fn built_anew(manifest: &Manifest, like: &ChunkEntry, table: &Table) -> (ChunkEntry, Vec<u8>) {
    let end =
        QUARTERS.iter().map(|start| start.wrapping_sub(1)).filter(|end| *end >= like.slice.last.0).min();
    let outer = Slice { first: like.slice.first, last: Token(end.unwrap_or(u64::MAX)) };
    let disk = SimulatedDisk::new(0);
    let mut writer = ChunkWriter::create(Arc::new(disk.clone()), "anew", outer, like.layout).unwrap();
    let mut sealer = Sealer::new(manifest.compression, &manifest.dictionary);
    let mut inside: Vec<_> = table
        .iter()
        .map(|(key, value)| (manifest.hash.token(key), key, value))
        .filter(|(token, ..)| like.slice.contains(*token))
        .collect();
    inside.sort();
    for (token, key, value) in inside {
        writer.add(token, key, value, &mut sealer).unwrap();
    }
    let finished = writer.finish(like.slice.last).unwrap();
    let bytes = disk.contents(&finished.path).unwrap();
    (finished.entry, bytes)
}

fn inputs(parent: &SimulatedDisk, child: &SimulatedDisk, manifest: &Manifest, delta: usize) -> MergeInputs {
    let entry = &manifest.deltas()[delta];
    MergeInputs {
        parent: parent.open(&chunk_path(entry.parent)).unwrap(),
        delta: child.open(&chunk_path(entry.digest)).unwrap(),
    }
}

/// What a node makes that has the parent: the bytes of a chunk.
fn merged(
    parent: &SimulatedDisk,
    child: &SimulatedDisk,
    manifest: &Manifest,
    which: usize,
) -> Result<Vec<u8>, MergeError> {
    let delta = &manifest.deltas()[which];
    let entry = &manifest.chunks[delta.chunk as usize];
    let node = SimulatedDisk::new(9);
    let disk: Arc<dyn Disk> = Arc::new(node.clone());
    let inputs = inputs(parent, child, manifest, which);
    let made = merge(&disk, "made", inputs, manifest.hash, (entry, delta));
    let left = node.list("").unwrap();
    match made {
        Ok(made) => Ok(node.contents(&made.path).unwrap()),
        Err(error) => {
            let differs = matches!(error, MergeError::Differs { .. });
            assert!(!differs || left.is_empty(), "what is another chunk does not stay: {left:?}");
            Err(error)
        }
    }
}

#[test]
fn a_merge_makes_the_bytes_of_a_full_build_with_the_parents_slices() {
    let (mut seed, mut deltas, mut same) = (0, 0, 0);
    for layout in [Layout::Pages, Layout::Slots] {
        for compression in COMPRESSIONS {
            for hash in HASHES {
                for (count, value_bytes_max, one_in) in
                    [(1, 10, 2), (700, 60, 12), (300, 900, 3), (600, 90, 150)]
                {
                    seed += 1;
                    let (mut table, absent) = random(seed, count, value_bytes_max);
                    let mut dice = Dice(seed);
                    let mut disk = SimulatedDisk::new(0);
                    let options = options(hash, Some(layout), compression);
                    let mut parent = build_in(&disk, &list(&table), 1, &QUARTERS, &options).unwrap();
                    for generation in 1..=3 {
                        let before = table.clone();
                        table = changed(&table, &mut dice, one_in, value_bytes_max);
                        if generation == 2 && seed % 3 == 0 {
                            // It fits no page.
                            table.insert(b"long".to_vec(), dice.bytes(6000));
                        }
                        let (next, child) = child_of((&disk, &parent), &table, 7 + generation).unwrap();
                        check(&next, &table, &absent);
                        let changes = changes(&before, &table, &absent);
                        let by_changes =
                            child_given((&disk, &parent), &changes, 7 + generation, RecordsGiven::Changes);
                        assert_eq!(by_changes.unwrap().1, child, "seed {seed}, generation {generation}");
                        assert_eq!(Manifest::decode(&child.encode()).as_ref(), Ok(&child));
                        for (old, new) in parent.chunks.iter().zip(&child.chunks) {
                            let (anew, bytes) =
                                built_anew(&child, &ChunkEntry { layout: old.layout, ..new.clone() }, &table);
                            assert_eq!(anew, *new, "seed {seed}, generation {generation}");
                            assert!(next.contents(&chunk_path(new.digest)).unwrap() == bytes);
                            same += usize::from(old == new);
                        }
                        for (which, delta) in child.deltas().iter().enumerate() {
                            let entry = &child.chunks[delta.chunk as usize];
                            assert!(delta.file_bytes * DELTA_PART_MAX <= entry.file_bytes);
                            prove_delta(&next, &child, delta).unwrap();
                            let made = merged(&disk, &next, &child, which).unwrap();
                            assert!(next.contents(&chunk_path(entry.digest)).unwrap() == made);
                            deltas += 1;
                        }
                        (disk, parent) = (next, child);
                    }
                }
            }
        }
    }
    assert!(deltas > 300 && same > 100, "{deltas} deltas, {same} chunks that stay");
}

/// A parent with one chunk, and a child with one delta.
fn pair(layout: Layout, compression: Compression) -> (SimulatedDisk, SimulatedDisk, Manifest) {
    let (table, _) = random(21, 90, 60);
    let disk = SimulatedDisk::new(0);
    let options = options(TokenHash::Xxh3, Some(layout), compression);
    let parent = build_in(&disk, &list(&table), 1, &[0], &options).unwrap();
    let (next, child) = child_of((&disk, &parent), &changed(&table, &mut Dice(4), 20, 60), 8).unwrap();
    assert_eq!(child.deltas().len(), 1);
    (disk, next, child)
}

#[test]
fn a_flipped_bit_of_a_delta_or_its_parent_makes_no_other_chunk() {
    for (layout, compression) in [
        (Layout::Pages, Compression::Lz4),
        (Layout::Slots, Compression::None),
        (Layout::Pages, Compression::Zstd),
    ] {
        let (parent, child, manifest) = pair(layout, compression);
        let delta = &manifest.deltas()[0];
        let wanted = child.contents(&chunk_path(manifest.chunks[0].digest)).unwrap();
        let mut dice = Dice(5);
        let (mut refused, mut unharmed) = (0, 0);
        for (disk, digest) in [(&child, delta.digest), (&parent, delta.parent)] {
            let path = chunk_path(digest);
            let length = disk.contents(&path).unwrap().len();
            for byte in 0..length {
                let bit = dice.below(8) as u8;
                assert!(disk.flip_bit(&path, byte as u64, bit));
                match merged(&parent, &child, &manifest, 0) {
                    Ok(made) => {
                        assert!(made == wanted, "byte {byte}, bit {bit}");
                        unharmed += 1;
                    }
                    Err(_) => refused += 1,
                }
                if digest == delta.digest {
                    assert!(prove_delta(&child, &manifest, delta).is_err(), "byte {byte}, bit {bit}");
                }
                assert!(disk.flip_bit(&path, byte as u64, bit));
            }
            for cut in [0, 1, 95, length / 2, length - 1] {
                let whole = disk.contents(&path).unwrap();
                disk.plant(&path, &whole[..cut]);
                assert!(merged(&parent, &child, &manifest, 0).is_err(), "cut to {cut}");
                disk.plant(&path, &whole);
            }
        }
        assert!(refused > 1000 && unharmed > 20, "{refused} refused, {unharmed} unharmed");
        assert!(merged(&parent, &child, &manifest, 0).unwrap() == wanted);
    }
}

/// The digests of delta and chunk are right, and do not belong together.
#[test]
fn a_delta_that_makes_another_chunk_than_the_manifest_names_is_refused() {
    let (parent, child, manifest) = pair(Layout::Pages, Compression::None);
    let mut lies = manifest.clone();
    lies.chunks[0].digest.0[3] ^= 1;
    let error = merged(&parent, &child, &lies, 0).unwrap_err();
    assert!(matches!(error, MergeError::Differs { .. }), "{error}");
    let mut lies = manifest;
    lies.chunks[0].records += 1;
    let error = merged(&parent, &child, &lies, 0).unwrap_err();
    assert!(matches!(error, MergeError::Differs { .. }), "{error}");
}

#[test]
fn a_lineage_that_lies_is_refused() {
    let (table, _) = random(22, 900, 60);
    let disk = SimulatedDisk::new(0);
    let options = options(TokenHash::Xxh3, Some(Layout::Pages), Compression::None);
    let parent = build_in(&disk, &list(&table), 1, &QUARTERS, &options).unwrap();
    let (_, good) = child_of((&disk, &parent), &changed(&table, &mut Dice(4), 20, 60), 8).unwrap();
    assert!(good.deltas().len() > 2);
    let lineage = good.lineage.clone().unwrap();
    assert_eq!((lineage.number, lineage.manifest), (parent.number, parent.digest()));
    let lie = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = good.clone();
        change(&mut manifest);
        Manifest::decode(&manifest.encode())
    };
    type Lie = Box<dyn Fn(&mut Manifest)>;
    let lies: [Lie; 3] = [
        Box::new(|manifest| manifest.lineage.as_mut().unwrap().deltas.swap(0, 1)),
        Box::new(|manifest| {
            let deltas = &mut manifest.lineage.as_mut().unwrap().deltas;
            deltas[1] = deltas[0].clone();
        }),
        Box::new(|manifest| manifest.lineage.as_mut().unwrap().deltas.last_mut().unwrap().chunk = 1000),
    ];
    for (number, change) in lies.iter().enumerate() {
        assert!(matches!(lie(change), Err(ManifestError::Lies { .. })), "lie {number}");
    }
    let bytes = good.encode();
    for byte in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[byte] ^= 0x20;
        assert!(Manifest::decode(&flipped).is_err(), "byte {byte}");
        assert!(Manifest::decode(&bytes[..byte]).is_err(), "cut at {byte}");
    }
    assert_eq!(bytes[8], 2, "a program that knows no parents refuses it by its format");
    assert_eq!(parent.encode()[8], 1, "and reads what has none");
}

#[test]
fn a_damaged_parent_is_no_ground_to_build_upon() {
    let (table, _) = random(23, 300, 60);
    let disk = SimulatedDisk::new(0);
    let options = options(TokenHash::Xxh3, Some(Layout::Slots), Compression::None);
    let parent = build_in(&disk, &list(&table), 1, &QUARTERS, &options).unwrap();
    let path = chunk_path(parent.chunks[1].digest);
    assert!(disk.flip_bit(&path, 40, 2));
    let damaged = |table: &Table| {
        let error = child_of((&disk, &parent), table, 8).err();
        matches!(error, Some(ChildError::Merge(MergeError::Parent { chunk, .. })) if chunk == parent.chunks[1].digest)
    };
    assert!(damaged(&table), "also where nothing has changed");
    disk.remove(&path).unwrap();
    assert!(damaged(&table));
}

/// What the format's page shows: the three words, of which one has another value, one is gone, and one came.
#[test]
fn the_bytes_of_a_delta_are_pinned() {
    let words = |words: &[(&str, &str)]| -> Table {
        words.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    };
    let disk = SimulatedDisk::new(0);
    let options = options(TokenHash::Xxh3, Some(Layout::Pages), Compression::None);
    let table = words(&[("one", "1"), ("three", "3"), ("two", "2")]);
    let parent = build_in(&disk, &list(&table), 1, &[0], &options).unwrap();
    let table = words(&[("one", "9"), ("three", "3"), ("four", "4")]);
    let (next, child) = child_of((&disk, &parent), &table, 8).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let delta = &child.deltas()[0];
    assert_eq!((delta.puts, delta.deletes), (2, 1));
    let shown = format!(
        "delta {}\n{}\n{}\n",
        delta.digest,
        hex(&next.contents(&chunk_path(delta.digest)).unwrap()),
        hex(&child.encode())
    );
    let page = include_str!("../../../../docs/reference/artifact.md");
    for line in shown.lines() {
        assert!(page.contains(line), "the page of the format does not show {line}\n{shown}");
    }
}

/// A merge that had turned to slots, and was broken off, once failed every attempt after it.
#[test]
fn a_chunk_that_turns_to_slots_is_written_over_what_an_attempt_before_has_left() {
    let disk = SimulatedDisk::new(0);
    let write = |path: &str| {
        let mut sealer = Sealer::new(Compression::None, &[]);
        let layout = Layout::Pages;
        let mut writer = ChunkWriter::create(Arc::new(disk.clone()), path, Slice::WHOLE, layout).unwrap();
        writer.add(Token(1), b"short", b"value", &mut sealer).unwrap();
        writer.add(Token(2), b"long", &[7; 9000], &mut sealer).unwrap();
        writer
    };
    drop(write("chunk"));
    assert_eq!(disk.list("").unwrap(), ["chunk.slots"]);
    let again = write("chunk").finish(Token(u64::MAX)).unwrap();
    let alone = write("another").finish(Token(u64::MAX)).unwrap();
    assert_eq!((again.entry, again.path), (alone.entry, "chunk.slots".to_owned()));
    assert_eq!(disk.contents("chunk.slots"), disk.contents("another.slots"));
}
