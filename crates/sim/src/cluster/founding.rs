//! The first documents of a cluster, and machines whose nodes are no members of it: they wait to be named, or have left.

use coordination::CoordinationError;
use coordination::documents::{ActiveNode, ReadError};
use model::Role;

use super::*;
use crate::piloting::PilotCounts;
use crate::swarm::PARTITIONS;

/// Pause before a node that waits looks again whether it is named.
const NAMED_PAUSE: Duration = Duration::from_millis(500);

impl World {
    /// Publishes the cluster's first document.
    pub async fn found(&self) {
        let setup = &self.setup;
        let consistency = Consistency {
            replicas: setup.replicas,
            reads_required: setup.reads,
            writes_required: setup.writes,
        };
        let store = |name: &str| {
            let resolver = if name == siblings::STORE { Resolver::Siblings } else { Resolver::LastWriteWins };
            let name = StoreName::new(name).expect("the name is well formed");
            let store = Store::new(name, consistency).expect("the swarm draws numbers that fit each other");
            let settles = setup.monotonic && setup.plant != Some(Plant::HastyReads);
            let reads = if settles { Reads::Monotonic } else { Reads::Fast };
            let store =
                Store { resolver, sloppy: setup.sloppy, reads, placement: setup.placement(), ..store };
            plant_in_definition(setup.plant, store)
        };
        let off = || Policy {
            mode: Mode::Off,
            settings: Settings { join: Join::Auto, ..Settings::default() },
            ..Policy::founded(0)
        };
        let (standbys, waiting) = setup.autopilot.as_ref().map_or((0, 0), |own| (own.standbys, own.waiting));
        let serving = self.machines.len() - (standbys + waiting) as usize;
        let entries = |machines: &[Machine]| machines.iter().map(|one| self.entry(one.id)).collect();
        let blueprint = Blueprint {
            name: CLUSTER.to_owned(),
            id: Some(ClusterId(1)),
            nodes: entries(&self.machines[..serving]),
            ring: if setup.golden { bootstrap::RingShape::Golden } else { bootstrap::RingShape::Equal },
            partitions: PARTITIONS,
            buckets: setup.buckets,
            stores: self.stores().iter().map(|name| store(name)).collect(),
            policy: setup.autopilot.as_ref().map_or_else(off, Piloted::policy),
            users: model::access::Users::default(),
        };
        let session = self.service.open();
        let mut cluster =
            bootstrap::create(&session, &blueprint).await.expect("nothing disturbs the founding");
        if standbys > 0 {
            let added: Vec<Member> = entries(&self.machines[serving..serving + standbys as usize]);
            cluster.nodes.extend(added.into_iter().map(|node| Member { role: Role::Standby, ..node }));
            cluster.generation = Generation(cluster.generation.0 + 1);
            cluster.nodes_changed = cluster.generation;
            documents::publish_cluster(&session, &cluster).await.expect("nothing disturbs the founding");
        }
    }

    /// What documents say of a machine's node.
    fn entry(&self, id: NodeId) -> Member {
        let zones = match &self.setup.autopilot {
            Some(own) => own.zones,
            None if self.setup.golden => 1,
            None => 3,
        };
        Member::new(id, Zone(format!("z{}", id.0 % zones)), address(id), None)
    }

    /// Waits until the document names this machine's node, which is registered meanwhile. One that was a member and has
    /// left waits for nothing: it does not start.
    pub(super) async fn named(&self, machine: &Machine) {
        loop {
            let session = Arc::new(self.service.open());
            machine.life.lock().session = Some(session.clone());
            let since = self.executor.now().nanos / 1_000_000 + 1;
            let active = ActiveNode::new(self.entry(machine.id), since);
            let mut registered = false;
            loop {
                match documents::read_cluster(&*session).await {
                    Err(ReadError::Coordination(CoordinationError::SessionLost)) => break,
                    Ok(Some(cluster)) if cluster.node(machine.id).is_some() => {
                        let _ = session.close().await;
                        return;
                    }
                    _ => {}
                }
                if documents::read_member(&*session, machine.id).await.is_ok_and(|was| was.is_some()) {
                    return;
                }
                registered = registered || documents::register(&*session, &active).await.is_ok();
                self.executor.sleep(NAMED_PAUSE).await;
            }
        }
    }

    /// The newest cluster document.
    pub fn newest(&self) -> Option<Arc<Cluster>> {
        self.documents.lock().last().map(|(_, cluster)| cluster.clone())
    }

    /// Whether a node belongs to the cluster, and is not called gone. Where nodes neither come nor go, all do.
    pub fn belongs(&self, id: NodeId) -> bool {
        let is_named = |cluster: Arc<Cluster>| cluster.node(id).is_some_and(|node| !node.gone);
        self.setup.autopilot.is_none() || self.newest().is_some_and(is_named)
    }

    /// The machines whose nodes belong to the cluster.
    pub(super) fn members(&self) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(|machine| self.belongs(machine.id))
    }

    /// A node serves from now on.
    pub(super) fn serves(&self, machine: &Machine, node: &Arc<Node>) {
        machine.processor.iter().for_each(|processor| processor.serves(node));
        let now = self.executor.now();
        self.piloting.iter().for_each(|piloting| piloting.lock().lives(now, machine.id));
    }

    /// Its process has ended.
    pub(super) fn ended(&self, machine: &Machine) {
        let now = self.executor.now();
        self.piloting.iter().for_each(|piloting| piloting.lock().ends(now, machine.id));
    }

    /// The run's own log, with what the autopilot said.
    pub(crate) fn whole_log(&self) -> Vec<String> {
        let told = self.piloting.as_ref().map(|piloting| piloting.lock().told().to_vec());
        self.log().into_iter().chain(told.unwrap_or_default()).collect()
    }

    /// What the autopilot must not have done, and how often it did what.
    pub fn piloted(&self) -> (Vec<Violation>, PilotCounts) {
        let piloting = self.piloting.as_ref().map(|piloting| piloting.lock());
        piloting.map_or_else(Default::default, |piloting| (piloting.broken(), piloting.counts()))
    }

    /// A machine is dead from now on: nothing starts there.
    pub fn lay_dead(&self, position: usize, linger: Duration) {
        self.machines[position].dead.store(true, Ordering::Relaxed);
        self.kill(position, Duration::ZERO, linger);
    }

    /// It may run again.
    pub fn rise(&self, position: usize) {
        self.machines[position].dead.store(false, Ordering::Relaxed);
    }

    /// The session of a node's process ends so much later, though the process does not.
    pub fn end_session_in(&self, position: usize, later: Duration) {
        let session = self.machines[position].life.lock().session.clone();
        let (service, at) = (self.service.clone(), self.executor.now().after(later));
        if let Some(session) = session {
            self.executor.at(at, move || service.kill(session.session()));
        }
    }
}

/// The definition of a store, or what a planted bug makes of it.
fn plant_in_definition(plant: Option<Plant>, mut store: Store) -> Store {
    match plant {
        Some(Plant::TooFewWrites) => store.consistency.writes_required -= 1,
        Some(Plant::TooFewReads) => store.consistency.reads_required -= 1,
        Some(Plant::SecretlySloppy) => store.sloppy = true,
        Some(Plant::WrongResolver) => store.resolver = Resolver::LastWriteWins,
        _ => {}
    }
    store
}
