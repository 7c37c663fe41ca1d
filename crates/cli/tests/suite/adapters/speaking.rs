//! An adapter as a controller runs it.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use crate::cluster::{PATIENCE, TONTINE};

/// The fleet of all tests.
pub(crate) const FLEET: &str = "shop";

/// A child that speaks the contract. It ends with its owner.
pub(crate) struct Speaking {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Speaking {
    pub(crate) fn start(words: &[String]) -> Speaking {
        let mut command = Command::new(TONTINE);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (requests, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Speaking { child, requests, answers: BufReader::new(answers) }
    }

    /// Sends a line and does not wait.
    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.requests, "{line}").unwrap();
    }

    /// The next line.
    pub(crate) fn answer(&mut self) -> Json {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// What a call answers, with the fleet of all tests among its parameters.
    pub(crate) fn ask(&mut self, method: &str, mut params: Json) -> Json {
        params["fleet"] = json!(FLEET);
        self.send(&json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string());
        let answer = self.answer();
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)), "{answer}");
        answer
    }

    /// The result of a call that must succeed.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Json) -> Json {
        let answer = self.ask(method, params);
        answer.get("result").unwrap_or_else(|| panic!("{method}: {answer}")).clone()
    }

    /// The message of a call that must fail with this code.
    #[track_caller]
    pub(crate) fn refusal(&mut self, method: &str, params: Json, code: i64) -> String {
        let answer = self.ask(method, params);
        assert_eq!(answer["error"]["code"], code, "{answer}");
        answer["error"]["message"].as_str().unwrap().to_owned()
    }

    /// Kills it outright.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Speaking {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Addresses of this host that no other test has, on any branch that is tested at once.
pub(crate) fn addresses(count: u8) -> String {
    static NEXT: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(1);
    let process = std::process::id();
    let test = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let net = format!("127.{}.{}", 1 + process % 254, process / 254 % 8 * 32 + u32::from(test) % 32);
    format!("{net}.10-{net}.{}", 9 + count)
}

/// The words of a local provider in this directory. Machines that a test leaves are ended by [`Local`].
pub(crate) fn local(directory: &Path, further: &[&str]) -> Vec<String> {
    let dir = format!("--dir={}", directory.display());
    ["adapter", "local", &dir].iter().chain(further).map(|&word| word.to_owned()).collect()
}

/// A directory of machines that ends them all when it goes.
pub(crate) struct Local {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) further: Vec<String>,
}

impl Local {
    pub(crate) fn new(addresses_count: u8) -> Local {
        let further = vec![format!("--addresses={}", addresses(addresses_count))];
        Local { directory: tempfile::tempdir().unwrap(), further }
    }

    pub(crate) fn start(&self) -> Speaking {
        let further: Vec<&str> = self.further.iter().map(String::as_str).collect();
        Speaking::start(&local(self.directory.path(), &further))
    }

    /// The machines that there are.
    pub(crate) fn list(&self) -> Vec<Json> {
        self.start().call("list", json!({}))["instances"].as_array().unwrap().clone()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let mut adapter = self.start();
        let all =
            |adapter: &mut Speaking| adapter.call("list", json!({}))["instances"].as_array().unwrap().clone();
        for instance in all(&mut adapter) {
            adapter.call("terminate", json!({ "instance": instance["id"] }));
        }
        let deadline = Instant::now() + PATIENCE;
        while !all(&mut adapter).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Waits until something is found.
#[track_caller]
pub(crate) fn await_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    await_moving(what, || look().ok_or("not found"))
}

/// The same, for as long as it moves: what takes many small steps takes them slowly on a busy machine.
#[track_caller]
pub(crate) fn await_moving<T, P: PartialEq + Debug>(what: &str, mut look: impl FnMut() -> Result<T, P>) -> T {
    let (mut last, mut since) = (None, Instant::now());
    loop {
        let now = match look() {
            Ok(found) => return found,
            Err(now) => Some(now),
        };
        if now != last {
            (last, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < PATIENCE, "not in time: {what}; it stands at {last:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
