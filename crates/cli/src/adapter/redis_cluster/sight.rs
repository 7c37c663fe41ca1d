//! Asking servers how they see the cluster, each over its own connection, and what follows from that.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::map::{Id, SLOTS, View};
use super::resp::{Credentials, Link, Trouble};
use crate::adapter::rpc::RpcFailure;

/// Servers that a cluster may have here.
const SERVERS_MAX: usize = 512;
/// How often newly named servers are asked, too.
const ROUNDS_MAX: usize = 3;

/// Where the cluster is.
pub(super) struct Servers {
    seeds: Vec<SocketAddr>,
    pub(super) credentials: Credentials,
    /// Who was seen last and where, for the time when all seeds have left. Seeds alone are enough.
    known: Mutex<BTreeMap<SocketAddr, Id>>,
}

/// A server that answered.
pub(super) struct ServerAnswer {
    pub(super) view: View,
    pub(super) link: Link,
}

/// A server of the cluster.
pub(super) struct Server {
    pub(super) address: Option<SocketAddr>,
    /// Whether a member that answers does not reach it.
    pub(super) is_failed: bool,
    /// What it says, or why it says nothing.
    pub(super) answer: Result<ServerAnswer, String>,
}

/// All servers of the cluster.
pub(super) struct ClusterSight {
    pub(super) servers: BTreeMap<Id, Server>,
}

impl Servers {
    pub(super) fn new(seeds: Vec<SocketAddr>, credentials: Credentials) -> Servers {
        Servers { seeds, credentials, known: Mutex::default() }
    }

    /// Connects to a server, and hears how it sees the cluster.
    async fn ask(&self, address: SocketAddr) -> Result<ServerAnswer, Trouble> {
        let mut link = Link::open(address, &self.credentials).await?;
        let text = link.text(&["CLUSTER", "NODES"]).await?;
        let mut view = View::parse(&text).map_err(|why| Trouble::Lost(format!("{address}: {why}")))?;
        // One that nobody has met yet does not know where it is itself.
        let own = view.listed.iter_mut().find(|one| one.id == view.myself);
        own.into_iter().for_each(|one| one.address = one.address.or(Some(address)));
        Ok(ServerAnswer { view, link })
    }

    /// Connects to this very server.
    pub(super) async fn link(&self, id: &Id, address: SocketAddr) -> Result<Link, Trouble> {
        let answer = self.ask(address).await?;
        match answer.view.myself == *id {
            true => Ok(answer.link),
            false => Err(Trouble::Lost(format!("at {address} runs another server than {}", id.short()))),
        }
    }

    /// Asks everybody.
    pub(super) async fn look(&self) -> Result<ClusterSight, RpcFailure> {
        self.look_without(|_, _| false).await
    }

    /// Asks everybody but those whose word does not count. They are named, and say nothing.
    pub(super) async fn look_without(
        &self,
        is_left_out: impl Fn(&Id, Option<SocketAddr>) -> bool,
    ) -> Result<ClusterSight, RpcFailure> {
        let (met, is_left_out) = (self.meet().await?, &is_left_out);
        let mut seen = ClusterSight { servers: BTreeMap::new() };
        let mut named = met[0].1.listed.clone();
        for _ in 0..ROUNDS_MAX {
            let mut unasked = BTreeMap::new();
            for one in named.drain(..) {
                if one.is_replica {
                    return Err(replica(&one.id));
                }
                if !seen.servers.contains_key(&one.id) {
                    let place: &mut Option<SocketAddr> = unasked.entry(one.id).or_default();
                    *place = place.or(one.address);
                }
            }
            if seen.servers.len() + unasked.len() > SERVERS_MAX {
                return Err(RpcFailure::refused(format!("the cluster has more than {SERVERS_MAX} servers")));
            }
            let asked = unasked.into_iter().map(|(id, address)| async move {
                let answer = match address {
                    _ if is_left_out(&id, address) => Err(Trouble::Lost("it is not asked".to_owned())),
                    Some(address) => self.ask(address).await,
                    None => Err(Trouble::Lost("no member knows its address".to_owned())),
                };
                (id, address, answer)
            });
            for (id, address, answer) in join_all(asked).await {
                let answer = match answer {
                    Ok(answer) if answer.view.myself == id => Ok(answer),
                    Ok(_) => Err("another server runs at its address".to_owned()),
                    Err(trouble @ Trouble::Credentials(_)) => return Err(trouble.into()),
                    Err(trouble) => Err(trouble.words().to_owned()),
                };
                named.extend(answer.iter().flat_map(|answer| answer.view.listed.iter().cloned()));
                seen.servers.insert(id, Server { address, is_failed: false, answer });
            }
        }
        if let Some((address, view)) = met.iter().find(|(_, view)| !seen.has_any_of(view)) {
            return Err(stranger(*address, view, met[0].0));
        }
        seen.note_failed();
        *self.known.lock() = seen.places();
        Ok(seen)
    }

