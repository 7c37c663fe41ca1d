//! A node of a cluster with users: what it refuses, in which words, and what it writes down of that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use coordination::documents::{cluster_path, read_cluster};
use coordination::memory::MemoryService;
use coordination::{CoordinationService, Expected};
use model::{Cluster, Generation};
use node::access::Who;
use node::audit::{AuditEntry, AuditedOrder, OrderResult, Outlet, RefusedOrder, What};
use node::{Node, Worker};
use parking_lot::Mutex;
use runtime::secret::Secret;
use wire::error::ErrorCode;
use wire::messages::{AntiEntropyControl, AntiEntropyOrder};

use crate::http_door::Web;
use crate::support::{Connection, lonely_node_at, lonely_node_of, users};

/// Keeps what is written.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<AuditEntry>>);

impl Outlet for Kept {
    fn write(&self, entry: AuditEntry) {
        self.0.lock().push(entry);
    }
}

impl Kept {
    /// Who was refused what, by which door, why, and how often.
    fn refusals(&self) -> Vec<(String, &'static str, &'static str, ErrorCode, u64)> {
        let told = |entry: &AuditEntry| match (&entry.who, &entry.what) {
            (who, What::Refused(RefusedOrder { request, code, count, .. })) => {
                let who = match who {
                    Who::User(user) => user.to_string(),
                    other => format!("{other:?}"),
                };
                Some((who, entry.door, *request, *code, *count))
            }
            _ => None,
        };
        self.0.lock().iter().filter_map(told).collect()
    }
}

struct Closed {
    node: Arc<Node>,
    worker: Worker,
    kept: Arc<Kept>,
    root: Secret,
    shop: Secret,
}

impl Closed {
    async fn start() -> Closed {
        let (root, shop) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        let rights: [(&str, &Secret, &[&str]); 2] =
            [("root", &root, &["admin"]), ("shop", &shop, &["read:default/u:", "write:default/u:"])];
        let kept = Arc::<Kept>::default();
        let outlet = kept.clone();
        let (node, worker) =
            lonely_node_of(users(&rights), |config| config.doors.audit = Some(outlet as Arc<dyn Outlet>))
                .await;
        Closed { node, worker, kept, root, shop }
    }

    fn redis(&self) -> Connection {
        Connection::to(self.node.clone(), &self.worker)
    }

    /// A Redis connection of the user with this secret.
    async fn redis_of(&self, user: &str, secret: &Secret) -> Connection {
        let mut redis = self.redis();
        redis.ask(&format!("AUTH {user} {}", secret.text()), "+OK\r\n").await;
        redis
    }
}

/// What a request for one of shop's keys is answered on this connection.
async fn status_of(web: &mut Web, secret: &Secret) -> u16 {
    let bearer = format!("authorization: Bearer {}\r\n", secret.text());
    web.ask("GET /v1/stores/default/keys/u:1", &bearer, "").await.status
}

/// Puts these bytes in the place of the cluster document, as an operator or a restored service may, and leaves the node time
/// to see them.
async fn put_in_place(service: &MemoryService, document: Vec<u8>) {
    service.open().set(&cluster_path(), Bytes::from(document), Expected::Any).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
}

