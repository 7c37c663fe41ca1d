//! `tontine load`: formats, bad records, duplicates, and going on after a stop.

use std::fmt::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::cluster::{Cluster, PATIENCE, Process, exists};

#[test]
fn every_format_is_loaded() {
    let cluster = Cluster::start();
    let tsv = cluster.write("a.tsv", "t1\tx\tone\nt2\ty\ttwo words\n");
    cluster.run(&["load", &tsv, "--key", "1", "--value", "3"]).exits(0);
    assert_eq!(cluster.run(&["get", "t2"]).exits(0).text(), "two words\n");

    let csv = cluster.write("a.csv", "id,text\r\nc1,\"a, \"\"b\"\"\nc\"\r\nc2,d\r\n");
    cluster.run(&["load", &csv, "--key", "id", "--value", "text"]).exits(0);
    assert_eq!(cluster.run(&["get", "c1"]).exits(0).text(), "a, \"b\"\nc\n");

    let jsonl =
        cluster.write("a.jsonl", "{\"id\": 7, \"text\": \"seven\"}\n{\"id\": \"j\", \"text\": [1, 2]}\n");
    cluster.run(&["load", &jsonl, "--key", "id"]).exits(0);
    assert_eq!(cluster.run(&["get", "7"]).exits(0).text(), "{\"id\": 7, \"text\": \"seven\"}\n");
    cluster.run(&["load", &jsonl, "--key", "id", "--value", "text"]).exits(0);
    assert_eq!(cluster.run(&["mget", "7", "j", "-o", "json"]).exits(0).json()[1]["value"], "[1, 2]");

    let stanzas = cluster.write("a.deb822", "Package: d1\nVersion: 1\n\nPackage: d2\nText: a\n b\n");
    cluster.run(&["load", &stanzas, "--key", "Package"]).exits(0);
    assert_eq!(cluster.run(&["get", "d2"]).exits(0).text(), "Package: d2\nText: a\n b\n\n");
}

#[test]
fn standard_input_is_loaded_and_the_report_is_json_when_asked() {
    let cluster = Cluster::start();
    let tsv = cluster.write("input", "a\t1\nb\t2\na\t3\n");
    let words = ["load", "-", "--format", "tsv", "--key", "1", "--value", "2", "--json"];
    let output = cluster.command(&words).stdin(std::fs::File::open(tsv).unwrap()).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["complete"], true);
    assert_eq!(
        (&report["records"], &report["duplicates"], &report["bytes"]),
        (&json!(3), &json!(1), &json!(6))
    );
    assert_eq!(report["acknowledged_lines"], 3);
    assert_eq!(cluster.run(&["get", "a"]).exits(0).text(), "3\n");
}

#[test]
fn the_last_value_of_a_repeated_key_is_kept() {
    let cluster = Cluster::start();
    let mut text = String::new();
    for round in 0..200 {
        for key in 0..5 {
            writeln!(text, "hot{key}\t{round}").unwrap();
        }
    }
    let file = cluster.write("hot.tsv", text);
    let report =
        cluster.json(&["load", &file, "--key", "1", "--value", "2", "--batch", "3", "--parallel", "16"]);
    assert_eq!((&report["records"], &report["duplicates"]), (&json!(1000), &json!(995)));
    for key in 0..5 {
        assert_eq!(cluster.run(&["get", &format!("hot{key}")]).exits(0).text(), "199\n");
    }
}

#[test]
fn a_last_value_that_has_expired_does_not_leave_an_earlier_one_to_live_for_ever() {
    let cluster = Cluster::with(1, &[]);
    // Two exports, one after the other: what had no end at first got one, which is over.
    let file =
        cluster.write("both.tsv", "a\t1\t\nb\t1\t\na\t2\t1700000000000\nc\t2\t1700000000000\nb\t2\t\n");
    cluster.run(&["put", "c", "0"]).exits(0);
    for batch in ["1", "2", "500"] {
        let columns = ["--key", "1", "--value", "2", "--expires", "3", "--batch", batch];
        let report = cluster.json(&[&["load", &file][..], &columns].concat());
        let counted = |field: &str| report[field].as_u64().unwrap();
        let counts = ["records", "duplicates", "expired", "expired_over_earlier"].map(counted);
        assert_eq!(counts, [3, 1, 2, 1], "{batch}");
        cluster.run(&["get", "a"]).exits(1);
        assert_eq!(cluster.run(&["get", "b"]).exits(0).text(), "2\n", "{batch}");
        assert_eq!(cluster.run(&["get", "c"]).exits(0).text(), "0\n", "its key had not come in the file");
    }
}

