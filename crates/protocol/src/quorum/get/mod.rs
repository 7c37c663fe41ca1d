//! The quorum of a get.
//!
//! The first wave goes to as many replicas as answers are hoped for: the own node if it is one, then those that nobody
//! suspects, then the others. A replica that fails, is late or was suspected from the start is complemented by the next.
//! Answers are merged as they come. A get that was answered still collects what it asked for, and then repairs
//! the replicas that turned out to lack something.
//!
//! **Only replicas count towards R.** In a sloppy quorum fallbacks follow when all replicas were asked, one for each that
//! failed, was suspected, or has been silent for long, because they may hold hints. A live value that was found is
//! given once R nodes were heard, fallbacks included, and the answer says that it is sloppy. *Nothing found* is said
//! only when R replicas have answered: a fallback that holds nothing has said nothing. So a get that has found nothing
//! waits for its replicas, and fails if they do not come.
//!
//! **Why one bit per replica is enough for read repair.** The merged set only grows. Every set that was merged is
//! included in it, so a replica lacks something exactly if its set was not *equal* to the merged one, and once the
//! merged set grows beyond what it was, every earlier answer lacks something.
//!
//! A get may also have to leave what it answers with enough replicas that no later get misses it: see [`settle`].
//!
//! **While the partition moves** those that read are asked, as ever; replicas that only take writes are repaired with
//! the others, and are written back to.
//!
//! A get changes nothing that was not written, so it is never indeterminate.

#[cfg(test)]
mod explore;
mod interface;
mod settle;

use model::{Generation, Moment, NodeId, Sets, VersionSet, WallMillis};
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
    members: SmallVec<[GetMember; 8]>,
    /// Members before this position are the replicas that answer gets.
    readers: usize,
    /// Members before this position may be asked: behind the replicas come the fallbacks.
    askable: usize,
    /// Members before this position have been asked, the others not.
    next: usize,
    options: QuorumOptions,
    phase: GetPhase,
    began: Moment,
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
enum GetPhase {
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
struct GetMember {
    node: NodeId,
    sets: Sets,
    fallback: bool,
    suspected: bool,
    reply: GetReply,
    written_back: WrittenBack,
    /// From then on its answer, or acknowledgement, is no longer counted on.
    late_at: Moment,
    /// From then on a fallback may be asked in its place, unless it has answered.
    replaced_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GetReply {
    Unasked,
    Awaited,
    Failed(ReplicaError),
    Answered {
        /// Whether its set equals the merged one.
        current: bool,
    },
}

/// Where the asked members of one kind stand.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    answered: usize,
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
            readers: candidates.preference.replicas().len(),
            askable,
            next: 0,
            options,
            phase: GetPhase::Collecting,
            began: now,
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
        if self.phase == GetPhase::Finished {
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
                self.phase = GetPhase::Finished;
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
            GetPhase::Finished => return None,
            GetPhase::Repairing => return Some(self.options.deadline),
            GetPhase::Settling => return Some(self.settling_deadline()),
            GetPhase::Collecting => self.options.deadline,
        };
        if self.tallies()[0].answered >= usize::from(self.options.required) {
            return Some(end.min(self.patience));
        }
        if self.next == self.askable {
            return Some(end);
        }
        let late =
            self.members.iter().filter(|member| member.is_fresh(self.now)).map(|member| member.late_at);
        let replaced = self.members[..self.readers].iter().filter(|member| member.is_awaited());
        let replaced = replaced.map(|member| member.replaced_at).filter(|&at| at > self.now);
        // Before the last replica is asked nobody is asked in the place of one.
        let replaced = replaced.filter(|_| self.next >= self.readers);
        Some(late.chain(replaced).fold(end, Moment::min))
    }

