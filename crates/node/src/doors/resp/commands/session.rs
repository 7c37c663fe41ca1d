//! Commands about the connection and the node.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use model::access::Right;
use wire::resp::{Command, Protocol};

use super::super::Door;
use super::super::clients::ClientSaid;
use super::super::reply::DoorReply;
use super::super::rights::{refused_without, wrong_password};
use super::super::session::{Session, Speaking};
use super::super::transaction::Transaction;
use super::{Kind, configuration, connections, unknown};
use crate::doors::secret::same;
use crate::stores::Census;

/// The version of Redis whose commands these are: clients choose features by it.
const REDIS_VERSION: &str = "7.2.0";

/// Carries out a command that is not about keys.
pub(in super::super) async fn run(
    door: &Door,
    session: &mut Session,
    kind: Kind,
    command: &Command,
) -> DoorReply {
    let arguments: Vec<Bytes> = (1..command.len()).filter_map(|at| command.bytes(at)).collect();
    let answer = match kind {
        kind if kind.is_answered_at_any_time() => Ok(run_at_any_time(kind, command)),
        Kind::Hello => hello(door, session, &arguments),
        Kind::Auth => auth(door, session, &arguments),
        Kind::Select => select(&arguments[0]),
        Kind::Client => client(door, session, &arguments),
        Kind::Acl => connections::acl(door, session, &arguments),
        Kind::CommandInfo => Ok(command_info(&arguments)),
        Kind::Info => Ok(info(door, session, &arguments).await),
        Kind::Quit => Ok(DoorReply::OK),
        Kind::Reset => {
            let authenticated = door.shared.options.password.is_none();
            session.protocol = Protocol::Resp2;
            session.authenticated = authenticated;
            session.caller.reset();
            session.name.clear();
            session.speaking = Speaking::On;
            session.transaction = Transaction::None;
            session.client.describe(ClientSaid::default());
            choose_store(session, &door.shared.options.store);
            Ok(DoorReply::Simple("RESET"))
        }
        Kind::Time => Ok(time(door)),
        Kind::Config => configuration::config(door, session, &arguments),
        Kind::StoreUse => store(door, session, &arguments),
        _ => Ok(unknown(command)),
    };
    answer.unwrap_or_else(|refusal| refusal)
}

/// Carries out a command that has nothing to do with any other.
pub(in super::super) fn run_at_any_time(kind: Kind, command: &Command) -> DoorReply {
    let arguments: Vec<Bytes> = (1..command.len()).filter_map(|at| command.bytes(at)).collect();
    let answer =
        if kind == Kind::Ping { ping(&arguments) } else { Ok(DoorReply::Bulk(arguments[0].clone())) };
    answer.unwrap_or_else(|refusal| refusal)
}

fn ping(arguments: &[Bytes]) -> Result<DoorReply, DoorReply> {
    match arguments {
        [] => Ok(DoorReply::Simple("PONG")),
        [message] => Ok(DoorReply::Bulk(message.clone())),
        _ => Err(DoorReply::arity("ping")),
    }
}

/// The wall clock: seconds, and the microseconds in addition, of which the clock knows thousands.
fn time(door: &Door) -> DoorReply {
    let now = door.front.now().0;
    let microseconds = (now % 1000) * 1000;
    DoorReply::Array(vec![
        DoorReply::text((now / 1000).to_string()),
        DoorReply::text(microseconds.to_string()),
    ])
}

fn select(index: &Bytes) -> Result<DoorReply, DoorReply> {
    match super::super::arguments::integer(index)? {
        0 => Ok(DoorReply::OK),
        _ => Err(DoorReply::err("DB index is out of range")),
    }
}

