//! An answer, before it becomes a head and a body.
//!
//! Must never: say that a write failed which may have happened. 4xx and 503 say *certainly not*, 504 says *unknown*.

use std::any::Any;

use bytes::Bytes;
use runtime::http::header::{self, HeaderName, HeaderValue};
use runtime::http::{Payload, Pieces, Response, StatusCode};
use serde_json::json;
use wire::error::{ErrorCode, Outcome};
use wire::messages::Failure;

use super::account::HeldRoom;

/// What a key's value is called: nothing that a browser would run or show.
const BYTES: &str = "application/octet-stream";
pub(super) const JSON: &str = "application/json";
pub(super) const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";
const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One answer.
pub(super) struct HttpAnswer {
    status: StatusCode,
    /// Its content type, with a body.
    kind: Option<&'static str>,
    body: Body,
    etag: Option<Box<str>>,
    /// The methods that its path takes. Few answers say so, and all of them shall be small.
    allow: Option<Box<Box<str>>>,
    sloppy: bool,
    /// Why it is refused. The detail is there only where a right is lacking.
    refusal: Option<Box<Failure>>,
    store: Option<Box<str>>,
    /// Given back when the other end has the body.
    held: Option<HeldRoom>,
}

/// What is behind its head.
enum Body {
    Whole(Bytes),
    Pieces(Pieces),
}

impl HttpAnswer {
    fn new(status: StatusCode, kind: Option<&'static str>, body: impl Into<Bytes>) -> HttpAnswer {
        let body = Body::Whole(body.into());
        HttpAnswer {
            status,
            kind,
            body,
            etag: None,
            allow: None,
            sloppy: false,
            refusal: None,
            store: None,
            held: None,
        }
    }

    /// A value.
    pub(super) fn value(value: Bytes) -> HttpAnswer {
        HttpAnswer::new(StatusCode::OK, Some(BYTES), value)
    }

    /// A document that is JSON already.
    pub(super) fn json(status: StatusCode, json: impl Into<Bytes>) -> HttpAnswer {
        HttpAnswer::new(status, Some(JSON), json)
    }

    /// Lines of JSON.
    pub(super) fn json_lines(status: StatusCode, lines: impl Into<Bytes>) -> HttpAnswer {
        HttpAnswer::new(status, Some(LINES), lines)
    }

    /// Events, each when it happens.
    pub(super) fn events(pieces: Pieces) -> HttpAnswer {
        HttpAnswer {
            body: Body::Pieces(pieces),
            ..HttpAnswer::new(StatusCode::OK, Some(EVENTS), Bytes::new())
        }
    }

    /// A document.
    pub(super) fn document(status: StatusCode, document: &serde_json::Value) -> HttpAnswer {
        HttpAnswer::new(status, Some(JSON), document.to_string())
    }

    /// Done, with nothing to say.
    pub(super) fn done() -> HttpAnswer {
        HttpAnswer::new(StatusCode::NO_CONTENT, None, Bytes::new())
    }

    /// A word for people.
    pub(super) fn text(text: &'static str) -> HttpAnswer {
        HttpAnswer::new(StatusCode::OK, Some(TEXT), text)
    }

    /// Numbers for Prometheus.
    pub(super) fn prometheus(text: String) -> HttpAnswer {
        HttpAnswer::new(StatusCode::OK, Some(PROMETHEUS), text)
    }

    /// R replicas said that the key is not there. `context` is that of its deletion, if it is too long for an ETag.
    pub(super) fn absent(context: Option<String>) -> HttpAnswer {
        let mut document = json!({ "error": not_found() });
        if let Some(context) = context {
            document["context"] = context.into();
        }
        HttpAnswer::document(StatusCode::NOT_FOUND, &document)
    }

    /// The error, with the status of its code.
    pub(super) fn failure(failure: &Failure) -> HttpAnswer {
        HttpAnswer::failure_as(status(failure.code), failure)
    }

