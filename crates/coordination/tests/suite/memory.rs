//! The service in memory.

use std::sync::Arc;

use bytes::Bytes;
use coordination::memory::{MemoryFaults, MemoryService};
use coordination::{
    CoordinationError, CoordinationService, CreateMode, DocumentPath, EventKind, Expected, conformance,
};

#[tokio::test]
async fn the_service_in_memory_keeps_the_traits_promises() {
    let service = MemoryService::new();
    conformance::run(&DocumentPath::root(), || async {
        Arc::new(service.open()) as Arc<dyn CoordinationService>
    })
    .await;
}

#[tokio::test]
async fn a_killed_session_learns_it_and_its_ephemerals_are_gone() {
    let service = MemoryService::new();
    let (victim, observer) = (service.open(), service.open());
    let path = DocumentPath::new("/fleeting").unwrap();
    victim.create(&path, Bytes::new(), CreateMode::Ephemeral).await.unwrap();
    let (_, watch) = observer.get_and_watch(&path).await.unwrap();
    service.kill(victim.session());
    victim.lost().await;
    assert_eq!(victim.get(&path).await, Err(CoordinationError::SessionLost));
    assert_eq!(watch.fired().await.unwrap().kind, EventKind::Deleted);
    assert_eq!(observer.get(&path).await, Err(CoordinationError::NoNode { path }));
}

#[tokio::test]
async fn an_unavailable_service_refuses_everything_and_comes_back_with_its_sessions() {
    let service = MemoryService::new();
    let session = service.open();
    let path = DocumentPath::new("/document").unwrap();
    session.create(&path, Bytes::new(), CreateMode::Ephemeral).await.unwrap();
    service.set_available(false);
    assert!(matches!(session.get(&path).await, Err(CoordinationError::Unavailable { .. })));
    let deleted = session.delete(&path, coordination::Expected::Any).await;
    assert!(matches!(deleted, Err(CoordinationError::Unavailable { .. })));
    service.set_available(true);
    assert_eq!(session.get(&path).await.unwrap().stat.owner, Some(session.session()));
}

#[tokio::test]
async fn a_service_whose_sessions_are_behind_keeps_the_traits_promises() {
    for seed in 0..20 {
        let service = MemoryService::new();
        let behind_at_first = seed % 2 == 0;
        let faults = MemoryFaults { seed, behind_max: 50, behind_at_first, ..MemoryFaults::default() };
        service.set_faults(faults);
        conformance::run(&DocumentPath::root(), || async {
            Arc::new(service.open()) as Arc<dyn CoordinationService>
        })
        .await;
    }
}

#[tokio::test]
async fn a_session_that_is_behind_reads_what_was_and_a_watch_set_on_it_has_fired() {
    let path = DocumentPath::new("/document").unwrap();
    let (mut old, mut fired) = (0, 0);
    for seed in 0..100 {
        let service = MemoryService::new();
        let (writer, reader) = (service.open(), service.open());
        writer.create(&path, Bytes::from_static(b"old"), CreateMode::Persistent).await.unwrap();
        service.set_faults(MemoryFaults { seed, behind_max: 1, ..MemoryFaults::default() });
        writer.set(&path, Bytes::from_static(b"new"), Expected::Any).await.unwrap();
        assert_eq!(writer.get(&path).await.unwrap().data, "new", "a session sees its own writes");
        let (found, watch) = reader.get_and_watch(&path).await.unwrap();
        if found.unwrap().data == "old" {
            old += 1;
            fired += usize::from(watch.has_fired());
        } else {
            assert!(!watch.has_fired(), "what was read is no news");
        }
        assert_eq!(reader.get(&path).await.unwrap().data, "new", "after the event comes the change");
    }
    assert!((20..=80).contains(&old) && fired == old, "{old} old readings, {fired} events");
}

