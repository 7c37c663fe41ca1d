//! How a node ends: it leaves the list of active nodes, makes everything durable, and remembers a clean stop.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::{Node, StartError};
use crate::antientropy;

/// How long a node that stops waits until the coordination service has ended its session.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(2);

impl Node {
    /// Ends the session with the coordination service. One that does not answer is not waited for: the registration goes
    /// when the session expires, and the next start of this directory waits for that.
    async fn leave_service(&self) {
        let session = self.following.session.lock().clone();
        let (closing, patience) = (session.close(), self.ports.clock.sleep(LEAVE_TIME_MAX));
        match select(closing, patience).await {
            Either::Left((Ok(()), _)) => {}
            Either::Left((Err(error), _)) => tracing::warn!(%error, "coordination session not closed"),
            Either::Right(_) => tracing::warn!("coordination session not closed in time"),
        }
    }

    /// Leaves the cluster's list of active nodes, makes everything durable, and remembers a clean stop. Serving must
    /// have ended.
    ///
    /// # Errors
    /// When something could not be made durable; the next start then treats this one as a crash.
    pub async fn stop(&self) -> Result<(), StartError> {
        self.liveness.stopping.store(true, Ordering::Relaxed);
        self.telling.refusals.tell(self.ports.clock.now(), true);
        self.chores.antientropy.close();
        self.chores.rebalance.close();
        if let Some(handoffs) = self.chores.handoffs.get() {
            handoffs.stop();
        }
        self.leave_service().await;
        for peers in self.liveness.peers.lock().iter().filter_map(Weak::upgrade) {
            peers.close();
        }
        let view = self.replica.view().get();
        let hints = ("hints", self.replica.hints().engine().clone());
        let stores =
            view.stores().iter().map(|store| (store.definition().name.as_str(), store.engine().clone()));
        for (name, engine) in stores.chain([hints]) {
            engine.close().await.map_err(|error| StartError::Storage { store: name.to_owned(), error })?;
        }
        if let Err(error) = antientropy::remember(self.disk.clone(), view.stores()).await {
            // They can be counted.
            tracing::warn!(%error, "hash trees not remembered");
        }
        let identity = self.identity.lock().await.take();
        if let Some(identity) = identity {
            identity.close(self.stamper.births_used()).await?;
        }
        Ok(())
    }
}