    /// The error, with a status that says more than that of its code.
    pub(super) fn failure_as(status: StatusCode, failure: &Failure) -> HttpAnswer {
        let document = json!({ "error": error(status, failure) });
        let lacking = if failure.code == ErrorCode::Forbidden { failure.detail.as_str() } else { "" };
        let refusal = Some(Box::new(Failure::new(failure.code, lacking)));
        HttpAnswer { refusal, ..HttpAnswer::document(status, &document) }
    }

    /// With the context of what is answered.
    pub(super) fn tagged(self, tag: Option<String>) -> HttpAnswer {
        HttpAnswer { etag: tag.map(|tag| format!("\"{tag}\"").into()), ..self }
    }

    /// With the methods that its path takes.
    pub(super) fn allowing(self, methods: &str) -> HttpAnswer {
        HttpAnswer { allow: Some(Box::new(methods.into())), ..self }
    }

    /// Whether a fallback stood in for a replica.
    pub(super) fn sloppy(self, sloppy: bool) -> HttpAnswer {
        HttpAnswer { sloppy, ..self }
    }

    /// About a store of this name.
    pub(super) fn about(self, store: &str) -> HttpAnswer {
        HttpAnswer { store: Some(store.into()), ..self }
    }

    /// Holding this until the other end has the body.
    pub(super) fn holding(self, room: HeldRoom) -> HttpAnswer {
        HttpAnswer { held: Some(room), ..self }
    }

    /// Bytes of its body.
    pub(super) fn bytes_len(&self) -> usize {
        self.bytes().len()
    }

    /// Its body, as far as it is there.
    fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::Whole(bytes) => bytes,
            Body::Pieces(_) => &[],
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// The code, of an error.
    pub(super) fn code(&self) -> Option<ErrorCode> {
        self.refusal.as_ref().map(|failure| failure.code)
    }

    /// Why it was refused, as far as that is about who asks.
    pub(super) fn refusal(&self) -> Option<&Failure> {
        self.refusal.as_deref()
    }

