//! Multi-requests: one message per node, and per key exactly what a single request would have done.

use std::collections::BTreeSet;
use std::time::Duration;

use model::limits::MULTI_KEYS_MAX;
use model::{Generation, Moment, NodeId, Partition, PartitionId, PreferenceList, Store, StoreName};
use proptest::prelude::*;
use protocol::quorum::{
    Candidates, Get, GetAction, GetActions, GetEvent, GetOutcome, KeyIndex, Local, MultiGet, MultiGetAction,
    MultiGetEvent, MultiWrite, MultiWriteAction, MultiWriteEvent, Origin, QuorumOptions, ReplicaError, Write,
    WriteAction, WriteActions, WriteEvent,
};

use crate::script::{GENERATION, set};

const NODES: u32 = 5;

/// The list of a key in a ring of five nodes, of which three are replicas.
fn preference(key: usize) -> PreferenceList {
    let consistency = model::Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
    let store = Store::new(StoreName::new("multi").unwrap(), consistency).unwrap();
    let nodes = (0..NODES).map(|step| NodeId((key as u32 + step) % NODES + 1)).collect();
    PreferenceList::of(&store, &Partition::settled(PartitionId(0), 0, nodes))
}

fn options(sloppy: bool) -> QuorumOptions {
    QuorumOptions {
        required: 2,
        preferred: 2,
        sloppy,
        held: 0,
        spared: Default::default(),
        hedge_after: Duration::from_nanos(10),
        deadline: Moment { nanos: 100 },
        wall: Default::default(),
        generation: GENERATION,
        since: GENERATION,
    }
}

fn origin(key: usize) -> Origin {
    let own = NodeId(1);
    let local = if preference(key).is_replica(own) { Local::Applied } else { Local::NotReplica };
    Origin { own, local, possible: false }
}

/// One thing that happens to a node's message: what, to which node, for which keys, after how long.
#[derive(Clone, Debug)]
struct Happening {
    what: u8,
    node: NodeId,
    keys: Vec<KeyIndex>,
    pause: u64,
}

fn happening() -> impl Strategy<Value = Happening> {
    let keys = proptest::collection::btree_set(0..12_u32, 0..12);
    (0..8_u8, 1..=NODES + 1, keys, 0..15_u64).prop_map(|(what, node, keys, pause)| {
        let keys = keys.into_iter().map(KeyIndex).collect();
        Happening { what, node: NodeId(node), keys, pause }
    })
}

fn failure(what: u8) -> ReplicaError {
    match what {
        0 => ReplicaError::StaleGeneration { generation: Generation(GENERATION.0 + 1) },
        1 => ReplicaError::Lost,
        _ => ReplicaError::DiskFull,
    }
}

/// What was wanted for which key, in an order that does not depend on grouping.
type Wanted = BTreeSet<(u32, String)>;

fn want(wanted: &mut Wanted, key: KeyIndex, what: String) {
    assert!(wanted.insert((key.0, what)), "wanted twice for one key");
}

fn flatten_get(actions: &[MultiGetAction]) -> Wanted {
    let (mut wanted, mut messages) = (Wanted::new(), BTreeSet::new());
    for action in actions {
        match action {
            MultiGetAction::Fetch { node, keys } => {
                assert!(messages.insert(("fetch", *node)), "two messages to one node");
                assert!(keys.is_sorted() && !keys.is_empty());
                keys.iter().for_each(|&key| {
                    want(&mut wanted, key, format!("{:?}", GetAction::Fetch { node: *node }))
                });
            }
            MultiGetAction::WriteBack { node, sets } => {
                assert!(messages.insert(("write back", *node)), "two messages to one node");
                for (key, round, set) in sets {
                    let action = GetAction::WriteBack { node: *node, round: *round, set: set.clone() };
                    want(&mut wanted, *key, format!("{action:?}"));
                }
            }
            MultiGetAction::Repair { node, sets } => {
                assert!(messages.insert(("repair", *node)), "two repairs of one node");
                for (key, set) in sets {
                    let repair = GetAction::Repair { node: *node, set: set.clone() };
                    want(&mut wanted, *key, format!("{repair:?}"));
                }
            }
            MultiGetAction::Answer { outcomes } => {
                for (key, outcome) in outcomes {
                    want(&mut wanted, *key, format!("{:?}", GetAction::Answer(outcome.clone())));
                }
            }
            MultiGetAction::Refresh { generation, keys } => {
                let refresh = GetAction::Refresh { generation: *generation };
                keys.iter().for_each(|&key| want(&mut wanted, key, format!("{refresh:?}")));
            }
        }
    }
    wanted
}

