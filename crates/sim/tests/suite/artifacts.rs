//! Artifacts go live and back under reads and harm: the real fetch, reader, judgement and swap, judged by invariant 10.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use client::{Client, ClientError, ClientOptions};
use control::election::Candidate;
use control::headmaster::tenure::serve;
use coordination::documents;
use futures_util::future::select;
use model::ArtifactOrder;
use model::{ArtifactNumber, Cluster, ManifestDigest, StoreName, Token, VersionSet};
use parking_lot::Mutex;
use runtime::disk::simulated::SimulatedDisk;
use sim::check::artifacts::{NumbersRead, Swap, check};
use sim::cluster::World;
use sim::dice::Dice;
use sim::executor::WallClock;
use sim::host::Host;
use storage::artifacts::{
    BuildOptions, BuildRecord, Compression, Cutter, Duplicates, Merged, Place, Records, TokenHash, build,
};
use wire::ErrorCode;
use wire::messages::{
    ReplicaGot, Request, RequestOptions, Response, decode_request, decode_response, encode_request,
    encode_response,
};

use crate::increments;
use crate::stage::{keys, play, setup, until};

pub(crate) const KEYS: u32 = 40;
const READERS: u32 = 3;

pub(crate) fn name() -> StoreName {
    StoreName::new("words").expect("a short name")
}

/// Builds an artifact whose values begin with its number, and puts it under a URL.
async fn built(world: &World, number: u64) -> (String, ManifestDigest) {
    built_as(world, number, number).await
}

/// The same with values of another number: a source that lies.
async fn built_as(world: &World, number: u64, says: u64) -> (String, ManifestDigest) {
    let value = |line: usize| format!("{says}:{}", "x".repeat(line * 7 % 300)).into_bytes();
    built_of(world, (number, says), &keys(KEYS), &value).await
}

/// The same of these keys, where a function says each one's value.
pub(crate) async fn built_of(
    world: &World,
    (number, says): (u64, u64),
    keys: &[Bytes],
    value: &(dyn Fn(usize) -> Vec<u8> + Sync),
) -> (String, ManifestDigest) {
    let mut records = Records::default();
    for (line, key) in keys.iter().enumerate() {
        let (token, place) = (Token::of(key), Place::new(0, line as u64 + 1));
        records.push(BuildRecord { token, key, value: &value(line), place });
    }
    records.sort();
    let disk = SimulatedDisk::new(says);
    let options = BuildOptions {
        store: name(),
        number,
        hash: TokenHash::Xxh3,
        compression: Compression::None,
        layout: None,
        duplicates: Duplicates::Refuse,
    };
    let merged = Merged::new(Vec::new(), vec![records], 1 << 20).expect("records in memory");
    let starts: Vec<u64> = (0..8).map(|slice| slice << 61).collect();
    let cutter = Cutter::new(&starts, (1, 1 << 20));
    let manifest = build(Arc::new(disk.clone()), merged, &options, cutter).await.expect("the disk is sound");
    let url = format!("sim://words-{number}");
    world.sources.put(&url, disk);
    (url, ManifestDigest(manifest.digest().0))
}

/// What all readers have heard, and what was ordered.
#[derive(Clone, Default)]
pub(crate) struct Record {
    pub(crate) reads: Arc<Mutex<Vec<NumbersRead>>>,
    pub(crate) swaps: Arc<Mutex<Vec<Swap>>>,
    /// What is served now, for planted replicas.
    served: Arc<Mutex<Option<(ArtifactNumber, ManifestDigest)>>>,
    pub(crate) failed: Arc<Mutex<Vec<String>>>,
    /// Bytes that nodes fetched of artifacts upon others, and those of them that came as deltas.
    pub(crate) fetched: Arc<Mutex<Vec<(u64, u64)>>>,
    connected: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
}

