//! What the doctor finds of read-only stores: sources that give nothing, disks without room, damage, nodes that lag.

use model::readonly::Standing;
use model::{ArtifactNumber, Cluster, ListedArtifact, ReadOnlyStore};
use serde_json::Value as Json;

use super::finding::{Code, Finding};
use crate::holder::shell;
use crate::orders::Seen;
use crate::output::{count, program, size};
use crate::status::NodeStatus;

/// What is wrong with the artifacts of nodes that answer.
pub(super) fn found(cluster: &Cluster, nodes: &[NodeStatus], seen: Option<&Seen>) -> Vec<Finding> {
    let mut findings = unserved(cluster, nodes, seen);
    for status in nodes {
        let Ok(answer) = &status.answer else { continue };
        let told = &answer["read_only"];
        for store in &cluster.read_only {
            for listed in &store.artifacts {
                let of_this = |entry: &&Json| {
                    entry["store"] == store.name.as_str() && entry["number"] == listed.number.0
                };
                let entry = told["artifacts"].as_array().into_iter().flatten().find(of_this);
                findings.extend(entry.and_then(|entry| of_artifact(status, (store, listed), entry)));
            }
        }
        findings.extend(corrupt_here(status, &told["fetching"]));
    }
    findings
}

/// Pushes that wait for nothing but a headmaster.
fn unserved(cluster: &Cluster, nodes: &[NodeStatus], seen: Option<&Seen>) -> Vec<Finding> {
    if seen.is_none_or(|seen| seen.has_headmaster) || nodes.is_empty() {
        return Vec::new();
    }
    let holds = |status: &NodeStatus, store: &ReadOnlyStore, listed: &ListedArtifact| {
        let told = status.answer.as_ref().ok().and_then(|answer| answer["read_only"]["artifacts"].as_array());
        told.into_iter().flatten().any(|entry| {
            let is_it = entry["store"] == store.name.as_str() && entry["number"] == listed.number.0;
            is_it && entry["state"] == "staged"
        })
    };
    let pushed = cluster.read_only.iter().flat_map(|store| {
        let listed = store.artifacts.iter().filter(|listed| listed.push.is_some());
        listed.map(move |listed| (store, listed))
    });
    let waiting = pushed.filter(|(store, listed)| {
        listed.standing == Standing::Staging && nodes.iter().all(|status| holds(status, store, listed))
    });
    let finding = |(store, listed): (&ReadOnlyStore, &ListedArtifact)| Finding {
        code: Code::ArtifactUnserved,
        node: None,
        store: Some(store.name.to_string()),
        what: format!(
            "all nodes hold artifact {} of store {}, which is pushed, and no headmaster runs that would serve it",
            listed.number, store.name
        ),
        next: format!(
            "start one with `{} headmaster --coordination ADDRESS`, the address that nodes were given",
            program()
        ),
    };
    waiting.map(finding).collect()
}

/// The number of a newer artifact that the store serves.
fn newer(store: &ReadOnlyStore, listed: &ListedArtifact) -> Option<ArtifactNumber> {
    store.served().map(|served| served.number).filter(|&served| served > listed.number)
}

