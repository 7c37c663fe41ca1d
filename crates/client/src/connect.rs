//! The client: its picture of the cluster, and its links.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use model::{Cluster, Generation, NodeId, VersionSet};
use parking_lot::RwLock;
use protocol::quorum::can_be_met;
use runtime::Ports;
use runtime::secret::Secret;
use wire::messages::{ClusterGet, Peer, Request, RequestOptions, Response};

use crate::coordinator::{Contents, Coordinator, CoordinatorOptions, Replicas, Scope};
use crate::error::ClientError;
use crate::peers::{Call, CallError, Peers};

/// How long an address may take to tell of the cluster before another one is asked beside it.
const CONNECT_HEDGE_AFTER: Duration = Duration::from_millis(200);

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name that nodes show for the client. Default: `tontine-client`.
    pub name: String,
    /// Deadline of requests that name none. Default: 5 s.
    pub deadline: Duration,
    /// How long a node may take before another one is asked beside it. Default: 50 ms.
    pub hedge_after: Duration,
    /// Further attempts of a request that certainly was not done and may succeed later, after pauses of 10 ms, 20 ms
    /// and so on, and none after its deadline. A write in doubt is never among them. Default: 3.
    pub retries: u32,
    /// Whether each request begins at any of a key's replicas, drawn at random, instead of the first. It spreads the
    /// load of a busy key, and costs space: a key's vector has an entry for each replica that has stamped a write of it.
    /// A write with a condition begins at the first replica all the same. Default: no.
    pub spread: bool,
    /// Read repairs that may be under way at the same time; with 0, replicas are never repaired by this client's reads.
    /// Default: 1024.
    pub repairs_max: usize,
    /// The user's secret, for a closed cluster: it needs a network that calls with TLS. Default: none.
    pub secret: Option<Secret>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        let CoordinatorOptions { deadline, hedge_after, spread, repairs_max, .. } =
            CoordinatorOptions::default();
        let name = "tontine-client".to_owned();
        ClientOptions { name, deadline, hedge_after, retries: 3, spread, repairs_max, secret: None }
    }
}

/// A connection to a cluster. Cheap to clone; clones share links, which are multiplexed and pipelined.
///
/// A client needs the `tokio` runtime in which it was connected, and ends with it. Clones may be used on every thread of
/// that runtime; a thread that shall share nothing with others connects its own client.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) ports: Ports,
    pub(crate) peers: Arc<Peers>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) options: ClientOptions,
    pub(crate) nodes: Arc<Nodes>,
}

/// The nodes as a client reaches them: always over a link.
pub(crate) struct Nodes {
    peers: Arc<Peers>,
    cluster: RwLock<Arc<Cluster>>,
}

impl Client {
    /// Connects to the first of `addresses` (`host:port` of the native protocol) that answers, and learns the
    /// cluster from it. They are asked in their order, the next one as soon as one has failed or takes long.
    ///
    /// # Errors
    /// [`ClientError::NotConnected`] when none answers as a node does.
    pub async fn connect<A: AsRef<str>>(
        addresses: &[A],
        ports: Ports,
        options: ClientOptions,
    ) -> Result<Client, ClientError> {
        let me = Peer::Client { name: options.name.clone() };
        let peers = Peers::of_user(ports.clone(), me, None, options.secret.clone());
        let mut to_ask = addresses.iter().map(AsRef::as_ref);
        let (mut asked, mut under_way, mut late) = (FuturesUnordered::new(), Vec::new(), Vec::new());
        let mut reasons = Vec::new();
        loop {
            if let Some(address) = to_ask.next() {
                under_way.push(address);
                asked.push(ask_for_cluster(&peers, address));
            }
            let hedge = match to_ask.len() {
                0 => Either::Left(std::future::pending()),
                _ => Either::Right(ports.clock.sleep(CONNECT_HEDGE_AFTER)),
            };
            match select(asked.next(), hedge).await {
                Either::Left((Some((address, answer)), _)) => {
                    under_way.retain(|other| *other != address);
                    match answer {
                        Ok(cluster) => {
                            late.retain(|address| under_way.contains(address));
                            let client = Client::of(cluster, peers.clone(), ports, options);
                            client.doubt(&late);
                            return Ok(client);
                        }
                        Err(reason) => reasons.push(reason),
                    }
                }
                Either::Left((None, _)) => return Err(ClientError::nobody(&reasons)),
                Either::Right(_) => late.clone_from(&under_way),
            }
        }
    }

    /// Asks the nodes at these addresses last, until they have answered: they have let the client wait.
    fn doubt(&self, addresses: &[&str]) {
        let cluster = self.cluster();
        let late = cluster.nodes.iter().filter(|node| addresses.contains(&node.native.as_str()));
        late.for_each(|node| self.inner.peers.doubt(node.id));
    }

    fn of(cluster: Cluster, peers: Arc<Peers>, ports: Ports, options: ClientOptions) -> Client {
        peers.learn(&cluster);
        let nodes = Arc::new(Nodes { peers: peers.clone(), cluster: RwLock::new(Arc::new(cluster)) });
        let ClientOptions { deadline, hedge_after, spread, repairs_max, .. } = options;
        let settings =
            CoordinatorOptions { deadline, hedge_after, spread, repairs_max, is_application: true };
        let coordinator = Coordinator::new(nodes.clone(), ports.clone(), settings);
        Client { inner: Arc::new(Inner { ports, peers, coordinator, options, nodes }) }
    }

    /// The cluster as this client knows it.
    pub fn cluster(&self) -> Arc<Cluster> {
        self.inner.nodes.cluster.read().clone()
    }

