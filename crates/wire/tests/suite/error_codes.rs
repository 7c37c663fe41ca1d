//! Error codes and kinds of messages, held against each other and the reference.

use bytes::BytesMut;
use expect_test::expect;
use wire::ErrorCode;
use wire::messages::{Failure, Request, Response, decode_response, encode_response};

#[test]
fn numbers_and_names_are_unique_and_numbers_lead_back_to_their_codes() {
    for (position, code) in ErrorCode::ALL.iter().enumerate() {
        assert_eq!(ErrorCode::from_number(code.number()), Some(*code));
        for other in &ErrorCode::ALL[position + 1..] {
            assert!(code.number() < other.number(), "the table is sorted");
            assert_ne!(code.name(), other.name());
        }
    }
    assert_eq!(ErrorCode::from_number(0), None);
    assert_eq!(ErrorCode::from_number(u16::MAX), None);
}

#[test]
fn the_reference_describes_every_kind_of_message() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/wire.md");
    let document = std::fs::read_to_string(path).expect("docs/reference/wire.md exists");
    let (_, messages) = document.split_once("## Requests").expect("the reference lists the requests");
    let described: Vec<&str> = messages.lines().filter(|line| line.starts_with("| `0x")).collect();
    let kinds = Request::KINDS.iter().chain(Response::KINDS);
    let expected: Vec<String> = kinds.map(|(kind, name)| format!("| `{kind:#04x}` | {name} |")).collect();
    assert_eq!(described.len(), expected.len(), "one row a kind: {described:?}");
    for row in expected {
        assert!(described.iter().any(|line| line.starts_with(&row)), "no row {row}");
    }
}

#[test]
fn every_error_has_its_bytes() {
    let mut text = String::new();
    for code in ErrorCode::ALL {
        let mut body = BytesMut::new();
        encode_response(1, &Failure::new(*code, "").into(), &mut body);
        assert_eq!(decode_response(body.clone().freeze()), Ok((1, Failure::new(*code, "").into())));
        let bytes: Vec<String> = body.iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!("{}  {:>3} {}\n", bytes.join(" "), code.number(), code.name());
    }
    expect![[r#"
        ff 01 64 00 00 00  100 unknown-store
        ff 01 65 00 00 00  101 key-empty
        ff 01 66 00 00 00  102 key-too-long
        ff 01 67 00 00 00  103 value-too-large
        ff 01 68 00 00 00  104 too-many-keys
        ff 01 69 00 00 00  105 record-too-long
        ff 01 6b 00 00 00  107 read-only
        ff 01 6c 00 00 00  108 artifact-refused
        ff 01 6d 00 00 00  109 key-unfit
        ff 01 c8 00 00 00  200 too-many-siblings
        ff 01 c9 00 00 00  201 obsolete
        ff 01 ca 00 00 00  202 condition-failed
        ff 01 2c 01 00 00  300 stale-generation
        ff 01 2d 01 00 00  301 insufficient-replicas
        ff 01 2e 01 00 00  302 indeterminate
        ff 01 2f 01 00 00  303 overloaded
        ff 01 30 01 00 00  304 shutting-down
        ff 01 31 01 00 00  305 isolated
        ff 01 32 01 00 00  306 coordination-unavailable
        ff 01 33 01 00 00  307 coordination-unconfirmed
        ff 01 34 01 00 00  308 behind
        ff 01 35 01 00 00  309 not-replica
        ff 01 37 01 00 00  311 no-headmaster
        ff 01 90 01 00 00  400 disk-full
        ff 01 91 01 00 00  401 storage-failed
        ff 01 92 01 00 00  402 corrupt
        ff 01 93 01 00 00  403 refilling
        ff 01 94 01 00 00  404 artifact-not-here
        ff 01 f4 01 00 00  500 malformed
        ff 01 f5 01 00 00  501 unknown-request
        ff 01 f6 01 00 00  502 frame-too-long
        ff 01 f7 01 00 00  503 unsupported-version
        ff 01 f8 01 00 00  504 wrong-cluster
        ff 01 f9 01 00 00  505 duplicate-node
        ff 01 fa 01 00 00  506 too-many-connections
        ff 01 fb 01 00 00  507 unauthenticated
        ff 01 fc 01 00 00  508 foreign-origin
        ff 01 fd 01 00 00  509 forbidden
        ff 01 84 03 00 00  900 internal
    "#]]
    .assert_eq(&text);
}
