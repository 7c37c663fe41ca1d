//! Orders of operators, through any node, and how the office of headmaster stands.

use std::time::Duration;

use client::{Client, ClientError};
use model::order::{Answer, Office, Order};
use model::{Generation, NodeId, PartitionId, readonly};

use crate::failure::CliError;
use crate::output::program;
use crate::shared::Shared;
use crate::words;

/// How long a command waits for the answer to an order: a headmaster that ends meanwhile has a successor by then.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(40);
/// How long a command looks at what it can do without.
const LOOK_TIME_MAX: Duration = Duration::from_secs(4);

/// Gives an order, and waits for its answer.
pub(crate) async fn order(client: &Client, order: &Order) -> Result<Answer, CliError> {
    let by = format!("{} at {}", user(), crate::headmaster::host());
    let ordered = client.order(order, &by, ANSWER_TIME_MAX).await.map_err(in_doubt)?;
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
pub(crate) async fn refused(client: &Client, order: &Order, answer: &Answer) -> CliError {
    let Answer::Refused { refusal, again_after_ms } = answer else {
        return CliError::Other("the order was carried out".to_owned());
    };
    let mut cluster = client.cluster();
    if let Order::Replace { .. } = order {
        // It may stand half way: only the newest document says so.
        cluster = client.refresh().await.unwrap_or(cluster);
    }
    CliError::Refused {
        code: refusal.code(),
        text: words::refused(order, refusal, &cluster),
        retryable: again_after_ms.is_some(),
    }
}

/// Changes what a read-only store lists or serves; the generation of the document that says so.
pub(crate) async fn artifacts(client: &Client, order: &readonly::Order) -> Result<Generation, CliError> {
    let given = Order::Artifacts { order: order.clone() };
    match self::order(client, &given).await? {
        Answer::Done { .. } => Ok(client.cluster().generation),
        answer => Err(refused(client, &given, &answer).await),
    }
}

/// How the office stands, for a command that can do without; `None` when no node says.
pub(crate) async fn look(shared: &Shared) -> Option<Office> {
    let client = shared.client().await.ok()?;
    let looked = tokio::time::timeout(LOOK_TIME_MAX, client.office()).await;
    looked.ok()?.ok().map(|(_, office)| office).filter(|office| !office.is_moving)
}

fn user() -> String {
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
