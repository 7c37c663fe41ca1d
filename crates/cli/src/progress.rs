//! How far a load, an export or a copy has come: a bar on a terminal, a line now and then elsewhere. Always on stderr.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::text::{count, size};

/// Time between two lines when stderr is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Shows progress.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    total: Option<u64>,
    from: u64,
    started: Instant,
    spoken: Instant,
}

impl Progress {
    /// Progress towards `total` steps (bytes of a file, for example), `from` of which are done already.
    pub(crate) fn new(total: Option<u64>, from: u64) -> Self {
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| bar(total, from));
        Progress { bar, total, from, started: now, spoken: now }
    }

    /// Shows that `done` steps and `records` records are done.
    pub(crate) fn show(&mut self, done: u64, records: u64) {
        let rate = records as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
        self.tell(done, || format!("{}, {rate:.0}/s", count(records, "record")));
    }

    /// Shows that `done` bytes are done, where steps are bytes.
    pub(crate) fn show_bytes(&mut self, done: u64) {
        let rate = done.saturating_sub(self.from) as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
        self.tell(done, || format!("{}, {}/s", size(done), size(rate as u64)));
    }

    fn tell(&mut self, done: u64, words: impl FnOnce() -> String) {
        let done = self.total.map_or(done, |total| done.min(total));
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                bar.set_message(words());
            }
            None if self.spoken.elapsed() >= LINE_INTERVAL => {
                self.spoken = Instant::now();
                say!("{}", self.line(done, &words()));
            }
            None => {}
        }
    }

    fn line(&self, done: u64, words: &str) -> String {
        let Some(total) = self.total else { return words.to_owned() };
        let percent = 100.0 * done as f64 / total.max(1) as f64;
        let speed = (done.saturating_sub(self.from)) as f64 / self.started.elapsed().as_secs_f64();
        let left = if speed > 0.0 {
            format!("{:.0} s left", total.saturating_sub(done) as f64 / speed)
        } else {
            "time left unknown".to_owned()
        };
        format!("{percent:.0}%, {words}, {left}")
    }

    /// Says something without disturbing the bar.
    pub(crate) fn say(&self, words: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say!("{words}")),
            None => say!("{words}"),
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(total: Option<u64>, from: u64) -> ProgressBar {
    let bar = match total {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::new_spinner(),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => "{bar:30} {percent:>3}%  {msg}, {eta} left",
        None => "{spinner} {msg}, {done}",
    };
    let style = ProgressStyle::with_template(template).expect("the template is well formed").with_key(
        "done",
        |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            // Writing to the bar's own buffer cannot fail.
            let _ = write!(out, "{}", size(state.pos()));
        },
    );
    bar.set_style(style);
    bar.set_position(from);
    // The part that was done before must not count as speed.
    bar.reset_eta();
    bar
}
