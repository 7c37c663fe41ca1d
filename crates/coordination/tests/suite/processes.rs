//! The service from a directory, shared by real processes that are killed with SIGKILL.
//!
//! A child process is this test binary again, told by the environment what to do.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use coordination::embedded::EmbeddedSession;
use coordination::{CoordinationError, CoordinationService, CreateMode, DocumentPath, EventKind, Expected};

const DIRECTORY: &str = "COORDINATION_TEST_DIRECTORY";
const ROLE: &str = "COORDINATION_TEST_ROLE";

/// Increments of each process in the race.
const INCREMENTS: u64 = 25;

fn start(role: &str, directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["processes::a_child_process_plays_its_role", "--exact", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
#[ignore = "the other tests of this module run it in separate processes"]
async fn a_child_process_plays_its_role() {
    let directory = std::env::var_os(DIRECTORY).expect("started by another test");
    let session = EmbeddedSession::open(Path::new(&directory)).await.unwrap();
    let counter = DocumentPath::new("/counter").unwrap();
    match std::env::var(ROLE).unwrap().as_str() {
        "register" => {
            let mine = DocumentPath::new("/fleeting").unwrap();
            session.create(&mine, Bytes::new(), CreateMode::Ephemeral).await.unwrap();
            std::future::pending::<()>().await;
        }
        "count" => {
            for number in 1_u64.. {
                session.set(&counter, Bytes::from(number.to_string()), Expected::Any).await.unwrap();
                println!("counted {number}");
            }
        }
        "increment" => {
            for _ in 0..INCREMENTS {
                increment(&session, &counter).await;
            }
            session.close().await.unwrap();
        }
        role => panic!("unknown role {role}"),
    }
}

async fn increment(session: &EmbeddedSession, counter: &DocumentPath) {
    loop {
        let document = session.get(counter).await.unwrap();
        let next = std::str::from_utf8(&document.data).unwrap().parse::<u64>().unwrap() + 1;
        let expected = Expected::Version(document.stat.version);
        match session.set(counter, Bytes::from(next.to_string()), expected).await {
            Ok(_) => return,
            Err(CoordinationError::BadVersion { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn open_with_counter(directory: &Path) -> (EmbeddedSession, DocumentPath) {
    let session = EmbeddedSession::open(directory).await.unwrap();
    let counter = DocumentPath::new("/counter").unwrap();
    session.create(&counter, Bytes::from_static(b"0"), CreateMode::Persistent).await.unwrap();
    (session, counter)
}

#[tokio::test]
async fn sigkill_frees_the_ephemerals_of_a_process() {
    let directory = tempfile::tempdir().unwrap();
    let session = EmbeddedSession::open(directory.path()).await.unwrap();
    let fleeting = DocumentPath::new("/fleeting").unwrap();
    let (_, watch) = session.get_and_watch(&fleeting).await.unwrap();
    let mut child = start("register", directory.path());
    assert_eq!(watch.fired().await.unwrap().kind, EventKind::Created);
    let (document, watch) = session.get_and_watch(&fleeting).await.unwrap();
    assert_ne!(document.unwrap().stat.owner, Some(session.session()));
    let taken = session.create(&fleeting, Bytes::new(), CreateMode::Ephemeral).await;
    assert_eq!(taken, Err(CoordinationError::NodeExists { path: fleeting.clone() }));
    // A stopped process lives.
    rustix::process::kill_process(pid(&child), rustix::process::Signal::STOP).unwrap();
    assert!(session.get(&fleeting).await.is_ok());
    assert!(!watch.has_fired());

    child.kill().unwrap();
    child.wait().unwrap();
    session.create(&fleeting, Bytes::new(), CreateMode::Ephemeral).await.unwrap();
    assert_eq!(watch.fired().await.unwrap().kind, EventKind::Deleted);
}

fn pid(child: &Child) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

#[tokio::test]
async fn what_a_killed_process_was_told_is_there_and_its_lock_is_free() {
    let directory = tempfile::tempdir().unwrap();
    let (session, counter) = open_with_counter(directory.path()).await;
    for kill_after in [1, 7, 30] {
        let mut child = start("count", directory.path());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let counted =
            lines.filter_map(|line| line.strip_prefix("counted ").map(|n| n.parse::<u64>().unwrap()));
        // All that the child says after this it says before it dies.
        let mut told = 0;
        for number in counted {
            told = number;
            if number == kill_after {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(told >= kill_after);
        let found = session.get(&counter).await.unwrap().data;
        let found = std::str::from_utf8(&found).unwrap().parse::<u64>().unwrap();
        assert!(found == told || found == told + 1, "told {told}, found {found}");
        session.set(&counter, Bytes::from_static(b"0"), Expected::Any).await.unwrap();
    }
}

#[tokio::test]
async fn processes_exclude_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let (session, counter) = open_with_counter(directory.path()).await;
    let children: Vec<Child> = (0..3).map(|_| start("increment", directory.path())).collect();
    for _ in 0..INCREMENTS {
        increment(&session, &counter).await;
    }
    for mut child in children {
        // Its output is closed when it ends, so it is read before.
        std::io::copy(child.stdout.as_mut().unwrap(), &mut std::io::sink()).unwrap();
        assert!(child.wait().unwrap().success());
    }
    let document = session.get(&counter).await.unwrap();
    assert_eq!(document.data, (4 * INCREMENTS).to_string());
}
