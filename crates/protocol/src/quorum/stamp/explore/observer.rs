//! The observer: knows who was asked and what was replied, and judges what the machine says.

use super::*;

/// What an outsider knows of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen {
    pub(super) place: Whereabouts,
    /// Nodes that were asked in this attempt under this ring.
    pub(super) asked: Vec<NodeId>,
    /// The ring of its candidates.
    pub(super) ring: Option<Generation>,
    /// What was replied last in this attempt.
    pub(super) last: Option<Told>,
    /// Whether its candidates must be told anew before it goes on.
    pub(super) outdated: bool,
    /// Whether the own node would not stamp it as a hint.
    pub(super) stood_in: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whereabouts {
    Routing { fresh: bool },
    Asked(NodeId),
    StandsIn,
    Rests,
    Answered,
}

#[derive(Clone, Debug)]
pub(super) struct Observer {
    pub(super) now: Moment,
    /// The newest ring that was told.
    pub(super) ring: Generation,
    pub(super) attempt: u32,
    pub(super) pauses: Option<Duration>,
    pub(super) keys: Vec<Seen>,
}

impl Observer {
    fn is_under_way(&self) -> bool {
        let under_way = |seen: &Seen| !matches!(seen.place, Whereabouts::Rests | Whereabouts::Answered);
        self.keys.iter().any(under_way)
    }

    /// Judges one action and remembers it.
    pub(super) fn see(&mut self, action: &StampAction, scope: &Scope) -> Result<(), String> {
        match action {
            StampAction::Route { keys, pause } => self.see_route(keys, *pause, scope),
            StampAction::Ask { node, keys, patience } => {
                ensure(!keys.is_empty() && keys.is_sorted(), "a message without keys, or in disorder")?;
                ensure(patience.is_some() == (self.attempt < scope.retries), "a wrong patience")?;
                ensure(self.now < DEADLINE, "asks after the deadline")?;
                for &key in keys {
                    self.may_go_on(key)?;
                    let ring = self.ring;
                    let seen = &mut self.keys[key.position()];
                    ensure(seen.ring == Some(ring), "asks by an older ring")?;
                    ensure(scope.best(&seen.asked, ring) == Some(*node), "asks another than the best")?;
                    seen.asked.push(*node);
                    seen.place = Whereabouts::Asked(*node);
                }
                Ok(())
            }
            StampAction::StandIn { node, keys } => {
                ensure(scope.may_stand_in() && scope.own == Some(*node), "stands in where it must not")?;
                ensure(
                    self.now < DEADLINE && !keys.is_empty(),
                    "stands in after the deadline, or for nothing",
                )?;
                for &(key, target) in keys {
                    self.may_go_on(key)?;
                    let ring = self.ring;
                    let seen = &mut self.keys[key.position()];
                    ensure(scope.best(&seen.asked, ring).is_none(), "stands in while a replica is left")?;
                    let news = matches!(seen.last, Some(Told::Outdated(_)));
                    ensure(!seen.stood_in || news, "stands in again after it has refused")?;
                    ensure(target == preference(ring).replicas()[0], "a hint for another than the first")?;
                    seen.place = Whereabouts::StandsIn;
                }
                Ok(())
            }
            StampAction::Answer { key, outcome } => self.see_answer(*key, *outcome, scope),
        }
    }

    /// A key may be begun, or begun elsewhere, only if nobody may have written it.
    fn may_go_on(&self, key: KeyIndex) -> Result<(), String> {
        let seen = &self.keys[key.position()];
        ensure(seen.place == Whereabouts::Rests, "a key is sent to two nodes, or after its answer")?;
        ensure(!seen.outdated, "goes on by candidates that are out of date")?;
        ensure(seen.last.is_none_or(Told::is_certain), "goes on although it may be written")?;
        ensure(seen.last != Some(Told::Rejects), "goes on although others would refuse as well")
    }

