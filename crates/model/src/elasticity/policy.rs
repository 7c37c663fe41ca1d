//! What the controller of a managed cluster may do, and when.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::source::{SOURCES_MAX, Source};

/// Money in millionths of whatever unit the provider's prices are in. Documents and files say it as `"2.5"` or `2.5`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Money(pub u64);

impl std::str::FromStr for Money {
    type Err = String;

    fn from_str(text: &str) -> Result<Money, String> {
        let wrong = || format!("{text:?} is no amount of money; write one such as 2.5, not negative");
        let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 12 || rest.len() > 6 || !digits(whole) || !digits(rest) {
            return Err(wrong());
        }
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let rest: u64 = format!("{rest:0<6}").parse().map_err(|_| wrong())?;
        Ok(Money(whole * 1_000_000 + rest))
    }
}

impl Serialize for Money {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Money, D::Error> {
        use serde::de::Unexpected;
        struct Amount;
        impl serde::de::Visitor<'_> for Amount {
            type Value = Money;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an amount of money, such as 2.5, not negative")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Money, E> {
                text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }

            fn visit_f64<E: serde::de::Error>(self, amount: f64) -> Result<Money, E> {
                match amount.is_finite() && (0.0..1e12).contains(&amount) {
                    true => Ok(Money((amount * 1e6).round() as u64)),
                    false => Err(E::invalid_value(Unexpected::Float(amount), &self)),
                }
            }

            fn visit_i64<E: serde::de::Error>(self, amount: i64) -> Result<Money, E> {
                self.visit_f64(amount as f64)
            }

            fn visit_u64<E: serde::de::Error>(self, amount: u64) -> Result<Money, E> {
                self.visit_f64(amount as f64)
            }
        }
        deserializer.deserialize_any(Amount)
    }
}

impl Money {
    /// So much for each hour, for this many milliseconds; rounded up.
    pub fn for_millis(self, millis: u64) -> Money {
        let cost = u128::from(self.0) * u128::from(millis);
        Money(u64::try_from(cost.div_ceil(3_600_000)).unwrap_or(u64::MAX))
    }
}

impl std::ops::Add for Money {
    type Output = Money;

    fn add(self, other: Money) -> Money {
        Money(self.0.saturating_add(other.0))
    }
}

impl std::iter::Sum for Money {
    fn sum<I: Iterator<Item = Money>>(all: I) -> Money {
        all.fold(Money(0), |sum, one| sum + one)
    }
}

impl fmt::Display for Money {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let digits = format!("{rest:06}");
        let digits = digits.trim_end_matches('0');
        match digits.is_empty() {
            true => write!(formatter, "{whole}"),
            false => write!(formatter, "{whole}.{digits}"),
        }
    }
}

/// What may happen without an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Decisions are made and kept, and none is carried out.
    #[default]
    Observe,
    /// A decision is proposed, and carried out once it is approved.
    Advise,
    /// Decisions are carried out.
    Auto,
}

/// The policy of one managed cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// The engine adapter's name in the controller's file of adapters.
    pub engine: String,
    /// The provider adapter's name there.
    pub provider: String,
    /// The type of its machines.
    pub machine_type: String,
    /// The fewest members.
    pub min: u32,
    /// The most.
    pub max: u32,
    /// Machines that are kept booted beside the members, for a rise of load. They are paid for, and members with them are
    /// never more than `max`. Default: 0.
    #[serde(default)]
    pub standby: u32,
    /// What may happen without an operator.
    #[serde(default)]
    pub mode: Mode,
    /// What it may cost.
    #[serde(default)]
    pub budget: Budget,
    /// How long each state may last.
    #[serde(default)]
    pub deadlines: Deadlines,
    /// Where measures come from, beside the engine's `observe`.
    #[serde(default)]
    pub sources: Vec<Source>,
    /// When a member is added: any of these is enough.
    #[serde(default)]
    pub add: Vec<Rule>,
    /// When one is removed: all of these must hold.
    #[serde(default)]
    pub remove: Vec<Rule>,
    /// How the size is chosen between `min` and `max`; see [`Policy::sizing`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizing: Option<Sizing>,
    /// What members must keep to, where the size is chosen by load.
    #[serde(default)]
    pub objective: Objective,
    /// How long decisions rest after one was carried out.
    #[serde(default)]
    pub cooldowns: Cooldowns,
    /// The oldest sample that counts as fresh, in seconds.
    #[serde(default = "sample_age_max")]
    pub sample_age_max: u64,
}

