//! Sessions as stories: what is asked after which answer, what the outcome counts, and when the session rests.

use std::time::Duration;

use bytes::Bytes;
use model::{Moment, PartitionId, Token};
use protocol::antientropy::merkle::{Digest, Span};
use protocol::antientropy::session::Listing;
use protocol::antientropy::{
    Goal, Left, Options, RequestId, Session, SessionAction, SessionEvent, SessionOutcome,
};
use protocol::pace::{Pace, PaceLimits};

const P0: PartitionId = PartitionId(0);
const P1: PartitionId = PartitionId(1);
const P2: PartitionId = PartitionId(2);

/// A session, and somebody who gives the answers.
struct Talk {
    session: Session,
    now: Moment,
}

fn at(millis: u64) -> Moment {
    Moment::default().after(Duration::from_millis(millis))
}

/// The tokens of a partition: a quarter of all.
fn root(partition: PartitionId) -> Span {
    Span { bits: 2, prefix: partition.0.into() }
}

impl Talk {
    /// The page that a driver may ask for early.
    fn page_after(&self) -> Option<(PartitionId, Token)> {
        self.session.pages_after().next()
    }

    /// Begins at its own pace, which is as fast as it goes where `rate` is 0.
    fn paced(goal: Goal, partitions: &[PartitionId], pace: Pace) -> (Talk, Vec<SessionAction>) {
        let options = Options { goal, patience: Duration::from_secs(10), pace };
        let session = Session::new(options, partitions.iter().map(|&id| (id, root(id))));
        let (mut talk, mut actions) = (Talk { session, now: at(0) }, Vec::new());
        talk.session.start(talk.now, &mut actions);
        (talk, actions)
    }

    fn begin(goal: Goal, partitions: &[PartitionId]) -> (Talk, Vec<SessionAction>) {
        Talk::paced(goal, partitions, Pace::new(PaceLimits::for_comparing(0)))
    }

    fn answer(&mut self, request: u64, event: SessionEvent) -> Vec<SessionAction> {
        let mut actions = Vec::new();
        self.session.step(RequestId(request), event, self.now, &mut actions);
        actions
    }

    fn elapsed(&mut self, millis: u64) -> Vec<SessionAction> {
        let mut actions = Vec::new();
        self.now = at(millis);
        self.session.elapsed(self.now, &mut actions);
        actions
    }

    fn left(&self) -> (usize, usize) {
        let Left { partitions, keys } = self.session.left();
        (partitions, keys)
    }
}

fn sums(request: u64, partitions: &[PartitionId]) -> SessionAction {
    SessionAction::CompareSums { request: RequestId(request), partitions: partitions.to_vec() }
}

fn descend(request: u64, spans: &[(PartitionId, Span, u8)]) -> SessionAction {
    SessionAction::Descend { request: RequestId(request), spans: spans.to_vec() }
}

fn list(request: u64, spans: &[(PartitionId, Span)]) -> SessionAction {
    SessionAction::List { request: RequestId(request), spans: spans.to_vec() }
}

fn names(keys: &str) -> Vec<Bytes> {
    keys.split_whitespace().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect()
}

fn pull(request: u64, keys: &str) -> SessionAction {
    SessionAction::Pull { request: RequestId(request), keys: names(keys) }
}

fn push(request: u64, keys: &str) -> SessionAction {
    SessionAction::Push { request: RequestId(request), keys: names(keys) }
}

fn page(request: u64, partition: PartitionId, from: u64) -> SessionAction {
    SessionAction::Page { request: RequestId(request), partition, from: Token(from) }
}

fn settle(partition: PartitionId) -> SessionAction {
    SessionAction::Settle { partition }
}

fn summed(differing: &[(PartitionId, u8)], unready: &[PartitionId]) -> SessionEvent {
    SessionEvent::Summed { differing: differing.to_vec(), unready: unready.to_vec() }
}

/// Sums of this many parts, of which these differ.
fn parts(count: usize, differing: &[usize]) -> Option<(Vec<Digest>, Vec<Digest>)> {
    let mine: Vec<Digest> = (0..count as u128).map(Digest).collect();
    let theirs = (0..count).map(|part| if differing.contains(&part) { Digest(99) } else { mine[part] });
    Some((mine.clone(), theirs.collect()))
}

