//! The documents themselves, and the rules by which they change. Pure: both implementations here stand on it.
//!
//! Changing takes two steps, so that a change can be made durable in between: `plan_…` checks a wish against the
//! tree and turns it into a [`TreeChange`]; [`Tree::apply`] carries it out. Applying the same changes in the same order
//! to the same tree gives the same tree, in every process.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::{
    CoordinationError, CreateMode, CreationOrder, DOCUMENT_BYTES_MAX, Document, DocumentPath,
    DocumentVersion, Event, EventKind, Expected, SessionId, Stat,
};

/// One thing that happened to the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TreeChange {
    /// A document came to be.
    Created { path: DocumentPath, data: Bytes, owner: Option<SessionId> },
    /// A document was set.
    Set { path: DocumentPath, data: Bytes },
    /// A document without children was deleted.
    Deleted { path: DocumentPath },
    /// A session began.
    SessionOpened { session: SessionId },
    /// A session ended: its ephemeral documents are deleted.
    SessionEnded { session: SessionId },
}

/// One document and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) data: Bytes,
    pub(crate) version: DocumentVersion,
    pub(crate) created: CreationOrder,
    pub(crate) owner: Option<SessionId>,
    /// How many children were ever created below: the number of the next sequential one.
    pub(crate) sequence: u64,
    /// Changes of the list of children.
    pub(crate) list_version: u64,
    /// Names of the children. Empty for ephemeral documents.
    children: BTreeSet<String>,
}

impl Entry {
    /// A document without children, as a snapshot describes it.
    pub(crate) fn new(data: Bytes, stat: Stat, sequence: u64, list_version: u64) -> Entry {
        let Stat { version, created, owner } = stat;
        Entry { data, version, created, owner, sequence, list_version, children: BTreeSet::new() }
    }

    /// The same without its children, which a snapshot describes on their own.
    pub(crate) fn without_children(&self) -> Entry {
        Entry::new(self.data.clone(), self.stat(), self.sequence, self.list_version)
    }

    pub(crate) fn stat(&self) -> Stat {
        Stat { version: self.version, created: self.created, owner: self.owner }
    }
}

/// All documents and sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Changes applied so far; orders creations and numbers sessions.
    order: u64,
    /// Every document, parents before their children. The root is always there.
    entries: BTreeMap<DocumentPath, Entry>,
    /// Open sessions with the ephemeral documents that each owns.
    sessions: BTreeMap<SessionId, BTreeSet<DocumentPath>>,
}

impl Tree {
    /// A tree that holds nothing but its root.
    pub(crate) fn new() -> Tree {
        let stat = Stat { version: DocumentVersion(0), created: CreationOrder(0), owner: None };
        let root = Entry::new(Bytes::new(), stat, 0, 0);
        Tree { order: 0, entries: BTreeMap::from([(DocumentPath::root(), root)]), sessions: BTreeMap::new() }
    }

    /// Changes applied so far.
    pub(crate) fn order(&self) -> u64 {
        self.order
    }

