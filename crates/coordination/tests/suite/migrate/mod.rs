//! Moving all documents to another service: ended at any call, beside any writer, and with calls that go wrong.

mod explorer;
mod late;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use coordination::documents::{
    self, ActiveNode, Member, ReadError, ServiceMove, cluster_path, complete_epoch, open_epoch,
    publish_cluster, read_cluster, read_epochs, read_member, register, write_member,
};
use coordination::memory::{MemoryFaults, MemoryService};
use coordination::migrate::{Done, Ends, MigrateError, abort, migrate};
use coordination::{CoordinationError, CoordinationService, CreateMode, DocumentPath, Expected};
use model::{Cluster, Epoch, Generation, Node, NodeId, Ring, Zone};

use self::explorer::{Choices, Fault, Plan, Program, play, play_alone};

const OLD: &str = "zookeeper://old/shop";
const NEW: &str = "zookeeper://new/shop";

fn node(id: u32) -> Node {
    Node::new(NodeId(id), Zone("a".into()), format!("127.0.0.1:{id}"), None)
}

fn cluster(generation: u64) -> Cluster {
    let ring = Ring::equal_slices(2, &[(NodeId(1), Zone("a".into()))]);
    let first = Cluster::new("shop", vec![node(1)], ring, Vec::new());
    Cluster { generation: Generation(generation), ..first }
}

fn active(id: u32, follows_as: Option<&str>) -> ActiveNode {
    ActiveNode { follows_as: follows_as.map(str::to_owned), ..ActiveNode::new(node(id), 1) }
}

/// What is done here needs no executor.
fn now<T>(future: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(future).expect("nothing waits")
}

/// The services at both places.
#[derive(Default)]
struct Places {
    old: MemoryService,
    new: MemoryService,
}

impl Places {
    /// A cluster at the old place, and nothing at the new one.
    fn begin() -> Places {
        let places = Places::default();
        let session = places.old.open();
        now(publish_cluster(&session, &cluster(1))).unwrap();
        now(write_member(&session, NodeId(1), &Member { incarnation: 1, redeemed: None })).unwrap();
        now(open_epoch(&session, Epoch(6))).unwrap();
        places
    }

    /// Both as `program` sees them.
    fn migrate(&self, program: &Arc<Program>, attempt: &str) -> Option<Result<Done, MigrateError>> {
        let (from, to) = (program.open(&self.old), program.open(&self.new));
        play_alone(program, migrate(&ends(&from, &to), attempt))
    }

    fn abort(&self, program: &Arc<Program>) -> Option<Result<(), MigrateError>> {
        let (from, to) = (program.open(&self.old), program.open(&self.new));
        play_alone(program, abort(&ends(&from, &to)))
    }

    /// Whether the old place is in force. Both never are: a publication succeeds at one of them at most.
    fn old_is_in_force(&self) -> bool {
        let (old, new) = (self.old.open(), self.new.open());
        match (now(read_cluster(&old)), now(read_cluster(&new))) {
            (Ok(Some(_)), Ok(None) | Err(ReadError::Arriving(_))) => true,
            // A node that comes from the old place makes the new one say so.
            (Err(ReadError::Moved(this)), Err(ReadError::Arriving(_)) | Ok(Some(_))) => {
                now(documents::arrive(&new, &this)).unwrap();
                assert_eq!(now(read_cluster(&new)), Ok(Some(cluster(1))));
                false
            }
            found => panic!("{found:?}"),
        }
    }

    /// Everything but the cluster document, and that as readers see it.
    fn check_moved(&self) {
        let (old, new) = (self.old.open(), self.new.open());
        assert!(matches!(now(read_cluster(&old)), Err(ReadError::Moved(this)) if this.to == NEW));
        assert_eq!(
            contents(&self.old).keys().map(String::as_str).collect::<Vec<_>>(),
            ["/config", "/config/cluster"]
        );
        assert_eq!(now(read_cluster(&new)).unwrap().unwrap().name, "shop");
        assert!(now(read_member(&new, NodeId(1))).unwrap().is_some());
        assert!(now(read_epochs(&new)).unwrap().opened >= Epoch(7));
    }
}

fn ends<'a>(from: &'a dyn CoordinationService, to: &'a dyn CoordinationService) -> Ends<'a> {
    Ends { from, from_address: OLD.to_owned(), to, to_address: NEW.to_owned(), user: String::new() }
}

