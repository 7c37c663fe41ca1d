//! What the autopilot may do, what it thinks, and why it acted.

use model::NodeId;
use model::balance::{
    Away, HeldBack, Implausible, Mode, Policy, Says, SettingError, Settings, Turned, Verdict,
};
use model::plan::{
    Act, Came, CameOf, CutAt, Decision, Excess, Lost, LostBecause, Move, NodeAt, Predicted, Rule,
};
use protocol::rebalance::balancer::thresholds::{CALM, STRUGGLING};

use crate::text::{count, size, table};

/// The autopilot's policy in a sentence.
pub(crate) fn policy(policy: &Policy) -> String {
    let why = match &policy.because {
        Turned::Founded => "since the cluster was founded".to_owned(),
        Turned::Ordered { order, by } => format!("by order {order} of {by}"),
        Turned::Misjudged { plans } => {
            let plans = plans.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            format!(
                "by itself: plans {plans} came out worse than before; look at them with `tontine balance why PLAN`, and go on \
                 with `tontine balance on`"
            )
        }
    };
    let what = match policy.mode {
        Mode::Off => "is off: it does not look at loads",
        Mode::Observe => "observes: it says what it would do, and moves nothing",
        Mode::On => "is on: it moves partitions when load wants it",
    };
    format!("the autopilot {what} ({why})")
}

/// Why a setting is refused.
pub(super) fn setting_refused(error: &SettingError) -> String {
    let names = Settings::NAMES.join(", ");
    match error {
        SettingError::Unknown { .. } => format!("{error}; there are {names}"),
        SettingError::Value { .. } => format!("{error}; `tontine balance why` shows all values"),
    }
}

/// What the autopilot thinks, with what would have to be so.
pub(crate) fn says(says: &Says, settings: &Settings) -> String {
    let Settings { over_mean, least, most, policy, .. } = settings;
    let most = if *policy == Rule::Thresholds { &CALM } else { most };
    match says {
        Says::Off => {
            "it is off; `tontine balance observe` lets it look, `tontine balance on` lets it act".to_owned()
        }
        Says::Gathers { seconds } => format!(
            "it has not seen enough yet: it looks for {seconds} s more, and begins anew whenever the ring changes"
        ),
        Says::PlanUnderWay { plan } => {
            format!(
                "plan {plan} is carried out, and nothing is decided meanwhile; `tontine plan show {plan}` says how far it is"
            )
        }
        Says::PlanWaits { plan } => format!(
            "plan {plan} was created and not applied: for ten minutes nothing changes what it was computed from; apply it, or \
             end it with `tontine plan abort {plan}`"
        ),
        Says::NodeSilent { node, detail } => {
            format!("{node} does not answer ({detail}); it decides only when all members say what they do")
        }
        Says::NoFigures { node } => format!(
            "{node} does not say how long its workers ran: its system does not count that (Linux does, in /proc); nothing is \
             decided without it"
        ),
        Says::NotBelieved { node, what } => {
            format!("what {node} says cannot be, so nothing is decided: {}", implausible(what))
        }
        Says::Balanced if *policy == Rule::Thresholds => {
            format!("no node uses more than {STRUGGLING}% of what it can carry, above which this policy acts")
        }
        Says::Balanced => format!(
            "all nodes are within the limits: none is above {over_mean}% of the mean and above {least}%, and none above {most}%"
        ),
        Says::Idle { node } => format!(
            "{node} is the busiest, above {over_mean}% of the mean, but not above {least}% of what it can carry; \
             `tontine balance set least=N` changes that"
        ),
        Says::Unsure { node } => format!(
            "{node} is the busiest, above {over_mean}% of the mean, but noise could make it seem so: it looks for up to five \
             minutes"
        ),
        Says::Coordinates { node } => format!(
            "{node} is busy because clients ask it: it passes their requests on, or does them itself whatever its place; no move \
             changes that: let clients spread over all nodes"
        ),
        Says::NothingHelps { node, dearest: None } => {
            format!("{node} exceeds a limit, and nothing that was thought of may be done")
        }
        Says::NothingHelps { node, dearest: Some(partition) } => format!(
            "{node} exceeds a limit, and nothing that was thought of may be done; {partition} costs it most, and `tontine balance \
             why {partition}` names its hottest keys"
        ),
        Says::DiskFull { node } => format!(
            "{node} has too full a disk, and nothing that may be moved changes that: partitions take too little of it, or no other \
             node has room; make room there, or add a node"
        ),
        Says::AllFull => format!(
            "every node is above {most}% of what it can carry: no move helps; add a node, with `tontine node add` and then, \
             unless the ring is golden, `tontine plan create spread`"
        ),
        Says::Would { decision } => format!("if it were on, it would act: {}", in_short(decision)),
        Says::Quiet { hours, decision } => {
            format!(
                "it only observes in the hours {hours} (UTC); otherwise it would act: {}",
                in_short(decision)
            )
        }
        Says::Acts { plan } => format!("it acts: `tontine balance why {plan}` says why"),
    }
}

