//! Nodes whose sessions end because they hang.

use rustix::process::Signal;

use super::fleet::Fleet;
use super::registered;
use super::servers::wait_until;
use crate::cluster::signal;
use crate::resp::{Redis, Reply};
use crate::traffic::{CLIENTS, Traffic};

/// A node that lives writes and reads all keys while another one hangs.
fn serve_around(door: &str, stopped: usize) {
    let mut door = Redis::connect(door);
    for number in 0..100 {
        let (key, value) = (format!("around-{number}"), format!("n{stopped}"));
        let set = door.call(&[b"SET", key.as_bytes(), value.as_bytes()]);
        assert!(!matches!(set, Reply::Error(_)), "{key}: {set:?}");
        assert_eq!(door.call(&[b"GET", key.as_bytes()]), Reply::Bulk(Some(value.into_bytes())));
    }
}

/// Each node in turn hangs for longer than its session lives. The others serve in its place; it comes back under
/// the same id, and all that it writes is a registration under a new session.
#[test]
#[ignore = "waits for sessions to end; ./check --full process runs it"]
fn a_node_that_hung_for_longer_than_its_session_comes_back_and_changes_no_document() {
    let mut fleet = Fleet::start(1);
    wait_until("all nodes are registered", || registered(&fleet.address).len() == 3);
    let documents = fleet.kept_documents();
    assert!(documents.iter().any(|(path, ..)| path == "/members/n3"), "{documents:?}");
    let traffic = Traffic::at(fleet.addresses());
    for id in 1..=3 {
        traffic.await_more(200);
        let before = registered(&fleet.address);
        let path = format!("/active/n{id}");
        let owner = |all: &[(String, String)]| all.iter().find(|(at, _)| *at == path).cloned();
        signal(fleet.nodes[id - 1].id(), Signal::STOP);
        wait_until("its session has ended", || owner(&registered(&fleet.address)).is_none());
        serve_around(&fleet.resp(id % 3 + 1), id);
        signal(fleet.nodes[id - 1].id(), Signal::CONT);
        wait_until("it is registered again", || owner(&registered(&fleet.address)).is_some());
        assert_ne!(owner(&registered(&fleet.address)), owner(&before), "under another session");
        fleet.await_no_hints();
    }
    traffic.await_more(200);
    let heard = traffic.end();
    assert_eq!(heard.failed, Vec::<String>::new());
    // What it had taken in when it was stopped, its clients can know nothing of.
    assert!(heard.unknown.len() <= 3 * CLIENTS, "{:?}", heard.unknown);
    fleet.await_no_hints();
    heard.check_at(fleet.addresses());
    for id in 1..=3 {
        heard.check_at(vec![fleet.native(id)]);
    }
    assert_eq!(fleet.kept_documents(), documents);
    fleet.stop();
}
