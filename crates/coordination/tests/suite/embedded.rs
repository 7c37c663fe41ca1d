//! The service from a directory: durability, damage, and directories that are something else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use coordination::embedded::{EmbeddedSession, OpenError};
use coordination::{
    CoordinationError, CoordinationService, CreateMode, DocumentPath, DocumentVersion, EventKind, Expected,
    conformance,
};

const LOG: &str = "coordination.log";

async fn open(directory: &Path) -> EmbeddedSession {
    EmbeddedSession::open(directory).await.unwrap()
}

fn path(path: &str) -> DocumentPath {
    DocumentPath::new(path).unwrap()
}

async fn create(session: &EmbeddedSession, at: &str, data: &'static str) {
    session.create(&path(at), Bytes::from_static(data.as_bytes()), CreateMode::Persistent).await.unwrap();
}

async fn read(session: &EmbeddedSession, at: &str) -> Option<Bytes> {
    session.get(&path(at)).await.ok().map(|document| document.data)
}

#[tokio::test]
async fn the_service_from_a_directory_keeps_the_traits_promises() {
    let directory = tempfile::tempdir().unwrap();
    conformance::run(&DocumentPath::root(), || async {
        Arc::new(open(directory.path()).await) as Arc<dyn CoordinationService>
    })
    .await;
}

#[tokio::test]
async fn documents_versions_and_numbers_survive_the_last_session() {
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("made/as/needed");
    let session = open(&below).await;
    create(&session, "/kept", "one").await;
    let stat = session.set(&path("/kept"), Bytes::from_static(b"two"), Expected::Any).await.unwrap();
    let numbered =
        session.create(&path("/n-"), Bytes::new(), CreateMode::PersistentSequential).await.unwrap();
    session.delete(&numbered, Expected::Any).await.unwrap();
    let first_id = session.session();
    session.close().await.unwrap();

    let session = open(&below).await;
    assert!(session.session() > first_id, "session ids are not given twice");
    let document = session.get(&path("/kept")).await.unwrap();
    assert_eq!((document.data, document.stat), (Bytes::from_static(b"two"), stat));
    let next = session.create(&path("/n-"), Bytes::new(), CreateMode::PersistentSequential).await.unwrap();
    assert!(next > numbered, "{next} after {numbered}");
}

#[tokio::test]
async fn dropping_a_session_ends_it_like_closing() {
    let directory = tempfile::tempdir().unwrap();
    let (owner, observer) = (open(directory.path()).await, open(directory.path()).await);
    owner.create(&path("/fleeting"), Bytes::new(), CreateMode::Ephemeral).await.unwrap();
    let (found, watch) = observer.get_and_watch(&path("/fleeting")).await.unwrap();
    assert!(found.is_some(), "what one session wrote another reads at once");
    drop(owner);
    assert_eq!(watch.fired().await.unwrap().kind, EventKind::Deleted);
}

#[tokio::test]
async fn the_log_is_folded_when_changes_outgrow_it_and_other_sessions_follow() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, observer) = (open(directory.path()).await, open(directory.path()).await);
    create(&writer, "/big", "").await;
    create(&writer, "/other", "").await;
    writer.create(&path("/fleeting"), Bytes::new(), CreateMode::Ephemeral).await.unwrap();
    let (_, quiet) = observer.get_and_watch(&path("/other")).await.unwrap();
    let (_, list) = observer.children_and_watch(&path("/")).await.unwrap();
    let big = Bytes::from(vec![7; 300_000]);
    for _ in 0..40 {
        writer.set(&path("/big"), big.clone(), Expected::Any).await.unwrap();
    }
    let log_bytes = fs::metadata(directory.path().join(LOG)).unwrap().len();
    assert!(log_bytes < 2_500_000, "{log_bytes} bytes for 40 sets of 300,000 bytes");
    let document = observer.get(&path("/big")).await.unwrap();
    assert_eq!((document.data == big, document.stat.version), (true, DocumentVersion(40)));
    assert!(!quiet.has_fired() && !list.has_fired(), "folding changes nothing that is watched");
    assert!(observer.get(&path("/fleeting")).await.unwrap().stat.owner == Some(writer.session()));

    let (_, watch) = observer.get_and_watch(&path("/big")).await.unwrap();
    for _ in 0..40 {
        writer.set(&path("/big"), big.clone(), Expected::Any).await.unwrap();
    }
    assert_eq!(watch.fired().await.unwrap().kind, EventKind::Changed);
    let reopened = open(directory.path()).await;
    assert_eq!(reopened.get(&path("/big")).await.unwrap().stat.version, DocumentVersion(80));
    assert_eq!(reopened.children(&path("/")).await.unwrap(), ["big", "fleeting", "other"]);
}

