//! `tontine artifact swap`, `rollback`, `delete` and `abort`: what a read-only store lists and serves.
//!
//! Each is an order: the node that is asked keeps it, and a headmaster makes the change of the cluster document.

use std::process::ExitCode;

use client::Client;
use model::ArtifactOrder;
use model::{ArtifactNumber, Cluster, ReadOnlyStore, StoreName};
use serde_json::{Value as Json, json};

use super::push_arguments::{OfStore, OneArtifact, RollbackArguments, SwapArguments};
use super::told::{adopted, behind_text};
use crate::context::CliContext;
use crate::failure::CliError;
use crate::orders;
use crate::output::{print, program};

/// The read-only store of this name.
pub(super) fn store_of<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a ReadOnlyStore, CliError> {
    cluster.read_only(name).ok_or_else(|| {
        let what = match cluster.store(name) {
            Some(_) => format!("store {name} takes writes and has no artifacts"),
            None => format!("the cluster has no store {name}"),
        };
        CliError::Other(format!(
            "{what}; create a read-only one with `{} store create NAME --read-only`",
            program()
        ))
    })
}

/// Refuses a number of replicas that no slice has: it would be taken for all of them.
pub(super) fn check_replicas(store: &ReadOnlyStore, replicas: Option<u8>) -> Result<(), CliError> {
    match replicas {
        Some(replicas) if replicas > store.replicas => Err(CliError::Usage(format!(
            "--replicas {replicas} is above the {} replicas that store {} has of each slice; leave it out to wait for all",
            store.replicas, store.name
        ))),
        _ => Ok(()),
    }
}

/// Serves a staged or kept artifact.
pub(super) async fn swap(shared: &CliContext, arguments: &SwapArguments) -> Result<ExitCode, CliError> {
    let OneArtifact { store, number, .. } = &arguments.artifact;
    let client = shared.client().await?;
    let cluster = client.cluster();
    let found = store_of(&cluster, store)?;
    check_replicas(found, arguments.replicas)?;
    let (name, number) = (found.name.clone(), ArtifactNumber(*number));
    found.swap(number)?;
    let order = ArtifactOrder::Swap { store: name, number, replicas: arguments.replicas, first: false };
    carry_out(shared, &client, (&order, found, number), arguments.artifact.dry_run, "serve").await
}

/// Serves the artifact from before the served one.
pub(super) async fn rollback(
    shared: &CliContext,
    arguments: &RollbackArguments,
) -> Result<ExitCode, CliError> {
    let RollbackArguments { of: OfStore { store, dry_run }, replicas } = arguments;
    let client = shared.client().await?;
    let cluster = client.cluster();
    let found = store_of(&cluster, store)?;
    check_replicas(found, *replicas)?;
    let number = found.behind()?;
    let order = ArtifactOrder::Rollback { store: found.name.clone(), replicas: *replicas };
    carry_out(shared, &client, (&order, found, number), *dry_run, "serve").await
}

/// Forgets an artifact that is not served.
pub(super) async fn forget(
    shared: &CliContext,
    arguments: &OneArtifact,
    aborts: bool,
) -> Result<ExitCode, CliError> {
    let OneArtifact { store, number, dry_run } = arguments;
    let client = shared.client().await?;
    let cluster = client.cluster();
    let found = store_of(&cluster, store)?;
    let (name, number) = (found.name.clone(), ArtifactNumber(*number));
    let (order, judged) = match aborts {
        true => (ArtifactOrder::Abort { store: name, number }, found.abort(number)),
        false => (ArtifactOrder::Delete { store: name, number }, found.delete(number)),
    };
    judged?;
    carry_out(shared, &client, (&order, found, number), *dry_run, "forget").await
}

async fn carry_out(
    shared: &CliContext,
    client: &Client,
    (order, before, number): (&ArtifactOrder, &ReadOnlyStore, ArtifactNumber),
    dry_run: bool,
    verb: &str,
) -> Result<ExitCode, CliError> {
    let name = &before.name;
    let (generation, behind) = match dry_run {
        true => (client.cluster().generation, Vec::new()),
        false => {
            let generation = orders::artifacts(client, order).await?;
            (generation, adopted(client, generation).await)
        }
    };
    let served = before.served().map(|artifact| artifact.number);
    let document = json!({ "store": name, "number": number, "served_before": served, "generation": generation,
        "dry_run": dry_run, "nodes_behind": behind });
    print(shared.format(), &document, || {
        let instead = match served {
            Some(served) if verb == "serve" => format!(" instead of {served}"),
            _ => String::new(),
        };
        match dry_run {
            true => format!("would {verb} artifact {number} of store {name}{instead}"),
            false => format!(
                "{verb}s artifact {number} of store {name}{instead} now; to see all, run `{} artifact list {name}`{}",
                program(),
                behind_text(&behind)
            ),
        }
    });
    Ok(ExitCode::SUCCESS)
}

/// Keeps this many artifacts beside the served one.
pub(crate) async fn keep(
    shared: &CliContext,
    store: &str,
    kept: u8,
    dry_run: bool,
) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let cluster = client.cluster();
    let found = store_of(&cluster, store)?;
    found.keep(kept)?;
    let (generation, behind) = match dry_run {
        true => (cluster.generation, Vec::new()),
        false => {
            let order = ArtifactOrder::Keep { store: found.name.clone(), kept };
            let generation = orders::artifacts(&client, &order).await?;
            (generation, adopted(&client, generation).await)
        }
    };
    let before = found.kept.unwrap_or(1);
    let document = json!({ "store": store, "kept": kept, "kept_before": before, "generation": generation,
        "dry_run": dry_run, "nodes_behind": behind });
    print(shared.format(), &document, || {
        let verb = if dry_run { "would keep" } else { "keeps" };
        format!(
            "{verb} {kept} artifacts of store {store} beside the served one, instead of {before}, from the next swap on; to \
             see them, run `{} artifact list {store}`{}",
            program(),
            behind_text(&behind)
        )
    });
    Ok(ExitCode::SUCCESS)
}

/// A read-only store that was created.
pub(crate) async fn create(
    shared: &CliContext,
    client: &Client,
    name: StoreName,
    replicas: u8,
    kept: Option<u8>,
) -> Result<ExitCode, CliError> {
    let order = ArtifactOrder::Create { store: name.clone(), replicas, kept };
    let generation = orders::artifacts(client, &order).await?;
    let behind = adopted(client, generation).await;
    let document: Json = json!({ "store": name, "replicas": replicas, "kept": kept.unwrap_or(1), "read_only": true,
        "generation": generation, "nodes_behind": behind });
    print(shared.format(), &document, || {
        format!(
            "created read-only store {name}: N={replicas}\nput a table into it with `{program} artifact build INPUT -s {name} \
             --to DIRECTORY` and `{program} artifact push DIRECTORY`{}",
            behind_text(&behind),
            program = program()
        )
    });
    Ok(ExitCode::SUCCESS)
}
