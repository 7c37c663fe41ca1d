//! Rounds that forget tombstones, as stories of their initiator and of one node. Every interleaving of a small cluster
//! is explored beside the code.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::versions::Stamp;
use model::{Actor, Epoch, Generation, Moment, NodeId, StoreName, Timestamp, Value, VersionSet};
use protocol::collection::{
    Confirm, FenceStep, GUARD_TIME, GUARDS_MAX, Heard, Participant, ROUND_TIME, Remembered, Round,
    RoundAction, RoundEnd, RoundEvent, RoundId, RoundRefusal, RoundStage, Start, judge_start,
};

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const N3: NodeId = NodeId(3);
const NODES: [NodeId; 3] = [N1, N2, N3];

fn at(millis: u64) -> Moment {
    Moment::default().after(Duration::from_millis(millis))
}

/// A round of three nodes and three keys under document 7, begun at one second.
struct Story(Round);

impl Story {
    fn begin() -> Story {
        let mut actions = Vec::new();
        let round = Round::start(NODES, 3, Generation(7), at(1000), &mut actions);
        assert_eq!(actions, NODES.map(RoundAction::Confirm));
        Story(round)
    }

    fn step(&mut self, event: RoundEvent) -> Vec<RoundAction> {
        let mut actions = Vec::new();
        self.0.step(event, &mut actions);
        actions
    }

    /// All of these change nothing now.
    fn ignores(&mut self, events: impl IntoIterator<Item = RoundEvent>) {
        for event in events {
            let before = self.0.clone();
            assert_eq!(self.step(event.clone()), [], "{event:?} at {:?}", before.stage());
            assert_eq!(self.0, before, "{event:?}");
        }
    }

    /// Up to a stage, as it goes when nothing goes wrong.
    fn up_to(stage: RoundStage) -> Story {
        let mut story = Story::begin();
        let events = NODES.map(|node| confirmed(node, 1, &[])).into_iter();
        let events = events.chain([RoundEvent::Opened(Epoch(4))]).chain(NODES.map(RoundEvent::Fenced));
        let events =
            events.chain([RoundEvent::Completed(Generation(7))]).chain(NODES.map(RoundEvent::Fenced));
        for event in events {
            if story.0.stage() == stage {
                break;
            }
            story.step(event);
        }
        assert_eq!(story.0.stage(), stage);
        story
    }
}

fn confirmed(node: NodeId, epoch: u64, left_out: &[u32]) -> RoundEvent {
    RoundEvent::Confirmed { node, epoch: Epoch(epoch), left_out: left_out.to_vec() }
}

/// How a round ends before anything was removed: all guards are released.
fn broken(stage: RoundStage, node: Option<NodeId>) -> Vec<RoundAction> {
    let mut actions = NODES.map(RoundAction::Release).to_vec();
    actions.push(RoundAction::End(RoundEnd::Broken { stage, node }));
    actions
}

fn done(records: u64, missing: u32, left_out: Option<NodeId>) -> Vec<RoundAction> {
    vec![RoundAction::End(RoundEnd::Done { records, missing, left_out })]
}

#[test]
fn a_round_goes_from_stage_to_stage_when_every_node_has_answered_once() {
    let mut story = Story::begin();
    let late = [
        RoundEvent::Opened(Epoch(4)),
        RoundEvent::Fenced(N2),
        RoundEvent::Completed(Generation(7)),
        RoundEvent::Collected(N2, 5),
        RoundEvent::ServiceFailed,
        RoundEvent::Failed(NodeId(9)),
        confirmed(N1, 3, &[]),
    ];
    assert_eq!(story.step(confirmed(N1, 3, &[])), []);
    story.ignores(late.clone());
    assert_eq!(story.step(confirmed(N3, 2, &[])), []);
    assert_eq!(story.step(confirmed(N2, 1, &[])), [RoundAction::Open(Epoch(3))], "above all that are known");

    story.ignores([confirmed(N1, 9, &[0]), RoundEvent::Fenced(N1), RoundEvent::Completed(Generation(7))]);
    let fences = NODES.map(|node| RoundAction::Fence(node, Epoch(4)));
    assert_eq!(story.step(RoundEvent::Opened(Epoch(4))), fences);
    story.ignores([RoundEvent::Opened(Epoch(5)), confirmed(N1, 9, &[0]), RoundEvent::ServiceFailed]);
    story.ignores([RoundEvent::Completed(Generation(7)), RoundEvent::Collected(N1, 5)]);
    assert_eq!([N1, N1, N2].map(|node| story.step(RoundEvent::Fenced(node))), [vec![], vec![], vec![]]);
    assert_eq!(story.step(RoundEvent::Fenced(N3)), [RoundAction::Complete(Epoch(4))]);

    story.ignores([RoundEvent::Opened(Epoch(5)), RoundEvent::Fenced(N1), RoundEvent::Failed(N1)]);
    assert_eq!(story.step(RoundEvent::Completed(Generation(7))), fences, "is each still the same process?");
    story.ignores([RoundEvent::Completed(Generation(7)), RoundEvent::Completed(Generation(8))]);
    story.ignores([RoundEvent::Collected(N1, 5), RoundEvent::ServiceFailed]);
    for node in [N3, N2] {
        assert_eq!(story.step(RoundEvent::Fenced(node)), []);
    }
    assert_eq!(story.step(RoundEvent::Fenced(N1)), NODES.map(RoundAction::Collect));

    story.ignores([RoundEvent::Fenced(N1), RoundEvent::Completed(Generation(8)), RoundEvent::ServiceFailed]);
    assert_eq!(story.step(RoundEvent::Collected(N1, 3)), []);
    story.ignores([RoundEvent::Collected(N1, 3), RoundEvent::Failed(N1)]);
    assert_eq!(story.step(RoundEvent::Collected(N2, 4)), []);
    assert_eq!(story.0.deadline(), Some(at(1000).after(ROUND_TIME)));
    assert_eq!(story.step(RoundEvent::Collected(N3, 5)), done(12, 0, None));

    assert_eq!((story.0.stage(), story.0.deadline()), (RoundStage::Ended, None));
    story.ignores(late);
    story.ignores([RoundEvent::Elapsed, RoundEvent::Failed(N1)]);
}