#[test]
fn a_bad_record_stops_the_load_after_everything_before_it_and_resume_goes_on_from_there() {
    let cluster = Cluster::start();
    let lines: String =
        (1..=300).map(|n| if n == 200 { "bad\n".to_owned() } else { format!("k{n}\tv{n}\n") }).collect();
    let file = cluster.write("some.tsv", &lines);
    let load = ["load", &file, "--key", "1", "--value", "2", "--batch", "10"];
    let stopped = cluster.run(&[&load[..], &["--json"]].concat()).exits(2);
    assert!(stopped.stderr.contains("line 200: the row has 1 column, not 2"), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("--json --skip-bad --resume"), "{}", stopped.stderr);
    let report = stopped.json();
    assert_eq!((&report["complete"], &report["records"]), (&json!(false), &json!(199)));
    assert_eq!(report["acknowledged_lines"], 199);
    cluster.run(&["get", "k199"]).exits(0);
    cluster.run(&["get", "k201"]).exits(1);

    let other_columns = ["load", &file, "--key", "2", "--value", "1", "--resume"];
    let refused = cluster.run(&other_columns);
    let words = "the earlier load read tsv without a header, keys from column 1, values from column 2, into store \"default\"";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    refused.fails_with("load the file without --resume");
    let rest = cluster.json(&[&load[..], &["--resume", "--skip-bad"]].concat());
    assert_eq!(
        (&rest["records"], &rest["bad"], &rest["bad_first"][0]["line"]),
        (&json!(100), &json!(1), &json!(200))
    );
    assert_eq!(cluster.run(&["get", "k300"]).exits(0).text(), "v300\n");
    assert!(!exists(&format!("{file}.tontine-load")), "a complete load leaves no checkpoint");
}

/// Waits until the checkpoint says that more than this many lines are acknowledged, and returns how many are.
fn await_checkpoint(file: &str, lines: u64) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let checkpoint = std::fs::read(format!("{file}.tontine-load")).unwrap_or_default();
        let document: serde_json::Value = serde_json::from_slice(&checkpoint).unwrap_or_default();
        match document["acknowledged"]["line"].as_u64() {
            Some(line) if line > lines => return line,
            _ => assert!(Instant::now() < deadline, "no checkpoint beyond line {lines}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_load_that_was_killed_or_interrupted_goes_on_from_its_checkpoint() {
    const LINES: u64 = 40_000;
    let cluster = Cluster::with(1, &[]);
    let lines: String = (0..LINES).map(|n| format!("key-{n}\tvalue-{n}\n")).collect();
    let file = cluster.write("long.tsv", &lines);
    let load = ["load", &file, "--key", "1", "--value", "2"];
    // One record after the other, so that there is time to end it.
    let start = |further: &[&str]| {
        let words = [&load[..], &["--batch", "1", "--parallel", "1"], further].concat();
        Process::start(&mut cluster.command(&words), cluster.file("load.stderr").into())
    };
    let mut killed = start(&[]);
    let first = await_checkpoint(&file, 0);
    assert_eq!(killed.stop(Signal::KILL), None, "it was not done before it was killed");

    let mut interrupted = start(&["--resume"]);
    let second = await_checkpoint(&file, first);
    assert_eq!(interrupted.stop(Signal::INT), Some(2));
    let said = interrupted.stderr();
    assert!(said.contains("interrupted") && said.contains("--resume"), "{said}");

    let rest = cluster.json(&[&load[..], &["--resume"]].concat());
    assert!(rest["started_after_line"].as_u64() >= Some(second), "{rest}");
    assert_eq!(rest["acknowledged_lines"], LINES);
    let exported = cluster.run(&["export", "--format", "tsv", "--no-header", "--no-expires"]).exits(0).text();
    let (mut found, mut expected): (Vec<&str>, Vec<&str>) =
        (exported.lines().collect(), lines.lines().collect());
    found.sort_unstable();
    expected.sort_unstable();
    assert!(found == expected, "{} of {} records", found.len(), expected.len());
}

#[test]
fn a_load_with_a_rate_is_no_faster_and_its_records_come_little_by_little() {
    let cluster = Cluster::with(1, &[]);
    let lines: String = (0..600).map(|n| format!("key-{n}\tvalue-{n}\n")).collect();
    let file = cluster.write("slow.tsv", &lines);
    let words = ["load", &file, "--key", "1", "--value", "2", "--rate", "200"];
    let began = Instant::now();
    let loading = cluster.command(&words).arg("--json").stdout(Stdio::piped()).spawn().unwrap();
    // One batch of the usual size would be all of them at once.
    let first = await_checkpoint(&file, 0);
    assert!(first < 600, "all records came at once");
    let output = loading.wait_with_output().unwrap();
    assert!(began.elapsed() > Duration::from_millis(2_500), "{:?}", began.elapsed());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["records"], &report["complete"]), (&json!(600), &json!(true)));
    assert!(report["records_per_second"].as_f64().unwrap() < 240.0, "{report}");
    cluster.run(&["load", &file, "--key", "1", "--value", "2", "--rate", "0"]).fails_with("--rate");
}

