//! The messages of repair, byte by byte.

use bytes::Bytes;
use expect_test::expect;
use model::{Epoch, Generation, PartitionId, Token};
use protocol::antientropy::merkle::{Digest, Span};
use wire::ErrorCode;
use wire::messages::*;

use super::golden::{request, response};
use super::samples::*;

const SUM: Digest = Digest(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
const SPAN: Span = Span { bits: 10, prefix: 513 };

pub fn requests() -> Vec<u8> {
    let (store, generation, partition) = (store(), Generation(7), PartitionId(513));
    let key = Bytes::from_static(b"cart:1");
    let some = AntiEntropyControl {
        order: AntiEntropyOrder::Stop,
        store: Some("carts".to_owned()),
        partition: Some(partition),
    };
    let (a, b, c, d) = (store.clone(), store.clone(), store.clone(), store.clone());
    vec![
        request(
            AntiEntropyControl { order: AntiEntropyOrder::Start, store: None, partition: None },
            expect![[r#"
            09 ac 02 00 00 00                                ......
        "#]],
        ),
        request(
            some,
            expect![[r#"
            09 ac 02 01 01 05 63 61 72 74 73 01 81 04        ......carts...
        "#]],
        ),
        request(
            TreeSums { store, generation, sums: vec![(partition, Some((SUM, 14))), (PartitionId(2), None)] },
            expect![[r#"
                31 ac 02 05 63 61 72 74 73 07 02 81 04 01 10 0f  1...carts.......
                0e 0d 0c 0b 0a 09 08 07 06 05 04 03 02 01 0e 02  ................
                00                                               .
            "#]],
        ),
        request(
            TreeNodes { store: a, generation, spans: vec![(partition, (SPAN, 14))] },
            expect![[r#"
            32 ac 02 05 63 61 72 74 73 07 01 81 04 0a 81 04  2...carts.......
            0e                                               .
        "#]],
        ),
        request(
            KeyDigests { store: b, generation, spans: vec![(partition, SPAN)] },
            expect![[r#"
            33 ac 02 05 63 61 72 74 73 07 01 81 04 0a 81 04  3...carts.......
        "#]],
        ),
        request(
            RecordsGet { store: c, generation, keys: vec![key] },
            expect![[r#"
            34 ac 02 05 63 61 72 74 73 07 01 06 63 61 72 74  4...carts...cart
            3a 31                                            :1
        "#]],
        ),
        request(
            RecordsPage { store: d, generation, partition, from: Token(0x1122_3344_5566_7788) },
            expect![[r#"
                35 ac 02 05 63 61 72 74 73 07 81 04 88 77 66 55  5...carts....wfU
                44 33 22 11                                      D3".
            "#]],
        ),
    ]
}

pub fn responses() -> Vec<u8> {
    let (epoch, partition) = (Epoch(5), PartitionId(513));
    let key = Bytes::from_static(b"cart:1");
    vec![
        response(
            TreeSummed {
                standing: AnswererState { incarnation: 0x18f_0000_0000, adopted: Generation(7) },
                differing: vec![(partition, 14)],
                unready: vec![PartitionId(2)],
                incomplete: vec![PartitionId(3)],
            },
            expect![[r#"
                b6 01 80 80 80 80 f0 31 07 01 81 04 0e 01 02 01  .......1........
                03                                               .
            "#]],
        ),
        response(
            TreeNoded { sums: vec![Some(vec![SUM, Digest(0)]), None] },
            expect![[r#"
            b2 01 02 01 02 10 0f 0e 0d 0c 0b 0a 09 08 07 06  ................
            05 04 03 02 01 00 00 00 00 00 00 00 00 00 00 00  ................
            00 00 00 00 00 00                                ......
        "#]],
        ),
        response(
            KeyDigested { keys: vec![vec![(key.clone(), SUM)], vec![]] },
            expect![[r#"
            b3 01 02 01 06 63 61 72 74 3a 31 10 0f 0e 0d 0c  .....cart:1.....
            0b 0a 09 08 07 06 05 04 03 02 01 00              ............
        "#]],
        ),
        response(
            RecordsGot { epoch, sets: vec![Ok(single()), Err(ErrorCode::Corrupt)] },
            expect![[r#"
            b4 01 05 02 00 61 03 07 06 05 04 03 02 01 01 80  .....a..........
            80 80 80 f0 31 07 03 04 6d 69 6c 6b 01 92 01     ....1...milk...
        "#]],
        ),
        response(
            RecordsPaged { epoch, records: vec![(key, single())], next: Some(Token(0x1122_3344_5566_7788)) },
            expect![[r#"
                b5 01 05 01 06 63 61 72 74 3a 31 61 03 07 06 05  .....cart:1a....
                04 03 02 01 01 80 80 80 80 f0 31 07 03 04 6d 69  ..........1...mi
                6c 6b 01 88 77 66 55 44 33 22 11                 lk..wfUD3".
            "#]],
        ),
        response(
            RecordsPaged { epoch, records: vec![], next: None },
            expect![[r#"
            b5 01 05 00 00                                   .....
        "#]],
        ),
    ]
}
