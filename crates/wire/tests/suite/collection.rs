//! The messages of collection rounds, byte by byte.

use bytes::Bytes;
use expect_test::expect;
use model::{Epoch, Generation, Timestamp};
use protocol::collection::RoundId;
use wire::messages::*;

use super::golden::{request, response};
use super::samples::*;

const ROUND: RoundId = RoundId(0x1122_3344_5566_7788);

fn place() -> CollectPlace {
    (store(), Bytes::from_static(b"cart:1"))
}

fn keys() -> Vec<Collectable> {
    vec![(store(), (Bytes::from_static(b"cart:1"), single_tombstone()))]
}

pub fn requests() -> Vec<u8> {
    vec![
        request(
            CollectCandidates { after: Some(place()), keys_max: 512, bytes_max: 65536 },
            expect![[r#"
            38 ac 02 01 05 63 61 72 74 73 06 63 61 72 74 3a  8....carts.cart:
            31 80 04 80 80 04                                1.....
        "#]],
        ),
        request(
            CollectConfirm { round: ROUND, generation: Generation(7), keys: keys() },
            expect![[r#"
            39 ac 02 88 77 66 55 44 33 22 11 07 01 05 63 61  9...wfUD3"....ca
            72 74 73 06 63 61 72 74 3a 31 21 03 07 06 05 04  rts.cart:1!.....
            03 02 01 01 80 80 80 80 f0 31 07 03              .........1..
        "#]],
        ),
        request(
            CollectFence { round: ROUND, epoch: Epoch(9), floor: Timestamp(1 << 16) },
            expect![[r#"
            3a ac 02 88 77 66 55 44 33 22 11 09 00 00 01 00  :...wfUD3"......
            00 00 00 00                                      ....
        "#]],
        ),
        request(
            Collect { keys: keys() },
            expect![[r#"
            3b ac 02 01 05 63 61 72 74 73 06 63 61 72 74 3a  ;....carts.cart:
            31 21 03 07 06 05 04 03 02 01 01 80 80 80 80 f0  1!..............
            31 07 03                                         1..
        "#]],
        ),
        request(
            CollectRelease { round: ROUND },
            expect![[r#"
            3c ac 02 88 77 66 55 44 33 22 11                 <...wfUD3".
        "#]],
        ),
    ]
}

pub fn responses() -> Vec<u8> {
    vec![
        response(
            CollectCandidated { keys: keys(), next: None },
            expect![[r#"
            b8 01 01 05 63 61 72 74 73 06 63 61 72 74 3a 31  ....carts.cart:1
            21 03 07 06 05 04 03 02 01 01 80 80 80 80 f0 31  !..............1
            07 03 00                                         ...
        "#]],
        ),
        response(
            CollectConfirmed { epoch: Epoch(8), left_out: vec![300] },
            expect![[r#"
            b9 01 08 01 ac 02                                ......
        "#]],
        ),
        response(
            CollectFenced {},
            expect![[r#"
            ba 01                                            ..
        "#]],
        ),
        response(
            Collected { records: 300 },
            expect![[r#"
            bb 01 ac 02                                      ....
        "#]],
        ),
        response(
            StaleEpoch { epoch: Epoch(9) },
            expect![[r#"
            bc 01 09                                         ...
        "#]],
        ),
        response(
            CollectReleased {},
            expect![[r#"
            bd 01                                            ..
        "#]],
        ),
    ]
}
