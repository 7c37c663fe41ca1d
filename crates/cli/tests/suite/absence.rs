//! *Not found* is said by R replicas or not at all: replicas that hang, and replicas that are gone.

use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::observe::{await_calm, await_views, until};
use crate::resp::{Redis, Reply};

/// The replicas of each of these keys.
fn replicas(cluster: &Cluster, keys: &[String]) -> Vec<Vec<u64>> {
    let mut words = vec!["route"];
    words.extend(keys.iter().map(String::as_str));
    let routes = cluster.json(&words);
    let nodes = |route: &serde_json::Value| {
        route["replicas"].as_array().unwrap().iter().map(|node| node.as_u64().unwrap()).collect()
    };
    routes.as_array().unwrap().iter().map(nodes).collect()
}

/// Five nodes, and an outsider that is no replica of `key` and so has only fallbacks and itself to believe.
fn with_outsider(key: &str) -> (Cluster, Vec<u64>, u16) {
    let cluster = Cluster::with(5, &["--engine=memory"]);
    await_calm(&cluster);
    let replicas = replicas(&cluster, &[key.to_owned()]).remove(0);
    let outsider = (1..=5).find(|node| !replicas.contains(node)).expect("five nodes, three replicas");
    (cluster, replicas, outsider as u16)
}

/// Two empty fallbacks said *not found* for a key that all its replicas held, so that SET NX overwrote it.
#[test]
fn no_key_is_called_absent_while_all_its_replicas_hang() {
    let (cluster, replicas, outsider) = with_outsider("cart:7");
    cluster.run(&["put", "cart:7", "milk"]).exits(0);
    let signal = |signal| replicas.iter().for_each(|&node| cluster.signal_node(node as usize, signal));
    let questions: [(&[&[u8]], Reply); 6] = [
        (&[b"GET", b"cart:7"], Reply::Bulk(Some(b"milk".to_vec()))),
        (&[b"SET", b"cart:7", b"x", b"NX"], Reply::Bulk(None)),
        (&[b"EXISTS", b"cart:7"], Reply::Number(1)),
        (&[b"STRLEN", b"cart:7"], Reply::Number(4)),
        (&[b"TTL", b"cart:7"], Reply::Number(-1)),
        (&[b"DEL", b"cart:7"], Reply::Number(1)),
    ];
    for (question, answer) in questions {
        let mut redis = Redis::connect(&cluster.resp(outsider));
        redis.call(&[b"PING"]);
        signal(Signal::STOP);
        redis.send(question);
        // Two fallbacks were asked, and believed, after 150 ms.
        let early = redis.reply_within(Duration::from_millis(700));
        signal(Signal::CONT);
        let told = early.unwrap_or_else(|| redis.reply());
        assert_eq!(told, answer, "{}", String::from_utf8_lossy(question[0]));
    }
    assert_eq!(cluster.run(&["get", "cart:7"]).exits(1).text(), "cart:7: not found\n");
}

/// A stopped process goes on to accept connections: each write waited for it, and was in doubt after the deadline.
#[test]
fn writes_succeed_and_conditions_are_refused_while_all_replicas_of_a_key_hang() {
    let (cluster, replicas, outsider) = with_outsider("cart:7");
    cluster.run(&["put", "cart:7", "milk", "-w", "3"]).exits(0);
    let signal = |signal| replicas.iter().for_each(|&node| cluster.signal_node(node as usize, signal));
    let from = cluster.native(outsider);
    let run = |words: &[&str]| cluster.run(&[&["--connect", &from][..], words].concat());
    signal(Signal::STOP);
    let suspected = || {
        let seen = run(&["node", "list", "-o", "json"]).json();
        let states = seen["nodes"].as_array().unwrap().iter();
        states.filter(|node| ["suspected", "down"].contains(&node["state"].as_str().unwrap_or(""))).count()
    };
    until("all three are suspected", suspected, |count| *count == 3);
    let began = std::time::Instant::now();
    run(&["put", "cart:7", "eggs"]).exits(0);
    let mut redis = Redis::connect(&cluster.resp(outsider));
    assert_eq!(redis.call(&[b"SET", b"cart:7", b"bread"]), Reply::Status("OK".to_owned()));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    // Nothing was sent to anybody who may still carry it out.
    run(&["put", "cart:7", "x", "--if-present"]).exits(2);
    signal(Signal::CONT);
    let text = || cluster.run(&["get", "cart:7"]).text();
    until("the hints are delivered", text, |text| text == "bread\n");
}

#[test]
fn with_one_replica_left_values_are_found_and_absence_is_unavailable() {
    let (cluster, gone, outsider) = with_outsider("here");
    let (gone, _) = gone.split_at(2);
    let keys: Vec<String> = (0..200).map(|number| format!("absent-{number}")).collect();
    let routes = replicas(&cluster, &keys);
    let same = routes.iter().position(|nodes| gone.iter().all(|node| nodes.contains(node)));
    let absent = &*keys[same.expect("one in ten keys has both")];
    cluster.run(&["put", "here", "1", "-w", "3"]).exits(0);
    for &node in gone {
        cluster.end_node(node as usize, Signal::KILL);
    }
    let from = cluster.native(outsider);
    let run = |words: &[&str]| {
        let connect = ["--connect", &from];
        cluster.run(&[&connect[..], words].concat())
    };
    for &node in gone {
        await_views(&cluster, node, &["down"], 3);
    }
    let found = run(&["get", "here"]).exits(0);
    assert_eq!(found.text(), "1\n");
    assert!(found.stderr.contains("may be older than its last write"), "{}", found.stderr);
    assert_eq!(run(&["get", "here", "-o", "json"]).exits(0).json()["sloppy"], true);
    run(&["get", absent]).fails_with("too few replicas can answer: 2 are required");
    run(&["put", absent, "x", "--if-absent"]).fails_with("too few replicas");
    run(&["put", "here", "x", "--if-present"]).fails_with("too few replicas");
    assert_eq!(run(&["get", absent, "-r", "1"]).exits(1).text(), format!("{absent}: not found\n"));
    run(&["put", "here", "2"]).exits(0);
    let mut redis = Redis::connect(&cluster.resp(outsider));
    let mut refused = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match redis.call(&words) {
            Reply::Error(text) => text,
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(&["GET", absent]).starts_with("NOREPLICAS "));
    assert!(refused(&["SET", absent, "x", "NX"]).starts_with("NOREPLICAS "));
    assert!(refused(&["GETDEL", "here"]).starts_with("NOREPLICAS "));
    let many = refused(&["MGET", "here", absent]);
    assert!(many.contains("1 of 2 keys are unavailable"), "{many}");
    let many = refused(&["EXISTS", "here", absent]);
    assert!(many.contains("1 of 2 keys are unavailable"), "{many}");
    assert_eq!(redis.call(&[b"DEL", absent.as_bytes(), b"here"]), Reply::Number(2));
    let doctor = run(&["doctor", "-o", "json"]).exits(1).json();
    let missing = |finding: &&serde_json::Value| finding["code"] == "replicas-missing";
    let finding = doctor["findings"].as_array().unwrap().iter().find(missing).expect("doctor names it");
    for node in gone {
        assert!(finding["next"].as_str().unwrap().contains(&format!("n{node}")), "{finding}");
    }
    let metrics = run(&["metrics", "--from", &outsider.to_string()]).exits(0).text();
    assert!(metrics.contains("tontine_store_gets_unavailable_total{store=\"default\"} "), "{metrics}");
}