    fn see_route(&mut self, keys: &[KeyIndex], pause: Duration, scope: &Scope) -> Result<(), String> {
        ensure(!keys.is_empty() && keys.is_sorted(), "routes nothing, or in disorder")?;
        let retries = !pause.is_zero();
        if retries {
            ensure(!self.is_under_way(), "pauses while something is under way")?;
            ensure(self.attempt < scope.retries && self.now < DEADLINE, "tries too often, or too late")?;
            let resting = self.keys.iter().filter(|seen| seen.place == Whereabouts::Rests).count();
            ensure(keys.len() == resting, "leaves keys out of an attempt")?;
            self.attempt += 1;
            self.pauses = Some(pause);
        }
        for &key in keys {
            let seen = &mut self.keys[key.position()];
            ensure(seen.place == Whereabouts::Rests, "routes what is under way, or answered")?;
            ensure(seen.last.is_none_or(Told::is_certain), "starts again although it may be written")?;
            if retries {
                let ring = self.ring;
                ensure(scope.best(&seen.asked, ring).is_none(), "tries again while a candidate is left")?;
                ensure(!scope.may_stand_in(), "tries again although it could stand in")?;
            } else {
                ensure(seen.ring.is_none() || seen.outdated, "routes again without news or pause")?;
            }
            seen.place = Whereabouts::Routing { fresh: retries || seen.ring.is_none() };
        }
        Ok(())
    }

    fn see_answer(&mut self, key: KeyIndex, outcome: StampOutcome, scope: &Scope) -> Result<(), String> {
        let ring = self.ring;
        let late = self.now >= DEADLINE;
        let last_attempt = self.attempt == scope.retries || late;
        let seen = &mut self.keys[key.position()];
        ensure(seen.place != Whereabouts::Answered, "answered twice")?;
        let place = std::mem::replace(&mut seen.place, Whereabouts::Answered);
        match outcome {
            StampOutcome::Written => ensure(seen.last == Some(Told::Written), "written by nobody"),
            StampOutcome::InDoubt { node } => match place {
                Whereabouts::Asked(asked) => ensure(
                    late && asked == node && Some(node) != scope.own,
                    "in doubt although there is time, or about itself",
                ),
                _ => ensure(
                    matches!(seen.last, Some(Told::Doubts | Told::Lost)),
                    "in doubt although it was certain",
                ),
            },
            StampOutcome::Refused => {
                let stood_in = seen.stood_in && !seen.outdated;
                let ends = scope.entry == StampEntry::Passed || stood_in || seen.last == Some(Told::Rejects);
                ensure(
                    place == Whereabouts::Rests && seen.last.is_some_and(Told::is_certain),
                    "refused by nobody",
                )?;
                ensure(ends, "refused although another may do better")
            }
            StampOutcome::Exhausted => {
                ensure(place == Whereabouts::Rests, "given up while something is under way")?;
                ensure(seen.last.is_none_or(Told::is_certain), "given up although it may be written")?;
                ensure(late || scope.best(&seen.asked, ring).is_none(), "given up before all were asked")?;
                ensure(late || !scope.may_stand_in(), "given up without standing in")?;
                let passed = scope.entry == StampEntry::Passed && !late;
                let here = scope.own.is_some_and(|own| preference(ring).is_replica(own));
                ensure(!passed || here, "given up although it is not here")?;
                let news = matches!(seen.last, Some(Told::Outdated(_)));
                ensure(!passed || news, "given up although its refusal should be told")?;
                ensure(last_attempt, "given up before its attempts were used")
            }
            StampOutcome::NotHere => {
                let own = scope.own.expect("a library is passed nothing");
                let here = preference(ring).is_replica(own);
                ensure(scope.entry == StampEntry::Passed && !here, "not here although it is")
            }
        }
    }

    /// Judges a machine that has nothing to do at the moment.
    pub(super) fn judge_rest(&self, stamp: &Stamp, scope: &Scope) -> Result<(), String> {
        let elsewhere =
            |seen: &Seen| matches!(seen.place, Whereabouts::Asked(node) if Some(node) != scope.own);
        let deadline = self.keys.iter().any(elsewhere).then_some(DEADLINE);
        ensure(stamp.deadline() == deadline, "wakes up at a wrong time")?;
        ensure(deadline.is_none() || self.now < DEADLINE, "waits for others after the deadline")?;
        let open = self.keys.iter().any(|seen| seen.place != Whereabouts::Answered);
        ensure(stamp.is_unanswered() == open, "is wrong about having answered")?;
        for seen in self.keys.iter().filter(|seen| seen.place == Whereabouts::Rests) {
            ensure(self.is_under_way(), "a key rests and nothing is under way")?;
            ensure(!seen.outdated, "news was not followed")?;
            ensure(seen.last.is_none_or(Told::is_certain), "a key rests that was written or is in doubt")?;
            ensure(seen.last != Some(Told::Rejects), "a key rests that was refused for good")?;
            let late = self.now >= DEADLINE;
            let all = scope.best(&seen.asked, self.ring).is_none();
            ensure(all || late, "a key rests while a candidate is left")?;
            ensure(!scope.may_stand_in(), "a key rests that could be parked")?;
        }
        Ok(())
    }
}
