//! What the doctor says of hints that wait for a node: who holds them, since when the node is silent, what to do.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use client::Client;
use model::NodeId;
use serde_json::Value as Json;

use super::disks::{Refuses, refuses};
use super::finding::{Code, Finding};
use super::missing;
use crate::node_list;
use crate::output::{count, moment};
use crate::status::{NodeStatus, is_up};

/// Milliseconds without a sign of life below which a node counts as heard.
const SILENCE_MIN_MS: u64 = 2_000;

/// When a holder of hints last heard from a node that is silent, by holder and node: milliseconds since 1970.
pub(super) type Heard = BTreeMap<(u64, u64), u64>;

/// What one node holds for another.
struct Parcel {
    holder: NodeId,
    hints: u64,
    state: String,
    /// Hints a second that leave it.
    rate: u64,
}

/// Asks the nodes that hold hints when they last heard from the nodes that these are for.
pub(super) async fn heard(client: &Client, nodes: &[NodeStatus]) -> Heard {
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64;
    let holders = nodes.iter().filter(|status| {
        status.answer.as_ref().is_ok_and(|answer| !parcels(status.node.id, answer).is_empty())
    });
    let views = holders.map(|status| async move {
        // A holder that does not tell leaves its sentence shorter.
        (status.id(), node_list::ask(client, status.node.id).await.unwrap_or(Json::Null))
    });
    let mut heard = Heard::new();
    for (holder, view) in futures_util::future::join_all(views).await {
        for seen in view["nodes"].as_array().into_iter().flatten() {
            if let (Some(node), Some(silence)) = (seen["node"].as_u64(), seen["heard_ms_ago"].as_u64())
                && silence >= SILENCE_MIN_MS
            {
                heard.insert((holder, node), now.saturating_sub(silence));
            }
        }
    }
    heard
}

/// What a node holds, by the number of the node that it is for.
fn parcels(holder: NodeId, answer: &Json) -> Vec<(u64, Parcel)> {
    let parcel = |hint: &Json| {
        let hints = hint["hints"].as_u64().filter(|&hints| hints > 0)?;
        let state = hint["state"].as_str().unwrap_or("holding").to_owned();
        let rate = hint["hints_per_second"].as_u64().unwrap_or(0);
        Some((hint["target"].as_u64()?, Parcel { holder, hints, state, rate }))
    };
    answer["hints"].as_array().into_iter().flatten().filter_map(parcel).collect()
}

impl Parcel {
    /// For people.
    fn shown(&self, target: u64, heard: &Heard) -> String {
        let Parcel { holder, hints, state, rate } = self;
        match (state.as_str(), heard.get(&(u64::from(holder.0), target))) {
            ("delivering", _) => format!("{holder} is delivering {hints} ({rate}/s)"),
            ("pausing", _) => format!("{holder} is retrying {hints}"),
            (_, Some(&at)) => {
                // A second is exact enough for a silence.
                let since = moment(at / 1000 * 1000).replace(".000Z", "Z");
                format!("{holder} holds {hints} and has not heard from n{target} since {since}")
            }
            (_, None) => format!("{holder} holds {hints}"),
        }
    }
}

/// The nodes that hold hints and have not heard from the node that these are for, for people; empty if there are none.
fn silent(target: u64, parcels: &[Parcel], heard: &Heard) -> String {
    let silent = parcels.iter().filter(|parcel| heard.contains_key(&(u64::from(parcel.holder.0), target)));
    let nodes: Vec<String> = silent.map(|parcel| parcel.holder.to_string()).collect();
    match &nodes[..] {
        [] => String::new(),
        [node] => format!("{node} has"),
        nodes => format!("{} have", nodes.join(" and ")),
    }
}

