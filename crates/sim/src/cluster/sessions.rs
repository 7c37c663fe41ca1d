//! Sessions with the coordination service, as a planted bug has them.

use async_trait::async_trait;
use bytes::Bytes;
use coordination::{CoordinationError, CreateMode, Document, DocumentPath, SessionId, Stat, Watch};

use model::plan::PlanState;

use super::*;

/// How long a planted session takes from a decision to its write, as a network does.
const ON_THE_WAY: Duration = Duration::from_millis(100);
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

impl World {
    /// Opens a session for a node or a headmaster.
    pub fn session(&self) -> Arc<dyn CoordinationService> {
        self.planted(Arc::new(self.service.open()))
    }

    /// The session, or what a planted bug makes of it.
    pub(crate) fn planted(&self, session: Arc<dyn CoordinationService>) -> Arc<dyn CoordinationService> {
        match self.setup.plant {
            Some(plant @ (Plant::VersionsIgnored | Plant::PastHidden | Plant::EndedLongAgo)) => {
                let members =
                    self.machines.iter().map(|machine| documents::member_path(machine.id)).collect();
                let (before, executor) = (self.before.clone(), self.executor.clone());
                Arc::new(PlantedSession { session, plant, members, before, executor })
            }
            _ => session,
        }
    }
}

/// What each document held before it was last set.
pub(super) type Before = Arc<Mutex<BTreeMap<DocumentPath, [Option<Bytes>; 2]>>>;

struct PlantedSession {
    session: Arc<dyn CoordinationService>,
    plant: Plant,
    /// Where nodes remember that they were.
    members: Vec<DocumentPath>,
    before: Before,
    executor: Arc<Executor>,
}

impl PlantedSession {
    fn hides(&self, path: &DocumentPath) -> bool {
        self.plant == Plant::PastHidden && self.members.contains(path)
    }

    fn note(&self, path: &DocumentPath, data: &Bytes) {
        if self.hides(path) {
            let mut before = self.before.lock();
            let entry = before.entry(path.clone()).or_default();
            *entry = [entry[1].take(), Some(data.clone())];
        }
    }
}

/// Planted: a plan that has ended did so a day ago.
fn long_ago(path: &DocumentPath, data: &mut Bytes) {
    if !path.to_string().ends_with("/state") {
        return;
    }
    if let Ok(mut state) = serde_json::from_slice::<PlanState>(data) {
        state.ended_ms = state.ended_ms.map(|ended| ended.saturating_sub(DAY_MS));
        *data = serde_json::to_vec(&state).expect("a state can be written").into();
    }
}

#[async_trait]
impl CoordinationService for PlantedSession {
    fn session(&self) -> SessionId {
        self.session.session()
    }

    fn session_timeout(&self) -> Duration {
        self.session.session_timeout()
    }

    async fn reopen(&self) -> Result<Arc<dyn CoordinationService>, CoordinationError> {
        let session = self.session.reopen().await?;
        let (members, before, executor) = (self.members.clone(), self.before.clone(), self.executor.clone());
        Ok(Arc::new(PlantedSession { session, plant: self.plant, members, before, executor }))
    }

    async fn create(
        &self,
        path: &DocumentPath,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<DocumentPath, CoordinationError> {
        let created = self.session.create(path, data.clone(), mode).await?;
        self.note(path, &data);
        Ok(created)
    }

    async fn get(&self, path: &DocumentPath) -> Result<Document, CoordinationError> {
        let mut document = self.session.get(path).await?;
        if self.plant == Plant::EndedLongAgo {
            long_ago(path, &mut document.data);
        }
        if !self.hides(path) {
            return Ok(document);
        }
        let before = self.before.lock().get(path).and_then(|[before, _]| before.clone());
        match before {
            Some(data) => Ok(Document { data, ..document }),
            None => Err(CoordinationError::NoNode { path: path.clone() }),
        }
    }

    async fn set(
        &self,
        path: &DocumentPath,
        data: Bytes,
        expected: Expected,
    ) -> Result<Stat, CoordinationError> {
        let mut expected = expected;
        if self.plant == Plant::VersionsIgnored {
            self.executor.sleep(ON_THE_WAY).await;
            expected = Expected::Any;
        }
        let stat = self.session.set(path, data.clone(), expected).await?;
        self.note(path, &data);
        Ok(stat)
    }

    async fn delete(&self, path: &DocumentPath, expected: Expected) -> Result<(), CoordinationError> {
        self.session.delete(path, expected).await
    }

    async fn children(&self, path: &DocumentPath) -> Result<Vec<String>, CoordinationError> {
        self.session.children(path).await
    }

    async fn get_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Option<Document>, Watch), CoordinationError> {
        self.session.get_and_watch(path).await
    }

    async fn children_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Vec<String>, Watch), CoordinationError> {
        self.session.children_and_watch(path).await
    }

    async fn lost(&self) {
        self.session.lost().await;
    }

    async fn close(&self) -> Result<(), CoordinationError> {
        self.session.close().await
    }
}