    /// Seeds and servers seen last that answer and know others: at least one. They are asked for names only.
    async fn meet(&self) -> Result<Vec<(SocketAddr, View)>, RpcFailure> {
        let known = self.known.lock().clone();
        let places: BTreeSet<SocketAddr> = known.keys().chain(&self.seeds).copied().collect();
        let asked = places.into_iter().map(|address| async move { (address, self.ask(address).await) });
        let (mut met, mut why) = (Vec::new(), Trouble::Lost("there are no seeds".to_owned()));
        for (address, answer) in join_all(asked).await {
            match answer {
                // A machine's address may be another one's by now; a seed's is looked at more closely.
                Ok(ServerAnswer { view, .. })
                    if !self.seeds.contains(&address) && known.get(&address) != Some(&view.myself) =>
                {
                    why = Trouble::Lost(format!("at {address} runs another server than before"));
                }
                // One that was forgotten, or that has not met the others yet, knows nobody.
                Ok(ServerAnswer { view, .. }) if view.listed.len() > 1 => met.push((address, view)),
                Ok(ServerAnswer { view, .. }) => {
                    let alone = view.myself.short();
                    why = Trouble::Lost(format!(
                        "{alone} knows no other member; start the adapter with other --seeds"
                    ));
                }
                Err(trouble) => why = trouble,
            }
        }
        if met.is_empty() { Err(why.into()) } else { Ok(met) }
    }
}

fn stranger(address: SocketAddr, view: &View, first: SocketAddr) -> RpcFailure {
    RpcFailure::passing(format!(
        "{} at {address} is of another cluster than the server at {first}: neither knows the other. Start the adapter with \
         --seeds of one cluster",
        view.myself.short()
    ))
}

fn replica(id: &Id) -> RpcFailure {
    RpcFailure::refused(format!(
        "{} is a replica, and this adapter manages clusters of masters only: a new master would have no replica, and a \
         drained one would leave its replicas behind. Remove the replicas, or resize this cluster by hand",
        id.short()
    ))
}

impl ClusterSight {
    /// Whether a server is one of these, or knows any of them. One that was forgotten may still know the others.
    fn has_any_of(&self, view: &View) -> bool {
        view.listed.iter().any(|one| self.servers.contains_key(&one.id))
    }

    /// Who is where. Of two at one address it is the one that answers there.
    fn places(&self) -> BTreeMap<SocketAddr, Id> {
        let of = |answers: bool| {
            let servers = self.servers.iter().filter(move |(_, server)| server.answer.is_ok() == answers);
            servers.filter_map(|(id, server)| Some((server.address?, id.clone())))
        };
        of(false).chain(of(true)).collect()
    }

