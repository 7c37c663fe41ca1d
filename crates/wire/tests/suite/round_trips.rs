//! What is written is what is read, at every value.

use bytes::{Bytes, BytesMut};
use model::WallMillis;
use proptest::prelude::*;
use wire::messages::*;
use wire::versions::*;

use super::{allocations, samples, strategies};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn requests_survive(id in any::<u64>(), request in strategies::request()) {
        let mut body = BytesMut::new();
        encode_request(id, &request, &mut body);
        let body = body.freeze();
        prop_assert_eq!(request_id(&body), Some(id));
        prop_assert_eq!(decode_request(body), Ok((id, request)));
    }

    #[test]
    fn responses_survive(id in any::<u64>(), response in strategies::response()) {
        let mut body = BytesMut::new();
        encode_response(id, &response, &mut body);
        prop_assert_eq!(decode_response(body.freeze()), Ok((id, response)));
    }

    #[test]
    fn records_survive((own, set) in strategies::record()) {
        let mut bytes = BytesMut::with_capacity(record_bytes(own, &set));
        let room = bytes.capacity();
        encode_record(own, &set, &mut bytes);
        prop_assert_eq!(bytes.len(), record_bytes(own, &set));
        prop_assert_eq!(bytes.capacity(), room);
        prop_assert_eq!(decode_record(&bytes.freeze()), Ok(Record { own, set }));
    }

    #[test]
    fn contexts_survive(context in strategies::context()) {
        let mut bytes = BytesMut::new();
        encode_context(&context, &mut bytes);
        prop_assert_eq!(decode_context(&bytes.freeze()), Ok(context));
    }

    #[test]
    fn the_fast_path_sees_the_winner_of_the_set((own, set) in strategies::record(), now in any::<u64>()) {
        let mut bytes = BytesMut::new();
        encode_record(own, &set, &mut bytes);
        for now in [WallMillis(0), WallMillis(2), WallMillis(now)] {
            let winner = set.winner().and_then(|version| version.live(now)).cloned();
            prop_assert_eq!(peek_winner(&bytes.clone().freeze(), now), Ok(winner));
        }
        prop_assert_eq!(peek_expiry(&bytes.freeze()), set.expires_min());
    }

    #[test]
    fn encoding_appends_and_reserves_enough_at_once(response in strategies::response()) {
        let mut body = BytesMut::from(&b"before"[..]);
        let allocated = allocations::during(|| encode_response(u64::MAX, &response, &mut body));
        prop_assert!(allocated.count <= 2, "one buffer, and one head of it once it is shared: {:?}", allocated);
        prop_assert!(body.starts_with(b"before"));
        prop_assert!(decode_response(body.freeze().slice(6..)).is_ok());
    }
}

#[test]
fn a_large_value_is_copied_once_on_its_way_out() {
    let value = Bytes::from(vec![7; 8 << 20]);
    let mut set = samples::single();
    let stamp = model::versions::Stamp {
        actor: samples::actor(1, 7),
        timestamp: model::Timestamp(u64::MAX),
        expires: None,
        value: model::Value::Present(value.clone()),
    };
    set.put(stamp, None);
    let response = Response::from(Got { replicas_answered: 1, sloppy: false, set });
    let mut out = BytesMut::new();
    let allocated = allocations::during(|| encode_response(1, &response, &mut out));
    assert_eq!(allocated.count, 1, "{allocated:?}");
    assert!(allocated.bytes < value.len() + 256, "{allocated:?}");
}

#[test]
fn reading_borrows_the_value_and_allocates_nothing_for_a_single_version() {
    let mut record = BytesMut::new();
    encode_record(Some(samples::actor(1, 7)), &samples::single(), &mut record);
    // The first share of a vector's bytes allocates their count; a receive buffer's bytes are shared already.
    let record = record.freeze();
    let _shared = record.clone();
    let mut peeked = Ok(None);
    let peeking = allocations::during(|| peeked = peek_winner(&record, WallMillis(0)));
    assert_eq!(peeking.count, 0, "{peeking:?}");
    let value = peeked.unwrap().unwrap();
    assert!(record.as_ptr_range().contains(&value.as_ptr()), "the value lies in the record");
    let mut decoded = None;
    let decoding = allocations::during(|| decoded = Some(decode_record(&record)));
    assert_eq!(decoding.count, 0, "{decoding:?}");
    assert!(decoded.unwrap().is_ok());
}

#[test]
fn peers_agree_on_the_newest_version_that_both_know() {
    assert_eq!(negotiate(VERSION_MIN, VERSION_MAX), Some(VERSION_MAX));
    assert_eq!(negotiate(VERSION_MIN, VERSION_MAX + 5), Some(VERSION_MAX));
    assert_eq!(negotiate(VERSION_MAX + 1, VERSION_MAX + 5), None);
    assert_eq!(negotiate(0, VERSION_MIN - 1), None);
    assert_eq!(negotiate(5, 1), None, "an empty range has no version");
}
