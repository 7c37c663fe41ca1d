//! Placements: how the keys of a store become tokens.
//!
//! *Hash* spreads keys evenly. *Windows* is for feeds (ZStore's adaptive partitioning, paper 003, 4.3): θ sequence numbers
//! that follow each other are a window, and a window lies in one bucket, so that the newest of a feed lie at one node or two.
//!
//! ```text
//!   feed:anna:1027      θ = 64
//!        └group └sequence
//!   window = 1027 div 64 = 16
//!   bucket = (hash("anna") + 16 × stride) mod buckets
//!   token  = bucket, and behind it the hash of the key
//! ```
//!
//! The stride is odd, so a group visits every bucket once before it visits one twice; and near the golden section of the
//! buckets, so that windows which follow each other lie far apart on any ring (`docs/design/placement.md`).
//!
//! Must never: change what token a key has. Clients route by it, and disks lie by it. Placement is settled when a store is
//! created.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Unknown;
use crate::key::Token;
use crate::limits::PARTITIONS_MAX;

/// The greatest θ. A window of that many keys delays puts by minutes; more would be an error of typing.
pub const THETA_MAX: u64 = 1_000_000;
/// The longest pattern of keys, in bytes.
pub const PATTERN_BYTES_MAX: usize = 256;

const GROUP: &str = "{group}";
const SEQUENCE: &str = "{sequence}";
/// 2^64 over the golden ratio.
const GOLDEN: u128 = 0x9e37_79b9_7f4a_7c15;

/// How the keys of a store become tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// By the hash of the key.
    #[default]
    Hash,
    /// Keys of a feed that follow each other lie together.
    Windows(Windows),
}

/// Where the keys of feeds lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// θ: sequence numbers of one window. 1 to [`THETA_MAX`].
    pub theta: u64,
    /// What keys look like.
    pub key: KeyPattern,
    /// Buckets of the cluster, whose number never changes.
    pub buckets: u32,
    /// Fields of a later program.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What keys of feeds look like: text around `{group}`, which may be missing, and `{sequence}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyPattern {
    before: String,
    parts: Parts,
    after: String,
}

/// What lies between the outer texts.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Parts {
    Sequence,
    /// The text between the group and the sequence.
    GroupFirst(String),
    /// The text between the sequence and the group.
    SequenceFirst(String),
}

/// A key of a feed, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedKey<'k> {
    /// Whose feed; empty where there is but one.
    pub group: &'k [u8],
    /// Which entry.
    pub sequence: u64,
}

/// Why a placement cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "code", content = "facts", rename_all = "kebab-case")]
pub enum PlacementError {
    /// θ is 0, or too large.
    #[error("theta must be 1 to {THETA_MAX}, got {theta}")]
    Theta {
        /// As given.
        theta: u64,
    },
    /// The pattern has no sequence, or more than one.
    #[error(
        "the pattern {pattern:?} must have {{sequence}} exactly once, such as feed:{{group}}:{{sequence}}"
    )]
    Sequence {
        /// As given.
        pattern: String,
    },
    /// The pattern has more than one group.
    #[error("the pattern {pattern:?} may have {{group}} once at most")]
    Group {
        /// As given.
        pattern: String,
    },
    /// Only digits lie between group and sequence.
    #[error(
        "the pattern {pattern:?} needs a text that is no number between {{group}} and {{sequence}}, or nobody can tell \
         where one ends"
    )]
    Between {
        /// As given.
        pattern: String,
    },
    /// The pattern has other names in braces.
    #[error("the pattern {pattern:?} has braces around something else than group and sequence")]
    Braces {
        /// As given.
        pattern: String,
    },
    /// The pattern is too long.
    #[error("the pattern has {bytes} bytes, and may have {PATTERN_BYTES_MAX}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The number of buckets is none that a cluster may have.
    #[error("{buckets} is no number of buckets")]
    Buckets {
        /// As given.
        buckets: u32,
    },
}

impl Placement {
    /// Where a key falls on the ring. A key that does not fit a pattern falls where its hash says; none is ever stored.
    pub fn token(&self, key: &[u8]) -> Token {
        match self {
            Placement::Hash => Token::of(key),
            Placement::Windows(windows) => windows.token(key),
        }
    }

    /// Whether keys lie by their hash.
    pub fn is_hash(&self) -> bool {
        *self == Placement::Hash
    }

    /// Its windows, if it has any.
    pub fn windows(&self) -> Option<&Windows> {
        match self {
            Placement::Hash => None,
            Placement::Windows(windows) => Some(windows),
        }
    }

    /// Checks that it can be, in a cluster with this many buckets.
    ///
    /// # Errors
    /// What it has that cannot be.
    pub fn check(&self, buckets: u32) -> Result<(), PlacementError> {
        let Placement::Windows(windows) = self else { return Ok(()) };
        if windows.theta == 0 || windows.theta > THETA_MAX {
            return Err(PlacementError::Theta { theta: windows.theta });
        }
        let is_count = windows.buckets.is_power_of_two() && windows.buckets as usize <= PARTITIONS_MAX;
        match is_count && windows.buckets == buckets {
            true => Ok(()),
            false => Err(PlacementError::Buckets { buckets: windows.buckets }),
        }
    }
}

