//! From a file of tab-separated values to a served table, and on to the next one and back, on real processes under reads.

mod again;
mod by_number;
mod fetching;
mod harm;
mod here;
mod increments;
mod killed;
mod moving;
mod scrubbing;
mod soon;
mod swapping;
mod walking;

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::cluster::{Cluster, PATIENCE, tontine};
use crate::observe::until;
use crate::resp::{Redis, Reply};
pub(crate) use crate::traffic::Stops;

/// Keys of the table. With the values they are more than one message of a multi-get.
pub(crate) const KEYS: u64 = 2_500;
pub(crate) const VALUE_BYTES: usize = 8 * 1024;
/// Swaps under reads.
const SWAPS: u64 = 6;

/// Builds artifact `number`, each value of which begins with that number.
pub(crate) fn build(folder: &Path, number: u64) -> String {
    build_of(folder, number, KEYS)
}

fn build_of(folder: &Path, number: u64, keys: u64) -> String {
    let mut records = String::new();
    for key in 0..keys {
        writeln!(records, "word{key}\t{number}:{key:0>width$}", width = VALUE_BYTES).unwrap();
    }
    let input = folder.join(format!("{number}.tsv"));
    std::fs::write(&input, records).unwrap();
    let (input, output) = (input.to_str().unwrap(), folder.join(format!("words-{number}")));
    let (output, number) = (output.to_str().unwrap(), number.to_string());
    let words = ["artifact", "build", input, "--key", "1", "--value", "2", "-s", "words", "--to", output];
    let built = tontine(&[&words[..], &["--number", &number]].concat());
    assert_eq!(built.code, 0, "{}", built.stderr);
    output.to_owned()
}

pub(crate) fn in_words(address: &str) -> Redis {
    let mut redis = Redis::connect(address);
    assert_eq!(redis.call(&[b"TONTINE.STORE", b"words"]), Reply::Status("OK".to_owned()));
    redis
}

/// Which artifact a reply is from.
pub(crate) fn number_of(reply: &Reply) -> u64 {
    let Reply::Bulk(Some(value)) = reply else { panic!("a key that is in every artifact: {reply:?}") };
    assert!(value.len() > VALUE_BYTES, "the whole value");
    std::str::from_utf8(value).unwrap().split_once(':').unwrap().0.parse().unwrap()
}

/// Reads many keys at once, again and again, and once more when it shall stop: every answer is of one artifact.
pub(crate) fn read_on(address: &str, keys: u64, stop: &AtomicBool, answers: &AtomicU64) -> Vec<u64> {
    let mut redis = in_words(address);
    let keys: Vec<String> = (0..keys).map(|key| format!("word{key}")).collect();
    let mut command: Vec<&[u8]> = vec![b"MGET"];
    command.extend(keys.iter().map(|key| key.as_bytes()));
    let mut seen = Vec::new();
    loop {
        let ends = stop.load(Ordering::Relaxed);
        let reply = redis.call(&command);
        let Reply::List(values) = &reply else { panic!("MGET failed: {reply:?}") };
        let first = number_of(&values[0]);
        assert!(values.iter().all(|value| number_of(value) == first), "one answer is of two artifacts");
        assert_eq!(number_of(&redis.call(&[b"GET", b"word7"])) / 3, 0, "a number that was built");
        if seen.last() != Some(&first) {
            seen.push(first);
        }
        answers.fetch_add(1, Ordering::Relaxed);
        if ends {
            return seen;
        }
    }
}

/// Waits until the readers have had this many more answers.
pub(crate) fn more_answers(answers: &AtomicU64, count: u64) {
    let (from, begun) = (answers.load(Ordering::Relaxed), Instant::now());
    while answers.load(Ordering::Relaxed) < from + count {
        assert!(begun.elapsed() < PATIENCE, "readers hang");
        std::thread::yield_now();
    }
}

