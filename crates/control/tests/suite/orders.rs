//! Orders that come at any moment, and headmasters that end at any.

use std::sync::Arc;

use control::headmaster::office::Office;
use coordination::documents::numbered::{numbered_path, wishes_path};
use coordination::{CoordinationService, Expected};
use futures_util::FutureExt;
use model::order::Order;

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
        let mut office = Office::new(service, Arc::new(Still), world.nodes.clone(), Default::default());
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
        let path = numbered_path(&wishes_path(), world.give(order.clone()).await);
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