fn sample_age_max() -> u64 {
    30
}

/// What a fleet may cost, machines on their way included. Nothing said: no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Budget {
    /// For an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_hour: Option<Money>,
    /// For a day of UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_day: Option<Money>,
}

/// How long a machine may stay in a state, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Deadlines {
    /// From the request until its provider has it, and from there until its engine has heard of it.
    pub boot: u64,
    /// Until it serves.
    pub join: u64,
    /// Until nothing is on it.
    pub drain: u64,
    /// Until its provider has ended it.
    pub terminate: u64,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines { boot: 600, join: 4 * 3_600, drain: 12 * 3_600, terminate: 600 }
    }
}

/// How long decisions rest after a size was reached, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cooldowns {
    /// Before the next member is added.
    pub grow: u64,
    /// Before one is removed.
    pub shrink: u64,
}

impl Default for Cooldowns {
    fn default() -> Cooldowns {
        Cooldowns { grow: 60, shrink: 600 }
    }
}

/// How the size is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizing {
    /// One more or one less, by the rules `add` and `remove`.
    Rules,
    /// As many as carry the load that is measured, by what members were seen to carry.
    Target,
    /// As *target*, and more in time for the expected load.
    Forecast,
}

/// What members must keep to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Objective {
    /// What is measured of it. Default: `processor`.
    pub measure: Measure,
    /// What the mean of all members may be at most. Default: 60.
    pub at_most: f64,
    /// What it may be while one member is lost. Default: 90.
    pub strained: f64,
    /// The span over which means are taken, in seconds. Default: 60.
    pub over: u64,
}

impl Default for Objective {
    fn default() -> Objective {
        Objective { measure: processor(), at_most: 60.0, strained: 90.0, over: 60 }
    }
}

/// What of all members' values counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// The highest of a member.
    Any,
    /// All of them.
    All,
    /// Their mean.
    Mean,
}

/// A name of something measured, as `observe` or a source gives it.
pub type Measure = String;

/// On which side of its bound a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Above it.
    Above,
    /// Not above it.
    AtMost,
}

/// A bound on a measure. The paper's: any member above 40 % of processor adds, all at or below 15 % remove, over 300 s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    /// What is measured. Default: `processor`, in percent of what a member may use.
    #[serde(default = "processor")]
    pub measure: Measure,
    /// Of which members.
    pub of: Spread,
    /// On which side.
    pub is: Direction,
    /// The bound, in the measure's unit.
    pub bound: f64,
    /// The span over which each member's mean is taken, in seconds. Default: 300.
    #[serde(default = "over")]
    pub over: u64,
}

fn processor() -> Measure {
    "processor".to_owned()
}

fn over() -> u64 {
    300
}

/// What is wrong with a policy: the field, what it is, and what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The field, as the file writes it.
    pub field: String,
    /// What is wrong, and what to write instead.
    pub why: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.why)
    }
}

impl std::error::Error for PolicyError {}

/// The longest time that a policy may name, in seconds: thirty days.
const SECONDS_MAX: u64 = 30 * 24 * 3_600;

impl Policy {
    /// The paper's rules: any member above 40 % adds, all at or below 15 % remove, means of five minutes.
    pub fn paper_rules() -> (Vec<Rule>, Vec<Rule>) {
        let rule = |of, is, bound| Rule { measure: processor(), of, is, bound, over: over() };
        (vec![rule(Spread::Any, Direction::Above, 40.0)], vec![rule(Spread::All, Direction::AtMost, 15.0)])
    }

