//! What the autopilot may do.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::node::NodeId;
use crate::plan::Rule;

/// What the autopilot does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It does not look.
    Off,
    /// It looks and says what it would do. Clusters of which no policy is kept are so.
    #[default]
    Observe,
    /// It acts.
    On,
}

impl Mode {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Observe => "observe",
            Mode::On => "on",
        }
    }
}

/// Hours of the day, by universal time, from the first up to the last, which may lie behind midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hours {
    /// The first hour, 0 to 23.
    pub from: u8,
    /// The hour at which they end, 0 to 23.
    pub to: u8,
}

impl Hours {
    /// Whether a time, in milliseconds since 1970, lies in them.
    pub fn hold(self, wall_ms: u64) -> bool {
        let hour = (wall_ms / 3_600_000 % 24) as u8;
        if self.from <= self.to {
            (self.from..self.to).contains(&hour)
        } else {
            hour >= self.from || hour < self.to
        }
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from, self.to)
    }
}

impl FromStr for Hours {
    type Err = ();
    fn from_str(text: &str) -> Result<Hours, ()> {
        let (from, to) = text.split_once('-').ok_or(())?;
        let hour = |text: &str| text.parse().ok().filter(|hour| *hour < 24).ok_or(());
        let hours = Hours { from: hour(from)?, to: hour(to)? };
        if hours.from == hours.to { Err(()) } else { Ok(hours) }
    }
}

/// What becomes of a node that is registered and was never a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Join {
    /// It waits until an order names it.
    #[default]
    Ordered,
    /// The headmaster names it as soon as it is registered.
    Auto,
}

impl Join {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Join::Ordered => "ordered",
            Join::Auto => "auto",
        }
    }
}

/// Its numbers, and the rule by which it decides. Each may be set by its name, with dashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// By which rule it decides. Default: even.
    pub policy: Rule,
    /// It begins when a node is busier than this many percent of the mean. Default: 115.
    pub over_mean: u32,
    /// It aims at this many percent of the mean. Default: 105.
    pub aim: u32,
    /// A node that uses less than this many percent of what it can is not relieved because of the mean. Default: 30.
    pub least: u32,
    /// A node that uses more than this many percent of what it can is relieved. Default: 80.
    pub most: u32,
    /// A copy of a partition stays for this many seconds where it came. Default: 3600.
    pub residence_s: u32,
    /// The order of a list stays for this many seconds. Default: 600.
    pub rest_s: u32,
    /// A disk that is fuller than this many percent takes nothing. Default: 85.
    pub disk_full: u32,
    /// A disk that is fuller than this many percent gives. Default: 90.
    pub disk_gives: u32,
    /// Hours in which it only observes. Default: none.
    pub quiet: Option<Hours>,
    /// What becomes of a node that registers. It holds in every mode. Default: an order names it.
    pub join: Join,
    /// A standby takes the places of a node that was away for this many seconds. Default: 900.
    pub replace_after_s: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            policy: Rule::Even,
            over_mean: 115,
            aim: 105,
            least: 30,
            most: 80,
            residence_s: 3600,
            rest_s: 600,
            disk_full: 85,
            disk_gives: 90,
            quiet: None,
            join: Join::Ordered,
            replace_after_s: 900,
        }
    }
}

/// Why a setting is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum SettingError {
    /// There is none of this name.
    #[error("there is no setting {name:?}")]
    Unknown {
        /// As asked for.
        name: String,
    },
    /// It does not take this value.
    #[error("setting {name} takes {takes}, got {value:?}")]
    Value {
        /// The setting.
        name: String,
        /// As given.
        value: String,
        /// What it takes.
        takes: String,
    },
}

impl Settings {
    /// The names of all settings.
    pub const NAMES: [&'static str; 12] = [
        "policy",
        "over-mean",
        "aim",
        "least",
        "most",
        "residence-s",
        "rest-s",
        "disk-full",
        "disk-gives",
        "quiet",
        "join",
        "replace-after-s",
    ];

    /// The value of a setting, as it is set.
    pub fn get(&self, name: &str) -> Option<String> {
        if name == "policy" {
            return Some(self.policy.word().to_owned());
        }
        if name == "quiet" {
            return Some(self.quiet.map_or_else(|| "none".to_owned(), |hours| hours.to_string()));
        }
        if name == "join" {
            return Some(self.join.word().to_owned());
        }
        self.clone().number(name).map(|number| number.to_string())
    }

