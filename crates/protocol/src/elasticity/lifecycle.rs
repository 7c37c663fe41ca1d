//! How a machine's life goes on: one transition a turn at most, each from what was observed in this turn.
//!
//! ```text
//!                  ready
//!                 ▲     │
//!                 ▼     ▼
//!   requested ─▶ booting ─▶ joining ─▶ serving ◀─▶ draining ─▶ empty ─▶ terminating ─▶ (gone)
//!       └───────────┴──────────┴─▶ failed ─────────── evidence ──────────────▲
//! ```
//!
//! Must never: take an adapter's silence for an answer, or the word of a drain for evidence.

use model::WallMillis;
use model::elasticity::adapter::{InstanceState, MemberState};
use model::elasticity::{Charge, Fleet, Machine, MachineState, Reason, RuleVerdict, Token};

use super::sight::{MachineSight, Sight, cut, learn, runs};
use super::{FleetAction, Observation, Question, Work, decisions, guards, since, standby};

/// How long a request whose machine was never seen is kept after it failed, in milliseconds. A provider may show a machine
/// only after 30 s; one that comes later still is taken in as a stray.
pub(super) const UNSEEN_MS: u64 = 120_000;

/// How long a machine must be gone from its provider until it counts as lost, in milliseconds: a provider's list may lapse.
const LOST_MS: u64 = 120_000;
/// How long an engine must not list a member without a machine until it is dropped, in milliseconds.
const DROPPED_MS: u64 = 300_000;
/// How long a provider is asked to clean up after a machine that has ended, in milliseconds; some list such a one for hours.
const CLEANS_MS: u64 = 20_000;
/// The separator in a note between why a machine is that far and what it waits for.
const WAITS: &str = "it waits because ";

/// What becomes of a machine in this turn.
pub(super) enum MachineStep {
    /// Nothing; what people should know, if anything.
    Wait(Option<String>),
    /// It is this far from now on.
    To(MachineState, Option<String>),
    /// It failed, and another one takes its place.
    Fail {
        why: String,
        counts: bool,
    },
    /// Its drain did not come to its end, and it serves again.
    Undrain {
        why: String,
    },
    /// The document does not need it any more.
    Gone,
    /// This is done, as the document says already.
    Act(FleetAction),
    /// This is done again, and people should know why it was not enough.
    Again(String, FleetAction),
    Ask(Vec<Question>),
}

pub(super) const WAIT: MachineStep = MachineStep::Wait(None);

/// Lets each machine's life go on by one step.
pub(super) fn advance(work: &mut Work<'_>) {
    guards::forgive(&mut work.next, work.seen.now);
    for token in work.next.machines.iter().map(|machine| machine.token.clone()).collect::<Vec<_>>() {
        let seen = learn(work, &token);
        let machine = work.next.machines.iter().find(|machine| machine.token == token);
        let machine = machine.expect("machines leave one at a time");
        let is_as_read = |one: &Machine| one.token == token && one.state == machine.state;
        if !work.seen.fleet.machines.iter().any(is_as_read) {
            // An order has changed it in this turn.
            continue;
        }
        let step = step(work, machine, seen);
        if matches!(step, MachineStep::Wait(None)) && !seen.is_heard() {
            // What it waited for may still be so.
            continue;
        }
        carry_out(work, &token, step);
    }
}

pub(super) fn machine_mut<'a>(fleet: &'a mut Fleet, token: &Token) -> &'a mut Machine {
    let found = fleet.machines.iter_mut().find(|machine| &machine.token == token);
    found.expect("the machine is of this document")
}

/// Puts a machine into a state, as of now.
pub(super) fn set(machine: &mut Machine, state: MachineState, now: WallMillis, note: Option<String>) {
    (machine.state, machine.since, machine.note) = (state, now, note);
    machine.standby &= matches!(state, MachineState::Requested | MachineState::Booting | MachineState::Ready);
}

