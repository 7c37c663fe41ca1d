//! One connection that was let in, and what each of its requests gets of it.
//!
//! By HTTP/1.1 it has one caller and one account. By HTTP/2 each stream has its own, as if it were a connection, so that a
//! slow one keeps no room of its neighbours'. What they share is the place of their connection, the last
//! `Authorization` that was good, and how many may read events as they happen.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use protocol::admission::{ConnectionAccount, Overloaded, Peer};
use runtime::http::streams::{STREAMS_MAX, Streams};
use runtime::http::{Account, Handler};

use super::account::{AnswerRoom, InputAccount, poll_leaving};
use super::event_stream::Readers;
use super::{Caller, Door, Last, Scheme};

/// A connection that has a place; it is free again when this is dropped.
pub(super) struct Guest<'a> {
    pub(super) door: &'a Door,
    /// Its address.
    pub(super) peer: String,
    pub(super) scheme: Scheme,
    pub(super) admitted: Arc<ConnectionAccount>,
    pub(super) last: Mutex<Option<Last>>,
    /// Which of its requests read events as they happen.
    pub(super) readers: Arc<Readers>,
    id: u64,
    /// Wakes it when the door closes.
    waker: Arc<AtomicWaker>,
}

impl<'a> Guest<'a> {
    /// Takes a place for it.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn admit(door: &'a Door, peer: String, scheme: Scheme) -> Result<Guest<'a>, Overloaded> {
        let mut admitted = door.shared.admission.connect()?;
        admitted.identify(Peer::Client)?;
        let id = door.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let waker = Arc::<AtomicWaker>::default();
        door.shared.clients.lock().insert(id, waker.clone());
        let (last, readers) = (Mutex::default(), Arc::default());
        Ok(Guest { door, peer, scheme, admitted, last, readers, id, waker })
    }

    /// The account and the caller of one of up to `streams` requests at a time.
    pub(super) fn caller(&self, streams: usize) -> (Box<dyn Account>, Caller<'_>) {
        let (among, shared) = ((&self.admitted, streams), self.door.shared.clone());
        let room = AnswerRoom::new(among);
        let account = InputAccount::new(among, room.clone(), shared, self.waker.clone());
        (Box::new(account), Caller { guest: self, room })
    }
}

impl Streams for Guest<'_> {
    fn open(&self) -> (Box<dyn Account>, Box<dyn Handler + '_>) {
        let (account, caller) = self.caller(STREAMS_MAX as usize);
        (account, Box::new(caller))
    }

    fn poll_leaving(&self, context: &mut Context<'_>) -> Poll<()> {
        poll_leaving(&self.door.shared, &self.waker, context)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.door.shared.clients.lock().remove(&self.id);
    }
}
