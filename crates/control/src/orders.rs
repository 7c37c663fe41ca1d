//! What operators want of the headmaster, as documents.
//!
//! An order is created by a command and answered by the headmaster, in the same document. The command waits for the
//! answer; an order to which nobody waits any more is carried out all the same.

use std::time::Duration;

use bytes::Bytes;
use coordination::documents::ReadError;
use coordination::documents::numbered::{create_next, look, numbered_path, numbers, wishes_path};
use coordination::{CoordinationError, CoordinationService, Document};
use model::{Consistency, NodeId, Role, Weight};
use protocol::rebalance::planner::{Consent, Wish};
use serde::{Deserialize, Serialize};

use crate::plans::{decode, encode};

/// Orders that are kept.
pub const ORDERS_KEPT: usize = 100;

/// What shall be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Order {
    /// Create a plan.
    Create {
        /// For what.
        wish: Wish,
        /// What it may do.
        consent: Consent,
    },
    /// Carry a plan out.
    Apply {
        /// Its number.
        plan: u64,
    },
    /// End a plan: what has not settled goes back.
    Abort {
        /// Its number.
        plan: u64,
    },
    /// Let no partition of a plan take a step.
    Pause {
        /// Its number.
        plan: u64,
    },
    /// Let them take steps again.
    Resume {
        /// Its number.
        plan: u64,
    },
    /// Name a node that is registered in the cluster document.
    Admit {
        /// The node.
        node: NodeId,
    },
    /// Take all data from a node, and the node out of the cluster when it holds nothing.
    Drain {
        /// The node.
        node: NodeId,
        /// What that may do.
        consent: Consent,
    },
    /// Let a node take the places of one that is dead for good.
    Replace {
        /// The one that is dead.
        node: NodeId,
        /// The one that takes its places.
        by: NodeId,
        /// What that may do.
        consent: Consent,
    },
    /// Give a store other numbers.
    Renumber {
        /// The store.
        store: String,
        /// N, R and W to come.
        numbers: Consistency,
        /// What that may do.
        consent: Consent,
    },
    /// Take a node that holds nothing out of the cluster.
    Remove {
        /// The node.
        node: NodeId,
    },
    /// Change how much of the data a node shall carry.
    Weigh {
        /// The node.
        node: NodeId,
        /// Its weight.
        weight: Weight,
    },
    /// Change what the cluster wants of a node.
    Cast {
        /// The node.
        node: NodeId,
        /// Its role.
        role: Role,
    },
}

/// An order with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderDocument {
    /// What shall be done.
    pub order: Order,
    /// Who gave it, for people who look.
    pub by: String,
    /// When, in milliseconds since 1970.
    pub given_ms: u64,
    /// What came of it; `None` until a headmaster has seen to it.
    pub answer: Option<Answer>,
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether it was carried out. A plan that was applied has only begun.
    pub done: bool,
    /// What was done, or why it was not.
    pub text: String,
    /// The plan that it was about.
    pub plan: Option<u64>,
    /// What it was refused for passes by itself: after so many milliseconds it may be given again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_after_ms: Option<u64>,
}

impl Answer {
    pub(crate) fn done(text: impl Into<String>) -> Answer {
        Answer { done: true, text: text.into(), plan: None, again_after_ms: None }
    }

    pub(crate) fn refused(text: impl Into<String>) -> Answer {
        Answer { done: false, text: text.into(), plan: None, again_after_ms: None }
    }

    pub(crate) fn again_after(self, pause: Option<Duration>) -> Answer {
        let millis = |pause: Duration| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        Answer { again_after_ms: pause.map(millis), ..self }
    }

    pub(crate) fn of_plan(self, plan: u64) -> Answer {
        Answer { plan: Some(plan), ..self }
    }
}

/// An order that is there.
#[derive(Clone, Debug)]
pub struct Given {
    /// Its number.
    pub number: u64,
    /// What it says.
    pub document: OrderDocument,
    pub(crate) read: Document,
}

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
    let data: Bytes = encode(&document);
    create_next(service, &wishes_path(), data).await
}

/// The order of this number; `None` when there is none.
///
/// # Errors
/// When it is malformed or the service refuses.
pub async fn read(service: &dyn CoordinationService, number: u64) -> Result<Option<Given>, ReadError> {
    let path = numbered_path(&wishes_path(), number);
    let Some(read) = look(service, &path).await? else { return Ok(None) };
    let document = decode(&path, &read.data)?;
    Ok(Some(Given { number, document, read }))
}

/// The oldest order without an answer, if one waits. They are answered in turn.
///
/// # Errors
/// As [`read`].
pub async fn oldest_waiting(service: &dyn CoordinationService) -> Result<Option<Given>, ReadError> {
    let mut oldest = None;
    for number in numbers(service, &wishes_path()).await?.into_iter().rev() {
        match read(service, number).await {
            Ok(Some(given)) if given.document.answer.is_none() => oldest = Some(given),
            // One of a later version says nothing.
            Ok(None) | Err(ReadError::Malformed { .. }) => {}
            Ok(Some(_)) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(oldest)
}

/// Waits for the answer to an order. Cancel safe.
///
/// # Errors
/// As [`read`].
pub async fn answered(service: &dyn CoordinationService, number: u64) -> Result<Answer, ReadError> {
    let path = numbered_path(&wishes_path(), number);
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
