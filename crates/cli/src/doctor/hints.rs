//! What the doctor says of hints that wait for a node: who holds them, since when the node is silent, what to do.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use client::Client;
use model::NodeId;
use protocol::report::{HintsHeld, HintsState, Parts};

use super::disks::{Refuses, refuses};
use super::finding::{Code, Finding};
use super::missing;
use crate::status::{NodeStatus, is_up};
use crate::text::{count, moment};

/// Milliseconds without a sign of life below which a node counts as heard.
const SILENCE_MIN_MS: u64 = 2_000;

/// When a holder of hints last heard from a node that is silent, by holder and node: milliseconds since 1970.
pub(super) type Heard = BTreeMap<(NodeId, NodeId), u64>;

/// What one node holds for another.
struct Parcel<'a> {
    holder: NodeId,
    held: &'a HintsHeld,
}

/// Asks the nodes that hold hints when they last heard from the nodes that these are for.
pub(super) async fn heard(client: &Client, nodes: &[NodeStatus]) -> Heard {
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64;
    let holders = nodes.iter().filter(|status| parcels(status).next().is_some());
    // A holder that does not tell leaves its sentence shorter.
    let views = holders.map(|status| async move { client.report(status.node.id, Parts::NODES).await.ok() });
    let mut heard = Heard::new();
    for view in futures_util::future::join_all(views).await.into_iter().flatten() {
        for seen in view.nodes.iter().flatten().filter(|seen| seen.heard_ms_ago >= SILENCE_MIN_MS) {
            heard.insert((view.node, seen.node), now.saturating_sub(seen.heard_ms_ago));
        }
    }
    heard
}

/// What a node holds, if it says so.
fn parcels(status: &NodeStatus) -> impl Iterator<Item = Parcel<'_>> {
    let held = status.status().into_iter().flat_map(|told| &told.hints).filter(|held| held.hints > 0);
    held.map(|held| Parcel { holder: status.node.id, held })
}

impl Parcel<'_> {
    /// For people.
    fn shown(&self, heard: &Heard) -> String {
        let (holder, HintsHeld { target, hints, state, hints_per_second, .. }) = (self.holder, self.held);
        match (state, heard.get(&(holder, *target))) {
            (HintsState::Delivering, _) => format!("{holder} is delivering {hints} ({hints_per_second}/s)"),
            (HintsState::Pausing, _) => format!("{holder} is retrying {hints}"),
            (HintsState::Holding, Some(&at)) => {
                // A second is exact enough for a silence.
                let since = moment(at / 1000 * 1000).replace(".000Z", "Z");
                format!("{holder} holds {hints} and has not heard from {target} since {since}")
            }
            (HintsState::Holding, None) => format!("{holder} holds {hints}"),
        }
    }
}

