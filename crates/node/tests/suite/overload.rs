//! A node that is asked for more than it takes in.

use std::time::Duration;

use bytes::Bytes;
use client::peers::{Call, CallError, Peers};
use client::{Client, ClientOptions};
use futures_util::future::join_all;
use model::versions::Stamp;
use model::{Actor, Generation, NodeId, StoreName, Timestamp, Value, VersionSet};
use node::NodeConfig;
use protocol::admission::Load;
use protocol::report::Parts;
use runtime::Ports;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::error::ErrorCode;
use wire::messages::{
    Condition, Get, Hello, MultiGet, OfficeGet, OrderAnswer, Peer, Put, ReplicaGet, ReplicaMerge, ReportGet,
    Request, RequestOptions, Response, Role, Terms, decode_response, encode_request,
};

use crate::cluster::{PATIENCE, RunningCluster, store};

/// Requests that the small node takes from clients: three quarters of its limit.
const CLIENT_REQUESTS_MAX: usize = 48;

fn small(config: &mut NodeConfig) {
    config.requests.limits.node_requests_max = 64;
    config.requests.limits.node_bytes_max = 1 << 20;
}

fn get(key: String, options: RequestOptions) -> Request {
    let store = (&StoreName::new("default").unwrap()).into();
    Request::Get(Get { store, generation: Generation(1), options, key: Bytes::from(key) })
}

/// A hundred thousand bytes of keys.
fn long_get(number: usize, options: RequestOptions) -> Request {
    let store = (&StoreName::new("default").unwrap()).into();
    let keys = (0..25).map(|n| Bytes::from(format!("{number}-{n}-{:4000}", ""))).collect();
    Request::MultiGet(MultiGet { store, generation: Generation(1), options, keys })
}

fn put(key: String, value_bytes: usize, options: RequestOptions) -> Request {
    Request::Put(Put {
        store: (&StoreName::new("default").unwrap()).into(),
        generation: Generation(1),
        options,
        key: Bytes::from(key),
        context: None,
        expires: None,
        condition: Condition::None,
        value: Bytes::from(vec![7; value_bytes]),
    })
}

/// Sends all requests before it awaits the first answer, and tells what became of each.
async fn flood(peers: &std::sync::Arc<Peers>, requests: Vec<Request>) -> Vec<Result<Response, CallError>> {
    let calls: Vec<Call> = requests.into_iter().map(|request| peers.call(NodeId(1), request)).collect();
    join_all(calls.into_iter().map(|call| async move {
        match call {
            Call::Ready(answer) => answer,
            Call::Pending(future) => future.await,
        }
    }))
    .await
}

fn code(answer: &Result<Response, CallError>) -> Option<ErrorCode> {
    match answer {
        Err(CallError::Refused(failure)) => Some(failure.code),
        _ => None,
    }
}

