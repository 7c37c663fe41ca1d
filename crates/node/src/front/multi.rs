//! Many keys of a thin client at once: one message per node, not per key.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use client::coordinator::{MultiGot, parcels};
use client::peers::{Call, CallError};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use model::limits::{FRAME_BYTES_MAX, MULTI_KEYS_MAX};
use model::{NodeId, PreferenceList, Value, VersionSet};
use runtime::disk::waiting::without_waiting;
use storage::Commit;
use wire::error::ErrorCode;
use wire::messages::{
    DeleteEntry, Failure, MultiDelete, MultiPut, PutEntry, Request, RequestOptions, Response, Written,
};

use super::{Entry, Front, into_future};
use crate::stores::{LocalStore, Stamped, WriteOrder};
use crate::view::View;

/// Most bytes that one multi-get answers: what fits a frame together with the reasons of keys that failed.
pub const MULTI_ANSWER_BYTES_MAX: usize = FRAME_BYTES_MAX - 4 * 1024 * 1024;

/// Keys that go their way one by one at the same time: enough to hide the way, too few to flood a node.
const TOGETHER: usize = 256;

/// Each key's answer, in the order of the keys.
pub(super) type MultiWritten = Vec<Result<Written, Failure>>;

impl Front {
    /// Reads many keys, each from its quorum. Keys whose answers come after the first
    /// [`MULTI_ANSWER_BYTES_MAX`] bytes are refused as `FrameTooLong`.
    ///
    /// # Errors
    /// As a whole only `UnknownStore` and `TooManyKeys`.
    pub async fn multi_get(
        &self,
        store: &str,
        keys: Vec<Bytes>,
        options: &RequestOptions,
    ) -> Result<MultiGot, Failure> {
        check_count(keys.len())?;
        let (view, local) = self.current(store)?;
        let mut answers = self
            .coordinator
            .multi_get(&self.scope(&view, &local), keys, options, MULTI_ANSWER_BYTES_MAX)
            .await;
        let mut bytes_left = MULTI_ANSWER_BYTES_MAX;
        for answer in &mut answers {
            let Ok(got) = answer else { continue };
            match bytes_left.checked_sub(wire::versions::record_bytes(None, &got.set)) {
                Some(left) => bytes_left = left,
                None => {
                    bytes_left = 0;
                    *answer = Err(answer_too_long());
                }
            }
        }
        Ok(answers)
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
        entry: Entry,
    ) -> Result<MultiWritten, Failure> {
        check_count(entries.len())?;
        let (view, local) = self.current(store)?;
        let mut here = Vec::new();
        // By node, and puts apart from deletes, which are messages of another kind.
        let mut elsewhere: BTreeMap<(NodeId, bool), Vec<usize>> = BTreeMap::new();
        let mut answers: Vec<Option<Result<Written, Failure>>> = entries.iter().map(|_| None).collect();
        let routes: Vec<_> = entries.iter().map(|(key, _)| view.route(&local, key)).collect();
        let left;
        let mut options = options;
        if !routes.iter().all(|route| self.reaches(&local, route, options)) {
            let began = self.clock().now();
            let asked = routes.iter().map(|route| &route.preference);
            for position in self.coordinator.out_of_reach(self.scope(&view, &local), asked, options).await {
                answers[position] = Some(Err(self.isolated(&local, &routes[position], options)));
            }
            left = self.coordinator.what_is_left(options, began);
            options = &left;
        }
        for (position, route) in routes.into_iter().enumerate() {
            if answers[position].is_some() {
                continue;
            }
            match self.stamper(&route.preference, entry) {
                Some(node) if node == self.replica.node() => here.push(position),
                Some(node) => {
                    let deletes = entries[position].1.value == Value::Tombstone;
                    elsewhere.entry((node, deletes)).or_default().push(position);
                }
                None => answers[position] = Some(Err(self.not_here(&view))),
            }
        }
        let elsewhere: Vec<(NodeId, Vec<usize>)> = elsewhere
            .into_iter()
            .flat_map(|((node, _), positions)| {
                let messages = parcels(positions, |&position| order_bytes(&entries[position]));
                messages.into_iter().map(move |positions| (node, positions))
            })
            .collect();
        let passed = elsewhere
            .iter()
            .map(|(node, positions)| self.pass_on_many(*node, &view, &local, &entries, positions, options));
        let (written, passed) = futures_util::future::join(
            self.write_many_here(&view, &local, &entries, &here, options),
            join_all(passed),
        )
        .await;
        for (position, answer) in here.into_iter().zip(written) {
            // As with a single key: what this node refuses may be stamped by another replica.
            answers[position] = if entry == Entry::Passed { Some(answer) } else { unless_open(answer) };
        }
        for ((_, positions), results) in elsewhere.into_iter().zip(passed) {
            for (position, result) in positions.into_iter().zip(results) {
                answers[position] = result;
            }
        }
        self.write_the_rest(store, entries, answers, options, entry).await
    }

