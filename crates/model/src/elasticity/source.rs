//! Where the controller gets figures of members that their engine does not tell.
//!
//! Must never: keep a secret. The document of a fleet names sources, and everybody who may see a fleet sees them.

use serde::{Deserialize, Serialize};

use super::policy::PolicyError;

/// Where samples come from. A measure that a source gives is taken from there alone, and of two sources from the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Source {
    /// How it is spoken to.
    pub kind: SourceKind,
    /// `HOST:PORT` of a gmond, or the URL of what Prometheus scrapes, in which `{address}` stands for a member's.
    pub at: String,
}

/// How a source is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// The XML of a Ganglia daemon.
    Ganglia,
    /// The text format of Prometheus, asked of each member.
    Prometheus,
}

/// The placeholder for a member's address in a source's URL.
const ADDRESS: &str = "{address}";
/// Sources that a policy has at most: each is asked in every turn.
pub const SOURCES_MAX: usize = 8;
/// The longest `at` of a source, in bytes.
const AT_BYTES_MAX: usize = 500;

impl Source {
    /// Where a member's figures are asked for: `host:port`, and the path of a URL.
    ///
    /// # Errors
    /// With what is wrong with `at` or with the address.
    pub fn endpoint(&self, address: &str) -> Result<(String, String), String> {
        if self.at.len() > AT_BYTES_MAX || !self.at.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("it must be 1 to {AT_BYTES_MAX} letters, digits and signs, without blanks"));
        }
        if self.kind == SourceKind::Ganglia {
            return match self.at.contains('/') || port_of(&self.at).is_none() {
                true => Err("it is no HOST:PORT; write one such as 10.0.0.1:8649".to_owned()),
                false => Ok((self.at.clone(), String::new())),
            };
        }
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
        if address.is_empty() || !address.bytes().all(is_host) {
            return Err(format!("{address:?} is no host and no address"));
        }
        let Some(rest) = self.at.strip_prefix("http://") else {
            return Err("it must begin with http://, and nothing else is spoken".to_owned());
        };
        if !rest.contains(ADDRESS) {
            return Err(format!("it lacks {ADDRESS}, so all members would have the same figures"));
        }
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(format!("it has a user's name; {KEEPS_NO_SECRETS}"));
        }
        let is_bare_ipv6 = address.contains(':') && !authority.contains(&format!("[{ADDRESS}]"));
        let in_authority = if is_bare_ipv6 { format!("[{address}]") } else { address.to_owned() };
        let mut host = authority.replace(ADDRESS, &in_authority);
        let is_without_port = host.ends_with(']') || !host.contains(':');
        if is_without_port {
            host.push_str(":80");
        }
        if port_of(&host).is_none() {
            return Err(
                "its host and port are wrong; write a URL such as http://{address}:9100/metrics".to_owned()
            );
        }
        let path = path.split('#').next().unwrap_or_default().replace(ADDRESS, address);
        Ok((host, if path.starts_with('/') { path } else { format!("/{path}") }))
    }

    /// The address without a user and without parameters, of which one may be a secret.
    pub fn told(&self) -> &str {
        let place = self.at.split('?').next().unwrap_or_default();
        place.rsplit_once('@').map_or(place, |(_, place)| place)
    }

    pub(super) fn check(&self, field: &str) -> Result<(), PolicyError> {
        let wrong = |why| PolicyError { field: format!("{field}.at"), why };
        self.endpoint("member").map(drop).map_err(wrong)?;
        // Only where a policy is given: one that is stored stays in force.
        match secret_parameter(&self.at) {
            Some(name) => Err(wrong(format!("its parameter {name:?} may be a secret; {KEEPS_NO_SECRETS}"))),
            None => Ok(()),
        }
    }
}

/// Why a source's URL has no secrets, and what to do instead.
const KEEPS_NO_SECRETS: &str = "the document of a fleet keeps no secrets, so let the exporter be asked without one, or \
    through a proxy beside the controller that adds it";
/// What is in the name of a parameter whose value is a secret.
const SECRET_PARTS: [&str; 7] = ["token", "secret", "passw", "pwd", "authorization", "cred", "signature"];
/// Whole names of such parameters, beside those that end with *key*.
const SECRET_WORDS: [&str; 4] = ["pass", "pw", "sig", "session"];

