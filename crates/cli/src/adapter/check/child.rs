//! An adapter as a child process: a line in, a line out, and a deadline for each.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use crate::adapter::rpc::LINE_BYTES_MAX;
use crate::failure::CliError;

/// How long it may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(15);
/// Pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// What came of a call.
pub(super) enum CallResult {
    Result(Json),
    Error { code: i32, message: String },
}

/// A process that speaks the contract, or should.
pub(super) struct Child {
    process: std::process::Child,
    requests: Option<ChildStdin>,
    answers: Receiver<String>,
    answer_within: Duration,
    next_id: u64,
    /// The first line that was no answer.
    noise: Option<String>,
}

impl Child {
    pub(super) fn start(command: &[String], answer_within: Duration) -> Result<Child, CliError> {
        let [program, words @ ..] = command else {
            return Err(CliError::Usage("name the adapter's command line behind `--`".to_owned()));
        };
        let mut started = Command::new(program);
        started.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = started.spawn().map_err(CliError::io(format!("cannot start {program}")))?;
        let lost = || CliError::Other(format!("{program} has no standard input or output"));
        let requests = Some(process.stdin.take().ok_or_else(lost)?);
        let output = process.stdout.take().ok_or_else(lost)?;
        let (sender, answers) = channel();
        let read = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("answers".into()).spawn(read);
        thread.map_err(CliError::io("cannot start the thread that reads answers"))?;
        Ok(Child { process, requests, answers, answer_within, next_id: 1, noise: None })
    }

    /// Calls a method and waits for its answer.
    pub(super) fn call(&mut self, method: &str, params: &Json) -> Result<CallResult, String> {
        let id = self.send(method, params)?;
        let answer = self.answer()?;
        if answer["id"] != id {
            return Err(format!("{method}: the answer has another id than the call, which has {id}"));
        }
        told(&answer)
    }

    /// Sends what is no request; it must be answered with this code, and the next call as ever.
    pub(super) fn broken(&mut self, line: &str, wanted: i32) -> Result<(), String> {
        self.write(line)?;
        let answer = self.answer()?;
        match told(&answer)? {
            CallResult::Error { code, .. } if code == wanted && answer["id"].is_null() => Ok(()),
            CallResult::Error { code, .. } => Err(format!(
                "it fails with {code}, or under an id; an error {wanted} under the id null is due"
            )),
            CallResult::Result(_) => {
                Err(format!("it answers with a result; an error {wanted} under the id null is due"))
            }
        }
    }

    /// Calls a method so often without waiting. Every call must be answered once.
    pub(super) fn at_once(&mut self, method: &str, params: &Json, times: usize) -> Result<(), String> {
        let mut wanted =
            (0..times).map(|_| self.send(method, params)).collect::<Result<Vec<u64>, String>>()?;
        while !wanted.is_empty() {
            let answer = self.answer()?;
            let found = wanted.iter().position(|id| answer["id"] == *id);
            let found = found.ok_or("an answer has an id that is of no call")?;
            wanted.swap_remove(found);
        }
        Ok(())
    }

    /// What it wrote beside answers, if anything.
    pub(super) fn noise(&mut self) -> Result<(), String> {
        while let Ok(line) = self.answers.try_recv() {
            self.noise.get_or_insert(line);
        }
        let told = |line: String| {
            format!(
                "it wrote a line of {} bytes that is no answer; write the log to standard error",
                line.len()
            )
        };
        self.noise.take().map_or(Ok(()), |line| Err(told(line)))
    }

    /// Ends its standard input; it must end.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.requests = None;
        let began = Instant::now();
        loop {
            match self.process.try_wait() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) if began.elapsed() < END_TIME_MAX => std::thread::sleep(LOOK_PAUSE),
                Ok(None) => return Err(format!("it still runs after {} s", END_TIME_MAX.as_secs())),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn send(&mut self, method: &str, params: &Json) -> Result<u64, String> {
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.write(&request.to_string()).map(|()| id)
    }

    fn write(&mut self, line: &str) -> Result<(), String> {
        let requests = self.requests.as_mut().ok_or("it has ended")?;
        let written = requests.write_all(format!("{line}\n").as_bytes()).and_then(|()| requests.flush());
        written.map_err(|error| format!("it does not read its standard input: {error}"))
    }

    /// The next answer.
    fn answer(&mut self) -> Result<Json, String> {
        let deadline = Instant::now() + self.answer_within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.answers.recv_timeout(left).map_err(|error| match error {
                RecvTimeoutError::Timeout => format!("no answer within {} s", self.answer_within.as_secs()),
                RecvTimeoutError::Disconnected => "it has ended, or closed its standard output".to_owned(),
            })?;
            if line.len() > LINE_BYTES_MAX {
                return Err(format!("an answer has {} bytes, and {LINE_BYTES_MAX} are the most", line.len()));
            }
            match serde_json::from_str::<Json>(&line) {
                Ok(answer) if answer["jsonrpc"] == "2.0" => return Ok(answer),
                _ => drop(self.noise.get_or_insert(line)),
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn told(answer: &Json) -> Result<CallResult, String> {
    if let Some(result) = answer.get("result") {
        return Ok(CallResult::Result(result.clone()));
    }
    let error = &answer["error"];
    let code = error["code"].as_i64().and_then(|code| i32::try_from(code).ok());
    let code = code.ok_or("an answer has neither a result nor an error with a code")?;
    Ok(CallResult::Error { code, message: error["message"].as_str().unwrap_or_default().to_owned() })
}