async fn until_idle(cluster: &RunningCluster) {
    while cluster.nodes[0].admission().load() != Load::default() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Node 2 takes everything and answers nothing, so each get waits for its deadline: of a flood the node keeps what
/// its limits say and refuses the rest at once, on both doors, and goes on as before when the flood is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flooded_node_refuses_what_is_over_its_limits_and_recovers() {
    let deadline = RequestOptions { deadline_ms: 10_000, ..RequestOptions::default() };
    let cluster = RunningCluster::start((2, 1), store(2, 2, 2), |config| {
        small(config);
        config.requests.coordinator.deadline = Duration::from_secs(10);
    })
    .await;
    let peers = Peers::new(Ports::os().unwrap(), Peer::Client { name: "flood".to_owned() }, None);
    peers.learn(cluster.nodes[0].replica().view().get().cluster());

    let gets = (0..1_000).map(|n| get(format!("many{n}"), deadline.clone())).collect();
    let answers = flood(&peers, gets).await;
    let overloaded = answers.iter().filter(|answer| code(answer) == Some(ErrorCode::Overloaded)).count();
    let too_few = |answer: &&_| code(answer) == Some(ErrorCode::InsufficientReplicas);
    let taken = answers.iter().filter(too_few).count();
    assert_eq!(overloaded + taken, 1_000, "each get is answered once: {answers:?}");
    assert!(overloaded > 0 && taken >= CLIENT_REQUESTS_MAX, "{overloaded} overloaded, {taken} taken");

    // Few requests, but too many bytes.
    until_idle(&cluster).await;
    let answers = flood(&peers, (0..30).map(|n| long_get(n, deadline.clone())).collect()).await;
    assert!(answers.iter().any(|answer| code(answer) == Some(ErrorCode::Overloaded)), "{answers:?}");
    assert!(answers.iter().any(|answer| matches!(answer, Ok(Response::MultiGot(_)))), "{answers:?}");

    // The Redis door draws on the same account, and answers a pipeline in order.
    until_idle(&cluster).await;
    let mut redis = cluster.redis(0);
    let pipeline: String = (0..CLIENT_REQUESTS_MAX + 2).map(|n| format!("GET r{n}\r\n")).collect();
    redis.send(format!("{pipeline}PING\r\n").as_bytes()).await;
    let lines = redis.lines(CLIENT_REQUESTS_MAX + 3).await;
    let (taken, refused) = lines.split_at(CLIENT_REQUESTS_MAX);
    assert!(taken.iter().all(|line| line.starts_with("-NOREPLICAS")), "{taken:?}");
    assert!(
        refused[..2]
            .iter()
            .all(|line| line
                .starts_with("-OVERLOADED overloaded: this node already has 48 requests in flight")),
        "{refused:?}"
    );
    assert_eq!(refused[2], "+PONG");

    // One copy is enough for this one: it is done at once.
    until_idle(&cluster).await;
    let one = RequestOptions { required: Some(1), ..RequestOptions::default() };
    let answers = flood(&peers, vec![put("after".to_owned(), 1, one)]).await;
    assert!(matches!(answers[..], [Ok(Response::Written(_))]), "{answers:?}");
}

/// Says who it is and tells what the node made of that.
async fn greet(address: &str, peer: Peer) -> (Response, runtime::Link) {
    let mut link = Ports::os().unwrap().network.connect(address).await.unwrap();
    let (version_min, version_max) = (wire::messages::VERSION_MIN, wire::messages::VERSION_MAX);
    let hello = Request::Hello(Hello { version_min, version_max, cluster: None, peer });
    link.sender.send(&mut |frame| encode_request(0, &hello, frame)).unwrap();
    let answer = link.receiver.receive().await.unwrap().expect("an answer before the end");
    (decode_response(answer).unwrap().1, link)
}

fn refused(answer: &Response) -> Option<(ErrorCode, &str)> {
    match answer {
        Response::Failure(failure) => Some((failure.code, failure.detail.as_str())),
        _ => None,
    }
}

/// A client over the limit of clients has said who it is; what connects when all places beside those are taken too is
/// refused before it could. Both hear why, on both doors, and there is a place again when somebody leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_over_the_limit_is_told_why_and_a_later_one_gets_a_freed_place() {
    let cluster =
        RunningCluster::start((1, 1), store(1, 1, 1), |config| config.requests.limits.connections_max = 1)
            .await;
    let address = cluster.nodes[0].replica().view().get().cluster().nodes[0].native.clone();
    let refusal = "this node already serves 1 client connections, which is the limit; close idle ones";
    let expected = Some((ErrorCode::TooManyConnections, refusal));

    let only: Client = cluster.client(ClientOptions::default()).await;
    only.store("default").unwrap().put("k", "v", client::PutOptions::default()).await.unwrap();
    let second = Client::connect(&[&address], Ports::os().unwrap(), ClientOptions::default()).await;
    let Err(client::ClientError::NotConnected { detail }) = second else { panic!("a second client") };
    assert!(detail.contains("this node already serves 1 client connections"), "{detail}");
    cluster.redis(0).expect("-ERR max number of clients reached\r\n").await;

    let mut nodes = Vec::new();
    while cluster.nodes[0].admission().connections() < 65 {
        let (answer, link) = greet(&address, Peer::Node { id: NodeId(2), incarnation: 1 }).await;
        assert!(matches!(answer, Response::Welcome(_)), "{answer:?}");
        nodes.push(link);
    }
    // More than are kept open to be told at the same time, one after the other.
    for _ in 0..100 {
        let (answer, _) = greet(&address, Peer::Client { name: "one more".to_owned() }).await;
        assert_eq!(refused(&answer), expected, "{answer:?}");
    }
    let mut redis = cluster.redis(0);
    redis.send(b"PING\r\nCLIENT SETINFO LIB-NAME x\r\n").await;
    redis.expect("-ERR max number of clients reached\r\n").await;
    assert!(redis.is_closed().await);

    drop(nodes);
    only.close();
    loop {
        let again = Client::connect(&[&address], Ports::os().unwrap(), ClientOptions::default()).await;
        let Ok(again) = again else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let found = again.store("default").unwrap().get("k").await.unwrap();
        assert_eq!(found.value().as_deref(), Some(&b"v"[..]));
        break;
    }
}