/// Keys with their digests, as `a1 b2`.
fn listing(mine: &str, theirs: &str) -> Option<Listing> {
    let digests = |text: &str| {
        let digest = |word: &str| {
            let (key, digest) = word.split_at(1);
            (Bytes::copy_from_slice(key.as_bytes()), Digest(digest.parse().unwrap()))
        };
        text.split_whitespace().map(digest).collect()
    };
    Some(Listing { mine: digests(mine), theirs: digests(theirs) })
}

fn listed(keys: Vec<Option<Listing>>) -> SessionEvent {
    SessionEvent::Listed { keys, bytes: 10_000 }
}

fn pulled(done: usize, push: &str, failed: usize) -> SessionEvent {
    SessionEvent::Pulled { done, push: names(push), failed, bytes: 100_000 }
}

fn pushed(done: usize, failed: usize) -> SessionEvent {
    SessionEvent::Pushed { done, failed, bytes: 1_000_000 }
}

fn paged(next: Option<u64>, merged: usize, failed: usize) -> SessionEvent {
    SessionEvent::Paged { next: next.map(Token), merged, failed, bytes: 5000 }
}

#[test]
fn what_differs_is_found_span_by_span_and_exchanged_in_both_directions() {
    let (mut talk, asked) = Talk::begin(Goal::Equal, &[P0, P1, P2]);
    assert_eq!((asked, talk.left()), (vec![sums(1, &[P0, P1, P2])], (3, 0)));

    let asked = talk.answer(1, summed(&[(P1, 8)], &[]));
    assert_eq!(asked, [settle(P0), settle(P2), descend(2, &[(P1, root(P1), 6)])]);
    assert_eq!(talk.left(), (1, 0));
    let finer = Span { bits: 6, prefix: 0b0001_0010 };
    assert_eq!(
        talk.answer(2, SessionEvent::Descended { parts: vec![parts(16, &[2])] }),
        [descend(3, &[(P1, finer, 8)])]
    );
    let leaves = [Span { bits: 8, prefix: 0b0100_1001 }, Span { bits: 8, prefix: 0b0100_1011 }];
    let asked = talk.answer(3, SessionEvent::Descended { parts: vec![parts(4, &[1, 3])] });
    assert_eq!(asked, [list(4, &leaves.map(|leaf| (P1, leaf)))], "leaves are as fine as it gets");
    assert_eq!(talk.left(), (1, 0));

    // The answer has room for the first leaf alone.
    let asked = talk.answer(4, listed(vec![listing("a1 b2 c3", "b2 c9 d4 e5")]));
    assert_eq!((asked, talk.left()), (vec![push(5, "a")], (1, 4)));
    assert_eq!((talk.answer(5, pushed(1, 0)), talk.left()), (vec![pull(6, "c d e")], (1, 3)));
    let asked = talk.answer(6, pulled(2, "c", 0));
    assert_eq!((asked, talk.left()), (vec![push(7, "c")], (1, 2)), "what the peer lacks of it is pushed");
    assert_eq!(talk.answer(7, pushed(1, 0)), [pull(8, "e")]);
    assert_eq!((talk.answer(8, pulled(1, "", 0)), talk.left()), (vec![list(9, &[(P1, leaves[1])])], (1, 0)));

    let outcome = SessionOutcome {
        complete: true,
        partitions: 3,
        differing: 1,
        unready: 0,
        keys: 4,
        pulled: 3,
        pushed: 2,
        failed: 0,
        requests: 9,
        bytes: 3 * 18 + 20 * 16 + 2 * 10_000 + 2 * 100_000 + 2 * 1_000_000,
    };
    assert_eq!(
        talk.session.progress(),
        SessionOutcome { complete: false, bytes: outcome.bytes - 10_000, ..outcome }
    );
    let ended = talk.answer(9, listed(vec![listing("f1", "f1")]));
    assert_eq!(
        ended,
        [SessionAction::End(outcome)],
        "a partition settles when its sums were equal, at another time"
    );
    assert_eq!((talk.left(), talk.session.deadline()), ((0, 0), None));
}

