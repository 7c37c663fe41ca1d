//! A store, a node and a Redis connection to it, inside this process.

use std::sync::Arc;

use bytes::Bytes;
use coordination::memory::MemoryService;
use model::access::{SecretDigest, UserChange, UserName, Users};
use model::{
    Cluster, Consistency, Node as Member, NodeId, Resolver, Ring, Store, StoreName, Token, Value, Zone,
};
use node::engines::MemoryEngines;
use node::stores::{KeyPlace, LocalStore, Stamper, WriteOrder};
use node::{Node, NodeConfig, Worker};
use runtime::Ports;
use runtime::clock::os::OsClock;
use runtime::disk::simulated::SimulatedDisk;
use runtime::secret::Secret;
use storage::MemoryEngine;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use wire::messages::Condition;

pub(crate) const ONE: Consistency = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };

pub(crate) fn stamper(node: u32, incarnation: u64) -> Arc<Stamper> {
    Arc::new(Stamper::new(NodeId(node), incarnation, 0, Arc::new(OsClock::new())))
}

pub(crate) fn definition(resolver: Resolver) -> Store {
    Store { resolver, ..Store::new(StoreName::new("carts").unwrap(), ONE).unwrap() }
}

pub(crate) fn store(node: u32, resolver: Resolver) -> LocalStore {
    LocalStore::new(definition(resolver), Arc::new(MemoryEngine::new()), stamper(node, 1))
}

pub(crate) fn place(key: &[u8]) -> KeyPlace {
    KeyPlace { partition: model::PartitionId(0), token: Token::of(key) }
}

pub(crate) fn order(value: &str, context: Option<&model::Context>) -> WriteOrder {
    WriteOrder {
        context: context.cloned(),
        condition: Condition::None,
        expires: None,
        value: Value::Present(Bytes::copy_from_slice(value.as_bytes())),
    }
}

pub(crate) fn values(set: &model::VersionSet) -> Vec<String> {
    let now = model::WallMillis(0);
    let mut values: Vec<String> = set
        .versions()
        .iter()
        .filter_map(|version| version.live(now))
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .collect();
    values.sort();
    values
}

/// Publishes the first document of a cluster of these nodes.
pub(crate) async fn publish(service: &MemoryService, nodes: Vec<Member>) {
    publish_with(service, nodes, Users::default()).await;
}

async fn publish_with(service: &MemoryService, nodes: Vec<Member>, users: Users) {
    let members: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let store =
        |name: &str, resolver| Store { resolver, ..Store::new(StoreName::new(name).unwrap(), ONE).unwrap() };
    let stores = vec![store("default", Resolver::LastWriteWins), store("siblings", Resolver::Siblings)];
    let mut cluster = Cluster::new("test", nodes, Ring::equal_slices(8, &members), stores);
    cluster.users = users;
    // A test that starts a second node finds the document there.
    let _ = coordination::documents::publish_cluster(&service.open(), &cluster).await;
}

/// A node alone in its cluster, with everything in memory.
pub(crate) async fn lonely_node(configure: impl FnOnce(&mut NodeConfig)) -> (Arc<Node>, Worker) {
    lonely_node_of(Users::default(), configure).await
}

/// Users with these rights; the first is an administrator's.
pub(crate) fn users(all: &[(&str, &Secret, &[&str])]) -> Users {
    all.iter().fold(Users::default(), |users, (name, secret, grants)| {
        with_user(&users, name, secret.digest(), grants)
    })
}

fn with_user(users: &Users, name: &str, secret: SecretDigest, rights: &[&str]) -> Users {
    let grants = rights.iter().map(|right| right.parse().unwrap()).collect();
    let user = UserName::new(name).unwrap();
    users.changed(&UserChange::Create { user, secret, grants, redis_store: None }).unwrap()
}

/// A node alone in a cluster of users with these names and rights. The secret of each is its name.
pub(crate) async fn lonely_node_with_users(
    all: &[(&str, &[&str])],
    configure: impl FnOnce(&mut NodeConfig),
) -> (Arc<Node>, Worker) {
    let users = all.iter().fold(Users::default(), |users, (name, rights)| {
        with_user(&users, name, runtime::secret::digest_of(name.as_bytes()), rights)
    });
    lonely_node_of(users, configure).await
}

