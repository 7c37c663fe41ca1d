//! What becomes of a managed cluster's machines next, from one observation.
//!
//! ```text
//!   fleet's document ─┐                        ┌─▶ acts that the document allows: ensure, join, drain, terminate …
//!   list, observe ────┼─▶ observation ─▶ decide┼─▶ questions of this turn: preflight, evidence
//!   samples ──────────┘        ▲               └─▶ the next document, last
//!                              └── answers ◀── questions
//! ```
//!
//! All that must survive is in the document. A transition is published before the act that it allows, and the act is
//! decided from the document as it was read, so a successor repeats it. All verbs may be repeated.
//! What a [`Controller`] remembers only delays it; one that remembers nothing is right.
//!
//! **Architecture Invariant:** nobody else decides about machines; `control::elasticity` observes and acts.
//! Must never: end a machine without evidence of the same turn, or one that is not the fleet's own.
//! Must never: take a value that is missing for 0.

mod converge;
mod decisions;
#[cfg(test)]
mod explore;
mod guards;
mod lifecycle;
mod orders;
mod rules;
mod sight;
mod sizing;
mod standby;
#[cfg(test)]
mod tests;
pub mod trace;
mod why;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::WallMillis;
use model::elasticity::adapter::{EngineFacts, Evidence, Instance, Member, ProviderFacts};
use model::elasticity::{Fleet, Machine, Token};

pub use decisions::{READINGS_MAX, setting};
pub use lifecycle::given_up_at;
pub use rules::{COVERED_PERMILLE_MIN, Sample, covered_s, measures_used, per_second, samples_kept};
pub use why::{LoadRoom, Obstacle, RuleRoom, Why, why};

/// How often a controller looks while something is under way.
const BUSY: Duration = Duration::from_secs(1);
/// How often it looks while nothing is.
const IDLE: Duration = Duration::from_secs(5);
/// How long a request for a machine is not repeated, in milliseconds: a provider may show a new machine only after 30 s.
const REPEAT_MS: u64 = 35_000;

/// A verb that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbRefusal {
    /// Whether it stays refused, as the adapter says (code -32001).
    pub for_good: bool,
    /// The adapter's words.
    pub detail: String,
}

/// What a controller sees. The document was read *before* adapters were asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The time.
    pub now: WallMillis,
    /// The document.
    pub fleet: Fleet,
    /// What the provider is, or why that is not known.
    pub provider: Result<ProviderFacts, String>,
    /// The machines with the fleet's tag.
    pub instances: Result<Vec<Instance>, String>,
    /// What the engine is.
    pub engine: Result<EngineFacts, String>,
    /// The engine's members.
    pub members: Result<Vec<Member>, String>,
    /// Answers to [`Question::Preflight`], by instance. Of this turn: an older one proves nothing.
    pub preflight: BTreeMap<String, Result<(), VerbRefusal>>,
    /// Answers to questions for evidence, by member or address. Of this turn, asked after `members`.
    pub evidence: BTreeMap<String, Result<Evidence, String>>,
    /// Verbs that were refused for good in this turn or the last, by the token of their machine.
    pub refused: BTreeMap<Token, String>,
    /// What was measured, at least as far back as [`samples_kept`] says; in any order.
    pub samples: Vec<Sample>,
}

/// What an adapter is asked within a turn. The answer is added to the observation, and `decide` is called once more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// Whether the provider would end this machine: `preflight`.
    Preflight {
        /// What the provider calls it.
        instance: String,
    },
    /// What the others say of a member: `evidence {member}`.
    EvidenceOf {
        /// What the engine calls it.
        member: String,
    },
    /// What the members say of a machine that never became one: `evidence {address}`.
    EvidenceAt {
        /// Its host or address.
        address: String,
    },
}

/// What a controller does.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetAction {
    /// The next document, if the one that was read is still there. Always the last action of a turn; the next turn
    /// begins at once.
    Publish(Box<Fleet>),
    /// The provider is asked for a machine of this type; the engine's `boot` has the script.
    Ensure {
        /// With this token.
        token: Token,
        /// Of this type.
        kind: String,
    },
    /// The provider ends it.
    Terminate {
        /// The machine's token in the document.
        token: Token,
        /// What the provider calls it.
        instance: String,
    },
    /// The engine takes it in.
    Join {
        /// The machine's token in the document.
        token: Token,
        /// What the engine calls it.
        member: String,
    },
    /// Data leaves it.
    Drain {
        /// The machine's token in the document.
        token: Token,
        /// What the engine calls it.
        member: String,
    },
    /// Its drain is taken back.
    Cancel {
        /// The machine's token in the document.
        token: Token,
        /// What the engine calls it.
        member: String,
    },
    /// The engine forgets a member whose machine is gone.
    Forget {
        /// The machine's token in the document.
        token: Token,
        /// What the engine calls it.
        member: String,
    },
    /// An adapter is asked now. A turn that asks does nothing else.
    Ask(Question),
}

