//! What overrides every command and policy: fewest members, what carries the load, acts at a time, money, room at the
//! provider.
//!
//! A guard answers with what holds. Must never: let something pass because an adapter did not answer.

use std::collections::BTreeSet;

use model::WallMillis;
use model::elasticity::adapter::{InstanceState, Member, MemberState};
use model::elasticity::{Budget, Fleet, HeldChange, Machine, MachineState, Money, Paused};

use super::{Observation, Work, since, sizing};

/// Machines that may fail in a row until nothing new is begun.
pub(super) const FAILURES_MAX: u32 = 3;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// A machine that is lost within this time after it began to serve counts as a failure, in milliseconds.
pub(super) const PROVED_MS: u64 = HOUR_MS;
/// Entries that a fleet may have beyond its policy's most: machines that leave or failed, while others take their places.
const ENTRIES_BEYOND_MAX: u32 = 4;

/// Notes that a machine failed; the third in a row pauses.
pub(super) fn count_failure(fleet: &mut Fleet, now: WallMillis, why: &str) {
    fleet.failures += 1;
    fleet.failed = Some(now);
    if fleet.failures >= FAILURES_MAX && fleet.paused.is_none() {
        let why = format!("{} machines failed in a row, the last because {why}", fleet.failures);
        fleet.paused = Some(Paused { at: now, why });
    }
}

/// Forgets failures once a machine that came after them has served for an hour, or nothing came for as long: to serve for a
/// minute is no success.
pub(super) fn forgive(fleet: &mut Fleet, now: WallMillis) {
    let Some(failed) = fleet.failed else { return };
    let is_proved =
        |machine: &Machine| machine.state == MachineState::Serving && since(now, machine.since) >= PROVED_MS;
    let is_young = |machine: &Machine| {
        machine.is_coming() || (machine.state == MachineState::Serving && !is_proved(machine))
    };
    let later = fleet.machines.iter().any(|machine| is_proved(machine) && machine.since >= failed);
    let nothing_came = since(now, failed) >= PROVED_MS && !fleet.machines.iter().any(is_young);
    if fleet.paused.is_none() && (later || nothing_came) {
        (fleet.failures, fleet.failed) = (0, None);
    }
}

/// Whether one more may join or leave now: beside the machines that do, also members that do so at the engine alone, such as
/// those of failed machines, or by another hand.
pub(super) fn has_slot(work: &Work<'_>) -> bool {
    let Ok(engine) = &work.seen.engine else { return false };
    acting(work).is_some_and(|acting| acting < engine.acts_max.max(1))
}

/// Whether one more machine may be started. Where members join as soon as they start, that is an act, and none stands by.
pub(super) fn may_start(work: &Work<'_>, standby: bool) -> Result<(), HeldChange> {
    let Some(engine) = work.seen.engine.as_ref().ok().filter(|engine| engine.joins_at_boot) else {
        return Ok(());
    };
    if standby {
        let detail = "its members join as soon as they start, so none can stand by";
        return Err(HeldChange::Engine { detail: detail.to_owned() });
    }
    let starts = |machine: &&Machine| {
        matches!(machine.state, MachineState::Requested | MachineState::Booting | MachineState::Ready)
    };
    let starting = work.next.machines.iter().filter(starts).count() as u32;
    match acting(work) {
        Some(acting) if acting + starting < engine.acts_max.max(1) => Ok(()),
        _ => Err(HeldChange::UnderWay),
    }
}

/// How many members join or leave; `None` where the engine does not say.
fn acting(work: &Work<'_>) -> Option<u32> {
    let members = work.seen.members.as_ref().ok()?;
    let acts = |machine: &&Machine| matches!(machine.state, MachineState::Joining | MachineState::Draining);
    let acting: Vec<&Machine> = work.next.machines.iter().filter(acts).collect();
    let is_beside = |member: &&Member| {
        matches!(member.state, MemberState::Joining | MemberState::Draining)
            && !acting.iter().any(|machine| machine.member.as_ref() == Some(&member.id))
    };
    let beside = members.iter().filter(is_beside).count();
    Some((acting.len() + beside) as u32)
}

/// What the provider says that an hour of a machine of this type costs.
pub(super) fn listed_price(seen: &Observation, kind: &str) -> Option<Money> {
    let mut types = seen.provider.iter().flat_map(|provider| &provider.types);
    types.find(|one| one.name == kind).map(|one| one.price_per_hour)
}

/// What an hour of a machine of this type costs; what it cost last where the provider does not say. Where nobody knows, 0
/// stands for that until the provider says it, and no budget lets anything be bought meanwhile.
pub(super) fn price(work: &Work<'_>, kind: &str) -> Money {
    let known = || work.next.machines.iter().find(|machine| machine.kind == kind);
    listed_price(work.seen, kind)
        .or_else(|| known().map(|machine| machine.price_per_hour))
        .unwrap_or_default()
}

