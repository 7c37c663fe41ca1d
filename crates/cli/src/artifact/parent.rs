//! The artifact that another one is built upon.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use runtime::Disk;
use runtime::disk::os::OsDisk;
use storage::artifacts::{FileEntry, Manifest, Slice, chunk_path, copy};

use super::place::{Scratch, directory, opened};
use crate::failure::CliError;

/// A parent whose files are on this machine.
pub(super) struct Parent {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) manifest: Arc<Manifest>,
    /// The directory of its files.
    root: PathBuf,
    /// Where they lie meanwhile, if they came from elsewhere.
    _scratch: Option<Scratch>,
}

impl Parent {
    /// Opens it for a child of this store and number.
    pub(super) fn open(url: &str, store: &str, number: u64) -> Result<Parent, CliError> {
        let (disk, manifest) = opened(url)?;
        if manifest.store.as_str() != store {
            return Err(CliError::Usage(format!(
                "{url} is an artifact of store {}; name one of store {store}, or build with -s {}",
                manifest.store, manifest.store
            )));
        }
        if number <= manifest.number {
            return Err(CliError::Usage(format!(
                "{url} has number {}, and a later artifact needs a greater one; give it with --number",
                manifest.number
            )));
        }
        let scratch = Scratch::of(url, "parent")?;
        let (disk, root) = match &scratch {
            None => (disk, directory(url)?),
            Some(scratch) => {
                let refused = |error| CliError::Other(format!("{url}: {error}"));
                let mut chunks = manifest.chunks.iter();
                chunks.try_for_each(|chunk| scratch.copy(&*disk, chunk.file())).map_err(refused)?;
                (scratch.shared(), scratch.root().to_owned())
            }
        };
        Ok(Parent { disk, manifest: Arc::new(manifest), root, _scratch: scratch })
    }

    /// What its chunks hold, in their order.
    pub(super) fn slices(&self) -> Vec<Slice> {
        self.manifest.chunks.iter().map(|chunk| chunk.slice).collect()
    }

    /// How many chunks a child has that are this one's.
    pub(super) fn same(&self, child: &Manifest) -> usize {
        self.manifest.chunks.iter().zip(&child.chunks).filter(|(old, new)| old == new).count()
    }

    /// Puts the chunks that a child has not changed into its directory: as another name of the same file, or as a copy.
    pub(super) async fn share(&self, child: &Manifest, output: &Path, to: &OsDisk) -> Result<(), CliError> {
        for (_, same) in self.manifest.chunks.iter().zip(&child.chunks).filter(|(old, new)| old == new) {
            let FileEntry { digest, .. } = same.file();
            let path = chunk_path(digest);
            let target = output.join(&path);
            if let Some(directory) = target.parent() {
                std::fs::create_dir_all(directory)
                    .map_err(CliError::io(format!("cannot create {}", directory.display())))?;
            }
            // Another file system, or one without links.
            if std::fs::hard_link(self.root.join(&path), &target).is_err() {
                let copied = copy(&*self.disk, to, same.file()).await;
                copied.map_err(|error| CliError::Other(error.to_string()))?;
            }
        }
        Ok(())
    }
}
