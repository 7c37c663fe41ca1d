//! The board: which chores a node has, and the state of each, for its status and its metrics.
//!
//! Must never: keep anything alive that a chore works for.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use model::Moment;
use protocol::report::{ChoreError, ChoreReport, ChoreState};
use runtime::Clock;
use runtime::locks::Mutex;
use runtime::panics::Panicked;

use crate::events::{Event, Events};
use crate::metrics::Metrics;

/// Pause after the first panic of a chore, from the begin of its round. It doubles, up to the longest, with each panic
/// that follows the one before within twice the longest pause. The shortest one follows the panic in any case.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// The chores of one node.
pub(crate) struct Board {
    clock: Arc<dyn Clock>,
    events: Arc<Events>,
    /// In the order in which they began. None ever leaves.
    chores: Mutex<Vec<Noted>>,
}

/// What is known of one chore.
struct Noted {
    name: &'static str,
    state: ChoreState,
    since: Moment,
    /// When it goes on; `None` while it works, and when it has ended.
    goes_on: Option<Moment>,
    rounds: u64,
    /// When the last round began, and when the last one ended; before both when the chore began.
    round_began: Moment,
    round_ended: Moment,
    rounds_failed: u64,
    /// Rounds in a row that failed, and how many of these panicked.
    failures: u64,
    panics_in_row: u64,
    panics: u64,
    /// When it panicked last, and how long after the begin of that round the next one began at the earliest.
    panicked: Option<(Moment, Duration)>,
    last_error: Option<(String, Moment)>,
}

/// A number of one chore, as a metric shows it.
type Number = fn(&Noted, Moment) -> f64;

impl Board {
    /// Without a chore. Its numbers are shown from now on.
    pub(crate) fn new(clock: Arc<dyn Clock>, events: Arc<Events>, metrics: &Metrics) -> Arc<Board> {
        let board = Arc::new(Board { clock, events, chores: Mutex::default() });
        let watch = |name, read: Number| {
            let weak = Arc::downgrade(&board);
            metrics.watch_each(name, move || {
                let Some(board) = weak.upgrade() else { return Vec::new() };
                let (now, chores) = (board.clock.now(), board.chores.lock());
                chores.iter().map(|noted| (noted.name.to_owned(), read(noted, now))).collect()
            });
        };
        watch("tontine_chores_rounds_total", |noted, _| noted.rounds as f64);
        watch("tontine_chores_failed_rounds_total", |noted, _| noted.rounds_failed as f64);
        watch("tontine_chores_panics_total", |noted, _| noted.panics as f64);
        watch("tontine_chores_round_age_seconds", |noted, now| now.since(noted.round_ended).as_secs_f64());
        board
    }

    /// The state of all of them.
    pub(crate) fn report(&self) -> Vec<ChoreReport> {
        let (now, chores) = (self.clock.now(), self.chores.lock());
        let report = |noted: &Noted| ChoreReport {
            chore: noted.name.to_owned(),
            state: noted.state,
            seconds: now.since(noted.since).as_secs_f64(),
            seconds_left: noted.goes_on.map(|goes_on| goes_on.max(now).since(now).as_secs_f64()),
            rounds_total: noted.rounds,
            failures: noted.failures,
            panics: noted.panics_in_row,
            panics_total: noted.panics,
            last_error: noted.last_error.as_ref().map(|(error, at)| ChoreError {
                error: error.clone(),
                seconds_ago: now.since(*at).as_secs_f64(),
            }),
        };
        chores.iter().map(report).collect()
    }

    /// Notes a chore that begins now.
    pub(super) fn add(self: &Arc<Self>, name: &'static str) -> BoardPlace {
        let (now, mut chores) = (self.clock.now(), self.chores.lock());
        assert!(chores.iter().all(|noted| noted.name != name), "a node has one chore {name:?}");
        chores.push(Noted {
            name,
            state: ChoreState::Resting,
            since: now,
            goes_on: Some(now),
            rounds: 0,
            round_began: now,
            round_ended: now,
            rounds_failed: 0,
            failures: 0,
            panics_in_row: 0,
            panics: 0,
            panicked: None,
            last_error: None,
        });
        BoardPlace { position: chores.len() - 1, board: self.clone() }
    }
}

/// Where the board says what state one chore is in.
pub(super) struct BoardPlace {
    board: Arc<Board>,
    position: usize,
}

impl BoardPlace {
    fn change(&self, change: impl FnOnce(&mut Noted, Moment)) {
        let now = self.board.clock.now();
        change(&mut self.board.chores.lock()[self.position], now);
    }

