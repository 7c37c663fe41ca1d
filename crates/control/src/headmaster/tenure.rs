//! One session of a process that would be headmaster: it is a candidate, waits until it is elected, and holds the office.

use std::sync::Arc;

use coordination::CoordinationService;
use coordination::documents::{ServiceMove, headmaster_path};
use futures_util::future::{Either, select};
use runtime::Ports;

use super::asking::Asking;
use super::office::{Office, OfficeEnd};
use crate::election::Candidate;
use crate::tenure::{elected, lost};

/// Why a session is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenureEnd {
    /// It has ended, or its document was deleted: open another one, and stand again.
    Lost,
    /// The documents are in another service: stand there.
    Moved(Box<ServiceMove>),
}

/// Is a candidate with this session, and holds the office once it is elected. Cancel safe; close the session then.
pub async fn serve(service: Arc<dyn CoordinationService>, ports: &Ports, candidate: &Candidate) -> TenureEnd {
    let office = headmaster_path();
    let Some(candidacy) = elected(&service, ports, (&office, candidate)).await else {
        return TenureEnd::Lost;
    };
    tracing::info!(document = %candidacy.path(), "headmaster elected");
    let reports = Arc::new(Asking::new(ports.clone()));
    let session = service.clone();
    let mut office = Office::new(service, ports.clock.clone(), reports).sharing(ports.tasks.clone());
    let ended = Box::pin(lost(&session, ports, (&candidacy, candidate)));
    match select(ended, Box::pin(office.hold())).await {
        Either::Left(_) | Either::Right((OfficeEnd::SessionLost, _)) => TenureEnd::Lost,
        Either::Right((OfficeEnd::Moved(this), _)) => TenureEnd::Moved(this),
    }
}
