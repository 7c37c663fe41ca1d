//! The document of one managed cluster: its machines and what is intended with each.

use serde::{Deserialize, Serialize};

use super::capacity::Capacity;
use super::decision::{Decision, HeldChange};
use super::history::History;
use super::machine::{Machine, MachineState, Token};
use super::policy::{Money, Policy};
use crate::WallMillis;

/// What an operator orders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FleetOrder {
    /// This many members more or less.
    Plan(Resize),
    /// A machine that runs already becomes one of the fleet. One without an instance is counted, and never ended.
    Adopt {
        /// What its provider calls it; none where it has no provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instance: Option<String>,
        /// What its engine calls it.
        member: String,
    },
    /// What is under way is taken back, as far as its engine can.
    Abort,
    /// The proposed decision of this number is carried out.
    Approve {
        /// Its number.
        decision: u64,
    },
    /// A pause ends.
    Resume,
}

/// A change of size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Resize(pub i32);

/// An order that waits for the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetOrderGiven {
    /// Its number in this fleet, from 1.
    pub number: u64,
    /// What is ordered.
    pub order: FleetOrder,
    /// Who ordered it, as the system calls them.
    pub by: String,
    /// When.
    pub at: WallMillis,
    /// What became of it, once the controller has seen to it: nothing, or why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Result<(), HeldChange>>,
}

/// Why nothing new is begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Since when.
    pub at: WallMillis,
    /// Why, for people.
    pub why: String,
}

/// What a machine that has ended has cost, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// Its token.
    pub token: Token,
    /// What an hour of it cost.
    pub price_per_hour: Money,
    /// Since when it was paid for.
    pub from: WallMillis,
    /// Until when.
    pub until: WallMillis,
}

/// One managed cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    /// What operators call it, and its machines' tag.
    pub name: String,
    /// A random name that no other fleet has or had; tokens begin with it.
    pub uid: String,
    /// Counts the documents: each is the successor of the one that it was made from.
    pub generation: u64,
    /// What the controller may do.
    pub policy: Policy,
    /// This many members are wanted; none before the first decision or order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<u32>,
    /// Its machines.
    #[serde(default)]
    pub machines: Vec<Machine>,
    /// Orders that were given, the last few with their answers.
    #[serde(default)]
    pub orders: Vec<FleetOrderGiven>,
    /// The number of the next request for a machine.
    pub next_token: u64,
    /// The number of the next decision.
    pub next_decision: u64,
    /// The last decisions, the newest last.
    #[serde(default)]
    pub decisions: Vec<Decision>,
    /// Machines that failed in a row: before they had served for an hour, or soon after.
    #[serde(default)]
    pub failures: u32,
    /// When the last of them did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<WallMillis>,
    /// Why nothing new is begun, if nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// When the last change of size was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<WallMillis>,
    /// What machines that have ended cost, for a day.
    #[serde(default)]
    pub charges: Vec<Charge>,
    /// What members were seen to carry, where the size is chosen by load.
    #[serde(default)]
    pub capacity: Capacity,
    /// The loads of the last two days, there.
    #[serde(default)]
    pub history: History,
    /// How long it took lately from a decision to grow until all served, in milliseconds; 0 where none has.
    #[serde(default)]
    pub lead_ms: u64,
    /// Growths in a row that gained next to nothing.
    #[serde(default)]
    pub futile: u32,
    /// Why fewer stand by than are wanted, where something keeps more from being asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby_held: Option<HeldChange>,
}

/// Decisions that a document keeps at most.
pub const DECISIONS_MAX: usize = 200;
/// Answered orders that it keeps at most.
pub const ORDERS_MAX: usize = 50;

impl Fleet {
    /// A fleet without machines. `uid` is random.
    pub fn new(name: impl Into<String>, uid: impl Into<String>, policy: Policy) -> Fleet {
        Fleet {
            name: name.into(),
            uid: uid.into(),
            generation: 1,
            policy,
            target: None,
            machines: Vec::new(),
            orders: Vec::new(),
            next_token: 1,
            next_decision: 1,
            decisions: Vec::new(),
            failures: 0,
            failed: None,
            paused: None,
            settled: None,
            charges: Vec::new(),
            capacity: Capacity::default(),
            history: History::default(),
            lead_ms: 0,
            futile: 0,
            standby_held: None,
        }
    }

