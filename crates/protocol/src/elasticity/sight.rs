//! What is seen of a machine in this turn: at its provider, and at its engine.
//!
//! Must never: take an adapter's silence for its word that something is not there.

use model::elasticity::adapter::{Instance, InstanceState, Member, MemberState};
use model::elasticity::{Fleet, Machine, MachineState, Money, Token, first_words};

use super::{Work, guards, lifecycle};

/// Bytes of an adapter's words that a note keeps at most.
const WORDS_MAX: usize = 200;
/// What is seen of something.
pub(super) enum Sight<'a, T> {
    /// Its adapter did not answer.
    Unheard,
    /// Its adapter does not have it.
    Absent,
    Here(&'a T),
}

impl<T> Clone for Sight<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Sight<'_, T> {}

/// What is seen of a machine.
#[derive(Clone, Copy)]
pub(super) struct MachineSight<'a> {
    pub instance: Sight<'a, Instance>,
    pub member: Sight<'a, Member>,
}

/// Finds a machine at its provider and at its engine, and notes what it is called there.
pub(super) fn learn<'a>(work: &mut Work<'a>, token: &Token) -> MachineSight<'a> {
    let observation = work.seen;
    let claimed = |fleet: &Fleet, of: fn(&Machine) -> Option<&String>, id: &String| {
        fleet.machines.iter().any(|other| &other.token != token && of(other) == Some(id))
    };
    let fleet = &work.next;
    let machine = fleet.machines.iter().find(|machine| &machine.token == token).expect("as above");
    let instance = match (&observation.instances, &machine.instance) {
        (Err(_), _) => Sight::Unheard,
        (Ok(all), Some(id)) => all.iter().find(|one| &one.id == id).map_or(Sight::Absent, Sight::Here),
        (Ok(all), None) => {
            let ours = all.iter().filter(|one| one.token.as_ref() == Some(&token.0));
            let ours = ours.filter(|one| !claimed(fleet, |other| other.instance.as_ref(), &one.id));
            ours.min_by_key(|one| (!runs(one), &one.id)).map_or(Sight::Absent, Sight::Here)
        }
    };
    let address = match instance {
        Sight::Here(one) => machine.address.clone().or_else(|| one.address.clone()),
        _ => machine.address.clone(),
    };
    let may_link = matches!(instance, Sight::Here(one) if runs(one))
        && !matches!(machine.state, MachineState::Empty | MachineState::Terminating);
    let member = match (&observation.members, &machine.member) {
        (Err(_), _) => Sight::Unheard,
        (Ok(all), Some(id)) => all.iter().find(|one| &one.id == id).map_or(Sight::Absent, Sight::Here),
        (Ok(all), None) if may_link => {
            let near = all.iter().filter(|one| address.is_some() && one.address == address);
            let near = near.filter(|one| !matches!(one.state, MemberState::Down | MemberState::Drained));
            let mut near = near.filter(|one| !claimed(fleet, |other| other.member.as_ref(), &one.id));
            near.next().map_or(Sight::Absent, Sight::Here)
        }
        (Ok(_), None) => Sight::Absent,
    };
    let seen = MachineSight { instance, member };
    let machine = lifecycle::machine_mut(&mut work.next, token);
    machine.address = address;
    if let (Money(0), Some(price)) =
        (machine.price_per_hour, guards::listed_price(observation, &machine.kind))
        && !machine.is_unmanaged()
    {
        // It was taken in while the provider did not say it.
        machine.price_per_hour = price;
    }
    let is_gone = match (machine.is_unmanaged(), machine.instance.is_some()) {
        (true, _) => seen.is_absent(),
        (false, true) => seen.has_ended(),
        (false, false) => Some(false),
    };
    match is_gone {
        Some(true) => machine.gone = machine.gone.or(Some(observation.now)),
        Some(false) => machine.gone = None,
        None => {}
    }
    if let (None, Sight::Here(one)) = (&machine.instance, instance) {
        machine.instance = Some(one.id.clone());
    }
    if let (None, Sight::Here(one)) = (&machine.member, member) {
        machine.member = Some(one.id.clone());
    }
    seen
}

/// Whether a machine is there and is not being ended.
pub(super) fn runs(instance: &Instance) -> bool {
    matches!(instance.state, InstanceState::Pending | InstanceState::Running)
}

impl MachineSight<'_> {
    pub(super) fn state(&self) -> Option<MemberState> {
        match self.member {
            Sight::Here(member) => Some(member.state),
            _ => None,
        }
    }

    /// Whether its provider has said that it ends or has ended, or does not know it; none where it was not heard.
    pub(super) fn has_ended(&self) -> Option<bool> {
        match self.instance {
            Sight::Unheard => None,
            Sight::Absent => Some(true),
            Sight::Here(instance) => Some(!runs(instance)),
        }
    }

    /// Whether its engine does not list it; none where it was not heard.
    pub(super) fn is_absent(&self) -> Option<bool> {
        match self.member {
            Sight::Unheard => None,
            Sight::Absent => Some(true),
            Sight::Here(_) => Some(false),
        }
    }

    pub(super) fn is_heard(&self) -> bool {
        self.has_ended().is_some() && self.is_absent().is_some()
    }

    /// What happened, with its provider's words for that where it has some.
    pub(super) fn told(&self, what: &str) -> String {
        match self.instance {
            Sight::Here(Instance { detail: Some(detail), .. }) => format!("{what}: {}", cut(detail)),
            _ => what.to_owned(),
        }
    }

    /// Whether its provider has said that it ends or has ended.
    pub(super) fn is_ended_by_word(&self) -> bool {
        matches!(self.instance, Sight::Here(instance) if !runs(instance))
    }

    /// Whether it is gone from both.
    pub(super) fn is_lost(&self) -> bool {
        let member_is_away = match self.member {
            Sight::Unheard => false,
            Sight::Absent => true,
            Sight::Here(member) => member.state == MemberState::Down,
        };
        self.has_ended() == Some(true) && member_is_away
    }
}

/// The first words of an adapter.
pub(super) fn cut(words: &str) -> String {
    first_words(words, WORDS_MAX)
}
