//! Every message, byte by byte. A change here is a change of the protocol: it needs a new version.

use bytes::{Bytes, BytesMut};
use expect_test::{Expect, expect};
use model::{Epoch, Generation, NodeId, PartitionId, Token, WallMillis};
use protocol::report::Parts;
use smallvec::smallvec;
use wire::ErrorCode;
use wire::messages::*;

use super::samples::*;

pub(super) fn request(request: impl Into<Request>, expected: Expect) -> u8 {
    let request = request.into();
    let mut body = BytesMut::new();
    encode_request(300, &request, &mut body);
    expected.assert_eq(&hex(&body));
    assert_eq!(decode_request(body.freeze()), Ok((300, request.clone())));
    request.kind()
}

pub(super) fn response(response: impl Into<Response>, expected: Expect) -> u8 {
    let response = response.into();
    let mut body = BytesMut::new();
    encode_response(1, &response, &mut body);
    expected.assert_eq(&hex(&body));
    assert_eq!(decode_response(body.freeze()), Ok((1, response.clone())));
    response.kind()
}

fn assert_all_covered(mut kinds: Vec<u8>, all: &[(u8, &str)]) {
    kinds.sort_unstable();
    kinds.dedup();
    let mut all: Vec<u8> = all.iter().map(|(kind, _)| *kind).collect();
    all.sort_unstable();
    assert_eq!(kinds, all, "every kind has a golden test");
}

