//! Files whose checksums hold and that are wrong all the same: no answer is built on them.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use model::{PartitionId, Token};
use runtime::Disk;
use runtime::disk::simulated::SimulatedDisk;
use storage::{Change, Durability, LogEngine, Remains, RepairableEngine, StorageEngine, StorageError};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::setup::{DIRECTORY, get, small, write};
use crate::world::World;

const SEGMENT: &str = "0000000001.log";
const ZERO: PartitionId = PartitionId(0);
const TOKENS: RangeInclusive<Token> = Token(0)..=Token(u64::MAX);

fn open(disk: &SimulatedDisk, world: &World) -> Result<Arc<LogEngine>, StorageError> {
    let options = small(Durability::Every { milliseconds: 10 });
    world.block_on(LogEngine::open(Arc::new(disk.clone()), DIRECTORY, options, world.ports()))
}

fn path(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

/// One entry of the index file.
struct Entry<'a> {
    partition: u32,
    bytes: &'a mut [u8],
}

impl Entry<'_> {
    fn token(&self) -> Token {
        Token(u64::from_le_bytes(self.bytes[..8].try_into().unwrap()))
    }

    fn fingerprint(&self) -> u32 {
        u32::from_le_bytes(self.bytes[8..12].try_into().unwrap())
    }

    /// Points it at a record of the first segment.
    fn point_at(&mut self, offset: usize) {
        self.bytes[12..16].copy_from_slice(&1u32.to_le_bytes());
        self.bytes[16..20].copy_from_slice(&(offset as u32).to_le_bytes());
    }
}

/// One block of the index file.
struct Block {
    kind: u32,
    partition: u32,
    payload: Vec<u8>,
}

const HEAD: u32 = 1;
const ENTRIES: u32 = 2;
const SEGMENTS: u32 = 3;

/// Changes the index file, whose checksums hold afterwards.
fn change_index(disk: &SimulatedDisk, change: impl FnOnce(&mut Vec<Block>)) {
    let index = disk.contents(&path("index")).unwrap();
    let (mut at, mut blocks) = (0, Vec::new());
    while at < index.len() {
        let word = |from: usize| u32::from_le_bytes(index[at + from..at + from + 4].try_into().unwrap());
        let end = at + 24 + word(16) as usize;
        blocks.push(Block { kind: word(8), partition: word(12), payload: index[at + 24..end].to_vec() });
        at = end;
    }
    change(&mut blocks);
    let mut index = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        let mut bytes = [block.kind.to_le_bytes(), block.partition.to_le_bytes()].concat();
        bytes.extend_from_slice(&(block.payload.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&block.payload);
        index.extend_from_slice(&xxh3_64_with_seed(&bytes, number as u64).to_le_bytes());
        index.extend_from_slice(&bytes);
    }
    disk.plant(&path("index"), &index);
}

fn change_entries(disk: &SimulatedDisk, mut change: impl FnMut(Entry<'_>)) {
    change_index(disk, |blocks| {
        for block in blocks.iter_mut().filter(|block| block.kind == ENTRIES) {
            let partition = block.partition;
            block.payload.chunks_exact_mut(24).for_each(|bytes| change(Entry { partition, bytes }));
        }
    });
}

/// Where the record of this key and value starts in the first segment.
fn record_of(disk: &SimulatedDisk, key_and_value: &str) -> usize {
    let contents = disk.contents(&path(SEGMENT)).unwrap();
    let wanted = key_and_value.as_bytes();
    contents.windows(wanted.len()).position(|window| window == wanted).unwrap() - 48
}

/// The same key in two partitions, and another one of the same length, cleanly closed.
fn alike() -> SimulatedDisk {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world).unwrap();
    for (partition, key, value) in [(0, "key", "mine"), (1, "key", "your"), (0, "kez", "else")] {
        write(&*engine, partition, key.as_bytes(), Some(value.into())).unwrap();
    }
    world.block_on(engine.close()).unwrap();
    disk
}