#[test]
fn a_file_that_changed_is_not_resumed() {
    let cluster = Cluster::start();
    let file = cluster.write("some.tsv", "a\t1\nbad\n");
    let load = ["load", &file, "--key", "1", "--value", "2"];
    cluster.run(&load).fails_with(" --skip-bad --resume\n");
    cluster.write("some.tsv", "a\t1\nb\t2\nc\t3\n");
    cluster.run(&[&load[..], &["--resume"]].concat()).fails_with("the file had 8 bytes and now has 12");
    cluster.run(&load).exits(0);
}

#[test]
fn bad_records_are_named_by_their_line_in_every_format() {
    let cluster = Cluster::start();
    let fails = |name: &str, contents: &[u8], columns: &[&str], words: &str| {
        let file = cluster.write(name, contents);
        cluster.run(&[&["load", &file][..], columns].concat()).fails_with(words);
    };
    let named = ["--key", "k", "--value", "v"];
    fails(
        "b.csv",
        b"k,v\n1,a\n2,\"b\n3,c\n",
        &named,
        "line 3: a quote opens in this record and never closes",
    );
    fails("h.csv", b"a,b\n1,2\n", &named, "there is no column \"k\"; the columns are a, b");
    assert!(!exists(&cluster.file("h.csv.tontine-load")), "a load that never began leaves nothing");
    fails("d.csv", b"k;v\n1;2\n", &named, "if ';' separates the columns, add --delimiter ';'");
    fails("c.tsv", b"bad\n", &["--key", "1", "--value", "2"], "load it again with --skip-bad");
    assert!(!exists(&cluster.file("c.tsv.tontine-load")), "a load can go on from the start without a file");
    fails("b.tsv", b"k\tv\n\t1\n", &named, "line 2: key is empty");
    fails("b.jsonl", b"{\"k\": \"a\", \"v\": 1}\n\n{\"k\": \"b\"\n", &named, "line 3: not a JSON object");
    fails("b.jsonl", b"{\"k\": \"\xff\", \"v\": 1}\n", &named, "line 1: not UTF-8 at byte 8");
    fails("b.jsonl", b"{\"v\": 1}\n", &named, "line 1: the object has no field \"k\"");
    fails("b.deb822", b"Package: a\n\n\nName: b\n", &["--key", "Package"], "line 4: the stanza has no field");
    let long = format!("{}\tv\n", "k".repeat(5000));
    fails(
        "b.tsv",
        long.as_bytes(),
        &["--key", "1", "--value", "2"],
        "line 1: key of 5000 bytes is over the limit",
    );
    let large = format!("k\t{}\n", "v".repeat((16 << 20) + 1));
    fails(
        "b.tsv",
        large.as_bytes(),
        &["--key", "1", "--value", "2"],
        "is over the store's limit of 16777216 bytes",
    );
    fails("b.unknown", b"", &named, "add --format");
    let missing = cluster.file("nowhere");
    cluster
        .run(&["load", &missing, "--key", "k"])
        .fails_with(&format!("cannot read {missing}: No such file"));
    let folder = cluster.folder.path().display().to_string();
    cluster
        .run(&["load", &folder, "--key", "k"])
        .fails_with(&format!("{folder} is a directory; name one file"));
}