/// The first parameter of a URL's query whose name says that it is a secret. What has another name cannot be told apart from
/// what an exporter needs.
fn secret_parameter(path: &str) -> Option<&str> {
    let (_, query) = path.split('#').next()?.split_once('?')?;
    let mut names = query.split(['&', ';']).filter_map(|one| Some(one.split_once('=')?.0));
    names.find(|name| {
        let plain: String = name.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
        plain.ends_with("key")
            || SECRET_WORDS.contains(&plain.as_str())
            || SECRET_PARTS.iter().any(|part| plain.contains(part))
    })
}

/// The port of `host:port`, if it is one.
fn port_of(text: &str) -> Option<u16> {
    let (host, port) = text.rsplit_once(':')?;
    let is_host = !host.is_empty() && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'));
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    port.parse().ok().filter(|port| is_host && is_number && *port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(kind: SourceKind, at: &str, address: &str) -> Result<(String, String), String> {
        Source { kind, at: at.to_owned() }.endpoint(address)
    }

    #[test]
    fn a_source_says_where_each_member_is_asked() {
        let is = |at: &str, address: &str, host: &str, path: &str| {
            let found = endpoint(SourceKind::Prometheus, at, address);
            assert_eq!(found, Ok((host.to_owned(), path.to_owned())), "{at} of {address}");
        };
        is("http://{address}:9100/metrics", "10.0.0.1", "10.0.0.1:9100", "/metrics");
        is("http://{address}", "n1", "n1:80", "/");
        is("http://{address}:1/a?b=c#d", "fe80::1", "[fe80::1]:1", "/a?b=c");
        is("http://[{address}]:1", "fe80::1", "[fe80::1]:1", "/");
        is("http://[{address}]", "fe80::1", "[fe80::1]:80", "/");
        is("http://{address}?x", "n1", "n1:80", "/?x");
        is("http://probe:9/x?of={address}", "n1", "probe:9", "/x?of=n1");
        let ganglia = endpoint(SourceKind::Ganglia, "gmond:8649", "");
        assert_eq!(ganglia, Ok(("gmond:8649".to_owned(), String::new())));
        assert!(endpoint(SourceKind::Ganglia, "[::1]:8649", "").is_ok());
    }

    #[test]
    fn a_source_that_cannot_be_asked_is_refused() {
        let refused = |kind, at: &str, address: &str, why: &str| {
            let found = endpoint(kind, at, address);
            assert!(found.as_ref().is_err_and(|error| error.contains(why)), "{at} of {address:?}: {found:?}");
        };
        for at in [
            "gmond",
            "gmond:",
            ":8649",
            "gmond:0",
            "gmond:70000",
            "gmond:+1",
            "::1:8649",
            "http://gmond:8649",
        ] {
            refused(SourceKind::Ganglia, at, "", "is no HOST:PORT");
        }
        let prometheus = |at: &str, why: &str| refused(SourceKind::Prometheus, at, "n1", why);
        prometheus("https://{address}:9100/metrics", "must begin with http://");
        prometheus("http://n1:9100/metrics", "lacks {address}");
        for at in [
            "http://me:hunter2@{address}:9100/",
            "http://{address}:9100/metrics?token=hunter2",
            "http://{address}:9100/metrics?format=prometheus&Access_Token=hunter2",
            "http://{address}?x-api-key=hunter2#top",
            "http://{address}/a?b=c;key=hunter2",
            "http://probe:9/x?of={address}&X-Amz-Signature=hunter2",
        ] {
            let source = Source { kind: SourceKind::Prometheus, at: at.to_owned() };
            let why = source.check("sources[0]").unwrap_err().to_string();
            assert!(why.contains("keeps no secrets, so let the exporter be asked without one"), "{why}");
            assert!(!why.contains("hunter2") && !source.told().contains("hunter2"), "{why}");
            // One that an earlier program took stays in force, but for a user's name.
            assert_eq!(source.endpoint("n1").is_ok(), !at.contains('@'), "{at}");
        }
        for at in ["http://{address}?keyspace=shop&auth=public_v2", "http://{address}/token?match[]=monkeys"]
        {
            let source = Source { kind: SourceKind::Prometheus, at: at.to_owned() };
            assert_eq!(source.check("sources[0]"), Ok(()), "{at}");
        }
        let why = endpoint(SourceKind::Ganglia, "http://me:hunter2@gmond:8649", "").unwrap_err();
        assert!(!why.contains("hunter2"), "{why}");
        prometheus("http://{address}:x/", "host and port are wrong");
        prometheus("http://{address}:9100/a b", "without blanks");
        prometheus("http://{address}:9100/\r\nX:", "without blanks");
        for address in ["", "n1/x", "n1\r\nHost: x", "a@b"] {
            refused(SourceKind::Prometheus, "http://{address}:1/", address, "is no host");
        }
    }
}