    /// It rests for this long; not at all when there is nothing to wait for.
    pub(super) fn rests(&self, pause: Duration) {
        self.change(|noted, now| {
            let state = if noted.failures > 0 { ChoreState::Failed } else { ChoreState::Resting };
            noted.turn(state, now, Some(now.after(pause)));
        });
    }

    /// A round begins.
    pub(super) fn works(&self) -> RoundTold<'_> {
        self.change(|noted, now| {
            noted.turn(ChoreState::Working, now, None);
            noted.round_began = now;
        });
        RoundTold { place: self, said: Mutex::default() }
    }

    /// Its round panicked; how long it rests before it is begun anew.
    pub(super) fn panicked(&self, panicked: &Panicked) -> Duration {
        let (mut pause, mut chore) = (PAUSE_MIN, "");
        self.change(|noted, now| {
            noted.last_error = Some((panicked.to_string(), now));
            noted.panics += 1;
            noted.panics_in_row += 1;
            noted.over(RoundSaid::Failed, now);
            pause = noted.pause(now);
            chore = noted.name;
        });
        tracing::error!(chore, error = %panicked, pause_s = pause.as_secs(), "chore panicked");
        let (error, seconds) = (panicked.to_string(), pause.as_secs());
        self.board.events.record(Event::ChorePanicked { chore: chore.to_owned(), error, seconds });
        pause
    }

    /// It will not go on.
    pub(super) fn ends(&self) {
        self.change(|noted, now| noted.turn(ChoreState::Ended, now, None));
    }
}

impl Noted {
    fn turn(&mut self, state: ChoreState, now: Moment, goes_on: Option<Moment>) {
        if self.state != state {
            (self.state, self.since) = (state, now);
        }
        self.goes_on = goes_on;
    }

    fn over(&mut self, said: RoundSaid, now: Moment) {
        (self.rounds, self.round_ended) = (self.rounds + 1, now);
        match said {
            RoundSaid::Nothing => (self.failures, self.panics_in_row) = (0, 0),
            RoundSaid::Looked => {}
            RoundSaid::Failed => {
                self.failures += 1;
                self.rounds_failed += 1;
            }
        }
    }

    /// It panicked now: how long it rests.
    fn pause(&mut self, now: Moment) -> Duration {
        let pause = match self.panicked {
            Some((at, pause)) if now.since(at) < 2 * PAUSE_MAX => (pause * 2).min(PAUSE_MAX),
            _ => PAUSE_MIN,
        };
        self.panicked = Some((now, pause));
        pause.saturating_sub(now.since(self.round_began)).max(PAUSE_MIN)
    }
}

/// What a round has said of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum RoundSaid {
    /// So it did something, and all went well.
    #[default]
    Nothing,
    /// It did nothing, so what failed before it may fail still.
    Looked,
    Failed,
}

/// What a round says of itself while it goes on.
pub(crate) struct RoundTold<'a> {
    place: &'a BoardPlace,
    said: Mutex<RoundSaid>,
}

