//! Bytes from nowhere: no decoder panics, asks for much memory, or reads one value from two encodings.

use bytes::{Bytes, BytesMut};
use model::WallMillis;
use proptest::collection::vec;
use proptest::prelude::*;
use wire::messages::*;
use wire::versions::*;
use wire::{DecodeError, ErrorCode};

use super::{allocations, strategies};

/// Most bytes that decoding may allocate for each byte of input. The worst is a page of empty sets under empty
/// keys: 4 bytes each on the wire, one element of a list in memory.
const AMPLIFICATION_MAX: usize = 80;

/// Decodes as everything; whatever succeeds must encode to the very same bytes.
fn decode_all(bytes: &Bytes) {
    let mut again = BytesMut::new();
    let allocated = allocations::during(|| {
        if let Ok((id, request)) = decode_request(bytes.clone()) {
            encode_request(id, &request, &mut again);
            assert_eq!(again.split(), bytes);
        }
    });
    // Encoding again reserves by its own upper bound.
    assert!(
        allocated.bytes <= 2 * AMPLIFICATION_MAX * bytes.len() + 512,
        "{allocated:?} for {}",
        bytes.len()
    );
    if let Ok((id, response)) = decode_response(bytes.clone()) {
        encode_response(id, &response, &mut again);
        assert_eq!(again.split(), bytes);
    }
    if let Ok(Record { own, set }) = decode_record(bytes) {
        encode_record(own, &set, &mut again);
        assert_eq!(again.split(), bytes);
        let now = WallMillis(1 << 40);
        let winner = set.winner().and_then(|version| version.live(now)).cloned();
        assert_eq!(peek_winner(bytes, now), Ok(winner));
    }
    if let Ok(context) = decode_context(bytes) {
        encode_context(&context, &mut again);
        assert_eq!(again.split(), bytes);
    }
    let _ = (peek_winner(bytes, WallMillis(0)), peek_expiry(bytes));
}

/// Bytes that get past the first checks: a known kind or header, then small numbers.
fn plausible() -> impl Strategy<Value = Bytes> {
    let kinds: Vec<u8> = Request::KINDS.iter().chain(Response::KINDS).map(|(kind, _)| *kind).collect();
    let first = prop_oneof![prop::sample::select(kinds), any::<u8>().prop_map(|byte| byte & 0xf0 | 1)];
    (first, vec(prop_oneof![0..6_u8, any::<u8>()], 0..200)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        Bytes::from(rest)
    })
}

