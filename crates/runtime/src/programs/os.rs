//! Processes of this system.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::{ErrorLines, LINE_BYTES_MAX, Program, ProgramError, Programs};
use crate::BoxFuture;

/// How long a program may take to end once its input has ended, and once more after it was asked to.
const END_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest line of standard error that is told whole, in bytes.
const ERROR_LINE_BYTES_MAX: u64 = 8 * 1024;
/// Lines of standard error that are told in each [`ERROR_SPAN`]; a program that writes more is not listened to meanwhile.
const ERROR_LINES_MAX: u32 = 100;
/// See [`ERROR_LINES_MAX`].
const ERROR_SPAN: Duration = Duration::from_secs(10);

/// Starts processes, each in its own group: Ctrl-C at a terminal reaches their parent only. Call it within a `tokio`
/// runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsPrograms;

impl Programs for OsPrograms {
    fn start(
        &self,
        command: &[String],
        environment: &BTreeMap<String, String>,
        told: ErrorLines,
    ) -> Result<Box<dyn Program>, ProgramError> {
        let Some((program, words)) = command.split_first() else { return Err(ProgramError::NoCommand) };
        let mut starting = Command::new(program);
        starting.args(words).envs(environment).process_group(0).kill_on_drop(true);
        starting.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = starting.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => ProgramError::NotFound { program: program.clone() },
            _ => ProgramError::NotStarted { program: program.clone(), reason: error.to_string() },
        })?;
        let stdout = child.stdout.take().expect("stdout is piped");
        tokio::spawn(tell(child.stderr.take().expect("stderr is piped"), told));
        let stdin = child.stdin.take();
        Ok(Box::new(OsProgram { child: Some(child), stdin, stdout, read: Vec::new(), looked: 0 }))
    }
}

struct OsProgram {
    /// There until it is dropped.
    child: Option<Child>,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// What was read and not handed out yet.
    read: Vec<u8>,
    /// How much of that has no end of a line.
    looked: usize,
}

impl OsProgram {
    async fn write(&mut self, line: &str) -> Result<(), ProgramError> {
        if line.len() > LINE_BYTES_MAX {
            return Err(ProgramError::LineTooLong);
        }
        let Some(stdin) = &mut self.stdin else {
            return Err(ProgramError::Ended { how: "its input is closed".to_owned() });
        };
        let written = async {
            stdin.write_all(format!("{line}\n").as_bytes()).await?;
            stdin.flush().await
        };
        match written.await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(self.ended()),
            Err(error) => Err(ProgramError::Refused { reason: error.to_string() }),
        }
    }

    async fn line(&mut self) -> Result<String, ProgramError> {
        loop {
            if let Some(end) = self.read[self.looked..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.read.drain(..=self.looked + end).collect();
                self.looked = 0;
                line.pop();
                return String::from_utf8(line).map_err(|_| ProgramError::NotText);
            }
            self.looked = self.read.len();
            if self.looked > LINE_BYTES_MAX {
                return Err(ProgramError::LineTooLong);
            }
            match self.stdout.read_buf(&mut self.read).await {
                Ok(0) => return Err(self.ended()),
                Ok(_) => {}
                Err(error) => return Err(ProgramError::Refused { reason: error.to_string() }),
            }
        }
    }

    /// How it has ended, as far as it has.
    fn ended(&mut self) -> ProgramError {
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        let how = status.map_or_else(|| "its output is closed".to_owned(), |status| status.to_string());
        ProgramError::Ended { how }
    }
}

impl Program for OsProgram {
    fn send<'a>(&'a mut self, line: &'a str) -> BoxFuture<'a, Result<(), ProgramError>> {
        Box::pin(self.write(line))
    }

    fn next(&mut self) -> BoxFuture<'_, Result<String, ProgramError>> {
        Box::pin(self.line())
    }
}

impl Drop for OsProgram {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let Some(child) = self.child.take() else { return };
        // Without a runtime this process is about to end, and dropping the child ends that.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(end(child));
        }
    }
}

