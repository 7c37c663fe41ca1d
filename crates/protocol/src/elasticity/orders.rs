//! How an order is taken: checked, answered in the document, and made into a target.
//!
//! An answer says that the order was taken, not that it is done: the target and the machines say how far it is.

use model::elasticity::adapter::{Instance, Member, MemberState};
use model::elasticity::{
    FleetOrder, FleetOrderGiven, HeldChange, Machine, MachineState, Money, ORDERS_MAX, Reason, Resize,
    RuleVerdict, Token,
};

use super::{Work, converge, decisions, guards, sizing};

/// The type of a machine that has no provider.
const UNMANAGED: &str = "unmanaged";

/// Takes all orders that have no answer.
pub(super) fn take(work: &mut Work<'_>) {
    let open = |given: &FleetOrderGiven| given.answer.is_none();
    let mut took_any = false;
    while let Some(place) = work.next.orders.iter().position(open) {
        let given = work.next.orders[place].clone();
        let answer = take_one(work, &given);
        work.next.orders[place].answer = Some(answer);
        took_any = true;
    }
    if took_any {
        let surplus = work.next.orders.len().saturating_sub(ORDERS_MAX);
        work.next.orders.drain(..surplus);
    }
}

fn take_one(work: &mut Work<'_>, given: &FleetOrderGiven) -> Result<(), HeldChange> {
    match &given.order {
        FleetOrder::Plan(resize) => plan(work, *resize, &given.by),
        FleetOrder::Adopt { instance, member } => adopt(work, instance.as_deref(), member),
        FleetOrder::Abort => abort(work),
        FleetOrder::Approve { decision } => approve(work, *decision, &given.by),
        FleetOrder::Resume => {
            (work.next.paused, work.next.failures, work.next.failed) = (None, 0, None);
            Ok(())
        }
    }
}

fn refuse(detail: String) -> Result<(), HeldChange> {
    Err(HeldChange::Order { detail })
}

fn plan(work: &mut Work<'_>, resize: Resize, by: &str) -> Result<(), HeldChange> {
    let current = work.next.target.unwrap_or_else(|| work.next.will_serve());
    let wanted = i64::from(current) + i64::from(resize.0);
    let (min, max) = (work.next.policy.min, work.next.policy.max);
    if resize.0 < 0 && wanted < i64::from(min) {
        return Err(HeldChange::Fewest { min });
    }
    let target = u32::try_from(wanted).unwrap_or(u32::MAX);
    resize_to(work, target, max)?;
    if resize.0 > 0 {
        // Whoever orders more knows better than the growths before that gained nothing.
        work.next.futile = 0;
    }
    let verdict = match resize.0.signum() {
        1 => RuleVerdict::Add,
        -1 => RuleVerdict::Remove,
        _ => RuleVerdict::Stay,
    };
    decisions::record_order(work, verdict, vec![Reason::Ordered { by: by.to_owned() }]);
    Ok(())
}

/// Sets the target, if the guards let it.
fn resize_to(work: &mut Work<'_>, target: u32, max: u32) -> Result<(), HeldChange> {
    let fleet = &work.next;
    if fleet.paused.is_some() {
        return Err(HeldChange::Paused);
    }
    guards::heard(work.seen)?;
    let grows = target > fleet.target.unwrap_or_else(|| fleet.will_serve());
    if grows && target > max {
        return Err(HeldChange::Most { max });
    }
    if target < fleet.serving() {
        sizing::may_be_left(work.seen, fleet, target)?;
    }
    let comes_back = |machine: &&Machine| converge::can_come_back(work.seen, machine);
    let back = fleet.machines.iter().filter(comes_back).count() as u32;
    let bought = target.saturating_sub(fleet.will_serve() + back + fleet.standing_by());
    if grows && bought > 0 {
        guards::may_buy(work.seen, fleet, bought)?;
    }
    work.next.target = Some(target);
    Ok(())
}

