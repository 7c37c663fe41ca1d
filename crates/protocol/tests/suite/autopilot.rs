//! What the autopilot must not do, one test for each: by the numbers of `docs/design/balance.md`.
//!
//! Constant noisy load, returns and successions are played for days by `sim::balance`.

use std::time::Duration;

use model::balance::{Implausible, Mode, Policy, PolicyChange, Says, Turned};
use model::order::{Done, Order};
use model::plan::{Came, Consent, Excess, LostBecause, Phase, Wish};
use model::{Cluster, NodeId, PartitionId};
use protocol::headmaster::Headmaster;
use protocol::report::{LoadReport, Middle, PartitionLoad, WorkDone};

use crate::headmaster::Stage;
use crate::planner::cluster;

/// What a node has done by now, when it answers this many gets a second of each partition whose list it heads, at 100 µs each,
/// and what else its worker does, in processors.
pub(super) fn load(
    stage: &Stage,
    node: NodeId,
    gets: impl Fn(PartitionId) -> f64,
    beside: f64,
) -> LoadReport {
    let seconds = stage.now.nanos as f64 / 1e9 + 100.0;
    let headed = stage.cluster.ring.partitions().iter().filter(|one| one.reading()[0] == node);
    let partitions: Vec<PartitionLoad> = headed
        .map(|one| {
            let gets = (gets(one.id) * seconds) as u64;
            PartitionLoad {
                partition: one.id,
                work: WorkDone { gets, ..WorkDone::default() },
                bytes: 1 << 20,
                middle: None,
            }
        })
        .collect();
    let gets: u64 = partitions.iter().map(|load| load.work.gets).sum();
    LoadReport {
        uptime_ms: (seconds * 1000.0) as u64,
        ran_us: Some(gets * 100 + (beside * seconds * 1e6) as u64),
        waited_us: Some(0),
        workers: 1,
        processors: 1.0,
        coordinated_gets: (beside * seconds * 1e4 / 3.0) as u64,
        partitions,
        ..LoadReport::default()
    }
}

/// Three nodes and a fourth without partitions; one replica. Node 1 has four times as much to do as the others.
fn lopsided() -> Stage {
    let mut stage = Stage::of(cluster(24, &["a"; 3], 3, 1), false);
    stage.policy = Policy::founded(0);
    stage.loads =
        |stage, node| Some(load(stage, node, |_| if node == NodeId(1) { 800.0 } else { 200.0 }, 0.0));
    stage
}

/// Plays until nothing is due, and rests.
fn turn(stage: &mut Stage) -> String {
    let played = stage.play(20);
    if played.ends_with("rest\n") {
        stage.now = stage.now.after(Duration::from_secs(2));
    }
    played
}

/// Plays this many seconds; what was done, without the lines of rest.
pub(super) fn seconds(stage: &mut Stage, seconds: u64) -> String {
    let end = stage.now.after(Duration::from_secs(seconds));
    let mut told = String::new();
    while stage.now < end {
        let played = turn(stage);
        told.push_str(&played);
    }
    let told = told.lines().filter(|line| !["rest", "look", "ask ", "wait"].contains(&&line[..4]));
    told.map(|line| format!("{line}\n")).collect()
}

/// Plays decision by decision until it is so.
fn until(stage: &mut Stage, so: impl Fn(&Stage) -> bool) {
    for _ in 0..1000 {
        if so(stage) {
            return;
        }
        if stage.play(1).ends_with("rest\n") {
            stage.now = stage.now.after(Duration::from_secs(2));
        }
    }
    panic!("it never came to that: {:?}", stage.verdict);
}

fn says(stage: &Stage) -> Says {
    stage.verdict.as_ref().expect("it has said something").says.clone()
}

#[test]
fn a_busy_node_is_relieved_and_the_plan_says_why() {
    let mut stage = lopsided();
    let told = seconds(&mut stage, 60);
    assert!(told.contains("create plan 1") && told.contains("note plan 1: applying"), "{told}");
    let (plan, state) = &stage.plans[0];
    let decision = plan.decision.as_ref().unwrap();
    assert_eq!((decision.node, decision.reorders), (NodeId(1), 0));
    assert!(decision.predicted.largest < decision.largest);
    assert_eq!(state.as_ref().unwrap().phase, Phase::Done);
    assert!(stage.cluster.ring.partitions().iter().all(|one| one.coming.is_none()));
}

