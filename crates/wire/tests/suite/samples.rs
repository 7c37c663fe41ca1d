//! Small fixed values that golden tests are made of, and how bytes are shown.

use bytes::Bytes;
use model::{
    Actor, Context, Dot, NodeId, StoreName, Timestamp, Value, Vector, Version, VersionSet, WallMillis,
};
use wire::messages::{RequestOptions, StoreRef};

/// Sixteen bytes a line, in hex and as text.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(16) {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown: String =
            line.iter().map(|b| if b.is_ascii_graphic() { *b as char } else { '.' }).collect();
        text += &format!("{:<47}  {shown}\n", hex.join(" "));
    }
    text
}

pub fn store() -> StoreRef {
    StoreRef::from(&StoreName::new("carts").unwrap())
}

pub fn options() -> RequestOptions {
    RequestOptions { required: Some(2), preferred: Some(3), sloppy: Some(true), deadline_ms: 500 }
}

pub fn actor(node: u32, birth: u64) -> Actor {
    Actor { node: NodeId(node), incarnation: 0x18f_0000_0000, birth }
}

pub fn dot(node: u32, birth: u64, count: u64) -> Dot {
    Dot { actor: actor(node, birth), count }
}

pub fn version(dot: Dot, value: Option<&'static str>) -> Version {
    Version {
        dot,
        timestamp: Timestamp(0x0102_0304_0506_0700 + dot.count),
        expires: None,
        value: value.map_or(Value::Tombstone, |text| Value::Present(Bytes::from_static(text.as_bytes()))),
    }
}

pub fn set_of(vector: &[(Actor, u64)], versions: Vec<Version>) -> VersionSet {
    VersionSet::from_parts(Vector::from_entries(vector.iter().copied()), versions.into()).unwrap()
}

/// One version, whose dot is the vector's only entry.
pub fn single() -> VersionSet {
    set_of(&[(actor(1, 7), 3)], vec![version(dot(1, 7, 3), Some("milk"))])
}

pub fn single_expiring() -> VersionSet {
    let version =
        Version { expires: Some(WallMillis(1_700_000_000_000)), ..version(dot(1, 7, 3), Some("milk")) };
    set_of(&[(actor(1, 7), 3)], vec![version])
}

pub fn single_tombstone() -> VersionSet {
    set_of(&[(actor(1, 7), 3)], vec![version(dot(1, 7, 3), None)])
}

/// Two siblings and a tombstone.
pub fn siblings() -> VersionSet {
    let expiring =
        Version { expires: Some(WallMillis(1_700_000_000_000)), ..version(dot(2, 1, 1), Some("eggs")) };
    set_of(
        &[(actor(1, 7), 3), (actor(2, 1), 2)],
        vec![version(dot(1, 7, 2), Some("milk")), expiring, version(dot(2, 1, 2), None)],
    )
}

pub fn context() -> Context {
    siblings().context()
}
