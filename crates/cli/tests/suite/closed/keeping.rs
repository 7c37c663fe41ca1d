//! What a closed cluster keeps: users through restarts, requests through changed certificates, and secrets to itself.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use client::{Client, ClientOptions, PutOptions};
use runtime::Ports;
use runtime::secret::Secret;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::cluster::{Process, command, free_port_base};
use crate::machines::create;
use crate::machines::servers::Ensemble;
use crate::observe::until;

/// A client library's client with the administrator's secret.
async fn connected(closed: &Closed) -> Client {
    let mut ports = Ports::os().unwrap();
    ports.network = Arc::new(closed.network(None));
    let secret = Some(Secret::parse(&closed.root()).unwrap());
    let options = ClientOptions { secret, deadline: PATIENCE, ..ClientOptions::default() };
    let addresses: Vec<String> = (1..=3).map(|node| closed.cluster.native(node)).collect();
    Client::connect(&addresses, ports, options).await.unwrap()
}

/// A process of a closed cluster over ZooKeeper.
fn start(words: &[&str], certificates: &Path, name: &str) -> Process {
    let file = |ending: &str| certificates.join(format!("{name}.{ending}")).display().to_string();
    let tls = [
        format!("--tls-cert={}", file("pem")),
        format!("--tls-key={}", file("key")),
        format!("--tls-authority={}", certificates.join("authority.pem").display()),
        "--session-timeout=4s".to_owned(),
    ];
    let mut command = command(words);
    command.args(tls);
    Process::start(&mut command, certificates.join(format!("{name}.stderr")))
}

fn start_node(id: u16, address: &str, certificates: &Path) -> Process {
    let id_word = format!("--id={id}");
    let data = format!("--data-dir={}", certificates.join(format!("data-{id}")).display());
    let service = format!("--coordination={address}");
    let words = ["serve", &id_word, "--no-headmaster", &data, &service, "--tls=require"];
    let node = start(&words, certificates, &format!("node-{id}"));
    node.await_line(&format!("node {id}"));
    node
}

#[test]
fn users_are_not_forgotten_by_a_restart_while_the_service_is_away() {
    let folder = tempfile::TempDir::new().unwrap();
    let (path, folder_word) = (folder.path(), folder.path().display().to_string());
    tontine(&["cert", "init", &folder_word]).exits(0);
    for name in ["node-1", "node-2", "node-3", "headmaster"] {
        tontine(&["cert", "node", &folder_word, name, "127.0.0.1"]).exits(0);
    }
    let mut ensemble = Ensemble::start(1);
    let address = ensemble.address("/shop");
    let connect = create(&address, free_port_base()).join(",");
    let mut nodes: Vec<Process> = (1..=3).map(|id| start_node(id, &address, path)).collect();
    let service = format!("--coordination={address}");
    let headmaster = start(&["headmaster", &service], path, "headmaster");
    let run = |secret: Option<&str>, words: &[&str]| {
        let mut command = command(words);
        command.env("TONTINE_CONNECT", &connect).env("TONTINE_TLS_AUTHORITY", path.join("authority.pem"));
        secret.into_iter().for_each(|secret| {
            command.env("TONTINE_SECRET_FILE", path.join(secret));
        });
        Answer::of(command.output().unwrap())
    };
    let root = path.join("root").display().to_string();
    let close = || run(None, &["user", "create", "root", "admin", "--secret-to", &root]);
    until("every node is called with TLS", close, |answer| answer.code == 0);
    let shop = path.join("shop").display().to_string();
    run(Some("root"), &["user", "create", "shop", "read:default", "write:default", "--secret-to", &shop])
        .exits(0);
    run(Some("shop"), &["put", "k", "v"]).exits(0);
    ensemble.servers[0].kill();
    for node in &mut nodes {
        assert_eq!(node.stop(Signal::TERM), Some(0), "{}", node.stderr());
    }
    nodes = (1..=3).map(|id| start_node(id, &address, path)).collect();
    let read = || run(Some("shop"), &["get", "k"]);
    let got = until("the nodes are together again", read, |answer| answer.code == 0);
    assert_eq!(got.text().trim(), "v");
    run(None, &["get", "k"]).fails_with("has given no secret");
    run(Some("shop"), &["metrics"]).fails_with("forbidden");
    drop((headmaster, nodes));
}

