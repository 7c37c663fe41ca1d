//! One word for one thing in the JSON of all commands: `docs/reference/cli.md` lists the words.

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::{Answer, Cluster, Process, command, tontine};

/// The page with the words.
const PAGE: &str = include_str!("../../../../docs/reference/cli.md");
/// The heading above their table.
const HEADING: &str = "## Words of the answers";
/// Words that stand for a thing which has another name: `node`, `state`, `answers`, `store`.
const OTHER_NAMES: &[&str] =
    &["id", "node_id", "up", "alive", "status_code", "host", "server", "name", "store_name"];

/// The words of the page.
fn documented() -> BTreeSet<String> {
    let section = PAGE.split(HEADING).nth(1).expect("the page has the section");
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    let words = rows.filter_map(|row| row.split('|').nth(1));
    words.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

/// Which command said which words.
#[derive(Default)]
struct Heard(BTreeMap<String, String>);

impl Heard {
    fn document(&mut self, command: &str, document: &Json) {
        match document {
            Json::Object(fields) => {
                for (word, below) in fields {
                    self.0.entry(word.clone()).or_insert_with(|| command.to_owned());
                    self.document(command, below);
                }
            }
            Json::Array(elements) => elements.iter().for_each(|element| self.document(command, element)),
            _ => {}
        }
    }

    /// Runs a command and hears its answer, and its error if there is one.
    fn run(&mut self, cluster: &Cluster, words: &str) -> Json {
        let answer = cluster.run(&words.split(' ').chain(["--json"]).collect::<Vec<_>>());
        self.answer(words, &answer)
    }

    fn answer(&mut self, words: &str, answer: &Answer) -> Json {
        let mut last = Json::Null;
        let stderr = answer.stderr.lines().filter(|line| line.starts_with('{'));
        let stdout = answer.text();
        let documents: Vec<&str> = stdout.lines().chain(stderr).collect();
        assert!(!documents.is_empty(), "{words}: no answer; stderr: {}", answer.stderr);
        for line in documents.into_iter().rev() {
            last = serde_json::from_str(line).unwrap_or_else(|error| panic!("{words}: {error}: {line}"));
            self.document(words, &last);
        }
        last
    }
}

#[test]
fn every_word_of_every_answer_is_documented_and_has_one_meaning() {
    let mut heard = Heard::default();
    let mut cluster = Cluster::with(3, &["--repair-period=1h"]);
    keys(&mut heard, &cluster);
    for words in [
        "status",
        "doctor",
        "node list",
        "node list --all-views",
        "events",
        "balance status --seconds 1",
        "repair status",
        "repair status --partition 1",
        "repair start",
        "repair stop",
        "repair start --scrub",
        "get k -s nothing",
        "route k",
    ] {
        heard.run(&cluster, words);
    }
    let answer = tontine(&["get", "--json"]);
    heard.answer("a usage error", &answer);

    // A node that is away: hints, other states, errors in place of answers.
    cluster.end_node(3, Signal::KILL);
    for number in 0..20 {
        heard.run(&cluster, &format!("put key-{number} v"));
    }
    for words in [
        "status",
        "doctor",
        "node list",
        "node list --all-views",
        "events",
        "balance status",
        "repair status",
    ] {
        heard.run(&cluster, words);
    }
    let command_line = cluster.start_command(3);
    let mut words = command_line.split(' ');
    let mut node = std::process::Command::new(words.next().unwrap());
    let node = Process::start(node.args(words).arg("--json"), cluster.folder.path().join("node.stderr"));
    let lines = node.await_line("native");
    heard.document("serve", &serde_json::from_str(lines.last().unwrap()).unwrap());
    drop(node);
    let _ = cluster.dev.stop(Signal::INT);

    let data = tempfile::tempdir().unwrap();
    let base = crate::cluster::free_port_base().to_string();
    let mut dev = command(&["dev", "--nodes=1", "--json", "--port-base", &base, "--data-dir"]);
    let dev = Process::start(dev.arg(data.path().join("d")), data.path().join("stderr"));
    heard.document("dev", &serde_json::from_str(dev.await_line("cluster").last().unwrap()).unwrap());

    let documented = documented();
    let unknown: Vec<String> = heard
        .0
        .iter()
        .filter(|(word, _)| !documented.contains(*word))
        .map(|(word, command)| format!("`{word}` ({command})"))
        .collect();
    assert!(
        unknown.is_empty(),
        "docs/reference/cli.md, {HEADING:?}, does not say what these are: {}",
        unknown.join(", ")
    );
    for other in OTHER_NAMES {
        assert!(!documented.contains(*other), "{other} is another name for something that has one");
    }
}

/// The commands on keys, and on whole stores.
fn keys(heard: &mut Heard, cluster: &Cluster) {
    let put = heard.run(cluster, "put k v --ttl 30m");
    let got = heard.run(cluster, "get k");
    assert!(got["ttl_ms"].as_u64().is_some_and(|left| left > 1_700_000 && left <= 1_800_000), "{got}");
    assert_eq!(put["key"], got["key"]);
    let siblings = heard.run(cluster, "put cart milk -s siblings");
    let context = siblings["context"].as_str().unwrap();
    heard.run(cluster, &format!("put cart eggs -s siblings --context {context}"));
    heard.run(cluster, &format!("put cart salt -s siblings --context {context}"));
    let load = cluster.write("people.csv", "id,text\n1,one\n2\n3,three\n");
    let export = cluster.file("all.jsonl");
    for words in [
        "put k w --if-absent",
        "get nothing",
        "get cart -s siblings",
        "mget k nothing",
        "keys",
        "keys --limit 1",
        "siblings cart -s siblings",
        "resolve cart -s siblings --lines",
        "delete k",
        &format!("load {load} --key id --value text --skip-bad"),
        &format!("export {export}"),
        "export",
    ] {
        heard.run(cluster, words);
    }
}
