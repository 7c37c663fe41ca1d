//! One table after another goes live under multi-gets of all its keys, while nodes hang.

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::harm::begin;
use super::{Stops, in_words, more_answers};
use crate::cluster::{Cluster, Signal, tontine};
use crate::observe::until;
use crate::resp::Reply;

/// Keys of the table, and of each multi-get.
const KEYS: u64 = 10_000;

/// Each value is the number of the artifact and of the key.
fn build(folder: &Path, number: u64) -> String {
    let mut records = String::new();
    (0..KEYS).for_each(|key| writeln!(records, "word{key}\t{number}:{key}").unwrap());
    let (input, output) = (folder.join(format!("{number}.tsv")), folder.join(format!("words-{number}")));
    std::fs::write(&input, records).unwrap();
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap().to_owned());
    let words = ["artifact", "build", input, "--key", "1", "--value", "2", "-s", "words", "--to", &output];
    tontine(&[&words[..], &["--number", &number.to_string()]].concat()).exits(0);
    output
}

/// Reads all keys again and again; each answer is of one artifact, whole, and in order.
fn read_all(address: &str, stop: &AtomicBool, answers: &AtomicU64) -> Vec<u64> {
    let mut redis = in_words(address);
    let keys: Vec<String> = (0..KEYS).map(|key| format!("word{key}")).collect();
    let command: Vec<&[u8]> =
        std::iter::once(&b"MGET"[..]).chain(keys.iter().map(|key| key.as_bytes())).collect();
    let mut seen: Vec<u64> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let answer = redis.call(&command);
        let Reply::List(values) = answer else { panic!("MGET failed: {answer:?}") };
        let mut numbers = values.iter().enumerate().map(|(key, value)| {
            let Reply::Bulk(Some(value)) = value else {
                panic!("a key that is in every artifact: {value:?}")
            };
            let (number, of) = std::str::from_utf8(value).unwrap().split_once(':').unwrap();
            assert_eq!(of.parse(), Ok(key), "the value of its key");
            number.parse::<u64>().unwrap()
        });
        let first = numbers.next().unwrap();
        assert!(numbers.all(|number| number == first), "one answer is of two artifacts");
        if seen.last() != Some(&first) {
            seen.push(first);
        }
        answers.fetch_add(1, Ordering::Relaxed);
    }
    seen
}

/// That many swaps, in every `still`th of which a node hangs for two seconds.
fn swap_under_reads(swaps: u64, still: u64) {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::with(3, &[]);
    cluster.run(&["store", "create", "words", "--read-only"]).exits(0);
    for number in [1, 2] {
        cluster.run(&["artifact", "push", &build(folder.path(), number)]).exits(0);
    }
    let stop = AtomicBool::new(false);
    let answers = [1, 2, 3].map(|_| AtomicU64::new(0));
    let seen: Vec<Vec<u64>> = std::thread::scope(|scope| {
        // Readers that went on behind a failure would keep the test from its end.
        let _stops = Stops(&stop);
        let readers: Vec<_> = (1..=3)
            .zip(&answers)
            .map(|(node, answers)| {
                let (address, stop) = (cluster.resp(node), &stop);
                scope.spawn(move || read_all(&address, stop, answers))
            })
            .collect();
        for swap in 0..swaps {
            let stands_still = (swap % still == still / 2).then_some(1 + (swap / still) as usize % 3);
            if let Some(node) = stands_still {
                cluster.signal_node(node, Signal::STOP);
            }
            let number = if swap % 2 == 0 { "1" } else { "2" };
            let words = ["artifact", "swap", "words", number, "--replicas", "2"];
            let swapping = begin(&cluster, &words);
            if let Some(node) = stands_still {
                std::thread::sleep(Duration::from_secs(2));
                cluster.signal_node(node, Signal::CONT);
            }
            let swapped = swapping.wait_with_output().unwrap();
            assert!(swapped.status.success(), "{swapped:?}");
            more_answers(&answers[swap as usize % 3], 2);
        }
        // A node that hung may learn of a swap a moment after the command has ended.
        let last = if swaps.is_multiple_of(2) { "2:7" } else { "1:7" };
        for node in 1..=3 {
            let read = || in_words(&cluster.resp(node)).call(&[b"GET", b"word7"]);
            until("each node serves the last", read, |seen| *seen == Reply::Bulk(Some(last.into())));
        }
        answers.iter().for_each(|answers| more_answers(answers, 2));
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    let last = if swaps.is_multiple_of(2) { 2 } else { 1 };
    for seen in &seen {
        assert!(seen.len() as u64 <= swaps + 1, "each swap is seen once: {seen:?}");
        assert_eq!(seen.last(), Some(&last), "{seen:?}");
        // Each third swap waits for this reader; it may miss one in which its node hung.
        assert!(seen.len() as u64 >= swaps / 5, "it has seen swaps: {seen:?}");
    }
}

#[test]
fn many_keys_are_of_one_artifact_in_each_swap_while_a_node_hangs() {
    swap_under_reads(20, 7);
}

/// The whole number that was asked for takes minutes: `./check --full` runs it.
#[test]
#[ignore = "takes minutes"]
fn many_keys_are_of_one_artifact_in_two_hundred_swaps() {
    swap_under_reads(200, 20);
}
