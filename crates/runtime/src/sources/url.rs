//! URLs of artifacts.
//!
//! A URL is shown in the cluster document, in logs and in errors. So it must hold no secret: a user, a password, a query
//! (signed links have their signature there) and a fragment are refused, and a refusal does not repeat them.

use std::fmt;

/// How an artifact's files are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// A directory of this machine.
    File,
    /// A web server.
    Http,
    /// A web server, encrypted.
    Https,
    /// A bucket of S3, or of what speaks its protocol.
    S3,
    /// Hadoop's file system.
    Hdfs,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::File => "file",
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::S3 => "s3",
            Scheme::Hdfs => "hdfs",
        })
    }
}

/// Where an artifact lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceUrl {
    scheme: Scheme,
    authority: String,
    path: String,
}

impl SourceUrl {
    /// Reads a URL. Slashes at its end do not count.
    ///
    /// # Errors
    /// With what is wrong, for people; no secret that it held is repeated.
    pub fn parse(url: &str) -> Result<SourceUrl, String> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(format!(
                "{url:?} is no source; write file:///DIRECTORY, http(s)://HOST/PATH, s3://BUCKET/PATH or hdfs://HOST/PATH"
            ));
        };
        let scheme = match scheme {
            "file" => Scheme::File,
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "s3" => Scheme::S3,
            "hdfs" => Scheme::Hdfs,
            _ => {
                return Err(format!("unsupported scheme {scheme:?}; use file, http, https, s3 or hdfs"));
            }
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if scheme == Scheme::File && !authority.is_empty() {
            return Err(format!("{url:?} names no directory: a file URL begins with file:///"));
        }
        let remote = scheme != Scheme::File;
        if authority.contains('@') {
            return Err(format!(
                "a {scheme} URL holds a user or a password, which everybody could read in the cluster document; leave them \
                 out, and give credentials to each node in its environment (docs/operating/sources.md)"
            ));
        }
        if remote && (rest.contains('?') || rest.contains('#')) {
            return Err(format!(
                "a {scheme} URL holds a query or a fragment, which may be secret; name the artifact's directory alone"
            ));
        }
        if remote && authority.is_empty() {
            let what = if scheme == Scheme::S3 { "bucket" } else { "host" };
            return Err(format!("{url:?} names no {what}"));
        }
        if url.chars().any(|letter| letter.is_control() || (remote && letter.is_whitespace())) {
            return Err(format!("{url:?} holds a space or a control character"));
        }
        if remote && path.contains('%') {
            return Err(format!("{url:?} holds an escape (%); artifacts lie below plain names"));
        }
        if path.split('/').any(|part| part == "." || part == "..") {
            return Err(format!("{url:?} holds . or .. as a part of its path; write the path without"));
        }
        let trimmed = path.trim_end_matches('/');
        let path = if trimmed.is_empty() && scheme == Scheme::File { "/" } else { trimmed };
        Ok(SourceUrl { scheme, authority: authority.to_owned(), path: path.to_owned() })
    }

    /// How it is reached.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Host and port, or the bucket; empty for a directory.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The path, with the slash at its beginning and none at its end; empty for the root of a host or bucket.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether it is this one or lies below it.
    pub fn lies_below(&self, prefix: &SourceUrl) -> bool {
        let below = |path: &str| path.is_empty() || path.starts_with('/');
        self.scheme == prefix.scheme
            && self.authority == prefix.authority
            && (prefix.path == "/" || self.path.strip_prefix(prefix.path.as_str()).is_some_and(below))
    }
}

impl fmt::Display for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_each_kind_are_read_and_written_alike() {
        for (url, written) in [
            ("file:///", "file:///"),
            ("file:///data/words 2/", "file:///data/words 2"),
            ("http://127.0.0.1:8080/words", "http://127.0.0.1:8080/words"),
            ("https://tables.example/", "https://tables.example"),
            ("s3://tables/daily/words//", "s3://tables/daily/words"),
            ("hdfs://names:9000/words", "hdfs://names:9000/words"),
        ] {
            assert_eq!(SourceUrl::parse(url).expect(url).to_string(), written);
        }
    }

    #[test]
    fn a_refused_url_says_why_and_repeats_no_secret() {
        for (url, what) in [
            ("words", "is no source"),
            ("ftp://host/words", "unsupported scheme"),
            ("file://words", "begins with file:///"),
            ("s3:///words", "names no bucket"),
            ("http:///words", "names no host"),
            ("http://me:hunter2@host/words", "user or a password"),
            ("https://host/words?X-Amz-Signature=hunter2", "query"),
            ("s3://tables/words#hunter2", "fragment"),
            ("file:///data/../etc", ".."),
            ("s3://tables/a/../b", ".."),
            ("http://host/%2e%2e/etc", "escape"),
            ("http://host/a b", "space"),
            ("file:///a\nb", "control"),
        ] {
            let error = SourceUrl::parse(url).expect_err(url);
            assert!(error.contains(what), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
