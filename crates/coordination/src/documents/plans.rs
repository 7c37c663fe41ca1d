//! Plans as documents, each with its state below it.
//!
//! A plan never changes once it is created. Its state is written by a headmaster alone; a plan without one has only been
//! created.

use model::plan::{PlanDocument, PlanState, PlanSummary, Planned};

use super::numbered::{create_exactly, keep, look, numbered_path, numbers, plan_state_path, plans_path};
use super::{ReadError, decode, encode};
use crate::{CoordinationError, CoordinationService, Document, DocumentVersion};

/// Plans that are kept.
pub const PLANS_KEPT: usize = 100;

/// The plan of this number; `None` when there is none.
///
/// # Errors
/// When it is malformed, which a plan of a later version may be for this one; or when the service refuses.
pub async fn read(service: &dyn CoordinationService, number: u64) -> Result<Option<Planned>, ReadError> {
    let Some(plan) = read_plan(service, number).await? else { return Ok(None) };
    let state = read_state(service, number).await?.map(|(state, _)| state);
    Ok(Some(Planned { number, plan, state }))
}

/// What never changes of a plan.
///
/// # Errors
/// As [`read`].
pub async fn read_plan(
    service: &dyn CoordinationService,
    number: u64,
) -> Result<Option<PlanDocument>, ReadError> {
    let path = numbered_path(&plans_path(), number);
    look(service, &path).await?.map(|found| decode(&path, &found.data)).transpose()
}

/// How far a plan is, and the document that says so; `None` when it was never applied.
///
/// # Errors
/// As [`read`].
pub async fn read_state(
    service: &dyn CoordinationService,
    number: u64,
) -> Result<Option<(PlanState, Document)>, ReadError> {
    let path = plan_state_path(number);
    let Some(found) = look(service, &path).await? else { return Ok(None) };
    Ok(Some((decode(&path, &found.data)?, found)))
}

/// The numbers of all plans that are kept, ascending.
///
/// # Errors
/// What the service refuses.
pub async fn all_numbers(service: &dyn CoordinationService) -> Result<Vec<u64>, CoordinationError> {
    numbers(service, &plans_path()).await
}

/// All plans that are kept, in short, the oldest first.
///
/// # Errors
/// What the service refuses.
pub async fn summaries(service: &dyn CoordinationService) -> Result<Vec<PlanSummary>, ReadError> {
    let mut plans = Vec::new();
    for number in all_numbers(service).await? {
        match read(service, number).await {
            Ok(found) => plans.extend(found.map(|planned| planned.summary())),
            Err(ReadError::Malformed { reason, .. }) => plans.push(PlanSummary::unread(number, reason)),
            Err(error) => return Err(error),
        }
    }
    Ok(plans)
}

/// Creates the plan of this number, if nobody has meanwhile; and forgets the oldest, but for the one that is `under_way`.
///
/// # Errors
/// `NodeExists` when somebody has. After [`CoordinationError::Indeterminate`] it may be there.
pub async fn create(
    service: &dyn CoordinationService,
    number: u64,
    plan: &PlanDocument,
    under_way: Option<u64>,
) -> Result<(), CoordinationError> {
    create_exactly(service, &plans_path(), number, encode(plan)).await?;
    keep(service, &plans_path(), PLANS_KEPT, |number| Some(number) != under_way).await
}

/// Writes how far a plan is, if its state is still what was `read`: `None` when there was none. One that has ended makes
/// room for others.
///
/// # Errors
/// `BadVersion`, `NoNode` or `NodeExists` when it is not; after [`CoordinationError::Indeterminate`] it may be written.
pub async fn note(
    service: &dyn CoordinationService,
    number: u64,
    state: &PlanState,
    read: Option<&Document>,
) -> Result<(), CoordinationError> {
    super::numbered::replace(service, &plan_state_path(number), encode(state), read).await?;
    if state.phase.has_ended() {
        keep(service, &plans_path(), PLANS_KEPT, |other| other != number).await?;
    }
    Ok(())
}

/// Waits until a plan's state is another one than that of this version. Cancel safe.
///
/// # Errors
/// What the service refuses.
pub async fn changed(
    service: &dyn CoordinationService,
    number: u64,
    since: Option<DocumentVersion>,
) -> Result<(), CoordinationError> {
    let path = plan_state_path(number);
    loop {
        let (found, watch) = service.get_and_watch(&path).await?;
        if found.map(|found| found.stat.version) != since {
            return Ok(());
        }
        watch.fired().await?;
    }
}
