//! Reads one partition in order of token and key, page by page, from as many replicas side by side as a get asks.
//!
//! A replica that fails gives way to one that was not asked yet, which goes on behind what was handed out. So whatever
//! W replicas have acknowledged before the walk began is met once, however many pages it takes and whoever serves them;
//! what is written during the walk may be met or not.

use std::collections::VecDeque;

use bytes::Bytes;
use model::{NodeId, Store, Token, VersionSet};

/// A place in the order of a partition: behind this token and key.
pub type WalkPosition = (Token, Bytes);

/// A key with what the replicas that were asked know of it together.
pub type Record = (Token, Bytes, VersionSet);

/// The walk over one partition.
#[derive(Debug)]
pub struct Walk {
    /// Not asked yet, the one to ask first at the end.
    waiting: Vec<NodeId>,
    /// Of different nodes, and never more than `required`.
    readers: Vec<Reader>,
    required: usize,
    store: Store,
    /// Everything up to here was handed out.
    after: Option<WalkPosition>,
}

/// One replica, as far as its pages have come.
#[derive(Debug)]
struct Reader {
    node: NodeId,
    /// In order, all of it behind the walk's `after`.
    page: VecDeque<Record>,
    next: Next,
}

/// What comes behind a reader's page.
#[derive(Debug, PartialEq)]
enum Next {
    /// A page that nobody has asked for yet.
    Unasked(Option<WalkPosition>),
    /// A page that was asked for.
    Asked,
    /// Nothing: the partition is over.
    Nothing,
}

/// A page to ask a node for: behind this place, or from the front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageAsk {
    /// Who is asked.
    pub node: NodeId,
    /// Where the page begins.
    pub after: Option<WalkPosition>,
}

/// So many replicas have failed that those that are left are fewer than a get needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFew {
    /// Replicas that a walk reads.
    pub required: usize,
    /// Replicas that have not failed.
    pub left: usize,
}

impl Walk {
    /// Through a store behind `after`, over these replicas, the preferred ones first; each page needs `required` of them.
    /// Where there are fewer, the walk refuses as a get does.
    pub fn new(mut replicas: Vec<NodeId>, required: u8, store: &Store, after: Option<WalkPosition>) -> Self {
        let store = store.clone();
        let required = usize::from(required).max(1);
        replicas.reverse();
        Walk { waiting: replicas, readers: Vec::new(), required, store, after }
    }

    /// The pages that are wanted now. Each is asked for once.
    ///
    /// # Errors
    /// When too few replicas are left.
    pub fn asks(&mut self) -> Result<Vec<PageAsk>, TooFew> {
        let left = self.readers.len() + self.waiting.len();
        if left < self.required {
            return Err(TooFew { required: self.required, left });
        }
        while self.readers.len() < self.required {
            let node = self.waiting.pop().expect("enough are left");
            let next = Next::Unasked(self.after.clone());
            self.readers.push(Reader { node, page: VecDeque::new(), next });
        }
        let mut asks = Vec::new();
        for reader in self.readers.iter_mut().filter(|reader| reader.page.is_empty()) {
            if let Next::Unasked(after) = &mut reader.next {
                asks.push(PageAsk { node: reader.node, after: after.take() });
                reader.next = Next::Asked;
            }
        }
        self.check();
        Ok(asks)
    }

    /// A node has answered with a page, and where the next one begins if there is one. What was not asked for is
    /// nothing to the walk.
    pub fn page(&mut self, node: NodeId, records: Vec<(Bytes, VersionSet)>, next: Option<WalkPosition>) {
        let Some(reader) = self.readers.iter_mut().find(|reader| reader.node == node) else { return };
        if reader.next != Next::Asked {
            return;
        }
        let behind = |token: Token, key: &Bytes| match &self.after {
            Some(after) => (token, key) > (after.0, &after.1),
            None => true,
        };
        let records = records.into_iter().map(|(key, set)| (self.store.token(&key), key, set));
        reader.page.extend(records.filter(|(token, key, _)| behind(*token, key)));
        reader.next = next.map_or(Next::Nothing, |next| Next::Unasked(Some(next)));
        self.check();
    }

    /// A node cannot be asked any more, or its page is not to be trusted.
    pub fn failed(&mut self, node: NodeId) {
        self.readers.retain(|reader| reader.node != node);
    }