    fn note_failed(&mut self) {
        let views = self.servers.values().filter_map(|server| server.answer.as_ref().ok());
        let failed = views.flat_map(|answer| &answer.view.listed).filter(|one| one.is_failed);
        let failed: BTreeSet<Id> = failed.map(|one| one.id.clone()).collect();
        for (id, server) in &mut self.servers {
            server.is_failed = failed.contains(id);
        }
    }

    /// How those that answered see the cluster.
    pub(super) fn views(&self) -> impl Iterator<Item = (&Id, &View)> {
        self.servers.iter().filter_map(|(id, server)| Some((id, &server.answer.as_ref().ok()?.view)))
    }

    /// How a server sees the cluster, if it answered.
    pub(super) fn view(&self, id: &Id) -> Option<&View> {
        self.servers.get(id)?.answer.as_ref().ok().map(|answer| &answer.view)
    }

    /// Those to whom anybody gives a slot.
    pub(super) fn holders(&self) -> BTreeSet<Id> {
        let listed = self.views().flat_map(|(_, view)| &view.listed);
        listed.filter(|one| !one.spans.is_empty()).map(|one| one.id.clone()).collect()
    }

    /// The owner of each slot, if all agree about all of them.
    pub(super) fn owners(&self) -> Result<Vec<Id>, String> {
        for id in self.holders() {
            match self.servers.get(&id).map(|server| &server.answer) {
                Some(Ok(_)) => {}
                Some(Err(why)) => return Err(format!("{} has slots and does not answer: {why}", id.short())),
                None => return Err(format!("{} has slots, and nobody knows where it is", id.short())),
            }
        }
        let mut agreed: Option<(&Id, Vec<Option<&Id>>)> = None;
        for (id, view) in self.views() {
            let owners = view.owners();
            match &agreed {
                None => agreed = Some((id, owners)),
                Some((_, other)) if *other == owners => {}
                Some((other, _)) => {
                    return Err(format!(
                        "{} and {} do not agree yet on who has which slot",
                        other.short(),
                        id.short()
                    ));
                }
            }
        }
        let (_, owners) = agreed.ok_or("no member answers")?;
        let whole: Option<Vec<Id>> = owners.iter().map(|owner| owner.cloned()).collect();
        whole.ok_or_else(|| {
            let lacking = owners.iter().filter(|owner| owner.is_none()).count();
            format!("{lacking} of {SLOTS} slots have no owner; see to that with `redis-cli --cluster fix`")
        })
    }

    /// Slots that are noted to leave a server, by those that take them or by itself.
    pub(super) fn leaving(&self, id: &Id) -> BTreeSet<u16> {
        let taken = self.views().flat_map(|(_, view)| &view.importing).filter(|(_, from)| *from == id);
        let given = self.view(id).into_iter().flat_map(|view| &view.migrating);
        taken.chain(given).map(|(slot, _)| *slot).collect()
    }

    /// Whether all slots of a server are noted to leave it, and none to come.
    fn is_draining(&self, id: &Id) -> bool {
        let Some(view) = self.view(id) else { return false };
        let leaving = self.leaving(id);
        !leaving.is_empty() && view.importing.is_empty() && view.own().all(|slot| leaving.contains(&slot))
    }

    /// Servers of which all slots are noted to leave. Each look at one goes through all open slots.
    pub(super) fn draining(&self) -> BTreeSet<Id> {
        self.servers.keys().filter(|id| self.is_draining(id)).cloned().collect()
    }

    /// An open slot that has nothing to do with this server.
    pub(super) fn other_open(&self, id: &Id) -> Option<u16> {
        let open = self.views().flat_map(|(of, view)| {
            let all = view.importing.iter().chain(&view.migrating);
            all.filter(move |(_, peer)| of != id && *peer != id)
        });
        open.map(|(slot, _)| *slot).next()
    }

    /// Whether any slot is open.
    pub(super) fn any_open(&self) -> bool {
        self.views().any(|(_, view)| !view.importing.is_empty() || !view.migrating.is_empty())
    }
}
