//! Waiting for the end of a plan, and saying how far it is.

use std::time::{Duration, Instant};

use client::{Client, ClientError, PlanQuery};
use model::plan::{PlanHeld, PlanState, Planned};

use crate::durations;
use crate::failure::CliError;
use crate::output::program;
use crate::text::{count, size};
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
        let asked = client.plan(query).await;
        let page = asked.map_err(|error| unseen(number, "goes on", &error))?;
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

/// The error of a plan that nobody can look at now: what was ordered holds all the same.
pub(super) fn unseen(number: u64, stands: &str, error: &ClientError) -> CliError {
    CliError::Unanswered(format!(
        "plan {number} {stands}, and no node says how it is: {error}; look at it with `{} plan show {number}`",
        program()
    ))
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
    if let Some(left) = left(state) {
        parts.push(format!("about {} left", durations::rough(left)));
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

/// About how long a plan will take yet. While it waits for a node that does not answer, nobody knows.
fn left(state: &PlanState) -> Option<Duration> {
    let is_held = state.waiting.iter().any(|held| matches!(held, PlanHeld::Silent { .. }));
    let is_known = !is_held && !state.phase.has_ended();
    state.seconds_left.filter(|_| is_known).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use model::NodeId;
    use model::plan::{Phase, Progress};

    use super::*;

    /// It said *about 5s left* for as long as a node was away.
    #[test]
    fn a_plan_that_waits_for_a_silent_node_has_no_time_left() {
        let mut state = PlanState {
            phase: Phase::Applying,
            order: 1,
            reason: None,
            aborted_under: None,
            begun_ms: 1000,
            ended_ms: None,
            progress: Progress::default(),
            bytes_per_second: None,
            seconds_left: Some(5),
            was_paused: false,
            waiting: Vec::new(),
            came_of: None,
        };
        assert_eq!(left(&state), Some(Duration::from_secs(5)));
        state.waiting.push(PlanHeld::Silent { node: NodeId(4), detail: "refused".to_owned() });
        assert_eq!(left(&state), None);
        state.waiting.clear();
        state.phase = Phase::Done;
        assert_eq!(left(&state), None);
    }

    /// It said that the cluster cannot be reached, with the status of what certainly was not done.
    #[test]
    fn a_wait_that_is_broken_off_says_that_the_plan_goes_on() {
        let error = ClientError::NotConnected { detail: "h1:1: refused".to_owned() };
        let error = unseen(7, "goes on", &error);
        assert_eq!((error.exit_code(), &error.json()["error"]["outcome"]), (3, &"unknown".into()));
        let text = error.to_string();
        assert!(
            text.starts_with("plan 7 goes on, and no node says how it is: cannot reach any node"),
            "{text}"
        );
        assert!(text.ends_with("plan show 7`"), "{text}");
    }
}
