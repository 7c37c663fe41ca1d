//! Machines of `tontine dev`, which sleep while it does not run: all of their processes end, and their data stays.
//!
//! Must never: be called while a controller runs, which would take a machine without processes for lost.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::place::{Place, Places};
use super::{Addresses, launching};

/// How long the processes of a machine may take to end by themselves.
const END_TIME_MAX: Duration = Duration::from_secs(30);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// All machines in a directory that are not being ended.
fn kept(dir: &Path) -> Vec<Place> {
    let Ok(root) = dir.canonicalize() else { return Vec::new() };
    // No machine is made here, so it does not matter which addresses there are.
    let places = Places::new(root, Addresses::default());
    places.all().into_iter().filter(|place| place.ending().is_none()).collect()
}

/// Starts every machine that does not run.
///
/// # Errors
/// The first one that could not be started, and why.
pub(crate) fn wake(dir: &Path) -> Result<(), String> {
    for place in kept(dir) {
        if !place.runs() {
            place.forget_start().map_err(|error| format!("machine {}: {error}", place.token()))?;
            launching::start(&place).map_err(|failure| failure.message)?;
        }
    }
    Ok(())
}

/// Ends the processes of every machine; how many machines there are.
pub(crate) fn rest(dir: &Path) -> io::Result<usize> {
    let kept = kept(dir);
    for place in &kept {
        place.signal(Signal::TERM);
    }
    let began = Instant::now();
    for place in &kept {
        let mut is_killed = false;
        while place.runs() {
            if began.elapsed() >= END_TIME_MAX && !is_killed {
                is_killed = true;
                place.signal(Signal::KILL);
            }
            std::thread::sleep(PAUSE);
        }
        place.forget_start()?;
    }
    launching::reap();
    Ok(kept.len())
}
