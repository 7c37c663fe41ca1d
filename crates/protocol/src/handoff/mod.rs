//! Handoff: how the hints for one target reach it.
//!
//! ```text
//!   TargetRose                    ┌──────────── page read ◀── ReadPage ◀─┐
//!   ──────────▶ walk the hints ──▶│ batches, paced ──▶ Carry ──▶ Settled │──▶ nothing left: done
//!   TargetFell                    └──────────────────────────────────────┘    something left: rest, walk again
//!   ──────────▶ stop at once; look over the hints when the oldest may have grown too old, or the ring has changed
//! ```
//!
//! One machine serves one target at one holder; any number of targets have one each, and share nothing, so a target
//! that is slow or flaps costs the others nothing.
//!
//! **Pace.** Bytes have a rate ([`crate::pace`]). It grows by a step with each quick answer and halves when the target
//! is late or overloaded. It halves, and does not grow, while the workers of either node are late for the least of
//! requests: hints take what requests leave, but never less than this holder's part of the lowest rate, so delivery
//! ends. While a batch is late nothing further is sent. A target that cannot be reached, or refuses
//! everything, is left alone for a pause that doubles, with jitter from the dice that the machine was given; the
//! pace begins at its minimum when a target comes back, so that many holders do not overrun it together.
//!
//! **What is done with a hint** is decided when it is sent, not when it was parked: it is delivered if the target is
//! alive and still a replica; readdressed to the present replicas if the target no longer is one, whether or not it
//! is alive; given up if it is too old and the target still out of reach; otherwise it waits.
//!
//! **Architecture Invariant:** nothing is delivered while the target is not alive, and no more than the rate allows.
//! Late, repeated and foreign events change nothing.

mod interface;
mod pace;
#[cfg(test)]
mod trials;

use std::ops::Range;
use std::time::Duration;

use model::Moment;
use smallvec::SmallVec;

pub use interface::{BatchId, Errand, Fault, HandoffAction, HandoffEvent, HandoffOptions, HintFacts, PageId};
use pace::TargetPace;

/// Actions of one step.
pub type HandoffActions = SmallVec<[HandoffAction; 4]>;

/// Bytes that a hint costs beside its content: the bookkeeping at both ends.
const HINT_OVERHEAD_BYTES: u64 = 256;

/// The handoff of one holder's hints for one target.
#[derive(Clone, Debug)]
pub struct Handoff {
    options: HandoffOptions,
    pace: TargetPace,
    /// The latest time that the machine was told; never goes back.
    now: Moment,
    alive: bool,
    walk: HintWalk,
    /// Batches under way, oldest first; at most `batches_max`.
    flights: SmallVec<[Flight; 4]>,
    /// When the next walk begins: there may be hints that the one under way, or the last one, has not settled.
    walk_at: Option<Moment>,
    pages: u64,
    batches: u64,
}

#[derive(Clone, Debug)]
enum HintWalk {
    /// None is under way.
    Resting,
    /// A page is being read.
    Reading { page: PageId, tally: Tally },
    /// A page is being carried out, from this position on.
    Open { hints: Vec<HintFacts>, position: usize, more: bool, tally: Tally },
    /// All pages are carried out, batches are under way.
    Ending { tally: Tally },
}

/// What a walk has met.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    removed: usize,
    /// Hints that stay although something was tried.
    refused: usize,
    /// Hints that wait for the target.
    waiting: usize,
    /// Age of the oldest of them when the walk met it.
    oldest: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    batch: BatchId,
    errand: Errand,
    sent_at: Moment,
    /// Whether its lateness has been answered for.
    late: bool,
}

impl Handoff {
    /// For a target of which nothing is known yet: it counts as away until [`HandoffEvent::TargetRose`]. `holders` is
    /// how many nodes may hold hints for it, and `dice` should differ from one to the next. The first walk may begin at
    /// once.
    pub fn new(options: HandoffOptions, holders: u32, dice: u64, now: Moment) -> Self {
        let rate_min = (options.rate_min / u64::from(holders.max(1))).clamp(1, options.rate_max.max(1));
        let options = HandoffOptions { rate_min, ..options };
        Handoff {
            options,
            pace: TargetPace::new(&options, dice, now),
            now,
            alive: false,
            walk: HintWalk::Resting,
            flights: SmallVec::new(),
            walk_at: Some(now),
            pages: 0,
            batches: 0,
        }
    }

