//! Hash trees against plain recounting.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bytes::Bytes;
use model::versions::Stamp;
use model::{Actor, NodeId, Timestamp, Token, Value, VersionSet};
use proptest::prelude::*;
use protocol::antientropy::merkle::{Digest, LEAF_RECORDS, Span, Tree, TreeDelta};

/// Records of one partition, and what a tree is told of them.
#[derive(Default)]
struct Records(BTreeMap<u64, Digest>);

impl Records {
    fn put(&mut self, token: u64, digest: Option<Digest>) -> TreeDelta {
        let removed = match digest {
            Some(digest) => self.0.insert(token, digest),
            None => self.0.remove(&token),
        };
        TreeDelta::of(removed, digest)
    }

    fn within(&self, tokens: &RangeInclusive<Token>) -> Vec<(Token, Digest)> {
        let range = self.0.range(tokens.start().0..=tokens.end().0);
        range.map(|(&token, &digest)| (Token(token), digest)).collect()
    }

    fn sum(&self) -> Digest {
        self.0.values().copied().sum()
    }

    /// Takes one step of counting; false when there is none.
    fn count_on(&self, tree: &mut Tree, records_max: u64) -> bool {
        let Some(tokens) = tree.next_to_count(self.0.len() as u64, records_max) else { return false };
        tree.counted_up_to(*tokens.end(), self.within(&tokens));
        true
    }
}

/// Bounds of a partition: anything from the whole space to a few tokens.
fn bounds() -> impl Strategy<Value = RangeInclusive<Token>> {
    prop_oneof![
        Just(Token(0)..=Token(u64::MAX)),
        (0u64..64).prop_map(|slice| Token(slice << 58)..=Token((slice << 58) | ((1 << 58) - 1))),
        (any::<u64>(), 0u64..1 << 40)
            .prop_map(|(first, more)| Token(first)..=Token(first.saturating_add(more))),
    ]
}

/// Writes: where (as a part of the partition), and what; `None` removes.
fn writes() -> impl Strategy<Value = Vec<(u16, Option<u128>)>> {
    prop::collection::vec((0u16..200, prop::option::weighted(0.8, any::<u128>())), 0..300)
}

fn token(bounds: &RangeInclusive<Token>, part: u16) -> u64 {
    let width = u128::from(bounds.end().0 - bounds.start().0);
    bounds.start().0 + (width * u128::from(part) / 200) as u64
}

