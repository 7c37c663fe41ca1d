//! Plans that cut, join and double partitions, whoever ends meanwhile.

use control::headmaster::office::Office;
use model::limits::BUCKETS_DEFAULT;
use model::order::Order;
use model::plan::{Phase, PlanDocument};
use model::{Generation, Partition, PartitionId};
use protocol::rebalance::planner::{Consent, Cut, Reshape, Wish};

use super::played::{PARTITIONS, Told, World, publish, settle, turn};

fn create(wish: Wish) -> Order {
    Order::Create { wish, consent: Consent::default() }
}

fn split(partition: u32) -> Wish {
    Wish::Split { partition: PartitionId(partition), at: None }
}

fn merge(partition: u32, other: u32) -> Wish {
    Wish::Merge { partition: PartitionId(partition), other: PartitionId(other) }
}

/// Four nodes, so that neighbours lie on different ones.
async fn four() -> (World, Office) {
    let world = World::of(4).await;
    let mut office = world.office();
    settle(&mut office).await;
    (world, office)
}

/// Creates a plan and has it carried out.
async fn carried_out(world: &World, office: &mut Office, wish: Wish) -> PlanDocument {
    let created = world.order(office, create(wish)).await;
    let number = created.plan.unwrap_or_else(|| panic!("{}", created.text));
    let applied = world.order(office, Order::Apply { plan: number }).await;
    assert!(applied.done, "{}", applied.text);
    settle(office).await;
    let planned = world.plan(number).await;
    assert_eq!(planned.state.unwrap().phase, Phase::Done);
    planned.plan
}

async fn refused(world: &World, office: &mut Office, order: Order) -> String {
    let before = world.cluster().await;
    let Told { done, text, .. } = world.order(office, order).await;
    assert!(!done, "{text}");
    assert_eq!(world.cluster().await, before, "{text}");
    text
}

#[tokio::test]
async fn a_partition_is_split_and_merged_again_and_all_are_doubled_by_one_document_each() {
    let (world, mut office) = four().await;
    let first = world.cluster().await;
    assert_eq!(first.buckets, BUCKETS_DEFAULT);
    let plan = carried_out(&world, &mut office, split(5)).await;
    let second = PartitionId(PARTITIONS as u32);
    let at = (5 << 59) + (1 << 58);
    let cut = Cut { partition: PartitionId(5), at, second };
    assert_eq!(
        (plan.change.moves().len(), plan.change.reshape()),
        (0, Some(&Reshape::Cut { cuts: vec![cut] }))
    );
    let halves = world.cluster().await;
    assert_eq!(halves.generation, Generation(first.generation.0 + 1));
    let half = |id| halves.ring.get(id).unwrap();
    assert_eq!(half(second).start, at);
    assert_eq!(half(second).nodes, half(PartitionId(5)).nodes);
    assert_eq!(half(second).since, halves.generation);
    let back = carried_out(&world, &mut office, merge(second.0, 5)).await;
    let joined = Reshape::Join { partition: PartitionId(5), other: second };
    assert_eq!((back.change.moves().len(), back.change.reshape()), (0, Some(&joined)));
    let lists = |partitions: &[Partition]| {
        partitions.iter().map(|one| (one.id, one.start, one.nodes.clone())).collect::<Vec<_>>()
    };
    assert_eq!(lists(world.cluster().await.ring.partitions()), lists(first.ring.partitions()));
    for times in [2, 4] {
        carried_out(&world, &mut office, Wish::Double).await;
        let doubled = world.cluster().await;
        assert_eq!(doubled.ring.partitions().len(), times * PARTITIONS);
        assert_eq!(doubled.buckets, first.buckets);
    }
    assert_eq!(world.cluster().await.generation, Generation(first.generation.0 + 4));
}

#[tokio::test]
async fn neighbours_on_different_nodes_are_brought_together_by_any_headmasters_and_then_merged() {
    let (world, _) = four().await;
    let first = world.cluster().await;
    let replicas = |id| first.ring.get(PartitionId(id)).unwrap().nodes[..3].to_vec();
    assert_ne!(replicas(0), replicas(1));
    world.give(create(merge(0, 1))).await;
    world.give(Order::Apply { plan: 1 }).await;
    let (mut turns, mut joined) = (0, false);
    // Each turn is the first of another process.
    while turn(&mut world.office()).await {
        turns += 1;
        assert!(turns < 100);
        let cluster = world.cluster().await;
        let moves = cluster.ring.partitions().iter().any(|partition| partition.coming.is_some());
        joined |= cluster.ring.partitions().len() < PARTITIONS;
        assert!(!(joined && moves), "bounds change last");
    }
    let planned = world.plan(1).await;
    let state = planned.state.unwrap();
    assert_eq!((state.phase, state.progress.settled, planned.plan.change.moves().len()), (Phase::Done, 1, 1));
    let cluster = world.cluster().await;
    let whole = cluster.ring.get(PartitionId(0)).unwrap();
    assert_eq!((whole.nodes[..3].to_vec(), cluster.ring.get(PartitionId(1))), (replicas(0), None));
    assert_eq!(cluster.ring.bounds(PartitionId(0)).unwrap().1.0, (2 << 59) - 1);
}

