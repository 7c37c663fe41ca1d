//! Who this node is, as its data directory remembers it.
//!
//! The identity file says to which cluster and node the directory belongs, and under which incarnation it last
//! stamped writes. A clean stop records how many births were used, and the next start goes on with the same
//! incarnation. Any other start may have forgotten writes (the tail of a log that was not synced), so it takes a
//! new incarnation, durably, before the first write is stamped.
//!
//! ```text
//! tontine-identity 2
//! cluster dev
//! node 2
//! incarnation 1763754000123
//! password required      (only while Redis clients must give one)
//! holds 9c01d2... stores/default   (each engine that lies here, with its number)
//! births 5120            (only after a clean stop)
//! stop 4                 (only after a clean stop: how many the incarnation has had)
//! checksum 5f2c...       (XXH3-64 of all lines before)
//! ```
//!
//! A directory cannot know by itself that it is new under a known name, or a copy of what it once was. So the
//! coordination service remembers of each node the greatest incarnation and the last clean stop that it came back from:
//!
//! | the directory | the service remembers | the node |
//! |---|---|---|
//! | is new | nothing | is new |
//! | is new | anything | has lost its disk |
//! | has an earlier incarnation | a later one | was rolled back |
//! | has a clean stop | this stop or a later one of its incarnation | was rolled back |
//! | has a clean stop | an earlier one, or none | goes on with its incarnation |
//! | has no clean stop | anything else | was ended, and takes a new incarnation |
//!
//! Nor does a directory tell that a part of it is gone: an engine that finds nothing begins anew. So the identity names
//! the engines, and one that is not there, or not all of it, or is another than it was, is *gone*: the node has lost that store, takes a
//! new incarnation and refills it. An engine is named when it has been opened and before anything is written to it.
//!
//! What the directory holds and must not serve any more (all of it when it was rolled back or has no identity, a store
//! that is not its own) is *set aside*: moved to `set-aside-<incarnation>/`, where nobody looks but the operator. That comes before
//! the identity says anything new, so a start that ends in between finds the same again.
//!
//! Of a store with one replica an operator may bring back what was set aside (`bring_back`).
//!
//! Nor does a restart know that the start before it had a password, which comes from the environment. So the directory
//! remembers that Redis clients must give one, and a start without it is refused. It remembers neither the password nor
//! a hash of it: whoever steals a disk could try passwords against a hash for as long as they like.
//!
//! A directory that holds other things, and nothing of a node, is a mistyped path and is refused (`occupied`).
//!
//! A copy that was taken while the node ran and put back while it still remembered the same incarnation looks like a
//! node that was ended; only what it acknowledged since is gone.

pub(crate) mod bring_back;
mod file;
pub(crate) mod given;
mod occupied;

use std::collections::BTreeMap;
use std::sync::Arc;

use coordination::documents::Member;
use model::{NodeId, WallMillis};
use runtime::{Disk, DiskError};
use storage::Remains;
use thiserror::Error;

use self::file::{lock, read, replace};

/// The file's name below the data directory.
const FILE: &str = "identity";
/// The name of the file that says under which incarnation the node was about to be registered last.
const ANNOUNCED: &str = "registering";
/// The format that this program reads and writes.
const FORMAT: u32 = 2;

