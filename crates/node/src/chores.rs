//! Work in the background: chores, which a node does in rounds, with a rest after each.
//!
//! ```text
//!   run ──▶ round ──▶ a rest, until it is over or the chore is woken ──▶ round ──▶ … ──▶ ended
//! ```
//!
//! What a chore remembers from round to round is its own. A round holds on to the part of the node that it works for,
//! and a rest holds on to nothing: so a chore keeps no node alive.
//!
//! Three loops are none, because what they wait for is no rest: following the cluster document, keeping artifacts, and
//! the rounds of gossip.
//!
//! Must never: know what is worked at.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use runtime::{Clock, Ports};
use tokio::sync::Notify;

/// Work that goes on in rounds, as long as the node lives.
pub(crate) trait Chore: Send + 'static {
    /// What people call it.
    const NAME: &'static str;

    /// Works for a while. `woken` says that something ended the rest before this round early.
    fn round(&mut self, woken: bool) -> impl Future<Output = Rest> + Send;
}

/// What follows a round.
pub(crate) enum Rest {
    /// The next round, at once.
    Now,
    /// The next one after so long.
    For(Duration),
    /// The next one when this wakes it, or after so long.
    UntilWoken(Arc<Notify>, Duration),
    /// None: what it works for is gone.
    Ended,
}

/// Does a chore on the background thread from now on, after this rest.
pub(crate) fn begin(ports: &Ports, first: Rest, chore: impl Chore) {
    ports.tasks.spawn_background(Box::pin(run(ports.clock.clone(), first, chore)));
}

async fn run<C: Chore>(clock: Arc<dyn Clock>, first: Rest, mut chore: C) {
    let mut rest = first;
    loop {
        let woken = match rest {
            Rest::Now => false,
            Rest::For(rest) => {
                clock.sleep(rest).await;
                false
            }
            Rest::UntilWoken(wake, rest) => {
                let ended = select(clock.sleep(rest), Box::pin(wake.notified())).await;
                matches!(ended, Either::Right(_))
            }
            Rest::Ended => break,
        };
        rest = chore.round(woken).await;
    }
    tracing::debug!(chore = C::NAME, "chore ended");
}

/// Lets other tasks of the thread go first.
pub(crate) async fn breathe() {
    let mut breathed = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut breathed, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use model::{Moment, WallMillis};
    use parking_lot::Mutex;
    use runtime::BoxFuture;

    use super::*;

    /// It stands still and notes for how long somebody sleeps; a sleep is over at once, or never.
    struct Slept {
        seconds: Mutex<Vec<u64>>,
        is_over: bool,
    }

    impl Clock for Slept {
        fn now(&self) -> Moment {
            Moment::default()
        }
        fn wall(&self) -> WallMillis {
            WallMillis(0)
        }
        fn sleep_until(&self, deadline: Moment) -> BoxFuture<'static, ()> {
            self.seconds.lock().push(deadline.since(self.now()).as_secs());
            match self.is_over {
                true => Box::pin(std::future::ready(())),
                false => Box::pin(std::future::pending()),
            }
        }
    }

    /// Rests, the last one first, and whether each round was woken for.
    struct Scripted(Vec<Rest>, Arc<Mutex<Vec<bool>>>);

    impl Chore for Scripted {
        const NAME: &'static str = "scripted";

        async fn round(&mut self, woken: bool) -> Rest {
            self.1.lock().push(woken);
            self.0.pop().expect("no round follows the end")
        }
    }

    /// Whether it ended, how long it rested, and which rounds it was woken for.
    fn play(is_over: bool, first: Rest, rests: Vec<Rest>) -> (bool, Vec<u64>, Vec<bool>) {
        let clock = Arc::new(Slept { seconds: Mutex::default(), is_over });
        let woken = Arc::new(Mutex::new(Vec::new()));
        let chore = Scripted(rests.into_iter().rev().collect(), woken.clone());
        let ended = run(clock.clone(), first, chore).now_or_never().is_some();
        (ended, clock.seconds.lock().clone(), woken.lock().clone())
    }

    #[test]
    fn a_chore_rests_before_each_round_as_it_says_until_it_ends() {
        let seconds = Duration::from_secs;
        let rests = vec![Rest::Now, Rest::For(seconds(1)), Rest::UntilWoken(Arc::default(), seconds(2))];
        let rests: Vec<Rest> = rests.into_iter().chain([Rest::Ended]).collect();
        let played = play(true, Rest::For(seconds(3)), rests);
        assert_eq!(played, (true, vec![3, 1, 2], vec![false; 4]));
    }

    #[test]
    fn a_chore_that_is_woken_hears_of_it_and_one_that_is_not_rests_on() {
        let wake: Arc<Notify> = Arc::default();
        let rest = || Rest::UntilWoken(wake.clone(), Duration::from_secs(7));
        wake.notify_one();
        assert_eq!(play(false, rest(), vec![rest(), Rest::Ended]), (false, vec![7, 7], vec![true]));
    }
}
