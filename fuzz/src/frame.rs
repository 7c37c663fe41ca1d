//! Bodies of frames: whatever decodes must encode to the very same bytes. A report must survive being read and written.

use bytes::{Bytes, BytesMut};
use wire::messages::{
    ReportGot, Response, decode_request, decode_response, encode_request, encode_response, request_id,
};

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
        if let Response::ReportGot(got) = &response
            && let Ok(report) = got.report()
        {
            ReportGot::of(&report).report().expect("what was read can be written and read again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use wire::messages::Request;

    use super::*;

    #[test]
    fn mutations_begin_at_a_sound_message_of_every_kind() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/frame");
        let mut missing: BTreeSet<u8> =
            Request::KINDS.iter().chain(Response::KINDS).map(|(kind, _)| *kind).collect();
        for entry in std::fs::read_dir(corpus).expect("the corpus is there") {
            let path = entry.expect("a folder can be listed").path();
            let body = Bytes::from(std::fs::read(&path).expect("an input can be read"));
            let kind = decode_request(body.clone())
                .map(|(_, request)| request.kind())
                .or_else(|_| decode_response(body).map(|(_, response)| response.kind()));
            let kind = kind.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            missing.remove(&kind);
        }
        assert!(
            missing.is_empty(),
            "kinds without an input: {missing:02x?}; the golden tests show their bytes"
        );
    }
}
