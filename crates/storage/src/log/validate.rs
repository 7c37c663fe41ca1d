//! What must hold between the parts of an engine. Tests and simulation check it at opening and at closing; each part
//! checks its own fields wherever they change.

use std::collections::BTreeMap;

use super::core::Core;

impl Core {
    /// Panics unless index, segments and the log's end agree. It looks at every entry under its gate; nobody compacts
    /// meanwhile, and nobody appends.
    pub(super) fn validate(&self) {
        let end = self.appending.tail().end();
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        for (_, partition) in self.index.iter() {
            partition.validate();
            partition.for_each(|slot| *live.entry(slot.segment).or_default() += slot.space());
        }
        for segment in self.segments.all() {
            let pointed_at = live.remove(&segment.id).unwrap_or(0);
            assert_eq!(
                segment.live(),
                pointed_at,
                "what lives in {} is what the index points at",
                segment.path
            );
            let bytes =
                if segment.id == end.point.segment { end.point.offset.into() } else { segment.written() };
            assert!(pointed_at <= bytes, "{} holds {pointed_at} live of {bytes} bytes", segment.path);
            assert!(
                segment.synced() <= segment.written(),
                "only what is written is synced: {}",
                segment.path
            );
            let (origin, last) = (segment.origin_max(), self.segments.id_last());
            assert!(
                origin <= last,
                "no marker is of a later segment: {origin} in {}, {last} given out",
                segment.path
            );
        }
        assert!(live.is_empty(), "the index points at segments that are not there: {live:?}");
        assert!(self.last_snapshot.position() <= end.position, "a snapshot is of what was appended");
        self.appending.validate();
    }
}
