//! How a machine's first process begins.
//!
//! ```text
//!   adapter ── starts ──▶ adapter launch DIR: takes the machine's lock, notes the start ── becomes ──▶ /bin/sh boot.sh
//! ```
//!
//! The lock stays with the process and all that it starts, until the last of them has ended. So an adapter that was killed
//! anywhere in between leaves a machine that the next `ensure` starts, or one that runs.
//!
//! Must never: hand a machine what the adapter's environment holds, beyond what any program needs.

use std::fs::{File, TryLockError};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{WaitOptions, wait};

use super::place::Place;
use super::{LaunchArguments, groups};
use crate::adapter::rpc::RpcFailure;
use crate::failure::CliError;

/// Variables that machines have in common with this process.
const HANDED_ON: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"];
/// How long another process that looks at a lock may keep it.
const LOCK_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Starts a machine's first process, unless it has begun before.
pub(super) fn start(place: &Place) -> Result<(), RpcFailure> {
    if place.has_started() || place.ending().is_some() {
        return Ok(());
    }
    let Some(machine) = place.owned()? else { return Ok(()) };
    let failed = |error| RpcFailure::io(format!("cannot start the machine {}", place.token()))(error);
    let log = File::options().append(true).create(true).open(place.log()).map_err(failed)?;
    // Also where the program's file was replaced meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.args(["adapter", "launch"]).arg(place.directory()).env_clear();
    command.envs(HANDED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.env("MACHINE_ADDRESS", machine.address).env("MACHINE_TOKEN", machine.token);
    command.env("MACHINE_DATA", place.data());
    command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
    command.spawn().map(drop).map_err(failed)
}

/// Takes note of children that have ended: the adapter has none but first processes.
pub(super) fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Becomes a machine's first process. Returns only when it does not.
pub(in crate::adapter) fn launch(arguments: &LaunchArguments) -> Result<ExitCode, CliError> {
    let other = |why: String| CliError::Other(why);
    let place = Place::at(&arguments.place);
    let place = place.ok_or_else(|| other(format!("{} is no machine", arguments.place.display())))?;
    let machine = place.owned().map_err(|failure| other(failure.message))?;
    let machine = machine.ok_or_else(|| other(format!("there is no machine {}", place.token())))?;
    let Some(lock) = taken(&place)? else { return Ok(ExitCode::SUCCESS) };
    place.note_start().map_err(CliError::io("cannot note the start"))?;
    rustix::process::setsid().map_err(|error| CliError::io("cannot open a session")(error.into()))?;
    if let Some(processors) = machine.processors_milli {
        let entered = groups::make(&format!("{}.{}", place.fleet_name(), place.token()), processors);
        let entered = entered.and_then(|group| {
            place.note_group(&group).and_then(|()| groups::enter(&group)).map_err(|error| error.to_string())
        });
        if let Err(why) = entered {
            say!("processors are not capped: {why}");
        }
    }
    // From here on it stays open in whatever this process becomes and starts.
    fcntl_setfd(&lock, FdFlags::empty())
        .map_err(|error| CliError::io("cannot hand on the lock")(error.into()))?;
    let error = Command::new("/bin/sh").arg(place.script()).current_dir(place.data()).exec();
    Err(CliError::io("cannot run /bin/sh")(error))
}

/// The lock of a machine that has not begun and is not being ended; `None` where it has, or is.
fn taken(place: &Place) -> Result<Option<File>, CliError> {
    let file = File::options().read(true).write(true).open(place.lock());
    let file = file.map_err(CliError::io("cannot open the machine's lock"))?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) if place.has_started() || place.ending().is_some() => return Ok(None),
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if place.has_started() => return Ok(None),
            // Adapters look whether it is held.
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIME_MAX => {
                std::thread::sleep(LOCK_PAUSE)
            }
            Err(TryLockError::WouldBlock) => {
                return Err(CliError::Other("another process keeps the machine's lock".to_owned()));
            }
            Err(TryLockError::Error(error)) => {
                return Err(CliError::io("cannot take the machine's lock")(error));
            }
        }
    }
}