/// Sends a request over a link that has been greeted, and reads its answer.
async fn ask(link: &mut runtime::Link, id: u64, request: Request) -> Response {
    link.sender.send(&mut |frame| encode_request(id, &request, frame)).unwrap();
    let answer = link.receiver.receive().await.unwrap().expect("an answer");
    decode_response(answer).unwrap().1
}

/// A headmaster connects as a client does, and an overloaded node refused it: the one that could relieve it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_node_answers_the_headmaster_and_little_else_on_its_connection() {
    let cluster =
        RunningCluster::start((1, 1), store(1, 1, 1), |config| config.requests.limits.connections_max = 1)
            .await;
    let address = cluster.nodes[0].replica().view().get().cluster().nodes[0].native.clone();
    let only: Client = cluster.client(ClientOptions::default()).await;
    only.store("default").unwrap().put("k", "v", client::PutOptions::default()).await.unwrap();

    let headmaster = || Peer::Client { name: node::doors::native::HEADMASTER.to_owned() };
    let (answer, mut link) = greet(&address, headmaster()).await;
    assert!(matches!(answer, Response::Welcome(_)), "{answer:?}");
    let report = ask(&mut link, 1 << 16, ReportGet { parts: Parts::MOVES | Parts::LOAD }.into()).await;
    let Response::ReportGot(report) = report else { panic!("{report:?}") };
    assert!(report.report().unwrap().load.is_some());
    let told = ask(&mut link, 2 << 16, OfficeGet {}.into()).await;
    assert!(matches!(told, Response::OfficeTold(_)), "{told:?}");
    let got = ask(&mut link, 3 << 16, get("k".to_owned(), RequestOptions::default())).await;
    assert_eq!(refused(&got).map(|(code, _)| code), Some(ErrorCode::TooManyConnections), "{got:?}");

    // Others do not crowd in by that name, nor by any other.
    let mut more = vec![link];
    loop {
        let (answer, link) = greet(&address, headmaster()).await;
        match refused(&answer) {
            None => more.push(link),
            Some((code, _)) => {
                assert_eq!((code, more.len()), (ErrorCode::TooManyConnections, 8));
                break;
            }
        }
    }
    drop(more);
    loop {
        let (answer, _link) = greet(&address, headmaster()).await;
        if matches!(answer, Response::Welcome(_)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Orders and plans had to find room among what clients keep busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flooded_node_accepts_a_limited_number_of_orders_and_leaves_room_for_nodes() {
    let deadline = RequestOptions { deadline_ms: 60_000, ..RequestOptions::default() };
    let cluster = RunningCluster::start((2, 1), store(2, 2, 2), |config| {
        small(config);
        config.requests.coordinator.deadline = Duration::from_secs(60);
    })
    .await;
    let node = &cluster.nodes[0];
    let address = node.replica().view().get().cluster().nodes[0].native.clone();
    let client = || Peer::Client { name: "flood".to_owned() };
    let send = |link: &runtime::Link, number: u64, request: Request| {
        link.sender.send(&mut |frame| encode_request(number << 16, &request, frame)).unwrap();
    };
    let (_, busy) = greet(&address, client()).await;
    // Node 2 answers nothing, so each waits for its deadline.
    for number in 1..=CLIENT_REQUESTS_MAX as u64 {
        send(&busy, number, get(format!("k{number}"), deadline.clone()));
    }
    while node.admission().load().requests < CLIENT_REQUESTS_MAX {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (_, mut link) = greet(&address, client()).await;
    let overloaded = ask(&mut link, 1 << 16, get("k".to_owned(), deadline.clone())).await;
    assert_eq!(refused(&overloaded).map(|(code, _)| code), Some(ErrorCode::Overloaded));
    let told = ask(&mut link, 2 << 16, OfficeGet {}.into()).await;
    assert!(matches!(told, Response::OfficeTold(_)), "{told:?}");

    // As many as wait for answers have room of their own; they take none of what nodes have for each other.
    for number in 3..=102 {
        send(&link, number, OrderAnswer { number: 1_000, wait_ms: 30_000 }.into());
    }
    let answer = decode_response(link.receiver.receive().await.unwrap().unwrap()).unwrap().1;
    assert_eq!(refused(&answer).map(|(code, _)| code), Some(ErrorCode::Overloaded), "{answer:?}");
    assert_eq!(node.admission().load().requests, CLIENT_REQUESTS_MAX);
}

/// Sends the beginning of a long put over its own link, and leaves it there.
async fn begin(address: &str, value_bytes: usize, sent_bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (version_min, version_max) = (wire::messages::VERSION_MIN, wire::messages::VERSION_MAX);
    let peer = Peer::Client { name: "slow".to_owned() };
    let hello = Request::Hello(Hello { version_min, version_max, cluster: None, peer });
    stream.write_all(b"TONTINE\x01\n").await.unwrap();
    stream.write_all(&frame(0, &hello)).await.unwrap();
    let mut preamble = [0; 9];
    stream.read_exact(&mut preamble).await.unwrap();
    assert!(matches!(read_frame(&mut stream).await.1, Response::Welcome(_)));
    let put = frame(7 << 16, &put("slow".to_owned(), value_bytes, RequestOptions::default()));
    stream.write_all(&put[..sent_bytes]).await.unwrap();
    stream
}

fn frame(id: u64, request: &Request) -> Vec<u8> {
    let mut body = bytes::BytesMut::new();
    encode_request(id, request, &mut body);
    [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], &body].concat()
}

async fn read_frame(stream: &mut TcpStream) -> (u64, Response) {
    let mut body = vec![0; stream.read_u32_le().await.unwrap() as usize];
    stream.read_exact(&mut body).await.unwrap();
    decode_response(body.into()).unwrap()
}

/// Beginnings of commands and frames that never end used to be bounded by connection only: each could hold 64 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_slow_connections_hold_no_more_than_their_share_and_the_rest_are_told_why() {
    const LIMIT: usize = 4 << 20;
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |config| {
        config.requests.limits.node_bytes_max = LIMIT;
        // Nobody gives up a place here.
        config.requests.limits.slow_time_min = Duration::from_secs(3600);
    })
    .await;
    let address = cluster.nodes[0].replica().view().get().cluster().nodes[0].native.clone();
    let held = || cluster.nodes[0].admission().load().bytes;
    let mut slow = Vec::new();
    // What has come of a frame counts twice: a buffer grows by as much as it holds. All of it has to have come before
    // others ask for room, or they are refused what they were to find.
    for _ in 0..2 {
        let before = held();
        slow.push(begin(&address, 1 << 20, 300_000).await);
        let come = async {
            while held() < before + 600_000 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, come).await.expect("all that was sent comes");
    }
    // Each announces a megabyte, and what has come of it counts twice, too.
    let mut redis = Vec::new();
    for _ in 0..10 {
        let before = held();
        let mut connection = cluster.redis(0);
        connection.send(&announced(1_000_000, 200_000)).await;
        // The first one that finds no room is told of it.
        if before + 400_000 > LIMIT / 2 {
            let refusal =
                "-OVERLOADED overloaded: this node's requests in flight have reached the limit of 2097152";
            connection.expect(refusal).await;
        } else {
            while held() < before + 400_000 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        redis.push(connection);
    }
    assert!(held() > LIMIT / 4 + 400_000, "{} bytes are held: some had room", held());
    assert!(held() <= LIMIT / 2, "{} bytes are held", held());

    // A link is told which of its requests found no room, and goes on.
    let mut late = begin(&address, 10 << 20, 1 << 20).await;
    let (id, answer) = read_frame(&mut late).await;
    let Response::Failure(failure) = answer else { panic!("{answer:?}") };
    assert_eq!((id, failure.code), (7 << 16, ErrorCode::Overloaded));
    let rest = frame(7 << 16, &put("slow".to_owned(), 10 << 20, RequestOptions::default()));
    late.write_all(&rest[1 << 20..]).await.unwrap();
    late.write_all(&frame(8 << 16, &put("k".to_owned(), 1_000, RequestOptions::default()))).await.unwrap();
    let (id, answer) = read_frame(&mut late).await;
    assert!(id == 8 << 16 && matches!(answer, Response::Written(_)), "{id}: {answer:?}");

    drop((slow, redis, late));
    until_idle(&cluster).await;
    let client = cluster.client(ClientOptions { deadline: PATIENCE, ..ClientOptions::default() }).await;
    let large = vec![1; 3 << 20];
    client.store("default").unwrap().put("k", large, client::PutOptions::default()).await.unwrap();
}

/// The beginning of a SET with a value of `bytes` bytes, of which `sent` come.
fn announced(bytes: usize, sent: usize) -> Vec<u8> {
    let mut command = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${bytes}\r\n").into_bytes();
    command.resize(command.len() + sent, b'v');
    command
}

/// A thousand connections that announced 16 MiB each, in 40 bytes, held all room for requests that come in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcing_large_arguments_holds_no_room() {
    const LIMIT: usize = 4 << 20;
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |config| {
        config.requests.limits.node_bytes_max = LIMIT;
        config.requests.limits.slow_time_min = Duration::from_secs(3600);
    })
    .await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        let mut connection = cluster.redis(0);
        connection.send(b"PING\r\n").await;
        connection.expect("+PONG\r\n").await;
        connection.send(&announced(16 << 20, 10)).await;
        silent.push(connection);
    }
    let mut other = cluster.redis(0);
    for _ in 0..20 {
        let mut large = announced(1 << 20, 1 << 20);
        large.extend_from_slice(b"\r\n");
        other.send(&large).await;
        other.expect("+OK\r\n").await;
    }
    assert_eq!(
        cluster.nodes[0].admission().load(),
        Load::default(),
        "nothing is held for what was announced"
    );
}

