//! `tontine artifact list`: what each read-only store lists, and how far each node is.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use client::Client;
use model::readonly::Standing;
use model::{ArtifactNumber, Generation, NodeId, ReadOnlyStore};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::push_arguments::ListArguments;
use super::verbs::store_of;
use crate::failure::CliError;
use crate::output::{print, program, size, table};
use crate::shared::Shared;

/// How long a change may take until all nodes that answer go by it.
const ADOPTED_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks at the nodes.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What one node tells of one artifact.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Told {
    #[serde(default)]
    pub(super) node: u32,
    store: String,
    number: ArtifactNumber,
    state: String,
    whole_under: Generation,
    pub(super) bytes: u64,
    pub(super) bytes_total: u64,
    bytes_fetched: u64,
    /// Nodes of older versions know no deltas.
    #[serde(default)]
    bytes_fetched_as_deltas: u64,
    #[serde(default)]
    pub(super) error: Option<String>,
    /// For how long it has served it, if it began since it started. Nodes of older versions do not tell.
    #[serde(default)]
    serving_ms: Option<u64>,
}

impl Told {
    /// Whether the node holds all that it owns.
    pub(super) fn is_staged(&self) -> bool {
        self.state == "staged"
    }
}

/// What every node tells; one that does not answer says so in its error.
async fn ask_all(client: &Client) -> Vec<(u32, Result<Vec<Told>, String>)> {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| async move {
        let answer = client.artifacts(node.id).await.map_err(|error| error.to_string());
        let told = answer.and_then(|json| {
            let told: Json = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
            let mut told: Vec<Told> =
                serde_json::from_value(told["artifacts"].clone()).map_err(|error| error.to_string())?;
            told.iter_mut().for_each(|told| told.node = node.id.0);
            Ok(told)
        });
        (node.id.0, told)
    });
    futures_util::future::join_all(asks).await
}

/// What each node tells of one artifact.
pub(super) async fn told(client: &Client, store: &str, number: ArtifactNumber) -> Vec<Told> {
    let each = ask_all(client).await.into_iter().map(|(node, told)| {
        let unknown = |error| Told {
            node,
            store: store.to_owned(),
            number,
            state: "unknown".to_owned(),
            whole_under: Generation::default(),
            bytes: 0,
            bytes_total: 0,
            bytes_fetched: 0,
            bytes_fetched_as_deltas: 0,
            error,
            serving_ms: None,
        };
        match told {
            Ok(told) => {
                let mut of_this =
                    told.into_iter().filter(|told| told.store == store && told.number == number);
                of_this.next().unwrap_or_else(|| unknown(None))
            }
            Err(error) => unknown(Some(error)),
        }
    });
    each.collect()
}

