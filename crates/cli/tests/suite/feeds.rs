//! Stores whose keys lie in windows, on real processes: what `range` reads, what is refused, and reads while partitions move.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use client::{Client, ClientOptions, PutOptions, StoreHandle};
use runtime::Ports;
use serde_json::Value as Json;
use wire::messages::RequestOptions;

use crate::cluster::{Cluster, PATIENCE, Signal};
use crate::observe::{addresses, await_no_hints, until};
use crate::resp::{Redis, Reply};
use crate::traffic::Stops;

const PATTERN: &str = "--key=feed:{group}:{sequence}";

/// A client of the store, and what it runs in.
fn feeds(nodes: &[String]) -> (tokio::runtime::Runtime, StoreHandle) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(async {
        let options = ClientOptions { deadline: PATIENCE, ..ClientOptions::default() };
        let client = Client::connect(nodes, Ports::os().unwrap(), options).await.unwrap();
        client.store("feeds").unwrap()
    });
    (runtime, store)
}

/// The numbers of the entries that a range shows.
fn numbers(cluster: &Cluster, words: &[&str]) -> Vec<u64> {
    let shown = cluster.run(&[&["range"], words, &["--json"]].concat()).exits(0).json();
    shown["entries"].as_array().unwrap().iter().map(|entry| entry["number"].as_u64().unwrap()).collect()
}

#[test]
fn a_feed_is_read_in_the_order_of_its_numbers_however_they_were_written() {
    let cluster = Cluster::start();
    cluster.run(&["store", "create", "feeds", "--placement=windows", "--theta=4", PATTERN]).exits(0);
    // Backwards, twice, by two doors, and with a jump.
    let jump = 1_000_000_000_000_u64;
    let mut redis = Redis::connect(&cluster.resp(2));
    assert_eq!(redis.call(&[b"TONTINE.STORE", b"feeds"]), Reply::Status("OK".to_owned()));
    for number in [9, 7, 8, 2, 2, 0, jump] {
        let key = format!("feed:anna:{number}");
        let value = format!("v{number}");
        if number % 2 == 0 {
            cluster.run(&["put", &key, &value, "-s", "feeds"]).exits(0);
        } else {
            assert_eq!(
                redis.call(&[b"SET", key.as_bytes(), value.as_bytes()]),
                Reply::Status("OK".to_owned())
            );
        }
    }
    cluster.run(&["put", "feed:ben:8", "other", "-s", "feeds"]).exits(0);
    assert_eq!(numbers(&cluster, &["feeds", "anna", "0", "99"]), [0, 2, 7, 8, 9]);
    assert_eq!(numbers(&cluster, &["feeds", "anna", "3", "8"]), [7, 8]);
    assert_eq!(numbers(&cluster, &["feeds", "anna", "999999999000", "1000000000999"]), [jump]);
    // A deletion and an expiry are what they are elsewhere.
    cluster.run(&["delete", "feed:anna:7", "-s", "feeds"]).exits(0);
    cluster.run(&["put", "feed:anna:8", "soon over", "-s", "feeds", "--ttl=1ms"]).exits(0);
    assert_eq!(numbers(&cluster, &["feeds", "anna", "0", "99"]), [0, 2, 9]);
    let first = cluster.run(&["range", "feeds", "anna", "0", "99", "--limit=2", "--json"]).exits(0).json();
    assert_eq!((&first["entries"][1]["number"], &first["next"]), (&Json::from(2), &Json::from(9)));
    // All that is stored is walked and exported.
    let keys = cluster.run(&["keys", "-s", "feeds"]).exits(0).text();
    assert_eq!(keys.lines().filter(|line| line.contains("feed:")).count(), 5, "{keys}");
    // Entries of one window lie in one bucket, and so at one node.
    let routed =
        cluster.run(&["route", "feed:anna:0", "feed:anna:3", "feed:anna:4", "-s", "feeds", "--json"]);
    let routed = routed.exits(0).json();
    assert_eq!(routed[0]["window"]["bucket"], routed[1]["window"]["bucket"]);
    assert_eq!(routed[0]["replicas"], routed[1]["replicas"]);
    assert_ne!(routed[0]["window"]["bucket"], routed[2]["window"]["bucket"]);
    let told = cluster.run(&["route", "feed:anna:4", "-s", "feeds"]).exits(0).text();
    assert!(told.contains(" (group anna, window 1, bucket "), "{told}");
}

