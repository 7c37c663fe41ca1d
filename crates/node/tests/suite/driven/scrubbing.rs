//! The scrub of artifacts finds what nobody reads, and has it mended.

use std::time::Duration;

use protocol::report::{ArtifactScrub, ArtifactState};
use runtime::Disk;
use wire::error::ErrorCode;
use wire::messages::{AntiEntropyControl, AntiEntropyOrder, Failure, Request};

use super::keeper::{Built, Keeper, LONG, SOON, bytes_of, empty, parts};

/// Within this time every file is read.
const PERIOD: Duration = Duration::from_secs(600);

/// A node that holds all of an artifact, and its scrub has just begun.
fn scrubbed(one: &Built) -> Keeper {
    let stores = vec![one.served(&empty("words"))];
    let keeper = Keeper::configured(stores, &[one], |config| config.repair.antientropy.scrub_period = PERIOD);
    keeper.until_whole();
    keeper
}

fn scrub(keeper: &Keeper) -> ArtifactScrub {
    keeper.told().scrub
}

/// Kinds of events that have this beginning.
fn events(keeper: &Keeper, beginning: &str) -> Vec<String> {
    let kinds = keeper.node.events().after(0, 1000).into_iter().map(|event| event.event.kind().to_owned());
    kinds.filter(|kind| kind.starts_with(beginning)).collect()
}

/// What is at a path of the node's disk.
fn is_sound(keeper: &Keeper, one: &Built, chunk: usize) -> bool {
    let source = one.disk.contents(&storage::artifacts::chunk_path(one.manifest.chunks[chunk].digest));
    source.is_some() && keeper.home.disk.contents(&keeper.path(one, chunk)) == source
}

fn order(keeper: &Keeper, store: Option<&str>, order: AntiEntropyOrder) -> Result<(), Failure> {
    let control = AntiEntropyControl { order, store: store.map(str::to_owned), partition: None };
    let request = Request::AntiEntropyControl(control);
    keeper.home.stage.run(keeper.node.antientropy().clone().answer(request)).map(|_| ())
}

#[test]
fn damage_in_any_part_of_an_unread_chunk_is_found_and_mended() {
    let one = Built::new("words", 1);
    for part in 0..4 {
        let keeper = scrubbed(&one);
        let before = keeper.fetched();
        let damaged = parts(&one, 2)[part].clone();
        keeper.flip(&one, 2, damaged.start..damaged.start + 1);
        keeper.pass(PERIOD + LONG);
        assert!(is_sound(&keeper, &one, 2) && keeper.holds(&one), "part {part}: {:#?}", keeper.told());
        assert_eq!(keeper.fetched() - before, bytes_of(&one, &[2]), "part {part}: it came once");
        let fetching = keeper.told().fetching;
        assert_eq!((fetching.chunks_corrupt, fetching.chunks_corrupt_now), (1, 0));
        assert_eq!(scrub(&keeper).damaged, 1);
        assert_eq!(events(&keeper, "artifact-scrub"), ["artifact-scrub-found"], "part {part}");
        assert!(events(&keeper, "artifact-corrupt").is_empty(), "it is told once");
        assert_eq!(events(&keeper, "artifacts-scrubbed").len(), 1);
    }
}

#[test]
fn a_chunk_that_the_device_cannot_read_for_the_scrub_is_fetched_again() {
    use runtime::disk::simulated::{DiskOperation, Fault};
    let one = Built::new("words", 1);
    let keeper = scrubbed(&one);
    let before = keeper.fetched();
    let path_part = keeper.path(&one, 1);
    keeper.home.disk.inject(Fault { path_part, ..Fault::next(DiskOperation::Read, 1) });
    keeper.pass(PERIOD + LONG);
    assert!(keeper.holds(&one));
    assert_eq!(keeper.fetched() - before, bytes_of(&one, &[1]));
}

#[test]
fn a_damaged_manifest_is_written_again_without_any_source() {
    let one = Built::new("words", 1);
    let keeper = scrubbed(&one);
    keeper.take(&one);
    let path = format!("artifacts/words/1-{}", one.digest());
    let sound = keeper.home.disk.contents(&path).unwrap();
    assert!(keeper.home.disk.flip_bit(&path, 20, 1));
    keeper.pass(PERIOD + LONG);
    assert!(keeper.home.disk.contents(&path) == Some(sound) && keeper.holds(&one));
    assert_eq!(scrub(&keeper).damaged, 1);
}

