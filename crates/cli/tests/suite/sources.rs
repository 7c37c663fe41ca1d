//! Artifacts that are fetched over the network, from real servers that this test starts and ends.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::cluster::{Cluster, PATIENCE, tontine};
use crate::push::{build, in_words, more_answers, number_of, read_on};

/// nginx, which serves a folder.
struct Nginx {
    child: Child,
    port: u16,
}

impl Nginx {
    fn start(folder: &Path, port: u16) -> Nginx {
        let configuration = format!(
            "daemon off; worker_processes 1; pid {0}/nginx.pid; error_log {0}/error.log;\nevents {{}}\nhttp {{ access_log \
             {0}/access.log; client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f; uwsgi_temp_path \
             {0}/u; scgi_temp_path {0}/s;\nserver {{ listen 127.0.0.1:{port}; location / {{ root {0}; }} }} }}\n",
            folder.display()
        );
        let file = folder.join("nginx.conf");
        std::fs::write(&file, configuration).unwrap();
        let child = Command::new("nginx")
            .arg("-c")
            .arg(&file)
            .arg("-e")
            .arg(folder.join("error.log"))
            .args(["-g", "user root;"])
            .stdin(Stdio::null())
            .spawn()
            .expect("nginx starts; to install it, run `apt-get install nginx-light`");
        let begun = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "nginx does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Nginx { child, port }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Asked to stop, it ends its worker, too.
        let id = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_table_is_fetched_from_a_web_server_under_reads_and_one_that_vanishes_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for number in [1, 2] {
        build(folder.path(), number);
    }
    let nginx = Nginx::start(folder.path(), free_port());
    let (one, two, port) = (nginx.url("words-1"), nginx.url("words-2"), nginx.port);
    let allowed = format!("--allow-sources=file:///nowhere,http://127.0.0.1:{port}");
    let mut cluster = Cluster::with(3, &["--separate-processes", &allowed]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    let checked = tontine(&["artifact", "check", &one]);
    assert!(checked.code == 0 && checked.text().contains("sound"), "{checked:?}");
    let shown = tontine(&["artifact", "show", &one]);
    assert!(shown.text().contains("artifact 1 of store words"), "{shown:?}");
    let differs = tontine(&["artifact", "diff", &one, &two]);
    assert!(differs.code == 1 && differs.text().contains("2500 changed"), "{differs:?}");
    cluster.run(&["artifact", "push", &one]).exits(0);
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let readers: Vec<_> = [(1, 300), (3, 40)]
            .map(|(node, keys)| {
                let (address, stop, answers) = (cluster.resp(node), &stop, &answers);
                scope.spawn(move || read_on(&address, keys, stop, answers))
            })
            .into();
        more_answers(&answers, 6);
        // Chunks are away, then the whole server: what is served stays served, and the push says why it waits.
        let (chunks, away) = (folder.path().join("words-2/chunks"), folder.path().join("away"));
        std::fs::rename(&chunks, &away).unwrap();
        cluster.run(&["artifact", "push", &two, "--timeout-s", "2"]).fails_with("does not exist");
        std::fs::rename(&away, &chunks).unwrap();
        drop(nginx);
        cluster.run(&["artifact", "push", &two, "--timeout-s", "2"]).fails_with("refused");
        more_answers(&answers, 6);
        let nginx = Nginx::start(folder.path(), port);
        cluster.run(&["artifact", "push", &two]).exits(0);
        more_answers(&answers, 6);
        drop(nginx);
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), [1, 2], "each artifact was seen, in order");
        }
    });
    cluster.restart();
    let served = number_of(&in_words(&cluster.resp(2)).call(&[b"GET", b"word7"]));
    assert_eq!(served, 2, "what is here needs no source");
}

#[test]
fn a_node_reads_only_what_its_operator_allows() {
    let folder = tempfile::tempdir().unwrap();
    let one = build(folder.path(), 1);
    build(folder.path(), 2);
    let nginx = Nginx::start(folder.path(), free_port());
    let elsewhere = Cluster::with(1, &["--allow-sources", "s3://tables,hdfs://names/words"]);
    elsewhere.run(&["store", "create", "words", "--read-only"]).exits(0);
    for (number, url) in [("1", one), ("2", nginx.url("words-2"))] {
        let refused = elsewhere.run(&["artifact", "push", &url, "--timeout-s", "2"]);
        refused.is_left_open_with("may not read");
        elsewhere.run(&["artifact", "abort", "words", number]).exits(0);
    }
    let secret = tontine(&["artifact", "show", "http://me:hunter2@127.0.0.1/words-1"]);
    assert!(secret.code != 0 && !secret.stderr.contains("hunter2"), "{}", secret.stderr);
}
