//! Answers from artifacts: exactly from the one that a request names.
//!
//! ```text
//!   the request is older than this node, and what it names is served no more    stale-generation, with the document
//!   what it names is not open here                                              artifact-not-here
//!   a chunk of it is not here                                                   artifact-not-here, for that key
//! ```
//!
//! A request that is newer than this node is answered, too: the artifact is what it names, whatever the document says.

use std::sync::Arc;

use model::{ArtifactNumber, Generation, ManifestDigest, Token};
use runtime::disk::waiting::is_refused;
use storage::artifacts::WalkLimit;
use wire::error::ErrorCode;
use wire::messages::{ArtifactGet, ArtifactScan, Failure, ReplicaGot, Scanned};

use super::{Replica, SCAN_BYTES_MAX, SCAN_RECORDS_MAX};
use crate::stores::{Open, OpenArtifacts};
use crate::view::View;

/// The artifact that a request names.
struct Named {
    open: Arc<Open>,
    held: Arc<OpenArtifacts>,
    /// Whether the request was formed under an older document than this node's.
    is_older: bool,
}

impl Replica {
    /// What an artifact holds of keys.
    ///
    /// # Errors
    /// As a whole when it cannot be said of any key; see above.
    pub(super) fn artifact_get(&self, request: &ArtifactGet) -> Result<ReplicaGot, Failure> {
        let view = self.view().get();
        let ArtifactGet { store, generation, number, manifest, keys } = request;
        let Named { open, held, is_older } = self.named(&view, store, *generation, (*number, *manifest))?;
        let sets = held.read(*number, &open, keys);
        if is_older && sets.contains(&Err(ErrorCode::ArtifactNotHere)) {
            // By the newer document the key may lie elsewhere.
            return Err(superseded(&view, *generation));
        }
        // What must wait for the disk is asked again.
        if !is_refused() {
            let read = keys.iter().zip(&sets).filter(|(_, set)| **set != Err(ErrorCode::ArtifactNotHere));
            read.for_each(|(key, _)| self.work().got(view.partition_at(Token::of(key)).0.partition, key));
        }
        let generation = view.cluster().generation;
        Ok(ReplicaGot { generation, epoch: self.epochs().tag(), sets })
    }

    /// A page of what an artifact holds.
    ///
    /// # Errors
    /// As [`Replica::artifact_get`], and when one of the records cannot be read: another replica has it.
    pub(super) fn artifact_scan(&self, request: &ArtifactScan) -> Result<Scanned, Failure> {
        let view = self.view().get();
        let ArtifactScan { store, generation, number, manifest, .. } = request;
        let Named { open, held, is_older } = self.named(&view, store, *generation, (*number, *manifest))?;
        let limit = WalkLimit {
            records_max: (request.records_max as usize).clamp(1, SCAN_RECORDS_MAX),
            bytes_max: (request.bytes_max as usize).clamp(1, SCAN_BYTES_MAX),
        };
        let after = request.after.as_ref().map(|(token, key)| (*token, &key[..]));
        held.page(*number, &open, request.first..=request.last, after, limit).map_err(|code| match code {
            ErrorCode::ArtifactNotHere if is_older => superseded(&view, *generation),
            code => {
                let node = self.node();
                Failure::new(code, format!("{node} cannot read a part of artifact {number} of store {store}"))
            }
        })
    }

    fn named(
        &self,
        view: &View,
        name: &str,
        generation: Generation,
        (number, manifest): (ArtifactNumber, ManifestDigest),
    ) -> Result<Named, Failure> {
        let Some(store) = view.read_only(name) else {
            let error = self.store_of(view, name, generation).err();
            let detail = format!("store {name} takes writes and has no artifacts");
            return Err(error.unwrap_or_else(|| Failure::new(ErrorCode::UnknownStore, detail)));
        };
        let is_older = generation < view.cluster().generation;
        if is_older && !store.is_honoured(number, manifest, self.clock.now()) {
            return Err(superseded(view, generation));
        }
        let not_here = || {
            let detail = format!("{} does not hold artifact {number} of store {name}", self.node());
            Failure::new(ErrorCode::ArtifactNotHere, detail)
        };
        let held = store.held().clone();
        let open = held.open(number, manifest).ok_or_else(not_here)?;
        Ok(Named { open, held, is_older })
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
