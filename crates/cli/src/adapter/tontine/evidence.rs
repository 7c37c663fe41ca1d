//! What the other members say of one that may be ended.
//!
//! ```text
//!   each other member ──▶ its cluster document and its report, over its own link ─┐
//!   one of them       ──▶ the state of the office, in the coordination service     ─┴─▶ judge
//! ```
//!
//! The newest document among theirs counts, and it must be the one that the coordination service holds. A member leaves that
//! document only when it has said that it holds no records and hints that others may lack (`docs/design/rebalance.md`,
//! *Headmaster*). So one that is still in it, and holds no partition, is not proved to be empty.
//!
//! Must never: ask the one in question, take silence for yes, or rely on what an earlier call has found.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};

use client::{Client, ClientError};
use futures_util::future::join_all;
use model::elasticity::adapter::Evidence;
use model::order::Office;
use model::routing::replicas_before;
use model::{Cluster, Generation, NodeId};
use protocol::report::{Parts, Report};

use super::observing::host;
use super::{Tontine, of_client};
use crate::adapter::rpc::RpcFailure;

/// Of whom evidence is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A node that is or was a member.
    Member(NodeId),
    /// A machine of which the engine has never seen a member.
    Address(String),
}

/// A member that answered for itself.
struct Witness {
    node: NodeId,
    cluster: Cluster,
    report: Report,
}

/// What was heard of the others.
struct OthersHeard {
    witnesses: Vec<Witness>,
    /// Members that did not answer, and why.
    silent: Vec<(NodeId, String)>,
    /// The state of the office, as the first witness says that can read it.
    office: Option<Office>,
}

impl Tontine {
    /// What the other members say.
    pub(super) async fn evidence(&self, subject: Subject) -> Result<Evidence, RpcFailure> {
        let (client, known) = self.view().await?;
        let named = match &subject {
            Subject::Member(node) => Some(*node),
            Subject::Address(address) => at(&known, address),
        };
        let others = known.nodes.iter().filter(|node| !node.gone && Some(node.id) != named);
        let others: Vec<NodeId> = others.map(|node| node.id).collect();
        let client = &client;
        let asked = others.iter().map(|&node| async move { (node, ask(client, node).await) });
        let mut heard = OthersHeard { witnesses: Vec::new(), silent: Vec::new(), office: None };
        for (node, answer) in join_all(asked).await {
            match answer {
                Ok(witness) => heard.witnesses.push(witness),
                Err(ClientError::Failed { code, detail }) if super::is_judged(code) => {
                    return Err(of_client(ClientError::Failed { code, detail }));
                }
                Err(error) => heard.silent.push((node, error.to_string())),
            }
        }
        // After the documents: one that came in between is noticed.
        for witness in &heard.witnesses {
            let told = client.office_at(witness.node).await.ok();
            heard.office = told.filter(|office| office.unread.is_none() && !office.is_moving);
            if heard.office.is_some() {
                break;
            }
        }
        Ok(judge(&subject, &heard))
    }
}

async fn ask(client: &Client, node: NodeId) -> Result<Witness, ClientError> {
    let cluster = client.cluster_at(node).await?;
    let report = client.report(node, Parts::STATUS | Parts::MOVES | Parts::REPAIR).await?;
    Ok(Witness { node, cluster, report })
}

/// What follows from what was heard.
fn judge(subject: &Subject, heard: &OthersHeard) -> Evidence {
    let witnesses = heard.witnesses.iter().map(|witness| witness.node.to_string()).collect();
    let newest = heard.witnesses.iter().map(|witness| &witness.cluster).max_by_key(|one| one.generation);
    let Some(cluster) = newest else {
        let detail = Some("no other member answers".to_owned());
        return Evidence { witnesses, detail, ..Evidence::default() };
    };
    let mut lacking = Vec::new();
    let mut note = |said: EvidenceAnswer| {
        let (known, why) = match said {
            EvidenceAnswer::Yes => return Some(true),
            EvidenceAnswer::No(why) => (Some(false), why),
            EvidenceAnswer::Unknown(why) => (None, why),
        };
        lacking.push(why);
        known
    };
    let named = match subject {
        Subject::Member(node) => Ok(Some(*node)),
        Subject::Address(address) => at_surely(cluster, address),
    };
    let is_newest = is_newest(cluster, heard);
    let owns_nothing = note(match named.clone() {
        Err(why) => EvidenceAnswer::Unknown(why),
        Ok(named) => is_newest.clone().and(owns_nothing(cluster, named)),
    });
    let nothing_moves = note(is_newest.clone().and(nothing_moves(cluster, heard, named.unwrap_or_default())));
    let nothing_short = note(is_newest.and(nothing_short(cluster, heard, subject)));
    let detail = (!lacking.is_empty()).then(|| {
        lacking.dedup();
        lacking.join("; ")
    });
    Evidence { witnesses, owns_nothing, nothing_moves, nothing_short, detail }
}