    /// How the size is chosen: as the policy says, or by rules where it has any, and otherwise by the load that is measured.
    pub fn sizing(&self) -> Sizing {
        let has_rules = !self.add.is_empty() || !self.remove.is_empty();
        self.sizing.unwrap_or(if has_rules { Sizing::Rules } else { Sizing::Target })
    }

    /// Refuses a policy that contradicts itself.
    ///
    /// # Errors
    /// The first field that is wrong, with the remedy.
    pub fn check(&self) -> Result<(), PolicyError> {
        let wrong = |field: &str, why: String| Err(PolicyError { field: field.to_owned(), why });
        for (field, text) in
            [("engine", &self.engine), ("provider", &self.provider), ("machine-type", &self.machine_type)]
        {
            if text.is_empty() {
                return wrong(field, "it is empty; write the name that the file of adapters has".to_owned());
            }
        }
        if self.min == 0 {
            return wrong("min", "it is 0; a cluster has one member at least".to_owned());
        }
        if self.min > self.max {
            return wrong("min", format!("it is {}, above max, which is {}", self.min, self.max));
        }
        if self.standby > self.max - self.min {
            let room = self.max - self.min;
            let why = format!(
                "it is {}, and max less min leaves room for {room}; write that or less",
                self.standby
            );
            return wrong("standby", why);
        }
        let deadlines = self.deadlines;
        let spans = [
            ("deadlines.boot", deadlines.boot, 1),
            ("deadlines.join", deadlines.join, 1),
            ("deadlines.drain", deadlines.drain, 1),
            ("deadlines.terminate", deadlines.terminate, 1),
            ("cooldowns.grow", self.cooldowns.grow, 0),
            ("cooldowns.shrink", self.cooldowns.shrink, 0),
            ("sample-age-max", self.sample_age_max, 1),
        ];
        for (field, seconds, least) in spans {
            if seconds < least || seconds > SECONDS_MAX {
                return wrong(field, format!("it is {seconds} s; it must be {least} to {SECONDS_MAX} s"));
            }
        }
        let Objective { at_most, strained, over, .. } = self.objective;
        if !(at_most.is_finite() && at_most > 0.0 && strained.is_finite() && strained >= at_most) {
            let why = "at-most must be above 0, and strained not below it; 60 and 90 are usual";
            return wrong("objective", why.to_owned());
        }
        if over == 0 || over > SECONDS_MAX {
            return wrong("objective.over", "it must be 1 s to 30 days".to_owned());
        }
        if self.sources.len() > SOURCES_MAX {
            return wrong("sources", format!("they are {}; write {SOURCES_MAX} at most", self.sources.len()));
        }
        for (number, source) in self.sources.iter().enumerate() {
            source.check(&format!("sources[{number}]"))?;
        }
        for (list, rules) in [("add", &self.add), ("remove", &self.remove)] {
            for (number, rule) in rules.iter().enumerate() {
                rule.check(&format!("{list}[{number}]"))?;
            }
        }
        // The other way round, a fleet without load would grow, and one with much of it shrink.
        for (list, rules, is, word, does) in [
            ("add", &self.add, Direction::Above, "above", "adds"),
            ("remove", &self.remove, Direction::AtMost, "at-most", "removes"),
        ] {
            if let Some(number) = rules.iter().position(|rule| rule.is != is) {
                let why = format!("a rule that {does} says `is = \"{word}\"`; write that");
                return wrong(&format!("{list}[{number}].is"), why);
            }
        }
        self.check_bounds()
    }

    /// Refuses removals that hold wherever nothing adds: of each measure, the lowest bound that removes must not be above
    /// the lowest that adds. Spreads and spans do not matter for that.
    fn check_bounds(&self) -> Result<(), PolicyError> {
        let lowest = |rules: &'_ [Rule], measure: &str| {
            let of_measure = rules.iter().enumerate().filter(|(_, rule)| rule.measure == measure);
            of_measure
                .min_by(|(_, one), (_, other)| one.bound.total_cmp(&other.bound))
                .map(|(number, _)| number)
        };
        for rule in &self.add {
            let (Some(add), Some(remove)) =
                (lowest(&self.add, &rule.measure), lowest(&self.remove, &rule.measure))
            else {
                continue;
            };
            let (adds, removes) = (self.add[add].bound, self.remove[remove].bound);
            if removes > adds {
                let why = format!(
                    "it is {removes}, and add[{add}] adds a member above {adds} of {measure}, so members would come and go; \
                     write at most {adds}",
                    measure = rule.measure
                );
                return Err(PolicyError { field: format!("remove[{remove}].bound"), why });
            }
        }
        Ok(())
    }
}

