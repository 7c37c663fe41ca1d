//! What every engine promises.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use model::{PartitionId, Token};
use storage::{Change, Held, Met, ScanLimit, StorageEngine, StorageError};

use crate::setup::{Setup, Stops, WHOLE, counted, get, scan_all, write};

fn on_each(case: impl Fn(&Setup)) {
    for setup in Setup::all() {
        case(&setup);
    }
}

#[test]
fn a_written_record_is_read_back_until_it_is_removed() {
    on_each(|setup| {
        let engine = setup.open();
        assert_eq!(get(&*engine, 1, "a"), None);
        setup.put(&*engine, 1, "a", "one");
        setup.put(&*engine, 1, "empty", "");
        setup.put(&*engine, 1, "large", vec![7; 1 << 20]);
        setup.put(&*engine, 1, "a", "two");
        assert_eq!(get(&*engine, 1, "a"), Some(b"two".to_vec()));
        assert_eq!(get(&*engine, 1, "empty"), Some(Vec::new()));
        assert_eq!(get(&*engine, 1, "large"), Some(vec![7; 1 << 20]));
        assert!(write(&*engine, 1, b"a", None).unwrap().is_some());
        assert_eq!(get(&*engine, 1, "a"), None);
        assert_eq!(write(&*engine, 1, b"a", None), Ok(None), "there is nothing left to remove");
    });
}

#[test]
fn a_change_sees_the_record_that_it_replaces() {
    on_each(|setup| {
        let engine = setup.open();
        let (partition, token) = (PartitionId(3), Token::of(b"k"));
        let mut seen = Vec::new();
        for round in 0..4u8 {
            let commit = engine.update(partition, token, b"k", &mut |before| {
                seen.push(before.map(|record| record.to_vec()));
                match round {
                    0 | 1 => Change::Put(Bytes::from(vec![round])),
                    2 => Change::Keep,
                    _ => Change::Remove,
                }
            });
            assert_eq!(commit.unwrap().is_some(), round != 2);
        }
        assert_eq!(seen, [None, Some(vec![0]), Some(vec![1]), Some(vec![1])]);
    });
}

#[test]
fn a_record_put_in_two_pieces_is_as_good_as_one_put_whole() {
    on_each(|setup| {
        let engine = setup.open();
        let (partition, token) = (PartitionId(3), Token::of(b"k"));
        let put = |head: &[u8], tail: &[u8]| {
            let change = &mut |_: Option<&Bytes>| Change::PutJoined(head.into(), tail);
            assert!(engine.update(partition, token, b"k", change).unwrap().is_some());
        };
        // New, of the same length, shorter, empty, longer than a head holds without an allocation.
        let pieces: [(&[u8], &[u8]); 5] =
            [(b"head", b"tail"), (b"he", b"adtwo+"), (b"h", b""), (b"", b""), (&[1; 100], &[2; 3000])];
        for (head, tail) in pieces {
            // A reader that holds the record of before keeps it as it was.
            let held = engine.get(partition, token, b"k").unwrap();
            let before = held.as_deref().map(<[u8]>::to_vec);
            put(head, tail);
            assert_eq!(held.as_deref().map(<[u8]>::to_vec), before);
            assert_eq!(get(&*engine, 3, "k"), Some([head, tail].concat()));
            drop(held);
            put(tail, head);
            assert_eq!(get(&*engine, 3, "k"), Some([tail, head].concat()));
        }
        assert_eq!(engine.partitions(), [Held { partition, records: 1, bytes: 3101 }]);
        assert!(engine.stats().live_bytes >= 3101);
    });
}

#[test]
fn the_same_key_in_two_partitions_is_two_records() {
    on_each(|setup| {
        let engine = setup.open();
        setup.put(&*engine, 1, "k", "one");
        setup.put(&*engine, u32::MAX, "k", "two");
        assert_eq!(get(&*engine, 1, "k"), Some(b"one".to_vec()));
        assert_eq!(get(&*engine, u32::MAX, "k"), Some(b"two".to_vec()));
        assert_eq!(counted(&*engine), [(PartitionId(1), 1), (PartitionId(u32::MAX), 1)]);
    });
}

