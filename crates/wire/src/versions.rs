//! Versions as bytes: vectors, contexts, sets, and the record that a node stores for a key.
//!
//! Nearly every set has one vector entry and one version whose dot is that entry. Such a *single* set has a form of
//! its own, in which the actor is written once and the value follows a dozen bytes of facts; all others take the
//! general form. Which one is told by the first byte, and every set has exactly one encoding.
//!
//! ```text
//! single    header  timestamp 8  [expires]  node incarnation birth count  [length value]
//! general   header  [own]  vector  versions × (entry count timestamp 8 flags [expires] [length])  values…
//!
//! header    low 4 bits: format, 1.  0x10 the set is a record whose node stamps under an entry of the vector
//!           0x20 single    0x40 single and not deleted    0x80 single and expires
//! ```
//!
//! A record and a set differ only in *own*, so what a disk holds can be put on the network.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use model::{Actor, Context, Dot, NodeId, Timestamp, Value, Vector, Version, VersionSet, WallMillis};
use smallvec::SmallVec;

use crate::codec::{Field, Reader, put_varint, varint_bytes};
use crate::decode_error::DecodeError;

/// The format that this program writes; a later one would have another number in the same bits.
const FORMAT: u8 = 1;
const FORMAT_MASK: u8 = 0x0f;
const OWN: u8 = 0x10;
const SINGLE: u8 = 0x20;
const PRESENT: u8 = 0x40;
const EXPIRES: u8 = 0x80;

/// Flags of one version in the general form.
const VERSION_PRESENT: u8 = 1;
const VERSION_EXPIRES: u8 = 2;

/// What a node stores for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The entry of the set's vector under which this node stamps its next write, if it may go on with one.
    pub own: Option<Actor>,
    /// The key's state.
    pub set: VersionSet,
}

/// Appends a record. Reserves once, and copies each value once.
///
/// # Panics
/// When `own` has no entry in the set's vector: a node stamps only under actors that the vector counts.
pub fn encode_record(own: Option<Actor>, set: &VersionSet, out: &mut BytesMut) {
    write_set(own.map(|own| own_position(own, set)), set, out);
}

/// Exactly the bytes that [`encode_record`] appends: a buffer of this capacity keeps nothing to spare in memory.
///
/// # Panics
/// As [`encode_record`].
pub fn record_bytes(own: Option<Actor>, set: &VersionSet) -> usize {
    set_bytes(own.map(|own| own_position(own, set)), set)
}

fn own_position(own: Actor, set: &VersionSet) -> usize {
    let position = set.vector().entries().iter().position(|(actor, _)| *actor == own);
    position.expect("a node stamps under an actor that the vector counts")
}

/// Reads a record; values share its bytes.
pub fn decode_record(record: &Bytes) -> Result<Record, DecodeError> {
    let mut reader = Reader::new(record);
    let (own, set) = read_set(&mut reader)?;
    reader.finish()?;
    Ok(Record { own, set })
}

/// Appends a set.
pub fn encode_set(set: &VersionSet, out: &mut BytesMut) {
    write_set(None, set, out);
}

/// Reads a set; values share its bytes.
pub fn decode_set(bytes: &Bytes) -> Result<VersionSet, DecodeError> {
    let mut reader = Reader::new(bytes);
    let set = VersionSet::read(&mut reader)?;
    reader.finish()?;
    Ok(set)
}

/// Appends a context: the token that an application carries.
pub fn encode_context(context: &Context, out: &mut BytesMut) {
    context.write(out);
}

/// Reads a context.
pub fn decode_context(bytes: &Bytes) -> Result<Context, DecodeError> {
    let mut reader = Reader::new(bytes);
    let context = Context::read(&mut reader)?;
    reader.finish()?;
    Ok(context)
}

/// The value that last-write-wins shows at `now`, straight from a record or a set: `None` when there is none, or
/// the winner is deleted or expired. Allocates nothing and builds no set.
pub fn peek_winner(record: &Bytes, now: WallMillis) -> Result<Option<Bytes>, DecodeError> {
    Ok(peek_winner_at(record, now)?.map(|range| record.slice(range)))
}