    /// The replica that shall stamp a key's write, if this entry may choose one; the same rule as for a single key.
    fn stamper(&self, preference: &PreferenceList, entry: Entry) -> Option<NodeId> {
        let (own, replicas) = (self.replica.node(), preference.replicas());
        if replicas.contains(&own) && entry != Entry::Exclusive {
            return Some(own);
        }
        let up = replicas.iter().find(|&&node| !self.is_suspected(node));
        (entry != Entry::Passed).then(|| *up.unwrap_or(&replicas[0]))
    }

    /// Keys whose first node certainly did nothing go their way one by one, because each may need another node; a part
    /// of them at a time.
    async fn write_the_rest(
        &self,
        store: &str,
        entries: Vec<(Bytes, WriteOrder)>,
        answers: Vec<Option<Result<Written, Failure>>>,
        options: &RequestOptions,
        entry: Entry,
    ) -> Result<MultiWritten, Failure> {
        let rest = answers.into_iter().zip(entries).map(|(answer, (key, order))| async move {
            match answer {
                Some(answer) => answer,
                None => self.write(store, key, order, options, entry).await,
            }
        });
        Ok(stream::iter(rest).buffered(TOGETHER).collect().await)
    }

    async fn write_many_here(
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
                sets.push((entries[position].0.clone(), set.clone()));
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
            let place = view.route(store, key).place;
            let tried = without_waiting(|| store.stamp(place, key, order.clone()));
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
        let (routes, store, count) = (view.clone(), store.clone(), rest.len());
        let work = move || {
            let stamp = |(key, order): (Bytes, WriteOrder)| {
                store.stamp_after_reading(routes.route(&store, &key).place, &key, order)
            };
            rest.into_iter().map(stamp).collect::<Vec<_>>()
        };
        let waited = self.waiting(view, options, work).await;
        stamped.extend(waited.unwrap_or_else(|failure| vec![Err(failure); count]));
        (stamped, true)
    }

    /// `None` for a key that certainly was not written there and may be tried elsewhere.
    async fn pass_on_many(
        &self,
        node: NodeId,
        view: &View,
        store: &LocalStore,
        entries: &[(Bytes, WriteOrder)],
        positions: &[usize],
        options: &RequestOptions,
    ) -> Vec<Option<Result<Written, Failure>>> {
        let request = self.request_for(view, store, entries, positions, options);
        let answer = match self.peers.call(node, request) {
            Call::Ready(answer) => answer,
            Call::Pending(future) => self.coordinator.within_deadline(future, options).await,
        };
        let unknown = || Some(Err(super::unknown(view, node)));
        match answer {
            Ok(Response::MultiWritten(written)) if written.results.len() == positions.len() => {
                written.results.into_iter().map(unless_open).collect()
            }
            Ok(_) | Err(CallError::Broken) => positions.iter().map(|_| unknown()).collect(),
            Err(CallError::Refused(failure)) if !super::may_go_on(&failure) => {
                positions.iter().map(|_| Some(Err(failure.clone()))).collect()
            }
            Err(_) => positions.iter().map(|_| None).collect(),
        }
    }

    /// The message that passes on these writes, which are all puts or all deletes.
    fn request_for(
        &self,
        view: &View,
        store: &LocalStore,
        entries: &[(Bytes, WriteOrder)],
        positions: &[usize],
        options: &RequestOptions,
    ) -> Request {
        let (store, generation) = (store.reference().clone(), view.cluster().generation);
        let (options, mut puts, mut deletes) = (options.clone(), Vec::new(), Vec::new());
        for &position in positions {
            let (key, WriteOrder { context, condition, expires, value }) = entries[position].clone();
            match value {
                Value::Present(value) => puts.push(PutEntry { key, context, expires, condition, value }),
                Value::Tombstone => deletes.push(DeleteEntry { key, context, condition }),
            }
        }
        assert!(puts.is_empty() || deletes.is_empty(), "puts and deletes go apart");
        match deletes.is_empty() {
            true => MultiPut { store, generation, options, entries: puts }.into(),
            false => MultiDelete { store, generation, options, entries: deletes }.into(),
        }
    }
}

/// `None` when the key certainly was not written there and may be tried elsewhere.
fn unless_open(answer: Result<Written, Failure>) -> Option<Result<Written, Failure>> {
    let is_open = matches!(&answer, Err(failure) if super::may_go_on(failure));
    (!is_open).then_some(answer)
}

/// Bytes that an order takes in a message, as good as exactly.
fn order_bytes((key, order): &(Bytes, WriteOrder)) -> usize {
    let context = order.context.as_ref().map_or(0, |context| context.vector.entries().len() * 24);
    key.len() + context + 32 + if let Value::Present(value) = &order.value { value.len() } else { 0 }
}

fn answer_too_long() -> Failure {
    Failure::new(
        ErrorCode::FrameTooLong,
        format!(
            "the keys before this one fill an answer of {MULTI_ANSWER_BYTES_MAX} bytes; ask for fewer keys"
        ),
    )
}

fn check_count(count: usize) -> Result<(), Failure> {
    if count <= MULTI_KEYS_MAX {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::TooManyKeys,
        format!("{count} keys in one request, the limit is {MULTI_KEYS_MAX}"),
    ))
}
