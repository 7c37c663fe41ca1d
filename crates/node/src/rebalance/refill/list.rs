//! The list of what is incomplete, as it lies in the data directory.
//!
//! ```text
//! tontine-refill 2
//! default of 512          store, and how many of its partitions were lost
//! default 17              store and partition that is not whole yet, one a line
//! checksum 5f2c...        (XXH3-64 of all lines before)
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use model::PartitionId;
use protocol::antientropy::Ledger;
use runtime::{Disk, DiskError};

use super::Refill;

/// The file below the data directory.
const FILE: &str = "refill";
const HEAD: &str = "tontine-refill 2\n";
/// Between a store and the number of its partitions that were lost.
const OF: &str = "of ";

impl Refill {
    fn encode(&self) -> String {
        let mut text = HEAD.to_owned();
        for (store, ledger) in &self.stores {
            text += &format!("{store} {OF}{}\n", ledger.progress().1);
            ledger.incomplete().for_each(|partition| text += &format!("{store} {}\n", partition.0));
        }
        let check = model::Token::of(text.as_bytes()).0;
        text + &format!("checksum {check:016x}\n")
    }

    fn decode(text: &str) -> Option<Refill> {
        let (body, check) = text.split_at_checked(text.rfind("checksum ")?)?;
        if check.trim_end() != format!("checksum {:016x}", model::Token::of(body.as_bytes()).0) {
            return None;
        }
        let mut stores: BTreeMap<String, (usize, Vec<PartitionId>)> = BTreeMap::new();
        for line in body.strip_prefix(HEAD)?.lines() {
            let (store, what) = line.split_once(' ')?;
            let (total, incomplete) = stores.entry(store.to_owned()).or_default();
            match what.strip_prefix(OF) {
                Some(count) => *total = count.parse().ok()?,
                None => incomplete.push(PartitionId(what.parse().ok()?)),
            }
        }
        let resumed = |(total, incomplete)| Ledger::resumed(incomplete, total);
        let stores = stores.into_iter().map(|(store, read)| (store, resumed(read)));
        Some(Refill { stores: stores.collect(), ..Refill::default() })
    }

    /// What an earlier start left to do. A file that cannot be read counts as everything: `None` inside.
    pub(crate) fn load(disk: &dyn Disk) -> Result<Option<Option<Refill>>, DiskError> {
        let file = match disk.open(FILE) {
            Ok(file) => file,
            Err(DiskError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; usize::try_from(file.length()).unwrap_or(0)];
        let read = file.read_at(0, &mut bytes)?;
        bytes.truncate(read);
        Ok(Some(String::from_utf8(bytes).ok().as_deref().and_then(Refill::decode)))
    }

    /// Remembers what is left to do; nothing left removes the file.
    pub(crate) async fn save(disk: Arc<dyn Disk>, text: Option<String>) -> Result<(), DiskError> {
        let temporary = format!("{FILE}.new");
        for path in [Some(&*temporary), text.is_none().then_some(FILE)].into_iter().flatten() {
            match disk.remove(path) {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(text) = text {
            let file = disk.create(&temporary)?;
            file.append(text.as_bytes())?;
            file.sync().await?;
            disk.rename(&temporary, FILE)?;
        }
        disk.sync_directory("").await
    }

    /// What [`Refill::save`] writes: nothing when all is whole.
    pub(crate) fn text(&self) -> Option<String> {
        (self.progress().0 > 0).then(|| self.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_partitions_to_refill_survives_as_text_and_damage_is_noticed() {
        let mut refill = Refill::default();
        refill.stores.insert("carts".to_owned(), Ledger::new([PartitionId(3), PartitionId(17)]));
        refill.stores.insert("users".to_owned(), Ledger::new([PartitionId(3)]));
        let text = refill.text().expect("something is left");
        let again = Refill::decode(&text).expect("it is as it was written");
        assert_eq!(again.text(), Some(text.clone()));
        assert_eq!(again.incomplete("carts"), [PartitionId(3), PartitionId(17)]);
        let resumed = Refill::decode(&{
            let mut refill = Refill::default();
            refill.stores.insert("carts".to_owned(), Ledger::resumed([PartitionId(17)], 2));
            refill.text().expect("something is left")
        });
        assert_eq!(resumed.expect("it is as it was written").progress(), (1, 2), "it goes on where it was");
        assert!(Refill::decode(&text.replace("17", "18")).is_none());
        assert!(Refill::decode("").is_none());
        assert_eq!(Refill::default().text(), None);
    }
}
