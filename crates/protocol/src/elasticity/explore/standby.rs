//! Machines that stand by, explored: they are called, end, are too many, and their processes vanish.

use super::*;

impl World {
    /// Machines that stand by end, or only their processes do.
    pub(super) fn ready_ones_end(&self) -> Vec<Happening> {
        let host = |machine: &Machine| {
            let is_its = |one: &Host| Some(&one.instance.id) == machine.instance.as_ref();
            let host = self.boxes.iter().position(is_its)?;
            (self.boxes[host].instance.state == InstanceState::Running).then_some(host)
        };
        let ready = self.fleet.machines.iter().filter(|machine| machine.standby).filter_map(host);
        ready.flat_map(|host| [true, false].map(|ended| Happening::ReadyEnds { host, ended })).collect()
    }

    pub(super) fn ready_ends(&mut self, host: usize, ended: bool) {
        let address = self.boxes[host].instance.address.clone();
        self.members.retain(|one| one.address != address || one.state != MemberState::Waiting);
        if ended {
            self.boxes[host].instance.state = InstanceState::Ended;
        }
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
