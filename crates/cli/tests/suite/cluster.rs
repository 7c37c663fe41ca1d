//! A cluster that `tontine dev` runs, and commands against it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, Resource, Rlimit, kill_process, prlimit};
use serde_json::Value as Json;
use tempfile::TempDir;

/// The binary under test.
pub(crate) const TONTINE: &str = env!("CARGO_BIN_EXE_tontine");
/// Longest wait for anything; generous, because the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A process that ends with its owner.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    stderr: PathBuf,
}

impl Process {
    /// Starts a command; its stderr goes to `stderr`.
    pub(crate) fn start(command: &mut Command, stderr: PathBuf) -> Process {
        let file = std::fs::File::create(&stderr).unwrap();
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Process { child, lines, stderr }
    }

    /// Waits for a line of stdout that contains `words`, and returns all lines up to it.
    pub(crate) fn await_line(&self, words: &str) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let found = line.contains(words);
                    seen.push(line);
                    if found {
                        return seen;
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("no {words:?} in time; stderr:\n{}", self.stderr()),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!(
                        "ended without {words:?}; stdout:\n{}\nstderr:\n{}",
                        seen.join("\n"),
                        self.stderr()
                    )
                }
            }
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it said on stderr so far.
    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Asks it to stop with a signal and returns its exit code.
    pub(crate) fn stop(&mut self, signal: Signal) -> Option<i32> {
        if let Ok(None) = self.child.try_wait() {
            kill_process(pid(self.child.id()), signal).expect("it is our child");
        }
        self.wait()
    }

    /// Waits for its end and returns its exit code; kills it when it takes too long.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        panic!("it did not end in time; stderr:\n{}", self.stderr());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // It ends its own children when it is asked, so that comes first.
            let _ = kill_process(pid(self.child.id()), Signal::INT);
            let deadline = Instant::now() + Duration::from_secs(20);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files of a process may not grow over this many bytes from now on; `None` makes room again.
pub(crate) fn limit_files(process: u32, bytes: Option<u64>) {
    let limit = |current| prlimit(Some(pid(process)), Resource::Fsize, Rlimit { current, maximum: None });
    limit(bytes).expect("the process lives, and is ours");
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
}

/// Sends a signal to a process of ours. On a busy machine threads go on for a while after SIGSTOP; that is waited for.
pub(crate) fn signal(process: u32, signal: Signal) {
    kill_process(pid(process), signal).expect("the process lives, and is ours");
    let deadline = Instant::now() + PATIENCE;
    while signal == Signal::STOP && !has_stopped(process) {
        assert!(Instant::now() < deadline, "process {process} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether none of its threads runs any more.
fn has_stopped(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut states = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    // The state comes behind the name, which may have brackets.
    states.all(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 't', 'Z', 'X'])))
}

/// A cluster in its own folder.
pub(crate) struct Cluster {
    /// Nodes that were started again by hand, by id. Before `dev`, so that they end first.
    restarted: BTreeMap<usize, Process>,
    pub(crate) dev: Process,
    pub(crate) base: u16,
    pub(crate) nodes: u16,
    pub(crate) arguments: Vec<String>,
    /// Variables that `dev` is started with.
    environment: Vec<(&'static str, &'static str)>,
    pub(crate) folder: TempDir,
    /// Process ids of the nodes, if they are separate processes.
    pids: Vec<u32>,
}

/// What a command answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Answer {
    pub(crate) fn of(output: Output) -> Answer {
        Answer {
            code: output.status.code().unwrap_or(-1),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The answer as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The answer as a document.
    pub(crate) fn json(&self) -> Json {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {:?}; stderr: {}", self.text(), self.stderr))
    }

    /// Checks the exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Answer {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.text(), self.stderr);
        self
    }

    /// Checks that it failed with an error for programs, and returns that.
    #[track_caller]
    pub(crate) fn fails_in_json(&self) -> Json {
        assert_eq!(self.code, 2, "stdout: {}\nstderr: {}", self.text(), self.stderr);
        let document: Json = serde_json::from_str(&self.stderr)
            .unwrap_or_else(|error| panic!("{error}; stderr: {}", self.stderr));
        document["error"].clone()
    }

    /// Checks that a node did not start, with these words, and may later.
    #[track_caller]
    pub(crate) fn fails_until_later_with(&self, words: &str) {
        assert_eq!(self.code, 75, "stdout: {}\nstderr: {}", self.text(), self.stderr);
        assert!(self.stderr.contains(words), "{words:?} is not in: {}", self.stderr);
    }

    /// Checks that it ended before what it waited for, with these words.
    #[track_caller]
    pub(crate) fn is_left_open_with(&self, words: &str) {
        assert_eq!(self.code, 3, "stdout: {}\nstderr: {}", self.text(), self.stderr);
        assert!(self.stderr.contains(words), "{words:?} is not in: {}", self.stderr);
    }

    /// Checks that it failed with these words.
    #[track_caller]
    pub(crate) fn fails_with(&self, words: &str) {
        assert_eq!(self.code, 2, "stdout: {}\nstderr: {}", self.text(), self.stderr);
        assert!(self.stderr.contains(words), "{words:?} is not in: {}", self.stderr);
    }
}

