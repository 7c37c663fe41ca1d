//! What every quorum machine looks like to its driver.

use model::Moment;

/// A request that waits for nodes: told what has happened, it says what to do.
///
/// Exists so that the loop around a machine, and the grouping of many machines, are each written once.
pub trait Machine {
    /// What it is told.
    type Event;
    /// What it wants done, collected over one step.
    type Actions: Default;
    /// The event of having been woken at [`Machine::deadline`].
    const ELAPSED: Self::Event;

    /// Takes in what has happened by `now`, and says what to do.
    fn step(&mut self, event: Self::Event, now: Moment, actions: &mut Self::Actions);

    /// When it must be told that time has passed, at the latest; `None` when it has nothing left to do.
    fn deadline(&self) -> Option<Moment>;

    /// Whether its caller still waits, for an answer or to start again.
    fn is_unanswered(&self) -> bool;
}

/// Implements [`Machine`] by the machine's own methods, which callers without a driver use directly.
macro_rules! machine {
    ($machine:ty, $event:ty, $actions:ty) => {
        impl $crate::quorum::Machine for $machine {
            type Event = $event;
            type Actions = $actions;
            const ELAPSED: $event = <$event>::Elapsed;

            #[inline]
            fn step(&mut self, event: $event, now: ::model::Moment, actions: &mut $actions) {
                <$machine>::step(self, event, now, actions);
            }

            #[inline]
            fn deadline(&self) -> Option<::model::Moment> {
                <$machine>::deadline(self)
            }

            #[inline]
            fn is_unanswered(&self) -> bool {
                <$machine>::is_unanswered(self)
            }
        }
    };
}
pub(super) use machine;
