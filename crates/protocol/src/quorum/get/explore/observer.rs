//! The judge of explored gets: it knows which nodes are replicas, what was asked and what was answered, and nothing of the
//! machine inside.

use std::collections::BTreeSet;

use super::*;

/// What an outsider knows.
#[derive(Clone, Debug)]
pub(super) struct Observer {
    pub(super) now: Moment,
    pub(super) end: End,
    /// By node: when it was asked, and what became of it.
    pub(super) asked: [Option<(Moment, Fate)>; 5],
    pub(super) repaired: Vec<NodeId>,
    pub(super) written_back: Vec<WrittenBackTo>,
}

/// One thing that was written back to a node.
#[derive(Clone, Debug)]
pub(super) struct WrittenBackTo {
    pub(super) node: NodeId,
    pub(super) round: u8,
    pub(super) set: VersionSet,
    pub(super) sent: Moment,
    pub(super) fate: Fate,
}

impl Observer {
    pub(super) fn fate(&self, node: NodeId) -> Option<Fate> {
        self.asked[position(node)].map(|(_, fate)| fate)
    }

    fn nodes(&self, fate: Fate) -> impl Iterator<Item = NodeId> {
        NODES.into_iter().filter(move |&node| self.fate(node) == Some(fate))
    }

    fn answered(&self) -> usize {
        self.nodes(Fate::Answered).count()
    }

    fn merged(&self, scope: &Scope) -> VersionSet {
        let mut merged = VersionSet::default();
        self.nodes(Fate::Answered).for_each(|node| merged.merge(&scope.sets[position(node)]));
        merged
    }

    /// Whether the node is known to hold the set: by its answer, or by what it took.
    fn holds(&self, node: NodeId, set: &VersionSet, scope: &Scope) -> bool {
        let answered = self.fate(node) == Some(Fate::Answered) && scope.sets[position(node)].includes(set);
        let took = |back: &&WrittenBackTo| back.node == node && back.fate == Fate::Answered;
        answered || self.written_back.iter().filter(took).any(|back| back.set.includes(set))
    }

    fn holders(&self, set: &VersionSet, scope: &Scope) -> usize {
        least(scope.replicas, scope.spared, |node| self.holds(node, set, scope))
    }

    /// What became of writing back this very set to the node.
    fn back(&self, node: NodeId, set: &VersionSet) -> Option<&WrittenBackTo> {
        self.written_back.iter().find(|back| back.node == node && back.set == *set)
    }

    fn unasked(&self, scope: &Scope) -> usize {
        scope.candidates().iter().filter(|&&node| self.fate(node).is_none()).count()
    }

    /// How many replicas that answer gets have come to this.
    fn readers(&self, scope: &Scope, fate: Fate) -> usize {
        self.nodes(fate).filter(|&node| scope.is_reader(node)).count()
    }

    /// Whether the nodes that were heard make a value known, though too few replicas are among them to deny it.
    fn may_give_a_value(&self, scope: &Scope) -> bool {
        let required = usize::from(scope.required);
        let heard = self.answered() >= required && self.readers(scope, Fate::Answered) < required;
        let live = self.merged(scope).winner().is_some_and(|winner| winner.live(WALL).is_some());
        scope.sloppy && scope.held == 0 && heard && live
    }

    /// Replicas in whose place a fallback may be asked.
    fn replaced(&self, scope: &Scope) -> usize {
        let silent = |node: NodeId, asked: Moment| {
            let own = scope.own == Some(node);
            (scope.suspected.contains(&node) && !own) || self.now >= at(asked.nanos + REPLACED_AFTER)
        };
        let replaced = |&&node: &&NodeId| match self.asked[position(node)] {
            Some((_, Fate::Failed)) => true,
            Some((asked, Fate::Awaited)) => silent(node, asked),
            _ => false,
        };
        scope.readers().iter().filter(replaced).count()
    }