fn contents(service: &MemoryService) -> BTreeMap<String, Bytes> {
    let session = service.open();
    let mut found = BTreeMap::new();
    let mut waiting = vec![DocumentPath::root()];
    while let Some(path) = waiting.pop() {
        let names = now(session.children(&path)).unwrap();
        waiting.extend(names.iter().map(|name| path.child(name).unwrap()));
        if !path.is_root() {
            found.insert(path.to_string(), now(session.get(&path)).unwrap().data);
        }
    }
    found
}

fn whole() -> Arc<Program> {
    Program::new(None)
}

const FAULTS: [Fault; 3] = [Fault::Crash, Fault::Unconfirmed, Fault::Lost];

/// How many calls a whole move makes.
fn calls_of_a_move() -> usize {
    let (places, program) = (Places::begin(), whole());
    places.migrate(&program, "a").unwrap().unwrap();
    places.check_moved();
    program.calls()
}

#[test]
fn a_move_takes_all_documents_along_and_leaves_where_they_went() {
    let places = Places::begin();
    let before = contents(&places.old);
    let done = places.migrate(&whole(), "a").unwrap().unwrap();
    assert_eq!((&*done.this.name, &*done.this.from, &*done.this.to), ("shop", OLD, NEW));
    places.check_moved();
    assert_eq!(contents(&places.new), before, "byte for byte");
    let again = places.migrate(&whole(), "b").unwrap().unwrap();
    assert_eq!(again.this, done.this, "repeating says what is");
    assert_eq!(contents(&places.new), before);
}

#[test]
fn a_move_that_ends_at_any_call_goes_on_or_is_taken_back() {
    for (call, fault) in (0..calls_of_a_move()).flat_map(|call| FAULTS.map(|fault| (call, fault))) {
        let begun = || {
            let places = Places::begin();
            places.migrate(&Program::new(Some(Plan { call, fault })), "a");
            places
        };
        let places = begun();
        places.old_is_in_force();
        places.migrate(&whole(), "b").unwrap().unwrap_or_else(|error| panic!("{call} {fault:?}: {error}"));
        places.check_moved();

        let places = begun();
        let in_force = places.old_is_in_force();
        match places.abort(&whole()).unwrap() {
            Ok(()) | Err(MigrateError::NothingToAbort { .. }) => {
                assert!(in_force, "{call} {fault:?}");
                assert_eq!(contents(&places.old), contents(&Places::begin().old), "{call} {fault:?}");
                let left: Vec<String> = contents(&places.new).into_keys().collect();
                assert!(left.is_empty() || left == ["/config"], "{call} {fault:?}: {left:?}");
            }
            Err(MigrateError::Decided(_)) => assert!(!in_force, "{call} {fault:?}"),
            Err(error) => panic!("{call} {fault:?}: {error}"),
        }
        places.migrate(&whole(), "c").unwrap().unwrap();
        places.check_moved();
    }
}

#[test]
fn whatever_goes_on_or_is_taken_back_may_end_at_any_call_too() {
    for (first, take_back) in (0..calls_of_a_move()).flat_map(|first| [(first, true), (first, false)]) {
        for second in 0.. {
            let places = Places::begin();
            places.migrate(&Program::new(Some(Plan { call: first, fault: Fault::Crash })), "a");
            let program = Program::new(Some(Plan { call: second, fault: Fault::Crash }));
            let ended = match take_back {
                true => places.abort(&program).map(drop),
                false => places.migrate(&program, "b").map(drop),
            };
            places.old_is_in_force();
            places.migrate(&whole(), "c").unwrap().unwrap();
            places.check_moved();
            if ended.is_some() {
                break;
            }
        }
    }
}

/// What a writer beside a move was told.
#[derive(Debug, Default)]
struct Told {
    published: Option<bool>,
    epochs: Vec<Epoch>,
    completed: bool,
    member: bool,
}

/// A program beside a move, with a session at each place.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Publishes,
    OpensAnEpoch,
    CompletesAnEpoch,
    RemembersAMember,
    /// A node that goes over when it is told to, and changes something there.
    GoesOver,
}

