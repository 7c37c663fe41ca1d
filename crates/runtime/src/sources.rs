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
            return Err(built_without(url.scheme()));
        }
        let path = Path::new(url.path());
        if !path.is_dir() {
            return Err(format!("{} is no directory on this machine", path.display()));
        }
        OsDisk::open_to_read(path)
            .map(|disk| Arc::new(disk) as Arc<dyn Disk>)
            .map_err(|error| error.to_string())
    }
}

/// What a program says that does not know a kind of URL.
pub fn built_without(scheme: Scheme) -> String {
    format!(
        "this program was built without {scheme}://; build it with `cargo build --release -p cli --features sources`"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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

    /// A node runs as its own user, and artifacts belong to whoever builds them.
    #[test]
    fn a_source_of_another_user_is_read_and_not_changed() {
        let root = std::env::temp_dir().join(format!("tontine-foreign-source-{}", std::process::id()));
        let chunk = root.join("chunk");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(&chunk, b"of somebody else").unwrap();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&chunk, std::fs::Permissions::from_mode(0o444)).unwrap();
        let url = format!("file://{}", root.display());
        let read = std::thread::spawn(move || {
            // Who runs tests as root may write everywhere. This thread alone goes on as *nobody*, who may not.
            // SAFETY: the call changes nothing but this thread's rights on files; for other users it does nothing.
            unsafe { libc::setfsuid(65_534) };
            let refused = std::fs::OpenOptions::new().write(true).open(&chunk).map_err(|error| error.kind());
            assert_eq!(refused.err(), Some(std::io::ErrorKind::PermissionDenied), "it may only read");
            let source = OsSources.open(&url).unwrap();
            let mut bytes = [0; 16];
            assert_eq!(source.open("chunk").unwrap().read_at(0, &mut bytes), Ok(16));
            assert_eq!(source.open("chunk").unwrap().map().unwrap().length(), 16);
            bytes
        });
        assert_eq!(&read.join().unwrap(), b"of somebody else");
        // Also who may write writes nothing.
        let source = OsSources.open(&format!("file://{}", root.display())).unwrap();
        assert!(source.create("more").is_err() && source.rename("chunk", "more").is_err());
        assert!(source.open("chunk").unwrap().append(b"more").is_err());
        assert!(source.remove("chunk").is_err() && source.lock("LOCK").is_err());
        assert_eq!(source.list(""), Ok(vec!["chunk".to_owned()]));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
