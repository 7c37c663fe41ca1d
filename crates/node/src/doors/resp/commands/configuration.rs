//! CONFIG GET of what clients and tools ask for. Nothing can be set here: what a node may do is said when it starts.

use bytes::Bytes;
use model::limits::VALUE_BYTES_MAX;

use super::super::Door;
use super::super::glob;
use super::super::reply::DoorReply;
use super::super::session::Session;

pub(super) fn config(door: &Door, session: &Session, arguments: &[Bytes]) -> Result<DoorReply, DoorReply> {
    let sub = arguments[0].to_ascii_lowercase();
    match (sub.as_slice(), &arguments[1..]) {
        (b"get", []) => Err(DoorReply::arity("config|get")),
        (b"get", patterns) => {
            let wanted = |name: &str| {
                let matching =
                    |pattern: &Bytes| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes());
                patterns.iter().any(matching)
            };
            let settings = settings(door, session).into_iter().filter(|(name, _)| wanted(name));
            Ok(DoorReply::Map(
                settings.map(|(name, value)| (DoorReply::text(name), DoorReply::text(value))).collect(),
            ))
        }
        (b"set" | b"rewrite", _) => Err(DoorReply::err(
            "a client cannot change settings: CONFIG SET and CONFIG REWRITE are refused. Use the options of `tontine \
             node`.",
        )),
        (b"resetstat", _) => Err(DoorReply::err("counters only grow here: CONFIG RESETSTAT is refused.")),
        _ => {
            let shown = String::from_utf8_lossy(&arguments[0]).into_owned();
            Err(DoorReply::err(format!("unknown subcommand '{shown}'. Try CONFIG GET.")))
        }
    }
}

/// What is true here of the settings that are asked for: a store evicts nothing, and keeps what it has acknowledged as
/// its engine and its durability setting say.
fn settings(door: &Door, session: &Session) -> Vec<(&'static str, String)> {
    let keeps =
        door.front.current(&session.store).is_ok_and(|(_, store)| store.engine().stats().disk_bytes > 0);
    vec![
        ("appendonly", if keeps { "yes" } else { "no" }.to_owned()),
        ("cluster-enabled", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", door.shared.admission.limits().connections_max.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("notify-keyspace-events", String::new()),
        ("port", door.shared.options.port.to_string()),
        ("proto-max-bulk-len", VALUE_BYTES_MAX.to_string()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ]
}
