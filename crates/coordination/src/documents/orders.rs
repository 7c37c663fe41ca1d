//! Orders as documents: given by whoever is asked, answered by a headmaster.

use model::order::{Given, Order, OrderDocument, OrderOutcome};

use super::numbered::{create_next, keep, look, numbered_path, numbers, orders_path};
use super::{ReadError, decode, encode};
use crate::{CoordinationError, CoordinationService, Document, Expected, Watch};

/// Orders that are kept.
pub const ORDERS_KEPT: usize = 100;

/// Gives an order, and returns its number.
///
/// # Errors
/// What the service refuses. After [`CoordinationError::Indeterminate`] it may have been given.
pub async fn give(
    service: &dyn CoordinationService,
    order: Order,
    by: &str,
    now_ms: u64,
) -> Result<u64, CoordinationError> {
    let document = OrderDocument { order, by: by.to_owned(), given_ms: now_ms, answer: None };
    create_next(service, &orders_path(), encode(&document)).await
}

/// The order of this number; `None` when there is none.
///
/// # Errors
/// When it is malformed or the service refuses.
pub async fn read(service: &dyn CoordinationService, number: u64) -> Result<Option<Given>, ReadError> {
    Ok(read_document(service, number).await?.map(|(given, _)| given))
}

async fn read_document(
    service: &dyn CoordinationService,
    number: u64,
) -> Result<Option<(Given, Document)>, ReadError> {
    let path = numbered_path(&orders_path(), number);
    let Some(read) = look(service, &path).await? else { return Ok(None) };
    let document = decode(&path, &read.data)?;
    Ok(Some((Given { number, document }, read)))
}

/// The oldest order without an answer, if one waits: they are answered in turn. Those of `answered` are passed over, and
/// what is found to be answered, or not understood, is added to it.
///
/// # Errors
/// What the service refuses.
pub async fn oldest_waiting(
    service: &dyn CoordinationService,
    answered: &mut std::collections::BTreeSet<u64>,
) -> Result<Option<Given>, ReadError> {
    for number in numbers(service, &orders_path()).await? {
        if answered.contains(&number) {
            continue;
        }
        match read(service, number).await {
            Ok(Some(given)) if given.document.answer.is_none() => return Ok(Some(given)),
            Ok(_) => {
                answered.insert(number);
            }
            Err(ReadError::Malformed { path, reason }) => {
                tracing::warn!(%path, reason, "order not understood");
                answered.insert(number);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Writes the answer to an order, unless it has one, and forgets the oldest orders. False when it has one, or is gone.
///
/// # Errors
/// What the service refuses. After [`CoordinationError::Indeterminate`] it may be written.
pub async fn answer(
    service: &dyn CoordinationService,
    number: u64,
    answer: &OrderOutcome,
) -> Result<bool, ReadError> {
    let path = numbered_path(&orders_path(), number);
    let Some((given, read)) = read_document(service, number).await? else { return Ok(false) };
    if given.document.answer.is_some() {
        return Ok(false);
    }
    let document = OrderDocument { answer: Some(answer.clone()), ..given.document };
    match service.set(&path, encode(&document), Expected::Version(read.stat.version)).await {
        Ok(_) => super::service_move::counts(service).await?,
        Err(CoordinationError::BadVersion { .. } | CoordinationError::NoNode { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    keep(service, &orders_path(), ORDERS_KEPT, |_| true).await?;
    Ok(true)
}

/// Waits for the answer to an order. Cancel safe.
///
/// # Errors
/// As [`read`].
pub async fn answered(service: &dyn CoordinationService, number: u64) -> Result<OrderOutcome, ReadError> {
    let path = numbered_path(&orders_path(), number);
    loop {
        let (found, watch) = service.get_and_watch(&path).await?;
        if let Some(found) = found {
            let document: OrderDocument = decode(&path, &found.data)?;
            if let Some(answer) = document.answer {
                return Ok(answer);
            }
        }
        watch.fired().await?;
    }
}

/// Whether an order is there that is not among these, and a watch for when one comes.
///
/// # Errors
/// What the service refuses.
pub async fn watch_given(
    service: &dyn CoordinationService,
    answered: &std::collections::BTreeSet<u64>,
) -> Result<(bool, Watch), CoordinationError> {
    let parent = orders_path();
    super::create_parents(service, &numbered_path(&parent, 1)).await?;
    let (names, watch) = service.children_and_watch(&parent).await?;
    let is_new = |name: &String| name.parse().is_ok_and(|number| !answered.contains(&number));
    Ok((names.iter().any(is_new), watch))
}
