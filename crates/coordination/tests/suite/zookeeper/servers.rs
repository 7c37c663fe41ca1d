//! Real ZooKeeper servers on the loopback interface, for tests of this crate and of the processes.
//!
//! Each is a separate JVM, started through a shell that ends it when the test's process is gone, however that ended.
//! Its data lie in memory where that is possible, and outlive the JVM, which is all that the tests take away.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a test waits for what must happen; a busy machine may need most of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Ports below those that the system hands out, and apart from those of other tests, which may run beside.
const PORTS: std::ops::Range<u16> = 32_000..32_700;

/// A small heap, and no compiler that optimises what a test runs once.
const JAVA_FLAGS: [&str; 5] =
    ["-Xms32m", "-Xmx160m", "-XX:+UseSerialGC", "-Xss512k", "-XX:TieredStopAtLevel=1"];

/// Starts the JVM, says its process id, and ends it when it is told to by a line, or when the standard input ends: then
/// the test's process is gone, and nobody else removes the data.
const KEEPER: &str = r#"
java "$@" >output.log 2>&1 </dev/null & echo $!
read _ && told=yes
kill -9 $! 2>/dev/null; wait
[ "$told" ] || { here=$PWD; cd ..; rm -rf "$here"; rmdir "$PWD"; } 2>/dev/null"#;

/// The class path of the servers, which `./check setup` installs.
fn class_path() -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/parkazoo/tests/servers.py");
        let output = Command::new("python3").arg(script).arg("--installed").output().expect("python3 runs");
        let installed = output.status.success();
        assert!(
            installed,
            "the tests need ZooKeeper, which is not installed; install it with `./check setup`\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("paths are text").trim().to_owned()
    })
}

fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let start = u16::try_from(std::process::id() % u32::from(span)).expect("less than the span");
    loop {
        let offset = (start + NEXT.fetch_add(1, Ordering::Relaxed)) % span;
        if TcpListener::bind(("127.0.0.1", PORTS.start + offset)).is_ok() {
            return PORTS.start + offset;
        }
    }
}

/// Waits until something holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// One server.
pub(crate) struct Server {
    directory: PathBuf,
    number: usize,
    port: u16,
    quorum_ports: (u16, u16),
    running: Option<(Child, Pid)>,
}

impl Server {
    fn new(directory: PathBuf, number: usize) -> Server {
        let quorum_ports = (free_port(), free_port());
        Server { directory, number, port: free_port(), quorum_ports, running: None }
    }

    /// Where clients reach it.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Where its data lie.
    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn configure(&self, members: &str) {
        fs::create_dir_all(self.data()).unwrap();
        fs::write(self.data().join("myid"), self.number.to_string()).unwrap();
        let text = format!(
            "tickTime=500\ninitLimit=20\nsyncLimit=10\nmaxSessionTimeout=60000\ndataDir={}\nclientPort={}\n\
             clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n{members}",
            self.data().display(),
            self.port
        );
        fs::write(self.directory.join("zoo.cfg"), text).unwrap();
    }

    /// Starts it; does not wait until it serves.
    pub(crate) fn start(&mut self) {
        self.start_with("unlimited");
    }

    /// Starts it on a disk that is soon full: no file of it grows beyond this many blocks of 512 bytes.
    pub(crate) fn start_with_little_room(&mut self, blocks_max: u32) {
        self.start_with(&blocks_max.to_string());
    }

    fn start_with(&mut self, file_blocks_max: &str) {
        assert!(self.running.is_none(), "{} runs already", self.address());
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -f {file_blocks_max}\n{KEEPER}"), "keeper"])
            .args(JAVA_FLAGS)
            .args(["-Dzookeeper.admin.enableServer=false", "-Dzookeeper.preAllocSize=64"])
            .args(["-cp", class_path()])
            .args(["org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"])
            .current_dir(&self.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = Pid::from_raw(line.trim().parse().expect("the keeper says the process id")).unwrap();
        self.running = Some((child, pid));
    }

    /// Ends its JVM at once. Its data stay.
    pub(crate) fn kill(&mut self) {
        let Some((mut child, pid)) = self.running.take() else { return };
        // Until its parent is told to, nobody has waited for it: the process id is still its own.
        let _ = kill_process(pid, Signal::KILL);
        let mut keeper = child.stdin.take().expect("it was not taken before");
        // A keeper that is gone has done its work.
        let _ = keeper.write_all(b"end\n");
        drop(keeper);
        child.wait().unwrap();
    }

    /// Stops it: it keeps its connections and answers nothing.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let (_, pid) = self.running.as_ref().expect("it runs");
        kill_process(*pid, signal).unwrap();
    }

    /// Its answer to a four-letter word; empty while it cannot answer.
    pub(crate) fn ask(&self, word: &str) -> String {
        let ask = || {
            let mut stream = TcpStream::connect(self.address())?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(word.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        ask().unwrap_or_default()
    }

    /// `standalone`, `leader`, `follower`, or empty while it does not serve.
    fn mode(&self) -> String {
        let answer = self.ask("srvr");
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).unwrap_or_default().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An ensemble; one server alone is one, too.
pub(crate) struct Ensemble {
    /// Its servers.
    pub(crate) servers: Vec<Server>,
    _directory: TempDir,
}

impl Ensemble {
    /// Starts an ensemble, and waits until it serves.
    pub(crate) fn start(size: usize) -> Ensemble {
        Ensemble::start_through(size, |_, port| port)
    }

    /// The same, where a server's way to another one may lead through something: `way` is told the number of the server
    /// and the port where it follows the other one, and says the port that it is given.
    pub(crate) fn start_through(size: usize, way: impl Fn(usize, u16) -> u16) -> Ensemble {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let directory = tempfile::Builder::new().prefix("tontine-zk-").tempdir_in(place).unwrap();
        let mut servers: Vec<Server> = (1..=size)
            .map(|number| Server::new(directory.path().join(format!("server-{number}")), number))
            .collect();
        let ports: Vec<(usize, (u16, u16))> =
            servers.iter().map(|server| (server.number, server.quorum_ports)).collect();
        for server in &mut servers {
            let line = |(number, (quorum, election)): &(usize, (u16, u16))| {
                let quorum = if *number == server.number { *quorum } else { way(server.number, *quorum) };
                format!("server.{number}=127.0.0.1:{quorum}:{election}\n")
            };
            let members: String = if size == 1 { String::new() } else { ports.iter().map(line).collect() };
            server.configure(&members);
            server.start();
        }
        let ensemble = Ensemble { servers, _directory: directory };
        ensemble.wait_serving();
        ensemble
    }

    /// Waits until every server serves.
    pub(crate) fn wait_serving(&self) {
        wait_until("the ensemble serves", || self.servers.iter().all(|server| !server.mode().is_empty()));
    }

    /// Its address, with a chroot such as `/test`.
    pub(crate) fn address(&self, chroot: &str) -> String {
        let servers: Vec<String> = self.servers.iter().map(Server::address).collect();
        format!("zookeeper://{}{chroot}", servers.join(","))
    }

    /// The server that leads, and one that follows.
    pub(crate) fn leader_and_follower(&self) -> (usize, usize) {
        let find = |mode: &str| self.servers.iter().position(|server| server.mode() == mode);
        (find("leader").expect("one leads"), find("follower").expect("one follows"))
    }
}
