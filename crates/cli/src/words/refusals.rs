//! Why a wish cannot be fulfilled.

use model::cluster::NumbersError;
use model::plan::PlanRefusal;
use model::{NodeId, PartitionId};

/// Why a wish cannot be fulfilled, and what may be done.
pub(crate) fn wish_refused(refusal: &PlanRefusal) -> String {
    match refusal {
        PlanRefusal::NodeUnknown { node } => node_unknown(*node),
        PlanRefusal::PartitionUnknown { partition } => {
            format!(
                "the ring has no partition {partition}; `tontine status` says how many it has, and `tontine route KEY` in which \
                 one a key lies"
            )
        }
        PlanRefusal::Moves { partition } => {
            format!("partition {partition} is still moving: wait until it has settled, or abort its plan")
        }
        PlanRefusal::Numbers(error) => numbers_refused(error),
        PlanRefusal::NotHeld { partition, node } => {
            format!("{node} is no replica of partition {partition}")
        }
        PlanRefusal::HeldAlready { partition, node } => {
            format!(
                "{node} is a replica of partition {partition} already; name a node that is not, such as one that you add with \
                 `tontine node add NEW --standby`"
            )
        }
        PlanRefusal::TakesNothing { node, is_gone: false } => format!(
            "{node} takes no new data: it is leaving or a standby; if it is to take its share, run `tontine node \
             recommission {}`",
            node.0
        ),
        PlanRefusal::TakesNothing { node, is_gone: true } => format!(
            "{node} was declared dead and takes no new data; give its places to a node that holds none, with `tontine node \
             replace {} NEW`",
            node.0
        ),
        PlanRefusal::TooFewNodes { left, needed, leaving } => too_few(*left, *needed, leaving),
        PlanRefusal::TooFewZones { left, before } => format!(
            "replicas would lie in {left} zones, and they can lie in {before} at present: accept fewer zones to go \
             on"
        ),
        PlanRefusal::TooLarge { partitions, bytes, bytes_max } => format!(
            "a cluster document with {partitions} partitions has {bytes} bytes, over the limit of {bytes_max}"
        ),
        PlanRefusal::TooMany { partitions, partitions_max } => {
            format!("the ring would have {partitions} partitions, over the limit of {partitions_max}")
        }
        PlanRefusal::Cut { partition, at, between: (first, last), tokens } => format!(
            "partition {partition} cannot be cut at token {at}: it can be cut from {first} to {last}, at multiples \
             of {tokens}, where buckets begin; leave out the token to cut it in the middle"
        ),
        PlanRefusal::Narrow { partition, buckets } => format!(
            "partition {partition} cannot be cut: it is one bucket, and the cluster was made with {buckets} buckets, \
             so it has at most {buckets} partitions; a new cluster may have more: export the data and load it there"
        ),
        PlanRefusal::NotDoubled { partition, buckets } => format!(
            "not every partition can be cut: {partition} is one bucket of the {buckets} that the cluster was made \
             with; cut those that are wider with `tontine plan create split`"
        ),
        PlanRefusal::NoNeighbours { partition, other, neighbours } => {
            let all: Vec<String> = neighbours.iter().map(PartitionId::to_string).collect();
            let instead = match &all[..] {
                [] => format!("{partition} is the only partition"),
                all => format!("{partition} can be merged with {}", all.join(" or ")),
            };
            format!("partitions {partition} and {other} are no neighbours: {instead}")
        }
        PlanRefusal::OtherLists { partition, other } => format!(
            "partitions {partition} and {other} lie on different nodes; bring them together with a new plan: \
             `tontine plan create merge {partition} {other}`"
        ),
        of_golden_ring => golden(of_golden_ring),
    }
}