#[tokio::test]
async fn an_older_document_and_a_malformed_one_leave_users_as_they_are() {
    let (root, shop) = (Secret::generate().unwrap(), Secret::generate().unwrap());
    let rights: [(&str, &Secret, &[&str]); 2] =
        [("root", &root, &["admin"]), ("shop", &shop, &["read:default"])];
    let service = MemoryService::new();
    let (_node, worker) = lonely_node_at(&service, users(&rights), |_| {}).await;
    let mut standing = Web::to(&worker);
    assert_eq!(status_of(&mut standing, &shop).await, 404);
    let older: Cluster = read_cluster(&service.open()).await.unwrap().unwrap();
    let without = users(&rights[..1]);
    assert!(older.users.get("shop").is_some());
    let newer = Cluster { generation: Generation(older.generation.0 + 1), users: without, ..older.clone() };
    put_in_place(&service, serde_json::to_vec(&newer).unwrap()).await;
    let began = Instant::now();
    while status_of(&mut standing, &shop).await != 401 {
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "a removed user is served on a connection that stands"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let nonsense = [
        serde_json::to_vec(&older).unwrap(),
        b"{\"generation\": 99, \"users\": [".to_vec(),
        b"{\"generation\": 99, \"users\": {\"shop\": {\"secrets\": 7}}}".to_vec(),
        Vec::new(),
    ];
    for document in nonsense {
        let told = String::from_utf8_lossy(&document).into_owned();
        put_in_place(&service, document).await;
        for web in [&mut standing, &mut Web::to(&worker)] {
            assert_eq!(status_of(web, &shop).await, 401, "after {told}");
            assert_eq!(status_of(web, &root).await, 404, "after {told}: root is served");
        }
    }
    let again = Cluster { generation: Generation(newer.generation.0 + 1), ..older };
    put_in_place(&service, serde_json::to_vec(&again).unwrap()).await;
    while status_of(&mut standing, &shop).await != 404 {
        assert!(began.elapsed() < Duration::from_secs(20), "a good document is not followed any more");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const NO_AUTH: &str = "-NOAUTH Authentication required.\r\n";

#[tokio::test]
async fn a_flood_of_refused_commands_is_written_down_in_two_lines() {
    let closed = Closed::start().await;
    let mut redis = closed.redis();
    for _ in 0..100 {
        redis.ask("GET a-key-of-nobody", NO_AUTH).await;
    }
    assert_eq!(closed.kept.refusals().len(), 1);
    closed.node.stop().await.unwrap();
    let refused = |count| ("Nobody".to_owned(), "redis", "get", ErrorCode::Unauthenticated, count);
    assert_eq!(closed.kept.refusals(), [refused(1), refused(99)]);
}

#[tokio::test]
async fn each_door_writes_down_whom_it_refuses_and_no_key_secret_or_value() {
    let closed = Closed::start().await;
    let mut redis = closed.redis();
    redis
        .ask(
            &format!("AUTH shop {}", closed.root.text()),
            "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        )
        .await;
    redis.ask(&format!("AUTH shop {}", closed.shop.text()), "+OK\r\n").await;
    redis.ask("SET hidden-key hidden-value", FORBIDDEN_KEY).await;
    redis.ask("CLIENT LIST", FORBIDDEN_LIST).await;
    let mut web = Web::to(&closed.worker);
    let get = "GET /v1/stores/default/keys/hidden-key";
    web.ask(get, "", "").await;
    web.ask(get, "authorization: Bearer tontine_wrong\r\n", "").await;
    web.ask(get, &format!("authorization: Bearer {}\r\n", closed.shop.text()), "").await;
    web.ask(get, "origin: https://elsewhere.example\r\n", "").await;
    let head = format!("authorization: Bearer {}\r\ncontent-type: application/json\r\n", closed.shop.text());
    let body = r#"{"operations":[{"op":"get","key":"hidden-1"},{"op":"get","key":"hidden-2"}]}"#;
    web.ask("POST /v1/stores/default/batch", &head, body).await;
    let nobody = || "Nobody".to_owned();
    let shop = || "shop".to_owned();
    assert_eq!(
        closed.kept.refusals(),
        [
            (nobody(), "redis", "auth", ErrorCode::Unauthenticated, 1),
            (shop(), "redis", "set", ErrorCode::Forbidden, 1),
            (shop(), "redis", "client|list", ErrorCode::Forbidden, 1),
            (nobody(), "http", "GET /v1/stores/{store}/keys/{key}", ErrorCode::Unauthenticated, 1),
            (nobody(), "http", "authenticate", ErrorCode::Unauthenticated, 1),
            (shop(), "http", "GET /v1/stores/{store}/keys/{key}", ErrorCode::Forbidden, 1),
            (nobody(), "http", "request", ErrorCode::ForeignOrigin, 1),
            // The first of two.
            (shop(), "http", "POST /v1/stores/{store}/batch", ErrorCode::Forbidden, 1),
        ]
    );
    let written = format!("{:?}", closed.kept.0.lock());
    for hidden in ["hidden", "tontine_", closed.root.text(), closed.shop.text(), "elsewhere"] {
        assert!(!written.contains(hidden), "{hidden}: {written}");
    }
    assert!(written.contains("read:default") && written.contains("192.0.2.7"), "{written}");
}

#[tokio::test]
async fn orders_about_repair_are_written_down_and_a_look_at_it_is_not() {
    let closed = Closed::start().await;
    let mut web = Web::to(&closed.worker);
    let head = format!("authorization: Bearer {}\r\ncontent-type: application/json\r\n", closed.root.text());
    for (body, status) in [
        (r#"{"order":"stop"}"#, 200),
        (r#"{"order":"start","store":"default"}"#, 200),
        (r#"{"order":"scrub","store":"none"}"#, 400),
    ] {
        let answer = web.ask("POST /v1/repair", &head, body).await;
        assert_eq!(answer.status, status, "{body}");
    }
    web.ask("GET /v1/repair", &head, "").await;
    let told = |entry: &AuditEntry| match &entry.what {
        What::Order(ordered) => Some((entry.door, ordered.asked.clone(), ordered.result.clone())),
        What::Refused(_) => None,
    };
    let written: Vec<_> = closed.kept.0.lock().iter().filter_map(told).collect();
    let asked = |order, store: Option<&str>| {
        let store = store.map(str::to_owned);
        AuditedOrder::Repair(AntiEntropyControl { order, store, partition: None })
    };
    let unknown = OrderResult::Failed { code: ErrorCode::UnknownStore, detail: None };
    assert_eq!(
        written,
        [
            ("http", asked(AntiEntropyOrder::Stop, None), OrderResult::Done),
            ("http", asked(AntiEntropyOrder::Start, Some("default")), OrderResult::Done),
            ("http", asked(AntiEntropyOrder::Scrub, Some("none")), unknown),
        ]
    );
}

const FORBIDDEN_KEY: &str = "-NOPERM No permissions to access a key (user shop has no right to write this key of store \
                             \"default\": write:default)\r\n";
const FORBIDDEN_LIST: &str = "-NOPERM User shop has no permissions to run the 'client|list' command (user shop has not the \
                              right observe)\r\n";

#[tokio::test]
async fn refusals_for_lack_of_rights_are_counted_by_code_on_the_redis_port() {
    let closed = Closed::start().await;
    let mut redis = closed.redis_of("shop", &closed.shop).await;
    redis.ask("SET hidden-key hidden-value", FORBIDDEN_KEY).await;
    closed.redis().ask("PING", "+PONG\r\n").await;
    closed.redis().ask("GET u:1", NO_AUTH).await;
    let numbers = closed.node.metrics().text();
    for code in ["forbidden", "unauthenticated"] {
        let line = format!("tontine_node_errors_total{{code=\"{code}\"}} 1\n");
        assert!(numbers.contains(&line), "{line}: {numbers}");
    }
}

#[tokio::test]
async fn a_connection_shows_its_user() {
    let closed = Closed::start().await;
    let mut redis = closed.redis();
    redis.ask("ACL WHOAMI", NO_AUTH).await;
    redis.ask(&format!("AUTH {}", closed.shop.text()), "+OK\r\n").await;
    redis.ask("ACL WHOAMI", "$4\r\nshop\r\n").await;
    redis.ask("acl whoami more", "-ERR wrong number of arguments for 'acl|whoami' command\r\n").await;
    redis
        .ask(
            "ACL SETUSER x on",
            "-ERR unknown subcommand 'SETUSER': of ACL there is WHOAMI alone. Users and their rights are changed with \
             `tontine user`.\r\n",
        )
        .await;
    let mut open = Connection::open().await;
    open.ask("ACL WHOAMI", "$7\r\ndefault\r\n").await;
}

#[tokio::test]
async fn only_operators_close_the_connections_of_a_user() {
    let closed = Closed::start().await;
    let mut shops =
        [closed.redis_of("shop", &closed.shop).await, closed.redis_of("shop", &closed.shop).await];
    let mut stranger = closed.redis();
    stranger.ask("PING", "+PONG\r\n").await;
    let forbidden = "-NOPERM User shop has no permissions to run the 'client|kill' command (user shop has not the right \
                     operate)\r\n";
    shops[0].ask("CLIENT KILL USER root", forbidden).await;
    let mut root = closed.redis_of("root", &closed.root).await;
    root.ask("CLIENT KILL USER nobody", "-ERR No such user 'nobody'\r\n").await;
    root.ask("CLIENT KILL USER", "-ERR No such client\r\n").await;
    root.ask("CLIENT KILL USER shop ID", "-ERR syntax error\r\n").await;
    root.ask("CLIENT KILL ID 0 USER shop", "-ERR client-id should be greater than 0\r\n").await;
    root.ask("CLIENT KILL TYPE replica SKIPME no", ":0\r\n").await;
    root.ask("CLIENT KILL USER root SKIPME yes", ":0\r\n").await;
    root.ask("CLIENT KILL USER shop", ":2\r\n").await;
    for shop in &mut shops {
        assert!(shop.is_closed().await);
    }
    stranger.ask("PING", "+PONG\r\n").await;
    root.ask("CLIENT KILL USER shop", ":0\r\n").await;
    root.ask("CLIENT KILL USER root SKIPME no", ":1\r\n").await;
    assert!(root.is_closed().await, "it has heard the answer first");
}

#[tokio::test]
async fn in_an_open_cluster_anyone_closes_connections_by_address_and_by_number() {
    let (node, worker) = crate::support::lonely_node(|_| {}).await;
    let connect = || Connection::to(node.clone(), &worker);
    let (mut first, mut second, mut third) = (connect(), connect(), connect());
    for connection in [&mut first, &mut second, &mut third] {
        connection.ask("PING", "+PONG\r\n").await;
    }
    first.ask("CLIENT KILL 192.0.2.1:5", "-ERR No such client\r\n").await;
    first.ask("CLIENT KILL ADDR 192.0.2.1:5", ":0\r\n").await;
    first.ask("CLIENT KILL ID 2 LADDR here", ":1\r\n").await;
    assert!(second.is_closed().await);
    third.ask("PING", "+PONG\r\n").await;
    // All connections of this test have the same address.
    first.ask("CLIENT KILL ADDR peer", ":1\r\n").await;
    assert!(third.is_closed().await);
    first.ask("CLIENT KILL peer", "+OK\r\n").await;
    assert!(first.is_closed().await);
}

/// A connection with answers for which there was no place in the stream.
async fn deaf(node: &Arc<Node>, worker: &Worker) -> Connection {
    let mut deaf = Connection::to(node.clone(), worker);
    let value = "v".repeat(60_000);
    deaf.ask(&format!("SET k {value}"), "+OK\r\n").await;
    deaf.send("GET k\r\n".repeat(100).as_bytes()).await;
    deaf
}

/// Waits until the first connection is not listed any more.
async fn first_is_gone(other: &mut Connection) {
    for _ in 0..1000 {
        other.send(b"CLIENT LIST ID 1\r\n").await;
        if other.value().await.is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the connection is still there");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed_too() {
    let (node, worker) = crate::support::lonely_node(|_| {}).await;
    let _deaf = deaf(&node, &worker).await;
    let mut other = Connection::to(node.clone(), &worker);
    other.ask("CLIENT KILL ID 1 SKIPME yes", ":1\r\n").await;
    first_is_gone(&mut other).await;
}

/// It waited for the turns of its answers for ever.
#[tokio::test]
async fn a_client_that_leaves_without_reading_leaves_no_connection_behind() {
    let (node, worker) = crate::support::lonely_node(|_| {}).await;
    let deaf = deaf(&node, &worker).await;
    let mut other = Connection::to(node.clone(), &worker);
    other.ask("PING", "+PONG\r\n").await;
    drop(deaf);
    first_is_gone(&mut other).await;
}