#[test]
fn a_table_goes_live_and_back_under_reads_without_a_failed_or_mixed_request() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (build(folder.path(), 1), build(folder.path(), 2));
    let mut cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    let status = cluster.run(&["status"]).exits(0).text();
    assert!(status.contains("words (N=3, empty until the first `artifact push`)"), "{status}");
    let mut redis = in_words(&cluster.resp(2));
    assert_eq!(redis.call(&[b"GET", b"word1"]), Reply::Bulk(None), "nothing is served yet");
    let would = cluster.run(&["artifact", "push", &one, "--dry-run"]).exits(0).text();
    assert!(
        would.starts_with("would have 3 nodes fetch artifact 1 of store words (2500 records, "),
        "{would}"
    );
    let pushed = cluster.run(&["artifact", "push", &one]).exits(0).text();
    assert!(pushed.starts_with("pushed artifact 1 of store words"), "{pushed}");
    assert!(!pushed.contains("rollback"), "there is nothing to go back to: {pushed}");
    assert_eq!(redis.call(&[b"EXISTS", b"word1", b"word2", b"nothing"]), Reply::Number(2));
    assert_eq!(number_of(&redis.call(&[b"GET", b"word1"])), 1);
    assert_eq!(cluster.run(&["get", "word9", "-s", "words"]).exits(0).text().split(':').next(), Some("1"));
    for write in [&[&b"SET"[..], b"word1", b"x"][..], &[b"DEL", b"word1"], &[b"EXPIRE", b"word1", b"9"]] {
        let Reply::Error(refusal) = redis.call(write) else { panic!("a write was taken") };
        assert!(refusal.contains("takes no writes"), "{refusal}");
    }
    cluster.run(&["put", "word1", "x", "-s", "words"]).fails_with("read-only");
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let seen: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        let readers: Vec<_> = [(1, KEYS), (2, 300), (3, 40)]
            .map(|(node, keys)| {
                let (address, stop, answers) = (cluster.resp(node), &stop, &answers);
                scope.spawn(move || read_on(&address, keys, stop, answers))
            })
            .into();
        more_answers(&answers, 6);
        let pushed = cluster.run(&["artifact", "push", &two]).exits(0).text();
        assert!(pushed.contains("artifact rollback words`"), "{pushed}");
        for swap in 1..SWAPS {
            more_answers(&answers, 6);
            match swap % 2 {
                1 => cluster.run(&["artifact", "rollback", "words"]).exits(0),
                _ => cluster.run(&["artifact", "swap", "words", "2"]).exits(0),
            };
        }
        more_answers(&answers, 6);
        // A node may learn of a swap a moment after the command has ended.
        for node in 1..=3 {
            let mut redis = in_words(&cluster.resp(node));
            let served = || number_of(&redis.call(&[b"GET", b"word1"]));
            until("each node serves the last", served, |number| *number == 1);
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    for seen in &seen {
        assert!(seen.len() as u64 <= SWAPS + 1, "each swap is seen once, and in order: {seen:?}");
        assert_eq!((seen[0], seen.last()), (1, Some(&1)), "{seen:?}");
    }
    assert!(seen.iter().any(|seen| seen.len() > 1), "some reader has seen a swap: {seen:?}");
    let nothing = cluster.run(&["artifact", "rollback", "words"]);
    nothing.fails_with("keeps no artifact from before the served one");
    cluster.restart();
    let mut redis = in_words(&cluster.resp(3));
    assert_eq!(number_of(&redis.call(&[b"GET", b"word2499"])), 1, "served again after a restart");
    cluster.run(&["artifact", "delete", "words", "1"]).fails_with("artifact 1 is served, so it can be");
    cluster.run(&["artifact", "delete", "words", "2"]).exits(0);
    let listed = cluster.json(&["artifact", "list", "words"]);
    assert_eq!(listed["stores"][0]["artifacts"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_pushed_is_refused_and_what_is_served_stays_served() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (build(folder.path(), 1), build(folder.path(), 2));
    let cluster = Cluster::start();
    cluster.run(&["artifact", "push", &one]).fails_with("the cluster has no store words");
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    cluster.run(&["store", "create", "words"]).fails_with("store words exists already");
    cluster.run(&["artifact", "swap", "words", "1"]).fails_with("store words lists no artifact 1");
    cluster.run(&["artifact", "push", &two]).exits(0);
    cluster.run(&["artifact", "push", &one]).fails_with("the number 1 is not greater than 2");
    // A chunk of the next one is changed at the source.
    let three = build(folder.path(), 3);
    let chunk = std::fs::read_dir(Path::new(&three).join("chunks")).unwrap().next().unwrap().unwrap().path();
    let sound = std::fs::read(&chunk).unwrap();
    let mut flipped = sound.clone();
    flipped[100] ^= 1;
    std::fs::write(&chunk, &flipped).unwrap();
    let late = cluster.run(&["artifact", "push", &three, "--timeout-s", "3"]);
    late.is_left_open_with("the block at 0 has another digest");
    cluster.run(&["artifact", "swap", "words", "3"]).fails_with("not held by enough replicas");
    let value = cluster.run(&["get", "word7", "-s", "words"]).exits(0).text();
    assert!(value.starts_with("2:"), "what is served stays served");
    // It is mended, and the same command goes on.
    std::fs::write(&chunk, &sound).unwrap();
    cluster.run(&["artifact", "push", &three]).exits(0);
    let value = cluster.run(&["get", "word7", "-s", "words"]).exits(0).text();
    assert!(value.starts_with("3:"), "{}", &value[..20]);
    cluster.run(&["artifact", "abort", "words", "3"]).fails_with("was served");
    // A push that goes on undoes no rollback.
    cluster.run(&["artifact", "rollback", "words"]).exits(0);
    cluster.run(&["artifact", "push", &three]).fails_with("artifact 3 was served before");
}
