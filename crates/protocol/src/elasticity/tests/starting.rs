//! Engines whose members join as soon as their machines start.

use super::*;

/// A second process that starts while one joins ends, and three such ends would pause the fleet.
#[test]
fn where_members_join_as_they_start_one_starts_at_a_time_and_none_stands_by() {
    let mut three = seen(3);
    three.engine.as_mut().unwrap().joins_at_boot = true;
    (three.fleet.target, three.fleet.policy.max, three.fleet.policy.standby) = (Some(5), 6, 1);
    let next = published(&three);
    assert_eq!(next.in_state(MachineState::Requested).count(), 1, "{:?}", next.machines);
    assert!(matches!(next.standby_held, Some(HeldChange::Engine { .. })), "{:?}", next.standby_held);
    three.fleet = next;
    assert_eq!(published(&three).in_state(MachineState::Requested).count(), 1);
    // Nor does one start beside a member that leaves.
    let mut leaving = seen(3);
    put(&mut leaving, 3, MachineState::Draining, MemberState::Draining);
    let engine = leaving.engine.as_mut().unwrap();
    (engine.joins_at_boot, engine.drain_cancellable) = (true, false);
    leaving.fleet.target = Some(4);
    assert_eq!(published(&leaving).in_state(MachineState::Requested).count(), 0);
}
