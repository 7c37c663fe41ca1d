//! Machines that stand by, explored: they are called, end, are too many, and their processes vanish.

use super::*;

impl World {
    /// A machine that stands by ends, or only its process does.
    pub(super) fn ready_ones_end(&self) -> Vec<World> {
        let mut next = Vec::new();
        for machine in self.fleet.machines.iter().filter(|machine| machine.standby) {
            let host = self.boxes.iter().position(|one| Some(&one.instance.id) == machine.instance.as_ref());
            let Some(host) = host.filter(|place| self.boxes[*place].instance.state == InstanceState::Running)
            else {
                continue;
            };
            let address = &self.boxes[host].instance.address;
            let waits = |one: &Member| one.address == *address && one.state == MemberState::Waiting;
            let vanished = self.with(|world| world.members.retain(|one| !waits(one)));
            next.push(vanished.with(|world| world.boxes[host].instance.state = InstanceState::Ended));
            next.push(vanished);
        }
        next
    }
}

fn standing(serving: u32, orders: Vec<FleetOrder>) -> Scenario {
    Scenario { standby: 1, ..scenario(serving, orders) }
}

#[test]
fn two_controllers_call_one_that_stands_by() {
    let visited = whole(&standing(2, vec![plan(1)]));
    assert!(visited > 1_000, "{visited} worlds");
}

#[test]
fn one_that_was_called_is_bought_anew_or_is_taken_back_and_stands_by() {
    for orders in [vec![plan(1)], vec![plan(1), FleetOrder::Abort]] {
        // With two machines on their way, worlds are many.
        let scenario = Scenario { ticks: 0, faults: 0, second_turns: 0, ..standing(1, orders) };
        let visited = explore(&scenario, None).unwrap();
        assert!(visited > 50, "{visited} worlds");
    }
    let visited = whole(&Scenario { second_turns: 0, ..standing(2, vec![plan(1), FleetOrder::Abort]) });
    assert!(visited > 100, "{visited} worlds");
}

#[test]
fn one_that_stands_by_and_is_one_too_many_ends_unless_its_provider_refuses() {
    let too_many = |refuses| Scenario { standby: 2, refuses, ..scenario(1, Vec::new()) };
    for refuses in [Refuses::Never, Refuses::Sometime] {
        let visited = whole(&too_many(refuses));
        assert!(visited > 10, "{visited} worlds");
    }
    // One whose process vanished is told as failed there; without that, it stays ready.
    explore(&Scenario { faults: 0, ..too_many(Refuses::Always) }, None).unwrap();
}

#[test]
fn an_engine_that_does_not_list_those_that_wait_is_convicted() {
    let scenario = Scenario { ticks: 0, faults: 0, ..standing(1, Vec::new()) };
    let wrong = explore(&scenario, Some(Bug::HidesTheReady)).unwrap_err();
    assert!(wrong.contains("another number stands by"), "{}", &wrong[..wrong.len().min(3000)]);
}