/// Where in the record the value lies that [`peek_winner`] would share.
#[inline]
pub fn peek_winner_at(record: &Bytes, now: WallMillis) -> Result<Option<Range<usize>>, DecodeError> {
    let mut reader = Reader::new(record);
    let header = reader.u8()?;
    if header & (FORMAT_MASK | SINGLE) != FORMAT | SINGLE {
        return peek_general(header, reader, record.len(), now);
    }
    reader.skip(8)?;
    let expired = header & EXPIRES != 0 && reader.varint()? <= now.0;
    reader.skip_dot()?;
    if header & PRESENT == 0 {
        reader.finish()?;
        return Ok(None);
    }
    let length = reader.length()?;
    reader.skip(length)?;
    reader.finish()?;
    Ok((!expired).then(|| record.len() - length..record.len()))
}

/// What the single form says about a key's state beside the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Single {
    /// As [`Record::own`].
    pub own: Option<Actor>,
    /// The only version's event, which is also the whole vector.
    pub dot: Dot,
    /// When it was stamped.
    pub timestamp: Timestamp,
}

/// The facts of a record in the single form, for whoever is about to replace its value; `None` for the general form.
/// The value is neither looked at nor shared.
#[inline]
pub fn peek_single(record: &Bytes) -> Result<Option<Single>, DecodeError> {
    let mut reader = Reader::new(record);
    let header = reader.u8()?;
    if header & (FORMAT_MASK | SINGLE) != FORMAT | SINGLE {
        return Ok(None);
    }
    let timestamp = Timestamp::read(&mut reader)?;
    if header & EXPIRES != 0 {
        reader.skip_varint()?;
    }
    let dot = Dot::read(&mut reader)?;
    if dot.count == 0 {
        return Err(DecodeError::Invariant);
    }
    Ok(Some(Single { own: (header & OWN != 0).then_some(dot.actor), dot, timestamp }))
}

/// The record of one value that does not expire, but for the value's bytes, which follow: together they are what
/// [`encode_record`] makes of a set that holds nothing but this version. For values that are copied to their place
/// once. The actor of `dot` may be gone on with.
pub fn single_head(dot: Dot, timestamp: Timestamp, value_bytes: usize) -> SmallVec<[u8; 64]> {
    let mut bytes = [0; 64];
    bytes[0] = FORMAT | OWN | SINGLE | PRESENT;
    bytes[1..9].copy_from_slice(&timestamp.0.to_le_bytes());
    let mut length = 9;
    let Actor { node, incarnation, birth } = dot.actor;
    // Five varints of at most ten bytes each.
    for mut number in [u64::from(node.0), incarnation, birth, dot.count, value_bytes as u64] {
        while number >= 0x80 {
            bytes[length] = number as u8 | 0x80;
            number >>= 7;
            length += 1;
        }
        bytes[length] = number as u8;
        length += 1;
    }
    SmallVec::from_buf_and_len(bytes, length)
}

/// When the first value of a record expires; `None` when none does, all were deleted or have been reaped, or the record
/// is damaged. Allocates nothing and looks at no value.
pub fn peek_expiry(record: &Bytes) -> Option<WallMillis> {
    let mut reader = Reader::new(record);
    let header = reader.u8().ok()?;
    if header & (FORMAT_MASK | SINGLE) == FORMAT | SINGLE {
        let expires = header & (PRESENT | EXPIRES) == PRESENT | EXPIRES;
        reader.skip(8).ok()?;
        return expires.then(|| reader.varint().ok().map(WallMillis))?;
    }
    check_general(header).ok()?;
    if header & OWN != 0 {
        reader.skip_varint().ok()?;
    }
    for _ in 0..reader.count(ENTRY_BYTES_MIN).ok()? {
        reader.skip_dot().ok()?;
    }
    let mut first = None;
    for _ in 0..reader.count(VERSION_BYTES_MIN).ok()? {
        let head = VersionHead::read(&mut reader).ok()?;
        if let (Some(expires), Some(_)) = (head.expires, head.length) {
            first = Some(first.map_or(expires, |first: WallMillis| first.min(expires)));
        }
    }
    first
}

