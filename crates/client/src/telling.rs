//! What nodes tell about themselves and each other: reports, events, numbers.

use std::time::Duration;

use bytes::Bytes;
use model::NodeId;
use protocol::report::{Parts, Report};
use wire::messages::{AntiEntropyControl, EventsGet, MetricsGet, ReportGet, Request, Response};

use crate::connect::Client;
use crate::error::ClientError;

/// How much longer than the node is told to wait for an event its answer may take.
const EVENTS_GRACE: Duration = Duration::from_secs(5);

impl Client {
    /// These parts of what a node says of itself.
    pub async fn report(&self, node: NodeId, parts: Parts) -> Result<Report, ClientError> {
        report(self.inner.call(node, ReportGet { parts }.into()).await?)
    }

    /// Orders a node to start or stop comparing, or to scrub; answers with the state of repair there.
    pub async fn repair_control(
        &self,
        node: NodeId,
        control: AntiEntropyControl,
    ) -> Result<Report, ClientError> {
        report(self.inner.call(node, control.into()).await?)
    }

    /// A node's numbers as Prometheus text.
    pub async fn metrics(&self, node: NodeId) -> Result<Bytes, ClientError> {
        match self.inner.call(node, Request::MetricsGet(MetricsGet {})).await? {
            Response::MetricsText(metrics) => Ok(metrics.text),
            other => Err(unexpected(&other)),
        }
    }

    /// A page of a node's events as JSON. With `wait_ms` the node waits for one when there is none yet.
    pub async fn events(&self, node: NodeId, get: EventsGet) -> Result<Bytes, ClientError> {
        let patience = Duration::from_millis(u64::from(get.wait_ms)) + EVENTS_GRACE;
        let call = self.inner.peers.call(node, Request::EventsGet(get));
        let answer = call.within(&self.inner.ports.clock, patience).await;
        match answer? {
            Response::EventsDocument(document) => Ok(document.json),
            other => Err(unexpected(&other)),
        }
    }
}

fn report(answer: Response) -> Result<Report, ClientError> {
    match answer {
        Response::ReportGot(got) => {
            got.report().map_err(|error| ClientError::Indeterminate { detail: error.to_string() })
        }
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &Response) -> ClientError {
    ClientError::Indeterminate { detail: format!("unexpected answer {}", answer.name()) }
}