    /// Whether the caller still waits.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.phase, GetPhase::Collecting | GetPhase::Settling)
    }

    /// The generation of a refusal that ends this request: from a node that was asked, while the caller waits.
    fn newer_generation(&self, node: NodeId, error: ReplicaError) -> Option<Generation> {
        let ReplicaError::StaleGeneration { generation } = error else { return None };
        let asked =
            |member: &GetMember| member.reply != GetReply::Unasked || member.written_back != WrittenBack::No;
        let asked = self.members.iter().any(|member| member.node == node && asked(member));
        (asked && self.is_unanswered() && generation > self.options.generation).then_some(generation)
    }

    fn fail(&mut self, node: NodeId, error: ReplicaError) {
        let asked = &mut self.members[..self.next];
        if let Some(member) = asked.iter_mut().find(|member| member.node == node)
            && member.reply == GetReply::Awaited
        {
            member.reply = GetReply::Failed(error);
        }
    }

    /// Takes in what a node holds.
    fn merge(&mut self, node: NodeId, set: VersionSet) {
        let Some(position) = self.members[..self.next].iter().position(|member| member.node == node) else {
            return;
        };
        if matches!(self.members[position].reply, GetReply::Answered { .. }) {
            return;
        }
        let first = self.answered() == 0;
        let (known, whole) = (!first && self.merged.includes(&set), first || set.includes(&self.merged));
        match (known, whole) {
            (true, _) => {}
            (false, true) => self.merged = set,
            (false, false) => self.merged.merge(&set),
        }
        if !known && self.phase != GetPhase::Collecting {
            self.begin_round();
        }
        if !known {
            for member in &mut self.members[..self.next] {
                if let GetReply::Answered { current } = &mut member.reply {
                    *current = false;
                }
            }
        }
        self.members[position].reply = GetReply::Answered { current: whole };
    }

    /// Brings the machine to rest: nothing is left that it could do now.
    fn settle(&mut self, actions: &mut GetActions) {
        if self.phase == GetPhase::Collecting {
            self.ask_replicas(actions);
            self.ask_fallbacks(actions);
            self.answer(actions);
        }
        if self.phase == GetPhase::Settling {
            self.write_back(actions);
        }
        if self.phase == GetPhase::Repairing && (self.awaited() == 0 || self.now >= self.options.deadline) {
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
        assert!(self.next <= self.askable, "members are asked in their order");
        assert!(self.readers <= self.askable && self.askable <= self.members.len(), "readers come first");
        let (asked, unasked) = self.members.split_at(self.next);
        assert!(asked.iter().all(|member| member.reply != GetReply::Unasked), "those before were asked");
        assert!(unasked.iter().all(|member| member.reply == GetReply::Unasked), "those behind were not");
        let back = |member: &&GetMember| member.written_back != WrittenBack::No;
        let mut written_back = self.members.iter().filter(back);
        assert!(written_back.all(|member| !member.fallback), "only replicas are written back to");
        let earlier = self.phase == GetPhase::Collecting && self.round > 0;
        assert!(!earlier, "rounds are counted only once something is written back");
        let place = |position| (self.readers..self.askable).contains(&position);
        let in_place = |(position, member): (usize, &GetMember)| member.fallback == place(position);
        assert!(
            self.members.iter().enumerate().all(in_place),
            "fallbacks come behind the replicas that answer"
        );
    }

    /// Whether nobody is asked any more: the deadline has come, or there are too few replicas from the start.
    fn asks_nobody(&self) -> bool {
        self.now >= self.options.deadline || self.readers < usize::from(self.options.required)
    }

    /// Asks as many further replicas as answers are missing that can be counted on.
    fn ask_replicas(&mut self, actions: &mut GetActions) {
        let Get { options, now, .. } = *self;
        let target = usize::from(if now < self.patience { options.preferred } else { options.required });
        let [Tally { answered, fresh, .. }, _] = self.tallies();
        if !self.asks_nobody() {
            self.ask_up_to(self.readers, target.saturating_sub(answered + fresh), actions);
        }
    }

    /// When every replica was asked and R of them cannot be counted on: asks a fallback in the place of each replica
    /// that failed, was suspected from the start, or has been silent for long.
    fn ask_fallbacks(&mut self, actions: &mut GetActions) {
        let [replicas, Tally { answered, fresh, .. }] = self.tallies();
        let enough = replicas.answered + replicas.fresh >= usize::from(self.options.required);
        if self.next < self.readers || enough || self.asks_nobody() {
            return;
        }
        let replaced =
            self.members[..self.readers].iter().filter(|member| member.is_replaced(self.now)).count();
        self.ask_up_to(self.askable, replaced.saturating_sub(answered + fresh), actions);
    }

    /// Asks members before the position `end` until this many more can be counted on.
    fn ask_up_to(&mut self, end: usize, mut missing: usize, actions: &mut GetActions) {
        if missing == 0 || self.next >= end {
            return;
        }
        let Get { options, now, .. } = *self;
        let late = self.members[..self.next].iter().any(|member| member.is_late(self.waved_at, now));
        let wave = self.waves + u32::from(late);
        let (late_at, replaced_at) =
            (options.late_at(now, wave), now.after(options.patience_with_replicas()));
        while missing > 0 && self.next < end {
            let member = &mut self.members[self.next];
            self.next += 1;
            (self.waves, self.waved_at) = (wave, now);
            member.reply = GetReply::Awaited;
            (member.late_at, member.replaced_at) =
                if member.suspected { (now, now) } else { (late_at, replaced_at) };
            missing -= usize::from(!member.suspected);
            actions.push(GetAction::Fetch { node: member.node });
        }
    }

    /// Answers as soon as it is decided how.
    fn answer(&mut self, actions: &mut GetActions) {
        let QuorumOptions { required, preferred, deadline, .. } = self.options;
        let [replicas, fallbacks] = self.tallies();
        let answered = saturated(replicas.answered);
        let patient = self.now < self.patience && self.now < deadline && replicas.awaited > 0;
        if answered >= preferred || (answered >= required && !patient) {
            if self.options.held > 0 {
                self.phase = GetPhase::Settling;
            } else {
                self.answer_done(actions);
            }
            return;
        }
        let (heard, enough) = (replicas.answered + fallbacks.answered, usize::from(required));
        if answered < required && heard >= enough && self.has_found_a_value() {
            return self.answer_done(actions);
        }
        let awaited = replicas.awaited + fallbacks.awaited;
        // A node that was not asked by now is asked in the place of one that is awaited, or not at all.
        let over = awaited == 0 && self.now < deadline;
        let too_few = self.readers < enough || over || heard + awaited + (self.askable - self.next) < enough;
        let reason = if too_few {
            GetFailure::InsufficientReplicas { answered, required }
        } else if self.now >= deadline {
            GetFailure::DeadlinePassed { answered, required }
        } else {
            return;
        };
        self.phase = GetPhase::Finished;
        actions.push(GetAction::Answer(GetOutcome::Failed { reason, errors: self.errors() }));
    }

    /// Whether what a plain client would see of the answers so far is a value, neither deleted nor expired. Where
    /// siblings say different things this is the stricter reading.
    fn has_found_a_value(&self) -> bool {
        let wall =
            WallMillis(self.options.wall.0.saturating_add(self.now.since(self.began).as_millis() as u64));
        self.merged.winner().is_some_and(|winner| winner.live(wall).is_some())
    }

    /// Answers with what is known.
    fn answer_done(&mut self, actions: &mut GetActions) {
        assert!(self.is_unanswered(), "a get is answered once");
        self.phase = GetPhase::Repairing;
        let sloppy = self.tallies()[0].answered < usize::from(self.options.required);
        // Nobody compares with the merged set any more: it can go without a copy.
        let last = self.awaited() == 0 && self.stale().next().is_none();
        let set = if last { std::mem::take(&mut self.merged) } else { self.merged.clone() };
        actions.push(GetAction::Answer(GetOutcome::Done { set, answered: self.answered(), sloppy }));
    }

    /// Sends the merged set to every replica whose answer lacked part of it, and ends.
    fn repair(&mut self, actions: &mut GetActions) {
        assert!(self.phase == GetPhase::Repairing, "only a get that was answered repairs");
        self.phase = GetPhase::Finished;
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
        let stale = |member: &&GetMember| {
            !member.fallback
                && member.written_back == WrittenBack::No
                && match member.reply {
                    GetReply::Answered { current } => !current,
                    GetReply::Failed(ReplicaError::Corrupt) => !self.merged.is_empty(),
                    _ => false,
                }
        };
        self.members.iter().filter(stale).map(|member| member.node)
    }

    fn answered(&self) -> u8 {
        saturated(self.members.iter().filter(|member| member.has_answered()).count())
    }

    fn awaited(&self) -> usize {
        self.members[..self.next].iter().filter(|member| member.is_awaited()).count()
    }

    /// Where the replicas and the fallbacks stand that were asked.
    fn tallies(&self) -> [Tally; 2] {
        let mut tallies = [Tally::default(); 2];
        for member in &self.members[..self.next] {
            let tally = &mut tallies[usize::from(member.fallback)];
            tally.answered += usize::from(member.has_answered());
            tally.awaited += usize::from(member.is_awaited());
            tally.fresh += usize::from(member.is_fresh(self.now));
        }
        tallies
    }

    fn errors(&self) -> Errors {
        let error = |member: &GetMember| match (member.reply, member.written_back) {
            (_, WrittenBack::Failed(error)) | (GetReply::Failed(error), _) => Some((member.node, error)),
            _ => None,
        };
        self.members.iter().filter_map(error).collect()
    }
}

