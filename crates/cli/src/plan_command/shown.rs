//! How plans are shown.

use std::time::Duration;

use model::plan::{
    Cut, Handover, JoinCut, Phase, PlanChange, PlanDocument, PlanSummary, Planned, Renumber, Reshape, Wish,
};
use model::{Consistency, NodeId};
use protocol::rebalance::lengths;
use serde_json::{Value as Json, json};

use crate::durations;
use crate::output::program;
use crate::text::{count, moment, size, table};
use crate::words;

pub(super) fn json(planned: &Planned) -> Json {
    json!({
        "plan": planned.number,
        "phase": planned.word(),
        "document": planned.plan,
        "seconds_estimated": lengths::takes(&planned.plan).map(|takes| takes.as_secs()),
        "state": planned.state,
    })
}

/// A plan in full.
pub(super) fn text(planned: &Planned) -> String {
    let (plan, number) = (&planned.plan, planned.number);
    let mut text = format!(
        "plan {number}: {}, {}\nordered by {} on {}, computed from generation {}\n",
        wish(&plan.wish),
        planned.word(),
        plan.by,
        moment(plan.created_ms),
        plan.generation.0
    );
    text.push_str(&body(plan));
    if let Some(state) = &planned.state {
        let until = state.ended_ms.unwrap_or_else(|| crate::clocks::now_ms().unsigned_abs());
        let took = Duration::from_millis(until.saturating_sub(state.begun_ms));
        text.push_str(&format!("\n{}\n", super::wait::line(planned, state)));
        for waiting in &state.waiting {
            text.push_str(&format!("  waits: {}\n", words::held(waiting)));
        }
        if let Some(reason) = &state.reason {
            text.push_str(&format!("why: {}\n", words::reason(reason)));
        }
        let took = durations::rough(took);
        match state.ended_ms {
            Some(ended) => text.push_str(&format!("ended on {}, after {took}\n", moment(ended))),
            None => {
                let program = program();
                if state.phase == Phase::Paused {
                    text.push_str(&format!("to go on: `{program} plan resume {number}`\n"));
                }
                text.push_str(&format!(
                    "applied {took} ago; to take it back: `{program} plan abort {number}`\n"
                ));
            }
        }
    } else {
        text.push_str(&format!("\nto carry it out: `{} plan apply {number}`\n", program()));
    }
    text
}

/// A plan that is not kept.
pub(super) fn dry(plan: &PlanDocument) -> String {
    if plan.change.is_empty() {
        return "there is nothing to move".to_owned();
    }
    format!("{}, computed from generation {}\n{}", wish(&plan.wish), plan.generation.0, body(plan))
}

/// A plan that is carried out at once, as it is shown before.
pub(super) fn preview(planned: &Planned) -> String {
    let (plan, number) = (&planned.plan, planned.number);
    let text = format!("plan {number}: {}\n{}", wish(&plan.wish), body(plan));
    format!("{}\nto take it back: `{} plan abort {number}`", text.trim_end(), program())
}

