//! GET, PUT and DELETE of one key.

use bytes::Bytes;
use model::{Context, Value};
use runtime::http::base64::prelude::{BASE64_STANDARD, Engine as _};
use runtime::http::{Arriving, StatusCode, header, path};
use serde::Deserialize;
use serde_json::json;
use wire::messages::{Got, Written};

use super::HttpCall;
use super::answer::HttpAnswer;
use super::parameters::Parameters;
use super::preconditions::{self, Preconditions, context, letters, tag};
use super::refused::{LimitOf, body as unread, full, malformed};
use super::store_facts::{StoreFacts, check_key};
use crate::doors::counters::Operation;
use crate::front::StampEntry;
use crate::stores::WriteOrder;

/// The content type of a write whose context is in its body.
const VERSIONS: &str = "application/vnd.tontine.versions+json";
/// Bytes of such a body beside its value: the names, and a context of some thousand actors.
const VERSIONS_BYTES_MORE: usize = 256 * 1024;

/// Which key of which store.
struct Target {
    store: String,
    key: Bytes,
    facts: StoreFacts,
}

/// The JSON form of a write.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Versioned {
    context: Option<String>,
    value: Option<String>,
}

/// What a body and its head say of a write.
struct WriteAsked {
    value: Option<Bytes>,
    preconditions: Preconditions,
    /// Bytes that count while it is carried out.
    bytes: usize,
}

impl Target {
    fn of(call: &HttpCall<'_>) -> Result<Target, HttpAnswer> {
        let [store, key] = call.found.names[..] else {
            unreachable!("a path of keys names a store and a key");
        };
        let bytes = |text| path::decode(text).map_err(|error| malformed(error.to_string()));
        let (store, key) = (String::from_utf8_lossy(&bytes(store)?).into_owned(), bytes(key)?);
        call.judge(&store, Some(&key))?;
        let facts = StoreFacts::of(call.door, &store)?;
        let target = Target { store, key, facts };
        match check_key(&target.key) {
            Ok(()) => Ok(target),
            Err(failure) => Err(HttpAnswer::failure(&failure).about(&target.store)),
        }
    }

    /// An answer about this key, or a refusal.
    fn told(&self, answer: Result<HttpAnswer, HttpAnswer>) -> Result<HttpAnswer, HttpAnswer> {
        answer.map(|answer| answer.about(&self.store)).map_err(|refused| refused.about(&self.store))
    }
}

/// Reads a key.
pub(super) async fn get(call: &HttpCall<'_>) -> Result<HttpAnswer, HttpAnswer> {
    let target = Target::of(call)?;
    let answer = read(call, &target).await;
    target.told(answer)
}

async fn read(call: &HttpCall<'_>, target: &Target) -> Result<HttpAnswer, HttpAnswer> {
    let parameters = Parameters::of(call, target.facts.replicas)?;
    let asked = call.head_bytes + target.key.len();
    let permit = call.admitted.admit(asked).map_err(|refused| full(&refused))?;
    let (front, began) = (&call.door.front, call.door.front.clock().now());
    let got = front.get(&target.store, target.key.clone(), &parameters.to_read()).await;
    call.door.counters.took(Operation::Get, began);
    let answer = shown(call, target, &got.map_err(|failure| HttpAnswer::failure(&failure))?)?;
    // From here on the answer is what the node holds of it.
    drop(permit);
    call.counted(answer)
}

/// What a get answers.
fn shown(call: &HttpCall<'_>, target: &Target, got: &Got) -> Result<HttpAnswer, HttpAnswer> {
    let shown =
        target.facts.shown(got, call.door.front.now()).map_err(|failure| HttpAnswer::failure(&failure))?;
    let (context, values) = (shown.context, shown.values);
    let answer = match (&values[..], tag(&context)) {
        ([], Ok(tag)) => HttpAnswer::absent(None).tagged(tag),
        ([], Err(())) => HttpAnswer::absent(Some(letters(&context))),
        ([value], Ok(tag)) => HttpAnswer::value(value.clone()).tagged(tag),
        (_, tag) => {
            let values: Vec<String> = values.iter().map(|value| BASE64_STANDARD.encode(value)).collect();
            let document = json!({ "context": letters(&context), "values": values });
            HttpAnswer::document(StatusCode::MULTIPLE_CHOICES, &document).tagged(tag.unwrap_or_default())
        }
    };
    Ok(answer.sloppy(got.sloppy))
}

