//! Disks that lose, damage or refuse what they should keep, under real processes: the replicas become equal again.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value as Json;

use crate::cluster::Cluster;
use crate::observe::{
    Dots, await_calm, await_no_hints, await_records, held, hints, incarnation, metric, put, records, repair,
    status, statuses, tree_sum, until,
};
use crate::resp::{Redis, Reply};

/// Three processes that sync each write.
fn cluster(further: &[&str]) -> Cluster {
    Cluster::with(3, &[&["--durability=always"], further].concat())
}

/// Three processes that also compare every second.
fn comparing_cluster() -> Cluster {
    cluster(&["--repair-period=1s"])
}

/// Files of a node's default store that hold records, oldest first.
fn segments(cluster: &Cluster, node: usize) -> Vec<PathBuf> {
    let store = cluster.data().join(format!("node-{node}/stores/default"));
    let files = std::fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|kind| kind == "log" || kind == "compacted"))
        .collect();
    files.sort();
    files
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key-{number}")).collect()
}

fn set(door: &mut Redis, key: &str, value: &str) {
    assert_eq!(door.call(&[b"SET", key.as_bytes(), value.as_bytes()]), Reply::Status("OK".to_owned()));
}

fn events(cluster: &Cluster, node: usize) -> Vec<String> {
    let events = cluster.run(&["events", "--json", &format!("--from={node}")]).exits(0).json();
    let kind = |event: &Json| event["kind"].as_str().unwrap().to_owned();
    events["events"].as_array().unwrap().iter().map(kind).collect()
}

/// An empty directory under a known id: what it stamped before is out there, and it knows nothing of it.
#[test]
fn a_node_whose_disk_is_lost_reuses_no_dot_and_denies_no_key_while_it_refills() {
    let mut cluster = cluster(&[]);
    let keys = keys(300);
    let mut door = Redis::connect(&cluster.resp(3));
    keys.iter().for_each(|key| set(&mut door, key, "before"));
    await_records(&cluster, 300);
    let mut dots = Dots::default();
    dots.look(&cluster, &keys);
    let before = incarnation(&cluster, 3);
    assert_eq!(dots.incarnations(3), [before].into(), "the third node has stamped");

    cluster.end_node(3, Signal::KILL);
    std::fs::remove_dir_all(cluster.data().join("node-3")).unwrap();
    cluster.start_node_again(3);
    let said = cluster.said_again(3);
    assert!(
        said.contains("node 3: its disk was lost: the data directory is new; it is refilling its data from"),
        "{said}"
    );
    let mut door = Redis::connect(&cluster.resp(3));
    let mut first_pass = true;
    let mut refill = Json::Null;
    while first_pass || refill["partitions_left"].as_u64() != Some(0) {
        for (number, key) in keys.iter().enumerate() {
            if number % 3 == 0 {
                set(&mut door, key, if first_pass { "while it refills" } else { "later" });
            }
            let reply = door.call(&[b"GET", key.as_bytes()]);
            assert!(matches!(&reply, Reply::Bulk(Some(_))), "{key} through the third node: {reply:?}");
        }
        first_pass = false;
        refill = repair(&cluster, 3)["refill"].clone();
    }
    assert!(refill["partitions"].as_u64() > Some(0) && refill["records"].as_u64() > Some(0), "{refill}");
    assert!(incarnation(&cluster, 3) > before);
    let kinds = events(&cluster, 3);
    assert!(
        kinds.contains(&"refill-started".to_owned()) && kinds.contains(&"refill-ended".to_owned()),
        "{kinds:?}"
    );
    keys.iter().for_each(|key| set(&mut door, key, "after"));
    await_no_hints(&cluster);
    await_records(&cluster, 300);
    dots.look(&cluster, &keys);
    assert!(dots.incarnations(3).len() > 1, "it has stamped again, as somebody else");
    let text = cluster.run(&["repair", "status"]).exits(0).text();
    assert!(text.contains("n3 has refilled its lost data: "), "{text}");
}

