//! What the door remembers of one connection.

use std::sync::Arc;

use wire::resp::Protocol;

use super::transaction::Transaction;
use crate::stores::LocalStore;
use crate::view::View;

/// Which answers a client wants to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaking {
    /// All.
    On,
    /// None.
    Off,
    /// All but those of this command and the next.
    SkipThis,
    /// All but that of this command.
    SkipNext,
}

/// One connection's state.
pub(super) struct Session {
    /// Number of the connection, unique in this process.
    pub(super) id: u64,
    /// The other end's address.
    pub(super) peer: String,
    /// This end's address.
    pub(super) local: String,
    /// Name that the client gave itself.
    pub(super) name: String,
    /// Library name and version that the client gave.
    pub(super) library: (String, String),
    /// 2 or 3.
    pub(super) protocol: Protocol,
    /// Whether a password was given, if one is needed.
    pub(super) authenticated: bool,
    /// Which answers the client wants.
    pub(super) speaking: Speaking,
    /// Whether it is between MULTI and EXEC.
    pub(super) transaction: Transaction,
    /// The store that commands without another name use.
    pub(super) store: String,
    /// View and store of the last command, while the generation has not changed.
    pub(super) current: Option<(Arc<View>, Arc<LocalStore>)>,
}

impl Session {
    /// A connection as it begins.
    pub(super) fn new(id: u64, peer: String, local: String, options: &super::RespOptions) -> Self {
        Session {
            id,
            peer,
            local,
            name: String::new(),
            library: Default::default(),
            protocol: Protocol::Resp2,
            authenticated: options.password.is_none(),
            speaking: Speaking::On,
            transaction: Transaction::None,
            store: options.store.clone(),
            current: None,
        }
    }

    /// The line that CLIENT LIST and CLIENT INFO show.
    pub(super) fn describe(&self) -> String {
        let version = if self.protocol == Protocol::Resp3 { 3 } else { 2 };
        format!(
            "id={} addr={} laddr={} name={} db=0 resp={version} lib-name={} lib-ver={} store={}",
            self.id, self.peer, self.local, self.name, self.library.0, self.library.1, self.store
        )
    }
}
