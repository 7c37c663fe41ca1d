//! Answers from artifacts: exactly from the one that a request names.
//!
//! ```text
//!   the request is older than this node, and what it names is served no more    stale-generation, with the document
//!   what it names is not open here                                              artifact-not-here
//!   a chunk of it is not here                                                   artifact-not-here, for that key
//! ```
//!
//! A request that is newer than this node is answered, too: the artifact is what it names, whatever the document says.

use model::Generation;
use wire::error::ErrorCode;
use wire::messages::{ArtifactGet, Failure, ReplicaGot};

use super::Replica;
use crate::view::View;

impl Replica {
    /// What an artifact holds of keys.
    ///
    /// # Errors
    /// As a whole when it cannot be said of any key; see above.
    pub(super) fn artifact_get(&self, request: &ArtifactGet) -> Result<ReplicaGot, Failure> {
        let view = self.view().get();
        let ArtifactGet { store: name, generation, number, manifest, keys } = request;
        let own = view.cluster().generation;
        let Some(store) = view.read_only(name) else {
            let error = self.store_of(&view, name, *generation).err();
            let detail = format!("store {name} takes writes and has no artifacts");
            return Err(error.unwrap_or_else(|| Failure::new(ErrorCode::UnknownStore, detail)));
        };
        let is_older = *generation < own;
        if is_older && !store.is_honoured(*number, *manifest, self.clock.now()) {
            return Err(superseded(&view, *generation));
        }
        let not_here = || {
            let detail = format!("{} does not hold artifact {number} of store {name}", self.node());
            Failure::new(ErrorCode::ArtifactNotHere, detail)
        };
        let open = store.held().open(*number, *manifest).ok_or_else(not_here)?;
        let sets = store.held().read(*number, &open, keys);
        if is_older && sets.contains(&Err(ErrorCode::ArtifactNotHere)) {
            // By the newer document the key may lie elsewhere.
            return Err(superseded(&view, *generation));
        }
        Ok(ReplicaGot { generation: own.into(), epoch: self.epochs().tag(), sets })
    }
}

/// Refuses a request that is too old for what its store serves, and tells what is newer.
fn superseded(view: &View, generation: Generation) -> Failure {
    Failure {
        code: ErrorCode::StaleGeneration,
        detail: format!(
            "the request was formed under generation {}, and by {} the store serves something else, or elsewhere",
            generation.0,
            view.cluster().generation.0
        ),
        cluster: Some(view.document().clone()),
    }
}
