//! `tontine export`, and what `tontine load` makes of it.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde_json::Value as Json;

use crate::cluster::{Cluster, exists};
use crate::resp::{Redis, Reply};

/// The wall clock, in milliseconds since 1970.
fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Keys and values that are hard on a text format.
fn awkward() -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut records: BTreeMap<Vec<u8>, Vec<u8>> =
        (0..500).map(|n| (format!("key-{n}").into_bytes(), format!("value {n}").into_bytes())).collect();
    records.insert(b"tab\there".to_vec(), b"a\tb\\c\r\nd".to_vec());
    records.insert(b"quote\"s, and commas".to_vec(), b"\"a\", b\n\n\"".to_vec());
    records.insert(vec![0, 255, 10], (0..=255).collect());
    records.insert(b"empty".to_vec(), Vec::new());
    records
}

fn put_all(cluster: &Cluster, records: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut redis = Redis::connect(&cluster.resp(1));
    for (key, value) in records {
        assert_eq!(redis.call(&[b"SET", key, value]), Reply::Status("OK".to_owned()));
    }
}

fn check_all(cluster: &Cluster, records: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut redis = Redis::connect(&cluster.resp(cluster.nodes));
    for (key, value) in records {
        assert_eq!(redis.call(&[b"GET", key]), Reply::Bulk(Some(value.clone())), "{}", key.escape_ascii());
    }
}

#[test]
fn what_is_exported_in_any_lossless_format_loads_to_the_same_bytes() {
    let records = awkward();
    let source = Cluster::start();
    put_all(&source, &records);
    let forms: [(&str, &[&str], &[&str]); 6] = [
        ("all.jsonl", &[], &["--key", "key", "--value", "value"]),
        ("all.jsonl.gz", &[], &["--key", "key", "--value", "value"]),
        ("all.csv.zst", &[], &["--key", "key", "--value", "value"]),
        ("all.csv", &[], &["--key", "key", "--value", "value"]),
        ("all.tsv", &["--escapes"], &["--key", "key", "--value", "value", "--escapes"]),
        ("bare.csv", &["--no-header"], &["--key", "1", "--value", "2"]),
    ];
    for (name, export, load) in forms {
        let file = source.file(name);
        let report = source.json(&[&["export", &file][..], export].concat());
        assert_eq!(report["records"], records.len());
        let target = Cluster::with(1, &[]);
        let report = target.json(&[&["load", &file][..], load].concat());
        assert_eq!(report["records"], records.len(), "{name}");
        check_all(&target, &records);
        assert!(!exists(&format!("{file}.part")));
    }
}

#[test]
fn when_a_value_expires_survives_an_export_and_a_load_and_what_has_expired_does_not_come_back() {
    let source = Cluster::with(1, &[]);
    source.run(&["put", "stays", "1"]).exits(0);
    source.run(&["put", "goes", "2", "--ttl", "86400"]).exits(0);
    let expires =
        |cluster: &Cluster, key: &str| cluster.json(&["siblings", key])["versions"][0]["expires_ms"].as_u64();
    let at = expires(&source, "goes").expect("it expires");
    let forms: [(&str, &[&str], &[&str]); 4] = [
        ("all.jsonl", &[], &["--key", "key", "--value", "value"]),
        ("all.csv", &[], &["--key", "key", "--value", "value"]),
        ("all.tsv", &["--escapes"], &["--key", "key", "--value", "value", "--escapes"]),
        ("bare.tsv", &["--no-header"], &["--key", "1", "--value", "2", "--expires", "3"]),
    ];
    let target = Cluster::with(1, &[]);
    for (name, export, load) in forms {
        let file = source.file(name);
        let report = source.json(&[&["export", &file][..], export].concat());
        assert_eq!((&report["records"], &report["records_expiring"]), (&Json::from(2), &Json::from(1)));
        // As if a day had passed since: the moment that the file names is over.
        let text = std::fs::read_to_string(&file).unwrap();
        let late =
            target.write(&format!("late-{name}"), text.replace(&at.to_string(), &now_ms().to_string()));
        target.run(&["delete", "stays", "goes"]).exits(0);
        let report = target.json(&[&["load", &late][..], load].concat());
        assert_eq!((&report["records"], &report["expired"]), (&Json::from(1), &Json::from(1)), "{name}");
        target.run(&["get", "goes"]).exits(1);
        let report = target.json(&[&["load", &file][..], load].concat());
        assert_eq!((&report["records"], &report["expired"]), (&Json::from(2), &Json::from(0)), "{name}");
        assert_eq!((expires(&target, "stays"), expires(&target, "goes")), (None, Some(at)), "{name}");
    }
    let file = source.file("all.csv");
    target.run(&["load", &file, "--key", "key", "--value", "value", "--no-expires"]).exits(0);
    assert_eq!(expires(&target, "goes"), None);
    let two = source.run(&["export", "--format", "csv", "--no-expires"]).exits(0);
    assert!(two.text().starts_with("key,value\n"), "{}", two.text());
    assert!(two.stderr.contains("left out the expiry time of 1 record"), "{}", two.stderr);
}