fn flatten_write(actions: &[MultiWriteAction]) -> Wanted {
    let (mut wanted, mut messages) = (Wanted::new(), BTreeSet::new());
    for action in actions {
        match action {
            MultiWriteAction::Send { node, merges, hints } => {
                assert!(messages.insert(*node), "two messages to one node");
                assert!(merges.is_sorted() && hints.is_sorted());
                merges.iter().for_each(|&key| {
                    want(&mut wanted, key, format!("{:?}", WriteAction::Merge { node: *node }))
                });
                for &(key, target) in hints {
                    want(&mut wanted, key, format!("{:?}", WriteAction::SendHint { holder: *node, target }));
                }
            }
            MultiWriteAction::ParkHints { hints } => {
                for &(key, target) in hints {
                    want(&mut wanted, key, format!("{:?}", WriteAction::ParkHint { target }));
                }
            }
            MultiWriteAction::Answer { outcomes } => {
                for (key, outcome) in outcomes {
                    want(&mut wanted, *key, format!("{:?}", WriteAction::Answer(outcome.clone())));
                }
            }
            MultiWriteAction::Refresh { generation, keys } => {
                for &(key, possible) in keys {
                    let refresh = WriteAction::Refresh { generation: *generation, possible };
                    want(&mut wanted, key, format!("{refresh:?}"));
                }
            }
        }
    }
    wanted
}

