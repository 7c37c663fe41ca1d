//! What nodes did between two looks at their loads: rates of a node, and of a partition at each node.
//!
//! **Architecture Invariant:** a rate is of one process. Where a node began anew between the looks there is none.

use std::collections::BTreeMap;

use model::{NodeId, PartitionId};
use protocol::report::{LoadReport, PartitionLoad, Report, WorkDone};
use serde::Serialize;

/// Work in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct WorkRate {
    /// Gets answered as a replica.
    pub(super) gets_per_second: f64,
    /// Writes merged as a replica.
    pub(super) puts_per_second: f64,
    /// Writes stamped as a replica.
    pub(super) stamped_per_second: f64,
}

impl WorkRate {
    fn of(work: WorkDone, seconds: f64) -> WorkRate {
        WorkRate {
            gets_per_second: work.gets as f64 / seconds,
            puts_per_second: work.puts as f64 / seconds,
            stamped_per_second: work.stamped as f64 / seconds,
        }
    }

    fn operations(self) -> f64 {
        self.gets_per_second + self.puts_per_second + self.stamped_per_second
    }
}

/// What was done since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct WorkTotal {
    gets_total: u64,
    puts_total: u64,
    stamped_total: u64,
}

impl From<WorkDone> for WorkTotal {
    fn from(work: WorkDone) -> WorkTotal {
        WorkTotal { gets_total: work.gets, puts_total: work.puts, stamped_total: work.stamped }
    }
}

/// How much one node does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct NodeRates {
    /// Between the looks, by the node's clock.
    pub(super) seconds: f64,
    /// Processors that it may use.
    pub(super) processors: f64,
    /// Its workers.
    pub(super) workers: u32,
    /// The share of those processors that its workers used; `None` where nobody counts that.
    pub(super) used: Option<f64>,
    /// Of the time in which its workers had work, the share in which they had no processor.
    pub(super) starved: Option<f64>,
    /// What it did as a replica.
    #[serde(flatten)]
    pub(super) work: WorkRate,
    /// The same since its process began.
    #[serde(flatten)]
    pub(super) total: WorkTotal,
    /// Keys that clients had it get and put.
    pub(super) coordinated_per_second: f64,
    /// Keys that clients had it get since its process began.
    pub(super) coordinated_gets_total: u64,
    /// Keys that clients had it put since its process began.
    pub(super) coordinated_puts_total: u64,
    /// The share of its disk that is taken.
    pub(super) disk_used: Option<f64>,
    /// Free bytes of its disk.
    pub(super) disk_available_bytes: Option<u64>,
    /// All bytes of its disk.
    pub(super) disk_total_bytes: Option<u64>,
    /// Partitions in which it has a part.
    pub(super) partitions: usize,
}

/// Two looks at one node that can be compared, and the time between them.
#[derive(Clone)]
pub(super) struct Span<'a> {
    before: &'a LoadReport,
    pub(super) after: &'a LoadReport,
    seconds: f64,
}

impl<'a> Span<'a> {
    /// Of two reports of one node.
    ///
    /// # Errors
    /// Why they cannot be compared.
    pub(super) fn of(before: &'a Report, after: &'a Report) -> Result<Span<'a>, &'static str> {
        const OLDER: &str = "it does not report its load: its program is of an older version";
        let begun_anew = "it began anew between the two looks; ask again";
        let (before_load, after_load) =
            (before.load.as_ref().ok_or(OLDER)?, after.load.as_ref().ok_or(OLDER)?);
        if before.incarnation != after.incarnation || after_load.uptime_ms <= before_load.uptime_ms {
            return Err(begun_anew);
        }
        let seconds = (after_load.uptime_ms - before_load.uptime_ms) as f64 / 1000.0;
        Ok(Span { before: before_load, after: after_load, seconds })
    }

    fn rate(&self, of: impl Fn(&LoadReport) -> u64) -> f64 {
        of(self.after).saturating_sub(of(self.before)) as f64 / self.seconds
    }

