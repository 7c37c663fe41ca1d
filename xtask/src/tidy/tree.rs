//! The files that the rules look at: what git tracks or would track, as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::process::Command;

use super::source::Source;

/// The text files of one checkout, by path relative to its root.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
    /// Files that are there but hold no text; links may point at them.
    others: BTreeSet<String>,
    sources: BTreeMap<String, Source>,
    test_only: BTreeSet<String>,
}

/// Why a checkout could not be read.
#[derive(Debug)]
pub enum TreeError {
    /// `git ls-files` could not be run or refused.
    Git {
        /// What it said.
        reason: String,
    },
    /// A listed file could not be read.
    File {
        /// Which.
        path: String,
        /// What the operating system said.
        reason: std::io::Error,
    },
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::Git { reason } => write!(f, "git ls-files: {}", reason.trim()),
            TreeError::File { path, reason } => write!(f, "{path}: {reason}"),
        }
    }
}

impl std::error::Error for TreeError {}

impl Tree {
    /// Reads a checkout: tracked files, and new ones that git does not ignore.
    ///
    /// # Errors
    /// When git cannot list the files, or one of them cannot be read.
    pub fn read(root: &Path) -> Result<Tree, TreeError> {
        let output = Command::new("git")
            .arg("-C")
            .arg(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .map_err(|error| TreeError::Git { reason: error.to_string() })?;
        if !output.status.success() {
            return Err(TreeError::Git { reason: String::from_utf8_lossy(&output.stderr).into_owned() });
        }
        let mut files = BTreeMap::new();
        let mut others = BTreeSet::new();
        for path in String::from_utf8_lossy(&output.stdout).split('\0').filter(|path| !path.is_empty()) {
            match std::fs::read(root.join(path)).map(String::from_utf8) {
                Ok(Ok(text)) => _ = files.insert(path.to_owned(), text),
                Ok(Err(_)) => _ = others.insert(path.to_owned()),
                // Deleted in the work tree, still in the index.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(TreeError::File { path: path.to_owned(), reason: error }),
            }
        }
        Ok(Tree::with(files, others))
    }

    /// A tree of the given paths and texts.
    pub fn planted(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Tree::with(files, BTreeSet::new())
    }

    fn with(files: BTreeMap<String, String>, others: BTreeSet<String>) -> Tree {
        let sources: BTreeMap<String, Source> = files
            .iter()
            .filter(|(path, _)| path.ends_with(".rs"))
            .map(|(path, text)| (path.clone(), Source::new(text)))
            .collect();
        let test_only = sources
            .iter()
            .flat_map(|(path, source)| {
                source.test_modules().into_iter().flat_map(|name| module_files(path, &name))
            })
            .collect();
        Tree { files, others, sources, test_only }
    }

    /// Number of text files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there is no text file at all.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The text of a file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// All files, texts or not.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().chain(&self.others).map(String::as_str)
    }

    /// All text files.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Text files whose name ends so.
    pub fn ending<'a>(&'a self, suffix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files().filter(move |(path, _)| path.ends_with(suffix))
    }

    /// All Rust files, scanned.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.sources.iter().map(|(path, source)| (path.as_str(), source))
    }

    /// Whether a file is compiled for tests only.
    pub(crate) fn is_test(&self, path: &str) -> bool {
        let below = |file: &String| {
            let folder = file.strip_suffix("mod.rs").map_or_else(|| file.replace(".rs", "/"), str::to_owned);
            path.starts_with(&folder)
        };
        self.test_only.contains(path)
            || self.test_only.iter().filter(|file| self.files.contains_key(*file)).any(below)
            || path.split('/').any(|part| part == "tests" || part == "benches" || part == "examples")
    }

    /// Whether a file or folder of this name is there.
    pub fn holds(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        self.files.contains_key(path)
            || self.others.contains(path)
            || self.files.keys().chain(&self.others).any(|file| file.starts_with(&folder))
    }
}

/// The crate of a path: `model` for `crates/model/src/key.rs`.
pub(crate) fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split('/').next()
}

/// Where the text of `mod name;` may lie, for a file at `path`.
fn module_files(path: &str, name: &str) -> [String; 2] {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.trim_end_matches(".rs");
    let home = match stem {
        "mod" | "lib" | "main" => folder.to_owned(),
        _ => format!("{folder}/{stem}"),
    };
    [format!("{home}/{name}.rs"), format!("{home}/{name}/mod.rs")]
}
