//! The driver of a day: what it hands on to the machine, and what becomes of each act.

use std::collections::BTreeMap;

use model::WallMillis;
use model::elasticity::Fleet;
use model::elasticity::Money;
use model::elasticity::adapter::{
    EngineFacts, Evidence, Instance, InstanceState, MachineType, MemberState, PROTOCOL, ProviderFacts,
};
use protocol::elasticity::{Controller, FleetAction, Observation, Question, Sample, VerbRefusal};

use super::world::{FleetNode, STEP_S, Sleeper, World, does_work};
use super::{Plant, judge};

impl World {
    fn observed(&self) -> Observation {
        let mut instances: Vec<Instance> = Vec::new();
        for one in self.hosted.iter().filter(|one| one.shown_at <= self.now) {
            let is_second = instances.iter().any(|other| other.token == one.instance.token);
            if !(is_second && self.weather.plant == Some(Plant::HidesSeconds)) {
                instances.push(one.instance.clone());
            }
        }
        let provider_away = self.now < self.provider_away_until;
        let engine_away = self.now < self.engine_away_until;
        let unless = |away: bool| if away { Err("it is away".to_owned()) } else { Ok(()) };
        Observation {
            now: WallMillis(self.now * 1000),
            fleet: self.read(),
            provider: unless(provider_away).map(|()| provider_facts()),
            instances: unless(provider_away).map(|()| instances),
            engine: unless(engine_away).map(|()| EngineFacts {
                name: "played".to_owned(),
                protocol: PROTOCOL,
                acts_max: 1,
                drain_cancellable: self.weather.cancellable,
                joins_at_boot: false,
                members_min: 1,
                measures: Vec::new(),
            }),
            members: unless(engine_away)
                .map(|()| self.nodes.iter().map(|node| node.member.clone()).collect()),
            preflight: BTreeMap::new(),
            evidence: BTreeMap::new(),
            refused: self.refused.clone(),
            samples: self.handed_on(),
        }
    }

    /// The document, as the driver hands it on.
    fn read(&self) -> Fleet {
        let mut fleet = self.fleet.clone();
        if self.weather.plant == Some(Plant::ForgetsDecisions) {
            fleet.decisions.clear();
        }
        fleet
    }

    fn handed_on(&self) -> Vec<Sample> {
        let mut samples = self.samples.clone();
        match self.weather.plant {
            Some(Plant::AgesAreLost) => {
                let newest = samples.iter().map(|sample| sample.at.0).max().unwrap_or(0);
                let late = (self.now * 1000).saturating_sub(newest);
                samples.iter_mut().for_each(|sample| sample.at.0 += late);
            }
            Some(Plant::MissingIsZero) => {
                for node in self.nodes.iter().filter(|node| does_work(node)) {
                    for age in
                        (0..300).step_by(STEP_S as usize).filter(|age| node.measured_at + age < self.now)
                    {
                        let at = self.now - age;
                        if at > node.measured_at {
                            let (member, measure) = (node.member.id.clone(), "processor".to_owned());
                            samples.push(Sample { member, measure, value: 0.0, at: WallMillis(at * 1000) });
                        }
                    }
                }
            }
            _ => {}
        }
        samples
    }

    fn answer(&mut self, question: &Question, observation: &mut Observation) {
        match question {
            Question::Preflight { instance } => {
                let refusal = VerbRefusal { for_good: true, detail: "protected".to_owned() };
                let refuses = self.now < self.protects_until;
                let answer = if refuses { Err(refusal) } else { Ok(()) };
                observation.preflight.insert(instance.clone(), answer);
            }
            Question::EvidenceOf { member: name } | Question::EvidenceAt { address: name } => {
                let answer = match self.wrong(50) {
                    true => Err("it is away".to_owned()),
                    false => Ok(self.evidence(name)),
                };
                observation.evidence.insert(name.clone(), answer);
            }
        }
    }

    fn evidence(&self, name: &str) -> Evidence {
        let found = self
            .nodes
            .iter()
            .find(|node| node.member.id == name || node.member.address.as_deref() == Some(name));
        let (id, state) = (found.map(|node| &node.member.id), found.map(|node| node.member.state));
        let owns = self.keys.iter().any(|owner| Some(owner) == id) || state == Some(MemberState::Serving);
        let believes =
            self.weather.plant == Some(Plant::BelievesDrains) && state == Some(MemberState::Drained);
        let moves = matches!(state, Some(MemberState::Joining | MemberState::Draining));
        let witnesses = self.serving().into_iter().filter(|other| Some(other) != id).collect();
        Evidence {
            witnesses,
            owns_nothing: Some(!owns || believes),
            nothing_moves: Some(!moves),
            nothing_short: Some(true),
            detail: None,
        }
    }

