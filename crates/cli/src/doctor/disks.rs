//! What the doctor finds of a node's disk: room, failures and damage.

use protocol::report::{Status, StoreStatus};

use super::finding::{Code, Finding};
use crate::status::NodeStatus;
use crate::text::size;

/// Bytes that writes may still take below which the doctor says that a disk is getting full.
const ROOM_LOW_BYTES: u64 = 1 << 30;

/// Bytes that writes may still take below which it says that a node refuses them, whether one has come or not: what is
/// left is for small ones.
const ROOM_NONE_BYTES: u64 = 256 << 10;

/// What a node that is up, but takes no writes, says of its storage.
pub(super) enum Refuses {
    /// It has no room.
    Full,
    /// It has failed.
    Stopped(String),
}

/// Why a node refuses writes, if it does.
pub(super) fn refuses(told: &Status) -> Option<Refuses> {
    if let Some(reason) = &told.storage_stopped {
        return Some(Refuses::Stopped(reason.clone()));
    }
    let no_room = told.room_bytes.is_some_and(|room| room < ROOM_NONE_BYTES);
    let refused = refusing_stores(told).next().is_some() || told.hint_bytes_wanted > 0;
    (no_room || refused).then_some(Refuses::Full)
}

/// Stores that refused a put for want of room, and have none for it now.
fn refusing_stores(told: &Status) -> impl Iterator<Item = &StoreStatus> {
    told.stores.iter().filter(|store| store.put_bytes_wanted > 0)
}

/// That a node takes no writes, or soon will not.
pub(super) fn room(status: &NodeStatus, told: &Status) -> Vec<Finding> {
    let (id, node) = (status.node.id, Some(status.node.id));
    let finding = |code, store, what, next: &str| Finding { code, node, store, what, next: next.to_owned() };
    let why = || {
        let free = size(told.disk_available_bytes);
        let total = told.disk_total_bytes.map(|total| format!(" of {}", size(total)));
        let room = size(told.room_bytes.unwrap_or(0));
        format!("its disk is full ({free}{} free, {room} above the reserve)", total.unwrap_or_default())
    };
    match refuses(told) {
        Some(Refuses::Stopped(reason)) => {
            let what = format!(
                "{id} refuses writes: its storage has stopped ({reason}); other nodes take its writes"
            );
            let next = format!(
                "check its disk, then stop {id} and start it again with the same command; it catches up from the other \
                 nodes (docs/operating/durability.md, When a sync fails)"
            );
            vec![finding(Code::StorageStopped, None, what, &next)]
        }
        Some(Refuses::Full) => {
            let mut findings: Vec<Finding> = refusing_stores(told)
                .map(|store| {
                    let what = format!(
                        "{id} refuses writes of store {}: {}; a put of {} was refused",
                        store.store,
                        why(),
                        size(store.put_bytes_wanted)
                    );
                    finding(Code::DiskFull, Some(store.store.to_string()), what, FREE_SPACE)
                })
                .collect();
            if told.hint_bytes_wanted > 0 {
                let what = format!(
                    "{id} refuses hints for other nodes: {}; one of {} was refused",
                    why(),
                    size(told.hint_bytes_wanted)
                );
                findings.push(finding(Code::DiskFull, None, what, FREE_SPACE));
            }
            if findings.is_empty() {
                let what = format!("{id} refuses writes: {}", why());
                findings.push(finding(Code::DiskFull, None, what, FREE_SPACE));
            }
            findings
        }
        None => match told.room_bytes.filter(|&room| room < ROOM_LOW_BYTES) {
            Some(room) => {
                let what = format!(
                    "{id} is running out of disk space: writes will be refused after another {}",
                    size(room)
                );
                vec![finding(
                    Code::DiskLow,
                    None,
                    what,
                    &format!(
                        "free space on its disk, or move its data to other nodes: tontine node drain {}",
                        id.0
                    ),
                )]
            }
            None => Vec::new(),
        },
    }
}

/// What to do about a full disk.
const FREE_SPACE: &str = "free space on its disk or delete large values, which still works (docs/operating/durability.md, When the disk is \
     full); until then, read the newest value from all replicas with `tontine get -r N KEY`";

/// What a node's disk has damaged, of all its stores.
pub(super) fn damage(status: &NodeStatus, told: &Status) -> Vec<Finding> {
    told.stores
        .iter()
        .flat_map(|store| [damaged_records(status, store), damaged_log(status, store)])
        .flatten()
        .collect()
}