    /// Machines in this state.
    pub fn in_state(&self, state: MachineState) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(move |machine| machine.state == state)
    }

    /// Members that serve.
    pub fn serving(&self) -> u32 {
        self.in_state(MachineState::Serving).count() as u32
    }

    /// Members that serve or will.
    pub fn will_serve(&self) -> u32 {
        let coming = self.machines.iter().filter(|machine| machine.is_coming()).count() as u32;
        self.serving() + coming
    }

    /// Machines that stand by, or will.
    pub fn standing_by(&self) -> u32 {
        self.machines.iter().filter(|machine| machine.standby).count() as u32
    }

    /// This many shall stand by: as the policy says, but never more than still may join.
    pub fn standby_wanted(&self) -> u32 {
        let serve = self.will_serve().max(self.target.unwrap_or(0));
        self.policy.standby.min(self.policy.max.saturating_sub(serve))
    }

    /// What an hour of all machines costs that are there or were asked for.
    pub fn cost_per_hour(&self) -> Money {
        let costs = |machine: &&Machine| machine.gone.is_none() || !machine.state.is_leaving();
        self.machines.iter().filter(costs).map(|machine| machine.price_per_hour).sum()
    }

    /// What was paid from `from` until `until`. A machine is paid for until its provider says that it has ended.
    pub fn paid(&self, from: WallMillis, until: WallMillis) -> Money {
        let part = |price: Money, began: WallMillis, ended: WallMillis| {
            let (began, ended) = (began.0.max(from.0), ended.0.min(until.0));
            price.for_millis(ended.saturating_sub(began))
        };
        let ended = self.charges.iter().map(|charge| part(charge.price_per_hour, charge.from, charge.until));
        let paid_until =
            |machine: &Machine| machine.gone.map_or(until, |gone| WallMillis(gone.0.min(until.0)));
        let there = self
            .machines
            .iter()
            .map(|machine| part(machine.price_per_hour, machine.began, paid_until(machine)));
        ended.chain(there).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Mode;
    use super::*;

    fn policy() -> Policy {
        let (add, remove) = Policy::paper_rules();
        Policy {
            engine: "tontine".to_owned(),
            provider: "local".to_owned(),
            machine_type: "small".to_owned(),
            min: 3,
            max: 6,
            standby: 0,
            mode: Mode::Auto,
            budget: Default::default(),
            deadlines: Default::default(),
            sources: Vec::new(),
            add,
            remove,
            sizing: None,
            objective: Default::default(),
            cooldowns: Default::default(),
            sample_age_max: 30,
        }
    }

    /// `serde` cannot tag a number from within, nor flatten a word: such an order would never have been given.
    #[test]
    fn every_order_comes_back_from_its_document_as_it_was_given() {
        let orders = [
            FleetOrder::Plan(Resize(-1)),
            FleetOrder::Adopt { instance: Some("i-1".to_owned()), member: "n1".to_owned() },
            FleetOrder::Adopt { instance: None, member: "n2".to_owned() },
            FleetOrder::Abort,
            FleetOrder::Approve { decision: 7 },
            FleetOrder::Resume,
        ];
        let answers = [None, Some(Ok(())), Some(Err(HeldChange::Fewest { min: 3 }))];
        let mut fleet = Fleet::new("shop", "a1b2", policy());
        for (number, order) in orders.into_iter().enumerate() {
            let answer = answers[number % answers.len()].clone();
            let (by, at) = ("root at h1".to_owned(), WallMillis(number as u64));
            fleet.orders.push(FleetOrderGiven { number: number as u64 + 1, order, by, at, answer });
        }
        let text = serde_json::to_string(&fleet).unwrap();
        assert_eq!(serde_json::from_str::<Fleet>(&text).unwrap(), fleet, "{text}");
    }
}
