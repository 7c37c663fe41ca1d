//! What nodes tell of their artifacts, as commands see it.

use std::time::{Duration, Instant};

use client::Client;
use model::{ArtifactNumber, Generation, NodeId};
use serde::Deserialize;
use serde_json::Value as Json;

use crate::durations;
use crate::output::count;

/// How long a change may take until all nodes that answer go by it.
const ADOPTED_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks at the nodes.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What one node tells of one artifact.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Told {
    #[serde(default)]
    pub(super) node: u32,
    pub(super) store: String,
    pub(super) number: ArtifactNumber,
    pub(super) state: String,
    pub(super) whole_under: Generation,
    pub(super) bytes: u64,
    pub(super) bytes_total: u64,
    pub(super) bytes_fetched: u64,
    pub(super) bytes_fetched_as_deltas: u64,
    #[serde(default)]
    pub(super) error: Option<String>,
    /// For how long it has served it, if it began since it started.
    pub(super) serving_ms: Option<u64>,
    /// The artifact that it was built upon, where the node has its manifest.
    pub(super) parent: Option<u64>,
}

impl Told {
    /// Whether the node does not answer.
    pub(super) fn is_silent(&self) -> bool {
        self.state == "unknown" && self.error.is_some()
    }

    /// Whether the node holds all that it owns.
    pub(super) fn is_staged(&self) -> bool {
        self.state == "staged"
    }
}

/// What one node tells of all.
#[derive(Clone, Debug)]
pub(super) struct NodeTold {
    pub(super) artifacts: Vec<Told>,
    /// How far its scrub is.
    pub(super) scrub: Json,
}

/// What every node tells; one that does not answer says so in its error.
pub(super) async fn ask_all(client: &Client) -> Vec<(u32, Result<NodeTold, String>)> {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| async move {
        let answer = client.artifacts(node.id).await.map_err(|error| error.to_string());
        let told = answer.and_then(|json| {
            let told: Json = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
            let mut artifacts: Vec<Told> =
                serde_json::from_value(told["artifacts"].clone()).map_err(|error| error.to_string())?;
            artifacts.iter_mut().for_each(|told| told.node = node.id.0);
            Ok(NodeTold { artifacts, scrub: told["scrub"].clone() })
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
            parent: None,
        };
        match told {
            Ok(told) => {
                let artifacts = told.artifacts.into_iter();
                let mut of_this = artifacts.filter(|told| told.store == store && told.number == number);
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

/// When each node has last read all its files of artifacts, for people; empty where none tells.
pub(crate) fn scrub_line<'a>(nodes: impl IntoIterator<Item = (NodeId, &'a Json)>) -> String {
    let of_node = |(node, scrub): (NodeId, &Json)| {
        let number = |field: &str| scrub[field].as_u64();
        let files = count(number("files")?, "file");
        Some(match number("seconds_ago") {
            Some(seconds) => format!("{node} {} ago", durations::rough(Duration::from_secs(seconds))),
            None => format!("{node} not yet ({} of {files})", number("files_done")?),
        })
    };
    let each: Vec<String> = nodes.into_iter().filter_map(of_node).collect();
    match each.is_empty() {
        true => String::new(),
        false => format!("all files read by the scrub: {}\n", each.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_end_of_the_last_scrub_is_told_of_each_node_that_knows_it() {
        let (old, ended) = (Json::Null, json!({ "files": 9, "files_done": 2, "seconds_ago": 7_300 }));
        let never = json!({ "files": 1, "files_done": 0, "seconds_ago": null });
        let nodes = [(NodeId(1), &old), (NodeId(2), &ended), (NodeId(3), &never)];
        let line = "all files read by the scrub: n2 2h1m ago, n3 not yet (0 of 1 file)\n";
        assert_eq!(scrub_line(nodes), line);
        assert_eq!(scrub_line([(NodeId(1), &old)]), "");
    }
}