/// That too few nodes would be left, and what ends that.
fn too_few(left: usize, needed: usize, leaving: &[NodeId]) -> String {
    let few = format!("{left} nodes would be left to hold data, and {needed} replicas are needed");
    match leaving {
        [] => format!("{few}; add a node first with `tontine node add NEW`"),
        [node, others @ ..] => {
            let names = super::names(leaving);
            let count = if others.is_empty() { "counts" } else { "count" };
            format!(
                "{few}: {names} still {count} as leaving, after an earlier drain; keep {node} with `tontine node recommission \
                 {}`, or add a node first with `tontine node add NEW`",
                node.0
            )
        }
    }
}

/// Why a wish about a golden ring cannot be fulfilled.
fn golden(refusal: &PlanRefusal) -> String {
    match refusal {
        PlanRefusal::Golden { wish } => golden_refused(wish),
        PlanRefusal::NotGolden => {
            "the ring is not golden, so no partition is cut for a node that joins; give it its share of the data with `tontine \
             plan create spread`"
                .to_owned()
        }
        PlanRefusal::HasPartition { node, partition } => {
            format!(
                "{node} has partition {partition} of the golden ring already, and a node has one; see what each holds with \
                 `tontine status`, and add another node with `tontine node add NEW`"
            )
        }
        PlanRefusal::Uneven { node, weight, zone, zone_wanted } => format!(
            "a golden ring has neither weights nor zones, and {node} has weight {weight} and zone {zone}, while the others \
             have weight 100 and zone {zone_wanted}; start it with an empty data directory and `tontine serve --zone \
             {zone_wanted}`"
        ),
        PlanRefusal::NoFigures { is_off: true, .. } => {
            "nobody measures which partition has most load, because the autopilot is off; let it look with `tontine balance \
             observe`, or leave out --hottest to cut the largest partition"
                .to_owned()
        }
        PlanRefusal::NoFigures { seconds: Some(seconds), .. } => format!(
            "there are no figures yet of which partition has most load; ask again in {seconds} s, or leave out --hottest to \
             cut the largest partition"
        ),
        PlanRefusal::NoFigures { .. } => {
            "there are no figures of which partition has most load: none was used lately, or a node does not say (`tontine \
             balance why`); leave out --hottest to cut the largest partition"
                .to_owned()
        }
        PlanRefusal::NotHalved { partition } => format!(
            "partition {partition} has most load, and no cut is known that halves it: it had too few requests lately, or most \
             of its load lies in one bucket; ask again under load, or leave out --hottest to cut the largest partition"
        ),
        other => format!("it is refused: {other:?}"),
    }
}

/// What is not done on a golden ring, and what is done instead.
fn golden_refused(wish: &str) -> String {
    let (what, instead) = match wish {
        "spread" => (
            "data is not spread over it by share",
            "a node gets its part with `tontine node add NODE`, and gives it away with `tontine node drain NODE`",
        ),
        "double" => ("not every partition is cut", "`tontine node add NODE` cuts the largest one"),
        "weight" => (
            "nodes have no weights",
            "cut the partition with most load for a new node with `tontine node add NODE --hottest`",
        ),
        "merge" => (
            "partitions of two nodes do not become one while both stay",
            "a node gives its partition away with `tontine node drain NODE`",
        ),
        _ => (
            "where copies lie follows from whose the partitions are",
            "move a node's partition with `tontine plan create replace NODE --by OTHER`",
        ),
    };
    format!("the ring is golden, with one partition for each node, so {what}: {instead}")
}

/// That a node is no member, and how it becomes one.
pub(super) fn node_unknown(node: NodeId) -> String {
    format!(
        "the cluster has no node {node}; `tontine node list` shows its members and the nodes that wait; one that waits becomes \
         a member with `tontine node add {}`",
        node.0
    )
}

/// Why the numbers of a store cannot change, and what may be done.
pub(super) fn numbers_refused(error: &NumbersError) -> String {
    format!("{error}{}", advice(error))
}

