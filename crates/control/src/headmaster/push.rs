//! Carrying out pushes: the office is the conductor of artifacts that are to go live by themselves.
//!
//! The wish is in the cluster document, and what nodes hold is asked for at each turn. So the end of a command, a node or a
//! headmaster ends no push: the next turn of any process goes on, or aborts when the time is over.
//!
//! Must never: publish a swap over another document than the one that it was judged by.

use protocol::push::{self, Due};

use super::office::{Office, Scene, TurnError};

impl Office {
    /// Publishes the swap or the end of a push, if one is due.
    pub(super) async fn push(&mut self, scene: &Scene) -> Result<bool, TurnError> {
        if !push::is_pending(&scene.cluster) {
            return Ok(false);
        }
        self.busy = true;
        let reports = self.reports.artifacts(&scene.cluster).await;
        let Some((store, number, due)) = push::due(&scene.cluster, &reports, self.clock.wall()) else {
            return Ok(false);
        };
        let next = scene.cluster.with_artifacts(store.as_str(), |found| match due {
            Due::Swap => found.swap(number),
            Due::Abort => found.abort(number),
        });
        let next = next.expect("what is due is a verb that the document allows");
        self.publish(&next).await?;
        let store = store.as_str();
        match due {
            Due::Swap => tracing::info!(store, number = number.0, "artifact served"),
            Due::Abort => tracing::warn!(store, number = number.0, "push aborted, its time is over"),
        }
        Ok(true)
    }
}
