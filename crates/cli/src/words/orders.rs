//! What came of orders.

use model::node::LifeSign;
use model::order::{Done, Holds, Order, OrderRefusal, Stale};
use model::plan::Phase;
use model::{Cluster, Consistency, NodeId, Role, Weight};

use super::{refusals, stores, users};
use crate::text::count;

/// What was done.
pub(crate) fn done(done: &Done, plan: Option<u64>) -> String {
    let plan = plan.unwrap_or_default();
    match done {
        Done::PlanCreated => format!("created plan {plan}"),
        Done::NothingToMove => "there is nothing to move: no plan was created".to_owned(),
        Done::PlanBegun { moves, cuts, joins, numbers } => {
            let what = begun((*moves, *cuts, *joins), numbers.as_ref().map(|(name, to)| (name.as_str(), to)));
            format!("plan {plan} is being carried out{what}")
        }
        Done::PlanAborting => format!("plan {plan} is being aborted: what has not settled goes back"),
        Done::PlanAborted => format!("plan {plan} is aborted: it had not begun"),
        Done::PlanPaused => format!("plan {plan} is paused: go on with `tontine plan resume {plan}`"),
        Done::PlanResumed => format!("plan {plan} is applying"),
        Done::NumbersStand => "the store has these numbers already".to_owned(),
        Done::NodeAdmitted { node } => {
            format!(
                "{node} is a member now and holds no data; an autopilot that is on gives it its share (`tontine balance why`), and \
                 `tontine plan create spread` does so at once"
            )
        }
        Done::NodeIsMember { node } => format!("{node} is a member of the cluster"),
        Done::NodeLeaves { node } => format!("{node} takes nothing new, and leaves when it holds nothing"),
        Done::NodeGone { node, records: 0 } => {
            format!("{node} is gone; it was a replica of no partition")
        }
        Done::NodeGone { node, records } => format!(
            "{node} is gone; it was a replica of no partition; other nodes may lack some of {records} records that it held, \
             and these are given up"
        ),
        Done::NodeRemoved { node } => format!("{node} is no member any more; stop its process"),
        Done::NodeWeighs { node, weight } => {
            // No node of a golden ring gets another weight than this.
            let golden = if *weight == Weight::default() { " (on a golden ring nothing does)" } else { "" };
            format!("{node} has weight {} now; `tontine plan create spread` follows it{golden}", weight.get())
        }
        Done::NodeCast { node, role } => {
            let what = match role {
                Role::Serving => "takes its share of the data again",
                Role::Leaving => "takes nothing new, and leaves when it holds nothing",
                Role::Standby => "is given no share of the data by later plans",
            };
            let golden = match role {
                Role::Serving => format!(
                    " (on a golden ring it keeps its partition, or gets one with `tontine node add {}`)",
                    node.0
                ),
                Role::Leaving | Role::Standby => String::new(),
            };
            format!("{node} {what}{golden}")
        }
        Done::NodeReaddressed { node } => format!("the cluster document says where {node} is"),
        Done::PolicyStands { policy } => super::balance::policy(policy),
        Done::StoreCreated { store } => format!("created store {store}"),
        Done::ArtifactsChanged { store } => format!("the artifacts of store {store} were changed"),
        Done::UserChanged { user } => format!("user {user} is as ordered"),
    }
}

/// What a plan does that has begun, in short.
fn begun((moves, cuts, joins): (usize, usize, bool), numbers: Option<(&str, &Consistency)>) -> String {
    if let Some((store, Consistency { replicas, reads_required, writes_required })) = numbers {
        return format!(": store {store} gets N={replicas}, R={reads_required} and W={writes_required}");
    }
    let moved = match moves {
        1 => "1 partition moves".to_owned(),
        moves => format!("{moves} partitions move"),
    };
    match (moves, cuts, joins) {
        (0, 0, false) => String::new(),
        (1.., 1, _) => format!(": a partition is split, then {moved}"),
        (_, 1, _) => ": a partition is split".to_owned(),
        (_, 2.., _) => format!(": {cuts} partitions are split"),
        (0, _, true) => ": two partitions become one".to_owned(),
        (_, _, true) => format!(": {moved}, then it is one with its neighbour"),
        _ => format!(": {moved}"),
    }
}

