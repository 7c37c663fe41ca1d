//! The state of repair, and what operators may order.

use std::sync::Arc;

use client::peers::CallError;
use model::{Moment, NodeId, Partition, PartitionId};
use protocol::antientropy::SessionOutcome;
use protocol::antientropy::merkle::Tree;
use protocol::report::{
    Compared, Comparing, Comparison, PartitionTree, RepairPart, RepairReport, Report, Scrub, ScrubRun,
    Scrubbed, StoreTrees,
};
use wire::error::ErrorCode;
use wire::messages::{AntiEntropyControl, AntiEntropyOrder, Failure, ReportGot, Request, Response};

use super::{AntiEntropy, Ended, Only, RepairState, Running, ScrubOrder, Scrubbing, respond, standstill};
use crate::stores::LocalStore;
use crate::view::View;

impl AntiEntropy {
    /// Answers what a peer or an operator asks of repair; other requests are not for it.
    ///
    /// # Errors
    /// When the request is refused, and when an order may be forgotten by a restart.
    pub async fn answer(self: Arc<Self>, request: Request) -> Result<Response, Failure> {
        match request {
            Request::AntiEntropyControl(control) => {
                let only = self.carry_out(&control)?;
                if control.order != AntiEntropyOrder::Look {
                    self.remember_order().await?;
                }
                Ok(ReportGot::of(&self.report_with_repair(&only)).into())
            }
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

    /// The state of repair.
    pub fn report(&self) -> RepairReport {
        self.report_on(&Only::default())
    }

    /// What an operator has stopped while the rest goes on.
    pub(crate) fn stopped_parts(&self) -> Vec<RepairPart> {
        let stopped = self.state.lock().stopped.clone();
        stopped.into_iter().map(|Only { store, partition }| RepairPart { store, partition }).collect()
    }

    /// The hash trees of each store, or of one partition of it.
    fn trees_of(&self, only: &Only) -> Vec<StoreTrees> {
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
            StoreTrees {
                store: store.definition().name.clone(),
                trees: trees as u64,
                doubtful: doubtful as u64,
                tree_bytes: bytes as u64,
                repaired_records_total: store.trees().repaired(),
                only: only.partition.map(|id| self.tree_of(&view, store, id)),
            }
        };
        stores.map(tree).collect()
    }

    /// What is known of one partition of a store.
    fn tree_of(&self, view: &View, store: &LocalStore, id: PartitionId) -> PartitionTree {
        let (own, buckets) = (self.replica.node(), view.buckets_of(id));
        let records = |of: &Partition| store.trees().look(of.id, Tree::records).flatten();
        let compared = buckets.first().filter(|of| view.writes(own, store, of));
        PartitionTree {
            partition: id,
            records: buckets.iter().map(records).sum::<Option<u64>>(),
            incomplete: buckets.iter().any(|of| store.trees().is_incomplete(of.id)),
            compared_with: compared.map(|of| view.replicas_of(of.id, store, own)),
        }
    }

    fn report_with_repair(&self, only: &Only) -> Report {
        let (generation, at_ms) = (self.replica.view().generation(), self.ports.clock.wall());
        let report = Report::new(self.replica.node(), self.incarnation, at_ms, generation);
        Report { repair: Some(self.report_on(only)), ..report }
    }

    fn report_on(&self, only: &Only) -> RepairReport {
        let now = self.ports.clock.now();
        let (trees, stopped_parts) = (self.trees_of(only), self.stopped_parts());
        let refill = self.refilling.get().and_then(|report| report());
        let state = self.state.lock();
        let scrub = Scrub {
            passes: state.scrub.passes,
            partitions: state.scrub.partitions as u64,
            partitions_done: state.scrub.done as u64,
            running: state.scrubbing.as_ref().map(|running| scrub_run(running, now)),
            last_asked: state.scrubbed.as_ref().map(|(ended, last)| Scrubbed {
                seconds_ago: now.since(*ended).as_secs_f64(),
                run: scrub_run(last, *ended),
            }),
            corrupt_records_total: self.counters.corrupt_records.get(),
            wrong_leaves_total: self.counters.wrong_leaves.get(),
        };
        let compared = |(peer, ended): (&NodeId, &Ended)| Compared {
            peer: *peer,
            seconds_ago: now.since(ended.at).as_secs_f64(),
            took_ms: ended.took.as_secs_f64() * 1e3,
            outcome: comparison(&ended.outcome),
        };
        RepairReport {
            stopped: state.schedule.is_stopped(),
            stopped_parts,
            period_s: self.options.period.as_secs(),
            asked: state.schedule.asked() as u64,
            running: state.running.as_ref().map(|running| running.report(now)),
            peers: state.ended.iter().map(compared).collect(),
            trees,
            scrub,
            refill,
        }
    }
}

impl RepairState {
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

    fn report(&self, now: Moment) -> Comparing {
        Comparing {
            peer: self.peer,
            store: self.store.clone(),
            seconds: now.since(self.since).as_secs_f64(),
            partitions: self.partitions as u64,
            partitions_done: self.partitions_done() as u64,
            keys_left: self.left.keys as u64,
            progress: comparison(&self.progress),
        }
    }
}

/// A scrub that was asked for, as it is at this moment.
fn scrub_run(scrubbing: &Scrubbing, at: Moment) -> ScrubRun {
    ScrubRun {
        store: scrubbing.store.clone(),
        seconds: at.since(scrubbing.since).as_secs_f64(),
        partitions: scrubbing.partitions as u64,
        partitions_done: scrubbing.done as u64,
        records: scrubbing.read.records,
        bytes: scrubbing.read.bytes,
        corrupt_records: scrubbing.read.corrupt,
        wrong_leaves: scrubbing.read.wrong_leaves,
    }
}

fn comparison(outcome: &SessionOutcome) -> Comparison {
    Comparison {
        complete: outcome.complete,
        partitions: outcome.partitions as u64,
        partitions_differing: outcome.differing as u64,
        partitions_unready: outcome.unready as u64,
        keys_differing: outcome.keys as u64,
        sets_pulled: outcome.pulled as u64,
        sets_pushed: outcome.pushed as u64,
        failed: outcome.failed as u64,
        requests: outcome.requests,
        bytes: outcome.bytes,
    }
}

#[cfg(test)]
mod tests {
    use protocol::antientropy::Left;

    use super::*;

    /// Of stores before this one all partitions are done.
    #[test]
    fn a_comparison_has_done_all_partitions_up_to_its_store_except_those_left() {
        let running = |partitions| Running {
            peer: NodeId(2),
            store: "s".to_owned(),
            since: Moment::default(),
            partitions: 9,
            partitions_through: 7,
            progress: SessionOutcome::default(),
            left: Left { partitions, keys: 0 },
        };
        assert_eq!([0, 3, 7, 8].map(|left| running(left).partitions_done()), [7, 4, 0, 0]);
    }
}
