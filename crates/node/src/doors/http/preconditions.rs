//! How contexts travel, and what a write asks of the key before it.
//!
//! An ETag is the context of what was answered, in letters. Handed back with a write it says what the writer has seen:
//! what it has not seen stays beside it. It is no compare-and-set, as a context is none at any door.
//!
//! Must never: take a precondition for one that it is not. A write that ignores what its sender asked for is lost.

use bytes::{Bytes, BytesMut};
use model::Context;
use runtime::http::base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use runtime::http::tags::{Tag, parse};
use runtime::http::{HeaderMap, header};
use wire::messages::Condition;
use wire::versions::{decode_context, encode_context};

/// Longest context in bytes that travels as an ETag: with it the head of an answer stays below what clients take.
const TAG_CONTEXT_BYTES_MAX: usize = 4 * 1024;

/// What a write asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Preconditions {
    pub(super) context: Option<Context>,
    pub(super) condition: Condition,
}

/// The letters of a context.
pub(super) fn letters(context: &Context) -> String {
    let mut bytes = BytesMut::new();
    encode_context(context, &mut bytes);
    BASE64_URL_SAFE_NO_PAD.encode(&bytes)
}

/// The ETag of a context, without its quotes; `None` when there is nothing that it covers, and `Err` when it is too long
/// for one.
pub(super) fn tag(context: &Context) -> Result<Option<String>, ()> {
    if *context == Context::default() {
        return Ok(None);
    }
    let letters = letters(context);
    match letters.len() <= TAG_CONTEXT_BYTES_MAX.div_ceil(3) * 4 {
        true => Ok(Some(letters)),
        false => Err(()),
    }
}

/// The context of these letters.
pub(super) fn context(letters: &str) -> Result<Context, &'static str> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(letters).ok();
    let context = bytes.and_then(|bytes| decode_context(&Bytes::from(bytes)).ok());
    context.ok_or("the ETag or context is none of this store; hand it back as it was answered")
}

/// What the head of a write asks for.
pub(super) fn of(headers: &HeaderMap) -> Result<Preconditions, &'static str> {
    let one = |name: header::HeaderName| {
        let mut values = headers.get_all(&name).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => parse(value.as_bytes()).map(Some),
            (Some(_), Some(_)) => Err("a precondition is given twice"),
        }
    };
    for name in
        [header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE, header::IF_RANGE, header::CONTENT_RANGE]
    {
        if headers.contains_key(&name) {
            return Err(
                "preconditions by date and parts of values are not known here; use If-Match or If-None-Match",
            );
        }
    }
    let (condition, seen) = match (one(header::IF_MATCH)?, one(header::IF_NONE_MATCH)?) {
        (None, None) => (Condition::None, None),
        (Some(Tag::Any), None) => (Condition::IfPresent, None),
        (Some(Tag::One(letters)), None) => (Condition::None, Some(context(&letters)?)),
        (None, Some(Tag::Any)) => (Condition::IfAbsent, None),
        (None, Some(Tag::One(_))) => {
            return Err("If-None-Match takes * with a write; hand an ETag back with If-Match");
        }
        (Some(_), Some(_)) => return Err("give If-Match or If-None-Match, not both"),
    };
    Ok(Preconditions { context: seen, condition })
}

#[cfg(test)]
mod tests {
    use model::{Actor, Dot, NodeId, Vector};

    use super::*;

    fn seen(actors: u32) -> Context {
        let mut vector = Vector::default();
        for node in 1..=actors {
            vector.see(Dot { actor: Actor { node: NodeId(node), incarnation: 7, birth: 1 << 40 }, count: 3 });
        }
        Context { vector, ..Context::default() }
    }

    fn asked(lines: &[(&'static str, &str)]) -> Result<Preconditions, &'static str> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        of(&headers)
    }

    #[test]
    fn a_context_comes_back_from_its_etag() {
        let letters = tag(&seen(3)).unwrap().unwrap();
        assert_eq!(context(&letters), Ok(seen(3)));
        let asked = asked(&[("if-match", &format!("\"{letters}\""))]).unwrap();
        assert_eq!(asked, Preconditions { context: Some(seen(3)), condition: Condition::None });
        assert_eq!(tag(&Context::default()), Ok(None), "nothing was ever there");
        assert_eq!(tag(&seen(2000)), Err(()), "it travels in the JSON form");
        assert_eq!(context(&super::letters(&seen(2000))), Ok(seen(2000)));
    }

    #[test]
    fn an_etag_that_is_not_ours_is_refused() {
        let letters = tag(&seen(3)).unwrap().unwrap();
        for other in
            ["", "abc", "33a64df551425fcc55e4d42a148795d9f25f89d4", &letters[1..], &format!("{letters}AA")]
        {
            assert!(context(other).is_err(), "{other}");
            assert!(asked(&[("if-match", &format!("\"{other}\""))]).is_err(), "{other}");
        }
    }

    #[test]
    fn a_star_is_a_condition_and_unsupported_preconditions_are_refused() {
        let condition = |name, value| asked(&[(name, value)]).map(|asked| asked.condition);
        assert_eq!(condition("if-none-match", "*"), Ok(Condition::IfAbsent));
        assert_eq!(condition("if-match", "*"), Ok(Condition::IfPresent));
        assert_eq!(asked(&[]), Ok(Preconditions::default()));
        let tag = format!("\"{}\"", letters(&seen(1)));
        for lines in [
            &[("if-none-match", &*tag)][..],
            &[("if-match", "*"), ("if-none-match", "*")],
            &[("if-match", "*"), ("if-match", "*")],
            &[("if-match", &*format!("W/{tag}"))],
            &[("if-match", &*format!("{tag}, {tag}"))],
            &[("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT")],
            &[("content-range", "bytes 0-1/2")],
        ] {
            assert!(asked(lines).is_err(), "{lines:?}");
        }
    }
}
