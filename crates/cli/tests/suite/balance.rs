//! `tontine balance status` of real nodes, and clusters with other numbers of partitions.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::{Cluster, Process, tontine};
use crate::resp::{Redis, Reply};

const KEYS: u64 = 300;

/// What each node says of its load, by its number.
fn loads(document: &Json) -> BTreeMap<u64, Json> {
    let nodes = document["nodes"].as_array().unwrap().iter();
    nodes.map(|node| (node["node"].as_u64().unwrap(), node["load"].clone())).collect()
}

fn number(of: &Json, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_else(|| panic!("{field} of {of}"))
}

/// A put through a node is stamped there if it is a replica of the key, otherwise by the first of the list.
#[test]
fn all_replicas_work_one_of_each_list_stamps_and_one_node_coordinates() {
    let cluster = Cluster::with(3, &["--partitions=8", "--consistency=2,2,2"]);
    // All requests come to one node, which the autopilot may relieve if they take long.
    cluster.run(&["balance", "off"]).exits(0);
    let mut redis = Redis::connect(&cluster.resp(2));
    for number in 0..KEYS {
        let key = format!("key-{number}");
        assert_eq!(redis.call(&[b"SET", key.as_bytes(), b"value"]), Reply::Status("OK".to_owned()));
        assert_eq!(redis.call(&[b"GET", key.as_bytes()]), Reply::Bulk(Some(b"value".to_vec())));
    }
    let document = cluster.json(&["balance", "status", "--seconds", "1"]);
    let loads = loads(&document);
    for (node, load) in &loads {
        let coordinated = if *node == 2 { KEYS } else { 0 };
        assert_eq!(number(load, "coordinated_gets_total"), coordinated, "{load}");
        assert_eq!(number(load, "coordinated_puts_total"), coordinated, "{load}");
        assert!((1..=8).contains(&number(load, "partitions")), "{load}");
        assert!(load["processors"].as_f64().unwrap() > 0.0 && load["used"].as_f64().is_some(), "{load}");
        assert!(load["starved"].as_f64().is_some() && load["disk_used"].as_f64().is_some(), "{load}");
        assert!(load["seconds"].as_f64().unwrap() >= 0.9, "{load}");
    }
    let sum = |field: &str| loads.values().map(|load| number(load, field)).sum::<u64>();
    assert_eq!(sum("stamped_total"), KEYS);
    assert!(sum("puts_total") >= KEYS && sum("gets_total") >= 2 * KEYS, "{document}");

    let partitions = document["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 8);
    let mut by_replicas = 0;
    for partition in partitions {
        let replicas = partition["replicas"].as_array().unwrap();
        assert_eq!(replicas.len(), 2, "{partition}");
        assert!(number(partition, "bytes") > 0, "{partition}");
        let nodes = partition["nodes"].as_array().unwrap();
        assert!(nodes.iter().map(|at| &at["node"]).eq(replicas), "{partition}");
        let stamper = nodes.iter().find(|at| at["node"] == 2).unwrap_or(&nodes[0]);
        for at in nodes {
            by_replicas += number(at, "puts_total") + number(at, "gets_total");
            let stamps = at["node"] == stamper["node"];
            // Where a node answers too late for a moment, another one stamps.
            let (stamped, put) = (number(at, "stamped_total"), number(at, "puts_total"));
            assert_eq!(stamped > 9 * put, stamps, "{partition}");
            assert_eq!(put > 9 * stamped, !stamps, "{partition}");
            assert!(number(at, "gets_total") > 0, "{partition}");
        }
    }
    let by_all = sum("puts_total") + sum("gets_total");
    assert!(10 * (by_all - by_replicas) < by_all, "{document}");
    // Where a replica is late for a moment, the third node keeps a write for it, and tells of its partition, too.
    assert!((2 * 8..3 * 8).contains(&sum("partitions")), "{document}");
    let metrics = cluster.run(&["metrics", "--from", "2"]).exits(0).text();
    assert!(metrics.contains(&format!("\ntontine_coordinated_puts_total {KEYS}\n")), "{metrics}");

    // For people, with a node that is away.
    cluster.end_node(3, Signal::KILL);
    let answer = cluster.run(&["balance", "status", "--seconds", "1"]).exits(1);
    assert!(answer.stderr.contains("asking all nodes twice, 1 s apart"), "{}", answer.stderr);
    let text = answer.text();
    assert!(text.contains("n3 does not say: ") && text.contains("the busiest 8 of 8 partitions:"), "{text}");
    let heading = "NODE  PROCESSORS  USED  STARVED  GETS/S  PUTS/S  STAMPED/S  COORD/S  DISK USED  AGE";
    assert!(text.contains(heading), "{text}");
}

#[test]
fn a_number_of_partitions_that_cannot_be_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").display().to_string();
    for (count, words) in [
        ("0", "expected a power of two from 1 to 1048576"),
        ("1000", "expected a power of two from 1 to 1048576, for example 1024"),
        ("many", "expected a power of two from 1 to 1048576"),
    ] {
        tontine(&["dev", "--data-dir", &data, "--partitions", count]).fails_with(words);
        let address = format!("dir:{data}");
        let create = ["cluster", "create", "--name=c", "--coordination", &address, "--partitions", count];
        tontine(&create).fails_with(words);
    }
    assert!(!std::path::Path::new(&data).exists());
    tontine(&["balance", "status", "--seconds", "0"]).fails_with("1..=600");
}