/// Orders until it is done: nodes may be down, or not hold the artifact yet.
pub(crate) async fn order(world: &World, client: &Client, order: ArtifactOrder) {
    let give_up = world.executor.now().after(Duration::from_secs(120));
    loop {
        let error = match client.order_artifacts(&order).await {
            Ok(_) => return,
            // What was not confirmed was done.
            Err(ClientError::Refused { refusal, .. })
                if ["artifact-served", "artifact-not-greater", "store-exists"]
                    .contains(&&*refusal.code()) =>
            {
                return;
            }
            Err(error) => error,
        };
        assert!(world.executor.now() < give_up, "never done: {order:?}: {error}");
        world.executor.sleep(Duration::from_millis(50)).await;
    }
}

/// Swaps by an order of a user's own.
async fn swap(world: &World, client: &Client, record: &Record, number: u64, manifest: ManifestDigest) {
    record.swaps.lock().push(Swap { ordered: world.executor.now(), number });
    let number = ArtifactNumber(number);
    order(world, client, ArtifactOrder::Swap { store: name(), number, replicas: None, first: false }).await;
    *record.served.lock() = Some((number, manifest));
}

/// Wishes for a push, which a headmaster carries out.
async fn push(
    world: &World,
    client: &Client,
    record: &Record,
    (number, source): (u64, &str),
    manifest: ManifestDigest,
) {
    record.swaps.lock().push(Swap { ordered: world.executor.now(), number });
    let push = ArtifactOrder::Push {
        store: name(),
        number: ArtifactNumber(number),
        manifest,
        source: source.to_owned(),
        replicas: Some(2),
        abort_after_ms: None,
    };
    order(world, client, push).await;
}

async fn document(world: &World) -> Cluster {
    let read = documents::read_cluster(&world.service.open()).await;
    read.expect("the service never fails").expect("the cluster was created")
}

async fn served(world: &World) -> Option<u64> {
    let cluster = document(world).await;
    cluster.read_only("words").and_then(|store| store.served()).map(|served| served.number.0)
}

/// Waits until a headmaster has carried a push out.
async fn await_served(world: &World, record: &Record, number: u64, manifest: ManifestDigest) {
    let give_up = world.executor.now().after(Duration::from_secs(120));
    while served(world).await != Some(number) {
        assert!(world.executor.now() < give_up, "never served: {number}");
        world.executor.sleep(Duration::from_millis(20)).await;
    }
    *record.served.lock() = Some((ArtifactNumber(number), manifest));
}

/// One headmaster after another, each of which ends at some moment.
async fn conduct(world: Arc<World>, seed: u64, record: Record) {
    let mut dice = Dice::apart(seed, 78);
    let process = world.executor.process();
    while !record.stop.load(Ordering::Relaxed) {
        let ports = world.ports(Host(100), process, Arc::new(WallClock::default()));
        let service = Arc::new(world.service.open());
        let candidate = Candidate::new("headmaster".to_owned());
        let tenure = serve(service, &ports, &candidate);
        let life = world.executor.sleep(dice.millis(100, 3000));
        select(pin!(tenure), pin!(life)).await;
    }
}

/// Which artifact a value is from.
fn number_of(value: Option<Bytes>) -> Option<u64> {
    let value = value?;
    let text = std::str::from_utf8(&value).expect("values are text");
    Some(text.split_once(':').expect("a number and more").0.parse().expect("a number"))
}

