//! Creating a cluster: its first document.

use coordination::CoordinationService;
use coordination::documents::{self, PublishError, ReadError};
use model::access::Users;
use model::balance::Policy;
use model::limits::{BUCKETS_DEFAULT, FALLBACKS_LISTED, PARTITIONS_DEFAULT};
use model::{Cluster, ClusterId, Consistency, Node, Resolver, Ring, Store, StoreError, StoreName};

/// How a new ring is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingShape {
    /// Into equal slices, each node with as many as its weight says.
    #[default]
    Equal,
    /// Into one partition for each node, as if they had joined one after another.
    Golden,
}

/// What a new cluster shall be.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// Its name.
    pub name: String,
    /// What tells it from others of that name. Default: nothing does.
    pub id: Option<ClusterId>,
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// How its ring is cut. Default: into equal slices.
    pub ring: RingShape,
    /// Partitions of a ring of equal slices; rounded up to a power of two. Default: 1024.
    pub partitions: usize,
    /// Buckets of its token space, a power of two. Never fewer than partitions.
    pub buckets: u32,
    /// Its stores.
    pub stores: Vec<Store>,
    /// What its autopilot may do. Default: it acts.
    pub policy: Policy,
    /// Who may use it. Default: anyone.
    pub users: Users,
}

impl Blueprint {
    /// A cluster with the two stores that every new cluster has: `default` keeps the last write, `siblings` keeps
    /// concurrent writes for the application to merge.
    ///
    /// # Errors
    /// When the numbers of `consistency` do not fit each other.
    pub fn new(name: &str, nodes: Vec<Node>, consistency: Consistency) -> Result<Self, StoreError> {
        let mut stores = Vec::new();
        for (store, resolver) in [("default", Resolver::LastWriteWins), ("siblings", Resolver::Siblings)] {
            stores.push(Store { resolver, ..Store::new(StoreName::new(store)?, consistency)? });
        }
        let (name, partitions, buckets) = (name.to_owned(), PARTITIONS_DEFAULT, BUCKETS_DEFAULT);
        let (policy, users) = (Policy::founded(0), Users::default());
        let ring = RingShape::default();
        Ok(Blueprint { name, id: None, nodes, ring, partitions, buckets, stores, policy, users })
    }

    /// The first document of the cluster.
    ///
    /// # Panics
    /// When a golden ring has more nodes than buckets.
    pub fn cluster(&self) -> Cluster {
        let mut nodes = self.nodes.clone();
        nodes.sort_by_key(|node| node.id);
        let mut stores = self.stores.clone();
        stores.sort_by(|a, b| a.name.cmp(&b.name));
        let members: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
        let replicas = stores.iter().map(|store| usize::from(store.consistency.replicas)).max().unwrap_or(1);
        let listed = replicas + FALLBACKS_LISTED;
        let ring = match self.ring {
            RingShape::Equal => Ring::equal_slices_listing(self.partitions, &members, listed),
            RingShape::Golden => {
                let nodes: Vec<_> = members.iter().map(|(node, _)| *node).collect();
                Ring::golden(&nodes, self.buckets, listed).expect("a ring has no more nodes than buckets")
            }
        };
        let buckets = self.buckets.max(ring.partitions().len() as u32);
        Cluster {
            id: self.id,
            buckets,
            users: self.users.clone(),
            ..Cluster::new(self.name.clone(), nodes, ring, stores)
        }
    }
}

/// Publishes the cluster's first document, unless there is one already, and returns what is published then.
///
/// # Errors
/// When the service refuses, or holds another cluster.
pub async fn create(
    service: &dyn CoordinationService,
    blueprint: &Blueprint,
) -> Result<Cluster, PublishError> {
    let cluster = blueprint.cluster();
    match documents::publish_cluster(service, &cluster).await {
        Ok(()) => {
            // One that ends between the two leaves a cluster whose autopilot only observes.
            documents::balance::found_policy(service, &blueprint.policy).await.map_err(ReadError::from)?;
            Ok(cluster)
        }
        Err(PublishError::Superseded { .. }) => {
            Ok(documents::read_cluster(service).await?.expect("what supersedes us is there"))
        }
        Err(error) => Err(error),
    }
}
