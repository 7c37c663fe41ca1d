//! From where a node fetches a chunk: from the artifact's source, or from a replica that has it.
//!
//! The source comes first as long as it is there. A replica is asked when the source fails; and now and then to learn
//! which of the two is faster, for a source may be far away. Both verify alike, so this is about time alone.

use std::time::Duration;

use model::Moment;

/// An origin that has failed is left alone for this long, and twice as long each time that it fails again. One that is
/// silent costs a fetch twenty seconds each time that it is asked.
const LEFT_ALONE: Duration = Duration::from_secs(5);
/// Doublings at most: about five minutes.
const DOUBLINGS_MAX: u32 = 6;
/// One in so many chunks comes from the slower of two origins, so that a change is noticed.
const TRIED_ONE_IN: u64 = 8;
/// Replicas are kept free for requests unless they are this many times as fast.
const FASTER_TIMES: u64 = 2;

/// Where a chunk may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Where the artifact was built to.
    Source,
    /// Other nodes.
    Replicas,
}

impl Origin {
    /// Both.
    pub const ALL: [Origin; 2] = [Origin::Source, Origin::Replicas];

    fn other(self) -> Origin {
        match self {
            Origin::Source => Origin::Replicas,
            Origin::Replicas => Origin::Source,
        }
    }
}

/// What is known of one origin.
#[derive(Clone, Copy, Debug, Default)]
struct KnownOrigin {
    /// Bytes a second of one chunk, smoothed; 0 while nothing came.
    speed: u64,
    /// It has failed, and is left alone until then.
    alone_until: Moment,
    /// How often it was left alone since it gave something.
    failures: u32,
}

/// What a node knows of the origins of one artifact.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origins {
    source: KnownOrigin,
    replicas: KnownOrigin,
    chosen: u64,
}

impl Origins {
    fn known(&mut self, origin: Origin) -> &mut KnownOrigin {
        match origin {
            Origin::Source => &mut self.source,
            Origin::Replicas => &mut self.replicas,
        }
    }

    /// The order in which the next chunk is tried.
    pub fn choose(&mut self, now: Moment) -> [Origin; 2] {
        self.chosen += 1;
        let alone = |known: KnownOrigin| now < known.alone_until;
        let faster =
            self.source.speed > 0 && self.replicas.speed > self.source.speed.saturating_mul(FASTER_TIMES);
        let mut first = if faster { Origin::Replicas } else { Origin::Source };
        if self.chosen.is_multiple_of(TRIED_ONE_IN) {
            first = first.other();
        }
        if alone(*self.known(first)) && !alone(*self.known(first.other())) {
            first = first.other();
        }
        [first, first.other()]
    }

    /// This many bytes came from it within this time.
    pub fn gave(&mut self, origin: Origin, bytes: u64, took: Duration) {
        let nanos = took.as_nanos().max(1);
        let speed = u128::from(bytes) * 1_000_000_000 / nanos;
        let speed = u64::try_from(speed).unwrap_or(u64::MAX).max(1);
        let known = self.known(origin);
        (known.alone_until, known.failures) = (Moment::default(), 0);
        known.speed = if known.speed == 0 { speed } else { known.speed / 4 * 3 + speed / 4 };
    }

    /// It did not give a chunk. What was under way when it failed before, and fails now, counts no more.
    pub fn failed(&mut self, origin: Origin, now: Moment) {
        let known = self.known(origin);
        if now >= known.alone_until {
            known.alone_until = now.after(LEFT_ALONE * (1 << known.failures.min(DOUBLINGS_MAX)));
            known.failures += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::default().after(Duration::from_secs(seconds))
    }

    fn firsts(origins: &mut Origins, now: Moment) -> usize {
        (0..80).filter(|_| origins.choose(now)[0] == Origin::Source).count()
    }

    #[test]
    fn the_source_comes_first_unless_it_fails_or_replicas_are_far_faster() {
        let mut origins = Origins::default();
        assert_eq!(firsts(&mut origins, at(1)), 70, "replicas are tried now and then");
        let second = Duration::from_secs(1);
        origins.gave(Origin::Source, 1000, second);
        origins.gave(Origin::Replicas, 1900, second);
        assert_eq!(firsts(&mut origins, at(1)), 70, "replicas have requests to serve");
        origins.gave(Origin::Replicas, 9000, second);
        assert_eq!(firsts(&mut origins, at(1)), 10);
        origins.failed(Origin::Replicas, at(1));
        assert_eq!(firsts(&mut origins, at(5)), 80);
        assert_eq!(firsts(&mut origins, at(6)), 10);
        origins.failed(Origin::Source, at(10));
        assert_eq!(firsts(&mut origins, at(10)), 0);
        assert_eq!(origins.choose(at(10)), [Origin::Replicas, Origin::Source], "both are tried in the end");
        origins.failed(Origin::Replicas, at(10));
        assert_eq!(firsts(&mut origins, at(10)), 10, "both have failed: as if none had");
    }

    /// A source that swallowed requests once took four fifths of the time of a fetch from replicas.
    #[test]
    fn an_origin_that_fails_again_and_again_is_left_alone_for_longer_each_time() {
        let mut origins = Origins::default();
        let (mut now, mut alone) = (0, Vec::new());
        for _ in 0..8 {
            // Four chunks at a time wait for it.
            (0..4).for_each(|_| origins.failed(Origin::Source, at(now)));
            let begun = now;
            // One in eight tries the other first.
            while (0..2).all(|_| origins.choose(at(now))[0] == Origin::Replicas) && now < begun + 1000 {
                now += 1;
            }
            alone.push(now - begun);
        }
        assert_eq!(alone, [5, 10, 20, 40, 80, 160, 320, 320]);
        origins.gave(Origin::Source, 1000, Duration::from_secs(1));
        origins.failed(Origin::Source, at(now));
        let order = [0, 1].map(|_| origins.choose(at(now + 5))[0]);
        assert!(order.contains(&Origin::Source), "one that gave again has failed once");
    }

    #[test]
    fn replicas_come_first_only_when_they_are_more_than_twice_as_fast_as_a_source_that_is_known() {
        let second = Duration::from_secs(1);
        let mut origins = Origins::default();
        origins.gave(Origin::Replicas, 1 << 30, second);
        assert_eq!(firsts(&mut origins, at(1)), 70, "nothing is known of the source");
        for (replicas, expected) in [(2000, 70), (2001, 10)] {
            let mut origins = Origins::default();
            origins.gave(Origin::Source, 1000, second);
            origins.gave(Origin::Replicas, replicas, second);
            assert_eq!(firsts(&mut origins, at(1)), expected, "{replicas}");
        }
    }

    #[test]
    fn each_further_chunk_tells_a_quarter_of_the_speed() {
        let second = Duration::from_secs(1);
        // 4000, then three quarters of it and a quarter of 400: 3100.
        for (source, expected) in [(1549, 10), (1550, 70)] {
            let mut origins = Origins::default();
            origins.gave(Origin::Source, source, second);
            origins.gave(Origin::Replicas, 4000, second);
            origins.gave(Origin::Replicas, 400, second);
            assert_eq!(firsts(&mut origins, at(1)), expected, "a source that gives {source} a second");
        }
    }
}