#[test]
fn what_could_not_be_taken_care_of_is_counted_and_the_session_is_incomplete() {
    let (mut talk, _) = Talk::begin(Goal::Equal, &[P0, P1, P2]);
    let asked = talk.answer(1, summed(&[(P0, 3), (P1, 3), (P2, 2)], &[]));
    assert_eq!(asked, [list(2, &[(P2, root(P2))])], "the furthest step first");
    let asked = talk.answer(2, listed(vec![None]));
    assert_eq!(asked, [descend(3, &[(P0, root(P0), 3), (P1, root(P1), 3)])]);
    assert_eq!(talk.session.progress().failed, 1, "a tree was lost");
    let lost = vec![None, Some((vec![Digest(1), Digest(2)], vec![Digest(1)]))];
    let outcome = SessionOutcome {
        partitions: 3,
        differing: 3,
        failed: 3,
        requests: 3,
        bytes: 3 * 18 + 10_000,
        ..SessionOutcome::default()
    };
    assert_eq!(talk.answer(3, SessionEvent::Descended { parts: lost }), [SessionAction::End(outcome)]);

    let (mut talk, _) = Talk::begin(Goal::Equal, &[P0]);
    assert_eq!(talk.answer(1, summed(&[(P0, 2)], &[])), [list(2, &[(P0, root(P0))])]);
    assert_eq!(talk.answer(2, listed(vec![listing("a1 b1 c1", "d1 e1 f1 g1")])), [push(3, "a b c")]);
    assert_eq!(talk.answer(3, pushed(3, 1)), [pull(4, "d e f g")]);
    let Some(SessionAction::End(outcome)) = talk.answer(4, pulled(4, "", 3)).pop() else {
        panic!("it is over")
    };
    let counts = (outcome.complete, outcome.keys, outcome.pushed, outcome.pulled, outcome.failed);
    assert_eq!(counts, (false, 7, 2, 1, 4));
}

/// Sums of a wrong number say nothing, on whichever side they are.
#[test]
fn an_answer_with_too_many_or_too_few_sums_fails_the_span() {
    let digests = |count: u128| (0..count).map(Digest).collect::<Vec<_>>();
    for (mine, theirs) in [(2, 1), (1, 2), (3, 2), (2, 3), (4, 4)] {
        let (mut talk, _) = Talk::begin(Goal::Equal, &[P0]);
        assert_eq!(talk.answer(1, summed(&[(P0, 3)], &[])), [descend(2, &[(P0, root(P0), 3)])]);
        let ended =
            talk.answer(2, SessionEvent::Descended { parts: vec![Some((digests(mine), digests(theirs)))] });
        let outcome = SessionOutcome {
            partitions: 1,
            differing: 1,
            failed: 1,
            requests: 2,
            bytes: 18,
            ..SessionOutcome::default()
        };
        assert_eq!(ended, [SessionAction::End(outcome)], "{mine} and {theirs} of 2");
    }
}

/// An answer with fewer spans than were asked for once passed for one in which the others were equal.
#[test]
fn spans_that_an_answer_passes_over_fail() {
    let (mut talk, _) = Talk::begin(Goal::Equal, &[P0, P1]);
    talk.answer(1, summed(&[(P0, 3), (P1, 3)], &[]));
    let ended = talk.answer(2, SessionEvent::Descended { parts: vec![parts(2, &[])] });
    let outcome = SessionOutcome {
        partitions: 2,
        differing: 2,
        failed: 1,
        requests: 2,
        bytes: 2 * 18 + 2 * 16,
        ..SessionOutcome::default()
    };
    assert_eq!(ended, [SessionAction::End(outcome)]);
}

#[test]
fn a_partition_that_cannot_be_compared_makes_an_equal_session_incomplete() {
    let (mut talk, _) = Talk::begin(Goal::Equal, &[P0, P1, P2]);
    let outcome =
        SessionOutcome { partitions: 3, unready: 2, requests: 1, bytes: 54, ..SessionOutcome::default() };
    assert_eq!(talk.answer(1, summed(&[], &[P0, P2])), [settle(P1), SessionAction::End(outcome)]);
}

