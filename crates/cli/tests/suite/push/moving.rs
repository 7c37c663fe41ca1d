//! A node joins and drains while tables are read, pushed and rolled back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Stops, build, more_answers, read_on};
use crate::cluster::Answer;
use crate::moves::Joined;
use crate::observe::until;

/// With one replica nobody but the node that a slice has moved to can answer for it.
#[test]
#[ignore = "takes half a minute; ./check --full process runs it"]
fn a_node_joins_and_drains_under_reads_of_a_table_and_no_key_fails_or_is_absent() {
    let folder = tempfile::tempdir().unwrap();
    let joined = Joined::start();
    let cluster = &joined.cluster;
    let create = ["store", "create", "words", "--read-only", "--consistency", "1,1,1"];
    cluster.run(&create).exits(0);
    cluster.run(&["artifact", "push", &build(folder.path(), 1)]).exits(0);
    let two = build(folder.path(), 2);
    let stop = AtomicBool::new(false);
    let answers = [1, 2, 3].map(|_| AtomicU64::new(0));
    let all_read_on = || answers.iter().for_each(|answers| more_answers(answers, 2));
    std::thread::scope(|scope| {
        // Readers that went on behind a failure would keep the test from its end.
        let _stops = Stops(&stop);
        let readers: Vec<_> = [(1, 2_500), (2, 300), (3, 40)]
            .into_iter()
            .zip(&answers)
            .map(|((node, keys), answers)| {
                let (address, stop) = (cluster.resp(node), &stop);
                scope.spawn(move || read_on(&address, keys, stop, answers))
            })
            .collect();
        all_read_on();
        cluster.run(&["plan", "create", "spread"]).exits(0);
        cluster.run(&["plan", "apply", "1", "--no-wait"]).exits(0);
        joined.await_begun(1);
        cluster.run(&["artifact", "push", &two]).exits(0);
        all_read_on();
        joined.await_phase(1, "done");
        cluster.run(&["node", "drain", "4", "--no-wait"]).exits(0);
        // A node that enters may lack for a moment what it will own.
        let back = || cluster.run(&["artifact", "rollback", "words"]);
        let is_back = |answer: &Answer| {
            assert!(answer.code == 0 || answer.stderr.contains("not held by enough replicas"), "{answer:?}");
            answer.code == 0
        };
        until("the rollback is carried out", back, is_back);
        all_read_on();
        joined.await_phase(2, "done");
        all_read_on();
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            let seen = reader.join().unwrap();
            assert_eq!(seen, [1, 2, 1], "each swap is seen once, and in order");
        }
    });
}
