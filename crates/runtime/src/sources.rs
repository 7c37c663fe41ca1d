//! Where artifacts come from: files that somebody else has made, which are read and never written.
//!
//! What a URL names is read as a disk is. Directories of this machine are read here; what lies behind a network is for
//! the crate `sources`, which the binary may be built without.

mod allowed;
mod url;

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

pub use self::allowed::{Allowed, AllowedPrefix};
pub use self::url::{Scheme, SourceUrl};
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
        let url = SourceUrl::parse(url)?;
        if url.scheme() != Scheme::File {
            return Err(format!(
                "this program was built without {}://; build it with `cargo build --release -p cli --features sources`",
                url.scheme()
            ));
        }
        let path = Path::new(url.path());
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
        for (url, what) in [
            ("s3://words", "built without s3"),
            ("words", "no source"),
            ("file://words", "begins with file:///"),
        ] {
            assert!(OsSources.open(url).is_err_and(|error| error.contains(what)), "{url}");
        }
        let directory = format!("file://{}", std::env::temp_dir().display());
        assert!(OsSources.open(&directory).is_ok());
    }
}
