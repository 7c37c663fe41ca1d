//! What a controller saw of a fleet last, for people and for commands that ask no adapter themselves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::adapter::{EngineFacts, Instance, Member, ProviderFacts};
use crate::WallMillis;

/// What a controller saw last. Nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// When.
    pub at: WallMillis,
    /// Which process on which machine looked.
    pub by: String,
    /// The generation of the fleet's document that it had read.
    pub generation: u64,
    /// What the provider is, or why that is not known.
    pub provider: Result<ProviderFacts, String>,
    /// The machines with the fleet's tag.
    pub instances: Result<Vec<Instance>, String>,
    /// What the engine is.
    pub engine: Result<EngineFacts, String>,
    /// Its members.
    pub members: Result<Vec<Member>, String>,
    /// Verbs and sources that failed in that turn, each with why and what helps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// Since when its engine does not reach a member, by its name: as far back as this controller has looked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub silent: BTreeMap<String, WallMillis>,
}

impl Look {
    /// Whether another one says the same, but for when, and for what was measured.
    pub fn says_the_same(&self, other: &Look) -> bool {
        let without = |look: &Look| {
            let mut look = Look { at: WallMillis(0), ..look.clone() };
            for member in look.members.iter_mut().flatten() {
                member.measures.values_mut().for_each(|measured| {
                    measured.value = 0.0;
                    measured.age_ms = 0;
                });
            }
            look
        };
        without(self) == without(other)
    }
}