/// What the nodes hold for each other, one finding for each node that waits for something.
pub(super) fn waiting(nodes: &[NodeStatus], heard: &Heard) -> Vec<Finding> {
    let mut waiting: BTreeMap<u64, Vec<Parcel>> = BTreeMap::new();
    for status in nodes {
        let Ok(answer) = &status.answer else { continue };
        for (target, parcel) in parcels(status.node.id, answer) {
            waiting.entry(target).or_default().push(parcel);
        }
    }
    let finding = |(target, parcels): (u64, Vec<Parcel>)| {
        let hints = parcels.iter().map(|parcel| parcel.hints).sum();
        let wait = if hints == 1 { "waits" } else { "wait" };
        let held: Vec<String> = parcels.iter().map(|parcel| parcel.shown(target, heard)).collect();
        let what = format!("{} {wait} for n{target}: {}", count(hints, "hint"), held.join("; "));
        let next = next(nodes, target, &parcels, heard);
        Finding { code: Code::HintsWaiting, node: Some(target), store: None, what, next }
    };
    waiting.into_iter().map(finding).collect()
}

/// What to do about hints that wait.
fn next(nodes: &[NodeStatus], target: u64, parcels: &[Parcel], heard: &Heard) -> String {
    let target_answer = nodes.iter().find(|status| status.id() == target);
    let refuses = target_answer.and_then(|status| refuses(status.answer.as_ref().ok()?));
    let keep = "the other nodes keep the writes until then and deliver them automatically";
    let is = |state: &str| parcels.iter().any(|parcel| parcel.state == state);
    match refuses {
        Some(Refuses::Full) => format!("free space on the full disk of n{target}; {keep}"),
        Some(Refuses::Stopped(_)) => format!("restart n{target}: its storage has stopped; {keep}"),
        None if !is_up(nodes, target) => match missing(nodes, target) {
            Some(what) => format!("{what}; {keep}"),
            None => keep.to_owned(),
        },
        None if is("pausing") => format!(
            "wait: n{target} rejected the last batch, and the nodes keep retrying; if this persists, read the log of n{target}"
        ),
        None => match silent(target, parcels, heard).as_str() {
            "" => "wait: the writes are delivered within seconds".to_owned(),
            silent => format!(
                "wait: {silent} not heard from n{target}, which answers here, for some seconds; if this persists, compare the \
                 nodes' views: tontine node list --all-views"
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use model::Node;
    use serde_json::json;

    use super::*;

    fn status(id: u32, hints: Option<Json>) -> NodeStatus {
        let node: Node = serde_json::from_value(json!({
            "id": id, "zone": "a", "native": "127.0.0.1:1", "resp": "127.0.0.1:2",
        }))
        .unwrap();
        let error = client::ClientError::Unreachable { detail: "no process listens there".to_owned() };
        NodeStatus { node, answer: hints.map(|hints| json!({ "hints": hints })).ok_or(error), ahead_ms: None }
    }

    fn hint(hints: u64, state: &str, rate: u64) -> Option<Json> {
        Some(json!([{ "target": 2, "hints": hints, "state": state, "hints_per_second": rate }]))
    }

    #[test]
    fn a_holder_says_since_when_it_has_not_heard_from_the_node() {
        let heard = Heard::from([((1, 2), 1_763_754_000_123)]);
        let told = |nodes: &[NodeStatus]| waiting(nodes, &heard).remove(0).what;
        let since = "n1 holds 12 and has not heard from n2 since 2025-11-21 19:40:00Z";
        let nodes = [status(1, hint(12, "holding", 0)), status(2, None), status(3, hint(1, "holding", 0))];
        assert_eq!(told(&nodes), format!("13 hints wait for n2: {since}; n3 holds 1"));
        let up = || status(2, Some(json!([])));
        let next = |nodes: &[NodeStatus], heard: &Heard| waiting(nodes, heard).remove(0).next;
        let nodes = [status(1, hint(12, "holding", 0)), up()];
        assert!(next(&nodes, &heard).starts_with("wait: n1 has not heard from n2, which answers here"));
        // Under load there is a hint now and then, and all nodes hear each other.
        assert_eq!(next(&nodes, &Heard::new()), "wait: the writes are delivered within seconds");
        let mut gone = status(2, None);
        gone.node.gone = true;
        let nodes = [status(1, hint(12, "holding", 0)), gone];
        assert!(next(&nodes, &heard).starts_with("wait: n2 was declared dead"), "nobody starts it again");
        let nodes = [
            status(1, hint(1, "delivering", 7)),
            status(2, Some(json!([]))),
            status(3, hint(0, "holding", 0)),
        ];
        assert_eq!(told(&nodes), "1 hint waits for n2: n1 is delivering 1 (7/s)");
    }
}
