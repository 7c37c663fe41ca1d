//! Orders, plans and the office, byte by byte.

use bytes::Bytes;
use expect_test::expect;
use wire::messages::*;

use super::golden::{request, response};

fn json() -> Bytes {
    Bytes::from_static(b"{}")
}

pub fn requests() -> Vec<u8> {
    vec![
        request(
            OrderGive { json: json(), by: "me".to_owned(), wait_ms: 500 },
            expect![[r#"
            0a ac 02 02 7b 7d 02 6d 65 f4 03                 ....{}.me..
        "#]],
        ),
        request(
            OrderAnswer { number: 300, wait_ms: 500 },
            expect![[r#"
            0c ac 02 ac 02 f4 03                             .......
        "#]],
        ),
        request(
            PlanGet { number: 7, all: true, since: 3, wait_ms: 500 },
            expect![[r#"
            0d ac 02 07 01 03 f4 03                          ........
        "#]],
        ),
        request(
            OfficeGet {},
            expect![[r#"
            0e ac 02                                         ...
        "#]],
        ),
    ]
}

pub fn responses() -> Vec<u8> {
    vec![
        response(
            OrderTold { number: 300, json: json(), cluster: Some(json()) },
            expect![[r#"
            8a 01 ac 02 02 7b 7d 01 02 7b 7d                 .....{}..{}
        "#]],
        ),
        response(
            PlanTold { json: json() },
            expect![[r#"
            8b 01 02 7b 7d                                   ...{}
        "#]],
        ),
        response(
            OfficeTold { json: json() },
            expect![[r#"
            8c 01 02 7b 7d                                   ...{}
        "#]],
        ),
    ]
}
