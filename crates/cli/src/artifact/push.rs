//! `tontine artifact push`, `stage`, `swap`, `rollback`, `delete` and `abort`: what a read-only store lists and serves.
//!
//! Each is one change of the cluster document, which the node that is asked makes. A push is two: when its command ends
//! in between, the artifact stays staged, and the same command goes on.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use client::{Client, ClientError};
use model::readonly::{Order, Standing};
use model::{ArtifactNumber, Cluster, ManifestDigest, ReadOnlyStore, StoreName};
use serde_json::{Value as Json, json};
use wire::ErrorCode;

use super::list::{Told, adopted, behind_text, told};
use super::push_arguments::{OfStore, OneArtifact, PushArguments, RollbackArguments, SwapArguments};
use super::{directory, opened};
use crate::failure::CliError;
use crate::output::{count, print, program, size};
use crate::shared::Shared;

/// Pause between two looks at the nodes.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Pause between two lines of progress.
const SPEAK_AGAIN: Duration = Duration::from_secs(2);

/// An artifact that is to be pushed.
struct Pushed {
    store: StoreName,
    number: ArtifactNumber,
    manifest: ManifestDigest,
    source: String,
    what: String,
}

/// Reads an artifact's manifest, and names its directory as nodes reach it.
fn pushed(url: &str) -> Result<Pushed, CliError> {
    let (_, manifest) = opened(url)?;
    let place = directory(url)?;
    let place = place.canonicalize().map_err(CliError::io(format!("cannot look at {url}")))?;
    let Some(path) = place.to_str() else {
        return Err(CliError::Usage(format!("the path of {url} is no text, so no document can hold it")));
    };
    Ok(Pushed {
        store: manifest.store.clone(),
        number: ArtifactNumber(manifest.number),
        manifest: ManifestDigest(manifest.digest().0),
        source: format!("file://{path}"),
        what: format!("{}, {}", count(manifest.records(), "record"), size(manifest.file_bytes())),
    })
}

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

/// Stages an artifact: tells the nodes to fetch it, and waits until all have.
pub(super) async fn stage(
    shared: &Shared,
    arguments: &PushArguments,
    swaps: bool,
) -> Result<ExitCode, CliError> {
    let artifact = pushed(&arguments.url)?;
    let client = shared.client().await?;
    let Pushed { store, number, manifest, source, what } = &artifact;
    let cluster = client.cluster();
    let found = store_of(&cluster, store.as_str())?;
    let listed = found.artifact(*number).filter(|listed| listed.manifest == *manifest);
    let word = if swaps { "push" } else { "stage" };
    if listed.is_none() {
        found.stage(*number, *manifest, source).map_err(|error| CliError::Other(error.to_string()))?;
    }
    if arguments.dry_run {
        let next = if swaps { ", and swap to it when they hold it" } else { "" };
        let nodes = count(cluster.nodes.len() as u64, "node");
        let document = json!({ "store": store, "number": number, "manifest": manifest, "source": source,
            "listed": listed.is_some(), "dry_run": true });
        print(shared.format(), &document, || {
            format!(
                "would have {nodes} fetch artifact {number} of store {store} ({what}) from {source}{next}"
            )
        });
        return Ok(ExitCode::SUCCESS);
    }
    if listed.is_none() {
        let (store, source) = (store.clone(), source.clone());
        let order = Order::Stage { store, number: *number, manifest: *manifest, source };
        client.order_artifacts(&order).await?;
    }
    let began = Instant::now();
    let deadline = began + Duration::from_secs(arguments.timeout_s);
    let swapped = match swaps {
        true => {
            let (store, number, replicas) = (store.clone(), *number, arguments.replicas);
            let order = Order::Swap { store, number, replicas, first: true };
            let served = listed.is_some_and(|listed| listed.standing == Standing::Served);
            if !served {
                staged_and_swapped(&client, &order, &artifact, deadline).await?;
            }
            true
        }
        false => {
            wait_until_staged(&client, &artifact, deadline).await?;
            false
        }
    };
    let behind = adopted(&client, client.cluster().generation).await;
    let document = json!({ "store": store, "number": number, "manifest": manifest, "source": source,
        "generation": client.cluster().generation, "served": swapped, "nodes_behind": behind, "seconds": began.elapsed().as_secs_f64() });
    print(shared.format(), &document, || match swapped {
        true => format!(
            "{word}ed artifact {number} of store {store} ({what}): it is served now; to go back, run `{} artifact rollback \
             {store}`{}",
            program(),
            behind_text(&behind)
        ),
        false => format!(
            "{word}d artifact {number} of store {store} ({what}) on all nodes; to serve it, run `{} artifact swap {store} \
             {number}`{}",
            program(),
            behind_text(&behind)
        ),
    });
    Ok(ExitCode::SUCCESS)
}

/// Shows how far the nodes are, from time to time.
struct Speaker {
    spoken: Instant,
    began: Instant,
}

impl Speaker {
    fn new() -> Speaker {
        Speaker { spoken: Instant::now(), began: Instant::now() }
    }