#[tokio::test]
async fn a_new_session_may_lag_and_sees_everything_after_its_first_write() {
    let path = DocumentPath::new("/document").unwrap();
    let mut old = 0;
    for seed in 0..100 {
        let service = MemoryService::new();
        let behind_at_first = true;
        service.set_faults(MemoryFaults { seed, behind_max: 3, behind_at_first, ..MemoryFaults::default() });
        let writer = service.open();
        writer.create(&path, Bytes::new(), CreateMode::Persistent).await.unwrap();
        let reader = service.open();
        old += usize::from(reader.get(&path).await.is_err());
        let refused = reader.create(&path, Bytes::new(), CreateMode::Persistent).await;
        assert_eq!(refused, Err(CoordinationError::NodeExists { path: path.clone() }));
        assert!(reader.get(&path).await.is_ok(), "a refused write shows what refused it");
    }
    assert!((8..=50).contains(&old), "{old} old readings");
}

/// Its session may go on at another server, to which the write has not come yet.
#[tokio::test]
async fn a_session_need_not_see_its_own_unanswered_write() {
    let path = DocumentPath::new("/document").unwrap();
    let (mut hidden, mut seen) = (0, 0);
    for seed in 0..300 {
        let service = MemoryService::new();
        let (writer, observer) = (service.open(), service.open());
        let faults =
            MemoryFaults { seed, indeterminate_per_mille: 1000, behind_max: 5, ..MemoryFaults::default() };
        service.set_faults(faults);
        writer.create(&path, Bytes::new(), CreateMode::Persistent).await.unwrap_err();
        let found = writer.get(&path).await.is_ok();
        service.set_faults(MemoryFaults::default());
        match (observer.get(&path).await.is_ok(), found) {
            (true, false) => hidden += 1,
            (_, true) => seen += 1,
            (false, false) => {}
        }
    }
    assert!(hidden > 30 && seen > 30, "{hidden} hidden, {seen} seen");
}

#[tokio::test]
async fn an_unconfirmed_write_has_happened_or_not_or_happens_before_the_next_call() {
    let path = DocumentPath::new("/document").unwrap();
    let (mut at_once, mut later, mut never) = (0, 0, 0);
    for seed in 0..90 {
        let service = MemoryService::new();
        let (writer, observer) = (service.open(), service.open());
        let faults = MemoryFaults { seed, indeterminate_per_mille: 1000, ..MemoryFaults::default() };
        service.set_faults(faults);
        let answer = writer.create(&path, Bytes::new(), CreateMode::Persistent).await;
        assert!(matches!(answer, Err(CoordinationError::Indeterminate { .. })), "{answer:?}");
        service.set_faults(MemoryFaults::default());
        let happened = observer.get(&path).await.is_ok();
        match (happened, writer.get(&path).await.is_ok()) {
            (true, true) => at_once += 1,
            (false, true) => later += 1,
            (false, false) => never += 1,
            (true, false) => panic!("what has happened is gone"),
        }
    }
    assert!(at_once.min(later).min(never) > 15, "{at_once} at once, {later} later, {never} never");
}

#[tokio::test]
async fn a_session_may_end_at_any_call_and_takes_its_late_write_with_it() {
    let (fleeting, late) = (DocumentPath::new("/fleeting").unwrap(), DocumentPath::new("/late").unwrap());
    let service = MemoryService::new();
    let (victim, observer) = (service.open(), service.open());
    victim.create(&fleeting, Bytes::new(), CreateMode::Ephemeral).await.unwrap();
    let seed = 1;
    service.set_faults(MemoryFaults { seed, indeterminate_per_mille: 1000, ..MemoryFaults::default() });
    victim.create(&late, Bytes::new(), CreateMode::Ephemeral).await.unwrap_err();
    service.set_faults(MemoryFaults { seed, lost_per_mille: 1000, ..MemoryFaults::default() });
    assert_eq!(victim.get(&fleeting).await.err(), Some(CoordinationError::SessionLost));
    victim.lost().await;
    service.set_faults(MemoryFaults::default());
    assert!(observer.get(&fleeting).await.is_err() && observer.get(&late).await.is_err());
}