impl Cluster {
    /// Starts a new cluster of three nodes.
    pub(crate) fn start() -> Cluster {
        Cluster::with(3, &[])
    }

    /// Starts a new cluster with further arguments of `dev`.
    pub(crate) fn with(nodes: u16, further: &[&str]) -> Cluster {
        Cluster::with_environment(nodes, further, &[])
    }

    /// As [`Self::with`], with variables in the environment of `dev`.
    pub(crate) fn with_environment(
        nodes: u16,
        further: &[&str],
        environment: &[(&'static str, &'static str)],
    ) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let base = free_port_base();
        let data = folder.path().join("data");
        let mut arguments = vec!["dev".to_owned(), format!("--nodes={nodes}"), format!("--port-base={base}")];
        if !further.iter().any(|word| word.starts_with("--data-dir=")) {
            arguments.push(format!("--data-dir={}", data.display()));
        }
        arguments.extend(further.iter().map(|&word| word.to_owned()));
        let (dev, pids) = start_dev(&arguments, environment, &folder, nodes);
        let (restarted, environment) = (BTreeMap::new(), environment.to_vec());
        Cluster { restarted, dev, base, nodes, arguments, environment, folder, pids }
    }

    /// Stops the cluster cleanly and starts it again.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Stops the cluster cleanly.
    pub(crate) fn stop(&mut self) {
        assert_eq!(self.dev.stop(Signal::INT), Some(0), "{}", self.dev.stderr());
        assert!(self.dev.stderr().contains("stopped cleanly"));
    }

    /// A further word of its command from the next start on.
    pub(crate) fn add_argument(&mut self, word: &str) {
        self.arguments.push(word.to_owned());
    }

    /// Starts it again as it was started.
    pub(crate) fn start_again(&mut self) {
        (self.dev, self.pids) = start_dev(&self.arguments, &self.environment, &self.folder, self.nodes);
    }

    /// Variables that `dev` is started with from now on.
    pub(crate) fn set_environment(&mut self, environment: &[(&'static str, &'static str)]) {
        self.environment = environment.to_vec();
    }

    /// Kills a node's process outright. Node ids begin with 1.
    pub(crate) fn kill_node(&self, node: usize) {
        self.signal_node(node, Signal::KILL);
    }

    /// Sends a signal to a node's process.
    pub(crate) fn signal_node(&self, node: usize, signal: Signal) {
        self::signal(self.pids[node - 1], signal);
    }

    /// The command that `dev` printed for starting a killed node again.
    pub(crate) fn start_command(&self, node: usize) -> String {
        let marker = format!("node {node} has exited");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let stderr = self.dev.stderr();
            let line = stderr.lines().skip_while(|line| !line.starts_with(&marker)).nth(1);
            // A line is whole when its end is there.
            if let Some(line) = line.filter(|line| stderr.contains(&format!("{line}\n"))) {
                return line.trim().to_owned();
            }
            assert!(Instant::now() < deadline, "dev does not say how node {node} starts again:\n{stderr}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks a node that `dev` started to stop, or kills it, and waits for its end.
    pub(crate) fn end_node(&self, node: usize, signal: Signal) {
        self.signal_node(node, signal);
        let _ = self.start_command(node);
    }

    /// The files of a node's process may not grow over this many bytes from now on, as if its disk were full; `None`
    /// makes room again.
    pub(crate) fn limit_files(&self, node: usize, bytes: Option<u64>) {
        limit_files(self.pids[node - 1], bytes);
    }

    /// Starts a node that has ended again, with the command that `dev` printed.
    pub(crate) fn start_node_again(&mut self, node: usize) {
        self.start_node_with(node, &[]);
    }

    /// What a node that was started again by hand has said on its console so far.
    pub(crate) fn said_again(&self, node: usize) -> String {
        self.restarted[&node].stderr()
    }

    /// Waits until a node that was started again by hand has ended.
    pub(crate) fn await_end(&mut self, node: usize) {
        if let Some(mut before) = self.restarted.remove(&node) {
            before.wait();
        }
    }

    /// As [`Self::start_node_again`], with further variables in its environment.
    pub(crate) fn start_node_with(&mut self, node: usize, environment: &[(&str, &Path)]) {
        self.start_node_as(node, &[], environment);
    }

    /// As [`Self::start_node_again`], with further arguments.
    pub(crate) fn start_node_with_words(&mut self, node: usize, further: &[&str]) {
        self.start_node_as(node, further, &[]);
    }

    fn start_node_as(&mut self, node: usize, further: &[&str], environment: &[(&str, &Path)]) {
        let command_line = self.start_command(node);
        self.await_end(node);
        // The variable in front, if any, is for a shell.
        let mut words = command_line.split(' ').skip_while(|word| word.starts_with("TONTINE_PASSWORD="));
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(further).envs(environment.iter().copied());
        let process = Process::start(&mut command, self.folder.path().join(format!("node-{node}.stderr")));
        process.await_line(&format!("node {node}"));
        self.pids[node - 1] = process.id();
        self.restarted.insert(node, process);
    }

    /// What a node that has ended says when it is started again, and refused.
    pub(crate) fn refused_again(&self, node: usize) -> String {
        let command_line = self.start_command(node);
        let mut words = command_line.split(' ');
        let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
        assert!(!output.status.success(), "it is started");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// What a node that has ended says when it is started again without the words that begin so, and refused.
    pub(crate) fn refused_again_without(&self, node: usize, without: &str) -> String {
        let command_line = self.start_command(node);
        let mut words = command_line.split(' ').filter(|word| !word.starts_with(without));
        let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
        assert!(!output.status.success(), "it is started");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Whether this machine lets a test mount its own disk.
    pub(crate) fn can_have_small_disks(&self) -> bool {
        let mount = "mount -t tmpfs -o size=1m tmpfs \"$0\"";
        let tried = Command::new("unshare").args(["-rm", "sh", "-c", mount]).arg(self.folder.path()).output();
        tried.is_ok_and(|output| output.status.success())
    }

    /// As [`Self::start_node_again`], on its own empty disk of that many bytes, and goes with the node.
    pub(crate) fn start_node_on_small_disk(&mut self, node: usize, bytes: u64) {
        let command_line = self.start_command(node);
        self.await_end(node);
        let directory = self.data().join(format!("node-{node}"));
        std::fs::create_dir_all(&directory).unwrap();
        let script = format!("mount -t tmpfs -o size={bytes} tmpfs {} && exec \"$@\"", directory.display());
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &script, "sh"]).args(command_line.split(' '));
        let process = Process::start(&mut command, self.folder.path().join(format!("node-{node}.stderr")));
        process.await_line(&format!("node {node}"));
        self.pids[node - 1] = process.id();
        self.restarted.insert(node, process);
    }

    /// Native address of a node.
    pub(crate) fn native(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.base + node)
    }

    /// Redis address of a node.
    pub(crate) fn resp(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.base + 100 + node)
    }

    /// HTTP address of a node.
    pub(crate) fn http(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.base + 200 + node)
    }

    /// Native addresses of all nodes.
    pub(crate) fn connect(&self) -> String {
        (1..=self.nodes).map(|node| self.native(node)).collect::<Vec<_>>().join(",")
    }

    /// The data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A file in the cluster's folder.
    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Makes a file in the cluster's folder.
    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        std::fs::write(self.folder.path().join(name), contents).unwrap();
        self.file(name)
    }

    /// A `tontine` command against this cluster.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(TONTINE);
        command.args(arguments).env("TONTINE_CONNECT", self.connect()).stdin(Stdio::null());
        // A test machine may hang for longer than an application would wait.
        command.env("TONTINE_DEADLINE", "1m");
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Answer {
        Answer::of(self.command(arguments).output().unwrap())
    }

    /// Runs a command that must succeed and answers in JSON.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Json {
        self.run(&[arguments, &["--json"]].concat()).exits(0).json()
    }
}