    /// With other values for some of them.
    ///
    /// # Errors
    /// When there is no such setting, it does not take the value, or they do not hold together.
    pub fn with(&self, values: &[(String, String)]) -> Result<Settings, SettingError> {
        let mut next = self.clone();
        for (name, value) in values {
            next = next.with_one(name, value)?;
        }
        let last = |takes| {
            let (name, value) = values.last().cloned().unwrap_or_default();
            SettingError::Value { name, value, takes }
        };
        next.check().map_err(last)?;
        Ok(next)
    }

    fn with_one(&self, name: &str, value: &str) -> Result<Settings, SettingError> {
        let mut next = self.clone();
        let refused =
            |takes: String| SettingError::Value { name: name.to_owned(), value: value.to_owned(), takes };
        if name == "policy" {
            let known = Rule::named(value).filter(|rule| rule.may_be_set());
            next.policy = known.ok_or_else(|| refused(RULES.to_owned()))?;
            return Ok(next);
        }
        if name == "quiet" {
            next.quiet = match value {
                "none" => None,
                hours => Some(hours.parse().map_err(|()| {
                    refused("two different hours of the day, 0 to 23, as in 22-6, or none".to_owned())
                })?),
            };
            return Ok(next);
        }
        if name == "join" {
            let known = [Join::Ordered, Join::Auto].into_iter().find(|join| join.word() == value);
            next.join = known.ok_or_else(|| refused("ordered or auto".to_owned()))?;
            return Ok(next);
        }
        let (least, most) = bounds(name);
        let takes = || format!("a whole number from {least} to {most}");
        let slot = next.number(name).ok_or_else(|| SettingError::Unknown { name: name.to_owned() })?;
        *slot = value
            .parse()
            .ok()
            .filter(|given| (least..=most).contains(given))
            .ok_or_else(|| refused(takes()))?;
        Ok(next)
    }

    /// Whether they hold together.
    ///
    /// # Errors
    /// What would have to be so.
    pub fn check(&self) -> Result<(), String> {
        if !self.policy.may_be_set() {
            return Err(format!("a policy that is {RULES}, not {}", self.policy.word()));
        }
        if self.aim >= self.over_mean {
            return Err(format!(
                "a number such that aim ({}) is below over-mean ({})",
                self.aim, self.over_mean
            ));
        }
        if self.least >= self.most {
            return Err(format!("a number such that least ({}) is below most ({})", self.least, self.most));
        }
        if self.disk_full > self.disk_gives {
            let (full, gives) = (self.disk_full, self.disk_gives);
            return Err(format!("a number such that disk-full ({full}) is not above disk-gives ({gives})"));
        }
        for name in Settings::NAMES {
            let (least, most) = bounds(name);
            let known = self.clone().number(name).map(|slot| *slot);
            if let Some(value) = known.filter(|value| !(least..=most).contains(value)) {
                return Err(format!("{name} from {least} to {most}, not {value}"));
            }
        }
        let hours = self.quiet.is_none_or(|hours| hours.from < 24 && hours.to < 24 && hours.from != hours.to);
        if hours { Ok(()) } else { Err("two different hours of the day, 0 to 23".to_owned()) }
    }

    fn number(&mut self, name: &str) -> Option<&mut u32> {
        Some(match name {
            "over-mean" => &mut self.over_mean,
            "aim" => &mut self.aim,
            "least" => &mut self.least,
            "most" => &mut self.most,
            "residence-s" => &mut self.residence_s,
            "rest-s" => &mut self.rest_s,
            "disk-full" => &mut self.disk_full,
            "disk-gives" => &mut self.disk_gives,
            "replace-after-s" => &mut self.replace_after_s,
            _ => return None,
        })
    }
}

/// The rules that may be set.
const RULES: &str = "even or thresholds";

/// What a setting may be.
fn bounds(name: &str) -> (u32, u32) {
    match name {
        "over-mean" => (102, 1000),
        "aim" => (101, 999),
        "residence-s" | "rest-s" | "replace-after-s" => (60, 7 * 24 * 3600),
        "least" => (0, 99),
        _ => (1, 100),
    }
}