    /// Takes in what has happened by `now`, and says what to do.
    pub fn step(&mut self, event: HandoffEvent, now: Moment, actions: &mut HandoffActions) {
        self.now = self.now.max(now);
        match event {
            HandoffEvent::TargetRose => self.rise(),
            HandoffEvent::TargetFell => self.fall(),
            HandoffEvent::Parked => self.walk_within(self.patience()),
            HandoffEvent::Rerouted => {
                // What was read says under the older ring who holds the keys.
                self.abandon();
                self.walk_within(self.options.rest);
            }
            HandoffEvent::PageRead { page, hints, more } => self.open(page, hints, more),
            HandoffEvent::PageFailed { page } => {
                if matches!(self.walk, HintWalk::Reading { page: reading, .. } if reading == page) {
                    self.give_way(self.now);
                }
            }
            HandoffEvent::Settled { batch, removed, left, fault } => self.settle(batch, removed, left, fault),
            HandoffEvent::WorkersAsked { times } => self.pace.press(self.now, times > 1),
            HandoffEvent::Elapsed => {}
        }
        self.look_for_late();
        self.go_on(actions);
        self.check();
    }

    /// What holds after every step.
    fn check(&self) {
        assert!(
            self.flights.len() <= self.options.batches_max.max(1),
            "no more batches are under way than may be"
        );
        assert!(
            self.flights
                .windows(2)
                .all(|pair| pair[0].batch < pair[1].batch && pair[0].sent_at <= pair[1].sent_at),
            "batches are kept oldest first"
        );
        assert!(
            self.flights.iter().all(|flight| flight.batch.0 < self.batches && flight.sent_at <= self.now),
            "what is under way was sent"
        );
        match &self.walk {
            HintWalk::Resting => assert!(
                self.flights.is_empty() || self.walk_at.is_some(),
                "what a batch leaves is met by another walk"
            ),
            HintWalk::Reading { page, .. } => {
                assert_eq!(page.0 + 1, self.pages, "the last page asked for is read")
            }
            HintWalk::Open { hints, position, .. } => {
                assert!(*position <= hints.len(), "a page is carried out to its end");
            }
            HintWalk::Ending { .. } => assert!(!self.flights.is_empty(), "a walk ends when its batches have"),
        }
        self.pace.check(&self.options);
    }

    /// When the machine must be told that time has passed; `None` while only an event can bring it further.
    pub fn deadline(&self) -> Option<Moment> {
        let next = match &self.walk {
            HintWalk::Resting => self.begins_at(),
            HintWalk::Open { .. } if self.may_fly() => Some(self.pace.ready_at()),
            _ => None,
        };
        let flights = self.flights.iter().map(|flight| match flight.late {
            false => flight.sent_at.after(self.options.late_after.min(self.options.lost_after)),
            true => flight.sent_at.after(self.options.lost_after),
        });
        flights.chain(next).min().map(|deadline| deadline.max(self.now.after(Duration::from_nanos(1))))
    }

    /// Whether the last walk met every hint and none is left, so that nothing is to be done before another is parked.
    pub fn is_done(&self) -> bool {
        matches!(self.walk, HintWalk::Resting) && self.walk_at.is_none() && self.flights.is_empty()
    }

    /// Whether hints flow, or would if they were not paused.
    pub fn is_delivering(&self) -> bool {
        self.alive && !self.is_done()
    }

    /// Bytes per second that the target may be sent now.
    pub fn rate(&self) -> u64 {
        self.pace.rate()
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.pace.failures()
    }

    fn rise(&mut self) {
        if !self.alive {
            self.alive = true;
            self.pace.begin_again(&self.options, self.now);
            self.abandon();
            // At the moment that was drawn.
            self.walk_at = Some(self.now);
        }
    }

    fn fall(&mut self) {
        if self.alive {
            self.alive = false;
            if self.abandon() {
                self.walk_at = Some(self.now.after(self.options.sweep_every));
            }
        }
    }

