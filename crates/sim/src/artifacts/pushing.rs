//! A user of the read-only store, who pushes, stages, swaps, goes back, aborts and deletes as it comes, sensible or not;
//! and the sources, which are away for a while, fail, stall and lie.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, ClientOptions};
use futures_util::future::{Either, select};
use model::artifacts::{ArtifactOrder, Standing};
use model::{ArtifactNumber, Moment, ReadOnlyStore, StoreName};

use super::USER;
use crate::book::STORE;
use crate::cluster::World;
use crate::dice::Dice;
use crate::executor::{ProcessId, WallClock};
use crate::plant::Plant;
use crate::sources::Mood;

/// Pause before a user that could not connect tries again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the user waits for the answer to an order before it goes on with something else.
const PATIENCE: Duration = Duration::from_secs(4);
/// Artifacts that a store lists before the user pushes no more.
const LISTED_MAX: usize = 6;

fn name() -> StoreName {
    StoreName::new(STORE).expect("a short name")
}

/// How a source is for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// It is sound.
    Nothing,
    /// It cannot be opened.
    Away,
    /// It has another artifact.
    Lies,
    /// Some of its reads fail.
    Fails,
    /// Some of its reads give other bytes.
    Flips,
    /// A node's threads that may wait do, for seconds.
    Stalls,
}

const HARMS: [Harm; 9] = [
    Harm::Nothing,
    Harm::Nothing,
    Harm::Nothing,
    Harm::Nothing,
    Harm::Away,
    Harm::Lies,
    Harm::Fails,
    Harm::Flips,
    Harm::Stalls,
];

/// The user.
struct User {
    world: Arc<World>,
    process: ProcessId,
    client: Client,
    dice: Dice,
    /// The number of the last artifact that was built.
    newest: u64,
    /// The last push, which may be asked for again.
    last_push: Option<ArtifactOrder>,
    end: Moment,
}

/// Creates the store and gives orders until `end`.
pub async fn push(world: Arc<World>, process: ProcessId, end: Moment) {
    let dice = Dice::apart(world.setup.seed, 34);
    let client = loop {
        if world.executor.now() >= end {
            return;
        }
        let options = ClientOptions { name: "user".to_owned(), ..ClientOptions::default() };
        let ports = world.ports(USER, process, Arc::new(WallClock::default()));
        match Client::connect(&world.addresses(), ports, options).await {
            Ok(client) => break client,
            Err(_) => world.executor.sleep(AGAIN).await,
        }
    };
    let mut user = User { world, process, client, dice, newest: 0, last_push: None, end };
    let replicas = user.dice.between(1, u64::from(user.world.setup.replicas)) as u8;
    while user.now() < end && user.listed().is_none() {
        user.order(ArtifactOrder::Create { store: name(), replicas, kept: None }).await;
        if user.client.refresh().await.is_err() {
            // Who is refused at once, and asks again at once, stops the clock of the world.
            user.world.executor.sleep(AGAIN).await;
        }
    }
    let pause = if user.world.setup.plant.is_some() { 400 } else { *user.dice.pick(&[200, 800, 1500]) };
    while user.now() < end {
        let next = user.draw().await;
        user.order(next).await;
        let pause = user.dice.millis(20, pause);
        user.world.executor.sleep(pause).await;
    }
    user.client.close();
}

impl User {
    fn now(&self) -> Moment {
        self.world.executor.now()
    }

    /// The store as the user knows it.
    fn listed(&self) -> Option<ReadOnlyStore> {
        self.client.cluster().read_only(STORE).cloned()
    }

    /// Gives an order, and waits for its answer for a while.
    async fn order(&self, order: ArtifactOrder) {
        let answer = Box::pin(self.client.order_artifacts(&order));
        let said = match select(answer, Box::pin(self.world.executor.sleep(PATIENCE))).await {
            Either::Left((Ok(cluster), _)) => format!("generation {}", cluster.generation.0),
            Either::Left((Err(error), _)) => error.to_string(),
            Either::Right(_) => "no answer yet".to_owned(),
        };
        self.world.tell(format!("{order:?}: {said}"));
    }