/// All sums of all levels that the tree can give are those of the records.
fn check(tree: &Tree, records: &Records) {
    assert_eq!(tree.sum(), Some(records.sum()));
    assert_eq!(tree.records(), Some(records.0.len() as u64));
    let root = Span::around(&tree.tokens());
    let mut spans = vec![root];
    while let Some(span) = spans.pop() {
        let bits = tree.bits().unwrap().min(span.bits + 4);
        if bits == span.bits {
            continue;
        }
        for (at, sum) in tree.sums(span, bits).unwrap().into_iter().enumerate() {
            let child = Span { bits, prefix: (span.prefix << (bits - span.bits)) + at as u64 };
            let met = records.within(&child.tokens());
            assert_eq!(sum, met.iter().map(|(_, digest)| *digest).sum(), "{child:?}");
            if !met.is_empty() {
                spans.push(child);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_tree_that_is_told_each_write_has_the_sums_of_the_records(bounds in bounds(), writes in writes()) {
        let (mut tree, mut records) = (Tree::empty(&bounds), Records::default());
        for (part, digest) in writes {
            let token = token(&bounds, part);
            tree.apply(Token(token), records.put(token, digest.map(Digest)));
        }
        check(&tree, &records);
        let leaves = tree.leaves().unwrap().to_vec();
        let again = Tree::restored(&bounds, tree.bits().unwrap(), leaves, records.0.len() as u64).unwrap();
        check(&again, &records);
    }

    #[test]
    fn a_doubtful_tree_is_counted_right_while_writes_go_on(
        bounds in bounds(), before in writes(), during in writes(), step in 1u64..50,
    ) {
        let (mut tree, mut records) = (Tree::doubtful(&bounds), Records::default());
        for (part, digest) in before {
            records.put(token(&bounds, part), digest.map(Digest));
        }
        prop_assert_eq!(tree.sum(), None);
        let mut during = during.into_iter();
        loop {
            for (part, digest) in during.by_ref().take(10) {
                let token = token(&bounds, part);
                tree.apply(Token(token), records.put(token, digest.map(Digest)));
            }
            if !records.count_on(&mut tree, step) {
                break;
            }
        }
        for (part, digest) in during {
            let token = token(&bounds, part);
            tree.apply(Token(token), records.put(token, digest.map(Digest)));
        }
        check(&tree, &records);
    }

    #[test]
    fn trees_of_two_depths_and_two_layouts_add_up(writes in writes()) {
        // One partition, and the same tokens as two.
        let bounds = Token(0)..=Token(u64::MAX >> 3);
        let middle = u64::MAX >> 4;
        let halves = [Token(0)..=Token(middle), Token(middle + 1)..=Token(u64::MAX >> 3)];
        let mut whole = Tree::empty(&bounds);
        let mut parts = [Tree::empty(&halves[0]), Tree::empty(&halves[1])];
        let mut records = Records::default();
        for (part, digest) in writes {
            let token = token(&bounds, part);
            let change = records.put(token, digest.map(Digest));
            whole.apply(Token(token), change);
            parts[usize::from(token > middle)].apply(Token(token), change);
        }
        let root = Span::around(&bounds);
        let sums = whole.sums(root, root.bits + 1).unwrap();
        prop_assert_eq!(&sums, &parts.iter().map(|part| part.sum().unwrap()).collect::<Vec<_>>());
        prop_assert_eq!(parts[0].sum().unwrap().plus(parts[1].sum().unwrap()), whole.sum().unwrap());
    }

    #[test]
    fn a_leaf_that_is_wrong_is_found_and_put_right(writes in writes(), lost in 0usize..200) {
        let bounds = Token(1 << 60)..=Token((1 << 61) - 1);
        let (mut tree, mut records) = (Tree::empty(&bounds), Records::default());
        for (part, digest) in writes {
            let token = token(&bounds, part);
            tree.apply(Token(token), records.put(token, digest.map(Digest)));
        }
        // A record vanishes behind the tree's back.
        let victim = records.0.keys().copied().nth(lost);
        victim.map(|token| records.0.remove(&token));
        let (mut from, mut wrong) = (*bounds.start(), 0);
        loop {
            let tokens = tree.leaves_from(from, 7).unwrap();
            wrong += tree.verify(&tokens, &records.within(&tokens));
            if tokens.end() == bounds.end() {
                break;
            }
            from = Token(tokens.end().0 + 1);
        }
        prop_assert_eq!(wrong, usize::from(victim.is_some()));
        prop_assert_eq!(tree.sum(), Some(records.sum()));
    }
}

#[test]
fn a_tree_grows_when_its_leaves_have_become_too_large() {
    let bounds = Token(0)..=Token(u64::MAX);
    let (mut tree, mut records) = (Tree::empty(&bounds), Records::default());
    let mut grown = Vec::new();
    for number in 0..100_000u64 {
        let token = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        tree.apply(Token(token), records.put(token, Some(Digest(u128::from(number)))));
        if tree.wants_count() && records.count_on(&mut tree, 256) && !tree.wants_count() {
            grown.push(number + 1);
        }
    }
    check(&tree, &records);
    assert!(grown.len() <= 6, "growing is rare: at {grown:?}");
    let leaves = tree.leaves().unwrap().len() as u64;
    assert!(records.0.len() as u64 / leaves <= 4 * LEAF_RECORDS);
    assert!(tree.bytes() < 100_000, "{} bytes for {} records", tree.bytes(), records.0.len());
}

#[test]
fn equal_digests_mean_equal_sets() {
    let actor = |node| Actor { node: NodeId(node), incarnation: 1, birth: 1 };
    let put = |set: &mut VersionSet, node, value: &str, own: bool| {
        let context = set.vector().clone();
        let empty = model::Vector::default();
        let stamp = Stamp {
            actor: actor(node),
            timestamp: Timestamp(1),
            expires: None,
            value: Value::Present(Bytes::copy_from_slice(value.as_bytes())),
        };
        set.put(stamp, Some(if own { &context } else { &empty }));
    };
    // All ways to write three times, seeing the others or not.
    let mut sets: Vec<VersionSet> = Vec::new();
    for way in 0..8 * 8 {
        let mut set = VersionSet::default();
        for step in 0..3 {
            put(&mut set, 1 + (way >> step & 1), "v", way >> (3 + step) & 1 == 1);
            sets.push(set.clone());
        }
    }
    for a in &sets {
        for b in &sets {
            assert_eq!(a == b, Digest::of(b"k", a) == Digest::of(b"k", b), "{a:?} {b:?}");
        }
    }
}

/// So many records that came, wherever.
fn came(records: i32) -> TreeDelta {
    TreeDelta { difference: Digest(1), records }
}

#[test]
fn a_remembered_tree_is_taken_only_with_as_many_leaves_as_its_depth_has_and_a_depth_that_trees_have() {
    // Two tokens, of which the first 23 bits are the same.
    let bounds = Token((1 << 40) - 1)..=Token(1 << 40);
    let restored = |bits, leaves| Tree::restored(&bounds, bits, vec![Digest(1); leaves], 9).is_some();
    assert_eq!(
        [(22, 1), (23, 1), (24, 2), (47, 2), (48, 2)].map(|(bits, leaves)| restored(bits, leaves)),
        [false, true, true, true, false]
    );
    assert!(!restored(30, 1) && !restored(30, 3));
    // No tree is deeper than a token.
    let bounds = Token(0)..=Token(1);
    let restored = |bits| Tree::restored(&bounds, bits, vec![Digest(1); 2], 9).is_some();
    assert_eq!([63, 64, 65].map(restored), [false, true, false]);
}

#[test]
fn sums_are_told_of_four_bits_at_most_and_never_finer_than_leaves() {
    let bounds = Token(0)..=Token(u64::MAX);
    let tree = Tree::restored(&bounds, 5, (1..=32).map(Digest).collect(), 32).unwrap();
    let all: u128 = (1..=32).sum();
    let root = Span { bits: 0, prefix: 0 };
    assert_eq!(tree.sums(root, 0), Some(vec![Digest(all)]));
    assert_eq!(tree.sums(root, 4).unwrap()[..2], [Digest(3), Digest(7)]);
    assert_eq!(tree.sums(root, 5), None, "five bits at once");
    let leaf = Span { bits: 5, prefix: 7 };
    assert_eq!(tree.sums(leaf, 5), Some(vec![Digest(8)]));
    assert_eq!(
        (tree.sums(leaf, 6), tree.sums(leaf, 4)),
        (None, None),
        "finer than leaves, or coarser than the span"
    );
}

#[test]
fn spans_at_the_ends_of_a_partition_count_what_is_inside() {
    let bounds = Token(31)..=Token(48);
    let mut tree = Tree::empty(&bounds);
    for token in [31, 48] {
        tree.apply(Token(token), TreeDelta { difference: Digest(token.into()), records: 1 });
    }
    let sums = |prefix| tree.sums(Span { bits: 60, prefix }, 62).unwrap();
    assert_eq!([sums(0), sums(4)], [[Digest(0); 4]; 2], "outside");
    assert_eq!(
        sums(1),
        [Digest(0), Digest(0), Digest(0), Digest(31)],
        "the first token is the last of the span"
    );
    assert_eq!(sums(3), [Digest(48), Digest(0), Digest(0), Digest(0)]);
}

#[test]
fn a_tree_is_counted_anew_when_its_leaves_hold_more_than_128_records_and_could_hold_fewer() {
    let mut tree = Tree::empty(&(Token(0)..=Token(u64::MAX)));
    assert_eq!((tree.bytes(), tree.bits_counting()), (16 * 16, None));
    tree.apply(Token(0), came(16 * 128));
    assert!(!tree.wants_count());
    assert_eq!(tree.next_to_count(2048, 100), None);
    tree.apply(Token(0), came(1));
    assert!(tree.wants_count());
    // A leaf for each token: finer there is none.
    let mut tree = Tree::empty(&(Token(0)..=Token(3)));
    tree.apply(Token(0), came(100_000));
    assert_eq!((tree.bits(), tree.wants_count()), (Some(64), false));
}

/// A tree of 256 leaves, of which each is to hold 25 records.
#[test]
fn counting_and_checking_take_leaves_up_to_a_number_of_records_at_once() {
    let bounds = Token(0)..=Token(u64::MAX);
    let leaves = |first: u64, last: u64| Token(first << 56)..=Token((last << 56) | ((1 << 56) - 1));
    let mut tree = Tree::doubtful(&bounds);
    assert_eq!((tree.bytes(), tree.leaves_from(Token(0), 100)), (0, None));
    assert_eq!(tree.next_to_count(6400, 100), Some(leaves(0, 3)));
    assert_eq!((tree.bits_counting(), tree.bytes()), (Some(8), 256 * 16));
    assert!(!tree.counted_up_to(*leaves(0, 1).end(), []));
    assert_eq!(tree.next_to_count(6400, 100), Some(leaves(2, 5)));
    assert_eq!(tree.next_to_count(6400, 1), Some(leaves(2, 2)), "one at least");
    assert!(!tree.counted_up_to(*leaves(2, 253).end(), []));
    assert_eq!(tree.next_to_count(6400, 100), Some(leaves(254, 255)));
    assert!(tree.counted_up_to(*bounds.end(), []));
    assert_eq!((tree.bits_counting(), tree.bits()), (None, Some(8)));

    tree.apply(Token(0), came(6400));
    let within = Token((2 << 56) + 77);
    assert_eq!(tree.leaves_from(within, 100), Some(leaves(2, 5)));
    assert_eq!(tree.leaves_from(within, 1), Some(leaves(2, 2)));
    assert_eq!(tree.leaves_from(Token(u64::MAX), 100), Some(leaves(255, 255)));
    tree.apply(Token(0), came(256 * 128));
    assert!(tree.next_to_count(39_168, 100).is_some());
    assert_eq!(
        (tree.bits_counting(), tree.bytes()),
        (Some(11), (256 + 2048) * 16),
        "the old leaves go on serving"
    );
    tree.doubt();
    assert_eq!((tree.sum(), tree.records(), tree.bits_counting(), tree.bytes()), (None, None, None, 0));
    assert!(tree.wants_count());
}

#[test]
fn a_wrong_leaf_makes_growing_begin_anew_for_it_has_counted_the_same_changes() {
    let mut tree = Tree::empty(&(Token(0)..=Token(u64::MAX)));
    tree.apply(Token(0), came(16 * 128 + 1));
    assert!(tree.next_to_count(2049, 100).is_some());
    let counting = tree.bits_counting();
    assert!(counting.is_some());
    let leaf = tree.leaves_from(Token(0), 1).unwrap();
    assert_eq!((tree.verify(&leaf, &[(Token(0), Digest(1))]), tree.bits_counting()), (0, counting));
    assert_eq!((tree.verify(&leaf, &[(Token(0), Digest(2))]), tree.bits_counting()), (1, None));
}