/// Whether something is so.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EvidenceAnswer {
    Yes,
    No(String),
    Unknown(String),
}

impl EvidenceAnswer {
    /// Both, where what is known to be otherwise outweighs what is not known.
    fn and(self, other: EvidenceAnswer) -> EvidenceAnswer {
        match (self, other) {
            (_, no @ EvidenceAnswer::No(_)) | (EvidenceAnswer::Yes, no) => no,
            (said, _) => said,
        }
    }
}

/// Whether this is the document of the coordination service, and all other members follow it.
fn is_newest(cluster: &Cluster, heard: &OthersHeard) -> EvidenceAnswer {
    let asked: BTreeSet<NodeId> = heard.witnesses.iter().map(|witness| witness.node).collect();
    if let Some((node, why)) = heard.silent.first() {
        return EvidenceAnswer::Unknown(format!("{node} does not answer: {why}"));
    }
    let behind = |witness: &&Witness| adopted(witness) < cluster.generation;
    if let Some(witness) = heard.witnesses.iter().find(behind) {
        return EvidenceAnswer::Unknown(format!(
            "{} still follows document {}, and the newest is {}",
            witness.node,
            adopted(witness).0,
            cluster.generation.0
        ));
    }
    match heard.office.as_ref().map(|office| office.generation) {
        Some(Some(generation)) if generation == cluster.generation && !asked.is_empty() => {
            EvidenceAnswer::Yes
        }
        Some(Some(generation)) => EvidenceAnswer::Unknown(format!(
            "the coordination service has document {}, and the members follow {}",
            generation.0, cluster.generation.0
        )),
        _ => EvidenceAnswer::Unknown("no other member can read the coordination service".to_owned()),
    }
}

fn adopted(witness: &Witness) -> Generation {
    let moves = witness.report.moves.as_ref();
    moves.map_or_else(Generation::default, |moves| moves.adopted.min(witness.cluster.generation))
}

fn owns_nothing(cluster: &Cluster, named: Option<NodeId>) -> EvidenceAnswer {
    let Some(node) = named else { return EvidenceAnswer::Yes };
    let places = super::acts::places(cluster, node);
    match (cluster.node(node), places) {
        (_, 1..) => EvidenceAnswer::No(format!("{node} holds {places} partitions")),
        _ if cluster.ring.lists(node) => {
            EvidenceAnswer::No(format!("{node} is a fallback, or enters partitions"))
        }
        (Some(_), 0) => EvidenceAnswer::Unknown(format!(
            "{node} is a member yet, and may hold records or hints that others lack; it leaves when it is drained or forgotten"
        )),
        (None, 0) => EvidenceAnswer::Yes,
    }
}

fn nothing_moves(cluster: &Cluster, heard: &OthersHeard, named: Option<NodeId>) -> EvidenceAnswer {
    let hints = |witness: &Witness| {
        let held = witness.report.status.iter().flat_map(|status| &status.hints);
        held.filter(|held| Some(held.target) == named).map(|held| held.hints).sum::<u64>()
    };
    if let Some(witness) = heard.witnesses.iter().find(|witness| hints(witness) > 0) {
        return EvidenceAnswer::No(format!("{} holds {} hints for it", witness.node, hints(witness)));
    }
    if let Some(plan) = heard.office.as_ref().and_then(|office| office.plan.as_ref()) {
        return EvidenceAnswer::No(format!("plan {} is under way", plan.number));
    }
    if !cluster.ring.is_settled() {
        return EvidenceAnswer::No("partitions move".to_owned());
    }
    match heard.witnesses.iter().find(|witness| witness.report.status.is_none()) {
        Some(witness) => {
            EvidenceAnswer::Unknown(format!("{} does not say for whom it holds hints", witness.node))
        }
        None => EvidenceAnswer::Yes,
    }
}

