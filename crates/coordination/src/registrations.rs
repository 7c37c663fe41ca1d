//! Follows who is active, at a price for each change and not for each node.
//!
//! A node that comes costs its follower one list and one reading, one that goes one list, and one that changes its own
//! registration one reading. [`crate::documents::active_nodes`] reads all of them, which is right for a command that
//! looks once.
//!
//! Nodes do not follow each other so: they gossip. Only a headmaster does, so no event makes all nodes read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use model::NodeId;

use crate::documents::{ActiveNode, ReadError, active_node_path, active_path, create_parents, parse_active};
use crate::{CoordinationError, CoordinationService, Event, Watch};

/// What was watched.
enum Watched {
    /// Which registrations there are.
    List,
    /// One registration.
    Entry(String),
}

type Fired = (Watched, Result<Event, CoordinationError>);

/// Follows the registrations of active nodes. Made anew with each session.
pub struct Registrations {
    service: Arc<dyn CoordinationService>,
    /// Each registration by its name; `None` while it cannot be understood.
    entries: BTreeMap<String, Option<ActiveNode>>,
    watches: FuturesUnordered<BoxFuture<'static, Fired>>,
    /// Whether the list must be read again.
    list_is_old: bool,
    /// Registrations that must be read again.
    old: BTreeSet<String>,
    /// Whether the caller has not seen what is known.
    news: bool,
}

impl Registrations {
    /// Follows them through this session.
    pub fn new(service: Arc<dyn CoordinationService>) -> Registrations {
        Registrations {
            service,
            entries: BTreeMap::new(),
            watches: FuturesUnordered::new(),
            list_is_old: true,
            old: BTreeSet::new(),
            news: true,
        }
    }

    /// All active nodes, at once the first time, and then as soon as one has come, gone or changed. A registration
    /// that cannot be understood is left out, and named in the log. Cancel safe.
    ///
    /// # Errors
    /// [`CoordinationError::SessionLost`] is final; after any other call again, with a pause.
    pub async fn next(&mut self) -> Result<Vec<ActiveNode>, ReadError> {
        loop {
            while let Some(Some(fired)) = self.watches.next().now_or_never() {
                self.take(fired)?;
            }
            if self.list_is_old {
                self.read_list().await?;
            }
            while let Some(name) = self.old.first().cloned() {
                self.read_entry(&name).await?;
            }
            if std::mem::take(&mut self.news) {
                return Ok(self.known());
            }
            if let Some(fired) = self.watches.next().await {
                self.take(fired)?;
            }
        }
    }

    /// All active nodes as they were last seen, sorted by id.
    pub fn known(&self) -> Vec<ActiveNode> {
        let known: BTreeMap<NodeId, &ActiveNode> =
            self.entries.values().flatten().map(|active| (active.node.id, active)).collect();
        known.into_values().cloned().collect()
    }

    fn take(&mut self, (watched, fired): Fired) -> Result<(), CoordinationError> {
        match watched {
            Watched::List => self.list_is_old = true,
            Watched::Entry(name) => {
                if self.entries.contains_key(&name) {
                    self.old.insert(name);
                }
            }
        }
        fired.map(|_| ())
    }

    fn watch(&mut self, watched: Watched, watch: Watch) {
        self.watches.push(Box::pin(async move { (watched, watch.fired().await) }));
    }

    async fn read_list(&mut self) -> Result<(), CoordinationError> {
        let path = active_path();
        let (names, watch) = match self.service.children_and_watch(&path).await {
            Err(CoordinationError::NoNode { .. }) => {
                create_parents(&*self.service, &active_node_path(NodeId(0))).await?;
                self.service.children_and_watch(&path).await?
            }
            other => other?,
        };
        self.watch(Watched::List, watch);
        self.list_is_old = false;
        let names: BTreeSet<String> = names.into_iter().collect();
        let before = self.entries.len();
        self.entries.retain(|name, _| names.contains(name));
        self.old.retain(|name| names.contains(name));
        self.news |= self.entries.len() < before;
        let fresh = names.into_iter().filter(|name| !self.entries.contains_key(name));
        self.old.extend(fresh);
        Ok(())
    }

    async fn read_entry(&mut self, name: &str) -> Result<(), CoordinationError> {
        if let Ok(path) = active_path().child(name) {
            let (found, watch) = self.service.get_and_watch(&path).await?;
            match found {
                Some(document) => {
                    let parsed = parse_active(&path, &document.data);
                    if let Err(error) = &parsed {
                        tracing::warn!(%error, "registration not understood");
                    }
                    self.entries.insert(name.to_owned(), parsed.ok());
                    self.watch(Watched::Entry(name.to_owned()), watch);
                }
                None => {
                    self.entries.remove(name);
                }
            }
            self.news = true;
        }
        self.old.remove(name);
        Ok(())
    }
}
