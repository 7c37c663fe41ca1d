//! Members that do not answer and machines that are gone: since when, and what happens when.
//!
//! A controller gives a machine up only after a while, because a provider's list may lapse. Until then nothing else tells.

use model::WallMillis;
use model::elasticity::adapter::{InstanceState, MemberState};
use model::elasticity::{Fleet, Look, Machine, MachineState};
use protocol::elasticity::given_up_at;
use serde_json::{Value as Json, json};

use super::{shown, words};
use crate::output::program;

/// What is known of a machine that is away.
struct Away<'a> {
    machine: &'a Machine,
    /// Since when its member does not answer, as far as a controller has looked.
    silent: Option<WallMillis>,
    /// When it is given up, if it stays so.
    given_up: Option<WallMillis>,
}

/// All machines of a fleet that are to serve or to leave, and are away. Those that come have deadlines, and those that are
/// given up or ended are away by right.
fn all<'a>(fleet: &'a Fleet, look: Option<&Look>) -> Vec<Away<'a>> {
    let one = |machine: &'a Machine| {
        let member = shown::member(machine, look);
        let is_down = member.is_some_and(|member| member.state == MemberState::Down);
        // A machine that its provider omits is kept for as long as its member answers.
        let answers = member.is_some() && !is_down;
        let since = || machine.member.as_ref().and_then(|member| look?.silent.get(member).copied());
        let silent = is_down.then(|| since().or(look.map(|look| look.at))).flatten();
        let given_up = given_up_at(machine).filter(|_| !answers);
        (silent.is_some() || given_up.is_some()).then_some(Away { machine, silent, given_up })
    };
    let stays = |state| matches!(state, MachineState::Serving | MachineState::Draining);
    fleet.machines.iter().filter(|machine| stays(machine.state)).filter_map(one).collect()
}

/// So many of the members that are to serve do not, by what was seen last: their engine does not reach or list them, or their
/// machine has ended by its provider's word.
pub(super) fn not_answering(fleet: &Fleet, look: Option<&Look>) -> u32 {
    let Some(look) = look else { return 0 };
    let has_ended = |machine: &Machine| {
        let ended = |state| matches!(state, InstanceState::Ending | InstanceState::Ended);
        let mut listed = look.instances.iter().flatten();
        listed.any(|one| Some(&one.id) == machine.instance.as_ref() && ended(one.state))
    };
    let is_away = |machine: &&Machine| match shown::member(machine, Some(look)) {
        Some(member) => member.state == MemberState::Down || has_ended(machine),
        None => look.members.is_ok() || has_ended(machine),
    };
    fleet.in_state(MachineState::Serving).filter(is_away).count() as u32
}

/// How many serve, and how many of those that are to do not answer.
pub(super) fn serve(fleet: &Fleet, look: Option<&Look>) -> String {
    let (all, away) = (fleet.serving(), not_answering(fleet, look));
    match away {
        0 => format!("{all} serve"),
        1 => format!("{} of {all} serve and 1 does not answer", all - 1),
        away => format!("{} of {all} serve and {away} do not answer", all - away),
    }
}

/// One line for each machine that is away.
pub(super) fn lines(fleet: &Fleet, look: Option<&Look>, now: WallMillis) -> Vec<String> {
    all(fleet, look).iter().map(|away| away.told(fleet, now)).collect()
}

/// The same for programs.
pub(super) fn json(fleet: &Fleet, look: Option<&Look>, now: WallMillis) -> Json {
    let one = |away: &Away<'_>| {
        json!({
            "token": away.machine.token, "member": away.machine.member, "silent_since": away.silent,
            "gone_since": away.machine.gone, "given_up_at": away.given_up, "words": away.told(fleet, now),
        })
    };
    all(fleet, look).iter().map(one).collect()
}