#[test]
fn a_round_ends_with_the_name_of_the_node_that_failed_before_anything_is_removed() {
    use RoundStage::{Checking, Completing, Confirming, Fencing, Opening};
    for stage in [Confirming, Fencing, Checking] {
        assert_eq!(Story::up_to(stage).step(RoundEvent::Failed(N2)), broken(stage, Some(N2)));
    }
    for stage in [Opening, Completing] {
        assert_eq!(Story::up_to(stage).step(RoundEvent::ServiceFailed), broken(stage, None));
    }
    let mut story = Story::up_to(Completing);
    assert_eq!(story.step(RoundEvent::Completed(Generation(8))), broken(Completing, None), "other nodes");
    assert_eq!(story.0.deadline(), None);
}

#[test]
fn a_round_that_takes_too_long_ends_with_the_name_of_a_node_that_has_not_answered() {
    use RoundStage::{Checking, Completing, Confirming, Fencing, Opening};
    for stage in [Confirming, Opening, Fencing, Completing, Checking] {
        let mut story = Story::up_to(stage);
        let waits = !matches!(stage, Opening | Completing);
        match stage {
            Confirming => _ = story.step(confirmed(N1, 1, &[])),
            Fencing | Checking => _ = story.step(RoundEvent::Fenced(N1)),
            _ => {}
        }
        assert_eq!(story.step(RoundEvent::Elapsed), broken(stage, waits.then_some(N2)));
    }
}

#[test]
fn nodes_that_do_not_answer_in_the_end_are_counted_and_keep_their_tombstones() {
    let mut story = Story::up_to(RoundStage::Collecting);
    assert_eq!(story.step(RoundEvent::Failed(N1)), []);
    assert_eq!(story.step(RoundEvent::Collected(N2, 8)), []);
    assert_eq!(story.step(RoundEvent::Failed(N3)), done(8, 2, None));

    let mut story = Story::up_to(RoundStage::Collecting);
    assert_eq!(story.step(RoundEvent::Failed(N2)), []);
    assert_eq!(story.step(RoundEvent::Elapsed), done(0, 3, None));
}

#[test]
fn a_round_goes_on_without_the_keys_that_a_node_could_not_make_clean_while_one_is_left() {
    let mut story = Story::begin();
    story.step(confirmed(N1, 1, &[]));
    story.step(confirmed(N3, 1, &[2]));
    // Three keys: there is no fourth, whatever it says.
    assert_eq!(story.step(confirmed(N2, 1, &[0, 3])), [RoundAction::Open(Epoch(1))]);
    assert_eq!([0, 1, 2, 3].map(|key| story.0.is_left_out(key)), [true, false, true, false]);
    story.step(RoundEvent::Opened(Epoch(2)));
    NODES.into_iter().for_each(|node| _ = story.step(RoundEvent::Fenced(node)));
    story.step(RoundEvent::Completed(Generation(7)));
    NODES.into_iter().for_each(|node| _ = story.step(RoundEvent::Fenced(node)));
    story.step(RoundEvent::Collected(N1, 1));
    story.step(RoundEvent::Collected(N2, 1));
    assert_eq!(story.step(RoundEvent::Collected(N3, 1)), done(3, 0, Some(N3)), "the first that said so");

    let mut story = Story::begin();
    story.step(confirmed(N1, 1, &[2, 0]));
    story.step(confirmed(N3, 1, &[1]));
    let ended = broken(RoundStage::Confirming, Some(N1));
    assert_eq!(story.step(confirmed(N2, 1, &[])), ended, "no key is left");
}