#[test]
fn stanzas_are_exported_as_they_were_loaded() {
    let cluster = Cluster::start();
    let stanzas = ["Package: a\nText: x\n .\n y\n", "Package: b\n", "Package: c\nSize: 3\n"];
    let file = cluster.write("in.deb822", stanzas.join("\n"));
    cluster.run(&["load", &file, "--key", "package"]).exits(0);
    let text = cluster.run(&["export", "--format", "deb822"]).exits(0).text();
    let mut found: Vec<&str> = text.split_terminator("\n\n").collect();
    found.sort_unstable();
    assert_eq!(found, stanzas.map(str::trim_end));
    cluster.run(&["put", "d", "no\n\nstanza"]).exits(0);
    cluster
        .run(&["export", "--format", "deb822"])
        .fails_with("key \"d\" is not a deb822 stanza (it is empty or contains a blank line)");
    cluster.run(&["put", "d", "plain text"]).exits(0);
    cluster.run(&["export", "--format", "deb822"]).fails_with("key \"d\" is not a deb822 stanza (line 1 of");
}

#[test]
fn a_value_that_a_format_cannot_hold_ends_the_export_and_leaves_no_file() {
    let cluster = Cluster::start();
    cluster.run(&["put", "k", "a\tb"]).exits(0);
    let file = cluster.file("out.tsv");
    cluster.run(&["export", &file]).fails_with("--escapes");
    assert!(!exists(&file) && !exists(&format!("{file}.part")));
    cluster.run(&["export", "/nowhere/out.jsonl"]).fails_with("cannot write /nowhere/out.jsonl.part");
    let folder = cluster.folder.path().display().to_string();
    cluster.run(&["export", &folder]).fails_with(&format!("{folder} is a directory; name a file in it"));
}

