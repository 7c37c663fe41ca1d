//! Stored records and contexts: one encoding each, and the fast path agrees with the set.

use bytes::{Bytes, BytesMut};
use model::WallMillis;
use wire::versions::{Record, decode_context, decode_record, encode_context, encode_record, peek_winner};

/// Panics when a record or a context decodes and does not encode to itself, or the two ways to its winner differ.
pub fn check(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let now = WallMillis(1 << 40);
    let peeked = peek_winner(&bytes, now);
    let mut again = BytesMut::new();
    if let Ok(Record { own, set }) = decode_record(&bytes) {
        encode_record(own, &set, &mut again);
        assert_eq!(again.split(), bytes);
        let winner = set.winner().and_then(|version| version.live(now)).cloned();
        assert_eq!(peeked, Ok(winner));
    }
    if let Ok(context) = decode_context(&bytes) {
        encode_context(&context, &mut again);
        assert_eq!(again.split(), bytes);
    }
}