#[test]
fn refilling_takes_over_whole_partitions_page_by_page() {
    let (mut talk, _) = Talk::begin(Goal::Refill, &[P0, P1, P2]);
    let quarter = 1 << 62;
    let asked = talk.answer(1, summed(&[(P1, 8)], &[P2]));
    assert_eq!((asked, talk.left()), (vec![settle(P0), page(2, P1, quarter)], (2, 0)));
    assert_eq!(talk.page_after(), Some((P2, Token(2 * quarter))));
    assert_eq!(talk.answer(2, paged(Some(quarter + 7), 20, 0)), [page(3, P1, quarter + 7)]);
    assert_eq!(talk.answer(3, paged(None, 3, 0)), [settle(P1), page(4, P2, 2 * quarter)]);
    assert_eq!((talk.page_after(), talk.left()), (None, (1, 0)));
    let outcome = SessionOutcome {
        complete: true,
        partitions: 3,
        differing: 2,
        pulled: 23,
        requests: 4,
        bytes: 3 * 18 + 3 * 5000,
        ..SessionOutcome::default()
    };
    assert_eq!(talk.answer(4, paged(None, 0, 0)), [settle(P2), SessionAction::End(outcome)]);
}

#[test]
fn a_page_that_could_not_be_merged_leaves_its_partition_to_another_session() {
    let (mut talk, _) = Talk::begin(Goal::Refill, &[P0, P1]);
    assert_eq!(talk.page_after(), None, "sums are out, no page is");
    talk.answer(1, summed(&[(P0, 8), (P1, 8)], &[]));
    assert_eq!(talk.answer(2, paged(Some(77), 4, 1)), [page(3, P1, 1 << 62)], "no further page of it");
    let outcome = SessionOutcome {
        partitions: 2,
        differing: 2,
        pulled: 10,
        failed: 3,
        requests: 3,
        bytes: 36 + 10_000,
        ..SessionOutcome::default()
    };
    assert_eq!(talk.answer(3, paged(None, 6, 2)), [SessionAction::End(outcome)], "it does not settle");
}

#[test]
fn a_node_that_enters_again_settles_what_was_exchanged_only_when_all_of_it_was() {
    for failed in [0, 1] {
        let (mut talk, _) = Talk::begin(Goal::Again, &[P0, P1, P2]);
        assert_eq!(talk.answer(1, summed(&[(P0, 2)], &[P2])), [settle(P1), list(2, &[(P0, root(P0))])]);
        assert_eq!(talk.answer(2, listed(vec![listing("", "a1")])), [pull(3, "a")]);
        assert_eq!(talk.answer(3, pulled(1, "", failed)), [page(4, P2, 2 << 62)]);
        let outcome = SessionOutcome {
            complete: failed == 0,
            partitions: 3,
            differing: 2,
            keys: 1,
            pulled: 1 - failed + 5,
            failed,
            requests: 4,
            bytes: 54 + 115_000,
            ..SessionOutcome::default()
        };
        let mut expected = vec![settle(P2), settle(P0), SessionAction::End(outcome)];
        if failed > 0 {
            expected.remove(1);
        }
        assert_eq!(talk.answer(4, paged(None, 5, 0)), expected);
    }
}

#[test]
fn a_node_that_leaves_gives_what_the_peer_lacks_and_takes_nothing() {
    let (mut talk, _) = Talk::begin(Goal::Give, &[P0, P1]);
    assert_eq!(talk.answer(1, summed(&[(P1, 2)], &[])), [settle(P0), list(2, &[(P1, root(P1))])]);
    let asked = talk.answer(2, listed(vec![listing("a1 b2 c3", "b9 c3 d4")]));
    assert_eq!((asked, talk.left()), (vec![push(3, "b a")], (0, 2)));
    let outcome = SessionOutcome {
        complete: true,
        partitions: 2,
        differing: 1,
        keys: 2,
        pushed: 2,
        requests: 3,
        bytes: 36 + 1_010_000,
        ..SessionOutcome::default()
    };
    assert_eq!(talk.answer(3, pushed(2, 0)), [settle(P1), SessionAction::End(outcome)]);
}

