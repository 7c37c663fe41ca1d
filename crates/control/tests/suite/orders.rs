//! Orders that come at any moment, and headmasters that end at any.

use std::sync::Arc;

use control::headmaster::office::{Office, Turned};
use coordination::documents::cluster_path;
use coordination::documents::numbered::{numbered_path, orders_path, plan_state_path, plans_path};
use coordination::{CoordinationService, Expected};
use futures_util::FutureExt;
use model::order::Order;
use protocol::headmaster::Again;

use super::headmaster::{Still, four, spread};
use super::played::{Told, World, turn};

async fn answer(world: &World, number: u64) -> Option<Told> {
    world.told(number).await
}

#[tokio::test]
async fn an_order_that_comes_between_a_turn_and_its_watch_is_seen() {
    let (world, _) = four().await;
    world.service.set_yielding(true);
    // The order comes after any number of calls of a headmaster whose clock stands still: nothing else can wake it.
    for calls in 0..60 {
        let service = Arc::new(world.service.open());
        let mut office = Office::new(service, Arc::new(Still), world.nodes.clone());
        let mut holding = Box::pin(office.hold());
        for _ in 0..calls {
            assert!(holding.as_mut().now_or_never().is_none());
        }
        let number = world.give(Order::Pause { plan: 1 }).await;
        for _ in 0..200 {
            assert!(holding.as_mut().now_or_never().is_none());
        }
        assert!(answer(&world, number).await.is_some(), "the order came after {calls} calls");
    }
}

#[tokio::test]
async fn an_order_carried_out_by_a_headmaster_that_ended_is_not_carried_out_twice() {
    let (world, mut office) = four().await;
    let orders = [
        spread(),
        Order::Apply { plan: 1 },
        Order::Pause { plan: 1 },
        Order::Resume { plan: 1 },
        Order::Abort { plan: 1 },
    ];
    for order in orders {
        let path = numbered_path(&orders_path(), world.give(order.clone()).await);
        let unanswered = world.session.get(&path).await.unwrap().data;
        let mut answers = Vec::new();
        for office in [&mut office, &mut world.office()] {
            // Each finds the order as it was before the other one wrote its answer.
            world.session.set(&path, unanswered.clone(), Expected::Any).await.unwrap();
            let number = path.name().parse().unwrap();
            let answer = loop {
                assert!(turn(office).await);
                if let Some(answer) = answer(&world, number).await {
                    break answer;
                }
            };
            answers.push((answer.done, answer.plan));
        }
        assert_eq!(answers[0], answers[1], "{order:?}");
        assert!(answers[0].0, "{order:?}");
    }
    assert_eq!(coordination::documents::plans::all_numbers(&*world.session).await.unwrap(), [1, 2]);
}

/// A plan that was deleted behind an older one that was still open counted as kept, as long as the headmaster lived.
#[tokio::test]
async fn a_plan_that_was_deleted_behind_one_that_is_open_is_unknown() {
    let (world, mut office) = four().await;
    for number in 2..=3 {
        assert_eq!(world.order(&mut office, spread()).await.plan, Some(number));
    }
    assert!(world.order(&mut office, Order::Abort { plan: 2 }).await.done);
    turn(&mut office).await;
    for path in [plan_state_path(2), numbered_path(&plans_path(), 2)] {
        world.session.delete(&path, Expected::Any).await.unwrap();
    }
    let answer = world.order(&mut office, Order::Apply { plan: 2 }).await;
    assert!(answer.text.contains("PlanUnknown"), "{}", answer.text);
}

/// The order woke it at once, again and again, and it had a processor for itself.
#[tokio::test]
async fn an_order_where_there_is_no_cluster_wakes_no_headmaster_for_ever() {
    let (world, mut office) = four().await;
    world.session.delete(&cluster_path(), Expected::Any).await.unwrap();
    world.give(Order::Pause { plan: 1 }).await;
    let rests = office.turn().await;
    assert!(matches!(rests, Ok(Turned::Rested(Again::After(_)))), "{rests:?}");
}
