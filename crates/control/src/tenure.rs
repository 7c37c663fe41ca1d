//! How a session comes to an office, and how it notices that it has lost it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use coordination::{CoordinationError, CoordinationService, DocumentPath};
use futures_util::future::{Either, pending, select};
use runtime::Ports;

use crate::election::{Candidacy, Candidate, ElectionError, stand};
use crate::lease;

/// How long a candidate waits for a service that does not answer.
const AWAY: Duration = Duration::from_secs(1);

/// Completes when the office is lost, and renews its lease until then where offices end by time. Cancel safe.
pub(crate) async fn lost(
    service: &Arc<dyn CoordinationService>,
    ports: &Ports,
    (candidacy, candidate): (&Candidacy, &Candidate),
) {
    let watched = Box::pin(async {
        while let Err(error) = candidacy.ended().await {
            tracing::debug!(%error, "office not watched");
            ports.clock.sleep(AWAY).await;
        }
    });
    let renewed = Box::pin(async {
        match lease::is_needed(&**service) {
            true => lease::renew(service, &ports.clock, (candidacy, candidate)).await,
            false => pending().await,
        }
    });
    // Neither has more to say than that it has ended.
    select(watched, renewed).await;
}

/// Waits until the office is this session's; `None` when it cannot be any more. Cancel safe.
pub(crate) async fn elected(
    service: &Arc<dyn CoordinationService>,
    ports: &Ports,
    (office, candidate): (&DocumentPath, &Candidate),
) -> Option<Candidacy> {
    let candidacy = loop {
        match stand(service.clone(), office, candidate).await {
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