    /// Fallbacks that stand in for a replica, at most: who answered, and who is awaited and in time for sure, or perhaps.
    fn standing_in(&self, scope: &Scope, for_sure: bool) -> usize {
        let stands = |node: &NodeId| match self.asked[position(*node)] {
            Some((_, Fate::Answered)) => true,
            Some((asked, Fate::Awaited)) => {
                let trusted = !scope.suspected.contains(node);
                trusted && (!for_sure || self.now < at(asked.nanos + HEDGE_AFTER))
            }
            _ => false,
        };
        let fallbacks = scope.candidates().into_iter().filter(|&node| !scope.is_reader(node));
        fallbacks.filter(stands).count()
    }

    /// Whether a fallback is missing in the place of a replica.
    fn lacks_fallbacks(&self, scope: &Scope) -> bool {
        let asked = scope.readers().iter().all(|&node| self.fate(node).is_some());
        let required = usize::from(scope.required);
        let possible = scope.readers().len() >= required && self.now < at(DEADLINE);
        let left = self.unasked(scope) > 0 && !self.counts_on_replicas(scope, false);
        asked && possible && left && self.standing_in(scope, false) < self.replaced(scope)
    }

    /// Whether R replicas have answered or are in time, for sure or perhaps not.
    fn counts_on_replicas(&self, scope: &Scope, for_sure: bool) -> bool {
        let patience = if for_sure { HEDGE_AFTER } else { REPLACED_AFTER };
        let in_time = |&&node: &&NodeId| match self.asked[position(node)] {
            Some((_, Fate::Answered)) => true,
            Some((asked, Fate::Awaited)) => {
                let trusted = !scope.suspected.contains(&node) || scope.own == Some(node);
                trusted && self.now < at(asked.nanos + patience)
            }
            _ => false,
        };
        scope.readers().iter().filter(in_time).count() >= usize::from(scope.required)
    }

    pub(super) fn see(&mut self, action: &GetAction, scope: &Scope) -> Result<(), String> {
        match action {
            GetAction::Fetch { node } => {
                ensure(scope.candidates().contains(node), "asks whom it may not ask")?;
                let replicas_first = scope.readers().iter().all(|&replica| self.fate(replica).is_some());
                ensure(scope.is_reader(*node) || replicas_first, "a fallback is asked before a replica")?;
                let enough = self.counts_on_replicas(scope, true);
                let wanted = !enough && self.standing_in(scope, true) < self.replaced(scope);
                ensure(scope.is_reader(*node) || wanted, "a fallback is asked in nobody's place")?;
                let first = self.asked.iter().all(Option::is_none);
                let lags = |node: NodeId| scope.lagging.contains(&node);
                let better = |&replica: &NodeId| {
                    self.fate(replica).is_none() && !lags(replica) && !scope.suspected.contains(&replica)
                };
                ensure(
                    !lags(*node) || !scope.readers().iter().any(better),
                    "one that lags is asked before others",
                )?;
                let own = scope.own.filter(|&own| scope.is_reader(own) && !lags(own));
                ensure(!first || own.is_none_or(|own| own == *node), "the own replica is not asked first")?;
                let asked = self.asked[position(*node)].replace((self.now, Fate::Awaited));
                ensure(asked.is_none(), "asked twice")
            }
            GetAction::Answer(outcome) => {
                ensure(self.end == End::Open, "answered twice")?;
                self.judge(outcome, scope)
            }
            GetAction::WriteBack { node, round, set } => {
                ensure(self.end == End::Open, "writes back after the answer")?;
                ensure(*set == self.merged(scope), "writes back something else than everything known")?;
                ensure(scope.is_replica(*node), "writes back to a fallback")?;
                ensure(!self.holds(*node, set, scope), "writes back to who holds it")?;
                ensure(self.back(*node, set).is_none(), "writes back twice")?;
                let (node, round, set, sent) = (*node, *round, set.clone(), self.now);
                self.written_back.push(WrittenBackTo { node, round, set, sent, fate: Fate::Awaited });
                Ok(())
            }
            GetAction::Repair { node, set } => {
                ensure(self.end == End::Done, "repairs without an answer")?;
                let first = scope.is_replica(*node) && !self.repaired.contains(node);
                ensure(first, "repaired twice, or a fallback")?;
                ensure(*set == self.merged(scope), "repaired with something else than everything known")?;
                self.repaired.push(*node);
                Ok(())
            }
            GetAction::Refresh { generation } => {
                ensure(self.end == End::Open, "refreshed after the answer")?;
                self.end = End::Refreshed;
                ensure(*generation == Generation(GENERATION.0 + 1), "wrong generation")
            }
        }
    }