#[test]
fn keys_that_share_a_token_are_told_apart() {
    on_each(|setup| {
        let engine = setup.open();
        for number in 0..200u32 {
            let key = format!("key {number}");
            let value = Bytes::from(key.clone().into_bytes());
            let put = &mut |_: Option<&Bytes>| Change::Put(value.clone());
            engine.update(PartitionId(0), Token(5), key.as_bytes(), put).unwrap();
        }
        for number in (0..200u32).step_by(2) {
            let key = format!("key {number}");
            engine.update(PartitionId(0), Token(5), key.as_bytes(), &mut |_| Change::Remove).unwrap();
        }
        for number in 0..200u32 {
            let key = format!("key {number}");
            let found = engine.get(PartitionId(0), Token(5), key.as_bytes()).unwrap();
            assert_eq!(found, (number % 2 == 1).then(|| Bytes::from(key.into_bytes())));
        }
        let limit = ScanLimit { records_max: 7, bytes_max: usize::MAX };
        let scanned = scan_all(&*engine, 0, limit).unwrap();
        assert_eq!(scanned.len(), 100);
        assert!(scanned.is_sorted_by(|a, b| a.0 < b.0), "one token: the key decides");
    });
}

#[test]
fn a_record_is_found_by_the_token_and_the_fingerprint_of_its_key() {
    on_each(|setup| {
        let engine = setup.open();
        for number in 0..50 {
            setup.put(&*engine, 1, &format!("k{number}"), format!("v{number}"));
        }
        let find = |key: &str| {
            let (token, fingerprint) = (Token::of(key.as_bytes()), storage::fingerprint(key.as_bytes()));
            engine.find(PartitionId(1), token, fingerprint).unwrap()
        };
        assert_eq!(find("k7"), [(Bytes::from("k7"), Bytes::from("v7"))]);
        write(&*engine, 1, b"k7", None).unwrap();
        assert_eq!((find("k7"), find("never written")), (vec![], vec![]));
        assert_eq!(engine.find(PartitionId(2), Token::of(b"k8"), storage::fingerprint(b"k8")), Ok(vec![]));
    });
}

#[test]
fn updates_of_one_key_by_many_threads_follow_each_other() {
    on_each(|setup| {
        let engine = setup.open();
        let increment = |engine: &dyn StorageEngine, key: &[u8]| {
            let change = &mut |before: Option<&Bytes>| {
                let before = before.map_or(0, |record| u64::from_le_bytes(record[..8].try_into().unwrap()));
                // The same number over and over: a reader that sees a half notices.
                Change::Put(Bytes::from((before + 1).to_le_bytes().repeat(16)))
            };
            engine.update(PartitionId(1), Token::of(key), key, change).unwrap();
        };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stops = Stops(&done);
            let writers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..300).for_each(|n| increment(&*engine, [b"a", b"b", b"c"][n % 3])))
                })
                .collect();
            scope.spawn(|| {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let Some(record) = get(&*engine, 1, "a") else { continue };
                    let number = u64::from_le_bytes(record[..8].try_into().unwrap());
                    assert_eq!(record, number.to_le_bytes().repeat(16));
                    assert!(number >= last, "reads of one reader do not go backwards");
                    last = number;
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        for key in ["a", "b", "c"] {
            assert_eq!(get(&*engine, 1, key), Some(400u64.to_le_bytes().repeat(16)));
        }
        assert_eq!(counted(&*engine), [(PartitionId(1), 3)]);
    });
}

