//! What this machine may read from, which its operator says: whoever can order a push names a URL, and a node that
//! followed any would reach what the orderer cannot.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{SourceUrl, Sources};
use crate::Disk;

/// A URL below which sources may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedPrefix(SourceUrl);

impl FromStr for AllowedPrefix {
    type Err = String;

    fn from_str(prefix: &str) -> Result<AllowedPrefix, String> {
        SourceUrl::parse(prefix).map(AllowedPrefix)
    }
}

impl fmt::Display for AllowedPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Sources of which only some may be read.
#[derive(Debug)]
pub struct Allowed {
    inner: Arc<dyn Sources>,
    prefixes: Vec<AllowedPrefix>,
}

impl Allowed {
    /// Lets through what lies below one of these prefixes; nothing when there is none.
    pub fn new(inner: Arc<dyn Sources>, prefixes: Vec<AllowedPrefix>) -> Allowed {
        Allowed { inner, prefixes }
    }
}

impl Sources for Allowed {
    fn open(&self, url: &str) -> Result<Arc<dyn Disk>, String> {
        let parsed = SourceUrl::parse(url)?;
        if self.prefixes.iter().any(|prefix| parsed.lies_below(&prefix.0)) {
            return self.inner.open(&parsed.to_string());
        }
        let named = self.prefixes.iter().map(|prefix| prefix.to_string()).collect::<Vec<_>>();
        let may = if named.is_empty() { "nothing".to_owned() } else { named.join(", ") };
        Err(format!(
            "this node may not read {parsed}, only {may}; to allow it, start the node with `--allow-sources {parsed}` and \
             what is allowed now"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::OsSources;
    use super::*;

    #[test]
    fn only_what_lies_below_a_prefix_is_opened() {
        let scratch = std::env::temp_dir();
        let scratch = scratch.to_str().expect("a path in text").trim_end_matches('/');
        let allowed = |prefixes: &[&str]| {
            let prefixes = prefixes.iter().map(|prefix| prefix.parse().expect("a prefix")).collect();
            Allowed::new(Arc::new(OsSources), prefixes)
        };
        let here = format!("file://{scratch}");
        assert!(allowed(&["file:///"]).open(&here).is_ok());
        assert!(allowed(&[&here]).open(&here).is_ok());
        assert!(allowed(&[&format!("{here}/")]).open(&here).is_ok(), "a slash at the end does not count");
        for (prefixes, url) in [
            (vec![], here.clone()),
            (vec!["s3://tables"], here.clone()),
            (vec![here.as_str()], format!("{here}-other")),
            (vec!["file:///data"], "file:///data/../etc".to_owned()),
            (vec!["s3://tables/words"], "s3://tables/words-secret".to_owned()),
            (vec!["s3://tables"], "s3://tables2/words".to_owned()),
            (vec!["https://host/words"], "http://host/words".to_owned()),
        ] {
            let error = allowed(&prefixes).open(&url).err().expect("refused");
            assert!(error.contains("may not read") || error.contains(".."), "{error}");
        }
        let error = allowed(&["s3://tables"]).open("s3://tables/words").err().expect("not built in");
        assert!(error.contains("built without"), "it was let through: {error}");
    }
}
