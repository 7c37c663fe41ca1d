//! Where the cluster's documents went, as this node's data directory remembers it: a command line that names the service
//! that they have left leads to the one that they are in, also when the old service is no more.
//!
//! Must never: lead away from a service that is in force.

use std::sync::Arc;

use coordination::documents::Move;
use model::Token;
use runtime::{Disk, DiskError};
use serde::{Deserialize, Serialize};

/// The file below the data directory.
const FILE: &str = "moved.json";

/// Services that the documents have left, and where they are instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Left(Vec<Hop>);

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
    moved: Left,
}

impl Left {
    /// Takes a move in. Every service that was left leads to where the documents are now, and that one nowhere.
    fn take(&mut self, this: &Move) {
        for hop in self.0.iter_mut().filter(|hop| hop.to == this.from) {
            hop.to.clone_from(&this.to);
        }
        self.0.retain(|hop| hop.from != this.from);
        self.0.push(Hop { from: this.from.clone(), to: this.to.clone() });
        self.0.retain(|hop| hop.from != this.to && hop.from != hop.to);
    }
}

fn checksum(left: &Left) -> String {
    format!("{:016x}", Token::of(&serde_json::to_vec(left).expect("a list is plain data")).0)
}

fn read(disk: &dyn Disk) -> Option<Left> {
    let file = disk.open(FILE).ok()?;
    let mut bytes = vec![0; usize::try_from(file.length()).ok()?];
    let read = file.read_at(0, &mut bytes).ok()?;
    let found: Remembered = serde_json::from_slice(&bytes[..read]).ok()?;
    (found.checksum == checksum(&found.moved)).then_some(found.moved)
}

/// Where the documents are that were once at `address`; `None` when the directory knows nothing of a move from there.
pub fn recall(disk: &dyn Disk, address: &str) -> Option<String> {
    let left = read(disk)?;
    left.0.into_iter().find(|hop| hop.from == address).map(|hop| hop.to)
}

/// Remembers a move, durably.
///
/// # Errors
/// What the disk refuses.
pub async fn remember(disk: Arc<dyn Disk>, this: &Move) -> Result<(), DiskError> {
    let mut left = read(&*disk).unwrap_or_default();
    left.take(this);
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

    fn step(from: &str, to: &str) -> Move {
        let text = |text: &str| text.to_owned();
        Move { name: text("shop"), from: text(from), to: text(to), attempt: text("1") }
    }

    #[tokio::test]
    async fn every_service_that_was_left_leads_to_the_one_in_force() {
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
            remember(Arc::new(disk.clone()), &step(from, to)).await.unwrap();
            assert_eq!(recalled(&disk), expected, "after {from} to {to}");
            disk.crash(7);
            assert_eq!(recalled(&disk), expected, "and after a power cut");
        }
        let digit = String::from_utf8(disk.contents(FILE).unwrap()).unwrap().find("\"c\"").unwrap();
        disk.flip_bit(FILE, digit as u64 + 1, 0);
        assert_eq!(recalled(&disk), [None, None, None], "a damaged list is none");
    }
}
