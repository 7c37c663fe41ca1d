//! What was measured of a fleet's members, as far back as its policy's rules look.
//!
//! Must never: make a sample of what was not measured. What does not answer leaves no sample.

use std::collections::BTreeMap;

use model::WallMillis;
use model::elasticity::Policy;
use model::elasticity::adapter::Member;
use protocol::elasticity::{Sample, samples_kept};

/// Samples of one fleet that are kept at most; beyond that the oldest go.
const SAMPLES_MAX: usize = 200_000;
/// Two samples of one measure closer than this are one: ages are given in milliseconds, and an answer takes some.
const SAME_MS: u64 = 400;

/// What was measured lately.
#[derive(Default)]
pub(super) struct SampleHistory {
    samples: Vec<Sample>,
    /// When each measure of each member was measured last.
    newest: BTreeMap<(String, String), WallMillis>,
}

impl SampleHistory {
    /// Adds what the engine's `observe` gave.
    pub(super) fn add_observed(&mut self, members: &[Member], now: WallMillis) {
        for member in members {
            for (measure, measured) in &member.measures {
                let at = WallMillis(now.0.saturating_sub(measured.age_ms));
                let (member, measure) = (member.id.clone(), measure.clone());
                self.add(Sample { member, measure, value: measured.value, at });
            }
        }
    }

    /// Adds a sample, unless it is one that is there.
    pub(super) fn add(&mut self, sample: Sample) {
        let key = (sample.member.clone(), sample.measure.clone());
        let is_known = self.newest.get(&key).is_some_and(|newest| sample.at.0 < newest.0 + SAME_MS);
        if is_known || !sample.value.is_finite() {
            return;
        }
        self.newest.insert(key, sample.at);
        self.samples.push(sample);
    }

    /// Forgets a measure that comes from elsewhere now, and may be of another kind there.
    pub(super) fn forget(&mut self, measure: &str) {
        self.samples.retain(|sample| sample.measure != measure);
        self.newest.retain(|(_, other), _| other != measure);
    }

    /// Forgets what no rule looks at any more, and hands out the rest.
    pub(super) fn kept(&mut self, policy: &Policy, now: WallMillis) -> Vec<Sample> {
        let begin = now.0.saturating_sub(samples_kept(policy));
        self.samples.retain(|sample| sample.at.0 >= begin);
        let too_many = self.samples.len().saturating_sub(SAMPLES_MAX);
        self.samples.drain(..too_many);
        self.newest.retain(|_, at| at.0 >= begin);
        self.check();
        self.samples.clone()
    }

    /// What must be true of the samples.
    fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let kept = self.samples.len();
        assert!(kept <= SAMPLES_MAX, "{kept} samples are kept, and {SAMPLES_MAX} are the most");
        let newest: BTreeMap<(&str, &str), WallMillis> =
            self.newest.iter().map(|((member, measure), at)| ((&**member, &**measure), *at)).collect();
        for sample in &self.samples {
            let newest = newest.get(&(sample.member.as_str(), sample.measure.as_str()));
            assert!(newest.is_some_and(|newest| sample.at <= *newest), "{newest:?} is older than {sample:?}");
            assert!(sample.value.is_finite(), "what is no number is no sample: {sample:?}");
        }
    }
}
