//! A closed cluster: nobody is served without a secret, and nothing is believed that only a node may say.
//!
//! The first four tests are attacks that worked on a running cluster before it could be closed.

mod audit;
mod hostile;
mod http;
mod keeping;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::NodeId;
use runtime::network::stream::Handshakes;
use runtime::network::tcp::{Dialing, TcpNetwork};
use runtime::network::tls::{Tls, TlsFiles};
use runtime::{Link, Network};
use wire::ErrorCode;
use wire::messages::{
    Authenticate, Get, Hello, Peer, Request, RequestOptions, Response, SecretText, StoreRef, decode_response,
    encode_request,
};

use crate::cluster::{Answer, Cluster, PATIENCE, tontine};

/// A closed cluster of three nodes, and its administrator.
pub(crate) struct Closed {
    pub(crate) cluster: Cluster,
}

impl Closed {
    pub(crate) fn start() -> Closed {
        Closed { cluster: Cluster::with(3, &["--tls"]) }
    }

    pub(crate) fn tls(&self, name: &str) -> PathBuf {
        self.cluster.data().join("tls").join(name)
    }

    /// The secret of the administrator.
    fn root(&self) -> String {
        std::fs::read_to_string(self.tls("root.secret")).unwrap().trim().to_owned()
    }

    /// Runs a command with the secret in this file, or without any.
    fn run_with(&self, secret: Option<&str>, words: &[&str]) -> Answer {
        let mut command = self.cluster.command(words);
        command.env("TONTINE_TLS_AUTHORITY", self.tls("authority.pem"));
        if let Some(file) = secret {
            command.env("TONTINE_SECRET_FILE", file);
        }
        Answer::of(command.output().unwrap())
    }

    /// Runs a command as the administrator.
    pub(crate) fn run(&self, words: &[&str]) -> Answer {
        self.run_with(Some(&self.tls("root.secret").display().to_string()), words)
    }

    /// Creates a user; where its secret is.
    pub(crate) fn user(&self, name: &str, rights: &[&str]) -> String {
        let file = self.cluster.file(&format!("{name}.secret"));
        let words = [&["user", "create", name, "--secret-to", &file], rights].concat();
        self.run(&words).exits(0);
        file
    }

    /// A network that shows this certificate, or none.
    fn network(&self, own: Option<&str>) -> TcpNetwork {
        let own = own.map(|name| (self.tls(&format!("{name}.pem")), self.tls(&format!("{name}.key"))));
        let tls = Tls::read(TlsFiles { authority: self.tls("authority.pem"), own }).unwrap();
        TcpNetwork::dialing(Dialing::Tls(tls as Arc<dyn Handshakes>))
    }

    /// A link to node 1 that greets so, and the answer to that.
    async fn greet(&self, own: Option<&str>, peer: Peer) -> (Raw, Response) {
        let link = self.network(own).connect(&self.cluster.native(1)).await.unwrap();
        let mut raw = Raw { link, sent: 0 };
        let answer = raw.ask(Hello { version_min: 5, version_max: 6, cluster: None, peer }).await;
        (raw, answer)
    }

    /// A link of a client with this secret, or none.
    async fn client(&self, secret: Option<&str>) -> Raw {
        let (mut raw, welcome) = self.greet(None, client_peer()).await;
        assert!(matches!(welcome, Response::Welcome(_)), "{welcome:?}");
        if let Some(secret) = secret {
            let (user, secret) = (String::new(), SecretText(secret.to_owned()));
            let answer = raw.ask(Authenticate { user, secret }).await;
            assert!(matches!(answer, Response::Pong(_)), "{answer:?}");
        }
        raw
    }
}

fn client_peer() -> Peer {
    Peer::Client { name: "liar".to_owned() }
}

fn node_peer(id: u32) -> Peer {
    Peer::Node { id: NodeId(id), incarnation: 1 << 60 }
}

/// A link on which anything can be said.
struct Raw {
    link: Link,
    sent: u64,
}