/// Why an order was refused. The document shows what of it was done, if anything was.
pub(crate) fn refused(order: &Order, refusal: &OrderRefusal, cluster: &Cluster) -> String {
    let why = said(Some(order), refusal);
    match order {
        Order::Create { .. } => format!("no plan was created: {why}"),
        Order::Apply { plan } if !names_plan(refusal) => format!("plan {plan} cannot be applied: {why}"),
        Order::Renumber { .. } => format!("nothing was changed: {why}"),
        Order::Drain { node, .. } => format!("{node} cannot be drained: {why}"),
        Order::Remove { node }
            if !matches!(refusal, OrderRefusal::NodeUnknown { .. } | OrderRefusal::OnlyNode { .. }) =>
        {
            format!("{node} cannot be removed: {why}")
        }
        Order::Replace { node, .. } if !matches!(refusal, OrderRefusal::NodeUnknown { .. }) => {
            let stands = match cluster.node(*node).is_some_and(|entry| entry.gone) {
                true => format!(
                    "; it is marked as dead in the cluster document: give the order again, or take it back with `tontine node \
                     recommission {}`",
                    node.0
                ),
                false => String::new(),
            };
            format!("{node} cannot be replaced: {why}{stands}")
        }
        _ => why,
    }
}

/// Whether what is said of a refusal names the plan by itself.
fn names_plan(refusal: &OrderRefusal) -> bool {
    matches!(
        refusal,
        OrderRefusal::PlanUnknown { .. }
            | OrderRefusal::PlanNotUnderstood { .. }
            | OrderRefusal::PlanIs { .. }
    )
}

/// Why an order was refused, whichever it was.
pub(crate) fn why(refusal: &OrderRefusal) -> String {
    said(None, refusal)
}

fn said(order: Option<&Order>, refusal: &OrderRefusal) -> String {
    match refusal {
        OrderRefusal::PlanUnknown { plan } => {
            format!("there is no plan {plan}; see them with `tontine plan history`")
        }
        OrderRefusal::PlanNotUnderstood { plan, detail } => format!(
            "plan {plan} is not understood by the headmaster: {detail}; a later version created it: run the headmaster of that \
             version, `tontine headmaster`, alone"
        ),
        OrderRefusal::PlanIs { plan, phase } => plan_is(order, *plan, *phase),
        OrderRefusal::OtherPlan { other } => format!(
            "plan {other} is being carried out, and one plan is at a time; wait for it with `tontine plan show {other}`, or end \
             it with `tontine plan abort {other}`"
        ),
        OrderRefusal::PlanStale { then, now, because, .. } => format!(
            "it was computed from generation {}, and at generation {} {}; create a new one with `tontine plan create`",
            then.0,
            now.0,
            stale(because)
        ),
        OrderRefusal::Setting { because } => super::balance::setting_refused(because),
        OrderRefusal::VetoNeedless { node, is_gone: false } => {
            format!(
                "{node} is there, so no standby takes its places; `tontine balance why` names nodes that are away"
            )
        }
        OrderRefusal::VetoNeedless { node, is_gone: true } => format!(
            "{node} is marked as dead already; `tontine plan history` shows the plan, `tontine plan abort PLAN` ends it, and then \
             `tontine node recommission {}` takes it back",
            node.0
        ),
        OrderRefusal::PlanUnsound { findings } => format!(
            "it does not hold together ({}); report this bug with what `tontine plan diff` and `tontine coordination show \
             /config/cluster` print, and create a new plan",
            findings.join(", ")
        ),
        OrderRefusal::PlanTooLarge { moves } => format!(
            "the plan has {moves} moves, more than a document holds; move fewer partitions with `tontine plan create move`, or on a \
             golden ring drain fewer nodes at once"
        ),
        OrderRefusal::Wish(because) => refusals::wish_refused(because),
        OrderRefusal::NodeTooOld { node } => format!(
            "{node} runs an older version, which would not understand the document that this makes; upgrade it first"
        ),
        OrderRefusal::NodeDeaf { node, detail } => {
            format!(
                "{node} does not say how far it is with moves: {detail}; look at it with `tontine status`"
            )
        }
        OrderRefusal::Restored { node, generation } => format!(
            "nothing was ordered: {node} follows generation {} of the cluster document, and the coordination service holds an \
             older one or another one of that number, so it was restored from an older copy; import the newest export into an empty place with `tontine \
             coordination import`, and start the nodes with that",
            generation.0
        ),
        OrderRefusal::Invalid { detail } => {
            format!("the cluster document that would follow contradicts itself: {detail}")
        }
        OrderRefusal::Store(error) => stores::not_created(error),
        OrderRefusal::Artifact(error) => stores::artifact_refused(error),
        OrderRefusal::NotStaged { .. } => stores::not_staged(order, refusal),
        OrderRefusal::User(error) => users::refused(error),
        of_a_node => of_node(of_a_node),
    }
}

