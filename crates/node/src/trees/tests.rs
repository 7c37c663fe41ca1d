//! The trees of one store, and the damage that requests meet in it.

use super::*;

/// A get mostly mends what it has met before anybody sees to it. The place once passed for one that nobody can mend
/// ever after: the next damage there was neither told of nor asked about.
#[test]
fn new_damage_is_news_even_where_earlier_damage_was_mended_unseen() {
    let (trees, partition, token) = (Trees::default(), PartitionId(3), Token(7));
    trees.note_corrupt(partition, token);
    trees.forget_damaged(partition, token);
    assert_eq!(trees.take_damaged().len(), 1, "it is told of");
    trees.note_corrupt(partition, token);
    assert_eq!(trees.take_damaged().len(), 1, "and so is the next");
    trees.note_corrupt(partition, token);
    assert_eq!(trees.take_damaged().len(), 0, "which nobody has mended since");
}

#[test]
fn a_limited_number_of_damaged_places_is_remembered() {
    let (trees, partition) = (Trees::default(), PartitionId(3));
    let note = |places: std::ops::Range<usize>| {
        places.for_each(|place| trees.note_corrupt(partition, Token(place as u64)));
    };
    note(0..DAMAGED_MAX + 1);
    assert_eq!(trees.take_damaged().len(), DAMAGED_MAX);
    assert_eq!(trees.corrupt_met(), DAMAGED_MAX as u64 + 1, "each is counted");
    // Up to the limit what was seen to is not told of again.
    for turn in 1..SEEN_MAX / DAMAGED_MAX {
        note(turn * DAMAGED_MAX..(turn + 1) * DAMAGED_MAX);
        assert_eq!(trees.take_damaged().len(), DAMAGED_MAX);
    }
    note(0..1);
    assert_eq!(trees.take_damaged().len(), 0);
    note(SEEN_MAX..SEEN_MAX + 1);
    assert_eq!(trees.take_damaged().len(), 1);
    note(0..1);
    assert_eq!(trees.take_damaged().len(), 1, "rather once more than growing");
}

#[test]
fn a_partition_stays_incomplete_until_it_is_said_to_be_complete() {
    let (trees, [one, other]) = (Trees::default(), [PartitionId(1), PartitionId(2)]);
    let both = || (trees.is_incomplete(one), trees.is_incomplete(other));
    let say = |steps: &[(PartitionId, bool)]| {
        steps.iter().for_each(|(partition, incomplete)| trees.set_incomplete(*partition, *incomplete));
    };
    assert_eq!(both(), (false, false));
    say(&[(one, true), (one, true), (other, true)]);
    assert_eq!(both(), (true, true));
    say(&[(one, false), (one, false)]);
    assert_eq!(both(), (false, true), "saying it twice is saying it once");
    say(&[(other, false)]);
    assert_eq!((both(), trees.incomplete.load(Ordering::Relaxed)), ((false, false), 0));
}

fn ring() -> Ring {
    Ring::equal_slices(2, &[(model::NodeId(1), model::Zone("z".to_owned()))])
}

/// A tree of a partition's tokens with this many records.
fn tree(tokens: &RangeInclusive<Token>, records: u64) -> Tree {
    let mut tree = Tree::empty(tokens);
    for number in 0..records {
        let digest = Digest(u128::from(number) << 64 | 5);
        tree.apply(Token(tokens.start().0 + number), TreeDelta::of(None, Some(digest)));
    }
    tree
}

#[test]
fn the_bounds_of_partitions_cover_each_token_once() {
    let half = 1 << 63;
    let all = [(PartitionId(0), Token(0)..=Token(half - 1)), (PartitionId(1), Token(half)..=Token(u64::MAX))];
    assert_eq!(bounds(&ring()), all);
}

