//! The stored record: its bytes, and the fast path that reads the winner without building the set.

use bytes::{Bytes, BytesMut};
use expect_test::{Expect, expect};
use model::{Actor, Dot, NodeId, Timestamp, Value, Vector, Version, VersionSet, WallMillis};
use wire::versions::{
    Record, decode_record, decode_set, encode_record, encode_set, peek_winner, single_head,
};

use super::samples::*;

fn record(own: Option<Actor>, set: &VersionSet) -> Bytes {
    let mut out = BytesMut::new();
    encode_record(own, set, &mut out);
    out.freeze()
}

fn check(own: Option<Actor>, set: VersionSet, expected: Expect) {
    let bytes = record(own, &set);
    expected.assert_eq(&hex(&bytes));
    assert_eq!(decode_record(&bytes), Ok(Record { own, set }));
}

#[test]
fn a_head_and_a_value_are_the_record_of_one_value() {
    let numbers = [1, 127, 128, 16_383, 16_384, 1_763_754_000_123, u64::MAX];
    for (at, &number) in numbers.iter().enumerate() {
        let actor = Actor { node: NodeId(number as u32), incarnation: number, birth: numbers[at / 2] };
        let (dot, timestamp) = (Dot { actor, count: number }, Timestamp(!number));
        for length in [0, 1, 127, 128, 1024, 20_000] {
            let value = Bytes::from(vec![7; length]);
            let vector = Vector::from_entries([(actor, dot.count)]);
            let version = Version { dot, timestamp, expires: None, value: Value::Present(value.clone()) };
            let set = VersionSet::from_parts(vector, [version].into_iter().collect()).unwrap();
            let head = single_head(dot, timestamp, length);
            assert!(!head.spilled());
            assert_eq!([&*head, &*value].concat(), record(Some(actor), &set));
        }
    }
}

#[test]
fn a_single_version_is_a_dozen_bytes_of_facts_before_its_value() {
    check(
        Some(actor(1, 7)),
        single(),
        expect![[r#"
        71 03 07 06 05 04 03 02 01 01 80 80 80 80 f0 31  q..............1
        07 03 04 6d 69 6c 6b                             ...milk
    "#]],
    );
    check(
        None,
        single(),
        expect![[r#"
        61 03 07 06 05 04 03 02 01 01 80 80 80 80 f0 31  a..............1
        07 03 04 6d 69 6c 6b                             ...milk
    "#]],
    );
}

#[test]
fn a_single_version_may_expire_or_be_deleted() {
    check(
        Some(actor(1, 7)),
        single_expiring(),
        expect![[r#"
        f1 03 07 06 05 04 03 02 01 80 d0 95 ff bc 31 01  ..............1.
        80 80 80 80 f0 31 07 03 04 6d 69 6c 6b           .....1...milk
    "#]],
    );
    check(
        Some(actor(1, 7)),
        single_tombstone(),
        expect![[r#"
        31 03 07 06 05 04 03 02 01 01 80 80 80 80 f0 31  1..............1
        07 03                                            ..
    "#]],
    );
}

#[test]
fn siblings_name_their_actors_by_position_and_keep_values_last() {
    check(
        Some(actor(2, 1)),
        siblings(),
        expect![[r#"
        11 01 02 01 80 80 80 80 f0 31 07 03 02 80 80 80  .........1......
        80 f0 31 01 02 03 00 02 02 07 06 05 04 03 02 01  ..1.............
        01 04 01 01 01 07 06 05 04 03 02 01 03 80 d0 95  ................
        ff bc 31 04 01 02 02 07 06 05 04 03 02 01 00 6d  ..1............m
        69 6c 6b 65 67 67 73                             ilkeggs
    "#]],
    );
    check(
        None,
        siblings(),
        expect![[r#"
        01 02 01 80 80 80 80 f0 31 07 03 02 80 80 80 80  ........1.......
        f0 31 01 02 03 00 02 02 07 06 05 04 03 02 01 01  .1..............
        04 01 01 01 07 06 05 04 03 02 01 03 80 d0 95 ff  ................
        bc 31 04 01 02 02 07 06 05 04 03 02 01 00 6d 69  .1............mi
        6c 6b 65 67 67 73                                lkeggs
    "#]],
    );
}

#[test]
fn a_key_that_lost_all_its_versions_keeps_what_it_has_seen() {
    check(
        None,
        VersionSet::default(),
        expect![[r#"
        01 00 00                                         ...
    "#]],
    );
    check(
        Some(actor(1, 7)),
        set_of(&[(actor(1, 7), 3)], vec![]),
        expect![[r#"
        11 00 01 01 80 80 80 80 f0 31 07 03 00           .........1...
    "#]],
    );
}

#[test]
fn one_version_that_is_not_its_actors_last_takes_the_general_form() {
    check(
        None,
        set_of(&[(actor(1, 7), 3)], vec![version(dot(1, 7, 2), Some("milk"))]),
        expect![[r#"
        01 01 01 80 80 80 80 f0 31 07 03 01 00 02 02 07  ........1.......
        06 05 04 03 02 01 01 04 6d 69 6c 6b              ........milk
    "#]],
    );
}

#[test]
#[should_panic(expected = "a node stamps under an actor that the vector counts")]
fn a_record_cannot_name_a_stamping_actor_that_its_vector_lacks() {
    record(Some(actor(9, 9)), &single());
}

#[test]
fn a_set_is_a_record_without_own_and_a_record_with_own_is_no_set() {
    let mut set = BytesMut::new();
    encode_set(&siblings(), &mut set);
    assert_eq!(set, record(None, &siblings()));
    assert!(decode_set(&record(Some(actor(2, 1)), &siblings())).is_err());
    assert!(decode_set(&record(Some(actor(1, 7)), &single())).is_err());
}

#[test]
fn the_winner_is_found_without_building_the_set() {
    let early = WallMillis(1_600_000_000_000);
    let late = WallMillis(1_800_000_000_000);
    let milk = Some(Bytes::from_static(b"milk"));
    assert_eq!(peek_winner(&record(None, &single()), early), Ok(milk.clone()));
    assert_eq!(peek_winner(&record(None, &single_expiring()), early), Ok(milk.clone()));
    assert_eq!(peek_winner(&record(None, &single_expiring()), late), Ok(None));
    assert_eq!(peek_winner(&record(None, &single_tombstone()), early), Ok(None));
    assert_eq!(peek_winner(&record(None, &VersionSet::default()), early), Ok(None));
    // Equal timestamps: the tombstone n2.2 and "milk" n1.2 tie, and the greater dot wins.
    assert_eq!(peek_winner(&record(None, &siblings()), early), Ok(None));
    let eggs_last = set_of(
        &[(actor(1, 7), 3), (actor(2, 1), 9)],
        vec![version(dot(1, 7, 3), Some("milk")), version(dot(2, 1, 9), Some("eggs"))],
    );
    let eggs = Some(Bytes::from_static(b"eggs"));
    assert_eq!(peek_winner(&record(Some(actor(1, 7)), &eggs_last), early), Ok(eggs));
}
