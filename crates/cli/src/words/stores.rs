//! Why stores are not created, and why artifacts do not go live.

use model::ArtifactOrder;
use model::artifacts::ArtifactError;
use model::order::{Order, OrderRefusal};
use model::{ArtifactsError, CreateStoreError, NodeId};

use super::names;

/// Why a store was not created.
pub(super) fn not_created(error: &CreateStoreError) -> String {
    match error {
        CreateStoreError::Replicas { .. } => format!(
            "{error}; add nodes with `tontine node add` and give them data with `tontine plan create spread` (on a golden ring \
             `tontine node add` does), or ask for fewer replicas with --consistency"
        ),
        CreateStoreError::Placement(_) => {
            format!("{error}; `tontine store create --help` says what keys and windows may be")
        }
        error => format!("{error}; `tontine store list` shows the stores that there are"),
    }
}

/// Why the artifacts of a store were not changed, and what to do.
pub(super) fn artifact_refused(error: &ArtifactsError) -> String {
    match error {
        ArtifactsError::Artifact(error) => format!("{error}{}", advice(error)),
        ArtifactsError::NoStore { .. } => {
            format!("{error}; create one with `tontine store create NAME --read-only`")
        }
    }
}

fn advice(error: &ArtifactError) -> String {
    match error {
        ArtifactError::NotListed { store, .. } => {
            format!("; to see what it lists, run `tontine artifact list {store}`")
        }
        ArtifactError::NotGreater { .. } => "; build it with a greater one".to_owned(),
        ArtifactError::AnotherManifest { .. } => "; build this one with a greater number".to_owned(),
        ArtifactError::TooMany { store } => format!(
            "; forget one with `tontine artifact delete {store} NUMBER`, and see them with `tontine artifact list {store}`"
        ),
        ArtifactError::Kept { .. } => "; choose another --artifacts-kept".to_owned(),
        ArtifactError::Served { store, .. } => format!(
            "; to serve another one, run `tontine artifact swap {store} NUMBER`, and see them with `tontine artifact list \
             {store}`"
        ),
        ArtifactError::WasServed { store, number } => {
            format!("; to serve it again, run `tontine artifact swap {store} {number}`")
        }
        ArtifactError::Overtaken { store, number, .. } => {
            format!("; to go back to {number}, run `tontine artifact swap {store} {number}`")
        }
        ArtifactError::NotStaging { store, number } => {
            format!("; to forget it, serve another one and run `tontine artifact delete {store} {number}`")
        }
        ArtifactError::NothingBehind { store } => {
            format!("; to see what it keeps, run `tontine artifact list {store}`")
        }
        ArtifactError::Source { .. } => String::new(),
    }
}

/// Why a swap is not judged ready.
pub(super) fn not_staged(order: Option<&Order>, refusal: &OrderRefusal) -> String {
    let OrderRefusal::NotStaged { store, number, slices, slices_total, silent, lacking, held_by } = refusal
    else {
        return refusal.code();
    };
    let named = |nodes: &[NodeId], one: &str, more: &str| {
        let verb = if nodes.len() == 1 { one } else { more };
        (!nodes.is_empty()).then(|| format!("{} {verb}", names(nodes)))
    };
    let who = [named(silent, "does not answer", "do not answer"), named(lacking, "lacks it", "lack it")];
    let command = match order {
        Some(Order::Artifacts { order: ArtifactOrder::Rollback { .. } }) => {
            format!("tontine artifact rollback {store}")
        }
        _ => format!("tontine artifact swap {store} {number}"),
    };
    let go_on = held_by.map_or_else(String::new, |count| {
        format!("; to serve it where {count} of each slice hold it, run `{command} --replicas {count}`")
    });
    format!(
        "artifact {number} of store {store} is not held by enough replicas of {slices} of {slices_total} slices: {}{go_on}; to \
         see how far the nodes are, run `tontine artifact list {store}`",
        who.into_iter().flatten().collect::<Vec<_>>().join(", and ")
    )
}
