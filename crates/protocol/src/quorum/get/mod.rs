//! The quorum of a get.
//!
//! The first wave goes to as many nodes as answers are hoped for: the own node if it is a replica, then replicas
//! that nobody suspects, then the others. Whoever fails, is late or was suspected from the start is complemented by
//! the next candidate; in a sloppy quorum fallbacks follow the replicas, because they may hold hints.
//! Answers are merged as they come. A get that was answered still collects what it asked for, and then repairs
//! the replicas that turned out to lack something.
//!
//! **Why one bit per replica is enough for read repair.** The merged set only grows. Every set that was merged is
//! included in it, so a replica lacks something exactly if its set was not *equal* to the merged one, and once the
//! merged set grows beyond what it was, every earlier answer lacks something.
//!
//! A get may also have to leave what it answers with so many replicas that no later get misses it: see [`settle`].
//!
//! **While the partition moves** those that read are asked, as ever; replicas that only take writes are repaired with
//! the others, and are written back to.
//!
//! A get changes nothing that was not written, so it is never indeterminate.

#[cfg(test)]
mod explore;
mod interface;
mod settle;

use model::{Generation, Moment, NodeId, Sets, VersionSet};
use smallvec::SmallVec;

use settle::WrittenBack;

pub use interface::{GetAction, GetActions, GetEvent, GetFailure, GetOutcome};

use super::machine::machine;
use super::options::{Candidates, QuorumOptions, saturated};
use super::replica_error::{Errors, ReplicaError};

/// The quorum of one get.
#[derive(Clone, Debug)]
pub struct Get {
    /// In the order in which they are asked; replicas first. Those that only take writes come last and are never asked.
    members: SmallVec<[Member; 8]>,
    /// Members before this position may be asked.
    askable: usize,
    /// Members before this position have been asked, the others not.
    next: usize,
    options: QuorumOptions,
    phase: Phase,
    /// The latest time that the machine was told; never goes back.
    now: Moment,
    /// Until when more than the required answers are waited for.
    patience: Moment,
    /// Waves of nodes brought in beside late ones.
    waves: u32,
    /// When nodes were last asked: who was late by then has been complemented.
    waved_at: Moment,
    /// Every answer so far.
    merged: VersionSet,
    /// Counts how often the merged set has grown while it was written back.
    round: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The caller waits for answers.
    Collecting,
    /// The caller waits until enough replicas hold what was answered.
    Settling,
    /// The caller has its answer, stragglers are awaited for repair.
    Repairing,
    /// Nothing is left to do.
    Finished,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    node: NodeId,
    sets: Sets,
    fallback: bool,
    suspected: bool,
    reply: Reply,
    written_back: WrittenBack,
    /// From then on its answer, or acknowledgement, is no longer counted on.
    late_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Unasked,
    Awaited,
    Failed(ReplicaError),
    Answered {
        /// Whether its set equals the merged one.
        current: bool,
    },
}

/// Where the asked members stand.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    answered: usize,
    replicas_answered: usize,
    awaited: usize,
    /// Of the awaited those that can be counted on.
    fresh: usize,
}

machine!(Get, GetEvent, GetActions);

impl Get {
    /// Starts a get; `own` is the coordinator's node, if it is one.
    ///
    /// The answer may be among the first actions: when too few nodes exist, or the deadline has passed.
    pub fn start(
        candidates: Candidates<'_>,
        own: Option<NodeId>,
        options: QuorumOptions,
        now: Moment,
        actions: &mut GetActions,
    ) -> Self {
        let options = options.bounded(candidates.preference).hoping_for_holders(candidates.preference);
        let (members, askable) = members(candidates, own, options.sloppy && options.held == 0);
        let mut get = Get {
            members,
            askable,
            next: 0,
            options,
            phase: Phase::Collecting,
            now,
            patience: options.late_at(now, 0),
            waves: 0,
            waved_at: now,
            merged: VersionSet::default(),
            round: 0,
        };
        get.settle(actions);
        get
    }