impl GetMember {
    fn new(node: NodeId, sets: Sets, fallback: bool, suspected: bool) -> Self {
        let (reply, written_back) = (GetReply::Unasked, WrittenBack::No);
        let (late_at, replaced_at) = (Moment::default(), Moment::default());
        GetMember { node, sets, fallback, suspected, reply, written_back, late_at, replaced_at }
    }

    /// Whether the merged set was sent to it in this round.
    fn is_written_back(&self) -> bool {
        self.written_back != WrittenBack::No
    }

    fn is_awaited(&self) -> bool {
        self.reply == GetReply::Awaited
    }

    /// Whether its answer can be counted on at `now`.
    fn is_fresh(&self, now: Moment) -> bool {
        self.is_awaited() && self.late_at > now
    }

    /// Whether its time ran out between then and now.
    fn is_late(&self, then: Moment, now: Moment) -> bool {
        self.is_awaited() && then < self.late_at && self.late_at <= now
    }

    /// Whether a fallback may be asked in its place at `now`.
    fn is_replaced(&self, now: Moment) -> bool {
        match self.reply {
            GetReply::Unasked | GetReply::Answered { .. } => false,
            GetReply::Failed(_) => true,
            GetReply::Awaited => self.replaced_at <= now,
        }
    }

    fn has_answered(&self) -> bool {
        matches!(self.reply, GetReply::Answered { .. })
    }
}

/// Everybody whom a get may ask, best first, and how many these are; behind them the replicas that only take writes.
fn members(
    candidates: Candidates<'_>,
    own: Option<NodeId>,
    sloppy: bool,
) -> (SmallVec<[GetMember; 8]>, usize) {
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
        members.extend(first.map(|(node, sets)| GetMember::new(node, sets, false, class.0)));
    }
    if sloppy {
        for &node in &candidates.fallbacks(own) {
            members.push(GetMember::new(node, Sets::Both, true, candidates.is_suspected(node)));
        }
    }
    let askable = members.len();
    let silent = preference.sets().skip(readers);
    members.extend(silent.map(|(node, sets)| GetMember::new(node, sets, false, is_suspected(node))));
    (members, askable)
}
