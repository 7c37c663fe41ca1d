//! Plans as documents: what shall move, and how far that is.
//!
//! A plan never changes once it is created. What changes stands beside it, in a document of its own that only a
//! headmaster writes; a plan without one has only been created.
//!
//! **Architecture Invariant:** whether a partition has moved is said by the ring alone. The state tells people.

mod lengths;

use std::collections::BTreeMap;

use bytes::Bytes;
use coordination::documents::ReadError;
use coordination::documents::numbered::{look, numbered_path, numbers, plan_state_path, plans_path};
use coordination::{CoordinationError, CoordinationService, Document, DocumentPath};
use model::{Cluster, Generation, NodeId, PartitionId, Step};
use protocol::rebalance::planner::{self, Consent, Move, Plan, Refusal, Renumber, Reshape, Reshaped, Wish};
use protocol::rebalance::steps::Waiting;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use lengths::{BroughtIn, PlanPace};

/// Plans that are kept.
pub const PLANS_KEPT: usize = 100;
/// Whom moves wait for: so many lines are told.
const WAITING_SHOWN: usize = 8;

/// Room that a plan leaves in the cluster document, for stores and nodes to come.
const ROOM_LEFT: usize = 64 * 1024;
/// Bytes that the cluster document may have by a plan.
pub(crate) const CLUSTER_BYTES_MAX: usize = coordination::DOCUMENT_BYTES_MAX - ROOM_LEFT;

/// The plan that fulfils a wish, if the cluster document has room for what it makes of the ring.
///
/// # Errors
/// When the wish cannot be fulfilled, or names what is not there.
pub fn planned(cluster: &Cluster, wish: &Wish, consent: Consent) -> Result<Plan, Refusal> {
    let plan = planner::plan(cluster, wish, consent)?;
    if let (true, Some(reshape)) = (plan.moves.is_empty(), &plan.reshape) {
        reshape.apply(cluster, CLUSTER_BYTES_MAX)?;
    }
    Ok(plan)
}

/// What shall move, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanDocument {
    /// The order by which it was created.
    pub order: u64,
    /// Who gave that order.
    pub by: String,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// What is wished for.
    pub wish: Wish,
    /// What it may do without being asked again.
    pub consent: Consent,
    /// The document from which it was computed.
    pub generation: Generation,
    /// What moves, in the order of the ring.
    pub moves: Vec<Move>,
    /// What becomes of bounds when all of these have settled: partitions are cut in two, or joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reshape: Option<Reshape>,
    /// The store that gets other numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<Renumber>,
    /// Places of each node as a replica: at present, and then.
    pub places: BTreeMap<NodeId, (usize, usize)>,
    /// About how much is brought in, by what the nodes hold; `None` when they did not say.
    pub estimate: Option<Size>,
    /// Buckets of stores that are brought in somewhere, full or empty.
    #[serde(default)]
    pub units: u64,
    /// How fast this cluster carried out the last plan that tells; `None` when it has carried out none like this one.
    #[serde(default)]
    pub pace: Option<PlanPace>,
    /// Steps that cannot be taken while nodes that are away stay away.
    pub blocked: Vec<String>,
}

/// An amount of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Records.
    pub records: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What has become of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It is carried out.
    Applying,
    /// No partition takes a step until it is resumed.
    Paused,
    /// It is carried out.
    Done,
    /// What moves goes back.
    Aborting,
    /// It was ended by an order: what had not settled is where it was.
    Aborted,
    /// As [`Phase::Aborted`], by no order: the ring was no longer what the plan was computed from.
    Failed,
}

impl Phase {
    /// Whether nothing follows.
    pub fn has_ended(self) -> bool {
        matches!(self, Phase::Done | Phase::Aborted | Phase::Failed)
    }

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Applying => "applying",
            Phase::Paused => "paused",
            Phase::Done => "done",
            Phase::Aborting => "aborting",
            Phase::Aborted => "aborted",
            Phase::Failed => "failed",
        }
    }
}