#[test]
fn what_is_given_without_the_help_of_trees_is_listed_in_256_pieces_64_at_a_time() {
    let (mut talk, _) = Talk::begin(Goal::Give, &[P1]);
    let mut asked = talk.answer(1, summed(&[], &[P1]));
    let mut spans = Vec::new();
    for request in 2..6 {
        let [SessionAction::List { request: named, spans: some }] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!((named.0, some.len(), talk.left()), (request, 64, (1, 0)));
        spans.extend(some.clone());
        asked = talk.answer(request, listed(vec![listing("", ""); 64]));
    }
    let expected: Vec<_> = (256..512).map(|prefix| (P1, Span { bits: 10, prefix })).collect();
    assert_eq!(spans, expected);
    let outcome = SessionOutcome {
        complete: true,
        partitions: 1,
        differing: 1,
        requests: 5,
        bytes: 18 + 4 * 10_000,
        ..SessionOutcome::default()
    };
    assert_eq!(asked, [settle(P1), SessionAction::End(outcome)]);

    // Five tokens: their smallest span has three bits less than a token.
    let pace = Pace::new(PaceLimits::for_comparing(0));
    let options = Options { goal: Goal::Give, patience: Duration::from_secs(10), pace };
    let mut session = Session::new(options, [(P0, Span { bits: 61, prefix: 5 })]);
    let mut actions = Vec::new();
    session.start(at(0), &mut actions);
    actions.clear();
    session.step(RequestId(1), summed(&[], &[P0]), at(0), &mut actions);
    let tokens: Vec<_> = (40..48).map(|prefix| (P0, Span { bits: 64, prefix })).collect();
    assert_eq!(actions, [list(2, &tokens)], "no piece is less than a token");
}

#[test]
fn a_request_is_made_four_times_with_pauses_that_double_and_then_the_session_gives_up() {
    let (mut talk, _) = Talk::begin(Goal::Equal, &[P0, P1]);
    assert_eq!(talk.session.deadline(), Some(at(10_000)), "the patience of the first");
    assert_eq!((talk.elapsed(9_999), talk.session.deadline()), (vec![], Some(at(10_000))), "it is out still");
    assert_eq!((talk.elapsed(10_000), talk.session.deadline()), (vec![], Some(at(11_000))));
    assert_eq!(talk.left(), (2, 0), "what failed is left");
    assert_eq!(talk.elapsed(10_999), []);
    assert_eq!(talk.elapsed(11_000), [sums(2, &[P0, P1])]);
    assert_eq!((talk.answer(2, SessionEvent::Failed), talk.session.deadline()), (vec![], Some(at(13_000))));
    assert_eq!(talk.answer(2, summed(&[], &[])), [], "it failed already");
    assert_eq!(talk.elapsed(13_000), [sums(3, &[P0, P1])]);
    assert_eq!((talk.answer(3, SessionEvent::Failed), talk.session.deadline()), (vec![], Some(at(17_000))));
    assert_eq!(talk.elapsed(17_000), [sums(4, &[P0, P1])]);
    let outcome = SessionOutcome { requests: 4, ..SessionOutcome::default() };
    assert_eq!(talk.answer(4, SessionEvent::Failed), [SessionAction::End(outcome)]);
    assert_eq!((talk.session.deadline(), talk.elapsed(99_000)), (None, vec![]));
}

/// An answer ends what its request failed before: attempts count in a row.
#[test]
fn every_kind_of_request_is_made_again_as_it_was_and_attempts_count_in_a_row() {
    fn fails(talk: &mut Talk, request: u64, again: &SessionAction) {
        for request in request..request + 3 {
            assert_eq!(talk.answer(request, SessionEvent::Failed), []);
            let deadline = talk.session.deadline().unwrap();
            let asked = talk.elapsed(deadline.nanos.div_ceil(1_000_000));
            assert_eq!(asked.len(), 1, "{asked:?} instead of {again:?}");
        }
    }
    let (mut talk, asked) = Talk::begin(Goal::Again, &[P0, P1]);
    fails(&mut talk, 1, &asked[0]);
    let asked = talk.answer(4, summed(&[(P0, 3)], &[P1]));
    assert_eq!(asked, [descend(5, &[(P0, root(P0), 3)])]);
    fails(&mut talk, 5, &asked[0]);
    let leaf = (P0, Span { bits: 3, prefix: 1 });
    assert_eq!(talk.answer(8, SessionEvent::Descended { parts: vec![parts(2, &[1])] }), [list(9, &[leaf])]);
    fails(&mut talk, 9, &list(0, &[leaf]));
    assert_eq!(talk.answer(12, listed(vec![listing("a1", "b1")])), [push(13, "a")]);
    fails(&mut talk, 13, &push(0, "a"));
    assert_eq!(talk.answer(16, pushed(1, 0)), [pull(17, "b")]);
    fails(&mut talk, 17, &pull(0, "b"));
    assert_eq!(talk.answer(20, pulled(1, "", 0)), [page(21, P1, 1 << 62)]);
    fails(&mut talk, 21, &page(0, P1, 1 << 62));
    let ended = talk.answer(24, paged(None, 1, 0));
    let Some(SessionAction::End(outcome)) = ended.last() else { panic!("{ended:?}") };
    assert_eq!((outcome.complete, outcome.requests, outcome.pulled), (true, 24, 2));
}

