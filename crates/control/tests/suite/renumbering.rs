//! Plans by which a store gets other numbers, whoever ends meanwhile.

use control::headmaster::office::Office;
use coordination::documents::{ActiveNode, register};
use model::order::Order;
use model::plan::{Phase, Reason};
use model::{Cluster, Consistency, NodeId, Step};
use protocol::rebalance::planner::{Consent, Wish};

use super::played::{PARTITIONS, Told, World, node, publish, settle, turn};

const STORE: &str = "default";

fn numbers(replicas: u8, reads_required: u8, writes_required: u8) -> Consistency {
    Consistency { replicas, reads_required, writes_required }
}

fn set(to: Consistency) -> Order {
    Order::Renumber { store: STORE.to_owned(), numbers: to, consent: Consent::default() }
}

fn told(cluster: &Cluster) -> (Consistency, Option<Step>) {
    let store = cluster.store(STORE).unwrap();
    (store.consistency, store.step())
}

/// A cluster of four nodes, three of which hold each key.
async fn four() -> (World, Office) {
    let world = World::of(4).await;
    let mut office = world.office();
    settle(&mut office).await;
    (world, office)
}

async fn refused(world: &World, office: &mut Office, order: Order) -> String {
    let before = world.cluster().await;
    let Told { done, text, .. } = world.order(office, order).await;
    assert!(!done, "{text}");
    assert_eq!(world.cluster().await, before, "{text}");
    text
}

#[tokio::test]
async fn a_store_gets_its_numbers_step_by_step_whoever_holds_the_office() {
    for to in [numbers(4, 2, 3), numbers(2, 1, 2), numbers(3, 1, 3)] {
        let world = World::of(4).await;
        settle(&mut world.office()).await;
        let number = world.give(set(to)).await;
        let (mut steps, mut turns) = (Vec::new(), 0);
        // Each turn is the first of another process.
        while turn(&mut world.office()).await {
            turns += 1;
            assert!(turns < 100);
            let (_, step) = told(&world.cluster().await);
            if steps.last() != Some(&step) {
                steps.push(step);
            }
        }
        let taken = [None, Some(Step::Copying), Some(Step::Joint), Some(Step::ReadingNew), None];
        assert_eq!(steps, taken, "{to:?}");
        assert_eq!(told(&world.cluster().await), (to, None));
        let planned = world.plan(1).await;
        let state = planned.state.unwrap();
        assert_eq!((state.phase, state.progress.settled), (Phase::Done, PARTITIONS));
        assert_eq!((planned.plan.change.partitions(), planned.plan.order), (PARTITIONS, number));
        let copies = PARTITIONS * usize::from(to.replicas.saturating_sub(3));
        assert_eq!((planned.plan.change.copies(), state.progress.copied.records > 0), (copies, copies > 0));
        let again = world.order(&mut world.office(), set(to)).await;
        assert_eq!((again.done, again.plan), (true, None), "{}", again.text);
    }
}

#[tokio::test]
async fn a_change_that_is_aborted_goes_back_from_each_step() {
    for turns in 0..10 {
        let (world, mut office) = four().await;
        assert!(world.order(&mut office, set(numbers(2, 1, 2))).await.done);
        for _ in 0..turns {
            turn(&mut office).await;
        }
        let aborted = world.order(&mut office, Order::Abort { plan: 1 }).await;
        settle(&mut office).await;
        let phase = world.plan(1).await.state.unwrap().phase;
        match told(&world.cluster().await) {
            (now, None) if now == numbers(3, 2, 2) => {
                assert_eq!((aborted.done, phase), (true, Phase::Aborted), "{turns}");
            }
            (now, None) if now == numbers(2, 1, 2) => assert_eq!(phase, Phase::Done, "{turns}: too late"),
            other => panic!("{turns}: {other:?}"),
        }
        world.judge();
    }
}

#[tokio::test]
async fn a_plan_is_kept_paused_and_resumed_and_waits_for_who_is_away() {
    let (world, mut office) = four().await;
    let wish = Wish::Numbers { store: STORE.to_owned(), numbers: numbers(4, 2, 3) };
    let created = world.order(&mut office, Order::Create { wish, consent: Consent::default() }).await;
    assert_eq!((created.plan, told(&world.cluster().await)), (Some(1), (numbers(3, 2, 2), None)));
    assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
    assert!(world.order(&mut office, Order::Pause { plan: 1 }).await.done);
    let paused = told(&world.cluster().await);
    settle(&mut office).await;
    assert_eq!(told(&world.cluster().await), paused);
    world.nodes.silent.lock().unwrap().insert(NodeId(4));
    assert!(world.order(&mut office, Order::Resume { plan: 1 }).await.done);
    settle(&mut office).await;
    let state = world.plan(1).await.state.unwrap();
    assert_eq!(state.phase, Phase::Applying);
    assert!(format!("{:?}", state.waiting).contains("NodeId(4)"), "{:?}", state.waiting);
    let text = refused(&world, &mut office, set(numbers(2, 1, 2))).await;
    assert!(text.contains("OtherPlan { other: 1 }"), "{text}");
    world.nodes.silent.lock().unwrap().clear();
    settle(&mut office).await;
    assert_eq!(told(&world.cluster().await), (numbers(4, 2, 3), None));
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_its_reason_and_changes_nothing() {
    let (world, mut office) = four().await;
    for (to, reason) in [
        (numbers(5, 3, 3), "Nodes { replicas: 5, nodes: 4 }"),
        (numbers(3, 1, 1), "Weaker"),
        (numbers(3, 4, 1), "Consistency { replicas: 3, reads: 4, writes: 1 }"),
    ] {
        let text = refused(&world, &mut office, set(to)).await;
        assert!(text.contains(reason), "{text}");
    }
    let unknown =
        Order::Renumber { store: "none".to_owned(), numbers: numbers(2, 1, 2), consent: Consent::default() };
    let text = refused(&world, &mut office, unknown).await;
    assert!(text.contains("NoStore"), "{text}");
    let weaker = Consent { weaker: true, ..Consent::default() };
    let accepted = Order::Renumber { store: STORE.to_owned(), numbers: numbers(3, 1, 1), consent: weaker };
    assert!(world.order(&mut office, accepted).await.done);
}

/// It would take the cluster document for malformed, and follow its copy.
#[tokio::test]
async fn while_a_node_of_an_older_version_is_registered_no_store_changes() {
    let (world, mut office) = four().await;
    world.unregister(2).await;
    let older = ActiveNode { reads_form: model::cluster::FORM - 1, ..ActiveNode::new(node(2), 1) };
    register(&*world.session, &older).await.unwrap();
    let text = refused(&world, &mut office, set(numbers(2, 1, 2))).await;
    assert!(text.contains("NodeTooOld { node: NodeId(2) }"), "{text}");
}

#[tokio::test]
async fn a_store_that_another_hand_changes_makes_the_plan_fail() {
    let (world, mut office) = four().await;
    assert!(world.order(&mut office, set(numbers(2, 1, 2))).await.done);
    publish(&world, |cluster| {
        let store = cluster.stores.iter_mut().find(|store| store.name.as_str() == STORE).unwrap();
        (store.coming, store.consistency) = (None, numbers(3, 3, 3));
    })
    .await;
    settle(&mut office).await;
    let state = world.plan(1).await.state.unwrap();
    assert_eq!(state.phase, Phase::Failed);
    assert!(matches!(state.reason, Some(Reason::StoreChanged { .. })));
}
