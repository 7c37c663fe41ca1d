//! Artifacts that are fetched over the network, from real servers that this test starts and ends.

mod copying;
mod servers;

use std::sync::atomic::{AtomicBool, AtomicU64};

use self::servers::{Nginx, free_port};
use crate::cluster::{Cluster, tontine};
use crate::push::{Stops, build, in_words, more_answers, number_of, read_on};

#[test]
fn a_table_is_fetched_from_a_web_server_under_reads_and_one_that_vanishes_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for number in [1, 2] {
        build(folder.path(), number);
    }
    let nginx = Nginx::start(folder.path(), free_port());
    let (one, two, port) = (nginx.url("words-1"), nginx.url("words-2"), nginx.port);
    let allowed = format!("--allow-sources=file:///nowhere,http://127.0.0.1:{port}");
    let mut cluster = Cluster::with(3, &[&allowed]);
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
        let stops = Stops(&stop);
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
        cluster.run(&["artifact", "push", &two, "--timeout-s", "2"]).is_left_open_with("does not exist");
        std::fs::rename(&away, &chunks).unwrap();
        drop(nginx);
        cluster.run(&["artifact", "push", &two, "--timeout-s", "2"]).fails_with("refused");
        more_answers(&answers, 6);
        let nginx = Nginx::start(folder.path(), port);
        cluster.run(&["artifact", "push", &two]).exits(0);
        more_answers(&answers, 6);
        drop(nginx);
        drop(stops);
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
    for url in [one, nginx.url("words-2")] {
        elsewhere.run(&["artifact", "push", &url, "--timeout-s", "2"]).fails_with("may not read");
        let listed = elsewhere.json(&["artifact", "list", "words"]);
        assert_eq!(listed["stores"][0]["artifacts"], serde_json::json!([]), "no wish is published");
    }
    let secret = tontine(&["artifact", "show", "http://me:hunter2@127.0.0.1/words-1"]);
    assert!(secret.code != 0 && !secret.stderr.contains("hunter2"), "{}", secret.stderr);
}

/// What a server on the list points to is not on the list.
#[test]
fn a_server_that_points_elsewhere_leads_to_no_address_that_is_not_allowed() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = build(elsewhere.path(), 1);
    let inside = Nginx::start(elsewhere.path(), free_port());
    // The manifest is here, and the chunks are said to be there.
    std::fs::create_dir(folder.path().join("words-1")).unwrap();
    std::fs::copy(format!("{one}/manifest"), folder.path().join("words-1/manifest")).unwrap();
    let there = format!("http://127.0.0.1:{}", inside.port);
    let redirect =
        format!("location /words-1/chunks {{ return 302 {there}$request_uri?signature=hunter2; }}");
    let outside = Nginx::with(folder.path(), free_port(), &redirect);
    let (url, named) = (outside.url("words-1"), format!("the server redirects to {there},"));
    let checked = tontine(&["artifact", "check", &url]).exits(1);
    assert!(checked.text().contains(&named) && !checked.text().contains("hunter2"), "{}", checked.text());
    let cluster = Cluster::with(1, &[&format!("--allow-sources={}", outside.url(""))]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &url, "--timeout-s", "2"]).is_left_open_with(&named);
    assert_eq!(inside.requests(), "", "nobody was sent there");
}