fn approve(work: &mut Work<'_>, number: u64, by: &str) -> Result<(), HeldChange> {
    let newest = work.next.decisions.last();
    let Some(decision) = newest.filter(|decision| decision.number == number) else {
        let newest = newest.map_or(0, |decision| decision.number);
        return refuse(format!(
            "decision {number} is not the newest one, which is {newest}; look at that one"
        ));
    };
    if decision.held != Some(HeldChange::Mode) {
        return refuse(format!("decision {number} does not wait for an approval"));
    }
    let (verdict, target) = (decision.verdict, decision.target);
    let (min, max) = (work.next.policy.min, work.next.policy.max);
    if verdict == RuleVerdict::Remove && target < min {
        return Err(HeldChange::Fewest { min });
    }
    resize_to(work, target, max)?;
    let decision = work.next.decisions.last_mut().expect("as above");
    (decision.held, decision.set) = (None, true);
    decision.reasons.push(Reason::Ordered { by: by.to_owned() });
    Ok(())
}

/// Takes in a member that serves. One without an instance is counted, and never ended.
fn adopt(work: &mut Work<'_>, instance: Option<&str>, member: &str) -> Result<(), HeldChange> {
    let fleet = &work.next;
    guards::heard(work.seen)?;
    let (Ok(instances), Ok(members)) = (&work.seen.instances, &work.seen.members) else {
        unreachable!("both were heard")
    };
    let is_known = |machine: &Machine| {
        machine.member.as_deref() == Some(member)
            || (instance.is_some() && machine.instance.as_deref() == instance)
    };
    if fleet.machines.iter().any(is_known) {
        let named = instance.map_or(member.to_owned(), |instance| format!("{instance} or {member}"));
        return refuse(format!("{named} is of the fleet already; `status` lists its machines"));
    }
    let Some(serves) = members.iter().find(|one| one.id == member && one.state == MemberState::Serving)
    else {
        return refuse(format!("the engine has no member {member} that serves"));
    };
    let found = instance.map(|id| found(instances, id, serves, &fleet.name)).transpose()?;
    let wanted = fleet.target.unwrap_or_else(|| fleet.will_serve()) + 1;
    if wanted > fleet.policy.max {
        return Err(HeldChange::Most { max: fleet.policy.max });
    }
    let machine = adopted(work, found, serves);
    work.next.next_token += 1;
    work.next.machines.push(machine);
    work.next.target = Some(wanted);
    Ok(())
}

/// The instance of this name, if it is where the member is.
fn found<'a>(
    instances: &'a [Instance],
    id: &str,
    member: &Member,
    tag: &str,
) -> Result<&'a Instance, HeldChange> {
    let wrong = |detail: String| Err(HeldChange::Order { detail });
    let Some(found) = instances.iter().find(|one| one.id == id) else {
        return wrong(format!("the provider has no machine {id} with the tag {tag}; tag it first"));
    };
    if found.address.is_none() || found.address != member.address {
        let (one, other) = (address(found.address.as_ref()), address(member.address.as_ref()));
        return wrong(format!("{id} is at {one}, and {} at {other}; they are not the same", member.id));
    }
    Ok(found)
}

fn address(known: Option<&String>) -> &str {
    known.map_or("no known address", String::as_str)
}

fn adopted(work: &Work<'_>, instance: Option<&Instance>, member: &Member) -> Machine {
    let (kind, price_per_hour) = match instance {
        Some(instance) => {
            let kind = instance.kind.clone().unwrap_or_else(|| work.next.policy.machine_type.clone());
            let price = guards::price(work, &kind);
            (kind, price)
        }
        None => (UNMANAGED.to_owned(), Money(0)),
    };
    Machine {
        token: Token::new(&work.next.uid, work.next.next_token),
        instance: instance.map(|instance| instance.id.clone()),
        address: member.address.clone(),
        member: Some(member.id.clone()),
        price_per_hour,
        kind,
        state: MachineState::Serving,
        since: work.seen.now,
        began: work.seen.now,
        decision: None,
        standby: false,
        adopted: true,
        gone: None,
        note: None,
    }
}

/// What serves is what is wanted; drains are taken back where the engine can.
fn abort(work: &mut Work<'_>) -> Result<(), HeldChange> {
    if let Err(why) = &work.seen.engine {
        return Err(HeldChange::Unheard { detail: format!("the engine did not answer: {why}") });
    }
    while converge::take_back_a_drain(work) {}
    if let Some(decision) = decisions::open(&mut work.next) {
        decision.ended = Some(work.seen.now);
    }
    work.next.target = Some(work.next.serving());
    work.next.settled = Some(work.seen.now);
    for machine in &mut work.next.machines {
        // It has not joined, so it stands by; of those that are too many, `standby::fill` lets some go.
        machine.standby |= machine.is_coming() && machine.state != MachineState::Joining;
    }
    Ok(())
}
