//! What was measured, as a table for people and as figures for programs.

use super::super::ScenarioReport;
use super::drive::RunMeasured;
use super::{Line, QuorumNumbers};

/// Of fewer requests messages are not told.
const REQUESTS_MIN: u64 = 100;

/// One measurement.
pub(super) struct Row {
    pub(super) numbers: QuorumNumbers,
    pub(super) line: String,
    /// What was asked, such as `get of 100`.
    pub(super) ask: String,
    pub(super) measured: RunMeasured,
    /// What the busiest node did over the mean, where that is asked.
    pub(super) busiest: Option<f64>,
    /// Nodes that a read of the twenty newest asks, where that was not measured by the requests themselves.
    pub(super) newest: Option<f64>,
}

impl Row {
    pub(super) fn new(numbers: QuorumNumbers, line: Line, ask: String, measured: RunMeasured) -> Row {
        Row { numbers, line: line.name.to_owned(), ask, measured, busiest: None, newest: None }
    }

    fn keys_per_second(&self) -> f64 {
        self.measured.keys as f64 / self.measured.seconds
    }

    fn cpu_us_per_key(&self) -> f64 {
        self.measured.ran.as_secs_f64() * 1e6 / self.measured.keys.max(1) as f64
    }

    /// None of few requests: what nodes say to each other meanwhile is more.
    fn messages_per_request(&self) -> Option<f64> {
        let requests = self.measured.requests;
        (requests >= REQUESTS_MIN).then(|| self.measured.messages / requests as f64)
    }

    fn nodes_asked(&self) -> Option<f64> {
        self.newest.or(self.measured.nodes_asked)
    }

    /// Each figure with its name and how it is shown.
    fn figures(&self) -> Vec<(&'static str, Option<f64>, usize)> {
        vec![
            ("keys_per_second", Some(self.keys_per_second()), 0),
            ("p50_ms", Some(self.measured.at_ms(0.5)), 2),
            ("p99_ms", Some(self.measured.at_ms(0.99)), 2),
            ("node_cpu_us_per_key", Some(self.cpu_us_per_key()), 2),
            ("messages_per_request", self.messages_per_request(), 2),
            ("nodes_asked", self.nodes_asked(), 2),
            ("busiest_over_mean", self.busiest, 2),
            ("refused", Some(self.measured.refused as f64), 0),
        ]
    }
}

/// Writes the rows into a report. Where `refusals_fail`, the run is not clean if a request was refused.
pub(super) fn tell(report: &mut ScenarioReport, rows: &[Row], refusals_fail: bool) {
    let heading =
        ["replicas", "placement", "asked", "keys/s", "p50 ms", "p99 ms", "CPU µs/key", "messages", "nodes"];
    let mut cells =
        vec![heading.iter().chain(&["busiest", "refused"]).map(|cell| (*cell).to_owned()).collect()];
    let mut failed = 0;
    for row in rows {
        let name = |figure: &str| format!("{}/{}/{}/{figure}", row.numbers.name, row.line, row.ask);
        let mut of_row = vec![row.numbers.name.to_owned(), row.line.clone(), row.ask.clone()];
        for (figure, value, digits) in row.figures() {
            of_row.push(value.map_or("-".to_owned(), |value| format!("{value:.digits$}")));
            if let Some(value) = value {
                report.figures.insert(name(figure), value);
            }
        }
        cells.push(of_row);
        failed += row.measured.missing + if refusals_fail { row.measured.refused } else { 0 };
    }
    report.notes.push(aligned(&cells));
    report.notes.push(
        "keys/s and processor time are of all nodes; messages are those that nodes had for a request, from the client and each \
         other; nodes are those that a read asks, by the ring; busiest is the busiest node over the mean, by the second."
            .to_owned(),
    );
    report.figures.insert("requests_failed".to_owned(), failed as f64);
}

/// Columns beside each other.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let space = " ".repeat(width - cell.chars().count());
            // Words to the left, numbers to the right.
            if column < 3 { format!("{cell}{space}") } else { format!("{space}{cell}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{LINES, NUMBERS};
    use super::*;
    use crate::driver::latencies;

    #[test]
    fn a_row_is_a_line_of_the_table_and_figures_by_name() {
        let mut latencies = latencies();
        latencies.record(2_000_000).unwrap();
        let measured = RunMeasured {
            seconds: 2.0,
            requests: 100,
            keys: 1000,
            refused: 0,
            missing: 3,
            latencies,
            ran: Duration::from_millis(5),
            messages: 150.0,
            nodes_asked: Some(1.25),
            busiest: None,
            busiest_stamped: None,
        };
        let row = Row::new(NUMBERS[0], LINES[2], "get of 100".to_owned(), measured);
        let mut report = ScenarioReport::new("feeds", "what?");
        tell(&mut report, &[row], true);
        let figure = |name: &str| report.figures[&format!("N=1/windows/get of 100/{name}")];
        assert_eq!((figure("keys_per_second"), figure("node_cpu_us_per_key")), (500.0, 5.0));
        assert_eq!((figure("messages_per_request"), figure("nodes_asked")), (1.5, 1.25));
        assert_eq!(report.notes[0].lines().count(), 2);
        assert!(report.notes[0].contains("N=1       windows    get of 100     500"), "{}", report.notes[0]);
        assert!(!report.clean(), "three keys were not there");
    }
}
