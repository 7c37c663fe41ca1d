//! What a node tells about itself and the others: beliefs, events, numbers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use runtime::Clock;
use wire::error::ErrorCode;
use wire::messages::{EventsDocument, EventsGet, Failure, MetricsText, Request, Response};

use crate::events::Events;
use crate::gossip::Gossip;
use crate::metrics::Metrics;

/// Most events in one answer: some 250 KB.
const EVENTS_COUNT_MAX: u32 = 1_000;
/// Longest wait for an event.
const EVENTS_WAIT_MAX: Duration = Duration::from_secs(30);

/// What a node can tell.
#[derive(Clone)]
pub struct Telling {
    /// What it believes about the others.
    pub gossip: Arc<Gossip>,
    /// What happened to it.
    pub events: Arc<Events>,
    /// Its numbers.
    pub metrics: Arc<Metrics>,
}

impl Telling {
    /// Answers what can be told at once.
    pub(super) fn answer(&self, request: Request) -> Result<Response, Failure> {
        match request {
            Request::Gossip(gossip) => Ok(self.gossip.receive(gossip).into()),
            Request::MetricsGet(_) => Ok(MetricsText { text: self.metrics.text().into() }.into()),
            other => {
                Err(Failure::new(ErrorCode::UnknownRequest, format!("{} is not told at once", other.name())))
            }
        }
    }

    /// The page that is asked for; waits for its first event as long as the caller wants to.
    pub(in crate::doors) async fn events(&self, get: EventsGet, clock: Arc<dyn Clock>) -> Response {
        if get.wait_ms > 0 {
            let patience = Duration::from_millis(u64::from(get.wait_ms)).min(EVENTS_WAIT_MAX);
            let event = Box::pin(self.events.wait(get.run, get.after));
            select(event, clock.sleep(patience)).await;
        }
        let page = self.events.page(get.run, get.after, get.count_max.min(EVENTS_COUNT_MAX) as usize);
        let json = serde_json::to_vec(&page).expect("a page is plain data");
        EventsDocument { json: json.into() }.into()
    }
}