/// A part of the directory: it once passed for an empty store, and after a clean stop the hash trees said that all was
/// there.
#[test]
fn a_store_whose_directory_is_lost_is_refilled_and_denies_no_key_meanwhile() {
    let mut cluster = cluster(&["--consistency=3,1,2"]);
    let keys = keys(300);
    let mut door = Redis::connect(&cluster.resp(3));
    keys.iter().for_each(|key| set(&mut door, key, "before"));
    await_records(&cluster, 300);
    for signal in [Signal::KILL, Signal::TERM] {
        let before = incarnation(&cluster, 3);
        cluster.end_node(3, signal);
        cluster.await_end(3);
        std::fs::remove_dir_all(cluster.data().join("node-3/stores/default")).unwrap();
        cluster.start_node_again(3);
        let mut door = Redis::connect(&cluster.resp(3));
        for key in &keys {
            let reply = door.call(&[b"GET", key.as_bytes()]);
            assert_eq!(reply, Reply::Bulk(Some(b"before".to_vec())), "{key} after {signal:?}");
        }
        let refilled = || repair(&cluster, 3)["refill"]["partitions_left"].as_u64();
        until("what is lost is fetched", refilled, |&left| left == Some(0));
        await_records(&cluster, 300);
        assert!(incarnation(&cluster, 3) > before);
        let text = cluster.run(&["events", "--from=3"]).exits(0).text();
        assert!(text.contains("its records of store default were lost"), "{text}");
        assert!(text.contains("refill-ended") && !text.contains("disk-lost"), "{text}");
    }
}

/// A script that gives node after node a new disk waits for the doctor.
#[test]
fn a_node_that_refills_is_named_by_the_doctor_until_it_is_whole() {
    let mut cluster = cluster(&[]);
    put(&cluster, 0..300, "v");
    await_records(&cluster, 300);
    cluster.end_node(3, Signal::KILL);
    std::fs::remove_dir_all(cluster.data().join("node-3")).unwrap();
    // With one peer alone no partition can become whole: two others must have given what they hold.
    cluster.end_node(2, Signal::KILL);
    cluster.start_node_again(3);
    let came = || metric(&cluster, 3, "tontine_refill_records_total");
    until("the first node has given what it holds", came, |&records| records >= 300.0);
    let found = cluster.run(&["doctor"]).exits(1).text();
    let said = "bad   n3 is refilling lost data from its peers: 0 of ";
    assert!(found.contains(said) && found.contains("time left unknown\n"), "{found}");
    assert!(found.contains("next: keep the other nodes running until n3 has caught up"), "{found}");
    assert!(repair(&cluster, 3)["refill"]["partitions_left"].as_u64() > Some(0));

    cluster.start_node_again(2);
    let doctor = || cluster.run(&["doctor", "--json"]);
    until("the doctor finds nothing bad", doctor, |found| found.code == 0);
    let refill = repair(&cluster, 3)["refill"].clone();
    assert_eq!(refill["partitions_left"], 0, "{refill}");
    assert_eq!(refill["records"], 300, "{refill}");
}

#[test]
fn a_flipped_bit_in_a_data_file_is_found_and_repaired_from_a_replica() {
    let cluster = comparing_cluster();
    put(&cluster, 0..100, "a value that is long enough to be found");
    await_records(&cluster, 100);
    let file = segments(&cluster, 2).pop().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let wanted = b"long enough";
    let at = bytes.windows(wanted.len()).position(|window| window == wanted).unwrap();
    bytes[at] ^= 4;
    // In place: the node has the file open.
    let open = OpenOptions::new().write(true).open(&file).unwrap();
    open.write_all_at(&bytes[at..=at], at as u64).unwrap();
    cluster.run(&["repair", "start", "--scrub"]).exits(0);
    let repaired = || tree_sum(&cluster, 2, "repaired_records_total");
    until("the record is repaired", repaired, |&count| count == Some(1));
    assert_eq!(repair(&cluster, 2)["scrub"]["corrupt_records_total"], 1);
    let scrubbed = || metric(&cluster, 2, "tontine_scrub_records_total");
    cluster.run(&["repair", "start", "--scrub"]).exits(0);
    until("a second look at everything", scrubbed, |&records| records >= 199.0);
    assert_eq!(repair(&cluster, 2)["scrub"]["corrupt_records_total"], 1, "it finds nothing");
    let found = cluster.run(&["doctor"]).exits(0).text();
    let said = "note  n2 found 1 record of store default corrupt (checksum) since it started; good copies have replaced them\n";
    assert!(found.contains(said), "{found}");
    let ended = || repair(&cluster, 2)["scrub"]["last_asked"]["corrupt_records"].as_u64();
    until("the second scrub tells what came of it", ended, |&corrupt| corrupt == Some(0));
    let text = cluster.run(&["repair", "status"]).exits(0).text();
    assert!(text.contains("n2 has scrubbed, ") && text.contains("no damage found\n"), "{text}");
    assert_eq!(records(&cluster), [Some(100); 3]);
}