    fn judge(&mut self, outcome: &GetOutcome, scope: &Scope) -> Result<(), String> {
        let (counted, required) = (self.answered(), usize::from(scope.required));
        let replicas = self.readers(scope, Fate::Answered);
        match outcome {
            GetOutcome::Done { set, answered, sloppy } => {
                self.end = End::Done;
                ensure(counted >= required, "done with too few answers")?;
                ensure(usize::from(*answered) == counted, "done with a wrong count")?;
                ensure(*sloppy == (replicas < required), "done with a wrong sloppiness")?;
                ensure(!sloppy || self.may_give_a_value(scope), "says *absent*, and too few replicas have")?;
                ensure(*set == self.merged(scope), "done with something else than what was answered")?;
                ensure(self.holders(set, scope) >= usize::from(scope.held), "done with too few holders")
            }
            GetOutcome::Failed { reason, .. } => {
                self.end = End::Failed;
                let awaited = self.nodes(Fate::Awaited).count();
                let left = counted + awaited + self.unasked(scope);
                let readers = scope.readers();
                let unasked = readers.iter().filter(|&&node| self.fate(node).is_none()).count();
                let replicas_left = replicas + self.readers(scope, Fate::Awaited) + unasked;
                match *reason {
                    GetFailure::InsufficientReplicas { answered, .. } => ensure(
                        replicas_left < required
                            && (left < required || awaited == 0 || readers.len() < required)
                            && (left < required || !self.lacks_fallbacks(scope))
                            && !self.may_give_a_value(scope)
                            && usize::from(answered) == replicas,
                        "failed although enough are left",
                    ),
                    GetFailure::NotHeld { holders, .. } => {
                        let merged = self.merged(scope);
                        let may = |node: &NodeId| {
                            let refused =
                                self.back(*node, &merged).is_some_and(|back| back.fate == Fate::Failed);
                            self.holds(*node, &merged, scope)
                                || !refused
                                || self.fate(*node) == Some(Fate::Awaited)
                        };
                        let possible = least(scope.replicas, scope.spared, |node| may(&node));
                        ensure(
                            counted >= required
                                && usize::from(holders) == self.holders(&merged, scope)
                                && holders < scope.held
                                && (self.now >= at(DEADLINE) || possible < usize::from(scope.held)),
                            "failed although enough may hold it",
                        )
                    }
                    GetFailure::DeadlinePassed { answered, .. } => {
                        let late = self.now >= at(DEADLINE) && left >= required && replicas < required;
                        ensure(!self.may_give_a_value(scope), "keeps a value back")?;
                        ensure(late && usize::from(answered) == replicas, "failed before the deadline")
                    }
                }
            }
        }
    }

    /// Judges a machine that has nothing to do at the moment.
    pub(super) fn judge_rest(&self, deadline: Option<Moment>, scope: &Scope) -> Result<(), String> {
        if let Some(deadline) = deadline {
            ensure(self.now < deadline && deadline <= at(DEADLINE), "wakes up at a wrong time")?;
            if self.end == End::Open { self.judge_patience(scope) } else { Ok(()) }
        } else {
            ensure(self.end != End::Open, "ended without an answer")?;
            if self.end == End::Done { self.judge_repairs(scope) } else { Ok(()) }
        }
    }