/// Why an order about a node was refused.
fn of_node(refusal: &OrderRefusal) -> String {
    match refusal {
        OrderRefusal::NodeUnknown { node } => refusals::node_unknown(*node),
        OrderRefusal::NodeWithoutTls { node } => format!(
            "{node} is called without TLS, and a cluster with users calls every node with TLS; start it with --tls require, \
             and with --tls-cert, --tls-key and --tls-authority"
        ),
        OrderRefusal::NodeServesAnyone { node } => format!(
            "{node} runs an older version, which knows no users and would serve anyone; upgrade it first"
        ),
        OrderRefusal::NodeIsLeaving { node } => format!(
            "{node} is a member that is leaving the cluster; to keep it, run `tontine node recommission {}`",
            node.0
        ),
        OrderRefusal::NodeNotRegistered { node } => format!(
            "{node} is not registered; start it with `tontine serve`, and see who is with `tontine node list`"
        ),
        OrderRefusal::NodeWasMember { node } => format!(
            "{node} was a member and has left: what it holds is old; stop its process, and start it with an empty data \
             directory, which makes it a new node"
        ),
        OrderRefusal::AddressTaken { node, address, other } => format!(
            "{node} cannot have the address {address}: {other} has it; give {node} its own address with --listen, --resp, --http \
             or --advertise"
        ),
        OrderRefusal::OnlyNode { node } => format!("{node} is the only node of the cluster"),
        OrderRefusal::NodeHolds { node, holds: what, is_leaving, is_registered, away } => {
            let next = leaves(*node, (*is_leaving, *is_registered), *away);
            format!("{}; {next}", holds(*node, what))
        }
        OrderRefusal::PlanGives { plan, .. } => {
            format!("plan {plan} gives it partitions; end that first with `tontine plan abort {plan}`")
        }
        OrderRefusal::PlanEmpties { node, plan } => format!(
            "{node} cannot be taken back: plan {plan} takes all its data from it; end that first with `tontine plan abort \
             {plan}`"
        ),
        OrderRefusal::OwnPlaces { node } => format!("{node} cannot take its own places; name another node"),
        OrderRefusal::NotDead { node, by, because } => {
            let (dead, new) = (node.0, by.0);
            let wait = match because {
                LifeSign::Listens | LifeSign::NoWitness => String::new(),
                _ => format!(
                    "; if it is dead, `tontine node replace {dead} {new} --wait` waits until that is certain"
                ),
            };
            format!(
                "it does not look dead: {}{wait}; to move the data of a node that lives, drain it with `tontine node drain \
                 {dead}`",
                life(*node, because)
            )
        }
        other => other.code(),
    }
}

fn plan_is(order: Option<&Order>, plan: u64, phase: Option<Phase>) -> String {
    let word = phase.map_or("created", Phase::word);
    let next = match phase {
        Some(phase) if phase.has_ended() => "create another one with `tontine plan create`".to_owned(),
        _ => format!("see how far it is with `tontine plan show {plan}`"),
    };
    match order {
        Some(Order::Apply { .. }) => format!("plan {plan} cannot be applied: it is {word} already; {next}"),
        Some(Order::Abort { .. }) => format!("plan {plan} cannot be aborted: it is {word} already"),
        Some(Order::Pause { .. }) => {
            format!("plan {plan} is {word}, not applying; see it with `tontine plan show {plan}`")
        }
        Some(Order::Resume { .. }) => {
            format!("plan {plan} is {word}, not paused; see it with `tontine plan show {plan}`")
        }
        _ => format!("plan {plan} is {word}; {next}"),
    }
}

fn stale(because: &Stale) -> String {
    match because {
        Stale::OtherMoves => "other moves would do it now".to_owned(),
        Stale::OtherBounds => "it would cut or join elsewhere".to_owned(),
        Stale::OtherNumbers => "the store has other numbers".to_owned(),
        Stale::Refused(refusal) => refusals::wish_refused(refusal),
    }
}

fn holds(node: NodeId, what: &Holds) -> String {
    match what {
        Holds::Places { partitions } => {
            format!("{node} is a replica of {}", count(*partitions as u64, "partition"))
        }
        Holds::Listed => format!("{node} is still a fallback, or enters partitions"),
        Holds::Silent => format!("{node} does not say what it holds"),
        Holds::NotAdopted { generation } => format!("{node} has not adopted generation {} yet", generation.0),
        Holds::Hints { hints } => format!("{node} holds {} for other nodes", count(*hints, "hint")),
        Holds::Records { records } => {
            format!("{node} holds {} that other nodes may lack", count(*records, "record"))
        }
    }
}

