//! Handoffs as stories: when hints are looked over, what is done with each, and how long a target is left alone.
//! Random lives are beside the code.

use std::ops::Range;
use std::time::Duration;

use model::Moment;
use protocol::handoff::{
    BatchId, Errand, Fault, Handoff, HandoffAction, HandoffActions, HandoffEvent, HandoffOptions, HintFacts,
    PageId,
};

const OPTIONS: HandoffOptions = HandoffOptions {
    batch_hints_max: 3,
    batch_bytes_max: 1000,
    batches_max: 2,
    rate_min: 1_000_000,
    rate_max: 50_000_000,
    rate_step: 4_000_000,
    late_after: Duration::from_millis(50),
    lost_after: Duration::from_millis(500),
    pause_min: Duration::from_millis(100),
    pause_max: Duration::from_millis(3000),
    rest: Duration::from_millis(20),
    age_max: Duration::from_secs(60),
    sweep_every: Duration::from_secs(10),
};

const MOVED: bool = true;

fn at(millis: u64) -> Moment {
    Moment::default().after(Duration::from_millis(millis))
}

/// A hint of this many bytes, parked this many milliseconds ago.
fn hint(bytes: u64, age: u64) -> HintFacts {
    HintFacts { bytes, age: Duration::from_millis(age), moved: false }
}

fn moved(bytes: u64, age: u64) -> HintFacts {
    HintFacts { moved: MOVED, ..hint(bytes, age) }
}

fn read(page: u64, first: bool) -> HandoffAction {
    HandoffAction::ReadPage { page: PageId(page), first }
}

fn carry(batch: u64, errand: Errand, hints: Range<usize>) -> HandoffAction {
    HandoffAction::Carry { batch: BatchId(batch), errand, hints }
}

fn settled(batch: u64, removed: usize, left: usize, fault: Option<Fault>) -> HandoffEvent {
    HandoffEvent::Settled { batch: BatchId(batch), removed, left, fault }
}

/// A machine, and what it is told.
struct Story(Handoff);

impl Story {
    /// For a target that is away, with nothing to do since a first look at the start.
    fn begin() -> Story {
        let mut story = Story(Handoff::new(OPTIONS, 1, 42, at(0)));
        assert!(!story.0.is_done(), "nobody has looked yet");
        assert_eq!(story.0.deadline(), Some(Moment { nanos: 1 }));
        assert_eq!(story.walk(0, 0, &[]), [], "nothing is there");
        assert_eq!((story.0.is_done(), story.0.deadline()), (true, None));
        story
    }

    /// The target has risen at 1 s.
    fn risen() -> Story {
        let mut story = Story::begin();
        assert!(!story.0.is_delivering());
        story.tell(1000, HandoffEvent::TargetRose);
        assert!(story.0.is_delivering() && !story.0.is_done());
        story
    }

    fn tell(&mut self, millis: u64, event: HandoffEvent) -> Vec<HandoffAction> {
        let mut actions = HandoffActions::new();
        self.0.step(event, at(millis), &mut actions);
        actions.into_vec()
    }

    fn elapsed(&mut self, millis: u64) -> Vec<HandoffAction> {
        self.tell(millis, HandoffEvent::Elapsed)
    }

    /// A walk of one page, which begins now.
    fn walk(&mut self, millis: u64, page: u64, hints: &[HintFacts]) -> Vec<HandoffAction> {
        assert_eq!(self.elapsed(millis), [read(page, true)]);
        let page = PageId(page);
        self.tell(millis, HandoffEvent::PageRead { page, hints: hints.to_vec(), more: false })
    }

    /// Nothing happens before this moment, and time brings it further then.
    fn rests_until(&mut self, millis: u64) {
        assert_eq!((self.elapsed(millis - 1), self.0.deadline()), (vec![], Some(at(millis))));
        assert!(!self.0.is_done());
    }
}

#[test]
fn hints_of_a_target_that_is_away_are_read_when_the_oldest_may_have_grown_too_old_and_given_up_then() {
    let mut story = Story::begin();
    assert_eq!(story.tell(1000, HandoffEvent::Parked), []);
    story.rests_until(11_000);
    assert_eq!(story.elapsed(11_000), [read(1, true)]);
    let hints = vec![hint(1, 5000), hint(1, 20_000)];
    let next = story.tell(11_000, HandoffEvent::PageRead { page: PageId(1), hints, more: true });
    assert_eq!(next, [read(2, false)]);
    let hints = vec![hint(1, 10_000)];
    assert_eq!(story.tell(11_000, HandoffEvent::PageRead { page: PageId(2), hints, more: false }), []);
    assert!(!story.0.is_delivering());
    story.rests_until(11_000 + 40_000);
    assert_eq!(story.walk(51_000, 3, &[hint(1, 55_000)]), []);
    story.rests_until(61_000);
    let given_up = story.walk(61_000, 4, &[hint(1, 60_000), hint(1, 60_001)]);
    assert_eq!(given_up, [carry(0, Errand::GiveUp, 1..2)], "at sixty seconds it is not too old");
    assert_eq!((story.tell(61_001, settled(0, 1, 0, None)), story.0.failures()), (vec![], 0));
    story.rests_until(71_001);
    assert_eq!(story.walk(71_001, 5, &[]), []);
    assert_eq!((story.0.is_done(), story.0.deadline()), (true, None));
}

