//! Changes of the cluster document that one document carries out: stores, members, addresses.

use std::collections::BTreeSet;
use std::sync::Arc;

use control::headmaster::office::Office;
use coordination::documents::{ActiveNode, register};
use coordination::memory::MemoryFaults;
use model::balance::PolicyChange;
use model::order::Order;
use model::{Consistency, NodeId, Store, StoreName};

use super::played::{World, node, settle, turn};

fn store(name: &str) -> Store {
    let consistency = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
    Store::new(StoreName::new(name).unwrap(), consistency).unwrap()
}

fn create(name: &str) -> Order {
    Order::CreateStore { store: Box::new(store(name)) }
}

fn address(id: u32, native: &str) -> Order {
    Order::Readdress { node: NodeId(id), native: native.to_owned(), resp: None, http: None, tls: false }
}

/// Headmasters whose writes stay unanswered, each with its own session: one of them creates the store, and another one
/// finds that. A refusal would be a wrong answer.
#[tokio::test]
async fn a_store_is_created_once_although_the_service_confirms_nothing_and_headmasters_end() {
    for seed in 0..100 {
        let world = World::of(3).await;
        settle(&mut world.office()).await;
        let before = world.cluster().await;
        let number = world.give(create("carts")).await;
        let faults = MemoryFaults { seed, indeterminate_per_mille: 500, ..MemoryFaults::default() };
        world.service.set_faults(faults);
        let mut turns = 0;
        while world.told(number).await.is_none() {
            let _ = world.office().turn().await;
            turns += 1;
            assert!(turns < 200, "seed {seed}");
        }
        world.service.set_faults(MemoryFaults::default());
        let told = world.told(number).await.unwrap();
        assert!(told.done, "seed {seed}: {told:?}");
        let after = world.cluster().await;
        assert_eq!(after.generation.0, before.generation.0 + 1, "seed {seed}: nothing else was changed");
        assert!(after.store("carts").is_some());
    }
}

#[tokio::test]
async fn a_store_that_is_there_is_not_created_again() {
    let world = World::of(3).await;
    let mut office = world.office();
    assert!(world.order(&mut office, create("carts")).await.done);
    let again = world.order(&mut office, create("carts")).await;
    assert!(!again.done && again.text.contains("Exists"), "{}", again.text);
}

/// An order that was answered, and whose number comes again in a service that lost its orders, is another order.
#[tokio::test]
async fn an_order_with_the_number_of_one_that_was_carried_out_is_another_one() {
    let world = World::of(3).await;
    let mut office = world.office();
    assert!(world.order(&mut office, create("carts")).await.done);
    let ordered = world.cluster().await.ordered.unwrap();
    assert_eq!((ordered.order, ordered.given_ms), (1, 0));
    super::played::publish(&world, |cluster| cluster.ordered.as_mut().unwrap().given_ms = 7).await;
    super::played::forget_orders(&world).await;
    let again = world.order(&mut world.office(), create("carts")).await;
    assert!(!again.done && again.text.contains("Exists"), "{}", again.text);
}

#[tokio::test]
async fn nodes_are_admitted_and_readdressed_and_none_gets_an_address_that_another_has() {
    let world = World::of(2).await;
    let service = Arc::new(world.service.open());
    let mut office = Office::new(service, world.clock.clone(), world.nodes.clone());
    let change = PolicyChange::Set { settings: vec![("join".to_owned(), "ordered".to_owned())] };
    assert!(world.order(&mut office, Order::Balance { change }).await.done);
    settle(&mut office).await;
    let before = world.cluster().await;
    for id in 3..=5 {
        world.register(id).await;
    }
    settle(&mut office).await;
    assert_eq!(world.cluster().await.nodes.len(), 2, "they wait");
    for id in 3..=5 {
        assert!(world.order(&mut office, Order::Admit { node: NodeId(id) }).await.done);
    }
    let again = world.order(&mut office, Order::Admit { node: NodeId(4) }).await;
    assert!(again.done && again.text.contains("NodeIsMember"), "{}", again.text);
    assert!(world.order(&mut office, address(1, "moved:1")).await.done);
    let after = world.cluster().await;
    assert_eq!((after.generation.0, &after.ring), (before.generation.0 + 4, &before.ring));
    let ids: BTreeSet<u32> = after.nodes.iter().map(|node| node.id.0).collect();
    assert_eq!(ids, (1..=5).collect());
    assert_eq!(after.node(NodeId(1)).unwrap().native, "moved:1");
    assert_eq!(after.nodes_changed.0, after.generation.0 - 1, "a node that moves is no other one");
    // Who has an address keeps it.
    let taken = world.order(&mut office, address(2, "127.0.0.1:7403")).await;
    assert!(!taken.done && taken.text.contains("AddressTaken"), "{}", taken.text);
    let mut twin = ActiveNode::new(node(11), 1);
    twin.node.native = "127.0.0.1:7403".to_owned();
    register(&*world.session, &twin).await.unwrap();
    let taken = world.order(&mut office, Order::Admit { node: NodeId(11) }).await;
    assert!(!taken.done && taken.text.contains("AddressTaken"), "{}", taken.text);
    let unknown = world.order(&mut office, address(12, "x:1")).await;
    assert!(!unknown.done && unknown.text.contains("NodeUnknown"), "{}", unknown.text);
    assert_eq!(world.cluster().await, after, "what is refused changes nothing");
    assert!(!turn(&mut office).await);
}