fn body(plan: &PlanDocument) -> String {
    let copies = plan.change.copies();
    let bounds = match &plan.change {
        PlanChange::Moves { .. } => None,
        PlanChange::Reshape { reshape, .. } => Some(bounds(reshape)),
        PlanChange::Numbers(numbers) => Some(renumbered(numbers)),
        PlanChange::Golden { handover, .. } => Some(handed(handover)),
    };
    let is_golden = matches!(plan.change, PlanChange::Golden { .. });
    let moves = match (&bounds, plan.change.moves().len() as u64) {
        (Some(_), 0) => String::new(),
        (Some(_), moves) if is_golden => format!("; {} then", moving(moves)),
        (Some(_), moves) => format!(" after {} moved", count(moves, "partition")),
        (None, moves) => count(moves, "partition"),
    };
    let mut text = format!(
        "{}{moves}, {}",
        bounds.unwrap_or_default(),
        match copies {
            0 => "no data moves".to_owned(),
            1 => "1 copy is brought in".to_owned(),
            copies => format!("{copies} copies are brought in"),
        }
    );
    if let Some(estimate) = plan.estimate {
        text.push_str(&format!(": about {} in {}", size(estimate.bytes), count(estimate.records, "record")));
        if let (Some(takes), 1..) = (lengths::takes(plan), copies) {
            let takes = durations::rough(Duration::from_secs(takes.as_secs_f64().ceil() as u64));
            let pace = match plan.pace {
                Some(pace) => format!("at the pace of plan {}", pace.plan),
                None => {
                    let rate = size(protocol::pace::FINDING_FIRST);
                    format!("if each node takes in {rate} a second; busy nodes take longer")
                }
            };
            text.push_str(&format!("\nthat takes about {takes} {pace}"));
        }
    }
    text.push_str("\n\n");
    let sum = |side: fn(&(usize, usize)) -> usize| plan.places.values().map(side).sum::<usize>().max(1);
    let (before, after) = (sum(|counts| counts.0), sum(|counts| counts.1));
    let share = |count: usize, all: usize| format!("{:.1}%", 100.0 * count as f64 / all as f64);
    let mut rows = vec![["NODE", "PLACES NOW", "THEN", "SHARE NOW", "THEN"].map(str::to_owned).to_vec()];
    rows.extend(plan.places.iter().map(|(node, &(now, then))| {
        vec![node.to_string(), now.to_string(), then.to_string(), share(now, before), share(then, after)]
    }));
    if is_golden {
        // Partitions of such a ring differ in width, so places are no share of the keys.
        rows.iter_mut().for_each(|row| row.truncate(3));
    }
    text.push_str(&table(&rows));
    if is_golden {
        text.push_str(&format!(
            "places differ in width here: `{} status` shows what each node holds\n",
            program()
        ));
    }
    if !plan.blocked.is_empty() {
        text.push_str("\nit cannot end while nodes are away:\n");
        for blocked in &plan.blocked {
            text.push_str(&format!("  {}\n", words::blocked(blocked)));
        }
    }
    text
}

/// Each move.
pub(super) fn diff(plan: &PlanDocument) -> String {
    let list = |nodes: &[NodeId]| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(" ");
    let mut rows = vec![["PARTITION", "NODES NOW", "THEN", "ENTERING"].map(str::to_owned).to_vec()];
    rows.extend(plan.change.moves().iter().map(|one| {
        let entering = if one.entering.is_empty() { "-".to_owned() } else { list(&one.entering) };
        vec![one.partition.to_string(), list(&one.from), list(&one.to), entering]
    }));
    let mut text = if plan.change.moves().is_empty() { String::new() } else { table(&rows) };
    if let Some(numbers) = plan.change.numbers() {
        text.push_str(&renumbered(numbers));
    }
    if let PlanChange::Golden { handover, joins, .. } = &plan.change {
        text = format!("first {}\n{text}", handed(handover));
        for (partition, other) in joins {
            text.push_str(&format!("\nthen partition {partition} takes in {other}"));
        }
    }
    match plan.change.reshape() {
        None => {}
        Some(Reshape::Cut { cuts }) => {
            let mut rows = vec![["PARTITION", "CUT AT TOKEN", "SECOND PART"].map(str::to_owned).to_vec()];
            let row = |cut: &Cut| vec![cut.partition.to_string(), cut.at.to_string(), cut.second.to_string()];
            rows.extend(cuts.iter().map(row));
            text.push_str(&table(&rows));
        }
        Some(Reshape::Join { partition, other }) => {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&format!("then partition {partition} takes in {other}"));
        }
    }
    text
}

/// What becomes of bounds.
fn bounds(reshape: &Reshape) -> String {
    match reshape {
        Reshape::Cut { cuts } => format!("{} cut in two", count(cuts.len() as u64, "partition")),
        Reshape::Join { partition, other } => format!("partition {partition} takes in {other}"),
    }
}

