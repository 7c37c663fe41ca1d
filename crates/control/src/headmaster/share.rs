//! How much of its processors a headmaster takes while partitions move.
//!
//! It runs beside a node, mostly in the same container. A turn reads the whole cluster document and learns of each
//! partition that moves, which costs tens of milliseconds of a processor for a thousand of them. In a container of a tenth
//! of a processor that is most of what requests have, so there it looks less often.
//!
//! Must never: stop a move. The longest rest is [`REST_MAX`], and a cluster in which nothing moves knows no rest, so that
//! orders are answered at once.

use std::sync::Arc;
use std::time::Duration;

use runtime::{Clock, Moment, Tasks};

/// One part in so many of the processors that the process may use is for turns: about 6 in 100.
const PARTS: f64 = 16.0;
/// The longest rest, by which an order or a step comes later.
const REST_MAX: Duration = Duration::from_secs(5);

/// What this process has had of the processors.
pub(super) struct Share {
    clock: Arc<dyn Clock>,
    tasks: Arc<dyn Tasks>,
}

/// When something began, and what the process had had by then; `None` where nobody counts that.
pub(super) type Begun = (Moment, Option<Duration>);

impl Share {
    pub(super) fn new(clock: Arc<dyn Clock>, tasks: Arc<dyn Tasks>) -> Share {
        Share { clock, tasks }
    }

    /// Something begins now.
    pub(super) fn begin(&self) -> Begun {
        (self.clock.now(), self.tasks.process_time())
    }

    /// Rests until what was done since `begun` is no more than its share of the time.
    pub(super) async fn rest(&self, (at, had): Begun) {
        let Some((had, has)) = had.zip(self.tasks.process_time()) else { return };
        let (ran, passed) = (has.saturating_sub(had), self.clock.now().since(at));
        let rest = rest(ran, passed, self.tasks.processors());
        if !rest.is_zero() {
            self.clock.sleep(rest).await;
        }
    }
}

/// How long to rest after work that ran for a while on some processors, within a time that has `passed`.
fn rest(ran: Duration, passed: Duration, processors: f64) -> Duration {
    let takes = ran.as_secs_f64() * PARTS / processors;
    // Also where there is no such number.
    let takes = Duration::try_from_secs_f64(takes).unwrap_or(Duration::MAX);
    takes.saturating_sub(passed).min(REST_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewer_processors_there_are_the_longer_it_rests_and_never_for_good() {
        let millis = Duration::from_millis;
        let rests = |processors| rest(millis(30), millis(500), processors);
        assert_eq!(rests(2.0), Duration::ZERO, "its pauses are rest enough");
        assert_eq!(rests(0.5), millis(460));
        assert_eq!(rests(0.1), millis(4300));
        assert_eq!([0.05, 0.0, f64::NAN].map(rests), [REST_MAX; 3]);
        assert_eq!(rest(Duration::ZERO, millis(1), 0.1), Duration::ZERO);
    }
}