#[cold]
fn peek_general(
    header: u8,
    mut reader: Reader<'_>,
    record_bytes: usize,
    now: WallMillis,
) -> Result<Option<Range<usize>>, DecodeError> {
    check_general(header)?;
    if header & OWN != 0 {
        reader.skip_varint()?;
    }
    for _ in 0..reader.count(ENTRY_BYTES_MIN)? {
        reader.skip_dot()?;
    }
    let mut winner: Option<(Timestamp, u64, u64)> = None;
    let mut value: Option<(usize, usize)> = None;
    let mut values_bytes = 0_usize;
    for _ in 0..reader.count(VERSION_BYTES_MIN)? {
        let head = VersionHead::read(&mut reader)?;
        // Entries are sorted by actor, so their order is the order of the dots.
        let rank = Some((head.timestamp, head.entry, head.count));
        if rank > winner {
            winner = rank;
            let live = head.expires.is_none_or(|expires| expires > now);
            value = head.length.filter(|_| live).map(|length| (values_bytes, length));
        }
        let length = head.length.unwrap_or(0);
        values_bytes = values_bytes.checked_add(length).ok_or(DecodeError::Truncated)?;
    }
    match (reader.remaining(), value) {
        (bytes, _) if bytes < values_bytes => Err(DecodeError::Truncated),
        (bytes, _) if bytes > values_bytes => Err(DecodeError::Trailing { bytes: bytes - values_bytes }),
        (_, None) => Ok(None),
        (bytes, Some((start, length))) => {
            let start = record_bytes - bytes + start;
            Ok(Some(start..start + length))
        }
    }
}

fn check_general(header: u8) -> Result<(), DecodeError> {
    if header & FORMAT_MASK != FORMAT || header & (SINGLE | PRESENT | EXPIRES) != 0 {
        return Err(DecodeError::UnknownFormat { format: header });
    }
    Ok(())
}

/// The one version of a single set.
fn single(set: &VersionSet) -> Option<&Version> {
    match (set.vector().entries(), set.versions()) {
        ([(actor, count)], [version]) => {
            (version.dot == Dot { actor: *actor, count: *count }).then_some(version)
        }
        _ => None,
    }
}

/// Exactly the bytes that a set takes, or a record whose stamping actor is the entry `own`.
fn set_bytes(own: Option<usize>, set: &VersionSet) -> usize {
    if let Some(version) = single(set) {
        return 9 + expires_bytes(version) + dot_bytes(version.dot) + sized_value_bytes(version);
    }
    let own = own.map_or(0, |position| varint_bytes(position as u64));
    let entries = set.vector().entries();
    let vector: usize = entries.iter().map(|&(actor, count)| dot_bytes(Dot { actor, count })).sum();
    let versions: usize = set
        .versions()
        .iter()
        .map(|version| {
            let entry = varint_bytes(entry_of(set, version) as u64) + varint_bytes(version.dot.count);
            entry + 9 + expires_bytes(version) + sized_value_bytes(version)
        })
        .sum();
    let counts = varint_bytes(entries.len() as u64) + varint_bytes(set.versions().len() as u64);
    1 + own + counts + vector + versions
}

fn dot_bytes(dot: Dot) -> usize {
    let Actor { node, incarnation, birth } = dot.actor;
    [u64::from(node.0), incarnation, birth, dot.count].map(varint_bytes).iter().sum()
}

fn expires_bytes(version: &Version) -> usize {
    version.expires.map_or(0, |expires| varint_bytes(expires.0))
}

fn sized_value_bytes(version: &Version) -> usize {
    value_bytes(version).map_or(0, |value| varint_bytes(value.len() as u64) + value.len())
}

/// The position of a version's actor in its set's vector.
fn entry_of(set: &VersionSet, version: &Version) -> usize {
    let entry = set.vector().entries().iter().position(|(actor, _)| *actor == version.dot.actor);
    entry.expect("a set's vector covers its dots")
}

fn value_bytes(version: &Version) -> Option<&Bytes> {
    match &version.value {
        Value::Present(bytes) => Some(bytes),
        Value::Tombstone => None,
    }
}

