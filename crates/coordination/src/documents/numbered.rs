//! Documents that are numbered from 1: plans, and the orders of operators.
//!
//! The next number is one more than the greatest that is there, and creating the document decides who gets it.
//! Sequential documents of the service were rejected: their numbers begin anew where the documents are moved to.
//!
//! Must never: delete the greatest number, because the next document would get it again.

use bytes::Bytes;

use super::service_move::counts;
use super::{create_parents, known};
use crate::{CoordinationError, CoordinationService, CreateMode, Document, DocumentPath, Expected};

/// Below which plans are.
pub fn plans_path() -> DocumentPath {
    known("/plans")
}

/// Below which the orders of operators are.
pub fn orders_path() -> DocumentPath {
    known("/wishes")
}

/// The document of this number.
pub fn numbered_path(parent: &DocumentPath, number: u64) -> DocumentPath {
    parent.child(&number.to_string()).expect("numbers are short")
}

/// How far the plan of this number is.
pub fn plan_state_path(number: u64) -> DocumentPath {
    numbered_path(&plans_path(), number).child("state").expect("the name is short")
}

/// The numbers that are there, ascending.
///
/// # Errors
/// What the service refuses.
pub async fn numbers(
    service: &dyn CoordinationService,
    parent: &DocumentPath,
) -> Result<Vec<u64>, CoordinationError> {
    let names = match service.children(parent).await {
        Err(CoordinationError::NoNode { .. }) => Vec::new(),
        names => names?,
    };
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Creates the document of the next number, and returns that.
///
/// # Errors
/// As [`CoordinationService::create`]. After [`CoordinationError::Indeterminate`] it may exist.
pub async fn create_next(
    service: &dyn CoordinationService,
    parent: &DocumentPath,
    data: Bytes,
) -> Result<u64, CoordinationError> {
    create_parents(service, &numbered_path(parent, 1)).await?;
    let mut number = numbers(service, parent).await?.last().map_or(1, |last| last + 1);
    loop {
        match service.create(&numbered_path(parent, number), data.clone(), CreateMode::Persistent).await {
            Ok(_) => return counts(service).await.map(|()| number),
            // Somebody was faster, or this session is a little behind.
            Err(CoordinationError::NodeExists { .. }) => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Creates the document of this number, if nobody has.
///
/// # Errors
/// As [`CoordinationService::create`]. After [`CoordinationError::Indeterminate`] it may exist.
pub async fn create_exactly(
    service: &dyn CoordinationService,
    parent: &DocumentPath,
    number: u64,
    data: Bytes,
) -> Result<(), CoordinationError> {
    let path = numbered_path(parent, number);
    create_parents(service, &path).await?;
    service.create(&path, data, CreateMode::Persistent).await?;
    counts(service).await
}

/// A document, if it is there.
///
/// # Errors
/// What the service refuses.
pub async fn look(
    service: &dyn CoordinationService,
    path: &DocumentPath,
) -> Result<Option<Document>, CoordinationError> {
    match service.get(path).await {
        Ok(document) => Ok(Some(document)),
        Err(CoordinationError::NoNode { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a document whose parent is there, if it is still what was read: `read` is that, and `None` that there was none.
///
/// # Errors
/// `BadVersion`, `NoNode` or `NodeExists` when it is not; after [`CoordinationError::Indeterminate`] it may be written.
pub async fn replace(
    service: &dyn CoordinationService,
    path: &DocumentPath,
    data: Bytes,
    read: Option<&Document>,
) -> Result<(), CoordinationError> {
    match read {
        Some(read) => {
            service.set(path, data, Expected::Version(read.stat.version)).await?;
        }
        None => {
            service.create(path, data, CreateMode::Persistent).await?;
        }
    }
    counts(service).await
}

/// Deletes the oldest documents until `count` are left, each with what is below it, as long as `may_go` says so.
///
/// # Errors
/// What the service refuses.
pub async fn keep(
    service: &dyn CoordinationService,
    parent: &DocumentPath,
    count: usize,
    may_go: impl Fn(u64) -> bool,
) -> Result<(), CoordinationError> {
    let numbers = numbers(service, parent).await?;
    let too_many = numbers.len().saturating_sub(count.max(1));
    for number in numbers[..too_many].iter().copied().filter(|&number| may_go(number)) {
        let path = numbered_path(parent, number);
        let below = match service.children(&path).await {
            Err(CoordinationError::NoNode { .. }) => continue,
            names => names?,
        };
        let below = below.iter().filter_map(|name| path.child(name).ok());
        for path in below.chain([path.clone()]) {
            match service.delete(&path, Expected::Any).await {
                Ok(()) | Err(CoordinationError::NoNode { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