#[tokio::test]
async fn a_merge_that_is_aborted_takes_its_move_back_and_leaves_the_bounds() {
    for turns in 0..12 {
        let (world, mut office) = four().await;
        let first = world.cluster().await;
        assert_eq!(world.order(&mut office, create(merge(0, 1))).await.plan, Some(1));
        assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
        for _ in 0..turns {
            turn(&mut office).await;
        }
        let aborted = world.order(&mut office, Order::Abort { plan: 1 }).await;
        settle(&mut office).await;
        let (cluster, state) = (world.cluster().await, world.plan(1).await.state.unwrap());
        assert!(cluster.ring.partitions().iter().all(|partition| partition.coming.is_none()));
        match cluster.ring.partitions().len() {
            PARTITIONS => assert_eq!((aborted.done, state.phase), (true, Phase::Aborted), "{turns}"),
            _ => assert_eq!(state.phase, Phase::Done, "{turns}: it was too late"),
        }
        let lists = |cluster: &model::Cluster| {
            cluster.ring.partitions()[2..].iter().map(|one| one.nodes.clone()).collect::<Vec<_>>()
        };
        if cluster.ring.partitions().len() == PARTITIONS {
            assert_eq!(lists(&cluster), lists(&first), "nothing else moved");
        }
    }
}

#[tokio::test]
async fn bounds_that_cannot_be_are_refused_with_the_reason_and_change_nothing() {
    let (world, mut office) = four().await;
    let cut = |at| create(Wish::Split { partition: PartitionId(3), at: Some(at) });
    for (order, wanted) in [
        (cut(0), "Cut { partition: PartitionId(3), at: 0,"),
        (cut((3 << 59) + 1), "tokens: 4503599627370496"),
        (create(split(99)), "PartitionUnknown { partition: PartitionId(99) }"),
        (create(merge(3, 5)), "neighbours: [PartitionId(2), PartitionId(4)]"),
        (create(merge(0, 31)), "neighbours: [PartitionId(1)]"),
        (create(merge(3, 3)), "NoNeighbours"),
    ] {
        let text = refused(&world, &mut office, order).await;
        assert!(text.contains(wanted), "{text:?} should say {wanted:?}");
    }
    // A plan that was overtaken, and one over a partition that moves.
    for wish in [split(3), split(3), split(4)] {
        assert!(world.order(&mut office, create(wish)).await.done);
    }
    assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
    settle(&mut office).await;
    let text = refused(&world, &mut office, Order::Apply { plan: 2 }).await;
    assert!(text.contains("OtherBounds"), "{text}");
    publish(&world, |cluster| {
        let mut list = cluster.ring.get(PartitionId(4)).unwrap().nodes.clone();
        list.rotate_left(1);
        let generation = cluster.generation;
        *cluster = protocol::rebalance::steps::begin(cluster, &[(PartitionId(4), list)]).unwrap();
        cluster.generation = generation;
    })
    .await;
    let text = refused(&world, &mut office, create(split(4))).await;
    assert!(text.contains("Moves { partition: PartitionId(4) }"), "{text}");
    let text = refused(&world, &mut office, Order::Apply { plan: 3 }).await;
    assert!(text.contains("Moves { partition: PartitionId(4) }"), "{text}");
}

#[tokio::test]
async fn partitions_are_doubled_down_to_one_bucket_and_no_further() {
    let (world, mut office) = four().await;
    publish(&world, |cluster| cluster.buckets = 2 * PARTITIONS as u32).await;
    carried_out(&world, &mut office, Wish::Double).await;
    let text = refused(&world, &mut office, create(Wish::Double)).await;
    assert!(text.contains("NotDoubled { partition: PartitionId(0), buckets: 64 }"), "{text}");
    let text = refused(&world, &mut office, create(split(7))).await;
    assert!(text.contains("Narrow { partition: PartitionId(7)"), "{text}");
}
