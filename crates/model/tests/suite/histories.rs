//! Reachable histories of one key, played against a model of true causality.
//!
//! Replicas stamp, exchange whole sets, forget the key, and crash back to what they had synced; sets travel in any
//! order, twice or never; clients read somewhere and write elsewhere, with what they read long ago or with nothing.
//! Beside each set the history keeps the truth: *which writes it knows*, as a plain set of writes, and for each
//! write the set of writes that came before it. After every step the replica must show exactly the writes that it
//! knows and that no write it knows came after.
//!
//! ```text
//!   replica: state ── knows ──▶ {w1, w2, w4}          w4 came after {w1}
//!   shown = known writes without a known successor  =  {w2, w4}
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;
use model::versions::Stamp;
use model::{Actor, Context, Dot, NodeId, Value, WallMillis};
use proptest::collection::vec;
use proptest::prelude::*;

use super::subjects::Subject;

/// Nodes of a history: replicas and fallbacks alike, for to a set they are the same.
pub const NODES: usize = 4;
pub const CLIENTS: usize = 3;

/// One thing that happens. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
pub enum Step {
    /// A client reads two replicas (or one, twice) and keeps the merged context.
    Read { client: usize, replicas: [usize; 2] },
    /// A client writes through a replica, with its context or without.
    Put { client: usize, replica: usize, with_context: bool, delete: bool, wall: u8 },
    /// A replica's set leaves for anybody.
    Send { replica: usize },
    /// A set that once left arrives; it stays on its way, to arrive again.
    Deliver { message: usize, replica: usize },
    /// A replica drops its record: a hint delivered, a partition moved away, a tombstone collected.
    Forget { replica: usize },
    /// What a replica holds becomes durable.
    Sync { replica: usize },
    /// A replica restarts with what was durable, knowing that it may have forgotten.
    Crash { replica: usize },
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (client, replica) = (0..CLIENTS, 0..NODES);
    let step = prop_oneof![
        3 => (client.clone(), [replica.clone(), replica.clone()])
            .prop_map(|(client, replicas)| Step::Read { client, replicas }),
        6 => (client, replica.clone(), prop::bool::weighted(0.8), prop::bool::weighted(0.2), 0..4_u8).prop_map(
            |(client, replica, with_context, delete, wall)| Step::Put { client, replica, with_context, delete, wall }
        ),
        2 => replica.clone().prop_map(|replica| Step::Send { replica }),
        4 => (any::<usize>(), replica.clone()).prop_map(|(message, replica)| Step::Deliver { message, replica }),
        1 => replica.clone().prop_map(|replica| Step::Forget { replica }),
        1 => replica.clone().prop_map(|replica| Step::Sync { replica }),
        1 => replica.prop_map(|replica| Step::Crash { replica }),
    ];
    vec(step, 1..50)
}

/// A way to break the rules around the sets, so that the checks can be seen to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A node that forgot the key stamps under the actor that it used before.
    ActorReusedAfterForgetting,
    /// A node that crashed goes on under the actor that its old record names.
    ActorKeptAfterCrash,
    /// A writer is handed a context that covers siblings which it never read.
    ContextOfPutCoversSiblings,
    /// A node stamps with its own clock alone.
    TimestampIgnoresPast,
}

/// What was found to be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    DotTwice(Dot),
    Siblings { step: usize, shown: Vec<usize>, truth: Vec<usize> },
    Vector { step: usize, write: usize },
    Promise(String),
}

/// Writes as a bit set; a history has fewer than 64.
pub type Writes = u64;

fn listed(writes: Writes) -> Vec<usize> {
    (0..64).filter(|write| writes >> write & 1 == 1).collect()
}

/// A state, and the writes that it knows in truth.
#[derive(Clone, Debug, Default)]
pub struct Knowing<S> {
    pub state: S,
    pub known: Writes,
}

#[derive(Clone, Debug, Default)]
struct Record<S> {
    held: Knowing<S>,
    own: Option<Actor>,
}

#[derive(Clone, Debug, Default)]
struct Node<S> {
    record: Record<S>,
    durable: Record<S>,
    incarnation: u64,
    births: u64,
}

#[derive(Clone, Debug, Default)]
struct Client {
    context: Context,
    known: Writes,
}

/// A history under way.
pub struct World<S> {
    bug: Option<Bug>,
    nodes: Vec<Node<S>>,
    clients: Vec<Client>,
    /// Sets that have left some replica, and never expire.
    messages: Vec<Knowing<S>>,
    /// Each write's past, itself not included.
    pasts: Vec<Writes>,
    dots: BTreeMap<Dot, usize>,
    /// Every state that any replica was ever in.
    pub seen: Vec<Knowing<S>>,
}

impl<S: Subject> World<S> {
    pub fn new(bug: Option<Bug>) -> Self {
        World {
            bug,
            nodes: vec![Node::default(); NODES],
            clients: vec![Client::default(); CLIENTS],
            messages: Vec::new(),
            pasts: Vec::new(),
            dots: BTreeMap::new(),
            seen: vec![Knowing::default()],
        }
    }