#[test]
fn a_certificate_that_is_changed_under_load_costs_no_request() {
    let closed = Closed::start();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    block_on(async {
        let load = |number: usize| {
            let (stop, done, closed) = (stop.clone(), done.clone(), &closed);
            async move {
                while !stop.load(Ordering::Relaxed) {
                    // Each round with its own connections, so that handshakes go on all the time.
                    let client = connected(closed).await;
                    let store = client.store("default").unwrap();
                    for round in 0..20 {
                        let (key, value) = (format!("{number}:{round}"), format!("value {round}"));
                        store.put(key.clone(), value.clone(), PutOptions::default()).await.expect("a put");
                        let found = store.get(key).await.expect("a get");
                        assert_eq!(found.value().as_deref(), Some(value.as_bytes()));
                        done.fetch_add(2, Ordering::Relaxed);
                    }
                    client.close();
                }
            }
        };
        let change = async {
            let before = done.load(Ordering::Relaxed);
            for node in 1..=3 {
                let name = format!("node-{node}");
                let folder = closed.tls("").display().to_string();
                tontine(&["cert", "node", &folder, &name, "127.0.0.1", "localhost", "--renew"]).exits(0);
                tokio::time::sleep(Duration::from_millis(1500)).await;
            }
            assert!(done.load(Ordering::Relaxed) > before, "there was no load");
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(load(1), load(2), change);
    });
    for node in 1..=3 {
        let log = closed.cluster.data().join(format!("log/node-{node}.log"));
        let log = std::fs::read_to_string(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        assert!(log.contains("certificates read again"), "node {node} shows its old certificate");
    }
}

#[test]
fn a_secret_is_in_no_log_no_event_no_process_list_and_no_json() {
    let closed = Closed::start();
    let file = closed.user("shop", &["read:default"]);
    let shop = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let root = closed.root();
    block_on(async {
        let mut nobody = closed.client(None).await;
        let secret = SecretText(format!("{shop}x"));
        nobody.refused(Authenticate { user: "shop".to_owned(), secret }).await;
        let mut shop = closed.client(Some(&shop)).await;
        shop.refused(Get { store: siblings(), ..get("a-key-of-nobody") }).await;
    });
    let printed = closed.run(&["user", "create", "printed", "observe"]).exits(0);
    assert!(Secret::parse(&printed.text()).is_ok(), "it is shown once, alone on standard output");
    closed.run(&["user", "create", "in-json", "observe", "--json"]).fails_in_json();
    let documents = [
        closed.run(&["user", "list", "--json"]),
        closed.run(&["events", "--json"]),
        closed.run(&["coordination", "export", "--coordination", &coordination(&closed)]),
        closed.run(&["user", "rotate", "shop", "--secret-to", &closed.cluster.file("next"), "--json"]),
    ];
    let mut shown: String = documents.iter().map(|answer| answer.text() + &answer.stderr).collect();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        shown.push_str(&String::from_utf8_lossy(&words));
    }
    for secret in [&shop, &root, &printed.text().trim().to_owned()] {
        assert!(!shown.contains(secret.as_str()));
        assert_eq!(
            holders(&closed.cluster.data(), secret),
            if *secret == root { vec!["root.secret"] } else { vec![] }
        );
    }
}

fn siblings() -> StoreRef {
    (&model::StoreName::new("siblings").unwrap()).into()
}

fn coordination(closed: &Closed) -> String {
    format!("dir:{}", closed.cluster.data().join("coordination").display())
}

/// The names of the files below a directory that hold a text.
fn holders(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holders(&path, text));
        } else if std::fs::read(&path)
            .unwrap_or_default()
            .windows(text.len())
            .any(|part| part == text.as_bytes())
        {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

#[test]
fn an_open_cluster_with_data_is_closed_and_stays_closed() {
    let mut cluster = Cluster::start();
    cluster.run(&["put", "k", "v"]).exits(0);
    cluster.run(&["user", "create", "root", "admin"]).fails_with("is called without TLS");
    cluster.stop();
    cluster.add_argument("--tls");
    cluster.start_again();
    let closed = Closed { cluster };
    let file = closed.cluster.file("root.secret");
    let create = || closed.run_with(None, &["user", "create", "root", "admin", "--secret-to", &file]);
    until("every node is called with TLS", create, |answer| answer.code == 0);
    assert_eq!(closed.run_with(Some(&file), &["get", "k"]).exits(0).text().trim(), "v");
    closed.run_with(None, &["get", "k"]).fails_with("has given no secret");
    closed.run_with(Some(&file), &["doctor"]).exits(0);
    // A node without TLS does not come back into it.
    closed.cluster.end_node(2, Signal::KILL);
    let bare = closed.cluster.refused_again_without(2, "--tls");
    assert!(bare.contains("has users, so its nodes require TLS"), "{bare}");
}

/// Puts and gets one after the other until it is told to stop; how many were done. One that fails ends the test.
async fn load(client: Client, stop: Arc<AtomicBool>) -> usize {
    let (store, mut done) = (client.store("default").unwrap(), 0);
    while !stop.load(Ordering::Relaxed) {
        let (key, value) = (format!("load:{}", done % 50), format!("value {done}"));
        store.put(key.clone(), value.clone(), PutOptions::default()).await.expect("a put");
        assert_eq!(store.get(key).await.expect("a get").value().as_deref(), Some(value.as_bytes()));
        done += 1;
    }
    client.close();
    done
}

/// Does something under load of a client with this network and secret, none of whose requests may fail.
fn under_load(
    cluster: &mut Cluster,
    network: TcpNetwork,
    secret: Option<Secret>,
    act: impl FnOnce(&mut Cluster),
) {
    let addresses: Vec<String> = (1..=3).map(|node| cluster.native(node)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let loading = std::thread::spawn({
        let stop = stop.clone();
        move || {
            block_on(async {
                let mut ports = Ports::os().unwrap();
                ports.network = Arc::new(network);
                let options =
                    ClientOptions { secret, deadline: PATIENCE, retries: 1000, ..ClientOptions::default() };
                load(Client::connect(&addresses, ports, options).await.unwrap(), stop).await
            })
        }
    });
    act(cluster);
    stop.store(true, Ordering::Relaxed);
    assert!(loading.join().unwrap() > 50, "there was no load");
}

/// Restarts each node in turn with these words.
fn turn_over(cluster: &mut Cluster, mode: &str, folder: &str, is_first: bool) {
    for node in 1..=3 {
        match is_first {
            true => cluster.end_node(node, Signal::TERM),
            false => cluster.signal_node(node, Signal::TERM),
        }
        let words = [
            format!("--tls={mode}"),
            format!("--tls-cert={folder}/node.pem"),
            format!("--tls-key={folder}/node.key"),
            format!("--tls-authority={folder}/authority.pem"),
        ];
        cluster.start_node_with_words(node, &words.each_ref().map(String::as_str));
        let authority = format!("{folder}/authority.pem");
        // As an operator does: a node that the others do not reach yet is as good as away.
        let healthy = || match mode {
            "accept" => cluster.run(&["doctor"]),
            _ => cluster.run(&["doctor", "--tls-authority", &authority]),
        };
        until("doctor finds nothing", healthy, |answer| answer.code == 0);
    }
}

#[test]
fn a_running_cluster_is_turned_over_node_by_node_without_a_failed_request() {
    let mut cluster = Cluster::start();
    let folder = cluster.file("tls");
    tontine(&["cert", "init", &folder]).exits(0);
    tontine(&["cert", "node", &folder, "node", "127.0.0.1", "localhost"]).exits(0);
    under_load(&mut cluster, TcpNetwork::new(), None, |cluster| turn_over(cluster, "accept", &folder, true));
    let authority = format!("{folder}/authority.pem");
    let tls = Tls::read(TlsFiles { authority: authority.clone().into(), own: None }).unwrap();
    let network = || TcpNetwork::dialing(Dialing::Tls(tls.clone() as Arc<dyn Handshakes>));
    under_load(&mut cluster, network(), None, |cluster| turn_over(cluster, "require", &folder, false));
    cluster.run(&["get", "k"]).fails_with("takes no connection without TLS");
    let document = || {
        cluster.run(&[
            "coordination",
            "show",
            "/config/cluster",
            "--json",
            "--coordination",
            &directory(&cluster),
        ])
    };
    // The document is in a text, so its quotes are escaped.
    let says_so = |shown: &Answer| shown.text().matches(r#"\"tls\":true"#).count() == 3;
    until("every entry says so", document, says_so);
    close(&mut cluster, network, &authority);
}

/// Creates users and lets only those in, under load.
fn close(cluster: &mut Cluster, network: impl Fn() -> TcpNetwork, authority: &str) {
    let [root, shop] = ["root.secret", "shop.secret"].map(|name| cluster.file(name));
    let run = |cluster: &Cluster, secret: Option<&str>, words: &[&str]| {
        let mut command = cluster.command(&[words, &["--tls-authority", authority]].concat());
        secret.into_iter().for_each(|secret| {
            command.env("TONTINE_SECRET_FILE", secret);
        });
        Answer::of(command.output().unwrap())
    };
    under_load(cluster, network(), None, |cluster| {
        run(cluster, None, &["user", "create", "anyone", "admin"]).exits(0);
        run(cluster, None, &["user", "create", "root", "admin", "--secret-to", &root]).exits(0);
        let words = ["user", "create", "shop", "read:*", "write:*", "--secret-to", &shop];
        run(cluster, Some(&root), &words).exits(0);
        run(cluster, None, &["user", "rotate", "anyone"]).fails_with("is any client without a secret");
        run(cluster, Some(&shop), &["doctor"]).fails_with("user shop has not the right observe");
    });
    let secret = Secret::parse(&std::fs::read_to_string(&shop).unwrap()).unwrap();
    under_load(cluster, network(), Some(secret), |cluster| {
        run(cluster, Some(&root), &["user", "remove", "anyone"]).exits(0);
    });
    run(cluster, None, &["get", "k"]).fails_with("has given no secret");
    run(cluster, Some(&shop), &["put", "k", "v"]).exits(0);
}

fn directory(cluster: &Cluster) -> String {
    format!("dir:{}", cluster.data().join("coordination").display())
}

#[test]
fn redis_clients_give_their_secrets_and_do_what_they_may() {
    let closed = Closed::start();
    closed.run(&["store", "create", "carts"]).exits(0);
    let file = closed.cluster.file("shop.secret");
    closed
        .run(&[
            "user",
            "create",
            "shop",
            "read:carts",
            "write:carts/u:",
            "--redis-store",
            "carts",
            "--secret-to",
            &file,
        ])
        .exits(0);
    let secret = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    closed.run(&["put", "v:1", "seen", "-s", "carts"]).exits(0);
    let address = closed.cluster.resp(1);
    let said = block_on(async {
        let tls = Tls::read(TlsFiles { authority: closed.tls("authority.pem"), own: None }).unwrap();
        let tcp = tokio::net::TcpStream::connect(&address).await.unwrap();
        let mut stream = tls.connect(tcp, &address).await.unwrap();
        // All of it at once: each command follows the AUTH before it.
        let commands = format!(
            "PING\r\nGET v:1\r\nHELLO 2\r\nAUTH shop wrong\r\nAUTH shop {secret}\r\nGET v:1\r\nSET u:1 mine\r\nSET v:1 mine\r\n\
             SCAN 0\r\nMGET u:1 v:1\r\nTONTINE.STORE default\r\nGET k\r\nRESET\r\nGET v:1\r\nHELLO 2 AUTH default {secret}\r\n\
             SET u:2 x GET\r\nQUIT\r\n"
        );
        stream.write_all(commands.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut said = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut said)).await.unwrap().unwrap();
        said
    });
    let begins: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let expected = [
        "+PONG",
        "-NOAUTH",
        "-NOAUTH",
        "-WRONGPASS",
        "+OK",
        "$4",
        "seen",
        "+OK",
        "-NOPERM",
        "-NOPERM",
        "*2",
        "$4",
        "mine",
        "$4",
        "seen",
        "+OK",
        "-NOPERM",
        "+RESET",
        "-NOAUTH",
    ];
    for (line, expected) in begins.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line:?} is not {expected:?}:\n{said}");
    }
    assert!(said.contains("$5\r\nredis\r\n") && said.ends_with("$-1\r\n+OK\r\n"), "{said}");
    assert!(!said.contains(&secret), "{said}");
}

