//! What nodes tell of their artifacts, as commands see it.

use std::time::{Duration, Instant};

use client::Client;
use model::{ArtifactNumber, Generation, NodeId, StoreName};
use protocol::report::{ArtifactProgress, ArtifactScrub, ArtifactState, ArtifactsReport, Parts};

use crate::durations;
use crate::text::count;

/// How long a change may take until all nodes that answer follow it.
const ADOPTED_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks at the nodes.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What one node tells of one artifact.
#[derive(Clone, Debug)]
pub(super) struct ArtifactTold {
    pub(super) node: NodeId,
    /// How far it is; nothing where it has not heard of the artifact; or why it does not say.
    pub(super) progress: Result<Option<ArtifactProgress>, String>,
}

impl ArtifactTold {
    /// Whether the node does not answer.
    pub(super) fn is_silent(&self) -> bool {
        self.progress.is_err()
    }

    /// Whether the node holds all that it owns.
    pub(super) fn is_staged(&self) -> bool {
        self.here().is_some_and(|told| told.state == ArtifactState::Staged)
    }

    /// How far the node is, where it has heard of the artifact.
    pub(super) fn here(&self) -> Option<&ArtifactProgress> {
        self.progress.as_ref().ok()?.as_ref()
    }

    /// What is wrong with the artifact there, or with the node.
    pub(super) fn error(&self) -> Option<&str> {
        match &self.progress {
            Ok(told) => told.as_ref()?.error.as_deref(),
            Err(error) => Some(error),
        }
    }
}

/// What every node tells of artifacts, or why it does not.
pub(super) async fn ask_all(client: &Client) -> Vec<(NodeId, Result<ArtifactsReport, String>)> {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| async move {
        let report = client.report(node.id, Parts::ARTIFACTS).await;
        let told = report.map(|report| report.artifacts.unwrap_or_default());
        (node.id, told.map_err(|error| error.to_string()))
    });
    futures_util::future::join_all(asks).await
}

/// What each node tells of one artifact.
pub(super) async fn told(client: &Client, store: &StoreName, number: ArtifactNumber) -> Vec<ArtifactTold> {
    let is_it = |told: &ArtifactProgress| told.store == *store && told.number == number;
    let each = ask_all(client).await.into_iter();
    each.map(|(node, told)| ArtifactTold {
        node,
        progress: told.map(|told| told.listed.into_iter().find(is_it)),
    })
    .collect()
}

/// Waits until the nodes that answer follow a document of this generation; names those that do not within
/// [`ADOPTED_TIME_MAX`].
pub(crate) async fn adopted(client: &Client, generation: Generation) -> Vec<String> {
    let deadline = Instant::now() + ADOPTED_TIME_MAX;
    let cluster = client.cluster();
    let mut behind: Vec<NodeId> = cluster.nodes.iter().map(|node| node.id).collect();
    loop {
        let looks = behind.iter().map(|node| async move {
            let report = client.report(*node, Parts::default()).await.ok()?;
            Some(report.generation >= generation)
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
pub(crate) fn scrub_line<'a>(nodes: impl IntoIterator<Item = (NodeId, &'a ArtifactScrub)>) -> String {
    let of_node = |(node, scrub): (NodeId, &ArtifactScrub)| match scrub.seconds_ago {
        Some(seconds) => format!("{node} {} ago", durations::rough(Duration::from_secs(seconds))),
        None => format!("{node} not yet ({} of {})", scrub.files_done, count(scrub.files, "file")),
    };
    let each: Vec<String> = nodes.into_iter().map(of_node).collect();
    match each.is_empty() {
        true => String::new(),
        false => format!("all files read by the scrub: {}\n", each.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_last_scrub_is_told_of_each_node() {
        let scrub = |files, files_done, seconds_ago| ArtifactScrub {
            files,
            files_done,
            seconds_ago,
            ..ArtifactScrub::default()
        };
        let (ended, never) = (scrub(9, 2, Some(7_300)), scrub(1, 0, None));
        let line = "all files read by the scrub: n2 2h1m ago, n3 not yet (0 of 1 file)\n";
        assert_eq!(scrub_line([(NodeId(2), &ended), (NodeId(3), &never)]), line);
        assert_eq!(scrub_line([]), "");
    }
}
