//! The provider, the engine and the driver of the exploration, and what a published document may be.

use super::*;

impl World {
    pub(super) fn observed(&self, fleet: &Fleet) -> Observation {
        let shown =
            self.boxes.iter().filter(|one| !one.hidden && !one.cleaned).map(|one| one.instance.clone());
        let mut instances: Vec<Instance> = shown.collect();
        if self.bug == Some(Bug::ForgetsStrays) {
            let knows = |one: &Instance, machine: &Machine| match &machine.instance {
                Some(id) => *id == one.id,
                None => Some(&machine.token.0) == one.token.as_ref(),
            };
            instances.retain(|one| fleet.machines.iter().any(|machine| knows(one, machine)));
        }
        if self.bug == Some(Bug::TakesStrangers) {
            instances
                .iter_mut()
                .filter(|one| one.id == "i0")
                .for_each(|one| one.token = Some("uid-0".to_owned()));
        }
        Observation {
            now: WallMillis(if self.bug == Some(Bug::KnowsNoDeadlines) { 1_000_000 } else { self.now }),
            fleet: fleet.clone(),
            provider: Ok(ProviderFacts {
                name: "p".to_owned(),
                protocol: PROTOCOL,
                types: vec![MachineType {
                    name: "t".to_owned(),
                    price_per_hour: Money(1_000_000),
                    processors_milli: None,
                    memory_bytes: None,
                }],
                quota: None,
                warnings: Vec::new(),
            }),
            instances: Ok(instances),
            engine: Ok(EngineFacts {
                name: "e".to_owned(),
                protocol: PROTOCOL,
                acts_max: 1,
                drain_cancellable: self.cancellable && self.bug != Some(Bug::BuysInMidDrain),
                joins_at_boot: false,
                members_min: 1,
                measures: Vec::new(),
            }),
            members: Ok(self.listed()),
            preflight: BTreeMap::new(),
            evidence: BTreeMap::new(),
            refused: self.refused.clone(),
            samples: Vec::new(),
        }
    }

    fn listed(&self) -> Vec<Member> {
        let hides = |one: &&Member| self.bug == Some(Bug::HidesTheReady) && one.state == MemberState::Waiting;
        self.members.iter().filter(|one| !hides(one)).cloned().collect()
    }

    pub(super) fn evidence(&self, name: &str) -> Evidence {
        let member = self.members.iter().find(|one| one.id == name || one.address.as_deref() == Some(name));
        let id = member.map(|one| one.id.clone());
        let state = member.map(|one| one.state);
        let moves = matches!(state, Some(MemberState::Joining | MemberState::Draining));
        let has_part = moves || state == Some(MemberState::Serving);
        let mut owns = has_part || self.keys.iter().any(|owner| Some(owner) == id.as_ref());
        if self.bug == Some(Bug::BelievesDrains) && state == Some(MemberState::Drained) {
            owns = false;
        }
        let others = self
            .members
            .iter()
            .filter(|one| one.state == MemberState::Serving && Some(&one.id) != id.as_ref());
        Evidence {
            witnesses: others.map(|one| one.id.clone()).collect(),
            owns_nothing: Some(!owns),
            nothing_moves: Some(!moves || !owns),
            nothing_short: Some(true),
            detail: None,
        }
    }

    /// What a controller that remembers nothing does now, by a document that it read before.
    pub(super) fn decided(&mut self, fleet: &Fleet) -> Result<Vec<FleetAction>, String> {
        let mut observation = self.observed(fleet);
        self.refused.clear();
        for _ in 0..10 {
            let turn = Controller::new().decide(&observation);
            let questions: Vec<&Question> = turn
                .actions
                .iter()
                .filter_map(|action| if let FleetAction::Ask(one) = action { Some(one) } else { None })
                .collect();
            if questions.is_empty() {
                let mut actions = turn.actions;
                if self.bug == Some(Bug::LeavesShutOut) {
                    let drained = |id: &String| {
                        let drained = |one: &Member| &one.id == id && one.state == MemberState::Drained;
                        self.members.iter().any(drained)
                    };
                    actions.retain(|action| match action {
                        FleetAction::Cancel { .. } => false,
                        FleetAction::Join { member, .. } => !drained(member),
                        _ => true,
                    });
                }
                self.buys_rightly(fleet, &actions)?;
                return Ok(actions);
            }
            for question in questions {
                match question {
                    Question::Preflight { instance } => {
                        let refusal = VerbRefusal { for_good: true, detail: "protected".to_owned() };
                        let refuses = self.refuses && self.bug != Some(Bug::SkipsPreflight);
                        let answer = if refuses { Err(refusal) } else { Ok(()) };
                        observation.preflight.insert(instance.clone(), answer);
                    }
                    Question::EvidenceOf { member: name } | Question::EvidenceAt { address: name } => {
                        let evidence = self.evidence(name);
                        observation.evidence.insert(name.clone(), Ok(evidence));
                    }
                }
            }
        }
        panic!("a turn never stops asking: {:?}", observation.fleet);
    }