    fn speak(&mut self, artifact: &Pushed, told: &[Told]) {
        if self.spoken.elapsed() < SPEAK_AGAIN {
            return;
        }
        self.spoken = Instant::now();
        let sum = |field: fn(&Told) -> u64| told.iter().map(field).sum::<u64>();
        let (here, total) = (sum(|told| told.bytes), sum(|told| told.bytes_total));
        let rate = sum(|told| told.bytes_fetched) as f64 / self.began.elapsed().as_secs_f64();
        let left = total.saturating_sub(here) as f64 / rate.max(1.0);
        let whole = told.iter().filter(|told| told.is_staged()).count();
        say!(
            "artifact {}: {} of {}, {}/s, {left:.0} s left; {whole} of {} nodes hold it",
            artifact.number,
            size(here),
            size(total),
            size(rate as u64),
            told.len()
        );
        for Told { node, error, .. } in told {
            if let Some(error) = error {
                say!("n{}: {error}", node);
            }
        }
    }
}

/// Asks for the swap until the nodes hold the artifact.
async fn staged_and_swapped(
    client: &Client,
    order: &Order,
    artifact: &Pushed,
    deadline: Instant,
) -> Result<(), CliError> {
    let mut speaker = Speaker::new();
    loop {
        match client.order_artifacts(order).await {
            Ok(_) => return Ok(()),
            Err(ClientError::Failed { code: ErrorCode::NotStaged, detail }) => {
                let told = told(client, artifact.store.as_str(), artifact.number).await;
                if Instant::now() > deadline {
                    return Err(late(artifact, &detail, &told, "push"));
                }
                speaker.speak(artifact, &told);
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn wait_until_staged(client: &Client, artifact: &Pushed, deadline: Instant) -> Result<(), CliError> {
    let mut speaker = Speaker::new();
    loop {
        let told = told(client, artifact.store.as_str(), artifact.number).await;
        if told.iter().all(Told::is_staged) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(late(artifact, "some nodes do not hold it", &told, "stage"));
        }
        speaker.speak(artifact, &told);
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// What is said when the time is over.
fn late(artifact: &Pushed, detail: &str, told: &[Told], verb: &str) -> CliError {
    let why =
        told.iter().find_map(|told| told.error.as_ref().map(|error| format!(" (n{}: {error})", told.node)));
    CliError::Other(format!(
        "{detail}{}. The nodes go on; to see how far they are, run `{program} artifact list {}`, and to go on, run \
         `{program} artifact {verb}` again",
        why.unwrap_or_default(),
        artifact.store,
        program = program(),
    ))
}

/// Serves a staged or kept artifact.
pub(super) async fn swap(shared: &Shared, arguments: &SwapArguments) -> Result<ExitCode, CliError> {
    let OneArtifact { store, number, .. } = &arguments.artifact;
    let client = shared.client().await?;
    let cluster = client.cluster();
    let found = store_of(&cluster, store)?;
    let (name, number) = (found.name.clone(), ArtifactNumber(*number));
    found.swap(number).map_err(|error| CliError::Other(error.to_string()))?;
    let order = Order::Swap { store: name, number, replicas: arguments.replicas, first: false };
    carry_out(shared, &client, (&order, found, number), arguments.artifact.dry_run, "serve").await
}

/// Serves the artifact from before the served one.
pub(super) async fn rollback(shared: &Shared, arguments: &RollbackArguments) -> Result<ExitCode, CliError> {
    let RollbackArguments { of: OfStore { store, dry_run }, replicas } = arguments;
    let client = shared.client().await?;
    let cluster = client.cluster();
    let found = store_of(&cluster, store)?;
    let number = found.behind().map_err(|error| {
        let program = program();
        CliError::Other(format!("{error}; to see what it keeps, run `{program} artifact list {store}`"))
    })?;
    let order = Order::Rollback { store: found.name.clone(), replicas: *replicas };
    carry_out(shared, &client, (&order, found, number), *dry_run, "serve").await
}

/// Forgets an artifact that is not served.
pub(super) async fn forget(
    shared: &Shared,
    arguments: &OneArtifact,
    aborts: bool,
) -> Result<ExitCode, CliError> {
    let OneArtifact { store, number, dry_run } = arguments;
    let client = shared.client().await?;
    let cluster = client.cluster();
    let found = store_of(&cluster, store)?;
    let (name, number) = (found.name.clone(), ArtifactNumber(*number));
    let (order, judged) = match aborts {
        true => (Order::Abort { store: name, number }, found.abort(number)),
        false => (Order::Delete { store: name, number }, found.delete(number)),
    };
    judged.map_err(|error| CliError::Other(error.to_string()))?;
    carry_out(shared, &client, (&order, found, number), *dry_run, "forget").await
}

async fn carry_out(
    shared: &Shared,
    client: &Client,
    (order, before, number): (&Order, &ReadOnlyStore, ArtifactNumber),
    dry_run: bool,
    verb: &str,
) -> Result<ExitCode, CliError> {
    let name = &before.name;
    let (generation, behind) = match dry_run {
        true => (client.cluster().generation, Vec::new()),
        false => {
            let generation = client.order_artifacts(order).await?.generation;
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

/// A read-only store that was created.
pub(crate) async fn create(
    shared: &Shared,
    client: &Client,
    name: StoreName,
    replicas: u8,
) -> Result<ExitCode, CliError> {
    let order = Order::Create { store: name.clone(), replicas };
    let generation = client.order_artifacts(&order).await?.generation;
    let behind = adopted(client, generation).await;
    let document: Json = json!({ "store": name, "replicas": replicas, "read_only": true,
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
