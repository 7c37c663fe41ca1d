//! A node joins and drains while tables are read, pushed and rolled back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{build, more_answers, read_on};
use crate::moves::Joined;

/// Says stop when it goes, also by a panic.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// With one replica nobody but the node that a slice has moved to can answer for it.
#[test]
fn a_node_joins_and_drains_under_reads_of_a_table_and_no_key_fails_or_is_absent() {
    let folder = tempfile::tempdir().unwrap();
    let joined = Joined::start();
    let cluster = &joined.cluster;
    let create = ["store", "create", "words", "--read-only", "--consistency", "1,1,1"];
    cluster.run(&create).exits(0);
    cluster.run(&["artifact", "push", &build(folder.path(), 1)]).exits(0);
    let two = build(folder.path(), 2);
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Readers that went on behind a failure would keep the test from its end.
        let _stops = Stops(&stop);
        let readers: Vec<_> = [(1, 2_500), (2, 300), (3, 40)]
            .map(|(node, keys)| {
                let (address, stop, answers) = (cluster.resp(node), &stop, &answers);
                scope.spawn(move || read_on(&address, keys, stop, answers))
            })
            .into();
        more_answers(&answers, 6);
        cluster.run(&["plan", "create", "spread"]).exits(0);
        cluster.run(&["plan", "apply", "1", "--no-wait"]).exits(0);
        joined.await_begun(1);
        cluster.run(&["artifact", "push", &two]).exits(0);
        joined.await_phase(1, "done");
        more_answers(&answers, 6);
        cluster.run(&["node", "drain", "4", "--no-wait"]).exits(0);
        cluster.run(&["artifact", "rollback", "words"]);
        joined.await_phase(2, "done");
        more_answers(&answers, 6);
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            let seen = reader.join().unwrap();
            assert!(
                seen.starts_with(&[1]) && seen.len() <= 3,
                "each swap is seen once, and in order: {seen:?}"
            );
        }
    });
}