#[test]
fn a_refused_order_leaves_no_secret_and_a_file_that_is_there_is_kept() {
    let closed = Closed::start();
    let shop = closed.user("shop", &["read:default"]);
    let file = closed.cluster.file("more.secret");
    let create = ["user", "create", "more", "observe", "--secret-to", &file];
    closed.run_with(Some(&shop), &create).fails_with("admin");
    closed.run_with(None, &create).fails_with("has given no secret");
    closed.run(&["user", "rotate", "nobody", "--secret-to", &file]).fails_with("nobody");
    let left = |name: &str| closed.cluster.file(name);
    for name in ["more.secret", "more.secret.unanswered"] {
        assert!(!Path::new(&left(name)).exists(), "{name}");
    }
    closed.run(&create).exits(0);
    let secret = std::fs::read_to_string(&file).unwrap();
    assert!(!Path::new(&left("more.secret.unanswered")).exists());
    let again = ["user", "create", "other", "observe", "--secret-to", &file];
    closed.run(&again).fails_with("cannot be written");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), secret);
    closed.run_with(Some(&file), &["status"]).exits(0);
}

#[test]
fn certificates_that_are_there_or_do_not_fit_are_told_in_words() {
    let folder = tempfile::TempDir::new().unwrap();
    let (path, word) = (folder.path(), folder.path().display().to_string());
    tontine(&["cert", "init", &word]).exits(0);
    tontine(&["cert", "init", &word]).fails_with("choose another directory");
    for name in ["a", "b"] {
        tontine(&["cert", "node", &word, name, "127.0.0.1"]).exits(0);
    }
    tontine(&["cert", "node", &word, "a", "127.0.0.1"]).fails_with("add --renew");
    tontine(&["cert", "node", &word, "a", "127.0.0.1", "--renew"]).exits(0);
    let option = |name: &str, file: &str| format!("--{name}={}", path.join(file).display());
    let words = [
        "headmaster".to_owned(),
        format!("--coordination=dir:{word}"),
        option("tls-cert", "a.pem"),
        option("tls-key", "b.key"),
        option("tls-authority", "authority.pem"),
    ];
    let refused = tontine(&words.each_ref().map(String::as_str));
    assert!(refused.stderr.contains("b.key"), "{}", refused.stderr);
    refused.fails_with("is not the certificate of the key in");
}

#[test]
fn a_node_tells_when_its_certificate_expires() {
    let closed = Closed::start();
    let numbers = closed.run(&["metrics", "--from", "1"]).exits(0).text();
    let line = numbers.lines().find(|line| line.starts_with("tontine_tls_certificate_expires_seconds "));
    let seconds: f64 = line.unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let years = (seconds - now) / 31_556_952.0;
    assert!((1.9..3.1).contains(&years), "{years} years");
    closed.run(&["doctor"]).exits(0);
}