fn write_set(own: Option<usize>, set: &VersionSet, out: &mut BytesMut) {
    out.reserve(set_bytes(own, set));
    let header = FORMAT | if own.is_some() { OWN } else { 0 };
    if let Some(version) = single(set) {
        write_single(header | SINGLE, version, out);
        return;
    }
    out.put_u8(header);
    if let Some(position) = own {
        put_varint(position as u64, out);
    }
    set.vector().write(out);
    put_varint(set.versions().len() as u64, out);
    for version in set.versions() {
        put_varint(entry_of(set, version) as u64, out);
        put_varint(version.dot.count, out);
        version.timestamp.write(out);
        let value = value_bytes(version);
        let present = if value.is_some() { VERSION_PRESENT } else { 0 };
        out.put_u8(present | if version.expires.is_some() { VERSION_EXPIRES } else { 0 });
        if let Some(expires) = version.expires {
            expires.write(out);
        }
        if let Some(value) = value {
            put_varint(value.len() as u64, out);
        }
    }
    for value in set.versions().iter().filter_map(value_bytes) {
        out.put_slice(value);
    }
}

fn write_single(header: u8, version: &Version, out: &mut BytesMut) {
    let value = value_bytes(version);
    let present = if value.is_some() { PRESENT } else { 0 };
    out.put_u8(header | present | if version.expires.is_some() { EXPIRES } else { 0 });
    version.timestamp.write(out);
    if let Some(expires) = version.expires {
        expires.write(out);
    }
    version.dot.write(out);
    if let Some(value) = value {
        value.write(out);
    }
}

fn read_set(reader: &mut Reader<'_>) -> Result<(Option<Actor>, VersionSet), DecodeError> {
    let header = reader.u8()?;
    if header & (FORMAT_MASK | SINGLE) == FORMAT | SINGLE {
        return read_single(header, reader);
    }
    check_general(header)?;
    let own = if header & OWN != 0 { Some(reader.varint()?) } else { None };
    let vector = Vector::read(reader)?;
    let own = match own {
        None => None,
        Some(own) => Some(entry_at(&vector, own)?.0),
    };
    let count = reader.count(VERSION_BYTES_MIN)?;
    let mut lengths: SmallVec<[usize; 4]> = SmallVec::with_capacity(count);
    let mut versions: SmallVec<[Version; 1]> = SmallVec::with_capacity(count);
    for _ in 0..count {
        let head = VersionHead::read(reader)?;
        let (actor, _) = entry_at(&vector, head.entry)?;
        // The bytes of present values follow all heads; until then the value is empty.
        let value = if head.length.is_some() { Value::Present(Bytes::new()) } else { Value::Tombstone };
        let dot = Dot { actor, count: head.count };
        versions.push(Version { dot, timestamp: head.timestamp, expires: head.expires, value });
        lengths.extend(head.length);
    }
    let present = versions.iter_mut().filter(|version| version.value != Value::Tombstone);
    for (version, length) in present.zip(lengths) {
        version.value = Value::Present(reader.slice(length)?);
    }
    let set = checked(vector, versions)?;
    // One value has one encoding: what fits the single form must have used it.
    if single(&set).is_some() { Err(DecodeError::Invariant) } else { Ok((own, set)) }
}

fn read_single(header: u8, reader: &mut Reader<'_>) -> Result<(Option<Actor>, VersionSet), DecodeError> {
    let timestamp = Timestamp::read(reader)?;
    let expires = if header & EXPIRES != 0 { Some(WallMillis::read(reader)?) } else { None };
    let dot = Dot::read(reader)?;
    let value = if header & PRESENT != 0 { Value::Present(Bytes::read(reader)?) } else { Value::Tombstone };
    let mut entries = SmallVec::new();
    entries.push((dot.actor, dot.count));
    let vector = Vector::from_sorted(entries).ok_or(DecodeError::Invariant)?;
    let mut versions = SmallVec::new();
    versions.push(Version { dot, timestamp, expires, value });
    let own = (header & OWN != 0).then_some(dot.actor);
    Ok((own, checked(vector, versions)?))
}

