//! What nodes write to their logs, and what their metrics tell.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::{Cluster, Process, command};
use crate::observe::{metric, until};
use crate::resp::{Redis, Reply};

fn log_of(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.data().join("log").join(format!("node-{node}.log"))
}

/// The entries of a log in JSON lines; the last one may still be being written.
fn entries(path: &Path) -> Vec<Json> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Waits for an entry with this message and these fields.
fn await_entry(path: &Path, message: &str, fields: &[(&str, &str)]) -> Json {
    let fits = |entry: &Json| {
        entry["message"] == message && fields.iter().all(|(name, value)| entry[name] == *value)
    };
    let look = || entries(path).into_iter().find(fits);
    until(&format!("{message} {fields:?} in {}", path.display()), look, Option::is_some).unwrap()
}

#[test]
fn nodes_log_starts_stops_membership_and_refusals_as_json_lines_with_dates() {
    let mut cluster = Cluster::with(3, &["--log-format=json"]);
    let (first, third) = (log_of(&cluster, 1), log_of(&cluster, 3));
    let start = await_entry(&first, "node starts", &[("node", "n1"), ("level", "INFO")]);
    assert_eq!((&start["native"], &start["password_required"]), (&cluster.native(1).into(), &false.into()));
    let stamp = start["timestamp"].as_str().unwrap();
    assert!(stamp.starts_with("20") && stamp.as_bytes()[10] == b'T' && stamp.ends_with('Z'), "{stamp}");
    await_entry(&first, "event", &[("kind", "node-started"), ("node", "n1")]);

    cluster.end_node(3, Signal::KILL);
    let gone = await_entry(&first, "event", &[("kind", "peer-down"), ("peer", "n3")]);
    assert_eq!(gone["level"], "WARN");
    assert!(gone["detail"].as_str().unwrap().contains("n3 is down"), "{gone}");
    cluster.start_node_again(3);
    await_entry(&first, "event", &[("kind", "peer-alive"), ("peer", "n3")]);
    let starts = |path: &Path| entries(path).iter().filter(|entry| entry["message"] == "node starts").count();
    assert_eq!(starts(&third), 2, "the log goes on where the process before it ended");

    let mut redis = Redis::connect(&cluster.resp(1));
    for _ in 0..50 {
        assert!(matches!(redis.call(&[b"NOPE", b"k"]), Reply::Error(_)));
    }
    let refused = await_entry(&first, "requests refused", &[("code", "rejected-command"), ("node", "n1")]);
    assert!(refused["count"].as_u64().is_some_and(|count| count >= 1), "{refused}");
    let told = || -> u64 {
        let refused =
            |entry: &Json| (entry["code"] == "rejected-command").then(|| entry["count"].as_u64().unwrap());
        entries(&first).iter().filter_map(refused).sum()
    };
    cluster.end_node(1, Signal::TERM);
    await_entry(&first, "node stopped", &[("node", "n1")]);
    assert_eq!(told(), 50, "what was not due yet is told when the node stops");
    let lines = entries(&first).iter().filter(|entry| entry["code"] == "rejected-command").count();
    assert!(lines <= 20, "{lines} lines for 50 refusals are no bound");
}

#[test]
fn a_node_that_is_started_by_hand_logs_to_standard_error_and_those_of_dev_to_files() {
    let cluster = Cluster::with(3, &[]);
    cluster.end_node(2, Signal::TERM);
    let coordination = cluster.data().join("coordination").display().to_string();
    let data = cluster.data().join("node-2").display().to_string();
    let words = ["serve", "--data-dir", &data, "--coordination", &coordination, "--log-level=info"];
    let mut node = Process::start(&mut command(&words), cluster.folder.path().join("by-hand.stderr"));
    node.await_line("node 2");
    let said = until("it logs", || node.stderr(), |said| said.contains("node starts"));
    assert!(said.starts_with("20") && said.contains(" INFO ") && said.contains("node=n2"), "{said}");
    assert_eq!(node.stop(Signal::TERM), Some(0));
    assert!(node.stderr().contains("node stopped"), "{}", node.stderr());
    drop(cluster);

    let cluster = Cluster::with(2, &["--log-level=warn", "--replicas=2"]);
    assert_eq!(cluster.dev.stderr(), "", "nothing went wrong");
    drop(cluster);
}