    /// Asks the nodes for the newest cluster document.
    pub async fn refresh(&self) -> Result<Arc<Cluster>, ClientError> {
        let mut reasons = Vec::new();
        for node in &self.cluster().nodes {
            match self.inner.call(node.id, Request::ClusterGet(ClusterGet {})).await {
                Ok(Response::ClusterDocument(document)) => {
                    return Ok(self.inner.nodes.adopt_whole(&document.json));
                }
                Ok(other) => reasons.push(format!("{}: unexpected answer {}", node.native, other.name())),
                Err(CallError::Unreachable { reason }) => reasons.push(reason),
                Err(error) => reasons.push(format!("{}: {error}", node.native)),
            }
        }
        Err(ClientError::nobody(&reasons))
    }

    /// The cluster document by which this node goes, whatever newer one this client knows.
    ///
    /// # Errors
    /// When it does not answer, or with a document that this program cannot read.
    pub async fn cluster_at(&self, node: NodeId) -> Result<Cluster, ClientError> {
        match self.inner.call(node, Request::ClusterGet(ClusterGet {})).await? {
            Response::ClusterDocument(document) => serde_json::from_slice(&document.json).map_err(|error| {
                let detail = format!("{node}: cannot decode its cluster document: {error}");
                ClientError::Indeterminate { detail }
            }),
            other => {
                let detail = format!("{node}: unexpected answer {}", other.name());
                Err(ClientError::Indeterminate { detail })
            }
        }
    }

    /// Closes all links. Requests under way fail or are indeterminate.
    pub fn close(&self) {
        self.inner.peers.close();
    }
}

/// What an address tells of the cluster; otherwise what happened there.
async fn ask_for_cluster<'a>(peers: &Peers, address: &'a str) -> (&'a str, Result<Cluster, String>) {
    let answer = match peers.ask_address(address, Request::ClusterGet(ClusterGet {})).await {
        Ok(Response::ClusterDocument(document)) => serde_json::from_slice(&document.json)
            .map_err(|error| format!("{address}: cannot decode its cluster document: {error}")),
        Ok(other) => Err(format!("{address}: unexpected answer {}", other.name())),
        // It names the address.
        Err(CallError::Unreachable { reason }) => Err(reason),
        Err(error) => Err(format!("{address}: {error}")),
    };
    (address, answer)
}

impl Inner {
    /// The scope of a request of this store that starts now.
    pub(crate) fn scope(&self, store: &str) -> Result<Scope, ClientError> {
        let cluster = self.nodes.cluster.read().clone();
        if let Some(store) = cluster.read_only(store) {
            return Ok(Scope::read_only(&cluster, store));
        }
        let Some(definition) = cluster.store(store) else {
            let known: Vec<&str> = cluster.store_names().map(|name| name.as_str()).collect();
            return Err(ClientError::UnknownStore { store: store.to_owned(), known: known.join(", ") });
        };
        let (definition, store) = (Arc::new(definition.clone()), (&definition.name).into());
        let contents = Contents::Versions;
        Ok(Scope { cluster, definition, store, contents, epoch: model::Epoch(0) })
    }

    /// The same, for a request with these options.
    pub(crate) fn scope_for(&self, store: &str, options: &RequestOptions) -> Result<Scope, ClientError> {
        let scope = self.scope(store)?;
        let replicas = scope.definition.numbers_read().replicas;
        match options.required {
            Some(required) if !can_be_met(required, &scope.definition) => {
                Err(ClientError::TooFewReplicas { required, replicas })
            }
            _ => Ok(scope),
        }
    }

    /// Calls a node and waits.
    pub(crate) async fn call(&self, node: NodeId, request: Request) -> Result<Response, CallError> {
        match self.peers.call(node, request) {
            Call::Ready(answer) => answer,
            Call::Pending(future) => self.coordinator.within_deadline(future, &Default::default()).await,
        }
    }

    /// Calls a node, and waits that long.
    pub(crate) async fn call_for(
        &self,
        node: NodeId,
        request: Request,
        patience: Duration,
    ) -> Result<Response, CallError> {
        self.peers.call(node, request).within(&self.ports.clock, patience).await
    }

    /// Takes in the document that a refusal carried if it is newer, and tells its generation.
    pub(crate) fn adopt(&self, document: &[u8]) -> Option<Generation> {
        let told = Cluster::generation_of(document);
        let known = self.nodes.cluster.read().clone();
        self.nodes.adopt(document, &known);
        (told > Generation(0)).then_some(told)
    }
}

impl Nodes {
    /// Takes in a document that was asked for.
    pub(crate) fn adopt_whole(&self, document: &[u8]) -> Arc<Cluster> {
        let known = self.cluster.read().clone();
        self.adopt(document, &known)
    }
}

impl Replicas for Nodes {
    fn own(&self) -> Option<NodeId> {
        None
    }

    fn call(&self, node: NodeId, request: Request) -> Call {
        self.peers.call(node, request)
    }

    fn is_suspected(&self, node: NodeId) -> bool {
        self.peers.is_suspected(node)
    }

    fn park(&self, _scope: &Scope, _target: NodeId, _key: &Bytes, _set: &VersionSet) {
        unreachable!("clients drive no writes, so they are never asked to hold a hint");
    }

    fn adopt(&self, document: &[u8], base: &Cluster) -> Arc<Cluster> {
        let known = self.cluster.read().clone();
        // Most refusals tell what another one has told already.
        if Cluster::generation_of(document) <= known.generation {
            return known;
        }
        let Some(cluster) = Cluster::handed_over(document, base) else { return known };
        let mut current = self.cluster.write();
        if cluster.is_also(&current) && cluster.generation > current.generation {
            self.peers.learn(&cluster);
            *current = Arc::new(cluster);
        }
        current.clone()
    }
}