/// Nothing but the number of records says that the engine lost some of them.
#[test]
fn a_remembered_tree_is_valid_only_for_its_tokens_and_its_number_of_records() {
    let of = bounds(&ring());
    let (own, others) = (&of[0].1, &of[1].1);
    for (known, found, is_right) in [
        (tree(own, 3), 3, true),
        (tree(own, 3), 2, false),
        (tree(own, 2), 3, false),
        (tree(others, 3), 3, false),
        (Tree::doubtful(own), 0, false),
    ] {
        let (trees, sum) = (Trees::default(), known.sum());
        let beginning = Beginning {
            remembered: [(PartitionId(0), known)].into(),
            records: [(PartitionId(0), found)].into(),
        };
        trees.shape(&ring(), || beginning);
        let of_first = trees.look(PartitionId(0), |tree| tree.sum().zip(tree.records())).flatten();
        let expected = match (is_right, found) {
            (true, _) => sum.zip(Some(found)),
            // It was never written to.
            (false, 0) => Some((Digest::default(), 0)),
            (false, _) => None,
        };
        assert_eq!(of_first, expected, "{found} records were found");
        let counted: Vec<PartitionId> = trees.counted().into_iter().map(|(id, _)| id).collect();
        match expected {
            Some(_) => {
                assert_eq!((counted, trees.uncounted()), (vec![PartitionId(0), PartitionId(1)], vec![]))
            }
            None => {
                assert_eq!((counted, trees.uncounted()), (vec![PartitionId(1)], vec![PartitionId(0)]))
            }
        }
        let (shaped, doubtful, bytes) = trees.summary();
        let each = [0, 1].map(|id| trees.look(PartitionId(id), Tree::bytes).unwrap());
        assert_eq!((shaped, doubtful, bytes), (2, usize::from(expected.is_none()), each[0] + each[1]));
    }
}

/// A watch of few tokens has nothing to do with writes elsewhere, and more writes than it remembers make it void.
#[test]
fn a_watch_sees_its_own_tokens_up_to_a_limit() {
    let trees = Trees::default();
    trees.shape(&ring(), Beginning::default);
    let first = Token(0)..=Token(99);
    let watch = || trees.watch(PartitionId(0), |_| Some((first.clone(), 1))).unwrap();
    let write = |tokens: &mut dyn Iterator<Item = u64>| {
        let mut writing = trees.writing(PartitionId(0));
        for token in tokens {
            writing.note(Token(token), TreeDelta::of(None, Some(Digest(u128::from(token) + 1))));
        }
    };
    let elsewhere = watch();
    write(&mut (100..100 + CHANGES_MAX as u64 + 10));
    assert_eq!(elsewhere.end(Token(99)).map(|(_, steady)| steady), Some(Token(99)));
    // What is written behind what was read breaks nothing, as long as each write is remembered.
    for (writes, is_known) in [(CHANGES_MAX, true), (CHANGES_MAX + 1, false)] {
        let full = watch();
        write(&mut std::iter::repeat_n(99, writes));
        assert_eq!(full.end(Token(50)).is_some(), is_known, "after {writes} writes");
    }
}

/// A panic, or an error, of whoever reads drops its watch.
#[test]
fn a_watch_that_is_dropped_is_told_of_nothing_more() {
    let trees = Trees::default();
    trees.shape(&ring(), Beginning::default);
    let watches = || trees.stripe(PartitionId(0)).lock().watches.len();
    let watch = || trees.watch(PartitionId(0), |_| Some((Token(0)..=Token(99), 1))).unwrap();
    let (one, other) = (watch(), watch());
    assert_eq!(watches(), 2);
    drop(one);
    assert_eq!(watches(), 1);
    assert!(other.end(Token(99)).is_some(), "the other one goes on");
    assert_eq!(watches(), 0);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _reads = watch();
        panic!("as planned");
    }));
    assert!(panicked.is_err());
    assert_eq!(watches(), 0);
}

/// Both halves of a difference that are carried over in pieces.
#[test]
fn writes_are_in_the_tree_before_it_is_read() {
    let trees = Trees::default();
    trees.shape(&ring(), Beginning::default);
    let (mut sum, digest) = (Digest::default(), |number: u64| Digest(u128::from(number) << 60 | 0xfff));
    for number in 0..3 * NOTES_MAX as u64 + 1 {
        trees.writing(PartitionId(0)).note(Token(number), TreeDelta::of(None, Some(digest(number))));
        sum = sum.plus(digest(number));
        let kept = trees.stripe(PartitionId(0)).lock().notes.len();
        assert!(kept < NOTES_MAX, "{kept} notes");
    }
    assert_eq!(trees.look(PartitionId(0), |tree| tree.sum()), Some(Some(sum)));
}
