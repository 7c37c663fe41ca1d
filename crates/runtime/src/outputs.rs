//! Where artifacts are put: files that are written whole, for nodes to read through [`sources`](crate::sources).
//!
//! Directories of this machine are written here; what lies behind a network is for the crate `sources`.
//!
//! Must never: let a file be seen under its name before it is whole and durable.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::disk::os::{OsDisk, translate};
use crate::sources::{Scheme, SourceUrl};
use crate::{Disk, DiskError};

/// Directory of what is not finished yet, below an artifact's.
pub const BUILDING: &str = "building";

/// The next bytes of a file; `None` after the last ones.
pub type Parts<'a> = dyn FnMut() -> Result<Option<Vec<u8>>, DiskError> + 'a;

/// A place that files are put in.
pub trait Output: Send + Sync {
    /// Puts a file, in place of the one that has its name. Waits.
    ///
    /// # Errors
    /// When the place refuses, or `parts` fails, whose error comes back; then nothing has the name that had not before.
    fn put(&self, path: &str, parts: &mut Parts<'_>) -> Result<(), DiskError>;

    /// Takes over a file from below another URL, where its bytes need not pass this machine. Waits.
    ///
    /// Returns whether it did. What a place cannot do, or refuses, is put instead.
    fn take(&self, from: &SourceUrl, path: &str) -> bool;

    /// Removes what files on their way needed. Nothing is put afterwards. Waits.
    ///
    /// # Errors
    /// When the place refuses.
    fn finish(&self) -> Result<(), DiskError>;
}

/// Refuses a URL below which nothing can be put.
///
/// # Errors
/// With the kinds that can be written, for people.
pub fn writable(url: &SourceUrl) -> Result<(), String> {
    match url.scheme() {
        Scheme::File | Scheme::S3 | Scheme::Hdfs => Ok(()),
        Scheme::Http | Scheme::Https => Err(format!(
            "{url} can only be read; name a directory, s3://BUCKET/PATH or hdfs://HOST/PATH, or copy to a directory that the \
             web server serves"
        )),
    }
}

/// A directory of this machine, which nobody else writes to meanwhile.
pub struct OsOutput {
    root: PathBuf,
    _lock: Box<dyn Send + Sync>,
}

impl OsOutput {
    /// Takes a directory, which is made when it is not there. A build and a copy never have the same.
    ///
    /// # Errors
    /// [`DiskError::Locked`] when another process writes to it; otherwise what the system says.
    pub fn open(root: &Path) -> Result<OsOutput, DiskError> {
        let lock = OsDisk::open(root)?.lock(&format!("{BUILDING}/LOCK"))?;
        Ok(OsOutput { root: root.to_owned(), _lock: lock })
    }

    fn write(&self, temporary: &Path, path: &str, parts: &mut Parts<'_>) -> Result<(), DiskError> {
        let failed = |error: std::io::Error| translate(path, &error);
        let target = self.root.join(path);
        let directory = target.parent().unwrap_or(&self.root);
        fs::create_dir_all(directory).map_err(failed)?;
        let mut file = fs::File::create(temporary).map_err(failed)?;
        while let Some(part) = parts()? {
            file.write_all(&part).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        fs::rename(temporary, &target).map_err(failed)?;
        for directory in [directory, &self.root] {
            fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        }
        Ok(())
    }
}

impl Output for OsOutput {
    fn put(&self, path: &str, parts: &mut Parts<'_>) -> Result<(), DiskError> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let temporary = self.root.join(BUILDING).join(format!("{name}.tmp"));
        let written = self.write(&temporary, path, parts);
        if written.is_err() {
            // Whoever writes here next begins it anew.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// As another name of the same file, where both lie on one file system.
    fn take(&self, from: &SourceUrl, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        let (target, temporary) =
            (self.root.join(path), self.root.join(BUILDING).join(format!("{name}.link")));
        let _ = fs::remove_file(&temporary);
        from.scheme() == Scheme::File
            && target.parent().is_none_or(|directory| fs::create_dir_all(directory).is_ok())
            && fs::hard_link(Path::new(from.path()).join(path), &temporary).is_ok()
            && fs::rename(&temporary, &target).is_ok()
            && target.parent().is_none_or(|directory| {
                fs::File::open(directory).and_then(|directory| directory.sync_all()).is_ok()
            })
    }

    fn finish(&self) -> Result<(), DiskError> {
        fs::remove_dir_all(self.root.join(BUILDING)).map_err(|error| translate(BUILDING, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(of: &[&str]) -> impl FnMut() -> Result<Option<Vec<u8>>, DiskError> {
        let mut left: Vec<Vec<u8>> = of.iter().rev().map(|part| part.as_bytes().to_vec()).collect();
        move || Ok(left.pop())
    }

    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_not_before() {
        let root = std::env::temp_dir().join(format!("tontine-output-{}", std::process::id()));
        let output = OsOutput::open(&root).unwrap();
        assert!(matches!(OsOutput::open(&root), Err(DiskError::Locked { .. })), "one writes at a time");
        let mut given = parts(&["one ", "two"]);
        output
            .put("chunks/a", &mut || {
                assert!(!root.join("chunks/a").exists());
                given()
            })
            .unwrap();
        assert_eq!(fs::read(root.join("chunks/a")).unwrap(), b"one two");
        // What fails half way leaves what was there.
        let mut given = parts(&["other"]);
        let cut = DiskError::Failed { path: "a".to_owned(), reason: "the source is gone".to_owned() };
        let failed =
            output.put("chunks/a", &mut || given()?.map_or_else(|| Err(cut.clone()), |part| Ok(Some(part))));
        assert_eq!(failed, Err(cut));
        assert_eq!(fs::read(root.join("chunks/a")).unwrap(), b"one two");
        output.put("chunks/a", &mut parts(&["again"])).unwrap();
        // Another name of a file that is elsewhere.
        let elsewhere = root.with_extension("elsewhere");
        fs::create_dir_all(elsewhere.join("chunks")).unwrap();
        fs::write(elsewhere.join("chunks/b"), b"of another").unwrap();
        let from = SourceUrl::parse(&format!("file://{}", elsewhere.display())).unwrap();
        fs::write(root.join("chunks/b"), b"cut").unwrap();
        assert!(output.take(&from, "chunks/b") && !output.take(&from, "chunks/c"));
        assert!(!output.take(&SourceUrl::parse("s3://tables/a").unwrap(), "chunks/b"));
        assert_eq!(fs::read(root.join("chunks/b")).unwrap(), b"of another");
        fs::remove_dir_all(&elsewhere).unwrap();
        output.put("manifest", &mut parts(&[])).unwrap();
        output.finish().unwrap();
        let mut names: Vec<_> =
            fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(
            (names, fs::read(root.join("chunks/a")).unwrap()),
            (vec!["chunks".into(), "manifest".into()], b"again".to_vec())
        );
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_web_server_is_only_read() {
        for (url, may) in [
            ("file:///d", true),
            ("s3://b/d", true),
            ("hdfs://h/d", true),
            ("http://h/d", false),
            ("https://h/d", false),
        ] {
            let judged = writable(&SourceUrl::parse(url).unwrap());
            assert_eq!(judged.is_ok(), may, "{url}");
            assert!(judged.is_ok() || judged.is_err_and(|error| error.contains("can only be read")));
        }
    }
}