async fn run(
    beside: Beside,
    old: &dyn CoordinationService,
    new: &dyn CoordinationService,
    told: &RefCell<Told>,
) {
    match beside {
        Beside::Publishes => {
            let published = publish_cluster(old, &cluster(2)).await.is_ok();
            told.borrow_mut().published = Some(published);
        }
        Beside::OpensAnEpoch => {
            if let Ok(epoch) = open_epoch(old, Epoch(0)).await {
                told.borrow_mut().epochs.push(epoch);
            }
        }
        Beside::CompletesAnEpoch => {
            told.borrow_mut().completed = complete_epoch(old, Epoch(7)).await.is_ok();
        }
        Beside::RemembersAMember => {
            let member = Member { incarnation: 5, redeemed: None };
            told.borrow_mut().member = write_member(old, NodeId(2), &member).await.is_ok();
        }
        Beside::GoesOver => {
            let Err(ReadError::Moved(this)) = read_cluster(old).await else { return };
            documents::arrive(new, &this).await.unwrap();
            let epoch = open_epoch(new, Epoch(0)).await.unwrap();
            told.borrow_mut().epochs.push(epoch);
        }
    }
}

/// What anybody was told holds at the place that is in force.
fn judge(places: &Places, told: &Told, story: &str) {
    places.migrate(&whole(), "z").unwrap().unwrap_or_else(|error| panic!("{story}: {error}"));
    places.check_moved();
    let new = places.new.open();
    let found = now(read_cluster(&new)).unwrap().unwrap().generation;
    if let Some(published) = told.published {
        assert_eq!(found, Generation(if published { 2 } else { 1 }), "{story}");
    }
    let next = now(open_epoch(&new, Epoch(0))).unwrap();
    assert!(told.epochs.iter().all(|&epoch| epoch < next), "{story}: {told:?}, then {next:?}");
    let completed = now(read_epochs(&new)).unwrap().completed;
    assert!(!told.completed || completed == Epoch(7), "{story}");
    assert!(!told.member || now(read_member(&new, NodeId(2))).unwrap().is_some(), "{story}");
}

/// Plays every order of two programs' calls with so many switches between programs that could go on.
fn play_all_orders(switches_max: usize, begin: impl Fn() -> Places, beside: Beside, story: &str) -> usize {
    let (mut choices, mut orders) = (Choices::default(), 0);
    while choices.advance() {
        let places = begin();
        let (told, mut current, mut switches) = (RefCell::default(), 0, 0);
        let (mover, other) = (whole(), whole());
        let (from, to) = (mover.open(&places.old), mover.open(&places.new));
        let (old, new) = (other.open(&places.old), other.open(&places.new));
        let moving = async {
            let done = migrate(&ends(&from, &to), "b").await;
            assert!(done.is_ok(), "{done:?}");
        };
        let programs = vec![
            (mover.clone(), Box::pin(moving) as explorer::Running<'_>),
            (other.clone(), Box::pin(run(beside, &old, &new, &told))),
        ];
        play(programs, |left| {
            if left == 1 {
                return 0;
            }
            if switches < switches_max && choices.choose(2) == 1 {
                switches += 1;
                current = 1 - current;
            }
            current
        });
        drop((from, to, old, new));
        judge(&places, &told.into_inner(), &format!("{story}: order {orders} of {beside:?}"));
        orders += 1;
    }
    orders
}

#[test]
fn what_a_writer_was_told_beside_a_move_holds_in_every_order_of_their_calls() {
    for beside in [
        Beside::Publishes,
        Beside::OpensAnEpoch,
        Beside::CompletesAnEpoch,
        Beside::RemembersAMember,
        Beside::GoesOver,
    ] {
        let orders = play_all_orders(3, Places::begin, beside, "whole");
        // Whoever goes over makes the fewest calls.
        let least = if matches!(beside, Beside::GoesOver) { 975 } else { 1_000 };
        assert!(orders > least, "{orders} orders of {beside:?}");
    }
}

/// The new place is in force already when the command is repeated, and nodes change it.
#[test]
fn going_on_with_a_move_takes_back_nothing_that_a_node_has_changed_at_the_new_place() {
    let calls = calls_of_a_move();
    for call in calls.saturating_sub(20)..calls {
        let begin = || {
            let places = Places::begin();
            places.migrate(&Program::new(Some(Plan { call, fault: Fault::Crash })), "a");
            places
        };
        play_all_orders(2, begin, Beside::GoesOver, &format!("ended at call {call}"));
    }
}

/// Sessions end, answers are lost, writes come late and readers are behind, in movers, writers and nodes alike.
#[test]
fn whatever_goes_wrong_with_calls_what_anybody_was_told_holds() {
    for seed in 0..2_000 {
        let places = Places::begin();
        let faults = |seed| MemoryFaults {
            seed,
            lost_per_mille: 10,
            indeterminate_per_mille: 40,
            behind_max: 3,
            behind_at_first: seed % 2 == 0,
        };
        places.old.set_faults(faults(seed));
        places.new.set_faults(faults(seed ^ 0xffff_0000));
        let told = RefCell::default();
        let mut dice = seed;
        let mut roll = move |among: usize| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) as usize % among
        };
        for attempt in ["a", "b", "c"] {
            let mut programs: Vec<(Arc<Program>, explorer::Running<'_>)> = Vec::new();
            let (program, places, told) = (whole(), &places, &told);
            let mover = program.clone();
            let aborts = roll(4) == 0;
            programs.push((
                program,
                Box::pin(async move {
                    let (from, to) = (mover.open(&places.old), mover.open(&places.new));
                    let _ = match aborts {
                        true => abort(&ends(&from, &to)).await,
                        false => migrate(&ends(&from, &to), attempt).await.map(drop),
                    };
                }),
            ));
            for beside in [Beside::OpensAnEpoch, Beside::RemembersAMember, Beside::Publishes] {
                let program = whole();
                let writer = program.clone();
                programs.push((
                    program,
                    Box::pin(async move {
                        let (old, new) = (writer.open(&places.old), writer.open(&places.new));
                        run(beside, &old, &new, told).await;
                    }),
                ));
            }
            play(programs, &mut roll);
        }
        places.old.set_faults(MemoryFaults::default());
        places.new.set_faults(MemoryFaults::default());
        // A publication that was in doubt may have happened.
        let told = Told { published: None, ..told.into_inner() };
        judge(&places, &told, &format!("seed {seed}"));
    }
}

