//! What kinds of work cost a node: microseconds of processor for each operation, by where its partition lies and for
//! pipelines of 1 and 8. `protocol::rebalance::balancer` weighs work by what this showed.
//!
//! All requests go to the first of three nodes, which are not bounded. So it coordinates what others hold.
//! Whole processes are timed, and nothing else must run: other work makes caches cold.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use model::{NodeId, PreferenceList, Token};

use crate::processes::threads_ran;

use super::super::script::{ask, system};
use super::super::{ScenarioError, ScenarioReport};
use super::cluster::{Capped, Shape};
use super::draws::Routes;
use super::generator::{Generator, LoadShape};
use super::interrupt::Interrupt;
use super::{BalanceScenario, rest, rows};

/// Keys that are looked at, to find some of each list.
const CANDIDATES: u64 = 20_000;
/// Keys of each list.
const KEYS: usize = 200;
/// Connections to the first node.
const CONNECTIONS: usize = 8;
/// Bytes of a value.
const VALUE_LENGTH: usize = 100;
/// How long each figure is measured.
const MEASURED: Duration = Duration::from_secs(3);
/// How long it is warmed up, and keys are written.
const WARM_UP: Duration = Duration::from_secs(1);

/// Measures all kinds.
pub(super) fn measure(
    scenario: &BalanceScenario,
    interrupt: &Interrupt,
) -> Result<ScenarioReport, ScenarioError> {
    let question = "Three nodes, all requests at n1: microseconds of processor for each operation, at n1, n2 and n3, by the \
                    list of the key.";
    let mut report = ScenarioReport::new("balance weights", question);
    let mut table = vec![rows::table_head("N | list | operation | pipeline | n1, n2, n3 | requests/s")];
    for (replicas, consistency) in [(1, "1,1,1"), (3, "3,2,2")] {
        scenario.say(&format!("three nodes, N={replicas}"));
        let shape = Shape { nodes: 3, partitions: 1024, consistency, headmaster: true };
        let capped = Capped::start(&scenario.tontine, shape, interrupt)?;
        capped.operator.run(&["balance", "off"])?;
        let pids = capped.pids()?;
        let (lists, first) = lists(&capped)?;
        for (list, keys) in lists {
            let list: Vec<String> = list.iter().map(ToString::to_string).collect();
            let list = list.join(" ");
            for (writes, depth) in [(1.0, 1), (1.0, 8), (0.0, 1), (0.0, 8)] {
                let load = LoadShape {
                    keys: keys.clone(),
                    zipf: false,
                    writes,
                    value_length: VALUE_LENGTH,
                    connections: CONNECTIONS,
                    depth,
                    rate: None,
                };
                let (each, rate) = cost(load, &first, &pids, interrupt)?;
                let kind = if writes > 0.0 { "set" } else { "get" };
                let shown: Vec<String> = each.iter().map(|us| format!("{us:.1}")).collect();
                table.push(format!(
                    "| {replicas} | {list} | {kind} | {depth} | {} | {rate:.0} |",
                    shown.join(", ")
                ));
                let list = list.replace(' ', "_");
                for (node, us) in (1..).zip(each) {
                    report.figures.insert(format!("n_{replicas}_{list}_{kind}_{depth}_at_n{node}_us"), us);
                }
            }
        }
    }
    report.notes.push(table.join("\n"));
    Ok(report)
}

/// Some keys of each list of replicas.
type Lists = BTreeMap<Vec<NodeId>, Vec<Bytes>>;

/// Some keys of each list, and the Redis address of the first node.
fn lists(capped: &Capped) -> Result<(Lists, String), ScenarioError> {
    let cluster = ask(&capped.addresses, async |client| Ok(client.cluster()))?;
    let store =
        cluster.store("default").ok_or(ScenarioError::Stuck { what: "there is no store `default`" })?;
    let mut lists = Lists::new();
    for number in 0..CANDIDATES {
        let key = Bytes::from(format!("key:{number}"));
        let list = PreferenceList::of(store, cluster.ring.partition(Token::of(&key)));
        let keys = lists.entry(list.replicas().to_vec()).or_default();
        if keys.len() < KEYS {
            keys.push(key);
        }
    }
    let first = cluster.node(NodeId(1)).and_then(|node| node.resp.clone());
    Ok((lists, first.ok_or(ScenarioError::Stuck { what: "the first node has no Redis port" })?))
}

/// Microseconds that each process ran for each operation, and operations per second.
fn cost(
    load: LoadShape,
    first: &str,
    pids: &[u32],
    interrupt: &Interrupt,
) -> Result<(Vec<f64>, f64), ScenarioError> {
    interrupt.check()?;
    let routes = Routes { addresses: vec![first.to_owned()], owned: None };
    let generator = Generator::start(load, routes).map_err(system)?;
    rest(WARM_UP, interrupt)?;
    let count = || (generator.counts().0, pids.iter().map(|&pid| threads_ran(pid)).collect::<Vec<_>>());
    let (before, ran_before) = count();
    thread::sleep(MEASURED);
    let (after, ran_after) = count();
    generator.stop().map_err(system)?;
    let operations = (after - before) as f64;
    let pairs = ran_before.into_iter().zip(ran_after);
    let each = pairs.map(|(before, after)| match (before, after) {
        (Some(before), Some(after)) => after.saturating_sub(before).as_secs_f64() * 1e6 / operations,
        _ => f64::NAN,
    });
    Ok((each.collect(), operations / MEASURED.as_secs_f64()))
}
