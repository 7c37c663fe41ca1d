//! A server process of our own: started in a scratch directory, watched, and stopped by its number.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::processes::{Watched, start_ticks};

/// How long a server may take until it answers.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to stop before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a server is asked whether it is ready, or gone.
pub(super) const POLL: Duration = Duration::from_millis(20);
/// How much of a server's output an error shows.
const LOG_TAIL_LINES: usize = 20;

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The program is not installed.
    #[error("{program} is not installed; install it with: {install}")]
    NotInstalled {
        /// Which.
        program: String,
        /// The command that would help.
        install: String,
    },
    /// The program could not be started.
    #[error("cannot start {program}: {source}")]
    NotStarted {
        /// Which.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The program ended before it answered.
    #[error("{program} ended with {status} before it was ready; its last output:\n{output}")]
    Ended {
        /// Which.
        program: String,
        /// How.
        status: ExitStatus,
        /// Its last lines.
        output: String,
    },
    /// The program did not answer in time.
    #[error("{program} was not ready after {} s; its last output:\n{output}", START_TIMEOUT.as_secs())]
    NotReady {
        /// Which.
        program: String,
        /// Its last lines.
        output: String,
    },
    /// No scratch directory, no free port, or no log.
    #[error("cannot prepare a place for a server: {0}")]
    NoPlace(#[from] io::Error),
}

/// A running server. Dropped, it is stopped.
#[derive(Debug)]
pub struct ServerProcess {
    name: String,
    program: String,
    child: Child,
    directory: TempDir,
    log: PathBuf,
}

/// What to start.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub name: &'a str,
    pub program: &'a Path,
    pub arguments: Vec<String>,
    pub directory: TempDir,
    /// The command that installs a missing program.
    pub install: &'a str,
}

impl ServerProcess {
    pub(super) fn start(start: Start<'_>) -> Result<Self, PeerError> {
        let log = start.directory.path().join("output.log");
        let output = File::create(&log)?;
        let program = start.program.display().to_string();
        let mut command = Command::new(start.program);
        // SAFETY: between fork and exec this makes one system call, allocates nothing and takes no lock.
        unsafe { command.pre_exec(end_with_parent) };
        let child = command
            .args(&start.arguments)
            .current_dir(start.directory.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => {
                    PeerError::NotInstalled { program: program.clone(), install: start.install.to_owned() }
                }
                _ => PeerError::NotStarted { program: program.clone(), source },
            })?;
        Ok(ServerProcess { name: start.name.to_owned(), program, child, directory: start.directory, log })
    }

    /// Waits until `ready` says yes.
    pub(super) fn wait_until<T>(
        &mut self,
        mut ready: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T, PeerError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                let (program, output) = (self.program.clone(), self.output_tail());
                return Err(PeerError::Ended { program, status, output });
            }
            if let Some(answer) = ready(self) {
                return Ok(answer);
            }
            if Instant::now() >= deadline {
                return Err(PeerError::NotReady {
                    program: self.program.clone(),
                    output: self.output_tail(),
                });
            }
            thread::sleep(POLL);
        }
    }

    /// What reports call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process and its children, to be watched.
    pub fn watched(&self) -> Vec<Watched> {
        Watched::tree(self.pid(), &self.name)
    }

    /// Its scratch directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Everything it has printed so far.
    pub fn output(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    fn output_tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// Bytes in its scratch directory: what it keeps on disk.
    pub fn bytes_on_disk(&self) -> u64 {
        directory_bytes(self.directory())
    }

    /// Asks it to stop, waits, and kills what does not: the process, then children it left behind.
    pub fn stop(mut self) {
        self.stop_now();
    }

    fn stop_now(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let children: Vec<(u32, Option<u64>)> =
            self.watched().iter().skip(1).map(|child| (child.pid, start_ticks(child.pid))).collect();
        signal(self.pid(), Signal::TERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            // A failure here means that it just ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        for (child, started) in children {
            // The same number and start means the same process: numbers are reused.
            if started.is_some() && start_ticks(child) == started {
                signal(child, Signal::KILL);
            }
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.stop_now();
    }
}

/// Asks the kernel to stop this process when the thread that started it is gone: a benchmark that is killed leaves
/// no server behind.
fn end_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?)
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // A process that is gone already needs no signal.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