#[test]
fn requests_are_pinned() {
    let mut kinds = session_requests();
    kinds.extend(coordinated_requests());
    kinds.extend(multi_requests());
    kinds.extend(replica_requests());
    kinds.extend(scan_requests());
    kinds.extend(super::antientropy::requests());
    kinds.extend(super::collection::requests());
    kinds.extend(super::orders::requests());
    kinds.extend(super::artifacts::requests());
    kinds.extend(account_requests());
    kinds.push(request(
        Gossip { from: NodeId(2), generation: Generation(7), rows: vec![row(), row()] },
        expect![[r#"
            30 ac 02 02 07 02 03 80 80 80 80 f0 31 f4 03 01  0...........1...
            07 0c e8 07 80 80 80 80 04 05 03 80 80 80 80 f0  ................
            31 f4 03 01 07 0c e8 07 80 80 80 80 04 05        1.............
        "#]],
    ));
    assert_all_covered(kinds, Request::KINDS);
}

fn session_requests() -> Vec<u8> {
    let client = Peer::Client { name: "cli".to_owned() };
    let node = Peer::Node { id: NodeId(2), incarnation: 0x18f_0000_0000 };
    vec![
        request(
            Hello { version_min: 1, version_max: 2, cluster: None, peer: client },
            expect![[r#"
            01 ac 02 01 02 00 00 03 63 6c 69                 ........cli
        "#]],
        ),
        request(
            Hello { version_min: 1, version_max: 1, cluster: Some("dev".to_owned()), peer: node },
            expect![[r#"
                01 ac 02 01 01 01 03 64 65 76 01 02 80 80 80 80  .......dev......
                f0 31                                            .1
            "#]],
        ),
        request(
            Ping {},
            expect![[r#"
            02 ac 02                                         ...
        "#]],
        ),
        request(
            ClusterGet {},
            expect![[r#"
            03 ac 02                                         ...
        "#]],
        ),
        request(
            Authenticate { user: "shop".to_owned(), secret: SecretText("tontine_x".to_owned()) },
            expect![[r#"
                0f ac 02 04 73 68 6f 70 09 74 6f 6e 74 69 6e 65  ....shop.tontine
                5f 78                                            _x
            "#]],
        ),
        request(
            ReportGet { parts: Parts::STATUS | Parts::ARTIFACTS },
            expect![[r#"
            04 ac 02 11                                      ....
        "#]],
        ),
    ]
}

fn account_requests() -> Vec<u8> {
    vec![
        request(
            EventsGet { run: 9, after: 300, count_max: 100, wait_ms: 1000 },
            expect![[r#"
            06 ac 02 09 ac 02 64 e8 07                       ......d..
        "#]],
        ),
        request(
            MetricsGet {},
            expect![[r#"
            07 ac 02                                         ...
        "#]],
        ),
    ]
}

fn row() -> protocol::gossip::Row {
    protocol::gossip::Row {
        node: NodeId(3),
        incarnation: 0x18f_0000_0000,
        heartbeat: 500,
        left: true,
        generation: Generation(7),
        epoch: 12,
        load: protocol::gossip::GossipLoad { operations_per_second: 1000, data_bytes: 1 << 30, links: 5 },
    }
}

fn coordinated_requests() -> Vec<u8> {
    let key = Bytes::from_static(b"cart:1");
    let (store, generation, options) = (store(), Generation(7), options());
    let put = Put {
        store: store.clone(),
        generation,
        options: options.clone(),
        key: key.clone(),
        context: None,
        expires: None,
        condition: Condition::None,
        value: Bytes::from_static(b"milk"),
    };
    let conditional = Put {
        context: Some(context()),
        expires: Some(WallMillis(1_700_000_000_000)),
        condition: Condition::IfCurrent,
        options: RequestOptions::default(),
        ..put.clone()
    };
    let delete = Delete {
        store: store.clone(),
        generation,
        options: options.clone(),
        key: key.clone(),
        context: Some(single().context()),
        condition: Condition::IfPresent,
    };
    vec![
        request(
            Get { store, generation, options, key },
            expect![[r#"
            10 ac 02 05 63 61 72 74 73 07 01 02 01 03 01 01  ....carts.......
            f4 03 06 63 61 72 74 3a 31                       ...cart:1
        "#]],
        ),
        request(
            put,
            expect![[r#"
            11 ac 02 05 63 61 72 74 73 07 01 02 01 03 01 01  ....carts.......
            f4 03 06 63 61 72 74 3a 31 00 00 00 04 6d 69 6c  ...cart:1....mil
            6b                                               k
        "#]],
        ),
        request(
            conditional,
            expect![[r#"
            11 ac 02 05 63 61 72 74 73 07 00 00 00 00 06 63  ....carts......c
            61 72 74 3a 31 01 02 01 80 80 80 80 f0 31 07 03  art:1........1..
            02 80 80 80 80 f0 31 01 02 02 07 06 05 04 03 02  ......1.........
            01 01 80 d0 95 ff bc 31 03 04 6d 69 6c 6b        .......1..milk
        "#]],
        ),
        request(
            delete,
            expect![[r#"
            12 ac 02 05 63 61 72 74 73 07 01 02 01 03 01 01  ....carts.......
            f4 03 06 63 61 72 74 3a 31 01 01 01 80 80 80 80  ...cart:1.......
            f0 31 07 03 03 07 06 05 04 03 02 01 02           .1...........
        "#]],
        ),
    ]
}

fn multi_requests() -> Vec<u8> {
    let (store, generation) = (store(), Generation(7));
    let options = RequestOptions { deadline_ms: 500, ..RequestOptions::default() };
    let entry = |key: &'static str, condition| PutEntry {
        key: Bytes::from_static(key.as_bytes()),
        context: None,
        expires: None,
        condition,
        value: Bytes::from_static(b"v"),
    };
    let delete = |key: &'static str, condition| DeleteEntry {
        key: Bytes::from_static(key.as_bytes()),
        context: None,
        condition,
    };
    vec![
        request(
            MultiGet {
                store: store.clone(),
                generation,
                options: options.clone(),
                keys: vec![Bytes::from_static(b"a"), Bytes::from_static(b"bc")],
            },
            expect![[r#"
                13 ac 02 05 63 61 72 74 73 07 00 00 00 f4 03 02  ....carts.......
                01 61 02 62 63                                   .a.bc
            "#]],
        ),
        request(
            MultiPut {
                store: store.clone(),
                generation,
                options: options.clone(),
                entries: vec![entry("a", Condition::None), entry("bc", Condition::IfAbsent)],
            },
            expect![[r#"
                14 ac 02 05 63 61 72 74 73 07 00 00 00 f4 03 02  ....carts.......
                01 61 00 00 00 01 76 02 62 63 00 00 01 01 76     .a....v.bc....v
            "#]],
        ),
        request(
            MultiDelete {
                store,
                generation,
                options,
                entries: vec![delete("a", Condition::None), delete("bc", Condition::IfCurrent)],
            },
            expect![[r#"
                15 ac 02 05 63 61 72 74 73 07 00 00 00 f4 03 02  ....carts.......
                01 61 00 00 02 62 63 00 03                       .a...bc..
            "#]],
        ),
    ]
}

fn replica_requests() -> Vec<u8> {
    let (store, generation) = (store(), Generation(7));
    let key = Bytes::from_static(b"cart:1");
    let merge = ReplicaMerge {
        since: Generation(6),
        store: store.clone(),
        generation,
        epoch: Epoch(9),
        hint_for: None,
        entries: smallvec![(key.clone(), single())],
    };
    let hint = ReplicaMerge {
        hint_for: Some(NodeId(3)),
        entries: smallvec![
            (key.clone(), siblings()),
            (Bytes::from_static(b"b"), single_tombstone()),
            (Bytes::from_static(b"c"), single_expiring()),
        ],
        ..merge.clone()
    };
    vec![
        request(
            merge,
            expect![[r#"
            24 ac 02 06 05 63 61 72 74 73 07 09 00 01 06 63  $....carts.....c
            61 72 74 3a 31 61 03 07 06 05 04 03 02 01 01 80  art:1a..........
            80 80 80 f0 31 07 03 04 6d 69 6c 6b              ....1...milk
        "#]],
        ),
        request(
            ReplicaGet {
                terms: Terms { since: Generation(6), role: Role::StandIn },
                store: store.clone(),
                generation,
                keys: smallvec![key.clone()],
            },
            expect![[r#"
                23 ac 02 06 01 05 63 61 72 74 73 07 01 06 63 61  #.....carts...ca
                72 74 3a 31                                      rt:1
            "#]],
        ),
        request(
            hint,
            expect![[r#"
                24 ac 02 06 05 63 61 72 74 73 07 09 01 03 03 06  $....carts......
                63 61 72 74 3a 31 01 02 01 80 80 80 80 f0 31 07  cart:1........1.
                03 02 80 80 80 80 f0 31 01 02 03 00 02 02 07 06  .......1........
                05 04 03 02 01 01 04 01 01 01 07 06 05 04 03 02  ................
                01 03 80 d0 95 ff bc 31 04 01 02 02 07 06 05 04  .......1........
                03 02 01 00 6d 69 6c 6b 65 67 67 73 01 62 21 03  ....milkeggs.b!.
                07 06 05 04 03 02 01 01 80 80 80 80 f0 31 07 03  .............1..
                01 63 e1 03 07 06 05 04 03 02 01 80 d0 95 ff bc  .c..............
                31 01 80 80 80 80 f0 31 07 03 04 6d 69 6c 6b     1......1...milk
            "#]],
        ),
    ]
}

fn scan_requests() -> Vec<u8> {
    let (store, generation) = (store(), Generation(7));
    let key = Bytes::from_static(b"cart:1");
    let scan = Scan {
        since: Generation(6),
        store,
        generation,
        partition: PartitionId(513),
        after: None,
        records_max: 100,
        bytes_max: 1 << 20,
    };
    let onward = Scan { after: Some((Token(0x1122_3344_5566_7788), key)), ..scan.clone() };
    vec![
        request(
            scan,
            expect![[r#"
            25 ac 02 06 05 63 61 72 74 73 07 81 04 00 64 80  %....carts....d.
            80 40                                            .@
        "#]],
        ),
        request(
            onward,
            expect![[r#"
                25 ac 02 06 05 63 61 72 74 73 07 81 04 01 88 77  %....carts.....w
                66 55 44 33 22 11 06 63 61 72 74 3a 31 64 80 80  fUD3"..cart:1d..
                40                                               @
            "#]],
        ),
    ]
}

#[test]
fn responses_are_pinned() {
    let mut kinds = session_responses();
    kinds.extend(coordinated_responses());
    kinds.extend(replica_responses());
    kinds.extend(super::antientropy::responses());
    kinds.extend(super::collection::responses());
    kinds.extend(super::orders::responses());
    kinds.extend(super::artifacts::responses());
    let json = Bytes::from_static(b"{}");
    kinds.extend([
        response(
            EventsDocument { json: json.clone() },
            expect![[r#"
            86 01 02 7b 7d                                   ...{}
        "#]],
        ),
        response(
            MetricsText { text: Bytes::from_static(b"a 1") },
            expect![[r#"
            87 01 03 61 20 31                                ...a.1
        "#]],
        ),
        response(
            Gossiped { rows: vec![row()], cluster: None },
            expect![[r#"
            b0 01 01 03 80 80 80 80 f0 31 f4 03 01 07 0c e8  .........1......
            07 80 80 80 80 04 05 00                          ........
        "#]],
        ),
        response(
            Gossiped { rows: Vec::new(), cluster: Some(json) },
            expect![[r#"
            b0 01 00 01 02 7b 7d                             .....{}
        "#]],
        ),
    ]);
    assert_all_covered(kinds, Response::KINDS);
}

fn session_responses() -> Vec<u8> {
    let welcome = Welcome {
        version: 1,
        cluster: "dev".to_owned(),
        node: NodeId(2),
        generation: Generation(7),
        key_bytes_max: 4096,
        frame_bytes_max: 64 << 20,
    };
    let json = Bytes::from_static(b"{}");
    vec![
        response(
            welcome,
            expect![[r#"
            81 01 01 03 64 65 76 02 07 80 20 80 80 80 20     ....dev........
        "#]],
        ),
        response(
            Pong {},
            expect![[r#"
            82 01                                            ..
        "#]],
        ),
        response(
            ClusterDocument { json: json.clone() },
            expect![[r#"
            83 01 02 7b 7d                                   ...{}
        "#]],
        ),
        response(
            ReportGot { json },
            expect![[r#"
            84 01 02 7b 7d                                   ...{}
        "#]],
        ),
        response(
            Failure::new(ErrorCode::UnknownStore, "store carts"),
            expect![[r#"
            ff 01 64 00 0b 73 74 6f 72 65 20 63 61 72 74 73  ..d..store.carts
            00                                               .
        "#]],
        ),
        response(
            Failure {
                cluster: Some(Bytes::from_static(b"{}")),
                ..Failure::new(ErrorCode::StaleGeneration, "")
            },
            expect![[r#"
                ff 01 2c 01 00 01 02 7b 7d                       ..,....{}
            "#]],
        ),
    ]
}

fn coordinated_responses() -> Vec<u8> {
    let written = Written { dot: dot(1, 7, 3), acks: 2, sloppy: true, context: single().context() };
    let failure = Failure::new(ErrorCode::Indeterminate, "1 of 2");
    vec![
        response(
            Got { replicas_answered: 2, sloppy: false, set: single() },
            expect![[r#"
            90 01 02 00 61 03 07 06 05 04 03 02 01 01 80 80  ....a...........
            80 80 f0 31 07 03 04 6d 69 6c 6b                 ...1...milk
        "#]],
        ),
        response(
            Got { replicas_answered: 3, sloppy: true, set: Default::default() },
            expect![[r#"
            90 01 03 01 01 00 00                             .......
        "#]],
        ),
        response(
            written.clone(),
            expect![[r#"
            91 01 01 80 80 80 80 f0 31 07 03 02 01 01 01 80  ........1.......
            80 80 80 f0 31 07 03 03 07 06 05 04 03 02 01     ....1..........
        "#]],
        ),
        response(
            MultiGot { results: vec![Ok(siblings()), Err(failure.clone())] },
            expect![[r#"
            93 01 02 00 01 02 01 80 80 80 80 f0 31 07 03 02  ............1...
            80 80 80 80 f0 31 01 02 03 00 02 02 07 06 05 04  .....1..........
            03 02 01 01 04 01 01 01 07 06 05 04 03 02 01 03  ................
            80 d0 95 ff bc 31 04 01 02 02 07 06 05 04 03 02  .....1..........
            01 00 6d 69 6c 6b 65 67 67 73 01 2e 01 06 31 20  ..milkeggs....1.
            6f 66 20 32 00                                   of.2.
        "#]],
        ),
        response(
            MultiWritten { results: vec![Ok(written), Err(failure)] },
            expect![[r#"
            94 01 02 00 01 80 80 80 80 f0 31 07 03 02 01 01  ..........1.....
            01 80 80 80 80 f0 31 07 03 03 07 06 05 04 03 02  ......1.........
            01 01 2e 01 06 31 20 6f 66 20 32 00              .....1.of.2.
        "#]],
        ),
    ]
}

fn replica_responses() -> Vec<u8> {
    let next = (Token(0x1122_3344_5566_7788), Bytes::from_static(b"cart:1"));
    vec![
        response(
            ReplicaGot {
                generation: Generation(7),
                epoch: Epoch(9),
                sets: smallvec![Ok(single()), Ok(Default::default()), Err(ErrorCode::Corrupt)],
            },
            expect![[r#"
                a3 01 07 09 03 00 61 03 07 06 05 04 03 02 01 01  ......a.........
                80 80 80 80 f0 31 07 03 04 6d 69 6c 6b 00 01 00  .....1...milk...
                00 01 92 01                                      ....
            "#]],
        ),
        response(
            ReplicaMerged {
                generation: Generation(7),
                outcomes: smallvec![
                    Ok(Merged::Changed),
                    Ok(Merged::Known),
                    Ok(Merged::Superseded),
                    Err(ErrorCode::DiskFull),
                ],
            },
            expect![[r#"
                a4 01 07 04 00 00 00 01 00 02 01 90 01           .............
            "#]],
        ),
        response(
            Scanned { records: vec![(next.1.clone(), single())], next: Some(next), damaged: 3 },
            expect![[r#"
            a2 01 01 06 63 61 72 74 3a 31 61 03 07 06 05 04  ....cart:1a.....
            03 02 01 01 80 80 80 80 f0 31 07 03 04 6d 69 6c  .........1...mil
            6b 01 88 77 66 55 44 33 22 11 06 63 61 72 74 3a  k..wfUD3"..cart:
            31 03                                            1.
        "#]],
        ),
        response(
            Scanned { records: vec![], next: None, damaged: 0 },
            expect![[r#"
            a2 01 00 00 00                                   .....
        "#]],
        ),
    ]
}