/// How a node that holds something leaves.
fn leaves(node: NodeId, (is_leaving, is_registered): (bool, bool), away: Option<NodeId>) -> String {
    match (is_leaving, is_registered, away) {
        (false, ..) => format!("take its data from it with `tontine node drain {}`", node.0),
        (true, false, _) => format!(
            "start it, and it leaves by itself; if it is dead for good, run `tontine node replace {} OTHER` with any other node",
            node.0
        ),
        (true, true, Some(away)) => format!(
            "it leaves by itself when no other node lacks what it holds, and {away} is away: start {away}, or give its places \
             to another with `tontine node replace {} OTHER`",
            away.0
        ),
        (true, true, None) => {
            "it leaves by itself when it holds nothing; see `tontine plan history`".to_owned()
        }
    }
}

pub(super) fn life(node: NodeId, life: &LifeSign) -> String {
    match life {
        LifeSign::Registered => format!(
            "{node} is registered with the coordination service; its process runs, or ended less than a session's time ago"
        ),
        LifeSign::Listens => {
            format!("a process listens at the address of {node}, if only one that is stopped")
        }
        LifeSign::NoWitness => format!("no other node says whether it hears from {node}"),
        LifeSign::WitnessSilent { witness, detail } => {
            format!("{witness} does not say whether it hears from {node}: {detail}")
        }
        LifeSign::Heard { witness, seconds, needed } => {
            format!("{witness} heard from {node} {seconds} s ago, and {needed} s of silence are needed")
        }
        LifeSign::WitnessNew { witness, seconds, needed } => format!(
            "{witness} runs for {seconds} s only and has not heard from {node}; {needed} s of silence are needed"
        ),
    }
}

#[cfg(test)]
mod tests {
    use model::Generation;
    use model::plan::{self, Consent};

    use super::*;

    #[test]
    fn a_refusal_says_what_was_not_done_and_why_and_what_helps() {
        let node = NodeId(4);
        let ring = model::Ring::equal_slices(1, &[(node, model::Zone("a".to_owned()))]);
        let cluster = Cluster::new("shop", Vec::new(), ring, Vec::new());
        let said = |order: Order, refusal: OrderRefusal| refused(&order, &refusal, &cluster);
        let drain = Order::Drain { node, consent: Consent::default() };
        let too_few = plan::PlanRefusal::TooFewNodes { left: 2, needed: 3, leaving: Vec::new() };
        assert_eq!(
            said(drain, OrderRefusal::Wish(too_few)),
            "n4 cannot be drained: 2 nodes would be left to hold data, and 3 replicas are needed; add a node first with \
             `tontine node add NEW`"
        );
        let weighs = |weight| done(&Done::NodeWeighs { node, weight: Weight::new(weight).unwrap() }, None);
        assert!(weighs(200).ends_with("`tontine plan create spread` follows it"));
        assert!(weighs(100).ends_with("follows it (on a golden ring nothing does)"));
        let stays = done(&Done::NodeCast { node, role: Role::Serving }, None);
        assert!(stays.ends_with("or gets one with `tontine node add 4`)"), "{stays}");
        let text = said(Order::Apply { plan: 7 }, OrderRefusal::OtherPlan { other: 6 });
        assert!(text.starts_with("plan 7 cannot be applied: plan 6 is being carried out"), "{text}");
        assert!(text.ends_with("or end it with `tontine plan abort 6`"), "{text}");
        let ended = OrderRefusal::PlanIs { plan: 7, phase: Some(Phase::Done) };
        let text = said(Order::Apply { plan: 7 }, ended);
        let told =
            "plan 7 cannot be applied: it is done already; create another one with `tontine plan create`";
        assert_eq!(text, told);
        let holds = Holds::Hints { hints: 1 };
        let (is_leaving, is_registered, away) = (true, true, Some(NodeId(3)));
        let refusal = OrderRefusal::NodeHolds { node, holds, is_leaving, is_registered, away };
        let text = said(Order::Remove { node }, refusal);
        assert!(
            text.starts_with("n4 cannot be removed: n4 holds 1 hint for other nodes; it leaves"),
            "{text}"
        );
        assert!(text.ends_with("`tontine node replace 3 OTHER`"), "{text}");
        let mut half_way = cluster.clone();
        half_way.nodes.push(model::Node::new(node, model::Zone("a".to_owned()), "h4:1", None));
        half_way.nodes[0].gone = true;
        let replace = Order::Replace { node, by: NodeId(5), consent: Consent::default() };
        let deaf = OrderRefusal::NodeDeaf { node: NodeId(5), detail: "away".to_owned() };
        let text = refused(&replace, &deaf, &half_way);
        assert!(text.ends_with("or take it back with `tontine node recommission 4`"), "{text}");
        let restored = OrderRefusal::Restored { node, generation: Generation(9) };
        assert!(said(Order::Apply { plan: 1 }, restored).contains("follows generation 9"));
    }
}
