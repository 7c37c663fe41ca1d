//! The copies of a key that would be left if the harm came now against which the store's setting promises to protect.
//!
//! | setting | what counts as a copy |
//! |---|---|
//! | every write synced | what the log engine finds on the disk after a power cut, of which only synced bytes survive |
//! | grouped, or left to the system | what the log engine finds on the disk after the end of the process |
//! | memory engine | what the engine of the running process holds |
//!
//! The log engine itself reads what is left, from a copy of its directory, as a restarted node would.
//!
//! Must never: change what is in the world that it looks at, nor draw from its dice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use model::{Cluster, NodeId, PartitionId, Store, Token};
use parking_lot::Mutex;
use protocol::rebalance::entering::Part;
use runtime::{BoxFuture, Clock, Tasks};
use storage::{Durability, EnginePorts, LogEngine, StorageEngine};

use crate::history::Remains;
use crate::machine::{Machine, log_options};
use crate::records::{HINTS, engine_of, hint_name, read_hint, read_record};
use crate::swarm::EngineKind;
use crate::witness::Witness;

/// A reader of what would be left.
pub struct Copies {
    engine: EngineKind,
    clock: Arc<dyn Clock>,
    /// The newest document.
    cluster: Mutex<Option<Arc<Cluster>>>,
    /// Who holds which bucket, by any document so far: the bounds of partitions change.
    held: Mutex<BTreeSet<(PartitionId, NodeId)>>,
    opened: Mutex<BTreeMap<(NodeId, String), Opened>>,
}

/// An engine on a copy of a directory, and the number of the directory's changes when it was copied.
type Opened = (u64, Arc<dyn StorageEngine>);

impl Copies {
    /// Of a run with this kind of engine.
    pub fn new(engine: EngineKind, clock: Arc<dyn Clock>) -> Copies {
        let (cluster, held, opened) = Default::default();
        Copies { engine, clock, cluster, held, opened }
    }

    /// A document was published.
    pub fn published(&self, cluster: Cluster) {
        let (mut held, buckets) = (self.held.lock(), cluster.by_bucket());
        for (partition, store) in
            buckets.partitions().iter().flat_map(|part| cluster.stores.iter().map(move |store| (part, store)))
        {
            let ids = cluster.nodes.iter().map(|node| node.id);
            let holders = ids.filter(|&node| Part::of(store, partition, node) != Part::Nothing);
            held.extend(holders.map(|node| (partition.id, node)));
        }
        drop(held);
        *self.cluster.lock() = Some(Arc::new(cluster));
    }

    /// Whether a node holds the bucket by any document so far.
    fn has_held(&self, bucket: PartitionId, node: NodeId) -> bool {
        self.held.lock().contains(&(bucket, node))
    }

    /// What would be left of a key; `None` before the cluster is founded.
    ///
    /// # Errors
    /// Names the engine that would not open.
    pub fn of_key(
        &self,
        machines: &[Machine],
        witness: &Witness,
        store: &'static str,
        key: &Bytes,
    ) -> Option<Result<Remains, String>> {
        let cluster = self.cluster.lock().clone()?;
        let definition = cluster.stores.iter().find(|known| known.name.as_str() == store)?;
        Some(self.read(machines, witness, (&cluster, definition), store, key))
    }

    fn read(
        &self,
        machines: &[Machine],
        witness: &Witness,
        (cluster, definition): (&Cluster, &Store),
        store: &'static str,
        key: &Bytes,
    ) -> Result<Remains, String> {
        let token = definition.token(key);
        let partition = cluster.ring.partition(token);
        let bucket = PartitionId(cluster.bucket_tokens().map_or(0, |tokens| (token.0 / tokens) as u32));
        // Who holds it while it moves: those that did and those that will. A hint counts for whoever it is for: one for
        // a node that has left goes to those that came.
        let holds = |node| Part::of(definition, partition, node) != Part::Nothing;
        let (replicas, former, hints) = Default::default();
        let mut remains = Remains { store, key: key.clone(), replicas, former, hints };
        let name = hint_name(store, key);
        for machine in machines {
            let (is_own, was_own) = (holds(machine.id()), self.has_held(bucket, machine.id()));
            if is_own || was_own {
                let engine = self.engine(machine, witness, &engine_of(store))?;
                // What cannot be read is no copy.
                let record = engine.and_then(|engine| engine.get(bucket, token, key).ok().flatten());
                let set = record.and_then(|record| read_record(&record)).unwrap_or_default();
                let of = if is_own { &mut remains.replicas } else { &mut remains.former };
                of.push((machine.id(), set));
            }
            let Some(engine) = self.engine(machine, witness, HINTS)? else { continue };
            for target in machines.iter().map(Machine::id) {
                let parked = engine.get(PartitionId(target.0), Token::of(&name), &name).ok().flatten();
                if let Some((_, set)) = parked.and_then(|record| read_hint(&name, &record)) {
                    remains.hints.push((machine.id(), target, set));
                }
            }
        }
        Ok(remains)
    }

    /// The engine that holds what would be left; `None` where nothing would.
    fn engine(
        &self,
        machine: &Machine,
        witness: &Witness,
        name: &str,
    ) -> Result<Option<Arc<dyn StorageEngine>>, String> {
        let EngineKind::Log(durability) = self.engine else {
            return Ok(witness.engine(machine.id(), name));
        };
        let changes = machine.disk().changes(name);
        let mut opened = self.opened.lock();
        if let Some((of, engine)) = opened.get(&(machine.id(), name.to_owned()))
            && *of == changes
        {
            return Ok(Some(engine.clone()));
        }
        let left = match durability {
            Durability::Always => machine.disk().after_power_cut(name),
            _ => machine.disk().after_kill(name),
        };
        let ports = EnginePorts { clock: self.clock.clone(), tasks: Arc::new(NoTasks) };
        let opening = LogEngine::open(Arc::new(left), name, log_options(durability), ports);
        let engine =
            opening.now_or_never().expect("the copy of a disk makes nobody wait").map_err(|error| {
                format!("{}: {name} could not be opened if the harm came now: {error}", machine.id())
            })?;
        opened.insert((machine.id(), name.to_owned()), (changes, engine.clone()));
        Ok(Some(engine))
    }
}

/// Runs nothing: an engine that is only read needs nothing to run.
struct NoTasks;

impl Tasks for NoTasks {
    fn spawn(&self, _: BoxFuture<'static, ()>) {}
    fn spawn_background(&self, _: BoxFuture<'static, ()>) {}
    fn spawn_waiting(&self, _: Box<dyn FnOnce() + Send>) {}
}