#[test]
fn must_not_5_sequences_that_go_back_repeat_come_from_two_writers_or_jump_are_not_read_back() {
    const JUMP: u64 = 1_000_000_000_000;
    let cluster = Cluster::start();
    cluster.run(&["store", "create", "feeds", "--placement=windows", "--theta=4", PATTERN]).exits(0);
    let back_and_again: Vec<u64> = (0..60).rev().chain((0..60).step_by(3)).collect();
    let on_and_far: Vec<u64> = (0..60).step_by(2).chain((1..20).map(|step| step * JUMP)).collect();
    std::thread::scope(|scope| {
        for (node, written) in [(1, &back_and_again), (2, &on_and_far)] {
            let mut redis = Redis::connect(&cluster.resp(node));
            scope.spawn(move || {
                assert_eq!(redis.call(&[b"TONTINE.STORE", b"feeds"]), Reply::Status("OK".to_owned()));
                for number in written {
                    let answer = redis.call(&[b"SET", format!("feed:anna:{number}").as_bytes(), b"v"]);
                    assert_eq!(answer, Reply::Status("OK".to_owned()), "{number}");
                }
            });
        }
    });
    assert_eq!(numbers(&cluster, &["feeds", "anna", "0", "99"]), (0..60).collect::<Vec<u64>>());
    for far in (1..20).map(|step| step * JUMP) {
        assert_eq!(numbers(&cluster, &["feeds", "anna", &far.to_string(), &far.to_string()]), [far]);
    }
    // However far it reaches, a range begins with one page, and says where to go on.
    let far = JUMP.to_string();
    let first = cluster.run(&["range", "feeds", "anna", "0", &far, "--limit=60", "--json"]).exits(0).json();
    assert_eq!((first["entries"].as_array().unwrap().len(), &first["next"]), (60, &Json::from(1000)));
}

#[test]
fn must_not_6_a_deletion_a_ttl_or_a_hint_in_an_old_window_is_treated_unlike_others() {
    let mut cluster = Cluster::start();
    cluster.run(&["store", "create", "feeds", "--placement=windows", "--theta=4", PATTERN]).exits(0);
    let put = |cluster: &Cluster, number: u32, value: &str, more: &[&str]| {
        let key = format!("feed:anna:{number}");
        cluster.run(&[&["put", &key, value, "-s", "feeds"], more].concat()).exits(0);
    };
    (0..40).for_each(|number| put(&cluster, number, "old", &[]));
    // Windows that were full long ago change while a replica is away.
    cluster.end_node(3, Signal::KILL);
    put(&cluster, 1, "new", &[]);
    put(&cluster, 2, "soon over", &["--ttl=1ms"]);
    cluster.run(&["delete", "feed:anna:3", "-s", "feeds"]).exits(0);
    cluster.start_node_again(3);
    await_no_hints(&cluster);
    let all: Vec<u64> = (0..40).filter(|number| ![2, 3].contains(number)).collect();
    assert_eq!(numbers(&cluster, &["feeds", "anna", "0", "99"]), all);
    // The replica that was away knows all of it by itself.
    cluster.end_node(1, Signal::KILL);
    cluster.end_node(2, Signal::KILL);
    let get = |number: u32| cluster.run(&["get", &format!("feed:anna:{number}"), "-s", "feeds", "-r", "1"]);
    assert_eq!(get(1).exits(0).text(), "new\n");
    assert_eq!(get(4).exits(0).text(), "old\n");
    [2, 3].into_iter().for_each(|number| drop(get(number).exits(1)));
}