fn nothing_short(cluster: &Cluster, heard: &OthersHeard, subject: &Subject) -> EvidenceAnswer {
    let asked: BTreeSet<NodeId> = heard.witnesses.iter().map(|witness| witness.node).collect();
    let may_count = |node: &NodeId| asked.contains(node) && *subject != Subject::Member(*node);
    for store in cluster.definitions() {
        let wanted = usize::from(store.consistency.replicas);
        for partition in cluster.ring.partitions() {
            let there = replicas_before(&store, partition).iter().filter(|node| may_count(node)).count();
            if there < wanted {
                let (store, partition) = (&store.name, partition.id);
                return EvidenceAnswer::No(format!(
                    "{partition} of store {store} has {there} of {wanted} replicas"
                ));
            }
        }
    }
    for Witness { node, report, .. } in &heard.witnesses {
        let Some(((status, moves), repair)) =
            report.status.as_ref().zip(report.moves.as_ref()).zip(report.repair.as_ref())
        else {
            return EvidenceAnswer::Unknown(format!("{node} does not say whether it has all of its records"));
        };
        if let Some(why) = &status.storage_stopped {
            return EvidenceAnswer::No(format!("the storage of {node} has stopped: {why}"));
        }
        if repair.refill.as_ref().is_some_and(|refill| refill.is_under_way()) {
            return EvidenceAnswer::No(format!("{node} brings records in that it lost"));
        }
        if moves.entered.iter().any(|entered| !entered.whole) {
            return EvidenceAnswer::No(format!("{node} brings in partitions that it got"));
        }
        let corrupt: u64 =
            status.stores.iter().map(|store| store.corrupt_records_left + store.corrupt_unplaced).sum();
        if corrupt > 0 {
            return EvidenceAnswer::No(format!("{node} has {corrupt} records that it cannot read"));
        }
    }
    EvidenceAnswer::Yes
}

/// The member whose address this is, by its text.
fn at(cluster: &Cluster, address: &str) -> Option<NodeId> {
    cluster.nodes.iter().find(|node| host(&node.native) == address).map(|node| node.id)
}

/// The member at this address; an error where a name on either side cannot be resolved, so that nobody knows.
fn at_surely(cluster: &Cluster, address: &str) -> Result<Option<NodeId>, String> {
    if let Some(node) = at(cluster, address) {
        return Ok(Some(node));
    }
    let own = resolved(address)?;
    for node in &cluster.nodes {
        if resolved(host(&node.native))?.iter().any(|one| own.contains(one)) {
            return Ok(Some(node.id));
        }
    }
    Ok(None)
}