#[test]
fn what_came_of_an_act_is_known_by_a_minute_of_load_that_no_other_act_has_changed() {
    let mut stage = lopsided();
    seconds(&mut stage, 1500);
    let done = stage.plans.iter().filter_map(|(_, state)| state.as_ref()).filter(|s| s.phase == Phase::Done);
    let came: Vec<_> = done.map(|state| state.came_of.map(|outcome| outcome.came)).collect();
    assert!(came.iter().all(Option::is_some), "{came:?}");
    assert_eq!(came.last(), Some(&Some(Came::AsPredicted)), "{came:?}");
    assert_eq!(stage.policy.mode, Mode::On);
}

/// Node 1 is busier than the mean by this many permille, whatever it heads, after each of the plans: 50% of all is used.
fn against_all_odds(stage: &Stage, node: NodeId, over_mean: &[u32]) -> Option<LoadReport> {
    let plans = stage.plans.iter().filter(|(_, state)| state.is_some()).count();
    let largest = 0.5 * f64::from(*over_mean.get(plans).or(over_mean.last())?) / 1000.0;
    let used = if node == NodeId(1) { largest } else { (1.5 - largest) / 2.0 };
    let headed = stage.cluster.ring.partitions().iter().filter(|one| one.reading()[0] == node).count();
    Some(load(stage, node, |_| used * 1e4 / headed as f64, 0.0))
}

fn outcomes(stage: &Stage) -> Vec<Option<Came>> {
    stage.plans.iter().map(|(_, state)| state.as_ref()?.came_of.map(|outcome| outcome.came)).collect()
}

#[test]
fn three_outcomes_in_a_row_that_are_worse_than_before_end_acting_and_it_says_by_which_plans() {
    let mut stage = lopsided();
    stage.loads = |stage, node| against_all_odds(stage, node, &[1160, 1267, 1374, 1481]);
    let told = seconds(&mut stage, 1500);
    assert_eq!(outcomes(&stage), [Some(Came::Worse); 3], "{told}");
    assert_eq!(told.matches("policy observe").count(), 1, "{told}");
    assert_eq!(stage.policy.mode, Mode::Observe);
    assert_eq!(stage.policy.because, Turned::Misjudged { plans: vec![3, 2, 1] });
    // From then on it says what it would do, and does it again only by order.
    assert_eq!(seconds(&mut stage, 900), "");
    assert!(matches!(says(&stage), Says::Would { .. }), "{:?}", says(&stage));
    stage.order(Order::Balance { change: PolicyChange::Mode { mode: Mode::On } });
    let told = seconds(&mut stage, 120);
    assert!(told.contains("create plan 4") && !told.contains("policy observe"), "{told}");
}

#[test]
fn two_outcomes_that_are_worse_and_one_that_is_not_do_not_end_acting() {
    let mut stage = lopsided();
    stage.loads = |stage, node| against_all_odds(stage, node, &[1160, 1267, 1374, 1160, 1267, 1100]);
    let told = seconds(&mut stage, 3000);
    let worse = Some(Came::Worse);
    let expected = [worse, worse, Some(Came::Less), worse, Some(Came::AsPredicted)];
    assert_eq!(outcomes(&stage), expected, "{told}");
    assert_eq!((stage.policy.mode, &stage.policy.because), (Mode::On, &Turned::Founded));
}

#[test]
fn what_is_observed_or_off_moves_nothing_and_says_what_it_would_do() {
    let mut stage = lopsided();
    stage.policy.mode = Mode::Observe;
    assert_eq!(seconds(&mut stage, 120), "");
    assert!(matches!(says(&stage), Says::Would { .. }), "{:?}", says(&stage));
    stage.policy.mode = Mode::Off;
    stage.verdict = None;
    assert_eq!(seconds(&mut stage, 60), "");
    assert_eq!(stage.verdict, None);
}

/// The first eighth of the tokens has nearly all the work, wherever it lies and in however many partitions.
fn hot_eighth(stage: &Stage, node: NodeId) -> Option<LoadReport> {
    const EIGHTH: u64 = 1 << 61;
    let bounds = |id| stage.cluster.ring.bounds(id).unwrap();
    let is_hot = |id| bounds(id).0.0 < EIGHTH;
    let width = |id| bounds(id).1.0 - bounds(id).0.0 + 1;
    let gets = |id| if is_hot(id) { 5000.0 * width(id) as f64 / EIGHTH as f64 } else { 200.0 };
    let mut said = load(stage, node, gets, 0.0);
    for told in said.partitions.iter_mut().filter(|told| is_hot(told.partition)) {
        let at = bounds(told.partition).0.0 + width(told.partition) / 2;
        told.middle = Some(Middle { at, permille: 500 });
    }
    Some(said)
}