/// Why a data directory cannot be this node's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// Another process holds the directory.
    #[error("the data directory is in use by another process; stop it or choose another directory")]
    InUse,
    /// The directory belongs to another node or cluster.
    #[error(
        "the data directory belongs to {found_node} of cluster {found_cluster:?}, not to {node} of cluster \
             {cluster:?}; start the node that owns it or choose another directory"
    )]
    Foreign {
        /// Node that owns it.
        found_node: NodeId,
        /// Cluster that owns it.
        found_cluster: String,
        /// Node that wanted it.
        node: NodeId,
        /// Cluster that wanted it.
        cluster: String,
    },
    /// Written by a newer version.
    #[error(
        "the data directory has format {found}, and this program reads format {FORMAT}: a later version of tontine wrote \
         it; upgrade this one"
    )]
    Newer {
        /// The format found.
        found: u32,
    },
    /// Written by an earlier version.
    #[error(
        "the data directory has format {found}, and this program reads format {FORMAT}: an earlier version of tontine \
         wrote it; export the data with that version, and load it into a new cluster of this one"
    )]
    Earlier {
        /// The format found.
        found: u32,
    },
    /// It holds something, and nothing of a node.
    #[error("the data directory belongs to no node but is not empty: it holds {found}; {advice}")]
    Occupied {
        /// What lies there.
        found: String,
        /// What to do.
        advice: String,
    },
    /// Redis clients had to give a password, and this start has none.
    #[error(
        "{node} was last started with a password for Redis clients, and this start has none, so any client could \
         connect; set TONTINE_PASSWORD to the cluster's password and start it again, or give --no-password to stop \
         requiring one"
    )]
    PasswordMissing {
        /// Node that owns the directory.
        node: NodeId,
    },
    /// It holds records, and the engine that shall be used would forget them.
    #[error(
        "the data directory holds records in {engine:?}, and the engine of this start can neither read nor update them; \
         start the node with its former engine (--engine=log) or choose another directory"
    )]
    OtherEngine {
        /// The first engine that lies there.
        engine: String,
    },
    /// The file is there but cannot be read.
    #[error(
        "the identity file of the data directory is damaged ({reason}); restore it or start with an empty directory"
    )]
    Damaged {
        /// What is wrong with it.
        reason: String,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// An open identity; the directory stays locked while it lives.
pub(crate) struct Identity {
    disk: Arc<dyn Disk>,
    cluster: String,
    node: NodeId,
    remembered: Option<Remembered>,
    incarnation: u64,
    births_used: u64,
    /// Clean stops that the incarnation has had.
    stops: u64,
    /// Whether a later start needs a password.
    password_required: bool,
    holds: Holds,
    /// What must not be served any more.
    unfit: Vec<String>,
    _lock: Box<dyn Send + Sync>,
}

/// Engines by name, with their numbers.
type Holds = BTreeMap<String, u64>;

/// A name of an engine, and what lies there.
pub(crate) type Found = (String, Remains);

/// An engine that the directory held, and does not hold any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    /// Its name.
    pub(crate) engine: String,
    /// Whether another one lies there, or a part of it.
    pub(crate) replaced: bool,
}

#[derive(Clone)]
struct Remembered {
    cluster: String,
    node: NodeId,
    incarnation: u64,
    password_required: bool,
    holds: Holds,
    /// After a clean stop: births that were used, and which stop of its incarnation this was.
    stopped: Option<(u64, u64)>,
}

/// So far beyond what is known of it a node begins whose directory does not tell what it was: an hour, by which its clock
/// may have gone back since.
const LEAP_MS: u64 = 3_600_000;

/// What the coordination service remembers of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownMember {
    /// It cannot be asked.
    Unavailable,
    /// The node never was.
    Nothing,
    /// This.
    Member(Member),
}

/// How the node comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Homecoming {
    /// It never was before.
    New,
    /// After a clean stop.
    Stopped {
        /// Which one of its incarnation: to be remembered as redeemed.
        stop: u64,
    },
    /// After any other end.
    Ended,
    /// Its directory is new, but it was there before.
    Lost,
    /// Its directory is a copy of what it once was.
    RolledBack,
}

impl Homecoming {
    /// Whether nothing that lies in the directory is the node's any more. Where there is no identity, whatever else lies
    /// there was put there: from a copy, which may hold what was deleted since.
    pub(crate) fn owns_nothing(self) -> bool {
        matches!(self, Homecoming::New | Homecoming::Lost | Homecoming::RolledBack)
    }
}

impl Identity {
    /// Locks the directory and reads whose it is. Nothing is written before [`Identity::begin`].
    pub(crate) fn open(disk: Arc<dyn Disk>, cluster: &str, node: NodeId) -> Result<Self, IdentityError> {
        occupied::refuse(&*disk, Some((cluster, node)))?;
        let lock = lock(&*disk)?;
        let remembered = read(&*disk, FILE)?;
        if let Some(found) = &remembered
            && (found.node != node || found.cluster != cluster)
        {
            return Err(IdentityError::Foreign {
                found_node: found.node,
                found_cluster: found.cluster.clone(),
                node,
                cluster: cluster.to_owned(),
            });
        }
        let holds = remembered.as_ref().map(|found| found.holds.clone()).unwrap_or_default();
        Ok(Identity {
            disk,
            cluster: cluster.to_owned(),
            node,
            remembered,
            incarnation: 0,
            births_used: 0,
            stops: 0,
            password_required: false,
            holds,
            unfit: Vec::new(),
            _lock: lock,
        })
    }

