//! Hints at their holder.

use std::sync::Arc;

use model::{NodeId, Resolver, StoreName};
use node::hints::Hints;
use node::stores::WriteOrder;
use runtime::Ports;
use runtime::disk::simulated::SimulatedDisk;
use storage::{Durability, EnginePorts, LogEngine, LogOptions, MemoryEngine, ScanLimit};
use wire::ErrorCode;
use wire::messages::Condition;

use crate::support::{definition, order, place, stamper, store, values};

const KEY: &[u8] = b"cart:7";
const TARGET: NodeId = NodeId(3);

fn hints(bytes_max: u64) -> Hints {
    Hints::new(Arc::new(MemoryEngine::new()), stamper(9, 1), bytes_max)
}

#[test]
fn hints_for_one_key_merge_and_are_found_by_target() {
    let (hints, carts) = (hints(u64::MAX), definition(Resolver::Siblings));
    let replica = store(1, Resolver::Siblings);
    for value in ["a", "b"] {
        let stamped = replica.stamp(place(KEY), KEY, order(value, Some(&Default::default()))).unwrap();
        hints.park(TARGET, &carts, KEY, &stamped.set).unwrap();
    }
    assert_eq!(hints.pending(), [(TARGET, 1)]);
    let (page, next) = hints.page(TARGET, None, ScanLimit { records_max: 10, bytes_max: 1 << 20 }).unwrap();
    assert!(next.is_none());
    assert_eq!((page[0].target, page[0].key.as_ref(), page[0].store.as_str()), (TARGET, KEY, "carts"));
    assert_eq!(values(&page[0].set), ["a", "b"]);
    let name = StoreName::new("carts").unwrap();
    let found = hints.get(&[NodeId(1), TARGET], &name, Resolver::Siblings, KEY).unwrap();
    assert_eq!(values(&found), ["a", "b"]);
    assert!(hints.get(&[NodeId(1)], &name, Resolver::Siblings, KEY).unwrap().is_empty());
}

/// A fallback that delivered its hint has forgotten the key. Stamping again under the same actor would repeat a dot,
/// and the earlier write would be dropped as a duplicate (riak_kv 679, on a fallback).
#[test]
fn a_fallback_that_delivered_its_hint_does_not_repeat_a_dot() {
    let (hints, carts) = (hints(u64::MAX), definition(Resolver::Siblings));
    let nothing = Default::default();
    let first = hints.stamp(TARGET, &carts, KEY, order("first", Some(&nothing))).unwrap();
    let replica = store(3, Resolver::Siblings);
    replica.merge(place(KEY), KEY, &first.set).unwrap();
    hints.engine().drop_partition(model::PartitionId(TARGET.0)).unwrap();
    let second = hints.stamp(TARGET, &carts, KEY, order("second", Some(&nothing))).unwrap();
    assert_ne!(first.dot, second.dot);
    replica.merge(place(KEY), KEY, &second.set).unwrap();
    assert_eq!(values(&replica.get(place(KEY), KEY).unwrap()), ["first", "second"]);
}

/// A write that arrives while a hint is being delivered must not be removed with it.
#[test]
fn a_hint_that_changed_since_it_was_read_is_not_removed() {
    let (hints, carts) = (hints(u64::MAX), definition(Resolver::Siblings));
    let replica = store(1, Resolver::Siblings);
    let park = |value: &str| {
        let stamped = replica.stamp(place(KEY), KEY, order(value, None)).unwrap();
        hints.park(TARGET, &carts, KEY, &stamped.set).unwrap();
    };
    let read = || {
        let limit = ScanLimit { records_max: 10, bytes_max: 1 << 20 };
        hints.page(TARGET, None, limit).unwrap().0.remove(0)
    };
    park("early");
    let early = read();
    park("late");
    assert!(!hints.remove(&early).unwrap());
    assert_eq!(hints.readdress(&early, || ()).unwrap(), None, "nor given to others as it was");
    let late = read();
    assert_eq!(values(&late.set), ["late"]);
    assert_eq!(hints.readdress(&late, || ()).unwrap(), Some(()));
    assert!(hints.remove(&late).unwrap());
    assert!(!hints.remove(&late).unwrap(), "a second removal finds nothing");
    assert!(hints.pending().into_iter().all(|(_, count)| count == 0));
}

