//! Addresses of local machines: a range of this host's own.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// Most addresses of a range: more machines than any host runs.
const ADDRESSES_MAX: u32 = 65_536;

/// A range of addresses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    first: Ipv4Addr,
    last: Ipv4Addr,
}

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses { first: Ipv4Addr::new(127, 0, 0, 10), last: Ipv4Addr::new(127, 0, 0, 40) }
    }
}

impl Addresses {
    /// How many there are.
    pub(crate) fn count(self) -> u32 {
        self.last.to_bits() - self.first.to_bits() + 1
    }

    /// All of them, in order.
    pub(super) fn all(self) -> impl Iterator<Item = Ipv4Addr> {
        (self.first.to_bits()..=self.last.to_bits()).map(Ipv4Addr::from_bits)
    }
}

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Addresses, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let read = |text: &str| {
            let address = text.trim().parse::<Ipv4Addr>();
            address.map_err(|_| format!("{text:?} is no IPv4 address; write 127.0.0.10-127.0.0.40"))
        };
        let (first, last) = (read(first)?, read(last)?);
        match last.to_bits().checked_sub(first.to_bits()) {
            Some(further) if further < ADDRESSES_MAX => Ok(Addresses { first, last }),
            Some(_) => Err(format!("{text} has more than {ADDRESSES_MAX} addresses")),
            None => Err(format!("{text} ends before it begins")),
        }
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_counted_with_both_ends() {
        let range: Addresses = "127.0.0.10-127.0.0.12".parse().unwrap();
        assert_eq!(range.count(), 3);
        let all: Vec<String> = range.all().map(|address| address.to_string()).collect();
        assert_eq!(all, ["127.0.0.10", "127.0.0.11", "127.0.0.12"]);
        assert_eq!("127.0.0.9".parse::<Addresses>().unwrap().count(), 1);
        for wrong in ["", "127.0.0.2-127.0.0.1", "127.0.0.1-", "0.0.0.0-255.255.255.255", "::1"] {
            assert!(wrong.parse::<Addresses>().is_err(), "{wrong}");
        }
    }
}