    /// Nothing is bought while a drain could be taken back, as far as this turn has seen.
    fn buys_rightly(&self, fleet: &Fleet, actions: &[FleetAction]) -> Result<(), String> {
        let Some(FleetAction::Publish(next)) = actions.last() else { return Ok(()) };
        let is_new = |machine: &Machine| !fleet.machines.iter().any(|before| before.token == machine.token);
        let buys = next.in_state(MachineState::Requested).any(is_new);
        let leaving = next.in_state(MachineState::Draining).chain(next.in_state(MachineState::Empty));
        let is_drained = |machine: &Machine| {
            let member = self.members.iter().find(|one| machine.member.as_ref() == Some(&one.id));
            member.is_some_and(|one| matches!(one.state, MemberState::Draining | MemberState::Serving))
        };
        match buys && self.cancellable && leaving.into_iter().any(is_drained) {
            true => Err("a machine is bought while a drain could be taken back".to_owned()),
            false => Ok(()),
        }
    }

    /// Does one act. An error is a promise that was broken; false: it was left, and the rest of the turn with it.
    pub(super) fn act(&mut self, generation: u64, action: &FleetAction) -> Result<bool, String> {
        let is_late = generation != self.fleet.generation;
        if is_late && action.must_be_fresh() && self.bug != Some(Bug::ActsLate) {
            return Ok(false);
        }
        match action {
            FleetAction::Publish(next) => {
                if is_late && self.bug != Some(Bug::PublishesBlindly) {
                    return Ok(false);
                }
                follows(&self.fleet, next)?;
                self.fleet = (**next).clone();
            }
            FleetAction::Ensure { token, .. } => {
                if !self.boxes.iter().any(|one| one.instance.token.as_ref() == Some(&token.0)) {
                    self.create(token);
                }
            }
            FleetAction::Terminate { instance, .. } => self.terminate(instance)?,
            FleetAction::Join { token, member } if self.has_left(member) => {
                self.refused.insert(token.clone(), "it was a member".to_owned());
            }
            FleetAction::Join { member, .. } => {
                self.change(
                    member,
                    &[MemberState::Waiting, MemberState::Standby, MemberState::Drained],
                    MemberState::Joining,
                );
            }
            FleetAction::Drain { member, .. } => {
                let from =
                    [MemberState::Serving, MemberState::Joining, MemberState::Standby, MemberState::Drained];
                self.change(member, &from, MemberState::Draining);
            }
            FleetAction::Cancel { member, .. } => {
                if !self.cancellable {
                    return Err("a drain is cancelled that cannot be".to_owned());
                }
                if !self.has_left(member) {
                    self.change(member, &[MemberState::Draining, MemberState::Drained], MemberState::Serving);
                }
            }
            FleetAction::Forget { member, .. } => {
                if self.keys.contains(member) {
                    return Err(format!("{member} is forgotten with a key"));
                }
                self.members.retain(|one| &one.id != member);
            }
            FleetAction::Ask(_) => unreachable!("asked within the turn"),
        }
        Ok(true)
    }

    fn has_left(&self, id: &str) -> bool {
        let is_drained = |one: &Member| one.id == id && one.state == MemberState::Drained;
        self.leaves && self.members.iter().any(is_drained)
    }

    fn change(&mut self, id: &str, from: &[MemberState], to: MemberState) {
        let found = self.members.iter_mut().find(|one| one.id == id && from.contains(&one.state));
        if let Some(member) = found {
            member.state = to;
        }
    }

    pub(super) fn create(&mut self, token: &Token) {
        let number = self.boxes.len();
        let mut new = instance(&format!("i{number}"), &token.0, &format!("a{number}"));
        new.state = InstanceState::Pending;
        self.boxes.push(Host { instance: new, hidden: true, stuck: false, cleaned: false });
    }