    /// When the next walk begins. Looking over the hints of a target that is away need not wait for it.
    fn begins_at(&self) -> Option<Moment> {
        let pause = if self.alive { self.pace.resume_at() } else { Moment::default() };
        self.walk_at.map(|begins_at| begins_at.max(pause))
    }

    /// Sees to it that a walk begins within this time.
    fn walk_within(&mut self, span: Duration) {
        let begins_at = self.now.after(span);
        self.walk_at = Some(self.walk_at.map_or(begins_at, |known| known.min(begins_at)));
    }

    /// How long hints wait at most that may be moved as things stand.
    fn patience(&self) -> Duration {
        if self.alive { self.options.rest } else { self.options.sweep_every }
    }

    fn open(&mut self, page: PageId, hints: Vec<HintFacts>, more: bool) {
        if let HintWalk::Reading { page: reading, tally } = self.walk
            && reading == page
        {
            self.walk = HintWalk::Open { hints, position: 0, more, tally };
        }
    }

    fn settle(&mut self, batch: BatchId, removed: usize, left: usize, fault: Option<Fault>) {
        let Some(position) = self.flights.iter().position(|flight| flight.batch == batch) else { return };
        let flight = self.flights.remove(position);
        if let Some(tally) = self.tally() {
            tally.removed += removed;
            tally.refused += left;
        }
        if flight.errand != Errand::Deliver {
            return;
        }
        match fault {
            None if self.now.since(flight.sent_at) <= self.options.late_after => {
                self.pace.quicken(self.now);
            }
            None => self.pace.halve(flight.sent_at, self.now),
            // What one hint is refused for need not concern the next.
            Some(Fault::Refused) => self.pace.halve(flight.sent_at, self.now),
            Some(Fault::Overloaded | Fault::Unreachable) => {
                self.pace.halve(flight.sent_at, self.now);
                self.give_way(flight.sent_at);
            }
        }
    }

    /// Answers for batches that are late or lost.
    fn look_for_late(&mut self) {
        let mut lost = None;
        for flight in &mut self.flights {
            let age = self.now.since(flight.sent_at);
            if !flight.late && age >= self.options.late_after {
                flight.late = true;
                if flight.errand == Errand::Deliver {
                    self.pace.halve(flight.sent_at, self.now);
                }
            }
            if age >= self.options.lost_after && flight.errand == Errand::Deliver {
                lost = Some(flight.sent_at);
            }
        }
        let before = self.flights.len();
        let (now, lost_after) = (self.now, self.options.lost_after);
        self.flights.retain(|flight| now.since(flight.sent_at) < lost_after);
        let gone = before - self.flights.len();
        if let Some(tally) = self.tally() {
            tally.refused += gone;
        }
        if let Some(sent_at) = lost {
            self.give_way(sent_at);
        }
    }

    /// Leaves a target that failed a batch sent at `sent_at` alone for a while.
    fn give_way(&mut self, sent_at: Moment) {
        self.pace.pause(&self.options, sent_at, self.now);
        self.abandon();
        self.walk_within(self.patience());
    }

    /// Ends the walk where it is, if one is under way. What it has not met is left for the next one.
    fn abandon(&mut self) -> bool {
        let walking = !matches!(self.walk, HintWalk::Resting);
        self.walk = HintWalk::Resting;
        walking || self.walk_at.is_some()
    }

    fn tally(&mut self) -> Option<&mut Tally> {
        match &mut self.walk {
            HintWalk::Resting => None,
            HintWalk::Reading { tally, .. } | HintWalk::Open { tally, .. } | HintWalk::Ending { tally } => {
                Some(tally)
            }
        }
    }

    /// Whether another batch may be under way.
    fn may_fly(&self) -> bool {
        self.flights.len() < self.options.batches_max.max(1) && !self.flights.iter().any(|flight| flight.late)
    }