    /// Refuses to leave what the directory holds behind: by the next start with its engine others would have forgotten
    /// what they deleted meanwhile, and it would bring that back.
    pub(crate) fn refuse_to_forget(&self) -> Result<(), IdentityError> {
        match self.holds.keys().next() {
            Some(engine) => Err(IdentityError::OtherEngine { engine: engine.clone() }),
            None => Ok(()),
        }
    }

    /// Settles whether Redis clients must give a password from this start on. `may_stop`: whether an operator said that
    /// a directory that remembers one may go on without it. [`Identity::begin`] makes it durable.
    pub(crate) fn require_password(&mut self, has_one: bool, may_stop: bool) -> Result<(), IdentityError> {
        let required_before = self.remembered.as_ref().is_some_and(|found| found.password_required);
        if required_before && !has_one && !may_stop {
            return Err(IdentityError::PasswordMissing { node: self.node });
        }
        self.password_required = has_one;
        Ok(())
    }

    /// Which of the engines are gone, given what was found under their names. One that was never named is new.
    pub(crate) fn gone(&self, found: &[Found]) -> Vec<Gone> {
        let is_gone =
            |(name, found): &&Found| self.holds.get(name).is_some_and(|own| *found != Remains::Whole(*own));
        let gone = found.iter().filter(is_gone);
        gone.map(|(name, found)| Gone { engine: name.clone(), replaced: *found != Remains::Nothing })
            .collect()
    }

    /// How the node comes back by what is known of it, as [`Identity::settle`] would have it.
    pub(crate) fn standing_by(&self, known: KnownMember) -> Homecoming {
        standing(self.remembered.as_ref(), known)
    }

    /// Says how the node comes back, and settles incarnation, births and what is set aside accordingly.
    pub(crate) fn settle(&mut self, known: KnownMember, wall: WallMillis, gone: &[Gone]) -> Homecoming {
        let standing = match standing(self.remembered.as_ref(), known) {
            // What it knows of its births says nothing about records that are not there.
            Homecoming::Stopped { .. } if !gone.is_empty() => Homecoming::Ended,
            standing => standing,
        };
        let own = self.remembered.as_ref().map_or(0, |found| found.incarnation);
        let theirs = if let KnownMember::Member(member) = known { member.incarnation } else { 0 };
        let stopped = self.remembered.as_ref().and_then(|found| found.stopped);
        (self.incarnation, self.births_used) = match standing {
            Homecoming::Stopped { .. } => (own, stopped.map_or(0, |(births, _)| births)),
            // Processes of which the service never heard had incarnations by this node's clock, which may have gone back.
            Homecoming::Lost | Homecoming::RolledBack => (wall.0.max(theirs + 1) + LEAP_MS, 0),
            Homecoming::New | Homecoming::Ended => (wall.0.max(own.max(theirs) + 1), 0),
        };
        self.stops = if let Homecoming::Stopped { stop } = standing { stop } else { 0 };
        if standing.owns_nothing() {
            self.unfit = ["stores", "hints"].map(str::to_owned).into();
            self.holds.clear();
        } else {
            self.unfit = gone.iter().filter(|gone| gone.replaced).map(|gone| gone.engine.clone()).collect();
            self.holds.retain(|name, _| gone.iter().all(|gone| gone.engine != *name));
        }
        standing
    }