/// Whether it is known what each machine costs, where a budget is set: unknown is never 0.
fn all_priced(seen: &Observation, fleet: &Fleet) -> Result<(), HeldChange> {
    let is_unknown = |machine: &&Machine| {
        machine.price_per_hour == Money(0)
            && !machine.is_unmanaged()
            && (machine.gone.is_none() || !machine.state.is_leaving())
            && listed_price(seen, &machine.kind).is_none()
    };
    match fleet.machines.iter().find(is_unknown) {
        Some(machine) if fleet.policy.budget != Budget::default() => {
            let name = machine.instance.as_ref().unwrap_or(&machine.token.0);
            let detail = format!(
                "the budget cannot be kept: the provider names no price for {name}, which is of the type {:?}; add that type with \
                 its price to the provider's settings and start the controller again",
                machine.kind
            );
            Err(HeldChange::Provider { detail })
        }
        _ => Ok(()),
    }
}

fn unheard(which: &str, why: &str) -> HeldChange {
    HeldChange::Unheard { detail: format!("{which} did not answer: {why}") }
}

/// Whether both adapters have answered in this turn.
pub(super) fn heard(seen: &Observation) -> Result<(), HeldChange> {
    let answers = [
        ("the provider", seen.provider.as_ref().err()),
        ("the provider", seen.instances.as_ref().err()),
        ("the engine", seen.engine.as_ref().err()),
        ("the engine", seen.members.as_ref().err()),
    ];
    match answers.iter().find_map(|(which, why)| why.map(|why| unheard(which, why))) {
        Some(held) => Err(held),
        None => Ok(()),
    }
}

/// Whether this many machines more may be asked for; the price of each.
pub(super) fn may_buy(seen: &Observation, fleet: &Fleet, more: u32) -> Result<Money, HeldChange> {
    heard(seen)?;
    let policy = &fleet.policy;
    let Ok(provider) = &seen.provider else { unreachable!("it was heard") };
    let Some(kind) = provider.types.iter().find(|one| one.name == policy.machine_type) else {
        return Err(HeldChange::Provider { detail: format!("it has no type {:?}", policy.machine_type) });
    };
    let entries_max = policy.max.saturating_add(ENTRIES_BEYOND_MAX);
    let entries = fleet.machines.len() as u32;
    if entries.saturating_add(more) > entries_max {
        let detail = format!(
            "{entries} machines are of the fleet, with those that failed or leave, and {entries_max} may be; \
             `status` says what each waits for"
        );
        return Err(HeldChange::Provider { detail });
    }
    if let (Some(quota), Ok(instances)) = (provider.quota, &seen.instances) {
        let run = instances.iter().filter(|one| one.state != InstanceState::Ended).count();
        let asked = fleet.machines.iter().filter(|machine| machine.instance.is_none() && !machine.adopted);
        let there = (run + asked.count()) as u32;
        if there + more > quota {
            return Err(HeldChange::Provider {
                detail: format!("{there} machines are there, and it lets {quota} run"),
            });
        }
    }
    all_priced(seen, fleet)?;
    let price = kind.price_per_hour;
    let rate = Money(price.0.saturating_mul(u64::from(more))) + fleet.cost_per_hour();
    let over = |cost: Money, most: Option<Money>, span: &str| match most {
        Some(most) if cost > most => {
            Err(HeldChange::Budget { cost: cost.0, most: most.0, span: span.to_owned() })
        }
        _ => Ok(()),
    };
    over(rate, policy.budget.per_hour, "hour")?;
    let midnight = WallMillis(seen.now.0 - seen.now.0 % DAY_MS);
    over(fleet.paid(midnight, seen.now) + rate.for_millis(HOUR_MS), policy.budget.per_day, "day")?;
    Ok(price)
}

/// Forgets what was paid before today.
pub(super) fn forget_charges(fleet: &mut Fleet, now: WallMillis) {
    let midnight = now.0 - now.0 % DAY_MS;
    fleet.charges.retain(|charge| charge.until.0 >= midnight);
}

/// Whether this machine may begin to leave, but for `preflight`.
pub(super) fn may_drain(work: &Work<'_>, leaves: &Machine) -> Result<(), HeldChange> {
    let (seen, fleet) = (work.seen, &work.next);
    heard(seen)?;
    let (Ok(engine), Ok(members)) = (&seen.engine, &seen.members) else { unreachable!("both were heard") };
    let serves: BTreeSet<&String> =
        members.iter().filter(|one| one.state == MemberState::Serving).map(|one| &one.id).collect();
    for machine in fleet.in_state(MachineState::Serving) {
        match &machine.member {
            Some(member) if serves.contains(member) => {}
            other => {
                let name = other.as_ref().unwrap_or(&machine.token.0);
                return Err(HeldChange::Engine { detail: format!("{name} does not serve") });
            }
        }
    }
    if leaves.state != MachineState::Serving {
        return Ok(());
    }
    let leaving: BTreeSet<&String> = fleet
        .machines
        .iter()
        .filter(|machine| machine.state.is_leaving())
        .filter_map(|machine| machine.member.as_ref())
        .collect();
    let stay = serves.iter().filter(|member| !leaving.contains(*member)).count() as u32 - 1;
    if stay < engine.members_min {
        return Err(HeldChange::Fewest { min: engine.members_min });
    }
    match fleet.serving() <= fleet.policy.min {
        true => Err(HeldChange::Fewest { min: fleet.policy.min }),
        false => sizing::may_be_left(seen, fleet, fleet.serving() - 1),
    }
}