    /// Plays all steps; the first violation ends it.
    pub fn play(&mut self, steps: &[Step]) -> Result<(), Violation> {
        for (position, step) in steps.iter().enumerate() {
            let touched = self.step(step)?;
            if let Some(replica) = touched {
                self.check(position, replica)?;
                self.seen.push(self.nodes[replica].record.held.clone());
            }
        }
        Ok(())
    }

    /// Returns the replica whose set may have changed.
    fn step(&mut self, step: &Step) -> Result<Option<usize>, Violation> {
        match *step {
            Step::Read { client, replicas } => {
                let mut merged = Knowing::<S>::default();
                for replica in replicas {
                    merged.state.merge(&self.nodes[replica].record.held.state);
                    merged.known |= self.nodes[replica].record.held.known;
                }
                self.clients[client] = Client { context: merged.state.context(), known: merged.known };
                return Ok(None);
            }
            Step::Put { client, replica, with_context, delete, wall } => {
                self.put(client, replica, with_context, delete, WallMillis(u64::from(wall)))?;
                return Ok(Some(replica));
            }
            Step::Send { replica } => self.messages.push(self.nodes[replica].record.held.clone()),
            Step::Deliver { message, replica } => {
                if let Some(position) = message.checked_rem(self.messages.len()) {
                    let held = &mut self.nodes[replica].record.held;
                    held.state.merge(&self.messages[position].state);
                    held.known |= self.messages[position].known;
                    return Ok(Some(replica));
                }
            }
            Step::Forget { replica } => self.nodes[replica].record = Record::default(),
            Step::Sync { replica } => self.nodes[replica].durable = self.nodes[replica].record.clone(),
            Step::Crash { replica } => {
                let node = &mut self.nodes[replica];
                node.record = node.durable.clone();
                node.incarnation += 1;
                node.births = 0;
            }
        }
        Ok(None)
    }

    fn put(
        &mut self,
        client: usize,
        replica: usize,
        with_context: bool,
        delete: bool,
        wall: WallMillis,
    ) -> Result<(), Violation> {
        let write = self.pasts.len();
        let actor = self.actor(replica);
        let held = &mut self.nodes[replica].record.held;
        let client = &mut self.clients[client];
        let context = with_context.then_some(&client.context);
        let past = if with_context { client.known } else { held.known };
        let seen = held.state.context().timestamp.max(context.map(|c| c.timestamp).unwrap_or_default());
        let seen = if self.bug == Some(Bug::TimestampIgnoresPast) { Default::default() } else { seen };
        let value = match delete {
            true => Value::Tombstone,
            false => Value::Present(Bytes::from(vec![write as u8])),
        };
        let stamp = Stamp { actor, timestamp: seen.next(wall), expires: None, value };
        let dot = held.state.put(stamp, context);
        if self.dots.insert(dot, write).is_some() {
            return Err(Violation::DotTwice(dot));
        }
        self.pasts.push(past);
        held.known |= past | 1 << write;
        // A vector cannot say "this write but not the one before it by the same actor". So the writer learns a
        // context only where its write is alone; beside siblings it keeps the context that it had.
        if held.state.siblings().len() == 1 {
            *client = Client { context: held.state.context(), known: held.known };
        } else if self.bug == Some(Bug::ContextOfPutCoversSiblings) {
            *client = Client { context: held.state.context(), known: past | 1 << write };
        }
        Ok(())
    }

    /// Under whom a replica stamps: the actor that its record names, if this incarnation minted it, else a new one.
    fn actor(&mut self, replica: usize) -> Actor {
        let node = &mut self.nodes[replica];
        let kept = node
            .record
            .own
            .filter(|own| own.incarnation == node.incarnation || self.bug == Some(Bug::ActorKeptAfterCrash));
        let actor = kept.unwrap_or_else(|| {
            node.births += 1;
            let reused = self.bug == Some(Bug::ActorReusedAfterForgetting);
            let birth = if reused { 0 } else { node.births };
            Actor { node: NodeId(replica as u32), incarnation: node.incarnation, birth }
        });
        node.record.own = Some(actor);
        actor
    }

    fn check(&self, step: usize, replica: usize) -> Result<(), Violation> {
        let Knowing { state, known } = &self.nodes[replica].record.held;
        let mut shown = 0;
        for dot in state.siblings() {
            shown |= 1 << self.dots[&dot];
        }
        let truth = self.antichain(*known);
        if shown != truth {
            return Err(Violation::Siblings { step, shown: listed(shown), truth: listed(truth) });
        }
        // That planted bug shows in the vectors first; what matters is that it then loses a sibling.
        let vectors_lie = self.bug == Some(Bug::ContextOfPutCoversSiblings);
        let vector = state.context().vector;
        for (dot, write) in &self.dots {
            if !vectors_lie && vector.covers(*dot) != (known >> write & 1 == 1) {
                return Err(Violation::Vector { step, write: *write });
            }
        }
        state.check().map_err(Violation::Promise)
    }

    /// The known writes that no known write came after.
    fn antichain(&self, known: Writes) -> Writes {
        let replaced = listed(known).into_iter().fold(0, |replaced, write| replaced | self.pasts[write]);
        known & !replaced
    }
}
