//! What operators have been told by a node since a moment: all events, and what of the metrics and the report is another.
//!
//! Times, rates and bytes of memory are left out: a golden story must not depend on them.

use std::collections::BTreeMap;
use std::fmt::Write;

use expect_test::Expect;
use protocol::report::Parts;
use serde_json::Value as Json;

use super::Node;

/// Metrics of repair and of handoff.
const FAMILIES: [&str; 5] = [
    "tontine_scrub_",
    "tontine_antientropy_",
    "tontine_refill_",
    "tontine_handoff_",
    "tontine_node_corrupt_",
];

/// What a node has told so far.
pub(super) struct Told<'a> {
    node: &'a Node,
    /// The last event.
    sequence: u64,
    shown: BTreeMap<String, String>,
}

impl<'a> Told<'a> {
    pub(super) fn of(node: &'a Node) -> Told<'a> {
        let sequence = node.events().after(0, usize::MAX).last().map_or(0, |last| last.sequence);
        Told { node, sequence, shown: shown(node) }
    }

    /// What has come since the last time: events, then what is another.
    #[track_caller]
    pub(super) fn check(&mut self, expected: &Expect) {
        let mut text = String::new();
        for recorded in self.node.events().after(self.sequence, usize::MAX) {
            self.sequence = recorded.sequence;
            let mut fields = BTreeMap::new();
            flatten("", &recorded.event.fields(), &mut fields);
            let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name} {value}")).collect();
            writeln!(text, "{}: {}", recorded.event.kind(), fields.join(", ")).unwrap();
        }
        let shown = shown(self.node);
        for (name, now) in &shown {
            match self.shown.get(name) {
                None => writeln!(text, "{name} {now}").unwrap(),
                Some(before) if before != now => writeln!(text, "{name} {before} > {now}").unwrap(),
                Some(_) => {}
            }
        }
        for name in self.shown.keys().filter(|name| !shown.contains_key(*name)) {
            writeln!(text, "{name} is gone").unwrap();
        }
        self.shown = shown;
        expected.assert_eq(&text);
    }
}

/// Metrics and the report, by name; `null` and nothing are the same.
fn shown(node: &Node) -> BTreeMap<String, String> {
    let text = node.metrics().text();
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let mut shown: BTreeMap<String, String> = lines
        .filter(|(name, _)| FAMILIES.iter().any(|family| name.starts_with(family)) && is_shown(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let report = node.report(Parts::REPAIR | Parts::STATUS);
    let status = report.status.unwrap();
    flatten("repair", &serde_json::to_value(report.repair).unwrap(), &mut shown);
    flatten("hints", &serde_json::to_value(&status.hints).unwrap(), &mut shown);
    flatten("hints_refused_total", &status.hints_refused_total.into(), &mut shown);
    shown
}

/// Neither a time nor a rate, nor how much memory something takes.
fn is_shown(name: &str) -> bool {
    !["seconds", "_ms", "per_second", "period_s", "tree_bytes"].iter().any(|part| name.contains(part))
}

fn flatten(name: &str, value: &Json, into: &mut BTreeMap<String, String>) {
    let below = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
    match value {
        Json::Null => {}
        Json::Object(fields) => fields.iter().for_each(|(part, value)| flatten(&below(part), value, into)),
        Json::Array(all) => {
            all.iter().enumerate().for_each(|(at, value)| flatten(&below(&at.to_string()), value, into));
        }
        other if is_shown(name) => drop(into.insert(name.to_owned(), other.to_string())),
        _ => {}
    }
}

/// A part of a report, line by line.
#[track_caller]
pub(super) fn check_part(part: &impl serde::Serialize, expected: &Expect) {
    let mut lines = BTreeMap::new();
    flatten("", &serde_json::to_value(part).unwrap(), &mut lines);
    let lines: Vec<String> = lines.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
    expected.assert_eq(&lines.concat());
}