fn carry_out(work: &mut Work<'_>, token: &Token, step: MachineStep) {
    let now = work.seen.now;
    let fleet = &mut work.next;
    match step {
        MachineStep::Wait(waits) => tell(machine_mut(fleet, token), waits),
        MachineStep::Again(waits, act) => {
            tell(machine_mut(fleet, token), Some(waits));
            work.acts.push(act);
        }
        MachineStep::To(state, note) => {
            let machine = machine_mut(fleet, token);
            let before = machine.state;
            set(machine, state, now, note);
            let arrives = state == MachineState::Serving;
            if arrives || (before == MachineState::Draining && state == MachineState::Empty) {
                fleet.settled = Some(now);
            }
        }
        MachineStep::Fail { why, counts } => {
            let machine = machine_mut(fleet, token);
            let stood_by = machine.standby;
            set(machine, MachineState::Failed, now, Some(why.clone()));
            if !stood_by {
                fleet.settled = Some(now);
            }
            if counts {
                guards::count_failure(fleet, now, &why);
            }
            let reasons = vec![Reason::Replaces { token: token.to_string() }];
            decisions::record_order(work, RuleVerdict::Stay, reasons);
        }
        MachineStep::Undrain { why } => {
            set(machine_mut(fleet, token), MachineState::Serving, now, Some(why.clone()));
            let serve = fleet.will_serve();
            fleet.target = fleet.target.map(|target| target.max(serve));
            fleet.settled = Some(now);
            guards::count_failure(fleet, now, &why);
        }
        MachineStep::Gone => {
            let place = fleet.machines.iter().position(|machine| &machine.token == token);
            let machine = fleet.machines.remove(place.expect("as above"));
            if machine.instance.is_some() {
                fleet.charges.push(Charge {
                    token: machine.token,
                    price_per_hour: machine.price_per_hour,
                    from: machine.began,
                    until: machine.gone.unwrap_or(now),
                });
            } else if machine.is_unmanaged() {
                // To adopt it made the target one larger.
                fleet.target = fleet.target.map(|target| target.saturating_sub(1));
            }
        }
        MachineStep::Act(act) => work.acts.push(act),
        MachineStep::Ask(questions) => work.questions.extend(questions),
    }
}

/// Notes what a machine waits for beside why it is that far, and forgets it where it waits for nothing. Words that differ only
/// in what they count change no document.
pub(super) fn tell(machine: &mut Machine, waits: Option<String>) {
    let note = machine.note.as_deref().unwrap_or_default();
    let (why, before) = match note.split_once(WAITS) {
        Some((why, before)) => (why.trim_end_matches("; "), Some(before)),
        None => (note, None),
    };
    let kind = |words: &str| words.chars().filter(|one| !one.is_ascii_digit()).collect::<String>();
    let waits = waits.map(|waits| cut(&waits));
    if before.map(kind) == waits.as_deref().map(kind) {
        return;
    }
    let between = if why.is_empty() { "" } else { "; " };
    machine.note = match waits {
        Some(waits) => Some(format!("{why}{between}{WAITS}{waits}")),
        None => (!why.is_empty()).then(|| why.to_owned()),
    };
}

fn fail(why: impl Into<String>) -> MachineStep {
    MachineStep::Fail { why: why.into(), counts: true }
}

fn step(work: &Work<'_>, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    match machine.state {
        MachineState::Requested => requested(work.seen, machine, seen),
        MachineState::Booting => booting(work, machine, seen),
        MachineState::Joining => joining(work.seen, machine, seen),
        MachineState::Serving => serving(work.seen, machine, seen),
        MachineState::Ready => standby::ready(work, machine, seen),
        MachineState::Draining => draining(work.seen, machine, seen),
        MachineState::Empty => empty(work.seen, machine, seen),
        MachineState::Terminating => terminating(work.seen, machine, seen),
        MachineState::Failed => failed(work.seen, machine, seen),
    }
}

/// Whether a machine has been this far for longer than it may, in seconds.
fn is_late(observation: &Observation, machine: &Machine, most: u64) -> bool {
    since(observation.now, machine.since) > most * 1000
}

fn refused<'a>(observation: &'a Observation, machine: &Machine) -> Option<&'a String> {
    observation.refused.get(&machine.token)
}

