//! Who runs where on this machine: which process holds a directory, and how a node's process was started.
//!
//! ```text
//! DATA/dev.lock               held by a `tontine dev`; holds its process id
//! DATA/node-2/process         the process id of the node that has this directory open
//! COORDINATION/nodes/2.json   the command that started node 2, for whoever has to start it again
//! ```
//!
//! These are notes for people. What keeps two processes apart are the kernel's locks, never a process id in a file.
//!
//! **Architecture Invariant:** a note that cannot be written or read costs a sentence, never a start.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use model::NodeId;
use serde::{Deserialize, Serialize};

use crate::failure::CliError;
use crate::stop_signals::STOP_WITH_STDIN;

/// The variable that holds the password of Redis clients.
pub(crate) const PASSWORD_VARIABLE: &str = "TONTINE_PASSWORD";

/// The lock of a whole `dev` cluster, below its data directory.
const DEV_LOCK: &str = "dev.lock";
/// The note with the process id of a node, below the node's data directory.
const PROCESS: &str = "process";
/// The notes on how nodes were started, below the coordination directory.
const NODES: &str = "nodes";

/// A cluster's data directory, held until this is dropped or the process ends.
pub(crate) struct HeldDirectory {
    _lock: File,
}

/// Refuses a path at which a file lies where a directory is wanted.
pub(crate) fn refuse_file(data_dir: &Path) -> Result<(), CliError> {
    // What cannot be looked at is told by whoever opens it.
    if std::fs::metadata(data_dir).is_ok_and(|found| !found.is_dir()) {
        return Err(CliError::Usage(format!(
            "--data-dir must be a directory, and {} is a file; choose another path (a new directory is created)",
            data_dir.display()
        )));
    }
    Ok(())
}

/// Holds a cluster's data directory for this process; makes it if need be.
pub(crate) fn hold(data_dir: &Path) -> Result<HeldDirectory, CliError> {
    refuse_file(data_dir)?;
    let shown = data_dir.display();
    std::fs::create_dir_all(data_dir)
        .map_err(CliError::io(format!("cannot create the directory {shown}")))?;
    let path = data_dir.join(DEV_LOCK);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(CliError::io(format!("cannot write {}", path.display())))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Whoever has just taken the lock may not have written yet; then there is no name to give.
            let _ = file.read_to_string(&mut holder);
            return Err(CliError::Other(format!(
                "the data directory {shown} is in use by another `tontine dev`{}; stop that process, or choose another \
                 directory with --data-dir",
                named(&holder)
            )));
        }
        Err(TryLockError::Error(error)) => {
            return Err(CliError::io(format!("cannot lock {}", path.display()))(error));
        }
    }
    let note = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write_process(&mut file));
    note.map_err(CliError::io(format!("cannot write {}", path.display())))?;
    Ok(HeldDirectory { _lock: file })
}

fn write_process(file: &mut File) -> std::io::Result<()> {
    writeln!(file, "{}", std::process::id())
}

fn named(holder: &str) -> String {
    match holder.trim() {
        "" => String::new(),
        id => format!(" (process {id})"),
    }
}

/// Notes that this process has a node's data directory open.
pub(crate) fn note_process(data_dir: &Path) {
    // Without the note, a refusal names no process.
    let _ = File::create(data_dir.join(PROCESS)).and_then(|mut file| write_process(&mut file));
}

/// The process that has a node's data directory open, in brackets, as far as anybody noted it.
pub(crate) fn noted_process(data_dir: &Path) -> String {
    named(&std::fs::read_to_string(data_dir.join(PROCESS)).unwrap_or_default())
}

/// How a node was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// Where relative paths of the command begin.
    pub(crate) directory: String,
    /// The program and its arguments, ready for a shell; without the password.
    pub(crate) command: String,
    /// Whether Redis clients had to give a password.
    pub(crate) needs_password: bool,
    /// The process that was started so.
    pub(crate) process_id: u32,
}

/// What became of a process of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// It is no more.
    Ended,
    /// It runs, or waits for something.
    Runs,
    /// Somebody has stopped it (SIGSTOP, a debugger), so that it does nothing.
    Stopped,
}

impl Launch {
    /// This very process.
    fn this(needs_password: bool) -> Launch {
        let directory = std::env::current_dir().unwrap_or_default().display().to_string();
        let command = shell(&repeatable(std::env::args()));
        Launch { directory, command, needs_password, process_id: std::process::id() }
    }

