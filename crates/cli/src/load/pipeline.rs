//! Batches on their way to the cluster: several at once, sent again while there is patience, in file order per key.

use std::collections::BTreeMap;
use std::time::Duration;

use client::{ClientError, StoreHandle};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use wire::messages::RequestOptions;

use super::batch::{Batch, Batches, InputFailure};
use super::checkpoint::Checkpoint;
use super::pace::Pace;
use super::report::LoadOutcome;
use super::window::Window;
use crate::input::{Position, ReadError};
use crate::progress::Progress;
use crate::text::count;

/// Time between two checkpoints.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(500);
/// First pause before what was not acknowledged is sent again; doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause: a node that is back is noticed soon.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A load under way.
pub(super) struct Pipeline {
    pub(super) store: StoreHandle,
    pub(super) batches: Batches,
    pub(super) parallel: usize,
    pub(super) pace: Pace,
    pub(super) patience: Duration,
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) progress: Progress,
}

/// Why a load stopped early.
struct Stop {
    why: String,
    mend: Mend,
}

/// What must change before the load can get further.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mend {
    /// Nothing that the user of this command could name: try again.
    Nothing,
    /// The record there must be passed over, or mended.
    Record,
    /// The file must be mended: no record behind the place can be found.
    File,
    /// The file must be converted: nothing of it can be read.
    Form,
}

impl Stop {
    fn of_cluster(why: String) -> Stop {
        Stop { why, mend: Mend::Nothing }
    }

    fn of_input(input: &InputFailure) -> Stop {
        match input {
            InputFailure::Bad(bad) => {
                Stop { why: format!("line {}: {}", bad.line, bad.reason), mend: Mend::Record }
            }
            InputFailure::Unreadable(error @ ReadError::QuoteNeverCloses { .. }) => {
                Stop { why: error.to_string(), mend: Mend::File }
            }
            InputFailure::Unreadable(error @ ReadError::JsonArray) => {
                Stop { why: error.to_string(), mend: Mend::Form }
            }
            // Not the system's own error, so what is in the file is at fault: the end of its compression is missing.
            InputFailure::Unreadable(ReadError::Io { line, error }) if error.raw_os_error().is_none() => {
                let why = format!("the compressed file is damaged or incomplete after line {line}: {error}");
                Stop { why, mend: Mend::File }
            }
            InputFailure::Unreadable(error) => Stop { why: error.to_string(), mend: Mend::Nothing },
        }
    }
}

/// A batch that came back.
struct Landed {
    number: u64,
    batch: Batch,
    retries: u64,
    /// What is wrong with the records that are not acknowledged, by what was said of them.
    refused: BTreeMap<String, usize>,
}

/// Everything that changes while a load runs.
struct Flights {
    window: Window,
    landing: FuturesUnordered<BoxFuture<'static, Landed>>,
    /// Waits for a key that is under way.
    held: Option<Batch>,
    input_ended: bool,
    report: LoadOutcome,
    /// A checkpoint that is being written.
    saving: Option<JoinHandle<std::io::Result<()>>>,
}

impl Pipeline {
    /// Loads until the input ends or something cannot be mended.
    pub(super) async fn drive(&mut self, start: Position) -> LoadOutcome {
        let began = Instant::now();
        let mut flights = Flights {
            window: Window::new(start),
            landing: FuturesUnordered::new(),
            held: None,
            input_ended: false,
            report: LoadOutcome { start, ..LoadOutcome::default() },
            saving: None,
        };
        let stop = self.fly(&mut flights).await;
        if let Some(saving) = flights.saving.take() {
            // The last one must not be overtaken by it; whether it succeeded no longer matters.
            let _ = saving.await;
        }
        self.progress.end();
        let mut report = flights.report;
        report.acknowledged = flights.window.acknowledged();
        report.took = began.elapsed();
        report.failure = stop.map(|stop| self.explain(&stop, report.acknowledged));
        if let (Some(checkpoint), None) = (&self.checkpoint, &report.failure)
            && let Err(error) = checkpoint.remove()
        {
            say!("cannot remove the checkpoint {}: {error}", checkpoint.path().display());
        }
        report
    }

