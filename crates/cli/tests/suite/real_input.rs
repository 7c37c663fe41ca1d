//! The main job: this machine's Debian package index, loaded while nodes die, read back byte for byte.
//!
//! It needs the machine's package lists and moves 50 MB, so it runs only when asked: `./check real-input`, which
//! fetches the lists where it may, or with `--ignored`. Without enough records it fails: a load of nothing proves
//! nothing.

mod machines;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use client::{Client, ClientOptions};
use wire::messages::RequestOptions;

use crate::cluster::{Cluster, PATIENCE};
use crate::resp::{Redis, Reply};

/// Fewer stanzas mean that the package lists were never fetched.
const STANZAS_EXPECTED: usize = 20_000;
/// Fewer records are loaded before there is time for two deaths.
const STANZAS_MIN: usize = 5_000;
/// Batches into which the load is cut at least, so that there is time for two deaths.
const BATCHES_MIN: usize = 3_000;
/// Records of a batch, at most.
const BATCH_MAX: usize = 20;
/// What the package manager knows of the packages that are installed.
const DPKG_STATUS: &str = "/var/lib/dpkg/status";
/// Keys asked for at a time.
const READ_BATCH: usize = 500;

/// Records of this machine's package manager, and where they are from: what `apt-cache dumpavail` prints, or what is
/// installed where that is more.
fn package_index() -> (Vec<u8>, String) {
    let available = Command::new("apt-cache").arg("dumpavail").output();
    let available = available.map(|output| output.stdout).unwrap_or_default();
    if stanzas(&available) >= STANZAS_EXPECTED {
        return (available, "apt-cache dumpavail".to_owned());
    }
    // Its stanzas are of the same form, with a blank line after the last one, too.
    let installed = std::fs::read(DPKG_STATUS).unwrap_or_default();
    let (available_count, installed_count) = (stanzas(&available), stanzas(&installed));
    let (index, source) = if available_count >= installed_count {
        (available, "apt-cache dumpavail".to_owned())
    } else {
        (installed, DPKG_STATUS.to_owned())
    };
    assert!(
        available_count.max(installed_count) >= STANZAS_MIN,
        "this machine has no package index to load: apt-cache dumpavail knows {available_count} packages, {DPKG_STATUS} \
         {installed_count}, and {STANZAS_MIN} are needed; run `apt-get update` (./check setup does, where it may)"
    );
    (index, source)
}

fn stanzas(index: &[u8]) -> usize {
    index.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"Package: ")).count()
}

/// Package name to stanza, read in another way than `tontine load` does: split at empty lines, last one wins.
fn expected(index: &[u8]) -> BTreeMap<&[u8], &[u8]> {
    let mut stanzas = BTreeMap::new();
    let mut rest = index;
    while !rest.is_empty() {
        let end = rest.windows(2).position(|pair| pair == b"\n\n").map_or(rest.len(), |at| at + 1);
        let stanza = &rest[..end];
        let name = stanza.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Package: "));
        stanzas.insert(name.expect("every stanza names its package"), stanza);
        rest = &rest[(end + 1).min(rest.len())..];
    }
    stanzas
}

#[test]
#[ignore = "needs package lists; ./check real-input runs it"]
fn the_package_index_survives_two_killed_nodes_and_is_read_back_byte_for_byte() {
    let (index, source) = package_index();
    let expected = expected(&index);
    eprintln!(
        "input: {source}, {} stanzas of {} packages, {} bytes",
        stanzas(&index),
        expected.len(),
        index.len()
    );
    let batch = (stanzas(&index) / BATCHES_MIN).clamp(1, BATCH_MAX).to_string();
    let mut cluster = Cluster::with(3, &[]);
    let file = cluster.write("packages.deb822", &index);

    let report = cluster.file("report.json");
    let mut load =
        cluster.command(&["load", &file, "--key", "Package", "--batch", &batch, "--parallel", "1", "--json"]);
    let stdout = std::fs::File::create(&report).unwrap();
    let mut loading = load.stdout(stdout).stderr(Stdio::inherit()).spawn().unwrap();
    await_acknowledged(&file, 0.15, &mut loading);
    cluster.kill_node(2);
    await_acknowledged(&file, 0.4, &mut loading);
    cluster.start_node_again(2);
    await_acknowledged(&file, 0.65, &mut loading);
    cluster.kill_node(3);
    assert!(loading.wait().unwrap().success(), "the load outlives both deaths");
    cluster.start_node_again(3);

    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    eprintln!("load: {report}");
    assert_eq!(report["complete"], true);
    let distinct = report["records"].as_u64().unwrap() - report["duplicates"].as_u64().unwrap();
    assert_eq!(distinct, expected.len() as u64);
    let doors: Vec<String> = (1..=3).map(|node| cluster.resp(node)).collect();
    check_through_resp(&doors, &expected);
    check_through_native(&cluster.native(3), &expected);
}

/// Waits until the checkpoint says that this share of the file is acknowledged.
fn await_acknowledged(file: &str, share: f64, loading: &mut std::process::Child) {
    let total = std::fs::metadata(file).unwrap().len() as f64;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let checkpoint = std::fs::read(format!("{file}.tontine-load")).unwrap_or_default();
        let document: serde_json::Value = serde_json::from_slice(&checkpoint).unwrap_or_default();
        if document["acknowledged"]["byte"].as_f64().unwrap_or(0.0) >= share * total {
            return;
        }
        assert!(
            loading.try_wait().unwrap().is_none(),
            "the load ended before {share} of it was seen acknowledged"
        );
        assert!(Instant::now() < deadline, "the load does not come to {share}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn check_through_resp(doors: &[String], expected: &BTreeMap<&[u8], &[u8]>) {
    let records: Vec<_> = expected.iter().collect();
    let mut doors: Vec<Redis> = doors.iter().map(|door| Redis::connect(door)).collect();
    let count = doors.len();
    for (number, batch) in records.chunks(READ_BATCH).enumerate() {
        let words: Vec<&[u8]> =
            std::iter::once(&b"MGET"[..]).chain(batch.iter().map(|(key, _)| **key)).collect();
        let Reply::List(values) = doors[number % count].call(&words) else {
            panic!("MGET answers with a list")
        };
        assert_eq!(values.len(), batch.len());
        for ((key, stanza), value) in batch.iter().zip(values) {
            assert!(value == Reply::Bulk(Some(stanza.to_vec())), "{}: {value:?}", key.escape_ascii());
        }
    }
}

fn check_through_native(address: &str, expected: &BTreeMap<&[u8], &[u8]>) {
    let records: Vec<_> = expected.iter().collect();
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    executor.block_on(async {
        let ports = runtime::Ports::os().unwrap();
        let options = ClientOptions { deadline: Duration::from_secs(60), ..ClientOptions::default() };
        let client = Client::connect(&[address.to_owned()], ports, options).await.unwrap();
        let store = client.store("default").unwrap();
        for batch in records.chunks(READ_BATCH) {
            let keys: Vec<Vec<u8>> = batch.iter().map(|(key, _)| key.to_vec()).collect();
            let found = store.multi_get(keys, &RequestOptions::default()).await.unwrap();
            for ((key, stanza), found) in batch.iter().zip(found) {
                let value = found.unwrap().value();
                assert!(value.as_deref() == Some(**stanza), "{}: {value:?}", key.escape_ascii());
            }
        }
    });
}
