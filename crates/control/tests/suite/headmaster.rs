//! What a headmaster does with orders, plans and the ring, whoever ends meanwhile.

use std::sync::Arc;

use control::headmaster::office::{Office, OfficeEnd};
use coordination::documents::numbered::{create_next, plan_state_path, plans_path};
use coordination::documents::{Member, cluster_path, write_member};
use coordination::{CoordinationService, CreateMode, Expected};
use futures_util::FutureExt;
use model::order::Order;
use model::plan::{Phase, PlanHeld, Reason};
use model::{Cluster, Moment, NodeId, Role, Step, WallMillis, Weight};
use protocol::rebalance::planner::{Consent, Wish};

use runtime::{BoxFuture, Clock};

use super::played::{PARTITIONS, World, publish, settle, turn};

pub(super) fn spread() -> Order {
    Order::Create { wish: Wish::Spread, consent: Consent::default() }
}

fn places(cluster: &Cluster, id: u32) -> usize {
    let partitions = cluster.ring.partitions().iter();
    partitions.filter(|partition| partition.nodes[..3].contains(&NodeId(id))).count()
}

/// Three nodes, a fourth that has joined, and a plan that gives it its share.
pub(super) async fn four() -> (World, Office) {
    let world = World::of(3).await;
    world.register(4).await;
    let mut office = world.office();
    settle(&mut office).await;
    // As every node does when it begins to serve.
    write_member(&*world.session, NodeId(4), &Member { incarnation: 1, redeemed: None }).await.unwrap();
    let answer = world.order(&mut office, spread()).await;
    assert_eq!((answer.done, answer.plan), (true, Some(1)), "{}", answer.text);
    (world, office)
}

#[tokio::test]
async fn a_node_that_joins_gets_its_share_by_a_plan_and_gives_it_back_when_it_drains() {
    let (world, mut office) = four().await;
    let plan = world.plan(1).await.plan;
    let share = PARTITIONS * 3 / 4;
    assert_eq!(plan.places[&NodeId(4)], (0, share));
    assert_eq!(plan.change.copies(), share);
    assert_eq!(plan.estimate.unwrap().bytes, 1000 * share as u64);
    assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
    settle(&mut office).await;
    let state = world.plan(1).await.state.unwrap();
    assert_eq!((state.phase, state.progress.settled), (Phase::Done, plan.change.moves().len()));
    assert_eq!(state.progress.copied.bytes, 1000 * share as u64);
    assert_eq!(places(&world.cluster().await, 4), share);
    // It holds a hint, and stays until that is delivered.
    world.nodes.hints.lock().unwrap().insert(NodeId(4), 1);
    let drain = Order::Drain { node: NodeId(4), consent: Consent::default() };
    let answer = world.order(&mut office, drain).await;
    assert_eq!((answer.done, answer.plan), (true, Some(2)), "{}", answer.text);
    settle(&mut office).await;
    let cluster = world.cluster().await;
    assert_eq!(world.plan(2).await.state.unwrap().phase, Phase::Done);
    assert_eq!((places(&cluster, 4), cluster.node(NodeId(4)).unwrap().role), (0, Role::Leaving));
    let answer = world.order(&mut office, Order::Remove { node: NodeId(4) }).await;
    assert!(answer.text.contains("Hints { hints: 1 }"), "{}", answer.text);
    // Who keeps it is named, once it is away.
    assert!(answer.text.contains("away: None"), "{}", answer.text);
    world.unregister(3).await;
    let answer = world.order(&mut office, Order::Remove { node: NodeId(4) }).await;
    assert!(answer.text.contains("away: Some(NodeId(3))"), "{}", answer.text);
    world.nodes.hints.lock().unwrap().clear();
    settle(&mut office).await;
    assert_eq!(world.cluster().await.node(NodeId(4)), None);
    // It is registered still, and stays out.
    settle(&mut office).await;
    assert_eq!(world.cluster().await.nodes.len(), 3);
    // Nor does anybody take it back: what it holds is of before it left, deleted keys among it.
    let again = world.order(&mut office, Order::Admit { node: NodeId(4) }).await;
    assert!(!again.done && again.text.contains("NodeWasMember"), "{}", again.text);
    assert_eq!(world.cluster().await.nodes.len(), 3);
    world.judge();
}