impl Windows {
    /// Takes a key apart; `None` if it does not fit the pattern.
    pub fn parts<'k>(&self, key: &'k [u8]) -> Option<FeedKey<'k>> {
        self.key.parts(key)
    }

    /// The window of a sequence number.
    pub fn window(&self, sequence: u64) -> u64 {
        sequence / self.theta.max(1)
    }

    /// The bucket in which a window of a group lies.
    pub fn bucket(&self, group: &[u8], window: u64) -> u32 {
        let stride = ((u128::from(self.buckets) * GOLDEN) >> 64) as u64 | 1;
        let place = Token::of(group).0.wrapping_add(window.wrapping_mul(stride));
        // The buckets are a power of two, so a sum that overflows lies in the right one.
        (place % u64::from(self.buckets.max(1))) as u32
    }

    fn token(&self, key: &[u8]) -> Token {
        let hash = Token::of(key);
        let Some(FeedKey { group, sequence }) = self.parts(key) else { return hash };
        match self.buckets.trailing_zeros() {
            0 => hash,
            bits => {
                let bucket = u64::from(self.bucket(group, self.window(sequence)));
                Token(bucket << (64 - bits) | hash.0 >> bits)
            }
        }
    }
}

impl KeyPattern {
    /// Reads a pattern such as `feed:{group}:{sequence}`.
    ///
    /// # Errors
    /// What makes it unusable.
    pub fn new(pattern: &str) -> Result<Self, PlacementError> {
        let owned = || pattern.to_owned();
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(PlacementError::TooLong { bytes: pattern.len() });
        }
        let Some((before, after)) =
            pattern.split_once(SEQUENCE).filter(|(_, after)| !after.contains(SEQUENCE))
        else {
            return Err(PlacementError::Sequence { pattern: owned() });
        };
        let text = |text: &str| match text.contains(['{', '}']) {
            true if text.contains(GROUP) => Err(PlacementError::Group { pattern: owned() }),
            true => Err(PlacementError::Braces { pattern: owned() }),
            false => Ok(text.to_owned()),
        };
        let between = |between: &str| match between.bytes().all(|byte| byte.is_ascii_digit()) {
            true => Err(PlacementError::Between { pattern: owned() }),
            false => text(between),
        };
        let (before, parts, after) = match (before.split_once(GROUP), after.split_once(GROUP)) {
            (Some(_), Some(_)) => return Err(PlacementError::Group { pattern: owned() }),
            (None, None) => (before, Parts::Sequence, after),
            (Some((before, between_both)), None) => {
                (before, Parts::GroupFirst(between(between_both)?), after)
            }
            (None, Some((between_both, after))) => {
                (before, Parts::SequenceFirst(between(between_both)?), after)
            }
        };
        Ok(KeyPattern { before: text(before)?, parts, after: text(after)? })
    }

    /// Whether keys name a group.
    pub fn has_group(&self) -> bool {
        self.parts != Parts::Sequence
    }

    /// The key of an entry. A pattern without a group passes over it.
    pub fn key(&self, group: &[u8], sequence: u64) -> Vec<u8> {
        let sequence = sequence.to_string();
        let sequence = sequence.as_bytes();
        let inner: [&[u8]; 3] = match &self.parts {
            Parts::Sequence => [b"", sequence, b""],
            Parts::GroupFirst(between) => [group, between.as_bytes(), sequence],
            Parts::SequenceFirst(between) => [sequence, between.as_bytes(), group],
        };
        [self.before.as_bytes(), inner[0], inner[1], inner[2], self.after.as_bytes()].concat()
    }

    /// Takes a key apart; `None` if it does not fit. A sequence is decimal, of 64 bits, without a sign or leading zeros, so
    /// an entry has one key; a group has a byte at least.
    pub fn parts<'k>(&self, key: &'k [u8]) -> Option<FeedKey<'k>> {
        let inner = key.strip_prefix(self.before.as_bytes())?.strip_suffix(self.after.as_bytes())?;
        let (group, digits) = match &self.parts {
            Parts::Sequence => (&b""[..], inner),
            // A text that is no number cannot lie within the digits: after its last place the sequence begins.
            Parts::GroupFirst(between) => {
                let at = inner.windows(between.len()).rposition(|text| text == between.as_bytes())?;
                (&inner[..at], &inner[at + between.len()..])
            }
            Parts::SequenceFirst(between) => {
                let at = inner.windows(between.len()).position(|text| text == between.as_bytes())?;
                (&inner[at + between.len()..], &inner[..at])
            }
        };
        if self.has_group() && group.is_empty() {
            return None;
        }
        Some(FeedKey { group, sequence: number(digits)? })
    }
}

/// A decimal number as it is written in one way only.
fn number(digits: &[u8]) -> Option<u64> {
    let is_plain =
        digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || digits.first() != Some(&b'0'));
    std::str::from_utf8(digits).ok().filter(|_| is_plain)?.parse().ok()
}

