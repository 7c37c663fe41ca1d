//! Read-only stores in the cluster document.

use model::artifacts::{ArtifactError, Push, Standing};
use model::{
    ArtifactNumber, ArtifactsError, Cluster, ClusterError, CreateStoreError, ManifestDigest, Node, NodeId,
    ReadOnlyStore, Ring, StoreName, WallMillis, Zone,
};

fn cluster() -> Cluster {
    let zone = Zone("z".to_owned());
    let node = Node::new(NodeId(1), zone.clone(), "localhost:7001".to_owned(), None);
    Cluster::new("dev", vec![node], Ring::equal_slices(1, &[(NodeId(1), zone)]), Vec::new())
}

fn digest(byte: u8) -> ManifestDigest {
    ManifestDigest([byte; 16])
}

fn name() -> StoreName {
    StoreName::new("words").unwrap()
}

fn store(numbers: &[u64]) -> ReadOnlyStore {
    numbers.iter().fold(ReadOnlyStore::new(name(), 1), |store, &number| {
        store.stage(ArtifactNumber(number), digest(number as u8), "file:///words").unwrap()
    })
}

fn standings(store: &ReadOnlyStore) -> Vec<(u64, Standing)> {
    store.artifacts.iter().map(|artifact| (artifact.number.0, artifact.standing)).collect()
}

/// What a program reads that knows no read-only stores: it passes over them, and writes them again.
#[derive(serde::Serialize, serde::Deserialize)]
struct Older {
    name: String,
    stores: Vec<serde_json::Value>,
    #[serde(flatten)]
    unknown: model::Unknown,
}

#[test]
fn a_read_only_store_survives_its_document_and_an_older_program() {
    let cluster = cluster().with_read_only(name(), 1).unwrap();
    let staged = |store: &ReadOnlyStore| store.stage(ArtifactNumber(7), digest(0xab), "file:///words");
    let cluster = cluster.with_artifacts("words", staged).unwrap();
    let cluster = cluster.with_artifacts("words", |store| store.swap(ArtifactNumber(7))).unwrap();
    let document = serde_json::to_string(&cluster).unwrap();
    let at = document.find("\"read_only\"").unwrap();
    assert_eq!(
        &document[at..],
        r#""read_only":[{"name":"words","replicas":1,"artifacts":[{"number":7,"manifest":"abababababababababababababababab","source":"file:///words","standing":"served"}],"newest":7}]}"#
    );
    assert_eq!(serde_json::from_str::<Cluster>(&document).unwrap(), cluster);
    let older: Older = serde_json::from_str(&document).unwrap();
    assert!(older.stores.is_empty(), "it never takes one for a store that takes writes");
    let written_again = serde_json::to_string(&older).unwrap();
    assert_eq!(serde_json::from_str::<Cluster>(&written_again).unwrap(), cluster);
}

#[test]
fn a_cluster_without_read_only_has_the_document_that_it_had_before() {
    assert!(!serde_json::to_string(&cluster()).unwrap().contains("read_only"));
}

#[test]
fn a_swap_keeps_the_served_one_and_none_but_that() {
    use Standing::{Kept, Served, Staging};
    let one = store(&[1, 2, 3]).swap(ArtifactNumber(1)).unwrap();
    assert_eq!(standings(&one), [(1, Served), (2, Staging), (3, Staging)]);
    assert_eq!(one.behind(), Err(ArtifactError::NothingBehind { store: name() }));
    let two = one.swap(ArtifactNumber(2)).unwrap();
    assert_eq!(standings(&two), [(1, Kept), (2, Served), (3, Staging)]);
    assert_eq!(two.behind(), Ok(ArtifactNumber(1)));
    let back = two.swap(two.behind().unwrap()).unwrap();
    assert_eq!(standings(&back), [(1, Served), (2, Kept), (3, Staging)]);
    assert_eq!(back.behind(), Err(ArtifactError::NothingBehind { store: name() }), "2 is ahead, not behind");
    let forward = back.swap(ArtifactNumber(2)).unwrap();
    assert_eq!(forward, two);
    let three = forward.swap(ArtifactNumber(3)).unwrap();
    assert_eq!(standings(&three), [(2, Kept), (3, Served)], "the second before the served one is let go");
    for store in [one, two, back, three] {
        store.check().unwrap();
    }
}