    /// Takes in what has happened by `now`, and says what to do.
    pub fn step(&mut self, event: GetEvent, now: Moment, actions: &mut GetActions) {
        self.now = self.now.max(now);
        if self.phase == Phase::Finished {
            return;
        }
        match event {
            GetEvent::Answered { node, generation, set } => {
                if self.options.counts(generation) {
                    self.merge(node, set);
                }
            }
            GetEvent::Failed { node, error } | GetEvent::NotStored { node, error, .. }
                if self.newer_generation(node, error).is_some() =>
            {
                let generation = self.newer_generation(node, error).expect("just looked at");
                self.phase = Phase::Finished;
                actions.push(GetAction::Refresh { generation });
                return;
            }
            GetEvent::Failed { node, error } => self.fail(node, error),
            GetEvent::Stored { node, generation, round } => self.stored(node, generation, round),
            GetEvent::NotStored { node, round, error } => self.not_stored(node, round, error),
            GetEvent::Elapsed => {}
        }
        self.settle(actions);
    }

    /// When the machine must be told that time has passed; `None` when it has nothing left to do.
    pub fn deadline(&self) -> Option<Moment> {
        let end = match self.phase {
            Phase::Finished => return None,
            Phase::Repairing => return Some(self.options.deadline),
            Phase::Settling => return Some(self.settling_deadline()),
            Phase::Collecting => self.options.deadline,
        };
        if self.answered() >= self.options.required {
            return Some(end.min(self.patience));
        }
        if self.next == self.askable {
            return Some(end);
        }
        let fresh = self.members.iter().filter(|member| member.is_fresh(self.now));
        Some(fresh.fold(end, |end, member| end.min(member.late_at)))
    }

