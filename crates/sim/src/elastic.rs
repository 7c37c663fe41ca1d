//! A day of load on a fleet, played on the real machine of `protocol::elasticity`; provider, engine and metrics are played,
//! and err.
//!
//! ```text
//!   load, noise ──▶ processor of each member ──▶ samples (late, half, none, no number) ──▶ controllers ──▶ documents
//!                          ▲                                                                   │
//!                          └── keys with ONE copy ◀── engine ◀── joins, drains ◀────────────────┤
//!                                                     provider ◀── ensure, terminate ◀──────────┘
//! ```
//!
//! Two controllers remember nothing; now and then one stands still for minutes and goes on beside the other.
//! Judged is what must not happen. Must never: know how the machine decides.

mod driver;
mod judge;
mod world;

use model::elasticity::{RuleVerdict, Sizing};

pub use world::play;

/// How the load goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// It stays as it is.
    Constant,
    /// It is high and low in turn, each as long as the cooldown before a removal.
    Steps,
    /// It rises and falls, with this period in minutes.
    Sinusoid(u64),
    /// It is low, and now and then several times as high for half an hour.
    Bursts,
}

/// What a broken driver would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// What is not measured is handed on as 0.
    MissingIsZero,
    /// Samples are handed on as if they were new.
    AgesAreLost,
    /// Past decisions are not handed on, so no removal is known to have been wrong.
    ForgetsDecisions,
    /// The drain's own word is handed on as evidence.
    BelievesDrains,
    /// Two machines for one token are handed on as one.
    HidesSeconds,
}

/// What a day is like.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// How the load goes.
    pub load: Load,
    /// How the size is chosen.
    pub sizing: Sizing,
    /// The noise of a sample, as a standard deviation, in permille.
    pub noise: u64,
    /// Whether provider, engine, metrics and controllers err.
    pub errs: bool,
    /// Whether a drain can be taken back.
    pub cancellable: bool,
    /// What the driver does wrong.
    pub plant: Option<Plant>,
}

impl Weather {
    /// As the dice of a seed draw it.
    pub fn of_seed(seed: u64) -> Weather {
        let mut dice = crate::dice::Dice::apart(seed, 41);
        let loads = [Load::Constant, Load::Steps, Load::Sinusoid(360), Load::Sinusoid(1440), Load::Bursts];
        let load = *dice.pick(&loads);
        // A day of constant load shows the noise alone.
        let errs = load != Load::Constant && dice.chance(800);
        // Dice of their own: what a seed drew before there was more than one way is drawn still.
        let sizings = [Sizing::Rules, Sizing::Rules, Sizing::Target, Sizing::Forecast];
        let sizing = *crate::dice::Dice::apart(seed, 44).pick(&sizings);
        let (noise, cancellable) = (dice.between(50, 300), dice.chance(700));
        Weather { load, sizing, noise, errs, cancellable, plant: None }
    }
}

/// How a day went.
#[derive(Clone, Debug, Default)]
pub struct Day {
    /// What must not happen and did.
    pub broken: Vec<String>,
    /// When the size changed, in seconds, and to which.
    pub sizes: Vec<(u64, u32)>,
    /// Decisions by rules or by load that were carried out.
    pub moves: Vec<(u64, RuleVerdict)>,
    /// Machine-minutes that were paid.
    pub machine_minutes: u64,
    /// Minutes in which a member had more to do than it can.
    pub overloaded_minutes: u64,
    /// Machines that failed.
    pub failures: u64,
    /// Machines that were taken in as strays.
    pub strays: u64,
    /// Drains that were taken back.
    pub cancelled: u64,
    /// Acts of a controller that had stood still.
    pub late_acts: u64,
    /// Machines that stood by and were called.
    pub called: u64,
}

impl Day {
    /// Removals that were followed by a growth within an hour.
    pub fn flips(&self) -> usize {
        let is_flip = |pair: &&[(u64, RuleVerdict)]| {
            (pair[0].1, pair[1].1) == (RuleVerdict::Remove, RuleVerdict::Add) && pair[1].0 - pair[0].0 <= 3600
        };
        self.moves.windows(2).filter(is_flip).count()
    }
}