    /// One turn of the driver; whether the next one begins at once.
    pub(super) fn turn(&mut self) -> bool {
        let mut observation = self.observed();
        let generation = self.fleet.generation;
        let mut controller = std::mem::take(&mut self.controller);
        let actions = loop {
            let actions = controller.decide(&observation).actions;
            let asks: Vec<Question> = actions
                .iter()
                .filter_map(|action| {
                    if let FleetAction::Ask(question) = action { Some(question.clone()) } else { None }
                })
                .collect();
            if asks.is_empty() {
                break actions;
            }
            asks.iter().for_each(|question| self.answer(question, &mut observation));
        };
        self.controller = controller;
        self.refused.clear();
        for (place, action) in actions.iter().enumerate() {
            if self.sleeper.is_none() && self.wrong(20) {
                let wakes_at = self.now + self.dice.between(30, 600);
                self.sleeper = Some(Sleeper { wakes_at, generation, actions: actions[place..].to_vec() });
                self.controller = Controller::new();
                return false;
            }
            if self.wrong(20) || !self.act(generation, action) || self.wrong(20) {
                return false;
            }
        }
        matches!(actions.last(), Some(FleetAction::Publish(_)))
    }

    /// Does one act; whether the turn goes on.
    pub(super) fn act(&mut self, generation: u64, action: &FleetAction) -> bool {
        let is_late = generation != self.fleet.generation;
        if is_late && (action.must_be_fresh() || matches!(action, FleetAction::Publish(_))) {
            return false;
        }
        match action {
            FleetAction::Publish(next) => {
                judge::published(self, next);
                self.fleet = (**next).clone();
            }
            FleetAction::Ensure { token, .. } => {
                let is_there = self.hosted.iter().any(|one| one.instance.token.as_ref() == Some(&token.0));
                if !is_there || self.wrong(100) {
                    self.host(&token.0, false);
                }
            }
            FleetAction::Terminate { instance, .. } => self.terminate(instance),
            FleetAction::Join { token, member } if self.wrong(20) => {
                self.refused.insert(token.clone(), format!("{member} has another version"));
            }
            FleetAction::Join { member, .. } => {
                let takes = self.dice.between(60, 300);
                let from = [MemberState::Waiting, MemberState::Standby, MemberState::Drained];
                self.change(member, &from, MemberState::Joining, Some(takes));
            }
            FleetAction::Drain { member, .. } => {
                let sticks = self.wrong(50);
                let takes = self.dice.between(60, 400);
                let from = [MemberState::Serving, MemberState::Joining, MemberState::Drained];
                self.change(member, &from, MemberState::Draining, (!sticks).then_some(takes));
                // One that hangs is begun anew.
                let hangs = |node: &&mut FleetNode| &node.member.id == member && node.done_at.is_none();
                let hangs = self.nodes.iter_mut().find(hangs);
                if let Some(node) = hangs.filter(|node| node.member.state == MemberState::Draining && !sticks)
                {
                    node.done_at = Some(self.now + takes);
                }
            }
            FleetAction::Cancel { member, .. } => {
                let from = [MemberState::Draining, MemberState::Drained];
                self.change(member, &from, MemberState::Serving, None);
            }
            FleetAction::Forget { member, .. } => self.nodes.retain(|node| &node.member.id != member),
            FleetAction::Ask(_) => unreachable!("questions are answered within the turn"),
        }
        true
    }

    fn change(&mut self, id: &str, from: &[MemberState], to: MemberState, takes: Option<u64>) {
        let now = self.now;
        let found = self.nodes.iter_mut().find(|node| node.member.id == id);
        if let Some(node) = found.filter(|node| from.contains(&node.member.state)) {
            node.member.state = to;
            node.done_at = takes.map(|takes| now + takes);
        }
    }

    fn terminate(&mut self, id: &str) {
        judge::ends(self, id);
        let Some(one) = self.hosted.iter_mut().find(|one| one.instance.id == id) else { return };
        if self.now < self.protects_until {
            return;
        }
        if matches!(one.instance.state, InstanceState::Pending | InstanceState::Running) {
            one.instance.state = InstanceState::Ending;
        }
        let address = one.instance.address.clone();
        self.nodes.retain(|node| node.member.address != address || node.member.state != MemberState::Waiting);
        for node in self.nodes.iter_mut().filter(|node| node.member.address == address) {
            (node.member.state, node.done_at) = (MemberState::Down, None);
        }
    }
}

fn provider_facts() -> ProviderFacts {
    let kind = MachineType {
        name: "t".to_owned(),
        price_per_hour: Money(1_000_000),
        processors_milli: None,
        memory_bytes: None,
    };
    ProviderFacts {
        name: "played".to_owned(),
        protocol: PROTOCOL,
        types: vec![kind],
        quota: None,
        warnings: Vec::new(),
    }
}
