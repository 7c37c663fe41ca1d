//! The commands on keys, in text and in JSON, and their exit codes.

use serde_json::json;

use crate::cluster::{Cluster, tontine};
use crate::observe::until;

#[test]
fn keys_are_put_read_and_deleted() {
    let cluster = Cluster::start();
    assert_eq!(cluster.run(&["put", "a", "1"]).exits(0).text(), "done\n");
    assert_eq!(cluster.run(&["get", "a"]).exits(0).text(), "1\n");
    let put = cluster.json(&["put", "b", "zwei ä"]);
    assert_eq!((&put["key"], &put["written"]), (&json!("b"), &json!(true)));
    assert!(put["acks"].as_u64().unwrap() >= 2);
    let got = cluster.json(&["get", "b"]);
    assert_eq!((&got["found"], &got["value"]), (&json!(true), &json!("zwei ä")));

    let missing = cluster.run(&["get", "c"]).exits(1);
    assert_eq!(missing.text(), "c: not found\n");
    assert_eq!(cluster.run(&["get", "c", "--json"]).exits(1).json()["value"], json!(null));

    let many = cluster.run(&["mget", "b", "a", "c", "-o", "json"]).exits(1).json();
    let values: Vec<_> = many.as_array().unwrap().iter().map(|one| one["value"].clone()).collect();
    assert_eq!(values, [json!("zwei ä"), json!("1"), json!(null)]);
    assert!(cluster.run(&["mget", "a", "b"]).exits(0).text().contains("zwei ä"));

    cluster.run(&["delete", "a", "b"]).exits(0);
    cluster.run(&["get", "a"]).exits(1);
    let history = cluster.json(&["siblings", "a"]);
    assert_eq!(history["versions"][0]["deleted"], true);

    cluster.run(&["put", "d", "short", "--ttl", "1"]).exits(0);
    let shown = until(
        "it has expired",
        || cluster.json(&["siblings", "d"]),
        |shown| shown["versions"][0]["expired"] == true,
    );
    let version = &shown["versions"][0];
    assert_eq!((&version["value"], &version["deleted"]), (&json!(null), &json!(false)));
    assert!(version["expires_ms"].as_u64() > version["written_ms"].as_u64());
    let text = cluster.run(&["siblings", "d"]).exits(0).text();
    assert!(text.contains("(expired)") && text.contains("Z  ") && !text.contains("short"), "{text}");
}

#[test]
fn conditions_are_answered_with_no_rather_than_with_an_error() {
    let cluster = Cluster::start();
    cluster.run(&["put", "k", "1", "--if-present"]).exits(1);
    cluster.run(&["put", "k", "1", "--if-absent"]).exits(0);
    let refused = cluster.run(&["put", "k", "2", "--if-absent", "--json"]).exits(1).json();
    assert_eq!(refused["written"], false);
    assert_eq!(cluster.run(&["get", "k"]).exits(0).text(), "1\n");
}

#[test]
fn siblings_are_shown_and_merged() {
    let cluster = Cluster::start();
    let on_siblings = |words: &[&str]| cluster.run(&[words, &["-s", "siblings"]].concat());
    let first = on_siblings(&["put", "cart", "milk", "--json"]).exits(0).json();
    let context = first["context"].as_str().unwrap();
    on_siblings(&["put", "cart", "milk\neggs", "--context", context]).exits(0);
    on_siblings(&["put", "cart", "milk\nsalt", "--context", context]).exits(0);

    let got = on_siblings(&["get", "cart", "--json"]).exits(0).json();
    assert_eq!(got["siblings"].as_array().unwrap().len(), 2);
    assert!(on_siblings(&["get", "cart"]).exits(0).text().contains("2 siblings"));
    let shown = on_siblings(&["siblings", "cart", "--json"]).exits(0).json();
    assert_eq!(shown["versions"].as_array().unwrap().len(), 2);

    on_siblings(&["resolve", "cart"]).fails_with("--lines");
    let resolved = on_siblings(&["resolve", "cart", "--lines", "-o", "json"]).exits(0).json();
    assert_eq!((&resolved["written"], &resolved["value"]), (&json!(true), &json!("eggs\nmilk\nsalt")));
    assert_eq!(on_siblings(&["get", "cart"]).exits(0).text(), "eggs\nmilk\nsalt\n");

    // Nothing to merge: nothing is written, and whoever asks is told so.
    let again = on_siblings(&["resolve", "cart", "--lines", "-o", "json"]).exits(0).json();
    assert_eq!((&again["written"], &again["context"]), (&json!(false), &resolved["context"]));
    assert!(on_siblings(&["resolve", "cart", "--lines"]).exits(0).text().starts_with("nothing to merge"));
    let missing = on_siblings(&["resolve", "nothing", "--lines", "-o", "json"]).exits(1).json();
    assert_eq!((&missing["written"], &missing["found"]), (&json!(false), &json!(false)));
}

