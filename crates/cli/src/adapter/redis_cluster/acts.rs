//! Verbs: each notes in the cluster itself which slots are to move, and wakes what moves them.
//!
//! A slot is noted at the server that takes it, as *importing*. That changes nothing for clients, and outlives every adapter.
//!
//! Must never: note anything while members disagree about who has what, or take a note back whose slot has begun to move.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::Value as Json;

use super::Redis;
use super::map::{Id, View};
use super::mover::{stays_apart, step};
use super::resp::{Link, RedisReply, Trouble};
use super::shares::{incoming, outgoing};
use super::sight::ClusterSight;
use super::{MEMBERS_MIN, mover};
use crate::adapter::rpc::{self, RpcFailure};

impl Redis {
    /// Gives a member without slots its share.
    pub(super) async fn join(&self, member: &Id) -> Result<Json, RpcFailure> {
        let _turn = self.mover.turn.lock().await;
        let mut seen = self.servers.look().await?;
        self.mover.wake();
        let view = answered(&seen, member)?;
        if !view.importing.is_empty() || view.own().next().is_some() {
            return Ok(rpc::nothing());
        }
        self.take_share(&mut seen, member, true).await
    }

    /// Has all slots of a member go to the others.
    pub(super) async fn drain(&self, member: &Id) -> Result<Json, RpcFailure> {
        let _turn = self.mover.turn.lock().await;
        let mut seen = self.servers.look().await?;
        self.mover.wake();
        if !seen.servers.contains_key(member) {
            return Ok(rpc::nothing());
        }
        let view = answered(&seen, member)?;
        let leaving = seen.leaving(member);
        let unmarked: Vec<u16> = view.own().filter(|slot| !leaving.contains(slot)).collect();
        let coming: Vec<(u16, Id)> = view.importing.clone().into_iter().collect();
        if !unmarked.is_empty() {
            let owners = settled(&seen, member)?;
            let takers: BTreeSet<Id> = serving(&seen).into_iter().filter(|id| id != member).collect();
            if takers.len() < MEMBERS_MIN {
                let (others, short) = (takers.len(), member.short());
                return Err(RpcFailure::refused(format!(
                    "without {short} there are {others} members with slots, and a Redis Cluster needs {MEMBERS_MIN}; add one first"
                )));
            }
            let going = outgoing(&owners, &takers, &unmarked);
            let link = link(&mut seen, member)?;
            stays_apart(link).await.map_err(|trouble| unsettable(member, &trouble))?;
            for taker in takers {
                let slots = going.iter().filter(|(_, to)| *to == taker);
                let slots: Vec<(u16, Id)> = slots.map(|(slot, _)| (*slot, member.clone())).collect();
                note(&mut seen, &taker, &slots).await?;
            }
        }
        // A join that is taken back. What has begun to come comes, and is noted by the next `drain`.
        self.take_back(&mut seen, member, &coming).await?;
        self.mover.wake();
        Ok(rpc::nothing())
    }

    /// Takes a drain back: the member keeps what it has, and gets its share again.
    pub(super) async fn cancel(&self, member: &Id) -> Result<Json, RpcFailure> {
        let _turn = self.mover.turn.lock().await;
        let mut seen = self.servers.look().await?;
        self.mover.wake();
        if !seen.servers.contains_key(member) {
            return Err(RpcFailure::refused(format!(
                "{} is no member any more, so its drain cannot be taken back",
                member.short()
            )));
        }
        let view = answered(&seen, member)?;
        let taken: Vec<(Id, u16)> = seen
            .views()
            .flat_map(|(id, of)| of.importing.iter().map(move |(slot, from)| (id, *slot, from)))
            .filter(|(_, slot, from)| *from == member && !view.migrating.contains_key(slot))
            .map(|(id, slot, _)| (id.clone(), slot))
            .collect();
        if taken.is_empty() && view.own().next().is_some() {
            return Ok(rpc::nothing());
        }
        // First what it gets: who is killed here leaves a member to which slots come, and from which slots go.
        self.take_share(&mut seen, member, false).await?;
        let takers: BTreeSet<Id> = taken.iter().map(|(id, _)| id.clone()).collect();
        for taker in takers {
            let slots = taken.iter().filter(|(id, _)| *id == taker);
            let slots: Vec<(u16, Id)> = slots.map(|(_, slot)| (*slot, member.clone())).collect();
            step(link(&mut seen, &taker)?, "unmark", &slots).await?;
        }
        self.mover.wake();
        Ok(rpc::nothing())
    }

    /// Has all others drop a member that has no slots.
    pub(super) async fn forget(&self, member: &Id) -> Result<Json, RpcFailure> {
        let mut seen = self.servers.look().await?;
        let short = member.short();
        let holders = seen.holders();
        if holders.contains(member) {
            return Err(RpcFailure::passing(format!("{short} has slots; call `drain` first")));
        }
        if seen.views().any(|(id, view)| names(view, member) || (id == member && is_open(view))) {
            return Err(RpcFailure::passing(format!(
                "slots move to or from {short}; they come to their end first"
            )));
        }
        let others = seen.servers.iter().filter(|(id, _)| *id != member && holders.contains(id));
        if let Some(why) = others.filter_map(|(_, server)| server.answer.as_ref().err()).next() {
            return Err(RpcFailure::passing(format!("{short} is not forgotten by all: {why}")));
        }
        let told = seen.servers.iter_mut().filter(|(id, _)| *id != member);
        let told = told.filter_map(|(_, server)| server.answer.as_mut().ok()).map(|answer| async {
            match answer.link.call(&["CLUSTER", "FORGET", member.as_str()]).await {
                Err(Trouble::Said(why)) if why.contains("Unknown node") => Ok(()),
                Err(trouble) => Err(trouble),
                Ok(_) => Ok(()),
            }
        });
        for told in join_all(told).await {
            told?;
        }
        Ok(rpc::nothing())
    }

