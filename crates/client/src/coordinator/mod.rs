//! Drives one request to its quorum.
//!
//! ```text
//!  caller ── get/write ──► Coordinator ── start/step ──► protocol::quorum   (decides)
//!                              │  ▲
//!                         calls│  │answers
//!                              ▼  │
//!                           Replicas: links to other nodes, and this node itself
//! ```
//!
//! Client and node share this code. A node's [`Replicas`] answers for the node itself without a link; a client's
//! has no node and drives only gets. When the caller has its answer and replicas are still out, the rest
//! of the request (late acknowledgements, hints, read repair) goes on in a separate task until its deadline. When
//! a replica hands over a newer cluster document, the same request starts again under it, a write with the same dot.
//!
//! **Architecture Invariant:** the driver never counts acknowledgements and never picks a node; the machine never
//! waits.

mod calls;
mod contents;
mod drive;
mod get;
mod laggards;
mod multi_get;
mod multi_write;
mod newer;
mod parcels;
mod probe;
mod repairs;
mod stamp;
mod write;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use model::{Cluster, Epoch, Generation, Moment, NodeId, PreferenceList, Store, VersionSet};
use protocol::quorum::{Errors, QuorumOptions, ReplicaError, Spared};
use runtime::{BoxFuture, Ports};
use smallvec::SmallVec;
use wire::error::{ErrorCode, Outcome};
use wire::messages::{Failure, Request, RequestOptions, Role, StoreRef};

use crate::peers::{Call, CallError};
use laggards::Laggards;

pub use contents::Contents;
pub use multi_get::MultiGot;
pub use multi_write::AllDurable;
pub use parcels::{entry_bytes, parcels};
pub use repairs::{REPAIRS_MAX, Repairs};
pub use stamp::{Answers, Errand, Stamped, Stampers, Unwritten, all, stamp};
pub use write::{Acked, OwnWrite};

/// Deadline of a request that names none: long enough for a busy disk, short enough for a person to wait.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(5);

/// How long a node may take before another one is brought in beside it: far above a healthy node's answer with a
/// grouped sync, far below a deadline.
pub const HEDGE_AFTER_DEFAULT: Duration = Duration::from_millis(50);

/// Starts of one request under ever newer cluster documents before it gives up.
const REFRESHES_MAX: usize = 8;

/// The nodes, as a coordinator reaches them.
pub trait Replicas: Send + Sync + 'static {
    /// The coordinator's own node, if it is one.
    fn own(&self) -> Option<NodeId>;

    /// Sends a request to a node, the own one included.
    fn call(&self, node: NodeId, request: Request) -> Call;

    /// Whether the node is better avoided.
    fn is_suspected(&self, node: NodeId) -> bool;

    /// Keeps a hint at the own node, as well as that goes. Clients have no own node and are never asked.
    fn park(&self, scope: &Scope, target: NodeId, key: &Bytes, set: &VersionSet);

    /// Takes in a cluster document that a replica handed over to whoever holds `base`, whole or as what changed since.
    /// Returns the newest that is known then.
    fn adopt(&self, document: &[u8], base: &Cluster) -> Arc<Cluster>;
}

/// Under which cluster document and for which store a request runs.
#[derive(Clone)]
pub struct Scope {
    /// The cluster at the request's generation.
    pub cluster: Arc<Cluster>,
    /// The store.
    pub definition: Arc<Store>,
    /// The store's name, as messages carry it.
    pub store: StoreRef,
    /// What the request reads.
    pub contents: Contents,
    /// Of a write: the collection epoch of its node before the write was stamped. A get's contents have their own.
    pub epoch: Epoch,
}

impl Scope {
    /// Who should hold the key.
    pub fn preference(&self, key: &[u8]) -> PreferenceList {
        self.route(key).0
    }

    /// As what a node is asked for the key.
    pub(crate) fn role(&self, node: NodeId, key: &[u8]) -> Role {
        let partition = self.cluster.ring.partition(self.definition.token(key));
        match model::routing::replicas(&self.definition, partition).contains(&node) {
            true => Role::Replica,
            false => Role::StandIn,
        }
    }

    /// Who should hold the key, and the generation since which that is so.
    pub(crate) fn route(&self, key: &[u8]) -> (PreferenceList, Generation) {
        let (partition, preference) = self.cluster.route(&self.definition, self.definition.token(key));
        if self.is_read_only() {
            // Whoever holds the artifact answers truly, wherever the key is to lie.
            return (preference, Generation::default());
        }
        (preference, self.cluster.accepted_since(&self.definition, partition))
    }
}

/// Settings of a coordinator.
#[derive(Clone, Copy, Debug)]
pub struct CoordinatorOptions {
    /// Deadline of requests that name none. Default: [`DEADLINE_DEFAULT`].
    pub deadline: Duration,
    /// How long a node may take before another one is brought in. Default: [`HEDGE_AFTER_DEFAULT`].
    pub hedge_after: Duration,
    /// Whether a request begins at any of a key's replicas, drawn for each, instead of the first. Default: no.
    pub spread: bool,
    /// Read repairs that may be under way at the same time; with 0, replicas are never repaired by reads. Default:
    /// [`REPAIRS_MAX`].
    pub repairs_max: usize,
    /// Whether it is an application's. In a closed cluster such a one may write to no replica itself, so its reads repair
    /// replicas by having a node read the same keys. Default: no.
    pub is_application: bool,
}

