//! Requests that are refused before anybody asks what they want.

use protocol::admission::Overloaded;
use runtime::http::strangers::Stranger;
use runtime::http::{Refused, StatusCode, Unread};
use wire::error::ErrorCode;
use wire::messages::Failure;

use super::answer::HttpAnswer;

/// Bytes of a text of the caller's that an answer says again: it needs neither a secret nor room.
const ECHO_BYTES_MAX: usize = 100;

/// A request that did not come whole.
pub(super) fn before_its_end(why: Refused) -> HttpAnswer {
    match why {
        Refused::HeadTooLong { bytes_max } => {
            let detail = format!("the head of the request is over the limit of {bytes_max} bytes");
            let failure = Failure::new(ErrorCode::Malformed, detail);
            HttpAnswer::failure_as(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &failure)
        }
        Refused::TooManyLines { lines_max } => {
            let detail = format!("the head of the request has more than {lines_max} lines");
            let failure = Failure::new(ErrorCode::Malformed, detail);
            HttpAnswer::failure_as(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &failure)
        }
        Refused::Malformed { why } => HttpAnswer::failure(&Failure::new(ErrorCode::Malformed, why)),
        Refused::TooSlow { bytes_min, time_max } => {
            let detail = format!(
                "less than {bytes_min} bytes of the request came within {time_max:?}; it was not carried out"
            );
            HttpAnswer::failure_as(StatusCode::REQUEST_TIMEOUT, &Failure::new(ErrorCode::Malformed, detail))
        }
        Refused::NoRoom => {
            let detail = "this node has no room for more requests that are still coming in; try again later or on another node";
            HttpAnswer::failure(&Failure::new(ErrorCode::Overloaded, detail))
        }
        Refused::RoomLost => {
            let detail = "the request came in slowly, and others needed its room; it was not carried out";
            HttpAnswer::failure(&Failure::new(ErrorCode::Overloaded, detail))
        }
    }
}

/// Whose limit a body is over.
#[derive(Clone, Copy)]
pub(super) enum LimitOf {
    Store,
    Request,
}

/// One whose body was not read, and whose limit `bytes_max` is.
pub(super) fn body(why: Unread, bytes_max: usize, of: LimitOf) -> HttpAnswer {
    match why {
        Unread::TooLong => {
            let (code, of) = match of {
                LimitOf::Store => (ErrorCode::ValueTooLarge, "the store"),
                LimitOf::Request => (ErrorCode::FrameTooLong, "such a request"),
            };
            let detail = format!("the body is longer than {bytes_max} bytes, the limit of {of}");
            HttpAnswer::failure(&Failure::new(code, detail))
        }
        Unread::Broken => {
            let detail = "the body ended before its length, or its chunks make no sense; nothing was written";
            HttpAnswer::failure(&Failure::new(ErrorCode::Malformed, detail))
        }
        Unread::Refused(why) => before_its_end(why),
    }
}

/// One that a web page sent, or could have.
pub(super) fn stranger(stranger: &Stranger) -> HttpAnswer {
    let detail = match stranger {
        Stranger::NoHost => {
            let detail = "the request must name its host once, and in the same way everywhere";
            return HttpAnswer::failure(&Failure::new(ErrorCode::Malformed, detail));
        }
        Stranger::Host(host) => format!(
            "the host {} is no address and no name of this node; use an address, or name the host with --http-name",
            echo(host)
        ),
        Stranger::Origin(origin) => format!("a web page of {} must not use this node", echo(origin)),
        Stranger::Site(site) => {
            format!("a web page must not use this node from elsewhere (Sec-Fetch-Site: {})", echo(site))
        }
        Stranger::Form(kind) => {
            format!(
                "{kind} is what a form of a web page sends; name another content type, such as \
                 -H 'Content-Type: application/json' of curl"
            )
        }
    };
    HttpAnswer::failure(&Failure::new(ErrorCode::ForeignOrigin, detail))
}

/// The beginning of a text of the caller's, in quotes.
fn echo(text: &str) -> String {
    let said = &text[..text.floor_char_boundary(ECHO_BYTES_MAX)];
    let more = if said.len() < text.len() { "…" } else { "" };
    format!("{said:?}{more}")
}

/// One for which there is no room.
pub(super) fn full(full: &Overloaded) -> HttpAnswer {
    HttpAnswer::failure(&crate::doors::native::not_admitted(full))
}

/// One that says what makes no sense.
pub(super) fn malformed(detail: impl Into<String>) -> HttpAnswer {
    HttpAnswer::failure(&Failure::new(ErrorCode::Malformed, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_long_text_from_a_caller_is_repeated() {
        assert_eq!(echo("evil.example"), "\"evil.example\"");
        assert_eq!(echo(&"a".repeat(100)), format!("\"{}\"", "a".repeat(100)));
        assert_eq!(echo(&"é".repeat(51)), format!("\"{}\"…", "é".repeat(50)));
        assert_eq!(echo(&format!("a{}", "é".repeat(50))), format!("\"a{}\"…", "é".repeat(49)));
        let long = "x".repeat(30_000);
        for stranger in [Stranger::Host(long.clone()), Stranger::Origin(long.clone()), Stranger::Site(long)] {
            let bytes = super::stranger(&stranger).bytes_len();
            assert!(bytes < 1_000, "{bytes} bytes: {:?}", std::mem::discriminant(&stranger));
        }
    }
}
