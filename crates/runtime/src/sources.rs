//! Where artifacts come from: directories that somebody else has filled, which are read and never written.
//!
//! What a URL names is read as a disk is. Only directories of this machine are known so far.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use crate::Disk;
use crate::disk::os::OsDisk;

/// Opens what URLs name.
pub trait Sources: Debug + Send + Sync {
    /// The files below a URL, to be read. May wait for the device.
    ///
    /// # Errors
    /// With what is wrong, for people.
    fn open(&self, url: &str) -> Result<Arc<dyn Disk>, String>;
}

/// Directories of this machine, as `file:///…`.
#[derive(Clone, Copy, Debug)]
pub struct OsSources;

impl Sources for OsSources {
    fn open(&self, url: &str) -> Result<Arc<dyn Disk>, String> {
        let path = match url.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => Path::new(path),
            _ => return Err(format!("{url:?} is no source: only file:///… is read")),
        };
        // Opening a disk would make the directory.
        if !path.is_dir() {
            return Err(format!("{} is no directory on this machine", path.display()));
        }
        OsDisk::open(path).map(|disk| Arc::new(disk) as Arc<dyn Disk>).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_directory_that_is_there() {
        let missing = std::env::temp_dir().join(format!("tontine-no-source-{}", std::process::id()));
        let url = format!("file://{}", missing.display());
        assert!(OsSources.open(&url).is_err_and(|error| error.contains("is no directory")));
        assert!(!missing.exists(), "looking for a source makes none");
        for url in ["s3://words", "words", "file://words"] {
            assert!(OsSources.open(url).is_err_and(|error| error.contains("no source")), "{url}");
        }
        let directory = format!("file://{}", std::env::temp_dir().display());
        assert!(OsSources.open(&directory).is_ok());
    }
}