#[test]
fn one_partition_that_is_too_hot_for_any_node_is_cut_where_its_load_halves_and_a_half_goes() {
    let wide = Cluster { buckets: 4096, ..cluster(8, &["a"; 3], 3, 1) };
    let mut stage = Stage::of(wide, false);
    stage.policy = Policy::founded(0);
    stage.loads = hot_eighth;
    seconds(&mut stage, 3600);
    let cuts: Vec<_> =
        stage.plans.iter().filter_map(|(plan, _)| plan.decision.as_ref()?.cut.map(|cut| cut.at)).collect();
    assert_eq!(cuts.first(), Some(&(1 << 60)), "{cuts:?} {:?}", stage.verdict);
    let heads = |node: u32| {
        let partitions = stage.cluster.ring.partitions().iter();
        partitions.filter(|one| one.start < 1 << 61 && one.reading()[0] == NodeId(node)).count()
    };
    let busy = (1..=3).filter(|&node| heads(node) > 0).count();
    assert_eq!(busy, 2, "each half lies on its own node: {:?}", stage.cluster.ring);
    let largest = stage.verdict.as_ref().unwrap().seen.iter().map(|at| at.utilisation).max();
    assert!(largest < Some(300), "half of what it was: {:?}", stage.verdict);
    let before = stage.plans.len();
    seconds(&mut stage, 6 * 3600);
    assert_eq!(stage.plans.len(), before, "then it rests");
}

#[test]
fn where_one_bucket_has_all_the_work_nothing_is_cut_and_the_partition_is_named() {
    let mut stage = Stage::of(cluster(8, &["a"; 3], 3, 1), false);
    stage.policy = Policy::founded(0);
    stage.loads = |stage, node| {
        let mut said = hot_eighth(stage, node)?;
        said.partitions.iter_mut().for_each(|told| told.middle = None);
        Some(said)
    };
    seconds(&mut stage, 1800);
    assert!(stage.plans.iter().all(|(plan, _)| plan.decision.as_ref().unwrap().cut.is_none()));
    let Says::NothingHelps { dearest: Some(dearest), .. } = says(&stage) else {
        panic!("{:?}", says(&stage))
    };
    assert_eq!(stage.cluster.ring.bounds(dearest).unwrap().0.0, 0);
}

#[test]
fn must_not_3_requests_of_clients_that_belong_to_no_partition_move_nothing() {
    let mut stage = lopsided();
    stage.loads = |stage, node| {
        let beside = if node == NodeId(1) { 0.7 } else { 0.0 };
        Some(load(stage, node, |_| 100.0, beside))
    };
    assert_eq!(seconds(&mut stage, 600), "");
    assert_eq!(says(&stage), Says::Coordinates { node: NodeId(1) });
}

#[test]
fn must_not_3_what_a_node_does_itself_because_clients_ask_it_moves_nothing() {
    // All of them write at node 1, which stamps each key itself, whatever its place; the others merge.
    let mut stage = Stage::of(cluster(24, &["a"; 3], 3, 3), false);
    stage.policy = Policy::founded(0);
    stage.loads = |stage, node| {
        let seconds = stage.now.nanos as f64 / 1e9 + 100.0;
        let (all, asked) = ((seconds * 96_000.0) as u64, node == NodeId(1));
        let each = all / 24;
        let work = if asked {
            WorkDone { stamped: each, ..WorkDone::default() }
        } else {
            WorkDone { puts: each, ..WorkDone::default() }
        };
        let partitions = stage.cluster.ring.partitions().iter();
        let of = |id| PartitionLoad { partition: id, work, bytes: 1 << 20, middle: None };
        Some(LoadReport {
            uptime_ms: (seconds * 1000.0) as u64,
            ran_us: Some((all as f64 * if asked { 7.7 } else { 2.1 }) as u64),
            waited_us: Some(0),
            workers: 1,
            processors: 1.0,
            coordinated_puts: if asked { all } else { 0 },
            own_stamped: if asked { all } else { 0 },
            partitions: partitions.map(|one| of(one.id)).collect(),
            ..LoadReport::default()
        })
    };
    assert_eq!(seconds(&mut stage, 1200), "");
    assert_eq!(says(&stage), Says::Coordinates { node: NodeId(1) });
}