/// Beginnings that had come kept the room of others for a minute after their senders had fallen silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_senders_give_up_their_places_to_active_ones() {
    const LIMIT: usize = 4 << 20;
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |config| {
        config.requests.limits.node_bytes_max = LIMIT;
        // Whoever has room is slow at once, so no clock decides what this test meets.
        config.requests.limits.slow_time_min = Duration::ZERO;
    })
    .await;
    let address = cluster.nodes[0].replica().view().get().cluster().nodes[0].native.clone();
    let held = || cluster.nodes[0].admission().load().bytes;
    let mut link = begin(&address, 10 << 20, 300_000).await;
    while held() < 600_000 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut silent = cluster.redis(0);
    silent.send(&announced(1_900_000, 600_000)).await;
    while held() < 1_800_000 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The link is slower by a moment; then it is the other's turn.
    let mut large = announced(1_000_000, 1_000_000);
    large.extend_from_slice(b"\r\n");
    let mut other = cluster.redis(0);
    other.send(&large).await;
    other.expect("+OK\r\n").await;
    let (id, answer) = read_frame(&mut link).await;
    let Response::Failure(failure) = answer else { panic!("{answer:?}") };
    assert_eq!((id, failure.code), (7 << 16, ErrorCode::Overloaded), "it is told which request that was");
    let rest = frame(7 << 16, &put("slow".to_owned(), 10 << 20, RequestOptions::default()));
    link.write_all(&rest[300_000..]).await.unwrap();
    link.write_all(&frame(8 << 16, &put("k".to_owned(), 1_000, RequestOptions::default()))).await.unwrap();
    let (id, answer) = read_frame(&mut link).await;
    assert!(id == 8 << 16 && matches!(answer, Response::Written(_)), "{id}: {answer:?}");
    let mut third = cluster.redis(0);
    third.send(&announced(1_900_000, 1_000_000)).await;
    silent.expect("-OVERLOADED overloaded: the request timed out and was not carried out").await;
    drop((silent, third));
    until_idle(&cluster).await;
}

