//! How repair stands, and what operators may order.

use std::sync::Arc;

use client::peers::CallError;
use protocol::antientropy::Outcome;
use serde_json::{Value as Json, json};
use wire::error::ErrorCode;
use wire::messages::{Failure, RepairControl, RepairDocument, RepairOrder, Request, Response};

use super::{Only, Repair, respond, standstill};

impl Repair {
    /// Answers what a peer or an operator asks of repair; other requests are not for it.
    pub(crate) async fn answer(self: Arc<Self>, request: Request) -> Result<Response, Failure> {
        match request {
            Request::RepairGet(_) => Ok(self.document()),
            Request::RepairControl(control) => {
                self.carry_out(&control)?;
                self.remember_order().await?;
                Ok(self.document())
            }
            other => self.respond_in_background(other).await,
        }
    }

    /// Comparing reads many records: it must not hold a worker.
    async fn respond_in_background(self: Arc<Self>, request: Request) -> Result<Response, Failure> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let replica = self.replica.clone();
        self.ports.tasks.spawn_background(Box::pin(async move {
            // A peer that is gone is no longer interested.
            let _ = answer.send(respond::respond(replica, request).await);
        }));
        answered.await.unwrap_or_else(|_| {
            let ended = CallError::Broken;
            Err(Failure::new(ErrorCode::ShuttingDown, ended.to_string()))
        })
    }

    fn document(&self) -> Response {
        let json = serde_json::to_vec(&self.status()).expect("a status is plain data").into();
        Response::RepairDocument(RepairDocument { json })
    }

    fn carry_out(self: &Arc<Self>, control: &RepairControl) -> Result<(), Failure> {
        let view = self.replica.view().get();
        if let Some(name) = &control.store
            && view.store(name).is_none()
        {
            return Err(Failure::new(ErrorCode::UnknownStore, format!("there is no store {name:?}")));
        }
        let mut state = self.state.lock();
        match control.order {
            RepairOrder::Start => {
                state.only = Only { store: control.store.clone(), partition: control.partition };
                let now = self.ports.clock.now();
                state.schedule.learn(view.cluster().nodes.iter().map(|node| node.id), now);
                state.schedule.ask();
            }
            RepairOrder::Stop => {
                state.schedule.stop();
                state.abort = true;
            }
            RepairOrder::Scrub => {
                let repair = self.clone();
                self.ports.tasks.spawn_background(Box::pin(async move {
                    repair.scrub_now().await;
                }));
            }
        }
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Writes down whether comparing is stopped, so that a restart does not decide otherwise.
    async fn remember_order(&self) -> Result<(), Failure> {
        let _one_at_a_time = self.remembering.lock().await;
        let stopped = self.is_stopped();
        standstill::remember(&*self.disk, stopped).await.map_err(|error| {
            let now = if stopped { "stopped" } else { "started" };
            let detail = format!("comparing is {now}, but the next start may not remember it: {error}");
            Failure::new(ErrorCode::StorageFailed, detail)
        })
    }

    /// Whether an operator has stopped it.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().schedule.is_stopped()
    }

    /// How repair stands.
    pub fn status(&self) -> Json {
        let now = self.ports.clock.now();
        let view = self.replica.view().get();
        let trees: Vec<Json> = view
            .stores()
            .iter()
            .map(|store| {
                let (trees, doubtful, bytes) = store.trees().summary();
                json!({
                    "store": store.definition().name,
                    "trees": trees,
                    "doubtful": doubtful,
                    "tree_bytes": bytes,
                    "repaired_records_total": store.trees().repaired(),
                })
            })
            .collect();
        let state = self.state.lock();
        let running = state.running.as_ref().map(|running| {
            json!({
                "peer": running.peer,
                "store": running.store,
                "seconds": now.since(running.since).as_secs_f64(),
                "progress": outcome(&running.progress),
            })
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
            "period_s": self.options.period.as_secs(),
            "asked": state.schedule.asked(),
            "running": running,
            "peers": peers,
            "trees": trees,
            "scrub": {
                "passes": state.scrub.passes,
                "partitions": state.scrub.partitions,
                "partitions_done": state.scrub.done,
                "corrupt_records_total": self.numbers.corrupt_records.get(),
                "wrong_leaves_total": self.numbers.wrong_leaves.get(),
            },
            "refill": self.refill.lock().status(),
        })
    }
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
