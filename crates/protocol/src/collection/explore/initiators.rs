//! Rounds of the explored worlds: their beginnings, questions and answers.

use super::*;

impl World {
    pub(super) fn begin(&mut self, beside: bool, scenario: Scenario) {
        if beside {
            self.rounds -= 1;
        }
        let generation = self.nodes[0].generation;
        let mut actions = Vec::new();
        let round = Round::start(self.members(scenario, generation), 1, generation, NOW, &mut actions);
        let tombstones = (!beside).then(|| self.nodes[0].record.clone());
        let id = RoundId(self.initiators.len() as u64);
        self.initiators.push(Initiator { round, id, epoch: Epoch(0), tombstones, asked: BTreeSet::new() });
        let position = self.initiators.len() - 1;
        self.ask(position, actions);
    }

    fn ask(&mut self, position: usize, actions: Vec<RoundAction>) {
        let ends = actions.iter().any(|action| matches!(action, RoundAction::End(_)));
        let asked = &mut self.initiators[position].asked;
        asked.extend(actions.into_iter().filter(|action| !matches!(action, RoundAction::End(_))));
        if ends {
            // What is under way may still arrive, but for the sake of the number of worlds only removals do.
            asked.retain(|action| matches!(action, RoundAction::Collect(_) | RoundAction::Release(_)));
        }
    }

    /// Carries out one question of an initiator; its answer may be lost.
    pub(super) fn answer(&mut self, position: usize, action: RoundAction, lost: bool, scenario: Scenario) {
        self.initiators[position].asked.remove(&action);
        let event = self.carry_out(position, action, scenario);
        if lost {
            self.lost -= 1;
            return;
        }
        let mut actions = Vec::new();
        self.initiators[position].round.step(event, &mut actions);
        self.ask(position, actions);
    }

    /// A node takes part in the round without the key: it can neither guard it nor make it clean.
    pub(super) fn leave_out(&mut self, position: usize, action: RoundAction) {
        let RoundAction::Confirm(node) = action else { unreachable!("only who confirms leaves out") };
        self.unsure -= 1;
        self.initiators[position].asked.remove(&action);
        let event = match self.confirm(self.initiators[position].id, node, None) {
            RoundEvent::Confirmed { node, epoch, .. } => {
                RoundEvent::Confirmed { node, epoch, left_out: vec![0] }
            }
            other => other,
        };
        let mut actions = Vec::new();
        self.initiators[position].round.step(event, &mut actions);
        self.ask(position, actions);
    }

    fn carry_out(&mut self, position: usize, action: RoundAction, _scenario: Scenario) -> RoundEvent {
        let (round, tombstones) =
            (self.initiators[position].id, self.initiators[position].tombstones.clone());
        match action {
            RoundAction::Confirm(node) => self.confirm(round, node, tombstones),
            RoundAction::Open(above) => {
                self.opened = Epoch(self.opened.0.max(above.0) + 1);
                self.initiators[position].epoch = self.opened;
                RoundEvent::Opened(self.opened)
            }
            RoundAction::Fence(id, epoch) => {
                let floor = match tombstones {
                    Some(_) if !planted(Bug::ForgetsTheFloor) => DELETED_AT,
                    _ => Timestamp(0),
                };
                let node = &mut self.nodes[index(id)];
                match node.participant.fence(round, epoch, floor, NOW) {
                    Ok(FenceStep::Already) => RoundEvent::Fenced(id),
                    Ok(FenceStep::Remember(remembered)) => {
                        if !planted(Bug::ForgetsTheEpoch) {
                            node.disk.remembered = remembered;
                        }
                        node.participant.fenced(round, remembered);
                        RoundEvent::Fenced(id)
                    }
                    Err(_) => RoundEvent::Failed(id),
                }
            }
            RoundAction::Complete(epoch) => {
                self.completed = self.completed.max(epoch);
                RoundEvent::Completed(self.generation)
            }
            RoundAction::Collect(id) => {
                let node = &mut self.nodes[index(id)];
                let Some(tombstones) = tombstones else { return RoundEvent::Collected(id, 0) };
                self.collected = true;
                if (node.record == tombstones && node.damaged != Some(false))
                    || planted(Bug::CollectsAnything)
                {
                    node.record = VersionSet::default();
                    // A crash may or may not undo the removal; undone is the harder case for a later write.
                }
                if tombstones.includes(&node.hint) && node.damaged != Some(true) {
                    node.hint = VersionSet::default();
                }
                if planted(Bug::CollectsAnything) {
                    node.disk.record = VersionSet::default();
                }
                RoundEvent::Collected(id, 1)
            }
            RoundAction::Release(id) => {
                self.nodes[index(id)].participant.release(round);
                RoundEvent::Elapsed
            }
            RoundAction::End(_) => unreachable!("ends are not asked"),
        }
    }

    fn confirm(&mut self, round: RoundId, id: NodeId, tombstones: Option<VersionSet>) -> RoundEvent {
        let generation = self.nodes[0].generation;
        let node = &mut self.nodes[index(id)];
        let keys: BTreeMap<_, _> = tombstones.iter().map(|set| (place(), set.clone())).collect();
        let generation = if node.up { generation } else { Generation(u64::MAX) };
        let confirm = Confirm { round, generation, keys: Arc::new(keys) };
        let epoch = node.participant.epoch();
        match node.participant.confirm(confirm, node.generation, NOW) {
            Ok(()) => {
                tombstones.iter().for_each(|set| node.clean(set));
                RoundEvent::Confirmed { node: id, epoch, left_out: Vec::new() }
            }
            Err(_) => RoundEvent::Failed(id),
        }
    }
}
