//! Orders for the headmaster, and plans, through any node: a client has no session with the coordination service.
//!
//! Must never: give an order twice. Where nobody knows whether it was given, the caller is told so.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::order::{Office, Order, OrderOutcome};
use model::plan::PlanPage;
use model::{ArtifactOrder, Cluster, NodeId, Store};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::error::ErrorCode;
use wire::messages::{OfficeGet, OrderAnswer, OrderGive, OrderTold, PlanGet, Request, Response};

use crate::connect::Client;
use crate::error::ClientError;
use crate::peers::CallError;

/// How long one call waits at a node: links are looked at for life more often than a minute.
const WAIT_ONCE: Duration = Duration::from_secs(10);
/// How much longer than the node is told to wait its answer may take: it waits for a headmaster before it gives an order.
const GRACE: Duration = Duration::from_secs(15);
/// Pause before an answer is asked for once more: a node that cannot read it says so at once.
const ASK_PAUSE: Duration = Duration::from_millis(200);
/// How long an order that a program gives may take: a headmaster that ends meanwhile has a successor by then.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(40);

/// An order that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Its number.
    pub number: u64,
    /// What came of it; `None` when nothing has yet.
    pub answer: Option<OrderOutcome>,
}

/// Which plan is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanQuery {
    /// Its number; the one that is under way, or else the newest, by default.
    pub number: Option<u64>,
    /// Whether all plans are wanted in short, too.
    pub all: bool,
    /// Which state is known: [`PlanPage::version`], or 0.
    pub since: u64,
    /// How long to wait until the plan has another state. A node waits 10 s at most.
    pub wait: Duration,
}

impl Client {
    /// Gives an order through the first node that can be reached, and waits that long for its answer. Follows the document
    /// that carries it out.
    ///
    /// # Errors
    /// `no-headmaster` where none is at work, `coordination-unavailable` when documents cannot be changed now: then nothing
    /// was ordered. [`ClientError::Indeterminate`] when it may have been.
    pub async fn order(&self, order: &Order, by: &str, wait: Duration) -> Result<Ordered, ClientError> {
        let give = |wait_ms| OrderGive { json: text(order), by: by.to_owned(), wait_ms };
        let (clock, first) = (&self.inner.ports.clock, wait.min(WAIT_ONCE));
        let began = clock.now();
        let told = self.first_that_can(&|| give(millis(first)).into(), first).await?;
        let (number, ordered) = (told.number, self.told(told)?);
        match ordered.answer {
            Some(_) => Ok(ordered),
            None => self.order_answered(number, wait.saturating_sub(clock.now().since(began))).await,
        }
    }

    /// Waits that long for the answer to an order that was given.
    ///
    /// # Errors
    /// [`ClientError::Indeterminate`] when no node can say.
    pub async fn order_answered(&self, number: u64, wait: Duration) -> Result<Ordered, ClientError> {
        let clock = &self.inner.ports.clock;
        let began = clock.now();
        let mut ordered = Ordered { number, answer: None };
        while ordered.answer.is_none() {
            let left = wait.saturating_sub(clock.now().since(began));
            if left.is_zero() {
                break;
            }
            clock.sleep(ASK_PAUSE.min(left)).await;
            let next = left.min(WAIT_ONCE);
            // It is given: whatever happens to this question, nobody may say that nothing was ordered.
            ordered = self.order_answer(number, next).await.map_err(|error| ClientError::Indeterminate {
                detail: format!("order {number} was given, and its answer is not known: {error}"),
            })?;
        }
        Ok(ordered)
    }

    /// The answer to an order, when it has one within this time.
    ///
    /// # Errors
    /// When no node can say.
    pub async fn order_answer(&self, number: u64, wait: Duration) -> Result<Ordered, ClientError> {
        let wait_ms = millis(wait.min(WAIT_ONCE));
        let told = self.first_that_can(&|| OrderAnswer { number, wait_ms }.into(), wait).await?;
        self.told(told)
    }

    fn told(&self, told: OrderTold) -> Result<Ordered, ClientError> {
        if let Some(cluster) = &told.cluster {
            self.inner.nodes.adopt_whole(cluster);
        }
        Ok(Ordered { number: told.number, answer: parse(&told.json)? })
    }

    /// A plan, and the others in short if they are asked for.
    ///
    /// # Errors
    /// When no node can say.
    pub async fn plan(&self, query: PlanQuery) -> Result<PlanPage, ClientError> {
        let PlanQuery { number, all, since, wait } = query;
        let (number, wait_ms) = (number.unwrap_or_default(), millis(wait.min(WAIT_ONCE)));
        let ask = || PlanGet { number, all, since, wait_ms }.into();
        match self.ask_any(&ask, wait).await? {
            Response::PlanTold(told) => parse(&told.json),
            other => Err(unexpected(&other)),
        }
    }

