//! What a newer document has done to artifacts, as events.

use model::artifacts::Standing;
use model::{Cluster, ListedArtifact, ReadOnlyStore};

use crate::events::Event;

/// The events of going from one document to a later one. A node may have missed some in between.
pub(super) fn told(before: &Cluster, now: &Cluster) -> Vec<Event> {
    let known = |store: &ReadOnlyStore| before.read_only(store.name.as_str()).cloned();
    let stores = now.read_only.iter().filter_map(|store| Some((known(store)?, store)));
    stores.flat_map(|(before, store)| of_store(&before, store)).collect()
}

fn of_store(before: &ReadOnlyStore, now: &ReadOnlyStore) -> Vec<Event> {
    let served = |store: &ReadOnlyStore| store.served().map(|artifact| artifact.number.0);
    let swap = match (served(before), served(now)) {
        (Some(instead_of), Some(number)) if number < instead_of => {
            Some(Event::ArtifactRolledBack { store: now.name.to_string(), number, instead_of })
        }
        (was, Some(number)) if was != Some(number) => {
            Some(Event::ArtifactServed { store: now.name.to_string(), number })
        }
        _ => None,
    };
    let is_aborted = |artifact: &&ListedArtifact| {
        artifact.standing == Standing::Staging && now.artifact(artifact.number).is_none()
    };
    let aborted = before
        .artifacts
        .iter()
        .filter(is_aborted)
        .map(|artifact| Event::ArtifactAborted { store: now.name.to_string(), number: artifact.number.0 });
    swap.into_iter().chain(aborted).collect()
}