/// What may be done when the numbers of a store cannot change.
fn advice(error: &NumbersError) -> &'static str {
    match error {
        NumbersError::Zones { .. } => ": move partitions first, or accept it with --accept-fewer-zones",
        NumbersError::Weaker { .. } => ": accept it with --accept-weaker",
        NumbersError::Nodes { .. } | NumbersError::Listed { .. } => {
            ": add nodes first, and give them data with `tontine plan create spread` (on a golden ring `tontine node add` does)"
        }
        NumbersError::Changes { .. } | NumbersError::Moves { .. } => {
            ": wait until it has settled, or abort its plan"
        }
        NumbersError::NoStore { .. } => "; list them with `tontine store list`",
        NumbersError::Same { .. } | NumbersError::Store(_) => "",
    }
}

#[cfg(test)]
mod tests {
    use model::Consistency;

    use super::*;

    #[test]
    fn what_cannot_be_done_is_told_with_what_can_be_done_instead() {
        let partition = PartitionId(1);
        let told = |refusal: PlanRefusal| wish_refused(&refusal);
        assert_eq!(
            told(PlanRefusal::Cut { partition, at: 7, between: (4, 12), tokens: 4 }),
            "partition p1 cannot be cut at token 7: it can be cut from 4 to 12, at multiples of 4, where buckets begin; \
             leave out the token to cut it in the middle"
        );
        assert_eq!(
            told(PlanRefusal::Narrow { partition, buckets: 16 }),
            "partition p1 cannot be cut: it is one bucket, and the cluster was made with 16 buckets, so it has at most 16 \
             partitions; a new cluster may have more: export the data and load it there"
        );
        assert_eq!(
            told(PlanRefusal::NotDoubled { partition, buckets: 16 }),
            "not every partition can be cut: p1 is one bucket of the 16 that the cluster was made with; cut those that \
             are wider with `tontine plan create split`"
        );
        assert_eq!(
            told(PlanRefusal::OtherLists { partition, other: PartitionId(2) }),
            "partitions p1 and p2 lie on different nodes; bring them together with a new plan: `tontine plan create merge \
             p1 p2`"
        );
        assert_eq!(
            told(PlanRefusal::NodeUnknown { node: NodeId(9) }),
            "the cluster has no node n9; `tontine node list` shows its members and the nodes that wait; one that waits \
             becomes a member with `tontine node add 9`"
        );
        let too_few = |leaving: &[u32]| {
            let leaving = leaving.iter().copied().map(NodeId).collect();
            told(PlanRefusal::TooFewNodes { left: 2, needed: 3, leaving })
        };
        assert!(too_few(&[]).ends_with("are needed; add a node first with `tontine node add NEW`"));
        assert_eq!(
            too_few(&[4]),
            "2 nodes would be left to hold data, and 3 replicas are needed: n4 still counts as leaving, after an \
             earlier drain; keep n4 with `tontine node recommission 4`, or add a node first with `tontine node add NEW`"
        );
        assert!(too_few(&[4, 5]).contains(": n4, n5 still count as leaving"));
        let takes_nothing = |is_gone| told(PlanRefusal::TakesNothing { node: NodeId(2), is_gone });
        assert!(takes_nothing(false).ends_with("run `tontine node recommission 2`"));
        assert_eq!(
            takes_nothing(true),
            "n2 was declared dead and takes no new data; give its places to a node that holds none, with `tontine node \
             replace 2 NEW`"
        );
        assert_eq!(
            told(PlanRefusal::HeldAlready { partition, node: NodeId(2) }),
            "n2 is a replica of partition p1 already; name a node that is not, such as one that you add with `tontine node \
             add NEW --standby`"
        );
        let neighbours = Vec::new();
        assert_eq!(
            told(PlanRefusal::NoNeighbours { partition, other: partition, neighbours }),
            "partitions p1 and p1 are no neighbours: p1 is the only partition"
        );
        let weaker = NumbersError::Weaker {
            numbers: Consistency { replicas: 3, reads_required: 1, writes_required: 2 },
        };
        assert_eq!(
            told(PlanRefusal::Numbers(weaker)),
            "with N=3, R=1 and W=2 a get may miss an acknowledged write, because R + W is not above N: accept it with \
             --accept-weaker"
        );
    }
}