/// Without it two nodes would ask one another without end.
#[test]
fn answers_that_took_care_of_nothing_or_do_not_fit_count_as_failures() {
    let idle = [
        (listed(vec![]), None),
        (pushed(0, 0), Some(listing("a1", ""))),
        (pulled(0, "", 0), Some(listing("", "a1"))),
        (summed(&[], &[]), None),
    ];
    for (event, found) in idle {
        let (mut talk, _) = Talk::begin(Goal::Equal, &[P0]);
        talk.answer(1, summed(&[(P0, 2)], &[]));
        let mut first = 2;
        if let Some(found) = found {
            talk.answer(2, listed(vec![found]));
            first = 3;
        }
        for request in first..first + 3 {
            assert_eq!(talk.answer(request, event.clone()), [], "{event:?}");
            let deadline = talk.session.deadline().unwrap();
            assert_eq!(talk.elapsed(deadline.nanos.div_ceil(1_000_000)).len(), 1);
        }
        let ended = talk.answer(first + 3, event.clone());
        assert!(
            matches!(&ended[..], [SessionAction::End(outcome)] if !outcome.complete),
            "{event:?}: {ended:?}"
        );
    }
}

#[test]
fn a_session_rests_after_an_answer_for_as_long_as_its_bytes_take_at_its_pace() {
    let (mut talk, _) = Talk::paced(Goal::Equal, &[P0], Pace::new(PaceLimits::for_comparing(1_000_000)));
    talk.now = at(1000);
    assert_eq!(talk.answer(1, summed(&[(P0, 2)], &[])), []);
    assert_eq!(talk.session.deadline().unwrap().since(at(1000)), Duration::from_micros(18));
    assert_eq!(talk.elapsed(1001), [list(2, &[(P0, root(P0))])]);
    // 10 ms at its rate, 40 ms at a quarter of it.
    talk.session.observe(at(1001), 4);
    assert_eq!(talk.session.pace().rate(), 250_000);
    assert_eq!(talk.answer(2, listed(vec![listing("a1 b1", "c1 d1 e1")])), []);
    assert_eq!((talk.session.deadline(), talk.left()), (Some(at(1041)), (0, 5)), "both directions are left");
    assert_eq!((talk.elapsed(1040), talk.session.deadline()), (vec![], Some(at(1041))), "too early");
    assert_eq!(talk.elapsed(1041), [push(3, "a b")]);
    assert_eq!(talk.session.deadline(), Some(at(11_041)));
}

#[test]
fn a_session_that_is_given_up_asks_nothing_more_and_hears_nothing() {
    let (mut talk, _) = Talk::begin(Goal::Refill, &[P0, P1]);
    talk.answer(1, summed(&[(P0, 8), (P1, 8)], &[]));
    let mut actions = Vec::new();
    talk.session.abort(&mut actions);
    let outcome =
        SessionOutcome { partitions: 2, differing: 2, requests: 2, bytes: 36, ..SessionOutcome::default() };
    assert_eq!(actions, [SessionAction::End(outcome)]);
    talk.session.abort(&mut actions);
    assert_eq!(actions.len(), 1, "it ends once");
    assert_eq!((talk.answer(2, paged(None, 1, 0)), talk.elapsed(99_000)), (vec![], vec![]));
    assert_eq!((talk.session.deadline(), talk.page_after()), (None, None));
}