/// What had begun used to be held for as long as its connection was open, and kept other large requests out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stalls_in_a_request_is_told_why_and_its_bytes_are_freed() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |config| {
        config.requests.limits.node_bytes_max = 4 << 20;
        config.requests.limits.rest_time_max = Duration::from_secs(1);
    })
    .await;
    let address = cluster.nodes[0].replica().view().get().cluster().nodes[0].native.clone();
    let mut link = begin(&address, 1 << 20, 300_000).await;
    let mut redis = cluster.redis(0);
    redis.send(&announced(1_000_000, 400_000)).await;
    while cluster.nodes[0].admission().load().bytes < 1_300_000 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    redis.expect("-ERR malformed: ").await;
    let (id, answer) = read_frame(&mut link).await;
    let Response::Failure(failure) = answer else { panic!("{answer:?}") };
    assert_eq!((id, failure.code), (0, ErrorCode::Malformed));
    assert!(failure.detail.contains("less than 65536 bytes came within 1s"), "{failure}");
    assert_eq!(link.read(&mut [0; 8]).await.unwrap(), 0, "the link is closed");
    until_idle(&cluster).await;

    // Slow, but not too slow: 64 KiB come in time, again and again. And nothing at all between two requests.
    let whole = frame(7 << 16, &put("slow".to_owned(), 400_000, RequestOptions::default()));
    let mut link = begin(&address, 400_000, 20_000).await;
    for part in whole[20_000..].chunks(70_000) {
        tokio::time::sleep(Duration::from_millis(250)).await;
        link.write_all(part).await.unwrap();
    }
    assert!(matches!(read_frame(&mut link).await.1, Response::Written(_)));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    link.write_all(&frame(8 << 16, &put("k".to_owned(), 9, RequestOptions::default()))).await.unwrap();
    assert!(matches!(read_frame(&mut link).await.1, Response::Written(_)));
}

