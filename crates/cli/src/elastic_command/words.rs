//! Decisions, states and obstacles in words.

use std::time::Duration;

use model::WallMillis;
use model::elasticity::{Direction, HeldChange, Money, Reason, Rule, RuleVerdict, Spread};

use crate::durations;
use crate::output::program;
use crate::text::{count, moment};

/// What holds a decision about the fleet `name` or refuses an order, and what helps.
pub(super) fn held(name: &str, held: &HeldChange) -> String {
    let program = program();
    match held {
        HeldChange::Samples { fresh, wanted, since } => samples(name, (*fresh, *wanted), *since),
        HeldChange::Unlearned => format!(
            "the members were never used enough to tell what they carry; it is learned from 15 % of use on, and `{program} \
             elastic plan {name} +1` orders more meanwhile"
        ),
        HeldChange::Fewest { min } => {
            format!("the fleet may not have fewer than {}; lower `min` in its policy", members(*min))
        }
        HeldChange::Carries { load, carries, left } => format!(
            "the load is {load}/s, and {} with one of them lost would carry {carries}/s of it within the objective; wait until \
             the load is lower, or raise `objective.strained` in the fleet's policy",
            members(*left)
        ),
        HeldChange::Most { max } => {
            format!("the fleet may not have more than {}; raise `max` in its policy", members(*max))
        }
        HeldChange::Budget { cost, most, span } => format!(
            "it would cost {} in this {span}, and the budget allows {}; raise `budget.per-{span}` in its policy",
            Money(*cost),
            Money(*most)
        ),
        HeldChange::UnderWay => format!(
            "another change is under way; wait for it, or take it back with `{program} elastic abort {name}`"
        ),
        HeldChange::Rests { seconds } => format!(
            "the fleet rests for {} more after its last change; wait, shorten `cooldowns` in its policy, or order a size with \
             `{program} elastic plan {name} +N|-N`",
            durations::rough(Duration::from_secs(*seconds))
        ),
        HeldChange::Paused => {
            format!(
                "the fleet is paused; look at why with `{program} elastic status {name}`, then run `{program} elastic resume {name}`"
            )
        }
        HeldChange::NoGain { growths } => format!(
            "the last {growths} growths brought next to nothing, so more members do not help; look for what they wait for. This \
             ends a day after the last of them, or when another kind of load would gain; `{program} elastic plan {name} +1` orders \
             more and ends it now"
        ),
        HeldChange::Costs { cost, saves } => format!(
            "a removal costs {} and saves {} until its machine is wanted again; `{program} elastic plan {name} -1` removes one all \
             the same",
            Money(*cost),
            Money(*saves)
        ),
        HeldChange::Mode => {
            format!(
                "its mode carries nothing out; `{program} elastic approve {name} NUMBER` does where the mode is `advise`"
            )
        }
        HeldChange::Preflight { detail } => format!(
            "the provider would not end the machine: {detail}; lift that at the provider, and the removal goes on, or take it \
             back with `{program} elastic abort {name}`"
        ),
        HeldChange::Unheard { detail }
        | HeldChange::Provider { detail }
        | HeldChange::Engine { detail }
        | HeldChange::Order { detail } => detail.clone(),
    }
}

/// That so few members have samples of so many that must.
fn samples(name: &str, (fresh, wanted): (u32, u32), since: Option<WallMillis>) -> String {
    let anew = since.map(|since| {
        let time = moment(since.0);
        format!(" (samples count since {time}, when the size changed)")
    });
    format!(
        "{fresh} of the members have fresh samples over the whole span of the rules, and {wanted} must{}; `{} elastic status \
         {name}` shows what each measured last",
        anew.unwrap_or_default(),
        program()
    )
}

/// This many members.
pub(super) fn members(number: u32) -> String {
    count(number.into(), "member")
}

/// A rule, as people say it.
pub(super) fn rule(rule: &Rule) -> String {
    let Rule { measure, of, is, bound, over } = rule;
    let of = match of {
        Spread::Any => "any member",
        Spread::All => "all members",
        Spread::Mean => "the mean of all members",
    };
    let side = match is {
        Direction::Above => "above",
        Direction::AtMost => "at or below",
    };
    format!("{measure} of {of} {side} {bound} over {over} s")
}

/// Why it was decided.
pub(super) fn reason(reason: &Reason) -> String {
    match reason {
        Reason::Ordered { by } => format!("ordered by {by}"),
        Reason::Rule { rule } => self::rule(rule),
        Reason::Load { load, carries } => {
            format!("a load of {load}/s, of which those that serve carry {carries}/s within the objective")
        }
        Reason::Forecast { load, within } => {
            let within = durations::rough(Duration::from_secs(*within));
            format!("a load of {load}/s that is expected within {within}")
        }
        Reason::Bounds => "the policy's min and max".to_owned(),
        Reason::Replaces { token } => format!("in place of machine {token}, which failed"),
    }
}

/// What the rules want.
pub(super) fn verdict(verdict: RuleVerdict) -> &'static str {
    match verdict {
        RuleVerdict::Add => "add",
        RuleVerdict::Remove => "remove",
        RuleVerdict::Stay => "stay",
        RuleVerdict::Unknown => "unknown",
    }
}

/// How long ago it was, roughly.
pub(super) fn ago(now: u64, then: u64) -> String {
    durations::rough(Duration::from_secs(now.saturating_sub(then) / 1000))
}
