//! `tontine balance status`: asks all nodes for their loads twice, and shows what they did in between.

use std::process::ExitCode;
use std::time::Duration;

use client::Client;
use model::{Cluster, Node, NodeId};
use protocol::report::{Parts, Report};
use serde_json::{Value as Json, json};

use super::rates::{self, NodeRates, PartAtNode, PartitionRates, Span, WorkRate};
use crate::clocks;
use crate::context::CliContext;
use crate::failure::CliError;
use crate::output::print;
use crate::text::{Format, count, size, table};

/// Partitions that are shown.
const PARTITIONS_SHOWN: usize = 10;

/// Shows how load is spread.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Asks all nodes twice, and shows what they did in between.

Nodes:
  PROCESSORS  that the node may use: those of the machine, or less where a control group bounds it
  USED        how much of them its workers used
  STARVED     of the time in which its workers had work, how long they waited for a processor
  GETS/S, PUTS/S, STAMPED/S
              keys that it answered, merged and stamped as a replica
  COORD/S     keys that clients had it get and put
  AGE         how long ago it said so

Partitions: the ten with most work. Its replicas come first, in the order of its list; behind them in brackets other nodes
that worked for it between the looks, as while it moves. Gets, puts and stamped puts are those of the same nodes.")]
pub struct BalanceStatusArguments {
    /// Time between the two looks, 1 to 600.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600), value_name = "COUNT")]
    pub seconds: u64,
}

/// What one node said, and when, by this machine's clock.
struct StatusLook {
    node: Node,
    answer: Result<Report, String>,
    at_ms: i64,
}

/// Asks all nodes at once.
async fn look(client: &Client) -> Vec<StatusLook> {
    let cluster = client.cluster();
    let asks = cluster.nodes.iter().map(|node| async move {
        let answer = client.report(node.id, Parts::LOAD).await.map_err(|error| error.to_string());
        StatusLook { node: node.clone(), answer, at_ms: clocks::now_ms() }
    });
    futures_util::future::join_all(asks).await
}