/// Reads all keys at once, again and again. `in_parts`: a planted client that begins a request again in part, by
/// another document.
async fn read_on(world: Arc<World>, record: Record, number: u32, plant: Plant) {
    let in_parts = plant == Plant::BeginsInParts;
    let process = world.executor.process();
    let ports = world.ports(Host(110 + number), process, Arc::new(WallClock::default()));
    let options = ClientOptions { spread: true, ..ClientOptions::default() };
    let client = loop {
        match Client::connect(&world.addresses(), ports.clone(), options.clone()).await {
            Ok(client) => break client,
            Err(_) => world.executor.sleep(Duration::from_millis(50)).await,
        }
    };
    record.connected.fetch_add(1, Ordering::Relaxed);
    let Ok(store) = client.store("words") else { panic!("the store was created before") };
    let options = RequestOptions::default();
    while !record.stop.load(Ordering::Relaxed) {
        let mut wanted = keys(KEYS);
        let rest = if in_parts { wanted.split_off(wanted.len() / 2) } else { Vec::new() };
        let mut answers = store.multi_get(wanted, &options).await.expect("the store is there");
        if in_parts {
            world.executor.sleep(Duration::from_millis(30)).await;
            let _ = client.refresh().await;
            answers.extend(store.multi_get(rest, &options).await.expect("the store is there"));
        }
        let ended = world.executor.now();
        let found: Result<Vec<_>, _> = answers.into_iter().collect();
        match found {
            Ok(found) => {
                let numbers = found.into_iter().map(|found| number_of(found.value())).collect();
                record.reads.lock().push(NumbersRead { client: number, ended, numbers });
            }
            Err(error) => record.failed.lock().push(error.to_string()),
        }
        if number == 1 {
            // The others learn of swaps when replicas refuse what they name.
            let _ = client.refresh().await;
        }
        world.executor.sleep(Duration::from_millis(u64::from(number) * 3 + 1)).await;
    }
}

/// What a story plants.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Plant {
    #[default]
    Nothing,
    /// A replica answers from what it serves instead of what it was asked for.
    AnswersFromServed,
    /// A request is begun again in part.
    BeginsInParts,
    /// A replica says *absent* for what it does not hold.
    AbsentForNotHere,
    /// A swap is published before any slice is staged.
    SwapsEarly,
    /// What a source has is not compared with what was ordered.
    TakesLies,
    /// What a merge makes is not compared with what was built.
    TakesMerges,
}

/// Whether a story's artifacts are built upon each other.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Upon {
    /// Each is built by itself.
    #[default]
    Nothing,
    /// Each but the first is built upon the one before.
    Before,
    /// The same, and the deltas make other chunks than the manifest names.
    BeforeWithLyingDeltas,
}

/// What a story plants, and whether it does harm: nodes are killed and stand still, and sources are away for a while.
#[derive(Clone, Copy, Default)]
pub(crate) struct Story {
    pub(crate) plant: Plant,
    pub(crate) harm: bool,
    pub(crate) upon: Upon,
}

fn tamper(world: &World, plant: Plant, record: &Record) {
    let served = record.served.clone();
    match plant {
        Plant::AnswersFromServed => world.wires.tamper_late(Some(Box::new(move |frame: &mut Vec<u8>| {
            let Ok((id, Request::ArtifactGet(mut get))) = decode_request(Bytes::copy_from_slice(frame))
            else {
                return;
            };
            let Some((number, manifest)) = *served.lock() else { return };
            (get.number, get.manifest) = (number, manifest);
            let mut bytes = BytesMut::new();
            encode_request(id, &get.into(), &mut bytes);
            *frame = bytes.to_vec();
        }))),
        Plant::AbsentForNotHere => world.wires.tamper(Some(Box::new(|frame: &mut Vec<u8>| {
            let Ok((id, response)) = decode_response(Bytes::copy_from_slice(frame)) else { return };
            if let Response::ArtifactBytes(_) = response {
                // Nobody gives the node what it does not hold.
                let last = frame.len() - 1;
                frame[last] ^= 1;
            }
            let Response::Failure(failure) = response else { return };
            if failure.code == ErrorCode::ArtifactNotHere {
                let sets = [Ok(VersionSet::default())].into_iter().collect();
                let got = ReplicaGot { generation: Default::default(), epoch: Default::default(), sets };
                let mut bytes = BytesMut::new();
                encode_response(id, &Response::ReplicaGot(got), &mut bytes);
                *frame = bytes.to_vec();
            }
        }))),
        _ => {}
    }
}