    /// Notes which slots come to a member, so that it has its share.
    async fn take_share(
        &self,
        seen: &mut ClusterSight,
        member: &Id,
        is_new: bool,
    ) -> Result<Json, RpcFailure> {
        let owners = settled(seen, member)?;
        let view = answered(seen, member)?;
        let mut owners = owners;
        // What has begun to leave it leaves.
        for (slot, to) in &view.migrating {
            owners[usize::from(*slot)] = to.clone();
        }
        let givers = serving(seen).into_iter().filter(|id| id != member).collect();
        let coming = incoming(&owners, &givers, member, |slot| view.migrating.contains_key(&slot));
        if is_new {
            let link = link(seen, member)?;
            if let RedisReply::Number(keys @ 1..) = link.call(&["DBSIZE"]).await? {
                return Err(RpcFailure::refused(format!(
                    "{} has no slots and {keys} keys, which are of no cluster; start it with an empty directory",
                    member.short()
                )));
            }
        }
        note(seen, member, &coming).await?;
        self.mover.wake();
        Ok(rpc::nothing())
    }

    /// Takes notes of slots that come to a member back, but for those that have begun to.
    async fn take_back(
        &self,
        seen: &mut ClusterSight,
        member: &Id,
        coming: &[(u16, Id)],
    ) -> Result<(), RpcFailure> {
        let begun =
            |(slot, from): &&(u16, Id)| seen.view(from).is_none_or(|view| view.migrating.contains_key(slot));
        let still: Vec<(u16, Id)> = coming.iter().filter(|one| !begun(one)).cloned().collect();
        if !still.is_empty() {
            step(link(seen, member)?, "unmark", &still).await?;
        }
        Ok(())
    }
}

/// How a member sees the cluster; it must answer.
fn answered<'a>(seen: &'a ClusterSight, member: &Id) -> Result<&'a View, RpcFailure> {
    let short = member.short();
    match seen.servers.get(member).map(|server| &server.answer) {
        Some(Ok(answer)) => Ok(&answer.view),
        Some(Err(why)) => Err(RpcFailure::passing(format!("{short} does not answer: {why}"))),
        None => Err(RpcFailure::passing(format!("no member knows {short}"))),
    }
}

/// The owner of each slot, where members agree, all know this one, and nothing else is under way.
fn settled(seen: &ClusterSight, member: &Id) -> Result<Vec<Id>, RpcFailure> {
    let owners = seen.owners().map_err(RpcFailure::passing)?;
    if let Some(slot) = seen.other_open(member) {
        return Err(RpcFailure::passing(format!(
            "slot {slot} is on its way between other members, and one act at a time is carried out"
        )));
    }
    let unknown = |(_, view): &(&Id, &View)| view.listed(member).is_none();
    match seen.views().find(unknown) {
        Some((id, _)) => {
            Err(RpcFailure::passing(format!("{} does not know {} yet", id.short(), member.short())))
        }
        None => Ok(owners),
    }
}

/// Members with slots that keep them.
fn serving(seen: &ClusterSight) -> BTreeSet<Id> {
    &seen.holders() - &seen.draining()
}

fn link<'a>(seen: &'a mut ClusterSight, id: &Id) -> Result<&'a mut Link, RpcFailure> {
    let answer = seen.servers.get_mut(id).and_then(|server| server.answer.as_mut().ok());
    answer
        .map(|answer| &mut answer.link)
        .ok_or_else(|| RpcFailure::passing(format!("{} does not answer", id.short())))
}

/// Notes at a member which slots it takes. All of them are noted, or the verb is to be called again.
async fn note(seen: &mut ClusterSight, taker: &Id, slots: &[(u16, Id)]) -> Result<(), RpcFailure> {
    let noted = mover::step(link(seen, taker)?, "mark", slots).await?;
    match noted.len() == slots.len() {
        true => Ok(()),
        false => Err(RpcFailure::passing(format!(
            "{} could note {} of {} slots that it is to take",
            taker.short(),
            noted.len(),
            slots.len()
        ))),
    }
}

fn names(view: &View, member: &Id) -> bool {
    view.importing.values().chain(view.migrating.values()).any(|peer| peer == member)
}

fn is_open(view: &View) -> bool {
    !view.importing.is_empty() || !view.migrating.is_empty()
}

fn unsettable(member: &Id, trouble: &Trouble) -> RpcFailure {
    match trouble {
        Trouble::Said(why) => RpcFailure::refused(format!(
            "{} would become a replica when it is empty, and does not take another setting: {why}; set \
             cluster-allow-replica-migration to no in its configuration",
            member.short()
        )),
        other => other.clone().into(),
    }
}