/// Which partition is cut and where, and whose partitions will be.
fn handed(Handover { cut, owners }: &Handover) -> String {
    let mut parts = Vec::new();
    if let Some(Cut { partition, at, second }) = cut {
        parts.push(format!("partition {partition} is cut at token {at}"));
        let owner = owners.iter().find(|change| change.partition == *second);
        parts.extend(owner.map(|change| format!("{} gets the second part, {second}", change.to)));
    }
    let others = owners.iter().filter(|change| cut.as_ref().is_none_or(|cut| cut.second != change.partition));
    parts.extend(others.map(|change| format!("{} gets {} of {}", change.to, change.partition, change.from)));
    if parts.is_empty() { "every partition stays where it belongs".to_owned() } else { parts.join(", ") }
}

fn moving(moves: u64) -> String {
    if moves == 1 { "1 partition moves".to_owned() } else { format!("{moves} partitions move") }
}

/// Which numbers a store gets.
fn renumbered(Renumber { store, from, to, .. }: &Renumber) -> String {
    format!("store {store} changes from {} to {}", numbers(from), numbers(to))
}

fn numbers(Consistency { replicas, reads_required, writes_required }: &Consistency) -> String {
    format!("N={replicas} R={reads_required} W={writes_required}")
}

/// What a plan came to.
pub(super) fn end(planned: &Planned) -> String {
    let number = planned.number;
    let Some(state) = &planned.state else { return format!("plan {number} is created") };
    let took = state.ended_ms.map_or(0, |ended| ended.saturating_sub(state.begun_ms));
    let copied = state.progress.copied;
    let mut text = format!(
        "plan {number} is {} after {}",
        state.phase.word(),
        durations::rough(Duration::from_millis(took)),
    );
    match (planned.plan.change.reshape(), planned.plan.change.partitions()) {
        (Some(reshape), 0) if state.phase == Phase::Done => {
            text.push_str(&format!(": {}, no data moved", bounds(reshape)));
        }
        (Some(_), 0) => text.push_str(": nothing changed"),
        (_, moves) => text.push_str(&format!(
            ": {} of {} settled, {} in {} copied",
            state.progress.settled,
            count(moves as u64, "partition"),
            size(copied.bytes),
            count(copied.records, "record")
        )),
    }
    if let Some(reason) = &state.reason {
        let reason = words::reason(reason);
        text.push_str(&format!(": {reason}; create another one with `{} plan create`", program()));
    }
    text
}

/// All plans, one a line.
pub(super) fn history(all: &[PlanSummary]) -> String {
    let mut rows = vec![["PLAN", "FOR", "PHASE", "MOVES", "SETTLED", "CREATED"].map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(|plan| {
        let Some(wished) = &plan.wish else {
            let unknown = ["-", "not understood: of a later version", "-", "-", "-"].map(str::to_owned);
            return [plan.number.to_string()].into_iter().chain(unknown).collect();
        };
        vec![
            plan.number.to_string(),
            wish(wished),
            plan.word().to_owned(),
            plan.partitions.to_string(),
            plan.settled.to_string(),
            moment(plan.created_ms),
        ]
    }));
    if all.is_empty() {
        return format!("there is no plan; `{} help plan create` lists what can be planned", program());
    }
    table(&rows)
}

fn wish(wish: &Wish) -> String {
    match wish {
        Wish::Spread => "spread".to_owned(),
        Wish::Drain { nodes } => {
            format!("drain {}", nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(" "))
        }
        Wish::Replace { node, by } => format!("replace {node} by {by}"),
        Wish::Move { partitions, from, to } => {
            format!("move {} from {from} to {to}", count(partitions.len() as u64, "partition"))
        }
        Wish::Split { partition, at: None } => format!("split {partition}"),
        Wish::Split { partition, at: Some(at) } => format!("split {partition} at token {at}"),
        Wish::Merge { partition, other } => format!("merge {partition} and {other}"),
        Wish::Join { node, cut: JoinCut::Widest | JoinCut::Hottest } => format!("join {node}"),
        Wish::Join { node, cut: JoinCut::At { partition, .. } } => {
            format!("join {node} by a part of {partition}")
        }
        Wish::Double => "double all partitions".to_owned(),
        Wish::Numbers { store, numbers: to } => format!("{} for store {store}", numbers(to)),
        Wish::Balance { placed } => {
            format!("place {} by load", count(placed.len() as u64, "partition"))
        }
    }
}
