//! What so many members carry within the objective, learned from what they did.
//!
//! ```text
//!   reads/s, updates/s, use of each moment ──▶ Costs: what one of each takes of a member ──▶ what a member carries
//!                                  └── by how many members there were ──▶ what so many carry
//! ```
//!
//! At first only processor time per operation is known, and each member more brings as much as the last (paper `004_…`
//! divides evenly, too). Where members were added, what they brought is known: figure 2 of the paper shows updates that gain
//! next to nothing.
//!
//! Must never: tell what nobody has measured. Without load there is no cost, and without cost no capacity.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How much of what was known a new look replaces.
const FORGETS: f64 = 0.05;
/// Use of a member below which its work tells nothing of what an operation costs: what it does without any may be most of it.
const USE_MIN: f64 = 15.0;
/// Two growths in a row that gain less than this show that more members do not help.
pub const GAIN_MIN: f64 = 0.1;

/// What was seen of all members that serve, in one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// How many.
    pub members: u32,
    /// Reads in a second, of all together.
    pub reads: f64,
    /// Updates in a second, of all together.
    pub updates: f64,
    /// What the objective is about, as the mean of all members: processor in percent.
    pub used: f64,
}

/// Sums from which the costs of reads and updates follow, by least squares with forgetting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Sums {
    rr: f64,
    ru: f64,
    uu: f64,
    r_used: f64,
    u_used: f64,
}

/// What has been learned, by the number of members that served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Capacity {
    by_members: BTreeMap<u32, Sums>,
}

/// What one operation in a second takes of a member, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A read.
    pub read: f64,
    /// An update.
    pub update: f64,
}

impl Sums {
    fn learn(&mut self, reads: f64, updates: f64, used: f64) {
        let mix = |old: &mut f64, new: f64| {
            *old = if *old == 0.0 { new } else { *old + FORGETS * (new - *old) };
        };
        mix(&mut self.rr, reads * reads);
        mix(&mut self.ru, reads * updates);
        mix(&mut self.uu, updates * updates);
        mix(&mut self.r_used, reads * used);
        mix(&mut self.u_used, updates * used);
    }

    /// The costs, if the mix of reads and updates has changed enough to tell them apart; otherwise one for both.
    fn costs(&self) -> Option<Costs> {
        let determinant = self.rr * self.uu - self.ru * self.ru;
        if determinant > 0.02 * self.rr * self.uu && determinant > 0.0 {
            let read = (self.r_used * self.uu - self.u_used * self.ru) / determinant;
            let update = (self.u_used * self.rr - self.r_used * self.ru) / determinant;
            if read > 0.0 && update > 0.0 {
                return Some(Costs { read, update });
            }
        }
        let all = self.rr + 2.0 * self.ru + self.uu;
        let one = (self.r_used + self.u_used) / all;
        (all > 0.0 && one.is_finite() && one > 0.0).then_some(Costs { read: one, update: one })
    }
}

impl Capacity {
    /// Learns from a moment. What tells nothing is passed over.
    pub fn learn(&mut self, observed: Observed) {
        let known = [observed.reads, observed.updates, observed.used];
        let is_told = known.iter().all(|value| value.is_finite() && *value >= 0.0);
        if observed.members == 0
            || !is_told
            || observed.used < USE_MIN
            || observed.reads + observed.updates <= 0.0
        {
            return;
        }
        let members = f64::from(observed.members);
        let sums = self.by_members.entry(observed.members).or_default();
        sums.learn(observed.reads / members, observed.updates / members, observed.used);
    }

    /// Whether anything was learned while so many members served.
    pub fn knows(&self, members: u32) -> bool {
        self.by_members.contains_key(&members)
    }

    /// What was learned with so many members, or with the nearest number.
    fn nearest(&self, members: u32) -> Option<&Sums> {
        let distance = |known: u32| (known.abs_diff(members), known > members);
        let nearest = self.by_members.iter().min_by_key(|(known, _)| distance(**known))?;
        Some(nearest.1)
    }

    /// What operations cost where so many members serve: as measured with as many, or with the nearest number.
    pub fn costs(&self, members: u32) -> Option<Costs> {
        self.nearest(members)?.costs()
    }

    /// The reads and updates in a second that one of so many members had lately: a mix, and not the load.
    pub fn mix(&self, members: u32) -> Option<(f64, f64)> {
        let sums = self.nearest(members)?;
        Some((sums.rr.sqrt(), sums.uu.sqrt()))
    }

    /// What of the mix `(reads, updates)` so many members carry in a second while each uses `most` percent.
    pub fn carries(&self, members: u32, (reads, updates): (f64, f64), most: f64) -> Option<f64> {
        let Costs { read, update } = self.costs(members)?;
        let all = reads + updates;
        let cost = if all > 0.0 { (reads * read + updates * update) / all } else { read.max(update) };
        Some(f64::from(members) * most / cost)
    }

