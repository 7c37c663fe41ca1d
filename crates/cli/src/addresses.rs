//! Where a node listens, and where others reach it.
//!
//! | option | without it |
//! |---|---|
//! | `--listen` | where the cluster document says that the node is; for a new node a free port of 127.0.0.1 |
//! | `--resp` | the host of `--listen`, and its port and a hundred |
//! | `--http` | the host of `--listen`, and its port and two hundred |
//! | `--advertise` | the address of `--listen` |
//!
//! What others reach is the advertised address: whether a node is *local*, reached from its own machine only, is told by
//! that one. A Redis or HTTP address that only this machine reaches is published in a cluster of such nodes alone.
//!
//! Must never: let a node into the cluster that the others cannot reach, as far as that can be told here.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use coordination::address::Address;
use model::Node;
use node::Advertised;

use crate::failure::CliError;

/// First native port of a node that is told no address.
const NATIVE_PORT_FIRST: u16 = 7401;
/// Ports that it tries.
const PORTS_TRIED: u16 = 99;
/// From a node's native port to its Redis port.
const RESP_PORT_OFFSET: u16 = 100;
/// From a node's native port to its HTTP port.
const HTTP_PORT_OFFSET: u16 = 200;

/// Where a node is.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Addresses")]
pub struct AddressArguments {
    /// Where to listen for the native protocol. The default is a free port of 127.0.0.1 for a new node, and the node's
    /// last address after that.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Address that other nodes and clients connect to, if it is not the one of --listen: a host name, or one address of
    /// a machine that listens on all of them (--listen 0.0.0.0:7401).
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Where to listen for Redis clients, or `off`. The default is the host of --listen, with its port plus 100. If other
    /// machines reach the node, a loopback address is not announced: give it at each start.
    #[arg(long, value_name = "HOST:PORT")]
    pub resp: Option<String>,
    /// Where to listen for HTTP clients, or `off`. The default is the host of --listen, with its port plus 200; a member
    /// keeps what it had. If other machines reach the node, a loopback address is not announced: give it at each start.
    #[arg(long, value_name = "HOST:PORT")]
    pub http: Option<String>,
    /// The address of --advertise belongs to another machine that forwards to this one, such as a NAT gateway or the host
    /// of a container. Without this option, such an address is refused.
    #[arg(long, requires = "advertise")]
    pub forwarded: bool,
    /// Listen on other addresses than loopback although neither clients nor nodes are authenticated and nothing is
    /// encrypted: anyone who can reach the ports can read and change all data.
    #[arg(long)]
    pub insecure: bool,
    /// Whether others call the node with TLS: set by how the node runs.
    #[arg(skip)]
    pub is_called_with_tls: bool,
}

/// Where a node listens, and where others reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// Where it listens for the native protocol.
    pub(crate) native: String,
    /// Where it listens for Redis clients.
    pub(crate) resp: Option<String>,
    /// Where it listens for HTTP clients.
    pub(crate) http: Option<String>,
    /// Where others reach all of them.
    pub(crate) advertised: Advertised,
}