#[test]
fn loads_are_recorded_and_replayed_and_a_trace_replaces_no_file() {
    let cluster = Cluster::with(3, &["--partitions=8", "--consistency=2,2,2"]);
    let file = cluster.file("loads.trace");
    let recorded = cluster.run(&["balance", "record", &file, "--every", "1s", "--for", "2s"]).exits(0);
    assert!(recorded.stderr.contains("recording loads every 1s for 2s"), "{}", recorded.stderr);
    assert!(recorded.text().contains(" looks, "), "{}", recorded.text());
    let lines = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Json> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!((3..=4).contains(&lines.len()) && lines[0]["format"] == 1, "{lines:?}");
    assert!(lines[1]["document"].is_object() && lines[2]["document"].is_null());
    assert_eq!(lines[2]["nodes"].as_array().unwrap().len(), 3);
    assert!(lines[2]["nodes"][0]["load"]["uptime_ms"].as_u64().unwrap() > 0);
    cluster.run(&["balance", "record", &file]).fails_with("already exists, and a trace replaces no file");

    for policy in ["even", "thresholds", "greedy", "no-reordering"] {
        // Without the cluster, too.
        let told = tontine(&["balance", "replay", &file, "--policy", policy, "-o", "json"]).exits(0).json();
        assert_eq!(
            (&told["policy"], &told["summary"]["looks"]),
            (&Json::from(policy), &Json::from(lines.len() - 1))
        );
        assert_eq!(told["events"][0]["says"]["code"], "gathers", "{told}");
    }
    let text = tontine(&["balance", "replay", &file, "--policy", "even"]).exits(0).text();
    assert!(text.contains("it has not seen enough yet") && text.contains("0 plans, 0 copies"), "{text}");

    // Ctrl-C ends it, with what was written.
    let other = cluster.file("other.trace");
    let mut command = cluster.command(&["balance", "record", &other, "--every", "1s", "-o", "json"]);
    let mut process = Process::start(&mut command, cluster.folder.path().join("record.stderr"));
    while std::fs::read_to_string(&other).map_or(0, |lines| lines.lines().count()) < 3 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(process.stop(Signal::INT), Some(0), "{}", process.stderr());
    tontine(&["balance", "replay", &other, "--policy", "even"]).exits(0);
    cluster.run(&["balance", "set", "policy=greedy"]).fails_with("setting policy takes even or thresholds");
    cluster.run(&["balance", "set", "policy=thresholds"]).exits(0);
    let why = cluster.run(&["balance", "why"]).exits(0).text();
    assert!(why.contains("settings: policy=thresholds "), "{why}");
}