    /// The name of the store that it is about, if it is about one.
    pub(super) fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// Its head and its body. `closes`: the connection ends behind it.
    pub(super) fn into_response(self, closes: bool) -> Response {
        let lines = self.lines(closes);
        let held = self.held.map(|room| Box::new(room) as Box<dyn Any + Send>);
        let payload = match self.body {
            Body::Whole(bytes) => Payload::new(bytes, held),
            Body::Pieces(pieces) => Payload::pieces(pieces),
        };
        let mut response = Response::new(payload);
        *response.status_mut() = self.status;
        for (name, value) in lines {
            // Each is text of our own: no line ends, no letters beyond ASCII.
            if let Ok(value) = HeaderValue::from_str(&value) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }

    /// The same as bytes, for a connection that is not served.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        let mut bytes =
            format!("HTTP/1.1 {}\r\ncontent-length: {}\r\n", self.status, self.bytes_len()).into_bytes();
        for (name, value) in self.lines(true) {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(self.bytes());
        bytes
    }

    fn lines(&self, closes: bool) -> Vec<(HeaderName, String)> {
        let mut lines = vec![
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
            (header::CACHE_CONTROL, "no-store".to_owned()),
        ];
        let mut line = |name, value: Option<&str>| lines.extend(value.map(|value| (name, value.to_owned())));
        line(header::CONTENT_TYPE, self.kind);
        line(header::ETAG, self.etag.as_deref());
        let reads_only = (self.status == StatusCode::METHOD_NOT_ALLOWED).then_some("GET, HEAD");
        line(header::ALLOW, self.allow.as_ref().map(|allow| &***allow).or(reads_only));
        line(HeaderName::from_static("tontine-sloppy"), self.sloppy.then_some("true"));
        let challenge = "Basic realm=\"tontine\", Bearer";
        line(header::WWW_AUTHENTICATE, (self.status == StatusCode::UNAUTHORIZED).then_some(challenge));
        line(header::CONNECTION, closes.then_some("close"));
        lines
    }
}

/// The error of a request that is answered with this status, as data.
pub(super) fn error(status: StatusCode, failure: &Failure) -> serde_json::Value {
    // Of the request, and not of what its code says elsewhere: a node that is not ready has done nothing.
    let outcome = if status == StatusCode::GATEWAY_TIMEOUT { "unknown" } else { "failed" };
    json!({
        "kind": failure.code.name(),
        "message": failure.to_string(),
        "outcome": outcome,
        "retryable": failure.code.is_retryable(),
    })
}

/// The same of a key that is not there, as R replicas said.
pub(super) fn not_found() -> serde_json::Value {
    json!({
        "kind": "not-found",
        "message": "the key is not there",
        "outcome": "failed",
        "retryable": false,
    })
}

/// What a code is in HTTP.
pub(super) fn status(code: ErrorCode) -> StatusCode {
    match code {
        _ if code.outcome() == Outcome::Indeterminate => StatusCode::GATEWAY_TIMEOUT,
        _ if code.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::ValueTooLarge | ErrorCode::RecordTooLong | ErrorCode::FrameTooLong => {
            StatusCode::PAYLOAD_TOO_LARGE
        }
        ErrorCode::ReadOnly => StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::Obsolete | ErrorCode::TooManySiblings => StatusCode::CONFLICT,
        ErrorCode::ConditionFailed => StatusCode::PRECONDITION_FAILED,
        ErrorCode::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorCode::ForeignOrigin | ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_REQUEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_status_says_that_a_write_failed_if_it_may_have_happened() {
        for &code in ErrorCode::ALL {
            let status = status(code).as_u16();
            match code.outcome() {
                Outcome::Indeterminate => assert_eq!(status, 504, "{code}"),
                Outcome::Failed => assert!(status == 503 || (400..500).contains(&status), "{code}: {status}"),
            }
            assert_ne!(status, 404, "{code}: only R replicas say that a key is not there");
        }
    }

    #[test]
    fn the_outcome_of_an_error_matches_its_status() {
        for &code in ErrorCode::ALL {
            let failure = Failure::new(code, "");
            for status in [status(code), StatusCode::SERVICE_UNAVAILABLE] {
                let answer = HttpAnswer::failure_as(status, &failure);
                let error: serde_json::Value = serde_json::from_slice(answer.bytes()).unwrap();
                let expected = if status.as_u16() == 504 { "unknown" } else { "failed" };
                assert_eq!(error["error"]["outcome"], expected, "{code} as {status}");
            }
        }
    }

    #[test]
    fn the_answer_for_an_absent_key_carries_a_context_too_long_for_an_etag() {
        let body = |context: Option<&str>| HttpAnswer::absent(context.map(str::to_owned)).bytes().to_vec();
        let told: serde_json::Value = serde_json::from_slice(&body(Some("AQG"))).unwrap();
        assert_eq!((&told["context"], &told["error"]["kind"]), (&"AQG".into(), &"not-found".into()));
        assert!(!String::from_utf8_lossy(&body(None)).contains("context"));
    }

    #[test]
    fn no_page_of_another_origin_may_read_an_answer() {
        let failure = Failure::new(ErrorCode::Unauthenticated, "a: \"b\"");
        let answers = [
            HttpAnswer::value(Bytes::from_static(b"<script>")),
            HttpAnswer::failure(&failure),
            HttpAnswer::done().tagged(Some("abc".to_owned())).sloppy(true),
        ];
        for answer in answers {
            let text = String::from_utf8(answer.into_bytes()).unwrap();
            assert!(text.contains("\r\nx-content-type-options: nosniff\r\n"), "{text}");
            assert!(!text.contains("access-control-"), "{text}");
        }
        let text = String::from_utf8(HttpAnswer::failure(&failure).into_bytes()).unwrap();
        assert!(text.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{text}");
        assert!(text.contains("\r\nwww-authenticate: Basic realm=\"tontine\", Bearer\r\n"), "{text}");
        let body = text.split("\r\n\r\n").nth(1).unwrap();
        let error: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(error["error"]["kind"], "unauthenticated");
    }
}
