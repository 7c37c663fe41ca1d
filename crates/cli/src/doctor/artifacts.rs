//! What the doctor finds of read-only stores: sources that give nothing, disks without room, damage, nodes that lag.

use model::artifacts::Standing;
use model::order::Office;
use model::{ArtifactNumber, Cluster, ListedArtifact, ReadOnlyStore};
use protocol::report::{ArtifactProgress, ArtifactState, ArtifactTrouble, Fetching};

use super::finding::{Code, Finding};
use crate::holder::shell;
use crate::output::program;
use crate::status::NodeStatus;
use crate::text::{count, size};

/// What is wrong with the artifacts of nodes that answer.
pub(super) fn found(cluster: &Cluster, nodes: &[NodeStatus], seen: Option<&Office>) -> Vec<Finding> {
    let mut findings = unserved(cluster, nodes, seen);
    for status in nodes {
        let Some(told) = status.report().and_then(|report| report.artifacts.as_ref()) else { continue };
        for store in &cluster.read_only {
            for listed in &store.artifacts {
                let progress = progress(status, store, listed);
                findings.extend(progress.and_then(|told| of_artifact(status, (store, listed), told)));
            }
        }
        findings.extend(corrupt_here(status, &told.fetching));
    }
    findings
}

/// How far a node is with an artifact, if it says so.
fn progress<'a>(
    status: &'a NodeStatus,
    store: &ReadOnlyStore,
    listed: &ListedArtifact,
) -> Option<&'a ArtifactProgress> {
    let mut told = status.report()?.artifacts.as_ref()?.listed.iter();
    told.find(|told| told.store == store.name && told.number == listed.number)
}