fn of_artifact(
    status: &NodeStatus,
    (store, listed): (&ReadOnlyStore, &ListedArtifact),
    entry: &Json,
) -> Option<Finding> {
    let (id, name, number) = (status.node.id, &store.name, listed.number);
    let finding = |code, what, next| {
        Some(Finding { code, node: Some(status.id()), store: Some(name.to_string()), what, next })
    };
    let url = shell(std::slice::from_ref(&listed.source));
    let error = entry["error"].as_str().unwrap_or("no reason is known");
    let cannot = format!("{id} cannot fetch artifact {number} of store {name}");
    if let (Some(served), true) = (newer(store, listed), entry["state"] == "failed") {
        let what = format!("{cannot}: {error}. Nothing depends on it: the store serves artifact {served}");
        let next = format!("forget it, and its files are removed: tontine artifact abort {name} {number}");
        return finding(Code::ArtifactOvertaken, what, next);
    }
    if entry["state"] == "failed" {
        return match entry["trouble"].as_str() {
            Some("room") => finding(
                Code::ArtifactNoRoom,
                format!("{cannot}: {error}"),
                format!(
                    "free space on its disk, or delete an artifact: tontine artifact delete {name} NUMBER"
                ),
            ),
            Some("quota") => finding(
                Code::ArtifactOverLimit,
                error.to_owned(),
                format!(
                    "end its push: tontine artifact abort {name} {number}; or delete one that you do not need: tontine \
                     artifact delete {name} NUMBER"
                ),
            ),
            Some("corrupt") => finding(
                Code::ArtifactSourceCorrupt,
                format!("{cannot}: its source is damaged: {error}"),
                format!(
                    "copy the artifact to its source again; to see what is damaged: tontine artifact check {url}"
                ),
            ),
            Some("node") => finding(
                Code::ArtifactFailed,
                format!("{id} cannot store artifact {number} of store {name}: {error}"),
                format!("read the log of {id}; it tries again each second: tontine events --from {}", id.0),
            ),
            _ => finding(
                Code::ArtifactSourceAway,
                format!("{cannot}, and no replica gives it: {error}"),
                format!(
                    "make its source readable on the machine of {id}, which tries again each second; to try it there: tontine \
                     artifact check {url}"
                ),
            ),
        };
    }
    let number_of = |field: &str| entry[field].as_u64().unwrap_or(0);
    if entry["state"] == "staged" || number_of("bytes_total") == 0 {
        return None;
    }
    let held = format!("{} of {}", size(number_of("bytes")), size(number_of("bytes_total")));
    let (code, what) = match listed.standing {
        Standing::Served => (
            Code::ArtifactBehind,
            format!(
                "{id} holds {held} of artifact {number}, which store {name} serves; other replicas answer for the rest"
            ),
        ),
        _ => (
            Code::ArtifactFetching,
            format!("{id} fetches artifact {number} of store {name}, and holds {held} of it"),
        ),
    };
    finding(code, what, format!("wait: it is fetching; to see how far it is: tontine artifact list {name}"))
}

/// Chunks that gets and the scrub have found corrupt at a node, and whether they are back.
fn corrupt_here(status: &NodeStatus, fetching: &Json) -> Option<Finding> {
    let number = |field: &str| fetching[field].as_u64().unwrap_or(0);
    let (now, all) = (number("chunks_corrupt_now"), number("chunks_corrupt"));
    let id = status.node.id;
    let (code, what, next) = match (now, all) {
        (0, 0) => return None,
        (0, all) => (
            Code::ArtifactReplaced,
            format!(
                "{id} found {} of artifacts corrupt since it started; good copies have replaced them",
                count(all, "chunk")
            ),
            "check the disk: a failing disk may corrupt more".to_owned(),
        ),
        (now, _) => (
            Code::ArtifactCorrupt,
            format!("{id} holds {} of artifacts that are corrupt (checksum)", count(now, "chunk")),
            "check the disk; other replicas answer reads, and it fetches them again: tontine artifact list"
                .to_owned(),
        ),
    };
    Some(Finding { code, node: Some(status.id()), store: None, what, next })
}

#[cfg(test)]
mod tests {
    use model::readonly::Push;
    use model::{ArtifactNumber, ManifestDigest, Node, NodeId, Ring, StoreName, Zone};
    use serde_json::json;

    use super::*;

    fn cluster() -> Cluster {
        let zone = Zone("z".to_owned());
        let node = Node::new(NodeId(1), zone.clone(), "h1:1".to_owned(), None);
        let ring = Ring::equal_slices(4, &[(NodeId(1), zone)]);
        let name = StoreName::new("words").unwrap();
        let digest = ManifestDigest([1; 16]);
        let store =
            ReadOnlyStore::new(name, 1).stage(ArtifactNumber(7), digest, "s3://tables/words 7").unwrap();
        let store = store.swap(ArtifactNumber(7)).unwrap();
        Cluster { read_only: vec![store], ..Cluster::new("test", vec![node], ring, Vec::new()) }
    }

    fn findings(entry: &Json, fetching: &Json) -> Vec<(String, String, String)> {
        let mut entry = entry.clone();
        (entry["store"], entry["number"]) = (json!("words"), json!(7));
        let answer = json!({ "read_only": { "artifacts": [entry], "fetching": fetching } });
        let cluster = cluster();
        let status = NodeStatus { node: cluster.nodes[0].clone(), answer: Ok(answer), ahead_ms: None };
        let found = found(&cluster, &[status], None);
        let told = |finding: &Finding| {
            let code = finding.json()["code"].as_str().unwrap().to_owned();
            (code, finding.what.clone(), finding.next.clone())
        };
        found.iter().map(told).collect()
    }

