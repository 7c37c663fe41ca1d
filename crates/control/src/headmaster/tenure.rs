//! One session of a process that would be headmaster: it stands, waits until it is elected, and holds the office.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use coordination::documents::Move;
use coordination::{CoordinationError, CoordinationService};
use futures_util::future::{Either, pending, select};
use runtime::Ports;

use super::asking::Asking;
use super::election::{Candidacy, Candidate, ElectionError, stand};
use super::lease;
use super::office::{Office, OfficeEnd};

/// How long a candidate waits for a service that does not answer.
const AWAY: Duration = Duration::from_secs(1);

/// Why a session is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenureEnd {
    /// It has ended, or its document was deleted: open another one, and stand again.
    Lost,
    /// The documents are in another service: stand there.
    Moved(Box<Move>),
}

/// Stands with this session, and holds the office once it is elected. Cancel safe; close the session then.
pub async fn serve(service: Arc<dyn CoordinationService>, ports: &Ports, candidate: &Candidate) -> TenureEnd {
    let Some(candidacy) = elected(&service, ports, candidate).await else { return TenureEnd::Lost };
    tracing::info!(document = %candidacy.path(), "headmaster elected");
    let reports = Arc::new(Asking::new(ports.clone()));
    let session = service.clone();
    let mut office = Office::new(service, ports.clock.clone(), reports);
    let watched = Box::pin(async {
        while let Err(error) = candidacy.ended().await {
            tracing::debug!(%error, "office not watched");
            ports.clock.sleep(AWAY).await;
        }
    });
    let renewed = Box::pin(async {
        match lease::is_needed(&*session) {
            true => lease::renew(&session, &ports.clock, (&candidacy, candidate)).await,
            false => pending().await,
        }
    });
    let ended = select(watched, renewed);
    match select(ended, Box::pin(office.hold())).await {
        Either::Left(_) | Either::Right((OfficeEnd::SessionLost, _)) => TenureEnd::Lost,
        Either::Right((OfficeEnd::Moved(this), _)) => TenureEnd::Moved(this),
    }
}

/// Waits until the office is this session's; `None` when it cannot be any more.
async fn elected(
    service: &Arc<dyn CoordinationService>,
    ports: &Ports,
    candidate: &Candidate,
) -> Option<Candidacy> {
    let candidacy = loop {
        match stand(service.clone(), candidate).await {
            Ok(candidacy) => break candidacy,
            Err(CoordinationError::SessionLost) => return None,
            Err(error) => {
                tracing::debug!(%error, "candidate not registered");
                ports.clock.sleep(AWAY).await;
            }
        }
    };
    let overseen = Box::pin(async {
        if lease::is_needed(&**service) {
            lease::oversee(service, &ports.clock, &candidacy).await;
        }
        pending::<Infallible>().await
    });
    let settled = Box::pin(settled(&candidacy, ports));
    let is_elected = match select(settled, overseen).await {
        Either::Left((is_elected, _)) => is_elected,
        Either::Right((never, _)) => match never {},
    };
    is_elected.then_some(candidacy)
}

/// Waits until it is settled whether the office is this candidate's.
async fn settled(candidacy: &Candidacy, ports: &Ports) -> bool {
    loop {
        match candidacy.elected().await {
            Ok(()) => return true,
            Err(
                ElectionError::Removed { .. } | ElectionError::Coordination(CoordinationError::SessionLost),
            ) => {
                return false;
            }
            Err(error) => {
                tracing::debug!(%error, "election not watched");
                ports.clock.sleep(AWAY).await;
            }
        }
    }
}