fn resolved(host: &str) -> Result<Vec<IpAddr>, String> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let found = (host, 0).to_socket_addrs().map_err(|error| format!("{host} cannot be resolved: {error}"))?;
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    if found.is_empty() { Err(format!("{host} has no address")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use model::plan::{Phase, PlanSummary};
    use model::{Consistency, Node, PartitionId, Ring, Store, StoreName, WallMillis, Zone};
    use protocol::report::{
        HintsHeld, HintsState, PartitionEntered, RebalanceReport, RefillReport, RepairReport, Status,
    };

    use super::*;

    /// A cluster of these nodes, of which the first ones hold the partitions.
    fn cluster(nodes: &[u32], holders: usize, generation: u64) -> Cluster {
        let zone = Zone("a".to_owned());
        let node = |id: &u32| Node::new(NodeId(*id), zone.clone(), format!("127.0.0.{id}:7401"), None);
        let zones: Vec<_> = nodes.iter().take(holders).map(|id| (NodeId(*id), zone.clone())).collect();
        let numbers = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
        let store = Store::new(StoreName::new("carts").unwrap(), numbers).unwrap();
        let ring = Ring::equal_slices(8, &zones);
        let cluster = Cluster::new("c", nodes.iter().map(node).collect(), ring, vec![store]);
        Cluster { generation: Generation(generation), ..cluster }
    }

    fn witness(node: u32, cluster: &Cluster) -> Witness {
        let report = Report {
            status: Some(Status::default()),
            moves: Some(RebalanceReport { adopted: cluster.generation, ..RebalanceReport::default() }),
            repair: Some(RepairReport::default()),
            ..Report::new(NodeId(node), 1, WallMillis(0), cluster.generation)
        };
        Witness { node: NodeId(node), cluster: cluster.clone(), report }
    }

    /// Node 4 has left, and everything is in order.
    fn in_order() -> OthersHeard {
        let cluster = cluster(&[1, 2, 3], 3, 7);
        let office = Office { generation: Some(Generation(7)), ..Office::default() };
        let witnesses = [1, 2, 3].map(|node| witness(node, &cluster)).into();
        OthersHeard { witnesses, silent: Vec::new(), office: Some(office) }
    }

    const FOURTH: Subject = Subject::Member(NodeId(4));

    /// Evidence of what was in order but for one thing: it must be no proof, and say why.
    #[track_caller]
    fn is_no_proof(words: &str, change: impl FnOnce(&mut OthersHeard)) -> Evidence {
        let mut heard = in_order();
        change(&mut heard);
        let evidence = judge(&FOURTH, &heard);
        assert!(!evidence.proves(), "{evidence:?}");
        let detail = evidence.detail.clone().unwrap_or_default();
        assert!(detail.contains(words), "{words:?} is not in {detail:?}");
        evidence
    }

    #[test]
    fn what_all_others_say_is_a_proof() {
        let evidence = judge(&FOURTH, &in_order());
        assert!(evidence.proves() && evidence.detail.is_none(), "{evidence:?}");
        assert_eq!(evidence.witnesses, ["n1", "n2", "n3"]);
        assert!(judge(&Subject::Address("127.0.0.4".to_owned()), &in_order()).proves());
    }

    #[test]
    fn a_member_that_is_there_yet_is_not_proved_to_be_empty() {
        let change = |nodes: &'static [u32], holders| {
            move |heard: &mut OthersHeard| {
                let cluster = cluster(nodes, holders, 7);
                heard.witnesses.iter_mut().for_each(|witness| witness.cluster = cluster.clone());
            }
        };
        assert_eq!(is_no_proof("n4 holds", change(&[4, 1, 2, 3], 4)).owns_nothing, Some(false));
        // It holds nothing, and may hold hints.
        assert_eq!(is_no_proof("n4 is a member yet", change(&[1, 2, 3, 4], 3)).owns_nothing, None);
    }

    #[test]
    fn an_older_document_of_one_of_them_is_not_believed() {
        // Before it joined, nobody gave it anything.
        is_no_proof("n2 still follows document 6", |heard| {
            let older = cluster(&[1, 2, 3], 3, 6);
            heard.witnesses[1] = witness(2, &older);
        });
        // All of them are behind.
        is_no_proof("has document 8, and the members follow 7", |heard| {
            heard.office = Some(Office { generation: Some(Generation(8)), ..Office::default() });
        });
        // One of them has a newer one, in which it holds everything again.
        is_no_proof("n4 holds", |heard| heard.witnesses[2] = witness(3, &cluster(&[4, 1, 2, 3], 4, 8)));
        is_no_proof("no other member can read", |heard| heard.office = None);
    }

    #[test]
    fn silence_is_no_yes() {
        is_no_proof("n2 does not answer: gone", |heard| {
            heard.witnesses.remove(1);
            heard.silent.push((NodeId(2), "gone".to_owned()));
        });
        let evidence = is_no_proof("no other member answers", |heard| heard.witnesses.clear());
        assert!(evidence.witnesses.is_empty());
        is_no_proof("n1 does not say whether", |heard| heard.witnesses[0].report.repair = None);
        is_no_proof("n1 does not say for whom", |heard| heard.witnesses[0].report.status = None);
        is_no_proof("follows document 0", |heard| heard.witnesses[0].report.moves = None);
    }

    #[test]
    fn what_moves_or_is_parked_for_it_is_no_proof() {
        is_no_proof("plan 9 is under way", |heard| {
            let (wish, unread, phase) = (None, None, Some(Phase::Applying));
            let by = String::new();
            let plan =
                PlanSummary { number: 9, wish, phase, partitions: 1, settled: 0, created_ms: 0, by, unread };
            heard.office.as_mut().unwrap().plan = Some(plan);
        });
        is_no_proof("n3 holds 5 hints for it", |heard| {
            let (hints_per_second, rate_bytes_per_second, failures) = Default::default();
            let (delivered_total, readdressed_total, expired_total) = Default::default();
            heard.witnesses[2].report.status.as_mut().unwrap().hints.push(HintsHeld {
                target: NodeId(4),
                hints: 5,
                state: HintsState::Holding,
                hints_per_second,
                rate_bytes_per_second,
                failures,
                delivered_total,
                readdressed_total,
                expired_total,
            });
        });
    }

    #[test]
    fn a_lack_of_copies_is_no_proof() {
        is_no_proof("n2 brings records in that it lost", |heard| {
            let refill = RefillReport { partitions_left: 1, ..RefillReport::default() };
            heard.witnesses[1].report.repair.as_mut().unwrap().refill = Some(refill);
        });
        is_no_proof("n2 brings in partitions", |heard| {
            let (merged, records, bytes) = Default::default();
            let (partition, generation) = (PartitionId(1), Generation(7));
            let entered = PartitionEntered { partition, generation, whole: false, merged, records, bytes };
            heard.witnesses[1].report.moves.as_mut().unwrap().entered.push(entered);
        });
        is_no_proof("of 3 replicas", |heard| {
            let few = cluster(&[1, 2, 3], 2, 7);
            heard.witnesses.iter_mut().for_each(|witness| witness.cluster = few.clone());
        });
        is_no_proof("the storage of n1 has stopped", |heard| {
            heard.witnesses[0].report.status.as_mut().unwrap().storage_stopped = Some("full".to_owned());
        });
    }

    #[test]
    fn an_address_that_a_member_has_is_that_member() {
        let heard = in_order();
        let serving = judge(&Subject::Address("127.0.0.2".to_owned()), &heard);
        assert_eq!(serving.owns_nothing, Some(false), "{serving:?}");
        // A name that nobody can resolve may be any of them.
        let unknown = judge(&Subject::Address("no-such-host.invalid".to_owned()), &heard);
        assert!(!unknown.proves(), "{unknown:?}");
    }
}