/// It once waited until the youngest hint would have grown too old: three hours.
#[test]
fn what_was_tried_in_vain_while_the_target_is_away_is_tried_with_the_next_look() {
    let mut story = Story::begin();
    story.tell(1000, HandoffEvent::Rerouted);
    assert_eq!(story.walk(1020, 1, &[moved(1, 0), hint(1, 5000)]), [carry(0, Errand::Readdress, 0..1)]);
    assert_eq!(story.tell(1030, settled(0, 0, 1, Some(Fault::Refused))), []);
    story.rests_until(11_030);
    // Nor does anybody wait for an answer that never comes.
    assert_eq!(story.walk(11_030, 2, &[moved(1, 0)]), [carry(1, Errand::Readdress, 0..1)]);
    assert_eq!(story.0.deadline(), Some(at(11_080)));
    let rate = story.0.rate();
    assert_eq!((story.elapsed(11_080), story.0.rate()), (vec![], rate));
    story.rests_until(11_530);
    assert_eq!(story.elapsed(11_530), []);
    story.rests_until(21_530);
    assert_eq!(story.walk(21_530, 3, &[]), []);
    assert!(story.0.is_done());
}

#[test]
fn what_a_target_can_take_is_delivered_in_batches_and_what_is_no_longer_its_own_goes_elsewhere() {
    let mut story = Story::risen();
    let hints = [hint(400, 0), hint(600, 0), hint(1, 70_000), moved(1, 70_000), hint(1, 0)];
    let batches = [carry(0, Errand::Deliver, 0..2), carry(1, Errand::Deliver, 2..3)];
    assert_eq!(story.walk(1020, 1, &hints), batches, "exactly 1000 bytes travel together, and two batches");
    assert_eq!((story.0.failures(), story.0.rate()), (0, 1_000_000));
    assert_eq!(story.tell(1021, settled(0, 2, 0, None)), [carry(2, Errand::Readdress, 3..4)]);
    assert_eq!(story.tell(1022, settled(2, 1, 0, None)), [carry(3, Errand::Deliver, 4..5)]);
    assert_eq!(story.0.rate(), 5_000_000, "what goes elsewhere says nothing of the target");
    assert_eq!(story.tell(1023, settled(3, 1, 0, None)), []);
    assert!(story.0.is_delivering(), "one batch is under way");
    assert_eq!(story.tell(1024, settled(1, 1, 0, None)), []);
    assert_eq!((story.0.rate(), story.0.is_done(), story.0.is_delivering()), (13_000_000, true, false));
    assert_eq!(story.0.deadline(), None);
}

#[test]
fn a_target_that_takes_some_hints_and_refuses_others_is_asked_again_soon_and_one_that_takes_none_after_a_pause()
 {
    let mut story = Story::risen();
    let hints = [hint(900, 0), hint(900, 0)];
    story.walk(1020, 1, &hints);
    assert_eq!(story.tell(1021, settled(0, 1, 0, None)), []);
    assert_eq!((story.tell(1022, settled(1, 0, 1, Some(Fault::Refused))), story.0.failures()), (vec![], 0));
    story.rests_until(1042);

    assert_eq!(story.walk(1042, 2, &hints[1..]), [carry(2, Errand::Deliver, 0..1)]);
    assert_eq!((story.tell(1043, settled(2, 0, 1, Some(Fault::Refused))), story.0.failures()), (vec![], 1));
    let until = story.0.deadline().unwrap();
    assert!(at(1043 + 50) <= until && until <= at(1043 + 100), "{until:?}: half of the pause is drawn");
    // It counts as out of reach until it takes something: what is too old by then is given up.
    let hints = [hint(1, 60_001), hint(1, 60_000)];
    let batches = [carry(3, Errand::GiveUp, 0..1), carry(4, Errand::Deliver, 1..2)];
    assert_eq!(story.walk(1143, 3, &hints), batches);
    story.tell(1144, settled(3, 1, 0, None));
    assert_eq!((story.0.failures(), story.0.is_done()), (1, false));
    story.tell(1145, settled(4, 1, 0, None));
    assert_eq!((story.0.failures(), story.0.is_done()), (0, true));
}