/// It stayed bad for ever when comparing had brought back what was there, and `--scrub`, which was advised, found nothing.
#[test]
fn damage_of_unknown_keys_is_settled_by_comparing_everything() {
    let mut cluster = cluster(&[]);
    let keys = keys(100);
    put(&cluster, 0..100, "a value that is replaced");
    let mut door = Redis::connect(&cluster.resp(1));
    keys.iter().enumerate().for_each(|(at, key)| set(&mut door, key, &format!("the newest {at:03}")));
    await_records(&cluster, 100);
    await_equal(&cluster, &keys);
    cluster.end_node(2, Signal::TERM);
    // Without the index all is read from the log, where an older value of the key is found instead.
    let log = segments(&cluster, 2).into_iter().find(|file| contains(file, b"the newest 040")).unwrap();
    let bytes = std::fs::read(&log).unwrap();
    let at = bytes.windows(14).position(|window| window == b"the newest 040").unwrap();
    let file = OpenOptions::new().write(true).open(&log).unwrap();
    let harmed: Vec<u8> = bytes[at - 80..at].iter().map(|byte| byte ^ 4).collect();
    file.write_all_at(&harmed, (at - 80) as u64).unwrap();
    std::fs::remove_file(log.with_file_name("index")).unwrap();
    cluster.start_node_again(2);
    let found = cluster.run(&["doctor"]).exits(1).text();
    assert!(found.contains("bad   n2 found 1 place of the log of store default corrupt"), "{found}");
    cluster.run(&["repair", "start"]).exits(0);
    until("comparing settles it", || cluster.run(&["doctor"]), |found| found.code == 0);
    await_equal(&cluster, &keys);
}

fn contains(file: &Path, wanted: &[u8]) -> bool {
    std::fs::read(file).unwrap().windows(wanted.len()).any(|window| window == wanted)
}

/// Flips a bit in the only place where a node's default store says this. The node may run.
fn flip(cluster: &Cluster, node: usize, wanted: &str) {
    let wanted = wanted.as_bytes();
    for path in segments(cluster, node) {
        let bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(wanted.len()).position(|window| window == wanted) {
            // In place: the node has the file open.
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            return file.write_all_at(&[bytes[at] ^ 4], at as u64).unwrap();
        }
    }
    panic!("node {node} does not hold it");
}

/// A page of records left damaged ones out without a word, so that an export of few replicas missed them.
#[test]
fn an_export_turns_to_another_replica_for_damaged_records_and_says_so_where_there_is_none() {
    let cluster = cluster(&["--consistency=3,1,2"]);
    let values: Vec<String> = (0..60).map(|number| format!("value number {number:03} for short")).collect();
    let mut door = Redis::connect(&cluster.resp(1));
    for (key, value) in keys(60).iter().zip(&values) {
        set(&mut door, key, value);
    }
    await_records(&cluster, 60);
    // Some of them are first asked of this node.
    values.iter().take(20).for_each(|value| flip(&cluster, 2, value));
    let file = cluster.file("all.jsonl");
    let report = cluster.json(&["export", &file]);
    assert_eq!(
        (&report["records"], &report["records_damaged"]),
        (&Json::from(60), &Json::from(0)),
        "{report}"
    );

    let alone = Cluster::with(1, &["--durability=always"]);
    let mut door = Redis::connect(&alone.resp(1));
    for (key, value) in keys(60).iter().zip(&values) {
        set(&mut door, key, value);
    }
    flip(&alone, 1, &values[7]);
    let file = alone.file("all.jsonl");
    alone.run(&["export", &file, "--patience=1"]).fails_with("n1 cannot read 1 record");
    let report = alone.json(&["export", &file, "--patience=1", "--leave-out-damaged"]);
    assert_eq!(
        (&report["records"], &report["records_damaged"]),
        (&Json::from(59), &Json::from(1)),
        "{report}"
    );
}

