//! How long plans take: by what they bring in, by the last plan that tells, and by their own course.
//!
//! What a plan brings in is counted in one measure, bytes: a record costs some beside its own, and so does a bucket of a
//! store, full or empty, since it is compared. How much of that the busiest node brings in within a second is the pace.

use std::collections::BTreeMap;
use std::time::Duration;

use model::NodeId;
use model::plan::{Phase, PlanDocument, PlanPace, Planned, Size};

use crate::pace;

/// About how long the four steps of a move take beside copying.
const STEPS_TAKE: Duration = Duration::from_secs(4);

/// What a bucket of a store costs that is brought in, beside its records: it is compared, full or empty. In bytes that
/// cost as much.
const UNIT_BYTES: u64 = 1 << 10;

/// A plan tells how long one of up to this many times its size takes: with a smaller one the steps count for more.
const TIMES_LIKE: f64 = 10.0;

/// A copy that took no longer tells that it was quick, and not how quick.
const COPY_TOLD_MIN: Duration = Duration::from_secs(1);

/// While a plan is carried out, what was expected counts like so much time of measuring, and like so large a part of the
/// plan at most: a plan that was expected to be short must be corrected, too.
const EXPECTED_FOR: Duration = Duration::from_secs(2);
const EXPECTED_SHARE_MAX: f64 = 0.25;

/// What of a plan was brought in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BroughtIn {
    /// Records with their bytes.
    pub size: Size,
    /// Buckets of stores.
    pub units: u64,
}

/// What the node costs that brings in most, in bytes: records and units counted like bytes. `None` when nobody said
/// what the nodes hold.
pub fn cost(plan: &PlanDocument) -> Option<f64> {
    if plan.change.copies() == 0 {
        return Some(0.0);
    }
    let mut copies: BTreeMap<NodeId, u64> = BTreeMap::new();
    let entering = plan.change.moves().iter().flat_map(|one| &one.entering);
    entering.for_each(|node| *copies.entry(*node).or_default() += 1);
    let (all, busiest) = (copies.values().sum::<u64>(), copies.into_values().max()?);
    Some(cost_of(plan.estimate?, plan.units) * busiest as f64 / all as f64)
}

fn cost_of(size: Size, units: u64) -> f64 {
    (size.bytes + size.records * pace::RECORD_BYTES + units * UNIT_BYTES) as f64
}

fn cost_per_second(plan: &PlanDocument) -> f64 {
    plan.pace.map_or(pace::FINDING_FIRST, |pace| pace.cost_per_second.max(1)) as f64
}

/// About how long a plan takes at the pace of the last plan that tells; where none does, at the rate at which each node
/// begins to bring records in: idle nodes go faster, and busy ones slower. `None` when nobody said what the nodes hold.
pub fn takes(plan: &PlanDocument) -> Option<Duration> {
    Some(STEPS_TAKE + Duration::from_secs_f64(cost(plan)? / cost_per_second(plan)))
}

/// About how long a plan will take yet, when so much is here, of which what was not here at `first` came `within` a time.
/// Rounded, the more the longer it is.
pub fn left(
    plan: &PlanDocument,
    here: BroughtIn,
    (first, within): (BroughtIn, Duration),
) -> Option<Duration> {
    let whole = cost_of(plan.estimate?, plan.units).max(1.0);
    let share = |part: BroughtIn| cost_of(part.size, part.units).min(whole) / whole;
    let (cost, done, pace) = (cost(plan)?.max(1.0), share(here), cost_per_second(plan));
    let came = (done - share(first)).max(0.0);
    let expected = (EXPECTED_FOR.as_secs_f64() * pace / cost).min(EXPECTED_SHARE_MAX);
    let rate = cost * (expected + came) / (expected * cost / pace + within.as_secs_f64());
    let left = (STEPS_TAKE.as_secs_f64() + cost * (1.0 - done) / rate).ceil() as u64;
    let step = (left / 8).max(1).next_power_of_two();
    Some(Duration::from_secs(left.div_ceil(step) * step))
}

/// How fast a plan was carried out that is done, with what it cost; `None` when that tells nothing.
pub fn pace_of(planned: &Planned) -> Option<(f64, PlanPace)> {
    let state = planned.state.as_ref().filter(|state| state.phase == Phase::Done && !state.was_paused)?;
    let its = cost(&planned.plan).filter(|its| *its > 0.0)?;
    let took = Duration::from_millis(state.ended_ms?.saturating_sub(state.begun_ms));
    let copy = took.saturating_sub(STEPS_TAKE);
    let rate = (its / copy.max(COPY_TOLD_MIN).as_secs_f64()) as u64;
    let rate = if copy < COPY_TOLD_MIN { rate.max(pace::FINDING_FIRST) } else { rate };
    Some((its, PlanPace { plan: planned.number, cost_per_second: rate.max(1) }))
}