/// Waits until a program has ended by itself, asks it to, and ends it.
async fn end(mut child: Child) {
    if tokio::time::timeout(END_TIME_MAX, child.wait()).await.is_ok() {
        return;
    }
    let process = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(process) = process {
        // It may have ended this very moment; it is not waited for yet, so the number is still its own.
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(END_TIME_MAX, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// Tells the lines of standard error, until that ends.
async fn tell(stderr: ChildStderr, told: ErrorLines) {
    let mut stderr = BufReader::new(stderr);
    let (mut began, mut lines) = (Instant::now(), 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut stderr).take(ERROR_LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if began.elapsed() >= ERROR_SPAN {
            if lines > ERROR_LINES_MAX {
                told(&format!("{} lines more were left out", lines - ERROR_LINES_MAX));
            }
            (began, lines) = (Instant::now(), 0);
        }
        lines += 1;
        if lines <= ERROR_LINES_MAX {
            told(String::from_utf8_lossy(&line).trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    fn shell(script: &str) -> (Box<dyn Program>, Arc<Mutex<Vec<String>>>) {
        let said = Arc::new(Mutex::new(Vec::new()));
        let kept = said.clone();
        let command = ["sh", "-c", script].map(str::to_owned);
        let environment = BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]);
        let told: ErrorLines = Arc::new(move |line| kept.lock().push(line.to_owned()));
        (OsPrograms.start(&command, &environment, told).unwrap(), said)
    }

    fn is_running(process: &str) -> bool {
        // One that has ended and was not waited for is listed as Z.
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    }

    async fn until_ended(process: &str) {
        for _ in 0..200 {
            if !is_running(process) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("process {process} still runs");
    }

    #[tokio::test]
    async fn lines_go_in_and_come_out_and_standard_error_is_told() {
        let (mut program, said) =
            shell("while read -r line; do echo \"$GREETING $line\"; echo log >&2; done");
        for word in ["one", "two"] {
            program.send(word).await.unwrap();
            assert_eq!(program.next().await.unwrap(), format!("hello {word}"));
        }
        for _ in 0..100 {
            if said.lock().len() == 2 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{:?}", said.lock());
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_named_and_one_that_ends_says_how() {
        let none: ErrorLines = Arc::new(|_| ());
        let command = ["/no/such/program".to_owned()];
        let missing = OsPrograms.start(&command, &BTreeMap::new(), none).err().unwrap();
        assert_eq!(missing.to_string(), "there is no program /no/such/program");
        let (mut program, _) = shell("exit 3");
        let ended = program.next().await.unwrap_err();
        assert!(matches!(ended, ProgramError::Ended { .. }), "{ended}");
    }

    #[tokio::test]
    async fn a_line_without_end_is_cut_off_and_never_held() {
        let (mut program, _) = shell("exec cat /dev/zero");
        assert!(matches!(program.next().await, Err(ProgramError::LineTooLong)));
    }

    #[tokio::test]
    async fn a_flood_of_errors_is_told_in_part_and_stops_nobody() {
        let (mut program, said) =
            shell("i=0; while [ $i -lt 5000 ]; do echo $i >&2; i=$((i+1)); done; echo done");
        assert_eq!(program.next().await.unwrap(), "done");
        assert!(said.lock().len() <= ERROR_LINES_MAX as usize, "{}", said.lock().len());
    }

    #[tokio::test]
    async fn a_dropped_program_ends_also_where_it_listens_to_nothing() {
        let (mut program, _) = shell("trap '' TERM; echo $$; while :; do sleep 1; done");
        let process = program.next().await.unwrap();
        assert!(is_running(&process));
        drop(program);
        until_ended(&process).await;
    }

    #[tokio::test]
    async fn what_a_program_has_started_outlives_it() {
        let (mut program, _) = shell("sleep 60 >/dev/null 2>&1 & echo $! $$; cat");
        let ids = program.next().await.unwrap();
        let (machine, process) = ids.split_once(' ').unwrap();
        drop(program);
        until_ended(process).await;
        assert!(is_running(machine), "the end of an adapter ended a machine");
        let machine = rustix::process::Pid::from_raw(machine.parse().unwrap()).unwrap();
        rustix::process::kill_process(machine, rustix::process::Signal::TERM).unwrap();
    }
}