/// As after a power cut in the middle of a write, but of a write that was acknowledged.
#[test]
fn a_torn_last_record_is_repaired_from_the_replicas_and_counted() {
    let mut cluster = comparing_cluster();
    put(&cluster, 0..100, "v");
    await_records(&cluster, 100);
    let keys = keys(100);
    let mut dots = Dots::default();
    dots.look(&cluster, &keys);
    cluster.end_node(2, Signal::KILL);
    let file = OpenOptions::new().write(true).open(segments(&cluster, 2).pop().unwrap()).unwrap();
    // Records are padded to a multiple of eight bytes: nine reach into the last one.
    file.set_len(file.metadata().unwrap().len() - 9).unwrap();
    file.sync_all().unwrap();
    cluster.start_node_again(2);
    await_records(&cluster, 100);
    let counted =
        || (1..=3).map(|node| metric(&cluster, node, "tontine_antientropy_keys_differing_total")).sum();
    until("the difference is counted", counted, |&keys: &f64| keys >= 1.0);
    // Whatever it stamps now, it has not stamped before.
    let mut door = Redis::connect(&cluster.resp(2));
    keys.iter().for_each(|key| set(&mut door, key, "after"));
    dots.look(&cluster, &keys);
    for key in &keys {
        assert_eq!(cluster.run(&["get", key]).exits(0).text(), "after\n");
    }
}

#[test]
fn a_full_disk_at_one_replica_fails_no_write_and_is_made_up_for_when_there_is_room() {
    let cluster = cluster(&[]);
    put(&cluster, 0..10, "small");
    await_records(&cluster, 10);
    let live_bytes = |node: usize| -> u64 {
        let stores = statuses(&cluster)[node - 1]["stores"].clone();
        stores.as_array().unwrap().iter().filter_map(|store| store["live_bytes"].as_u64()).sum()
    };
    cluster.limit_files(2, Some(256 << 10));
    let value = "v".repeat(32 << 10);
    let mut door = Redis::connect(&cluster.resp(1));
    for number in 0..64 {
        set(&mut door, &format!("large-{number}"), &value);
    }
    let waiting = |found: &Option<Vec<(u64, u64, u64)>>| found.iter().flatten().any(|hint| hint.1 == 2);
    until("hints wait for the full node", || hints(&cluster), waiting);
    let found = cluster.run(&["doctor"]).exits(1).text();
    assert!(found.contains("bad   n2 refuses writes of store default: its disk is full ("), "{found}");
    assert!(found.contains("free space on the full disk of n2; the other nodes keep the writes"), "{found}");
    // It still answers what it has, and what it has not comes from the others.
    let mut full = Redis::connect(&cluster.resp(2));
    assert_eq!(full.call(&[b"GET", b"key-1"]), Reply::Bulk(Some(b"small".to_vec())));
    assert_eq!(full.call(&[b"GET", b"large-63"]), Reply::Bulk(Some(value.clone().into_bytes())));
    assert!(segments(&cluster, 2).iter().all(|file| file.metadata().unwrap().len() <= 256 << 10));

    cluster.limit_files(2, None);
    await_no_hints(&cluster);
    await_records(&cluster, 74);
    assert_eq!(live_bytes(2), live_bytes(1));
}

