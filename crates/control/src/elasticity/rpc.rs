//! One adapter: a child process that answers JSON-RPC 2.0, one message a line.
//!
//! Calls come one after the other, in the order in which fleets ask: a fleet with many calls keeps no other one waiting. A call that is not answered in time, or in another form, ends the process; the next
//! call starts it again, after a pause that doubles. Verbs may be repeated, so nothing is lost by that.
//!
//! Must never: show what an adapter wrote that is no answer. It may hold secrets.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use model::Moment;
use model::elasticity::first_words;
use runtime::{Clock, Program, ProgramError, Programs};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::sync::Mutex;

use super::adapters::{CallError, Launch};

/// The adapter refuses for good.
const REFUSED: i64 = -32_001;
/// Its credentials are missing, wrong or expired.
const CREDENTIALS: i64 = -32_002;
/// Lines that may come before the answer: those of calls that were given up.
const OTHER_LINES_MAX: u32 = 64;
/// Pause before an adapter is started again for the first time; it doubles.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// What is kept of an adapter's words, in bytes: they go into documents, and a document has a limit.
const WORDS_BYTES_MAX: usize = 200;

/// An adapter that is a child process.
pub(super) struct Child {
    /// What people call it, and where its command line is.
    called: (String, String),
    launch: Launch,
    programs: Arc<dyn Programs>,
    clock: Arc<dyn Clock>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    /// None while a call has it, so that a call that is given up ends it.
    program: Option<Box<dyn Program>>,
    /// The number of the last call.
    number: u64,
    /// How often it failed in a row.
    failures: u32,
    /// Not before this is it started again.
    rests_until: Moment,
    /// Why it failed last.
    failed: String,
}

#[derive(Deserialize)]
struct Message {
    id: Option<u64>,
    result: Option<Json>,
    error: Option<Refused>,
}

#[derive(Deserialize)]
struct Refused {
    code: i64,
    #[serde(default)]
    message: String,
}

/// How a call went wrong.
enum AdapterFailure {
    /// The process is of no use any more.
    Broken(String),
    /// It answered, and refused.
    Refused(Refused),
}

impl Child {
    pub(super) fn new(
        called: (String, String),
        launch: Launch,
        programs: Arc<dyn Programs>,
        clock: Arc<dyn Clock>,
    ) -> Child {
        Child { called, launch, programs, clock, running: Mutex::default() }
    }

    /// Asks it, and waits for its answer until the deadline.
    pub(super) async fn call(&self, method: &str, params: Json) -> Result<Json, CallError> {
        let mut running = self.running.lock().await;
        let program = running.program.take();
        assert!(
            program.is_none() || running.rests_until <= self.clock.now(),
            "{} runs while it rests: {}",
            self.called.0,
            running.failed
        );
        let program = match program {
            Some(program) => Ok(program),
            None => self.start(&running),
        };
        let mut program = match program {
            Ok(program) => program,
            Err(Some(error)) => return Err(self.failed(&mut running, method, &error.to_string())),
            Err(None) => {
                let left = running.rests_until.since(self.clock.now()).as_secs() + 1;
                let why = format!("{}; it is started again in {left} s", running.failed);
                return Err(CallError { undone: true, ..self.error(method, &why) });
            }
        };
        running.number += 1;
        let number = running.number;
        let deadline = self.clock.sleep(Duration::from_secs(self.launch.deadline));
        let asked = Box::pin(ask(&mut *program, number, method, params));
        let answer = match select(asked, deadline).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(AdapterFailure::Broken(format!(
                "it did not answer within {} s, and was ended",
                self.launch.deadline
            ))),
        };
        match answer {
            Ok(result) => {
                (running.program, running.failures) = (Some(program), 0);
                Ok(result)
            }
            Err(AdapterFailure::Refused(refused)) => {
                (running.program, running.failures) = (Some(program), 0);
                let words = plain(&refused.message);
                let words = match refused.code {
                    CREDENTIALS => format!("its credentials were rejected: {words}"),
                    _ => words,
                };
                let detail = format!("{} refused `{method}`: {words}", self.called.0);
                Err(CallError { for_good: refused.code == REFUSED, undone: true, detail })
            }
            Err(AdapterFailure::Broken(why)) => Err(self.failed(&mut running, method, &why)),
        }
    }

    /// Starts it; `Err(None)` while it rests.
    fn start(&self, running: &Running) -> Result<Box<dyn Program>, Option<ProgramError>> {
        if self.clock.now() < running.rests_until {
            return Err(None);
        }
        let called = self.called.0.clone();
        let told = Arc::new(move |line: &str| tracing::info!(adapter = called, line, "adapter says"));
        self.programs.start(&self.launch.command, &self.launch.environment, told).map_err(Some)
    }

    fn failed(&self, running: &mut Running, method: &str, why: &str) -> CallError {
        assert!(running.program.is_none(), "{} failed at `{method}`, and is kept", self.called.0);
        let pause = PAUSE_MAX.min(PAUSE * 2_u32.saturating_pow(running.failures.min(10)));
        running.failures += 1;
        running.rests_until = self.clock.now().after(pause);
        why.clone_into(&mut running.failed);
        tracing::warn!(adapter = self.called.0, error = why, "adapter failed");
        self.error(method, why)
    }

    fn error(&self, method: &str, why: &str) -> CallError {
        let (called, place) = &self.called;
        let detail = format!("{called} failed at `{method}`: {why}; its command line is {place}");
        CallError { for_good: false, undone: false, detail }
    }
}