#[test]
fn a_scan_meets_every_record_once_in_token_order_whatever_the_pages() {
    on_each(|setup| {
        let engine = setup.open();
        for number in 0..300 {
            write(&*engine, number % 3, format!("k{number}").as_bytes(), Some(vec![1; 20])).unwrap();
        }
        for (records_max, bytes_max) in [(1, 1000), (7, usize::MAX), (1000, 100), (0, 0), (100, 10_000)] {
            let scanned = scan_all(&*engine, 1, ScanLimit { records_max, bytes_max }).unwrap();
            assert_eq!(scanned.len(), 100);
            assert!(scanned.is_sorted_by_key(|(key, _)| (Token::of(key), key.clone())));
        }
        assert_eq!(scan_all(&*engine, 9, WHOLE).unwrap(), []);
        let page = engine.scan(PartitionId(1), None, ScanLimit { records_max: 10, bytes_max: 1000 }).unwrap();
        let again = page.next.unwrap();
        let second = engine.scan(PartitionId(1), Some(&again), WHOLE).unwrap();
        let repeated = engine.scan(PartitionId(1), Some(&again), WHOLE).unwrap();
        assert_eq!(second.records.len(), 90);
        assert_eq!(second.records, repeated.records, "a cursor may be used again");
    });
}

#[test]
fn a_walk_meets_every_record_of_its_tokens_in_order_until_it_breaks_off() {
    on_each(|setup| {
        let engine = setup.open();
        for number in 0..300 {
            write(&*engine, number % 3, format!("k{number}").as_bytes(), Some(vec![1; 20])).unwrap();
        }
        let walk = |partition, first, last, most| {
            let mut met = Vec::new();
            let walked =
                engine.walk(PartitionId(partition), Token(first)..=Token(last), &mut |token, record| {
                    let Met::Record { key, record } = record else { panic!("nothing is damaged") };
                    assert_eq!((token, record.len()), (Token::of(key), 20));
                    met.push((token, key.clone()));
                    if met.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                });
            walked.unwrap();
            met
        };
        let all = walk(1, 0, u64::MAX, usize::MAX);
        assert_eq!(all.len(), 100);
        assert!(all.is_sorted());
        assert_eq!(walk(1, 0, u64::MAX, 7), all[..7]);
        assert_eq!(walk(1, all[10].0.0, all[29].0.0, usize::MAX), all[10..30]);
        assert_eq!(walk(1, all[10].0.0 + 1, all[10].0.0 + 1, usize::MAX), []);
        assert_eq!(walk(9, 0, u64::MAX, usize::MAX), []);
    });
}

/// Seed 13741 of the simulator: a scan that was given up left its list of places, and a later one came to the same
/// cursor and went on by it.
#[test]
fn a_scan_meets_what_was_written_after_an_earlier_one_was_given_up() {
    on_each(|setup| {
        let engine = setup.open();
        for number in 0..30 {
            setup.put(&*engine, 1, &format!("k{number}"), "v");
        }
        let limit = ScanLimit { records_max: 10, bytes_max: usize::MAX };
        let given_up = engine.scan(PartitionId(1), None, limit).unwrap();
        let cursor = given_up.next.expect("there are three pages");
        let behind = |key: &String| Token::of(key.as_bytes()) > cursor.token;
        let later =
            (30..).map(|number| format!("k{number}")).find(behind).expect("half of all keys lie there");
        setup.put(&*engine, 1, &later, "v");
        let scanned = scan_all(&*engine, 1, limit).unwrap();
        assert!(scanned.iter().any(|(key, _)| key == later.as_bytes()), "it was there when the scan began");
        assert_eq!(scanned.len(), 31);
        // Whoever goes on with the first scan meets it, too, or does not; nothing else is missing.
        let rest = engine.scan(PartitionId(1), Some(&cursor), WHOLE).unwrap().records.len();
        assert!((20..=21).contains(&rest), "{rest}");
    });
}

