//! Acts that failed: each rests before it is done again, and is shown until it succeeds.
//!
//! All of it may be lost: a successor does each act once more at once.

use std::collections::BTreeMap;
use std::time::Duration;

use model::Moment;
use model::elasticity::{Fleet, MachineState, Token};
use protocol::elasticity::FleetAction;

use super::adapters::CallError;

/// The first pause of an act that failed; it doubles.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What failed of one machine and verb.
struct Trouble {
    /// What the document said of the machine then. Once it says something else, the act is not wanted any more.
    state: MachineState,
    /// How often it failed in a row.
    failures: u32,
    rests_until: Moment,
    detail: String,
}

/// The acts of one fleet that failed and have not succeeded since.
#[derive(Default)]
pub(super) struct Troubles {
    all: BTreeMap<(Token, &'static str), Trouble>,
}

impl Troubles {
    /// Whether an act failed a moment ago, and is not to be done yet.
    pub(super) fn rests(&self, action: &FleetAction, now: Moment) -> bool {
        key(action).and_then(|key| self.all.get(&key)).is_some_and(|trouble| now < trouble.rests_until)
    }

    /// Notes that an act was done.
    pub(super) fn end(&mut self, action: &FleetAction) {
        if let Some(key) = key(action) {
            self.all.remove(&key);
        }
    }

    /// Notes that an act failed; whether that is new, or failed for another reason than before.
    pub(super) fn add(
        &mut self,
        action: &FleetAction,
        fleet: &Fleet,
        error: &CallError,
        now: Moment,
    ) -> bool {
        let Some(key) = key(action) else { return true };
        let Some(machine) = fleet.machines.iter().find(|machine| machine.token == key.0) else { return true };
        let before = self.all.get(&key);
        let failures = before.map_or(0, |trouble| trouble.failures);
        let is_new = before.is_none_or(|trouble| trouble.detail != error.detail);
        let pause = PAUSE_MAX.min(PAUSE * 2_u32.pow(failures.min(10)));
        let trouble = Trouble {
            state: machine.state,
            failures: failures + 1,
            rests_until: now.after(pause),
            detail: error.detail.clone(),
        };
        self.all.insert(key, trouble);
        is_new
    }

    /// Forgets acts that the document does not ask for any more.
    pub(super) fn forget(&mut self, fleet: &Fleet) {
        self.all.retain(|(token, _), trouble| {
            fleet.machines.iter().any(|machine| machine.token == *token && machine.state == trouble.state)
        });
    }

    /// What failed, each once.
    pub(super) fn told(&self) -> Vec<String> {
        let mut told: Vec<String> = Vec::new();
        for trouble in self.all.values() {
            if !told.contains(&trouble.detail) {
                told.push(trouble.detail.clone());
            }
        }
        told
    }
}

fn key(action: &FleetAction) -> Option<(Token, &'static str)> {
    let verb = match action {
        FleetAction::Publish(_) | FleetAction::Ask(_) => return None,
        FleetAction::Ensure { .. } => "ensure",
        FleetAction::Terminate { .. } => "terminate",
        FleetAction::Join { .. } => "join",
        FleetAction::Drain { .. } => "drain",
        FleetAction::Cancel { .. } => "cancel",
        FleetAction::Forget { .. } => "forget",
    };
    Some((action.token()?.clone(), verb))
}

#[cfg(test)]
mod tests {
    use model::WallMillis;
    use model::elasticity::{Machine, Money};
    use serde_json::json;

    use super::*;

    fn fleet(state: MachineState) -> Fleet {
        let policy = json!({ "engine": "e", "provider": "p", "machine-type": "t", "min": 1, "max": 2 });
        let mut fleet = Fleet::new("shop", "a1b2", serde_json::from_value(policy).unwrap());
        fleet.machines.push(Machine {
            token: Token::new("a1b2", 1),
            instance: None,
            address: None,
            member: Some("n4".to_owned()),
            kind: "t".to_owned(),
            price_per_hour: Money(0),
            state,
            since: WallMillis(0),
            began: WallMillis(0),
            decision: None,
            gone: None,
            standby: false,
            adopted: false,
            note: None,
        });
        fleet
    }

    #[test]
    fn an_act_that_fails_rests_twice_as_long_each_time_and_is_told_until_it_succeeds() {
        let joining = fleet(MachineState::Joining);
        let join = FleetAction::Join { token: Token::new("a1b2", 1), member: "n4".to_owned() };
        let error = |detail: &str| CallError { for_good: false, undone: true, detail: detail.to_owned() };
        let (mut troubles, mut now) = (Troubles::default(), Moment::default());
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            troubles.add(&join, &joining, &error("busy"), now);
            assert!(troubles.rests(&join, now.after(Duration::from_millis(seconds * 1000 - 1))));
            now = now.after(Duration::from_secs(seconds));
            assert!(!troubles.rests(&join, now), "{seconds}");
            assert_eq!(troubles.told(), ["busy"]);
        }
        let drain = FleetAction::Drain { token: Token::new("a1b2", 1), member: "n4".to_owned() };
        assert!(!troubles.add(&join, &joining, &error("busy"), now), "it is told already");
        assert!(troubles.add(&join, &joining, &error("away"), now));
        assert!(!troubles.rests(&drain, now), "each verb rests by itself");
        troubles.forget(&joining);
        assert_eq!(troubles.told(), ["away"]);
        troubles.end(&join);
        assert!(troubles.told().is_empty() && !troubles.rests(&join, now));
        troubles.add(&join, &joining, &error("busy"), now);
        troubles.forget(&fleet(MachineState::Failed));
        assert!(troubles.told().is_empty(), "nobody joins it any more");
    }
}
