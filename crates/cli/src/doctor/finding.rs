//! One thing that the doctor found: a stable code for programs, words for people.
//!
//! A code never changes its meaning and is never given to another finding. `docs/reference/doctor.md` is this table; a
//! test keeps the two equal.

use model::NodeId;
use serde_json::{Value as Json, json};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// Somebody has to act: the command exits with 1.
    Bad,
    /// Worth knowing.
    Note,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Bad => "bad",
            Severity::Note => "note",
        }
    }
}

macro_rules! codes {
    ($($variant:ident $name:literal $severity:ident $meaning:literal;)*) => {
        /// What a finding is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Code {
            $(#[doc = $meaning] $variant,)*
        }

        impl Code {
            /// Every code with its name, its severity and what it means.
            #[cfg(test)]
            const TABLE: &'static [(&'static str, Severity, &'static str)] =
                &[$(($name, Severity::$severity, $meaning),)*];

            fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }

            fn severity(self) -> Severity {
                match self { $(Code::$variant => Severity::$severity,)* }
            }
        }
    };
}

codes! {
    QuorumsDoNotIntersect "quorums-do-not-intersect" Note
        "R + W of the store is not above N, so a get may miss an acknowledged put.";
    TooFewNodes "too-few-nodes" Bad
        "The store requires more replicas than the cluster has nodes.";
    NodeDown "node-down" Bad
        "The node does not answer.";
    NodeAvoided "node-avoided" Bad
        "The node answers this command, and is not alive to other nodes, nor was a second before.";
    ReplicasMissing "replicas-missing" Bad
        "Partitions of the store have fewer than R replicas up: whether a key is absent there is unavailable.";
    NodeReplaced "node-replaced" Note
        "The node is away, and the autopilot will let a standby take its places.";
    NodeWaits "node-waits" Note
        "A node is registered and waits to become a member.";
    NodeEmpty "node-empty" Note
        "A member of a golden ring holds nothing, and gets nothing by itself.";
    NodeLeaving "node-leaving" Note
        "A node counts as leaving and keeps its data, since no plan moves that off it: its drain was aborted.";
    NodeLeft "node-left" Note
        "A node has left the cluster, and its process still runs.";
    ClockOff "clock-off" Bad
        "The node's clock differs by more than a minute from those of most nodes.";
    PasswordMissing "password-missing" Bad
        "The node serves Redis clients without a password, while other nodes require one.";
    CertificateExpires "certificate-expires" Bad
        "The node's certificate expires within 30 days.";
    CertificateExpired "certificate-expired" Bad
        "The node's certificate has expired.";
    PlainAccepted "plain-accepted" Bad
        "The node takes connections without TLS although the cluster has users.";
    AnyoneWrites "anyone-writes" Bad
        "Clients without a secret may do everything, or write every store.";
    StorageStopped "storage-stopped" Bad
        "A write or a sync of the node failed, and its storage has stopped.";
    DiskFull "disk-full" Bad
        "The node refuses writes because its disk has no room for them.";
    DiskLow "disk-low" Note
        "The node is running out of disk space.";
    GenerationDiffers "generation-differs" Bad
        "The node follows another generation of the cluster than this client, and did so a second before.";
    DocumentsOlder "documents-older" Bad
        "The coordination service holds an older cluster document than the node: it was restored from an older copy.";
    CoordinationEmpty "coordination-empty" Bad
        "The coordination service holds no cluster although nodes run: its documents are lost.";
    CoordinationAway "coordination-away" Note
        "This command cannot read the documents of the coordination service; data is served without them.";
    HintsRefused "hints-refused" Note
        "The node has refused hints because its hints reached their limit.";
    HintsWaiting "hints-waiting" Note
        "Other nodes hold hints for the node.";
    Refilling "refilling" Bad
        "The node has lost records and is refilling them from its peers.";
    EpochNotCompared "epoch-not-compared" Bad
        "The node has not verified yet that its data directory is current.";
    RepairStopped "repair-stopped" Bad
        "Replica repair is stopped on the node.";
    RepairPartsStopped "repair-parts-stopped" Bad
        "Replica repair is stopped on the node for some stores or partitions.";
    TombstonesWaiting "tombstones-waiting" Note
        "Tombstones cannot be removed because the node has not confirmed the deletions.";
    PartitionsMoving "partitions-moving" Note
        "Partitions are on the way to other nodes; the finding says for whom they wait.";
    OrderWaiting "order-waiting" Bad
        "An order of an operator has no answer: the headmaster is busy, or its process is suspended.";
    HeadmasterMissing "headmaster-missing" Bad
        "No headmaster runs: no plan or order is carried out, while nodes serve requests.";
    HeadmasterSilent "headmaster-silent" Bad
        "The process that holds the office of headmaster hangs: plans and orders wait for it.";
    BalanceStopped "balance-stopped" Bad
        "The autopilot turned itself to *observe*: three plans in a row did hardly any good.";
    BalanceUnread "balance-unread" Bad
        "The policy of the autopilot cannot be read: the last one that could is in force.";
    LeftoversHeld "leftovers-held" Note
        "The node holds records of partitions that other nodes hold now.";
    ChorePanics "chore-panics" Bad
        "Work in the background of the node meets a bug: it panicked and rests before it is started again.";
    ChorePanicked "chore-panicked" Note
        "Work in the background of the node met a bug and panicked since the node started; it has gone on without one since.";
    RecordsDamaged "records-damaged" Bad
        "The node holds corrupt records that have not been replaced yet.";
    RecordsReplaced "records-replaced" Note
        "The node found corrupt records, and good copies have replaced them.";
    LogDamaged "log-damaged" Bad
        "The node found corruption in its log and cannot tell which keys were there.";
    ArtifactSourceAway "artifact-source-away" Bad
        "The node cannot fetch an artifact: neither its source nor a replica gives it.";
    ArtifactOvertaken "artifact-overtaken" Note
        "The node cannot fetch an artifact, and the store serves a newer one.";
    ArtifactSourceCorrupt "artifact-source-corrupt" Bad
        "The node cannot fetch an artifact because its source is damaged.";
    ArtifactNoRoom "artifact-no-room" Bad
        "The node cannot fetch an artifact because its disk has too little room.";
    ArtifactOverLimit "artifact-over-limit" Bad
        "The node does not fetch an artifact because artifacts would take more of its disk than its operator allows.";
    ArtifactFailed "artifact-failed" Bad
        "The node cannot store or open an artifact, for a reason that lies with the node.";
    ArtifactBehind "artifact-behind" Note
        "The node lacks a part of the artifact that a read-only store serves, and is fetching it.";
    ArtifactFetching "artifact-fetching" Note
        "The node fetches an artifact that no store serves now.";
    ArtifactUnserved "artifact-unserved" Bad
        "All nodes hold an artifact that is pushed, and no headmaster runs that serves it.";
    ArtifactCorrupt "artifact-corrupt" Bad
        "The node holds corrupt chunks of artifacts that have not been replaced yet.";
    ArtifactReplaced "artifact-replaced" Note
        "The node found corrupt chunks of artifacts, and good copies have replaced them.";
}

