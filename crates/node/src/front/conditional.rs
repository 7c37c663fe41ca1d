//! Writes with a condition, and reads that a condition is judged by.
//!
//! R replicas say what the key holds, as for a strict get; the condition is judged by that. Then one replica stamps the
//! write, unless it holds something that those answers do not cover: then all of it begins again.
//!
//! **Architecture Invariant:** no condition is judged by fewer replicas than a get asks, and none by a fallback. A
//! fallback does not know the key, so *absent* is all that it could say.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use futures_util::{StreamExt, stream};
use model::{Generation, Moment, Resolver, Store, VersionSet, WallMillis};
use wire::error::{ErrorCode, Outcome};
use wire::messages::{Condition, Failure, RequestOptions, Written};

use super::multi::{MultiWritten, check_count};
use super::{Front, StampEntry};
use crate::stores::{WriteOrder, check_condition};

/// Attempts of a request that reads, judges and writes, when another writer keeps coming in between.
pub const ATTEMPTS_MAX: usize = 16;
/// First pause before such a request tries again; doubles up to the longest.
const AGAIN_PAUSE_MIN: Duration = Duration::from_millis(1);
const AGAIN_PAUSE_MAX: Duration = Duration::from_millis(50);
/// Conditions of one request that are judged at the same time.
const JUDGED_TOGETHER: usize = 64;
/// A read on which only a count depends may take this many times as long as a late node is waited for.
const GLANCE_PATIENCE: u32 = 20;

impl Front {
    /// How attempt `attempt` of a request that reads, judges and writes reads, after a pause if it is not the first: from R
    /// replicas. The replica that judged the attempt before may have refused it because it lacks what the others have, and
    /// reads avoid just such a one: asked as well, it is brought what it lacks.
    pub async fn judging(&self, attempt: usize) -> RequestOptions {
        if attempt > 0 {
            let doublings = u32::try_from(attempt - 1).unwrap_or(u32::MAX).min(16);
            self.pause((AGAIN_PAUSE_MIN * (1 << doublings)).min(AGAIN_PAUSE_MAX)).await;
        }
        let preferred = (attempt > 0).then_some(u8::MAX);
        RequestOptions { preferred, sloppy: Some(false), ..RequestOptions::default() }
    }

    /// How something reads that goes on without an answer, too: not for long.
    pub fn glancing(&self) -> RequestOptions {
        let options = RequestOptions::default();
        let patience = self.coordinator.hedge_after().saturating_mul(GLANCE_PATIENCE);
        let patience = patience.min(self.coordinator.span(&options) / 2);
        RequestOptions {
            deadline_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX).max(1),
            ..options
        }
    }

    /// Writes a key if its condition holds for what R replicas hold, or was judged by the node that passed it on, under a
    /// document of the generation that `formed` is, or a later one.
    ///
    /// # Errors
    /// `ConditionFailed` or `Obsolete` when it does not hold; `InsufficientReplicas` when too few replicas say so.
    pub async fn write_if(
        &self,
        store: &str,
        key: Bytes,
        order: WriteOrder,
        options: &RequestOptions,
        (entry, formed): (StampEntry, Generation),
    ) -> Result<Written, Failure> {
        match is_judged(&order, entry) {
            true if order.condition == Condition::None => self.write(store, key, order, options, entry).await,
            // Another node may be the one that judges by now.
            true => self.write_judged(store, (key, order), options, (entry, Some(formed))).await,
            false => self.judge_and_write(store, key, order, options, self.clock().now()).await,
        }
    }

    /// Writes many keys, each to its quorum and if its condition holds. A key that is named twice is written twice, in any
    /// order.
    ///
    /// # Errors
    /// As a whole only `UnknownStore` and `TooManyKeys`, and only where nothing was written.
    pub async fn multi_write_if(
        &self,
        store: &str,
        entries: Vec<(Bytes, WriteOrder)>,
        options: &RequestOptions,
        entry: StampEntry,
    ) -> Result<MultiWritten, Failure> {
        if entries.iter().all(|(_, order)| is_judged(order, entry)) {
            return self.multi_write(store, entries, options, entry).await;
        }
        check_count(entries.len())?;
        let began = self.clock().now();
        let (plain, judged): (Vec<_>, Vec<_>) =
            entries.into_iter().enumerate().partition(|(_, (_, order))| is_judged(order, entry));
        let (positions, plain): (Vec<usize>, Vec<_>) = plain.into_iter().unzip();
        let judged = judged.into_iter().map(|(position, (key, order))| async move {
            (position, self.judge_and_write(store, key, order, options, began).await)
        });
        let judged = stream::iter(judged).buffer_unordered(JUDGED_TOGETHER).collect::<Vec<_>>();
        let (written, judged) = join(self.multi_write(store, plain, options, entry), Box::pin(judged)).await;
        in_order(&positions, written, judged)
    }

    /// Reads, judges and writes one key, of a request that began at `began`.
    async fn judge_and_write(
        &self,
        store: &str,
        key: Bytes,
        order: WriteOrder,
        options: &RequestOptions,
        began: Moment,
    ) -> Result<Written, Failure> {
        for attempt in 0..ATTEMPTS_MAX {
            let (view, local) = self.current(store)?;
            let under = view.cluster().generation;
            drop(view);
            let judging = self.judging(attempt).await;
            let left = self.left(options, began)?;
            // The other half is left for the write, and for the answer to arrive in time.
            let judging = RequestOptions { deadline_ms: left.deadline_ms.div_ceil(2), ..judging };
            let got = self.get(store, key.clone(), &judging).await?;
            let judged = judged(local.definition(), &got.set, order.clone(), self.now())?;
            let left = self.left(options, began)?;
            let entry = (StampEntry::Exclusive, Some(under));
            match self.write_judged(store, (key.clone(), judged), &left, entry).await {
                Err(failure) if lost_a_race(&failure) => {}
                answer => return answer,
            }
        }
        Err(contended())
    }

    /// The options with what is left of the request's time.
    fn left(&self, options: &RequestOptions, began: Moment) -> Result<RequestOptions, Failure> {
        if self.clock().now() < began.after(self.coordinator.span(options)) {
            return Ok(self.coordinator.what_is_left(options, began));
        }
        let detail = "the time of the request was over before its condition was judged: nothing was written";
        Err(Failure::new(ErrorCode::InsufficientReplicas, detail))
    }
}