    /// What the user wants next.
    async fn draw(&mut self) -> ArtifactOrder {
        let listed = self.listed().map(|store| store.artifacts).unwrap_or_default();
        let of = |standing: Standing| {
            let those = listed.iter().filter(move |artifact| artifact.standing == standing);
            those.map(|artifact| artifact.number).collect::<Vec<_>>()
        };
        let staging = of(Standing::Staging);
        let store = name();
        if self.world.setup.plant == Some(Plant::AbsentForElsewhere) && !staging.is_empty() {
            return self.last_push.clone().expect("what is staged was pushed");
        }
        match self.dice.below(10) {
            0 if !listed.is_empty() => {
                let number = self.dice.pick(&listed).number;
                ArtifactOrder::Swap { store, number, replicas: None, first: self.dice.chance(200) }
            }
            1..=2 => ArtifactOrder::Rollback { store, replicas: None },
            3 if !staging.is_empty() => ArtifactOrder::Abort { store, number: *self.dice.pick(&staging) },
            4 if !listed.is_empty() => {
                ArtifactOrder::Delete { store, number: self.dice.pick(&listed).number }
            }
            5 if self.last_push.is_some() => self.last_push.clone().expect("it was just looked at"),
            _ if listed.len() > LISTED_MAX => ArtifactOrder::Delete { store, number: listed[0].number },
            _ => self.build().await,
        }
    }

    /// A new artifact, and the order that lists it.
    async fn build(&mut self) -> ArtifactOrder {
        self.newest += 1;
        let (store, number) = (name(), self.newest);
        let world = self.world.clone();
        let (source, disk) = world.artifacts.build(number, &mut self.dice).await;
        world.sources.put(&source, disk);
        let digest = world.artifacts.digest(number);
        let manifest = match world.setup.plant {
            Some(Plant::DigestsUncompared) if number > 1 => {
                let (digest, disk) = world.artifacts.lie(number).await;
                world.sources.put(&source, disk);
                digest
            }
            _ => {
                self.harm(&source, number).await;
                digest
            }
        };
        let replicas = self.dice.chance(300).then(|| self.dice.between(1, 3) as u8);
        let replicas = match world.setup.plant {
            Some(Plant::AbsentForElsewhere) => Some(1),
            _ => replicas,
        };
        world.artifacts.enough(number, replicas);
        let number = ArtifactNumber(number);
        if self.dice.chance(200) && world.setup.plant.is_none() {
            return ArtifactOrder::Stage { store, number, manifest, source };
        }
        let abort_after_ms = self.dice.chance(200).then(|| self.dice.between(500, 8_000));
        let push = ArtifactOrder::Push { store, number, manifest, source, replicas, abort_after_ms };
        self.last_push = Some(push.clone());
        push
    }

    /// Lets the source of an artifact be as it is drawn, for a while.
    async fn harm(&mut self, source: &str, number: u64) {
        let world = self.world.clone();
        let harm = match world.setup.plant {
            Some(Plant::StagedClaimed | Plant::AbsentForElsewhere) if number > 1 => Harm::Away,
            Some(_) => Harm::Nothing,
            None => *self.dice.pick(&HARMS),
        };
        let until = self.now().after(self.dice.millis(100, 4_000)).min(self.end);
        let share = *self.dice.pick(&[100, 500, 1000]);
        match harm {
            Harm::Nothing => return,
            Harm::Away => drop(world.sources.take(source)),
            Harm::Lies => {
                let (_, disk) = world.artifacts.lie(number).await;
                world.sources.put(source, disk);
            }
            Harm::Fails => world.sources.set_mood(source, Some(Mood::Fails(share))),
            Harm::Flips => world.sources.set_mood(source, Some(Mood::Flips(share))),
            Harm::Stalls => {
                let victim = self.dice.below(u64::from(world.setup.nodes)) as usize;
                // Soon, when it fetches.
                let begin = self.now().after(self.dice.millis(0, 100));
                let stage = world.clone();
                world.executor.at(begin, move || stage.stall_waiting(victim, until));
            }
        }
        world.tell(format!("{source}: {harm:?} until {:.3}", until.nanos as f64 / 1e9));
        let (stage, url) = (world.clone(), source.to_owned());
        let mend = async move {
            stage.executor.sleep_until(until).await;
            stage.artifacts.mend(&stage.sources, number, &url);
        };
        world.executor.spawn(self.process, Box::pin(mend));
    }
}
