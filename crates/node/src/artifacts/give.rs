//! Gives other nodes the files of artifacts that are here, by the digest that names them. They verify what they get.
//!
//! Must never: give faster than requests leave room for, or hold a worker while the disk is read.

use model::{ListedArtifact, StoreName};
use runtime::DiskError;
use storage::artifacts::{BLOCK_BYTES, Digest};
use wire::error::ErrorCode;
use wire::messages::{ArtifactBytes, ArtifactFile, ArtifactRead, Failure, Response};

use super::{Artifacts, NotYet, files};

impl Artifacts {
    /// A part of a file.
    ///
    /// # Errors
    /// When it is not here, or this node has too much to do.
    pub(crate) async fn give(&self, read: ArtifactRead) -> Result<Response, Failure> {
        let ArtifactRead { store, file, digest, offset, bytes_max } = read;
        let view = self.view.get();
        let Some(found) = view.read_only(&store) else {
            let detail = format!("{} knows no read-only store {store}", self.node);
            return Err(Failure::new(ErrorCode::UnknownStore, detail));
        };
        let (name, artifacts) = (&found.listed().name, &found.listed().artifacts);
        let path = path_of(name, artifacts, file, digest).ok_or_else(|| self.not_here(digest))?;
        let disk = self.disk.clone();
        let opened = self.wait(move || disk.open(&path)).await.map_err(ended)?;
        let opened = opened.map_err(|error| self.refused(digest, &error))?;
        let file_bytes = opened.length();
        let left = file_bytes.saturating_sub(offset);
        let bytes = u64::from(bytes_max).min(BLOCK_BYTES as u64).min(left);
        self.await_giving(bytes).await?;
        let take = move || {
            let mut buffer = vec![0; bytes as usize];
            let count = opened.read_at(offset, &mut buffer)?;
            buffer.truncate(count);
            Ok(buffer)
        };
        let bytes = self.wait(take).await.map_err(ended)?;
        let bytes = bytes.map_err(|error: DiskError| self.refused(digest, &error))?;
        self.counters.given.add(bytes.len() as u64);
        Ok(Response::ArtifactBytes(ArtifactBytes { file_bytes, bytes: bytes.into() }))
    }

    fn not_here(&self, digest: [u8; 16]) -> Failure {
        let detail = format!("{} does not hold the file {} of an artifact", self.node, Digest(digest));
        Failure::new(ErrorCode::ArtifactNotHere, detail)
    }

    fn refused(&self, digest: [u8; 16], error: &DiskError) -> Failure {
        match error {
            DiskError::NotFound { .. } => self.not_here(digest),
            error => Failure::new(ErrorCode::StorageFailed, error.to_string()),
        }
    }
}

fn ended(_: NotYet) -> Failure {
    Failure::new(ErrorCode::ShuttingDown, "the node is stopping")
}

/// Where a file lies; a manifest only if it is listed.
fn path_of(
    store: &StoreName,
    artifacts: &[ListedArtifact],
    file: ArtifactFile,
    digest: [u8; 16],
) -> Option<String> {
    match file {
        ArtifactFile::Chunk => Some(files::chunk(store, Digest(digest))),
        ArtifactFile::Manifest => {
            let listed = artifacts.iter().find(|listed| listed.manifest.0 == digest)?;
            Some(files::manifest(store, listed))
        }
    }
}
