//! Programs that act on what they knew before: of an earlier move, or of the old place as it was.

use super::*;

/// Begins a move from the old place to the new one, which ends at a call.
fn begun(places: &Places, call: usize, attempt: &str) {
    places.migrate(&Program::new(Some(Plan { call, fault: Fault::Crash })), attempt);
}

#[test]
fn nobody_publishes_while_the_documents_are_copied() {
    let mut refusals = 0;
    for call in 0..calls_of_a_move() {
        let places = Places::begin();
        begun(&places, call, "a");
        let before = contents(&places.old);
        if !String::from_utf8_lossy(&before["/config/cluster"]).starts_with("{\"moving\":") {
            continue;
        }
        let refused = now(publish_cluster(&places.old.open(), &cluster(2))).unwrap_err().to_string();
        assert!(refused.contains("are being moved"), "{refused}");
        assert_eq!(contents(&places.old), before);
        refusals += 1;
    }
    assert!(refusals > 10, "{refusals}");
}

/// The first move is done and so is the way back; a node that slept through both comes over while a third is under way.
#[test]
fn a_node_that_comes_late_from_an_earlier_move_does_not_decide_a_later_one() {
    for call in 0..200 {
        let places = Places::begin();
        places.migrate(&whole(), "a").unwrap().unwrap();
        let Err(ReadError::Moved(first)) = now(read_cluster(&places.old.open())) else {
            panic!("it has moved")
        };
        let (from, to) = (places.new.open(), places.old.open());
        let back = Ends { from_address: NEW.to_owned(), to_address: OLD.to_owned(), ..ends(&from, &to) };
        now(migrate(&back, "b")).unwrap();
        drop((from, to));
        let program = Program::new(Some(Plan { call, fault: Fault::Crash }));
        let ended = places.migrate(&program, "c");

        let in_force_at_old = now(read_cluster(&places.old.open())).is_ok();
        let arrived = now(documents::arrive(&places.new.open(), &first));
        assert!(!in_force_at_old || arrived.is_err(), "call {call}: both places are in force");
        places.migrate(&whole(), "d").unwrap().unwrap();
        places.check_moved();
        if ended.is_some() {
            return;
        }
    }
    panic!("a move makes fewer calls");
}

/// A round of collection at a node that had not gone over wrote the epochs into the place that the documents had left:
/// they could not come back there.
#[test]
fn a_late_write_does_not_block_the_way_back() {
    let places = Places::begin();
    places.migrate(&whole(), "a").unwrap().unwrap();
    let before = contents(&places.new);
    let straggler = places.old.open();
    now(open_epoch(&straggler, Epoch(1))).expect_err("it counts for nothing");
    let late = Member { incarnation: 1, redeemed: None };
    now(write_member(&straggler, NodeId(9), &late)).expect_err("it counts for nothing");
    let left = contents(&places.old);
    assert!(left.contains_key("/config/epochs") && left.contains_key("/members/n9"), "{left:?}");
    let (from, to) = (places.new.open(), places.old.open());
    let back = Ends { from_address: NEW.to_owned(), to_address: OLD.to_owned(), ..ends(&from, &to) };
    now(migrate(&back, "b")).unwrap();
    drop((from, to));
    assert_eq!(contents(&places.old), before);
    places.migrate(&whole(), "c").unwrap().unwrap();
}

/// The command's server of the old ensemble lags behind what an earlier command has done there.
#[test]
fn a_command_that_sees_the_old_place_as_it_was_takes_back_nothing() {
    let beyond = calls_of_a_move() + 1;
    for (call, seed) in (0..beyond).flat_map(|call| (0..40).map(move |seed| (call, seed))) {
        let (goes_over, takes_back) = (seed % 2 == 0, seed % 4 < 2);
        let places = Places::begin();
        places.old.set_faults(MemoryFaults { seed, behind_max: 1_000, ..MemoryFaults::default() });
        let program = whole();
        // What is changed from here on it need not have seen.
        let (from, to) = (program.open(&places.old), program.open(&places.new));
        begun(&places, call, "a");
        let told = RefCell::default();
        if goes_over {
            now(run(Beside::GoesOver, &places.old.open(), &places.new.open(), &told));
        }
        let story = format!("ended at call {call}, seed {seed}");
        if takes_back {
            let _ = play_alone(&program, abort(&ends(&from, &to))).unwrap();
        } else {
            let done = play_alone(&program, migrate(&ends(&from, &to), "b")).unwrap();
            assert!(done.is_ok(), "{story}: {done:?}");
        }
        drop((from, to));
        places.old.set_faults(MemoryFaults::default());
        judge(&places, &told.into_inner(), &story);
    }
}

/// A command hangs until its lock is gone, and another one goes on with the move. Then the first one wakes up and
/// decides, since its session at the old place lives, and a node goes over.
#[test]
fn a_command_that_lost_its_lock_may_decide_beside_the_next_one() {
    let calls = calls_of_a_move();
    for (first_calls, second_calls) in (0..calls).flat_map(|a| (0..calls).map(move |b| (a, b))) {
        let places = Places::begin();
        let (first, node, second) = (whole(), whole(), whole());
        let (from, to) = (first.open(&places.old), first.open(&places.new));
        let lock = to.session();
        let (old, new) = (node.open(&places.old), node.open(&places.new));
        let (next_from, next_to) = (second.open(&places.old), second.open(&places.new));
        let told = RefCell::default();
        let wakes_up = async {
            let _ = migrate(&ends(&from, &to), "a").await;
        };
        let goes_on = async {
            let _ = migrate(&ends(&next_from, &next_to), "b").await;
        };
        let programs: Vec<(Arc<Program>, explorer::Running<'_>)> = vec![
            (first.clone(), Box::pin(wakes_up)),
            (node.clone(), Box::pin(run(Beside::GoesOver, &old, &new, &told))),
            (second.clone(), Box::pin(goes_on)),
        ];
        let mut step = 0;
        play(programs, |left| {
            if step == first_calls {
                places.new.kill(lock);
            }
            step += 1;
            if (first_calls + 1..=first_calls + second_calls).contains(&step) { left - 1 } else { 0 }
        });
        drop((from, to, old, new, next_from, next_to));
        judge(&places, &told.into_inner(), &format!("after {first_calls} calls, then {second_calls}"));
    }
}