/// At the most talkative level.
#[test]
fn no_key_value_or_password_is_ever_in_a_log() {
    let password = "open-sesame-7";
    let cluster = Cluster::with_environment(3, &["--log-level=trace"], &[("TONTINE_PASSWORD", password)]);
    let (key, value) = ("key-of-nobody's-business", "value-of-nobody's-business");
    cluster.run(&["put", key, value]).exits(0);
    cluster.run(&["get", key]).exits(0);
    let mut redis = Redis::connect(&cluster.resp(1));
    assert!(matches!(redis.call(&[b"AUTH", b"wrong-sesame-8"]), Reply::Error(_)));
    assert_eq!(redis.call(&[b"AUTH", password.as_bytes()]), Reply::Status("OK".to_owned()));
    redis.call(&[b"SET", key.as_bytes(), value.as_bytes()]);
    redis.call(&[b"SET", key.repeat(200).as_bytes(), value.as_bytes()]);
    redis.call(&[b"TONTINE.PUT", key.as_bytes(), value.as_bytes(), b"no-context"]);
    cluster.kill_node(3);
    cluster.run(&["put", key, value, "-w3"]);
    cluster.run(&["delete", key]);
    await_log(&cluster, "peer-");
    for node in 1..=3 {
        let text = std::fs::read_to_string(log_of(&cluster, node)).unwrap();
        assert!(text.contains("node starts"), "{text}");
        for secret in [key, value, password, "wrong-sesame-8"] {
            assert!(!text.contains(secret), "{secret} is in the log of node {node}");
        }
    }
}

fn await_log(cluster: &Cluster, words: &str) {
    let read = || std::fs::read_to_string(log_of(cluster, 1)).unwrap_or_default();
    until(&format!("{words} in the log"), read, |text| text.contains(words));
}

/// The page is compared with the code by `tidy`; this compares it with a node that runs.
#[test]
fn a_node_tells_every_metric_of_the_reference_page_and_nothing_else() {
    let cluster = Cluster::with(3, &[]);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `tontine_")?.split(" | ");
        Some(format!("tontine_{} {}", cells.next()?.trim_matches('`'), cells.next()?))
    };
    let described: BTreeSet<String> = page.lines().filter_map(row).collect();
    let text = cluster.run(&["metrics", "--from=1"]).exits(0).text();
    let told: BTreeSet<String> =
        text.lines().filter_map(|line| Some(line.strip_prefix("# TYPE ")?.to_owned())).collect();
    assert_eq!(told, described);
    assert!(told.len() > 50, "{told:?}");
}

#[test]
fn latencies_errors_records_and_memory_are_told() {
    let cluster = Cluster::with(3, &[]);
    let mut redis = Redis::connect(&cluster.resp(1));
    for number in 0..20 {
        let key = format!("key-{number}");
        assert_eq!(redis.call(&[b"SET", key.as_bytes(), b"v"]), Reply::Status("OK".to_owned()));
        redis.call(&[b"GET", key.as_bytes()]);
    }
    redis.call(&[b"NOPE"]);
    assert!(matches!(redis.call(&[b"TONTINE.STORE", b"nope"]), Reply::Error(_)));
    let name = "tontine_node_request_duration_seconds";
    let text = cluster.run(&["metrics", "--from=1"]).exits(0).text();
    let number = |series: &str| -> f64 {
        let found = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("no {series} in\n{text}"))
    };
    for (operation, expected) in [("get", 20.0), ("put", 20.0), ("delete", 0.0)] {
        let labels = format!("{{door=\"redis\",operation=\"{operation}\"");
        assert_eq!(number(&format!("{name}_count{labels}}}")), expected, "{operation}");
        assert_eq!(number(&format!("{name}_bucket{labels},le=\"+Inf\"}}")), expected);
        assert_eq!(number(&format!("{name}_sum{labels}}}")) > 0.0, expected > 0.0);
    }
    assert_eq!(number("tontine_node_errors_total{code=\"rejected-command\"}"), 1.0);
    assert_eq!(number("tontine_node_errors_total{code=\"unknown-store\"}"), 1.0);
    until(
        "a key of each replica",
        || metric(&cluster, 1, "tontine_store_records"),
        |&records| records == 20.0,
    );
    assert!(number("tontine_process_resident_bytes") > 1e6);
    assert!(number("tontine_disk_available_bytes") >= number("tontine_disk_room_bytes"));
    assert_eq!(number("tontine_disk_failed"), 0.0);
    assert!(number("tontine_disk_sync_duration_seconds_count") > 0.0);
}