/// Whether a plan of cost `its` tells how long one of this cost takes.
pub fn tells(its: f64, cost: f64) -> bool {
    its * TIMES_LIKE >= cost
}

#[cfg(test)]
mod tests {
    use model::plan::{Consent, Move, PlanChange, PlanState, Progress, Wish};
    use model::{Generation, PartitionId};

    use super::*;
    use crate::rebalance::planner::Plan;

    /// Two nodes bring in half of it each.
    fn plan(bytes: u64, units: u64) -> PlanDocument {
        let one = |id, entering| Move {
            partition: PartitionId(id),
            from: vec![NodeId(9)],
            to: vec![entering],
            entering: vec![entering],
        };
        let moves = vec![one(0, NodeId(1)), one(1, NodeId(2))];
        let (generation, places) = (Generation(1), BTreeMap::new());
        let plan = Plan { generation, change: PlanChange::Moves { moves }, places };
        let mut document = plan.document(Wish::Spread, Consent::default());
        (document.estimate, document.units) = (Some(Size { records: 0, bytes }), units);
        document
    }

    fn done(plan: PlanDocument, seconds: u64) -> Planned {
        let state = PlanState {
            phase: Phase::Done,
            order: 1,
            reason: None,
            aborted_under: None,
            begun_ms: 1000,
            ended_ms: Some(1000 + seconds * 1000),
            progress: Progress::default(),
            bytes_per_second: None,
            seconds_left: None,
            was_paused: false,
            waiting: Vec::new(),
            came_of: None,
        };
        Planned { number: 7, plan, state: Some(state) }
    }

    fn told(planned: &Planned, cost: f64) -> Option<PlanPace> {
        pace_of(planned).filter(|(its, _)| tells(*its, cost)).map(|(_, pace)| pace)
    }

    fn seconds(duration: Option<Duration>) -> Option<u64> {
        duration.map(|duration| duration.as_secs())
    }

    /// A drain of 20,000 units with next to no bytes was expected to take five seconds, and took seven minutes.
    #[test]
    fn a_plan_takes_as_long_for_each_unit_as_the_last_one_took() {
        let mut next = plan(20_000, 20_000);
        assert_eq!(seconds(takes(&next)), Some(4));
        let cost = cost(&next).unwrap();
        let last = done(plan(10_000, 10_000), 217);
        next.pace = told(&last, cost);
        assert_eq!(next.pace.map(|pace| pace.plan), Some(7));
        assert_eq!(seconds(takes(&next)), Some(4 + 2 * 213));
    }

    #[test]
    fn a_plan_that_tells_nothing_of_this_one_is_passed_over() {
        let cost = cost(&plan(0, 20_000)).unwrap();
        assert_eq!(told(&done(plan(0, 1999), 60), cost), None, "too small");
        let mut paused = done(plan(0, 20_000), 60);
        paused.state.as_mut().unwrap().was_paused = true;
        assert_eq!(told(&paused, cost), None);
        let mut broken_off = done(plan(0, 20_000), 60);
        broken_off.state.as_mut().unwrap().phase = Phase::Aborted;
        assert_eq!(told(&broken_off, cost), None);
        let quick = told(&done(plan(0, 20_000), 3), cost).unwrap();
        assert!(
            quick.cost_per_second >= pace::FINDING_FIRST,
            "it was no slower than what nobody has measured"
        );
    }

    #[test]
    fn what_is_left_is_corrected_by_what_has_come() {
        let plan = plan(160 << 20, 0);
        let left = |here: u64, within: u64| {
            let came = |mib: u64| BroughtIn { size: Size { records: 0, bytes: mib << 20 }, units: 0 };
            seconds(super::left(&plan, came(here), (came(0), Duration::from_secs(within)))).unwrap()
        };
        assert_eq!(Some(left(0, 0)), seconds(takes(&plan)), "as expected, at first");
        assert_eq!(left(80, 2), 7, "it goes as expected");
        assert!((30..50).contains(&left(16, 10)), "it takes longer: {}", left(16, 10));
        assert!(left(0, 60) > 100, "nothing has come: {}", left(0, 60));
        assert_eq!(left(160, 60), 4, "the steps");
        let successor = super::left(
            &plan,
            BroughtIn { size: Size { records: 0, bytes: 80 << 20 }, units: 0 },
            (BroughtIn { size: Size { records: 0, bytes: 80 << 20 }, units: 0 }, Duration::ZERO),
        );
        assert_eq!(seconds(successor), Some(7), "what came before it looked is no pace");
    }
}