    /// How much the node does.
    pub(super) fn node(&self) -> NodeRates {
        let after = self.after;
        let micros = |of: fn(&LoadReport) -> Option<u64>| {
            Some(of(after)?.saturating_sub(of(self.before)?) as f64 / 1_000_000.0)
        };
        let (ran, waited) = (micros(|load| load.ran_us), micros(|load| load.waited_us));
        let processors = self.seconds * after.processors;
        let busy = ran.zip(waited).map(|(ran, waited)| (waited, ran + waited));
        let disk = after.disk_total_bytes.zip(after.disk_available_bytes);
        NodeRates {
            seconds: self.seconds,
            processors: after.processors,
            workers: after.workers,
            used: ran.filter(|_| processors > 0.0).map(|ran| ran / processors),
            starved: busy.map(|(waited, busy)| if busy > 0.0 { waited / busy } else { 0.0 }),
            work: WorkRate::of(after.work().since(self.before.work()), self.seconds),
            total: after.work().into(),
            coordinated_per_second: self.rate(|load| load.coordinated_gets + load.coordinated_puts),
            coordinated_gets_total: after.coordinated_gets,
            coordinated_puts_total: after.coordinated_puts,
            disk_used: disk
                .filter(|(total, _)| *total > 0)
                .map(|(total, free)| total.saturating_sub(free) as f64 / total as f64),
            disk_available_bytes: after.disk_available_bytes,
            disk_total_bytes: after.disk_total_bytes,
            partitions: after.partitions.len() + after.rest_partitions as usize,
        }
    }

    /// What was done for a partition of which the node told at the second look. Where it did not tell of it at the first
    /// one because it told of others, nobody knows, and it counts as nothing.
    fn partition(&self, after: &PartitionLoad) -> WorkRate {
        let before = self.before.partitions.iter().find(|load| load.partition == after.partition);
        let before = match before {
            Some(before) => before.work,
            None if self.before.rest_partitions == 0 => WorkDone::default(),
            None => after.work,
        };
        WorkRate::of(after.work.since(before), self.seconds)
    }
}

/// How much is done for a partition, at one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PartAtNode {
    pub(super) node: NodeId,
    #[serde(flatten)]
    pub(super) work: WorkRate,
    #[serde(flatten)]
    pub(super) total: WorkTotal,
    /// Bytes that it holds.
    pub(super) bytes: u64,
}

/// How much is done for a partition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PartitionRates {
    pub(super) partition: PartitionId,
    /// At each node that told of it.
    pub(super) nodes: Vec<PartAtNode>,
}

impl PartitionRates {
    /// What is done for it at all nodes together.
    fn operations(&self) -> (f64, u64) {
        let rates = self.nodes.iter().map(|at| at.work.operations());
        let totals = self.nodes.iter().map(|at| at.total);
        (rates.sum(), totals.map(|total| total.gets_total + total.puts_total + total.stamped_total).sum())
    }

    /// What is done at a node.
    pub(super) fn at(&self, node: NodeId) -> Option<&PartAtNode> {
        self.nodes.iter().find(|at| at.node == node)
    }

    /// Bytes at the node that holds most.
    pub(super) fn bytes(&self) -> u64 {
        self.nodes.iter().map(|at| at.bytes).max().unwrap_or(0)
    }
}