#[test]
fn a_load_outlives_the_death_of_a_node_and_stops_with_advice_when_too_few_are_left() {
    let mut cluster = Cluster::with(3, &[]);
    let lines: String = (0..20_000).map(|n| format!("key-{n}\tvalue-{n}\n")).collect();
    let file = cluster.write("many.tsv", &lines);
    let load = ["load", &file, "--key", "1", "--value", "2", "--batch", "100"];
    let loading = cluster.command(&load).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    cluster.kill_node(3);
    let output = loading.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    cluster.kill_node(2);
    let stopped = cluster.run(&[&load[..], &["--patience", "0", "--json"]].concat()).exits(2);
    assert!(stopped.stderr.contains("not acknowledged"), "{}", stopped.stderr);
    assert_eq!(stopped.json()["complete"], false);
    cluster.start_node_again(2);
    let resumed = cluster.json(&[&load[..], &["--resume"]].concat());
    assert_eq!(resumed["acknowledged_lines"], 20_000);

    let exported = cluster.run(&["export", "--format", "tsv", "--no-header", "--no-expires"]).exits(0).text();
    let mut found: Vec<&str> = exported.lines().collect();
    let mut expected: Vec<&str> = lines.lines().collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert!(found == expected, "{} of {} records", found.len(), expected.len());
}

/// Packs a file with a program of this machine, as users do.
fn packed(cluster: &Cluster, name: &str, text: &str) -> String {
    use std::io::Write;
    let file = std::fs::File::create(cluster.folder.path().join(name)).unwrap();
    let mut packer = flate2::write::GzEncoder::new(file, flate2::Compression::default());
    packer.write_all(text.as_bytes()).unwrap();
    packer.finish().unwrap();
    cluster.file(name)
}

#[test]
fn packed_files_and_other_delimiters_load_as_they_are() {
    let cluster = Cluster::with(1, &[]);
    let rows: String = (0..2_000).map(|n| format!("{n};row {n}\n")).collect();
    let gzip = packed(&cluster, "rows.csv.gz", &rows);
    let load = |file: &str| vec!["load".to_owned(), file.to_owned()];
    let run = |file: &str, further: &[&str]| {
        let words = load(file);
        let words: Vec<&str> = words.iter().map(String::as_str).chain(further.iter().copied()).collect();
        cluster.run(&words)
    };
    let columns = ["--key", "1", "--value", "2", "--delimiter", ";"];
    let said = run(&gzip, &columns).exits(0).text();
    assert!(said.starts_with("2000 records ("), "{said}");
    assert_eq!(cluster.run(&["get", "1999"]).exits(0).text(), "row 1999\n");

    let zstd = ruzstd::encoding::compress_to_vec(
        "\u{feff}{\"id\": \"z\"}\n".as_bytes(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    let zstd = cluster.write("one.jsonl.zst", zstd);
    run(&zstd, &["--key", "id"]).exits(0);
    assert_eq!(cluster.run(&["get", "z"]).exits(0).text(), "{\"id\": \"z\"}\n");

    // A load of a packed file goes on where it stopped, too.
    let bad = packed(&cluster, "bad.csv.gz", "a;1\nb\nc;3\n");
    run(&bad, &columns).fails_with("line 2");
    let said = run(&bad, &[&columns[..], &["--resume", "--skip-bad"]].concat()).exits(0).text();
    assert!(said.contains("skipped 1 bad record"), "{said}");
    assert_eq!(cluster.run(&["get", "c"]).exits(0).text(), "3\n");

    // One that was cut short is damaged; no resuming can help.
    let whole = std::fs::read(&gzip).unwrap();
    let cut = cluster.write("cut.csv.gz", &whole[..whole.len() / 2]);
    let said = run(&cut, &columns);
    said.fails_with("the compressed file is damaged or incomplete after line");
    assert!(!said.stderr.contains("--resume"), "{}", said.stderr);
}

#[test]
fn a_binary_file_writes_no_control_bytes_to_the_terminal() {
    let cluster = Cluster::with(1, &[]);
    let binary = cluster.write("binary.csv", b"a\x1b[31m,b\x07\n1,2\n");
    let said = cluster.run(&["load", &binary, "--key", "id", "--value", "b"]);
    said.fails_with("there is no column");
    assert!(!said.stderr.contains(['\x1b', '\x07']), "{:?}", said.stderr);
}

#[test]
fn a_json_array_is_refused_with_the_command_that_converts_it() {
    let cluster = Cluster::with(1, &[]);
    let array = cluster.write("people.json", "[{\"id\": 1},\n {\"id\": 2}]\n");
    let said = "this is a JSON array; one JSON object per line is needed. Convert the file and load the result: jq -c '.[]' \
                FILE > FILE.jsonl\n";
    cluster.run(&["load", &array, "--key", "id", "--skip-bad"]).fails_with(said);
    cluster.run(&["get", "1"]).exits(1);
}