    /// Records that nothing which is still to come can change, in order.
    pub fn take(&mut self) -> Vec<Record> {
        let mut taken = Vec::new();
        while self.readers.len() == self.required && !self.readers.iter().any(Reader::is_hungry) {
            let heads = self.readers.iter().filter_map(|reader| reader.page.front());
            let least = heads.map(|(token, key, _)| (*token, key.clone())).min();
            let Some((token, key)) = least else { break };
            let mut merged = VersionSet::default();
            for reader in &mut self.readers {
                let is_same = |head: &mut Record| (head.0, &head.1) == (token, &key);
                if let Some((_, _, set)) = reader.page.pop_front_if(is_same) {
                    merged.merge(&set);
                }
            }
            merged.resolve(self.store.resolver);
            self.after = Some((token, key.clone()));
            taken.push((token, key, merged));
        }
        self.check();
        taken
    }

    /// What must be true of the walk after each step.
    fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.readers.len() <= self.required, "no more replicas read than are needed");
        for (position, reader) in self.readers.iter().enumerate() {
            let others = self.readers[position + 1..].iter().map(|other| other.node);
            let twice = others.chain(self.waiting.iter().copied()).any(|node| node == reader.node);
            assert!(!twice, "each replica reads once");
            assert!(
                reader.next != Next::Asked || reader.page.is_empty(),
                "a page is asked for behind the last one"
            );
            let behind = |(token, key, _): &Record| {
                self.after.as_ref().is_none_or(|after| (*token, key) > (after.0, &after.1))
            };
            assert!(reader.page.front().is_none_or(behind), "nothing is handed out twice");
        }
    }

    /// Whether everything was handed out.
    pub fn is_over(&self) -> bool {
        let done = |reader: &Reader| reader.page.is_empty() && reader.next == Next::Nothing;
        self.readers.len() == self.required && self.readers.iter().all(done)
    }
}

impl Reader {
    fn is_hungry(&self) -> bool {
        self.page.is_empty() && self.next != Next::Nothing
    }
}

#[cfg(test)]
mod tests {
    use model::versions::Stamp;
    use model::{Actor, Consistency, Resolver, StoreName, Timestamp, Value, WallMillis};
    use proptest::prelude::*;

    use super::*;

    fn set(node: u32, wall: u64, value: &str) -> VersionSet {
        let mut set = VersionSet::default();
        let actor = Actor { node: NodeId(node), incarnation: 1, birth: 1 };
        let timestamp = Timestamp::default().next(WallMillis(wall));
        let value = Value::Present(Bytes::copy_from_slice(value.as_bytes()));
        set.put(Stamp { actor, timestamp, expires: None, value }, None);
        set
    }

    fn store(resolver: Resolver) -> Store {
        let one = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
        Store { resolver, ..Store::new(StoreName::new("s").unwrap(), one).unwrap() }
    }

    /// What each node holds, in order.
    type Held = Vec<Vec<(Bytes, VersionSet)>>;

    fn ordered(mut records: Vec<(Bytes, VersionSet)>) -> Vec<(Bytes, VersionSet)> {
        records.sort_by_key(|(key, _)| (Token::of(key), key.clone()));
        records
    }

    /// Walks with pages of this many records; each of `failing` is a step at which the node asked first fails.
    fn walk(held: &Held, required: u8, page: usize, failing: &[usize]) -> Result<Vec<Record>, TooFew> {
        let nodes = (0..held.len() as u32).map(NodeId).collect();
        let mut walk = Walk::new(nodes, required, &store(Resolver::LastWriteWins), None);
        let (mut all, mut step) = (Vec::new(), 0);
        while !walk.is_over() {
            for PageAsk { node, after } in walk.asks()? {
                step += 1;
                if failing.contains(&step) {
                    walk.failed(node);
                    continue;
                }
                let behind = |(key, _): &&(Bytes, VersionSet)| {
                    after.as_ref().is_none_or(|after| (Token::of(key), key) > (after.0, &after.1))
                };
                let mut rest = held[node.0 as usize].iter().filter(behind).cloned();
                let records: Vec<_> = rest.by_ref().take(page).collect();
                let last = records.last().map(|(key, _)| (Token::of(key), key.clone()));
                let next = rest.next().and(last);
                walk.page(node, records, next);
            }
            all.extend(walk.take());
        }
        Ok(all)
    }

