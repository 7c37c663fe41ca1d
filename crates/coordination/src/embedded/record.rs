//! Records of the log as bytes.
//!
//! ```text
//! mark (4) | body length (4) | checksum of the body (8) | body: kind (1), fields
//! ```
//!
//! Numbers are little endian; texts and contents are preceded by their length in four bytes. A record is valid only
//! as a whole: what is cut off or flipped anywhere fails the checksum.
//!
//! All changes of one turn are one record. The disk may keep any part of what was not synced when the power fails,
//! the end without the beginning too; as nothing is appended before the last turn is synced, at most one record, the
//! last, can be incomplete. The mark makes it quick to see that nothing valid follows it.

use bytes::{Buf, BufMut, Bytes};
use xxhash_rust::xxh3::xxh3_64;

use crate::tree::{Entry, TreeChange};
use crate::{
    CreationOrder, DOCUMENT_BYTES_MAX, DocumentPath, DocumentVersion, PATH_BYTES_MAX, SessionId, Stat,
};

/// Bytes before the body.
const PREFIX: usize = 16;

/// The first bytes of every record.
const MARK: [u8; 4] = *b"\xf5TC\n";

/// Most requests of one turn: with documents at their limit a turn still fits into memory and a few seconds.
pub(super) const TURN_REQUESTS_MAX: usize = 64;

/// Most open sessions, so that the start of a snapshot, and a turn that ends them all, fit into one record.
pub(super) const SESSIONS_MAX: usize = 100_000;

/// Longest body: a turn of documents at their limits and a bit.
const BODY_BYTES_MAX: usize =
    TURN_REQUESTS_MAX * (DOCUMENT_BYTES_MAX + 2 * PATH_BYTES_MAX) + 16 * SESSIONS_MAX;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TreeRecord {
    /// The first record: what follows are the documents as they were after `order` changes.
    Snapshot {
        /// Changes that the snapshot contains.
        order: u64,
        /// Open sessions.
        sessions: Vec<SessionId>,
        /// How many documents follow, each in one record.
        entries: u64,
    },
    /// One document of the snapshot.
    Entry {
        /// Its path.
        path: DocumentPath,
        /// All else.
        entry: Entry,
    },
    /// What one turn changed after the snapshot.
    Turn {
        /// Number of the first change: one more than that of the last one before.
        first: u64,
        /// What happened.
        changes: Vec<TreeChange>,
    },
}

/// What is at a place of the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// A valid record and the bytes that it takes.
    Record(TreeRecord, usize),
    /// Nothing: the log ends here.
    End,
    /// Bytes that are no valid record.
    Invalid,
}

/// Appends a record's bytes.
pub(super) fn encode(record: &TreeRecord, output: &mut Vec<u8>) {
    let start = output.len();
    output.put_bytes(0, PREFIX);
    match record {
        TreeRecord::Snapshot { order, sessions, entries } => {
            output.put_u8(1);
            output.put_u64_le(*order);
            output.put_u64_le(*entries);
            put_length(sessions.len(), output);
            sessions.iter().for_each(|session| output.put_u64_le(session.0));
        }
        TreeRecord::Entry { path, entry } => {
            output.put_u8(2);
            put_bytes(path.as_str().as_bytes(), output);
            put_bytes(&entry.data, output);
            output.put_u32_le(entry.version.0);
            output.put_u64_le(entry.created.0);
            put_owner(entry.owner, output);
            output.put_u64_le(entry.sequence);
            output.put_u64_le(entry.list_version);
        }
        TreeRecord::Turn { first, changes } => {
            output.put_u8(3);
            output.put_u64_le(*first);
            put_length(changes.len(), output);
            changes.iter().for_each(|change| encode_change(change, output));
        }
    }
    let body = &output[start + PREFIX..];
    let (length, checksum) = (body.len(), xxh3_64(body));
    assert!(length <= BODY_BYTES_MAX, "the limits on documents and sessions bound every record");
    let mut prefix = &mut output[start..start + PREFIX];
    prefix.put_slice(&MARK);
    prefix.put_u32_le(u32::try_from(length).expect("bounded above"));
    prefix.put_u64_le(checksum);
}

