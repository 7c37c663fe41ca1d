//! The progress line on stderr: how far, how fast, how long still.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::Phase;

/// A terminal is refreshed this often…
const REFRESH_TERMINAL: Duration = Duration::from_millis(500);
/// …a log file this often.
const REFRESH_LOG: Duration = Duration::from_secs(10);

pub(super) struct RunProgress {
    phase: Phase,
    planned: Option<u64>,
    duration: Option<Duration>,
    quiet: bool,
    terminal: bool,
    started: Instant,
    shown: Instant,
    shown_count: u64,
}

impl RunProgress {
    pub(super) fn new(phase: Phase, planned: Option<u64>, duration: Option<Duration>, quiet: bool) -> Self {
        let now = Instant::now();
        let terminal = std::io::stderr().is_terminal();
        RunProgress { phase, planned, duration, quiet, terminal, started: now, shown: now, shown_count: 0 }
    }

    /// Shows the state when it is time for it.
    pub(super) fn show(&mut self, count: u64) {
        let refresh = if self.terminal { REFRESH_TERMINAL } else { REFRESH_LOG };
        let since = self.shown.elapsed();
        if self.quiet || since < refresh {
            return;
        }
        let rate = (count - self.shown_count) as f64 / since.as_secs_f64();
        self.print(&line(self.phase, self.planned, self.duration, self.started.elapsed(), count, rate));
        self.shown = Instant::now();
        self.shown_count = count;
    }

    /// Shows the final state.
    pub(super) fn finish(&self, count: u64) {
        if self.quiet {
            return;
        }
        let elapsed = self.started.elapsed();
        let rate = count as f64 / elapsed.as_secs_f64().max(1e-9);
        self.print(&line(self.phase, self.planned, self.duration, elapsed, count, rate));
        if self.terminal {
            // Neither is it here.
            let _ = writeln!(std::io::stderr());
        }
    }

    fn print(&self, line: &str) {
        let mut stderr = std::io::stderr().lock();
        // A closed stderr is no reason to stop measuring.
        let _ = if self.terminal { write!(stderr, "\r\x1b[2K{line}") } else { writeln!(stderr, "{line}") };
        let _ = stderr.flush();
    }
}

fn line(
    phase: Phase,
    planned: Option<u64>,
    duration: Option<Duration>,
    elapsed: Duration,
    count: u64,
    rate: f64,
) -> String {
    let name = match phase {
        Phase::Load => "load",
        Phase::Run => "run",
    };
    let by_count = planned.map(|planned| count as f64 / planned as f64);
    let by_time = duration.map(|duration| elapsed.as_secs_f64() / duration.as_secs_f64());
    let share = match (by_count, by_time) {
        (Some(count), Some(time)) => Some(count.max(time)),
        (one, other) => one.or(other),
    };
    let mut text = format!("{name}  {count} operations  {rate:.0}/s");
    if let Some(share) = share.filter(|share| *share > 0.0) {
        let share = share.min(1.0);
        let left = elapsed.as_secs_f64() * (1.0 - share) / share;
        text += &format!("  {:.0} %  {left:.0} s left", 100.0 * share);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_share_and_time_left() {
        let seconds = Duration::from_secs;
        assert_eq!(
            line(Phase::Load, Some(1_000), None, seconds(10), 250, 25.0),
            "load  250 operations  25/s  25 %  30 s left"
        );
        assert_eq!(
            line(Phase::Run, None, Some(seconds(20)), seconds(5), 9, 2.0),
            "run  9 operations  2/s  25 %  15 s left"
        );
        assert_eq!(line(Phase::Run, Some(10), None, seconds(0), 0, 0.0), "run  0 operations  0/s");
    }
}
