//! Where a document is: `/config/cluster`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::PATH_BYTES_MAX;

/// Most digits of a sequential document.
const SEQUENCE_BYTES_MAX: usize = 20;

/// A checked path: begins with `/`, names are separated by `/`, no name is empty, `.` or `..` or has control
/// characters. `/` alone is the root, which always exists. Below the root the name `zookeeper` is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DocumentPath(String);

/// Why a text is no path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PathError {
    /// It does not begin with `/`.
    #[error("path {path:?} does not begin with /")]
    Relative {
        /// The text.
        path: String,
    },
    /// It is over the limit.
    #[error("path of {bytes} bytes is over the limit of {PATH_BYTES_MAX}")]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// One of its names is not allowed.
    #[error("path {path:?} contains the name {name:?}, which is not allowed")]
    BadName {
        /// The text.
        path: String,
        /// The name.
        name: String,
    },
}

impl DocumentPath {
    /// The root of all documents.
    pub fn root() -> DocumentPath {
        DocumentPath("/".to_owned())
    }

    /// Checks a path.
    ///
    /// # Errors
    /// When it breaks one of the rules of [`DocumentPath`].
    pub fn new(path: &str) -> Result<DocumentPath, PathError> {
        DocumentPath::within(path, PATH_BYTES_MAX)
    }

    /// Checks a path that may be one that [`numbered`](Self::numbered) made.
    pub(crate) fn recorded(path: &str) -> Result<DocumentPath, PathError> {
        DocumentPath::within(path, PATH_BYTES_MAX + SEQUENCE_BYTES_MAX)
    }

    fn within(path: &str, bytes_max: usize) -> Result<DocumentPath, PathError> {
        if path.len() > bytes_max {
            return Err(PathError::TooLong { bytes: path.len() });
        }
        let Some(names) = path.strip_prefix('/') else {
            return Err(PathError::Relative { path: path.to_owned() });
        };
        if names.is_empty() {
            return Ok(DocumentPath::root());
        }
        let reserved = names.split('/').next() == Some("zookeeper");
        let bad =
            |name: &&str| name.is_empty() || *name == "." || *name == ".." || name.contains(is_forbidden);
        if let Some(name) = reserved.then_some("zookeeper").or_else(|| names.split('/').find(bad)) {
            return Err(PathError::BadName { path: path.to_owned(), name: name.to_owned() });
        }
        Ok(DocumentPath(path.to_owned()))
    }

    /// The path of a document directly below.
    ///
    /// # Errors
    /// When the name is not allowed or the path becomes too long.
    pub fn child(&self, name: &str) -> Result<DocumentPath, PathError> {
        if name.contains('/') {
            return Err(PathError::BadName { path: self.0.clone(), name: name.to_owned() });
        }
        let separator = if self.is_root() { "" } else { "/" };
        DocumentPath::new(&format!("{}{separator}{name}", self.0))
    }

    /// The path of the document above; `None` for the root.
    pub fn parent(&self) -> Option<DocumentPath> {
        if self.is_root() {
            return None;
        }
        let cut = self.0.rfind('/').expect("every path begins with a separator");
        Some(DocumentPath(self.0[..cut.max(1)].to_owned()))
    }

    /// The last name; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// This path with the digits of a sequential document, which may exceed the limit on paths.
    pub(crate) fn numbered(&self, sequence: u64) -> DocumentPath {
        DocumentPath(format!("{}{sequence:010}", self.0))
    }
}

/// What ZooKeeper forbids in names.
fn is_forbidden(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
}

impl fmt::Display for DocumentPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DocumentPath {
    type Err = PathError;

    fn from_str(path: &str) -> Result<DocumentPath, PathError> {
        DocumentPath::new(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_their_rules() {
        for good in ["/", "/a", "/a/b.c", "/config/zookeeper", "/ä/ö"] {
            assert_eq!(DocumentPath::new(good).unwrap().as_str(), good);
        }
        for bad in
            ["", "a", "//", "/a/", "/a//b", "/.", "/a/../b", "/a\u{0}", "/\u{f000}", "/zookeeper/quota"]
        {
            assert!(DocumentPath::new(bad).is_err(), "{bad:?}");
        }
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        assert_eq!(DocumentPath::new(&long), Err(PathError::TooLong { bytes: PATH_BYTES_MAX + 1 }));
    }

    #[test]
    fn parents_and_children_lead_back_to_each_other() {
        let document = DocumentPath::new("/a/b").unwrap();
        assert_eq!(document.name(), "b");
        assert_eq!(document.parent().unwrap().child("b").unwrap(), document);
        assert_eq!(DocumentPath::root().child("a").unwrap().parent(), Some(DocumentPath::root()));
        assert_eq!(DocumentPath::root().parent(), None);
        assert!(document.child("c/d").is_err());
    }
}
