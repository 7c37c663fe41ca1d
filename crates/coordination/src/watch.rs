//! One-shot watches, and the registry that an implementation keeps of them.
//!
//! A watch is handed out together with what was read and fires once, on the first change after that. Whoever wants
//! to follow a document reads and watches again: what happened in between is in what is read then, so nothing is
//! lost, however slow the reader. This is exactly what ZooKeeper offers in one round trip.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::tree::Tree;
use crate::{CoordinationError, DocumentPath, Event, EventKind};

/// Fires once. Dropping it ends the interest.
#[derive(Debug)]
pub struct Watch {
    event: oneshot::Receiver<Event>,
}

/// The other end of a [`Watch`], for implementations. Dropping it tells the watcher that the session has ended.
#[derive(Debug)]
pub struct WatchTrigger {
    event: oneshot::Sender<Event>,
}

impl Watch {
    /// A watch and its trigger.
    pub fn new() -> (WatchTrigger, Watch) {
        let (sender, receiver) = oneshot::channel();
        (WatchTrigger { event: sender }, Watch { event: receiver })
    }

    /// Completes with the first change; whoever reads after that reads the change or something newer.
    ///
    /// # Errors
    /// [`CoordinationError::SessionLost`] when the session ended first.
    pub async fn fired(self) -> Result<Event, CoordinationError> {
        self.event.await.map_err(|_| CoordinationError::SessionLost)
    }

    /// Whether it has fired, without waiting.
    pub fn has_fired(&self) -> bool {
        !self.event.is_empty()
    }
}

impl WatchTrigger {
    /// Fires the watch.
    pub fn fire(self, event: Event) {
        // A watcher that lost interest is gone.
        let _ = self.event.send(event);
    }

    /// Completes when nobody waits any more.
    pub async fn abandoned(&mut self) {
        self.event.closed().await;
    }

    /// Whether nobody waits any more.
    pub fn is_abandoned(&self) -> bool {
        self.event.is_closed()
    }
}

/// The watches of one session. Dropping it tells all watchers that the session has ended.
#[derive(Debug, Default)]
pub(crate) struct WatchRegistry {
    documents: BTreeMap<DocumentPath, Vec<WatchTrigger>>,
    lists: BTreeMap<DocumentPath, Vec<WatchTrigger>>,
}

impl WatchRegistry {
    /// Watches a document.
    pub(crate) fn watch_document(&mut self, path: &DocumentPath) -> Watch {
        register(&mut self.documents, path)
    }

    /// Watches the list of a document's children.
    pub(crate) fn watch_list(&mut self, path: &DocumentPath) -> Watch {
        register(&mut self.lists, path)
    }

    /// Fires what a change of one document concerns: its own watches and its parent's list.
    pub(crate) fn fire(&mut self, changed: &Event) {
        fire_all(&mut self.documents, &changed.path, changed.kind);
        match changed.kind {
            EventKind::Changed | EventKind::ChildrenChanged => {}
            EventKind::Created => self.fire_parent(&changed.path),
            EventKind::Deleted => {
                fire_all(&mut self.lists, &changed.path, EventKind::Deleted);
                self.fire_parent(&changed.path);
            }
        }
    }

    /// Whether a change of one document would fire anything.
    pub(crate) fn concerns(&self, changed: &Event) -> bool {
        let parent = || changed.path.parent().is_some_and(|parent| self.lists.contains_key(&parent));
        self.documents.contains_key(&changed.path)
            || match changed.kind {
                EventKind::Changed | EventKind::ChildrenChanged => false,
                EventKind::Created => parent(),
                EventKind::Deleted => self.lists.contains_key(&changed.path) || parent(),
            }
    }

    fn fire_parent(&mut self, path: &DocumentPath) {
        if let Some(parent) = path.parent() {
            fire_all(&mut self.lists, &parent, EventKind::ChildrenChanged);
        }
    }

    /// Fires what differs between the tree that the watchers saw and the tree as it is, for when the changes
    /// between the two are not known one by one.
    pub(crate) fn fire_differences(&mut self, seen: &Tree, now: &Tree) {
        let documents: Vec<DocumentPath> = self.documents.keys().cloned().collect();
        for path in documents {
            let kind = match (seen.stat(&path), now.stat(&path)) {
                (None, Some(_)) => EventKind::Created,
                (Some(before), Some(after)) if before == after => continue,
                (Some(before), Some(after)) if before.created == after.created => EventKind::Changed,
                (Some(_), _) => EventKind::Deleted,
                (None, None) => continue,
            };
            fire_all(&mut self.documents, &path, kind);
        }
        let lists: Vec<DocumentPath> = self.lists.keys().cloned().collect();
        for path in lists {
            let (before, after) = (seen.stat(&path), now.stat(&path));
            if before.map(|stat| stat.created) != after.map(|stat| stat.created) {
                fire_all(&mut self.lists, &path, EventKind::Deleted);
            } else if seen.list_version(&path) != now.list_version(&path) {
                fire_all(&mut self.lists, &path, EventKind::ChildrenChanged);
            }
        }
    }

    /// Fires every watch, for when nobody knows what changed: the watchers read again.
    pub(crate) fn fire_everything(&mut self) {
        let documents: Vec<DocumentPath> = self.documents.keys().cloned().collect();
        documents.iter().for_each(|path| fire_all(&mut self.documents, path, EventKind::Changed));
        let lists: Vec<DocumentPath> = self.lists.keys().cloned().collect();
        lists.iter().for_each(|path| fire_all(&mut self.lists, path, EventKind::ChildrenChanged));
    }

    /// Whether nobody watches anything; forgets watches whose watchers are gone.
    pub(crate) fn is_idle(&mut self) -> bool {
        for watched in [&mut self.documents, &mut self.lists] {
            watched.retain(|_, triggers| {
                triggers.retain(|trigger| !trigger.is_abandoned());
                !triggers.is_empty()
            });
        }
        self.documents.is_empty() && self.lists.is_empty()
    }
}

fn register(watched: &mut BTreeMap<DocumentPath, Vec<WatchTrigger>>, path: &DocumentPath) -> Watch {
    let (trigger, watch) = Watch::new();
    let triggers = watched.entry(path.clone()).or_default();
    // Whoever watches the same document again and again without waiting must not fill the memory.
    triggers.retain(|trigger| !trigger.is_abandoned());
    triggers.push(trigger);
    watch
}

fn fire_all(watched: &mut BTreeMap<DocumentPath, Vec<WatchTrigger>>, path: &DocumentPath, kind: EventKind) {
    for trigger in watched.remove(path).unwrap_or_default() {
        trigger.fire(Event { path: path.clone(), kind });
    }
}
