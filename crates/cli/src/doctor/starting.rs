//! What the doctor says of nodes that do not run, and of those that wait to join.

use std::collections::BTreeMap;
use std::path::PathBuf;

use coordination::zookeeper::SCHEME;
use model::balance::Verdict;
use model::{Cluster, Node, NodeId, Role};
use protocol::report::Installation;

use super::finding::{Code, Finding};
use super::passwords::requires_password;
use crate::holder::{Launch, Process};
use crate::output::program;
use crate::status::NodeStatus;

/// The command that starts a node again. With its id it does so with an empty directory, too, which would be another node's
/// without.
fn with_id(command: &str, node: NodeId) -> String {
    match command.contains("--id") {
        true => command.to_owned(),
        false => format!("{command} --id {}", node.0),
    }
}

/// What to do about a node of which it is known how it was started.
fn again(launch: &Launch, node: NodeId) -> String {
    let password =
        if launch.needs_password { ", with TONTINE_PASSWORD set to the cluster's password" } else { "" };
    let start = format!(
        "restart it in the folder {}{password} and read its output:\n        {}",
        launch.directory,
        crate::holder::with_password(&with_id(&launch.command, node), launch.needs_password)
    );
    let id = launch.process_id;
    match launch.process() {
        Some(Process::Ended) => start,
        Some(Process::Stopped) => format!(
            "its process {id} is suspended and still locks its data directory: resume it with `kill -CONT {id}`, or kill it \
             with `kill -KILL {id}` and {start}"
        ),
        Some(Process::Runs) => format!(
            "its process {id} still runs and locks its data directory: it may be starting, stopping, hanging or short of CPU or \
             memory; if this persists, kill it with `kill -KILL {id}` and {start}"
        ),
        None => format!("{START_UNLESS_IT_RUNS}{start}"),
    }
}

/// Where nobody can tell whether the process of a node that does not answer has ended.
const START_UNLESS_IT_RUNS: &str = "check whether its process still runs; if it does, it hangs or is unreachable and locks its data directory, so kill it \
     first (kill -KILL); then ";

/// How to start a node of a cluster that may be on many machines; `None` where all run on this one.
fn elsewhere<'a>(dead: &Node, places: impl Iterator<Item = &'a Installation>) -> Option<String> {
    let address =
        places.map(|place| &place.coordination_directory).find(|address| address.starts_with(SCHEME))?;
    let host = dead.native.rsplit_once(':').map_or(&*dead.native, |(host, _)| host);
    Some(format!(
        "on its machine, {host}, {START_UNLESS_IT_RUNS}start it as it was started, with its own data directory, its \
         credentials and its options, and read its output:\n        tontine serve --coordination={} --data-dir=DIR{}",
        crate::holder::shell(std::slice::from_ref(address)),
        if crate::addresses::is_local(&dead.native) { "" } else { " --insecure" }
    ))
}

/// A node that can take the places of one that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spare {
    /// It is registered, and has to become a member first.
    Waits(NodeId),
    /// A member that holds no partition.
    Member(NodeId),
}

impl Spare {
    /// The first one, of nodes that wait and of members. A machine of a fleet is none: its controller has other plans with it.
    pub(super) fn find(
        cluster: &Cluster,
        nodes: &[NodeStatus],
        waits: &[Node],
        of_fleets: &BTreeMap<NodeId, String>,
    ) -> Option<Spare> {
        let is_free = |id: &NodeId| !of_fleets.contains_key(id);
        let holds =
            |id: &NodeId| cluster.ring.partitions().iter().any(|partition| partition.nodes.contains(id));
        let up = nodes.iter().filter(|status| status.answer.is_ok()).map(|status| status.node.id);
        let member = up.filter(|id| !holds(id) && is_free(id)).map(Spare::Member).next();
        member.or_else(|| waits.iter().map(|node| node.id).find(is_free).map(Spare::Waits))
    }
}

/// What to do about a node that does not answer: start it again, or replace it.
pub(super) fn start_again(dead: &Node, nodes: &[NodeStatus], spare: Option<Spare>) -> String {
    let (program, id) = (program(), dead.id.0);
    if dead.gone {
        return format!(
            "wait: it leaves when others have its data. If it is not dead, abort the plan and run `{program} node recommission \
             {id}`. To see how far it is: {program} plan history"
        );
    }
    format!("{}{}", start(dead, nodes), otherwise(dead, nodes, spare))
}

/// What to do about a node with which no TLS comes about: its process runs.
pub(super) fn certificates(node: &Node) -> String {
    let host = node.native.rsplit_once(':').map_or(&*node.native, |(host, _)| host);
    format!(
        "it runs, so do not kill it: mend its certificate, or your authority. Look at both with `openssl x509 -in FILE \
         -noout -subject -dates -ext subjectAltName`. To make a new certificate: {} cert node AUTHORITY NAME {host} \
         --renew, then put both files in the place of those of --tls-cert and --tls-key; a node that runs reads them \
         again by itself",
        program()
    )
}

