//! How repair stands, and what operators may order.

use std::sync::Arc;

use client::peers::CallError;
use model::{Moment, Partition};
use protocol::antientropy::Outcome;
use protocol::antientropy::merkle::Tree;
use serde_json::{Value as Json, json};
use wire::error::ErrorCode;
use wire::messages::{AntiEntropyControl, AntiEntropyDocument, AntiEntropyOrder, Failure, Request, Response};

use super::{AntiEntropy, Only, Running, ScrubOrder, Scrubbing, State, respond, standstill};
use crate::rebalance;
use crate::stores::LocalStore;

impl AntiEntropy {
    /// Answers what a peer or an operator asks of repair; other requests are not for it.
    pub(crate) async fn answer(self: Arc<Self>, request: Request) -> Result<Response, Failure> {
        match request {
            Request::AntiEntropyGet(_) => Ok(self.document(&Only::default())),
            Request::AntiEntropyControl(control) => {
                let only = self.carry_out(&control)?;
                if control.order != AntiEntropyOrder::Look {
                    self.remember_order().await?;
                }
                Ok(self.document(&only))
            }
            Request::MovesGet(_) => Ok(rebalance::told(&self).into()),
            other => self.respond_in_background(other).await,
        }
    }

    /// Comparing reads many records: it must not hold a worker.
    async fn respond_in_background(self: Arc<Self>, request: Request) -> Result<Response, Failure> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let (replica, incarnation, giving) = (self.replica.clone(), self.incarnation, self.giving.clone());
        self.ports.tasks.spawn_background(Box::pin(async move {
            let told = respond::respond(replica, incarnation, request).await;
            if let Ok(Response::RecordsPaged(page)) = &told {
                giving.await_turn(page).await;
            }
            // A peer that is gone is no longer interested.
            let _ = answer.send(told);
        }));
        answered.await.unwrap_or_else(|_| {
            let ended = CallError::Broken;
            Err(Failure::new(ErrorCode::ShuttingDown, ended.to_string()))
        })
    }

    fn document(&self, only: &Only) -> Response {
        let json = serde_json::to_vec(&self.status_of(only)).expect("a status is plain data").into();
        Response::AntiEntropyDocument(AntiEntropyDocument { json })
    }

    /// Does what was ordered, and says what it was about.
    fn carry_out(self: &Arc<Self>, control: &AntiEntropyControl) -> Result<Only, Failure> {
        let view = self.replica.view().get();
        let is_read_only = control.store.as_ref().is_some_and(|name| view.read_only(name).is_some());
        if is_read_only && (control.order != AntiEntropyOrder::Scrub || control.partition.is_some()) {
            let detail = "a read-only store has nothing to compare; only a scrub of all of it can be ordered";
            return Err(Failure::new(ErrorCode::ReadOnly, detail));
        }
        if let Some(name) = &control.store
            && view.store(name).is_none()
            && !is_read_only
        {
            return Err(Failure::new(ErrorCode::UnknownStore, format!("store {name:?} does not exist")));
        }
        let partitions = view.cluster().ring.partitions();
        if let Some(id) = control.partition
            && !partitions.iter().any(|partition| partition.id == id)
        {
            let detail = format!("there is no partition {id}; the cluster has {}", partitions.len());
            return Err(Failure::new(ErrorCode::Malformed, detail));
        }
        let only = Only { store: control.store.clone(), partition: control.partition };
        let mut state = self.state.lock();
        match control.order {
            AntiEntropyOrder::Start => {
                state.stopped.retain(|part| !part.meets(&only));
                let now = self.ports.clock.now();
                state.schedule.learn(view.cluster().nodes.iter().map(|node| node.id), now);
                match only.is_all() {
                    true => state.schedule.ask(),
                    false => state.schedule.ask_part(&only),
                }
            }
            AntiEntropyOrder::Stop => state.stop(&only)?,
            AntiEntropyOrder::Scrub => {
                if only.partition.is_none() {
                    self.scrub_orders.give(ScrubOrder { store: only.store.clone() });
                }
                let (antientropy, only) = (self.clone(), only.clone());
                if !is_read_only {
                    self.ports.tasks.spawn_background(Box::pin(async move {
                        antientropy.scrub_part(&only).await;
                    }));
                }
            }
            AntiEntropyOrder::Look => {}
        }
        drop(state);
        self.wake.notify_one();
        Ok(only)
    }

    /// Writes down whether comparing is stopped, so that a restart does not decide otherwise.
    async fn remember_order(&self) -> Result<(), Failure> {
        let _one_at_a_time = self.remembering.lock().await;
        let (stopped, parts) = {
            let state = self.state.lock();
            (state.schedule.is_stopped(), state.stopped.clone())
        };
        standstill::remember(&*self.disk, stopped, &parts).await.map_err(|error| {
            let now = if stopped { "stopped" } else { "started" };
            let detail = format!("replica repair is {now}, but a restart may forget it: {error}");
            Failure::new(ErrorCode::StorageFailed, detail)
        })
    }

    /// Whether an operator has stopped it.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().schedule.is_stopped()
    }

    /// How refilling stands; null when nothing was lost.
    pub(crate) fn refill_status(&self) -> Json {
        let view = self.replica.view().get();
        self.refill.lock().status(self.ports.clock.now(), &view, self.replica.node())
    }

    /// Partitions of stores that were lost here: those that are incomplete, and all.
    pub(crate) fn lost(&self) -> (usize, usize) {
        let view = self.replica.view().get();
        self.refill.lock().lost(&view, self.replica.node())
    }

    /// Partitions of stores that documents make this node bring in, and that are not whole yet.
    pub(crate) fn bringing_in(&self) -> usize {
        let view = self.replica.view().get();
        let refill = self.refill.lock();
        refill.progress().0.saturating_sub(refill.lost(&view, self.replica.node()).0)
    }

    /// How repair stands.
    pub fn status(&self) -> Json {
        self.status_of(&Only::default())
    }

    /// What an operator has stopped while the rest goes on, for people.
    pub(crate) fn stopped_parts(&self) -> Vec<String> {
        let partition = |part: &Only| part.partition.map(|id| format!("partition {id}"));
        let store = |part: &Only| part.store.as_ref().map(|store| format!("store {store}"));
        let stopped = self.state.lock().stopped.clone();
        stopped
            .iter()
            .map(|part| [partition(part), store(part)].into_iter().flatten().collect::<Vec<_>>().join(" of "))
            .collect()
    }

    /// The hash trees of each store, or of one partition of it.
    fn trees_of(&self, only: &Only) -> Vec<Json> {
        let view = self.replica.view().get();
        let stores = view.stores().iter().filter(|store| only.has_store(store.definition().name.as_str()));
        let tree = |store: &Arc<LocalStore>| {
            let (trees, doubtful, bytes) = match only.partition {
                None => store.trees().summary(),
                Some(id) => {
                    let look = |tree: &Tree| (usize::from(tree.sum().is_none()), tree.bytes());
                    let found = view.buckets_of(id).iter().filter_map(|of| store.trees().look(of.id, look));
                    found.fold((0, 0, 0), |sum, found| (sum.0 + 1, sum.1 + found.0, sum.2 + found.1))
                }
            };
            let mut json = json!({
                "store": store.definition().name,
                "trees": trees,
                "doubtful": doubtful,
                "tree_bytes": bytes,
                "repaired_records_total": store.trees().repaired(),
            });
            if let Some(id) = only.partition {
                json["partition"] = json!(id);
                let (own, buckets) = (self.replica.node(), view.buckets_of(id));
                let records = |of: &Partition| store.trees().look(of.id, Tree::records).flatten();
                json["records"] = json!(buckets.iter().map(records).sum::<Option<u64>>());
                json["incomplete"] = json!(buckets.iter().any(|of| store.trees().is_incomplete(of.id)));
                let compared = buckets.first().filter(|of| view.writes(own, store, of));
                json["compared_with"] = json!(compared.map(|of| view.replicas_of(of.id, store, own)));
            }
            json
        };
        stores.map(tree).collect()
    }

    fn status_of(&self, only: &Only) -> Json {
        let now = self.ports.clock.now();
        let (trees, stopped_parts) = (self.trees_of(only), self.stopped_parts());
        let state = self.state.lock();
        let running = state.running.as_ref().map(|running| {
            json!({
                "peer": running.peer,
                "store": running.store,
                "seconds": now.since(running.since).as_secs_f64(),
                "partitions": running.partitions,
                "partitions_done": running.partitions_done(),
                "keys_left": running.left.keys,
                "progress": outcome(&running.progress),
            })
        });
        let scrubbing = state.scrubbing.as_ref().map(|running| scrub(running, now));
        let scrubbed = state.scrubbed.as_ref().map(|(ended, last)| {
            let mut json = scrub(last, *ended);
            json["seconds_ago"] = json!(now.since(*ended).as_secs_f64());
            json
        });
        let peers: Vec<Json> = state
            .ended
            .iter()
            .map(|(peer, ended)| {
                json!({
                    "peer": peer,
                    "seconds_ago": now.since(ended.at).as_secs_f64(),
                    "took_ms": ended.took.as_secs_f64() * 1e3,
                    "outcome": outcome(&ended.outcome),
                })
            })
            .collect();
        json!({
            "node": self.replica.node(),
            "stopped": state.schedule.is_stopped(),
            "stopped_parts": stopped_parts,
            "period_s": self.options.period.as_secs(),
            "asked": state.schedule.asked(),
            "running": running,
            "peers": peers,
            "trees": trees,
            "scrub": {
                "passes": state.scrub.passes,
                "partitions": state.scrub.partitions,
                "partitions_done": state.scrub.done,
                "running": scrubbing,
                "last_asked": scrubbed,
                "corrupt_records_total": self.numbers.corrupt_records.get(),
                "wrong_leaves_total": self.numbers.wrong_leaves.get(),
            },
            "refill": self.refill_status(),
        })
    }
}

