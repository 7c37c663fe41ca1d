//! Bodies of frames: whatever decodes must encode to the very same bytes.

use bytes::{Bytes, BytesMut};
use wire::messages::{decode_request, decode_response, encode_request, encode_response, request_id};

/// Panics when a body decodes and does not encode to itself.
pub fn check(input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    let mut again = BytesMut::new();
    if let Ok((id, request)) = decode_request(body.clone()) {
        assert_eq!(request_id(&body), Some(id));
        encode_request(id, &request, &mut again);
        assert_eq!(again.split(), body);
    }
    if let Ok((id, response)) = decode_response(body.clone()) {
        encode_response(id, &response, &mut again);
        assert_eq!(again.split(), body);
    }
}