    /// Brings the machine to rest: nothing is left that it could do now.
    fn go_on(&mut self, actions: &mut HandoffActions) {
        loop {
            match std::mem::replace(&mut self.walk, HintWalk::Resting) {
                HintWalk::Resting => {
                    if self.begins_at().is_some_and(|begins_at| begins_at <= self.now) {
                        self.walk_at = None;
                        self.read(true, Tally::default(), actions);
                    }
                    return;
                }
                HintWalk::Open { hints, position, more, tally } => {
                    if !self.carry(hints, position, more, tally, actions) {
                        return;
                    }
                }
                HintWalk::Ending { tally } if self.flights.is_empty() => {
                    self.end(tally);
                    return;
                }
                walk => {
                    self.walk = walk;
                    return;
                }
            }
        }
    }

    fn read(&mut self, first: bool, tally: Tally, actions: &mut HandoffActions) {
        let page = PageId(self.pages);
        self.pages += 1;
        self.walk = HintWalk::Reading { page, tally };
        actions.push(HandoffAction::ReadPage { page, first });
    }

    /// Sends one batch of the page, or turns to the next page; false when the machine must wait.
    fn carry(
        &mut self,
        hints: Vec<HintFacts>,
        mut position: usize,
        more: bool,
        mut tally: Tally,
        actions: &mut HandoffActions,
    ) -> bool {
        while position < hints.len() && self.errand(&hints[position]).is_none() {
            tally.waiting += 1;
            tally.oldest = tally.oldest.max(hints[position].age);
            position += 1;
        }
        let Some(errand) = hints.get(position).and_then(|hint| self.errand(hint)) else {
            if more {
                self.read(false, tally, actions);
                return false;
            }
            self.walk = HintWalk::Ending { tally };
            return true;
        };
        if !self.may_fly() || self.pace.ready_at() > self.now {
            self.walk = HintWalk::Open { hints, position, more, tally };
            return false;
        }
        let range = self.batch(&hints, position, errand);
        let bytes = hints[range.clone()].iter().map(cost).sum();
        assert!(range.start == position && range.end > position, "a batch takes the next hints");
        assert!(errand != Errand::Deliver || self.alive, "nothing is delivered to a target that is away");
        position = range.end;
        self.pace.take(self.now, bytes);
        let batch = BatchId(self.batches);
        self.batches += 1;
        self.flights.push(Flight { batch, errand, sent_at: self.now, late: false });
        actions.push(HandoffAction::Carry { batch, errand, hints: range });
        self.walk = HintWalk::Open { hints, position, more, tally };
        true
    }

    /// What is to be done with a hint now; `None`: it waits.
    fn errand(&self, hint: &HintFacts) -> Option<Errand> {
        match hint {
            HintFacts { moved: true, .. } => Some(Errand::Readdress),
            // Whoever counts as alive and takes nothing is as good as away.
            HintFacts { age, .. } if *age > self.options.age_max && self.is_out_of_reach() => {
                Some(Errand::GiveUp)
            }
            _ => self.alive.then_some(Errand::Deliver),
        }
    }

    fn is_out_of_reach(&self) -> bool {
        !self.alive || self.pace.failures() > 0
    }

    /// The hints from `position` on that travel together.
    fn batch(&self, hints: &[HintFacts], position: usize, errand: Errand) -> Range<usize> {
        let (mut end, mut bytes) = (position, 0);
        while end < hints.len() && end - position < self.options.batch_hints_max.max(1) {
            bytes += hints[end].bytes;
            let full = end > position && bytes > self.options.batch_bytes_max;
            if full || self.errand(&hints[end]) != Some(errand) {
                break;
            }
            end += 1;
        }
        position..end
    }

    /// A walk met every hint that was there when it began.
    fn end(&mut self, tally: Tally) {
        if tally.waiting + tally.refused == 0 {
            return;
        }
        if !self.alive {
            let due = match tally.refused {
                0 => self.options.age_max.saturating_sub(tally.oldest),
                // What was tried in vain is tried with the next look, however young it is.
                _ => Duration::ZERO,
            };
            self.walk_within(due.max(self.options.sweep_every));
            return;
        }
        // Refusals alone are no progress: whoever took nothing is left alone for a while.
        if tally.removed == 0 {
            self.pace.pause(&self.options, self.now, self.now);
        }
        self.walk_within(self.options.rest);
    }
}

/// What a hint costs of the pace.
fn cost(hint: &HintFacts) -> u64 {
    hint.bytes.saturating_add(HINT_OVERHEAD_BYTES)
}
