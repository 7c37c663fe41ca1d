//! Buckets: the token space as everything below a node's view is keyed.

use model::{
    Cluster, Consistency, Generation, Node, NodeId, Partition, PartitionId, Ring, Store, StoreName, Token,
    Zone,
};
use proptest::prelude::*;

fn cluster(partitions: Vec<Partition>, buckets: Option<u32>) -> Cluster {
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
        let cluster = cluster(starts.enumerate().map(partition).collect(), Some(64));
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
fn in_a_cluster_from_before_buckets_each_partition_is_one() {
    let old = cluster(equal(8), None);
    assert_eq!((old.bucket_count(), old.by_bucket()), (Some(8), old.ring.clone()));
    assert!(!serde_json::to_string(&old).unwrap().contains("buckets"), "programs from before it read it");
    let named = cluster(equal(8), Some(8));
    assert_eq!(named.by_bucket(), old.by_bucket(), "what lies on disks stays where it is");
    assert!(serde_json::to_string(&named).unwrap().contains(r#""form":3"#), "they would not understand this");
    let mut uneven = equal(8);
    uneven.remove(3);
    assert_eq!(cluster(uneven, None).bucket_count(), None);
}

#[test]
fn partitions_that_are_not_made_of_whole_buckets_are_refused() {
    let error = |cluster: &Cluster| cluster.check().unwrap_err().to_string();
    assert!(
        error(&cluster(equal(8), Some(4))).contains("p1 does not begin where one of the 4 buckets begins")
    );
    assert!(error(&cluster(equal(8), Some(1))).contains("p1 does not begin"));
    assert!(error(&cluster(equal(8), Some(12))).contains("12 buckets"));
    assert!(error(&cluster(equal(1), Some(0))).contains("0 buckets"));
    assert_eq!(cluster(equal(1), Some(1)).check(), Ok(()));
    assert_eq!(cluster(equal(1), Some(1)).by_bucket().partitions().len(), 1);
}