/// It counted as a disk that gets full, with exit status 0; its hints were said to be on their way; and what had been
/// deleted gave no room back before the node was restarted, because all of it lay in the newest segment.
#[test]
#[ignore = "fills a disk; ./check --full process runs it"]
fn a_put_refused_for_want_of_room_is_bad_and_deleting_gives_room_back() {
    let mut cluster = cluster(&[]);
    if !cluster.can_have_small_disks() {
        // Without the right to mount there is no small disk; the test of file limits covers a full one.
        return;
    }
    cluster.end_node(2, Signal::KILL);
    std::fs::remove_dir_all(cluster.data().join("node-2")).unwrap();
    // The reserve is 128 MiB.
    cluster.start_node_on_small_disk(2, 150 << 20);
    let refilled = || repair(&cluster, 2)["refill"]["partitions_left"].as_u64();
    until("an empty cluster is refilled", refilled, |&left| left == Some(0));
    let value = "v".repeat(1 << 20);
    let mut door = Redis::connect(&cluster.resp(1));
    let keys: Vec<String> = (0..30).map(|number| format!("large-{number}")).collect();
    keys.iter().for_each(|key| set(&mut door, key, &value));
    let disk_full = || {
        let found = cluster.run(&["doctor", "--json"]).exits(1).json();
        let findings = found["findings"].as_array().unwrap().clone();
        findings.into_iter().find(|finding| finding["code"] == "disk-full" && finding["store"] == "default")
    };
    let finding = disk_full().expect("a put was refused");
    assert_eq!((&finding["severity"], &finding["node"]), (&Json::from("bad"), &Json::from(2)), "{finding}");
    let room = status(&cluster, 2)["room_bytes"].as_u64().unwrap();
    assert!((256 << 10..1 << 20).contains(&room), "there is some room, but none for this: {room}");
    let waiting = |found: &Option<Vec<(u64, u64, u64)>>| found.iter().flatten().any(|hint| hint.1 == 2);
    until("hints wait for the full node", || hints(&cluster), waiting);
    let text = cluster.run(&["doctor"]).exits(1).text();
    assert!(text.contains("a put of 1.0 MiB was refused"), "{text}");
    assert!(text.contains("free space on the full disk of n2"), "{text}");

    let gone: Vec<&str> = keys[..20].iter().map(String::as_str).collect();
    cluster.run(&[&["delete"], &gone[..]].concat()).exits(0);
    await_no_hints(&cluster);
    await_records(&cluster, 10);
    until("the doctor finds nothing bad", || cluster.run(&["doctor"]), |found| found.code == 0);
}

/// Makes syncs of a process that it is loaded into fail while a file is there.
///
/// A library in front of the C library is the only way in that needs no privilege and reaches a running process: file
/// size limits and full disks fail writes and not syncs, a filter of system calls cannot be put on afterwards, and
/// devices that err on purpose want an administrator.
fn failing_sync(cluster: &Cluster) -> (PathBuf, PathBuf) {
    const SOURCE: &str = r#"
        #define _GNU_SOURCE
        #include <errno.h>
        #include <stdlib.h>
        #include <sys/syscall.h>
        #include <unistd.h>

        static int sync_with(long call, int file) {
            const char *fails = getenv("TONTINE_TEST_SYNC_FAILS");
            if (fails && access(fails, F_OK) == 0) {
                errno = EIO;
                return -1;
            }
            return (int)syscall(call, file);
        }

        int fdatasync(int file) { return sync_with(SYS_fdatasync, file); }
        int fsync(int file) { return sync_with(SYS_fsync, file); }
    "#;
    let (source, library) = (cluster.write("failing_sync.c", SOURCE), cluster.file("failing_sync.so"));
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source]).status();
    assert!(compiled.expect("there is a C compiler: linking Rust needs one").success());
    (library.into(), cluster.file("syncs-fail").into())
}

#[test]
fn a_failing_fsync_at_one_replica_fails_no_write_and_loses_none() {
    let mut cluster = comparing_cluster();
    put(&cluster, 0..50, "before");
    await_records(&cluster, 50);
    let keys = keys(100);
    let mut dots = Dots::default();
    dots.look(&cluster, &keys);
    let (library, fails) = failing_sync(&cluster);
    cluster.end_node(2, Signal::TERM);
    cluster.start_node_with(2, &[("LD_PRELOAD", &library), ("TONTINE_TEST_SYNC_FAILS", &fails)]);
    await_calm(&cluster);

    std::fs::write(&fails, "").unwrap();
    let mut door = Redis::connect(&cluster.resp(1));
    keys.iter().for_each(|key| set(&mut door, key, "while it fails"));
    // Its own storage has stopped: what it acknowledged before is on its disk, and it acknowledges nothing more.
    let waiting = |found: &Option<Vec<(u64, u64, u64)>>| found.iter().flatten().any(|hint| hint.1 == 2);
    until("hints wait for the node whose disk fails", || hints(&cluster), waiting);
    for key in &keys {
        assert_eq!(door.call(&[b"GET", key.as_bytes()]), Reply::Bulk(Some(b"while it fails".to_vec())));
    }
    let found = cluster.run(&["doctor"]).exits(1).text();
    assert!(found.starts_with("bad   n2 refuses writes: its storage has stopped ("), "{found}");
    assert!(
        found.contains("restart n2: its storage has stopped; the other nodes keep the writes"),
        "{found}"
    );

    cluster.end_node(2, Signal::KILL);
    std::fs::remove_file(&fails).unwrap();
    cluster.start_node_again(2);
    await_no_hints(&cluster);
    await_records(&cluster, 100);
    await_equal(&cluster, &keys);
    let mut door = Redis::connect(&cluster.resp(2));
    keys.iter().for_each(|key| set(&mut door, key, "after"));
    dots.look(&cluster, &keys);
}

