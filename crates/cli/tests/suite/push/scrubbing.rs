//! Damage to an artifact's files that nobody reads: the scrub finds it, and what is gone comes back.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::build_of;
use crate::cluster::Cluster;
use crate::observe::{metric, until};

/// Keys of a table: enough for more than one chunk.
const KEYS: u64 = 400;

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    paths.filter_map(|path| Some((path.clone(), std::fs::read(&path).ok()?))).collect()
}

/// No get is sent in this test, so nothing but the scrub can find it.
#[test]
fn a_flipped_byte_that_nobody_reads_is_found_by_the_scrub_and_mended_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let one = build_of(folder.path(), 1, KEYS);
    let cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["artifact", "push", &one]).exits(0);
    std::fs::rename(&one, format!("{one}-away")).unwrap();
    let chunks = cluster.data().join("node-3/artifacts/words/chunks");
    let sound = files(&chunks);
    assert!(sound.len() > 1, "{:?}", sound.keys());
    let scrub = |node: usize| {
        let nodes = cluster.json(&["artifact", "list", "words"])["nodes"].clone();
        nodes[node - 1]["scrub"].clone()
    };
    assert!(scrub(3)["seconds_ago"].is_null(), "{}", scrub(3));
    let text = cluster.run(&["artifact", "list"]).exits(0).text();
    assert!(text.contains("all files read by the scrub: n1 not yet"), "{text}");
    let (last, bytes) = sound.last_key_value().unwrap();
    let at = bytes.len() / 2;
    let file = std::fs::File::options().write(true).open(last).unwrap();
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
    cluster.run(&["repair", "start", "--scrub"]).exits(0);
    until("the damaged chunk is mended", || files(&chunks) == sound, |same| *same);
    let ended = until("the pass has ended", || scrub(3), |scrub| scrub["passes"] == 1);
    assert_eq!((&ended["damaged"], &ended["ordered"]), (&1.into(), &false.into()));
    assert_eq!(metric(&cluster, 3, "tontine_artifacts_scrub_damaged_files_total"), 1.0);
    assert!(metric(&cluster, 3, "tontine_artifacts_scrub_bytes_total") >= (KEYS * 8000) as f64);
    assert_eq!(metric(&cluster, 1, "tontine_artifacts_scrub_damaged_files_total"), 0.0);
    let events = cluster.run(&["events"]).exits(0).text();
    assert!(events.contains("damaged, and replaces it: a block of it has another digest"), "{events}");
    assert!(events.contains("and found 1 damaged one"), "{events}");
    until("all nodes have read all", || (1..=3).all(|node| scrub(node)["passes"] == 1), |all| *all);
    for told in [&["artifact", "list"][..], &["status"]] {
        let text = cluster.run(told).exits(0).text();
        assert!(text.contains("all files read by the scrub: n1 ") && !text.contains("not yet"), "{text}");
    }
    for order in [&["status"][..], &["start"], &["start", "--scrub", "--partition", "1"]] {
        let words = [&["repair"], order, &["-s", "words"]].concat();
        cluster.run(&words).fails_with("store words serves artifacts, so there is nothing to compare");
    }
    // What is removed comes back as well, and until then nobody says that it is there.
    std::fs::remove_file(last).unwrap();
    until("the removed chunk is back", || files(&chunks) == sound, |same| *same);
}