/// Pushes that wait for nothing but a headmaster.
fn unserved(cluster: &Cluster, nodes: &[NodeStatus], seen: Option<&Office>) -> Vec<Finding> {
    if seen.is_none_or(|seen| seen.headmaster.is_some()) || nodes.is_empty() {
        return Vec::new();
    }
    let holds = |status: &NodeStatus, store: &ReadOnlyStore, listed: &ListedArtifact| {
        progress(status, store, listed).is_some_and(|told| told.state == ArtifactState::Staged)
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
    told: &ArtifactProgress,
) -> Option<Finding> {
    let (id, name, number) = (status.node.id, &store.name, listed.number);
    let finding =
        |code, what, next| Some(Finding { code, node: Some(id), store: Some(name.to_string()), what, next });
    let url = shell(std::slice::from_ref(&listed.source));
    let error = told.error.as_deref().unwrap_or("no reason is known");
    let cannot = format!("{id} cannot fetch artifact {number} of store {name}");
    if let (Some(served), ArtifactState::Failed) = (newer(store, listed), told.state) {
        let what = format!("{cannot}: {error}. Nothing depends on it: the store serves artifact {served}");
        let next = format!("forget it, and its files are removed: tontine artifact abort {name} {number}");
        return finding(Code::ArtifactOvertaken, what, next);
    }
    if told.state == ArtifactState::Failed {
        return match told.trouble {
            Some(ArtifactTrouble::Room) => finding(
                Code::ArtifactNoRoom,
                format!("{cannot}: {error}"),
                format!(
                    "free space on its disk, or delete an artifact: tontine artifact delete {name} NUMBER"
                ),
            ),
            Some(ArtifactTrouble::Quota) => finding(
                Code::ArtifactOverLimit,
                error.to_owned(),
                format!(
                    "end its push: tontine artifact abort {name} {number}; or delete one that you do not need: tontine \
                     artifact delete {name} NUMBER"
                ),
            ),
            Some(ArtifactTrouble::Corrupt) => finding(
                Code::ArtifactSourceCorrupt,
                format!("{cannot}: its source is damaged: {error}"),
                format!(
                    "copy the artifact to its source again; to see what is damaged: tontine artifact check {url}"
                ),
            ),
            Some(ArtifactTrouble::Node) => finding(
                Code::ArtifactFailed,
                format!("{id} cannot store artifact {number} of store {name}: {error}"),
                format!("read the log of {id}; it tries again each second: tontine events --from {}", id.0),
            ),
            Some(ArtifactTrouble::Source) | None => finding(
                Code::ArtifactSourceAway,
                format!("{cannot}, and no replica gives it: {error}"),
                format!(
                    "make its source readable on the machine of {id}, which tries again each second; to try it there: tontine \
                     artifact check {url}"
                ),
            ),
        };
    }
    if told.state == ArtifactState::Staged || told.bytes_total == 0 {
        return None;
    }
    let held = format!("{} of {}", size(told.bytes), size(told.bytes_total));
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
fn corrupt_here(status: &NodeStatus, fetching: &Fetching) -> Option<Finding> {
    let id = status.node.id;
    let (code, what, next) = match (fetching.chunks_corrupt_now, fetching.chunks_corrupt) {
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
    Some(Finding { code, node: Some(id), store: None, what, next })
}

#[cfg(test)]
mod tests {
    use model::artifacts::Push;
    use model::{ArtifactNumber, Generation, ManifestDigest, Node, NodeId, Ring, StoreName, Zone};
    use protocol::report::{ArtifactsReport, Status};

    use model::order::Holder;

    use super::super::tests::answering;
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

    fn progress(number: u64, state: ArtifactState) -> ArtifactProgress {
        ArtifactProgress {
            store: StoreName::new("words").unwrap(),
            number: ArtifactNumber(number),
            manifest: ManifestDigest([1; 16]),
            parent: None,
            serving_ms: None,
            state,
            whole_under: Generation(1),
            bytes: 1,
            bytes_total: 4,
            bytes_fetched: 0,
            bytes_fetched_as_deltas: 0,
            chunks: 0,
            chunks_total: 0,
            error: None,
            trouble: None,
        }
    }

    fn fails(number: u64, trouble: ArtifactTrouble) -> ArtifactProgress {
        let error = Some("it said no".to_owned());
        ArtifactProgress { trouble: Some(trouble), error, ..progress(number, ArtifactState::Failed) }
    }

    fn telling(progress: &ArtifactProgress, fetching: &Fetching) -> NodeStatus {
        let mut status = answering(1, Status::default());
        let (listed, fetching) = (vec![progress.clone()], fetching.clone());
        let artifacts = ArtifactsReport { listed, fetching, ..ArtifactsReport::default() };
        status.answer.as_mut().unwrap().artifacts = Some(artifacts);
        status
    }

    fn findings(progress: &ArtifactProgress, fetching: &Fetching) -> Vec<(String, String, String)> {
        let found = found(&cluster(), &[telling(progress, fetching)], None);
        let told = |finding: &Finding| {
            let code = finding.json()["code"].as_str().unwrap().to_owned();
            (code, finding.what.clone(), finding.next.clone())
        };
        found.iter().map(told).collect()
    }

    #[test]
    fn each_trouble_of_an_artifact_has_its_finding_with_the_command_that_helps() {
        let failed = |trouble| {
            let found = findings(&fails(7, trouble), &Fetching::default());
            assert_eq!(found.len(), 1, "{found:?}");
            found.into_iter().next().unwrap()
        };
        let (code, what, next) = failed(ArtifactTrouble::Source);
        assert_eq!(code, "artifact-source-away");
        assert_eq!(what, "n1 cannot fetch artifact 7 of store words, and no replica gives it: it said no");
        assert!(next.ends_with("tontine artifact check 's3://tables/words 7'"), "{next}");
        assert_eq!(failed(ArtifactTrouble::Corrupt).0, "artifact-source-corrupt");
        assert!(failed(ArtifactTrouble::Corrupt).2.ends_with("tontine artifact check 's3://tables/words 7'"));
        assert_eq!(failed(ArtifactTrouble::Node).0, "artifact-failed");
        let (code, _, next) = failed(ArtifactTrouble::Room);
        assert_eq!(code, "artifact-no-room");
        assert!(next.ends_with("tontine artifact delete words NUMBER"), "{next}");
        let (code, what, next) = failed(ArtifactTrouble::Quota);
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
        let status = telling(&fails(6, ArtifactTrouble::Corrupt), &Fetching::default());
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
        let lags =
            ArtifactProgress { bytes: 1 << 20, bytes_total: 4 << 20, ..progress(7, ArtifactState::Fetching) };
        let found = findings(&lags, &Fetching::default());
        assert_eq!(found[0].0, "artifact-behind");
        assert!(
            found[0].1.starts_with("n1 holds 1.0 MiB of 4.0 MiB of artifact 7, which store words serves")
        );
        let staged = progress(7, ArtifactState::Staged);
        assert_eq!(findings(&staged, &Fetching::default()), []);
        let codes = |chunks_corrupt_now: u64, chunks_corrupt: u64| {
            let fetching = Fetching { chunks_corrupt_now, chunks_corrupt, ..Fetching::default() };
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
        let look = |state, has_headmaster: bool| {
            let status = telling(&progress(7, state), &Fetching::default());
            let holder = Holder { process: "h".to_owned(), silent_ms: None };
            let seen = Office { headmaster: has_headmaster.then_some(holder), ..Office::default() };
            let found = found(&cluster, &[status], Some(&seen));
            found.iter().map(|found| found.json()["code"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(look(ArtifactState::Fetching, true), ["artifact-fetching"]);
        assert_eq!(look(ArtifactState::Waiting, false), ["artifact-fetching"]);
        assert_eq!(look(ArtifactState::Staged, false), ["artifact-unserved"]);
        assert!(look(ArtifactState::Staged, true).is_empty(), "it will be served in a moment");
    }
}
