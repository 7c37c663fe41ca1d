//! Buckets: the token space as everything below a node's view is keyed.

use model::{
    Cluster, Consistency, Generation, Node, NodeId, Partition, PartitionId, Ring, Store, StoreName, Token,
    Zone,
};
use proptest::prelude::*;

fn cluster(partitions: Vec<Partition>, buckets: u32) -> Cluster {
    let nodes = (1..=4).map(|id| Node::new(NodeId(id), Zone("z".to_owned()), "h:1", None)).collect();
    let consistency = Consistency { replicas: 2, reads_required: 1, writes_required: 2 };
    let store = Store::new(StoreName::new("s").unwrap(), consistency).unwrap();
    let cluster = Cluster::new("test", nodes, Ring::new(partitions).unwrap(), vec![store]);
    Cluster { generation: Generation(9), buckets, ..cluster }
}

fn equal(count: usize) -> Vec<Partition> {
    let nodes: Vec<_> = (1..=4).map(|id| (NodeId(id), Zone("z".to_owned()))).collect();
    Ring::equal_slices(count, &nodes).into()
}

proptest! {
    /// Whatever the partitions are: each bucket says what its partition says, and keeps its number and its tokens.
    #[test]
    fn each_bucket_says_what_its_partition_says(cuts in proptest::collection::btree_set(1_u64..64, 0..20), tokens: Vec<u64>) {
        let starts = std::iter::once(0).chain(cuts);
        let partition = |(number, start): (usize, u64)| {
            let nodes = vec![NodeId(1 + number as u32 % 4), NodeId(1 + (number as u32 + 1) % 4)];
            let id = PartitionId(100 - number as u32);
            Partition { since: Generation(number as u64 % 9), ..Partition::settled(id, start << 58, nodes) }
        };
        let cluster = cluster(starts.enumerate().map(partition).collect(), 64);
        prop_assert_eq!(cluster.check(), Ok(()));
        let read: Cluster = serde_json::from_slice(&serde_json::to_vec(&cluster).unwrap()).unwrap();
        prop_assert_eq!(&read, &cluster);
        let buckets = cluster.by_bucket();
        prop_assert_eq!(buckets.partitions().len(), 64);
        let edges = (0..64).flat_map(|number: u64| [number << 58, ((number << 58) | ((1 << 58) - 1))]);
        for token in tokens.into_iter().chain(edges) {
            let (bucket, owner) = (buckets.partition(Token(token)), cluster.ring.partition(Token(token)));
            prop_assert_eq!(u64::from(bucket.id.0), token >> 58);
            let of_owner = Partition { id: bucket.id, start: bucket.start, ..owner.clone() };
            prop_assert_eq!(bucket, &of_owner);
        }
    }
}

#[test]
fn a_new_cluster_has_as_few_buckets_as_its_partitions_can_be_made_of() {
    let buckets = |partitions: Vec<Partition>| {
        let made = cluster(partitions, 1);
        Cluster::new("test", made.nodes, made.ring, made.stores).buckets
    };
    assert_eq!((buckets(equal(1)), buckets(equal(8))), (1, 8));
    let mut uneven = equal(8);
    uneven.remove(3);
    assert_eq!(buckets(uneven.clone()), 8);
    uneven.retain(|partition| partition.start % (1 << 62) == 0);
    assert_eq!(buckets(uneven), 4);
}

#[test]
fn partitions_that_are_not_made_of_whole_buckets_are_refused() {
    let error = |cluster: &Cluster| cluster.check().unwrap_err().to_string();
    assert!(error(&cluster(equal(8), 4)).contains("p1 does not begin where one of the 4 buckets begins"));
    assert!(error(&cluster(equal(8), 1)).contains("p1 does not begin"));
    assert!(error(&cluster(equal(8), 12)).contains("12 buckets"));
    assert!(error(&cluster(equal(1), 0)).contains("0 buckets"));
    assert_eq!(cluster(equal(1), 1).check(), Ok(()));
    assert_eq!(cluster(equal(1), 1).by_bucket().partitions().len(), 1);
}