/// Plays pushes, swaps and rollbacks under reads.
pub(crate) fn told(seed: u64, story: Story) -> Record {
    let record = Record::default();
    let kept = record.clone();
    play(setup(seed), move |world, client| async move {
        tamper(&world, story.plant, &record);
        let conducting = conduct(world.clone(), seed, record.clone());
        world.executor.spawn(world.executor.process(), Box::pin(conducting));
        order(&world, &client, ArtifactOrder::Create { store: name(), replicas: 3, kept: None }).await;
        let knows = |position| {
            world.node(position).is_some_and(|node| node.replica().view().get().read_only("words").is_some())
        };
        until(&world, "all nodes know the store", || (0..3).all(knows)).await;
        for reader in 1..=READERS {
            let reading = read_on(world.clone(), record.clone(), reader, story.plant);
            world.executor.spawn(world.executor.process(), Box::pin(reading));
        }
        let all = || record.connected.load(Ordering::Relaxed) == READERS;
        until(&world, "all readers are connected", all).await;
        let mut dice = Dice::apart(seed, 77);
        let mut manifests = Vec::new();
        for number in 1..=3 {
            let manifest = pushed(&world, &client, &record, story, (number, &mut dice)).await;
            manifests.push(manifest);
            world.executor.sleep(dice.millis(20, 400)).await;
            if number > 1 {
                if story.harm {
                    let (stage, victim) = (world.clone(), dice.below(3) as usize);
                    let length = dice.millis(100, 900);
                    let pausing = async move { stage.pause(victim, length).await };
                    world.executor.spawn(world.executor.process(), Box::pin(pausing));
                }
                swap(&world, &client, &record, number - 1, manifests[number as usize - 2]).await;
                world.executor.sleep(dice.millis(20, 400)).await;
                swap(&world, &client, &record, number, manifest).await;
                world.executor.sleep(dice.millis(20, 400)).await;
            }
        }
        record.stop.store(true, Ordering::Relaxed);
        world.executor.sleep(Duration::from_secs(6)).await;
    });
    kept
}

/// One push, from its wish until it is served.
async fn pushed(
    world: &Arc<World>,
    client: &Client,
    record: &Record,
    story: Story,
    (number, dice): (u64, &mut Dice),
) -> ManifestDigest {
    let (source, mut manifest) = match story.upon {
        Upon::Nothing => built(world, number).await,
        upon => increments::built(world, number, (upon, story.plant)).await,
    };
    if number > 1 && story.plant == Plant::TakesLies {
        manifest = built_as(world, number, 9).await.1;
    }
    let late = number > 1 && (story.harm || story.plant == Plant::SwapsEarly);
    let away = late.then(|| world.sources.take(&source)).flatten();
    push(world, client, record, (number, &source), manifest).await;
    if number > 1 && story.plant == Plant::SwapsEarly {
        let next = document(world).await;
        let next = next.with_artifacts("words", |store| store.swap(ArtifactNumber(number)));
        let published = documents::publish_cluster(&world.service.open(), &next.expect("it is listed")).await;
        published.expect("nobody else publishes");
        world.executor.sleep(Duration::from_millis(300)).await;
    }
    let lags = number > 1 && (story.harm || story.plant == Plant::AbsentForNotHere);
    let victim = dice.below(3) as usize;
    if lags && story.upon == Upon::Nothing {
        world.kill(victim, Duration::from_millis(5), Duration::from_millis(200));
    }
    if let Some(disk) = away {
        world.executor.sleep(dice.millis(50, 1500)).await;
        world.sources.put(&source, disk);
    }
    if lags && story.upon != Upon::Nothing {
        // While it fetches and merges, or a little later.
        world.executor.sleep(Duration::from_micros(200 * dice.below(4000))).await;
        world.cut_power(victim, number, Duration::from_millis(5), Duration::from_millis(200));
    }
    await_served(world, record, number, manifest).await;
    if lags {
        // The source is away when the node is back: it does not hold what is served.
        let disk = world.sources.take(&source);
        world.start(victim);
        world.executor.sleep(dice.millis(300, 1500)).await;
        world.sources.put(&source, disk.expect("it was there"));
    }
    let open = |position: usize| {
        let view = world.node(position)?.replica().view().get();
        view.read_only("words")?.held().open(ArtifactNumber(number), manifest)
    };
    until(world, "all hold it", || (0..3).all(|position| open(position).is_some())).await;
    if story.upon != Upon::Nothing && number > 1 {
        let fetched = increments::fetched(client, number).await;
        record.fetched.lock().extend(fetched);
    }
    manifest
}