#[tokio::test]
async fn a_successor_goes_on_after_any_turn() {
    let (world, _) = four().await;
    world.give(Order::Apply { plan: 1 }).await;
    let mut turns = 0;
    // Each turn is the first of another process.
    while turn(&mut world.office()).await {
        turns += 1;
        assert!(turns < 100);
    }
    assert_eq!(world.plan(1).await.state.unwrap().phase, Phase::Done);
    assert_eq!(places(&world.cluster().await, 4), PARTITIONS * 3 / 4);
    let drain = Order::Drain { node: NodeId(4), consent: Consent::default() };
    world.give(drain).await;
    while turn(&mut world.office()).await {}
    assert_eq!(world.cluster().await.node(NodeId(4)), None);
}

#[tokio::test]
async fn two_headmasters_at_once_do_no_harm() {
    let (world, mut one) = four().await;
    let mut other = world.office();
    world.give(Order::Apply { plan: 1 }).await;
    let mut turns = 0;
    while turn(&mut one).await | turn(&mut other).await {
        turns += 1;
        assert!(turns < 100);
    }
    assert_eq!(world.plan(1).await.state.unwrap().phase, Phase::Done);
    assert_eq!(places(&world.cluster().await, 4), PARTITIONS * 3 / 4);
}

#[tokio::test]
async fn a_plan_that_is_aborted_at_any_step_leaves_each_partition_where_it_was_or_where_it_goes() {
    let mut steps = std::collections::BTreeSet::new();
    for turns in 0..12 {
        let (world, mut office) = four().await;
        let before = world.cluster().await;
        assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
        for _ in 0..turns {
            turn(&mut office).await;
        }
        let plan = world.plan(1).await;
        steps.extend(
            world
                .cluster()
                .await
                .ring
                .partitions()
                .iter()
                .filter_map(|one| one.step())
                .map(|step| step as u8),
        );
        let answer = world.order(&mut office, Order::Abort { plan: 1 }).await;
        settle(&mut office).await;
        let (state, cluster) = (world.plan(1).await.state.unwrap(), world.cluster().await);
        match plan.state.unwrap().phase {
            Phase::Done => assert!(
                !answer.done && answer.text.contains("PlanIs { plan: 1, phase: Some(Done) }"),
                "{}",
                answer.text
            ),
            _ => assert!(answer.done, "{}", answer.text),
        }
        for (old, new) in before.ring.partitions().iter().zip(cluster.ring.partitions()) {
            let to = plan.plan.change.moves().iter().find(|one| one.partition == old.id).map(|one| &one.to);
            assert!(new.coming.is_none() && (new.nodes == old.nodes || Some(&new.nodes) == to), "{new:?}");
        }
        let arrived = if state.phase == Phase::Aborted { 0 } else { PARTITIONS * 3 / 4 };
        assert_eq!(places(&cluster, 4), arrived, "{:?}", state.phase);
        world.judge();
    }
    let all = [Step::Copying, Step::Joint, Step::ReadingNew].map(|step| step as u8);
    assert_eq!(steps.into_iter().collect::<Vec<_>>(), all, "each step was aborted once");
}

#[tokio::test]
async fn orders_that_cannot_be_carried_out_are_refused_with_the_reason_and_change_nothing() {
    let (world, mut office) = four().await;
    assert_eq!(world.order(&mut office, spread()).await.plan, Some(2));
    let paused = world.order(&mut office, Order::Pause { plan: 1 }).await;
    assert!(paused.text.contains("PlanIs { plan: 1, phase: None }"), "{}", paused.text);
    // The fourth node keeps the plan from going on.
    assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
    turn(&mut office).await;
    world.nodes.silent.lock().unwrap().insert(NodeId(4));
    let mut refused = Vec::new();
    for order in [
        Order::Apply { plan: 1 },
        Order::Apply { plan: 2 },
        Order::Apply { plan: 9 },
        Order::Resume { plan: 1 },
        Order::Drain { node: NodeId(3), consent: Consent::default() },
        Order::Admit { node: NodeId(7) },
        Order::Remove { node: NodeId(1) },
        Order::Weigh { node: NodeId(8), weight: Weight::default() },
        spread(),
    ] {
        let answer = world.order(&mut office, order).await;
        assert!(!answer.done, "{}", answer.text);
        refused.push(answer.text);
    }
    let wanted = [
        "PlanIs { plan: 1, phase: Some(Applying) }",
        "OtherPlan { other: 1 }",
        "PlanUnknown { plan: 9 }",
        "PlanIs { plan: 1, phase: Some(Applying) }",
        "OtherPlan { other: 1 }",
        "NodeNotRegistered { node: NodeId(7) }",
        "holds: Places",
        "NodeUnknown { node: NodeId(8) }",
        "Wish(Moves",
    ];
    for (text, wanted) in refused.iter().zip(wanted) {
        assert!(text.contains(wanted), "{text:?} should say {wanted:?}");
    }
    world.nodes.silent.lock().unwrap().clear();
    settle(&mut office).await;
    assert_eq!(world.plan(1).await.state.unwrap().phase, Phase::Done);
    // What the second plan wished for is there now.
    let answer = world.order(&mut office, Order::Apply { plan: 2 }).await;
    assert!(answer.text.contains("OtherMoves"), "{}", answer.text);
    let few = Order::Drain { node: NodeId(4), consent: Consent::default() };
    assert!(world.order(&mut office, few).await.done);
    settle(&mut office).await;
    let few = Order::Drain { node: NodeId(3), consent: Consent::default() };
    let answer = world.order(&mut office, few).await;
    assert!(answer.text.contains("TooFewNodes { left: 2"), "{}", answer.text);
    assert!(world.cluster().await.nodes.iter().all(|node| node.role == Role::Serving));
    world.judge();
}

