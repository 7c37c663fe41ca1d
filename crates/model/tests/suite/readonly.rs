//! Read-only stores in the cluster document.

use model::readonly::{ArtifactError, Standing};
use model::{
    ArtifactNumber, ArtifactsError, Cluster, ClusterError, CreateStoreError, ManifestDigest, Node, NodeId,
    ReadOnlyStore, Ring, StoreName, Zone,
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
    assert_eq!(
        again,
        Err(ArtifactError::NotGreater { number: ArtifactNumber(5), newest: ArtifactNumber(5) })
    );
}

#[test]
fn what_is_served_is_neither_deleted_nor_aborted() {
    let store = store(&[1, 2]).swap(ArtifactNumber(1)).unwrap().swap(ArtifactNumber(2)).unwrap();
    let (kept, served) = (ArtifactNumber(1), ArtifactNumber(2));
    assert_eq!(store.delete(served), Err(ArtifactError::Served { number: served }));
    assert_eq!(store.swap(served), Err(ArtifactError::Served { number: served }));
    assert_eq!(store.abort(served), Err(ArtifactError::NotStaging { number: served }));
    assert_eq!(store.abort(kept), Err(ArtifactError::NotStaging { number: kept }));
    let deleted = store.delete(kept).unwrap();
    deleted.check().unwrap();
    assert_eq!(deleted.behind(), Err(ArtifactError::NothingBehind { store: name() }));
}

#[test]
fn a_store_lists_at_most_eight_artifacts_with_sources_of_some_length() {
    let full = store(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(full.stage(ArtifactNumber(9), digest(9), "file:///words"), Err(ArtifactError::TooMany));
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
    refused(&|store| store.artifacts.reverse());
    refused(&|store| store.newest = ArtifactNumber(1));
    refused(&|store| store.artifacts[1].standing = Standing::Served);
    refused(&|store| store.served_before = Some(ArtifactNumber(2)));
    refused(&|store| store.artifacts[0].source.clear());
}
