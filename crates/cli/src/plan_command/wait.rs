//! Waiting for the end of a plan, and saying how far it is.

use std::time::{Duration, Instant};

use client::{Client, PlanQuery};
use model::plan::{PlanState, Planned};

use crate::durations;
use crate::failure::CliError;
use crate::output::{count, program, size};
use crate::words;

/// How long a node waits for another state of the plan before it answers all the same.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Shortest time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Waits until a plan has ended.
pub(super) async fn until_ended(client: &Client, number: u64) -> Result<Planned, CliError> {
    let mut said: Option<(Instant, String)> = None;
    let mut query = PlanQuery { number: Some(number), ..PlanQuery::default() };
    loop {
        let page = client.plan(query).await?;
        (query.since, query.wait) = (page.version, LOOK_AGAIN);
        let Some(planned) = page.plan else {
            return Err(CliError::Other(format!("plan {number} was deleted meanwhile")));
        };
        let Some(state) = planned.state.as_ref().filter(|state| !state.phase.has_ended()) else {
            return Ok(planned);
        };
        let line = line(&planned, state);
        let is_due =
            said.as_ref().is_none_or(|(at, before)| at.elapsed() >= LINE_INTERVAL && *before != line);
        if is_due {
            say!("{line}");
            said = Some((Instant::now(), line));
        }
    }
}

/// How far a plan is, at what rate, and about how long it will take.
pub(super) fn line(planned: &Planned, state: &PlanState) -> String {
    let (progress, moves) = (&state.progress, planned.plan.change.partitions());
    let settled = match moves {
        0 => "no data moves".to_owned(),
        moves => format!("{} of {moves} settled", progress.settled),
    };
    let mut parts = vec![format!("{}: {settled}", state.phase.word())];
    let steps = [
        (progress.copying, "copying"),
        (progress.joint, "joint"),
        (progress.reading_new, "reading the new"),
        (progress.back, "going back"),
    ];
    parts.extend(steps.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")));
    let copied = progress.copied;
    if copied.records > 0 {
        let mut text = format!("{} in {} copied", size(copied.bytes), count(copied.records, "record"));
        if let Some(rate) = state.bytes_per_second.filter(|&rate| rate > 0 && !state.phase.has_ended()) {
            text.push_str(&format!(" at {}/s", size(rate)));
        }
        parts.push(text);
    }
    if let Some(left) = state.seconds_left.filter(|_| !state.phase.has_ended()) {
        parts.push(format!("about {} left", durations::rough(Duration::from_secs(left))));
    }
    let mut line = parts.join(", ");
    if let Some(first) = state.waiting.first() {
        let more = match state.waiting.len() {
            1 => String::new(),
            all => format!(" (and {} more: `{} plan show {}`)", all - 1, program(), planned.number),
        };
        line.push_str(&format!("; waits: {}{more}", words::held(first)));
    }
    line
}