/// One thing that the doctor found.
pub(super) struct Finding {
    pub(super) code: Code,
    /// The node that it is about.
    pub(super) node: Option<NodeId>,
    /// The store that it is about.
    pub(super) store: Option<String>,
    /// What failed, and why.
    pub(super) what: String,
    /// What to do about it; a command comes last.
    pub(super) next: String,
}

impl Finding {
    /// True when somebody has to act.
    pub(super) fn is_bad(&self) -> bool {
        self.code.severity() == Severity::Bad
    }

    /// For programs.
    pub(super) fn json(&self) -> Json {
        json!({
            "code": self.code.name(),
            "severity": self.code.severity().name(),
            "node": self.node,
            "store": self.store,
            "what": self.what,
            "next": self.next,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_lists_every_code_and_no_other() {
        let page = include_str!("../../../../docs/reference/doctor.md");
        let listed: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let expected: Vec<String> = Code::TABLE
            .iter()
            .map(|(name, severity, meaning)| format!("| `{name}` | {} | {meaning} |", severity.name()))
            .collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn a_finding_for_programs_has_a_code_a_severity_a_node_and_a_store() {
        let store = Some("default".to_owned());
        let (what, next) = ("it failed".to_owned(), "mend it".to_owned());
        let finding = Finding { code: Code::DiskFull, node: Some(NodeId(3)), store, what, next };
        let expected = json!({
            "code": "disk-full", "severity": "bad", "node": 3, "store": "default",
            "what": "it failed", "next": "mend it",
        });
        assert_eq!((finding.json(), finding.is_bad()), (expected, true));
        let finding = Finding { code: Code::HintsWaiting, node: None, store: None, ..finding };
        assert_eq!((&finding.json()["node"], &finding.json()["store"]), (&Json::Null, &Json::Null));
        assert!(!finding.is_bad());
    }
}