#[test]
fn hints_are_refused_at_the_byte_limit() {
    let (hints, carts) = (hints(100), definition(Resolver::Siblings));
    let replica = store(1, Resolver::Siblings);
    let stamped = replica.stamp(place(KEY), KEY, order(&"x".repeat(200), None)).unwrap();
    hints.park(TARGET, &carts, KEY, &stamped.set).unwrap();
    let refused = hints.park(TARGET, &carts, b"another", &stamped.set).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Overloaded);
    assert_eq!(hints.refused(), 1);
}

/// A fallback once acknowledged what its target must refuse.
#[test]
fn a_fallback_keeps_to_the_limits_of_the_store() {
    let (hints, mut carts) = (hints(u64::MAX), definition(Resolver::Siblings));
    carts.value_bytes_max = 4;
    let refused = hints.stamp(TARGET, &carts, KEY, order("12345", None)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::ValueTooLarge);
    assert!(hints.pending().is_empty());
}

/// One damaged hint held up all that lay behind it, and was then counted as waiting for ever.
#[tokio::test]
async fn a_damaged_hint_is_forgotten_and_does_not_hold_up_the_others() {
    let disk = Arc::new(SimulatedDisk::new(1));
    let ports = Ports::os().unwrap();
    let ports = EnginePorts { clock: ports.clock, tasks: ports.tasks };
    let options = LogOptions { durability: Durability::Always, ..LogOptions::default() };
    let engine = LogEngine::open(disk.clone(), "hints", options, ports).await.unwrap();
    let (hints, carts) = (Hints::new(engine, stamper(9, 1), u64::MAX), definition(Resolver::Siblings));
    let replica = store(1, Resolver::Siblings);
    for number in 0..20 {
        let (key, value) = (format!("cart:{number}"), format!("the contents of cart {number:03}"));
        let stamped = replica.stamp(place(key.as_bytes()), key.as_bytes(), order(&value, None)).unwrap();
        let commit = hints.park(TARGET, &carts, key.as_bytes(), &stamped.set).unwrap();
        assert!(hints.durable(commit.unwrap()).wait().await.is_ok());
    }
    let damaged = b"the contents of cart 007";
    let (path, at) = disk
        .files()
        .into_iter()
        .find_map(|(path, bytes)| Some((path, bytes.windows(damaged.len()).position(|w| w == damaged)?)))
        .expect("the hint is on the disk");
    assert!(disk.flip_bit(&path, at as u64, 2));
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let limit = ScanLimit { records_max: 4, bytes_max: 1 << 20 };
        let (page, next) = hints.page(TARGET, after.as_ref(), limit).unwrap();
        found.extend(page.into_iter().map(|hint| hint.key));
        after = next;
        if after.is_none() {
            break;
        }
    }
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 19, "{found:?}");
    assert_eq!((hints.count(TARGET), hints.damaged()), (19, 1), "it is forgotten, and counted");
}

/// It knows hints, and not the key: *absent* is all that it could say.
#[test]
fn a_fallback_judges_no_condition() {
    let (hints, carts) = (hints(u64::MAX), definition(Resolver::LastWriteWins));
    hints.stamp(TARGET, &carts, KEY, order("v", None)).unwrap();
    for condition in [Condition::IfAbsent, Condition::IfPresent, Condition::IfCurrent, Condition::Touch] {
        let refused = hints.stamp(TARGET, &carts, KEY, WriteOrder { condition, ..order("w", None) });
        assert_eq!(refused.unwrap_err().code, ErrorCode::InsufficientReplicas, "{condition:?}");
    }
}