fn encoded() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        strategies::request().prop_map(|request| {
            let mut body = BytesMut::new();
            encode_request(9, &request, &mut body);
            body.freeze()
        }),
        strategies::response().prop_map(|response| {
            let mut body = BytesMut::new();
            encode_response(9, &response, &mut body);
            body.freeze()
        }),
        strategies::record().prop_map(|(own, set)| {
            let mut bytes = BytesMut::new();
            encode_record(own, &set, &mut bytes);
            bytes.freeze()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6_000))]

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..300)) {
        decode_all(&Bytes::from(bytes));
    }

    #[test]
    fn plausible_bytes_do_no_harm(bytes in plausible()) {
        decode_all(&bytes);
    }

    #[test]
    fn damaged_messages_do_no_harm(
        bytes in encoded(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = bytes.to_vec();
        for (index, byte) in damage {
            let position = index.index(bytes.len());
            bytes[position] = byte;
        }
        decode_all(&Bytes::from(bytes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_part_of_a_request_is_a_request(request in strategies::request(), tail in any::<u8>()) {
        let mut body = BytesMut::new();
        encode_request(9, &request, &mut body);
        let whole = body.clone().freeze();
        for end in 0..whole.len() {
            prop_assert!(decode_request(whole.slice(..end)).is_err(), "cut at {}", end);
        }
        body.extend_from_slice(&[tail]);
        prop_assert_eq!(decode_request(body.freeze()), Err(DecodeError::Trailing { bytes: 1 }));
    }

    #[test]
    fn no_part_of_a_response_is_a_response(response in strategies::response(), tail in any::<u8>()) {
        let mut body = BytesMut::new();
        encode_response(9, &response, &mut body);
        let whole = body.clone().freeze();
        for end in 0..whole.len() {
            prop_assert!(decode_response(whole.slice(..end)).is_err(), "cut at {}", end);
        }
        body.extend_from_slice(&[tail]);
        prop_assert_eq!(decode_response(body.freeze()), Err(DecodeError::Trailing { bytes: 1 }));
    }

    #[test]
    fn no_part_of_a_record_is_a_record((own, set) in strategies::record(), tail in any::<u8>()) {
        let mut bytes = BytesMut::new();
        encode_record(own, &set, &mut bytes);
        let whole = bytes.clone().freeze();
        for end in 0..whole.len() {
            prop_assert!(decode_record(&whole.slice(..end)).is_err(), "cut at {}", end);
            prop_assert!(peek_winner(&whole.slice(..end), WallMillis(0)).is_err(), "cut at {}", end);
        }
        bytes.extend_from_slice(&[tail]);
        let longer = bytes.freeze();
        prop_assert_eq!(decode_record(&longer), Err(DecodeError::Trailing { bytes: 1 }));
        prop_assert_eq!(peek_winner(&longer, WallMillis(0)), Err(DecodeError::Trailing { bytes: 1 }));
    }
}

fn decode(bytes: &'static [u8]) -> DecodeError {
    decode_request(Bytes::from_static(bytes)).unwrap_err()
}

#[test]
fn refusals_say_what_is_wrong_and_which_error_to_answer() {
    assert_eq!(decode(b""), DecodeError::Truncated);
    assert_eq!(decode(b"\x7f\x01"), DecodeError::UnknownKind { kind: 0x7f });
    assert_eq!(decode(b"\x7f\x01").code(), ErrorCode::UnknownRequest);
    assert_eq!(decode(b"\x02\x01\x00"), DecodeError::Trailing { bytes: 1 });
    assert_eq!(decode(b"\x02\x81\x00"), DecodeError::Number, "1 has a shorter form");
    assert_eq!(decode(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), DecodeError::Number, "65 bits");
    assert_eq!(decode(b"\x01\x01\x80\x80\x04\x01\x00\x00\x00"), DecodeError::Number, "versions have 16 bits");
    let peer = DecodeError::UnknownTag { what: "a peer", tag: 2 };
    assert_eq!(decode(b"\x01\x01\x01\x01\x00\x02\x00"), peer);
    assert_eq!(decode(b"\x01\x01\x01\x01\x00\x00\x01\xff"), DecodeError::NotText);
    assert_eq!(
        decode(b"\x23\x01\x01\x00\x01s\x07\xff\xff\xff\x07"),
        DecodeError::ListTooLong { count: 0xff_ffff }
    );
    assert_eq!(decode(b"\x23\x01\x01\x00\x01s\x07\xff\xff\xff\x07").code(), ErrorCode::TooManyKeys);
    assert_eq!(decode(b"\x23\x01\x01\x00\x01s\x07\xff\x01"), DecodeError::Truncated, "no room for 255 keys");
    let unknown = decode_response(Bytes::from_static(b"\xff\x01\x01\x00\x00\x00")).unwrap_err();
    assert_eq!(unknown, DecodeError::UnknownErrorCode { code: 1 });
}

#[test]
fn a_record_of_a_later_format_is_refused_and_named() {
    let later = Bytes::from_static(&[0x02, 0, 0]);
    assert_eq!(decode_record(&later), Err(DecodeError::UnknownFormat { format: 0x02 }));
    assert_eq!(peek_winner(&later, WallMillis(0)), Err(DecodeError::UnknownFormat { format: 0x02 }));
}

#[test]
fn the_densest_lists_stay_below_the_promised_amplification() {
    for (kind, element) in [
        (0xa2_u8, &[0x00, 0x01, 0x00, 0x00][..]), // Scanned: an empty key with an empty set.
        (0x93, &[0x00, 0x01, 0x00, 0x00]),        // MultiGot: an empty set.
        (0xa3, &[0x01, 100, 0x00]),               // ReplicaGot: an error.
        (0x94, &[0x01, 100, 0x00, 0x00, 0x00]),   // MultiWritten: a failure.
    ] {
        let count = 60_000_usize;
        let mut body = BytesMut::from(&[kind, 1][..]);
        if kind == 0xa3 {
            body.extend_from_slice(&[0, 0]);
        }
        body.extend_from_slice(&[0xe0, 0xd4, 0x03]);
        (0..count).for_each(|_| body.extend_from_slice(element));
        if kind == 0xa2 {
            body.extend_from_slice(&[0, 0]);
        }
        let bytes = body.len();
        let body = body.freeze();
        let mut decoded = None;
        let allocated = allocations::during(|| decoded = Some(decode_response(body)));
        assert!(decoded.unwrap().is_ok(), "{kind:#x}");
        assert!(allocated.bytes <= AMPLIFICATION_MAX * bytes, "{kind:#x}: {allocated:?} for {bytes}");
    }
}
