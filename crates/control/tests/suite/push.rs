//! Pushes are carried out by whichever process holds the office.

use std::time::Duration;

use control::headmaster::office::Office;
use model::artifacts::{Push, Standing};
use model::{ArtifactNumber, ManifestDigest, NodeId, ReadOnlyStore, StoreName, WallMillis};
use runtime::Clock;

use super::played::{World, publish, settle, turn};

const FIRST: ArtifactNumber = ArtifactNumber(1);
const SECOND: ArtifactNumber = ArtifactNumber(2);

async fn wish(world: &World, number: ArtifactNumber, push: &Push) {
    publish(world, |cluster| {
        let store = &mut cluster.read_only[0];
        *store = store.push(number, ManifestDigest([number.0 as u8; 16]), "file:///words", push).unwrap();
    })
    .await;
}

async fn store(world: &World) -> ReadOnlyStore {
    world.cluster().await.read_only("words").unwrap().clone()
}

/// Three nodes, a read-only store, and a headmaster.
async fn three() -> (World, Office) {
    let world = World::of(3).await;
    let mut office = world.office();
    settle(&mut office).await;
    publish(&world, |cluster| {
        cluster.read_only = vec![ReadOnlyStore::new(StoreName::new("words").unwrap(), 3)];
    })
    .await;
    (world, office)
}

#[tokio::test]
async fn a_push_goes_live_when_the_last_node_holds_it_whoever_is_headmaster_then() {
    let (world, mut office) = three().await;
    world.nodes.lacking.lock().unwrap().insert(NodeId(3));
    wish(&world, FIRST, &Push::default()).await;
    settle(&mut office).await;
    assert_eq!(store(&world).await.served(), None, "n3 lacks it");
    drop(office);
    world.nodes.lacking.lock().unwrap().clear();
    // Each turn is the first of another process.
    while turn(&mut world.office()).await {}
    assert_eq!(store(&world).await.served().unwrap().number, FIRST);
}

#[tokio::test]
async fn a_push_with_a_number_of_replicas_does_not_wait_for_the_others() {
    let (world, mut office) = three().await;
    world.nodes.lacking.lock().unwrap().extend([NodeId(2), NodeId(3)]);
    wish(&world, FIRST, &Push { replicas: Some(2), ..Push::default() }).await;
    settle(&mut office).await;
    assert_eq!(store(&world).await.served(), None);
    wish(&world, FIRST, &Push { replicas: Some(1), ..Push::default() }).await;
    settle(&mut office).await;
    assert_eq!(store(&world).await.served().unwrap().number, FIRST);
}

#[tokio::test]
async fn a_swap_that_was_overtaken_is_judged_anew_before_it_is_published_again() {
    let (world, mut office) = three().await;
    wish(&world, FIRST, &Push::default()).await;
    let mut other = world.cluster().await;
    other.generation.0 += 1;
    *world.nodes.overtaking.lock().unwrap() = Some((world.session.clone(), other, [NodeId(3)].into()));
    settle(&mut office).await;
    assert!(world.nodes.overtaking.lock().unwrap().is_none());
    assert_eq!(store(&world).await.served(), None, "n3 lacks it by the document that is there now");
    world.nodes.lacking.lock().unwrap().clear();
    settle(&mut office).await;
    assert_eq!(store(&world).await.served().unwrap().number, FIRST);
}

#[tokio::test]
async fn a_push_whose_time_is_over_is_forgotten_and_what_was_served_stays_served() {
    let (world, mut office) = three().await;
    wish(&world, FIRST, &Push::default()).await;
    settle(&mut office).await;
    world.nodes.lacking.lock().unwrap().insert(NodeId(1));
    let abort_at = Some(WallMillis(world.clock.wall().0 + 5_000));
    wish(&world, SECOND, &Push { abort_at, ..Push::default() }).await;
    settle(&mut office).await;
    assert_eq!(store(&world).await.artifact(SECOND).unwrap().standing, Standing::Staging);
    world.clock.sleep_until(world.clock.now().after(Duration::from_secs(6))).await;
    settle(&mut office).await;
    let store = store(&world).await;
    assert_eq!((store.artifact(SECOND), store.newest), (None, SECOND));
    assert_eq!(store.served().unwrap().number, FIRST);
}

#[tokio::test]
async fn no_headmaster_goes_on_with_a_push_that_was_rolled_back() {
    let (world, mut office) = three().await;
    for number in [FIRST, SECOND] {
        wish(&world, number, &Push::default()).await;
        settle(&mut office).await;
    }
    publish(&world, |cluster| cluster.read_only[0] = cluster.read_only[0].swap(FIRST).unwrap()).await;
    settle(&mut world.office()).await;
    assert_eq!(store(&world).await.served().unwrap().number, FIRST);
}