/// How far a plan is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanState {
    /// What has become of it.
    pub phase: Phase,
    /// The order that changed the phase last.
    pub order: u64,
    /// Why it failed.
    pub reason: Option<String>,
    /// When it was applied, in milliseconds since 1970.
    pub begun_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// How far its moves are.
    pub progress: Progress,
    /// At what rate data comes, by the last seconds; `None` until that is known.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
    /// About how long it will take yet: by its estimate at first, and then by what was measured; `None` when nobody knows.
    #[serde(default)]
    pub seconds_left: Option<u64>,
    /// It was paused, or waited long for nodes that were away, so how long it took tells nothing.
    #[serde(default)]
    pub was_paused: bool,
    /// For whom the first of its moves wait, each once.
    pub waiting: Vec<String>,
}

/// How far the moves of a plan are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Moves that have not begun, or are back where they were.
    pub waiting: usize,
    /// Moves at the step *copying*.
    pub copying: usize,
    /// Moves at the step *joint*.
    pub joint: usize,
    /// Moves at the step *reading-new*.
    pub reading_new: usize,
    /// Moves at *reading-new*, on their way back.
    pub back: usize,
    /// Moves that have settled.
    pub settled: usize,
    /// What nodes that enter have brought in, since their processes started.
    pub copied: Size,
}

/// A plan that is there.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its number.
    pub number: u64,
    /// The plan.
    pub plan: PlanDocument,
    /// How far it is; `None` when it was never applied.
    pub state: Option<PlanState>,
    /// The state as it was read.
    pub(crate) read: Option<Document>,
}

impl Planned {
    /// What has become of it, in a word.
    pub fn word(&self) -> &'static str {
        self.state.as_ref().map_or("created", |state| state.phase.word())
    }

    /// Whether it was applied, and has not ended.
    pub fn is_under_way(&self) -> bool {
        self.state.as_ref().is_some_and(|state| !state.phase.has_ended())
    }
}

/// How a move of a plan stands in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// The partition is where it was.
    Waiting,
    /// It is on its way.
    Under(Step),
    /// It is on its way back.
    Back,
    /// It has arrived.
    Settled,
    /// The ring says something else: it was changed by another hand.
    Changed,
}

impl Stand {
    /// Of a move.
    pub fn of(cluster: &Cluster, one: &Move) -> Stand {
        let Some(partition) = cluster.ring.get(one.partition) else { return Stand::Changed };
        match &partition.coming {
            None if partition.nodes == one.to => Stand::Settled,
            None if partition.nodes == one.from => Stand::Waiting,
            Some(coming) if coming.nodes == one.to && partition.nodes == one.from => {
                Stand::Under(coming.step)
            }
            Some(coming) if coming.nodes == one.from && partition.nodes == one.to => Stand::Back,
            _ => Stand::Changed,
        }
    }

    /// Of a store that gets other numbers: all its partitions stand so.
    pub fn of_store(cluster: &Cluster, numbers: &Renumber) -> Stand {
        let Some(store) = cluster.store(numbers.store.as_str()) else { return Stand::Changed };
        let is = |from, to| store.consistency == from && store.numbers_to_come() == to;
        match store.step() {
            None if store.consistency == numbers.to => Stand::Settled,
            None if store.consistency == numbers.from => Stand::Waiting,
            Some(step) if is(numbers.from, numbers.to) => Stand::Under(step),
            Some(_) if is(numbers.to, numbers.from) => Stand::Back,
            _ => Stand::Changed,
        }
    }
}

impl Progress {
    /// By what the ring says. Bounds are changed last.
    pub fn of(cluster: &Cluster, plan: &PlanDocument) -> Progress {
        if plan.reshaped(cluster) == Some(Reshaped::Done) {
            return Progress { settled: plan.moves.len(), ..Progress::default() };
        }
        let moves = plan.moves.iter().map(|one| (Stand::of(cluster, one), 1));
        let numbers = plan.numbers.iter();
        let numbers = numbers.map(|numbers| (Stand::of_store(cluster, numbers), numbers.partitions));
        let mut progress = Progress::default();
        for (stand, partitions) in moves.chain(numbers) {
            *match stand {
                Stand::Waiting | Stand::Changed => &mut progress.waiting,
                Stand::Under(Step::Copying) => &mut progress.copying,
                Stand::Under(Step::Joint) => &mut progress.joint,
                Stand::Under(Step::ReadingNew) => &mut progress.reading_new,
                Stand::Back => &mut progress.back,
                Stand::Settled => &mut progress.settled,
            } += partitions;
        }
        progress
    }
}

