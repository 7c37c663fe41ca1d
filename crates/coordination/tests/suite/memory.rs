//! The service in memory.

use std::sync::Arc;

use bytes::Bytes;
use coordination::memory::MemoryService;
use coordination::{
    CoordinationError, CoordinationService, CreateMode, DocumentPath, EventKind, conformance,
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
