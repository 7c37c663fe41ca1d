//! Why a fleet is as large as it is: the decision that held at a time, and what stood in the way of more and of fewer.

use model::WallMillis;
use model::elasticity::{Decision, Fleet, HeldChange, Rule, RuleVerdict, Sizing};

use super::{rules, sizing};

/// What stood in the way of another size.
#[derive(Clone, Debug, PartialEq)]
pub enum Obstacle {
    /// It was wanted, and this held it; or it would have been held by this.
    Held(HeldChange),
    /// No rule asked for it. The rules that could have.
    Rules(Vec<RuleRoom>),
    /// The load asked for no other size, where the size is chosen by load.
    Load(LoadRoom),
    /// It was being carried out.
    Done,
}

/// A rule, and how far from it the members were.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleRoom {
    /// The rule.
    pub rule: Rule,
    /// What counted of the members' means, where it was known.
    pub value: Option<f64>,
    /// How much of the rule's span these means covered, in seconds, where that is kept.
    pub covered_s: Option<u64>,
}

/// What members carry, beside what they must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadRoom {
    /// The load of the last minute, in operations in a second; none where it was not measured.
    pub load: Option<u64>,
    /// What must be carried, in operations in a second: the load for more; for fewer the highest of `low_s` or to come, and a
    /// twentieth of it as a margin. None where it was not measured.
    pub needed: Option<u64>,
    /// So many members are spoken of: all that are wanted for more, one less for fewer.
    pub members: u32,
    /// What they carry within the objective, also with one of them lost, in operations in a second; none where nothing was
    /// learned.
    pub carries: Option<u64>,
    /// For fewer: how long the load must be low until one leaves, in seconds.
    pub low_s: Option<u64>,
}

/// The answer to *why so many*.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// The last decision or order that had set the target, with what holds it up or what came of it; the newest one where none
    /// had.
    pub decision: Decision,
    /// The newest verdict, which may have changed nothing; it may be the same.
    pub newest: Decision,
    /// Why not more.
    pub more: Obstacle,
    /// Why not fewer.
    pub fewer: Obstacle,
}

/// Why the fleet had the size that it had at a time. None if no decision that is kept is that old.
pub fn why(fleet: &Fleet, at: WallMillis) -> Option<Why> {
    let until = |decision: &&Decision| decision.at <= at;
    let newest = fleet.decisions.iter().rfind(until)?;
    let decision = fleet.decisions.iter().filter(until).rfind(|decision| decision.set).unwrap_or(newest);
    let policy = &fleet.policy;
    // What a verdict that is held up wants is no size that the fleet has.
    let stays = matches!(newest.verdict, RuleVerdict::Stay | RuleVerdict::Unknown);
    let size = if newest.set || stays { newest.target } else { newest.members };
    let obstacle = |change: RuleVerdict, is_bound: bool, held: HeldChange, rules: &[Rule]| {
        let is_open = decision.set && decision.ended.is_none_or(|ended| ended > at);
        let wants = |one: &Decision| one.verdict == change;
        match (&decision.held, &newest.held) {
            // What was decided is being carried out, or held up, whatever was judged since.
            (None, _) if is_open && wants(decision) => Obstacle::Done,
            (Some(held), _) if is_open && wants(decision) => Obstacle::Held(held.clone()),
            (_, None) if wants(newest) => Obstacle::Done,
            (_, Some(held)) if wants(newest) || newest.verdict == RuleVerdict::Unknown => {
                Obstacle::Held(held.clone())
            }
            _ if is_bound => Obstacle::Held(held),
            // Rules that a policy has beside another way to choose the size do not count.
            _ if policy.sizing() != Sizing::Rules => {
                Obstacle::Load(sizing::room(fleet, at, size, change == RuleVerdict::Remove))
            }
            _ => nearest(newest, rules),
        }
    };
    let (max, min) = (policy.max, policy.min);
    let more = obstacle(RuleVerdict::Add, size >= max, HeldChange::Most { max }, &policy.add);
    let fewer = obstacle(RuleVerdict::Remove, size <= min, HeldChange::Fewest { min }, &policy.remove);
    Some(Why { decision: decision.clone(), newest: newest.clone(), more, fewer })
}

/// Rules with what counted for each.
fn nearest(decision: &Decision, rules: &[Rule]) -> Obstacle {
    let room = |rule: &Rule| RuleRoom {
        rule: rule.clone(),
        value: rules::value_of(&decision.readings, rule),
        covered_s: rules::covered_s(&decision.readings, rule),
    };
    Obstacle::Rules(rules.iter().map(room).collect())
}