impl FleetAction {
    /// The token of the machine that it concerns: a refusal for good goes to [`Observation::refused`] under it.
    pub fn token(&self) -> Option<&Token> {
        match self {
            FleetAction::Publish(_) | FleetAction::Ask(_) => None,
            FleetAction::Ensure { token, .. }
            | FleetAction::Terminate { token, .. }
            | FleetAction::Join { token, .. }
            | FleetAction::Drain { token, .. }
            | FleetAction::Cancel { token, .. }
            | FleetAction::Forget { token, .. } => Some(token),
        }
    }

    /// Whether it moves data to or from a member. A driver reads the document once more right before it, and leaves it
    /// where the generation is not the one that was read: done late, it could revive what is being ended, or drain a
    /// second member beside the first. The other acts do no harm however late they are.
    pub fn must_be_fresh(&self) -> bool {
        matches!(self, FleetAction::Join { .. } | FleetAction::Drain { .. } | FleetAction::Cancel { .. })
    }
}

/// What is done now, and when to look again.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// In this order. Either questions alone, or acts and at most one document, last.
    pub actions: Vec<FleetAction>,
    /// The next look, after all of this; zero: at once.
    pub look_after: Duration,
}

/// Decides. What it remembers only delays it.
#[derive(Clone, Debug, Default)]
pub struct Controller {
    /// When it asked for a machine, by token.
    ensured: BTreeMap<Token, WallMillis>,
}

/// A turn while it is thought about.
struct Work<'a> {
    seen: &'a Observation,
    /// The document as it would be published.
    next: Fleet,
    acts: Vec<FleetAction>,
    questions: BTreeSet<Question>,
}

impl Controller {
    /// One that remembers nothing.
    pub fn new() -> Controller {
        Controller::default()
    }

    /// What to do now.
    pub fn decide(&mut self, seen: &Observation) -> Turn {
        let mut work = Work { seen, next: seen.fleet.clone(), acts: Vec::new(), questions: BTreeSet::new() };
        orders::take(&mut work);
        lifecycle::advance(&mut work);
        lifecycle::take_in_strays(&mut work);
        sizing::learn(&mut work);
        decisions::decide(&mut work);
        converge::converge(&mut work);
        standby::fill(&mut work);
        decisions::close(&mut work);
        if !work.questions.is_empty() {
            let actions = work.questions.into_iter().map(FleetAction::Ask).collect();
            return Turn { actions, look_after: Duration::ZERO };
        }
        self.turn(work)
    }

    fn turn(&mut self, work: Work<'_>) -> Turn {
        let Work { seen, mut next, mut acts, .. } = work;
        let as_read = |token: &Token| seen.fleet.machines.iter().find(|machine| &machine.token == token);
        let as_next = |token: &Token| next.machines.iter().find(|machine| &machine.token == token);
        // An act is done by the document that was read, and only if this turn does not change what it says.
        acts.retain(|act| act.token().is_none_or(|token| as_read(token) == as_next(token)));
        acts.retain(|act| !self.repeats(seen, act));
        self.ensured.retain(|token, _| seen.fleet.machines.iter().any(|machine| &machine.token == token));
        let is_busy = !acts.is_empty() || next.machines.iter().any(is_under_way);
        let mut look_after = if is_busy { BUSY } else { IDLE };
        if next != seen.fleet {
            next.generation += 1;
            acts.push(FleetAction::Publish(Box::new(next)));
            look_after = Duration::ZERO;
        }
        Turn { actions: acts, look_after }
    }

    /// Whether a request was made a moment ago: the provider may only not show its machine yet.
    fn repeats(&mut self, seen: &Observation, act: &FleetAction) -> bool {
        let FleetAction::Ensure { token, .. } = act else { return false };
        let pause = REPEAT_MS.min(seen.fleet.policy.deadlines.boot * 1000 / 4);
        let repeats = self.ensured.get(token).is_some_and(|at| seen.now.0.saturating_sub(at.0) < pause);
        if !repeats {
            self.ensured.insert(token.clone(), seen.now);
        }
        repeats
    }
}

fn is_under_way(machine: &Machine) -> bool {
    machine.state.is_coming() || machine.state.is_leaving()
}

/// Milliseconds since `since`; 0 where another clock was ahead.
fn since(now: WallMillis, since: WallMillis) -> u64 {
    now.0.saturating_sub(since.0)
}