async fn ask(
    program: &mut dyn Program,
    number: u64,
    method: &str,
    params: Json,
) -> Result<Json, AdapterFailure> {
    let broken = |error: ProgramError| AdapterFailure::Broken(error.to_string());
    let request = json!({ "jsonrpc": "2.0", "id": number, "method": method, "params": params });
    program.send(&request.to_string()).await.map_err(broken)?;
    for _ in 0..OTHER_LINES_MAX {
        let line = program.next().await.map_err(broken)?;
        let message: Message = serde_json::from_str(&line).map_err(|_| {
            AdapterFailure::Broken(format!(
                "it wrote a line of {} bytes that is no JSON-RPC answer",
                line.len()
            ))
        })?;
        if message.id != Some(number) {
            continue;
        }
        return match (message.error, message.result) {
            (Some(refused), _) => Err(AdapterFailure::Refused(refused)),
            (None, result) => Ok(result.unwrap_or(Json::Null)),
        };
    }
    Err(AdapterFailure::Broken(format!("it wrote {OTHER_LINES_MAX} lines that nobody asked for")))
}

/// An adapter's words on one line, and not too long.
pub(super) fn plain(words: &str) -> String {
    let line = first_words(words, WORDS_BYTES_MAX);
    if line.is_empty() { "it gave no reason".to_owned() } else { line }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures_util::future::join;
    use runtime::BoxFuture;
    use runtime::clock::os::OsClock;
    use runtime::programs::ErrorLines;

    use super::*;

    /// A program that answers each call at once.
    struct Answering {
        number: u64,
    }

    impl Program for Answering {
        fn send<'a>(&'a mut self, _line: &'a str) -> BoxFuture<'a, Result<(), ProgramError>> {
            self.number += 1;
            Box::pin(async { Ok(()) })
        }

        fn next(&mut self) -> BoxFuture<'_, Result<String, ProgramError>> {
            Box::pin(async {
                tokio::task::yield_now().await;
                Ok(json!({ "jsonrpc": "2.0", "id": self.number, "result": null }).to_string())
            })
        }
    }

    impl Programs for Answering {
        fn start(
            &self,
            _command: &[String],
            _environment: &std::collections::BTreeMap<String, String>,
            _errors: ErrorLines,
        ) -> Result<Box<dyn Program>, ProgramError> {
            Ok(Box::new(Answering { number: 0 }))
        }
    }

    #[test]
    fn fleets_of_one_adapter_take_turns() {
        let launch: Launch = serde_json::from_value(json!({ "command": ["adapter"] })).unwrap();
        let called = ("engine adapter".to_owned(), "a file".to_owned());
        let child = Child::new(called, launch, Arc::new(Answering { number: 0 }), Arc::new(OsClock::new()));
        let calls = RefCell::new(String::new());
        let fleet = |name: char| {
            let (child, calls) = (&child, &calls);
            async move {
                for _ in 0..20 {
                    child.call("observe", Json::Null).await.unwrap();
                    calls.borrow_mut().push(name);
                }
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(join(fleet('a'), fleet('b')));
        assert_eq!(calls.take(), "ab".repeat(20));
    }

    #[test]
    fn words_are_one_short_line() {
        assert_eq!(plain("no\nroom\t"), "no room");
        assert_eq!(plain(" \n"), "it gave no reason");
        assert_eq!(plain(&"é".repeat(1000)).len(), WORDS_BYTES_MAX);
        assert_eq!(plain(&format!("a{}", "é".repeat(1000))).len(), WORDS_BYTES_MAX - 1);
    }
}
