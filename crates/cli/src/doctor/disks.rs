//! What the doctor finds of a node's disk: room, failures and damage.

use serde_json::Value as Json;

use super::finding::{Code, Finding};
use crate::output::size;
use crate::status::NodeStatus;

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
pub(super) fn refuses(answer: &Json) -> Option<Refuses> {
    if let Some(reason) = answer["storage_stopped"].as_str() {
        return Some(Refuses::Stopped(reason.to_owned()));
    }
    let no_room = answer["room_bytes"].as_u64().is_some_and(|room| room < ROOM_NONE_BYTES);
    let refused = !refusing_stores(answer).is_empty() || wanted_for_hints(answer).is_some();
    (no_room || refused).then_some(Refuses::Full)
}

/// Stores that refused a put for want of room, and have none for it now, with the bytes of the largest one.
fn refusing_stores(answer: &Json) -> Vec<(String, u64)> {
    let stores = answer["stores"].as_array().into_iter().flatten();
    let refused = stores.filter_map(|store| {
        let wanted = store["put_bytes_wanted"].as_u64().filter(|&wanted| wanted > 0)?;
        Some((store["store"].as_str()?.to_owned(), wanted))
    });
    refused.collect()
}

/// Bytes of the largest hint that the node had no room for, and has none for now.
fn wanted_for_hints(answer: &Json) -> Option<u64> {
    answer["hint_bytes_wanted"].as_u64().filter(|&wanted| wanted > 0)
}

/// That a node takes no writes, or soon will not.
pub(super) fn room(status: &NodeStatus, answer: &Json) -> Vec<Finding> {
    let (id, node) = (status.node.id, Some(status.id()));
    let finding = |code, store, what, next: &str| Finding { code, node, store, what, next: next.to_owned() };
    let room = answer["room_bytes"].as_u64();
    let why = || {
        let free = size(answer["disk_available_bytes"].as_u64().unwrap_or(0));
        let total = answer["disk_total_bytes"].as_u64().map(|total| format!(" of {}", size(total)));
        let room = size(room.unwrap_or(0));
        format!("its disk is full ({free}{} free, {room} above the reserve)", total.unwrap_or_default())
    };
    match refuses(answer) {
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
            let stores = refusing_stores(answer);
            let mut findings: Vec<Finding> = stores
                .into_iter()
                .map(|(store, wanted)| {
                    let what = format!(
                        "{id} refuses writes of store {store}: {}; a put of {} was refused",
                        why(),
                        size(wanted)
                    );
                    finding(Code::DiskFull, Some(store), what, FREE_SPACE)
                })
                .collect();
            if let Some(wanted) = wanted_for_hints(answer) {
                let what = format!(
                    "{id} refuses hints for other nodes: {}; one of {} was refused",
                    why(),
                    size(wanted)
                );
                findings.push(finding(Code::DiskFull, None, what, FREE_SPACE));
            }
            if findings.is_empty() {
                let what = format!("{id} refuses writes: {}", why());
                findings.push(finding(Code::DiskFull, None, what, FREE_SPACE));
            }
            findings
        }
        None => match room.filter(|&room| room < ROOM_LOW_BYTES) {
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
pub(super) fn damage(status: &NodeStatus, answer: &Json) -> Vec<Finding> {
    let stores = answer["stores"].as_array().into_iter().flatten();
    stores.flat_map(|store| [damaged_records(status, store), damaged_log(status, store)]).flatten().collect()
}

/// Records of a store that are damaged, and whether they are back.
fn damaged_records(status: &NodeStatus, store: &Json) -> Option<Finding> {
    let records = |count: u64| if count == 1 { "1 record".to_owned() } else { format!("{count} records") };
    let number = |field: &str| store[field].as_u64().unwrap_or(0);
    let unplaced = number("corrupt_unplaced");
    let found = number("corrupt_records_total").saturating_sub(unplaced);
    let left = number("corrupt_records_left").saturating_sub(unplaced);
    if found == 0 {
        return None;
    }
    let (id, name) = (status.node.id, store["store"].as_str().unwrap_or_default());
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
    Some(Finding { code, node: Some(status.id()), store: Some(name.to_owned()), what, next: next.to_owned() })
}

/// What the disk has damaged of records of a store whose keys nobody can tell.
fn damaged_log(status: &NodeStatus, store: &Json) -> Option<Finding> {
    let places = match store["corrupt_unplaced"].as_u64().unwrap_or(0) {
        0 => return None,
        1 => "1 place".to_owned(),
        places => format!("{places} places"),
    };
    let (id, name) = (status.node.id, store["store"].as_str().unwrap_or_default());
    let next = match store["replicas"].as_u64() {
        Some(1) => {
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
        node: Some(status.id()),
        store: Some(name.to_owned()),
        what,
        next: next.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use model::Node;
    use serde_json::json;

    use super::*;

    fn status() -> NodeStatus {
        let node: Node = serde_json::from_value(json!({
            "id": 3, "zone": "a", "native": "127.0.0.1:1", "resp": "127.0.0.1:2",
        }))
        .unwrap();
        NodeStatus { node, answer: Ok(Json::Null), ahead_ms: None }
    }

    fn found(answer: &Json) -> Vec<(String, Json, String)> {
        let json = |finding: &Finding| {
            let json = finding.json();
            (json["code"].as_str().unwrap().to_owned(), json["store"].clone(), finding.what.clone())
        };
        room(&status(), answer).iter().map(json).collect()
    }

    /// It was told of as a disk that gets full, which is no reason to act.
    #[test]
    fn a_node_that_refused_a_put_for_want_of_room_is_bad_though_some_is_left() {
        let room_left = json!({
            "room_bytes": 600 << 10, "disk_available_bytes": 129 << 20, "disk_total_bytes": 1u64 << 30,
            "hint_bytes_wanted": 0,
            "stores": [{ "store": "default", "put_bytes_wanted": 1 << 20 }, { "store": "b", "put_bytes_wanted": 0 }],
        });
        let what = "n3 refuses writes of store default: its disk is full (129.0 MiB of 1.0 GiB free, 600.0 KiB above the \
                    reserve); a put of 1.0 MiB was refused";
        assert_eq!(found(&room_left), [("disk-full".to_owned(), json!("default"), what.to_owned())]);
        assert!(matches!(refuses(&room_left), Some(Refuses::Full)));
    }

    #[test]
    fn a_disk_without_room_a_disk_that_gets_full_and_one_with_room_are_told_apart() {
        let of = |room: u64| {
            let answer = json!({ "room_bytes": room, "disk_available_bytes": room + 10, "stores": [] });
            found(&answer).into_iter().map(|(code, ..)| code).collect::<Vec<_>>()
        };
        assert_eq!(of(0), ["disk-full"]);
        assert_eq!(of(ROOM_NONE_BYTES), ["disk-low"]);
        assert_eq!(of(ROOM_LOW_BYTES), Vec::<String>::new());
        let hints = json!({ "room_bytes": 1u64 << 40, "hint_bytes_wanted": 5000, "stores": [] });
        assert!(found(&hints)[0].2.starts_with("n3 refuses hints for other nodes: its disk is full ("));
    }
}
