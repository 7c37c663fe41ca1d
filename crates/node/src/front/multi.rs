//! Many keys of a thin client at once: one message per node, not per key.

use std::sync::Arc;

use bytes::Bytes;
use client::coordinator::MultiGot;
use model::VersionSet;
use model::limits::{FRAME_BYTES_MAX, MULTI_KEYS_MAX};
use runtime::disk::waiting::without_waiting;
use storage::Commit;
use wire::error::ErrorCode;
use wire::messages::{Failure, Got, RequestOptions, Written};

use super::{Front, StampEntry, into_future};
use crate::stores::{LocalStore, Stamped, WriteOrder};
use crate::view::View;

/// Most bytes that one multi-get answers: what fits a frame together with the reasons of keys that failed.
pub const MULTI_ANSWER_BYTES_MAX: usize = FRAME_BYTES_MAX - 4 * 1024 * 1024;

/// Each key's answer, in the order of the keys.
pub(super) type MultiWritten = Vec<Result<Written, Failure>>;

impl Front {
    /// Reads many keys, each from its quorum: the answers of [`Self::multi_get_each`], in the order of the keys.
    ///
    /// # Errors
    /// As a whole only `UnknownStore` and `TooManyKeys`.
    pub async fn multi_get(
        &self,
        store: &str,
        keys: Vec<Bytes>,
        options: &RequestOptions,
    ) -> Result<MultiGot, Failure> {
        let mut answers: Vec<Option<_>> = keys.iter().map(|_| None).collect();
        let deliver = &mut |position: usize, answer| answers[position] = Some(answer);
        self.multi_get_each(store, keys, options, deliver).await?;
        Ok(answers.into_iter().map(|answer| answer.expect("every key is delivered")).collect())
    }

    /// Reads many keys, each from its quorum, and hands each answer to `deliver` as soon as it is known, with the key's
    /// position; every key is delivered once. Keys whose answers come after the first [`MULTI_ANSWER_BYTES_MAX`] bytes
    /// are refused as `FrameTooLong`.
    ///
    /// # Errors
    /// As a whole only `UnknownStore` and `TooManyKeys`; nothing is delivered then.
    pub async fn multi_get_each(
        &self,
        store: &str,
        keys: Vec<Bytes>,
        options: &RequestOptions,
        deliver: &mut (dyn FnMut(usize, Result<Got, Failure>) + Send),
    ) -> Result<(), Failure> {
        check_count(keys.len())?;
        let (scope, local) = match self.newest_artifact_scope(store) {
            Some(scope) => (scope, None),
            None => {
                let (view, local) = self.current(store)?;
                (self.scope(&view, &local), Some(local))
            }
        };
        self.coordinated.add_gets(keys.len());
        if let Some(local) = &local {
            local.demand().add_read(keys.len());
        }
        let options = &self.shortly_before(options);
        let mut bytes_left = MULTI_ANSWER_BYTES_MAX;
        let deliver = &mut |position, answer: Result<Got, Failure>| {
            if let Some(local) = &local {
                local.gets().count(&answer);
            }
            let bytes = answer.as_ref().map_or(0, |got| {
                if let Some(local) = &local {
                    local.see(got.set.timestamp_max());
                }
                wire::versions::record_bytes(None, &got.set)
            });
            let fits = bytes_left.checked_sub(bytes);
            bytes_left = fits.unwrap_or(0);
            deliver(position, if fits.is_some() { answer } else { Err(answer_too_long()) });
        };
        self.coordinator.multi_get_each(&scope, keys, options, MULTI_ANSWER_BYTES_MAX, deliver).await;
        Ok(())
    }

    /// Writes many keys, each to its quorum. A key that is named twice is written twice, in any order.
    ///
    /// # Errors
    /// As a whole only `UnknownStore` and `TooManyKeys`.
    pub async fn multi_write(
        &self,
        store: &str,
        entries: Vec<(Bytes, WriteOrder)>,
        options: &RequestOptions,
        entry: StampEntry,
    ) -> Result<MultiWritten, Failure> {
        check_count(entries.len())?;
        if entry != StampEntry::Passed {
            self.coordinated.add_puts(entries.len());
        }
        let answers = self.stamp(store, &entries, options, (entry, None)).await?;
        Ok(answers.into_iter().map(|answer| answer.map_err(|unwritten| self.failure(unwritten))).collect())
    }