fn tombstones(count: u64) -> VersionSet {
    let mut set = VersionSet::default();
    let actor = Actor { node: N1, incarnation: 1, birth: 1 };
    for timestamp in 1..=count {
        let stamp = Stamp { actor, timestamp: Timestamp(timestamp), expires: None, value: Value::Tombstone };
        set.put(stamp, None);
    }
    set
}

fn place() -> (StoreName, Bytes) {
    (StoreName::new("carts").unwrap(), Bytes::from_static(b"k"))
}

/// A round's question for one key.
fn confirm(round: u64, set: &VersionSet) -> Confirm {
    let keys = Arc::new(BTreeMap::from([(place(), set.clone())]));
    Confirm { round: RoundId(round), generation: Generation(7), keys }
}

fn remembered(epoch: u64, generation: u64, floor: u64) -> Remembered {
    Remembered { epoch: Epoch(epoch), generation: Generation(generation), floor: Timestamp(floor) }
}

fn compared() -> Participant {
    let mut node = Participant::new(remembered(5, 6, 70));
    node.compare(Epoch(0));
    node
}

fn guarded(node: &Participant) -> Vec<VersionSet> {
    let (store, key) = place();
    node.guarded(&store, &key).cloned().collect()
}

#[test]
fn a_disk_that_remembers_less_than_was_completed_is_new_or_of_earlier_days() {
    let judge = |fresh, epoch| judge_start(fresh, remembered(epoch, 0, 0), Epoch(5));
    assert_eq!(
        [4, 5, 6].map(|epoch| judge(true, epoch)),
        [Start::Fresh(Epoch(5)), Start::Sound, Start::Sound]
    );
    let judged = [Start::RolledBack(Epoch(5)), Start::Sound, Start::Sound];
    assert_eq!([4, 5, 6].map(|epoch| judge(false, epoch)), judged);
}

#[test]
fn contents_of_its_epoch_and_document_are_accepted_and_older_ones_are_not() {
    let node = compared();
    let accepts = |tag, generation| node.accepts_contents(Epoch(tag), Generation(generation));
    assert_eq!((accepts(5, 6), accepts(9, 9)), (Ok(()), Ok(())));
    assert_eq!(accepts(4, 6), Err(RoundRefusal::StaleEpoch(Epoch(5))));
    assert_eq!(accepts(5, 5), Err(RoundRefusal::StaleGeneration));
    assert_eq!(accepts(4, 5), Err(RoundRefusal::StaleGeneration));
    assert_eq!((node.epoch(), node.known()), (Epoch(5), remembered(5, 6, 70)));
    assert_eq!([4, 5, 6].map(|epoch| node.is_news(Epoch(epoch))), [false, false, true]);
}

#[test]
fn an_epoch_is_taken_over_from_others_only_under_a_document_that_this_node_has_and_once_it_has_compared() {
    let heard = |epoch| Heard { epoch: Epoch(epoch), generation: Generation(7) };
    let mut node = Participant::new(remembered(5, 6, 70));
    node.hear(heard(8), Some(Generation(7)));
    assert_eq!((node.epoch(), node.is_compared()), (Epoch(5), false));
    node.compare(Epoch(6));
    assert_eq!((node.epoch(), node.is_compared()), (Epoch(6), true));
    node.hear(heard(8), None);
    node.hear(heard(8), Some(Generation(6)));
    assert_eq!(node.epoch(), Epoch(6), "no member, or of an older document");
    node.hear(heard(8), Some(Generation(7)));
    assert_eq!(node.epoch(), Epoch(8));
    node.hear(heard(7), Some(Generation(9)));
    node.compare(Epoch(3));
    assert_eq!(node.known(), remembered(8, 6, 70), "nothing goes back");
}

