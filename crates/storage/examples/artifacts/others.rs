//! Ways to find a key that we did not take, or that others ship: a minimal perfect hash, and LMDB. And what no way can be
//! quicker than: an array whose positions are known.

use std::path::Path;

use boomphf::Mphf;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, WithoutTls};
use model::Token;

use super::{KEY_BYTES, Lookups, key, value};

/// A minimal perfect hash (BBHash): a number for each key, which leads to 16 bits of fingerprint and 32 of position.
/// Key and value lie one after the other; no checksums.
pub(crate) struct PerfectHash {
    numbers: Mphf<u64>,
    slots: Vec<(u16, u32)>,
    records: Vec<u8>,
    record_bytes: usize,
}

impl PerfectHash {
    pub(crate) fn build(records: u64, value_bytes: usize, pool: &[u8]) -> PerfectHash {
        let mut hashes: Vec<(u64, u64)> =
            (0..records).map(|number| (Token::of(&key(2 * number)).0, number)).collect();
        hashes.sort_unstable();
        let keys: Vec<u64> = hashes.iter().map(|(hash, _)| *hash).collect();
        let numbers = Mphf::new(1.7, &keys);
        let mut slots = vec![(0, 0); keys.len()];
        let mut bytes = Vec::with_capacity(keys.len() * (KEY_BYTES + value_bytes));
        for (position, (hash, number)) in hashes.iter().enumerate() {
            slots[numbers.hash(hash) as usize] = (*hash as u16, position as u32);
            bytes.extend_from_slice(&key(2 * *number));
            bytes.extend_from_slice(value(pool, *number, value_bytes));
        }
        PerfectHash { numbers, slots, records: bytes, record_bytes: KEY_BYTES + value_bytes }
    }
}

impl Lookups for PerfectHash {
    fn get(&self, key: &[u8; KEY_BYTES], out: &mut Vec<u8>) -> bool {
        let hash = Token::of(key).0;
        let Some(number) = self.numbers.try_hash(&hash) else { return false };
        let (fingerprint, position) = self.slots[number as usize];
        if fingerprint != hash as u16 {
            return false;
        }
        let at = position as usize * self.record_bytes;
        let record = &self.records[at..at + self.record_bytes];
        let there = record[..KEY_BYTES] == key[..];
        if there {
            out.extend_from_slice(&record[KEY_BYTES..]);
        }
        there
    }

    fn resident_bytes(&self) -> u64 {
        // Six bytes for each slot, and 2.4 to 3 bits for the function, as its authors say.
        self.slots.len() as u64 * 6 + self.slots.len() as u64 * 3 / 8
    }
}

/// Records in memory whose position is known from the key: one touch of memory for each lookup, and nothing to search.
pub(crate) struct Array {
    records: Vec<u8>,
    record_bytes: usize,
}

impl Array {
    pub(crate) fn build(records: u64, value_bytes: usize, pool: &[u8]) -> Array {
        let mut bytes = Vec::with_capacity(records as usize * (KEY_BYTES + value_bytes));
        for number in 0..records {
            bytes.extend_from_slice(&key(2 * number));
            bytes.extend_from_slice(value(pool, number, value_bytes));
        }
        Array { records: bytes, record_bytes: KEY_BYTES + value_bytes }
    }
}

impl Lookups for Array {
    fn get(&self, key: &[u8; KEY_BYTES], out: &mut Vec<u8>) -> bool {
        let number = key[4..].iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
        let record = &self.records[number / 2 * self.record_bytes..][..self.record_bytes];
        let there = record[..KEY_BYTES] == key[..];
        if there {
            out.extend_from_slice(&record[KEY_BYTES..]);
        }
        there
    }

    fn resident_bytes(&self) -> u64 {
        0
    }
}

/// LMDB, filled in the order of keys, read in one transaction, without locks or reading ahead.
pub(crate) struct Lmdb {
    database: Database<Bytes, Bytes>,
    transaction: RoTxn<'static, WithoutTls>,
}

impl Lmdb {
    pub(crate) fn build(directory: &Path, records: u64, value_bytes: usize, pool: &[u8]) -> Lmdb {
        std::fs::create_dir_all(directory).unwrap();
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(64 << 30);
        // SAFETY: nobody else opens the directory, and its file is written by this program alone.
        let env: Env<WithoutTls> = unsafe {
            options
                .flags(EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD | EnvFlags::NO_LOCK)
                .open(directory)
                .unwrap()
        };
        let mut writing = env.write_txn().unwrap();
        let database: Database<Bytes, Bytes> = env.create_database(&mut writing, None).unwrap();
        for number in 0..records {
            let value = value(pool, number, value_bytes);
            database.put_with_flags(&mut writing, PutFlags::APPEND, &key(2 * number), value).unwrap();
        }
        writing.commit().unwrap();
        Lmdb { database, transaction: env.static_read_txn().unwrap() }
    }
}

impl Lookups for Lmdb {
    fn get(&self, key: &[u8; KEY_BYTES], out: &mut Vec<u8>) -> bool {
        let found = self.database.get(&self.transaction, key).unwrap();
        found.inspect(|value| out.extend_from_slice(value)).is_some()
    }

    fn resident_bytes(&self) -> u64 {
        0
    }
}