/// The answers of a request in the order of its keys: of those without a condition, which are at `positions`, and of those
/// with one. A failure of the former as a whole is that of each where one of the latter may have been written.
fn in_order(
    positions: &[usize],
    written: Result<MultiWritten, Failure>,
    mut judged: Vec<(usize, Result<Written, Failure>)>,
) -> Result<MultiWritten, Failure> {
    let is_certain = |failure: &Failure| failure.code.outcome() != Outcome::Indeterminate;
    let written = match written {
        Err(failure) if judged.iter().all(|(_, answer)| answer.as_ref().is_err_and(is_certain)) => {
            return Err(failure);
        }
        Err(failure) => positions.iter().map(|_| Err(failure.clone())).collect(),
        Ok(written) => written,
    };
    judged.extend(positions.iter().copied().zip(written));
    judged.sort_by_key(|(position, _)| *position);
    Ok(judged.into_iter().map(|(_, answer)| answer).collect())
}

/// Whether nothing is left to judge: there is no condition, or the node that passed the write on has judged it.
fn is_judged(order: &WriteOrder, entry: StampEntry) -> bool {
    order.condition == Condition::None || entry != StampEntry::Client
}

/// The order as a replica stamps it whose condition holds for what R replicas hold: as long as there is nothing that they
/// did not know of.
fn judged(
    definition: &Store,
    set: &VersionSet,
    order: WriteOrder,
    now: WallMillis,
) -> Result<WriteOrder, Failure> {
    check_condition(definition, set, &order, now)?;
    Ok(match (order.condition, &order.context) {
        (Condition::IfCurrent | Condition::Touch, Some(_)) => order,
        // What the writer has not seen stays beside it. The stamper judges once more: what it lacks it is brought.
        (Condition::IfPresent, Some(_)) if definition.resolver == Resolver::Siblings => order,
        (condition, own) => {
            let mut context = set.context();
            own.iter().for_each(|own| context.join(own));
            let condition = if condition == Condition::Touch { condition } else { Condition::IfCurrent };
            WriteOrder { context: Some(context), condition, ..order }
        }
    })
}

/// Whether reading again and trying again is right: another writer came in between, and nothing was written here.
pub fn lost_a_race(failure: &Failure) -> bool {
    matches!(failure.code, ErrorCode::Obsolete | ErrorCode::ConditionFailed)
}

/// The answer when another writer came in between each time.
pub fn contended() -> Failure {
    let detail = format!("other clients changed the key during each of {ATTEMPTS_MAX} attempts; try again");
    Failure::new(ErrorCode::Obsolete, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_of_conditional_writes_are_told_even_if_all_others_failed() {
        let failed = |code| Failure::new(code, "");
        let gone = || Err(failed(ErrorCode::UnknownStore));
        let refused = vec![(1, Err(failed(ErrorCode::ConditionFailed)))];
        assert_eq!(in_order(&[0, 2], gone(), refused), gone(), "nothing was written");
        for code in [ErrorCode::ConditionFailed, ErrorCode::Indeterminate] {
            let unknown = || Err(failed(ErrorCode::Indeterminate));
            let judged = vec![(3, Err(failed(code))), (1, unknown())];
            let answers = in_order(&[0, 2], gone(), judged).unwrap();
            let of_gone = Err(failed(ErrorCode::UnknownStore));
            assert_eq!(answers, [of_gone.clone(), unknown(), of_gone, Err(failed(code))]);
        }
    }
}
