//! Plays programs against services in memory, one call of a service at a time, in any order and with any call going
//! wrong.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use coordination::memory::{MemoryService, MemorySession};
use coordination::{
    CoordinationError, CoordinationService, CreateMode, Document, DocumentPath, Expected, SessionId, Stat,
    Watch,
};
use parking_lot::Mutex;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call is not carried out, and its session with it is over: its program has ended.
    Crash,
    /// A write is carried out, and nobody says so.
    Unconfirmed,
    /// A write is not carried out, and nobody says so.
    Lost,
}

/// Which call of a program goes wrong, counted from 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) call: usize,
    pub(crate) fault: Fault,
}

/// What the sessions of one program share.
#[derive(Default)]
pub(crate) struct Program {
    calls: Mutex<usize>,
    crashed: Mutex<bool>,
    plan: Option<Plan>,
}

impl Program {
    pub(crate) fn new(plan: Option<Plan>) -> Arc<Program> {
        Arc::new(Program { plan, ..Program::default() })
    }

    /// How many calls it made.
    pub(crate) fn calls(&self) -> usize {
        *self.calls.lock()
    }

    fn crashed(&self) -> bool {
        *self.crashed.lock()
    }

    /// A session of this program.
    pub(crate) fn open(self: &Arc<Self>, service: &MemoryService) -> Stepped {
        Stepped { inner: service.open(), program: self.clone() }
    }

    /// Waits for its turn, and says what becomes of the call.
    async fn turn(&self) -> Option<Fault> {
        let mut asked = false;
        poll_fn(|_| if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending }).await;
        let number = {
            let mut calls = self.calls.lock();
            *calls += 1;
            *calls - 1
        };
        match self.plan {
            Some(Plan { call, fault: Fault::Crash }) if call == number => {
                *self.crashed.lock() = true;
                std::future::pending().await
            }
            Some(Plan { call, fault }) if call == number => Some(fault),
            _ => None,
        }
    }
}

/// A session whose calls wait for their turn.
pub(crate) struct Stepped {
    inner: MemorySession,
    program: Arc<Program>,
}

impl Stepped {
    async fn write<T>(
        &self,
        carried_out: impl Future<Output = Result<T, CoordinationError>>,
    ) -> Result<T, CoordinationError> {
        let fault = self.program.turn().await;
        match fault {
            None => carried_out.await,
            Some(Fault::Lost) => Err(CoordinationError::Indeterminate { reason: "lost".to_owned() }),
            Some(_) => {
                let _ = carried_out.await;
                Err(CoordinationError::Indeterminate { reason: "unconfirmed".to_owned() })
            }
        }
    }
}

#[async_trait]
impl CoordinationService for Stepped {
    fn session(&self) -> SessionId {
        self.inner.session()
    }

    fn session_timeout(&self) -> Duration {
        Duration::ZERO
    }

    async fn reopen(&self) -> Result<Arc<dyn CoordinationService>, CoordinationError> {
        self.inner.reopen().await
    }

    async fn create(
        &self,
        path: &DocumentPath,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<DocumentPath, CoordinationError> {
        self.write(self.inner.create(path, data, mode)).await
    }

    async fn get(&self, path: &DocumentPath) -> Result<Document, CoordinationError> {
        self.program.turn().await;
        self.inner.get(path).await
    }

    async fn set(
        &self,
        path: &DocumentPath,
        data: Bytes,
        expected: Expected,
    ) -> Result<Stat, CoordinationError> {
        self.write(self.inner.set(path, data, expected)).await
    }

    async fn delete(&self, path: &DocumentPath, expected: Expected) -> Result<(), CoordinationError> {
        self.write(self.inner.delete(path, expected)).await
    }

    async fn children(&self, path: &DocumentPath) -> Result<Vec<String>, CoordinationError> {
        self.program.turn().await;
        self.inner.children(path).await
    }

    async fn get_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Option<Document>, Watch), CoordinationError> {
        self.program.turn().await;
        self.inner.get_and_watch(path).await
    }

    async fn children_and_watch(
        &self,
        path: &DocumentPath,
    ) -> Result<(Vec<String>, Watch), CoordinationError> {
        self.program.turn().await;
        self.inner.children_and_watch(path).await
    }

    async fn lost(&self) {
        self.inner.lost().await;
    }

    async fn close(&self) -> Result<(), CoordinationError> {
        self.inner.close().await
    }
}

/// A program as it runs.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Lets the program that `choose` names make its next call, until all have ended. `choose` is handed how many are left.
pub(crate) fn play(mut programs: Vec<(Arc<Program>, Running<'_>)>, mut choose: impl FnMut(usize) -> usize) {
    let mut context = Context::from_waker(Waker::noop());
    // Each waits before its first call.
    programs.retain_mut(|(_, running)| running.as_mut().poll(&mut context).is_pending());
    while !programs.is_empty() {
        let chosen = choose(programs.len());
        let (program, running) = &mut programs[chosen];
        if running.as_mut().poll(&mut context).is_ready() || program.crashed() {
            drop(programs.remove(chosen));
        }
    }
}

/// Plays one program alone. `None` when its plan has ended it.
pub(crate) fn play_alone<T>(program: &Arc<Program>, running: impl Future<Output = T>) -> Option<T> {
    let mut ended = None;
    play(vec![(program.clone(), Box::pin(async { ended = Some(running.await) }))], |_| 0);
    ended
}

/// Every way in which choices can be made, one after another: a tree whose branches are known as they are met.
#[derive(Default)]
pub(crate) struct Choices {
    /// What was chosen at each place, and among how many.
    path: Vec<(usize, usize)>,
    at: usize,
    begun: bool,
}

impl Choices {
    /// Goes to the next way. False when there is none left.
    pub(crate) fn advance(&mut self) -> bool {
        self.at = 0;
        if !std::mem::replace(&mut self.begun, true) {
            return true;
        }
        while let Some((chosen, among)) = self.path.pop() {
            if chosen + 1 < among {
                self.path.push((chosen + 1, among));
                return true;
            }
        }
        false
    }

    /// Chooses one of `among`.
    pub(crate) fn choose(&mut self, among: usize) -> usize {
        if self.at == self.path.len() {
            self.path.push((0, among));
        }
        let (chosen, known) = self.path[self.at];
        assert_eq!(known, among, "the same choices lead to the same place");
        self.at += 1;
        chosen
    }
}
