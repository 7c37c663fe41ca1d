//! What a process does while it holds the office: turns of each fleet, beside each other.
//!
//! A turn reads the document, asks the adapters, lets [`protocol::elasticity`] decide, answers its questions in the same
//! turn, does what was decided, and publishes last. Whatever fails is told in the fleet's look, and the next turn goes on.
//!
//! Must never: let an adapter that hangs hold up another fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use coordination::documents::elasticity::{self, FleetError, fleet_path};
use coordination::documents::{ReadError, ServiceMove, read_cluster};
use coordination::{CoordinationError, CoordinationService, Document, DocumentVersion};
use futures_util::StreamExt;
use futures_util::future::{Either, join, pending, select};
use futures_util::stream::FuturesUnordered;
use model::elasticity::adapter::{Member, MemberState};
use model::elasticity::{Fleet, Look, Token};
use model::{Moment, WallMillis};
use protocol::elasticity::{Controller, FleetAction, Observation, Question, Turn, VerbRefusal};
use runtime::Clock;
use runtime::network::fetch::Fetcher;

use super::adapters::{Adapters, CallError};
use super::ask::MemberAsk;
use super::samples::SampleHistory;
use super::sources::Sources;
use super::troubles::Troubles;

/// How often new fleets are looked for.
const FLEETS_LOOK: Duration = Duration::from_secs(1);
/// How long the office waits for a service that does not answer.
const AWAY: Duration = Duration::from_secs(1);
/// Pause after another process was faster.
const OVERTAKEN: Duration = Duration::from_millis(200);
/// How often questions may follow questions in one turn.
const ROUNDS_MAX: usize = 8;
/// How often a look is written of which nothing but measures has changed.
const LOOK_SPAN: Duration = Duration::from_secs(5);

/// Why a process stops taking turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfficeEnd {
    /// Its session has ended.
    SessionLost,
    /// The documents are in another service.
    Moved(Box<ServiceMove>),
}

/// A process that holds the office.
pub struct Office {
    service: Arc<dyn CoordinationService>,
    clock: Arc<dyn Clock>,
    adapters: Arc<dyn Adapters>,
    /// How sources of measures are asked.
    fetcher: Arc<dyn Fetcher>,
    /// Which process on which machine this is.
    process: String,
}

impl Office {
    /// The office with a session that holds it.
    pub fn new(
        service: Arc<dyn CoordinationService>,
        clock: Arc<dyn Clock>,
        adapters: Arc<dyn Adapters>,
        fetcher: Arc<dyn Fetcher>,
        process: String,
    ) -> Office {
        Office { service, clock, adapters, fetcher, process }
    }

    /// Takes turns until the session is of no use. Cancel safe: what a turn had begun, the next one finds.
    pub async fn hold(&self) -> OfficeEnd {
        let mut known = BTreeSet::new();
        let mut running = FuturesUnordered::new();
        loop {
            match self.fleets().await {
                Ok(names) => {
                    for name in names {
                        if known.insert(name.clone()) {
                            running.push(self.manage(name));
                        }
                    }
                }
                Err(ReadError::Coordination(CoordinationError::SessionLost)) => {
                    return OfficeEnd::SessionLost;
                }
                Err(ReadError::Moved(this)) => return OfficeEnd::Moved(this),
                Err(error) => tracing::warn!(%error, "fleets not read"),
            }
            let ended = async {
                while let Some(name) = running.next().await {
                    assert!(known.remove(&name), "fleet {name} was managed twice at the same time");
                }
                pending::<()>().await;
            };
            select(pin!(ended), self.clock.sleep(FLEETS_LOOK)).await;
        }
    }

    async fn fleets(&self) -> Result<Vec<String>, ReadError> {
        // A service whose documents have moved says so here.
        read_cluster(&*self.service).await?;
        Ok(elasticity::names(&*self.service).await?)
    }