impl Rule {
    fn check(&self, field: &str) -> Result<(), PolicyError> {
        let wrong = |part: &str, why: &str| {
            Err(PolicyError { field: format!("{field}.{part}"), why: why.to_owned() })
        };
        if self.measure.is_empty() {
            return wrong("measure", "it is empty; `tontine elastic status` lists what is measured");
        }
        if !self.bound.is_finite() {
            return wrong(
                "bound",
                "it is no number; write one in the measure's unit, such as 40 for percent",
            );
        }
        if self.over == 0 || self.over > SECONDS_MAX {
            return wrong("over", "it must be 1 s to 30 days");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_would_add_where_load_is_low_is_refused_and_so_is_one_that_would_remove_where_it_is_high() {
        let policy = |add: &str, remove: &str| -> Policy {
            let rule = |is, bound| serde_json::json!({ "of": "any", "is": is, "bound": bound });
            let (add, remove) = ([rule(add, 40)], [rule("at-most", 15), rule(remove, 15)]);
            serde_json::from_value(serde_json::json!({
                "engine": "e", "provider": "p", "machine-type": "t", "min": 1, "max": 2, "add": add, "remove": remove,
            }))
            .unwrap()
        };
        let refused = |add, remove| policy(add, remove).check().unwrap_err().to_string();
        assert_eq!(policy("above", "at-most").check(), Ok(()));
        assert_eq!(
            refused("at-most", "at-most"),
            "add[0].is: a rule that adds says `is = \"above\"`; write that"
        );
        assert_eq!(
            refused("above", "above"),
            "remove[1].is: a rule that removes says `is = \"at-most\"`; write that"
        );
    }

    #[test]
    fn a_removal_that_is_above_what_adds_is_refused_for_each_measure_alone() {
        let checked = |add: &[(&str, f64)], remove: &[(&str, f64)]| {
            let rules = |rules: &[(&str, f64)], of: &str, is: &str| -> Vec<serde_json::Value> {
                let rule = |(measure, bound): &(&str, f64)| serde_json::json!({ "measure": measure, "of": of, "is": is, "bound": bound });
                rules.iter().map(rule).collect()
            };
            let policy: Policy = serde_json::from_value(serde_json::json!({
                "engine": "e", "provider": "p", "machine-type": "t", "min": 1, "max": 2,
                "add": rules(add, "any", "above"), "remove": rules(remove, "all", "at-most"),
            }))
            .unwrap();
            policy.check().map_err(|error| error.to_string())
        };
        let why = "remove[0].bound: it is 41, and add[1] adds a member above 40 of processor, so members would come and go; \
                   write at most 40";
        assert_eq!(
            checked(&[("operations", 9.0), ("processor", 40.0)], &[("processor", 41.0)]),
            Err(why.to_owned())
        );
        assert_eq!(
            checked(&[("queue", 0.0)], &[("queue", 0.0)]),
            Ok(()),
            "an empty queue removes after longer"
        );
        assert!(checked(&[("processor", 40.0)], &[("processor", 50.0)]).is_err());
        assert_eq!(checked(&[("processor", 40.0)], &[("processor", 39.0)]), Ok(()));
        assert_eq!(
            checked(&[("operations", 9.0)], &[("processor", 50.0)]),
            Ok(()),
            "they have nothing in common"
        );
        let both = [("processor", 50.0), ("processor", 15.0)];
        assert_eq!(checked(&[("processor", 40.0)], &both), Ok(()), "both must hold");
        assert_eq!(checked(&[], &both), Ok(()));
    }
}