    /// Whether the caller still waits.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.phase, Phase::Collecting | Phase::Settling)
    }

    /// The generation of a refusal that ends this request: from a node that was asked, while the caller waits.
    fn newer_generation(&self, node: NodeId, error: ReplicaError) -> Option<Generation> {
        let ReplicaError::StaleGeneration { generation } = error else { return None };
        let asked =
            |member: &Member| member.reply != Reply::Unasked || member.written_back != WrittenBack::No;
        let asked = self.members.iter().any(|member| member.node == node && asked(member));
        (asked && self.is_unanswered() && generation > self.options.generation).then_some(generation)
    }

    fn fail(&mut self, node: NodeId, error: ReplicaError) {
        let asked = &mut self.members[..self.next];
        if let Some(member) = asked.iter_mut().find(|member| member.node == node)
            && member.reply == Reply::Awaited
        {
            member.reply = Reply::Failed(error);
        }
    }

    /// Takes in what a node holds.
    fn merge(&mut self, node: NodeId, set: VersionSet) {
        let Some(position) = self.members[..self.next].iter().position(|member| member.node == node) else {
            return;
        };
        if matches!(self.members[position].reply, Reply::Answered { .. }) {
            return;
        }
        let first = self.answered() == 0;
        let (known, whole) = (!first && self.merged.includes(&set), first || set.includes(&self.merged));
        match (known, whole) {
            (true, _) => {}
            (false, true) => self.merged = set,
            (false, false) => self.merged.merge(&set),
        }
        if !known && self.phase != Phase::Collecting {
            self.begin_round();
        }
        if !known {
            for member in &mut self.members[..self.next] {
                if let Reply::Answered { current } = &mut member.reply {
                    *current = false;
                }
            }
        }
        self.members[position].reply = Reply::Answered { current: whole };
    }

    /// Brings the machine to rest: nothing is left that it could do now.
    fn settle(&mut self, actions: &mut GetActions) {
        let mut tally = self.tally();
        if self.phase == Phase::Collecting {
            self.ask(&mut tally, actions);
            self.answer(tally, actions);
        }
        if self.phase == Phase::Settling {
            self.write_back(actions);
        }
        if self.phase == Phase::Repairing && (tally.awaited == 0 || self.now >= self.options.deadline) {
            self.repair(actions);
        }
        debug_assert!(
            self.deadline().is_none_or(|deadline| deadline > self.now),
            "a machine at rest waits for the future"
        );
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// What holds between its fields after every step.
    fn check(&self) {
        assert!(
            self.next <= self.askable && self.askable <= self.members.len(),
            "members are asked in their order"
        );
        let (asked, unasked) = self.members.split_at(self.next);
        assert!(asked.iter().all(|member| member.reply != Reply::Unasked), "those before were asked");
        assert!(unasked.iter().all(|member| member.reply == Reply::Unasked), "those behind were not");
        let back = |member: &&Member| member.written_back != WrittenBack::No;
        let mut written_back = self.members.iter().filter(back);
        assert!(written_back.all(|member| !member.fallback), "only replicas are written back to");
        let earlier = self.phase == Phase::Collecting && self.round > 0;
        assert!(!earlier, "rounds are counted only once something is written back");
        let first_fallback = self.members.iter().position(|member| member.fallback);
        let replicas_last = self.members[..self.askable].iter().rposition(|member| !member.fallback);
        assert!(first_fallback.is_none_or(|first| replicas_last.is_none_or(|last| last < first)));
    }

    /// Asks as many further candidates as answers are missing that can be counted on.
    fn ask(&mut self, tally: &mut Tally, actions: &mut GetActions) {
        let Get { options, now, .. } = *self;
        let target = if now < self.patience { options.preferred } else { options.required };
        let mut expected = tally.answered + tally.fresh;
        let hopeless = self.askable < usize::from(options.required);
        if expected >= usize::from(target) || now >= options.deadline || hopeless {
            return;
        }
        let late = self.members[..self.next].iter().any(|member| member.is_late(self.waved_at, now));
        let wave = self.waves + u32::from(late);
        let late_at = options.late_at(now, wave);
        while expected < usize::from(target) && self.next < self.askable {
            let member = &mut self.members[self.next];
            self.next += 1;
            (self.waves, self.waved_at) = (wave, now);
            member.reply = Reply::Awaited;
            member.late_at = if member.suspected { now } else { late_at };
            expected += usize::from(!member.suspected);
            tally.awaited += 1;
            actions.push(GetAction::Fetch { node: member.node });
        }
    }

    /// Answers as soon as it is decided how.
    fn answer(&mut self, tally: Tally, actions: &mut GetActions) {
        let QuorumOptions { required, preferred, deadline, .. } = self.options;
        let (answered, awaited) = (saturated(tally.answered), tally.awaited);
        let unasked = self.askable - self.next;
        let patient = self.now < self.patience && self.now < deadline && awaited > 0;
        if answered >= preferred || (answered >= required && !patient) {
            if self.options.held > 0 {
                self.phase = Phase::Settling;
            } else {
                self.answer_done(actions);
            }
            return;
        }
        let reason = if usize::from(answered) + awaited + unasked < usize::from(required) {
            GetFailure::InsufficientReplicas { answered, required }
        } else if self.now >= deadline {
            GetFailure::DeadlinePassed { answered, required }
        } else {
            return;
        };
        self.phase = Phase::Finished;
        actions.push(GetAction::Answer(GetOutcome::Failed { reason, errors: self.errors() }));
    }

    /// Answers with what is known.
    fn answer_done(&mut self, actions: &mut GetActions) {
        assert!(self.is_unanswered(), "a get is answered once");
        let Tally { answered, replicas_answered, awaited, .. } = self.tally();
        self.phase = Phase::Repairing;
        let sloppy = saturated(replicas_answered) < self.options.required;
        // Nobody compares with the merged set any more: it can go without a copy.
        let last = awaited == 0 && self.stale().next().is_none();
        let set = if last { std::mem::take(&mut self.merged) } else { self.merged.clone() };
        actions.push(GetAction::Answer(GetOutcome::Done { set, answered: saturated(answered), sloppy }));
    }

    /// Sends the merged set to every replica whose answer lacked part of it, and ends.
    fn repair(&mut self, actions: &mut GetActions) {
        assert!(self.phase == Phase::Repairing, "only a get that was answered repairs");
        self.phase = Phase::Finished;
        let asked = actions.len();
        actions.extend(self.stale().map(|node| GetAction::Repair { node, set: self.merged.clone() }));
        // Those that only take writes said nothing; when replicas disagree, they are likely to lack something, too.
        if actions.len() > asked {
            let silent = self.members[self.askable..].iter().filter(|member| !member.is_written_back());
            actions.extend(
                silent.map(|member| GetAction::Repair { node: member.node, set: self.merged.clone() }),
            );
        }
    }

    /// Replicas whose answer lacked part of the merged set, or whose copy is damaged while others hold something.
    fn stale(&self) -> impl Iterator<Item = NodeId> {
        let stale = |member: &&Member| {
            !member.fallback
                && member.written_back == WrittenBack::No
                && match member.reply {
                    Reply::Answered { current } => !current,
                    Reply::Failed(ReplicaError::Corrupt) => !self.merged.is_empty(),
                    _ => false,
                }
        };
        self.members.iter().filter(stale).map(|member| member.node)
    }

    fn answered(&self) -> u8 {
        saturated(self.members.iter().filter(|member| member.has_answered()).count())
    }

    /// Counts once what a step needs to know.
    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for member in &self.members[..self.next] {
            let (answered, awaited) = (member.has_answered(), member.is_awaited());
            tally.answered += usize::from(answered);
            tally.replicas_answered += usize::from(answered && !member.fallback);
            tally.awaited += usize::from(awaited);
            tally.fresh += usize::from(member.is_fresh(self.now));
        }
        tally
    }

    fn errors(&self) -> Errors {
        let error = |member: &Member| match (member.reply, member.written_back) {
            (_, WrittenBack::Failed(error)) | (Reply::Failed(error), _) => Some((member.node, error)),
            _ => None,
        };
        self.members.iter().filter_map(error).collect()
    }
}

