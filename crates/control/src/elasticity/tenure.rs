//! One session of a process that would control fleets: it is a candidate, waits until it is elected, and holds the office.

use std::sync::Arc;

use coordination::CoordinationService;
use coordination::documents::elasticity::office_path;
use futures_util::future::{Either, select};
use runtime::Ports;
use runtime::network::fetch::Fetcher;

use super::adapters::Adapters;
use super::office::Office;
pub use super::office::OfficeEnd;
use crate::election::Candidate;
use crate::tenure::{elected, lost};

/// Is a candidate with this session, and holds the office once it is elected. Cancel safe; close the session then.
pub async fn serve(
    service: Arc<dyn CoordinationService>,
    ports: &Ports,
    candidate: &Candidate,
    (adapters, fetcher): (Arc<dyn Adapters>, Arc<dyn Fetcher>),
) -> OfficeEnd {
    let path = office_path();
    let Some(candidacy) = elected(&service, ports, (&path, candidate)).await else {
        return OfficeEnd::SessionLost;
    };
    tracing::info!(document = %candidacy.path(), "controller of fleets elected");
    let process = candidate.process.clone();
    let office = Office::new(service.clone(), ports.clock.clone(), adapters, fetcher, process);
    let ended = Box::pin(lost(&service, ports, (&candidacy, candidate)));
    match select(ended, Box::pin(office.hold())).await {
        Either::Left(_) => OfficeEnd::SessionLost,
        Either::Right((end, _)) => end,
    }
}
