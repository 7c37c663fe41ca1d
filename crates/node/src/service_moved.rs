//! Where the cluster's documents went, as this node's data directory remembers it: a command line that names the service
//! that they have left leads to the one that they are in, also when the old service is no more.
//!
//! Must never: lead away from a service that is in force.

use std::sync::Arc;

use coordination::address::Address;
use coordination::documents::ServiceMove;
use model::Token;
use runtime::{Disk, DiskError};
use serde::{Deserialize, Serialize};

/// The file below the data directory.
const FILE: &str = "moved.json";

/// Services that the documents have left, and where they are instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ServiceLeft(Vec<Hop>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hop {
    from: String,
    to: String,
}

/// The file's contents.
#[derive(Serialize, Deserialize)]
struct Remembered {
    /// XXH3-64 of the list without white space, in hexadecimal digits.
    checksum: String,
    moved: ServiceLeft,
}

impl ServiceLeft {
    /// Takes a move in. Every service that was left leads to where the documents are now, and that one nowhere.
    fn take(&mut self, this: &ServiceMove) {
        for hop in self.0.iter_mut().filter(|hop| Address::are_same(&hop.to, &this.from)) {
            hop.to.clone_from(&this.to);
        }
        self.0.retain(|hop| hop.from != this.from);
        self.0.push(Hop { from: this.from.clone(), to: this.to.clone() });
        self.0.retain(|hop| hop.from != this.to && hop.from != hop.to);
    }
}

fn checksum(left: &ServiceLeft) -> String {
    format!("{:016x}", Token::of(&serde_json::to_vec(left).expect("a list is plain data")).0)
}

fn read(disk: &dyn Disk) -> Option<ServiceLeft> {
    let file = disk.open(FILE).ok()?;
    let mut bytes = vec![0; usize::try_from(file.length()).ok()?];
    let read = file.read_at(0, &mut bytes).ok()?;
    let found: Remembered = serde_json::from_slice(&bytes[..read]).ok()?;
    (found.checksum == checksum(&found.moved)).then_some(found.moved)
}

/// Where the documents are that were once at `address`, however that names the service; `None` when the directory knows
/// nothing of a move from there.
pub fn recall(disk: &dyn Disk, address: &str) -> Option<String> {
    let left = read(disk)?.0;
    // They may have come to it from one that had a server of the same name.
    if left.iter().any(|hop| hop.to == address) {
        return None;
    }
    let exactly = left.iter().find(|hop| hop.from == address);
    exactly
        .or_else(|| left.iter().find(|hop| Address::are_same(&hop.from, address)))
        .map(|hop| hop.to.clone())
}

/// Remembers a move, durably. `own` is the address of what was left as the node's command line writes it: whoever ordered
/// the move may name the service otherwise.
///
/// # Errors
/// What the disk refuses.
pub async fn remember(disk: Arc<dyn Disk>, this: &ServiceMove, own: &str) -> Result<(), DiskError> {
    let mut left = read(&*disk).unwrap_or_default();
    left.take(this);
    left.take(&ServiceMove { from: own.to_owned(), ..this.clone() });
    let temporary = format!("{FILE}.new");
    match disk.remove(&temporary) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let file = disk.create(&temporary)?;
    let remembered = Remembered { checksum: checksum(&left), moved: left };
    file.append(&serde_json::to_vec_pretty(&remembered).expect("a list is plain data"))?;
    file.sync().await?;
    disk.rename(&temporary, FILE)?;
    disk.sync_directory("").await
}

#[cfg(test)]
mod tests {
    use runtime::disk::simulated::SimulatedDisk;

    use super::*;

    fn step(from: &str, to: &str) -> ServiceMove {
        let text = |text: &str| text.to_owned();
        ServiceMove { name: text("shop"), from: text(from), to: text(to), attempt: text("1") }
    }

    /// A node did not find its documents when the old ensemble was gone, because it named the servers otherwise than
    /// whoever had moved them.
    #[tokio::test]
    async fn a_move_is_recognised_however_the_command_line_names_the_old_service() {
        let disk = SimulatedDisk::new(1);
        let (old, new) = ("zookeeper://h1:2181,h2:2181/a", "zookeeper://h9:2181/a");
        remember(Arc::new(disk.clone()), &step(old, new), "zookeeper://10.0.0.1:2181/a").await.unwrap();
        for named in [old, "zookeeper://h2:2181/a", "zookeeper://10.0.0.1:2181/a"] {
            assert_eq!(recall(&disk, named).as_deref(), Some(new), "{named}");
        }
        for named in [new, "zookeeper://h1:2181/b", "zookeeper://h3:2181/a"] {
            assert_eq!(recall(&disk, named), None, "{named}");
        }
        // They move on, to an ensemble that has a server of the first one.
        let last = "zookeeper://h2:2181,h3:2181/a";
        let disk_now: Arc<dyn Disk> = Arc::new(disk.clone());
        remember(disk_now, &step("zookeeper://h9:2181,h8:2181/a", last), new).await.unwrap();
        assert_eq!(
            [old, new].map(|named| recall(&disk, named)),
            [Some(last.to_owned()), Some(last.to_owned())]
        );
        assert_eq!(recall(&disk, last), None);
    }

    #[tokio::test]
    async fn every_abandoned_service_leads_to_the_current_one() {
        let disk = SimulatedDisk::new(1);
        let recalled = |disk: &SimulatedDisk| ["a", "b", "c"].map(|from| recall(disk, from));
        let some = |to: &str| Some(to.to_owned());
        for (from, to, expected) in [
            ("a", "b", [some("b"), None, None]),
            ("a", "b", [some("b"), None, None]),
            ("b", "c", [some("c"), some("c"), None]),
            ("c", "a", [None, some("a"), some("a")]),
            ("a", "c", [some("c"), some("c"), None]),
        ] {
            remember(Arc::new(disk.clone()), &step(from, to), from).await.unwrap();
            assert_eq!(recalled(&disk), expected, "after {from} to {to}");
            disk.crash(7);
            assert_eq!(recalled(&disk), expected, "and after a power cut");
        }
        let digit = String::from_utf8(disk.contents(FILE).unwrap()).unwrap().find("\"c\"").unwrap();
        disk.flip_bit(FILE, digit as u64 + 1, 0);
        assert_eq!(recalled(&disk), [None, None, None], "a damaged list is none");
    }
}
