//! Rates that change while a run lasts: `5000`, `sinusoid:min=500,max=3000,period=600`, `steps:500x60,2000x120`,
//! `bursts:base=500,peak=10000,every=600,for=60`.
//!
//! The day of a site is a sinusoid, the minute after a news item a burst (paper `004_…`, figure 4).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Operations per second, by the time since the measured part began. Before it, the rate of its beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Rates {
    /// Always the same.
    Constant(f64),
    /// Between two rates, from the lower one, in this many seconds up and down.
    Sinusoid {
        /// The lower one.
        min: f64,
        /// The higher one.
        max: f64,
        /// Seconds of one wave.
        period: f64,
    },
    /// One after the other, each for this many seconds; the last one stays.
    Steps(Vec<(f64, f64)>),
    /// A base, and every so often a peak.
    Bursts {
        /// The rate between peaks.
        base: f64,
        /// The rate of a peak.
        peak: f64,
        /// Seconds from one peak's end to the next one's.
        every: f64,
        /// Seconds of a peak, which ends the time between two.
        length: f64,
    },
}

impl Rates {
    /// The rate this many seconds after the measured part began.
    pub fn at(&self, seconds: f64) -> f64 {
        let seconds = seconds.max(0.0);
        match self {
            Rates::Constant(rate) => *rate,
            Rates::Sinusoid { min, max, period } => {
                let wave = (std::f64::consts::TAU * seconds / period).cos();
                min + (max - min) * (1.0 - wave) / 2.0
            }
            Rates::Steps(steps) => {
                let mut end = 0.0;
                let now = steps.iter().find(|(_, length)| {
                    end += length;
                    seconds < end
                });
                now.or(steps.last()).map_or(0.0, |(rate, _)| *rate)
            }
            Rates::Bursts { base, peak, every, length } => {
                if seconds % every < every - length {
                    *base
                } else {
                    *peak
                }
            }
        }
    }

    /// Seconds until everything has been seen once: one wave, all steps, one burst and the time before it.
    pub fn once(&self) -> Option<f64> {
        match self {
            Rates::Constant(_) => None,
            Rates::Sinusoid { period, .. } => Some(*period),
            Rates::Steps(steps) => Some(steps.iter().map(|(_, length)| length).sum()),
            Rates::Bursts { every, .. } => Some(*every),
        }
    }

    /// The mean over this many seconds.
    pub fn mean(&self, seconds: f64) -> f64 {
        let parts = 1_000;
        let at = |part: i32| self.at(seconds * (f64::from(part) + 0.5) / f64::from(parts));
        (0..parts).map(at).sum::<f64>() / f64::from(parts)
    }
}

/// Why a text is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no schedule: {why}; write a rate, sinusoid:min=500,max=3000,period=600, steps:500x60,2000x120 or \
     bursts:base=500,peak=10000,every=600,for=60"
)]
pub struct BadRates {
    text: String,
    why: String,
}

impl FromStr for Rates {
    type Err = BadRates;