fn requested(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    if seen.is_ended_by_word() {
        return fail(seen.told("its provider ended it"));
    }
    if let Sight::Here(_) = seen.instance {
        return MachineStep::To(MachineState::Booting, None);
    }
    if let Some(why) = refused(observation, machine) {
        return fail(format!("its provider refuses: {why}"));
    }
    match seen.instance {
        Sight::Absent if is_late(observation, machine, observation.fleet.policy.deadlines.boot) => {
            fail("its provider did not show it in time")
        }
        Sight::Absent => {
            MachineStep::Act(FleetAction::Ensure { token: machine.token.clone(), kind: machine.kind.clone() })
        }
        _ => WAIT,
    }
}

fn booting(work: &Work<'_>, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    if seen.is_ended_by_word() {
        return fail(seen.told("its provider ended it"));
    }
    match (seen.member, seen.state()) {
        (_, Some(MemberState::Waiting | MemberState::Standby)) if machine.standby => {
            MachineStep::To(MachineState::Ready, None)
        }
        (_, Some(MemberState::Waiting | MemberState::Standby)) => match guards::has_slot(work) {
            true => MachineStep::To(MachineState::Joining, None),
            false => WAIT,
        },
        // What was ready a moment ago may only not be reached.
        (_, Some(MemberState::Down))
            if !is_late(work.seen, machine, work.next.policy.deadlines.boot) && machine.standby =>
        {
            WAIT
        }
        (_, Some(MemberState::Down)) if machine.standby => fail("its engine does not reach it"),
        (_, Some(_)) => MachineStep::To(MachineState::Joining, None),
        (Sight::Absent, _) if is_late(work.seen, machine, work.next.policy.deadlines.boot) => {
            fail(seen.told("its engine did not learn of it in time"))
        }
        // Whoever was asked for it may have been ended between making it and starting it.
        _ if matches!(seen.instance, Sight::Here(one) if one.state == InstanceState::Pending) => {
            MachineStep::Act(FleetAction::Ensure { token: machine.token.clone(), kind: machine.kind.clone() })
        }
        _ => WAIT,
    }
}

/// An act that was not enough until now.
fn again(why: String, step: MachineStep) -> MachineStep {
    match step {
        MachineStep::Act(act) => MachineStep::Again(why, act),
        other => other,
    }
}

fn join(machine: &Machine) -> MachineStep {
    with_member(machine, |token, member| FleetAction::Join { token, member })
}

fn drain(machine: &Machine) -> MachineStep {
    with_member(machine, |token, member| FleetAction::Drain { token, member })
}

fn with_member(machine: &Machine, act: impl FnOnce(Token, String) -> FleetAction) -> MachineStep {
    match &machine.member {
        Some(member) => MachineStep::Act(act(machine.token.clone(), member.clone())),
        None => WAIT,
    }
}

/// A drain that nobody wants: of an old controller, or of a hand.
fn unwanted_drain(observation: &Observation, machine: &Machine) -> MachineStep {
    match &observation.engine {
        Ok(engine) if engine.drain_cancellable => {
            with_member(machine, |token, member| FleetAction::Cancel { token, member })
        }
        Ok(_) => MachineStep::To(
            MachineState::Draining,
            Some("its engine drains it and cannot take that back".to_owned()),
        ),
        Err(_) => WAIT,
    }
}

fn joining(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    if seen.is_ended_by_word() {
        return fail(seen.told("its machine ended while it joined"));
    }
    if seen.is_lost() {
        return lost(observation, machine, seen);
    }
    let state = seen.state();
    if state == Some(MemberState::Serving) {
        return MachineStep::To(MachineState::Serving, None);
    }
    if let (Some(why), Some(MemberState::Waiting | MemberState::Standby)) =
        (refused(observation, machine), state)
    {
        return fail(format!("its engine refuses to take it in: {why}"));
    }
    if is_late(observation, machine, observation.fleet.policy.deadlines.join)
        && !matches!(seen.member, Sight::Unheard)
    {
        return fail("it did not join in time");
    }
    match state {
        Some(MemberState::Waiting | MemberState::Standby | MemberState::Drained) => join(machine),
        Some(MemberState::Draining) => unwanted_drain(observation, machine),
        _ => WAIT,
    }
}