#[tokio::test]
async fn a_plan_waits_for_a_node_that_is_silent_and_says_so() {
    let (world, mut office) = four().await;
    assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
    turn(&mut office).await;
    world.nodes.silent.lock().unwrap().insert(NodeId(4));
    // What it has said already counts.
    settle(&mut office).await;
    let state = world.plan(1).await.state.unwrap();
    assert_eq!(state.phase, Phase::Applying);
    let silent = PlanHeld::Silent { node: NodeId(4), detail: "it is silent".to_owned() };
    assert_eq!(state.waiting[0], silent);
    assert!(format!("{:?}", state.waiting[1]).contains("node: NodeId(4)"), "{:?}", state.waiting);
    let before = world.cluster().await.generation;
    let paused = world.order(&mut office, Order::Pause { plan: 1 }).await;
    assert!(paused.text.contains("PlanPaused"), "{}", paused.text);
    world.nodes.silent.lock().unwrap().clear();
    settle(&mut office).await;
    assert_eq!(world.cluster().await.generation, before, "it is paused");
    assert!(world.order(&mut office, Order::Resume { plan: 1 }).await.done);
    settle(&mut office).await;
    assert_eq!(world.plan(1).await.state.unwrap().phase, Phase::Done);
    world.judge();
}

#[tokio::test]
async fn a_node_without_answer_keeps_a_plan_from_being_applied_only_if_it_enters_something() {
    let (world, mut office) = four().await;
    world.nodes.silent.lock().unwrap().extend([NodeId(2), NodeId(4)]);
    let answer = world.order(&mut office, Order::Apply { plan: 1 }).await;
    assert!(!answer.done && answer.text.contains("NodeDeaf { node: NodeId(4)"), "{}", answer.text);
    assert!(world.plan(1).await.state.is_none());
    // Any silent node kept every plan and every drain from being applied once. Each step counts whom it needs.
    world.nodes.silent.lock().unwrap().remove(&NodeId(4));
    assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
    settle(&mut office).await;
    assert_eq!(world.plan(1).await.state.unwrap().phase, Phase::Done);
    world.judge();
}

#[tokio::test]
async fn a_node_that_a_plan_names_is_not_removed_and_a_plan_of_one_that_was_fails() {
    let (world, mut office) = four().await;
    assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
    assert!(world.order(&mut office, Order::Pause { plan: 1 }).await.done);
    let before = world.cluster().await;
    assert!(before.ring.is_settled(), "no move has begun");
    let answer = world.order(&mut office, Order::Remove { node: NodeId(4) }).await;
    assert!(
        !answer.done && answer.text.contains("PlanGives { node: NodeId(4), plan: 1 }"),
        "{}",
        answer.text
    );
    assert_eq!(world.cluster().await, before);
    // Another hand removes it all the same.
    publish(&world, |cluster| cluster.nodes.retain(|node| node.id != NodeId(4))).await;
    world.unregister(4).await;
    assert!(world.order(&mut office, Order::Resume { plan: 1 }).await.done);
    settle(&mut office).await;
    let state = world.plan(1).await.state.unwrap();
    assert_eq!(state.phase, Phase::Failed);
    assert!(format!("{:?}", state.reason).contains("n4"), "{state:?}");
    let cluster = world.cluster().await;
    assert!(cluster.check().is_ok() && cluster.ring.is_settled());
}