    /// What became of the process; `None` where the system does not tell.
    pub(crate) fn process(&self) -> Option<Process> {
        if !Path::new("/proc/self/stat").exists() {
            return None;
        }
        let read = |file: &str| std::fs::read(format!("/proc/{}/{file}", self.process_id)).ok();
        let (Some(words), Some(stat)) = (read("cmdline"), read("stat")) else { return Some(Process::Ended) };
        let words = String::from_utf8_lossy(&words);
        let words = words.split_terminator('\0').map(str::to_owned);
        if shell(&repeatable(words)) != self.command {
            // Its number was given to another one since.
            return Some(Process::Ended);
        }
        // The state comes after the name, which is in brackets and may hold anything.
        let stat = String::from_utf8_lossy(&stat);
        match stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()) {
            Some('T' | 't') => Some(Process::Stopped),
            Some('Z' | 'X') => Some(Process::Ended),
            _ => Some(Process::Runs),
        }
    }
}

/// The words of a command line that somebody may repeat by hand, and that others may see.
fn repeatable(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut is_secret = false;
    for word in words {
        // A node that stopped requiring a password needs to be told so once.
        let for_one_start = [STOP_WITH_STDIN, "--no-password"].contains(&word.as_str());
        if std::mem::take(&mut is_secret) || for_one_start {
            continue;
        }
        is_secret = word == "--password";
        if !is_secret && !word.starts_with("--password=") {
            kept.push(word);
        }
    }
    kept
}

/// Words as a shell reads them.
pub(crate) fn shell(words: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c))
    };
    let quoted = |word: &String| {
        if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A command for a shell that hands its password on to the node, if the node needs one. Where the variable is not set
/// the node gets an empty password, and refuses to start with it.
pub(crate) fn with_password(command: &str, needs_password: bool) -> String {
    match needs_password {
        true => format!("{PASSWORD_VARIABLE}=\"${PASSWORD_VARIABLE}\" {command}"),
        false => command.to_owned(),
    }
}

/// A command of `redis-cli` that gives the node's password, if the node needs one.
pub(crate) fn with_redis_password(command: &str, needs_password: bool) -> String {
    match needs_password {
        true => format!("REDISCLI_AUTH=\"${PASSWORD_VARIABLE}\" {command}"),
        false => command.to_owned(),
    }
}

fn launch_path(coordination_dir: &Path, node: NodeId) -> PathBuf {
    coordination_dir.join(NODES).join(format!("{}.json", node.0))
}

/// Notes how this process, which runs a node itself, was started.
pub(crate) fn note_launch(coordination_dir: &Path, node: NodeId, needs_password: bool) {
    let path = launch_path(coordination_dir, node);
    let note = serde_json::to_vec(&Launch::this(needs_password)).expect("plain data becomes JSON");
    // Without the note, the doctor puts a command together from what the other nodes tell.
    let _ = std::fs::create_dir_all(coordination_dir.join(NODES)).and_then(|()| std::fs::write(path, note));
}

/// How a node was started the last time, if that is known on this machine.
pub(crate) fn noted_launch(coordination_dir: &Path, node: NodeId) -> Option<Launch> {
    serde_json::from_slice(&std::fs::read(launch_path(coordination_dir, node)).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_directory_names_its_holder_until_it_is_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let held = hold(&data).unwrap_or_else(|error| panic!("{error}"));
        let Err(error) = hold(&data) else { panic!("held twice") };
        let message = error.to_string();
        assert!(message.contains(&data.display().to_string()), "{message}");
        assert!(message.contains(&format!("(process {})", std::process::id())), "{message}");
        drop(held);
        assert!(hold(&data).is_ok());
    }

    #[test]
    fn a_note_on_a_start_holds_no_password() {
        let words =
            "tontine serve --password secret --id=2 --stop-with-stdin --no-password --password=secret";
        let kept = repeatable(words.split(' ').map(str::to_owned));
        assert_eq!(kept, ["tontine", "serve", "--id=2"]);
    }

    #[test]
    fn a_process_is_known_by_its_number_and_its_command() {
        let this = Launch::this(false);
        if let Some(process) = this.process() {
            assert_eq!(process, Process::Runs);
            let other = Launch { command: "tontine serve --id=2".to_owned(), ..this };
            assert_eq!(other.process(), Some(Process::Ended), "its number was given to this one");
        }
    }

    #[test]
    fn commands_can_be_pasted_into_a_shell() {
        let plain = with_password("tontine serve", false);
        assert_eq!(plain, "tontine serve");
        let asked = with_password("tontine serve", true);
        assert_eq!(asked, r#"TONTINE_PASSWORD="$TONTINE_PASSWORD" tontine serve"#);
        let words = ["/a b/tontine", "serve", "--id=2", "", "it's"].map(str::to_owned);
        assert_eq!(shell(&words), r"'/a b/tontine' serve --id=2 '' 'it'\''s'");
    }
}
