//! Artifacts are fetched while sources fail, lie and vanish, replicas lie, and nodes are killed in mid-fetch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::Client;
use model::ArtifactOrder;
use model::{ArtifactNumber, ManifestDigest};
use parking_lot::Mutex;
use runtime::DiskError;
use runtime::disk::simulated::SimulatedDisk;
use sim::cluster::World;
use sim::dice::Dice;
use sim::headmasters;
use wire::messages::{Response, decode_response, encode_response};

use crate::artifacts::{built_of, name, order};
use crate::stage::{keys, play, setup, until};

const NODES: usize = 3;
/// Records of the table, and bytes of each: eight chunks of two blocks or three.
const KEYS: u32 = 300;
const VALUE_BYTES: usize = 60_000;
const ALL: u64 = KEYS as u64 * VALUE_BYTES as u64;

/// Builds a table of some megabytes, and has all nodes stage it.
async fn staged(world: &Arc<World>, client: &Client) -> (String, ManifestDigest) {
    headmasters::stand_until(world, world.executor.process(), world.executor.now());
    order(world, client, ArtifactOrder::Create { store: name(), replicas: 3, kept: None }).await;
    let value = |line: usize| {
        (0..VALUE_BYTES).map(|at| (at as u64 * 31 + line as u64 * 7919).to_le_bytes()[1]).collect()
    };
    let (source, manifest) = built_of(world, (1, 1), &keys(KEYS), &value).await;
    let stage =
        ArtifactOrder::Stage { store: name(), number: ArtifactNumber(1), manifest, source: source.clone() };
    order(world, client, stage).await;
    (source, manifest)
}

/// Whether a node holds all of the table.
fn holds(world: &World, position: usize, manifest: ManifestDigest) -> bool {
    let Some(node) = world.node(position) else { return false };
    let view = node.replica().view().get();
    let open = view.read_only("words").and_then(|store| store.held().open(ArtifactNumber(1), manifest));
    open.is_some_and(|open| open.chunks.iter().all(|here| *here))
}

async fn until_all_hold(world: &World, manifest: ManifestDigest) {
    until(world, "all hold it", || (0..NODES).all(|position| holds(world, position, manifest))).await;
}

/// What each node has stored is what the source has.
fn assert_equal(world: &World, source: &SimulatedDisk) {
    let chunks = |disk: &SimulatedDisk| -> Vec<(String, Vec<u8>)> {
        let files = disk.files().into_iter().filter(|(path, _)| path.contains("chunks/"));
        files.map(|(path, bytes)| (path.rsplit('/').next().unwrap_or_default().to_owned(), bytes)).collect()
    };
    let mut wanted = chunks(source);
    wanted.sort();
    for machine in world.machines() {
        let mut found = chunks(machine.disk());
        found.sort();
        assert!(found == wanted, "{} stores {} of {} chunks", machine.id(), found.len(), wanted.len());
    }
}

fn failing(path: &str) -> DiskError {
    DiskError::Failed { path: path.to_owned(), reason: "the source broke off".to_owned() }
}

#[test]
fn nodes_that_are_killed_in_mid_fetch_go_on_after_their_last_block() {
    for seed in 1..=4 {
        play(setup(seed), move |world, client| async move {
            // Nobody helps out, so that all bytes are counted.
            world.wires.tamper(Some(Box::new(flip_given)));
            let (source, manifest) = staged(&world, &client).await;
            for victim in 0..NODES {
                let half = ALL * NODES as u64 * (victim as u64 + 1) / 4;
                let given = || world.sources.given() >= half;
                until(&world, "a part has come", given).await;
                assert!(!holds(&world, victim, manifest), "seed {seed}: it is killed in mid-fetch");
                world.kill(victim, Duration::ZERO, Duration::ZERO);
                world.executor.sleep(Duration::from_millis(30)).await;
                world.start(victim);
            }
            until_all_hold(&world, manifest).await;
            let (given, needed) = (world.sources.given(), ALL * NODES as u64);
            assert!(given * 100 <= needed * 105, "seed {seed}: {given} bytes were given for {needed}");
            assert_equal(&world, &world.sources.take(&source).expect("it is there"));
        });
    }
}

/// Bytes that a replica gives are flipped on their way.
fn flip_given(frame: &mut Vec<u8>) {
    if let Ok((id, Response::ArtifactBytes(mut part))) = decode_response(Bytes::copy_from_slice(frame)) {
        let mut bytes = part.bytes.to_vec();
        bytes.iter_mut().step_by(4096).for_each(|byte| *byte ^= 1);
        part.bytes = bytes.into();
        let mut changed = BytesMut::new();
        encode_response(id, &Response::ArtifactBytes(part), &mut changed);
        *frame = changed.to_vec();
    }
}

#[test]
fn sources_that_fail_and_lie_cost_time_and_nothing_else() {
    for seed in 11..=16 {
        play(setup(seed), move |world, client| async move {
            let dice = Mutex::new(Dice::apart(seed, 81));
            let harm = Arc::new(AtomicU64::new(0));
            let counted = harm.clone();
            world.sources.temper(Some(Arc::new(move |path: &str, _, bytes: &mut [u8]| {
                let mut dice = dice.lock();
                match dice.below(6) {
                    0 => {
                        counted.fetch_add(1, Ordering::Relaxed);
                        Err(failing(path))
                    }
                    1 if !bytes.is_empty() => {
                        counted.fetch_add(1, Ordering::Relaxed);
                        let at = dice.below(bytes.len() as u64) as usize;
                        bytes[at] ^= 1 << dice.below(8);
                        Ok(())
                    }
                    _ => Ok(()),
                }
            })));
            if seed % 2 == 0 {
                world.wires.tamper(Some(Box::new(flip_given)));
            }
            let (source, manifest) = staged(&world, &client).await;
            until_all_hold(&world, manifest).await;
            assert!(harm.load(Ordering::Relaxed) > 3, "seed {seed}: it did harm");
            let given = world.sources.given();
            assert!(given < ALL * 9, "seed {seed}: what is here is not fetched again: {given}");
            assert_equal(&world, &world.sources.take(&source).expect("it is there"));
        });
    }
}

#[test]
fn a_late_node_needs_no_source_and_verifies_what_replicas_give() {
    for seed in 21..=24 {
        play(setup(seed), move |world, client| async move {
            world.kill(2, Duration::ZERO, Duration::ZERO);
            let (source, manifest) = staged(&world, &client).await;
            let two = || (0..2).all(|position| holds(&world, position, manifest));
            until(&world, "two hold it", two).await;
            let away = world.sources.take(&source).expect("it was put there");
            let given = world.sources.given();
            // Replicas lie at first.
            world.wires.tamper(Some(Box::new(flip_given)));
            world.start(2);
            world.executor.sleep(Duration::from_secs(8)).await;
            assert!(!holds(&world, 2, manifest), "seed {seed}: it believes nobody");
            world.wires.tamper(None);
            until_all_hold(&world, manifest).await;
            assert_eq!(world.sources.given(), given, "seed {seed}: the source was away");
            assert_equal(&world, &away);
        });
    }
}

/// Fetching once caught what panicked in it, and a run with a violated assertion passed.
#[test]
#[should_panic(expected = "a planted bug")]
fn a_panic_in_fetching_ends_the_run() {
    play(setup(31), |world, client| async move {
        world.sources.temper(Some(Arc::new(|_: &str, _, _: &mut [u8]| panic!("a planted bug"))));
        let (_, manifest) = staged(&world, &client).await;
        until_all_hold(&world, manifest).await;
    });
}