#[test]
fn an_index_that_points_at_the_record_of_another_key_is_met_as_damage_and_answers_nothing() {
    for wrong in ["keyyour", "kezelse"] {
        let disk = alike();
        let at = record_of(&disk, wrong);
        change_entries(&disk, |mut entry| {
            if entry.partition == 0 && entry.token() == Token::of(b"key") {
                entry.point_at(at);
            }
        });
        let world = World::default();
        let engine = open(&disk, &world).unwrap();
        let found = engine.get(ZERO, Token::of(b"key"), b"key");
        assert_eq!(found, Err(StorageError::Corrupt { partition: ZERO }), "it points at {wrong}");
        assert_eq!(engine.damage().found, 1, "it points at {wrong}");
        assert_eq!(get(&*engine, 0, "kez"), Some(b"else".to_vec()));
        assert_eq!(get(&*engine, 1, "key"), Some(b"your".to_vec()));
        let mut met = 0;
        engine
            .walk(ZERO, TOKENS, &mut |_, record| {
                met += usize::from(matches!(record, storage::Met::Record { .. }));
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(met, 1, "a walk meets what is sound");
    }
}

/// What is forgotten is the entry, not the sound record that it wrongly points at.
#[test]
fn forgetting_an_entry_that_points_elsewhere_takes_no_other_key_along() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world).unwrap();
    // One token for both, as a caller may choose: then only the fingerprint tells them apart.
    let put = |key: &str, value: &[u8]| {
        let change = &mut |_: Option<&Bytes>| Change::Put(Bytes::copy_from_slice(value));
        engine.update(ZERO, Token(7), key.as_bytes(), change).unwrap();
    };
    put("short", b"value");
    put("long", &[b'x'; 100]);
    world.block_on(engine.close()).unwrap();
    let at = record_of(&disk, "shortvalue");
    change_entries(&disk, |mut entry| {
        assert_eq!(entry.token(), Token(7));
        if entry.fingerprint() == storage::fingerprint(b"long") {
            entry.point_at(at);
        }
    });
    let read = |engine: &LogEngine, key: &str| {
        engine.get(ZERO, Token(7), key.as_bytes()).map(|record| record.map(|record| record.to_vec()))
    };
    let world = World::default();
    let engine = open(&disk, &world).unwrap();
    assert_eq!(read(&engine, "long"), Err(StorageError::Corrupt { partition: ZERO }));
    assert_eq!(engine.discard_damaged(ZERO), Ok(1));
    assert_eq!((read(&engine, "long"), read(&engine, "short")), (Ok(None), Ok(Some(b"value".to_vec()))));
    world.block_on(engine.sync()).unwrap();
    disk.kill();
    disk.remove(&path("index")).unwrap();
    let world = World::default();
    let engine = open(&disk, &world).unwrap();
    assert_eq!(read(&engine, "short"), Ok(Some(b"value".to_vec())), "nothing was logged of it");
    assert_eq!(read(&engine, "long"), Ok(Some(vec![b'x'; 100])), "its own record was never damaged");
}

#[test]
fn a_damaged_record_that_was_forgotten_stays_so_when_the_index_is_lost() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world).unwrap();
    for (key, value) in [("key 1", "older"), ("key 2", "other"), ("key 1", "newer")] {
        write(&*engine, 0, key.as_bytes(), Some(value.into())).unwrap();
    }
    world.block_on(engine.sync()).unwrap();
    let at = record_of(&disk, "key 1newer") + 48 + 7;
    assert!(disk.flip_bit(&path(SEGMENT), at as u64, 2));
    let found = engine.get(ZERO, Token::of(b"key 1"), b"key 1");
    assert_eq!(found, Err(StorageError::Corrupt { partition: ZERO }));
    assert_eq!(engine.discard_damaged(ZERO), Ok(1));
    world.block_on(engine.sync()).unwrap();
    disk.kill();
    assert!(disk.contents(&path("index")).is_none(), "all is read again");
    let world = World::default();
    let engine = open(&disk, &world).unwrap();
    assert_eq!(get(&*engine, 0, "key 1"), None, "neither the damaged value nor the one before");
    assert_eq!(get(&*engine, 0, "key 2"), Some(b"other".to_vec()));
    assert_eq!((engine.damage().found, engine.stats().records), (0, 1));
}

/// Everything else in the directory hangs on the number: a wrong one would make every checksum fail.
#[test]
fn a_damaged_identity_is_noticed_where_no_segment_could_tell() {
    const TEXT: &str = "tontine log engine\nformat 1\nengine 0123456789abcdef\ncheck b78df414\n";
    let disk = SimulatedDisk::new(0);
    let remains = |text: &str| {
        disk.plant(&path("FORMAT"), text.as_bytes());
        LogEngine::remains(&disk, DIRECTORY)
    };
    assert_eq!(remains(TEXT), Ok(Remains::Whole(0x0123_4567_89ab_cdef)), "as version 1 writes it");
    let from = TEXT.find("engine 0").unwrap() + "engine ".len();
    for at in (from..from + 16).chain(TEXT.len() - 9..TEXT.len() - 1) {
        let mut text = TEXT.to_owned();
        let other = if &text[at..=at] == "7" { "8" } else { "7" };
        text.replace_range(at..=at, other);
        assert!(matches!(remains(&text), Err(StorageError::Foreign { .. })), "{text}");
    }
    assert!(matches!(remains(&TEXT.replace("\ncheck", "\ncheque")), Err(StorageError::Foreign { .. })));
}

