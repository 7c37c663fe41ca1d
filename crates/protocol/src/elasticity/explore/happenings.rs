//! What may happen in the explored worlds, and the worlds after it.

use super::*;

/// What happens next. Machines and members are meant by their places.
#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    /// The provider shows a machine.
    IsShown(usize),
    Boots(usize),
    /// The engine says so of a member.
    HasJoined(usize),
    IsDrained(usize),
    /// The first controller reads and decides.
    Turns,
    /// The second one reads.
    Reads,
    /// It decides by what it has read.
    Decides(usize),
    /// A controller does its next act.
    Acts(usize),
    /// The operator gives the next order.
    Orders,
    /// Time passes.
    Ticks,
    /// The provider refuses to end machines from now on.
    Refuses,
    /// A controller is killed.
    Dies(usize),
    /// An act is done, and nobody learns of it: the rest of the turn is lost.
    LosesReply(usize),
    /// One token, two machines.
    Doubles(usize),
    /// A drain says that it is done.
    SaysDrained(usize),
    /// A machine will never boot.
    Sticks(usize),
    /// A machine that stands by has ended, or only its process.
    ReadyEnds {
        host: usize,
        ended: bool,
    },
}

impl crate::explore::World for World {
    type Happening = Happening;
    type Name = u128;

    fn name(&self) -> u128 {
        self.fingerprint()
    }

    fn happenings(&self) -> Vec<Happening> {
        let mut happenings = self.environment();
        for who in 0..2 {
            match &self.controllers[who] {
                Phase::Idle if who == 0 => happenings.push(Happening::Turns),
                Phase::Idle if self.second_turns == 0 => {}
                Phase::Idle => happenings.push(Happening::Reads),
                Phase::Read(_) => happenings.push(Happening::Decides(who)),
                Phase::Acts { .. } => happenings.push(Happening::Acts(who)),
            }
        }
        if !self.orders.is_empty() {
            happenings.push(Happening::Orders);
        }
        if self.ticks > 0 {
            happenings.push(Happening::Ticks);
        }
        if self.may_refuse {
            happenings.push(Happening::Refuses);
        }
        if self.faults > 0 {
            happenings.extend(self.wrongs());
        }
        happenings
    }

    fn step(&self, happening: &Happening) -> Result<Option<Self>, String> {
        Ok(Some(match *happening {
            Happening::Turns => return self.turned(),
            Happening::Reads => {
                let read = Phase::Read(Box::new(self.fleet.clone()));
                self.with(|world| {
                    world.controllers[1] = read;
                    world.second_turns -= 1;
                })
            }
            Happening::Decides(who) => self.decided_late(who)?,
            Happening::Acts(who) => self.acted(who)?,
            Happening::Orders => self.with(World::order),
            Happening::Ticks => {
                self.with(|world| (world.now, world.ticks) = (world.now + TICK_MS, world.ticks - 1))
            }
            Happening::Refuses => self.with(|world| (world.refuses, world.may_refuse) = (true, false)),
            Happening::IsShown(_)
            | Happening::Boots(_)
            | Happening::HasJoined(_)
            | Happening::IsDrained(_) => self.by_itself(*happening),
            Happening::Dies(_)
            | Happening::LosesReply(_)
            | Happening::Doubles(_)
            | Happening::SaysDrained(_)
            | Happening::Sticks(_)
            | Happening::ReadyEnds { .. } => return Ok(self.wronged(*happening)),
        }))
    }

    /// From there a faithful environment goes on, and what comes of it is judged.
    fn at_rest(&self) -> Result<(), String> {
        if self.orders.is_empty() { self.settle()?.has_settled() } else { Ok(()) }
    }
}