#[test]
fn a_delivery_that_is_late_halves_the_rate_once_and_one_that_is_lost_leaves_the_target_alone() {
    let mut story = Story::risen();
    story.walk(1020, 1, &[hint(900, 0), hint(900, 0)]);
    story.tell(1021, settled(0, 1, 0, None));
    assert_eq!((story.0.rate(), story.0.deadline()), (5_000_000, Some(at(1070))));
    assert_eq!((story.elapsed(1069), story.0.rate()), (vec![], 5_000_000));
    assert_eq!((story.elapsed(1070), story.0.rate()), (vec![], 2_500_000), "late after 50 ms exactly");
    assert_eq!((story.0.deadline(), story.0.failures()), (Some(at(1520)), 0));
    assert_eq!((story.elapsed(1519), story.0.rate()), (vec![], 2_500_000));
    assert_eq!((story.elapsed(1520), story.0.rate(), story.0.failures()), (vec![], 2_500_000, 1));
    let until = story.0.deadline().unwrap();
    assert!(at(1520 + 50) <= until && until <= at(1520 + 100), "{until:?}: nothing is under way any more");
    assert_eq!(story.tell(1521, settled(1, 1, 0, None)), []);
    assert_eq!((story.0.rate(), story.0.failures()), (2_500_000, 1), "an answer after that says nothing");
}

#[test]
fn a_walk_ends_when_the_target_falls_and_its_hints_are_looked_over_later() {
    let mut story = Story::risen();
    story.walk(1020, 1, &[hint(900, 0), hint(900, 0), hint(900, 0)]);
    assert_eq!(story.tell(1030, HandoffEvent::TargetFell), []);
    assert!(!story.0.is_delivering());
    assert_eq!(story.tell(1031, settled(0, 1, 0, None)), [], "nothing more is sent");
    assert_eq!(story.tell(1032, settled(1, 0, 1, Some(Fault::Refused))), []);
    story.rests_until(11_030);

    let mut story = Story::risen();
    assert_eq!(story.walk(1020, 1, &[]), []);
    story.tell(2000, HandoffEvent::TargetFell);
    assert_eq!((story.0.is_done(), story.0.deadline()), (true, None), "nothing was left");
}

#[test]
fn hints_that_the_ring_has_moved_are_read_anew_at_once() {
    let mut story = Story::risen();
    story.walk(1020, 1, &[hint(900, 0), hint(900, 0), hint(900, 0)]);
    assert_eq!(story.tell(1025, HandoffEvent::Rerouted), []);
    assert_eq!(story.tell(1026, settled(0, 1, 0, None)), [], "by the older ring nothing more is sent");
    assert_eq!(story.tell(1027, settled(1, 0, 1, None)), []);
    story.rests_until(1045);
}

#[test]
fn a_page_that_cannot_be_read_leaves_the_target_alone_for_a_while() {
    let mut story = Story::risen();
    assert_eq!(story.elapsed(1020), [read(1, true)]);
    assert_eq!(story.tell(1021, HandoffEvent::PageFailed { page: PageId(0) }), [], "it is no longer read");
    assert_eq!(story.0.failures(), 0);
    story.tell(1021, HandoffEvent::PageFailed { page: PageId(1) });
    assert_eq!(story.0.failures(), 1);
    let until = story.0.deadline().unwrap();
    assert!(at(1021 + 50) <= until && until <= at(1021 + 100), "{until:?}");
}

/// The moment was drawn, and every holder began exactly one rest after the target was back.
#[test]
fn holders_begin_at_moments_of_their_own_when_a_target_is_back() {
    let begins = |dice| {
        let mut machine = Handoff::new(OPTIONS, 1, dice, at(0));
        let mut actions = HandoffActions::new();
        machine.step(HandoffEvent::Elapsed, at(0), &mut actions);
        machine.step(
            HandoffEvent::PageRead { page: PageId(0), hints: vec![hint(1, 0)], more: false },
            at(0),
            &mut actions,
        );
        machine.step(HandoffEvent::TargetRose, at(1000), &mut actions);
        assert_eq!(machine.rate(), OPTIONS.rate_min);
        machine.deadline().unwrap().since(at(1000))
    };
    let mut begun: Vec<Duration> = (0..64).map(begins).collect();
    begun.sort_unstable();
    begun.dedup();
    assert_eq!(begun.len(), 64);
    let quarters = [0, 1, 2, 3].map(|quarter| {
        let within = OPTIONS.rest * quarter / 4..OPTIONS.rest * (quarter + 1) / 4;
        begun.iter().filter(|pause| within.contains(pause)).count()
    });
    assert_eq!(quarters.iter().sum::<usize>(), 64, "all within the rest");
    assert!(quarters.iter().all(|&count| count > 4), "{quarters:?}");
}