impl Away<'_> {
    fn told(&self, fleet: &Fleet, now: WallMillis) -> String {
        let name = shown::called(self.machine);
        let silent =
            self.silent.map(|since| format!("{name} has not answered since {}", words::clock(since)));
        let Some(gone) = self.machine.gone else {
            let silent = silent.unwrap_or_else(|| format!("{name} does not answer"));
            return match &self.machine.instance {
                Some(instance) => format!(
                    "{silent}; machine {instance} still runs, so it is not replaced: look at its log, or end it at its provider"
                ),
                None => format!(
                    "{silent}; it has no machine of the provider, so nobody replaces it: start it again"
                ),
            };
        };
        let gone = words::clock(gone);
        let told = match (self.machine.is_unmanaged(), silent) {
            (true, _) => {
                return format!(
                    "its engine has not listed {name} since {gone}; {}",
                    self.end("it leaves the fleet", now)
                );
            }
            (false, Some(silent)) => format!("{silent}, and its machine has been gone since {gone}"),
            (false, None) => format!("the machine of {name} has been gone since {gone}"),
        };
        let then = match fleet.paused {
            _ if self.machine.state == MachineState::Draining => {
                "it was to leave, so none takes its place".to_owned()
            }
            Some(_) => format!(
                "the fleet is paused, so none takes its place until `{} elastic resume {}`",
                program(),
                fleet.name
            ),
            None => "another one takes its place then".to_owned(),
        };
        format!("{told}; {}; {then}", self.end("it counts as lost", now))
    }

    /// What happens when, unless it comes back before.
    fn end(&self, what: &str, now: WallMillis) -> String {
        let Some(end) = self.given_up else { return format!("{what} soon") };
        match end.0.saturating_sub(now.0) {
            0 => format!("{what} as soon as a controller looks"),
            left => {
                format!("unless it comes back, {what} at {}, in {} s", words::clock(end), left.div_ceil(1000))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::elasticity::{Money, Paused, Token};

    use super::*;

    /// 2000-02-28 23:59:50 UTC.
    const T: u64 = 951_782_390_000;

    fn machine(number: u64, instance: Option<&str>, gone: Option<u64>) -> Machine {
        Machine {
            token: Token::new("a1b2", number),
            instance: instance.map(str::to_owned),
            address: None,
            member: Some(format!("n{number}")),
            kind: "t".to_owned(),
            price_per_hour: Money(0),
            state: MachineState::Serving,
            since: WallMillis(0),
            began: WallMillis(0),
            decision: None,
            standby: false,
            adopted: instance.is_none(),
            gone: gone.map(WallMillis),
            note: None,
        }
    }

    fn fleet(machines: Vec<Machine>) -> Fleet {
        let policy = json!({ "engine": "e", "provider": "p", "machine-type": "t", "min": 1, "max": 4 });
        let mut fleet = Fleet::new("shop", "a1b2", serde_json::from_value(policy).unwrap());
        fleet.machines = machines;
        fleet
    }

    /// Members n1 and on, in these states; those that are down since `T` plus 20 s.
    fn look(states: &[&str]) -> Look {
        let names = (1..=states.len()).map(|number| format!("n{number}"));
        let down = |(name, state): (String, &&str)| (*state == "down").then_some((name, T + 20_000));
        let silent: serde_json::Map<String, Json> =
            names.clone().zip(states).filter_map(down).map(|(name, at)| (name, json!(at))).collect();
        let members = names.zip(states).map(|(id, state)| json!({ "id": id, "state": state }));
        serde_json::from_value(json!({
            "at": T + 35_000, "by": "here", "generation": 1, "provider": { "Err": "away" }, "instances": { "Err": "away" },
            "engine": { "Err": "away" }, "members": { "Ok": members.collect::<Vec<_>>() }, "silent": silent,
        }))
        .unwrap()
    }

    #[test]
    fn a_machine_that_was_killed_is_told_with_when_it_counts_as_lost() {
        let mut killed = fleet(vec![machine(1, None, None), machine(2, Some("i-2"), Some(T))]);
        let now = WallMillis(T + 35_000);
        let told = |fleet: &Fleet, states: &[&str]| lines(fleet, Some(&look(states)), now);
        let then = "unless it comes back, it counts as lost at 00:01:50 UTC, in 85 s; another one takes its place then";
        assert_eq!(
            told(&killed, &["serving", "down"]),
            [format!(
                "n2 has not answered since 00:00:10 UTC, and its machine has been gone since 23:59:50 UTC; {then}"
            )]
        );
        assert_eq!(
            told(&killed, &["serving"]),
            [format!("the machine of n2 has been gone since 23:59:50 UTC; {then}")]
        );
        assert!(told(&killed, &["serving", "serving"]).is_empty(), "its member answers, so it is kept");
        let mut given_up = killed.clone();
        for state in [MachineState::Failed, MachineState::Terminating] {
            given_up.machines[1].state = state;
            assert!(told(&given_up, &["serving", "down"]).is_empty(), "{state:?}: it is away by right");
        }
        let late = &lines(&killed, None, WallMillis(T + 130_000))[0];
        assert!(late.contains("it counts as lost as soon as a controller looks"), "{late}");
        killed.paused = Some(Paused { at: now, why: "three failed".to_owned() });
        let paused = &told(&killed, &["serving", "down"])[0];
        assert!(
            paused.contains("paused, so none takes its place until `")
                && paused.contains("elastic resume shop`"),
            "{paused}"
        );
        let json = json(&killed, Some(&look(&["serving", "down"])), now);
        assert_eq!(
            (&json[0]["given_up_at"], &json[0]["silent_since"]),
            (&json!(T + 120_000), &json!(T + 20_000))
        );
    }

    #[test]
    fn members_that_are_dead_do_not_count_as_serving() {
        let three =
            fleet(vec![machine(1, None, None), machine(2, Some("i-2"), None), machine(3, Some("i-3"), None)]);
        let served = |look: &Look| serve(&three, Some(look));
        assert_eq!(served(&look(&["serving", "serving", "serving"])), "3 serve");
        assert_eq!(served(&look(&["serving", "serving", "down"])), "2 of 3 serve and 1 does not answer");
        assert_eq!(served(&look(&["serving", "down"])), "1 of 3 serve and 2 do not answer");
        let mut ended = look(&["serving", "serving", "serving"]);
        ended.instances =
            serde_json::from_value(json!({ "Ok": [{ "id": "i-2", "state": "ended" }] })).unwrap();
        assert_eq!(served(&ended), "2 of 3 serve and 1 does not answer", "its engine has not noticed it yet");
        ended.members = Err("away".to_owned());
        assert_eq!(served(&ended), "2 of 3 serve and 1 does not answer");
        assert_eq!(serve(&three, None), "3 serve", "nobody has looked");
    }

    #[test]
    fn status_says_both_at_its_head_and_below_its_machines() {
        let killed = fleet(vec![machine(1, None, None), machine(2, Some("i-2"), Some(T))]);
        let status = shown::text(&killed, Some(&look(&["serving", "down"])), None);
        assert!(
            status.starts_with("fleet shop: 1 of 2 serve and 1 does not answer, none wanted"),
            "{status}"
        );
        assert!(
            status.contains("\naway: n2 has not answered since 00:00:10 UTC, and its machine"),
            "{status}"
        );
    }

    #[test]
    fn what_does_not_answer_and_is_not_replaced_is_told_with_what_helps() {
        let some =
            fleet(vec![machine(1, None, None), machine(2, Some("i-2"), None), machine(3, None, Some(T))]);
        let mut look = look(&["down", "down"]);
        assert_eq!(
            lines(&some, Some(&look), WallMillis(T + 35_000)),
            [
                "n1 has not answered since 00:00:10 UTC; it has no machine of the provider, so nobody replaces it: start it again",
                "n2 has not answered since 00:00:10 UTC; machine i-2 still runs, so it is not replaced: look at its log, or end it \
                 at its provider",
                "its engine has not listed n3 since 23:59:50 UTC; unless it comes back, it leaves the fleet at 00:04:50 UTC, in \
                 265 s",
            ]
        );
        look.members = Err("away".to_owned());
        assert_eq!(lines(&some, Some(&look), WallMillis(T)).len(), 1, "of silence nothing is known");
    }
}