/// What the autopilot said so many seconds ago, with the figures and reasons that belong to it.
pub(crate) fn verdict(verdict: &Verdict, settings: &Settings, age_s: u64) -> String {
    match &verdict.says {
        Says::Gathers { seconds } => {
            says(&Says::Gathers { seconds: seconds.saturating_sub(age_s) }, settings)
        }
        Says::NothingHelps { node, dearest } => {
            let at = verdict.seen.iter().find(|at| at.node == *node);
            let used = at.map_or(String::new(), |at| {
                format!(
                    " (it uses {} of what it can carry, the mean is {})",
                    percent(at.utilisation),
                    percent(verdict.mean)
                )
            });
            let main = verdict.lost.iter().max_by_key(|lost| lost.count);
            let why = main.map_or(String::new(), |lost| {
                format!(": most of what was thought of would {}", because_of_one(lost.because))
            });
            let hot = dearest.filter(|_| main.is_none_or(|lost| is_too_large(lost.because)));
            let keys = hot.map_or(String::new(), |partition| {
                format!("; {partition} costs it most, and `tontine balance why {partition}` names its hottest keys")
            });
            format!("{node} exceeds a limit{used}, and no act that was thought of may be done{why}{keys}")
        }
        other => says(other, settings),
    }
}

/// Whether an act is lost because what would move is too large for any other node.
fn is_too_large(because: LostBecause) -> bool {
    matches!(because, LostBecause::NoGain | LostBecause::TargetAsBusy)
}

/// What becomes of the places of a member that is away, as it was told this many seconds ago.
pub(crate) fn away(away: &Away, age_s: u64) -> String {
    let Away { node, seconds, after_s, by, announced, held } = away;
    let seconds = seconds + age_s;
    let since = format!("{node} is away, for {seconds} s as this headmaster saw it");
    let left = after_s.saturating_sub(seconds);
    match (by, held) {
        (_, Some(held)) => format!("{since}; no standby takes its places: {}", held_by(*node, held)),
        (Some(by), None) if *announced => format!(
            "{since}; {by} takes its places in {left} s unless a sign of life comes; to keep them: `tontine node replace \
             --veto {}`",
            node.0
        ),
        (Some(by), None) => format!("{since}; after {after_s} s {by}, a standby, takes its places"),
        (None, None) => since,
    }
}

fn held_by(node: NodeId, held: &HeldBack) -> String {
    match held {
        HeldBack::NoStandby => {
            "there is none that is registered and holds nothing; `tontine node standby NODE` makes one".to_owned()
        }
        HeldBack::Vetoed => format!(
            "somebody vetoed it; `tontine node replace {} NEW` does it all the same, and the veto ends when {node} is back",
            node.0
        ),
        HeldBack::Observes => "the autopilot only observes; `tontine balance on` lets it act".to_owned(),
        HeldBack::Store { store } => format!(
            "store {store} has an R or W of 1, so {node} may hold what no other node does; you can order it: `tontine node \
             replace {} NEW`",
            node.0
        ),
        HeldBack::Zone { zone } => format!(
            "all members of zone {} are away, which looks like a switch or a power cut; if they are lost: `tontine node replace \
             {} NEW`",
            zone.0, node.0
        ),
        HeldBack::Recent { seconds } => {
            format!("another node was replaced less than ten minutes ago; it waits for {seconds} s more")
        }
        HeldBack::Quiet { hours } => {
            format!("the autopilot only observes in the hours {hours} (UTC); `tontine balance set quiet=none` ends that")
        }
        HeldBack::Later { node } => format!("{node} comes first, and one node is replaced at a time"),
        HeldBack::Plan { plan } => {
            format!("plan {plan} is carried out; `tontine plan show {plan}` says how far it is")
        }
        HeldBack::Alive { because } => super::orders::life(node, because),
        HeldBack::NoMajority => {
            "fewer than half of the members hear each other, so the cluster may be cut in two; `tontine doctor` says who is \
             not heard"
                .to_owned()
        }
        HeldBack::Wish { because } => super::refusals::wish_refused(because),
        HeldBack::Deaf { node } => {
            format!("{node} does not say how far it is; look at it with `tontine status`")
        }
    }
}