/// The way on where the disk or the machine of a node is lost for good.
fn otherwise(dead: &Node, nodes: &[NodeStatus], spare: Option<Spare>) -> String {
    let (program, id) = (program(), dead.id.0);
    let service = places(nodes).find_map(|place| {
        let address = Some(&place.coordination_directory).filter(|address| !address.is_empty())?;
        let is_directory = !address.starts_with(SCHEME);
        Some(crate::holder::shell(&[format!("{}{address}", if is_directory { "dir:" } else { "" })]))
    });
    let service = service.unwrap_or_else(|| "ADDRESS".to_owned());
    let replace = match spare {
        Some(Spare::Member(new)) => {
            let new = new.0;
            format!(
                "let n{new}, which holds no data, take its places: {program} node replace {id} {new} --wait"
            )
        }
        Some(Spare::Waits(new)) => {
            let new = new.0;
            format!(
                "let n{new}, which waits, take its places: {program} node add {new} --standby; {program} node replace {id} {new} --wait"
            )
        }
        None => format!(
            "start another one with `{program} serve`, make it a member with `{program} node add NEW --standby`, and let it take the places \
             of n{id}: {program} node replace {id} NEW --wait"
        ),
    };
    format!(
        "\n      if its disk is lost: start it as before with an empty directory and its id: {program} serve --id {id} \
         --coordination={service} --data-dir=DIR\n      if its machine is \
         lost: {replace}"
    )
}

/// A node that is registered, and that nobody has made a member; of this fleet, if it runs on a machine of one.
pub(super) fn waits_to_join(new: &Node, nodes: &[NodeStatus], fleet: Option<&String>) -> Finding {
    let (program, id) = (program(), new.id.0);
    if let Some(fleet) = fleet {
        return Finding {
            code: Code::NodeWaits,
            node: Some(new.id),
            store: None,
            what: format!(
                "n{id} at {} waits, and is of fleet {fleet}, whose controller lets it join",
                new.native
            ),
            next: format!("nothing; to see how far it is: {program} elastic status {fleet}"),
        };
    }
    let dead = nodes.iter().find(|status| status.answer.is_err() && !status.node.gone);
    let places = match dead {
        Some(dead) => format!(
            "; if n{dead} is lost for good, let it take its places instead: {program} node add {id} --standby; {program} node \
             replace {dead} {id} --wait",
            dead = dead.node.id.0
        ),
        None => String::new(),
    };
    Finding {
        code: Code::NodeWaits,
        node: Some(new.id),
        store: None,
        what: format!("n{id} at {} is registered and waits to become a member", new.native),
        next: format!("if you want it: {program} node add {id}{places}"),
    }
}

/// Members of a golden ring that hold nothing: on such a ring no plan but their own gives them a part.
pub(super) fn empty(cluster: &Cluster) -> impl Iterator<Item = Finding> {
    let is_empty = move |node: &&Node| {
        cluster.ring.is_golden() && node.role == Role::Serving && !node.gone && !cluster.ring.lists(node.id)
    };
    cluster.nodes.iter().filter(is_empty).map(|node| {
        let (program, id) = (program(), node.id.0);
        Finding {
            code: Code::NodeEmpty,
            node: Some(node.id),
            store: None,
            what: format!("n{id} is a member and holds nothing: on a golden ring it gets a part by order"),
            next: format!("{program} node add {id}; or keep it as a spare: {program} node standby {id}"),
        }
    })
}

/// Nodes that are away, and whose places a standby takes soon.
pub(super) fn replaced_soon(verdict: &Verdict) -> impl Iterator<Item = Finding> {
    let age_s = crate::clocks::now_ms().unsigned_abs().saturating_sub(verdict.at_ms) / 1000;
    let soon = verdict.away.iter().filter(|away| away.announced && away.held.is_none() && away.by.is_some());
    soon.map(move |away| Finding {
        code: Code::NodeReplaced,
        node: Some(away.node),
        store: None,
        what: crate::words::away(away, age_s),
        next: format!("nothing, if it is dead; otherwise start it, or: {} balance why", program()),
    })
}

/// Where the nodes that answer run.
fn places(nodes: &[NodeStatus]) -> impl Iterator<Item = &Installation> {
    nodes.iter().filter_map(|status| Some(&status.status()?.place))
}

/// How to start a node again: as it was started, or as its neighbours' directories suggest.
fn start(dead: &Node, nodes: &[NodeStatus]) -> String {
    if let Some(text) = elsewhere(dead, places(nodes)) {
        return text;
    }
    let path = |text: &String| Some(text).filter(|text| !text.is_empty()).map(PathBuf::from);
    let mut guess = None;
    for place in places(nodes) {
        let Some(coordination) = path(&place.coordination_directory) else { continue };
        if let Some(launch) = crate::holder::noted_launch(&coordination, dead.id) {
            return again(&launch, dead.id);
        }
        let data = path(&place.data_directory)
            .and_then(|data| Some(data.parent()?.join(format!("node-{}", dead.id.0))));
        guess = guess.or_else(|| Some((data?, coordination)));
    }
    match guess {
        Some((data, coordination)) if data.is_dir() => {
            let words = [
                program(),
                "serve".to_owned(),
                format!("--data-dir={}", data.display()),
                format!("--coordination=dir:{}", coordination.display()),
            ];
            let needs_password = nodes.iter().any(|status| requires_password(status) == Some(true));
            format!(
                "{START_UNLESS_IT_RUNS}restart it and read its output:\n        {}",
                crate::holder::with_password(&crate::holder::shell(&words), needs_password)
            )
        }
        _ => format!(
            "on its machine, {START_UNLESS_IT_RUNS}restart it and read its output:\n        tontine serve --data-dir=DIR \
             --coordination=dir:PATH"
        ),
    }
}

