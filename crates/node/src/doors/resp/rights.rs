//! Which rights a command needs: the one place of this door that asks, and that says no in Redis's words.
//!
//! A command is judged when it starts, not when it comes: by then the commands before it, such as AUTH and
//! TONTINE.STORE, have been carried out.
//!
//! Must never: let a command through whose keys were not all judged.

use model::access::Right;
use wire::error::ErrorCode;
use wire::messages::Failure;
use wire::resp::Command;

use super::Door;
use super::commands::Kind;
use super::reply::DoorReply;
use super::session::Session;
use crate::access::Who;
use crate::audit::Asker;
use crate::view::CurrentView;

/// Why a command about keys is refused to this connection; `None` where it may be carried out.
pub(super) fn refused_keys(
    door: &Door,
    session: &Session,
    kind: Kind,
    command: &Command,
) -> Option<DoorReply> {
    let known = match session.caller.user(door.front.replica().view()) {
        Ok(known) => known?,
        Err(failure) => return Some(refusal(door, session, kind.name(), &failure)),
    };
    let rights = kind.rights(command);
    let judged = rights.iter().try_for_each(|&right| {
        let mut keys = kind.keys(command).peekable();
        match keys.peek() {
            // It is about all keys that there are.
            None => known.judge(right, &session.store, None),
            Some(_) => keys.try_for_each(|key| known.judge(right, &session.store, Some(key))),
        }
    });
    let of = if kind.keys(command).next().is_some() { Of::Key } else { Of::Command(kind.name()) };
    judged.err().map(|failure: Failure| forbidden(door, session, (kind.name(), of), &failure))
}

/// Why a command about the connection or the node is refused to it.
pub(super) fn refused_session(door: &Door, session: &Session, kind: Kind) -> Option<DoorReply> {
    if kind.allowed_unauthenticated() || kind.is_answered_at_any_time() {
        return None;
    }
    let failure = session.caller.user(door.front.replica().view()).err()?;
    Some(refusal(door, session, kind.name(), &failure))
}

/// Why a command that is about other connections is refused to it. `name` is what Redis calls it.
pub(super) fn refused_without(
    door: &Door,
    session: &Session,
    right: Right,
    name: &'static str,
) -> Result<(), DoorReply> {
    let judged = session.caller.judge(door.front.replica().view(), right, "", None);
    judged.map_err(|failure| refusal(door, session, name, &failure))
}

/// That the connection has given no password yet, where one is wanted.
pub(super) fn unauthenticated(door: &Door, session: &Session, name: &'static str) -> DoorReply {
    let failure = Failure::new(ErrorCode::Unauthenticated, "the connection has given no password");
    refusal(door, session, name, &failure)
}

/// That what it gave with AUTH is wrong.
pub(super) fn wrong_password(door: &Door, session: &Session) -> DoorReply {
    let failure = Failure::new(ErrorCode::Unauthenticated, "the password is wrong");
    note(door, session, "auth", &failure);
    DoorReply::Error("WRONGPASS invalid username-password pair or user is disabled.".to_owned())
}

/// What a right that is lacking forbids, in Redis's words.
enum Of {
    /// To use a key. Which one Redis does not repeat.
    Key,
    /// To run a command.
    Command(&'static str),
}

fn refusal(door: &Door, session: &Session, name: &'static str, failure: &Failure) -> DoorReply {
    match failure.code {
        ErrorCode::Forbidden => forbidden(door, session, (name, Of::Command(name)), failure),
        _ => {
            note(door, session, name, failure);
            DoorReply::no_auth()
        }
    }
}

fn forbidden(door: &Door, session: &Session, (name, of): (&'static str, Of), failure: &Failure) -> DoorReply {
    note(door, session, name, failure);
    let who = session.caller.who(door.front.replica().view());
    let sentence = match (of, who) {
        (Of::Command(command), Who::User(user)) => {
            format!("User {user} has no permissions to run the '{command}' command")
        }
        _ => "No permissions to access a key".to_owned(),
    };
    DoorReply::Error(format!("NOPERM {sentence} ({})", failure.detail))
}

/// Writes down who was refused.
fn note(door: &Door, session: &Session, name: &'static str, failure: &Failure) {
    let asker = Asker { caller: &session.caller, from: &session.peer };
    door.counters.audit().refused(asker, door.front.replica().view(), name, failure);
}

/// Whether plain GET or SET of this key may be carried out.
pub(super) fn may(session: &Session, view: &CurrentView, kind: Option<Kind>, key: &[u8]) -> bool {
    let right = if kind == Some(Kind::Get) { Right::Read } else { Right::Write };
    session.caller.judge(view, right, &session.store, Some(key)).is_ok()
}