#[tokio::test]
async fn a_plan_of_a_later_version_keeps_neither_orders_nor_plans_from_going_on() {
    let (world, mut office) = four().await;
    let later = r#"{"wish":{"kind":"later"},"moves":[]}"#;
    let number = create_next(&*world.session, &plans_path(), later.into()).await.unwrap();
    let begun = world.session.create(&plan_state_path(number), "{}".into(), CreateMode::Persistent).await;
    begun.unwrap();
    let answer = world.order(&mut office, Order::Apply { plan: number }).await;
    assert!(!answer.done && answer.text.contains("PlanNotUnderstood"), "{}", answer.text);
    let answer = world.order(&mut office, Order::Apply { plan: 1 }).await;
    assert!(answer.done, "{}", answer.text);
    settle(&mut office).await;
    assert_eq!(world.plan(1).await.state.unwrap().phase, Phase::Done);
    assert!(world.order(&mut office, drain(4)).await.done);
    settle(&mut office).await;
    assert_eq!(world.cluster().await.node(NodeId(4)), None);
    let all = coordination::documents::plans::summaries(&*world.session).await.unwrap();
    let understood: Vec<_> = all.iter().map(|plan| (plan.number, plan.unread.is_none())).collect();
    assert_eq!(understood, [(1, true), (2, false), (3, true)]);
    world.judge();
}

/// A headmaster that went on from an older copy once published other documents under numbers that nodes knew.
#[tokio::test]
async fn nothing_is_published_over_an_older_copy_of_the_documents() {
    let (world, mut office) = four().await;
    assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
    turn(&mut office).await;
    let before = world.cluster().await;
    turn(&mut office).await;
    // The service is restored from a copy of before; what the nodes followed, they follow still.
    let newest = world.cluster().await;
    assert!(newest.generation > before.generation);
    *world.nodes.adopted.lock().unwrap() = Some(newest.generation);
    let older = serde_json::to_vec(&before).unwrap();
    world.session.set(&cluster_path(), older.into(), Expected::Any).await.unwrap();
    for mut office in [office, world.office()] {
        let number = world.give(Order::Weigh { node: NodeId(1), weight: Weight::default() }).await;
        for _ in 0..5 {
            let _ = office.turn().await;
        }
        assert_eq!(world.cluster().await, before, "it may be a server that lags");
        let later = world.clock.now().after(std::time::Duration::from_secs(11));
        world.clock.sleep_until(later).await;
        settle(&mut office).await;
        let answer = world.told(number).await.unwrap();
        assert!(!answer.done && answer.text.contains("Restored"), "{}", answer.text);
        assert_eq!(world.cluster().await, before);
    }
    // The newer one is put back.
    let newest = serde_json::to_vec(&newest).unwrap();
    world.session.set(&cluster_path(), newest.into(), Expected::Any).await.unwrap();
    *world.nodes.adopted.lock().unwrap() = None;
    settle(&mut world.office()).await;
    assert_eq!(world.plan(1).await.state.unwrap().phase, Phase::Done);
}

/// The fourth node holds its share.
async fn four_with_data() -> (World, Office) {
    let (world, mut office) = four().await;
    assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
    settle(&mut office).await;
    (world, office)
}

fn drain(id: u32) -> Order {
    Order::Drain { node: NodeId(id), consent: Consent::default() }
}

#[tokio::test]
async fn a_drain_that_is_refused_changes_nothing() {
    let (world, mut office) = four_with_data().await;
    let before = world.cluster().await;
    // A node is silent before the order comes, or falls silent after any turn that begins to carry it out.
    for turns in 0..2 {
        let number = world.give(drain(4)).await;
        for _ in 0..turns {
            turn(&mut office).await;
        }
        world.nodes.silent.lock().unwrap().insert(NodeId(2));
        turn(&mut office).await;
        let answer = world.told(number).await.unwrap();
        assert!(!answer.done && answer.text.contains("NodeDeaf { node: NodeId(2)"), "{}", answer.text);
        settle(&mut office).await;
        assert_eq!(world.cluster().await, before);
        world.nodes.silent.lock().unwrap().clear();
    }
    let plans = coordination::documents::plans::all_numbers(&*world.session).await.unwrap();
    assert_eq!(plans, [1, 2], "the node that was silent before leaves no plan behind");
    assert!(world.order(&mut office, drain(4)).await.done);
    settle(&mut office).await;
    assert_eq!(world.cluster().await.node(NodeId(4)), None);
    world.judge();
}

