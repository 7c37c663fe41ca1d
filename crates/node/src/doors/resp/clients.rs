//! What CLIENT LIST and CLIENT INFO say of a connection: Redis's fields, as far as this node knows them.
//!
//! Must never: name a field that Redis does not have. Clients that parse strictly refuse the whole line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::task::AtomicWaker;
use model::Moment;
use parking_lot::Mutex;
use wire::resp::Protocol;

use super::commands::Kind;
use super::room::Room;

/// One connection, as others see it.
pub(super) struct Client {
    id: u64,
    peer: String,
    local: String,
    since: Moment,
    /// When it last sent commands, in milliseconds after `since`, and above them which was the last: 1 for the first of
    /// [`Kind::ALL`], 0 before any.
    last: AtomicU64,
    said: Mutex<ClientSaid>,
    /// How much of its answers is held.
    pub(super) room: Arc<Room>,
    /// Whether another connection has had it closed.
    killed: AtomicBool,
    /// Wakes the connection when the door closes, or it is to end.
    pub(super) waker: AtomicWaker,
}

/// What a client has said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientSaid {
    /// Its name.
    pub(super) name: String,
    /// Its library's name and version.
    pub(super) library: (String, String),
    /// The protocol that it speaks.
    pub(super) protocol: Protocol,
    /// Its user, as far as it has said; `default` in an open cluster.
    pub(super) user: String,
}

/// Bits of `last` that are milliseconds: two thousand years.
const MILLIS_BITS: u32 = 46;

impl Client {
    pub(super) fn new(id: u64, peer: String, local: String, since: Moment) -> Client {
        let (last, waker, killed) = (AtomicU64::new(0), AtomicWaker::new(), AtomicBool::new(false));
        Client { id, peer, local, since, last, said: Mutex::default(), room: Arc::default(), killed, waker }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The other end's address.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// This end's address.
    pub(super) fn local(&self) -> &str {
        &self.local
    }

    pub(super) fn user(&self) -> String {
        self.said.lock().user.clone()
    }

    /// Has the connection end, whatever it is doing.
    pub(super) fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.waker.wake();
    }

    /// Whether it is to end.
    pub(super) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// Takes in what the client says of itself.
    pub(super) fn describe(&self, said: ClientSaid) {
        *self.said.lock() = said;
    }

    /// It has sent commands, of which `kind` was the last that the node knows.
    pub(super) fn used(&self, kind: Option<Kind>, now: Moment) {
        let which = kind.map_or(0, |kind| kind as u64 + 1);
        let millis = u64::try_from(now.since(self.since).as_millis()).unwrap_or(0);
        self.last.store(which << MILLIS_BITS | millis, Ordering::Relaxed);
    }

    /// Its line.
    pub(super) fn line(&self, now: Moment) -> String {
        let ClientSaid { name, library: (library, version), protocol, user } = self.said.lock().clone();
        let last = self.last.load(Ordering::Relaxed);
        let (which, millis) = (last >> MILLIS_BITS, last & ((1 << MILLIS_BITS) - 1));
        let command = which.checked_sub(1).and_then(|which| Kind::ALL.get(which as usize));
        let age = now.since(self.since);
        let idle = (age.as_millis() as u64).saturating_sub(millis) / 1000;
        format!(
            "id={} addr={} laddr={} name={name} age={} idle={idle} flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 \
             omem={} cmd={} user={user} redir=-1 resp={} lib-name={library} lib-ver={version}\n",
            self.id,
            self.peer,
            self.local,
            age.as_secs(),
            self.room.held(),
            command.map_or("NULL", |kind| kind.name()),
            if protocol == Protocol::Resp3 { 3 } else { 2 },
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_shows_age_idle_time_and_the_last_command() {
        let at = |millis| Moment::default().after(Duration::from_millis(millis));
        let client = Client::new(7, "1.2.3.4:5".to_owned(), "here".to_owned(), at(1_000));
        assert!(
            client.line(at(1_000)).contains(" age=0 idle=0 ")
                && client.line(at(1_000)).contains(" cmd=NULL ")
        );
        client.used(Some(Kind::Mget), at(5_500));
        let (name, user) = ("n".to_owned(), "shop".to_owned());
        client.describe(ClientSaid { name, protocol: Protocol::Resp3, user, ..ClientSaid::default() });
        assert_eq!(
            client.line(at(9_999)),
            "id=7 addr=1.2.3.4:5 laddr=here name=n age=8 idle=4 flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 \
             omem=0 cmd=mget user=shop redir=-1 resp=3 lib-name= lib-ver=\n"
        );
    }
}
