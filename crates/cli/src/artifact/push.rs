//! `tontine artifact push` and `stage`: an artifact is listed, fetched by the nodes, and goes live.
//!
//! A push is a wish in the cluster document, which a headmaster carries out; the command writes it and watches. So its end
//! ends nothing, and the same command watches again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use client::Client;
use model::artifacts::{ArtifactOrder, Push, Standing};
use model::{ArtifactNumber, Cluster, Generation, ManifestDigest, ReadOnlyStore, StoreName};
use serde_json::json;
use storage::artifacts::Manifest;

use super::opened;
use super::place::url_of;
use super::push_arguments::{PushArguments, StageArguments};
use super::speaking::{Awaited, Speaker, owned};
use super::told::{ArtifactTold, adopted, behind_text, told};
use super::verbs::{check_replicas, store_of};
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::text::{count, size};

/// Pause between two looks at the nodes.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// An artifact that is to be pushed.
struct Pushed {
    store: StoreName,
    number: ArtifactNumber,
    manifest: ManifestDigest,
    source: String,
    what: String,
    url: String,
    contents: Manifest,
}

impl Pushed {
    /// What is waited for.
    fn awaited(&self, cluster: &Cluster, store: &ReadOnlyStore, is_pushed: bool) -> Awaited {
        let owned = owned(cluster, store, &self.contents);
        Awaited { number: self.number, url: self.url.clone(), replicas: store.replicas, is_pushed, owned }
    }
}

/// Reads an artifact's manifest, and names its directory as nodes reach it.
fn pushed(url: &str) -> Result<Pushed, CliError> {
    let (_, manifest) = opened(url)?;
    let source = url_of(url)?.to_string();
    Ok(Pushed {
        store: manifest.store.clone(),
        number: ArtifactNumber(manifest.number),
        manifest: ManifestDigest(manifest.digest().0),
        source,
        what: format!("{}, {}", count(manifest.records(), "record"), size(manifest.file_bytes())),
        url: url.to_owned(),
        contents: manifest,
    })
}

/// Makes an artifact go live: writes the wish, and waits until a headmaster has carried it out.
pub(super) async fn push(shared: &CliContext, arguments: &PushArguments) -> Result<ExitCode, CliError> {
    let StageArguments { url, timeout_s, dry_run } = &arguments.staged;
    let artifact = pushed(url)?;
    let client = shared.client().await?;
    let Pushed { store, number, manifest, source, .. } = &artifact;
    let cluster = client.refresh().await?;
    let found = store_of(&cluster, store.as_str())?;
    check_replicas(found, arguments.replicas)?;
    let push = Push { replicas: arguments.replicas, ..Push::default() };
    let wished = found.push(*number, *manifest, source, &push);
    wished?;
    if *dry_run {
        let listed = found.artifact(*number).is_some();
        would(shared, &artifact, (cluster.nodes.len(), listed), ", and swap to it when they hold it");
        return Ok(ExitCode::SUCCESS);
    }
    let began = Instant::now();
    let order = ArtifactOrder::Push {
        store: store.clone(),
        number: *number,
        manifest: *manifest,
        source: source.clone(),
        replicas: arguments.replicas,
        abort_after_ms: arguments.abort_after_s.map(|seconds| seconds.saturating_mul(1000)),
    };
    crate::orders::artifacts(&client, &order).await?;
    let speaker = Speaker::new(artifact.awaited(&cluster, found, true));
    let deadline = began + Duration::from_secs(*timeout_s);
    tokio::select! {
        biased;
        served = wait_until_served(&client, &artifact, speaker, deadline) => served?,
        _ = tokio::signal::ctrl_c() => return Err(CliError::Unanswered(format!(
            "stopped watching; the push goes on without this command. To watch again, run `{program} artifact push {url}`; \
             to end the push, run `{program} artifact abort {store} {number}`",
            program = program()
        ))),
    }
    let told = |behind: &str| {
        let cluster = client.cluster();
        let goes_back = cluster.read_only(store.as_str()).is_some_and(|store| store.behind().is_ok());
        let back = match goes_back {
            true => format!("; to go back, run `{} artifact rollback {store}`", program()),
            false => String::new(),
        };
        format!(
            "pushed artifact {number} of store {store} ({}): it is served now{back}{behind}",
            artifact.what
        )
    };
    tell(shared, &client, &artifact, (true, began), told).await
}

/// Stages an artifact: tells the nodes to fetch it, and waits until all have.
pub(super) async fn stage(shared: &CliContext, arguments: &StageArguments) -> Result<ExitCode, CliError> {
    let artifact = pushed(&arguments.url)?;
    let client = shared.client().await?;
    let Pushed { store, number, manifest, source, .. } = &artifact;
    let cluster = client.refresh().await?;
    let found = store_of(&cluster, store.as_str())?;
    found.stage(*number, *manifest, source)?;
    if arguments.dry_run {
        let listed = found.artifact(*number).is_some();
        would(shared, &artifact, (cluster.nodes.len(), listed), "");
        return Ok(ExitCode::SUCCESS);
    }
    let (order_store, source) = (store.clone(), source.clone());
    let order = ArtifactOrder::Stage { store: order_store, number: *number, manifest: *manifest, source };
    crate::orders::artifacts(&client, &order).await?;
    let began = Instant::now();
    let speaker = Speaker::new(artifact.awaited(&cluster, found, false));
    let deadline = began + Duration::from_secs(arguments.timeout_s);
    wait_until_staged(&client, &artifact, speaker, deadline).await?;
    let told = |behind: &str| {
        format!(
            "staged artifact {number} of store {store} ({}) on all nodes; to serve it, run `{} artifact swap {store} \
             {number}`{behind}",
            artifact.what,
            program(),
        )
    };
    tell(shared, &client, &artifact, (false, began), told).await
}

