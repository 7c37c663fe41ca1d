//! Orders of operators, through any node, and the state of the office of headmaster.

use std::time::Duration;

use client::{Client, ClientError, Ordered};
use model::order::{Holder, Office, Order, OrderOutcome};
use model::{ArtifactOrder, Generation, NodeId, PartitionId};

use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::program;
use crate::words;

/// How long a command waits for the answer to an order: a headmaster that ends meanwhile has a successor by then.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(40);
/// After how long a command says that its order waits.
const QUIET_TIME_MAX: Duration = Duration::from_secs(2);
/// How much longer the number of an order may take, beyond which nobody tells whether it was given.
const NUMBER_TIME_MAX: Duration = Duration::from_millis(500);
/// How long a command looks at what it can do without.
const LOOK_TIME_MAX: Duration = Duration::from_secs(4);

/// Gives an order, and waits for its answer.
pub(crate) async fn order(client: &Client, order: &Order) -> Result<OrderOutcome, CliError> {
    let ordered = give(client, order).await.map_err(in_doubt)?;
    ordered.answer.ok_or_else(|| {
        CliError::Unanswered(format!(
            "order {} was given and has no answer after {} s: a headmaster carries it out when it can; if its process is \
             suspended, `{} doctor` says what to do",
            ordered.number,
            ANSWER_TIME_MAX.as_secs(),
            program(),
        ))
    })
}

/// Gives an order, and says for whom it waits where its answer takes long.
pub(crate) async fn give(client: &Client, order: &Order) -> Result<Ordered, ClientError> {
    let by = format!("{} at {}", user(), crate::headmaster::host());
    let mut giving = std::pin::pin!(client.order(order, &by, QUIET_TIME_MAX));
    let (ordered, is_told) = tokio::select! {
        biased;
        ordered = &mut giving => (ordered?, false),
        () = tokio::time::sleep(QUIET_TIME_MAX + NUMBER_TIME_MAX) => {
            tell(client, None).await;
            (giving.await?, true)
        }
    };
    if ordered.answer.is_some() {
        return Ok(ordered);
    }
    if !is_told {
        tell(client, Some(ordered.number)).await;
    }
    client.order_answered(ordered.number, ANSWER_TIME_MAX.saturating_sub(QUIET_TIME_MAX)).await
}

/// Says on standard error that an order waits, and for whom, as far as a node knows.
async fn tell(client: &Client, number: Option<u64>) {
    let looked = tokio::time::timeout(LOOK_TIME_MAX, client.office()).await;
    let office = looked.ok().and_then(Result::ok).map(|(_, office)| office);
    say!("{}", waits(number, office.as_ref()));
}

/// For whom an order waits: with its number, it was given; without, a node has not said so yet.
fn waits(number: Option<u64>, office: Option<&Office>) -> String {
    let known = office.filter(|office| office.unread.is_none() && office.generation.is_some());
    let whom = match known.map(|office| office.headmaster.as_ref()) {
        None => "the headmaster".to_owned(),
        Some(None) => "a headmaster: none runs at present".to_owned(),
        Some(Some(Holder { process, silent_ms: None })) => format!("the headmaster ({process})"),
        Some(Some(Holder { process, silent_ms: Some(silent) })) => {
            format!("the headmaster ({process}), which has not renewed its lease for {} s", silent / 1000)
        }
    };
    match number {
        Some(number) => format!("order {number} waits for {whom}; it stays when you stop waiting"),
        None => format!("the order waits for {whom}"),
    }
}

/// What to do when nobody knows whether an order was given: there is no key that would tell.
fn in_doubt(error: ClientError) -> CliError {
    match error {
        ClientError::Indeterminate { detail } => CliError::Unanswered(format!(
            "the order may have been given: {detail}; look with `{program} plan history` and `{program} node list`, and give it \
             again if nothing came of it",
            program = program()
        )),
        error => error.into(),
    }
}

/// The error of an order that was refused.
pub(crate) async fn refused(client: &Client, order: &Order, answer: &OrderOutcome) -> CliError {
    let OrderOutcome::Refused { refusal, again_after_ms } = answer else {
        return CliError::Other("the order was carried out".to_owned());
    };
    let mut cluster = client.cluster();
    if let Order::Replace { .. } = order {
        // It may stand half way: only the newest document says so.
        cluster = client.refresh().await.unwrap_or(cluster);
    }
    CliError::Refused {
        refusal: Box::new(refusal.clone()),
        text: words::refused(order, refusal, &cluster),
        retryable: again_after_ms.is_some(),
    }
}

/// Changes what a read-only store lists or serves; the generation of the document that says so.
pub(crate) async fn artifacts(client: &Client, order: &ArtifactOrder) -> Result<Generation, CliError> {
    let given = Order::Artifacts { order: order.clone() };
    match self::order(client, &given).await? {
        OrderOutcome::Done { .. } => Ok(client.cluster().generation),
        answer => Err(refused(client, &given, &answer).await),
    }
}

/// The state of the office, for a command that can do without; `None` when no node says.
pub(crate) async fn look(shared: &CliContext) -> Option<Office> {
    let client = shared.client().await.ok()?;
    let looked = tokio::time::timeout(LOOK_TIME_MAX, client.office()).await;
    looked.ok()?.ok().map(|(_, office)| office).filter(|office| !office.is_moving)
}

/// The user of this command, as the environment calls them.
pub(crate) fn user() -> String {
    std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "somebody".to_owned())
}

/// Reads `4` or `n4`.
pub(crate) fn parse_node(text: &str) -> Result<NodeId, String> {
    let digits = text.strip_prefix('n').unwrap_or(text);
    digits.parse().map(NodeId).map_err(|_| "expected the number of a node, for example 4 or n4".to_owned())
}

/// Reads `12` or `p12`.
pub(crate) fn parse_partition(text: &str) -> Result<PartitionId, String> {
    let digits = text.strip_prefix('p').unwrap_or(text);
    let number = digits.parse().map(PartitionId);
    number.map_err(|_| "expected the number of a partition, for example 12 or p12".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing was said for 40 s where the headmaster's process was stopped.
    #[test]
    fn an_order_that_waits_says_for_whom() {
        let office = |headmaster| Office { generation: Some(Generation(3)), headmaster, ..Office::default() };
        let holder = |silent_ms| Some(Holder { process: "process 7 of h1".to_owned(), silent_ms });
        assert_eq!(
            waits(Some(69), Some(&office(holder(None)))),
            "order 69 waits for the headmaster (process 7 of h1); it stays when you stop waiting"
        );
        assert_eq!(
            waits(Some(69), Some(&office(holder(Some(20_500))))),
            "order 69 waits for the headmaster (process 7 of h1), which has not renewed its lease for 20 s; it stays when you \
             stop waiting"
        );
        assert_eq!(
            waits(None, Some(&office(None))),
            "the order waits for a headmaster: none runs at present"
        );
        assert_eq!(waits(None, Some(&Office::default())), "the order waits for the headmaster");
        assert_eq!(waits(None, None), "the order waits for the headmaster");
    }
}