#[test]
fn a_scan_meets_what_stays_while_others_come_and_go() {
    on_each(|setup| {
        let engine = setup.open();
        for number in 0..200 {
            write(&*engine, 0, format!("stays {number}").as_bytes(), Some(b"x".to_vec())).unwrap();
            write(&*engine, 0, format!("goes {number}").as_bytes(), Some(b"x".to_vec())).unwrap();
        }
        let mut met = BTreeMap::new();
        let mut after = None;
        let mut round = 0;
        loop {
            let limit = ScanLimit { records_max: 9, bytes_max: usize::MAX };
            let page = engine.scan(PartitionId(0), after.as_ref(), limit).unwrap();
            for (key, _) in page.records {
                *met.entry(key).or_insert(0) += 1;
            }
            write(&*engine, 0, format!("goes {round}").as_bytes(), None).unwrap();
            write(&*engine, 0, format!("comes {round}").as_bytes(), Some(b"y".to_vec())).unwrap();
            write(&*engine, 0, format!("stays {round}").as_bytes(), Some(b"z".to_vec())).unwrap();
            round += 1;
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert!(met.values().all(|&times| times == 1));
        assert_eq!(met.keys().filter(|key| key.starts_with(b"stays")).count(), 200);
    });
}

#[test]
fn a_dropped_partition_is_empty_and_takes_new_records() {
    on_each(|setup| {
        let engine = setup.open();
        for number in 0..50 {
            write(&*engine, number % 2, format!("k{number}").as_bytes(), Some(vec![0; 30])).unwrap();
        }
        engine.drop_partition(PartitionId(0)).unwrap();
        engine.drop_partition(PartitionId(77)).unwrap();
        assert_eq!(counted(&*engine), [(PartitionId(1), 25)]);
        assert_eq!(scan_all(&*engine, 0, WHOLE).unwrap(), []);
        assert_eq!(get(&*engine, 0, "k2"), None);
        setup.put(&*engine, 0, "k2", "new");
        assert_eq!(scan_all(&*engine, 0, WHOLE).unwrap().len(), 1);
        assert_eq!(scan_all(&*engine, 1, WHOLE).unwrap().len(), 25);
    });
}

#[test]
fn stats_count_live_records_and_their_bytes() {
    on_each(|setup| {
        let engine = setup.open();
        for number in 0..10 {
            setup.put(&*engine, 0, &format!("k{number}"), vec![0; 10]);
        }
        setup.put(&*engine, 0, "k1", vec![0; 20]);
        write(&*engine, 0, b"k2", None).unwrap();
        let stats = engine.stats();
        assert_eq!((stats.records, stats.live_bytes), (9, 9 * 2 + 8 * 10 + 20));
        setup.put(&*engine, 7, "other", "partition");
        let first = Held { partition: PartitionId(0), records: stats.records, bytes: stats.live_bytes };
        let second = Held { partition: PartitionId(7), records: 1, bytes: 14 };
        assert_eq!(engine.partitions(), [first, second]);
        engine.drop_partition(first.partition).unwrap();
        assert_eq!(engine.partitions(), [second]);
        assert!(stats.memory_bytes > 0);
        assert_eq!(stats.disk_bytes > 0, setup.is_persistent());
    });
}

#[test]
fn a_closed_engine_refuses_and_its_successor_has_everything() {
    on_each(|setup| {
        let engine = setup.open();
        for number in 0..100 {
            write(&*engine, number % 4, format!("k{number}").as_bytes(), Some(vec![number as u8; 40]))
                .unwrap();
        }
        engine.drop_partition(PartitionId(3)).unwrap();
        setup.wait(engine.close()).unwrap();
        assert_eq!(engine.get(PartitionId(0), Token::of(b"k0"), b"k0"), Err(StorageError::Closed));
        assert_eq!(write(&*engine, 0, b"k0", None), Err(StorageError::Closed));
        assert_eq!(engine.drop_partition(PartitionId(0)), Err(StorageError::Closed));
        assert!(engine.scan(PartitionId(0), None, WHOLE).is_err());
        if setup.is_persistent() {
            drop(engine);
            let engine = setup.open();
            let partitions: Vec<_> = (0..3).map(|id| (PartitionId(id), 25)).collect();
            assert_eq!(counted(&*engine), partitions);
            for number in 0..100 {
                let expected = (number % 4 != 3).then(|| vec![number as u8; 40]);
                assert_eq!(get(&*engine, number % 4, &format!("k{number}")), expected);
            }
        }
    });
}