/// Says what would be done.
fn would(shared: &CliContext, artifact: &Pushed, (nodes, listed): (usize, bool), next: &str) {
    let Pushed { store, number, manifest, source, what, .. } = artifact;
    let nodes = count(nodes as u64, "node");
    let document = json!({ "store": store, "number": number, "manifest": manifest, "source": source,
        "listed": listed, "dry_run": true });
    print(shared.format(), &document, || {
        format!("would have {nodes} fetch artifact {number} of store {store} ({what}) from {source}{next}")
    });
}

/// Says what was done, when the nodes that answer have heard of it.
async fn tell(
    shared: &CliContext,
    client: &Client,
    artifact: &Pushed,
    (served, began): (bool, Instant),
    told: impl Fn(&str) -> String,
) -> Result<ExitCode, CliError> {
    let Pushed { store, number, manifest, source, .. } = artifact;
    let generation: Generation = client.cluster().generation;
    let behind = adopted(client, generation).await;
    let document = json!({ "store": store, "number": number, "manifest": manifest, "source": source,
        "generation": generation, "served": served, "nodes_behind": behind,
        "seconds": began.elapsed().as_secs_f64() });
    print(shared.format(), &document, || told(&behind_text(&behind)));
    Ok(ExitCode::SUCCESS)
}

/// How far a push is by the document.
enum Stand {
    Served,
    Waiting,
    Over(String),
}

fn stand(store: Option<&ReadOnlyStore>, artifact: &Pushed) -> Stand {
    let number = artifact.number;
    let listed = store.and_then(|store| store.artifact(number));
    let served = store.and_then(|store| store.served()).map(|served| served.number.to_string());
    let served = served.map_or_else(|| "nothing".to_owned(), |served| format!("artifact {served}"));
    match listed.map(|listed| (listed.standing, &listed.push)) {
        Some((Standing::Served, _)) => Stand::Served,
        Some((Standing::Staging, Some(_))) => Stand::Waiting,
        Some((Standing::Staging, None)) => Stand::Over(format!(
            "the push of artifact {number} is over: {served} went live meanwhile. It stays staged"
        )),
        Some((Standing::Kept, _)) => {
            Stand::Over(format!("artifact {number} was served, and meanwhile {served} is again"))
        }
        None => Stand::Over(format!(
            "the push of artifact {number} was aborted, by a user or because its time was over; {served} is served. The same \
             push begins again until there is a newer one"
        )),
    }
}

/// Watches the document until the artifact is served.
async fn wait_until_served(
    client: &Client,
    artifact: &Pushed,
    mut speaker: Speaker,
    deadline: Instant,
) -> Result<(), CliError> {
    loop {
        // Without an answer the document of before is looked at: nodes may be away for a while.
        let cluster = client.refresh().await.unwrap_or_else(|_| client.cluster());
        match stand(cluster.read_only(artifact.store.as_str()), artifact) {
            Stand::Served => return Ok(()),
            Stand::Over(why) => {
                return Err(CliError::Other(format!(
                    "{why}. To see what is listed, run `{} artifact list {}`",
                    program(),
                    artifact.store
                )));
            }
            Stand::Waiting => {}
        }
        let store = cluster.read_only(artifact.store.as_str());
        let listed = store.and_then(|store| store.artifact(artifact.number));
        let enough = listed.and_then(|listed| listed.push.as_ref()?.replicas);
        if Instant::now() > deadline {
            let told = told(client, &artifact.store, artifact.number).await;
            let detail = format!("artifact {} is not served yet", artifact.number);
            return Err(late(artifact, &detail, &told, ("push", speaker.awaited().advice(&told, enough))));
        }
        if speaker.is_due() {
            speaker.speak(&told(client, &artifact.store, artifact.number).await, enough);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn wait_until_staged(
    client: &Client,
    artifact: &Pushed,
    mut speaker: Speaker,
    deadline: Instant,
) -> Result<(), CliError> {
    loop {
        let told = told(client, &artifact.store, artifact.number).await;
        if told.iter().all(ArtifactTold::is_staged) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let advice = speaker.awaited().advice(&told, None);
            return Err(late(artifact, "some nodes do not hold it", &told, ("stage", advice)));
        }
        if speaker.is_due() {
            speaker.speak(&told, None);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// What is said when the time is over.
fn late(
    artifact: &Pushed,
    detail: &str,
    told: &[ArtifactTold],
    (verb, advice): (&str, Option<String>),
) -> CliError {
    let why = told.iter().find_map(|told| told.error().map(|error| format!(" ({}: {error})", told.node)));
    CliError::Unanswered(format!(
        "{detail}{}{}. The nodes go on by themselves; to see how far they are, run `{program} artifact list {}`, and to watch \
         again, run `{program} artifact {verb}` again",
        why.unwrap_or_default(),
        advice.map_or_else(String::new, |advice| format!("; {advice}")),
        artifact.store,
        program = program(),
    ))
}