#[test]
fn a_node_guards_the_keys_of_a_round_until_its_fence_its_end_or_a_minute_have_come() {
    let mut node = Participant::new(remembered(5, 6, 70));
    let (one, two) = (tombstones(1), tombstones(2));
    assert_eq!(node.confirm(confirm(1, &one), Generation(7), at(0)), Err(RoundRefusal::NotCompared));
    node.compare(Epoch(0));
    assert_eq!(node.confirm(confirm(1, &one), Generation(8), at(0)), Err(RoundRefusal::OtherGeneration));
    assert!(node.guards_nothing());
    assert_eq!(node.confirm(confirm(1, &one), Generation(7), at(0)), Ok(()));
    assert_eq!(node.confirm(confirm(2, &two), Generation(7), at(0)), Ok(()));
    assert_eq!((node.guards_nothing(), guarded(&node)), (false, vec![one.clone(), two.clone()]));
    let (store, key) = place();
    assert_eq!(node.guarded(&StoreName::new("other").unwrap(), &key).count(), 0);
    assert_eq!(node.guarded(&store, &Bytes::from_static(b"other")).count(), 0);
    // Asked once more, it begins anew; the other round's keys stay.
    assert_eq!(node.confirm(confirm(1, &one), Generation(7), at(1)), Ok(()));
    assert_eq!(guarded(&node), [two.clone(), one.clone()]);
    node.release(RoundId(3));
    assert_eq!(guarded(&node).len(), 2);
    node.release(RoundId(1));
    assert_eq!(guarded(&node), [two]);
    node.release(RoundId(2));
    assert!(node.guards_nothing());

    let fence = |node: &mut Participant, now| node.fence(RoundId(1), Epoch(9), Timestamp(80), now);
    let step = Ok(FenceStep::Remember(remembered(9, 7, 80)));
    assert_eq!(node.confirm(confirm(1, &one), Generation(7), at(0)), Ok(()));
    let end = at(0).after(GUARD_TIME);
    assert_eq!(fence(&mut node, Moment { nanos: end.nanos - 1 }), step);
    assert_eq!(fence(&mut node, end), Err(RoundRefusal::NoGuard), "it may have let something in by now");
    assert!(node.guards_nothing());
}

#[test]
fn a_node_takes_part_in_four_rounds_at_a_time() {
    let mut node = compared();
    let one = tombstones(1);
    for round in 0..GUARDS_MAX as u64 {
        assert_eq!(node.confirm(confirm(round, &one), Generation(7), at(round)), Ok(()));
    }
    assert_eq!(node.confirm(confirm(9, &one), Generation(7), at(9)), Err(RoundRefusal::TooManyRounds));
    assert_eq!(node.confirm(confirm(3, &one), Generation(7), at(9)), Ok(()), "it is one of them");
    let now = at(0).after(GUARD_TIME);
    assert_eq!(node.confirm(confirm(9, &one), Generation(7), now), Ok(()), "the first is over");
    assert_eq!(guarded(&node).len(), GUARDS_MAX);
}

#[test]
fn a_fence_raises_what_is_remembered_and_ends_the_guard_of_its_round_alone() {
    let mut node = compared();
    let one = tombstones(1);
    for round in [1, 2] {
        assert_eq!(node.confirm(confirm(round, &one), Generation(7), at(0)), Ok(()));
    }
    let mut fence = |round, epoch, floor| node.fence(RoundId(round), Epoch(epoch), Timestamp(floor), at(1));
    assert_eq!(fence(3, 9, 0), Err(RoundRefusal::NoGuard));
    assert_eq!(fence(1, 5, 0), Err(RoundRefusal::EpochTooSmall), "not above its epoch when it confirmed");
    assert_eq!(fence(1, 6, 60), Ok(FenceStep::Remember(remembered(6, 7, 70))), "the floor never falls");
    assert_eq!(fence(1, 6, 80), Ok(FenceStep::Remember(remembered(6, 7, 80))), "it is asked again");
    node.fenced(RoundId(1), remembered(6, 7, 80));
    assert_eq!((node.known(), guarded(&node).len()), (remembered(6, 7, 80), 1));
    assert_eq!(node.accepts_contents(Epoch(5), Generation(7)), Err(RoundRefusal::StaleEpoch(Epoch(6))));
    assert_eq!(node.fence(RoundId(1), Epoch(6), Timestamp(80), at(2)), Ok(FenceStep::Already));
    assert_eq!(node.fence(RoundId(2), Epoch(6), Timestamp(0), at(2)), {
        // Above the epoch under which it confirmed, though another round has come as far.
        Ok(FenceStep::Remember(remembered(6, 7, 80)))
    });
}

#[test]
fn the_last_sixteen_fences_are_known_when_they_are_asked_for_again() {
    let mut node = compared();
    let mut known = |rounds: u64| {
        node.fenced(RoundId(rounds), remembered(5 + rounds, 7, 80));
        node.fenced(RoundId(rounds), remembered(5 + rounds, 7, 80));
        let mut is_known =
            |round| node.fence(RoundId(round), Epoch(99), Timestamp(0), at(0)) == Ok(FenceStep::Already);
        (0..=rounds).filter(|&round| is_known(round)).collect::<Vec<_>>()
    };
    for rounds in 0..16 {
        assert_eq!(known(rounds), (0..=rounds).collect::<Vec<_>>());
    }
    assert_eq!(known(16), (1..=16).collect::<Vec<_>>());
    assert_eq!(known(17), (2..=17).collect::<Vec<_>>());
}