#[test]
fn pushes_swaps_and_rollbacks_mix_no_artifacts_and_fail_no_reads() {
    for seed in 1..=6 {
        let record = told(seed, Story::default());
        let (reads, swaps) = (record.reads.lock(), record.swaps.lock());
        assert_eq!(check(&reads, &swaps), [], "seed {seed}");
        assert_eq!(*record.failed.lock(), Vec::<String>::new(), "seed {seed}");
        let seen = |number| reads.iter().filter(|read| read.numbers[0] == Some(number)).count();
        assert!(seen(1) > 3 && seen(2) > 3 && seen(3) > 3, "seed {seed}: readers see all of them");
    }
}

#[test]
fn pushes_swaps_and_rollbacks_mix_no_artifacts_under_faults() {
    for seed in 101..=110 {
        let record = told(seed, Story { harm: true, ..Story::default() });
        let (reads, swaps) = (record.reads.lock(), record.swaps.lock());
        assert_eq!(check(&reads, &swaps), [], "seed {seed}");
        assert!(reads.iter().any(|read| read.numbers[0] == Some(3)), "seed {seed}: the last one is read");
    }
}

/// A source has another artifact than the one that was ordered: that is not served, and what is stays.
#[test]
fn an_artifact_other_than_the_ordered_one_never_goes_live() {
    play(setup(7), |world, client| async move {
        let record = Record::default();
        let conducting = conduct(world.clone(), 7, record.clone());
        world.executor.spawn(world.executor.process(), Box::pin(conducting));
        order(&world, &client, ArtifactOrder::Create { store: name(), replicas: 3, kept: None }).await;
        let (source, manifest) = built(&world, 1).await;
        let true_one = world.sources.take(&source).expect("it was put there");
        built_as(&world, 1, 9).await;
        push(&world, &client, &record, (1, &source), manifest).await;
        world.executor.sleep(Duration::from_secs(20)).await;
        assert_eq!(served(&world).await, None);
        world.sources.put(&source, true_one);
        await_served(&world, &record, 1, manifest).await;
        record.stop.store(true, Ordering::Relaxed);
        world.executor.sleep(Duration::from_secs(4)).await;
    });
}

/// Some seed convicts a planted bug.
fn convicts(plant: Plant) -> bool {
    (1..=8).any(|seed| {
        let record = told(seed, Story { plant, ..Story::default() });
        let (reads, swaps) = (record.reads.lock(), record.swaps.lock());
        !check(&reads, &swaps).is_empty()
    })
}

#[test]
fn a_replica_that_answers_from_what_it_serves_is_convicted() {
    assert!(convicts(Plant::AnswersFromServed));
}

#[test]
fn a_multi_get_that_restarts_only_in_part_is_convicted() {
    assert!(convicts(Plant::BeginsInParts));
}

#[test]
fn a_replica_that_says_absent_for_what_it_does_not_hold_is_convicted() {
    assert!(convicts(Plant::AbsentForNotHere));
}

#[test]
fn a_digest_that_is_not_compared_is_convicted() {
    assert!(convicts(Plant::TakesLies));
}

/// Replicas refuse what they do not hold, so nothing is mixed; but requests fail.
#[test]
fn a_swap_before_anything_is_staged_fails_requests() {
    let record = told(1, Story { plant: Plant::SwapsEarly, ..Story::default() });
    assert!(!record.failed.lock().is_empty());
}
