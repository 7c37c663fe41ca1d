//! The room of what the control plane asks: orders, plans, the office, and reports. A node that clients keep busy must
//! still answer the one process that can relieve it.
//!
//! ```text
//!   request ─▶ room of its connection ─▶ admitted
//!                   └ full ─▶ is it the control plane's? ─▶ this room ─▶ admitted
//!                                                              └ full ─▶ refused, as by the first
//!   connection ─▶ place among clients
//!                   └ none ─▶ is it a headmaster's? ─▶ a place here, for such requests only
//! ```
//!
//! Where a request comes from does not matter: a headmaster connects as a client does. So anybody may ask for this room,
//! and it is small: clients that fill it take nothing from other nodes, and little from the machine.
//!
//! **Architecture Invariant:** nothing that waits for other nodes is admitted here, and no request for records.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::admission::{self, Admission, AdmissionLimits, ConnectionAccount, Overloaded, Permit};
use wire::messages::{Peer, Request};

/// What a headmaster calls itself when it connects.
pub const HEADMASTER: &str = "headmaster";

/// Most requests in this room: far more than one headmaster has under way, and than operators type.
const REQUESTS_MAX: usize = 64;

/// Most bytes of requests in this room. An order is some hundred bytes.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Most connections of headmasters beside those of clients: each process has one, and few are candidates for the
/// office.
const CONNECTIONS_MAX: usize = 8;

/// The room of one node, over all workers.
pub struct ControlRoom {
    admission: Arc<Admission>,
    connection: Arc<ConnectionAccount>,
    /// Headmasters that have a place here.
    places: AtomicUsize,
}

/// A headmaster's place beside those of clients; free again when this is dropped.
pub(super) struct ControlPlace(Arc<ControlRoom>);

impl ControlRoom {
    /// An empty one.
    pub fn new() -> Arc<ControlRoom> {
        let limits = AdmissionLimits {
            connection_requests_max: REQUESTS_MAX,
            connection_bytes_max: BYTES_MAX,
            ..AdmissionLimits::default()
        };
        let admission = Admission::new(limits);
        let mut connection = admission.connect().expect("the first one finds a place");
        // As a client's: it is admitted nothing more when the node stops.
        connection.identify(admission::Peer::Client).expect("the first one finds a place");
        Arc::new(ControlRoom { admission, connection, places: AtomicUsize::new(0) })
    }

    /// Admits nothing more.
    pub(crate) fn stop(&self) {
        self.admission.stop();
    }

    /// Requests that were admitted here and not yet answered.
    pub(crate) fn requests(&self) -> usize {
        self.admission.load().requests
    }

    /// Admits a request of the control plane.
    ///
    /// # Errors
    /// That the room is full, or that the node stops.
    pub(in crate::doors) fn admit(&self, bytes: usize) -> Result<Permit, Overloaded> {
        self.connection.admit(bytes).map_err(|full| match full {
            Overloaded::ConnectionRequests { max } => Overloaded::NodeRequests { max },
            Overloaded::ConnectionBytes { max } => Overloaded::NodeBytes { max },
            full => full,
        })
    }

    /// A place for a headmaster's connection, where clients have none left.
    pub(super) fn place(
        self: &Arc<Self>,
        peer: &Peer,
        connection: &mut Arc<ConnectionAccount>,
    ) -> Option<ControlPlace> {
        if !matches!(peer, Peer::Client { name } if name == HEADMASTER) {
            return None;
        }
        let more = |taken: usize| (taken < CONNECTIONS_MAX).then_some(taken + 1);
        self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let place = ControlPlace(Arc::clone(self));
        connection.identify(admission::Peer::Node).ok()?;
        Some(place)
    }
}

impl Drop for ControlPlace {
    fn drop(&mut self) {
        self.0.places.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is admitted here, and what is answered on a connection that has a place here.
pub(in crate::doors) fn is_control(request: &Request) -> bool {
    matches!(
        request,
        Request::ReportGet(_)
            | Request::OrderGive(_)
            | Request::OrderAnswer(_)
            | Request::PlanGet(_)
            | Request::OfficeGet(_)
    )
}

/// Whether a headmaster in a place beside those of clients may ask this.
pub(super) fn is_for_headmasters(request: &Request) -> bool {
    is_control(request) || matches!(request, Request::Ping(_) | Request::ClusterGet(_) | Request::Hello(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(admission: &Arc<Admission>) -> Arc<ConnectionAccount> {
        admission.connect().unwrap()
    }

    #[test]
    fn requests_have_room_up_to_the_limit_and_none_once_the_node_stops() {
        let room = ControlRoom::new();
        let permits: Vec<Permit> = (0..REQUESTS_MAX).map(|_| room.admit(100).unwrap()).collect();
        let full = Overloaded::NodeRequests { max: REQUESTS_MAX };
        assert_eq!((room.admit(1).err(), room.requests()), (Some(full), REQUESTS_MAX));
        drop(permits);
        assert!(room.admit(1).is_ok());
        room.stop();
        assert_eq!(room.admit(1).err(), Some(Overloaded::Stopping));
    }

    #[test]
    fn places_are_limited_and_only_for_headmasters() {
        let (room, admission) = (ControlRoom::new(), Admission::new(AdmissionLimits::default()));
        let [headmaster, other] =
            [HEADMASTER, "headmasters"].map(|name| Peer::Client { name: name.to_owned() });
        let place = |peer| room.place(peer, &mut connect(&admission));
        let places: Vec<_> = (0..CONNECTIONS_MAX).map(|_| place(&headmaster)).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(place(&headmaster).is_none());
        drop(places);
        assert!(place(&other).is_none());
        assert!(place(&Peer::Node { id: model::NodeId(1), incarnation: 1 }).is_none());
        assert!(place(&headmaster).is_some());
    }
}
