//! Types of local machines, as the command line gives them.

use std::str::FromStr;

use model::elasticity::Money;
use model::elasticity::adapter::MachineType;

/// The least share of a processor that a control group grants, in thousandths: a millisecond of its period of ten.
const PROCESSORS_MILLI_MIN: u64 = 100;
/// The most, in thousandths.
const PROCESSORS_MILLI_MAX: u64 = 1_000_000;

/// A type of machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// Its name.
    pub name: String,
    /// What an hour costs.
    pub price: Money,
    /// Processors that it may use, in thousandths; `None` for all that there are.
    pub processors_milli: Option<u64>,
}

impl Type {
    /// What is told of it.
    pub(super) fn facts(&self) -> MachineType {
        let Type { name, price, processors_milli } = self.clone();
        MachineType { name, price_per_hour: price, processors_milli, memory_bytes: None }
    }
}

impl FromStr for Type {
    type Err = String;

    fn from_str(text: &str) -> Result<Type, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if name.is_empty() || !name.chars().all(is_letter) {
            return Err(format!("{text:?} begins with no name; write small:price=0.1,processors=0.5"));
        }
        let mut parsed = Type { name: name.to_owned(), price: Money::default(), processors_milli: None };
        for setting in rest.split(',').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=') {
                Some(("price", amount)) => parsed.price = amount.parse()?,
                Some(("processors", count)) => parsed.processors_milli = Some(processors(count)?),
                _ => return Err(format!("{setting:?} is neither price=AMOUNT nor processors=COUNT")),
            }
        }
        Ok(parsed)
    }
}

/// Processors, in thousandths.
pub(super) fn processors(text: &str) -> Result<u64, String> {
    let count: f64 = text.parse().map_err(|_| format!("{text:?} is no number of processors, such as 0.5"))?;
    let milli = (count * 1_000.0).round();
    match (PROCESSORS_MILLI_MIN as f64..=PROCESSORS_MILLI_MAX as f64).contains(&milli) {
        true => Ok(milli as u64),
        false => Err(format!("a machine has 0.1 to 1000 processors, and not {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_read_and_a_mistake_is_named() {
        let read: Type = "small:price=0.1,processors=0.5".parse().unwrap();
        let price = "0.1".parse().unwrap();
        assert_eq!(read, Type { name: "small".to_owned(), price, processors_milli: Some(500) });
        assert_eq!("big".parse::<Type>().unwrap().processors_milli, None);
        for wrong in
            ["", ":price=1", "a b", "a:price=-1", "a:processors=0", "a:processors=NaN", "a:colour=red"]
        {
            assert!(wrong.parse::<Type>().is_err(), "{wrong}");
        }
    }
}