/// Its writer was killed in the middle, or the power failed: whatever part of the last record is there, all records
/// before it are.
#[tokio::test]
async fn a_last_record_cut_off_anywhere_is_forgotten_and_all_before_it_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(directory.path()).await;
    create(&session, "/kept", "kept").await;
    let log = directory.path().join(LOG);
    let before = fs::metadata(&log).unwrap().len();
    create(&session, "/last", "last").await;
    let whole = fs::read(&log).unwrap();
    // The session ends without a record, as it does with its process.
    std::mem::forget(session);

    for length in usize::try_from(before).unwrap()..=whole.len() {
        for garbage in [false, true] {
            let copy = tempfile::tempdir().unwrap();
            let mut bytes = whole[..length].to_vec();
            if garbage {
                // The file grew, but not all of its content reached the disk.
                bytes.resize(whole.len(), 0);
            }
            let complete = bytes == whole;
            fs::write(copy.path().join(LOG), bytes).unwrap();
            let session = open(copy.path()).await;
            assert_eq!(read(&session, "/kept").await.as_deref(), Some(&b"kept"[..]), "cut at {length}");
            let expected = complete.then_some(&b"last"[..]);
            assert_eq!(read(&session, "/last").await.as_deref(), expected, "cut at {length}");
            create(&session, "/next", "next").await;
            let observer = open(copy.path()).await;
            assert_eq!(read(&observer, "/next").await.as_deref(), Some(&b"next"[..]), "cut at {length}");
        }
    }
}

#[tokio::test]
async fn damage_before_valid_records_is_refused_and_not_repaired_silently() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(directory.path()).await;
    let log = directory.path().join(LOG);
    create(&session, "/first", "first").await;
    let second = usize::try_from(fs::metadata(&log).unwrap().len()).unwrap();
    create(&session, "/second", "second").await;
    session.close().await.unwrap();
    let whole = fs::read(&log).unwrap();

    for position in (12..second).step_by(7) {
        let copy = tempfile::tempdir().unwrap();
        let mut bytes = whole.clone();
        bytes[position] ^= 0x40;
        fs::write(copy.path().join(LOG), &bytes).unwrap();
        match EmbeddedSession::open(copy.path()).await.map(|_| ()) {
            Err(OpenError::Damaged { path, offset }) => {
                assert_eq!(path, copy.path().join(LOG));
                assert!(offset <= position as u64, "damage at {position} reported at {offset}");
            }
            other => panic!("damage at {position}: {other:?}"),
        }
        assert_eq!(fs::read(copy.path().join(LOG)).unwrap(), bytes, "a refused log is left as it is");
    }
}

#[tokio::test]
async fn directories_that_are_something_else_are_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("thesis.txt"), "do not touch").unwrap();
    let refused = EmbeddedSession::open(directory.path()).await.map(|_| ());
    let Err(error @ OpenError::NotCoordination { .. }) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("thesis.txt"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing was added");

    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(LOG), "somebody's log").unwrap();
    let refused = EmbeddedSession::open(directory.path()).await.map(|_| ());
    assert!(matches!(refused, Err(OpenError::NotCoordination { .. })), "{refused:?}");
    assert_eq!(fs::read(directory.path().join(LOG)).unwrap(), b"somebody's log");
}

#[tokio::test]
async fn a_directory_of_a_newer_format_is_refused_by_its_number() {
    let directory = tempfile::tempdir().unwrap();
    open(directory.path()).await.close().await.unwrap();
    let log = directory.path().join(LOG);
    let mut bytes = fs::read(&log).unwrap();
    bytes[8] = 9;
    fs::write(&log, &bytes).unwrap();
    let refused = EmbeddedSession::open(directory.path()).await.map(|_| ());
    assert!(matches!(refused, Err(OpenError::OtherFormat { found: 9, supported: 1, .. })), "{refused:?}");
    assert_eq!(fs::read(&log).unwrap(), bytes);
}

#[tokio::test]
async fn a_directory_without_the_right_to_write_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o500)).unwrap();
    // Rights do not bind root, but no user may create directories in this one.
    let root = rustix::process::geteuid().is_root();
    let directory =
        if root { Path::new("/sys/coordination").to_owned() } else { parent.path().join("below") };
    let refused = EmbeddedSession::open(&directory).await.map(|_| ());
    assert!(matches!(refused, Err(OpenError::NotWritable { .. })), "{refused:?}");
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o700)).unwrap();

    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = EmbeddedSession::open(&file.join("below")).await.map(|_| ());
    assert!(matches!(refused, Err(OpenError::Failed { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_vanished_directory_makes_the_service_unavailable_and_never_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let session = open(directory.path()).await;
    create(&session, "/kept", "kept").await;
    let elsewhere = directory.path().join("..").join("moved-away");
    let elsewhere = elsewhere.with_extension(std::process::id().to_string());
    fs::rename(directory.path().join(LOG), &elsewhere).unwrap();
    let answer = session.get(&path("/kept")).await;
    assert!(matches!(answer, Err(CoordinationError::Unavailable { .. })), "{answer:?}");
    let answer = session.set(&path("/kept"), Bytes::new(), Expected::Any).await;
    assert!(matches!(answer, Err(CoordinationError::Unavailable { .. })), "{answer:?}");
    fs::rename(&elsewhere, directory.path().join(LOG)).unwrap();
    assert_eq!(read(&session, "/kept").await.as_deref(), Some(&b"kept"[..]));
}
