//! The last word on a run's artifacts: with all faults healed and all sources sound, every push comes to an end, nodes hold
//! what they owe and no more, and every key of what is served is there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coordination::documents;
use model::readonly::Standing;
use model::{Cluster, ListedArtifact, Moment};
use runtime::Disk;
use storage::readonly::Manifest;

use super::{Book, Owed, STORE, chunk_directory, chunks_of, owed, reading};
use crate::check::Violation;
use crate::cluster::World;

/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long the last reader tries.
const READ_RECOVERY: Duration = Duration::from_secs(20);

/// Waits until nothing is left to do, and reads every key; says what never came to be.
pub async fn end(world: &Arc<World>, give_up: Moment) -> Vec<Violation> {
    let violation = |detail: String| vec![Violation { invariant: 10, detail }];
    let cluster = loop {
        let Ok(Some(cluster)) = documents::read_cluster(&world.service.open()).await else {
            return violation("the cluster document cannot be read at the end".to_owned());
        };
        if cluster.read_only(STORE).is_none() {
            // The user never got as far.
            return Vec::new();
        }
        match world.left_of_artifacts(&cluster) {
            None => break cluster,
            Some(left) if world.executor.now() > give_up => return violation(left),
            Some(_) => world.executor.sleep(LOOK_AGAIN).await,
        }
    };
    let Some(served) = cluster.read_only(STORE).and_then(|store| store.served()) else { return Vec::new() };
    let keys = world.artifacts.keys(served.number.0);
    let give_up = world.executor.now().after(READ_RECOVERY);
    loop {
        match reading::read_all(world, keys.clone()).await {
            Ok(asked) => {
                let chosen = Some(served.number.0);
                world.artifacts.told(crate::check::artifacts::Asked { chosen, ..asked });
                return Vec::new();
            }
            Err(error) if world.executor.now() > give_up => {
                return violation(format!("artifact {} cannot be read at the end: {error}", served.number));
            }
            Err(_) => world.executor.sleep(LOOK_AGAIN).await,
        }
    }
}

impl World {
    /// What of the artifacts is not as the document wants it yet.
    fn left_of_artifacts(&self, cluster: &Cluster) -> Option<String> {
        let store = cluster.read_only(STORE)?;
        let pushed = |listed: &&ListedArtifact| listed.standing == Standing::Staging && listed.push.is_some();
        if let Some(push) = store.artifacts.iter().find(pushed) {
            return Some(format!("the push of artifact {} never ends", push.number));
        }
        let owed = owed(cluster, store);
        let manifests: Vec<Manifest> =
            store.artifacts.iter().filter_map(|listed| self.artifacts.manifest(listed.number.0)).collect();
        for machine in self.machines() {
            let own = owed.iter().filter(|owed| owed.lists.iter().any(|list| list.contains(&machine.id())));
            let own: Vec<&Owed> = own.collect();
            let chunks = manifests.iter().flat_map(|manifest| {
                own.iter()
                    .flat_map(|owed| chunks_of(manifest, owed.tokens))
                    .map(|chunk| chunk.digest.to_string())
            });
            let wanted: BTreeSet<String> = chunks.collect();
            let here: BTreeSet<String> =
                machine.disk().list(&chunk_directory()).unwrap_or_default().into_iter().collect();
            if let Some(chunk) = wanted.difference(&here).next() {
                return Some(format!("{} never has {chunk}, which it owes", machine.id()));
            }
            if let Some(file) = here.difference(&wanted).next() {
                return Some(format!("{} keeps {file}, which it does not owe", machine.id()));
            }
        }
        None
    }
}

impl Book {
    /// The keys of an artifact.
    fn keys(&self, number: u64) -> Vec<Bytes> {
        let state = self.state.lock();
        state.built.get(&number).map(|built| built.table.keys().cloned().collect()).unwrap_or_default()
    }
}