    /// The state of the office of headmaster, as the first node sees it that answers; and which node that is.
    ///
    /// # Errors
    /// When no node answers.
    pub async fn office(&self) -> Result<(NodeId, Office), ClientError> {
        let mut reasons = Vec::new();
        for node in &self.cluster().nodes {
            match self.inner.call(node.id, OfficeGet {}.into()).await {
                Ok(Response::OfficeTold(told)) => return Ok((node.id, parse(&told.json)?)),
                Ok(other) => return Err(unexpected(&other)),
                Err(CallError::Unreachable { reason }) => reasons.push(reason),
                Err(error) => reasons.push(format!("{}: {error}", node.native)),
            }
        }
        Err(ClientError::nobody(&reasons))
    }

    /// The same as this node sees it, and no other one.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn office_at(&self, node: NodeId) -> Result<Office, ClientError> {
        match self.inner.call(node, OfficeGet {}.into()).await? {
            Response::OfficeTold(told) => parse(&told.json),
            other => Err(unexpected(&other)),
        }
    }

    /// Creates a store, and follows the document that has it. The nodes open it within moments; until they have, they do
    /// not know it.
    ///
    /// # Errors
    /// As [`order`](Client::order); [`ClientError::Refused`] when there can be no such store.
    pub async fn create_store(&self, store: &Store) -> Result<Arc<Cluster>, ClientError> {
        self.carry_out(&Order::create_store(store.clone())).await
    }

    /// Changes which artifacts a read-only store lists or serves, or creates such a store, and follows the document that
    /// says so.
    ///
    /// # Errors
    /// As [`order`](Client::order); [`ClientError::Refused`] when that cannot be.
    pub async fn order_artifacts(&self, order: &ArtifactOrder) -> Result<Arc<Cluster>, ClientError> {
        self.carry_out(&Order::Artifacts { order: order.clone() }).await
    }

    /// Gives an order that one document carries out.
    async fn carry_out(&self, order: &Order) -> Result<Arc<Cluster>, ClientError> {
        let ordered = self.order(order, "a program", ANSWER_TIME_MAX).await?;
        match ordered.answer {
            Some(OrderOutcome::Done { .. }) => Ok(self.cluster()),
            Some(OrderOutcome::Refused { refusal, again_after_ms }) => {
                Err(ClientError::Refused { refusal: Box::new(refusal), again_after_ms })
            }
            None => Err(ClientError::Indeterminate {
                detail: format!(
                    "order {} has no answer after {} s",
                    ordered.number,
                    ANSWER_TIME_MAX.as_secs()
                ),
            }),
        }
    }

    async fn first_that_can(
        &self,
        ask: &(dyn Fn() -> Request + Sync),
        wait: Duration,
    ) -> Result<OrderTold, ClientError> {
        match self.ask_any(ask, wait).await? {
            Response::OrderTold(told) => Ok(told),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks one node after another, until one was reached whose coordination service was, too. An order goes to no further
    /// node once one may have given it.
    async fn ask_any(
        &self,
        ask: &(dyn Fn() -> Request + Sync),
        wait: Duration,
    ) -> Result<Response, ClientError> {
        let (mut reasons, mut away) = (Vec::new(), None);
        for node in &self.cluster().nodes {
            match self.inner.call_for(node.id, ask(), wait + GRACE).await {
                Ok(answer) => return Ok(answer),
                Err(CallError::Unreachable { reason }) => reasons.push(reason),
                Err(CallError::Broken) if only_reads(&ask()) => {
                    reasons.push(format!("{}: {}", node.native, CallError::Broken));
                }
                Err(CallError::Refused(failure))
                    if matches!(
                        failure.code,
                        ErrorCode::CoordinationUnavailable | ErrorCode::ShuttingDown
                    ) =>
                {
                    away = Some(failure);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(away.map_or_else(|| ClientError::nobody(&reasons), ClientError::from))
    }
}

/// Whether another node may be asked the same where nobody knows what the first one did.
fn only_reads(request: &Request) -> bool {
    !matches!(request, Request::OrderGive(_))
}

fn text(value: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("orders are plain data"))
}

fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(json)
        .map_err(|error| ClientError::Indeterminate { detail: format!("the answer cannot be read: {error}") })
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn unexpected(response: &Response) -> ClientError {
    ClientError::Indeterminate { detail: format!("unexpected answer {}", response.name()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan was called unknown because the first node that was asked for it had ended meanwhile.
    #[test]
    fn what_only_reads_is_asked_of_the_next_node_and_an_order_is_never_given_twice() {
        let order = text(&Order::Abort { plan: 1 });
        assert!(!only_reads(&OrderGive { json: order, by: String::new(), wait_ms: 0 }.into()));
        assert!(only_reads(&OrderAnswer { number: 1, wait_ms: 0 }.into()));
        assert!(only_reads(&PlanGet { number: 1, all: false, since: 0, wait_ms: 0 }.into()));
    }
}
