//! Limits hold, refusals count nothing, and everything is given back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use model::Moment;
use model::limits::FRAME_BYTES_MAX;
use proptest::prelude::*;
use protocol::admission::{
    Admission, AdmissionLimits, COMING_BYTES_FREE, CONNECTION_BYTES_MAX, CONNECTION_REQUESTS_MAX, Coming,
    ConnectionAccount, FAREWELLS_MAX, Load, Overloaded, Peer, Permit, SLOW_TIME_MIN,
};

fn limits() -> AdmissionLimits {
    AdmissionLimits {
        connections_max: 3,
        connection_requests_max: 4,
        connection_bytes_max: 100,
        node_requests_max: 8,
        node_bytes_max: 160,
        ..AdmissionLimits::default()
    }
}

fn admit_all(connection: &Arc<ConnectionAccount>, bytes: usize) -> (Vec<Permit>, Overloaded) {
    let mut permits = Vec::new();
    loop {
        match connection.admit(bytes) {
            Ok(permit) => permits.push(permit),
            Err(overloaded) => return (permits, overloaded),
        }
    }
}

fn connect(admission: &Arc<Admission>, peer: Peer) -> Arc<ConnectionAccount> {
    let mut connection = admission.connect().unwrap();
    connection.identify(peer).unwrap();
    connection
}

#[test]
fn a_client_beyond_the_limit_is_refused_until_another_one_ends_and_a_node_is_not() {
    let admission = Admission::new(limits());
    let mut connections: Vec<_> = (0..3).map(|_| connect(&admission, Peer::Client)).collect();
    let mut fourth = admission.connect().unwrap();
    assert_eq!(fourth.identify(Peer::Client), Err(Overloaded::Connections { max: 3 }));
    assert_eq!(fourth.identify(Peer::Node), Ok(()));
    connections.pop();
    assert_eq!(admission.connections(), 3);
    connect(&admission, Peer::Client);
}

#[test]
fn a_limited_number_of_refused_connections_is_kept_to_be_told_why() {
    let admission = Admission::new(limits());
    let kept: Vec<_> = std::iter::from_fn(|| admission.farewell()).take(1_000).collect();
    assert_eq!(kept.len(), FAREWELLS_MAX);
    drop(kept);
    assert!(admission.farewell().is_some(), "places are given back");
}

#[test]
fn what_is_still_coming_in_may_use_half_of_the_nodes_bytes_and_is_given_back() {
    const KIB: usize = 1024;
    let limits = AdmissionLimits { connections_max: 9, node_bytes_max: 1_000 * KIB, ..limits() };
    let limits = AdmissionLimits { connection_bytes_max: 1_000 * KIB, ..limits };
    let admission = Admission::new(limits);
    let connections: Vec<_> = (0..4).map(|_| connect(&admission, Peer::Client)).collect();
    let mut coming: Vec<_> = connections.iter().map(ConnectionAccount::coming).collect();
    assert_eq!(COMING_BYTES_FREE, 16 * KIB);
    assert_eq!(coming[0].hold(COMING_BYTES_FREE, Moment::default()), Ok(()));
    assert_eq!(admission.load(), Load::default(), "a buffer that each has anyway");
    assert_eq!(coming[0].hold(COMING_BYTES_FREE + 1, Moment::default()), Ok(()));
    assert_eq!(admission.load().bytes, COMING_BYTES_FREE + 1);
    for held in [20 * KIB, 400 * KIB, 200 * KIB] {
        assert_eq!(coming[0].hold(held, Moment::default()), Ok(()));
        assert_eq!(admission.load(), Load { requests: 0, bytes: held }, "in place of what was held before");
    }
    assert_eq!(coming[1].hold(300 * KIB, Moment::default()), Ok(()));
    assert_eq!(coming[2].hold(17 * KIB, Moment::default()), Err(Overloaded::NodeBytes { max: 500 * KIB }));
    assert_eq!(coming[1].hold(301 * KIB, Moment::default()), Err(Overloaded::NodeBytes { max: 500 * KIB }));
    assert_eq!(admission.load().bytes, 200 * KIB, "what is refused holds nothing any more");

    // Requests that have come whole keep their room, and take none away from what was granted.
    assert_eq!(coming[1].hold(300 * KIB, Moment::default()), Ok(()));
    let permit = connections[3].admit(200 * KIB).unwrap();
    assert!(
        matches!(connections[3].admit(100 * KIB), Err(Overloaded::NodeBytes { .. })),
        "a quarter is the nodes'"
    );
    drop(coming);
    assert_eq!(admission.load(), Load { requests: 1, bytes: 200 * KIB });
    drop(permit);
    // Alone, anything may come: the frame bounds it.
    assert_eq!(connections[0].coming().hold(64 * 1_024 * KIB, Moment::default()), Ok(()));
    assert_eq!(admission.load(), Load::default());
}