impl Default for CoordinatorOptions {
    fn default() -> Self {
        CoordinatorOptions {
            deadline: DEADLINE_DEFAULT,
            hedge_after: HEDGE_AFTER_DEFAULT,
            spread: false,
            repairs_max: REPAIRS_MAX,
            is_application: false,
        }
    }
}

/// Drives requests. One for each worker of a node, or for each client.
pub struct Coordinator {
    replicas: Arc<dyn Replicas>,
    ports: Ports,
    options: CoordinatorOptions,
    repairs: Arc<Repairs>,
    laggards: Laggards,
    /// Whether a node is being asked for its document, or was a moment ago.
    catching_up: AtomicBool,
}

/// Which of a store's two numbers of required answers a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Coordinator {
    /// Over these nodes.
    pub fn new(replicas: Arc<dyn Replicas>, ports: Ports, options: CoordinatorOptions) -> Arc<Self> {
        Coordinator::sharing(replicas, ports, options, Arc::default())
    }

    /// As [`Self::new`], with an account of read repairs that other coordinators share.
    pub fn sharing(
        replicas: Arc<dyn Replicas>,
        ports: Ports,
        options: CoordinatorOptions,
        repairs: Arc<Repairs>,
    ) -> Arc<Self> {
        let (laggards, catching_up) = Default::default();
        Arc::new(Coordinator { replicas, ports, options, repairs, laggards, catching_up })
    }

    /// The nodes that it reaches.
    pub fn replicas(&self) -> &Arc<dyn Replicas> {
        &self.replicas
    }

    /// Who should hold the key, in the order in which to ask.
    pub(crate) fn preference(&self, scope: &Scope, key: &[u8]) -> PreferenceList {
        self.route(scope, key).0
    }

    /// The same, and the generation since which that is so.
    fn route(&self, scope: &Scope, key: &[u8]) -> (PreferenceList, Generation) {
        let (preference, since) = scope.route(key);
        match self.options.spread {
            true => (preference.beginning_at(self.ports.entropy.next_u64() as u32 as usize), since),
            false => (preference, since),
        }
    }

    /// How long a node may take before another one is brought in beside it.
    pub fn hedge_after(&self) -> Duration {
        self.options.hedge_after
    }

    /// When a request that starts now must be answered.
    pub fn deadline(&self, options: &RequestOptions) -> Moment {
        self.ports.clock.now().after(self.span(options))
    }

    /// How long a request may take.
    pub fn span(&self, options: &RequestOptions) -> Duration {
        match options.deadline_ms {
            0 => self.options.deadline,
            ms => Duration::from_millis(u64::from(ms)),
        }
    }

    /// The options of a request that began at `began`, with what is left of its time, at least a millisecond.
    pub fn what_is_left(&self, options: &RequestOptions, began: Moment) -> RequestOptions {
        let now = self.ports.clock.now();
        let left = self.deadline(options).since(now).saturating_sub(now.since(began));
        let deadline_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1);
        RequestOptions { deadline_ms, ..options.clone() }
    }

    /// Waits for a call until the request's deadline; a late one counts as broken.
    pub async fn within_deadline<T>(
        &self,
        call: BoxFuture<'static, Result<T, CallError>>,
        options: &RequestOptions,
    ) -> Result<T, CallError> {
        let timer = self.ports.clock.sleep_until(self.deadline(options));
        match futures_util::future::select(call, timer).await {
            futures_util::future::Either::Left((answer, _)) => answer,
            futures_util::future::Either::Right(_) => Err(CallError::Broken),
        }
    }

    fn quorum_options(
        &self,
        scope: &Scope,
        options: &RequestOptions,
        direction: Direction,
        (deadline, since): (Moment, Generation),
    ) -> QuorumOptions {
        let definition = &scope.definition;
        let (required, spared, sloppy) = match scope.is_read_only() {
            // All replicas hold the same, so one answer is all there is to know; a fallback would hold nothing.
            true => (1, Spared::default(), false),
            false => required(definition, options, direction),
        };
        let preferred = options.preferred.filter(|_| !scope.is_read_only());
        let (held, spared) = match direction {
            Direction::Read => {
                let (old, new) = definition.numbers_written();
                Spared::of(definition.read_holders(old), definition.read_holders(new))
            }
            Direction::Write => (0, spared),
        };
        QuorumOptions {
            required,
            preferred: preferred.unwrap_or(required),
            sloppy,
            held,
            spared,
            hedge_after: self.options.hedge_after,
            deadline,
            wall: self.ports.clock.wall(),
            generation: scope.cluster.generation,
            since,
        }
    }

    /// Nodes that were lately found behind: better read last, and better not asked to stamp what they may know less of.
    pub(crate) fn lagging(&self) -> SmallVec<[NodeId; 4]> {
        if self.laggards.is_any() { self.laggards.nodes(self.ports.clock.now()) } else { SmallVec::new() }
    }

    fn suspected(&self, preference: &PreferenceList) -> SmallVec<[NodeId; 4]> {
        let all = preference.writers().iter().chain(preference.fallbacks());
        all.copied().filter(|&node| self.replicas.is_suspected(node)).collect()
    }
}