/// Records of a store that are damaged, and whether they are back.
fn damaged_records(status: &NodeStatus, store: &StoreStatus) -> Option<Finding> {
    let records = |count: u64| if count == 1 { "1 record".to_owned() } else { format!("{count} records") };
    let found = store.corrupt_records_total.saturating_sub(store.corrupt_unplaced);
    let left = store.corrupt_records_left.saturating_sub(store.corrupt_unplaced);
    if found == 0 {
        return None;
    }
    let (id, name) = (status.node.id, &store.store);
    let (code, what, next) = match left {
        0 => (
            Code::RecordsReplaced,
            format!(
                "{id} found {} of store {name} corrupt (checksum) since it started; good copies have replaced them",
                records(found)
            ),
            "check the disk: a failing disk may corrupt more records",
        ),
        left => (
            Code::RecordsDamaged,
            format!(
                "{id} holds {} of store {name} that are corrupt (checksum), of {found} found since it started",
                records(left)
            ),
            "check the disk; the other replicas answer reads and replace these records; to do it now: tontine repair start \
             --scrub",
        ),
    };
    Some(Finding { code, node: Some(id), store: Some(name.to_string()), what, next: next.to_owned() })
}

/// What the disk has damaged of records of a store whose keys nobody can tell.
fn damaged_log(status: &NodeStatus, store: &StoreStatus) -> Option<Finding> {
    let places = match store.corrupt_unplaced {
        0 => return None,
        1 => "1 place".to_owned(),
        places => format!("{places} places"),
    };
    let (id, name) = (status.node.id, &store.store);
    let next = match store.consistency.replicas {
        1 => {
            "data loss: the store has one replica, so those records are gone; check the disk and write them again from their source"
        }
        _ => {
            "check the disk; start all nodes, because replica repair restores the records from all other replicas; to run it \
             now: tontine repair start"
        }
    };
    let what = format!(
        "{id} found {places} of the log of store {name} corrupt when it started, and cannot tell which keys were there"
    );
    Some(Finding {
        code: Code::LogDamaged,
        node: Some(id),
        store: Some(name.to_string()),
        what,
        next: next.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use model::{Consistency, Resolver, StoreName};
    use serde_json::{Value as Json, json};

    use super::super::tests::answering;
    use super::*;

    fn found(told: &Status) -> Vec<(String, Json, String)> {
        let json = |finding: &Finding| {
            let json = finding.json();
            (json["code"].as_str().unwrap().to_owned(), json["store"].clone(), finding.what.clone())
        };
        room(&answering(3, told.clone()), told).iter().map(json).collect()
    }

    fn store(name: &str, put_bytes_wanted: u64) -> StoreStatus {
        let numbers = Consistency { replicas: 3, reads_required: 2, writes_required: 2 };
        let name = StoreName::new(name).unwrap();
        StoreStatus { put_bytes_wanted, ..StoreStatus::empty(name, numbers, Resolver::LastWriteWins) }
    }

    /// It was told of as a disk that gets full, which is no reason to act.
    #[test]
    fn a_node_that_refused_a_put_for_want_of_room_is_bad_though_some_is_left() {
        let room_left = Status {
            room_bytes: Some(600 << 10),
            disk_available_bytes: 129 << 20,
            disk_total_bytes: Some(1 << 30),
            stores: vec![store("default", 1 << 20), store("b", 0)],
            ..Status::default()
        };
        let what = "n3 refuses writes of store default: its disk is full (129.0 MiB of 1.0 GiB free, 600.0 KiB above the \
                    reserve); a put of 1.0 MiB was refused";
        assert_eq!(found(&room_left), [("disk-full".to_owned(), json!("default"), what.to_owned())]);
        assert!(matches!(refuses(&room_left), Some(Refuses::Full)));
    }

    #[test]
    fn a_disk_without_room_a_disk_that_gets_full_and_one_with_room_are_told_apart() {
        let of = |room: u64| {
            let told =
                Status { room_bytes: Some(room), disk_available_bytes: room + 10, ..Status::default() };
            found(&told).into_iter().map(|(code, ..)| code).collect::<Vec<_>>()
        };
        assert_eq!(of(0), ["disk-full"]);
        assert_eq!(of(ROOM_NONE_BYTES), ["disk-low"]);
        assert_eq!(of(ROOM_LOW_BYTES), Vec::<String>::new());
        let hints = Status { room_bytes: Some(1 << 40), hint_bytes_wanted: 5000, ..Status::default() };
        assert!(found(&hints)[0].2.starts_with("n3 refuses hints for other nodes: its disk is full ("));
    }
}
