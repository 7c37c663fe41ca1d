//! `tontine artifact list`: what each read-only store lists, and how far each node is.

use std::process::ExitCode;

use model::artifacts::Standing;
use model::{ArtifactNumber, ListedArtifact, NodeId, ReadOnlyStore};
use protocol::report::{ArtifactProgress, ArtifactState, ArtifactsReport};
use serde_json::{Value as Json, json};

use super::push_arguments::ListArguments;
use super::told::{ask_all, scrub_line};
use super::verbs::store_of;
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::{print, program};
use crate::text::{size, table};

/// Lists artifacts.
pub(super) async fn list(shared: &CliContext, arguments: &ListArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    let cluster = client.refresh().await?;
    let stores: Vec<&ReadOnlyStore> = match &arguments.store {
        Some(name) => vec![store_of(&cluster, name)?],
        None => cluster.read_only.iter().collect(),
    };
    let all = All(ask_all(&client).await);
    let artifact = |store: &ReadOnlyStore, listed: &ListedArtifact| {
        json!({
            "number": listed.number, "manifest": listed.manifest, "source": listed.source,
            "standing": listed.standing, "push": listed.push, "parent": all.parent(store, listed.number),
            "nodes": all.on_nodes(store, listed.number).map(|told| told.json()).collect::<Json>(),
        })
    };
    let document = json!({
        "generation": cluster.generation,
        "stores": stores.iter().map(|store| json!({
            "store": store.name,
            "replicas": store.replicas,
            "kept": store.kept.unwrap_or(1),
            "served": store.served().map(|served| served.number),
            "swap_ms": all.swap_ms(store),
            "artifacts": store.artifacts.iter().map(|listed| artifact(store, listed)).collect::<Json>(),
        })).collect::<Json>(),
        "nodes": all.0.iter().map(|(node, told)| match told {
            Ok(told) => json!({ "node": node, "scrub": told.scrub, "fetching": told.fetching }),
            Err(error) => json!({ "node": node, "error": error }),
        }).collect::<Json>(),
    });
    print(shared.format(), &document, || match stores.is_empty() {
        true => format!("no read-only store; create one with `{} store create NAME --read-only`", program()),
        false => all.text(&stores),
    });
    Ok(ExitCode::SUCCESS)
}

/// What all nodes tell, or why one does not.
struct All(Vec<(NodeId, Result<ArtifactsReport, String>)>);

/// What one node tells of one artifact, if it has heard of it, or why it does not.
struct OnNode<'a> {
    node: NodeId,
    told: Result<Option<&'a ArtifactProgress>, &'a String>,
}

impl OnNode<'_> {
    fn json(&self) -> Json {
        match self.told {
            Ok(Some(told)) => {
                let mut document = json!(told);
                document["node"] = json!(self.node);
                document
            }
            Ok(None) => json!({ "node": self.node, "state": "unknown", "error": null }),
            Err(error) => json!({ "node": self.node, "state": "unknown", "error": error }),
        }
    }

    /// A few words for a table; what went wrong is below it.
    fn cell(&self) -> String {
        let node = self.node;
        match self.told {
            Ok(Some(told)) if told.state == ArtifactState::Staged => format!("{node} {}", size(told.bytes)),
            Ok(Some(told)) => {
                format!("{node} {} {} of {}", told.state.name(), size(told.bytes), size(told.bytes_total))
            }
            Ok(None) => format!("{node} has not heard of it"),
            Err(_) => format!("{node} does not answer"),
        }
    }
}

impl All {
    fn on_nodes<'a>(
        &'a self,
        store: &'a ReadOnlyStore,
        number: ArtifactNumber,
    ) -> impl Iterator<Item = OnNode<'a>> {
        self.0.iter().map(move |(node, told)| {
            let is_it = |told: &&ArtifactProgress| told.store == store.name && told.number == number;
            let told = told.as_ref().map(|told| told.listed.iter().find(is_it));
            OnNode { node: *node, told }
        })
    }

    /// The artifact that one was built upon, if a node has its manifest.
    fn parent(&self, store: &ReadOnlyStore, number: ArtifactNumber) -> Option<ArtifactNumber> {
        self.on_nodes(store, number).find_map(|on_node| on_node.told.ok()??.parent)
    }

    fn swap_ms(&self, store: &ReadOnlyStore) -> Option<u64> {
        let number = store.served()?.number;
        spread(self.on_nodes(store, number).map(|on_node| on_node.told.ok().flatten()?.serving_ms))
    }

    /// For people: a table for each store, with what went wrong below it.
    fn text(&self, stores: &[&ReadOnlyStore]) -> String {
        let mut parts: Vec<String> = stores.iter().map(|store| self.store_text(store)).collect();
        let away = self.0.iter().filter_map(|(node, told)| Some((node, told.as_ref().err()?)));
        let away: String = away.map(|(node, error)| format!("{node} does not answer: {error}\n")).collect();
        let scrubs = self.0.iter().filter_map(|(node, told)| Some((*node, &told.as_ref().ok()?.scrub)));
        parts.push(away + &scrub_line(scrubs));
        parts.retain(|part| !part.is_empty());
        parts.join("\n")
    }

    fn store_text(&self, store: &ReadOnlyStore) -> String {
        let head = head(store, self.swap_ms(store));
        if store.artifacts.is_empty() {
            return head;
        }
        let heads = ["ARTIFACT", "STANDING", "PARENT", "NODES", "SOURCE"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        let mut errors = String::new();
        for listed in &store.artifacts {
            let parent = self.parent(store, listed.number);
            let cells: Vec<String> =
                self.on_nodes(store, listed.number).map(|on_node| on_node.cell()).collect();
            rows.push(vec![
                listed.number.to_string(),
                standing(listed).to_owned(),
                parent.map_or_else(|| "-".to_owned(), |number| number.to_string()),
                cells.join(", "),
                listed.source.clone(),
            ]);
            for OnNode { node, told } in self.on_nodes(store, listed.number) {
                let error = told.ok().flatten().and_then(|told| told.error.as_ref());
                errors.extend(error.map(|error| format!("artifact {} on {node}: {error}\n", listed.number)));
            }
        }
        head + &table(&rows) + &errors
    }
}

