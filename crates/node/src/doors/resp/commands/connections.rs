//! Commands about who is connected: ACL WHOAMI and CLIENT KILL.

use bytes::Bytes;
use model::access::{Right, UserName};

use super::super::Door;
use super::super::arguments::integer;
use super::super::clients::Client;
use super::super::reply::DoorReply;
use super::super::rights::refused_without;
use super::super::session::Session;

/// The user of a connection in an open cluster, as Redis calls it.
pub(in super::super) const DEFAULT_USER: &str = "default";

/// `ACL WHOAMI`. Users are changed by the command line alone.
pub(super) fn acl(door: &Door, session: &Session, arguments: &[Bytes]) -> Result<DoorReply, DoorReply> {
    let sub = arguments[0].to_ascii_uppercase();
    match (sub.as_slice(), arguments.len()) {
        (b"WHOAMI", 1) => {
            let known = session.caller.user(door.front.replica().view());
            let name = known.ok().flatten().map_or(DEFAULT_USER.to_owned(), |known| known.name.to_string());
            Ok(DoorReply::text(name))
        }
        (b"WHOAMI", _) => Err(DoorReply::arity("acl|whoami")),
        _ => {
            let shown = String::from_utf8_lossy(&arguments[0]).into_owned();
            Err(DoorReply::err(format!(
                "unknown subcommand '{shown}': of ACL there is WHOAMI alone. Users and their rights are changed with `tontine \
                 user`."
            )))
        }
    }
}

/// Which connections are to be closed.
#[derive(Debug, Default)]
struct Filter {
    ids: Vec<u64>,
    peer: Option<String>,
    local: Option<String>,
    user: Option<String>,
    /// Whether connections of clients are meant at all: there are no others.
    is_other_kind: bool,
    /// Whether the connection that asks is meant, too.
    with_own: bool,
}

impl Filter {
    /// Reads `ID id … ADDR ip:port … USER name … SKIPME yes|no …`, in any order.
    fn parse(door: &Door, arguments: &[Bytes]) -> Result<Filter, DoorReply> {
        let mut filter = Filter::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(DoorReply::syntax)?;
            let text = || String::from_utf8_lossy(value).into_owned();
            match word.to_ascii_uppercase().as_slice() {
                b"ID" => {
                    let id = integer(value).ok().and_then(|id| u64::try_from(id).ok()).filter(|&id| id > 0);
                    filter.ids.push(id.ok_or_else(|| DoorReply::err("client-id should be greater than 0"))?);
                }
                b"ADDR" => filter.peer = Some(text()),
                b"LADDR" => filter.local = Some(text()),
                b"USER" => {
                    refuse_unknown(door, &text())?;
                    filter.user = Some(text());
                }
                b"TYPE" => match value.to_ascii_lowercase().as_slice() {
                    b"normal" => {}
                    b"master" | b"slave" | b"replica" | b"pubsub" => filter.is_other_kind = true,
                    _ => return Err(DoorReply::err(format!("Unknown client type '{}'", text()))),
                },
                b"SKIPME" => match value.to_ascii_lowercase().as_slice() {
                    b"yes" => filter.with_own = false,
                    b"no" => filter.with_own = true,
                    _ => return Err(DoorReply::syntax()),
                },
                _ => return Err(DoorReply::syntax()),
            }
        }
        Ok(filter)
    }

    fn means(&self, client: &Client, own: u64) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
        !self.is_other_kind
            && (self.ids.is_empty() || self.ids.contains(&client.id()))
            && (self.with_own || client.id() != own)
            && is(&self.peer, client.peer())
            && is(&self.local, client.local())
            && is(&self.user, &client.user())
    }
}

/// A user that there is not has no connections, and a name that is mistyped should not pass for one.
fn refuse_unknown(door: &Door, name: &str) -> Result<(), DoorReply> {
    let cluster = door.front.replica().view().get().cluster().clone();
    let is_known = match cluster.is_closed() {
        true => UserName::new(name).is_ok_and(|name| cluster.users.iter().any(|(known, _)| *known == name)),
        false => name == DEFAULT_USER,
    };
    // The connections of a user that was removed keep its name until they are closed.
    let is_shown = || door.shared.clients.lock().values().any(|client| client.user() == name);
    if is_known || is_shown() { Ok(()) } else { Err(DoorReply::err(format!("No such user '{name}'"))) }
}

/// `CLIENT KILL ip:port`, or `CLIENT KILL` with filters: closes connections of Redis clients of this node. What they have
/// begun is finished, and not answered.
pub(super) fn kill(door: &Door, session: &mut Session, arguments: &[Bytes]) -> Result<DoorReply, DoorReply> {
    refused_without(door, session, Right::Operate, "client|kill")?;
    let (filter, is_old_form) = match arguments {
        [] => return Err(DoorReply::arity("client|kill")),
        [peer] => {
            let peer = Some(String::from_utf8_lossy(peer).into_owned());
            (Filter { peer, with_own: true, ..Filter::default() }, true)
        }
        filters => (Filter::parse(door, filters)?, false),
    };
    let mut killed = 0;
    for client in door.shared.clients.lock().values() {
        if filter.means(client, session.id) {
            match client.id() == session.id {
                true => session.closes = true,
                false => client.kill(),
            }
            killed += 1;
        }
    }
    if killed > 0 {
        let by = session.caller.who(door.front.replica().view());
        tracing::info!(?by, from = session.peer, killed, "redis connections closed by a client");
    }
    match (is_old_form, killed) {
        (true, 0) => Err(DoorReply::err("No such client")),
        (true, _) => Ok(DoorReply::OK),
        (false, killed) => Ok(DoorReply::Integer(killed)),
    }
}