/// The nodes that hold hints and have not heard from the node that these are for, for people; empty if there are none.
fn silent(target: NodeId, parcels: &[Parcel<'_>], heard: &Heard) -> String {
    let silent = parcels.iter().filter(|parcel| heard.contains_key(&(parcel.holder, target)));
    let nodes: Vec<String> = silent.map(|parcel| parcel.holder.to_string()).collect();
    match &nodes[..] {
        [] => String::new(),
        [node] => format!("{node} has"),
        nodes => format!("{} have", nodes.join(" and ")),
    }
}

/// What the nodes hold for each other, one finding for each node that waits for something.
pub(super) fn waiting(nodes: &[NodeStatus], heard: &Heard) -> Vec<Finding> {
    let mut waiting: BTreeMap<NodeId, Vec<Parcel<'_>>> = BTreeMap::new();
    for parcel in nodes.iter().flat_map(parcels) {
        waiting.entry(parcel.held.target).or_default().push(parcel);
    }
    let finding = |(target, parcels): (NodeId, Vec<Parcel<'_>>)| {
        let hints = parcels.iter().map(|parcel| parcel.held.hints).sum();
        let wait = if hints == 1 { "waits" } else { "wait" };
        let held: Vec<String> = parcels.iter().map(|parcel| parcel.shown(heard)).collect();
        let what = format!("{} {wait} for {target}: {}", count(hints, "hint"), held.join("; "));
        let next = next(nodes, target, &parcels, heard);
        Finding { code: Code::HintsWaiting, node: Some(target), store: None, what, next }
    };
    waiting.into_iter().map(finding).collect()
}

/// What to do about hints that wait.
fn next(nodes: &[NodeStatus], target: NodeId, parcels: &[Parcel<'_>], heard: &Heard) -> String {
    let of_target = nodes.iter().find(|status| status.node.id == target);
    let refuses = of_target.and_then(|status| refuses(status.status()?));
    let keep = "the other nodes keep the writes until then and deliver them automatically";
    let is_pausing = parcels.iter().any(|parcel| parcel.held.state == HintsState::Pausing);
    match refuses {
        Some(Refuses::Full) => format!("free space on the full disk of {target}; {keep}"),
        Some(Refuses::Stopped(_)) => format!("restart {target}: its storage has stopped; {keep}"),
        None if !is_up(nodes, target) => match missing(nodes, target) {
            Some(what) => format!("{what}; {keep}"),
            None => keep.to_owned(),
        },
        None if is_pausing => format!(
            "wait: {target} rejected the last batch, and the nodes keep retrying; if this persists, read the log of {target}"
        ),
        None => match silent(target, parcels, heard).as_str() {
            "" => "wait: the writes are delivered within seconds".to_owned(),
            silent => format!(
                "wait: {silent} not heard from {target}, which answers here, for some seconds; if this persists, compare the \
                 nodes' views: tontine node list --all-views"
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use protocol::report::Status;

    use super::super::tests::{answering, away};
    use super::*;

    fn holds(id: u32, hints: u64, state: HintsState, hints_per_second: u64) -> NodeStatus {
        let held = HintsHeld {
            target: NodeId(2),
            hints,
            state,
            hints_per_second,
            rate_bytes_per_second: 0,
            failures: 0,
            delivered_total: 0,
            readdressed_total: 0,
            expired_total: 0,
        };
        answering(id, Status { hints: vec![held], ..Status::default() })
    }

    #[test]
    fn a_holder_says_since_when_it_has_not_heard_from_the_node() {
        let holding = |id, hints| holds(id, hints, HintsState::Holding, 0);
        let heard = Heard::from([((NodeId(1), NodeId(2)), 1_763_754_000_123)]);
        let told = |nodes: &[NodeStatus]| waiting(nodes, &heard).remove(0).what;
        let since = "n1 holds 12 and has not heard from n2 since 2025-11-21 19:40:00Z";
        let nodes = [holding(1, 12), away(2), holding(3, 1)];
        assert_eq!(told(&nodes), format!("13 hints wait for n2: {since}; n3 holds 1"));
        let up = || answering(2, Status::default());
        let next = |nodes: &[NodeStatus], heard: &Heard| waiting(nodes, heard).remove(0).next;
        let nodes = [holding(1, 12), up()];
        assert!(next(&nodes, &heard).starts_with("wait: n1 has not heard from n2, which answers here"));
        // Under load there is a hint now and then, and all nodes hear each other.
        assert_eq!(next(&nodes, &Heard::new()), "wait: the writes are delivered within seconds");
        let mut gone = away(2);
        gone.node.gone = true;
        let nodes = [holding(1, 12), gone];
        assert!(next(&nodes, &heard).starts_with("wait: n2 was declared dead"), "nobody starts it again");
        let nodes = [holds(1, 1, HintsState::Delivering, 7), up(), holding(3, 0)];
        assert_eq!(told(&nodes), "1 hint waits for n2: n1 is delivering 1 (7/s)");
    }
}
