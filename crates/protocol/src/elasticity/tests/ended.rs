//! Machines that have ended by themselves: their disks may hold the only copy of something.

use super::*;

/// Evidence that nothing is on it.
fn nothing() -> Result<Evidence, String> {
    let (said, witnesses) = (Some(true), vec!["m1".to_owned()]);
    Ok(Evidence { witnesses, owns_nothing: said, nothing_moves: said, nothing_short: said, detail: None })
}

/// The second of two has ended, its engine does not list its member any more, and it failed just now.
fn failed() -> Observation {
    let mut two = seen(2);
    end(&mut two, 2);
    two.members.as_mut().unwrap().pop();
    later(&mut two, 3_600_000);
    (two.fleet.machines[1].state, two.fleet.machines[1].since) = (MachineState::Failed, two.now);
    two.fleet.target = Some(1);
    two
}

fn is_there(fleet: &Fleet) -> bool {
    fleet.machines.iter().any(|machine| machine.instance.as_deref() == Some("i2"))
}

#[test]
fn what_has_ended_by_itself_is_cleaned_up_by_evidence_alone_and_costs_nothing_meanwhile() {
    let mut two = failed();
    two.fleet.machines[0].began = two.now;
    assert_eq!(two.fleet.paid(WallMillis(0), two.now), Money(0), "it ended when it began");
    assert_eq!(two.fleet.cost_per_hour(), Money(1_000_000));
    // To end it for good would take its disk, and nobody says that nothing is on that.
    for after in [0, 3_600_000] {
        two.now.0 += after;
        assert_eq!(acts(&two), [], "after {after} ms");
        two.fleet = published(&two);
        assert!(is_there(&two.fleet) && two.fleet.machines[1].note.is_some(), "{:?}", two.fleet.machines);
    }
    two.evidence.insert("m2".to_owned(), nothing());
    two.fleet = published(&two);
    assert_eq!(two.fleet.machines[1].state, MachineState::Terminating);
    assert!(matches!(&acts(&two)[..], [FleetAction::Terminate { instance, .. }] if instance == "i2"));
    let mut stale = two.clone();
    stale.evidence.clear();
    assert_eq!(acts(&stale), [], "evidence of an earlier turn is none");
    two.now.0 += 20_000;
    assert!(!is_there(&published(&two)), "its provider lists it for hours");
}

#[test]
fn what_has_ended_and_is_not_listed_any_more_is_let_go() {
    let mut two = failed();
    two.instances.as_mut().unwrap().pop();
    assert_eq!(acts(&two), []);
    assert!(!is_there(&published(&two)));
}

#[test]
fn what_has_ended_without_an_address_is_let_go_and_its_disk_is_left() {
    let mut two = failed();
    let nameless = &mut two.fleet.machines[1];
    (nameless.address, nameless.member) = (None, None);
    two.instances.as_mut().unwrap()[1].address = None;
    assert_eq!(acts(&two), []);
    assert!(!is_there(&published(&two)));
}