impl Member {
    fn new(node: NodeId, sets: Sets, fallback: bool, suspected: bool) -> Self {
        let (reply, written_back) = (Reply::Unasked, WrittenBack::No);
        Member { node, sets, fallback, suspected, reply, written_back, late_at: Moment::default() }
    }

    /// Whether the merged set was sent to it in this round.
    fn is_written_back(&self) -> bool {
        self.written_back != WrittenBack::No
    }

    fn is_awaited(&self) -> bool {
        self.reply == Reply::Awaited
    }

    /// Whether its answer can be counted on at `now`.
    fn is_fresh(&self, now: Moment) -> bool {
        self.is_awaited() && self.late_at > now
    }

    /// Whether its time ran out between then and now.
    fn is_late(&self, then: Moment, now: Moment) -> bool {
        self.is_awaited() && then < self.late_at && self.late_at <= now
    }

    fn has_answered(&self) -> bool {
        matches!(self.reply, Reply::Answered { .. })
    }
}

/// Everybody whom a get may ask, best first, and how many these are; behind them the replicas that only take writes.
fn members(candidates: Candidates<'_>, own: Option<NodeId>, sloppy: bool) -> (SmallVec<[Member; 8]>, usize) {
    let Candidates { preference, .. } = candidates;
    let readers = preference.replicas().len();
    let replicas = || preference.sets().take(readers);
    let mut members = SmallVec::new();
    // The own node is there, whatever others believe of it.
    let is_suspected = |node| Some(node) != own && candidates.is_suspected(node);
    // Best first. When nobody lags, which is nearly always, two of these find nobody.
    for class in [(false, false), (false, true), (true, false), (true, true)] {
        let own_first = replicas().filter(|&(node, _)| Some(node) == own);
        let others = replicas().filter(|&(node, _)| Some(node) != own);
        let of_class = |&(node, _): &(NodeId, Sets)| (is_suspected(node), candidates.lags(node)) == class;
        let first = own_first.chain(others).filter(of_class);
        members.extend(first.map(|(node, sets)| Member::new(node, sets, false, class.0)));
    }
    if sloppy {
        for &node in &candidates.fallbacks(own) {
            members.push(Member::new(node, Sets::Both, true, candidates.is_suspected(node)));
        }
    }
    let askable = members.len();
    let silent = preference.sets().skip(readers);
    members.extend(silent.map(|(node, sets)| Member::new(node, sets, false, is_suspected(node))));
    (members, askable)
}