    fn terminate(&mut self, id: &str) -> Result<(), String> {
        let Some(one) = self.boxes.iter_mut().find(|one| one.instance.id == id) else { return Ok(()) };
        if one.instance.token.as_deref() == Some(STRANGER) {
            return Err("a stranger is ended".to_owned());
        }
        if self.refuses {
            return Ok(());
        }
        one.cleaned = one.instance.state == InstanceState::Ended;
        one.instance.state = InstanceState::Ended;
        let address = one.instance.address.clone();
        if let Some(member) = self.members.iter_mut().find(|one| one.address == address) {
            if self.keys.contains(&member.id) {
                return Err(format!("{} is ended with a key", member.id));
            }
            member.state = MemberState::Down;
        }
        self.members.retain(|one| one.address != address || one.state != MemberState::Waiting);
        Ok(())
    }

    /// What provider and engine may do by themselves next.
    pub(super) fn environment(&self) -> Vec<Happening> {
        let mut happenings = Vec::new();
        for (place, one) in self.boxes.iter().enumerate() {
            if one.hidden {
                happenings.push(Happening::IsShown(place));
            }
            if one.instance.state == InstanceState::Pending && !one.stuck {
                happenings.push(Happening::Boots(place));
            }
        }
        for place in 0..self.members.len() {
            match self.members[place].state {
                MemberState::Joining => happenings.push(Happening::HasJoined(place)),
                MemberState::Draining => happenings.push(Happening::IsDrained(place)),
                _ => {}
            }
        }
        happenings
    }

    pub(super) fn boot(&mut self, place: usize) {
        self.boxes[place].instance.state = InstanceState::Running;
        let address = self.boxes[place].instance.address.clone().expect("it has one");
        let id = format!("m{}", address.trim_start_matches('a'));
        self.members.push(member(&id, &address, MemberState::Waiting));
    }

    pub(super) fn joined(&mut self, place: usize) {
        let id = self.members[place].id.clone();
        self.members[place].state = MemberState::Serving;
        let has = |world: &World, id: &String| world.keys.iter().filter(|owner| *owner == id).count();
        let rich = (0..self.keys.len()).find(|key| has(self, &self.keys[*key]) > 1);
        if let (Some(key), 0) = (rich, has(self, &id)) {
            self.keys[key] = id;
        }
    }

    pub(super) fn drained(&mut self, place: usize) {
        let id = self.members[place].id.clone();
        let other = self.members.iter().find(|one| one.state == MemberState::Serving && one.id != id);
        let Some(other) = other.map(|one| one.id.clone()) else { return };
        self.keys.iter_mut().filter(|owner| **owner == id).for_each(|owner| owner.clone_from(&other));
        self.members[place].state = MemberState::Drained;
    }
}

/// Whether a document may follow another one.
fn follows(before: &Fleet, after: &Fleet) -> Result<(), String> {
    if after.generation != before.generation + 1 {
        return Err(format!("generation {} after {}", after.generation, before.generation));
    }
    use MachineState::{Booting, Draining, Empty, Failed, Joining, Ready, Requested, Serving, Terminating};
    for machine in &before.machines {
        let next = after.machines.iter().find(|next| next.token == machine.token);
        let is_right = match next.map(|next| next.state) {
            None => matches!(machine.state, Terminating | Failed),
            Some(state) if state == machine.state => true,
            Some(state) => matches!(
                (machine.state, state),
                (Requested, Booting)
                    | (Booting, Joining | Ready)
                    | (Ready, Booting | Joining | Empty)
                    | (Joining, Serving | Draining)
                    | (Serving, Draining)
                    | (Draining, Empty | Serving)
                    | (Empty, Terminating | Draining | Serving)
                    | (Failed, Terminating | Serving)
                    | (Requested | Booting | Ready | Joining | Serving | Draining, Failed)
            ),
        };
        if !is_right {
            return Err(format!("{:?} after {:?}", next.map(|next| next.state), machine.state));
        }
    }
    let is_bought = |machine: &&Machine| !before.machines.iter().any(|one| one.token == machine.token);
    let buys = after.in_state(Requested).filter(is_bought).any(|machine| !machine.standby);
    if buys && after.machines.iter().any(|machine| machine.standby && !is_bought(&machine)) {
        return Err("a machine is bought beside one that stands by".to_owned());
    }
    let joins_uncalled =
        |machine: &Machine| machine.standby && !matches!(machine.state, Requested | Booting | Ready);
    if after.machines.iter().any(joins_uncalled) {
        return Err("one that stands by has joined".to_owned());
    }
    if after.serving() < before.serving() && after.serving() < after.policy.min {
        return Err("fewer than the fewest serve".to_owned());
    }
    Ok(())
}