#[test]
fn a_range_says_which_values_may_be_older_than_their_last_write() {
    let cluster = Cluster::with(4, &[]);
    cluster.run(&["store", "create", "feeds", "--placement=windows", "--theta=1", PATTERN]).exits(0);
    for number in 0..12 {
        cluster.run(&["put", &format!("feed:anna:{number}"), "v", "-s", "feeds"]).exits(0);
    }
    let words = |number: u32| ["feeds".to_owned(), "anna".to_owned(), number.to_string(), number.to_string()];
    let range = |number, more: &[&str]| {
        let words = words(number);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        cluster.run(&[&["range"], &words[..], more].concat())
    };
    assert_eq!(range(3, &["--json"]).exits(0).json()["entries"][0]["sloppy"], false);
    cluster.end_node(3, Signal::KILL);
    cluster.end_node(4, Signal::KILL);
    let may_be_stale = |number: &u32| {
        let answer = range(*number, &["--json"]);
        answer.code == 0 && answer.json()["entries"][0]["sloppy"] == true
    };
    let one = until("a value that one replica has", || (0..12).find(may_be_stale), Option::is_some).unwrap();
    let told = range(one, &[]).exits(0);
    assert!(told.stderr.contains("may be older than their last write"), "{}", told.stderr);
    let key = format!("feed:anna:{one}");
    let told = cluster.run(&["mget", &key, "-s", "feeds"]).exits(0);
    assert!(told.stderr.contains("may be older than their last write"), "{}", told.stderr);
    range(99, &[]).fails_with("number 99: too few replicas");
}

#[test]
fn must_not_3_a_key_that_does_not_fit_is_stored() {
    let cluster = Cluster::with(5, &[]);
    cluster.run(&["store", "create", "feeds", "--placement=windows", PATTERN]).exits(0);
    for key in ["feed:anna:007", "feed:anna:x", "greeting", "feed::7"] {
        cluster.run(&["put", key, "v", "-s", "feeds"]).fails_with(&format!(
            "key {key:?}: key-unfit: keys of store feeds are feed:{{group}}:{{sequence}}"
        ));
        cluster.run(&["get", key, "-s", "feeds"]).exits(1);
    }
    let mut redis = Redis::connect(&cluster.resp(1));
    assert_eq!(redis.call(&[b"TONTINE.STORE", b"feeds"]), Reply::Status("OK".to_owned()));
    let Reply::Error(why) = redis.call(&[b"SET", b"greeting", b"v"]) else { panic!("it is stored") };
    assert!(why.contains("feed:{group}:{sequence}"), "{why}");
    // Nor do fallbacks, where all replicas are gone.
    let replicas = cluster.run(&["route", "greeting", "-s", "feeds", "--json"]).json()[0]["replicas"].clone();
    let replicas: Vec<usize> = serde_json::from_value(replicas).unwrap();
    replicas.iter().for_each(|node| cluster.end_node(*node, Signal::KILL));
    let fits = || cluster.run(&["put", "feed:anna:1", "v", "-s", "feeds"]).code;
    until("fallbacks take what fits", fits, |code| *code == 0);
    cluster.run(&["put", "greeting", "v", "-s", "feeds"]).fails_with("keys of store feeds are");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let cluster = Cluster::start();
    let refused = |words: &[&str], why: &str| cluster.run(words).fails_with(why);
    refused(&["store", "create", "f", "--placement=windows"], "--key");
    refused(&["store", "create", "f", "--theta=64"], "--key");
    refused(&["store", "create", "f", "--theta=64", PATTERN], "belong to --placement windows");
    refused(&["store", "create", "f", "--placement=windows", "--theta=0", PATTERN], "0 is not in 1..");
    refused(
        &["store", "create", "f", "--placement=windows", "--key=feed:{group}"],
        "must have {sequence} exactly once",
    );
    refused(
        &["store", "create", "f", "--placement=windows", "--key={group}{sequence}"],
        "nobody can tell where one ends",
    );
    refused(&["store", "create", "f", "--read-only", "--placement=windows", PATTERN], "cannot be used with");
    cluster.run(&["store", "create", "f", "--placement=windows", PATTERN]).exits(0);
    cluster.run(&["store", "create", "news", "--placement=windows", "--key=n{sequence}"]).exits(0);
    refused(&["range", "default", "0", "9"], "keeps its keys by their hash");
    refused(&["range", "f", "0", "9"], "so a range needs a group");
    refused(&["range", "news", "anna", "0", "9"], "so a range has no group");
    refused(&["range", "f", "anna", "9", "0"], "the range goes backwards");
    refused(&["range", "f", "anna", "0", "x"], "is no sequence number");
    refused(&["range", "f", "anna", "0", "9", "-s", "f"], "give the name of the store as its first argument");
    assert!(
        cluster.run(&["store", "list"]).exits(0).text().contains("windows of 64: feed:{group}:{sequence}")
    );
}