    /// Every document, parents before their children.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&DocumentPath, &Entry)> {
        self.entries.iter()
    }

    /// Every open session, and whether it owns ephemeral documents.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (SessionId, bool)> {
        self.sessions.iter().map(|(session, owned)| (*session, !owned.is_empty()))
    }

    /// Whether a session is open.
    pub(crate) fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// The id that the next session gets if it is opened now: never given before, as every opening is a change.
    pub(crate) fn next_session(&self) -> SessionId {
        SessionId(self.order + 1)
    }

    pub(crate) fn stat(&self, path: &DocumentPath) -> Option<Stat> {
        self.entries.get(path).map(Entry::stat)
    }

    pub(crate) fn list_version(&self, path: &DocumentPath) -> Option<u64> {
        self.entries.get(path).map(|entry| entry.list_version)
    }

    pub(crate) fn get(&self, path: &DocumentPath) -> Result<Document, CoordinationError> {
        let entry = self.entry(path)?;
        Ok(Document { data: entry.data.clone(), stat: entry.stat() })
    }

    pub(crate) fn children(&self, path: &DocumentPath) -> Result<Vec<String>, CoordinationError> {
        Ok(self.entry(path)?.children.iter().cloned().collect())
    }

    fn entry(&self, path: &DocumentPath) -> Result<&Entry, CoordinationError> {
        self.entries.get(path).ok_or_else(|| CoordinationError::NoNode { path: path.clone() })
    }

    /// Checks a creation by `session`.
    pub(crate) fn plan_create(
        &self,
        session: SessionId,
        path: &DocumentPath,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<TreeChange, CoordinationError> {
        self.check_session(session)?;
        check_size(path, &data)?;
        let Some(above) = path.parent() else {
            return Err(CoordinationError::NodeExists { path: path.clone() });
        };
        let Some(parent) = self.entries.get(&above) else {
            return Err(CoordinationError::NoParent { path: path.clone() });
        };
        if parent.owner.is_some() {
            return Err(CoordinationError::NoChildrenForEphemerals { path: path.clone() });
        }
        let path = if mode.is_sequential() { path.numbered(parent.sequence) } else { path.clone() };
        if self.entries.contains_key(&path) {
            return Err(CoordinationError::NodeExists { path });
        }
        Ok(TreeChange::Created { path, data, owner: mode.is_ephemeral().then_some(session) })
    }

    /// Checks a new content.
    pub(crate) fn plan_set(
        &self,
        session: SessionId,
        path: &DocumentPath,
        data: Bytes,
        expected: Expected,
    ) -> Result<TreeChange, CoordinationError> {
        self.check_session(session)?;
        check_size(path, &data)?;
        check_version(path, self.entry(path)?, expected)?;
        Ok(TreeChange::Set { path: path.clone(), data })
    }

    /// Checks a deletion.
    pub(crate) fn plan_delete(
        &self,
        session: SessionId,
        path: &DocumentPath,
        expected: Expected,
    ) -> Result<TreeChange, CoordinationError> {
        self.check_session(session)?;
        let entry = self.entry(path)?;
        check_version(path, entry, expected)?;
        if path.is_root() || !entry.children.is_empty() {
            return Err(CoordinationError::NotEmpty { path: path.clone() });
        }
        Ok(TreeChange::Deleted { path: path.clone() })
    }

    /// Refuses a session that has ended.
    pub(crate) fn check_session(&self, session: SessionId) -> Result<(), CoordinationError> {
        if self.has_session(session) { Ok(()) } else { Err(CoordinationError::SessionLost) }
    }

    /// Carries out a change that was planned on this very state, and notes what watchers want to know.
    ///
    /// # Panics
    /// When the change does not fit: a planned change always does.
    pub(crate) fn apply(&mut self, change: &TreeChange, events: &mut Vec<Event>) {
        self.order += 1;
        match change {
            TreeChange::Created { path, data, owner } => self.insert(path, data, *owner, events),
            TreeChange::Set { path, data } => {
                let entry = self.entries.get_mut(path).expect("only existing documents are set");
                entry.data = data.clone();
                entry.version.0 += 1;
                events.push(Event { path: path.clone(), kind: EventKind::Changed });
            }
            TreeChange::Deleted { path } => self.remove(path, events),
            TreeChange::SessionOpened { session } => {
                self.sessions.insert(*session, BTreeSet::new());
            }
            TreeChange::SessionEnded { session } => {
                for path in self.sessions.get(session).cloned().unwrap_or_default() {
                    self.remove(&path, events);
                }
                self.sessions.remove(session);
            }
        }
    }

    /// Whether a change read from outside can be applied.
    pub(crate) fn accepts(&self, change: &TreeChange) -> bool {
        match change {
            TreeChange::Created { path, owner, .. } => {
                let parent = path.parent().and_then(|parent| self.entries.get(&parent));
                parent.is_some_and(|parent| parent.owner.is_none())
                    && !self.entries.contains_key(path)
                    && owner.is_none_or(|owner| self.has_session(owner))
            }
            TreeChange::Set { path, .. } => self.entries.contains_key(path),
            TreeChange::Deleted { path } => {
                !path.is_root() && self.entries.get(path).is_some_and(|entry| entry.children.is_empty())
            }
            TreeChange::SessionOpened { session } => !self.has_session(*session),
            TreeChange::SessionEnded { session } => self.has_session(*session),
        }
    }

    fn insert(
        &mut self,
        path: &DocumentPath,
        data: &Bytes,
        owner: Option<SessionId>,
        events: &mut Vec<Event>,
    ) {
        let stat = Stat { version: DocumentVersion(0), created: CreationOrder(self.order), owner };
        let parent = path.parent().and_then(|parent| self.entries.get_mut(&parent));
        let parent = parent.expect("only documents with a parent are created");
        parent.children.insert(path.name().to_owned());
        parent.sequence += 1;
        parent.list_version += 1;
        let replaced = self.entries.insert(path.clone(), Entry::new(data.clone(), stat, 0, 0));
        assert!(replaced.is_none(), "document {path} was created twice");
        if let Some(owner) = owner {
            let owned = self.sessions.get_mut(&owner).expect("only open sessions own documents");
            owned.insert(path.clone());
        }
        events.push(Event { path: path.clone(), kind: EventKind::Created });
    }

    fn remove(&mut self, path: &DocumentPath, events: &mut Vec<Event>) {
        let entry = self.entries.remove(path).expect("only existing documents are deleted");
        assert!(entry.children.is_empty(), "document {path} was deleted with children");
        let parent = path.parent().and_then(|parent| self.entries.get_mut(&parent));
        let parent = parent.expect("every document has a parent");
        parent.children.remove(path.name());
        parent.list_version += 1;
        if let Some(owned) = entry.owner.and_then(|owner| self.sessions.get_mut(&owner)) {
            owned.remove(path);
        }
        events.push(Event { path: path.clone(), kind: EventKind::Deleted });
    }

    /// Rebuilds a tree from a snapshot: begin with this, add every entry in order, then the tree is complete.
    /// `None` when the sessions are not what `order` allows.
    pub(crate) fn restored(order: u64, sessions: &[SessionId]) -> Option<Tree> {
        let fits = sessions.iter().all(|session| session.0 <= order);
        let sessions = sessions.iter().map(|session| (*session, BTreeSet::new())).collect();
        fits.then(|| Tree { order, sessions, ..Tree::new() })
    }

    /// Adds one document of a snapshot; `false` when it does not fit.
    pub(crate) fn restore_entry(&mut self, path: &DocumentPath, entry: Entry) -> bool {
        if let Some(owner) = entry.owner {
            let Some(owned) = self.sessions.get_mut(&owner) else { return false };
            owned.insert(path.clone());
        }
        match path.parent() {
            Some(above) => {
                let Some(parent) = self.entries.get_mut(&above) else { return false };
                parent.children.insert(path.name().to_owned());
                self.entries.insert(path.clone(), entry).is_none()
            }
            None => {
                self.entries.insert(path.clone(), entry);
                true
            }
        }
    }
}

/// Refuses a document over the limit.
pub(crate) fn check_size(path: &DocumentPath, data: &Bytes) -> Result<(), CoordinationError> {
    if data.len() > DOCUMENT_BYTES_MAX {
        return Err(CoordinationError::TooLarge { path: path.clone(), bytes: data.len() });
    }
    Ok(())
}

fn check_version(path: &DocumentPath, entry: &Entry, expected: Expected) -> Result<(), CoordinationError> {
    match expected {
        Expected::Version(version) if version != entry.version => {
            Err(CoordinationError::BadVersion { path: path.clone() })
        }
        Expected::Version(_) | Expected::Any => Ok(()),
    }
}