#[tokio::test]
async fn a_node_that_is_leaving_is_taken_back_by_recommission_alone_and_after_its_plan() {
    let (world, mut office) = four_with_data().await;
    assert!(world.order(&mut office, drain(4)).await.done);
    turn(&mut office).await;
    let add = world.order(&mut office, Order::Admit { node: NodeId(4) }).await;
    assert!(!add.done && add.text.contains("NodeIsLeaving"), "{}", add.text);
    let back = || Order::Cast { node: NodeId(4), role: Role::Serving };
    let early = world.order(&mut office, back()).await;
    assert!(!early.done && early.text.contains("PlanEmpties { node: NodeId(4), plan: 2 }"), "{}", early.text);
    assert_eq!(world.cluster().await.node(NodeId(4)).unwrap().role, Role::Leaving);
    assert!(world.order(&mut office, Order::Abort { plan: 2 }).await.done);
    let answer = world.order(&mut office, back()).await;
    assert!(answer.done, "{}", answer.text);
    settle(&mut office).await;
    let cluster = world.cluster().await;
    assert_eq!(cluster.node(NodeId(4)).unwrap().role, Role::Serving);
    assert_eq!(places(&cluster, 4), PARTITIONS * 3 / 4);
    world.judge();
}

#[tokio::test]
async fn a_plan_whose_partition_another_hand_moves_goes_back_and_fails() {
    let (world, mut office) = four().await;
    assert!(world.order(&mut office, Order::Apply { plan: 1 }).await.done);
    turn(&mut office).await;
    let moved = world.plan(1).await.plan.change.moves()[0].partition;
    publish(&world, |cluster| {
        let mut partitions = cluster.ring.partitions().to_vec();
        let one = partitions.iter_mut().find(|one| one.id == moved).unwrap();
        one.coming = None;
        one.nodes.rotate_left(1);
        cluster.ring = model::Ring::new(partitions).unwrap();
    })
    .await;
    settle(&mut office).await;
    let state = world.plan(1).await.state.unwrap();
    assert_eq!(state.phase, Phase::Failed);
    assert!(matches!(state.reason, Some(Reason::PartitionChanged { .. })));
    assert!(world.cluster().await.ring.partitions().iter().all(|one| one.coming.is_none()));
}

#[tokio::test]
async fn an_order_wakes_a_headmaster_that_holds_the_office_and_the_end_of_its_session_ends_it() {
    let (world, _) = four().await;
    let service = Arc::new(world.service.open());
    let mut office = Office::new(service.clone(), Arc::new(Still), world.nodes.clone());
    let mut holding = Box::pin(office.hold());
    assert!(holding.as_mut().now_or_never().is_none());
    // The clock stands still: nothing but the order can wake it.
    let number = world.give(Order::Pause { plan: 1 }).await;
    assert!(holding.as_mut().now_or_never().is_none());
    assert!(!world.told(number).await.unwrap().done);
    world.service.kill(service.session());
    assert_eq!(holding.await, OfficeEnd::SessionLost);
}

/// A clock that never comes to any moment.
pub(super) struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment::default()
    }

    fn wall(&self) -> WallMillis {
        WallMillis(0)
    }

    fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

fn replace(node: u32, by: u32) -> Order {
    Order::Replace { node: NodeId(node), by: NodeId(by), consent: Consent::default() }
}

/// A fourth node that holds nothing.
async fn with_standby() -> (World, Office) {
    let (world, mut office) = four().await;
    assert!(world.order(&mut office, Order::Abort { plan: 1 }).await.done);
    let standby = Order::Cast { node: NodeId(4), role: Role::Standby };
    assert!(world.order(&mut office, standby).await.done);
    (world, office)
}

#[tokio::test]
async fn a_node_with_a_sign_of_life_is_not_replaced_and_nothing_is_changed() {
    let (world, mut office) = with_standby().await;
    let before = world.cluster().await;
    let registered = world.order(&mut office, replace(3, 4)).await;
    assert!(registered.text.contains("because: Registered"), "{}", registered.text);
    world.unregister(3).await;
    let paused = world.order(&mut office, replace(3, 4)).await;
    assert!(paused.text.contains("because: Listens"), "{}", paused.text);
    world.nodes.dead.lock().unwrap().insert(NodeId(3));
    for (order, wanted) in [
        (replace(9, 4), "NodeUnknown { node: NodeId(9) }"),
        (replace(3, 9), "NodeUnknown { node: NodeId(9) }"),
        (replace(3, 3), "OwnPlaces"),
        (replace(3, 1), "HeldAlready"),
    ] {
        let answer = world.order(&mut office, order).await;
        assert!(!answer.done && answer.text.contains(wanted), "{}", answer.text);
    }
    assert_eq!(world.cluster().await, before);
}