fn auth(door: &Door, session: &mut Session, arguments: &[Bytes]) -> Result<DoorReply, DoorReply> {
    let (user, password) = match arguments {
        [password] => (None, password),
        [user, password] => (Some(user), password),
        _ => return Err(DoorReply::syntax()),
    };
    let view = door.front.replica().view();
    if view.get().cluster().is_closed() {
        let user = user.map(|user| String::from_utf8_lossy(user).into_owned()).unwrap_or_default();
        let known = session.caller.authenticate(view, &user, password);
        let known = known.map_err(|_| wrong_password(door, session))?;
        session.authenticated = true;
        // Not that of the user before.
        let own = known.user.redis_store.as_ref().map(|store| store.as_str());
        choose_store(session, own.unwrap_or(&door.shared.options.store));
        return Ok(DoorReply::OK);
    }
    let Some(expected) = &door.shared.options.password else {
        return match user {
            // Redis lets the default user in with any password when none is needed.
            Some(user) if user == "default" => Ok(DoorReply::OK),
            Some(_) => Err(wrong_password(door, session)),
            None => Err(DoorReply::err(
                "AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            )),
        };
    };
    let right = user.is_none_or(|user| user == "default") && same(password, expected.as_bytes());
    if !right {
        return Err(wrong_password(door, session));
    }
    session.authenticated = true;
    Ok(DoorReply::OK)
}

fn hello(door: &Door, session: &mut Session, arguments: &[Bytes]) -> Result<DoorReply, DoorReply> {
    let mut protocol = session.protocol;
    let mut rest = arguments.iter();
    if let Some(version) = rest.next() {
        protocol = match super::super::arguments::integer(version) {
            Ok(2) => Protocol::Resp2,
            Ok(3) => Protocol::Resp3,
            Ok(_) => return Err(DoorReply::Error("NOPROTO unsupported protocol version".to_owned())),
            Err(_) => return Err(DoorReply::err("Protocol version is not an integer or out of range")),
        };
    }
    let mut name = None;
    while let Some(option) = rest.next() {
        match option.to_ascii_uppercase().as_slice() {
            b"AUTH" => {
                let (Some(user), Some(password)) = (rest.next(), rest.next()) else {
                    return Err(DoorReply::syntax());
                };
                auth(door, session, &[user.clone(), password.clone()])?;
            }
            b"SETNAME" => name = Some(client_name(rest.next().ok_or_else(DoorReply::syntax)?)?),
            _ => {
                let shown = String::from_utf8_lossy(option).into_owned();
                return Err(DoorReply::err(format!("Syntax error in HELLO option '{shown}'")));
            }
        }
    }
    if !session.is_known(door.front.replica().view()) {
        return Err(DoorReply::Error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
             same time"
                .to_owned(),
        ));
    }
    session.protocol = protocol;
    if let Some(name) = name {
        session.name = name;
    }
    let version = if protocol == Protocol::Resp3 { 3 } else { 2 };
    Ok(DoorReply::Map(vec![
        (DoorReply::text("server"), DoorReply::text("redis")),
        (DoorReply::text("version"), DoorReply::text(REDIS_VERSION)),
        (DoorReply::text("proto"), DoorReply::Integer(version)),
        (DoorReply::text("id"), DoorReply::Integer(session.id as i64)),
        (DoorReply::text("mode"), DoorReply::text("standalone")),
        (DoorReply::text("role"), DoorReply::text("master")),
        (DoorReply::text("modules"), DoorReply::Array(Vec::new())),
    ]))
}

fn client_name(name: &Bytes) -> Result<String, DoorReply> {
    match std::str::from_utf8(name) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text.to_owned()),
        _ => Err(DoorReply::err("Client names cannot contain spaces, newlines or special characters.")),
    }
}

fn client(door: &Door, session: &mut Session, arguments: &[Bytes]) -> Result<DoorReply, DoorReply> {
    let sub = arguments[0].to_ascii_uppercase();
    let arity = || DoorReply::arity(&format!("client|{}", String::from_utf8_lossy(&sub).to_lowercase()));
    match (sub.as_slice(), &arguments[1..]) {
        (b"ID", []) => Ok(DoorReply::Integer(session.id as i64)),
        (b"GETNAME", []) if session.name.is_empty() => Ok(DoorReply::Null),
        (b"GETNAME", []) => Ok(DoorReply::text(session.name.clone())),
        (b"SETNAME", [name]) => {
            session.name = client_name(name)?;
            Ok(DoorReply::OK)
        }
        (b"SETINFO", [attribute, value]) => {
            let value = client_name(value)?;
            match attribute.to_ascii_uppercase().as_slice() {
                b"LIB-NAME" => session.library.0 = value,
                b"LIB-VER" => session.library.1 = value,
                other => {
                    let shown = String::from_utf8_lossy(other).into_owned();
                    return Err(DoorReply::err(format!("Unrecognized option '{shown}'")));
                }
            }
            Ok(DoorReply::OK)
        }
        (b"INFO", []) => {
            let now = door.front.clock().now();
            session.client.used(Some(Kind::Client), now);
            Ok(DoorReply::Text(session.client.line(now)))
        }
        (b"LIST", filter) => {
            refused_without(door, session, Right::Observe, "client|list")?;
            client_list(door, session, filter)
        }
        (b"KILL", filters) => connections::kill(door, session, filters),
        (b"REPLY", [mode]) => reply_mode(session, mode),
        (b"NO-EVICT" | b"NO-TOUCH", [mode]) => match mode.to_ascii_uppercase().as_slice() {
            b"ON" | b"OFF" => Ok(DoorReply::OK),
            _ => Err(DoorReply::syntax()),
        },
        (
            b"ID" | b"GETNAME" | b"SETNAME" | b"SETINFO" | b"INFO" | b"REPLY" | b"NO-EVICT" | b"NO-TOUCH",
            _,
        ) => Err(arity()),
        _ => {
            let shown = String::from_utf8_lossy(&arguments[0]).into_owned();
            Err(DoorReply::err(format!("unknown subcommand '{shown}'. Try CLIENT HELP.")))
        }
    }
}