    /// Stamps these here, as a replica of each, and drives the others.
    pub(super) async fn write_many_here(
        &self,
        view: &Arc<View>,
        store: &Arc<LocalStore>,
        entries: &[(Bytes, WriteOrder)],
        positions: &[usize],
        options: &RequestOptions,
    ) -> MultiWritten {
        let scope = self.scope(view, store);
        let mut sets: Vec<(Bytes, VersionSet)> = Vec::with_capacity(positions.len());
        let mut newest = Commit::default();
        let began = self.clock().now();
        let (stamped, waited) = self.stamp_many(view, store, entries, positions, options).await;
        let left = waited.then(|| self.coordinator.what_is_left(options, began));
        let options = left.as_ref().unwrap_or(options);
        for (answer, &position) in stamped.iter().zip(positions) {
            if let Ok(Stamped { set, commit, .. }) = answer {
                let key = &entries[position].0;
                self.replica.work().stamped(view.partition(store, key).0.partition, key);
                store.demand().add_stamped();
                sets.push((key.clone(), set.clone()));
                newest = newest.max(*commit);
            }
        }
        let acked = if sets.is_empty() {
            Vec::new()
        } else {
            let durable = into_future(store.durable(newest));
            self.coordinator.multi_write(&scope, sets, durable, options).await
        };
        let mut acked = acked.into_iter();
        let settle = |stamped: Result<Stamped, Failure>| {
            let Stamped { dot, context, .. } = stamped?;
            let acked = acked.next().expect("one outcome for each stamped key")?;
            Ok(Written { dot, acks: acked.acks, sloppy: acked.sloppy, context })
        };
        stamped.into_iter().map(settle).collect()
    }

    /// Stamps these entries here, in order. From the first on that is not in memory they are stamped on a thread that may
    /// wait for the disk; the second says whether any was.
    async fn stamp_many(
        &self,
        view: &Arc<View>,
        store: &Arc<LocalStore>,
        entries: &[(Bytes, WriteOrder)],
        positions: &[usize],
        options: &RequestOptions,
    ) -> (Vec<Result<Stamped, Failure>>, bool) {
        let mut stamped = Vec::with_capacity(positions.len());
        for &position in positions {
            let (key, order) = &entries[position];
            let place = view.partition(store, key).0;
            let admitted = match self.replica.admit_as(view, store, [&key[..]]) {
                Ok(admitted) => admitted,
                Err(moved) => {
                    stamped.push(Err(moved));
                    continue;
                }
            };
            let tried = without_waiting(|| store.stamp(place, key, order.clone()));
            drop(admitted);
            if tried.refused && tried.answer.is_err() {
                break;
            }
            stamped.push(tried.answer);
        }
        let rest: Vec<_> =
            positions[stamped.len()..].iter().map(|&position| entries[position].clone()).collect();
        if rest.is_empty() {
            return (stamped, false);
        }
        let (at, store, count) = (view.clone(), store.clone(), rest.len());
        let replica = self.replica().clone();
        let work = move || {
            let stamp = |(key, order): (Bytes, WriteOrder)| {
                replica.read_key_ahead(&at, &store, &key, None);
                let _admitted = replica.admit_as(&at, &store, [&key[..]])?;
                store.stamp_after_reading(at.partition(&store, &key).0, &key, order)
            };
            rest.into_iter().map(stamp).collect::<Vec<_>>()
        };
        let waited = self.waiting(view, options, work).await;
        stamped.extend(waited.unwrap_or_else(|failure| vec![Err(failure); count]));
        (stamped, true)
    }
}

fn answer_too_long() -> Failure {
    Failure::new(
        ErrorCode::FrameTooLong,
        format!(
            "the values before this key fill the answer's limit of {MULTI_ANSWER_BYTES_MAX} bytes; ask for fewer keys"
        ),
    )
}

pub(super) fn check_count(count: usize) -> Result<(), Failure> {
    if count <= MULTI_KEYS_MAX {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::TooManyKeys,
        format!("{count} keys in one request exceed the limit of {MULTI_KEYS_MAX}"),
    ))
}