/// Writes a key.
pub(super) async fn put(call: &HttpCall<'_>, body: Arriving) -> Result<HttpAnswer, HttpAnswer> {
    let target = Target::of(call)?;
    let answer = match asked(call, &target, body, true).await {
        Ok(asked) => write(call, &target, asked, Operation::Put).await,
        Err(refused) => Err(refused),
    };
    target.told(answer)
}

/// Deletes a key.
pub(super) async fn delete(call: &HttpCall<'_>, body: Arriving) -> Result<HttpAnswer, HttpAnswer> {
    let target = Target::of(call)?;
    let answer = match asked(call, &target, body, false).await {
        Ok(asked) => write(call, &target, asked, Operation::Delete).await,
        Err(refused) => Err(refused),
    };
    target.told(answer)
}

/// What a write asks for. Its head is judged before its body is read.
async fn asked(
    call: &HttpCall<'_>,
    target: &Target,
    body: Arriving,
    is_put: bool,
) -> Result<WriteAsked, HttpAnswer> {
    let headers = &call.head.headers;
    Parameters::of(call, target.facts.replicas)?;
    let preconditions = preconditions::of(headers).map_err(malformed)?;
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(malformed("values are stored as they come; send this one without Content-Encoding"));
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_versioned = kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(VERSIONS));
    let value_bytes_max = target.facts.value_bytes_max;
    let bytes_max = match (is_versioned, is_put) {
        (true, true) => value_bytes_max.div_ceil(3) * 4 + VERSIONS_BYTES_MORE,
        (true, false) => VERSIONS_BYTES_MORE,
        (false, true) => value_bytes_max,
        (false, false) => 0,
    };
    let body = body.read(bytes_max).await.map_err(|why| unread(why, bytes_max, LimitOf::Store))?;
    let bytes = call.head_bytes + target.key.len() + body.len();
    if is_versioned {
        let (context, value) = versioned(&body, is_put)?;
        if preconditions != Preconditions::default() {
            return Err(malformed("the context is in the body, so give neither If-Match nor If-None-Match"));
        }
        let preconditions = Preconditions { context, ..preconditions };
        return Ok(WriteAsked { value, preconditions, bytes });
    }
    Ok(WriteAsked { value: is_put.then_some(body), preconditions, bytes })
}

/// The context and the value of a body in the JSON form.
fn versioned(body: &[u8], is_put: bool) -> Result<(Option<Context>, Option<Bytes>), HttpAnswer> {
    let form: Versioned = serde_json::from_slice(body)
        .map_err(|error| malformed(format!("the body is not a document with context and value: {error}")))?;
    let seen = form.context.as_deref().map(context).transpose().map_err(malformed)?;
    let value = form.value.map(|value| BASE64_STANDARD.decode(value).ok().map(Bytes::from));
    match (value, is_put) {
        (Some(Some(value)), true) => Ok((seen, Some(value))),
        (Some(None), _) => Err(malformed("the value is not in base 64, filled with =")),
        (None, true) => Err(malformed("the body has no value")),
        (None, false) => Ok((seen, None)),
        (Some(Some(_)), false) => Err(malformed("a deletion has no value")),
    }
}

async fn write(
    call: &HttpCall<'_>,
    target: &Target,
    asked: WriteAsked,
    operation: Operation,
) -> Result<HttpAnswer, HttpAnswer> {
    let front = &call.door.front;
    let permit = call.admitted.admit(asked.bytes).map_err(|refused| full(&refused))?;
    // Its body may have been long on its way.
    call.judge(&target.store, Some(&target.key))?;
    let parameters = Parameters::of(call, target.facts.replicas)?;
    let expires = parameters.expires(front.now())?;
    let Preconditions { context, condition } = asked.preconditions;
    let value = asked.value.map_or(Value::Tombstone, Value::Present);
    let order = WriteOrder { context, condition, expires, value };
    let (options, began) = (parameters.to_write(), front.clock().now());
    let entry = (StampEntry::Client, front.generation());
    let written = front.write_if(&target.store, target.key.clone(), order, &options, entry).await;
    call.door.counters.took(operation, began);
    let Written { context, sloppy, .. } = written.map_err(|failure| HttpAnswer::failure(&failure))?;
    // It has been carried out. A reader that does not take the answer must not keep the room of the value.
    drop(permit);
    let answer = match tag(&context) {
        Ok(tag) => HttpAnswer::done().tagged(tag),
        Err(()) => {
            let answer = HttpAnswer::document(StatusCode::OK, &json!({ "context": letters(&context) }));
            // Done is done, also where there is no room to say what was seen.
            call.counted(answer).unwrap_or_else(|_| HttpAnswer::done())
        }
    };
    Ok(answer.sloppy(sloppy))
}
