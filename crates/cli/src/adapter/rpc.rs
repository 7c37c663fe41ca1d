//! The side of the contract that every adapter has in common: JSON-RPC 2.0, one message a line.
//!
//! Calls are carried out one after the other, in the order in which they came. What came before standard input ended is
//! answered; then the adapter ends.
//!
//! Must never: let one call keep the others waiting for good, or answer with a line above the limit.

use std::io::{BufRead, Read};
use std::process::ExitCode;
use std::time::Duration;

use model::unquoted;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc::{Receiver, channel};

use crate::failure::CliError;

/// The longest line of either side, in bytes, without its end.
pub(crate) const LINE_BYTES_MAX: usize = 1 << 20;
/// How long a call may take here: a little less than a controller waits by default.
const CALL_TIME_MAX: Duration = Duration::from_secs(9);
/// Lines that may wait for those before them.
const LINES_WAITING_MAX: usize = 16;

/// The line is no JSON.
pub(crate) const NO_JSON: i32 = -32_700;
/// It is JSON, and no request.
pub(crate) const NO_REQUEST: i32 = -32_600;
/// There is no such method.
pub(crate) const NO_METHOD: i32 = -32_601;
/// The parameters are missing, or of another form.
pub(crate) const PARAMS: i32 = -32_602;
/// What may pass by itself.
pub(crate) const PASSING: i32 = -32_000;
/// Refused for good: the same call will be refused again.
pub(crate) const REFUSED: i32 = -32_001;
/// Credentials are missing, wrong or expired.
pub(crate) const CREDENTIALS: i32 = -32_002;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RpcFailure {
    pub(crate) code: i32,
    pub(crate) message: String,
}

impl RpcFailure {
    /// It may pass by itself, so the call is worth repeating.
    pub(crate) fn passing(message: impl Into<String>) -> RpcFailure {
        RpcFailure { code: PASSING, message: message.into() }
    }

    /// The same call will be refused again.
    pub(crate) fn refused(message: impl Into<String>) -> RpcFailure {
        RpcFailure { code: REFUSED, message: message.into() }
    }

    /// The parameters are not what the method takes.
    pub(crate) fn params(message: impl Into<String>) -> RpcFailure {
        RpcFailure { code: PARAMS, message: message.into() }
    }

    /// There is no such method.
    pub(crate) fn method(method: &str, known: &[&str]) -> RpcFailure {
        let message = format!("there is no method {method:?}; this adapter knows {}", known.join(", "));
        RpcFailure { code: NO_METHOD, message }
    }

    /// What the system refused: a full disk or a missing right passes when somebody sees to it.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> RpcFailure {
        let what = what.into();
        move |error| RpcFailure::passing(format!("{what}: {error}"))
    }
}

/// What an adapter does with a call.
pub(crate) trait Adapter {
    /// The result, as the contract has it.
    async fn call(&self, method: &str, params: Json) -> Result<Json, RpcFailure>;
}

/// The parameters of a method; fields that it does not know are passed over.
pub(crate) fn read<T: DeserializeOwned>(params: Json) -> Result<T, RpcFailure> {
    serde_json::from_value(params).map_err(|error| {
        RpcFailure::params(format!(
            "the parameters cannot be read: {}; docs/reference/adapters.md lists them",
            unquoted::json(&error)
        ))
    })
}

/// A result as it is written.
pub(crate) fn written(result: &impl Serialize) -> Result<Json, RpcFailure> {
    serde_json::to_value(result)
        .map_err(|error| RpcFailure::passing(format!("cannot write the answer: {error}")))
}

/// The result of a method that has nothing to say.
pub(crate) fn nothing() -> Json {
    json!({})
}