#[test]
fn a_pass_takes_its_period_and_leaves_sound_files_alone() {
    let one = Built::new("words", 1);
    let keeper = scrubbed(&one);
    let files = scrub(&keeper).files;
    assert_eq!(files, 5, "four chunks and a manifest");
    keeper.pass(PERIOD / 2);
    let done = scrub(&keeper).files_done;
    assert!((1..=3).contains(&done) && scrub(&keeper).seconds_ago.is_none(), "{done} files");
    keeper.pass(PERIOD / 2 + SOON);
    let told = scrub(&keeper);
    assert_eq!((told.passes, told.damaged, told.files_done), (1, 0, 0));
    assert!(told.seconds_ago.is_some_and(|seconds| seconds <= SOON.as_secs()), "{told:?}");
    assert!(keeper.holds(&one) && keeper.told().fetching.chunks_corrupt == 0);
}

/// An operator who has a bad disk does not wait for a week.
#[test]
fn an_order_makes_the_scrub_read_all_files_or_those_of_one_store_now() {
    let (one, other) = (Built::new("words", 1), Built::new("other", 1));
    let stores = vec![one.served(&empty("words")), other.served(&empty("other")), empty("nowhere")];
    let keeper = Keeper::whole(stores, &[&one, &other]);
    // Where nothing is to be read the end is told as well.
    assert_eq!(order(&keeper, Some("nowhere"), AntiEntropyOrder::Scrub), Ok(()));
    keeper.pass(SOON);
    assert_eq!(events(&keeper, "artifacts-scrubbed").len(), 1);
    keeper.flip(&one, 3, 10..11);
    keeper.flip(&other, 0, 10..11);
    assert_eq!(order(&keeper, Some("words"), AntiEntropyOrder::Scrub), Ok(()));
    keeper.pass(SOON);
    assert!(is_sound(&keeper, &one, 3) && !is_sound(&keeper, &other, 0));
    assert_eq!((scrub(&keeper).passes, scrub(&keeper).ordered), (0, false));
    assert!(scrub(&keeper).seconds_ago.is_none(), "not all was read: {:#?}", keeper.told());
    assert_eq!(order(&keeper, None, AntiEntropyOrder::Scrub), Ok(()));
    keeper.pass(SOON);
    assert!(is_sound(&keeper, &other, 0) && keeper.holds(&one) && keeper.holds(&other));
    assert_eq!((scrub(&keeper).damaged, scrub(&keeper).passes), (2, 1));
    let compared = order(&keeper, Some("words"), AntiEntropyOrder::Start).unwrap_err();
    assert_eq!(compared.code, ErrorCode::ReadOnly);
    assert_eq!(
        order(&keeper, Some("nothing"), AntiEntropyOrder::Scrub).unwrap_err().code,
        ErrorCode::UnknownStore
    );
}

/// The mappings of what is gone live on, so each pass looks for it again: once made the scrub, and the looks, busy for good.
#[test]
fn missing_files_without_a_source_do_not_keep_the_scrub_busy() {
    let one = Built::new("words", 1);
    let keeper = scrubbed(&one);
    keeper.take(&one);
    for chunk in 0..one.manifest.chunks.len() {
        keeper.home.disk.remove(&keeper.path(&one, chunk)).unwrap();
    }
    keeper.home.disk.remove(&format!("artifacts/words/1-{}", one.digest())).unwrap();
    keeper.pass(2 * PERIOD);
    let passes = scrub(&keeper).passes;
    assert!(passes <= 2, "{passes} passes over nothing in two periods");
    assert_eq!(scrub(&keeper).damaged, 0);
}

/// It was once told staged until its turn to be fetched came.
#[test]
fn files_deleted_by_hand_are_reported_for_every_artifact_before_any_fetch() {
    let (one, two) = (Built::new("words", 1), Built::new("words", 2));
    let keeper = Keeper::whole(vec![two.served(&one.served(&empty("words")))], &[&one, &two]);
    keeper.take(&one);
    keeper.take(&two);
    keeper.home.disk.remove(&keeper.path(&one, 0)).unwrap();
    keeper.home.disk.remove(&keeper.path(&two, 0)).unwrap();
    keeper.home.stage.until(|| keeper.told_of(&two).state != ArtifactState::Staged);
    let kept = keeper.told_of(&one);
    assert!(kept.state != ArtifactState::Staged && kept.whole_under.0 == 0, "{kept:?}");
    assert_eq!((kept.chunks, kept.chunks_total), (3, 4));
}