/// The partitions with most work at all nodes together; of equals, those with most since the nodes began.
pub(super) fn busiest(nodes: &[(NodeId, Span<'_>)], count: usize) -> Vec<PartitionRates> {
    let mut partitions: BTreeMap<PartitionId, Vec<PartAtNode>> = BTreeMap::new();
    for (node, span) in nodes {
        for load in &span.after.partitions {
            let work = span.partition(load);
            let at = PartAtNode { node: *node, work, total: load.work.into(), bytes: load.bytes };
            partitions.entry(load.partition).or_default().push(at);
        }
    }
    let mut rates: Vec<PartitionRates> =
        partitions.into_iter().map(|(partition, nodes)| PartitionRates { partition, nodes }).collect();
    rates.sort_by(|one, other| {
        let (one, other) = (one.operations(), other.operations());
        other.0.total_cmp(&one.0).then(other.1.cmp(&one.1))
    });
    rates.truncate(count);
    rates
}

#[cfg(test)]
mod tests {
    use model::{Generation, WallMillis};

    use super::*;

    fn report(incarnation: u64, load: LoadReport) -> Report {
        let report = Report::new(NodeId(1), incarnation, WallMillis(0), Generation(1));
        Report { load: Some(load), ..report }
    }

    fn part(partition: u32, gets: u64, stamped: u64) -> PartitionLoad {
        let work = WorkDone { gets, puts: 0, stamped, own_gets: 0 };
        PartitionLoad {
            partition: PartitionId(partition),
            work,
            bytes: 100 * u64::from(partition),
            middle: None,
        }
    }

    fn load(uptime_ms: u64, partitions: Vec<PartitionLoad>) -> LoadReport {
        LoadReport { uptime_ms, workers: 2, processors: 1.5, partitions, ..LoadReport::default() }
    }

    #[test]
    fn a_nodes_rates_are_by_its_clock_and_the_processors_that_it_may_use() {
        let before =
            report(7, LoadReport { ran_us: Some(1_000_000), waited_us: Some(0), ..load(10_000, vec![]) });
        let after = report(
            7,
            LoadReport {
                ran_us: Some(2_500_000),
                waited_us: Some(500_000),
                coordinated_gets: 30,
                coordinated_puts: 10,
                disk_total_bytes: Some(1000),
                disk_available_bytes: Some(250),
                rest: WorkDone { gets: 8, puts: 4, stamped: 2, own_gets: 0 },
                rest_partitions: 3,
                ..load(12_000, vec![part(1, 32, 0)])
            },
        );
        let rates = Span::of(&before, &after).unwrap().node();
        assert_eq!((rates.seconds, rates.used, rates.starved), (2.0, Some(0.5), Some(0.25)));
        let work = WorkRate { gets_per_second: 20.0, puts_per_second: 2.0, stamped_per_second: 1.0 };
        assert_eq!((rates.work, rates.coordinated_per_second), (work, 20.0));
        assert_eq!((rates.disk_used, rates.partitions), (Some(0.75), 4));
        assert_eq!(rates.total, WorkTotal { gets_total: 40, puts_total: 4, stamped_total: 2 });
    }

    #[test]
    fn what_nobody_counts_is_unknown_and_a_node_without_work_waits_for_nothing() {
        let (before, after) = (report(7, load(0, vec![])), report(7, load(1000, vec![])));
        let rates = Span::of(&before, &after).unwrap().node();
        assert_eq!((rates.used, rates.starved, rates.disk_used), (None, None, None));
        let idle = |uptime_ms| LoadReport { ran_us: Some(5), waited_us: Some(6), ..load(uptime_ms, vec![]) };
        let (before, after) = (report(7, idle(0)), report(7, idle(1000)));
        let rates = Span::of(&before, &after).unwrap().node();
        assert_eq!((rates.used, rates.starved), (Some(0.0), Some(0.0)));
    }

    #[test]
    fn looks_at_two_processes_or_an_older_program_are_not_compared() {
        let before = report(7, load(10_000, vec![]));
        let said = |after: &Report| Span::of(&before, after).err().unwrap_or_default();
        assert!(said(&report(8, load(12_000, vec![]))).starts_with("it began anew"));
        assert!(said(&report(7, load(10_000, vec![]))).starts_with("it began anew"));
        assert!(said(&Report { load: None, ..before.clone() }).starts_with("it does not report"));
        assert_eq!(said(&report(7, load(10_001, vec![]))), "");
    }

    #[test]
    fn the_busiest_partitions_come_first_wherever_the_work_is_done() {
        let before = report(7, load(0, vec![part(1, 500, 0), part(2, 0, 0)]));
        let one = report(7, load(2000, vec![part(1, 510, 0), part(2, 8, 0), part(4, 1, 0)]));
        let other = report(7, load(2000, vec![part(1, 500, 0), part(2, 0, 20), part(3, 0, 0)]));
        let spans =
            [(NodeId(1), Span::of(&before, &one).unwrap()), (NodeId(2), Span::of(&before, &other).unwrap())];
        let busiest = busiest(&spans, 3);
        let told: Vec<u32> = busiest.iter().map(|rates| rates.partition.0).collect();
        assert_eq!(told, [2, 1, 4]);
        let at = busiest[0].at(NodeId(2)).unwrap();
        assert_eq!((at.work.stamped_per_second, at.total.stamped_total), (10.0, 20));
        assert!(busiest[2].at(NodeId(2)).is_none() && busiest[0].bytes() == 200);
    }

    #[test]
    fn of_a_partition_that_was_not_told_before_nobody_knows_the_rate() {
        let before = report(7, LoadReport { rest_partitions: 1, ..load(0, vec![]) });
        let after = report(7, load(1000, vec![part(1, 500, 0)]));
        let rates = busiest(&[(NodeId(1), Span::of(&before, &after).unwrap())], 10);
        assert_eq!(rates[0].nodes[0].work, WorkRate::default());
        assert_eq!(rates[0].nodes[0].total.gets_total, 500);
    }
}