/// Answers calls until standard input ends.
pub(crate) async fn serve(adapter: &impl Adapter) -> Result<ExitCode, CliError> {
    let mut lines = lines()?;
    while let Some(line) = lines.recv().await {
        if let Some(answer) = answered(adapter, line).await {
            answer!("{answer}");
            crate::output::check()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A line of standard input.
enum InputLine {
    Read(Vec<u8>),
    TooLong,
}

/// The lines of standard input, as they come. A thread reads them, and ends with the process.
fn lines() -> Result<Receiver<InputLine>, CliError> {
    let (sender, receiver) = channel(LINES_WAITING_MAX);
    let read = move || {
        let mut input = std::io::stdin().lock();
        while let Ok(Some(line)) = next_line(&mut input) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    };
    let started = std::thread::Builder::new().name("requests".into()).spawn(read);
    started.map_err(CliError::io("cannot start the thread that reads requests"))?;
    Ok(receiver)
}

/// The next line; `None` at the end. Of one that is too long nothing is kept.
fn next_line(input: &mut impl BufRead) -> std::io::Result<Option<InputLine>> {
    let mut line = Vec::new();
    let limit = LINE_BYTES_MAX as u64 + 1;
    if input.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Some(InputLine::Read(line)));
    }
    if line.len() <= LINE_BYTES_MAX {
        return Ok(Some(InputLine::Read(line)));
    }
    input.skip_until(b'\n')?;
    Ok(Some(InputLine::TooLong))
}

/// The answer to a line; `None` for one that asks for none.
async fn answered(adapter: &impl Adapter, line: InputLine) -> Option<Json> {
    let line = match line {
        InputLine::Read(line) => line,
        InputLine::TooLong => {
            let message = format!("the line has more than {LINE_BYTES_MAX} bytes; send less in one message");
            return Some(failed(&Json::Null, &RpcFailure { code: NO_REQUEST, message }));
        }
    };
    if line.trim_ascii().is_empty() {
        return None;
    }
    let (id, method, params) = match request(&line) {
        Ok(request) => request,
        Err((id, failure)) => return Some(failed(&id, &failure)),
    };
    let called = tokio::time::timeout(CALL_TIME_MAX, adapter.call(&method, params)).await;
    let late = || RpcFailure::passing(format!("{method} was given up after {} s", CALL_TIME_MAX.as_secs()));
    let result = called.unwrap_or_else(|_| Err(late()));
    // A notification is carried out, and nobody hears what came of it.
    let id = id?;
    Some(match result {
        Ok(result) => fitting(json!({ "jsonrpc": "2.0", "id": id, "result": result }), &id),
        Err(failure) => {
            say!("{method}: {}", failure.message);
            failed(&id, &failure)
        }
    })
}

/// An answer, if it is within the limit.
fn fitting(answer: Json, id: &Json) -> Json {
    let bytes = answer.to_string().len();
    if bytes <= LINE_BYTES_MAX {
        return answer;
    }
    let message = format!("the answer has {bytes} bytes, and a line has {LINE_BYTES_MAX} at most");
    failed(id, &RpcFailure { code: REFUSED, message })
}

fn failed(id: &Json, failure: &RpcFailure) -> Json {
    let RpcFailure { code, message } = failure;
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}

/// Its id, if it has one; its method; its parameters.
type Request = (Option<Json>, String, Json);

/// What a line asks for; otherwise what is wrong, with the id as far as it can be told.
fn request(line: &[u8]) -> Result<Request, (Json, RpcFailure)> {
    let mut document: Json = serde_json::from_slice(line).map_err(|error| {
        (Json::Null, RpcFailure { code: NO_JSON, message: format!("the line is no JSON: {error}") })
    })?;
    let id = document.get("id").cloned();
    let wrong = |code, message: &str| {
        let id = id.clone().filter(|id| id.is_number() || id.is_string());
        (id.unwrap_or_default(), RpcFailure { code, message: message.to_owned() })
    };
    if !document.is_object() || document["jsonrpc"] != "2.0" {
        return Err(wrong(NO_REQUEST, "a request is an object with \"jsonrpc\": \"2.0\""));
    }
    let Some(method) = document["method"].as_str().map(str::to_owned) else {
        return Err(wrong(NO_REQUEST, "a request names its method"));
    };
    if id.as_ref().is_some_and(|id| !id.is_number() && !id.is_string()) {
        return Err(wrong(NO_REQUEST, "an id is a number or a text"));
    }
    let params = match document["params"].take() {
        Json::Null => nothing(),
        params @ Json::Object(_) => params,
        _ => return Err(wrong(PARAMS, "params is an object")),
    };
    Ok((id, method, params))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Adapter for Echo {
        async fn call(&self, method: &str, params: Json) -> Result<Json, RpcFailure> {
            match method {
                "echo" => Ok(params),
                "long" => Ok(json!("x".repeat(LINE_BYTES_MAX))),
                _ => Err(RpcFailure::method(method, &["echo", "long"])),
            }
        }
    }

    async fn answer_to(line: &str) -> Option<Json> {
        answered(&Echo, InputLine::Read(line.as_bytes().to_vec())).await
    }

    async fn code_of(line: &str) -> (Json, i64) {
        let answer = answer_to(line).await.unwrap();
        (answer["id"].clone(), answer["error"]["code"].as_i64().unwrap())
    }

    #[tokio::test]
    async fn requests_are_answered_under_their_ids_and_mistakes_are_told_apart() {
        let answer = answer_to(r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":{"a":1}}"#).await.unwrap();
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": 7, "result": { "a": 1 } }));
        assert_eq!(code_of("{").await, (Json::Null, -32_700));
        assert_eq!(code_of("[]").await, (Json::Null, -32_600));
        assert_eq!(code_of(r#"{"id":7,"method":"echo"}"#).await, (json!(7), -32_600));
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":"a"}"#).await, (json!("a"), -32_600));
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":[],"method":"echo"}"#).await, (Json::Null, -32_600));
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":7,"method":"no"}"#).await, (json!(7), -32_601));
        assert_eq!(
            code_of(r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":[]}"#).await,
            (json!(7), -32_602)
        );
        assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":7,"method":"long"}"#).await, (json!(7), -32_001));
        assert_eq!(answer_to(r#"{"jsonrpc":"2.0","method":"echo"}"#).await, None, "a notification");
        assert_eq!(answer_to("  ").await, None);
    }

    #[test]
    fn a_line_is_bounded_and_the_next_one_is_found_behind_it() {
        let long = [vec![b'x'; LINE_BYTES_MAX], b"\n".to_vec()].concat();
        let longer = [vec![b'y'; LINE_BYTES_MAX + 1], b"zz\n".to_vec()].concat();
        let mut input = std::io::Cursor::new([long, longer, b"last".to_vec()].concat());
        assert!(
            matches!(next_line(&mut input), Ok(Some(InputLine::Read(line))) if line.len() == LINE_BYTES_MAX)
        );
        assert!(matches!(next_line(&mut input), Ok(Some(InputLine::TooLong))));
        assert!(matches!(next_line(&mut input), Ok(Some(InputLine::Read(line))) if line == b"last"));
        assert!(matches!(next_line(&mut input), Ok(None)));
    }
}
