//! The autopilot's documents: its policy, which an order changes, and its verdict, which is rewritten.
//!
//! Only a headmaster writes them; what founds a cluster writes the first policy.

use model::balance::{Policy, Verdict};
use serde::Serialize;

use super::numbered::{look, replace};
use super::{ReadError, create_parents, decode, encode, known};
use crate::{CoordinationError, CoordinationService, CreateMode, Document, DocumentPath, Expected};

/// What the autopilot may do.
pub fn policy_path() -> DocumentPath {
    known("/balance/policy")
}

/// What the autopilot says.
pub fn verdict_path() -> DocumentPath {
    known("/balance/verdict")
}

/// The policy that is kept, and its document; `None` where none is.
///
/// # Errors
/// When it is malformed or contradicts itself, or when the service refuses.
pub async fn read_policy(service: &dyn CoordinationService) -> Result<Option<(Policy, Document)>, ReadError> {
    let path = policy_path();
    let Some(found) = look(service, &path).await? else { return Ok(None) };
    let policy: Policy = decode(&path, &found.data)?;
    match policy.settings.check() {
        Ok(()) => Ok(Some((policy, found))),
        Err(wanted) => Err(ReadError::Malformed { path, reason: format!("its settings want {wanted}") }),
    }
}

/// Writes the policy over whatever is there.
///
/// # Errors
/// What the service refuses; after [`CoordinationError::Indeterminate`] it may be written.
pub async fn write_policy(
    service: &dyn CoordinationService,
    policy: &Policy,
) -> Result<(), CoordinationError> {
    write(service, &policy_path(), policy).await
}

/// Writes the first policy of a cluster, unless there is one.
///
/// # Errors
/// As [`write_policy`].
pub async fn found_policy(
    service: &dyn CoordinationService,
    policy: &Policy,
) -> Result<(), CoordinationError> {
    let path = policy_path();
    create_parents(service, &path).await?;
    match replace(service, &path, encode(policy), None).await {
        Err(CoordinationError::NodeExists { .. }) => Ok(()),
        written => written,
    }
}

/// What the autopilot said last; `None` where it has said nothing.
///
/// # Errors
/// When it is malformed, which one of a later version may be for this one; or when the service refuses.
pub async fn read_verdict(service: &dyn CoordinationService) -> Result<Option<Verdict>, ReadError> {
    let path = verdict_path();
    look(service, &path).await?.map(|found| decode(&path, &found.data)).transpose()
}

/// Writes what the autopilot says.
///
/// # Errors
/// As [`write_policy`].
pub async fn write_verdict(
    service: &dyn CoordinationService,
    verdict: &Verdict,
) -> Result<(), CoordinationError> {
    write(service, &verdict_path(), verdict).await
}

async fn write(
    service: &dyn CoordinationService,
    path: &DocumentPath,
    document: &impl Serialize,
) -> Result<(), CoordinationError> {
    match service.set(path, encode(document), Expected::Any).await {
        Err(CoordinationError::NoNode { .. }) => {
            create_parents(service, path).await?;
            match service.create(path, encode(document), CreateMode::Persistent).await {
                Ok(_) => Ok(()),
                Err(CoordinationError::NodeExists { .. }) => {
                    service.set(path, encode(document), Expected::Any).await.map(drop)
                }
                Err(error) => Err(error),
            }
        }
        written => written.map(drop),
    }
}
