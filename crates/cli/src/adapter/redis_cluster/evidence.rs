//! What the other members say of one that may be ended.
//!
//! ```text
//!   each other member ──▶ its list of members and its open slots, over its own link ──▶ judge
//! ```
//!
//! A slot is open at its giver until the giver knows that another one has it, and only then may it be another one's to give
//! again. So where all members with slots agree about all slots, and none of them has one open, no key is anywhere else.
//! A server without slots that is silent has nothing to say; one with slots must answer.
//!
//! Must never: ask the one in question, take silence for yes, or rely on what an earlier call has found.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use futures_util::future::join_all;
use model::elasticity::adapter::Evidence;

use super::Redis;
use super::map::Id;
use super::sight::{ClusterSight, ServerAnswer};
use crate::adapter::rpc::RpcFailure;

/// Of whom evidence is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A server that is or was a member.
    Member(Id),
    /// A machine of which the engine has never seen a member.
    Address(String),
}

impl Redis {
    /// What the other members say.
    pub(super) async fn evidence(&self, subject: &Subject) -> Result<Evidence, RpcFailure> {
        let hosts = match subject {
            Subject::Member(_) => Vec::new(),
            Subject::Address(address) => match hosts(address).await {
                Ok(hosts) => hosts,
                Err(detail) => return Ok(Evidence { detail: Some(detail), ..Evidence::default() }),
            },
        };
        let is_named = |id: &Id, address: Option<SocketAddr>| match subject {
            Subject::Member(member) => member == id,
            Subject::Address(_) => address.is_some_and(|address| hosts.contains(&address.ip())),
        };
        let mut seen = self.servers.look_without(is_named).await?;
        let named: BTreeSet<Id> = match subject {
            Subject::Member(member) => BTreeSet::from([member.clone()]),
            Subject::Address(_) => {
                let all = seen.servers.iter().filter(|(id, server)| is_named(id, server.address));
                all.map(|(id, _)| id.clone()).collect()
            }
        };
        let states = states(&mut seen).await;
        Ok(judge(&seen, &named, &states))
    }
}

/// The addresses of a machine.
async fn hosts(address: &str) -> Result<Vec<IpAddr>, String> {
    if let Ok(host) = address.parse() {
        return Ok(vec![host]);
    }
    let found = tokio::net::lookup_host((address, 0)).await;
    let found = found.map_err(|error| format!("{address} cannot be resolved: {error}"))?;
    let hosts: Vec<IpAddr> = found.map(|place| place.ip()).collect();
    if hosts.is_empty() { Err(format!("{address} has no address")) } else { Ok(hosts) }
}

/// Members that say that the cluster serves all slots.
async fn states(seen: &mut ClusterSight) -> BTreeSet<Id> {
    let asked = seen.servers.iter_mut().filter_map(|(id, server)| Some((id, server.answer.as_mut().ok()?)));
    let asked = asked.map(|(id, ServerAnswer { link, .. })| async move {
        let text = link.text(&["CLUSTER", "INFO"]).await.ok()?;
        text.lines().any(|line| line.trim() == "cluster_state:ok").then(|| id.clone())
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// What follows from what the others said.
fn judge(seen: &ClusterSight, named: &BTreeSet<Id>, serving: &BTreeSet<Id>) -> Evidence {
    let witnesses: Vec<String> = seen.views().map(|(id, _)| id.as_str().to_owned()).collect();
    let mut evidence = Evidence { witnesses, ..Evidence::default() };
    if evidence.witnesses.is_empty() {
        evidence.detail = Some("no other member answers".to_owned());
        return evidence;
    }
    let holders = seen.holders();
    let mut lacking = Vec::new();
    let owns = named.iter().find(|id| holders.contains(id));
    let open = seen.views().find(|(_, view)| !view.importing.is_empty() || !view.migrating.is_empty());
    // What contradicts is told whoever is silent; the rest needs all of those that have slots.
    let unknown = unknown(seen, named, &holders);
    evidence.owns_nothing = match owns {
        Some(id) => {
            lacking.push(format!("{} has slots", id.short()));
            Some(false)
        }
        None => unknown.is_none().then_some(true),
    };
    evidence.nothing_moves = match open {
        Some((id, view)) => {
            let slot = view.importing.keys().chain(view.migrating.keys()).next().copied().unwrap_or_default();
            lacking.push(format!("slot {slot} is open at {}", id.short()));
            Some(false)
        }
        None => unknown.is_none().then_some(true),
    };
    evidence.nothing_short = match seen.views().find(|(id, _)| !serving.contains(id)) {
        Some((id, _)) => {
            lacking.push(format!("{} says that the cluster does not serve all slots", id.short()));
            Some(false)
        }
        None => unknown.is_none().then_some(true),
    };
    lacking.extend(unknown);
    evidence.detail = (!lacking.is_empty()).then(|| lacking.join("; "));
    evidence
}

/// Why the others do not tell for sure, if they do not.
fn unknown(seen: &ClusterSight, named: &BTreeSet<Id>, holders: &BTreeSet<Id>) -> Option<String> {
    for id in holders.difference(named) {
        match seen.servers.get(id) {
            Some(server) if server.is_failed => {
                return Some(format!("{} is not reached by another member", id.short()));
            }
            Some(server) => {
                if let Err(why) = &server.answer {
                    return Some(format!("{} does not answer: {why}", id.short()));
                }
            }
            None => return Some(format!("nobody knows where {} is", id.short())),
        }
    }
    if named.is_disjoint(holders)
        && let Err(why) = seen.owners()
    {
        return Some(why);
    }
    // Of two that claim one slot, the one of the higher number wins: all must know the same.
    for id in holders {
        let mut epochs = seen.views().map(|(_, view)| view.listed(id).map(|one| one.epoch));
        let first = epochs.next().flatten();
        if first.is_none() || epochs.any(|other| other != first) {
            return Some(format!("members do not agree yet on the epoch of {}", id.short()));
        }
    }
    None
}