/// `tontine balance status`.
pub(super) async fn run(shared: CliContext, arguments: BalanceStatusArguments) -> Result<ExitCode, CliError> {
    let client = shared.client().await?;
    if shared.format() == Format::Text {
        say!("asking all nodes twice, {} s apart", arguments.seconds);
    }
    let before = look(&client).await;
    tokio::time::sleep(Duration::from_secs(arguments.seconds)).await;
    let after = look(&client).await;
    let shown_at = clocks::now_ms();
    let told: Vec<Told<'_>> = after.iter().map(|after| Told::of(&before, after, shown_at)).collect();
    let spans: Vec<(NodeId, Span<'_>)> =
        told.iter().filter_map(|told| Some((told.node.id, told.compared.as_ref().ok()?.clone()))).collect();
    let busiest = rates::busiest(&spans, PARTITIONS_SHOWN);
    let cluster = client.cluster();
    let document = json!({
        "cluster": cluster.name,
        "generation": cluster.generation,
        "nodes": told.iter().map(Told::json).collect::<Vec<_>>(),
        "partitions": busiest.iter().map(|rates| partition_json(&cluster, rates)).collect::<Vec<_>>(),
    });
    print(shared.format(), &document, || text(&cluster, &told, &busiest));
    let all_told = told.iter().all(|told| told.compared.is_ok());
    Ok(if all_told { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// What a node did between the looks, or why nobody knows.
struct Told<'a> {
    node: &'a Node,
    compared: Result<Span<'a>, String>,
    age_ms: i64,
}

impl<'a> Told<'a> {
    fn of(before: &'a [StatusLook], after: &'a StatusLook, shown_at: i64) -> Told<'a> {
        let node = &after.node;
        let answer = |look: &'a StatusLook| look.answer.as_ref().map_err(Clone::clone);
        let first = before.iter().find(|look| look.node.id == node.id);
        let compared = answer(after).and_then(|report| {
            let first = first.ok_or_else(|| "it joined between the two looks; ask again".to_owned())?;
            // Away at the first look and there at the second.
            Span::of(answer(first)?, report).map_err(str::to_owned)
        });
        Told { node, compared, age_ms: (shown_at - after.at_ms).max(0) }
    }

    fn rates(&self) -> Option<NodeRates> {
        self.compared.as_ref().ok().map(Span::node)
    }

    fn json(&self) -> Json {
        let mut document = json!({ "node": self.node.id, "answers": self.compared.is_ok() });
        match &self.compared {
            Ok(span) => {
                document["load"] = json!(span.node());
                document["age_ms"] = json!(self.age_ms);
            }
            Err(reason) => document["error"] = json!(reason),
        }
        document
    }

    fn row(&self) -> Option<Vec<String>> {
        let rates = self.rates()?;
        Some(vec![
            self.node.id.to_string(),
            format!("{:.2}", rates.processors),
            percent(rates.used),
            percent(rates.starved),
            rate(rates.work.gets_per_second),
            rate(rates.work.puts_per_second),
            rate(rates.work.stamped_per_second),
            rate(rates.coordinated_per_second),
            percent(rates.disk_used),
            format!("{:.1} s", self.age_ms as f64 / 1000.0),
        ])
    }
}

fn text(cluster: &Cluster, told: &[Told<'_>], busiest: &[PartitionRates]) -> String {
    let heading = [
        "NODE",
        "PROCESSORS",
        "USED",
        "STARVED",
        "GETS/S",
        "PUTS/S",
        "STAMPED/S",
        "COORD/S",
        "DISK USED",
        "AGE",
    ];
    let mut nodes = vec![heading.map(str::to_owned).to_vec()];
    nodes.extend(told.iter().filter_map(Told::row));
    let silent = told.iter().filter_map(|told| Some((told.node.id, told.compared.as_ref().err()?)));
    let silent: String = silent.map(|(node, reason)| format!("{node} does not say: {reason}\n")).collect();
    let heading = ["PARTITION", "LIST", "GETS/S", "PUTS/S", "STAMPED/S", "BYTES"];
    let mut partitions = vec![heading.map(str::to_owned).to_vec()];
    partitions.extend(busiest.iter().map(|rates| partition_row(cluster, rates)));
    let total = count(cluster.ring.partitions().len() as u64, "partition");
    let shown = match busiest.len() {
        0 => "no node tells of a partition\n".to_owned(),
        shown => format!("the busiest {shown} of {total}:\n{}", table(&partitions)),
    };
    format!(
        "cluster {}, generation {}\n\n{}{silent}\n{shown}",
        cluster.name,
        cluster.generation.0,
        table(&nodes)
    )
}

/// The replicas of a partition, in the order of its list.
fn replicas(cluster: &Cluster, rates: &PartitionRates) -> Vec<NodeId> {
    let list = cluster.ring.get(rates.partition).map(|partition| &partition.nodes[..]).unwrap_or_default();
    cluster.replicas_in(list).to_vec()
}

/// Other nodes that worked for it between the looks. One that held it earlier tells what it has done since it began, and
/// is none of these.
fn others(replicas: &[NodeId], rates: &PartitionRates) -> Vec<NodeId> {
    let works = |at: &&PartAtNode| !replicas.contains(&at.node) && at.work != WorkRate::default();
    rates.nodes.iter().filter(works).map(|at| at.node).collect()
}

fn partition_row(cluster: &Cluster, rates: &PartitionRates) -> Vec<String> {
    let replicas = replicas(cluster, rates);
    let others = others(&replicas, rates);
    let named = |of: &dyn Fn(NodeId) -> String| {
        let bracketed = others.iter().map(|node| format!("({})", of(*node)));
        replicas.iter().map(|node| of(*node)).chain(bracketed).collect::<Vec<_>>().join(" ")
    };
    let each =
        |of: fn(&PartAtNode) -> f64| named(&|node| rates.at(node).map_or("-".to_owned(), |at| rate(of(at))));
    vec![
        rates.partition.0.to_string(),
        named(&|node| node.to_string()),
        each(|at| at.work.gets_per_second),
        each(|at| at.work.puts_per_second),
        each(|at| at.work.stamped_per_second),
        size(rates.bytes()),
    ]
}

/// A partition with its replicas in the order of its list, and others that worked for it; those that told nothing of it
/// are left out.
fn partition_json(cluster: &Cluster, rates: &PartitionRates) -> Json {
    let replicas = replicas(cluster, rates);
    let all = replicas.iter().copied().chain(others(&replicas, rates));
    let nodes: Vec<&PartAtNode> = all.filter_map(|node| rates.at(node)).collect();
    json!({ "partition": rates.partition, "nodes": nodes, "replicas": replicas, "bytes": rates.bytes() })
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn rate(rate: f64) -> String {
    if rate <= 0.0 {
        "0".to_owned()
    } else if rate < 10.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    }
}

#[cfg(test)]
mod tests {
    use model::{Consistency, Ring, Store, StoreName, WallMillis, Zone};
    use protocol::report::{LoadReport, PartitionLoad, WorkDone};

    use super::*;

    fn cluster() -> Cluster {
        let nodes: Vec<Node> = (1..=3)
            .map(|id| Node::new(NodeId(id), Zone("a".to_owned()), format!("127.0.0.1:740{id}"), None))
            .collect();
        let zones: Vec<_> = nodes.iter().map(|node| (node.id, node.zone.clone())).collect();
        let consistency = Consistency { replicas: 2, reads_required: 1, writes_required: 1 };
        let store = Store::new(StoreName::new("default").unwrap(), consistency).unwrap();
        Cluster::new("test", nodes, Ring::equal_slices(4, &zones), vec![store])
    }

    fn look_at(cluster: &Cluster, seconds: u64) -> Vec<StatusLook> {
        let first = &cluster.ring.partitions()[0];
        let of = |node: &Node| {
            let place = first.nodes.iter().position(|listed| *listed == node.id).unwrap();
            let work = match place {
                0 => WorkDone { gets: 100 * seconds, puts: 0, stamped: 4 * seconds, own_gets: 0 },
                _ => WorkDone { gets: 0, puts: 4 * seconds, stamped: 0, own_gets: 0 },
            };
            let partitions = vec![PartitionLoad { partition: first.id, work, bytes: 2048, middle: None }];
            let load = LoadReport {
                uptime_ms: 60_000 + seconds * 1000,
                ran_us: Some(seconds * 500_000),
                waited_us: Some(0),
                processors: 2.0,
                partitions: if place < 2 { partitions } else { Vec::new() },
                ..LoadReport::default()
            };
            let report = Report::new(node.id, 1, WallMillis(0), cluster.generation);
            StatusLook { node: node.clone(), answer: Ok(Report { load: Some(load), ..report }), at_ms: 1000 }
        };
        cluster.nodes.iter().map(of).collect()
    }

    #[test]
    fn people_see_nodes_and_the_silent_with_their_reasons_and_partitions_in_the_order_of_their_lists() {
        let cluster = cluster();
        let (before, mut after) = (look_at(&cluster, 0), look_at(&cluster, 2));
        let list = cluster.ring.partitions()[0].nodes.clone();
        let last = after.iter_mut().find(|look| look.node.id == list[2]).unwrap();
        last.answer = Err("connection refused".to_owned());
        let told: Vec<Told<'_>> = after.iter().map(|after| Told::of(&before, after, 1200)).collect();
        let spans: Vec<(NodeId, Span<'_>)> = told
            .iter()
            .filter_map(|told| Some((told.node.id, told.compared.as_ref().ok()?.clone())))
            .collect();
        let busiest = rates::busiest(&spans, 10);
        let text = text(&cluster, &told, &busiest);
        assert!(text.contains(&format!("{} does not say: connection refused\n", list[2])), "{text}");
        let row = format!("{}    2.00        25 %  0 %      100     0", list[0]);
        assert!(text.contains(&row), "{text}");
        assert!(text.contains("0.2 s\n") && text.contains("the busiest 1 of 4 partitions:\n"), "{text}");
        let row = format!("0          {} {}  100 0   0 4.0   4.0 0      2.0 KiB\n", list[0], list[1]);
        assert!(text.contains(&row), "{text}");
        let json = partition_json(&cluster, &busiest[0]);
        assert_eq!(json["nodes"][0]["node"], json!(list[0]));
        assert_eq!(json["nodes"][0]["stamped_total"], 8);
        let silent = told.iter().find(|told| told.node.id == list[2]).unwrap().json();
        assert_eq!(silent["error"], "connection refused");
    }

    /// It showed two nodes where N is 1: one had given the partition away, and told what it had done for it before.
    #[test]
    fn a_node_that_held_a_partition_earlier_is_not_listed_and_one_that_works_for_it_is_in_brackets() {
        let mut cluster = cluster();
        cluster.stores[0].consistency.replicas = 1;
        let list = cluster.ring.partitions()[0].nodes.clone();
        let busiest = |before: &[StatusLook], after: &[StatusLook]| {
            let told: Vec<Told<'_>> = after.iter().map(|after| Told::of(before, after, 1200)).collect();
            let spans: Vec<(NodeId, Span<'_>)> =
                told.iter().map(|told| (told.node.id, told.compared.clone().ok().unwrap())).collect();
            let busiest = rates::busiest(&spans, 10);
            (partition_row(&cluster, &busiest[0]), partition_json(&cluster, &busiest[0]))
        };
        let (before, mut after) = (look_at(&cluster, 0), look_at(&cluster, 2));
        let (row, json) = busiest(&before, &after);
        assert_eq!(row[1], format!("{} ({})", list[0], list[1]));
        assert_eq!((&*row[2], &*row[3]), ("100 (0)", "0 (4.0)"));
        assert_eq!((json["nodes"].as_array().unwrap().len(), &json["replicas"]), (2, &json!([list[0]])));
        // It does nothing between the looks, and did before.
        let load = |look: &mut StatusLook| look.answer.as_mut().unwrap().load.clone();
        let earlier = after.iter_mut().find(|look| look.node.id == list[1]).unwrap();
        let mut idle = load(earlier).unwrap();
        let mut before = before;
        idle.uptime_ms -= 1000;
        before.iter_mut().find(|look| look.node.id == list[1]).unwrap().answer.as_mut().unwrap().load =
            Some(idle);
        let (row, json) = busiest(&before, &after);
        assert_eq!((row[1].clone(), &*row[2]), (list[0].to_string(), "100"));
        assert_eq!(json["nodes"].as_array().unwrap().len(), 1);
    }
}