fn checked(vector: Vector, versions: SmallVec<[Version; 1]>) -> Result<VersionSet, DecodeError> {
    if versions.iter().any(|version| version.dot.count == 0) {
        return Err(DecodeError::Invariant);
    }
    VersionSet::from_parts(vector, versions).ok_or(DecodeError::Invariant)
}

fn entry_at(vector: &Vector, position: u64) -> Result<(Actor, u64), DecodeError> {
    let position = usize::try_from(position).map_err(|_| DecodeError::Invariant)?;
    vector.entries().get(position).copied().ok_or(DecodeError::Invariant)
}

/// Node, incarnation, birth and count take a byte each.
const ENTRY_BYTES_MIN: usize = 4;
/// Entry, count, eight bytes of timestamp, flags.
const VERSION_BYTES_MIN: usize = 11;

/// What the general form says about a version before the values.
struct VersionHead {
    entry: u64,
    count: u64,
    timestamp: Timestamp,
    expires: Option<WallMillis>,
    /// Length of the value; `None` for a tombstone.
    length: Option<usize>,
}

impl VersionHead {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (entry, count) = (reader.varint()?, reader.varint()?);
        let timestamp = Timestamp::read(reader)?;
        let flags = reader.u8()?;
        if flags & !(VERSION_PRESENT | VERSION_EXPIRES) != 0 {
            return Err(DecodeError::UnknownTag { what: "the flags of a version", tag: flags });
        }
        let expires = if flags & VERSION_EXPIRES != 0 { Some(WallMillis::read(reader)?) } else { None };
        let length = if flags & VERSION_PRESENT != 0 { Some(reader.length()?) } else { None };
        Ok(VersionHead { entry, count, timestamp, expires, length })
    }
}

impl Field for Actor {
    const BYTES_MIN: usize = 3;
    fn bytes_bound(&self) -> usize {
        25
    }
    fn write(&self, out: &mut BytesMut) {
        self.node.write(out);
        put_varint(self.incarnation, out);
        put_varint(self.birth, out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Actor { node: NodeId::read(reader)?, incarnation: reader.varint()?, birth: reader.varint()? })
    }
}

impl Field for Dot {
    const BYTES_MIN: usize = 4;
    fn bytes_bound(&self) -> usize {
        35
    }
    fn write(&self, out: &mut BytesMut) {
        self.actor.write(out);
        put_varint(self.count, out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let dot = Dot { actor: Actor::read(reader)?, count: reader.varint()? };
        if dot.count == 0 { Err(DecodeError::Invariant) } else { Ok(dot) }
    }
}

impl Field for Vector {
    const BYTES_MIN: usize = 1;
    fn bytes_bound(&self) -> usize {
        10 + self.entries().len() * 35
    }
    fn write(&self, out: &mut BytesMut) {
        put_varint(self.entries().len() as u64, out);
        for &(actor, count) in self.entries() {
            Dot { actor, count }.write(out);
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count(ENTRY_BYTES_MIN)?;
        let mut entries = SmallVec::with_capacity(count);
        for _ in 0..count {
            let Dot { actor, count } = Dot::read(reader)?;
            entries.push((actor, count));
        }
        Vector::from_sorted(entries).ok_or(DecodeError::Invariant)
    }
}

impl Field for Context {
    const BYTES_MIN: usize = 9;
    fn bytes_bound(&self) -> usize {
        self.vector.bytes_bound() + 8
    }
    fn write(&self, out: &mut BytesMut) {
        self.vector.write(out);
        self.timestamp.write(out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Context { vector: Vector::read(reader)?, timestamp: Timestamp::read(reader)? })
    }
}

impl Field for VersionSet {
    /// Header, empty vector, no version.
    const BYTES_MIN: usize = 3;
    fn bytes_bound(&self) -> usize {
        set_bytes(None, self)
    }
    fn write(&self, out: &mut BytesMut) {
        write_set(None, self, out);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match read_set(reader)? {
            (None, set) => Ok(set),
            (Some(_), _) => Err(DecodeError::Invariant),
        }
    }
}