    /// Takes turns of one fleet, until there is none of this name or the session has ended.
    async fn manage(&self, name: String) -> String {
        tracing::info!(fleet = name, "fleet is managed");
        let mut managed = Managed::new(self, name);
        loop {
            match managed.turn().await {
                Ok(Some(pause)) => managed.rest(pause).await,
                Ok(None) | Err(ReadError::Coordination(CoordinationError::SessionLost)) => {
                    return managed.name;
                }
                Err(error) => {
                    tracing::warn!(fleet = managed.name, %error, "turn of a fleet failed");
                    self.clock.sleep(AWAY).await;
                }
            }
        }
    }
}

/// One fleet, and what is remembered of it between turns. All of that may be lost.
struct Managed<'a> {
    office: &'a Office,
    name: String,
    machine: Controller,
    history: SampleHistory,
    sources: Sources,
    /// The members of the last turn: sources are asked about them.
    members: Vec<Member>,
    /// What was refused for good in the last turn.
    refused: BTreeMap<Token, String>,
    /// Acts that failed and have not succeeded since.
    troubles: Troubles,
    /// Since when the engine does not reach a member, by its name.
    silent: BTreeMap<String, WallMillis>,
    /// The look that was written last, and when.
    look: Option<(Moment, Look)>,
    /// The version of the document that was read last.
    read: Option<DocumentVersion>,
}

impl<'a> Managed<'a> {
    fn new(office: &'a Office, name: String) -> Managed<'a> {
        Managed {
            office,
            name,
            machine: Controller::new(),
            history: SampleHistory::default(),
            sources: Sources::new(office.fetcher.clone(), office.clock.clone()),
            members: Vec::new(),
            refused: BTreeMap::new(),
            troubles: Troubles::default(),
            silent: BTreeMap::new(),
            look: None,
            read: None,
        }
    }

    /// One turn; how long to rest then. None when the fleet is gone.
    async fn turn(&mut self) -> Result<Option<Duration>, ReadError> {
        let service = &*self.office.service;
        let Some((fleet, document)) = elasticity::read(service, &self.name).await? else { return Ok(None) };
        self.read = Some(document.stat.version);
        // They go first, so that what the adapters say is fresh when it is acted upon.
        let unmeasured = self.sources.ask(&fleet.policy, &self.members).await;
        let mut seen = self.observe(fleet).await;
        self.troubles.forget(&seen.fleet);
        let before = self.machine.clone();
        let turn = self.decide(&mut seen).await;
        let published = turn.actions.iter().position(|action| matches!(action, FleetAction::Publish(_)));
        let last = turn.actions.len().saturating_sub(1);
        assert!(
            published.is_none_or(|at| at == last),
            "fleet {}: a turn publishes once, and at its end: {:?}",
            self.name,
            turn.actions
        );
        self.refused.clear();
        let (mut pause, mut failures) = (turn.look_after, Vec::new());
        let (mut were_asked, mut undone) = (false, false);
        for action in turn.actions {
            let is_ensure = matches!(action, FleetAction::Ensure { .. });
            if self.troubles.rests(&action, self.office.clock.now()) {
                undone |= is_ensure;
                continue;
            }
            match self.act(&seen.fleet, &document, &action).await? {
                Acted::Done => {
                    were_asked |= is_ensure;
                    self.troubles.end(&action);
                }
                Acted::Overtaken => {
                    pause = OVERTAKEN;
                    break;
                }
                Acted::Failed(error) => {
                    (were_asked, undone) =
                        (were_asked || (is_ensure && !error.undone), undone || (is_ensure && error.undone));
                    failures.extend(self.failed(&seen.fleet, &action, error));
                }
            }
        }
        if undone && !were_asked {
            // No provider has a request of this turn, so none of them must be waited for.
            self.machine = before;
        }
        failures.extend(self.troubles.told());
        failures.extend(unmeasured);
        self.tell(&seen, failures).await;
        Ok(Some(pause))
    }

    /// Notes that an act failed. What is of no machine is handed back, to be told in this turn alone.
    fn failed(&mut self, fleet: &Fleet, action: &FleetAction, error: CallError) -> Option<String> {
        if self.troubles.add(action, fleet, &error, self.office.clock.now()) {
            tracing::warn!(fleet = self.name, %error, "act failed");
        }
        let Some(token) = action.token() else { return Some(error.detail) };
        if error.for_good {
            self.refused.insert(token.clone(), error.detail);
        }
        None
    }

    /// Asks both adapters, beside each other.
    async fn observe(&mut self, fleet: Fleet) -> Observation {
        let ask = MemberAsk::new(&*self.office.adapters, &fleet);
        let of_provider = async { (ask.provider().await, ask.instances().await) };
        // Ages count from before `observe` was asked: a sample may be taken for older than it is, never for younger.
        let of_engine = async { (ask.engine().await, self.office.clock.wall(), ask.members().await) };
        let ((provider, instances), (engine, now, mut members)) = join(of_provider, of_engine).await;
        if let Ok(members) = &mut members {
            for measure in self.sources.lay_over(members, now) {
                self.history.forget(&measure);
            }
            self.history.add_observed(members, now);
            self.members.clone_from(members);
        }
        let samples = self.history.kept(&fleet.policy, now);
        Observation {
            now,
            provider,
            instances,
            engine,
            members,
            preflight: BTreeMap::new(),
            evidence: BTreeMap::new(),
            refused: self.refused.clone(),
            samples,
            fleet,
        }
    }

    /// Lets the machine decide, and answers what it asks meanwhile.
    async fn decide(&mut self, seen: &mut Observation) -> Turn {
        let mut asked = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let turn = self.machine.decide(seen);
            let mut questions: Vec<Question> = turn.actions.iter().filter_map(question).collect();
            // Evidence is asked last: a machine may be ended by it, and many preflights take long.
            let is_preflight = |question: &Question| matches!(question, Question::Preflight { .. });
            if questions.iter().any(is_preflight) {
                questions.retain(is_preflight);
            }
            if questions.is_empty() {
                return turn;
            }
            let fleet = seen.fleet.clone();
            let ask = MemberAsk::new(&*self.office.adapters, &fleet);
            for question in questions {
                if !asked.insert(question.clone()) {
                    tracing::warn!(?question, "question asked twice in one turn");
                    continue;
                }
                answer(&ask, question, seen).await;
            }
        }
        tracing::warn!(fleet = self.name, "turn ended without a decision");
        Turn { actions: Vec::new(), look_after: AWAY }
    }

