//! Work in the background: chores, which a node does in rounds, with a rest after each.
//!
//! ```text
//!   run ──▶ round ──▶ a rest, until it is over or the chore is woken ──▶ round ──▶ … ──▶ ended
//! ```
//!
//! What a chore remembers from round to round is its own. A round holds on to the part of the node that it works for,
//! and a rest holds on to nothing: so a chore keeps no node alive.
//!
//! The [`Board`] gives the state of each: what it does now, how often it has, and what failed last.
//!
//! A round that panics met a bug. Where the runtime survives panics, its chore is built anew after a pause, and the board
//! and an event tell of it; elsewhere the process ends ([`runtime::Tasks::survives_panics`]).
//! What a round may leave half changed is guarded, where a panic ends the process as it does outside of rounds, or made
//! good by the next round: `docs/design/rooms.md`, *Panics*. In simulation a panic is not caught but judged.
//!
//! What a round was at when it panicked comes last in the next ones ([`Culprits`]).
//!
//! Three loops are none, because what they wait for is no rest: following the cluster document, keeping artifacts, and
//! the rounds of gossip.
//!
//! Must never: know what is worked at.

mod board;
mod culprits;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use runtime::panics::caught;
use runtime::{Clock, Ports};
use tokio::sync::Notify;

use board::BoardPlace;
pub(crate) use board::{Board, RoundTold};
pub(crate) use culprits::{Culprit, Culprits, Postponed};

/// Work that goes on in rounds, as long as the node lives.
pub(crate) trait Chore: Send + 'static {
    /// What people call it.
    const NAME: &'static str;

    /// Works for a while. `woken` says that something ended the rest before this round early; what fails is `told`.
    fn round(&mut self, woken: bool, told: &RoundTold<'_>) -> impl Future<Output = Rest> + Send;
}

/// What follows a round.
pub(crate) enum Rest {
    /// The next round, at once.
    Now,
    /// The next one after this long.
    For(Duration),
    /// The next one when this wakes it, or after this long.
    UntilWoken(Arc<Notify>, Duration),
    /// None: what it works for is gone.
    Ended,
}

/// Does a chore on the background thread from now on, after this rest. `make` makes it, and makes it anew when a round
/// panicked; it must hold on to no more than a chore does.
pub(crate) fn begin<C: Chore>(
    ports: &Ports,
    board: &Arc<Board>,
    first: Rest,
    make: impl FnMut() -> C + Send + 'static,
) {
    let (place, survives) = (board.add(C::NAME), ports.tasks.survives_panics());
    ports.tasks.spawn_background(Box::pin(run((ports.clock.clone(), survives), place, first, make)));
}

async fn run<C: Chore>(
    (clock, survives): (Arc<dyn Clock>, bool),
    place: BoardPlace,
    first: Rest,
    mut make: impl FnMut() -> C + Send,
) {
    let (mut chore, mut rest) = (make(), first);
    loop {
        let woken = match rest {
            Rest::Now => false,
            Rest::For(rest) => {
                place.rests(rest);
                clock.sleep(rest).await;
                false
            }
            Rest::UntilWoken(wake, rest) => {
                place.rests(rest);
                let ended = select(clock.sleep(rest), Box::pin(wake.notified())).await;
                matches!(ended, Either::Right(_))
            }
            Rest::Ended => break,
        };
        let told = place.works();
        let round = Box::pin(chore.round(woken, &told));
        let done = if survives { caught(round).await } else { Ok(round.await) };
        rest = match done {
            Ok(rest) => {
                told.over();
                rest
            }
            Err(panicked) => {
                chore = make();
                Rest::For(place.panicked(&panicked))
            }
        };
    }
    place.ends();
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
    use model::{Moment, NodeId, WallMillis};
    use parking_lot::Mutex;
    use protocol::report::{ChoreReport, ChoreState};
    use runtime::BoxFuture;

    use super::*;
    use crate::events::Events;
    use crate::metrics::Metrics;

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

        async fn round(&mut self, woken: bool, _: &RoundTold<'_>) -> Rest {
            self.1.lock().push(woken);
            self.0.pop().expect("no round follows the end")
        }
    }

    /// Where events of these tests go.
    fn board(clock: &Arc<Slept>, events: &Arc<Events>) -> Arc<Board> {
        Board::new(clock.clone(), events.clone(), &Metrics::new())
    }

    /// Whether it ended, how long it rested, and which rounds it was woken for.
    fn play(is_over: bool, first: Rest, rests: Vec<Rest>) -> (bool, Vec<u64>, Vec<bool>) {
        let clock = Arc::new(Slept { seconds: Mutex::default(), is_over });
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut chore = Some(Scripted(rests.into_iter().rev().collect(), woken.clone()));
        let make = move || chore.take().expect("it does not panic");
        let place = board(&clock, &Events::new(NodeId(1), 0, clock.clone())).add(Scripted::NAME);
        let ended = run((clock.clone(), true), place, first, make).now_or_never().is_some();
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
    fn a_chore_is_told_that_it_was_woken_and_otherwise_rests_on() {
        let wake: Arc<Notify> = Arc::default();
        let rest = || Rest::UntilWoken(wake.clone(), Duration::from_secs(7));
        wake.notify_one();
        assert_eq!(play(false, rest(), vec![rest(), Rest::Ended]), (false, vec![7, 7], vec![true]));
    }

    /// Panics in its second round, as long as it shall.
    struct Clumsy {
        rounds: u32,
        panics_left: Arc<Mutex<u32>>,
    }

    impl Chore for Clumsy {
        const NAME: &'static str = "clumsy";

        async fn round(&mut self, _: bool, _: &RoundTold<'_>) -> Rest {
            self.rounds += 1;
            if self.rounds < 2 {
                return Rest::Now;
            }
            let mut panics_left = self.panics_left.lock();
            if *panics_left == 0 {
                return Rest::Ended;
            }
            *panics_left -= 1;
            panic!("as planned");
        }
    }

    /// How often it was made, how long it rested, what the board says in the end, and which events there were.
    fn stumble(survives: bool) -> (u32, Vec<u64>, ChoreReport, Vec<&'static str>) {
        let clock = Arc::new(Slept { seconds: Mutex::default(), is_over: true });
        let events = Events::new(NodeId(1), 0, clock.clone());
        let board = board(&clock, &events);
        let (made, panics_left) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(3)));
        let counted = made.clone();
        let make = move || {
            *counted.lock() += 1;
            Clumsy { rounds: 0, panics_left: panics_left.clone() }
        };
        let place = board.add(Clumsy::NAME);
        run((clock.clone(), survives), place, Rest::Now, make).now_or_never().expect("it ends");
        let kinds = events.after(0, 10).iter().map(|recorded| recorded.event.kind()).collect();
        (*made.lock(), clock.seconds.lock().clone(), board.report().remove(0), kinds)
    }

    #[test]
    fn a_chore_that_panics_is_rebuilt_after_a_pause_and_reported() {
        let (made, seconds, report, events) = stumble(true);
        assert_eq!((made, seconds), (4, vec![1, 2, 4]));
        assert_eq!((report.panics_total, report.rounds_total, report.state), (3, 8, ChoreState::Ended));
        assert_eq!((report.failures, report.panics), (0, 0), "the last round went well");
        assert_eq!(events, ["chore-panicked"; 3]);
    }

    /// A violated assertion is what a simulation looks for.
    #[test]
    #[should_panic(expected = "as planned")]
    fn no_panic_is_caught_where_panics_are_judged() {
        stumble(false);
    }
}