#[test]
fn a_load_names_the_line_of_a_key_that_does_not_fit_and_passes_over_it_if_told_to() {
    let cluster = Cluster::start();
    cluster.run(&["store", "create", "feeds", "--placement=windows", PATTERN]).exits(0);
    let lines: String = (1..=50).map(|number| format!("feed:anna:{number}\tv{number}\n")).collect();
    let file = cluster.write("feed.tsv", format!("{lines}feed:anna:x\tno number\nfeed:anna:51\tv51\n"));
    let load = ["load", &file, "--key", "1", "--value", "2", "-s", "feeds"];
    cluster.run(&load).fails_with("line 51");
    let skipping = cluster.run(&[&load[..], &["--skip-bad"]].concat()).exits(0);
    assert!(skipping.text().contains("skipped 1 bad record"), "{skipping:?}");
    assert_eq!(numbers(&cluster, &["feeds", "anna", "1", "99"]), (1..=51).collect::<Vec<_>>());
}

/// A writer appends, and a reader reads the newest twenty: each that was acknowledged before is there.
#[test]
fn must_not_4_a_feed_read_misses_an_acknowledged_entry_during_a_move() {
    let cluster = Cluster::with(4, &[]);
    cluster.run(&["store", "create", "feeds", "--placement=windows", "--theta=8", PATTERN]).exits(0);
    let nodes = addresses(&cluster);
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let reads = std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            let (runtime, store) = feeds(&nodes);
            for number in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let put = store.put(format!("feed:anna:{number}"), number.to_string(), PutOptions::default());
                runtime.block_on(put).expect("no put fails while partitions move");
                acknowledged.store(number, Ordering::Release);
            }
        });
        let reader = scope.spawn(|| {
            let (runtime, store) = feeds(&nodes);
            let (mut reads, options) = (0, RequestOptions::default());
            while !stop.load(Ordering::Relaxed) {
                let newest = acknowledged.load(Ordering::Acquire);
                let Some(from) = newest.checked_sub(19) else { continue };
                let page = store.range(b"anna", (from, newest), &options);
                let page = runtime.block_on(page).expect("no read fails while partitions move");
                let seen: Vec<u64> = page.entries.iter().map(|(number, ..)| *number).collect();
                assert_eq!(seen, (from.max(1)..=newest).collect::<Vec<_>>());
                reads += 1;
            }
            reads
        });
        cluster.run(&["node", "drain", "4"]).exits(0);
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(reads > 50, "{reads} reads");
    let newest = acknowledged.into_inner();
    let all = numbers(&cluster, &["feeds", "anna", "1", &newest.to_string(), "--limit=1000000"]);
    assert_eq!(all, (1..=newest).collect::<Vec<_>>());
}

/// What `store advise` says: its verdict, and the document.
fn advised(cluster: &Cluster, words: &[&str]) -> (i32, Json) {
    let answer = cluster.run(&[&["store", "advise"], words, &["--json"]].concat());
    (answer.code, answer.json())
}

#[test]
fn advice_is_refused_where_there_are_no_windows_and_unknown_where_nothing_was_measured() {
    let cluster = Cluster::start();
    cluster.run(&["store", "create", "feeds", "--placement=windows", PATTERN]).exits(0);
    cluster.run(&["store", "create", "table", "--read-only"]).exits(0);
    cluster.run(&["store", "advise", "table"]).fails_with("is read-only");
    cluster.run(&["store", "advise", "nothing"]).fails_with("there is no store nothing");
    let words = cluster.run(&["store", "advise", "feeds", "--seconds=1"]).exits(1).text();
    assert!(
        words.contains("Nobody can tell yet") && words.contains("store advise feeds --seconds 30"),
        "{words}"
    );
    let (code, told) = advised(&cluster, &["feeds", "--seconds=1"]);
    assert_eq!((code, &told["advice"], &told["lower"]), (1, &Json::from("unknown"), &Json::Null));
}

