//! What the door must know of a store, and what it shows of what was read there.

use bytes::Bytes;
use model::limits::VALUE_BYTES_MAX;
use model::{Context, Key, KeyError, Resolver, WallMillis};
use wire::error::ErrorCode;
use wire::messages::{Failure, Got};

use super::Door;
use super::answer::HttpAnswer;
use crate::front::AtHand;

/// A store, as its requests are judged.
#[derive(Clone, Copy)]
pub(super) struct StoreFacts {
    /// How many replicas a key has.
    pub(super) replicas: u8,
    /// Whether a get shows all values that exist side by side, or the newest.
    pub(super) shows_siblings: bool,
    /// Longest value in bytes.
    pub(super) value_bytes_max: usize,
}

/// What a get shows.
pub(super) struct Shown {
    /// None where the key is not there; several where they exist side by side.
    pub(super) values: Vec<Bytes>,
    /// What its reader has seen.
    pub(super) context: Context,
}

impl StoreFacts {
    /// Those of a store of the cluster, of either kind.
    ///
    /// # Errors
    /// When there is no such store.
    pub(super) fn of(door: &Door, store: &str) -> Result<StoreFacts, HttpAnswer> {
        match door.front.at_hand(store) {
            Some((_, AtHand::Versions(local))) => {
                let definition = local.definition();
                Ok(StoreFacts {
                    replicas: definition.consistency.replicas,
                    shows_siblings: definition.resolver == Resolver::Siblings,
                    value_bytes_max: definition.value_bytes_max,
                })
            }
            Some((_, AtHand::Artifacts(read_only))) => Ok(StoreFacts {
                replicas: read_only.listed().replicas,
                shows_siblings: false,
                value_bytes_max: VALUE_BYTES_MAX,
            }),
            None => {
                let failure = Failure::new(ErrorCode::UnknownStore, format!("there is no store {store:?}"));
                Err(HttpAnswer::failure(&failure))
            }
        }
    }

    /// What was read, as it is shown.
    ///
    /// # Errors
    /// When nothing is shown, and fallbacks stood in for replicas: that is no *absent*.
    pub(super) fn shown(&self, got: &Got, now: WallMillis) -> Result<Shown, Failure> {
        let set = &got.set;
        let values: Vec<Bytes> = match self.shows_siblings {
            true => set.live(now).filter_map(|version| version.live(now)).cloned().collect(),
            false => set.winner().and_then(|winner| winner.live(now)).into_iter().cloned().collect(),
        };
        if values.is_empty() && got.sloppy {
            let detail = "too few replicas can answer, and what was found is no value any more";
            return Err(Failure::new(ErrorCode::InsufficientReplicas, detail));
        }
        Ok(Shown { values, context: set.context() })
    }
}

/// Whether these bytes can be a key.
///
/// # Errors
/// `key-empty` or `key-too-long`.
pub(super) fn check_key(key: &[u8]) -> Result<(), Failure> {
    Key::check(key).map_err(|error| {
        let code = match error {
            KeyError::Empty => ErrorCode::KeyEmpty,
            KeyError::TooLong { .. } => ErrorCode::KeyTooLong,
        };
        Failure::new(code, error.to_string())
    })
}
