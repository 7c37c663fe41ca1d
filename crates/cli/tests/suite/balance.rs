//! `tontine balance status` of real nodes, and clusters with other numbers of partitions.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::{Cluster, tontine};
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
    assert_eq!(sum("partitions"), 2 * 8, "each has two replicas");

    let partitions = document["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 8);
    for partition in partitions {
        let nodes = partition["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 2, "{partition}");
        assert!(number(partition, "bytes") > 0, "{partition}");
        let stamper = nodes.iter().find(|at| at["node"] == 2).unwrap_or(&nodes[0]);
        for at in nodes {
            let stamps = at["node"] == stamper["node"];
            assert_eq!(number(at, "stamped_total") > 0, stamps, "{partition}");
            assert_eq!(number(at, "puts_total") > 0, !stamps, "{partition}");
            assert!(number(at, "gets_total") > 0, "{partition}");
        }
    }
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
