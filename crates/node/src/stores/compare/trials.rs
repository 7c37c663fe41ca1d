//! Counting and scrubbing beside writers, and over large values.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use model::{Consistency, Moment, NodeId, Store, StoreName, Value, WallMillis, Zone};
use runtime::{BoxFuture, Clock};
use storage::{MemoryEngine, StorageEngine};
use wire::messages::Condition;

use super::*;
use crate::stores::{Stamper, WriteOrder};

/// Time that stands still.
struct Noon;

impl Clock for Noon {
    fn now(&self) -> Moment {
        Moment::default()
    }
    fn wall(&self) -> WallMillis {
        WallMillis(1_000_000)
    }
    fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

const PARTITION: PartitionId = PartitionId(0);

fn store(engine: Arc<dyn StorageEngine>) -> LocalStore {
    let two = Consistency { replicas: 2, reads_required: 1, writes_required: 1 };
    let definition = Store::new(StoreName::new("s").unwrap(), two).unwrap();
    let store = LocalStore::new(definition, engine, Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(Noon))));
    store.shape(&Ring::equal_slices(1, &[(NodeId(1), Zone("z".to_owned()))]));
    store
}

fn put(store: &LocalStore, key: &str, bytes: usize) {
    let place = KeyPlace { partition: PARTITION, token: Token::of(key.as_bytes()) };
    let value = Value::Present(vec![7; bytes].into());
    let order = WriteOrder { context: None, condition: Condition::None, expires: None, value };
    store.stamp(place, key.as_bytes(), order).unwrap();
}

#[test]
fn a_step_over_large_values_is_bounded_by_their_bytes() {
    let engine = Arc::new(MemoryEngine::new());
    let counted = store(engine.clone());
    (0..128).for_each(|number| put(&counted, &format!("k{number}"), 128 << 10));
    let (mut from, mut steps, mut records) = (Token(0), 0, 0);
    loop {
        let step = counted.scrub_step(PARTITION, from).unwrap();
        // Some 8 records are in a leaf, and the last leaf is read to its end.
        assert!(step.bytes <= 4 << 20, "{step:?}");
        assert_eq!((step.corrupt, step.wrong_leaves), (0, 0));
        (steps, records) = (steps + 1, records + step.records);
        match step.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert!(steps >= 4 && records == 128, "{steps} steps, {records} records");
    // Another store over the same records knows nothing of them, and comes to the same sum.
    let doubtful = store(engine);
    let mut steps = 0;
    while !doubtful.count_step(PARTITION, 128).unwrap().done {
        steps += 1;
    }
    assert!(steps >= 4, "{steps} steps");
    let sum = |store: &LocalStore| store.trees().look(PARTITION, |tree| tree.sum()).unwrap().unwrap();
    assert_eq!(sum(&doubtful), sum(&counted));
}

#[test]
fn writers_go_on_while_records_are_read_and_what_they_touch_is_read_again() {
    let store = store(Arc::new(MemoryEngine::new()));
    (0..64).for_each(|number| put(&store, &format!("k{number}"), 10));
    let all = |tree: &mut Tree| Some((tree.tokens(), tree.bits()?));
    let watch = || store.trees().watch(PARTITION, all).unwrap();
    let last = Token(u64::MAX);

    let (watching, written) = (watch(), Token::of(b"k7"));
    put(&store, "k7", 11);
    let first_changed = *Span::of(written, watching.bits).tokens().start();
    match watching.end(last) {
        Some((_, steady)) => assert_eq!(steady.0 + 1, first_changed.0),
        None => assert_eq!(first_changed, Token(0), "nothing before it was read"),
    }

    let watching = watch();
    assert_eq!(watching.end(last).unwrap().1, last, "nobody wrote");

    let watching = watch();
    store.trees().writing(PARTITION).doubt();
    assert!(watching.end(last).is_none(), "nobody knows what has changed");
}

#[test]
fn counting_beside_writers_arrives_at_the_true_sum() {
    let engine = Arc::new(MemoryEngine::new());
    let exact = store(engine.clone());
    (0..4000).for_each(|number| put(&exact, &format!("k{number}"), 10));
    let counted = store(engine);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..4000).for_each(|number| put(&counted, &format!("k{}", number % 500), 11)));
        while !counted.count_step(PARTITION, 4000).unwrap().done {}
    });
    let (mut from, mut wrong) = (Some(Token(0)), 0);
    while let Some(next) = from {
        let step = counted.scrub_step(PARTITION, next).unwrap();
        (from, wrong) = (step.next, wrong + step.wrong_leaves);
    }
    assert_eq!(wrong, 0);
    assert_eq!(counted.trees().look(PARTITION, |tree| tree.records()).unwrap(), Some(4000));
}