/// What a veto comes to.
pub(crate) fn vetoed(node: NodeId) -> String {
    format!(
        "no standby takes the places of {node} until it was back, unless `tontine node replace` orders it"
    )
}

fn implausible(what: &Implausible) -> String {
    match what {
        Implausible::Clock { its_ms, ours_ms } => {
            format!("by its clock {its_ms} ms have passed, by the headmaster's {ours_ms} ms")
        }
        Implausible::Ran { ran, workers } => {
            format!("its workers ran for {} processors, and are {}", thousandths(*ran), thousandths(*workers))
        }
        Implausible::Cost { permille } => {
            format!("an operation costs it {} of what it costs the median of nodes", percent(*permille))
        }
    }
}

/// What is done and why, in one line.
pub(crate) fn in_short(decision: &Decision) -> String {
    let Decision { node, predicted, .. } = decision;
    format!("{node} {}; {}; {}", exceeding(decision), acted(decision), expected(predicted))
}

fn exceeding(decision: &Decision) -> String {
    match decision.policy {
        Rule::Thresholds => {
            return format!(
                "uses more than {STRUGGLING}% of what it can carry, and gives a random partition to the calmest node below \
                 {CALM}% (policy thresholds)"
            );
        }
        Rule::Greedy => return "is the busiest (policy greedy)".to_owned(),
        Rule::Even | Rule::NoReordering => {}
    }
    let exceeds = match decision.exceeds {
        Excess::Mean => "is busier than the mean by more than is allowed",
        Excess::Most => "uses more of what it can carry than is allowed",
        Excess::Disk => "has too full a disk",
        Excess::Joins => "is new, and holds less than its share",
        Excess::Dead => "is dead, and a standby takes its places",
    };
    exceeds.to_owned()
}

fn acted(decision: &Decision) -> String {
    if let Some(CutAt { partition, permille, then, .. }) = &decision.cut {
        return format!(
            "{partition} is cut in two, where its work falls into {} and {}, which moves nothing; then one part can go: {}",
            percent(u64::from(*permille)),
            percent(1000 - u64::from(*permille)),
            act(then)
        );
    }
    let (acts, reorders) = (decision.acts, decision.reorders);
    let lists = format!("{} with another order of nodes, which copies nothing", count(reorders, "partition"));
    match (reorders, acts - reorders) {
        (_, 0) => lists,
        (0, copies) => format!("{} moved to another node", count(copies, "replica")),
        (_, copies) => format!("{lists}, and {} moved to another node", count(copies, "replica")),
    }
}

/// What moved where, as far as a line or two can say it.
fn moved(moves: &[Move]) -> String {
    const NAMED: usize = 8;
    let one = |one: &Move| {
        let changed = |node: &NodeId| one.to.iter().position(|listed| listed == node);
        let entered = one.entering.first().and_then(|node| Some((changed(node)?, *node)));
        match entered {
            Some((place, to)) => {
                let from = one.from.get(place).map_or(String::new(), |from| format!(" from {from}"));
                format!("{}{from} to {to}", one.partition)
            }
            None => {
                let mut pairs = one.from.iter().zip(&one.to).filter(|(from, to)| from != to);
                let pair = pairs.next().map_or(String::new(), |(from, to)| format!(" {from} and {to}"));
                format!("{}{pair}", one.partition)
            }
        }
    };
    let mut named: Vec<String> = moves.iter().take(NAMED).map(one).collect();
    if moves.len() > NAMED {
        named.push(format!("{} more", moves.len() - NAMED));
    }
    if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) }
}

fn expected(predicted: &Predicted) -> String {
    let Predicted { largest, largest_over_mean, bytes, seconds, .. } = predicted;
    let cost = match bytes {
        0 => "no byte is copied".to_owned(),
        bytes => format!("at most {} are copied, in about {seconds} s", size(*bytes)),
    };
    format!(
        "then the busiest node is at {} ({} of the mean); {cost}",
        percent(*largest),
        percent(*largest_over_mean)
    )
}

/// A decision in full, with what came of it.
pub(crate) fn decision(decision: &Decision, came_of: Option<&CameOf>, moves: &[Move]) -> String {
    let Decision { node, exceeds, mean, largest, window_ms, predicted, .. } = decision;
    if *exceeds == Excess::Dead {
        return replaced(decision);
    }
    let mut text = format!(
        "why:       {node} {}: {} was at {}, the mean at {}, over {:.0} s\n",
        exceeding(decision),
        if *exceeds == Excess::Joins { "the busiest node" } else { "it" },
        percent(*largest),
        percent(*mean),
        *window_ms as f64 / 1000.0
    );
    text.push_str(&format!("done:      {}{}\n", acted(decision), moved(moves)));
    text.push_str(&format!("predicted: {}\n", expected(predicted)));
    let came = came_of.map_or_else(
        || "not known yet: the load is looked at for a minute, from half a minute after the end".to_owned(),
        outcome,
    );
    text.push_str(&format!("came of it: {came}\n\n"));
    text.push_str(&nodes(&decision.seen));
    text.push_str(&lost(decision.thought_of, &decision.lost));
    text
}

