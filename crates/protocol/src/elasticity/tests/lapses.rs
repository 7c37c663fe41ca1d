//! A provider's list that lapses: a machine that is not in it once may be there all the same.

use super::*;

/// The second of two joins, its process starts again, and its provider does not list it.
fn lapsed() -> Observation {
    let mut two = seen(2);
    put(&mut two, 2, MachineState::Joining, MemberState::Down);
    two.fleet.machines[1].since = WallMillis(NOW - 60_000);
    two.instances.as_mut().unwrap().pop();
    two
}

/// A machine that serves had two minutes for that, and one that joined none.
#[test]
fn a_lapse_of_the_list_fails_no_machine_that_joins() {
    let mut two = lapsed();
    later(&mut two, 119_000);
    let machine = &published(&two).machines[1];
    assert_eq!((machine.state, published(&two).failures), (MachineState::Joining, 0));
    assert!(machine.note.as_ref().unwrap().contains("its machine is gone"), "{machine:?}");
    let mut back = two.clone();
    back.instances = seen(2).instances;
    back.members.as_mut().unwrap()[1].state = MemberState::Serving;
    let machine = &published(&back).machines[1];
    assert_eq!((machine.state, machine.gone), (MachineState::Serving, None));
    two.now.0 += 1_000;
    let next = published(&two);
    assert_eq!((next.machines[1].state, next.failures), (MachineState::Failed, 1));
    assert_eq!(next.in_state(MachineState::Requested).count(), 1, "another one takes its place");
}

#[test]
fn a_machine_that_its_provider_has_ended_while_it_joined_fails_at_once() {
    let mut two = lapsed();
    two.instances = seen(2).instances;
    end(&mut two, 2);
    let next = published(&two);
    assert_eq!((next.machines[1].state, next.failures), (MachineState::Failed, 1));
}
