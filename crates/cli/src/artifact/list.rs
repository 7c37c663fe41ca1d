//! `tontine artifact list`: what each read-only store lists, and how far each node is.

use std::process::ExitCode;

use model::readonly::Standing;
use model::{ArtifactNumber, NodeId, ReadOnlyStore};
use serde_json::{Value as Json, json};

use super::push_arguments::ListArguments;
use super::told::{Told, ask_all, scrub_line};
use super::verbs::store_of;
use crate::failure::CliError;
use crate::output::{print, program, size, table};
use crate::shared::Shared;

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
            let found = told.as_ref().ok().and_then(|told| told.artifacts.iter().find(is_it));
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
        "nodes": nodes.iter().map(|(node, told)| match told {
            Ok(told) => json!({ "node": node, "scrub": told.scrub }),
            Err(error) => json!({ "node": node, "error": error }),
        }).collect::<Json>(),
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
            false => {
                let scrubs = nodes.iter().filter_map(|(node, told)| Some((NodeId(*node), &told.as_ref().ok()?.scrub)));
                match scrub_line(scrubs) {
                    line if line.is_empty() => text.join("\n"),
                    line => format!("{}\n{line}", text.join("\n")),
                }
            }
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