impl RoundTold<'_> {
    /// Something in this round failed, which a later one will do. The round may go on with something else.
    pub(crate) fn failed(&self, why: impl Display) {
        let why = why.to_string();
        *self.said.lock() = RoundSaid::Failed;
        self.place.change(|noted, now| noted.last_error = Some((why, now)));
    }

    /// This round has only looked whether there is something to do: what failed in the one before is not forgotten.
    pub(crate) fn looked(&self) {
        let mut said = self.said.lock();
        if *said == RoundSaid::Nothing {
            *said = RoundSaid::Looked;
        }
    }

    /// The round is over.
    pub(super) fn over(self) {
        let said = *self.said.lock();
        self.place.change(|noted, now| noted.over(said, now));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use model::{NodeId, WallMillis};
    use runtime::BoxFuture;

    use super::*;

    /// Seconds that pass when a test says so.
    #[derive(Default)]
    struct Seconds(AtomicU64);

    impl Clock for Seconds {
        fn now(&self) -> Moment {
            Moment::default().after(Duration::from_secs(self.0.load(Ordering::Relaxed)))
        }
        fn wall(&self) -> WallMillis {
            WallMillis(0)
        }
        fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    impl Seconds {
        fn pass(&self, seconds: u64) {
            self.0.fetch_add(seconds, Ordering::Relaxed);
        }
    }

    fn board(clock: &Arc<Seconds>, metrics: &Metrics) -> Arc<Board> {
        Board::new(clock.clone(), Events::new(NodeId(1), 0, clock.clone()), metrics)
    }

    fn only(board: &Board) -> ChoreReport {
        let [report] = board.report().try_into().expect("there is one chore");
        report
    }

    #[test]
    fn the_board_shows_what_a_chore_does_and_its_error_until_a_round_succeeds() {
        let (clock, metrics) = (Arc::new(Seconds::default()), Metrics::new());
        let board = board(&clock, &metrics);
        let place = board.add("mend");
        place.rests(Duration::from_secs(5));
        clock.pass(2);
        let ChoreReport { state, seconds, seconds_left, rounds_total, last_error, .. } = only(&board);
        assert_eq!((state, seconds, seconds_left), (ChoreState::Resting, 2.0, Some(3.0)));
        assert_eq!((rounds_total, last_error), (0, None));
        for _ in 0..2 {
            let told = place.works();
            told.failed("the disk is full");
            assert_eq!(only(&board).state, ChoreState::Working);
            told.over();
        }
        place.rests(Duration::from_secs(7));
        clock.pass(8);
        let failed = only(&board);
        assert_eq!((failed.state, failed.seconds_left, failed.failures), (ChoreState::Failed, Some(0.0), 2));
        assert!(failed.is_in_trouble());
        let last_error = ChoreError { error: "the disk is full".to_owned(), seconds_ago: 8.0 };
        assert_eq!(failed.last_error, Some(last_error));
        place.works().over();
        place.ends();
        let ended = only(&board);
        assert_eq!((ended.state, ended.seconds_left, ended.rounds_total), (ChoreState::Ended, None, 3));
        assert!(!ended.is_in_trouble());
    }

    #[test]
    fn pauses_double_with_panics_in_a_row_and_start_again_after_a_long_calm() {
        let clock = Arc::new(Seconds::default());
        let board = board(&clock, &Metrics::new());
        let place = board.add("mend");
        let panicked = || {
            let _ = place.works();
            let pause = place.panicked(&Panicked { place: Some("a.rs:1:2".to_owned()) });
            clock.pass(pause.as_secs());
            pause.as_secs()
        };
        assert_eq!([(); 11].map(|()| panicked()), [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        clock.pass(2 * PAUSE_MAX.as_secs());
        assert_eq!(panicked(), 1);
        let report = only(&board);
        assert_eq!((report.panics_total, report.failures, report.rounds_total), (12, 12, 12));
        assert_eq!(report.last_error.unwrap().error, "a bug: it panicked at a.rs:1:2");
        let told = board.events.after(0, 20);
        assert_eq!(told.len(), 12);
        let text = told[1].event.text();
        assert!(text.contains("mend") && text.contains("a.rs:1:2") && text.contains("in 2 s"), "{text}");
        place.works().over();
        assert_eq!((only(&board).failures, only(&board).panics_total), (0, 12));
    }

    /// A chore may panic after hours of work: that is no reason to rest for long.
    #[test]
    fn a_pause_counts_from_the_begin_of_the_round_that_panicked() {
        let clock = Arc::new(Seconds::default());
        let board = board(&clock, &Metrics::new());
        let place = board.add("mend");
        let panicked_after = |seconds| {
            let _ = place.works();
            clock.pass(seconds);
            place.panicked(&Panicked { place: None }).as_secs()
        };
        assert_eq!([0, 0, 0, 0].map(panicked_after), [1, 2, 4, 8]);
        assert_eq!(panicked_after(10), 6, "16 s after its begin");
        assert_eq!(panicked_after(32), 1, "the shortest pause is kept");
        assert_eq!(panicked_after(0), 64);
        assert_eq!(only(&board).panics_total, 7);
    }

    #[test]
    fn a_round_that_only_looks_does_not_forget_what_failed() {
        let clock = Arc::new(Seconds::default());
        let board = board(&clock, &Metrics::new());
        let place = board.add("mend");
        let told = place.works();
        told.failed("the disk is full");
        told.looked();
        told.over();
        for _ in 0..2 {
            let told = place.works();
            told.looked();
            told.over();
        }
        assert_eq!((only(&board).failures, only(&board).rounds_total), (1, 3));
        place.works().over();
        assert_eq!(only(&board).failures, 0);
    }

    #[test]
    fn metrics_have_a_series_of_each_chore() {
        let (clock, metrics) = (Arc::new(Seconds::default()), Metrics::new());
        let board = board(&clock, &metrics);
        let (mend, count) = (board.add("mend"), board.add("count"));
        let told = mend.works();
        told.failed("no");
        told.over();
        clock.pass(3);
        count.works().over();
        clock.pass(1);
        let text = metrics.text();
        for line in [
            "tontine_chores_rounds_total{chore=\"mend\"} 1",
            "tontine_chores_failed_rounds_total{chore=\"mend\"} 1",
            "tontine_chores_failed_rounds_total{chore=\"count\"} 0",
            "tontine_chores_panics_total{chore=\"mend\"} 0",
            "tontine_chores_round_age_seconds{chore=\"mend\"} 4",
            "tontine_chores_round_age_seconds{chore=\"count\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
    }
}