/// An engine in which somebody else writes a record each time before others are read.
#[derive(Default)]
struct Busy {
    engine: MemoryEngine,
    /// The store to write to, and the key.
    written: OnceLock<(Weak<LocalStore>, String)>,
    /// Writes that were done before the reading went on, and those that had to wait for it.
    went_on: AtomicUsize,
    waited: AtomicUsize,
}

impl Busy {
    fn write(&self, reading: &RangeInclusive<Token>) {
        let Some((store, key)) = self.written.get() else { return };
        // What is written to while it is read is read again, which is another story. One that had to wait is enough.
        if reading.contains(&Token::of(key.as_bytes())) || self.waited.load(Ordering::Relaxed) > 0 {
            return;
        }
        let (store, key, (done, is_done)) = (store.upgrade().unwrap(), key.clone(), channel());
        std::thread::spawn(move || {
            put(&store, &key, 11);
            // Whoever reads may not wait any more.
            let _ = done.send(());
        });
        let counted = match is_done.recv_timeout(Duration::from_secs(5)) {
            Ok(()) => &self.went_on,
            Err(_) => &self.waited,
        };
        counted.fetch_add(1, Ordering::Relaxed);
    }
}

impl StorageEngine for Busy {
    storage::forward_engine!(engine: get, update, acknowledges_at_once, durable, sync, position, scan, find, partitions, drop_partition, stats, close);

    fn walk(
        &self,
        partition: PartitionId,
        tokens: RangeInclusive<Token>,
        visit: &mut dyn FnMut(Token, Met<'_>) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        self.write(&tokens);
        self.engine.walk(partition, tokens, visit)
    }
}

/// The lock of a stripe, 1/64 of all partitions, was held while up to 256 records of any size were read.
#[test]
fn no_writer_waits_while_records_are_counted_or_scrubbed() {
    let engine = Arc::new(Busy::default());
    let before = store(engine.clone());
    (0..2000).for_each(|number| put(&before, &format!("k{number}"), 10));
    let last = (0..2000).map(|number| format!("k{number}")).max_by_key(|key| Token::of(key.as_bytes()));
    // Another store over the same records knows nothing of them, and counts.
    let counted = Arc::new(store(engine.clone()));
    engine.written.set((Arc::downgrade(&counted), last.unwrap())).unwrap();
    while !counted.count_step(PARTITION, 2000).unwrap().done {}
    let (mut from, mut records) = (Some(Token(0)), 0);
    while let Some(next) = from {
        let step = counted.scrub_step(PARTITION, next).unwrap();
        (from, records) = (step.next, records + step.records);
    }
    assert_eq!(records, 2000);
    let (went_on, waited) = (engine.went_on.load(Ordering::Relaxed), engine.waited.load(Ordering::Relaxed));
    assert!(went_on >= 8 && waited == 0, "{went_on} writes went on, {waited} had to wait");
}

/// A store without trees, with records under these tokens, each with a value of this many bytes.
fn alone(records: &[(u64, usize)]) -> LocalStore {
    let one = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
    let definition = Store::new(StoreName::new("s").unwrap(), one).unwrap();
    let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(Noon)));
    let store = LocalStore::new(definition, Arc::new(MemoryEngine::new()), stamper);
    store.shape(&Ring::equal_slices(1, &[(NodeId(1), Zone("z".to_owned()))]));
    for (number, (token, bytes)) in records.iter().enumerate() {
        let place = KeyPlace { partition: PARTITION, token: Token(*token) };
        let value = Value::Present(vec![7; *bytes].into());
        let order = WriteOrder { context: None, condition: Condition::None, expires: None, value };
        store.stamp(place, format!("{number:04}").as_bytes(), order).unwrap();
    }
    store
}