    #[test]
    fn each_trouble_of_an_artifact_has_its_finding_with_the_command_that_helps() {
        let failed = |trouble: &str| {
            let entry = json!({ "state": "failed", "trouble": trouble, "error": "it said no" });
            let found = findings(&entry, &Json::Null);
            assert_eq!(found.len(), 1, "{found:?}");
            found.into_iter().next().unwrap()
        };
        let (code, what, next) = failed("source");
        assert_eq!(code, "artifact-source-away");
        assert_eq!(what, "n1 cannot fetch artifact 7 of store words, and no replica gives it: it said no");
        assert!(next.ends_with("tontine artifact check 's3://tables/words 7'"), "{next}");
        assert_eq!(failed("corrupt").0, "artifact-source-corrupt");
        assert!(failed("corrupt").2.ends_with("tontine artifact check 's3://tables/words 7'"));
        assert_eq!(failed("node").0, "artifact-failed");
        let (code, _, next) = failed("room");
        assert_eq!(code, "artifact-no-room");
        assert!(next.ends_with("tontine artifact delete words NUMBER"), "{next}");
        let (code, what, next) = failed("quota");
        assert_eq!((&code[..], &what[..]), ("artifact-over-limit", "it said no"));
        assert!(next.ends_with("tontine artifact delete words NUMBER"), "{next}");
    }

    /// The doctor called the cluster unhealthy for the source of a push that the next one had overtaken.
    #[test]
    fn a_push_that_is_overtaken_asks_for_no_source() {
        let mut cluster = cluster();
        let served = ReadOnlyStore::new(StoreName::new("words").unwrap(), 1);
        let served = served.stage(ArtifactNumber(6), ManifestDigest([2; 16]), "file:///6").unwrap();
        let served = served.stage(ArtifactNumber(7), ManifestDigest([1; 16]), "file:///7").unwrap();
        cluster.read_only = vec![served.swap(ArtifactNumber(7)).unwrap()];
        let entry =
            json!({ "store": "words", "number": 6, "state": "failed", "trouble": "corrupt", "error": "no" });
        let answer = json!({ "read_only": { "artifacts": [entry] } });
        let status = NodeStatus { node: cluster.nodes[0].clone(), answer: Ok(answer), ahead_ms: None };
        let found = found(&cluster, &[status], None);
        assert_eq!(found[0].json()["code"], "artifact-overtaken");
        assert!(
            !found[0].is_bad() && found[0].next.ends_with("tontine artifact abort words 6"),
            "{}",
            found[0].next
        );
    }

    #[test]
    fn a_node_that_lags_behind_what_is_served_and_one_with_damage_are_named() {
        let lags = json!({ "state": "fetching", "bytes": 1 << 20, "bytes_total": 4 << 20 });
        let found = findings(&lags, &Json::Null);
        assert_eq!(found[0].0, "artifact-behind");
        assert!(
            found[0].1.starts_with("n1 holds 1.0 MiB of 4.0 MiB of artifact 7, which store words serves")
        );
        let staged = json!({ "state": "staged", "bytes": 1, "bytes_total": 1 });
        assert_eq!(findings(&staged, &Json::Null), []);
        let codes = |now: u64, all: u64| {
            let fetching = json!({ "chunks_corrupt_now": now, "chunks_corrupt": all });
            findings(&staged, &fetching).into_iter().map(|found| found.0).collect::<Vec<_>>()
        };
        assert_eq!((codes(0, 0), codes(0, 2)), (vec![], vec!["artifact-replaced".to_owned()]));
        assert_eq!(codes(1, 2), ["artifact-corrupt"]);
    }

    #[test]
    fn a_node_that_fetches_and_a_headmaster_that_is_missing_are_named() {
        let mut cluster = cluster();
        let store = ReadOnlyStore::new(StoreName::new("words").unwrap(), 1);
        let pushed = store.push(ArtifactNumber(7), ManifestDigest([1; 16]), "file:///7", &Push::default());
        cluster.read_only = vec![pushed.unwrap()];
        let look = |state: &str, has_headmaster: bool| {
            let entry =
                json!({ "store": "words", "number": 7, "state": state, "bytes": 1, "bytes_total": 4 });
            let answer = json!({ "read_only": { "artifacts": [entry] } });
            let status = NodeStatus { node: cluster.nodes[0].clone(), answer: Ok(answer), ahead_ms: None };
            let seen = Seen {
                generation: 1,
                waiting: Vec::new(),
                plan: None,
                has_headmaster,
                headmaster_silent: None,
                order: None,
            };
            let found = found(&cluster, &[status], Some(&seen));
            found.iter().map(|found| found.json()["code"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(look("fetching", true), ["artifact-fetching"]);
        assert_eq!(look("waiting", false), ["artifact-fetching"]);
        assert_eq!(look("staged", false), ["artifact-unserved"]);
        assert!(look("staged", true).is_empty(), "it will be served in a moment");
    }
}