    #[test]
    fn a_stale_replica_hides_no_record_and_no_newer_value() {
        let record = |key: &'static str, set: VersionSet| (Bytes::from(key), set);
        let held = vec![
            ordered(vec![record("a", set(1, 1, "old")), record("c", set(1, 1, "c"))]),
            ordered(vec![record("a", set(2, 2, "new")), record("b", set(2, 1, "b"))]),
        ];
        let all = walk(&held, 2, 1, &[]).unwrap();
        let mut keys: Vec<_> = all.iter().map(|(_, key, _)| key.clone()).collect();
        keys.sort();
        assert_eq!(keys, ["a", "b", "c"]);
        let (_, _, a) = all.iter().find(|(_, key, _)| key == "a").unwrap();
        assert_eq!(a.winner().unwrap().value, Value::Present("new".into()));
    }

    #[test]
    fn a_walk_without_enough_replicas_says_so() {
        let held = vec![Vec::new(), Vec::new(), Vec::new()];
        assert_eq!(walk(&held, 2, 1, &[1]), Ok(Vec::new()));
        assert_eq!(walk(&held, 2, 1, &[1, 2]), Err(TooFew { required: 2, left: 1 }));
    }

    #[test]
    fn a_walk_over_fewer_replicas_than_a_get_needs_answers_nothing() {
        assert_eq!(walk(&vec![Vec::new()], 2, 1, &[]), Err(TooFew { required: 2, left: 1 }));
    }

    #[test]
    fn pages_that_were_not_asked_for_change_nothing() {
        let mut walk = Walk::new(vec![NodeId(1), NodeId(2)], 1, &store(Resolver::Siblings), None);
        let record = || vec![(Bytes::from("a"), set(1, 1, "a"))];
        walk.page(NodeId(1), record(), None);
        assert_eq!(walk.asks().unwrap(), [PageAsk { node: NodeId(1), after: None }]);
        walk.page(NodeId(2), record(), None);
        assert!(walk.take().is_empty() && !walk.is_over());
        walk.page(NodeId(1), record(), None);
        walk.page(NodeId(1), vec![(Bytes::from("b"), set(1, 1, "b"))], None);
        assert_eq!(walk.take().len(), 1);
        assert!(walk.is_over());
    }

    #[test]
    fn a_page_that_repeats_what_was_handed_out_adds_only_what_is_behind_it() {
        let records = ordered(vec![("a".into(), set(1, 1, "a")), ("b".into(), set(1, 1, "b"))]);
        let after = (Token::of(&records[0].0), records[0].0.clone());
        let mut walk = Walk::new(vec![NodeId(1)], 1, &store(Resolver::Siblings), Some(after.clone()));
        assert_eq!(walk.asks().unwrap(), [PageAsk { node: NodeId(1), after: Some(after) }]);
        walk.page(NodeId(1), records.clone(), None);
        let taken: Vec<_> = walk.take().into_iter().map(|(_, key, _)| key).collect();
        assert_eq!(taken, [records[1].0.clone()]);
        assert!(walk.is_over());
    }

    proptest! {
        /// Each key is at W of N replicas at least, R of them are read, R + W > N, and up to N - R fail.
        #[test]
        fn what_w_replicas_hold_is_met_exactly_once_whoever_fails(
            missing in prop::collection::vec(0..4_usize, 0..60),
            page in 1..8_usize,
            failing in prop::option::of(1..40_usize),
        ) {
            let mut held: Held = vec![Vec::new(); 3];
            for (index, &without) in missing.iter().enumerate() {
                let key = Bytes::from(format!("key {index}"));
                for (node, records) in held.iter_mut().enumerate() {
                    if node != without {
                        records.push((key.clone(), set(7, 1, "v")));
                    }
                }
            }
            let held = held.into_iter().map(ordered).collect();
            let all = walk(&held, 2, page, failing.as_slice()).unwrap();
            let expected = ordered((0..missing.len()).map(|i| (format!("key {i}").into(), set(7, 1, "v"))).collect());
            let met: Vec<_> = all.into_iter().map(|(_, key, set)| (key, set)).collect();
            prop_assert_eq!(met, expected);
        }
    }
}
