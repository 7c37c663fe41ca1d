//! Artifacts upon each other under reads and harm: nodes make chunks of deltas, and what they make is compared.

use protocol::report::Parts;
use std::sync::Arc;

use bytes::Bytes;
use client::Client;
use model::{ManifestDigest, NodeId, Token};
use runtime::Disk;
use runtime::disk::simulated::SimulatedDisk;
use sim::check::artifacts::check;
use sim::cluster::World;
use storage::artifacts::{
    BuildOptions, BuildRecord, Compression, Cutter, Duplicates, Manifest, Merged, Place, Records,
    RecordsGiven, TokenHash, build, build_child, copy, publish,
};

use crate::artifacts::{KEYS, Plant, Story, Upon, name, told};
use crate::stage::keys;

/// Keys that nobody reads, and whose values stay.
const STILL: u32 = 900;

/// Records whose values begin with a number, and many that stay.
fn records(says: u64) -> Records {
    let mut records = Records::default();
    let still: Vec<Bytes> = (0..STILL).map(|number| Bytes::from(format!("still {number}"))).collect();
    for (line, key) in keys(KEYS).iter().chain(&still).enumerate() {
        let (token, place) = (Token::of(key), Place::new(0, line as u64 + 1));
        let says = if line < KEYS as usize { says } else { 0 };
        let value = format!("{says}:{}", "x".repeat(line * 7 % 300));
        records.push(BuildRecord { token, key, value: value.as_bytes(), place });
    }
    records.sort();
    records
}

fn merged(says: u64) -> Merged {
    Merged::new(Vec::new(), vec![records(says)], 1 << 20).expect("records in memory")
}

fn url(number: u64) -> String {
    format!("sim://words-{number}")
}

fn manifest_of(disk: &SimulatedDisk) -> Manifest {
    Manifest::decode(&disk.contents("manifest").expect("it was built")).expect("it was built")
}

/// Builds an artifact upon the one before it, and puts it under its URL.
pub(crate) async fn built(
    world: &World,
    number: u64,
    (upon, plant): (Upon, Plant),
) -> (String, ManifestDigest) {
    let disk = SimulatedDisk::new(number);
    let mut manifest = match number {
        1 => alone(&disk).await,
        _ => child(world, number, number, &disk).await,
    };
    if number > 1 && (upon == Upon::BeforeWithLyingDeltas || plant == Plant::TakesMerges) {
        let others = SimulatedDisk::new(number);
        let lies = child(world, number, 100 + number, &others).await;
        for delta in lies.deltas() {
            copy(&others, &disk, delta.file()).await.expect("the disk is sound");
        }
        manifest.lineage = lies.lineage;
        if plant == Plant::TakesMerges {
            // As if nobody compared what comes of a merge with this.
            for chunk in &lies.chunks {
                copy(&others, &disk, chunk.file()).await.expect("the disk is sound");
            }
            manifest.chunks = lies.chunks;
        }
        publish(&disk, &manifest).await.expect("the disk is sound");
    }
    world.sources.put(&url(number), disk);
    (url(number), ManifestDigest(manifest.digest().0))
}

async fn alone(disk: &SimulatedDisk) -> Manifest {
    let options = BuildOptions {
        store: name(),
        number: 1,
        hash: TokenHash::Xxh3,
        compression: Compression::None,
        layout: None,
        duplicates: Duplicates::Refuse,
    };
    let starts: Vec<u64> = (0..8).map(|slice| slice << 61).collect();
    let cutter = Cutter::new(&starts, (1, 1 << 20));
    build(Arc::new(disk.clone()), merged(1), &options, cutter).await.expect("the disk is sound")
}

async fn child(world: &World, number: u64, says: u64, disk: &SimulatedDisk) -> Manifest {
    let before = world.sources.take(&url(number - 1)).expect("it was built before");
    world.sources.put(&url(number - 1), before.clone());
    let parent = manifest_of(&before);
    let source: Arc<dyn Disk> = Arc::new(before);
    let to: Arc<dyn Disk> = Arc::new(disk.clone());
    let built =
        build_child(to, merged(says), (source, &parent), number, (RecordsGiven::All, Duplicates::Refuse))
            .await;
    let manifest = built.expect("the disks are sound");
    assert_eq!(manifest.deltas().len(), manifest.chunks.len(), "each chunk has changed a little");
    manifest
}

/// Bytes that each node has fetched of an artifact, and those of them that came as deltas.
pub(crate) async fn fetched(client: &Client, number: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for node in 1..=3 {
        let Ok(report) = client.report(NodeId(node), Parts::ARTIFACTS).await else { continue };
        let listed = report.artifacts.expect("it was asked for").listed;
        let of_this = listed.iter().find(|artifact| artifact.number.0 == number);
        let of_this = of_this.expect("the document lists it");
        found.push((of_this.bytes_fetched, of_this.bytes_fetched_as_deltas));
    }
    found
}

#[test]
fn children_go_live_and_back_under_reads_and_only_deltas_are_fetched() {
    for seed in 201..=204 {
        let record = told(seed, Story { upon: Upon::Before, ..Story::default() });
        let (reads, swaps) = (record.reads.lock(), record.swaps.lock());
        assert_eq!(check(&reads, &swaps), [], "seed {seed}");
        assert_eq!(*record.failed.lock(), Vec::<String>::new(), "seed {seed}");
        let seen = |number| reads.iter().filter(|read| read.numbers[0] == Some(number)).count();
        assert!(seen(1) > 3 && seen(2) > 3 && seen(3) > 3, "seed {seed}: readers see all of them");
        let fetched = record.fetched.lock();
        assert_eq!(fetched.len(), 6, "seed {seed}");
        assert!(
            fetched.iter().all(|(all, deltas)| all == deltas && *deltas > 1000),
            "seed {seed}: {fetched:?}"
        );
    }
}

#[test]
fn children_go_live_even_if_machines_lose_power_while_they_merge() {
    let mut by_deltas = 0;
    for seed in 301..=310 {
        let record = told(seed, Story { upon: Upon::Before, harm: true, ..Story::default() });
        let (reads, swaps) = (record.reads.lock(), record.swaps.lock());
        assert_eq!(check(&reads, &swaps), [], "seed {seed}");
        assert!(reads.iter().any(|read| read.numbers[0] == Some(3)), "seed {seed}: the last one is read");
        by_deltas += record.fetched.lock().iter().filter(|(_, deltas)| *deltas > 0).count();
    }
    assert!(by_deltas > 10, "{by_deltas} nodes have used deltas");
}

#[test]
fn deltas_that_do_not_make_the_built_chunks_are_passed_over() {
    for seed in 401..=403 {
        let record = told(seed, Story { upon: Upon::BeforeWithLyingDeltas, ..Story::default() });
        let (reads, swaps) = (record.reads.lock(), record.swaps.lock());
        assert_eq!(check(&reads, &swaps), [], "seed {seed}");
        assert_eq!(*record.failed.lock(), Vec::<String>::new(), "seed {seed}");
        let fetched = record.fetched.lock();
        assert!(fetched.iter().all(|(all, deltas)| all > deltas && *deltas > 0), "seed {seed}: {fetched:?}");
    }
}

#[test]
fn a_merged_chunk_whose_digest_is_not_compared_is_convicted() {
    let convicted = |seed| {
        let record = told(seed, Story { plant: Plant::TakesMerges, upon: Upon::Before, ..Story::default() });
        let (reads, swaps) = (record.reads.lock(), record.swaps.lock());
        !check(&reads, &swaps).is_empty()
    };
    assert!((1..=4).any(convicted));
}
