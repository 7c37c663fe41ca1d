//! Walks over a read-only store: through the Redis door, by `keys` and by `export`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use super::{KEYS, build, in_words};
use crate::cluster::{Cluster, tontine};
use crate::resp::{Redis, Reply};

/// An artifact of the same keys and others, with values that are so short that it is of pages.
fn build_of_pages(folder: &Path, number: u64, keys: std::ops::Range<u64>) -> String {
    let mut records = String::new();
    for key in keys {
        writeln!(records, "word{key}\t{number}:{key}").unwrap();
    }
    let (input, output) = (folder.join("short.tsv"), folder.join("words-short"));
    std::fs::write(&input, records).unwrap();
    let (input, output, number) = (input.to_str().unwrap(), output.to_str().unwrap(), number.to_string());
    let words = ["artifact", "build", input, "--key", "1", "--value", "2", "-s", "words", "--to", output];
    tontine(&[&words[..], &["--number", &number]].concat()).exits(0);
    output.to_owned()
}

fn keys_of(reply: &Reply) -> Vec<String> {
    let Reply::List(keys) = reply else { panic!("no list: {reply:?}") };
    let text = |reply: &Reply| match reply {
        Reply::Bulk(Some(key)) => String::from_utf8(key.clone()).unwrap(),
        other => panic!("no key: {other:?}"),
    };
    keys.iter().map(text).collect()
}

/// All that a SCAN hands out, each page by another of these nodes; `between` is called behind each page.
fn scan(doors: &mut [Redis], mut between: impl FnMut(usize)) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), b"0".to_vec());
    for page in 0.. {
        let count = doors.len();
        let reply = doors[page % count].call(&[b"SCAN", &cursor, b"COUNT", b"200"]);
        let Reply::List(parts) = &reply else { panic!("SCAN failed: {reply:?}") };
        let [Reply::Bulk(Some(next)), keys] = &parts[..] else { panic!("no answer of SCAN: {reply:?}") };
        found.extend(keys_of(keys));
        if next == b"0" {
            break;
        }
        cursor.clone_from(next);
        between(page);
    }
    found
}

fn words(keys: std::ops::Range<u64>) -> BTreeSet<String> {
    keys.map(|key| format!("word{key}")).collect()
}

/// The keys of an export, all of one artifact.
fn exported(cluster: &Cluster, further: &[&str], number: u64) -> BTreeSet<String> {
    let text = cluster
        .run(&[&["export", "-", "-s", "words", "--format", "tsv", "--no-header"], further].concat())
        .exits(0);
    let text = text.text();
    let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split('\t').collect()).collect();
    let prefix = format!("{number}:");
    assert!(rows.iter().all(|row| row[1].starts_with(&prefix)), "one artifact, from the first to the last");
    let keys: BTreeSet<String> = rows.iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(keys.len(), rows.len(), "each key once");
    keys
}

/// These keys and no others; a test that fails shows no thousands of them.
fn assert_same<T: PartialEq>(found: impl IntoIterator<Item = T>, expected: &[T], what: &str) {
    let found: Vec<T> = found.into_iter().collect();
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert!(found == expected, "{what}: {} for {}, from {differs:?} on", found.len(), expected.len());
}

#[test]
fn a_read_only_store_is_walked_whole_and_an_export_is_of_one_artifact() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (build(folder.path(), 1), build_of_pages(folder.path(), 2, 100..KEYS + 3000));
    let cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["keys", "-s", "words"]).fails_with("store words serves no artifact yet");
    let mut doors: Vec<Redis> = (1..=3).map(|node| in_words(&cluster.resp(node))).collect();
    assert_eq!(scan(&mut doors, |_| ()), Vec::<String>::new());
    assert_eq!(doors[0].call(&[b"DBSIZE"]), Reply::Number(0));
    cluster.run(&["artifact", "push", &one]).exits(0);

    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    let list = |keys: std::ops::Range<u64>| -> Vec<String> { words(keys).into_iter().collect() };
    let all = list(0..KEYS);
    assert_same(sorted(scan(&mut doors, |_| ())), &all, "each key once, whoever answers");
    assert_same(sorted(keys_of(&doors[1].call(&[b"KEYS", b"*"]))), &all, "KEYS");
    assert_eq!(keys_of(&doors[2].call(&[b"KEYS", b"word249?"])).len(), 10);
    for door in &mut doors {
        assert_eq!(door.call(&[b"DBSIZE"]), Reply::Number(KEYS as i64));
        let Reply::Bulk(Some(key)) = door.call(&[b"RANDOMKEY"]) else { panic!("there are keys") };
        assert!(all.contains(&String::from_utf8(key).unwrap()));
    }
    let listed = cluster.run(&["keys", "-s", "words"]).exits(0).text();
    assert_same(sorted(listed.lines().map(str::to_owned).collect()), &all, "keys");
    assert_same(exported(&cluster, &[], 1), &all, "export");

    // One that is not served yet is exported by its number.
    cluster.run(&["artifact", "stage", &two]).exits(0);
    let later = list(100..KEYS + 3000);
    assert_same(exported(&cluster, &["--artifact", "2"], 2), &later, "export of what is staged");
    cluster.run(&["export", "-", "-s", "words", "--artifact", "7"]).fails_with("lists no artifact 7");
    cluster.run(&["keys", "--artifact", "2"]).fails_with("takes writes and has no artifacts");

    // A swap in the middle of a SCAN: what both artifacts have is met.
    let met = scan(&mut doors, |page| {
        if page == 3 {
            cluster.run(&["artifact", "swap", "words", "2"]).exits(0);
        }
    });
    let met: BTreeSet<String> = met.into_iter().collect();
    assert!(words(100..KEYS).is_subset(&met), "{} keys were met", met.len());
    assert!(met.len() > 2 * all.len() - 1000, "the rest is from the second: {}", met.len());

    // One replica of each partition is enough.
    cluster.kill_node(2);
    assert_same(sorted(scan(&mut doors[..1], |_| ())), &later, "without a node");
    assert_same(exported(&cluster, &[], 2), &later, "export without a node");
}