fn standing(listed: &ListedArtifact) -> &'static str {
    match listed.standing {
        Standing::Staging if listed.push.is_some() => "staging, then served",
        Standing::Staging => "staging",
        Standing::Served => "served",
        Standing::Kept => "kept",
    }
}

/// What a store serves.
fn head(store: &ReadOnlyStore, swap_ms: Option<u64>) -> String {
    let (name, replicas) = (&store.name, store.replicas);
    let swap = swap_ms.map(|millis| format!(", on the last node {millis} ms after the first"));
    let swap = swap.unwrap_or_default();
    match store.served() {
        Some(served) => format!("store {name} (N={replicas}) serves artifact {}{swap}\n", served.number),
        None => format!(
            "store {name} (N={replicas}) serves nothing yet, so every key is absent; to push an artifact, run `{} artifact push \
             DIRECTORY`\n",
            program()
        ),
    }
}

/// How much later than the first node the last one served an artifact, as they tell at about the same time. Nothing when one
/// of them does not know.
fn spread(serving_ms: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    let all: Vec<u64> = serving_ms.into_iter().collect::<Option<_>>()?;
    Some(all.iter().max()? - all.iter().min()?)
}

#[cfg(test)]
pub(super) mod tests {
    use model::{Generation, ManifestDigest, StoreName};
    use protocol::report::{ArtifactScrub, Fetching};

    use super::*;

    /// How far a node is that holds all of an artifact.
    pub(in crate::artifact) fn progress(store: &str, number: u64) -> ArtifactProgress {
        ArtifactProgress {
            store: StoreName::new(store).unwrap(),
            number: ArtifactNumber(number),
            manifest: ManifestDigest([1; 16]),
            parent: Some(ArtifactNumber(number - 1)),
            serving_ms: None,
            state: ArtifactState::Staged,
            whole_under: Generation(1),
            bytes: 1024,
            bytes_total: 2048,
            bytes_fetched: 0,
            bytes_fetched_as_deltas: 0,
            chunks: 1,
            chunks_total: 2,
            error: None,
            trouble: None,
        }
    }

    /// A row was once as wide as the errors of all nodes together.
    #[test]
    fn errors_are_below_the_table_one_a_line() {
        let name = model::StoreName::new("words").unwrap();
        let digest = model::ManifestDigest([1; 16]);
        let store = ReadOnlyStore::new(name, 3).stage(ArtifactNumber(7), digest, "file:///words").unwrap();
        let long =
            "the source does not give chunk 0101: it is away for a reason that takes a long sentence to tell";
        let tells = |node, error: Option<&str>| {
            let state = if error.is_some() { ArtifactState::Failed } else { ArtifactState::Staged };
            let told = ArtifactProgress { state, error: error.map(str::to_owned), ..progress("words", 7) };
            let (fetching, scrub) = (Fetching::default(), ArtifactScrub::default());
            (NodeId(node), Ok(ArtifactsReport { listed: vec![told], fetching, scrub }))
        };
        let away = (NodeId(3), Err("h3:1 refused".to_owned()));
        let all = All(vec![tells(1, Some(long)), tells(2, None), away]);
        let text = all.text(&[&store]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("ARTIFACT  STANDING  PARENT  NODES  "), "{text}");
        let row = "7         staging   6       n1 failed 1.0 KiB of 2.0 KiB, n2 1.0 KiB, n3 does not answer  file:///words";
        assert_eq!(lines[2], row);
        assert_eq!(
            lines[3..],
            [
                &format!("artifact 7 on n1: {long}"),
                "",
                "n3 does not answer: h3:1 refused",
                "all files read by the scrub: n1 not yet (0 of 0 files), n2 not yet (0 of 0 files)"
            ]
        );
    }

    #[test]
    fn a_swap_took_until_the_last_node_and_nobody_knows_where_one_does_not_tell() {
        assert_eq!(spread([Some(1_200), Some(1_190), Some(1_215)]), Some(25));
        assert_eq!(spread([Some(1_200), None]), None);
        assert_eq!(spread([]), None);
    }
}