impl State {
    /// Stops comparing all, or a part of it.
    fn stop(&mut self, only: &Only) -> Result<(), Failure> {
        if only.is_all() {
            self.schedule.stop();
            self.abort = true;
            return Ok(());
        }
        if self.stopped.len() >= standstill::PARTS_MAX {
            let detail = format!(
                "{} stores and partitions are stopped already, which is the limit; stop replica repair of all instead",
                self.stopped.len()
            );
            return Err(Failure::new(ErrorCode::Malformed, detail));
        }
        if !self.stopped.contains(only) {
            self.stopped.push(only.clone());
        }
        // What runs begins anew without this part.
        self.abort |= self.running.as_ref().is_some_and(|running| only.has_store(&running.store));
        Ok(())
    }
}

impl Running {
    /// Partitions that were compared to the end.
    fn partitions_done(&self) -> usize {
        self.partitions_through.saturating_sub(self.left.partitions)
    }
}

/// A scrub that was asked for, as it stands at this moment.
fn scrub(scrubbing: &Scrubbing, at: Moment) -> Json {
    json!({
        "store": scrubbing.store,
        "seconds": at.since(scrubbing.since).as_secs_f64(),
        "partitions": scrubbing.partitions,
        "partitions_done": scrubbing.done,
        "records": scrubbing.read.records,
        "bytes": scrubbing.read.bytes,
        "corrupt_records": scrubbing.read.corrupt,
        "wrong_leaves": scrubbing.read.wrong_leaves,
    })
}

fn outcome(outcome: &Outcome) -> Json {
    json!({
        "complete": outcome.complete,
        "partitions": outcome.partitions,
        "partitions_differing": outcome.differing,
        "partitions_unready": outcome.unready,
        "keys_differing": outcome.keys,
        "sets_pulled": outcome.pulled,
        "sets_pushed": outcome.pushed,
        "failed": outcome.failed,
        "requests": outcome.requests,
        "bytes": outcome.bytes,
    })
}

#[cfg(test)]
mod tests {
    use model::NodeId;
    use protocol::antientropy::Left;

    use super::*;

    /// Of stores before this one all partitions are done.
    #[test]
    fn what_a_comparison_has_done_is_all_up_to_its_store_but_for_what_is_left() {
        let running = |partitions| Running {
            peer: NodeId(2),
            store: "s".to_owned(),
            since: Moment::default(),
            partitions: 9,
            partitions_through: 7,
            progress: Outcome::default(),
            left: Left { partitions, keys: 0 },
        };
        assert_eq!([0, 3, 7, 8].map(|left| running(left).partitions_done()), [7, 4, 0, 0]);
    }
}
