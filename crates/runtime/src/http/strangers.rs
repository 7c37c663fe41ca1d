//! Whom a request comes from, as far as a browser tells: a web page must neither read nor write a server that its reader
//! can reach and it cannot.
//!
//! ```text
//!   a page of another site, in an operator's browser
//!     fetch(…)                ─▶ Origin is foreign
//!     <form method=post>      ─▶ Origin is foreign; an old browser sends none, but one of three content types
//!     <img src=…>, a link     ─▶ Sec-Fetch-Site says that another site asked
//!     its name now resolves   ─▶ Host is a name that is not ours (DNS rebinding)
//!     to 127.0.0.1
//! ```
//!
//! Programs send none of these, but for `Host`, which names what they connect to. By HTTP/1.0 they need
//! not, and load balancers that ask for health do not; no browser has sent such a request for decades.
//!
//! Must never: answer with a header that lets a page of another origin read (CORS).

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::header::{CONTENT_TYPE, HOST, ORIGIN};
use hyper::http::request::Parts;
use hyper::{Method, Version};

/// How the other end reached this server: a page's origin says it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// It does not say once, and in the same way everywhere, which host it means.
    NoHost,
    /// It means a host of another name.
    Host(String),
    /// A page of another origin sent it.
    Origin(String),
    /// A page of another site made the browser send it.
    Site(String),
    /// It is what a form sends.
    Form(String),
}

/// The content types of forms, which a page may send anywhere without asking.
const FORMS: [&str; 3] = ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];

/// Refuses what a page of another origin makes a browser send. `names` are the host names of this server, without ports;
/// its addresses and `localhost` need none. `scheme` is that of the connection: a page that came without TLS is another
/// origin than one that came with it.
///
/// # Errors
/// What tells that it does.
pub fn check(head: &Parts, names: &[String], scheme: Scheme) -> Result<(), Stranger> {
    let Parts { method, uri, headers, version, .. } = head;
    let text =
        |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let (origin, site) = (text(ORIGIN.as_str()), text("sec-fetch-site"));
    let mut hosts = headers.get_all(HOST).iter();
    let is_old_program = *version == Version::HTTP_10 && origin.is_none() && site.is_none();
    let host = match (hosts.next().map(|host| host.to_str()), hosts.next(), uri.authority()) {
        (Some(Ok(host)), None, None) => Some(host),
        (Some(Ok(host)), None, Some(named)) if named.as_str() == host => Some(host),
        (None, _, None) if is_old_program => None,
        _ => return Err(Stranger::NoHost),
    };
    if let Some(host) = host.filter(|host| !is_ours(host, names)) {
        return Err(Stranger::Host(host.to_owned()));
    }
    let scheme = match scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    };
    let is_own =
        |origin: &str| origin.eq_ignore_ascii_case(&format!("{scheme}://{}", host.unwrap_or_default()));
    if headers.get_all(ORIGIN).iter().count() > 1 || origin.as_deref().is_some_and(|origin| !is_own(origin)) {
        return Err(Stranger::Origin(origin.unwrap_or_default()));
    }
    // Another port of the same host is the same site, and may serve anything.
    if let Some(site) = site.filter(|site| !["none", "same-origin"].contains(&site.as_str())) {
        return Err(Stranger::Site(site));
    }
    let kind = text(CONTENT_TYPE.as_str()).unwrap_or_default();
    let bare = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    // Only POST needs no leave from us. With another method the type is a habit of tools, such as `curl -d`.
    if (method == Method::POST || origin.is_some()) && FORMS.contains(&bare.as_str()) {
        return Err(Stranger::Form(bare));
    }
    Ok(())
}

