//! What the door remembers of one connection.

use std::sync::Arc;

use runtime::Proof;
use wire::resp::Protocol;

use super::clients::{Client, ClientSaid};
use super::commands::Kind;
use super::commands::connections::DEFAULT_USER;
use super::transaction::Transaction;
use crate::access::{Caller, Who};
use crate::front::AtHand;
use crate::view::{CurrentView, View};

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
    /// What others see of it.
    pub(super) client: Arc<Client>,
    /// The last command that the node knew.
    pub(super) last: Option<Kind>,
    /// Name that the client gave itself.
    pub(super) name: String,
    /// Library name and version that the client gave.
    pub(super) library: (String, String),
    /// 2 or 3.
    pub(super) protocol: Protocol,
    /// Whether a password was given, if one is needed.
    pub(super) authenticated: bool,
    /// Who it is, where the cluster is closed.
    pub(super) caller: Caller,
    /// Whether the connection ends behind its next answer.
    pub(super) closes: bool,
    /// Which answers the client wants.
    pub(super) speaking: Speaking,
    /// Whether it is between MULTI and EXEC.
    pub(super) transaction: Transaction,
    /// The store that commands without another name use.
    pub(super) store: String,
    /// View and store of the last command, while the generation has not changed.
    pub(super) current: Option<(Arc<View>, AtHand)>,
}

impl Session {
    /// A connection as it begins.
    pub(super) fn new(id: u64, peer: String, client: Arc<Client>, options: &super::RespOptions) -> Self {
        Session {
            id,
            peer,
            client,
            last: None,
            name: String::new(),
            library: Default::default(),
            protocol: Protocol::Resp2,
            authenticated: options.password.is_none(),
            // A client proves who it is by a secret, also one that has a node's certificate.
            caller: Caller::new(Proof::None),
            closes: false,
            speaking: Speaking::On,
            transaction: Transaction::None,
            store: options.store.clone(),
            current: None,
        }
    }

    /// Whether it has said who it is, as far as it must.
    pub(super) fn is_known(&self, view: &CurrentView) -> bool {
        self.authenticated && self.caller.user(view).is_ok()
    }

    /// Shows others what the client has said of itself.
    pub(super) fn show(&self, view: &CurrentView) {
        let user = match self.caller.who(view) {
            Who::User(name) => name.to_string(),
            Who::Nobody => self.client.user(),
            _ => DEFAULT_USER.to_owned(),
        };
        let (name, library, protocol) = (self.name.clone(), self.library.clone(), self.protocol);
        self.client.describe(ClientSaid { name, library, protocol, user });
    }
}