    /// What so many carry of a mix within `most` percent each, and within `strained` percent with one of them lost.
    pub fn carries_safely(&self, members: u32, mix: (f64, f64), most: f64, strained: f64) -> Option<f64> {
        let with_all = self.carries(members, mix, most)?;
        let with_one_lost = self.carries(members.saturating_sub(1), mix, strained)?;
        Some(if members == 1 { with_all } else { with_all.min(with_one_lost) })
    }

    /// The fewest members that carry this within `most` percent each, and within `strained` percent with one of them lost.
    pub fn wanted(&self, load: (f64, f64), most: f64, strained: f64, members_max: u32) -> Option<u32> {
        let all = load.0 + load.1;
        for members in 1..=members_max {
            if self.carries_safely(members, load, most, strained)? >= all {
                return Some(members);
            }
        }
        Some(members_max)
    }

    /// What a growth brought of what evenly divided work would bring, where both sizes were measured: 1 is all, 0 nothing.
    pub fn gain(&self, before: u32, after: u32, mix: (f64, f64)) -> Option<f64> {
        if !self.knows(before) || !self.knows(after) || after <= before {
            return None;
        }
        let (was, is) = (self.carries(before, mix, 100.0)?, self.carries(after, mix, 100.0)?);
        let even = f64::from(after) / f64::from(before) - 1.0;
        Some((is / was - 1.0) / even)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(members: u32, reads: f64, updates: f64, cost: (f64, f64)) -> Observed {
        let used = (reads * cost.0 + updates * cost.1) / f64::from(members);
        Observed { members, reads, updates, used }
    }

    #[test]
    fn reads_and_updates_are_told_apart_once_their_mix_has_changed() {
        let mut capacity = Capacity::default();
        assert_eq!(capacity.carries(3, (1.0, 0.0), 60.0), None, "nothing was measured");
        for _ in 0..50 {
            capacity.learn(look(3, 3_000.0, 0.0, (0.02, 0.1)));
        }
        let reads = capacity.carries(3, (1.0, 0.0), 60.0).unwrap();
        assert!((reads - 9_000.0).abs() < 1.0, "{reads}");
        for round in 0..200 {
            let updates = f64::from(round % 7) * 100.0;
            capacity.learn(look(3, 2_000.0 - updates, updates, (0.02, 0.1)));
        }
        let costs = capacity.costs(3).unwrap();
        assert!((costs.read - 0.02).abs() < 0.002 && (costs.update - 0.1).abs() < 0.01, "{costs:?}");
    }

    #[test]
    fn what_members_brought_counts_and_not_what_they_should() {
        let mut capacity = Capacity::default();
        for _ in 0..20 {
            capacity.learn(look(3, 3_000.0, 0.0, (0.02, 0.1)));
        }
        // Until four were measured, a fourth is as good as the third.
        assert_eq!(capacity.wanted((11_000.0, 0.0), 60.0, 90.0, 10), Some(4));
        for _ in 0..20 {
            capacity.learn(look(4, 3_000.0, 0.0, (0.0265, 0.1)));
        }
        let gain = capacity.gain(3, 4, (1.0, 0.0)).unwrap();
        assert!(gain < GAIN_MIN, "{gain}");
        assert_eq!(capacity.wanted((11_000.0, 0.0), 60.0, 90.0, 10), Some(5), "by what four carry");
    }

    #[test]
    fn one_lost_leaves_enough_and_what_tells_nothing_is_passed_over() {
        let mut capacity = Capacity::default();
        for tells_nothing in [
            look(0, 1.0, 1.0, (1.0, 1.0)),
            look(3, 0.0, 0.0, (1.0, 1.0)),
            // What a member does without any load.
            Observed { members: 3, reads: 2.0, updates: 0.0, used: 5.0 },
            Observed { members: 3, reads: 10.0, updates: 0.0, used: 14.9 },
            Observed { members: 3, reads: f64::NAN, updates: 0.0, used: 50.0 },
            Observed { members: 3, reads: 10.0, updates: 0.0, used: f64::INFINITY },
            Observed { members: 3, reads: -10.0, updates: 0.0, used: 50.0 },
        ] {
            capacity.learn(tells_nothing);
        }
        assert_eq!(capacity, Capacity::default());
        capacity.learn(look(3, 3_000.0, 0.0, (0.06, 0.06)));
        // Each carries 1,000 within 60 %, and 1,500 within 90 %: two carry 1,900, and one of them does not.
        assert_eq!(capacity.wanted((1_900.0, 0.0), 60.0, 90.0, 10), Some(3));
        assert_eq!(capacity.wanted((1_400.0, 0.0), 60.0, 90.0, 10), Some(2));
        assert_eq!(capacity.wanted((90_000.0, 0.0), 60.0, 90.0, 10), Some(10));
        assert_eq!(capacity.wanted((0.0, 0.0), 60.0, 90.0, 10), Some(1));
    }
}