impl fmt::Display for KeyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyPattern { before, parts, after } = self;
        match parts {
            Parts::Sequence => write!(f, "{before}{SEQUENCE}{after}"),
            Parts::GroupFirst(between) => write!(f, "{before}{GROUP}{between}{SEQUENCE}{after}"),
            Parts::SequenceFirst(between) => write!(f, "{before}{SEQUENCE}{between}{GROUP}{after}"),
        }
    }
}

impl TryFrom<String> for KeyPattern {
    type Error = PlacementError;
    fn try_from(pattern: String) -> Result<Self, PlacementError> {
        KeyPattern::new(&pattern)
    }
}

impl From<KeyPattern> for String {
    fn from(pattern: KeyPattern) -> String {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(theta: u64, pattern: &str, buckets: u32) -> Windows {
        Windows { theta, key: KeyPattern::new(pattern).unwrap(), buckets, unknown: Unknown::new() }
    }

    #[test]
    fn tokens_are_pinned_because_clients_and_disks_depend_on_them() {
        let feeds = Placement::Windows(windows(64, "feed:{group}:{sequence}", 4_096));
        let tokens = ["feed:anna:0", "feed:anna:63", "feed:anna:64", "feed:b:18446744073709551615"]
            .map(|key| format!("{:016x}", feeds.token(key.as_bytes()).0));
        let pinned = ["439a779138f9aa9e", "43958f0e343885cb", "e1c4cfddd696f3f3", "a5c2d1e4e5dc8689"];
        assert_eq!(tokens, pinned);
        assert_eq!(feeds.token(b"other"), Token::of(b"other"));
        assert_eq!(Placement::Hash.token(b"feed:anna:0"), Token::of(b"feed:anna:0"));
    }

    #[test]
    fn a_window_lies_in_one_bucket_and_a_group_visits_each_bucket_once() {
        for buckets in [1, 2, 16, 4_096] {
            let windows = windows(64, "{group}/{sequence}", buckets);
            let bucket = |sequence: u64| {
                let token = windows.token(&windows.key.key(b"anna", sequence));
                token.0.checked_shr(64 - buckets.trailing_zeros()).unwrap_or(0)
            };
            assert_eq!(bucket(0), bucket(63));
            let visited = (0..u64::from(buckets)).map(|window| bucket(window * 64));
            assert_eq!(visited.collect::<std::collections::BTreeSet<_>>().len(), buckets as usize);
        }
    }

    #[test]
    fn keys_are_taken_apart_as_they_were_put_together() {
        for pattern in
            ["feed:{group}:{sequence}", "{sequence}@{group}", "x1{group}1:1{sequence}.z", "news-{sequence}"]
        {
            let pattern = KeyPattern::new(pattern).unwrap();
            for group in [&b"anna"[..], b"a:1:2", b"1", b"\xff\x00:", b"1:1", b"@9"] {
                for sequence in [0, 7, 10, 1_000_000_000_000, u64::MAX] {
                    let key = pattern.key(group, sequence);
                    let group = if pattern.has_group() { group } else { b"" };
                    let parts = pattern.parts(&key).unwrap();
                    assert_eq!(parts, FeedKey { group, sequence }, "{pattern} {key:?}");
                }
            }
        }
    }

    #[test]
    fn keys_that_do_not_fit_are_none() {
        let pattern = KeyPattern::new("feed:{group}:{sequence}").unwrap();
        for key in [
            "feed:anna:007",
            "feed:anna:",
            "feed::7",
            "feed:anna:+7",
            "feed:7",
            "food:anna:7",
            "feed:anna:7 ",
            "feed:anna:18446744073709551616",
            "",
        ] {
            assert_eq!(pattern.parts(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn patterns_that_cannot_be_are_refused() {
        let refused = |pattern: &str| KeyPattern::new(pattern).unwrap_err();
        let is = |pattern: &str| pattern.to_owned();
        for pattern in ["feed:{group}", "{sequence}-{sequence}", ""] {
            assert_eq!(refused(pattern), PlacementError::Sequence { pattern: is(pattern) });
        }
        for pattern in ["{group}:{group}:{sequence}", "{group}:{sequence}:{group}"] {
            assert_eq!(refused(pattern), PlacementError::Group { pattern: is(pattern) });
        }
        for pattern in ["{group}{sequence}", "{group}12{sequence}", "{sequence}{group}"] {
            assert_eq!(refused(pattern), PlacementError::Between { pattern: is(pattern) });
        }
        assert_eq!(refused("{user}:{sequence}"), PlacementError::Braces { pattern: is("{user}:{sequence}") });
        assert_eq!(refused(&"x".repeat(300)), PlacementError::TooLong { bytes: 300 });
        let zero = Placement::Windows(windows(0, "{sequence}", 16));
        assert_eq!(zero.check(16), Err(PlacementError::Theta { theta: 0 }));
        let other = Placement::Windows(windows(64, "{sequence}", 16));
        assert_eq!(other.check(32), Err(PlacementError::Buckets { buckets: 16 }));
    }
}