fn directory_bytes(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => directory_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// A TCP port on loopback that nobody listens on just now.
pub(super) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// What `dev --port-base` can be given on this machine just now: nodes that serve no default port, where people who
/// try something else would meet them unawares. It lies above the ports that Linux hands out: a
/// connection keeps one of those for a minute after its end, so no row of them need be free.
pub(super) fn free_base() -> io::Result<u16> {
    const NODES_MAX: u16 = 16;
    const FIRST: u16 = 61_000;
    // Ports of nodes begin at the base, a hundred above and two hundred above; 300 ports hold five bases.
    const GROUPS: u32 = 15;
    const BASES: u32 = GROUPS * 5;
    // Each process begins elsewhere, and each call in it.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    for _ in 0..BASES {
        let number = (process::id() % BASES + NEXT.fetch_add(1, Ordering::Relaxed)) % BASES;
        let (group, place) = (number as u16 / 5, number as u16 % 5);
        let base = FIRST + group * 300 + place * 20;
        if (1..=NODES_MAX).all(|node| [0, 100, 200].iter().all(|offset| is_free(base + offset + node))) {
            return Ok(base);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no range of free ports was found"))
}

/// An empty directory, below `parent` if given, so that a benchmark can choose the disk.
pub(super) fn scratch(parent: Option<&Path>) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("bench-");
    match parent {
        Some(parent) => builder.tempdir_in(parent),
        None => builder.tempdir(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn start(program: &str, arguments: &[&str]) -> Result<ServerProcess, PeerError> {
        ServerProcess::start(Start {
            name: "peer",
            program: Path::new(program),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            directory: scratch(None).unwrap(),
            install: "apt-get install peer",
        })
    }

    #[test]
    fn a_free_base_leaves_room_for_the_ports_of_sixteen_nodes_and_is_no_port_that_is_taken() {
        let first = free_base().unwrap();
        let _taken = TcpListener::bind(("127.0.0.1", first + 116)).unwrap();
        // More calls than there are bases.
        for _ in 0..100 {
            let base = free_base().unwrap();
            assert!(base.checked_add(200 + 16).is_some());
            let served = |port: u16| {
                (1..=16).any(|node| [0, 100, 200].iter().any(|offset| port == base + offset + node))
            };
            assert!(!served(first + 116), "{base} would serve {}", first + 116);
        }
    }

    #[test]
    fn thousands_of_connections_that_ended_lately_leave_a_base_free() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        for _ in 0..8000 {
            // The side that closes first keeps its port for a minute.
            let connection = TcpStream::connect(address).unwrap();
            let accepted = listener.accept().unwrap();
            drop(connection);
            drop(accepted);
        }
        for _ in 0..20 {
            free_base().unwrap();
        }
    }

    #[test]
    fn a_missing_program_is_named_with_its_remedy() {
        let error = start("no-such-program-anywhere", &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no-such-program-anywhere is not installed; install it with: apt-get install peer"
        );
    }

    #[test]
    fn a_program_that_ends_early_shows_what_it_said() {
        let mut server = start("sh", &["-c", "echo bad option; exit 3"]).unwrap();
        let error = server.wait_until(|_| None::<()>).unwrap_err();
        assert!(error.to_string().contains("bad option"), "{error}");
    }

    #[test]
    fn stopping_ends_the_process_and_its_children_and_removes_the_directory() {
        let mut server = start("sh", &["-c", "sleep 60 & echo $! ready; wait"]).unwrap();
        let child = server
            .wait_until(|server| {
                let output = server.output();
                output.strip_suffix(" ready\n").map(|pid| pid.parse::<u32>().unwrap())
            })
            .unwrap();
        assert!(server.watched().iter().any(|process| process.pid == child));
        let (pid, directory) = (server.pid(), server.directory().to_owned());
        server.stop();
        assert_eq!(start_ticks(pid), None);
        let deadline = Instant::now() + Duration::from_secs(120);
        while start_ticks(child).is_some() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        assert_eq!(start_ticks(child), None, "an orphan is left");
        assert!(!directory.exists());
    }
}