#[test]
fn a_move_goes_back_to_the_place_that_the_documents_had_left() {
    let places = Places::begin();
    let before = contents(&places.old);
    places.migrate(&whole(), "a").unwrap().unwrap();
    // A node that has not gone over yet.
    let straggler = places.old.open();
    now(register(&straggler, &active(1, Some("")))).unwrap();
    let (from, to) = (places.new.open(), places.old.open());
    let back = |from, to| Ends { from_address: NEW.to_owned(), to_address: OLD.to_owned(), ..ends(from, to) };
    now(migrate(&back(&from, &to), "b")).unwrap();
    drop(straggler);
    drop((from, to));
    let mut after = contents(&places.old);
    after.remove("/active");
    assert_eq!(after, before);
    assert!(matches!(now(read_cluster(&places.new.open())), Err(ReadError::Moved(this)) if this.to == OLD));
    // And once more, from where it began.
    places.migrate(&whole(), "c").unwrap().unwrap();
}

#[test]
fn the_way_back_leads_to_the_place_in_force_wherever_it_ended() {
    for call in 0..200 {
        let places = Places::begin();
        places.migrate(&whole(), "a").unwrap().unwrap();
        let program = Program::new(Some(Plan { call, fault: Fault::Crash }));
        let ended = {
            let (from, to) = (program.open(&places.new), program.open(&places.old));
            let (from_address, to_address) = (NEW.to_owned(), OLD.to_owned());
            play_alone(&program, migrate(&Ends { from_address, to_address, ..ends(&from, &to) }, "b"))
        };
        // A node begins where its command line says, and follows.
        for begin in [OLD, NEW] {
            let mut at = begin.to_owned();
            let mut hops = 0;
            let mut came: Option<ServiceMove> = None;
            loop {
                let service = if at == OLD { places.old.open() } else { places.new.open() };
                let arrived = match &came {
                    Some(this) => now(documents::arrive(&service, this)),
                    None => now(read_cluster(&service)).map(drop),
                };
                match arrived {
                    Ok(()) => break,
                    Err(ReadError::Moved(this)) => {
                        at.clone_from(&this.to);
                        came = Some(*this);
                        hops += 1;
                        assert!(hops < 4, "call {call}: it goes round in circles");
                    }
                    Err(error) => panic!("call {call}, from {begin}: {error}"),
                }
            }
        }
        if ended.is_some() {
            return;
        }
    }
    panic!("a move makes fewer calls");
}

