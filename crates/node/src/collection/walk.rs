//! Looking through a store for tombstones, and values that expire, of which nobody has taken a note: those of an earlier
//! process, and those for which the index had no room.
//!
//! Must never: read all records again for each part of them that finds room.

use std::sync::Arc;
use std::time::Duration;

use model::PartitionId;
use runtime::Clock;
use wire::messages::Failure;

use crate::chores::{Culprits, Postponed};
use crate::stores::LocalStore;

/// Records of a page.
const WALK_RECORDS: usize = 512;
/// Pause between pages.
const WALK_PAUSE: Duration = Duration::from_millis(20);

/// Walks a store once around, from where the walk before it ran out of room; unless it must be `whole`, it ends where it
/// runs out of room itself, and in any case when the node is gone. What is postponed comes last.
///
/// # Errors
/// The last one of the engine. It goes on with the next partition: what cannot be read there is the scrub's.
pub(super) async fn walk_store(
    is_there: &(dyn Fn() -> bool + Sync),
    store: &LocalStore,
    clock: &Arc<dyn Clock>,
    whole: bool,
    (culprits, postponed): (&Culprits, &Postponed),
) -> Result<(), Failure> {
    let name = &store.definition().name;
    let mut walked = Ok(());
    let held = store.engine().partitions();
    let mut partitions: Vec<PartitionId> = held.into_iter().map(|held| held.partition).collect();
    let (begin, mut after) = store.tombstones_resume().unwrap_or((PartitionId(0), None));
    let turn = partitions.partition_point(|&id| id < begin);
    partitions.rotate_left(turn);
    if after.is_some() {
        // The part of the first partition that lies before the cursor comes last.
        partitions.push(begin);
    }
    postponed.order(&mut partitions, |id, culprit| culprit.0 == *name && culprit.1 == *id);
    let mut full = false;
    for partition in partitions {
        after = after.filter(|_| partition == begin);
        loop {
            if !is_there() {
                return walked;
            }
            let place = (partition, after.take());
            culprits.begin(name, [partition]);
            let noted = store.note_tombstones(partition, place.1.as_ref(), WALK_RECORDS);
            culprits.over();
            if store.tombstones_full() && !full {
                full = true;
                store.tombstones_unwalked(place);
            }
            if full && !whole {
                return walked;
            }
            match noted {
                Ok(Some(next)) => after = Some(next),
                Ok(None) => break,
                Err(failure) => {
                    walked = Err(failure);
                    break;
                }
            }
            clock.sleep(WALK_PAUSE).await;
        }
    }
    walked
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use model::{Consistency, Moment, NodeId, Store, StoreName, Token, Value, WallMillis};
    use runtime::BoxFuture;
    use storage::MemoryEngine;
    use wire::messages::Condition;

    use super::*;
    use crate::stores::{KeyPlace, Stamper, WriteOrder};

    /// Time stands still, and pauses are counted: there is one after each page.
    #[derive(Default)]
    struct Pauses(AtomicUsize);

    impl Clock for Pauses {
        fn now(&self) -> Moment {
            Moment::default()
        }
        fn wall(&self) -> WallMillis {
            WallMillis(1_000_000)
        }
        fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(()))
        }
    }

    const KEYS: u32 = 8192;
    const ROOM: usize = 512;
    const PARTITIONS: u32 = 4;

    fn place(key: &[u8]) -> KeyPlace {
        let token = Token::of(key);
        KeyPlace { partition: PartitionId(token.0 as u32 % PARTITIONS), token }
    }

    /// A walk began at the first record, so with many tombstones all records were read for each few that had room.
    #[test]
    fn tombstones_that_have_no_room_are_found_without_rereading_all_records() {
        let clock = Arc::new(Pauses::default());
        let one = Consistency { replicas: 1, reads_required: 1, writes_required: 1 };
        let definition = Store::new(StoreName::new("s").unwrap(), one).unwrap();
        let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, clock.clone()));
        let store = LocalStore::new(definition, Arc::new(MemoryEngine::new()), stamper);
        let store = store.remembering_tombstones(ROOM);
        for number in 0..2 * KEYS {
            let key = number.to_be_bytes();
            // Every other one stays: what a walk passes over costs, too.
            let value = if number < KEYS { Value::Tombstone } else { Value::Present("v".into()) };
            let order = WriteOrder { context: None, condition: Condition::None, expires: None, value };
            store.stamp(place(&key), &key, order).unwrap();
        }
        let (mut forgotten, mut walks, time) = (0, 0, clock.clone() as Arc<dyn Clock>);
        let culprits = Culprits::default();
        // This many stamps run ahead of a clock that stands still.
        let now = WallMillis(clock.wall().0 + 1000);
        while forgotten < KEYS {
            let known = store.tombstones_after(None, ROOM);
            assert!(!known.is_empty(), "a walk found nothing, and {} are left", KEYS - forgotten);
            for (_, key) in known {
                let set = store.tombstone(place(&key), &key, now).flatten().unwrap();
                assert!(store.forget(place(&key), &key, &set).unwrap());
                forgotten += 1;
            }
            if store.tombstones_overflowed() {
                let blame = (&culprits, &culprits.round());
                let walked = walk_store(&|| true, &store, &time, false, blame).now_or_never();
                assert_eq!(walked, Some(Ok(())), "nothing is waited for");
                walks += 1;
            }
        }
        let (pages, all) = (clock.0.load(Ordering::Relaxed), 2 * KEYS as usize / WALK_RECORDS);
        assert!(walks >= KEYS as usize / ROOM - 1, "{walks} walks");
        assert!(pages <= 3 * all, "{pages} pages were read in {walks} walks, of some {all} that there are");
    }
}