    fn judge_repairs(&self, scope: &Scope) -> Result<(), String> {
        let merged = self.merged(scope);
        let lacks = |node: &NodeId| {
            let lacks = scope.is_reader(*node) && !scope.sets[position(*node)].includes(&merged);
            lacks && self.back(*node, &merged).is_none()
        };
        let mut lacking: BTreeSet<_> = self.nodes(Fate::Answered).filter(lacks).collect();
        if !lacking.is_empty() {
            let silent = NODES.into_iter().filter(|&node| scope.is_replica(node) && !scope.is_reader(node));
            lacking.extend(silent.filter(|&node| self.back(node, &merged).is_none()));
        }
        ensure(lacking == self.repaired.iter().copied().collect(), "repaired the wrong replicas")?;
        let waited = self.now >= at(DEADLINE) || self.nodes(Fate::Awaited).count() == 0;
        ensure(waited, "repaired before everybody answered")
    }

    /// Judges a machine whose caller waits for replicas to hold what it will be answered.
    fn judge_settling(&self, scope: &Scope) -> Result<(), String> {
        let (merged, held) = (self.merged(scope), usize::from(scope.held));
        let holders = self.holders(&merged, scope);
        let earlier = self.written_back.iter().any(|back| back.set != merged);
        ensure(holders < held || earlier, "enough hold it, and it waits")?;
        let awaited: Vec<_> = self
            .written_back
            .iter()
            .filter(|back| back.set == merged && back.fate == Fate::Awaited)
            .collect();
        let waits = !awaited.is_empty() || self.nodes(Fate::Awaited).count() > 0;
        ensure(waits, "waits for nobody to hold it")?;
        let open = |&&node: &&NodeId| !self.holds(node, &merged, scope) && self.back(node, &merged).is_none();
        let fresh = |back: &WrittenBackTo| {
            let patient = self.now.since(back.sent) < Duration::from_nanos(HEDGE_AFTER);
            patient && !scope.suspected.contains(&back.node)
        };
        let judged = self.now <= at(HEDGE_AFTER);
        scope.replicas.iter().zip(scope.spared).try_for_each(|(set, spared)| {
            let held = held - usize::from(spared);
            let expected = |&&node: &&NodeId| {
                self.holds(node, &merged, scope)
                    || awaited.iter().any(|back| back.node == node && fresh(back))
            };
            let complete =
                set.iter().filter(expected).count() >= held || set.iter().filter(open).count() == 0;
            ensure(!judged || complete, "a missing holder is not written to")
        })
    }

    /// Judges a machine whose caller waits.
    fn judge_patience(&self, scope: &Scope) -> Result<(), String> {
        let (answered, required) = (self.readers(scope, Fate::Answered), usize::from(scope.required));
        let hoped = usize::from(scope.held).min(scope.readers().len());
        let target = usize::from(scope.preferred.max(scope.required)).max(hoped);
        let awaited = self.readers(scope, Fate::Awaited);
        let patient = self.now < at(HEDGE_AFTER) && awaited > 0;
        if scope.held > 0 && (answered >= target || (answered >= required && !patient)) {
            return self.judge_settling(scope);
        }
        ensure(answered < target, "has what it hoped for and waits")?;
        ensure(answered < required || patient, "has enough, no patience, and waits")?;
        ensure(!self.may_give_a_value(scope), "keeps a value back")?;
        ensure(self.nodes(Fate::Awaited).count() > 0, "waits for nobody")?;
        ensure(answered >= required || !self.lacks_fallbacks(scope), "nobody stands in for a replica")?;
        let trusted = |node: &NodeId| !scope.suspected.contains(node) && scope.is_reader(*node);
        let fresh = |node: &NodeId| match self.asked[position(*node)] {
            Some((asked, _)) => asked == self.now || self.now < at(HEDGE_AFTER),
            None => false,
        };
        let expected = answered + self.nodes(Fate::Awaited).filter(trusted).filter(fresh).count();
        let target = if self.now < at(HEDGE_AFTER) { target } else { required };
        let unasked = scope.readers().iter().any(|&node| self.fate(node).is_none());
        let judged = self.now <= at(HEDGE_AFTER) && unasked;
        ensure(!judged || expected >= target, "a missing answer is not asked for elsewhere")
    }
}
