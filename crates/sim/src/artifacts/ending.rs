//! The last word on a run's artifacts: with all faults healed and all sources sound, every push comes to an end, nodes hold
//! what they owe and no more, and every key of what is served is there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordination::documents;
use model::artifacts::Standing;
use model::{Cluster, ListedArtifact, Moment};
use runtime::Disk;
use runtime::disk::simulated::SimulatedDisk;
use storage::artifacts::{ChunkEntry, chunk_path};

use super::reading;
use crate::book::{Owed, STORE, chunk_directory, chunk_file, chunks_of, manifest_file, owed};
use crate::check::Violation;
use crate::cluster::World;
use crate::swarm::Fault;

/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long the last reader tries.
const READ_RECOVERY: Duration = Duration::from_secs(20);

/// Waits until nothing is left to do, and reads every key; says what never came to be.
pub async fn end(world: &Arc<World>, give_up: Moment) -> Vec<Violation> {
    let violation = |detail: String| vec![Violation { invariant: 10, about: None, detail }];
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
                world.artifacts.told(crate::check::artifacts::ReadAsked { chosen, ..asked });
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
        for (position, machine) in self.machines().iter().enumerate() {
            let owns = |owed: &&Owed| owed.lists.iter().any(|list| list.contains(&machine.id()));
            let own: Vec<&Owed> = owed.iter().filter(owns).collect();
            let mut wanted = BTreeSet::new();
            for listed in &store.artifacts {
                let Some((disk, manifest)) = self.artifacts.source(listed.number.0) else { continue };
                let touches = |chunk: &&ChunkEntry| {
                    own.iter().any(|owed| chunks_of(&manifest, owed.tokens).any(|other| other == *chunk))
                };
                let chunks: Vec<&ChunkEntry> = manifest.chunks.iter().filter(touches).collect();
                let named = format!("{} of artifact {}", machine.id(), listed.number);
                if let Some(chunk) = chunks.iter().find(|chunk| self.differs(machine.disk(), &disk, chunk)) {
                    return Some(format!(
                        "{named} never has {} as it was built, which it owes",
                        chunk.digest
                    ));
                }
                let kept = machine.disk().contents(&manifest_file(listed));
                if !chunks.is_empty() && !self.flips_unseen() && kept != Some(manifest.encode()) {
                    return Some(format!("{named} never has its manifest as it was built"));
                }
                if !self.reads(position, cluster, listed, &chunks) {
                    return Some(format!("{named} never has open what it owes"));
                }
                wanted.extend(chunks.iter().map(|chunk| chunk.digest.to_string()));
            }
            let here: BTreeSet<String> =
                machine.disk().list(&chunk_directory()).unwrap_or_default().into_iter().collect();
            if let Some(file) = here.difference(&wanted).next() {
                return Some(format!("{} keeps {file}, which it does not owe", machine.id()));
            }
        }
        None
    }

    /// Whether bits flip that nobody finds.
    fn flips_unseen(&self) -> bool {
        self.setup.faults.contains(&Fault::FlippedBits) && !self.setup.scrubs_artifacts()
    }

    /// Whether what a node stores of a chunk is not what was built. Where bits flip that no get has met, and there is no
    /// scrub, only the length is compared.
    fn differs(&self, here: &SimulatedDisk, source: &SimulatedDisk, chunk: &ChunkEntry) -> bool {
        let stored = here.contents(&chunk_file(chunk));
        match stored {
            None => true,
            Some(stored) if self.flips_unseen() => stored.len() as u64 != chunk.file_bytes,
            Some(stored) => Some(stored) != source.contents(&chunk_path(chunk.digest)),
        }
    }

    /// Whether a node has these chunks open, and says so of the newest document.
    fn reads(
        &self,
        position: usize,
        cluster: &Cluster,
        listed: &ListedArtifact,
        chunks: &[&ChunkEntry],
    ) -> bool {
        let Some(node) = self.node(position) else { return false };
        let view = node.replica().view().get();
        let open = view.read_only(STORE).and_then(|store| store.held().open(listed.number, listed.manifest));
        open.is_some_and(|open| {
            let each = open.artifact.manifest().chunks.iter().zip(&open.chunks);
            let is_open = each.filter(|(_, open)| **open).map(|(chunk, _)| chunk.digest);
            let is_open: BTreeSet<_> = is_open.collect();
            open.whole_under() == cluster.generation
                && chunks.iter().all(|chunk| is_open.contains(&chunk.digest))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use client::{Client, ClientOptions};
    use model::ArtifactOrder;
    use model::{ArtifactNumber, StoreName};

    use super::super::USER;
    use super::*;
    use crate::dice::Dice;
    use crate::executor::WallClock;
    use crate::network::Conditions;
    use crate::swarm::Setup;

    /// One whose node holds all, when nothing is left to do.
    async fn found_at_the_end(world: &Arc<World>) -> Cluster {
        let cluster = documents::read_cluster(&world.service.open()).await.unwrap().unwrap();
        let left = || world.left_of_artifacts(&cluster);
        while left().is_some() {
            world.executor.sleep(LOOK_AGAIN).await;
        }
        cluster
    }

    async fn order(world: &World, client: &Client, order: ArtifactOrder) {
        while client.order_artifacts(&order).await.is_err() {
            world.executor.sleep(LOOK_AGAIN).await;
        }
    }

    /// The judge once compared the names of files, so whatever was in them passed.
    #[test]
    fn a_chunk_that_is_not_what_was_built_is_found_at_the_end() {
        let mut setup = Setup::ordinary(1);
        (setup.nodes, setup.replicas, setup.faults, setup.harms) = (3, 3, Vec::new(), 0);
        setup.conditions = Conditions::calm();
        let world = World::new(setup);
        let (stage, done, process) =
            (world.clone(), Arc::new(AtomicBool::new(false)), world.executor.process());
        let ended = done.clone();
        let story = async move {
            stage.found().await;
            (0..3).for_each(|position| stage.start(position));
            crate::headmasters::stand_until(&stage, process, stage.executor.now());
            while !stage.all_up() {
                stage.executor.sleep(LOOK_AGAIN).await;
            }
            let ports = stage.ports(USER, process, Arc::new(WallClock::default()));
            let client = Client::connect(&stage.addresses(), ports, ClientOptions::default()).await.unwrap();
            let store = StoreName::new(STORE).unwrap();
            order(&stage, &client, ArtifactOrder::Create { store: store.clone(), replicas: 3, kept: None })
                .await;
            let (source, disk) = stage.artifacts.build(1, &mut Dice::apart(1, 1)).await;
            stage.sources.put(&source, disk);
            let (number, manifest) = (ArtifactNumber(1), stage.artifacts.digest(1));
            order(&stage, &client, ArtifactOrder::Stage { store, number, manifest, source }).await;
            let cluster = found_at_the_end(&stage).await;
            let (_, manifest) = stage.artifacts.source(1).unwrap();
            assert!(stage.machines()[1].disk().flip_bit(&chunk_file(&manifest.chunks[0]), 100, 1));
            let left = stage.left_of_artifacts(&cluster).unwrap_or_default();
            assert!(left.contains("as it was built, which it owes"), "{left}");
            ended.store(true, Ordering::Relaxed);
        };
        world.executor.spawn(process, Box::pin(story));
        let ran = world.executor.run(&done, Moment::default().after(Duration::from_secs(600)));
        world.end();
        ran.unwrap();
    }
}