/// `CLIENT LIST [TYPE kind | ID id...]`: connections of clients are all *normal*.
fn client_list(door: &Door, session: &Session, filter: &[Bytes]) -> Result<DoorReply, DoorReply> {
    let now = door.front.clock().now();
    session.client.used(Some(Kind::Client), now);
    let clients = door.shared.clients.lock();
    let lines: String = match filter {
        [] => clients.values().map(|client| client.line(now)).collect(),
        [word, kind] if word.eq_ignore_ascii_case(b"TYPE") => match kind.to_ascii_lowercase().as_slice() {
            b"normal" => clients.values().map(|client| client.line(now)).collect(),
            b"master" | b"slave" | b"replica" | b"pubsub" => String::new(),
            _ => {
                let shown = String::from_utf8_lossy(kind);
                return Err(DoorReply::err(format!("Unknown client type '{shown}'")));
            }
        },
        [word, ids @ ..] if word.eq_ignore_ascii_case(b"ID") && !ids.is_empty() => {
            let number =
                |id| super::super::arguments::integer(id).map_err(|_| DoorReply::err("Invalid client ID"));
            let ids = ids.iter().map(number).collect::<Result<Vec<i64>, DoorReply>>()?;
            let found = ids.iter().filter_map(|id| clients.get(&u64::try_from(*id).ok()?));
            found.map(|client| client.line(now)).collect()
        }
        _ => return Err(DoorReply::syntax()),
    };
    Ok(DoorReply::Text(lines))
}

fn reply_mode(session: &mut Session, mode: &Bytes) -> Result<DoorReply, DoorReply> {
    session.speaking = match mode.to_ascii_uppercase().as_slice() {
        b"ON" => Speaking::On,
        b"OFF" => Speaking::Off,
        b"SKIP" if session.speaking == Speaking::Off => Speaking::Off,
        b"SKIP" => Speaking::SkipThis,
        _ => return Err(DoorReply::syntax()),
    };
    Ok(DoorReply::OK)
}

fn command_info(arguments: &[Bytes]) -> DoorReply {
    let sub = arguments.first().map(|sub| sub.to_ascii_uppercase());
    let named: Vec<&Bytes> = arguments.iter().skip(1).collect();
    match sub.as_deref() {
        None => DoorReply::Array(Kind::ALL.iter().map(|kind| describe(*kind)).collect()),
        Some(b"COUNT") if named.is_empty() => DoorReply::Integer(Kind::ALL.len() as i64),
        Some(b"LIST") if named.is_empty() => {
            DoorReply::Array(Kind::ALL.iter().map(|kind| DoorReply::text(kind.name())).collect())
        }
        Some(b"INFO") if named.is_empty() => {
            DoorReply::Array(Kind::ALL.iter().map(|kind| describe(*kind)).collect())
        }
        Some(b"INFO") => DoorReply::Array(
            named.iter().map(|name| Kind::of(name).map_or(DoorReply::Null, describe)).collect(),
        ),
        Some(b"DOCS") => {
            let wanted: Vec<Kind> = match named.is_empty() {
                true => Kind::ALL.to_vec(),
                false => named.iter().filter_map(|name| Kind::of(name)).collect(),
            };
            DoorReply::Map(
                wanted.into_iter().map(|kind| (DoorReply::text(kind.name()), docs(kind))).collect(),
            )
        }
        Some(_) => {
            let shown = String::from_utf8_lossy(&arguments[0]).into_owned();
            DoorReply::err(format!("unknown subcommand '{shown}'. Try COMMAND HELP."))
        }
    }
}

fn describe(kind: Kind) -> DoorReply {
    let (first, last, step) = kind.key_positions();
    let flags = kind.flags().split(' ').map(|flag| DoorReply::text(flag.to_owned())).collect();
    DoorReply::Array(vec![
        DoorReply::text(kind.name()),
        DoorReply::Integer(kind.arity()),
        DoorReply::Array(flags),
        DoorReply::Integer(first),
        DoorReply::Integer(last),
        DoorReply::Integer(step),
        DoorReply::Array(Vec::new()),
        DoorReply::Array(Vec::new()),
        DoorReply::Array(Vec::new()),
        DoorReply::Array(Vec::new()),
    ])
}