fn replaced(decision: &Decision) -> String {
    let Decision { node, acts, window_ms, predicted, .. } = decision;
    format!(
        "why:       {node} was away for {} s, nothing listened at its address, and no member heard from it\n\
         done:      a standby takes its places in {}\n\
         predicted: at most {} are copied\n",
        window_ms / 1000,
        count(*acts, "partition"),
        size(predicted.bytes)
    )
}

fn outcome(came_of: &CameOf) -> String {
    let CameOf { came, largest, largest_over_mean, .. } = came_of;
    let at = format!(
        "the busiest node was at {} ({} of the mean)",
        percent(*largest),
        percent(*largest_over_mean)
    );
    match came {
        Came::AsPredicted => format!("as predicted: {at}"),
        Came::Less => format!("less than predicted: {at}"),
        Came::Worse => format!("hardly better than before, or worse: {at}"),
        Came::Unknown => "nobody can say: another plan, other load or other nodes came in between".to_owned(),
    }
}

/// Nodes as they were seen.
pub(crate) fn nodes(seen: &[NodeAt]) -> String {
    if seen.is_empty() {
        return String::new();
    }
    let mut rows = vec![
        ["NODE", "CARRIES", "PARTITIONS", "BESIDE", "USED", "NOISE", "DISK", "AGE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(seen.iter().map(|at| {
        vec![
            at.node.to_string(),
            thousandths(at.capacity),
            thousandths(at.load),
            thousandths(at.beside),
            percent(at.utilisation),
            format!("±{}", percent(at.deviation)),
            at.disk.map_or_else(|| "-".to_owned(), percent),
            format!("{:.1} s", at.age_ms as f64 / 1000.0),
        ]
    }));
    format!(
        "{}\ncarries, partitions and beside are processors; beside is work that no move changes\n",
        table(&rows)
    )
}

/// Why candidates were not taken.
pub(crate) fn lost(thought_of: u64, lost: &[Lost]) -> String {
    if thought_of == 0 {
        return String::new();
    }
    let mut text = format!("\n{} thought of; not done:\n", count(thought_of, "act"));
    for Lost { because, count, example } in lost {
        text.push_str(&format!("  {count} {}; for example {}\n", because_of(*because), act(example)));
    }
    if lost.is_empty() {
        text.push_str("  none\n");
    }
    text
}

/// The same of an act that would be done.
fn because_of_one(because: LostBecause) -> &'static str {
    match because {
        LostBecause::Rests => "concern partitions that were moved or reordered lately",
        LostBecause::Later => "not fit this batch, and may come with the next",
        LostBecause::NoGain => "make nothing better",
        LostBecause::TargetAsBusy => "make the target as busy as the source was",
        LostBecause::Zones => "leave replicas in fewer zones",
        LostBecause::Disk => "fill the target's disk",
        LostBecause::Noise | LostBecause::Copying => because_of(because),
    }
}

fn because_of(because: LostBecause) -> &'static str {
    match because {
        LostBecause::NoGain => "would make nothing better",
        LostBecause::Noise => "gain less than three deviations of the noise",
        LostBecause::Copying => "cost more to copy than they gain while the copy stays",
        LostBecause::TargetAsBusy => "would make the target as busy as the source was",
        LostBecause::Rests => "are about partitions that were moved or reordered lately",
        LostBecause::Zones => "would leave replicas in fewer zones",
        LostBecause::Disk => "would fill the target's disk",
        LostBecause::Later => "did not fit this batch, and may come with the next",
    }
}

fn act(act: &Act) -> String {
    match act {
        Act::Reorder { partition, from, to } => format!("{from} and {to} trade their places in {partition}"),
        Act::Copy { partition, from, to } => format!("{partition} from {from} to {to}"),
    }
}

/// All settings with their values.
pub(crate) fn settings(settings: &Settings) -> String {
    let shown = |name: &&str| format!("{name}={}", settings.get(name).unwrap_or_default());
    Settings::NAMES.iter().map(shown).collect::<Vec<_>>().join(" ")
}

fn percent(permille: u64) -> String {
    format!("{:.1}%", permille as f64 / 10.0)
}

fn thousandths(number: u64) -> String {
    format!("{:.2}", number as f64 / 1000.0)
}
