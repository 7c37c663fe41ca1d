//! Which gets are explored.

use model::versions::Stamp;
use model::{Actor, Timestamp, Value};

use super::*;

/// What the versions of a key are.
#[derive(Clone, Copy)]
enum Holding {
    Values,
    Tombstones,
    /// Values whose time was over before the request.
    Expired,
    /// n1 has the value that n2 knows to be deleted; the hint is a value.
    Deletion,
}

fn stamp(node: u32, holding: Holding) -> Stamp {
    let actor = Actor { node: NodeId(node), incarnation: 1, birth: 1 };
    let value = match (holding, node) {
        (Holding::Tombstones, _) | (Holding::Deletion, 2) => Value::Tombstone,
        _ => Value::Present("v".into()),
    };
    let expires = matches!(holding, Holding::Expired).then_some(WALL);
    Stamp { actor, timestamp: Timestamp(u64::from(node)), expires, value }
}

/// n1 holds an old version, n2 what replaced it, n3 nothing; n4 holds a hint that nobody else knows.
fn diverged(holding: Holding) -> [VersionSet; 5] {
    let (mut old, mut hint) = (VersionSet::default(), VersionSet::default());
    old.put(stamp(1, holding), None);
    let mut new = old.clone();
    new.put(stamp(2, holding), None);
    hint.put(stamp(3, holding), None);
    [old, new, VersionSet::default(), hint, VersionSet::default()]
}

pub(super) fn scopes() -> Vec<Scope> {
    let [old, ..] = diverged(Holding::Values);
    let mut scopes = Vec::new();
    for sloppy in [false, true] {
        for (required, preferred) in [(1, 1), (2, 2), (3, 3), (1, 3), (2, 3)] {
            let own = Some(NodeId(2));
            let (suspected, lagging, sets) = (Vec::new(), Vec::new(), diverged(Holding::Values));
            let (held, ahead, replicas) = (0, false, SETTLED);
            let scope = Scope {
                replicas,
                spared: [0, 0],
                required,
                preferred,
                sloppy,
                held,
                own,
                suspected,
                lagging,
                ahead,
                sets,
            };
            if preferred == 2 {
                scopes.push(Scope { suspected: vec![NodeId(1)], ..scope.clone() });
                scopes.push(Scope { suspected: vec![NodeId(1), NodeId(3)], own: None, ..scope.clone() });
                scopes.push(Scope { lagging: vec![NodeId(1), NodeId(2)], ..scope.clone() });
                scopes.push(Scope { own: Some(NodeId(5)), ahead: true, ..scope.clone() });
                scopes.push(Scope { sets: std::array::from_fn(|_| old.clone()), ..scope.clone() });
                scopes.push(Scope { sets: Default::default(), ..scope.clone() });
                for holding in [Holding::Tombstones, Holding::Expired, Holding::Deletion] {
                    let sets = diverged(holding);
                    scopes.push(Scope { sets, suspected: vec![NodeId(3)], ..scope.clone() });
                }
            }
            scopes.push(scope);
        }
    }
    scopes
}

/// Gets whose answers must be held by some replicas. `n3` being asked last, the second sets grow late.
pub(super) fn settling_scopes() -> Vec<Scope> {
    let [old, new, empty, ..] = diverged(Holding::Values);
    let late = [old, empty.clone(), new, empty.clone(), empty];
    let scope = |(required, preferred, held), sets, ahead| {
        let (own, suspected, lagging) = (Some(NodeId(2)), Vec::new(), Vec::new());
        let (replicas, sloppy) = (SETTLED, true);
        Scope {
            replicas,
            spared: [0, 0],
            required,
            preferred,
            sloppy,
            held,
            own,
            suspected,
            lagging,
            ahead,
            sets,
        }
    };
    vec![
        scope((2, 2, 2), diverged(Holding::Values), false),
        scope((2, 2, 2), diverged(Holding::Values), true),
        Scope { suspected: vec![NodeId(1)], ..scope((2, 2, 2), diverged(Holding::Values), false) },
        Scope { lagging: vec![NodeId(2)], ..scope((2, 2, 2), diverged(Holding::Values), false) },
        scope((1, 1, 3), diverged(Holding::Values), false),
        scope((2, 3, 2), late, false),
    ]
}

/// Gets while the partition moves.
pub(super) fn joint_scopes() -> Vec<Scope> {
    let mut scopes = Vec::new();
    for replicas in [ONE_OF_TWO_MOVES, THE_ONLY_ONE_MOVES] {
        let of = |(required, held), own: Option<u32>, ahead| {
            let (own, suspected, lagging) = (own.map(NodeId), Vec::new(), Vec::new());
            let (sloppy, sets) = (true, diverged(Holding::Values));
            Scope {
                replicas,
                spared: [0, 0],
                required,
                preferred: required,
                sloppy,
                held,
                own,
                suspected,
                lagging,
                ahead,
                sets,
            }
        };
        scopes.push(of((1, 0), Some(1), false));
        scopes.push(of((1, 1), Some(3), true));
        if replicas == ONE_OF_TWO_MOVES {
            scopes.push(of((2, 0), Some(3), true));
            scopes.push(of((2, 1), Some(1), false));
            scopes.push(of((1, 2), None, true));
            scopes.push(of((2, 2), Some(2), true));
            scopes.push(Scope { suspected: vec![NodeId(3)], ..of((2, 2), Some(2), false) });
            let added = |scope| Scope { replicas: ONE_IS_ADDED, spared: [1, 0], ..scope };
            scopes.push(added(of((1, 2), Some(1), false)));
            scopes.push(added(of((2, 3), Some(2), false)));
            let taken = |scope| Scope { replicas: ONE_IS_TAKEN, spared: [0, 1], ..scope };
            scopes.push(taken(of((2, 2), Some(3), true)));
            scopes.push(taken(of((1, 3), None, false)));
        }
    }
    scopes
}