#[test]
fn a_put_that_was_superseded_is_told_so_in_the_default_store() {
    let cluster = Cluster::start();
    let context = cluster.json(&["put", "k", "0"])["context"].as_str().unwrap().to_owned();
    cluster.run(&["put", "k", "1", "--context", &context]).exits(0);
    cluster.run(&["put", "k", "2", "--context", &context]).fails_with("obsolete");
    assert_eq!(cluster.json(&["get", "k"])["siblings"], json!(["1"]));
}

#[test]
fn route_status_and_doctor_describe_the_cluster() {
    let cluster = Cluster::start();
    let route = cluster.json(&["route", "a", "b"]);
    assert_eq!(route.as_array().unwrap().len(), 2);
    assert_eq!(route[0]["replicas"].as_array().unwrap().len(), 3);
    assert_eq!(route[0]["fallback_order"], "consistent");
    let routed = cluster.run(&["route", "a"]).exits(0).text();
    assert!(routed.starts_with("KEY") && routed.contains("FALLBACKS (consistent)"), "{routed}");

    let status = cluster.json(&["status"]);
    assert_eq!(status["cluster"], "dev");
    assert_eq!(status["nodes"].as_array().unwrap().len(), 3);
    let addresses = (&status["nodes"][1]["native"], &status["nodes"][1]["resp"]);
    assert_eq!(addresses, (&json!(cluster.native(2)), &json!(cluster.resp(2))));
    assert!(cluster.run(&["status"]).exits(0).text().contains(&cluster.native(3)));

    assert_eq!(cluster.json(&["doctor"])["healthy"], true);
    assert!(cluster.run(&["doctor"]).exits(0).text().contains("healthy"));
}

#[test]
fn a_command_says_so_when_no_node_answers() {
    let mut cluster = Cluster::start();
    cluster.stop();
    cluster.run(&["get", "a"]).fails_with("If none runs, start the cluster again");
    cluster
        .run(&["load", "-", "--format", "tsv", "--key", "1", "--value", "2"])
        .fails_with("If none runs, start the cluster again");
}

#[test]
fn errors_are_documents_when_json_is_asked_for() {
    let cluster = Cluster::with(1, &[]);
    let refused = cluster.run(&["get", "k", "-s", "nope", "-o", "json"]).fails_in_json();
    assert_eq!((&refused["kind"], &refused["outcome"]), (&json!("unknown-store"), &json!("failed")));
    assert!(refused["message"].as_str().unwrap().contains("default, siblings"));
    assert!(refused["next"].as_str().unwrap().contains("tontine status"));
    let refused = cluster.run(&["put", &"k".repeat(4097), "v", "--json"]).fails_in_json();
    assert_eq!(refused["kind"], "key-too-long");
    let refused = cluster.run(&["get", "k", "--connect", "127.0.0.1:1", "--json"]).fails_in_json();
    assert_eq!((&refused["kind"], &refused["retryable"]), (&json!("not-connected"), &json!(true)));
    let said =
        "cannot reach any node of the cluster: 127.0.0.1:1 refused the connection: no process listens there";
    assert_eq!(refused["message"], said);
    assert!(refused["next"].as_str().unwrap().contains("--connect"));
    let refused = cluster.run(&["get", "k", "--connect", "h:1,localhost", "--json"]).fails_in_json();
    assert_eq!(refused["kind"], "usage");
    assert!(refused["message"].as_str().unwrap().contains("\"localhost\" has no port"), "{refused}");
    for mistake in [&["put", "k", "--json"][..], &["nonsense", "--json"], &["dev", "--connect=h:1", "--json"]]
    {
        assert_eq!(tontine(mistake).fails_in_json()["kind"], "usage", "{mistake:?}");
    }
}