fn encode_change(change: &TreeChange, output: &mut Vec<u8>) {
    let kind = match change {
        TreeChange::Created { .. } => 16,
        TreeChange::Set { .. } => 17,
        TreeChange::Deleted { .. } => 18,
        TreeChange::SessionOpened { .. } => 19,
        TreeChange::SessionEnded { .. } => 20,
    };
    output.put_u8(kind);
    match change {
        TreeChange::Created { path, data, owner } => {
            put_bytes(path.as_str().as_bytes(), output);
            put_bytes(data, output);
            put_owner(*owner, output);
        }
        TreeChange::Set { path, data } => {
            put_bytes(path.as_str().as_bytes(), output);
            put_bytes(data, output);
        }
        TreeChange::Deleted { path } => put_bytes(path.as_str().as_bytes(), output),
        TreeChange::SessionOpened { session } | TreeChange::SessionEnded { session } => {
            output.put_u64_le(session.0)
        }
    }
}

fn put_length(length: usize, output: &mut Vec<u8>) {
    output.put_u32_le(u32::try_from(length).expect("limits keep every field below four gigabytes"));
}

fn put_bytes(bytes: &[u8], output: &mut Vec<u8>) {
    put_length(bytes.len(), output);
    output.put_slice(bytes);
}

/// Sessions count from 1, so that 0 can mean none.
fn put_owner(owner: Option<SessionId>, output: &mut Vec<u8>) {
    output.put_u64_le(owner.map_or(0, |session| session.0));
}

/// What is at the beginning of `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Parsed {
    if bytes.is_empty() {
        return Parsed::End;
    }
    let Some((prefix, rest)) = bytes.split_at_checked(PREFIX) else { return Parsed::Invalid };
    let Some(mut prefix) = prefix.strip_prefix(&MARK) else { return Parsed::Invalid };
    let (length, checksum) = (prefix.get_u32_le() as usize, prefix.get_u64_le());
    if length > BODY_BYTES_MAX || rest.len() < length || length == 0 {
        return Parsed::Invalid;
    }
    let body = &rest[..length];
    if xxh3_64(body) != checksum {
        return Parsed::Invalid;
    }
    decode(body).map_or(Parsed::Invalid, |record| Parsed::Record(record, PREFIX + length))
}

fn decode(mut body: &[u8]) -> Option<TreeRecord> {
    let input = &mut body;
    let kind = input.try_get_u8().ok()?;
    let record = match kind {
        1 => {
            let order = input.try_get_u64_le().ok()?;
            let entries = input.try_get_u64_le().ok()?;
            let count = input.try_get_u32_le().ok()?;
            let sessions = (0..count).map(|_| input.try_get_u64_le().ok().map(SessionId));
            TreeRecord::Snapshot { order, entries, sessions: sessions.collect::<Option<_>>()? }
        }
        2 => {
            let (path, data) = (take_path(input)?, take_bytes(input)?);
            let version = DocumentVersion(input.try_get_u32_le().ok()?);
            let created = CreationOrder(input.try_get_u64_le().ok()?);
            let stat = Stat { version, created, owner: take_owner(input)? };
            let (sequence, list_version) = (input.try_get_u64_le().ok()?, input.try_get_u64_le().ok()?);
            TreeRecord::Entry { path, entry: Entry::new(data, stat, sequence, list_version) }
        }
        3 => {
            let first = input.try_get_u64_le().ok()?;
            let count = input.try_get_u32_le().ok()?;
            let changes = (0..count).map(|_| decode_change(input)).collect::<Option<_>>()?;
            TreeRecord::Turn { first, changes }
        }
        _ => return None,
    };
    input.is_empty().then_some(record)
}