impl PlanDocument {
    /// What the planner says, as a document.
    pub fn new(plan: Plan, wish: Wish, consent: Consent) -> PlanDocument {
        let Plan { generation, moves, reshape, numbers, places } = plan;
        PlanDocument {
            order: 0,
            by: String::new(),
            created_ms: 0,
            wish,
            consent,
            generation,
            moves,
            reshape,
            numbers,
            places,
            estimate: None,
            units: 0,
            pace: None,
            blocked: Vec::new(),
        }
    }

    /// Whether bounds are changed already; `None` for a plan that changes none.
    pub fn reshaped(&self, cluster: &Cluster) -> Option<Reshaped> {
        self.reshape.as_ref().map(|reshape| reshape.stands(&cluster.ring))
    }

    /// How many copies of partitions are brought in somewhere.
    pub fn copies(&self) -> usize {
        let numbers = self.numbers.as_ref().map_or(0, |numbers| numbers.copies);
        self.moves.iter().map(|one| one.entering.len()).sum::<usize>() + numbers
    }

    /// How many partitions it is about: those that move, or all of them when a store gets other numbers.
    pub fn partitions(&self) -> usize {
        self.numbers.as_ref().map_or(self.moves.len(), |numbers| numbers.partitions)
    }

    /// The copies that are brought in somewhere, by the ring as it is.
    pub fn entering(&self, cluster: &Cluster) -> Vec<(NodeId, PartitionId)> {
        let moved = self.moves.iter().flat_map(|one| one.entering.iter().map(|&node| (node, one.partition)));
        let numbers = self.numbers.iter().flat_map(|numbers| {
            let partitions = cluster.ring.partitions().iter();
            partitions.flat_map(|one| numbers.entering(one).iter().map(|&node| (node, one.id)))
        });
        moved.chain(numbers).collect()
    }
}

/// For whom partitions wait, for people: what most of them wait for first.
pub fn told(waiting: &[(PartitionId, Vec<Waiting>)]) -> Vec<String> {
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for waiting in waiting.iter().flat_map(|(_, waiting)| waiting) {
        *lines.entry(waiting.to_string()).or_default() += 1;
    }
    let mut lines: Vec<(String, usize)> = lines.into_iter().collect();
    lines.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let line = |(line, count): (String, usize)| match count {
        1 => line,
        count => format!("{line} ({count} partitions)"),
    };
    lines.into_iter().take(WAITING_SHOWN).map(line).collect()
}

pub(crate) fn encode(document: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(document).expect("documents have text keys and finite numbers"))
}

pub(crate) fn decode<T: DeserializeOwned>(path: &DocumentPath, data: &[u8]) -> Result<T, ReadError> {
    serde_json::from_slice(data)
        .map_err(|error| ReadError::Malformed { path: path.clone(), reason: error.to_string() })
}

/// The plan of this number; `None` when there is none.
///
/// # Errors
/// When it is malformed, which a plan of a later version may be for this one; or when the service refuses.
pub async fn read(service: &dyn CoordinationService, number: u64) -> Result<Option<Planned>, ReadError> {
    let path = numbered_path(&plans_path(), number);
    let Some(found) = look(service, &path).await? else { return Ok(None) };
    let plan = decode(&path, &found.data)?;
    let path = plan_state_path(number);
    let read = look(service, &path).await?;
    let state = read.as_ref().map(|read| decode(&path, &read.data)).transpose()?;
    Ok(Some(Planned { number, plan, state, read }))
}

/// All plans that are kept, the oldest first, each with its number. One that this version does not understand says why.
///
/// # Errors
/// What the service refuses.
pub async fn read_all(
    service: &dyn CoordinationService,
) -> Result<Vec<(u64, Result<Planned, String>)>, ReadError> {
    let mut plans = Vec::new();
    for number in numbers(service, &plans_path()).await? {
        match read(service, number).await {
            Ok(found) => plans.extend(found.map(|planned| (number, Ok(planned)))),
            Err(ReadError::Malformed { reason, .. }) => plans.push((number, Err(reason))),
            Err(error) => return Err(error),
        }
    }
    Ok(plans)
}

/// The numbers of all plans that are kept, ascending.
///
/// # Errors
/// What the service refuses.
pub async fn all_numbers(service: &dyn CoordinationService) -> Result<Vec<u64>, CoordinationError> {
    numbers(service, &plans_path()).await
}