#[test]
fn a_disk_that_something_else_has_filled_takes_no_partition_from_its_node() {
    let mut stage = lopsided();
    stage.loads = |stage, node| {
        let mut load = load(stage, node, |_| 200.0, 0.0);
        load.disk_total_bytes = Some(100 << 30);
        load.disk_available_bytes = Some(if node == NodeId(1) { 9 << 30 } else { 50 << 30 });
        Some(load)
    };
    assert_eq!(seconds(&mut stage, 600), "");
    assert_eq!(says(&stage), Says::DiskFull { node: NodeId(1) });
    // One that partitions fill gives some of them away.
    stage.loads = |stage, node| {
        let mut load = load(stage, node, |_| 200.0, 0.0);
        load.disk_total_bytes = Some(100 << 20);
        load.disk_available_bytes = Some(if node == NodeId(1) { 9 << 20 } else { 50 << 20 });
        Some(load)
    };
    assert!(seconds(&mut stage, 600).contains("create plan 1"));
    assert_eq!(stage.plans[0].0.decision.as_ref().unwrap().exceeds, Excess::Disk);
}

#[test]
fn a_plan_that_was_dropped_before_it_did_anything_lets_nothing_rest() {
    let mut stage = lopsided();
    stage.policy.mode = Mode::Off;
    let wish = Wish::Drain { nodes: vec![NodeId(3)] };
    stage.order(Order::Create { wish, consent: Consent::default() });
    seconds(&mut stage, 5);
    stage.order(Order::Abort { plan: 1 });
    let told = seconds(&mut stage, 5);
    assert!(told.contains("PlanAborted"), "{told}");
    // It is over, and is not aborted again.
    stage.order(Order::Abort { plan: 1 });
    let told = seconds(&mut stage, 5);
    assert!(!told.contains("PlanAborting"), "{told}");
    stage.policy.mode = Mode::On;
    let told = seconds(&mut stage, 60);
    assert!(told.contains("create plan 2") && told.contains("note plan 2: applying"), "{told}");
    let lost = &stage.plans[1].0.decision.as_ref().unwrap().lost;
    assert!(lost.iter().all(|lost| lost.because != LostBecause::Rests), "{lost:?}");
}

#[test]
fn must_not_4_nothing_is_decided_by_a_word_that_is_missing_late_or_cannot_be() {
    let mut stage = lopsided();
    stage.silent.insert(NodeId(3));
    assert_eq!(seconds(&mut stage, 120), "");
    assert!(matches!(says(&stage), Says::NodeSilent { node: NodeId(3), .. }), "{:?}", says(&stage));

    // It counts ten operations for each that it carried out.
    let mut stage = lopsided();
    stage.loads = |stage, node| {
        let mut said = load(stage, node, |_| 400.0, 0.0);
        if node == NodeId(2) {
            said.partitions.iter_mut().for_each(|load| load.work.gets *= 10);
        }
        Some(said)
    };
    assert_eq!(seconds(&mut stage, 120), "");
    let lies = Says::NotBelieved { node: NodeId(2), what: Implausible::Cost { permille: 100 } };
    assert!(
        matches!(says(&stage), Says::NotBelieved { node: NodeId(2), .. }),
        "{:?} is not {lies:?}",
        says(&stage)
    );

    // Its clock runs ten times as fast, or not at all.
    for pace in [10, 0] {
        let mut stage = lopsided();
        stage.loads = if pace == 0 {
            |stage, node| {
                let said = load(stage, node, |_| if node == NodeId(1) { 800.0 } else { 200.0 }, 0.0);
                Some(LoadReport { uptime_ms: if node == NodeId(1) { 5 } else { said.uptime_ms }, ..said })
            }
        } else {
            |stage, node| {
                let said = load(stage, node, |_| if node == NodeId(1) { 800.0 } else { 200.0 }, 0.0);
                let pace = if node == NodeId(1) { 10 } else { 1 };
                Some(LoadReport { uptime_ms: said.uptime_ms * pace, ..said })
            }
        };
        assert_eq!(seconds(&mut stage, 120), "");
        let said = says(&stage);
        assert!(
            matches!(said, Says::NotBelieved { node: NodeId(1), what: Implausible::Clock { .. } }),
            "{said:?}"
        );
    }

    // Its system does not count.
    let mut stage = lopsided();
    stage.loads = |stage, node| Some(LoadReport { ran_us: None, ..load(stage, node, |_| 400.0, 0.0) });
    assert_eq!(seconds(&mut stage, 120), "");
    assert!(matches!(says(&stage), Says::NoFigures { .. }), "{:?}", says(&stage));
}