/// Where a page ends is where the next one begins: a token that is cut in two is half lost.
#[test]
fn a_page_ends_with_a_whole_token_once_it_has_its_bytes() {
    let store = alone(&[(1, 100), (2, 100), (2, 100), (3, 100), (4, 100)]);
    let size = {
        let (mut sizes, all) = (Vec::new(), Token(0)..=Token(u64::MAX));
        let walked = store.engine().walk(PARTITION, all, &mut |_, met| {
            if let Met::Record { key, record } = met {
                sizes.push(key.len() + record.len());
            }
            ControlFlow::Continue(())
        });
        walked.unwrap();
        assert!(sizes.len() == 5 && sizes.iter().all(|size| *size == sizes[0]), "{sizes:?}");
        sizes[0]
    };
    let pages = |bytes_max: usize| {
        let (mut pages, mut from) = (Vec::new(), Some(Token(0)));
        while let Some(first) = from {
            let (records, next) = store.page(PARTITION, first, bytes_max).unwrap();
            pages.push((records.len(), next.map(|next| next.0)));
            from = next;
        }
        pages
    };
    assert_eq!(pages(1), [(1, Some(2)), (2, Some(3)), (1, Some(4)), (1, None)]);
    assert_eq!(pages(size), [(1, Some(2)), (2, Some(3)), (1, Some(4)), (1, None)]);
    assert_eq!(pages(size + 1), [(3, Some(3)), (2, None)], "both of a token");
    assert_eq!(pages(3 * size), [(3, Some(3)), (2, None)]);
    assert_eq!(pages(3 * size + 1), [(4, Some(4)), (1, None)]);
    assert_eq!(pages(5 * size), [(5, None)]);
}

#[test]
fn a_step_of_a_scrub_without_trees_ends_with_a_whole_token_once_it_has_its_bytes() {
    let half = BYTES_AT_ONCE as usize / 2;
    let store = alone(&[(1, half), (2, half), (2, 10), (3, 10), (4, half), (5, half), (6, 10)]);
    let (mut steps, mut from, mut bytes): (Vec<u64>, _, _) = (Vec::new(), Some(Token(0)), 0);
    while let Some(first) = from {
        let step = store.scrub_step(PARTITION, first).unwrap();
        (from, bytes) = (step.next, bytes + step.bytes);
        steps.push(step.records);
        assert_eq!((step.corrupt, step.wrong_leaves), (0, 0));
    }
    assert_eq!(steps, [3, 3, 1]);
    let (held, all) = (&mut 0, Token(0)..=Token(u64::MAX));
    let walked = store.engine().walk(PARTITION, all, &mut |_, met| {
        if let Met::Record { key, record } = met {
            *held += (key.len() + record.len()) as u64;
        }
        ControlFlow::Continue(())
    });
    walked.unwrap();
    assert_eq!(bytes, *held, "each byte once");
}

/// What nobody can read counts, and is forgotten, like what can be.
#[test]
fn records_met_beyond_a_changed_leaf_are_forgotten() {
    let mut walked = Walked::default();
    let digests = (1..=4).map(|number| (Token(number), Digest(number.into())));
    walked.digests.extend(digests);
    walked.corrupt.extend([Token(2), Token(3), Token(5)]);
    assert_eq!(walked.records(), 7);
    walked.truncate(Token(3));
    let left: Vec<u64> = walked.digests.iter().map(|(token, _)| token.0).collect();
    assert_eq!((left, &walked.corrupt[..]), (vec![1, 2, 3], &[Token(2), Token(3)][..]));
    walked.truncate(Token(1));
    assert_eq!((walked.digests.len(), walked.corrupt.len(), walked.records()), (1, 0, 1));
}