/// Why it is in this mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum Turned {
    /// The cluster was founded so.
    Founded,
    /// By an order.
    Ordered {
        /// Its number.
        order: u64,
        /// Who gave it.
        by: String,
    },
    /// It turned itself to *observe*: this many acts in a row came out worse than was predicted.
    Misjudged {
        /// Their plans.
        plans: Vec<u64>,
    },
}

/// What the autopilot may do, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// What it does.
    pub mode: Mode,
    /// Why that is so.
    pub because: Turned,
    /// When it was changed, in milliseconds since 1970.
    pub changed_ms: u64,
    /// Its numbers.
    #[serde(default)]
    pub settings: Settings,
    /// Nodes that are away, and that no standby shall replace unless it is ordered. A node that is back is none of them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub vetoed: BTreeSet<NodeId>,
}

impl Policy {
    /// Of a new cluster: on.
    pub fn founded(now_ms: u64) -> Policy {
        Policy {
            mode: Mode::On,
            because: Turned::Founded,
            changed_ms: now_ms,
            settings: Settings::default(),
            vetoed: BTreeSet::new(),
        }
    }

    /// Of a cluster of which none is kept: it was founded by a program that knew none.
    pub fn unknown() -> Policy {
        Policy { mode: Mode::Observe, ..Policy::founded(0) }
    }
}

/// What an order changes of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PolicyChange {
    /// What it does.
    Mode {
        /// What.
        mode: Mode,
    },
    /// Some of its numbers: all, or none of them.
    Set {
        /// Names and values.
        settings: Vec<(String, String)>,
    },
    /// No standby replaces this node, which is away, unless it is ordered.
    Veto {
        /// The node.
        node: NodeId,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_set_by_name_within_bounds_and_hold_together() {
        let settings = Settings::default();
        assert_eq!(settings.check(), Ok(()));
        let with = |all: &[(&str, &str)]| {
            let owned: Vec<_> =
                all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            settings.with(&owned)
        };
        for name in Settings::NAMES {
            let value = settings.get(name).unwrap();
            assert_eq!(with(&[(name, &value)]).as_ref(), Ok(&settings), "{name}");
        }
        assert_eq!(with(&[("aim", "120"), ("over-mean", "130")]).unwrap().aim, 120);
        assert_eq!(with(&[("policy", "thresholds")]).unwrap().policy, Rule::Thresholds);
        assert_eq!(with(&[("quiet", "22-6")]).unwrap().get("quiet").as_deref(), Some("22-6"));
        assert!(matches!(with(&[("speed", "9")]), Err(SettingError::Unknown { .. })));
        for (name, value) in [
            ("aim", "120"),
            ("least", "80"),
            ("most", "101"),
            ("quiet", "7-7"),
            ("rest-s", "x"),
            ("join", "yes"),
            ("replace-after-s", "59"),
            ("policy", "best"),
            ("policy", "greedy"),
        ] {
            assert!(matches!(with(&[(name, value)]), Err(SettingError::Value { .. })), "{name}={value}");
        }
    }

    #[test]
    fn a_rule_that_is_only_compared_with_is_no_policy_of_a_cluster() {
        for rule in Rule::ALL {
            let settings = Settings { policy: rule, ..Settings::default() };
            assert_eq!(settings.check().is_ok(), rule.may_be_set(), "{rule:?}");
            assert_eq!(Rule::named(rule.word()), Some(rule));
        }
    }

    #[test]
    fn documents_of_before_that_name_no_policy_mean_even() {
        let kept = r#"{"mode":"on","because":{"code":"founded"},"changed_ms":1,"settings":{"aim":110}}"#;
        let policy: Policy = serde_json::from_str(kept).unwrap();
        assert_eq!((policy.settings.policy, policy.settings.aim), (Rule::Even, 110));
        let text =
            serde_json::to_string(&Settings { policy: Rule::Thresholds, ..Settings::default() }).unwrap();
        assert!(text.starts_with(r#"{"policy":"thresholds","#), "{text}");
    }

    #[test]
    fn quiet_hours_may_pass_midnight() {
        let at = |hour: u64| hour * 3_600_000;
        let night = Hours { from: 22, to: 6 };
        assert!(night.hold(at(23)) && night.hold(at(3)) && !night.hold(at(6)) && !night.hold(at(12)));
        let day = Hours { from: 8, to: 17 };
        assert!(day.hold(at(8)) && !day.hold(at(17)) && !day.hold(at(3)));
    }
}