fn decode_change(input: &mut &[u8]) -> Option<TreeChange> {
    Some(match input.try_get_u8().ok()? {
        16 => TreeChange::Created {
            path: take_path(input)?,
            data: take_bytes(input)?,
            owner: take_owner(input)?,
        },
        17 => TreeChange::Set { path: take_path(input)?, data: take_bytes(input)? },
        18 => TreeChange::Deleted { path: take_path(input)? },
        19 => TreeChange::SessionOpened { session: SessionId(input.try_get_u64_le().ok()?) },
        20 => TreeChange::SessionEnded { session: SessionId(input.try_get_u64_le().ok()?) },
        _ => return None,
    })
}

fn take_bytes(input: &mut &[u8]) -> Option<Bytes> {
    let length = input.try_get_u32_le().ok()? as usize;
    let (taken, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(Bytes::copy_from_slice(taken))
}

fn take_path(input: &mut &[u8]) -> Option<DocumentPath> {
    let bytes = take_bytes(input)?;
    DocumentPath::recorded(std::str::from_utf8(&bytes).ok()?).ok()
}

fn take_owner(input: &mut &[u8]) -> Option<Option<SessionId>> {
    let owner = input.try_get_u64_le().ok()?;
    Some((owner != 0).then_some(SessionId(owner)))
}

/// Whether the record of a later turn begins anywhere in `bytes`, where that of change `missing` should be: then what
/// comes before it is damage, not an unfinished end. Records of earlier turns do not count: a document may hold a copy
/// of them.
pub(super) fn holds_later_turn(bytes: &[u8], missing: u64) -> bool {
    let mut starts = (0..bytes.len()).filter(|start| bytes[*start..].starts_with(&MARK));
    starts.any(|start| {
        matches!(parse(&bytes[start..]), Parsed::Record(TreeRecord::Turn { first, .. }, _) if first > missing)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<TreeRecord> {
        let path = DocumentPath::new("/config/cluster").unwrap();
        let data = Bytes::from_static(b"{}");
        let stat = Stat { version: DocumentVersion(3), created: CreationOrder(4), owner: Some(SessionId(5)) };
        let changes = [
            TreeChange::Created { path: path.clone(), data: data.clone(), owner: None },
            TreeChange::Set { path: path.clone(), data: data.clone() },
            TreeChange::Deleted { path: path.clone() },
            TreeChange::SessionOpened { session: SessionId(9) },
            TreeChange::SessionEnded { session: SessionId(9) },
        ];
        vec![
            TreeRecord::Snapshot { order: 7, sessions: vec![SessionId(1), SessionId(5)], entries: 1 },
            TreeRecord::Entry { path, entry: Entry::new(data, stat, 6, 8) },
            TreeRecord::Turn { first: 8, changes: changes.to_vec() },
            TreeRecord::Turn { first: 9, changes: changes[..1].to_vec() },
        ]
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for record in examples() {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            assert_eq!(parse(&bytes), Parsed::Record(record, bytes.len()));
        }
    }

    #[test]
    fn a_record_cut_off_or_flipped_anywhere_is_invalid() {
        for record in examples() {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            for length in 1..bytes.len() {
                assert_eq!(parse(&bytes[..length]), Parsed::Invalid, "{record:?} cut at {length}");
            }
            for bit in 0..bytes.len() * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(parse(&bytes), Parsed::Invalid, "{record:?} flipped at {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    /// The bytes on disk are a promise to newer versions: change them only together with the format version.
    #[test]
    fn the_bytes_of_a_record_stay_as_they_are() {
        let mut bytes = Vec::new();
        let path = DocumentPath::new("/a").unwrap();
        let change = TreeChange::Created { path, data: Bytes::from_static(b"x"), owner: Some(SessionId(2)) };
        encode(&TreeRecord::Turn { first: 3, changes: vec![change] }, &mut bytes);
        let body = b"\x03\x03\0\0\0\0\0\0\0\x01\0\0\0\x10\x02\0\0\0/a\x01\0\0\0x\x02\0\0\0\0\0\0\0";
        assert_eq!(bytes[..8], *b"\xf5TC\n\x21\0\0\0");
        assert_eq!(bytes[8..16], xxh3_64(body).to_le_bytes());
        assert_eq!(&bytes[16..], body);
    }
}