/// Whether it was gone that long before this turn.
fn is_gone_for(observation: &Observation, machine: &Machine, millis: u64) -> bool {
    machine.gone.is_some_and(|gone| since(observation.now, gone) >= millis)
}

/// When a machine that is gone, or a member without one that its engine does not list, is given up, if it stays so.
pub fn given_up_at(machine: &Machine) -> Option<WallMillis> {
    let serves = matches!(machine.state, MachineState::Joining | MachineState::Serving | MachineState::Ready);
    let lasts = match machine.is_unmanaged() {
        true => DROPPED_MS,
        false => LOST_MS,
    };
    let gone = machine.gone.filter(|_| serves || machine.state == MachineState::Draining)?;
    Some(WallMillis(gone.0.saturating_add(lasts)))
}

/// Its machine is gone. That must last, as a list may lapse. One that is lost while it joins, or soon after it began to serve,
/// counts, as its image may be bad.
pub(super) fn lost(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    let why = seen.told("its machine is gone");
    if !is_gone_for(observation, machine, LOST_MS) {
        return MachineStep::Wait(Some(why));
    }
    let served = machine.gone.map_or(0, |gone| since(gone, machine.since));
    let counts = match machine.state {
        MachineState::Joining => true,
        MachineState::Serving | MachineState::Ready => served < guards::PROVED_MS,
        _ => false,
    };
    MachineStep::Fail { why, counts }
}

fn serving(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    if machine.is_unmanaged() {
        // Nobody says whether its machine is there. Its engine may only not reach it.
        let is_dropped = seen.is_absent() == Some(true) && is_gone_for(observation, machine, DROPPED_MS);
        return if is_dropped { MachineStep::Gone } else { WAIT };
    }
    if seen.is_lost() {
        return lost(observation, machine, seen);
    }
    let is_out =
        matches!(seen.state(), Some(MemberState::Drained | MemberState::Waiting | MemberState::Standby));
    if let (Some(why), true) = (refused(observation, machine), is_out) {
        // It has served, and was told to leave: that says nothing against machines of its kind.
        let why = format!("its engine refuses to take it in again: {}", cut(why));
        return MachineStep::Fail { why, counts: false };
    }
    let is_cancellable = observation.engine.as_ref().is_ok_and(|engine| engine.drain_cancellable);
    match (seen.member, seen.state()) {
        (_, Some(MemberState::Draining)) => unwanted_drain(observation, machine),
        (_, Some(MemberState::Drained)) if !is_cancellable => unwanted_drain(observation, machine),
        (_, Some(MemberState::Drained | MemberState::Waiting | MemberState::Standby)) => join(machine),
        (Sight::Absent, _) => MachineStep::Wait(Some("its engine does not list it".to_owned())),
        _ => WAIT,
    }
}

fn draining(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    let state = seen.state();
    let nothing_on_it =
        matches!(state, Some(MemberState::Drained | MemberState::Waiting | MemberState::Standby))
            || matches!(seen.member, Sight::Absent);
    if nothing_on_it {
        return MachineStep::To(MachineState::Empty, None);
    }
    if seen.is_lost() {
        return lost(observation, machine, seen);
    }
    let (Some(state), Ok(engine)) = (state, &observation.engine) else { return WAIT };
    let late = is_late(observation, machine, observation.fleet.policy.deadlines.drain);
    let refusal = refused(observation, machine);
    if late || refusal.is_some() {
        let why = refusal.map_or("its drain did not end in time".to_owned(), |why| {
            format!("its engine refuses to drain it: {why}")
        });
        return match state {
            MemberState::Serving | MemberState::Joining => MachineStep::Undrain { why },
            _ if engine.drain_cancellable => MachineStep::Undrain { why },
            // It cannot be taken back. It is asked for again: one that hangs may go on.
            _ => again(why, drain(machine)),
        };
    }
    match state {
        MemberState::Serving | MemberState::Joining => drain(machine),
        _ => WAIT,
    }
}