    /// Returns why the load stopped early, if it did.
    async fn fly(&mut self, flights: &mut Flights) -> Option<Stop> {
        let mut tick = tokio::time::interval(CHECKPOINT_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = None;
        let interrupted = tokio::signal::ctrl_c();
        tokio::pin!(interrupted);
        loop {
            self.take_off(flights);
            let wants =
                flights.held.is_none() && !flights.input_ended && flights.landing.len() < self.parallel;
            if flights.input_ended && flights.held.is_none() && flights.landing.is_empty() {
                return stop;
            }
            let waits_until = self.pace.waits_until(Instant::now()).filter(|_| flights.held.is_some());
            tokio::select! {
                biased;
                _ = &mut interrupted => return Some(Stop::of_cluster("interrupted".to_owned())),
                Some(landed) = flights.landing.next() => {
                    if let Some(refusal) = flights.land(landed) {
                        return Some(Stop::of_cluster(refusal));
                    }
                }
                _ = tick.tick() => self.save(flights).await,
                () = tokio::time::sleep_until(waits_until.unwrap_or_else(Instant::now)), if waits_until.is_some() => {}
                next = self.batches.recv(), if wants => match next {
                    Some(Ok(batch)) => flights.held = Some(batch),
                    Some(Err(input)) => {
                        // What came before it is still under way and shall arrive.
                        stop = Some(Stop::of_input(&input));
                        flights.input_ended = true;
                    }
                    None => flights.input_ended = true,
                },
            }
            self.progress.show(flights.window.acknowledged().byte, flights.report.records);
        }
    }

    /// Sends the batch that waits, if none of its keys is under way and the pace allows it.
    fn take_off(&mut self, flights: &mut Flights) {
        let now = Instant::now();
        if self.pace.waits_until(now).is_some() {
            return;
        }
        let Some(batch) = flights.held.take_if(|batch| !flights.window.conflicts(batch)) else { return };
        self.pace.take(batch.records + batch.expired_over_earlier, now);
        let number = flights.window.start(&batch);
        flights.landing.push(Box::pin(send(self.store.clone(), number, batch, self.patience)));
    }

    /// Writes the checkpoint in the background, unless an older write has not ended yet.
    async fn save(&self, flights: &mut Flights) {
        let Some(checkpoint) = self.checkpoint.clone() else { return };
        if flights.saving.as_ref().is_some_and(|saving| !saving.is_finished()) {
            return;
        }
        if let Some(saving) = flights.saving.take()
            && let Ok(Err(error)) = saving.await
        {
            let path = checkpoint.path().display();
            self.progress.say(&format!("cannot write the checkpoint {path}: {error}; the load continues"));
        }
        let acknowledged = flights.window.acknowledged();
        flights.saving = Some(tokio::task::spawn_blocking(move || checkpoint.save(acknowledged)));
    }

    /// Keeps the last checkpoint, if anything is behind it, and says how to go on.
    fn explain(&self, stop: &Stop, acknowledged: Position) -> String {
        let why = &stop.why;
        let came = match acknowledged == Position::default() {
            true => format!("{why}\nno record has been loaded"),
            false => format!(
                "{why}\nall records up to line {} (byte {}) have been loaded",
                acknowledged.line, acknowledged.byte
            ),
        };
        let saved = self.keep(acknowledged);
        let again = |further: &[&str]| command_again(std::env::args(), further);
        match (stop.mend, saved) {
            (Mend::Form, _) => why.clone(),
            (Mend::File, _) => format!("{came}; repair or replace the file, and load it from the start"),
            (_, Err(error)) => format!("{came}, but {error}, so a resumed load repeats some of them"),
            (Mend::Record, Ok(true)) => format!(
                "{came}; fix the file and load it from the start, or skip and list bad records with\n  {}",
                again(&["--skip-bad", "--resume"])
            ),
            (Mend::Record, Ok(false)) => {
                format!("{came}; fix the file, or load it again with --skip-bad to skip and list bad records")
            }
            (Mend::Nothing, Ok(true)) => {
                format!("{came}; leave the file unchanged and continue with\n  {}", again(&["--resume"]))
            }
            (Mend::Nothing, Ok(false)) => format!("{came}; load the file again from the start"),
        }
    }

    /// Whether a load can go on from here: the checkpoint says so now. One that would say *from the start* is removed.
    fn keep(&self, acknowledged: Position) -> Result<bool, String> {
        let Some(checkpoint) = &self.checkpoint else { return Ok(false) };
        let path = checkpoint.path().display();
        if acknowledged == Position::default() {
            return match checkpoint.remove() {
                Ok(()) => Ok(false),
                Err(error) => Err(format!("the checkpoint {path} could not be removed ({error})")),
            };
        }
        match checkpoint.save(acknowledged) {
            Ok(()) => Ok(true),
            Err(error) => Err(format!("the checkpoint {path} could not be written ({error})")),
        }
    }
}

impl Flights {
    /// Counts a batch that came back; returns what is wrong when it is not acknowledged.
    fn land(&mut self, landed: Landed) -> Option<String> {
        self.report.retries += landed.retries;
        if landed.refused.is_empty() {
            self.window.finish(landed.number, &landed.batch);
            self.report.count(&landed.batch);
            return None;
        }
        let refused = landed.refused.iter();
        let reasons: Vec<String> = refused
            .map(|(reason, &records)| format!("{}: {reason}", count(records as u64, "record")))
            .collect();
        Some(format!("not acknowledged: {}", reasons.join("; ")))
    }
}

/// Sends a batch, and again what was not acknowledged, until nothing is left or `patience` has passed without any
/// progress. Sending again is right also when the outcome is unknown: it is the same key with the same value, and no
/// other batch with that key is under way.
async fn send(store: StoreHandle, number: u64, batch: Batch, patience: Duration) -> Landed {
    let mut left: Vec<usize> = (0..batch.entries.len()).collect();
    let mut retries = 0;
    let mut pause = PAUSE_MIN;
    let mut progress_at = Instant::now();
    loop {
        let entries = left.iter().map(|&place| batch.entries[place].clone());
        let results = match store.multi_put_until(entries, &RequestOptions::default()).await {
            Ok(results) => results,
            Err(error) => left.iter().map(|_| Err(error.clone())).collect(),
        };
        let before = left.len();
        let mut refused: BTreeMap<String, usize> = BTreeMap::new();
        let mut hopeless = false;
        let mut again = Vec::new();
        for (place, result) in left.into_iter().zip(results) {
            if let Err(error) = result {
                hopeless |= is_hopeless(&error);
                *refused.entry(error.to_string()).or_default() += 1;
                again.push(place);
            }
        }
        if again.len() < before {
            (progress_at, pause) = (Instant::now(), PAUSE_MIN);
        }
        if again.is_empty() || hopeless || progress_at.elapsed() >= patience {
            return Landed { number, batch, retries, refused };
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
        retries += again.len() as u64;
        left = again;
    }
}

/// Whether the same put can never succeed.
fn is_hopeless(error: &ClientError) -> bool {
    !error.is_indeterminate() && !error.is_retryable()
}

/// This command again, with these options too.
fn command_again(arguments: impl Iterator<Item = String>, further: &[&str]) -> String {
    let mut words: Vec<String> = arguments.map(|word| quoted(&word)).collect();
    for &option in further {
        if !words.iter().any(|word| word == option) {
            words.push(option.to_owned());
        }
    }
    words.join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_goes_on_can_be_pasted_into_a_shell() {
        let words = ["tontine", "load", "it's here.csv", "--key", "k"].map(str::to_owned);
        let command = command_again(words.into_iter(), &["--skip-bad", "--resume"]);
        assert_eq!(command, "tontine load 'it'\\''s here.csv' --key k --skip-bad --resume");
        assert_eq!(
            command_again(["x", "--resume"].map(str::to_owned).into_iter(), &["--resume"]),
            "x --resume"
        );
    }
}
