//! The log engine's snapshot of its index: a hint on where records lie, never a source of them.

use crate::segment;

const SEGMENT: &[u8] = include_bytes!("../fixtures/segment.log");

/// Panics when an engine with this index beside a sound segment does not open, or serves anything but what the
/// segment holds.
pub fn check(input: &[u8]) {
    let mut truth = segment::contents(SEGMENT, None).expect("the fixture opens");
    let mut found = segment::contents(SEGMENT, Some(input)).unwrap_or_default();
    truth.sort();
    found.sort();
    // An index that cannot be used is passed over, and then everything is there; none may add or change anything.
    assert!(found.iter().all(|one| truth.contains(one)), "{found:?}");
}
