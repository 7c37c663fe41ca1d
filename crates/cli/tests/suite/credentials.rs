//! The password of the coordination service goes to addresses that the operator gave, whatever a node says.
//!
//! Commands asked a node once where the documents are, and sent the password there.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use runtime::network::tcp::TcpNetwork;
use runtime::{Link, Network};
use serde_json::Value as Json;
use wire::messages::{Response, decode_response, encode_response, request_id};

use crate::cluster::{Answer, Cluster, command};

/// An address of an ensemble that only counts who comes.
struct Trap {
    address: String,
    came: Arc<AtomicUsize>,
}

impl Trap {
    fn set() -> Trap {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("zookeeper://{}/shop", listener.local_addr().unwrap());
        let came = Arc::<AtomicUsize>::default();
        let counted = came.clone();
        std::thread::spawn(move || {
            while let Ok((_, _)) = listener.accept() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Trap { address, came }
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }
}

/// Sits before a node and passes on what it says, but names itself as the node, and the trap as the service.
#[derive(Clone)]
struct Liar {
    node: String,
    own: String,
    service: String,
}

impl Liar {
    /// Begins to lie at its own address.
    fn begin(node: String, service: String) -> Liar {
        let own = format!("127.0.0.1:{}", crate::cluster::free_port_base());
        let liar = Liar { node, own, service };
        let (lying, listens) = (liar.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async move {
                let mut listener = TcpNetwork::new().listen(&lying.own).await.unwrap();
                listens.0.send(()).unwrap();
                while let Ok(link) = listener.accept().await {
                    let lying = lying.clone();
                    tokio::task::spawn_local(async move { lying.serve(link).await });
                }
            });
        });
        listens.1.recv_timeout(Duration::from_secs(10)).expect("it listens");
        liar
    }

    async fn serve(&self, link: Link) {
        let Link { sender, mut receiver, .. } = link;
        let node = TcpNetwork::new().connect(&self.node).await.unwrap();
        let (to_node, mut from_node) = (node.sender, node.receiver);
        let asking = async {
            while let Ok(Some(frame)) = receiver.receive().await {
                to_node.send(&mut |out| out.extend_from_slice(&frame)).unwrap();
            }
        };
        let answering = async {
            while let Ok(Some(frame)) = from_node.receive().await {
                self.answer(frame, &mut |answer| {
                    sender.send(&mut |out| out.extend_from_slice(answer)).unwrap()
                });
            }
        };
        tokio::select! { biased; () = asking => {}, () = answering => {} }
    }

    fn answer(&self, frame: Bytes, send: &mut dyn FnMut(&[u8])) {
        let (id, mut answer) = decode_response(frame.clone()).unwrap();
        assert_eq!(Some(id), request_id(&frame));
        match &mut answer {
            Response::ClusterDocument(document) => document.json = self.lie(&document.json),
            Response::ReportGot(report) => report.json = self.lie(&report.json),
            Response::OfficeTold(office) => office.json = self.lie(&office.json),
            _ => return send(&frame),
        }
        let mut lie = bytes::BytesMut::new();
        encode_response(id, &answer, &mut lie);
        send(&lie);
    }

    fn lie(&self, json: &Bytes) -> Bytes {
        let text = String::from_utf8(json.to_vec()).unwrap().replace(&self.node, &self.own);
        let mut document: Json = serde_json::from_str(&text).unwrap();
        if let Some(place) = document.pointer_mut("/status/place") {
            place["coordination_directory"] = self.service.clone().into();
        }
        if document.get("service").is_some() {
            document["service"] = self.service.clone().into();
            document["unread"] = "it does not answer".into();
        }
        document.to_string().into()
    }
}

#[test]
fn a_node_that_names_another_address_gets_no_credentials_there() {
    let cluster = Cluster::with(1, &[]);
    let trap = Trap::set();
    let liar = Liar::begin(cluster.native(1), trap.address.clone());
    let file = cluster.file("zookeeper-credentials");
    std::fs::write(&file, "tontine:password\n").unwrap();
    let run = |words: &[&str]| {
        let mut command = command(words);
        command.env("TONTINE_CONNECT", &liar.own).env("TONTINE_COORDINATION_CREDENTIALS", &file);
        Answer::of(command.output().unwrap())
    };
    assert!(run(&["doctor"]).text().contains(&trap.address), "the lie arrives");
    run(&["put", "k", "v"]).exits(0);
    for words in [
        &["status"][..],
        &["node", "list"],
        &["node", "weight", "1", "2"],
        &["plan", "create", "spread"],
        &["plan", "history"],
        &["store", "create", "carts"],
        &["repair", "status"],
        &["events"],
        &["route", "k"],
        &["user", "list"],
    ] {
        let answer = run(words);
        assert!(answer.code < 2, "{words:?}: {} {}", answer.text(), answer.stderr);
    }
    // These say that the nodes cannot read the documents, and do not look for themselves.
    run(&["balance", "status"]);
    run(&["balance", "why"]).fails_with("it does not answer");
    let (export, data) = (cluster.file("export"), cluster.file("data"));
    for words in [
        &["coordination", "show"][..],
        &["coordination", "watch"],
        &["coordination", "export", &export],
        &["coordination", "migrate", "--to", &trap.address],
        &["cluster", "create", "--name", "shop"],
        &["serve", "--data-dir", &data],
        &["headmaster"],
    ] {
        run(words).fails_with("--coordination");
    }
    assert_eq!(trap.came(), 0, "somebody was called that only the node has named");
    // Whoever gives the address is taken at his word: the trap works.
    run(&["coordination", "show", "--coordination", &trap.address]).fails_with("");
    assert!(trap.came() > 0);
}
