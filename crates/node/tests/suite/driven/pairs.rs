//! Two real nodes that hold the same keys, and what tests look at in a node that repairs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Timestamp, Token, Value, VersionSet};

use super::home::damage_at;
use super::{Event, Home, Node, merge, set};

/// Content of this many bytes.
pub(super) fn content(bytes: usize) -> VersionSet {
    set(&VersionSet::default(), 8, Timestamp(20), Value::Present(vec![7; bytes].into()))
}

pub(super) fn bytes_of(set: &VersionSet) -> usize {
    wire::versions::record_bytes(None, set)
}

/// This many keys of a partition.
pub(super) fn keys_of(partition: u64, count: usize) -> Vec<Bytes> {
    let all = (0..).map(|number| Bytes::from(format!("key {number:04}")));
    all.filter(|key| Token::of(key).0 >> 63 == partition).take(count).collect()
}

/// All that the node has told of these kinds.
pub(super) fn events(node: &Node, kinds: &[&str]) -> Vec<Event> {
    let all = node.events().after(0, 1000).into_iter().map(|recorded| recorded.event);
    all.filter(|event| kinds.contains(&event.kind())).collect()
}

pub(super) fn metric(node: &Node, name: &str) -> u64 {
    let text = node.metrics().text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing in\n{text}")).parse().unwrap()
}

/// What the first write of a key says; no other value is like it.
pub(super) fn first(key: &Bytes) -> VersionSet {
    let value = format!("the value of {} and of nothing else", String::from_utf8_lossy(key));
    set(&VersionSet::default(), 9, Timestamp(1), Value::Present(value.into()))
}

/// Flips a bit of the first write of a key on the disk.
pub(super) fn damage(home: &Home, key: &Bytes) {
    damage_at(&home.disk, key, 0);
}

/// Two real nodes that hold the same keys, three in each partition.
pub(super) fn equal() -> (Home, Arc<Node>, Home, Arc<Node>, Vec<Bytes>) {
    let home = Home::new().syncing();
    let second = home.beside(2);
    let (node, peer) = (home.start(), second.start());
    home.serve(&peer, |_| None);
    let keys = [keys_of(0, 3), keys_of(1, 3)].concat();
    for key in &keys {
        home.call(&node, merge(key, &first(key), 0, None)).unwrap();
        second.call(&peer, merge(key, &first(key), 0, None)).unwrap();
    }
    home.stage.pass(Duration::from_secs(2));
    (home, node, second, peer, keys)
}
