//! How orders of operators reach the headmaster: as documents of the coordination service, which the nodes name.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::coordination::address::{Address, OpenError, Place};
use ::coordination::documents::{ReadError, active_nodes_now, read_cluster};
use ::coordination::zookeeper::SESSION_TIMEOUT_DEFAULT;
use ::coordination::{CoordinationError, CoordinationService};
use control::headmaster::election::holder;
use control::headmaster::lease;
use control::orders::{self, Answer, Given, Order};
use control::plans::{self, Planned};
use model::{Cluster, Node, NodeId, PartitionId};
use serde_json::Value as Json;

use crate::coordination::CoordinationArguments;
use crate::failure::CliError;
use crate::output::program;
use crate::shared::Shared;

/// How long a command waits for the answer to an order: a headmaster that ends meanwhile has a successor by then.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(40);

/// How long a command waits where no headmaster is at work: whoever succeeds one that has ended takes a second or two.
const SUCCESSION_TIME_MAX: Duration = Duration::from_secs(3);
/// Pause between two looks for one.
const SUCCESSION_PAUSE: Duration = Duration::from_millis(200);

/// How long a command looks at documents that it can do without.
const LOOK_TIME_MAX: Duration = Duration::from_secs(3);
/// How long of that it waits for an ensemble, so that there is time left to say what failed.
const LOOK_OPEN_TIME_MAX: Duration = Duration::from_millis(2500);

/// Where the documents are, for a command about plans or members.
#[derive(Clone, Debug, clap::Args)]
pub struct DocumentsArguments {
    /// The coordination service; by default, the nodes are asked for it.
    #[arg(long, env = "TONTINE_COORDINATION", value_name = "ADDRESS")]
    pub coordination: Option<Address>,
    /// File with `USER:PASSWORD` for ZooKeeper.
    #[arg(long, env = "TONTINE_COORDINATION_CREDENTIALS", value_name = "FILE")]
    pub coordination_credentials: Option<PathBuf>,
}

/// The documents of a cluster, for a command.
pub(crate) struct Documents {
    pub(crate) service: Arc<dyn CoordinationService>,
    pub(crate) cluster: Cluster,
    address: Address,
}

impl Documents {
    /// Opens them.
    pub(crate) async fn open(shared: &Shared, arguments: &DocumentsArguments) -> Result<Documents, CliError> {
        let address = match &arguments.coordination {
            Some(address) => address.clone(),
            None => named_by_nodes(shared).await?.0,
        };
        let service = CoordinationArguments {
            coordination: Some(address.clone()),
            coordination_credentials: arguments.coordination_credentials.clone(),
            session_timeout: SESSION_TIMEOUT_DEFAULT,
        };
        let service = service.existing().await?;
        let cluster = read_cluster(&*service).await.map_err(unread)?;
        let cluster = cluster.ok_or_else(|| {
            CliError::Other(format!(
                "{address} holds no cluster; create one with `{} cluster create`",
                program()
            ))
        })?;
        Ok(Documents { service, cluster, address })
    }

    /// Gives an order, and waits for its answer.
    pub(crate) async fn order(&self, order: Order) -> Result<Answer, CliError> {
        let run = format!("{} headmaster --coordination {}", program(), self.address);
        if !self.has_headmaster().await? {
            return Err(CliError::Other(format!(
                "no headmaster runs, and nothing was ordered; `{program} serve` and `{program} dev` start one, or run `{run}`",
                program = program()
            )));
        }
        let by = format!("{} at {}", user(), crate::headmaster::host());
        let number = orders::give(&*self.service, order, &by, crate::clocks::now_ms().unsigned_abs()).await?;
        let answered = tokio::time::timeout(ANSWER_TIME_MAX, orders::answered(&*self.service, number)).await;
        match answered {
            Ok(answer) => answer.map_err(unread),
            Err(_) => Err(CliError::Unanswered(format!(
                "order {number} was given and has no answer after {} s: a headmaster carries it out when it can; \
                 if its process is suspended, `tontine doctor` says what to do; look with \
                 `{} coordination show /wishes/{number} --coordination {}`",
                ANSWER_TIME_MAX.as_secs(),
                program(),
                self.address
            ))),
        }
    }

    /// Whether a headmaster is at work, or takes the place of one that has just ended.
    async fn has_headmaster(&self) -> Result<bool, CliError> {
        let give_up = tokio::time::Instant::now() + SUCCESSION_TIME_MAX;
        loop {
            match holder(&*self.service).await? {
                Some(_) => return Ok(true),
                None if tokio::time::Instant::now() >= give_up => return Ok(false),
                None => tokio::time::sleep(SUCCESSION_PAUSE).await,
            }
        }
    }

    /// Ends the session; what was written stands however that goes.
    pub(crate) async fn close(self) {
        let _ = self.service.close().await;
    }
}

/// What documents tell that no node does.
pub(crate) struct Seen {
    /// The generation of the cluster document that the service holds.
    pub(crate) generation: u64,
    /// Nodes that are registered and are no members.
    pub(crate) waiting: Vec<Node>,
    /// The plan that is under way.
    pub(crate) plan: Option<Planned>,
    /// Whether some process holds the office of headmaster.
    pub(crate) has_headmaster: bool,
    /// That process and for how long it has not renewed its lease, if it is long overdue.
    pub(crate) headmaster_silent: Option<(String, Duration)>,
    /// The oldest order without an answer.
    pub(crate) order: Option<Given>,
}