fn docs(kind: Kind) -> DoorReply {
    let group = if kind.name().starts_with("tontine.") {
        "tontine"
    } else if kind.is_about_session() {
        "connection"
    } else {
        "string"
    };
    DoorReply::Map(vec![
        (DoorReply::text("summary"), DoorReply::text(kind.summary())),
        (DoorReply::text("since"), DoorReply::text("1.0.0")),
        (DoorReply::text("group"), DoorReply::text(group)),
        (DoorReply::text("arity"), DoorReply::Integer(kind.arity())),
    ])
}

/// The sections that clients read, and what an operator would look for first. Without names all of them.
async fn info(door: &Door, session: &Session, names: &[Bytes]) -> DoorReply {
    let wanted = |section: &str| {
        let all = [&b"all"[..], b"default", b"everything"];
        names.is_empty()
            || names.iter().any(|name| {
                name.eq_ignore_ascii_case(section.as_bytes())
                    || all.iter().any(|all| name.eq_ignore_ascii_case(all))
            })
    };
    let mut sections: Vec<_> =
        info_sections(door).into_iter().filter(|(section, _)| wanted(section)).collect();
    if wanted(KEYS_SECTION) {
        // A node whose keys cannot be counted still says everything else: monitors ask most when something is broken.
        let counts = key_counts(door, &session.store).await.unwrap_or_default();
        sections.push((KEYS_SECTION, counts));
    }
    let sections = sections.into_iter().map(|(section, lines)| format!("# {section}\r\n{lines}"));
    DoorReply::Text(sections.collect::<Vec<_>>().join("\r\n"))
}

/// The section about keys.
const KEYS_SECTION: &str = "Keyspace";

/// What this node holds of the connection's store; a store without keys has no line, as in Redis.
async fn key_counts(door: &Door, store: &str) -> Result<String, DoorReply> {
    let census = door.front.census(store).await.map_err(|failure| DoorReply::failure(&failure))?;
    let Census { keys, expiring, left_ms_mean, .. } = census;
    Ok(match keys {
        0 => String::new(),
        _ => format!("db0:keys={keys},expires={expiring},avg_ttl={left_ms_mean}\r\n"),
    })
}

fn info_sections(door: &Door) -> [(&'static str, String); 7] {
    let replica = door.front.replica();
    let view = replica.view().get();
    let cluster = view.cluster();
    let hints: u64 = replica.hints().pending().iter().map(|(_, count)| count).sum();
    let options = &door.shared.options;
    let uptime = door.front.uptime().as_secs();
    let cpu = options.cpu.map(|read| read()).unwrap_or_default();
    [
        (
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\narch_bits:{}\r\nserver_name:tontine\r\n\
                 tontine_version:{}\r\nprocess_id:{}\r\ntcp_port:{}\r\nuptime_in_seconds:{uptime}\r\n\
                 uptime_in_days:{}\r\n",
                usize::BITS,
                env!("CARGO_PKG_VERSION"),
                options.process_id,
                options.port,
                uptime / 86_400
            ),
        ),
        (
            "Clients",
            format!(
                "connected_clients:{}\r\nmaxclients:{}\r\n",
                door.shared.connections(),
                door.shared.admission.limits().connections_max
            ),
        ),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\n",
                door.shared.next_id.load(Ordering::Relaxed) - 1,
                door.shared.commands()
            ),
        ),
        (
            "CPU",
            format!(
                "used_cpu_sys:{:.6}\r\nused_cpu_user:{:.6}\r\n",
                cpu.system.as_secs_f64(),
                cpu.user.as_secs_f64()
            ),
        ),
        ("Replication", "role:master\r\nconnected_slaves:0\r\n".to_owned()),
        ("Cluster", "cluster_enabled:0\r\n".to_owned()),
        (
            "Tontine",
            format!(
                "cluster:{}\r\nnode:{}\r\ngeneration:{}\r\nnodes:{}\r\npartitions:{}\r\nstores:{}\r\n\
                 hints_pending:{hints}\r\n",
                cluster.name,
                replica.node(),
                cluster.generation.0,
                cluster.nodes.len(),
                cluster.ring.partitions().len(),
                view.stores().len() + view.read_only_stores().len()
            ),
        ),
    ]
}

/// `TONTINE.STORE` names the store in use, `TONTINE.STORE name` chooses one for this connection.
fn store(door: &Door, session: &mut Session, arguments: &[Bytes]) -> Result<DoorReply, DoorReply> {
    let [name] = arguments else {
        return match arguments {
            [] => Ok(DoorReply::text(session.store.clone())),
            _ => Err(DoorReply::arity("tontine.store")),
        };
    };
    let name = String::from_utf8_lossy(name).into_owned();
    if !door.front.is_read_only(&name) {
        door.front.current(&name).map_err(|failure| DoorReply::failure(&failure))?;
    }
    choose_store(session, &name);
    Ok(DoorReply::OK)
}

fn choose_store(session: &mut Session, name: &str) {
    session.store = name.to_owned();
    session.current = None;
}