#[tokio::test]
async fn a_dead_node_is_replaced_by_any_headmasters_and_leaves_without_a_word() {
    let (world, _) = with_standby().await;
    world.unregister(3).await;
    world.nodes.dead.lock().unwrap().insert(NodeId(3));
    world.nodes.silent.lock().unwrap().insert(NodeId(3));
    let number = world.give(replace(3, 4)).await;
    let mut turns = 0;
    // Each turn is the first of another process.
    while turn(&mut world.office()).await {
        turns += 1;
        assert!(turns < 100);
    }
    let answer = world.told(number).await.unwrap();
    assert_eq!((answer.done, answer.plan), (true, Some(2)));
    let plan = world.plan(2).await;
    assert!(plan.plan.blocked.is_empty(), "nothing waits for who is gone");
    assert_eq!(plan.state.unwrap().phase, Phase::Done);
    let cluster = world.cluster().await;
    assert_eq!((places(&cluster, 4), cluster.node(NodeId(3))), (PARTITIONS, None));
    assert_eq!(cluster.node(NodeId(4)).unwrap().role, Role::Serving);
}

/// The document called the node gone, and the answer was a refusal that did not say so.
#[tokio::test]
async fn a_replacement_refused_half_way_says_what_was_done_and_goes_on_when_ordered_again() {
    let (world, mut office) = with_standby().await;
    world.unregister(3).await;
    world.nodes.dead.lock().unwrap().insert(NodeId(3));
    world.nodes.silent.lock().unwrap().insert(NodeId(3));
    let number = world.give(replace(3, 4)).await;
    while !world.cluster().await.node(NodeId(3)).unwrap().gone {
        turn(&mut office).await;
    }
    world.nodes.silent.lock().unwrap().insert(NodeId(4));
    settle(&mut office).await;
    let answer = world.told(number).await.unwrap();
    assert!(!answer.done && answer.text.contains("NodeDeaf { node: NodeId(4)"), "{}", answer.text);
    world.nodes.silent.lock().unwrap().remove(&NodeId(4));
    // Whether it looks dead was judged.
    world.nodes.dead.lock().unwrap().remove(&NodeId(3));
    assert!(world.order(&mut office, replace(3, 4)).await.done);
    settle(&mut office).await;
    assert_eq!(world.cluster().await.node(NodeId(3)), None);
}

/// Who drained a dead node and had none to spare was told that it leaves by itself.
#[tokio::test]
async fn a_dead_node_that_was_drained_leaves_when_it_is_called_dead() {
    let (world, mut office) = four_with_data().await;
    world.unregister(4).await;
    world.nodes.dead.lock().unwrap().insert(NodeId(4));
    world.nodes.silent.lock().unwrap().insert(NodeId(4));
    let drain = Order::Drain { node: NodeId(4), consent: Consent::default() };
    assert!(world.order(&mut office, drain).await.done);
    settle(&mut office).await;
    let answer = world.order(&mut office, Order::Remove { node: NodeId(4) }).await;
    assert!(!answer.done && answer.text.contains("is_registered: false"), "{}", answer.text);
    assert!(world.order(&mut office, replace(4, 1)).await.done);
    settle(&mut office).await;
    assert_eq!(world.cluster().await.node(NodeId(4)), None);
}

#[tokio::test]
async fn a_dead_node_is_taken_back_while_its_data_was_not_moved() {
    let (world, mut office) = with_standby().await;
    world.unregister(3).await;
    world.nodes.dead.lock().unwrap().insert(NodeId(3));
    world.nodes.silent.lock().unwrap().insert(NodeId(3));
    assert!(world.order(&mut office, replace(3, 4)).await.done);
    assert!(world.cluster().await.node(NodeId(3)).unwrap().gone);
    assert!(world.order(&mut office, Order::Abort { plan: 2 }).await.done);
    settle(&mut office).await;
    let back = Order::Cast { node: NodeId(3), role: Role::Serving };
    assert!(world.order(&mut office, back).await.done);
    let cluster = world.cluster().await;
    assert!(!cluster.node(NodeId(3)).unwrap().gone && cluster.ring.is_settled());
    assert_eq!(places(&cluster, 3), PARTITIONS);
    world.judge();
}
