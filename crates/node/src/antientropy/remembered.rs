//! Hash trees from a clean stop to the next start.
//!
//! ```text
//! tontine-trees 1\n
//! stores u32, for each: name (u32 length, bytes), trees u32, for each:
//!     partition u32, first u64, last u64, bits u8, records u64, leaves u32, 16 bytes a leaf
//! XXH3-64 of everything before
//! ```
//!
//! Numbers are little endian. The file is written when all stores are closed and removed, durably, before any is
//! opened: one that is there belongs to the records that are there. What cannot be read is forgotten, trees can be
//! counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, BufMut};
use model::{PartitionId, Token};
use protocol::antientropy::merkle::{Digest, Tree};
use runtime::{Disk, DiskError};

use crate::stores::LocalStore;

/// The file below the data directory.
const FILE: &str = "trees";
const HEAD: &[u8] = b"tontine-trees 1\n";

/// The trees of each store.
pub(crate) type Remembered = BTreeMap<String, BTreeMap<PartitionId, Tree>>;

/// Takes the trees of the last clean stop, if that was the last that happened here. Nobody finds them again.
pub(crate) async fn recall(disk: &dyn Disk) -> Result<Remembered, DiskError> {
    let file = match disk.open(FILE) {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(Remembered::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; usize::try_from(file.length()).unwrap_or(0)];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    drop(file);
    disk.remove(FILE)?;
    disk.sync_directory("").await?;
    let remembered = decode(&bytes);
    if remembered.is_none() {
        tracing::warn!("hash trees of the last stop cannot be read; they are counted anew");
    }
    Ok(remembered.unwrap_or_default())
}

/// Remembers the trees of closed stores.
pub(crate) async fn remember(disk: Arc<dyn Disk>, stores: &[Arc<LocalStore>]) -> Result<(), DiskError> {
    let bytes = encode(stores);
    let temporary = format!("{FILE}.new");
    match disk.remove(&temporary) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let file = disk.create(&temporary)?;
    file.append(&bytes)?;
    file.sync().await?;
    disk.rename(&temporary, FILE)?;
    disk.sync_directory("").await
}

fn encode(stores: &[Arc<LocalStore>]) -> Vec<u8> {
    let mut bytes = HEAD.to_vec();
    bytes.put_u32_le(stores.len() as u32);
    for store in stores {
        let name = store.definition().name.as_str();
        bytes.put_u32_le(name.len() as u32);
        bytes.put_slice(name.as_bytes());
        let trees = store.trees().counted();
        bytes.put_u32_le(trees.len() as u32);
        for (partition, tree) in trees {
            let tokens = tree.tokens();
            bytes.put_u32_le(partition.0);
            bytes.put_u64_le(tokens.start().0);
            bytes.put_u64_le(tokens.end().0);
            bytes.put_u8(tree.bits().unwrap_or(0));
            bytes.put_u64_le(tree.records().unwrap_or(0));
            let leaves = tree.leaves().unwrap_or(&[]);
            bytes.put_u32_le(leaves.len() as u32);
            leaves.iter().for_each(|leaf| bytes.put_u128_le(leaf.0));
        }
    }
    bytes.put_u64_le(Token::of(&bytes).0);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Remembered> {
    let (body, mut check) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    if check.get_u64_le() != Token::of(body).0 {
        return None;
    }
    let mut rest = body.strip_prefix(HEAD)?;
    let mut remembered = Remembered::new();
    for _ in 0..rest.try_get_u32_le().ok()? {
        let length = rest.try_get_u32_le().ok()? as usize;
        let (name, after) = rest.split_at_checked(length)?;
        rest = after;
        let mut trees = BTreeMap::new();
        for _ in 0..rest.try_get_u32_le().ok()? {
            let (partition, tree) = decode_tree(&mut rest)?;
            trees.insert(partition, tree);
        }
        remembered.insert(String::from_utf8(name.to_vec()).ok()?, trees);
    }
    rest.is_empty().then_some(remembered)
}

fn decode_tree(rest: &mut &[u8]) -> Option<(PartitionId, Tree)> {
    let partition = PartitionId(rest.try_get_u32_le().ok()?);
    let tokens = Token(rest.try_get_u64_le().ok()?)..=Token(rest.try_get_u64_le().ok()?);
    let bits = rest.try_get_u8().ok()?;
    let records = rest.try_get_u64_le().ok()?;
    let count = rest.try_get_u32_le().ok()? as usize;
    if rest.len() / 16 < count {
        return None;
    }
    let leaves = (0..count).map(|_| Digest(rest.get_u128_le())).collect();
    Some((partition, Tree::restored(&tokens, bits, leaves, records)?))
}

#[cfg(test)]
mod tests {
    use model::{Consistency, NodeId, Ring, Store, StoreName, Zone};
    use runtime::clock::os::OsClock;
    use storage::MemoryEngine;

    use super::*;
    use crate::stores::{KeyPlace, Stamper};

    fn store(name: &str, keys: u32) -> Arc<LocalStore> {
        let two = Consistency { replicas: 2, reads_required: 1, writes_required: 1 };
        let definition = Store::new(StoreName::new(name).unwrap(), two).unwrap();
        let stamper = Arc::new(Stamper::new(NodeId(1), 1, 0, Arc::new(OsClock::new())));
        let store = LocalStore::new(definition, Arc::new(MemoryEngine::new()), stamper);
        let ring = Ring::equal_slices(2, &[(NodeId(1), Zone("z".to_owned()))]);
        store.shape(&ring);
        for number in 0..keys {
            let key = number.to_be_bytes();
            let token = Token::of(&key);
            let partition = PartitionId((token.0 >> 63) as u32);
            store.overwrite(KeyPlace { partition, token }, &key, b"value").unwrap();
        }
        Arc::new(store)
    }

    #[test]
    fn trees_are_read_as_they_were_written_and_damage_is_noticed() {
        let stores = [store("carts", 20), store("users", 0)];
        let bytes = encode(&stores);
        let remembered = decode(&bytes).expect("it is as it was written");
        assert_eq!(remembered.keys().collect::<Vec<_>>(), ["carts", "users"]);
        for store in &stores {
            let known = &remembered[store.definition().name.as_str()];
            let counted = store.trees().counted();
            assert_eq!((known.len(), counted.len()), (2, 2));
            for (partition, tree) in counted {
                let known = &known[&partition];
                assert_eq!(
                    (known.tokens(), known.sum(), known.records(), known.leaves()),
                    (tree.tokens(), tree.sum(), tree.records(), tree.leaves())
                );
            }
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(decode(&damaged).is_none() && decode(&bytes[..at]).is_none(), "byte {at}");
        }
    }

    /// The number of leaves is believed only as far as there are bytes for them.
    #[test]
    fn a_tree_with_fewer_leaves_than_it_names_is_not_read() {
        let (stores, head) = ([store("carts", 20)], HEAD.len() + 4 + 4 + "carts".len() + 4);
        let bytes = encode(&stores);
        let (_, tree) = stores[0].trees().counted().swap_remove(0);
        let length = 4 + 8 + 8 + 1 + 8 + 4 + 16 * tree.leaves().unwrap().len();
        let whole = &bytes[head..head + length];
        let mut rest = whole;
        assert_eq!(
            decode_tree(&mut rest).map(|(id, tree)| (id, tree.sum())),
            Some((PartitionId(0), tree.sum()))
        );
        assert!(rest.is_empty(), "to its end, and no further");
        for at in 0..length {
            assert!(decode_tree(&mut &whole[..at]).is_none(), "{at} bytes");
        }
    }
}
