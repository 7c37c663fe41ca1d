//! Which rights a command needs: the one place of this door that asks.
//!
//! A command is judged when it starts, not when it comes: by then the commands before it, such as AUTH and
//! TONTINE.STORE, have been carried out.
//!
//! Must never: let a command through whose keys were not all judged.

use model::access::Right;
use wire::messages::Failure;
use wire::resp::Command;

use super::commands::Kind;
use super::reply::Reply;
use super::session::Session;
use crate::view::CurrentView;

/// Why a command about keys is refused to this connection; `None` where it may be carried out.
pub(super) fn refused_keys(
    session: &Session,
    view: &CurrentView,
    kind: Kind,
    command: &Command,
) -> Option<Reply> {
    let known = match session.caller.user(view) {
        Ok(known) => known?,
        Err(failure) => return Some(Reply::failure(&failure)),
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
    judged.err().map(|failure: Failure| Reply::failure(&failure))
}

/// Why a command about the connection or the node is refused to it.
pub(super) fn refused_session(session: &Session, view: &CurrentView, kind: Kind) -> Option<Reply> {
    if kind.allowed_unauthenticated() || kind.is_answered_at_any_time() {
        return None;
    }
    session.caller.user(view).err().map(|failure| Reply::failure(&failure))
}

/// Why a command that tells of other connections is refused to it.
pub(super) fn refused_watching(session: &Session, view: &CurrentView) -> Result<(), Reply> {
    session.caller.judge(view, Right::Observe, "", None).map_err(|failure| Reply::failure(&failure))
}

/// Whether plain GET or SET of this key may be carried out.
pub(super) fn may(session: &Session, view: &CurrentView, kind: Option<Kind>, key: &[u8]) -> bool {
    let right = if kind == Some(Kind::Get) { Right::Read } else { Right::Write };
    session.caller.judge(view, right, &session.store, Some(key)).is_ok()
}