/// Each verdict follows from both bounds, as they are told.
#[track_caller]
fn check_verdict_of_another_delay(cluster: &Cluster) {
    let (code, told) = advised(cluster, &["feeds", "--seconds=2", "--delay-ms=1"]);
    let bounds = (told["lower"].as_u64(), told["upper"].as_u64(), told["upper_binds"].as_bool());
    let expected = match bounds {
        (Some(_), Some(_), Some(false)) => "fits",
        (Some(lower), Some(upper), _) if 2 * lower > 3 * upper => "none-fits",
        (Some(lower), Some(upper), _) if 128 > 3 * upper.max(lower) => "too-large",
        (Some(_), Some(upper), _) if upper < 64 => "near",
        (Some(_), Some(_), _) => "fits",
        _ => "unknown",
    };
    let fits = matches!(expected, "fits" | "near");
    assert_eq!((&told["advice"], code), (&Json::from(expected), i32::from(!fits)), "{told}");
    let words = cluster.run(&["store", "advise", "feeds", "--seconds=2", "--delay-ms=60000"]).text();
    assert!(words.contains("for more than 500 keys left out"), "{words}");
    let counts = ["The upper bound counts: ", "The upper bound does not count yet: "];
    assert!(counts.iter().any(|counts| words.contains(counts)), "{words}");
}

#[test]
fn advice_is_by_the_reads_and_puts_that_nodes_counted_whoever_drives_them() {
    let cluster = Cluster::with(4, &[]);
    cluster.run(&["store", "create", "feeds", "--placement=windows", "--theta=64", PATTERN]).exits(0);
    let (nodes, stop, door) = (addresses(&cluster), AtomicBool::new(false), cluster.resp(2));
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        // Entries of a feed, and twenty of them at once, by a client that drives its reads itself.
        scope.spawn(|| {
            let (runtime, store) = feeds(&nodes);
            let options = RequestOptions::default();
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let put = store.put(format!("feed:anna:{number}"), "v", PutOptions::default());
                runtime.block_on(put).expect("it is put");
                runtime.block_on(store.range(b"anna", (0, 19), &options)).expect("it is read");
            }
        });
        // The same by Redis, by hash.
        scope.spawn(|| {
            let mut redis = Redis::connect(&door);
            let keys: Vec<String> = (0..20).map(|key| format!("key{key}")).collect();
            let mut words: Vec<&[u8]> = vec![b"MGET"];
            words.extend(keys.iter().map(String::as_bytes));
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(redis.call(&[b"SET", b"key1", b"v"]), Reply::Status("OK".to_owned()));
                redis.call(&words);
            }
        });
        let known = || advised(&cluster, &["feeds", "--seconds=2", "--delay-ms=60000"]);
        let (code, told) = until("all is known", known, |(_, told)| told["advice"] != "unknown");
        assert_eq!(
            (code, &told["advice"], &told["lower"]),
            (0, &Json::from("fits"), &Json::from(20)),
            "{told}"
        );
        assert!(
            told["reads_counted"]["guessed"].as_u64() > Some(19)
                && told["puts_per_second"].as_f64() > Some(0.0)
        );
        let upper = told["upper"].as_f64().unwrap();
        let served = told["capacity"]["puts_per_second"].as_f64().unwrap();
        assert!((upper - served * 60.0).abs() <= served, "what is served in a minute: {told}");
        // A range over 300,000 numbers is no read of a feed: it once had θ = 64 told to be too small.
        cluster.run(&["range", "feeds", "anna", "0", "299999", "--limit=1000000"]).exits(0);
        let (code, told) = advised(&cluster, &["feeds", "--seconds=2", "--delay-ms=60000"]);
        let reads = &told["reads_counted"];
        assert!(reads["wide_left_out"].as_u64() > Some(100) && reads["cut_by_windows"] == false, "{told}");
        assert_eq!(
            (code, &told["advice"], &told["lower"]),
            (0, &Json::from("fits"), &Json::from(20)),
            "{told}"
        );
        check_verdict_of_another_delay(&cluster);
        let known = || advised(&cluster, &["default", "--seconds=2", "--delay-ms=60000"]);
        let (code, told) = until("all is known", known, |(_, told)| told["advice"] != "unknown");
        // R=2 of four nodes: by hash all are asked, in windows two or three.
        assert_eq!((code, &told["advice"]), (0, &Json::from("windows-pay")), "{told}");
        assert_eq!(
            (&told["lower"], &told["reads_counted"]["guessed"]),
            (&Json::from(20), &Json::from(0)),
            "{told}"
        );
        let words =
            cluster.run(&["store", "advise", "default", "--seconds=2", "--delay-ms=60000"]).exits(0).text();
        for part in
            ["keys lie by their hash", "--placement windows --theta 64", "half of", "the weakest node"]
        {
            assert!(words.contains(part), "{part}: {words}");
        }
    });
}
