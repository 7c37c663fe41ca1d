//! One partition that is too hot to go anywhere: it is cut where its work halves, if one of the halves could go.
//!
//! A cut moves nothing, and so relieves nobody. It is made only where the next decision has a legal act for a half. Where
//! a single bucket has all the work, no cut helps, and nodes tell no middle.

use model::balance::Settings;
use model::plan::{CutAt, Excess, PlanRefusal};
use model::{Cluster, NodeId, PartitionId};

use super::Loads;
use super::search::{Search, SearchHistory};

/// What of the load may lie before a cut that halves it, in permille.
const HALVES: std::ops::RangeInclusive<u32> = 333..=667;

/// Where the dearest partition of a node that exceeds a limit should be cut.
pub(super) fn cut(
    cluster: &Cluster,
    loads: &Loads<'_>,
    history: &SearchHistory,
    settings: &Settings,
    over: &[(NodeId, Excess)],
) -> Option<(NodeId, Excess, CutAt)> {
    let busy = over.iter().filter(|(_, excess)| *excess != Excess::Disk);
    busy.filter_map(|&(node, excess)| {
        let (partition, ..) = *Search::new(cluster, loads, history, settings).held(node, excess).first()?;
        let middle = loads.middle(node, partition)?;
        let first = f64::from(middle.permille) / 1000.0;
        let halves = [first.max(1.0 - first), first.min(1.0 - first)];
        let then = halves.into_iter().find_map(|part| {
            let mut search = Search::new(cluster, loads, history, settings);
            search.only(partition, part);
            search.best(node, excess)
        })?;
        Some((node, excess, CutAt { partition, at: middle.at, permille: middle.permille, then: then.act }))
    })
    .next()
}

/// The partition with most load of all, and the token at which that halves.
///
/// # Errors
/// Nothing has any load; or no cut leaves a third of it on each side, as far as nodes say.
pub fn hottest(cluster: &Cluster, loads: &Loads<'_>) -> Result<(PartitionId, u64), PlanRefusal> {
    let work = |places: &[(NodeId, f64)]| places.iter().map(|(_, work)| work).sum::<f64>();
    let costs = loads.costs(cluster).places;
    let hottest = costs.iter().max_by(|a, b| work(a.1).total_cmp(&work(b.1)));
    let Some((&partition, places)) = hottest.filter(|(_, places)| work(places) > 0.0) else {
        return Err(PlanRefusal::NoFigures { is_off: false, seconds: None });
    };
    let busiest = places.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(node, _)| *node);
    let middle = busiest.and_then(|node| loads.middle(node, partition));
    let halves = middle.filter(|middle| HALVES.contains(&middle.permille));
    halves.map(|middle| (partition, middle.at)).ok_or(PlanRefusal::NotHalved { partition })
}

/// The partition that costs a node most.
pub(super) fn dearest(
    cluster: &Cluster,
    loads: &Loads<'_>,
    history: &SearchHistory,
    settings: &Settings,
    node: NodeId,
) -> Option<PartitionId> {
    let search = Search::new(cluster, loads, history, settings);
    search.held(node, Excess::Mean).first().map(|(partition, ..)| *partition)
}

impl Search<'_> {
    /// Thinks of one partition alone, of which so large a part is left.
    fn only(&mut self, partition: PartitionId, part: f64) {
        self.places.retain(|id, _| *id == partition);
        for (_, work) in self.places.values_mut().flatten() {
            *work *= part;
        }
        if let Some(bytes) = self.bytes.get_mut(&partition) {
            *bytes = (*bytes as f64 * part) as u64;
        }
    }
}
