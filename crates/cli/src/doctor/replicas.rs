//! What the doctor finds of stores' numbers, and of partitions with too few replicas: no node can say there that a key
//! is absent.

use std::collections::BTreeSet;

use model::{Cluster, NodeId, Reads, Store};
use protocol::quorum::{absence_can_be_told, answers_required, values_can_be_told};

use super::finding::{Code, Finding};
use crate::output::program;
use crate::status::NodeStatus;
use crate::text::count;

/// What N, R and W of a store do not allow, or the cluster does not.
pub(super) fn numbers(cluster: &Cluster, store: &Store) -> Vec<Finding> {
    let mut findings = Vec::new();
    let numbers = store.consistency;
    if !numbers.quorums_intersect() {
        findings.push(Finding {
            code: Code::QuorumsDoNotIntersect,
            node: None,
            store: Some(store.name.to_string()),
            what: format!(
                "store {} allows stale reads: R + W is not above N, so a get may miss an acknowledged put",
                store.name
            ),
            next: format!(
                "raise R or W if clients must read their own writes, with `{} store set {} --consistency N,R,W`",
                program(),
                store.name
            ),
        });
    }
    if usize::from(numbers.replicas) > cluster.nodes.len() {
        findings.push(Finding {
            code: Code::TooFewNodes,
            node: None,
            store: Some(store.name.to_string()),
            what: format!(
                "store {} requires {} of each key, and the cluster has only {}",
                store.name,
                count(numbers.replicas.into(), "replica"),
                count(cluster.nodes.len() as u64, "node")
            ),
            next: format!(
                "start {} more with `{} serve`, and make each a member: {} node add NODE",
                usize::from(numbers.replicas) - cluster.nodes.len(),
                program(),
                program()
            ),
        });
    }
    findings
}

/// Each store with partitions of which fewer than R replicas answer.
pub(super) fn too_few(cluster: &Cluster, nodes: &[NodeStatus]) -> Vec<Finding> {
    // A node that refills what it has lost cannot say what is absent, either.
    let is_whole = |status: &&NodeStatus| {
        status.report().is_some_and(|report| report.refill().is_none_or(|refill| !refill.is_under_way()))
    };
    let up: BTreeSet<NodeId> = nodes.iter().filter(is_whole).map(|status| status.node.id).collect();
    cluster.stores.iter().filter_map(|store| too_few_of(cluster, store, &up)).collect()
}

fn too_few_of(cluster: &Cluster, store: &Store, up: &BTreeSet<NodeId>) -> Option<Finding> {
    let required = answers_required(store);
    let mut missing = BTreeSet::new();
    let partitions = cluster.ring.partitions();
    let short = partitions.iter().filter(|partition| {
        let short = !absence_can_be_told(store, partition, |node| up.contains(&node));
        if short {
            let replicas = model::routing::replicas(store, partition).iter().copied();
            missing.extend(replicas.filter(|node| !up.contains(node)));
        }
        short
    });
    let short = short.count();
    // A store that wants more replicas than there are nodes has its own finding.
    (short > 0 && !missing.is_empty()).then(|| {
        let names = missing.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
        let (program, name) = (program(), &store.name);
        let means = match values_can_be_told(store, up.len()) {
            true => "gets there give a value that a node has, but a key that is absent is *unavailable*, and so are conditions",
            false => "gets and conditions there are *unavailable*",
        };
        let fewer = match store.reads {
            Reads::Fast => {
                format!("; until then `{program} get -r 1 KEY` asks a single replica, if one of the key is up")
            }
            Reads::Monotonic => String::new(),
        };
        Finding {
            code: Code::ReplicasMissing,
            node: None,
            store: Some(name.to_string()),
            what: format!(
                "{short} of {} of store {name} have fewer than the {required} whole replicas up that a get needs: {means}",
                count(partitions.len() as u64, "partition")
            ),
            next: format!(
                "start {names} again, or wait where one is refilling; replace a node that is gone for good with `{program} node \
                 replace`{fewer}"
            ),
        }
    })
}

#[cfg(test)]
mod tests {
    use model::{Consistency, Node, Ring, StoreName, Zone};

    use super::*;

    #[test]
    fn a_store_whose_partitions_have_fewer_than_r_replicas_up_is_named_with_the_nodes_that_are_down() {
        let nodes: Vec<Node> = (1..=5)
            .map(|id| Node::new(NodeId(id), Zone(format!("z{id}")), format!("n{id}:1"), None))
            .collect();
        let zones: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
        let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
        let store = Store::new(StoreName::new("carts").unwrap(), consistency).unwrap();
        let cluster = Cluster::new("c", nodes, Ring::equal_slices(128, &zones), vec![store.clone()]);
        let found = |up: &[u32]| too_few_of(&cluster, &store, &up.iter().copied().map(NodeId).collect());
        assert!(found(&[1, 2, 3, 4, 5]).is_none() && found(&[1, 2, 3, 4]).is_none());
        let finding = found(&[1, 2, 3]).expect("some partitions have two of n4 and n5");
        assert!(finding.what.contains("of 128 partitions of store carts"), "{}", finding.what);
        assert!(finding.next.starts_with("start n4, n5 again"), "{}", finding.next);
        assert!(finding.what.contains("gets there give a value"), "{}", finding.what);
        let alone = found(&[1]).expect("no partition has two");
        assert!(alone.what.ends_with("gets and conditions there are *unavailable*"), "{}", alone.what);
    }
}