    /// Sets aside, durably, what must not be served any more; says into which directory, if there was anything.
    pub(crate) async fn set_aside(&self) -> Result<Option<String>, DiskError> {
        let directory = format!("set-aside-{}", self.incarnation);
        let mut changed = Vec::new();
        for name in &self.unfit {
            // A rename of what is not there may leave the target's directory behind.
            let own = name.rsplit('/').next();
            if !self.disk.list(&above(name))?.iter().any(|found| Some(&**found) == own) {
                continue;
            }
            let target = format!("{directory}/{name}");
            match self.disk.rename(name, &target) {
                Ok(()) => changed.extend([above(&target), above(name)]),
                Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if changed.is_empty() {
            return Ok(None);
        }
        changed.extend([directory.clone(), String::new()]);
        for path in changed {
            self.disk.sync_directory(&path).await?;
        }
        Ok(Some(directory))
    }

    /// Keeps the incarnation under which the node is about to be registered. A process that is killed right after that
    /// is known by it: its session may outlive it.
    pub(crate) async fn announce(&self) -> Result<(), IdentityError> {
        Ok(replace(&*self.disk, ANNOUNCED, format!("incarnation {}\n", self.incarnation)).await?)
    }

    /// The incarnations under which a last process of this directory may be registered.
    pub(crate) fn incarnations_registered(&self) -> Vec<u64> {
        // One that cannot be read, or is half of one, says nothing.
        let announced = file::number(&*self.disk, ANNOUNCED, "incarnation");
        self.incarnation_before().into_iter().chain(announced.ok().flatten()).collect()
    }

    /// Makes the incarnation durable, as one that has not been stopped: before the first write is stamped.
    pub(crate) async fn begin(&self) -> Result<(), IdentityError> {
        Ok(self.write(None).await?)
    }

    /// Names engines that have been opened, so that the next start knows if one of them is gone: before anything is
    /// written to them.
    pub(crate) async fn hold(&mut self, found: Vec<Found>) -> Result<(), DiskError> {
        let before = self.holds.clone();
        self.holds.extend(found.into_iter().filter_map(|(name, found)| match found {
            Remains::Nothing => None,
            Remains::Whole(number) | Remains::Part(number) => Some((name, number)),
        }));
        if self.holds != before { self.write(None).await } else { Ok(()) }
    }

    /// The incarnation to stamp under.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The incarnation under which the directory was last begun.
    pub(crate) fn incarnation_before(&self) -> Option<u64> {
        self.remembered.as_ref().map(|found| found.incarnation)
    }

    /// Births that the incarnation had used when it was last stopped cleanly.
    pub(crate) fn births_used(&self) -> u64 {
        self.births_used
    }

    /// Remembers a clean stop: call it after all stores are closed.
    pub(crate) async fn close(self, births_used: u64) -> Result<(), IdentityError> {
        let stop = self.stops.saturating_add(1);
        Ok(self.write(Some((births_used, stop))).await?)
    }

    async fn write(&self, stopped: Option<(u64, u64)>) -> Result<(), DiskError> {
        let mut text = format!(
            "tontine-identity {FORMAT}\ncluster {}\nnode {}\nincarnation {}\n",
            self.cluster, self.node.0, self.incarnation
        );
        if self.password_required {
            text.push_str("password required\n");
        }
        for (name, number) in &self.holds {
            text.push_str(&format!("holds {number:016x} {name}\n"));
        }
        if let Some((births, stop)) = stopped {
            text.push_str(&format!("births {births}\nstop {stop}\n"));
        }
        replace(&*self.disk, FILE, text).await
    }
}

fn above(path: &str) -> String {
    path.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned()
}

fn standing(remembered: Option<&Remembered>, known: KnownMember) -> Homecoming {
    match (remembered, known) {
        // Whether it never was is for the service to say; without it such a node does not start.
        (None, KnownMember::Member(_) | KnownMember::Unavailable) => Homecoming::Lost,
        (None, KnownMember::Nothing) => Homecoming::New,
        (Some(found), KnownMember::Member(member)) => {
            // Stops of one incarnation are numbered; each is come back from once.
            let is_spent = |stop| member.redeemed.is_some_and(|redeemed| stop <= redeemed);
            let stop = found.stopped.map(|(_, stop)| stop);
            let spent = found.incarnation == member.incarnation && stop.is_some_and(is_spent);
            match stop {
                _ if found.incarnation < member.incarnation || spent => Homecoming::RolledBack,
                Some(stop) => Homecoming::Stopped { stop },
                None => Homecoming::Ended,
            }
        }
        (Some(Remembered { stopped: Some((_, stop)), .. }), KnownMember::Nothing) => {
            Homecoming::Stopped { stop: *stop }
        }
        // A stop that cannot be redeemed now might have been redeemed before.
        (Some(_), KnownMember::Nothing | KnownMember::Unavailable) => Homecoming::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(incarnation: u64, stopped: Option<u64>) -> Option<Remembered> {
        Some(Remembered {
            cluster: "dev".to_owned(),
            node: NodeId(1),
            incarnation,
            password_required: false,
            holds: Holds::new(),
            stopped: stopped.map(|stop| (5, stop)),
        })
    }

    fn member(incarnation: u64, redeemed: Option<u64>) -> KnownMember {
        KnownMember::Member(Member { incarnation, redeemed })
    }

    /// Only its first 64 KiB were read once: the node did not start any more.
    #[tokio::test]
    async fn an_identity_that_names_thousands_of_engines_is_read_whole() {
        let disk = Arc::new(runtime::disk::simulated::SimulatedDisk::new(1));
        let mut identity = Identity::open(disk.clone(), "dev", NodeId(1)).unwrap();
        identity.settle(KnownMember::Nothing, WallMillis(7), &[]);
        identity.begin().await.unwrap();
        let engine = |number: u64| (format!("stores/{number:060}"), Remains::Whole(number));
        identity.hold((0..5000).map(engine).collect()).await.unwrap();
        drop(identity);
        let identity = Identity::open(disk, "dev", NodeId(1)).unwrap();
        assert_eq!(identity.holds.len(), 5000);
    }

    #[test]
    fn a_node_with_a_lost_disk_skips_incarnations_that_the_service_may_have_missed() {
        let disk = Arc::new(runtime::disk::simulated::SimulatedDisk::new(1));
        let mut identity = Identity::open(disk, "dev", NodeId(1)).unwrap();
        // While the service was away a process of this node had 8, by a clock that was right; then it went back.
        let standing = identity.settle(member(7, None), WallMillis(5), &[]);
        assert_eq!((standing, identity.incarnation()), (Homecoming::Lost, 8 + LEAP_MS));
    }

    /// An older copy once passed for the disk: only the last stop that was redeemed was known, not which came before.
    #[tokio::test]
    async fn a_copy_from_any_earlier_clean_stop_is_recognised() {
        let disk = Arc::new(runtime::disk::simulated::SimulatedDisk::new(1));
        let (mut known, mut copies) = (KnownMember::Nothing, Vec::new());
        for life in 0..4 {
            let mut identity = Identity::open(disk.clone(), "dev", NodeId(1)).unwrap();
            let standing = identity.settle(known, WallMillis(7), &[]);
            let redeemed = match standing {
                Homecoming::Stopped { stop } => Some(stop),
                other => {
                    assert_eq!((other, life), (Homecoming::New, 0));
                    None
                }
            };
            known = member(identity.incarnation(), redeemed);
            identity.begin().await.unwrap();
            identity.close(5).await.unwrap();
            copies.push(read(&*disk, FILE).unwrap());
        }
        let standings = copies.iter().map(|copy| standing(copy.as_ref(), known));
        let own = Homecoming::Stopped { stop: 4 };
        let expected = [Homecoming::RolledBack, Homecoming::RolledBack, Homecoming::RolledBack, own];
        assert_eq!(standings.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_nodes_homecoming_depends_on_its_directory_and_its_member_document() {
        let cases = [
            (None, KnownMember::Nothing, Homecoming::New),
            (None, member(7, None), Homecoming::Lost),
            (found(7, None), member(7, None), Homecoming::Ended),
            (found(8, None), member(7, None), Homecoming::Ended),
            (found(6, None), member(7, None), Homecoming::RolledBack),
            (found(7, Some(9)), member(7, None), Homecoming::Stopped { stop: 9 }),
            (found(7, Some(9)), member(7, Some(8)), Homecoming::Stopped { stop: 9 }),
            (found(7, Some(9)), member(7, Some(9)), Homecoming::RolledBack),
            (found(7, Some(4)), member(7, Some(9)), Homecoming::RolledBack),
            (found(8, Some(1)), member(7, Some(9)), Homecoming::Stopped { stop: 1 }),
            (found(6, Some(9)), member(7, None), Homecoming::RolledBack),
            (found(7, Some(9)), KnownMember::Nothing, Homecoming::Stopped { stop: 9 }),
            (found(7, Some(9)), KnownMember::Unavailable, Homecoming::Ended),
            (found(7, None), KnownMember::Unavailable, Homecoming::Ended),
        ];
        for (found, known, expected) in cases {
            assert_eq!(standing(found.as_ref(), known), expected, "{known:?}");
        }
    }
}