/// A multi-request may wake up earlier than its earliest key, never later, and ends with its last.
fn check_deadline(multi: Option<Moment>, singles: impl Iterator<Item = Option<Moment>>) {
    match (multi, singles.flatten().min()) {
        (None, None) => {}
        (Some(multi), Some(earliest)) => assert!(multi <= earliest, "{multi:?} is after {earliest:?}"),
        other => panic!("one has ended, the other has not: {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_multi_get_does_for_each_key_what_a_get_does(
        sloppy in any::<bool>(),
        held in 0..=2_u8,
        happenings in proptest::collection::vec(happening(), 1..40),
    ) {
        let options = QuorumOptions { held, ..options(sloppy) };
        let (count, mut now) = (10, Moment { nanos: 0 });
        let preferences: Vec<_> = (0..count).map(preference).collect();
        let mut actions = Vec::new();
        let mut multi = MultiGet::start(&preferences, &[NodeId(2)], &[], Some(NodeId(1)), options, now, &mut actions);
        let (mut singles, mut wanted) = (Vec::new(), Wanted::new());
        let note = |wanted: &mut Wanted, key: usize, actions: GetActions| {
            actions.iter().for_each(|action| want(wanted, KeyIndex(key as u32), format!("{action:?}")));
        };
        for (key, preference) in preferences.iter().enumerate() {
            let candidates = Candidates { preference, suspected: &[NodeId(2)], lagging: &[] };
            let mut actions = GetActions::new();
            singles.push(Get::start(candidates, Some(NodeId(1)), options, now, &mut actions));
            note(&mut wanted, key, actions);
        }
        prop_assert_eq!(flatten_get(&actions), wanted);
        for Happening { what, node, keys, pause } in happenings {
            let next = Moment { nanos: now.nanos + pause };
            while let Some(deadline) = multi.deadline().filter(|&deadline| deadline <= next) {
                now = now.max(deadline);
                let (mut actions, mut wanted) = (Vec::new(), Wanted::new());
                multi.step(MultiGetEvent::Elapsed, now, &mut actions);
                for (key, single) in singles.iter_mut().enumerate() {
                    let mut actions = GetActions::new();
                    single.step(GetEvent::Elapsed, now, &mut actions);
                    note(&mut wanted, key, actions);
                }
                prop_assert_eq!(flatten_get(&actions), wanted);
            }
            now = next;
            let held = |key: KeyIndex| if (key.0 + node.0).is_multiple_of(2) { set("a:1") } else { set("b:1") };
            let event = if what < 3 {
                MultiGetEvent::Failed { node, keys: keys.clone(), error: failure(what) }
            } else if what < 5 {
                let stored = if what == 3 { Ok(()) } else { Err(failure(2)) };
                let answers = keys.iter().map(|&key| (key, 0, stored)).collect();
                MultiGetEvent::Stored { node, generation: GENERATION, answers }
            } else {
                let answers = keys.iter().map(|&key| (key, Ok(held(key)))).collect();
                MultiGetEvent::Answered { node, generation: GENERATION, answers }
            };
            let (mut actions, mut wanted) = (Vec::new(), Wanted::new());
            multi.step(event, now, &mut actions);
            for &key in keys.iter().filter(|key| key.position() < count) {
                let event = if what < 3 {
                    GetEvent::Failed { node, error: failure(what) }
                } else if what == 3 {
                    GetEvent::Stored { node, generation: GENERATION, round: 0 }
                } else if what == 4 {
                    GetEvent::NotStored { node, round: 0, error: failure(2) }
                } else {
                    GetEvent::Answered { node, generation: GENERATION, set: held(key) }
                };
                let mut actions = GetActions::new();
                singles[key.position()].step(event, now, &mut actions);
                note(&mut wanted, key.position(), actions);
            }
            prop_assert_eq!(flatten_get(&actions), wanted);
            check_deadline(multi.deadline(), singles.iter().map(Get::deadline));
            let waiting = singles.iter().filter(|single| single.is_unanswered()).count();
            prop_assert_eq!((multi.unanswered(), multi.is_unanswered()), (waiting, waiting > 0));
        }
    }

    #[test]
    fn a_multi_put_does_for_each_key_what_a_put_does(
        sloppy in any::<bool>(),
        happenings in proptest::collection::vec(happening(), 1..40),
    ) {
        let (count, options, mut now) = (10, options(sloppy), Moment { nanos: 0 });
        let preferences: Vec<_> = (0..count).map(preference).collect();
        let origins = preferences.iter().enumerate().map(|(key, preference)| (preference, origin(key)));
        let mut actions = Vec::new();
        let mut multi = MultiWrite::start(origins, &[NodeId(2)], options, now, &mut actions);
        let (mut singles, mut wanted) = (Vec::new(), Wanted::new());
        let note = |wanted: &mut Wanted, key: usize, actions: WriteActions| {
            actions.iter().for_each(|action| want(wanted, KeyIndex(key as u32), format!("{action:?}")));
        };
        for (key, preference) in preferences.iter().enumerate() {
            let candidates = Candidates { preference, suspected: &[NodeId(2)], lagging: &[] };
            let mut actions = WriteActions::new();
            singles.push(Write::start(candidates, origin(key), options, now, &mut actions));
            note(&mut wanted, key, actions);
        }
        prop_assert_eq!(flatten_write(&actions), wanted);
        for Happening { what, node, keys, pause } in happenings {
            let next = Moment { nanos: now.nanos + pause };
            while let Some(deadline) = multi.deadline().filter(|&deadline| deadline <= next) {
                now = now.max(deadline);
                let (mut actions, mut wanted) = (Vec::new(), Wanted::new());
                multi.step(MultiWriteEvent::Elapsed, now, &mut actions);
                for (key, single) in singles.iter_mut().enumerate() {
                    let mut actions = WriteActions::new();
                    single.step(WriteEvent::Elapsed, now, &mut actions);
                    note(&mut wanted, key, actions);
                }
                prop_assert_eq!(flatten_write(&actions), wanted);
            }
            now = next;
            let event = if what < 3 {
                MultiWriteEvent::Failed { node, keys: keys.clone(), error: failure(what) }
            } else {
                let answers = keys.iter().map(|&key| (key, Ok(key.0 == 3))).collect();
                MultiWriteEvent::Acknowledged { node, generation: GENERATION, answers }
            };
            let (mut actions, mut wanted) = (Vec::new(), Wanted::new());
            multi.step(event, now, &mut actions);
            for &key in keys.iter().filter(|key| key.position() < count) {
                let event = if what < 3 {
                    WriteEvent::Failed { node, error: failure(what) }
                } else {
                    WriteEvent::Acknowledged { node, generation: GENERATION, superseded: key.0 == 3 }
                };
                let mut actions = WriteActions::new();
                singles[key.position()].step(event, now, &mut actions);
                note(&mut wanted, key.position(), actions);
            }
            prop_assert_eq!(flatten_write(&actions), wanted);
            check_deadline(multi.deadline(), singles.iter().map(Write::deadline));
            let waiting = singles.iter().filter(|single| single.is_unanswered()).count();
            prop_assert_eq!((multi.unanswered(), multi.is_unanswered()), (waiting, waiting > 0));
        }
    }
}

#[test]
fn ten_thousand_keys_on_five_nodes_are_five_messages() {
    let preferences: Vec<_> = (0..MULTI_KEYS_MAX).map(preference).collect();
    let now = Moment { nanos: 0 };
    let mut actions = Vec::new();
    let mut multi = MultiGet::start(&preferences, &[], &[], None, options(true), now, &mut actions);
    assert_eq!(actions.len(), NODES as usize);
    let mut outcomes = 0;
    for action in actions {
        let MultiGetAction::Fetch { node, keys } = action else { panic!("nothing else to do yet") };
        let answers = keys.into_iter().map(|key| (key, Ok(set("a:1")))).collect();
        let mut actions = Vec::new();
        multi.step(MultiGetEvent::Answered { node, generation: GENERATION, answers }, now, &mut actions);
        assert!(actions.len() <= 1, "all answers of a step come together");
        for action in actions {
            let MultiGetAction::Answer { outcomes: more } = action else { panic!("nothing to repair") };
            outcomes += more.len();
        }
    }
    assert_eq!((outcomes, multi.unanswered(), multi.deadline()), (MULTI_KEYS_MAX, 0, None));
}

#[test]
fn one_key_of_a_multi_get_fails_alone() {
    let preferences = [preference(0), preference(0)];
    let now = Moment { nanos: 0 };
    let mut actions = Vec::new();
    let mut multi = MultiGet::start(&preferences, &[], &[], None, options(false), now, &mut actions);
    let mut outcomes = Vec::new();
    for node in (1..=3).map(NodeId) {
        let answers = vec![(KeyIndex(0), Ok(set("a:1"))), (KeyIndex(1), Err(ReplicaError::Corrupt))];
        actions.clear();
        multi.step(MultiGetEvent::Answered { node, generation: GENERATION, answers }, now, &mut actions);
        for action in &actions {
            if let MultiGetAction::Answer { outcomes: more } = action {
                outcomes.extend(more.clone());
            }
        }
    }
    assert!(matches!(outcomes[0], (KeyIndex(0), GetOutcome::Done { answered: 2, .. })), "{outcomes:?}");
    assert!(matches!(outcomes[1], (KeyIndex(1), GetOutcome::Failed { .. })), "{outcomes:?}");
    assert_eq!((outcomes.len(), multi.unanswered()), (2, 0));
}