#[test]
fn must_not_4_what_was_seen_before_the_ring_changed_counts_no_more() {
    let mut stage = lopsided();
    seconds(&mut stage, 60);
    let before = stage.plans.len();
    // The load goes on as it was, and settled less than half a minute ago.
    let settled = stage.plans[before - 1].1.as_ref().unwrap().ended_ms.unwrap();
    while stage.plans.len() == before && stage.now.nanos / 1_000_000 < settled + 120_000 {
        turn(&mut stage);
    }
    if let Some((next, _)) = stage.plans.get(before) {
        assert!(next.created_ms >= settled + 30_000, "{} after {settled}", next.created_ms);
    }
}

#[test]
fn must_not_6_an_operators_order_comes_first() {
    let mut stage = lopsided();
    // The plan of the autopilot is under way, and node 2 does not say that it has brought anything in.
    until(&mut stage, |stage| !stage.plans.is_empty());
    until(&mut stage, |stage| stage.plans[0].1.is_some());
    stage.silent.extend([NodeId(2), NodeId(3)]);
    seconds(&mut stage, 5);
    assert_eq!(stage.plans[0].1.as_ref().unwrap().phase, Phase::Applying);
    stage.silent.clear();
    stage.order(Order::Create { wish: Wish::Drain { nodes: vec![NodeId(3)] }, consent: Consent::default() });
    let told = seconds(&mut stage, 10);
    assert!(told.contains("note plan 1: aborting") || told.contains("note plan 1: done"), "{told}");
    assert!(told.contains("answer 1: PlanCreated, plan 2"), "{told}");
    // And it stays as it is for as long as somebody looks at it.
    let told = seconds(&mut stage, 300);
    assert_eq!(told, "", "{:?}", says(&stage));
    assert_eq!(says(&stage), Says::PlanWaits { plan: 2 });
}

#[test]
fn must_not_9_a_headmaster_that_ends_between_deciding_and_applying_acts_once() {
    let mut stage = lopsided();
    until(&mut stage, |stage| !stage.plans.is_empty());
    assert!(stage.plans[0].1.is_none());
    stage.machine = Headmaster::new(1 << 20);
    let told = seconds(&mut stage, 20);
    assert!(told.contains("note plan 1: applying") && !told.contains("create plan"), "{told}");
    // One that finds a plan which nobody wants any more drops it.
    let mut stage = lopsided();
    until(&mut stage, |stage| !stage.plans.is_empty());
    stage.machine = Headmaster::new(1 << 20);
    stage.policy.mode = Mode::Observe;
    assert_eq!(seconds(&mut stage, 20), "note plan 1: aborted, 0 settled\n");
}

#[test]
fn must_not_10_where_all_nodes_are_over_their_limit_it_says_so_and_moves_nothing() {
    let mut stage = lopsided();
    stage.loads = |stage, node| Some(load(stage, node, |_| 1080.0 + 25.0 * f64::from(node.0), 0.0));
    assert_eq!(seconds(&mut stage, 600), "");
    assert_eq!(says(&stage), Says::AllFull);
}

#[test]
fn a_policy_is_changed_by_order_and_nonsense_is_refused() {
    let mut stage = lopsided();
    stage.policy.mode = Mode::Observe;
    let set = |settings: &[(&str, &str)]| Order::Balance {
        change: PolicyChange::Set {
            settings: settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        },
    };
    stage.order(set(&[("aim", "110"), ("quiet", "22-6")]));
    stage.order(set(&[("aim", "120"), ("over-mean", "118")]));
    stage.order(set(&[("speed", "1")]));
    stage.order(Order::Balance { change: PolicyChange::Mode { mode: Mode::On } });
    stage.order(Order::Balance { change: PolicyChange::Mode { mode: Mode::On } });
    let told = seconds(&mut stage, 3);
    let lines: Vec<&str> = told.lines().map(|line| line.split(' ').take(4).last().unwrap_or("")).collect();
    assert!(
        told.contains("answer 2: refused, setting") && told.contains("answer 3: refused, setting"),
        "{told}"
    );
    assert_eq!(told.matches("policy ").count(), 2, "{lines:?}");
    assert_eq!((stage.policy.settings.aim, stage.policy.settings.over_mean), (110, 115));
    assert_eq!(stage.policy.mode, Mode::On);
    assert!(
        told.contains(&format!("{:?}", Done::PolicyStands { policy: Box::new(stage.policy.clone()) })),
        "{told}"
    );
}