/// A `tontine` command without a cluster.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(TONTINE);
    command.args(arguments);
    command
}

/// Runs `tontine` without a cluster.
pub(crate) fn tontine(arguments: &[&str]) -> Answer {
    Answer::of(command(arguments).stdin(Stdio::null()).output().unwrap())
}

fn start_dev(
    arguments: &[String],
    environment: &[(&str, &str)],
    folder: &TempDir,
    nodes: u16,
) -> (Process, Vec<u32>) {
    let mut command = Command::new(TONTINE);
    command.args(arguments).envs(environment.iter().copied());
    let dev = Process::start(&mut command, folder.path().join("dev.stderr"));
    dev.await_line("Ctrl-C stops the cluster");
    let lines = dev.await_line(&format!("node {nodes} is process"));
    let pids: Vec<u32> =
        lines.iter().filter_map(|line| line.split(" is process ").nth(1)?.parse().ok()).collect();
    assert_eq!(pids.len(), usize::from(nodes), "{lines:?}");
    (dev, pids)
}

/// A port base that no other test uses, below the ports that the system hands out. Other test processes run beside this
/// one, and a cluster that starts again leaves its ports free for a moment: so the base is locked until this process ends.
pub(crate) fn free_port_base() -> u16 {
    const FIRST: u16 = 10_000;
    const GROUPS: u16 = 73;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static LOCKED: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let locks = std::env::temp_dir().join("tontine-test-ports");
    std::fs::create_dir_all(&locks).unwrap();
    loop {
        // Groups of 300 ports hold ten bases, with the Redis ports a hundred above and those of HTTP two hundred; each test
        // process begins elsewhere.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let group = (u16::try_from(std::process::id() % u32::from(GROUPS)).unwrap() + number / 10) % GROUPS;
        let base = FIRST + group * 300 + (number % 10) * 10;
        let lock = File::create(locks.join(base.to_string())).unwrap();
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
            && (1..10).all(|n| [0, 100, 200].iter().all(|offset| is_free(base + offset + n)))
        {
            LOCKED.lock().unwrap().push(lock);
            return base;
        }
    }
}

/// Whether the folder holds this file.
pub(crate) fn exists(path: &str) -> bool {
    Path::new(path).exists()
}