/// Whom evidence is asked about, and under which name the answer is.
fn question(machine: &Machine) -> Option<(Question, &String)> {
    match (&machine.member, &machine.address) {
        (Some(member), _) => Some((Question::EvidenceOf { member: member.clone() }, member)),
        (None, Some(address)) => Some((Question::EvidenceAt { address: address.clone() }, address)),
        (None, None) => None,
    }
}

/// What evidence of this turn says: that it proves, what is lacking, or that it is yet to be asked.
/// Where the others say that it owns something still, it is drained once more: its drain has lied. One that stands by is a
/// member, and only a drain makes it leave.
fn proof(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> Result<(), MachineStep> {
    let Some((question, name)) = question(machine) else {
        return Err(MachineStep::Wait(Some(
            "it has no address, so nobody can say whether anything is on it".to_owned(),
        )));
    };
    match observation.evidence.get(name) {
        None => Err(MachineStep::Ask(vec![question])),
        Some(Err(why)) => Err(MachineStep::Wait(Some(format!("evidence is lacking: {why}")))),
        Some(Ok(evidence)) if evidence.proves() && !evidence.witnesses.contains(name) => Ok(()),
        Some(Ok(evidence))
            if evidence.owns_nothing == Some(false) && seen.state() == Some(MemberState::Drained) =>
        {
            Err(drain(machine))
        }
        Some(Ok(_)) if seen.state() == Some(MemberState::Standby) => Err(drain(machine)),
        Some(Ok(evidence)) => {
            let detail =
                evidence.detail.clone().unwrap_or_else(|| "it does not prove that it is empty".to_owned());
            Err(MachineStep::Wait(Some(format!("evidence is lacking: {detail}"))))
        }
    }
}

/// To its end, if evidence of this turn proves that nothing is on it and its provider would end it.
fn to_its_end(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    if let Err(step) = proof(observation, machine, seen) {
        return step;
    }
    match (seen.instance, &machine.instance) {
        (Sight::Here(one), Some(id)) if runs(one) => match observation.preflight.get(id) {
            None => return MachineStep::Ask(vec![Question::Preflight { instance: id.clone() }]),
            Some(Err(refusal)) => {
                return MachineStep::Wait(Some(format!(
                    "its provider refuses to end it: {}",
                    refusal.detail
                )));
            }
            Some(Ok(())) => {}
        },
        (Sight::Unheard, _) => return WAIT,
        _ => {}
    }
    MachineStep::To(MachineState::Terminating, None)
}

fn empty(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    match seen.state() {
        Some(MemberState::Serving | MemberState::Joining | MemberState::Draining) => {
            MachineStep::To(MachineState::Draining, Some("it was called empty and is not".to_owned()))
        }
        _ if matches!(seen.member, Sight::Unheard) => WAIT,
        _ => to_its_end(observation, machine, seen),
    }
}

fn terminating(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    let still_there = match seen.instance {
        Sight::Unheard => return WAIT,
        Sight::Here(one) if runs(one) => Some(one),
        Sight::Here(one) if one.state == InstanceState::Ending => return WAIT,
        _ => None,
    };
    let Some(instance) = still_there else {
        if let Some(step) = cleans(observation, machine, seen) {
            return proof(observation, machine, seen).err().unwrap_or(step);
        }
        return match seen.member {
            Sight::Unheard => WAIT,
            Sight::Absent => MachineStep::Gone,
            Sight::Here(_) => with_member(machine, |token, member| FleetAction::Forget { token, member }),
        };
    };
    let terminate = || {
        MachineStep::Act(FleetAction::Terminate {
            token: machine.token.clone(),
            instance: instance.id.clone(),
        })
    };
    if question(machine).is_none() && instance.state == InstanceState::Pending {
        return terminate();
    }
    // Something may have come to it since: an engine obeys other hands, too. Nobody cancels; it is drained once more.
    if matches!(seen.state(), Some(MemberState::Serving | MemberState::Joining)) {
        return drain(machine);
    }
    if let Err(step) = proof(observation, machine, seen) {
        return step;
    }
    let late = is_late(observation, machine, observation.fleet.policy.deadlines.terminate);
    match refused(observation, machine) {
        Some(why) => again(format!("its provider refuses to end it: {why}"), terminate()),
        None if late => again("its provider did not end it in time".to_owned(), terminate()),
        None => terminate(),
    }
}

/// What is left of a machine that has ended by itself is cleaned up, by evidence: a provider may keep its disk, and list it for
/// ever.
fn cleans(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> Option<MachineStep> {
    let Sight::Here(one) = seen.instance else { return None };
    let cleans = one.state == InstanceState::Ended && since(observation.now, machine.since) < CLEANS_MS;
    let terminate = FleetAction::Terminate { token: machine.token.clone(), instance: one.id.clone() };
    cleans.then_some(MachineStep::Act(terminate))
}

fn failed(observation: &Observation, machine: &Machine, seen: MachineSight<'_>) -> MachineStep {
    if machine.instance.is_none() {
        let unseen =
            matches!(seen.instance, Sight::Absent) && since(observation.now, machine.since) > UNSEEN_MS;
        return if unseen { MachineStep::Gone } else { WAIT };
    }
    let ended = match seen.instance {
        Sight::Unheard => return WAIT,
        Sight::Here(one) => !runs(one),
        Sight::Absent => true,
    };
    match (seen.member, seen.state()) {
        (Sight::Unheard, _) => WAIT,
        (Sight::Absent, _) if ended => match seen.instance {
            // To end it for good takes its disk, on which the only copy of something may be.
            Sight::Here(one) if one.state == InstanceState::Ended && question(machine).is_some() => {
                to_its_end(observation, machine, seen)
            }
            _ => MachineStep::Gone,
        },
        // It came late, and it serves: it is drained in good order if it is one too many.
        (_, Some(MemberState::Serving)) if !ended => MachineStep::To(MachineState::Serving, None),
        (_, Some(MemberState::Joining)) if !ended => drain(machine),
        (_, Some(MemberState::Draining)) if !ended => {
            match is_late(observation, machine, observation.fleet.policy.deadlines.drain) {
                true => again("its drain did not end in time".to_owned(), drain(machine)),
                false => WAIT,
            }
        }
        _ if question(machine).is_none() => match seen.instance {
            // It has never run, so nothing can be on it.
            Sight::Here(one) if one.state == InstanceState::Pending => {
                MachineStep::To(MachineState::Terminating, None)
            }
            _ => proof(observation, machine, seen).err().unwrap_or(WAIT),
        },
        _ => to_its_end(observation, machine, seen),
    }
}

/// Takes machines in that have a token of this fleet and no entry: an answer that came late, or a second machine for one
/// token. Machines with our tag and another token are strangers, and stay as they are.
pub(super) fn take_in_strays(work: &mut Work<'_>) {
    let Ok(instances) = &work.seen.instances else { return };
    for instance in instances.iter().filter(|instance| runs(instance)) {
        let Some(token) = instance.token.clone().map(Token) else { continue };
        let is_ours = token.number(&work.next.uid).is_some_and(|number| number < work.seen.fleet.next_token);
        let has_entry =
            work.next.machines.iter().any(|machine| machine.instance.as_ref() == Some(&instance.id));
        if !is_ours || has_entry {
            continue;
        }
        let kind = instance.kind.clone().unwrap_or_else(|| work.next.policy.machine_type.clone());
        let price_per_hour = guards::price(work, &kind);
        let number = work.next.next_token;
        work.next.next_token += 1;
        work.next.machines.push(Machine {
            token: Token::new(&work.next.uid, number),
            instance: Some(instance.id.clone()),
            address: instance.address.clone(),
            member: None,
            kind,
            price_per_hour,
            state: MachineState::Failed,
            since: work.seen.now,
            began: work.seen.now,
            decision: None,
            standby: false,
            adopted: false,
            gone: None,
            note: Some(format!("it came late, or a second time, for {token}")),
        });
    }
}