#[test]
fn deleted_keys_are_left_out_and_siblings_come_when_asked() {
    let cluster = Cluster::start();
    let on_siblings = |words: &[&str]| cluster.run(&[words, &["-s", "siblings"]].concat());
    let context =
        on_siblings(&["put", "cart", "0", "--json"]).exits(0).json()["context"].as_str().unwrap().to_owned();
    on_siblings(&["put", "cart", "1", "--context", &context]).exits(0);
    on_siblings(&["put", "cart", "2", "--context", &context]).exits(0);
    on_siblings(&["put", "gone", "x"]).exits(0);
    on_siblings(&["delete", "gone"]).exits(0);

    let plain = on_siblings(&["export"]).exits(0);
    assert_eq!(plain.text(), "{\"key\":\"cart\",\"value\":\"2\"}\n");
    assert!(plain.stderr.contains("only the latest value of 1 record with siblings"), "{}", plain.stderr);
    // The records have standard output to themselves, so the report is the last line beside it.
    let told = on_siblings(&["export", "-", "-o", "json"]).exits(0);
    assert_eq!(told.text(), plain.text());
    let report: Json = serde_json::from_str(told.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((&report["records"], &report["records_with_siblings"]), (&Json::from(1), &Json::from(1)));
    let all: Json = on_siblings(&["export", "--with-siblings"]).exits(0).json();
    let mut values: Vec<&str> =
        all["values"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    values.sort_unstable();
    assert_eq!(values, ["1", "2"]);
}

#[test]
fn an_export_misses_nothing_that_one_replica_missed() {
    let mut cluster = Cluster::with(3, &[]);
    cluster.kill_node(1);
    let lines: String = (0..2000).map(|n| format!("key-{n}\t{n}\n")).collect();
    let file = cluster.write("in.tsv", &lines);
    cluster.run(&["load", &file, "--key", "1", "--value", "2"]).exits(0);
    cluster.start_node_again(1);
    // The restarted replica holds nothing, and one of the two that it is read with may be down.
    let report = cluster.json(&["export", &cluster.file("out.tsv")]);
    assert_eq!(report["records"], 2000);
    cluster.kill_node(3);
    let report = cluster.json(&["export", "--force", &cluster.file("out.tsv")]);
    assert_eq!(report["records"], 2000);
}

/// The reports and errors on stderr were written by macros that panic when the reader has gone away, and a release aborts
/// then.
#[test]
fn a_command_whose_reader_has_gone_away_ends_quietly() {
    let cluster = Cluster::with(1, &[]);
    put_all(&cluster, &awkward());
    let unread = || std::io::pipe().unwrap().1;
    let export = |stderr: Stdio| {
        let mut command = cluster.command(&["export", "-", "--format", "tsv", "--escapes"]);
        command.stdout(unread()).stderr(stderr).output().unwrap()
    };
    assert_eq!(export(unread().into()).status.code(), Some(141));
    let quiet = export(Stdio::piped());
    assert_eq!((quiet.status.code(), String::from_utf8_lossy(&quiet.stderr)), (Some(141), "".into()));
    let exit = |arguments: &[&str]| {
        cluster.command(arguments).stdout(unread()).stderr(unread()).status().unwrap().code()
    };
    assert_eq!(exit(&["get", "no such key"]), Some(1));
    assert_eq!(exit(&["status"]), Some(0));
    assert_eq!(exit(&["get", "k", "-s", "no-such-store"]), Some(2));
    assert_eq!(exit(&["no-such-command"]), Some(2));
    let read = cluster.command(&["export", "-"]).stderr(unread()).output().unwrap();
    assert_eq!(read.status.code(), Some(0), "only its report is not read");
}

#[test]
fn an_export_replaces_a_file_only_when_it_is_told_to() {
    let cluster = Cluster::with(1, &[]);
    cluster.run(&["put", "k", "v"]).exits(0);
    let file = cluster.write("all.jsonl", "precious");
    cluster.run(&["export", &file]).fails_with("already exists; choose another name, or add --force");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let said = cluster.run(&["export", &file, "--force"]).exits(0).text();
    assert!(said.starts_with("1 record ("), "{said}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"k\""));
}

/// An export was written beside its target and renamed, so `export /dev/null`, run by root, replaced the device with a
/// file.
#[test]
fn an_export_to_a_pipe_writes_to_it_and_leaves_it_a_pipe() {
    use std::os::unix::fs::FileTypeExt;
    let cluster = Cluster::with(1, &[]);
    cluster.run(&["put", "k", "v"]).exits(0);
    let pipe = cluster.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::process::Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
    cluster.run(&["export", &pipe, "--format", "csv", "--no-header", "--no-expires"]).exits(0);
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(String::from_utf8(reader.wait_with_output().unwrap().stdout).unwrap(), "k,v\n");
}