/// A merge used to be carried out first and then refused, which promises that nothing was done.
#[tokio::test]
async fn a_merge_over_the_limit_is_refused_before_it_is_done() {
    let cluster = RunningCluster::start((1, 1), store(1, 1, 1), |config| {
        config.requests.limits.connection_requests_max = 0
    })
    .await;
    let peers = Peers::new(Ports::os().unwrap(), Peer::Node { id: NodeId(2), incarnation: 1 }, None);
    peers.learn(cluster.nodes[0].replica().view().get().cluster());
    let (name, key) = (StoreName::new("default").unwrap(), Bytes::from("k"));
    let mut set = VersionSet::default();
    let actor = Actor { node: NodeId(2), incarnation: 1, birth: 1 };
    set.put(Stamp { actor, timestamp: Timestamp(1), expires: None, value: Value::Tombstone }, None);
    let (store, generation) = ((&name).into(), Generation(1));
    let entries = [(key.clone(), set)].into_iter().collect();
    let merge = Request::ReplicaMerge(ReplicaMerge {
        since: Generation(1),
        store,
        generation,
        epoch: model::Epoch(0),
        hint_for: None,
        entries,
    });
    let answers = flood(&peers, vec![merge]).await;
    assert_eq!(code(&answers[0]), Some(ErrorCode::Overloaded), "{answers:?}");
    let (store, keys) = ((&name).into(), [key].into_iter().collect());
    let answers = flood(
        &peers,
        vec![Request::ReplicaGet(ReplicaGet {
            terms: Terms { since: Generation(1), role: Role::Replica },
            store,
            generation,
            keys,
        })],
    )
    .await;
    let Ok(Response::ReplicaGot(got)) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(got.sets[0], Ok(VersionSet::default()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_refused_back_off_and_get_everything_done() {
    let cluster =
        RunningCluster::start((1, 1), store(1, 1, 1), |config| config.requests.limits.node_requests_max = 4)
            .await;
    let options = ClientOptions { deadline: PATIENCE, retries: 1_000, ..ClientOptions::default() };
    let client: Client = cluster.client(options).await;
    let store = client.store("default").unwrap();
    let puts = (0..60).map(|n| store.put(format!("k{n}"), "v", client::PutOptions::default()));
    for written in join_all(puts).await {
        written.unwrap();
    }
    let entries = (0..60).map(|n| (format!("m{n}"), "v"));
    for written in store.multi_put(entries, &RequestOptions::default()).await.unwrap() {
        written.unwrap();
    }
}