/// The same in a cluster with users.
pub(crate) async fn lonely_node_of(
    users: Users,
    configure: impl FnOnce(&mut NodeConfig),
) -> (Arc<Node>, Worker) {
    lonely_node_at(&MemoryService::new(), users, configure).await
}

/// The same by the documents of this service.
pub(crate) async fn lonely_node_at(
    service: &MemoryService,
    users: Users,
    configure: impl FnOnce(&mut NodeConfig),
) -> (Arc<Node>, Worker) {
    let zone = Zone("a".to_owned());
    let member = Member::new(NodeId(1), zone, "127.0.0.1:1", None);
    publish_with(service, vec![member], users).await;
    let mut config = NodeConfig::new(NodeId(1), "test");
    configure(&mut config);
    let ports = Ports::os().unwrap();
    let disk = Arc::new(SimulatedDisk::new(1));
    let session = Arc::new(service.open());
    let node = Node::start(config, ports.clone(), disk, Arc::new(MemoryEngines), session).await.unwrap();
    let worker = node.worker(ports);
    (node, worker)
}

/// A Redis connection to a node's door.
pub(crate) struct Connection {
    stream: DuplexStream,
    _node: Arc<Node>,
}

impl Connection {
    pub(crate) async fn open() -> Connection {
        Connection::open_with(|_| {}).await
    }

    pub(crate) async fn open_with(configure: impl FnOnce(&mut NodeConfig)) -> Connection {
        let (node, worker) = lonely_node(configure).await;
        Connection::to(node, &worker)
    }

    pub(crate) fn to(node: Arc<Node>, worker: &Worker) -> Connection {
        let (stream, theirs) = tokio::io::duplex(1 << 20);
        let door = worker.door.clone();
        tokio::spawn(async move { door.serve(theirs, "peer".to_owned(), "here".to_owned()).await });
        Connection { stream, _node: node }
    }

    /// Sends bytes as they are.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Reads as many bytes as `expected` has and compares.
    #[track_caller]
    pub(crate) fn expect<'a>(&'a mut self, expected: &'a str) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let mut got = vec![0; expected.len()];
            let mut read = 0;
            while read < got.len() {
                match self.stream.read(&mut got[read..]).await.unwrap() {
                    0 => break,
                    more => read += more,
                }
            }
            let got = String::from_utf8_lossy(&got[..read]).into_owned();
            assert_eq!(got, expected, "at {place}");
        }
    }

    /// Sends an inline command and compares its answer.
    #[track_caller]
    pub(crate) fn ask<'a>(
        &'a mut self,
        command: &'a str,
        expected: &'a str,
    ) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        async move {
            self.send(format!("{command}\r\n").as_bytes()).await;
            let mut got = vec![0; expected.len()];
            let read = self.stream.read_exact(&mut got).await.map(|_| got.len()).unwrap_or(0);
            let got = String::from_utf8_lossy(&got[..read]).into_owned();
            assert_eq!(got, expected, "{command} at {place}");
        }
    }

    /// Reads this many bytes.
    pub(crate) async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut got = vec![0; count];
        self.stream.read_exact(&mut got).await.unwrap();
        got
    }

    /// Reads one value.
    pub(crate) async fn value(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n") {
            head.extend(self.bytes(1).await);
        }
        let head = String::from_utf8(head).unwrap();
        let count: usize = head.trim().strip_prefix('$').expect("a value").parse().unwrap();
        let mut value = self.bytes(count + 2).await;
        value.truncate(count);
        String::from_utf8(value).unwrap()
    }

    /// Reads this many lines.
    pub(crate) async fn lines(&mut self, count: usize) -> Vec<String> {
        let mut got = Vec::new();
        while got.iter().filter(|&&byte| byte == b'\n').count() < count {
            assert!(self.stream.read_buf(&mut got).await.unwrap() > 0, "closed too early");
        }
        String::from_utf8(got).unwrap().lines().map(str::to_owned).collect()
    }

    /// Whether the other side has closed the connection, after everything it sent was read.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await.is_ok() && rest.is_empty()
    }
}