    async fn act(
        &self,
        fleet: &Fleet,
        document: &Document,
        action: &FleetAction,
    ) -> Result<Acted, ReadError> {
        let service = &*self.office.service;
        if action.must_be_fresh() && !self.is_fresh(fleet).await? {
            return Ok(Acted::Overtaken);
        }
        let ask = MemberAsk::new(&*self.office.adapters, fleet);
        tracing::debug!(fleet = self.name, ?action, "act");
        let acted = match action {
            FleetAction::Publish(next) => {
                let (before, after) = (fleet.generation, next.generation);
                assert!(
                    fleet.uid == next.uid && after == before + 1,
                    "fleet {}: {} of {after} follows {} of {before}",
                    self.name,
                    next.uid,
                    fleet.uid
                );
                return publish(service, next, document).await;
            }
            FleetAction::Ensure { token, kind } => ask.ensure(token, kind).await,
            FleetAction::Terminate { instance, .. } => ask.terminate(instance).await,
            FleetAction::Join { member, .. } => ask.of_member("join", member).await,
            FleetAction::Drain { member, .. } => ask.of_member("drain", member).await,
            FleetAction::Cancel { member, .. } => ask.of_member("cancel", member).await,
            FleetAction::Forget { member, .. } => ask.of_member("forget", member).await,
            FleetAction::Ask(_) => Ok(()),
        };
        Ok(acted.map_or_else(Acted::Failed, |()| Acted::Done))
    }

    /// Whether the stored document is still the one that was read.
    async fn is_fresh(&self, fleet: &Fleet) -> Result<bool, ReadError> {
        let stored = elasticity::read(&*self.office.service, &self.name).await?;
        Ok(stored.is_some_and(|(stored, _)| stored.uid == fleet.uid && stored.generation == fleet.generation))
    }