#[test]
fn a_trace_that_is_cut_of_a_later_format_or_none_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let replay = |name: &str, contents: &str| {
        let file = folder.path().join(name).display().to_string();
        std::fs::write(&file, contents).unwrap();
        tontine(&["balance", "replay", &file, "--policy", "even"])
    };
    let head = r#"{"trace":"tontine balance","format":1,"cluster":"c","at_ms":1}"#;
    let record = "balance record FILE`";
    replay("empty", "").fails_with("empty is empty; record one with");
    replay("words", "hello\nworld\n").fails_with("words is no trace of loads: record one");
    replay("json", "{\"node\":1}\n").fails_with(record);
    let later = head.replace("\"format\":1", "\"format\":2");
    replay("later", &format!("{later}\n"))
        .fails_with("has the format 2, and this program reads 1: use the version");
    replay("short", &format!("{head}\n"))
        .fails_with("has no look at any load; record one for a minute or more");
    let look = r#"{"after_ms":0,"nodes":[]}"#;
    replay("no document", &format!("{head}\n{look}\n"))
        .fails_with("does not begin with the cluster's document");
    replay("damaged", &format!("{head}\n{{]\n{look}\n")).fails_with("line 2 is damaged");
    let cut = replay("cut", &format!("{head}\n{{\"after_ms\":0,\"no"));
    cut.fails_with("has no look at any load");
    let missing = folder.path().join("nothing").display().to_string();
    tontine(&["balance", "replay", &missing, "--policy", "even"]).fails_with("cannot read");
    tontine(&["balance", "replay", &missing, "--policy", "best"])
        .fails_with("expected one of even, thresholds");
}

/// Three nodes, of which the first does four times as much: three minutes of it.
fn trace() -> String {
    use model::{Consistency, Node, NodeId, Ring, Store, StoreName, Zone};
    let nodes: Vec<Node> = (1..=3)
        .map(|id| Node::new(NodeId(id), Zone("a".to_owned()), format!("127.0.0.1:740{id}"), None))
        .collect();
    let zones: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
    let numbers = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
    let store = Store::new(StoreName::new("default").unwrap(), numbers).unwrap();
    let cluster = model::Cluster::new("c", nodes, Ring::equal_slices(12, &zones), vec![store]);
    let mut lines =
        vec![r#"{"trace":"tontine balance","format":1,"cluster":"c","at_ms":1000000}"#.to_owned()];
    for second in (0..180u64).step_by(2) {
        let said = cluster.nodes.iter().map(|node| {
            let held = cluster.ring.partitions().iter().filter(|one| one.nodes[0] == node.id);
            let all = if node.id == NodeId(1) { 9600 } else { 2400 };
            let gets = second * all / held.clone().count() as u64;
            let told = held.map(|one| {
                serde_json::json!({ "partition": one.id, "gets": gets, "puts": 0, "stamped": 0, "bytes": 1024 })
            });
            let told: Vec<Json> = told.collect();
            serde_json::json!({ "node": node.id, "incarnation": 1, "load": {
                "uptime_ms": second * 1000, "ran_us": gets * 100 * told.len() as u64, "waited_us": 0, "workers": 1,
                "processors": 1.0, "coordinated_gets": 0, "coordinated_puts": 0, "disk_available_bytes": null,
                "disk_total_bytes": null, "partitions": told, "rest": { "gets": 0, "puts": 0, "stamped": 0 },
                "rest_partitions": 0, "rest_bytes": 0,
            } })
        });
        let mut look = serde_json::json!({ "after_ms": second * 1000, "nodes": said.collect::<Vec<_>>() });
        if second == 0 {
            look["document"] = serde_json::json!(cluster);
        }
        lines.push(look.to_string());
    }
    lines.join("\n")
}

#[test]
fn a_replay_says_when_and_why_a_policy_would_have_acted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t").display().to_string();
    // Its last line has no end, so it is left out.
    std::fs::write(&file, trace()).unwrap();
    let answer = tontine(&["balance", "replay", &file, "--policy", "even"]).exits(0);
    assert!(answer.stderr.contains("is cut and was left out"), "{}", answer.stderr);
    let text = answer.text();
    assert!(text.contains("acts: n1 ") && text.contains("largest over mean: 2.00 before, 1."), "{text}");
    let text = tontine(&["balance", "replay", &file, "--policy", "thresholds"]).exits(0).text();
    assert!(text.contains("gives a random partition to the calmest node below 70%"), "{text}");
    let told = tontine(&["balance", "replay", &file, "--policy", "greedy", "-o", "json"]).exits(0).json();
    assert!(told["summary"]["plans"].as_u64().unwrap() >= 2 && told["cut"] == true, "{told}");
}