impl Raw {
    async fn ask(&mut self, request: impl Into<Request>) -> Response {
        let (request, id) = (request.into(), self.sent << 16);
        self.sent += 1;
        self.link.sender.send(&mut |out| encode_request(id, &request, out)).unwrap();
        let frame = tokio::time::timeout(PATIENCE, self.link.receiver.receive()).await.expect("an answer");
        decode_response(frame.unwrap().expect("the link is open")).unwrap().1
    }

    /// Asks what must be refused; with which code.
    async fn refused(&mut self, request: impl Into<Request>) -> ErrorCode {
        match self.ask(request).await {
            Response::Failure(failure) => failure.code,
            answer => panic!("it was carried out: {answer:?}"),
        }
    }
}

fn store() -> StoreRef {
    (&model::StoreName::new("default").unwrap()).into()
}

fn get(key: &'static str) -> Get {
    let (generation, options) = (model::Generation(1), RequestOptions::default());
    Get { store: store(), generation, options, key: Bytes::from_static(key.as_bytes()) }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Longest that a removed user may be served.
const REMOVED_WITHIN: Duration = Duration::from_secs(5);

#[test]
fn a_newcomer_uses_a_closed_cluster_with_two_variables() {
    let closed = Closed::start();
    closed.run(&["put", "greeting", "hello"]).exits(0);
    assert_eq!(closed.run(&["get", "greeting"]).exits(0).text().trim(), "hello");
    closed.run(&["doctor"]).exits(0);
    let users = closed.run(&["user", "list", "--json"]).exits(0).json();
    assert_eq!(users["users"][0]["user"], "root");
    // The variable in place of the file.
    let mut command = closed.cluster.command(&["get", "greeting"]);
    command.env("TONTINE_TLS_AUTHORITY", closed.tls("authority.pem")).env("TONTINE_SECRET", closed.root());
    Answer::of(command.output().unwrap()).exits(0);
}

#[test]
fn a_user_without_the_right_is_told_so_and_not_that_nodes_are_dead() {
    let closed = Closed::start();
    let shop = closed.user("shop", &["read:default/a", "write:default/a"]);
    for command in ["doctor", "status"] {
        closed.run_with(Some(&shop), &[command]).fails_with("user shop has not the right observe");
    }
    closed.run_with(Some(&shop), &["get", "b"]).fails_with("forbidden: the user of this secret has no right");
    closed.run_with(Some(&shop), &["mget", "a", "b"]).fails_with("or another one of the same request");
    closed.run(&["user", "rotate", "shop", "--secret-to", &closed.cluster.file("second")]).exits(0);
    let words = ["user", "rotate", "shop", "--secret-to", &closed.cluster.file("third")];
    closed.run(&words).fails_with("user shop has two secrets already");
    closed.run_with(Some(&shop), &["put", "a", "1"]).exits(0);
}

#[test]
fn connecting_without_tls_or_with_it_to_a_plain_port_is_explained() {
    let closed = Closed::start();
    closed.cluster.run(&["get", "k"]).fails_with("takes no connection without TLS");
    let secret = closed.tls("root.secret").display().to_string();
    let mut command = closed.cluster.command(&["get", "k", "--secret-file", &secret]);
    Answer::of(command.output().unwrap()).fails_with("--tls-authority");

    let plain = Cluster::with(1, &[]);
    let authority = closed.tls("authority.pem").display().to_string();
    let answer = plain.run(&["get", "k", "--tls-authority", &authority]);
    answer.fails_with("no TLS with 127.0.0.1:");

    // A cluster of another authority.
    let folder = closed.cluster.file("other");
    tontine(&["cert", "init", &folder]).exits(0);
    let foreign = format!("{folder}/authority.pem");
    let words = ["get", "k", "--tls-authority", &foreign, "--secret-file", &secret];
    closed.cluster.run(&words).fails_with("invalid peer certificate");
}