/// A copy of a node's directory from before deletions that were forgotten since.
#[test]
fn a_restored_disk_brings_nothing_deleted_back_and_reuses_no_dot() {
    let mut cluster = comparing_cluster();
    put(&cluster, 0..60, "before");
    await_records(&cluster, 60);
    let keys = keys(120);
    let mut dots = Dots::default();
    let node = cluster.data().join("node-2");
    let copy = cluster.folder.path().join("copy");
    cluster.end_node(2, Signal::TERM);
    copy_directory(&node, &copy);
    cluster.start_node_again(2);
    await_calm(&cluster);

    // Through the node itself, so that it stamps: what it stamps after it was restored must not look the same.
    let mut door = Redis::connect(&cluster.resp(2));
    keys[30..120].iter().for_each(|key| set(&mut door, key, "later"));
    let gone: Vec<&str> = keys[..30].iter().map(String::as_str).collect();
    cluster.run(&[&["delete"], &gone[..]].concat()).exits(0);
    await_records(&cluster, 90);
    dots.look(&cluster, &keys);

    cluster.end_node(2, Signal::TERM);
    cluster.await_end(2);
    std::fs::remove_dir_all(&node).unwrap();
    copy_directory(&copy, &node);
    cluster.start_node_again(2);
    let refilled = || repair(&cluster, 2)["refill"]["partitions_left"].as_u64();
    until("what the copy lacks is fetched", refilled, |&left| left == Some(0));
    // What the copy held may go; what the node holds by now lies where it always did.
    let names = std::fs::read_dir(&node).unwrap().map(|entry| entry.unwrap().path());
    let aside: Vec<PathBuf> =
        names.filter(|path| path.display().to_string().contains("/set-aside-")).collect();
    assert!(aside.len() == 1 && aside[0].join("stores/default").is_dir(), "{aside:?}");
    let told = cluster.run(&["events", "--from=2"]).exits(0).text();
    assert!(told.contains(aside[0].file_name().unwrap().to_str().unwrap()), "{told}");
    std::fs::remove_dir_all(&aside[0]).unwrap();
    let mut door = Redis::connect(&cluster.resp(2));
    for key in &gone {
        assert_eq!(door.call(&[b"GET", key.as_bytes()]), Reply::Bulk(None), "{key} was deleted");
    }
    for key in &keys[30..] {
        assert_eq!(door.call(&[b"GET", key.as_bytes()]), Reply::Bulk(Some(b"later".to_vec())));
    }
    await_records(&cluster, 90);
    await_equal(&cluster, &keys);
    keys[60..].iter().for_each(|key| set(&mut door, key, "after"));
    await_records(&cluster, 90);
    dots.look(&cluster, &keys);
    assert!(dots.incarnations(2).len() > 1, "it has stamped again, as somebody else");
    for node in 1..=3 {
        assert!(held(&cluster, node, &keys[..30]).is_empty(), "n{node} holds what was deleted");
    }
}

/// Waits until all nodes hold the same of these keys.
fn await_equal(cluster: &Cluster, keys: &[String]) {
    let each = || [1, 2, 3].map(|node| held(cluster, node, keys));
    until("equal replicas", each, |each| each[0] == each[1] && each[1] == each[2]);
}

pub(crate) fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().unwrap().is_dir() {
            true => copy_directory(&source, &target),
            false => drop(std::fs::copy(&source, &target).unwrap()),
        }
    }
}