/// Whether a `Host` names this server: by an address, as `localhost`, or by one of its names.
fn is_ours(host: &str, names: &[String]) -> bool {
    let is_port =
        |port: &str| port.parse::<u16>().is_ok() && port.bytes().all(|digit| digit.is_ascii_digit());
    if let Some(rest) = host.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        return address.parse::<Ipv6Addr>().is_ok()
            && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    }
    let name = match host.split_once(':') {
        Some((name, port)) if is_port(port) => name,
        Some(_) => return false,
        None => host,
    };
    name.parse::<Ipv4Addr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(method: &str, uri: &str, lines: &[(&'static str, &str)]) -> Result<(), Stranger> {
        checked_by(Version::HTTP_11, method, uri, lines)
    }

    fn checked_by(
        version: Version,
        method: &str,
        uri: &str,
        lines: &[(&'static str, &str)],
    ) -> Result<(), Stranger> {
        let mut request = hyper::Request::builder().version(version).method(method).uri(uri);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap().into_parts().0, &["n1.example".to_owned()], Scheme::Http)
    }

    #[test]
    fn the_origin_of_a_page_of_ours_has_the_scheme_of_its_connection() {
        let from = |origin: &str, scheme| {
            let request = hyper::Request::builder().header("host", "localhost:7601").header("origin", origin);
            check(&request.body(()).unwrap().into_parts().0, &[], scheme)
        };
        let (plain, encrypted) = ("http://localhost:7601", "https://localhost:7601");
        assert_eq!((from(plain, Scheme::Http), from(encrypted, Scheme::Https)), (Ok(()), Ok(())));
        assert_eq!(from(encrypted, Scheme::Http), Err(Stranger::Origin(encrypted.to_owned())));
        assert_eq!(from(plain, Scheme::Https), Err(Stranger::Origin(plain.to_owned())));
        assert!(from("https://evil.example", Scheme::Https).is_err() && from("null", Scheme::Https).is_err());
    }

    #[test]
    fn a_load_balancer_may_leave_out_the_host_by_http_1_0_and_a_browser_may_not() {
        let old = |uri: &str, lines: &[(&'static str, &str)]| checked_by(Version::HTTP_10, "GET", uri, lines);
        assert_eq!(old("/ready", &[]), Ok(()));
        assert_eq!(old("/ready", &[("host", "127.0.0.1")]), Ok(()));
        assert_eq!(
            old("/ready", &[("host", "evil.example")]),
            Err(Stranger::Host("evil.example".to_owned()))
        );
        for lines in [("origin", "http://evil.example"), ("sec-fetch-site", "none")] {
            assert_eq!(old("/ready", &[lines]), Err(Stranger::NoHost));
        }
        assert_eq!(old("http://evil.example/ready", &[]), Err(Stranger::NoHost));
        assert_eq!(checked("GET", "/ready", &[]), Err(Stranger::NoHost));
    }

    #[test]
    fn programs_name_an_address_localhost_or_a_name_of_the_server() {
        for host in [
            "127.0.0.1:7601",
            "127.0.0.1",
            "10.0.0.9:80",
            "[::1]:7601",
            "[::1]",
            "localhost:7601",
            "LocalHost",
            "N1.example:7601",
        ] {
            assert_eq!(checked("GET", "/health", &[("host", host)]), Ok(()), "{host}");
        }
        assert_eq!(checked("GET", "http://localhost:1/health", &[("host", "localhost:1")]), Ok(()));
    }

    #[test]
    fn a_name_that_is_not_ours_is_refused() {
        for host in [
            "evil.example",
            "evil.example:7601",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "n1.example.evil",
            "user@127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:x",
            "127.0.0.1:+1",
            "[::1",
            "[evil]",
            "[::1]x",
            "::1",
            "2130706433",
            "0x7f.1",
            "",
        ] {
            let refused = checked("GET", "/health", &[("host", host)]);
            assert_eq!(refused, Err(Stranger::Host(host.to_owned())));
        }
        assert_eq!(checked("GET", "/", &[]), Err(Stranger::NoHost));
        assert_eq!(
            checked("GET", "/", &[("host", "localhost"), ("host", "localhost")]),
            Err(Stranger::NoHost)
        );
        let other = checked("GET", "http://evil.example/", &[("host", "localhost")]);
        assert_eq!(other, Err(Stranger::NoHost));
    }

    #[test]
    fn a_page_of_another_origin_is_refused_and_one_of_ours_is_not() {
        let from = |origin: &str| checked("PUT", "/", &[("host", "localhost:7601"), ("origin", origin)]);
        assert_eq!(from("http://localhost:7601"), Ok(()));
        for origin in [
            "null",
            "http://localhost:3000",
            "https://localhost:7601",
            "http://localhost",
            "http://evil.example",
            "",
        ] {
            assert_eq!(from(origin), Err(Stranger::Origin(origin.to_owned())));
        }
        let two = [("host", "a"), ("origin", "http://127.0.0.1"), ("origin", "http://127.0.0.1")];
        assert!(checked("GET", "/", &[("host", "127.0.0.1"), two[1], two[2]]).is_err());
        let site = |site: &str| checked("GET", "/", &[("host", "localhost"), ("sec-fetch-site", site)]);
        assert_eq!((site("none"), site("same-origin")), (Ok(()), Ok(())));
        for other in ["cross-site", "same-site", "anything"] {
            assert_eq!(site(other), Err(Stranger::Site(other.to_owned())));
        }
    }

    #[test]
    fn a_form_is_refused_and_a_tool_that_names_its_type_is_not() {
        let sent = |method: &str, kind: &str, more: &[(&'static str, &str)]| {
            checked(method, "/", &[&[("host", "localhost"), ("content-type", kind)], more].concat())
        };
        for kind in [
            "application/x-www-form-urlencoded",
            "Multipart/Form-Data; boundary=x",
            "text/plain;charset=utf-8",
        ] {
            assert!(matches!(sent("POST", kind, &[]), Err(Stranger::Form(_))), "{kind}");
            assert!(
                matches!(sent("PUT", kind, &[("origin", "http://localhost")]), Err(Stranger::Form(_))),
                "{kind}"
            );
            assert_eq!(sent("PUT", kind, &[]), Ok(()), "{kind}");
        }
        assert_eq!(sent("POST", "application/json", &[]), Ok(()));
    }
}