/// No crash leaves such an index. Once, nothing but the log of the process told of it.
#[test]
fn an_index_that_points_past_the_end_of_a_segment_is_not_believed_and_counts_as_damage() {
    let disk = alike();
    let end = disk.contents(&path(SEGMENT)).unwrap().len();
    change_entries(&disk, |mut entry| entry.point_at(end - 48));
    let engine = open(&disk, &World::default()).unwrap();
    assert_eq!(get(&*engine, 0, "key"), Some(b"mine".to_vec()));
    assert_eq!((engine.damage().found, engine.stats().records), (1, 3));
}

/// What is wrong with an index, and how it is made so.
type Wrong = (&'static str, fn(&mut Vec<Block>));

#[test]
fn an_index_of_another_engine_version_or_form_is_not_believed() {
    fn block(blocks: &mut [Block], kind: u32) -> &mut Block {
        blocks.iter_mut().find(|block| block.kind == kind).unwrap()
    }
    let changes: [Wrong; 11] = [
        ("none", |_| {}),
        ("magic", |blocks| block(blocks, HEAD).payload[3] ^= 1),
        ("version", |blocks| block(blocks, HEAD).payload[8] = 2),
        ("engine", |blocks| block(blocks, HEAD).payload[35] ^= 1),
        ("a longer head", |blocks| block(blocks, HEAD).payload.push(0)),
        ("kind of the head", |blocks| block(blocks, HEAD).kind = 9),
        ("kind of the entries", |blocks| block(blocks, ENTRIES).kind = 9),
        ("a longer block of entries", |blocks| block(blocks, ENTRIES).payload.push(0)),
        ("a longer block of segments", |blocks| block(blocks, SEGMENTS).payload.push(0)),
        ("an unknown block as long as an entry or a segment", |blocks| {
            blocks.insert(1, Block { kind: 9, partition: 0, payload: vec![0; 96] });
        }),
        ("something after the end", |blocks| {
            blocks.push(Block { kind: ENTRIES, partition: 5, payload: vec![] });
        }),
    ];
    for (what, change) in changes {
        let disk = alike();
        let at = record_of(&disk, "keyyour");
        change_entries(&disk, |mut entry| entry.point_at(at));
        change_index(&disk, change);
        assert!(matches!(LogEngine::remains(&disk, DIRECTORY), Ok(Remains::Whole(_))), "{what}");
        let engine = open(&disk, &World::default()).unwrap();
        let found = engine.get(ZERO, Token::of(b"key"), b"key");
        let expected = if what == "none" {
            Err(StorageError::Corrupt { partition: ZERO })
        } else {
            Ok(Some(Bytes::from("mine")))
        };
        assert_eq!(found, expected, "{what}");
    }
}

/// A block of segments says what is missed, and no other block does.
#[test]
fn only_an_index_of_this_engine_says_that_a_segment_is_missed() {
    let changes: [Wrong; 6] = [
        ("none", |_| {}),
        ("magic", |blocks| blocks[0].payload[3] ^= 1),
        ("engine", |blocks| blocks[0].payload[35] ^= 1),
        ("kind of the segments", |blocks| {
            blocks.iter_mut().filter(|block| block.kind == SEGMENTS).for_each(|block| block.kind = 9);
        }),
        ("a longer block of segments", |blocks| {
            blocks.iter_mut().filter(|block| block.kind == SEGMENTS).for_each(|block| block.payload.push(0));
        }),
        ("a longer head", |blocks| blocks[0].payload.push(0)),
    ];
    for (what, change) in changes {
        let disk = alike();
        disk.remove(&path(SEGMENT)).unwrap();
        change_index(&disk, change);
        let remains = LogEngine::remains(&disk, DIRECTORY).unwrap();
        assert_eq!(matches!(remains, Remains::Part(_)), what == "none", "{what}: {remains:?}");
    }
}

/// Three segments are as many bytes as four entries: the kind of a block says which they are.
#[test]
fn an_index_of_three_segments_is_believed() {
    let (world, disk) = (World::default(), SimulatedDisk::new(0));
    let engine = open(&disk, &world).unwrap();
    for number in 0..2 {
        write(&*engine, 0, format!("key {number}").as_bytes(), Some(vec![number; 1000])).unwrap();
        world.block_on(engine.sync()).unwrap();
    }
    world.block_on(engine.close()).unwrap();
    change_index(&disk, |blocks| {
        let block = blocks.iter().find(|block| block.kind == SEGMENTS).unwrap();
        assert_eq!(block.payload.len(), 3 * 32);
    });
    assert!(disk.flip_bit(&path(SEGMENT), 64 + 10, 0));
    let engine = open(&disk, &World::default()).unwrap();
    assert_eq!((engine.damage().found, engine.stats().records), (0, 2), "only the index was read");
}