/// `HOST:PORT`, with an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    fn parse(option: &str, text: &str) -> Result<HostPort, CliError> {
        let refused = |why: &str| {
            CliError::Usage(format!(
                "{option} takes HOST:PORT, such as 10.0.0.1:7401 or [::1]:7401; {text:?} {why}"
            ))
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| refused("has no port"))?;
        let port: u16 = port.parse().map_err(|_| refused("has no port from 1 to 65535"))?;
        if port == 0 {
            return Err(refused("has port 0, and the others could not know the port that is taken then"));
        }
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_good = match bare {
            Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
                (1..=HOST_BYTES_MAX).contains(&host.len()) && host.chars().all(is_letter)
            }
        };
        match is_good {
            true => Ok(HostPort { host: host.to_owned(), port }),
            false => Err(refused("names no host")),
        }
    }

    fn text(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Whether it says by itself that only its own machine reaches it.
    fn is_local(&self) -> bool {
        let host = bare(&self.host);
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    fn resolve(&self, option: &str) -> Result<Vec<IpAddr>, CliError> {
        let text = self.text();
        let found: Vec<SocketAddr> = text
            .to_socket_addrs()
            .map_err(CliError::io(format!("cannot resolve {option} {text}")))?
            .collect();
        Ok(found.iter().map(SocketAddr::ip).collect())
    }
}

/// Longest name of a host: that of the domain name system.
const HOST_BYTES_MAX: usize = 253;

impl AddressArguments {
    /// What the options mean for a node that the cluster document knows as `known`, or not yet, beside `others`.
    ///
    /// # Errors
    /// What cannot be, and what to say instead.
    pub(crate) fn settle(&self, known: Option<&Node>, others: &[Node]) -> Result<Addresses, CliError> {
        let asked = |option, text: &Option<String>| {
            text.as_deref().map(|text| HostPort::parse(option, text)).transpose()
        };
        let advertise = asked("--advertise", &self.advertise)?;
        let listen = match (asked("--listen", &self.listen)?, &advertise, known) {
            (Some(listen), _, _) => listen,
            (None, Some(advertise), _) => advertise.clone(),
            (None, None, Some(known)) => HostPort::parse("the cluster document", &known.native)?,
            (None, None, None) => free(others)?,
        };
        let stays = known.filter(|_| self.listen.is_none() && advertise.is_none());
        let resp = RESP.settle(self.resp.as_deref(), stays.map(|node| node.resp.as_deref()), &listen)?;
        // A member without HTTP gets none unasked, so that an upgrade opens no port.
        let http_stays = stays.or(known.filter(|node| node.http.is_none()));
        let http = HTTP.settle(self.http.as_deref(), http_stays.map(|node| node.http.as_deref()), &listen)?;
        if http.is_some() && http == resp {
            return Err(CliError::Usage(format!(
                "--http and --resp both name {}; choose another port for HTTP clients, or --http off",
                resp.as_ref().unwrap_or(&listen).text()
            )));
        }
        let advertised = self.advertised(&listen, (resp.as_ref(), http.as_ref()), advertise)?;
        let addresses = Addresses {
            native: listen.text(),
            resp: resp.as_ref().map(HostPort::text),
            http: http.as_ref().map(HostPort::text),
            advertised,
        };
        let id = known.map(|node| node.id);
        let others: Vec<&Node> = others.iter().filter(|other| Some(other.id) != id).collect();
        refuse_taken(&addresses.advertised, &others)?;
        refuse_open(self.insecure, &addresses)?;
        if !self.forwarded {
            check_mixed(&addresses, known.is_some(), &others)?;
        }
        Ok(addresses)
    }

    /// The address at which others shall reach the node, as it was typed.
    pub(crate) fn asked(&self) -> Option<&str> {
        self.advertise.as_deref().or(self.listen.as_deref())
    }

    /// Whether the address of a new node is our choice, which another one may be as well.
    pub(crate) fn is_chosen(&self) -> bool {
        self.listen.is_none() && self.advertise.is_none()
    }

    /// Asks a new node for an address where other machines share its documents: a port of 127.0.0.1 would be of no use.
    ///
    /// # Errors
    /// When none is named.
    pub(crate) fn named_for(&self, service: &Address) -> Result<(), CliError> {
        if self.listen.is_some() || self.advertise.is_some() || is_of_one_machine(service) {
            return Ok(());
        }
        Err(CliError::Usage(format!(
            "nodes of other machines share {service}, and could not reach this one; name an address of this machine that \
             they reach with --listen HOST:7401 --insecure, or --listen 127.0.0.1:7401 if all nodes are on this machine"
        )))
    }

    /// Where others reach what listens there.
    fn advertised(
        &self,
        listen: &HostPort,
        (resp, http): (Option<&HostPort>, Option<&HostPort>),
        advertise: Option<HostPort>,
    ) -> Result<Advertised, CliError> {
        let is_given = advertise.is_some();
        let native = advertise.unwrap_or_else(|| listen.clone());
        let option = if is_given { "--advertise" } else { "--listen" };
        if !self.forwarded {
            let found = native.resolve(option)?;
            if found.iter().any(IpAddr::is_unspecified) {
                return Err(CliError::Usage(format!(
                    "nobody can connect to {}; name the address of this machine that the other nodes use with \
                     --advertise HOST:PORT",
                    native.text()
                )));
            }
            if !found.iter().any(|ip| is_ours(*ip)) {
                // A machine that has just started may get it yet.
                let refused = CliError::Usage(format!(
                    "{option} {} is not an address of this machine; correct it, or add --forwarded if another machine \
                     forwards it to this one",
                    native.text()
                ));
                return Err(refused.later());
            }
            refuse_unheard(listen, &native, &found)?;
        }
        let told = |door: Option<&HostPort>| match door {
            Some(door) if door.host == listen.host || is_everywhere(&door.host) => {
                Some(HostPort { host: native.host.clone(), port: door.port }.text())
            }
            // Of as little use to others as theirs would be to us.
            Some(door) if door.is_local() && !native.is_local() => None,
            other => other.map(HostPort::text),
        };
        let tls = self.is_called_with_tls;
        Ok(Advertised { native: native.text(), resp: told(resp), http: told(http), tls })
    }
}

/// Refuses to tell others an address that is not listened to.
fn refuse_unheard(listen: &HostPort, native: &HostPort, advertised: &[IpAddr]) -> Result<(), CliError> {
    let heard = listen.resolve("--listen")?;
    // Many machines resolve their own name to loopback, which the others do not.
    let is_own_name = bare(&native.host).parse::<IpAddr>().is_err()
        && !native.is_local()
        && !heard.iter().all(IpAddr::is_loopback);
    let is_heard = is_own_name || heard.iter().any(|ip| ip.is_unspecified() || advertised.contains(ip));
    match is_heard && listen.port == native.port {
        true => Ok(()),
        false => Err(CliError::Usage(format!(
            "--advertise {} is not listened to by --listen {}; name the same port and an address that is, or add \
             --forwarded if something forwards it",
            native.text(),
            listen.text()
        ))),
    }
}

/// Whether nodes of other machines cannot share the service.
pub(crate) fn is_of_one_machine(service: &Address) -> bool {
    match service {
        Address::Directory(_) => true,
        Address::ZooKeeper(address) => address.servers.iter().any(|server| is_local(server)),
    }
}

/// Whether `HOST:PORT` says by itself that only its own machine reaches it.
pub(crate) fn is_local(address: &str) -> bool {
    HostPort::parse("an address", address).is_ok_and(|address| address.is_local())
}

/// A door beside the native protocol.
struct ThinDoor {
    option: &'static str,
    clients: &'static str,
    /// From the native port to its own.
    offset: u16,
}

const RESP: ThinDoor = ThinDoor { option: "--resp", clients: "Redis", offset: RESP_PORT_OFFSET };
const HTTP: ThinDoor = ThinDoor { option: "--http", clients: "HTTP", offset: HTTP_PORT_OFFSET };

impl ThinDoor {
    /// Where it is: as `asked`, or where the document of a node that `stays` has it, or beside the native port.
    fn settle(
        &self,
        asked: Option<&str>,
        stays: Option<Option<&str>>,
        listen: &HostPort,
    ) -> Result<Option<HostPort>, CliError> {
        let ThinDoor { option, clients, offset } = self;
        let settled = match (asked, stays) {
            (Some("off"), _) => None,
            (Some(text), _) => Some(HostPort::parse(option, text)?),
            (None, Some(known)) => {
                known.map(|text| HostPort::parse("the cluster document", text)).transpose()?
            }
            (None, None) => {
                let port = listen.port.checked_add(*offset).ok_or_else(|| {
                    CliError::Usage(format!(
                        "there is no port {} + {offset}; choose the port of {clients} clients with {option}",
                        listen.port
                    ))
                })?;
                Some(HostPort { host: listen.host.clone(), port })
            }
        };
        if settled.as_ref() == Some(listen) {
            return Err(CliError::Usage(format!(
                "{option} and --listen both name {}; choose another port for {clients} clients, or {option} off",
                listen.text()
            )));
        }
        Ok(settled)
    }
}

fn is_everywhere(host: &str) -> bool {
    bare(host).parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether an interface of this machine has the address: only then the system lets us use it.
fn is_ours(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// An address of this machine alone, whose ports are free and promised to nobody.
fn free(others: &[Node]) -> Result<HostPort, CliError> {
    let is_free = |port: u16| {
        let address = format!("127.0.0.1:{port}");
        let is_promised = |node: &Node| {
            [Some(&node.native), node.resp.as_ref(), node.http.as_ref()].contains(&Some(&address))
        };
        TcpListener::bind(&address).is_ok() && !others.iter().any(is_promised)
    };
    let mut ports = NATIVE_PORT_FIRST..NATIVE_PORT_FIRST + PORTS_TRIED;
    let doors = [0, RESP_PORT_OFFSET, HTTP_PORT_OFFSET];
    let port = ports.find(|&port| doors.iter().all(|door| is_free(port + door))).ok_or_else(|| {
        CliError::Other(format!(
            "no port of 127.0.0.1 from {NATIVE_PORT_FIRST} to {} is free; choose one with --listen",
            NATIVE_PORT_FIRST + PORTS_TRIED - 1
        ))
    })?;
    Ok(HostPort { host: "127.0.0.1".to_owned(), port })
}

/// Refuses an address that another node has.
fn refuse_taken(own: &Advertised, others: &[&Node]) -> Result<(), CliError> {
    let own = [Some(own.native.as_str()), own.resp.as_deref(), own.http.as_deref()];
    for other in others {
        let theirs = [Some(other.native.as_str()), other.resp.as_deref(), other.http.as_deref()];
        if let Some(address) = own.into_iter().flatten().find(|address| theirs.contains(&Some(*address))) {
            return Err(CliError::Other(format!(
                "{} already has the address {address}; give this node another one with --listen, --resp, --http or --advertise",
                other.id
            )));
        }
    }
    Ok(())
}

/// Refuses to listen where other machines reach us, unless somebody said that this is meant. Says whether only this
/// machine reaches us.
pub(crate) fn refuse_open(insecure: bool, addresses: &Addresses) -> Result<bool, CliError> {
    let mut is_loopback = true;
    let Addresses { native, resp, http, .. } = addresses;
    for (option, text) in [("--listen", Some(native)), ("--resp", resp.as_ref()), ("--http", http.as_ref())] {
        let Some(text) = text else { continue };
        let address = HostPort::parse(option, text)?;
        if address.resolve(option)?.iter().all(IpAddr::is_loopback) {
            continue;
        }
        is_loopback &= option != "--listen";
        if !insecure {
            return Err(CliError::Usage(format!(
                "{text} can be reached from other machines, and the cluster has no users, or lets `anyone` do what it likes: \
                 everybody who reaches it could read and change all data; listen on a loopback address, close the cluster (docs/operating/closing.md), or \
                 keep the network closed to others and add --insecure"
            )));
        }
    }
    Ok(is_loopback)
}

/// Refuses a new node that the machines of the others cannot reach, and one whose machine cannot reach the others.
/// Members change one after the other: they are told.
fn check_mixed(own: &Addresses, is_member: bool, others: &[&Node]) -> Result<(), CliError> {
    let listen = HostPort::parse("--listen", &own.native)?;
    let advertised = HostPort::parse("--advertise", &own.advertised.native)?;
    let is_local = advertised.is_local() || listen.resolve("--listen")?.iter().all(IpAddr::is_loopback);
    match mixed(is_local, &own.advertised.native, others) {
        Some(text) if is_member => say!("warning: {text}"),
        Some(text) => return Err(CliError::Usage(text)),
        None => {}
    }
    Ok(())
}

/// What is wrong when some nodes are reached from their own machine only, and others are on many.
fn mixed(is_loopback: bool, own: &str, others: &[&Node]) -> Option<String> {
    let other = others.iter().find(|node| is_local(&node.native) != is_loopback)?;
    Some(match is_loopback {
        true => format!(
            "{own} can be reached from this machine only, and {} is at {}; name an address that the other machines reach \
             with --listen HOST:PORT",
            other.id, other.native
        ),
        false => format!(
            "{} is at {}, which can be reached from its own machine only; start it again with an address that other \
             machines reach (--listen HOST:PORT), or this node with a loopback address",
            other.id, other.native
        ),
    })
}

#[cfg(test)]
mod tests {
    use model::{NodeId, Zone};

    use super::*;

    fn node(id: u32, native: &str) -> Node {
        Node::new(NodeId(id), Zone("a".to_owned()), native, None)
    }

    fn arguments(words: &str) -> AddressArguments {
        #[derive(clap::Parser)]
        struct Serve {
            #[command(flatten)]
            addresses: AddressArguments,
        }
        clap::Parser::try_parse_from(format!("serve {words}").split_whitespace())
            .map(|Serve { addresses }| addresses)
            .unwrap()
    }

    fn settled(
        words: &str,
        known: Option<&Node>,
        others: &[Node],
    ) -> (String, Option<String>, String, Option<String>) {
        let Addresses { native, resp, advertised, .. } = arguments(words).settle(known, others).unwrap();
        (native, resp, advertised.native, advertised.resp)
    }

    fn refusal(words: &str, others: &[Node]) -> String {
        arguments(words).settle(None, others).unwrap_err().to_string()
    }

    fn own(text: &str) -> String {
        text.to_owned()
    }

    #[test]
    fn listening_and_advertising_follow_from_what_is_said() {
        let all = |native: &str, resp: &str| (own(native), Some(own(resp)), own(native), Some(own(resp)));
        assert_eq!(settled("--listen 127.0.0.1:6000", None, &[]), all("127.0.0.1:6000", "127.0.0.1:6100"));
        assert_eq!(settled("--listen [::1]:6000", None, &[]), all("[::1]:6000", "[::1]:6100"));
        assert_eq!(settled("--advertise localhost:6000", None, &[]), all("localhost:6000", "localhost:6100"));
        let (native, resp, advertised, advertised_resp) = settled(
            "--listen 0.0.0.0:6000 --resp 0.0.0.0:6379 --advertise 127.0.0.2:6000 --insecure",
            None,
            &[],
        );
        assert_eq!((native, resp), (own("0.0.0.0:6000"), Some(own("0.0.0.0:6379"))));
        assert_eq!((advertised, advertised_resp), (own("127.0.0.2:6000"), Some(own("127.0.0.2:6379"))));
        assert_eq!(settled("--listen 127.0.0.1:6000 --resp off", None, &[]).3, None);
        let known = Node { resp: Some(own("127.0.0.1:1")), ..node(1, "127.0.0.1:6001") };
        assert_eq!(
            settled("", Some(&known), std::slice::from_ref(&known)),
            all("127.0.0.1:6001", "127.0.0.1:1")
        );
        let elsewhere = settled("--listen 127.0.0.1:6002", Some(&known), std::slice::from_ref(&known));
        assert_eq!(elsewhere, all("127.0.0.1:6002", "127.0.0.1:6102"));
        let forwarded = "--listen 127.0.0.1:6000 --advertise shop.example:7401 --forwarded";
        assert_eq!(settled(forwarded, None, &[node(1, "10.0.0.1:7401")]).2, "shop.example:7401");
        let first = settled("", None, &[]).0;
        let second = settled("", None, &[node(1, &first)]).0;
        assert!(first.starts_with("127.0.0.1:74") && second.starts_with("127.0.0.1:74"), "{first} {second}");
        assert_ne!(first, second, "an address that somebody has is not free");
    }

    #[test]
    fn addresses_that_cannot_be_are_refused() {
        let other = [node(2, "127.0.0.1:6000"), node(3, "127.0.0.1:6100")];
        let cases = [
            ("--listen 127.0.0.1", "has no port"),
            ("--listen 127.0.0.1:x", "has no port from 1"),
            ("--listen 127.0.0.1:0", "has port 0"),
            ("--listen ::1:6000", "names no host"),
            ("--listen :6000", "names no host"),
            ("--listen 0.0.0.0:6000", "name the address of this machine that the other nodes use"),
            ("--listen 127.0.0.1:6000 --advertise 0.0.0.0:6000", "nobody can connect to 0.0.0.0:6000"),
            ("--listen 0.0.0.0:6009 --advertise 127.0.0.1:6009", "and add --insecure"),
            ("--listen 127.0.0.1:6009 --resp 0.0.0.0:1", "0.0.0.0:1 can be reached from other machines"),
            ("--listen 127.0.0.1:6009 --advertise 192.0.2.1:6009", "is not an address of this machine"),
            ("--listen 127.0.0.1:6009 --advertise no-such-host.invalid:1", "cannot resolve --advertise"),
            ("--listen 127.0.0.1:65500", "there is no port 65500 + 100"),
            ("--listen 127.0.0.1:65400", "there is no port 65400 + 200"),
            ("--listen 127.0.0.1:6009 --http 127.0.0.1:6109", "--http and --resp both name 127.0.0.1:6109"),
            ("--listen 127.0.0.1:6009 --http 127.0.0.1:6009", "--http and --listen both name 127.0.0.1:6009"),
            ("--listen 127.0.0.1:6009 --http 0.0.0.0:1", "0.0.0.0:1 can be reached from other machines"),
            ("--listen 127.0.0.1:6009 --http 127.0.0.1:6100", "n3 already has the address 127.0.0.1:6100"),
            (
                "--listen 127.0.0.1:6009 --advertise 127.0.0.2:6009",
                "is not listened to by --listen 127.0.0.1:6009",
            ),
            (
                "--listen 127.0.0.1:6009 --advertise 127.0.0.1:6010",
                "is not listened to by --listen 127.0.0.1:6009",
            ),
            ("--listen 127.0.0.1:6009 --resp 127.0.0.1:6009", "both name 127.0.0.1:6009"),
            ("--listen 127.0.0.1:6000", "n2 already has the address 127.0.0.1:6000"),
            ("--listen 127.0.0.1:6009 --resp 127.0.0.1:6100", "n3 already has the address 127.0.0.1:6100"),
        ];
        for (words, expected) in cases {
            let refused = refusal(words, &other);
            assert!(refused.contains(expected), "{words}: {refused}");
        }
        let remote = [node(2, "10.0.0.2:7401")];
        let refused = refusal("--listen 127.0.0.1:6000", &remote);
        assert!(
            refused.contains("127.0.0.1:6000 can be reached from this machine only, and n2"),
            "{refused}"
        );
        // What counts is what the others reach, and not what is listened to.
        let refused = refusal("--listen 0.0.0.0:6000 --advertise 127.0.0.1:6000 --insecure", &remote);
        assert!(refused.contains("127.0.0.1:6000 can be reached from this machine only"), "{refused}");
    }

    #[test]
    fn members_go_over_to_another_kind_of_address_one_after_the_other() {
        let members = [node(1, "127.0.0.1:6001"), node(2, "10.0.0.2:7401")];
        for (words, native) in [("", "127.0.0.1:6001"), ("--listen 127.0.0.1:6002", "127.0.0.1:6002")] {
            assert_eq!(settled(words, Some(&members[0]), &members).2, native, "{words:?}");
        }
        let local = [node(1, "127.0.0.1:6001")];
        let own_name = "--listen 0.0.0.0:6000 --advertise 127.0.0.1:6000 --insecure";
        assert_eq!(settled(own_name, Some(&members[1]), &local).2, "127.0.0.1:6000");
    }

    #[test]
    fn a_redis_address_that_others_cannot_reach_is_told_to_nobody_and_taken_by_many() {
        let other = Node { resp: Some(own("127.0.0.1:6379")), ..node(2, "gateway.example:7401") };
        let words = "--listen 127.0.0.1:6000 --advertise shop.example:7401 --forwarded --resp localhost:6379";
        let (_, resp, _, advertised) = settled(words, None, std::slice::from_ref(&other));
        assert_eq!((resp, advertised), (Some(own("localhost:6379")), None));
    }

    #[test]
    fn http_is_beside_the_native_port_unless_it_is_named_or_off_and_a_member_keeps_what_it_had() {
        let http = |words: &str, known: Option<&Node>| {
            let addresses = arguments(words).settle(known, &[]).unwrap();
            (addresses.http, addresses.advertised.http)
        };
        let both = |text: &str| (Some(own(text)), Some(own(text)));
        assert_eq!(http("--listen 127.0.0.1:6000", None), both("127.0.0.1:6200"));
        assert_eq!(http("--listen 127.0.0.1:6000 --http localhost:80", None), both("localhost:80"));
        assert_eq!(http("--listen 127.0.0.1:6000 --http off", None), (None, None));
        let with = Node { http: Some(own("127.0.0.1:6666")), ..node(1, "127.0.0.1:6001") };
        assert_eq!(http("", Some(&with)), both("127.0.0.1:6666"));
        assert_eq!(http("--http off", Some(&with)), (None, None));
        let without = node(1, "127.0.0.1:6001");
        for words in ["", "--listen 127.0.0.1:6001", "--listen 127.0.0.1:6002", "--advertise 127.0.0.1:6001"]
        {
            assert_eq!(http(words, Some(&without)), (None, None), "{words:?}: as an earlier version left it");
        }
        assert_eq!(http("--listen 127.0.0.1:6002", Some(&with)), both("127.0.0.1:6202"));
        assert_eq!(http("--http 127.0.0.1:1", Some(&node(1, "127.0.0.1:6001"))), both("127.0.0.1:1"));
        let everywhere = "--listen 0.0.0.0:6000 --advertise 127.0.0.2:6000 --insecure";
        assert_eq!(http(everywhere, None), (Some(own("0.0.0.0:6200")), Some(own("127.0.0.2:6200"))));
    }

    #[test]
    fn a_new_node_names_its_address_where_other_machines_share_the_documents() {
        let named = |words: &str, service: &str| arguments(words).named_for(&service.parse().unwrap());
        let shared = "zookeeper://zk1:2181,zk2:2181/shop";
        let refused = named("", shared).unwrap_err().to_string();
        assert!(refused.contains("--listen HOST:7401 --insecure"), "{refused}");
        for (words, service) in [
            ("--listen 127.0.0.1:7401", shared),
            ("--advertise shop1:7401", shared),
            ("", "zookeeper://127.0.0.1:2181/shop"),
            ("", "zookeeper://[::1]:2181/shop"),
            ("", "zookeeper://localhost:2181/shop"),
            ("", "dir:x"),
        ] {
            assert!(named(words, service).is_ok(), "{words} {service}");
        }
    }
}