#[test]
fn a_place_that_is_not_empty_is_refused_and_nothing_is_changed() {
    let places = Places::begin();
    let root = |name: &str| DocumentPath::new(name).unwrap();
    let other = places.new.open();
    now(other.create(&root("/other"), Bytes::new(), CreateMode::Persistent)).unwrap();
    let before = (contents(&places.old), contents(&places.new));
    let refused = places.migrate(&whole(), "a").unwrap().unwrap_err();
    assert!(
        matches!(&refused, MigrateError::NotEmpty { place, path } if place == NEW && *path == root("/other"))
    );
    assert_eq!((contents(&places.old), contents(&places.new)), before);
    now(other.delete(&root("/other"), Expected::Any)).unwrap();
    now(publish_cluster(&other, &cluster(1))).unwrap();
    let refused = places.migrate(&whole(), "a").unwrap().unwrap_err();
    assert!(matches!(refused, MigrateError::NotEmpty { .. }), "a cluster of the same name is another one");
}

/// As at the root of an ensemble that other programs use, or above the place of another cluster.
#[test]
fn what_is_not_the_clusters_own_is_neither_copied_nor_deleted() {
    let places = Places::begin();
    let session = places.old.open();
    let foreign = ["/brokers", "/brokers/topics", "/shop", "/shop/config", "/shop/config/cluster"];
    for path in foreign.map(|path| DocumentPath::new(path).unwrap()) {
        now(session.create(&path, Bytes::from("theirs"), CreateMode::Persistent)).unwrap();
    }
    places.migrate(&whole(), "a").unwrap().unwrap();
    let (old, new) = (contents(&places.old), contents(&places.new));
    for path in foreign {
        assert_eq!(old.get(path), Some(&Bytes::from("theirs")), "{path} stays");
        assert!(!new.contains_key(path), "{path} does not come along");
    }
    assert!(!old.contains_key("/members"), "{old:?}");
}

#[test]
fn nodes_that_would_stay_behind_are_named_before_anything_is_changed() {
    let places = Places::begin();
    let before = contents(&places.old);
    let session = places.old.open();
    let refusal = |registered: &ActiveNode, user: &str| {
        now(register(&session, registered)).unwrap();
        let (from, to) = (places.old.open(), places.new.open());
        let refused = now(migrate(&Ends { user: user.to_owned(), ..ends(&from, &to) }, "a"));
        refused.unwrap_err().to_string()
    };
    let stays = refusal(&active(1, None), "");
    assert!(stays.contains("n1 would stay behind") && stays.contains("stop it first"), "{stays}");
    let bare = refusal(&active(1, Some("")), "shop");
    assert!(bare.contains("without credentials instead of those of user \"shop\""), "{bare}");
    drop(session);
    let mut after = contents(&places.old);
    after.remove("/active");
    assert_eq!((after, contents(&places.new)), (before, BTreeMap::new()));
}

#[test]
fn one_process_at_a_time_moves_documents_to_a_place() {
    let places = Places::begin();
    let program = Program::new(Some(Plan { call: 20, fault: Fault::Crash }));
    let (from, to) = (program.open(&places.old), program.open(&places.new));
    assert!(play_alone(&program, migrate(&ends(&from, &to), "a")).is_none());
    // Its sessions live yet: it may only have been stopped.
    assert!(matches!(places.migrate(&whole(), "b"), Some(Err(MigrateError::Busy { .. }))));
    assert!(matches!(places.abort(&whole()), Some(Err(MigrateError::Busy { .. }))));
    drop((from, to));
    places.migrate(&whole(), "b").unwrap().unwrap();
}

#[test]
fn programs_that_know_nothing_of_moves_change_no_document_of_a_move() {
    for call in 0..calls_of_a_move() {
        let places = Places::begin();
        places.migrate(&Program::new(Some(Plan { call, fault: Fault::Crash })), "a");
        for service in [&places.old, &places.new] {
            let Ok(found) = now(service.open().get(&cluster_path())) else { continue };
            let is_plain = serde_json::from_slice::<Cluster>(&found.data).is_ok();
            let is_marked = ["moving", "moved", "arriving"]
                .iter()
                .any(|mark| String::from_utf8_lossy(&found.data).starts_with(&format!("{{\"{mark}\":")));
            assert_ne!(is_plain, is_marked, "{:?}", found.data);
        }
    }
}

#[test]
fn a_cluster_that_has_moved_says_where_to_whoever_publishes() {
    let places = Places::begin();
    places.migrate(&whole(), "a").unwrap().unwrap();
    let refused = now(publish_cluster(&places.old.open(), &cluster(2))).unwrap_err().to_string();
    assert!(refused.contains(&format!("have moved to {NEW}")), "{refused}");
    let lost = now(open_epoch(&places.old.open(), Epoch(0)));
    assert!(
        matches!(lost, Err(ReadError::Coordination(CoordinationError::Indeterminate { .. }))),
        "{lost:?}"
    );
}