#[test]
fn a_node_that_stops_takes_in_nothing_more_from_clients_and_goes_on_for_other_nodes() {
    let admission = Admission::new(limits());
    let (client, node) = (connect(&admission, Peer::Client), connect(&admission, Peer::Node));
    let under_way = client.admit(10).unwrap();
    admission.stop();
    assert!(matches!(client.admit(10), Err(Overloaded::Stopping)));
    assert!(matches!(admission.connect().unwrap().admit(10), Err(Overloaded::Stopping)));
    let part = node.admit(10).unwrap();
    assert_eq!(admission.load(), Load { requests: 2, bytes: 20 });
    drop((under_way, part));
    assert_eq!(admission.load(), Load::default());
}

#[test]
fn silent_connections_are_bounded_and_give_back_their_places() {
    let admission = Admission::new(limits());
    let mut silent = Vec::new();
    let refusal = loop {
        match admission.connect() {
            Ok(connection) => silent.push(connection),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, Overloaded::Connections { max: 3 });
    assert!(silent.len() > 3);
    silent.clear();
    assert_eq!(admission.connections(), 0);
    connect(&admission, Peer::Client);
}

/// A quarter beside those of clients, and on a small node 64 at least.
#[test]
fn beside_clients_there_is_room_for_nodes_and_for_whoever_has_not_said_who_it_is() {
    for (connections_max, expected) in [(400, 500), (100, 164)] {
        let admission = Admission::new(AdmissionLimits { connections_max, ..limits() });
        assert_eq!(admission.limits().connections_max, connections_max);
        let all: Vec<_> = std::iter::from_fn(|| admission.connect().ok()).take(1_000).collect();
        assert_eq!(all.len(), expected, "beside {connections_max} clients");
    }
}

#[test]
fn a_refusal_tells_the_limit_that_was_reached() {
    let max = 12_345;
    for refusal in [
        Overloaded::Connections { max },
        Overloaded::ConnectionRequests { max },
        Overloaded::ConnectionBytes { max },
        Overloaded::NodeRequests { max },
        Overloaded::NodeBytes { max },
    ] {
        assert!(refusal.to_string().contains("12345"), "{refusal:?}");
    }
    assert!(Overloaded::TooSlow { time: Duration::from_secs(7) }.to_string().contains("7s"));
    assert!(Overloaded::Stopping.to_string().contains("stopping"));
}

#[test]
fn one_connection_is_refused_at_its_own_limits_and_the_others_go_on() {
    let admission = Admission::new(limits());
    let (greedy, modest) = (connect(&admission, Peer::Client), connect(&admission, Peer::Client));
    let (permits, refusal) = admit_all(&greedy, 10);
    assert_eq!((permits.len(), refusal), (4, Overloaded::ConnectionRequests { max: 4 }));
    assert!(modest.admit(10).is_ok());
    drop(permits);
    let (permits, refusal) = admit_all(&greedy, 50);
    assert_eq!((permits.len(), refusal), (2, Overloaded::ConnectionBytes { max: 100 }));
}

#[test]
fn clients_leave_other_nodes_room_to_finish_what_they_wait_for() {
    let admission = Admission::new(limits());
    let clients = [connect(&admission, Peer::Client), connect(&admission, Peer::Client)];
    let (first, _) = admit_all(&clients[0], 1);
    let (second, refusal) = admit_all(&clients[1], 1);
    assert_eq!((first.len() + second.len(), refusal), (6, Overloaded::NodeRequests { max: 6 }));
    let node = connect(&admission, Peer::Node);
    let (third, refusal) = admit_all(&node, 1);
    assert_eq!((third.len(), refusal), (2, Overloaded::NodeRequests { max: 8 }));
}

#[test]
fn bytes_of_the_node_are_bounded_over_all_connections() {
    let admission = Admission::new(limits());
    let connections: Vec<_> = (0..3).map(|_| connect(&admission, Peer::Client)).collect();
    let _permits = [connections[0].admit(60).unwrap(), connections[1].admit(60).unwrap()];
    assert_eq!(connections[2].admit(1).unwrap_err(), Overloaded::NodeBytes { max: 120 });
    assert_eq!(connections[2].load(), Load::default(), "a refusal counts nothing");
    assert_eq!(admission.load(), Load { requests: 2, bytes: 120 });
}

#[test]
fn a_request_longer_than_a_limit_is_admitted_alone() {
    let admission = Admission::new(limits());
    let connection = connect(&admission, Peer::Client);
    let permit = connection.admit(1 << 50).unwrap();
    assert_eq!(connection.admit(1).unwrap_err(), Overloaded::ConnectionBytes { max: 100 });
    drop(permit);
    assert_eq!((admission.load(), connection.load()), (Load::default(), Load::default()));
    let small = connection.admit(1).unwrap();
    assert!(connection.admit(101).is_err());
    drop(small);
    assert!(connection.admit(101).is_ok());
}

#[test]
fn a_connection_counts_until_its_last_request_is_answered() {
    let admission = Admission::new(limits());
    let connection = connect(&admission, Peer::Client);
    let permit = connection.admit(7).unwrap();
    assert_eq!(connection.load(), Load { requests: 1, bytes: 7 });
    drop(connection);
    let load = Load { requests: 1, bytes: 7 };
    assert_eq!((admission.connections(), admission.load()), (1, load));
    drop(permit);
    assert_eq!((admission.connections(), admission.load()), (0, Load::default()));
}

#[test]
fn the_default_limits_let_a_full_pipeline_of_moderate_requests_through() {
    let admission = Admission::new(AdmissionLimits::default());
    let connection = connect(&admission, Peer::Client);
    let bytes = CONNECTION_BYTES_MAX / CONNECTION_REQUESTS_MAX;
    let (permits, refusal) = admit_all(&connection, bytes);
    assert_eq!(permits.len(), CONNECTION_REQUESTS_MAX);
    assert_eq!(refusal, Overloaded::ConnectionRequests { max: CONNECTION_REQUESTS_MAX });
    drop(permits);
    let frames = [connection.admit(FRAME_BYTES_MAX).unwrap(), connection.admit(FRAME_BYTES_MAX).unwrap()];
    assert_eq!(
        connection.admit(1).unwrap_err(),
        Overloaded::ConnectionBytes { max: 128 << 20 },
        "two of the largest frames"
    );
    drop(frames);
    let clients: Vec<_> = (0..7).map(|_| connect(&admission, Peer::Client)).collect();
    let admitted: Vec<_> = clients.iter().map(|client| client.admit(CONNECTION_BYTES_MAX)).collect();
    let refused = admitted[6].as_ref().unwrap_err();
    assert_eq!((admission.load().bytes, *refused), (768 << 20, Overloaded::NodeBytes { max: 768 << 20 }));
}

#[test]
fn a_sender_of_64_kib_a_second_keeps_its_place_and_a_slower_one_may_lose_it() {
    const KIB: usize = 1024;
    let limits = AdmissionLimits { connections_max: 9, node_bytes_max: 1_000 * KIB, ..limits() };
    for (come, stays) in [(164 * KIB, true), (164 * KIB - 1, false)] {
        let admission = Admission::new(limits);
        let connections = [connect(&admission, Peer::Client), connect(&admission, Peer::Client)];
        let (mut first, mut second) = (connections[0].coming(), connections[1].coming());
        let waker = Waker::from(Arc::new(Woken::default()));
        let mut context = Context::from_waker(&waker);
        assert_eq!(first.hold(400 * KIB, at(0)), Ok(()));
        assert!(first.place().poll(100 * KIB, at(0), &mut context).is_pending());
        assert!(first.place().poll(come, at(999), &mut context).is_pending());
        assert_eq!(second.hold(400 * KIB, at(1_000)).is_err(), stays, "{come} bytes have come");
        assert_eq!(first.place().poll(come, at(1_000), &mut context).is_pending(), stays);
    }
}

#[test]
fn requests_that_come_in_side_by_side_share_what_a_connection_need_not_count() {
    const FREE: usize = protocol::admission::COMING_BYTES_FREE;
    let admission = Admission::new(limits());
    let connection = connect(&admission, Peer::Client);
    let (mut alone, mut among) = (connection.coming(), connection.coming_among(32));
    let mut held = |bytes| {
        let whole = alone.hold(bytes, at(0)).map(|()| admission.load().bytes);
        assert_eq!(alone.hold(0, at(0)), Ok(()));
        let part = among.hold(bytes, at(0)).map(|()| admission.load().bytes);
        assert_eq!(among.hold(0, at(0)), Ok(()));
        (whole, part)
    };
    assert_eq!(held(FREE / 32), (Ok(0), Ok(0)));
    assert_eq!(held(FREE / 32 + 1), (Ok(0), Ok(FREE / 32 + 1)));
    assert_eq!(held(FREE + 1), (Ok(FREE + 1), Ok(FREE + 1)));
}

proptest! {
    #[test]
    fn accounts_agree_with_a_plain_ledger(
        steps in proptest::collection::vec((0..3_usize, 0..70_usize, any::<bool>()), 1..200),
    ) {
        let admission = Admission::new(limits());
        let peers = [Peer::Client, Peer::Client, Peer::Node];
        let connections = peers.map(|peer| connect(&admission, peer));
        let mut ledger: [VecDeque<(usize, Permit)>; 3] = Default::default();
        for (who, bytes, ends) in steps {
            if ends {
                ledger[who].pop_front();
            } else {
                let own: usize = ledger[who].iter().map(|(bytes, _)| bytes).sum();
                let all: usize = ledger.iter().flatten().map(|(bytes, _)| bytes).sum();
                let requests: usize = ledger.iter().map(VecDeque::len).sum();
                let (requests_max, bytes_max) = if peers[who] == Peer::Node { (8, 160) } else { (6, 120) };
                let fits = ledger[who].len() < 4
                    && (ledger[who].is_empty() || own + bytes <= 100)
                    && requests < requests_max
                    && (requests == 0 || all + bytes <= bytes_max);
                let permit = connections[who].admit(bytes);
                prop_assert_eq!(permit.is_ok(), fits);
                ledger[who].extend(permit.ok().map(|permit| (bytes, permit)));
            }
            let bytes = ledger.iter().flatten().map(|(bytes, _)| bytes).sum();
            let requests = ledger.iter().map(VecDeque::len).sum();
            prop_assert_eq!(admission.load(), Load { requests, bytes });
        }
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn at(millis: u64) -> Moment {
    Moment { nanos: millis * 1_000_000 }
}

/// What had begun and fell silent used to keep the room of others for a minute.
#[test]
fn the_slowest_gives_up_its_place_to_one_that_needs_it_and_learns_of_it() {
    const KIB: usize = 1024;
    let limits = AdmissionLimits { connections_max: 9, node_bytes_max: 1_000 * KIB, ..limits() };
    let limits = AdmissionLimits { slow_time_min: Duration::from_secs(1), ..limits };
    let admission = Admission::new(limits);
    let connections: Vec<_> = (0..4).map(|_| connect(&admission, Peer::Client)).collect();
    let mut coming: Vec<_> = connections.iter().map(ConnectionAccount::coming).collect();
    let woken: Vec<Arc<Woken>> = (0..4).map(|_| Arc::default()).collect();
    let poll = |coming: &Coming, which: usize, come: usize, millis: u64| {
        let waker = Waker::from(woken[which].clone());
        coming.place().poll(come, at(millis), &mut Context::from_waker(&waker)).is_ready()
    };

    // Three fill the room: the first falls silent, the second is slow, the third sends.
    for (which, coming) in coming.iter_mut().enumerate().take(3) {
        assert_eq!(coming.hold(160 * KIB, at(which as u64)), Ok(()));
        assert!(!poll(coming, which, 80 * KIB, 10));
    }
    assert!(!poll(&coming[1], 1, 81 * KIB, 1_000));
    assert!(!poll(&coming[2], 2, 144 * KIB, 1_000));
    let full = Err(Overloaded::NodeBytes { max: 500 * KIB });
    assert_eq!(coming[3].hold(100 * KIB, at(1_009)), full, "nobody has been slow for a second");
    assert_eq!(coming[3].hold(100 * KIB, at(1_010)), Ok(()));
    let count = |which: usize| woken[which].0.load(Ordering::Relaxed);
    assert_eq!([count(0), count(1), count(2)], [1, 0, 0], "one place was enough");
    assert_eq!(admission.load().bytes, 420 * KIB);
    assert!(poll(&coming[0], 0, 80 * KIB, 1_010) && !poll(&coming[1], 1, 81 * KIB, 1_010));
    let too_slow = Overloaded::TooSlow { time: Duration::from_secs(1) };
    assert_eq!(coming[0].hold(170 * KIB, at(1_011)), Err(too_slow), "also when more has come meanwhile");
    assert_eq!((coming[0].place().too_slow(), admission.load().bytes), (too_slow, 420 * KIB));

    // It may begin anew; then the second is the slowest, and the third, which sends, stays.
    assert_eq!(coming[0].hold(200 * KIB, at(1_020)), Ok(()));
    assert_eq!([count(0), count(1), count(2)], [1, 1, 0]);
    assert_eq!(coming[3].hold(200 * KIB, at(1_030)), full, "the others are not slow");

    // A request that has come whole in the same moment in which it lost its place is none the worse.
    assert_eq!(coming[1].hold(0, at(1_030)), Ok(()));
    assert!(!poll(&coming[1], 1, 0, 1_030));
    // Requests that have come whole fill the node: no place that is given up would help.
    assert_eq!(admission.load().bytes, 360 * KIB);
    let whole = connections[3].admit(390 * KIB).unwrap();
    let max = 750 * KIB;
    assert_eq!(coming[1].hold(400 * KIB, at(9_000)), Err(Overloaded::NodeBytes { max: 500 * KIB }));
    assert_eq!(coming[1].hold(20 * KIB, at(9_000)), Ok(()), "one place is enough again");
    assert!(max >= admission.load().bytes);
    drop((coming, whole));
    assert_eq!(admission.load(), Load::default());
}

#[test]
fn a_slow_one_gives_up_its_place_also_to_one_that_only_fits_alone_or_exactly() {
    const KIB: usize = 1024;
    let limits = AdmissionLimits { connections_max: 9, node_bytes_max: 1_000 * KIB, ..limits() };
    let limits = AdmissionLimits { connection_bytes_max: 1_000 * KIB, ..limits };
    let slow_for = SLOW_TIME_MIN.as_millis() as u64;
    for (whole, bytes, fits) in
        [(0, 2_000 * KIB, true), (400 * KIB, 350 * KIB, true), (400 * KIB, 350 * KIB + 1, false)]
    {
        let admission = Admission::new(limits);
        let connections: Vec<_> = (0..3).map(|_| connect(&admission, Peer::Client)).collect();
        let mut coming: Vec<_> = connections.iter().map(ConnectionAccount::coming).collect();
        let _whole = (whole > 0).then(|| connections[0].admit(whole).unwrap());
        assert_eq!(coming[1].hold(200 * KIB, at(0)), Ok(()));
        let held = coming[2].hold(bytes, at(slow_for));
        assert_eq!(held.is_ok(), fits, "{bytes} beside {whole} that have come whole");
        let left = whole + if fits { bytes } else { 200 * KIB };
        assert_eq!(admission.load().bytes, left, "nobody loses its place in vain");
    }
}