/// What a command found that looks at documents it can do without.
pub(crate) enum Look {
    /// The documents.
    Seen(Box<Seen>),
    /// A service that holds no cluster.
    Empty {
        /// Its address.
        address: Address,
    },
    /// Nothing, because the service or its documents cannot be read from here.
    Unread {
        /// Its address.
        address: Address,
        /// Why not.
        reason: String,
    },
    /// Nothing: no node says where the documents are, or they are on their way to another service.
    Nowhere,
}

impl Look {
    /// The documents, if they could be read.
    pub(crate) fn seen(self) -> Option<Seen> {
        if let Look::Seen(seen) = self { Some(*seen) } else { None }
    }
}

/// Looks at the documents, for a command that can do without.
pub(crate) async fn look(shared: &Shared) -> Look {
    let Ok(Ok((address, is_here))) = tokio::time::timeout(LOOK_TIME_MAX, named_by_nodes(shared)).await else {
        return Look::Nowhere;
    };
    match &address {
        Address::Directory(directory) if !directory.is_dir() => {
            // Opening would make it; and on another machine nobody expects it.
            return if is_here { Look::Empty { address } } else { Look::Nowhere };
        }
        _ => {}
    }
    let looked = tokio::time::timeout(LOOK_TIME_MAX, look_at(&address)).await;
    let reason = match looked {
        Ok(Ok(Some(seen))) => return Look::Seen(Box::new(seen)),
        Ok(Ok(None)) => return Look::Empty { address },
        Ok(Err(Unread::Moves)) => return Look::Nowhere,
        Ok(Err(Unread::Because(reason))) => reason,
        Err(_) => format!("no answer within {} s", LOOK_TIME_MAX.as_secs()),
    };
    Look::Unread { address, reason }
}

/// Why documents were not read.
enum Unread {
    Moves,
    Because(String),
}

impl From<ReadError> for Unread {
    fn from(error: ReadError) -> Unread {
        match error {
            ReadError::Moved(_) | ReadError::Moving(_) | ReadError::Arriving(_) => Unread::Moves,
            ReadError::Coordination(CoordinationError::Unavailable { reason }) => Unread::Because(reason),
            error => Unread::Because(error.to_string()),
        }
    }
}

/// Reads the documents at an address; `None` where there is no cluster.
async fn look_at(address: &Address) -> Result<Option<Seen>, Unread> {
    let place =
        Place { address: address.clone(), session_timeout: SESSION_TIMEOUT_DEFAULT, credentials: None };
    let service = match place.open(false, LOOK_OPEN_TIME_MAX).await {
        Ok(service) => service,
        Err(OpenError::NoChroot { .. }) => return Ok(None),
        Err(error) => return Err(Unread::Because(error.to_string())),
    };
    let service = &*service;
    let Some(cluster) = read_cluster(service).await? else { return Ok(None) };
    // Who has left, and still runs, is none that waits.
    let active = active_nodes_now(service).await?.into_iter().filter(|active| active.cluster.is_none());
    let waiting = active.map(|active| active.node).filter(|node| cluster.node(node.id).is_none()).collect();
    let plans = plans::read_all(service).await?.into_iter().rev();
    let plan = plans.filter_map(|(_, found)| found.ok()).find(Planned::is_under_way);
    let headmaster = holder(service).await.map_err(ReadError::Coordination)?.map(|(_, candidate)| candidate);
    let now = crate::clocks::now_ms().unsigned_abs();
    let has_headmaster = headmaster.is_some();
    let headmaster_silent =
        headmaster.and_then(|candidate| Some((lease::overdue(&candidate, now)?, candidate.process)));
    let headmaster_silent = headmaster_silent.map(|(silent, process)| (process, silent));
    let order = orders::oldest_waiting(service).await?;
    let _ = service.close().await;
    Ok(Some(Seen {
        generation: cluster.generation.0,
        waiting,
        plan,
        has_headmaster,
        headmaster_silent,
        order,
    }))
}

pub(crate) fn unread(error: ReadError) -> CliError {
    match error {
        ReadError::Coordination(error) => error.into(),
        error => CliError::Other(error.to_string()),
    }
}

/// The service of the first node that answers, and whether that node is on this machine.
async fn named_by_nodes(shared: &Shared) -> Result<(Address, bool), CliError> {
    let client = shared.client().await?;
    let mut reasons = Vec::new();
    for node in &client.cluster().nodes {
        match client.status(node.id).await {
            Ok(status) => {
                let status: Json = serde_json::from_slice(&status).unwrap_or(Json::Null);
                if let Some(address) = status["place"]["coordination_directory"].as_str()
                    && !address.is_empty()
                {
                    let address = address.parse().map_err(|error| {
                        CliError::Other(format!("{} names no coordination service: {error}", node.id))
                    })?;
                    return Ok((address, crate::serve::is_local(&node.native)));
                }
            }
            Err(error) => reasons.push(format!("{}: {error}", node.id)),
        }
    }
    Err(CliError::Other(format!(
        "no node names the coordination service ({}); give its address with --coordination",
        reasons.join("; ")
    )))
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
