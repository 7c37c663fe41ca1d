//! Decisions, states and obstacles in words.

use std::time::Duration;

use model::WallMillis;
use model::elasticity::{Direction, HeldChange, Money, Reading, Reason, Rule, RuleVerdict, Spread};
use protocol::elasticity::covered_s;

use crate::durations;
use crate::output::program;
use crate::text::{count, moment};

/// What holds a decision about the fleet `name` or refuses an order, and what helps.
pub(super) fn held(name: &str, held: &HeldChange) -> String {
    held_at(name, held, super::fleets::now())
}

/// What held it at a time.
pub(super) fn held_at(name: &str, held: &HeldChange, at: WallMillis) -> String {
    let program = program();
    match held {
        HeldChange::Samples { fresh, wanted, since, covers, wants_s } => {
            let looks = covers.and_then(|covers| looks(at, (covers, *wants_s), *since));
            looks.unwrap_or_else(|| samples(name, (*fresh, *wanted), *since))
        }
        HeldChange::Unlearned => format!(
            "the members were never used enough to tell what they carry; it is learned from 15 % of use on. Meanwhile, order a \
             size with `{program} elastic plan {name} +N|-N`"
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

/// How much time samples cover of what a verdict wants, and when they will: none where they should by now.
fn looks(at: WallMillis, (covers, wants_s): (WallMillis, u64), since: Option<WallMillis>) -> Option<String> {
    let (covered, wanted) = (at.0.saturating_sub(covers.0), wants_s * 1000);
    let left = wanted.checked_sub(covered).filter(|left| *left > 0)?;
    let anew = match since {
        Some(since) => format!("since the size changed at {}", clock(since)),
        None => "and a controller that starts begins anew".to_owned(),
    };
    Some(format!(
        "samples cover {} s of the {wants_s} s that a verdict wants, {anew}; it comes at {} at the earliest, in {} s",
        covered / 1000,
        clock(WallMillis(at.0 + left)),
        left.div_ceil(1000)
    ))
}

/// The time of day of something that is not far off.
pub(super) fn clock(at: WallMillis) -> String {
    let utc = crate::dates::utc(at.0);
    let time = utc.split_once('T').map_or(utc.as_str(), |(_, time)| time);
    format!("{} UTC", time.split(['.', 'Z']).next().unwrap_or(time))
}

/// That so few members have samples of so many that must.
fn samples(name: &str, (fresh, wanted): (u32, u32), since: Option<WallMillis>) -> String {
    let anew = since.map(|since| {
        let time = moment(since.0);
        format!(" (samples count since {time}, when the size changed)")
    });
    format!(
        "{fresh} of the members have fresh samples over enough of the span of the rules, and {wanted} must{}; `{} elastic \
         status {name}` shows what each measured last",
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

/// A rule, and how much of its span samples covered, if that was less.
pub(super) fn rule_covered(rule: &Rule, covered_s: Option<u64>) -> String {
    let less = covered_s.filter(|covered| *covered < rule.over);
    let less = less.map(|covered| format!(", of which samples covered {covered} s")).unwrap_or_default();
    format!("{}{less}", self::rule(rule))
}

/// Why it was decided, by these readings.
pub(super) fn reason(reason: &Reason, readings: &[Reading]) -> String {
    match reason {
        Reason::Ordered { by } => format!("ordered by {by}"),
        Reason::Rule { rule } => rule_covered(rule, covered_s(readings, rule)),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `why` says it of more members and of fewer.
    #[test]
    fn what_holds_both_directions_advises_neither() {
        let told = held("shop", &HeldChange::Unlearned);
        assert!(told.contains("elastic plan shop +N|-N`") && !told.contains("+1"), "{told}");
    }

    #[test]
    fn after_a_change_it_is_told_what_samples_cover_and_when_there_is_a_verdict() {
        let changed = WallMillis(951_782_390_000);
        let held = HeldChange::Samples {
            fresh: 0,
            wanted: 2,
            since: Some(changed),
            covers: Some(changed),
            wants_s: 18,
        };
        let told = |seconds: u64| held_at("shop", &held, WallMillis(changed.0 + seconds * 1000));
        assert_eq!(
            told(12),
            "samples cover 12 s of the 18 s that a verdict wants, since the size changed at 23:59:50 UTC; it comes at 00:00:08 \
             UTC at the earliest, in 6 s"
        );
        assert!(
            told(18).starts_with("0 of the members have fresh samples"),
            "it should have come: {}",
            told(18)
        );
        let started =
            HeldChange::Samples { fresh: 0, wanted: 2, since: None, covers: Some(changed), wants_s: 18 };
        let told = held_at("shop", &started, WallMillis(changed.0 + 12_000));
        assert!(told.contains("a controller that starts begins anew; it comes at 00:00:08 UTC"), "{told}");
    }
}