/// The options of a message that is sent at `at`, of a request that must be answered by `end`.
pub fn left_at(at: Moment, end: Moment, options: &RequestOptions) -> RequestOptions {
    let left = end.since(at).as_millis();
    RequestOptions { deadline_ms: u32::try_from(left).unwrap_or(u32::MAX).max(1), ..options.clone() }
}

/// Answers that a request must have, what each of two sets of replicas is spared of that, and whether fallbacks give
/// them: by its options, or else by its store.
fn required(definition: &Store, options: &RequestOptions, direction: Direction) -> (u8, Spared, bool) {
    let (old, new) = definition.numbers_written();
    let (required, spared) = match (direction, options.required) {
        // Gets ask one set.
        (Direction::Read, named) => {
            (named.unwrap_or(definition.numbers_read().reads_required), Spared::default())
        }
        (Direction::Write, None) => Spared::of(old.writes_required, new.writes_required),
        (Direction::Write, Some(named)) => (named, Spared::of_named(named, old.replicas, new.replicas)),
    };
    (required, spared, options.sloppy.unwrap_or(definition.sloppy))
}

/// The newer cluster document that an error carries, if any.
fn document_of(error: &CallError) -> Option<Bytes> {
    match error {
        CallError::Refused(failure) => failure.cluster.clone(),
        _ => None,
    }
}

/// What a machine hears about a call that failed. `generation` is that of the document the node handed over.
fn replica_error(error: &CallError, newest: model::Generation) -> ReplicaError {
    match error {
        CallError::Unreachable { .. } => ReplicaError::Unreachable,
        CallError::Broken => ReplicaError::Lost,
        CallError::Refused(failure) => code_error(failure.code, newest),
    }
}

fn code_error(code: ErrorCode, newest: model::Generation) -> ReplicaError {
    match code {
        ErrorCode::Overloaded | ErrorCode::TooManyConnections => ReplicaError::Overloaded,
        ErrorCode::DiskFull => ReplicaError::DiskFull,
        ErrorCode::StorageFailed => ReplicaError::StorageFailed,
        ErrorCode::Corrupt => ReplicaError::Corrupt,
        ErrorCode::StaleGeneration => ReplicaError::StaleGeneration { generation: newest },
        ErrorCode::Behind => ReplicaError::Behind,
        ErrorCode::UnknownStore => ReplicaError::UnknownStore,
        ErrorCode::Forbidden | ErrorCode::Unauthenticated => ReplicaError::Forbidden,
        ErrorCode::TooManySiblings => ReplicaError::TooManySiblings,
        ErrorCode::ValueTooLarge => ReplicaError::ValueTooLong,
        ErrorCode::KeyUnfit => ReplicaError::KeyUnfit,
        ErrorCode::RecordTooLong => ReplicaError::RecordTooLong,
        ErrorCode::FrameTooLong => ReplicaError::AnswerTooLong,
        ErrorCode::ArtifactNotHere => ReplicaError::NotHere,
        other if other.outcome() == Outcome::Failed => ReplicaError::Unavailable,
        _ => ReplicaError::Lost,
    }
}

/// What nodes said, for people.
fn describe(errors: &Errors) -> String {
    let each: Vec<String> = errors.iter().map(|(node, error)| format!("{node} {error}")).collect();
    if each.is_empty() { "timed out".to_owned() } else { each.join(", ") }
}

/// The refusal when all nodes that failed said the same typed thing, which the caller can act on.
fn common_refusal(errors: &Errors) -> Option<ErrorCode> {
    let code = |error: &ReplicaError| match error {
        ReplicaError::DiskFull => Some(ErrorCode::DiskFull),
        ReplicaError::UnknownStore => Some(ErrorCode::UnknownStore),
        ReplicaError::Forbidden => Some(ErrorCode::Forbidden),
        ReplicaError::ValueTooLong => Some(ErrorCode::ValueTooLarge),
        ReplicaError::KeyUnfit => Some(ErrorCode::KeyUnfit),
        ReplicaError::RecordTooLong => Some(ErrorCode::RecordTooLong),
        ReplicaError::AnswerTooLong => Some(ErrorCode::FrameTooLong),
        ReplicaError::NotHere => Some(ErrorCode::ArtifactNotHere),
        ReplicaError::TooManySiblings => Some(ErrorCode::TooManySiblings),
        ReplicaError::Overloaded => Some(ErrorCode::Overloaded),
        ReplicaError::Corrupt => Some(ErrorCode::Corrupt),
        _ => None,
    };
    let first = code(&errors.first()?.1)?;
    errors.iter().all(|(_, error)| code(error) == Some(first)).then_some(first)
}

fn too_many_refreshes() -> Failure {
    Failure::new(
        ErrorCode::Overloaded,
        format!("the cluster document changed {REFRESHES_MAX} times while the request ran; try again"),
    )
}
