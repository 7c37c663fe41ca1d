//! Who is active, followed: all changes arrive, at a price for each change.

use std::sync::Arc;

use coordination::documents::{ActiveNode, ReadError, active_node_path, active_nodes, register};
use coordination::memory::{MemoryFaults, MemoryService, MemorySession};
use coordination::registrations::Registrations;
use coordination::{CoordinationService, Expected};
use futures_util::FutureExt;
use model::{Node, NodeId, Zone};

use crate::counted::{Counted, CountedSession, Counts};

fn active(id: u32, port: u16) -> ActiveNode {
    let native = format!("127.0.0.1:{port}");
    ActiveNode::new(Node::new(NodeId(id), Zone("a".into()), native, None), 1)
}

/// What a follower can say without waiting.
fn told(follower: &mut Registrations) -> Option<Result<Vec<ActiveNode>, ReadError>> {
    follower.next().now_or_never()
}

#[tokio::test]
async fn a_change_costs_its_follower_what_has_changed_however_many_nodes_there_are() {
    let service = MemoryService::new();
    let counts = Arc::new(Counts::default());
    let session = CountedSession { inner: Arc::new(service.open()), counts: counts.clone() };
    let mut sessions: Vec<MemorySession> = Vec::new();
    for id in 1..=50 {
        sessions.push(service.open());
        register(sessions.last().unwrap(), &active(id, 7000)).await.unwrap();
    }
    let mut follower = Registrations::new(Arc::new(session));
    assert_eq!(told(&mut follower).unwrap().unwrap().len(), 50);
    assert!(told(&mut follower).is_none(), "nothing has changed");
    let cost = |follower: &mut Registrations, nodes: usize| {
        let before = counts.now();
        assert_eq!(told(follower).unwrap().unwrap().len(), nodes);
        let Counted { reads, watches, writes, .. } = counts.now() - before;
        (reads, watches, writes)
    };
    register(&service.open(), &active(51, 7000)).await.unwrap();
    // The session of the 51st ended with the statement: there is no news.
    assert!(told(&mut follower).is_none());
    sessions.push(service.open());
    register(&sessions[50], &active(52, 7000)).await.unwrap();
    assert_eq!(cost(&mut follower, 51), (2, 2, 0), "the list, and the new one");
    register(&sessions[3], &active(4, 7777)).await.unwrap();
    assert_eq!(cost(&mut follower, 51), (1, 1, 0), "the one that has moved");
    assert_eq!(follower.known()[3].node.native, "127.0.0.1:7777");
    service.kill(sessions[0].session());
    assert_eq!(cost(&mut follower, 50), (1, 1, 0), "the list");
    assert!(told(&mut follower).is_none());
}

#[tokio::test]
async fn a_registration_that_cannot_be_understood_hides_no_other() {
    let service = MemoryService::new();
    let (one, two) = (service.open(), service.open());
    register(&one, &active(1, 7001)).await.unwrap();
    register(&two, &active(2, 7002)).await.unwrap();
    let mut follower = Registrations::new(Arc::new(service.open()));
    assert_eq!(told(&mut follower).unwrap().unwrap().len(), 2);
    one.set(&active_node_path(NodeId(1)), "{".into(), Expected::Any).await.unwrap();
    assert_eq!(told(&mut follower).unwrap().unwrap(), [active(2, 7002)]);
    register(&one, &active(1, 7001)).await.unwrap();
    assert_eq!(told(&mut follower).unwrap().unwrap().len(), 2);
}

/// Registers, moves or ends one of five nodes.
fn change(service: &MemoryService, sessions: &mut [Option<MemorySession>], roll: u64) {
    let id = roll % 5;
    let slot = &mut sessions[id as usize];
    match (slot.take(), roll / 5 % 3) {
        (Some(session), 0) => drop(session),
        (session, _) => {
            let session = session.unwrap_or_else(|| service.open());
            let node = active(id as u32 + 1, 7000 + (roll / 16 % 1000) as u16);
            register(&session, &node).now_or_never().expect("memory answers at once").unwrap();
            *slot = Some(session);
        }
    }
}

#[test]
fn whatever_changes_and_however_far_behind_a_follower_ends_with_what_is_there() {
    for seed in 0..200_u64 {
        let service = MemoryService::new();
        let mut sessions: Vec<Option<MemorySession>> = (0..5).map(|_| None).collect();
        let mut follower = Registrations::new(Arc::new(service.open()));
        let mut roll = seed;
        for turn in 0..60 {
            roll = roll.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            service.set_faults(MemoryFaults { seed: roll, behind_max: 10, ..MemoryFaults::default() });
            if turn % 3 == 0 {
                let _ = told(&mut follower);
            }
            service.set_faults(MemoryFaults::default());
            change(&service, &mut sessions, roll >> 33);
        }
        while told(&mut follower).is_some() {}
        let there = active_nodes(&service.open()).now_or_never().unwrap().unwrap().0;
        assert_eq!(follower.known(), there, "seed {seed}");
    }
}