#[cfg(test)]
mod tests {
    use model::Zone;
    use protocol::report::Status;

    use super::super::tests::answering;
    use super::*;

    #[test]
    fn a_member_of_a_golden_ring_that_holds_nothing_is_named_unless_it_is_a_spare() {
        let nodes = || (1..=4).map(|id| answering(id, Status::default()).node).collect::<Vec<_>>();
        let golden = model::Ring::golden(&[1, 2, 3].map(NodeId), 16, 3).unwrap();
        let mut cluster = Cluster::new("c", nodes(), golden, Vec::new());
        let found: Vec<Finding> = empty(&cluster).collect();
        assert_eq!(found.iter().map(|one| one.node).collect::<Vec<_>>(), [Some(NodeId(4))]);
        assert!(!found[0].is_bad() && found[0].next.contains(" node add 4;"), "{}", found[0].next);
        cluster.nodes[3].role = Role::Standby;
        assert_eq!(empty(&cluster).count(), 0);
        let zones: Vec<_> = nodes()[..3].iter().map(|node| (node.id, node.zone.clone())).collect();
        let equal = Cluster::new("c", nodes(), model::Ring::equal_slices(4, &zones), Vec::new());
        assert_eq!(empty(&equal).count(), 0, "there it gets its share");
    }

    #[test]
    fn a_node_of_many_machines_is_started_on_its_own_or_its_place_is_taken() {
        let place = || Installation {
            process_id: 1,
            data_directory: "/var/lib/tontine".to_owned(),
            coordination_directory: "zookeeper://zk1:2181/shop".to_owned(),
        };
        let nodes = [1, 2, 3].map(|id| answering(id, Status { place: place(), ..Status::default() }));
        let advice = start(&nodes[1].node, &nodes);
        assert!(advice.starts_with("on its machine, 10.0.0.2, check whether"), "{advice}");
        assert!(
            advice.ends_with(
                "tontine serve --coordination=zookeeper://zk1:2181/shop --data-dir=DIR --insecure"
            ),
            "{advice}"
        );
        let advice = start_again(&nodes[1].node, &nodes, None);
        let lost = [" serve --id 2 --coordination=zookeeper://zk1:2181/shop ", "node replace 2 NEW --wait"];
        assert!(lost.iter().all(|words| advice.contains(words)), "{advice}");
        let advice = start_again(&nodes[1].node, &nodes, Some(Spare::Member(NodeId(8))));
        assert!(advice.ends_with(" node replace 2 8 --wait"), "{advice}");
        let new = Node::new(NodeId(9), Zone("a".to_owned()), "10.0.0.9:7401".to_owned(), None);
        let advice = start_again(&nodes[1].node, &nodes, Some(Spare::Waits(new.id)));
        assert!(advice.ends_with(" node replace 2 9 --wait"), "{advice}");
        let found = waits_to_join(&new, &nodes, None);
        assert!(!found.is_bad() && found.next.ends_with(" node add 9"), "{}", found.next);
        assert!(!found.next.contains("replace"), "nobody is dead: {}", found.next);
        let found = waits_to_join(&new, &nodes, Some(&"shop".to_owned()));
        assert!(found.next.ends_with(" elastic status shop"), "it is no replacement: {}", found.next);
        let cluster = Cluster::new(
            "c",
            Vec::new(),
            model::Ring::equal_slices(4, &[(NodeId(1), Zone("a".to_owned()))]),
            Vec::new(),
        );
        let spare = |of_fleets: &[NodeId]| {
            let of_fleets = of_fleets.iter().map(|id| (*id, "shop".to_owned())).collect();
            Spare::find(&cluster, &[], std::slice::from_ref(&new), &of_fleets)
        };
        assert_eq!(spare(&[]), Some(Spare::Waits(new.id)));
        assert_eq!(spare(&[new.id]), None, "a machine of a fleet is no replacement");
        let again = |command: &str| with_id(command, NodeId(2));
        assert_eq!(again("tontine serve --data-dir d"), "tontine serve --data-dir d --id 2");
        assert_eq!(again("tontine serve --id=2 --data-dir d"), "tontine serve --id=2 --data-dir d");
        let gone = Node { gone: true, ..nodes[1].node.clone() };
        assert!(start_again(&gone, &nodes, None).starts_with("wait: it leaves when others have its data"));
    }
}