    /// Writes what was seen, for people.
    async fn tell(&mut self, seen: &Observation, failures: Vec<String>) {
        if let Ok(members) = &seen.members {
            note_silent(&mut self.silent, members, seen.now);
        }
        let look = Look {
            at: WallMillis(seen.now.0),
            by: self.office.process.clone(),
            generation: seen.fleet.generation,
            provider: seen.provider.clone(),
            instances: seen.instances.clone(),
            engine: seen.engine.clone(),
            members: seen.members.clone(),
            failures,
            silent: self.silent.clone(),
        };
        let now = self.office.clock.now();
        let is_told = self.look.as_ref().is_some_and(|(at, last)| {
            now.since(*at) < LOOK_SPAN && last.generation == look.generation && last.says_the_same(&look)
        });
        if is_told {
            return;
        }
        match elasticity::write_look(&*self.office.service, &self.name, &look).await {
            Ok(()) => self.look = Some((now, look)),
            Err(error) => tracing::debug!(fleet = self.name, %error, "look not written"),
        }
    }

    /// Waits until the next turn is due, or the document changes.
    async fn rest(&self, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        let sleep = self.office.clock.sleep(pause);
        let Some(path) = fleet_path(&self.name) else { return sleep.await };
        let changed = async {
            let (document, watch) = self.office.service.get_and_watch(&path).await?;
            match document {
                Some(document) if Some(document.stat.version) == self.read => watch.fired().await.map(drop),
                // It has changed since it was read, or is gone.
                _ => Ok(()),
            }
        };
        match select(pin!(changed), sleep).await {
            Either::Right(_) | Either::Left((Ok(()), _)) => {}
            // The next turn meets the same, and says so.
            Either::Left((Err(_), sleep)) => sleep.await,
        }
    }
}

/// How an act went.
enum Acted {
    Done,
    /// Another process was faster: the turn ends here.
    Overtaken,
    Failed(CallError),
}

/// Notes since when members are down. Nothing is decided by it.
fn note_silent(silent: &mut BTreeMap<String, WallMillis>, members: &[Member], now: WallMillis) {
    let down: BTreeSet<&String> =
        members.iter().filter(|one| one.state == MemberState::Down).map(|one| &one.id).collect();
    silent.retain(|member, _| down.contains(member));
    for member in down {
        silent.entry(member.clone()).or_insert(now);
    }
}

async fn publish(
    service: &dyn CoordinationService,
    next: &Fleet,
    document: &Document,
) -> Result<Acted, ReadError> {
    match elasticity::publish(service, next, document).await {
        Ok(()) => Ok(Acted::Done),
        Err(FleetError::Overtaken { .. }) => Ok(Acted::Overtaken),
        Err(FleetError::Read(error)) => Err(error),
        Err(error) => {
            Ok(Acted::Failed(CallError { for_good: false, undone: true, detail: error.to_string() }))
        }
    }
}

fn question(action: &FleetAction) -> Option<Question> {
    match action {
        FleetAction::Ask(question) => Some(question.clone()),
        _ => None,
    }
}

/// Asks, and puts the answer into the observation.
async fn answer(ask: &MemberAsk<'_>, question: Question, seen: &mut Observation) {
    match question {
        Question::Preflight { instance } => {
            let answer = ask.preflight(&instance).await;
            let answer =
                answer.map_err(|error| VerbRefusal { for_good: error.for_good, detail: error.detail });
            seen.preflight.insert(instance, answer);
        }
        Question::EvidenceOf { member } => {
            let answer = ask.evidence(("member", &member)).await;
            seen.evidence.insert(member, answer);
        }
        Question::EvidenceAt { address } => {
            let answer = ask.evidence(("address", &address)).await;
            seen.evidence.insert(address, answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_when_a_member_is_down_is_kept_until_it_answers() {
        let member = |state: &str| -> Member {
            serde_json::from_value(serde_json::json!({ "id": "n4", "state": state })).unwrap()
        };
        let mut silent = BTreeMap::new();
        let mut looks = |state: &str, now: u64| {
            note_silent(&mut silent, &[member(state)], WallMillis(now));
            silent.get("n4").copied()
        };
        assert_eq!(looks("serving", 1), None);
        assert_eq!(looks("down", 2), Some(WallMillis(2)));
        assert_eq!(looks("down", 3), Some(WallMillis(2)));
        assert_eq!(looks("serving", 4), None);
        assert_eq!(looks("down", 5), Some(WallMillis(5)));
    }
}