    fn from_str(text: &str) -> Result<Rates, BadRates> {
        let parsed = match text.split_once(':') {
            None => positive(text).map(Rates::Constant),
            Some(("sinusoid", rest)) => parts(rest, &["min", "max", "period"]).and_then(|of| {
                let (min, max, period) = (of[0], of[1], of[2]);
                in_order("min", min, "max", max).map(|()| Rates::Sinusoid { min, max, period })
            }),
            Some(("steps", rest)) => rest.split(',').map(step).collect::<Result<_, _>>().map(Rates::Steps),
            Some(("bursts", rest)) => parts(rest, &["base", "peak", "every", "for"]).and_then(|of| {
                let (base, peak, every, length) = (of[0], of[1], of[2], of[3]);
                in_order("for", length, "every", every)?;
                in_order("base", base, "peak", peak).map(|()| Rates::Bursts { base, peak, every, length })
            }),
            Some((kind, _)) => Err(format!("{kind:?} is no kind")),
        };
        parsed.map_err(|why| BadRates { text: text.to_owned(), why })
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim().parse().map_err(|_| format!("{text:?} is no number"))?;
    match number.is_finite() && number > 0.0 && number < 1e9 {
        true => Ok(number),
        false => Err(format!("{text} is not above 0 and below a thousand million")),
    }
}

fn step(text: &str) -> Result<(f64, f64), String> {
    let (rate, length) =
        text.split_once('x').ok_or_else(|| format!("the step {text:?} is no RATExSECONDS"))?;
    Ok((positive(rate)?, positive(length)?))
}

fn in_order(less: &str, a: f64, more: &str, b: f64) -> Result<(), String> {
    if a <= b { Ok(()) } else { Err(format!("{less} is above {more}")) }
}

/// Each of these names with its number, and no other.
fn parts(text: &str, names: &[&str]) -> Result<Vec<f64>, String> {
    let mut given = BTreeMap::new();
    for part in text.split(',') {
        let (name, number) = part.split_once('=').ok_or_else(|| format!("{part:?} is no NAME=NUMBER"))?;
        if !names.contains(&name) || given.insert(name, positive(number)?).is_some() {
            return Err(format!("{name:?} is given twice, or none of {}", names.join(", ")));
        }
    }
    names.iter().map(|name| given.get(name).copied().ok_or_else(|| format!("{name} is missing"))).collect()
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rates::Constant(rate) => write!(f, "{rate}"),
            Rates::Sinusoid { min, max, period } => write!(f, "sinusoid:min={min},max={max},period={period}"),
            Rates::Steps(steps) => {
                let steps: Vec<String> =
                    steps.iter().map(|(rate, length)| format!("{rate}x{length}")).collect();
                write!(f, "steps:{}", steps.join(","))
            }
            Rates::Bursts { base, peak, every, length } => {
                write!(f, "bursts:base={base},peak={peak},every={every},for={length}")
            }
        }
    }
}

impl From<Rates> for String {
    fn from(rates: Rates) -> String {
        rates.to_string()
    }
}

impl TryFrom<String> for Rates {
    type Error = BadRates;

    fn try_from(text: String) -> Result<Rates, BadRates> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str) -> Rates {
        let rates: Rates = text.parse().unwrap();
        assert_eq!(rates.to_string(), text);
        rates
    }

    #[test]
    fn a_schedule_is_what_it_says_at_each_time() {
        let wave = rates("sinusoid:min=500,max=3000,period=600");
        for (at, rate) in [(-5.0, 500.0), (0.0, 500.0), (150.0, 1_750.0), (300.0, 3_000.0), (600.0, 500.0)] {
            assert!((wave.at(at) - rate).abs() < 1e-6, "{at}");
        }
        assert!((wave.mean(600.0) - 1_750.0).abs() < 1.0);
        let steps = rates("steps:500x60,2000x120");
        assert_eq!([0.0, 59.9, 60.0, 1_000.0].map(|at| steps.at(at)), [500.0, 500.0, 2_000.0, 2_000.0]);
        let bursts = rates("bursts:base=500,peak=10000,every=600,for=60");
        assert_eq!([0.0, 539.0, 541.0, 601.0].map(|at| bursts.at(at)), [500.0, 500.0, 10_000.0, 500.0]);
        assert_eq!([wave.once(), steps.once(), bursts.once()], [Some(600.0), Some(180.0), Some(600.0)]);
        assert_eq!((rates("5000").at(7.0), rates("5000").once()), (5_000.0, None));
    }

    #[test]
    fn what_is_no_schedule_is_told_with_the_part_that_is_wrong() {
        for (text, part) in [
            ("", "is no number"),
            ("-3", "not above 0"),
            ("NaN", "not above 0"),
            ("waves:1", "is no kind"),
            ("sinusoid:min=1,max=2", "period is missing"),
            ("sinusoid:min=3,max=2,period=1", "min is above max"),
            ("sinusoid:min=1,min=2,max=3,period=1", "given twice"),
            ("steps:5", "no RATExSECONDS"),
            ("bursts:base=1,peak=2,every=3,for=4", "for is above every"),
            ("bursts:base=1,peak=2,every=3,for=1,what=2", "none of"),
        ] {
            let error = text.parse::<Rates>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