#[test]
fn numbers_only_grow_also_after_an_artifact_is_gone() {
    let aborted = store(&[5]).abort(ArtifactNumber(5)).unwrap();
    assert_eq!(aborted.artifacts, []);
    let again = aborted.stage(ArtifactNumber(5), digest(1), "file:///words");
    let refused = Err(ArtifactError::NotGreater { number: ArtifactNumber(5), newest: ArtifactNumber(5) });
    assert_eq!(again, refused, "another artifact of that number");
    // The very same one comes back, and only until there is a newer one.
    let back = aborted.stage(ArtifactNumber(5), digest(5), "file:///words").unwrap();
    assert_eq!(back, store(&[5]));
    let document = serde_json::to_string(&aborted).unwrap();
    assert!(document.contains(r#""aborted":{"number":5,"manifest":"0505"#), "{document}");
    assert_eq!(serde_json::from_str::<ReadOnlyStore>(&document).unwrap(), aborted);
    let newer = aborted.stage(ArtifactNumber(6), digest(6), "file:///words").unwrap();
    let refused = Err(ArtifactError::NotGreater { number: ArtifactNumber(5), newest: ArtifactNumber(6) });
    assert_eq!(newer.stage(ArtifactNumber(5), digest(5), "file:///words"), refused);
    // One that was served is not aborted: it was deleted.
    let served = store(&[5, 6]).swap(ArtifactNumber(6)).unwrap().swap(ArtifactNumber(5)).unwrap();
    let deleted = served.delete(ArtifactNumber(6)).unwrap();
    let refused = Err(ArtifactError::NotGreater { number: ArtifactNumber(6), newest: ArtifactNumber(6) });
    assert_eq!(deleted.stage(ArtifactNumber(6), digest(6), "file:///words"), refused);
}

#[test]
fn a_listed_artifact_comes_from_the_source_that_was_named_last() {
    let number = ArtifactNumber(1);
    let listed = store(&[1]);
    let moved = listed.stage(number, digest(1), "file:///elsewhere").unwrap();
    assert_eq!(moved.artifacts[0].source, "file:///elsewhere");
    assert_eq!(moved.stage(number, digest(1), "file:///words").unwrap(), listed, "and back");
    let pushed = listed.push(number, digest(1), "file:///elsewhere", &Push::default()).unwrap();
    assert_eq!(pushed.artifacts[0].source, "file:///elsewhere");
    let served = listed.swap(number).unwrap();
    let served = served.push(number, digest(1), "file:///elsewhere", &Push::default()).unwrap();
    assert_eq!(standings(&served), [(1, Standing::Served)]);
    assert_eq!(served.artifacts[0].source, "file:///elsewhere", "a node that lost its disk fetches it there");
    let another = listed.stage(number, digest(2), "file:///elsewhere");
    assert_eq!(another, Err(ArtifactError::AnotherManifest { number, listed: digest(1) }));
}

#[test]
fn a_push_that_is_asked_for_again_keeps_what_is_not_said_again() {
    let number = ArtifactNumber(1);
    let push = |store: &ReadOnlyStore, replicas, abort_at: Option<u64>| {
        let push = Push { replicas, abort_at: abort_at.map(WallMillis), ..Push::default() };
        store.push(number, digest(1), "file:///words", &push).unwrap()
    };
    let of = |store: &ReadOnlyStore| {
        let push = store.artifacts[0].push.clone().unwrap();
        (push.replicas, push.abort_at.map(|at| at.0))
    };
    let first = push(&store(&[]), Some(2), Some(7_000));
    assert_eq!(push(&first, None, None), first);
    assert_eq!(of(&push(&first, Some(1), None)), (Some(1), Some(7_000)));
    assert_eq!(of(&push(&first, None, Some(9_000))), (Some(2), Some(9_000)));
}

#[test]
fn a_store_keeps_as_many_as_it_is_told_to_and_a_rollback_goes_back_through_them() {
    use Standing::{Kept, Served};
    let swap = |store: ReadOnlyStore, number| store.swap(ArtifactNumber(number)).unwrap();
    let two = store(&[1, 2, 3, 4]).keep(2).unwrap();
    let four = [1, 2, 3, 4].into_iter().fold(two, swap);
    assert_eq!(standings(&four), [(2, Kept), (3, Kept), (4, Served)]);
    let three = swap(four.clone(), four.behind().unwrap().0);
    assert_eq!(standings(&three), [(2, Kept), (3, Served), (4, Kept)]);
    let two = swap(three.clone(), three.behind().unwrap().0);
    assert_eq!(standings(&two), [(2, Served), (3, Kept), (4, Kept)]);
    assert_eq!(two.behind(), Err(ArtifactError::NothingBehind { store: name() }));
    let document = serde_json::to_string(&two).unwrap();
    assert!(document.contains(r#""kept":2"#), "{document}");
    assert_eq!(serde_json::from_str::<ReadOnlyStore>(&document).unwrap(), two);
    // Fewer from the next swap on.
    let fewer = swap(two.keep(1).unwrap(), 4);
    assert_eq!(standings(&fewer), [(2, Kept), (4, Served)]);
    for kept in [0, 7] {
        assert_eq!(store(&[]).keep(kept), Err(ArtifactError::Kept { kept }));
    }
    let full = (1..=7)
        .map(ArtifactNumber)
        .fold(store(&[1, 2, 3, 4, 5, 6, 7]).keep(6).unwrap(), |store, number| store.swap(number).unwrap());
    full.stage(ArtifactNumber(8), digest(8), "file:///words").expect("there is room for the next one");
    full.check().unwrap();
}

#[test]
fn what_is_served_is_neither_deleted_nor_aborted() {
    let store = store(&[1, 2]).swap(ArtifactNumber(1)).unwrap().swap(ArtifactNumber(2)).unwrap();
    let (kept, served) = (ArtifactNumber(1), ArtifactNumber(2));
    assert_eq!(store.delete(served), Err(ArtifactError::Served { store: name(), number: served }));
    assert_eq!(store.swap(served), Err(ArtifactError::Served { store: name(), number: served }));
    assert_eq!(store.abort(served), Err(ArtifactError::NotStaging { store: name(), number: served }));
    assert_eq!(store.abort(kept), Err(ArtifactError::NotStaging { store: name(), number: kept }));
    let deleted = store.delete(kept).unwrap();
    deleted.check().unwrap();
    assert_eq!(deleted.behind(), Err(ArtifactError::NothingBehind { store: name() }));
}

#[test]
fn a_store_lists_at_most_eight_artifacts_with_sources_of_some_length() {
    let full = store(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(
        full.stage(ArtifactNumber(9), digest(9), "file:///words"),
        Err(ArtifactError::TooMany { store: name() })
    );
    let long = "x".repeat(1025);
    let refused = store(&[]).stage(ArtifactNumber(1), digest(1), &long);
    assert_eq!(refused, Err(ArtifactError::Source { bytes: 1025 }));
}

#[test]
fn a_name_belongs_to_one_store_of_either_kind() {
    let cluster = cluster().with_read_only(name(), 1).unwrap();
    assert_eq!(cluster.with_read_only(name(), 1), Err(CreateStoreError::Exists { store: name() }));
    assert_eq!(
        cluster.with_read_only(StoreName::new("more").unwrap(), 2),
        Err(CreateStoreError::Replicas { replicas: 2, listed: 1 })
    );
    let missing = cluster.with_artifacts("carts", |store| Ok(store.clone()));
    assert_eq!(missing, Err(ArtifactsError::NoStore { store: "carts".to_owned() }));
    assert!(cluster.store("words").is_none() && cluster.stores.is_empty());
}

#[test]
fn a_document_that_contradicts_itself_is_refused() {
    let sound = store(&[1, 2]).swap(ArtifactNumber(1)).unwrap();
    let refused = |change: &dyn Fn(&mut ReadOnlyStore)| {
        let mut store = sound.clone();
        change(&mut store);
        let cluster = Cluster { read_only: vec![store], ..cluster() };
        let error = cluster.check().unwrap_err();
        assert!(matches!(error, ClusterError::ReadOnly { .. }), "{error}");
        let document = serde_json::to_vec(&cluster).unwrap();
        assert!(serde_json::from_slice::<Cluster>(&document).is_err());
    };
    refused(&|store| store.replicas = 0);
    refused(&|store| store.kept = Some(0));
    refused(&|store| store.kept = Some(7));
    refused(&|store| store.artifacts.reverse());
    refused(&|store| store.newest = ArtifactNumber(1));
    refused(&|store| store.artifacts[1].standing = Standing::Served);
    refused(&|store| store.served_before = Some(ArtifactNumber(2)));
    refused(&|store| store.artifacts[0].source.clear());
}
