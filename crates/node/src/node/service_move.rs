//! Going along when the cluster's documents move to another coordination service.
//!
//! The node learns of it from the service that they leave. It opens a session with the other one, sees to it that the
//! documents are in force there, registers, and remembers the address in its data directory. Until all that has
//! succeeded it stays where it is, and serves.
//!
//! Must never: be registered nowhere because of a move, or hold up the data path.

use coordination::documents::{self, ReadError, ServiceMove};

use super::Node;
use crate::service_moved;

impl Node {
    /// Goes along with a move; `Err` holds the one to try next, which is the same one, unless the documents have moved
    /// on.
    pub(super) async fn go_along(&self, this: ServiceMove) -> Result<(), ServiceMove> {
        let Some(places) = &self.config.member.places else { return Err(this) };
        let session = match places.open_at(&this.to).await {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(error, address = this.to, "new place of the documents not opened");
                return Err(this);
            }
        };
        match documents::arrive(&*session, &this).await {
            Ok(()) => {}
            Err(ReadError::Moved(next)) => return Err(*next),
            Err(error) => {
                tracing::warn!(%error, address = this.to, "documents not found in their new place");
                return Err(this);
            }
        }
        if !self.register_in(&*session).await {
            return Err(this);
        }
        let own = self.following.address.lock().clone().unwrap_or_else(|| places.address());
        if let Err(error) = service_moved::remember(self.disk.clone(), &this, &own).await {
            // The old place says it as well, as long as it lives.
            tracing::warn!(%error, "new place of the documents not remembered");
        }
        tracing::info!(from = this.from, to = this.to, "documents have moved, and this node with them");
        self.take_session(session).await;
        *self.following.address.lock() = Some(this.to);
        Ok(())
    }
}