#[test]
fn numbers_that_a_store_cannot_have_are_refused_by_name() {
    let cluster = Cluster::with(1, &[]);
    cluster.run(&["put", "k", "v", "-w", "2"]).fails_with("store default keeps 1 of each key");
    cluster.run(&["get", "k", "-r", "2"]).fails_with("-r 2 requires too many replicas");
    cluster.run(&["put", "k", "v", "-w", "0"]).fails_with("--writes");
    cluster.run(&["put", "k", "v", "--ttl", "0"]).fails_with("--ttl");
    cluster.run(&["get", "k"]).exits(1);
    cluster.run(&["put", "k", "v", "-w", "1", "--ttl", "1000"]).exits(0);
}

#[test]
fn a_raw_get_writes_the_bytes_of_the_value_and_nothing_else() {
    let cluster = Cluster::with(1, &[]);
    let bytes: Vec<u8> = (0..=255).chain([b'\n', 0]).collect();
    let file = cluster.write("value", &bytes);
    let mut command = cluster.command(&["put", "k", "-"]);
    assert!(command.stdin(std::fs::File::open(file).unwrap()).output().unwrap().status.success());
    assert_eq!(cluster.run(&["get", "k", "--raw"]).exits(0).stdout, bytes);
    let missing = cluster.run(&["get", "nothing", "--raw"]).exits(1);
    assert_eq!((missing.text().as_str(), missing.stderr.as_str()), ("", "tontine: nothing: not found\n"));
    cluster.run(&["get", "k", "--raw", "--json"]).fails_with("cannot be combined");
}

#[test]
fn a_benchmark_drives_the_cluster_that_connect_names_and_does_not_invent_what_it_did_not_measure() {
    let cluster = Cluster::with(1, &[]);
    let few = ["--records=50", "--operations=50", "--warm-up=0", "-q"];
    cluster.run(&[&["bench", "load"][..], &few].concat()).exits(0);
    let text = cluster.run(&[&["bench", "run"][..], &few].concat()).exits(0).text();
    assert!(text.contains(&cluster.native(1)) && text.contains("server CPU not measured"), "{text}");
    let status = cluster.json(&["status"]);
    let pid = status["nodes"][0]["report"]["status"]["place"]["process_id"].to_string();
    let measured = [&["bench", "run", "--json", "--server-pid", &pid][..], &few].concat();
    let report = cluster.run(&measured).exits(0).json();
    assert!(report["run"]["server_cpu_us_per_operation"].is_number(), "{report}");
}

#[test]
fn keys_are_listed_by_their_prefix_and_up_to_a_limit() {
    let cluster = Cluster::start();
    for key in ["session:1", "session:2", "user:1"] {
        cluster.run(&["put", key, "v"]).exits(0);
    }
    cluster.run(&["put", "user:2", "v"]).exits(0);
    cluster.run(&["delete", "user:2"]).exits(0);
    let listed = |words: &[&str]| {
        let mut keys: Vec<String> =
            cluster.run(&[&["keys"], words].concat()).exits(0).text().lines().map(str::to_owned).collect();
        keys.sort();
        keys
    };
    assert_eq!(listed(&[]), ["session:1", "session:2", "user:1"], "and what was deleted is no key");
    assert_eq!(listed(&["--prefix", "session:"]), ["session:1", "session:2"]);
    assert_eq!(listed(&["--prefix", "nothing"]), [""; 0]);
    assert_eq!(listed(&["-s", "siblings"]), [""; 0]);

    let few = cluster.json(&["keys", "--limit", "2"]);
    assert_eq!((few["keys"].as_array().unwrap().len(), &few["complete"]), (2, &json!(false)));
    let all = cluster.json(&["keys", "--limit", "3"]);
    assert_eq!((&all["count"], &all["complete"]), (&json!(3), &json!(true)));
    let few = cluster.run(&["keys", "--limit", "1"]).exits(0);
    assert!(few.stderr.contains("listed 1 key (--limit 1); the store has more"), "{}", few.stderr);
}