impl World {
    /// The world after something that provider or engine do by themselves.
    pub(super) fn by_itself(&self, happening: Happening) -> World {
        self.with(|world| match happening {
            Happening::IsShown(place) => world.boxes[place].hidden = false,
            Happening::Boots(place) => world.boot(place),
            Happening::HasJoined(place) => world.joined(place),
            Happening::IsDrained(place) => world.drained(place),
            other => unreachable!("{other:?} is nothing that provider or engine do"),
        })
    }

    /// The first controller reads and decides; none if its acts would change nothing.
    fn turned(&self) -> Result<Option<World>, String> {
        let mut world = self.clone();
        let actions = world.decided(&self.fleet)?;
        if !world.changes(&actions)? {
            return Ok(None);
        }
        world.controllers[0] = Phase::Acts { generation: self.fleet.generation, actions };
        Ok(Some(world))
    }

    fn decided_late(&self, who: usize) -> Result<World, String> {
        let Phase::Read(fleet) = &self.controllers[who] else { unreachable!("it has read") };
        let mut world = self.clone();
        let actions = world.decided(fleet)?;
        world.controllers[who] = match actions.is_empty() {
            true => Phase::Idle,
            false => Phase::Acts { generation: fleet.generation, actions },
        };
        Ok(world)
    }

    fn acted(&self, who: usize) -> Result<World, String> {
        let Phase::Acts { generation, actions } = &self.controllers[who] else { unreachable!("it acts") };
        let mut world = self.clone();
        let goes_on = world.act(*generation, &actions[0])? && actions.len() > 1;
        world.controllers[who] = match goes_on {
            true => Phase::Acts { generation: *generation, actions: actions[1..].to_vec() },
            false => Phase::Idle,
        };
        Ok(world)
    }

    /// What may go wrong next.
    fn wrongs(&self) -> Vec<Happening> {
        let mut wrongs = Vec::new();
        for who in 0..2 {
            if who == 0 && !matches!(self.controllers[who], Phase::Idle) {
                wrongs.push(Happening::Dies(who));
            }
            if let Phase::Acts { actions, .. } = &self.controllers[who] {
                wrongs.push(Happening::LosesReply(who));
                if let FleetAction::Ensure { .. } = &actions[0] {
                    wrongs.push(Happening::Doubles(who));
                }
            }
        }
        for (place, member) in self.members.iter().enumerate() {
            if member.state == MemberState::Draining && !self.leaves {
                wrongs.push(Happening::SaysDrained(place));
            }
        }
        for (place, one) in self.boxes.iter().enumerate() {
            if one.instance.state == InstanceState::Pending && !one.stuck {
                wrongs.push(Happening::Sticks(place));
            }
        }
        wrongs.extend(self.ready_ones_end());
        wrongs
    }

    /// The world after something went wrong; none if it could not.
    fn wronged(&self, happening: Happening) -> Option<World> {
        let mut world = self.clone();
        match happening {
            Happening::Dies(who) => world.controllers[who] = Phase::Idle,
            Happening::LosesReply(who) => {
                let Phase::Acts { actions, generation } = &self.controllers[who] else {
                    unreachable!("it acts")
                };
                world.act(*generation, &actions[0]).ok()?;
                world.controllers[who] = Phase::Idle;
            }
            Happening::Doubles(who) => {
                let Phase::Acts { actions, .. } = &self.controllers[who] else { unreachable!("it acts") };
                let FleetAction::Ensure { token, .. } = &actions[0] else { unreachable!("it buys") };
                let ours = |one: &&Host| one.instance.token.as_ref() == Some(&token.0);
                let more = 2_usize.saturating_sub(self.boxes.iter().filter(ours).count()).max(1);
                (0..more).for_each(|_| world.create(token));
            }
            Happening::SaysDrained(place) => world.members[place].state = MemberState::Drained,
            Happening::Sticks(place) => world.boxes[place].stuck = true,
            Happening::ReadyEnds { host, ended } => world.ready_ends(host, ended),
            other => unreachable!("{other:?} is nothing wrong"),
        }
        world.faults -= 1;
        Some(world)
    }
}