/// Waits until the nodes that answer go by a document of this generation; names those that do not within
/// [`ADOPTED_TIME_MAX`].
pub(crate) async fn adopted(client: &Client, generation: Generation) -> Vec<String> {
    let deadline = Instant::now() + ADOPTED_TIME_MAX;
    let cluster = client.cluster();
    let mut behind: Vec<NodeId> = cluster.nodes.iter().map(|node| node.id).collect();
    loop {
        let looks = behind.iter().map(|node| async move {
            let json = client.artifacts(*node).await.ok()?;
            let told: Json = serde_json::from_slice(&json).ok()?;
            Some(told["generation"].as_u64()? >= generation.0)
        });
        let found = futures_util::future::join_all(looks).await;
        let reached = found.iter().any(Option::is_some);
        let mut found = found.into_iter();
        behind.retain(|_| found.next().flatten() != Some(true));
        // Nodes that do not answer are not waited for.
        if behind.is_empty() || !reached || Instant::now() > deadline {
            return behind.iter().map(NodeId::to_string).collect();
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// What people are told of nodes that have not heard of a change.
pub(crate) fn behind_text(behind: &[String]) -> String {
    match behind {
        [] => String::new(),
        nodes => format!(
            "\n{} not heard of it yet; they will when they can be reached",
            match nodes {
                [one] => format!("{one} has"),
                more => format!("{} have", more.join(", ")),
            }
        ),
    }
}

/// Lists artifacts.
pub(super) async fn list(shared: &Shared, arguments: &ListArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let cluster = client.refresh().await?;
    let stores: Vec<&ReadOnlyStore> = match &arguments.store {
        Some(name) => vec![store_of(&cluster, name)?],
        None => cluster.read_only.iter().collect(),
    };
    let nodes = ask_all(&client).await;
    type OnNode<'a> = (u32, Option<&'a Told>, Option<&'a String>);
    let on_node = |store: &ReadOnlyStore, number: ArtifactNumber| -> Vec<OnNode<'_>> {
        let is_it = |told: &&Told| told.store == store.name.as_str() && told.number == number;
        let each = nodes.iter().map(|(node, told)| {
            let found = told.as_ref().ok().and_then(|told| told.iter().find(is_it));
            (*node, found, told.as_ref().err())
        });
        each.collect()
    };
    let artifact = |store: &ReadOnlyStore, number: ArtifactNumber| -> Json {
        let told = on_node(store, number).into_iter().map(|(node, found, error)| match found {
            Some(told) => json!({ "node": node, "state": told.state, "whole_under": told.whole_under,
                "bytes": told.bytes, "bytes_total": told.bytes_total, "bytes_fetched": told.bytes_fetched,
                "bytes_fetched_as_deltas": told.bytes_fetched_as_deltas,
                "error": told.error, "serving_ms": told.serving_ms }),
            None => json!({ "node": node, "state": "unknown", "error": error }),
        });
        told.collect()
    };
    let swap_ms = |store: &ReadOnlyStore| {
        let number = store.served()?.number;
        let told =
            on_node(store, number).into_iter().map(|(_, found, _)| found.and_then(|told| told.serving_ms));
        spread(told)
    };
    let document = json!({
        "generation": cluster.generation,
        "stores": stores.iter().map(|store| json!({
            "store": store.name,
            "replicas": store.replicas,
            "kept": store.kept.unwrap_or(1),
            "served": store.served().map(|served| served.number),
            "swap_ms": swap_ms(store),
            "artifacts": store.artifacts.iter().map(|listed| json!({
                "number": listed.number, "manifest": listed.manifest, "source": listed.source,
                "standing": listed.standing, "push": listed.push, "nodes": artifact(store, listed.number),
            })).collect::<Json>(),
        })).collect::<Json>(),
    });
    print(shared.format(), &document, || {
        let text: Vec<String> = stores
            .iter()
            .map(|store| {
                text(store, swap_ms(store), &|number| {
                    on_node(store, number)
                        .into_iter()
                        .map(|(node, found, error)| line(node, found, error))
                        .collect()
                })
            })
            .collect();
        match text.is_empty() {
            true => {
                format!("no read-only store; create one with `{} store create NAME --read-only`", program())
            }
            false => text.join("\n"),
        }
    });
    Ok(ExitCode::SUCCESS)
}

fn line(node: u32, found: Option<&Told>, error: Option<&String>) -> String {
    match (found, error) {
        (Some(told), _) if told.is_staged() => format!("n{node} {}", size(told.bytes)),
        (Some(told), _) => {
            let error = told.error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
            format!("n{node} {} {} of {}{error}", told.state, size(told.bytes), size(told.bytes_total))
        }
        (None, Some(_)) => format!("n{node} does not answer"),
        (None, None) => format!("n{node} has not heard of it"),
    }
}

/// How much later than the first node the last one served an artifact, as they tell at about the same time. Nothing when one
/// of them does not know.
fn spread(serving_ms: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    let all: Vec<u64> = serving_ms.into_iter().collect::<Option<_>>()?;
    Some(all.iter().max()? - all.iter().min()?)
}

fn text(
    store: &ReadOnlyStore,
    swap_ms: Option<u64>,
    nodes: &dyn Fn(ArtifactNumber) -> Vec<String>,
) -> String {
    let name = &store.name;
    let swap = swap_ms.map(|millis| format!(", on the last node {millis} ms after the first"));
    let swap = swap.unwrap_or_default();
    let head = match store.served() {
        Some(served) => {
            format!("store {name} (N={}) serves artifact {}{swap}\n", store.replicas, served.number)
        }
        None => format!(
            "store {name} (N={}) serves nothing yet, so every key is absent; to push an artifact, run `{} artifact push \
             DIRECTORY`\n",
            store.replicas,
            program()
        ),
    };
    if store.artifacts.is_empty() {
        return head;
    }
    let mut rows = vec![["ARTIFACT", "STANDING", "NODES", "SOURCE"].map(str::to_owned).to_vec()];
    for listed in &store.artifacts {
        let standing = match listed.standing {
            Standing::Staging if listed.push.is_some() => "staging, then served",
            Standing::Staging => "staging",
            Standing::Served => "served",
            Standing::Kept => "kept",
        };
        rows.push(vec![
            listed.number.to_string(),
            standing.to_owned(),
            nodes(listed.number).join(", "),
            listed.source.clone(),
        ]);
    }
    head + &table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_took_until_the_last_node_and_nobody_knows_where_one_does_not_tell() {
        assert_eq!(spread([Some(1_200), Some(1_190), Some(1_215)]), Some(25));
        assert_eq!(spread([Some(1_200), None]), None);
        assert_eq!(spread([]), None);
    }
}
