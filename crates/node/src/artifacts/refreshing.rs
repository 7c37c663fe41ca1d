//! Which pages of open artifacts are in memory: looked at again and again, for what the system has evicted must not be
//! touched by a worker.
//!
//! A pass takes 30 ms for each gigabyte that is mapped. So the next one begins only after twenty times as long, and at most
//! once a second; and nothing waits for one, because a swap must not.

use std::sync::Arc;
use std::time::Duration;

use model::Moment;
use runtime::locks::Mutex;

use super::Artifacts;

/// For how many times as long as a pass took none begins.
const REST: u32 = 20;

/// Where the passes are.
#[derive(Debug, Default)]
pub(super) struct Refreshing {
    /// Whether one is under way.
    busy: bool,
    /// When the next may begin.
    not_before: Option<Moment>,
}

impl Refreshing {
    /// Whether a pass may begin; then it has.
    fn begin(&mut self, now: Moment) -> bool {
        let begins = !self.busy && self.not_before.is_none_or(|moment| moment <= now);
        self.busy |= begins;
        begins
    }

    fn end(&mut self, began: Moment, now: Moment) {
        let rest: Duration = now.since(began) * REST;
        *self = Refreshing { busy: false, not_before: Some(now.after(rest)) };
    }
}

/// A pass. However it ends, also without having run, the next one may begin.
struct Pass<N: Fn() -> Moment> {
    passes: Passes,
    began: Moment,
    now: N,
}

impl<N: Fn() -> Moment> Drop for Pass<N> {
    fn drop(&mut self) {
        self.passes.lock().end(self.began, (self.now)());
    }
}

impl Artifacts {
    /// Notes which pages of open artifacts are in memory, if it is time. A pass goes on when nobody waits for it any more.
    pub(super) async fn refresh(&self) {
        let view = self.view.get();
        let open: Vec<_> = view
            .read_only_stores()
            .iter()
            .flat_map(|store| store.held().all())
            .map(|(_, open)| open)
            .collect();
        let (clock, passes) = (self.ports.clock.clone(), Arc::clone(&self.refreshing));
        let began = clock.now();
        if open.is_empty() || !passes.lock().begin(began) {
            return;
        }
        // Work that waits for a thread is dropped when nobody waits for it any more.
        let pass = Pass { passes, began, now: move || clock.now() };
        let refresh = move || {
            open.iter().for_each(|open| open.artifact.refresh());
            drop(pass);
        };
        let _ = self.wait(refresh).await;
    }
}

/// Shared with a pass, which may outlive whoever began it.
pub(super) type Passes = Arc<Mutex<Refreshing>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_begins_when_none_is_running_and_the_last_one_ended_long_enough_ago() {
        let (mut passes, start) = (Refreshing::default(), Moment::default());
        let at = |ms| start.after(Duration::from_millis(ms));
        assert!(passes.begin(at(0)));
        assert!(!passes.begin(at(50)), "one is under way");
        passes.end(at(0), at(100));
        assert!(!passes.begin(at(2099)), "it took a tenth of a second, so two seconds are free of it");
        assert!(passes.begin(at(2100)));
    }

    /// Else nobody would ever look again, and workers would wait for pages that were evicted.
    #[test]
    fn a_pass_that_is_dropped_before_it_runs_lets_the_next_one_begin() {
        let (passes, start) = (Passes::default(), Moment::default());
        assert!(passes.lock().begin(start));
        let pass = Pass { passes: passes.clone(), began: start, now: move || start };
        let work = move || drop(pass);
        drop(work);
        assert!(passes.lock().begin(start));
    }
}
